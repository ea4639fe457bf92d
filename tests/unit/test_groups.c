/* Ranks that communicate in groups: the simulation of models made by hand against paper and against
 * an obvious one, and models that are learnt from tiny graphs. */

#include <dpro/dimensions.h>
#include <dpro/whatif.h>

#include "case.h"
#include "cost/change/changes.h"
#include "cost/change/op_work.h"
#include "cost/learn/fit.h"
#include "cost/program/evaluate.h"
#include "cost/program/model_memory.h"
#include "graph/graph.h"
#include "graph_ask.h"
#include "graph_text.h"
#include "report/facts.h"
#include "slow_groups.h"
#include "temp_folder.h"

enum { MOST = 16, MOST_OPS = 64 };

/* Ranks, groups and communications as a test makes them. */
struct job {
    uint32_t ranks_of[MOST][MOST];
    struct model_group groups[MOST];
    struct model_communication communications[MOST];
    struct model_op ops[MOST][MOST_OPS];
    struct model_program programs[MOST];
    struct model_rank ranks[MOST];
    struct dpro_model model;
};

/* A byte takes 10 ns, within hosts 2, a message 100; nothing slows computation down. */
static struct job *job_of(uint32_t n_ranks)
{
    struct job *job = kept_memory(1, sizeof *job);
    struct dpro_model *m = &job->model;
    for (uint32_t r = 0; r < n_ranks; r++) {
        job->programs[r].ops = job->ops[r];
        job->ranks[r] = (struct model_rank){.rank = (int)r, .program = r, .work_scale = 1};
    }
    m->programs = job->programs;
    m->ranks = job->ranks;
    m->n_programs = m->n_ranks = n_ranks;
    m->groups = job->groups;
    m->communications = job->communications;
    m->no_gradients = "it has none";
    m->net = (struct model_net){.collective = {.n_ranks = n_ranks},
                                .gate = {.n_streams = 1, .in_order = true},
                                .link = {.byte_ns = {10, 0},
                                         .within_ns = {2, 0},
                                         .message_ns = {100, 0},
                                         .within_message_ns = {100, 0}},
                                .took_ratio = 1};
    m->net.learnt = m->net.link;
    return job;
}

/* ranks: "0 1 3"; of a pair the sender first. */
static uint32_t add_group(struct job *job, const char *ranks, bool sends, bool within)
{
    uint32_t g = job->model.n_groups++;
    struct model_group *group = &job->groups[g];
    *group = (struct model_group){
        .ranks = job->ranks_of[g], .n_streams = 1, .sends = sends, .within = within};
    for (; *ranks; ranks += ranks[1] ? 2 : 1)
        job->ranks_of[g][group->n_ranks++] = (uint32_t)(*ranks - '0');
    group->n_members = group->n_ranks;
    return g;
}

/* Its bytes by themselves, and 100 ns of latency. */
static uint32_t add(struct job *job, uint32_t group, double bytes)
{
    uint32_t c = job->model.n_communications++;
    double byte_ns = job->groups[group].within ? 2 : 10;
    job->communications[c] = (struct model_communication){.kind = DPRO_ALL_GATHER,
                                                          .group = group,
                                                          .size_bytes = (uint64_t)bytes,
                                                          .link_bytes = bytes,
                                                          .n_steps = 1,
                                                          .took_ns = bytes * byte_ns + 100};
    return c;
}

static void does(struct job *job, uint32_t rank, int64_t work_ns, uint32_t needs, uint32_t issues)
{
    struct model_program *p = &job->programs[rank];
    assert_true(p->n_ops < MOST_OPS);
    job->ops[rank][p->n_ops++] =
        (struct model_op){.name = "op", .needs = needs, .tensor = issues, .work_ns = work_ns};
}

#define NONE MODEL_NONE

/* ---- against the obvious simulation ---- */

static uint32_t draw_group(struct job *job, uint32_t n_ranks)
{
    char text[2 * MOST] = "";
    uint32_t n = 0;
    if (pick(3) == 0) {
        uint32_t from = pick(n_ranks), to = (from + 1 + pick(n_ranks - 1)) % n_ranks;
        text[0] = (char)('0' + from);
        text[1] = ' ';
        text[2] = (char)('0' + to);
        return add_group(job, text, true, pick(3) == 0);
    }
    for (uint32_t r = 0; r < n_ranks; r++)
        if (pick(2) || (n == 0 && r + 2 >= n_ranks) || (n == 1 && r + 1 == n_ranks)) {
            text[2 * n] = (char)('0' + r);
            text[2 * n + 1] = ' ';
            n++;
        }
    text[2 * n - 1] = '\0';
    return add_group(job, text, false, pick(3) == 0);
}

static bool is_in(const struct model_group *group, uint32_t rank)
{
    for (uint32_t i = 0; i < group->n_ranks; i++)
        if (group->ranks[i] == rank)
            return true;
    return false;
}

