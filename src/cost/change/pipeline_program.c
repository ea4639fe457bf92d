/* Writes a pipeline's programs for other micro-batches or another schedule.
 *
 * Each stage's work of a forward and of a backward pass is that of the mean recorded micro-batch.
 * What its ops take grows with the rows of a micro-batch as a batch's does (op_work.h); what a
 * stage does once a step, such as the optimizer's, stays. Passes and messages are then put in the
 * order of pipeline_order.h. What else a stage communicates, such as activations of split tensors,
 * cuts its passes in equal parts and is waited for at once. What it communicates less often than in
 * each pass is at the begin of a step's forward passes; or it is gradients, which are handed over
 * and waited for in the step's last backward pass, where they were recorded in it, or behind it. */
#include "cost/change/pipeline_program.h"

#include "cost/change/op_work.h"
#include "cost/program/cost.h"
#include "cost/program/program_writer.h"

/* ---- work ---- */

/* A gap behind a call is the call's, which may be held up. Before the first pass and behind what a
 * step does once, a gap is of the step. Where nothing marks a rank's chunks, all take as long. */
static void add_ops(struct pipeline_writer *w, const struct op_work *work, uint32_t rank,
                    struct stage *stage)
{
    const struct dpro_graph *g = w->g;
    const struct graph_rank *ops = &g->ranks[rank];
    bool gpu = rank_has_gpu(g, ops), passes = false, called = false;
    uint32_t mark = 0, n_chunks = w->p.n_chunks;
    *stage = (struct stage){.once_ns = 0};
    for (int kind = 0; kind < N_PASS_KINDS; kind++)
        stage->pass_ns[kind] = arena_array(w->arena, n_chunks, sizeof(double));
    for (uint32_t op = ops->first_op; op < ops->first_op + ops->n_ops - ops->n_message_ops; op++) {
        double ns = work ? work->ns[op] : (double)g->dur_ns[op];
        double gap = gpu ? 0 : (double)g->gap_ns[op];
        if (!op_computes(g, op) || (gpu && !(g->flags[op] & GRAPH_OP_GPU)))
            continue;
        mark = w->p.marked && g->pass[op] > 0 ? g->pass[op] : mark;
        bool of_pass = op_is_of_pass(g, op) && (mark > 0 || !w->p.marked);
        uint32_t kind = g->phase[op] == DPRO_OP_BW ? PASS_BACKWARD : PASS_FORWARD;
        uint32_t chunk = mark > 0 ? MARKED_STAGE(mark) / w->p.n_stages : 0;
        if (mark > 0)
            kind = MARKED_KIND(mark);
        double *own_ns = of_pass ? &stage->pass_ns[kind][chunk] : &stage->once_ns;
        *(called ? &stage->call_ns : passes ? own_ns : &stage->once_ns) += gap;
        called = g->kind[op] == DPRO_OP_LAUNCH;
        *(called ? &stage->call_ns : own_ns) += ns;
        passes = of_pass;
    }
    for (int kind = 0; kind < N_PASS_KINDS; kind++)
        for (uint32_t c = n_chunks; c-- > 0;)
            stage->pass_ns[kind][c] = stage->pass_ns[kind][w->p.marked ? c : 0] /
                                      w->p.n_micro_batches / (w->p.marked ? 1 : n_chunks);
}

/* Calls that are held up are so by chance of microseconds: with other micro-batches it may be any
 * share of them from none to all. Where calls take nothing or all the same, that is the sum of
 * squares by the sum. */
static double error_of_calls(const struct dpro_graph *g, uint32_t rank)
{
    const struct graph_rank *ops = &g->ranks[rank];
    double sum = 0, squares = 0;
    if (rank_has_gpu(g, ops))
        return 0;
    for (uint32_t op = ops->first_op; op < ops->first_op + ops->n_ops - ops->n_message_ops; op++)
        for (uint32_t s = 0; s < g->n_samples && g->kind[op] == DPRO_OP_LAUNCH; s++) {
            size_t at = (size_t)s * g->n_ops + op;
            double ns = (double)(g->sample_dur_ns[at] + g->sample_gap_ns[at]);
            sum += ns;
            squares += ns * ns;
        }
    return sum > 0 ? squares / sum / sqrt(12) : 0;
}

