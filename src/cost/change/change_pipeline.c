/* Asks a pipeline for other micro-batches or another schedule: what can be asked, which of its
 * numbers change, and how unsure that is. Programs are measured and written in pipeline_program.c.
 */
#include "cost/change/change_pipeline.h"

#include "cost/change/pipeline_program.h"
#include "cost/memory/strategy_memory.h"
#include "cost/program/cost.h"
#include "cost/program/evaluate.h"
#include "cost/program/model_memory.h"
#include "cost/program/program_writer.h"
#include "cost/program/strategy_work.h"

enum { MOST_MICRO_BATCHES = 4096 };

bool asks_for_pipeline(const struct dpro_changes *changes)
{
    return changes->pipeline_micro_batches > 0 || changes->schedule != DPRO_SCHEDULE_UNKNOWN;
}

/* ---- what can be asked for ---- */

static void check_rest(const struct pipeline_writer *w)
{
    const struct dpro_model *m = w->m;
    for (uint32_t r = 0; r < m->n_ranks; r++)
        if (w->p.stage_of[r] == UINT32_MAX)
            refuse("rank %d is in none of the pipeline's groups that are known: --dims says how "
                   "the job is parallel",
                   m->ranks[r].rank);
}

static void pipeline_check(const struct pipeline_writer *w, const struct dpro_changes *c)
{
    const struct pipeline *p = &w->p;
    if (p->dimension == DPRO_NO_DIMENSION)
        refuse("the job has no pipeline (pp): --microbatches and --schedule are for "
               "ranks that each have other layers; --accumulate cuts the batch of "
               "others");
    if (p->unknown)
        refuse("the pipeline's micro-batches are not known: %s", p->unknown);
    if (c->pipeline_micro_batches > MOST_MICRO_BATCHES)
        refuse("%u micro-batches make no sense; up to %d can be predicted",
               c->pipeline_micro_batches, MOST_MICRO_BATCHES);
    if (c->schedule == DPRO_SCHEDULE_ZERO_BUBBLE && p->schedule != DPRO_SCHEDULE_ZERO_BUBBLE)
        refuse("a zero-bubble schedule moves the gradients of weights, whose time this trace does "
               "not tell: record steps with such a schedule (PyTorch's "
               "ScheduleInterleavedZeroBubble), or ask for --schedule %s",
               p->n_chunks > 1 ? "interleaved" : "1f1b");
    if (p->schedule == DPRO_SCHEDULE_UNKNOWN && c->schedule == DPRO_SCHEDULE_UNKNOWN)
        refuse("the recorded stages computed in an unknown order: name one with --schedule");
    check_rest(w);
}

/* As if the recorded run took as long with micro-batches that are all alike as it does. */
static double even_out(struct pipeline_writer *w, struct dpro_pipeline_run recorded)
{
    if (recorded.schedule == DPRO_SCHEDULE_UNKNOWN)
        return 0;
    struct dpro_model even = pipeline_write(w, recorded);
    double ns = (double)evaluate_once(w->m), even_ns = (double)evaluate_once(&even);
    return ns / even_ns - 1;
}

/* Of a run: how much longer it is where calls are. One that is held up holds up its peer's, too, so
 * that all stages' are at once. */
double pipeline_calls_error(const struct pipeline_change *change)
{
    if (change->held_up.n_ranks == 0)
        return 0;
    double longer_ns =
        (double)(evaluate_once(&change->held_up) - evaluate_once(&change->as_written));
    return hypot(longer_ns, change->join_error_ns);
}

/* Backward passes at once: no longer than their parts for inputs and for weights, which do some of
 * the work twice, and no shorter than the longer part. The middle is taken. Returns the standard
 * error of an iteration. */
static double join_passes(struct pipeline_writer *w, uint32_t n_micro_batches, struct notes *notes)
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
    note(notes, "an undivided backward pass takes between the longer of its parts (for inputs, for "
                "weights) and both together: the middle is assumed");
    return n_micro_batches * most / sqrt(12);
}

/* ---- a rank's blocks in several stages ---- */

