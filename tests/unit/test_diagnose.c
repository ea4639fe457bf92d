/* The laws of a diagnosis, on random graphs and random causes. */

#include "case.h"
#include "diagnose/causes.h"
#include "diagnose/shapley.h"
#include "graph_text.h"

enum { N_CAUSES = 4 };

/* A random graph as it is diagnosed, with what random causes take of it. */
struct example {
    struct dpro_graph *g;
    struct chain chain;
    struct arena arena;
    struct diagnosed d;
    struct cause_found found[N_CAUSES + 1]; /* the last finds nothing */
    struct unrolled unrolled;
};

static void give_samples(struct dpro_graph *g)
{
    for (uint32_t r = 0; r < g->n_ranks; r++)
        if (pick(3))
            g->ranks[r].boundary = g->ranks[r].first_op + pick(g->ranks[r].n_ops);
    if (!pick(3))
        return;
    size_t n = (g->n_samples = pick(4) + 1) * (size_t)g->n_ops;
    g->sample_dur_ns = arena_array(&g->arena, n, sizeof(int64_t));
    g->sample_gap_ns = arena_array(&g->arena, n, sizeof(int64_t));
    for (size_t i = 0; i < n; i++) {
        g->sample_dur_ns[i] = pick(15);
        g->sample_gap_ns[i] = pick(3) ? 0 : pick(6);
    }
    g->shown_sample = pick(g->n_samples);
}

static void find_pieces(struct example *e, bool cuts)
{
    uint32_t n = e->d.n_iterations;
    for (uint32_t i = 0; i < 2 * e->g->n_ops; i++) {
        uint32_t op = i / 2;
        bool gap = i % 2;
        struct cause_found *found = &e->found[pick(N_CAUSES)];
        int64_t *ns = arena_array(&e->arena, n, sizeof *ns);
        for (uint32_t k = 0; k < n; k++) {
            const struct replay_copy *copy = &e->d.copies[k];
            int64_t most = gap ? (copy->gap_ns ? copy->gap_ns[op] : 0) : copy->dur_ns[op];
            ns[k] = pick((uint32_t)most + 1);
        }
        if (pick(3))
            array_add(&found->pieces, .op = op, .gap = gap, .ns = ns,
                      .part = found_part(found, pick(3), "part"));
        if (cuts && !gap && pick(4) == 0 && e->g->row[op] < e->g->row[op + 1])
            array_add(&found->cuts, .from = op, .to = e->g->succ[e->g->row[op]],
                      .part = found_part(found, 9, "cut"));
    }
    for (uint32_t c = 0; c <= N_CAUSES; c++)
        found_part(&e->found[c], 10, "last");
}

static void example_make(struct example *e, struct dpro_graph *g, bool cuts)
{
    static const struct dpro_replay_options options = {.size = sizeof options};
    *e = (struct example){.g = g};
    chain_init(&e->chain, g, &options, NULL);
    e->chain.all_prev = true;
    chain_run(&e->chain);
    e->d = (struct diagnosed){
        .g = g, .n_iterations = e->chain.n_main, .copies = e->chain.copies + e->chain.n_warm_up};
    for (uint32_t c = 0; c <= N_CAUSES; c++)
        e->found[c].arena = &e->arena;
    find_pieces(e, cuts);
    unrolled_make(&e->unrolled, &e->chain, &e->d, e->found, N_CAUSES + 1);
}

static void example_free(struct example *e)
{
    unrolled_fini(&e->unrolled);
    for (uint32_t c = 0; c <= N_CAUSES; c++)
        FREE_ALL(&e->found[c].pieces, &e->found[c].cuts, &e->found[c].parts,
                 &e->found[c].part_numbers);
    chain_fini(&e->chain);
    arena_fini(&e->arena);
}

static double pass_mean(const struct example *e, uint32_t causes)
{
    double ns[8];
    struct cell_times *cells = mem_array(e->unrolled.n_cells + (size_t)1, sizeof *cells);
    unrolled_passes(&e->unrolled, &WHOLE(causes), 1, cells, ns);
    mem_free(cells);
    return stats_mean_std(ns, e->d.n_iterations).mean;
}

