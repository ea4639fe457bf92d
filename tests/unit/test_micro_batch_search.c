/* In which micro-batches and schedule a job is fastest, and what is recomputed, against all that
 * can be asked for: of recorded jobs, with memory made by hand. */
#include <dpro/dpro.h>

#include "base/base.h"
#include "case.h"
#include "graph/graph.h"
#include "graph/memory/graph_memory.h"
#include "job_at.h"

enum { N_BLOCKS = 3, N_RANKS = 2, ROWS = 2, RECORDED = 4, MOST_MODULES = N_BLOCKS * N_RANKS };
#define MB UINT64_C(1000000)

static uint32_t op_of_phase(const struct dpro_graph *g, uint32_t rank, enum dpro_op_kind phase)
{
    uint32_t op = g->ranks[rank].first_op;
    while (g->phase[op] != phase)
        op++;
    return op;
}

static void move(struct graph_memory *m, uint32_t block, uint32_t op, bool gives)
{
    *(gives ? &m->blocks[block].given : &m->blocks[block].taken) = m->n_moments;
    m->moments[m->n_moments++] = (struct graph_moment){.block = block, .gives = gives, .op = op};
}

static uint32_t add(struct graph_memory *m, uint64_t bytes, uint32_t call, uint8_t category)
{
    m->blocks[m->n_blocks] = (struct graph_block){.size_bytes = bytes,
                                                  .taken = MEMORY_NONE,
                                                  .given = MEMORY_NONE,
                                                  .category = category,
                                                  .scales = category == DPRO_MEMORY_ACTIVATION,
                                                  .call = call};
    return m->n_blocks++;
}

/* Blocks of a stage, each of which keeps an activation; their ops are dealt among them. */
static void add_blocks(struct dpro_graph *g, uint32_t rank, uint32_t first, uint64_t seed)
{
    struct graph_memory *m = &g->memory[rank];
    uint32_t forward = op_of_phase(g, rank, DPRO_OP_FW),
             backward = op_of_phase(g, rank, DPRO_OP_BW);
    uint32_t kept[N_BLOCKS], n_ops = g->ranks[rank].n_ops;
    m->source = DPRO_MEMORY_ALLOCATIONS;
    m->blocks = arena_array(&g->arena, 2 * N_BLOCKS + 1, sizeof *m->blocks);
    m->moments = arena_array(&g->arena, 4 * N_BLOCKS, sizeof *m->moments);
    m->calls = arena_array(&g->arena, N_BLOCKS, sizeof *m->calls);
    m->op_calls = arena_array(&g->arena, n_ops, sizeof *m->op_calls);
    m->batch_size = ROWS;
    m->n_calls = N_BLOCKS;
    m->n_op_calls = n_ops;
    add(m, 10 * MB, MEMORY_NONE, DPRO_MEMORY_PARAMETER);
    for (uint32_t b = 0; b < N_BLOCKS; b++) {
        char name[16];
        int n = snprintf(name, sizeof name, "blocks.%u", first + b);
        m->calls[b] = (struct graph_call){.module = strtab_add(&g->names, name, (size_t)n),
                                          .class = strtab_add(&g->names, "Block", 5),
                                          .parent = MEMORY_NONE,
                                          .forward_first = m->n_moments,
                                          .first_forward_op = forward,
                                          .first_backward_op = backward};
        kept[b] = add(m, (4 + map_mix(seed + first + b) % 9) * MB, b, DPRO_MEMORY_ACTIVATION);
        move(m, kept[b], forward, false);
        m->calls[b].forward_last = m->n_moments;
    }
    for (uint32_t b = N_BLOCKS; b-- > 0;) {
        uint32_t scratch = add(m, 1 * MB, MEMORY_NONE, DPRO_MEMORY_TEMPORARY);
        m->calls[b].backward_first = m->n_moments;
        move(m, scratch, backward, false);
        move(m, scratch, backward, true);
        move(m, kept[b], backward, true);
        m->calls[b].backward_last = m->n_moments;
    }
    for (uint32_t o = 0; o < n_ops; o++) {
        uint32_t op = g->ranks[rank].first_op + o, call = op % N_BLOCKS;
        bool back = g->phase[op] == DPRO_OP_BW, is = back || g->phase[op] == DPRO_OP_FW;
        m->op_calls[o] = is ? 2 * call + back : MEMORY_NONE;
        if (is)
            *(back ? &m->calls[call].backward_ns : &m->calls[call].forward_ns) += g->dur_ns[op];
    }
}