/* All ranks come to their communications in one order, and wait for each up to two later. */
static struct job *random_job(uint64_t seed)
{
    random_graph(seed);
    uint32_t n_ranks = 2 + pick(4), n_groups = 1 + pick(4), n = 1 + pick(8);
    struct job *job = job_of(n_ranks);
    for (uint32_t g = 0; g < n_groups; g++)
        job->groups[draw_group(job, n_ranks)].n_streams = 1 + pick(2);
    for (uint32_t c = 0; c < n; c++)
        add(job, pick(n_groups), pick(400));
    job->model.net.link.cpu_ns.value = pick(6);
    for (uint32_t r = 0; r < n_ranks; r++) {
        uint32_t waiting[MOST], n_waiting = 0;
        job->ranks[r].work_scale = 1 + 0.1 * pick(3);
        for (uint32_t c = 0; c < n; c++) {
            if (!is_in(&job->groups[job->communications[c].group], r))
                continue;
            does(job, r, pick(3000), NONE, c);
            waiting[n_waiting++] = c;
            while (n_waiting > pick(3)) {
                does(job, r, pick(100), waiting[--n_waiting], NONE);
                job->ops[r][job->programs[r].n_ops - 1].lag_ns = pick(2) * pick(300);
            }
        }
        while (n_waiting > 0)
            does(job, r, pick(500), waiting[--n_waiting], NONE);
        does(job, r, 100 + pick(900), NONE, NONE);
    }
    return job;
}

TEST(any_groups_take_as_long_as_in_the_obvious_simulation)
{
    for (uint64_t seed = 1; seed <= 400; seed++) {
        struct job *job = random_job(seed);
        double slow = slow_groups_period(&job->model, 12);
        int64_t fast = evaluate_once(&job->model);
        if (fabs(slow - (double)fast) > 1.5)
            fail_msg("seed %d: %f against %lld", (int)seed, slow, (long long)fast);
    }
}

/* ---- other links ---- */

static int64_t time_of_world(const struct dpro_graph *graph, const struct job *job,
                             const struct dpro_changes *changes)
{
    struct dpro_whatif *whatif;
    struct dpro_error err = {.code = 0};
    if (dpro_whatif_run(graph, &job->model, changes, &whatif, &err) < 0)
        fail_msg("%s", err.text);
    int64_t ns = dpro_whatif_answer(whatif)->predicted.iteration_ns;
    dpro_whatif_destroy(whatif);
    return ns;
}

static void assert_refused(const struct dpro_graph *graph, const struct job *job,
                           const struct dpro_changes *changes, const char *why)
{
    struct dpro_whatif *whatif;
    struct dpro_error err;
    assert_int_equal(dpro_whatif_run(graph, &job->model, changes, &whatif, &err), DPRO_EUSAGE);
    if (!strstr(err.text, why))
        fail_msg("%s", err.text);
}

TEST(bytes_scale_with_the_bandwidth_and_messages_with_latency)
{
    struct job *job = job_of(2);
    uint32_t c = add(job, add_group(job, "0 1", false, false), 100);
    job->communications[c].n_steps = 3;
    job->communications[c].took_ns = 1000 + 700;
    for (uint32_t r = 0; r < 2; r++) {
        does(job, r, 1000, NONE, c);
        does(job, r, 0, c, NONE);
    }
    assert_int_equal(time_of_world(NULL, job, &(struct dpro_changes){0}), 2700);
    assert_int_equal(time_of_world(NULL, job, &(struct dpro_changes){.bandwidth_ratio = 0.5}),
                     3700);
    assert_int_equal(time_of_world(NULL, job, &(struct dpro_changes){.bandwidth_ratio = 2}), 2200);
    assert_int_equal(time_of_world(NULL, job, &(struct dpro_changes){.latency_add_ns = 50}), 2850);
    assert_int_equal(time_of_world(NULL, job, &(struct dpro_changes){.latency_ratio = 0.5}), 2550);
    struct dpro_compute_change fast = {
        .speed = 2, .first_rank = -1, .last_rank = -1, DPRO_PROCESSOR_DEFAULT};
    assert_int_equal(
        time_of_world(NULL, job, &(struct dpro_changes){.compute = &fast, .n_compute = 1}), 2200);
}

/* ---- other numbers of ranks ---- */

/* A graph that has its dimensions only: tp neighbours in each of dp replicas. */
struct grid {
    struct dpro_graph graph;
    struct graph_dimension dimensions[2];
    int ranks[2][MOST];
    struct graph_rank of[MOST];
};

static struct dpro_graph *grid_of(struct grid *grid, uint32_t dp, uint32_t tp)
{
    *grid = (struct grid){.graph = {.n_ranks = dp * tp,
                                    .world_size = dp * tp,
                                    .ranks = grid->of,
                                    .dimensions = grid->dimensions,
                                    .n_dimensions = 2}};
    grid->dimensions[0] = (struct graph_dimension){
        .parallelism = DPRO_REPLICATES, .size = dp, .n_groups = tp, .ranks = grid->ranks[0]};
    grid->dimensions[1] = (struct graph_dimension){
        .parallelism = DPRO_TENSORS, .size = tp, .n_groups = dp, .ranks = grid->ranks[1]};
    for (uint32_t i = 0; i < dp * tp; i++) {
        grid->ranks[0][i] = (int)(i % dp * tp + i / dp);
        grid->ranks[1][i] = grid->of[i].rank = (int)i;
    }
    return &grid->graph;
}

/* dp replicas of two ranks: each computes, meets its neighbour, computes, and then its peers. All-
 * gathers, whose bytes grow with n - 1 and whose messages do, too. */
