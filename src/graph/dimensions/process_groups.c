/* The ranks of each collective's process group.
 *
 * The profile says them with the collective, or names a group that it lists elsewhere. gloo says
 * neither: of its collectives the transport logs show who exchanged messages. */

#include "graph/messages/endpoints.h"

/* ---- what the calls say ---- */

/* The span of the CPU that launched a collective's kernel; NO_ID: none is known. */
static uint32_t launch_of(const struct rank_build *rank, const struct local_collective *c)
{
    const struct local_op *op = &rank->ops.at[c->arrival];
    uint32_t launch = rank->slices.at[op->slice].launch;
    return (op->flags & GRAPH_OP_GPU) && launch != NO_ID ? rank->slices.at[launch].span : NO_ID;
}

static void learn_phase(const struct rank_build *rank, struct local_collective *c)
{
    uint32_t launch = launch_of(rank, c), span = launch == NO_ID ? c->launch_span : launch;
    bool is_known = span != NO_ID && !rank->trace->tracks[rank->trace->spans[span].track].gpu;
    c->phase = is_known ? rank->phases[span] : (uint8_t)DPRO_OP_BARRIER;
}

/* A call of a group of sends and receives. */
static void add_call(struct rank_build *rank, struct local_collective *c, uint32_t span,
                     uint32_t n_before)
{
    struct local_collective call = {
        .sequence = -1, .peer = -1, .second_peer = -1, .launch_span = NO_ID};
    build_learn_collective(rank, span, &call);
    bool sends = call.kind == DPRO_SEND;
    c->kind = n_before == 0 && call.kind ? call.kind : DPRO_SEND_RECV;
    if (n_before == 0)
        c->peer = call.peer;
    else if (call.peer != c->peer)
        c->second_peer = call.peer;
    if (call.peer == c->peer)
        c->passes |= sends ? SENDS_TO_PEER : RECEIVES_FROM_PEER;
    else
        c->passes |= sends ? SENDS_TO_SECOND : RECEIVES_FROM_SECOND;
    c->group = c->group ?: call.group;
    c->group_ranks = c->group_ranks ?: call.group_ranks;
    c->description = c->description ?: call.description;
    c->numel = n_before == 0 ? call.numel : c->numel + call.numel;
    c->size_bytes = n_before == 0 ? call.size_bytes : c->size_bytes + call.size_bytes;
}

/* Sends and receives of one group are one kernel, launched where the group ends: its calls are
 * those before it on its thread that launched nothing themselves. */
static void learn_grouped(struct rank_build *rank, const struct map *launches,
                          struct local_collective *c)
{
    uint32_t launch = launch_of(rank, c), n = 0;
    if (c->kind != DPRO_SEND_RECV || c->group != 0 || launch == NO_ID)
        return;
    uint32_t first = rank->trace->tracks[rank->trace->spans[launch].track].first;
    for (uint32_t i = launch; i-- > first && !map_get(launches, (uint64_t)i + 1, NULL);) {
        const struct trace_span *span = &rank->trace->spans[i];
        bool has_peer = span->detail != NO_ID && rank->trace->details[span->detail].peer >= 0;
        if ((rank->classes[span->name] & NAME_COMM_PARAM) && has_peer)
            add_call(rank, c, i, n++);
    }
    struct local_op *op = &rank->ops.at[c->transfer];
    if (n == 0)
        return;
    op->size_bytes = c->size_bytes;
    if (c->kind == DPRO_SEND)
        op->kind = DPRO_OP_SEND;
    else if (c->kind == DPRO_RECV)
        op->kind = DPRO_OP_RECV;
    else if (c->second_peer >= 0) /* with several others: nothing tells which of them is there */
        c->end = COMM_ENDS_ALONE;
}

void build_learn_calls(struct rank_build *rank)
{
    SCRATCH struct map launches = {0};
    EACH (struct local_collective, c, rank->collectives) {
        uint32_t launch = launch_of(rank, c);
        learn_phase(rank, c);
        c->launch_name = c->launch_span == NO_ID ? 0 : rank->trace->spans[c->launch_span].name;
        if (launch != NO_ID)
            map_set(&launches, (uint64_t)launch + 1, 1);
    }
    EACH (struct local_collective, c, rank->collectives)
        learn_grouped(rank, &launches, c);
}

