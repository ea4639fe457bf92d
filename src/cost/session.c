/* cost/session.c: the variables of a TensorFlow session, its parameter servers' tensors.
 *
 * An iteration begins with the values of all variables on their way to the workers, each of which
 * a server sends when it has read it; gradients go back, are added up and update the variable. What
 * is pulled, and what a pushed gradient comes to, leads to the same op: the variable. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/map.h"
#include "cost/cost.h"

enum { MOST_BACK = 64 }; /* ops between a variable and its pull */

bool session_is(const struct dpro_graph *g)
{
    return g->n_collectives == 0 && g->n_servers > 0;
}

struct pull {
    uint32_t op, rank, variable; /* variable: the server's op */
    uint32_t reader;             /* the server's op that it is sent after */
    int64_t when_ns;
};

struct push {
    uint32_t op, rank, variable, maker;
};

struct lists {
    uint32_t *first_pred, *preds; /* of each op, same iteration */
    ARRAY(struct pull) pulls;
    ARRAY(struct push) pushes;
};

static bool moves(const struct dpro_graph *g, uint32_t op, uint8_t kind)
{
    return g->kind[op] == kind && g->size_bytes && g->size_bytes[op] > 0;
}

static bool is_servers(const struct dpro_graph *g, uint32_t op)
{
    return g->rank[op] >= g->n_ranks;
}

static int list_preds(const struct dpro_graph *g, struct lists *l)
{
    l->first_pred = calloc((size_t)g->n_ops + 2, sizeof *l->first_pred);
    l->preds = malloc(((size_t)g->row[g->n_ops] + 1) * sizeof *l->preds);
    if (!l->first_pred || !l->preds)
        return -1;
    for (uint32_t e = 0; e < g->row[g->n_ops]; e++)
        l->first_pred[g->succ[e] + 2]++;
    for (uint32_t op = 0; op < g->n_ops; op++)
        l->first_pred[op + 2] += l->first_pred[op + 1];
    for (uint32_t op = 0; op < g->n_ops; op++)
        for (uint32_t e = g->row[op]; e < g->row[op + 1]; e++)
            l->preds[l->first_pred[g->succ[e] + 1]++] = op;
    return 0;
}

/* What an op needs of its own process, but for the step's start. */
static uint32_t nth_input(const struct dpro_graph *g, const struct lists *l, uint32_t op,
                          uint32_t n)
{
    for (uint32_t p = l->first_pred[op]; p < l->first_pred[op + 1]; p++) {
        uint32_t from = l->preds[p];
        if (g->rank[from] == g->rank[op] && g->kind[from] != DPRO_OP_LAUNCH &&
            g->kind[from] != DPRO_OP_PUSH && g->kind[from] != DPRO_OP_PULL &&
            g->device[from] != DPRO_NO_DEVICE && n-- == 0)
            return from;
    }
    return DPRO_NO_OP;
}

/* The op that a server's read begins with. */
static uint32_t root_of(const struct dpro_graph *g, const struct lists *l, uint32_t op)
{
    for (uint32_t i = 0, input; i < MOST_BACK; i++, op = input)
        if ((input = nth_input(g, l, op, 0)) == DPRO_NO_OP)
            break;
    return op;
}

static uint32_t sender_of(const struct dpro_graph *g, const struct lists *l, uint32_t op)
{
    for (uint32_t p = l->first_pred[op]; p < l->first_pred[op + 1]; p++)
        if (is_servers(g, l->preds[p]) != is_servers(g, op))
            return l->preds[p];
    return DPRO_NO_OP;
}

/* The variable that comes of what was pushed: the nearest op with one for an input. `variables`:
 * by op, whether it is one. */
