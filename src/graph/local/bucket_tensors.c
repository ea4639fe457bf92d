/* Gradients, the buckets they travel in, and their In and Out ops (paper, section 3.1). What is
 * known of a bucket's gradients, best first:
 *
 * - dpro's recorder wrote the buckets (rank.json): each tensor is a parameter, by its name.
 * - DDP copies each gradient into its bucket and starts the collective after the last one, so the
 *   sizes of the copies between two starts add up to the bucket's size. Reduced buckets are copied
 *   back in the same order.
 * - Where gradients are views of buckets nothing is copied; what autograd accumulates stands for
 *   the copies.
 * - Without recorded shapes, what lies between two starts belongs to the second.
 * - Else a bucket stands for its gradients. */

#include "graph/local/local_edges.h"

struct copy {
    uint32_t span;
    uint32_t first, last; /* the span's ops */
    uint64_t numel;
    int64_t start_ns;
    bool used;
};

typedef ARRAY(struct copy) copy_array;

static uint64_t numel_of(const struct rank_build *rank, uint32_t span)
{
    uint32_t detail = rank->trace->spans[span].detail;
    return detail == NO_ID ? 0 : rank->trace->details[detail].numel;
}

/* The spans of a class (but not of `other`), in order of start, with their ops. */
static copy_array collect_copies(const struct rank_build *rank, uint32_t class, uint32_t other)
{
    enum { NESTED = 16 }; /* a span goes on after at most so many spans within it */
    copy_array copies = {0};
    for (uint32_t o = 0; o < rank->ops.n; o++) {
        const struct local_op *op = &rank->ops.at[o];
        uint32_t named = op->slice == NO_ID ? 0 : rank->classes[op->name];
        if (!(named & class) || (named & other) || (op->flags & GRAPH_OP_GPU))
            continue;
        uint32_t span = rank->slices.at[op->slice].span;
        size_t k = copies.n, oldest = copies.n > NESTED ? copies.n - NESTED : 0;
        while (k > oldest && copies.at[k - 1].span != span)
            k--;
        struct copy copy = {span, o, o, numel_of(rank, span), local_start(rank, o), false};
        if (k > oldest)
            copies.at[k - 1].last = o;
        else
            array_push(&copies, copy);
    }
    return copies;
}

struct start {
    uint32_t collective;
    int64_t start_ns;
};

typedef ARRAY(struct start) start_array;

ORDER(compare_starts, struct start, ASCENDING(start_ns) ?: ASCENDING(collective));

/* Whether it reduces whole numbers, as DDP counts which ranks used a parameter: no gradients. */
static bool reduces_counts(const struct rank_build *rank, const struct local_collective *coll)
{
    static const char *const types[] = {"int", "int32", "long", "long int", "int64"};
    uint32_t slice = rank->ops.at[coll->transfer].slice;
    uint32_t spans[] = {slice == NO_ID ? NO_ID : rank->slices.at[slice].span, coll->launch_span};
    for (int i = 0; i < 2; i++) {
        uint32_t detail = spans[i] == NO_ID ? NO_ID : rank->trace->spans[spans[i]].detail;
        const char *type =
            strtab_get(rank->names, detail == NO_ID ? 0 : rank->trace->details[detail].dtype);
        for (size_t k = 0; k < sizeof types / sizeof *types; k++)
            if (strcasecmp(type, types[k]) == 0)
                return true;
    }
    return false;
}

/* The collectives that reduce gradients, in the order in which they were asked for. */
static start_array collect_buckets(const struct rank_build *rank)
{
    start_array starts = {0};
    for (uint32_t c = 0; c < rank->collectives.n; c++) {
        const struct local_collective *coll = &rank->collectives.at[c];
        if (!collective_is_one(coll->kind, DPRO_ALL_REDUCE, DPRO_REDUCE_SCATTER, DPRO_PUSH_PULL) ||
            reduces_counts(rank, coll))
            continue;
        int64_t start = local_start(rank, coll->arrival);
        if (coll->launch_span != NO_ID) {
            start = rank->trace->spans[coll->launch_span].start_ns;
            if (rank->phases[coll->launch_span] != DPRO_OP_BW)
                continue; /* asked for outside of backward: no gradient */
        }
        array_add(&starts, c, start);
    }
    array_sort(&starts, compare_starts);
    return starts;
}

