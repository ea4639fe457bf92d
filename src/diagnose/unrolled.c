/* Makes the list of cells from the replayed copies, and passes over it. */
#include "diagnose/unrolled.h"

enum node_kind { NODE_OP, NODE_GAP, NODE_CUT, NODE_GONE, NODE_LAST, NODE_BEHIND, NODE_FIXED };
#define NEVER ((int64_t)1 << 51) /* more than any cell has: 26 days */

/* A cell that has no place yet. */
struct cell_node {
    int64_t end_ns;    /* in the replay; of a cut edge when it was late */
    uint32_t first, n; /* of the nodes that it waits for */
    uint32_t copy;     /* of those from the first that counts on */
    uint32_t op;
    uint32_t cell;
    uint8_t kind;
    uint8_t state; /* of the walk: 0: not reached, 1: what it waits for is not placed, 2: placed */
};

/* An edge that the graph lacks; its number, as of those that are cut. */
struct gone_edge {
    uint32_t from, to, number;
    bool next;
};

struct unrolled_build {
    const struct chain *chain;
    const struct dpro_graph *g;
    const struct replay_copy *copies; /* from the first that counts on */
    uint32_t n_before, n_copies;      /* those that led up to them; with one that follows */
    struct pull same, next;
    bool ends_at_marks;
    bool *split;                   /* by op: its gap is a node of its own */
    struct map cut_edges;          /* 1 + the number of a cut, of all rows together */
    bool *is_cut;                  /* by op: an edge to it is cut */
    ARRAY(struct gone_edge) gone;  /* by their ends */
    ARRAY(struct cell_node) nodes; /* ops first, by copy and id */
    ARRAY(uint32_t) waits;
    ARRAY(uint32_t) gaps; /* [copy * n_ops + op]: their nodes; of those that are split */
    ARRAY(uint32_t) cut_nodes, cut_numbers;
    ARRAY(uint32_t) order;
    ARRAY(uint32_t) all; /* room of set_waits */
};

static uint64_t edge_key(uint32_t from, uint32_t to, bool next)
{
    return map_key(((uint64_t)from << 32 | to) ^ (next ? 0x8000000080000000u : 0));
}

/* Whether the edge is cut; its number, where that is asked for. */
static bool is_cut_edge(const struct unrolled_build *b, uint32_t from, uint32_t to, bool next,
                        uint64_t *number)
{
    return b->is_cut[to] && map_get(&b->cut_edges, edge_key(from, to, next), number);
}

static struct cell_node *add_node(struct unrolled_build *b, enum node_kind kind, uint32_t copy,
                                  uint32_t op, int64_t end_ns)
{
    array_add(&b->nodes, .kind = (uint8_t)kind, .copy = copy, .op = op, .end_ns = end_ns,
              .first = (uint32_t)b->waits.n);
    return &b->nodes.at[b->nodes.n - 1];
}

static uint32_t op_node(const struct unrolled_build *b, uint32_t copy, uint32_t op)
{
    return copy * b->g->n_ops + op;
}

/* ---- what an op waited for ---- */

struct waited { /* for an op of a copy, which may have led up to those that count */
    int64_t end_ns;
    uint32_t copy, op; /* copy: of all that were kept */
    bool next;
};
typedef ARRAY(struct waited) waited_array;

static void add_waited(const struct unrolled_build *b, const struct pull *pull, uint32_t op,
                       uint32_t copy, bool next, waited_array *waited)
{
    for (uint32_t e = pull->row[op]; e < pull->row[op + 1]; e++)
        array_add(waited, b->chain->copies[copy].end_ns[pull->pred[e]], copy, pull->pred[e], next);
}

/* What its device ran before: which copy's is not stored, but the latest that had ended is. */
static void add_device(const struct unrolled_build *b, uint32_t op, uint32_t copy, int64_t free_ns,
                       waited_array *waited)
{
    const struct replay_copy *copies = b->chain->copies;
    uint32_t prev = copies[copy].device_prev[op], last = b->chain->n_kept - 1;
    if (prev == DPRO_NO_OP)
        return;
    for (uint32_t c = MIN(copy + 1, last) + 1; c-- > 0;) {
        bool later = c > copy && copies[c].end_ns[prev] <= copies[copy].end_ns[prev];
        if (copies[c].end_ns[prev] <= free_ns && !later && !(c == copy && prev == op)) {
            EACH (const struct waited, w, *waited)
                if (w->copy == c && w->op == prev && /* it waits for that anyway */
                    !is_cut_edge(b, prev, op, w->next, NULL))
                    return;
            array_add(waited, copies[c].end_ns[prev], c, prev, false);
            return;
        }
    }
}

