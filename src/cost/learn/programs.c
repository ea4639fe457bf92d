/* Makes a rank's program from its sync points and segments. The work of a segment is the median
 * over the iterations, without the slowing by communication; with groups the mean, as they meet
 * often, and then the others wait for what holds up one rank now and then. What a rank pauses is no
 * work of either. */

#include "cost/program/cost.h"
#include "cost/program/evaluator.h"

/* What a segment would have taken with nothing on the wires. */
static double programs_alone(const struct segment *s, double lost)
{
    double ns = (double)s->elapsed_ns - lost * (double)s->overlapped_ns;
    return ns > 0 ? ns : 0;
}

static double work_before(const struct measured_replay *r, const struct coarse_rank *rank,
                          size_t point, double *room)
{
    for (uint32_t i = 0; i < r->n; i++)
        room[i] = programs_alone(&rank->segments[i * rank->n_points + point], 0);
    return stats_median(room, r->n);
}

/* Work since an iteration's first point, each iteration's in `sums`: the median, as
 * what holds up one iteration now and then (another process, a page fault) is no part of the work.
 * Of sums, for where several threads compute, their gradients get ready in one order in this
 * iteration and in another in the next, and the parts' medians don't add up. */
static double work_up_to(const struct measured_replay *r, const struct coarse_rank *rank,
                         size_t point, double lost, const double *pause_ns, double *sums,
                         double *room)
{
    double sum = 0;
    uint32_t n = 0;
    for (uint32_t i = 0; i < r->n; i++) {
        sums[i] += programs_alone(&rank->segments[i * rank->n_points + point], lost);
        room[i] = sums[i];
        if (!pause_ns || pause_ns[i] == 0) {
            sum += sums[i];
            n++;
        }
    }
    return rank->n_issues > 0 ? sum / n : stats_median(room, r->n);
}

/* Whether an executor takes the ranks' ops as they get ready: what waits for communication holds
 * nothing up. */
static bool has_executor(const struct dpro_graph *g)
{
    return g->framework &&
           (strcmp(g->framework, "tensorflow") == 0 || strcmp(g->framework, "mxnet") == 0);
}

/* First all that hands tensors over, then all that waits. */
static void wait_last(struct dpro_model *model, struct model_program *program)
{
    struct model_op *ordered = arena_array(&model->arena, program->n_ops, sizeof *ordered);
    uint32_t n = 0;
    for (int pass = 0; pass < 2; pass++)
        for (uint32_t i = 0; i < program->n_ops; i++)
            if ((program->ops[i].tensor == MODEL_NONE) == pass)
                ordered[n++] = program->ops[i];
    program->ops = ordered;
}

static double lag_of(const struct coarse *coarse, const struct coarse_rank *rank,
                     const struct sync_point *point, const struct dpro_model *model)
{
    const struct coarse_issue *issues = coarse->issues + rank->first_issue;
    uint32_t n = rank->n_issues, communication = point->tensor - model->n_tensors;
    uint32_t i = LOWER_BOUND(k, 0u, n, issues[k].communication < communication);
    return i < n && issues[i].communication == communication ? issues[i].lag_ns : 0;
}

static const char *name_of(const struct dpro_model *model, const struct sync_point *point)
{
    if (point->needs)
        return "up to a wait";
    if (point->tensor == MODEL_NONE)
        return "an iteration";
    return point->tensor < model->n_tensors
               ? model->tensors[point->tensor].name
               : dpro_collective_kind_name(
                     model->communications[point->tensor - model->n_tensors].kind);
}

/* Whether it is the rank's last wait for gradients, after all of them got ready: that of DDP's
 * backward pass, which waits for all buckets, whichever these are. */
static bool waits_for_all(const struct measured_replay *r, const struct coarse_rank *rank, size_t a,
                          const struct dpro_model *model)
{
    const struct sync_point *points = rank->sync_points;
    bool is = points[a].needs && !points[a].before && points[a].tensor < model->n_tensors &&
              model_scheme(model) != MODEL_PUSH_PULL && !has_executor(r->graph);
    for (size_t i = a + 1; i < rank->n_points; i++)
        is &= points[i].tensor >= model->n_tensors;
    return is;
}

