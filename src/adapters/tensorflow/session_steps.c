/* The steps of a TensorFlow session. One client starts a step on all tasks; it is over when all are
 * done.
 *
 * A tensor from another task was asked for when the step began, so the time since then is no
 * transfer (paper, section 3.2). The transfer begins when the op that made the tensor is over and
 * the tensors before it from that task have arrived. Tensors from one task share one way, in each
 * step in another order. */
#include "adapters/tensorflow/session_steps.h"

#include "graph/local/local_edges.h"

/* ---- bounds ---- */

/* From the first task's start to the next step's first start, or to the last task's end. */
static void share_bounds(struct join *join, uint32_t sample)
{
    int64_t start = INT64_MAX, end = INT64_MIN, next = INT64_MAX;
    bool follows = true;
    EACH_OF (const struct rank_build, rank, join->ranks, join->n_ranks) {
        uint32_t s = rank->sample_step[sample];
        const struct step *step = &rank->steps.at[s];
        bool followed = s + 1 < rank->steps.n && rank->steps.at[s + 1].follows;
        start = MIN(start, step->start_ns);
        end = MAX(end, step->end_ns);
        next = MIN(next, step->end_ns);
        follows &= followed;
    }
    EACH_OF (struct rank_build, rank, join->ranks, join->n_ranks) {
        struct step *step = &rank->steps.at[rank->sample_step[sample]];
        step->start_ns = start;
        step->end_ns = follows ? next : end;
        *build_start(rank, sample, rank->boundary) = step->end_ns;
        *build_end(rank, sample, rank->boundary) = step->end_ns;
    }
}

/* ---- transfers ---- */

/* When the first op that takes a tensor began: of receive i in sample s at [s * receives + i];
 * INT64_MAX: none did. */
static int64_t *find_needs(const struct rank_build *rank)
{
    size_t n = rank->receives.n;
    SCRATCH int64_t *of_ops = mem_alloc((rank->ops.n + 1) * sizeof *of_ops);
    int64_t *needs = mem_alloc((rank->n_samples * n + 1) * sizeof *needs);
    for (uint32_t s = 0; s < rank->n_samples; s++) {
        for (uint32_t o = 0; o < rank->ops.n; o++)
            of_ops[o] = INT64_MAX;
        EACH (const struct local_edge, edge, rank->edges) {
            bool takes = !edge->next && edge->to != rank->boundary && edge->to < rank->n_timed;
            int64_t start = takes ? *build_start(rank, s, edge->to) : ABSENT;
            if (start != ABSENT && start < of_ops[edge->from])
                of_ops[edge->from] = start;
        }
        for (size_t i = 0; i < n; i++)
            needs[s * n + i] = of_ops[rank->receives.at[i].op];
    }
    return needs;
}

/* TensorFlow leaves out some of a step's transfers now and then. They arrived as long before they
 * were taken as in the median of the other iterations. */
static void find_left_out(struct rank_build *rank)
{
    size_t n = rank->receives.n;
    SCRATCH int64_t *needs = find_needs(rank);
    SCRATCH int64_t *lay = mem_alloc((rank->n_samples + (size_t)1) * sizeof *lay);
    for (size_t i = 0; i < n; i++) {
        uint32_t op = rank->receives.at[i].op, n_seen = 0;
        for (uint32_t s = 0; s < rank->n_samples; s++)
            if (*build_end(rank, s, op) != ABSENT && needs[s * n + i] != INT64_MAX)
                lay[n_seen++] = needs[s * n + i] - *build_end(rank, s, op);
        int64_t median_ns = stats_median_upper_i64(lay, n_seen);
        for (uint32_t s = 0; s < rank->n_samples && n_seen > 0; s++) {
            int64_t *end = build_end(rank, s, op),
                    begin = rank->steps.at[rank->sample_step[s]].start_ns;
            if (*end != ABSENT || needs[s * n + i] == INT64_MAX)
                continue;
            *end = needs[s * n + i] - median_ns;
            *end = MAX(*end, begin);
            *build_start(rank, s, op) = begin;
        }
    }
}

