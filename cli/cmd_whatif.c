/* cmd_whatif.c: dpro whatif: the iteration time with other buckets, links, hosts. */
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <dpro/dpro.h>

#include "cmd.h"
#include "job.h"
#include "progress.h"
#include "units.h"

struct bandwidth {
    double bytes_per_s, ratio; /* one of them is 0 */
};

struct latency {
    double ratio;
    int64_t add_ns;
};

struct caps {
    uint64_t others_bytes, first_bytes;
};

struct compression {
    bool is_set;
    enum dpro_compression value;
};

struct fusion {
    bool is_set;
    uint64_t bytes;
};

struct values {
    struct job_values job;
    const char *buckets;
    struct caps caps;
    struct bandwidth bandwidth;
    struct latency latency;
    struct compression compression;
    uint64_t partition_bytes;
    struct opt_list delays, computes;
    uint32_t world_size, servers, bigarray_bound;
    struct bandwidth server_bandwidth;
    int64_t cycle_ns;
    struct fusion fusion;
};

/* "5", "5,1", "5,first 1", "5,first=1" */
static bool read_caps(const char *text, void *field)
{
    struct caps *caps = field;
    char others[64];
    const char *first;
    double bytes;
    if (!units_split(text, ',', false, others, sizeof others, &first) ||
        !units_read_mb(others, &bytes))
        return false;
    caps->others_bytes = (uint64_t)bytes;
    caps->first_bytes = 0;
    if (first == NULL)
        return true;
    first += strspn(first, " ");
    if (strncmp(first, "first", 5) == 0) {
        first += 5;
        first += strspn(first, " =");
    }
    if (!units_read_mb(first, &bytes))
        return false;
    caps->first_bytes = (uint64_t)bytes;
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
    struct fusion *fusion = field;
    double value;
    fusion->is_set = true;
    fusion->bytes = 0;
    if (opt_number(text, &value) && value == 0)
        return true;
    if (!units_read_mb(text, &value))
        return false;
    fusion->bytes = (uint64_t)value;
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

static bool read_compression(const char *text, void *field)
{
    struct compression *compression = field;
    for (int c = 0; compressions[c] != NULL; c++) {
        if (strcmp(text, compressions[c]) == 0) {
            *compression = (struct compression){true, (enum dpro_compression)c};
            return true;
        }
    }
    return false;
}

static bool read_bandwidth(const char *text, void *field)
{
    struct bandwidth *bandwidth = field;
    *bandwidth = (struct bandwidth){0, 0};
    if (units_read_ratio(text, &bandwidth->ratio))
        return bandwidth->ratio > 0;
    return units_read_rate(text, &bandwidth->bytes_per_s);
}

/* "+10us", "-5us", "0.5x" */
static bool read_latency(const char *text, void *field)
{
    struct latency *latency = field;
    double value;
    *latency = (struct latency){0, 0};
    if (text[0] == '+' || text[0] == '-') {
        if (!units_read_ns(text + 1, &value))
            return false;
        latency->add_ns = (int64_t)(text[0] == '-' ? -value : value);
        return true;
    }
    return units_read_ratio(text, &latency->ratio) && latency->ratio > 0;
}

/* "1.2x", "1.2x@3", "1.2x@0-7" */
static bool parse_compute(const char *text, struct dpro_compute_change *change)
{
    char speed[64];
    const char *ranks;
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

static bool read_world_size(const char *text, void *field)
{
    return opt_read_u32(text, field) && *(uint32_t *)field > 1;
}

static bool read_above_0(const char *text, void *field)
{
    return opt_read_u32(text, field) && *(uint32_t *)field > 0;
}

#define AT(member) offsetof(struct values, member)
static const struct opt whatif_opts[] = {
    {"bucket-cap-mb", 0, "X[,first Y]", read_caps, AT(caps),
     "megabytes above 0, such as 5, 0.5 or 25,first=1",
     "gradients in buckets of that cap, by DDP's rule; the\nfirst bucket's own cap after a comma "
     "(torch's default\nis 25,first=1). MB as torch counts them: 1048576 bytes",
     NULL, OPT_COMPLETE_NOTHING},
    {"buckets", 0, "FILE", opt_read_string, AT(buckets), "a file or a plan's folder",
     "exactly these buckets: a JSON list of lists of\nparameter names, or a plan", NULL,
     OPT_COMPLETE_PATH},
    {"partition-mb", 0, "X", read_partition, AT(partition_bytes), "megabytes above 0",
     "buckets travel in parts of at most X MB", NULL, OPT_COMPLETE_NOTHING},
    {"compress", 0, "TYPE", read_compression, AT(compression), "none, fp16 or bf16",
     "gradients are cast to TYPE for the transfer: none,\nfp16 or bf16", compressions,
     OPT_COMPLETE_NOTHING},
    {"bandwidth", 0, "BW", read_bandwidth, AT(bandwidth),
     "a ratio such as 0.5x, or a rate with its unit, such as 500mbit or 10gbit",
     "links that are BW times as fast (0.5x), or of that\nrate (500mbit, 10gbit, 12.5GB/s)", NULL,
     OPT_COMPLETE_NOTHING},
    {"latency", 0, "TIME", read_latency, AT(latency),
     "+10us, -5us (or ns, ms), or a ratio above 0 such as 0.5x",
     "each message takes that much longer (+10us) or\nshorter (-5us), or its own cost that many "
     "times (0.5x)",
     NULL, OPT_COMPLETE_NOTHING},
    {"compute", 0, "SPEED", read_compute, AT(computes), "a speed such as 1.2x, 0.8x@3 or 2x@0-7",
     "ranks that compute SPEED times as fast: 1.2x, 0.8x@3\n(rank 3), 2x@0-7; may be repeated",
     NULL, OPT_COMPLETE_NOTHING},
    {"delay", 0, "SPEC", job_read_delay, AT(delays),
     "KIND=RATIO, KIND=+MS, OP=RATIO or OP=+MS, any with @RANK before the =, such as 'BW=0.5' or "
     "'FW@1=+20'",
     "ops that take longer or shorter, as in dpro replay;\nmay be repeated", NULL,
     OPT_COMPLETE_NOTHING},
    {"world-size", 0, "N", read_world_size, AT(world_size), "a whole number of 2 or more",
     "N ranks, on hosts of the same kind", NULL, OPT_COMPLETE_NOTHING},
    {"servers", 0, "N", read_above_0, AT(servers), "a whole number of 1 or more",
     "N parameter servers, on ranks' hosts if they are\nthere now, else on hosts of their own",
     NULL, OPT_COMPLETE_NOTHING},
    {"bigarray-bound", 0, "N", read_above_0, AT(bigarray_bound), "a number of elements above 0",
     "MXNet: arrays of N elements or more are parted over\nall servers "
     "(MXNET_KVSTORE_BIGARRAY_BOUND)",
     NULL, OPT_COMPLETE_NOTHING},
    {"server-bandwidth", 0, "BW", read_bandwidth, AT(server_bandwidth),
     "a ratio such as 0.5x, or a rate with its unit, such as 500mbit or 10gbit",
     "as --bandwidth, for the links of servers that have\nhosts of their own", NULL,
     OPT_COMPLETE_NOTHING},
    {"cycle-time", 0, "MS", read_cycle, AT(cycle_ns), "milliseconds above 0, up to 10000",
     "Horovod: it looks every MS milliseconds which\ngradients are ready (HOROVOD_CYCLE_TIME)",
     NULL, OPT_COMPLETE_NOTHING},
    {"fusion-mb", 0, "X", read_fusion, AT(fusion), "megabytes, or 0",
     "Horovod: what is ready travels together up to X MB; 0:\neach gradient by itself "
     "(HOROVOD_FUSION_THRESHOLD)",
     NULL, OPT_COMPLETE_NOTHING},
    JOB_OPT_JSON("dpro.whatif/1"),
    JOB_OPT_STEPS(
        "learn from iterations A to B, both included, in the\njob's own numbers (default: all)"),
    JOB_OPT_RANK_REGEX,
    JOB_OPT_NO_ALIGN,
    JOB_OPT_RAW_RECEIVES,
    JOB_OPT_THREADS(JOB_THREADS_READ),
    JOB_OPT_VERBOSE,
    JOB_OPT_QUIET,
    JOB_OPT_HELP,
    {.name = NULL},
};

static int predict(const struct job_values *given, const struct job *job,
                   const struct dpro_model *model)
{
    const struct values *values = (const struct values *)given;
    struct dpro_compute_change *computes =
        calloc(values->computes.n + 1, sizeof *computes); /* NULL: tested below */
    struct dpro_changes changes = {
        .bucket_cap_bytes = values->caps.others_bytes,
        .first_bucket_bytes = values->caps.first_bytes,
        .buckets_path = values->buckets,
        .partition_bytes = values->partition_bytes,
        .compression = values->compression.is_set ? &values->compression.value : NULL,
        .bandwidth_bytes_per_s = values->bandwidth.bytes_per_s,
        .bandwidth_ratio = values->bandwidth.ratio,
        .latency_ratio = values->latency.ratio,
        .latency_add_ns = values->latency.add_ns,
        .compute = computes,
        .n_compute = values->computes.n,
        .delays = values->delays.items,
        .n_delays = values->delays.n,
        .world_size = values->world_size,
        .n_servers = values->servers,
        .bigarray_bound = values->bigarray_bound,
        .server_bandwidth_bytes_per_s = values->server_bandwidth.bytes_per_s,
        .server_bandwidth_ratio = values->server_bandwidth.ratio,
        .cycle_ns = values->cycle_ns,
        .fusion_bytes = values->fusion.is_set ? &values->fusion.bytes : NULL,
    };
    struct dpro_whatif *whatif = NULL;
    struct dpro_error err = {.code = 0};
    int code = CMD_DONE;
    if (computes == NULL) {
        cmd_say("out of memory");
        return CMD_SYSTEM;
    }
    for (size_t i = 0; i < values->computes.n; i++)
        parse_compute(values->computes.items[i], &computes[i]);
    if (dpro_whatif_run(job->graph, model, &changes, &whatif, &err) < 0) {
        code = cmd_fail(&err);
    } else {
        struct dpro_whatif_report report = {.trace = job->trace,
                                            .graph = job->graph,
                                            .model = model,
                                            .changes = &changes,
                                            .whatif = whatif};
        progress_clear();
        errno = 0;
        if ((given->json ? dpro_whatif_json : dpro_whatif_text)(&report, stdout, &err) < 0)
            code = cmd_fail(&err);
    }
    dpro_whatif_destroy(whatif);
    free(computes);
    return code;
}

static int whatif_paths(const struct job_values *given, const struct opt_list *paths)
{
    const struct values *values = (const struct values *)given;
    if (values->caps.others_bytes != 0 && values->buckets != NULL) {
        cmd_say("--bucket-cap-mb and --buckets both say which buckets: give one of them");
        return CMD_USAGE;
    }
    return job_with_model(given, paths, predict);
}

static int run(int argc, char **argv)
{
    struct values values = {.buckets = NULL};
    int code = job_run(&cmd_whatif, JOB_NEEDS, argc, argv, &values.job, whatif_paths);
    free(values.delays.items);
    free(values.computes.items);
    return code;
}

const struct cmd cmd_whatif = {
    .name = "whatif",
    .summary = "predict the iteration time with other buckets, links, hosts or ranks",
    .usage = "[OPTIONS] PATH...",
    .description =
        "Learns from a job's traces what computing and communicating cost it, and predicts the\n"
        "iteration with what the options change: how gradients are put into buckets, partitions\n"
        "and compression, links, computing speed, the number of ranks and of parameter servers.\n"
        "Options combine.",
    .examples = "  dpro whatif TRACE --bucket-cap-mb 5             DDP's buckets of 5 MB\n"
                "  dpro whatif TRACE --bandwidth 0.5x --compress fp16\n"
                "  dpro whatif TRACE --compute 2x --world-size 16  faster hosts, and more of them\n"
                "  dpro whatif TRACE --servers 4 --bigarray-bound 100000  MXNet's key-value store\n"
                "  dpro whatif TRACE --cycle-time 5 --fusion-mb 2  Horovod's settings\n"
                "  dpro whatif TRACE --buckets plan/ --json        a plan, for programs",
    .opts = whatif_opts,
    .run = run,
};