struct asked {
    struct dpro_graph *graph;
    const struct dpro_model *model;
    uint32_t n_modules;
    bool is_pipeline;
};

/* Stages of a pipeline have blocks of their own; ranks with split tensors the same ones. */
static struct asked job_with_memory(const char *name, uint64_t seed)
{
    struct dpro_job *job = job_at(recorded(name));
    struct asked asked = {.graph = job_graph(job), .is_pipeline = strstr(name, "-pp-") != NULL};
    struct dpro_error err;
    asked.graph->memory = arena_array(&asked.graph->arena, N_RANKS, sizeof *asked.graph->memory);
    for (uint32_t r = 0; r < N_RANKS; r++)
        add_blocks(asked.graph, r, asked.is_pipeline ? r * N_BLOCKS : 0, seed);
    assert_int_equal(dpro_job_model(job, 1, &asked.model, &err), 0);
    asked.n_modules = dpro_model_n_modules(asked.model);
    assert_int_equal(asked.n_modules, asked.is_pipeline ? MOST_MODULES : N_BLOCKS);
    return asked;
}

/* What a job so changed takes and holds; INT64_MAX: that is refused. */
struct answer {
    int64_t ns;
    uint64_t bytes;
};

/* A schedule is a pipeline's; else a batch is computed in n parts, one after the other. */
static struct answer ask(const struct asked *job, uint32_t n, uint32_t schedule,
                         const char *recompute)
{
    struct dpro_changes changes = {.size = sizeof changes,
                                   .pipeline_micro_batches = schedule ? n : 0,
                                   .micro_batches = schedule ? 0 : n,
                                   .schedule = (enum dpro_schedule)schedule,
                                   .recompute = recompute};
    struct dpro_whatif *whatif;
    struct dpro_error err;
    struct answer answer = {INT64_MAX, 0};
    if (dpro_whatif_run(job->graph, job->model, &changes, &whatif, &err) == 0) {
        answer.ns = dpro_whatif_answer(whatif)->predicted.iteration_ns;
        answer.bytes = dpro_whatif_answer(whatif)->memory[1].bytes;
        dpro_whatif_destroy(whatif);
    }
    return answer;
}

/* The fastest of all that fits. */
static int64_t fastest(const struct asked *job, uint64_t budget)
{
    int64_t least = INT64_MAX;
    uint32_t first = job->is_pipeline ? DPRO_SCHEDULE_GPIPE : DPRO_SCHEDULE_UNKNOWN;
    uint32_t last = job->is_pipeline ? DPRO_SCHEDULE_INTERLEAVED : DPRO_SCHEDULE_UNKNOWN;
    for (uint32_t n = 1; n <= (job->is_pipeline ? ROWS * RECORDED : ROWS); n *= 2)
        for (uint32_t schedule = first; schedule <= last; schedule++)
            for (uint32_t set = 0; set < 1u << job->n_modules; set++) {
                char names[MOST_MODULES * 10 + 1] = "";
                for (uint32_t m = 0; m < job->n_modules; m++)
                    if (set >> m & 1)
                        snprintf(names + strlen(names), sizeof names - strlen(names), "%sblocks.%u",
                                 names[0] ? "," : "", m);
                struct answer a = ask(job, n, schedule, set ? names : NULL);
                if (a.bytes <= budget && (schedule != DPRO_SCHEDULE_1F1B || n >= N_RANKS))
                    least = MIN(least, a.ns);
            }
    return least;
}

