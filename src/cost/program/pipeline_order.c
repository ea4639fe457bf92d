/* In which order a stage of a pipeline runs its passes.
 *
 * The orders are those of PyTorch's and Megatron's schedules. With one stage, a rank that takes
 * turns sends and receives at once and waits for both. With several (ScheduleInterleaved1F1B and
 * ScheduleInterleavedZeroBubble) it sends right after a pass, and waits for all sends at the end.
 * It asks for a message as soon as the sender has come to that, by the order in which the ranks
 * take turns, so that none waits for another for ever. */
#include "cost/program/pipeline_order.h"

bool pipeline_splits(struct pipeline_shape s)
{
    return s.schedule == DPRO_SCHEDULE_ZERO_BUBBLE;
}

static uint32_t round_of(struct pipeline_shape s)
{
    uint32_t n_rounds = MAX(s.n_micro_batches / s.n_ranks, 1);
    return s.n_micro_batches / n_rounds;
}

bool pipeline_has_rounds(struct pipeline_shape s)
{
    return s.n_micro_batches % MAX(s.n_micro_batches / s.n_ranks, 1) == 0;
}

/* Passes that a rank has begun before its first backward pass; with turns, less the one right
 * before it. */
static uint32_t passes_ahead(struct pipeline_shape s, uint32_t rank)
{
    uint32_t hops = s.n_ranks - 1 - rank, ahead = (s.n_chunks - 1) * round_of(s) + hops;
    if (s.schedule == DPRO_SCHEDULE_INTERLEAVED)
        ahead += hops;
    else if (s.schedule != DPRO_SCHEDULE_1F1B && !pipeline_splits(s))
        return s.n_chunks * s.n_micro_batches;
    return MIN(ahead, s.n_chunks * s.n_micro_batches);
}

uint32_t pipeline_in_flight(struct pipeline_shape s, uint32_t rank)
{
    /* passes of weights keep what they need until their own turn */
    uint32_t n = passes_ahead(s, rank) + 1 + (pipeline_splits(s) ? rank : 0);
    return MIN(n, s.n_chunks * s.n_micro_batches);
}

/* ---- passes ---- */

/* Of a rank: which micro-batch is next in each of its chunks. */
struct counters {
    uint32_t *forward, *backward, *weights;
};

static void add_pass(pipeline_steps *steps, enum pipeline_action action, struct pipeline_shape s,
                     uint32_t rank, uint32_t chunk, uint32_t *counters)
{
    array_add(steps, .action = (uint8_t)action, .back = action != DO_FORWARD,
              .stage = chunk * s.n_ranks + rank, .number = counters[chunk]++);
}

static void list_passes(struct pipeline_shape s, uint32_t rank, struct arena *arena,
                        pipeline_steps *steps)
{
    uint32_t n = s.n_chunks * s.n_micro_batches, round = round_of(s);
    uint32_t ahead = passes_ahead(s, rank), n_weights = 0;
    struct counters next = {arena_array(arena, s.n_chunks, sizeof(uint32_t)),
                            arena_array(arena, s.n_chunks, sizeof(uint32_t)),
                            arena_array(arena, s.n_chunks, sizeof(uint32_t))};
    bool splits = pipeline_splits(s);
    for (uint32_t i = 0; i < ahead + n; i++) {
        if (i < n)
            add_pass(steps, DO_FORWARD, s, rank, i / round % s.n_chunks, next.forward);
        if (i < ahead)
            continue;
        uint32_t chunk = s.n_chunks - 1 - (i - ahead) / round % s.n_chunks;
        add_pass(steps, splits ? DO_INPUTS : DO_BACKWARD, s, rank, chunk, next.backward);
        if (splits && i - ahead >= rank) {
            chunk = s.n_chunks - 1 - n_weights++ / round % s.n_chunks;
            add_pass(steps, DO_WEIGHTS, s, rank, chunk, next.weights);
        }
    }
    for (; splits && n_weights < n; n_weights++)
        add_pass(steps, DO_WEIGHTS, s, rank, s.n_chunks - 1 - n_weights / round % s.n_chunks,
                 next.weights);
}

/* ---- messages ---- */

static void wait_for_sends(pipeline_steps *steps, size_t from)
{
    for (size_t i = from, n = steps->n; i < n; i++) {
        struct pipeline_step step = steps->at[i];
        if (step.action != DO_SEND)
            continue;
        step.action = WAIT;
        array_push(steps, step);
    }
}