/* Without those that a free thread made needless, the latest. */
static void leave_spare(uint32_t spare, waited_array *waited)
{
    for (; spare > 0 && waited->n > 0; spare--) {
        size_t latest = 0;
        for (size_t i = 1; i < waited->n; i++)
            latest = waited->at[i].end_ns > waited->at[latest].end_ns ? i : latest;
        waited->at[latest] = waited->at[--waited->n];
    }
}

/* A cut edge's node, between its ends; it tells of the op that waits. */
static uint32_t add_cut(struct unrolled_build *b, enum node_kind kind, uint32_t from, uint32_t copy,
                        uint32_t to, uint64_t number)
{
    struct cell_node *node = add_node(b, kind, copy, to, b->nodes.at[from].end_ns);
    node->n = 1;
    array_push(&b->waits, from);
    array_push(&b->cut_nodes, (uint32_t)b->nodes.n - 1);
    array_push(&b->cut_numbers, (uint32_t)number);
    return (uint32_t)b->nodes.n - 1;
}

/* Gives a node, by its number, what it waits for, and what is known at once as one moment. */
static void set_waits(struct unrolled_build *b, uint32_t at, const waited_array *waited,
                      int64_t least_ns)
{
    uint32_t op = b->nodes.at[at].op, copy = b->nodes.at[at].copy;
    uint64_t number;
    b->all.n = 0;
    EACH (const struct waited, w, *waited) {
        if (w->copy < b->n_before) {
            least_ns = MAX(least_ns, w->end_ns);
            continue;
        }
        uint32_t from = op_node(b, w->copy - b->n_before, w->op);
        if (w->copy < b->n_before + b->n_copies) {
            if (is_cut_edge(b, w->op, op, w->next, &number))
                from = add_cut(b, NODE_CUT, from, copy, op, number);
            array_push(&b->all, from);
        }
    }
    size_t first = LOWER_BOUND(i, (size_t)0, b->gone.n, b->gone.at[i].to < op);
    for (size_t i = first; i < b->gone.n && b->gone.at[i].to == op; i++)
        if (copy >= b->gone.at[i].next) {
            uint32_t from = op_node(b, copy - b->gone.at[i].next, b->gone.at[i].from);
            from = add_cut(b, NODE_GONE, from, copy, op, b->gone.at[i].number);
            array_push(&b->all, from);
        }
    if (least_ns > 0) {
        uint32_t fixed = (uint32_t)b->nodes.n; /* waits for nothing but what is known */
        add_node(b, NODE_FIXED, 0, DPRO_NO_OP, least_ns);
        if (is_cut_edge(b, DPRO_NO_OP, op, false, &number))
            fixed = add_cut(b, NODE_CUT, fixed, copy, op, number);
        array_push(&b->all, fixed);
    }
    b->nodes.at[at].first = (uint32_t)b->waits.n;
    b->nodes.at[at].n = (uint32_t)b->all.n;
    array_append(&b->waits, b->all.at, b->all.n);
}

static bool in_pool(const struct dpro_graph *g, uint32_t op)
{
    return g->device[op] != DPRO_NO_DEVICE && g->devices[g->device[op]].n_slots > 0;
}

