/* Which op of the graph each part of a program's work belongs to.
 *
 * Each moment of a rank's recorded iteration is of the op that ends next: a rank's threads are one
 * program, of a GPU the stream that computes longest. A program's op has the moments since the one
 * before it, and the first one also those behind the last. */
#include "cost/program/cost.h"

struct timed_op {
    uint32_t op;
    int64_t start_ns, end_ns; /* means */
};

ORDER(by_start, struct timed_op, ASCENDING(start_ns) ?: ASCENDING(end_ns) ?: ASCENDING(op));

struct pieces_cutter {
    const struct measured_replay *r;
    const struct dpro_graph *timed;
    const struct model_program *p;
    ARRAY(struct program_piece) pieces;
    struct arena *arena;
    int64_t cursor_ns; /* up to there time has been given out, */
    uint32_t at;       /* to the program's ops up to this one */
};

static bool is_of_program(const struct dpro_graph *g, uint32_t op, uint32_t stream)
{
    return g->kind[op] != DPRO_OP_COLLECTIVE &&
           (stream != DPRO_NO_DEVICE ? g->device[op] == stream
                                     : graph_is_on(g, op, DPRO_DEVICE_CPU_THREAD));
}

static struct timed_op *list_ops(const struct measured_replay *r, const struct graph_rank *rank,
                                 uint32_t *n, struct arena *arena)
{
    struct timed_op *ops = arena_array(arena, rank->n_ops + (size_t)1, sizeof *ops);
    uint32_t stream = rank_main_stream(r->graph, rank);
    *n = 0;
    for (uint32_t op = rank->first_op; op < rank->first_op + rank->n_ops; op++) {
        if (is_of_program(r->graph, op, stream))
            ops[(*n)++] = (struct timed_op){op, measured_mean_ns(r, op, true),
                                            measured_mean_ns(r, op, false)};
    }
    qsort(ops, *n, sizeof *ops, by_start);
    return ops;
}

static void add_piece(struct pieces_cutter *c, uint32_t at, uint32_t op, int64_t ns, int64_t gap_ns)
{
    uint32_t n = c->p->n_ops;
    int64_t was = c->r->graph->dur_ns[op], is = c->timed->dur_ns[op];
    double times = was > 0 ? (double)is / (double)was : 1;
    double on_ns = times * (double)(ns - gap_ns);
    array_add(&c->pieces, at % n, op, at == n, on_ns + (double)gap_ns, (double)gap_ns);
}

/* It may go on while others of its rank communicate. */
static void cut_op(struct pieces_cutter *c, const struct timed_op *it)
{
    const struct model_op *ops = c->p->ops;
    uint32_t n = c->p->n_ops;
    do {
        while (c->at < n && ops[c->at].when_ns <= MAX(it->start_ns, c->cursor_ns))
            c->at++;
        int64_t until_ns = c->at < n ? MIN(it->end_ns, ops[c->at].when_ns) : it->end_ns;
        int64_t from_ns = c->at > 0 ? MAX(c->cursor_ns, ops[c->at - 1].when_ns) : c->cursor_ns;
        int64_t idle_ns = MIN(it->start_ns, until_ns) - from_ns;
        add_piece(c, c->at, it->op, MAX(until_ns - from_ns, 0), MAX(idle_ns, 0));
        c->cursor_ns = MAX(c->cursor_ns, until_ns);
    } while (c->cursor_ns < it->end_ns);
}

/* A program's op has as much work as it was learnt to have. */
static void fit_work(struct pieces_cutter *c)
{
    double *all_ns = arena_array(c->arena, c->p->n_ops + (size_t)1, sizeof *all_ns);
    EACH (const struct program_piece, piece, c->pieces)
        all_ns[piece->at] += piece->ns;
    EACH (struct program_piece, piece, c->pieces) {
        double times = all_ns[piece->at];
        times = times > 0 ? (double)c->p->ops[piece->at].work_ns / times : 1;
        piece->ns *= times;
        piece->gap_ns *= times;
    }
}

struct program_pieces program_pieces_of(const struct measured_replay *recorded,
                                        const struct dpro_graph *timed,
                                        const struct dpro_model *model, uint32_t rank,
                                        struct arena *arena)
{
    struct pieces_cutter c = {.r = recorded,
                              .timed = timed,
                              .p = &model->programs[model->ranks[rank].program],
                              .arena = arena};
    uint32_t n;
    struct timed_op *ops = list_ops(recorded, &recorded->graph->ranks[rank], &n, arena);
    if (c.p->n_ops == 0)
        return (struct program_pieces){NULL, 0};
    int64_t last_ns = c.p->ops[c.p->n_ops - 1].when_ns;
    uint32_t tail = LOWER_BOUND(i, 0u, n, ops[i].start_ns < last_ns);
    c.cursor_ns = last_ns;
    c.at = c.p->n_ops;
    for (uint32_t i = tail; i < n; i++)
        cut_op(&c, &ops[i]);
    c.cursor_ns = n > 0 ? ops[0].start_ns : 0;
    c.at = 0;
    for (uint32_t i = 0; i < tail; i++)
        cut_op(&c, &ops[i]);
    fit_work(&c);
    struct program_pieces all = {arena_copy(arena, c.pieces.at, c.pieces.n, sizeof *all.all),
                                 (uint32_t)c.pieces.n};
    array_fini(&c.pieces);
    return all;
}
