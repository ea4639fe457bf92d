/* cost/evaluate.c: a small simulation. A rank's program comes down to a few actions (launch a
 * bucket, wait for one) with work between them, ranks that do the same are one, and collectives
 * are fluids, so that an evaluation takes microseconds. */
#include "cost/evaluator.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "cost/buckets.h"
#include "cost/fused.h"

enum { MOST_LOSS_PCT = 90 };

static bool goes_on_at_once(const struct model_program *program, uint32_t op)
{
    return op > 0 && program->ops[op - 1].tensor == MODEL_NONE &&
           program->ops[op].needs == MODEL_NONE;
}

/* Fewer steps of an evaluation, where ops are not fused otherwise. */
static int merge_ops(struct evaluator *e)
{
    const struct dpro_model *m = e->model;
    size_t n_ops = 0;
    for (uint32_t p = 0; p < m->n_programs; p++)
        n_ops += m->programs[p].n_ops;
    e->merged = calloc(m->n_programs + (size_t)1, sizeof *e->merged);
    e->merged_ops = malloc((n_ops + 1) * sizeof *e->merged_ops);
    if (!e->merged || !e->merged_ops)
        return -1;
    struct model_op *next = e->merged_ops;
    for (uint32_t p = 0; p < m->n_programs; p++) {
        const struct model_program *program = &m->programs[p];
        e->merged[p].ops = next;
        for (uint32_t i = 0; i < program->n_ops; i++) {
            const struct model_op *op = &program->ops[i];
            if (goes_on_at_once(program, i)) {
                next[-1].work_ns += op->work_ns;
                next[-1].tensor = op->tensor;
            } else {
                *next++ = *op;
            }
        }
        e->merged[p].n_ops = (uint32_t)(next - e->merged[p].ops);
    }
    return 0;
}

int evaluator_create(const struct dpro_model *model, struct evaluator **evaluator,
                     struct dpro_error *err)
{
    struct evaluator *e = calloc(1, sizeof *e);
    size_t most = 0, n = model->n_tensors + (size_t)1;
    if (!e)
        return dpro_error_nomem(err);
    e->model = model;
    for (uint32_t p = 0; p < model->n_programs; p++)
        if (model->programs[p].n_ops > most)
            most = model->programs[p].n_ops;
    e->classes = calloc(model->n_ranks + (size_t)1, sizeof *e->classes);
    e->class_of = calloc(model->n_ranks + (size_t)1, sizeof *e->class_of);
    e->buckets = calloc(n, sizeof *e->buckets);
    e->bucket_of = calloc(n, sizeof *e->bucket_of);
    e->n_missing = calloc(n, sizeof *e->n_missing);
    e->queue = calloc(n, sizeof *e->queue);
    e->active = calloc(model->net.n_streams + (size_t)1, sizeof *e->active);
    e->groups = calloc(n, sizeof *e->groups);
    e->ready = calloc(n, sizeof *e->ready);
    e->apart.order = calloc(n, sizeof *e->apart.order);
    e->apart.buckets = calloc(n, sizeof *e->apart.buckets);
    e->result.launched_ns = calloc(n, sizeof *e->result.launched_ns);
    e->result.start_ns = calloc(n, sizeof *e->result.start_ns);
    e->result.end_ns = calloc(n, sizeof *e->result.end_ns);
    e->result.done_ns = calloc(model->n_ranks + (size_t)1, sizeof *e->result.done_ns);
    bool enough = e->classes && e->class_of && e->buckets && e->bucket_of && e->n_missing &&
                  e->queue && e->active && e->groups && e->ready && e->apart.order &&
                  e->apart.buckets && e->result.launched_ns && e->result.start_ns &&
                  e->result.end_ns && e->result.done_ns;
    for (uint32_t r = 0; enough && r < model->n_ranks; r++) {
        const struct model_rank *rank = &model->ranks[r];
        uint32_t c = 0;
        while (c < e->n_classes &&
               (e->classes[c].program != rank->program || e->classes[c].scale != rank->work_scale))
            c++;
        e->class_of[r] = c;
        if (c < e->n_classes)
            continue;
        e->classes[c].program = rank->program;
        e->classes[c].scale = rank->work_scale;
        /* each op waits or launches at most once; MODEL_ALL waits for every bucket */
        e->classes[c].actions = malloc((most * 2 + n * 2 + 1) * sizeof *e->classes[c].actions);
        enough = e->classes[c].actions != NULL;
        e->n_classes++;
    }
    e->costs = sync_create(&model->net);
    e->serving = sync_n_servers(&model->net) ? serving_create(model) : NULL;
    enough = enough && (e->serving || !sync_n_servers(&model->net));
    enough = enough && merge_ops(e) == 0;
    if (!enough || !e->costs) {
        evaluator_destroy(e);
        return dpro_error_nomem(err);
    }
    *evaluator = e;
    return 0;
}

