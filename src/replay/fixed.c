/* Replay in a known order: end times are one pass over the ops.
 *
 * The ops are renumbered in the order in which the event-driven engine ran them. Each starts at the
 * latest end of its predecessors, one of which is the op before it on its device. As most
 * predecessors ran shortly before, they are stored as distances back, nearly all of which fit 16
 * bits. An op costs some 7 bytes of code and its end, read and written front to back.
 *
 * A schedule spans one iteration and is passed again for each. Distances also reach into the ends
 * of the iteration before: those that are looked at lie in front of this one's and are 0 at first.
 *
 * Validation, which replays one graph many times, runs by a schedule as long as a pass shows that
 * the event-driven engine would do the same (fixed_pass_exact).
 *
 * Code of an op: a word with the number of distances (COUNT_LONG: it follows in two words), then
 * the distances in words (0: it follows in two words); a device predecessor comes first. */

#include "replay/replay.h"

enum {
    FIRST_IS_DEVICE = 0x8000,
    ALSO_EDGE = 0x4000, /* the device predecessor is one in the graph, too */
    CHECKED = 0x2000,   /* when it gets ready tells whether the order holds */
    ROOT = 0x1000,      /* it waits for nothing in its iteration */
    COUNT = 0x0fff,
    COUNT_LONG = COUNT,
};

struct fixed {
    struct arena arena;
    const struct dpro_graph *g;
    bool shares;              /* code, carried and position are another's */
    const uint32_t *order;    /* op at each position */
    const uint32_t *position; /* of each op */
    ARRAY(uint16_t) code;
    ARRAY(uint32_t) carried; /* positions whose ends the next pass looks at */
    uint32_t n_telling;      /* up to the last position that can tell that the order doesn't hold */
    int64_t *cells;          /* ends: those carried over, then those of this iteration */
    const int64_t *release_ns; /* by rank index, for the roots of the first pass; NULL: 0 */
    bool follows;              /* the last pass was not the first */
    bool begun;
    int64_t *last_ready; /* by device, for the check */
    uint32_t *last_op;   /* by device */
};

/* ---- building ---- */

/* The device of the op at a position, if it runs one op after the other. */
static inline uint32_t serial_device(const struct fixed *f, uint32_t position)
{
    uint32_t device = f->g->device[f->order[position]];
    return device != DPRO_NO_DEVICE && f->g->devices[device].kind == DPRO_DEVICE_COMM_THREAD
               ? DPRO_NO_DEVICE
               : device;
}

/* The position that each device comes to last: its first op follows that one. */
static void find_last(const struct fixed *f)
{
    memset(f->last_op, 0xff, ((size_t)f->g->n_devices + 1) * sizeof *f->last_op);
    for (uint32_t i = 0; i < f->g->n_ops; i++)
        if (serial_device(f, i) != DPRO_NO_DEVICE)
            f->last_op[serial_device(f, i)] = i;
}

static void put_long(struct fixed *f, uint32_t value)
{
    array_push(&f->code, (uint16_t)value);
    array_push(&f->code, (uint16_t)(value >> 16));
}

static void put_distance(struct fixed *f, uint32_t cell, uint32_t pred_cell)
{
    uint32_t distance = cell - pred_cell;
    bool is_long = distance > UINT16_MAX;
    array_push(&f->code, (uint16_t)(is_long ? 0 : distance));
    if (is_long)
        put_long(f, distance);
}

/* The predecessors begin with those of the same iteration, n_same. */
static void encode_op(struct fixed *f, uint32_t cell, uint32_t device_pred, const uint32_t *preds,
                      uint32_t n_same, uint32_t n)
{
    bool first = device_pred != UINT32_MAX;
    uint32_t same = 0;
    for (uint32_t i = 0; first && i < n; i++)
        same += preds[i] == device_pred;
    uint32_t count = n - same + first,
             flags = (first ? FIRST_IS_DEVICE : 0) | (same ? ALSO_EDGE : 0) | (n_same ? 0 : ROOT);
    array_push(&f->code, (uint16_t)((count < COUNT_LONG ? count : COUNT_LONG) | flags));
    if (count >= COUNT_LONG)
        put_long(f, count);
    if (first)
        put_distance(f, cell, device_pred);
    for (uint32_t i = 0; i < n; i++)
        if (!(first && preds[i] == device_pred))
            put_distance(f, cell, preds[i]);
}

typedef ARRAY(uint32_t) cells_array;

/* The cell of a position's end in this iteration, and in the one before. */
static uint32_t own_cell(const struct fixed *f, uint32_t position)
{
    return (uint32_t)f->carried.n + position;
}

static uint32_t carried_cell(const struct fixed *f, uint32_t position)
{
    return LOWER_BOUND(i, 0, (uint32_t)f->carried.n, f->carried.at[i] < position);
}

/* Appends the cells of an op's predecessors. */
static void fixed_gather(const struct fixed *f, const struct pull *pull, uint32_t op,
                         uint32_t (*cell_of)(const struct fixed *f, uint32_t position),
                         cells_array *cells)
{
    for (uint32_t e = pull->row ? pull->row[op] : 0; pull->row && e < pull->row[op + 1]; e++)
        array_push(cells, cell_of(f, f->position[pull->pred[e]]));
}

