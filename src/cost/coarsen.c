/* cost/coarsen.c: the Coarsened View (paper, section 4.3): of everything that a rank does in an
 * iteration, the moments at which a gradient gets ready or at which it waits for communication
 * remain, and how long it worked between them. What lies between two such moments depends on no
 * communication of gradients, so it stays as it is whatever becomes of that. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/map.h"
#include "cost/cost.h"

/* An edge to an op that may wait for communication. */
struct entry {
    uint32_t to, from;
    bool next, communicates; /* from the iteration before; from a bucket's transfer */
};

struct interval {
    int64_t start_ns, end_ns;
};

struct coarsening {
    const struct measured_replay *replay;
    const struct dpro_graph *g;
    uint32_t *tensor_of;   /* by graph tensor: the model's; MODEL_NONE */
    uint32_t *first_of;    /* by graph collective: first tensor of the model in it; MODEL_NONE */
    uint32_t *is_transfer; /* by op: 1 + graph collective whose transfer (or OUT of it) it is; 0; of
                              a session: 1 + the tensor that it pulls */
    uint8_t *waits;        /* by op: it may wait for communication */
    ARRAY(struct entry) entries; /* by `to` */
    uint32_t n_groups;           /* collectives, or a session's tensors */
    bool has_servers;            /* that answer at once */
};

/* ---- tensors ---- */

/* After which op of its rank a gradient is ready: a key's alone is what the push waits for. */
static uint32_t ready_op(const struct dpro_graph *g, const struct graph_tensor *tensor)
{
    const struct graph_collective *c = &g->collectives[tensor->collective];
    return is_exchange(g, c) ? g->members[c->first_member + tensor->rank].arrival : tensor->in;
}

struct ready {
    int64_t when_ns;
    uint32_t tensor; /* of the graph */
};

static int compare_ready(const void *a, const void *b)
{
    const struct ready *x = a, *y = b;
    if (x->when_ns != y->when_ns)
        return x->when_ns < y->when_ns ? -1 : 1;
    return x->tensor < y->tensor ? -1 : x->tensor > y->tensor;
}

static uint64_t tensor_key(const struct graph_tensor *t)
{
    return map_mix(((uint64_t)t->name << 32) ^ t->collective) | 1;
}

/* By tensor: its index among its rank's tensors in its collective. NULL: no memory. */
static uint32_t *find_places(const struct dpro_graph *g)
{
    uint32_t *places = malloc(((size_t)g->n_tensors + 1) * sizeof *places);
    struct map counts = {0};
    int status = places ? 0 : -1;
    for (uint32_t t = 0; t < g->n_tensors && status == 0; t++) {
        const struct graph_tensor *tensor = &g->tensors[t];
        uint64_t key = map_key((uint64_t)tensor->rank << 32 | tensor->collective), n = 0;
        map_get(&counts, key, &n);
        places[t] = (uint32_t)n;
        status = map_set(&counts, key, n + 1);
    }
    map_fini(&counts);
    if (status == 0)
        return places;
    free(places);
    return NULL;
}

/* A session that has its ranks' gradients in one graph names each after its rank. */
static uint64_t place_key(const struct graph_tensor *t, uint32_t place)
{
    return map_mix(map_mix(((uint64_t)place << 32) ^ t->collective) ^ t->size_bytes) | 1;
}

/* The number of the first rank's gradient that is this one: by name, else by the place in the
 * collective. */
static bool number_of(const struct coarsening *c, const struct map *by_name,
                      const struct map *by_place, uint32_t t, const uint32_t *places,
                      uint64_t *number)
{
    const struct graph_tensor *tensor = &c->g->tensors[t];
    return map_get(by_name, tensor_key(tensor), number) ||
           map_get(by_place, place_key(tensor, places[t]), number);
}

