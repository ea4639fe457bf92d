/* A stage timeline as ranks. A worker runs passes on one thread, and sends, receives and
 * collectives on others, each in turn, as streams of a GPU would. */
#include "ingest/stages/stage_ranks.h"
#include "ingest/rank_job.h"
#include "ingest/stages/stage_times.h"

static void stages_fini(void *payload)
{
    stage_table_fini(payload);
}

const struct payload_kind stage_payload = {sizeof(struct stage_table), stages_fini, NULL};

enum { PASSES, SENDS_FORWARD, SHARDS = SENDS_FORWARD + 4, N_TRACKS };

static uint32_t track_of(const struct stage_op *op)
{
    return stage_op_is_message(op->type) ? SENDS_FORWARD + op->type - STAGE_FORWARD_SEND
           : stage_op_kinds[op->type].comm == STAGE_COMPUTES ? PASSES
                                                             : SHARDS;
}

struct ranks_maker {
    const struct stage_table *table;
    const struct stage_plan *plan;
    struct stage_times times;
};

/* One worker on its way to be a part. */
struct part_maker {
    const struct ranks_maker *all;
    struct trace_part *part;
    uint32_t rank;
    uint32_t names[N_STAGE_OPS], groups[N_STAGE_COMMS]; /* string ids */
    bool alone[N_STAGE_COMMS];                          /* nobody else is in the group */
};

static uint32_t intern_name(struct part_maker *m, const char *text)
{
    return part_intern(m->part, text, strlen(text));
}

static void add_groups(struct part_maker *m)
{
    static const struct {
        const char *name, *description;
    } kinds[N_STAGE_COMMS] = {[STAGE_FORWARDS] = {"pp forward", "pipeline parallel"},
                              {"pp backward", "pipeline parallel"},
                              {"dp", "data parallel"},
                              {"embeddings", "pipeline parallel, embeddings"},
                              {"all", ""}};
    const struct stage_table *table = m->all->table;
    const struct stage_worker *own = &table->workers.at[m->rank];
    char name[64];
    for (int g = STAGE_FORWARDS; g < N_STAGE_COMMS; g++) {
        bool over_replicas = g == STAGE_OF_STAGE;
        uint32_t n = over_replicas ? table->n_replicas : table->n_stages;
        int32_t *ranks = arena_alloc(&m->part->arena, (n + (size_t)1) * sizeof *ranks);
        struct trace_group group = {.ranks = ranks,
                                    .description = intern_name(m, kinds[g].description)};
        for (uint32_t i = 0; i < n && g != STAGE_OF_ALL; i++) {
            size_t at = over_replicas ? (size_t)i * table->n_stages + own->stage
                                      : (size_t)own->replica * table->n_stages + i;
            bool inner = g == STAGE_OF_REPLICA && i > 0 && i + 1 < n;
            if (table->worker_at[at] != UINT32_MAX && !inner)
                ranks[group.n_ranks++] = (int32_t)table->worker_at[at];
        }
        if (n > 1 || g == STAGE_OF_ALL)
            sort_u32((uint32_t *)ranks, group.n_ranks);
        m->alone[g] = g == STAGE_OF_ALL ? table->workers.n < 2 : group.n_ranks < 2;
        snprintf(name, sizeof name, "%s %u", kinds[g].name,
                 g == STAGE_OF_ALL ? 0
                 : over_replicas   ? own->stage
                                   : own->replica);
        group.name = m->groups[g] = intern_name(m, name);
        array_push(&m->part->groups, group);
    }
}

/* ---- spans ---- */

static uint32_t add_detail(struct part_maker *m, enum stage_comm group, uint32_t collective,
                           int32_t peer)
{
    struct trace_detail detail = {DETAIL_UNKNOWN, .process_group = m->groups[group],
                                  .collective = collective};
    detail.peer = peer;
    array_push(&m->part->details, detail);
    return (uint32_t)m->part->details.n - 1;
}

/* The worker at the other end of a message; UINT32_MAX: nothing tells. */
static uint32_t peer_of(const struct part_maker *m, const struct stage_op *op, size_t place)
{
    const struct stage_table *table = m->all->table;
    const struct stage_plan *plan = m->all->plan;
    const struct stage_worker *own = &table->workers.at[m->rank];
    size_t at = plan->first_of_stage[own->stage] + place;
    if (at >= plan->first_of_stage[own->stage + 1] || plan->ops[at].type != op->type ||
        plan->ops[at].peer == UINT32_MAX)
        return UINT32_MAX;
    return table->worker_at[own->replica * table->n_stages + plan->ops[plan->ops[at].peer].stage];
}

