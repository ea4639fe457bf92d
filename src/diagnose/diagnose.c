/* Diagnoses a job: finds what each cause takes away, blames the causes for the iteration, and says
 * of each on which ranks, in which iterations and by which ops. */
#include "base/options.h"
#include "diagnose/causes.h"
#include "diagnose/shapley.h"
#include "replay/job_time.h"

enum { MOST_EVIDENCE = 10 };
#define LEAST_SHARE      0.02        /* of the iteration: what is less is small */
#define MOST_PART_VISITS 100000000.0 /* of cells, to share causes among their parts */

struct dpro_diagnosis {
    struct arena arena;
    struct dpro_diagnosis_view view;
};

/* ---- what causes claim ---- */

/* Cuts the row's pieces to what is left, and takes them. */
static void claim_pieces(struct diagnosed *d, struct cause_found *found)
{
    EACH (struct piece, piece, found->pieces) {
        int64_t *ns = arena_array(found->arena, d->n_iterations, sizeof *ns);
        for (uint32_t i = 0; i < d->n_iterations; i++) {
            int64_t *left = &d->left_ns[piece->gap][(size_t)i * d->g->n_ops + piece->op];
            ns[i] = piece->ns ? MIN(piece->ns[i], *left) : *left;
            *left -= ns[i];
        }
        piece->ns = ns;
    }
    if (found->parts.n == 0) /* of a cause that has none */
        array_push(&found->parts, "");
}

static void find_pieces(struct diagnosed *d, struct arena *arena, struct cause_found *found)
{
    size_t n = (size_t)d->n_iterations * d->g->n_ops;
    for (int gap = 0; gap < 2; gap++)
        d->left_ns[gap] = arena_array(arena, n + 1, sizeof *d->left_ns[gap]);
    for (uint32_t i = 0; i < d->n_iterations; i++)
        for (uint32_t op = 0; op < d->g->n_ops; op++) {
            size_t at = (size_t)i * d->g->n_ops + op;
            d->left_ns[0][at] = d->copies[i].dur_ns[op];
            d->left_ns[1][at] = d->copies[i].gap_ns ? d->copies[i].gap_ns[op] : 0;
        }
    for (uint32_t c = 0; c < n_cause_rows; c++) {
        found[c].arena = arena;
        cause_find(&cause_rows[c], d, &found[c]);
        claim_pieces(d, &found[c]);
    }
}

/* ---- numbers that add up ---- */

/* Shares a whole in proportion to weights, to the nanosecond. */
static void share_out(int64_t whole_ns, const double *weights, size_t n, int64_t *ns)
{
    double sum = 0, until = 0;
    int64_t shared_ns = 0;
    for (size_t i = 0; i < n; i++)
        sum += weights[i];
    for (size_t i = 0; i < n; i++) {
        until += weights[i];
        double share = sum > 0 ? until / sum : (double)(i + 1) / (double)n;
        ns[i] = llround(share * (double)whole_ns) - shared_ns;
        shared_ns += ns[i];
    }
}

/* ---- where a cause's time is ---- */

struct op_blame {
    uint32_t op, worst; /* the iteration in which it costs most */
    double ns, most_ns;
};

ORDER(by_blame, struct op_blame, DESCENDING(ns) ?: ASCENDING(op));
ORDER(by_part_blame, struct dpro_cause_part, DESCENDING(blame_ns) ?: strcmp(x->what, y->what));
ORDER(by_small_blame, struct dpro_abstained, DESCENDING(blame_ns) ?: strcmp(x->cause, y->cause));
ORDER(by_cause_blame, struct dpro_cause, DESCENDING(blame_ns) ?: strcmp(x->cause, y->cause));

struct located { /* of one cause */
    const struct diagnosed *d;
    const struct chain *chain;
    const struct unrolled *unrolled;
    const struct dpro_diagnose_options *options;
    struct values *values;
    double most_visits; /* of cells, to share a cause among its parts */
    struct arena *arena;
    double *of_part, *of_rank, *of_iteration;
    double *length_of_rank;  /* how long what the cause takes of it is */
    uint32_t *collective_of; /* by op: 1 + the collective whose transfer it is; 0: none */
    ARRAY(struct op_blame) ops;
};

