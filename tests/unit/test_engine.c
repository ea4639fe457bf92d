/* The replay engine against a slow obvious one. */

#include "case.h"
#include "graph_op.h"
#include "graph_text.h"
#include "replay/replay.h"

/* ---- a slow obvious engine: of all waiting ops, scan for the one to run next ---- */

/* device_prev as in struct replay_copy, of all copies; may be NULL. */
static int64_t *slow_replay(const struct dpro_graph *g, uint32_t n_copies, const int64_t *dur_ns,
                            const int64_t *release_ns, uint32_t *device_prev)
{
    uint32_t n = g->n_ops;
    size_t total = (size_t)n * n_copies;
    int64_t *ready = kept_memory(total, sizeof *ready), *end = kept_memory(total, sizeof *end);
    int64_t *clock = kept_memory(g->n_devices, sizeof *clock);
    int *missing = kept_memory(total, sizeof *missing);
    bool *done = kept_memory(total, sizeof *done);
    uint32_t last[8];
    memset(last, 0xff, sizeof last);
    assert_true(g->n_devices <= sizeof last / sizeof *last);
    for (uint32_t c = 0; c < n_copies; c++)
        for (uint32_t op = 0; op < n; op++) {
            for (uint32_t e = g->row[op]; e < g->row[op + 1]; e++)
                missing[(size_t)c * n + g->succ[e]]++;
            for (uint32_t e = g->next_row[op]; c + 1 < n_copies && e < g->next_row[op + 1]; e++)
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
        bool placed = g->device[op] != DPRO_NO_DEVICE;
        if (device_prev)
            device_prev[best] = placed ? last[g->device[op]] : DPRO_NO_OP;
        if (placed) {
            clock[g->device[op]] = end[best];
            last[g->device[op]] = op;
        }
        for (uint32_t e = g->row[op]; e < g->row[op + 1]; e++) {
            size_t v = (size_t)c * n + g->succ[e];
            missing[v]--;
            ready[v] = end[best] > ready[v] ? end[best] : ready[v];
        }
        for (uint32_t e = g->next_row[op]; c + 1 < n_copies && e < g->next_row[op + 1]; e++) {
            size_t v = (size_t)(c + 1) * n + g->next_succ[e];
            missing[v]--;
            ready[v] = end[best] > ready[v] ? end[best] : ready[v];
        }
    }
    return end;
}

/* ---- the real engine, all copies' ends collected ---- */

struct collect {
    const struct dpro_graph *g;
    const int64_t *dur_ns; /* by copy * n_ops + op */
    int64_t *end_ns;
    uint32_t *device_prev; /* NULL: not wanted */
    int n_open, most_open;
};

static void collect_open(void *arg, uint32_t copy, const int64_t **dur_ns, const int64_t **gap_ns)
{
    struct collect *c = arg;
    *dur_ns = c->dur_ns + (size_t)copy * c->g->n_ops;
    *gap_ns = c->g->gap_ns;
    if (++c->n_open > c->most_open)
        c->most_open = c->n_open;
}

static void collect_close(void *arg, struct replay_copy *copy)
{
    struct collect *c = arg;
    memcpy(c->end_ns + (size_t)copy->number * c->g->n_ops, copy->end_ns,
           c->g->n_ops * sizeof *c->end_ns);
    if (c->device_prev)
        memcpy(c->device_prev + (size_t)copy->number * c->g->n_ops, copy->device_prev,
               c->g->n_ops * sizeof *c->device_prev);
    c->n_open--;
}

static int64_t *event_ends(const struct dpro_graph *g, uint32_t n_copies, const int64_t *dur_ns,
                           const int64_t *release_ns, uint32_t *device_prev, int *most_open)
{
    int64_t *ends = kept_memory((size_t)n_copies * g->n_ops, sizeof *ends);
    struct collect c = {.g = g, .dur_ns = dur_ns, .end_ns = ends, .device_prev = device_prev};
    struct event_options options = {
        .n_copies = n_copies, .release_ns = release_ns, .end_prev = n_copies};
    struct replay_hooks hooks = {&c, collect_open, collect_close};
    event_replay(g, &options, &hooks);
    assert_int_equal(c.n_open, 0);
    if (most_open)
        *most_open = c.most_open;
    return c.end_ns;
}

static int64_t *durations_for(const struct dpro_graph *g, uint32_t n_copies, bool vary)
{
    int64_t *dur = kept_memory((size_t)n_copies * g->n_ops, sizeof *dur);
    for (uint32_t c = 0; c < n_copies; c++)
        for (uint32_t op = 0; op < g->n_ops; op++)
            dur[(size_t)c * g->n_ops + op] = g->dur_ns[op] + (vary ? (int64_t)pick(5) : 0);
    return dur;
}

