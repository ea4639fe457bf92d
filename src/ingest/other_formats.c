/* Formats that dpro knows by sight only: what a file is, so that its giver knows what to give
 * instead. Where a file begins like several of them, the first row that fits counts. */
#include "ingest/reader.h"

#include <strings.h>

#define GIVE                                                                                       \
    "; dpro does not read it: give the trace of torch.profiler (export_chrome_trace), or what "    \
    "'dpro profile' recorded of the same job"
#define DATABASE  "SQLite format 3\0"
#define FLIGHT    "a dump of PyTorch's flight recorder (which collectives were called)" GIVE
#define ROCPROF   "a recording of AMD's rocprof"
#define CHAKRA    "a Chakra execution trace"
#define NSIGHT    "a recording of Nsight Systems" GIVE
#define INSPECTOR "what NCCL's Inspector plugin wrote (a line a collective)" GIVE
#define PICKLE    "a Python pickle" GIVE
#define PERFETTO  "a trace of Perfetto (protobuf)" GIVE
#define PARQUET                                                                                    \
    "a Parquet table; dpro does not read it: convert it to CSV, with python3 -c 'import sys, "     \
    "pandas; pandas.read_parquet(sys.argv[1]).to_csv(sys.argv[2])' TABLE TABLE.csv"
#define UNPACK ": unpack it, and give what is in it"

/* Where it begins, and what else stands in the bytes that were read. */
static const struct {
    size_t at, n;
    const char *begins, *holds;
    const char *what;
} beginnings[] = {
#define BEGINS(at, text) at, sizeof text - 1, text
    {BEGINS(0, DATABASE), "rocpd_", ROCPROF " (rocpd, SQLite)" GIVE},
    {BEGINS(0, DATABASE), "CUPTI_ACTIVITY", NSIGHT},
    {BEGINS(0, DATABASE), "NVTX_EVENTS", NSIGHT},
    {BEGINS(0, DATABASE), "TARGET_INFO", NSIGHT},
    {BEGINS(0, DATABASE), "",
     "an SQLite database, as Nsight Systems, rocprof and msprof write them" GIVE},
    {BEGINS(0, "\x80"), "pg_config", FLIGHT},
    {BEGINS(0, "\x80"), "nccl_version", FLIGHT},
    {BEGINS(0, "\x80"), "comm_lib_version", FLIGHT},
    {BEGINS(0, "\x80"), "profiling_name", FLIGHT},
    {BEGINS(0, "\x80\x02"), "", PICKLE},
    {BEGINS(0, "\x80\x03"), "", PICKLE},
    {BEGINS(0, "\x80\x04"), "", PICKLE},
    {BEGINS(0, "\x80\x05"), "", PICKLE},
    {BEGINS(12, "\x09"),
     "brain.Event:", "TensorBoard's event file (tfevents), which holds no times of ops" GIVE},
    {BEGINS(0, "PAR1"), "", PARQUET},
    {BEGINS(257, "ustar"), "", "a tar archive" UNPACK},
    {BEGINS(0, "PK\3\4"), "", "a ZIP archive" UNPACK},
    {BEGINS(0, "\x28\xb5\x2f\xfd"), "", "compressed with zstd" UNPACK},
    {BEGINS(0, "\3757zXZ"), "", "compressed with xz" UNPACK},
    {BEGINS(0, "BZh"), "", "compressed with bzip2" UNPACK},
};

/* Words that a table's first line holds both. */
static const struct {
    const char *words[2];
    const char *what;
} tables[] = {
    {{"KernelName", "Ns"}, ROCPROF " (CSV)" GIVE},
    {{"Correlation_Id", "Start_Timestamp"}, ROCPROF " (CSV)" GIVE},
    {{"TotalDurationNs", "Calls"}, ROCPROF " (CSV)" GIVE},
};

static bool formats_holds(const struct head *head, size_t n, const char *word)
{
    return memmem(head->bytes, n < head->n_bytes ? n : head->n_bytes, word, strlen(word)) != NULL;
}

/* Messages behind their lengths, of which the first has the version, "1.0.2-chakra.0.0.4", or an
 * attribute with a name. */
static bool is_chakra(const unsigned char *p, size_t n)
{
    size_t i = 0, n_text, at;
    while (i < 4 && i < n && p[i] & 0x80)
        i++;
    if (i + 48 >= n || (p[i + 1] != 0x0a && p[i + 1] != 0x12))
        return false;
    bool attribute = p[i + 1] == 0x12;
    at = attribute ? i + 4 : i + 2;
    n_text = p[at];
    if (n_text < 3 || n_text > 40 || (attribute && (p[i + 3] != 0x0a || p[i + 2] < n_text + 2)) ||
        (i == 0 && p[0] < n_text + 2))
        return false;
    bool fits = attribute || (isdigit(p[at + 1]) && p[at + 2] == '.');
    for (size_t k = 1; k <= n_text && fits; k++)
        fits = isalnum(p[at + k]) || strchr("._-", p[at + k]);
    return fits;
}

