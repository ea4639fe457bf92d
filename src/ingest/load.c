/* ingest/load.c: from paths to a trace: files are read in parallel, then joined by rank in the
 * order of their names, so that the result does not depend on who finished first. */
#include <inttypes.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/error.h"
#include "base/log.h"
#include "base/parallel.h"
#include "ingest/byteps/byteps.h"
#include "ingest/load.h"
#include "ingest/tensorflow/session_profile.h"

enum { RECOGNISE_BYTES = 1 << 20, RECOGNISE_CHUNK = 1 << 14, MAX_WINDOWS = UINT16_MAX };

/* Ranks of one job record at about the same time; a capture of an hour is unheard of. */
static const int64_t MAX_GAP_NS = 3600LL * 1000000000;

struct reading {
    struct loader *loader;
    uint64_t reported;
};

static void report_chunk(void *arg, struct input *in)
{
    struct reading *reading = arg;
    uint64_t fresh = in->read_bytes - reading->reported;
    if (fresh < 1 << 20 && !in->ended)
        return;
    reading->reported = in->read_bytes;
    uint64_t done = atomic_fetch_add(&reading->loader->bytes_done, fresh) + fresh;
    log_progress(&reading->loader->options->sink, "read", "bytes", done,
                 reading->loader->bytes_total);
}

static int recognise_source(struct source *source)
{
    struct input in;
    struct json js;
    int rc = input_open(&in, source->path, &source->err);
    if (rc < 0)
        return rc;
    rc = json_init(&js, &in, RECOGNISE_CHUNK, &source->err);
    if (rc == 0) {
        js.limit = RECOGNISE_BYTES;
        source->kind = recognise(&js);
        if (js.fail == JSON_IO)
            rc = source->err.code;
        source->damage = in.damage;
        json_fini(&js);
    }
    input_close(&in);
    return rc;
}

static int read_json(struct source *source, struct input *in, struct reading *reading)
{
    struct json js;
    int rc = json_init(&js, in, 0, &source->err);
    if (rc < 0)
        return rc;
    js.on_chunk = report_chunk;
    js.arg = reading;
    rc = reader_of(source->kind)->read_json(&js, &source->part, &source->err);
    source->fail = js.fail;
    source->fail_offset = json_offset(&js);
    if (rc == 0 && js.fail == JSON_IO && source->part.n_events == 0)
        rc = source->err.code;
    json_fini(&js);
    return rc;
}

static int read_bytes(struct source *source, struct input *in, struct reading *reading)
{
    struct bytes bytes;
    int rc = bytes_init(&bytes, in, 0, PART_RECORD_MAX, &source->err);
    if (rc < 0)
        return rc;
    bytes.on_chunk = report_chunk;
    bytes.arg = reading;
    rc = reader_of(source->kind)->read_bytes(&bytes, &source->part, &source->err);
    source->fail = source->part.cut ? JSON_ENDED : source->part.broken ? JSON_BAD : JSON_OK;
    source->fail_offset = source->part.broken ? source->part.broken_offset : bytes_offset(&bytes);
    if (rc == 0 && bytes.rc < 0 && source->part.n_events == 0)
        rc = bytes.rc;
    bytes_fini(&bytes);
    return rc;
}

static int read_source(struct loader *loader, struct source *source)
{
    int rc = recognise_source(source);
    if (rc < 0 || source->kind == DPRO_FILE_OTHER)
        return rc;
    struct input in;
    struct reading reading = {.loader = loader};
    rc = input_open(&in, source->path, &source->err);
    if (rc < 0)
        return rc;
    rc = reader_of(source->kind)->read_json ? read_json(source, &in, &reading)
                                            : read_bytes(source, &in, &reading);
    source->damage = in.damage;
    source->size_bytes = in.size_bytes;
    source->read_bytes = in.read_bytes;
    source->json_bytes = in.out_bytes;
    input_close(&in);
    return rc;
}

static void read_item(void *arg, size_t item)
{
    struct loader *loader = arg;
    struct source *source = &loader->list.at[item];
    source->rc = read_source(loader, source);
}

/* 91204 -> "91,204" */
static const char *count(char out[32], uint64_t n)
{
    char digits[24];
    int len = snprintf(digits, sizeof digits, "%" PRIu64, n), o = 0;
    for (int i = 0; i < len; i++) {
        if (i > 0 && (len - i) % 3 == 0)
            out[o++] = ',';
        out[o++] = digits[i];
    }
    out[o] = '\0';
    return out;
}

static bool is_damaged(const struct source *source)
{
    return source->fail != JSON_OK || source->damage;
}

bool source_is_protobuf(const struct source *source)
{
    return source->kind == DPRO_FILE_XPLANE || source->kind == DPRO_FILE_RUN_METADATA ||
           source->kind == DPRO_FILE_GRAPH_DEF;
}

