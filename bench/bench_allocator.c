/* bench_allocator: requests a second that the simulated caching allocator answers on one core;
 * takings and givings back are one request each.
 *
 * `training` repeats a step: activations of many sizes are taken with temporary blocks between them
 * and given back in the opposite order, gradients and state stay. `random` takes and gives back
 * blocks of any size in any order, of which `held` are there at a time.
 * Usage: bench_allocator [training|random] [requests] [held] [settings] */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "cpu_seconds.h"
#include "replay/caching_allocator.h"

static uint64_t state = 1;

static uint64_t pick(uint64_t below)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (state >> 33) % below;
}

struct request {
    uint64_t bytes; /* 0: it is given back */
    size_t id;
};

struct sequence {
    ARRAY(struct request) requests;
    ARRAY(uint64_t) live;
    uint64_t n_ids;
};

static uint64_t take(struct sequence *s, uint64_t bytes)
{
    array_add(&s->requests, bytes, s->n_ids);
    return s->n_ids++;
}

static void give(struct sequence *s, uint64_t id)
{
    array_add(&s->requests, 0, id);
}

/* From 512 bytes to 64 MiB, small ones as often as large ones. */
static uint64_t any_size(void)
{
    uint64_t size = (uint64_t)512 << pick(17);
    return size + pick(size);
}

static void make_training(struct sequence *s, size_t n, size_t held)
{
    uint64_t sizes[64], temporary[64];
    for (int i = 0; i < 64; i++) {
        sizes[i] = any_size();
        temporary[i] = any_size();
    }
    for (size_t i = 0; i < held; i++)
        take(s, sizes[i % 64] / 2);
    while (s->requests.n < n) {
        s->live.n = 0;
        for (size_t i = 0; i < held; i++) {
            uint64_t between = take(s, temporary[i % 64]);
            array_push(&s->live, take(s, sizes[i % 64]));
            give(s, between);
        }
        while (s->live.n > 0) {
            uint64_t between = take(s, temporary[s->live.n % 64]);
            give(s, s->live.at[--s->live.n]);
            give(s, between);
        }
    }
}

static void make_random(struct sequence *s, size_t n, size_t held)
{
    while (s->requests.n < n)
        if (s->live.n < held || pick(2)) {
            array_push(&s->live, take(s, any_size()));
        } else {
            size_t at = pick(s->live.n);
            give(s, s->live.at[at]);
            s->live.at[at] = s->live.at[--s->live.n];
        }
}

int main(int argc, char **argv)
{
    const char *kind = argc > 1 ? argv[1] : "training";
    size_t n = argc > 2 ? strtoul(argv[2], NULL, 10) : 4000000;
    size_t held = argc > 3 ? strtoul(argv[3], NULL, 10) : 500;
    struct allocator_settings settings = allocator_settings_default();
    struct sequence s = {0};
    struct dpro_error err;
    double best = 0;
    if (argc > 4 && allocator_settings_parse(&settings, argv[4], &err) < 0) {
        fprintf(stderr, "bench_allocator: %s\n", err.text);
        return 2;
    }
    if (strcmp(kind, "random") == 0)
        make_random(&s, n, held);
    else
        make_training(&s, n, held);
    struct allocator_figures figures;
    uint32_t *blocks = mem_array(s.n_ids, sizeof *blocks);
    for (int round = 0; round < 5; round++) {
        struct allocator *allocator = allocator_create(&settings, 0);
        double start = cpu_seconds();
        for (size_t i = 0; i < s.requests.n; i++)
            if (s.requests.at[i].bytes > 0)
                blocks[s.requests.at[i].id] = allocator_take(allocator, s.requests.at[i].bytes);
            else
                allocator_give(allocator, blocks[s.requests.at[i].id]);
        double seconds = cpu_seconds() - start;
        figures = allocator_figures(allocator);
        allocator_destroy(allocator);
        best = round == 0 || seconds < best ? seconds : best;
    }
    printf("%s, %zu requests, %zu held, %.1f GiB reserved: %.2f million requests a second\n", kind,
           s.requests.n, held, (double)figures.reserved_bytes / (double)(1 << 30),
           (double)s.requests.n / best * 1e-6);
    array_fini(&s.requests);
    array_fini(&s.live);
    mem_free(blocks);
    return 0;
}