void evaluator_destroy(struct evaluator *e)
{
    if (!e)
        return;
    for (uint32_t c = 0; e->classes && c < e->n_classes; c++)
        free(e->classes[c].actions);
    sync_destroy(e->costs);
    serving_destroy(e->serving);
    free(e->merged);
    free(e->merged_ops);
    free(e->classes);
    free(e->class_of);
    free(e->buckets);
    free(e->bucket_of);
    free(e->n_missing);
    free(e->queue);
    free(e->active);
    free(e->groups);
    free(e->ready);
    free(e->apart.order);
    free(e->apart.buckets);
    free(e->result.launched_ns);
    free(e->result.start_ns);
    free(e->result.end_ns);
    free(e->result.done_ns);
    free(e);
}

/* ---- from a strategy to actions ---- */

static void set_buckets(struct evaluator *e)
{
    const struct dpro_model *m = e->model;
    const struct dpro_strategy *s = e->strategy;
    bool hooked = bucket_needs_hook(m, s);
    for (uint32_t b = 0; b < s->n_buckets; b++) {
        const struct strategy_bucket *bucket = &s->buckets[b];
        uint64_t size = 0;
        for (uint32_t i = bucket->first; i < bucket->first + bucket->n; i++) {
            size += m->tensors[s->order[i]].size_bytes;
            e->bucket_of[s->order[i]] = b;
        }
        struct bucket_state *state = &e->buckets[b];
        *state = (struct bucket_state){.size_bytes = size};
        state->copy_ns = m->net.copy_ns.value * (double)size;
        state->launch_ns = bucket_launch_ns(m, s, b, size, hooked);
        if (s->compression != DPRO_COMPRESSION_NONE) {
            /* cast when launched, and back by whoever receives it */
            state->size_bytes = size / 2;
            state->latency_ns = m->net.cast_ns.value * (double)size / 2 / bucket->partitions;
        }
    }
}

static void push_action(struct class *c, double *work, enum action_kind kind, uint32_t bucket)
{
    c->actions[c->n_actions++] = (struct action){*work, (uint8_t)kind, bucket};
    *work = 0;
}

/* The class's actions of an iteration, in the order in which it comes to them. */
static void make_actions(struct evaluator *e, struct class *c)
{
    const struct dpro_model *m = e->model;
    const struct dpro_strategy *s = e->strategy;
    double work = 0;
    uint32_t next = 0; /* in order: the bucket to be launched next */
    uint32_t fused = fused_find(s, c->program, 0);
    bool fuses = fused < s->n_fused && s->fused[fused].program == c->program;
    const struct model_program *program = fuses ? &m->programs[c->program] : &e->merged[c->program];
    for (uint32_t b = 0; b < s->n_buckets; b++)
        e->n_missing[b] = s->buckets[b].n;
    c->n_actions = 0;
    for (uint32_t i = 0; i < program->n_ops; i++) {
        const struct model_op *op = &program->ops[i];
        if (op->needs == MODEL_ALL) {
            for (uint32_t b = 0; b < s->n_buckets; b++) {
                push_action(c, &work, WAIT, b);
                work = e->buckets[b].copy_ns * c->scale;
            }
        } else if (op->needs != MODEL_NONE) {
            push_action(c, &work, op->needs_before ? WAIT_BEFORE : WAIT, e->bucket_of[op->needs]);
        }
        int64_t work_ns = fuses ? fused_work_ns(m, s, c->program, i, &fused) : op->work_ns;
        work += (double)work_ns * c->scale;
        if (op->tensor == MODEL_NONE)
            continue;
        uint32_t b = e->bucket_of[op->tensor];
        bool whole = --e->n_missing[b] == 0;
        if (whole && !m->net.in_order) {
            work += e->buckets[b].launch_ns * c->scale;
            push_action(c, &work, LAUNCH, b);
        }
        while (m->net.in_order && next < s->n_buckets && e->n_missing[next] == 0) {
            work += e->buckets[next].launch_ns * c->scale;
            push_action(c, &work, LAUNCH, next++);
        }
    }
    push_action(c, &work, END, 0);
}

