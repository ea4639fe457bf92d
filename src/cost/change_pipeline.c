/* Each stage's work of a forward and of a backward pass is that of the mean recorded micro-batch.
 * What its ops take grows with the rows of a micro-batch as a batch's does (op_work.h); what a
 * stage does once a step, such as the optimizer's, stays. Passes and messages are then put in the
 * order of pipeline_order.h. What else a stage communicates, such as activations of split tensors,
 * cuts its passes in equal parts and is waited for at once; what it communicates less often than in
 * each pass, such as gradients, is at the begin of a step's forward passes or at the end of its
 * backward ones. */
#include "cost/change_pipeline.h"
#include "cost/model_memory.h"

#include "cost/cost.h"
#include "cost/evaluate.h"
#include "cost/op_work.h"
#include "cost/pipeline_order.h"
#include "cost/strategy_memory.h"
#include "cost/strategy_work.h"
#include "graph/dimensions/pipeline.h"

enum { MOST_MICRO_BATCHES = 4096 };
enum { THERE, BACK, N_WAYS };

/* Messages of a pipeline over one border between stages, in one direction. */
struct crossing {
    struct model_communication mean;
    uint32_t n;     /* recorded */
    uint32_t first; /* number of the first of the new ones */
};

/* What a group communicates beside that: one in each pass, or one in a step. */
struct share {
    struct model_communication mean;
    uint32_t n; /* recorded */
    bool once;
    uint32_t first; /* number of the first of the new ones */
};

/* Of a rank. */
struct stage {
    double *pass_ns[N_PASS_KINDS];                        /* by chunk: of one micro-batch */
    double once_ns, call_ns;                              /* of a step; of a communication's call */
    double call_error_ns;                                 /* of that, with what follows it */
    double lag_ns[N_WAYS];                                /* of messages that it receives */
    const uint32_t *in_passes[N_WAYS], *in_steps[N_WAYS]; /* shares, in order */
    uint32_t n_in_passes[N_WAYS], n_in_steps[N_WAYS];
};

struct rewriter {
    const struct dpro_graph *g;
    struct dpro_model *m;
    struct arena *arena;
    struct pipeline p;
    uint32_t n_chunks;          /* of a rank, in the run that is written */
    struct crossing *crossings; /* [(group * n_stages + stage before the border) * N_WAYS + way] */
    struct stage *stages;       /* [n_ranks] */
    struct share *shares;
    uint32_t n_shares;
    uint32_t *share_of; /* [n_communications] MODEL_NONE: a message of the pipeline */
    bool *is_first;     /* [n_communications] in the first pass, or once a step */
};

bool asks_for_pipeline(const struct dpro_changes *changes)
{
    return changes->pipeline_micro_batches > 0 || changes->schedule != DPRO_SCHEDULE_UNKNOWN;
}

static struct pipeline_shape shape_of(const struct rewriter *w, struct dpro_pipeline_run run)
{
    bool several =
        run.schedule == DPRO_SCHEDULE_ZERO_BUBBLE || run.schedule == DPRO_SCHEDULE_INTERLEAVED;
    return (struct pipeline_shape){w->p.n_stages, several ? MAX(w->p.n_chunks, 2) : 1,
                                   run.n_micro_batches, run.schedule};
}

/* ---- what can be asked for ---- */

static int check_rest(const struct rewriter *w, struct dpro_error *err)
{
    const struct dpro_model *m = w->m;
    for (uint32_t r = 0; r < m->n_ranks; r++)
        if (w->p.stage_of[r] == UINT32_MAX)
            return refuse(
                err,
                "rank %d is in none of the pipeline's groups that are known: --dims says how "
                "the job is parallel",
                m->ranks[r].rank);
    for (uint32_t k = 0; k < m->n_communications; k++)
        if (w->g->collectives[m->communications[k].collective].dimension >= w->g->n_dimensions)
            return refuse(err,
                          "ranks communicate in no dimension that is known (%s): whether that is "
                          "for each micro-batch can't be told",
                          dpro_collective_kind_name(m->communications[k].kind));
    if (m->n_tensors > 0)
        return refuse(err, "the pipeline's stages are replicated, and reduce gradients: how that "
                           "meets other micro-batches and schedules can't be told yet");
    return 0;
}

