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

/* A value, or that it has been read, which comes with values and after them. */
static int list_pull(const struct dpro_graph *g, struct lists *l, uint32_t op, bool of_value,
                     uint8_t *variables)
{
    uint32_t reader = sender_of(g, l, op);
    if (reader == DPRO_NO_OP)
        return 0;
    struct pull pull = {op, g->rank[op], root_of(g, l, reader), reader};
    if (of_value)
        variables[pull.variable] = 1;
    return variables[pull.variable] ? array_push(&l->pulls, pull) : 0;
}

static int list_moves(const struct dpro_graph *g, struct lists *l)
{
    uint8_t *variables = calloc((size_t)g->n_ops + 1, 1);
    int status = variables ? 0 : -1;
    for (int of_values = 1; of_values >= 0; of_values--)
        for (uint32_t op = 0; op < g->n_ops && status == 0; op++)
            if (g->kind[op] == DPRO_OP_PULL && !is_servers(g, op) &&
                moves(g, op, DPRO_OP_PULL) == of_values)
                status = list_pull(g, l, op, of_values, variables);
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
    int64_t ready_ns;
    uint64_t size_bytes;
};

static int by_ready(const void *a, const void *b)
{
    const struct variable *x = a, *y = b;
    if (x->ready_ns != y->ready_ns)
        return x->ready_ns < y->ready_ns ? -1 : 1;
    return x->op < y->op ? -1 : x->op > y->op;
}