/* ---- running ---- */

double evaluator_rate(double cpu_ns, double byte_ns)
{
    double lost = byte_ns > 0 ? cpu_ns / byte_ns : 0;
    double most = MOST_LOSS_PCT / 100.0;
    return 1 - (lost > most ? most : lost);
}

static void set_rates(struct evaluator *e)
{
    e->n_on_wire = 0;
    for (uint32_t t = 0; t < e->n_active; t++)
        e->n_on_wire += e->active[t].on_wire;
    e->rate = e->n_on_wire > 0
                  ? evaluator_rate(e->model->net.cpu_ns.value, e->model->net.byte_ns.value)
                  : 1;
    e->wire_rate = 1;
    for (uint32_t c = 0; c < e->n_classes; c++)
        if (!e->classes[c].blocked && e->classes[c].left_ns > 0)
            e->wire_rate = 1 - e->model->net.held_share.value;
}

/* By priority, then as they were launched. */
static bool goes_before(const struct evaluator *e, uint32_t a, uint32_t b)
{
    int32_t pa = e->strategy->buckets[a].priority, pb = e->strategy->buckets[b].priority;
    return pa > pb || (pa == pb && e->buckets[a].turn < e->buckets[b].turn);
}

static void push_waiting(struct evaluator *e, uint32_t bucket)
{
    uint32_t at = e->n_queue++;
    for (; at > 0 && goes_before(e, bucket, e->queue[(at - 1) / 2]); at = (at - 1) / 2)
        e->queue[at] = e->queue[(at - 1) / 2];
    e->queue[at] = bucket;
}

static void pop_waiting(struct evaluator *e)
{
    uint32_t last = e->queue[--e->n_queue], at = 0, child;
    for (; (child = 2 * at + 1) < e->n_queue; at = child) {
        if (child + 1 < e->n_queue && goes_before(e, e->queue[child + 1], e->queue[child]))
            child++;
        if (!goes_before(e, e->queue[child], last))
            break;
        e->queue[at] = e->queue[child];
    }
    e->queue[at] = last;
}

/* ---- Horovod's cycles ---- */

/* How many of ready[0 .. n) travel with the first: as long as they fit. (Of one data type, as
 * gradients are taken to be, Horovod does not look past what does not fit.) */
static uint32_t fuse(struct evaluator *e, const uint32_t *ready, uint32_t n)
{
    uint64_t most = e->strategy->fusion_bytes, bytes = e->buckets[ready[0]].size_bytes;
    uint32_t i = 1;
    for (; i < n; i++) {
        uint64_t size = e->buckets[ready[i]].size_bytes;
        if (size > most || bytes > most - size)
            break;
        e->buckets[ready[i - 1]].next = ready[i];
        bytes += size;
    }
    return i;
}

/* A cycle begins: it takes all that waits. */
static void begin_cycle(struct evaluator *e)
{
    uint32_t n = 0;
    for (; e->n_queue > 0; pop_waiting(e))
        e->ready[n++] = e->queue[0];
    e->n_groups = e->n_begun = 0;
    for (uint32_t i = 0; i < n;) {
        e->groups[e->n_groups++] = e->ready[i];
        i += e->strategy->fuses ? fuse(e, e->ready + i, n - i) : 1;
    }
    e->next_cycle_ns = e->now_ns + (double)e->strategy->cycle_ns;
}

/* Until the next cycle that has something to do; infinity: nothing waits, or one is under way. */
static double until_cycle_ns(struct evaluator *e)
{
    double cycle = (double)e->strategy->cycle_ns;
    if (cycle <= 0 || e->n_queue == 0 || e->n_active > 0)
        return INFINITY;
    if (e->next_cycle_ns < e->now_ns)
        e->next_cycle_ns += ceil((e->now_ns - e->next_cycle_ns) / cycle) * cycle;
    return e->next_cycle_ns - e->now_ns;
}

