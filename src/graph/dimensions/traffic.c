/* What process groups carry, and what that says of them.
 *
 * - Sums of gradients come in backward passes, or after them, and nothing as large in forward ones.
 * - A part of a layer's result is summed up, or gathered, in forward and backward passes alike.
 * - Sharded parameters are gathered, and their gradients scattered in backward passes only.
 * - Items are sent to experts, and embeddings to those who asked, all to all.
 * - Activations and their gradients are passed to a neighbour and back. Parts of a sequence go
 * around a ring, from every rank to the next one. */
#include "graph/dimensions/traffic.h"

/* ---- one collective ---- */

enum carried traffic_carried(const struct rank_build *rank, const struct local_collective *c)
{
    static const enum carried table[] = {
        [DPRO_NO_COLLECTIVE] = CARRIED_OTHER,  [DPRO_ALL_REDUCE] = CARRIED_REDUCED,
        [DPRO_ALL_GATHER] = CARRIED_GATHERED,  [DPRO_REDUCE_SCATTER] = CARRIED_SCATTERED,
        [DPRO_ALL_TO_ALL] = CARRIED_EXCHANGED, [DPRO_BROADCAST] = CARRIED_BROADCAST,
        [DPRO_REDUCE] = CARRIED_REDUCED,       [DPRO_GATHER] = CARRIED_OTHER,
        [DPRO_SCATTER] = CARRIED_OTHER,        [DPRO_SEND] = CARRIED_PASSED,
        [DPRO_RECV] = CARRIED_PASSED,          [DPRO_SEND_RECV] = CARRIED_PASSED,
        [DPRO_BARRIER] = CARRIED_OTHER,        [DPRO_NEGOTIATE] = CARRIED_OTHER,
        [DPRO_PUSH_PULL] = CARRIED_PUSHED,     [DPRO_PUSH] = CARRIED_PUSHED,
        [DPRO_PULL] = CARRIED_PUSHED,          [DPRO_OTHER_COLLECTIVE] = CARRIED_OTHER,
    };
    /* gloo scatters by an all-reduce: the call says what was meant */
    bool scatters = c->launch_name &&
                    name_collective(strtab_get(rank->names, c->launch_name)) == DPRO_REDUCE_SCATTER;
    return table[scatters ? DPRO_REDUCE_SCATTER : c->kind];
}

static enum carried_in carried_in(const struct local_collective *c)
{
    return c->phase == DPRO_OP_FW   ? CARRIED_IN_FORWARD
           : c->phase == DPRO_OP_BW ? CARRIED_IN_BACKWARD
                                    : CARRIED_ELSEWHERE;
}

static bool traffic_reduces(enum carried carried)
{
    return carried == CARRIED_REDUCED || carried == CARRIED_SCATTERED;
}

/* ---- who passes what to whom ---- */

static uint32_t root_of(uint32_t *parents, uint32_t rank)
{
    while (parents[rank] != rank)
        rank = parents[rank] = parents[parents[rank]];
    return rank;
}

static void traffic_unite(uint32_t *parents, int a, int b)
{
    parents[root_of(parents, (uint32_t)a)] = root_of(parents, (uint32_t)b);
}

static bool traffic_passes(const struct join *join, const struct rank_build *rank,
                           const struct local_collective *c)
{
    return c->peer >= 0 && c->peer < join->world_size && rank->trace->rank >= 0 &&
           rank->trace->rank < join->world_size &&
           collective_is_one(c->kind, DPRO_SEND, DPRO_RECV, DPRO_SEND_RECV);
}

/* bits: 1 sends to, 2 receives from the peer. */
static void add_ways(struct map *ways, int rank, int peer, uint64_t bits)
{
    uint64_t key = map_key((uint64_t)rank << 32 | (uint32_t)peer);
    map_set(ways, key, map_or(ways, key, 0) | bits);
}

/* What a rank sends and receives in all, and whether it does both with any one peer (4). */
static uint64_t ways_of(const struct join *join, const struct rank_build *rank)
{
    SCRATCH struct map ways = {0};
    uint64_t all = 0;
    EACH (const struct local_collective, c, rank->collectives) {
        bool sends = c->kind == DPRO_SEND, receives = c->kind == DPRO_RECV;
        if (!traffic_passes(join, rank, c))
            continue;
        add_ways(&ways, rank->trace->rank, c->peer,
                 sends      ? 1
                 : receives ? 2
                            : c->passes & (SENDS_TO_PEER | RECEIVES_FROM_PEER));
        if (c->second_peer >= 0)
            add_ways(&ways, rank->trace->rank, c->second_peer, c->passes / SENDS_TO_SECOND);
    }
    for (size_t i = 0; i < ways.n_slots; i++)
        if (ways.slots[i].key != 0)
            all |= ways.slots[i].value | (ways.slots[i].value == 3 ? 4 : 0);
    return all;
}