struct made {
    uint32_t key, rank, op;
};

ORDER(by_key, struct made, ASCENDING(key) ?: ASCENDING(rank) ?: ASCENDING(op));

static void steps_tie(struct join *join, const struct made *made, size_t n)
{
    for (uint32_t r = 0; r < join->n_ranks; r++) {
        struct rank_build *rank = &join->ranks[r];
        EACH (const struct local_transfer, receive, rank->receives)
            for (size_t m = LOWER_BOUND(k, (size_t)0, n, made[k].key < receive->key);
                 m < n && made[m].key == receive->key; m++) {
                if (made[m].rank == r)
                    continue;
                array_add(&join->cross, made[m].rank, made[m].op, r, receive->op);
                for (uint32_t s = 0; s < rank->n_samples; s++) {
                    const struct rank_build *from = &join->ranks[made[m].rank];
                    int64_t ready = from->end_ns[build_sample_at(from, s, made[m].op)];
                    int64_t *start = build_start(rank, s, receive->op);
                    int64_t end = *build_end(rank, s, receive->op);
                    if (*start != ABSENT && ready > *start)
                        *start = MIN(ready, end);
                }
            }
    }
}

struct arrived {
    uint32_t device, op;
    int64_t end_ns;
};

ORDER(by_arrival, struct arrived, ASCENDING(device) ?: ASCENDING(end_ns) ?: ASCENDING(op));

static size_t list_arrived(const struct rank_build *rank, uint32_t sample, struct arrived *list)
{
    size_t n = 0;
    for (size_t i = 0; i < rank->receives.n; i++) {
        uint32_t op = rank->receives.at[i].op;
        int64_t end = *build_end(rank, sample, op);
        if (end != ABSENT)
            list[n++] = (struct arrived){rank->ops.at[op].device, op, end};
    }
    qsort(list, n, sizeof *list, by_arrival);
    return n;
}

/* One after the other: each transfer begins when the one before has arrived. What comes next is
 * chance, so no edge: the link is a thread that takes what is ready first (sample_times.c). */
static void line_up(struct rank_build *rank)
{
    SCRATCH struct arrived *list = mem_alloc((rank->receives.n + 1) * sizeof *list);
    for (uint32_t s = 0; s < rank->n_samples; s++) {
        size_t n = list_arrived(rank, s, list);
        for (size_t i = 0; i < n; i++) {
            int64_t *start = &rank->start_ns[build_sample_at(rank, s, list[i].op)];
            rank->devices.at[list[i].device].n_slots = 1;
            if (i > 0 && list[i].device == list[i - 1].device && *start < list[i - 1].end_ns)
                *start = list[i - 1].end_ns;
        }
    }
}

/* The step is over when all that any task does is done; all begin the next one after that. */
static void tie_boundaries(struct join *join)
{
    for (uint32_t r = 0; r < join->n_ranks; r++) {
        const struct rank_build *rank = &join->ranks[r];
        EACH (const struct local_edge, edge, rank->edges) {
            if (edge->to != rank->boundary || edge->next)
                continue;
            for (uint32_t other = 0; other < join->n_ranks; other++) {
                if (other != r)
                    array_add(&join->cross, r, edge->from, other, join->ranks[other].boundary);
            }
        }
    }
}

void session_join(struct join *join)
{
    SCRATCH ARRAY(struct made) made = {0};
    if (join->n_ranks == 0 || !join->ranks[0].trace->in_session)
        return;
    for (uint32_t s = 0; s < join->ranks[0].n_samples; s++)
        share_bounds(join, s);
    for (uint32_t r = 0; r < join->n_ranks; r++) {
        find_left_out(&join->ranks[r]);
        EACH (const struct local_transfer, send, join->ranks[r].sends)
            array_add(&made, send->key, r, send->op);
    }
    array_sort(&made, by_key);
    steps_tie(join, made.at, made.n);
    for (uint32_t r = 0; r < join->n_ranks; r++)
        line_up(&join->ranks[r]);
    tie_boundaries(join);
}
