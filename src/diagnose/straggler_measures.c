/* The measures of stragglers, by a simulator of whole steps.
 *
 * What waits for what is the same in all data-parallel ranks and steps, so an op of the plan is
 * simulated for all ranks of a step at once. Ranks whose ops all have usual times are alike: to
 * keep one rank's own times takes two ranks, that one and another. */
#include "diagnose/straggler_measures.h"

#include "ingest/trace.h"

static const double NS_PER_S = 1e9, LEAST_DELAY_S = -0.01, LEAST_SLOWDOWN = 1.03,
                    SLOWEST_SHARE = 0.03;

/* Whose ops keep their own times, or, with `others`, all but whose. */
struct own_times {
    const bool *types, *stages, *workers; /* NULL: all; [replica * n_stages + stage] */
    uint32_t replica;                     /* UINT32_MAX: all */
    bool others;
};

struct simulated {
    double *step_s, *whole_s; /* by step: when its last optimizer ends; its last op */
    double mean_s, mean_whole_s;
};

struct measuring {
    const struct stage_table *table;
    struct stage_plan plan;
    struct straggler_measures *out;
    struct arena scratch; /* what follows */
    uint32_t *steps;      /* that are measured, indices */
    size_t n_lanes;       /* data-parallel ranks */
    double *own_s;        /* [(step * plan.n + op) * n_lanes + replica] */
    double usual_s[N_STAGE_OPS];
    double *end_s; /* [op * n_lanes + lane], of one step */
};

static double *times_of(const struct measuring *m, uint32_t step, uint32_t op)
{
    return m->own_s + ((size_t)step * m->plan.n + op) * m->n_lanes;
}

static enum stage_comm comm_of(const struct measuring *m, uint32_t op)
{
    return stage_op_kinds[m->plan.ops[op].type].comm;
}

/* ---- times ---- */

static void choose_steps(struct measuring *m)
{
    const struct stage_table *table = m->table;
    m->steps = arena_array(&m->scratch, table->steps.n, sizeof *m->steps);
    for (uint32_t s = 0; s < table->steps.n; s++) {
        bool fits = true;
        for (uint32_t w = 0; w < table->workers.n && fits; w++)
            fits = stage_table_fits(table, &m->plan, w, s);
        if (fits)
            m->steps[m->out->n_steps++] = s;
    }
    m->out->n_left_out = (uint32_t)table->steps.n - m->out->n_steps;
}

static const struct stage_op *row_of(const struct measuring *m, uint32_t step, uint32_t op,
                                     uint32_t replica)
{
    return stage_plan_row(m->table, &m->plan, op, m->steps[step], replica);
}

static double max_of(const double *values, size_t n)
{
    double most = values[0];
    for (size_t i = 1; i < n; i++)
        most = values[i] > most ? values[i] : most;
    return most;
}

/* What an op takes after its last member has begun. */
static void read_group(struct measuring *m, uint32_t step, uint32_t group, double *begun_s)
{
    const uint32_t *members = m->plan.members + m->plan.first_member[group];
    uint32_t n = m->plan.first_member[group + 1] - m->plan.first_member[group];
    enum stage_comm comm = comm_of(m, members[0]);
    int64_t origin_ns = row_of(m, step, members[0], 0)->start_ns;
    for (size_t r = 0; r < m->n_lanes; r++)
        begun_s[r] = -INFINITY;
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t r = 0; r < m->n_lanes; r++) {
            double start_s =
                (double)(row_of(m, step, members[i], r)->start_ns - origin_ns) / NS_PER_S;
            begun_s[r] = MAX(begun_s[r], start_s);
        }
    double all_s = max_of(begun_s, m->n_lanes);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t r = 0; r < m->n_lanes; r++) {
            const struct stage_op *row = row_of(m, step, members[i], r);
            double *own_s = &times_of(m, step, members[i])[r];
            *own_s = (double)row->dur_ns / NS_PER_S;
            if (comm == STAGE_COMPUTES)
                continue;
            *own_s += (double)(row->start_ns - origin_ns) / NS_PER_S -
                      (comm == STAGE_OF_STAGE || comm == STAGE_OF_ALL ? all_s : begun_s[r]);
            if (*own_s <= LEAST_DELAY_S)
                *own_s = 0;
        }
}

