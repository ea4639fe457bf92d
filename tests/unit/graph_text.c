/* Ops are collected first and added rank by rank, so that the text may name them in any order. */
#include "graph_text.h"

#include "case.h"
#include "graph_op.h"

enum { MOST_OPS = 256, MOST_EDGES = 1024, MOST_SAMPLES = 16 };

struct text_op {
    char name[32], device[32];
    int64_t samples[MOST_SAMPLES];
    int n_samples;
    int64_t gap_ns;
    int rank, kind;
    bool boundary;
    int64_t id;
};

struct text {
    struct text_op ops[MOST_OPS];
    int n_ops;
    struct {
        int from, to, next;
    } edges[MOST_EDGES];
    int n_edges;
};

static void give_up(const char *at)
{
    fprintf(stderr, "graph_of: cannot read '%s'\n", at);
    abort();
}

static const char *word(const char *at, char *out, size_t size)
{
    size_t n = 0;
    while (isalnum((unsigned char)*at) || *at == '_' || *at == '.')
        if (n + 1 < size)
            out[n++] = *at++;
        else
            give_up(at);
    out[n] = '\0';
    if (n == 0)
        give_up(at);
    return at;
}

static int kind_named(const char *name)
{
    for (int kind = 0; kind < DPRO_N_OP_KINDS; kind++)
        if (strcmp(name, dpro_op_kind_name((enum dpro_op_kind)kind)) == 0)
            return kind;
    give_up(name);
    return 0;
}

static const char *number(const char *at, int64_t *value)
{
    char *end;
    *value = strtoll(at, &end, 10);
    if (end == at)
        give_up(at);
    return end;
}

static const char *parse_op(struct text *t, const char *at, int *index)
{
    char name[32], kind[32];
    while (isspace((unsigned char)*at))
        at++;
    at = word(at, name, sizeof name);
    int i = 0;
    while (i < t->n_ops && strcmp(t->ops[i].name, name) != 0)
        i++;
    if (i == MOST_OPS)
        give_up(at);
    struct text_op *op = &t->ops[i];
    if (i == t->n_ops) {
        memcpy(op->name, name, sizeof name);
        t->n_ops++;
    }
    for (;;) {
        int64_t value;
        if (*at == ':') {
            op->n_samples = 0;
            do {
                at = number(at + 1, &value);
                op->samples[op->n_samples++] = value;
            } while (*at == '/' && op->n_samples < MOST_SAMPLES);
        } else if (*at == '+') {
            at = number(at + 1, &op->gap_ns);
        } else if (*at == '@') {
            at = word(at + 1, op->device, sizeof op->device);
        } else if (*at == '#') {
            at = number(at + 1, &value);
            op->rank = (int)value;
        } else if (*at == '!') {
            at = word(at + 1, kind, sizeof kind);
            op->kind = kind_named(kind);
        } else if (*at == '*') {
            op->boundary = true;
            op->kind = DPRO_OP_BARRIER;
            at++;
        } else {
            break;
        }
    }
    while (isspace((unsigned char)*at))
        at++;
    *index = i;
    return at;
}

static void parse(struct text *t, const char *at)
{
    while (*at) {
        int from, to;
        at = parse_op(t, at, &from);
        while ((at[0] == '-' || at[0] == '=') && at[1] == '>') {
            int next = at[0] == '=';
            at = parse_op(t, at + 2, &to);
            if (t->n_edges == MOST_EDGES)
                give_up(at);
            t->edges[t->n_edges].from = from;
            t->edges[t->n_edges].to = to;
            t->edges[t->n_edges++].next = next;
            from = to;
        }
        if (*at == ';')
            at++;
        else if (*at)
            give_up(at);
        while (isspace((unsigned char)*at))
            at++;
    }
}

static int64_t device_of(struct graph_builder *b, const struct text_op *op, char (*devices)[32],
                         int *n)
{
    if (!op->device[0])
        return DPRO_NO_DEVICE;
    for (int i = 0; i < *n; i++)
        if (strcmp(devices[i], op->device) == 0)
            return i;
    memcpy(devices[(*n)++], op->device, sizeof op->device);
    enum dpro_device_kind kind = op->device[0] == 'g'   ? DPRO_DEVICE_GPU_STREAM
                                 : op->device[0] == 'l' ? DPRO_DEVICE_LINK_TX
                                                        : DPRO_DEVICE_CPU_THREAD;
    return graph_builder_add_device(b, kind, op->rank, op->device);
}

static int64_t mean(const struct text_op *op)
{
    int64_t sum = 0;
    for (int s = 0; s < op->n_samples; s++)
        sum += op->samples[s];
    return op->n_samples ? sum / op->n_samples : 0;
}

