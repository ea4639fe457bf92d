/* Where each rank's time goes. Every instant between a rank's iteration boundaries counts as one
 * use: the first of enum use that is going on. One sweep over a rank's intervals, sorted by start,
 * only remembers the latest end of each use, as an interval that is over no longer matters. It
 * follows the copies of the iteration: none begins before the one that it is a copy of. */
#include <stdatomic.h>

#include "base/parallel.h"
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

struct breakdown_interval {
    int64_t start, end;
    uint32_t use;
    uint32_t waits_in;  /* collective, for USE_WAIT; NOBODY: for ranks that were not recorded */
    uint32_t copy;      /* for USE_WAIT */
    uint32_t dimension; /* 1 + that of its communication; 0: none */
};

struct breakdown_sums {
    int64_t use[N_USES];
    int64_t transfer; /* hidden or not */
};

/* What is the same for all ranks. */
struct breakdown {
    struct arena arena;
    const struct dpro_graph *g;
    const struct breakdown_span *span;
    uint32_t *of_rank, *first; /* members of collectives by rank: of_rank[first[r] .. first[r + 1])
                                */
    uint32_t *collective;      /* of a member */
    uint32_t *last;            /* [copy * n_collectives + collective] the last rank to arrive */
    size_t most_ops;           /* of a rank */
    bool any_missing;          /* ranks of a collective */
    struct dpro_rank_time *ranks;
    struct dpro_dimension_time *dimensions;
    struct dpro_rank_time *of_iterations; /* NULL: not asked for */
    int64_t *waited_for_ns;               /* [rank * n_ranks + other]; NULL: not asked for */
    _Atomic int64_t *waited_ns;           /* as last: what ranks wait in it, the sum over them */
    struct dpro_lateness *lateness;
    struct accounting *of_thread;
    atomic_size_t next_rank;
};

/* What is at work while a rank is accounted for. */
struct accounting {
    struct arena arena;
    const struct dpro_graph *g;
    const struct breakdown_span *span;
    struct breakdown *all;
    uint8_t *uses;       /* of the rank's ops */
    int64_t *missing_ns; /* by the rank's ops: how much of the front of a transfer is waiting for
                            ranks that are missing in the trace; NULL: none is */
    int64_t *waited_for; /* by rank index */
    /* by dimension, the first of none: of the rank; until when any of it goes on */
    struct dpro_dimension_time *dimensions;
    int64_t *until_transfer, *until_wait, until_any;
    int64_t now, to;          /* how far the sweep is, and where it ends */
    uint32_t rank, iteration; /* index; how far it is */
    int64_t *used_ns;         /* by iteration and use */
    int64_t until[N_USES];    /* of the rank */
    uint32_t waits_in, copy;  /* as of the interval */
    struct breakdown_sums sums;
    ARRAY(struct breakdown_interval) intervals; /* not swept yet */
    struct breakdown_interval *spare;           /* for sorting */
    size_t n_spare;
};

bool breakdown_is_transfer(enum dpro_op_kind kind)
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
    bool computes =
        phase <= DPRO_OP_INPUT && kind != DPRO_OP_LAUNCH && !breakdown_is_transfer(kind);
    if (computes && (has_gpu ? on_gpu : on_cpu))
        return computing[phase];
    if (breakdown_is_transfer(kind) || phase == DPRO_OP_COLLECTIVE)
        return USE_TRANSFER;
    if (computes && phase == DPRO_OP_INPUT && has_gpu && on_cpu)
        return USE_CPU_INPUT;
    return N_USES;
}

/* Merge sort that starts from the runs that are there: ops come in trace order, copy after copy,
 * so a rank's list is a few long runs. */
static size_t run_end(const struct breakdown_interval *at, size_t n, size_t from)
{
    size_t i = from + 1;
    while (i < n && at[i - 1].start <= at[i].start)
        i++;
    return i;
}

