/* cost/change_world.c: see change_world.h. New replicas do what recorded ones do: a rank that was
 * not recorded is a copy of one that was, and a group within a replica is simulated once for all
 * copies. Groups across replicas have more members, which changes what they send. */
#include "cost/change_world.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include <dpro/dimensions.h>

#include "base/error.h"
#include "base/map.h"
#include "base/sort.h"
#include "cost/cost.h"

#define refuse(err, ...) dpro_error_set(err, DPRO_EUSAGE, __VA_ARGS__)

enum { MOST_RANKS = 65536 };

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

/* Replicas; where there are none, ranks that have a shard each. */
static int find_dimension(const struct dpro_graph *g, struct replicas *r, struct dpro_error *err)
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
    name_dimensions(g, found, sizeof found);
    if (g->n_dimensions == 0 || !is_grid(g, world))
        return refuse(err, "other numbers of ranks can't be asked for: %s; --dims says how",
                      g->dimensions_note ? g->dimensions_note
                                         : "how the job is parallel is not known");
    if (n[0] + n[1] == 0)
        return refuse(err,
                      "no dimension of the job (%s) replicates or shards the model, and the others "
                      "can't be asked to change; --dims overrules what was found",
                      found);
    if (n[n[0] == 0] > 1)
        return refuse(err, "which dimension of the job (%s) is to grow is not clear", found);
    r->shards = n[0] == 0;
    r->dimension = of[r->shards];
    r->before = g->dimensions[r->dimension].size;
    r->rest = world / r->before;
    return 0;
}

int replicas_find(const struct dpro_graph *graph, const struct dpro_changes *changes,
                  const struct dpro_model *model, struct replicas *r, struct dpro_error *err)
{
    uint32_t n_ranks = MAX(model->n_ranks, model->net.collective.n_ranks);
    *r = (struct replicas){n_ranks, n_ranks, 1, UINT32_MAX, false};
    if (changes->world_size == 0 && changes->dp == 0)
        return 0;
    if (changes->world_size != 0 && changes->dp != 0)
        return refuse(err, "a number of ranks and one of replicas: give one");
    int rc = model->n_communications > 0 ? find_dimension(graph, r, err) : 0;
    if (rc < 0)
        return rc;
    if (changes->world_size % r->rest != 0)
        return refuse(err,
                      "%u ranks are no whole number of replicas: the job's other dimensions make "
                      "up %u ranks; give a multiple of that",
                      changes->world_size, r->rest);
    uint64_t n = changes->dp != 0 ? (uint64_t)changes->dp * r->rest : changes->world_size;
    if (n < 2 || n > MOST_RANKS)
        return refuse(err, "a world of %llu ranks can't be predicted; 2 to %d can",
                      (unsigned long long)n, MOST_RANKS);
    r->after = (uint32_t)(n / r->rest);
    return 0;
}

/* ---- ranks ---- */

struct world {
    const struct dpro_graph *g;
    const struct replicas *r;
    struct dpro_model *m;
    struct arena *arena;
    uint32_t n_recorded;
    uint32_t *place;  /* by rank: the number of its replica */
    uint32_t *row;    /* by rank: which of its replica's ranks it is */
    uint32_t *new_of; /* by rank: its number among those that are simulated; MODEL_NONE */
    bool spreads;     /* what was on one host is on several */
    bool routes;      /* all-to-alls get more members */
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
        uint64_t of = r, key = link->rank_hosts[old_of[r]] + ((uint64_t)ranks[r].copy << 32);
        if (!map_get(&first, map_key(key), &of))
            map_set(&first, map_key(key), r);
        hosts[r] = (uint32_t)of;
    }
    map_fini(&first);
    link->rank_hosts = hosts;
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
}

/* ---- groups ---- */

static bool is_ascending(const uint32_t *places, uint32_t n, uint32_t step)
{
    for (uint32_t i = 1; i < n; i++)
        if (places[i] - places[i - 1] != step)
            return false;
    return true;
}

/* How many members a group will have; 0: not known. One across all replicas, or across every n-th,
 * grows with them; one of neighbouring replicas, or within one, stays as it is. `room` is for all
 * replicas. */