static bool in_backward_function(const struct rank_build *rank, uint32_t op)
{
    uint32_t span = rank->slices.at[rank->ops.at[op].slice].span;
    return build_within(rank, span, NAME_BACKWARD) != NO_ID;
}

/* The optimizer's work on the device or else on the CPU, in order of ops; latest_ns is the latest
 * start up to each. */
struct update {
    uint32_t op;
    int64_t latest_ns;
};
typedef ARRAY(struct update) update_array;

static update_array find_updates(const struct rank_build *rank, bool gpu)
{
    update_array updates = {0};
    int64_t latest = INT64_MIN;
    for (uint32_t o = 0; o < rank->ops.n; o++) {
        const struct local_op *op = &rank->ops.at[o];
        if (op->slice == NO_ID || op->phase != DPRO_OP_UPDATE || op->kind == DPRO_OP_LAUNCH ||
            gpu != ((op->flags & GRAPH_OP_GPU) != 0))
            continue;
        latest = MAX(latest, local_start(rank, o));
        array_add(&updates, o, latest);
    }
    return updates;
}

/* A tensor to be added: `from` -> In -> collective -> Out -> `to`; either end may be NO_ID. */
struct bucket_planned {
    struct local_tensor tensor; /* in and out are still missing */
    uint32_t from, to;
};

struct bucket_maker {
    struct rank_build *rank;
    copy_array in, out;
    size_t next_in, next_out;
    bool in_rows; /* copies out are in as many rows as there are buckets */
    uint32_t *before;
    update_array updates[2];   /* on the CPU, on the device */
    struct recorded_walk walk; /* recording NULL: there is none */
    ARRAY(struct bucket_planned) plan;
};

/* Where the thread began to need the bucket: the first op after autograd's last or after the bucket
 * before was copied back. */
static uint32_t first_use(const struct bucket_maker *m, uint32_t op)
{
    const struct rank_build *rank = m->rank;
    for (uint32_t before = m->before[op];
         before != NO_ID && rank->ops.at[before].slice != NO_ID &&
         !(rank->classes[rank->ops.at[before].name] & NAME_BUCKET_OUT) &&
         !in_backward_function(rank, before);
         before = m->before[op])
        op = before;
    return op;
}

/* The first work of the optimizer after the collective was asked for, on a stream for a collective
 * that runs on one. */
static uint32_t first_update(const struct bucket_maker *m, const struct local_collective *coll)
{
    const struct rank_build *rank = m->rank;
    const update_array *updates =
        &m->updates[(rank->ops.at[coll->transfer].flags & GRAPH_OP_GPU) != 0];
    int64_t after = local_start(rank, coll->arrival);
    size_t low = LOWER_BOUND(i, 0, updates->n, updates->at[i].latest_ns < after);
    return low < updates->n ? updates->at[low].op : NO_ID;
}

static void add_tensor(struct rank_build *rank, const struct bucket_planned *planned)
{
    const struct local_collective *coll = &rank->collectives.at[planned->tensor.collective];
    const struct local_tensor *tensor =
        local_add_tensor(rank, planned->tensor, planned->from, coll->transfer);
    local_add_edge(rank, tensor->in, coll->arrival, false, true);
    if (planned->to != NO_ID)
        local_add_edge(rank, tensor->out, planned->to, false, true);
}

/* The copies of one bucket: as many from `next` on as add up to it; where no sizes were recorded,
 * all up to `until`. 0 when they don't fit. */
static size_t take_copies(const copy_array *copies, size_t next, uint64_t numel, int64_t until)
{
    uint64_t sum = 0;
    size_t n = 0;
    while (next + n < copies->n && copies->at[next + n].start_ns <= until &&
           (sum < numel || copies->at[next + n].numel == 0))
        sum += copies->at[next + n++].numel;
    return sum == numel || sum == 0 ? n : 0;
}

