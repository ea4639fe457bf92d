/* tests/unit/test_replay.c: the engines against a slow obvious one, and closed forms. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "graph/builder.h"
#include "graph_text.h"
#include "replay/replay.h"

/* ---- a slow obvious engine: of all waiting ops, scan for the one to run next ---- */

static int64_t *slow_replay(const struct dpro_graph *g, uint32_t n_copies, const int64_t *dur_ns,
                            const int64_t *release_ns)
{
    uint32_t n = g->n_ops;
    size_t total = (size_t)n * n_copies;
    int64_t *ready = calloc(total + 1, sizeof *ready), *end = calloc(total + 1, sizeof *end);
    int64_t *clock = calloc(g->n_devices + 1, sizeof *clock);
    int *missing = calloc(total + 1, sizeof *missing);
    bool *done = calloc(total + 1, sizeof *done);
    for (uint32_t c = 0; c < n_copies; c++)
        for (uint32_t op = 0; op < n; op++) {
            for (uint32_t e = g->row[op]; e < g->row[op + 1]; e++)
                missing[(size_t)c * n + g->succ[e]]++;
            for (uint32_t e = g->next_row ? g->next_row[op] : 0;
                 g->next_row && c + 1 < n_copies && e < g->next_row[op + 1]; e++)
                missing[(size_t)(c + 1) * n + g->next_succ[e]]++;
        }
    for (uint32_t op = 0; release_ns && op < n; op++)
        if (!missing[op])
            ready[op] = release_ns[g->rank[op]];
    for (size_t step = 0; step < total; step++) {
        size_t best = total;
        int64_t best_when = 0;
        for (size_t i = 0; i < total; i++) {
            if (done[i] || missing[i])
                continue;
            uint32_t device = g->device[i % n];
            int64_t when = ready[i];
            if (device != DPRO_NO_DEVICE && clock[device] > when)
                when = clock[device];
            if (best == total || when < best_when ||
                (when == best_when && ready[i] < ready[best])) {
                best = i;
                best_when = when;
            }
        }
        assert_true(best < total);
        uint32_t op = (uint32_t)(best % n), c = (uint32_t)(best / n);
        end[best] = time_add(time_add(best_when, g->gap_ns ? g->gap_ns[op] : 0),
                             dur_ns[(size_t)c * n + op]);
        done[best] = true;
        if (g->device[op] != DPRO_NO_DEVICE)
            clock[g->device[op]] = end[best];
        for (uint32_t e = g->row[op]; e < g->row[op + 1]; e++) {
            size_t v = (size_t)c * n + g->succ[e];
            missing[v]--;
            ready[v] = end[best] > ready[v] ? end[best] : ready[v];
        }
        for (uint32_t e = g->next_row ? g->next_row[op] : 0;
             g->next_row && c + 1 < n_copies && e < g->next_row[op + 1]; e++) {
            size_t v = (size_t)(c + 1) * n + g->next_succ[e];
            missing[v]--;
            ready[v] = end[best] > ready[v] ? end[best] : ready[v];
        }
    }
    free(ready);
    free(clock);
    free(missing);
    free(done);
    return end;
}

/* ---- the real engines, all copies' ends collected ---- */

struct collect {
    const struct dpro_graph *g;
    const int64_t *dur_ns; /* by copy * n_ops + op */
    int64_t *end_ns;
    int n_open, most_open;
};

static int collect_open(void *arg, uint32_t copy, const int64_t **dur_ns, const int64_t **gap_ns,
                        struct dpro_error *err)
{
    (void)err;
    struct collect *c = arg;
    *dur_ns = c->dur_ns + (size_t)copy * c->g->n_ops;
    *gap_ns = c->g->gap_ns;
    if (++c->n_open > c->most_open)
        c->most_open = c->n_open;
    return 0;
}

static int collect_close(void *arg, struct replay_copy *copy, struct dpro_error *err)
{
    (void)err;
    struct collect *c = arg;
    memcpy(c->end_ns + (size_t)copy->number * c->g->n_ops, copy->end_ns,
           c->g->n_ops * sizeof *c->end_ns);
    c->n_open--;
    return 0;
}

static int64_t *event_ends(const struct dpro_graph *g, uint32_t n_copies, const int64_t *dur_ns,
                           const int64_t *release_ns, int *most_open)
{
    struct dpro_error err = {0};
    struct collect c = {g, dur_ns, calloc((size_t)n_copies * g->n_ops + 1, sizeof(int64_t)), 0, 0};
    struct event_options options = {
        .n_copies = n_copies, .release_ns = release_ns, .want_device_prev = true};
    struct replay_hooks hooks = {&c, collect_open, collect_close};
    assert_int_equal(event_replay(g, &options, &hooks, NULL, &err), 0);
    assert_int_equal(c.n_open, 0);
    if (most_open)
        *most_open = c.most_open;
    return c.end_ns;
}

