/* When ops of a stage timeline began and ended, as the graph has them. */
#include "ingest/stages/stage_times.h"

/* ---- arrivals ---- */

/* Two ends of one moment differ by the rounding of floats, of seconds in 32 bits; order between
 * streams by what events are late. */
enum { TOGETHER_NS = 10000, LATE_NS = 10000000 };

struct arrivals_finder {
    const struct stage_table *table;
    const struct stage_plan *plan;
    struct stage_times *times;
    uint32_t step;
    bool *fits;     /* by worker, in the step */
    bool are_after; /* starts are when the last member had begun */
};

/* The op of a data-parallel rank; NULL: the rank has none like it. */
static const struct stage_op *op_at(const struct arrivals_finder *f, uint32_t op, uint32_t replica)
{
    const struct stage_table *table = f->table;
    uint32_t worker = table->worker_at[(size_t)replica * table->n_stages + f->plan->ops[op].stage];
    return worker == UINT32_MAX || !f->fits[worker]
               ? NULL
               : stage_plan_row(table, f->plan, op, f->step, replica);
}

/* When the worker's last pass ended that was over by then, or nearly; INT64_MIN: none was. */
static int64_t last_pass_ns(const struct arrivals_finder *f, const struct stage_op *op)
{
    const struct stage_op *pass = stage_table_ops(f->table, op->worker, f->step);
    const struct stage_op *end = pass + stage_table_count(f->table, op->worker, f->step);
    int64_t last_ns = INT64_MIN;
    for (; pass < end && pass->type <= STAGE_BACKWARD; pass++)
        if (pass->start_ns + pass->dur_ns - MIN(pass->dur_ns / 10, LATE_NS) <= op->start_ns)
            last_ns = MAX(last_ns, pass->start_ns + pass->dur_ns);
    return last_ns;
}

/* When all was over that the op waits for, or its step began. A pass's result is sent
 * at once; what comes in is asked for by the program that runs the passes, between two of them. */
static int64_t ready_ns(const struct arrivals_finder *f, uint32_t op, uint32_t replica)
{
    const struct stage_plan_op *at = &f->plan->ops[op];
    int64_t ns = at->n_before == 0 ? f->table->bounds[f->step][0] : INT64_MIN;
    for (uint32_t k = at->first_before; k < at->first_before + at->n_before; k++) {
        const struct stage_op *before = op_at(f, f->plan->before[k], replica);
        ns = MAX(ns, before->start_ns + before->dur_ns);
    }
    if (stage_op_receives(at->type))
        ns = MAX(ns, last_pass_ns(f, op_at(f, op, replica)));
    return ns;
}

/* Whoever was ready last began last, when the file says; the others, as soon as they were ready. */
static void find_arrivals_of(struct arrivals_finder *f, uint32_t group, uint32_t first_replica,
                             uint32_t end_replica)
{
    const struct stage_plan *plan = f->plan;
    int64_t last_ns = INT64_MIN;
    for (int pass = 0; pass < 2; pass++)
        for (uint32_t i = plan->first_member[group]; i < plan->first_member[group + 1]; i++)
            for (uint32_t r = first_replica; r < end_replica; r++) {
                const struct stage_op *op = op_at(f, plan->members[i], r);
                if (!op)
                    continue;
                int64_t ns = ready_ns(f, plan->members[i], r);
                int64_t *arrived_ns = &f->times->arrived_ns[op - f->table->ops.at];
                if (pass == 0)
                    last_ns = MAX(last_ns, ns);
                else if ((f->are_after && ns < last_ns && ns < *arrived_ns) ||
                         (ns > *arrived_ns && ns - *arrived_ns < LATE_NS))
                    *arrived_ns = MIN(ns, op->start_ns + op->dur_ns);
            }
}

/* What an op waits for was over when it began; messages that begin earlier were moved. */
static void end_before(struct arrivals_finder *f, uint32_t op, uint32_t replica)
{
    const struct stage_plan_op *at = &f->plan->ops[op];
    const struct stage_op *first = f->table->ops.at, *own = op_at(f, op, replica);
    bool computes = stage_op_kinds[at->type].comm == STAGE_COMPUTES;
    for (uint32_t k = at->first_before; own && k < at->first_before + at->n_before; k++) {
        const struct stage_op *before = op_at(f, f->plan->before[k], replica);
        int64_t *ended_ns = &f->times->ended_ns[before - first];
        int64_t arrived_ns = f->times->arrived_ns[own - first];
        if ((stage_op_kinds[before->type].comm != STAGE_COMPUTES || computes) &&
            *ended_ns > arrived_ns && *ended_ns - arrived_ns < LATE_NS)
            *ended_ns = MAX(arrived_ns, f->times->arrived_ns[before - first]);
    }
}

/* Of the messages of the first step, whether both ends always begin together: then waiting was cut
 * off before the file was written. */
static bool begin_together(const struct arrivals_finder *f)
{
    const struct stage_plan *plan = f->plan;
    uint32_t n = 0, n_together = 0;
    for (uint32_t op = 0; op < plan->n; op++) {
        if (plan->ops[op].peer >= op) /* each pair once; and none */
            continue;
        const struct stage_op *a = op_at(f, op, 0), *b = op_at(f, plan->ops[op].peer, 0);
        n += a && b;
        n_together += a && b && llabs(a->start_ns - b->start_ns) < TOGETHER_NS;
    }
    return n > 0 && n_together * 20 >= n * 19;
}

/* ---- meetings ---- */

ORDER(by_op, struct stage_meeting, ASCENDING(op));

/* Whether all data-parallel ranks begin an op of a stage when the last one is ready, and some have
 * waited long for that. Ranks that were ready late may begin later still. */