/* Of a micro-batch, in one of n_chunks parts of what the rank has. */
static double pass_ns(const struct pipeline_writer *w, const struct stage *stage,
                      enum pass_kind first, enum pass_kind last, uint32_t chunk, uint32_t n_chunks)
{
    double ns = 0;
    for (uint32_t kind = first; kind <= last; kind++)
        for (uint32_t c = chunk; c < w->p.n_chunks; c += n_chunks)
            ns += stage->pass_ns[kind][c];
    return ns;
}

static double program_total(const struct pipeline_writer *w, const struct stage *stage)
{
    return stage->once_ns + stage->call_ns +
           w->p.n_micro_batches * pass_ns(w, stage, PASS_FORWARD, PASS_OF_WEIGHTS, 0, 1);
}

void pipeline_stage_scale(const struct pipeline_writer *w, struct stage *stage, double ratio)
{
    stage->once_ns *= ratio;
    stage->call_ns *= ratio;
    for (int kind = 0; kind < N_PASS_KINDS; kind++)
        for (uint32_t c = 0; c < w->p.n_chunks; c++)
            stage->pass_ns[kind][c] *= ratio;
}

/* ---- what is communicated ---- */

static uint32_t crossing_of(const struct pipeline_writer *w, uint32_t rank, uint32_t before,
                            int way)
{
    return (w->p.group_of[rank] * w->p.n_stages + before) * N_WAYS + (uint32_t)way;
}

static int way_of(const struct pipeline_writer *w, uint32_t communication)
{
    return w->p.backward[w->m->communications[communication].collective] ? BACK : THERE;
}

static bool is_of_pipeline(const struct pipeline_writer *w, uint32_t communication)
{
    return w->p.messages[w->m->communications[communication].collective] != NO_STAGE_MESSAGE;
}

static void add_mean(struct model_communication *mean, const struct model_communication *from,
                     uint32_t n)
{
    struct model_communication sum = *mean;
    *mean = *from;
    mean->size_bytes = sum.size_bytes + from->size_bytes / n;
    mean->link_bytes = sum.link_bytes + from->link_bytes / n;
    mean->sent_bytes = sum.sent_bytes + from->sent_bytes / n;
    mean->took_ns = sum.took_ns + from->took_ns / n;
    mean->waits_ns = sum.waits_ns + from->waits_ns / n;
}

/* Of the work of a rank's backward passes, the passes that are done by a moment of the recorded
 * step. */
static double passes_done(const struct pipeline_writer *w, uint32_t rank, int64_t when_ns)
{
    const struct dpro_graph *g = w->g;
    const struct graph_rank *ops = &g->ranks[rank];
    bool gpu = rank_has_gpu(g, ops);
    double done = 0, all = 0;
    for (uint32_t op = ops->first_op; op < ops->first_op + ops->n_ops; op++) {
        if (g->phase[op] != DPRO_OP_BW || (gpu && !(g->flags[op] & GRAPH_OP_GPU)))
            continue;
        all += (double)g->dur_ns[op];
        done += measured_mean_ns(w->m->recorded, op, false) <= when_ns ? (double)g->dur_ns[op] : 0;
    }
    return (all > 0 ? done / all : 1) * w->p.n_micro_batches * w->p.n_chunks;
}

/* What a group's first rank issues in one direction, in order, and how many messages of the
 * pipeline it has issued before each. */
struct issued {
    uint32_t *communications, *before;
    uint32_t n;
    int64_t when_ns; /* of the first */
};

static struct issued list_issued(const struct pipeline_writer *w, uint32_t group, int way)
{
    const struct dpro_model *m = w->m;
    const struct model_program *p = &m->programs[m->ranks[m->groups[group].ranks[0]].program];
    struct issued all = {arena_array(w->arena, p->n_ops + (size_t)1, sizeof(uint32_t)),
                         arena_array(w->arena, p->n_ops + (size_t)1, sizeof(uint32_t)), 0, 0};
    uint32_t n_messages = 0, k;
    for (uint32_t i = 0; i < p->n_ops; i++) {
        k = communication_of(m, p->ops[i].tensor);
        if (k == MODEL_NONE)
            continue;
        if (is_of_pipeline(w, k)) {
            n_messages++;
        } else if (m->communications[k].group == group && way_of(w, k) == way) {
            all.when_ns = all.n == 0 ? p->ops[i].when_ns : all.when_ns;
            all.communications[all.n] = k;
            all.before[all.n++] = n_messages;
        }
    }
    return all;
}