/* ---- random small graphs ---- */

static uint64_t random_state;

static uint32_t pick(uint32_t n)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((random_state >> 33) % n);
}

static struct dpro_graph *random_graph(uint64_t seed)
{
    random_state = seed * 0x9e3779b97f4a7c15u + 1;
    struct dpro_error err;
    struct dpro_graph_builder *b = dpro_graph_builder_create(&err);
    uint32_t n_ops = pick(24) + 1, n_ranks = pick(3) + 1, n_devices = pick(4);
    uint32_t longest = pick(3) == 0 ? 3 : 20; /* few values: many ties */
    bool gaps = pick(2);
    for (uint32_t d = 0; d < n_devices; d++)
        dpro_graph_add_device(b, d % 2 ? DPRO_DEVICE_GPU_STREAM : DPRO_DEVICE_CPU_THREAD,
                              (int)(d % n_ranks), "d");
    static const enum dpro_op_kind kinds[] = {DPRO_OP_FW,   DPRO_OP_BW,         DPRO_OP_UPDATE,
                                              DPRO_OP_SEND, DPRO_OP_COLLECTIVE, DPRO_OP_INPUT};
    for (uint32_t op = 0; op < n_ops; op++) {
        struct dpro_op add = {.kind = kinds[pick(6)],
                              .rank = (int)(op * n_ranks / n_ops),
                              .device = n_devices && pick(5) ? pick(n_devices) : DPRO_NO_DEVICE,
                              .name = "x",
                              .dur_ns = pick(longest),
                              .gap_ns = gaps && pick(3) == 0 ? pick(4) : 0};
        assert_int_equal(dpro_graph_add_op(b, &add), op);
    }
    /* edges follow a random order of the ops, so ids don't */
    uint32_t place[32];
    for (uint32_t op = 0; op < n_ops; op++)
        place[op] = op;
    for (uint32_t i = n_ops; i > 1; i--) {
        uint32_t j = pick(i), swap = place[i - 1];
        place[i - 1] = place[j];
        place[j] = swap;
    }
    uint32_t n_edges = pick(2 * n_ops + 1);
    for (uint32_t e = 0; e < n_edges && n_ops > 1; e++) {
        uint32_t to = pick(n_ops - 1) + 1, from = pick(to);
        assert_int_equal(dpro_graph_add_edge(b, place[from], place[to], 0), 0);
    }
    uint32_t n_next = pick(3) == 0 ? 0 : pick(n_ops + 2);
    for (uint32_t e = 0; e < n_next; e++)
        assert_int_equal(dpro_graph_add_edge(b, pick(n_ops), pick(n_ops), 1), 0);
    struct dpro_graph *g;
    assert_int_equal(dpro_graph_finish(b, &g, &err), 0);
    dpro_graph_builder_destroy(b);
    return g;
}

static int64_t *durations_for(const struct dpro_graph *g, uint32_t n_copies, bool vary)
{
    int64_t *dur = calloc((size_t)n_copies * g->n_ops + 1, sizeof *dur);
    for (uint32_t c = 0; c < n_copies; c++)
        for (uint32_t op = 0; op < g->n_ops; op++)
            dur[(size_t)c * g->n_ops + op] = g->dur_ns[op] + (vary ? (int64_t)pick(5) : 0);
    return dur;
}

static void test_the_event_engine_equals_the_slow_one(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 6000; seed++) {
        struct dpro_graph *g = random_graph(seed);
        uint32_t n_copies = pick(4) + 1;
        int64_t *dur = durations_for(g, n_copies, pick(2));
        int64_t release[3] = {pick(9), pick(9), pick(9)};
        bool released = n_copies == 1;
        int64_t *slow = slow_replay(g, n_copies, dur, released ? release : NULL);
        int64_t *fast = event_ends(g, n_copies, dur, released ? release : NULL, NULL);
        for (size_t i = 0; i < (size_t)n_copies * g->n_ops; i++)
            if (fast[i] != slow[i])
                fail_msg("seed %lu: op %zu of copy %zu ends at %ld, not %ld", (unsigned long)seed,
                         i % g->n_ops, i / g->n_ops, (long)fast[i], (long)slow[i]);
        free(slow);
        free(fast);
        free(dur);
        dpro_graph_destroy(g);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_event_engine_equals_the_slow_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
