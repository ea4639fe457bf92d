/* What is held while ops run as replayed, on small graphs whose answer is known and against a slow
 * plain sweep. */

#include "case.h"
#include "graph_ask.h"
#include "graph_text.h"
#include "replay/replay.h"

#define ALL_OF_IT UINT16_MAX

static uint32_t text_id(struct dpro_graph *g, const char *text)
{
    return strtab_add(&g->names, text, strlen(text));
}

TEST(nothing_is_said_where_nothing_is_known)
{
    struct dpro_graph *g = graph_of("a:10@d0 -> b:5@d0 -> end*; end => a");
    const struct dpro_replay_view *r = dpro_replay_view(replay_of(g, NULL));
    assert_int_equal(r->memory[0].source, DPRO_MEMORY_UNKNOWN);
    assert_null(r->memory[0].points);
    assert_int_equal(r->memory[0].n_points, 0);
    assert_null(r->memory[0].holders);
    assert_int_equal(r->memory[0].n_holders, 0);
    add_memory(g); /* no blocks */
    r = dpro_replay_view(replay_of(g, NULL));
    assert_int_equal(r->memory[0].source, DPRO_MEMORY_UNKNOWN);
    assert_int_equal(r->memory[0].peak_op, DPRO_NO_OP);
}

TEST(what_is_there_before_and_after_is_the_peak_of_an_idle_rank)
{
    struct dpro_graph *g = graph_of("a:10@d0 -> end*; end => a");
    add_block(add_memory(g), 1000, DPRO_MEMORY_PARAMETER);
    add_block(g->memory, 24, DPRO_MEMORY_STATE);
    g->memory->capacity_bytes = 1 << 20;
    struct dpro_replay *r = replay_of(g, NULL);
    struct dpro_rank_memory m = dpro_replay_view(r)->memory[0];
    assert_int_equal(m.peak_bytes, 1024);
    assert_int_equal(m.peak_op, DPRO_NO_OP);
    assert_int_equal(m.peak_phase, DPRO_OP_BARRIER);
    assert_null(m.peak_module);
    assert_int_equal(m.capacity_bytes, 1 << 20);
    assert_int_equal(m.by_category[DPRO_MEMORY_PARAMETER], 1000);
}

/* Forward takes an activation, backward takes a gradient before it gives the activation back. */
static struct dpro_graph *training(void)
{
    struct dpro_graph *g =
        graph_of("fw:100@d0 -> bw:200@d0!BW -> up:50@d0!UPDATE -> end*; end => fw");
    struct graph_memory *m = add_memory(g);
    uint32_t weight = add_block(m, 1000, DPRO_MEMORY_PARAMETER);
    uint32_t activation = add_block(m, 700, DPRO_MEMORY_ACTIVATION);
    uint32_t gradient = add_block(m, 1000, DPRO_MEMORY_GRADIENT);
    uint32_t scratch = add_block(m, 900, DPRO_MEMORY_TEMPORARY);
    m->blocks[weight].name = text_id(g, "blocks.0.linear.weight");
    m->blocks[gradient].name = m->blocks[weight].name;
    take_in_op(g, activation, "fw", ALL_OF_IT / 2);
    take_in_op(g, gradient, "bw", ALL_OF_IT / 4);
    give_in_op(g, activation, "bw", ALL_OF_IT);
    take_in_op(g, scratch, "up", 0);
    give_in_op(g, scratch, "up", ALL_OF_IT);
    give_in_op(g, gradient, "up", ALL_OF_IT);
    m->calls[0] = (struct graph_call){.module = text_id(g, ""),
                                      .parent = MEMORY_NONE,
                                      .forward_last = 1,
                                      .backward_first = 1,
                                      .backward_last = 3};
    m->calls[1] = (struct graph_call){.module = text_id(g, "blocks.0.linear"),
                                      .forward_last = 1,
                                      .backward_first = 1,
                                      .backward_last = 3};
    m->n_calls = 2;
    m->blocks[activation].call = 1;
    return g;
}