static uint32_t members_of(const struct world *w, const struct model_group *group, uint32_t *room)
{
    uint32_t n = 0, before = w->r->before, after = w->r->after;
    uint64_t grown = (uint64_t)group->n_members * after;
    bool whole = group->n_ranks == group->n_members;
    if (w->r->dimension == UINT32_MAX)
        return after;
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
            return (uint32_t)(grown / before);
        return known ? group->n_members : 0;
    }
    if (n <= 1)
        return group->n_members;
    if (group->sends)
        return 0;
    if (n == before)
        return (uint32_t)(grown / before);
    uint32_t step = room[1] - room[0];
    if (!is_ascending(room, n, step))
        return 0;
    if (step == 1)
        return after % n == 0 ? group->n_members : 0;
    return step * n == before && after % step == 0 ? (uint32_t)(grown / before) : 0;
}

static bool is_shard_gather(const struct world *w, const struct model_communication *c)
{
    return w->r->shards && strcmp(c->kind, "all_gather") == 0 &&
           w->m->groups[c->group].dimension == w->r->dimension;
}

/* Of a collective of n: what it sends over a rank's link, of what each rank has, and in how many
 * steps. NCCL takes trees where they are faster than rings. */
static struct traffic grown_traffic(const struct world *w, const struct model_communication *c,
                                    uint32_t n, double byte_ns, double message_ns)
{
    struct traffic ring = communication_traffic(c->kind, c->pattern, n);
    struct traffic tree = {2, 2 * ceil(log2(n))};
    if (!w->m->net.link.own_links || n < 3 || strcmp(c->kind, "all_reduce") != 0)
        return ring;
    double size = (double)c->size_bytes;
    return tree.share * size * byte_ns + tree.n_steps * message_ns <
                   ring.share * size * byte_ns + ring.n_steps * message_ns
               ? tree
               : ring;
}

/* With links of the group's class as they were and as they are now. */
static void grow(const struct world *w, struct model_communication *c, uint32_t n_before,
                 uint32_t n, bool was_within, bool within)
{
    const struct model_link *learnt = &w->m->net.learnt;
    double pace = w->m->net.took_ratio;
    double old_byte = was_within ? learnt->within_ns.value : learnt->byte_ns.value;
    double byte = within ? learnt->within_ns.value : learnt->byte_ns.value;
    double message = within ? learnt->within_message_ns.value : learnt->message_ns.value;
    struct model_cost was = model_recorded_cost(c, old_byte, pace);
    struct traffic before = communication_traffic(c->kind, c->pattern, n_before);
    struct traffic now = grown_traffic(w, c, n, byte, message);
    double ratio = before.share > 0 ? now.share / before.share : 1;
    if (is_shard_gather(w, c)) {
        ratio *= (double)n_before / n;
        c->size_bytes = c->size_bytes * n_before / n;
    }
    double wire = old_byte > 0 ? was.wire_ns * ratio * byte / old_byte : 0;
    double latency = fmax(0, was.latency_ns + (now.n_steps - c->n_steps) * message);
    c->n_steps = now.n_steps;
    c->link_bytes = byte > 0 ? wire / byte : c->link_bytes * ratio;
    c->took_ns = (wire + latency) / pace;
}

#define UNKNOWN_GROUP                                                                              \
    "how a group of %u ranks that the job communicates in (%s, rank %d with it) changes with the " \
    "number of replicas is not known: %u can't be predicted"

static int change_groups(struct world *w, struct dpro_error *err)
{
    struct dpro_model *m = w->m;
    uint32_t *room = arena_array(w->arena, w->r->before, sizeof *room);
    uint32_t *before = arena_array(w->arena, m->n_groups + (size_t)1, sizeof *before);
    bool *was_within = arena_array(w->arena, m->n_groups + (size_t)1, sizeof *was_within);
    struct model_group *groups = arena_array(w->arena, m->n_groups + (size_t)1, sizeof *groups);
    struct model_communication *all =
        arena_array(w->arena, m->n_communications + (size_t)1, sizeof *all);
    const char **kind = arena_array(w->arena, m->n_groups + (size_t)1, sizeof *kind);
    for (uint32_t k = 0; k < m->n_communications; k++)
        kind[m->communications[k].group] = m->communications[k].kind;
    for (uint32_t i = 0; i < m->n_groups; i++) {
        const struct model_group *group = &m->groups[i];
        struct model_group *to = &groups[i];
        *to = *group;
        uint32_t *ranks = arena_array(w->arena, group->n_ranks, sizeof *ranks);
        to->ranks = ranks;
        to->n_ranks = 0;
        to->n_members = members_of(w, group, room);
        if (to->n_members == 0)
            return refuse(err, UNKNOWN_GROUP, group->n_members, kind[i] ? kind[i] : "nothing",
                          m->ranks[group->ranks[0]].rank, w->r->after);
        before[i] = group->n_members;
        was_within[i] = group->within;
        for (uint32_t k = 0; k < group->n_ranks; k++)
            if (w->new_of[group->ranks[k]] != MODEL_NONE)
                ranks[to->n_ranks++] = w->new_of[group->ranks[k]];
        if (to->n_members > before[i] && m->net.link.rank_hosts)
            to->within = false;
        else if (w->spreads)
            to->within = was_within[i] = true;
    }
    m->groups = groups;
    for (uint32_t k = 0; k < m->n_communications; k++) {
        struct model_communication *c = &all[k];
        *c = m->communications[k];
        bool grows = groups[c->group].n_members != before[c->group];
        w->routes |= grows && strcmp(c->kind, "all_to_all") == 0;
        if (grows)
            grow(w, c, before[c->group], groups[c->group].n_members, was_within[c->group],
                 groups[c->group].within);
    }
    m->communications = all;
    return 0;
}

