/* ingest/transport/nccl.c: the logs of the NCCL profiler plugin in the trace, and which span of the
 * profile called each operation. */
#include "ingest/transport/nccl.h"

#include "base/memory.h"
#include "ingest/sources.h"
#include "ingest/transport/runs.h"

static void find_spans(const struct dpro_trace *trace, const struct trace_rank *rank,
                       struct nccl_log *log)
{
    run_array runs = {0};
    runs_list(trace, rank, "nccl:", &runs);
    for (size_t o = 0; o < log->operations.n; o++) {
        struct nccl_operation *operation = &log->operations.at[o];
        const struct run *run = runs_at(&runs, operation->thread, operation->start_ns);
        operation->span = run ? run->span : NO_ID;
    }
    array_fini(&runs);
}

void nccl_build(struct trace_build *build)
{
    struct dpro_trace *trace = build->trace;
    trace->nccl_logs = mem_array(build->list.n, sizeof *trace->nccl_logs);
    for (size_t i = 0; i < build->list.n; i++) {
        struct source *source = &build->list.at[i];
        struct nccl_log *log = source_payload(source, &nccl_payload);
        if (!log || source->rank < 0)
            continue;
        (void)part_take_payload(&source->part, &nccl_payload);
        log->rank = source->rank;
        trace->nccl_logs[trace->n_nccl_logs++] = log;
        const struct trace_rank *rank = trace_rank_of(trace, log->rank);
        if (rank)
            find_spans(trace, rank, log);
    }
}