TEST(the_peak_says_when_and_who)
{
    struct dpro_graph *g = training();
    uint32_t n;
    struct dpro_replay *r = replay_of(g, NULL);
    struct dpro_rank_memory m = dpro_replay_view(r)->memory[0];
    assert_int_equal(m.peak_bytes, 2900); /* scratch in the update */
    assert_int_equal(m.peak_op, op_named(g, "up"));
    assert_int_equal(m.peak_phase, DPRO_OP_UPDATE);
    assert_int_equal(m.peak_ns, 300);
    assert_null(m.peak_module);

    g->memory->blocks[3].size_bytes = 600;
    r = replay_of(g, NULL);
    m = dpro_replay_view(r)->memory[0];
    assert_int_equal(m.peak_bytes, 2700);
    assert_int_equal(m.peak_op, op_named(g, "bw"));
    assert_int_equal(m.peak_phase, DPRO_OP_BW);
    assert_in_range(m.peak_ns, 149, 150);
    assert_string_equal(m.peak_module, "blocks.0.linear");
    assert_int_equal(m.by_category[DPRO_MEMORY_ACTIVATION], 700);
    assert_int_equal(m.by_category[DPRO_MEMORY_TEMPORARY], 0);
    const struct dpro_memory_holder *h = dpro_replay_view(r)->memory[0].holders;
    n = dpro_replay_view(r)->memory[0].n_holders;
    assert_int_equal(n, 3);
    for (uint32_t i = 0; i < n; i++) {
        assert_string_equal(h[i].module, "blocks.0.linear");
        assert_int_equal(h[i].n_blocks, 1);
    }
    assert_int_equal(h[0].category, DPRO_MEMORY_PARAMETER);
    assert_int_equal(h[1].category, DPRO_MEMORY_GRADIENT);
    assert_int_equal(h[2].size_bytes, 700);
    const struct dpro_memory_point *points = dpro_replay_view(r)->memory[0].points;
    n = dpro_replay_view(r)->memory[0].n_points;
    assert_int_equal(n, 7);
    assert_int_equal(points[0].at_ns, 0);
    assert_int_equal(points[0].by_category[DPRO_MEMORY_PARAMETER], 1000);
    assert_in_range(points[1].at_ns, 49, 50);
    assert_int_equal(points[2].by_category[DPRO_MEMORY_GRADIENT], 1000);
    assert_int_equal(points[6].by_category[DPRO_MEMORY_GRADIENT], 0);
}

/* Two threads: what one takes is given back before or after the other takes its own. */
TEST(a_delay_moves_the_peak)
{
    struct dpro_graph *g = graph_of("go:1@d0 -> a:10@d0 -> end*; go -> b:100@d1 -> end; end => go");
    struct graph_memory *m = add_memory(g);
    uint32_t first = add_block(m, 100, DPRO_MEMORY_TEMPORARY),
             second = add_block(m, 50, DPRO_MEMORY_TEMPORARY);
    take_in_op(g, first, "a", 0);
    give_in_op(g, first, "a", ALL_OF_IT);
    take_in_op(g, second, "b", ALL_OF_IT / 2);
    give_in_op(g, second, "b", ALL_OF_IT);
    const char *delay = "a=7";
    struct dpro_replay *r = replay_of(g, NULL);
    assert_int_equal(dpro_replay_view(r)->memory[0].peak_bytes, 100);
    r = replay_of(g, &(struct dpro_replay_options){.delays = &delay, .n_delays = 1});
    assert_int_equal(dpro_replay_view(r)->memory[0].peak_bytes, 150);
    assert_int_equal(dpro_replay_view(r)->memory[0].peak_op, op_named(g, "b"));
}