/* Where not all ranks are in the trace, a group that was made for two of them holds the rest. A
 * rank that sends to itself only is no set. */
static uint32_t made_for(const struct join *join, const struct local_collective *c, uint32_t seen)
{
    if (seen == NO_ID || c->members == NO_ID ||
        (int)member_sets_size(&join->sets, c->members) >= join->world_size)
        return seen;
    return member_sets_size(&join->sets, c->members) > member_sets_size(&join->sets, seen)
               ? c->members
               : seen;
}

static void find_passing(struct traffics *t, struct join *join)
{
    uint32_t n = (uint32_t)MAX(join->world_size, 1);
    SCRATCH ARRAY(int32_t) ranks = {0};
    t->parents = mem_alloc(n * sizeof *t->parents);
    t->set_of = mem_alloc(n * sizeof *t->set_of);
    for (uint32_t i = 0; i < n; i++)
        t->parents[i] = i;
    memset(t->set_of, 0xFF, n * sizeof *t->set_of);
    EACH_OF (const struct rank_build, rank, join->ranks, join->n_ranks)
        EACH (const struct local_collective, c, rank->collectives)
            if (traffic_passes(join, rank, c)) {
                traffic_unite(t->parents, rank->trace->rank, c->peer);
                if (c->second_peer >= 0 && c->second_peer < join->world_size)
                    traffic_unite(t->parents, rank->trace->rank, c->second_peer);
            }
    EACH_OF (const struct rank_build, rank, join->ranks, join->n_ranks)
        EACH (const struct local_collective, c, rank->collectives) {
            uint32_t root = traffic_passes(join, rank, c)
                                ? root_of(t->parents, (uint32_t)rank->trace->rank)
                                : NO_ID;
            if (root == NO_ID || t->set_of[root] != NO_ID)
                continue;
            ranks.n = 0;
            for (uint32_t i = 0; i < n; i++)
                if (root_of(t->parents, i) == root)
                    array_push(&ranks, (int32_t)i);
            t->set_of[root] =
                made_for(join, c, member_sets_add(&join->sets, ranks.at, (uint32_t)ranks.n));
        }
    t->is_back_and_forth = mem_array(n, sizeof *t->is_back_and_forth);
    EACH_OF (const struct rank_build, rank, join->ranks, join->n_ranks) {
        int number = rank->trace->rank;
        if (number >= 0 && number < join->world_size && ways_of(join, rank) != 3)
            t->is_back_and_forth[root_of(t->parents, (uint32_t)number)] = true;
    }
}

/* ---- names ---- */

int traffic_named(const char *name)
{
    static const struct {
        const char *word; /* longer ones also as the beginning of a word */
        int stands_for;
    } words[] = {
        {"dp", DPRO_REPLICATES},      {"ddp", DPRO_REPLICATES},  {"data", DPRO_REPLICATES},
        {"replica", DPRO_REPLICATES}, {"fsdp", DPRO_SHARDS},     {"shard", DPRO_SHARDS},
        {"cp", DPRO_CONTEXT},         {"sp", DPRO_CONTEXT},      {"context", DPRO_CONTEXT},
        {"sequence", DPRO_CONTEXT},   {"ulysses", DPRO_CONTEXT}, {"ep", DPRO_EXPERTS},
        {"expert", DPRO_EXPERTS},     {"moe", DPRO_EXPERTS},     {"tp", DPRO_TENSORS},
        {"tensor", DPRO_TENSORS},     {"pp", DPRO_STAGES},       {"pipe", DPRO_STAGES},
    };
    unsigned found = 0;
    for (const char *at = name; *at;) {
        char word[32];
        size_t n = 0;
        for (; isalpha((unsigned char)*at); at++)
            if (n + 1 < sizeof word)
                word[n++] = (char)tolower((unsigned char)*at);
        word[n] = '\0';
        for (size_t i = 0; i < sizeof words / sizeof *words; i++)
            if (strcmp(word, words[i].word) == 0 ||
                (strlen(words[i].word) >= 4 && text_begins(word, words[i].word)))
                found |= 1U << words[i].stands_for;
        at += *at && !isalpha((unsigned char)*at);
    }
    if (found == (1U << DPRO_REPLICATES | 1U << DPRO_SHARDS)) /* dp_shard */
        return DPRO_SHARDS;
    for (int p = 0; p < DPRO_N_PARALLELISMS; p++)
        if (found == 1U << p)
            return p;
    return NO_PARALLELISM;
}