static void connect_op(struct unrolled_build *b, uint32_t copy, uint32_t op, waited_array *waited)
{
    const struct dpro_graph *g = b->g;
    const struct replay_copy *times = &b->copies[copy];
    uint32_t number = b->n_before + copy, node = op_node(b, copy, op);
    int64_t start = times->end_ns[op] - times->dur_ns[op];
    int64_t gap = times->gap_ns ? times->gap_ns[op] : 0;
    bool pool = in_pool(g, op);
    waited->n = 0;
    add_waited(b, &b->same, op, number, false, waited);
    bool is_root = waited->n == 0 && number == 0;
    if (number > 0)
        add_waited(b, &b->next, op, number - 1, true, waited);
    leave_spare(g->spare[op], waited);
    int64_t least = is_root && b->chain->release_ns ? b->chain->release_ns[g->rank[op]] : 0;
    if (!pool)
        add_device(b, op, number, start - gap, waited);
    if (!b->split[op]) {
        set_waits(b, node, waited, least);
        return;
    }
    int64_t ready = least;
    EACH (const struct waited, w, *waited)
        ready = MAX(ready, w->end_ns);
    add_node(b, NODE_GAP, copy, op, pool ? MIN(time_add(ready, gap), start) : start);
    uint32_t before = (uint32_t)b->nodes.n - 1;
    b->gaps.at[node] = before;
    set_waits(b, before, waited, least);
    waited->n = 0;
    if (pool)
        add_device(b, op, number, start, waited);
    set_waits(b, node, waited, 0);
    array_push(&b->waits, before); /* right behind them, but for what a fixed one took */
    b->nodes.at[node].n++;
}

/* ---- where iterations end ---- */

static void add_last(struct unrolled_build *b, uint32_t copy, uint32_t first, uint32_t n, bool all)
{
    struct cell_node *node = add_node(b, NODE_LAST, copy, DPRO_NO_OP, 0);
    for (uint32_t op = first; op < first + n; op++)
        if (all || b->g->device[op] != DPRO_NO_DEVICE || b->copies[copy].dur_ns[op] > 0) {
            array_push(&b->waits, op_node(b, copy, op));
            node->end_ns = MAX(node->end_ns, b->copies[copy].end_ns[op]);
            node->n++;
        }
}

/* An iteration is over when its mark has come, on the CPU or on the GPU, and no stream of its GPU
 * is further behind than it was. Else it would last no longer than its launches, where no call
 * waits for the GPU any more. */
static uint32_t end_with_streams(struct unrolled_build *b, uint32_t copy,
                                 const struct graph_rank *rank, uint32_t mark)
{
    const struct dpro_graph *g = b->g;
    const int64_t *end_ns = b->copies[copy].end_ns, mark_ns = b->nodes.at[mark].end_ns;
    SCRATCH uint32_t *last = mem_array(g->n_devices + (size_t)1, sizeof *last); /* 1 + the op */
    for (uint32_t op = rank->first_op; op < rank->first_op + rank->n_ops; op++) {
        if (!(g->flags[op] & GRAPH_OP_GPU) || b->copies[copy].dur_ns[op] == 0)
            continue;
        uint32_t *of = &last[g->device[op]];
        if (*of == 0 || end_ns[op] > end_ns[*of - 1])
            *of = op + 1;
    }
    b->all.n = 0;
    array_push(&b->all, mark);
    for (uint32_t device = 0; device < g->n_devices; device++)
        if (last[device] > 0) {
            add_node(b, NODE_BEHIND, copy, DPRO_NO_OP, mark_ns)->n = 1;
            array_push(&b->waits, op_node(b, copy, last[device] - 1));
            array_push(&b->all, (uint32_t)b->nodes.n - 1);
        }
    add_node(b, NODE_LAST, copy, DPRO_NO_OP, mark_ns)->n = (uint32_t)b->all.n;
    array_append(&b->waits, b->all.at, b->all.n);
    return (uint32_t)b->nodes.n - 1;
}

/* Nodes with whose ends an iteration ends. */
static uint32_t end_of_rank(struct unrolled_build *b, uint32_t copy, uint32_t r)
{
    const struct graph_rank *rank = &b->g->ranks[r];
    uint32_t mark = DPRO_NO_OP;
    if (rank->on_device)
        mark = b->gaps.at[op_node(b, copy + 1, rank->first_work)];
    else if (rank->boundary != DPRO_NO_OP)
        mark = op_node(b, copy, rank->boundary);
    if (mark != DPRO_NO_OP)
        return b->ends_at_marks ? mark : end_with_streams(b, copy, rank, mark);
    add_last(b, copy, rank->first_op, rank->n_ops, true);
    return (uint32_t)b->nodes.n - 1;
}