static inline uint32_t get_long(const uint16_t **code)
{
    uint32_t value = (*code)[0] | (uint32_t)(*code)[1] << 16;
    *code += 2;
    return value;
}

static inline uint32_t get_distance(const uint16_t **code)
{
    uint32_t distance = *(*code)++;
    return __builtin_expect(distance == 0, 0) ? get_long(code) : distance;
}

/* Reads an op's head; *code then is at its distances. */
static inline uint32_t get_count(const uint16_t **code, uint32_t *head)
{
    *head = *(*code)++;
    uint32_t count = *head & COUNT;
    return __builtin_expect(count == COUNT_LONG, 0) ? get_long(code) : count;
}

/* Marks the ops on whose moments an order rests: one that does not wait for the op before it on its
 * device, and that op; the last op of each device, for what follows another schedule. */
static void mark_checked(struct fixed *f, struct arena *work)
{
    uint32_t n = f->g->n_ops, n_carried = (uint32_t)f->carried.n, head;
    bool *checked = arena_array(work, (size_t)n + 1, sizeof *checked);
    for (uint32_t d = 0; d < f->g->n_devices; d++)
        if (f->last_op[d] != UINT32_MAX)
            checked[f->last_op[d] - n_carried] = true;
    for (int marks = 0; marks < 2; marks++) {
        const uint16_t *code = f->code.at;
        for (uint32_t i = 0; i < n; i++) {
            uint16_t *at = f->code.at + (code - f->code.at);
            uint32_t count = get_count(&code, &head);
            if (marks && checked[i])
                *at |= CHECKED;
            if (marks && checked[i] && !(head & ALSO_EDGE))
                f->n_telling = i + 1;
            for (uint32_t k = 0; k < count; k++) {
                uint32_t cell = own_cell(f, i) - get_distance(&code);
                if (marks || k > 0 || (head & (FIRST_IS_DEVICE | ALSO_EDGE)) != FIRST_IS_DEVICE)
                    continue;
                checked[cell < n_carried ? f->carried.at[cell] : cell - n_carried] = true;
                checked[i] = true;
            }
        }
    }
}

/* What ops of the next iteration wait for: edges lead there, or it is the last on its device. */
static void list_carried(struct fixed *f)
{
    const uint32_t *next = f->g->next_row;
    for (uint32_t i = 0; i < f->g->n_ops; i++) {
        uint32_t op = f->order[i], device = serial_device(f, i);
        if ((next && next[op] < next[op + 1]) ||
            (device != DPRO_NO_DEVICE && f->last_op[device] == i))
            array_push(&f->carried, i);
    }
}

static void fixed_encode(struct fixed *f, const struct pull *same, const struct pull *next,
                         struct arena *work)
{
    const struct dpro_graph *g = f->g;
    SCRATCH cells_array preds = {0};
    find_last(f);
    list_carried(f);
    for (uint32_t d = 0; d < g->n_devices; d++) /* cells from here on */
        if (f->last_op[d] != UINT32_MAX)
            f->last_op[d] = carried_cell(f, f->last_op[d]);
    for (uint32_t i = 0; i < g->n_ops; i++) {
        uint32_t op = f->order[i], device = serial_device(f, i), cell = own_cell(f, i);
        preds.n = 0;
        fixed_gather(f, same, op, own_cell, &preds);
        uint32_t n_same = (uint32_t)preds.n;
        fixed_gather(f, next, op, carried_cell, &preds);
        encode_op(f, cell, device == DPRO_NO_DEVICE ? UINT32_MAX : f->last_op[device], preds.at,
                  n_same, (uint32_t)preds.n);
        if (device != DPRO_NO_DEVICE)
            f->last_op[device] = cell;
    }
    mark_checked(f, work);
    /* growing left room */
    f->code.at = mem_resize(f->code.at, f->code.n + 1, sizeof *f->code.at);
}

static void make_device_room(struct fixed *f)
{
    size_t n_devices = (size_t)f->g->n_devices + 1;
    f->last_ready = arena_array(&f->arena, n_devices, sizeof *f->last_ready);
    f->last_op = arena_array(&f->arena, n_devices, sizeof *f->last_op);
}

/* Not cleared: fixed_release() sets what the first pass looks at. */
static void make_cells(struct fixed *f)
{
    size_t n = f->carried.n + f->g->n_ops + 1;
    f->cells = arena_alloc(&f->arena, n * sizeof *f->cells);
}