/* Whether each pass has as many. */
static bool is_in_each_pass(const struct issued *all, uint32_t n_passes)
{
    uint32_t each = all->n / n_passes;
    bool spread = each > 0 && all->n % n_passes == 0;
    for (uint32_t i = 1; i < n_passes && spread; i++)
        spread = all->before[i * each] > all->before[i * each - 1];
    return spread;
}

/* A step of one micro-batch does not show what is in each: what replicas reduce is taken to be once
 * in a step, and so is what comes behind the backward pass in no dimension of the job. */
static bool is_once(const struct pipeline_writer *w, uint32_t group, const struct issued *all)
{
    uint32_t n_passes = w->p.n_micro_batches * w->p.n_chunks;
    uint32_t dimension = w->m->groups[group].dimension;
    bool known = dimension < w->g->n_dimensions;
    if (!is_in_each_pass(all, n_passes))
        return true;
    if (known)
        return n_passes == 1 && w->g->dimensions[dimension].parallelism == DPRO_REPLICATES;
    return passes_done(w, w->m->groups[group].ranks[0], all->when_ns) >= n_passes;
}

static void share_group(struct pipeline_writer *w, uint32_t group, int way)
{
    struct issued all = list_issued(w, group, way);
    bool once = all.n > 0 && is_once(w, group, &all);
    uint32_t each = once ? all.n : all.n / (w->p.n_micro_batches * w->p.n_chunks);
    for (uint32_t i = 0; i < all.n; i++) {
        w->shares[w->n_shares + i % each].once = once;
        w->share_of[all.communications[i]] = w->n_shares + i % each;
        w->is_first[all.communications[i]] = i < each;
    }
    w->n_shares += each;
}

static void measure_shares(struct pipeline_writer *w)
{
    const struct dpro_model *m = w->m;
    uint32_t n = m->n_communications;
    w->n_shares = w->n_crossings =
        w->g->dimensions[w->p.dimension].n_groups * w->p.n_stages * N_WAYS;
    w->shares = arena_array(w->arena, w->n_crossings + n + (size_t)1, sizeof *w->shares);
    w->share_of = arena_array(w->arena, n + (size_t)1, sizeof *w->share_of);
    w->is_first = arena_array(w->arena, n + (size_t)1, sizeof *w->is_first);
    for (uint32_t k = 0; k < n; k++) {
        int way = way_of(w, k);
        uint32_t before = m->groups[m->communications[k].group].ranks[way == BACK];
        w->share_of[k] =
            is_of_pipeline(w, k) ? crossing_of(w, before, w->p.stage_of[before], way) : MODEL_NONE;
    }
    for (uint32_t group = 0; group < m->n_groups; group++)
        for (int way = 0; way < N_WAYS && m->groups[group].n_ranks > 0; way++)
            share_group(w, group, way);
    for (uint32_t k = 0; k < n; k++)
        if (w->share_of[k] != MODEL_NONE)
            w->shares[w->share_of[k]].n++;
    for (uint32_t k = 0; k < n; k++)
        if (w->share_of[k] != MODEL_NONE)
            add_mean(&w->shares[w->share_of[k]].mean, &m->communications[k],
                     w->shares[w->share_of[k]].n);
}

/* ---- what a rank communicates ---- */

ORDER(by_moment, struct gradient_moment, ASCENDING(at) ?: ASCENDING(waits) ?: ASCENDING(number));

/* The number of what an op hands over or waits for, if it is of gradients once a step. */
static uint32_t gradients_of(const struct pipeline_writer *w, uint32_t tensor)
{
    uint32_t k = communication_of(w->m, tensor), share = k != MODEL_NONE ? w->share_of[k] : k;
    if (tensor < w->m->n_tensors || tensor == MODEL_ALL)
        return tensor < w->m->n_tensors ? w->n_shares + tensor : MODEL_ALL;
    return share != MODEL_NONE && w->shares[share].once && way_of(w, k) == BACK ? share
                                                                                : MODEL_NONE;
}

