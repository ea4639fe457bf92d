/* The tensors of a model: the gradients that ranks reduce or exchange with parameter servers, in
 * the order in which they get ready on the first rank. */

#include "cost/program/cost.h"
#include "cost/program/evaluate.h"
#include "graph/names/names.h"

struct gradients_ready {
    int64_t when_ns;
    uint32_t from; /* tensor or exchange of the graph */
};

ORDER(by_ready, struct gradients_ready, ASCENDING(when_ns) ?: ASCENDING(from));

static void make_room(const struct dpro_graph *g, struct gradients_ready *order, size_t n,
                      struct dpro_model *model, struct coarse *coarse)
{
    struct arena *arena = &coarse->arena;
    if (n > 0)
        qsort(order, n, sizeof *order, by_ready);
    model->n_tensors = (uint32_t)n;
    model->tensors = arena_array(&model->arena, n, sizeof *model->tensors);
    coarse->bucket_of = arena_array(arena, n, sizeof *coarse->bucket_of);
    coarse->ready = arena_alloc(arena, n * g->n_ranks * sizeof *coarse->ready);
    coarse->n_buckets = g->n_collectives ? g->n_collectives : g->n_exchanges;
    coarse->first_of = arena_alloc(arena, coarse->n_buckets * sizeof(uint32_t));
    coarse->transfer_of = arena_array(arena, g->n_ops, sizeof *coarse->transfer_of);
    for (size_t i = 0; i < n * g->n_ranks; i++)
        coarse->ready[i] = DPRO_NO_OP;
    for (uint32_t b = 0; b < coarse->n_buckets; b++)
        coarse->first_of[b] = MODEL_NONE;
}

static void add_tensor(const struct dpro_graph *g, uint32_t t, uint32_t name, uint64_t size_bytes,
                       uint64_t held_bytes, uint32_t bucket, struct dpro_model *model,
                       struct coarse *coarse)
{
    const char *text = strtab_get(&g->names, name);
    text = arena_copy_string(&model->arena, text, strlen(text));
    model->tensors[t] = (struct model_tensor){text, size_bytes, t, held_bytes, 0};
    if (text_begins(text, WHOLE_BUCKET))
        model->whole_bytes = MAX(model->whole_bytes, size_bytes);
    coarse->bucket_of[t] = bucket;
    if (coarse->first_of[bucket] == MODEL_NONE)
        coarse->first_of[bucket] = t;
}

/* ---- all-reduces ---- */

/* A call that waits; one that asks for a collective leads to the rank's arrival. */
static bool is_wait(const struct dpro_graph *g, uint32_t op)
{
    bool asks = false;
    for (uint32_t e = g->row[op]; e < g->row[op + 1]; e++)
        asks |= (g->flags[g->succ[e]] & GRAPH_OP_ARRIVAL) != 0;
    return g->kind[op] == DPRO_OP_LAUNCH && !asks;
}

/* Follows what is computed with a transfer's result on its rank, in the iteration, up to an update
 * of weights. Yields whether that makes another unnamed tensor. */
static bool leads_to_tensor(const struct dpro_graph *g, uint32_t transfer, const uint8_t *makes,
                            uint8_t *seen, uint32_t *stack)
{
    uint32_t n = 0;
    stack[n++] = transfer;
    while (n > 0) {
        uint32_t from = stack[--n];
        for (uint32_t e = g->row[from]; e < g->row[from + 1]; e++) {
            uint32_t to = g->succ[e];
            if (makes[to] && from != transfer) /* else it waits for a stream */
                return true;
            bool waits = is_wait(g, to) || (g->flags[to] & GRAPH_OP_GPU);
            bool computes = g->kind[to] < DPRO_OP_UPDATE || g->kind[to] == DPRO_OP_LAUNCH;
            if (!computes || seen[to] || (from == transfer && !waits))
                continue; /* a thread that only happens to go on then */
            seen[to] = 1;
            stack[n++] = to;
        }
    }
    return false;
}