/* A transfer is that of all members, whichever of them the next op waits for. */
static void add_to_ranks(struct located *l, uint32_t op, double ns)
{
    const struct dpro_graph *g = l->d->g;
    if (l->collective_of[op] == 0) {
        l->of_rank[g->rank[op]] += ns;
        return;
    }
    const struct graph_collective *c = &g->collectives[l->collective_of[op] - 1];
    for (uint32_t m = c->first_member; m < c->first_member + c->n_members; m++)
        l->of_rank[g->rank[g->members[m].transfer]] += ns / c->n_members;
}

/* Ranks that have as much of a cause as the one that is blamed most have it as well, though the
 * next op waited for another one by chance. */
static void name_ranks_alike(struct located *l)
{
    uint32_t most = 0, n = l->d->g->n_ranks + l->d->g->n_servers;
    for (uint32_t r = 1; r < n; r++)
        most = l->of_rank[r] > l->of_rank[most] ? r : most;
    for (uint32_t r = 0; r < n; r++)
        if (l->length_of_rank[r] > 0.9 * l->length_of_rank[most])
            l->of_rank[r] = MAX(l->of_rank[r], LEAST_NAMED * l->of_rank[most]);
}

/* By how often a cause's pieces are on the critical path: of its parts, and in all. */
static double path_of(const struct located *l, uint32_t cause, const double *weights, double *path)
{
    double all = 0;
    EACH (const struct taken, taken, l->unrolled->taken[cause]) {
        double ns = (double)MAX(taken->path, 0) * weights[taken->cell]; /* not what others get */
        path[taken->part] += ns;
        all += ns;
    }
    return all;
}

/* On which only this cause shrinks, and those beside it are gone. */
static struct cause_way way_of(uint32_t cause)
{
    uint32_t gone = 0;
    for (uint32_t c = 0; c < n_cause_rows; c++)
        gone |= (uint32_t)(cause_rows[c].tier <= cause_rows[cause].tier) << c;
    return (struct cause_way){.shrinking = 1U << cause, .gone = gone};
}

/* Shares a cause among its parts, and each part's among its pieces of time: by how often they are
 * on the critical path; where none of them is, by their length. Where most of its blame is for what
 * it takes once the causes beside it are gone, it is the path then that tells. */
static void locate_time(struct located *l, uint32_t cause, uint32_t n_parts, double blame_ns,
                        const double *weights)
{
    const struct unrolled *s = l->unrolled;
    SCRATCH struct map numbers = {0};
    SCRATCH double *path = mem_array(n_parts, sizeof *path);
    SCRATCH double *length = mem_array(n_parts, sizeof *length);
    SCRATCH double *alone = NULL;
    if (path_of(l, cause, weights, path) < blame_ns / 2) {
        weights = alone = unrolled_weights(s, way_of(cause));
        memset(path, 0, n_parts * sizeof *path);
        path_of(l, cause, weights, path);
    }
    EACH (const struct taken, taken, s->taken[cause])
        length[taken->part] += (double)MAX(taken->path, 0);
    memcpy(l->of_part, path, n_parts * sizeof *path);
    owen_find(l->values, cause, n_parts, l->most_visits, l->of_part);
    double all = 0;
    for (uint32_t p = 0; p < n_parts; p++)
        all += l->of_part[p];
    if (all <= 0) /* critical only where other causes are gone */
        memcpy(l->of_part, length, n_parts * sizeof *length);
    EACH (const struct taken, taken, s->taken[cause]) {
        uint32_t op = s->op[taken->cell], p = taken->part, iteration = s->iteration[taken->cell];
        double share = path[p] > 0 ? weights[taken->cell] / path[p] : 1 / MAX(length[p], 1);
        double ns = l->of_part[p] * share * (double)taken->path;
        l->of_iteration[iteration] += MAX(ns, 0);
        if (op != DPRO_NO_OP && taken->path > 0)
            l->length_of_rank[l->d->g->rank[op]] += (double)taken->path;
        if (op == DPRO_NO_OP || taken->path <= 0 || ns <= 0)
            continue;
        add_to_ranks(l, op, ns);
        size_t number = (size_t)map_number(&numbers, map_key(op));
        if (number == l->ops.n)
            array_add(&l->ops, .op = op);
        struct op_blame *of = &l->ops.at[number];
        of->ns += ns;
        if (ns > of->most_ns) {
            of->most_ns = ns;
            of->worst = iteration;
        }
    }
}