static void add_ends(struct unrolled_build *b, struct unrolled *s)
{
    const struct chain *c = b->chain;
    bool single = b->g->single_iteration;
    s->n_ends = single ? 1 : b->g->n_ranks;
    s->end = mem_array((size_t)s->n_iterations * s->n_ends + 1, sizeof *s->end);
    s->begin_ns = mem_array(s->n_ends + (size_t)1, sizeof *s->begin_ns);
    for (uint32_t i = 0; i < s->n_iterations; i++)
        for (uint32_t r = 0; r < s->n_ends; r++) {
            if (single) {
                add_last(b, 0, 0, b->g->n_ops, false);
                if (b->nodes.at[b->nodes.n - 1].n == 0)
                    add_last(b, 0, 0, b->g->n_ops, true);
                s->begin_ns[0] = c->first_ns;
            }
            s->end[(size_t)i * s->n_ends + r] =
                single ? (uint32_t)b->nodes.n - 1 : end_of_rank(b, i, r);
            if (!single)
                s->begin_ns[r] = c->boundary_ns[(size_t)(c->n_warm_up - 1) * b->g->n_ranks + r];
        }
}

/* ---- placing ---- */

/* What an iteration's end waits for comes before it, each chain side by side. An edge that would
 * close a circle (of ops that take no time) is left out. */
static void place_node(struct unrolled_build *b, uint32_t node)
{
    SCRATCH ARRAY(uint32_t) stack = {0};
    SCRATCH ARRAY(uint32_t) looked = {0};
    if (b->nodes.at[node].state)
        return;
    array_push(&stack, node);
    array_push(&looked, 0);
    b->nodes.at[node].state = 1;
    while (stack.n > 0) {
        struct cell_node *top = &b->nodes.at[stack.at[stack.n - 1]];
        uint32_t i = looked.at[looked.n - 1]++;
        if (i == top->n) {
            top->state = 2;
            top->cell = (uint32_t)b->order.n;
            array_push(&b->order, stack.at[stack.n - 1]);
            stack.n--;
            looked.n--;
            continue;
        }
        uint32_t *wait = &b->waits.at[top->first + i];
        if (b->nodes.at[*wait].state == 1) {
            *wait = b->waits.at[top->first + --top->n];
            looked.at[looked.n - 1]--;
        } else if (b->nodes.at[*wait].state == 0) {
            b->nodes.at[*wait].state = 1;
            array_push(&stack, *wait);
            array_push(&looked, 0);
        }
    }
}

static void place_all(struct unrolled_build *b, struct unrolled *s)
{
    size_t n_ends = (size_t)s->n_iterations * s->n_ends, n_waits = 0;
    for (uint32_t i = 0; i < b->nodes.n; i++)
        if (b->nodes.at[i].kind == NODE_FIXED)
            place_node(b, i);
    s->n_fixed = (uint32_t)b->order.n;
    for (size_t i = 0; i < n_ends; i++)
        place_node(b, s->end[i]);
    s->n_cells = (uint32_t)b->order.n;
    EACH (const uint32_t, node, b->order)
        n_waits += b->nodes.at[*node].n;
    s->row = mem_alloc((s->n_cells + (size_t)1) * sizeof *s->row);
    s->wait = mem_alloc((n_waits + 1) * sizeof *s->wait);
    s->own_ns = mem_alloc((s->n_cells + (size_t)1) * sizeof *s->own_ns);
    s->op = mem_alloc((s->n_cells + (size_t)1) * sizeof *s->op);
    s->iteration = mem_alloc((s->n_cells + (size_t)1) * sizeof *s->iteration);
    uint32_t at = 0;
    for (uint32_t cell = 0; cell < s->n_cells; cell++) {
        const struct cell_node *node = &b->nodes.at[b->order.at[cell]];
        int64_t ready = 0;
        s->row[cell] = at;
        s->op[cell] = node->op;
        s->iteration[cell] = node->copy;
        for (size_t i = 0; i < node->n; i++) {
            const struct cell_node *wait = &b->nodes.at[b->waits.at[node->first + i]];
            s->wait[at++] = wait->cell;
            ready = MAX(ready, wait->kind == NODE_GONE ? 0 : wait->end_ns);
        }
        /* its gap and duration */
        s->own_ns[cell] = node->kind == NODE_GONE     ? -NEVER
                          : node->kind == NODE_BEHIND ? MIN(node->end_ns - ready, 0)
                                                      : MAX(node->end_ns - ready, 0);
    }
    s->row[s->n_cells] = at;
    for (size_t i = 0; i < n_ends; i++)
        s->end[i] = b->nodes.at[s->end[i]].cell;
}

