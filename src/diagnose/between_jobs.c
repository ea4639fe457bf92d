/* Puts what one job does otherwise into the graph of the other.
 *
 * An op that only the faster job has is put where it would run. There it takes no time, and of
 * edges that only that job has a cause takes away that nothing waits because of them. One that
 * would close a circle with those of the slower job is left out. */
#include "diagnose/between_jobs.h"

#include "diagnose/causes.h"
#include "replay/replay.h"

/* ---- which op is of what ---- */

static bool is_one_thread(const struct dpro_graph *g, uint32_t x, uint32_t y)
{
    return g->device[x] == g->device[y] && device_in_turn(g, g->device[x]);
}

/* The job that an op of the graph is of, and its number there. */
static const struct dpro_graph *job_of(const struct between_jobs *b, uint32_t *op)
{
    if (*op < b->slower->n_ops)
        return b->slower;
    *op = b->faster_op[*op];
    return b->faster;
}

static enum between_cause cause_of(const struct between_jobs *b, uint32_t op,
                                   enum between_cause otherwise)
{
    static const uint8_t by_phase[DPRO_N_OP_KINDS] = {[DPRO_OP_FW] = BETWEEN_FORWARD,
                                                      [DPRO_OP_BW] = BETWEEN_BACKWARD,
                                                      [DPRO_OP_UPDATE] = BETWEEN_UPDATE,
                                                      [DPRO_OP_INPUT] = BETWEEN_INPUT};
    const struct dpro_graph *g = job_of(b, &op);
    uint8_t phase = g->phase[op], kind = g->kind[op];
    bool is_boundary = g->flags && (g->flags[op] & GRAPH_OP_BOUNDARY);
    if (phase == DPRO_OP_COLLECTIVE || (kind >= DPRO_OP_IN && !is_boundary) ||
        (kind == DPRO_OP_LAUNCH && g->device[op] == DPRO_NO_DEVICE))
        return BETWEEN_COMMUNICATION;
    if ((otherwise == BETWEEN_MORE || otherwise == BETWEEN_LESS) &&
        b->recomputed[g == b->slower][op])
        return BETWEEN_RECOMPUTED;
    return otherwise != N_BETWEEN   ? otherwise
           : phase <= DPRO_OP_INPUT ? by_phase[phase]
                                    : BETWEEN_LAUNCH;
}

/* Of communication which one it is, else what runs. */
static uint32_t part_of(const struct between_jobs *b, struct cause_found *found, uint32_t op,
                        bool gap)
{
    const struct dpro_graph *g = job_of(b, &op);
    bool communicates = found == &b->found[BETWEEN_COMMUNICATION];
    const char *name = strtab_get(&g->names, g->name[op]);
    const char *tensor = communicates && g->tensor ? strtab_get(&g->names, g->tensor[op]) : "";
    gap &= !communicates;
    name = tensor[0] ? tensor : name;
    return found_part(found, map_text_key(name) + gap, "%s%s", gap ? "before " : "", name);
}

/* ---- the graph ---- */

/* How a job runs its mean iteration. */
struct run {
    const struct dpro_graph *g;
    uint32_t *order, *next; /* ops in the order they run; by op, what its device runs next */
    uint32_t *common;       /* by op: the last one before it on its thread that both jobs have */
    int64_t *end_ns;
    int64_t *latest_ns; /* of an op for which a free thread makes predecessors needless: those end
                           later. NULL: no op is one */
};

struct between_build {
    struct between_jobs *out;
    const uint32_t *slower_of; /* by op of the faster job; DPRO_NO_OP */
    struct run runs[2];        /* of the faster job, and of the slower one */
    uint32_t *order;           /* by op of the graph: ascends along its edges */
    uint32_t *left; /* by op of the graph: how many it waits for that have no place yet */
    ARRAY(uint32_t) ready;
    struct map common[2]; /* edges that both have, as of the slower; into the next iteration */
    ARRAY(struct cut) added;
    struct arena *arena;
};

static void keep_ends(void *arg, struct replay_copy *copy)
{
    struct run *run = arg;
    run->end_ns = copy->end_ns;
    copy->end_ns = NULL;
}

static void no_times(void *arg, uint32_t copy, const int64_t **dur_ns, const int64_t **gap_ns)
{
    const struct run *run = arg;
    (void)copy;
    *dur_ns = run->g->dur_ns;
    *gap_ns = run->g->gap_ns;
}