static void sort_intervals(struct accounting *work)
{
    size_t n = work->intervals.n;
    struct breakdown_interval *from = work->intervals.at;
    if (n < 2 || run_end(from, n, 0) == n)
        return;
    if (work->n_spare < n) { /* as large as the next ranks will need it, too */
        work->n_spare = work->intervals.cap;
        work->spare = arena_alloc(&work->arena, work->n_spare * sizeof *work->spare);
    }
    struct breakdown_interval *to = work->spare;
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
        struct breakdown_interval *swap = from;
        from = to;
        to = swap;
    }
    if (from != work->intervals.at)
        memcpy(work->intervals.at, from, n * sizeof *from);
}

static void add_interval(struct accounting *work, int64_t start, int64_t end,
                         struct breakdown_interval what)
{
    what.start = start;
    what.end = end;
    if (end > start)
        array_push(&work->intervals, what);
}

/* The members of collectives by rank, through their transfers' ranks. */
static void find_members(struct breakdown *all)
{
    const struct dpro_graph *g = all->g;
    all->first = arena_array(&all->arena, (size_t)g->n_ranks + 1, sizeof *all->first);
    all->of_rank = arena_array(&all->arena, (size_t)g->n_members + 1, sizeof *all->of_rank);
    all->collective = arena_array(&all->arena, (size_t)g->n_members + 1, sizeof *all->collective);
    for (uint32_t c = 0; c < g->n_collectives; c++)
        for (uint32_t i = 0; i < g->collectives[c].n_members; i++)
            all->collective[g->collectives[c].first_member + i] = c;
    for (uint32_t i = 0; i < g->n_members; i++)
        all->first[g->rank[g->members[i].transfer]]++;
    for (uint32_t r = 1; r <= g->n_ranks; r++)
        all->first[r] += all->first[r - 1];
    for (uint32_t i = g->n_members; i-- > 0;)
        all->of_rank[--all->first[g->rank[g->members[i].transfer]]] = i;
}

static uint32_t last_to_arrive(const struct dpro_graph *g, const struct graph_collective *c,
                               const struct replay_copy *copy)
{
    uint32_t last = NOBODY;
    int64_t latest = -1;
    for (uint32_t i = 0; i < c->n_members; i++) {
        uint32_t arrival = g->members[c->first_member + i].arrival;
        if (copy->end_ns[arrival] > latest) {
            latest = copy->end_ns[arrival];
            last = g->rank[arrival];
        }
    }
    return last;
}

static void find_last(void *arg, size_t c)
{
    const struct breakdown *all = arg;
    const struct replay_copy *copy = &all->span->copies[c];
    uint32_t *last = all->last + (size_t)copy->number * all->g->n_collectives;
    for (uint32_t i = 0; copy->end_ns && i < all->g->n_collectives; i++)
        if (all->g->collectives[i].barrier != DPRO_NO_OP)
            last[i] = last_to_arrive(all->g, &all->g->collectives[i], copy);
}

/* Waiting for peers, and the front of a transfer that waits for ranks missing in the trace; the
 * transfer itself is added with the other ops and cut there through missing_ns[]. */