/* ---- what causes take away ---- */

ORDER(by_end, struct gone_edge, ASCENDING(to) ?: ASCENDING(number));

static void take_piece(struct unrolled_build *b, struct unrolled *s, int64_t *left, uint32_t cause,
                       const struct piece *piece)
{
    for (uint32_t i = 0; i < s->n_iterations; i++) {
        uint32_t at = op_node(b, i, piece->op);
        if (piece->gap && b->split[piece->op])
            at = b->gaps.at[at];
        const struct cell_node *node = &b->nodes.at[at];
        int64_t ns = node->state == 2 ? MIN(piece->ns[i], left[node->cell]) : 0;
        if (ns == 0)
            continue;
        left[node->cell] -= MAX(ns, 0);
        array_add(&s->taken[cause], node->cell, piece->part, ns, ns);
    }
}

/* How much later than without the edge its end was ready. */
static int64_t lateness_of(const struct unrolled_build *b, uint32_t node, uint32_t to)
{
    int64_t others = 0;
    const struct cell_node *end = &b->nodes.at[to];
    for (size_t i = 0; i < end->n; i++)
        if (b->waits.at[end->first + i] != node &&
            b->nodes.at[b->waits.at[end->first + i]].kind != NODE_GONE)
            others = MAX(others, b->nodes.at[b->waits.at[end->first + i]].end_ns);
    return MAX(b->nodes.at[node].end_ns - others, 1);
}

static void take_all(struct unrolled_build *b, struct unrolled *s, const struct cause_found *found)
{
    SCRATCH int64_t *left = mem_alloc((s->n_cells + (size_t)1) * sizeof *left);
    SCRATCH uint32_t *to = mem_array(b->nodes.n + 1, sizeof *to); /* of each cut */
    uint32_t first = 0;
    memcpy(left, s->own_ns, s->n_cells * sizeof *left);
    for (uint32_t i = 0; i < b->nodes.n; i++)
        for (size_t k = 0; k < b->nodes.at[i].n; k++)
            if (b->nodes.at[b->waits.at[b->nodes.at[i].first + k]].kind == NODE_CUT)
                to[b->waits.at[b->nodes.at[i].first + k]] = i;
    for (uint32_t c = 0; c < s->n_causes; c++) {
        EACH (const struct piece, piece, found[c].pieces)
            take_piece(b, s, left, c, piece);
        for (size_t i = 0; i < b->cut_nodes.n; i++) {
            uint32_t node = b->cut_nodes.at[i], number = b->cut_numbers.at[i] - 1;
            if (number < first || number >= first + found[c].cuts.n || b->nodes.at[node].state != 2)
                continue;
            bool gone = b->nodes.at[node].kind == NODE_GONE;
            array_add(&s->taken[c], b->nodes.at[node].cell, found[c].cuts.at[number - first].part,
                      gone ? -NEVER : NEVER, gone ? 0 : lateness_of(b, node, to[node]));
        }
        first += (uint32_t)found[c].cuts.n;
    }
}

static void take_by_cell(struct unrolled *s)
{
    s->take_row = mem_array(s->n_cells + (size_t)2, sizeof *s->take_row);
    for (uint32_t c = 0; c < s->n_causes; c++)
        EACH (const struct taken, taken, s->taken[c])
            s->take_row[taken->cell + 2]++;
    for (uint32_t i = 0; i < s->n_cells; i++)
        s->take_row[i + 2] += s->take_row[i + 1];
    s->takes = mem_alloc((s->take_row[s->n_cells + 1] + (size_t)1) * sizeof *s->takes);
    for (uint32_t c = 0; c < s->n_causes; c++)
        EACH (const struct taken, taken, s->taken[c])
            s->takes[s->take_row[taken->cell + 1]++] =
                (struct take){c, taken->part, taken->ns, taken->path};
}

