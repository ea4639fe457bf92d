/* Asks what-ifs about the causes of a diagnosis. */
#include "cost/program/cost.h"
#include "diagnose/causes.h"

#include <dpro/whatif.h>

#define LEAST_WON   0.02 /* of the iteration: a what-if that wins less is no answer */
#define LEAST_APART 0.05 /* of what ranks compute */

enum { MOST_SPEEDS = 8 };

struct remedy_asked {
    const struct diagnosed *d;
    const struct dpro_cause *cause;
    const bool *named; /* by rank: the cause is on it */
    struct dpro_changes changes;
    struct dpro_compute_change speeds[MOST_SPEEDS];
    char option[256]; /* of `dpro whatif`; "": it makes no sense here */
    char delay[512];  /* of `dpro replay --delay`, after spaces more; "": it knows no such change */
    const char *doubt; /* said behind the next step; NULL: nothing */
};

/* By [rank * N_PASSES + kind], what ranks compute, on GPUs or, where none does, on CPUs. */
enum { N_PASSES = DPRO_OP_UPDATE + 1 };
static void sum_computing(const struct dpro_graph *g, int64_t *ns)
{
    bool on_gpu = job_has_gpu(g);
    for (uint32_t op = 0; op < g->n_ops; op++)
        if (g->kind[op] < N_PASSES && on_gpu == ((g->flags[op] & GRAPH_OP_GPU) != 0))
            ns[(size_t)g->rank[op] * N_PASSES + g->kind[op]] += g->dur_ns[op];
}

static int64_t computing_of(const int64_t *ns, uint32_t rank, uint32_t kind)
{
    const int64_t *of = ns + (size_t)rank * N_PASSES;
    return kind < N_PASSES ? of[kind] : of[DPRO_OP_FW] + of[DPRO_OP_BW] + of[DPRO_OP_UPDATE];
}

/* Of what a rank computes of a kind (N_PASSES: of all), that share its peers usually take: those of
 * its stage, where there are, that are not named. */
static double usual_share(const struct remedy_asked *a, const int64_t *ns, uint32_t rank,
                          uint32_t kind)
{
    const struct pipeline *p = &a->d->pipeline;
    uint32_t n_peers = 0, n = a->d->g->n_ranks;
    SCRATCH int64_t *peers = mem_array(n + (size_t)1, sizeof *peers);
    for (uint32_t r = 0; r < n; r++)
        if (!a->named[r] &&
            (p->dimension == DPRO_NO_DIMENSION || p->stage_of[r] == p->stage_of[rank]))
            peers[n_peers++] = computing_of(ns, r, kind);
    int64_t own_ns = computing_of(ns, rank, kind), usual_ns = lower_median(peers, n_peers);
    return usual_ns > 0 && usual_ns < own_ns ? (double)usual_ns / (double)own_ns : 1;
}

/* Behind those that are there; what has no room is left out. */
static void add_text(char *texts, size_t size, const char *format, ...)
{
    size_t len = strlen(texts);
    va_list args;
    va_start(args, format);
    int n = snprintf(texts + len, size - len, "%s", len > 0 ? " " : "");
    n += vsnprintf(texts + len + n, size - len - (size_t)n, format, args);
    va_end(args);
    if (len + (size_t)n >= size)
        texts[len] = '\0';
}

static const char *ranks_text(int first, int last, struct arena *arena)
{
    return first == last ? arena_format(arena, "%d", first)
                         : arena_format(arena, "%d-%d", first, last);
}

/* The ranks that the cause is on compute as fast as their peers; ranks in a row that are alike in
 * one. Where passes and updates are not slow alike, each by its own. */
