/* cost/change_pipeline.c: see change_pipeline.h. Each stage's work of a forward and of a backward
 * pass is that of the mean recorded micro-batch. What its ops take grows with the rows of a
 * micro-batch as a batch's does (graph_work.h); what a stage does once a step, such as the
 * optimizer's, stays. Passes and messages are then put in the order in which PyTorch's and
 * Megatron's schedules have them: a stage that takes turns sends and receives at once and waits for
 * both. What else a stage communicates, such as activations of split tensors, cuts its passes in
 * equal parts and is waited for at once; what it communicates less often than in each pass, such as
 * gradients, is at the begin of a step's forward passes or at the end of its backward ones. */
#include "cost/change_pipeline.h"

#include <math.h>
#include <string.h>

#include "base/error.h"
#include "base/sort.h"
#include "cost/cost.h"
#include "cost/evaluate.h"
#include "cost/graph_work.h"
#include "cost/memory_sweep.h"
#include "cost/model_memory.h"
#include "cost/strategy_memory.h"
#include "graph/dimensions/pipeline.h"

#define refuse(err, ...) dpro_error_set(err, DPRO_EUSAGE, __VA_ARGS__)

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
    int way;
    bool once;
    uint32_t first; /* number of the first of the new ones */
};

/* Of a rank. */
struct stage {
    double pass_ns[N_WAYS];                               /* of one micro-batch */
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

/* ---- what can be asked for ---- */

static int check_rest(const struct rewriter *w, struct dpro_error *err)
{
    const struct dpro_model *m = w->m;
    for (uint32_t r = 0; r < m->n_ranks; r++)
        if (w->p.stage_of[r] == UINT32_MAX)
            return refuse(err,
                          "rank %d is in none of the pipeline's groups that are known: other "
                          "micro-batches and schedules can't be told",
                          m->ranks[r].rank);
    for (uint32_t k = 0; k < m->n_communications; k++)
        if (w->g->collectives[m->communications[k].collective].dimension >= w->g->n_dimensions)
            return refuse(err,
                          "ranks communicate in no dimension that is known (%s): whether that is "
                          "for each micro-batch can't be told",
                          m->communications[k].kind);
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
    if (c->schedule == DPRO_SCHEDULE_ZERO_BUBBLE)
        return refuse(err, "a zero-bubble schedule moves the gradients of weights: the trace does "
                           "not tell their time from that of the gradients of inputs");
    if (c->schedule == DPRO_SCHEDULE_INTERLEAVED && p->n_chunks == 1)
        return refuse(err, "an interleaved schedule needs several stages a rank, and each rank of "
                           "the recorded job has one");
    if (p->n_chunks > 1)
        return refuse(err,
                      "each rank of the recorded job has %u stages: other micro-batches and "
                      "schedules are told of pipelines with one stage a rank",
                      p->n_chunks);
    if (p->schedule == DPRO_SCHEDULE_UNKNOWN && c->schedule == DPRO_SCHEDULE_UNKNOWN)
        return refuse(err, "the order in which the recorded stages computed is none that is known: "
                           "name one with --schedule");
    return check_rest(w, err);
}

/* ---- what was recorded ---- */

/* A gap behind what a step does once is of that, too. */
static void add_ops(const struct dpro_graph *g, uint32_t rank, uint32_t n_micro_batches,
                    struct stage *stage)
{
    const struct graph_rank *ops = &g->ranks[rank];
    bool gpu = rank_has_gpu(g, ops), passes = false;
    *stage = (struct stage){.once_ns = 0};
    for (uint32_t op = ops->first_op; op < ops->first_op + ops->n_ops - ops->n_message_ops; op++) {
        double ns = (double)g->dur_ns[op], gap = gpu || !g->gap_ns ? 0 : (double)g->gap_ns[op];
        if (!op_computes(g, op) || (gpu && !(g->flags[op] & GRAPH_OP_GPU)))
            continue;
        *(passes ? &stage->pass_ns[g->phase[op] == DPRO_OP_BW] : &stage->once_ns) += gap;
        passes = g->phase[op] == DPRO_OP_FW || g->phase[op] == DPRO_OP_BW;
        if (g->kind[op] == DPRO_OP_LAUNCH)
            stage->call_ns += ns;
        else
            *(passes ? &stage->pass_ns[g->phase[op] == DPRO_OP_BW] : &stage->once_ns) += ns;
    }
    for (int way = 0; way < N_WAYS; way++)
        stage->pass_ns[way] /= n_micro_batches;
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

static double total(const struct stage *stage, uint32_t n_micro_batches)
{
    return stage->once_ns + stage->call_ns +
           n_micro_batches * (stage->pass_ns[THERE] + stage->pass_ns[BACK]);
}

static void scale_stage(struct stage *stage, double ratio)
{
    stage->once_ns *= ratio;
    stage->call_ns *= ratio;
    for (int way = 0; way < N_WAYS; way++)
        stage->pass_ns[way] *= ratio;
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
    bool once = !is_in_each_pass(&all, w->p.n_micro_batches);
    uint32_t each = once ? all.n : all.n / w->p.n_micro_batches;
    for (uint32_t i = 0; i < all.n; i++) {
        struct share *share = &w->shares[w->n_shares + i % each];
        *share = (struct share){.mean = share->mean, .n = all.n / each, .way = way, .once = once};
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
    for (uint32_t i = 0; i < p->n_ops; i++) {
        const struct model_op *op = &p->ops[i];
        if (op->needs == MODEL_NONE || op->needs - m->n_tensors >= m->n_communications)
            continue;
        uint32_t k = op->needs - m->n_tensors;
        if (is_of_pipeline(w, k) && m->groups[m->communications[k].group].ranks[1] == rank)
            w->stages[rank].lag_ns[way_of(w, k)] += op->lag_ns / w->p.n_micro_batches;
    }
}

/* ---- what is to be done ---- */

typedef ARRAY(struct model_op) op_array;

struct program_writer {
    const struct rewriter *w;
    uint32_t rank, stage, last_stage;
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

static void pass(struct program_writer *to, int way, uint32_t number)
{
    const struct stage *stage = &to->w->stages[to->rank];
    uint32_t n = stage->n_in_passes[way];
    for (uint32_t i = 0; i < stage->n_in_steps[THERE] && way == THERE && number == 0; i++)
        communicate(to, stage->in_steps[THERE][i], 0);
    for (uint32_t i = 0; i <= n; i++) {
        to->work_ns += stage->pass_ns[way] / (n + 1);
        if (i < n)
            communicate(to, stage->in_passes[way][i], number);
    }
    for (uint32_t i = 0; i < stage->n_in_steps[BACK] && way == BACK && number + 1 == to->n; i++)
        communicate(to, stage->in_steps[BACK][i], 0);
}

/* Whether a stage sends, or else receives, in a direction. */
static bool has_message(const struct program_writer *to, int way, bool sends)
{
    return (way == THERE) == sends ? to->stage < to->last_stage : to->stage > 0;
}

static uint32_t message(const struct program_writer *to, int way, bool sends, uint32_t number)
{
    uint32_t before = (way == THERE) == sends ? to->stage : to->stage - 1;
    return to->w->m->n_tensors + crossing_of(to->w, to->rank, before, way)->first + number;
}

static void begin(struct program_writer *to, int way, bool sends, uint32_t number)
{
    if (!has_message(to, way, sends))
        return;
    to->work_ns += to->w->stages[to->rank].call_ns;
    add_op(to, MODEL_NONE, 0, message(to, way, sends, number));
}

static void wait_for(struct program_writer *to, int way, bool sends, uint32_t number)
{
    if (!has_message(to, way, sends))
        return;
    add_op(to, MODEL_NONE, 0, MODEL_NONE);
    add_op(to, message(to, way, sends, number), sends ? 0 : to->w->stages[to->rank].lag_ns[way],
           MODEL_NONE);
}

static void receive(struct program_writer *to, int way, uint32_t number)
{
    begin(to, way, false, number);
    wait_for(to, way, false, number);
}

/* All forward passes, then all backward ones. */
static void write_gpipe(struct program_writer *to, uint32_t n)
{
    for (int way = THERE; way < N_WAYS; way++) {
        for (uint32_t i = 0; i < n; i++) {
            receive(to, way, i);
            pass(to, way, i);
            begin(to, way, true, i);
        }
        for (uint32_t i = 0; i < n; i++)
            wait_for(to, way, true, i);
    }
}

static void send_and_receive(struct program_writer *to, int sent, uint32_t number, uint32_t other)
{
    begin(to, sent, true, number);
    begin(to, !sent, false, other);
    wait_for(to, sent, true, number);
    wait_for(to, !sent, false, other);
}

/* Forward passes as far ahead as the stages behind are many, then turns, then what is left. */
static void write_1f1b(struct program_writer *to, uint32_t n)
{
    uint32_t ahead = MIN(n, to->last_stage + 1 - to->stage), forward, backward = 0;
    for (forward = 0; forward < ahead; forward++) {
        receive(to, THERE, forward);
        pass(to, THERE, forward);
        if (forward > 0)
            wait_for(to, THERE, true, forward - 1);
        if (forward + 1 < ahead)
            begin(to, THERE, true, forward);
    }
    for (;;) {
        send_and_receive(to, THERE, forward - 1, backward);
        pass(to, BACK, backward);
        backward++;
        if (forward == n)
            break;
        send_and_receive(to, BACK, backward - 1, forward);
        pass(to, THERE, forward);
        forward++;
    }
    begin(to, BACK, true, backward - 1);
    for (; backward < n; backward++) {
        receive(to, BACK, backward);
        pass(to, BACK, backward);
        wait_for(to, BACK, true, backward - 1);
        begin(to, BACK, true, backward);
    }
    wait_for(to, BACK, true, n - 1);
}

static struct model_program write_program(const struct rewriter *w, struct dpro_pipeline_run run,
                                          uint32_t rank)
{
    struct program_writer to = {.w = w,
                                .rank = rank,
                                .stage = w->p.stage_of[rank],
                                .last_stage = w->p.n_stages - 1,
                                .n = run.n_micro_batches,
                                .work_ns = w->stages[rank].once_ns};
    if (run.schedule == DPRO_SCHEDULE_GPIPE)
        write_gpipe(&to, run.n_micro_batches);
    else
        write_1f1b(&to, run.n_micro_batches);
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
    uint32_t n = 0, n_crossings = count_crossings(w);
    struct model_communication *all = arena_array(
        w->arena, ((size_t)n_crossings + w->n_shares) * n_micro_batches + 1, sizeof *all);
    for (uint32_t i = 0; i < n_crossings; i++) {
        struct crossing *c = &w->crossings[i];
        c->first = n;
        for (uint32_t k = 0; k < n_micro_batches && c->n > 0; k++)
            all[n++] = c->mean;
    }
    for (uint32_t i = 0; i < w->n_shares; i++) {
        struct share *share = &w->shares[i];
        share->first = n;
        for (uint32_t k = 0; k < (share->once ? 1 : n_micro_batches); k++)
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

/* With micro-batches that are `ratio` times as large. */
static void measure(struct rewriter *w, double ratio, const struct dpro_model *modules)
{
    struct dpro_model *m = w->m;
    struct dpro_graph changed;
    uint32_t n = w->p.n_micro_batches, n_crossings = count_crossings(w);
    graph_with_work(w->g, modules, false, 1, w->arena, &changed);
    w->stages = arena_array(w->arena, m->n_ranks + (size_t)1, sizeof *w->stages);
    for (uint32_t r = 0; r < m->n_ranks; r++) {
        struct stage was, *stage = &w->stages[r];
        add_ops(w->g, r, n, &was);
        add_ops(&changed, r, n, stage);
        double all = total(&was, n), pace = work_of(&m->programs[m->ranks[r].program]);
        stage->call_ns /= MAX(count_calls(w, r), 1);
        stage->call_error_ns = error_of_calls(w->g, r);
        scale_stage(stage, all > 0 ? pace / all : 1);
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
    write_communications(w, run.n_micro_batches, &to);
    to.n_programs = to.n_ranks;
    to.programs = arena_array(w->arena, to.n_ranks, sizeof *to.programs);
    to.ranks = arena_copy(w->arena, to.ranks, to.n_ranks, sizeof *to.ranks);
    for (uint32_t r = 0; r < to.n_ranks; r++) {
        to.programs[r] = write_program(w, run, r);
        to.ranks[r].program = r;
    }
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

static void move_calls(struct rewriter *w, uint32_t stage, double errors)
{
    for (uint32_t r = 0; r < w->m->n_ranks; r++)
        if (w->p.stage_of[r] == stage)
            w->stages[r].call_ns += errors * w->stages[r].call_error_ns;
}

/* Of a run: how much longer it is where the calls of a stage are, each stage by itself. */
static double calls_error(struct rewriter *w, struct dpro_pipeline_run run,
                          const struct dpro_model *as_it_is)
{
    double error_ns = 0;
    for (uint32_t s = 0; s < w->p.n_stages; s++) {
        move_calls(w, s, 1);
        struct dpro_model moved = write_run(w, run);
        move_calls(w, s, -1);
        error_ns = hypot(error_ns, (double)(evaluate_once(&moved) - evaluate_once(as_it_is)));
    }
    return error_ns;
}

static void model_micro_batch(struct rewriter *w, double ratio, struct dpro_model *modules)
{
    graph_model(w->g, w->m->probes, modules);
    modules->baseline.recomputed =
        arena_array(w->arena, modules->n_modules + (size_t)1, sizeof(bool));
    modules->memory.batch_ratio = ratio;
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
                                       .n_ranks = graph->n_ranks};
    double ratio = (double)before.n_micro_batches / after.n_micro_batches;
    model_micro_batch(&w, 1, modules);
    rc = check_rows(&w, modules, after, notes, err);
    if (rc < 0)
        return rc;
    if (before.n_micro_batches == after.n_micro_batches && before.schedule == after.schedule)
        return 0;
    measure(&w, 1, modules);
    change->averaged = even_out(&w, before);
    modules->memory.batch_ratio = ratio;
    measure(&w, ratio, modules);
    for (uint32_t r = 0; r < model->n_ranks; r++)
        scale_stage(&w.stages[r], 1 + change->averaged);
    for (uint32_t i = 0; i < count_crossings(&w); i++)
        w.crossings[i].mean.took_ns *= 1 + change->averaged;
    for (uint32_t i = 0; i < w.n_shares; i++)
        w.shares[i].mean.took_ns *= 1 + change->averaged;
    *model = write_run(&w, after);
    change->calls_error_ns = calls_error(&w, after, model);
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

/* Micro-batches of which a stage keeps activations at the most. */
static uint32_t most_in_flight(const struct pipeline_change *change, uint32_t rank, int after)
{
    const struct dpro_pipeline_run *run = &change->runs[after];
    uint32_t ahead = change->n_stages - change->stage_of[rank];
    return run->schedule == DPRO_SCHEDULE_1F1B ? MIN(run->n_micro_batches, ahead)
                                               : run->n_micro_batches;
}

/* A rank's memory with other micro-batches. */
struct flight {
    struct memory_sweep sweep;
    int64_t *kept;  /* by place: activations that grow with the micro-batch */
    int64_t *whole; /* by place: what the mini-batch has more than the sweep says, of inputs and of
                       outputs that are kept until the step is over */
    int64_t most;   /* of kept */
    double ratio;   /* of micro-batches in flight at the most */
};

static void add_life(int64_t *at, struct life life, int64_t bytes)
{
    if (life.from >= life.to)
        return;
    at[life.from] += bytes;
    at[life.to] -= bytes;
}

static void fly(const struct dpro_model *modules, const struct model_memory *m, struct arena *arena,
                struct flight *f)
{
    static const struct dpro_strategy as_it_is;
    f->sweep = memory_sweep_begin(modules, &as_it_is, m, false);
    f->kept = arena_array(arena, m->n_moments + (size_t)3, sizeof *f->kept);
    f->whole = arena_array(arena, m->n_moments + (size_t)3, sizeof *f->whole);
    uint32_t last = m->n_moments;
    while (last > 0 && m->phases[last - 1] != DPRO_OP_BW)
        last--;
    for (uint32_t b = 0; b < m->n_blocks; b++) {
        const struct graph_block *block = &m->blocks[b];
        struct life life = memory_lives(&f->sweep, b).first;
        uint64_t size = memory_size(&f->sweep, block);
        bool of_passes = block->category == DPRO_MEMORY_ACTIVATION && block->scales;
        if (of_passes && life.to <= last)
            add_life(f->kept, life, (int64_t)size);
        else if (of_passes || block->category == DPRO_MEMORY_INPUT)
            add_life(f->whole, life, (int64_t)block->size_bytes - (int64_t)size);
    }
    for (uint32_t p = 1; p <= m->n_moments; p++) {
        f->kept[p] += f->kept[p - 1];
        f->whole[p] += f->whole[p - 1];
        f->most = MAX(f->most, f->kept[p]);
    }
}

static int64_t kept_at(const struct flight *f, uint32_t place)
{
    double most = (double)f->most * f->ratio, kept = (double)f->kept[place];
    return llround(f->ratio >= 1 ? kept * f->ratio : fmin(kept, most));
}

static void tell_peak(const struct dpro_model *modules, const struct flight *f, uint32_t place,
                      struct dpro_memory_peak *peak)
{
    const struct model_memory *m = f->sweep.m;
    peak->rank = modules->ranks[m->rank].rank;
    peak->phase =
        place > 0 && m->n_moments > 0 ? (enum dpro_op_kind)m->phases[place - 1] : DPRO_OP_BARRIER;
    memset(peak->by_category, 0, sizeof peak->by_category);
    for (uint32_t b = 0; b < m->n_blocks; b++) {
        struct life life = memory_lives(&f->sweep, b).first;
        if (life.from <= place && place < life.to)
            peak->by_category[m->blocks[b].category] += memory_size(&f->sweep, &m->blocks[b]);
    }
    peak->by_category[DPRO_MEMORY_ACTIVATION] +=
        (uint64_t)(kept_at(f, place) - f->kept[place] + f->whole[place]);
}

/* How many micro-batches there are in flight is that of the schedule; each has as much. */
#define FLIGHT_ERROR 0.1

void pipeline_peaks(const struct dpro_model *modules, const struct pipeline_change *change,
                    struct dpro_memory_peak peaks[2])
{
    static const struct dpro_strategy as_it_is;
    struct dpro_model own = *modules;
    struct arena arena = {0};
    if (!memory_is_known(modules))
        return;
    own.memory = (struct memory_setting){0};
    peaks[0] = memory_peak_told(&own, &as_it_is);
    peaks[1] = (struct dpro_memory_peak){.bytes = 0};
    for (uint32_t i = 0; i < modules->n_memories; i++) {
        const struct model_memory *m = &modules->memories[i];
        struct flight f = {.ratio = (double)most_in_flight(change, m->rank, 1) /
                                    most_in_flight(change, m->rank, 0)};
        fly(modules, m, &arena, &f);
        for (uint32_t p = 0; p <= m->n_moments; p++) {
            int64_t bytes = f.sweep.held[p] + f.whole[p] - f.kept[p] + kept_at(&f, p);
            if (bytes <= (int64_t)peaks[1].bytes)
                continue;
            peaks[1].bytes = (uint64_t)bytes;
            tell_peak(modules, &f, p, &peaks[1]);
        }
        arena_fini(&f.sweep.arena);
    }
    double moved = (double)peaks[1].bytes - (double)peaks[0].bytes;
    peaks[1].std_bytes = hypot(peaks[0].std_bytes, FLIGHT_ERROR * moved);
    arena_fini(&arena);
}