/* The first rank's gradients, in the order in which they get ready; the other ranks' with them. */
static int find_tensors(struct coarsening *c, struct dpro_model *model, struct coarse *coarse,
                        struct dpro_error *err)
{
    const struct dpro_graph *g = c->g;
    const struct measured_replay *r = c->replay;
    struct map numbers = {0}, by_place = {0};
    size_t n = 0;
    int rc = 0;
    uint32_t *places = find_places(g);
    struct ready *order = malloc(((size_t)g->n_tensors + 1) * sizeof *order);
    c->tensor_of = malloc(((size_t)g->n_tensors + 1) * sizeof *c->tensor_of);
    c->first_of = malloc(((size_t)g->n_collectives + 1) * sizeof *c->first_of);
    c->n_groups = g->n_collectives;
    if (!order || !places || !c->tensor_of || !c->first_of) {
        free(order);
        free(places);
        return dpro_error_nomem(err);
    }
    for (uint32_t j = 0; j < g->n_collectives; j++)
        c->first_of[j] = MODEL_NONE;
    for (uint32_t t = 0; t < g->n_tensors; t++) {
        c->tensor_of[t] = MODEL_NONE;
        const struct graph_tensor *tensor = &g->tensors[t];
        if (!is_gradient(g, tensor))
            continue;
        order[n++] = (struct ready){r->end_ns[r->first][ready_op(g, tensor)], t};
    }
    qsort(order, n, sizeof *order, compare_ready);
    model->tensors = arena_array(&model->arena, n, sizeof *model->tensors);
    coarse->bucket_of = malloc((n + 1) * sizeof *coarse->bucket_of);
    if (!model->tensors || !coarse->bucket_of)
        rc = dpro_error_nomem(err);
    for (size_t i = 0; i < n && rc == 0; i++) {
        const struct graph_tensor *tensor = &g->tensors[order[i].tensor];
        const char *name = strtab_get(&g->names, tensor->name);
        model->tensors[i] = (struct model_tensor){
            arena_copy_string(&model->arena, name, strlen(name)), tensor->size_bytes, (uint32_t)i};
        coarse->bucket_of[i] = tensor->collective;
        c->has_servers |= is_exchange(g, &g->collectives[tensor->collective]);
        if (c->first_of[tensor->collective] == MODEL_NONE)
            c->first_of[tensor->collective] = (uint32_t)i;
        if (!model->tensors[i].name || map_set(&numbers, tensor_key(tensor), i) < 0 ||
            map_set(&by_place, place_key(tensor, places[order[i].tensor]), i) < 0)
            rc = dpro_error_nomem(err);
    }
    model->n_tensors = (uint32_t)n;
    coarse->ready = malloc((n * g->n_ranks + 1) * sizeof *coarse->ready);
    if (!coarse->ready)
        rc = dpro_error_nomem(err);
    for (size_t i = 0; i < n * g->n_ranks && rc == 0; i++)
        coarse->ready[i] = DPRO_NO_OP;
    for (uint32_t t = 0; t < g->n_tensors && rc == 0; t++) {
        const struct graph_tensor *tensor = &g->tensors[t];
        uint64_t number;
        if (!number_of(c, &numbers, &by_place, t, places, &number))
            continue;
        c->tensor_of[t] = (uint32_t)number;
        if (tensor->in != DPRO_NO_OP && tensor->rank < g->n_ranks)
            coarse->ready[tensor->rank * n + number] = ready_op(g, tensor);
    }
    map_fini(&numbers);
    map_fini(&by_place);
    free(order);
    free(places);
    return rc;
}

static int find_variables(struct coarsening *c, struct dpro_model *model, struct coarse *coarse,
                          struct dpro_error *err)
{
    if (session_tensors(c->replay, model, coarse, c->is_transfer) < 0)
        return dpro_error_nomem(err);
    c->n_groups = model->n_tensors;
    c->first_of = malloc(((size_t)c->n_groups + 1) * sizeof *c->first_of);
    if (!c->first_of)
        return dpro_error_nomem(err);
    for (uint32_t t = 0; t < c->n_groups; t++)
        c->first_of[t] = t;
    return 0;
}

/* ---- who waits ---- */

static bool computes(const struct dpro_graph *g, uint32_t op)
{
    if (g->device[op] == DPRO_NO_DEVICE)
        return false;
    uint8_t kind = g->devices[g->device[op]].kind;
    return kind == DPRO_DEVICE_CPU_THREAD || kind == DPRO_DEVICE_GPU_STREAM;
}

static void mark_consumers(struct coarsening *c, uint32_t op)
{
    const struct dpro_graph *g = c->g;
    for (int next = 0; next < 2; next++) {
        uint32_t n;
        const dpro_op_id *succ = dpro_graph_successors(g, op, next, &n);
        for (uint32_t i = 0; i < n; i++)
            if (computes(g, succ[i]) && !c->is_transfer[succ[i]])
                c->waits[succ[i]] = 1;
    }
}

static int compare_entries(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    if (x->to != y->to)
        return x->to < y->to ? -1 : 1;
    return x->from < y->from ? -1 : x->from > y->from;
}