static void ask_speed(struct remedy_asked *a)
{
    SCRATCH_ARENA struct arena arena = {0};
    static const char *const kinds[] = {"FW", "BW", "UPDATE", "COMPUTE"};
    const struct dpro_graph *g = a->d->g;
    SCRATCH int64_t *ns = mem_array(((size_t)g->n_ranks + g->n_servers + 1) * N_PASSES, sizeof *ns);
    sum_computing(g, ns);
    for (uint32_t r = 0, end; r < g->n_ranks; r = end) {
        double share = usual_share(a, ns, r, N_PASSES);
        int64_t all_ns = computing_of(ns, r, N_PASSES);
        int first = g->ranks[r].rank;
        bool alike = true;
        end = r + 1;
        if (!a->named[r] || share == 1)
            continue;
        for (uint32_t kind = 0; kind < N_PASSES; kind++)
            alike &= (double)computing_of(ns, r, kind) < LEAST_APART * (double)all_ns ||
                     fabs(usual_share(a, ns, r, kind) - share) < LEAST_APART;
        if (usual_share(a, ns, r, DPRO_OP_FW) < 1 - LEAST_APART &&
            usual_share(a, ns, r, DPRO_OP_BW) < 1 - LEAST_APART &&
            usual_share(a, ns, r, DPRO_OP_UPDATE) >= 1 - LEAST_APART &&
            computing_of(ns, r, DPRO_OP_UPDATE) > 0 && flops_of_rank(g, r) == 0)
            a->doubt = "Its updates are as fast as those of its peers, so that it may have more "
                       "work in its passes (tokens, longer samples): shapes tell "
                       "(record_shapes=True).";
        while (alike && end < g->n_ranks && a->named[end] &&
               g->ranks[end].rank == first + (int)(end - r) &&
               fabs(usual_share(a, ns, end, N_PASSES) - share) < LEAST_APART)
            end++;
        const char *ranks = ranks_text(first, g->ranks[end - 1].rank, &arena);
        for (uint32_t kind = alike ? N_PASSES : 0; kind < N_PASSES + (uint32_t)alike; kind++)
            if (alike || usual_share(a, ns, r, kind) < 1 - LEAST_APART)
                add_text(a->delay, sizeof a->delay, "%s@%s=%.4g", kinds[kind], ranks,
                         usual_share(a, ns, r, kind));
        if (a->changes.n_compute == MOST_SPEEDS)
            continue;
        struct dpro_compute_change *speed = &a->speeds[a->changes.n_compute++];
        *speed = (struct dpro_compute_change){.first_rank = first,
                                              .last_rank = g->ranks[end - 1].rank,
                                              .speed = round(1000.0 / share) / 1000};
        add_text(a->option, sizeof a->option, "--compute %gx@%s", speed->speed, ranks);
    }
    a->changes.compute = a->speeds;
}

static void ask_micro_batches(struct remedy_asked *a)
{
    const struct pipeline *pipeline = &a->d->pipeline;
    if (pipeline->dimension == DPRO_NO_DIMENSION || pipeline->n_micro_batches == 0)
        return;
    a->changes.pipeline_micro_batches = 2 * pipeline->n_micro_batches;
    snprintf(a->option, sizeof a->option, "--microbatches %u", 2 * pipeline->n_micro_batches);
}

/* Each stage computes as long as the mean one; ranks of a stage that follow each other in one. */
static void ask_even_stages(struct remedy_asked *a)
{
    SCRATCH_ARENA struct arena arena = {0};
    const struct dpro_graph *g = a->d->g;
    const uint32_t *stage_of = a->d->pipeline.stage_of;
    double *of_stage, mean = stages_compute(a->d, true, &arena, &of_stage);
    for (uint32_t r = 0, end; r < g->n_ranks; r = end) {
        end = RUN_END(k, r, (uint32_t)g->n_ranks, stage_of[k] == stage_of[r]);
        if (stage_of[r] != UINT32_MAX && of_stage[stage_of[r]] > 0)
            add_text(a->delay, sizeof a->delay, "COMPUTE@%s=%.4g",
                     ranks_text(g->ranks[r].rank, g->ranks[end - 1].rank, &arena),
                     mean / of_stage[stage_of[r]]);
    }
}

/* What a rank's transfers of a name usually take; 0: it has none. */
static double transfer_ns(const struct diagnosed *d, uint32_t rank, uint32_t name)
{
    const struct graph_rank *of = &d->g->ranks[rank];
    double ns = 0, n = 0;
    for (uint32_t op = of->first_op; op < of->first_op + of->n_ops; op++)
        if (d->g->name[op] == name && is_timed(d, op)) {
            ns += (double)d->g->dur_ns[op];
            n++;
        }
    return n > 0 ? ns / n : 0;
}

/* Links are twice as fast; of a timeline of stages, which lists who sends and receives, those that
 * the cause is on as fast as others. */
static void ask_link(struct remedy_asked *a)
{
    SCRATCH_ARENA struct arena arena = {0};
    const struct dpro_graph *g = a->d->g;
    SCRATCH double *others = mem_array(g->n_ranks + (size_t)1, sizeof *others);
    snprintf(a->option, sizeof a->option, "--bandwidth 2x");
    a->changes.bandwidth_ratio = 2;
    SCRATCH bool *has = mem_array(g->names.n + (size_t)1, sizeof *has);
    for (uint32_t op = 0; op < g->n_ops && g->of_stages; op++)
        has[g->name[op]] |= is_timed(a->d, op) && a->named[g->rank[op]];
    for (uint32_t name = 0; name < g->names.n; name++) {
        uint32_t n_others = 0;
        if (!has[name])
            continue;
        for (uint32_t r = 0; r < g->n_ranks; r++)
            if (!a->named[r] && transfer_ns(a->d, r, name) > 0)
                others[n_others++] = transfer_ns(a->d, r, name);
        double usual = n_others > 0 ? select_double(others, n_others, (n_others - 1) / 2) : 0;
        for (uint32_t r = 0, end; r < g->n_ranks; r = end) {
            double own = transfer_ns(a->d, r, name);
            end = RUN_END(k, r, (uint32_t)g->n_ranks,
                          a->named[r] && a->named[k] && transfer_ns(a->d, k, name) > 1.2 * usual);
            if (a->named[r] && usual > 0 && own > 1.2 * usual)
                add_text(a->delay, sizeof a->delay, "%s@%s=%.4g", strtab_get(&g->names, name),
                         ranks_text(g->ranks[r].rank, g->ranks[end - 1].rank, &arena), usual / own);
        }
    }
}

