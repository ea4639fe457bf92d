/* replay/fixed.c: replay in an order that is known: end times are one pass.
 *
 * The ops, renumbered in the order in which the event-driven engine ran them, pull: each takes the
 * latest end of its predecessors, of which the op before it on its device is one more. As what an
 * op waits for ran shortly before it, predecessors are stored as distances back, nearly all of
 * which fit 16 bits: an op costs some 7 bytes of code, its duration and its end, all read and
 * written front to back.
 *
 * A schedule spans a period of one or more copies of the graph. A cyclic one is passed again for
 * each period: distances then reach into the ends of the period before, which lie in front of this
 * period's. The order holds as long as each device's ops get ready in it; the checking pass counts
 * those that do not.
 *
 * Code of an op: a word with the number of distances (COUNT_LONG: it follows in two words), then
 * the distances in words (0: it follows in two words); a device predecessor comes first. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "replay/replay.h"

enum {
    FIRST_IS_DEVICE = 0x8000,
    ALSO_EDGE = 0x4000, /* the device predecessor is one in the graph, too */
    COUNT = 0x3fff,
    COUNT_LONG = COUNT,
};

struct fixed {
    const struct dpro_graph *g;
    uint32_t n;      /* ops in a period */
    uint32_t n_lead; /* cells in front of a period's ends */
    bool cyclic;
    uint32_t *order; /* node (copy * n_ops + op) at each position */
    ARRAY(uint16_t) code;
    int64_t *dur_ns, *gap_ns; /* by position; gap_ns NULL: all 0 */
    int64_t *cells;           /* n_lead before, then n ends */
    int64_t *last_ready;      /* by device, for the check */
};

/* ---- building ---- */

struct pull { /* predecessors of each position, as cells */
    uint32_t *row, *pred;
};

static void add_edge(struct pull *pull, uint32_t from_cell, uint32_t to, bool count)
{
    if (count)
        pull->row[to]++;
    else
        pull->pred[--pull->row[to]] = from_cell;
}

/* Counts the edges, or files them under the position that they lead to. */
static void walk_edges(struct fixed *f, const uint32_t *position, struct pull *pull, bool count)
{
    const struct dpro_graph *g = f->g;
    uint32_t n_ops = g->n_ops;
    for (uint32_t i = f->n; i-- > 0;) { /* rows are filled from their ends */
        uint32_t node = f->order[i], op = node % n_ops, base = node - op;
        uint32_t cell = f->n_lead + i;
        for (uint32_t e = g->row[op]; e < g->row[op + 1]; e++)
            add_edge(pull, cell, position[base + g->succ[e]], count);
        if (!g->next_row)
            continue;
        bool last_copy = base + n_ops == f->n;
        if (last_copy && !f->cyclic)
            continue;
        uint32_t next_base = last_copy ? 0 : base + n_ops;
        for (uint32_t e = g->next_row[op]; e < g->next_row[op + 1]; e++)
            add_edge(pull, last_copy ? i : cell, position[next_base + g->next_succ[e]], count);
    }
}

static int make_pull(struct fixed *f, struct pull *pull)
{
    uint32_t n = f->n;
    uint32_t *position = malloc(((size_t)n + 1) * sizeof *position);
    pull->row = calloc((size_t)n + 1, sizeof *pull->row);
    if (!position || !pull->row) {
        free(position);
        return -1;
    }
    for (uint32_t i = 0; i < n; i++)
        position[f->order[i]] = i;
    walk_edges(f, position, pull, true);
    uint64_t sum = 0;
    for (uint32_t i = 0; i <= n; i++) {
        sum += pull->row[i];
        pull->row[i] = (uint32_t)sum;
    }
    pull->pred = sum <= UINT32_MAX ? malloc((sum + 1) * sizeof *pull->pred) : NULL;
    if (pull->pred)
        walk_edges(f, position, pull, false);
    free(position);
    return pull->pred ? 0 : -1;
}

static int put_long(struct fixed *f, uint32_t value)
{
    return array_push(&f->code, (uint16_t)value) < 0 ||
                   array_push(&f->code, (uint16_t)(value >> 16)) < 0
               ? -1
               : 0;
}

static int put_distance(struct fixed *f, uint32_t cell, uint32_t pred_cell)
{
    uint32_t distance = cell - pred_cell;
    if (distance <= UINT16_MAX)
        return array_push(&f->code, (uint16_t)distance);
    return array_push(&f->code, 0) < 0 ? -1 : put_long(f, distance);
}

