/* What-ifs of other numbers of ranks.
 *
 * New replicas do what recorded ones do: a rank that was not recorded is a copy of one that was,
 * and a group within a replica is simulated once for all copies. Groups across replicas have more
 * members, which changes what they send. */
#include "cost/change/replicas.h"

#include "cost/change/world_hosts.h"
#include "cost/program/cost.h"
#include "cost/program/model_memory.h"
#include "cost/program/program_writer.h"

/* ---- groups ---- */

/* One across all replicas grows with them; one of neighbouring replicas, or within one, stays as it
 * is. `room` is for all replicas. */
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
        if (all || group->n_members == w->r->world)
            return grown;
        return known ? same : unknown;
    }
    if (n <= 1)
        return same;
    if (group->sends)
        return unknown;
    if (n == before)
        return grown;
    return room[n - 1] - room[0] == n - 1 && after % n == 0 ? same : unknown;
}

static bool is_shard_gather(const struct world *w, const struct model_communication *c)
{
    return (w->r->shards || w->r->splits) && c->kind == DPRO_ALL_GATHER &&
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
                                    struct extent now, bool grows)
{
    struct traffic ring = communication_traffic(c->kind, c->pattern, now.n), asked;
    struct traffic tree = {2, 2 * ceil(log2(now.n))};
    bool reduces = c->kind == DPRO_ALL_REDUCE, over = now.n_hosts > 1;
    const char *how = over && now.n > now.n_hosts ? w->collectives : NULL;
    if (over) {
        ring = world_ring_traffic(w, c->kind, ring, now.n, now.n_hosts);
        tree = world_tree_traffic(w, now.n, now.n_hosts);
    }
    bool other = how && world_hierarchical_traffic(w, c->kind, now.n, now.n_hosts, &asked);
    w->passes |= other && (reduces || strcmp(how, "tree") != 0);
    if (other && strcmp(how, "hierarchical") == 0)
        return asked;
    if (how && reduces)
        return strcmp(how, "tree") == 0 ? tree : ring;
    if (!grows || !w->m->net.link.own_links || now.n < 3 || !reduces)
        return ring;
    struct link_times link = link_times_of(&w->m->net.learnt, now.within);
    double bytes_ns = (double)c->size_bytes * link.byte_ns;
    return tree.share * bytes_ns + tree.n_steps * link.message_ns <
                   ring.share * bytes_ns + ring.n_steps * link.message_ns
               ? tree
               : ring;
}

/* With links of the group's class as they were and as they are now. */
static void world_grow(struct world *w, struct model_communication *c, struct extent was,
                       struct extent is)
{
    const struct model_link *learnt = &w->m->net.learnt;
    double pace = w->m->net.took_ratio;
    double old_byte = link_times_of(learnt, was.within).byte_ns;
    struct link_times link = link_times_of(learnt, is.within);
    double byte = link.byte_ns, message = link.message_ns;
    struct model_cost cost = model_recorded_cost(c, old_byte, pace);
    struct traffic before = communication_traffic(c->kind, c->pattern, was.n);
    struct traffic now = grown_traffic(w, c, is, is.n != was.n);
    double ratio = before.share > 0 ? now.share / before.share / fmax(c->turns, 1) : 1;
    if (is_shard_gather(w, c)) {
        ratio *= (double)was.n / is.n;
        c->size_bytes = c->size_bytes * was.n / is.n;
    }
    double wire = old_byte > 0 ? cost.wire_ns * ratio * byte / old_byte : 0;
    double latency = fmax(0, cost.latency_ns + (now.n_steps - c->n_steps) * message);
    double bytes = byte > 0 ? wire / byte : c->link_bytes * ratio;
    c->more_steps += now.n_steps - c->n_steps;
    c->more_bytes += bytes - c->link_bytes;
    c->sent_bytes *= ratio;
    c->n_steps = now.n_steps;
    c->link_bytes = bytes;
    c->took_ns = (wire + latency) / pace;
}

#define UNKNOWN_GROUP                                                                              \
    "the trace does not tell how a group of %u ranks (%s, with rank %d) changes with the number "  \
    "of replicas: %u can't be predicted"

