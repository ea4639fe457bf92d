/* What a rank's device holds while its ops run as replayed: the peak, when it is, and who holds it
 * (paper, section 4.1).
 *
 * Blocks are taken and given back within ops, so each moment has a time in the replay. One sweep
 * over the moments in time gives what is held. An iteration begins with what the one before left:
 * blocks that no moment takes. What an op does before its iteration begins or after it ends counts
 * as this iteration's. */

#include "replay/replay.h"

#define MOST_POINTS     2000u /* of a rank's timeline */
#define LEAST_POINTS    100u
#define MOST_OF_A_GRAPH 400000u /* points of all ranks */

struct timed_moment {
    int64_t at_ns;
    uint32_t moment;
};

struct sweep {
    struct arena arena;
    const struct dpro_graph *graph;
    const struct graph_memory *memory;
    const int64_t *start_ns, *end_ns; /* by op */
    struct timed_moment *moments;     /* in time */
    uint32_t n;
    uint64_t most_bytes; /* of a block: sums of all of them overflow nothing */
    uint32_t peak;       /* how many moments have passed at the peak */
};

static int64_t size_of(const struct sweep *s, const struct graph_block *block)
{
    return (int64_t)MIN(block->size_bytes, s->most_bytes);
}

static bool is_moment(const struct sweep *s, uint32_t i)
{
    const struct graph_moment *moment = &s->memory->moments[i];
    if (moment->block >= s->memory->n_blocks)
        return false;
    const struct graph_block *block = &s->memory->blocks[moment->block];
    if (!moment->gives)
        return block->taken == i;
    return block->given == i && (block->taken == MEMORY_NONE || block->taken < i);
}

static int64_t part_of(int64_t dur_ns, uint16_t share)
{
    return dur_ns / UINT16_MAX * share + dur_ns % UINT16_MAX * share / UINT16_MAX;
}

ORDER(by_time, struct timed_moment, ASCENDING(at_ns) ?: ASCENDING(moment));

/* One of an op that was not replayed comes right after the one before it; none gives back what was
 * not taken yet. */
static void time_moments(struct sweep *s)
{
    const struct graph_memory *m = s->memory;
    int64_t *at_ns = arena_array(&s->arena, (size_t)m->n_moments + 1, sizeof *at_ns);
    int64_t before_ns = INT64_MIN;
    bool in_order = true;
    for (uint32_t i = 0; i < m->n_moments; i++) {
        const struct graph_moment *moment = &m->moments[i];
        int64_t ns = before_ns;
        at_ns[i] = INT64_MIN;
        if (!is_moment(s, i))
            continue;
        if (moment->op < s->graph->n_ops)
            ns = s->start_ns[moment->op] +
                 part_of(s->end_ns[moment->op] - s->start_ns[moment->op], moment->share);
        uint32_t taken = moment->gives ? m->blocks[moment->block].taken : MEMORY_NONE;
        if (taken < i)
            ns = MAX(ns, at_ns[taken]);
        in_order &= ns >= before_ns;
        at_ns[i] = before_ns = ns;
        s->moments[s->n++] = (struct timed_moment){ns, i};
    }
    if (!in_order)
        qsort(s->moments, s->n, sizeof *s->moments, by_time);
    /* those that come before all ops that were replayed */
    uint32_t first = LOWER_BOUND(k, 0, s->n, s->moments[k].at_ns == INT64_MIN);
    for (uint32_t k = 0; k < first; k++)
        s->moments[k].at_ns = first < s->n ? MIN(s->moments[first].at_ns, 0) : 0;
}

static uint8_t category_of(const struct graph_block *block)
{
    return block->category < DPRO_N_MEMORY_CATEGORIES ? block->category : DPRO_MEMORY_OTHER;
}

/* The peak and the timeline: all moments, or of each of most / 2 parts of the time the one at which
 * most is held, and the last. */
