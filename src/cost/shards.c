/* PyTorch reduces and scatters a unit's gradients within a group of shards, then all-reduces a
 * rank's part between groups. On a CPU its thread waits for both; on a GPU the second has a stream
 * of its own, and is waited for at the end of the backward pass. */
#include "cost/shards.h"

static bool is_of(const struct dpro_model *m, const struct sharding *s,
                  const struct model_communication *c, enum dpro_collective_kind kind)
{
    return s->after > 0 && m->groups[c->group].dimension == s->dimension && c->kind == kind;
}

/* gloo scatters by an all-reduce, of as many bytes as the unit's all-gather brings. */
bool shards_reduce(const struct dpro_model *m, const struct sharding *s,
                   const struct model_communication *c)
{
    bool scatters = is_of(m, s, c, DPRO_REDUCE_SCATTER);
    for (uint32_t k = 0; k < m->n_communications && !scatters && is_of(m, s, c, DPRO_ALL_REDUCE);
         k++)
        scatters = is_of(m, s, &m->communications[k], DPRO_ALL_GATHER) && c->size_bytes > 0 &&
                   m->communications[k].size_bytes * s->before == c->size_bytes;
    return scatters;
}

bool shards_move(const struct dpro_model *m, const struct sharding *s,
                 const struct model_communication *c)
{
    return is_of(m, s, c, DPRO_ALL_GATHER) || shards_reduce(m, s, c);
}

static bool follows(const struct dpro_model *m, const uint32_t *all_reduce,
                    const struct model_op *op, uint32_t *number)
{
    if (op->needs >= MODEL_ALL || op->needs < m->n_tensors)
        return false;
    *number = all_reduce[op->needs - m->n_tensors];
    return *number != MODEL_NONE;
}

static void wait_behind(const struct dpro_model *m, const uint32_t *all_reduce,
                        struct model_program *p, struct arena *arena)
{
    uint32_t number, n = 0, n_waits = 0, last = 0;
    for (uint32_t i = 0; i < p->n_ops; i++)
        if (follows(m, all_reduce, &p->ops[i], &number)) {
            n_waits++;
            last = i;
        }
    struct model_op *ops = arena_array(arena, p->n_ops + (size_t)n_waits, sizeof *ops);
    for (uint32_t i = 0; i < p->n_ops; i++) {
        ops[n++] = p->ops[i];
        for (uint32_t k = 0; i == last && k <= last; k++)
            if (follows(m, all_reduce, &p->ops[k], &number))
                ops[n++] = (struct model_op){.name = "up to a wait",
                                             .phase = DPRO_OP_BW,
                                             .needs = m->n_tensors + number,
                                             .needs_before = p->ops[k].needs_before,
                                             .tensor = MODEL_NONE};
    }
    p->ops = ops;
    p->n_ops = n;
}

void shards_wait(struct dpro_model *m, const uint32_t *all_reduce, struct arena *arena)
{
    struct model_program *programs = arena_array(arena, m->n_programs, sizeof *programs);
    for (uint32_t i = 0; i < m->n_programs; i++) {
        struct model_program *p = &programs[i];
        uint32_t number;
        *p = m->programs[i];
        if (m->net.link.own_links) {
            wait_behind(m, all_reduce, p, arena);
            continue;
        }
        p->ops = arena_array(arena, p->n_ops + (size_t)1, sizeof *p->ops);
        memcpy(p->ops, m->programs[i].ops, p->n_ops * sizeof *p->ops);
        for (uint32_t k = 0; k < p->n_ops; k++)
            if (follows(m, all_reduce, &p->ops[k], &number))
                p->ops[k].needs = m->n_tensors + number;
    }
    m->programs = programs;
}
