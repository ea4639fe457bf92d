/* Every op's duration and gap in every measured iteration.
 *
 * The gap is the time between being ready, by the edges of the graph, and starting. So the replay
 * of what was measured gives back what was measured, and waiting that an edge explains is never in
 * a gap or a duration.
 *
 * Some devices take whatever is ready first: a thread of a recorded queue, BytePS's servers, a link
 * of a session. An op that starts when such a device gets free was ready before, at an unknown
 * time, but not before those that were taken first. The time since then is its gap, and the rest is
 * waiting, which the replay derives.
 *
 * A message that finds its link busy may be sent late because a socket takes no more than fits its
 * buffers. On a faster link it would not be. So if the link is still busy, its call counts no
 * longer than such calls of its rank usually take while their link is free; what it took after the
 * link got free is a gap on the link. Messages keep their order. */

#include "base/parallel.h"
#include "graph/global/assembly.h"

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
    return *step_end(rank, step - 1, local);
}

/* ---- messages ---- */

struct line_state {
    int64_t free_ns; /* its messages so far are over; INT64_MIN: there were none */
    const struct message *last;
    int64_t sent_ns, other_ns; /* when that was sent, and the last one of another series */
    int64_t n_at_once;         /* that were sent when the last one was, before it */
};

/* How a message found its links. */
struct times_turn {
    int64_t send_free_ns, recv_free_ns; /* those before it were over, at either end; INT64_MAX: that
                                           end is not known */
    int64_t before_ns; /* the last of those that need not come before it was sent */
    int64_t later_ns;  /* one call may send several: by so much later, to keep their order */
};

/* Messages of a series keep their order by their edges: data, or ready messages, from one rank to
 * another in a collective. */
static bool of_one_series(const struct message *a, const struct message *b)
{
    return a->joined == b->joined && a->from == b->from && a->to == b->to &&
           a->stream == b->stream && a->is_ready == b->is_ready;
}

/* A message takes its line from when it was sent, or the one before it on that line was over, until
 * it was received whole; as the replay lets it. */
static int64_t time_on_line(struct line_state *state, const struct message *message,
                            const struct message_time *time, int64_t *free_ns,
                            struct times_turn *turn)
{
    int64_t start = MAX(state->free_ns, time->start_ns);
    int64_t dur = assembly_span(start, time->end_ns);
    *free_ns = state->free_ns;
    if (!state->last || !of_one_series(state->last, message))
        state->other_ns = state->last ? state->sent_ns + state->n_at_once : INT64_MIN;
    turn->before_ns = MAX(turn->before_ns, state->other_ns);
    int64_t n_at_once = state->last && state->sent_ns == time->start_ns ? state->n_at_once + 1 : 0;
    turn->later_ns = MAX(turn->later_ns, n_at_once);
    *state = (struct line_state){start + dur, message, time->start_ns, state->other_ns, n_at_once};
    return dur;
}

/* Whether the iteration after a sample is the next sample. */
static bool next_is_seen(const struct assembly *a, uint32_t sample)
{
    const struct rank_build *lead = &a->join->ranks[0];
    if (sample + 1 == a->n_samples)
        return false;
    uint32_t step = lead->sample_step[sample], next = lead->sample_step[sample + 1];
    return next == step + 1 && lead->steps.at[next].follows;
}

/* What shares a line with messages of an iteration may be of the one after it. Where that is not
 * seen, it is taken to send what this one did. */
static void add_unseen(const struct assembly *a, line_use_array *uses)
{
    const struct rank_build *lead = &a->join->ranks[0];
    for (size_t i = 0, n = uses->n; i < n; i++) {
        struct line_use use = uses->at[i];
        const struct step *step = &lead->steps.at[lead->sample_step[use.sample]];
        int64_t later = assembly_span(step->start_ns, step->end_ns);
        if (next_is_seen(a, use.sample) ||
            __builtin_add_overflow(use.start_ns, later, &use.start_ns) ||
            __builtin_add_overflow(use.end_ns, later, &use.end_ns))
            continue;
        use.dur_ns = NULL;
        array_push(uses, use);
    }
}

/* Durations of the SENDs and RECVs, and how each message found its links. What is still on a link
 * when an iteration begins holds up what that sends, as it does in a replay. */
