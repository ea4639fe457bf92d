/* The table of what-ifs; whether a job can be asked them, and that they are applied. */
#include "cost/change/changes.h"

#include "cost/program/cost.h"

static const char *const ways[] = {"ring", "tree", "hierarchical", NULL};
static const char *const compressions[] = {"none", "fp16", "bf16", NULL};
static const char *const schedules[] = {"gpipe", "1f1b", "interleaved", "zero-bubble", NULL};

#define FIELD(member, kind, its_key, text)                                                         \
    {                                                                                              \
        .name = #member, .key = (its_key), .said = (text), .type = DPRO_CHANGE_##kind,             \
        .offset = offsetof(struct dpro_changes, member)                                            \
    }
#define OPTION(its_name, its_argument, text)                                                       \
    .option = (its_name), .argument = (its_argument), .help = (text)
#define WHOLE(from, to) .least = (from), .most = (to)
/* What it needs, what it is of, its function, what tries it, and what the job has of it. */
#define JOB(needed, what, applied, asked, told)                                                    \
    .needs = (needed), .of = (what), .apply = (applied), .ask = (asked), .tell = (told)
#define BANDWIDTH_FORM "a ratio such as 0.5x, or a rate with its unit, such as 500mbit or 10gbit"

/* In the order in which they are applied. */
const struct change_row change_rows[] = {
    {.kind = {OPTION("dp", "N",
                     "N data-parallel replicas, of FSDP without replicas N\nshards; all else as it "
                     "is, on hosts of the same kind"),
              WHOLE(1, UINT32_MAX),
              .fields = {FIELD(dp, COUNT, "dp", "data-parallel replicas: %s")}},
     JOB(NEEDS_TRANSFERS, 0, NULL, NULL, tell_replicas)},
    {.kind = {OPTION("world-size", "N", "N ranks in all: as many replicas as that makes"),
              WHOLE(2, UINT32_MAX), .fields = {FIELD(world_size, COUNT, "world_size", "%s ranks")}},
     JOB(NEEDS_TRANSFERS, 0, NULL, ask_ranks, tell_ranks)},
    {.kind = {OPTION("shard", "N",
                     "FSDP: parameters sharded over N neighbouring ranks\nonly, with replicas of "
                     "these (HSDP)"),
              WHOLE(2, UINT32_MAX),
              .fields = {FIELD(shard, COUNT, "shard", "shards over %s ranks each")}},
     JOB(NEEDS_TRANSFERS, 0, NULL, ask_shards, tell_shards)},
    {.kind = {OPTION("tp", "N",
                     "tensors split over N ranks; batch, replicas and stages\nas they are"),
              WHOLE(1, UINT32_MAX), .said_least = "no tensors split",
              .fields = {FIELD(tp, COUNT, "tp", "tensor-parallel ranks: %s")}},
     JOB(NEEDS_TRANSFERS, 0, NULL, ask_tensors, tell_tensors)},
    {.kind = {OPTION("topology", "TOPOLOGY",
                     "which ranks share a host, and how fast links within\nand between hosts are: "
                     "a file, or a ready-made one,\nsuch as h100-nvlink-400g or pcie4-2x25g"),
              .form = "a file, or a name such as h100-nvlink-400g",
              .fields = {FIELD(topology, PATH, "topology", "hosts and links of %s")}},
     JOB(NEEDS_TRANSFERS, 0, NULL, ask_hosts, tell_hosts),
     .needs_text = "with as many ranks on a host as the job has there"},
    {.kind = {OPTION("collectives", "HOW",
                     "how they pass over the topology's hosts: ring, tree or\nhierarchical"),
              .choices = ways,
              .fields = {FIELD(collectives, TEXT, "collectives", "%s collectives over hosts")}},
     JOB(0, 0, NULL, ask_hosts, NULL),
     .needs_text = "with --topology"},
    {.kind = {OPTION("compute", "SPEED",
                     "ranks that compute SPEED times as fast: 1.2x, 0.8x@3\n(rank 3), 2x@0-7; of "
                     "jobs on GPUs these, or gpu=2x and\ncpu=2x apart; may be repeated"),
              .form = "a speed such as 1.2x, 0.8x@3, 2x@0-7, gpu=2x or cpu=2x",
              .fields = {FIELD(compute, SPEEDS, "compute", NULL)}},
     JOB(0, OF_DURATIONS, change_speeds, NULL, tell_ranks)},
    {.kind = {OPTION("delay", "SPEC",
                     "ops that take longer or shorter, as in dpro replay;\nmay be repeated"),
              .form = "KIND=RATIO, KIND=+MS, OP=RATIO or OP=+MS, any with @RANK before the =, such "
                      "as 'BW=0.5' or 'FW@1=+20'",
              .fields = {FIELD(delays, TEXTS, "delays", NULL)}},
     JOB(0, OF_DURATIONS, NULL, NULL, NULL)},
    {.kind = {OPTION("bandwidth", "BW",
                     "links that are BW times as fast (0.5x), or of that\nrate (500mbit, 10gbit, "
                     "12.5GB/s); inter=BW: those\nbetween hosts, intra=BW: those within"),
              .form = BANDWIDTH_FORM "; of some links: inter=0.5x, intra=2x or both with a comma",
              .fields = {FIELD(bandwidth_bytes_per_s, RATE, "bandwidth_bytes_per_s",
                               "links of %s Mbit/s"),
                         FIELD(bandwidth_ratio, RATIO, "bandwidth_ratio", "links %s times as fast"),
                         FIELD(between_bytes_per_s, RATE, "inter_bytes_per_s",
                               "links between hosts of %s Mbit/s"),
                         FIELD(between_ratio, RATIO, "inter_ratio",
                               "links between hosts %s times as fast"),
                         FIELD(within_bytes_per_s, RATE, "intra_bytes_per_s",
                               "links within hosts of %s Mbit/s"),
                         FIELD(within_ratio, RATIO, "intra_ratio",
                               "links within hosts %s times as fast")}},
     JOB(NEEDS_TRANSFERS, 0, change_links, NULL, tell_links)},
    {.kind = {OPTION("latency", "TIME",
                     "each message takes that much longer (+10us) or\nshorter (-5us), or its own "
                     "cost that many times (0.5x)"),
              .form = "+10us, -5us (or ns, ms), or a ratio above 0 such as 0.5x",
              .fields = {FIELD(latency_ratio, RATIO, "latency_ratio", "latency %s times as long"),
                         FIELD(latency_add_ns, ADDED_TIME, "latency_add_ns",
                               "%s us added to each message")}},
     JOB(NEEDS_TRANSFERS, 0, change_links, NULL, tell_latency)},
    {.kind = {OPTION("servers", "N",
                     "N parameter servers, on ranks' hosts if they are\nthere now, else on hosts "
                     "of their own"),
              WHOLE(1, UINT32_MAX),
              .fields = {FIELD(n_servers, COUNT, "servers", "parameter servers: %s")}},
     JOB(NEEDS_SERVERS | NEEDS_GRADIENTS, 0, change_servers, NULL, tell_servers)},
    {.kind = {OPTION("bigarray-bound", "N",
                     "MXNet: arrays of N elements or more are parted over\nall servers "
                     "(MXNET_KVSTORE_BIGARRAY_BOUND)"),
              WHOLE(1, UINT32_MAX), .is_of_plans = 1,
              .fields = {FIELD(bigarray_bound, LONG_COUNT, "bigarray_bound",
                               "arrays of %s elements or more parted over all servers")}},
     JOB(NEEDS_SERVERS | NEEDS_GRADIENTS, 0, change_servers, NULL, NULL)},
    {.kind = {OPTION("server-bandwidth", "BW",
                     "as --bandwidth, for the links of servers that have\nhosts of their own"),
              .form = BANDWIDTH_FORM,
              .fields = {FIELD(server_bandwidth_bytes_per_s, RATE, "server_bandwidth_bytes_per_s",
                               "servers' links of %s Mbit/s"),
                         FIELD(server_bandwidth_ratio, RATIO, "server_bandwidth_ratio",
                               "servers' links %s times as fast")}},
     JOB(NEEDS_SERVERS | NEEDS_GRADIENTS, 0, change_servers, NULL, NULL)},
    {.kind = {OPTION("compile", "MODULES",
                     "modules are compiled (torch.compile): names as for\n--recompute, or all, the "
                     "whole model"),
              .form = "names of modules", .is_of_plans = 1, .changes_memory = 1,
              .fields = {FIELD(compile, TEXT, "compile", "compiling %s")}},
     JOB(NEEDS_NO_GROUPS, OF_PASSES, change_computing, NULL, tell_modules)},
    {.kind = {OPTION("precision", "TYPE",
                     "the model, or only these modules, under autocast to\nbf16; fp32: none"),
              .form = "bf16, bf16=MODULES or fp32", .is_of_plans = 1, .changes_numbers = 1,
              .changes_memory = 1,
              .fields = {FIELD(precision, PRECISION, "precision", "computing in %s")}},
     JOB(0, OF_PASSES, change_computing, NULL, tell_modules)},
    {.kind = {OPTION("recompute", "MODULES",
                     "modules keep nothing between their passes and are\ncomputed again: names "
                     "with commas between them, or\npatterns ('blocks.*'); all, the blocks that "
                     "the model\nrepeats; sqrt, all but every sqrt(n)-th of these; none;\nor a "
                     "file, a JSON list of names or a plan"),
              .form = "names of modules", .is_of_plans = 1, .changes_memory = 1,
              .fields = {FIELD(recompute, TEXT, "recompute", "recomputing %s")}},
     JOB(0, OF_PASSES, change_memory, NULL, tell_modules)},
    {.kind = {OPTION("accumulate", "N",
                     "the step's batch in N micro-batches, gradients sent\nwith the last"),
              WHOLE(1, 1024), .is_of_plans = 1, .changes_memory = 1,
              .fields = {FIELD(micro_batches, COUNT, "micro_batches",
                               "a step's batch in %s micro-batches")}},
     JOB(0, OF_PASSES, change_memory, NULL, tell_batch)},
    {.kind = {OPTION("batch-size", "N", "a rank's batch of N samples, or N times as large (2x)"),
              .form = "a number above 0, or a ratio such as 2x", .changes_numbers = 1,
              .changes_memory = 1,
              .fields = {FIELD(batch_size, COUNT, "batch_size", "a batch of %s a rank"),
                         FIELD(batch_ratio, RATIO, "batch_ratio", "a batch %s times as large")}},
     JOB(0, OF_PASSES, change_memory, NULL, tell_batch)},
    {.kind =
         {OPTION(
              "gradient-views", NULL,
              "gradients are views of their buckets\n(gradient_as_bucket_view of PyTorch's DDP)"),
          .changes_memory = 1,
          .fields = {FIELD(gradient_views, SWITCH, "gradient_views",
                           "gradients as views of their buckets")}},
     JOB(NEEDS_NO_GROUPS | NEEDS_GRADIENTS, OF_PASSES, change_memory, NULL, NULL)},
    {.kind = {OPTION("zero", "STAGE",
                     "ZeRO of stage 1: ranks share out the optimizer's state\nand its update, then "
                     "gather all parameters (PyTorch's\nZeroRedundancyOptimizer)"),
              WHOLE(1, 1), .form = "1, the stage that can be predicted", .changes_memory = 1,
              .fields = {FIELD(zero, COUNT, "zero", "ZeRO of stage %s")}},
     JOB(NEEDS_NO_GROUPS | NEEDS_GRADIENTS, 0, change_memory, NULL, tell_replicas)},
    {.kind = {OPTION("cycle-time", "MS",
                     "Horovod: it looks every MS milliseconds which\ngradients are ready "
                     "(HOROVOD_CYCLE_TIME)"),
              .form = "milliseconds above 0, up to 10000", .is_of_plans = 1,
              .fields = {FIELD(cycle_ns, TIME, "cycle_time_ms", "Horovod's cycles of %s ms")}},
     JOB(NEEDS_HOROVOD | NEEDS_GRADIENTS, 0, change_cycles, NULL, tell_cycles)},
    {.kind = {OPTION("fusion-mb", "X",
                     "Horovod: what is ready travels together up to X MB; 0:\neach gradient by "
                     "itself (HOROVOD_FUSION_THRESHOLD)"),
              .form = "megabytes, or 0", .said_least = "nothing fused", .is_of_plans = 1,
              .fields = {FIELD(fusion_bytes, LIMIT, "fusion_mb", "up to %s MB fused")}},
     JOB(NEEDS_HOROVOD | NEEDS_GRADIENTS, 0, change_cycles, NULL, tell_cycles)},
    {.kind =
         {OPTION(
              "bucket-cap-mb", "X[,first Y]",
              "gradients in buckets of that cap, by DDP's rule; the\nfirst bucket's own cap after "
              "a comma (torch's default\nis 25,first=1). MB as torch counts them: 1048576 bytes"),
          .form = "megabytes above 0, such as 5, 0.5 or 25,first=1", .is_of_plans = 1,
          .fields = {FIELD(bucket_cap_bytes, BYTES, "bucket_cap_mb",
                           "buckets of %s MB by DDP's rule"),
                     FIELD(first_bucket_bytes, BYTES, "first_bucket_mb", "the first of %s MB")}},
     JOB(NEEDS_GRADIENTS, 0, change_strategy, NULL, tell_buckets)},
    {.kind = {OPTION("buckets", "FILE",
                     "exactly these buckets: a JSON list of lists of\nparameter names, or a plan"),
              .form = "a file or a plan's folder", .is_of_plans = 1,
              .fields = {FIELD(buckets_path, PATH, "buckets", "the buckets of %s")}},
     JOB(NEEDS_GRADIENTS, 0, change_strategy, NULL, tell_buckets)},
    {.kind = {OPTION("partition-mb", "X", "buckets travel in parts of at most X MB"),
              .form = "megabytes above 0", .is_of_plans = 1,
              .fields = {FIELD(partition_bytes, BYTES, "partition_mb", "partitions of %s MB")}},
     JOB(NEEDS_GRADIENTS, 0, change_strategy, NULL, tell_buckets)},
    {.kind = {OPTION("compress", "TYPE",
                     "gradients are cast to TYPE for the transfer: none,\nfp16 or bf16"),
              .choices = compressions, .said_least = "no compression", .is_of_plans = 1,
              .changes_numbers = 1,
              .fields = {FIELD(compression, COMPRESSION, "compress", "compression to %s")}},
     JOB(NEEDS_GRADIENTS, 0, change_strategy, NULL, tell_compression)},
    {.kind = {OPTION("reshard", "UNITS",
                     "FSDP: units free their gathered parameters after the\nforward pass and "
                     "gather them again for the backward\npass: all, none, or names with commas "
                     "between them, or\npatterns ('blocks.*'); all others keep them"),
              .form = "names of units", .is_of_plans = 1, .changes_memory = 1,
              .fields = {FIELD(reshard, TEXT, "reshard", "resharding after forward: %s")}},
     JOB(NEEDS_TRANSFERS, 0, NULL, NULL, tell_units)},
    {.kind = {OPTION("prefetch", "N", "FSDP: each unit gathers N units ahead, in both passes"),
              WHOLE(1, 1024), .is_of_plans = 1, .changes_memory = 1,
              .fields = {FIELD(prefetch, COUNT, "prefetch", "units gathered %s ahead")}},
     JOB(NEEDS_TRANSFERS, 0, NULL, NULL, tell_units)},
    {.kind = {OPTION("microbatches", "N", "pipelines: the same batch in N micro-batches"),
              WHOLE(1, 4096), .changes_memory = 1,
              .fields = {FIELD(pipeline_micro_batches, COUNT, "pipeline_micro_batches",
                               "the batch in %s micro-batches")}},
     JOB(NEEDS_TRANSFERS, 0, NULL, ask_pipeline, tell_pipeline)},
    {.kind = {OPTION("schedule", "NAME", "pipelines: stages compute in that order"),
              .choices = schedules, .changes_memory = 1,
              .fields = {FIELD(schedule, SCHEDULE, "schedule", "schedule %s")}},
     JOB(NEEDS_TRANSFERS, 0, NULL, NULL, tell_pipeline)},
};
const size_t n_change_rows = sizeof change_rows / sizeof *change_rows;

