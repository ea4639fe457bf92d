/* What ranks exchange in the forward passes of modules with split tensors, sequences or experts,
 * they exchange once more when these are recomputed: where the module's backward pass begins, one
 * after the other, as each is waited for. */
#include "cost/change/op_work.h"

#include "cost/memory/lifetimes.h"
#include "cost/program/cost.h"
#include "cost/program/model_memory.h"
#include "cost/program/program_writer.h"

struct repeater {
    const struct dpro_graph *g;
    const struct dpro_model *modules;
    struct dpro_model *m;
    struct arena *arena;
    uint32_t n;         /* communications that were recorded */
    uint32_t **call_of; /* by rank and communication: the outermost recomputed call in whose forward
                           pass it is; MODEL_NONE */
    uint32_t *number;   /* by communication: that of its repetition; MODEL_NONE */
};

/* By the op that hands the rank's part over. */
static uint32_t *find_calls(const struct repeater *x, uint32_t rank)
{
    const struct dpro_graph *g = x->g;
    const struct graph_memory *recorded = &g->memory[rank];
    const struct model_memory *memory = &x->modules->memories[x->modules->ranks[rank].memory];
    const uint32_t *root =
        recomputed_calls_of(memory, x->modules->baseline.recomputed, x->arena).root;
    uint32_t *call_of = arena_array(x->arena, x->n + (size_t)1, sizeof *call_of);
    SCRATCH struct map arrivals = {0};
    for (uint32_t k = 0; k < x->n; k++) {
        const struct model_communication *c = &x->m->communications[k];
        const struct graph_collective *is = &g->collectives[c->collective];
        call_of[k] = MODEL_NONE;
        for (uint32_t i = 0; i < is->n_members && carries_activations(g, c); i++)
            map_set(&arrivals, map_key(g->members[is->first_member + i].arrival), k);
    }
    for (uint32_t o = 0; o < recorded->n_op_calls; o++) {
        uint32_t op = g->ranks[rank].first_op + o, call = recorded->op_calls[o];
        bool forward = call != MEMORY_NONE && call % 2 == 0 && call / 2 < memory->n_calls;
        for (uint32_t e = g->row[op]; forward && e < g->row[op + 1]; e++) {
            uint64_t k;
            if (map_get(&arrivals, map_key(g->succ[e]), &k))
                call_of[k] = root[call / 2];
        }
    }
    return call_of;
}

/* Those that are in a recomputed call on all of their group's ranks. */
static void calls_number(struct repeater *x)
{
    struct dpro_model *m = x->m;
    struct model_communication *all = arena_array(x->arena, 2 * (size_t)x->n + 1, sizeof *all);
    memcpy(all, m->communications, x->n * sizeof *all);
    for (uint32_t k = 0; k < x->n; k++) {
        const struct model_group *group = &m->groups[all[k].group];
        bool repeats = true;
        for (uint32_t i = 0; i < group->n_ranks; i++)
            repeats &= x->call_of[group->ranks[i]][k] != MODEL_NONE;
        x->number[k] = repeats ? m->n_communications : MODEL_NONE;
        if (repeats)
            all[m->n_communications++] = all[k];
    }
    m->communications = all;
}

/* Recomputing ends where all that the backward pass needs is there, so that a call's last exchange
 * may not be repeated: it is as likely not at all as once, or in part. */
static double calls_rewrite(const struct repeater *x, uint32_t rank, struct model_program *p)
{
    struct program_writer w = {.work_ns = 0};
    double unsure_ns = 0;
    for (uint32_t i = 0; i < p->n_ops; i++) {
        for (uint32_t c = 0; c < p->n_calls; c++) {
            double last_ns = 0;
            for (uint32_t k = 0; k < x->n && p->calls[c].op == i; k++)
                if (x->number[k] != MODEL_NONE && x->call_of[rank][k] == c) {
                    program_communicate(&w, p->ops[i].name, x->m->n_tensors + x->number[k]);
                    last_ns = x->m->communications[k].took_ns;
                }
            unsure_ns += last_ns / sqrt(12);
        }
        program_append(&w, &p->ops[i], 1);
    }
    program_end(&w, x->arena, p);
    return unsure_ns;
}

double calls_communicate_again(const struct dpro_graph *graph, const struct dpro_model *modules,
                               struct arena *arena, struct dpro_model *model)
{
    double unsure_ns = 0;
    struct repeater x = {
        .g = graph, .modules = modules, .m = model, .arena = arena, .n = model->n_communications};
    if (!modules->baseline.recomputed || modules->n_memories == 0)
        return 0;
    x.call_of = arena_array(arena, model->n_ranks, sizeof *x.call_of);
    x.number = arena_array(arena, x.n + (size_t)1, sizeof *x.number);
    for (uint32_t r = 0; r < model->n_ranks; r++)
        x.call_of[r] = find_calls(&x, r);
    calls_number(&x);
    for (uint32_t r = 0; r < model->n_ranks && model->n_communications > x.n; r++)
        unsure_ns =
            fmax(unsure_ns, calls_rewrite(&x, r, &model->programs[model->ranks[r].program]));
    return unsure_ns;
}