TEST(blocks_of_one_module_and_category_are_one_holder)
{
    struct dpro_graph *g = graph_of("a:10@d0 -> end*; end => a");
    struct graph_memory *m = add_memory(g);
    const char *const names[] = {"head.weight", "head.bias", "scale", ""};
    uint32_t n;
    for (uint32_t i = 0; i < 4; i++)
        m->blocks[add_block(m, 100 << i, DPRO_MEMORY_PARAMETER)].name = text_id(g, names[i]);
    add_block(m, 1, DPRO_MEMORY_OTHER);
    add_block(m, 2, 200); /* no category */
    struct dpro_replay *r = replay_of(g, NULL);
    const struct dpro_memory_holder *h = dpro_replay_view(r)->memory[0].holders;
    n = dpro_replay_view(r)->memory[0].n_holders;
    assert_int_equal(n, 4);
    assert_null(h[0].module); /* no name */
    assert_string_equal(h[1].module, "");
    assert_int_equal(h[1].size_bytes, 400);
    assert_string_equal(h[2].module, "head");
    assert_int_equal(h[2].n_blocks, 2);
    assert_int_equal(h[2].size_bytes, 300);
    assert_int_equal(h[3].category, DPRO_MEMORY_OTHER);
    assert_int_equal(h[3].size_bytes, 3);
}

TEST(state_belongs_to_the_module_of_its_parameter)
{
    struct dpro_graph *g = graph_of("a:10@d0 -> end*; end => a");
    struct graph_memory *m = add_memory(g);
    static const struct {
        const char *name, *module;
        uint8_t category;
    } blocks[] = {{"head.linear.weight", "head.linear", DPRO_MEMORY_PARAMETER},
                  {"head.linear.weight.exp_avg", "head.linear", DPRO_MEMORY_STATE},
                  {"head.linear.weight.state.step", "head.linear", DPRO_MEMORY_STATE},
                  {"scale", "", DPRO_MEMORY_PARAMETER},
                  {"scale.exp_avg", "", DPRO_MEMORY_STATE},
                  {"other.bias.exp_avg", "", DPRO_MEMORY_STATE}};
    enum { N = sizeof blocks / sizeof *blocks };
    uint32_t n, n_blocks = 0;
    for (uint32_t i = 0; i < N; i++)
        m->blocks[add_block(m, 100, blocks[i].category)].name = text_id(g, blocks[i].name);
    struct dpro_replay *r = replay_of(g, NULL);
    const struct dpro_memory_holder *h = dpro_replay_view(r)->memory[0].holders;
    n = dpro_replay_view(r)->memory[0].n_holders;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t of_it = 0;
        for (uint32_t k = 0; k < N; k++)
            of_it += blocks[k].category == h[i].category && !strcmp(blocks[k].module, h[i].module);
        assert_int_equal(h[i].n_blocks, of_it);
        n_blocks += of_it;
    }
    assert_int_equal(n, 4);
    assert_int_equal(n_blocks, N);
}

#define MIB UINT64_C(1048576)

/* Segments are of 2 MiB for blocks up to 1 MiB, of 20 MiB for those below 10 MiB, else as large as
 * the block. */
TEST(a_gpu_reserves_segments)
{
    struct dpro_graph *g = graph_of("fw:100@d0 -> bw:200@d0!BW -> end*; end => fw");
    struct graph_memory *m = add_memory(g);
    m->gpu = true;
    add_block(m, 512, DPRO_MEMORY_PARAMETER);
    uint32_t old = add_block(m, 30 * MIB, DPRO_MEMORY_GRADIENT),
             new = add_block(m, 30 * MIB, DPRO_MEMORY_GRADIENT),
             activation = add_block(m, 4 * MIB, DPRO_MEMORY_ACTIVATION);
    take_in_op(g, activation, "fw", 0);
    give_in_op(g, old, "bw", 0);
    take_in_op(g, new, "bw", 1);
    give_in_op(g, activation, "bw", ALL_OF_IT);
    struct dpro_replay *r = replay_of(g, NULL);
    assert_int_equal(dpro_replay_view(r)->memory[0].peak_bytes, 34 * MIB + 512);
    assert_int_equal(dpro_replay_view(r)->memory[0].reserved_peak_bytes, (2 + 30 + 20) * MIB);

    /* what the iteration keeps is there when the next one takes its own */
    m->blocks[old].given = MEMORY_NONE;
    m->n_moments = 0;
    take_in_op(g, new, "fw", 0);
    give_in_op(g, old, "bw", 0);
    r = replay_of(g, NULL);
    assert_int_equal(dpro_replay_view(r)->memory[0].reserved_peak_bytes, (2 + 30 + 30) * MIB);
    m->gpu = false;
    r = replay_of(g, NULL);
    assert_int_equal(dpro_replay_view(r)->memory[0].reserved_peak_bytes, 0);
}

