/* Writes all that was learnt about the ops into the graph. */

#include "graph/global/assembly.h"
#include "graph/memory/rank_memory.h"

static void set_seen(struct dpro_graph *g, uint32_t op, int64_t start, int64_t zero, int64_t dur)
{
    if (start == ABSENT || __builtin_sub_overflow(start, zero, &g->seen_start_ns[op]))
        g->seen_start_ns[op] = 0;
    g->seen_dur_ns[op] = dur;
}

/* What was seen in the shown iteration, on an axis that begins with it. */
static void fill_seen(struct assembly *a)
{
    struct dpro_graph *g = a->graph;
    struct join *join = a->join;
    int64_t zero = INT64_MAX;
    for (uint32_t s = 0; s < a->n_samples; s++)
        if (join->ranks[0].sample_step[s] == join->ranks[0].steps.shown)
            g->shown_sample = s - a->first_sample;
    EACH_OF (const struct rank_build, rank, join->ranks, join->n_ranks) {
        int64_t start = rank->pace.track != NO_ID ? rank->seen_start_ns[rank->pace.first] : ABSENT;
        if (start == ABSENT)
            start = rank->steps.at[rank->steps.shown].start_ns;
        zero = MIN(zero, start);
    }
    g->seen_start_ns = arena_array(&g->arena, a->n_ops, sizeof *g->seen_start_ns);
    g->seen_dur_ns = arena_array(&g->arena, a->n_ops, sizeof *g->seen_dur_ns);
    for (uint32_t r = 0, n = 0; r < assembly_n_processes(a); r++) {
        const struct rank_build *rank = &join->ranks[r];
        const struct step *step = &rank->steps.at[rank->steps.shown];
        if (a->first_op[r + 1] > a->first_op[r]) /* else a server that took no part */
            g->ranks[n++].offset_ns = assembly_span(zero, step->start_ns);
        for (uint32_t o = 0; o < rank->n_timed; o++) {
            int64_t start = rank->seen_start_ns[o];
            set_seen(g, a->first_op[r] + o, start, zero,
                     assembly_span(start, rank->seen_end_ns[o]));
        }
        for (uint32_t op = a->first_message[r]; op < a->first_op[r + 1]; op++) {
            enum message_op as = MESSAGE_CALL;
            uint32_t m = assembly_message(a, r, op, &as);
            const struct message_time *time =
                message_time_of(a->messages, m, g->shown_sample + a->first_sample);
            int64_t dur = g->sample_dur_ns[(size_t)g->shown_sample * a->n_ops + op];
            set_seen(g, op, as == MESSAGE_CALL ? time->start_ns : time->end_ns - dur, zero, dur);
        }
    }
}

static void fill_lead(struct assembly *a)
{
    struct dpro_graph *g = a->graph;
    const struct join *join = a->join;
    int64_t first = INT64_MAX;
    if (a->first_sample == 0)
        return;
    g->lead_begin_ns = arena_array(&g->arena, join->n_ranks, sizeof *g->lead_begin_ns);
    for (uint32_t r = 0; r < join->n_ranks; r++) {
        g->lead_begin_ns[r] = join->ranks[r].steps.at[assembly_step(a, r, 0)].start_ns;
        first = MIN(first, g->lead_begin_ns[r]);
    }
    for (uint32_t r = 0; r < join->n_ranks; r++)
        g->lead_begin_ns[r] = assembly_span(first, g->lead_begin_ns[r]);
}

