/* The orders are PyTorch's ScheduleInterleaved1F1B and ScheduleInterleavedZeroBubble. A rank sends
 * right after a pass. It asks for a message as soon as the sender has come to that, by the order in
 * which the ranks take turns, so that none waits for another for ever. */
#include "cost/pipeline_order.h"

#include "base/sort.h"

static uint32_t round_of(struct pipeline_shape s)
{
    uint32_t n_rounds = MAX(s.n_micro_batches / s.n_ranks, 1);
    return s.n_micro_batches / n_rounds;
}

bool pipeline_has_rounds(struct pipeline_shape s)
{
    return s.n_micro_batches % MAX(s.n_micro_batches / s.n_ranks, 1) == 0;
}

uint32_t pipeline_ahead(struct pipeline_shape s, uint32_t rank)
{
    uint32_t hops = s.n_ranks - 1 - rank;
    uint32_t ahead = (s.n_chunks - 1) * round_of(s) + (s.splits ? hops : 2 * hops);
    return MIN(ahead, s.n_chunks * s.n_micro_batches);
}

/* ---- passes ---- */

/* Of a rank: which micro-batch is next in each of its chunks. */
struct counters {
    uint32_t *forward, *backward, *weights;
};

static void add_pass(pipeline_steps *steps, enum pipeline_action action, struct pipeline_shape s,
                     uint32_t rank, uint32_t chunk, uint32_t *counters)
{
    array_add(steps, .action = (uint8_t)action, .stage = chunk * s.n_ranks + rank,
              .number = counters[chunk]++);
}

static void list_passes(struct pipeline_shape s, uint32_t rank, struct arena *arena,
                        pipeline_steps *steps)
{
    uint32_t n = s.n_chunks * s.n_micro_batches, round = round_of(s);
    uint32_t ahead = pipeline_ahead(s, rank), n_weights = 0;
    struct counters next = {arena_array(arena, s.n_chunks, sizeof(uint32_t)),
                            arena_array(arena, s.n_chunks, sizeof(uint32_t)),
                            arena_array(arena, s.n_chunks, sizeof(uint32_t))};
    for (uint32_t i = 0; i < ahead + n; i++) {
        if (i < n)
            add_pass(steps, DO_FORWARD, s, rank, i / round % s.n_chunks, next.forward);
        if (i < ahead)
            continue;
        uint32_t chunk = s.n_chunks - 1 - (i - ahead) / round % s.n_chunks;
        add_pass(steps, s.splits ? DO_INPUTS : DO_BACKWARD, s, rank, chunk, next.backward);
        if (s.splits && i - ahead >= rank) {
            chunk = s.n_chunks - 1 - n_weights++ / round % s.n_chunks;
            add_pass(steps, DO_WEIGHTS, s, rank, chunk, next.weights);
        }
    }
    for (; s.splits && n_weights < n; n_weights++)
        add_pass(steps, DO_WEIGHTS, s, rank, s.n_chunks - 1 - n_weights / round % s.n_chunks,
                 next.weights);
}

/* ---- messages ---- */

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
    uint32_t last = l->shape.n_ranks * l->shape.n_chunks - 1;
    if (pass->action == DO_WEIGHTS)
        return true;
    if (pass->action == DO_FORWARD)
        return pass->stage == 0 || *asked_for(l, pass->stage, pass->number, false);
    return pass->stage == last || *asked_for(l, pass->stage, pass->number, true);
}

static void add_step(struct lowering *l, uint32_t rank, const struct pipeline_step *pass)
{
    uint32_t last = l->shape.n_ranks * l->shape.n_chunks - 1;
    bool back = pass->action != DO_FORWARD;
    array_push(&l->steps[rank], *pass);
    if (pass->action == DO_WEIGHTS || pass->stage == (back ? 0 : last))
        return;
    uint32_t to = back ? pass->stage - 1 : pass->stage + 1;
    array_add(&l->steps[rank], .action = DO_SEND, .back = back, .stage = pass->stage,
              .number = pass->number);
    array_add(&l->steps[to % l->shape.n_ranks], .action = DO_RECEIVE, .back = back, .stage = to,
              .number = pass->number);
    *asked_for(l, to, pass->number, back) = true;
}

pipeline_steps *pipeline_order(struct pipeline_shape shape, struct arena *arena)
{
    uint32_t n = shape.n_ranks;
    struct lowering l = {
        .shape = shape,
        .steps = arena_array(arena, n, sizeof *l.steps),
        .asked = arena_array(arena, (size_t)n * shape.n_chunks * shape.n_micro_batches * 2,
                             sizeof *l.asked)};
    pipeline_steps *passes = arena_array(arena, n, sizeof *passes);
    size_t *done = arena_array(arena, n, sizeof *done);
    for (uint32_t r = 0; r < n; r++)
        list_passes(shape, r, arena, &passes[r]);
    for (bool progress = true; progress;) {
        progress = false;
        for (uint32_t r = 0; r < n; r++)
            if (done[r] < passes[r].n && may_be_next(&l, &passes[r].at[done[r]])) {
                add_step(&l, r, &passes[r].at[done[r]++]);
                progress = true;
            }
    }
    for (uint32_t r = 0; r < n; r++)
        array_fini(&passes[r]);
    return l.steps;
}
