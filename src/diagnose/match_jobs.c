/* Which op of a trace is which of another.
 *
 * Each rank's ops fall into sequences: one for each thread and stream, as these run one op after
 * the other, and one for all that a kind of other device runs. The sequences are aligned. */
#include "diagnose/between_jobs.h"

#include "graph/ops/sequence_match.h"

struct matching {
    struct job_match *match;
    struct map sizes[2]; /* of collectives, by the string id of what their ops are of */
};

bool device_in_turn(const struct dpro_graph *g, uint32_t device)
{
    return device != DPRO_NO_DEVICE && (g->devices[device].kind == DPRO_DEVICE_CPU_THREAD ||
                                        g->devices[device].kind == DPRO_DEVICE_GPU_STREAM);
}

static void find_sizes(struct matching *m, int side)
{
    const struct dpro_graph *g = m->match->jobs[side];
    for (uint32_t c = 0; g->tensor && c < g->n_collectives; c++)
        if (g->collectives[c].n_members > 0)
            map_set(&m->sizes[side],
                    map_key(g->tensor[g->members[g->collectives[c].first_member].transfer]),
                    g->collectives[c].size_bytes);
}

/* What it does; of communication also how much, as another size is other work. */
static uint64_t key_of(const struct matching *m, int side, uint32_t op)
{
    const struct dpro_graph *g = m->match->jobs[side];
    uint64_t size = 0, key = map_text_key(strtab_get(&g->names, g->name[op]));
    if (g->tensor)
        map_get(&m->sizes[side], map_key(g->tensor[op]), &size);
    if (g->size_bytes && g->kind[op] >= DPRO_OP_SEND && g->kind[op] <= DPRO_OP_COLLECTIVE)
        size = map_mix(size) + g->size_bytes[op];
    return map_mix(key + size);
}

/* The ops of a rank that make a sequence: those of a device, or of all of its kind. */
struct sequence {
    uint32_t device; /* DPRO_NO_DEVICE: those of all of its kind */
    int kind;        /* -1: without a device */
    ARRAY(uint32_t) ops;
    ARRAY(uint64_t) keys;
    bool used;
};
typedef ARRAY(struct sequence) sequences;

static struct sequence *sequence_for(sequences *all, const struct dpro_graph *g, uint32_t device)
{
    int kind = device == DPRO_NO_DEVICE ? -1 : (int)g->devices[device].kind;
    uint32_t alone = device_in_turn(g, device) ? device : DPRO_NO_DEVICE;
    EACH (struct sequence, s, *all)
        if (s->device == alone && s->kind == kind)
            return s;
    array_add(all, .device = alone, .kind = kind);
    return &all->at[all->n - 1];
}

/* Whether what a thread does is the rest of an op that it called another one from: ops of one name
 * that only others without a gap are between. Else the rest of one would match a whole other. What
 * a timeline of stages lists is whole. */
static bool is_rest(const struct dpro_graph *g, const struct sequence *s, uint32_t op)
{
    enum { MOST = 64 };
    int64_t start_ns = g->seen_start_ns ? g->seen_start_ns[op] : 0;
    if (s->kind != DPRO_DEVICE_CPU_THREAD || g->of_stages || !g->seen_start_ns || !g->seen_dur_ns)
        return false;
    for (size_t i = s->ops.n; i-- > 0 && s->ops.n - i <= MOST;) {
        uint32_t before = s->ops.at[i];
        if (g->seen_dur_ns[before] <= 0 ||
            g->seen_start_ns[before] + g->seen_dur_ns[before] != start_ns)
            return false;
        if (g->name[before] == g->name[op])
            return i + 1 < s->ops.n;
        start_ns = g->seen_start_ns[before];
    }
    return false;
}

static void find_sequences(const struct matching *m, int side, const struct graph_rank *rank,
                           sequences *all)
{
    const struct dpro_graph *g = m->match->jobs[side];
    for (uint32_t op = rank->first_op; op < rank->first_op + rank->n_ops; op++) {
        struct sequence *s = sequence_for(all, g, g->device[op]);
        array_push(&s->keys, key_of(m, side, op) + is_rest(g, s, op));
        array_push(&s->ops, op);
    }
}

/* How many ops the two have in common, in whatever order. */
static uint32_t n_common(const struct sequence *x, const struct sequence *y)
{
    SCRATCH struct map left = {0};
    uint32_t n = 0;
    EACH (uint64_t, key, x->keys)
        map_add(&left, *key | 1, 1);
    EACH (uint64_t, key, y->keys) {
        uint64_t more = 0;
        if (map_get(&left, *key | 1, &more) && more > 0) {
            map_set(&left, *key | 1, more - 1);
            n++;
        }
    }
    return n;
}

