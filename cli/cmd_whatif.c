/* dpro whatif: the iteration time with other buckets, links, hosts. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <dpro/dpro.h>

#include "cmd.h"
#include "job.h"
#include "units.h"

/* Options are read into `changes` where one of its fields has the value. */
struct values {
    struct cmd_values common;
    struct dpro_changes changes;
    enum dpro_compression compression;
    uint64_t fusion_bytes;
    struct opt_list delays, computes;
};

/* "64", "2x" */
static bool read_batch(const char *text, void *field)
{
    struct dpro_changes *changes = field;
    changes->batch_size = 0;
    changes->batch_ratio = 0;
    if (units_read_ratio(text, &changes->batch_ratio))
        return changes->batch_ratio > 0;
    return opt_read_u32(text, &changes->batch_size) && changes->batch_size > 0;
}

/* "5", "5,1", "5,first 1", "5,first=1" */
static bool read_caps(const char *text, void *field)
{
    struct dpro_changes *changes = field;
    char others[64];
    const char *first;
    double bytes;
    if (!units_split(text, ',', false, others, sizeof others, &first) ||
        !units_read_mb(others, &bytes))
        return false;
    changes->bucket_cap_bytes = (uint64_t)bytes;
    changes->first_bucket_bytes = 0;
    if (first == NULL)
        return true;
    first += strspn(first, " ");
    if (strncmp(first, "first", 5) == 0) {
        first += 5;
        first += strspn(first, " =");
    }
    if (!units_read_mb(first, &bytes))
        return false;
    changes->first_bucket_bytes = (uint64_t)bytes;
    return true;
}

static bool read_partition(const char *text, void *field)
{
    double bytes;
    if (!units_read_mb(text, &bytes))
        return false;
    *(uint64_t *)field = (uint64_t)bytes;
    return true;
}

/* 0 is a value of Horovod's: nothing is fused. */
static bool read_fusion(const char *text, void *field)
{
    struct values *values = field;
    double value;
    values->changes.fusion_bytes = &values->fusion_bytes;
    values->fusion_bytes = 0;
    if (opt_number(text, &value) && value == 0)
        return true;
    if (!units_read_mb(text, &value))
        return false;
    values->fusion_bytes = (uint64_t)value;
    return true;
}

/* Milliseconds, as HOROVOD_CYCLE_TIME has them. */
static bool read_cycle(const char *text, void *field)
{
    double ms;
    if (!opt_number(text, &ms) || !(ms > 0) || ms > 10000)
        return false;
    *(int64_t *)field = (int64_t)(ms * 1e6);
    return *(int64_t *)field > 0;
}

static const char *const compressions[] = {"none", "fp16", "bf16", NULL};

static const char *const collectives[] = {"ring", "tree", "hierarchical", NULL};

static bool read_compression(const char *text, void *field)
{
    struct values *values = field;
    values->changes.compression = &values->compression;
    values->compression = (enum dpro_compression)opt_find_word(text, compressions);
    return true;
}

/* "bf16", "bf16=blocks.*", "fp32" */
static bool read_precision(const char *text, void *field)
{
    *(const char **)field = text;
    return strcmp(text, "fp32") == 0 || strcmp(text, "bf16") == 0 ||
           (strncmp(text, "bf16=", 5) == 0 && text[5] != '\0');
}

#define SCHEDULE_FORM "gpipe, 1f1b, interleaved or zero-bubble"

static bool read_schedule(const char *text, void *field)
{
    for (int i = 1; i < DPRO_N_SCHEDULES; i++)
        if (strcmp(text, dpro_schedule_name((enum dpro_schedule)i)) == 0) {
            *(enum dpro_schedule *)field = (enum dpro_schedule)i;
            return true;
        }
    return false;
}

static bool read_speed(const char *text, double *bytes_per_s, double *ratio)
{
    *bytes_per_s = *ratio = 0;
    return units_read_ratio(text, ratio) ? *ratio > 0 : units_read_rate(text, bytes_per_s);
}

static bool read_server_links(const char *text, void *field)
{
    struct dpro_changes *c = field;
    return read_speed(text, &c->server_bandwidth_bytes_per_s, &c->server_bandwidth_ratio);
}