/* One block of 30 MiB and one of 4 MiB, on a GPU whose allocator is set as told: what is known of
 * it, and, in MiB, what it reserves, and refuses; before the first op: a block that was there
 * before. */
TEST(what_is_reserved_and_refused_depends_on_the_allocators_settings)
{
    enum { KNOWN = DPRO_ALLOCATOR_KNOWN };
    static const struct {
        const char *settings;
        uint64_t capacity;
        int known;
        uint64_t reserved, refused;
        const char *op;
    } cases[] = {
        {NULL, 0, DPRO_ALLOCATOR_ASSUMED, 30 + 20, 0, NULL},
        {"", 0, KNOWN, 30 + 20, 0, NULL},
        {"expandable_segments:True", 0, KNOWN, 40, 0, NULL}, /* one segment, mapped by 20 MiB */
        {"roundup_power2_divisions:1", 0, KNOWN, 30 + 20, 0, NULL},
        {"roundup_power2_divisions:2", 0, KNOWN, 32 + 20, 0, NULL}, /* 30 is rounded to 32 */
        {"backend:cudaMallocAsync", 40, DPRO_ALLOCATOR_STRANGE, 0, 0, NULL},
        {"", 49, KNOWN, 30, 4, "fw"},
        {"", 50, KNOWN, 30 + 20, 0, NULL},
        {"expandable_segments:True", 49, KNOWN, 40, 0, NULL},
        {"", 29, KNOWN, 20, 30, NULL},
        /* the capacity is what the process may have already */
        {"per_process_memory_fraction:0.5", 50, KNOWN, 30 + 20, 0, NULL},
        {"per_process_memory_fraction:0.5", 49, KNOWN, 30, 4, "fw"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *text = cases[i].settings;
        struct dpro_graph *g = graph_of("fw:100@d0 -> bw:200@d0!BW -> end*; end => fw");
        struct graph_memory *m = add_memory(g);
        struct dpro_error err;
        m->gpu = true;
        m->capacity_bytes = cases[i].capacity * MIB;
        if (text) {
            m->allocator = allocator_settings_default();
            if (allocator_settings_parse(&m->allocator, text, &err) != 0)
                fail_msg("%s: %s", text, err.text);
            m->allocator.known = DPRO_ALLOCATOR_KNOWN;
        }
        add_block(m, 30 * MIB, DPRO_MEMORY_PARAMETER);
        uint32_t activation = add_block(m, 4 * MIB, DPRO_MEMORY_ACTIVATION);
        take_in_op(g, activation, "fw", 0);
        give_in_op(g, activation, "bw", ALL_OF_IT);
        struct dpro_rank_memory found = dpro_replay_view(replay_of(g, NULL))->memory[0];
        print_message("%s %d\n", text ? text : "not known", (int)cases[i].capacity);
        assert_int_equal(found.peak_bytes, 34 * MIB);
        assert_int_equal(found.allocator, cases[i].known);
        assert_int_equal(found.reserved_peak_bytes, cases[i].reserved * MIB);
        assert_int_equal(found.refused_bytes, cases[i].refused * MIB);
        assert_int_equal(found.refused_op, cases[i].op ? op_named(g, cases[i].op) : DPRO_NO_OP);
    }
}

TEST(optimizer_state_lies_where_the_first_iteration_was)
{
    struct dpro_graph *g = graph_of("fw:100@d0 -> bw:200@d0!BW -> end*; end => fw");
    struct graph_memory *m = add_memory(g);
    m->gpu = true;
    add_block(m, 30 * MIB, DPRO_MEMORY_PARAMETER);
    add_block(m, 30 * MIB, DPRO_MEMORY_STATE);
    uint32_t activation = add_block(m, 30 * MIB, DPRO_MEMORY_ACTIVATION);
    take_in_op(g, activation, "fw", 0);
    give_in_op(g, activation, "bw", ALL_OF_IT);
    struct dpro_replay *r = replay_of(g, NULL);
    /* the next one takes 30 MiB more */
    assert_int_equal(dpro_replay_view(r)->memory[0].reserved_peak_bytes, 3 * 30 * MIB);
}

/* What no reader should make, and sizes beyond all reason. */
TEST(what_makes_no_sense_does_no_harm)
{
    struct dpro_graph *g = graph_of("a:10@d0 -> b:5@d0 -> end*; end => a");
    struct graph_memory *m = add_memory(g);
    uint32_t huge = add_block(m, UINT64_MAX, DPRO_MEMORY_OTHER),
             before = add_block(m, UINT64_MAX, DPRO_MEMORY_OTHER),
             late = add_block(m, 10, DPRO_MEMORY_OTHER);
    give_in_op(g, late, "a", 0); /* before it is taken */
    take_in_op(g, huge, "a", 0);
    take_in_op(g, late, "a", 0);
    add_moment(m, before, true, 4000, 0); /* in no op */
    m->moments[m->n_moments++] = (struct graph_moment){.block = 4000};
    m->moments[m->n_moments++] = (struct graph_moment){.block = huge, .gives = true};
    m->gpu = true;
    struct dpro_replay *r = replay_of(g, NULL);
    struct dpro_rank_memory found = dpro_replay_view(r)->memory[0];
    assert_true(found.peak_bytes > INT64_MAX / 3 && found.peak_bytes <= INT64_MAX);
    assert_int_equal(found.by_category[DPRO_MEMORY_OTHER], found.peak_bytes);
}

/* ---- random cases ---- */

static void fill_at_random(struct dpro_graph *g, uint32_t r)
{
    struct graph_memory *m = &g->memory[r];
    uint32_t open[200], n_open = 0, n = pick(120);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t op = pick(8) == 0 ? DPRO_NO_OP : pick(g->n_ops), choice = pick(3);
        uint16_t share = pick(4) == 0 ? 0 : (uint16_t)pick(UINT16_MAX + 1);
        if (choice > 0 && n_open > 0) {
            uint32_t at = pick(n_open);
            if (choice == 1)
                add_moment(m, open[at], true, op, share);
            open[at] = open[--n_open];
            continue;
        }
        uint32_t block = add_block(m, 1 + pick(1000), (uint8_t)pick(DPRO_N_MEMORY_CATEGORIES));
        if (pick(4) > 0)
            add_moment(m, block, false, op, share);
        open[n_open++] = block;
    }
}