static void find_latest(struct run *run, struct arena *arena)
{
    const struct dpro_graph *g = run->g;
    SCRATCH ARRAY(int64_t) ends = {0};
    struct pull pull = pull_make(g->n_ops, g->row, g->succ, arena);
    run->latest_ns = arena_array(arena, (size_t)g->n_ops + 1, sizeof *run->latest_ns);
    for (uint32_t op = 0; op < g->n_ops; op++) {
        ends.n = 0;
        for (uint32_t e = pull.row[op]; e < pull.row[op + 1]; e++)
            array_push(&ends, run->end_ns[pull.pred[e]]);
        run->latest_ns[op] = g->spare[op]
                                 ? graph_all_but_latest(ends.at, (uint32_t)ends.n, g->spare[op])
                                 : INT64_MAX;
    }
}

static void find_run(struct run *run, const struct dpro_graph *g, const uint32_t *other,
                     struct arena *arena)
{
    *run = (struct run){.g = g};
    run->common = arena_alloc(arena, ((size_t)g->n_ops + 1) * sizeof *run->common);
    run->order = arena_array(arena, (size_t)g->n_ops + 1, sizeof *run->order);
    run->next = arena_alloc(arena, ((size_t)g->n_ops + 1) * sizeof *run->next);
    SCRATCH uint32_t *last = mem_alloc((g->n_devices + (size_t)1) * sizeof *last);
    struct event_options options = {.n_copies = 1, .order = run->order};
    event_replay(g, &options, &(struct replay_hooks){run, no_times, keep_ends});
    memset(last, 0xff, g->n_devices * sizeof *last);
    for (uint32_t i = g->n_ops; i-- > 0;) {
        uint32_t op = run->order[i], device = g->device[op];
        bool serial =
            device != DPRO_NO_DEVICE && g->devices[device].kind != DPRO_DEVICE_COMM_THREAD;
        run->next[op] = serial ? last[device] : DPRO_NO_OP;
        if (serial)
            last[device] = op;
    }
    memset(last, 0xff, g->n_devices * sizeof *last);
    for (uint32_t i = 0; i < g->n_ops; i++) {
        uint32_t op = run->order[i];
        run->common[op] = device_in_turn(g, g->device[op]) ? last[g->device[op]] : DPRO_NO_OP;
        if (device_in_turn(g, g->device[op]) && other[op] != DPRO_NO_OP)
            last[g->device[op]] = op;
    }
    find_latest(run, arena);
}

static bool run_waits(const struct run *run, uint32_t op, uint32_t from)
{
    return run->end_ns[from] <= run->latest_ns[op];
}

static void find_places(struct between_build *b)
{
    struct between_jobs *o = b->out;
    uint32_t n = o->slower->n_ops, n_faster = o->faster->n_ops;
    o->place = arena_alloc(b->arena, ((size_t)n_faster + 1) * sizeof *o->place);
    uint32_t *faster_op = arena_alloc(b->arena, ((size_t)n + n_faster + 1) * sizeof *faster_op);
    memset(faster_op, 0xff, n * sizeof *faster_op);
    for (uint32_t op = 0; op < n_faster; op++) {
        o->place[op] = b->slower_of[op] != DPRO_NO_OP ? b->slower_of[op] : n++;
        faster_op[o->place[op]] = op;
    }
    o->faster_op = faster_op;
    o->graph.n_ops = n;
}

/* Calls do_it for all ops behind one, along edges and on its device. */
static void each_behind(struct between_build *b, const struct run *run, uint32_t op,
                        void (*do_it)(struct between_build *b, uint32_t then))
{
    const struct dpro_graph *g = run->g;
    const uint32_t *place = g == b->out->faster ? b->out->place : NULL;
    for (uint32_t e = g->row[op]; e < g->row[op + 1]; e++)
        if (run_waits(run, g->succ[e], op))
            do_it(b, place ? place[g->succ[e]] : g->succ[e]);
    if (run->next[op] != DPRO_NO_OP)
        do_it(b, place ? place[run->next[op]] : run->next[op]);
}

static void count_before(struct between_build *b, uint32_t then)
{
    b->left[then]++;
}

static void come_closer(struct between_build *b, uint32_t then)
{
    if (--b->left[then] == 0)
        array_push(&b->ready, then);
}

/* An order of all ops along the edges of both jobs. Where these contradict each other, the op runs
 * that the slower job runs first of those that are left. */
