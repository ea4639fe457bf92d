/* Edges from one thread to another that goes on when the first has finished something. */
#include "graph/local/local_edges.h"

enum { HANDOVER_NS = 5000 };

struct handover {
    uint32_t op;
    bool next;
    int64_t end_ns;
};

/* Keeps the latest op that ended in (after, before] and left its thread idle. */
static void look_for_handover(const struct rank_build *rank, const struct track *track,
                              int64_t after, int64_t before, struct handover *best)
{
    uint32_t step = rank->steps.reference;
    bool pooled = track->source == NO_ID;
    for (int next = 0; next <= (rank->steps.at[step].follows ? 1 : 0); next++) {
        uint32_t first = track->first[step - (uint32_t)next];
        uint32_t low = local_first_from(rank, track, step - (uint32_t)next, before);
        for (uint32_t i = low; i-- > first;) {
            uint32_t op = rank->op_of_slice[i];
            int64_t end = rank->slices.at[i].end_ns;
            bool inside = end > after && end <= before + CLOCK_ROUNDING_NS;
            if (op != NO_ID && inside && (best->op == NO_ID || end > best->end_ns))
                *best = (struct handover){local_end_op(rank, op), next == 1, end};
            if (!pooled && (op != NO_ID || !inside))
                return; /* a thread that is busy then hands nothing over */
        }
    }
}

/* A busy thread hands over somewhere in its course: the latest of its ops, a few back at most, that
 * came before in every iteration. */
static void add_busy_handover(struct rank_build *rank, const struct track *track, int64_t after,
                              uint32_t to)
{
    enum { LOOK_BACK = 256 };
    uint32_t step = rank->steps.reference, first = track->first[step];
    int64_t before = local_start(rank, to);
    uint32_t low = local_first_from(rank, track, step, before);
    uint32_t last = low > first + LOOK_BACK ? low - LOOK_BACK : first;
    for (uint32_t i = low; i-- > last && rank->slices.at[i].end_ns > after;)
        if (rank->op_of_slice[i] != NO_ID && rank->slices.at[i].end_ns <= before &&
            local_add_if_holds(rank, local_end_op(rank, rank->op_of_slice[i]), to, false))
            return;
}

/* A track that others may wait for. */
struct giver {
    uint32_t track, n_slices;
};
typedef ARRAY(struct giver) giver_array;

ORDER(by_size, struct giver, DESCENDING(n_slices) ?: ASCENDING(track));

/* Of very many threads the busiest ones: looking at each for each op would cost their square. */
static giver_array find_givers(const struct rank_build *rank)
{
    enum { MOST = 64 };
    giver_array givers = {0};
    uint32_t t = rank->steps.reference, before = t - rank->steps.at[t].follows;
    for (uint32_t l = 0; l < rank->tracks.n; l++) {
        const struct track *track = &rank->tracks.at[l];
        struct giver giver = {l, track->first[t + 1] - track->first[before]};
        if (track->kind != DPRO_DEVICE_GPU_STREAM && giver.n_slices > 0)
            array_push(&givers, giver);
    }
    array_sort(&givers, by_size);
    givers.n = MIN(givers.n, MOST);
    return givers;
}

static void add_handover(struct rank_build *rank, const giver_array *givers, uint32_t own_track,
                         int64_t idle_since, uint32_t to)
{
    struct handover best = {.op = NO_ID};
    int64_t start = local_start(rank, to);
    for (size_t i = 0; i < givers->n; i++)
        if (givers->at[i].track != own_track)
            look_for_handover(rank, &rank->tracks.at[givers->at[i].track], idle_since, start,
                              &best);
    if (best.op != NO_ID) {
        bool collective = rank->ops.at[best.op].kind == DPRO_OP_COLLECTIVE && !best.next &&
                          !build_is_exchange(rank, best.op);
        if (collective ? local_add_completion(rank, best.op, to, false)
                       : local_add_if_holds(rank, best.op, to, best.next))
            return;
    }
    for (size_t i = 0; i < givers->n; i++) {
        const struct track *track = &rank->tracks.at[givers->at[i].track];
        if (givers->at[i].track != own_track && track->kind == DPRO_DEVICE_CPU_THREAD)
            add_busy_handover(rank, track, idle_since, to);
    }
}

/* Main -> autograd -> main, a wait for a collective on gloo's threads. */
void rule_handovers(struct rank_build *rank)
{
    uint32_t t = rank->steps.reference;
    SCRATCH giver_array givers = find_givers(rank);
    for (uint32_t l = 0; l < rank->tracks.n; l++) {
        const struct track *track = &rank->tracks.at[l];
        if (track->kind != DPRO_DEVICE_CPU_THREAD)
            continue;
        if ((track->source != NO_ID && rank->trace->tracks[track->source].serial) ||
            (build_is_pool(rank, track) && dfg_is_known(rank)))
            continue; /* an executor's threads: its graph says why an op starts */
        int64_t idle_since = rank->steps.at[t].start_ns;
        if (rank->steps.at[t].follows && track->source != rank->main_track) {
            idle_since = rank->steps.at[t - 1].start_ns;
            if (track->first[t] > track->first[t - 1])
                idle_since = rank->slices.at[track->first[t] - 1].end_ns;
        } else if (track->source != rank->main_track) {
            idle_since = INT64_MIN;
        }
        for (uint32_t i = track->first[t]; i < track->first[t + 1]; i++) {
            const struct slice *slice = &rank->slices.at[i];
            if (rank->op_of_slice[i] == NO_ID)
                continue;
            if (idle_since == INT64_MIN || slice->start_ns - idle_since >= HANDOVER_NS)
                add_handover(rank, &givers, l, idle_since, rank->op_of_slice[i]);
            idle_since = slice->end_ns;
        }
    }
}
