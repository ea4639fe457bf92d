/* FSDP jobs with other units resharded or asked for ahead: small graphs whose answer is known, and
 * any. */

#include "case.h"
#include "cost/change/change_units.h"
#include "cost/memory/strategy_memory.h"
#include "cost/program/evaluate.h"
#include "cost/program/model_memory.h"
#include "graph/graph.h"
#include "graph_ask.h"
#include "graph_text.h"

enum { US = 1000 };

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
    char text[300], *rest = NULL;
    snprintf(text, sizeof text, "%s", ops);
    for (char *op = strtok_r(text, " ", &rest); op; op = strtok_r(NULL, " ", &rest))
        g->gather[op_named(g, op)] = GATHER(unit, backward);
}

static void set_request(struct dpro_graph *g, uint32_t unit, uint32_t rank, const char *op)
{
    g->units[unit].request[rank] = op_named(g, op);
}

/* What tells when an op of one iteration begins. */
static void see_ops(struct dpro_graph *g)
{
    const struct dpro_replay *replay = replay_of(g, NULL);
    g->seen_start_ns = arena_array(&g->arena, g->n_ops, sizeof *g->seen_start_ns);
    g->seen_dur_ns = arena_array(&g->arena, g->n_ops, sizeof *g->seen_dur_ns);
    for (uint32_t op = 0; op < g->n_ops; op++) {
        g->seen_start_ns[op] = dpro_replay_view(replay)->start_ns[op];
        g->seen_dur_ns[op] = g->dur_ns[op];
    }
}

/* ---- the time ---- */

/* A gather of one rank: 100 us of work, 500 on the links, copying for 200. */
static void add_gather(char *text, size_t room, int rank, const char *name, const char *before,
                       const char *after)
{
    snprintf(text + strlen(text), room - strlen(text),
             "%s%d -> %si%d:100000@d%d#%d; %sa%d@l%d#%d!BARRIER -> %st%d:500000@l%d#%d!COLLECTIVE; "
             "%si%d -> %sa%d; %st%d -> %sc%d:200000@d%d#%d -> %s%d;"
             "%sa%d -> %sb!BARRIER -> %st%d;",
             before, rank, name, rank, rank, rank, name, rank, rank, rank, name, rank, rank, rank,
             name, rank, name, rank, name, rank, name, rank, rank, rank, after, rank, name, rank,
             name, name, rank);
}

/* Two ranks, of which the second is slower, with units "" and "a"; a's parameters are gathered for
 * both passes, or for the forward pass only. */
static struct dpro_graph *job(bool twice)
{
    static const char *const names[] = {"", "a"};
    char text[3000] = "";
    for (int r = 0; r < 2; r++) {
        size_t room = sizeof text;
        snprintf(text + strlen(text), room - strlen(text),
                 "in%d:%d@d%d#%d; fw%d:1000000@d%d#%d -> loss%d:300000@d%d#%d;"
                 "bw%d:2000000@d%d#%d!BW -> up%d:100000@d%d#%d!UPDATE -> e%d*@d%d#%d => in%d;",
                 r, r ? 700000 : 500000, r, r, r, r, r, r, r, r, r, r, r, r, r, r, r, r, r, r);
        add_gather(text, room, r, "f", "in", "fw");
        if (twice)
            add_gather(text, room, r, "g", "loss", "bw");
        else
            snprintf(text + strlen(text), room - strlen(text), "loss%d -> bw%d;", r, r);
    }
    struct dpro_graph *g = graph_of(text);
    add_collective(g, "fb", 10000, "fa0 ft0 fa1 ft1");
    if (twice)
        add_collective(g, "gb", 10000, "ga0 gt0 ga1 gt1");
    for (uint32_t c = 0; c < g->n_collectives; c++)
        g->collectives[c].kind = DPRO_ALL_GATHER;
    add_units(g, 2, names);
    set_gather(g, 1, false, "fi0 fa0 fb ft0 fc0 fi1 fa1 ft1 fc1");
    if (twice)
        set_gather(g, 1, true, "gi0 ga0 gb gt0 gc0 gi1 ga1 gt1 gc1");
    set_request(g, 1, 0, "loss0");
    set_request(g, 1, 1, "loss1");
    see_ops(g);
    return g;
}