bool unnamed_are_gradients(const struct dpro_graph *g)
{
    SCRATCH_ARENA struct arena arena = {0};
    uint8_t *makes = arena_array(&arena, g->n_ops, 1), *seen = arena_array(&arena, g->n_ops, 1);
    uint32_t *stack = arena_alloc(&arena, (g->n_ops + (size_t)1) * sizeof *stack);
    bool leads = false, pytorch = g->framework && strcmp(g->framework, "pytorch") == 0;
    EACH_OF (const struct graph_tensor, tensor, g->tensors, g->n_tensors) {
        if (tensor->named || tensor->rank != 0 || tensor->collective == UINT32_MAX)
            continue;
        if (tensor->in != DPRO_NO_OP)
            makes[tensor->in] = 1;
        makes[g->members[g->collectives[tensor->collective].first_member].arrival] = 1;
    }
    for (uint32_t t = 0; t < g->n_tensors && pytorch && !leads; t++) {
        const struct graph_tensor *tensor = &g->tensors[t];
        if (tensor->named || tensor->rank != 0 || tensor->collective == UINT32_MAX)
            continue;
        uint32_t first = g->collectives[tensor->collective].first_member;
        leads = leads_to_tensor(g, g->members[first].transfer, makes, seen, stack);
    }
    return !leads;
}

static uint64_t name_key(const struct graph_tensor *t)
{
    return map_mix(((uint64_t)t->name << 32) ^ t->collective) | 1;
}

/* By tensor: its index among its rank's tensors in its collective. */
static uint32_t *find_places(const struct dpro_graph *g, struct arena *arena)
{
    uint32_t *places = arena_array(arena, g->n_tensors, sizeof *places);
    SCRATCH struct map counts = {0};
    for (uint32_t t = 0; t < g->n_tensors; t++) {
        const struct graph_tensor *tensor = &g->tensors[t];
        uint64_t key = map_key((uint64_t)tensor->rank << 32 | tensor->collective), n = 0;
        map_get(&counts, key, &n);
        places[t] = (uint32_t)n;
        map_set(&counts, key, n + 1);
    }
    return places;
}

static uint64_t place_key(const struct graph_tensor *t, uint32_t place)
{
    return map_mix(map_mix(((uint64_t)place << 32) ^ t->collective) ^ t->size_bytes) | 1;
}

static void mark_transfers(const struct dpro_graph *g, const struct graph_tensor *tensor,
                           struct coarse *coarse)
{
    const struct graph_collective *c = &g->collectives[tensor->collective];
    for (uint32_t m = c->first_member; m < c->first_member + c->n_members; m++)
        coarse->transfer_of[g->members[m].transfer] = 1 + tensor->collective;
    if (tensor->out != DPRO_NO_OP)
        coarse->transfer_of[tensor->out] = 1 + tensor->collective;
}

bool is_gradient(const struct dpro_graph *g, const struct graph_tensor *tensor, bool unnamed)
{
    if ((!tensor->named && !unnamed) || tensor->rank != 0 || tensor->collective == UINT32_MAX ||
        tensor->in == DPRO_NO_OP)
        return false;
    const struct graph_collective *bucket = &g->collectives[tensor->collective];
    return bucket->n_members == g->n_ranks && bucket->kind == DPRO_ALL_REDUCE;
}

/* By op: of an arrival on a GPU's stream, the last work of another stream that it waits for; of a
 * tensor's In, the op before it. */
static uint32_t *find_makers(const struct measured_replay *r, struct arena *arena)
{
    const struct dpro_graph *g = r->graph;
    const int64_t *end_ns = r->copies[r->first].end_ns;
    uint32_t *makers = arena_alloc(arena, g->n_ops * sizeof *makers);
    for (uint32_t op = 0; op < g->n_ops; op++)
        makers[op] = DPRO_NO_OP;
    for (uint32_t op = 0; op < g->n_ops; op++)
        for (uint32_t e = g->row[op]; e < g->row[op + 1] && g->device[op] != DPRO_NO_DEVICE; e++) {
            uint32_t to = g->succ[e];
            bool waits = g->flags[op] & GRAPH_OP_GPU && g->flags[to] & GRAPH_OP_ARRIVAL &&
                         g->device[to] != g->device[op];
            if ((waits || g->kind[to] == DPRO_OP_IN) &&
                (makers[to] == DPRO_NO_OP || end_ns[op] > end_ns[makers[to]]))
                makers[to] = op;
        }
    return makers;
}