static void time_messages(struct assembly *a, struct times_turn *turns)
{
    const struct messages *messages = a->messages;
    size_t n_sent = messages->all.n * a->n_samples;
    SCRATCH struct sent_message *sent = mem_alloc(n_sent * sizeof *sent);
    SCRATCH struct line_state *states = mem_alloc(a->lines.n * sizeof *states);
    SCRATCH line_use_array uses = {0};
    for (size_t l = 0; l < a->lines.n; l++)
        states[l] = (struct line_state){INT64_MIN, NULL, INT64_MIN, INT64_MIN, 0};
    messages_by_start(messages, 0, a->n_samples, sent);
    for (size_t i = 0; i < n_sent; i++) {
        uint32_t m = sent[i].message, sample = sent[i].sample;
        const struct message *message = &messages->all.at[m];
        const struct message_time *time = message_time_of(a->messages, m, sample);
        int64_t *dur = a->graph->sample_dur_ns + (size_t)sample * a->n_ops;
        struct times_turn *turn = &turns[sample * messages->all.n + m];
        *turn = (struct times_turn){INT64_MAX, INT64_MAX, INT64_MIN, 0};
        for (uint32_t in = 0; in < 2; in++) {
            uint32_t op = assembly_message_op(a, m, in ? MESSAGE_RECV : MESSAGE_SEND);
            if (op == DPRO_NO_OP)
                continue;
            uint32_t line = a->line_of[2 * m + in];
            struct message_time seen = *time; /* the correction: a RECV starts as its SEND does */
            if (in && a->options->raw_receives && time->received_ns != ABSENT)
                seen.start_ns = time->received_ns;
            dur[op] = time_on_line(&states[line], message, &seen,
                                   in ? &turn->recv_free_ns : &turn->send_free_ns, turn);
            int64_t end = states[line].free_ns;
            if (a->lines.at[line].n_sharing > 1)
                array_add(&uses, line, sample, end - dur[op], end, &dur[op]);
        }
    }
    add_unseen(a, &uses);
    lines_share(a, uses.at, uses.n);
}

/* A sender's calls of one collective, of its data or its ready messages. */
struct times_call {
    uint32_t kind; /* twice the member, one more for ready messages */
    uint32_t message;
    bool link_was_busy;
    int64_t gap_ns;
};

ORDER(compare_calls, struct times_call, ASCENDING(kind) ?: ASCENDING(gap_ns));

/* What is usual of n calls of a kind, shortest first: the median of those that found their link
 * free, unless the lower quartile of all is less. */
static int64_t usual_of(const struct times_call *calls, size_t n)
{
    int64_t usual = calls[n / 4].gap_ns;
    size_t n_free = 0, seen = 0;
    for (size_t i = 0; i < n; i++)
        n_free += !calls[i].link_was_busy;
    for (size_t i = 0; i < n && calls[i].gap_ns < usual; i++)
        if (!calls[i].link_was_busy && seen++ == n_free / 2)
            usual = calls[i].gap_ns;
    return usual;
}

/* How long the calls of each message's sender in its collective usually take, from the gaps of a
 * first pass. */
static void find_usual_gaps(const struct assembly *a, int64_t *usual_ns)
{
    SCRATCH ARRAY(struct times_call) calls = {0};
    const struct message *messages = a->messages->all.at;
    EACH (const struct joined, joined, a->join->joined) {
        calls.n = 0;
        for (uint32_t i = 0; i < joined->n_messages; i++)
            for (uint32_t s = 0; s < a->n_samples; s++) {
                uint32_t m = joined->first_message + i;
                const int64_t *gap = a->graph->sample_gap_ns + (size_t)s * a->n_ops;
                array_add(&calls, messages[m].from * 2 + messages[m].is_ready, m,
                          gap[assembly_message_end(a, m)] != 0,
                          gap[assembly_message_op(a, m, MESSAGE_CALL)]);
            }
        array_sort(&calls, compare_calls);
        for (size_t i = 0, end; i < calls.n; i = end) {
            end = RUN_END(k, i, calls.n, calls.at[k].kind == calls.at[i].kind);
            int64_t usual = usual_of(&calls.at[i], end - i);
            for (size_t k = i; k < end; k++)
                usual_ns[calls.at[k].message] = usual;
        }
    }
}

/* ---- all ops ---- */

/* When an op was ready; ABSENT: no predecessor was measured. `e` is its first edge among those
 * sorted by their end. */
static int64_t ready_at(const struct assembly *a, const int64_t *end_ns, size_t e, uint32_t op,
                        uint32_t sample)
{
    enum { MOST = 256 };
    int64_t ends[MOST], ready_ns = ABSENT;
    uint32_t n = 0, spare = a->graph->spare[op];
    for (; e < a->edges.n && a->edges.at[e].to == op; e++) {
        const struct local_edge *edge = &a->edges.at[e];
        int64_t end = edge->next ? end_before(a, edge->from, sample) : end_ns[edge->from];
        if (spare > 0 && n < MOST)
            ends[n++] = end;
        else
            ready_ns = MAX(ready_ns, end);
    }
    return n > spare ? graph_all_but_latest(ends, n, spare) : ready_ns;
}

