/* Why one job is slower than another. v(S) is the mean replayed iteration of the slower one, with
 * what the causes of S make of it as it is there, and all else as in the faster one. */
#include "diagnose/between_jobs.h"
#include "diagnose/shapley.h"

#include "base/options.h"

#define LEAST_PART  0.02 /* of a cause: what has less is one part with others */
#define LEAST_WHERE 0.5  /* of the largest: a rank or an iteration with less isn't named */

static const struct {
    const char *key, *title;
} causes[N_BETWEEN] = {
    [BETWEEN_FORWARD] = {"forward", "ops of the forward pass"},
    [BETWEEN_BACKWARD] = {"backward", "ops of the backward pass"},
    [BETWEEN_UPDATE] = {"update", "ops of the optimizer"},
    [BETWEEN_INPUT] = {"input", "data loading"},
    [BETWEEN_COMMUNICATION] = {"communication", "communication"},
    [BETWEEN_LAUNCH] = {"launch", "other calls, such as those that launch the GPU's work"},
    [BETWEEN_GAPS] = {"gaps", "time between ops, such as Python's"},
    [BETWEEN_MORE] = {"new_ops", "ops that only B has"},
    [BETWEEN_LESS] = {"gone_ops", "ops that only A has"},
    [BETWEEN_RECOMPUTED] = {"recomputation", "a forward pass that only one of them computes again "
                                             "(activation checkpointing)"},
    [BETWEEN_WAITS] = {"waits", "what waits for what"},
};

struct dpro_against {
    struct arena arena;
    struct dpro_against_view view;
};

struct against {
    struct dpro_against *out;
    struct between_jobs between;
    struct unrolled unrolled;
    struct values values;
    bool is_b_slower;
};

/* ---- where a cause's time is ---- */

static int64_t signed_ns(const struct against *a, double ns)
{
    return llround(a->is_b_slower ? ns : -ns);
}

ORDER(by_part_size, struct dpro_cause_part,
      COMPARE(llabs(y->blame_ns), llabs(x->blame_ns)) ?: strcmp(x->what, y->what));
ORDER(by_cause_size, struct dpro_cause,
      COMPARE(llabs(y->blame_ns), llabs(x->blame_ns)) ?: strcmp(x->cause, y->cause));

/* Each part is what it takes on the way from one job to the other, all causes side by side; the
 * rest is what the cause takes more or less where others come first. */
static void tell_parts(struct against *a, uint32_t c, const double *of_part,
                       struct dpro_cause *cause)
{
    const struct cause_found *found = &a->between.found[c];
    struct arena *arena = &a->out->arena;
    struct dpro_cause_part *parts = arena_array(arena, found->parts.n + 1, sizeof *parts);
    int64_t rest = cause->blame_ns, whole = llabs(rest);
    for (size_t i = 0; i < found->parts.n; i++) {
        int64_t ns = signed_ns(a, of_part[i]);
        const char *name = found->parts.at[i];
        if (ns == 0 || fabs((double)ns) < LEAST_PART * fabs((double)cause->blame_ns))
            continue;
        parts[cause->n_parts++] =
            (struct dpro_cause_part){arena_copy_string(arena, name, strlen(name)), ns};
        rest -= ns;
    }
    if (cause->n_parts > 1)
        qsort(parts, cause->n_parts, sizeof *parts, by_part_size);
    if (rest != 0)
        parts[cause->n_parts++] = (struct dpro_cause_part){"(other)", rest};
    if (llabs(rest) > whole / 2) /* they don't tell where it is */
        cause->n_parts = 0;
    cause->parts = parts;
}

static void tell_cause(struct against *a, uint32_t c, const double *weights,
                       struct dpro_cause *cause)
{
    const struct unrolled *s = &a->unrolled;
    const struct dpro_graph *g = &a->between.graph;
    SCRATCH double *of_part = mem_array(a->between.found[c].parts.n + 1, sizeof *of_part);
    SCRATCH double *of_rank = mem_array(g->n_ranks + g->n_servers + (size_t)1, sizeof *of_rank);
    SCRATCH double *of_iteration = mem_array(s->n_iterations + (size_t)1, sizeof *of_iteration);
    EACH (const struct taken, taken, s->taken[c]) {
        double ns = (double)taken->path * weights[taken->cell];
        of_part[taken->part] += ns;
        of_iteration[s->iteration[taken->cell]] += ns;
        if (s->op[taken->cell] != DPRO_NO_OP)
            of_rank[g->rank[s->op[taken->cell]]] += ns;
    }
    tell_parts(a, c, of_part, cause);
    cause_where(cause, g, of_rank, of_iteration, s->n_iterations, LEAST_WHERE, &a->out->arena);
}

