/* Why the stages of a pipeline stand still, by the shown iteration's replay.
 *
 * A stage that computes nothing while it waits for a message of its pipeline
 * - fills or drains: before its first forward pass or the first message that it receives, right
 *   before its first backward pass, behind its last one, and between its last backward passes where
 *   stages take turns at forward and backward ones;
 * - waits for a late stage: at any other time;
 * - or the message is on its way. */

#include "graph/graph.h"
#include "report/facts.h"

enum doing { DOING_WORK, DOING_TRANSFER, DOING_WAIT, N_DOING };

struct change { /* something begins (1) or ends (-1) */
    int64_t at_ns;
    int by, doing;
};

struct stage_time {
    ARRAY(struct change) changes;
    int64_t first_fw_ns, last_fw_ns, first_bw_ns, last_bw_ns; /* starts; last_*: ends */
    int64_t first_received_ns; /* when the first message has been received */
    int64_t last_work_ns;      /* before the first backward pass: the end of what came before it */
    bool alternates;           /* a forward pass began after the first backward pass */
};

static bool is_compute(const struct dpro_graph *g, uint32_t op, bool has_gpu)
{
    bool on_gpu = g->flags[op] & GRAPH_OP_GPU;
    bool on_cpu =
        g->device[op] != DPRO_NO_DEVICE && g->devices[g->device[op]].kind == DPRO_DEVICE_CPU_THREAD;
    bool moves = g->kind[op] == DPRO_OP_SEND || g->kind[op] == DPRO_OP_RECV ||
                 g->kind[op] == DPRO_OP_COLLECTIVE || g->kind[op] == DPRO_OP_LAUNCH;
    return g->phase[op] <= DPRO_OP_INPUT && !moves && (has_gpu ? on_gpu : on_cpu);
}

static void facts_add(struct stage_time *t, int64_t start, int64_t end, int doing)
{
    if (end <= start)
        return;
    array_add(&t->changes, start, 1, doing);
    array_add(&t->changes, end, -1, doing);
}

static void add_work(struct stage_time *t, const struct report_facts *f, uint32_t r)
{
    const struct dpro_graph *g = f->report->graph;
    uint32_t first = g->ranks[r].first_op, end = first + g->ranks[r].n_ops;
    bool has_gpu = false;
    for (uint32_t op = first; op < end; op++)
        has_gpu |= (g->flags[op] & GRAPH_OP_GPU) != 0;
    for (int pass = 0; pass < 2; pass++)
        for (uint32_t op = first; op < end - g->ranks[r].n_message_ops; op++) {
            int64_t from = f->replay->start_ns[op];
            int64_t to = f->replay->end_ns[op];
            if (!is_compute(g, op, has_gpu) || to <= from)
                continue;
            if (pass == 1) {
                t->alternates |= g->phase[op] == DPRO_OP_FW && from >= t->first_bw_ns;
                if (from < t->first_bw_ns)
                    t->last_work_ns = MAX(t->last_work_ns, to);
                continue;
            }
            facts_add(t, from, to, DOING_WORK);
            if (g->phase[op] == DPRO_OP_FW) {
                t->first_fw_ns = MIN(t->first_fw_ns, from);
                t->last_fw_ns = MAX(t->last_fw_ns, to);
            } else if (g->phase[op] == DPRO_OP_BW) {
                t->first_bw_ns = MIN(t->first_bw_ns, from);
                t->last_bw_ns = MAX(t->last_bw_ns, to);
            }
        }
}

static void add_messages(struct stage_time *times, const struct report_facts *f, uint32_t dimension)
{
    const struct dpro_graph *g = f->report->graph;
    const struct dpro_replay_view *replay = f->replay;
    EACH_OF (const struct graph_collective, c, g->collectives, g->n_collectives)
        for (uint32_t m = 0; m < c->n_members && c->dimension == dimension; m++) {
            const struct graph_member *member = &g->members[c->first_member + m];
            if (g->rank[member->transfer] >= g->n_ranks)
                continue;
            struct stage_time *t = &times[g->rank[member->transfer]];
            int64_t from = replay->start_ns[member->transfer];
            int64_t to = replay->end_ns[member->transfer];
            int64_t there = c->barrier == DPRO_NO_OP ? MIN(from + c->missing_wait_ns, to)
                                                     : replay->end_ns[c->barrier];
            int64_t arrived = c->barrier == DPRO_NO_OP ? from : replay->end_ns[member->arrival];
            if (g->kind[member->transfer] != DPRO_OP_SEND && to > 0)
                t->first_received_ns = MIN(t->first_received_ns, to);
            facts_add(t, arrived, there, DOING_WAIT);
            facts_add(t, there, to, DOING_TRANSFER);
        }
}

ORDER(by_time, struct change, ASCENDING(at_ns) ?: ASCENDING(by) ?: ASCENDING(doing));

/* Whether waiting at a time is for the pipeline to fill or to drain. */
static bool facts_fills(const struct stage_time *t, int64_t at_ns)
{
    return at_ns < t->first_fw_ns || at_ns < t->first_received_ns ||
           (at_ns >= t->last_work_ns && at_ns < t->first_bw_ns) || at_ns >= t->last_bw_ns ||
           (t->alternates && at_ns >= t->last_fw_ns);
}

static void sum_changes(struct stage_time *t, struct stage_fact *fact)
{
    int going[N_DOING] = {0};
    array_sort(&t->changes, by_time);
    for (size_t i = 0; i + 1 < t->changes.n; i++) {
        const struct change *change = &t->changes.at[i];
        going[change->doing] += change->by;
        int64_t ns = change[1].at_ns - change->at_ns;
        if (ns <= 0 || going[DOING_WORK] > 0)
            continue;
        if (going[DOING_TRANSFER] > 0)
            fact->transfer_ns += ns;
        else if (going[DOING_WAIT] > 0)
            *(facts_fills(t, change->at_ns) ? &fact->fill_ns : &fact->late_ns) += ns;
    }
}

void stages_sum(struct report_facts *f)
{
    const struct dpro_graph *g = f->report->graph;
    struct parallel_facts *p = &f->parallel;
    const struct pipeline *pipeline = &p->pipeline;
    pipeline_find(g, &f->arena, &p->pipeline);
    if (pipeline->dimension == DPRO_NO_DIMENSION)
        return;
    p->n_stages = pipeline->n_stages;
    p->stages = arena_array(&f->arena, p->n_stages, sizeof *p->stages);
    struct stage_time *times = mem_array(g->n_ranks, sizeof *times);
    bool alternates = false; /* the last stage does in any case */
    for (uint32_t r = 0; r < g->n_ranks; r++) {
        times[r].first_fw_ns = times[r].first_bw_ns = times[r].first_received_ns = INT64_MAX;
        add_work(&times[r], f, r);
        alternates |= times[r].alternates;
    }
    add_messages(times, f, pipeline->dimension);
    for (uint32_t r = 0; r < g->n_ranks; r++) {
        uint32_t stage = pipeline->stage_of[r];
        times[r].alternates = alternates;
        if (stage != UINT32_MAX) {
            sum_changes(&times[r], &p->stages[stage]);
            p->stages[stage].n_ranks++;
        }
        array_fini(&times[r].changes);
    }
    mem_free(times);
    EACH_OF (struct stage_fact, fact, p->stages, p->n_stages) {
        fact->fill_ns /= MAX(fact->n_ranks, 1);
        fact->late_ns /= MAX(fact->n_ranks, 1);
        fact->transfer_ns /= MAX(fact->n_ranks, 1);
    }
}