size_t dpro_n_change_kinds(void)
{
    return n_change_rows;
}

const struct dpro_change_kind *dpro_change_kind(size_t index)
{
    return &change_rows[index].kind;
}

/* A count follows a pointer to as many. */
int dpro_change_is_asked(const struct dpro_changes *changes, const struct dpro_change_field *field)
{
    static const char nothing[sizeof(uint64_t)];
    const char *at = (const char *)changes + field->offset;
    enum dpro_change_type type = field->type;
    if (type >= DPRO_CHANGE_TEXTS)
        return memcmp(at + sizeof(void *), nothing, sizeof(size_t)) != 0;
    return memcmp(at, nothing,
                  type >= DPRO_CHANGE_TEXT         ? sizeof(void *)
                  : type >= DPRO_CHANGE_LONG_COUNT ? sizeof(uint64_t)
                                                   : sizeof(uint32_t)) != 0;
}

bool change_row_is_asked(const struct change_row *row, const struct dpro_changes *changes)
{
    for (const struct dpro_change_field *field = row->kind.fields; field->name; field++)
        if (dpro_change_is_asked(changes, field))
            return true;
    return false;
}

bool changes_ask_only(const struct dpro_changes *changes, unsigned of)
{
    EACH_OF (const struct change_row, row, change_rows, n_change_rows)
        if (!(row->of & of) && change_row_is_asked(row, changes))
            return false;
    return true;
}

