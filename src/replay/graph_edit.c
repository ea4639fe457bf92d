/* A rank's copied ops come behind its other ops, copied messages behind its messages. */
#include "replay/graph_edit.h"

#include <string.h>

#include "base/array.h"
#include "base/sort.h"

struct edge {
    uint32_t from, to;
};
typedef ARRAY(struct edge) edge_array;

struct editor {
    const struct graph_edit *edit;
    const struct dpro_graph *g;
    struct arena *arena;
    uint32_t *from, *to; /* by new, by old op */
    uint32_t **copy;     /* [n_copies][ops of the group] new op */
    uint32_t n_ops;
    edge_array same, next;
    uint32_t *seen, epoch; /* by old op: in which search it was met */
    ARRAY(uint32_t) stack;
};

/* ---- numbers ---- */

static void number_copies(struct editor *e, uint32_t rank, bool of_messages)
{
    for (uint32_t c = 0; c < e->edit->n_copies; c++) {
        const struct op_copies *copies = &e->edit->copies[c];
        for (uint32_t i = 0; i < copies->n; i++)
            if (e->g->rank[copies->ops[i]] == rank &&
                graph_is_of_message(e->g, copies->ops[i]) == of_messages) {
                e->copy[c][i] = e->n_ops;
                e->from[e->n_ops++] = copies->ops[i];
            }
    }
}

static void number_kept(struct editor *e, uint32_t first, uint32_t n)
{
    for (uint32_t op = first; op < first + n; op++) {
        e->to[op] = e->edit->gone[op] ? DPRO_NO_OP : e->n_ops;
        if (!e->edit->gone[op])
            e->from[e->n_ops++] = op;
    }
}

/* The next work of the device, or the one before, from an op on; DPRO_NO_OP: none stays. */
static uint32_t work_that_stays(const struct editor *e, const struct graph_rank *rank, uint32_t op,
                                int step)
{
    while (op - rank->first_op < rank->n_ops &&
           (e->edit->gone[op] || !(e->g->flags[op] & GRAPH_OP_GPU)))
        op += (uint32_t)step;
    return op - rank->first_op < rank->n_ops ? e->to[op] : DPRO_NO_OP;
}

static void number(struct editor *e, struct dpro_graph *out)
{
    const struct dpro_graph *g = e->g;
    uint32_t n_ranks = g->n_ranks + g->n_servers, room = g->n_ops;
    e->copy = arena_array(e->arena, e->edit->n_copies + (size_t)1, sizeof *e->copy);
    for (uint32_t c = 0; c < e->edit->n_copies; c++) {
        e->copy[c] = arena_array(e->arena, e->edit->copies[c].n + (size_t)1, sizeof **e->copy);
        room += e->edit->copies[c].n;
    }
    e->from = arena_array(e->arena, (size_t)room + 1, sizeof *e->from);
    e->to = arena_array(e->arena, (size_t)g->n_ops + 1, sizeof *e->to);
    out->ranks = arena_array(e->arena, (size_t)n_ranks + 1, sizeof *out->ranks);
    for (uint32_t r = 0; r < n_ranks; r++) {
        struct graph_rank rank = g->ranks[r];
        uint32_t n_plain = rank.n_ops - rank.n_message_ops, begin = e->n_ops;
        number_kept(e, rank.first_op, n_plain);
        number_copies(e, r, false);
        uint32_t messages = e->n_ops;
        number_kept(e, rank.first_op + n_plain, rank.n_message_ops);
        number_copies(e, r, true);
        rank.first_op = begin;
        rank.n_ops = e->n_ops - begin;
        rank.n_message_ops = e->n_ops - messages;
        rank.boundary = rank.boundary == DPRO_NO_OP ? DPRO_NO_OP : e->to[rank.boundary];
        if (rank.on_device) {
            rank.first_work = work_that_stays(e, &g->ranks[r], rank.first_work, 1);
            rank.last_work = work_that_stays(e, &g->ranks[r], rank.last_work, -1);
            rank.on_device = rank.first_work != DPRO_NO_OP && rank.last_work != DPRO_NO_OP;
        }
        out->ranks[r] = rank;
    }
    out->n_ops = e->n_ops;
}

/* ---- edges ---- */