static uint32_t updated_by(const struct dpro_graph *g, const struct lists *l, uint32_t push,
                           const uint8_t *variables)
{
    uint32_t queue[MOST_BACK], n = 0;
    queue[n++] = push;
    for (uint32_t at = 0; at < n; at++) {
        uint32_t op = queue[at], input;
        for (uint32_t i = 0; at > 0 && (input = nth_input(g, l, op, i)) != DPRO_NO_OP; i++)
            if (variables[input])
                return input;
        for (uint32_t e = g->row[op]; e < g->row[op + 1] && n < MOST_BACK; e++)
            if (g->rank[g->succ[e]] == g->rank[push] && g->kind[g->succ[e]] != DPRO_OP_PUSH)
                queue[n++] = g->succ[e];
    }
    return DPRO_NO_OP;
}

static int list_moves(const struct rehearsal *r, struct lists *l)
{
    const struct dpro_graph *g = r->graph;
    uint8_t *variables = calloc((size_t)g->n_ops + 1, 1);
    int status = variables ? 0 : -1;
    for (uint32_t op = 0; op < g->n_ops && status == 0; op++) {
        uint32_t reader =
            moves(g, op, DPRO_OP_PULL) && !is_servers(g, op) ? sender_of(g, l, op) : DPRO_NO_OP;
        if (reader == DPRO_NO_OP)
            continue;
        struct pull pull = {op, g->rank[op], root_of(g, l, reader), reader,
                            rehearsal_start(r, r->first, op)};
        variables[pull.variable] = 1;
        status = array_push(&l->pulls, pull);
    }
    for (uint32_t op = 0; op < g->n_ops && status == 0; op++) {
        uint32_t maker =
            moves(g, op, DPRO_OP_PUSH) && is_servers(g, op) ? sender_of(g, l, op) : DPRO_NO_OP;
        if (maker == DPRO_NO_OP)
            continue;
        struct push push = {op, g->rank[maker], updated_by(g, l, op, variables), maker};
        if (push.variable != DPRO_NO_OP)
            status = array_push(&l->pushes, push);
    }
    free(variables);
    return status;
}

/* ---- tensors ---- */

struct variable {
    uint32_t op;
    int64_t ready_ns, pulled_ns;
    uint64_t size_bytes;
};

static int by_ready(const void *a, const void *b)
{
    const struct variable *x = a, *y = b;
    if (x->ready_ns != y->ready_ns)
        return x->ready_ns < y->ready_ns ? -1 : 1;
    return x->op < y->op ? -1 : x->op > y->op;
}

static int by_pulled(const void *a, const void *b)
{
    const struct variable *const *x = a, *const *y = b;
    if ((*x)->pulled_ns != (*y)->pulled_ns)
        return (*x)->pulled_ns < (*y)->pulled_ns ? -1 : 1;
    return (*x)->op < (*y)->op ? -1 : (*x)->op > (*y)->op;
}

/* Variables that every rank pulls and pushes. */
static uint32_t list_variables(const struct rehearsal *r, const struct lists *l,
                               struct variable *variables)
{
    const struct dpro_graph *g = r->graph;
    uint32_t n = 0;
    for (size_t p = 0; p < l->pulls.n; p++) {
        struct variable v = {l->pulls.at[p].variable, INT64_MIN, INT64_MAX, 0};
        bool known = false, everywhere = true;
        for (uint32_t k = 0; k < n; k++)
            known |= variables[k].op == v.op;
        for (uint32_t rank = 0; rank < g->n_ranks && !known; rank++) {
            bool pulled = false, pushed = false;
            uint64_t bytes = 0;
            for (size_t i = 0; i < l->pulls.n; i++)
                if (l->pulls.at[i].variable == v.op && l->pulls.at[i].rank == rank) {
                    pulled = true;
                    bytes += g->size_bytes[l->pulls.at[i].op];
                    v.pulled_ns =
                        l->pulls.at[i].when_ns < v.pulled_ns ? l->pulls.at[i].when_ns : v.pulled_ns;
                }
            for (size_t i = 0; i < l->pushes.n; i++)
                if (l->pushes.at[i].variable == v.op && l->pushes.at[i].rank == rank) {
                    int64_t end = r->end_ns[r->first][l->pushes.at[i].maker];
                    pushed = true;
                    v.ready_ns = rank == 0 && end > v.ready_ns ? end : v.ready_ns;
                }
            everywhere &= pulled && pushed;
            v.size_bytes = bytes > v.size_bytes ? bytes : v.size_bytes;
        }
        if (!known && everywhere)
            variables[n++] = v;
    }
    return n;
}