static void tell_blames(struct against *a)
{
    struct dpro_against_view *view = &a->out->view;
    struct dpro_cause *told = arena_array(&a->out->arena, N_BETWEEN, sizeof *told);
    struct blame blames[N_BETWEEN];
    shapley_find(&a->values, blames);
    SCRATCH double *weights = unrolled_weights(&a->unrolled, (struct cause_way){UINT32_MAX, 0});
    view->not_matched_ns = view->b_ns - view->a_ns;
    for (uint32_t c = 0; c < N_BETWEEN; c++) {
        int64_t ns = signed_ns(a, blames[c].ns);
        bool renamed = !a->is_b_slower && (c == BETWEEN_MORE || c == BETWEEN_LESS);
        uint32_t as = renamed ? BETWEEN_MORE + BETWEEN_LESS - c : c;
        if (a->unrolled.taken[c].n == 0)
            continue;
        told[view->n_causes] = (struct dpro_cause){
            .cause = causes[as].key,
            .title = causes[as].title,
            .blame_ns = ns,
            .uncertainty_ns =
                isnan(blames[c].error_ns) ? -1 : llround(HALF_OF_95_PCT * blames[c].error_ns),
            .alone_ns = signed_ns(a, blames[c].alone_ns),
        };
        tell_cause(a, c, weights, &told[view->n_causes++]);
        view->not_matched_ns -= ns;
    }
    if (view->n_causes > 0)
        qsort(told, view->n_causes, sizeof *told, by_cause_size);
    view->causes = told;
}

/* ---- the run ---- */

static void replay_chain(struct chain *chain, const struct dpro_graph *graph,
                         const struct dpro_replay_options *options)
{
    chain_init(chain, graph, options, NULL);
    chain->all_prev = true;
    chain_run(chain);
}

static void make_between(struct against *a, const struct job_match *match,
                         const struct dpro_replay_options *options)
{
    SCRATCH_ARENA struct arena work = {0};
    struct chain chain, faster;
    between_make(&a->between, match, &work);
    replay_chain(&faster, match->jobs[0], options);
    replay_chain(&chain, &a->between.graph, options);
    struct diagnosed d = {.g = &a->between.graph,
                          .n_iterations = chain.n_main,
                          .copies = chain.copies + chain.n_warm_up,
                          .ends_at_marks = true};
    between_find_times(&a->between, &d, &faster);
    unrolled_make(&a->unrolled, &chain, &d, a->between.found, N_BETWEEN);
    a->values = (struct values){.unrolled = &a->unrolled, .threads = options->threads};
    for (uint32_t c = 0; c < N_BETWEEN; c++)
        a->values.causes |= a->unrolled.taken[c].n > 0 ? 1U << c : 0;
    tell_blames(a);
    values_fini(&a->values);
    unrolled_fini(&a->unrolled);
    between_fini(&a->between);
    chain_fini(&chain);
    chain_fini(&faster);
}

/* Of the time of all ops but communication, that of those which the other job has, too. */
static double share_of(const struct job_match *match, int side)
{
    const struct dpro_graph *g = match->jobs[side];
    double all = 0, matched = 0;
    for (uint32_t op = 0; op < g->n_ops; op++) {
        double ns = g->phase[op] == DPRO_OP_COLLECTIVE ? 0 : (double)g->dur_ns[op];
        all += ns;
        matched += match->other[side][op] != DPRO_NO_OP ? ns : 0;
    }
    return all > 0 ? matched / all : 1;
}

static struct dpro_against *run_against(const struct dpro_graph *a, const struct dpro_graph *b,
                                        const struct dpro_diagnose_options *options)
{
    SCRATCH_ARENA struct arena work = {0};
    struct dpro_diagnose_options mine;
    OPTIONS_MUST_TAKE(&mine, options);
    struct dpro_replay_options replay = {.threads = mine.threads, .sink = mine.sink};
    struct dpro_against *out = mem_array(1, sizeof *out);
    struct dpro_against_view *view = &out->view;
    struct against against = {.out = out};
    if (a->n_ops == 0 || b->n_ops == 0)
        fail_with(DPRO_EEMPTY, "diagnose: the graph of %s has no ops", a->n_ops == 0 ? "A" : "B");
    view->a_ns = replay_predict(a, &replay, NULL);
    view->b_ns = replay_predict(b, &replay, NULL);
    against.is_b_slower = view->b_ns >= view->a_ns;
    struct job_match match =
        against.is_b_slower ? match_jobs(a, b, &work) : match_jobs(b, a, &work);
    view->n_matched = match.n_matched;
    view->a_matched = share_of(&match, against.is_b_slower ? 0 : 1);
    view->b_matched = share_of(&match, against.is_b_slower ? 1 : 0);
    make_between(&against, &match, &replay);
    return out;
}

int dpro_against_run(const struct dpro_graph *a, const struct dpro_graph *b,
                     const struct dpro_diagnose_options *options, struct dpro_against **against,
                     struct dpro_error *err)
{
    return OUTCOME(err, *against = run_against(a, b, options));
}

void dpro_against_destroy(struct dpro_against *against)
{
    if (!against)
        return;
    arena_fini(&against->arena);
    mem_free(against);
}

const struct dpro_against_view *dpro_against_view(const struct dpro_against *against)
{
    return &against->view;
}