/* ---- groups as the profile has them ---- */

typedef ARRAY(int32_t) rank_array;

struct groups_finder {
    struct join *join;
    const struct dpro_trace *trace;
    rank_array ranks;       /* of the group that is looked at */
    ARRAY(uint32_t) listed; /* sets of the groups that the rank lists, in their order */
    rank_array all;         /* of all ranks of the job */
    struct map known;       /* a rank's groups by name and text: 1 + the set's number, or 0 */
    ARRAY(uint64_t)
    joints;                 /* of the transport logs' joint collectives: number << 32 | a rank that
                               takes part, ascending */
    rank_array joint_ranks; /* these ranks */
    uint32_t n_logged;      /* ranks with a transport log */
};

/* "[0, 1, 2]"; false: it is no list, or one that was shortened. */
static bool parse_ranks(const char *text, rank_array *ranks)
{
    ranks->n = 0;
    if (*text++ != '[')
        return false;
    while (*text >= '0' && *text <= '9') {
        int64_t rank = 0;
        for (; *text >= '0' && *text <= '9'; text++)
            if ((rank = rank * 10 + (*text - '0')) > INT32_MAX)
                return false;
        array_push(ranks, (int32_t)rank);
        text += strspn(text, ", ");
    }
    return strcmp(text, "]") == 0 && ranks->n > 0;
}

static uint32_t add_set(struct groups_finder *f, const int32_t *ranks, size_t n)
{
    f->ranks.n = 0;
    array_append(&f->ranks, ranks, n);
    return member_sets_add(&f->join->sets, f->ranks.at, (uint32_t)n);
}

static uint32_t find_named(struct groups_finder *f, const struct trace_rank *rank,
                           const struct local_collective *c)
{
    uint32_t set = NO_ID;
    if (parse_ranks(strtab_get(&f->trace->names, c->group_ranks), &f->ranks))
        return member_sets_add(&f->join->sets, f->ranks.at, (uint32_t)f->ranks.n);
    for (uint32_t g = 0; g < rank->n_groups && c->group != 0 && set == NO_ID; g++)
        if (rank->groups[g].name == c->group)
            set = f->listed.at[g];
    return set;
}

static uint32_t named_set(struct groups_finder *f, const struct trace_rank *rank,
                          const struct local_collective *c)
{
    uint64_t key = map_key((uint64_t)c->group << 32 | c->group_ranks), found;
    if (c->group == 0 && c->group_ranks == 0)
        return NO_ID;
    if (!map_get(&f->known, key, &found)) {
        found = find_named(f, rank, c);
        map_set(&f->known, key, found);
    }
    if (found != NO_ID && c->group_size > 0 &&
        (uint32_t)c->group_size != member_sets_size(&f->join->sets, (uint32_t)found))
        return NO_ID; /* the profile contradicts itself */
    return (uint32_t)found;
}

/* ---- groups as the transport logs show them ---- */

/* For each collective of the transport logs the ranks that take part in it. */
static void index_joints(struct groups_finder *f)
{
    EACH_OF (const struct net_transport, t, f->trace->transports, f->trace->n_transports) {
        f->n_logged += t->rank >= 0;
        EACH (const struct net_collective, c, t->collectives)
            if (c->joint != NO_ID && t->rank >= 0)
                array_push(&f->joints, (uint64_t)c->joint << 32 | (uint32_t)t->rank);
    }
    sort_u64(f->joints.at, f->joints.n);
    EACH (const uint64_t, joint, f->joints)
        array_push(&f->joint_ranks, (int32_t)(*joint & UINT32_MAX));
}

/* The ranks that a log shows to take part in a rank's collective, in any iteration; none: no log
 * has it. */
