/* FSDP jobs with other units resharded, on small graphs whose answer is known, and on any. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "case.h"
#include "graph/builder.h"
#include "graph_ask.h"
#include "graph_text.h"
#include "replay/replay.h"
#include "replay/resharded_graph.h"

/* A job's graph, and what was asked for of it. */
struct resharded {
    struct dpro_graph *from, graph;
    struct resharding units;
    struct arena arena;
    struct dpro_error err;
    int rc;
};

static void add_units(struct dpro_graph *g, uint32_t n, const char *const *names)
{
    g->n_units = n;
    g->units = arena_array(&g->arena, n, sizeof *g->units);
    g->gather = arena_array(&g->arena, g->n_ops, sizeof *g->gather);
    for (uint32_t u = 0; u < n; u++) {
        g->units[u].name = strtab_add(&g->names, names[u], strlen(names[u]));
        g->units[u].request = arena_array(&g->arena, g->n_ranks, sizeof *g->units[u].request);
        for (uint32_t r = 0; r < g->n_ranks; r++)
            g->units[u].request[r] = DPRO_NO_OP;
    }
}

static void set_gather(struct dpro_graph *g, uint32_t unit, bool backward, const char *ops)
{
    char text[200], *rest = NULL;
    snprintf(text, sizeof text, "%s", ops);
    for (char *op = strtok_r(text, " ", &rest); op; op = strtok_r(NULL, " ", &rest))
        g->gather[op_named(g, op)] = GATHER(unit, backward);
}

static void set_request(struct dpro_graph *g, uint32_t unit, uint32_t rank, const char *op)
{
    g->units[unit].request[rank] = op_named(g, op);
}

static struct resharded *reshard(struct dpro_graph *g, const char *names)
{
    struct resharded *r = calloc(1, sizeof *r);
    assert_non_null(r);
    r->from = g;
    r->rc = resharded_graph(g, names, &r->arena, &r->graph, &r->units, &r->err);
    return r;
}

static void drop(struct resharded *r)
{
    arena_fini(&r->arena);
    free(r);
}

static void assert_refused(struct dpro_graph *g, const char *names, const char *words)
{
    struct resharded *r = reshard(g, names);
    assert_int_equal(r->rc, DPRO_EUSAGE);
    assert_non_null(strstr(r->err.text, words));
    drop(r);
}

static uint64_t peak_bytes(const struct dpro_graph *g)
{
    return dpro_replay_memory(replay_of(g, NULL), 0).peak_bytes;
}

static uint32_t count_named(const struct dpro_graph *g, const char *name)
{
    uint32_t n = 0;
    for (uint32_t op = 0; op < g->n_ops; op++)
        n += strcmp(strtab_get(&g->names, g->name[op]), name) == 0;
    return n;
}

static bool follows(const struct dpro_graph *g, uint32_t from, uint32_t to)
{
    for (uint32_t e = g->row[from]; e < g->row[from + 1]; e++)
        if (g->succ[e] == to)
            return true;
    return false;
}

/* A rank whose unit is gathered for both passes, or for the forward pass only. */
static struct dpro_graph *gathered_twice(void)
{
    static const char *const names[] = {"", "a"};
    struct dpro_graph *g = graph_of("gf:5@d0 -> fw:10@d0 -> loss:2@d0 -> gb:5@d0!BW -> "
                                    "bw:20@d0!BW -> up:3@d0!UPDATE -> end*; end => gf");
    add_units(g, 2, names);
    set_gather(g, 1, false, "gf");
    set_gather(g, 1, true, "gb");
    set_request(g, 1, 0, "loss");
    return g;
}

static struct dpro_graph *gathered_once(void)
{
    static const char *const names[] = {"", "a"};
    struct dpro_graph *g = graph_of("gf:5@d0 -> fw:10@d0 -> loss:2@d0 -> bw:20@d0!BW -> "
                                    "up:3@d0!UPDATE -> end*; end => gf");
    add_units(g, 2, names);
    set_gather(g, 1, false, "gf");
    set_request(g, 1, 0, "loss");
    return g;
}

