/* Collectives that are decomposed into messages: who waits for whom, what is queueing and what
 * transfer, and what happens where logs don't tell. Small jobs are written as profiles and CSV
 * logs; real captures are read where there are any. */
#include <unistd.h>

#include <dpro/dpro.h>

#include "case.h"
#include "cost/program/model.h"
#include "graph/collectives/match_collectives.h"
#include "graph/graph.h"
#include "graph_ask.h"
#include "job_at.h"
#include "kept_log.h"
#include "message_job.h"
#include "temp_folder.h"

#define US INT64_C(1000)

/* ---- making jobs ---- */

/* Jobs here have one clock. */
static struct dpro_job *job_of(const struct job *job)
{
    write_job(job, folder);
    return job_at(folder, .no_align = 1);
}

static struct dpro_graph *graph_of(const struct job *job)
{
    return job_graph(job_of(job));
}

/* ---- asking ---- */

static int count_ops(const struct dpro_graph *g, int rank, const char *name)
{
    int n = 0;
    for (dpro_op_id op = 0; op < dpro_graph_n_ops(g); op++) {
        struct dpro_op it = dpro_graph_op(g, op);
        n += it.rank == rank && strcmp(it.name, name) == 0;
    }
    return n;
}

/* Every transaction of a message is one SEND and one RECV of as many bytes, ready at once, on a
 * link of its own each; of those to and from `unlogged` (-1: none) one of the two. Returns the
 * bytes of data in all SENDs. */
static uint64_t check_pairs_but(const struct dpro_graph *g, int unlogged, uint32_t *n_one_sided)
{
    uint32_t n_ops = dpro_graph_n_ops(g), first = dpro_graph_n_collectives(g) + 1;
    dpro_op_id *send = kept_memory(n_ops, sizeof *send), *recv = kept_memory(n_ops, sizeof *recv);
    uint64_t bytes = 0;
    memset(send, 0xFF, n_ops * sizeof *send);
    memset(recv, 0xFF, n_ops * sizeof *recv);
    for (dpro_op_id op = 0; op < n_ops; op++) {
        struct dpro_op it = dpro_graph_op(g, op);
        if (it.kind != DPRO_OP_SEND && it.kind != DPRO_OP_RECV)
            continue;
        assert_in_range(it.transaction, first, first + n_ops - 1);
        dpro_op_id *at = &(it.kind == DPRO_OP_SEND ? send : recv)[it.transaction - first];
        assert_int_equal(*at, DPRO_NO_OP);
        *at = op;
        assert_int_equal(dpro_graph_device(g, it.device).kind,
                         it.kind == DPRO_OP_SEND ? DPRO_DEVICE_LINK_TX : DPRO_DEVICE_LINK_RX);
        assert_true(it.rank != unlogged);
    }
    *n_one_sided = 0;
    for (uint32_t i = 0; i < n_ops; i++) {
        if (send[i] == DPRO_NO_OP && recv[i] == DPRO_NO_OP)
            continue;
        if (send[i] == DPRO_NO_OP || recv[i] == DPRO_NO_OP) {
            struct dpro_op it = dpro_graph_op(g, send[i] == DPRO_NO_OP ? recv[i] : send[i]);
            char other[32];
            snprintf(other, sizeof other, "rank %d", unlogged);
            assert_non_null(strstr(it.name, other));
            bytes += send[i] == DPRO_NO_OP ? 0 : it.size_bytes;
            ++*n_one_sided;
            continue;
        }
        struct dpro_op a = dpro_graph_op(g, send[i]), b = dpro_graph_op(g, recv[i]);
        assert_int_equal(a.size_bytes, b.size_bytes);
        assert_string_equal(a.tensor, b.tensor);
        bytes += a.size_bytes;
    }
    return bytes;
}

static uint64_t check_pairs(const struct dpro_graph *g)
{
    uint32_t n_one_sided;
    uint64_t bytes = check_pairs_but(g, -1, &n_one_sided);
    assert_int_equal(n_one_sided, 0);
    return bytes;
}

static void check_whole(const struct dpro_graph *g, const char *word)
{
    assert_true(has_warning(g, "replayed whole"));
    assert_true(has_warning(g, word));
    assert_int_equal(dpro_graph_collective(g, 0).n_messages, 0);
    assert_string_equal(dpro_graph_collective(g, 0).pattern, "");
    assert_int_equal(check_pairs(g), 0);
    assert_int_equal(replay_us(g, NULL), STEP);
}

/* ---- patterns ---- */