#define UNKNOWN_HOSTS                                                                              \
    "the trace does not tell on how many hosts a group of %u ranks (%s, with rank %d) will be, "   \
    "or what it sends between them"

/* Of a communication's group: as it was, and as it will be. */
struct group_change {
    uint8_t kind; /* of one of its communications, enum dpro_collective_kind */
    struct extent was, is;
};

/* `members`: those that it will have; NULL: as replicas grow. */
static void change_group(struct world *w, const struct model_group *group, struct group_change *c,
                         struct model_group *to, uint32_t *room, const struct members *members)
{
    uint32_t *ranks = arena_array(w->arena, group->n_ranks, sizeof *ranks);
    const char *kind = dpro_collective_kind_name(c->kind) ?: "nothing";
    *to = *group;
    c->was = c->is = (struct extent){.n = group->n_members, .within = group->within};
    if (group->n_ranks == 0) /* its ranks are gone */
        return;
    uint64_t rank = w->number[group->ranks[0]];
    to->ranks = ranks;
    to->n_ranks = 0;
    struct members are = members ? *members : members_of(w, group, room);
    to->n_members = are.n;
    if (are.n == 0)
        refuse(UNKNOWN_GROUP, group->n_members, kind, (int)rank, w->r->after);
    for (uint32_t k = 0; k < group->n_ranks; k++)
        if (w->new_of[group->ranks[k]] != MODEL_NONE)
            ranks[to->n_ranks++] = w->new_of[group->ranks[k]];
    c->was = (struct extent){.n = group->n_members, .within = group->within || w->spreads};
    c->is = (struct extent){.n = are.n, .within = group->within};
    if (w->told && to->n_ranks > 0) {
        c->is.n_hosts =
            members ? world_hosts_in_row(w, rank, members) : world_count_hosts(w, group, &are);
        c->is.within = c->is.n_hosts == 1 && !w->m->net.link.is_within;
        if (c->is.n_hosts == 0)
            refuse(UNKNOWN_HOSTS, are.n, kind, (int)rank);
    }
    if (!w->told && are.n > c->was.n && w->m->net.link.rank_hosts)
        c->is.within = false;
    else if (!w->told && w->spreads)
        c->is.within = true;
    to->within = c->is.within;
}

static void change_communication(struct world *w, struct model_communication *c,
                                 const struct group_change *group)
{
    const struct extent *was = &group->was, *is = &group->is;
    bool grows = is->n != was->n;
    bool halves = c->pattern && strcmp(c->pattern, "halving-doubling") == 0 && !w->collectives;
    w->routes |= grows && c->kind == DPRO_ALL_TO_ALL;
    if (is->n_hosts > 1 && is->n > is->n_hosts &&
        (halves || (w->collectives && is->n % is->n_hosts != 0)))
        refuse(UNKNOWN_HOSTS, is->n, dpro_collective_kind_name(c->kind),
               (int)w->number[w->m->groups[c->group].ranks[0]]);
    if (is->n == 1 && w->r->splits) { /* nothing is split */
        c->took_ns = c->waits_ns = c->link_bytes = c->sent_bytes = c->n_steps = 0;
        c->more_bytes = c->more_steps = 0;
    } else if (grows || is->n_hosts > 1 || is->within != was->within)
        world_grow(w, c, *was, *is);
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
    uint64_t of = w->number[first];
    if (link->own_links)
        return 1;
    for (uint32_t k = 0; k < w->r->group && w->told; k++)
        n += replicas_number(w->r, w->stride, of, base + k) / w->told->ranks_per_host ==
             replicas_number(w->r, w->stride, of, MODEL_NONE) / w->told->ranks_per_host;
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
    struct link_times link = link_times_of(&w->m->net.learnt, is.within);
    struct model_communication c = {
        .kind = DPRO_ALL_REDUCE, .collective = UINT32_MAX, .size_bytes = size_bytes};
    struct traffic t = grown_traffic(w, &c, is, true);
    c.n_steps = t.n_steps;
    c.link_bytes = c.sent_bytes = t.share * (double)size_bytes * (is.within ? 1 : times);
    c.took_ns = (c.link_bytes * link.byte_ns + t.n_steps * link.message_ns + beside_ns) /
                w->m->net.took_ratio;
    return c;
}

