/* graph/samples.c: every op's duration and gap in every measured iteration.
 *
 * The gap is the time between being ready, by the very edges of the graph, and starting. So the
 * replay of what was measured gives back what was measured, and waiting that an edge explains is
 * never in a gap or a duration. */
#include <stdlib.h>
#include <string.h>

#include "graph/assembly.h"

/* When `op` of the iteration before ended, as seen from `sample`. */
static int64_t end_before(const struct assembly *a, uint32_t op, uint32_t sample)
{
    uint32_t r = assembly_rank_of(a, op), local = op - a->first_op[r];
    const struct rank_build *rank = &a->join->ranks[r];
    uint32_t step = assembly_step(a, r, sample);
    if (local == rank->boundary)
        return rank->steps.at[step].start_ns;
    if (local >= rank->n_timed || !rank->steps.at[step].follows)
        return ABSENT;
    return rank->end_ns[assembly_at(rank, step - 1, local)];
}

/* ---- messages ---- */

struct sent {
    int64_t start_ns;
    uint32_t message;
};

static int compare_sent(const void *a, const void *b)
{
    const struct sent *x = a, *y = b;
    if (x->start_ns != y->start_ns)
        return x->start_ns < y->start_ns ? -1 : 1;
    return x->message < y->message ? -1 : x->message > y->message;
}

/* A message takes its link from when it was sent, or the one before it on that link was over, until
 * it was received whole; as the replay lets it. */
static int64_t time_on_link(int64_t *free_ns, const struct message_time *time)
{
    int64_t start = time->start_ns > *free_ns ? time->start_ns : *free_ns;
    int64_t dur = assembly_span(start, time->end_ns);
    *free_ns = start + dur;
    return dur;
}

/* Durations of the SENDs and RECVs of one iteration. */
static int time_messages(struct assembly *a, uint32_t sample)
{
    const struct messages *messages = &a->join->messages;
    int64_t *dur = a->graph->sample_dur_ns + (size_t)sample * a->n_ops;
    struct sent *sent = malloc((messages->all.n + 1) * sizeof *sent);
    int64_t *free_ns = malloc((messages->links.n * 2 + 1) * sizeof *free_ns);
    bool ready = sent && free_ns;
    for (size_t l = 0; l < messages->links.n * 2 && ready; l++)
        free_ns[l] = INT64_MIN;
    for (uint32_t m = 0; m < messages->all.n && ready; m++)
        sent[m] = (struct sent){assembly_time_of(a, m, sample)->start_ns, m};
    if (ready && messages->all.n > 1)
        qsort(sent, messages->all.n, sizeof *sent, compare_sent);
    for (size_t i = 0; i < messages->all.n && ready; i++) {
        uint32_t m = sent[i].message;
        const struct message *message = &messages->all.at[m];
        const struct message_time *time = assembly_time_of(a, m, sample);
        const uint32_t *ops = a->message_ops + (size_t)m * N_MESSAGE_OPS;
        dur[ops[MESSAGE_SEND]] = time_on_link(&free_ns[message->tx * 2], time);
        dur[ops[MESSAGE_RECV]] = time_on_link(&free_ns[message->rx * 2 + 1], time);
    }
    free(sent);
    free(free_ns);
    return ready ? 0 : -1;
}

/* ---- all ops ---- */

struct readiness {
    int64_t ready_ns; /* ABSENT: no predecessor was measured */
    bool complete;    /* all of them were */
};

/* `e` is the op's first edge among those sorted by their end. */
static struct readiness ready_at(const struct assembly *a, const int64_t *end_ns, size_t e,
                                 uint32_t op, uint32_t sample)
{
    enum { MOST = 256 };
    struct readiness r = {ABSENT, true};
    int64_t ends[MOST];
    uint32_t n = 0, spare = a->graph->spare ? a->graph->spare[op] : 0;
    for (; e < a->edges.n && a->edges.at[e].to == op; e++) {
        const struct edge *edge = &a->edges.at[e];
        int64_t end = edge->next ? end_before(a, edge->from, sample) : end_ns[edge->from];
        if (spare > 0 && n < MOST)
            ends[n++] = end;
        else if (end == ABSENT)
            r.complete &= !edge->next;
        else if (end > r.ready_ns)
            r.ready_ns = end;
    }
    if (n > spare)
        r.ready_ns = graph_all_but_latest(ends, n, spare);
    return r;
}

/* One iteration's durations and gaps by the graph's edges. doubtful[op]: something before the
 * window may have held it up, which must not become a gap. */
