/* Achieved against possible: model FLOPs utilization and the roofline model (Williams et al., CACM
 * 2009). And efficiencies that multiply, by the definitions of the POP Centre of Excellence
 * (https://co-design.pop-coe.eu/metrics). Useful is the time in which a rank computes; on the ideal
 * network no transfer takes any time. */
#include "diagnose/measures.h"

#include "replay/chain.h"

static void drop_transfers(void *arg, bool gaps, int64_t *ns)
{
    const struct dpro_graph *graph = arg;
    (void)gaps; /* before a transfer is latency */
    for (uint32_t op = 0; op < graph->n_ops; op++)
        if (breakdown_is_transfer(graph->kind[op]))
            ns[op] = 0;
}

/* The sum and the most over the ranks; no rank computes longer than an iteration takes. */
static int64_t sum_useful(const struct dpro_graph *graph, const struct dpro_replay_view *replay,
                          int64_t *most_ns, double *launch)
{
    int64_t sum_ns = 0, on_gpu_ns = 0, idle_ns = 0;
    SCRATCH bool *has_gpu =
        mem_array((size_t)graph->n_ranks + graph->n_servers + 1, sizeof *has_gpu);
    for (uint32_t op = 0; op < graph->n_ops; op++)
        has_gpu[graph->rank[op]] |= (graph->flags[op] & GRAPH_OP_GPU) != 0;
    *most_ns = 0;
    for (uint32_t r = 0; r < graph->n_ranks; r++) {
        const struct dpro_rank_time *time = &replay->ranks[r];
        int64_t useful_ns =
            MIN(time->forward_ns + time->backward_ns + time->update_ns, replay->iteration_ns);
        sum_ns += useful_ns;
        *most_ns = MAX(*most_ns, useful_ns);
        on_gpu_ns += has_gpu[r] ? useful_ns : 0;
        idle_ns += has_gpu[r] ? time->idle_ns : 0;
    }
    *launch = on_gpu_ns > 0 ? (double)on_gpu_ns / (double)(on_gpu_ns + idle_ns) : -1;
    return sum_ns;
}

struct pop pop_of(const struct dpro_graph *graph, const struct dpro_replay_view *replay,
                  int threads)
{
    SCRATCH_ARENA struct arena arena = {0};
    struct dpro_graph ideal = *graph;
    struct dpro_replay_options options = {.threads = threads};
    struct pop pop = {.known = false};
    int64_t most_ns, sum_ns = sum_useful(graph, replay, &most_ns, &pop.launch);
    graph_change_times(&ideal, true, drop_transfers, &ideal, &arena);
    int64_t ideal_ns = replay_predict(&ideal, &options, NULL);
    if (most_ns == 0 || graph->lacks_gpu)
        return pop;
    /* Two threads that computed beside each other may do so less, or more, on the ideal network. */
    ideal_ns = MIN(MAX(ideal_ns, most_ns), replay->iteration_ns);
    pop.known = true;
    pop.load_balance = (double)sum_ns / graph->n_ranks / (double)most_ns;
    pop.serialisation = (double)most_ns / (double)ideal_ns;
    pop.transfer = (double)ideal_ns / (double)replay->iteration_ns;
    pop.parallel = pop.load_balance * pop.serialisation * pop.transfer;
    return pop;
}

/* ---- the roofline ---- */

void roofline_make(const struct dpro_graph *graph, const struct dpro_replay_view *replay,
                   struct roofline *roofline)
{
    double best[N_PRECISIONS] = {0}, at_peak_ns = 0, busy_ns = 0, computing_ns = 0;
    *roofline = (struct roofline){.device = "",
                                  .of_stages = graph->of_stages,
                                  .of_pytorch =
                                      graph->framework && strcmp(graph->framework, "pytorch") == 0};
    for (uint32_t r = 0; graph->work && r < graph->n_ranks; r++) {
        bool known = false;
        for (int f = 0; f < N_FAMILIES; f++)
            for (int p = 0; p < N_PRECISIONS; p++) {
                const struct family_work *work = &graph->work[r].of[f][p];
                struct family_work *sum = &roofline->of[f][p];
                known |= work->flops > 0;
                sum->flops += work->flops;
                sum->bytes += work->bytes;
                sum->ns += work->ns;
                busy_ns += work->ns;
                sum->best = MAX(sum->best, work->best);
                best[p] = MAX(best[p], work->best);
            }
        roofline->n_ranks += known;
        roofline->lacks_strides |= graph->work[r].lacks_strides;
        const struct dpro_rank_time *time = &replay->ranks[r];
        computing_ns +=
            known ? (double)(time->forward_ns + time->backward_ns + time->update_ns) : 0;
        if (!roofline->device[0] && graph->work[r].device)
            roofline->device = graph->work[r].device;
    }
    roofline->is = device_find(roofline->device);
    for (int p = 0; p < N_PRECISIONS; p++)
        if (best[p] > 0 && roofline->is && roofline->is->flops[p] > 0)
            roofline->peak[p] = p == PRECISION_32 && best[p] > roofline->is->flops[p]
                                    ? MAX(roofline->is->tf32, best[p])
                                    : roofline->is->flops[p];
        else
            roofline->peak[p] = best[p];
    for (int f = 0; f < N_FAMILIES; f++)
        for (int p = 0; p < N_PRECISIONS; p++) {
            struct family_work *of = &roofline->of[f][p];
            double n = MAX(roofline->n_ranks, 1);
            *of = (struct family_work){of->flops / n, of->bytes / n, of->ns / n, of->best};
            at_peak_ns +=
                of->flops > 0 && roofline->peak[p] > 0 ? of->flops / roofline->peak[p] * 1e9 : 0;
        }
    roofline->mfu = replay->iteration_ns > 0 ? at_peak_ns / (double)replay->iteration_ns : 0;
    roofline->busy = computing_ns > 0 ? MIN(busy_ns / computing_ns, 1) : 0;
}

double roofline_limit(const struct roofline *roofline, enum op_precision precision,
                      double flops_per_byte)
{
    double peak = roofline->peak[precision];
    return roofline->is ? MIN(peak, flops_per_byte * roofline->is->bytes_per_s) : peak;
}
