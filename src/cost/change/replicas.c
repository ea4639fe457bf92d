/* Finds what of a job replicates, shards or splits, and how many of these a what-if asks for. */
#include "cost/change/replicas.h"

#include <dpro/dimensions.h>

#include "cost/program/cost.h"
#include "cost/program/sync.h"

/* With servers, of ranks to each of them. */
enum { MOST_RANKS = 65536, MOST_CONNECTIONS = 1 << 22 };

/* ---- what replicates ---- */

/* "dp 2 x tp 4" */
static void name_dimensions(const struct dpro_graph *g, char *text, size_t size)
{
    size_t n = 0;
    text[0] = '\0';
    for (uint32_t d = 0; d < g->n_dimensions && n < size; d++)
        n += (size_t)snprintf(
            text + n, size - n, "%s%s %u%s", d ? " x " : "",
            dpro_parallelism_name((enum dpro_parallelism)g->dimensions[d].parallelism),
            g->dimensions[d].size, g->dimensions[d].lies_over ? " (over others)" : "");
}

/* Whether the dimensions make a grid of all ranks. */
static bool is_grid(const struct dpro_graph *g, uint32_t world)
{
    uint64_t product = 1;
    bool whole = true;
    EACH_OF (const struct graph_dimension, dimension, g->dimensions, g->n_dimensions) {
        product *= dimension->lies_over ? 1 : dimension->size;
        whole &= dimension->lies_over || (uint64_t)dimension->n_groups * dimension->size == world;
    }
    return whole && product == world;
}

/* The job becomes one replica, where tensors or stages are all that its ranks split. */
static void add_replicas(const char *found, struct arena *arena, struct replicas *r)
{
    const struct dpro_graph *g = r->graph;
    struct dpro_graph *to = arena_alloc(arena, sizeof *to);
    const struct graph_dimension *first = &g->dimensions[0];
    uint32_t n = g->n_dimensions;
    for (uint32_t d = 0; d < n; d++)
        if (g->dimensions[d].parallelism != DPRO_TENSORS &&
            g->dimensions[d].parallelism != DPRO_STAGES)
            refuse("no dimension of the job (%s) replicates or shards the model, so its number of "
                   "ranks can't change; --dims overrules what was found",
                   found);
    for (uint32_t i = 0; i < g->n_ranks; i++)
        if (g->ranks[i].gradient_bytes == 0)
            refuse(
                "the job (%s) has no replicas, and the trace does not tell how large the gradients "
                "of rank %d are, which replicas would reduce: record it with 'dpro profile'",
                found, g->ranks[i].rank);
    *to = *g;
    to->n_dimensions = n + 1;
    to->dimensions = arena_array(arena, n + (size_t)1, sizeof *to->dimensions);
    memcpy(to->dimensions, g->dimensions, n * sizeof *to->dimensions);
    to->dimensions[n] = (struct graph_dimension){.parallelism = DPRO_REPLICATES,
                                                 .size = 1,
                                                 .n_groups = first->n_groups * first->size,
                                                 .ranks = first->ranks,
                                                 .evidence = ""};
    r->graph = to;
    r->dimension = n;
    r->before = 1;
    r->rest = r->world;
    r->reduces = true;
}

/* Shards of other groups of ranks: `replicas`, `shards`: the dimensions that there are of each, of
 * which `of` is the last. */
static void check_shards(const struct dpro_graph *g, uint32_t shards, uint32_t replicas,
                         uint32_t of)
{
    if (replicas > 0)
        refuse("the job has %u replicas of its shards, or of the model: --shard is "
               "for FSDP over all ranks; --dp asks for other numbers of replicas",
               g->dimensions[of].size);
    if (shards == 1)
        return;
    refuse("%s: --shard is for PyTorch's FSDP (fully_shard)",
           shards == 0 ? "no dimension of the job shards the model"
                       : "several dimensions of the job shard the model");
}