TEST(a_unit_that_keeps_its_parameters_is_not_gathered_again)
{
    struct resharded *r = reshard(gathered_twice(), "none");
    assert_int_equal(r->rc, 0);
    assert_int_equal(r->units.n_changed, 1);
    assert_true(r->units.before[1] && !r->units.after[1]);
    assert_false(r->units.before[0] || r->units.after[0]);
    assert_int_equal(r->graph.n_ops, r->from->n_ops - 1);
    assert_int_equal(count_named(&r->graph, "gb"), 0);
    assert_true(follows(&r->graph, op_named(&r->graph, "loss"), op_named(&r->graph, "bw")));
    assert_int_equal(replay_ns(r->from, NULL), 45);
    assert_int_equal(replay_ns(&r->graph, NULL), 40);
    drop(r);
}

TEST(a_unit_that_frees_its_parameters_is_gathered_once_more)
{
    struct resharded *r = reshard(gathered_once(), "a");
    assert_int_equal(r->rc, 0);
    assert_int_equal(count_named(&r->graph, "gf"), 2);
    uint32_t copy = op_named(&r->graph, "gf") + 1;
    while (strcmp(strtab_get(&r->graph.names, r->graph.name[copy]), "gf") != 0)
        copy++;
    assert_true(follows(&r->graph, op_named(&r->graph, "loss"), copy));
    assert_true(follows(&r->graph, copy, op_named(&r->graph, "bw")));
    assert_int_equal(replay_ns(r->from, NULL), 40);
    assert_int_equal(replay_ns(&r->graph, NULL), 45);
    drop(r);
}

TEST(what_is_asked_for_and_there_changes_nothing)
{
    static const char *const names[] = {"all", "a", " a", "a,*", "?"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct resharded *r = reshard(gathered_twice(), names[i]);
        assert_int_equal(r->rc, 0);
        assert_int_equal(r->units.n_changed, 0);
        assert_int_equal(r->graph.n_ops, r->from->n_ops);
        assert_int_equal(replay_ns(&r->graph, NULL), 45);
        drop(r);
    }
}

/* The slower rank has 20 more to do in the forward pass. */
static struct dpro_graph *two_ranks(bool backward)
{
    static const char *const names[] = {"a"};
    struct dpro_graph *g =
        backward ? graph_of("fw0:10@d0 -> a0:1@d0 -> j!BARRIER -> t0:8@d0!COLLECTIVE -> "
                            "bw0:20@d0!BW -> e0* => fw0; fw1:30@d1#1 -> a1:1@d1#1 -> j -> "
                            "t1:8@d1#1!COLLECTIVE -> bw1:20@d1#1!BW -> e1#1* => fw1")
                 : graph_of("a0:1@d0 -> j!BARRIER -> t0:8@d0!COLLECTIVE -> fw0:10@d0 -> "
                            "bw0:20@d0!BW -> e0* => a0; a1:1@d1#1 -> j -> "
                            "t1:8@d1#1!COLLECTIVE -> fw1:30@d1#1 -> bw1:20@d1#1!BW -> e1#1* => a1");
    add_collective(g, "j", 1 << 10, "a0 t0 a1 t1");
    add_units(g, 1, names);
    set_gather(g, 0, backward, "a0 j t0 a1 t1");
    for (uint32_t r = 0; r < 2; r++)
        set_request(g, 0, r, r ? "fw1" : "fw0");
    return g;
}

TEST(ranks_no_longer_meet_in_a_collective_that_is_gone)
{
    struct resharded *r = reshard(two_ranks(true), "none");
    const struct dpro_graph *g = &r->graph;
    assert_int_equal(r->rc, 0);
    assert_int_equal(g->n_collectives, 0);
    assert_int_equal(g->n_members, 0);
    assert_true(follows(g, op_named(g, "fw0"), op_named(g, "bw0")));
    assert_true(follows(g, op_named(g, "fw1"), op_named(g, "bw1")));
    assert_int_equal(replay_ns(r->from, NULL), 59);
    assert_int_equal(replay_ns(g, NULL), (30 + 50) / 2); /* each takes as long as it does alone */
    drop(r);
}