TEST(algorithms_are_told_by_who_sends_to_whom)
{
    static const struct {
        const char *name;
        uint32_t n_ranks, n_passes, n_chunks;
        const char *messages; /* from, to */
    } cases[] = {
        {"ring", 2, 2, 2, "01 01 10 10 01 01 10 10"},
        {"ring", 3, 2, 1, "01 12 20 01 12 20 01 12 20 01 12 20"},
        {"ring", 4, 1, 1, "02 21 13 30"}, /* in any order */
        {"ring", 4, 1, 1, "01 12 23 30 10 21 32 03"},
        {"mixed", 4, 1, 1, "01 21 23 03"}, /* not one way round */
        {"halving-doubling", 4, 2, 2, "02 20 13 31 01 10 23 32 01 10 23 32 02 20 13 31"},
        {"tree", 4, 1, 1, "02 01 23"},
        {"tree", 4, 2, 1, "10 20 30 01 02 03"},
        {"direct", 3, 1, 1, "01 02 10 12 20 21"},
        {"direct", 2, 1, 3, "10 10 10"},
        {"mixed", 4, 1, 1, "01 23"}, /* in two parts */
        {"mixed", 4, 1, 1, "01 12 23 30 02"},
        {"mixed", 6, 1, 1, "01 12 20 34 45 53"}, /* two rings */
        {"mixed", 3, 1, 0, ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        print_message("%s of %u\n", cases[i].name, cases[i].n_ranks);
        struct pattern_message messages[32];
        uint32_t n = 0;
        for (const char *at = cases[i].messages; *at; at += strspn(at + 2, " ") + 2)
            messages[n++] =
                (struct pattern_message){(uint32_t)(at[0] - '0'), (uint32_t)(at[1] - '0'), 0};
        uint32_t ring_steps = cases[i].n_passes * (cases[i].n_ranks - 1);
        struct pattern pattern = pattern_find(messages, n, cases[i].n_ranks, NULL, ring_steps);
        assert_string_equal(pattern.name, cases[i].name);
        assert_int_equal(pattern.n_chunks, cases[i].n_chunks);
        assert_int_equal(pattern.n_channels, n > 0);
    }
}

TEST(chunks_are_counted_channel_by_channel)
{
    struct pattern_message messages[] = {{0, 1, 0}, {1, 0, 0}, {0, 1, 5}, {0, 1, 0},
                                         {1, 0, 5}, {1, 0, 0}, {1, 0, 5}, {0, 1, 5}};
    struct pattern pattern = pattern_find(messages, 8, 2, NULL, 2);
    assert_string_equal(pattern.name, "ring");
    assert_int_equal(pattern.n_chunks, 1);
    assert_int_equal(pattern.n_channels, 2);
    /* of two nodes' ranks more is unseen than seen: what it is has to be told */
    pattern = pattern_find(messages, 8, 4, "tree", 6);
    assert_string_equal(pattern.name, "tree");
    assert_int_equal(pattern.n_chunks, 2);
}

/* ---- graphs ---- */

static const char NCCL_KERNEL[] = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)";

/* As gloo's transport or NCCL's proxies log it. */
static void check_ring(int n, bool by_nccl)
{
    int n_steps = 2 * (n - 1);
    struct job job = ring(n, n_steps, 50, 5, 400 / n);
    job.by_nccl = by_nccl;
    job.algorithm = by_nccl && n % 2 ? "RING" : NULL;
    struct dpro_graph *g = graph_of(&job);
    assert_int_equal(dpro_graph_n_warnings(g), 0);
    assert_int_equal(dpro_graph_n_collectives(g), 1);
    struct dpro_collective c = dpro_graph_collective(g, 0);
    assert_int_equal(c.kind, DPRO_ALL_REDUCE);
    assert_string_equal(c.pattern, "ring");
    assert_int_equal(c.n_ranks, n);
    assert_int_equal(c.n_messages, n * n_steps);
    assert_int_equal(c.n_chunks, 1);
    assert_int_equal(c.n_channels, 1);
    assert_int_equal(check_pairs(g), n * n_steps * (400 / n));
    assert_int_equal(replay_us(g, NULL), STEP);
    /* the reductions stay as long as they were; all but the last, which is the transfer op */
    assert_int_equal(replay_us(g, "COMM=2"), STEP + 50 * n_steps + 5);
    assert_int_equal(replay_us(g, "COMM=0"), STEP - 50 * n_steps - 5);
    assert_int_equal(replay_us(g, "COMM=+0.1"), STEP + 100);
    assert_int_equal(replay_us(g, "COLLECTIVE=2"), STEP + 50 * n_steps + 5);
    assert_int_equal(replay_us2(g, "SEND=2", "RECV=2"), STEP + 50 * n_steps);
    dpro_op_id calls =
        nth_op(g, 1, n == 2 ? "call that sends to rank 0" : "call that sends to rank 2", 1);
    assert_true(edge_to(g, nth_op(g, 1, "receive from rank 0", 0), calls, 0));
    assert_int_equal(dpro_graph_op(g, calls).gap_ns, 5 * US);
    struct dpro_op last =
        dpro_graph_op(g, nth_op(g, 0, by_nccl ? NCCL_KERNEL : "gloo:all_reduce", 0));
    assert_int_equal(last.dur_ns, 5 * US); /* after the last message */
    if (!by_nccl)
        return;
    assert_int_equal(dpro_graph_device(g, last.device).kind, DPRO_DEVICE_GPU_STREAM);
    assert_int_equal(replay_us(g, "gemm=+0.2"), STEP + 200);
}

TEST_IN_FOLDER(a_ring_becomes_sends_and_receives_that_give_back_what_was_measured)
{
    for (int n = 2; n <= 5; n++)
        check_ring(n, false);
}

TEST_IN_FOLDER(steps_of_nccls_proxies_are_messages_as_gloos_are)
{
    for (int n = 2; n <= 5; n++)
        check_ring(n, true);
}