static struct job *replicas_of(uint32_t dp)
{
    struct job *job = job_of(2 * dp);
    uint32_t tp[MOST], across[2];
    char text[2 * MOST];
    for (uint32_t p = 0; p < dp; p++) {
        snprintf(text, sizeof text, "%u %u", 2 * p, 2 * p + 1);
        uint32_t g = add_group(job, text, false, false);
        job->groups[g].dimension = 1;
        tp[p] = add(job, g, 50);
    }
    for (uint32_t t = 0; t < 2; t++) {
        size_t n = 0;
        for (uint32_t p = 0; p < dp; p++)
            n += (size_t)snprintf(text + n, sizeof text - n, "%s%u", p ? " " : "", 2 * p + t);
        uint32_t g = add_group(job, text, false, false);
        job->groups[g].dimension = 0;
        across[t] = add(job, g, 100);
        struct model_communication *c = &job->communications[across[t]];
        c->link_bytes *= dp - 1;
        c->n_steps = dp - 1;
        c->took_ns = c->link_bytes * 10 + c->n_steps * 100 + 30;
    }
    for (uint32_t r = 0; r < 2 * dp; r++) {
        does(job, r, 1000 + 100 * (r % 4), NONE, tp[r / 2]); /* replicas take turns in two speeds */
        does(job, r, 0, tp[r / 2], NONE);
        does(job, r, 500 - 50 * (r % 4), NONE, across[r % 2]);
        does(job, r, 200, across[r % 2], NONE);
    }
    return job;
}

static void apply_all(const struct dpro_graph *graph, const struct dpro_changes *changes,
                      struct dpro_model *model, int64_t *ns)
{
    struct arena arena = {0};
    struct notes notes = {.arena = &arena};
    struct dpro_model changed;
    change_copy(model, &arena, &changed);
    change_apply(graph, NULL, changes, &changed, &notes);
    *ns = evaluate_once(&changed);
    array_fini(&notes.lines);
    arena_fini(&arena);
}

static int apply(const struct dpro_graph *graph, const struct dpro_changes *changes,
                 struct dpro_model *model, int64_t *ns, struct dpro_error *err)
{
    return OUTCOME(err, apply_all(graph, changes, model, ns));
}

/* dp replicas of tp ranks: each computes, all-reduces with those that split its tensors, computes,
 * and all-reduces with its peers. Every other rank and every other replica is slower. */
static struct job *grid_job(uint32_t dp, uint32_t tp)
{
    struct job *job = job_of(dp * tp);
    for (uint32_t g = 0; g < dp + tp; g++) {
        char text[2 * MOST] = "";
        bool splits = g < dp;
        uint32_t n = splits ? tp : dp;
        for (uint32_t i = 0; i < n; i++) {
            uint32_t rank = splits ? g * tp + i : i * tp + g - dp;
            text[2 * i] = (char)('0' + rank);
            text[2 * i + 1] = i + 1 < n ? ' ' : '\0';
        }
        uint32_t group = add_group(job, text, false, false);
        job->groups[group].dimension = splits;
        struct model_communication *c = &job->communications[add(job, group, splits ? 1200 : 2400)];
        c->kind = DPRO_ALL_REDUCE;
        c->link_bytes *= 2 * (n - 1.0) / n;
        c->n_steps = 2 * (n - 1);
        c->took_ns = splits && n == 1 ? 0 : c->link_bytes * 10 + c->n_steps * 100 + 30;
    }
    for (uint32_t r = 0; r < dp * tp; r++) {
        uint32_t place = r % tp, replica = r / tp, splits = replica, reduces = dp + place;
        does(job, r, 1000 + 100 * (place % 2) + 200 * (replica % 2), NONE, splits);
        does(job, r, 0, splits, NONE);
        does(job, r, 500, NONE, reduces);
        does(job, r, 200, reduces, NONE);
    }
    return job;
}

/* From two by two ranks, and back to them. */
TEST(ranks_that_split_tensors_and_replicas_change_together)
{
    static const uint32_t sizes[][2] = {{1, 1}, {1, 2}, {2, 1}, {2, 2}, {2, 4}, {4, 2}, {4, 4}};
    struct graph_memory memory[MOST];
    for (uint32_t i = 0; i < MOST; i++)
        memory[i] = (struct graph_memory){.n_op_splits = 1};
    for (size_t from = 3; from < 7; from++)
        for (size_t to = 0; to < (from == 3 ? 7 : 4); to++)
            for (int by_world = 0; by_world < 2; by_world++) {
                uint32_t dp = sizes[to][0], tp = sizes[to][1];
                struct grid grid;
                struct dpro_graph *graph = grid_of(&grid, sizes[from][0], sizes[from][1]);
                struct job *job = grid_job(sizes[from][0], sizes[from][1]);
                struct dpro_changes changes = {.tp = tp, .dp = by_world ? 0 : dp};
                struct dpro_error err;
                int64_t ns = 0;
                changes.world_size = by_world ? dp * tp : 0;
                graph->memory = memory;
                if (apply(graph, &changes, &job->model, &ns, &err) < 0)
                    fail_msg("%s", err.text);
                double whole = slow_groups_period(&grid_job(dp, tp)->model, 12);
                if (fabs(whole - (double)ns) > 1.5)
                    fail_msg("dp %u, tp %u: %lld in place of %f", dp, tp, (long long)ns, whole);
            }
}