/* "0.5x", "intra=2x", "inter=1gbit,intra=2x" */
static bool read_links(const char *text, void *field)
{
    struct dpro_changes *c = field;
    char one[64];
    const char *rest;
    c->bandwidth_bytes_per_s = c->between_bytes_per_s = c->within_bytes_per_s = 0;
    c->bandwidth_ratio = c->between_ratio = c->within_ratio = 0;
    do {
        if (!units_split(text, ',', false, one, sizeof one, &rest))
            return false;
        bool between = strncmp(one, "inter=", 6) == 0, within = strncmp(one, "intra=", 6) == 0;
        double *bytes_per_s = between  ? &c->between_bytes_per_s
                              : within ? &c->within_bytes_per_s
                                       : &c->bandwidth_bytes_per_s;
        double *ratio = between  ? &c->between_ratio
                        : within ? &c->within_ratio
                                 : &c->bandwidth_ratio;
        if (*ratio != 0 || *bytes_per_s != 0 ||
            !read_speed(one + (between || within ? 6 : 0), bytes_per_s, ratio))
            return false;
        text = rest;
    } while (rest != NULL);
    return true;
}

/* "+10us", "-5us", "0.5x" */
static bool read_latency(const char *text, void *field)
{
    struct dpro_changes *c = field;
    double value;
    c->latency_ratio = 0;
    c->latency_add_ns = 0;
    if (text[0] != '+' && text[0] != '-')
        return units_read_ratio(text, &c->latency_ratio) && c->latency_ratio > 0;
    if (!units_read_ns(text + 1, &value))
        return false;
    c->latency_add_ns = (int64_t)(text[0] == '-' ? -value : value);
    return true;
}

/* "1.2x", "1.2x@3", "1.2x@0-7", "gpu=2x", "cpu=2x@3" */
static bool parse_compute(const char *text, struct dpro_compute_change *change)
{
    char speed[64];
    const char *ranks;
    bool cpu = strncmp(text, "cpu=", 4) == 0, gpu = strncmp(text, "gpu=", 4) == 0;
    change->processor = cpu   ? DPRO_PROCESSOR_CPU
                        : gpu ? DPRO_PROCESSOR_GPU
                              : DPRO_PROCESSOR_DEFAULT;
    text += cpu || gpu ? 4 : 0;
    if (!units_split(text, '@', true, speed, sizeof speed, &ranks) ||
        !units_read_ratio(speed, &change->speed) || !(change->speed > 0))
        return false;
    change->first_rank = change->last_rank = -1;
    if (ranks == NULL)
        return true;
    char first[64];
    const char *last;
    if (!units_split(ranks, '-', false, first, sizeof first, &last) ||
        !opt_read_int(first, &change->first_rank))
        return false;
    change->last_rank = change->first_rank;
    return last == NULL ||
           (opt_read_int(last, &change->last_rank) && change->first_rank <= change->last_rank);
}

static bool read_compute(const char *text, void *field)
{
    struct dpro_compute_change change;
    return parse_compute(text, &change) && opt_read_list(text, field);
}