enum { OPS_A_BLOCK = 256 };

struct timing {
    struct assembly *a;
    const size_t *first_edge; /* of each op */
    struct times_turn *turns; /* [sample * messages + message] */
    int64_t *usual_ns;        /* of each message's call; NULL in the first pass */
};

/* The gaps of a message: of its call, which is over at *end_ns then, and on its links. */
static void time_call(struct assembly *a, const struct timing *t, uint32_t sample, uint32_t message,
                      int64_t ready_ns, int64_t *end_ns)
{
    int64_t *gap = a->graph->sample_gap_ns + (size_t)sample * a->n_ops;
    const uint32_t *ops = a->message_ops + (size_t)message * N_MESSAGE_OPS;
    const struct times_turn *turn = &t->turns[sample * a->messages->all.n + message];
    int64_t sent = message_time_of(a->messages, message, sample)->start_ns, called = sent, usual;
    int64_t busy_until = MIN(turn->send_free_ns, turn->recv_free_ns);
    *end_ns = sent;
    if (!t->usual_ns) { /* what is usual is to be found from these */
        bool waited = busy_until > ready_ns && busy_until < sent;
        gap[ops[MESSAGE_CALL]] = assembly_span(waited ? busy_until : ready_ns, sent);
        gap[assembly_message_end(a, message)] = busy_until >= sent; /* the link was still busy */
        return;
    }
    if (!__builtin_add_overflow(ready_ns, t->usual_ns[message], &usual) && usual < busy_until &&
        usual < sent) {
        called = turn->before_ns < usual ? usual : turn->before_ns + 1;
        called = MIN(called, sent);
    }
    if (a->join->joined.at[a->messages->all.at[message].joined].has_servers)
        called += turn->later_ns;
    *end_ns = called;
    gap[ops[MESSAGE_CALL]] = assembly_span(ready_ns, called);
    if (ops[MESSAGE_SEND] != DPRO_NO_OP)
        gap[ops[MESSAGE_SEND]] = assembly_span(MAX(turn->send_free_ns, called), sent);
    if (ops[MESSAGE_RECV] != DPRO_NO_OP)
        gap[ops[MESSAGE_RECV]] = assembly_span(MAX(turn->recv_free_ns, called), sent);
}

/* One iteration's durations and gaps by the graph's edges. */
static void time_sample(void *arg, size_t at_sample)
{
    const struct timing *t = arg;
    struct assembly *a = t->a;
    uint32_t sample = (uint32_t)at_sample;
    SCRATCH int64_t *end_ns = mem_alloc(a->n_ops * sizeof *end_ns); /* of each op */
    int64_t *dur = a->graph->sample_dur_ns + (size_t)sample * a->n_ops;
    int64_t *gap = a->graph->sample_gap_ns + (size_t)sample * a->n_ops;
    for (uint32_t i = 0, r = 0; i < a->n_ops; i++) {
        uint32_t op = a->order[i];
        if (op < a->first_op[r] || op >= a->first_op[r + 1]) /* nearly always the one before's */
            r = assembly_rank_of(a, op);
        const struct rank_build *rank = &a->join->ranks[r];
        uint32_t step = assembly_step(a, r, sample), local = op - a->first_op[r];
        enum message_op as = MESSAGE_CALL;
        uint32_t message = assembly_message(a, r, op, &as);
        if (message != NO_ID && as != MESSAGE_CALL) { /* timed with its call */
            end_ns[op] = message_time_of(a->messages, message, sample)->end_ns;
            continue;
        }
        int64_t ready_ns = ready_at(a, end_ns, t->first_edge[op], op, sample);
        bool measured = local < rank->n_timed;
        size_t at = build_at(rank, step, local);
        if (measured && rank->free_ns)
            ready_ns = MAX(ready_ns, rank->free_ns[at]);
        if (ready_ns == ABSENT)
            ready_ns = rank->steps.at[step].start_ns;
        if (message != NO_ID) {
            time_call(a, t, sample, message, ready_ns, &end_ns[op]);
            continue;
        }
        int64_t start = ready_ns, end = start;
        if (measured && rank->start_ns[at] != ABSENT) {
            start = rank->start_ns[at];
            end = rank->end_ns[at];
        }
        /* it may have run before what the graph has it wait for; what follows it in a replay waits
         * for that, too, and has it in no gap once more */
        end_ns[op] = MAX(end, ready_ns);
        dur[op] = assembly_span(start, end);
        gap[op] = assembly_span(ready_ns, start);
    }
}

