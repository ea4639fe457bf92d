/* Adds edges within a rank, and answers what the rules ask. */
#include "graph/local/local_edges.h"

int64_t local_pred_end(const struct rank_build *rank, uint32_t step, uint32_t op, bool next)
{
    if (!next)
        return *step_end(rank, step, op);
    if (op == rank->boundary)
        return rank->steps.at[step].start_ns;
    return rank->steps.at[step].follows ? *step_end(rank, step - 1, op) : ABSENT;
}

bool local_holds(const struct rank_build *rank, uint32_t from, uint32_t to, bool next, bool to_end)
{
    struct agreement a = {0};
    for (uint32_t i = 0; i < rank->n_samples && !a.is_broken; i++) {
        uint32_t s = rank->sample_step[i];
        agreement_see(&a, local_pred_end(rank, s, from, next),
                      to_end ? *step_end(rank, s, to) : *step_start(rank, s, to),
                      MAX(step_trifle(rank, s), CLOCK_ROUNDING_NS));
    }
    return agreement_holds(&a);
}

void local_add_edge(struct rank_build *rank, uint32_t from, uint32_t to, bool next, bool soft)
{
    if (from != to || next)
        array_add(&rank->edges, from, to, next, soft);
}

/* By which soft edges are ordered. A part of a collective that has arrived has no duration: what it
 * waited for may end after it by clocks' rounding, and its own transfer does not. */
static int64_t order_of(const struct rank_build *rank, uint32_t op)
{
    uint32_t s = rank->steps.reference;
    int64_t end = *step_end(rank, s, op);
    int64_t over = *step_end(rank, s, local_end_op(rank, op));
    return over > end ? MIN(end + CLOCK_ROUNDING_NS, over) : end;
}

/* Within an iteration soft edges follow the order of ends in the reference iteration, as the hard
 * ones do, so that together they close no cycle: clocks' rounding lets tiny ops hold both ways. */
static bool in_order(const struct rank_build *rank, uint32_t from, uint32_t to)
{
    int64_t a = order_of(rank, from), b = order_of(rank, to);
    return a < b || (a == b && from < to);
}

bool local_add_if_holds(struct rank_build *rank, uint32_t from, uint32_t to, bool next)
{
    bool holds = from != to && (next || in_order(rank, from, to)) &&
                 local_holds(rank, from, to, next, false);
    if (holds)
        local_add_edge(rank, from, to, next, true);
    return holds;
}

bool local_add_completion(struct rank_build *rank, uint32_t transfer, uint32_t to, bool known)
{
    uint32_t seen = 0, held = 0, begun = 0, half = 0;
    for (uint32_t i = 0; i < rank->n_samples; i++) {
        uint32_t s = rank->sample_step[i];
        int64_t start = *step_start(rank, s, transfer), end = *step_end(rank, s, transfer);
        int64_t went_on = *step_start(rank, s, to);
        if (start == ABSENT || went_on == ABSENT)
            continue;
        seen++;
        held += went_on >= end - CLOCK_ROUNDING_NS;
        begun += went_on > start;
        half += went_on >= start + (end - start) / 2;
    }
    if (seen == 0 || begun * 10 < seen * 9 || (!known && (held * 2 < seen || half * 10 < seen * 9)))
        return false;
    for (uint32_t s = 0; s < rank->steps.n; s++) {
        int64_t start = *step_start(rank, s, to);
        int64_t *end = step_end(rank, s, transfer);
        if (start != ABSENT && *end != ABSENT && start < *end &&
            start > *step_start(rank, s, transfer))
            *end = start;
    }
    local_add_edge(rank, transfer, to, false, true);
    return true;
}

void local_cut_end(struct rank_build *rank, uint32_t op, uint32_t after)
{
    for (uint32_t s = 0; s < rank->steps.n; s++) {
        int64_t *end = step_end(rank, s, op);
        int64_t start = *step_start(rank, s, after);
        if (*end != ABSENT && start != ABSENT && *end > start)
            *end = MAX(start, *step_start(rank, s, op));
    }
}

int64_t local_work_end(const struct rank_build *rank, uint32_t step, uint32_t work, bool next)
{
    int64_t end = local_pred_end(rank, step, work, next);
    bool has_iteration = !next || rank->steps.at[step].follows;
    for (uint32_t op = work; end == ABSENT && has_iteration && op-- > 0;)
        if (rank->ops.at[op].track == rank->ops.at[work].track)
            end = local_pred_end(rank, step, op, next);
    return end;
}