/* The next of the cycle's groups, when the one before is through; with the last the cycle ends. */
static void begin_group(struct evaluator *e)
{
    if (e->n_active > 0)
        return;
    if (e->n_begun == e->n_groups) {
        if (e->n_groups > 0 && e->next_cycle_ns < e->now_ns)
            e->next_cycle_ns = e->now_ns;
        e->n_groups = e->n_begun = 0;
        return;
    }
    struct transfer transfer = {.bucket = e->groups[e->n_begun]};
    uint64_t size = 0;
    for (uint32_t b = transfer.bucket; b != MODEL_NONE; b = e->buckets[b].next) {
        size += e->buckets[b].size_bytes;
        transfer.latency_ns += e->buckets[b].latency_ns;
        e->buckets[b].start_ns = e->now_ns;
    }
    struct sync_cost cost = {0};
    if (sync_get(e->costs, size, &cost) < 0)
        e->failed = true;
    transfer.latency_ns += (double)cost.latency_ns;
    transfer.wire_ns = (double)cost.wire_ns;
    if (e->n_begun++ == 0)
        transfer.latency_ns += e->model->net.negotiate_ns.value;
    e->active[e->n_active++] = transfer;
}

/* ---- transfers ---- */

/* Begins what waits while a stream is free. */
static void begin_transfers(struct evaluator *e)
{
    if (e->strategy->cycle_ns > 0) {
        begin_group(e);
        return;
    }
    while (e->n_active < e->model->net.n_streams && e->n_queue > 0) {
        uint32_t b = e->queue[0];
        struct bucket_state *bucket = &e->buckets[b];
        uint32_t parts = e->strategy->buckets[b].partitions;
        uint64_t size = bucket->size_bytes / parts;
        if (bucket->n_waiting == parts)
            bucket->start_ns = e->now_ns;
        if (--bucket->n_waiting == 0) {
            size = bucket->size_bytes - (parts - 1) * size;
            pop_waiting(e);
        }
        struct sync_cost cost = {0};
        if (sync_get(e->costs, size, &cost) < 0)
            e->failed = true;
        struct transfer transfer = {b, false, (double)cost.latency_ns + bucket->latency_ns,
                                    (double)cost.wire_ns};
        e->active[e->n_active++] = transfer;
    }
}

static bool may_pass(const struct evaluator *e, const struct class *c)
{
    const struct action *a = &c->actions[c->at];
    const struct bucket_state *bucket = &e->buckets[a->bucket];
    switch (a->kind) {
    case LAUNCH: /* its memory is in use until it has been communicated */
    case WAIT_BEFORE:
        return bucket->n_ended >= c->iteration;
    case WAIT:
        return bucket->n_ended > c->iteration;
    default:
        return true;
    }
}

/* The class has come to its action; goes on to the next if nothing holds it up. */
static void act(struct evaluator *e, struct class *c)
{
    while (c->left_ns <= 0) {
        c->blocked = !may_pass(e, c);
        if (c->blocked)
            return;
        const struct action *a = &c->actions[c->at++];
        struct bucket_state *bucket = &e->buckets[a->bucket];
        if (a->kind == LAUNCH && ++bucket->n_launched == e->n_classes) {
            bucket->n_launched = 0;
            bucket->launched_ns = e->now_ns;
            bucket->n_waiting = bucket->n_left = e->strategy->buckets[a->bucket].partitions;
            bucket->next = MODEL_NONE;
            bucket->turn = e->turn++;
            push_waiting(e, a->bucket);
        } else if (a->kind == END) {
            c->done_ns[c->iteration] = e->now_ns;
            c->at = 0;
            if (++c->iteration > MOST_ITERATIONS) {
                c->blocked = true;
                return;
            }
        }
        c->left_ns = c->actions[c->at].work_ns;
    }
}