static int encode_op(struct fixed *f, uint32_t cell, uint32_t device_pred, const uint32_t *preds,
                     uint32_t n)
{
    uint32_t flags = 0, same = 0;
    if (device_pred != UINT32_MAX) {
        flags = FIRST_IS_DEVICE;
        for (uint32_t i = 0; i < n; i++)
            same += preds[i] == device_pred;
        flags |= same ? ALSO_EDGE : 0;
    }
    uint32_t count = n - same + (flags ? 1 : 0);
    uint16_t head = (uint16_t)((count < COUNT_LONG ? count : COUNT_LONG) | flags);
    if (array_push(&f->code, head) < 0 || (count >= COUNT_LONG && put_long(f, count) < 0) ||
        (flags && put_distance(f, cell, device_pred) < 0))
        return -1;
    for (uint32_t i = 0; i < n; i++)
        if (!(flags && preds[i] == device_pred) && put_distance(f, cell, preds[i]) < 0)
            return -1;
    return 0;
}

static int encode(struct fixed *f, const struct pull *pull, const int64_t *release_ns)
{
    const struct dpro_graph *g = f->g;
    uint32_t *last = malloc(((size_t)g->n_devices + 1) * sizeof *last); /* cell, by device */
    if (!last)
        return -1;
    memset(last, 0xff, ((size_t)g->n_devices + 1) * sizeof *last);
    for (uint32_t i = 0; f->cyclic && i < f->n; i++) { /* a cycle's first follows its last */
        uint32_t device = g->device[f->order[i] % g->n_ops];
        if (device != DPRO_NO_DEVICE)
            last[device] = i;
    }
    int rc = 0;
    for (uint32_t i = 0; i < f->n && rc == 0; i++) {
        uint32_t op = f->order[i] % g->n_ops, device = g->device[op], cell = f->n_lead + i;
        uint32_t n = pull->row[i + 1] - pull->row[i];
        const uint32_t *preds = pull->pred + pull->row[i];
        uint32_t release = g->rank[op];
        if (n == 0 && release_ns) { /* its release is the end of a cell that never runs */
            preds = &release;
            n = 1;
        }
        rc = encode_op(f, cell, device == DPRO_NO_DEVICE ? UINT32_MAX : last[device], preds, n);
        if (device != DPRO_NO_DEVICE)
            last[device] = cell;
    }
    free(last);
    return rc;
}

int fixed_create(const struct dpro_graph *graph, uint32_t *order, uint32_t n_copies, bool cyclic,
                 const int64_t *release_ns, struct fixed **fixed, struct dpro_error *err)
{
    struct pull pull = {0};
    uint64_t n = (uint64_t)graph->n_ops * n_copies;
    uint64_t n_lead = cyclic ? n : release_ns ? graph->n_ranks + (uint64_t)graph->n_servers : 0;
    struct fixed *f = calloc(1, sizeof *f);
    int rc = -1;
    if (!f || n + n_lead >= UINT32_MAX) {
        free(order);
        goto out;
    }
    *f = (struct fixed){
        .g = graph, .n = (uint32_t)n, .n_lead = (uint32_t)n_lead, .cyclic = cyclic, .order = order};
    if (make_pull(f, &pull) < 0 || encode(f, &pull, release_ns) < 0)
        goto out;
    free(pull.row);
    free(pull.pred);
    pull = (struct pull){0};
    /* give back what growing left over */
    uint16_t *fit = realloc(f->code.at, (f->code.n + 1) * sizeof *fit);
    if (fit) {
        f->code.at = fit;
        f->code.cap = f->code.n + 1;
    }
    f->dur_ns = malloc((n + 1) * sizeof *f->dur_ns);
    f->cells = calloc(n_lead + n + 1, sizeof *f->cells);
    f->last_ready = calloc((size_t)graph->n_devices + 1, sizeof *f->last_ready);
    if (!f->dur_ns || !f->cells || !f->last_ready)
        goto out;
    if (release_ns && !cyclic)
        memcpy(f->cells, release_ns, n_lead * sizeof *f->cells);
    *fixed = f;
    f = NULL;
    rc = 0;
out:
    free(pull.row);
    free(pull.pred);
    fixed_destroy(f);
    return rc < 0 ? dpro_error_nomem(err) : 0;
}