/* Horovod's thread copies and tells between transfers of its own: no rank's work, but what lies
 * between a bucket and the next. */
static bool is_of_horovod(const struct dpro_graph *g, uint32_t op)
{
    return g->cycles.cycle_ns > 0 && g->device[op] != DPRO_NO_DEVICE &&
           g->devices[g->device[op]].kind == DPRO_DEVICE_COMM_THREAD;
}

/* Marks the transfers of buckets, and what follows them on computing devices. */
static int find_waiting(struct coarsening *c, struct dpro_error *err)
{
    const struct dpro_graph *g = c->g;
    c->waits = calloc((size_t)g->n_ops + 1, 1);
    if (!c->waits)
        return dpro_error_nomem(err);
    for (uint32_t t = 0; t < g->n_tensors; t++) {
        const struct graph_tensor *tensor = &g->tensors[t];
        if (!c->tensor_of || c->tensor_of[t] == MODEL_NONE)
            continue;
        const struct graph_collective *collective = &g->collectives[tensor->collective];
        for (uint32_t m = 0; m < collective->n_members; m++)
            c->is_transfer[g->members[collective->first_member + m].transfer] =
                1 + tensor->collective;
        if (tensor->out != DPRO_NO_OP)
            c->is_transfer[tensor->out] = 1 + tensor->collective;
    }
    for (uint32_t op = 0; op < g->n_ops; op++)
        if (c->is_transfer[op])
            mark_consumers(c, op);
    for (uint32_t op = 0; op < g->n_ops; op++)
        for (int next = 0; next < 2; next++) {
            uint32_t n;
            const dpro_op_id *succ = dpro_graph_successors(g, op, next, &n);
            for (uint32_t i = 0; i < n; i++) {
                struct entry entry = {succ[i], op, next == 1, c->is_transfer[op] != 0};
                if (!entry.communicates && is_of_horovod(g, op))
                    continue;
                if (c->waits[succ[i]] && array_push(&c->entries, entry) < 0)
                    return dpro_error_nomem(err);
            }
        }
    if (c->entries.n > 1)
        qsort(c->entries.at, c->entries.n, sizeof *c->entries.at, compare_entries);
    return 0;
}

static const struct entry *entries_of(const struct coarsening *c, uint32_t op, size_t *n)
{
    size_t low = 0, high = c->entries.n;
    while (low < high) {
        size_t mid = (low + high) / 2;
        if (c->entries.at[mid].to < op)
            low = mid + 1;
        else
            high = mid;
    }
    for (*n = 0; low + *n < c->entries.n && c->entries.at[low + *n].to == op; (*n)++)
        ;
    return c->entries.at + low;
}

/* When the op could have run had nothing been communicated, and from when on it could. */
static void waiting(const struct coarsening *c, uint32_t copy, uint32_t op, int64_t *came_ns,
                    int64_t *went_on_ns)
{
    const struct measured_replay *r = c->replay;
    size_t n;
    const struct entry *entries = entries_of(c, op, &n);
    int64_t own = 0, others = 0;
    uint32_t before = r->device_prev[copy][op];
    int64_t start = measured_start_ns(r, copy, op);
    if (before != DPRO_NO_OP) {
        own = r->end_ns[copy][before];
        if (own > start || before == op)
            own = copy > 0 ? r->end_ns[copy - 1][before] : 0;
    }
    for (size_t i = 0; i < n; i++) {
        if (entries[i].next && copy == 0)
            continue;
        int64_t end = r->end_ns[copy - entries[i].next][entries[i].from];
        int64_t *latest = entries[i].communicates ? &others : &own;
        *latest = end > *latest ? end : *latest;
    }
    *came_ns = own;
    *went_on_ns = others > own ? others : own;
}

/* ---- sync points ---- */

static int compare_points(const void *a, const void *b)
{
    const struct sync_point *x = a, *y = b;
    if (x->next != y->next)
        return x->next ? 1 : -1;
    if (x->when_ns != y->when_ns)
        return x->when_ns < y->when_ns ? -1 : 1;
    return x->op < y->op ? -1 : x->op > y->op;
}

static int64_t mean_when(const struct coarsening *c, uint32_t op, bool needs)
{
    const struct measured_replay *r = c->replay;
    int64_t sum = 0;
    for (uint32_t copy = r->first; copy < r->first + r->n; copy++)
        sum += (needs ? measured_start_ns(r, copy, op) : r->end_ns[copy][op]) / r->n;
    return sum;
}