static void add_waits(struct accounting *work, uint32_t r, const struct replay_copy *copy)
{
    const struct dpro_graph *g = work->g;
    const struct breakdown *all = work->all;
    for (uint32_t i = all->first[r]; i < all->first[r + 1]; i++) {
        const struct graph_member *member = &g->members[all->of_rank[i]];
        uint32_t number = all->collective[all->of_rank[i]];
        const struct graph_collective *c = &g->collectives[number];
        int64_t dur = copy->dur_ns[member->transfer];
        int64_t start = copy->end_ns[member->transfer] - dur;
        uint32_t dimension = work->g->n_dimensions > 0 ? c->dimension + 1 : 0;
        if (c->missing_wait_ns > 0) {
            int64_t missing = MIN(c->missing_wait_ns, dur);
            work->missing_ns[member->transfer - g->ranks[r].first_op] = missing;
            add_interval(work, start, start + missing,
                         (struct breakdown_interval){
                             .use = USE_WAIT, .waits_in = NOBODY, .dimension = dimension});
        }
        if (c->barrier == DPRO_NO_OP)
            continue;
        int64_t all_there = copy->end_ns[c->barrier];
        if (c->n_messages > 0) /* some rank is sending: the collective transfers */
            add_interval(work, all_there, start,
                         (struct breakdown_interval){.use = USE_TRANSFER, .dimension = dimension});
        add_interval(
            work, copy->end_ns[member->arrival], all_there,
            (struct breakdown_interval){
                .use = USE_WAIT, .waits_in = number, .copy = copy->number, .dimension = dimension});
    }
}

static void add_ops(struct accounting *work, uint32_t r, const struct replay_copy *copy)
{
    uint32_t first = work->g->ranks[r].first_op;
    for (uint32_t i = 0; i < work->g->ranks[r].n_ops; i++) {
        if (work->uses[i] == N_USES)
            continue;
        int64_t end = copy->end_ns[first + i], start = end - copy->dur_ns[first + i];
        if (work->missing_ns && work->uses[i] == USE_TRANSFER)
            start += work->missing_ns[i];
        add_interval(work, start, end,
                     (struct breakdown_interval){
                         .use = work->uses[i],
                         .dimension = work->g->dimension ? work->g->dimension[first + i] : 0});
    }
}

/* What goes on in each dimension in a part of the time that counts as one use. */
static void count_dimensions(const struct accounting *work, int64_t from, int64_t to, int use)
{
    for (uint32_t d = 0; d <= work->g->n_dimensions && work->until_any > from; d++) {
        struct dpro_dimension_time *time = &work->dimensions[d];
        int64_t transfers = MAX(MIN(work->until_transfer[d], to) - from, 0);
        int64_t waits = MAX(MIN(work->until_wait[d], to) - from, 0);
        time->communication_ns += transfers;
        time->exposed_communication_ns += use == USE_TRANSFER ? transfers : 0;
        time->wait_for_peers_ns += use == USE_WAIT ? waits : 0;
    }
}

static void begin_in_dimension(struct accounting *work, const struct breakdown_interval *interval)
{
    int64_t *until = interval->use == USE_TRANSFER ? work->until_transfer
                     : interval->use == USE_WAIT   ? work->until_wait
                                                   : NULL;
    if (!until)
        return;
    until[interval->dimension] = MAX(until[interval->dimension], interval->end);
    work->until_any = MAX(work->until_any, interval->end);
}

/* Where the sweep's iteration ends. */
static int64_t iteration_end(const struct accounting *work)
{
    const struct breakdown_span *span = work->span;
    size_t copy = span->first_iteration + work->iteration;
    return span->boundary_ns && work->iteration + 1 < span->n_iterations
               ? MAX(span->boundary_ns[copy * work->g->n_ranks + work->rank], work->now)
               : work->to;
}

/* Accounts for the time until `stop`, in which nothing begins. */
static void breakdown_advance(struct accounting *work, int64_t stop)
{
    const int64_t *until = work->until;
    stop = MIN(stop, work->to);
    if (stop > work->now && until[USE_TRANSFER] > work->now)
        work->sums.transfer += MIN(until[USE_TRANSFER], stop) - work->now;
    while (work->now < stop) {
        int use = 0;
        while (use < N_USES && until[use] <= work->now)
            use++;
        int64_t over = iteration_end(work);
        if (over == work->now && over < work->to) {
            work->iteration++;
            continue;
        }
        int64_t part_end = MIN(over, use < N_USES ? MIN(until[use], stop) : stop);
        if (use < N_USES) {
            work->sums.use[use] += part_end - work->now;
            work->used_ns[(size_t)work->iteration * N_USES + (size_t)use] += part_end - work->now;
        }
        count_dimensions(work, work->now, part_end, use);
        if (use == USE_WAIT && work->waits_in != NOBODY) {
            size_t at = (size_t)work->copy * work->g->n_collectives + work->waits_in;
            work->waited_for[work->all->last[at]] += part_end - work->now;
            work->all->waited_ns[at] += part_end - work->now;
        }
        work->now = part_end;
    }
}