/* Copies from the k-th on that follow one another: DDP looks at a bucket before it copies it. */
static size_t row_of_copies(const struct bucket_maker *m, size_t k)
{
    const struct rank_build *rank = m->rank;
    size_t n = k < m->out.n;
    for (; n > 0 && k + n < m->out.n; n++) {
        uint32_t before = m->before[m->out.at[k + n].first];
        if (before == NO_ID || !(rank->classes[rank->ops.at[before].name] & NAME_BUCKET_OUT))
            break;
    }
    return n;
}

static bool copies_in_rows(const struct bucket_maker *m, size_t n_buckets)
{
    size_t n = 0;
    for (size_t k = 0; k < m->out.n; k += row_of_copies(m, k))
        n++;
    return n == n_buckets;
}

/* The next unused copy of a size among n; NULL: none. */
static struct copy *take_one(copy_array *copies, size_t next, size_t n, uint64_t numel)
{
    for (size_t i = next; i < next + n && i < copies->n; i++) {
        struct copy *copy = &copies->at[i];
        if (!copy->used && copy->numel == numel) {
            copy->used = true;
            return copy;
        }
    }
    return NULL;
}

static void plan_one(struct bucket_maker *m, uint32_t collective, uint32_t name, uint64_t bytes,
                     struct copy *in, struct copy *out, uint32_t use)
{
    struct rank_build *rank = m->rank;
    const struct local_collective *coll = &rank->collectives.at[collective];
    bool whole = !in && name == 0 && coll->kind != DPRO_PUSH_PULL;
    struct bucket_planned one = {
        {.name = name, .output = whole, .size_bytes = bytes, .collective = collective}, NO_ID, use};
    uint32_t made = in                         ? in->last
                    : coll->launch_op != NO_ID ? m->before[coll->launch_op]
                                               : NO_ID; /* it was there when it was asked for */
    if (made != NO_ID && local_holds(rank, made, coll->arrival, false, false))
        one.from = made;
    if (out && local_holds(rank, coll->transfer, out->first, false, false))
        one.to = out->first;
    array_push(&m->plan, one);
}

/* What the recorder knows: the bucket's parameters, one tensor each. Where gradients lie in the
 * bucket nothing is copied, and all that autograd had accumulated until the start stands for it. */
static void plan_recorded(struct bucket_maker *m, const struct start *start, size_t n_in,
                          size_t n_out, uint32_t use)
{
    const struct recording *recording = m->rank->trace->recording;
    size_t until = m->next_in;
    while (until < m->in.n && m->in.at[until].start_ns <= start->start_ns)
        until++;
    const struct local_collective *coll = &m->rank->collectives.at[start->collective];
    const struct recorded_bucket *bucket = &recording->buckets.at[coll->bucket];
    uint64_t item_bytes = coll->numel ? coll->size_bytes / coll->numel : 4;
    uint32_t n_found = 0;
    for (uint32_t i = 0; i < bucket->n; i++) {
        const struct recorded_parameter *p =
            &recording->parameters.at[recording->members.at[bucket->first + i]];
        struct copy *in = take_one(&m->in, m->next_in, until - m->next_in, p->numel);
        struct copy *out = take_one(&m->out, m->next_out, n_out, p->numel);
        if (!in) /* without recorded shapes */
            in = take_one(&m->in, m->next_in, until - m->next_in, 0);
        n_found += in != NULL;
        plan_one(m, start->collective, p->name, p->numel * item_bytes, in, out, use);
        if (p->size_bytes > p->numel * item_bytes)
            m->plan.at[m->plan.n - 1].tensor.held_bytes = p->size_bytes;
    }
    m->rank->n_bucket_conflicts += n_in > 0 && n_found < bucket->n;
    while (m->next_in < m->in.n && m->in.at[m->next_in].used)
        m->next_in++;
    m->next_out += n_out;
}