void fixed_destroy(struct fixed *f)
{
    if (!f)
        return;
    free(f->order);
    array_fini(&f->code);
    free(f->dur_ns);
    free(f->gap_ns);
    free(f->cells);
    free(f->last_ready);
    free(f);
}

/* ---- passes ---- */

int fixed_set(struct fixed *f, const int64_t *const *dur_ns, const int64_t *const *gap_ns)
{
    uint32_t n_ops = f->g->n_ops, n_copies = n_ops ? f->n / n_ops : 0;
    bool gaps = false;
    for (uint32_t c = 0; gap_ns && c < n_copies; c++)
        gaps |= gap_ns[c] != NULL;
    if (gaps && !f->gap_ns) {
        f->gap_ns = malloc(((size_t)f->n + 1) * sizeof *f->gap_ns);
        if (!f->gap_ns)
            return -1;
    }
    for (uint32_t i = 0; n_copies == 1 && i < f->n; i++)
        f->dur_ns[i] = dur_ns[0][f->order[i]];
    for (uint32_t i = 0; n_copies > 1 && i < f->n; i++)
        f->dur_ns[i] = dur_ns[f->order[i] / n_ops][f->order[i] % n_ops];
    for (uint32_t i = 0; f->gap_ns && i < f->n; i++) {
        const int64_t *gap = gaps ? gap_ns[f->order[i] / n_ops] : NULL;
        f->gap_ns[i] = gap ? gap[f->order[i] % n_ops] : 0;
    }
    return 0;
}

static inline uint32_t get_long(const uint16_t **code)
{
    uint32_t value = (*code)[0] | (uint32_t)(*code)[1] << 16;
    *code += 2;
    return value;
}

static inline int64_t get_end(const uint16_t **code, const int64_t *end)
{
    uint32_t distance = *(*code)++;
    if (__builtin_expect(distance == 0, 0))
        distance = get_long(code);
    return *(end - distance);
}

