/* Whether a model can be learnt from a graph, and if not, why. */

#include "cost/program/cost.h"

static bool is_of_xla(const struct dpro_graph *g)
{
    return g->framework && (strcmp(g->framework, "jax") == 0 || strcmp(g->framework, "xla") == 0);
}

uint32_t job_size(const struct dpro_graph *g)
{
    uint32_t size = g->world_size > g->n_ranks ? g->world_size : g->n_ranks;
    for (uint32_t j = 0; j < g->n_collectives; j++)
        if (g->collectives[j].n_expected > size)
            size = g->collectives[j].n_expected;
    return size;
}

const struct graph_dimension *job_dimension(const struct dpro_graph *g,
                                            enum dpro_parallelism parallelism)
{
    for (uint32_t d = 0; d < g->n_dimensions; d++)
        if (g->dimensions[d].parallelism == parallelism)
            return &g->dimensions[d];
    return NULL;
}

/* Of FSDP and ZeRO. gloo reduces and scatters by an all-reduce, so that a unit's gathering is what
 * tells, or what the job's dimensions are. */
static bool is_sharded(const struct dpro_graph *g)
{
    bool scatters = false, of_units = false;
    EACH_OF (const struct graph_collective, c, g->collectives, g->n_collectives) {
        uint32_t transfer = g->members[c->first_member].transfer;
        scatters |= c->kind == DPRO_REDUCE_SCATTER;
        of_units |=
            g->tensor && strncmp(strtab_get(&g->names, g->tensor[transfer]), "unit ", 5) == 0;
    }
    return scatters || of_units || job_dimension(g, DPRO_SHARDS);
}

bool is_single(const struct dpro_graph *g)
{
    bool alone = g->n_collectives == 0 || g->world_size == 1;
    return g->n_ranks == 1 && alone && job_size(g) < 2 && g->n_servers == 0 && !is_of_xla(g);
}

bool rank_has_gpu(const struct dpro_graph *g, const struct graph_rank *rank)
{
    for (uint32_t op = rank->first_op; op < rank->first_op + rank->n_ops; op++)
        if (g->flags[op] & GRAPH_OP_GPU)
            return true;
    return false;
}

uint32_t rank_main_stream(const struct dpro_graph *g, const struct graph_rank *rank)
{
    SCRATCH int64_t *work = mem_array(g->n_devices + (size_t)1, sizeof *work);
    uint32_t most = DPRO_NO_DEVICE;
    for (uint32_t op = rank->first_op; op < rank->first_op + rank->n_ops; op++) {
        uint32_t device = g->device[op];
        if (!(g->flags[op] & GRAPH_OP_GPU) || !graph_is_on(g, op, DPRO_DEVICE_GPU_STREAM) ||
            g->kind[op] == DPRO_OP_COLLECTIVE)
            continue;
        work[device] += g->dur_ns[op];
        if (most == DPRO_NO_DEVICE || work[device] > work[most])
            most = device;
    }
    return most;
}

bool job_has_gpu(const struct dpro_graph *g)
{
    return g && g->n_ranks > 0 && rank_has_gpu(g, &g->ranks[0]);
}

static void check_tensors(const struct dpro_graph *g)
{
    bool any = g->n_exchanges > 0, sized = false, unnamed = unnamed_are_gradients(g);
    for (uint32_t e = 0; e < g->n_exchanges; e++)
        sized |= g->exchanges[e].size_bytes > 0;
    for (uint32_t t = 0; t < g->n_tensors; t++)
        if (is_gradient(g, &g->tensors[t], unnamed)) {
            any = true;
            sized |= g->tensors[t].size_bytes > 0;
        }
    if (any && sized)
        return;
    if (any)
        fail_with(DPRO_EEMPTY, "the trace does not say how large the gradients are; record it with "
                               "dpro profile, or add the graph with its shapes");
    if (g->n_collectives == 0)
        fail_with(DPRO_EEMPTY, "most iterations show no communication%s",
                  g->seldom ?: "; was the job run with more than one rank?");
    const struct graph_dimension *dp = job_dimension(g, DPRO_REPLICATES);
    if (dp && dp->n_groups > 1)
        fail_with(DPRO_EEMPTY,
                  "gradients are reduced within each of %u groups of %u ranks: buckets are chosen "
                  "where all ranks reduce together; 'dpro whatif' answers other questions",
                  dp->n_groups, dp->size);
    uint32_t n = 0;
    for (uint32_t c = 0; c < g->n_collectives; c++)
        n += g->collectives[c].kind == DPRO_ALL_REDUCE;
    fail_with(DPRO_EEMPTY,
              "no gradients were found in what the ranks communicate, so that there are no "
              "buckets to choose%s; 'dpro whatif' answers for other links and hosts%s",
              n == 0            ? ""
              : g->hides_phases ? ": nothing recorded tells which all-reduces a backward pass asks "
                                  "for (record the CPU's ops, too, and without CUDA graphs)"
                                : ": no all-reduce is asked for in a backward pass, where DDP "
                                  "reduces its buckets",
              g->n_dimensions > 0 ? " ('dpro replay' shows in which dimensions they communicate)"
                                  : "; if there are gradients, record with 'dpro profile'");
}

static void check_job(const struct dpro_graph *g)
{
    uint32_t size = job_size(g);
    if (g->lacks_gpu)
        fail_with(DPRO_EEMPTY, "%s", g->lacks_gpu);
    if (g->of_stages)
        fail_with(DPRO_EEMPTY,
                  "a timeline of stages has no sizes of messages and no kernels, which "
                  "'dpro whatif' and 'dpro optimize' need; 'dpro diagnose' says what "
                  "slow workers and stages cost");
    if (is_of_xla(g))
        fail_with(DPRO_EEMPTY,
                  "XLA chooses what is reduced together, and no plan changes that; 'dpro "
                  "whatif' answers for other links and hosts");
    if (is_sharded(g))
        fail_with(DPRO_EEMPTY, "parameters are sharded (FSDP, ZeRO): what travels together are the "
                               "model's units, and no buckets that could be chosen; 'dpro "
                               "whatif' answers for other links, hosts and resharding");
    if (g->n_ranks < 2 && size < 2 && g->n_servers == 0 && g->n_collectives == 0)
        fail_with(DPRO_EEMPTY, "the trace has one rank, which sends its gradients to nobody; what "
                               "it holds and computes can be asked for ('dpro whatif --recompute', "
                               "'--accumulate', 'dpro optimize --memory', 'dpro replay --delay')");
    if (g->n_ranks < 2 && size < 2)
        fail_with(DPRO_EEMPTY, "the trace has one rank and names no other; if the job has more, "
                               "give the traces of all of them ('dpro replay' works with one)");
    if (g->n_ranks < 2)
        fail_with(DPRO_EEMPTY,
                  "the trace has 1 of %u %s: it does not tell when the others reach a bucket; give "
                  "the traces of all ranks ('dpro replay' works with one)",
                  size, g->n_blind ? "GPUs" : "ranks");
    if (g->pulls_with_step && g->n_exchanges == 0)
        fail_with(DPRO_EEMPTY, "no variable goes from a server to every worker and back as a "
                               "gradient; for other questions there is 'dpro replay --delay'");
    if (!g->pulls_with_step)
        check_tensors(g);
}

int dpro_model_check(const struct dpro_graph *graph, struct dpro_error *err)
{
    return OUTCOME(err, check_job(graph));
}