/* ---- threads that take what is ready first ---- */

struct turn_of_op {
    uint32_t thread; /* device; NO_ID: the pool */
    uint32_t local;
    int64_t start_ns, end_ns;
};

ORDER(by_turn, struct turn_of_op, ASCENDING(thread) ?: ASCENDING(start_ns) ?: ASCENDING(local));

/* Whether an op is of a thread that runs one at a time, in whatever order. Which op of a
 * server was whose is a guess. */
static bool takes_turns(const struct rank_build *rank, uint32_t local, uint32_t *thread)
{
    uint32_t d = rank->ops.at[local].device;
    const struct graph_device *device = d == NO_ID ? NULL : &rank->devices.at[d];
    *thread = device && device->n_slots == 1 ? d : NO_ID;
    if (!device || device->n_slots > 0)
        return device && device->n_slots == 1 && device->kind == DPRO_DEVICE_LINK_RX;
    return rank->n_slots == 1 && device->kind == DPRO_DEVICE_CPU_THREAD &&
           rank->trace->tracks[device->name].pool;
}

static uint32_t list_turns(const struct assembly *a, uint32_t r, uint32_t step,
                           struct turn_of_op *list)
{
    const struct rank_build *rank = &a->join->ranks[r];
    uint32_t n = 0, thread;
    for (uint32_t o = 0; o < rank->n_timed; o++) {
        size_t at = build_at(rank, step, o);
        if (rank->start_ns[at] != ABSENT && takes_turns(rank, o, &thread))
            list[n++] = (struct turn_of_op){thread, o, rank->start_ns[at], rank->end_ns[at]};
    }
    qsort(list, n, sizeof *list, by_turn);
    return n;
}

/* Gaps of a rank's iteration, once they are all that lies between being ready and starting. */
static void settle_turns(struct assembly *a, uint32_t r, uint32_t sample, struct turn_of_op *list)
{
    const struct rank_build *rank = &a->join->ranks[r];
    uint32_t step = assembly_step(a, r, sample), n = list_turns(a, r, step, list);
    int64_t *gap = a->graph->sample_gap_ns + (size_t)sample * a->n_ops + a->first_op[r];
    int64_t next_ns = (rank->steps.at[step].end_ns - rank->steps.at[step].start_ns) / 1000;
    int64_t free_ns = 0, latest_ns = 0; /* when the last ready one of those before it was */
    for (uint32_t i = 0; i < n; i++) {
        const struct turn_of_op *t = &list[i];
        bool waited = i > 0 && list[i - 1].thread == t->thread && t->start_ns - free_ns <= next_ns;
        int64_t ready_ns = t->start_ns - gap[t->local], was_ns = t->start_ns;
        if (i == 0 || list[i - 1].thread != t->thread)
            free_ns = latest_ns = INT64_MIN;
        if (waited && gap[t->local] > 0) {
            was_ns = ready_ns > latest_ns ? ready_ns : latest_ns + 1;
            was_ns = MIN(was_ns, t->start_ns);
            gap[t->local] = was_ns - ready_ns;
        }
        latest_ns = MAX(latest_ns, was_ns);
        free_ns = MAX(free_ns, t->end_ns);
    }
}

static void settle_all_turns(struct assembly *a)
{
    uint32_t most = 0;
    for (uint32_t r = 0; r < assembly_n_processes(a); r++)
        most = MAX(most, a->join->ranks[r].n_timed);
    SCRATCH struct turn_of_op *list = mem_alloc(most * sizeof *list);
    for (uint32_t r = 0; r < assembly_n_processes(a); r++)
        for (uint32_t s = 0; s < a->n_samples; s++)
            settle_turns(a, r, s, list);
}

/* Where the CPU runs ahead, what its GPU still did of an iteration that was not recorded is no gap
 * of the op that waited for it: this is as long as usual. */