static void fill_measured(struct assembly *a)
{
    static const char *const found_by[] = {
        [STEPS_NONE] = "nothing",      [STEPS_MARKED] = "marks",        [STEPS_SESSION] = "session",
        [STEPS_RECORDED] = "recorder", [STEPS_OPTIMIZER] = "optimizer", [STEPS_RANGES] = "ranges",
        [STEPS_PASSES] = "passes",     [STEPS_PERIOD] = "period"};
    struct dpro_graph *g = a->graph;
    struct join *join = a->join;
    const struct rank_build *of = &join->ranks[0];
    g->steps = (struct dpro_steps){
        (uint32_t)of->steps.n, found_by[of->steps.source],
        arena_format(&g->arena, "%s", of->steps.mark ? strtab_get(of->names, of->steps.mark) : ""),
        of->steps.source == STEPS_OPTIMIZER ? of->steps.n_updates : 0};
    g->measured_ns = arena_array(&g->arena, g->n_samples, sizeof *g->measured_ns);
    g->sample_number = arena_array(&g->arena, g->n_samples, sizeof *g->sample_number);
    g->sample_follows = arena_array(&g->arena, g->n_samples, sizeof *g->sample_follows);
    /* of one that was chosen among others, or on a GPU that is never done, it is known when the
     * next one begins */
    g->single_iteration = a->n_samples == 1 && join->ranks[0].steps.n == 1;
    for (uint32_t r = 0; r < join->n_ranks; r++)
        g->single_iteration &= join->ranks[r].pace.track == NO_ID;
    bool ranks_meet = graph_ranks_meet(g);
    for (uint32_t s = 0; s < g->n_samples; s++) {
        __int128 sum = 0;
        int64_t first = INT64_MAX, last = INT64_MIN, begin = INT64_MIN, end = INT64_MIN;
        for (uint32_t r = 0; r < join->n_ranks; r++) {
            const struct rank_build *rank = &join->ranks[r];
            uint32_t step = assembly_step(a, r, a->first_sample + s);
            int64_t took_ns = build_step_ns(rank, step), begin_ns = build_step_begin(rank, step);
            sum += took_ns;
            begin = MAX(begin, begin_ns);
            end = MAX(end, time_add(begin_ns, took_ns));
            for (uint32_t o = 0; o < rank->n_timed && g->single_iteration; o++) {
                size_t at = build_at(rank, step, o);
                if (o == rank->boundary || rank->start_ns[at] == ABSENT)
                    continue;
                first = MIN(first, rank->start_ns[at]);
                last = MAX(last, rank->end_ns[at]);
            }
        }
        g->measured_ns[s] = g->single_iteration ? assembly_span(first, last)
                            : ranks_meet        ? assembly_span(begin, end)
                                                : (int64_t)(sum / join->n_ranks);
        const struct step *lead =
            &join->ranks[0].steps.at[assembly_step(a, 0, a->first_sample + s)];
        g->sample_follows[s] = join->choice.overlaps_next || lead->follows;
        g->sample_number[s] = lead->number;
    }
}

static void fill_grown(struct assembly *a)
{
    struct dpro_graph *g = a->graph;
    size_t n = 0;
    for (uint32_t r = 0; r < a->join->n_ranks; r++)
        n += a->join->ranks[r].grown.n;
    g->grown = arena_array(&g->arena, n + 1, sizeof *g->grown);
    for (uint32_t r = 0; r < a->join->n_ranks; r++)
        EACH (const struct grown_time, from, a->join->ranks[r].grown) {
            if (from->sample < a->first_sample)
                continue;
            struct grown_time *to = &g->grown[g->n_grown++];
            *to = *from;
            to->rank = r;
            to->sample -= a->first_sample;
            to->name = strtab_copy(&g->names, &a->trace->names, from->name);
        }
}

static void fill_pace(struct assembly *a)
{
    struct dpro_pace *pace = &a->graph->pace;
    for (uint32_t r = 0; r < a->join->n_ranks; r++)
        pace->n_ranks += a->join->ranks[r].pace.track != NO_ID;
    EACH_OF (const struct rank_build, rank, a->join->ranks, a->join->n_ranks) {
        if (rank->pace.track == NO_ID)
            continue;
        pace->marks_ns += rank->pace.times.marks_ns / pace->n_ranks;
        pace->device_ns += rank->pace.times.device_ns / pace->n_ranks;
        pace->ahead_ns += rank->pace.times.ahead_ns / pace->n_ranks;
    }
}

static void fill_left_out(struct assembly *a)
{
    SCRATCH struct map seen = {0}; /* numbers, as several ranks may show why */
    EACH (const struct left_out, from, a->join->choice.left_out) {
        struct dpro_left_out to = {.number = from->number};
        if (from->kept || !map_insert(&seen, map_key((uint64_t)from->number), 1))
            continue;
        to.reason = arena_copy_string(&a->graph->arena, from->reason, strlen(from->reason));
        array_push(&a->graph->left_out, to);
    }
}

