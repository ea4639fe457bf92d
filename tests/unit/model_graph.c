/* Makes the global DFG of a model under a strategy. */
#include "model_graph.h"
#include "base/base.h"

#include "cost/program/strategy_work.h"
#include "graph_maker.h"

/* The rank's next op; *last is the one before. */
static uint32_t go_on(struct job *j, uint32_t rank, enum dpro_op_kind kind, const char *name,
                      double dur_ns, uint32_t *last)
{
    return *last = maker_op(&j->m, *last, kind, rank, COMPUTE, name, dur_ns);
}

static void add_launch(struct job *j, uint32_t rank, uint32_t b, double scale, uint32_t *last)
{
    struct bucket_cost *bucket = &j->buckets[b];
    if (bucket->launch_ns > 0)
        go_on(j, rank, DPRO_OP_LAUNCH, "launch", bucket->launch_ns * scale, last);
    uint32_t launched = go_on(j, rank, DPRO_OP_BARRIER, "launched", 0, last);
    maker_edge(&j->m, launched, at(j, b, rank)->barrier);
    maker_next(&j->m, at(j, b, rank)->end, launched); /* its memory is in use until then */
    if (bucket->handling_ns > 0)
        go_on(j, rank, DPRO_OP_LAUNCH, "threads of collectives", bucket->handling_ns * scale, last);
}

static void add_rank(struct job *j, uint32_t rank)
{
    const struct model_rank *r = &j->model->ranks[rank % j->model->n_ranks];
    const struct model_program *program = &j->model->programs[r->program];
    const struct dpro_strategy *s = j->strategy;
    struct maker *m = &j->m;
    uint32_t last = DPRO_NO_OP, first = (uint32_t)m->nodes.n, next = 0;
    int64_t *more_ns = mem_array(program->n_ops + (size_t)1, sizeof *more_ns);
    if (strategy_changes_work(j->model, s))
        strategy_more_work(j->model, s, r->program, more_ns);
    for (uint32_t b = 0; b < s->n_buckets; b++)
        j->buckets[b].n_missing = s->buckets[b].n;
    for (uint32_t i = 0; i < program->n_ops; i++) {
        const struct model_op *op = &program->ops[i];
        for (uint32_t b = 0; op->needs == MODEL_ALL && b < s->n_buckets; b++)
            maker_edge(m, at(j, b, rank)->end,
                       go_on(j, rank, DPRO_OP_COPY, "copy back",
                             j->buckets[b].copy_ns * r->work_scale, &last));
        double work_ns = (double)(op->work_ns + more_ns[i]) * r->work_scale;
        uint32_t node = go_on(j, rank, (enum dpro_op_kind)op->phase, op->name, work_ns, &last);
        if (op->needs < j->model->n_tensors)
            (op->needs_before ? maker_next
                              : maker_edge)(m, at(j, j->bucket_of[op->needs], rank)->end, node);
        if (op->tensor == MODEL_NONE)
            continue;
        uint32_t b = j->bucket_of[op->tensor];
        bool whole = --j->buckets[b].n_missing == 0;
        if (whole && !j->model->net.gate.in_order)
            add_launch(j, rank, b, r->work_scale, &last);
        while (j->model->net.gate.in_order && next < s->n_buckets &&
               j->buckets[next].n_missing == 0)
            add_launch(j, rank, next++, r->work_scale, &last);
    }
    mem_free(more_ns);
    uint32_t boundary = go_on(j, rank, DPRO_OP_BARRIER, "iteration", 0, &last);
    m->nodes.at[boundary].flags |= GRAPH_OP_BOUNDARY;
    maker_next(m, boundary, first);
    maker_edge(m, j->begins, first);
    maker_edge(m, boundary, j->ends_step);
}

/* A bucket's transfers, one after the other; each collective waits for a free stream. */
static void add_bucket(struct job *j, uint32_t b)
{
    struct bucket_cost *bucket = &j->buckets[b];
    struct maker *m = &j->m;
    uint32_t parts = j->strategy->buckets[b].partitions, n_streams = j->model->net.gate.n_streams;
    uint32_t bucket_end = maker_wait(m, DPRO_NO_OP, 0, "bucket ends", 0);
    uint32_t barrier = maker_wait(m, DPRO_NO_OP, 0, "all have launched", 0);
    for (uint32_t r = 0; r < j->model->net.collective.n_ranks; r++)
        *at(j, b, r) = (struct bucket_ends){barrier, bucket_end};
    for (uint32_t p = 0; p < parts; p++) {
        uint64_t size = bucket->size_bytes / parts;
        if (p + 1 == parts)
            size = bucket->size_bytes - (parts - 1) * size;
        uint32_t free = maker_wait(m, DPRO_NO_OP, 0, "a stream is free", 0);
        uint32_t cast = maker_wait(m, barrier, 0, "cast", bucket->cast_ns);
        for (uint32_t i = n_streams > 1 ? 0 : j->n_ends ? j->n_ends - 1 : 0; i < j->n_ends; i++)
            maker_edge(m, j->ends[i], free);
        if (n_streams > 1 && j->n_ends >= n_streams)
            m->nodes.at[free].spare = (uint8_t)(n_streams - 1);
        if (n_streams == 1 || j->n_ends >= n_streams)
            maker_edge(m, free, cast);
        uint32_t end = maker_collective(m, cast, size);
        maker_edge(m, end, bucket_end);
        j->ends[j->n_ends++] = end;
    }
}

static void job_init(struct job *j, const struct dpro_model *model,
                     const struct dpro_strategy *strategy)
{
    const struct model_net *net = &model->net;
    size_t n_collectives = 1, n = strategy->n_buckets + (size_t)1;
    struct arena *arena = &j->m.arena;
    *j = (struct job){.model = model,
                      .strategy = strategy,
                      .n_servers = sync_n_servers(net),
                      .begins = DPRO_NO_OP,
                      .ends_step = DPRO_NO_OP};
    maker_init(&j->m, net, j->n_servers ? j->n_servers + net->collective.n_ranks : 0);
    for (uint32_t b = 0; b < strategy->n_buckets; b++)
        n_collectives += strategy->buckets[b].partitions;
    j->buckets = arena_array(arena, n, sizeof *j->buckets);
    j->bucket_of = arena_array(arena, model->n_tensors, sizeof *j->bucket_of);
    j->ends = arena_array(arena, n_collectives, sizeof *j->ends);
    j->at = arena_array(arena, n * net->collective.n_ranks, sizeof *j->at);
    buckets_cost(model, strategy, j->buckets, j->bucket_of);
    if (j->n_servers)
        server_graph_init(j);
}

struct dpro_graph *cost_graph_job(const struct dpro_model *model,
                                  const struct dpro_strategy *strategy, const uint32_t *turns)
{
    struct job j;
    job_init(&j, model, strategy);
    for (uint32_t i = 0; i < strategy->n_buckets; i++)
        (j.n_servers ? server_graph_bucket : add_bucket)(&j, turns ? turns[i] : i);
    if (j.n_servers) {
        server_graph_finish(&j);
    } else if (model->net.gate.n_streams == 1 && j.n_ends) {
        uint32_t first = turns ? turns[0] : 0; /* and so on, iteration after iteration */
        maker_next(&j.m, j.ends[j.n_ends - 1], at(&j, first, 0)->barrier);
    }
    for (uint32_t r = 0; r < model->net.collective.n_ranks; r++)
        add_rank(&j, r);
    struct dpro_graph *graph = maker_finish(&j.m);
    maker_fini(&j.m);
    return graph;
}