/* A list of packets, field 1, that begin with a time, a clock, a sequence or what was asked for. */
static bool is_perfetto(const unsigned char *p, size_t n)
{
    size_t i = 1;
    while (i < 6 && i < n && p[i] & 0x80)
        i++;
    if (n < 16 || p[0] != 0x0a || i + 3 > n)
        return false;
    unsigned tag = p[i + 1], more = p[i + 2];
    return tag == 0x18 || tag == 0x32 || tag == 0x40 || tag == 0x50 ||
           (tag == 0x8a && more == 0x02) || (tag == 0xca && more == 0x05) ||
           (tag == 0xd0 && more == 0x02);
}

static const char *by_bytes(const struct head *head)
{
    const unsigned char *bytes = (const unsigned char *)head->bytes;
    for (size_t i = 0; i < sizeof beginnings / sizeof *beginnings; i++)
        if (head->n_bytes >= beginnings[i].at + beginnings[i].n &&
            memcmp(head->bytes + beginnings[i].at, beginnings[i].begins, beginnings[i].n) == 0 &&
            formats_holds(head, SIZE_MAX, beginnings[i].holds))
            return beginnings[i].what;
    const char *line = memchr(head->bytes, '\n', head->n_bytes);
    for (size_t i = 0; line && i < sizeof tables / sizeof *tables; i++)
        if (formats_holds(head, (size_t)(line - head->bytes), tables[i].words[0]) &&
            formats_holds(head, (size_t)(line - head->bytes), tables[i].words[1]) &&
            *head->bytes != '{')
            return tables[i].what;
    return is_chakra(bytes, head->n_bytes)     ? CHAKRA GIVE
           : is_perfetto(bytes, head->n_bytes) ? PERFETTO
                                               : NULL;
}

static const char *by_member(const struct head *head)
{
    if (text_is_one(head->key, "pg_config", "pg_status", "nccl_comm_state") ||
        (strcmp(head->key, "entries") == 0 && head_field(head, "profiling_name")))
        return FLIGHT;
    if (strcmp(head->key, "rocprofiler-sdk-tool") == 0)
        return ROCPROF " (JSON)" GIVE;
    if (text_is_one(head->key, "coll_perf", "p2p_perf"))
        return INSPECTOR;
    if (text_is_one(head->key, "ctrl_deps", "ctrlDeps", "data_deps", "dataDeps") ||
        (strcmp(head->key, "nodes") == 0 &&
         (head_field(head, "ctrl_deps") || head_field(head, "data_deps") ||
          head_field(head, "ctrlDeps") || head_field(head, "dataDeps"))))
        return CHAKRA " (JSON)" GIVE;
    if (strcmp(head->key, "schema") == 0 && text_begins(head->text, "dpro."))
        return "a file that dpro wrote, and no recording; give what 'dpro profile' recorded";
    return NULL;
}

static const char *by_event(const struct head *head)
{
    const char *phase = head_field(head, "ph"), *process = head_field(head, "pid");
    const char *category = head_field(head, "cat"), *label = head_field(head, "args.name");
    if (!phase)
        return head_field(head, "coll_perf") || head_field(head, "p2p_perf") ? INSPECTOR : NULL;
    if (process &&
        (strcasecmp(process, "CPU functions") == 0 || strcasecmp(process, "CUDA functions") == 0))
        return "a list of events of torch's old profiler (torch.autograd.profiler without "
               "Kineto)" GIVE;
    if (head_field(head, "args.BeginNs"))
        return ROCPROF " (JSON)" GIVE;
    if (category && text_is_one(category, "GROUP", "GROUP_API", "COLL", "P2P", "PROXY", "NET"))
        return "what NCCL's example profiler plugin wrote (JSON)" GIVE;
    if (category && strcmp(category, "Op") == 0 && head_field(head, "args.op"))
        return "a timeline of TensorFlow 1 (timeline.Timeline); dpro does not read it: give the "
               "RunMetadata that it was made of";
    if (label && strcmp(phase, "M") == 0 &&
        (text_begins(label, "/device:TPU") || text_begins(label, "/device:GPU") ||
         text_begins(label, "/host:CPU")) &&
        !text_ends(label, " Compute"))
        return "a Chrome trace of JAX or TensorFlow, whose events have no categories; dpro does "
               "not "
               "read it: give the .xplane.pb beside it";
    return strcmp(phase, "M") != 0 ? "a Chrome trace whose events have no categories, so that "
                                     "nothing tells what they are" GIVE
                                   : NULL;
}

const char *other_format(const struct head *head)
{
    switch (head->piece) {
    case HEAD_BYTES:
        return by_bytes(head);
    case HEAD_MEMBER:
        return by_member(head);
    case HEAD_EVENT:
        return by_event(head);
    default:
        return NULL;
    }
}

const char *other_format_by_name(const char *path)
{
    static const struct {
        const char *end, *what;
    } ends[] = {
        {".nsys-rep", NSIGHT},
        {".qdrep", NSIGHT},
        {".qdstrm", NSIGHT},
        {".ncu-rep", "a recording of Nsight Compute, which has no times of a job" GIVE},
        {".pftrace", PERFETTO},
        {".perfetto-trace", PERFETTO},
    };
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (text_ends(path, ends[i].end))
            return ends[i].what;
    return NULL;
}
