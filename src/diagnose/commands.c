/* Asks what-ifs about the causes of a diagnosis. */
#include "diagnose/commands.h"

#include <dpro/whatif.h>

#include "graph/dimensions/pipeline.h"

#define LEAST_WON 0.02 /* of the iteration: a what-if that wins less is no answer */

struct remedy_asked {
    const struct dpro_graph *graph;
    const struct dpro_cause *cause;
    struct dpro_changes changes;
    struct dpro_compute_change speed;
    char option[96]; /* of `dpro whatif`; "": it makes no sense here */
};

/* The rank that the cause is on most computes as fast as its peers. */
static void ask_speed(struct remedy_asked *a)
{
    const struct dpro_graph *g = a->graph;
    int64_t all_ns = 0, most_ns = 0;
    bool gpu = false;
    int rank;
    if (a->cause->n_parts == 0 || sscanf(a->cause->parts[0].what, "rank %d", &rank) != 1)
        return;
    for (int on_gpu = 1; on_gpu >= 0 && all_ns == 0; on_gpu--)
        for (uint32_t op = 0; op < g->n_ops; op++) {
            gpu = (g->flags[op] & GRAPH_OP_GPU) != 0;
            if (g->ranks[g->rank[op]].rank == rank && g->kind[op] <= DPRO_OP_UPDATE &&
                gpu == on_gpu)
                all_ns += g->dur_ns[op];
        }
    most_ns = all_ns - a->cause->parts[0].blame_ns;
    if (most_ns <= 0)
        return;
    a->speed = (struct dpro_compute_change){.first_rank = rank, .last_rank = rank};
    a->speed.speed = round(1000.0 * (double)all_ns / (double)most_ns) / 1000;
    a->changes.compute = &a->speed;
    a->changes.n_compute = 1;
    snprintf(a->option, sizeof a->option, "--compute %gx@%d", a->speed.speed, rank);
}

static void ask_micro_batches(struct remedy_asked *a)
{
    struct arena work = {0};
    struct pipeline pipeline;
    pipeline_find(a->graph, &work, &pipeline);
    if (pipeline.dimension != DPRO_NO_DIMENSION && pipeline.n_micro_batches > 0) {
        a->changes.pipeline_micro_batches = 2 * pipeline.n_micro_batches;
        snprintf(a->option, sizeof a->option, "--microbatches %u", 2 * pipeline.n_micro_batches);
    }
    arena_fini(&work);
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
    else if (!of_links || a->graph->n_ranks == a->graph->world_size)
        snprintf(a->option, sizeof a->option, "%s", remedy->option);
}

/* What it wins, and its standard error; 0: too little; NAN: the job can't be asked. */
static struct dpro_estimate answer_of(struct remedy_asked *a, const struct dpro_model *model)
{
    struct dpro_whatif *whatif;
    struct dpro_error refused;
    struct dpro_estimate none = {0, 0}, not_asked = {NAN, 0};
    a->changes.size = sizeof a->changes;
    if (!a->option[0])
        return not_asked;
    int rc = dpro_whatif_run(a->graph, model, &a->changes, &whatif, &refused);
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

void command_find(struct dpro_cause *cause, const struct dpro_graph *graph,
                  const struct dpro_model *model, const char *trace, struct arena *arena)
{
    const char *lever = NULL;
    uint32_t n_asked = 0;
    for (size_t i = 0; i < sizeof remedies / sizeof *remedies; i++) {
        struct remedy_asked asked = {.graph = graph, .cause = cause};
        if (strcmp(remedies[i].cause, cause->cause) != 0)
            continue;
        ask_remedy(&asked, &remedies[i]);
        struct dpro_estimate gain = answer_of(&asked, model);
        double sure_ns = gain.value - HALF_OF_95_PCT * gain.std; /* the surest one */
        double known_ns = (double)(cause->command_gain_ns - cause->command_half_ns);
        n_asked += !isnan(gain.value);
        if (!(gain.value > 0) || (cause->command && sure_ns <= known_ns))
            continue;
        cause->command_gain_ns = llround(gain.value);
        cause->command_half_ns = llround(HALF_OF_95_PCT * gain.std);
        lever = sure_ns > 0 ? remedies[i].lever : NULL;
        cause->command =
            arena_format(arena, "dpro whatif %s %s", quoted_path(trace, arena), asked.option);
    }
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
