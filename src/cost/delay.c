/* cost/delay.c: what delays of a graph's ops make of a model. An op of a program stands for a
 * segment of its rank's ops: in backward those that end between two gradients; the first one, too,
 * for the optimizer and the forward pass before them. It becomes longer by the ratio in which they
 * do, and by the milliseconds that are added to them. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "cost/change.h"
#include "graph/graph.h"
#include "replay/replay.h"

struct sums {
    double before, after; /* ns */
    double added;         /* in `after`, by milliseconds rather than ratios */
};

struct delayed {
    const struct dpro_graph *graph;
    const int64_t *dur_ns, *ratio_ns; /* after; without what is added */
    struct dpro_model *model;
    struct sums *ops;          /* by op of the rank's program */
    int64_t *ready_ns;         /* by op: when its tensor is ready; INT64_MIN: none */
    struct sums communication; /* of the rank */
    bool has_gpu;
};

static const struct graph_rank *find_rank(const struct dpro_graph *g, int rank)
{
    for (uint32_t r = 0; r < g->n_ranks; r++)
        if (g->ranks[r].rank == rank)
            return &g->ranks[r];
    return NULL;
}

/* The op of the program that ends with the tensor; MODEL_NONE: none. */
static uint32_t find_segment(const struct delayed *d, const struct model_program *program,
                             const char *tensor)
{
    for (uint32_t o = 0; o < program->n_ops; o++)
        if (program->ops[o].tensor != MODEL_NONE &&
            strcmp(d->model->tensors[program->ops[o].tensor].name, tensor) == 0)
            return o;
    return MODEL_NONE;
}

/* A tensor is ready when what comes before its IN has ended. */
static void find_ready_times(struct delayed *d, const struct graph_rank *rank,
                             const struct model_program *program)
{
    const struct dpro_graph *g = d->graph;
    for (uint32_t o = 0; o < program->n_ops; o++)
        d->ready_ns[o] = INT64_MIN;
    for (uint32_t op = rank->first_op; op < rank->first_op + rank->n_ops; op++) {
        for (uint32_t e = g->row[op]; e < g->row[op + 1] && g->tensor && g->seen_start_ns; e++) {
            uint32_t in = g->succ[e];
            if (g->kind[in] != DPRO_OP_IN)
                continue;
            uint32_t o = find_segment(d, program, strtab_get(&g->names, g->tensor[in]));
            int64_t end = g->seen_start_ns[op] + g->seen_dur_ns[op];
            if (o != MODEL_NONE && end > d->ready_ns[o])
                d->ready_ns[o] = end;
        }
    }
}

/* The one that ends with the first gradient to be ready after the op; the last one when there is
 * none. */
static uint32_t segment_of(const struct delayed *d, const struct model_program *program,
                           uint32_t op)
{
    const struct dpro_graph *g = d->graph;
    uint32_t last = 0;
    if (g->phase[op] != DPRO_OP_BW || !g->seen_start_ns)
        return 0;
    for (uint32_t o = 0; o < program->n_ops; o++) {
        if (d->ready_ns[o] == INT64_MIN)
            continue;
        last = o;
        if (d->ready_ns[o] >= g->seen_start_ns[op] + g->seen_dur_ns[op])
            return o;
    }
    return last;
}

static void add_op(struct delayed *d, const struct model_program *program, uint32_t op)
{
    const struct dpro_graph *g = d->graph;
    uint8_t kind = g->kind[op], phase = g->phase[op];
    double gap = g->gap_ns ? (double)g->gap_ns[op] : 0;
    struct sums *to = NULL;
    if ((kind >= DPRO_OP_RECV && kind <= DPRO_OP_REDUCE) || kind == DPRO_OP_COLLECTIVE)
        to = &d->communication;
    else if (phase <= DPRO_OP_INPUT && kind != DPRO_OP_SEND &&
             (!d->has_gpu || (g->flags[op] & GRAPH_OP_GPU)))
        to = &d->ops[segment_of(d, program, op)];
    if (to) {
        to->before += (double)g->dur_ns[op] + gap;
        to->after += (double)d->dur_ns[op] + gap;
        to->added += (double)(d->dur_ns[op] - d->ratio_ns[op]);
    }
}

static void delay_program(struct delayed *d, struct model_program *program)
{
    for (uint32_t o = 0; o < program->n_ops; o++) {
        struct model_op *op = &program->ops[o];
        const struct sums *sums = &d->ops[o];
        if (sums->before > 0) {
            double ratio = (sums->after - sums->added) / sums->before;
            op->work_ns = llround((double)op->work_ns * ratio + sums->added);
            op->beside_ns = llround((double)op->beside_ns * ratio);
        }
    }
}