struct correction changes_correct(const struct dpro_changes *changes,
                                  const struct dpro_model *model,
                                  const struct dpro_strategy *strategy, double doubt)
{
    EACH_OF (const struct change_row, row, change_rows, n_change_rows)
        if (!row->kind.is_of_plans && change_row_is_asked(row, changes))
            return (struct correction){1, 1, false};
    return turns_correct(model, strategy, doubt);
}

/* Why the job lacks what a change needs; NULL: it has it. */
static const char *changes_lacks(const struct dpro_model *m, unsigned need)
{
    bool in_groups = m->n_communications > 0;
    switch (need) {
    case NEEDS_SERVERS:
        return m->net.collective.algorithm == MODEL_SERVER
                   ? NULL
                   : "the job has no parameter servers to change; --bandwidth and --world-size "
                     "change the ranks' links and their number";
    case NEEDS_HOROVOD:
        return m->capabilities.stack == DPRO_STACK_HOROVOD
                   ? NULL
                   : "Horovod does not reduce this job's gradients; --bucket-cap-mb changes what "
                     "travels together";
    case NEEDS_NO_GROUPS:
        return !in_groups
                   ? NULL
                   : "the job's ranks communicate more than gradients: compiled modules, ZeRO "
                     "and views of buckets can't be predicted for it; 'dpro whatif TRACE' lists "
                     "what can";
    case NEEDS_TRANSFERS:
        return in_groups ? NULL : m->no_gradients;
    default:
        return m->no_gradients;
    }
}