static int check(const struct rewriter *w, const struct dpro_changes *c, struct dpro_error *err)
{
    const struct pipeline *p = &w->p;
    if (p->dimension == DPRO_NO_DIMENSION)
        return refuse(err, "the job has no pipeline (pp): --microbatches and --schedule are for "
                           "ranks that each have other layers; --accumulate cuts the batch of "
                           "others");
    if (p->unknown)
        return refuse(err, "the pipeline's micro-batches are not known: %s", p->unknown);
    if (c->pipeline_micro_batches > MOST_MICRO_BATCHES)
        return refuse(err, "%u micro-batches make no sense; up to %d can be predicted",
                      c->pipeline_micro_batches, MOST_MICRO_BATCHES);
    if (c->schedule == DPRO_SCHEDULE_ZERO_BUBBLE && p->schedule != DPRO_SCHEDULE_ZERO_BUBBLE)
        return refuse(err, "a zero-bubble schedule moves the gradients of weights: the trace does "
                           "not tell their time from that of the gradients of inputs; record some "
                           "steps with such a schedule (PyTorch's ScheduleInterleavedZeroBubble), "
                           "or ask for --schedule interleaved");
    if (p->schedule == DPRO_SCHEDULE_UNKNOWN && c->schedule == DPRO_SCHEDULE_UNKNOWN)
        return refuse(err, "the order in which the recorded stages computed is none that is known: "
                           "name one with --schedule");
    return check_rest(w, err);
}

/* ---- what was recorded ---- */

/* A gap behind a call is the call's, which may be held up. Before the first pass and behind what a
 * step does once, a gap is of the step. Where nothing marks a rank's chunks, all take as long. */