/* Of the shards of gradients that c reduced: as long beside bytes and messages as that. */
static struct model_communication
reduce_shards(struct world *w, const struct model_communication *c, struct extent is)
{
    const struct model_group *group = &w->m->groups[c->group];
    struct link_times link = link_times_of(&w->m->net.learnt, group->within);
    struct model_cost cost = model_recorded_cost(c, link.byte_ns, w->m->net.took_ratio);
    return new_all_reduce(w, c->size_bytes / w->r->group, is, count_sharing(w, group),
                          fmax(0, cost.latency_ns - c->n_steps * link.message_ns));
}

static uint64_t gradients_of(const struct world *w, uint32_t rank)
{
    uint64_t bytes = 0;
    EACH_OF (const struct graph_rank, it, w->g->ranks, w->g->n_ranks)
        bytes = it->rank == w->before[rank].rank ? it->gradient_bytes : bytes;
    return bytes;
}

/* Of all gradients of a rank, which its program waits for when nothing else is left to wait for. */
static void reduce_gradients(struct world *w, uint32_t rank, struct model_group *group,
                             struct model_communication *c, uint32_t number, uint32_t *room)
{
    struct dpro_model *m = w->m;
    struct model_program *p = &m->programs[m->ranks[w->new_of[rank]].program];
    struct program_writer writer = {.work_ns = 0};
    struct model_group of = {
        .ranks = &rank, .n_ranks = 1, .n_members = 1, .n_streams = 1, .dimension = w->r->dimension};
    struct group_change change = {.kind = DPRO_ALL_REDUCE};
    struct members all = {w->r->after, 1, w->r->after};
    change_group(w, &of, &change, group, room, &all);
    *c = new_all_reduce(w, gradients_of(w, rank), change.is, 1, 0);
    program_append(&writer, p->ops, p->n_ops);
    program_communicate(&writer, dpro_collective_kind_name(c->kind), m->n_tensors + number);
    program_end(&writer, w->arena, p);
}

/* Each rank's all-reduce over the replicas. Ranks have programs of their own, as groups of ranks
 * communicate. */
static void reduce_all(struct world *w, uint32_t *room, struct model_group *groups,
                       struct model_communication *all, uint32_t *n_groups, uint32_t *n_all)
{
    struct dpro_model *m = w->m;
    m->programs = arena_copy(w->arena, m->programs, m->n_programs, sizeof *m->programs);
    for (uint32_t r = 0; r < w->n_before; r++) {
        if (w->before[r].copy > 0)
            continue;
        reduce_gradients(w, r, &groups[*n_groups], &all[*n_all], *n_all, room);
        all[*n_all].group = *n_groups;
        ++*n_all;
        ++*n_groups;
    }
}

/* Each group of shards becomes one for what is sharded, and one between the replicas, all of whose
 * ranks are taken to keep step. `changes` and `m->groups` have room for them. */
static void cut_group(struct world *w, const struct model_group *group, uint32_t g,
                      struct group_change *changes, struct model_group *groups, uint32_t *room)
{
    const struct replicas *r = w->r;
    const struct model_link *link = &w->m->net.link;
    struct members shards = {r->group, 1, r->group};
    struct members replicas = {r->after / r->group, r->group, r->after};
    struct model_group across = *group;
    across.n_members = MAX(1, r->before / r->group);
    changes[g].kind = DPRO_ALL_GATHER;
    changes[g + 1].kind = DPRO_ALL_REDUCE;
    change_group(w, group, &changes[g], &groups[g], room, &shards);
    change_group(w, &across, &changes[g + 1], &groups[g + 1], room, &replicas);
    if (w->told || !link->rank_hosts)
        return;
    bool within = lies_within(w, group) && !link->is_within;
    changes[g].is.within = groups[g].within = within;
    if (within && !changes[g].was.within && link->within_ns.value <= 0)
        refuse("the trace shows no communication within a host, where shards of "
               "%u ranks would be: give --topology",
               r->group);
}