static void check_need(const struct change_row *row, unsigned need, const struct dpro_model *m)
{
    const char *why = row->needs & need ? changes_lacks(m, need) : NULL;
    if (!why)
        return;
    if (need == NEEDS_GRADIENTS)
        fail_with(DPRO_EEMPTY, "--%s: %s", row->kind.option, why);
    fail_with(need == NEEDS_TRANSFERS ? DPRO_EEMPTY : DPRO_EUSAGE, "%s", why);
}

void change_check_row(const struct change_row *row, const struct dpro_model *model)
{
    for (unsigned need = 1; need <= NEEDS_TRANSFERS; need <<= 1)
        check_need(row, need, model);
}

void change_check(const struct dpro_changes *c, const struct dpro_model *m)
{
    bool bandwidth = c->bandwidth_bytes_per_s != 0 || c->bandwidth_ratio != 0 ||
                     c->between_bytes_per_s != 0 || c->between_ratio != 0 ||
                     c->within_bytes_per_s != 0 || c->within_ratio != 0;
    for (size_t i = 0; i < c->n_compute; i++) {
        int first = c->compute[i].first_rank, last = c->compute[i].last_rank;
        if (first > last || first < -1 || (first == -1 && last != -1))
            refuse("ranks %d to %d can't compute faster: the first comes first, and -1 and "
                   "-1 are all ranks",
                   first, last);
    }
    if (c->topology && bandwidth)
        refuse("a topology and a bandwidth both say how fast links are: give one of them");
    if (c->collectives && !c->topology)
        refuse("--collectives %s needs hosts: give --topology, too", c->collectives);
    if (c->collectives && !text_is_one(c->collectives, "ring", "tree", "hierarchical"))
        refuse(
            "'%.40s' is no way for collectives to pass over hosts; ring, tree and hierarchical are",
            c->collectives);
    for (unsigned need = 1; need <= NEEDS_TRANSFERS; need <<= 1)
        for (size_t i = 0; i < n_change_rows; i++)
            if (change_row_is_asked(&change_rows[i], c))
                check_need(&change_rows[i], need, m);
}

void change_apply(const struct dpro_graph *graph, const struct topology *told,
                  const struct dpro_changes *changes, struct dpro_model *model, struct notes *notes)
{
    struct dpro_changes asked = *changes;
    change_apply_fn *last = NULL;
    if (job_has_gpu(graph)) /* then the graph was changed */
        asked.n_compute = 0;
    change_hosts(graph, told, &asked, model, notes);
    for (size_t i = 0; i < n_change_rows; i++) {
        const struct change_row *row = &change_rows[i];
        bool by_graph = (row->of & OF_PASSES) && model->n_communications > 0;
        if (!row->apply || row->apply == last || by_graph || !change_row_is_asked(row, &asked))
            continue;
        row->apply(&asked, model, notes);
        last = row->apply;
    }
}