static bool is_near(double a, double b)
{
    return fabs(a - b) < 1e-6;
}

TEST(with_all_causes_there_it_is_the_replay)
{
    for (uint64_t seed = 0; seed < 3000; seed++) {
        struct dpro_graph *g = random_graph(seed);
        struct example e;
        double ns[8];
        int64_t replayed[8];
        give_samples(g);
        example_make(&e, g, false);
        struct cell_times *cells = kept_memory(e.unrolled.n_cells + (size_t)1, sizeof *cells);
        unrolled_passes(&e.unrolled, &WHOLE(UINT32_MAX), 1, cells, ns);
        chain_periods(&e.chain, replayed);
        for (uint32_t k = 0; k < e.d.n_iterations; k++)
            if (fabs(ns[k] - (double)replayed[k]) >= 1)
                fail_msg("seed %d: %f is not %d", (int)seed, ns[k], (int)replayed[k]);
        example_free(&e);
    }
}

TEST(taking_away_never_makes_it_longer)
{
    for (uint64_t seed = 0; seed < 2000; seed++) {
        struct dpro_graph *g = random_graph(seed);
        struct example e;
        give_samples(g);
        example_make(&e, g, true);
        for (uint32_t set = 0; set < 1 << N_CAUSES; set++)
            for (uint32_t c = 0; c < N_CAUSES; c++)
                if (pass_mean(&e, set) > pass_mean(&e, set | 1U << c) + 1e-9)
                    fail_msg("seed %d: cause %u of set %u", (int)seed, c, set);
        example_free(&e);
    }
}

TEST(blames_add_up_to_what_is_lost_and_what_takes_nothing_gets_none)
{
    for (uint64_t seed = 0; seed < 2000; seed++) {
        struct dpro_graph *g = random_graph(seed);
        struct example e;
        struct blame blames[N_CAUSES + 1];
        give_samples(g);
        example_make(&e, g, true);
        struct values values = {.unrolled = &e.unrolled, .threads = 1, .causes = 15};
        double sum = 0, in_order = 0;
        shapley_find(&values, blames);
        for (uint32_t c = 0; c < N_CAUSES; c++) {
            sum += blames[c].ns;
            in_order += blames[c].in_order_ns;
            assert_true(blames[c].ns >= 0);
        }
        double lost = pass_mean(&e, 15) - pass_mean(&e, 0);
        assert_true(is_near(sum, lost));
        assert_true(is_near(in_order, lost));
        assert_true(blames[N_CAUSES].ns == 0);
        values_fini(&values);
        example_free(&e);
    }
}

TEST(a_cost_that_wins_more_than_all_faults_comes_first)
{
    /* of a tier of faults and one of costs, one takes 4 ns and the other 10, and the reverse */
    static const int64_t fault[4] = {4, 4, 4, 4}, cost[4] = {10, 10, 10, 10};
    static const uint8_t tiers[] = {0, 2};
    static const struct dpro_replay_options options = {.size = sizeof options};
    for (int faults_cost = 0; faults_cost < 2; faults_cost++) {
        struct dpro_graph *g = graph_of("a:20@d0 -> b:100@d0 -> e* => a");
        struct example e = {.g = g};
        struct blame blames[2];
        chain_init(&e.chain, g, &options, NULL);
        e.chain.all_prev = true;
        chain_run(&e.chain);
        e.d = (struct diagnosed){
            .g = g, .n_iterations = e.chain.n_main, .copies = e.chain.copies + e.chain.n_warm_up};
        for (uint32_t c = 0; c < 2; c++) {
            e.found[c].arena = &e.arena;
            array_add(&e.found[c].pieces, .op = op_named(g, c ? "b" : "a"),
                      .part = found_part(&e.found[c], 0, "it"),
                      .ns = (c == 0) == (faults_cost == 1) ? cost : fault);
        }
        unrolled_make(&e.unrolled, &e.chain, &e.d, e.found, 2);
        struct values values = {.unrolled = &e.unrolled, .threads = 1, .causes = 3, .tiers = tiers};
        shapley_find(&values, blames);
        assert_int_equal(blames[0].order, faults_cost ? 1 : 2);
        assert_int_equal(blames[1].order, faults_cost ? 2 : 1);
        assert_true(is_near(blames[0].in_order_ns, faults_cost ? 10 : 4));
        values_fini(&values);
        example_free(&e);
    }
}