/* An iteration of the program begins after the last thing that the one before waited for, so that
 * the optimizer and the next forward lead up to the first gradient. */
static struct model_program make_program(const struct measured_replay *r,
                                         const struct coarse *coarse,
                                         const struct coarse_rank *rank, double lost,
                                         const double *pause_ns, struct dpro_model *model,
                                         double *room)
{
    double copied = (double)rank->copy_back_ns;
    double *sums = room + r->n, before = 0, handled = 0;
    memset(sums, 0, r->n * sizeof *sums);
    uint32_t *n_missing = arena_array(&model->arena, coarse->n_buckets, sizeof *n_missing);
    for (uint32_t t = 0; t < model->n_tensors; t++)
        n_missing[coarse->bucket_of[t]]++;
    struct model_program program = {.n_ops = 0};
    program.ops = arena_array(&model->arena, 2 * rank->n_points + 2, sizeof *program.ops);
    bool waits = false;
    /* of the copying, all but the last bucket's lies between the waits */
    for (size_t a = 0; a < rank->n_points && rank->drains; a++) {
        if (rank->sync_points[a].needs && waits)
            copied -= work_before(r, rank, a, room);
        waits |= rank->sync_points[a].needs;
    }
    for (size_t a = 0; a < rank->n_points; a++) {
        const struct sync_point *point = &rank->sync_points[a];
        if (rank->drains && point->needs && a > 0 && rank->sync_points[a - 1].needs)
            continue; /* copying */
        double up_to = work_up_to(r, rank, a, lost, pause_ns, sums, room), work = up_to - before;
        before = up_to;
        if (a == 0 && rank->drains && copied > 0)
            work = work > copied ? work - copied : 0;
        work = fmax(0, work - handled); /* by threads of the collective launched before */
        bool launches = !point->needs && point->tensor < model->n_tensors &&
                        --n_missing[coarse->bucket_of[point->tensor]] == 0;
        handled = launches ? model->net.compute.handling_ns.value : 0;
        struct model_op op = {.name = name_of(model, point),
                              .phase = DPRO_OP_BW,
                              .needs = MODEL_NONE,
                              .tensor = point->needs ? MODEL_NONE : point->tensor,
                              .when_ns = point->when_ns,
                              .work_ns = llround(work)};
        program.ops[program.n_ops++] = op;
        if (point->needs && !rank->drains) { /* the work goes before the wait */
            op.work_ns = 0;
            op.needs = waits_for_all(r, rank, a, model) ? MODEL_ALL : point->tensor;
            op.needs_before = point->before;
            op.lag_ns = lag_of(coarse, rank, point, model);
            program.ops[program.n_ops++] = op;
        }
    }
    if (rank->drains)
        program.ops[program.n_ops++] =
            (struct model_op){.name = "communicated gradients",
                              .phase = DPRO_OP_UPDATE,
                              .needs = MODEL_ALL,
                              .tensor = MODEL_NONE,
                              .when_ns = rank->sync_points[rank->n_points - 1].when_ns};
    /* what servers send back is taken before there are gradients, in the next iteration */
    if (model_scheme(model) == MODEL_ALL_REDUCE && has_executor(r->graph))
        wait_last(model, &program);
    return program;
}

/* Of the time in which a rank communicates, that in which bytes are on its links: only these slow
 * it down. */
static double share_on_links(const struct coarse *coarse, const struct dpro_model *model,
                             uint32_t rank, struct sync *costs)
{
    double wire_ns = 0, whole_ns = coarse->ranks[rank].communicates_ns;
    if (model_scheme(model) == MODEL_PUSH_PULL)
        return 1;
    for (uint32_t b = 0; b < coarse->n_buckets; b++) {
        uint64_t size_bytes = 0;
        for (uint32_t t = 0; t < model->n_tensors; t++)
            size_bytes += coarse->bucket_of[t] == b ? model->tensors[t].size_bytes : 0;
        wire_ns += size_bytes > 0 ? (double)sync_get(costs, size_bytes).wire_ns : 0;
    }
    for (uint32_t i = 0; i < coarse->ranks[rank].n_issues; i++) {
        uint32_t k = coarse->issues[coarse->ranks[rank].first_issue + i].communication;
        wire_ns += model_group_cost(model, &model->communications[k]).wire_ns;
    }
    wire_ns /= 1 - fmin(model->net.link.held_share.value, 0.9);
    return whole_ns > wire_ns ? wire_ns / whole_ns : 1;
}