static void learn_name(struct group_traffic *t, const char *name)
{
    int named = traffic_named(name);
    if (named == NO_PARALLELISM || t->named != NO_PARALLELISM)
        return;
    t->name = name;
    t->named = named;
}

static void learn_names(struct traffics *all, struct group_traffic *t,
                        const struct rank_build *rank)
{
    EACH_OF (const struct trace_group, group, rank->trace->groups, rank->trace->n_groups) {
        if (group->n_ranks == member_sets_size(&all->join->sets, t->set) &&
            memcmp(group->ranks, member_sets_ranks(&all->join->sets, t->set),
                   group->n_ranks * sizeof *group->ranks) == 0)
            learn_name(t, strtab_get(rank->names, group->description));
    }
}

/* ---- adding up ---- */

static uint64_t forward_key(uint32_t set, uint64_t bytes)
{
    return map_mix(map_key(set) + bytes) | 1;
}

static uint32_t set_of(const struct traffics *t, const struct rank_build *rank,
                       const struct local_collective *c, bool *is_passed)
{
    *is_passed = traffic_passes(t->join, rank, c);
    if (*is_passed)
        return t->set_of[root_of(t->parents, (uint32_t)rank->trace->rank)];
    if (collective_is_one(c->kind, DPRO_SEND, DPRO_RECV, DPRO_NEGOTIATE))
        return NO_ID;
    return c->members;
}

uint32_t traffics_of(const struct traffics *t, const struct rank_build *rank,
                     const struct local_collective *c)
{
    bool is_passed;
    uint32_t set = set_of(t, rank, c, &is_passed);
    uint64_t key = set == NO_ID ? 0 : map_key((uint64_t)set << 1 | is_passed);
    return (uint32_t)map_or(&t->places, key, NO_ID);
}

/* Where no group was recorded: collectives that all ranks of the job were found to take part in. */
static void find_whole(const struct traffics *t, struct join *join)
{
    if (t->all_ranks == NO_ID)
        return;
    EACH (const struct joined, joined, join->joined) {
        const struct member *members = joined_members(join, joined);
        bool exchanges =
            build_is_exchange(&join->ranks[joined->rank], JOIN_PART(join, joined)->arrival);
        if (!exchanges && (int)joined->n_members < join->world_size)
            continue;
        for (uint32_t m = 0; m < joined->n_members; m++) {
            struct local_collective *c =
                &join->ranks[members[m].rank].collectives.at[members[m].collective];
            if (c->members == NO_ID)
                c->members = t->all_ranks;
        }
    }
}

static void add_rank(struct traffics *t, const struct rank_build *rank)
{
    SCRATCH struct map seen = {0};
    EACH (const struct local_collective, c, rank->collectives) {
        enum carried carried = traffic_carried(rank, c);
        bool is_passed;
        uint32_t set = set_of(t, rank, c, &is_passed);
        if (set == NO_ID) {
            t->n_unknown += c->kind != DPRO_NEGOTIATE;
            continue;
        }
        uint64_t place = (uint64_t)map_number(&t->places, map_key((uint64_t)set << 1 | is_passed));
        if (place == t->all.n)
            array_add(&t->all, .set = set, .passes = is_passed, .named = NO_PARALLELISM,
                      .does = NO_PARALLELISM);
        struct group_traffic *of = &t->all.at[place];
        of->n_ranks += map_insert(&seen, place + 1, 1);
        of->n[carried][carried_in(c)]++;
        of->bytes[carried][carried_in(c)] += MIN(c->size_bytes, UINT32_MAX * UINT64_C(1024));
        if (traffic_reduces(carried) && c->phase == DPRO_OP_FW)
            map_set(&t->forward, forward_key(set, c->size_bytes), 1);
        if (!is_passed || c->members == set)
            learn_name(of, strtab_get(rank->names, c->description));
    }
    for (size_t i = 0; i < t->all.n; i++)
        if (map_get(&seen, i + 1, NULL))
            learn_names(t, &t->all.at[i], rank);
}

/* Which reductions are of layers and which of gradients. */
static void split_reductions(struct traffics *t, const struct rank_build *rank)
{
    EACH (const struct local_collective, c, rank->collectives) {
        uint32_t place = traffics_of(t, rank, c);
        if (place == NO_ID || !traffic_reduces(traffic_carried(rank, c)))
            continue;
        struct group_traffic *of = &t->all.at[place];
        uint64_t bytes = MIN(c->size_bytes, UINT32_MAX * UINT64_C(1024));
        bool alike = c->phase == DPRO_OP_FW ||
                     (c->phase == DPRO_OP_BW && c->bucket == NO_ID && c->size_bytes > 0 &&
                      map_get(&t->forward, forward_key(of->set, c->size_bytes), NULL));
        if (alike && bytes == 0 && (rank->all_classes & NAME_BUCKET_IN))
            continue; /* what DDP tells beside its buckets, as in join() */
        *(alike ? &of->layer_bytes : &of->gradient_bytes) += MAX(bytes, 1);
    }
}

