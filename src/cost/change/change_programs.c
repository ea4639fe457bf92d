/* Changes of a what-if that need to know which ops of the graph a program's work is of: delays, and
 * of jobs whose groups of ranks communicate also modules, batches, FSDP's units and what ranks
 * share out. */
#include "cost/change/change_programs.h"
#include "cost/program/model_memory.h"

#include "cost/change/op_work.h"
#include "cost/change/replicas.h"
#include "cost/memory/strategy_memory.h"
#include "cost/program/cost.h"
#include "cost/program/evaluate.h"
#include "cost/program/modules.h"
#include "cost/program/program_writer.h"
#include "cost/program/strategy_work.h"
#include "replay/replay.h"

/* Of a peak, of what is otherwise than recorded. */
#define MEMORY_ERROR 0.01

static bool programs_shares(struct rank_share share)
{
    return share.shards != 1 || share.tensors != 1;
}

static bool asks_for_modules(const struct dpro_changes *c)
{
    return c->recompute || c->micro_batches > 1 || c->batch_size || c->batch_ratio != 0 ||
           c->precision;
}

/* What else changes passes, whose times and memory a pipeline takes as they were recorded. */
static const char *beside_pipeline(const struct dpro_changes *c)
{
    return c->reshard                             ? "--reshard"
           : c->prefetch > 0                      ? "--prefetch"
           : c->precision                         ? "--precision"
           : c->micro_batches > 1                 ? "--accumulate"
           : c->batch_size || c->batch_ratio != 0 ? "--batch-size"
                                                  : NULL;
}

/* ---- modules and the batch ---- */

/* A unit in a recomputed module would be gathered once more, but where it keeps its parameters. */
static void check_units(const struct dpro_graph *graph, const struct unit_change *units,
                        const struct dpro_model *model)
{
    for (uint32_t m = 0; m < model->n_modules; m++)
        for (uint32_t u = 0; u < graph->n_units && model->baseline.recomputed[m]; u++) {
            const char *unit = graph_unit_name(graph, u);
            const char *name = model->modules[m].name;
            if (unit[0] && module_holds(name, unit) && units_free(units, graph, u))
                refuse(
                    "%.200s has FSDP's unit '%.200s' in it, which recomputing would gather once "
                    "more: name units, or modules in them, or keep its parameters (--reshard none)",
                    name[0] ? name : "the model", unit);
        }
}

/* In which dimension modules communicate in their passes; NULL: in none. */
static const struct graph_dimension *within_modules(const struct dpro_graph *graph)
{
    for (uint32_t d = 0; d < graph->n_dimensions; d++) {
        uint8_t parallelism = graph->dimensions[d].parallelism;
        if (parallelism == DPRO_TENSORS || parallelism == DPRO_CONTEXT ||
            parallelism == DPRO_EXPERTS)
            return &graph->dimensions[d];
    }
    return NULL;
}

static void check_sends(const struct dpro_graph *graph, const struct dpro_changes *c,
                        const struct dpro_model *model, struct notes *notes)
{
    const struct graph_dimension *within = within_modules(graph);
    if (within && asks_for_pipeline(c) && strategy_recomputes(model, &model->baseline))
        refuse("modules of a job with %s %u communicate in their passes, and once more when "
               "recomputed, which can't be predicted in a pipeline; leave out --recompute",
               dpro_parallelism_name((enum dpro_parallelism)within->parallelism), within->size);
    if (c->precision && within)
        note(notes, "activations that ranks send each other are assumed to keep their size; in 16 "
                    "bits they may be half as large");
}

/* Whether all that ranks exchange is of passes, as each micro-batch has them. */
static bool sends_in_passes(const struct dpro_graph *graph, const struct dpro_model *m)
{
    bool all = within_modules(graph) && !job_dimension(graph, DPRO_STAGES) && m->n_tensors == 0;
    EACH_OF (const struct model_program, p, m->programs, m->n_programs)
        EACH_OF (const struct model_op, op, p->ops, p->n_ops) {
            uint32_t k = communication_of(m, op->tensor);
            all &= k == MODEL_NONE || (carries_activations(graph, &m->communications[k]) &&
                                       op->phase != DPRO_OP_UPDATE);
        }
    return all;
}