static int by_time(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* Variables that every rank pulls and pushes; when they are ready, where `r` is given. */
static uint32_t list_variables(const struct dpro_graph *g, const struct measured_replay *r,
                               const struct lists *l, struct variable *variables)
{
    uint32_t n = 0;
    for (size_t p = 0; p < l->pulls.n; p++) {
        struct variable v = {l->pulls.at[p].variable, INT64_MIN, 0};
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
                }
            for (size_t i = 0; i < l->pushes.n; i++)
                if (l->pushes.at[i].variable == v.op && l->pushes.at[i].rank == rank) {
                    int64_t end = r ? r->end_ns[r->first][l->pushes.at[i].maker] : 0;
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

static int tell_tensors(const struct measured_replay *r, const struct lists *l,
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

/* When a rank pulls a variable, from the first that is sent in an iteration: the middle one of
 * iterations. */
struct pulled {
    int64_t sent_ns, came_ns;
    uint32_t rank, tensor, server;
};

static int in_turn(const void *a, const void *b)
{
    const struct pulled *x = a, *y = b;
    if (x->rank != y->rank)
        return x->rank < y->rank ? -1 : 1;
    if (x->server != y->server)
        return x->server < y->server ? -1 : 1;
    if (x->came_ns != y->came_ns)
        return x->came_ns < y->came_ns ? -1 : 1;
    return x->tensor < y->tensor ? -1 : x->tensor > y->tensor;
}

/* `room`: for two times of each iteration. */
static struct pulled look_at_pull(const struct measured_replay *r, const struct lists *l,
                                  const int64_t *first, uint32_t variable, uint32_t rank,
                                  int64_t *room)
{
    int64_t *sent = room, *came = room + r->n;
    for (uint32_t i = 0; i < r->n; i++) {
        const int64_t *end_ns = r->end_ns[r->first + i];
        sent[i] = came[i] = 0;
        for (size_t p = 0; p < l->pulls.n; p++) {
            const struct pull *pull = &l->pulls.at[p];
            if (pull->variable != variable || pull->rank != rank)
                continue;
            int64_t read = end_ns[pull->reader] - first[i], there = end_ns[pull->op] - first[i];
            sent[i] = read > sent[i] ? read : sent[i];
            came[i] = there > came[i] ? there : came[i];
        }
    }
    qsort(sent, r->n, sizeof *sent, by_time);
    qsort(came, r->n, sizeof *came, by_time);
    return (struct pulled){sent[r->n / 2], came[r->n / 2], rank, 0, 0};
}

/* When the values that ranks pull are sent. What goes from one server to one rank comes in the
 * order in which it is sent; reading it ends now in this order and now in that. */
static int tell_sent(const struct measured_replay *r, const struct lists *l,
                     const struct variable *variables, uint32_t n, struct coarse *coarse)
{
    size_t n_pulled = (size_t)n * r->graph->n_ranks;
    int64_t *first = malloc((r->n + (size_t)1) * sizeof *first);
    int64_t *room = malloc((2 * (size_t)r->n + 1) * sizeof *room);
    struct pulled *pulled = malloc((n_pulled + 1) * sizeof *pulled);
    int status = first && room && pulled ? 0 : -1;
    for (uint32_t i = 0; i < r->n && status == 0; i++) {
        first[i] = INT64_MAX;
        for (size_t p = 0; p < l->pulls.n; p++) {
            int64_t read = r->end_ns[r->first + i][l->pulls.at[p].reader];
            first[i] = read < first[i] ? read : first[i];
        }
    }
    for (size_t at = 0; at < n_pulled && status == 0; at++) {
        pulled[at] = look_at_pull(r, l, first, variables[at % n].op, (uint32_t)(at / n), room);
        pulled[at].tensor = (uint32_t)(at % n);
        pulled[at].server = coarse->server_of[at % n];
    }
    if (status == 0)
        qsort(pulled, n_pulled, sizeof *pulled, in_turn);
    for (size_t i = 0; i < n_pulled && status == 0; i++) {
        struct pulled *this = &pulled[i];
        if (i > 0 && this[-1].rank == this->rank && this[-1].server == this->server &&
            this->sent_ns <= this[-1].sent_ns)
            this->sent_ns = this[-1].sent_ns + 1;
        coarse->sent_ns[(size_t)this->rank * n + this->tensor] = this->sent_ns;
    }
    free(first);
    free(room);
    free(pulled);
    return status;
}

static void lists_fini(struct lists *l)
{
    free(l->first_pred);
    free(l->preds);
    array_fini(&l->pulls);
    array_fini(&l->pushes);
}

int session_has_variables(const struct dpro_graph *g)
{
    struct lists l = {0};
    struct variable *variables = NULL;
    int found = -1;
    if (list_preds(g, &l) == 0 && list_moves(g, &l) == 0) {
        variables = malloc((l.pulls.n + 1) * sizeof *variables);
        if (variables)
            found = list_variables(g, NULL, &l, variables) > 0;
    }
    free(variables);
    lists_fini(&l);
    return found;
}

int session_tensors(const struct measured_replay *r, struct dpro_model *model,
                    struct coarse *coarse, uint32_t *is_transfer)
{
    const struct dpro_graph *g = r->graph;
    struct lists l = {0};
    struct variable *variables = NULL;
    uint32_t n = 0;
    int status = list_preds(g, &l);
    if (status == 0)
        status = list_moves(g, &l);
    if (status == 0) {
        variables = malloc((l.pulls.n + 1) * sizeof *variables);
        status = variables ? 0 : -1;
    }
    if (status == 0) {
        n = list_variables(g, r, &l, variables);
        qsort(variables, n, sizeof *variables, by_ready);
        model->tensors = arena_array(&model->arena, n, sizeof *model->tensors);
        coarse->bucket_of = malloc((n + (size_t)1) * sizeof *coarse->bucket_of);
        coarse->server_of = malloc((n + (size_t)1) * sizeof *coarse->server_of);
        coarse->ready = malloc(((size_t)n * g->n_ranks + 1) * sizeof *coarse->ready);
        coarse->sent_ns = malloc(((size_t)n * g->n_ranks + 1) * sizeof *coarse->sent_ns);
        status = model->tensors && coarse->bucket_of && coarse->server_of && coarse->ready &&
                         coarse->sent_ns
                     ? 0
                     : -1;
    }
    for (size_t i = 0; i < (size_t)n * g->n_ranks && status == 0; i++)
        coarse->ready[i] = DPRO_NO_OP;
    for (uint32_t t = 0; t < n && status == 0; t++)
        coarse->server_of[t] = g->rank[variables[t].op] - g->n_ranks;
    if (status == 0)
        status = tell_tensors(r, &l, variables, n, model, coarse, is_transfer);
    if (status == 0)
        status = tell_sent(r, &l, variables, n, coarse);
    model->n_tensors = status == 0 ? n : 0;
    free(variables);
    lists_fini(&l);
    return status;
}