/* What of a rank's work in each iteration is a pause: what it takes longer in slow ones than in its
 * usual ones. Sets, beside that, by how much the rest differs from its mean. */
static void find_pauses(const struct coarse_rank *rank, double lost, struct dpro_model *model,
                        struct model_rank *to)
{
    uint32_t n = model->n_samples, n_usual = 0;
    int64_t *work_ns = arena_array(&model->arena, n, sizeof *work_ns);
    to->sample_scale = arena_array(&model->arena, n, sizeof *to->sample_scale);
    if (n == 0)
        return;
    to->sample_pause_ns = arena_array(&model->arena, n, sizeof *to->sample_pause_ns);
    for (uint32_t s = 0; s < n; s++) {
        double work = 0;
        for (size_t a = 0; a < rank->n_points; a++)
            work += programs_alone(&rank->segments[s * rank->n_points + a], lost);
        work_ns[s] = llround(work);
    }
    int64_t most = stats_usual_most_i64(work_ns, n);
    double usual_ns = 0, mean = 0;
    for (uint32_t s = 0; s < n; s++)
        if (work_ns[s] <= most) {
            usual_ns += (double)work_ns[s];
            n_usual++;
        }
    for (uint32_t s = 0; s < n; s++) {
        if (work_ns[s] > most)
            to->sample_pause_ns[s] = (double)work_ns[s] - usual_ns / n_usual;
        to->sample_scale[s] = (double)work_ns[s] - to->sample_pause_ns[s];
        mean += to->sample_scale[s] / n;
    }
    for (uint32_t s = 0; s < n; s++)
        to->sample_scale[s] = mean > 0 ? to->sample_scale[s] / mean : 1;
}

void make_programs(const struct measured_replay *r, const struct coarse *coarse,
                   struct dpro_model *model)
{
    const double MORE = 0.05;
    const struct dpro_graph *g = r->graph;
    double lost_on_links = 1 - evaluator_rate(&model->net.link, model->net.link.byte_ns.value);
    model->n_ranks = model->n_programs = g->n_ranks;
    model->n_samples = g->sample_dur_ns ? g->n_samples : 0;
    model->ranks = arena_array(&model->arena, g->n_ranks, sizeof *model->ranks);
    model->programs = arena_array(&model->arena, g->n_ranks, sizeof *model->programs);
    double *room = arena_array(&model->arena, 2 * (size_t)r->n, sizeof *room);
    struct sync *costs = sync_create(&model->net);
    for (uint32_t i = 0; i < g->n_ranks; i++) {
        const struct coarse_rank *rank = &coarse->ranks[i];
        struct model_rank *to = &model->ranks[i];
        *to = (struct model_rank){.rank = g->ranks[i].rank, .program = i, .work_scale = 1};
        double share = share_on_links(coarse, model, i, costs), lost = lost_on_links * share;
        find_pauses(rank, lost, model, to);
        struct model_program program =
            make_program(r, coarse, rank, lost, to->sample_pause_ns, model, room);
        /* the same once more, had communication cost more */
        struct model_program other =
            make_program(r, coarse, rank, lost + MORE * share, to->sample_pause_ns, model, room);
        for (uint32_t k = 0; k < program.n_ops; k++)
            program.ops[k].beside_ns =
                llround((double)(program.ops[k].work_ns - other.ops[k].work_ns) / MORE);
        model->programs[i] = program;
    }
    sync_destroy(costs);
}

uint32_t program_op_of(const struct measured_replay *r, const struct model_program *program,
                       uint32_t op, bool backward)
{
    int64_t begin_ns = measured_mean_ns(r, op, true);
    uint32_t last = 0;
    for (uint32_t i = 0; i < program->n_ops; i++) {
        if (program->ops[i].tensor == MODEL_NONE)
            continue;
        if (program->ops[i].when_ns > begin_ns)
            return i;
        last = i;
    }
    return backward ? last : 0;
}
