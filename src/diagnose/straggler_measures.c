/* The measures of stragglers, by a simulator of whole steps.
 *
 * What waits for what is the same in all data-parallel ranks and steps, so an op of the plan is
 * simulated for all ranks of a step at once. Ranks whose ops all have usual times are alike: to
 * keep one rank's own times takes two ranks, that one and another. */
#include "diagnose/straggler_measures.h"

#include "ingest/trace.h"

static const double NS_PER_S = 1e9, LEAST_DELAY_S = -0.01, LEAST_SLOWDOWN = 1.03,
                    SLOWEST_SHARE = 0.03;

enum { ALL = UINT32_MAX };

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
    bool is_there[N_STAGE_OPS];
    bool
        *keeps; /* whose ops keep their own times [(type * n_stages + stage) * n_lanes + replica] */
    double *end_s; /* [op * n_lanes + lane], of one step */
};

static double *times_of(const struct measuring *m, uint32_t step, uint32_t op)
{
    return m->own_s + ((size_t)step * m->plan.n + op) * m->n_lanes;
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
    uint8_t type = m->plan.ops[members[0]].type;
    int64_t origin_ns = m->table->bounds[m->steps[step]][0];
    for (size_t r = 0; r < m->n_lanes; r++)
        begun_s[r] = -INFINITY;
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t r = 0; r < m->n_lanes; r++) {
            double *own_s = &times_of(m, step, members[i])[r];
            *own_s = (double)(row_of(m, step, members[i], r)->start_ns - origin_ns) / NS_PER_S;
            begun_s[r] = MAX(begun_s[r], *own_s);
        }
    double all_s = max_of(begun_s, m->n_lanes);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t r = 0; r < m->n_lanes; r++) {
            double *own_s = &times_of(m, step, members[i])[r];
            double dur_s = (double)row_of(m, step, members[i], r)->dur_ns / NS_PER_S;
            *own_s += dur_s - (stage_op_of_replicas(type) ? all_s : begun_s[r]);
            if (stage_op_kinds[type].comm == STAGE_COMPUTES)
                *own_s = dur_s;
            else if (*own_s <= LEAST_DELAY_S)
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
        const int64_t *bounds = m->table->bounds[m->steps[s]];
        for (uint32_t g = 0; g < m->plan.n_groups; g++)
            read_group(m, s, g, begun_s);
        out->recorded_s += (double)(bounds[1] - bounds[0]) / NS_PER_S / out->n_steps;
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
        m->is_there[type] = values.n > 0;
        m->usual_s[type] = stage_op_kinds[type].median ? stats_median(values.at, values.n)
                                                       : stats_mean_std(values.at, values.n).mean;
    }
}

/* ---- simulating ---- */

static bool *keeps_of(const struct measuring *m, uint32_t type, uint32_t stage)
{
    return m->keeps + (type * m->out->n_stages + stage) * m->n_lanes;
}

/* Whether ops of a type, a stage and a data-parallel rank, or of all, keep their own times. */
static void keep_times(struct measuring *m, uint32_t type, uint32_t stage, uint32_t replica,
                       bool keeps)
{
    for (uint32_t t = 0; t < N_STAGE_OPS; t++)
        for (uint32_t s = 0; s < m->out->n_stages; s++)
            for (uint32_t r = 0; r < m->n_lanes; r++)
                if ((type == ALL || type == t) && (stage == ALL || stage == s) &&
                    (replica == ALL || replica == r))
                    keeps_of(m, t, s)[r] = keeps;
}