static void add(edge_array *edges, uint32_t from, uint32_t to)
{
    array_push(edges, ((struct edge){from, to}));
}

/* What stays on a device, or on none, and followed what is gone follows the op. A collective's
 * barrier is of one rank, and lies on the way of all. What leaves predecessors out counts those it
 * has: others are not of their kind. */
static void bridge(struct editor *e, edge_array *edges, uint32_t op, uint32_t first,
                   uint32_t device)
{
    const struct dpro_graph *g = e->g;
    e->stack.n = 0;
    array_push(&e->stack, first);
    while (e->stack.n > 0) {
        uint32_t at = e->stack.at[--e->stack.n];
        if (e->seen[at] == e->epoch ||
            (g->rank[at] != g->rank[op] && g->kind[at] != DPRO_OP_BARRIER))
            continue;
        e->seen[at] = e->epoch;
        if (e->edit->gone[at])
            array_append(&e->stack, g->succ + g->row[at], g->row[at + 1] - g->row[at]);
        else if (g->rank[at] == g->rank[op] &&
                 (g->device[at] == device || g->device[at] == DPRO_NO_DEVICE) &&
                 !(g->spare && g->spare[at]))
            add(edges, e->to[op], e->to[at]);
    }
}

static void keep_edges(struct editor *e)
{
    const struct dpro_graph *g = e->g;
    for (uint32_t op = 0; op < g->n_ops; op++) {
        if (e->edit->gone[op])
            continue;
        e->epoch++;
        for (uint32_t i = g->row[op]; i < g->row[op + 1]; i++) {
            if (!e->edit->gone[g->succ[i]])
                add(&e->same, e->to[op], e->to[g->succ[i]]);
            else if (g->device[op] != DPRO_NO_DEVICE)
                bridge(e, &e->same, op, g->succ[i], g->device[op]);
        }
        e->epoch++;
        for (uint32_t i = g->next_row ? g->next_row[op] : 0; g->next_row && i < g->next_row[op + 1];
             i++) {
            if (!e->edit->gone[g->next_succ[i]])
                add(&e->next, e->to[op], e->to[g->next_succ[i]]);
            else
                bridge(e, &e->next, op, g->next_succ[i], g->device[g->next_succ[i]]);
        }
    }
}

/* The first of a group wait for the anchor, or for the last of the group before it there. */
struct ends {
    bool *first, *last; /* by op of the group */
};

static struct ends copy_edges(struct editor *e, uint32_t group, uint32_t *copy_of)
{
    const struct dpro_graph *g = e->g;
    const struct op_copies *copies = &e->edit->copies[group];
    struct ends ends = {arena_array(e->arena, copies->n + (size_t)1, 1),
                        arena_array(e->arena, copies->n + (size_t)1, 1)};
    memset(ends.first, true, copies->n);
    memset(ends.last, true, copies->n);
    for (uint32_t i = 0; i < copies->n; i++)
        copy_of[copies->ops[i]] = i;
    for (uint32_t i = 0; i < copies->n; i++) {
        uint32_t op = copies->ops[i];
        for (uint32_t k = g->row[op]; k < g->row[op + 1]; k++) {
            uint32_t to = copy_of[g->succ[k]];
            if (to == DPRO_NO_OP)
                continue;
            add(&e->same, e->copy[group][i], e->copy[group][to]);
            ends.first[to] = ends.last[i] = false;
        }
        ends.last[i] &= g->row[op + 1] > g->row[op]; /* what nobody waited for, nobody does */
    }
    for (uint32_t i = 0; i < copies->n; i++)
        copy_of[copies->ops[i]] = DPRO_NO_OP;
    return ends;
}