void local_cut_waiting(struct rank_build *rank, uint32_t call, uint32_t work, bool next)
{
    SCRATCH ARRAY(int64_t) rests = {0};
    for (uint32_t s = 0; s < rank->steps.n; s++) {
        int64_t over = local_work_end(rank, s, work, next), end = *step_end(rank, s, call);
        int64_t *start = step_start(rank, s, call);
        if (over == ABSENT || *start == ABSENT)
            continue;
        if (over > *start)
            *start = MIN(over, end);
        array_push(&rests, end - *start);
    }
    if (rests.n == 0 || rank->pace.track == NO_ID)
        return;
    int64_t usual = stats_median_i64(rests.at, rests.n);
    for (uint32_t s = 0; s < rank->steps.n; s++) {
        int64_t *start = step_start(rank, s, call);
        if (*start != ABSENT && local_work_end(rank, s, work, next) == ABSENT)
            *start = MAX(*start, *step_end(rank, s, call) - usual);
    }
}

uint32_t local_first_from(const struct rank_build *rank, const struct track *track, uint32_t step,
                          int64_t ns)
{
    const uint32_t *first = &track->first[step];
    return LOWER_BOUND(i, first[0], first[1], rank->slices.at[i].start_ns < ns);
}

uint32_t local_end_op(const struct rank_build *rank, uint32_t op)
{
    return rank->ops.at[op].flags & GRAPH_OP_ARRIVAL ? op + 1 : op;
}

bool local_in_pool(const struct rank_build *rank, uint32_t device)
{
    const struct graph_device *d = &rank->devices.at[device]; /* its name is still its track */
    return d->kind == DPRO_DEVICE_COMM_THREAD && !rank->trace->tracks[d->name].serial;
}

uint32_t *local_ops_before(const struct rank_build *rank)
{
    uint32_t *before = mem_alloc((rank->ops.n + 1) * sizeof *before);
    SCRATCH uint32_t *last = mem_alloc((rank->devices.n + 1) * sizeof *last);
    memset(last, 0xFF, (rank->devices.n + 1) * sizeof *last);
    for (uint32_t o = 0; o < rank->ops.n; o++) {
        uint32_t device = rank->ops.at[o].device;
        before[o] = device == NO_ID ? NO_ID : last[device];
        if (device != NO_ID)
            last[device] = o;
    }
    return before;
}

void local_add_span_ops(const struct rank_build *rank, uint32_t step, span_ops *pairs)
{
    for (uint32_t o = 0; o < rank->ops.n; o++) {
        uint32_t slice = rank->match[build_at(rank, step, o)];
        if (slice != NO_ID && !(rank->ops.at[o].flags & GRAPH_OP_GPU))
            array_push(pairs, (uint64_t)rank->slices.at[slice].span << 32 | o);
    }
}

uint32_t local_op_of_span(const span_ops *pairs, uint32_t span, bool want_last)
{
    uint64_t key = (uint64_t)span << 32 | (want_last ? UINT32_MAX : 0);
    size_t low = LOWER_BOUND(i, 0, pairs->n, pairs->at[i] < key);
    size_t found = want_last ? low - 1 : low;
    return found < pairs->n && pairs->at[found] >> 32 == span ? (uint32_t)pairs->at[found] : NO_ID;
}

bool local_is_update(const struct rank_build *rank, uint32_t op)
{
    const struct local_op *o = &rank->ops.at[op];
    return o->slice != NO_ID && local_on_thread(rank, op) &&
           (rank->classes[o->name] & NAME_UPDATE_NODE) &&
           slice_span(rank, o->slice)->kind == SPAN_CPU_OP;
}

uint32_t local_nth_taken(const struct rank_build *rank, uint32_t k, uint32_t n)
{
    uint32_t set = strtab_find(rank->names, "aten::set_", strlen("aten::set_"));
    uint32_t n_sets = 0, found = NO_ID;
    for (uint32_t o = 0; o < rank->n_timed && set != STRTAB_NONE; o++) {
        const struct local_op *op = &rank->ops.at[o];
        if (op->name == set && op->slice != NO_ID && op->phase == DPRO_OP_UPDATE && n_sets++ == k)
            found = o;
    }
    return n_sets == n ? found : NO_ID;
}

const struct local_tensor *local_add_tensor(struct rank_build *rank, struct local_tensor tensor,
                                            uint32_t from, uint32_t done)
{
    tensor.in = build_push_virtual(rank, DPRO_OP_IN, tensor.size_bytes);
    tensor.out = build_push_virtual(rank, DPRO_OP_OUT, tensor.size_bytes);
    array_push(&rank->tensors, tensor);
    if (from != NO_ID)
        local_add_edge(rank, from, tensor.in, false, true);
    local_add_edge(rank, done, tensor.out, false, false);
    return &rank->tensors.at[rank->tensors.n - 1];
}