/* The same by the event-driven engine: measured iterations without what causes take of them. */
static double replayed_mean(const struct example *e, uint32_t causes)
{
    static const struct dpro_replay_options options = {.size = sizeof options};
    struct dpro_graph changed = *e->g;
    struct arena arena = {0};
    struct chain chain;
    int64_t ns[8];
    size_t n = (size_t)changed.n_samples * changed.n_ops;
    changed.sample_dur_ns = arena_copy(&arena, changed.sample_dur_ns, n, sizeof(int64_t));
    changed.sample_gap_ns = arena_copy(&arena, changed.sample_gap_ns, n, sizeof(int64_t));
    for (uint32_t c = 0; c < N_CAUSES; c++)
        EACH (const struct piece, piece, e->found[c].pieces)
            for (uint32_t k = 0; k < changed.n_samples && !(causes >> c & 1); k++)
                (piece->gap ? changed.sample_gap_ns
                            : changed.sample_dur_ns)[k * changed.n_ops + piece->op] -= piece->ns[k];
    chain_init(&chain, &changed, &options, NULL);
    chain_run(&chain);
    double sum = 0;
    for (uint32_t k = 0; k < chain.n_main; k++)
        for (uint32_t r = 0; r < changed.n_ranks; r++) {
            const int64_t *end = chain.boundary_ns + (chain.n_warm_up + k) * changed.n_ranks + r;
            ns[0] = *end - end[-(ptrdiff_t)changed.n_ranks];
            sum += (double)ns[0] / changed.n_ranks / chain.n_main;
        }
    chain_fini(&chain);
    arena_fini(&arena);
    return sum;
}

/* Iterations of other ranks end no earlier than their GPU, which a replay does not look at. */
static bool all_gpus_are_measured(const struct dpro_graph *g)
{
    for (uint32_t op = 0; op < g->n_ops; op++)
        if ((g->flags[op] & GRAPH_OP_GPU) && !g->ranks[g->rank[op]].on_device)
            return false;
    return true;
}

static bool edges_give_the_order(const struct dpro_graph *g)
{
    SCRATCH_ARENA struct arena arena = {0};
    const bool *ordered = edge_ordered_devices(g, false, &arena);
    for (uint32_t d = 0; d < g->n_devices; d++)
        if (!ordered[d])
            return false;
    for (uint32_t op = 0; op < g->n_ops; op++)
        if (g->spare[op])
            return false;
    return true;
}

TEST(where_edges_give_the_order_blames_are_those_of_replays)
{
    uint32_t n_tried = 0;
    for (uint64_t seed = 0; seed < 3000; seed++) {
        struct dpro_graph *g = random_graph(seed);
        struct example e;
        struct blame blames[N_CAUSES + 1];
        double v[1 << N_CAUSES], weight[N_CAUSES] = {1 / 4.0, 1 / 12.0, 1 / 12.0, 1 / 4.0};
        give_samples(g);
        if (!edges_give_the_order(g) || !g->sample_dur_ns || g->single_iteration ||
            !all_gpus_are_measured(g))
            continue;
        n_tried++;
        example_make(&e, g, false);
        struct values values = {.unrolled = &e.unrolled, .threads = 1, .causes = 15};
        shapley_find(&values, blames);
        for (uint32_t set = 0; set < 1 << N_CAUSES; set++)
            v[set] = replayed_mean(&e, set);
        for (uint32_t c = 0; c < N_CAUSES; c++) {
            double blame = 0;
            for (uint32_t set = 0; set < 1 << N_CAUSES; set++)
                if (!(set >> c & 1))
                    blame += weight[__builtin_popcount(set)] * (v[set | 1U << c] - v[set]);
            if (!is_near(blame, blames[c].ns))
                fail_msg("seed %d: %f is not %f", (int)seed, blames[c].ns, blame);
        }
        values_fini(&values);
        example_free(&e);
    }
    assert_true(n_tried > 300);
}