/* Takes the intervals that begin before `horizon`. */
static void breakdown_sweep(struct accounting *work, int64_t horizon)
{
    size_t i = 0;
    for (; i < work->intervals.n && work->intervals.at[i].start < horizon; i++) {
        const struct breakdown_interval *next = &work->intervals.at[i];
        breakdown_advance(work, next->start);
        begin_in_dimension(work, next);
        if (next->end > work->until[next->use]) {
            work->until[next->use] = next->end;
            if (next->use == USE_WAIT) {
                work->waits_in = next->waits_in;
                work->copy = next->copy;
            }
        }
    }
    work->intervals.n -= i;
    if (i > 0)
        memmove(work->intervals.at, work->intervals.at + i,
                work->intervals.n * sizeof *work->intervals.at);
}

/* Adds a copy of the iteration, and sweeps what comes before it. */
static void add_copy(struct accounting *work, uint32_t r, const struct replay_copy *copy)
{
    size_t before = work->intervals.n;
    int64_t earliest = INT64_MAX;
    if (work->missing_ns)
        memset(work->missing_ns, 0, work->g->ranks[r].n_ops * sizeof *work->missing_ns);
    add_waits(work, r, copy);
    add_ops(work, r, copy);
    for (size_t i = before; i < work->intervals.n; i++)
        earliest = MIN(earliest, work->intervals.at[i].start);
    sort_intervals(work);
    if (work->intervals.n > before)
        breakdown_sweep(work, earliest);
}

static struct dpro_rank_time time_of(int rank, int64_t total, const int64_t *use, int64_t n)
{
    struct dpro_rank_time time = {
        .rank = rank,
        .iteration_ns = MAX(total, 0) / n,
        .forward_ns = use[USE_FORWARD] / n,
        .backward_ns = use[USE_BACKWARD] / n,
        .update_ns = use[USE_UPDATE] / n,
        .input_ns = (use[USE_INPUT] + use[USE_CPU_INPUT]) / n,
        .exposed_communication_ns = use[USE_TRANSFER] / n,
        .wait_for_peers_ns = use[USE_WAIT] / n,
        .waited_most_for = -1,
    };
    /* Each part was rounded down, so what they leave is never negative. */
    time.idle_ns = time.iteration_ns - time.forward_ns - time.backward_ns - time.update_ns -
                   time.input_ns - time.exposed_communication_ns - time.wait_for_peers_ns;
    return time;
}

/* Of each of its iterations. */
static void fill_iterations(const struct accounting *work, uint32_t r)
{
    const struct breakdown_span *span = work->span;
    int64_t from = span->from_ns[r], to;
    for (uint32_t i = 0; work->all->of_iterations && i < span->n_iterations; i++, from = to) {
        size_t copy = span->first_iteration + i;
        to = span->boundary_ns ? span->boundary_ns[copy * work->g->n_ranks + r] : span->to_ns[r];
        work->all->of_iterations[(size_t)i * work->g->n_ranks + r] =
            time_of(work->g->ranks[r].rank, to - from, work->used_ns + (size_t)i * N_USES, 1);
    }
}