TEST(a_copied_collective_has_members_of_its_own)
{
    struct dpro_graph *from = two_ranks(false);
    from->dimension = arena_array(&from->arena, from->n_ops, sizeof *from->dimension);
    from->dimension[from->members[0].transfer] = from->dimension[from->members[1].transfer] = 1;
    struct resharded *r = reshard(from, "all");
    const struct dpro_graph *g = &r->graph;
    assert_int_equal(r->rc, 0);
    uint32_t n_in_dimension = 0; /* the copies are, too */
    for (uint32_t op = 0; op < g->n_ops; op++)
        n_in_dimension += g->dimension[op];
    assert_int_equal(n_in_dimension, 4);
    assert_int_equal(g->n_collectives, 2);
    assert_int_equal(g->n_members, 4);
    for (uint32_t m = 0; m < 2; m++) {
        const struct graph_member *own = &g->members[m], *copy = &g->members[m + 2];
        assert_int_not_equal(own->arrival, copy->arrival);
        assert_int_equal(g->name[own->arrival], g->name[copy->arrival]);
        assert_int_equal(g->name[own->transfer], g->name[copy->transfer]);
        assert_int_equal(g->rank[copy->transfer], m);
        assert_true(follows(g, copy->arrival, g->collectives[1].barrier));
        assert_true(follows(g, g->collectives[1].barrier, copy->transfer));
    }
    assert_int_equal(replay_ns(r->from, NULL), 59);
    assert_int_equal(replay_ns(g, NULL), 68);
    drop(r);
}

/* The root is asked for first; its gather is what a's follows, and goes. */
TEST(what_is_asked_for_after_an_op_that_goes_follows_the_one_before)
{
    static const char *const names[] = {"", "a"};
    struct dpro_graph *g = graph_of("rf:4@d0 -> gf:5@d0 -> fw:10@d0 -> loss:2@d0 -> gr:4@d0!BW -> "
                                    "bw:20@d0!BW -> up:3@d0!UPDATE -> end*; end => rf");
    add_units(g, 2, names);
    set_gather(g, 0, false, "rf");
    set_gather(g, 0, true, "gr");
    set_gather(g, 1, false, "gf");
    set_request(g, 0, 0, "loss");
    set_request(g, 1, 0, "gr");
    struct resharded *r = reshard(g, "a");
    assert_int_equal(r->rc, 0);
    assert_int_equal(r->units.n_changed, 2);
    assert_int_equal(count_named(&r->graph, "gr"), 0);
    assert_int_equal(count_named(&r->graph, "gf"), 2);
    assert_int_equal(replay_ns(g, NULL), 48);
    assert_int_equal(replay_ns(&r->graph, NULL), 49);
    drop(r);
}

TEST(units_asked_for_at_once_are_gathered_one_after_the_other)
{
    static const char *const names[] = {"a", "b"};
    struct dpro_graph *g = graph_of("ga:5@d0 -> gb:7@d0 -> fw:10@d0 -> bw:20@d0!BW -> end*; "
                                    "end => ga");
    add_units(g, 2, names);
    set_gather(g, 0, false, "ga");
    set_gather(g, 1, false, "gb");
    set_request(g, 0, 0, "fw");
    set_request(g, 1, 0, "fw");
    struct resharded *r = reshard(g, "b, a");
    assert_int_equal(r->rc, 0);
    assert_int_equal(replay_ns(g, NULL), 42);
    assert_int_equal(replay_ns(&r->graph, NULL), 54);
    drop(r);
}

TEST(work_that_is_gone_measures_no_iteration)
{
    static const char *const names[] = {"a"};
    struct dpro_graph *g = graph_of("first:5@g0 -> fw:10@g0 -> bw:20@g0!BW -> last:5@g0!BW -> "
                                    "end*; end => first");
    add_units(g, 1, names);
    set_gather(g, 0, true, "first last");
    g->ranks[0].on_device = true;
    g->ranks[0].first_work = op_named(g, "first");
    g->ranks[0].last_work = op_named(g, "last");
    struct resharded *r = reshard(g, "none");
    assert_int_equal(r->rc, 0);
    assert_true(r->graph.ranks[0].on_device);
    assert_int_equal(r->graph.ranks[0].first_work, op_named(&r->graph, "fw"));
    assert_int_equal(r->graph.ranks[0].last_work, op_named(&r->graph, "bw"));
    assert_int_equal(replay_ns(&r->graph, NULL), 30);
    drop(r);
}