TEST_IN_FOLDER(a_send_waits_for_the_receive_that_it_passes_on)
{
    struct job job = ring(4, 6, 50, 5, 100);
    struct dpro_graph *g = graph_of(&job);
    for (int r = 0; r < 4; r++) {
        char from[64], to[64], call[64];
        snprintf(from, sizeof from, "receive from rank %d", (r + 3) % 4);
        snprintf(to, sizeof to, "send to rank %d", (r + 1) % 4);
        snprintf(call, sizeof call, "call that sends to rank %d", (r + 1) % 4);
        for (int k = 0; k < 6; k++) {
            dpro_op_id calls = nth_op(g, r, call, k);
            assert_true(edge_to(g, calls, nth_op(g, r, to, k), 0));
            char received[64];
            snprintf(received, sizeof received, "receive from rank %d", r);
            assert_true(edge_to(g, calls, nth_op(g, (r + 1) % 4, received, k), 0));
            if (k == 0) {
                assert_true(edge_to(g, nth_op(g, r, "arrival at all_reduce", 0), calls, 0));
                assert_true(
                    edge_to(g, nth_op(g, (r + 1) % 4, "arrival at all_reduce", 0), calls, 0));
                continue;
            }
            assert_true(edge_to(g, nth_op(g, r, from, k - 1), calls, 0));
            assert_false(edge_to(g, nth_op(g, r, from, k), calls, 0));
            assert_int_equal(dpro_graph_op(g, calls).gap_ns, 5 * US); /* the reduction */
        }
        dpro_op_id transfer = nth_op(g, r, "gloo:all_reduce", 0);
        assert_true(edge_to(g, nth_op(g, r, from, 5), transfer, 0));
        assert_true(edge_to(g, nth_op(g, r, to, 5), transfer, 0));
        assert_int_equal(dpro_graph_op(g, transfer).dur_ns, 5 * US); /* all but the last */
    }
}

TEST_IN_FOLDER(a_message_behind_another_queues_on_the_link)
{
    struct job job = {.n_ranks = 2, .n_collectives = 1, .kind = "broadcast"};
    job.arrive[0][0] = job.arrive[1][0] = 100;
    job.leave[0][0] = job.leave[1][0] = 260;
    send_one(&job, 1, 0, 105, 106, 0);
    last_sent(&job)->opcode = RECV_READY;
    for (int k = 0; k < 3; k++) /* sent at 110, 111, 112; 50 us each */
        send_one(&job, 0, 1, 110 + k, 160 + 50 * k - 10, 1000);
    struct dpro_graph *g = graph_of(&job);
    assert_string_equal(dpro_graph_collective(g, 0).pattern, "direct");
    assert_int_equal(check_pairs(g), 3000);
    for (int k = 0; k < 3; k++) {
        struct dpro_op recv = dpro_graph_op(g, nth_op(g, 1, "receive from rank 0", k));
        assert_int_equal(recv.dur_ns, (k ? 50 : 40) * US);
        assert_int_equal(recv.gap_ns, 0);
        /* and waiting for its turn is no part of what was seen */
        assert_int_equal(recv.seen_dur_ns, recv.dur_ns);
    }
    check_delays(g, STEP, "-: +0; receive from rank 0=2: +140");
}

TEST_IN_FOLDER(what_is_on_a_link_when_an_iteration_begins_holds_up_what_that_sends)
{
    struct job job = {.n_ranks = 2, .n_collectives = 2, .kind = "broadcast"};
    for (int r = 0; r < 2; r++) {
        job.arrive[r][0] = 100;
        job.leave[r][0] = 170;
        job.arrive[r][1] = 1800;
        job.leave[r][1] = STEP + 150;
    }
    send_one(&job, 1, 0, 105, 106, 0);
    last_sent(&job)->opcode = RECV_READY;
    send_one(&job, 0, 1, 110, 160, 1000); /* behind the other one, from the second iteration on */
    send_one(&job, 1, 0, 1805, 1806, 0);
    last_sent(&job)->opcode = RECV_READY;
    last_sent(&job)->collective = 1;
    send_one(&job, 0, 1, 1900, STEP + 140, 1000);
    last_sent(&job)->collective = 1;
    struct dpro_graph *g = graph_of(&job);
    dpro_op_id first = nth_op(g, 1, "receive from rank 0", 0);
    assert_int_equal(g->n_samples, N);
    assert_int_equal(g->sample_dur_ns[first], 50 * US);
    for (uint32_t s = 1; s < N; s++)
        assert_int_equal(g->sample_dur_ns[(size_t)s * g->n_ops + first], 20 * US);
}

/* A job of two whose first rank sends the other `n` messages of 50 us, and a call each at `at`. */
static struct job one_way(int n, const int *at)
{
    struct job job = {.n_ranks = 2, .n_collectives = 1, .kind = "broadcast"};
    job.arrive[0][0] = job.arrive[1][0] = 100;
    job.leave[0][0] = job.leave[1][0] = 120 + 50 * n;
    send_one(&job, 1, 0, 101, 102, 0);
    last_sent(&job)->opcode = RECV_READY;
    for (int k = 0; k < n; k++)
        send_one(&job, 0, 1, at[k], 160 + 50 * k, 1000);
    return job;
}