static void read_times(struct measuring *m)
{
    struct straggler_measures *out = m->out;
    double *begun_s = arena_array(&m->scratch, m->n_lanes, sizeof *begun_s);
    m->own_s =
        arena_alloc(&m->scratch, (size_t)out->n_steps * m->plan.n * m->n_lanes * sizeof *m->own_s);
    m->end_s = arena_alloc(&m->scratch, m->plan.n * m->n_lanes * sizeof *m->end_s);
    for (uint32_t s = 0; s < out->n_steps; s++) {
        int64_t first_ns = INT64_MAX, last_ns = INT64_MIN;
        for (uint32_t g = 0; g < m->plan.n_groups; g++)
            read_group(m, s, g, begun_s);
        for (uint32_t op = 0; op < m->plan.n; op++)
            for (uint32_t r = 0; r < m->n_lanes; r++) {
                const struct stage_op *row = row_of(m, s, op, r);
                first_ns = MIN(first_ns, row->start_ns);
                last_ns = MAX(last_ns, row->start_ns + row->dur_ns);
            }
        out->recorded_s += (double)(last_ns - first_ns) / NS_PER_S / out->n_steps;
    }
}

static void find_usual_times(struct measuring *m)
{
    for (int type = 0; type < N_STAGE_OPS; type++) {
        SCRATCH ARRAY(double) values = {0};
        for (uint32_t s = 0; s < m->out->n_steps; s++)
            for (uint32_t op = 0; op < m->plan.n; op++)
                if (m->plan.ops[op].type == type)
                    array_append(&values, times_of(m, s, op), m->n_lanes);
        m->usual_s[type] = stage_op_kinds[type].median ? stats_median(values.at, values.n)
                                                       : stats_mean_std(values.at, values.n).mean;
    }
}

/* ---- simulating ---- */

/* Whether the ops of a stage and type keep their own times in a data-parallel rank. */
static bool keeps_own_time(const struct measuring *m, const struct own_times *kept, uint32_t op,
                           uint32_t replica)
{
    uint32_t stage = m->plan.ops[op].stage;
    bool is_in = (!kept->types || kept->types[m->plan.ops[op].type]) &&
                 (!kept->stages || kept->stages[stage]) &&
                 (!kept->workers || kept->workers[replica * m->table->n_stages + stage]) &&
                 (kept->replica == UINT32_MAX || kept->replica == replica);
    return is_in != kept->others;
}

/* Of one step; lanes: the data-parallel ranks that are simulated. */
static void simulate_step(struct measuring *m, const struct own_times *kept, uint32_t step,
                          const uint32_t *lanes, size_t n_lanes, double *begun_s,
                          struct simulated *out)
{
    const struct stage_plan *plan = &m->plan;
    double end_s = 0, optimized_s = 0;
    bool by_lane = kept->workers || kept->replica != UINT32_MAX;
    for (uint32_t g = 0; g < plan->n_groups; g++) {
        uint32_t first = plan->first_member[plan->order[g]];
        uint32_t end = plan->first_member[plan->order[g] + 1];
        enum stage_comm comm = comm_of(m, plan->members[first]);
        for (size_t l = 0; l < n_lanes; l++)
            begun_s[l] = 0;
        for (uint32_t i = first; i < end; i++) {
            const struct stage_plan_op *op = &plan->ops[plan->members[i]];
            for (uint32_t k = op->first_before; k < op->first_before + op->n_before; k++) {
                const double *before_s = m->end_s + plan->before[k] * n_lanes;
                for (size_t l = 0; l < n_lanes; l++)
                    begun_s[l] = MAX(begun_s[l], before_s[l]);
            }
        }
        if (comm == STAGE_OF_STAGE || comm == STAGE_OF_ALL) {
            double all_s = max_of(begun_s, n_lanes);
            for (size_t l = 0; l < n_lanes; l++)
                begun_s[l] = all_s;
        }
        for (uint32_t i = first; i < end; i++) {
            uint32_t op = plan->members[i];
            const double *own_s = times_of(m, step, op);
            double usual_s = m->usual_s[plan->ops[op].type], *op_end_s = m->end_s + op * n_lanes;
            bool keeps = keeps_own_time(m, kept, op, lanes[0]);
            for (size_t l = 0; l < n_lanes; l++) {
                keeps = by_lane ? keeps_own_time(m, kept, op, lanes[l]) : keeps;
                op_end_s[l] = begun_s[l] + (keeps ? own_s[lanes[l]] : usual_s);
            }
            double last_s = max_of(op_end_s, n_lanes);
            end_s = MAX(end_s, last_s);
            if (plan->ops[op].type == STAGE_OPTIMIZER)
                optimized_s = MAX(optimized_s, last_s);
        }
    }
    out->whole_s[step] = end_s;
    out->step_s[step] = optimized_s > 0 ? optimized_s : end_s;
}