/* Whether an iteration may end before this bucket is taken: where servers update; elsewhere the
 * ranks do something with it before. */
static bool may_lap(const struct dpro_graph *g, uint32_t collective)
{
    return g->n_collectives > 0 && is_exchange(g, &g->collectives[collective]);
}

/* A bucket is waited for by the first op that follows it; the others only follow that one. */
static int add_needs(const struct coarsening *c, uint32_t r, struct coarse_rank *rank)
{
    const struct dpro_graph *g = c->g;
    const struct graph_rank *ops = &g->ranks[r];
    struct sync_point *first = calloc((size_t)c->n_groups + 1, sizeof *first);
    if (!first)
        return -1;
    for (uint32_t op = ops->first_op; op < ops->first_op + ops->n_ops; op++) {
        if (!c->waits[op])
            continue;
        size_t n;
        const struct entry *entries = entries_of(c, op, &n);
        for (size_t i = 0; i < n; i++) {
            if (!entries[i].communicates)
                continue;
            uint32_t j = c->is_transfer[entries[i].from] - 1;
            /* an op of the iteration after comes a period later; those of this one go first */
            struct sync_point point = {op, c->first_of[j], true, mean_when(c, op, true),
                                       entries[i].next};
            if (c->first_of[j] != MODEL_NONE &&
                (!first[j].needs || compare_points(&point, &first[j]) < 0))
                first[j] = point;
        }
    }
    int status = 0;
    for (uint32_t j = 0; j < c->n_groups && status == 0; j++)
        if (first[j].needs && (!first[j].next || may_lap(g, j)))
            status = array_push(&rank->sync_points, first[j]);
    free(first);
    return status;
}

static int find_points(const struct coarsening *c, uint32_t r, const struct dpro_model *model,
                       const struct coarse *coarse, struct dpro_error *err)
{
    const struct dpro_graph *g = c->g;
    struct coarse_rank *rank = &coarse->ranks[r];
    uint32_t n_ready = 0;
    for (uint32_t t = 0; t < model->n_tensors; t++) {
        uint32_t op = coarse->ready[(size_t)r * model->n_tensors + t];
        if (op == DPRO_NO_OP)
            continue;
        struct sync_point point = {op, t, false, mean_when(c, op, false), false};
        if (array_push(&rank->sync_points, point) < 0)
            return dpro_error_nomem(err);
        n_ready++;
    }
    if (n_ready != model->n_tensors)
        return dpro_error_set(err, DPRO_EFORMAT,
                              "rank %d communicates %u gradients and rank %d %u: one of their "
                              "profiles is cut off, or of another job ('dpro replay' names files "
                              "that are cut off); give whole ones of one job",
                              g->ranks[r].rank, n_ready, g->ranks[0].rank, model->n_tensors);
    /* the first gradient needs all parameters, when each is needed before shows in no order */
    if (!c->has_servers && add_needs(c, r, rank) < 0)
        return dpro_error_nomem(err);
    qsort(rank->sync_points.at, rank->sync_points.n, sizeof *rank->sync_points.at, compare_points);
    rank->drains = true;
    for (size_t a = 0, seen = 0; a < rank->sync_points.n; a++) {
        rank->drains &= !rank->sync_points.at[a].next;
        rank->drains &= !rank->sync_points.at[a].needs || seen == n_ready;
        seen += !rank->sync_points.at[a].needs;
    }
    rank->drains &= rank->sync_points.n > n_ready || c->has_servers;
    return 0;
}

/* ---- what is on a rank's wires ---- */

static int compare_intervals(const void *a, const void *b)
{
    const struct interval *x = a, *y = b;
    if (x->start_ns != y->start_ns)
        return x->start_ns < y->start_ns ? -1 : 1;
    return x->end_ns < y->end_ns ? -1 : x->end_ns > y->end_ns;
}

typedef ARRAY(struct interval) interval_array;

/* When something of a bucket was being sent or received; whole transfers where no messages are
 * known. Ascending, disjoint. */