TEST_IN_FOLDER(what_a_busy_link_held_up_is_not_late_on_a_faster_one)
{
    static const int blocked[] = {110, 159, 209, 259}, after[] = {110, 163, 213, 263};
    struct job job = one_way(4, blocked); /* the socket took no more */
    struct dpro_graph *g = graph_of(&job);
    /* the calls take 10 us each */
    check_delays(g, STEP, "-: +0; SEND=0.5 & RECV=0.5: -100; SEND=0 & RECV=0: -170");
    job = one_way(4, after); /* and the sender was slow to notice that it took more again */
    g = graph_of(&job);
    assert_int_equal(replay_us(g, NULL), STEP);
    assert_int_equal(dpro_graph_op(g, nth_op(g, 1, "receive from rank 0", 2)).gap_ns, 3 * US);
    assert_int_equal(dpro_graph_op(g, nth_op(g, 1, "receive from rank 0", 2)).dur_ns, 47 * US);
    assert_int_equal(replay_us2(g, "SEND=2", "RECV=2"), STEP + 50 + 3 * 47);
}

TEST_IN_FOLDER(collectives_at_once_share_the_link)
{
    struct job job = {.n_ranks = 2, .n_collectives = 2, .kind = "broadcast"};
    for (int r = 0; r < 2; r++) {
        job.arrive[r][0] = 100;
        job.arrive[r][1] = 120;
        job.leave[r][0] = 330;
        job.leave[r][1] = 340;
    }
    for (int k = 0; k < 2; k++) {
        send_one(&job, 1, 0, 121 + k, 122 + k, 0);
        last_sent(&job)->opcode = RECV_READY;
        last_sent(&job)->collective = k;
    }
    for (int k = 0; k < 4; k++) { /* in turns */
        send_one(&job, 0, 1, 125 + k, 180 + 50 * k, 1000);
        last_sent(&job)->collective = k % 2;
    }
    struct dpro_graph *g = graph_of(&job);
    assert_int_equal(dpro_graph_n_collectives(g), 2);
    assert_int_equal(check_pairs(g), 4000);
    assert_int_equal(replay_us(g, NULL), STEP);
    /* twice as long: the last one comes 205 us later */
    assert_int_equal(replay_us(g, "receive from rank 0=2"), STEP + 205);
}

TEST_IN_FOLDER(a_late_rank_is_waited_for_as_before)
{
    struct job job = ring(4, 6, 50, 5, 100);
    job.arrive[2][0] = 40; /* is there early */
    struct dpro_graph *g = graph_of(&job);
    struct dpro_replay *replay = replay_of(g, NULL);
    for (uint32_t r = 0; r < 4; r++) {
        struct dpro_rank_time t = dpro_replay_view(replay)->ranks[r];
        assert_int_equal(t.forward_ns + t.backward_ns + t.update_ns + t.input_ns +
                             t.exposed_communication_ns + t.wait_for_peers_ns + t.idle_ns,
                         t.iteration_ns);
        assert_int_equal(t.wait_for_peers_ns, r == 2 ? 60 * US : 0);
        assert_int_equal(t.exposed_communication_ns, (10 + 6 * 55) * US);
        assert_int_equal(t.communication_ns, (10 + 6 * 55) * US);
    }
    /* a rank that comes later still makes all others later, and is not waited for twice */
    check_delays(g, STEP, "FW@1=+0.3: +300; FW@2=+0.05: +0; FW@2=+0.3: +240");
}

TEST_IN_FOLDER(ranks_of_one_host_share_its_link_in_each_direction)
{
    struct job job = ring(3, 4, 50, 5, 100);
    struct dpro_graph *g = graph_of(&job);
    uint32_t n_links = 0;
    for (uint32_t d = 0; d < dpro_graph_n_devices(g); d++)
        n_links += dpro_graph_device(g, d).kind >= DPRO_DEVICE_LINK_TX;
    assert_int_equal(n_links, 6);
    struct dpro_device out =
        dpro_graph_device(g, dpro_graph_op(g, nth_op(g, 1, "send to rank 2", 0)).device);
    assert_int_equal(out.kind, DPRO_DEVICE_LINK_TX);
    assert_int_equal(out.rank, 1);
    assert_string_equal(out.name, "link 10.0.0.2, out");
    job.one_host = true; /* what stays within a host takes no link that another's waits for */
    g = graph_of(&job);
    assert_int_equal(check_pairs(g), 1200);
    assert_int_equal(replay_us(g, NULL), STEP);
}

