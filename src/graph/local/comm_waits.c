/* Edges from collectives to the calls that wait for them.
 *
 * A wait has no work of its own: it keeps only what comes after its collective was over, the
 * thread's waking up. The recorder's mark says which collective that is. PyTorch's wait_tensor does
 * not: it is the oldest that was asked for by a functional call, has as many elements (or is one
 * rank's part of as many, or the other way round), and has not been waited for. */

#include "graph/local/local_edges.h"

struct waits_wait {
    uint32_t op, span;
};

static const struct trace_detail *detail_of(const struct rank_build *rank, uint32_t span)
{
    uint32_t detail = rank->trace->spans[span].detail;
    return detail == NO_ID ? NULL : &rank->trace->details[detail];
}

static bool is_functional(const struct rank_build *rank, uint32_t span)
{
    for (; span != NO_ID; span = rank->trace->spans[span].parent)
        if (strstr(strtab_get(rank->names, rank->trace->spans[span].name), "c10d_functional::"))
            return true;
    return false;
}

static bool waits_fits(const struct local_collective *coll, const struct trace_detail *wait)
{
    uint64_t numel = wait ? wait->numel : 0;
    return !numel || !coll->numel || MAX(numel, coll->numel) % MIN(numel, coll->numel) == 0;
}

static struct local_collective *find_awaited(const struct rank_build *rank,
                                             const struct waits_wait *wait, const bool *awaited)
{
    const struct trace_detail *detail = detail_of(rank, wait->span);
    bool functional = is_functional(rank, wait->span);
    EACH (struct local_collective, coll, rank->collectives) {
        if (!functional && detail && detail->call && coll->call == detail->call)
            return coll;
        if (functional && !awaited[coll - rank->collectives.at] &&
            is_functional(rank, coll->launch_span) && waits_fits(coll, detail) &&
            local_start(rank, coll->arrival) < *step_end(rank, rank->steps.reference, wait->op))
            return coll;
    }
    return NULL;
}

/* A thread goes on as soon as it is woken; where it shares a core, the one that ran the collective
 * may note its end later. */
static bool ends_with(const struct rank_build *rank, uint32_t op,
                      const struct local_collective *coll)
{
    enum { WAKING_NS = 1000000 };
    uint32_t seen = 0, fits = 0;
    for (uint32_t i = 0; i < rank->n_samples; i++) {
        uint32_t s = rank->sample_step[i];
        int64_t asked = *step_start(rank, s, coll->arrival),
                over = *step_end(rank, s, coll->transfer);
        int64_t start = *step_start(rank, s, op), end = *step_end(rank, s, op);
        if (start == ABSENT || over == ABSENT)
            continue;
        seen++;
        fits +=
            asked < end && over > start && llabs(end - over) <= MIN((end - start) / 4, WAKING_NS);
    }
    return fits * 4 > seen * 3;
}

/* Of the thread that asked for the collective, the op of the last stretch that ended with it;
 * NO_ID: there is none. */
static uint32_t find_blocked(const struct rank_build *rank, const struct local_collective *coll)
{
    enum { LOOK_BACK = 64 };
    uint32_t step = rank->steps.reference;
    int64_t over = *step_end(rank, step, coll->transfer);
    if (coll->launch_op == NO_ID)
        return NO_ID;
    const struct track *track = &rank->tracks.at[rank->ops.at[coll->launch_op].track];
    uint32_t next = local_first_from(rank, track, step, over);
    for (uint32_t i = next; i > track->first[step] && i + LOOK_BACK > next; i--) {
        const struct slice *slice = &rank->slices.at[i - 1];
        uint32_t op = rank->op_of_slice[i - 1];
        if (slice->segment > 0 && slice->segment != SEGMENT_TAIL && op != NO_ID &&
            ends_with(rank, op, coll))
            return op;
    }
    return NO_ID;
}

static void wait_for(struct rank_build *rank, struct local_collective *coll, uint32_t op)
{
    local_cut_waiting(rank, op, coll->transfer, false);
    local_add_completion(rank, coll->transfer, op, true);
}

void rule_comm_waits(struct rank_build *rank)
{
    SCRATCH bool *awaited = mem_array(rank->collectives.n + 1, sizeof *awaited);
    struct waits_wait wait = {NO_ID, NO_ID};
    for (uint32_t o = 0; o <= rank->n_timed; o++) {
        bool waits = o < rank->n_timed && local_on_thread(rank, o) &&
                     (rank->classes[rank->ops.at[o].name] & NAME_COMM_WAIT);
        uint32_t span = waits ? rank->slices.at[rank->ops.at[o].slice].span : NO_ID;
        struct local_collective *coll =
            wait.op != NO_ID && span != wait.span ? find_awaited(rank, &wait, awaited) : NULL;
        if (coll) {
            awaited[coll - rank->collectives.at] = true;
            wait_for(rank, coll, wait.op);
        }
        wait = (struct waits_wait){waits ? o : NO_ID, span};
    }
    EACH (struct local_collective, coll, rank->collectives) {
        uint32_t op = awaited[coll - rank->collectives.at] ? NO_ID : find_blocked(rank, coll);
        if (op != NO_ID)
            wait_for(rank, coll, op);
    }
}
