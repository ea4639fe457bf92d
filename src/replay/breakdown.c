/* replay/breakdown.c: where each rank's time goes. Every instant between a rank's iteration
 * boundaries counts as one thing: the first of enum use that is going on. The intervals of a rank,
 * sorted by start, are swept once; the latest end seen of each use is all that the sweep must
 * remember, as an earlier interval that is over by then no longer matters. */
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/array.h"
#include "replay/replay.h"

enum use { /* first wins */
           USE_FORWARD,
           USE_BACKWARD,
           USE_UPDATE,
           USE_INPUT,
           USE_TRANSFER,
           USE_WAIT,
           USE_CPU_INPUT, /* data loading on the CPU of a rank that computes on a GPU */
           N_USES,
};

#define NOBODY UINT32_MAX

struct interval {
    int64_t start, end;
    uint32_t use;
    uint32_t waits_for; /* rank index, for USE_WAIT; NOBODY: ranks that were not recorded */
};

struct rank_work {
    ARRAY(struct interval) intervals;
    struct interval *spare; /* for sorting */
    size_t n_spare;
    int64_t *waited_for; /* by rank index */
};

/* Per op: how much of the front of its time is waiting for ranks that are missing in the trace. */
struct members {
    uint32_t *of_rank, *first; /* member indices by rank: of_rank[first[r] .. first[r + 1]) */
    uint32_t *collective;      /* of a member */
};

static bool is_transfer(enum dpro_op_kind kind)
{
    return kind == DPRO_OP_SEND || kind == DPRO_OP_RECV || kind == DPRO_OP_PUSH ||
           kind == DPRO_OP_PULL || kind == DPRO_OP_REDUCE || kind == DPRO_OP_COLLECTIVE;
}

static enum use use_of(const struct dpro_graph *g, uint32_t op, bool has_gpu)
{
    static const uint8_t computing[DPRO_N_OP_KINDS] = {[DPRO_OP_FW] = USE_FORWARD,
                                                       [DPRO_OP_BW] = USE_BACKWARD,
                                                       [DPRO_OP_UPDATE] = USE_UPDATE,
                                                       [DPRO_OP_INPUT] = USE_INPUT};
    enum dpro_op_kind kind = g->kind[op], phase = g->phase[op];
    uint32_t device = g->device[op];
    bool on_cpu = device != DPRO_NO_DEVICE && g->devices[device].kind == DPRO_DEVICE_CPU_THREAD;
    bool on_gpu = g->flags[op] & GRAPH_OP_GPU;
    bool computes = phase <= DPRO_OP_INPUT && kind != DPRO_OP_LAUNCH && !is_transfer(kind);
    if (computes && (has_gpu ? on_gpu : on_cpu))
        return computing[phase];
    if (is_transfer(kind) || phase == DPRO_OP_COLLECTIVE)
        return USE_TRANSFER;
    if (computes && phase == DPRO_OP_INPUT && has_gpu && on_cpu)
        return USE_CPU_INPUT;
    return N_USES;
}

/* Merge sort that starts from the runs that are there: ops come in trace order, copy after copy,
 * so a rank's list is a few long runs. */
static size_t run_end(const struct interval *at, size_t n, size_t from)
{
    size_t i = from + 1;
    while (i < n && at[i - 1].start <= at[i].start)
        i++;
    return i;
}

static int sort_intervals(struct rank_work *work)
{
    size_t n = work->intervals.n;
    struct interval *from = work->intervals.at;
    if (n < 2 || run_end(from, n, 0) == n)
        return 0;
    if (work->n_spare < n) {
        free(work->spare);
        work->spare = malloc(work->intervals.cap * sizeof *work->spare);
        work->n_spare = work->spare ? work->intervals.cap : 0;
        if (!work->spare)
            return -1;
    }
    struct interval *to = work->spare;
    for (bool sorted = false; !sorted;) {
        size_t out = 0;
        sorted = true;
        for (size_t a = 0; a < n;) {
            size_t b = run_end(from, n, a), mid = b, end = b < n ? run_end(from, n, b) : n;
            size_t start = a;
            while (a < mid && b < end)
                to[out++] = from[b].start < from[a].start ? from[b++] : from[a++];
            while (a < mid)
                to[out++] = from[a++];
            while (b < end)
                to[out++] = from[b++];
            sorted = sorted && start == 0 && end == n;
            a = end;
        }
        struct interval *swap = from;
        from = to;
        to = swap;
    }
    if (from != work->intervals.at)
        memcpy(work->intervals.at, from, n * sizeof *from);
    return 0;
}

static int add_interval(struct rank_work *work, int64_t start, int64_t end, enum use use,
                        uint32_t waits_for)
{
    struct interval interval = {start, end, use, waits_for};
    if (end <= start)
        return 0;
    return array_push(&work->intervals, interval);
}