static void sweep_moments(struct sweep *s, struct dpro_rank_memory *out, struct arena *arena)
{
    uint32_t most = MOST_OF_A_GRAPH / (s->graph->n_ranks + 1), base = 1;
    most = MIN(MOST_POINTS, MAX(LEAST_POINTS, most));
    struct dpro_memory_point now = {.at_ns = 0}, *points;
    int64_t first_ns = s->n ? s->moments[0].at_ns : 0, held = 0, most_of_part = 0, part = -1;
    int64_t length_ns = s->n ? (s->moments[s->n - 1].at_ns - first_ns) / (most / 2) + 1 : 1;
    out->points = points = arena_array(arena, MIN(s->n, most) + (size_t)4, sizeof *points);
    now.at_ns = MIN(first_ns, 0);
    EACH_OF (const struct graph_block, block, s->memory->blocks, s->memory->n_blocks)
        if (block->taken == MEMORY_NONE) {
            now.by_category[category_of(block)] += (uint64_t)size_of(s, block);
            held += size_of(s, block);
        }
    out->peak_bytes = (uint64_t)held;
    memcpy(out->by_category, now.by_category, sizeof now.by_category);
    points[0] = now;
    out->n_points = 1;
    for (uint32_t k = 0; k < s->n; k++) {
        const struct graph_moment *moment = &s->memory->moments[s->moments[k].moment];
        const struct graph_block *block = &s->memory->blocks[moment->block];
        int64_t size = moment->gives ? -size_of(s, block) : size_of(s, block);
        now.at_ns = s->moments[k].at_ns;
        now.by_category[category_of(block)] += (uint64_t)size;
        held += size;
        if (held > (int64_t)out->peak_bytes) {
            out->peak_bytes = (uint64_t)held;
            memcpy(out->by_category, now.by_category, sizeof now.by_category);
            s->peak = k + 1;
        }
        int64_t next = s->n <= most ? k : (now.at_ns - first_ns) / length_ns;
        if (next != part)
            base = out->n_points;
        bool is_highest = next != part || held > most_of_part;
        part = next;
        most_of_part = is_highest ? held : most_of_part;
        points[base + !is_highest] = now;
        out->n_points = base + 1 + !is_highest;
    }
}

/* ---- the peak ---- */

/* The narrowest range of a pass that holds the moment; whether that is a backward pass. */
static uint32_t innermost_call(const struct graph_memory *m, uint32_t moment, bool *backward)
{
    uint32_t found = MEMORY_NONE, least = UINT32_MAX;
    for (uint32_t c = 0; c < m->n_calls; c++) {
        const struct graph_call *call = &m->calls[c];
        for (int pass = 0; pass < 2; pass++) {
            uint32_t first = pass ? call->backward_first : call->forward_first;
            uint32_t last = pass ? call->backward_last : call->forward_last;
            if (first > moment || moment >= last || last - first > least)
                continue; /* of equally wide ones the inner comes later */
            found = c;
            least = last - first;
            *backward = pass;
        }
    }
    return found;
}

static enum dpro_op_kind phase_of(const struct dpro_graph *g, uint32_t op)
{
    uint8_t phase = op < g->n_ops ? g->phase[op] : DPRO_OP_BARRIER;
    if (phase <= DPRO_OP_INPUT)
        return phase;
    return (phase >= DPRO_OP_SEND && phase <= DPRO_OP_REDUCE) || phase == DPRO_OP_COLLECTIVE
               ? DPRO_OP_COLLECTIVE
               : DPRO_OP_BARRIER;
}