static void find_order(struct between_build *b)
{
    struct between_jobs *o = b->out;
    uint32_t n = o->graph.n_ops, n_slower = o->slower->n_ops, n_ordered = 0, first = 0;
    const uint32_t *order = b->runs[1].order;
    b->order = arena_array(b->arena, (size_t)n + 1, sizeof *b->order);
    b->left = arena_array(b->arena, (size_t)n + 1, sizeof *b->left);
    for (uint32_t op = 0; op < n_slower; op++)
        each_behind(b, &b->runs[1], op, count_before);
    for (uint32_t op = 0; op < o->faster->n_ops; op++)
        each_behind(b, &b->runs[0], op, count_before);
    for (uint32_t op = n; op-- > 0;)
        if (b->left[op] == 0)
            array_push(&b->ready, op);
    while (b->ready.n > 0 || first < n_slower) {
        uint32_t op = b->ready.n > 0 ? b->ready.at[--b->ready.n] : order[first++];
        if (b->order[op] > 0)
            continue;
        b->order[op] = ++n_ordered;
        if (op < n_slower)
            each_behind(b, &b->runs[1], op, come_closer);
        if (o->faster_op[op] != DPRO_NO_OP)
            each_behind(b, &b->runs[0], o->faster_op[op], come_closer);
    }
}

/* Values by op of n_rows iterations, with room for the ops that were added. */
static int64_t *more_values(struct between_build *b, const int64_t *values, size_t n_rows)
{
    size_t n = b->out->graph.n_ops, n_before = b->out->slower->n_ops;
    if (!values)
        return NULL;
    int64_t *more = arena_array(b->arena, n_rows * n + 1, sizeof *more);
    for (size_t i = 0; i < n_rows; i++)
        memcpy(more + i * n, values + i * n_before, n_before * sizeof *more);
    return more;
}

static void add_ops(struct between_build *b)
{
    struct dpro_graph *g = &b->out->graph;
    const struct dpro_graph *s = b->out->slower, *f = b->out->faster;
    EACH_OF (const struct column_place, column, graph_op_columns, N_OP_COLUMNS) {
        void **at = (void **)((char *)g + column->at);
        void *more = *at ? arena_array(b->arena, (size_t)g->n_ops + 1, column->size) : NULL;
        if (more)
            memcpy(more, *at, s->n_ops * column->size);
        *at = more;
    }
    for (uint32_t op = s->n_ops; op < g->n_ops; op++) {
        uint32_t there = b->out->faster_op[op];
        g->device[op] = DPRO_NO_DEVICE;
        g->kind[op] = f->kind[there];
        g->phase[op] = f->phase[there];
        for (uint32_t r = 0; r < s->n_ranks + s->n_servers; r++)
            if (s->ranks[r].rank == f->ranks[f->rank[there]].rank)
                g->rank[op] = (uint16_t)r;
    }
    g->sample_dur_ns = more_values(b, s->sample_dur_ns, s->n_samples);
    g->sample_gap_ns = more_values(b, s->sample_gap_ns, s->n_samples);
    g->lead_dur_ns = more_values(b, s->lead_dur_ns, 1);
    g->lead_gap_ns = more_values(b, s->lead_gap_ns, 1);
}

/* ---- edges ---- */

enum { IN_FASTER = 1, IN_SLOWER }; /* also in both */

static uint64_t pair_key(uint32_t from, uint32_t to)
{
    return map_key((uint64_t)from << 32 | to);
}

/* Calls do_it for each edge of a job. */
static void each_edge(struct between_build *b, const struct dpro_graph *g,
                      void (*do_it)(struct between_build *b, uint32_t from, uint32_t to, bool next))
{
    for (uint32_t op = 0; op < g->n_ops; op++) {
        for (uint32_t e = g->row[op]; e < g->row[op + 1]; e++)
            do_it(b, op, g->succ[e], false);
        for (uint32_t e = g->next_row[op]; e < g->next_row[op + 1]; e++)
            do_it(b, op, g->next_succ[e], true);
    }
}

static void note_edge(struct between_build *b, uint32_t from, uint32_t to, bool next)
{
    map_set(&b->common[next], pair_key(b->out->place[from], b->out->place[to]), IN_FASTER);
}

static bool is_of_lone_rank(const struct between_jobs *b, uint32_t op)
{
    const struct dpro_graph *g = job_of(b, &op), *other = g == b->slower ? b->faster : b->slower;
    bool is_lone = g->rank[op] < g->n_ranks + g->n_servers;
    for (uint32_t r = 0; r < other->n_ranks + other->n_servers && is_lone; r++)
        is_lone = other->ranks[r].rank != g->ranks[g->rank[op]].rank;
    return is_lone;
}

/* An edge that only one of the jobs has: of the cause of that end which only it has. Those of a
 * rank that only one has stay: once its ops take no time, it keeps pace with the others. */