static void connect_all(struct unrolled_build *b, struct unrolled *s)
{
    size_t n = (size_t)b->n_copies * b->g->n_ops;
    SCRATCH waited_array waited = {0};
    array_reserve(&b->nodes, n);
    for (uint32_t copy = 0; copy < b->n_copies; copy++)
        for (uint32_t op = 0; op < b->g->n_ops; op++)
            add_node(b, NODE_OP, copy, op, b->copies[copy].end_ns[op]);
    b->gaps.at = mem_array(n + 1, sizeof *b->gaps.at);
    for (uint32_t copy = 0; copy < b->n_copies; copy++)
        for (uint32_t op = 0; op < b->g->n_ops; op++)
            connect_op(b, copy, op, &waited);
    add_ends(b, s);
}

void unrolled_make(struct unrolled *s, const struct chain *chain, const struct diagnosed *d,
                   const struct cause_found *found, uint32_t n_found)
{
    SCRATCH_ARENA struct arena work = {0};
    const struct dpro_graph *g = d->g;
    struct unrolled_build b = {
        .chain = chain, .g = g, .copies = d->copies, .ends_at_marks = d->ends_at_marks};
    b.n_before = chain->n_warm_up;
    b.n_copies = chain->n_kept - chain->n_warm_up;
    b.same = pull_make(g->n_ops, g->row, g->succ, &work);
    b.next = pull_make(g->n_ops, g->next_row, g->next_succ, &work);
    b.split = arena_array(&work, g->n_ops + (size_t)1, sizeof *b.split);
    b.is_cut = arena_array(&work, g->n_ops + (size_t)1, sizeof *b.is_cut);
    for (uint32_t op = 0; op < g->n_ops; op++)
        b.split[op] = in_pool(g, op);
    for (uint32_t r = 0; r < g->n_ranks && !g->single_iteration; r++)
        if (g->ranks[r].on_device)
            b.split[g->ranks[r].first_work] = true;
    uint64_t number = 0;
    for (uint32_t c = 0; c < n_found; c++)
        EACH (const struct cut, cut, found[c].cuts)
            if (++number && cut->gone)
                array_add(&b.gone, cut->from, cut->to, (uint32_t)number, cut->next);
            else if (map_insert(&b.cut_edges, edge_key(cut->from, cut->to, cut->next), number))
                b.is_cut[cut->to] = true;
    array_sort(&b.gone, by_end);
    *s = (struct unrolled){.n_iterations = d->n_iterations, .n_causes = n_found};
    s->taken = mem_array(n_found + (size_t)1, sizeof *s->taken);
    connect_all(&b, s);
    place_all(&b, s);
    take_all(&b, s, found);
    take_by_cell(s);
    map_fini(&b.cut_edges);
    FREE_ALL(&b.nodes, &b.waits, &b.gaps, &b.cut_nodes, &b.cut_numbers, &b.order, &b.all, &b.gone);
}

void unrolled_fini(struct unrolled *s)
{
    for (uint32_t c = 0; c < s->n_causes; c++)
        FREE_ALL(&s->taken[c], &s->players[c]);
    FREE_ALL(&s->row, &s->wait, &s->own_ns, &s->op, &s->iteration, &s->end, &s->begin_ns, &s->taken,
             &s->take_row, &s->takes);
}

/* ---- passes ---- */

/* What is gone of each cause, by player, in each of the passes that run at once. */
struct gone_shares {
    double share[32][32][N_AT_ONCE];
};

/* Doubles, as processors find the later of several of these at once; they are whole numbers below
 * 2^53, so that nothing is rounded. */
static void run_passes(const struct unrolled *s, const struct gone_shares *gone, bool by_path,
                       struct cell_times *cells)
{
    for (uint32_t i = 0; i < s->n_cells; i++) {
        struct cell_times end = {0};
        for (uint32_t e = s->row[i]; e < s->row[i + 1]; e++)
            for (int k = 0; k < N_AT_ONCE; k++)
                end.ns[k] = MAX(end.ns[k], cells[s->wait[e]].ns[k]);
        for (int k = 0; k < N_AT_ONCE; k++)
            end.ns[k] += (double)s->own_ns[i];
        for (uint32_t t = s->take_row[i]; t < s->take_row[i + 1]; t++) {
            const struct take *take = &s->takes[t];
            const uint8_t *players = s->players[take->cause];
            const double *its = gone->share[take->cause][players ? players[take->part] : 0];
            for (int k = 0; k < N_AT_ONCE; k++)
                end.ns[k] -=
                    by_path ? trunc(its[k] * (double)take->path) : its[k] * (double)take->ns;
        }
        cells[i] = end;
    }
}

