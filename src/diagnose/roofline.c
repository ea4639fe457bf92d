/* Achieved against possible: model FLOPs utilization and the roofline model (Williams et al.,
 * CACM 2009). */
#include "diagnose/measures.h"

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