/* Replicas; where there are none, ranks that have a shard each. */
static void find_dimension(struct arena *arena, struct replicas *r)
{
    const struct dpro_graph *g = r->graph;
    char found[200];
    if (!g)
        refuse("other numbers of ranks need the graph of the job");
    const char *note = dpro_graph_dimensions_note(g);
    uint32_t n[2] = {0, 0}, of[2] = {0, 0};
    for (uint32_t d = 0; d < g->n_dimensions; d++) {
        bool replicates = g->dimensions[d].parallelism == DPRO_REPLICATES;
        bool shards = g->dimensions[d].parallelism == DPRO_SHARDS;
        if (g->dimensions[d].lies_over || (!replicates && !shards))
            continue;
        n[shards]++;
        of[shards] = d;
    }
    if (r->group > 0)
        check_shards(g, n[1], n[0], of[0]);
    name_dimensions(g, found, sizeof found);
    if (g->n_dimensions == 0 || !is_grid(g, r->world))
        refuse("other numbers of ranks can't be asked for: %s; --dims says how",
               *note ? note : "the trace does not tell how the job is parallel");
    if (n[0] + n[1] == 0) {
        add_replicas(found, arena, r);
        return;
    }
    if (n[n[0] == 0] > 1)
        refuse("several dimensions of the job (%s) could grow; say how it is parallel with --dims",
               found);
    r->shards = n[0] == 0;
    r->dimension = of[r->shards];
    r->before = g->dimensions[r->dimension].size;
    r->rest = r->world / r->before;
}

uint32_t replicas_shards(const struct replicas *r)
{
    return r->group > 0 ? r->group : r->after;
}

struct rank_share replicas_share(const struct rank_changes *ranks)
{
    const struct replicas *last = &ranks->of[ranks->n - 1], *splits = &ranks->of[0];
    return (struct rank_share){last->shards ? (double)last->before / replicas_shards(last) : 1,
                               splits->splits ? (double)splits->before / splits->after : 1,
                               splits->splits && splits->after == 1};
}

double parameters_share(const struct graph_block *blocks, uint32_t n, struct rank_share share)
{
    double all = 0, split = 0;
    EACH_OF (const struct graph_block, block, blocks, n)
        if (block->category == DPRO_MEMORY_PARAMETER && block->gather == 0) {
            all += (double)block->size_bytes;
            split += block->split ? (double)block->size_bytes : 0;
        }
    return all > 0 ? 1 + split / all * (share.tensors - 1) : 1;
}

/* ---- the grid of ranks ---- */

uint64_t replicas_number(const struct replicas *r, uint32_t stride, uint64_t rank, uint32_t place)
{
    uint64_t row = rank / stride, at = place == UINT32_MAX ? row % r->before : place;
    return (row / r->before * r->after + at) * stride + rank % stride;
}

uint32_t replicas_stride(const struct graph_dimension *d, uint32_t world)
{
    if (d->size < 2)
        return world;
    int64_t stride = (int64_t)d->ranks[1] - d->ranks[0];
    for (uint32_t i = 0; i < d->n_groups * d->size && stride > 0; i++)
        if (d->ranks[i] / stride % d->size != i % d->size)
            stride = 0;
    return (uint32_t)MAX(stride, 0);
}

/* Of each group of another dimension that has the first place in the one that changes, as many as
 * that will have places. */
static struct graph_dimension grow_dimension(const struct replicas *r, uint32_t d, uint32_t stride,
                                             struct arena *arena)
{
    struct graph_dimension to = r->graph->dimensions[d];
    const struct graph_dimension from = to;
    uint32_t n = 0;
    int *ranks =
        arena_array(arena, (size_t)from.n_groups * from.size * r->after + 1, sizeof *ranks);
    for (uint32_t g = 0; g < from.n_groups; g++) {
        const int *group = &from.ranks[(size_t)g * from.size];
        if ((uint64_t)group[0] / stride % r->before != 0 && d != r->dimension)
            continue;
        for (uint32_t p = 0; p < r->after; p++)
            for (uint32_t i = 0; i < (d == r->dimension ? 1 : from.size); i++)
                ranks[n++] = (int)replicas_number(r, stride, (uint64_t)group[i], p);
    }
    to.size = d == r->dimension ? r->after : from.size;
    to.n_groups = n / to.size;
    to.ranks = ranks;
    return to;
}