/* On a rank: behind `group` - 1 where that is behind the same op. */
static void attach(struct editor *e, uint32_t rank, uint32_t group, const struct ends *ends,
                   size_t n_kept_edges)
{
    const struct op_copies *copies = &e->edit->copies[group];
    uint32_t after = copies->after[rank];
    const struct op_copies *before = group > 0 ? copies - 1 : NULL;
    bool behind = before && before->after[rank] == after;
    uint32_t from = e->to[after]; /* kept edges come by where they begin */
    size_t first = LOWER_BOUND(k, 0, n_kept_edges, e->same.at[k].from < from);
    for (uint32_t i = 0; i < copies->n; i++) {
        uint32_t op = copies->ops[i], copy = e->copy[group][i];
        if (e->g->rank[op] != rank)
            continue;
        for (uint32_t k = 0; behind && ends[group].first[i] && k < before->n; k++)
            if (e->g->rank[before->ops[k]] == rank && ends[group - 1].last[k])
                add(&e->same, e->copy[group - 1][k], copy);
        if (ends[group].first[i])
            add(&e->same, from, copy);
        for (size_t k = first;
             ends[group].last[i] && k < n_kept_edges && e->same.at[k].from == from; k++)
            if (e->g->device[e->from[e->same.at[k].to]] == e->g->device[after])
                add(&e->same, copy, e->same.at[k].to);
    }
}

static void add_copies(struct editor *e)
{
    uint32_t n = e->edit->n_copies;
    size_t n_kept_edges = e->same.n;
    struct ends *ends = arena_array(e->arena, n + (size_t)1, sizeof *ends);
    uint32_t *copy_of = arena_alloc(e->arena, e->g->n_ops * sizeof *copy_of);
    for (uint32_t op = 0; op < e->g->n_ops; op++)
        copy_of[op] = DPRO_NO_OP;
    for (uint32_t group = 0; group < n; group++)
        ends[group] = copy_edges(e, group, copy_of);
    for (uint32_t group = 0; group < n; group++)
        for (uint32_t r = 0; r < e->g->n_ranks; r++)
            if (e->edit->copies[group].after[r] != DPRO_NO_OP)
                attach(e, r, group, ends, n_kept_edges);
}

/* Compressed rows. */
static void make_rows(struct editor *e, edge_array *edges, uint32_t **row, uint32_t **succ)
{
    *row = arena_array(e->arena, (size_t)e->n_ops + 2, sizeof **row);
    *succ = arena_alloc(e->arena, (edges->n + 1) * sizeof **succ);
    for (size_t i = 0; i < edges->n; i++)
        (*row)[edges->at[i].from + 2]++;
    for (uint32_t op = 0; op < e->n_ops; op++)
        (*row)[op + 2] += (*row)[op + 1];
    for (size_t i = 0; i < edges->n; i++)
        (*succ)[(*row)[edges->at[i].from + 1]++] = edges->at[i].to;
}

/* ---- what is known of ops ---- */

static void *gather(const struct editor *e, const void *from, size_t size, size_t n_rows)
{
    const char *old = from;
    if (!from)
        return NULL;
    char *new = arena_alloc(e->arena, (n_rows * e->n_ops + 1) * size);
    for (size_t row = 0; row < n_rows; row++)
        for (uint32_t op = 0; op < e->n_ops; op++)
            memcpy(new + (row * e->n_ops + op) * size,
                   old + (row * e->g->n_ops + e->from[op]) * size, size);
    return new;
}

/* Of a copy, `seen` is that of what it copies. */
static void gather_ops(struct editor *e, struct dpro_graph *out)
{
    const struct dpro_graph *g = e->g;
    for (int i = 0; i < N_OP_COLUMNS; i++) {
        const struct column_place *column = &graph_op_columns[i];
        const void *old = *(const void *const *)(const void *)((const char *)g + column->at);
        *(void **)(void *)((char *)out + column->at) = gather(e, old, column->size, 1);
    }
    out->sample_dur_ns = gather(e, g->sample_dur_ns, sizeof *g->sample_dur_ns, g->n_samples);
    out->sample_gap_ns = gather(e, g->sample_gap_ns, sizeof *g->sample_gap_ns, g->n_samples);
    out->lead_dur_ns = gather(e, g->lead_dur_ns, sizeof *g->lead_dur_ns, 1);
    out->lead_gap_ns = gather(e, g->lead_gap_ns, sizeof *g->lead_gap_ns, 1);
}

static uint32_t new_op(const struct editor *e, uint32_t op)
{
    return op == DPRO_NO_OP ? DPRO_NO_OP : e->to[op];
}

/* The first copy of an op; DPRO_NO_OP: none. */
static uint32_t copy_of(const struct editor *e, uint32_t group, uint32_t op)
{
    for (uint32_t i = 0; i < e->edit->copies[group].n; i++)
        if (e->edit->copies[group].ops[i] == op)
            return e->copy[group][i];
    return DPRO_NO_OP;
}