static void fill_rank(const struct accounting *work, uint32_t r, struct dpro_rank_time *out)
{
    const struct breakdown_span *span = work->span;
    const struct dpro_graph *g = work->g;
    int64_t n = span->n_iterations ? span->n_iterations : 1;
    *out = time_of(g->ranks[r].rank, span->to_ns[r] - span->from_ns[r], work->sums.use, n);
    out->communication_ns = work->sums.transfer / n;
    int64_t most = 0;
    for (uint32_t other = 0; other < g->n_ranks; other++) {
        if (work->waited_for[other] > most) {
            most = work->waited_for[other];
            out->waited_most_for = g->ranks[other].rank;
        }
        if (work->all->waited_for_ns)
            work->all->waited_for_ns[(size_t)r * g->n_ranks + other] = work->waited_for[other] / n;
    }
}

static void account_for(struct accounting *work, uint32_t r, struct dpro_rank_time *out)
{
    const struct dpro_graph *g = work->g;
    uint32_t first = g->ranks[r].first_op, n = g->ranks[r].n_ops;
    bool has_gpu = false;
    for (uint32_t i = 0; i < n; i++)
        has_gpu |= (g->flags[first + i] & GRAPH_OP_GPU) != 0;
    for (uint32_t i = 0; i < n; i++)
        work->uses[i] = i < n - g->ranks[r].n_message_ops ? (uint8_t)use_of(g, first + i, has_gpu)
                                                          : (uint8_t)N_USES;
    work->now = work->span->from_ns[r];
    work->to = work->span->to_ns[r];
    work->rank = r;
    work->iteration = 0;
    memset(work->used_ns, 0,
           (work->span->n_iterations + (size_t)1) * N_USES * sizeof *work->used_ns);
    work->waits_in = NOBODY;
    work->until_any = 0;
    work->sums = (struct breakdown_sums){0};
    memset(work->until, 0, sizeof work->until);
    memset(work->waited_for, 0, g->n_ranks * sizeof *work->waited_for);
    memset(work->until_transfer, 0, (g->n_dimensions + 1) * sizeof *work->until_transfer);
    memset(work->until_wait, 0, (g->n_dimensions + 1) * sizeof *work->until_wait);
    for (uint32_t c = 0; c < work->span->n_copies; c++)
        if (work->span->copies[c].end_ns)
            add_copy(work, r, &work->span->copies[c]);
    breakdown_sweep(work, INT64_MAX);
    breakdown_advance(work, INT64_MAX);
    fill_rank(work, r, out);
    fill_iterations(work, r);
    int64_t n_iterations = MAX(work->span->n_iterations, 1);
    for (uint32_t d = 0; d <= g->n_dimensions; d++) {
        work->dimensions[d].exposed_communication_ns /= n_iterations;
        work->dimensions[d].wait_for_peers_ns /= n_iterations;
        work->dimensions[d].communication_ns /= n_iterations;
    }
}

static void make_room(struct accounting *work)
{
    const struct dpro_graph *g = work->g;
    work->uses = arena_array(&work->arena, work->all->most_ops + 1, 1);
    work->used_ns = arena_array(&work->arena, (work->span->n_iterations + (size_t)1) * N_USES,
                                sizeof *work->used_ns);
    work->waited_for = arena_array(&work->arena, (size_t)g->n_ranks + 1, sizeof(int64_t));
    work->until_transfer = arena_array(&work->arena, g->n_dimensions + (size_t)1, sizeof(int64_t));
    work->until_wait = arena_array(&work->arena, g->n_dimensions + (size_t)1, sizeof(int64_t));
    if (work->all->any_missing)
        work->missing_ns =
            arena_array(&work->arena, work->all->most_ops + 1, sizeof *work->missing_ns);
}

/* One rank after the other, in the same memory. */
static void account_for_some(void *arg, size_t thread)
{
    struct breakdown *all = arg;
    struct accounting *work = &all->of_thread[thread];
    *work = (struct accounting){.g = all->g, .span = all->span, .all = all};
    make_room(work);
    for (size_t r; (r = all->next_rank++) < all->g->n_ranks;) {
        work->dimensions = all->dimensions + r * (all->g->n_dimensions + 1);
        account_for(work, (uint32_t)r, &all->ranks[r]);
    }
    array_fini(&work->intervals);
    arena_fini(&work->arena);
}