/* The job with other ranks that split tensors; only its dimensions and gradients are of it. */
static void grow_grid(const struct replicas *r, struct rank_share share, struct arena *arena,
                      struct dpro_graph **grown)
{
    const struct dpro_graph *g = r->graph;
    struct dpro_graph *to = *grown = arena_copy(arena, g, 1, sizeof *to);
    uint32_t stride = replicas_stride(&g->dimensions[r->dimension], r->world);
    to->ranks = arena_copy(arena, g->ranks, g->n_ranks, sizeof *to->ranks);
    to->dimensions = arena_array(arena, g->n_dimensions + (size_t)1, sizeof *to->dimensions);
    for (uint32_t d = 0; d < g->n_dimensions; d++) {
        if (g->dimensions[d].lies_over || stride == 0)
            refuse("Not supported together for this job's dimensions: --tp and other replicas; "
                   "give one");
        to->dimensions[d] = grow_dimension(r, d, stride, arena);
    }
    for (uint32_t i = 0; i < g->n_ranks; i++) {
        double bytes = parameters_share(g->memory[i].blocks, g->memory[i].n_blocks, share);
        to->ranks[i].gradient_bytes = (uint64_t)llround(bytes * (double)g->ranks[i].gradient_bytes);
    }
}

/* ---- what is split ---- */

/* Whether ranks can share out evenly what they split; what FSDP has shards of is not looked at. */
static void check_split(const struct dpro_graph *g, uint32_t rank, const struct replicas *r)
{
    const struct graph_memory *m = &g->memory[rank];
    uint64_t heads = (uint64_t)m->n_heads * r->before;
    if (heads % r->after != 0)
        refuse("attention has %llu heads, which %u ranks can't share out evenly: give a "
               "number that divides %llu",
               (unsigned long long)heads, r->after, (unsigned long long)heads);
    for (uint32_t b = 0; b < m->n_blocks && !job_dimension(g, DPRO_SHARDS); b++) {
        const struct graph_block *block = &m->blocks[b];
        uint64_t n = block->item_bytes > 0 ? block->size_bytes / block->item_bytes : 0;
        if (block->category == DPRO_MEMORY_PARAMETER && block->split && n * r->before % r->after)
            refuse("'%.200s' has %llu elements, which %u ranks can't share out evenly: give "
                   "a number that divides them",
                   strtab_get(&g->names, block->name), (unsigned long long)n * r->before, r->after);
    }
}

static void find_tensors(const struct dpro_graph *g, const struct dpro_changes *c,
                         struct replicas *r)
{
    char found[200];
    uint32_t n = 0;
    if (c->topology && (c->dp != 0 || c->world_size != 0 || c->shard != 0))
        refuse("Not supported together: --topology, --tp and other replicas; ask for "
               "one after the other");
    if (!g)
        refuse("another number of ranks that split tensors needs the graph of the job");
    name_dimensions(g, found, sizeof found);
    for (uint32_t d = 0; d < g->n_dimensions; d++)
        if (g->dimensions[d].parallelism == DPRO_TENSORS && !g->dimensions[d].lies_over) {
            r->dimension = d;
            n++;
        }
    if (n != 1 || !is_grid(g, r->world))
        refuse("--tp: for jobs with one dimension tp, in a grid of all ranks; this job has %s. "
               "--dims overrules that",
               found[0] ? found : "none that is known");
    r->splits = true;
    r->before = g->dimensions[r->dimension].size;
    r->after = c->tp;
    r->rest = r->world / r->before;
    if ((uint64_t)r->after * r->rest > MOST_RANKS)
        refuse("%llu ranks can't be predicted; %u can", (unsigned long long)r->after * r->rest,
               (unsigned)MOST_RANKS);
    for (uint32_t i = 0; i < g->n_ranks; i++) {
        if (!g->memory || g->memory[i].n_op_splits == 0)
            refuse("the trace does not show which of rank %d's work is on split tensors: 'dpro "
                   "profile' records it (et.json.gz, memory.json) of jobs that split them by "
                   "PyTorch's DTensor (parallelize_module)",
                   g->ranks[i].rank);
        check_split(g, i, r);
    }
}