static void settle_unrecorded(struct assembly *a)
{
    SCRATCH int64_t *known = mem_alloc((a->n_samples + (size_t)1) * sizeof *known);
    EACH (const struct local_edge, e, a->edges) {
        uint32_t r = assembly_rank_of(a, e->from), local = e->from - a->first_op[r], n = 0;
        const struct rank_build *rank = &a->join->ranks[r];
        if (!e->next || rank->pace.track == NO_ID || local >= rank->n_timed ||
            !(rank->ops.at[local].flags & GRAPH_OP_GPU))
            continue;
        int64_t *gap = a->graph->sample_gap_ns + e->to;
        for (uint32_t s = 0; s < a->n_samples; s++)
            if (end_before(a, e->from, s) != ABSENT)
                known[n++] = gap[(size_t)s * a->n_ops];
        int64_t usual = stats_median_i64(known, n);
        for (uint32_t s = 0; s < a->n_samples && n == 0; s++) { /* each was recorded alone */
            int64_t start = *build_start(rank, s, e->to - a->first_op[r]);
            int64_t before = step_before(rank, assembly_step(a, r, s));
            if (before != ABSENT && start != ABSENT)
                gap[(size_t)s * a->n_ops] = MIN(gap[(size_t)s * a->n_ops], MAX(0, start - before));
        }
        for (uint32_t s = 0; s < a->n_samples && n > 0; s++)
            if (end_before(a, e->from, s) == ABSENT)
                gap[(size_t)s * a->n_ops] = MIN(gap[(size_t)s * a->n_ops], usual);
    }
}

/* The means of a block of ops, a sample after the other, as they lie in memory. What only leads up
 * to the others is not in them. */
static void average_times(void *arg, size_t block)
{
    const struct assembly *a = ((const struct timing *)arg)->a;
    struct dpro_graph *g = a->graph;
    __int128 durs[OPS_A_BLOCK] = {0}, gaps[OPS_A_BLOCK] = {0};
    uint32_t n_samples = a->n_samples - a->first_sample;
    size_t begin = block * OPS_A_BLOCK, n = MIN(a->n_ops - begin, (size_t)OPS_A_BLOCK);
    for (size_t s = a->first_sample; s < a->n_samples; s++)
        for (size_t i = 0, at = s * a->n_ops + begin; i < n; i++, at++) {
            durs[i] += g->sample_dur_ns[at];
            gaps[i] += g->sample_gap_ns[at];
        }
    for (size_t i = 0; i < n && n_samples > 0; i++) {
        g->dur_ns[begin + i] = (int64_t)((durs[i] + n_samples / 2) / n_samples);
        g->gap_ns[begin + i] = (int64_t)((gaps[i] + n_samples / 2) / n_samples);
    }
}

/* All iterations; where there are messages twice, as what is usual must be known first. */
static void time_samples(struct timing *t)
{
    struct assembly *a = t->a;
    parallel_for(a->n_samples, a->options->threads, time_sample, t);
    if (a->messages->all.n == 0)
        return;
    t->usual_ns = mem_alloc(a->messages->all.n * sizeof *t->usual_ns);
    find_usual_gaps(a, t->usual_ns);
    parallel_for(a->n_samples, a->options->threads, time_sample, t);
    mem_free(t->usual_ns);
}

void assembly_time(struct assembly *a)
{
    struct dpro_graph *g = a->graph;
    size_t n = (size_t)a->n_samples * a->n_ops, n_messages = a->messages->all.n;
    size_t *first_edge = mem_alloc(a->n_ops * sizeof *first_edge);
    struct timing t = {.a = a,
                       .first_edge = first_edge,
                       .turns = mem_alloc(n_messages * a->n_samples * sizeof *t.turns)};
    g->sample_dur_ns = arena_alloc(&g->arena, n * sizeof *g->sample_dur_ns);
    g->sample_gap_ns = arena_alloc(&g->arena, n * sizeof *g->sample_gap_ns);
    if (n_messages > 0) { /* not all times of their ops are set */
        memset(g->sample_dur_ns, 0, n * sizeof *g->sample_dur_ns);
        memset(g->sample_gap_ns, 0, n * sizeof *g->sample_gap_ns);
    }
    size_t e = 0;
    for (uint32_t op = 0; op < a->n_ops; op++) {
        while (e < a->edges.n && a->edges.at[e].to < op)
            e++;
        first_edge[op] = e;
    }
    time_messages(a, t.turns);
    time_samples(&t);
    settle_all_turns(a);
    settle_unrecorded(a);
    parallel_for((a->n_ops + OPS_A_BLOCK - 1) / OPS_A_BLOCK, a->options->threads, average_times,
                 &t);
    g->n_samples = a->n_samples - a->first_sample;
    if (a->first_sample > 0) {
        g->lead_dur_ns = g->sample_dur_ns;
        g->lead_gap_ns = g->sample_gap_ns;
        g->sample_dur_ns += a->n_ops;
        g->sample_gap_ns += a->n_ops;
    }
    FREE_ALL(&first_edge, &t.turns);
}