/* Links between hosts are taken to be as those within the one that was recorded. */
static void spread_hosts(struct world *w)
{
    struct model_link *links[2] = {&w->m->net.link, &w->m->net.learnt};
    w->spreads =
        w->m->net.link.is_within && w->m->net.link.rank_hosts && w->r->after > w->r->before;
    for (int i = 0; i < 2 && w->spreads; i++) {
        links[i]->is_within = false;
        links[i]->within_ns = links[i]->byte_ns;
        links[i]->within_message_ns = links[i]->message_ns;
    }
}

static void tell(const struct world *w, uint32_t n_ranks, struct notes *notes)
{
    const struct replicas *r = w->r;
    const struct model_link *link = &w->m->net.link;
    note(notes,
         "%u ranks: each one %s computes as one of the %u recorded ones, on its batch; links, and "
         "how collectives use them, are taken to stay as they are",
         n_ranks, r->after > r->before ? "more" : "that stays", w->n_recorded);
    if (r->rest > 1)
        note(notes, "a replica has %u ranks, as recorded; %u replicas in place of %u", r->rest,
             r->after, r->before);
    if (r->shards)
        note(notes, "a rank keeps 1/%u of what is sharded, in place of 1/%u, and updates as much",
             r->after, r->before);
    if (w->routes)
        note(notes, "all-to-alls of all replicas stay that: experts, or tables, are spread over "
                    "the ranks that there are, with as many items from each rank");
    const struct model_net *net = &w->m->net;
    bool rings = w->m->n_tensors > 0 && net->collective.algorithm == MODEL_RING && n_ranks > 2;
    if (rings && w->g && rank_has_gpu(w->g, &w->g->ranks[0]))
        note(notes,
             "gradients are taken to be reduced in rings, whose messages alone take %.2f ms for "
             "each bucket; NCCL takes trees where those are faster",
             2 * (n_ranks - 1.0) * net->link.message_ns.value / 1e6);
    if (w->spreads)
        note(notes,
             "the recorded ranks are on one host, so links to other hosts are not known: taken to "
             "be as fast as those within; --bandwidth inter= says how fast they are");
    else if (link->rank_hosts && r->after > r->before && w->m->n_communications > 0)
        note(notes, "more ranks are on more hosts, each with as many ranks and links as now");
    if (w->m->net.collective.algorithm == MODEL_SERVER)
        note(notes, "the job keeps its %u parameter servers; --servers changes that",
             w->m->net.servers.n);
}

int change_world(const struct dpro_graph *graph, const struct replicas *r, struct dpro_model *m,
                 struct notes *notes, struct dpro_error *err)
{
    struct world w = {.g = graph, .r = r, .m = m, .arena = notes->arena, .n_recorded = m->n_ranks};
    if (r->after == r->before)
        return 0;
    w.place = arena_array(w.arena, m->n_ranks, sizeof *w.place);
    w.row = arena_array(w.arena, m->n_ranks, sizeof *w.row);
    w.new_of = arena_array(w.arena, m->n_ranks, sizeof *w.new_of);
    int rc = find_places(&w, err);
    if (rc < 0)
        return rc;
    spread_hosts(&w);
    copy_ranks(&w);
    rc = change_groups(&w, err);
    if (rc < 0)
        return rc;
    uint32_t n = r->after * r->rest;
    m->net.collective.n_ranks = n;
    if (m->net.collective.algorithm == MODEL_DIRECT && r->before == 2)
        m->net.collective.algorithm = MODEL_RING; /* two ranks can't tell them apart */
    tell(&w, n, notes);
    return 0;
}