struct asked {
    struct dpro_model model;
    struct unit_change change;
    struct arena arena;
    struct dpro_error err;
    int rc;
};

static void drop(struct asked *a)
{
    arena_fini(&a->arena);
    free(a);
}

static void ask_all(const struct dpro_graph *g, const struct dpro_changes *changes, struct asked *a)
{
    units_ask(g, changes, &a->arena, &a->change);
    units_change_programs(&a->change, g, NULL, &a->arena, &a->model);
}

static struct asked *ask(const struct dpro_graph *g, const struct dpro_model *model,
                         struct dpro_changes changes)
{
    struct asked *a = calloc(1, sizeof *a);
    assert_non_null(a);
    KEEP(a, drop);
    a->model = *model;
    a->rc = OUTCOME(&a->err, ask_all(g, &changes, a));
    if (a->rc < 0) { /* what was asked is freed */
        a->arena = (struct arena){0};
        a->change = (struct unit_change){0};
    }
    return a;
}

static struct asked *reshard(const struct dpro_graph *g, const char *names)
{
    return ask(g, learn(g), (struct dpro_changes){.reshard = names});
}

#define assert_us(model, us) assert_int_equal((evaluate_once(model) + US / 2) / US, us)

enum { AS_RAN_US = 700 + 800 + 1300 + 800 + 2100, ONCE_US = AS_RAN_US - 800 };

TEST(a_unit_that_keeps_its_parameters_is_not_gathered_again)
{
    struct dpro_graph *g = job(true);
    struct dpro_model *model = learn(g);
    assert_us(model, AS_RAN_US);
    struct asked *a = ask(g, model, (struct dpro_changes){.reshard = "none"});
    assert_int_equal(a->rc, 0);
    assert_int_equal(a->change.n_resharded, 1);
    assert_true(a->change.units[1].reshards_before && !a->change.units[1].reshards);
    assert_int_equal(a->model.n_communications, 1);
    assert_us(&a->model, ONCE_US);
    assert_us(model, AS_RAN_US); /* it stays as it is */
}

TEST(a_unit_that_frees_its_parameters_is_gathered_once_more)
{
    struct dpro_graph *g = job(false);
    struct dpro_model *model = learn(g);
    assert_us(model, ONCE_US);
    struct asked *a = ask(g, model, (struct dpro_changes){.reshard = "a"});
    assert_int_equal(a->rc, 0);
    assert_int_equal(a->model.n_communications, 2);
    assert_us(&a->model, AS_RAN_US);
    const struct model_program *p = &a->model.programs[1];
    const int64_t us[] = {200 + 1300 + 100, 0, 200 + 2100 + 700 + 100, 0};
    assert_int_equal(p->n_ops, 4); /* it issues, waits, issues, waits */
    for (uint32_t i = 0; i < p->n_ops; i++)
        assert_int_equal((p->ops[i].work_ns + US / 2) / US, us[i]);
}