TEST(ranks_that_are_gone_hold_no_memory)
{
    struct grid grid;
    struct job *job = replicas_of(2);
    struct dpro_graph *graph = grid_of(&grid, 2, 2);
    struct graph_block blocks[4];
    struct model_memory memories[4];
    struct dpro_whatif *whatif;
    for (uint32_t r = 0; r < 4; r++) {
        blocks[r] = (struct graph_block){.size_bytes = 100 + r,
                                         .category = DPRO_MEMORY_PARAMETER,
                                         .taken = MEMORY_NONE,
                                         .given = MEMORY_NONE};
        memories[r] = (struct model_memory){.rank = r, .blocks = &blocks[r], .n_blocks = 1};
        job->ranks[r].memory = r;
    }
    job->model.memories = memories;
    job->model.n_memories = 4;
    assert_int_equal(dpro_whatif_run(graph, &job->model, &(struct dpro_changes){.dp = 1}, &whatif,
                                     &(struct dpro_error){0}),
                     0);
    assert_int_equal(dpro_whatif_answer(whatif)->memory[0].bytes, 103);
    assert_int_equal(dpro_whatif_answer(whatif)->memory[1].bytes, 101);
    assert_int_equal(dpro_whatif_answer(whatif)->memory[1].rank, 1);
    dpro_whatif_destroy(whatif);
}

TEST(a_slow_copy_is_waited_for)
{
    struct grid grid;
    struct job *job = replicas_of(2);
    struct dpro_graph *graph = grid_of(&grid, 2, 2);
    struct dpro_compute_change slow = {0.5, 9, 9, DPRO_PROCESSOR_DEFAULT};
    int64_t as_it_is = time_of_world(graph, job, &(struct dpro_changes){.dp = 5});
    struct dpro_changes changes = {.dp = 5, .compute = &slow, .n_compute = 1};
    assert_in_range(time_of_world(graph, job, &changes), as_it_is + 1000, as_it_is + 2000);
    slow.speed = 2; /* the others are waited for */
    assert_int_equal(time_of_world(graph, job, &changes), as_it_is);
}

TEST(tens_of_thousands_of_ranks_are_answered)
{
    struct grid grid;
    struct job *job = replicas_of(2);
    struct dpro_graph *graph = grid_of(&grid, 2, 2);
    double scales[4][2] = {{0.9, 1.1}, {1, 1}, {1.2, 0.8}, {1, 1}};
    job->model.n_samples = 2;
    for (uint32_t r = 0; r < 4; r++)
        job->ranks[r].sample_scale = scales[r];
    int64_t few = time_of_world(graph, job, &(struct dpro_changes){.dp = 2});
    /* 1000 ns of bytes and a message from each replica; the slowest of all in each iteration, four
     * standard deviations off */
    int64_t more = time_of_world(graph, job, &(struct dpro_changes){.world_size = 10240});
    assert_in_range(more - few - 5118 * 1100, 3 * 300, 5 * 600);
}