/* Of one step; lanes: the data-parallel ranks that are simulated. */
static void simulate_step(struct measuring *m, uint32_t step, const uint32_t *lanes, size_t n_lanes,
                          double *begun_s, struct simulated *out)
{
    const struct stage_plan *plan = &m->plan;
    double end_s = 0, optimized_s = 0;
    for (uint32_t g = 0; g < plan->n_groups; g++) {
        uint32_t first = plan->first_member[plan->order[g]];
        uint32_t end = plan->first_member[plan->order[g] + 1];
        memset(begun_s, 0, n_lanes * sizeof *begun_s);
        for (uint32_t i = first; i < end; i++) {
            const struct stage_plan_op *op = &plan->ops[plan->members[i]];
            for (uint32_t k = op->first_before; k < op->first_before + op->n_before; k++)
                for (size_t l = 0; l < n_lanes; l++)
                    begun_s[l] = MAX(begun_s[l], m->end_s[plan->before[k] * n_lanes + l]);
        }
        double all_s = max_of(begun_s, n_lanes);
        bool together = stage_op_of_replicas(plan->ops[plan->members[first]].type);
        for (uint32_t i = first; i < end; i++) {
            uint32_t op = plan->members[i];
            uint8_t type = plan->ops[op].type;
            const double *own_s = times_of(m, step, op);
            const bool *keeps = keeps_of(m, type, plan->ops[op].stage);
            double *op_end_s = m->end_s + op * n_lanes;
            for (size_t l = 0; l < n_lanes; l++)
                op_end_s[l] = (together ? all_s : begun_s[l]) +
                              (keeps[lanes[l]] ? own_s[lanes[l]] : m->usual_s[type]);
            double last_s = max_of(op_end_s, n_lanes);
            end_s = MAX(end_s, last_s);
            if (type == STAGE_OPTIMIZER)
                optimized_s = MAX(optimized_s, last_s);
        }
    }
    out->whole_s[step] = end_s;
    out->step_s[step] = optimized_s > 0 ? optimized_s : end_s;
}

/* `replica`: no other one keeps times of its own, so one of them stands for all; or ALL. */
static struct simulated simulate_steps(struct measuring *m, uint32_t replica)
{
    uint32_t n_steps = m->out->n_steps;
    struct simulated out = {arena_array(&m->scratch, n_steps, sizeof(double)),
                            arena_array(&m->scratch, n_steps, sizeof(double)), 0, 0};
    double *begun_s = arena_array(&m->scratch, m->n_lanes, sizeof *begun_s);
    uint32_t *lanes = arena_array(&m->scratch, m->n_lanes + 1, sizeof *lanes);
    for (uint32_t r = 0; r < m->n_lanes; r++)
        lanes[r] = r == 1 && replica != ALL ? MAX(replica, 1) : r;
    for (uint32_t s = 0; s < n_steps; s++)
        simulate_step(m, s, lanes, replica == ALL ? m->n_lanes : MIN(m->n_lanes, 2), begun_s, &out);
    out.mean_s = stats_mean_std(out.step_s, n_steps).mean;
    out.mean_whole_s = stats_mean_std(out.whole_s, n_steps).mean;
    return out;
}

/* ---- measures ---- */

/* The slowdown where only some ops of the ideal step keep their own times. */
static double slowdown_of(struct measuring *m, uint32_t type, uint32_t stage, uint32_t replica)
{
    keep_times(m, ALL, ALL, ALL, false);
    keep_times(m, type, stage, replica, true);
    if (type != ALL && stage_op_sends((uint8_t)type))
        keep_times(m, type + 1, stage, replica, true); /* receives follow their sends */
    return simulate_steps(m, replica).mean_s / m->out->ideal_s;
}