static void add_collective(struct editor *e, const struct graph_collective *from, uint32_t group,
                           struct dpro_graph *out)
{
    bool copied = group != UINT32_MAX;
    uint32_t first = e->g->members[from->first_member].arrival;
    if (copied ? copy_of(e, group, first) == DPRO_NO_OP : e->edit->gone[first])
        return;
    struct graph_collective *to = &out->collectives[out->n_collectives++];
    *to = *from;
    to->first_member = out->n_members;
    if (from->barrier != DPRO_NO_OP)
        to->barrier = copied ? copy_of(e, group, from->barrier) : e->to[from->barrier];
    for (uint32_t m = from->first_member; m < from->first_member + from->n_members; m++) {
        struct graph_member member = e->g->members[m];
        member.arrival = copied ? copy_of(e, group, member.arrival) : e->to[member.arrival];
        member.transfer = copied ? copy_of(e, group, member.transfer) : e->to[member.transfer];
        out->members[out->n_members++] = member;
    }
}

static void edit_collectives(struct editor *e, struct dpro_graph *out)
{
    const struct dpro_graph *g = e->g;
    size_t times = e->edit->n_copies + (size_t)1;
    out->collectives = arena_alloc(e->arena, times * g->n_collectives * sizeof *out->collectives);
    out->members = arena_alloc(e->arena, times * g->n_members * sizeof *out->members);
    out->n_collectives = out->n_members = 0;
    uint32_t *collective_to = arena_alloc(e->arena, g->n_collectives * sizeof *collective_to);
    for (uint32_t j = 0; j < g->n_collectives; j++) {
        collective_to[j] = out->n_collectives;
        add_collective(e, &g->collectives[j], UINT32_MAX, out);
        if (out->n_collectives == collective_to[j])
            collective_to[j] = UINT32_MAX;
    }
    for (uint32_t group = 0; group < e->edit->n_copies; group++)
        for (uint32_t j = 0; j < g->n_collectives; j++)
            add_collective(e, &g->collectives[j], group, out);
    out->tensors = arena_alloc(e->arena, g->n_tensors * sizeof *out->tensors);
    for (uint32_t t = 0; t < g->n_tensors; t++) {
        struct graph_tensor tensor = g->tensors[t];
        tensor.in = new_op(e, tensor.in);
        tensor.out = new_op(e, tensor.out);
        if (tensor.collective != UINT32_MAX)
            tensor.collective = collective_to[tensor.collective];
        out->tensors[t] = tensor;
    }
}

/* An op that leaves predecessors out goes with all that wait for it. */
static bool *all_gone(const struct graph_edit *edit, struct arena *arena)
{
    const struct dpro_graph *g = edit->graph;
    bool *gone = arena_alloc(arena, g->n_ops + (size_t)1);
    memcpy(gone, edit->gone, g->n_ops);
    for (uint32_t op = 0; g->spare && op < g->n_ops; op++) {
        if (g->spare[op] == 0 || g->row[op] == g->row[op + 1])
            continue;
        bool any = false;
        for (uint32_t i = g->row[op]; i < g->row[op + 1]; i++)
            any |= !edit->gone[g->succ[i]];
        gone[op] = !any;
    }
    return gone;
}

void graph_edited(const struct graph_edit *edit, struct arena *arena, struct dpro_graph *edited,
                  const uint32_t **from, const uint32_t **to)
{
    struct graph_edit own = *edit;
    own.gone = all_gone(edit, arena);
    struct editor e = {.edit = &own, .g = edit->graph, .arena = arena};
    *edited = *edit->graph;
    e.seen = arena_array(arena, (size_t)e.g->n_ops + 1, sizeof *e.seen);
    number(&e, edited);
    keep_edges(&e);
    add_copies(&e);
    make_rows(&e, &e.same, &edited->row, &edited->succ);
    if (e.g->next_row)
        make_rows(&e, &e.next, &edited->next_row, &edited->next_succ);
    gather_ops(&e, edited);
    edit_collectives(&e, edited);
    *from = e.from;
    *to = e.to;
    array_fini(&e.same);
    array_fini(&e.next);
    array_fini(&e.stack);
}