/* `recorded`: with what ranks communicate, which `model` is without. */
static void change_modules(const struct dpro_graph *graph, const struct dpro_changes *c,
                           const struct unit_change *units, const struct dpro_model *recorded,
                           struct dpro_model *model, struct notes *notes)
{
    if (!asks_for_modules(c))
        return;
    if (!dpro_graph_is_sharded(graph) && job_dimension(graph, DPRO_SHARDS))
        refuse("this recording does not show when FSDP gathers parameters: --recompute, "
               "--accumulate, --batch-size and --precision need a job with fully_shard that 'dpro "
               "profile' recorded");
    bool splits = within_modules(graph) || job_dimension(graph, DPRO_STAGES);
    const char *what = c->precision           ? "--precision"
                       : c->micro_batches > 1 ? "--accumulate"
                       : c->recompute         ? "--recompute"
                                              : "--batch-size";
    bool sharded = dpro_graph_is_sharded(graph);
    if (!sharded && graph->n_dimensions == 0)
        refuse("%s needs to know how the job is parallel, which its communication does not tell: "
               "say it with --dims, such as --dims dp=%u",
               what, graph->n_ranks);
    if (!sharded && c->precision && splits)
        refuse("--precision can't be predicted of a job that splits its model (tp, cp, ep or pp), "
               "whose activations travel: ask for other links (--bandwidth, --latency), computing "
               "speed (--compute), numbers of ranks (--dp, --tp) or batches (--batch-size)");
    if (!sharded && c->micro_batches > 1 && !sends_in_passes(graph, recorded))
        refuse("--accumulate can be asked of jobs whose ranks exchange only gradients, or only in "
               "modules' passes (tp, cp, ep), or with FSDP (fully_shard): ask for another batch "
               "(--batch-size), or of a pipeline for other --microbatches");
    change_computing(c, model, notes);
    change_memory(c, model, notes);
    check_units(graph, units, model);
    check_sends(graph, c, model, notes);
    if (c->micro_batches > 1 && sharded)
        note(notes, "each micro-batch gathers parameters and reduces gradients, as FSDP does "
                    "unless the script calls set_requires_gradient_sync(False)");
}

/* Of what an op on a part of tensors takes more or less, as ops need not be as efficient with
 * other parts: by the runs of doc/accuracy.md. */
#define SPLIT_ERROR 0.1
/* Of a peak with other parts: what collectives hold then depends on how far they have got. */
#define SPLIT_MEMORY_ERROR 0.03

/* The most that any rank's ops on parts change. */
static double split_change_ns(const struct dpro_graph *g, struct rank_share share)
{
    double most = 0;
    for (uint32_t r = 0; share.tensors != 1 && r < g->n_ranks; r++) {
        const struct graph_memory *m = &g->memory[r];
        double ns = 0;
        for (uint32_t o = 0; o < m->n_op_splits; o++)
            if (op_computes(g, g->ranks[r].first_op + o))
                ns += fmax(0, m->op_splits[o]) * (double)g->dur_ns[g->ranks[r].first_op + o];
        most = fmax(most, ns);
    }
    return most * fabs(share.tensors - 1);
}

/* While a rank's ops take longer than its process has CPU time, they stand still: whether they also
 * do with fewer ranks, the recording doesn't tell. Returns a standard error. */
static double off_cpu_error_ns(const struct dpro_graph *g, const struct dpro_model *before,
                               const struct dpro_model *after, struct notes *notes)
{
    const double LEAST = 0.05; /* of the work */
    double work_ns = model_work_ns(before), cpu_ns = (double)before->cpu_ns;
    if (cpu_ns <= 0 || work_ns - cpu_ns < LEAST * work_ns || rank_has_gpu(g, &g->ranks[0]))
        return 0;
    double most_ns = (1 - cpu_ns / work_ns) * model_work_ns(after);
    note(notes,
         "a rank's ops take %.4g ms of an iteration but only %.4g ms of CPU time: with fewer "
         "ranks, an iteration may be up to %.4g ms shorter than predicted",
         work_ns / 1e6, cpu_ns / 1e6, most_ns / 1e6);
    return most_ns / sqrt(3); /* as likely all as nothing, or any part */
}