static void warn_damage(struct loader *loader, const struct source *source)
{
    static const char *const reasons[] = {
        [JSON_ENDED] = "the file ends in the middle of its JSON",
        [JSON_BAD] = "no valid JSON from here on",
        [JSON_DEEP] = "nested deeper than 256",
        [JSON_IO] = "could not be read further",
        [JSON_MEMORY] = "out of memory",
    };
    const char *reason = source->damage        ? source->damage
                         : source->part.broken ? source->part.broken
                                               : reasons[source->fail];
    uint64_t left = source->size_bytes > source->read_bytes
                        ? (source->size_bytes - source->read_bytes) * 100 / source->size_bytes
                        : 0;
    const struct reader *reader = reader_of(source->kind);
    bool one = source->part.n_events == 1;
    char n[32], lost[48] = "";
    if (left)
        snprintf(lost, sizeof lost, ", %" PRIu64 " %% of the file is lost", left);
    trace_warn(loader->trace, &loader->options->sink,
               "%s: byte %" PRIu64 " of the %s: %s; the %s %s before it %s used%s; copy or "
               "record the file again",
               source->path, source->fail != JSON_OK ? source->fail_offset : source->json_bytes,
               reader->read_json ? "JSON" : "protobuf", reason, count(n, source->part.n_events),
               one ? reader->one : reader->many, one ? "is" : "are", lost);
}

static void warn_losses(struct loader *loader, const struct source *source)
{
    const struct part_losses *l = &source->part.losses;
    const struct {
        uint64_t n;
        const char *what;
    } kinds[] = {
        {l->n_no_time, "without a start time"},      {l->n_no_dur, "without a duration"},
        {l->n_negative, "with a negative duration"}, {l->n_overflow, "beyond 64-bit nanoseconds"},
        {l->n_unpaired, "begun or ended only"},      {l->n_broken, "that make no sense"},
    };
    uint64_t n_lost = 0;
    char text[512] = "", number[32];
    size_t len = 0;
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        if (!kinds[i].n)
            continue;
        n_lost += kinds[i].n;
        len += (size_t)snprintf(text + len, sizeof text - len, "%s%s %s", len ? ", " : "",
                                count(number, kinds[i].n), kinds[i].what);
    }
    if (n_lost == 0)
        return;
    char *space = strchr(text, ' '), total[32];
    trace_warn(loader->trace, &loader->options->sink, "%s: %.*s of %s spans%s, skipped",
               source->path, (int)(space - text), text, count(total, source->part.n_spans + n_lost),
               space);
}

/* A file that tells of several processes becomes a source a process. */
static int split_sources(struct loader *loader, struct dpro_error *err)
{
    for (size_t i = 0; i < loader->list.n; i++) {
        struct source *source = &loader->list.at[i], fresh = *source;
        struct trace_part *next = source->part.next;
        if (source->part.is_session_step && !source->part.has_rank)
            source->kind = DPRO_FILE_OTHER; /* an evaluator, a client: no part of the training */
        if (!next)
            continue;
        fresh.path = strdup(source->path);
        fresh.part = *next;
        fresh.fail = JSON_OK; /* said once, of the file */
        fresh.damage = NULL;
        source->part.next = NULL;
        free(next);
        if (!fresh.path || array_push(&loader->list, fresh) < 0) {
            free(fresh.path);
            part_fini(&fresh.part);
            return dpro_error_nomem(err);
        }
    }
    return 0;
}

/* Whether an empty file is missed: nobody misses what was said on stderr. */
static bool is_named_as_trace(const char *path)
{
    static const char *const ends[] = {".json", ".gz", ".pb", ".csv"};
    size_t length = strlen(path);
    bool named = false;
    for (size_t i = 0; i < sizeof ends / sizeof *ends && !named; i++)
        named =
            length > strlen(ends[i]) && strcasecmp(path + length - strlen(ends[i]), ends[i]) == 0;
    return named;
}

/* What reading said about each file; decides which go on. */
static int check_sources(struct loader *loader, struct dpro_error *err)
{
    for (size_t i = 0; i < loader->list.n; i++) {
        struct source *source = &loader->list.at[i];
        if (source->rc == DPRO_ENOMEM || (source->rc < 0 && source->named)) {
            *err = source->err;
            return source->rc;
        }
        if (source->rc < 0) {
            trace_warn(loader->trace, &loader->options->sink, "%s; skipped", source->err.text);
            source->kind = DPRO_FILE_OTHER;
            continue;
        }
        if (source->kind == DPRO_FILE_OTHER && source->named)
            return dpro_error_set(err, source->size_bytes ? DPRO_EFORMAT : DPRO_EEMPTY,
                                  source->size_bytes
                                      ? "%s: not a trace that dpro knows; give a PyTorch profiler "
                                        "(Kineto) or execution trace, JSON or JSON.gz, a "
                                        "TensorFlow profile (.xplane.pb), or a trace directory "
                                        "of dpro profile"
                                      : "%s: empty file; record it again",
                                  source->path);
        if (source->kind == DPRO_FILE_OTHER) {
            if (source->size_bytes == 0 && is_named_as_trace(source->path))
                trace_warn(loader->trace, &loader->options->sink,
                           "%s: empty file, left out; copy or record it again", source->path);
            continue;
        }
        if (is_damaged(source) &&
            (reader_of(source->kind)->read_json || source_is_protobuf(source)))
            warn_damage(loader, source);
        warn_losses(loader, source);
        struct trace_part *part = &source->part;
        int64_t start, end;
        if (part->n_spans && (__builtin_add_overflow(part->end_ns, part->base_ns, &end) ||
                              __builtin_add_overflow(part->start_ns, part->base_ns, &start) ||
                              !trace_time_fits(start) || !trace_time_fits(end))) {
            trace_warn(loader->trace, &loader->options->sink,
                       "%s: baseTimeNanoseconds leads beyond 64 bits, ignored", source->path);
            part->base_ns = 0;
        }
        part->start_ns += part->n_spans ? part->base_ns : 0;
        part->end_ns += part->n_spans ? part->base_ns : 0;
        if (source->kind == DPRO_FILE_XPLANE && part->n_spans == 0 && !part->cut && !part->broken)
            trace_warn(loader->trace, &loader->options->sink,
                       part->framework ? "%s: no op of a device among its %" PRIu64
                                         " events; did a program run while it was recorded?"
                                       : "%s: no TensorFlow ops among its %" PRIu64
                                         " events; was it recorded with host_tracer_level 2 or "
                                         "more?",
                       source->path, part->n_events);
        const char *framework = source->kind == DPRO_FILE_KINETO  ? "PyTorch"
                                : source->kind == DPRO_FILE_MXNET ? "MXNet"
                                                                  : NULL;
        if (framework && part->n_spans == 0)
            trace_warn(loader->trace, &loader->options->sink,
                       "%s: no %s spans among its %" PRIu64 " events; was the profiler active?",
                       source->path, framework, part->n_events);
    }
    return 0;
}