/* A process has an address in common with another one, which comes before it: ranks go first. */
static void share_host(struct dpro_graph *g, uint32_t process, uint32_t with)
{
    if (process < g->n_ranks) {
        g->rank_hosts[process] = MIN(g->rank_hosts[process], with);
    } else if (with < g->n_ranks) {
        int32_t *host = &g->server_hosts[process - g->n_ranks];
        *host = *host < 0 ? (int32_t)with : MIN(*host, (int32_t)with);
    }
}

/* Ranks that no log tells the address of, of a job without servers: those whose hosts have one name
 * are on one. Where some have neither, nothing is known. */
static void fill_named_hosts(struct assembly *a)
{
    struct dpro_graph *g = a->graph;
    SCRATCH struct map first = {0};
    for (uint32_t r = 0; r < g->n_ranks && g->rank_hosts; r++) {
        uint32_t host = a->join->ranks[r].trace->host;
        g->rank_hosts[r] = (uint32_t)map_first(&first, map_key(host), r);
        if (host == 0)
            g->rank_hosts = NULL;
    }
}

/* Which rank is the first one with whom each process has an address in common. */
static void fill_hosts(struct assembly *a)
{
    struct dpro_graph *g = a->graph;
    SCRATCH struct map owners = {0}; /* the first process that has an address */
    uint32_t n_known = 0;
    g->rank_hosts = arena_array(&g->arena, g->n_ranks, sizeof *g->rank_hosts);
    g->server_hosts = arena_array(&g->arena, g->n_servers, sizeof *g->server_hosts);
    for (uint32_t r = 0; r < g->n_ranks; r++)
        g->rank_hosts[r] = r;
    for (uint32_t s = 0; s < g->n_servers; s++)
        g->server_hosts[s] = -1;
    for (uint32_t p = 0; p < g->n_ranks + g->n_servers; p++) {
        bool known = false;
        EACH_OF (const struct net_transport, transport, a->trace->transports,
                 a->trace->n_transports)
            for (size_t i = 0; i < transport->connections.n && transport->rank == g->ranks[p].rank;
                 i++) {
                const struct net_address *local = &transport->connections.at[i].local;
                if (local->family == AF_UNIX)
                    continue;
                known = true;
                share_host(g, p, (uint32_t)map_first(&owners, message_address_key(local), p));
            }
        n_known += known;
    }
    if (g->n_servers == 0 && n_known == 0)
        fill_named_hosts(a);
    else if (g->n_servers == 0 && n_known < g->n_ranks)
        g->rank_hosts = NULL;
}

/* The threads of an executor's pool take its ops in turns. */
static void fill_pools(struct assembly *a)
{
    for (uint32_t r = 0; r < assembly_n_processes(a); r++) {
        const struct rank_build *rank = &a->join->ranks[r];
        uint32_t pool = DPRO_NO_DEVICE;
        for (uint32_t d = 0; d < rank->devices.n; d++) {
            const struct graph_device *device = &rank->devices.at[d]; /* named after its track */
            if (device->n_slots > 0) {
                a->graph->devices[a->first_device[r] + d].pool = a->first_device[r] + d;
                a->graph->devices[a->first_device[r] + d].n_slots = device->n_slots;
                continue;
            }
            if (rank->n_slots == 0 || device->kind != DPRO_DEVICE_CPU_THREAD ||
                !rank->trace->tracks[device->name].pool)
                continue;
            if (pool == DPRO_NO_DEVICE)
                pool = a->first_device[r] + d;
            a->graph->devices[a->first_device[r] + d].pool = pool;
            a->graph->devices[a->first_device[r] + d].n_slots = rank->n_slots;
        }
    }
}

static void fill_shared_links(struct assembly *a)
{
    for (uint32_t l = 0; l < a->lines.n; l++) {
        const struct assembly_line *line = &a->lines.at[l];
        struct graph_device *device = &a->graph->devices[assembly_line_device(a, l)];
        if (line->n_sharing == 1)
            continue;
        device->shared = assembly_line_device(a, line->first);
        device->n_sharing = line->n_sharing;
    }
}