#define AT(member)     offsetof(struct values, member)
#define BANDWIDTH_FORM "a ratio such as 0.5x, or a rate with its unit, such as 500mbit or 10gbit"
static const struct opt whatif_opts[] = {
    OPT_VALUE(
        "bucket-cap-mb", "X[,first Y]", read_caps, changes,
        "megabytes above 0, such as 5, 0.5 or 25,first=1",
        "gradients in buckets of that cap, by DDP's rule; the\nfirst bucket's own cap after a "
        "comma (torch's default\nis 25,first=1). MB as torch counts them: 1048576 bytes"),
    OPT_PATH("buckets", "FILE", changes.buckets_path, "a file or a plan's folder",
             "exactly these buckets: a JSON list of lists of\nparameter names, or a plan"),
    OPT_VALUE("partition-mb", "X", read_partition, changes.partition_bytes, "megabytes above 0",
              "buckets travel in parts of at most X MB"),
    OPT_CHOICE("compress", "TYPE", read_compression, common, compressions,
               "gradients are cast to TYPE for the transfer: none,\nfp16 or bf16"),
    OPT_VALUE(
        "bandwidth", "BW", read_links, changes,
        BANDWIDTH_FORM "; of some links: inter=0.5x, intra=2x or both with a comma",
        "links that are BW times as fast (0.5x), or of that\nrate (500mbit, 10gbit, 12.5GB/s); "
        "inter=BW: those\nbetween hosts, intra=BW: those within"),
    OPT_PATH(
        "topology", "TOPOLOGY", changes.topology, "a file, or a name such as h100-nvlink-400g",
        "which ranks share a host, and how fast links within\nand between hosts are: a file, or "
        "a ready-made one,\nsuch as h100-nvlink-400g or pcie4-2x25g"),
    OPT_CHOICE("collectives", "HOW", opt_read_string, changes.collectives, collectives,
               "how they pass over the topology's hosts: ring, tree or\nhierarchical"),
    OPT_VALUE(
        "latency", "TIME", read_latency, changes,
        "+10us, -5us (or ns, ms), or a ratio above 0 such as 0.5x",
        "each message takes that much longer (+10us) or\nshorter (-5us), or its own cost that "
        "many times (0.5x)"),
    OPT_LIST("compute", "SPEED", read_compute, computes,
             "a speed such as 1.2x, 0.8x@3, 2x@0-7, gpu=2x or cpu=2x",
             "ranks that compute SPEED times as fast: 1.2x, 0.8x@3\n(rank 3), 2x@0-7; of jobs on "
             "GPUs these, or gpu=2x and\ncpu=2x apart; may be repeated"),
    CMD_OPT_DELAY("ops that take longer or shorter, as in dpro replay;\nmay be repeated"),
    OPT_WHOLE("dp", opt_read_u32, changes.dp, 1, UINT32_MAX,
              "N data-parallel replicas, of FSDP without replicas N\nshards; all else as it is, on "
              "hosts of the same kind"),
    OPT_WHOLE("world-size", opt_read_u32, changes.world_size, 2, UINT32_MAX,
              "N ranks in all: as many replicas as that makes"),
    OPT_WHOLE(
        "shard", opt_read_u32, changes.shard, 2, UINT32_MAX,
        "FSDP: parameters sharded over N neighbouring ranks\nonly, with replicas of these (HSDP)"),
    OPT_WHOLE("tp", opt_read_u32, changes.tp, 1, UINT32_MAX,
              "tensors split over N ranks; batch, replicas and stages\nas they are"),
    OPT_WHOLE("servers", opt_read_u32, changes.n_servers, 1, UINT32_MAX,
              "N parameter servers, on ranks' hosts if they are\nthere now, else on hosts of their "
              "own"),
    OPT_WHOLE("bigarray-bound", opt_read_u64, changes.bigarray_bound, 1, UINT32_MAX,
              "MXNet: arrays of N elements or more are parted over\nall servers "
              "(MXNET_KVSTORE_BIGARRAY_BOUND)"),
    OPT_VALUE("server-bandwidth", "BW", read_server_links, changes, BANDWIDTH_FORM,
              "as --bandwidth, for the links of servers that have\nhosts of their own"),
    OPT_VALUE("cycle-time", "MS", read_cycle, changes.cycle_ns, "milliseconds above 0, up to 10000",
              "Horovod: it looks every MS milliseconds which\ngradients are ready "
              "(HOROVOD_CYCLE_TIME)"),
    OPT_VALUE("fusion-mb", "X", read_fusion, common, "megabytes, or 0",
              "Horovod: what is ready travels together up to X MB; 0:\neach gradient by itself "
              "(HOROVOD_FUSION_THRESHOLD)"),
    OPT_VALUE(
        "recompute", "MODULES", opt_read_string, changes.recompute, "names of modules",
        "modules keep nothing between their passes and are\ncomputed again: names with commas "
        "between them, or\npatterns ('blocks.*'); all, the blocks that the model\nrepeats; "
        "sqrt, all but every sqrt(n)-th of these; none;\nor a file, a JSON list of names or a "
        "plan"),
    OPT_WHOLE("accumulate", opt_read_u32, changes.micro_batches, 1, 1024,
              "the step's batch in N micro-batches, gradients sent\nwith the last"),
    OPT_VALUE("batch-size", "N", read_batch, changes, "a number above 0, or a ratio such as 2x",
              "a rank's batch of N samples, or N times as large (2x)"),
    OPT_SWITCH("gradient-views", changes.gradient_views,
               "gradients are views of their buckets\n(gradient_as_bucket_view of PyTorch's DDP)"),
    OPT_VALUE("compile", "MODULES", opt_read_string, changes.compile, "names of modules",
              "modules are compiled (torch.compile): names as for\n--recompute, or all, the whole "
              "model"),
    OPT_VALUE("precision", "TYPE", read_precision, changes.precision, "bf16, bf16=MODULES or fp32",
              "the model, or only these modules, under autocast to\nbf16; fp32: none"),
    CMD_OPT_PROBES,
    CMD_OPT_DIMS,
    OPT_VALUE("reshard", "UNITS", opt_read_string, changes.reshard, "names of units",
              "FSDP: units free their gathered parameters after the\nforward pass and gather them "
              "again for the backward\npass: all, none, or names with commas between them, or\n"
              "patterns ('blocks.*'); all others keep them"),
    OPT_WHOLE("prefetch", opt_read_u32, changes.prefetch, 1, 1024,
              "FSDP: each unit gathers N units ahead, in both passes"),
    OPT_WHOLE("microbatches", opt_read_u32, changes.pipeline_micro_batches, 1, 4096,
              "pipelines: the same batch in N micro-batches"),
    OPT_VALUE("schedule", "NAME", read_schedule, changes.schedule, SCHEDULE_FORM,
              "pipelines: stages compute in that order"),
    CMD_OPT_JSON("dpro.whatif/1", ""),
    CMD_OPT_RANKS_FROM,
    CMD_OPTS_GRAPH(CMD_STEPS_LEARNT, CMD_THREADS_READ),
    {.name = NULL},
};

