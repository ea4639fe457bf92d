/* Asks what-ifs about the causes of a diagnosis. */
#include "diagnose/causes.h"

#include <dpro/whatif.h>

#define LEAST_WON 0.02 /* of the iteration: a what-if that wins less is no answer */

struct remedy_asked {
    const struct diagnosed *d;
    const struct dpro_cause *cause;
    struct dpro_changes changes;
    struct dpro_compute_change speed;
    char option[96]; /* of `dpro whatif`; "": it makes no sense here */
    char delay[512]; /* of `dpro replay --delay`, after spaces more; "": it knows no such change */
};

/* What ranks compute, on GPUs or on CPUs. */
static void sum_computing(const struct dpro_graph *g, bool on_gpu, int64_t *ns)
{
    for (uint32_t op = 0; op < g->n_ops; op++)
        if (g->kind[op] <= DPRO_OP_UPDATE && on_gpu == ((g->flags[op] & GRAPH_OP_GPU) != 0))
            ns[g->rank[op]] += g->dur_ns[op];
}

/* The rank that the cause is on most computes as fast as its peers. */
static void ask_speed(struct remedy_asked *a)
{
    const struct dpro_graph *g = a->d->g;
    const struct pipeline *pipeline = &a->d->pipeline;
    SCRATCH int64_t *ns = mem_array((size_t)g->n_ranks + g->n_servers + 1, sizeof *ns);
    SCRATCH int64_t *peers = mem_array(g->n_ranks + (size_t)1, sizeof *peers);
    uint32_t own = 0, n_peers = 0;
    int rank;
    if (a->cause->n_parts == 0 || sscanf(a->cause->parts[0].what, "rank %d", &rank) != 1)
        return;
    while (own + 1 < g->n_ranks && g->ranks[own].rank != rank)
        own++;
    sum_computing(g, true, ns);
    if (ns[own] == 0)
        sum_computing(g, false, ns);
    bool staged = pipeline->dimension != DPRO_NO_DIMENSION && g->n_ranks > pipeline->n_stages;
    for (uint32_t r = 0; r < g->n_ranks; r++)
        if (r != own && (!staged || pipeline->stage_of[r] == pipeline->stage_of[own]))
            peers[n_peers++] = ns[r];
    int64_t usual_ns = n_peers > 0 ? select_i64(peers, n_peers, (n_peers - 1) / 2) : 0;
    if (usual_ns <= 0 || usual_ns >= ns[own])
        return;
    a->speed = (struct dpro_compute_change){.first_rank = rank, .last_rank = rank};
    a->speed.speed = round(1000.0 * (double)ns[own] / (double)usual_ns) / 1000;
    a->changes.compute = &a->speed;
    a->changes.n_compute = 1;
    snprintf(a->option, sizeof a->option, "--compute %gx@%d", a->speed.speed, rank);
    snprintf(a->delay, sizeof a->delay, "COMPUTE@%d=%.4g", rank, 1 / a->speed.speed);
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
    size_t len = 0;
    for (uint32_t r = 0, end; r < g->n_ranks && len < sizeof a->delay; r = end) {
        end = RUN_END(k, r, (uint32_t)g->n_ranks, stage_of[k] == stage_of[r]);
        if (stage_of[r] != UINT32_MAX && of_stage[stage_of[r]] > 0)
            len += (size_t)snprintf(a->delay + len, sizeof a->delay - len, "%sCOMPUTE@%d-%d=%.4g",
                                    len > 0 ? " " : "", g->ranks[r].rank, g->ranks[end - 1].rank,
                                    mean / of_stage[stage_of[r]]);
    }
    a->delay[len < sizeof a->delay ? len : 0] = '\0'; /* of too many ranges */
}

/* The link that the cause is on most is twice as fast. */
static void ask_link(struct remedy_asked *a)
{
    int from, to;
    snprintf(a->option, sizeof a->option, "--bandwidth 2x");
    a->changes.bandwidth_ratio = 2;
    if (a->cause->n_parts > 0 &&
        sscanf(a->cause->parts[0].what, "rank %d to rank %d", &from, &to) == 2)
        snprintf(a->delay, sizeof a->delay, "*-send@%d=0.5 *-recv@%d=0.5", from, to);
}

static const struct remedy {
    const char *cause, *option;
    struct dpro_changes changes;
    const char *delay; /* of a job of which there is no model; NULL: none, or what `ask` says */
    const char *lever; /* said behind the next step if this one surely wins; NULL: nothing */
    void (*ask)(struct remedy_asked *asked); /* NULL: the option says all */
} remedies[] = {
    {"slow_rank", .ask = ask_speed},
    {"slow_link", .changes = {.bandwidth_ratio = 2}, .ask = ask_link},
    {"uneven_stages", .ask = ask_even_stages},
    {"garbage_collection", .delay = "gc=0"},
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

/* Of a job of which there is no model, such as a timeline of stages. */
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
    return gain_ns >= LEAST_WON * (double)before_ns ? (struct dpro_estimate){gain_ns, 0} : none;
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
    for (size_t i = 0; i < sizeof remedies / sizeof *remedies; i++) {
        struct remedy_asked asked = {.d = d, .cause = cause};
        if (strcmp(remedies[i].cause, cause->cause) != 0)
            continue;
        ask_remedy(&asked, &remedies[i]);
        struct dpro_estimate gain =
            model ? answer_of(&asked, model) : replay_answer_of(&asked, options->threads);
        double sure_ns = gain.value - HALF_OF_95_PCT * gain.std; /* the surest one */
        double known_ns = (double)(cause->command_gain_ns - cause->command_half_ns);
        n_asked += !isnan(gain.value);
        if (!(gain.value > 0) || (cause->command && sure_ns <= known_ns))
            continue;
        cause->command_gain_ns = llround(gain.value);
        cause->command_half_ns = llround(HALF_OF_95_PCT * gain.std);
        lever = sure_ns > 0 ? remedies[i].lever : NULL;
        cause->command = model ? arena_format(arena, "dpro whatif %s %s", trace, asked.option)
                               : arena_format(arena, "dpro replay %s", trace);
        for (char *rest = asked.delay; !model && rest;)
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
        lever = "The what-if below also reckons with time that computing may lose beside it, which "
                "this recording does not show.";
    }
    if (!cause->command && strcmp(cause->cause, "communication") == 0 && n_asked == 2)
        lever = "Neither links of twice the rate nor half the latency win 2 %: look at when ranks "
                "arrive (who waits for whom).";
    if (lever && cause->next_step)
        cause->next_step = arena_format(arena, "%s %s", cause->next_step, lever);
}
