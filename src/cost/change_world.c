/* New replicas do what recorded ones do: a rank that was not recorded is a copy of one that was,
 * and a group within a replica is simulated once for all copies. Groups across replicas have more
 * members, which changes what they send. */
#include "cost/change_world.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include <dpro/dimensions.h>

#include "base/error.h"
#include "base/map.h"
#include "base/sort.h"
#include "base/text.h"
#include "cost/cost.h"
#include "cost/model_memory.h"
#include "cost/sync.h"

#define refuse(err, ...) dpro_error_set(err, DPRO_EUSAGE, __VA_ARGS__)

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
    for (uint32_t d = 0; d < g->n_dimensions; d++) {
        const struct graph_dimension *dimension = &g->dimensions[d];
        product *= dimension->lies_over ? 1 : dimension->size;
        whole &= dimension->lies_over || (uint64_t)dimension->n_groups * dimension->size == world;
    }
    return whole && product == world;
}

/* The job becomes one replica, where tensors or stages are all that its ranks split. */
static int add_replicas(const struct dpro_graph *g, const char *found, struct arena *arena,
                        struct replicas *r, struct dpro_error *err)
{
    struct dpro_graph *to = arena_alloc(arena, sizeof *to);
    const struct graph_dimension *first = &g->dimensions[0];
    uint32_t n = g->n_dimensions;
    for (uint32_t d = 0; d < n; d++)
        if (g->dimensions[d].parallelism != DPRO_TENSORS &&
            g->dimensions[d].parallelism != DPRO_STAGES)
            return refuse(err,
                          "no dimension of the job (%s) replicates or shards the model, and the "
                          "others can't be asked to change; --dims overrules what was found",
                          found);
    for (uint32_t i = 0; i < g->n_ranks; i++)
        if (g->ranks[i].gradient_bytes == 0)
            return refuse(err,
                          "the job (%s) has no replicas, and what they would reduce is not known: "
                          "nothing says how large the gradients of rank %d are, as the rank.json "
                          "of 'dpro profile' does",
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
    r->rest = job_size(g);
    r->reduces = true;
    return 0;
}

/* Shards of other groups of ranks: `replicas`, `shards`: the dimensions that there are of each, of
 * which `of` is the last. */
static int check_shards(const struct dpro_graph *g, uint32_t shards, uint32_t replicas, uint32_t of,
                        struct dpro_error *err)
{
    if (replicas > 0)
        return refuse(err,
                      "the job has %u replicas of its shards, or of the model: --shard is "
                      "for FSDP over all ranks; --dp asks for other numbers of replicas",
                      g->dimensions[of].size);
    if (shards == 1)
        return 0;
    return refuse(err, "%s: --shard is for PyTorch's FSDP (fully_shard)",
                  shards == 0 ? "no dimension of the job shards the model"
                              : "several dimensions of the job shard the model");
}

/* Replicas; where there are none, ranks that have a shard each. */
static int find_dimension(const struct dpro_graph *g, struct arena *arena, struct replicas *r,
                          struct dpro_error *err)
{
    char found[200];
    if (!g)
        return refuse(err, "other numbers of ranks need the graph of the job");
    uint32_t world = job_size(g), n[2] = {0, 0}, of[2] = {0, 0};
    for (uint32_t d = 0; d < g->n_dimensions; d++) {
        bool replicates = g->dimensions[d].parallelism == DPRO_REPLICATES;
        bool shards = g->dimensions[d].parallelism == DPRO_SHARDS;
        if (g->dimensions[d].lies_over || (!replicates && !shards))
            continue;
        n[shards]++;
        of[shards] = d;
    }
    int rc = r->group > 0 ? check_shards(g, n[1], n[0], of[0], err) : 0;
    if (rc < 0)
        return rc;
    name_dimensions(g, found, sizeof found);
    if (g->n_dimensions == 0 || !is_grid(g, world))
        return refuse(err, "other numbers of ranks can't be asked for: %s; --dims says how",
                      g->dimensions_note ? g->dimensions_note
                                         : "how the job is parallel is not known");
    if (n[0] + n[1] == 0)
        return add_replicas(g, found, arena, r, err);
    if (n[n[0] == 0] > 1)
        return refuse(err, "which dimension of the job (%s) is to grow is not clear", found);
    r->shards = n[0] == 0;
    r->dimension = of[r->shards];
    r->before = g->dimensions[r->dimension].size;
    r->rest = world / r->before;
    return 0;
}

/* Ranks that share out the parameters, where any do. */
static uint32_t count_shards(const struct replicas *r)
{
    return r->group > 0 ? r->group : r->after;
}

struct rank_share replicas_share(const struct replicas *r)
{
    return (struct rank_share){r->shards ? (double)r->before / count_shards(r) : 1,
                               r->splits ? (double)r->before / r->after : 1,
                               r->splits && r->after == 1};
}

/* ---- what is split ---- */

/* Whether ranks can share out evenly what they split; what FSDP has shards of is not looked at. */
static int check_split(const struct dpro_graph *g, uint32_t rank, const struct replicas *r,
                       struct dpro_error *err)
{
    const struct graph_memory *m = &g->memory[rank];
    uint64_t heads = (uint64_t)m->n_heads * r->before;
    if (heads % r->after != 0)
        return refuse(err,
                      "attention has %llu heads, which %u ranks can't share out evenly: give a "
                      "number that divides %llu",
                      (unsigned long long)heads, r->after, (unsigned long long)heads);
    for (uint32_t b = 0; b < m->n_blocks && !job_dimension(g, DPRO_SHARDS); b++) {
        const struct graph_block *block = &m->blocks[b];
        uint64_t n = block->item_bytes > 0 ? block->size_bytes / block->item_bytes : 0;
        if (block->category == DPRO_MEMORY_PARAMETER && block->split && n * r->before % r->after)
            return refuse(err,
                          "'%.200s' has %llu elements, which %u ranks can't share out evenly: give "
                          "a number that divides them",
                          strtab_get(&g->names, block->name), (unsigned long long)n * r->before,
                          r->after);
    }
    return 0;
}

static int find_tensors(const struct dpro_graph *g, const struct dpro_changes *c,
                        struct replicas *r, struct dpro_error *err)
{
    char found[200];
    uint32_t n = 0;
    if (c->dp != 0 || c->world_size != 0 || c->shard != 0)
        return refuse(err, "--tp changes the number of ranks, and so does %s: give one",
                      c->shard != 0 ? "--shard"
                      : c->dp != 0  ? "--dp"
                                    : "--world-size");
    if (!g)
        return refuse(err, "another number of ranks that split tensors needs the graph of the job");
    name_dimensions(g, found, sizeof found);
    for (uint32_t d = 0; d < g->n_dimensions; d++)
        if (g->dimensions[d].parallelism == DPRO_TENSORS && !g->dimensions[d].lies_over) {
            r->dimension = d;
            n++;
        }
    if (n != 1 || !is_grid(g, job_size(g)))
        return refuse(err,
                      "--tp: one dimension of the job has to split tensors, of a grid of all "
                      "ranks, and it has %s; --dims says how it is parallel",
                      found[0] ? found : "none that is known");
    r->splits = true;
    r->before = g->dimensions[r->dimension].size;
    r->after = c->tp;
    r->rest = job_size(g) / r->before;
    if ((uint64_t)r->after * r->rest > MOST_RANKS)
        return refuse(err, "%llu ranks can't be predicted; %u can",
                      (unsigned long long)r->after * r->rest, (unsigned)MOST_RANKS);
    for (uint32_t i = 0; i < g->n_ranks; i++) {
        if (!g->memory || g->memory[i].n_op_splits == 0)
            return refuse(err,
                          "the trace does not show what of rank %d's work is on split tensors: "
                          "'dpro profile' records it, of jobs that split them by PyTorch's DTensor "
                          "(parallelize_module), whole, in et.json.gz and memory.json",
                          g->ranks[i].rank);
        int rc = check_split(g, i, r, err);
        if (rc < 0)
            return rc;
    }
    return 0;
}

static int check_groups(const struct replicas *r, struct dpro_error *err)
{
    if (r->group == 1)
        return refuse(err, "--shard 1: one rank alone shards nothing; give a number from 2 on");
    if (r->group == 0 || r->after % r->group == 0)
        return 0;
    return refuse(err,
                  "the job shards over %u ranks, which are no whole number of groups of %u: give "
                  "--world-size, too, a multiple of %llu",
                  r->before, r->group, (unsigned long long)r->group * r->rest);
}

int replicas_find(const struct dpro_graph *graph, const struct dpro_changes *changes,
                  const struct dpro_model *model, struct arena *arena, struct replicas *r,
                  struct dpro_error *err)
{
    uint32_t n_ranks = MAX(model->n_ranks, model->net.collective.n_ranks);
    bool grows = changes->world_size != 0 || changes->dp != 0;
    *r =
        (struct replicas){n_ranks, n_ranks, 1, UINT32_MAX, .group = changes->shard, .graph = graph};
    if (changes->tp != 0)
        return find_tensors(graph, changes, r, err);
    if (!grows && changes->shard == 0)
        return 0;
    if (changes->world_size != 0 && changes->dp != 0)
        return refuse(err, "a number of ranks and one of replicas: give one");
    bool of_groups = model->n_communications > 0 || changes->shard > 0;
    int rc = of_groups ? find_dimension(graph, arena, r, err) : 0;
    if (rc < 0)
        return rc;
    uint64_t replica = (uint64_t)r->rest * MAX(r->group, 1);
    uint64_t n = !grows             ? (uint64_t)r->before * r->rest
                 : changes->dp != 0 ? changes->dp * replica
                                    : changes->world_size;
    if (changes->world_size % replica != 0)
        return refuse(err,
                      "%u ranks are no whole number of replicas: the job's %s make up %llu ranks; "
                      "give a multiple of that",
                      changes->world_size,
                      r->group == 0  ? "other dimensions"
                      : r->rest == 1 ? "groups of shards"
                                     : "groups of shards, with its other dimensions,",
                      (unsigned long long)replica);
    uint32_t n_servers = sync_n_servers(&model->net);
    if (n_servers > 0 && changes->n_servers > 0)
        n_servers = changes->n_servers;
    unsigned most = MIN(MOST_RANKS, MOST_CONNECTIONS / MAX(n_servers, 1));
    if (grows && (n < 2 || n > most))
        return refuse(err, "%llu rank%s%s can't be predicted; 2 to %u can", (unsigned long long)n,
                      n == 1 ? "" : "s", n_servers > 1 ? " with so many parameter servers" : "",
                      most);
    r->after = (uint32_t)(n / r->rest);
    return check_groups(r, err);
}

/* ---- ranks ---- */

struct world {
    const struct dpro_graph *g;
    const struct replicas *r;
    struct dpro_model *m;
    struct arena *arena;
    const struct topology *told; /* NULL: hosts are as the trace shows */
    const char *collectives;     /* how they pass over hosts; NULL: as recorded */
    const struct model_rank *recorded;
    uint32_t n_recorded;
    uint32_t size;        /* all ranks there will be */
    uint32_t stride;      /* from a rank's number to that of its like in the next replica */
    uint32_t *seen, turn; /* by host: the turn in which it was counted last */
    uint32_t *place;      /* by rank: the number of its replica */
    uint32_t *row;        /* by rank: which of its replica's ranks it is */
    uint32_t *new_of;     /* by rank: its number among those that are simulated; MODEL_NONE */
    bool assumes_host;    /* that the recorded ranks are on one */
    bool spreads;         /* what was on one host is on several */
    bool routes;          /* all-to-alls get more members */
    bool passes;          /* some collective passes over hosts as was asked for */
};

static int find_places(struct world *w, struct dpro_error *err)
{
    const struct dpro_model *m = w->m;
    struct map at = {0};
    const struct graph_dimension *d = NULL;
    if (w->r->dimension != UINT32_MAX) {
        d = &w->g->dimensions[w->r->dimension];
        for (uint32_t i = 0; i < d->n_groups * d->size; i++)
            map_set(&at, map_key((uint64_t)d->ranks[i]), i);
    }
    int rc = 0;
    for (uint32_t r = 0; r < m->n_ranks && rc == 0; r++) {
        uint64_t i = r;
        if (d && !map_get(&at, map_key((uint64_t)m->ranks[r].rank), &i))
            rc = refuse(err, "rank %d is in no replica: other numbers of ranks can't be asked for",
                        m->ranks[r].rank);
        w->place[r] = (uint32_t)(i % w->r->before);
        w->row[r] = (uint32_t)(i / w->r->before);
    }
    map_fini(&at);
    return rc;
}

/* ---- told hosts ---- */

/* The number that a rank will have in that place; MODEL_NONE: in its own. */
static uint64_t number_in(const struct world *w, uint64_t rank, uint32_t place)
{
    uint64_t row = rank / w->stride;
    uint64_t at = place == MODEL_NONE ? row % w->r->before : place;
    return (row / w->r->before * w->r->after + at) * w->stride + rank % w->stride;
}

/* How far the members of a dimension's groups are apart; of one, it is the outermost; 0: that
 * differs. */
static uint32_t stride_of(const struct dpro_graph *g, const struct graph_dimension *d)
{
    if (d->size < 2)
        return job_size(g);
    int64_t stride = (int64_t)d->ranks[1] - d->ranks[0];
    for (uint32_t i = 0; i < d->n_groups * d->size && stride > 0; i++)
        if (d->ranks[i] / stride % d->size != i % d->size)
            stride = 0;
    return (uint32_t)MAX(stride, 0);
}

/* Ranks that the trace has on one host the topology has there, too, and no others. */
static int check_told_hosts(const struct world *w, const uint32_t *hosts, struct dpro_error *err)
{
    uint32_t per_host = w->told->ranks_per_host;
    for (uint32_t r = 0; r < w->n_recorded; r++)
        for (uint32_t i = 0; i < r; i++) {
            int a = w->recorded[i].rank, b = w->recorded[r].rank;
            bool one = hosts[i] == hosts[r];
            if (one != ((uint32_t)a / per_host == (uint32_t)b / per_host))
                return refuse(err,
                              "the trace has ranks %d and %d on %s, but the topology, with %u "
                              "rank%s a host, puts them on %s: give one with the job's own "
                              "ranks_per_host",
                              a, b, one ? "one host" : "two hosts", per_host,
                              per_host == 1 ? "" : "s", one ? "two" : "one");
        }
    return 0;
}

/* How buckets of all ranks pass over hosts. */
static int ask_buckets(struct world *w, struct dpro_error *err)
{
    struct model_collective *collective = &w->m->net.collective;
    bool rings = strcmp(w->collectives, "ring") == 0;
    if (w->m->n_communications > 0 || strcmp(w->collectives, "tree") == 0)
        return rings ? 0
                     : refuse(err,
                              "gradients in buckets are known to pass over hosts in one ring, "
                              "and without other communication hierarchical: --collectives "
                              "%s can't be asked for",
                              w->collectives);
    w->passes = true;
    collective->algorithm = rings ? MODEL_RING : MODEL_HIERARCHICAL;
    collective->ranks_per_host = w->told->ranks_per_host;
    return 0;
}

/* What of gradients in buckets passes between hosts is known of rings only, and of these not where
 * ranks have other links, too. */
static int check_buckets(struct world *w, struct dpro_error *err)
{
    const struct model_net *net = &w->m->net;
    uint32_t per_host = w->told->ranks_per_host;
    enum model_algorithm algorithm = net->collective.algorithm;
    bool rings = algorithm == MODEL_RING || algorithm == MODEL_TREE ||
                 (algorithm == MODEL_DIRECT && w->r->before == 2); /* which can't be told apart */
    bool several = w->size > per_host && per_host > 1;
    if (algorithm == MODEL_SERVER)
        return refuse(err, "a topology is not for jobs with parameter servers: --bandwidth and "
                           "--server-bandwidth change their links");
    if (w->m->n_tensors == 0 || net->link.is_within)
        return 0;
    int rc = w->collectives && several ? ask_buckets(w, err) : 0;
    if (rc < 0)
        return rc;
    rings |= net->collective.algorithm == MODEL_HIERARCHICAL;
    if (w->m->n_communications > 0 ? w->size <= per_host || (several && net->link.own_links)
                                   : several && !rings)
        return refuse(err,
                      "what of the gradients' buckets passes between hosts of %u ranks is not "
                      "known: give --bandwidth in place of a topology",
                      per_host);
    return 0;
}

/* What the topology says has to fit the trace; where that does not tell hosts, the recorded ranks
 * are on one. */
static int take_told_hosts(struct world *w, struct dpro_error *err)
{
    struct model_net *net = &w->m->net;
    uint32_t per_host = w->told->ranks_per_host, n = w->g ? job_size(w->g) : w->n_recorded;
    if (!w->g && w->m->n_communications > 0)
        return refuse(err, "a topology needs the graph of the job");
    if (w->size > per_host && w->size % per_host != 0)
        return refuse(err,
                      "%u ranks are no whole number of hosts of %u ranks each, as the topology "
                      "has them",
                      w->size, per_host);
    if (w->g && w->g->rank_hosts && w->n_recorded == w->g->n_ranks)
        return check_told_hosts(w, w->g->rank_hosts, err);
    if (w->m->n_communications == 0)
        return 0;
    if (n > per_host)
        return refuse(err,
                      "the trace does not tell which of its %u ranks are on one host, and the "
                      "topology has %u there: how fast links within hosts are is not known",
                      n, per_host);
    if (w->size > per_host) /* else links stay as they were learnt: each rank's own */
        net->link.rank_hosts = arena_array(w->arena, w->n_recorded, sizeof *net->link.rank_hosts);
    net->link.is_within = net->learnt.is_within = w->assumes_host = true;
    return 0;
}

static void see_host(struct world *w, uint64_t number, uint32_t *n)
{
    uint64_t host = number / w->told->ranks_per_host;
    if (number >= w->size || w->seen[host] == w->turn)
        return;
    w->seen[host] = w->turn;
    ++*n;
}

/* How many members a group will have, and where: every step-th of each `of` neighbours. */
struct members {
    uint32_t n; /* 0: not known */
    uint32_t step, of;
};

static void see_hosts(struct world *w, uint64_t rank, uint32_t place, const struct members *m,
                      uint32_t *n_hosts)
{
    uint32_t first = place - place % m->of;
    for (uint32_t p = first + place % m->step; p < first + m->of; p += m->step)
        see_host(w, number_in(w, rank, p), n_hosts);
}

/* On how many hosts the members of each of the groups in that rank's row will be; 0: of some groups
 * on more than of others. */
static uint32_t hosts_in_row(struct world *w, uint64_t rank, const struct members *m)
{
    uint32_t n_hosts = 0;
    for (uint32_t p = 0; p < w->r->after; p++) {
        uint32_t n = 0;
        if (p % m->of >= m->step) /* of a group that has been seen */
            continue;
        w->turn++;
        see_hosts(w, rank, p, m, &n);
        if (p > 0 && n != n_hosts)
            return 0;
        n_hosts = n;
    }
    return n_hosts;
}

/* On how many hosts a group will be; 0: not known. */
static uint32_t count_hosts(struct world *w, const struct model_group *group,
                            const struct members *m)
{
    uint32_t n_hosts = 0;
    const struct graph_dimension *d =
        group->dimension != UINT32_MAX ? &w->g->dimensions[group->dimension] : NULL;
    uint32_t stride = d ? stride_of(w->g, d) : 0;
    if (m->n == w->size)
        return (m->n + w->told->ranks_per_host - 1) / w->told->ranks_per_host;
    /* of members that are not all known, one tells where its group is */
    uint32_t n_known = group->n_ranks != group->n_members && d ? 1 : group->n_ranks;
    w->turn++;
    for (uint32_t i = 0; i < n_known; i++) {
        uint64_t rank = (uint64_t)w->recorded[group->ranks[i]].rank;
        if (m->n != group->n_members) {
            see_hosts(w, rank, w->place[group->ranks[i]], m, &n_hosts);
        } else if (group->n_ranks == m->n) {
            see_host(w, number_in(w, rank, MODEL_NONE), &n_hosts);
        } else if (stride > 0) { /* not all of the dimension's group were recorded */
            uint64_t first = rank - rank / stride % d->size * stride;
            for (uint32_t k = 0; k < d->size; k++)
                see_host(w, number_in(w, first + (uint64_t)k * stride, MODEL_NONE), &n_hosts);
        }
    }
    return n_hosts;
}

/* Members of a group on each of several hosts, and the links to other hosts that they share. */
struct spread_out {
    double n, n_hosts, here, links;
    double within;  /* time of a byte within a host against that on a link to others */
    double latency; /* of a message, likewise */
};

static struct spread_out spread_of(const struct world *w, double n, double n_hosts)
{
    const struct topology *t = w->told;
    bool own = w->m->net.link.own_links;
    bool known = t->within.latency_ns > 0 && t->between.latency_ns > 0;
    return (struct spread_out){n,
                               n_hosts,
                               n / n_hosts,
                               own ? n / n_hosts : 1,
                               topology_rate(t, own) / told_rate(&t->within),
                               known ? fmin(1, t->within.latency_ns / t->between.latency_ns) : 1};
}

/* A ring over all members leaves each host once, by the links of all its members there, and is no
 * faster than a rank's link within the host. */
static struct traffic over_hosts(const struct world *w, const char *kind, struct traffic t,
                                 double n, double n_hosts)
{
    struct spread_out s = spread_of(w, n, n_hosts);
    double away = (n - s.here) / (n - 1);
    if (text_is_one(kind, "send", "recv", "send_recv"))
        return t;
    if (text_is_one(kind, "gather", "scatter"))
        return (struct traffic){t.share * away, t.n_steps};
    if (strcmp(kind, "all_to_all") == 0)
        return (struct traffic){t.share * away * s.here / s.links, t.n_steps};
    t.share *= fmax(1 / s.links, s.within);
    t.n_steps *= topology_latency(w->told, n, n_hosts);
    return t;
}

/* NCCL's: chains within hosts, double binary trees over them. */
static struct traffic tree_over_hosts(const struct world *w, double n, double n_hosts)
{
    struct spread_out s = spread_of(w, n, n_hosts);
    return (struct traffic){2 * fmax(1 / s.links, s.within),
                            2 * ((s.here - 1) * s.latency + ceil(log2(n_hosts)))};
}

/* Rings within hosts, and over hosts of the members with the same place on each, one after the
 * other. False: that kind of communication doesn't pass so. */
static bool hierarchical(const struct world *w, const char *kind, double n, double n_hosts,
                         struct traffic *t)
{
    struct spread_out s = spread_of(w, n, n_hosts);
    double inner = s.here - 1, outer = n_hosts - 1, n_steps = outer + inner * s.latency;
    double reduced = inner / s.here * s.within + outer / n_hosts / s.links;
    if (strcmp(kind, "all_gather") == 0)
        *t = (struct traffic){inner * n_hosts * s.within + outer * s.here / s.links, n_steps};
    else if (text_is_one(kind, "all_reduce", "reduce_scatter"))
        *t = kind[0] == 'a' ? (struct traffic){2 * reduced, 2 * n_steps}
                            : (struct traffic){reduced, n_steps};
    else
        return false;
    return true;
}

/* Where hosts are known, a copy is on a copy of its host. */
static void copy_hosts(const struct world *w, const uint32_t *old_of,
                       const struct model_rank *ranks, uint32_t n)
{
    struct model_link *link = &w->m->net.link;
    if (!link->rank_hosts)
        return;
    struct map first = {0};
    uint32_t *hosts = arena_array(w->arena, n, sizeof *hosts);
    for (uint32_t r = 0; r < n; r++) {
        uint32_t old = old_of[r];
        uint64_t host = w->told ? number_in(w, (uint64_t)w->recorded[old].rank, MODEL_NONE) /
                                      w->told->ranks_per_host
                                : link->rank_hosts[old];
        uint64_t of = r, key = host + ((uint64_t)ranks[r].copy << 32);
        if (!map_get(&first, map_key(key), &of))
            map_set(&first, map_key(key), r);
        hosts[r] = (uint32_t)of;
    }
    map_fini(&first);
    link->rank_hosts = hosts;
}

/* The memories that ranks of a smaller job still have. */
static void keep_memories(struct dpro_model *m, struct arena *arena)
{
    uint32_t *kept_as = arena_array(arena, m->n_memories + (size_t)1, sizeof *kept_as);
    struct model_memory *kept = arena_array(arena, m->n_memories, sizeof *kept);
    uint32_t n = 0;
    for (uint32_t r = 0; r < m->n_ranks && m->n_memories > 0; r++) {
        uint32_t *as = &kept_as[m->ranks[r].memory];
        if (*as == 0) {
            kept[n] = m->memories[m->ranks[r].memory];
            kept[n].rank = r;
            *as = ++n;
        }
        m->ranks[r].memory = *as - 1;
    }
    m->memories = kept;
    m->n_memories = n;
}

/* Of each of a replica's ranks the recorded ones, then their copies, one replica after the other.
 * Where not all of them were recorded, those that were stand for the others, too. */
static void copy_ranks(struct world *w)
{
    struct dpro_model *m = w->m;
    uint32_t n_rows = 0, most = 0, n = 0, n_old = m->n_ranks;
    for (uint32_t r = 0; r < n_old; r++)
        n_rows = MAX(n_rows, w->row[r] + 1);
    uint32_t *first = arena_array(w->arena, n_rows + (size_t)1, sizeof *first);
    uint32_t *of_row = arena_array(w->arena, n_old, sizeof *of_row);
    uint32_t *wanted = arena_array(w->arena, n_rows, sizeof *wanted);
    uint64_t total = 0;
    for (uint32_t r = 0; r < n_old; r++)
        first[w->row[r] + 1]++;
    for (uint32_t q = 0; q < n_rows; q++) {
        uint64_t here = (uint64_t)first[q + 1] * w->r->after;
        wanted[q] = (uint32_t)((here + w->r->before - 1) / w->r->before);
        most = MAX(most, wanted[q]);
        total += wanted[q];
        first[q + 1] += first[q];
    }
    uint32_t *n_in = arena_array(w->arena, n_rows, sizeof *n_in);
    struct model_rank *ranks = arena_array(w->arena, total, sizeof *ranks);
    uint32_t *old_of = arena_array(w->arena, total, sizeof *old_of);
    memset(w->new_of, 0xff, n_old * sizeof *w->new_of);
    for (uint32_t r = 0; r < n_old; r++) {
        uint32_t q = w->row[r];
        of_row[first[q] + n_in[q]] = r;
        if (n_in[q]++ >= wanted[q])
            continue;
        old_of[n] = r;
        ranks[n] = m->ranks[r];
        w->new_of[r] = n++;
    }
    int last = m->ranks[n_old - 1].rank;
    for (uint32_t p = 0; p < most; p++)
        for (uint32_t q = 0; q < n_rows; q++) {
            uint32_t n_here = n_in[q];
            if (p < n_here || p >= wanted[q])
                continue;
            uint32_t old = of_row[first[q] + p % n_here];
            old_of[n] = old;
            ranks[n] = m->ranks[old];
            ranks[n].rank = ++last;
            ranks[n].like = w->new_of[old];
            ranks[n++].copy = p / n_here;
        }
    copy_hosts(w, old_of, ranks, n);
    m->ranks = ranks;
    m->n_ranks = n;
    keep_memories(m, w->arena);
}

/* ---- groups ---- */

static bool is_ascending(const uint32_t *places, uint32_t n, uint32_t step)
{
    for (uint32_t i = 1; i < n; i++)
        if (places[i] - places[i - 1] != step)
            return false;
    return true;
}

/* One across all replicas, or across every n-th, grows with them; one of neighbouring replicas, or
 * within one, stays as it is. `room` is for all replicas. */
static struct members members_of(const struct world *w, const struct model_group *group,
                                 uint32_t *room)
{
    uint32_t n = 0, before = w->r->before, after = w->r->after;
    struct members same = {group->n_members, 1, after}, unknown = {0, 1, after};
    struct members grown = {(uint32_t)((uint64_t)group->n_members * after / before), 1, after};
    bool whole = group->n_ranks == group->n_members;
    if (before == after)
        return same;
    if (w->r->dimension == UINT32_MAX)
        return (struct members){after, 1, after};
    memset(room, 0, before * sizeof *room);
    for (uint32_t i = 0; i < group->n_ranks; i++)
        room[w->place[group->ranks[i]]] = 1;
    for (uint32_t p = 0; p < before; p++)
        if (room[p])
            room[n++] = p;
    if (!whole) { /* not all of its members were recorded */
        bool all = group->n_members == before && group->dimension == w->r->dimension;
        bool known = group->dimension != UINT32_MAX && group->dimension != w->r->dimension &&
                     !w->g->dimensions[group->dimension].lies_over;
        if (all || group->n_members == job_size(w->g))
            return grown;
        return known ? same : unknown;
    }
    if (n <= 1)
        return same;
    if (group->sends)
        return unknown;
    if (n == before)
        return grown;
    grown.step = room[1] - room[0];
    if (!is_ascending(room, n, grown.step))
        return unknown;
    if (grown.step == 1)
        return after % n == 0 ? same : unknown;
    return grown.step * n == before && after % grown.step == 0 ? grown : unknown;
}

static bool is_shard_gather(const struct world *w, const struct model_communication *c)
{
    return (w->r->shards || w->r->splits) && strcmp(c->kind, "all_gather") == 0 &&
           w->m->groups[c->group].dimension == w->r->dimension;
}

/* Of a group's members: how many, on how many hosts (0: not told), and the class of their links. */
struct extent {
    uint32_t n, n_hosts;
    bool within;
};

/* Of a collective: what it sends over a rank's link, of what each rank has, and in how many steps.
 * Where it gets more members, NCCL takes trees if they are faster than rings. */
static struct traffic grown_traffic(struct world *w, const struct model_communication *c,
                                    struct extent now, bool grows, double byte_ns,
                                    double message_ns)
{
    struct traffic ring = communication_traffic(c->kind, c->pattern, now.n), asked;
    struct traffic tree = {2, 2 * ceil(log2(now.n))};
    bool reduces = strcmp(c->kind, "all_reduce") == 0, over = now.n_hosts > 1;
    const char *how = over && now.n > now.n_hosts ? w->collectives : NULL;
    if (over) {
        ring = over_hosts(w, c->kind, ring, now.n, now.n_hosts);
        tree = tree_over_hosts(w, now.n, now.n_hosts);
    }
    bool other = how && hierarchical(w, c->kind, now.n, now.n_hosts, &asked);
    w->passes |= other && (reduces || strcmp(how, "tree") != 0);
    if (other && strcmp(how, "hierarchical") == 0)
        return asked;
    if (how && reduces)
        return strcmp(how, "tree") == 0 ? tree : ring;
    if (!grows || !w->m->net.link.own_links || now.n < 3 || !reduces)
        return ring;
    double size = (double)c->size_bytes;
    return tree.share * size * byte_ns + tree.n_steps * message_ns <
                   ring.share * size * byte_ns + ring.n_steps * message_ns
               ? tree
               : ring;
}

/* With links of the group's class as they were and as they are now. */
static void grow(struct world *w, struct model_communication *c, struct extent was,
                 struct extent is)
{
    const struct model_link *learnt = &w->m->net.learnt;
    double pace = w->m->net.took_ratio;
    double old_byte = was.within ? learnt->within_ns.value : learnt->byte_ns.value;
    double byte = is.within ? learnt->within_ns.value : learnt->byte_ns.value;
    double message = is.within ? learnt->within_message_ns.value : learnt->message_ns.value;
    struct model_cost cost = model_recorded_cost(c, old_byte, pace);
    struct traffic before = communication_traffic(c->kind, c->pattern, was.n);
    struct traffic now = grown_traffic(w, c, is, is.n != was.n, byte, message);
    double ratio = before.share > 0 ? now.share / before.share : 1;
    if (is_shard_gather(w, c)) {
        ratio *= (double)was.n / is.n;
        c->size_bytes = c->size_bytes * was.n / is.n;
    }
    double wire = old_byte > 0 ? cost.wire_ns * ratio * byte / old_byte : 0;
    double latency = fmax(0, cost.latency_ns + (now.n_steps - c->n_steps) * message);
    double bytes = byte > 0 ? wire / byte : c->link_bytes * ratio;
    c->more_steps += now.n_steps - c->n_steps;
    c->more_bytes += bytes - c->link_bytes;
    c->n_steps = now.n_steps;
    c->link_bytes = bytes;
    c->took_ns = (wire + latency) / pace;
}

#define UNKNOWN_GROUP                                                                              \
    "how a group of %u ranks that the job communicates in (%s, rank %d with it) changes with the " \
    "number of replicas is not known: %u can't be predicted"

#define UNKNOWN_HOSTS                                                                              \
    "on how many hosts a group of %u ranks that the job communicates in (%s, rank %d with it) "    \
    "will be, or what it sends between them, is not known"

/* Of a communication's group: as it was, and as it will be. */
struct group_change {
    const char *kind; /* of one of its communications */
    struct extent was, is;
};

/* `members`: those that it will have; NULL: as replicas grow. */
static int change_group(struct world *w, const struct model_group *group, struct group_change *c,
                        struct model_group *to, uint32_t *room, const struct members *members,
                        struct dpro_error *err)
{
    uint32_t *ranks = arena_array(w->arena, group->n_ranks, sizeof *ranks);
    const char *kind = c->kind ? c->kind : "nothing";
    int rank = w->recorded[group->ranks[0]].rank;
    *to = *group;
    to->ranks = ranks;
    to->n_ranks = 0;
    struct members are = members ? *members : members_of(w, group, room);
    to->n_members = are.n;
    if (are.n == 0)
        return refuse(err, UNKNOWN_GROUP, group->n_members, kind, rank, w->r->after);
    for (uint32_t k = 0; k < group->n_ranks; k++)
        if (w->new_of[group->ranks[k]] != MODEL_NONE)
            ranks[to->n_ranks++] = w->new_of[group->ranks[k]];
    c->was = (struct extent){.n = group->n_members, .within = group->within || w->spreads};
    c->is = (struct extent){.n = are.n, .within = group->within};
    if (w->told && to->n_ranks > 0) {
        c->is.n_hosts =
            members ? hosts_in_row(w, (uint64_t)rank, members) : count_hosts(w, group, &are);
        c->is.within = c->is.n_hosts == 1 && !w->m->net.link.is_within;
        if (c->is.n_hosts == 0)
            return refuse(err, UNKNOWN_HOSTS, are.n, kind, rank);
    }
    if (!w->told && are.n > c->was.n && w->m->net.link.rank_hosts)
        c->is.within = false;
    else if (!w->told && w->spreads)
        c->is.within = true;
    to->within = c->is.within;
    return 0;
}

static int change_communication(struct world *w, struct model_communication *c,
                                const struct group_change *group, struct dpro_error *err)
{
    const struct extent *was = &group->was, *is = &group->is;
    bool grows = is->n != was->n;
    bool halves = c->pattern && strcmp(c->pattern, "halving-doubling") == 0 && !w->collectives;
    w->routes |= grows && strcmp(c->kind, "all_to_all") == 0;
    if (is->n_hosts > 1 && is->n > is->n_hosts &&
        (halves || (w->collectives && is->n % is->n_hosts != 0)))
        return refuse(err, UNKNOWN_HOSTS, is->n, c->kind,
                      w->recorded[w->m->groups[c->group].ranks[0]].rank);
    if (is->n == 1 && w->r->splits) { /* nothing is split */
        c->took_ns = c->waits_ns = c->link_bytes = c->n_steps = 0;
        c->more_bytes = c->more_steps = 0;
    } else if (grows || is->n_hosts > 1 || is->within != was->within)
        grow(w, c, *was, *is);
    return 0;
}

/* ---- shards in groups of ranks ---- */

/* The number of the group of shards that a recorded rank is in. */
static uint32_t shards_of(const struct world *w, uint32_t rank)
{
    return w->place[rank] / w->r->group;
}

/* Ranks of a group of shards that share its host's link with one of them, each for its own part. */
static uint32_t count_sharing(const struct world *w, const struct model_group *group)
{
    const struct model_link *link = &w->m->net.link;
    uint32_t first = group->ranks[0], n = 0, base = shards_of(w, first) * w->r->group;
    uint64_t of = (uint64_t)w->recorded[first].rank;
    if (link->own_links)
        return 1;
    for (uint32_t k = 0; k < w->r->group && w->told; k++)
        n += number_in(w, of, base + k) / w->told->ranks_per_host ==
             number_in(w, of, MODEL_NONE) / w->told->ranks_per_host;
    for (uint32_t i = 0; i < group->n_ranks && !w->told && link->rank_hosts; i++)
        n += shards_of(w, group->ranks[i]) == shards_of(w, first) &&
             link->rank_hosts[group->ranks[i]] == link->rank_hosts[first];
    return MAX(n, 1);
}

/* Whether all that share out parameters are on one host, as far as the trace shows. */
static bool lies_within(const struct world *w, const struct model_group *group)
{
    const uint32_t *hosts = w->m->net.link.rank_hosts;
    for (uint32_t i = 0; hosts && i < group->n_ranks; i++)
        for (uint32_t k = 0; k < i; k++)
            if (shards_of(w, group->ranks[i]) == shards_of(w, group->ranks[k]) &&
                hosts[group->ranks[i]] != hosts[group->ranks[k]])
                return false;
    return hosts && w->r->before % w->r->group == 0;
}

/* ---- what replicas reduce ---- */

/* An all-reduce that was not recorded. A link carries it so many times at once; `beside` bytes and
 * messages it takes some time, too. */
static struct model_communication new_all_reduce(struct world *w, uint64_t size_bytes,
                                                 struct extent is, double times, double beside_ns)
{
    const struct model_link *link = &w->m->net.learnt;
    double byte_ns = is.within ? link->within_ns.value : link->byte_ns.value;
    double message_ns = is.within ? link->within_message_ns.value : link->message_ns.value;
    struct model_communication c = {
        .kind = "all_reduce", .collective = UINT32_MAX, .size_bytes = size_bytes};
    struct traffic t = grown_traffic(w, &c, is, true, byte_ns, message_ns);
    c.n_steps = t.n_steps;
    c.link_bytes = t.share * (double)size_bytes * (is.within ? 1 : times);
    c.took_ns =
        (c.link_bytes * byte_ns + t.n_steps * message_ns + beside_ns) / w->m->net.took_ratio;
    return c;
}

/* Of the shards of gradients that c reduced: as long beside bytes and messages as that. */
static struct model_communication
reduce_shards(struct world *w, const struct model_communication *c, struct extent is)
{
    const struct model_group *group = &w->m->groups[c->group];
    const struct model_link *link = &w->m->net.learnt;
    double byte_ns = group->within ? link->within_ns.value : link->byte_ns.value;
    double message_ns = group->within ? link->within_message_ns.value : link->message_ns.value;
    struct model_cost cost = model_recorded_cost(c, byte_ns, w->m->net.took_ratio);
    return new_all_reduce(w, c->size_bytes / w->r->group, is, count_sharing(w, group),
                          fmax(0, cost.latency_ns - c->n_steps * message_ns));
}

/* Of all gradients of a rank, which its program waits for when nothing else is left to wait for. */
static int reduce_gradients(struct world *w, uint32_t rank, struct model_group *group,
                            struct model_communication *c, uint32_t number, uint32_t *room,
                            struct dpro_error *err)
{
    struct dpro_model *m = w->m;
    struct model_program *p = &m->programs[m->ranks[w->new_of[rank]].program];
    struct model_op *ops = arena_array(w->arena, p->n_ops + (size_t)2, sizeof *ops);
    struct model_group of = {
        .ranks = &rank, .n_ranks = 1, .n_members = 1, .n_streams = 1, .dimension = w->r->dimension};
    struct group_change change = {.kind = "all_reduce"};
    struct members all = {w->r->after, 1, w->r->after};
    int rc = change_group(w, &of, &change, group, room, &all, err);
    if (rc < 0)
        return rc;
    *c = new_all_reduce(w, w->g->ranks[rank].gradient_bytes, change.is, 1, 0);
    if (p->n_ops > 0)
        memcpy(ops, p->ops, p->n_ops * sizeof *ops);
    ops[p->n_ops] = (struct model_op){
        .name = c->kind, .phase = DPRO_OP_BW, .needs = MODEL_NONE, .tensor = m->n_tensors + number};
    ops[p->n_ops + 1] = (struct model_op){.name = "up to a wait",
                                          .phase = DPRO_OP_BW,
                                          .needs = m->n_tensors + number,
                                          .tensor = MODEL_NONE};
    p->ops = ops;
    p->n_ops += 2;
    return 0;
}

/* Each rank's all-reduce over the replicas. Ranks have programs of their own, as groups of ranks
 * communicate. */
static int reduce_all(struct world *w, uint32_t *room, struct model_group *groups,
                      struct model_communication *all, uint32_t *n_groups, uint32_t *n_all,
                      struct dpro_error *err)
{
    struct dpro_model *m = w->m;
    struct model_program *programs = arena_array(w->arena, m->n_programs, sizeof *programs);
    int rc = 0;
    memcpy(programs, m->programs, m->n_programs * sizeof *programs);
    m->programs = programs;
    for (uint32_t r = 0; r < w->n_recorded && rc == 0; r++) {
        rc = reduce_gradients(w, r, &groups[*n_groups], &all[*n_all], *n_all, room, err);
        all[*n_all].group = *n_groups;
        ++*n_all;
        ++*n_groups;
    }
    return rc;
}

/* Each group of shards becomes one for what is sharded, and one between the replicas, all of whose
 * ranks are taken to keep step. `changes` and `m->groups` have room for them. */
static int cut_group(struct world *w, const struct model_group *group, uint32_t g,
                     struct group_change *changes, struct model_group *groups, uint32_t *room,
                     struct dpro_error *err)
{
    const struct replicas *r = w->r;
    const struct model_link *link = &w->m->net.link;
    struct members shards = {r->group, 1, r->group};
    struct members replicas = {r->after / r->group, r->group, r->after};
    struct model_group across = *group;
    across.n_members = MAX(1, r->before / r->group);
    changes[g].kind = "all_gather";
    changes[g + 1].kind = "all_reduce";
    int rc = change_group(w, group, &changes[g], &groups[g], room, &shards, err);
    if (rc == 0)
        rc = change_group(w, &across, &changes[g + 1], &groups[g + 1], room, &replicas, err);
    if (rc < 0 || w->told || !link->rank_hosts)
        return rc;
    bool within = lies_within(w, group) && !link->is_within;
    changes[g].is.within = groups[g].within = within;
    if (within && !changes[g].was.within && link->within_ns.value <= 0)
        return refuse(err,
                      "the trace shows no communication within a host, where shards of "
                      "%u ranks would be: give --topology",
                      r->group);
    return 0;
}

static int change_groups(struct world *w, struct dpro_error *err)
{
    struct dpro_model *m = w->m;
    struct sharding sharding = {w->r->dimension, w->r->before, w->r->group}, *s = &sharding;
    uint32_t n_groups = m->n_groups, n = m->n_communications;
    size_t most = 3 * (size_t)n_groups + w->n_recorded;
    uint32_t *room = arena_array(w->arena, w->r->before, sizeof *room);
    uint32_t *cut = arena_array(w->arena, n_groups + (size_t)1, sizeof *cut);
    uint32_t *reduces = arena_array(w->arena, n + (size_t)1, sizeof *reduces);
    struct group_change *changes = arena_array(w->arena, most, sizeof *changes);
    struct model_group *groups = arena_array(w->arena, most, sizeof *groups);
    struct model_communication *all =
        arena_array(w->arena, 2 * (size_t)n + w->n_recorded, sizeof *all);
    int rc = 0;
    for (uint32_t k = 0; k < n; k++) {
        changes[m->communications[k].group].kind = m->communications[k].kind;
        cut[m->communications[k].group] |= shards_move(m, s, &m->communications[k]);
    }
    for (uint32_t i = 0; i < m->n_groups && rc == 0; i++) {
        rc = change_group(w, &m->groups[i], &changes[i], &groups[i], room, NULL, err);
        if (rc < 0 || !cut[i])
            continue;
        cut[i] = n_groups;
        n_groups += 2;
        rc = cut_group(w, &m->groups[i], cut[i], changes, groups, room, err);
    }
    uint32_t n_all = n;
    for (uint32_t k = 0; k < n && rc == 0; k++) {
        const struct model_communication *from = &m->communications[k];
        struct model_communication *c = &all[k];
        bool reduces_shards = shards_reduce(m, s, from);
        uint32_t g = shards_move(m, s, from) ? cut[from->group] : from->group;
        *c = *from;
        rc = change_communication(w, c, &changes[g], err);
        c->group = g;
        reduces[k] = MODEL_NONE;
        if (rc < 0 || !reduces_shards || changes[g + 1].is.n < 2)
            continue;
        all[n_all] = reduce_shards(w, from, changes[g + 1].is);
        all[n_all].group = g + 1;
        all[n_all].follows = 1 + k;
        reduces[k] = n_all++;
    }
    if (rc < 0)
        return rc;
    if (s->after > 0 && n_all == n && w->r->after > s->after)
        return refuse(err,
                      "nothing shows how the job reduces gradients to shards: what it would "
                      "reduce between replicas of %u ranks is not known",
                      s->after);
    if (n_all > n)
        shards_wait(m, reduces, w->arena);
    if (w->r->reduces && w->r->after > 1)
        rc = reduce_all(w, room, groups, all, &n_groups, &n_all, err);
    if (rc < 0)
        return rc;
    m->groups = groups;
    m->n_groups = n_groups;
    m->communications = all;
    m->n_communications = n_all;
    return 0;
}

/* Links that were not recorded are taken to be as the others, until they are told. */
static void spread_hosts(struct world *w)
{
    struct model_link *links[2] = {&w->m->net.link, &w->m->net.learnt};
    bool several = w->told ? w->size > w->told->ranks_per_host : w->r->after > w->r->before;
    w->spreads = w->m->net.link.is_within && w->m->net.link.rank_hosts && several;
    bool needs_within = w->told && w->m->n_communications > 0 && !links[0]->is_within &&
                        links[0]->within_ns.value <= 0;
    for (int i = 0; i < 2 && (w->spreads || needs_within); i++) {
        links[i]->is_within = false;
        links[i]->within_ns = links[i]->byte_ns;
        links[i]->within_message_ns = links[i]->message_ns;
    }
}

static void tell_topology(const struct world *w, struct notes *notes)
{
    const struct topology *t = w->told;
    const struct model_link *link = &w->m->net.link;
    bool on_cpus = w->m->n_communications > 0 ? !link->own_links
                                              : w->g && !rank_has_gpu(w->g, &w->g->ranks[0]);
    note(notes,
         "the topology: %u ranks on %u host%s, with %u on each; a rank's link within its host "
         "carries %.4g GB/s, a host's links to others %.4g GB/s in all",
         w->size, (w->size + t->ranks_per_host - 1) / t->ranks_per_host,
         w->size > t->ranks_per_host ? "s" : "", MIN(w->size, t->ranks_per_host),
         told_rate(&t->within) / 1e9, topology_rate(t, false) / 1e9);
    if (w->assumes_host)
        note(notes, "the trace does not tell which ranks are on one host: all recorded ones are "
                    "taken to be, as the topology has it");
    if (on_cpus && t->between.latency_ns > 0)
        note(notes,
             "the topology's latency (%.3g us between hosts) is all that a message costs beside "
             "its bytes; processes on CPUs need more for one: as recorded, %.3g us",
             t->between.latency_ns / 1e3, link->message_ns.value / 1e3);
}

static void tell_collectives(const struct world *w, struct notes *notes)
{
    bool tree = strcmp(w->collectives, "tree") == 0;
    note(notes, "over hosts, %s; other communication passes as recorded",
         tree ? "all-reduces go up and down trees, with a chain on each host"
         : strcmp(w->collectives, "ring") == 0
             ? "all-reduces, all-gathers and reduce-scatters go round one ring of all ranks"
             : "all-reduces, all-gathers and reduce-scatters go round rings within each host and, "
               "of ranks with the same place on theirs, over hosts, one after the other");
}

static void tell_splits(const struct world *w, struct notes *notes)
{
    const struct replicas *r = w->r;
    note(
        notes,
        "tensors split over %u rank%s in place of %u: what works on parts of them takes %.3g times "
        "as long, beyond its launches, as if it were as efficient with other parts; what is not "
        "split is as it was",
        r->after, r->after == 1 ? "" : "s", r->before, (double)r->before / r->after);
}

static void tell(const struct world *w, uint32_t n_ranks, struct notes *notes)
{
    const struct replicas *r = w->r;
    const struct model_link *link = &w->m->net.link;
    if (w->told)
        tell_topology(w, notes);
    if (w->collectives)
        tell_collectives(w, notes);
    if (r->group > 0 && r->after > r->group)
        note(notes,
             "gradients are reduced among the %u neighbouring ranks that share the parameters, "
             "then all-reduced over %u replicas of these; all are taken to keep step",
             r->group, r->after / r->group);
    if (r->shards && count_shards(r) == 1)
        note(notes, "a rank keeps all of what was sharded, in place of 1/%u, and updates as much",
             r->before);
    else if (r->shards && count_shards(r) != r->before)
        note(notes, "a rank keeps 1/%u of what is sharded, in place of 1/%u, and updates as much",
             count_shards(r), r->before);
    if (r->after == r->before)
        return;
    if (r->splits)
        tell_splits(w, notes);
    else
        note(notes,
             "%u ranks: each one %s computes as one of the %u recorded ones, on its batch; %s",
             n_ranks, r->after > r->before ? "more" : "that stays", w->n_recorded,
             w->collectives ? "collectives within hosts are taken to stay as they are"
             : w->told      ? "how collectives use links is taken to stay as it is"
                            : "links, and how collectives use them, are taken to stay as they are");
    if (r->rest > 1 && r->group == 0 && !r->splits)
        note(notes, "a replica has %u ranks, as recorded; %u replica%s in place of %u", r->rest,
             r->after, r->after == 1 ? "" : "s", r->before);
    if (r->reduces && r->after > 1)
        note(
            notes,
            "the job had no replicas: all gradients of a rank (%.1f MB on rank %d) are taken to be "
            "reduced at once, when its backward pass is over, and waited for. DDP's buckets hide "
            "a part of that, and take as much memory again unless gradients are views of them",
            (double)w->g->ranks[0].gradient_bytes / 1e6, w->g->ranks[0].rank);
    if (w->routes)
        note(notes, "all-to-alls stay among all ranks: each has as many experts, or tables, as "
                    "now, computes "
                    "and keeps as much, and sends as many items");
    const struct model_net *net = &w->m->net;
    uint32_t n_reduce = net->collective.n_ranks;
    bool rings =
        !w->told && w->m->n_tensors > 0 && net->collective.algorithm == MODEL_RING && n_reduce > 2;
    if (rings && w->g && rank_has_gpu(w->g, &w->g->ranks[0]))
        note(notes,
             "gradients are taken to be reduced in rings, whose messages alone take %.2f ms for "
             "each bucket; NCCL takes trees where those are faster",
             2 * (n_reduce - 1.0) * net->link.message_ns.value / 1e6);
    if (w->spreads && !w->told)
        note(notes,
             "the recorded ranks are on one host, so links to other hosts are not known: taken to "
             "be as fast as those within; --bandwidth inter= says how fast they are");
    else if (!w->told && link->rank_hosts && r->after > r->before && w->m->n_communications > 0)
        note(notes, "more ranks are on more hosts, each with as many ranks and links as now");
    if (w->m->net.collective.algorithm == MODEL_SERVER)
        note(notes, "the job keeps its %u parameter servers; --servers changes that",
             w->m->net.servers.n);
}

int change_world(const struct replicas *r, const struct topology *told, const char *collectives,
                 struct dpro_model *m, struct notes *notes, struct dpro_error *err)
{
    const struct dpro_graph *graph = r->graph;
    struct world w = {.g = graph,
                      .r = r,
                      .told = told,
                      .collectives = collectives,
                      .m = m,
                      .arena = notes->arena,
                      .recorded = m->ranks,
                      .n_recorded = m->n_ranks,
                      .size = r->after * r->rest,
                      .stride = 1};
    if (r->after == r->before && graph)
        w.size = MAX(w.size, job_size(graph));
    if (r->after == r->before && !told && r->group == 0)
        return 0;
    w.place = arena_array(w.arena, m->n_ranks, sizeof *w.place);
    w.row = arena_array(w.arena, m->n_ranks, sizeof *w.row);
    w.new_of = arena_array(w.arena, m->n_ranks, sizeof *w.new_of);
    w.seen = arena_array(w.arena, told ? w.size + (size_t)1 : 1, sizeof *w.seen);
    if (told && r->dimension != UINT32_MAX)
        w.stride = stride_of(graph, &graph->dimensions[r->dimension]);
    if (w.stride == 0)
        return refuse(err, "how ranks are numbered over the job's dimensions is not known, and so "
                           "not which of them a topology has on one host");
    int rc = find_places(&w, err);
    if (rc == 0 && told)
        rc = take_told_hosts(&w, err);
    if (rc < 0)
        return rc;
    spread_hosts(&w);
    if (told)
        rc = check_buckets(&w, err);
    if (rc < 0)
        return rc;
    copy_ranks(&w);
    rc = change_groups(&w, err);
    if (rc == 0 && collectives && !w.passes)
        rc = refuse(err,
                    "no collectives of the job are over several hosts, with several ranks on each, "
                    "where %s could be chosen: leave out --collectives",
                    collectives);
    if (rc < 0)
        return rc;
    uint32_t *n_reduce = &m->net.collective.n_ranks; /* a bucket together: of a replica, one */
    if (!r->splits)
        *n_reduce = (uint32_t)((uint64_t)*n_reduce * r->after / r->before);
    if (!r->splits && m->net.collective.algorithm == MODEL_DIRECT && r->before == 2 &&
        r->after != 2)
        m->net.collective.algorithm = MODEL_RING; /* two ranks can't tell them apart */
    tell(&w, w.size, notes);
    return 0;
}