bool source_usable(const struct source *source)
{
    switch (source->kind) {
    case DPRO_FILE_KINETO:
    case DPRO_FILE_MXNET:
        return source->part.n_spans > 0;
    case DPRO_FILE_EXECUTION_TRACE:
        return source->part.et_nodes.n > 0;
    case DPRO_FILE_RECORDING:
        return source->part.recording != NULL;
    case DPRO_FILE_TRANSPORT:
    case DPRO_FILE_TRANSPORT_CSV:
        return source->part.transport != NULL;
    case DPRO_FILE_NCCL:
        return source->part.nccl != NULL;
    case DPRO_FILE_TIMELINE:
        return source->part.timeline ? source->part.timeline->runs.n > 0 : source->part.n_spans > 0;
    case DPRO_FILE_MXNET_TEXT:
    case DPRO_FILE_MXNET_SYMBOL:
        return source->part.dfg_nodes.n > 0;
    case DPRO_FILE_XPLANE:
        return source->part.n_spans > 0;
    case DPRO_FILE_RUN_METADATA:
    case DPRO_FILE_GRAPH_DEF:
        return source->part.n_spans > 0 || source->part.dfg_nodes.n > 0;
    case DPRO_FILE_OTHER:
        break;
    }
    return false;
}

bool source_is_profile(const struct source *source)
{
    return source->kind != DPRO_FILE_OTHER && source->part.n_spans > 0;
}

static const char *name_of(const struct source *source, uint32_t id)
{
    return strtab_get(&source->part.names, id);
}

/* A TensorFlow profile says when it began near its end: of one that is cut off it is not known
 * where it lies beside the others', unless dpro's recorder or a timeline knows. */
static void drop_undated(struct loader *loader)
{
    bool dated = false, helped = false;
    for (size_t i = 0; i < loader->list.n; i++) {
        const struct source *source = &loader->list.at[i];
        dated |= source->kind == DPRO_FILE_XPLANE && time_on_epoch(source->part.start_ns);
        helped |= source->part.recording || source->part.timeline;
    }
    for (size_t i = 0; dated && !helped && i < loader->list.n; i++) {
        struct source *source = &loader->list.at[i];
        if (source->kind != DPRO_FILE_XPLANE || !source_is_profile(source) ||
            time_on_epoch(source->part.start_ns) || source->rank < 0)
            continue;
        trace_warn(
            loader->trace, &loader->options->sink,
            "%s: does not say when it began, as the other ranks' profiles do, so that rank %d "
            "can't be put beside them; it is left out; copy or record the file again",
            source->path, source->rank);
        source->rank = -1;
    }
}

/* Two files that cannot be of one job. */
static int check_one_job(const struct loader *loader, struct dpro_error *err)
{
    const struct source *sized = NULL, *backed = NULL, *timed = NULL;
    int64_t start = 0, end = 0;
    for (size_t i = 0; i < loader->list.n; i++) {
        const struct source *source = &loader->list.at[i];
        const struct trace_part *part = &source->part;
        if (!source_is_profile(source))
            continue;
        if (part->world_size && sized && sized->part.world_size != part->world_size)
            return dpro_error_set(err, DPRO_EFORMAT,
                                  "%s and %s: of different jobs (world size %d and %d); give one "
                                  "job's files only",
                                  sized->path, source->path, sized->part.world_size,
                                  part->world_size);
        if (part->world_size && !sized)
            sized = source;
        const char *backend = name_of(source, part->backend);
        if (*backend && backed && strcmp(name_of(backed, backed->part.backend), backend) != 0)
            return dpro_error_set(err, DPRO_EFORMAT,
                                  "%s and %s: of different jobs (backend %s and %s); give one "
                                  "job's files only",
                                  backed->path, source->path, name_of(backed, backed->part.backend),
                                  backend);
        if (*backend && !backed)
            backed = source;
        if (!time_on_epoch(part->start_ns))
            continue;
        if (timed && timed->rank != source->rank &&
            (part->start_ns - end > MAX_GAP_NS || start - part->end_ns > MAX_GAP_NS))
            return dpro_error_set(
                err, DPRO_EFORMAT,
                "%s and %s: recorded %" PRId64
                " minutes apart, so not of one run; give one run's files only",
                timed->path, source->path,
                (part->start_ns > end ? part->start_ns - end : start - part->end_ns) / 60000000000);
        if (!timed || part->start_ns < start)
            start = part->start_ns;
        if (!timed || part->end_ns > end)
            end = part->end_ns;
        if (!timed)
            timed = source;
    }
    return 0;
}