static void align_ops(struct job_match *match, struct sequence *x, struct sequence *y)
{
    SCRATCH uint32_t *y_of_x = mem_alloc((x->ops.n + 1) * sizeof *y_of_x);
    match_sequences(x->keys.at, (uint32_t)x->keys.n, y->keys.at, (uint32_t)y->keys.n, y_of_x);
    x->used = y->used = true;
    if (y->device != DPRO_NO_DEVICE)
        match->devices[y->device] = x->device;
    for (size_t i = 0; i < x->ops.n; i++) {
        if (y_of_x[i] == UINT32_MAX)
            continue;
        match->other[0][x->ops.at[i]] = y->ops.at[y_of_x[i]];
        match->other[1][y->ops.at[y_of_x[i]]] = x->ops.at[i];
        match->n_matched++;
    }
}

/* Of the pairs not used yet, the one with the largest share of ops in common: a thread that does
 * what two do in the other job has more in common with the wrong one. NULL: none has any. */
static const uint32_t *most_alike(const sequences *a, const sequences *b, const uint32_t *common)
{
    const uint32_t *best = NULL;
    double most = 0;
    for (size_t i = 0; i < a->n * b->n; i++) {
        const struct sequence *x = &a->at[i / b->n], *y = &b->at[i % b->n];
        double share = x->used || y->used ? 0 : (double)common[i] / (double)(x->ops.n + y->ops.n);
        if (share > most) {
            most = share;
            best = &common[i];
        }
    }
    return best;
}

static void match_ranks(struct matching *m, const struct graph_rank *a, const struct graph_rank *b)
{
    sequences of_a = {0}, of_b = {0};
    find_sequences(m, 0, a, &of_a);
    find_sequences(m, 1, b, &of_b);
    SCRATCH uint32_t *common = mem_array(of_a.n * of_b.n + 1, sizeof *common);
    for (size_t i = 0; i < of_a.n * of_b.n; i++) {
        const struct sequence *x = &of_a.at[i / of_b.n], *y = &of_b.at[i % of_b.n];
        common[i] = x->kind == y->kind ? n_common(x, y) : 0;
    }
    for (const uint32_t *best; (best = most_alike(&of_a, &of_b, common));)
        align_ops(m->match, &of_a.at[(size_t)(best - common) / of_b.n],
                  &of_b.at[(size_t)(best - common) % of_b.n]);
    EACH (struct sequence, s, of_a)
        FREE_ALL(&s->ops, &s->keys);
    EACH (struct sequence, s, of_b)
        FREE_ALL(&s->ops, &s->keys);
    FREE_ALL(&of_a, &of_b);
}

static uint32_t next_kernel(const struct job_match *match, int side, uint32_t op, uint32_t *edge)
{
    const struct dpro_graph *g = match->jobs[side];
    for (; *edge < g->row[op + 1]; (*edge)++) {
        uint32_t to = g->succ[*edge];
        if ((g->flags[to] & GRAPH_OP_GPU) && match->other[side][to] == DPRO_NO_OP &&
            g->kind[to] != DPRO_OP_COLLECTIVE)
            return g->succ[(*edge)++];
    }
    return DPRO_NO_OP;
}

/* Kernels that are called otherwise, as by another version of a library, but launched by the same.
 */
static void match_launched(struct job_match *match)
{
    for (uint32_t op = 0; op < match->jobs[0]->n_ops; op++) {
        uint32_t other = match->other[0][op];
        if (other == DPRO_NO_OP || (match->jobs[0]->flags[op] & GRAPH_OP_GPU))
            continue;
        uint32_t edges[2] = {match->jobs[0]->row[op], match->jobs[1]->row[other]}, x, y;
        while ((x = next_kernel(match, 0, op, &edges[0])) != DPRO_NO_OP &&
               (y = next_kernel(match, 1, other, &edges[1])) != DPRO_NO_OP) {
            match->other[0][x] = y;
            match->other[1][y] = x;
            match->n_matched++;
        }
    }
}

struct job_match match_jobs(const struct dpro_graph *a, const struct dpro_graph *b,
                            struct arena *arena)
{
    struct job_match match = {.jobs = {a, b}};
    struct matching m = {.match = &match};
    for (int side = 0; side < 2; side++) {
        uint32_t n = match.jobs[side]->n_ops;
        match.other[side] = arena_alloc(arena, ((size_t)n + 1) * sizeof(uint32_t));
        memset(match.other[side], 0xff, n * sizeof(uint32_t));
        find_sizes(&m, side);
    }
    match.devices = arena_alloc(arena, ((size_t)b->n_devices + 1) * sizeof(uint32_t));
    memset(match.devices, 0xff, b->n_devices * sizeof(uint32_t));
    EACH_OF (const struct graph_rank, x, a->ranks, a->n_ranks + a->n_servers)
        EACH_OF (const struct graph_rank, y, b->ranks, b->n_ranks + b->n_servers)
            if (x->rank == y->rank)
                match_ranks(&m, x, y);
    match_launched(&match);
    FREE_ALL(&m.sizes[0], &m.sizes[1]);
    return match;
}
