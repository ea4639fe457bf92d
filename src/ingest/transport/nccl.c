/* The logs of the NCCL profiler plugin in the trace, and which span of the profile called each
 * operation. */
#include "ingest/transport/nccl.h"

#include <inttypes.h>

#include "base/memory.h"
#include "ingest/sources.h"

static void find_spans(const struct trace_rank *rank, struct nccl_log *log)
{
    EACH (struct nccl_operation, operation, log->operations) {
        const struct comm_run *run =
            runs_at(&rank->runs.nccl, operation->thread, operation->start_ns);
        operation->span = run ? run->span : NO_ID;
    }
}

void nccl_build(struct trace_build *build)
{
    struct dpro_trace *trace = build->trace;
    const struct nccl_log *worst = NULL;
    trace->nccl_logs = mem_array(build->list.n, sizeof *trace->nccl_logs);
    EACH (struct source, source, build->list) {
        struct nccl_log *log = source_payload(source, &nccl_payload);
        if (!log || source->rank < 0)
            continue;
        (void)part_take_payload(&source->part, &nccl_payload);
        log->rank = source->rank;
        trace->nccl_logs[trace->n_nccl_logs++] = log;
        if (!worst || log->n_lost > worst->n_lost)
            worst = log;
        const struct trace_rank *rank = trace_rank_of(trace, log->rank);
        if (rank)
            find_spans(rank, log);
    }
    if (worst && worst->n_lost > 0)
        build_warn(build,
                   "the NCCL log of rank %d lost %" PRIu64 " records, no other one more: raise "
                   "DPRO_NET_MAX_MB, or record fewer iterations",
                   worst->rank, worst->n_lost);
}
