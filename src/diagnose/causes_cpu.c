/* What CPUs do beside computing, and what ranks compute twice. Each takes all that the rows before
 * it left. */
#include "diagnose/causes.h"

/* "cudaStreamSynchronize of aten::item in train.py(30): step", as far as it is known. */
static uint32_t part_of_op(struct cause_found *found, const struct dpro_graph *g, uint32_t op,
                           enum work sort)
{
    uint32_t name = g->name[op], where = g->where && sort == WORK_SYNC ? g->where[op] : 0;
    if (where == 0)
        return found_part(found, map_key(name), "%.200s", strtab_get(&g->names, name));
    return found_part(found, map_mix(name) + where, "%.100s of %.140s", strtab_get(&g->names, name),
                      strtab_get(&g->names, where));
}

void find_work(const struct diagnosed *d, struct cause_found *found, enum work sort)
{
    const struct dpro_graph *g = d->g;
    for (uint32_t time = 0; time < 2 * g->n_ops; time++) {
        uint32_t op = time % g->n_ops;
        if (d->works[time] == sort)
            piece_all(found, op, time >= g->n_ops, part_of_op(found, g, op, sort));
    }
}

/* A call that waits for the GPU, and the edge from the work that it awaits. */
void find_syncs(const struct diagnosed *d, struct cause_found *found)
{
    const struct dpro_graph *g = d->g;
    for (int next = 0; next < 2; next++) {
        const uint32_t *row = next ? g->next_row : g->row, *succ = next ? g->next_succ : g->succ;
        for (uint32_t op = 0; op < g->n_ops; op++)
            for (uint32_t e = row[op]; (g->flags[op] & GRAPH_OP_GPU) && e < row[op + 1]; e++) {
                uint32_t to = succ[e], device = g->device[to];
                if (device == DPRO_NO_DEVICE || g->devices[device].kind != DPRO_DEVICE_CPU_THREAD ||
                    (g->flags[to] & GRAPH_OP_GPU))
                    continue;
                array_add(&found->cuts, .from = op, .to = to, .next = next,
                          .part = part_of_op(found, g, to, WORK_SYNC));
            }
    }
}

/* ---- recomputation ---- */

enum { GRAM = 4, LEAST_NAMES = 3 }; /* ops in a row, of so many names */

/* Whether an op computes: not those that look at memory in another way, allocate or copy it, of
 * which autograd and FSDP call the same in passes forward and back, and which a forward pass that
 * is computed again has more of. */
static bool name_computes(const char *name)
{
    static const char others[] = " t transpose as_strided view slice select split narrow chunk "
                                 "expand permute reshape squeeze _unsafe_view _reshape_alias "
                                 "unsqueeze detach alias unbind split_with_sizes empty empty_like "
                                 "empty_strided resize_ resolve_conj copy_ to "
                                 "_to_copy clone contiguous zeros zero_ fill_ set_ cat ";
    char word[64];
    if (!text_begins(name, "aten::"))
        return false;
    int n = snprintf(word, sizeof word, " %s ", name + strlen("aten::"));
    return n >= (int)sizeof word || !strstr(others, word);
}

/* A rank's ops of a phase on one CPU thread that compute, in order, and autograd's own ones between
 * them; of what is cut, the first piece. */
typedef ARRAY(uint32_t) thread_ops;

static void list_thread(const struct dpro_graph *g, uint32_t rank, uint32_t device, uint32_t phase,
                        thread_ops *ops)
{
    const struct graph_rank *of = &g->ranks[rank];
    uint32_t last = 0, node = 0; /* names: of the op before, of autograd's */
    ops->n = 0;
    for (uint32_t op = of->first_op; op < of->first_op + of->n_ops; op++) {
        const char *name = strtab_get(&g->names, g->name[op]);
        bool is_node = strstr(name, "Backward") != NULL;
        if (g->device[op] != device || g->kind[op] != phase)
            continue;
        if (is_node ? g->name[op] != node : name_computes(name) && g->name[op] != last)
            array_push(ops, op);
        last = g->name[op];
        node = is_node ? last : node;
    }
}

/* 0: ops of too few names. */
static uint64_t gram_of(const struct dpro_graph *g, const uint32_t *ops)
{
    uint64_t key = 1;
    uint32_t n_names = 0;
    for (int i = 0; i < GRAM; i++) {
        bool is_new = true;
        for (int k = 0; k < i; k++)
            is_new &= g->name[ops[k]] != g->name[ops[i]];
        n_names += is_new;
        key = map_mix(key * 31 + g->name[ops[i]]);
    }
    return n_names >= LEAST_NAMES ? key | 1 : 0;
}

/* Ops of the backward pass that follow each other as ops of the forward pass do: autograd's own
 * ones do not. */