static int merge_names(struct loader *loader, struct dpro_error *err)
{
    struct strtab *names = &loader->trace->names;
    if (strtab_add(names, "", 0) == STRTAB_FULL)
        return dpro_error_nomem(err);
    for (size_t i = 0; i < loader->list.n; i++) {
        struct source *source = &loader->list.at[i];
        const struct strtab *from = &source->part.names;
        if (!source_usable(source) || (source->rank == -1 && !source_is_everyones(source)))
            continue;
        source->names = malloc((from->n + (size_t)1) * sizeof *source->names);
        if (!source->names)
            return dpro_error_nomem(err);
        source->names[0] = 0;
        if (from->n > NO_ID - names->n || strtab_reserve(names, names->n + from->n) < 0)
            return dpro_error_nomem(err);
        for (uint32_t id = 0; id < from->n; id++) {
            source->names[id] = strtab_copy(names, from, id);
            if (source->names[id] == STRTAB_FULL)
                return dpro_error_nomem(err);
        }
        strtab_fini(&source->part.names);
    }
    return 0;
}

static int by_rank(const void *a, const void *b)
{
    const struct source *x = *(struct source *const *)a, *y = *(struct source *const *)b;
    if (x->rank != y->rank) /* servers last */
        return (unsigned)x->rank < (unsigned)y->rank ? -1 : 1;
    if (source_is_profile(x) != source_is_profile(y))
        return source_is_profile(x) ? -1 : 1;
    if (source_is_profile(x) && x->part.start_ns != y->part.start_ns)
        return x->part.start_ns < y->part.start_ns ? -1 : 1;
    return (x > y) - (x < y);
}

/* Copies what a file knows of its rank and of process groups, where nothing is known yet. */
static int describe_from(struct loader *loader, const struct source *source,
                         struct trace_rank *rank, struct dpro_error *err)
{
    const struct trace_part *part = &source->part;
    if (!rank->world_size)
        rank->world_size = part->world_size;
    if (!rank->pid)
        rank->pid = part->pid;
    if (!rank->host)
        rank->host = source->names[part->host];
    if (!rank->backend)
        rank->backend = source->names[part->backend];
    if (rank->n_groups || part->groups.n == 0)
        return 0;
    rank->groups = arena_array(&loader->trace->arena, part->groups.n, sizeof *rank->groups);
    if (!rank->groups)
        return dpro_error_nomem(err);
    for (size_t g = 0; g < part->groups.n; g++) {
        struct trace_group group = part->groups.at[g];
        const int32_t *ranks = group.ranks;
        group.name = source->names[group.name];
        group.description = source->names[group.description];
        group.ranks = arena_array(&loader->trace->arena, group.n_ranks, sizeof *group.ranks);
        if (!group.ranks)
            return dpro_error_nomem(err);
        if (group.n_ranks)
            memcpy(group.ranks, ranks, group.n_ranks * sizeof *ranks);
        rank->groups[rank->n_groups++] = group;
    }
    return 0;
}

static int describe_rank(struct loader *loader, struct rank_job *job, struct dpro_error *err)
{
    struct trace_rank *rank = job->rank;
    int rc = 0;
    for (size_t w = 0; w < job->n_windows && rc == 0; w++)
        rc = describe_from(loader, job->windows[w], rank, err);
    for (size_t i = 0; i < loader->list.n && rc == 0; i++) {
        struct source *source = &loader->list.at[i];
        if (source->kind != DPRO_FILE_RECORDING || source->rank != rank->rank || rank->recording)
            continue;
        rc = describe_from(loader, source, rank, err);
        rank->recording = source->part.recording;
        source->part.recording = NULL;
        recording_rename(rank->recording, source->names);
    }
    if (!rank->pid && job->execution_trace)
        rank->pid = job->execution_trace->part.pid;
    return rc;
}

static void advise_huge(void *at, size_t bytes)
{
    enum { PAGE = 1 << 12 };
    size_t head = (size_t) - (uintptr_t)at & (PAGE - 1);
    if (at && bytes >= 16 << 20)
        madvise((char *)at + head, (bytes - head) & ~(size_t)(PAGE - 1), MADV_HUGEPAGE);
}