static struct dpro_optimum *search(const struct asked *job, uint64_t budget)
{
    struct dpro_optimize_options options = {
        .size = sizeof options, .graph = job->graph, .memory_bytes = budget};
    struct dpro_optimum *optimum;
    struct dpro_error err;
    assert_int_equal(dpro_optimize_run(job->model, &options, &optimum, &err), 0);
    KEEP(optimum, dpro_optimum_destroy);
    return optimum;
}

static void assert_finds_the_fastest(const struct asked *job)
{
    uint64_t own = ask(job, 0, DPRO_SCHEDULE_UNKNOWN, NULL).bytes;
    assert_true(own > 15 * MB);
    for (uint64_t budget = own + MB; budget > own / 2; budget -= own / 6) {
        struct dpro_optimum *o = search(job, budget);
        struct dpro_memory_budget memory = dpro_optimum_view(o)->memory;
        int64_t least = fastest(job, budget);
        assert_int_equal(memory.fits, least < INT64_MAX);
        assert_int_equal(memory.needed, own > budget);
        if (!memory.fits) {
            assert_true(memory.least_bytes > budget);
            continue;
        }
        uint32_t n = dpro_optimum_view(o)->n_improvements;
        int64_t found = n > 0 ? dpro_optimum_view(o)->improvements[n - 1].best_ns : INT64_MAX;
        assert_int_equal(
            memory.needed ? found : MIN(found, dpro_optimum_view(o)->summary.baseline_ns), least);
    }
}

TEST(no_passing_of_a_pipeline_that_fits_is_faster_than_what_is_found)
{
    struct asked job = job_with_memory("torch-pp-gloo-n2", 1);
    assert_finds_the_fastest(&job);
}

TEST(nothing_that_fits_ranks_with_split_tensors_is_faster_than_what_is_found)
{
    for (uint64_t seed = 0; seed < 3; seed++) {
        struct asked job = job_with_memory("torch-tp-gloo-n2", seed);
        assert_finds_the_fastest(&job);
    }
}

TEST(what_is_chosen_is_what_a_whatif_of_it_answers)
{
    struct asked job = job_with_memory("torch-pp-gloo-n2", 2);
    uint64_t own = ask(&job, 0, DPRO_SCHEDULE_UNKNOWN, NULL).bytes;
    struct dpro_optimum *o = search(&job, own * 3 / 4);
    const struct dpro_strategy *best = dpro_optimum_view(o)->strategies[DPRO_BEST];
    struct dpro_pipeline_run run = dpro_optimum_view(o)->pipeline[DPRO_BEST];
    char names[100] = "";
    for (uint32_t m = 0; m < job.n_modules; m++) {
        struct dpro_module module = dpro_strategy_module(job.model, best, m);
        if (module.recomputed)
            snprintf(names + strlen(names), sizeof names - strlen(names), "%s%s",
                     names[0] ? "," : "", module.name);
    }
    struct answer a = ask(&job, run.n_micro_batches, run.schedule, names[0] ? names : NULL);
    assert_true(a.bytes <= own * 3 / 4);
    assert_int_equal(dpro_optimum_view(o)->summary.likely_ns, a.ns);
    assert_int_equal(dpro_optimum_view(o)->peaks[DPRO_BEST].bytes, a.bytes);
    for (uint32_t b = 0; b < dpro_optimum_view(o)->n_baselines; b++) {
        struct dpro_baseline row = dpro_optimum_view(o)->baselines[b];
        char schedule[16];
        uint32_t n, s = DPRO_SCHEDULE_GPIPE;
        assert_int_equal(sscanf(row.name, "%15s %u", schedule, &n), 2);
        while (strcmp(dpro_schedule_name((enum dpro_schedule)s), schedule) != 0)
            s++;
        assert_int_equal(row.likely_ns, ask(&job, n, s, NULL).ns);
    }
}