/* What the framework's graph says. Returns whether it does. */
static bool plan_nodes(struct bucket_maker *m, const struct start *start)
{
    struct rank_build *rank = m->rank;
    struct local_collective *coll = &rank->collectives.at[start->collective];
    node_tensors tensors = local_node_tensors(rank, coll->arrival);
    bool known = tensors.n > 0, sized = true;
    uint64_t sum = 0;
    for (size_t i = 0; i < tensors.n; i++) {
        sized &= tensors.at[i].size_bytes > 0;
        sum += tensors.at[i].size_bytes;
    }
    if (sized && coll->size_bytes == 0)
        coll->size_bytes = sum;
    EACH (const struct node_tensor, tensor, tensors) {
        bool holds =
            tensor->from != NO_ID && local_holds(rank, tensor->from, coll->arrival, false, false);
        array_add(&m->plan,
                  {.name = tensor->name,
                   .output = tensor->output,
                   .size_bytes = tensor->size_bytes,
                   .collective = start->collective},
                  holds ? tensor->from : NO_ID, NO_ID);
    }
    array_fini(&tensors);
    return known;
}

/* The bytes up to ~PART, which names a part of a tensor. */
static size_t tensor_length(const char *name)
{
    const char *part = strstr(name, "~PART");
    return part ? (size_t)(part - name) : strlen(name);
}

static bool is_same_tensor(const struct rank_build *rank, uint32_t a, uint32_t b)
{
    const char *x = strtab_get(rank->names, a), *y = strtab_get(rank->names, b);
    size_t len = tensor_length(x);
    return len == tensor_length(y) && memcmp(x, y, len) == 0;
}

/* A gradient that a worker of BytePS on PyTorch pushes, or a part of it, is handed over when
 * autograd has accumulated it: the first gradient of its size that is none of the others'. */
static void plan_exchange(struct bucket_maker *m, const struct start *start, const start_array *all)
{
    struct rank_build *rank = m->rank;
    const struct local_collective *coll = &rank->collectives.at[start->collective];
    struct bucket_planned one = {
        {.name = coll->group, .size_bytes = coll->size_bytes, .collective = start->collective},
        NO_ID,
        NO_ID};
    uint64_t numel = 0;
    for (size_t i = 0; i < all->n; i++) {
        const struct local_collective *other = &rank->collectives.at[all->at[i].collective];
        numel += is_same_tensor(rank, other->group, coll->group) ? other->numel : 0;
    }
    for (size_t i = 0; i < m->plan.n && one.from == NO_ID; i++)
        if (is_same_tensor(rank, m->plan.at[i].tensor.name, coll->group)) {
            one.from = m->plan.at[i].from;
            one.to = m->plan.at[i].to;
        }
    for (size_t i = 0; i < m->in.n && one.from == NO_ID; i++) {
        struct copy *in = &m->in.at[i];
        if (in->used || (in->numel && in->numel != numel))
            continue;
        in->used = true;
        one.from = in->last;
        one.to = local_nth_taken(rank, (uint32_t)i, (uint32_t)m->in.n);
    }
    if (one.to == NO_ID)
        one.to = first_update(m, coll);
    if (one.to != NO_ID && !local_holds(rank, coll->transfer, one.to, false, false))
        one.to = NO_ID;
    array_push(&m->plan, one);
}

/* What needs a bucket first, where that shows; NO_ID: it does not. */
static uint32_t find_use(struct bucket_maker *m, const struct local_collective *coll, size_t n_out)
{
    struct rank_build *rank = m->rank;
    if (coll->kind == DPRO_PUSH_PULL)
        return NO_ID; /* what takes it, the engine knows */
    uint32_t use = n_out > 0 ? first_use(m, m->out.at[m->next_out].first) : first_update(m, coll);
    if (use == NO_ID)
        return NO_ID;
    bool on_gpu = rank->ops.at[coll->transfer].flags & GRAPH_OP_GPU;
    bool holds = on_gpu ? local_add_if_holds(rank, coll->transfer, use, false)
                        : local_add_completion(rank, coll->transfer, use, n_out > 0);
    return holds ? use : NO_ID;
}