/* What the thread of an op had last given that stream to do; DPRO_NO_OP: nothing. */
static uint32_t last_launched(const struct dpro_graph *g, uint32_t op, uint32_t stream)
{
    uint32_t first = g->ranks[g->rank[op]].first_op;
    for (uint32_t before = op + 1; before-- > first;)
        for (uint32_t e = g->row[before];
             e < g->row[before + 1] && g->device[before] == g->device[op]; e++)
            if (g->device[g->succ[e]] == stream)
                return g->succ[e];
    return DPRO_NO_OP;
}

/* After which op a tensor is ready: on a GPU the work that makes it, as the thread that asks for
 * its collective may be far ahead. */
static uint32_t ready_after(const struct measured_replay *r, const struct graph_tensor *tensor,
                            const uint32_t *makers)
{
    const struct dpro_graph *g = r->graph;
    const struct graph_collective *c = &g->collectives[tensor->collective];
    const int64_t *end_ns = r->copies[r->first].end_ns;
    if (tensor->rank >= c->n_members || tensor->rank >= g->n_ranks || tensor->in == DPRO_NO_OP)
        return tensor->in;
    uint32_t all = makers[g->members[c->first_member + tensor->rank].arrival];
    uint32_t from = makers[tensor->in];
    if (all == DPRO_NO_OP || g->rank[all] != tensor->rank)
        return tensor->in;
    uint32_t own = from == DPRO_NO_OP ? from : last_launched(g, from, g->device[all]);
    return own != DPRO_NO_OP && end_ns[own] < end_ns[all] ? own : all;
}

/* The first rank's gradients; the other ranks' are the same by their name, or by their place in the
 * collective where a session has all ranks' gradients in one graph, named after their ranks. */
static void from_collectives(const struct measured_replay *r, struct dpro_model *model,
                             struct coarse *coarse)
{
    const struct dpro_graph *g = r->graph;
    struct map by_name = {0}, by_place = {0};
    size_t n = 0;
    bool unnamed = unnamed_are_gradients(g);
    uint32_t *places = find_places(g, &coarse->arena);
    uint32_t *makers = find_makers(r, &coarse->arena);
    struct gradients_ready *order = arena_alloc(&coarse->arena, g->n_tensors * sizeof *order);
    for (uint32_t t = 0; t < g->n_tensors; t++)
        if (is_gradient(g, &g->tensors[t], unnamed))
            order[n++] = (struct gradients_ready){
                r->copies[r->first].end_ns[ready_after(r, &g->tensors[t], makers)], t};
    make_room(g, order, n, model, coarse);
    for (uint32_t i = 0; i < n; i++) {
        const struct graph_tensor *tensor = &g->tensors[order[i].from];
        add_tensor(g, i, tensor->name, tensor->size_bytes, tensor->held_bytes, tensor->collective,
                   model, coarse);
        model->tensors[i].maker = makers[tensor->in] + 1; /* DPRO_NO_OP is the largest number */
        map_set(&by_name, name_key(tensor), i);
        map_set(&by_place, place_key(tensor, places[order[i].from]), i);
    }
    for (uint32_t t = 0; t < g->n_tensors; t++) {
        const struct graph_tensor *tensor = &g->tensors[t];
        uint64_t number;
        if (!map_get(&by_name, name_key(tensor), &number) &&
            !map_get(&by_place, place_key(tensor, places[t]), &number))
            continue;
        mark_transfers(g, tensor, coarse);
        if (tensor->in != DPRO_NO_OP && tensor->rank < g->n_ranks)
            coarse->ready[tensor->rank * n + number] = ready_after(r, tensor, makers);
    }
    map_fini(&by_name);
    map_fini(&by_place);
}

/* ---- parameter servers ---- */

/* The last of the ops after which a rank pushes its parts; DPRO_NO_OP: none is seen. */
static uint32_t last_ready(const struct measured_replay *r, const struct graph_exchange *exchange,
                           uint32_t rank)
{
    const struct graph_exchange_end *ends = r->graph->exchange_ends + exchange->first_end;
    uint32_t last = DPRO_NO_OP;
    for (uint32_t i = 0; i < exchange->n_ends; i++)
        if (ends[i].rank == rank && ends[i].ready != DPRO_NO_OP &&
            (last == DPRO_NO_OP ||
             r->copies[r->first].end_ns[ends[i].ready] > r->copies[r->first].end_ns[last]))
            last = ends[i].ready;
    return last;
}