static void mark_recomputed(const struct dpro_graph *g, uint32_t rank, bool *are)
{
    SCRATCH struct map grams = {0};
    SCRATCH thread_ops ops = {0};
    for (uint32_t phase = DPRO_OP_FW; phase <= DPRO_OP_BW; phase++)
        for (uint32_t device = 0; device < g->n_devices; device++) {
            if (g->devices[device].kind != DPRO_DEVICE_CPU_THREAD ||
                g->devices[device].rank != g->ranks[rank].rank)
                continue;
            list_thread(g, rank, device, phase, &ops);
            for (size_t i = 0; i + GRAM <= ops.n; i++) {
                uint64_t gram = gram_of(g, ops.at + i);
                if (gram && phase == DPRO_OP_FW)
                    map_set(&grams, gram, 1);
                if (!gram || phase == DPRO_OP_FW || !map_get(&grams, gram, NULL))
                    continue;
                uint32_t last = ops.at[i + GRAM - 1];
                uint32_t end = i + GRAM < ops.n ? ops.at[i + GRAM] : last + 1;
                for (uint32_t op = ops.at[i]; op < end; op++)
                    are[op] |=
                        g->device[op] == device && (op <= last || g->name[op] == g->name[last]);
            }
        }
}

bool *recomputed_ops(const struct dpro_graph *g, struct arena *arena)
{
    bool *are = arena_array(arena, g->n_ops + (size_t)1, sizeof *are);
    for (uint32_t r = 0; r < g->n_ranks; r++)
        mark_recomputed(g, r, are);
    for (uint32_t op = 0; op < g->n_ops; op++)
        for (uint32_t e = g->row[op]; are[op] && e < g->row[op + 1]; e++)
            are[g->succ[e]] |= !(g->flags[op] & GRAPH_OP_GPU) &&
                               (g->flags[g->succ[e]] & GRAPH_OP_GPU) &&
                               g->kind[g->succ[e]] <= DPRO_OP_UPDATE;
    return are;
}

void find_recomputing(const struct diagnosed *d, struct cause_found *found)
{
    const struct dpro_graph *g = d->g;
    SCRATCH_ARENA struct arena scratch = {0};
    const bool *are = recomputed_ops(g, &scratch);
    for (uint32_t op = 0; op < g->n_ops; op++) {
        uint32_t part = are[op] ? part_of_rank(found, d, g->rank[op], NULL) : 0;
        if (are[op])
            piece_all(found, op, false, part);
        if (are[op] && !(g->flags[op] & GRAPH_OP_GPU))
            piece_all(found, op, true, part);
    }
}

/* ---- launches and gaps ---- */

/* By the range that the gap is in, the module whose op follows, or that op. */
static uint32_t part_of_gap(struct cause_found *found, const struct dpro_graph *g, uint32_t op)
{
    uint32_t where = g->where ? g->where[op] : 0, module = graph_module_of(g, op);
    if (where > 0)
        return found_part(found, map_key(where) ^ 4, "in %.120s", strtab_get(&g->names, where));
    if (module != MEMORY_NONE && strtab_len(&g->names, module) > 0)
        return found_part(found, map_key(module) ^ 2, "before ops of module %.100s",
                          strtab_get(&g->names, module));
    if (g->flags[op] & GRAPH_OP_BOUNDARY)
        return found_part(found, 1, "before the iteration's end");
    if (names_executor(g, g->name[op]))
        return found_part(found, 2, "before TensorFlow's executor runs the next graph");
    return found_part(found, map_key(g->name[op]), "before %.200s",
                      strtab_get(&g->names, g->name[op]));
}

/* Long gaps on threads; of ranks without a GPU all of them, as nothing is launched there. */
void find_gaps(const struct diagnosed *d, struct cause_found *found)
{
    const struct dpro_graph *g = d->g;
    SCRATCH bool *has_gpu = mem_array(g->n_ranks + (size_t)g->n_servers + 1, sizeof *has_gpu);
    for (uint32_t op = 0; op < g->n_ops; op++)
        has_gpu[g->rank[op]] |= (g->flags[op] & GRAPH_OP_GPU) != 0;
    bool told = !lacks_cpu(g);
    for (uint32_t op = 0; op < g->n_ops && told; op++) {
        if (d->works[g->n_ops + op] == WORK_GAP && (!has_gpu[g->rank[op]] || gap_is_long(d, op)))
            piece_all(found, op, true, part_of_gap(found, g, op));
    }
    if (g->of_stages)
        found->title = "gaps between the listed ops of workers";
}

void find_launches(const struct diagnosed *d, struct cause_found *found)
{
    static const char *const phases[] = {"forward", "backward", "update"};
    const struct dpro_graph *g = d->g;
    for (uint32_t time = 0; time < 2 * g->n_ops; time++) {
        uint32_t op = time % g->n_ops, phase = g->phase[op];
        if (d->works[time] == WORK_LAUNCH || d->works[time] == WORK_GAP)
            piece_all(found, op, time >= g->n_ops,
                      found_part(found, phase + UINT64_C(1), "%s",
                                 phase <= DPRO_OP_UPDATE ? phases[phase] : "between passes"));
    }
    if (g->of_stages)
        found->title = "delays before the listed ops of workers";
    else if (lacks_cpu(g))
        found->title = "GPUs wait for their CPUs, of which nothing was recorded";
}