TEST_IN_FOLDER(ready_messages_that_stand_behind_data_are_messages_too)
{
    struct job job = {.n_ranks = 2, .n_collectives = 1};
    for (int r = 0; r < 2; r++) {
        job.arrive[r][0] = 100;
        job.leave[r][0] = 420;
    }
    /* rank 1 says that it is ready for the second message while its own is still on the way */
    send_one(&job, 1, 0, 105, 106, 0);
    last_sent(&job)->opcode = RECV_READY;
    send_one(&job, 0, 1, 110, 160, 1000);
    send_one(&job, 0, 1, 111, 161, 0);
    last_sent(&job)->opcode = RECV_READY;
    send_one(&job, 1, 0, 165, 365, 4000);
    send_one(&job, 1, 0, 166, 366, 0);
    last_sent(&job)->opcode = RECV_READY;
    send_one(&job, 0, 1, 370, 410, 1000);
    struct dpro_graph *g = graph_of(&job);
    assert_int_equal(dpro_graph_collective(g, 0).n_messages, 3);
    assert_int_equal(check_pairs(g), 6000);
    assert_int_equal(count_ops(g, 0, "ready message from rank 1"), 2);
    check_edges(g, 0, "ready message from rank 1#1 > call that sends to rank 1#1");
    assert_int_equal(dpro_graph_op(g, nth_op(g, 0, "call that sends to rank 1", 1)).gap_ns, 4 * US);
    /* and of one rank keep the order with its data that they always had */
    dpro_op_id gives = nth_op(g, 0, "call that sends ready message to rank 1", 0);
    assert_true(edge_to(g, nth_op(g, 0, "call that sends to rank 1", 0), gives, 0));
    assert_true(edge_to(g, gives, nth_op(g, 0, "call that sends to rank 1", 1), 0));
    assert_int_equal(replay_us(g, NULL), STEP);
    /* half as long, the ready message is there 100 us earlier */
    check_delays(g, STEP,
                 "send to rank 0=0.5: +0; send to rank 0=0.5 & receive from rank 1=0.5: -100");
}

TEST_IN_FOLDER(ready_messages_that_have_the_stream_to_themselves_are_none)
{
    struct job job = ring(3, 4, 50, 5, 100);
    for (int r = 0; r < 3; r++) {
        send_one(&job, (r + 1) % 3, r, 105, 106, 0);
        last_sent(&job)->opcode = RECV_READY;
    }
    struct dpro_graph *g = graph_of(&job);
    assert_int_equal(dpro_graph_collective(g, 0).n_messages, 12);
    for (int r = 0; r < 3; r++) {
        char name[64];
        snprintf(name, sizeof name, "ready message to rank %d", (r + 2) % 3);
        assert_int_equal(count_ops(g, r, name), 0);
    }
}

/* In an all-gather each rank has what it sends from the start. Whether its ready message or its
 * data goes first is chance: here it is the ready message, but for the second iteration. */
static struct job gather(const char *kind)
{
    struct job job = {.n_ranks = 2, .n_collectives = 1, .kind = kind};
    for (int r = 0; r < 2; r++) {
        job.arrive[r][0] = 100;
        job.leave[r][0] = 520;
    }
    job.arrive[0][0] = 80;
    for (int i = 1; i <= N; i++) {
        send_one(&job, 1, 0, 101, 102, 0);
        last_sent(&job)->opcode = RECV_READY;
        last_sent(&job)->only = i;
        for (int second = 0; second < 2; second++) { /* of rank 0's */
            bool ready = (i == 2) == (second == 1);
            int start = i == 2 ? 110 + 3 * second : 105 + 7 * second;
            if (ready)
                send_one(&job, 0, 1, start, i == 2 ? 311 : 106, 0);
            else
                send_one(&job, 0, 1, start, start + 200, 1000);
            last_sent(&job)->opcode = ready ? RECV_READY : DATA;
            last_sent(&job)->only = i;
        }
        send_one(&job, 1, 0, i == 2 ? 314 : 114, i == 2 ? 514 : 314, 1000);
        last_sent(&job)->only = i;
    }
    return job;
}

/* The delay with which a rank's forward computation takes so much less. */
static void shorten_forward(const struct dpro_graph *g, int rank, int us, char delay[32])
{
    int64_t dur_ns = 0;
    for (dpro_op_id op = 0; op < dpro_graph_n_ops(g); op++)
        if (dpro_graph_op(g, op).rank == rank && dpro_graph_op(g, op).kind == DPRO_OP_FW)
            dur_ns += dpro_graph_op(g, op).dur_ns;
    assert_true(dur_ns >= us * US);
    snprintf(delay, 32, "FW@%d=%.9f", rank, 1 - (double)(us * US) / (double)dur_ns);
}

TEST_IN_FOLDER(a_rank_that_comes_earlier_to_an_all_gather_makes_no_iteration_longer)
{
    char delays[2][32];
    struct job job =
        gather("all_reduce"); /* where a ready message behind data would have a reason */
    struct dpro_graph *g = graph_of(&job);
    assert_int_equal(replay_us(g, NULL), STEP);
    shorten_forward(g, 1, 20, delays[1]);
    assert_true(replay_us(g, delays[1]) > STEP + 100);
    job = gather("all_gather");
    g = graph_of(&job);
    assert_int_equal(check_pairs(g), 2000);
    assert_int_equal(replay_us(g, NULL), STEP);
    for (int us = 1; us < 50; us++) {
        for (int r = 0; r < 2; r++) {
            shorten_forward(g, r, us, delays[r]);
            assert_true(replay_us(g, delays[r]) <= STEP);
        }
        assert_true(replay_us2(g, delays[0], delays[1]) <= STEP);
    }
}