static void add_op(struct part_maker *m, const struct stage_op *op, size_t place, uint32_t number)
{
    struct trace_part *part = m->part;
    size_t at = (size_t)(op - m->all->table->ops.at);
    struct trace_span span = {.start_ns = m->all->times.arrived_ns[at],
                              .dur_ns = m->all->times.ended_ns[at] - m->all->times.arrived_ns[at],
                              .name = m->names[op->type],
                              .track = track_of(op),
                              .external = number,
                              .kind = SPAN_CPU_OP,
                              SPAN_UNKNOWN};
    enum stage_comm comm = stage_op_kinds[op->type].comm;
    bool message = stage_op_is_message(op->type);
    uint32_t peer = message ? peer_of(m, op, place) : 0;
    if (op->type == STAGE_FORWARD || op->type == STAGE_BACKWARD) {
        char mark[64]; /* as PyTorch's schedules mark a pass */
        struct trace_span pass = span;
        snprintf(mark, sizeof mark, "PP:%u%c%d",
                 op->chunk * m->all->table->n_stages + m->all->table->workers.at[m->rank].stage,
                 op->type == STAGE_FORWARD ? 'F' : 'B', op->micro_batch);
        pass.name = intern_name(m, mark);
        pass.kind = SPAN_ANNOTATION;
        pass.external = 0;
        part_place_span(part, &pass);
    } else if (span.track != PASSES && peer != UINT32_MAX && !m->alone[comm]) {
        span.kind = SPAN_COLLECTIVE;
        span.detail = add_detail(
            m, comm, op->type == STAGE_CLIP ? intern_name(m, "all_reduce") : m->names[op->type],
            message ? (int32_t)peer : -1);
    }
    part_place_span(part, &span);
}

/* Of data-parallel ranks, before an op, in something that the file does not list. */
static void add_meeting(struct part_maker *m, const struct stage_meeting *meeting, uint32_t number)
{
    struct trace_span span = {.start_ns = meeting->start_ns,
                              .dur_ns = meeting->end_ns - meeting->start_ns,
                              .name = intern_name(m, "not recorded: ranks wait for each other"),
                              .track = SHARDS,
                              .external = number,
                              .kind = SPAN_COLLECTIVE,
                              SPAN_UNKNOWN};
    span.detail = add_detail(m, STAGE_OF_STAGE, intern_name(m, "barrier"), -1);
    part_place_span(m->part, &span);
}

static void add_spans(struct part_maker *m)
{
    const struct stage_table *table = m->all->table;
    const size_t *first = &table->first[m->rank * table->steps.n];
    uint32_t number = 0, n_all = (uint32_t)(first[table->steps.n] - first[0]);
    for (uint32_t s = 0; s < table->steps.n; s++) {
        size_t n = stage_table_count(table, m->rank, s);
        const struct stage_op *ops = stage_table_ops(table, m->rank, s);
        if (n == 0)
            continue;
        struct trace_span step = {.start_ns = table->bounds[s][0],
                                  .dur_ns = table->bounds[s][1] - table->bounds[s][0],
                                  .name = intern_name(m, "step"),
                                  .track = PASSES,
                                  .kind = SPAN_STEP,
                                  SPAN_UNKNOWN};
        struct trace_span begin = step;
        step.sequence = (int32_t)table->steps.at[s];
        begin.name = intern_name(m, "begin of the step");
        begin.dur_ns = 1; /* what takes no time is no op */
        begin.kind = SPAN_CPU_OP;
        begin.external = 2 * n_all + s + 1;
        part_place_span(m->part, &step);
        part_place_span(m->part, &begin);
        for (size_t i = 0; i < n; i++) {
            const struct stage_meeting *meeting =
                stage_meeting_before(&m->all->times, (size_t)(&ops[i] - table->ops.at));
            add_op(m, &ops[i], i, ++number);
            if (meeting)
                add_meeting(m, meeting, n_all + number);
        }
    }
}

static void make_part(const struct ranks_maker *all, uint32_t rank, struct trace_part *part)
{
    static const char *const tracks[N_TRACKS] = {
        "passes",         "forward sends",     "forward receives",
        "backward sends", "backward receives", "data-parallel communication"};
    struct part_maker m = {.all = all, .part = part, .rank = rank};
    part_intern(part, "", 0);
    part_set_rank(part, rank, (int64_t)all->table->workers.n);
    part->process.host = intern_name(&m, "stage timeline"); /* one clock */
    for (uint32_t t = 0; t < N_TRACKS; t++)
        array_add(&part->tracks, .track = {.serial = t != PASSES,
                                           .pid = 1,
                                           .id = t + 1,
                                           .name = intern_name(&m, tracks[t])});
    for (int type = 0; type < N_STAGE_OPS; type++)
        m.names[type] = intern_name(&m, stage_op_kinds[type].name);
    add_groups(&m);
    add_spans(&m);
}

void stage_ranks_make(struct trace_part *part, struct stage_table *table)
{
    SCRATCH_ARENA struct arena scratch = {0};
    struct stage_plan plan;
    struct ranks_maker all = {.table = table, .plan = &plan};
    struct trace_part *last = part;
    stage_plan_make(table, &plan, &scratch);
    stage_times_find(table, &plan, &all.times, &scratch);
    for (uint32_t rank = 0; rank < table->workers.n; rank++) {
        if (rank > 0)
            last = last->next = mem_array(1, sizeof *last);
        make_part(&all, rank, last);
    }
    array_fini(&all.times.meetings);
    *(struct stage_table *)part_make_payload(part, &stage_payload) = *table;
    *table = (struct stage_table){.n_stages = 0};
}