static void describe_peak(const struct sweep *s, struct dpro_rank_memory *r)
{
    const struct graph_memory *m = s->memory;
    r->peak_op = DPRO_NO_OP;
    r->peak_phase = DPRO_OP_BARRIER;
    if (s->peak == 0)
        return;
    uint32_t moment = s->moments[s->peak - 1].moment, op = m->moments[moment].op;
    bool backward = false;
    uint32_t call = innermost_call(m, moment, &backward);
    r->peak_ns = s->moments[s->peak - 1].at_ns;
    if (call != MEMORY_NONE)
        r->peak_module = strtab_get(&s->graph->names, m->calls[call].module);
    if (op >= s->graph->n_ops)
        return;
    r->peak_op = op;
    r->peak_phase = phase_of(s->graph, op);
    if (r->peak_phase == DPRO_OP_BARRIER && call != MEMORY_NONE)
        r->peak_phase = backward ? DPRO_OP_BW : DPRO_OP_FW;
}

/* ---- who holds it ---- */

static bool is_named(const struct graph_block *block)
{
    return block->name != 0 &&
           (block->category == DPRO_MEMORY_PARAMETER || block->category == DPRO_MEMORY_GRADIENT ||
            block->category == DPRO_MEMORY_STATE);
}

/* The length of a name less its last part, "blocks.0.norm" of "blocks.0.norm.weight". */
static size_t parent_length(const char *name, size_t len)
{
    const char *dot = memrchr(name, '.', len);
    return dot ? (size_t)(dot - name) : 0;
}

/* Modules that are called, or have parameters. */
static void list_modules(const struct sweep *s, struct strtab *modules)
{
    const struct graph_memory *m = s->memory;
    const struct strtab *names = &s->graph->names;
    for (uint32_t c = 0; c < m->n_calls; c++)
        strtab_copy(modules, names, m->calls[c].module);
    EACH_OF (const struct graph_block, block, m->blocks, m->n_blocks) {
        const char *name = strtab_get(names, block->name);
        if (is_named(block) && block->category == DPRO_MEMORY_PARAMETER)
            strtab_add(modules, name, parent_length(name, strtab_len(names, block->name)));
    }
}

/* The module that a block is of; STRTAB_NONE: of none. State has names like
 * "blocks.0.norm.weight.exp_avg". */
static uint32_t module_of(const struct sweep *s, const struct graph_block *block,
                          struct strtab *modules)
{
    const struct strtab *names = &s->graph->names;
    if (block->call < s->memory->n_calls)
        return strtab_copy(modules, names, s->memory->calls[block->call].module);
    if (!is_named(block))
        return STRTAB_NONE;
    const char *name = strtab_get(names, block->name);
    size_t len = parent_length(name, strtab_len(names, block->name));
    for (size_t part = len; part > 0; part = parent_length(name, part)) {
        uint32_t found = strtab_find(modules, name, part);
        if (found != STRTAB_NONE)
            return found;
    }
    bool of_model = strtab_find(modules, "", 0) != STRTAB_NONE;
    return strtab_add(modules, name, of_model && block->category == DPRO_MEMORY_STATE ? 0 : len);
}

ORDER(by_size, struct dpro_memory_holder,
      DESCENDING(size_bytes) ?: strcmp(x->module ? x->module : "", y->module ? y->module : "")
                             ?: ASCENDING(category) ?: COMPARE(!x->module, !y->module));