/* Of the work of a rank's passes, what the blocks do that its model repeats. */
struct blocks {
    double share[N_WAYS];
    uint32_t n;
};

static struct blocks blocks_of(const struct pipeline_writer *w, const struct dpro_model *modules,
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

static void check_blocks(const struct pipeline_writer *w, const struct dpro_model *modules,
                         uint32_t n_chunks)
{
    for (uint32_t r = 0; r < w->m->n_ranks; r++) {
        uint32_t n = blocks_of(w, modules, r).n;
        if (n == 0)
            refuse("each recorded rank has one stage, and the recording shows no blocks to make "
                   "several of it: record the job with 'dpro profile'");
        if (n % n_chunks != 0)
            refuse("rank %d has %u block%s, which can't be divided into %u equal stages for an "
                   "interleaved schedule",
                   w->m->ranks[r].rank, n, n == 1 ? "" : "s", n_chunks);
    }
}

/* What is no block is at the begin of the first stage or the end of the last one. */
static void split_stage(const struct pipeline_writer *w, uint32_t rank, const struct blocks *blocks,
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

static uint32_t rank_at(const struct pipeline_writer *w, uint32_t group, uint32_t stage)
{
    uint32_t r = 0;
    while (r < w->m->n_ranks && (w->p.group_of[r] != group || w->p.stage_of[r] != stage))
        r++;
    return r;
}

/* Messages from the last rank to the first are as those between others. */
static void close_ring(struct pipeline_writer *w)
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
            struct stage_share *around =
                &w->shares[(group * w->p.n_stages + last) * N_WAYS + (uint32_t)way];
            *around = w->shares[group * w->p.n_stages * N_WAYS + (uint32_t)way];
            groups[m->n_groups] = groups[around->mean.group];
            groups[m->n_groups].ranks = arena_copy(w->arena, ends, 2, sizeof *ends);
            around->mean.group = m->n_groups++;
        }
    m->groups = groups;
}

static void split_stages(struct pipeline_writer *w, const struct dpro_model *modules,
                         uint32_t n_chunks, struct notes *notes)
{
    for (uint32_t r = 0; r < w->m->n_ranks; r++) {
        struct blocks blocks = blocks_of(w, modules, r);
        split_stage(w, r, &blocks, n_chunks);
    }
    close_ring(w);
    w->p.n_chunks = n_chunks;
    note(notes,
         "each rank's blocks are assumed to be %u equal stages; what comes before or after all "
         "blocks stays on its rank",
         n_chunks);
}

static void check_shape(const struct pipeline_writer *w, const struct dpro_model *modules,
                        struct dpro_pipeline_run before, struct dpro_pipeline_run after)
{
    struct pipeline_shape shape = pipeline_shape_of(w, after);
    bool changes = shape.n_chunks != w->p.n_chunks ||
                   pipeline_splits(shape) != pipeline_splits(pipeline_shape_of(w, before));
    if (shape.n_chunks > 1 && !pipeline_has_rounds(shape))
        refuse("%u micro-batches can't be divided into %u equal rounds, in which a rank's stages "
               "take turns; try %u",
               shape.n_micro_batches, shape.n_micro_batches / shape.n_ranks,
               shape.n_micro_batches / shape.n_ranks * shape.n_ranks);
    for (uint32_t i = w->n_crossings; i < w->n_shares; i++) {
        const struct stage_share *share = &w->shares[i];
        uint32_t dimension = w->g->collectives[share->mean.collective].dimension;
        if (!share->once && dimension >= w->g->n_dimensions)
            refuse("ranks communicate in an unknown dimension (%s), and the recording does not "
                   "tell whether they do so for each micro-batch",
                   dpro_collective_kind_name(share->mean.kind));
        if (!share->once && changes)
            refuse("stages communicate within passes, which can't be predicted for other stages; "
                   "ask for other micro-batches alone");
    }
    if (shape.n_chunks > w->p.n_chunks)
        check_blocks(w, modules, shape.n_chunks);
}

