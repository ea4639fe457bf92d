/* What each op's time is spent on, times in groups, and pieces of them. */
#include "diagnose/causes.h"

#include "diagnose/pieces.h"
#include "graph/names/names.h"

bool names_executor(const struct dpro_graph *g, uint32_t name)
{
    return name_classify(strtab_get(&g->names, name), strtab_len(&g->names, name)) &
           NAME_EXECUTOR_CALL;
}

uint32_t *collectives_of(const struct dpro_graph *g, struct arena *arena)
{
    uint32_t *of = arena_array(arena, g->n_ops + (size_t)1, sizeof *of);
    struct pull pull = pull_make(g->n_ops, g->row, g->succ, arena);
    SCRATCH ARRAY(uint32_t) queue = {0};
    for (uint32_t c = 0; c < g->n_collectives; c++)
        EACH_OF (const struct graph_member, m, &g->members[g->collectives[c].first_member],
                 g->collectives[c].n_members) {
            of[m->arrival] = of[m->transfer] = c + 1;
            array_push(&queue, m->transfer);
        }
    for (int back = 1; back >= 0 && g->row; back--) { /* sends, too, that nothing waits for */
        const uint32_t *row = back ? pull.row : g->row, *ends = back ? pull.pred : g->succ;
        for (size_t at = 0; at < queue.n; at++)
            for (uint32_t e = row[queue.at[at]]; e < row[queue.at[at] + 1]; e++)
                if (of[ends[e]] == 0 && graph_is_of_message(g, ends[e])) {
                    of[ends[e]] = of[queue.at[at]];
                    array_push(&queue, ends[e]);
                }
    }
    return of;
}

static uint8_t work_of(const struct dpro_graph *g, uint32_t op, bool on_gpu_rank,
                       const uint8_t *of_names)
{
    uint32_t kind = g->kind[op], device = g->device[op];
    int device_kind = device == DPRO_NO_DEVICE ? -1 : g->devices[device].kind;
    bool on_gpu = (g->flags[op] & GRAPH_OP_GPU) || device_kind == DPRO_DEVICE_GPU_STREAM;
    if (kind >= DPRO_OP_IN)
        return WORK_NONE;
    if (graph_is_of_message(g, op))
        return WORK_TRANSFER;
    if (kind == DPRO_OP_INPUT || g->phase[op] == DPRO_OP_INPUT)
        return WORK_INPUT;
    if ((kind >= DPRO_OP_SEND && kind <= DPRO_OP_REDUCE) || kind == DPRO_OP_COLLECTIVE ||
        device_kind > DPRO_DEVICE_GPU_STREAM)
        return WORK_TRANSFER;
    if (kind == DPRO_OP_COPY)
        return WORK_COPY;
    if (kind == DPRO_OP_LAUNCH)
        return of_names[2 * g->name[op] + on_gpu_rank];
    return on_gpu || !on_gpu_rank ? WORK_COMPUTE : WORK_LAUNCH;
}

uint8_t *works_of(const struct dpro_graph *g, struct arena *arena)
{
    static const uint8_t of_calls[N_CALL_CLASSES] = {WORK_LAUNCH, WORK_SYNC, WORK_MEMORY, WORK_COPY,
                                                     WORK_LAUNCH};
    uint8_t *works = arena_array(arena, 2 * (size_t)g->n_ops + 1, 1);
    SCRATCH uint8_t *of_names = mem_array(2 * (g->names.n + (size_t)1), 1);
    for (uint32_t id = 0; id < g->names.n; id++) {
        /* of ranks without a GPU it asks for, or awaits, communication, or begins a graph */
        of_names[2 * id] = names_executor(g, id) ? WORK_COMPUTE : WORK_TRANSFER;
        of_names[2 * id + 1] = of_calls[call_classify(strtab_get(&g->names, id))];
    }
    for (uint32_t r = 0; r < g->n_ranks + g->n_servers; r++) {
        uint32_t first = g->ranks[r].first_op, end = first + g->ranks[r].n_ops;
        bool has_gpu = g->lacks_gpu != NULL;
        for (uint32_t op = first; op < end; op++)
            has_gpu |= (g->flags[op] & GRAPH_OP_GPU) && g->kind[op] <= DPRO_OP_UPDATE;
        for (uint32_t op = first; op < end; op++) {
            bool on_gpu = g->flags[op] & GRAPH_OP_GPU;
            works[op] = work_of(g, op, has_gpu, of_names);
            bool talks = g->device[op] != DPRO_NO_DEVICE &&
                         g->devices[g->device[op]].kind > DPRO_DEVICE_GPU_STREAM;
            bool asks = g->kind[op] == DPRO_OP_LAUNCH; /* for communication, when it gets there */
            bool moves = (works[op] == WORK_TRANSFER && !asks) || works[op] == WORK_INPUT;
            moves &= !g->of_stages; /* what a worker does before it asks for it isn't listed */
            talks &= !g->of_stages;
            works[g->n_ops + op] = moves    ? works[op]
                                   : talks  ? WORK_TRANSFER
                                   : on_gpu ? WORK_LAUNCH
                                            : WORK_GAP;
        }
    }
    return works;
}