TEST(numbers_of_ranks_that_can_not_be_are_refused)
{
    struct grid grid;
    struct job *job = replicas_of(2);
    static const struct {
        struct dpro_changes changes;
        const char *why;
    } wrong[] = {{{.world_size = 7}, "other dimensions make up 2 ranks"},
                 {{.dp = 2, .world_size = 4}, "not both"},
                 {{.dp = 40000}, "80000 ranks can't be predicted"}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_refused(grid_of(&grid, 2, 2), job, &wrong[i].changes, wrong[i].why);
    const struct dpro_changes more = {.dp = 4};
    grid_of(&grid, 2, 2)->dimensions[0].parallelism = DPRO_STAGES;
    assert_refused(&grid.graph, job, &more, "(pp 2 x tp 2) has no replicas");
    assert_refused(&grid.graph, job, &more, "the gradients of rank 0");
    grid.dimensions[0].parallelism = DPRO_EXPERTS;
    assert_refused(&grid.graph, job, &more, "(ep 2 x tp 2) replicates or shards");
    grid_of(&grid, 2, 2)->world_size = 8;
    assert_refused(&grid.graph, job, &more, "can't be asked for");
    /* a group of replicas in no order */
    grid_of(&grid, 2, 2);
    job->groups[0].sends = true;
    job->ranks_of[0][1] = 2;
    assert_refused(&grid.graph, job, &more, "a group of 2 ranks");
}

/* Hosts of 4 ranks; bytes within take as long as recorded, between hosts, by one link a host, twice
 * that. */
static const char told_hosts[] =
    "{\"schema\":\"dpro.topology/1\",\"ranks_per_host\":4,"
    "\"intra\":{\"bytes_per_s\":1e8,\"payload\":1,\"latency_ns\":100},"
    "\"inter\":{\"bytes_per_s\":5e7,\"payload\":1,\"latency_ns\":100}}";

/* Four replicas on two such hosts, as if they had been recorded. */
static struct job *replicas_on_hosts(bool own_links)
{
    static const uint32_t hosts[] = {0, 0, 0, 0, 4, 4, 4, 4};
    struct job *whole = replicas_of(4);
    struct dpro_model *m = &whole->model;
    double byte_ns = own_links ? 4 * 20 : 20;
    m->net.link.byte_ns.value = byte_ns;
    m->net.link.within_ns.value = 10;
    m->net.link.rank_hosts = hosts;
    m->net.link.own_links = own_links;
    m->net.learnt = m->net.link;
    for (uint32_t g = 0; g < m->n_groups; g++)
        whole->groups[g].within = whole->groups[g].dimension == 1;
    for (uint32_t k = 0; k < m->n_communications; k++) {
        struct model_communication *c = &whole->communications[k];
        if (whole->groups[c->group].within)
            continue;
        c->link_bytes /= own_links ? 2 : 1; /* over the links of both members on a host */
        c->took_ns = c->link_bytes * byte_ns + c->n_steps * 100 + 30;
    }
    return whole;
}

TEST_IN_FOLDER(told_hosts_take_as_long_as_if_they_were_recorded)
{
    struct grid grid;
    write_text("topology.json", told_hosts);
    for (int own_links = 0; own_links < 2; own_links++) {
        struct job *job = replicas_of(2), *whole = replicas_on_hosts(own_links);
        struct dpro_graph *graph = grid_of(&grid, 2, 2);
        job->model.net.link.own_links = job->model.net.learnt.own_links = own_links;
        struct dpro_changes changes = {.topology = in_folder("topology.json")};
        int64_t alone = time_of_world(graph, job, &changes);
        int64_t recorded = evaluate_once(&job->model), all = evaluate_once(&whole->model);
        assert_in_range(alone, recorded - 1, recorded + 1); /* all on one host */
        changes.dp = 4;
        assert_in_range(time_of_world(graph, job, &changes), all - 1, all + 1);
        assert_true(all > alone + 5000);
    }
}

/* Two hosts of two ranks: a byte takes 2 ns within one, 10 between them, a message 20 and 100. */
static const char two_hosts[] = "{\"schema\":\"dpro.topology/1\",\"ranks_per_host\":2,"
                                "\"intra\":{\"bytes_per_s\":5e8,\"payload\":1,\"latency_ns\":20},"
                                "\"inter\":{\"bytes_per_s\":1e8,\"payload\":1,\"latency_ns\":100}}";

TEST_IN_FOLDER(collectives_pass_over_hosts_as_on_paper)
{
    static const struct {
        enum dpro_collective_kind kind;
        const char *collectives;
        double size_bytes, share, n_steps; /* as recorded: a ring of four */
        int64_t wire_ns, latency_ns;
    } cases[] = {
        {DPRO_ALL_REDUCE, "ring", 1200, 1.5, 6, 18000, 280}, /* 4 of 6 steps within a host */
        {DPRO_ALL_REDUCE, "tree", 1200, 1.5, 6, 24000, 240}, /* all of it in and out of a host */
        {DPRO_ALL_REDUCE, "hierarchical", 1200, 1.5, 6, 1200 + 12000 + 1200, 240},
        {DPRO_ALL_GATHER, "hierarchical", 300, 3, 3, 6000 + 1200,
         120}, /* then both halves within */
        {DPRO_REDUCE_SCATTER, "hierarchical", 1200, 0.75, 3, 1200 + 6000, 120},
        {DPRO_ALL_GATHER, "tree", 300, 3, 3, 9000, 140}, /* which all-gathers have none of */
    };
    static uint32_t hosts[] = {0, 0, 2, 2};
    write_text("topology.json", two_hosts);
    for (int own = 0; own < 2; own++)
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            struct grid grid;
            struct dpro_graph *graph = grid_of(&grid, 4, 1);
            struct job *job = job_of(4);
            struct dpro_model *m = &job->model;
            uint32_t c = add(job, add_group(job, "0 1 2 3", false, false), cases[i].size_bytes);
            struct model_communication *to = &job->communications[c];
            graph->rank_hosts = hosts;
            m->net.link.rank_hosts = hosts;
            m->net.link.own_links = own; /* then half of the host's link each */
            m->net.learnt = m->net.link;
            to->kind = cases[i].kind;
            to->link_bytes = cases[i].share * cases[i].size_bytes;
            to->n_steps = cases[i].n_steps;
            to->took_ns = to->link_bytes * 10 + to->n_steps * 100 + 30;
            for (uint32_t r = 0; r < 4; r++) {
                does(job, r, 1000, NONE, c);
                does(job, r, 200, c, NONE);
            }
            struct dpro_changes changes = {.topology = in_folder("topology.json"),
                                           .collectives = cases[i].collectives};
            if (i + 1 < sizeof cases / sizeof *cases) {
                int64_t ns = time_of_world(graph, job, &changes);
                int64_t paper = 1200 + 30 + cases[i].wire_ns + cases[i].latency_ns;
                assert_in_range(ns, paper - 1, paper + 1);
            } else {
                assert_refused(graph, job, &changes, "leave out --collectives");
            }
            changes.topology = NULL;
            assert_refused(graph, job, &changes, "give --topology");
        }
}

/* Four ranks that share the parameters: each gathers a quarter of 1200 bytes, and reduces as many
 * twice. 30 ns of each are neither bytes nor messages. */