/* The members of collectives by rank, through their transfers' ranks. */
static int make_members(const struct dpro_graph *g, struct arena *arena, struct members *m)
{
    m->first = arena_array(arena, (size_t)g->n_ranks + 1, sizeof *m->first);
    m->of_rank = arena_array(arena, (size_t)g->n_members + 1, sizeof *m->of_rank);
    m->collective = arena_array(arena, (size_t)g->n_members + 1, sizeof *m->collective);
    if (!m->first || !m->of_rank || !m->collective)
        return -1;
    for (uint32_t c = 0; c < g->n_collectives; c++)
        for (uint32_t i = 0; i < g->collectives[c].n_members; i++)
            m->collective[g->collectives[c].first_member + i] = c;
    for (uint32_t i = 0; i < g->n_members; i++)
        m->first[g->rank[g->members[i].transfer]]++;
    for (uint32_t r = 1; r <= g->n_ranks; r++)
        m->first[r] += m->first[r - 1];
    for (uint32_t i = g->n_members; i-- > 0;)
        m->of_rank[--m->first[g->rank[g->members[i].transfer]]] = i;
    return 0;
}

static uint32_t last_to_arrive(const struct dpro_graph *g, const struct graph_collective *c,
                               const struct replay_copy *copy)
{
    uint32_t last = NOBODY;
    int64_t latest = -1;
    for (uint32_t i = 0; i < c->n_members; i++) {
        uint32_t arrival = g->members[c->first_member + i].arrival;
        if (arrival != DPRO_NO_OP && copy->end_ns[arrival] > latest) {
            latest = copy->end_ns[arrival];
            last = g->rank[arrival];
        }
    }
    return last;
}

/* Waiting for peers, and the front of a transfer that waits for ranks missing in the trace; the
 * transfer itself is added with the other ops and cut here through missing_ns[]. */
static int add_waits(const struct dpro_graph *g, const struct members *m, uint32_t r,
                     const struct replay_copy *copy, uint32_t *last, int64_t *missing_ns,
                     struct rank_work *work)
{
    for (uint32_t i = m->first[r]; i < m->first[r + 1]; i++) {
        const struct graph_member *member = &g->members[m->of_rank[i]];
        uint32_t number = m->collective[m->of_rank[i]];
        const struct graph_collective *c = &g->collectives[number];
        if (c->missing_wait_ns > 0 && missing_ns) {
            int64_t dur = copy->dur_ns[member->transfer];
            int64_t missing = c->missing_wait_ns < dur ? c->missing_wait_ns : dur;
            int64_t start = copy->end_ns[member->transfer] - dur;
            missing_ns[member->transfer - g->ranks[r].first_op] = missing;
            if (add_interval(work, start, start + missing, USE_WAIT, NOBODY) < 0)
                return -1;
        }
        if (c->barrier == DPRO_NO_OP || member->arrival == DPRO_NO_OP)
            continue;
        if (c->n_messages > 0 && /* whosever turn it is to send: the collective transfers */
            add_interval(work, copy->end_ns[c->barrier],
                         copy->end_ns[member->transfer] - copy->dur_ns[member->transfer],
                         USE_TRANSFER, NOBODY) < 0)
            return -1;
        if (last[number] == NOBODY)
            last[number] = last_to_arrive(g, c, copy);
        if (add_interval(work, copy->end_ns[member->arrival], copy->end_ns[c->barrier], USE_WAIT,
                         last[number]) < 0)
            return -1;
    }
    return 0;
}

static int add_ops(const struct dpro_graph *g, uint32_t r, const uint8_t *uses,
                   const struct replay_copy *copy, const int64_t *missing_ns,
                   struct rank_work *work)
{
    uint32_t first = g->ranks[r].first_op;
    for (uint32_t i = 0; i < g->ranks[r].n_ops; i++) {
        if (uses[i] == N_USES)
            continue;
        int64_t end = copy->end_ns[first + i], start = end - copy->dur_ns[first + i];
        if (missing_ns && uses[i] == USE_TRANSFER)
            start += missing_ns[i];
        if (add_interval(work, start, end, uses[i], NOBODY) < 0)
            return -1;
    }
    return 0;
}

struct sums {
    int64_t use[N_USES];
    int64_t transfer; /* hidden or not */
};

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static void sweep(struct rank_work *work, int64_t from, int64_t to, struct sums *sums)
{
    int64_t until[N_USES] = {0}, now = from;
    uint32_t waits_for = NOBODY;
    for (size_t i = 0; i <= work->intervals.n && now < to; i++) {
        const struct interval *next = i < work->intervals.n ? &work->intervals.at[i] : NULL;
        int64_t stop = next ? smaller(next->start, to) : to;
        if (stop > now && until[USE_TRANSFER] > now)
            sums->transfer += smaller(until[USE_TRANSFER], stop) - now;
        while (now < stop) {
            int use = 0;
            while (use < N_USES && until[use] <= now)
                use++;
            int64_t part_end = use < N_USES ? smaller(until[use], stop) : stop;
            if (use < N_USES)
                sums->use[use] += part_end - now;
            if (use == USE_WAIT && waits_for != NOBODY)
                work->waited_for[waits_for] += part_end - now;
            now = part_end;
        }
        if (next && next->end > until[next->use]) {
            until[next->use] = next->end;
            if (next->use == USE_WAIT)
                waits_for = next->waits_for;
        }
    }
}