static int wire_times(const struct coarsening *c, uint32_t r, interval_array *times)
{
    const struct dpro_graph *g = c->g;
    const struct measured_replay *re = c->replay;
    const struct graph_rank *rank = &g->ranks[r];
    for (uint32_t op = rank->first_op; op < rank->first_op + rank->n_ops; op++) {
        bool message = (g->kind[op] == DPRO_OP_SEND || g->kind[op] == DPRO_OP_RECV ||
                        g->kind[op] == DPRO_OP_PUSH || g->kind[op] == DPRO_OP_PULL) &&
                       g->size_bytes && g->size_bytes[op] > 0;
        bool whole = c->is_transfer[op] && g->kind[op] == DPRO_OP_COLLECTIVE &&
                     g->collectives[c->is_transfer[op] - 1].n_messages == 0;
        if (!message && !whole)
            continue;
        for (uint32_t copy = 0; copy < re->n_copies; copy++) {
            struct interval time = {measured_start_ns(re, copy, op), re->end_ns[copy][op]};
            if (time.end_ns > time.start_ns && array_push(times, time) < 0)
                return -1;
        }
    }
    if (times->n > 1)
        qsort(times->at, times->n, sizeof *times->at, compare_intervals);
    size_t n = 0;
    for (size_t i = 0; i < times->n; i++) {
        if (n > 0 && times->at[i].start_ns <= times->at[n - 1].end_ns) {
            if (times->at[i].end_ns > times->at[n - 1].end_ns)
                times->at[n - 1].end_ns = times->at[i].end_ns;
        } else {
            times->at[n++] = times->at[i];
        }
    }
    times->n = n;
    return 0;
}

/* How much of [from, to) lies within the intervals. */
static int64_t within(const interval_array *times, int64_t from, int64_t to)
{
    size_t low = 0, high = times->n;
    while (low < high) {
        size_t mid = (low + high) / 2;
        if (times->at[mid].end_ns <= from)
            low = mid + 1;
        else
            high = mid;
    }
    int64_t sum = 0;
    for (; low < times->n && times->at[low].start_ns < to; low++) {
        int64_t start = times->at[low].start_ns > from ? times->at[low].start_ns : from;
        int64_t end = times->at[low].end_ns < to ? times->at[low].end_ns : to;
        sum += end - start;
    }
    return sum;
}

/* ---- segments ---- */

/* What is computed before each sync point, as a number that repeated blocks have in common: the
 * names of the ops on its thread, and the size of the tensor. */
static int find_families(const struct coarsening *c, uint32_t r, const struct dpro_model *model,
                         struct coarse_rank *rank)
{
    const struct dpro_graph *g = c->g;
    const struct graph_rank *ops = &g->ranks[r];
    uint32_t *maker = malloc(((size_t)ops->n_ops + 1) * sizeof *maker);
    rank->family = calloc(rank->sync_points.n + 1, sizeof *rank->family);
    if (!maker || !rank->family) {
        free(maker);
        return -1;
    }
    for (uint32_t i = 0; i < ops->n_ops; i++)
        maker[i] = DPRO_NO_OP;
    for (uint32_t op = ops->first_op; op < ops->first_op + ops->n_ops; op++) {
        if (!computes(g, op))
            continue;
        for (uint32_t e = g->row[op]; e < g->row[op + 1]; e++)
            if (g->succ[e] >= ops->first_op && g->succ[e] < ops->first_op + ops->n_ops &&
                (g->kind[g->succ[e]] == DPRO_OP_IN || (g->flags[g->succ[e]] & GRAPH_OP_ARRIVAL)))
                maker[g->succ[e] - ops->first_op] = op;
    }
    uint32_t last = DPRO_NO_OP;
    for (size_t a = 0; a < rank->sync_points.n; a++) {
        const struct sync_point *point = &rank->sync_points.at[a];
        if (point->needs)
            continue;
        uint32_t op = maker[point->op - ops->first_op];
        if (op != DPRO_NO_OP && last != DPRO_NO_OP && last < op &&
            g->device[last] == g->device[op]) {
            uint64_t hash = map_mix(model->tensors[point->tensor].size_bytes);
            for (uint32_t o = last + 1; o <= op; o++)
                if (g->device[o] == g->device[op] && g->kind[o] != DPRO_OP_LAUNCH)
                    hash = map_mix(hash ^ g->name[o]);
            rank->family[a] = hash | 1;
        }
        last = op;
    }
    free(maker);
    return 0;
}

/* When the rank has all that it pulls. */
static int64_t last_transfer(const struct coarsening *c, uint32_t copy, uint32_t r)
{
    const struct dpro_graph *g = c->g;
    const int64_t *end_ns = c->replay->end_ns[copy];
    int64_t last = INT64_MIN;
    for (uint32_t op = g->ranks[r].first_op; op < g->ranks[r].first_op + g->ranks[r].n_ops; op++)
        if (c->is_transfer[op] && end_ns[op] > last)
            last = end_ns[op];
    return last;
}