static uint32_t logged_ranks(const struct groups_finder *f, const struct rank_build *rank, size_t c,
                             const int32_t **ranks)
{
    for (uint32_t s = 0; rank->parts && s < rank->n_samples; s++) {
        const struct net_part *part = &rank->parts[c * rank->n_samples + s];
        if (part->log >= f->trace->n_transports)
            continue;
        uint32_t joint = f->trace->transports[part->log].collectives.at[part->collective].joint;
        if (joint == NO_ID)
            continue;
        size_t first = LOWER_BOUND(i, 0, f->joints.n, f->joints.at[i] >> 32 < joint);
        *ranks = f->joint_ranks.at + first;
        return (uint32_t)(LOWER_BOUND(i, first, f->joints.n, f->joints.at[i] >> 32 <= joint) -
                          first);
    }
    return 0;
}

static bool holds_all(const struct member_sets *sets, uint32_t set, const int32_t *ranks,
                      uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (!member_sets_holds(sets, set, ranks[i]))
            return false;
    return true;
}

/* Of the groups that the profile lists, the smallest with these ranks: those that exchange no
 * messages with each other, or have no log, belong to it, too. */
static uint32_t listed_set(const struct groups_finder *f, const int32_t *ranks, uint32_t n)
{
    uint32_t best = NO_ID;
    bool sole = true;
    for (size_t g = 0; g < f->listed.n; g++) {
        uint32_t set = f->listed.at[g];
        if (set == NO_ID || set == best || !holds_all(&f->join->sets, set, ranks, n))
            continue;
        uint32_t size = member_sets_size(&f->join->sets, set);
        uint32_t least = best == NO_ID ? UINT32_MAX : member_sets_size(&f->join->sets, best);
        sole = size < least || (sole && size > least);
        best = size < least ? set : best;
    }
    return sole ? best : NO_ID;
}

static uint32_t logged_set(struct groups_finder *f, const struct rank_build *rank, size_t c)
{
    const int32_t *ranks = NULL;
    uint32_t n = logged_ranks(f, rank, c, &ranks);
    if (rank->trace->n_groups == 0) /* a rank without a log would be missing */
        return f->n_logged >= f->all.n ? add_set(f, ranks, n) : NO_ID;
    if (n == 0)
        return listed_set(f, &(int32_t){rank->trace->rank}, 1);
    return listed_set(f, ranks, n);
}

/* ---- all ---- */

/* Of two ranks that exchanged messages, or of a job of two, the other one. */
static void find_peer(const struct groups_finder *f, const struct rank_build *rank, size_t c)
{
    struct local_collective *collective = &rank->collectives.at[c];
    const int32_t *ranks = f->all.at;
    if (collective->peer < 0 && (f->all.n == 2 || logged_ranks(f, rank, c, &ranks) == 2))
        collective->peer = ranks[0] == rank->trace->rank ? ranks[1] : ranks[0];
}

static void find_rank(struct groups_finder *f, struct rank_build *rank)
{
    map_fini(&f->known);
    f->listed.n = 0;
    EACH_OF (const struct trace_group, group, rank->trace->groups, rank->trace->n_groups)
        array_push(&f->listed, group->n_ranks > 0 ? add_set(f, group->ranks, group->n_ranks)
                                                  : add_set(f, f->all.at, f->all.n));
    for (size_t c = 0; c < rank->collectives.n; c++) {
        struct local_collective *collective = &rank->collectives.at[c];
        bool is_one_way =
            collective_is_one(collective->kind, DPRO_SEND, DPRO_RECV) || collective->peer >= 0;
        if (is_one_way)
            find_peer(f, rank, c);
        collective->members = named_set(f, rank->trace, collective);
        if (collective->members == NO_ID && !is_one_way &&
            !build_is_exchange(rank, collective->arrival))
            collective->members = logged_set(f, rank, c);
        if (collective->members != NO_ID && !is_one_way && collective->group_size <= 0)
            collective->group_size = (int32_t)member_sets_size(&f->join->sets, collective->members);
    }
}

void join_find_groups(struct join *join, const struct dpro_trace *trace)
{
    struct groups_finder f = {.join = join, .trace = trace};
    for (int rank = 0; rank < join->world_size; rank++)
        array_push(&f.all, rank);
    index_joints(&f);
    EACH_OF (struct rank_build, rank, join->ranks, join->n_ranks)
        find_rank(&f, rank);
    FREE_ALL(&f.ranks, &f.listed, &f.all, &f.known, &f.joints, &f.joint_ranks);
}