static void fill_rank(const struct dpro_graph *g, uint32_t r, const struct breakdown_span *span,
                      const struct sums *sums, const int64_t *waited_for,
                      struct dpro_rank_time *out)
{
    int64_t n = span->n_iterations ? span->n_iterations : 1;
    int64_t total = span->to_ns[r] > span->from_ns[r] ? span->to_ns[r] - span->from_ns[r] : 0;
    *out = (struct dpro_rank_time){
        .rank = g->ranks[r].rank,
        .iteration_ns = total / n,
        .forward_ns = sums->use[USE_FORWARD] / n,
        .backward_ns = sums->use[USE_BACKWARD] / n,
        .update_ns = sums->use[USE_UPDATE] / n,
        .input_ns = (sums->use[USE_INPUT] + sums->use[USE_CPU_INPUT]) / n,
        .exposed_communication_ns = sums->use[USE_TRANSFER] / n,
        .wait_for_peers_ns = sums->use[USE_WAIT] / n,
        .communication_ns = sums->transfer / n,
        .waited_most_for = -1,
    };
    /* Each part was rounded down, so what they leave is never negative. */
    out->idle_ns = out->iteration_ns - out->forward_ns - out->backward_ns - out->update_ns -
                   out->input_ns - out->exposed_communication_ns - out->wait_for_peers_ns;
    int64_t most = 0;
    for (uint32_t other = 0; other < g->n_ranks; other++)
        if (waited_for[other] > most) {
            most = waited_for[other];
            out->waited_most_for = g->ranks[other].rank;
        }
}

int breakdown_fill(const struct dpro_graph *g, const struct breakdown_span *span,
                   struct dpro_rank_time *ranks, struct dpro_error *err)
{
    int rc = DPRO_ENOMEM;
    struct arena arena = {NULL, 0};
    struct rank_work work = {0};
    struct members members;
    uint32_t most_ops = 0;
    bool any_missing = false;
    for (uint32_t r = 0; r < g->n_ranks; r++)
        most_ops = g->ranks[r].n_ops > most_ops ? g->ranks[r].n_ops : most_ops;
    for (uint32_t c = 0; c < g->n_collectives; c++)
        any_missing |= g->collectives[c].missing_wait_ns > 0;
    size_t n_last = (size_t)span->n_copies * g->n_collectives;
    uint8_t *uses = arena_array(&arena, (size_t)most_ops + 1, 1);
    int64_t *missing_ns = any_missing ? arena_array(&arena, most_ops, sizeof *missing_ns) : NULL;
    uint32_t *last = arena_array(&arena, n_last + 1, sizeof *last);
    work.waited_for = arena_array(&arena, (size_t)g->n_ranks + 1, sizeof *work.waited_for);
    if (!uses || (any_missing && !missing_ns) || !last || !work.waited_for ||
        make_members(g, &arena, &members) < 0)
        goto out;
    memset(last, 0xff, n_last * sizeof *last); /* NOBODY: found out when first needed */
    for (uint32_t r = 0; r < g->n_ranks; r++) {
        uint32_t first = g->ranks[r].first_op, n = g->ranks[r].n_ops;
        bool has_gpu = false;
        for (uint32_t i = 0; i < n; i++)
            has_gpu |= (g->flags[first + i] & GRAPH_OP_GPU) != 0;
        for (uint32_t i = 0; i < n; i++)
            uses[i] = i < n - g->ranks[r].n_message_ops ? (uint8_t)use_of(g, first + i, has_gpu)
                                                        : (uint8_t)N_USES;
        work.intervals.n = 0;
        memset(work.waited_for, 0, g->n_ranks * sizeof *work.waited_for);
        for (uint32_t c = 0; c < span->n_copies; c++) {
            const struct replay_copy *copy = &span->copies[c];
            if (!copy->end_ns)
                continue;
            if (missing_ns)
                memset(missing_ns, 0, n * sizeof *missing_ns);
            if (add_waits(g, &members, r, copy, last + (size_t)c * g->n_collectives, missing_ns,
                          &work) < 0 ||
                add_ops(g, r, uses, copy, missing_ns, &work) < 0)
                goto out;
        }
        if (sort_intervals(&work) < 0)
            goto out;
        struct sums sums = {0};
        sweep(&work, span->from_ns[r], span->to_ns[r], &sums);
        fill_rank(g, r, span, &sums, work.waited_for, &ranks[r]);
    }
    rc = 0;
out:
    arena_fini(&arena);
    array_fini(&work.intervals);
    free(work.spare);
    return rc < 0 ? dpro_error_nomem(err) : 0;
}