static void time_sample(struct assembly *a, const size_t *first_edge, uint32_t sample,
                        int64_t *end_ns, uint8_t *doubtful)
{
    int64_t *dur = a->graph->sample_dur_ns + (size_t)sample * a->n_ops;
    int64_t *gap = a->graph->sample_gap_ns + (size_t)sample * a->n_ops;
    for (uint32_t i = 0; i < a->n_ops; i++) {
        uint32_t op = a->order[i], r = assembly_rank_of(a, op), local = op - a->first_op[r];
        const struct rank_build *rank = &a->join->ranks[r];
        uint32_t step = assembly_step(a, r, sample);
        enum message_op as = MESSAGE_CALL;
        uint32_t message = assembly_message(a, r, op, &as);
        if (message != NO_ID && as != MESSAGE_CALL) { /* timed; its link is what holds it up */
            end_ns[op] = assembly_time_of(a, message, sample)->end_ns;
            continue;
        }
        struct readiness ready = ready_at(a, end_ns, first_edge[op], op, sample);
        if (ready.ready_ns == ABSENT)
            ready.ready_ns = rank->steps.at[step].start_ns;
        int64_t start = ready.ready_ns, end = start;
        bool measured = local < rank->n_timed;
        if (message != NO_ID)
            start = end = assembly_time_of(a, message, sample)->start_ns;
        else if (measured && rank->start_ns[assembly_at(rank, step, local)] != ABSENT) {
            start = rank->start_ns[assembly_at(rank, step, local)];
            end = rank->end_ns[assembly_at(rank, step, local)];
        }
        end_ns[op] = end;
        dur[op] = assembly_span(start, end);
        gap[op] = assembly_span(ready.ready_ns, start);
        doubtful[op] = !ready.complete;
    }
}

static int64_t mean_of(const int64_t *values, uint32_t n, size_t stride)
{
    __int128 sum = 0;
    for (uint32_t s = 0; s < n; s++)
        sum += values[s * stride];
    return n ? (int64_t)((sum + n / 2) / n) : 0;
}

/* In a window's first iteration what laps over from before is unseen: such a gap is at most the
 * usual one. */
static void settle_gaps(struct assembly *a, const uint8_t *doubtful)
{
    struct dpro_graph *g = a->graph;
    for (uint32_t op = 0; op < a->n_ops; op++) {
        __int128 sum = 0;
        uint32_t sure = 0;
        for (uint32_t s = 0; s < a->n_samples; s++)
            if (!doubtful[(size_t)s * a->n_ops + op]) {
                sum += g->sample_gap_ns[(size_t)s * a->n_ops + op];
                sure++;
            }
        for (uint32_t s = 0; s < a->n_samples && sure > 0; s++) {
            int64_t *gap = &g->sample_gap_ns[(size_t)s * a->n_ops + op];
            if (doubtful[(size_t)s * a->n_ops + op] && *gap > (int64_t)(sum / sure))
                *gap = (int64_t)(sum / sure);
        }
        g->dur_ns[op] = mean_of(g->sample_dur_ns + op, a->n_samples, a->n_ops);
        g->gap_ns[op] = mean_of(g->sample_gap_ns + op, a->n_samples, a->n_ops);
    }
}

int assembly_time(struct assembly *a)
{
    struct dpro_graph *g = a->graph;
    size_t n = (size_t)a->n_samples * a->n_ops;
    size_t *first_edge = malloc((a->n_ops + 1) * sizeof *first_edge);
    uint8_t *doubtful = malloc(n + 1);
    g->sample_dur_ns = arena_array(&g->arena, n, sizeof *g->sample_dur_ns);
    g->sample_gap_ns = arena_array(&g->arena, n, sizeof *g->sample_gap_ns);
    if (!g->gap_ns)
        g->gap_ns = arena_array(&g->arena, a->n_ops, sizeof *g->gap_ns);
    int64_t *end_ns = malloc((a->n_ops + 1) * sizeof *end_ns); /* in the sample at hand */
    bool ready =
        first_edge && doubtful && g->sample_dur_ns && g->sample_gap_ns && g->gap_ns && end_ns;
    if (ready) {
        size_t e = 0;
        for (uint32_t op = 0; op < a->n_ops; op++) {
            while (e < a->edges.n && a->edges.at[e].to < op)
                e++;
            first_edge[op] = e;
        }
        memset(doubtful, 0, n);
        for (uint32_t s = 0; s < a->n_samples && ready; s++) {
            ready = time_messages(a, s) == 0;
            if (ready)
                time_sample(a, first_edge, s, end_ns, doubtful + (size_t)s * a->n_ops);
        }
        settle_gaps(a, doubtful);
        g->n_samples = a->n_samples;
    }
    free(first_edge);
    free(doubtful);
    free(end_ns);
    return ready ? 0 : -1;
}