static void find_holders(struct sweep *s, struct dpro_rank_memory *out, struct arena *arena)
{
    const struct graph_memory *m = s->memory;
    struct strtab modules = {.n = 0};
    struct map numbers = {.n = 0};
    ARRAY(struct dpro_memory_holder) holders = {.n = 0};
    SCRATCH bool *held = mem_array((size_t)m->n_blocks + 1, sizeof *held);
    list_modules(s, &modules);
    for (uint32_t b = 0; b < m->n_blocks; b++)
        held[b] = m->blocks[b].taken == MEMORY_NONE;
    for (uint32_t k = 0; k < s->peak; k++) {
        const struct graph_moment *moment = &m->moments[s->moments[k].moment];
        held[moment->block] = !moment->gives;
    }
    for (uint32_t b = 0; b < m->n_blocks; b++) {
        const struct graph_block *block = &m->blocks[b];
        uint8_t category = category_of(block);
        if (!held[b])
            continue;
        uint32_t module = module_of(s, block, &modules);
        size_t number = (size_t)map_number(&numbers, map_key((uint64_t)module << 8 | category));
        if (number == holders.n) {
            struct dpro_memory_holder holder = {.category = category};
            if (module != STRTAB_NONE)
                holder.module = arena_copy_string(arena, strtab_get(&modules, module),
                                                  strtab_len(&modules, module));
            array_push(&holders, holder);
        }
        holders.at[number].n_blocks++;
        holders.at[number].size_bytes += (uint64_t)size_of(s, block);
    }
    array_sort(&holders, by_size);
    out->holders = arena_copy(arena, holders.at, holders.n, sizeof *out->holders);
    out->n_holders = (uint32_t)holders.n;
    FREE_ALL(&holders, &numbers);
    strtab_fini(&modules);
}

static void find_reserved(struct sweep *s, struct dpro_rank_memory *rank)
{
    uint32_t *order = arena_array(&s->arena, (size_t)s->n + 1, sizeof *order);
    for (uint32_t k = 0; k < s->n; k++)
        order[k] = s->moments[k].moment;
    struct reserved_memory reserved = reserved_memory(s->graph, s->memory, order, s->n);
    rank->allocator = reserved_settings(s->memory);
    rank->reserved_peak_bytes = reserved.peak_bytes;
    rank->refused_bytes = reserved.refused_bytes;
    rank->refused_op = reserved.refused_op;
}

static void sweep_rank(const struct dpro_graph *graph, const struct graph_memory *memory,
                       const int64_t *start_ns, const int64_t *end_ns, struct dpro_rank_memory *out,
                       struct arena *arena)
{
    struct sweep s = {.graph = graph, .memory = memory, .start_ns = start_ns, .end_ns = end_ns};
    size_t room = (size_t)memory->n_moments + 1;
    s.moments = arena_array(&s.arena, room, sizeof *s.moments);
    s.most_bytes = (uint64_t)INT64_MAX / (memory->n_blocks + UINT64_C(1));
    time_moments(&s);
    sweep_moments(&s, out, arena);
    describe_peak(&s, out);
    find_holders(&s, out, arena);
    if (memory->gpu)
        find_reserved(&s, out);
    arena_fini(&s.arena);
}

struct dpro_rank_memory *replay_memory(const struct dpro_graph *graph, const int64_t *start_ns,
                                       const int64_t *end_ns, struct arena *arena)
{
    static const struct graph_memory unknown = {.n_blocks = 0};
    struct dpro_rank_memory *all = arena_array(arena, (size_t)graph->n_ranks + 1, sizeof *all);
    for (uint32_t r = 0; r < graph->n_ranks; r++) {
        const struct graph_memory *memory = graph->memory ? &graph->memory[r] : &unknown;
        struct dpro_rank_memory *rank = &all[r];
        rank->rank = graph->ranks[r].rank;
        rank->source = memory->n_blocks ? memory->source : DPRO_MEMORY_UNKNOWN;
        rank->peak_op = rank->refused_op = DPRO_NO_OP;
        rank->peak_phase = DPRO_OP_BARRIER;
        if (rank->source >= DPRO_MEMORY_UNKNOWN)
            continue;
        rank->on_gpu = memory->gpu;
        rank->measured_peak_bytes = memory->measured_peak_bytes;
        rank->growth_bytes = memory->growth_bytes;
        rank->growth_since = memory->growth_since;
        rank->kept_bytes = memory->kept_bytes;
        rank->measured_reserved_bytes = memory->measured_reserved_bytes;
        rank->capacity_bytes = memory->capacity_bytes;
        sweep_rank(graph, memory, start_ns, end_ns, rank, arena);
    }
    return all;
}