/* ---- shards, split tensors ---- */

static void programs_resize(struct graph_block *block, double ratio)
{
    block->size_bytes = (uint64_t)llround((double)block->size_bytes * ratio);
    block->asked_bytes = (uint64_t)llround((double)block->asked_bytes * ratio);
}

/* What a rank keeps of the model from one iteration to the next is a shard. */
static void share_memory(struct rank_share share, struct arena *arena, struct dpro_model *model)
{
    EACH_OF (struct model_memory, m, model->memories, model->n_memories) {
        double parameters = parameters_share(m->blocks, m->n_blocks, share);
        struct graph_block *blocks = arena_copy(arena, m->blocks, m->n_blocks, sizeof *blocks);
        EACH_OF (struct graph_block, block, blocks, m->n_blocks) {
            bool stays = block->taken == MEMORY_NONE || block->given == MEMORY_NONE;
            bool of_model = block->category == DPRO_MEMORY_PARAMETER ||
                            block->category == DPRO_MEMORY_GRADIENT ||
                            block->category == DPRO_MEMORY_STATE;
            if (block->split || (block->unsplits && share.whole))
                programs_resize(block, block->split ? share.tensors : 0);
            if (stays && of_model && block->gather == 0)
                programs_resize(block, share.shards);
            if (stays && block->category == DPRO_MEMORY_BUCKET)
                programs_resize(block, parameters);
        }
        m->blocks = blocks;
    }
}

/* To be changed, and so those of another job than was measured. */
static void own_memories(struct arena *arena, struct dpro_model *model)
{
    model->memories =
        arena_copy(arena, model->memories, model->n_memories, sizeof *model->memories);
    EACH_OF (struct model_memory, memory, model->memories, model->n_memories)
        memory->measured_peak_bytes = memory->measured_reserved_bytes = 0;
}

/* `bytes`: the peak with other shares alone. */
static void add_moved(const struct dpro_memory_peak *before, double bytes,
                      struct dpro_memory_peak *after)
{
    after->std_bytes = hypot(hypot(after->std_bytes, before->std_bytes),
                             MEMORY_ERROR * (bytes - (double)before->bytes));
}

/* Parameters gathered for a unit stay those of its passes, whatever else changes. */
static void find_peaks(const struct dpro_graph *graph, struct rank_share share, struct arena *arena,
                       struct program_change *change)
{
    static const struct dpro_strategy as_it_is;
    struct dpro_model *model = &change->modules, own = *model, other = *model;
    struct dpro_memory_peak *memory = change->memory;
    own.memory = other.memory = (struct memory_setting){0};
    if (!memory_is_known(model))
        return;
    memory[0] = memory_peak_told(&own, &as_it_is);
    if (!programs_shares(share) && change->units.n_edits == 0) {
        memory[1] = memory_peak_told(model, &model->baseline);
        return;
    }
    own_memories(arena, &other);
    units_change_memory(&change->units, graph, arena, &other);
    if (programs_shares(share))
        share_memory(share, arena, &other);
    double moved = (double)memory_peak_bytes(&other, &as_it_is) - (double)memory[0].bytes;
    other.memory = model->memory;
    memory[1] = memory_peak_told(&other, &model->baseline);
    double reserved = memory_reserved_factor(&own, &model->memories[0]);
    memory[1].reserved_bytes = (uint64_t)llround(reserved * (double)memory[1].reserved_bytes);
    add_moved(&memory[0], (double)memory[0].bytes + moved, &memory[1]);
}

static bool is_split(const struct dpro_graph *g, const char *parameter)
{
    uint32_t name = strtab_find(&g->names, parameter, strlen(parameter));
    for (uint32_t r = 0; r < g->n_ranks; r++)
        EACH_OF (const struct graph_block, block, g->memory[r].blocks, g->memory[r].n_blocks) {
            if (block->split && block->category == DPRO_MEMORY_PARAMETER && block->name == name)
                return true;
        }
    return false;
}

