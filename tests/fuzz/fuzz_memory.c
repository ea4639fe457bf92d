/* Fuzz target: the folder of a single process, kineto.json, et.json, memory.json and rank.json
 * parted by "\n==\n", to the blocks of its memory, their replay, and what-ifs of them; also of a
 * job with FSDP's units. */
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

static void ask(struct dpro_job *job)
{
    static const struct dpro_changes changes[] = {
        {.recompute = "all"}, {.micro_batches = 2},    {.batch_size = 3, .recompute = "none"},
        {.reshard = "all"},   {.reshard = "blocks.1"}, {.reshard = "none"}};
    struct dpro_whatif_report answer;
    struct dpro_optimize_report found;
    struct dpro_error err = {0};
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        struct dpro_changes asked = changes[i];
        asked.size = sizeof asked;
        fuzz_failed(dpro_job_whatif(job, &asked, &answer, &err), &err);
    }
    struct dpro_optimize_options options = {
        .size = sizeof options, .memory_bytes = 1, .budget_s = 0.01};
    fuzz_failed(dpro_job_optimize(job, &options, &found, &err), &err);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static int made;
    if (!made && (!mkdtemp(folder) || atexit(remove_files) != 0))
        abort();
    made = 1;
    put_files(data, data + size);
    const char *paths[] = {folder};
    struct dpro_job *job = fuzz_job(paths, 1);
    const struct dpro_graph *graph;
    struct dpro_rank_memory memory;
    struct dpro_error err = {0};
    if (!fuzz_failed(dpro_job_graph(job, &graph, &err), &err)) {
        for (uint32_t r = 0; graph->memory && r < graph->n_ranks; r++)
            check_memory(&graph->memory[r]);
        fuzz_failed(dpro_job_memory(job, 0, &memory, &err), &err);
        ask(job);
    }
    dpro_job_close(job);
    return 0;
}