/* When an iteration began, on the replay's axis. */
static int64_t begin_of(const struct chain *c, uint32_t iteration)
{
    int64_t latest = INT64_MIN;
    if (c->g->single_iteration)
        return c->first_ns;
    for (uint32_t r = 0; r < c->g->n_ranks; r++)
        latest =
            MAX(latest, c->boundary_ns[(size_t)(c->n_warm_up + iteration - 1) * c->g->n_ranks + r]);
    return latest;
}

static void tell_evidence(struct located *l, struct dpro_cause *cause)
{
    const struct dpro_graph *g = l->d->g;
    double all = 0;
    for (uint32_t i = 0; i < l->d->n_iterations; i++)
        all += l->of_iteration[i];
    if (l->ops.n > 0)
        qsort(l->ops.at, l->ops.n, sizeof *l->ops.at, by_blame);
    cause->n_evidence = (uint32_t)MIN(l->ops.n, MOST_EVIDENCE);
    struct dpro_evidence *evidence = arena_array(l->arena, MOST_EVIDENCE, sizeof *evidence);
    for (uint32_t i = 0; i < cause->n_evidence; i++) {
        const struct op_blame *of = &l->ops.at[i];
        const struct replay_copy *copy = &l->d->copies[of->worst];
        evidence[i] = (struct dpro_evidence){
            .op = of->op,
            .rank = g->ranks[g->rank[of->op]].rank,
            .iteration = g->sample_dur_ns && g->sample_number ? g->sample_number[of->worst] : -1,
            .start_ns = copy->end_ns[of->op] - copy->dur_ns[of->op] - begin_of(l->chain, of->worst),
            .ns = llround(of->ns * (double)cause->blame_ns / all)};
    }
    cause->evidence = evidence;
}

static void tell_parts(struct located *l, const struct cause_found *found, struct dpro_cause *cause)
{
    size_t n = found->parts.n;
    int64_t *ns = arena_array(l->arena, n + 1, sizeof *ns);
    struct dpro_cause_part *parts = arena_array(l->arena, n + 1, sizeof *parts);
    cause->parts = parts;
    share_out(cause->blame_ns, l->of_part, n, ns);
    for (size_t i = 0; i < n; i++)
        if (ns[i] != 0 && found->parts.at[i][0])
            parts[cause->n_parts++] = (struct dpro_cause_part){
                arena_copy_string(l->arena, found->parts.at[i], strlen(found->parts.at[i])), ns[i]};
    if (cause->n_parts > 0)
        qsort(parts, cause->n_parts, sizeof *parts, by_part_blame);
}

/* ---- the diagnosis ---- */