static struct simulated simulate_steps(struct measuring *m, const struct own_times *kept)
{
    uint32_t n_steps = m->out->n_steps;
    struct simulated out = {arena_array(&m->scratch, n_steps, sizeof(double)),
                            arena_array(&m->scratch, n_steps, sizeof(double)), 0, 0};
    double *begun_s = arena_array(&m->scratch, m->n_lanes, sizeof *begun_s);
    uint32_t *lanes = arena_array(&m->scratch, m->n_lanes, sizeof *lanes);
    size_t n_lanes = 0;
    for (uint32_t r = 0; r < m->n_lanes; r++)
        if (kept->replica == UINT32_MAX || r == kept->replica || n_lanes == 0 ||
            (n_lanes == 1 && lanes[0] == kept->replica))
            lanes[n_lanes++] = r;
    for (uint32_t s = 0; s < n_steps; s++)
        simulate_step(m, kept, s, lanes, n_lanes, begun_s, &out);
    out.mean_s = stats_mean_std(out.step_s, n_steps).mean;
    out.mean_whole_s = stats_mean_std(out.whole_s, n_steps).mean;
    return out;
}

/* ---- measures ---- */

/* The slowdown where only some ops of the ideal step keep their own times. */
static double slowdown_of(struct measuring *m, const struct own_times *kept)
{
    return simulate_steps(m, kept).mean_s / m->out->ideal_s;
}

static void measure_types(struct measuring *m)
{
    struct straggler_measures *out = m->out;
    for (int type = 0; type < N_STAGE_OPS; type++) {
        bool types[N_STAGE_OPS] = {false}, is_there = false;
        bool sends = type == STAGE_FORWARD_SEND || type == STAGE_BACKWARD_SEND;
        if (type == STAGE_FORWARD_RECV || type == STAGE_BACKWARD_RECV)
            continue;
        types[type] = types[type + sends] = true; /* receives follow their sends */
        for (uint32_t op = 0; op < m->plan.n; op++)
            is_there |= types[m->plan.ops[op].type];
        if (!is_there)
            continue;
        out->of_type[out->n_types].name = type == STAGE_FORWARD_SEND    ? "forward-pp-comm"
                                          : type == STAGE_BACKWARD_SEND ? "backward-pp-comm"
                                                                        : stage_op_kinds[type].name;
        out->of_type[out->n_types++].s =
            slowdown_of(m, &(struct own_times){.types = types, .replica = UINT32_MAX});
    }
}

static void measure_workers(struct measuring *m, struct arena *arena)
{
    struct straggler_measures *out = m->out;
    uint32_t n_stages = out->n_stages, n_replicas = out->n_replicas;
    double *of_replica = arena_array(arena, n_replicas, sizeof *of_replica);
    double *of_stage = arena_array(arena, n_stages, sizeof *of_stage);
    double *of_worker = arena_array(arena, (size_t)n_replicas * n_stages, sizeof *of_worker);
    for (uint32_t r = 0; r < n_replicas; r++)
        of_replica[r] = slowdown_of(m, &(struct own_times){.replica = r});
    for (uint32_t s = 0; s < n_stages; s++) {
        bool *stages = arena_array(&m->scratch, n_stages, sizeof *stages);
        stages[s] = true;
        of_stage[s] = slowdown_of(m, &(struct own_times){.stages = stages, .replica = UINT32_MAX});
    }
    for (size_t w = 0; w < (size_t)n_replicas * n_stages; w++)
        of_worker[w] = MIN(of_replica[w / n_stages], of_stage[w % n_stages]);
    out->of_replica = of_replica;
    out->of_stage = of_stage;
    out->of_worker = of_worker;
}