static int tell_tensors(const struct rehearsal *r, const struct lists *l,
                        const struct variable *variables, uint32_t n, struct dpro_model *model,
                        struct coarse *coarse, uint32_t *is_transfer)
{
    const struct dpro_graph *g = r->graph;
    for (uint32_t t = 0; t < n; t++) {
        const char *name = strtab_get(&g->names, g->name[variables[t].op]);
        model->tensors[t] = (struct model_tensor){
            arena_copy_string(&model->arena, name, strlen(name)), variables[t].size_bytes, t};
        coarse->bucket_of[t] = t;
        if (!model->tensors[t].name)
            return -1;
        for (size_t i = 0; i < l->pulls.n; i++)
            if (l->pulls.at[i].variable == variables[t].op)
                is_transfer[l->pulls.at[i].op] = 1 + t;
        for (size_t i = 0; i < l->pushes.n; i++) {
            const struct push *push = &l->pushes.at[i];
            uint32_t *ready = &coarse->ready[(size_t)push->rank * n + t];
            if (push->variable == variables[t].op &&
                (*ready == DPRO_NO_OP ||
                 r->end_ns[r->first][push->maker] > r->end_ns[r->first][*ready]))
                *ready = push->maker;
        }
    }
    return 0;
}

int session_tensors(const struct rehearsal *r, struct dpro_model *model, struct coarse *coarse,
                    uint32_t *is_transfer)
{
    const struct dpro_graph *g = r->graph;
    struct lists l = {0};
    struct variable *variables = NULL, **turns = NULL;
    uint32_t n = 0;
    int status = list_preds(g, &l);
    if (status == 0)
        status = list_moves(r, &l);
    if (status == 0) {
        variables = malloc((l.pulls.n + 1) * sizeof *variables);
        turns = malloc((l.pulls.n + 1) * sizeof *turns);
        status = variables && turns ? 0 : -1;
    }
    if (status == 0) {
        n = list_variables(r, &l, variables);
        qsort(variables, n, sizeof *variables, by_ready);
        for (uint32_t t = 0; t < n; t++)
            turns[t] = &variables[t];
        qsort(turns, n, sizeof *turns, by_pulled);
        model->tensors = arena_array(&model->arena, n, sizeof *model->tensors);
        model->pulled = arena_array(&model->arena, n, sizeof *model->pulled);
        coarse->bucket_of = malloc((n + (size_t)1) * sizeof *coarse->bucket_of);
        coarse->server_of = malloc((n + (size_t)1) * sizeof *coarse->server_of);
        coarse->ready = malloc(((size_t)n * g->n_ranks + 1) * sizeof *coarse->ready);
        status = model->tensors && model->pulled && coarse->bucket_of && coarse->server_of &&
                         coarse->ready
                     ? 0
                     : -1;
    }
    for (size_t i = 0; i < (size_t)n * g->n_ranks && status == 0; i++)
        coarse->ready[i] = DPRO_NO_OP;
    for (uint32_t t = 0; t < n && status == 0; t++) {
        model->pulled[t] = (uint32_t)(turns[t] - variables);
        coarse->server_of[t] = g->rank[variables[t].op] - g->n_ranks;
    }
    if (status == 0)
        status = tell_tensors(r, &l, variables, n, model, coarse, is_transfer);
    model->n_tensors = status == 0 ? n : 0;
    free(l.first_pred);
    free(l.preds);
    free(variables);
    free(turns);
    array_fini(&l.pulls);
    array_fini(&l.pushes);
    return status;
}