/* When the rank has begun to send its last message, or to wait for it. */
static int64_t last_message_ns(const struct pipeline_writer *w, const struct model_program *p)
{
    int64_t last_ns = INT64_MIN;
    EACH_OF (const struct model_op, op, p->ops, p->n_ops) {
        uint32_t k = communication_of(w->m, op->needs != MODEL_NONE ? op->needs : op->tensor);
        if (k != MODEL_NONE && is_of_pipeline(w, k))
            last_ns = MAX(last_ns, op->when_ns);
    }
    return last_ns;
}

/* Where nothing waits for them, they are waited for at once. */
static void add_moment(const struct pipeline_writer *w, uint32_t rank, const struct model_op *op)
{
    struct stage *stage = &w->stages[rank];
    const struct model_program *p = &w->m->programs[w->m->ranks[rank].program];
    bool waits = op->needs != MODEL_NONE, waited = waits;
    uint32_t number = gradients_of(w, waits ? op->needs : op->tensor);
    uint32_t n_before = w->p.n_micro_batches * w->p.n_chunks - 1;
    if (number == MODEL_NONE)
        return;
    double at = fmin(fmax(passes_done(w, rank, op->when_ns) - n_before, 0), 1);
    if (op->needs_before || number == MODEL_ALL || (at == 1 && op->when_ns > last_message_ns(w, p)))
        at = BEHIND;
    array_add(&stage->moments, .at = at, .number = number, .waits = waits);
    for (uint32_t i = 0; i < p->n_ops && !waited; i++)
        waited = number >= w->n_shares || gradients_of(w, p->ops[i].needs) == number;
    if (!waited)
        array_add(&stage->moments, .at = at, .number = number, .waits = true);
}

static void list_shares(struct pipeline_writer *w, uint32_t rank)
{
    const struct dpro_model *m = w->m;
    const struct model_program *p = &m->programs[m->ranks[rank].program];
    struct stage *stage = &w->stages[rank];
    EACH_OF (const struct model_op, op, p->ops, p->n_ops) {
        uint32_t k = communication_of(m, op->tensor);
        add_moment(w, rank, op);
        if (k == MODEL_NONE || is_of_pipeline(w, k) || !w->is_first[k])
            continue;
        if (!w->shares[w->share_of[k]].once)
            array_push(&stage->in_passes[way_of(w, k)], w->share_of[k]);
        else if (way_of(w, k) == THERE)
            array_push(&stage->first, w->share_of[k]);
    }
    array_sort(&stage->moments, by_moment);
}

static void measure_lags(struct pipeline_writer *w, uint32_t rank)
{
    const struct dpro_model *m = w->m;
    const struct model_program *p = &m->programs[m->ranks[rank].program];
    double *lag_ns = w->stages[rank].lag_ns;
    uint32_t n[N_WAYS] = {0, 0};
    EACH_OF (const struct model_op, op, p->ops, p->n_ops) {
        uint32_t k = communication_of(m, op->needs);
        if (k == MODEL_NONE || !is_of_pipeline(w, k) ||
            m->groups[m->communications[k].group].ranks[1] != rank)
            continue;
        lag_ns[way_of(w, k)] += op->lag_ns;
        n[way_of(w, k)]++;
    }
    for (int way = 0; way < N_WAYS; way++)
        lag_ns[way] /= MAX(n[way], 1);
}

void pipeline_measure(struct pipeline_writer *w, double ratio, const struct dpro_model *modules)
{
    struct dpro_model *m = w->m;
    const struct op_work *work = NULL;
    if (modules)
        work = op_work_of(w->g, modules, false, w->share, w->arena);
    pipeline_writer_fini(w);
    w->stages = arena_array(w->arena, m->n_ranks + (size_t)1, sizeof *w->stages);
    measure_shares(w);
    for (uint32_t r = 0; r < m->n_ranks; r++) {
        struct stage was, *stage = &w->stages[r];
        const struct model_program *p = &m->programs[m->ranks[r].program];
        uint32_t n_calls = 0;
        add_ops(w, NULL, r, &was);
        add_ops(w, work, r, stage);
        for (uint32_t i = 0; i < p->n_ops; i++)
            n_calls += communication_of(m, p->ops[i].tensor) != MODEL_NONE;
        double all = program_total(w, &was), pace = program_work_ns(p);
        stage->call_ns /= MAX(n_calls, 1);
        stage->call_error_ns = error_of_calls(w->g, r);
        pipeline_stage_scale(w, stage, all > 0 ? pace / all : 1);
        measure_lags(w, r);
        list_shares(w, r);
    }
    EACH_OF (struct stage_share, share, w->shares, w->n_shares)
        if (share->n > 0 && !share->once && carries_activations(w->g, &share->mean))
            model_resize(m, &share->mean, ratio);
}