/* What ranks wait in a collective, they wait for its last rank; it and others come that much later
 * than half of its ranks do, as far as computation does not hide it. */
static void count_lateness(const struct breakdown *all, const struct graph_collective *c,
                           const struct replay_copy *copy, int64_t waited_ns, int64_t *arrived_ns,
                           struct dpro_lateness *of_iteration)
{
    const struct graph_member *member = all->g->members + c->first_member;
    int64_t last = 0, all_ns = 0;
    for (uint32_t i = 0; i < c->n_members; i++) {
        arrived_ns[i] = copy->end_ns[member[i].arrival];
        last = MAX(last, arrived_ns[i]);
    }
    for (uint32_t i = 0; i < c->n_members; i++)
        all_ns += last - arrived_ns[i];
    int64_t middle = select_i64(arrived_ns, c->n_members, (c->n_members - 1) / 2);
    for (uint32_t i = 0; i < c->n_members; i++) {
        int64_t late_ns = copy->end_ns[member[i].arrival] - middle;
        of_iteration[all->g->rank[member[i].arrival]].late_ns +=
            llround((double)late_ns * (double)waited_ns / (double)MAX(all_ns, 1));
    }
}

static void count_latenesses(void *arg, size_t iteration)
{
    const struct breakdown *all = arg;
    const struct dpro_graph *g = all->g;
    const struct replay_copy *copy = &all->span->copies[all->span->first_iteration + iteration];
    struct dpro_lateness *of_iteration = all->lateness + iteration * g->n_ranks;
    SCRATCH int64_t *arrived_ns = mem_array((size_t)g->n_members + 1, sizeof *arrived_ns);
    for (uint32_t c = 0; c < g->n_collectives; c++) {
        size_t at = (size_t)copy->number * g->n_collectives + c;
        if (all->waited_ns[at] == 0)
            continue;
        of_iteration[all->last[at]].waited_ns += all->waited_ns[at];
        count_lateness(all, &g->collectives[c], copy, all->waited_ns[at], arrived_ns, of_iteration);
    }
    for (uint32_t r = 0; r < g->n_ranks; r++)
        of_iteration[r].waited_ns /= g->n_ranks;
}

void breakdown_fill(const struct dpro_graph *g, const struct breakdown_span *span, int threads,
                    struct dpro_rank_time *ranks, struct dpro_dimension_time *dimensions,
                    struct dpro_lateness *lateness, struct dpro_rank_time *of_iterations,
                    int64_t *waited_for_ns)
{
    size_t n_met = (size_t)span->n_copies * g->n_collectives + 1;
    struct breakdown all = {.g = g,
                            .span = span,
                            .ranks = ranks,
                            .dimensions = dimensions,
                            .lateness = lateness,
                            .of_iterations = of_iterations,
                            .waited_for_ns = waited_for_ns};
    for (uint32_t r = 0; r < g->n_ranks; r++)
        all.most_ops = MAX(all.most_ops, g->ranks[r].n_ops);
    for (uint32_t c = 0; c < g->n_collectives; c++)
        all.any_missing |= g->collectives[c].missing_wait_ns > 0;
    find_members(&all);
    all.last = arena_alloc(&all.arena, n_met * sizeof *all.last);
    parallel_for(span->n_copies, threads, find_last, &all);
    all.waited_ns = arena_array(&all.arena, n_met, sizeof *all.waited_ns);
    size_t n = MIN((size_t)parallel_share(threads, 1), g->n_ranks);
    all.of_thread = arena_array(&all.arena, n, sizeof *all.of_thread);
    parallel_for(n, threads, account_for_some, &all);
    parallel_for(span->n_iterations, threads, count_latenesses, &all);
    arena_fini(&all.arena);
}