struct fixed *fixed_create(const struct dpro_graph *graph, const uint32_t *order)
{
    SCRATCH_ARENA struct arena work = {0};
    size_t n = graph->n_ops;
    struct fixed *f = mem_array(1, sizeof *f);
    if (2 * n >= UINT32_MAX)
        mem_fail();
    *f = (struct fixed){.g = graph, .order = order};
    make_device_room(f);
    uint32_t *position = arena_alloc(&f->arena, (n + 1) * sizeof *position);
    f->position = position;
    /* most ops' code: a head, the device's predecessor and the graph's, a word each */
    array_reserve(&f->code, 2 * n + (graph->row ? graph->row[n] : 0));
    struct pull same = pull_make((uint32_t)n, graph->row, graph->succ, &work);
    struct pull next = pull_make((uint32_t)n, graph->next_row, graph->next_succ, &work);
    for (uint32_t i = 0; i < n; i++)
        position[order[i]] = i;
    fixed_encode(f, &same, &next, &work);
    make_cells(f);
    fixed_release(f, NULL);
    return f;
}

struct fixed *fixed_share(const struct fixed *with)
{
    struct fixed *f = mem_array(1, sizeof *f);
    *f = *with;
    f->arena = (struct arena){0};
    f->shares = true;
    make_device_room(f);
    make_cells(f);
    fixed_release(f, NULL);
    return f;
}

void fixed_destroy(struct fixed *f)
{
    if (!f->shares) {
        array_fini(&f->code);
        array_fini(&f->carried);
    }
    arena_fini(&f->arena);
    mem_free(f);
}

/* ---- passes ---- */

/* By position. */
static inline int64_t *own_ends(const struct fixed *f)
{
    return f->cells + f->carried.n;
}

/* When what an op waits for has ended, but for the op before on its device, which has ended at
 * *start. */
static inline int64_t get_ready(const uint16_t **code, const int64_t *end, uint32_t *head,
                                int64_t *start)
{
    uint32_t count = get_count(code, head);
    int64_t ready = 0;
    *start = 0;
    if (*head & FIRST_IS_DEVICE) {
        *start = *(end - get_distance(code));
        ready = *head & ALSO_EDGE ? *start : 0;
        count--;
    }
    for (; count; count--) {
        int64_t pred = *(end - get_distance(code));
        ready = MAX(ready, pred);
    }
    return ready;
}

void fixed_release(struct fixed *f, const int64_t *release_ns)
{
    memset(f->last_ready, 0xff, f->g->n_devices * sizeof *f->last_ready); /* -1: none yet */
    EACH (uint32_t, at, f->carried)
        own_ends(f)[*at] = 0;
    f->release_ns = release_ns;
    f->follows = f->begun = false;
}

/* The ends of the last pass become those of the iteration before. */
static void begin_pass(struct fixed *f)
{
    for (size_t i = 0; i < f->carried.n; i++)
        f->cells[i] = own_ends(f)[f->carried.at[i]];
    f->follows = f->begun;
    f->begun = true;
}

static inline int64_t release_of(const struct fixed *f, uint32_t op)
{
    return f->release_ns && !f->follows ? f->release_ns[f->g->rank[op]] : 0;
}

/* ---- passes as the event-driven engine would replay ----
 *
 * It runs the op of a device next that was ready first. So its order is this one where on each
 * device every op gets ready later than the op before it, or waits for that op anyway. (Proof: were
 * x to run in place of y, which is next in this order, then y would still wait for something that
 * ends, as y gets ready, before x runs. In this order what it waits for last would run by then.)
 * Ops that get ready at the same moment count as out of order, though they need not be. */

void fixed_follow(struct fixed *f, const struct fixed *before)
{
    EACH (uint32_t, at, f->carried)
        own_ends(f)[*at] = own_ends(before)[*at];
    memcpy(f->last_ready, before->last_ready, f->g->n_devices * sizeof *f->last_ready);
    f->begun = true;
}

bool fixed_pass_exact(struct fixed *f, const int64_t *dur_ns, const int64_t *gap_ns, uint32_t n)
{
    begin_pass(f);
    const uint16_t *code = f->code.at;
    int64_t *end = own_ends(f), start;
    for (uint32_t i = 0; i < n; i++, end++) {
        uint32_t head, op = f->order[i];
        int64_t ready = get_ready(&code, end, &head, &start);
        if (head & ROOT)
            ready = MAX(ready, release_of(f, op));
        if (head & CHECKED) {
            int64_t *last = &f->last_ready[f->g->device[op]];
            if (!(head & ALSO_EDGE) && ready <= *last)
                return false;
            *last = ready;
        }
        start = MAX(start, ready);
        *end = time_add(gap_ns ? time_add(start, gap_ns[op]) : start, dur_ns[op]);
    }
    return true;
}

uint32_t fixed_telling(const struct fixed *f)
{
    return f->n_telling;
}

uint32_t fixed_position(const struct fixed *f, uint32_t op)
{
    return f->position[op];
}

int64_t fixed_op_end_ns(const struct fixed *f, uint32_t op)
{
    return own_ends(f)[f->position[op]];
}

bool fixed_find_order(const struct dpro_graph *graph, uint32_t *order)
{
    /* the second of three: past the start, and not without a follower */
    struct event_options options = {.n_copies = 3,
                                    .n_needed = 2,
                                    .dur_ns = graph->dur_ns,
                                    .gap_ns = graph->gap_ns,
                                    .order = order,
                                    .order_copy = 1};
    return edge_order(graph, false, order) || !event_replay(graph, &options, NULL);
}