/* Makes room for all that rank_build fills in; the arena is not for several threads. */
static int make_room(struct loader *loader, struct rank_job *job, struct dpro_error *err)
{
    struct arena *arena = &loader->trace->arena;
    struct trace_rank *rank = job->rank;
    uint64_t n_spans = 0, n_details = 0, n_links = 0, n_tracks = 0;
    size_t n_windows = 0;
    for (size_t w = 0; w < job->n_windows; w++) {
        const struct trace_part *part = &job->windows[w]->part;
        n_windows += part->cuts.n ? part->cuts.n : 1;
        n_spans += part->n_spans;
        n_details += part->details.n;
        n_tracks += part->tracks.n;
        n_links += part->links.n;
    }
    if (n_windows > MAX_WINDOWS)
        return dpro_error_set(err, DPRO_EFORMAT, "%s: %zu recordings of rank %d, more than %d",
                              job->windows[0]->path, n_windows, rank->rank, MAX_WINDOWS);
    size_t n_fused = loader->n_timeline_runs * FUSION_SPANS; /* of Horovod's thread */
    n_spans += n_fused;
    n_details += n_fused;
    n_tracks += n_fused > 0;
    for (size_t i = 0; i < loader->list.n; i++) { /* of BytePS, each on a track at worst */
        const struct source *source = &loader->list.at[i];
        if (source->rank != rank->rank || !source->part.transport)
            continue;
        rank->max_exchanges += byteps_n_exchanges(source->part.transport);
    }
    n_spans += rank->max_exchanges;
    n_details += rank->max_exchanges;
    n_tracks += rank->max_exchanges;
    if (n_spans >= NO_ID || n_details >= NO_ID || n_links >= NO_ID || n_tracks >= NO_ID)
        return dpro_error_set(err, DPRO_EFORMAT,
                              "%s: rank %d: more than 4 billion spans; give fewer files",
                              job->windows[0]->path, rank->rank);
    const struct trace_part *et = job->execution_trace ? &job->execution_trace->part : NULL;
    const struct trace_part *dfg = job->graph ? &job->graph->part : NULL;
    /* not cleared: pages are taken as they are filled, while the readers' blocks are given back */
    rank->spans = arena_alloc(arena, n_spans * sizeof *rank->spans);
    advise_huge(rank->spans, n_spans * sizeof *rank->spans);
    rank->details = arena_alloc(arena, n_details * sizeof *rank->details);
    rank->links = arena_alloc(arena, n_links * sizeof *rank->links);
    rank->tracks = arena_array(arena, n_tracks, sizeof *rank->tracks);
    rank->windows = arena_array(arena, n_windows, sizeof *rank->windows);
    rank->et_nodes = arena_alloc(arena, (et ? et->et_nodes.n : 0) * sizeof *rank->et_nodes);
    rank->et_tensors = arena_alloc(arena, (et ? et->et_tensors.n : 0) * sizeof *rank->et_tensors);
    rank->dfg_nodes = arena_alloc(arena, (dfg ? dfg->dfg_nodes.n : 0) * sizeof *rank->dfg_nodes);
    rank->dfg_inputs = arena_alloc(arena, (dfg ? dfg->dfg_inputs.n : 0) * sizeof *rank->dfg_inputs);
    if (!rank->spans || !rank->details || !rank->links || !rank->tracks || !rank->windows ||
        !rank->et_nodes || !rank->et_tensors || !rank->dfg_nodes || !rank->dfg_inputs)
        return dpro_error_nomem(err);
    for (size_t w = 0; w < job->n_windows; w++) {
        const struct source *source = job->windows[w];
        const struct trace_part *part = &source->part;
        struct trace_window window = {.file = (uint32_t)(source - loader->list.at),
                                      .start_ns = part->start_ns,
                                      .end_ns = part->end_ns,
                                      .whole_start_ns = part->whole_start_ns,
                                      .whole_end_ns = part->whole_end_ns,
                                      .external_is_op = part->external_is_op};
        for (size_t c = 0; c < part->cuts.n; c++) {
            window.start_ns = part->cuts.at[c].start_ns + part->base_ns;
            window.end_ns = part->cuts.at[c].end_ns + part->base_ns;
            window.whole_start_ns = part->cuts.at[c].whole_start_ns;
            window.whole_end_ns = part->cuts.at[c].whole_end_ns;
            rank->windows[rank->n_windows++] = window;
        }
        if (part->cuts.n == 0)
            rank->windows[rank->n_windows++] = window;
    }
    return 0;
}

/* What says what an executor ran rather than when. */
static bool tells_structure(const struct source *source)
{
    return source->kind == DPRO_FILE_EXECUTION_TRACE || source->part.dfg_nodes.n > 0;
}

/* The graph that ran is better than the one it was made from. */
static struct source *better_graph(struct source *graph, struct source *other)
{
    bool better = graph && graph->kind == DPRO_FILE_GRAPH_DEF && other->kind != graph->kind;
    better |= graph && graph->part.is_mirrored && !other->part.is_mirrored;
    return !graph || better ? other : graph;
}

/* MXNet's workers all run one graph, which may be no rank's. */
static void find_everyones_graph(struct loader *loader, struct rank_job *job)
{
    if (job->rank->rank < 0 || job->windows[0]->kind != DPRO_FILE_MXNET)
        return;
    for (size_t i = 0; i < loader->list.n; i++)
        if (source_is_everyones(&loader->list.at[i]))
            job->graph = better_graph(job->graph, &loader->list.at[i]);
}

