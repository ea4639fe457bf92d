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
    char delay[64];  /* the same of `dpro replay --delay`; "": it knows no such change */
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
    bool staged = pipeline->dimension != DPRO_NO_DIMENSION;
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

static const struct remedy {
    const char *cause, *option;
    struct dpro_changes changes;
    const char *lever; /* said behind the next step if this one surely wins; NULL: nothing */
    void (*ask)(struct remedy_asked *asked); /* NULL: the option says all */
} remedies[] = {
    {"slow_rank", .ask = ask_speed},
    {"slow_link", "--bandwidth 2x", .changes = {.bandwidth_ratio = 2}},
    {"communication",
     "--bandwidth 2x",
     {.bandwidth_ratio = 2},
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
    if (remedy->ask)
        remedy->ask(a);
    else if (!of_links || a->d->g->n_ranks == a->d->g->world_size)
        snprintf(a->option, sizeof a->option, "%s", remedy->option);
}

static const struct dpro_estimate none = {0, 0}, not_asked = {NAN, 0};

/* Of a job of which there is no model, such as a timeline of stages. */
static struct dpro_estimate replay_answer_of(const struct remedy_asked *a, int threads)
{
    int64_t before_ns = a->d->iteration_ns;
    const char *delays[] = {a->delay};
    struct dpro_replay_options options = {
        .size = sizeof options, .delays = delays, .n_delays = 1, .threads = threads};
    struct dpro_error refused;
    int64_t after_ns;
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
        cause->command = model
                             ? arena_format(arena, "dpro whatif %s %s", trace, asked.option)
                             : arena_format(arena, "dpro replay %s --delay %s", trace, asked.delay);
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