static void fill_cycles(struct assembly *a)
{
    enum { USUAL_MIB = 128 }; /* since 0.21; 64 before */
    const struct fusion *fusion = a->trace->fusion;
    struct graph_cycles *cycles = &a->graph->cycles;
    if (!fusion || fusion->cycle_ns <= 0)
        return;
    *cycles = (struct graph_cycles){.cycle_ns = fusion->cycle_ns,
                                    .negotiate_ns = fusion->negotiate_ns,
                                    .fuses = true,
                                    .fusion_bytes = (uint64_t)USUAL_MIB << 20};
    cycles->fusion_bytes = MIN(cycles->fusion_bytes, fusion->most_bytes);
    for (uint32_t r = 0; r < a->trace->n_ranks; r++) {
        const struct recording *recording = a->trace->ranks[r].recording;
        if (!recording || !recording->fusion.is_set)
            continue;
        cycles->fuses = !recording->fusion.in_groups;
        cycles->fusion_bytes = recording->fusion.most_bytes;
    }
    cycles->reductions =
        arena_array(&a->graph->arena, fusion->n_samples + (size_t)1, sizeof *cycles->reductions);
    for (uint32_t i = 0; i < fusion->n_samples; i++)
        cycles->reductions[cycles->n_reductions++] =
            (struct graph_reduction){fusion->samples[i].size_bytes, fusion->samples[i].took_ns};
}

static void fill_micro_batches(struct graph_rank *to, const struct rank_build *rank)
{
    to->n_micro_batches = rank->steps.at[rank->steps.reference].n_micro_batches;
    for (uint32_t s = 0; s < rank->n_samples; s++) {
        uint32_t n = rank->steps.at[rank->sample_step[s]].n_micro_batches;
        if (n > 0 && (to->fewest_micro_batches == 0 || n < to->fewest_micro_batches))
            to->fewest_micro_batches = n;
        to->most_micro_batches = MAX(to->most_micro_batches, n);
    }
}

static void fill_ranks(struct assembly *a)
{
    struct dpro_graph *g = a->graph;
    g->work = arena_array(&g->arena, assembly_n_processes(a) + (size_t)1, sizeof *g->work);
    for (uint32_t r = 0, n = 0; r < assembly_n_processes(a); r++) {
        const struct rank_build *rank = &a->join->ranks[r];
        if (a->first_op[r + 1] == a->first_op[r])
            continue; /* a server that took no part */
        g->work[n].device =
            arena_format(&g->arena, "%s", strtab_get(&a->trace->names, rank->trace->device));
        memcpy(g->work[n].of, rank->work, sizeof rank->work);
        g->work[n].lacks_strides = rank->lacks_strides;
        if (rank->trace->recording) {
            g->ranks[n].gradient_bytes = rank->trace->recording->gradient_bytes;
            g->ranks[n].bf16_cpu = rank->trace->recording->bf16_cpu;
        }
        g->ranks[n].in_16_bits = rank->in_16_bits;
        g->hides_phases |= rank->hides_phases;
        g->ranks[n].unmatched_ns = rank->unmatched_ns;
        fill_micro_batches(&g->ranks[n], rank);
        g->ranks[n].n_message_ops = a->first_op[r + 1] - a->first_message[r];
        if (r < a->join->n_ranks && rank->pace.track != NO_ID) {
            g->ranks[n].on_device = true;
            g->ranks[n].first_work = a->first_op[r] + rank->pace.first;
            g->ranks[n].last_work = a->first_op[r] + rank->pace.last;
        }
        n++;
    }
    for (uint32_t op = 0; op < g->n_ops; op++) /* else the rest is forward */
        g->hides_phases &= g->phase[op] != DPRO_OP_BW;
    uint32_t n_workers = 0; /* a session's servers are built as its workers are */
    while (n_workers < a->join->n_ranks && a->join->ranks[n_workers].trace->rank >= 0)
        n_workers++;
    g->n_servers = g->n_ranks - n_workers;
    g->n_ranks = n_workers;
    g->framework = dpro_trace_framework(a->trace);
    g->of_stages = a->trace->stages != NULL;
    g->in_session = a->join->n_ranks > 0 && a->join->ranks[0].trace->in_session;
    g->world_size = (uint32_t)a->join->world_size;
}