static struct job *sharded_by_four(struct grid *grid, bool on_gpu)
{
    static uint32_t hosts[] = {0, 0, 2, 2};
    struct job *job = job_of(4);
    struct dpro_model *m = &job->model;
    uint32_t group = add_group(job, "0 1 2 3", false, false), c[3];
    struct dpro_graph *graph = grid_of(grid, 4, 1);
    graph->n_dimensions = 1;
    graph->dimensions[0].parallelism = DPRO_SHARDS;
    graph->rank_hosts = hosts;
    m->net.link.rank_hosts = on_gpu ? NULL : hosts;
    m->net.link.own_links = on_gpu;
    m->net.learnt = m->net.link;
    for (int i = 0; i < 3; i++) {
        c[i] = add(job, group, 900);
        struct model_communication *to = &job->communications[c[i]];
        to->kind = i > 0 ? DPRO_REDUCE_SCATTER : DPRO_ALL_GATHER;
        to->size_bytes = i > 0 ? 1200 : 300;
        to->n_steps = 3;
        to->took_ns = 900 * 10 + 3 * 100 + 30;
    }
    for (uint32_t r = 0; r < 4; r++) {
        does(job, r, 1000, NONE, c[0]);
        does(job, r, 0, c[0], NONE);
        does(job, r, 500, NONE, c[1]);
        does(job, r, on_gpu ? 5000 : 0, NONE, NONE);
        does(job, r, 0, c[1], NONE);
        does(job, r, 0, NONE, c[2]);
        does(job, r, 0, c[2], NONE);
    }
    return job;
}

TEST_IN_FOLDER(shards_of_some_ranks_are_reduced_between_replicas)
{
    const int64_t gather4 = 9330, gather2 = 600 * 10 + 100 + 30, gather8 = 1050 * 10 + 700 + 30;
    const int64_t reduce = 600 * 10 + 2 * 100 + 30, all = 2 * 300 * 10 + 2 * 100 + 30;
    const int64_t within = 600 * 2 + 20 + 30, between = 2 * 600 * 10 + 2 * 100 + 30;
    write_text("topology.json", two_hosts);
    const struct {
        struct dpro_changes changes;
        bool on_gpu;
        int64_t ns;
    } cases[] = {
        {{.dp = 4}, false, 1500 + 3 * gather4}, /* as it is */
        {{.shard = 4}, false, 1500 + 3 * gather4},
        /* two ranks of a replica share a host's link */
        {{.shard = 4, .dp = 2}, false, 1500 + 3 * gather4 + 2 * all},
        {{.shard = 8, .dp = 2}, false, 1500 + 3 * gather8 + 2 * (all - 2 * 150 * 10)},
        {{.shard = 8, .world_size = 8}, false, 1500 + 3 * gather8},
        {{.shard = 2}, false, 1500 + 3 * (600 * 2 + 100 + 30) + 2 * between},
        /* within hosts; the ranks of each share its link for all-reduces */
        {{.shard = 2, .topology = in_folder("topology.json")},
         false,
         1500 + 3 * within + 2 * between},
        /* the first all-reduce shares links with the second reduce-scatter, from 130 ns on that
         * alone; the second waits for its stream */
        {{.shard = 2}, true, 1000 + gather2 + 500 + gather2 + 230 + 5900 * 2 + 100 + reduce},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct grid grid;
        struct job *job = sharded_by_four(&grid, cases[i].on_gpu);
        struct dpro_error err;
        int64_t ns = 0;
        if (apply(&grid.graph, &cases[i].changes, &job->model, &ns, &err) < 0)
            fail_msg("%s", err.text);
        if (ns < cases[i].ns - 1 || ns > cases[i].ns + 1)
            fail_msg("case %zu: %lld in place of %lld", i, (long long)ns, (long long)cases[i].ns);
    }
}

/* Two ranks that split tensors; 1000 bytes of gradients on the first, 2000 on the second. */
TEST(a_job_without_replicas_gets_some_that_reduce_its_gradients)
{
    static uint32_t one_host[] = {0, 0};
    static const struct {
        uint32_t dp, *hosts;
        int64_t more_ns; /* of the second rank */
    } cases[] = {
        {1, NULL, 0},
        {2, NULL, 2000 * 10 + 2 * 100},
        {4, NULL, 3000 * 10 + 6 * 100},
        /* while both share the host's link: the first one's bytes take twice as long */
        {4, one_host, 1500 * 10 + 3000 * 10 + 6 * 100},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct grid grid;
        struct job *job = job_of(2);
        uint32_t c = add(job, add_group(job, "0 1", false, false), 100);
        struct dpro_graph *graph = grid_of(&grid, 1, 2);
        graph->dimensions++;
        graph->n_dimensions = 1;
        job->model.net.link.rank_hosts = graph->rank_hosts = cases[i].hosts;
        job->model.net.learnt = job->model.net.link;
        grid.of[0].gradient_bytes = 1000;
        grid.of[1].gradient_bytes = 2000;
        for (uint32_t r = 0; r < 2; r++) {
            does(job, r, 1000, NONE, c);
            does(job, r, 200, c, NONE);
        }
        int64_t ns = time_of_world(graph, job, &(struct dpro_changes){.dp = cases[i].dp});
        int64_t paper = 1200 + 1100 + cases[i].more_ns;
        if (ns < paper - 1 || ns > paper + 1)
            fail_msg("case %zu: %lld in place of %lld", i, (long long)ns, (long long)paper);
    }
}

