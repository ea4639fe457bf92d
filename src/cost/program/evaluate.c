/* Simulates a strategy and reads off its iteration time and what else is asked for. */

#include "cost/program/evaluator.h"

struct evaluator *evaluator_create(const struct dpro_model *model)
{
    struct evaluator *e = mem_array(1, sizeof *e);
    size_t n = model->n_tensors + (size_t)1;
    e->model = model;
    e->costs = sync_create(&model->net);
    e->buckets = arena_array(&e->arena, n, sizeof *e->buckets);
    e->bucket_of = arena_array(&e->arena, n + model->n_communications, sizeof *e->bucket_of);
    e->single = buckets_make(model, &e->arena);
    e->result.buckets = arena_array(&e->arena, n, sizeof *e->result.buckets);
    schedule_init(e);
    return e;
}

void evaluator_destroy(struct evaluator *e)
{
    if (!e)
        return;
    sync_destroy(e->costs);
    simulation_fini(&e->sim);
    arena_fini(&e->arena);
    mem_free(e);
}

/* A strategy that fuses is run with a bucket for each tensor. */
static const struct dpro_strategy *single_tensors(struct evaluator *e,
                                                  const struct dpro_strategy *strategy)
{
    struct dpro_strategy single = *strategy;
    single.order = e->single.order;
    single.buckets = e->single.buckets;
    single.n_buckets = e->model->n_tensors;
    e->single = single;
    return &e->single;
}

/* When all had done their n-th iteration. */
static double done_ns(const struct simulation *s, uint32_t n)
{
    double latest = 0;
    for (uint32_t i = 0; i < s->n_executors && n > 0; i++)
        latest = fmax(latest, s->executors[i].done_ns[n - 1]);
    return latest;
}

/* The iteration from whose end on time counts, of n: the one before the last. Of those that never
 * settle the mean counts: cycles may meet each iteration elsewhere, and what queues for servers may
 * swing between several lengths. */
static uint32_t first_counted(const struct evaluator *e, uint32_t n)
{
    enum { SETTLED = 3 };
    if (e->sim.is_settled)
        return n - 1;
    if (e->n_servers)
        return n < 2 * SETTLED ? n - 1 : n / 2;
    return e->strategy->cycle_ns > 0 ? n / 3 + 1 : n - 1;
}

double evaluator_carried_ns(const struct evaluator *e)
{
    double largest, ns = model_sent_bytes(e->model, e->model->n_ranks, false, &largest) *
                         e->model->net.link.byte_ns.value;
    for (uint32_t b = 0; b < e->strategy->n_buckets; b++)
        ns += (double)sync_get(e->costs, e->buckets[b].size_bytes).wire_ns;
    return ns;
}

/* A GPU's work goes on no faster than the slowest rank launches it, a micro-batch as a batch, and
 * what is sent no faster than links carry it, once their buffers are full. */
static double least_ns(const struct evaluator *e)
{
    double share = e->model->carried_share, carried_ns = share > 0 ? evaluator_carried_ns(e) : 0;
    double passes = e->strategy->micro_batches > 1 ? e->strategy->micro_batches - 1.0 : 0;
    return fmax((double)e->model->launching_ns * (1 + passes * e->model->launching_passes),
                share * carried_ns);
}

int64_t evaluate_strategy(struct evaluator *e, const struct dpro_strategy *strategy)
{
    struct simulation *s = &e->sim;
    e->strategy = strategy->fuses && !e->n_servers ? single_tensors(e, strategy) : strategy;
    schedule_strategy(e);
    simulation_run(s);
    uint32_t n = s->n_iterations;
    if (n < 2 && !s->is_settled)
        return INT64_MAX; /* a program that waits for what never comes */
    uint32_t first = first_counted(e, n);
    return llround(fmax((done_ns(s, n) - done_ns(s, first)) / (n - first), least_ns(e)) +
                   e->model->pause_ns);
}

int64_t evaluate_once(const struct dpro_model *model)
{
    struct evaluator *evaluator = evaluator_create(model);
    int64_t ns = evaluate_strategy(evaluator, &model->baseline);
    evaluator_destroy(evaluator);
    return ns;
}

struct begun {
    double start_ns;
    uint32_t tensor;
};

ORDER(by_start, struct begun, ASCENDING(start_ns) ?: ASCENDING(tensor));

void evaluated_groups(const struct evaluator *e, struct dpro_strategy *strategy)
{
    uint32_t n = e->model->n_tensors;
    SCRATCH struct begun *begun = mem_alloc(n * sizeof *begun);
    for (uint32_t t = 0; t < n; t++)
        begun[t] = (struct begun){e->sim.communications.at[t].start_ns, t};
    qsort(begun, n, sizeof *begun, by_start);
    strategy->n_buckets = 0;
    for (uint32_t t = 0; t < n; t++) {
        strategy->order[t] = begun[t].tensor;
        if (t == 0 || begun[t].start_ns > begun[t - 1].start_ns)
            strategy->buckets[strategy->n_buckets++] =
                (struct strategy_bucket){.first = t, .partitions = 1};
        strategy->buckets[strategy->n_buckets - 1].n++;
    }
}

/* Of a bucket that all ranks have in common; of one that travels in cycles: its last tensor's; of
 * one of parameter servers: the last rank's to launch, begin and end. */
static struct bucket_times times_of(const struct evaluator *e, const struct dpro_strategy *strategy,
                                    uint32_t b, double from)
{
    const struct simulation *s = &e->sim;
    bool single = strategy != e->strategy;
    const struct strategy_bucket *bucket = &strategy->buckets[b];
    uint32_t n = single ? bucket->n : s->n_groups;
    double issued_ns = 0, start_ns = -1, end_ns = -1;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t at = single ? strategy->order[bucket->first + i] : b * s->n_groups + i;
        const struct sim_communication *c = &s->communications.at[at];
        if (single && c->end_ns <= end_ns)
            continue;
        issued_ns = c->issued_ns;
        start_ns = fmax(start_ns, c->start_ns);
        end_ns = fmax(end_ns, c->end_ns);
    }
    return (struct bucket_times){llround(issued_ns - from), llround(start_ns - from),
                                 llround(end_ns - from)};
}

const struct evaluation *evaluate_detail(struct evaluator *e, const struct dpro_strategy *strategy)
{
    struct evaluation *r = &e->result;
    const struct simulation *s = &e->sim;
    r->iteration_ns = evaluate_strategy(e, strategy);
    uint32_t n = s->n_iterations;
    double from = n > 0 ? done_ns(s, n - 1) : 0, latest = -1;
    for (uint32_t b = 0; b < strategy->n_buckets; b++)
        r->buckets[b] = times_of(e, strategy, b, from);
    for (uint32_t i = 0; n >= 1 && i < e->model->n_ranks; i++) {
        double done = s->executors[e->class_of[i]].done_ns[n - 1];
        if (done > latest) {
            latest = done;
            r->last_rank = i;
        }
    }
    double on_links_ns = s->on_links_ns;
    if (s->n_on_links > 0)
        on_links_ns += s->now_ns - s->on_links_since_ns;
    r->wire_ns = n > 0 ? llround(on_links_ns / n) : 0;
    return r;
}