TEST(what_nothing_tells_is_refused)
{
    static const char *const names[] = {"a"};
    struct dpro_graph *g = graph_of("a:1@d0 -> end*; end => a");
    assert_refused(g, "all", "nothing shows that FSDP gathers parameters");
    assert_refused(gathered_twice(), "b", "no FSDP unit of the job is named 'b'; it has a");
    assert_refused(gathered_twice(), "a,blocks.*", "no FSDP unit of the job is named 'blocks.*'");
    g = gathered_once();
    g->units[1].request[0] = DPRO_NO_OP; /* no backward pass */
    assert_refused(g, "all", "unit 'a' is not gathered in the iteration that was recorded");
    g = graph_of("gf:5@g0 -> fw:10@g0 -> bw:20@g0!BW -> end*; end => gf");
    add_units(g, 1, names);
    set_gather(g, 0, false, "gf");
    set_request(g, 0, 0, "fw");
    assert_refused(g, "all", "where on its GPU's streams they would be gathered again");
}

TEST(ranks_that_ask_in_different_orders_are_refused)
{
    static const char *const names[] = {"a", "b"};
    struct dpro_graph *g =
        graph_of("a0:1@d0 -> ja!BARRIER -> ta0:1@d0 -> b0:1@d0 -> jb!BARRIER -> tb0:1@d0 -> "
                 "x0:1@d0 -> y0:1@d0 -> z0:1@d0 -> e0* => a0;"
                 "a1:1@d1#1 -> ja -> ta1:1@d1#1 -> b1:1@d1#1 -> jb -> tb1:1@d1#1 -> "
                 "x1:1@d1#1 -> y1:1@d1#1 -> z1:1@d1#1 -> e1#1* => a1");
    add_collective(g, "ja", 8, "a0 ta0 a1 ta1");
    add_collective(g, "jb", 8, "b0 tb0 b1 tb1");
    add_units(g, 2, names);
    set_gather(g, 0, false, "a0 ja ta0 a1 ta1");
    set_gather(g, 1, false, "b0 jb tb0 b1 tb1");
    set_request(g, 0, 0, "x0");
    set_request(g, 1, 0, "y0");
    set_request(g, 1, 1, "x1");
    set_request(g, 0, 1, "y1");
    assert_refused(g, "all", "in different orders");
}

/* ---- memory ---- */

/* Parameters of 100 bytes come out of an all-gather that needs 30 more; what the backward pass
 * needs of the forward pass are 50 bytes and the loss's 8. */
static void take_gathered(struct dpro_graph *g, const char *op, bool backward, uint32_t *parameters)
{
    uint32_t own = add_block(g->memory, 30, DPRO_MEMORY_COMMUNICATION);
    *parameters = add_block(g->memory, 100, DPRO_MEMORY_COMMUNICATION);
    for (uint32_t b = own; b <= *parameters; b++)
        g->memory->blocks[b].gather = GATHER(1, backward);
    g->memory->blocks[*parameters].gathered = true;
    take_in_op(g, own, op, 0);
    take_in_op(g, *parameters, op, 10);
    give_in_op(g, own, op, 20);
}

static struct dpro_graph *with_memory(struct dpro_graph *g, bool twice)
{
    uint32_t parameters;
    struct graph_memory *m = add_memory(g);
    struct graph_unit_places *places = arena_array(&g->arena, 2, sizeof *places);
    uint32_t kept = add_block(m, 50, DPRO_MEMORY_ACTIVATION);
    uint32_t loss = add_block(m, 8, DPRO_MEMORY_ACTIVATION);
    m->units = places;
    m->n_units = 2;
    places[0] = (struct graph_unit_places){MEMORY_NONE, MEMORY_NONE, MEMORY_NONE};
    take_gathered(g, "gf", false, &parameters);
    take_in_op(g, kept, "fw", 0);
    places[1].forward_end = m->n_moments + twice;
    if (twice)
        give_in_op(g, parameters, "fw", UINT16_MAX);
    take_in_op(g, loss, "loss", 0);
    places[1].asked = MEMORY_NONE;
    places[1].backward = m->n_moments;
    if (twice)
        take_gathered(g, "gb", true, &parameters);
    give_in_op(g, kept, "bw", UINT16_MAX / 2);
    give_in_op(g, loss, "bw", UINT16_MAX / 2);
    give_in_op(g, parameters, "bw", UINT16_MAX);
    return g;
}