void pipeline_writer_fini(struct pipeline_writer *w)
{
    for (uint32_t r = 0; w->stages && r < w->m->n_ranks; r++)
        FREE_ALL(&w->stages[r].in_passes[THERE], &w->stages[r].in_passes[BACK], &w->stages[r].first,
                 &w->stages[r].moments);
    w->stages = NULL;
}

/* ---- what is to be done ---- */

struct rank_writer {
    const struct pipeline_writer *w;
    uint32_t rank;
    uint32_t n;  /* micro-batches */
    size_t next; /* of its moments */
    struct program_writer program;
};

static void pipeline_issue(struct rank_writer *to, uint32_t tensor)
{
    program_issue(&to->program,
                  (struct model_op){.name = "message", .phase = DPRO_OP_BW, .tensor = tensor});
}

static void wait_for(struct rank_writer *to, uint32_t needs, double lag_ns)
{
    program_wait(&to->program, (struct model_op){.name = "up to a wait",
                                                 .phase = DPRO_OP_BW,
                                                 .needs = needs,
                                                 .lag_ns = lag_ns});
}

/* What it hands over and waits for at once. */
static void pipeline_communicate(struct rank_writer *to, uint32_t share, uint32_t number)
{
    uint32_t tensor = to->w->m->n_tensors + to->w->shares[share].first + number;
    program_work(&to->program, NULL, to->w->stages[to->rank].call_ns);
    program_communicate(&to->program, "message", tensor);
}

static void program_reduce(struct rank_writer *to, const struct gradient_moment *moment)
{
    const struct pipeline_writer *w = to->w;
    uint32_t number = moment->number, tensor = number;
    if (number < w->n_shares)
        tensor = w->m->n_tensors + w->shares[number].first;
    else if (number != MODEL_ALL)
        tensor = number - w->n_shares;
    if (moment->waits) {
        wait_for(to, tensor, 0);
        return;
    }
    program_work(&to->program, NULL, number < w->n_shares ? w->stages[to->rank].call_ns : 0);
    pipeline_issue(to, tensor);
}

/* Up to that part of a pass that takes so long. Returns what is done of it. */
static double reduce_until(struct rank_writer *to, double done, double until, double pass_ns)
{
    const struct stage *stage = &to->w->stages[to->rank];
    for (; to->next < stage->moments.n && stage->moments.at[to->next].at <= until; to->next++) {
        double at = fmin(stage->moments.at[to->next].at, 1);
        program_work(&to->program, NULL, (at - done) * pass_ns);
        done = at;
        program_reduce(to, &stage->moments.at[to->next]);
    }
    return done;
}

/* The pass number `number` of all in one way. What communicates in it cuts it in equal parts; in
 * the last one that makes gradients these are reduced, too. */
static void program_pass(struct rank_writer *to, int way, uint32_t number, double work_ns,
                         bool of_weights)
{
    const struct stage *stage = &to->w->stages[to->rank];
    size_t n = of_weights ? 0 : stage->in_passes[way].n;
    bool reduces =
        to->w->splits == of_weights && way == BACK && number + 1 == to->n * to->w->n_chunks;
    double done = 0;
    for (size_t i = 0; i < stage->first.n && way == THERE && number == 0; i++)
        pipeline_communicate(to, stage->first.at[i], 0);
    for (size_t i = 0; i <= n; i++) {
        double until = (double)(i + 1) / (double)(n + 1);
        done = reduces ? reduce_until(to, done, until, work_ns) : done;
        program_work(&to->program, NULL, (until - done) * work_ns);
        done = until;
        if (i < n)
            pipeline_communicate(to, stage->in_passes[way].at[i], number);
    }
}