TEST(shards_that_can_not_be_are_refused)
{
    static const struct {
        uint32_t shard;
        enum dpro_parallelism parallelism;
        const char *why;
    } wrong[] = {{3, DPRO_SHARDS, "over 4 ranks, which are no whole number of groups of 3"},
                 {1, DPRO_SHARDS, "one rank alone shards nothing"},
                 {8, DPRO_SHARDS, "groups of 8"},
                 {2, DPRO_REPLICATES, "the job has 4 replicas"},
                 {2, DPRO_TENSORS, "no dimension of the job shards"}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct grid grid;
        struct job *job = sharded_by_four(&grid, false);
        struct dpro_error err;
        int64_t ns;
        grid.dimensions[0].parallelism = wrong[i].parallelism;
        struct dpro_changes changes = {.shard = wrong[i].shard};
        assert_int_equal(apply(&grid.graph, &changes, &job->model, &ns, &err), DPRO_EUSAGE);
        assert_non_null(strstr(err.text, wrong[i].why));
        job->communications[1].kind = job->communications[2].kind = DPRO_REDUCE;
        grid.dimensions[0].parallelism = DPRO_SHARDS;
        changes.shard = 2;
        assert_int_equal(apply(&grid.graph, &changes, &job->model, &ns, &err), DPRO_EUSAGE);
        assert_non_null(strstr(err.text, "does not show how"));
    }
}