bool lacks_cpu(const struct dpro_graph *g)
{
    bool launches = false, on_gpu = false;
    for (uint32_t op = 0; op < g->n_ops; op++) {
        bool gpu = g->flags[op] & GRAPH_OP_GPU;
        on_gpu |= gpu;
        launches |= !gpu && g->kind[op] <= DPRO_OP_LAUNCH && g->device[op] != DPRO_NO_DEVICE;
    }
    return on_gpu && !launches;
}

void groups_add(time_groups *groups, struct map *numbers, uint64_t key, uint32_t rank,
                uint32_t time)
{
    size_t at = (size_t)map_number(numbers, map_mix(key * 0x100000001b3u + rank + 1) | 1);
    if (at == groups->n)
        array_add(groups, .key = key, .rank = rank);
    array_push(&groups->at[at].times, time);
}

void groups_sum(time_groups *groups, const struct diagnosed *d, bool all, struct arena *arena)
{
    uint32_t n = d->n_iterations, n_ops = d->g->n_ops;
    EACH (struct time_group, group, *groups) {
        group->ns = arena_array(arena, n + (size_t)1, sizeof *group->ns);
        for (uint32_t i = 0; i < n; i++)
            EACH (const uint32_t, time, group->times) {
                uint32_t op = *time % n_ops;
                bool gap = *time >= n_ops;
                group->ns[i] = time_add(group->ns[i], all && !gap ? d->copies[i].dur_ns[op]
                                                                  : left_of(d, i, op, gap));
            }
        double sum = 0;
        for (uint32_t i = 0; i < n; i++)
            sum += (double)group->ns[i];
        group->mean_ns = (int64_t)(sum / MAX(n, 1));
    }
}

void groups_fini(time_groups *groups)
{
    EACH (struct time_group, group, *groups)
        array_fini(&group->times);
    array_fini(groups);
}

int64_t lower_median(int64_t *ns, size_t n)
{
    return n > 0 ? select_i64(ns, n, (n - 1) / 2) : 0;
}

bool gap_is_long(const struct diagnosed *d, uint32_t op)
{
    SCRATCH int64_t *ns = mem_array(d->n_iterations + (size_t)1, sizeof *ns);
    for (uint32_t i = 0; i < d->n_iterations; i++)
        ns[i] = left_of(d, i, op, true);
    return lower_median(ns, d->n_iterations) > d->iteration_ns / 20;
}

void piece_share(struct cause_found *found, const struct diagnosed *d, uint32_t time, uint32_t part,
                 const double *shares, bool one_for_all)
{
    uint32_t op = time % d->g->n_ops;
    bool gap = time >= d->g->n_ops, any = false;
    int64_t *ns = arena_array(found->arena, d->n_iterations + (size_t)1, sizeof *ns);
    for (uint32_t i = 0; i < d->n_iterations; i++) {
        double share = one_for_all ? *shares : shares[i];
        ns[i] = llround(share * (double)left_of(d, i, op, gap));
        any |= ns[i] != 0;
    }
    if (any)
        array_add(&found->pieces, .op = op, .part = part, .gap = gap, .ns = ns);
}

void piece_all(struct cause_found *found, uint32_t op, bool gap, uint32_t part)
{
    array_add(&found->pieces, .op = op, .part = part, .gap = gap);
}