static void change_groups(struct world *w)
{
    struct dpro_model *m = w->m;
    uint32_t n_groups = m->n_groups, n = m->n_communications;
    size_t most = 3 * (size_t)n_groups + w->n_before;
    uint32_t *room = arena_array(w->arena, w->r->before, sizeof *room);
    uint32_t *cut = arena_array(w->arena, n_groups + (size_t)1, sizeof *cut);
    uint32_t *reduces = arena_array(w->arena, n + (size_t)1, sizeof *reduces);
    struct group_change *changes = arena_array(w->arena, most, sizeof *changes);
    struct model_group *groups = arena_array(w->arena, most, sizeof *groups);
    struct model_communication *all =
        arena_array(w->arena, 2 * (size_t)n + w->n_before, sizeof *all);
    for (uint32_t k = 0; k < n; k++) {
        changes[m->communications[k].group].kind = m->communications[k].kind;
        cut[m->communications[k].group] |= shards_move(m, w->r, &m->communications[k]);
    }
    for (uint32_t i = 0; i < m->n_groups; i++) {
        change_group(w, &m->groups[i], &changes[i], &groups[i], room, NULL);
        if (!cut[i])
            continue;
        cut[i] = n_groups;
        n_groups += 2;
        cut_group(w, &m->groups[i], cut[i], changes, groups, room);
    }
    uint32_t n_all = n;
    for (uint32_t k = 0; k < n; k++) {
        const struct model_communication *from = &m->communications[k];
        struct model_communication *c = &all[k];
        bool reduces_shards = shards_reduce(m, w->r, from);
        uint32_t g = shards_move(m, w->r, from) ? cut[from->group] : from->group;
        *c = *from;
        change_communication(w, c, &changes[g]);
        c->group = g;
        reduces[k] = MODEL_NONE;
        if (!reduces_shards || changes[g + 1].is.n < 2)
            continue;
        all[n_all] = reduce_shards(w, from, changes[g + 1].is);
        all[n_all].group = g + 1;
        all[n_all].follows = 1 + k;
        reduces[k] = n_all++;
    }
    if (w->r->group > 0 && n_all == n && w->r->after > w->r->group)
        refuse("the recording does not show how the job reduces gradients to shards, so reducing "
               "them between replicas of %u ranks can't be predicted",
               w->r->group);
    if (n_all > n)
        shards_wait(m, reduces, w->arena);
    if (w->r->reduces && w->r->after > 1)
        reduce_all(w, room, groups, all, &n_groups, &n_all);
    m->groups = groups;
    m->n_groups = n_groups;
    m->communications = all;
    m->n_communications = n_all;
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
         "the topology: %u ranks, %u on a host; a rank's link within its host carries %.4g GB/s, "
         "a host's links to others %.4g GB/s in all",
         w->size, MIN(w->size, t->ranks_per_host), told_rate(&t->within) / 1e9,
         topology_rate(t, false) / 1e9);
    if (w->assumes_host)
        note(notes, "the trace does not tell which ranks are on one host: all recorded ranks are "
                    "assumed to be, as in the topology");
    if (on_cpus && t->between.latency_ns > 0)
        note(notes,
             "the topology's latency (%.3g us between hosts) is taken as all that a message costs "
             "beside its bytes; processes on CPUs need more: as recorded, %.3g us",
             t->between.latency_ns / 1e3, link->message_ns.value / 1e3);
}

static void tell_splits(const struct world *w, struct notes *notes)
{
    const struct replicas *r = w->r;
    note(notes,
         "tensors split over %u rank%s instead of %u: ops on their parts take %.3g times as long, "
         "beyond their launches; all else stays as it is",
         r->after, r->after == 1 ? "" : "s", r->before, (double)r->before / r->after);
}