struct stage_wait_seen {
    int64_t last_ready_ns, last_start_ns, longest_ns;
    bool together;
};

static struct stage_wait_seen look_at_wait(const struct arrivals_finder *f, uint32_t op)
{
    struct stage_wait_seen w = {INT64_MIN, INT64_MIN, 0, true};
    for (uint32_t r = 0; r < f->table->n_replicas; r++)
        w.last_ready_ns = MAX(w.last_ready_ns, op_at(f, op, r) ? ready_ns(f, op, r) : INT64_MIN);
    for (uint32_t r = 0; r < f->table->n_replicas && w.together; r++) {
        const struct stage_op *row = op_at(f, op, r);
        int64_t ready = row ? ready_ns(f, op, r) : 0;
        if (!row || row->start_ns < w.last_ready_ns - LATE_NS) {
            w.together = false;
        } else if (w.last_ready_ns - ready > LATE_NS) {
            int64_t late_ns = row->start_ns - w.last_ready_ns;
            w.together = late_ns <= (row->start_ns - ready) / 10;
            w.longest_ns = MAX(w.longest_ns, row->start_ns - ready);
            w.last_start_ns = MAX(w.last_start_ns, row->start_ns);
        }
    }
    return w;
}

static void add_meetings(struct arrivals_finder *f, uint32_t op)
{
    struct stage_wait_seen w = look_at_wait(f, op);
    for (uint32_t r = 0; r < f->table->n_replicas && w.together && w.longest_ns > 0; r++) {
        const struct stage_op *row = op_at(f, op, r);
        int64_t start_ns = ready_ns(f, op, r);
        array_add(&f->times->meetings, (size_t)(row - f->table->ops.at), start_ns,
                  MAX(start_ns, MIN(row->start_ns, w.last_start_ns)));
    }
}

static void visit_step(struct arrivals_finder *f, uint32_t step)
{
    f->step = step;
    for (uint32_t w = 0; w < f->table->workers.n; w++)
        f->fits[w] = stage_table_fits(f->table, f->plan, w, step);
}

/* Jobs average losses, or look for overflows, over data-parallel ranks, and few monitors list that:
 * in nine of ten steps in which ranks wait before an op, they begin it together. */
static void find_meetings(struct arrivals_finder *f, struct arena *arena)
{
    uint32_t *n_waited = arena_array(arena, f->plan->n + (size_t)1, sizeof *n_waited);
    uint32_t *n_together = arena_array(arena, f->plan->n + (size_t)1, sizeof *n_together);
    for (int pass = 0; pass < 2; pass++)
        for (uint32_t s = 0; s < f->table->steps.n && f->table->n_replicas > 1; s++) {
            visit_step(f, s);
            for (uint32_t op = 0; op < f->plan->n; op++) {
                uint8_t type = f->plan->ops[op].type;
                if (stage_op_kinds[type].comm != STAGE_COMPUTES || type <= STAGE_BACKWARD)
                    continue;
                struct stage_wait_seen w = look_at_wait(f, op);
                if (pass == 0) {
                    n_waited[op] += !w.together || w.longest_ns > 0;
                    n_together[op] += w.together && w.longest_ns > 0;
                } else if (n_together[op] * 2 > f->table->steps.n &&
                           n_together[op] * 10 >= n_waited[op] * 9) {
                    add_meetings(f, op);
                }
            }
        }
    array_sort(&f->times->meetings, by_op);
}

const struct stage_meeting *stage_meeting_before(const struct stage_times *times, size_t op)
{
    const struct stage_meeting *at = times->meetings.at;
    size_t i = LOWER_BOUND(k, (size_t)0, times->meetings.n, at[k].op < op);
    return i < times->meetings.n && at[i].op == op ? &at[i] : NULL;
}

/* ---- all ---- */

static void find_arrivals(struct arrivals_finder *f)
{
    const struct stage_plan *plan = f->plan;
    uint32_t n_replicas = f->table->n_replicas;
    for (uint32_t s = 0; s < f->table->steps.n; s++) {
        visit_step(f, s);
        if (s == 0)
            f->are_after = begin_together(f);
        for (uint32_t g = 0; g < plan->n_groups; g++) {
            uint8_t type = plan->ops[plan->members[plan->first_member[g]]].type;
            bool of_all = stage_op_of_replicas(type);
            for (uint32_t r = 0; r < n_replicas && stage_op_kinds[type].comm != STAGE_COMPUTES;
                 r = of_all ? n_replicas : r + 1)
                find_arrivals_of(f, g, r, of_all ? n_replicas : r + 1);
        }
        for (uint32_t op = 0; op < plan->n; op++)
            for (uint32_t r = 0; r < n_replicas; r++)
                end_before(f, op, r);
    }
}

void stage_times_find(const struct stage_table *table, const struct stage_plan *plan,
                      struct stage_times *times, struct arena *arena)
{
    struct arrivals_finder f = {.table = table,
                                .plan = plan,
                                .times = times,
                                .fits = arena_array(arena, table->workers.n, sizeof *f.fits)};
    times->arrived_ns = arena_alloc(arena, table->ops.n * sizeof *times->arrived_ns);
    times->ended_ns = arena_alloc(arena, table->ops.n * sizeof *times->ended_ns);
    for (size_t i = 0; i < table->ops.n; i++) {
        times->arrived_ns[i] = table->ops.at[i].start_ns;
        times->ended_ns[i] = times->arrived_ns[i] + table->ops.at[i].dur_ns;
    }
    find_arrivals(&f);
    find_meetings(&f, arena);
}