static void measure_parts(struct measuring *m, struct arena *arena)
{
    struct straggler_measures *out = m->out;
    uint32_t n_stages = out->n_stages, n_replicas = out->n_replicas;
    const char **names = arena_array(arena, N_STAGE_OPS, sizeof *names);
    double *of_worker = arena_array(arena, (size_t)n_replicas * n_stages, sizeof *of_worker);
    struct slowdowns *types = &out->of[SLOW_TYPES];
    *types = (struct slowdowns){"S_t", "op type", names, .n = 0};
    out->of[SLOW_STAGES] = (struct slowdowns){"S_pp", "stage", .n = n_stages};
    out->of[SLOW_REPLICAS] = (struct slowdowns){"S_dp", "data-parallel rank", .n = n_replicas};
    for (int i = 0; i < N_SLOWDOWNS; i++)
        out->of[i].s = arena_array(arena, MAX(out->of[i].n, N_STAGE_OPS), sizeof(double));
    for (uint32_t t = 0; t < N_STAGE_OPS; t++) {
        bool is_there = m->is_there[t] || (stage_op_sends((uint8_t)t) && m->is_there[t + 1]);
        if (!is_there || stage_op_receives((uint8_t)t))
            continue;
        names[types->n] = t == STAGE_FORWARD_SEND    ? "forward-pp-comm"
                          : t == STAGE_BACKWARD_SEND ? "backward-pp-comm"
                                                     : stage_op_kinds[t].name;
        types->s[types->n++] = slowdown_of(m, t, ALL, ALL);
    }
    for (uint32_t s = 0; s < n_stages; s++)
        out->of[SLOW_STAGES].s[s] = slowdown_of(m, ALL, s, ALL);
    for (uint32_t r = 0; r < n_replicas; r++) {
        out->of[SLOW_REPLICAS].s[r] = slowdown_of(m, ALL, ALL, r);
        for (uint32_t s = 0; s < n_stages; s++)
            of_worker[r * n_stages + s] =
                MIN(out->of[SLOW_REPLICAS].s[r], out->of[SLOW_STAGES].s[s]);
    }
    out->of_worker = of_worker;
}

ORDER_OF_INDICES(by_slowdown, double, COMPARE(*y, *x));

static void measure_shares(struct measuring *m, double own_s, double ideal_s)
{
    struct straggler_measures *out = m->out;
    const struct stage_worker *workers = m->table->workers.at;
    size_t n = m->table->workers.n;
    size_t n_slowest = (size_t)ceil(SLOWEST_SHARE * (double)n - 1e-9);
    double *slowdowns = arena_array(&m->scratch, n, sizeof *slowdowns);
    for (uint32_t w = 0; w < n; w++)
        slowdowns[w] = out->of_worker[workers[w].replica * out->n_stages + workers[w].stage];
    SCRATCH uint32_t *slowest = sorted_indices(n, slowdowns, by_slowdown);
    keep_times(m, ALL, ALL, ALL, true);
    for (size_t i = 0; i < n_slowest; i++)
        keep_times(m, ALL, workers[slowest[i]].stage, workers[slowest[i]].replica, false);
    out->m_w = (own_s - simulate_steps(m, ALL).mean_whole_s) / (own_s - ideal_s);
    keep_times(m, ALL, ALL, ALL, true);
    keep_times(m, ALL, out->n_stages - 1, ALL, false);
    out->m_s = (own_s - simulate_steps(m, ALL).mean_whole_s) / (own_s - ideal_s);
    out->has_shares = true;
}

static void measure_all(struct measuring *m, struct arena *arena)
{
    struct straggler_measures *out = m->out;
    int64_t *numbers = arena_array(arena, out->n_steps, sizeof *numbers);
    double *step_s = arena_array(arena, out->n_steps, sizeof *step_s);
    read_times(m);
    find_usual_times(m);
    m->keeps = arena_array(&m->scratch, N_STAGE_OPS * m->n_lanes * out->n_stages, sizeof(bool));
    struct simulated ideal = simulate_steps(m, ALL);
    keep_times(m, ALL, ALL, ALL, true);
    struct simulated own = simulate_steps(m, ALL);
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
    measure_parts(m, arena);
    if (out->s >= LEAST_SLOWDOWN)
        measure_shares(m, own.mean_whole_s, ideal.mean_whole_s);
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
        measures->unknown = "ops of the usual step wait for each other in a circle";
    else if (measures->n_steps == 0)
        measures->unknown = "in no step do all data-parallel ranks do the same ops";
    else
        measure_all(&m, arena);
    arena_fini(&m.scratch);
}
