/* ingest/transport/nccl.c: NCCL's events together: what each is a part of, and which span called
 * it. */
#include "ingest/transport/nccl.h"

#include <stdlib.h>

#include "base/error.h"
#include "base/map.h"
#include "ingest/load.h"
#include "ingest/transport/runs.h"

void nccl_log_destroy(struct nccl_log *log)
{
    if (!log)
        return;
    strtab_fini(&log->names);
    array_fini(&log->strings);
    array_fini(&log->comms);
    array_fini(&log->operations);
    array_fini(&log->proxy_ops);
    array_fini(&log->steps);
    array_fini(&log->kernels);
    free(log);
}

static uint32_t look_up(const struct map *map, uint64_t event)
{
    uint64_t index;
    return event && map_get(map, event, &index) ? (uint32_t)index : NO_ID;
}

int nccl_log_join(struct nccl_log *log)
{
    struct map operations = {0}, proxy_ops = {0}, comms = {0};
    int status = 0;
    for (size_t i = 0; i < log->comms.n && status == 0; i++)
        status = map_set(&comms, (uint64_t)log->comms.at[i].number + 1, i);
    for (size_t i = 0; i < log->operations.n && status == 0; i++) {
        struct nccl_operation *operation = &log->operations.at[i];
        operation->comm = look_up(&comms, (uint64_t)operation->comm + 1);
        if (operation->event)
            status = map_set(&operations, operation->event, i);
    }
    for (size_t i = 0; i < log->proxy_ops.n && status == 0; i++) {
        struct nccl_proxy_op *op = &log->proxy_ops.at[i];
        op->operation = op->flags & NCCL_OP_FOREIGN ? NO_ID : look_up(&operations, op->parent);
        if (op->event)
            status = map_set(&proxy_ops, op->event, i);
    }
    for (size_t i = 0; i < log->steps.n && status == 0; i++)
        log->steps.at[i].proxy_op = look_up(&proxy_ops, log->steps.at[i].parent);
    for (size_t i = 0; i < log->kernels.n && status == 0; i++)
        log->kernels.at[i].operation = look_up(&operations, log->kernels.at[i].parent);
    map_fini(&operations);
    map_fini(&proxy_ops);
    map_fini(&comms);
    return status;
}

int nccl_build(struct loader *loader, struct dpro_error *err)
{
    struct dpro_trace *trace = loader->trace;
    trace->nccl_logs = calloc(loader->list.n + 1, sizeof *trace->nccl_logs);
    if (!trace->nccl_logs)
        return dpro_error_nomem(err);
    for (size_t i = 0; i < loader->list.n; i++) {
        struct source *source = &loader->list.at[i];
        struct nccl_log *log = source->part.nccl;
        run_array runs = {0};
        if (!log || !source_usable(source) || source->rank < 0)
            continue;
        source->part.nccl = NULL;
        log->rank = source->rank;
        trace->nccl_logs[trace->n_nccl_logs++] = log;
        for (uint32_t r = 0; r < trace->n_ranks; r++) {
            if (trace->ranks[r].rank != log->rank)
                continue;
            if (runs_list(trace, &trace->ranks[r], "nccl:", &runs) < 0) {
                array_fini(&runs);
                return dpro_error_nomem(err);
            }
            for (size_t o = 0; o < log->operations.n; o++) {
                struct nccl_operation *operation = &log->operations.at[o];
                const struct run *run = runs_at(&runs, operation->thread, operation->start_ns);
                operation->span = run ? run->span : NO_ID;
            }
        }
        array_fini(&runs);
    }
    return 0;
}
