/* Fuzz target: the folder of a single process, kineto.json, et.json, memory.json and rank.json
 * parted by "\n==\n", to the blocks of its memory, their replay, and what-ifs of them; also of a
 * job with FSDP's units. */
#include <stdio.h>
#include <unistd.h>

#include <dpro/dpro.h>

#include "fuzz.h"
#include "graph/graph.h"

enum { N_FILES = 4 };
static const char *const names[N_FILES] = {"kineto.json", "et.json", "memory.json", "rank.json"};
static char folder[] = "/tmp/dpro-fuzz-memory-XXXXXX";

static void path_of(char path[64], int file)
{
    snprintf(path, 64, "%s/%s", folder, names[file]);
}

static void remove_files(void)
{
    char path[64];
    for (int i = 0; i < N_FILES; i++) {
        path_of(path, i);
        unlink(path);
    }
    rmdir(folder);
}

static void put_files(const uint8_t *at, const uint8_t *end)
{
    static const char part[] = "\n==\n";
    char path[64];
    for (int i = 0; i < N_FILES; i++) {
        const uint8_t *over =
            at ? (const uint8_t *)memmem(at, (size_t)(end - at), part, sizeof part - 1) : NULL;
        size_t size = at ? (size_t)((over ? over : end) - at) : 0;
        path_of(path, i);
        unlink(path);
        FILE *file = size > 0 ? fopen(path, "wb") : NULL;
        if (file) {
            fwrite(at, 1, size, file);
            fclose(file);
        }
        at = over ? over + sizeof part - 1 : NULL;
    }
}

static void check(int holds)
{
    if (!holds)
        abort();
}

static void check_memory(const struct graph_memory *m)
{
    for (uint32_t i = 0; i < m->n_moments; i++)
        check(m->moments[i].block < m->n_blocks);
    for (uint32_t i = 0; i < m->n_blocks; i++) {
        const struct graph_block *b = &m->blocks[i];
        check(b->taken == MEMORY_NONE || b->taken < m->n_moments);
        check(b->given == MEMORY_NONE || b->given < m->n_moments);
        check(b->taken == MEMORY_NONE || b->given == MEMORY_NONE || b->taken < b->given);
        check(b->category < DPRO_N_MEMORY_CATEGORIES);
        check(b->call == MEMORY_NONE || b->call < m->n_calls);
        check(b->n_uses == 0 || (uint64_t)b->first_use + b->n_uses <= m->n_uses);
    }
    for (uint32_t i = 0; i < m->n_calls; i++) {
        const struct graph_call *c = &m->calls[i];
        check(c->parent == MEMORY_NONE || c->parent < i);
        check(c->forward_first <= c->forward_last && c->forward_last <= m->n_moments);
        check(c->backward_first <= c->backward_last && c->backward_last <= m->n_moments);
    }
    for (uint32_t i = 0; i < m->n_uses; i++)
        check(m->uses[i].call == MEMORY_NONE || m->uses[i].call < m->n_calls);
}

static int failed(int status, const struct dpro_error *err)
{
    check(status >= 0 || (err->code < 0 && err->text[0] != '\0'));
    return status < 0;
}

static void ask(const struct dpro_graph *graph)
{
    static const struct dpro_changes changes[] = {
        {.recompute = "all"}, {.micro_batches = 2},    {.batch_size = 3, .recompute = "none"},
        {.reshard = "all"},   {.reshard = "blocks.1"}, {.reshard = "none"}};
    struct dpro_error err = {0};
    struct dpro_model *model;
    if (failed(dpro_model_build(graph, NULL, &model, &err), &err))
        return;
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        struct dpro_whatif *whatif;
        if (!failed(dpro_whatif_run(graph, model, &changes[i], &whatif, &err), &err))
            dpro_whatif_destroy(whatif);
    }
    struct dpro_optimize_options options = {.memory_bytes = 1, .budget_s = 0.01, .threads = 1};
    struct dpro_optimum *optimum;
    if (!failed(dpro_optimize_run(model, &options, &optimum, &err), &err))
        dpro_optimum_destroy(optimum);
    dpro_model_destroy(model);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static int made;
    if (!made && (!mkdtemp(folder) || atexit(remove_files) != 0))
        abort();
    made = 1;
    put_files(data, data + size);
    const char *paths[] = {folder};
    struct dpro_trace_options options = {.threads = 1};
    struct dpro_trace *trace;
    struct dpro_graph *graph;
    struct dpro_replay *replay;
    struct dpro_error err = {0};
    if (failed(dpro_trace_load(paths, 1, &options, &trace, &err), &err))
        return 0;
    if (!failed(dpro_graph_build(trace, &(struct dpro_graph_options){0}, &graph, &err), &err)) {
        for (uint32_t r = 0; graph->memory && r < graph->n_ranks; r++)
            check_memory(&graph->memory[r]);
        if (!failed(dpro_replay_run(graph, NULL, &replay, &err), &err))
            dpro_replay_destroy(replay);
        ask(graph);
        dpro_graph_destroy(graph);
    }
    dpro_trace_destroy(trace);
    return 0;
}