static void add_samples(struct dpro_graph *g, const struct text *t)
{
    uint32_t n = 1;
    for (int i = 0; i < t->n_ops; i++)
        if ((uint32_t)t->ops[i].n_samples > n)
            n = (uint32_t)t->ops[i].n_samples;
    if (n == 1)
        return;
    g->n_samples = n;
    g->sample_dur_ns = arena_array(&g->arena, (size_t)n * g->n_ops, sizeof *g->sample_dur_ns);
    g->measured_ns = arena_array(&g->arena, n, sizeof *g->measured_ns);
    g->sample_number = arena_array(&g->arena, n, sizeof *g->sample_number);
    if (!g->sample_dur_ns || !g->measured_ns || !g->sample_number)
        abort();
    for (int i = 0; i < t->n_ops; i++)
        for (uint32_t s = 0; s < n; s++) {
            const struct text_op *op = &t->ops[i];
            g->sample_dur_ns[(size_t)s * g->n_ops + (size_t)op->id] =
                op->n_samples > 1 ? op->samples[s] : mean(op);
        }
}

struct dpro_graph *graph_of(const char *text)
{
    struct text *t = calloc(1, sizeof *t);
    char(*devices)[32] = calloc(MOST_OPS, sizeof *devices);
    struct graph_builder *b = graph_builder_create();
    if (!t || !b || !devices)
        abort();
    parse(t, text);
    int n_devices = 0, most_rank = 0;
    for (int i = 0; i < t->n_ops; i++)
        most_rank = t->ops[i].rank > most_rank ? t->ops[i].rank : most_rank;
    for (int rank = 0; rank <= most_rank; rank++)
        for (int i = 0; i < t->n_ops; i++) {
            struct text_op *from = &t->ops[i];
            if (from->rank != rank)
                continue;
            struct dpro_op op = {.kind = (enum dpro_op_kind)from->kind,
                                 .rank = rank,
                                 .device = (dpro_device_id)device_of(b, from, devices, &n_devices),
                                 .name = from->name,
                                 .dur_ns = mean(from),
                                 .gap_ns = from->gap_ns};
            from->id = add_op(b, &op, from->boundary ? GRAPH_OP_BOUNDARY : 0);
        }
    for (int e = 0; e < t->n_edges; e++)
        graph_builder_add_edge(b, (dpro_op_id)t->ops[t->edges[e].from].id,
                               (dpro_op_id)t->ops[t->edges[e].to].id, t->edges[e].next);
    struct dpro_graph *g = graph_builder_finish(b);
    add_samples(g, t);
    free(devices);
    free(t);
    KEEP(g, dpro_graph_destroy);
    return g;
}

uint32_t op_named(const struct dpro_graph *graph, const char *name)
{
    for (uint32_t op = 0; op < graph->n_ops; op++)
        if (strcmp(strtab_get(&graph->names, graph->name[op]), name) == 0)
            return op;
    give_up(name);
    return 0;
}

void add_collective(struct dpro_graph *g, const char *barrier, uint64_t size_bytes,
                    const char *members)
{
    char name[32];
    struct graph_member *all = arena_array(&g->arena, g->n_members + 64, sizeof *all);
    struct graph_collective *list = arena_array(&g->arena, g->n_collectives + 1, sizeof *list);
    if (!all || !list)
        abort();
    if (g->n_members)
        memcpy(all, g->members, g->n_members * sizeof *all);
    if (g->n_collectives)
        memcpy(list, g->collectives, g->n_collectives * sizeof *list);
    struct graph_collective *c = &list[g->n_collectives++];
    c->size_bytes = size_bytes;
    c->barrier = op_named(g, barrier);
    c->first_member = g->n_members;
    while (*members) {
        members = word(members, name, sizeof name);
        uint32_t arrival = op_named(g, name);
        members = word(members + 1, name, sizeof name);
        all[g->n_members++] =
            (struct graph_member){.arrival = arrival, .transfer = op_named(g, name)};
        if (*members)
            members++;
    }
    c->n_members = c->n_expected = g->n_members - c->first_member;
    g->members = all;
    g->collectives = list;
}

struct graph_memory *add_memory(struct dpro_graph *g)
{
    enum { MOST = 400 };
    g->memory = arena_array(&g->arena, g->n_ranks, sizeof *g->memory);
    for (uint32_t r = 0; r < g->n_ranks; r++) {
        struct graph_memory *m = &g->memory[r];
        m->source = DPRO_MEMORY_ALLOCATIONS;
        m->blocks = arena_array(&g->arena, MOST, sizeof *m->blocks);
        m->moments = arena_array(&g->arena, MOST, sizeof *m->moments);
        m->calls = arena_array(&g->arena, MOST, sizeof *m->calls);
    }
    return g->memory;
}