TEST(parameters_that_are_kept_live_until_the_backward_pass_is_over)
{
    struct resharded *r = reshard(with_memory(gathered_twice(), true), "none");
    assert_int_equal(r->rc, 0);
    assert_int_equal(peak_bytes(r->from), 30 + 100 + 50 + 8);
    assert_int_equal(peak_bytes(&r->graph), 100 + 50 + 8);
    drop(r);
    struct dpro_graph *g = with_memory(gathered_once(), false); /* as such a job was recorded */
    assert_int_equal(peak_bytes(g), 100 + 50 + 8);
}

TEST(parameters_that_are_freed_come_back_with_what_the_all_gather_needs)
{
    struct resharded *r = reshard(with_memory(gathered_once(), false), "all");
    assert_int_equal(r->rc, 0);
    assert_int_equal(peak_bytes(&r->graph), 30 + 100 + 50 + 8);
    const struct graph_memory *m = &r->graph.memory[0];
    assert_int_equal(m->n_blocks, r->from->memory->n_blocks + 2);
    int64_t held = 0;
    for (uint32_t i = 0; i < m->n_moments; i++) {
        const struct graph_block *block = &m->blocks[m->moments[i].block];
        assert_int_equal(m->moments[i].gives ? block->given : block->taken, i);
        held += m->moments[i].gives ? -(int64_t)block->size_bytes : (int64_t)block->size_bytes;
        assert_true(held >= 0);
        if (m->moments[i].op == op_named(&r->graph, "loss"))
            assert_int_equal(held, 50 + 8); /* they are free between the passes */
    }
    assert_int_equal(held, 0);
    drop(r);
}

/* ---- any graph ---- */

static void check_edit(const struct resharded *r)
{
    const struct dpro_graph *g = &r->graph;
    uint32_t n = 0;
    for (uint32_t rank = 0; rank < g->n_ranks; rank++) {
        assert_int_equal(g->ranks[rank].first_op, n);
        n += g->ranks[rank].n_ops;
    }
    assert_int_equal(n, g->n_ops);
    for (uint32_t op = 0; op < g->n_ops; op++) {
        assert_true(g->row[op] <= g->row[op + 1]);
        for (uint32_t e = g->row[op]; e < g->row[op + 1]; e++)
            assert_true(g->succ[e] < g->n_ops);
        for (uint32_t e = g->next_row ? g->next_row[op] : 0; g->next_row && e < g->next_row[op + 1];
             e++)
            assert_true(g->next_succ[e] < g->n_ops);
    }
    assert_int_equal(graph_check_acyclic(g, NULL), 0);
    replay_ns(g, NULL);
}

TEST(any_graph_is_refused_or_still_one)
{
    static const char *const names[] = {"", "a", "b"};
    static const char *const asked[] = {"all", "none", "a", "b", "a,b"};
    int n_done = 0;
    for (uint64_t seed = 0; seed < 3000; seed++) {
        struct dpro_graph *g = random_graph(seed);
        add_units(g, 3, names);
        for (uint32_t op = 0; op < g->n_ops; op++)
            g->gather[op] = pick(2) ? 0 : GATHER(pick(3), pick(2));
        for (uint32_t i = 0; i < 3 * g->n_ranks; i++) {
            const struct graph_rank *rank = &g->ranks[i / 3];
            if (pick(8))
                g->units[i % 3].request[i / 3] = rank->first_op + pick(rank->n_ops);
        }
        struct resharded *r = reshard(g, asked[pick(5)]);
        assert_true(r->rc == 0 || (r->rc == DPRO_EUSAGE && r->err.text[0]));
        if (r->rc == 0)
            check_edit(r);
        n_done += r->rc == 0;
        drop(r);
    }
    assert_true(n_done > 300);
}