/* Whether the block is held right after moment `now`, 1 + its number; 0: before all. */
static bool is_held(const struct graph_memory *m, const int64_t *at_ns, const struct graph_block *b,
                    uint32_t now)
{
    uint32_t ends[] = {b->taken, b->given};
    bool passed[2];
    for (int e = 0; e < 2; e++)
        passed[e] = ends[e] != MEMORY_NONE && now > 0 &&
                    (at_ns[ends[e]] < at_ns[now - 1] ||
                     (at_ns[ends[e]] == at_ns[now - 1] && ends[e] <= now - 1));
    assert_true(m->n_blocks > 0);
    return (b->taken == MEMORY_NONE || passed[0]) && !passed[1];
}

static void check_rank(const struct dpro_graph *g, const struct dpro_replay *r, uint32_t rank)
{
    const struct graph_memory *m = &g->memory[rank];
    struct dpro_rank_memory found = dpro_replay_view(r)->memory[rank];
    int64_t at_ns[400];
    uint64_t most = 0, sum = 0;
    bool is_reached = false;
    uint32_t n;
    if (m->n_blocks == 0)
        return;
    for (uint32_t i = 0; i < m->n_moments; i++) {
        const struct graph_moment *moment = &m->moments[i];
        uint32_t op = moment->op;
        at_ns[i] = i > 0 ? at_ns[i - 1] : INT64_MIN;
        if (op != DPRO_NO_OP) {
            int64_t dur = dpro_replay_view(r)->end_ns[op] - dpro_replay_view(r)->start_ns[op];
            at_ns[i] = dpro_replay_view(r)->start_ns[op] + dur * moment->share / UINT16_MAX;
        }
        uint32_t taken = m->blocks[moment->block].taken;
        if (moment->gives && taken != MEMORY_NONE)
            at_ns[i] = MAX(at_ns[i], at_ns[taken]);
    }
    for (uint32_t now = 0; now <= m->n_moments; now++) {
        uint64_t held = 0;
        for (uint32_t b = 0; b < m->n_blocks; b++)
            held += is_held(m, at_ns, &m->blocks[b], now) ? m->blocks[b].size_bytes : 0;
        most = MAX(most, held);
        if (held == found.peak_bytes && now > 0 && at_ns[now - 1] == found.peak_ns)
            is_reached = true;
    }
    assert_int_equal(found.peak_bytes, most);
    const struct dpro_memory_holder *holders = dpro_replay_view(r)->memory[rank].holders;
    n = dpro_replay_view(r)->memory[rank].n_holders;
    for (uint32_t i = 0; i < n; i++)
        sum += holders[i].size_bytes;
    assert_int_equal(sum, most);
    sum = 0;
    for (int c = 0; c < DPRO_N_MEMORY_CATEGORIES; c++)
        sum += found.by_category[c];
    assert_int_equal(sum, most);
    const struct dpro_memory_point *points = dpro_replay_view(r)->memory[rank].points;
    n = dpro_replay_view(r)->memory[rank].n_points;
    uint64_t highest = 0;
    for (uint32_t i = 0; i < n; i++) {
        assert_true(i == 0 || points[i].at_ns >= points[i - 1].at_ns);
        sum = 0;
        for (int c = 0; c < DPRO_N_MEMORY_CATEGORIES; c++)
            sum += points[i].by_category[c];
        highest = MAX(highest, sum);
    }
    assert_int_equal(highest, most);
    assert_true(is_reached || found.peak_op == DPRO_NO_OP);
}