TEST(an_all_gather_goes_behind_the_copying_of_the_unit_that_asks)
{
    static const char *const names[] = {"a", "b"};
    char text[3000] = "";
    for (int r = 0; r < 2; r++) {
        size_t room = sizeof text;
        snprintf(text + strlen(text), room - strlen(text),
                 "in%d:500000@d%d#%d; fw%d:1000000@d%d#%d; fx%d:1500000@d%d#%d -> "
                 "bw%d:2000000@d%d#%d!BW -> e%d*@d%d#%d => in%d;",
                 r, r, r, r, r, r, r, r, r, r, r, r, r, r, r, r);
        add_gather(text, room, r, "f", "in", "fw");
        add_gather(text, room, r, "g", "fw", "fx");
    }
    struct dpro_graph *g = graph_of(text);
    add_collective(g, "fb", 10000, "fa0 ft0 fa1 ft1");
    add_collective(g, "gb", 10000, "ga0 gt0 ga1 gt1");
    add_units(g, 2, names);
    set_gather(g, 0, false, "fi0 fa0 fb ft0 fc0 fi1 fa1 ft1 fc1");
    set_gather(g, 1, false, "gi0 ga0 gb gt0 gc0 gi1 ga1 gt1 gc1");
    see_ops(g);
    struct asked *a = ask(g, learn(g), (struct dpro_changes){.prefetch = 1});
    assert_int_equal(a->rc, 0);
    assert_int_equal(a->change.n_moved, 1);
    assert_int_equal(a->change.n_in_row, 2);
    assert_us(&a->model, 500 + 800 + 1000 + 800 + 3500);
    const struct model_program *p = &a->model.programs[0];
    const int64_t us[] = {200 + 3500 + 500 + 100, 0, 200 + 100, 0, 1000};
    assert_int_equal(p->n_ops, 5); /* b's behind a's copying, not behind its pass */
    for (uint32_t i = 0; i < p->n_ops; i++)
        assert_int_equal((p->ops[i].work_ns + US / 2) / US, us[i]);
}

static void assert_refused(struct dpro_graph *g, const char *names, const char *words)
{
    struct unit_change change;
    struct arena arena = {0};
    struct dpro_error err;
    struct dpro_changes changes = {.reshard = names};
    assert_int_equal(OUTCOME(&err, units_ask(g, &changes, &arena, &change)), DPRO_EUSAGE);
    assert_non_null(strstr(err.text, words));
}

TEST(what_nothing_tells_is_refused)
{
    static const char *const names[] = {"a"};
    struct dpro_graph *g = graph_of("a:1@d0 -> end*; end => a");
    assert_refused(g, "all", "does not show when FSDP gathers parameters");
    assert_refused(job(true), "b", "no FSDP unit of the job is named 'b'; it has a");
    assert_refused(job(true), "a,blocks.*", "no FSDP unit of the job is named 'blocks.*'");
    g = job(false);
    g->units[1].request[0] = DPRO_NO_OP; /* no backward pass */
    assert_refused(g, "all", "the recorded iteration does not gather unit 'a'");
    g = graph_of("gf:5@g0 -> fw:10@g0 -> bw:20@g0!BW -> end*; end => gf");
    add_units(g, 1, names);
    set_gather(g, 0, false, "gf");
    set_request(g, 0, 0, "fw");
    assert_refused(g, "all", "where on the GPU's streams they would be gathered again");
}