static int check_windows(const struct rank_job *job, struct dpro_error *err)
{
    for (size_t w = 1; w < job->n_windows; w++) {
        const struct source *a = job->windows[w - 1], *b = job->windows[w];
        if (a->part.pid && b->part.pid && a->part.pid != b->part.pid)
            return dpro_error_set(err, DPRO_EFORMAT,
                                  "%s and %s: both of rank %d, by different processes (%" PRIu64
                                  " and %" PRIu64 "), so of two runs; give one run's files only",
                                  a->path, b->path, job->rank->rank, a->part.pid, b->part.pid);
        if (b->part.start_ns < a->part.end_ns)
            return dpro_error_set(err, DPRO_EFORMAT,
                                  "%s and %s: both of rank %d and overlapping in time; give one of "
                                  "them, or tell the ranks apart with --rank-regex",
                                  a->path, b->path, job->rank->rank);
    }
    return 0;
}

static void build_item(void *arg, size_t item)
{
    rank_build(&((struct rank_job *)arg)[item]);
}

/* Ops that are in no node of the graph: of another run, or of a function whose graph is not here.
 */
static void warn_unmatched(struct loader *loader, const struct rank_job *job)
{
    char some[32], all[32], process[NET_PROCESS_TEXT];
    net_process_format(process, job->rank->rank);
    if (job->n_node_spans > 0)
        log_line(&loader->options->sink, DPRO_LOG_DEBUG, "%s: %s of %s ops of %s are nodes of it",
                 job->graph->path, count(some, job->n_node_spans - job->n_unmatched),
                 count(all, job->n_node_spans), process);
    if (job->n_unmatched == 0)
        return;
    if (job->n_unmatched == job->n_node_spans)
        trace_warn(loader->trace, &loader->options->sink,
                   "%s: none of the %s ops of %s's profile is a node of this graph; are both "
                   "of one run? What waits for what is read off the timeline",
                   job->graph->path, count(all, job->n_node_spans), process);
    else
        trace_warn(loader->trace, &loader->options->sink,
                   "%s: %s of %s ops of %s's profile are no nodes of this graph (first: %s); "
                   "what those wait for is not known",
                   job->graph->path, count(some, job->n_unmatched), count(all, job->n_node_spans),
                   process, strtab_get(&loader->trace->names, job->first_unmatched));
}

/* Said once: MXNet runs many ops as one where it is not told otherwise. */
static void warn_bulks(struct loader *loader, const struct rank_job *jobs, size_t n_jobs)
{
    char some[32], all[32];
    size_t i = 0;
    while (i < n_jobs && jobs[i].n_bulks == 0)
        i++;
    if (i < n_jobs)
        trace_warn(loader->trace, &loader->options->sink,
                   "%s: %s of %s ops of rank %d are bulks of several nodes of the graph, each "
                   "replayed as one op; MXNET_EXEC_BULK_EXEC_TRAIN=0 shows the nodes apart",
                   jobs[i].windows[0]->path, count(some, jobs[i].n_bulks),
                   count(all, jobs[i].n_node_spans), jobs[i].rank->rank);
}

/* Said once: a profile of TensorFlow's says when ops ran, not why. */
static void warn_no_graph(struct loader *loader, const struct rank_job *jobs, size_t n_jobs)
{
    size_t n_without = 0, n_profiles = 0, first = 0;
    for (size_t i = 0; i < n_jobs; i++) {
        if (jobs[i].n_windows == 0 || jobs[i].windows[0]->part.framework ||
            jobs[i].windows[0]->kind != DPRO_FILE_XPLANE)
            continue;
        n_profiles++;
        if (!jobs[i].graph && n_without++ == 0)
            first = i;
    }
    if (n_without)
        trace_warn(loader->trace, &loader->options->sink,
                   "%s: no graph beside %zu of %zu profiles: what waits for what is read off the "
                   "timeline; add the RunMetadata of %s for exact dependencies",
                   jobs[first].windows[0]->path, n_without, n_profiles,
                   jobs[first].rank->in_session
                       ? "one of the session's runs (FULL_TRACE, output_partition_graphs)"
                       : "the function's first call (context.export_run_metadata)");
}