static void add_cut(struct between_build *b, uint32_t from, uint32_t to, bool next, bool gone)
{
    struct between_jobs *o = b->out;
    if (is_of_lone_rank(o, from) || is_of_lone_rank(o, to)) {
        if (gone)
            array_add(&b->added, from, to, .next = next);
        return;
    }
    enum between_cause lone = gone ? BETWEEN_LESS : BETWEEN_MORE;
    bool from_lone = from >= o->slower->n_ops || o->faster_op[from] == DPRO_NO_OP;
    bool to_lone = to >= o->slower->n_ops || o->faster_op[to] == DPRO_NO_OP;
    uint32_t of = from_lone ? from : to;
    struct cause_found *found =
        &o->found[cause_of(o, of, from_lone || to_lone ? lone : BETWEEN_WAITS)];
    array_add(&found->cuts, from, to, part_of(o, found, of, false), next, gone);
}

/* Whether a job runs two ops, which it has, as an edge of the other would make it. Then the edge
 * may be in both. */
static bool run_keeps(const struct run *run, uint32_t from, uint32_t to, bool next)
{
    const struct dpro_graph *g = run->g;
    if (from == DPRO_NO_OP || to == DPRO_NO_OP)
        return false;
    int64_t ready = run->end_ns[to] - g->dur_ns[to] - g->gap_ns[to];
    return next ? g->flags && (g->flags[from] & GRAPH_OP_BOUNDARY) : run->end_ns[from] <= ready;
}

/* The op on which an edge stays if the other job lacks the op that it is from. */
static uint32_t stays_from(const struct run *run, const uint32_t *other, uint32_t from)
{
    if (other[from] == DPRO_NO_OP)
        from = run->common[from];
    return from == DPRO_NO_OP ? from : other[from];
}

static void cut_slower(struct between_build *b, uint32_t from, uint32_t to, bool next)
{
    struct between_jobs *o = b->out;
    bool is_new = map_insert(&b->common[next], pair_key(from, to), IN_SLOWER);
    map_set(&b->common[next], pair_key(from, to), IN_SLOWER);
    if (is_new && !is_one_thread(o->slower, from, to) &&
        !run_keeps(&b->runs[0], stays_from(&b->runs[1], o->faster_op, from), o->faster_op[to],
                   next))
        add_cut(b, from, to, next, false);
}

static void add_faster(struct between_build *b, uint32_t from, uint32_t to, bool next)
{
    const struct dpro_graph *f = b->out->faster;
    uint32_t here = b->out->place[from], to_here = b->out->place[to];
    uint64_t both = 0;
    map_get(&b->common[next], pair_key(here, to_here), &both);
    bool needless = next ? f->spare[to] : !run_waits(&b->runs[0], to, from);
    bool circle = !next && b->order[here] >= b->order[to_here];
    if (both == IN_SLOWER || is_one_thread(f, from, to) || needless || circle)
        return;
    bool no_waits =
        b->slower_of[to] == DPRO_NO_OP && !device_in_turn(f, f->device[to]); /* none for that op */
    if (no_waits ||
        run_keeps(&b->runs[1], stays_from(&b->runs[0], b->slower_of, from), b->slower_of[to], next))
        array_add(&b->added, here, to_here, .next = next);
    else
        add_cut(b, here, to_here, next, true);
}

/* What a device runs, in order, where only the faster job has one of two. */
static void add_devices(struct between_build *b)
{
    const uint32_t *next = b->runs[0].next;
    struct between_jobs *o = b->out;
    for (uint32_t op = 0; op < o->faster->n_ops; op++) {
        if (next[op] == DPRO_NO_OP)
            continue;
        uint32_t here = o->place[op], then = o->place[next[op]];
        bool lone = b->slower_of[op] == DPRO_NO_OP || b->slower_of[next[op]] == DPRO_NO_OP;
        if (!lone || b->order[here] >= b->order[then])
            continue;
        if (device_in_turn(o->faster, o->faster->device[op]))
            array_add(&b->added, here, then, .next = false);
        else
            add_cut(b, here, then, false, true);
    }
}