TEST(random_sweeps_agree_with_a_plain_one)
{
    for (uint64_t seed = 0; seed < 2000; seed++) {
        struct dpro_graph *g = random_graph(seed);
        add_memory(g)->gpu = seed % 4 == 0;
        for (uint32_t r = 0; r < g->n_ranks; r++)
            fill_at_random(g, r);
        struct dpro_replay *r = replay_of(g, NULL);
        for (uint32_t rank = 0; rank < g->n_ranks; rank++)
            check_rank(g, r, rank);
    }
}

/* Far more moments than a timeline has points, all at different times. */
TEST(a_long_timeline_keeps_its_peaks_and_its_end)
{
    enum { N = 20000 };
    struct dpro_graph *g = graph_of("a:100000000@d0 -> end*; end => a");
    uint32_t n, seen = 0;
    g->memory = arena_array(&g->arena, 1, sizeof *g->memory);
    struct graph_memory *m = g->memory;
    m->blocks = arena_array(&g->arena, N, sizeof *m->blocks);
    m->moments = arena_array(&g->arena, 2 * N, sizeof *m->moments);
    for (uint32_t i = 0; i < N; i++) {
        uint32_t block = add_block(m, i % 1000 == 500 ? 70000 + i : 1, DPRO_MEMORY_TEMPORARY);
        add_moment(m, block, false, 0, (uint16_t)(i * 3));
        add_moment(m, block, true, 0, (uint16_t)(i * 3 + 1));
    }
    struct dpro_replay *r = replay_of(g, NULL);
    const struct dpro_memory_point *points = dpro_replay_view(r)->memory[0].points;
    n = dpro_replay_view(r)->memory[0].n_points;
    assert_in_range(n, 1000, 2001);
    for (uint32_t i = 0; i < n; i++)
        seen += points[i].by_category[DPRO_MEMORY_TEMPORARY] >= 70000;
    assert_int_equal(seen, N / 1000);
    assert_int_equal(points[n - 1].by_category[DPRO_MEMORY_TEMPORARY], 0);
    assert_int_equal(dpro_replay_view(r)->memory[0].peak_bytes, 70000 + N - 500);
}