static int build_ranks(struct loader *loader, struct dpro_error *err)
{
    struct dpro_trace *trace = loader->trace;
    struct source **sorted = calloc(loader->list.n + 1, sizeof *sorted);
    struct rank_job *jobs = calloc(loader->list.n + 1, sizeof *jobs);
    size_t n = 0, n_jobs = 0;
    int rc = sorted && jobs ? 0 : dpro_error_nomem(err);
    for (size_t i = 0; rc == 0 && i < loader->list.n; i++) {
        const struct timeline *timeline = loader->list.at[i].part.timeline;
        loader->n_timeline_runs += timeline ? timeline->runs.n : 0;
        if (source_usable(&loader->list.at[i]) && loader->list.at[i].rank != -1 &&
            (source_is_profile(&loader->list.at[i]) || tells_structure(&loader->list.at[i])))
            sorted[n++] = &loader->list.at[i];
    }
    if (rc == 0 && n)
        qsort(sorted, n, sizeof *sorted, by_rank);
    if (rc == 0) {
        trace->ranks = arena_array(&trace->arena, n, sizeof *trace->ranks);
        if (!trace->ranks)
            rc = dpro_error_nomem(err);
    }
    for (size_t i = 0, end; rc == 0 && i < n; i = end) {
        struct rank_job *job = &jobs[n_jobs];
        if (!source_is_profile(sorted[i])) { /* profiles go first: there is none */
            trace_warn(
                trace, &loader->options->sink,
                "%s: there is no profile of rank %d beside it: without times it is left out; "
                "add the profile of the same run",
                sorted[i]->path, sorted[i]->rank);
            for (end = i; end < n && sorted[end]->rank == sorted[i]->rank;)
                end++;
            continue;
        }
        job->rank = &trace->ranks[n_jobs++];
        if (sorted[i]->rank >= 0) {
            trace->n_ranks = (uint32_t)n_jobs;
        } else {
            trace->servers = &trace->ranks[trace->n_ranks];
            trace->n_servers = (uint32_t)n_jobs - trace->n_ranks;
        }
        job->rank->rank = sorted[i]->rank;
        job->rank->in_session = sorted[i]->part.is_session_step;
        job->windows = sorted + i;
        for (end = i; end < n && sorted[end]->rank == sorted[i]->rank; end++) {
            if (source_is_profile(sorted[end]))
                job->n_windows++;
            if (sorted[end]->part.dfg_nodes.n)
                job->graph = better_graph(job->graph, sorted[end]);
            if (sorted[end]->kind == DPRO_FILE_GRAPH_DEF && sorted[end]->part.dfg_nodes.n)
                job->shapes = sorted[end];
            if (sorted[end]->kind != DPRO_FILE_EXECUTION_TRACE)
                continue;
            if (!job->execution_trace)
                job->execution_trace = sorted[end];
            else
                trace_warn(trace, &loader->options->sink,
                           "%s: second execution trace of rank %d, skipped; %s is used",
                           sorted[end]->path, sorted[end]->rank, job->execution_trace->path);
        }
        job->names = &trace->names;
        if (!job->graph)
            find_everyones_graph(loader, job);
        rc = check_windows(job, err);
        if (rc == 0)
            rc = describe_rank(loader, job, err);
        if (rc == 0)
            rc = make_room(loader, job, err);
    }
    if (rc == 0) {
        parallel_for(n_jobs, loader->options->threads, build_item, jobs);
    }
    int world_size = 0;
    for (size_t i = 0; rc == 0 && i < n_jobs; i++) {
        const struct rank_job *job = &jobs[i];
        if (job->no_memory)
            rc = dpro_error_nomem(err);
        if (job->rank->world_size > world_size)
            world_size = job->rank->world_size;
        if (job->rank->rank >= world_size)
            world_size = job->rank->rank + 1;
        char a[32];
        if (job->n_duplicates)
            trace_warn(trace, &loader->options->sink,
                       "%s: %s spans written twice, one of each kept", job->windows[0]->path,
                       count(a, job->n_duplicates));
        if (job->execution_trace)
            log_line(&loader->options->sink, DPRO_LOG_DEBUG,
                     "%s: %u of %u nodes found in rank %d's profile (by %s)",
                     job->execution_trace->path, job->n_et_matched, job->n_et_with_id,
                     job->rank->rank, job->et_method ? job->et_method : "nothing");
    }
    for (size_t i = 0; rc == 0 && i < n_jobs; i++)
        warn_unmatched(loader, &jobs[i]);
    if (rc == 0)
        warn_bulks(loader, jobs, n_jobs);
    if (rc == 0)
        warn_no_graph(loader, jobs, n_jobs);
    trace->world_size = world_size;
    free(sorted);
    free(jobs);
    return rc;
}

static int list_files(struct loader *loader, struct dpro_error *err)
{
    struct dpro_trace *trace = loader->trace;
    trace->files = arena_array(&trace->arena, loader->list.n, sizeof *trace->files);
    if (!trace->files)
        return dpro_error_nomem(err);
    for (size_t i = 0; i < loader->list.n; i++) {
        const struct source *source = &loader->list.at[i];
        char *path = arena_copy_string(&trace->arena, source->path, strlen(source->path));
        if (!path)
            return dpro_error_nomem(err);
        if (source->part.framework && source_usable(source))
            trace->framework = source->part.framework;
        trace->files[trace->n_files++] = (struct dpro_file_info){
            .path = path,
            .kind = source->kind,
            .rank = source->rank < 0 ? -1 : source->rank,
            .size_bytes = source->size_bytes,
            .json_bytes = source->json_bytes,
            .n_events = source->part.n_events,
            .truncated = source->kind != DPRO_FILE_OTHER && is_damaged(source),
            .base_ns = source->part.base_ns,
            .start_ns = source->part.n_spans ? source->part.start_ns : 0,
            .end_ns = source->part.n_spans ? source->part.end_ns : 0,
        };
        if (source->kind != DPRO_FILE_OTHER)
            log_line(&loader->options->sink, DPRO_LOG_DEBUG,
                     "%s: %s, rank %d, %" PRIu64 " events, %" PRIu64 " spans", source->path,
                     reader_of(source->kind)->word, trace->files[i].rank, source->part.n_events,
                     source->part.n_spans);
    }
    return 0;
}