uint32_t add_block(struct graph_memory *m, uint64_t bytes, uint8_t category)
{
    m->blocks[m->n_blocks] = (struct graph_block){.size_bytes = bytes,
                                                  .category = category,
                                                  .taken = MEMORY_NONE,
                                                  .given = MEMORY_NONE,
                                                  .call = MEMORY_NONE};
    return m->n_blocks++;
}

void add_moment(struct graph_memory *m, uint32_t block, bool gives, uint32_t op, uint16_t share)
{
    *(gives ? &m->blocks[block].given : &m->blocks[block].taken) = m->n_moments;
    m->moments[m->n_moments++] =
        (struct graph_moment){.op = op, .share = share, .gives = gives, .block = block};
}

void take_in_op(struct dpro_graph *g, uint32_t block, const char *op, uint16_t share)
{
    add_moment(g->memory, block, false, op_named(g, op), share);
}

void give_in_op(struct dpro_graph *g, uint32_t block, const char *op, uint16_t share)
{
    add_moment(g->memory, block, true, op_named(g, op), share);
}

static uint64_t random_state;

uint32_t pick(uint32_t n)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((random_state >> 33) % n);
}

/* Each op of a device waits for the one before, in most cases in the next iteration, too. */
static void add_chain(struct graph_builder *b, const uint32_t *devices, uint32_t n, uint32_t device)
{
    uint32_t first = n, last = n;
    for (uint32_t op = 0; op < n; op++) {
        if (devices[op] != device)
            continue;
        if (last < n)
            graph_builder_add_edge(b, last, op, 0);
        first = first < n ? first : op;
        last = op;
    }
    if (last < n && pick(4))
        graph_builder_add_edge(b, last, first, 1);
}

struct dpro_graph *random_graph(uint64_t seed)
{
    static struct dpro_graph *last;
    dpro_graph_destroy(last);
    random_state = seed * 0x9e3779b97f4a7c15u + 1;
    struct graph_builder *b = graph_builder_create();
    uint32_t n_ops = pick(24) + 1, n_ranks = pick(3) + 1, n_devices = pick(4);
    uint32_t longest = pick(3) == 0 ? 3 : 20; /* few values: many ties */
    bool gaps = pick(2);
    for (uint32_t d = 0; d < n_devices; d++)
        graph_builder_add_device(b, d % 2 ? DPRO_DEVICE_GPU_STREAM : DPRO_DEVICE_CPU_THREAD,
                                 (int)(d % n_ranks), "d");
    static const enum dpro_op_kind kinds[] = {DPRO_OP_FW,   DPRO_OP_BW,         DPRO_OP_UPDATE,
                                              DPRO_OP_SEND, DPRO_OP_COLLECTIVE, DPRO_OP_INPUT};
    uint32_t place[32], devices[32];
    for (uint32_t op = 0; op < n_ops; op++) {
        devices[op] = n_devices && pick(5) ? pick(n_devices) : DPRO_NO_DEVICE;
        struct dpro_op add = {.kind = kinds[pick(6)],
                              .rank = (int)(op * n_ranks / n_ops),
                              .device = devices[op],
                              .name = "x",
                              .dur_ns = pick(longest),
                              .gap_ns = gaps && pick(3) == 0 ? pick(4) : 0};
        add_op(b, &add, 0);
    }
    /* edges follow a random order of the ops, so ids don't; or devices' ops are chains, by id */
    bool in_chains = pick(2);
    for (uint32_t op = 0; op < n_ops; op++)
        place[op] = op;
    for (uint32_t d = 0; in_chains && d < n_devices; d++)
        if (pick(4))
            add_chain(b, devices, n_ops, d);
    for (uint32_t i = n_ops; !in_chains && i > 1; i--) {
        uint32_t j = pick(i), swap = place[i - 1];
        place[i - 1] = place[j];
        place[j] = swap;
    }
    uint32_t n_edges = pick(2 * n_ops + 1);
    for (uint32_t e = 0; e < n_edges && n_ops > 1; e++) {
        uint32_t to = pick(n_ops - 1) + 1, from = pick(to);
        graph_builder_add_edge(b, place[from], place[to], 0);
    }
    uint32_t n_next = pick(3) == 0 ? 0 : pick(n_ops + 2);
    for (uint32_t e = 0; e < n_next; e++)
        graph_builder_add_edge(b, pick(n_ops), pick(n_ops), 1);
    struct dpro_graph *g = graph_builder_finish(b);
    last = g;
    return g;
}