/* ---- what it says ---- */

static uint64_t n_of(const struct group_traffic *t, enum carried carried)
{
    return t->n[carried][0] + t->n[carried][1] + t->n[carried][2];
}

static bool is_named_within_layers(const struct group_traffic *t)
{
    return t->named == DPRO_TENSORS || t->named == DPRO_CONTEXT;
}

/* Whether all ranks are in the trace, and each passes on to one what it gets from another. */
static bool goes_around(const struct traffics *all, const struct group_traffic *t)
{
    uint32_t size = member_sets_size(&all->join->sets, t->set);
    int32_t first = member_sets_ranks(&all->join->sets, t->set)[0];
    return size > 2 && t->n_ranks == size &&
           !all->is_back_and_forth[root_of(all->parents, (uint32_t)first)];
}

static int does_of(const struct traffics *all, const struct group_traffic *t)
{
    const uint64_t(*n)[N_CARRIED_IN] = t->n;
    uint64_t size = member_sets_size(&all->join->sets, t->set), gathered_bytes = 0;
    bool both = t->layer_bytes > 0 && n[CARRIED_REDUCED][CARRIED_IN_BACKWARD] +
                                              n[CARRIED_SCATTERED][CARRIED_IN_BACKWARD] +
                                              n[CARRIED_GATHERED][CARRIED_IN_BACKWARD] >
                                          0;
    bool gathers = n_of(t, CARRIED_GATHERED) > 0, scatters = n_of(t, CARRIED_SCATTERED) > 0;
    for (int in = 0; in < N_CARRIED_IN; in++)
        gathered_bytes += t->bytes[CARRIED_GATHERED][in];
    if (t->passes)
        return t->named == DPRO_CONTEXT || goes_around(all, t) ? DPRO_CONTEXT : DPRO_STAGES;
    if (n_of(t, CARRIED_PUSHED) > 0)
        return DPRO_REPLICATES;
    if (t->layer_bytes > 0 && t->layer_bytes >= t->gradient_bytes &&
        (both || is_named_within_layers(t)))
        return t->named == DPRO_CONTEXT ? DPRO_CONTEXT : DPRO_TENSORS;
    if (scatters || (gathers && t->gradient_bytes == 0))
        if (is_named_within_layers(t) || t->named == DPRO_SHARDS)
            return t->named;
    if (all->join->of_stages && t->named == DPRO_REPLICATES)
        return DPRO_REPLICATES; /* each optimizer's state is shared out, by what these files list */
    if (gathers &&
        (scatters || (t->gradient_bytes > 0 && gathered_bytes * size >= t->gradient_bytes)))
        return DPRO_SHARDS;
    if (scatters || t->gradient_bytes > 0)
        return DPRO_REPLICATES;
    if (n[CARRIED_GATHERED][CARRIED_IN_FORWARD] > 0 && n[CARRIED_GATHERED][CARRIED_IN_BACKWARD] > 0)
        return DPRO_TENSORS;
    return NO_PARALLELISM;
}

static void traffic_judge(const struct traffics *all, struct group_traffic *t)
{
    t->does = does_of(all, t);
    if (n_of(t, CARRIED_EXCHANGED) == 0)
        return;
    if (t->does == NO_PARALLELISM && t->named == DPRO_CONTEXT)
        t->does = DPRO_CONTEXT;
    t->routes = t->does != DPRO_TENSORS && t->does != DPRO_CONTEXT;
}

void traffics_find(struct traffics *t, struct join *join)
{
    SCRATCH ARRAY(int32_t) ranks = {0};
    t->join = join;
    for (int rank = 0; rank < join->world_size; rank++)
        array_push(&ranks, rank);
    t->all_ranks = member_sets_add(&join->sets, ranks.at, (uint32_t)ranks.n);
    find_passing(t, join);
    find_whole(t, join);
    EACH_OF (const struct rank_build, rank, join->ranks, join->n_ranks)
        add_rank(t, rank);
    EACH_OF (const struct rank_build, rank, join->ranks, join->n_ranks)
        split_reductions(t, rank);
    EACH (struct group_traffic, traffic, t->all)
        traffic_judge(t, traffic);
}

void traffics_fini(struct traffics *t)
{
    FREE_ALL(&t->all, &t->places, &t->forward, &t->parents, &t->set_of, &t->is_back_and_forth);
}