/* Of unknown size, a collective is like itself only. */
static uint64_t kind_and_size(const struct dpro_graph *g, const struct graph_collective *c)
{
    uint64_t size = c->size_bytes ? c->size_bytes : UINT64_MAX - (uint64_t)(c - g->collectives);
    return map_mix(map_mix(size) + c->kind) | 1;
}

/* How much longer a transfer took than the shortest of any collective of its kind and size is
 * waiting, where ranks are missing. Of those made of messages only the ends are transfers. */
static void fill_missing_waits(struct dpro_graph *g)
{
    SCRATCH struct map shortest = {0};
    EACH_OF (const struct graph_collective, c, g->collectives, g->n_collectives) {
        uint64_t least = map_or(&shortest, kind_and_size(g, c), INT64_MAX);
        if (c->n_messages > 0)
            continue;
        for (uint32_t m = 0; m < c->n_members; m++)
            for (uint32_t s = 0; s < g->n_samples; s++) {
                uint32_t op = g->members[c->first_member + m].transfer;
                least = MIN(least, (uint64_t)g->sample_dur_ns[(size_t)s * g->n_ops + op]);
            }
        map_set(&shortest, kind_and_size(g, c), least);
    }
    EACH_OF (struct graph_collective, c, g->collectives, g->n_collectives) {
        uint64_t least = 0;
        if (c->n_expected > c->n_members && map_get(&shortest, kind_and_size(g, c), &least))
            c->missing_wait_ns =
                assembly_span((int64_t)least, g->dur_ns[g->members[c->first_member].transfer]);
    }
}

static void fill_collectives(struct assembly *a)
{
    struct dpro_graph *g = a->graph;
    struct join *join = a->join;
    g->n_collectives = (uint32_t)join->joined.n;
    g->n_members = (uint32_t)join->members.n;
    g->collectives = arena_array(&g->arena, g->n_collectives, sizeof *g->collectives);
    g->members = arena_array(&g->arena, g->n_members, sizeof *g->members);
    if (g->n_collectives > 0 && !g->transaction)
        g->transaction = arena_array(&g->arena, g->n_ops, sizeof *g->transaction);
    for (uint32_t j = 0; j < g->n_collectives; j++) {
        const struct joined *joined = &join->joined.at[j];
        const struct local_collective *c = JOIN_PART(join, joined);
        g->collectives[j] =
            (struct graph_collective){.kind = c->kind,
                                      .group = strtab_copy(&g->names, &a->trace->names, c->group),
                                      .key = c->key,
                                      .size_bytes = c->size_bytes,
                                      .barrier = a->barriers[j],
                                      .first_member = joined->first_member,
                                      .n_members = joined->n_members,
                                      .n_expected = joined->n_expected,
                                      .n_messages = joined->n_data,
                                      .dimension = c->dimension,
                                      .pattern = joined->pattern.name,
                                      .n_chunks = joined->pattern.n_chunks,
                                      .n_channels = joined->pattern.n_channels};
        for (uint32_t m = joined->first_member; m < joined->first_member + joined->n_members; m++) {
            const struct member *member = &join->members.at[m];
            join->ranks[member->rank].collectives.at[member->collective].joined = j;
            const struct local_collective *own = JOIN_PART(join, member);
            g->members[m].arrival = a->first_op[member->rank] + own->arrival;
            g->members[m].transfer = a->first_op[member->rank] + own->transfer;
            g->members[m].exchange_ns = member->exchange_ns;
            g->transaction[g->members[m].arrival] = j + 1;
            g->transaction[g->members[m].transfer] = j + 1;
        }
    }
    fill_missing_waits(g);
}