static void from_exchanges(const struct measured_replay *r, struct dpro_model *model,
                           struct coarse *coarse)
{
    const struct dpro_graph *g = r->graph;
    size_t n = g->n_exchanges;
    struct gradients_ready *order = arena_alloc(&coarse->arena, n * sizeof *order);
    coarse->exchange_of = arena_array(&coarse->arena, n, sizeof *coarse->exchange_of);
    for (uint32_t e = 0; e < n; e++) {
        uint32_t op = last_ready(r, &g->exchanges[e], 0);
        order[e] = (struct gradients_ready){r->copies[r->first].end_ns[op], e};
    }
    make_room(g, order, n, model, coarse);
    for (uint32_t t = 0; t < n; t++) {
        uint32_t e = coarse->exchange_of[t] = order[t].from;
        const struct graph_exchange *exchange = &g->exchanges[e];
        uint32_t bucket = exchange->collective < UINT32_MAX ? exchange->collective : e;
        add_tensor(g, t, exchange->name, exchange->size_bytes, 0, bucket, model, coarse);
        if (exchange->key > 0)
            model->tensors[t].key = exchange->key - 1;
        for (uint32_t rank = 0; rank < g->n_ranks; rank++)
            coarse->ready[rank * n + t] = last_ready(r, exchange, rank);
        for (uint32_t i = exchange->first_end; i < exchange->first_end + exchange->n_ends; i++)
            if (g->exchange_ends[i].pulled != DPRO_NO_OP)
                coarse->transfer_of[g->exchange_ends[i].pulled] = 1 + bucket;
    }
}

void find_gradients(const struct measured_replay *replay, struct dpro_model *model,
                    struct coarse *coarse)
{
    bool served = replay->graph->n_exchanges > 0;
    if (model->no_gradients)
        make_room(replay->graph, NULL, 0, model, coarse);
    else
        (served ? from_exchanges : from_collectives)(replay, model, coarse);
}

/* ---- gradients that each micro-batch of an iteration reduces ---- */

/* Whether the first rank computes forward between two of its ops, on what these are on. */
static bool is_forward_between(const struct measured_replay *r, uint32_t from, uint32_t to)
{
    const struct dpro_graph *g = r->graph;
    const int64_t *end_ns = r->copies[r->first].end_ns;
    bool found = false;
    for (uint32_t op = 0; op < g->n_ops && !found; op++)
        found = g->rank[op] == 0 && g->kind[op] == DPRO_OP_FW &&
                !((g->flags[op] ^ g->flags[from]) & GRAPH_OP_GPU) && end_ns[op] > end_ns[from] &&
                end_ns[op] < end_ns[to];
    return found;
}

void refuse_micro_batches(const struct dpro_model *model)
{
    uint32_t n = model->recorded ? model->recorded->graph->ranks[0].n_micro_batches : 0;
    if (n < 2 || model->n_tensors == 0 || model->n_tensors % n != 0)
        return;
    uint32_t of_one = model->n_tensors / n;
    for (uint32_t t = of_one; t < model->n_tensors; t++) {
        const struct model_tensor *tensor = &model->tensors[t], *before = tensor - of_one;
        if (tensor->size_bytes != before->size_bytes ||
            (t % of_one == 0 &&
             (tensor->maker == 0 || tensor[-1].maker == 0 ||
              !is_forward_between(model->recorded, tensor[-1].maker - 1, tensor->maker - 1))))
            return;
    }
    struct dpro_model once = *model;
    SCRATCH struct model_tensor *tensors = mem_alloc(model->n_tensors * sizeof *tensors);
    for (uint32_t t = 0; t < model->n_tensors; t++) {
        tensors[t] = model->tensors[t];
        tensors[t].size_bytes *= t >= model->n_tensors - of_one;
    }
    once.tensors = tensors;
    double less_ms = (double)(evaluate_once(model) - evaluate_once(&once)) / 1e6;
    fail_with(
        DPRO_EUSAGE,
        "the gradients are reduced %u times an iteration, after each micro-batch: no_sync() "
        "around all but the last leaves %u of them out, about %.3g ms an iteration; no bucket "
        "holds gradients of two micro-batches, so ask for buckets after that",
        n, n - 1, less_ms);
}