TEST(ranks_that_ask_in_different_orders_are_refused)
{
    static const char *const names[] = {"a", "b"};
    char text[3000] = "";
    for (int r = 0; r < 2; r++) {
        size_t room = sizeof text;
        snprintf(text + strlen(text), room - strlen(text),
                 "in%d:1000@d%d#%d; x%d:1000@d%d#%d; y%d:1000@d%d#%d -> z%d:1000@d%d#%d -> "
                 "w%d:1000@d%d#%d -> e%d*@d%d#%d => in%d;",
                 r, r, r, r, r, r, r, r, r, r, r, r, r, r, r, r, r, r, r);
        add_gather(text, room, r, "f", "in", "x");
        add_gather(text, room, r, "g", "x", "y");
    }
    struct dpro_graph *g = graph_of(text);
    add_collective(g, "fb", 10000, "fa0 ft0 fa1 ft1");
    add_collective(g, "gb", 10000, "ga0 gt0 ga1 gt1");
    add_units(g, 2, names);
    set_gather(g, 0, false, "fi0 fa0 fb ft0 fc0 fi1 fa1 ft1 fc1");
    set_gather(g, 1, false, "gi0 ga0 gb gt0 gc0 gi1 ga1 gt1 gc1");
    set_request(g, 0, 0, "y0");
    set_request(g, 1, 0, "z0");
    set_request(g, 1, 1, "y1");
    set_request(g, 0, 1, "z1");
    struct asked *a = reshard(g, "all");
    assert_int_equal(a->rc, DPRO_EUSAGE);
    assert_non_null(strstr(a->err.text, "in different orders"));
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

static struct dpro_graph *with_memory(bool twice)
{
    static const char *const names[] = {"", "a"};
    uint32_t parameters;
    struct dpro_graph *g =
        graph_of(twice ? "gf:5@d0 -> fw:10@d0 -> loss:2@d0 -> gb:5@d0!BW -> bw:20@d0!BW -> end*; "
                         "end => gf"
                       : "gf:5@d0 -> fw:10@d0 -> loss:2@d0 -> bw:20@d0!BW -> end*; end => gf");
    add_units(g, 2, names);
    set_gather(g, 1, false, "gf");
    if (twice)
        set_gather(g, 1, true, "gb");
    set_request(g, 1, 0, "loss");
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

static void assert_peaks(struct dpro_graph *g, const char *names, uint64_t before, uint64_t after)
{
    static const struct dpro_strategy as_it_is;
    struct dpro_model *model = learn(g);
    struct asked *a = ask(g, model, (struct dpro_changes){.reshard = names});
    assert_int_equal(a->rc, 0);
    a->model.memories =
        arena_copy(&a->arena, model->memories, model->n_memories, sizeof *model->memories);
    units_change_memory(&a->change, g, &a->arena, &a->model);
    assert_int_equal(memory_peak_bytes(model, &as_it_is), before);
    assert_int_equal(memory_peak_bytes(&a->model, &as_it_is), after);
}

TEST(parameters_that_are_kept_live_until_the_backward_pass_is_over)
{
    assert_peaks(with_memory(true), "none", 30 + 100 + 50 + 8, 100 + 50 + 8);
}

TEST(parameters_that_are_freed_come_back_with_what_the_all_gather_needs)
{
    assert_peaks(with_memory(false), "all", 100 + 50 + 8, 30 + 100 + 50 + 8);
}

/* ---- any graph ---- */

TEST(any_graph_is_refused_or_still_goes_on)
{
    static const char *const names[] = {"", "a", "b"};
    static const char *const asked[] = {"all", "none", "a", "b", "a,b"};
    const struct dpro_model_options options = {.all_communication = 1};
    int n_done = 0;
    for (uint64_t seed = 0; seed < 3000; seed++) {
        struct dpro_graph *g = random_graph(seed);
        struct dpro_model *model;
        struct dpro_error err;
        if (dpro_model_build(g, &options, &model, &err) < 0)
            continue;
        add_units(g, 3, names);
        for (uint32_t op = 0; op < g->n_ops; op++)
            g->gather[op] = pick(2) ? 0 : GATHER(pick(3), pick(2));
        for (uint32_t i = 0; i < 3 * g->n_ranks; i++) {
            const struct graph_rank *rank = &g->ranks[i / 3];
            if (pick(8))
                g->units[i % 3].request[i / 3] = rank->first_op + pick(rank->n_ops);
        }
        int64_t before = evaluate_once(model);
        struct asked *a = ask(g, model, (struct dpro_changes){.reshard = asked[pick(5)]});
        assert_true(a->rc == 0 || (a->rc == DPRO_EUSAGE && a->err.text[0]));
        bool repeats = false;
        for (uint32_t i = 0; i < a->change.n_edits; i++)
            repeats |= a->change.edits[i].kind == EDIT_REPEATS;
        if (a->rc == 0)
            assert_true(repeats || evaluate_once(&a->model) <= before);
        n_done += a->rc == 0;
        dpro_model_destroy(model);
    }
    assert_true(n_done > 100);
}