static int predict(const struct values *values, struct dpro_job *job)
{
    struct dpro_compute_change *computes =
        calloc(values->computes.n + 1, sizeof *computes); /* NULL: tested below */
    struct dpro_changes changes = values->changes;
    struct dpro_whatif_report report;
    struct dpro_error err = {.code = 0};
    if (computes == NULL)
        return cmd_no_memory();
    for (size_t i = 0; i < values->computes.n; i++)
        parse_compute(values->computes.items[i], &computes[i]);
    changes.size = sizeof changes;
    changes.compute = computes;
    changes.n_compute = values->computes.n;
    changes.delays = values->delays.items;
    changes.n_delays = values->delays.n;
    int code = cmd_done(dpro_job_whatif(job, &changes, &report, &err), &err);
    if (code == 0)
        code = cmd_done((values->common.json ? dpro_whatif_json
                                             : dpro_whatif_text)(&report, cmd_output(), &err),
                        &err);
    free(computes);
    return code;
}

static int run(const void *given, const struct opt_list *paths)
{
    const struct values *values = given;
    struct dpro_job *job;
    if (values->changes.bucket_cap_bytes != 0 && values->changes.buckets_path != NULL) {
        cmd_say("--bucket-cap-mb and --buckets both say which buckets: give one of them");
        return CMD_USAGE;
    }
    int code = job_open(paths->items, paths->n, given, &job);
    if (code == 0)
        code = predict(values, job);
    dpro_job_close(job);
    return code;
}

const struct cmd cmd_whatif = {
    .name = "whatif",
    .summary = "predict time and memory with other buckets, links, hosts or batches",
    .usage = "[OPTIONS] PATH...",
    .description =
        "Learns from a job's traces what computing and communicating cost it, and predicts the\n"
        "iteration with what the options change: how gradients are put into buckets, partitions\n"
        "and compression, links, computing speed, the number of ranks and of parameter servers,\n"
        "what is computed again to save memory, compiled or in 16 bits, batches. Options combine.",
    .examples =
        "  dpro whatif TRACE --recompute all --accumulate 2   less memory, and what it costs\n"
        "  dpro whatif TRACE --bucket-cap-mb 5             DDP's buckets of 5 MB\n"
        "  dpro whatif TRACE --bandwidth 0.5x --compress fp16\n"
        "  dpro whatif TRACE --compute 2x --world-size 16  faster hosts, and more of them\n"
        "  dpro whatif TRACE --dp 64                       64 replicas, each as it is\n"
        "  dpro whatif TRACE --dp 64 --topology h100-nvlink-400g  on such hosts\n"
        "  dpro whatif TRACE --servers 4 --bigarray-bound 100000  MXNet's key-value store\n"
        "  dpro whatif TRACE --cycle-time 5 --fusion-mb 2  Horovod's settings\n"
        "  dpro whatif TRACE --buckets plan/ --json        a plan, for programs",
    .opts = whatif_opts,
    .values_size = sizeof(struct values),
    .needs = CMD_NEEDS_TRACES,
    .processes = CMD_TOGETHER,
    .run = run,
};