static void tell_causes(struct dpro_diagnosis *diagnosis, struct located *l,
                        const struct cause_found *found, const struct blame *blames,
                        const double *weights)
{
    struct dpro_diagnosis_view *view = &diagnosis->view;
    uint32_t n = n_cause_rows, n_large = 0;
    struct dpro_cause *causes = arena_array(&diagnosis->arena, n, sizeof *causes);
    struct dpro_abstained *abstained = arena_array(&diagnosis->arena, n, sizeof *abstained);
    double shares[32];
    int64_t ns[32];
    uint64_t told = 0; /* bits: places of the causes that are */
    view->causes = causes;
    view->abstained = abstained;
    for (uint32_t c = 0; c < n; c++)
        shares[c] = MAX(blames[c].ns, 0);
    share_out(view->explained_ns - view->ideal_ns, shares, n, ns);
    for (uint32_t c = 0; c < n; c++)
        n_large += (double)ns[c] >= LEAST_SHARE * (double)view->explained_ns;
    l->most_visits = MOST_PART_VISITS / MAX(1, n_large);
    for (uint32_t c = 0; c < n; c++) {
        const char *title = found[c].title ?: cause_rows[c].title;
        double half = HALF_OF_95_PCT * hypot(blames[c].error_ns, found[c].doubt * (double)ns[c]);
        struct dpro_cause cause = {.cause = cause_rows[c].key,
                                   .title = arena_copy_string(l->arena, title, strlen(title)),
                                   .blame_ns = ns[c],
                                   .uncertainty_ns = view->n_iterations > 1 ? llround(half) : -1,
                                   .alone_ns = llround(blames[c].alone_ns),
                                   .in_order_ns = llround(blames[c].in_order_ns),
                                   .order = blames[c].order};
        /* what another cause is blamed for may be won by this one, too; where it is in some
         * iterations only, as of a pause that this one lets be felt, it is the other's */
        int64_t most_ns = MAX(ns[c], MIN(cause.alone_ns, llround(blames[c].usual_ns)));
        bool small =
            (double)most_ns < LEAST_SHARE * (double)view->explained_ns ||
            (ns[c] < cause.uncertainty_ns && !(blames[c].seldom && cause_rows[c].tier == 0)) ||
            most_ns == 0;
        if (small && (ns[c] != 0 || found[c].needs)) {
            const char *needs = found[c].needs;
            view->small_ns += ns[c];
            needs = needs ? arena_copy_string(l->arena, needs, strlen(needs)) : NULL;
            abstained[view->n_abstained++] =
                (struct dpro_abstained){cause.cause, cause.title, needs, ns[c]};
        }
        if (small)
            continue;
        size_t n_ranks = l->d->g->n_ranks + l->d->g->n_servers;
        memset(l->of_rank, 0, n_ranks * sizeof *l->of_rank);
        memset(l->length_of_rank, 0, n_ranks * sizeof *l->length_of_rank);
        memset(l->of_iteration, 0, l->d->n_iterations * sizeof *l->of_iteration);
        l->ops.n = 0;
        locate_time(l, c, (uint32_t)found[c].parts.n, blames[c].ns, weights);
        tell_parts(l, &found[c], &cause);
        name_ranks_alike(l);
        cause_where(&cause, l->d->g, l->of_rank, l->of_iteration, l->d->n_iterations, LEAST_NAMED,
                    l->arena);
        tell_evidence(l, &cause);
        cause_advise(l->d, &diagnosis->arena, &cause);
        command_find(&cause, l->d, l->options, l->arena);
        causes[view->n_causes++] = cause;
        told |= UINT64_C(1) << cause.order;
    }
    for (uint32_t c = 0; c < view->n_causes; c++)
        causes[c].order =
            (uint32_t)__builtin_popcountll(told & ((UINT64_C(2) << causes[c].order) - 1));
    qsort(causes, view->n_causes, sizeof *causes, by_cause_blame);
    qsort(abstained, view->n_abstained, sizeof *abstained, by_small_blame);
}