static void fill_tensors(struct assembly *a)
{
    struct dpro_graph *g = a->graph;
    struct join *join = a->join;
    size_t n = 0;
    for (uint32_t r = 0; r < join->n_ranks; r++)
        n += join->ranks[r].tensors.n;
    g->tensors = arena_array(&g->arena, n, sizeof *g->tensors);
    for (uint32_t r = 0; r < join->n_ranks; r++) {
        const struct rank_build *rank = &join->ranks[r];
        for (size_t t = 0; t < rank->tensors.n; t++) {
            const struct local_tensor *tensor = &rank->tensors.at[t];
            g->tensors[g->n_tensors++] =
                (struct graph_tensor){.name = assembly_name_tensor(a, rank, tensor, t),
                                      .size_bytes = tensor->size_bytes,
                                      .held_bytes = tensor->held_bytes,
                                      .rank = r,
                                      .in = a->first_op[r] + tensor->in,
                                      .out = a->first_op[r] + tensor->out,
                                      .collective = rank->collectives.at[tensor->collective].joined,
                                      .named = tensor->name != 0};
        }
    }
}

/* Only the recorder knows what the profiler costs. Ranks run the same ops: what one measured above
 * the others is chance, and must not move the ranks against each other. */
static void fill_profiler(struct assembly *a)
{
    struct dpro_graph *g = a->graph;
    struct profiler_cost sum = {0};
    uint32_t n_known = 0;
    EACH_OF (const struct rank_build, rank, a->join->ranks, a->join->n_ranks)
        if (assembly_knows_profiler(rank)) {
            sum.op_ns += rank->trace->recording->profiler.op_ns;
            sum.launch_ns += rank->trace->recording->profiler.launch_ns;
            sum.call_ns += rank->trace->recording->profiler.call_ns;
            n_known++;
        }
    if (n_known == 0)
        return;
    g->profiler = arena_array(&g->arena, assembly_n_processes(a), sizeof *g->profiler);
    for (uint32_t r = 0; r < a->join->n_ranks; r++)
        if (assembly_knows_profiler(&a->join->ranks[r]))
            g->profiler[r] = (struct profiler_cost){sum.op_ns / n_known, sum.launch_ns / n_known,
                                                    sum.call_ns / n_known};
}

/* Where all ranks have the same units. */
static bool units_agree(const struct join *join)
{
    for (uint32_t r = 0; r < join->n_ranks; r++) {
        const struct recording *first = join->ranks[0].trace->recording;
        const struct recording *own = join->ranks[r].trace->recording;
        if (!join->ranks[r].unit_requests || own->buckets.n != first->buckets.n)
            return false;
        for (size_t u = 0; u < own->buckets.n; u++)
            if (own->buckets.at[u].name != first->buckets.at[u].name)
                return false;
    }
    return join->n_ranks > 0;
}

/* The collective that each op is part of: as its barrier, as a member's, as one of its messages;
 * NO_ID: of none. */
static uint32_t *list_collectives(struct assembly *a)
{
    const struct dpro_graph *g = a->graph;
    uint32_t *of = arena_alloc(&a->scratch, a->n_ops * sizeof *of);
    memset(of, 0xFF, a->n_ops * sizeof *of);
    for (uint32_t j = 0; j < g->n_collectives; j++) {
        const struct graph_collective *c = &g->collectives[j];
        if (c->barrier != DPRO_NO_OP)
            of[c->barrier] = j;
        for (uint32_t m = c->first_member; m < c->first_member + c->n_members; m++)
            of[g->members[m].arrival] = of[g->members[m].transfer] = j;
    }
    for (uint32_t r = 0; r < assembly_n_processes(a); r++)
        for (uint32_t op = a->first_message[r]; op < a->first_op[r + 1]; op++) {
            enum message_op as = MESSAGE_CALL;
            of[op] = a->messages->all.at[assembly_message(a, r, op, &as)].joined;
        }
    return of;
}