/* Where it is known how many rows a micro-batch has. */
static void check_rows(const struct pipeline_writer *w, const struct dpro_model *modules,
                       struct dpro_pipeline_run run, struct notes *notes)
{
    uint64_t rows = modules->n_memories > 0 ? modules->memories[0].batch_size : 0;
    rows *= w->p.n_micro_batches;
    if (rows > 0 && run.n_micro_batches > rows)
        refuse("the pipeline's batch has %llu rows, too few for %u micro-batches",
               (unsigned long long)rows, run.n_micro_batches);
    if (rows % run.n_micro_batches != 0)
        note(
            notes,
            "%llu rows can't be divided into %u equal micro-batches; all are predicted as if equal",
            (unsigned long long)rows, run.n_micro_batches);
}

void change_pipeline(const struct dpro_graph *graph, const struct dpro_changes *changes,
                     struct rank_share share, struct dpro_model *model, struct dpro_model *modules,
                     struct notes *notes, struct pipeline_change *change)
{
    struct pipeline_writer w = {.g = graph, .m = model, .arena = notes->arena, .share = share};
    pipeline_find(graph, notes->arena, &w.p);
    pipeline_check(&w, changes);
    struct dpro_pipeline_run before = {w.p.n_micro_batches, w.p.schedule}, after = before;
    if (changes->pipeline_micro_batches > 0)
        after.n_micro_batches = changes->pipeline_micro_batches;
    if (changes->schedule != DPRO_SCHEDULE_UNKNOWN)
        after.schedule = changes->schedule;
    *change =
        (struct pipeline_change){.runs = {before, after},
                                 .ranks = graph->ranks,
                                 .stage_of = w.p.stage_of,
                                 .n_stages = w.p.n_stages,
                                 .n_chunks = {w.p.n_chunks, pipeline_shape_of(&w, after).n_chunks},
                                 .n_ranks = graph->n_ranks};
    double ratio = (double)before.n_micro_batches / after.n_micro_batches;
    modules->memory.batch_ratio = 1;
    check_rows(&w, modules, after, notes);
    if (before.n_micro_batches == after.n_micro_batches && before.schedule == after.schedule &&
        !strategy_recomputes(modules, &modules->baseline) && share.shards == 1 &&
        share.tensors == 1)
        return;
    pipeline_measure(&w, 1, NULL);
    check_shape(&w, modules, before, after);
    change->averaged = notes->averaged ? *notes->averaged : NAN;
    if (isnan(change->averaged))
        change->averaged = even_out(&w, before);
    if (notes->averaged)
        *notes->averaged = change->averaged;
    modules->memory.batch_ratio = ratio;
    pipeline_measure(&w, ratio, modules);
    for (uint32_t r = 0; r < model->n_ranks; r++)
        pipeline_stage_scale(&w, &w.stages[r], 1 + change->averaged);
    for (uint32_t i = 0; i < w.n_shares; i++)
        w.shares[i].mean.took_ns *= 1 + change->averaged;
    uint32_t n_chunks = pipeline_shape_of(&w, after).n_chunks;
    if (n_chunks > w.p.n_chunks)
        split_stages(&w, modules, n_chunks, notes);
    if (before.schedule == DPRO_SCHEDULE_ZERO_BUBBLE && after.schedule != before.schedule)
        change->join_error_ns = join_passes(&w, after.n_micro_batches, notes);
    change->as_written = pipeline_write(&w, after);
    for (uint32_t r = 0; r < model->n_ranks; r++)
        w.stages[r].call_ns += w.stages[r].call_error_ns;
    change->held_up = pipeline_write(&w, after);
    *model = change->as_written;
    model->launching_ns = 0; /* other ops are launched */
    pipeline_writer_fini(&w);
    note(notes, "a micro-batch's passes take the mean of the recorded ones%s",
         after.n_micro_batches == before.n_micro_batches || modules->n_batch_points > 0
             ? ""
             : "; with more or fewer rows, the time of ops beyond their launches changes in "
               "proportion");
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
            work_ns += program_work_ns(&model->programs[rank->program]) * rank->work_scale;
            n++;
        }
    }
    return n > 0 && iteration_ns > 0 ? fmax(0, 1 - work_ns / n / (double)iteration_ns) : 0;
}