static void add_ops(struct rewriter *w, const struct op_work *work, uint32_t rank,
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
        double ns = work ? op_work_ns(work, op) : (double)g->dur_ns[op];
        double gap = gpu || !g->gap_ns ? 0 : (double)g->gap_ns[op];
        if (!op_computes(g, op) || (gpu && !(g->flags[op] & GRAPH_OP_GPU)))
            continue;
        mark = w->p.marked && g->pass[op] > 0 ? g->pass[op] : mark;
        bool of_pass = g->phase[op] == DPRO_OP_FW || g->phase[op] == DPRO_OP_BW;
        of_pass &= mark > 0 || !w->p.marked;
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
static double pass_ns(const struct rewriter *w, const struct stage *stage, enum pass_kind first,
                      enum pass_kind last, uint32_t chunk, uint32_t n_chunks)
{
    double ns = 0;
    for (uint32_t kind = first; kind <= last; kind++)
        for (uint32_t c = chunk; c < w->p.n_chunks; c += n_chunks)
            ns += stage->pass_ns[kind][c];
    return ns;
}

static double total(const struct rewriter *w, const struct stage *stage)
{
    return stage->once_ns + stage->call_ns +
           w->p.n_micro_batches * pass_ns(w, stage, PASS_FORWARD, PASS_OF_WEIGHTS, 0, 1);
}

static void scale_stage(const struct rewriter *w, struct stage *stage, double ratio)
{
    stage->once_ns *= ratio;
    stage->call_ns *= ratio;
    for (int kind = 0; kind < N_PASS_KINDS; kind++)
        for (uint32_t c = 0; c < w->p.n_chunks; c++)
            stage->pass_ns[kind][c] *= ratio;
}

static double work_of(const struct model_program *p)
{
    double ns = 0;
    for (uint32_t i = 0; i < p->n_ops; i++)
        ns += (double)p->ops[i].work_ns;
    return ns;
}

static struct crossing *crossing_of(const struct rewriter *w, uint32_t rank, uint32_t before,
                                    int way)
{
    return &w->crossings[(w->p.group_of[rank] * w->p.n_stages + before) * N_WAYS + way];
}

static int way_of(const struct rewriter *w, uint32_t communication)
{
    return w->p.backward[w->m->communications[communication].collective] ? BACK : THERE;
}

static bool is_of_pipeline(const struct rewriter *w, uint32_t communication)
{
    return w->p.messages[w->m->communications[communication].collective] != NO_STAGE_MESSAGE;
}

static uint32_t count_crossings(const struct rewriter *w)
{
    return w->g->dimensions[w->p.dimension].n_groups * w->p.n_stages * N_WAYS;
}

static void add_mean(struct model_communication *mean, const struct model_communication *from,
                     uint32_t n)
{
    struct model_communication sum = *mean;
    *mean = *from;
    mean->size_bytes = sum.size_bytes + from->size_bytes / n;
    mean->link_bytes = sum.link_bytes + from->link_bytes / n;
    mean->took_ns = sum.took_ns + from->took_ns / n;
    mean->waits_ns = sum.waits_ns + from->waits_ns / n;
}

static void measure_crossings(struct rewriter *w)
{
    struct dpro_model *m = w->m;
    w->crossings = arena_array(w->arena, count_crossings(w) + (size_t)1, sizeof *w->crossings);
    for (int pass = 0; pass < 2; pass++)
        for (uint32_t k = 0; k < m->n_communications; k++) {
            if (!is_of_pipeline(w, k))
                continue;
            const struct model_communication *from = &m->communications[k];
            int way = way_of(w, k);
            uint32_t before = m->groups[from->group].ranks[way == BACK];
            struct crossing *c = crossing_of(w, before, w->p.stage_of[before], way);
            if (pass == 0)
                c->n++;
            else
                add_mean(&c->mean, from, c->n);
        }
}

/* ---- what else is communicated ---- */

static bool issues(const struct rewriter *w, const struct model_op *op, uint32_t *communication)
{
    *communication = op->tensor - w->m->n_tensors;
    return op->tensor != MODEL_NONE && *communication < w->m->n_communications;
}

/* What a group's first rank issues in one direction, in order, and how many messages of the
 * pipeline it has issued before each. */
struct issued {
    uint32_t *communications, *before;
    uint32_t n;
};

static struct issued list_issued(const struct rewriter *w, uint32_t group, int way)
{
    const struct dpro_model *m = w->m;
    const struct model_program *p = &m->programs[m->ranks[m->groups[group].ranks[0]].program];
    struct issued all = {arena_array(w->arena, p->n_ops + (size_t)1, sizeof(uint32_t)),
                         arena_array(w->arena, p->n_ops + (size_t)1, sizeof(uint32_t)), 0};
    uint32_t n_messages = 0, k;
    for (uint32_t i = 0; i < p->n_ops; i++) {
        if (!issues(w, &p->ops[i], &k))
            continue;
        if (is_of_pipeline(w, k)) {
            n_messages++;
        } else if (m->communications[k].group == group && way_of(w, k) == way) {
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

static void share_group(struct rewriter *w, uint32_t group, int way)
{
    struct issued all = list_issued(w, group, way);
    uint32_t n_passes = w->p.n_micro_batches * w->p.n_chunks;
    bool once = !is_in_each_pass(&all, n_passes);
    uint32_t each = once ? all.n : all.n / n_passes;
    for (uint32_t i = 0; i < all.n; i++) {
        struct share *share = &w->shares[w->n_shares + i % each];
        *share = (struct share){.mean = share->mean, .n = all.n / each, .once = once};
        add_mean(&share->mean, &w->m->communications[all.communications[i]], share->n);
        w->share_of[all.communications[i]] = w->n_shares + i % each;
        w->is_first[all.communications[i]] = i < each;
    }
    w->n_shares += each;
}

/* Which a rank issues, in order. */
static void list_shares(struct rewriter *w, uint32_t rank)
{
    const struct dpro_model *m = w->m;
    const struct model_program *p = &m->programs[m->ranks[rank].program];
    struct stage *stage = &w->stages[rank];
    for (int way = 0; way < N_WAYS; way++) {
        uint32_t *in_passes = arena_array(w->arena, p->n_ops + (size_t)1, sizeof *in_passes);
        uint32_t *in_steps = arena_array(w->arena, p->n_ops + (size_t)1, sizeof *in_steps), k;
        for (uint32_t i = 0; i < p->n_ops; i++) {
            if (!issues(w, &p->ops[i], &k) || is_of_pipeline(w, k) || way_of(w, k) != way ||
                !w->is_first[k] || w->share_of[k] == MODEL_NONE)
                continue;
            if (w->shares[w->share_of[k]].once)
                in_steps[stage->n_in_steps[way]++] = w->share_of[k];
            else
                in_passes[stage->n_in_passes[way]++] = w->share_of[k];
        }
        stage->in_passes[way] = in_passes;
        stage->in_steps[way] = in_steps;
    }
}

static void measure_shares(struct rewriter *w)
{
    const struct dpro_model *m = w->m;
    w->shares = arena_array(w->arena, m->n_communications + (size_t)1, sizeof *w->shares);
    w->share_of = arena_array(w->arena, m->n_communications + (size_t)1, sizeof *w->share_of);
    w->is_first = arena_array(w->arena, m->n_communications + (size_t)1, sizeof *w->is_first);
    w->n_shares = 0;
    for (uint32_t k = 0; k < m->n_communications; k++)
        w->share_of[k] = MODEL_NONE;
    for (uint32_t group = 0; group < m->n_groups; group++)
        for (int way = 0; way < N_WAYS && m->groups[group].n_ranks > 0; way++)
            share_group(w, group, way);
    for (uint32_t r = 0; r < m->n_ranks; r++)
        list_shares(w, r);
}

static void measure_lags(struct rewriter *w, uint32_t rank)
{
    const struct dpro_model *m = w->m;
    const struct model_program *p = &m->programs[m->ranks[rank].program];
    double *lag_ns = w->stages[rank].lag_ns;
    uint32_t n[N_WAYS] = {0, 0};
    EACH_OF (const struct model_op, op, p->ops, p->n_ops) {
        if (op->needs == MODEL_NONE || op->needs - m->n_tensors >= m->n_communications)
            continue;
        uint32_t k = op->needs - m->n_tensors;
        if (!is_of_pipeline(w, k) || m->groups[m->communications[k].group].ranks[1] != rank)
            continue;
        lag_ns[way_of(w, k)] += op->lag_ns;
        n[way_of(w, k)]++;
    }
    for (int way = 0; way < N_WAYS; way++)
        lag_ns[way] /= MAX(n[way], 1);
}

/* ---- what is to be done ---- */

typedef ARRAY(struct model_op) op_array;

struct program_writer {
    const struct rewriter *w;
    uint32_t rank;
    uint32_t n; /* micro-batches */
    op_array ops;
    double work_ns; /* up to what comes next */
};

static void add_op(struct program_writer *to, uint32_t needs, double lag_ns, uint32_t issues)
{
    array_add(&to->ops, .name = issues == MODEL_NONE ? "up to a wait" : "message",
              .phase = DPRO_OP_BW, .needs = needs, .lag_ns = lag_ns, .tensor = issues,
              .work_ns = llround(to->work_ns));
    to->work_ns = 0;
}

static void communicate(struct program_writer *to, uint32_t share, uint32_t number)
{
    uint32_t tensor = to->w->m->n_tensors + to->w->shares[share].first + number;
    to->work_ns += to->w->stages[to->rank].call_ns;
    add_op(to, MODEL_NONE, 0, tensor);
    add_op(to, tensor, 0, MODEL_NONE);
}

/* A pass of a chunk of micro-batches: number of all. */
static void pass(struct program_writer *to, int way, uint32_t number, double work_ns)
{
    const struct stage *stage = &to->w->stages[to->rank];
    uint32_t n = stage->n_in_passes[way], last = to->n * to->w->n_chunks - 1;
    for (uint32_t i = 0; i < stage->n_in_steps[THERE] && way == THERE && number == 0; i++)
        communicate(to, stage->in_steps[THERE][i], 0);
    for (uint32_t i = 0; i <= n; i++) {
        to->work_ns += work_ns / (n + 1);
        if (i < n)
            communicate(to, stage->in_passes[way][i], number);
    }
    for (uint32_t i = 0; i < stage->n_in_steps[BACK] && way == BACK && number == last; i++)
        communicate(to, stage->in_steps[BACK][i], 0);
}

/* A message over a border, between whichever chunks. */
static uint32_t message_of(const struct program_writer *to, const struct pipeline_step *step,
                           bool sends)
{
    uint32_t before = step->stage - (step->back == sends), n_stages = to->w->p.n_stages;
    return to->w->m->n_tensors +
           crossing_of(to->w, to->rank, before % n_stages, step->back)->first +
           before / n_stages * to->n + step->number;
}

static void wait_for(struct program_writer *to, uint32_t message, double lag_ns)
{
    add_op(to, MODEL_NONE, 0, MODEL_NONE);
    add_op(to, message, lag_ns, MODEL_NONE);
}

/* A backward pass at once has all that passes in parts do. */
static double step_ns(const struct program_writer *to, const struct pipeline_step *step)
{
    const struct rewriter *w = to->w;
    enum pass_kind kind = (enum pass_kind)step->action;
    return pass_ns(w, &w->stages[to->rank], kind, kind == PASS_BACKWARD ? PASS_OF_WEIGHTS : kind,
                   step->stage / w->p.n_stages, w->n_chunks);
}

static void write_step(struct program_writer *to, const struct pipeline_step *step)
{
    const struct stage *stage = &to->w->stages[to->rank];
    uint32_t n_stages = to->w->p.n_stages, n_chunks = to->w->n_chunks;
    uint32_t first = step->back ? n_stages * n_chunks - 1 : 0, chunk = step->stage / n_stages;
    switch (step->action) {
    case DO_SEND:
    case DO_RECEIVE:
        to->work_ns += stage->call_ns;
        add_op(to, MODEL_NONE, 0, message_of(to, step, step->action == DO_SEND));
        break;
    case WAIT:
        wait_for(to, message_of(to, step, true), 0);
        break;
    case DO_WEIGHTS:
        to->work_ns += step_ns(to, step);
        break;
    default:
        if (step->stage != first)
            wait_for(to, message_of(to, step, false), stage->lag_ns[step->back]);
        pass(to, step->back, (step->back ? n_chunks - 1 - chunk : chunk) * to->n + step->number,
             step_ns(to, step));
    }
}

static struct model_program write_program(const struct rewriter *w, uint32_t n_micro_batches,
                                          const pipeline_steps *steps, uint32_t rank)
{
    struct program_writer to = {
        .w = w, .rank = rank, .n = n_micro_batches, .work_ns = w->stages[rank].once_ns};
    EACH (const struct pipeline_step, step, *steps)
        write_step(&to, step);
    if (to.work_ns > 0)
        add_op(&to, MODEL_NONE, 0, MODEL_NONE);
    struct model_program program = {
        .ops = arena_copy(w->arena, to.ops.at, to.ops.n, sizeof *to.ops.at),
        .n_ops = (uint32_t)to.ops.n};
    array_fini(&to.ops);
    return program;
}

static void write_communications(struct rewriter *w, uint32_t n_micro_batches, struct dpro_model *m)
{
    uint32_t n = 0, n_crossings = count_crossings(w), n_passes = n_micro_batches * w->n_chunks;
    struct model_communication *all =
        arena_array(w->arena, ((size_t)n_crossings + w->n_shares) * n_passes + 1, sizeof *all);
    for (uint32_t i = 0; i < n_crossings; i++) {
        struct crossing *c = &w->crossings[i];
        bool around = i / N_WAYS % w->p.n_stages == w->p.n_stages - 1;
        c->first = n;
        for (uint32_t k = 0; k < n_passes && c->n > 0 && (!around || w->n_chunks > 1); k++)
            all[n++] = c->mean;
    }
    EACH_OF (struct share, share, w->shares, w->n_shares) {
        share->first = n;
        for (uint32_t k = 0; k < (share->once ? 1 : n_passes); k++)
            all[n++] = share->mean;
    }
    m->communications = all;
    m->n_communications = n;
}

/* Of a rank's program. */
static uint32_t count_calls(const struct rewriter *w, uint32_t rank)
{
    const struct model_program *p = &w->m->programs[w->m->ranks[rank].program];
    uint32_t n = 0, k;
    for (uint32_t i = 0; i < p->n_ops; i++)
        n += issues(w, &p->ops[i], &k);
    return n;
}

/* With micro-batches that are `ratio` times as large; `modules`: what ranks compute, NULL: what
 * they did. */
static void measure(struct rewriter *w, double ratio, const struct dpro_model *modules)
{
    struct dpro_model *m = w->m;
    uint32_t n_crossings = count_crossings(w);
    const struct op_work *work = NULL;
    if (modules)
        work = op_work_of(w->g, modules, false, (struct rank_share){1, 1, false}, w->arena);
    w->stages = arena_array(w->arena, m->n_ranks + (size_t)1, sizeof *w->stages);
    for (uint32_t r = 0; r < m->n_ranks; r++) {
        struct stage was, *stage = &w->stages[r];
        add_ops(w, NULL, r, &was);
        add_ops(w, work, r, stage);
        double all = total(w, &was), pace = work_of(&m->programs[m->ranks[r].program]);
        stage->call_ns /= MAX(count_calls(w, r), 1);
        stage->call_error_ns = error_of_calls(w->g, r);
        scale_stage(w, stage, all > 0 ? pace / all : 1);
        measure_lags(w, r);
    }
    measure_crossings(w);
    measure_shares(w);
    for (uint32_t i = 0; i < n_crossings; i++)
        if (w->crossings[i].n > 0)
            model_resize(w->m, &w->crossings[i].mean, ratio);
    for (uint32_t i = 0; i < w->n_shares; i++)
        if (!w->shares[i].once && carries_activations(w->g, &w->shares[i].mean))
            model_resize(w->m, &w->shares[i].mean, ratio);
}

/* Programs and communications of a run; the model's own stay as they are. */
static struct dpro_model write_run(struct rewriter *w, struct dpro_pipeline_run run)
{
    struct dpro_model to = *w->m;
    struct pipeline_shape shape = shape_of(w, run);
    pipeline_steps *steps = pipeline_order(shape, w->arena);
    w->n_chunks = shape.n_chunks;
    write_communications(w, run.n_micro_batches, &to);
    to.n_programs = to.n_ranks;
    to.programs = arena_array(w->arena, to.n_ranks, sizeof *to.programs);
    to.ranks = arena_copy(w->arena, to.ranks, to.n_ranks, sizeof *to.ranks);
    for (uint32_t r = 0; r < to.n_ranks; r++) {
        to.programs[r] = write_program(w, run.n_micro_batches, &steps[w->p.stage_of[r]], r);
        to.ranks[r].program = r;
    }
    for (uint32_t s = 0; s < shape.n_ranks; s++)
        array_fini(&steps[s]);
    return to;
}

/* As if the recorded run took as long with micro-batches that are all alike as it does. */
static double even_out(struct rewriter *w, struct dpro_pipeline_run recorded)
{
    if (recorded.schedule == DPRO_SCHEDULE_UNKNOWN)
        return 0;
    struct dpro_model even = write_run(w, recorded);
    double ns = (double)evaluate_once(w->m), even_ns = (double)evaluate_once(&even);
    return ns / even_ns - 1;
}

/* Of a run: how much longer it is where calls are. One that is held up holds up its peer's, too, so
 * that all stages' are at once. */
static double calls_error(struct rewriter *w, struct dpro_pipeline_run run,
                          const struct dpro_model *as_it_is)
{
    for (uint32_t r = 0; r < w->m->n_ranks; r++)
        w->stages[r].call_ns += w->stages[r].call_error_ns;
    struct dpro_model moved = write_run(w, run);
    return (double)(evaluate_once(&moved) - evaluate_once(as_it_is));
}

/* Backward passes at once: no longer than their parts for inputs and for weights, which do some of
 * the work twice, and no shorter than the longer part. The middle is taken. Returns the standard
 * error of an iteration. */
static double join_passes(struct rewriter *w, uint32_t n_micro_batches, struct notes *notes)
{
    double most = 0;
    for (uint32_t r = 0; r < w->m->n_ranks; r++) {
        double shorter = 0;
        for (uint32_t c = 0; c < w->p.n_chunks; c++) {
            double *weights = &w->stages[r].pass_ns[PASS_OF_WEIGHTS][c];
            double less = fmin(*weights, w->stages[r].pass_ns[PASS_OF_INPUTS][c]);
            *weights -= less / 2;
            shorter += less;
        }
        most = fmax(most, shorter);
    }
    note(notes, "how long backward passes are at once is not known: no longer than their parts for "
                "inputs and for weights, no shorter than the longer part; the middle is taken");
    return n_micro_batches * most / sqrt(12);
}

/* ---- a rank's blocks in several stages ---- */

/* Of the work of a rank's passes, what the blocks do that its model repeats. */
struct blocks {
    double share[N_WAYS];
    uint32_t n;
};

static struct blocks blocks_of(const struct rewriter *w, const struct dpro_model *modules,
                               uint32_t rank)
{
    const struct model_program *p = &modules->programs[modules->ranks[rank].program];
    const struct graph_rank *ops = &w->g->ranks[rank];
    bool *repeated = arena_array(w->arena, modules->n_modules + (size_t)1, sizeof *repeated);
    bool *seen = arena_array(w->arena, modules->n_modules + (size_t)1, sizeof *seen);
    double all_ns[N_WAYS] = {0, 0};
    struct blocks blocks = {.n = 0};
    memory_repeated(modules, repeated);
    for (uint32_t op = ops->first_op; op < ops->first_op + ops->n_ops - ops->n_message_ops; op++)
        if (w->g->kind[op] == DPRO_OP_FW || w->g->kind[op] == DPRO_OP_BW)
            all_ns[w->g->kind[op] == DPRO_OP_BW] += w->m->pace.work * (double)w->g->dur_ns[op];
    EACH_OF (const struct model_call, call, p->calls, p->n_calls) {
        if (!repeated[call->module])
            continue;
        blocks.n += !seen[call->module];
        seen[call->module] = true;
        blocks.share[THERE] += (double)call->forward_ns / fmax(all_ns[THERE], 1);
        blocks.share[BACK] += (double)call->backward_ns / fmax(all_ns[BACK], 1);
    }
    return blocks;
}

static int check_blocks(const struct rewriter *w, const struct dpro_model *modules,
                        uint32_t n_chunks, struct dpro_error *err)
{
    for (uint32_t r = 0; r < w->m->n_ranks; r++) {
        uint32_t n = blocks_of(w, modules, r).n;
        if (n == 0)
            return refuse(err, "each rank of the recorded job has one stage, and the recording "
                               "does not tell blocks of which several could be made: record it "
                               "with 'dpro profile'");
        if (n % n_chunks != 0)
            return refuse(err,
                          "rank %d has %u block%s, of which %u equal stages can't be made for an "
                          "interleaved schedule",
                          w->m->ranks[r].rank, n, n == 1 ? "" : "s", n_chunks);
    }
    return 0;
}

/* What is no block is at the begin of the first stage or the end of the last one. */
static void split_stage(const struct rewriter *w, uint32_t rank, const struct blocks *blocks,
                        uint32_t n_chunks)
{
    struct stage *stage = &w->stages[rank];
    uint32_t own = w->p.stage_of[rank], n_stages = w->p.n_stages;
    for (int kind = 0; kind < N_PASS_KINDS; kind++) {
        double ns = stage->pass_ns[kind][0], share = fmin(blocks->share[kind > PASS_FORWARD], 1);
        bool within = own > 0 && own < n_stages - 1;
        stage->pass_ns[kind] = arena_array(w->arena, n_chunks, sizeof(double));
        for (uint32_t c = 0; c < n_chunks; c++)
            stage->pass_ns[kind][c] = ns * (within ? 1 : share) / n_chunks;
        if (!within)
            stage->pass_ns[kind][own == 0 ? 0 : n_chunks - 1] += ns * (1 - share);
    }
}

static uint32_t rank_at(const struct rewriter *w, uint32_t group, uint32_t stage)
{
    uint32_t r = 0;
    while (r < w->m->n_ranks && (w->p.group_of[r] != group || w->p.stage_of[r] != stage))
        r++;
    return r;
}

/* Messages from the last rank to the first are as those between others. */
static void close_ring(struct rewriter *w)
{
    struct dpro_model *m = w->m;
    uint32_t n_groups = w->g->dimensions[w->p.dimension].n_groups, last = w->p.n_stages - 1;
    struct model_group *groups =
        arena_array(w->arena, m->n_groups + (size_t)n_groups * N_WAYS, sizeof *groups);
    memcpy(groups, m->groups, m->n_groups * sizeof *groups);
    for (uint32_t group = 0; group < n_groups; group++)
        for (int way = 0; way < N_WAYS; way++) {
            uint32_t ends[2] = {rank_at(w, group, way == THERE ? last : 0),
                                rank_at(w, group, way == THERE ? 0 : last)};
            struct crossing *around =
                &w->crossings[(group * w->p.n_stages + last) * N_WAYS + (uint32_t)way];
            *around = w->crossings[group * w->p.n_stages * N_WAYS + (uint32_t)way];
            groups[m->n_groups] = groups[around->mean.group];
            groups[m->n_groups].ranks = arena_copy(w->arena, ends, 2, sizeof *ends);
            around->mean.group = m->n_groups++;
        }
    m->groups = groups;
}

static void split_stages(struct rewriter *w, const struct dpro_model *modules, uint32_t n_chunks,
                         struct notes *notes)
{
    for (uint32_t r = 0; r < w->m->n_ranks; r++) {
        struct blocks blocks = blocks_of(w, modules, r);
        split_stage(w, r, &blocks, n_chunks);
    }
    close_ring(w);
    w->p.n_chunks = n_chunks;
    note(notes,
         "each rank's blocks are taken to be %u stages of as many; what comes before or behind all "
         "blocks stays on its rank",
         n_chunks);
}

static int check_shape(const struct rewriter *w, const struct dpro_model *modules,
                       struct dpro_pipeline_run before, struct dpro_pipeline_run after,
                       struct dpro_error *err)
{
    struct pipeline_shape shape = shape_of(w, after);
    bool changes = shape.n_chunks != w->p.n_chunks ||
                   pipeline_splits(shape) != pipeline_splits(shape_of(w, before));
    if (shape.n_chunks > 1 && !pipeline_has_rounds(shape))
        return refuse(err,
                      "%u micro-batches are not as many in each of %u rounds, in which stages of a "
                      "rank take turns; try %u",
                      shape.n_micro_batches, shape.n_micro_batches / shape.n_ranks,
                      shape.n_micro_batches / shape.n_ranks * shape.n_ranks);
    for (uint32_t i = 0; i < w->n_shares && changes; i++)
        if (!w->shares[i].once)
            return refuse(err, "stages communicate within passes: how that would be in passes of "
                               "other stages is not known; ask for other micro-batches alone");
    return shape.n_chunks > w->p.n_chunks ? check_blocks(w, modules, shape.n_chunks, err) : 0;
}

/* Where it is known how many rows a micro-batch has. */
static int check_rows(const struct rewriter *w, const struct dpro_model *modules,
                      struct dpro_pipeline_run run, struct notes *notes, struct dpro_error *err)
{
    uint64_t rows = modules->n_memories > 0 ? modules->memories[0].batch_size : 0;
    rows *= w->p.n_micro_batches;
    if (rows > 0 && run.n_micro_batches > rows)
        return refuse(err, "the pipeline's batch has %llu rows, too few for %u micro-batches",
                      (unsigned long long)rows, run.n_micro_batches);
    if (rows % run.n_micro_batches != 0)
        note(notes, "%llu rows in %u micro-batches are not as many in each; they are taken to be",
             (unsigned long long)rows, run.n_micro_batches);
    return 0;
}

int change_pipeline(const struct dpro_graph *graph, const struct dpro_changes *changes,
                    struct dpro_model *model, struct dpro_model *modules, struct notes *notes,
                    struct pipeline_change *change, struct dpro_error *err)
{
    struct rewriter w = {.g = graph, .m = model, .arena = notes->arena};
    pipeline_find(graph, notes->arena, &w.p);
    int rc = check(&w, changes, err);
    if (rc < 0)
        return rc;
    struct dpro_pipeline_run before = {w.p.n_micro_batches, w.p.schedule}, after = before;
    if (changes->pipeline_micro_batches > 0)
        after.n_micro_batches = changes->pipeline_micro_batches;
    if (changes->schedule != DPRO_SCHEDULE_UNKNOWN)
        after.schedule = changes->schedule;
    *change = (struct pipeline_change){.runs = {before, after},
                                       .ranks = graph->ranks,
                                       .stage_of = w.p.stage_of,
                                       .n_stages = w.p.n_stages,
                                       .n_chunks = {w.p.n_chunks, shape_of(&w, after).n_chunks},
                                       .n_ranks = graph->n_ranks};
    double ratio = (double)before.n_micro_batches / after.n_micro_batches;
    modules->memory.batch_ratio = 1;
    rc = check_rows(&w, modules, after, notes, err);
    if (rc < 0)
        return rc;
    if (before.n_micro_batches == after.n_micro_batches && before.schedule == after.schedule &&
        !strategy_recomputes(modules, &modules->baseline))
        return 0;
    measure(&w, 1, NULL);
    rc = check_shape(&w, modules, before, after, err);
    if (rc < 0)
        return rc;
    change->averaged = even_out(&w, before);
    modules->memory.batch_ratio = ratio;
    measure(&w, ratio, modules);
    for (uint32_t r = 0; r < model->n_ranks; r++)
        scale_stage(&w, &w.stages[r], 1 + change->averaged);
    for (uint32_t i = 0; i < count_crossings(&w); i++)
        w.crossings[i].mean.took_ns *= 1 + change->averaged;
    for (uint32_t i = 0; i < w.n_shares; i++)
        w.shares[i].mean.took_ns *= 1 + change->averaged;
    uint32_t n_chunks = shape_of(&w, after).n_chunks;
    if (n_chunks > w.p.n_chunks)
        split_stages(&w, modules, n_chunks, notes);
    double join_error_ns = 0;
    if (before.schedule == DPRO_SCHEDULE_ZERO_BUBBLE && after.schedule != before.schedule)
        join_error_ns = join_passes(&w, after.n_micro_batches, notes);
    *model = write_run(&w, after);
    change->calls_error_ns = hypot(calls_error(&w, after, model), join_error_ns);
    note(notes, "a micro-batch's passes take the mean of the recorded ones%s",
         after.n_micro_batches == before.n_micro_batches ? ""
         : modules->n_batch_points > 0
             ? ", and with other rows as probes of modules measured them"
             : "; with other rows, what its ops take beyond a launch grows in proportion");
    return 0;
}

/* ---- what comes of it ---- */

double pipeline_bubble(const struct dpro_model *model, const struct pipeline_change *change,
                       uint32_t stage, int64_t iteration_ns)
{
    double work_ns = 0;
    uint32_t n = 0;
    for (uint32_t r = 0, i = 0; r < model->n_ranks; r++) { /* some may be gone, copies come last */
        const struct model_rank *rank = &model->ranks[r];
        while (i < change->n_ranks && change->ranks[i].rank != rank->rank)
            i++;
        if (i < change->n_ranks && change->stage_of[i] == stage) {
            work_ns += work_of(&model->programs[rank->program]) * rank->work_scale;
            n++;
        }
    }
    return n > 0 && iteration_ns > 0 ? fmax(0, 1 - work_ns / n / (double)iteration_ns) : 0;
}