/* Gradients, and what is gathered, of split parameters. */
static void resize_traffic(const struct dpro_graph *g, struct rank_share share, struct arena *arena,
                           struct dpro_model *m)
{
    m->tensors = arena_copy(arena, m->tensors, m->n_tensors, sizeof *m->tensors);
    EACH_OF (struct model_communication, c, m->communications, m->n_communications) {
        const struct graph_memory *memory = &g->memory[m->groups[c->group].ranks[0]];
        if (!carries_activations(g, c) && m->groups[c->group].dimension != UINT32_MAX)
            model_resize(m, c, parameters_share(memory->blocks, memory->n_blocks, share));
    }
    for (uint32_t t = 0; t < m->n_tensors; t++)
        if (is_split(g, m->tensors[t].name))
            m->tensors[t].size_bytes =
                (uint64_t)llround((double)m->tensors[t].size_bytes * share.tensors);
}

/* ---- all of it ---- */

/* What ranks compute and hold; its strategy is to be the changed one. */
static void begin_modules(const struct dpro_model *model, struct arena *arena,
                          struct dpro_model *modules)
{
    change_copy(model, arena, modules);
    modules->n_tensors = 0; /* not what they communicate */
    modules->page_faults = -1;
    modules->baseline.recomputed = arena_array(arena, modules->n_modules + (size_t)1, sizeof(bool));
}

/* Of transfers, what they take with delays against what they take. */
struct carried {
    double before_ns, after_ns;
};

static void add_transfer(const struct dpro_graph *graph, const struct dpro_graph *delayed,
                         uint32_t op, struct carried *sum)
{
    sum->before_ns += (double)graph->dur_ns[op];
    sum->after_ns += (double)delayed->dur_ns[op];
}

static double times_of(struct carried sum)
{
    return sum.before_ns > 0 && sum.after_ns > 0 ? sum.after_ns / sum.before_ns : 1;
}

/* Links and all that communication takes on them go with its ops; of a group each communication by
 * itself. */
static void delay_net(const struct dpro_graph *g, const struct dpro_graph *delayed,
                      struct arena *arena, struct dpro_model *m)
{
    struct carried all = {0, 0};
    for (uint32_t op = 0; op < g->n_ops; op++)
        if (g->kind[op] >= DPRO_OP_SEND && g->kind[op] <= DPRO_OP_COLLECTIVE &&
            g->kind[op] != DPRO_OP_COPY)
            add_transfer(g, delayed, op, &all);
    m->communications =
        arena_copy(arena, m->communications, m->n_communications, sizeof *m->communications);
    EACH_OF (struct model_communication, it, m->communications, m->n_communications) {
        const struct graph_collective *c = &g->collectives[it->collective];
        struct carried own = {0, 0};
        EACH_OF (const struct graph_member, member, &g->members[c->first_member], c->n_members)
            add_transfer(g, delayed, member->transfer, &own);
        it->took_ns *= times_of(own) / times_of(all);
    }
    model_net_scale(&m->net, times_of(all));
}

static void take_delays(const struct dpro_graph *graph, const struct dpro_graph *delayed,
                        struct arena *arena, struct dpro_model *m)
{
    program_edit(m->recorded, graph, NULL, 0, op_work_as_in(delayed, m->pace.work, arena), arena,
                 m);
    delay_net(graph, delayed, arena, m);
}

/* Ops' durations with such a share of the delays. Returns an iteration by the model. */
static double delay_by(double share, const struct dpro_graph *graph, const int64_t *all_ns,
                       const struct dpro_model *m, struct dpro_graph *delayed)
{
    SCRATCH_ARENA struct arena arena = {0};
    struct dpro_model tried = *m;
    for (uint32_t op = 0; op < graph->n_ops; op++)
        delayed->dur_ns[op] =
            graph->dur_ns[op] + llround(share * (double)(all_ns[op] - graph->dur_ns[op]));
    take_delays(graph, delayed, &arena, &tried);
    return (double)evaluate_once(&tried);
}