/* 300 us of 600, in which what is sent is not all under way. */
TEST_IN_FOLDER(bytes_take_a_link_no_longer_than_their_messages_are_under_way)
{
    struct job job = {.n_ranks = 2,
                      .n_collectives = 1,
                      .kind = "all_gather",
                      .arrive = {{100}, {100}},
                      .leave = {{700}, {700}}};
    for (int from = 0; from < 2; from++) {
        send_one(&job, from, 1 - from, 250, 400, 200);
        send_one(&job, from, 1 - from, 500, 650, 200);
    }
    const struct dpro_model *model;
    struct dpro_error err = {0};
    if (dpro_job_model(job_of(&job), 1, &model, &err) < 0)
        fail_msg("%s", err.text);
    assert_int_equal(model->n_communications, 1);
    assert_float_equal(model->communications[0].took_ns, 600 * US, 5 * US);
    assert_float_equal(model_group_cost(model, &model->communications[0]).wire_ns, 300 * US,
                       5 * US);
}

/* ---- NCCL ---- */

TEST_IN_FOLDER(a_tree_passes_on_what_came_up_and_what_came_down)
{
    for (int told = 0; told < 2; told++) {
        struct job job = {.n_ranks = 4, .n_collectives = 1, .by_nccl = true};
        job.algorithm = told ? "TREE" : NULL;
        static const int way[6][2] = {{3, 1}, {1, 0}, {2, 0}, {0, 1}, {0, 2}, {1, 3}};
        static const int at[6] = {110, 170, 110, 230, 231, 290};
        for (int r = 0; r < 4; r++) {
            job.arrive[r][0] = 100;
            job.leave[r][0] = 350;
        }
        for (int chunk = 0; chunk < 2; chunk++)
            for (int m = 0; m < 6; m++)
                send_one(&job, way[m][0], way[m][1], at[m] + 2 * chunk, at[m] + 50 + 2 * chunk,
                         100);
        struct dpro_graph *g = graph_of(&job);
        assert_int_equal(dpro_graph_n_warnings(g), 0);
        assert_string_equal(dpro_graph_collective(g, 0).pattern, "tree");
        assert_int_equal(dpro_graph_collective(g, 0).n_chunks, 2);
        assert_int_equal(check_pairs(g), 1200);
        check_edges(g, 1, "receive from rank 3#1 > call that sends to rank 0");
        check_edges(g, 0, "receive from rank 1#1 > call that sends to rank 1");
        check_edges(g, 0, "receive from rank 2#1 > call that sends to rank 1");
        check_edges(g, 1, "receive from rank 0#1 > call that sends to rank 3");
        assert_int_equal(replay_us(g, NULL), STEP);
        assert_int_equal(replay_us(g, "gemm@3=+0.1"), STEP + 100);
    }
}

TEST_IN_FOLDER(channels_do_not_wait_for_each_other)
{
    struct job job = ring(2, 2, 50, 5, 100);
    job.by_nccl = true;
    for (int i = 1; i <= N; i++) /* which of two channels comes first is chance */
        for (int k = 0; k < 2; k++)
            for (int r = 0; r < 2; r++) {
                int start = 110 + 55 * k + (i == 2 ? -4 : 4);
                send_one(&job, r, !r, start, start + 50, 200);
                last_sent(&job)->channel = 1;
                last_sent(&job)->only = i;
            }
    struct dpro_graph *g = graph_of(&job);
    assert_int_equal(dpro_graph_n_warnings(g), 0);
    struct dpro_collective c = dpro_graph_collective(g, 0);
    assert_string_equal(c.pattern, "ring");
    assert_int_equal(c.n_messages, 8);
    assert_int_equal(c.n_chunks, 1);
    assert_int_equal(c.n_channels, 2);
    assert_int_equal(check_pairs(g), 1200);
    for (int a = 0; a < 4; a++)
        for (int b = 0; b < 4; b++) {
            dpro_op_id received = nth_op(g, 0, "receive from rank 1", a);
            dpro_op_id calls = nth_op(g, 0, "call that sends to rank 1", b);
            bool passed_on =
                dpro_graph_op(g, received).size_bytes ==
                    dpro_graph_op(g, dpro_graph_successors(g, calls, 0, &(uint32_t){0})[0])
                        .size_bytes &&
                a < 2 && b >= 2;
            assert_int_equal(edge_to(g, received, calls, 0), passed_on);
        }
}

TEST_IN_FOLDER(what_one_rank_of_a_node_received_another_may_send_on)
{
    struct job job = ring(4, 6, 50, 5, 100);
    int n = 0;
    for (int s = 0; s < job.n_sent; s++) /* 0 to 1 and 2 to 3 don't leave their nodes */
        if (job.sent[s].from % 2 == 1)
            job.sent[n++] = job.sent[s];
    job.n_sent = n;
    job.by_nccl = true;
    job.algorithm = "RING";
    for (int r = 0; r < 4; r++)
        job.host[r] = r < 2 ? "a" : "b";
    struct dpro_graph *g = graph_of(&job);
    assert_int_equal(dpro_graph_n_warnings(g), 0);
    struct dpro_collective c = dpro_graph_collective(g, 0);
    assert_int_equal(c.n_messages, 12);
    assert_string_equal(c.pattern, "ring");
    assert_int_equal(c.n_chunks, 1);
    assert_int_equal(check_pairs(g), 1200);
    assert_true(edge_to(g, nth_op(g, 0, "receive from rank 3", 0),
                        nth_op(g, 1, "call that sends to rank 2", 1), 0));
    for (int r = 0; r < 4; r++) /* also of those that sent nothing, or received nothing */
        assert_int_equal(dpro_graph_op(g, nth_op(g, r, NCCL_KERNEL, 0)).dur_ns, 5 * US);
    assert_int_equal(replay_us(g, NULL), STEP);
    /* so slower steps one way make those the other way late, three of six times */
    check_delays(g, STEP, "send to rank 2=1.1 & receive from rank 1=1.1: +15; COMM=2: +305");
}