/* A message over a border, between whichever chunks. */
static uint32_t message_of(const struct rank_writer *to, const struct pipeline_step *step,
                           bool sends)
{
    uint32_t before = step->stage - (step->back == sends), n_stages = to->w->p.n_stages;
    return to->w->m->n_tensors +
           to->w->shares[crossing_of(to->w, to->rank, before % n_stages, step->back)].first +
           before / n_stages * to->n + step->number;
}

/* A backward pass at once has all that passes in parts do. */
static double step_ns(const struct rank_writer *to, const struct pipeline_step *step)
{
    const struct pipeline_writer *w = to->w;
    enum pass_kind kind = (enum pass_kind)step->action;
    return pass_ns(w, &w->stages[to->rank], kind, kind == PASS_BACKWARD ? PASS_OF_WEIGHTS : kind,
                   step->stage / w->p.n_stages, w->n_chunks);
}

static void write_step(struct rank_writer *to, const struct pipeline_step *step)
{
    const struct stage *stage = &to->w->stages[to->rank];
    uint32_t n_stages = to->w->p.n_stages, n_chunks = to->w->n_chunks;
    uint32_t first = step->back ? n_stages * n_chunks - 1 : 0, chunk = step->stage / n_stages;
    bool of_weights = step->action == DO_WEIGHTS;
    switch (step->action) {
    case DO_SEND:
    case DO_RECEIVE:
        program_work(&to->program, NULL, stage->call_ns);
        pipeline_issue(to, message_of(to, step, step->action == DO_SEND));
        break;
    case WAIT:
        wait_for(to, message_of(to, step, true), 0);
        break;
    default:
        if (step->stage != first && !of_weights)
            wait_for(to, message_of(to, step, false), stage->lag_ns[step->back]);
        program_pass(to, step->back,
                     (step->back ? n_chunks - 1 - chunk : chunk) * to->n + step->number,
                     step_ns(to, step), of_weights);
    }
}

static void write_communications(struct pipeline_writer *w, uint32_t n_micro_batches,
                                 struct dpro_model *m)
{
    uint32_t n_passes = n_micro_batches * w->n_chunks;
    m->communications =
        arena_array(w->arena, (size_t)w->n_shares * n_passes + 1, sizeof *m->communications);
    m->n_communications = 0;
    for (uint32_t i = 0; i < w->n_shares; i++) {
        struct stage_share *share = &w->shares[i];
        bool around = i < w->n_crossings && i / N_WAYS % w->p.n_stages == w->p.n_stages - 1;
        uint32_t n = share->n == 0 || (around && w->n_chunks == 1) ? 0 : share->once ? 1 : n_passes;
        share->first = m->n_communications;
        for (uint32_t k = 0; k < n; k++)
            m->communications[m->n_communications++] = share->mean;
    }
}

struct dpro_model pipeline_write(struct pipeline_writer *w, struct dpro_pipeline_run run)
{
    struct dpro_model to = *w->m;
    struct pipeline_shape shape = pipeline_shape_of(w, run);
    pipeline_steps *steps = pipeline_order(shape, w->arena);
    w->n_chunks = shape.n_chunks;
    w->splits = pipeline_splits(shape);
    write_communications(w, run.n_micro_batches, &to);
    to.n_programs = to.n_ranks;
    to.programs = arena_array(w->arena, to.n_ranks, sizeof *to.programs);
    to.ranks = arena_copy(w->arena, to.ranks, to.n_ranks, sizeof *to.ranks);
    for (uint32_t r = 0; r < to.n_ranks; r++) {
        struct rank_writer rank = {.w = w, .rank = r, .n = run.n_micro_batches};
        program_work(&rank.program, NULL, w->stages[r].once_ns);
        EACH (const struct pipeline_step, step, steps[w->p.stage_of[r]])
            write_step(&rank, step);
        reduce_until(&rank, 1, BEHIND, 0);
        program_end(&rank.program, w->arena, &to.programs[r]);
        to.ranks[r].program = r;
    }
    for (uint32_t s = 0; s < shape.n_ranks; s++)
        array_fini(&steps[s]);
    return to;
}