/* Workers of a timeline of stages do without gaps: all of them, or those that the cause is on. */
static void ask_gaps(struct remedy_asked *a)
{
    const struct dpro_graph *g = a->d->g;
    if (g->of_stages && a->cause->n_ranks >= g->n_ranks)
        snprintf(a->delay, sizeof a->delay, "GAPS=0");
    for (uint32_t r = 0; r < g->n_ranks && g->of_stages && a->cause->n_ranks < g->n_ranks; r++)
        if (a->named[r])
            add_text(a->delay, sizeof a->delay, "GAPS@%d=0", g->ranks[r].rank);
}

static const struct remedy {
    const char *cause, *option;
    struct dpro_changes changes;
    const char *delay; /* where no model answers; NULL: none, or what `ask` says */
    const char *lever; /* said behind the next step if this one surely wins; NULL: nothing */
    void (*ask)(struct remedy_asked *asked); /* NULL: the option says all */
} remedies[] = {
    {"slow_rank", .ask = ask_speed},
    {"slow_link", .changes = {.bandwidth_ratio = 2}, .ask = ask_link},
    {"uneven_stages", .ask = ask_even_stages},
    {"garbage_collection", .delay = "gc=0"},
    {"input", .delay = "INPUT=0"},
    {"python_gaps", .ask = ask_gaps},
    {"communication",
     "--bandwidth 2x",
     {.bandwidth_ratio = 2},
     .delay = "COMM=0.5",
     .lever = "Its bytes count most: faster links, or compression."},
    {"communication",
     "--latency 0.5x",
     {.latency_ratio = 0.5},
     .lever = "Its messages count more than their bytes: fewer, larger ones."},
    {"small_messages", "--bucket-cap-mb 100", .changes = {.bucket_cap_bytes = UINT64_C(100) << 20}},
    {"launch", "--compile all", .changes = {.compile = "all"}},
    {"recomputation", "--recompute none", .changes = {.recompute = "none"}},
    {"pipeline_bubbles", .ask = ask_micro_batches},
    {"pipeline_bubbles", "--schedule zero-bubble",
     .changes = {.schedule = DPRO_SCHEDULE_ZERO_BUBBLE}},
};

/* Of some of the ranks only, what links take may be waiting for the others. */
static void ask_remedy(struct remedy_asked *a, const struct remedy *remedy)
{
    bool of_links = remedy->changes.bandwidth_ratio > 0 || remedy->changes.latency_ratio > 0;
    a->changes = remedy->changes;
    snprintf(a->delay, sizeof a->delay, "%s", remedy->delay ?: "");
    if (remedy->ask)
        remedy->ask(a);
    else if (remedy->option)
        snprintf(a->option, sizeof a->option, "%s", remedy->option);
    if (of_links && a->d->g->n_ranks != a->d->g->world_size)
        a->option[0] = a->delay[0] = '\0';
}

static const struct dpro_estimate none = {0, 0}, not_asked = {NAN, 0};

/* Of what no model answers, such as of a timeline of stages. It is as unsure as the cause's blame,
 * which is of the same iterations. */
static struct dpro_estimate replay_answer_of(const struct remedy_asked *a, int threads)
{
    int64_t before_ns = a->d->iteration_ns;
    char text[sizeof a->delay], *rest = strcpy(text, a->delay);
    const char *delays[sizeof text / 2];
    struct dpro_replay_options options = {
        .size = sizeof options, .delays = delays, .threads = threads};
    struct dpro_error refused;
    int64_t after_ns;
    while (rest)
        delays[options.n_delays++] = strsep(&rest, " ");
    int rc = a->delay[0] ? dpro_replay_predict(a->d->g, &options, &after_ns, &refused) : -1;
    memory_check();
    if (rc < 0)
        return not_asked;
    double gain_ns = (double)(before_ns - after_ns);
    double std = (double)MAX(a->cause->uncertainty_ns, 0) / HALF_OF_95_PCT;
    std *= gain_ns / (double)MAX(a->cause->blame_ns, 1);
    return gain_ns >= LEAST_WON * (double)before_ns ? (struct dpro_estimate){gain_ns, std} : none;
}