static inline int64_t later(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static inline __attribute__((always_inline)) uint64_t pass(struct fixed *f, bool check, bool gaps)
{
    const uint16_t *code = f->code.at;
    int64_t *end = f->cells + f->n_lead;
    const int64_t *dur_ns = f->dur_ns, *gap_ns = f->gap_ns;
    uint64_t n_violations = 0;
    for (uint32_t i = 0, n = f->n; i < n; i++, end++) {
        uint32_t head = *code++, count = head & COUNT;
        int64_t ready = 0, start = 0;
        if (__builtin_expect(count == COUNT_LONG, 0))
            count = get_long(&code);
        if (check) {
            uint32_t device = f->g->device[f->order[i] % f->g->n_ops];
            if (head & FIRST_IS_DEVICE) {
                start = get_end(&code, end);
                ready = head & ALSO_EDGE ? start : 0;
                count--;
            }
            for (; count; count--)
                ready = later(ready, get_end(&code, end));
            if (device != DPRO_NO_DEVICE) {
                n_violations += ready < f->last_ready[device];
                f->last_ready[device] = ready;
            }
            start = later(start, ready);
        } else {
            for (; count; count--)
                start = later(start, get_end(&code, end));
        }
        if (gaps)
            start = time_add(start, gap_ns[i]);
        *end = time_add(start, dur_ns[i]);
    }
    return n_violations;
}

/* The ends of the last pass become those of the period before. */
static void shift(struct fixed *f)
{
    if (f->cyclic && f->n)
        memcpy(f->cells, f->cells + f->n_lead, (size_t)f->n * sizeof *f->cells);
}

void fixed_pass(struct fixed *f)
{
    shift(f);
    f->gap_ns ? pass(f, false, true) : pass(f, false, false);
}

uint64_t fixed_pass_checked(struct fixed *f)
{
    shift(f);
    if (!f->cyclic)
        memset(f->last_ready, 0, f->g->n_devices * sizeof *f->last_ready);
    return f->gap_ns ? pass(f, true, true) : pass(f, true, false);
}

int64_t fixed_latest_end(const struct fixed *f)
{
    int64_t latest = 0;
    for (uint32_t i = 0; i < f->n; i++)
        latest = later(latest, f->cells[f->n_lead + i]);
    return latest;
}

void fixed_get(const struct fixed *f, int64_t *end_ns, uint32_t *device_prev)
{
    for (uint32_t i = 0; i < f->n; i++)
        end_ns[f->order[i]] = f->cells[f->n_lead + i];
    const uint16_t *code = f->code.at;
    for (uint32_t i = 0; device_prev && i < f->n; i++) {
        uint32_t head = *code++, count = head & COUNT, prev = DPRO_NO_OP;
        if (count == COUNT_LONG)
            count = get_long(&code);
        for (uint32_t k = 0; k < count; k++) {
            uint32_t distance = *code++;
            if (distance == 0)
                distance = get_long(&code);
            uint32_t cell = f->n_lead + i - distance;
            if (k == 0 && head & FIRST_IS_DEVICE)
                prev = f->order[cell < f->n_lead ? cell : cell - f->n_lead] % f->g->n_ops;
        }
        device_prev[f->order[i]] = prev;
    }
}

/* ---- a chain of copies ---- */

struct given { /* every copy has the same durations */
    const int64_t *dur_ns, *gap_ns;
};

static int open_given(void *arg, uint32_t copy, const int64_t **dur_ns, const int64_t **gap_ns,
                      struct dpro_error *err)
{
    (void)copy;
    (void)err;
    const struct given *given = arg;
    *dur_ns = given->dur_ns;
    *gap_ns = given->gap_ns;
    return 0;
}

static int close_given(void *arg, struct replay_copy *copy, struct dpro_error *err)
{
    (void)arg;
    (void)copy;
    (void)err;
    return 0;
}

/* The third of four copies: past the start, and not without a follower. */
enum { ORDER_COPIES = 4, ORDER_COPY = 2 };

static int find_order(const struct dpro_graph *graph, const struct event_options *options,
                      struct given *given, bool *laps, struct fixed **fixed, struct dpro_error *err)
{
    bool cyclic = options->n_copies > 1;
    uint32_t *order = malloc(((size_t)graph->n_ops + 1) * sizeof *order);
    if (!order)
        return dpro_error_nomem(err);
    struct event_options find = {.n_copies = cyclic ? ORDER_COPIES : 1,
                                 .release_ns = options->release_ns,
                                 .order = order,
                                 .order_copy = cyclic ? ORDER_COPY : 0};
    struct replay_hooks hooks = {given, open_given, close_given};
    int rc = event_replay(graph, &find, &hooks, laps, err);
    if (rc < 0 || *laps) {
        free(order);
        return rc;
    }
    return fixed_create(graph, order, 1, cyclic, options->release_ns, fixed, err);
}

static int replay_one(struct fixed *f, uint32_t number, const struct event_options *options,
                      const struct replay_hooks *hooks, uint64_t *n_violations,
                      struct dpro_error *err)
{
    size_t n = f->n;
    struct replay_copy copy = {.number = number};
    copy.end_ns = malloc((n + 1) * sizeof *copy.end_ns);
    if (options->want_device_prev)
        copy.device_prev = malloc((n + 1) * sizeof *copy.device_prev);
    int rc = DPRO_ENOMEM;
    if (!copy.end_ns || (options->want_device_prev && !copy.device_prev)) {
        dpro_error_nomem(err);
        goto out;
    }
    rc = hooks->open(hooks->arg, number, &copy.dur_ns, &copy.gap_ns, err);
    if (rc < 0)
        goto out;
    if (fixed_set(f, &copy.dur_ns, &copy.gap_ns) < 0) {
        rc = dpro_error_nomem(err);
        goto out;
    }
    *n_violations += fixed_pass_checked(f);
    fixed_get(f, copy.end_ns, copy.device_prev);
    rc = hooks->close(hooks->arg, &copy, err);
out:
    free(copy.end_ns);
    free(copy.device_prev);
    return rc;
}

int fixed_replay(const struct dpro_graph *graph, const struct event_options *options,
                 const struct replay_hooks *hooks, const int64_t *dur_ns, const int64_t *gap_ns,
                 bool *laps, uint64_t *n_violations, struct dpro_error *err)
{
    *laps = false;
    *n_violations = 0;
    if (graph->n_ops == 0)
        return 0;
    struct given given = {dur_ns, gap_ns};
    struct fixed *f = NULL;
    int rc = find_order(graph, options, &given, laps, &f, err);
    for (uint32_t copy = 0; rc == 0 && !*laps && copy < options->n_copies; copy++)
        rc = replay_one(f, copy, options, hooks, n_violations, err);
    fixed_destroy(f);
    return rc;
}