/* What a transfer carried is there. */
static void end_transfer(struct evaluator *e, uint32_t transfer)
{
    uint32_t first = e->active[transfer].bucket;
    bool whole = true;
    e->active[transfer] = e->active[--e->n_active];
    for (uint32_t b = first; b != MODEL_NONE; b = e->buckets[b].next) {
        struct bucket_state *bucket = &e->buckets[b];
        whole = e->strategy->cycle_ns > 0 || --bucket->n_left == 0;
        if (whole) {
            bucket->end_ns = e->now_ns;
            bucket->n_ended++;
        }
    }
    for (uint32_t c = 0; c < e->n_classes && whole; c++)
        if (e->classes[c].blocked && e->classes[c].iteration <= MOST_ITERATIONS)
            act(e, &e->classes[c]);
}

/* Moves time on to the next thing that happens. */
static bool step(struct evaluator *e)
{
    double dt = until_cycle_ns(e);
    bool cycle = !isinf(dt);
    uint32_t next_class = UINT32_MAX, next_transfer = UINT32_MAX;
    set_rates(e);
    for (uint32_t c = 0; c < e->n_classes; c++) {
        const struct class *class = &e->classes[c];
        if (!class->blocked && class->left_ns / e->rate < dt) {
            dt = class->left_ns / e->rate;
            next_class = c;
            cycle = false;
        }
    }
    for (uint32_t t = 0; t < e->n_active; t++) {
        const struct transfer *transfer = &e->active[t];
        double left = transfer->on_wire ? transfer->wire_ns * e->n_on_wire / e->wire_rate
                                        : transfer->latency_ns;
        if (left < dt) {
            dt = left;
            next_transfer = t;
            cycle = false;
        }
    }
    if (isinf(dt))
        return false;
    e->now_ns += dt;
    if (e->n_on_wire > 0)
        e->wire_ns += dt;
    for (uint32_t c = 0; c < e->n_classes; c++)
        if (!e->classes[c].blocked)
            e->classes[c].left_ns -= dt * e->rate;
    for (uint32_t t = 0; t < e->n_active; t++) {
        struct transfer *transfer = &e->active[t];
        if (transfer->on_wire)
            transfer->wire_ns -= dt * e->wire_rate / e->n_on_wire;
        else
            transfer->latency_ns -= dt;
    }
    if (cycle) {
        begin_cycle(e);
    } else if (next_transfer == UINT32_MAX) {
        e->classes[next_class].left_ns = 0;
        act(e, &e->classes[next_class]);
    } else if (!e->active[next_transfer].on_wire) {
        e->active[next_transfer].on_wire = true;
    } else {
        end_transfer(e, next_transfer);
    }
    begin_transfers(e);
    return true;
}

/* How many iterations all classes have behind them. */
static uint32_t n_done(const struct evaluator *e)
{
    uint32_t n = UINT32_MAX;
    for (uint32_t c = 0; c < e->n_classes; c++)
        n = e->classes[c].iteration < n ? e->classes[c].iteration : n;
    return n;
}

static bool is_steady(const struct evaluator *e, uint32_t n)
{
    if (n < 3)
        return false;
    double first = e->classes[0].done_ns[n - 1] - e->classes[0].done_ns[n - 2];
    for (uint32_t c = 0; c < e->n_classes; c++) {
        const double *done = e->classes[c].done_ns;
        if (fabs(done[n - 1] - done[n - 2] - first) > 0.5 ||
            fabs(done[n - 2] - done[n - 3] - first) > 0.5)
            return false;
    }
    return true;
}

/* A strategy that fuses is run with a bucket for each tensor. */
static const struct dpro_strategy *take_apart(struct evaluator *e,
                                              const struct dpro_strategy *strategy)
{
    struct dpro_strategy *apart = &e->apart;
    *apart = (struct dpro_strategy){.order = apart->order,
                                    .buckets = apart->buckets,
                                    .n_buckets = e->model->n_tensors,
                                    .cycle_ns = strategy->cycle_ns,
                                    .fuses = true,
                                    .fusion_bytes = strategy->fusion_bytes,
                                    .compression = strategy->compression,
                                    .fused = strategy->fused,
                                    .n_fused = strategy->n_fused};
    for (uint32_t t = 0; t < e->model->n_tensors; t++) {
        apart->order[t] = t;
        apart->buckets[t] = (struct strategy_bucket){.first = t, .n = 1, .partitions = 1};
    }
    return apart;
}