/* What it wins, and its standard error; 0: too little; NAN: the job can't be asked. */
static struct dpro_estimate answer_of(struct remedy_asked *a, const struct dpro_model *model)
{
    struct dpro_whatif *whatif;
    struct dpro_error refused;
    a->changes.size = sizeof a->changes;
    if (!a->option[0])
        return not_asked;
    int rc = dpro_whatif_run(a->d->g, model, &a->changes, &whatif, &refused);
    memory_check();
    if (rc < 0)
        return not_asked;
    const struct dpro_whatif_answer *answer = dpro_whatif_answer(whatif);
    double before_ns = (double)answer->baseline.iteration_ns;
    double after_ns = (double)answer->predicted.iteration_ns;
    struct dpro_estimate speedup = answer->speedup, gain = {before_ns - after_ns, 0};
    bool timed = !answer->untimed, told = timed && gain.value >= LEAST_WON * before_ns;
    gain.std = told ? speedup.std * after_ns / speedup.value : 0;
    dpro_whatif_destroy(whatif);
    return told ? gain : timed ? none : not_asked;
}

/* As a shell takes it. */
static const char *quoted_path(const char *path, struct arena *arena)
{
    bool plain = path[strspn(path, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
                                   "_./+:=@%,-")] == '\0';
    return plain ? path : strchr(path, '\'') ? "TRACE" : arena_format(arena, "'%s'", path);
}

void command_find(struct dpro_cause *cause, const struct diagnosed *d,
                  const struct dpro_diagnose_options *options, struct arena *arena)
{
    const struct dpro_model *model = options->model;
    const char *lever = NULL, *trace = quoted_path(options->trace ?: "TRACE", arena);
    uint32_t n_asked = 0;
    SCRATCH bool *named = mem_array(d->g->n_ranks + (size_t)1, sizeof *named);
    for (uint32_t r = 0; r < d->g->n_ranks; r++)
        for (uint32_t i = 0; i < cause->n_ranks; i++)
            named[r] |= d->g->ranks[r].rank == cause->ranks[i];
    for (size_t i = 0; i < sizeof remedies / sizeof *remedies; i++) {
        struct remedy_asked asked = {.d = d, .cause = cause, .named = named};
        if (strcmp(remedies[i].cause, cause->cause) != 0)
            continue;
        ask_remedy(&asked, &remedies[i]);
        struct dpro_estimate gain = model ? answer_of(&asked, model) : not_asked;
        bool replays = isnan(gain.value);
        gain = replays ? replay_answer_of(&asked, options->threads) : gain;
        double sure_ns = gain.value - HALF_OF_95_PCT * gain.std; /* the surest one */
        double known_ns = (double)(cause->command_gain_ns - cause->command_half_ns);
        n_asked += !isnan(gain.value);
        if (!(gain.value > 0) || (cause->command && sure_ns <= known_ns))
            continue;
        cause->command_gain_ns = llround(gain.value);
        cause->command_half_ns =
            replays && cause->uncertainty_ns < 0 ? -1 : llround(HALF_OF_95_PCT * gain.std);
        lever = asked.doubt ?: sure_ns > 0 ? remedies[i].lever : NULL;
        cause->command = replays ? arena_format(arena, "dpro replay %s", trace)
                                 : arena_format(arena, "dpro whatif %s %s", trace, asked.option);
        for (char *rest = asked.delay; replays && rest;)
            cause->command = arena_format(arena, "%s --delay %s", cause->command,
                                          quoted_path(strsep(&rest, " "), arena));
    }
    if (!model)
        return;
    /* Of computing that loses time beside communication, what no recording has shown is in it. */
    struct dpro_estimate lost_ns = dpro_model_link(model).interference_ns;
    if (n_asked == 2 && cause->command_gain_ns > cause->alone_ns &&
        lost_ns.value <= HALF_OF_95_PCT * lost_ns.std) {
        cause->command_half_ns = MAX(cause->command_half_ns, cause->command_gain_ns);
        lever = "The what-if below also includes time that computing may lose beside "
                "communication, which this recording does not show.";
    }
    if (!cause->command && strcmp(cause->cause, "communication") == 0 && n_asked == 2)
        lever = "Neither links of twice the rate nor half the latency win 2 %: look at when ranks "
                "arrive (who waits for whom).";
    if (lever && cause->next_step)
        cause->next_step = arena_format(arena, "%s %s", cause->next_step, lever);
}