void unrolled_passes(const struct unrolled *s, const struct cause_set *sets, size_t n_sets,
                     struct cell_times *cells, double *iterations_ns)
{
    SCRATCH struct gone_shares *gone = mem_array(1, sizeof *gone);
    for (uint32_t c = 0; c < s->n_causes; c++)
        for (uint32_t player = 0; player < (s->players[c] ? 32 : 1); player++)
            for (size_t k = 0; k < N_AT_ONCE; k++) {
                const struct cause_set *set = &sets[MIN(k, n_sets - 1)];
                bool apart = c == set->partly && s->players[c];
                uint32_t there = apart ? set->players >> player : set->causes >> c;
                gone->share[c][player][k] = !(there & 1);
            }
    run_passes(s, gone, false, cells);
    for (size_t k = 0; k < n_sets; k++)
        for (uint32_t i = 0; i < s->n_iterations; i++) {
            const uint32_t *end = s->end + (size_t)i * s->n_ends;
            double *sum = &iterations_ns[k * s->n_iterations + i];
            *sum = 0;
            for (uint32_t r = 0; r < s->n_ends; r++)
                *sum += (cells[end[r]].ns[k] - (i > 0 ? cells[end[(ptrdiff_t)r - s->n_ends]].ns[k]
                                                      : (double)s->begin_ns[r])) /
                        s->n_ends;
        }
}

/* Of pass k, for each cell, how much of it the mean iteration takes: the critical path, where
 * several are equally late in equal parts. */
static void path_weights(const struct unrolled *s, const struct cell_times *cells, int k,
                         double *weight)
{
    memset(weight, 0, s->n_cells * sizeof *weight);
    const uint32_t *end = s->end + (size_t)(s->n_iterations - 1) * s->n_ends;
    for (uint32_t r = 0; r < s->n_ends; r++)
        weight[end[r]] += 1.0 / s->n_ends / s->n_iterations;
    for (uint32_t i = s->n_cells; i-- > s->n_fixed;) {
        double ready = 1;
        uint32_t n = 0;
        if (weight[i] == 0)
            continue;
        for (uint32_t e = s->row[i]; e < s->row[i + 1]; e++)
            ready = MAX(ready, cells[s->wait[e]].ns[k]);
        for (uint32_t e = s->row[i]; e < s->row[i + 1]; e++)
            n += cells[s->wait[e]].ns[k] == ready;
        for (uint32_t e = s->row[i]; e < s->row[i + 1]; e++)
            if (cells[s->wait[e]].ns[k] == ready)
                weight[s->wait[e]] += weight[i] / n;
    }
}

double *unrolled_weights(const struct unrolled *s, struct cause_way way)
{
    enum { N_SHARES = 8, FEW_SHARES = 4, MANY_CELLS = 1000000 };
    double *sum = mem_array(s->n_cells + (size_t)1, sizeof *sum);
    SCRATCH double *weight = mem_array(s->n_cells + (size_t)1, sizeof *weight);
    SCRATCH struct cell_times *cells = mem_alloc((s->n_cells + (size_t)1) * sizeof *cells);
    SCRATCH struct gone_shares *gone = mem_array(1, sizeof *gone);
    int n = s->n_cells < MANY_CELLS ? N_SHARES : FEW_SHARES;
    for (int first = 0; first < n; first += N_AT_ONCE) {
        for (uint32_t c = 0; c < s->n_causes; c++)
            for (uint32_t player = 0; player < 32; player++)
                for (int k = 0; k < N_AT_ONCE; k++)
                    gone->share[c][player][k] =
                        way.shrinking >> c & 1 ? 1 - (first + k + 0.5) / n : way.gone >> c & 1;
        run_passes(s, gone, true, cells);
        for (int k = 0; k < N_AT_ONCE; k++) {
            path_weights(s, cells, k, weight);
            for (uint32_t i = 0; i < s->n_cells; i++)
                sum[i] += weight[i] / n;
        }
    }
    return sum;
}