/* The slower job's rows with the edges that were added. */
static void add_rows(struct between_build *b, bool next, uint32_t **rows, uint32_t **succs)
{
    struct dpro_graph *g = &b->out->graph;
    const uint32_t *row = *rows, *succ = *succs;
    uint32_t n_before = b->out->slower->n_ops, at = 0;
    uint32_t *more = arena_array(b->arena, (size_t)g->n_ops + 2, sizeof *more);
    uint32_t *to = arena_array(b->arena, row[n_before] + b->added.n + 1, sizeof *to);
    EACH (const struct cut, edge, b->added)
        more[edge->from] += edge->next == next;
    for (uint32_t op = 0; op < g->n_ops; op++) {
        uint32_t n = op < n_before ? row[op + 1] - row[op] : 0, extra = more[op];
        if (n > 0)
            memcpy(to + at, succ + row[op], n * sizeof *to);
        more[op] = at + n; /* where the next one goes that is added */
        at += n + extra;
    }
    EACH (const struct cut, edge, b->added)
        if (edge->next == next)
            to[more[edge->from]++] = edge->to;
    for (uint32_t op = g->n_ops; op > 0; op--)
        more[op] = more[op - 1];
    more[0] = 0;
    *rows = more;
    *succs = to;
}

void between_make(struct between_jobs *o, const struct job_match *match, struct arena *arena)
{
    *o = (struct between_jobs){
        .faster = match->jobs[0], .slower = match->jobs[1], .graph = *match->jobs[1]};
    struct between_build b = {.out = o, .slower_of = match->other[0], .arena = arena};
    for (int c = 0; c < N_BETWEEN; c++)
        o->found[c].arena = arena;
    for (int side = 0; side < 2; side++) {
        find_run(&b.runs[side], match->jobs[side], match->other[side], arena);
        o->recomputed[side] = recomputed_ops(match->jobs[side], arena);
    }
    find_places(&b);
    find_order(&b);
    add_ops(&b);
    each_edge(&b, o->faster, note_edge);
    each_edge(&b, o->slower, cut_slower);
    each_edge(&b, o->faster, add_faster);
    add_devices(&b);
    add_rows(&b, false, &o->graph.row, &o->graph.succ);
    add_rows(&b, true, &o->graph.next_row, &o->graph.next_succ);
    FREE_ALL(&b.common[0], &b.common[1], &b.added, &b.ready, &b.runs[0].end_ns, &b.runs[1].end_ns);
}

void between_fini(struct between_jobs *o)
{
    EACH_OF (struct cause_found, found, o->found, N_BETWEEN)
        FREE_ALL(&found->pieces, &found->cuts, &found->parts, &found->part_numbers);
}

/* ---- times ---- */

/* Of the faster job's op in an iteration of the slower one: the mean over those that take its
 * place, as the jobs may have recorded different numbers of them. */
static int64_t there_ns(const struct chain *faster, uint32_t op, bool gap, uint32_t iteration,
                        uint32_t n_iterations)
{
    uint64_t first = (uint64_t)iteration * faster->n_main / n_iterations;
    uint64_t end = MAX((iteration + (uint64_t)1) * faster->n_main / n_iterations, first + 1);
    int64_t sum = 0;
    for (uint64_t i = first; i < end; i++) {
        const struct replay_copy *copy = &faster->copies[faster->n_warm_up + i];
        const int64_t *ns = gap ? copy->gap_ns : copy->dur_ns;
        sum += ns ? ns[op] : 0;
    }
    return sum / (int64_t)(end - first);
}

static void find_time(struct between_jobs *o, const struct diagnosed *d, const struct chain *faster,
                      uint32_t op, bool gap)
{
    uint32_t there = o->faster_op[op], n = d->n_iterations;
    int64_t *ns = arena_array(o->found[0].arena, n, sizeof *ns);
    bool any = false;
    for (uint32_t i = 0; i < n; i++) {
        const int64_t *here = gap ? d->copies[i].gap_ns : d->copies[i].dur_ns;
        ns[i] = here ? here[op] : 0;
        if (there != DPRO_NO_OP)
            ns[i] -= there_ns(faster, there, gap, i, n);
        any |= ns[i] != 0;
    }
    if (!any)
        return;
    bool more = there == DPRO_NO_OP, less = op >= o->slower->n_ops;
    struct cause_found *found = &o->found[cause_of(o, op,
                                                   more   ? BETWEEN_MORE
                                                   : less ? BETWEEN_LESS
                                                   : gap  ? BETWEEN_GAPS
                                                          : N_BETWEEN)];
    array_add(&found->pieces, op, part_of(o, found, op, gap), gap, ns);
}

void between_find_times(struct between_jobs *o, const struct diagnosed *d,
                        const struct chain *faster)
{
    for (uint32_t op = 0; op < d->g->n_ops; op++) {
        find_time(o, d, faster, op, false);
        find_time(o, d, faster, op, true);
    }
}