TEST_IN_FOLDER(sends_and_receives_of_one_call_are_an_exchange)
{
    struct job job = {.n_ranks = 3, .n_collectives = 1, .kind = "all_to_all"};
    job.by_nccl = job.point_to_point = true;
    for (int r = 0; r < 3; r++) {
        job.arrive[r][0] = 100;
        job.leave[r][0] = 215;
        for (int k = 1; k < 3; k++)
            for (int chunk = 0; chunk < 2; chunk++)
                send_one(&job, r, (r + k) % 3, 110 + 50 * chunk, 160 + 50 * chunk, 100 * k);
    }
    struct dpro_graph *g = graph_of(&job);
    assert_int_equal(dpro_graph_n_warnings(g), 0);
    struct dpro_collective c = dpro_graph_collective(g, 0);
    assert_string_equal(c.pattern, "direct");
    assert_int_equal(c.n_messages, 12);
    assert_int_equal(c.n_chunks, 2);
    assert_int_equal(check_pairs(g), 3 * 2 * 300);
    assert_int_equal(replay_us(g, NULL), STEP);
}

TEST_IN_FOLDER(a_step_that_is_lost_leaves_its_collective_whole)
{
    struct job job = ring(2, 2, 50, 5, 100);
    job.by_nccl = true;
    for (int r = 0; r < 2; r++)
        write_profile(&job, folder, r);
    write_log(&job, folder, 0);
    job.n_sent--;
    write_log(&job, folder, 1);
    struct dpro_graph *g = graph_at(folder, .no_align = 1);
    check_whole(g, "do not have all");
}

/* ---- logs that do not tell ---- */

TEST_IN_FOLDER(of_a_rank_without_a_log_the_others_ends_of_its_messages_remain)
{
    for (int by_nccl = 0; by_nccl < 2; by_nccl++) {
        struct job job = ring(4, 6, 50, 5, 100000);
        job.by_nccl = by_nccl;
        job.without_log[2] = true;
        struct dpro_graph *g = graph_of(&job);
        uint32_t n_one_sided;
        assert_true(has_warning(g, "no transport log has the part of rank 2 in 1 of 1"));
        assert_false(has_warning(g, "whole"));
        assert_int_equal(dpro_graph_n_warnings(g), 1);
        assert_string_equal(dpro_graph_collective(g, 0).pattern, "ring");
        assert_int_equal(dpro_graph_collective(g, 0).n_messages, 24);
        assert_int_equal(check_pairs_but(g, 2, &n_one_sided), 3 * 6 * 100000);
        assert_int_equal(n_one_sided, 2 * 6);
        /* what it passed on is still waited for */
        const char *passes = "call that sends, of rank 2";
        for (int k = 1; k < 6; k++)
            assert_true(
                edge_to(g, nth_op(g, 1, "send to rank 2", k - 1), nth_op(g, 3, passes, k), 0));
        assert_true(
            edge_to(g, nth_op(g, 2, "arrival at all_reduce", 0), nth_op(g, 3, passes, 0), 0));
        assert_int_equal(dpro_graph_op(g, nth_op(g, 1, "send to rank 2", 0)).dur_ns, 50 * US);
        dpro_op_id transfer = nth_op(g, 2, by_nccl ? NCCL_KERNEL : "gloo:all_reduce", 0);
        assert_int_equal(dpro_graph_op(g, transfer).dur_ns, 5 * US);
        assert_int_equal(replay_us(g, NULL), STEP);
        /* 0 to 1 is on the way twice, in six steps around four ranks */
        assert_int_equal(replay_us2(g, "send to rank 1=1.1", "receive from rank 0=1.1"), STEP + 10);
        assert_int_equal(replay_us(g, by_nccl ? "gemm@2=+0.3" : "FW@2=+0.3"), STEP + 300);
        assert_int_equal(replay_us(g, by_nccl ? "gemm@0=+0.3" : "FW@0=+0.3"), STEP + 300);
    }
}

TEST_IN_FOLDER(of_several_ranks_without_logs_what_came_in_may_have_gone_out_again)
{
    struct job job = ring(4, 6, 50, 5, 100000);
    job.without_log[2] = job.without_log[3] = true;
    struct dpro_graph *g = graph_of(&job);
    assert_true(has_warning(g, "no transport log has the part of ranks 2, 3 in 1 of 1"));
    assert_int_equal(dpro_graph_collective(g, 0).n_messages, 18); /* but for those from 2 to 3 */
    assert_string_equal(dpro_graph_collective(g, 0).pattern, "partly seen");
    assert_true(edge_to(g, nth_op(g, 1, "send to a rank without a log", 1),
                        nth_op(g, 0, "call that sends, of a rank without a log", 2), 0));
    for (int r = 0; r < 4; r++)
        assert_int_equal(dpro_graph_op(g, nth_op(g, r, "gloo:all_reduce", 0)).dur_ns, 5 * US);
    check_delays(g, STEP, "-: +0; FW=+0.3: +300");
}