struct slow_worker {
    double s;
    uint32_t worker; /* index of the table: by its number */
    size_t place;
};

ORDER(by_slowdown, struct slow_worker, DESCENDING(s) ?: ASCENDING(worker));

static void measure_shares(struct measuring *m, const struct simulated *own,
                           const struct simulated *ideal)
{
    struct straggler_measures *out = m->out;
    size_t n = m->table->workers.n;
    size_t n_slowest = (size_t)ceil(SLOWEST_SHARE * (double)n - 1e-9);
    struct slow_worker *ranked = arena_array(&m->scratch, n, sizeof *ranked);
    bool *slowest = arena_array(&m->scratch, n, sizeof *slowest);
    bool *last = arena_array(&m->scratch, out->n_stages, sizeof *last);
    for (uint32_t w = 0; w < n; w++) {
        const struct stage_worker *worker = &m->table->workers.at[w];
        size_t place = (size_t)worker->replica * out->n_stages + worker->stage;
        ranked[w] = (struct slow_worker){out->of_worker[place], w, place};
    }
    qsort(ranked, n, sizeof *ranked, by_slowdown);
    for (size_t i = 0; i < n_slowest; i++)
        slowest[ranked[i].place] = true;
    last[out->n_stages - 1] = true;
    double lost_s = own->mean_whole_s - ideal->mean_whole_s;
    out->m_w = (own->mean_whole_s - simulate_steps(m, &(struct own_times){.workers = slowest,
                                                                          .replica = UINT32_MAX,
                                                                          .others = true})
                                        .mean_whole_s) /
               lost_s;
    out->m_s = (own->mean_whole_s -
                simulate_steps(
                    m, &(struct own_times){.stages = last, .replica = UINT32_MAX, .others = true})
                    .mean_whole_s) /
               lost_s;
    out->has_shares = true;
}

static void measure_all(struct measuring *m, struct arena *arena)
{
    struct straggler_measures *out = m->out;
    const bool none[N_STAGE_OPS] = {false};
    int64_t *numbers = arena_array(arena, out->n_steps, sizeof *numbers);
    double *step_s = arena_array(arena, out->n_steps, sizeof *step_s);
    read_times(m);
    find_usual_times(m);
    struct simulated own = simulate_steps(m, &(struct own_times){.replica = UINT32_MAX});
    struct simulated ideal =
        simulate_steps(m, &(struct own_times){.types = none, .replica = UINT32_MAX});
    for (uint32_t s = 0; s < out->n_steps; s++) {
        numbers[s] = m->table->steps.at[m->steps[s]];
        step_s[s] = own.whole_s[s] / ideal.step_s[s];
    }
    out->step = numbers;
    out->step_s = step_s;
    out->step_t_s = arena_copy(arena, own.whole_s, out->n_steps, sizeof *own.whole_s);
    out->t_s = own.mean_whole_s;
    out->ideal_s = ideal.mean_s;
    out->s = out->t_s / out->ideal_s;
    measure_types(m);
    measure_workers(m, arena);
    if (out->s >= LEAST_SLOWDOWN)
        measure_shares(m, &own, &ideal);
}

void straggler_measures_find(const struct stage_table *table, struct straggler_measures *measures,
                             struct arena *arena)
{
    struct measuring m = {.table = table, .out = measures, .n_lanes = table->n_replicas};
    *measures =
        (struct straggler_measures){.n_replicas = table->n_replicas, .n_stages = table->n_stages};
    bool complete = table->workers.n == (size_t)table->n_replicas * table->n_stages;
    if (complete)
        stage_plan_make(table, &m.plan, &m.scratch);
    if (complete && m.plan.order)
        choose_steps(&m);
    if (!complete)
        measures->unknown = "the timeline lacks stages of some data-parallel ranks";
    else if (!m.plan.order)
        measures->unknown = "ops of the first step wait for each other in a circle";
    else if (measures->n_steps == 0)
        measures->unknown = "in no step do all data-parallel ranks do the same ops";
    else
        measure_all(&m, arena);
    arena_fini(&m.scratch);
}