TEST(parts_that_are_alike_are_blamed_alike)
{
    /* three ranks wait for each other; two of them are late by as much */
    struct dpro_graph *g = graph_of("a:20@d0 -> w:1 -> e* => a; b:20@d1#1 -> w -> f*#1 => b;"
                                    "c:10@d2#2 -> w -> h*#2 => c; w => a; w => b; w => c");
    struct example e = {.g = g};
    static const struct dpro_replay_options options = {.size = sizeof options};
    static const int64_t late[4] = {10, 10, 10, 10};
    chain_init(&e.chain, g, &options, NULL);
    e.chain.all_prev = true;
    chain_run(&e.chain);
    e.d = (struct diagnosed){
        .g = g, .n_iterations = e.chain.n_main, .copies = e.chain.copies + e.chain.n_warm_up};
    e.found[0].arena = &e.arena;
    for (uint32_t r = 0; r < 2; r++)
        array_add(&e.found[0].pieces, .op = op_named(g, r ? "b" : "a"),
                  .part = found_part(&e.found[0], r, "rank %u", r), .ns = late);
    unrolled_make(&e.unrolled, &e.chain, &e.d, e.found, 1);
    struct values values = {.unrolled = &e.unrolled, .threads = 1, .causes = 1};
    struct blame blame;
    double of_part[2] = {0, 0};
    shapley_find(&values, &blame);
    assert_true(is_near(blame.ns, 10));
    owen_find(&values, 0, 2, 1e9, of_part);
    assert_true(is_near(of_part[0], 5) && is_near(of_part[1], 5));
    values_fini(&values);
    example_free(&e);
}

/* What is taken of `b`, which computes beside a message of 10 bytes for 40 of its 100 ns. */
static int64_t lost_beside(struct dpro_estimate byte_ns, const char **needs)
{
    struct dpro_graph *g = graph_of("a:20@d0 -> s:40@l0!SEND -> e* => a; a -> b:100@d0 -> e");
    struct example e = {.g = g};
    static const struct dpro_replay_options options = {.size = sizeof options};
    uint32_t b = op_named(g, "b");
    int64_t lost_ns = 0;
    chain_init(&e.chain, g, &options, NULL);
    chain_run(&e.chain);
    e.d = (struct diagnosed){.g = g,
                             .n_iterations = 1,
                             .works = works_of(g, &e.arena),
                             .collective_of = collectives_of(g, &e.arena),
                             .pipeline = {.dimension = DPRO_NO_DIMENSION},
                             .copies = e.chain.copies + e.chain.n_warm_up,
                             .link_cpu_ns = byte_ns};
    e.d.left_ns[0] = arena_copy(&e.arena, e.d.copies->dur_ns, g->n_ops, sizeof(int64_t));
    g->size_bytes = arena_array(&g->arena, g->n_ops, sizeof *g->size_bytes);
    g->size_bytes[op_named(g, "s")] = 10;
    e.found[0].arena = &e.arena;
    find_contention(&e.d, &e.found[0]);
    EACH (const struct piece, piece, e.found[0].pieces)
        if (piece->op == b)
            lost_ns += *piece->ns;
    *needs = e.found[0].needs;
    example_free(&e);
    return lost_ns;
}