/* Nothing to work with: says of which file, and what to do. */
static int check_any(const struct loader *loader, const char *first_path, struct dpro_error *err)
{
    const struct source *trace_file = NULL, *log = NULL, *graph = NULL, *recorded = NULL;
    size_t n_et = 0;
    for (size_t i = 0; i < loader->list.n; i++) {
        const struct source *source = &loader->list.at[i];
        if (source_is_profile(source))
            return 0;
        if (source->part.transport && source_usable(source)) {
            if (loader->options->without_profile)
                return 0;
            log = source;
        }
        n_et += source->kind == DPRO_FILE_EXECUTION_TRACE;
        if (source->part.recording)
            recorded = source;
        if (source_is_protobuf(source) && (!graph || source->kind == DPRO_FILE_XPLANE))
            graph = source;
        if (!trace_file &&
            (source->kind == DPRO_FILE_KINETO || source->kind == DPRO_FILE_MXNET ||
             source->kind == DPRO_FILE_XPLANE || source->kind == DPRO_FILE_EXECUTION_TRACE))
            trace_file = source;
    }
    if (graph && graph->kind == DPRO_FILE_XPLANE && graph->part.framework)
        return dpro_error_set(err, DPRO_EEMPTY,
                              "%s: a profile of %s without an op of a device; record it again "
                              "while the job trains, with jax.profiler.trace",
                              graph->path,
                              strcmp(graph->part.framework, "jax") == 0 ? "JAX" : "XLA");
    if (graph && graph->kind == DPRO_FILE_XPLANE)
        return dpro_error_set(err, DPRO_EEMPTY,
                              "%s: no TensorFlow ops in it; record it again while the job trains, "
                              "with ProfilerOptions(host_tracer_level=2) or more",
                              graph->path);
    if (graph)
        return dpro_error_set(err, DPRO_EEMPTY,
                              "%s: a graph holds no times; add the profile (.xplane.pb) of the "
                              "same run",
                              graph->path);
    if (n_et == 0 && log)
        return dpro_error_set(err, DPRO_EEMPTY,
                              "%s: a transport log alone can't be replayed; add the profile of the "
                              "same run ('dpro export --net-csv' shows what is in the log)",
                              log->path);
    if (n_et)
        return dpro_error_set(err, DPRO_EEMPTY,
                              "%s: an execution trace holds no times; add the profiler's trace "
                              "(torch.profiler, export_chrome_trace) of the same run",
                              trace_file->path);
    if (trace_file)
        return dpro_error_set(err, DPRO_EEMPTY,
                              "%s: no framework's spans in it; was the profiler active while the "
                              "job trained?",
                              trace_file->path);
    if (recorded)
        return dpro_error_set(err, DPRO_EEMPTY,
                              "%s: no profile was recorded: the job ended or failed before the "
                              "steps to be profiled, as 'dpro profile' said; let it run longer, or "
                              "choose fewer steps by --warmup and --iterations",
                              recorded->path);
    return dpro_error_set(
        err, DPRO_EEMPTY,
        "%s: no trace file found in it; give what 'dpro profile' recorded, or a folder "
        "with the profiles of PyTorch, TensorFlow, MXNet or Horovod",
        first_path);
}

static int load(struct loader *loader, const char *const *paths, size_t n_paths,
                struct dpro_error *err)
{
    int rc = sources_find(&loader->list, paths, n_paths, err);
    if (rc < 0)
        return rc;
    for (size_t i = 0; i < loader->list.n; i++)
        loader->bytes_total += loader->list.at[i].size_bytes;
    parallel_for(loader->list.n, loader->options->threads, read_item, loader);
    sources_drop_copies(loader);
    if ((rc = split_sources(loader, err)) < 0 || (rc = check_sources(loader, err)) < 0 ||
        (rc = timelines_stand_alone(loader, err)) < 0 ||
        (rc = check_any(loader, paths[0], err)) < 0 || (rc = sources_find_ranks(loader, err)) < 0)
        return rc;
    sources_drop_exports(loader);
    sources_choose_attempt(loader);
    drop_undated(loader);
    if ((rc = check_one_job(loader, err)) < 0 || (rc = byteps_join(loader, err)) < 0 ||
        (rc = session_profiles_join(loader, err)) < 0 || (rc = list_files(loader, err)) < 0 ||
        (rc = merge_names(loader, err)) < 0 || (rc = build_ranks(loader, err)) < 0 ||
        (rc = epoch_build(loader->trace) < 0 ? dpro_error_nomem(err) : 0) < 0 ||
        (rc = transports_build(loader, err)) < 0 || (rc = nccl_build(loader, err)) < 0 ||
        (rc = timelines_build(loader, err)) < 0)
        return rc;
    sources_warn_recorded(loader);
    return sum_unprofiled(loader->trace, err);
}

int dpro_trace_load(const char *const *paths, size_t n_paths,
                    const struct dpro_trace_options *options, struct dpro_trace **trace,
                    struct dpro_error *err)
{
    static const struct dpro_trace_options defaults;
    struct loader loader = {.options = options ? options : &defaults};
    if (n_paths == 0)
        return dpro_error_set(err, DPRO_EUSAGE, "no trace given; name a folder or files");
    loader.trace = calloc(1, sizeof *loader.trace);
    if (!loader.trace)
        return dpro_error_nomem(err);
    int rc = load(&loader, paths, n_paths, err);
    sources_fini(&loader.list);
    if (rc < 0)
        dpro_trace_destroy(loader.trace);
    else
        *trace = loader.trace;
    return rc;
}