/* ---- what waits for what ---- */

/* The spans of a worker's n ops, by their number: none was dropped, as no two have the same. Behind
 * them those of the meetings before them; NO_ID: there is none. Then begins of steps. */
static uint32_t *spans_by_number(const struct trace_rank *rank, size_t n, size_t n_steps)
{
    size_t n_numbers = 2 * n + n_steps;
    uint32_t *spans = mem_alloc((n_numbers + 1) * sizeof *spans);
    memset(spans, 0xFF, (n_numbers + 1) * sizeof *spans);
    for (uint32_t i = 0; i < rank->n_spans; i++)
        if (rank->spans[i].external > 0 && rank->spans[i].external <= n_numbers)
            spans[rank->spans[i].external - 1] = i;
    return spans;
}

/* Communication follows the last pass that was over when it was asked for. */
static void link_to_pass(struct trace_rank *rank, const struct stage_plan_op *ops, uint32_t n,
                         const uint32_t *spans, uint32_t to)
{
    uint32_t last = NO_ID;
    for (uint32_t i = 0; i < n && ops[i].type <= STAGE_BACKWARD; i++) {
        bool over = span_end_ns(&rank->spans[spans[i]]) <= rank->spans[to].start_ns;
        if (over && (last == NO_ID ||
                     span_end_ns(&rank->spans[spans[i]]) > span_end_ns(&rank->spans[last])))
            last = spans[i];
    }
    if (last != NO_ID)
        RANK_PUSH(rank, links, (struct trace_link){last, to});
}

static void link_step(struct trace_rank *rank, const struct stage_plan *plan, uint32_t stage,
                      const uint32_t *spans, const uint32_t *meetings, uint32_t begin)
{
    const struct stage_plan_op *ops = plan->ops + plan->first_of_stage[stage];
    uint32_t n = plan->first_of_stage[stage + 1] - plan->first_of_stage[stage];
    for (uint32_t i = 0; i < n; i++) {
        if (ops[i].n_before == 0)
            RANK_PUSH(rank, links, (struct trace_link){begin, spans[i]});
        for (uint32_t k = ops[i].first_before; k < ops[i].first_before + ops[i].n_before; k++) {
            uint32_t before = spans[plan->before[k] - plan->first_of_stage[stage]];
            uint32_t to = meetings[i] == NO_ID ? spans[i] : meetings[i];
            RANK_PUSH(rank, links, (struct trace_link){before, to});
        }
        if (meetings[i] != NO_ID) {
            RANK_PUSH(rank, links, (struct trace_link){meetings[i], spans[i]});
            link_to_pass(rank, ops, n, spans, meetings[i]); /* what lies between may be empty */
        }
        if (stage_op_receives(ops[i].type))
            link_to_pass(rank, ops, n, spans, spans[i]);
    }
}

/* Steps whose ops are those of the plan. */
static void link_rank(const struct stage_table *table, const struct stage_plan *plan,
                      struct trace_rank *rank, uint32_t worker)
{
    const size_t *first = &table->first[worker * table->steps.n];
    size_t n = first[table->steps.n] - first[0];
    SCRATCH uint32_t *spans = spans_by_number(rank, n, table->steps.n);
    for (uint32_t s = 0; s < table->steps.n; s++)
        if (stage_table_fits(table, plan, worker, s))
            link_step(rank, plan, table->workers.at[worker].stage, spans + (first[s] - first[0]),
                      spans + n + (first[s] - first[0]), spans[2 * n + s]);
}

void stage_ranks_join(struct trace_build *build)
{
    EACH (struct source, source, build->list) {
        struct stage_table *table = source_payload(source, &stage_payload);
        struct stage_plan plan;
        SCRATCH_ARENA struct arena scratch = {0};
        if (!table || build->trace->stages)
            continue;
        build->trace->stages = part_take_payload(&source->part, &stage_payload);
        stage_plan_make(table, &plan, &scratch);
        EACH_OF (struct trace_rank, rank, build->trace->ranks, build->trace->n_ranks)
            if ((size_t)rank->rank < table->workers.n && rank->spans)
                link_rank(table, &plan, rank, (uint32_t)rank->rank);
    }
}

/* Workers are numbered within a file. */
void stage_ranks_choose(struct trace_build *build)
{
    const struct source *first = NULL, *told = NULL;
    EACH (struct source, source, build->list) {
        if (!source_usable(source) || source->reader->join != stage_ranks_join)
            continue;
        first = first ?: source;
        if (strcmp(source->path, first->path) == 0)
            continue;
        if (!told || strcmp(source->path, told->path) != 0)
            build_warn(build,
                       "%s: left out, as %s is a stage timeline, too; put all of a job's "
                       "rows into one file",
                       source->path, first->path);
        told = source;
        source->reader = NULL;
    }
}