TEST(computing_loses_what_was_learnt_of_bytes_beside_it_where_that_is_sure)
{
    const char *needs;
    assert_int_equal(lost_beside((struct dpro_estimate){2, 0.1}, &needs), 20);
    assert_null(needs);
    assert_int_equal(lost_beside((struct dpro_estimate){90, 1}, &needs), 36); /* nearly all */
    assert_int_equal(lost_beside((struct dpro_estimate){2, 1.1}, &needs), 0);
    assert_non_null(needs);
}

TEST(a_diagnosis_adds_up_to_the_nanosecond_at_any_number_of_threads)
{
    for (uint64_t seed = 0; seed < 500; seed++) {
        struct dpro_graph *g = random_graph(seed);
        struct dpro_diagnosis *made[2];
        give_samples(g);
        for (int i = 0; i < 2; i++) {
            struct dpro_diagnose_options options = {.size = sizeof options, .threads = 1 + 2 * i};
            assert_int_equal(dpro_diagnose_run(g, &options, &made[i], NULL), 0);
        }
        const struct dpro_diagnosis_view *v = dpro_diagnosis_view(made[0]),
                                         *other = dpro_diagnosis_view(made[1]);
        int64_t sum = v->ideal_ns + v->small_ns;
        for (uint32_t c = 0; c < v->n_causes; c++) {
            const struct dpro_cause *cause = &v->causes[c];
            int64_t of_parts = 0;
            sum += cause->blame_ns;
            for (uint32_t p = 0; p < cause->n_parts; p++)
                of_parts += cause->parts[p].blame_ns;
            assert_true(cause->n_evidence > 0 ||
                        cause->blame_ns < MAX(v->explained_ns / 50, cause->alone_ns));
            assert_true(cause->n_parts == 0 || of_parts == cause->blame_ns);
            assert_int_equal(cause->blame_ns, other->causes[c].blame_ns);
            assert_int_equal(cause->n_evidence, other->causes[c].n_evidence);
            for (uint32_t e = 0; e < cause->n_evidence; e++)
                assert_int_equal(cause->evidence[e].ns, other->causes[c].evidence[e].ns);
        }
        assert_int_equal(sum, v->explained_ns);
        for (int i = 0; i < 2; i++)
            dpro_diagnosis_destroy(made[i]);
    }
}

/* Else that time would be in the ideal, though no one computes. */
TEST(ranks_of_a_single_iteration_that_start_apart_are_a_cause)
{
    struct dpro_graph *g = graph_of("a:20@d0 -> w:1 -> e*; b:20@d1#1 -> w -> f*#1");
    struct dpro_diagnosis *made;
    g->ranks[1].offset_ns = 50;
    assert_true(g->single_iteration);
    assert_int_equal(dpro_diagnose_run(g, NULL, &made, NULL), 0);
    const struct dpro_diagnosis_view *v = dpro_diagnosis_view(made);
    assert_int_equal(v->explained_ns, 71);
    assert_int_equal(v->ideal_ns, 21);
    assert_int_equal(v->n_causes, 1);
    assert_string_equal(v->causes[0].cause, "start_apart");
    assert_string_equal(v->causes[0].parts[0].what, "rank 1");
    dpro_diagnosis_destroy(made);
}

TEST(hostile_and_empty_jobs_are_diagnosed_too)
{
    static const char *const jobs[] = {
        "a:9223372036854775807@d0 -> b:9223372036854775807@d0 -> e* => a; c:9#1@d1 -> e", "a:0",
        "a:5@d0; b:0", "a:4611686018427387904!COLLECTIVE -> e* => a"};
    for (size_t i = 0; i < sizeof jobs / sizeof *jobs; i++) {
        struct dpro_graph *g = graph_of(jobs[i]);
        struct dpro_diagnosis *made;
        assert_int_equal(dpro_diagnose_run(g, NULL, &made, NULL), 0);
        const struct dpro_diagnosis_view *v = dpro_diagnosis_view(made);
        assert_true(v->ideal_ns >= 0 && v->explained_ns >= v->ideal_ns);
        assert_int_equal(v->n_iterations, 1);
        dpro_diagnosis_destroy(made);
    }
}