static void delay_net(struct model_net *net, double ratio)
{
    struct dpro_estimate *const parts[] = {&net->byte_ns, &net->message_ns, &net->reduce_ns,
                                           &net->collective_ns};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        parts[i]->value *= ratio;
        parts[i]->std *= ratio;
    }
}

static int delay_ranks(struct delayed *d, struct arena *arena, double *slowest, double *fastest,
                       struct dpro_error *err)
{
    const struct dpro_graph *g = d->graph;
    struct dpro_model *m = d->model;
    struct model_program *programs = arena_array(arena, (size_t)m->n_ranks + 1, sizeof *programs);
    if (!programs)
        return dpro_error_nomem(err);
    *slowest = 0;
    *fastest = -1;
    for (uint32_t r = 0; r < m->n_ranks; r++) {
        const struct model_program *from = &m->programs[m->ranks[r].program];
        const struct graph_rank *rank = find_rank(g, m->ranks[r].rank);
        struct model_op *ops = arena_array(arena, (size_t)from->n_ops + 1, sizeof *ops);
        d->ops = calloc((size_t)from->n_ops + 1, sizeof *d->ops);
        d->ready_ns = calloc((size_t)from->n_ops + 1, sizeof *d->ready_ns);
        bool failed = !ops || !d->ops || !d->ready_ns;
        if (!failed) {
            memcpy(ops, from->ops, from->n_ops * sizeof *ops);
            programs[r] = (struct model_program){.ops = ops, .n_ops = from->n_ops};
        }
        if (!failed && rank) {
            d->communication = (struct sums){0};
            d->has_gpu = false;
            for (uint32_t op = rank->first_op; op < rank->first_op + rank->n_ops; op++)
                d->has_gpu |= (g->flags[op] & GRAPH_OP_GPU) != 0;
            find_ready_times(d, rank, from);
            for (uint32_t op = rank->first_op; op < rank->first_op + rank->n_ops; op++)
                add_op(d, from, op);
            delay_program(d, &programs[r]);
            double ratio =
                d->communication.before > 0 ? d->communication.after / d->communication.before : 1;
            *slowest = ratio > *slowest ? ratio : *slowest;
            *fastest = *fastest < 0 || ratio < *fastest ? ratio : *fastest;
        }
        free(d->ops);
        free(d->ready_ns);
        if (failed)
            return dpro_error_nomem(err);
        m->ranks[r].program = r;
    }
    m->programs = programs;
    m->n_programs = m->n_ranks;
    return 0;
}

int change_delay(const struct dpro_graph *graph, const char *const *delays, size_t n,
                 struct dpro_model *model, struct arena *arena, note_array *notes,
                 struct dpro_error *err)
{
    struct delays parsed;
    double slowest = 0, fastest = 0;
    int rc = delays_parse(graph, delays, n, &parsed, err);
    if (rc < 0)
        return rc;
    int64_t *dur_ns = malloc(((size_t)graph->n_ops + 1) * sizeof *dur_ns);
    int64_t *ratio_ns = malloc(((size_t)graph->n_ops + 1) * sizeof *ratio_ns);
    if (dur_ns && ratio_ns) {
        struct delayed d = {.graph = graph, .dur_ns = dur_ns, .ratio_ns = ratio_ns, .model = model};
        memcpy(dur_ns, graph->dur_ns, graph->n_ops * sizeof *dur_ns);
        memcpy(ratio_ns, graph->dur_ns, graph->n_ops * sizeof *ratio_ns);
        delays_apply(&parsed, graph, true, dur_ns);
        delays_apply(&parsed, graph, false, ratio_ns);
        rc = delay_ranks(&d, arena, &slowest, &fastest, err);
    } else {
        rc = dpro_error_nomem(err);
    }
    if (rc == 0 && slowest > 0 && (slowest != 1 || fastest != 1)) {
        delay_net(&model->net, slowest);
        if (slowest - fastest > 0.001 &&
            note(notes, arena,
                 "the delays slow down the communication of some ranks more than that of others; "
                 "all are taken to be as slow as the slowest, which the others wait for") < 0)
            rc = dpro_error_nomem(err);
    }
    free(dur_ns);
    free(ratio_ns);
    delays_fini(&parsed);
    return rc;
}