/* Keeps as much of the delays as makes an iteration by the model what the replay says, or a little
 * less, as cycles make it jump; all where the replay says more, nothing where it says the opposite.
 * The rest, such as of ops that run side by side, is none of the model's. */
static void keep_share(const struct dpro_graph *graph, const int64_t *all_ns, double target_ns,
                       const struct dpro_model *m, struct dpro_graph *delayed)
{
    enum { MOST_ROUNDS = 12 };
    const double NEAR = 1e-3; /* of what is to be added */
    double low = 0, high = 1, low_ns = (double)m->paced_ns;
    double high_ns = delay_by(1, graph, all_ns, m, delayed), added_ns = target_ns - low_ns;
    if (high_ns == low_ns || added_ns / (high_ns - low_ns) >= 1)
        return;
    for (int round = 0; round < MOST_ROUNDS && added_ns / (high_ns - low_ns) > 0 &&
                        fabs(target_ns - low_ns) > NEAR * fabs(added_ns);
         round++) {
        double part = round % 3 < 2 ? (target_ns - low_ns) / (high_ns - low_ns) : 0.5;
        double share = low + (high - low) * part;
        double ns = delay_by(share, graph, all_ns, m, delayed);
        bool less = (target_ns - ns) / added_ns >= 0;
        *(less ? &low : &high) = share;
        *(less ? &low_ns : &high_ns) = ns;
    }
    delay_by(low, graph, all_ns, m, delayed);
}

static void delay_model(const struct dpro_graph *graph, const struct dpro_changes *c,
                        struct arena *arena, struct dpro_graph *delayed, struct dpro_model *m)
{
    struct measured_replay replay;
    int64_t before_ns = launching_alone(graph), after_ns = launching_alone(delayed);
    if (before_ns > 0)
        m->launching_ns = scaled_ns((double)after_ns / (double)before_ns, m->launching_ns);
    measured_replay_run(delayed, &c->sink, &replay);
    double target_ns = model_change_by(&replay, arena, m);
    measured_replay_fini(&replay);
    const int64_t *all_ns = arena_copy(arena, delayed->dur_ns, graph->n_ops, sizeof *all_ns);
    keep_share(graph, all_ns, target_ns, m, delayed);
    take_delays(graph, delayed, arena, m);
    m->changed_model_ns = evaluate_once(m);
    if (job_has_gpu(graph)) /* what else changes is replayed with them */
        memcpy(delayed->dur_ns, all_ns, graph->n_ops * sizeof *all_ns);
}

/* Whether modules do anything otherwise than recorded, which they don't where they are asked for as
 * they are. */
static bool changes_ops(const struct program_change *change, struct rank_share share)
{
    const struct dpro_model *m = &change->modules;
    return change->has_modules &&
           (programs_shares(share) || strategy_changes_work(m, &m->baseline));
}

/* Changes the programs' work and FSDP's units. `share`: how a rank's part of shards and batch
 * grows. `passes_alone`: without what a step does once. */
static void edit_programs(const struct dpro_graph *delayed, const struct dpro_changes *c,
                          struct rank_share share, bool passes_alone, struct arena *arena,
                          const struct program_change *change, struct dpro_model *to)
{
    const struct op_work *work = NULL;
    if (changes_ops(change, share))
        work = op_work_of(delayed, &change->modules, passes_alone, share, arena);
    to->communications =
        arena_copy(arena, to->communications, to->n_communications, sizeof *to->communications);
    for (uint32_t k = 0; work && k < to->n_communications; k++)
        if (carries_activations(delayed, &to->communications[k]))
            model_resize(to, &to->communications[k], micro_batch_ratio(&change->modules));
    if (share.tensors != 1)
        resize_traffic(delayed, share, arena, to);
    units_change_programs(&change->units, delayed, work, arena, to);
    if (job_has_gpu(delayed) && (work || change->units.n_edits > 0)) {
        struct dpro_graph changed;
        struct measured_replay replay;
        op_work_graph(work, delayed, units_gone(&change->units, delayed, arena), arena, &changed);
        measured_replay_run(&changed, &c->sink, &replay);
        model_pace_by(&replay, arena, to);
        measured_replay_fini(&replay);
    }
}