static void plan_bucket(struct bucket_maker *m, const struct start *start)
{
    struct rank_build *rank = m->rank;
    struct local_collective *coll = &rank->collectives.at[start->collective];
    if (plan_nodes(m, start))
        return;
    uint64_t item_bytes = coll->numel ? coll->size_bytes / coll->numel : 4;
    size_t n_in = take_copies(&m->in, m->next_in, coll->numel, start->start_ns);
    size_t n_out = coll->numel ? take_copies(&m->out, m->next_out, coll->numel, INT64_MAX) : 0;
    size_t n_row = coll->numel ? n_out : m->in_rows ? row_of_copies(m, m->next_out) : 0;
    uint32_t use = find_use(m, coll, n_row);
    m->next_out += n_row - n_out;
    bool sized =
        coll->numel || coll->size_bytes; /* else DDP's own have no mark around their call */
    if (m->walk.recording && coll->bucket == NO_ID && (sized || coll->call == 0))
        coll->bucket = recorded_walk_next(&m->walk, coll->numel, coll->size_bytes);
    if (coll->bucket != NO_ID && !sized) {
        coll->numel = m->walk.recording->buckets.at[coll->bucket].numel;
        coll->size_bytes = m->walk.recording->buckets.at[coll->bucket].size_bytes;
    }
    if (coll->bucket != NO_ID) {
        plan_recorded(m, start, n_in, n_out, use);
        return;
    }
    rank->n_bucket_conflicts += m->walk.recording && m->walk.recording->buckets.n > 0 && n_in > 0;
    if (n_in == 0) { /* a key of a parameter server is a parameter */
        bool exchanged = coll->kind == DPRO_PUSH_PULL;
        plan_one(m, start->collective, exchanged ? coll->group : 0, coll->size_bytes, NULL, NULL,
                 use);
        return;
    }
    for (size_t i = 0; i < n_in; i++) {
        struct copy *in = &m->in.at[m->next_in + i];
        struct copy *out = take_one(&m->out, m->next_out, n_out, in->numel);
        plan_one(m, start->collective, 0, in->numel * item_bytes, in, out, use);
    }
    m->next_in += n_in;
    m->next_out += n_out;
}

void build_tensors(struct rank_build *rank)
{
    struct bucket_maker m = {.rank = rank,
                             .in = collect_copies(rank, NAME_BUCKET_IN, 0),
                             .out = collect_copies(rank, NAME_BUCKET_OUT, 0),
                             .before = local_ops_before(rank),
                             .updates = {find_updates(rank, false), find_updates(rank, true)},
                             .walk = recorded_walk_begin(rank->trace, rank->names)};
    start_array starts = collect_buckets(rank);
    m.in_rows = copies_in_rows(&m, starts.n);
    if (m.in.n == 0)
        m.in = collect_copies(rank, NAME_ACCUMULATE, NAME_BACKWARD);
    for (size_t c = 0; c < rank->collectives.n; c++) /* of sharded models, gathers too */
        rank->collectives.at[c].bucket =
            recorded_unit_of(rank->names, rank->trace, rank->collectives.at[c].launch_span);
    for (size_t i = 0; i < starts.n; i++) {
        uint32_t arrival = rank->collectives.at[starts.at[i].collective].arrival;
        if (m.in.n > 0 && build_is_exchange(rank, arrival)) /* handed over by autograd */
            plan_exchange(&m, &starts.at[i], &starts);
        else
            plan_bucket(&m, &starts.at[i]);
    }
    /* virtual ops change the number of ops: only now that nobody looks at times by op any more */
    for (size_t i = 0; i < m.plan.n; i++)
        add_tensor(rank, &m.plan.at[i]);
    FREE_ALL(&m.before, &m.updates[0], &m.updates[1], &m.in, &m.out, &m.plan, &starts);
}
