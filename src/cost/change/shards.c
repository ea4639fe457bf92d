/* What-ifs of FSDP's shards (--shard).
 *
 * PyTorch reduces and scatters a unit's gradients within a group of shards, then all-reduces a
 * rank's part between groups. On a CPU its thread waits for both; on a GPU the second has a stream
 * of its own, and is waited for at the end of the backward pass. */
#include "cost/change/replicas.h"
#include "cost/program/program_writer.h"

static bool is_of(const struct dpro_model *m, const struct replicas *r,
                  const struct model_communication *c, enum dpro_collective_kind kind)
{
    return r->group > 0 && m->groups[c->group].dimension == r->dimension && c->kind == kind;
}

/* gloo scatters by an all-reduce, of as many bytes as the unit's all-gather brings. */
bool shards_reduce(const struct dpro_model *m, const struct replicas *r,
                   const struct model_communication *c)
{
    bool scatters = is_of(m, r, c, DPRO_REDUCE_SCATTER);
    for (uint32_t k = 0; k < m->n_communications && !scatters && is_of(m, r, c, DPRO_ALL_REDUCE);
         k++)
        scatters = is_of(m, r, &m->communications[k], DPRO_ALL_GATHER) && c->size_bytes > 0 &&
                   m->communications[k].size_bytes * r->before == c->size_bytes;
    return scatters;
}

bool shards_move(const struct dpro_model *m, const struct replicas *r,
                 const struct model_communication *c)
{
    return is_of(m, r, c, DPRO_ALL_GATHER) || shards_reduce(m, r, c);
}

/* The all-reduce that an op is to wait for in place of what it needs; MODEL_NONE: it stays. */
static uint32_t shards_following(const struct dpro_model *m, const uint32_t *all_reduce,
                                 const struct model_op *op)
{
    uint32_t k = communication_of(m, op->needs);
    uint32_t number = k != MODEL_NONE ? all_reduce[k] : MODEL_NONE;
    return number != MODEL_NONE ? m->n_tensors + number : MODEL_NONE;
}

static void wait_otherwise(const struct dpro_model *m, const uint32_t *all_reduce,
                           struct model_program *p, struct arena *arena)
{
    struct program_writer w = {.work_ns = 0};
    bool at_once = !m->net.link.own_links;
    uint32_t last = 0;
    for (uint32_t i = 0; i < p->n_ops; i++)
        if (shards_following(m, all_reduce, &p->ops[i]) != MODEL_NONE)
            last = i;
    for (uint32_t i = 0; i < p->n_ops; i++) {
        struct model_op op = p->ops[i];
        uint32_t needs = shards_following(m, all_reduce, &op);
        op.needs = at_once && needs != MODEL_NONE ? needs : op.needs;
        program_append(&w, &op, 1);
        for (uint32_t k = 0; i == last && k <= last && !at_once; k++) {
            needs = shards_following(m, all_reduce, &p->ops[k]);
            if (needs != MODEL_NONE)
                program_wait(&w, (struct model_op){.name = "up to a wait",
                                                   .phase = DPRO_OP_BW,
                                                   .needs = needs,
                                                   .needs_before = p->ops[k].needs_before});
        }
    }
    program_end(&w, arena, p);
}

void shards_wait(struct dpro_model *m, const uint32_t *all_reduce, struct arena *arena)
{
    m->programs = arena_copy(arena, m->programs, m->n_programs, sizeof *m->programs);
    for (uint32_t i = 0; i < m->n_programs; i++)
        wait_otherwise(m, all_reduce, &m->programs[i], arena);
}