/* Of a job on GPUs a rank's work is a GPU's, launched by threads: speeds are delays of one or the
 * other. */
static void add_speeds(const struct dpro_graph *graph, struct arena *arena, struct dpro_changes *c)
{
    const char **delays = arena_array(arena, c->n_delays + c->n_compute + 1, sizeof *delays);
    bool gpu = job_has_gpu(graph);
    for (size_t i = 0; gpu && i < c->n_delays; i++)
        delays[i] = c->delays[i];
    EACH_OF (const struct dpro_compute_change, speed, c->compute, c->n_compute) {
        char ranks[40] = "";
        check_speed(speed, graph);
        if (speed->first_rank >= 0)
            snprintf(ranks, sizeof ranks, "@%d-%d", speed->first_rank, speed->last_rank);
        const char *what = speed->processor == DPRO_PROCESSOR_CPU ? "THREADS" : "KERNELS";
        if (gpu)
            delays[c->n_delays++] = arena_format(arena, "%s%s=%.9g", what, ranks, 1 / speed->speed);
    }
    c->delays = gpu ? delays : c->delays;
}

static void check_asked(const struct dpro_graph *graph, const struct dpro_changes *c,
                        const struct dpro_model *m)
{
    if (!graph || !m->recorded)
        refuse("delays, resharding and pipelines need the graph of the job");
    if (asks_for_units(c) && !dpro_graph_is_sharded(graph) && job_dimension(graph, DPRO_SHARDS))
        refuse("the job shards its parameters, but this recording does not show which "
               "modules are FSDP's units, which --reshard and --prefetch change: "
               "record it with 'dpro profile'");
    if (asks_for_units(c) && !dpro_graph_is_sharded(graph))
        refuse("the job shards no parameters: --reshard and --prefetch are for "
               "PyTorch's FSDP (fully_shard)");
    bool pipeline = asks_for_pipeline(c) && job_dimension(graph, DPRO_STAGES);
    const char *beside = pipeline ? beside_pipeline(c) : NULL;
    if (beside)
        refuse("Not supported together: a pipeline's micro-batches or schedule, and other units, "
               "modules or batches: leave out %s",
               beside);
}

/* Of a job whose groups of ranks communicate: modules, units and shares. */
static void change_groups(const struct dpro_graph *graph, const struct dpro_graph *delayed,
                          const struct dpro_changes *c, struct rank_share share,
                          struct notes *notes, struct program_change *change, struct dpro_model *m)
{
    change->passes = *m;
    change->passes.arena = (struct arena){0};
    edit_programs(delayed, c, share, false, notes->arena, change, m);
    if (!change->has_modules)
        return;
    double again_ns = calls_communicate_again(graph, &change->modules, notes->arena, m);
    if (change->modules.baseline.micro_batches > 1) {
        edit_programs(delayed, c, share, true, notes->arena, change, &change->passes);
        calls_communicate_again(graph, &change->modules, notes->arena, &change->passes);
        change->n_passes = change->modules.baseline.micro_batches - 1;
    }
    find_peaks(graph, share, notes->arena, change);
    change->computing_error_ns = (change->n_passes + 1) * again_ns;
}

/* Of a pipeline: another run, too. */
static void change_stages(const struct dpro_graph *graph, const struct dpro_graph *delayed,
                          const struct dpro_changes *c, struct rank_share share,
                          struct notes *notes, struct program_change *change, struct dpro_model *m)
{
    if (!change->has_modules)
        begin_modules(m, notes->arena, &change->modules);
    change->has_modules = true;
    m->communications =
        arena_copy(notes->arena, m->communications, m->n_communications, sizeof *m->communications);
    if (share.tensors != 1)
        resize_traffic(graph, share, notes->arena, m);
    change_pipeline(delayed, c, share, m, &change->modules, notes, &change->pipeline);
    pipeline_peaks(&change->modules, &change->pipeline, change->memory);
    if (programs_shares(share) && memory_is_known(&change->modules)) {
        struct dpro_model other = change->modules;
        struct dpro_memory_peak peaks[2];
        own_memories(notes->arena, &other);
        share_memory(share, notes->arena, &other);
        pipeline_peaks(&other, &change->pipeline, peaks);
        add_moved(&change->memory[0], (double)peaks[0].bytes, &peaks[1]);
        change->memory[1] = peaks[1];
    }
}