static void add_message(pipeline_steps *steps, struct pipeline_shape s, uint8_t action,
                        const struct pipeline_step *pass)
{
    struct pipeline_step message = *pass;
    message.action = action;
    if (pass->stage != (pass->back == (action != DO_RECEIVE) ? 0 : s.n_ranks - 1))
        array_push(steps, message);
}

/* With one stage a rank: GPipe waits for all sends of a direction at its end, 1F1B for each with
 * the next pass; where directions take turns, it sends when that pass receives. */
static void add_messages(pipeline_steps *steps, struct pipeline_shape s,
                         const pipeline_steps *passes)
{
    bool gpipe = s.schedule != DPRO_SCHEDULE_1F1B;
    size_t from = 0;
    for (size_t i = 0; i < passes->n; i++) {
        const struct pipeline_step *pass = &passes->at[i], *before = i > 0 ? pass - 1 : NULL;
        bool turned = before && before->action != pass->action;
        bool turns = i + 1 < passes->n && pass[1].action != pass->action;
        if (turned && !gpipe)
            add_message(steps, s, DO_SEND, before);
        add_message(steps, s, DO_RECEIVE, pass);
        if (turned && !gpipe)
            add_message(steps, s, WAIT, before);
        array_push(steps, *pass);
        if (before && !turned && !gpipe)
            add_message(steps, s, WAIT, before);
        from = gpipe ? from : steps->n;
        if (gpipe || !turns)
            add_message(steps, s, DO_SEND, pass);
        if (gpipe && turns) {
            wait_for_sends(steps, from);
            from = steps->n;
        }
    }
    wait_for_sends(steps, from);
}

/* ---- messages, with several stages a rank ---- */

struct lowering {
    struct pipeline_shape shape;
    pipeline_steps *steps; /* by rank: with messages */
    bool *asked;           /* [(stage * n_micro_batches + number) * 2 + back] */
};

static bool *asked_for(const struct lowering *l, uint32_t stage, uint32_t number, bool back)
{
    return &l->asked[((size_t)stage * l->shape.n_micro_batches + number) * 2 + back];
}

static bool may_be_next(const struct lowering *l, const struct pipeline_step *pass)
{
    uint32_t first = pass->back ? l->shape.n_ranks * l->shape.n_chunks - 1 : 0;
    return pass->action == DO_WEIGHTS || pass->stage == first ||
           *asked_for(l, pass->stage, pass->number, pass->back);
}

static void add_step(struct lowering *l, uint32_t rank, const struct pipeline_step *pass)
{
    uint32_t last = pass->back ? 0 : l->shape.n_ranks * l->shape.n_chunks - 1;
    struct pipeline_step message = *pass;
    array_push(&l->steps[rank], *pass);
    if (pass->action == DO_WEIGHTS || pass->stage == last)
        return;
    message.action = DO_SEND;
    array_push(&l->steps[rank], message);
    message.action = DO_RECEIVE;
    message.stage = pass->back ? pass->stage - 1 : pass->stage + 1;
    array_push(&l->steps[message.stage % l->shape.n_ranks], message);
    *asked_for(l, message.stage, message.number, message.back) = true;
}

/* Takes each rank's next pass once it may begin. */
static void order_lower(struct lowering *l, const pipeline_steps *passes, size_t *done)
{
    for (bool progress = true; progress;) {
        progress = false;
        for (uint32_t r = 0; r < l->shape.n_ranks; r++)
            if (done[r] < passes[r].n && may_be_next(l, &passes[r].at[done[r]])) {
                add_step(l, r, &passes[r].at[done[r]++]);
                progress = true;
            }
    }
}

pipeline_steps *pipeline_order(struct pipeline_shape shape, struct arena *arena)
{
    uint32_t n = shape.n_ranks;
    bool several = pipeline_splits(shape) || shape.schedule == DPRO_SCHEDULE_INTERLEAVED;
    pipeline_steps *passes = arena_array(arena, n, sizeof *passes);
    struct lowering l = {
        .shape = shape,
        .steps = arena_array(arena, n, sizeof *l.steps),
        .asked = arena_array(arena, (size_t)n * shape.n_chunks * shape.n_micro_batches * 2,
                             sizeof *l.asked)};
    for (uint32_t r = 0; r < n; r++)
        list_passes(shape, r, arena, &passes[r]);
    if (several)
        order_lower(&l, passes, arena_array(arena, n, sizeof(size_t)));
    for (uint32_t r = 0; r < n; r++) {
        if (several)
            wait_for_sends(&l.steps[r], 0);
        else
            add_messages(&l.steps[r], shape, &passes[r]);
        array_fini(&passes[r]);
    }
    return l.steps;
}