/* Ops by what their rank says, a collective's on all ranks by what the first says. */
static void fill_gathers(struct assembly *a)
{
    struct dpro_graph *g = a->graph;
    const uint32_t *collective = list_collectives(a);
    for (uint32_t r = 0; r < a->join->n_ranks; r++)
        for (uint32_t o = 0; o < a->join->ranks[r].ops.n; o++)
            g->gather[a->first_op[r] + o] = a->join->ranks[r].ops.at[o].gather;
    for (uint32_t op = 0; op < a->n_ops; op++)
        if (collective[op] != NO_ID)
            g->gather[op] =
                g->gather[g->members[g->collectives[collective[op]].first_member].arrival];
}

static void fill_units(struct assembly *a)
{
    struct dpro_graph *g = a->graph;
    const struct join *join = a->join;
    if (!units_agree(join))
        return;
    const struct recording *recording = join->ranks[0].trace->recording;
    g->n_units = (uint32_t)recording->buckets.n;
    g->units = arena_array(&g->arena, g->n_units, sizeof *g->units);
    g->gather = arena_array(&g->arena, g->n_ops, sizeof *g->gather);
    for (uint32_t u = 0; u < g->n_units; u++) {
        struct graph_unit *unit = &g->units[u];
        unit->name = strtab_copy(&g->names, &a->trace->names, recording->buckets.at[u].name);
        unit->request = arena_array(&g->arena, join->n_ranks, sizeof *unit->request);
        for (uint32_t r = 0; r < join->n_ranks; r++) {
            uint32_t request = join->ranks[r].unit_requests[u];
            unit->request[r] = request == NO_ID ? DPRO_NO_OP : a->first_op[r] + request;
        }
    }
    fill_gathers(a);
}

/* What belongs to a collective communicates in its dimension. */
static void fill_op_dimensions(struct assembly *a)
{
    struct dpro_graph *g = a->graph;
    const uint32_t *collective = list_collectives(a);
    g->dimension = arena_array(&g->arena, g->n_ops, sizeof *g->dimension);
    for (uint32_t op = 0; op < a->n_ops; op++)
        if (collective[op] != NO_ID) /* 0: none */
            g->dimension[op] = (uint8_t)(g->collectives[collective[op]].dimension + 1);
}

static void fill_dimensions(struct assembly *a)
{
    struct dpro_graph *g = a->graph;
    g->dimensions_note = arena_format(&g->arena, "%s", a->dimensions->note);
    if (a->dimensions->all.n == 0)
        return;
    g->dimensions = arena_array(&g->arena, a->dimensions->all.n, sizeof *g->dimensions);
    EACH (const struct found_dimension, found, a->dimensions->all)
        g->dimensions[g->n_dimensions++] = (struct graph_dimension){
            .parallelism = (uint8_t)found->does,
            .lies_over = found->lies_over,
            .size = found->size,
            .n_groups = (uint32_t)(found->groups.n / found->size),
            .ranks = arena_copy(&g->arena, found->groups.at, found->groups.n, sizeof(int)),
            .n_per_rank = found->n_per_rank,
            .bytes_per_rank = found->bytes_per_rank,
            .evidence = arena_format(&g->arena, "%s", found->evidence)};
    fill_op_dimensions(a);
}

static void fill_memory(struct assembly *a)
{
    bool is_known = false;
    for (uint32_t r = 0; r < a->join->n_ranks; r++)
        is_known |= a->join->ranks[r].memory != NULL;
    if (!is_known)
        return;
    a->graph->memory =
        arena_array(&a->graph->arena, assembly_n_processes(a), sizeof *a->graph->memory);
    for (uint32_t r = 0; r < a->join->n_ranks; r++)
        rank_memory_fill(&a->join->ranks[r], a->graph, a->first_op[r], &a->graph->memory[r]);
}

void assembly_fill(struct assembly *a)
{
    fill_ranks(a);
    fill_hosts(a);
    fill_pace(a);
    fill_grown(a);
    fill_pools(a);
    fill_shared_links(a);
    fill_cycles(a);
    assembly_time(a);
    fill_seen(a);
    fill_collectives(a);
    fill_measured(a);
    fill_left_out(a);
    fill_lead(a);
    fill_tensors(a);
    exchanges_find(a->graph);
    fill_profiler(a);
    fill_units(a);
    fill_dimensions(a);
    fill_memory(a);
}