static void world_tell(const struct world *w, uint32_t n_ranks, struct notes *notes)
{
    const struct replicas *r = w->r;
    uint32_t n_recorded = 0;
    EACH_OF (const struct model_rank, rank, w->before, w->n_before)
        n_recorded += rank->copy == 0;
    if (w->told)
        tell_topology(w, notes);
    if (r->group > 0 && r->after > r->group)
        note(notes,
             "gradients are reduced among the %u neighbouring ranks that share the parameters, "
             "then all-reduced over %u replicas of these; all are assumed to run in step",
             r->group, r->after / r->group);
    if (r->shards && replicas_shards(r) != r->before)
        note(notes, "a rank keeps 1/%u of what is sharded, in place of 1/%u, and updates as much",
             replicas_shards(r), r->before);
    if (r->after == r->before)
        return;
    if (r->splits)
        tell_splits(w, notes);
    else
        note(notes,
             "%u ranks: each one %s computes as one of the %u recorded ones, on its batch; %s",
             n_ranks, r->after > r->before ? "more" : "that stays", n_recorded,
             w->told ? "collectives are assumed to use links as before"
                     : "links, and how collectives use them, are assumed to stay as they are");
    if (r->reduces && r->after > 1)
        note(notes,
             "the job had no replicas: all gradients of a rank (%.1f MB on rank %d) are assumed to "
             "be reduced at once after its backward pass; DDP's buckets would hide a part",
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
             "gradients are assumed to be reduced in rings, whose messages alone take %.2f ms for "
             "each bucket; NCCL takes trees where those are faster",
             2 * (n_reduce - 1.0) * net->link.message_ns.value / 1e6);
    if (w->spreads && !w->told)
        note(notes, "all recorded ranks are on one host: links to other hosts are assumed to be as "
                    "fast as those within it; --bandwidth inter= says how fast they are");
}

/* `number`: the ranks' in the grid of r->graph; becomes that of the changed one. */
static void change_dimension(const struct replicas *r, const struct topology *told,
                             const char *collectives, const uint64_t **number, struct dpro_model *m,
                             struct notes *notes)
{
    const struct dpro_graph *graph = r->graph;
    struct world w = {.g = graph,
                      .r = r,
                      .told = told,
                      .collectives = collectives,
                      .m = m,
                      .arena = notes->arena,
                      .before = m->ranks,
                      .number = *number,
                      .n_before = m->n_ranks,
                      .size = r->after * r->rest,
                      .stride = 1};
    if (r->after == r->before && graph)
        w.size = MAX(w.size, r->world);
    if (r->after == r->before && !told && r->group == 0)
        return;
    w.place = arena_array(w.arena, m->n_ranks, sizeof *w.place);
    w.row = arena_array(w.arena, m->n_ranks, sizeof *w.row);
    w.new_of = arena_array(w.arena, m->n_ranks, sizeof *w.new_of);
    w.seen = arena_array(w.arena, told ? w.size + (size_t)1 : 1, sizeof *w.seen);
    if (r->dimension != UINT32_MAX)
        w.stride = replicas_stride(&graph->dimensions[r->dimension], r->world);
    if (w.stride == 0 && told)
        refuse("the trace does not tell how ranks are numbered over the job's dimensions, so a "
               "topology can't place them on hosts");
    w.stride = MAX(w.stride, 1);
    world_find_places(&w);
    if (told)
        world_take_hosts(&w);
    spread_hosts(&w);
    if (told)
        world_check_buckets(&w);
    *number = world_copy_ranks(&w);
    change_groups(&w);
    if (collectives && !w.passes)
        refuse("no collectives of the job are over several hosts, with several ranks on each, "
               "where %s could be chosen: leave out --collectives",
               collectives);
    uint32_t *n_reduce = &m->net.collective.n_ranks; /* a bucket together: of a replica, one */
    if (!r->splits)
        *n_reduce = (uint32_t)((uint64_t)*n_reduce * r->after / r->before);
    if (!r->splits && m->net.collective.algorithm == MODEL_DIRECT && r->before == 2 &&
        r->after != 2)
        m->net.collective.algorithm = MODEL_RING; /* two ranks can't tell them apart */
    world_tell(&w, w.size, notes);
}

void change_world(const struct rank_changes *ranks, const struct topology *told,
                  const char *collectives, struct dpro_model *m, struct notes *notes)
{
    uint64_t *recorded = arena_array(notes->arena, m->n_ranks + (size_t)1, sizeof *recorded);
    const uint64_t *number = recorded;
    for (uint32_t r = 0; r < m->n_ranks; r++)
        recorded[r] = (uint64_t)m->ranks[r].rank;
    for (uint32_t i = 0; i < ranks->n; i++)
        change_dimension(&ranks->of[i], told, collectives, &number, m, notes);
}