/* Standard errors of what modules and parts of tensors take otherwise. */
static void add_errors(const struct dpro_graph *graph, struct rank_share share,
                       const struct dpro_model *before, const struct dpro_model *after,
                       struct notes *notes, struct program_change *change)
{
    change->computing_error_ns += computing_change_in_all(&change->modules).std_ns +
                                  SPLIT_ERROR * split_change_ns(graph, share);
    if (share.tensors != 1)
        change->memory[1].std_bytes = hypot(change->memory[1].std_bytes,
                                            SPLIT_MEMORY_ERROR * (double)change->memory[1].bytes);
    if (share.tensors > 1)
        change->computing_error_ns =
            hypot(change->computing_error_ns, off_cpu_error_ns(graph, before, after, notes));
}

void change_programs(const struct dpro_graph *graph, const struct dpro_changes *asked,
                     struct dpro_model *m, struct notes *notes, struct program_change *change)
{
    struct dpro_changes changes = *asked, *c = &changes;
    struct dpro_graph delayed;
    struct rank_changes ranks;
    *change = (struct program_change){.n_passes = 0};
    add_speeds(graph, notes->arena, &changes);
    replicas_find(graph, c, m, notes->arena, &ranks);
    struct rank_share share = replicas_share(&ranks);
    change->has_modules = m->n_communications > 0 &&
                          (asks_for_modules(c) || asks_for_units(c) || programs_shares(share));
    if (c->n_delays == 0 && !asks_for_units(c) && !change->has_modules && !asks_for_pipeline(c))
        return;
    check_asked(graph, c, m);
    if (asks_for_units(c)) {
        units_ask(graph, c, notes->arena, &change->units);
        units_note(&change->units, c->prefetch, notes->arena, &m->baseline);
    }
    if (change->has_modules) {
        begin_modules(m, notes->arena, &change->modules);
        change_modules(graph, c, &change->units, m, &change->modules, notes);
    }
    delayed_graph(graph, c->delays, c->n_delays, m->pace.work, notes->arena, &delayed);
    if (delayed.dur_ns == graph->dur_ns)
        c->n_delays = 0; /* of none, an op takes another time */
    else
        delay_model(graph, c, notes->arena, &delayed, m);
    if (changes_ops(change, share) || change->units.n_edits > 0)
        m->launching_ns = 0; /* other ops are launched */
    struct dpro_model recorded = *m;
    (asks_for_pipeline(c) ? change_stages : change_groups)(graph, &delayed, c, share, notes, change,
                                                           m);
    if (change->has_modules)
        add_errors(graph, share, &recorded, m, notes, change);
    if (c->prefetch > 0 && c->prefetch >= change->units.n_in_row)
        note(notes,
             "at most %u units of the job follow each other, fewer than the %u of --prefetch: each "
             "unit asks for all that follow it",
             change->units.n_in_row, c->prefetch);
}

struct uncertainty program_uncertainty(struct timed_job *before, struct timed_job *after,
                                       const struct program_change *change,
                                       struct change_beside beside)
{
    static const struct dpro_model as_it_is = {.page_faults = -1};
    beside.resharded = change->units.n_edits > 0;
    beside.rewritten = change->pipeline.averaged;
    beside.calls_error_ns = pipeline_calls_error(&change->pipeline);
    if (change->has_modules) {
        beside.batch = uncertainty_of_batch(&as_it_is, &change->modules);
        beside.computing_error_ns = change->computing_error_ns;
    }
    return uncertainty_of(before, after, &beside);
}
