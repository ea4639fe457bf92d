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

static bool read_compression(const char *text, void *field)
{
    struct values *values = field;
    values->changes.compression = &values->compression;
    for (int i = 0; i <= DPRO_COMPRESSION_BF16; i++)
        if (strcmp(text, dpro_compression_name((enum dpro_compression)i)) == 0)
            values->compression = (enum dpro_compression)i;
    return true;
}

/* "bf16", "bf16=blocks.*", "fp32" */
static bool read_precision(const char *text, void *field)
{
    *(const char **)field = text;
    return strcmp(text, "fp32") == 0 || strcmp(text, "bf16") == 0 ||
           (strncmp(text, "bf16=", 5) == 0 && text[5] != '\0');
}

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

/* How a value is read into the first of the fields that it can set, by what that holds. */
struct reader {
    opt_read_fn *read;
    enum { INTO_FIELD, INTO_CHANGES, INTO_VALUES } into;
};

static struct reader reader_of(const struct dpro_change_kind *kind)
{
    bool several = kind->fields[1].name != NULL;
    switch (kind->fields[0].type) {
    case DPRO_CHANGE_SWITCH:
        return (struct reader){opt_read_count, INTO_FIELD};
    case DPRO_CHANGE_COUNT:
        return several ? (struct reader){read_batch, INTO_CHANGES}
                       : (struct reader){opt_read_u32, INTO_FIELD};
    case DPRO_CHANGE_LONG_COUNT:
        return (struct reader){opt_read_u64, INTO_FIELD};
    case DPRO_CHANGE_BYTES:
        return several ? (struct reader){read_caps, INTO_CHANGES}
                       : (struct reader){read_partition, INTO_FIELD};
    case DPRO_CHANGE_RATE:
        return (struct reader){kind->fields[2].name != NULL ? read_links : read_server_links,
                               INTO_CHANGES};
    case DPRO_CHANGE_RATIO:
        return (struct reader){read_latency, INTO_CHANGES};
    case DPRO_CHANGE_TIME:
        return (struct reader){read_cycle, INTO_FIELD};
    case DPRO_CHANGE_PRECISION:
        return (struct reader){read_precision, INTO_FIELD};
    case DPRO_CHANGE_SCHEDULE:
        return (struct reader){read_schedule, INTO_FIELD};
    case DPRO_CHANGE_COMPRESSION:
        return (struct reader){read_compression, INTO_VALUES};
    case DPRO_CHANGE_LIMIT:
        return (struct reader){read_fusion, INTO_VALUES};
    default:
        return (struct reader){opt_read_string, INTO_FIELD};
    }
}

/* The option of a kind of what-if. */
static struct opt option_of(const struct dpro_change_kind *kind)
{
    const struct dpro_change_field *field = &kind->fields[0];
    struct reader reader = reader_of(kind);
    struct opt opt = {.name = kind->option,
                      .arg = kind->argument,
                      .form = kind->form,
                      .help = kind->help,
                      .choices = kind->choices,
                      .least = kind->least,
                      .most = kind->most,
                      .read = reader.read,
                      .offset = offsetof(struct values, changes) + field->offset};
    if (reader.into != INTO_FIELD)
        opt.offset = reader.into == INTO_CHANGES ? offsetof(struct values, changes) : 0;
    if (field->type == DPRO_CHANGE_PATH)
        opt.complete = OPT_COMPLETE_PATH;
    if (field->type == DPRO_CHANGE_SPEEDS || field->type == DPRO_CHANGE_TEXTS) {
        bool speeds = field->type == DPRO_CHANGE_SPEEDS;
        opt.repeats = true;
        opt.read = speeds ? read_compute : cmd_read_delay;
        opt.offset = speeds ? offsetof(struct values, computes) : offsetof(struct values, delays);
    }
    return opt;
}

#define AT(member) offsetof(struct values, member)
static const struct opt other_opts[] = {
    CMD_OPT_PROBES,
    CMD_OPT_DIMS,
    CMD_OPT_JSON("dpro.whatif/1", ""),
    CMD_OPT_RANKS_FROM,
    CMD_OPTS_GRAPH(CMD_STEPS_LEARNT, CMD_THREADS_READ),
    {.name = NULL},
};
/* The library's kinds of what-ifs, then these. */
static struct opt whatif_opts[80];

void cmd_whatif_begin(void)
{
    struct opt *to = whatif_opts;
    for (size_t i = 0; i < dpro_n_change_kinds(); i++)
        *to++ = option_of(dpro_change_kind(i));
    memcpy(to, other_opts, sizeof other_opts);
}

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
        "what is computed again to save memory, compiled or in 16 bits, batches. Options combine.\n"
        "Without any of them it lists what this job can be asked, and why not the rest.",
    .examples =
        "  dpro whatif TRACE                               what can be asked of the job\n"
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