static int measure(const struct coarsening *c, uint32_t r, struct coarse_rank *rank)
{
    const struct dpro_graph *g = c->g;
    const struct measured_replay *re = c->replay;
    size_t n = rank->sync_points.n;
    interval_array times = {0};
    rank->segments = calloc(re->n * n + 1, sizeof *rank->segments);
    if (!rank->segments || wire_times(c, r, &times) < 0) {
        array_fini(&times);
        return -1;
    }
    int64_t went_on = 0;
    for (uint32_t copy = re->first - 1; copy < re->first + re->n; copy++) {
        int64_t first_wait = 0, waited = 0, copied = 0;
        if (session_is(g)) /* all begin at once */
            went_on = re->end_ns[copy - 1][g->ranks[r].boundary];
        for (size_t a = 0; a < n; a++) {
            const struct sync_point *point = &rank->sync_points.at[a];
            int64_t came = re->end_ns[copy][point->op], on = came;
            if (point->needs)
                waiting(c, copy + point->next, point->op, &came, &on);
            if (copy >= re->first) {
                struct segment *segment = &rank->segments[(copy - re->first) * n + a];
                segment->elapsed_ns = came > went_on ? came - went_on : 0;
                segment->overlapped_ns = within(&times, went_on, came);
            }
            if (point->needs) {
                first_wait = first_wait == 0 ? came : first_wait;
                waited += on - came;
            }
            went_on = on > went_on ? on : went_on;
        }
        if (c->has_servers && last_transfer(c, copy, r) > went_on)
            went_on = last_transfer(c, copy, r);
        if (copy < re->first || !rank->drains || c->has_servers || g->cycles.cycle_ns > 0)
            continue; /* who copies is another: Horovod's thread, or nobody */
        for (uint32_t op = g->ranks[r].first_op; op < g->ranks[r].first_op + g->ranks[r].n_ops;
             op++)
            if (c->waits[op] && re->end_ns[copy][op] > copied)
                copied = re->end_ns[copy][op];
        if (copied - first_wait > waited)
            rank->copy_back_ns += (copied - first_wait - waited) / re->n;
    }
    array_fini(&times);
    return 0;
}

int coarsen(const struct measured_replay *replay, struct dpro_model *model, struct coarse *coarse,
            struct dpro_error *err)
{
    struct coarsening c = {.replay = replay, .g = replay->graph};
    const struct dpro_graph *g = c.g;
    *coarse = (struct coarse){.ranks = calloc((size_t)g->n_ranks + 1, sizeof *coarse->ranks)};
    int rc = coarse->ranks ? 0 : dpro_error_nomem(err);
    c.is_transfer = calloc((size_t)g->n_ops + 1, sizeof *c.is_transfer);
    if (rc == 0 && !c.is_transfer)
        rc = dpro_error_nomem(err);
    if (rc == 0)
        rc = session_is(g) ? find_variables(&c, model, coarse, err)
                           : find_tensors(&c, model, coarse, err);
    if (rc == 0)
        rc = find_waiting(&c, err);
    for (uint32_t r = 0; r < g->n_ranks && rc == 0; r++) {
        rc = find_points(&c, r, model, coarse, err);
        if (rc == 0 && (find_families(&c, r, model, &coarse->ranks[r]) < 0 ||
                        measure(&c, r, &coarse->ranks[r]) < 0))
            rc = dpro_error_nomem(err);
    }
    free(c.tensor_of);
    free(c.first_of);
    free(c.is_transfer);
    free(c.waits);
    array_fini(&c.entries);
    if (rc < 0)
        coarse_fini(coarse, g->n_ranks);
    return rc;
}

void coarse_fini(struct coarse *coarse, uint32_t n_ranks)
{
    for (uint32_t r = 0; coarse->ranks && r < n_ranks; r++) {
        array_fini(&coarse->ranks[r].sync_points);
        free(coarse->ranks[r].family);
        free(coarse->ranks[r].segments);
    }
    free(coarse->ranks);
    free(coarse->bucket_of);
    free(coarse->ready);
    free(coarse->server_of);
    free(coarse->sent_ns);
    *coarse = (struct coarse){.ranks = NULL};
}