TEST(the_event_engine_equals_the_slow_one)
{
    for (uint64_t seed = 0; seed < 6000; seed++) {
        struct dpro_graph *g = random_graph(seed);
        uint32_t n_copies = pick(4) + 1;
        int64_t *dur = durations_for(g, n_copies, pick(2));
        int64_t release[3] = {pick(9), pick(9), pick(9)};
        bool released = n_copies == 1;
        size_t total = (size_t)n_copies * g->n_ops;
        uint32_t *slow_prev = kept_memory(total, sizeof *slow_prev);
        uint32_t *fast_prev = kept_memory(total, sizeof *fast_prev);
        int64_t *slow = slow_replay(g, n_copies, dur, released ? release : NULL, slow_prev);
        int64_t *fast = event_ends(g, n_copies, dur, released ? release : NULL, fast_prev, NULL);
        assert_memory_equal(slow_prev, fast_prev, total * sizeof *slow_prev);
        for (size_t i = 0; i < total; i++)
            if (fast[i] != slow[i])
                fail_msg("seed %lu: op %zu of copy %zu ends at %ld, not %ld", (unsigned long)seed,
                         i % g->n_ops, i / g->n_ops, (long)fast[i], (long)slow[i]);
    }
}

/* The devices are threads of one pool, of which `n_slots` ran at once. */
static void make_pool(struct dpro_graph *g, uint32_t n_slots)
{
    for (uint32_t d = 0; d < g->n_devices; d++) {
        g->devices[d].pool = 0;
        g->devices[d].n_slots = n_slots;
    }
}

static struct dpro_graph *fan(uint32_t width, int next)
{
    struct graph_builder *b = graph_builder_create();
    struct dpro_op op = {.device = DPRO_NO_DEVICE, .dur_ns = 7};
    struct dpro_graph *g;
    for (uint32_t i = 0; i < width + 2; i++)
        add_op(b, &op, 0);
    for (uint32_t i = 0; i < width; i++) {
        graph_builder_add_edge(b, i + 2, 0, 0);
        graph_builder_add_edge(b, i + 2, 1, next);
    }
    g = graph_builder_finish(b);
    KEEP(g, dpro_graph_destroy);
    return g;
}

static int64_t *ends_in_pool(struct dpro_graph *g, uint32_t n_slots)
{
    make_pool(g, n_slots);
    return event_ends(g, 1, g->dur_ns, NULL, NULL, NULL);
}

TEST(a_pools_op_takes_whichever_thread_is_free_first)
{
    struct dpro_graph *g = graph_of("a:10@d0; b:30@d1; c:5@d1; e:4@d1");
    int64_t *end = ends_in_pool(g, 2);
    assert_int_equal(end[op_named(g, "c")], 15); /* after a, though the job had it after b */
    assert_int_equal(end[op_named(g, "e")], 19);
    end = ends_in_pool(g, 1);
    assert_int_equal(end[op_named(g, "e")], 49);
}

TEST(gaps_in_a_pool_pass_while_other_ops_run)
{
    struct dpro_graph *g = graph_of("a:10@d0; b:5@d0+4; c:5@d1+25");
    int64_t *end = ends_in_pool(g, 1);
    assert_int_equal(end[op_named(g, "b")], 15);
    assert_int_equal(end[op_named(g, "c")], 30);
}

TEST(ops_with_very_many_predecessors)
{
    static const uint32_t widths[] = {62, 300, 8191, 16382, 16383, 16384, 70000};
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++)
        for (int next = 0; next < 2; next++) {
            struct dpro_graph *g = fan(widths[i], next);
            uint32_t n_copies = next ? 3 : 1;
            int64_t *dur = durations_for(g, n_copies, false);
            int64_t *end = event_ends(g, n_copies, dur, NULL, NULL, NULL);
            assert_int_equal(end[(size_t)(n_copies - 1) * g->n_ops], 14);
            assert_int_equal(end[(size_t)(n_copies - 1) * g->n_ops + 1], 14);
        }
}

TEST(few_copies_are_open_at_once)
{
    enum { N_COPIES = 1000 };
    struct dpro_graph *g = graph_of("a:10@d0 -> b:5@d1 -> c:1@d0 => a; x:3@d2 -> y:2@d2");
    int64_t *dur = durations_for(g, N_COPIES, false);
    int most_open;
    int64_t *end = event_ends(g, N_COPIES, dur, NULL, NULL, &most_open);
    assert_int_equal(end[(size_t)(N_COPIES - 1) * g->n_ops + op_named(g, "c")], 16 * N_COPIES);
    /* x and y run three times as often as the rest at first, then they are through */
    assert_int_equal(end[(size_t)(N_COPIES - 1) * g->n_ops + op_named(g, "y")], 5 * N_COPIES);
    g = graph_of("a:10@d0 -> b:5@d1 -> c:1@d0 => a; a -> x:3@d2 -> y:2@d2 => a");
    end = event_ends(g, N_COPIES, dur, NULL, NULL, &most_open);
    assert_true(most_open <= 2);
    /* those of d0 need not wait for a queue */
    g = graph_of("a:10@d0 -> b:1@d0 => a; a -> x:2@d1");
    dur = durations_for(g, N_COPIES, false);
    end = event_ends(g, N_COPIES, dur, NULL, NULL, &most_open);
    assert_true(most_open <= 3);
}

TEST(huge_durations_stop_at_the_largest_time)
{
    struct dpro_graph *g = graph_of(
        "a:4611686018427387903@d0 -> b:4611686018427387903@d0 -> c:4611686018427387903@d0");
    int64_t *end = event_ends(g, 1, g->dur_ns, NULL, NULL, NULL);
    assert_true(end[2] == INT64_MAX);
}