static void diagnose_replayed(struct dpro_diagnosis *diagnosis, const struct chain *chain,
                              struct diagnosed *d, const struct dpro_diagnose_options *options,
                              struct arena *work)
{
    struct cause_found *found = arena_array(work, n_cause_rows, sizeof *found);
    struct blame *blames = arena_array(work, n_cause_rows, sizeof *blames);
    struct unrolled unrolled;
    struct values values = {.unrolled = &unrolled, .threads = options->threads};
    size_t most_parts = 0;
    find_pieces(d, work, found);
    unrolled_make(&unrolled, chain, d, found, n_cause_rows);
    for (uint32_t c = 0; c < n_cause_rows; c++) {
        values.causes |= unrolled.taken[c].n > 0 ? 1U << c : 0;
        most_parts = MAX(most_parts, found[c].parts.n);
    }
    uint8_t tiers[32];
    for (uint32_t c = 0; c < n_cause_rows; c++)
        tiers[c] = cause_rows[c].tier;
    values.tiers = tiers;
    diagnosis->view.is_sampled = shapley_find(&values, blames);
    diagnosis->view.ideal_ns = MAX(llround(values_mean(&values, WHOLE(0))), 0);
    diagnosis->view.explained_ns = MAX(d->iteration_ns, diagnosis->view.ideal_ns);
    struct located l = {.d = d, .chain = chain, .unrolled = &unrolled, .arena = &diagnosis->arena};
    l.options = options;
    l.values = &values;
    l.most_visits = MOST_PART_VISITS / MAX(1, __builtin_popcount(values.causes));
    l.of_part = arena_array(work, most_parts + 1, sizeof *l.of_part);
    l.of_rank = arena_array(work, (size_t)d->g->n_ranks + d->g->n_servers + 1, sizeof *l.of_rank);
    l.length_of_rank =
        arena_array(work, (size_t)d->g->n_ranks + d->g->n_servers + 1, sizeof *l.length_of_rank);
    l.collective_of = arena_array(work, d->g->n_ops + (size_t)1, sizeof *l.collective_of);
    for (uint32_t c = 0; c < d->g->n_collectives; c++)
        for (uint32_t m = 0; m < d->g->collectives[c].n_members; m++)
            l.collective_of[d->g->members[d->g->collectives[c].first_member + m].transfer] = c + 1;
    l.of_iteration = arena_array(work, d->n_iterations + (size_t)1, sizeof *l.of_iteration);
    double *weights = unrolled_weights(&unrolled, (struct cause_way){UINT32_MAX, 0});
    tell_causes(diagnosis, &l, found, blames, weights);
    diagnosis->view.n_replays = values.sets.n;
    for (uint32_t c = 0; c < n_cause_rows; c++)
        FREE_ALL(&found[c].pieces, &found[c].cuts, &found[c].parts, &found[c].part_numbers);
    FREE_ALL(&weights, &l.ops);
    values_fini(&values);
    unrolled_fini(&unrolled);
}

static struct dpro_diagnosis *run_diagnosis(const struct dpro_graph *graph,
                                            const struct dpro_diagnose_options *asked)
{
    struct dpro_diagnose_options mine, *options = &mine;
    struct chain chain;
    SCRATCH_ARENA struct arena work = {0};
    OPTIONS_MUST_TAKE(&mine, asked);
    struct dpro_replay_options replay = {.threads = mine.threads, .sink = mine.sink};
    if (graph->n_ops == 0)
        fail_with(DPRO_EEMPTY, "diagnose: the graph has no ops");
    chain_init(&chain, graph, &replay, NULL);
    chain.all_prev = true;
    chain_run(&chain);
    int64_t *iterations_ns = arena_array(&work, chain.n_main, sizeof *iterations_ns);
    chain_periods(&chain, iterations_ns);
    struct diagnosed d = {.g = graph,
                          .n_iterations = chain.n_main,
                          .copies = chain.copies + chain.n_warm_up,
                          .iteration_ns = chain_predicted_ns(&chain, iterations_ns),
                          .works = works_of(graph, &work),
                          .collective_of = collectives_of(graph, &work),
                          .profiler_ns = options->profiler_ns,
                          .varies = arena_array(&work, graph->n_ranks + (size_t)1, sizeof(bool))};
    pipeline_find(graph, &work, &d.pipeline);
    if (options->model)
        d.link_cpu_ns = dpro_model_link(options->model).interference_ns;
    struct dpro_diagnosis *diagnosis = mem_array(1, sizeof *diagnosis);
    diagnosis->view.n_iterations = graph->sample_dur_ns ? chain.n_main : 1;
    diagnose_replayed(diagnosis, &chain, &d, options, &work);
    chain_fini(&chain);
    return diagnosis;
}

int dpro_diagnose_run(const struct dpro_graph *graph, const struct dpro_diagnose_options *options,
                      struct dpro_diagnosis **diagnosis, struct dpro_error *err)
{
    return OUTCOME(err, *diagnosis = run_diagnosis(graph, options));
}

void dpro_diagnosis_destroy(struct dpro_diagnosis *diagnosis)
{
    if (!diagnosis)
        return;
    arena_fini(&diagnosis->arena);
    mem_free(diagnosis);
}

const struct dpro_diagnosis_view *dpro_diagnosis_view(const struct dpro_diagnosis *diagnosis)
{
    return &diagnosis->view;
}

const char *dpro_cause_key(size_t index)
{
    return index < n_cause_rows ? cause_rows[index].key : NULL;
}