static void check_groups(const struct replicas *r)
{
    if (r->group == 1)
        refuse("--shard 1: one rank alone shards nothing; give a number from 2 on");
    if (r->group == 0 || r->after % r->group == 0)
        return;
    refuse("the job shards over %u ranks, which are no whole number of groups of %u: give "
           "--world-size, too, a multiple of %llu",
           r->before, r->group, (unsigned long long)r->group * r->rest);
}

/* Replicas or shards, of r->graph. */
static void find_replicas(const struct dpro_changes *changes, const struct dpro_model *model,
                          struct arena *arena, struct replicas *r)
{
    bool grows = changes->world_size != 0 || changes->dp != 0;
    if (!grows && changes->shard == 0)
        return;
    if (changes->world_size != 0 && changes->dp != 0)
        refuse("give a number of ranks or one of replicas, not both");
    bool of_groups = model->n_communications > 0 || changes->shard > 0;
    if (of_groups)
        find_dimension(arena, r);
    uint64_t replica = (uint64_t)r->rest * MAX(r->group, 1);
    uint64_t n = !grows             ? (uint64_t)r->before * r->rest
                 : changes->dp != 0 ? changes->dp * replica
                                    : changes->world_size;
    if (changes->world_size % replica != 0)
        refuse("%u ranks are no whole number of replicas: the job's %s make up %llu ranks; "
               "give a multiple of that",
               changes->world_size, r->group == 0 ? "other dimensions" : "groups of shards",
               (unsigned long long)replica);
    uint32_t n_servers = sync_n_servers(&model->net);
    if (n_servers > 0 && changes->n_servers > 0)
        n_servers = changes->n_servers;
    unsigned most = MIN(MOST_RANKS, MOST_CONNECTIONS / MAX(n_servers, 1));
    if (grows && ((n < 2 && changes->tp == 0) || n > most))
        refuse("%llu rank%s%s can't be predicted; 2 to %u can", (unsigned long long)n,
               n == 1 ? "" : "s", n_servers > 1 ? " with so many parameter servers" : "", most);
    r->after = (uint32_t)(n / r->rest);
    check_groups(r);
}

void replicas_find(const struct dpro_graph *graph, const struct dpro_changes *changes,
                   const struct dpro_model *model, struct arena *arena, struct rank_changes *ranks)
{
    uint32_t n_ranks = MAX(model->n_ranks, model->net.collective.n_ranks);
    struct replicas *r = &ranks->of[0];
    struct dpro_graph *grown;
    *r = (struct replicas){n_ranks,
                           n_ranks,
                           1,
                           graph ? job_size(graph) : n_ranks,
                           UINT32_MAX,
                           .group = changes->shard,
                           .graph = graph};
    ranks->n = 1;
    if (changes->tp != 0) {
        find_tensors(graph, changes, r);
        r->group = 0;
        if (changes->dp == 0 && changes->world_size == 0 && changes->shard == 0)
            return;
        grow_grid(r, replicas_share(ranks), arena, &grown);
        ranks->n = 2;
        uint32_t world = r->after * r->rest;
        *++r = (struct replicas){
            world, world, 1, world, UINT32_MAX, .group = changes->shard, .graph = grown};
    }
    find_replicas(changes, model, arena, r);
}
