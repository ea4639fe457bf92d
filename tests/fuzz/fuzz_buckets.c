/* Fuzz target: lists of buckets, and plans, for a model with the gradients a to d. What is taken
 * has each of them in exactly one bucket. */
#include <sys/mman.h>
#include <unistd.h>

#include "cost/program/buckets.h"
#include "fuzz.h"

enum { N = 4, N_SERVERS = 3 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct model_tensor tensors[N] = {
        {"a", 4, 0, 0, 0}, {"b", 8, 1, 0, 0}, {"c", 12, 2, 0, 0}, {"d", 16, 3, 0, 0}};
    struct dpro_model model = {.tensors = tensors,
                               .n_tensors = N,
                               .net = {.collective.algorithm = MODEL_SERVER,
                                       .servers.placement = MODEL_ANYWHERE,
                                       .servers.n = N_SERVERS},
                               .capabilities = model_capabilities(DPRO_STACK_TENSORFLOW_PS)};
    struct arena arena = {0};
    struct dpro_strategy strategy;
    struct dpro_error err = {.code = 0};
    char path[64];
    int fd = memfd_create("input", 0);
    if (fd < 0 || write(fd, data, size) != (ssize_t)size)
        abort();
    strategy = buckets_make(&model, &arena);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (OUTCOME(&err, buckets_read(&model, path, &strategy)) == 0) {
        uint32_t seen = 0, at = 0;
        for (uint32_t b = 0; b < strategy.n_buckets; at += strategy.buckets[b++].n)
            if (strategy.buckets[b].first != at || strategy.buckets[b].n == 0 ||
                strategy.buckets[b].partitions == 0 || strategy.buckets[b].server >= N_SERVERS)
                abort();
        for (uint32_t i = 0; i < at; i++)
            seen |= 1u << strategy.order[i];
        if (at != N || seen != 15)
            abort();
    } else if (err.text[0] == '\0') {
        abort();
    }
    close(fd);
    arena_fini(&arena);
    return 0;
}