TEST_IN_FOLDER(hosts_that_can_not_be_are_refused)
{
    struct grid grid;
    struct job *job = replicas_of(2);
    static uint32_t two[] = {0, 0, 2, 2}, one[] = {0, 0, 0, 0};
    static const struct {
        uint32_t dp, *hosts;
        const char *per_host, *why;
    } wrong[] = {
        {0, two, "4",
         "ranks 0 and 2 on two hosts, but the topology, with 4 a host, has them on one"},
        {0, one, "2",
         "ranks 0 and 2 on one host, but the topology, with 2 a host, has them on two"},
        {5, one, "4", "10 ranks are no whole number of hosts of 4 ranks"},
        {4, NULL, "2", "does not tell which of its 4 ranks are on one host"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char text[sizeof told_hosts];
        struct dpro_changes changes = {.dp = wrong[i].dp, .topology = in_folder("topology.json")};
        struct dpro_graph *graph = grid_of(&grid, 2, 2);
        memcpy(text, told_hosts, sizeof text);
        *strchr(text, '4') = wrong[i].per_host[0];
        write_text("topology.json", text);
        graph->rank_hosts = wrong[i].hosts;
        assert_refused(graph, job, &changes, wrong[i].why);
    }
}

/* ---- learnt ---- */

/* Two ranks communicate twice, of several sizes, with work between; rank 1 is slower. */
static struct dpro_graph *two_of(enum dpro_collective_kind kind)
{
    struct dpro_graph *g = graph_of(
        "f0:1000000@d0#0; a0@l0!BARRIER -> t0:500000@l0!COLLECTIVE; f0 -> a0; t0 -> g0:2000000@d0;"
        "g0 -> a1@l0!BARRIER -> t1:900000@l0!COLLECTIVE; g0 -> h0:300000@d0 -> i0:100000@d0;"
        "t1 -> i0 -> e0*@d0!BARRIER => f0;"
        "f1:1500000@d1#1; a2@l1#1!BARRIER -> t2:500000@l1#1!COLLECTIVE; f1 -> a2;"
        "t2 -> g1:2100000@d1#1; g1 -> a3@l1#1!BARRIER -> t3:900000@l1#1!COLLECTIVE;"
        "g1 -> h1:300000@d1#1 -> i1:100000@d1#1; t3 -> i1 -> e1*@d1#1!BARRIER => f1;"
        "a0 -> b0!BARRIER -> t0; a2 -> b0 -> t2; a1 -> b1!BARRIER -> t1; a3 -> b1 -> t3");
    add_collective(g, "b0", 10000, "a0 t0 a2 t2");
    add_collective(g, "b1", 20000, "a1 t1 a3 t3");
    g->collectives[0].kind = g->collectives[1].kind = (uint8_t)kind;
    return g;
}

TEST(a_learnt_model_takes_as_long_as_the_replay)
{
    struct dpro_graph *g = two_of(DPRO_ALL_GATHER);
    struct dpro_model *m = learn(g);
    assert_int_equal(m->n_groups, 1);
    assert_int_equal(m->n_communications, 2);
    assert_float_equal(m->net.link.byte_ns.value, 40, 4); /* what 10000 bytes more take */
    assert_float_equal((double)evaluate_once(m), (double)replay_ns(g, NULL),
                       0.001 * (double)replay_ns(g, NULL));
}

TEST(what_is_sent_and_received_at_once_is_half_of_it_each_way)
{
    struct dpro_graph *g = two_of(DPRO_SEND_RECV);
    struct dpro_model *m = learn(g);
    assert_float_equal(m->net.link.byte_ns.value, 80, 8);
    assert_float_equal((double)evaluate_once(m), (double)replay_ns(g, NULL),
                       0.001 * (double)replay_ns(g, NULL));
}

static int warns_of(const struct dpro_model *m, const char *words)
{
    int n = 0;
    for (size_t i = 0; i < m->warnings.n; i++)
        n += strstr(m->warnings.at[i], words) != NULL;
    return n;
}

TEST(what_is_sent_to_one_and_received_from_another_is_said_to_stay)
{
    struct dpro_graph *g = two_of(DPRO_SEND_RECV);
    for (uint32_t expected = 2; expected > 0; expected--) {
        g->collectives[1].n_expected = expected;
        struct dpro_model *m = learn(g);
        assert_int_equal(m->communications[1].link_bytes > 0, expected == 2);
        assert_int_equal(warns_of(m, "several others"), expected == 1);
    }
}

TEST(what_disagrees_is_less_sure_than_either)
{
    struct dpro_estimate prior = {100, 10}, seen = {110, 10};
    struct dpro_estimate both = fit_combine(prior, seen);
    assert_float_equal(both.value, 105, 1e-9);
    assert_float_equal(both.std, 10 / sqrt(2), 1e-9);
    both = fit_combine(prior, (struct dpro_estimate){200, 10});
    assert_float_equal(both.value, 150, 1e-9);
    assert_float_equal(both.std, 50, 1e-9); /* either may be right */
    both = fit_combine(prior, (struct dpro_estimate){-20, 10});
    assert_float_equal(both.value, 50, 1e-9);
    assert_float_equal(both.std, 50, 1e-9);
}

TEST(groups_side_by_side_are_told_of_once)
{
    struct dpro_graph *g =
        graph_of("f0:1000000@d0#0; a0@l0!BARRIER -> t0:500000@l0!COLLECTIVE; f0 -> a0;"
                 "t0 -> e0:1000@d0#0 -> x0*@d0#0!BARRIER => f0;"
                 "f1:1000000@d1#1; a1@l1#1!BARRIER -> t1:500000@l1#1!COLLECTIVE; f1 -> a1;"
                 "t1 -> e1:1000@d1#1 -> x1*@d1#1!BARRIER => f1;"
                 "f2:1000000@d2#2; a2@l2#2!BARRIER -> t2:700000@l2#2!COLLECTIVE; f2 -> a2;"
                 "t2 -> e2:1000@d2#2 -> x2*@d2#2!BARRIER => f2;"
                 "f3:1000000@d3#3; a3@l3#3!BARRIER -> t3:700000@l3#3!COLLECTIVE; f3 -> a3;"
                 "t3 -> e3:1000@d3#3 -> x3*@d3#3!BARRIER => f3;"
                 "a0 -> b0!BARRIER -> t0; a1 -> b0 -> t1; a2 -> b1!BARRIER -> t2; a3 -> b1 -> t3");
    add_collective(g, "b0", 10000, "a0 t0 a1 t1");
    add_collective(g, "b1", 20000, "a2 t2 a3 t3");
    g->collectives[0].kind = g->collectives[1].kind = DPRO_ALL_GATHER;
    struct dpro_model *m = learn(g);
    assert_int_equal(dpro_model_n_kinds(m), 1);
    struct dpro_communications most = dpro_model_communications(m, 0);
    assert_int_equal(most.n, 1);
    assert_int_equal(most.size_bytes, 20000);
    assert_int_equal(most.took_ns, 700000);
}

TEST(what_is_sent_and_received_at_once_goes_both_ways)
{
    struct dpro_graph *g = two_of(DPRO_SEND_RECV);
    struct dpro_report report = {.graph = g};
    struct report_facts facts = {.report = &report, .g = report.graph};
    parallel_sum(&facts);
    assert_int_equal(facts.parallel.n_traffic, 2);
    for (int i = 0; i < 2; i++)
        assert_int_equal(facts.parallel.traffic[i].bytes, (10000 + 20000) / 2);
    arena_fini(&facts.arena);
}

/* Half the batch takes 0.8 of the time forward, 0.5 backward. */
TEST(a_recomputation_goes_with_the_batch_as_the_forward_pass_does)
{
    struct dpro_graph *g = graph_of("f:100000@d0!FW -> b:200000@d0!BW -> e*@d0 => f");
    uint32_t op_calls[] = {0, 1, MEMORY_NONE};
    struct graph_memory *held = add_memory(g);
    held->op_calls = op_calls;
    held->n_op_calls = 3;
    bool recomputed = true;
    struct memory_call memory_call = {.parent = MODEL_NONE, .again = 1};
    struct model_memory memory = {.calls = &memory_call, .n_calls = 1};
    struct model_call call = {.parent = MODEL_NONE, .recompute_ns = 100000, .backward_ns = 200000};
    struct model_program program = {.calls = &call, .n_calls = 1};
    struct model_rank rank = {.work_scale = 1};
    struct batch_point points[] = {{0.5, {0.8, 0}, {0.5, 0}}, {1, {1, 0}, {1, 0}}};
    struct dpro_model model = {.memories = &memory,
                               .programs = &program,
                               .ranks = &rank,
                               .n_memories = 1,
                               .n_programs = 1,
                               .n_ranks = 1,
                               .batch_points = points,
                               .n_batch_points = 2,
                               .memory.batch_ratio = 0.5,
                               .baseline.recomputed = &recomputed};
    struct arena arena = {0};
    const struct op_work *work =
        op_work_of(g, &model, false, (struct rank_share){1, 1, false}, &arena);
    assert_int_equal(llround(work->ns[op_named(g, "f")]), 80000);
    assert_int_equal(llround(work->ns[op_named(g, "b")]), 100000 + 80000);
    arena_fini(&arena);
}