uint32_t part_of_rank(struct cause_found *found, const struct diagnosed *d, uint32_t rank,
                      const bool *are)
{
    const struct dpro_graph *g = d->g;
    uint32_t n = 0, n_are = 0, host = are && g->rank_hosts ? g->rank_hosts[rank] : 0;
    for (uint32_t r = 0; are && g->rank_hosts && r < g->n_ranks; r++)
        if (g->rank_hosts[r] == host) {
            n++;
            n_are += are[r];
        }
    if (n > 1 && n_are == n && n < g->n_ranks)
        return found_part(found, g->n_ranks + (uint64_t)host + 1, "host of rank %d (%u ranks)",
                          g->ranks[host].rank, n);
    return found_part(found, rank + (uint64_t)1, "rank %d", g->ranks[rank].rank);
}

/* ---- ranks of the same work ---- */

ORDER(by_key, struct time_group, ASCENDING(key) ?: ASCENDING(rank));

void peers_make(struct peers *p, const struct diagnosed *d, uint32_t works, bool all,
                struct arena *arena)
{
    const struct dpro_graph *g = d->g;
    SCRATCH struct map counts = {0};
    SCRATCH uint64_t *keys = mem_array(2 * (size_t)g->n_ops + 1, sizeof *keys);
    p->by_stage = d->pipeline.dimension != DPRO_NO_DIMENSION && g->n_ranks > d->pipeline.n_stages;
    for (int pass = 0; pass < 2; pass++)
        for (uint32_t time = 0; time < 2 * g->n_ops; time++) {
            uint32_t op = time % g->n_ops, r = g->rank[op];
            bool gap = time >= g->n_ops;
            if (!of_works(d->works[time], works) || r >= g->n_ranks)
                continue;
            if (pass == 0) {
                uint64_t stage = p->by_stage ? d->pipeline.stage_of[r] : 0;
                keys[time] = map_mix(map_mix(g->name[op] + (stage << 32)) + d->works[time] * 64 +
                                     g->phase[op] * 2 + gap);
                map_add(&counts, map_mix(keys[time] + r + 1) | 1, 1);
            } else {
                uint64_t count = 0;
                map_get(&counts, map_mix(keys[time] + r + 1) | 1, &count);
                groups_add(&p->groups, &p->numbers, keys[time] ^ count, r, time);
            }
        }
    groups_sum(&p->groups, d, all, arena);
    array_sort(&p->groups, by_key);
}

void peers_fini(struct peers *p)
{
    groups_fini(&p->groups);
    map_fini(&p->numbers);
}

/* ---- names of parts, and where a cause is ---- */

uint32_t found_part(struct cause_found *found, uint64_t key, const char *format, ...)
{
    uint64_t number = map_first(&found->part_numbers, map_key(key), found->parts.n);
    if (number < found->parts.n)
        return (uint32_t)number;
    char name[256];
    va_list args;
    va_start(args, format);
    vsnprintf(name, sizeof name, format, args);
    va_end(args);
    array_push(&found->parts, arena_copy_string(found->arena, name, strlen(name)));
    return (uint32_t)number;
}

/* Those of n with that share of the largest one or more; returns how many. */
static uint32_t name_some(const double *of, uint32_t n, double least, uint32_t *which)
{
    double most = 0;
    uint32_t named = 0;
    for (uint32_t i = 0; i < n; i++)
        most = MAX(most, fabs(of[i]));
    for (uint32_t i = 0; i < n && most > 0; i++)
        if (fabs(of[i]) >= least * most)
            which[named++] = i;
    return named;
}

void cause_where(struct dpro_cause *cause, const struct dpro_graph *g, const double *of_rank,
                 const double *of_iteration, uint32_t n_iterations, double least,
                 struct arena *arena)
{
    uint32_t n_ranks = g->n_ranks + g->n_servers;
    SCRATCH uint32_t *which = mem_array(MAX(n_ranks, n_iterations) + (size_t)1, sizeof *which);
    int *ranks = arena_array(arena, n_ranks + (size_t)1, sizeof *ranks);
    int64_t *iterations = arena_array(arena, n_iterations + (size_t)1, sizeof *iterations);
    cause->n_ranks = name_some(of_rank, n_ranks, least, which);
    for (uint32_t i = 0; i < cause->n_ranks; i++)
        ranks[i] = g->ranks[which[i]].rank;
    uint32_t named = name_some(of_iteration, n_iterations, least, which);
    cause->n_iterations = g->sample_number && named <= n_iterations / 2 ? named : 0;
    for (uint32_t i = 0; i < cause->n_iterations; i++)
        iterations[i] = g->sample_number[which[i]];
    cause->ranks = ranks;
    cause->iterations = iterations;
}