TEST_IN_FOLDER(without_any_log_nothing_is_said)
{
    struct job job = ring(2, 2, 50, 5, 100);
    job.without_log[0] = job.without_log[1] = true;
    struct dpro_graph *g = graph_of(&job);
    assert_false(has_warning(g, "whole"));
    assert_int_equal(dpro_graph_collective(g, 0).n_messages, 0);
}

TEST_IN_FOLDER(messages_that_differ_between_iterations_stay_whole)
{
    struct job job = ring(2, 2, 50, 5, 100);
    send_one(&job, 0, 1, 221, 230, 100);
    last_sent(&job)->only = 2; /* one more in one iteration */
    struct dpro_graph *g = graph_of(&job);
    check_whole(g, "differ from one iteration to the next");
    job.n_sent--;
    job.sent[0].only = 1; /* another size in one iteration */
    send_one(&job, 0, 1, 110, 160, 101);
    last_sent(&job)->only = 2;
    send_one(&job, 0, 1, 110, 160, 100);
    last_sent(&job)->only = 3;
    g = graph_of(&job);
    check_whole(g, "differ from one iteration to the next");
}

TEST_IN_FOLDER(a_message_that_only_its_sender_logged_leaves_the_collective_whole)
{
    struct job job = ring(2, 2, 50, 5, 100);
    for (int r = 0; r < 2; r++)
        write_profile(&job, folder, r);
    write_log(&job, folder, 0);
    job.sent[2].only = 1; /* rank 1 lost one of what it received in the others */
    write_log(&job, folder, 1);
    struct dpro_graph *g = graph_at(folder, .no_align = 1);
    assert_true(has_warning(g, "replayed whole"));
    assert_int_equal(check_pairs(g), 0);
}

TEST_IN_FOLDER(a_rank_that_is_missing_leaves_its_collectives_whole)
{
    struct job job = ring(3, 4, 50, 5, 100);
    for (int r = 0; r < 2; r++) {
        write_profile(&job, folder, r);
        write_log(&job, folder, r);
    }
    struct dpro_graph *g = graph_at(folder, .no_align = 1);
    assert_int_equal(dpro_graph_collective(g, 0).n_messages, 0);
    assert_int_equal(check_pairs(g), 0);
}

/* ---- real captures ---- */

TEST(real_captures_are_tied_and_rings_of_messages_to_the_byte)
{
    static const struct {
        const char *name;
        unsigned n_ranks, n_buckets;
        uint64_t bytes;                        /* of all buckets */
        uint64_t n_collectives, n_all_reduces; /* of all iterations, on all ranks */
    } captures[] = {
        {"torch-ddp-gloo-gpt-n2-1gbit-cap25", 2, 1, 29480960, 16, 16},
        {"torch-ddp-gloo-gpt-n2-1gbit-cap5", 2, 4, 29480960, 64, 64},
        {"torch-ddp-gloo-gpt-n4-500mbit-cap25", 4, 1, 29480960, 32, 32},
        {"torch-ddp-gloo-gpt-n4-500mbit-cap5", 4, 4, 29480960, 128, 128},
        {"torch-ddp-gloo-resnet18-n2-500mbit-cap25", 2, 2, 44695848, 64, 32},
        {"torch-ddp-gloo-resnet18-n2-500mbit-cap5", 2, 6, 44695848, 128, 96},
        {"torch-ddp-gloo-resnet18-n4-1gbit-cap25", 4, 2, 44695848, 128, 64},
        {"torch-ddp-gloo-resnet18-n4-1gbit-cap5", 4, 6, 44695848, 256, 192},
    };
    for (size_t i = 0; i < sizeof captures / sizeof *captures; i++) {
        char path[512];
        if (!capture_path(path, captures[i].name))
            skip();
        struct dpro_job *job = job_at(path);
        const struct dpro_graph *g = job_graph(job);
        struct dpro_transport_info info = dpro_trace_transport(job_trace(job));
        unsigned n = captures[i].n_ranks, n_rings = 0;
        assert_int_equal(info.n_processes, n);
        assert_int_equal(info.n_connections, n * (n - 1) / 2);
        assert_int_equal(info.n_one_sided, 0);
        assert_int_equal(info.unpaired_bytes, 0);
        assert_int_equal(info.n_collectives, captures[i].n_collectives);
        assert_int_equal(info.n_tied, captures[i].n_collectives);
        assert_int_equal(info.n_checked, captures[i].n_all_reduces);
        assert_int_equal(info.n_exact, captures[i].n_all_reduces);
        uint64_t broadcast = 0;
        for (uint32_t c = 0; c < dpro_graph_n_collectives(g); c++) {
            struct dpro_collective collective = dpro_graph_collective(g, c);
            assert_true(collective.n_messages > 0);
            bool reduces = collective.kind == DPRO_ALL_REDUCE;
            n_rings += reduces && strcmp(collective.pattern, "ring") == 0;
            broadcast += reduces ? 0 : collective.size_bytes * (n - 1);
        }
        assert_int_equal(n_rings, captures[i].n_buckets);
        /* on a ring of n every byte is sent 2 (n - 1) times */
        assert_int_equal(check_pairs(g), captures[i].bytes * 2 * (n - 1) + broadcast);
        assert_false(has_warning(g, "whole"));
    }
}