int64_t evaluate(struct evaluator *e, const struct dpro_strategy *strategy)
{
    e->strategy = strategy->fuses ? take_apart(e, strategy) : strategy;
    e->n_queue = e->n_active = e->n_groups = e->n_begun = 0;
    e->next_cycle_ns = 0;
    e->turn = 0;
    e->now_ns = e->wire_ns = 0;
    e->failed = false;
    set_buckets(e);
    for (uint32_t c = 0; c < e->n_classes; c++) {
        struct class *class = &e->classes[c];
        make_actions(e, class);
        class->at = class->iteration = 0;
        class->blocked = false;
        class->left_ns = class->actions[0].work_ns;
    }
    if (e->serving)
        return serving_run(e);
    uint32_t n = 0;
    while (n < MOST_ITERATIONS && !is_steady(e, n) && step(e))
        n = n_done(e);
    if (n < 2 || e->failed)
        return INT64_MAX; /* a program that waits for what never comes */
    /* cycles may meet each iteration elsewhere: the mean of those after the first few */
    uint32_t first = e->strategy->cycle_ns > 0 && !is_steady(e, n) ? n / 3 : n - 2;
    double last = 0, before = 0;
    for (uint32_t c = 0; c < e->n_classes; c++) {
        last = fmax(last, e->classes[c].done_ns[n - 1]);
        before = fmax(before, e->classes[c].done_ns[first]);
    }
    return llround((last - before) / (n - 1 - first));
}

struct begun {
    double start_ns;
    uint32_t tensor;
};

static int compare_begun(const void *a, const void *b)
{
    const struct begun *x = a, *y = b;
    if (x->start_ns != y->start_ns)
        return x->start_ns < y->start_ns ? -1 : 1;
    return x->tensor < y->tensor ? -1 : x->tensor > y->tensor;
}

int evaluated_groups(const struct evaluator *e, struct dpro_strategy *strategy)
{
    uint32_t n = e->model->n_tensors;
    struct begun *begun = malloc((n + (size_t)1) * sizeof *begun);
    if (!begun)
        return -1;
    for (uint32_t t = 0; t < n; t++)
        begun[t] = (struct begun){e->buckets[t].start_ns, t};
    qsort(begun, n, sizeof *begun, compare_begun);
    strategy->n_buckets = 0;
    for (uint32_t t = 0; t < n; t++) {
        strategy->order[t] = begun[t].tensor;
        if (t == 0 || begun[t].start_ns > begun[t - 1].start_ns)
            strategy->buckets[strategy->n_buckets++] =
                (struct strategy_bucket){.first = t, .partitions = 1};
        strategy->buckets[strategy->n_buckets - 1].n++;
    }
    free(begun);
    return 0;
}

const struct evaluation *evaluate_detail(struct evaluator *e, const struct dpro_strategy *strategy)
{
    struct evaluation *r = &e->result;
    r->iteration_ns = evaluate(e, strategy);
    if (e->serving) {
        serving_detail(e, r);
        return r;
    }
    uint32_t n = n_done(e);
    double from = 0, latest = -1;
    for (uint32_t c = 0; n >= 2 && c < e->n_classes; c++)
        from = fmax(from, e->classes[c].done_ns[n - 2]);
    for (uint32_t b = 0; b < strategy->n_buckets; b++) {
        /* of one that is fused in cycles: its last tensor's */
        uint32_t first = strategy->fuses ? strategy->buckets[b].first : b;
        uint32_t n_parts = strategy->fuses ? strategy->buckets[b].n : 1;
        struct bucket_state last = {.end_ns = -1};
        for (uint32_t i = first; i < first + n_parts; i++) {
            const struct bucket_state *part = &e->buckets[strategy->fuses ? strategy->order[i] : i];
            last = part->end_ns > last.end_ns ? *part : last;
        }
        r->launched_ns[b] = llround(last.launched_ns - from);
        r->start_ns[b] = llround(last.start_ns - from);
        r->end_ns[b] = llround(last.end_ns - from);
    }
    for (uint32_t i = 0; n >= 1 && i < e->model->n_ranks; i++) {
        double done = e->classes[e->class_of[i]].done_ns[n - 1];
        r->done_ns[i] = llround(done - from);
        if (done > latest) {
            latest = done;
            r->last_rank = i;
        }
    }
    r->wire_ns = n > 0 ? llround(e->wire_ns / n) : 0;
    return r;
}
