/* ingest/directory.c: what is peculiar to trace directories of dpro's own: compressed copies,
 * attempts, recordings that are going on or were cut short, steps timed without a profiler. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/log.h"
#include "ingest/load.h"

static void pass_over(struct loader *loader, struct source *source, const char *why)
{
    log_line(&loader->options->sink, DPRO_LOG_DEBUG, "%s: passed over, %s", source->path, why);
    source->kind = DPRO_FILE_OTHER;
}

/* The better of two copies: the whole one, else the longer one, else the compressed one. */
static bool plain_is_better(const struct source *plain, const struct source *packed)
{
    bool damaged = plain->fail != JSON_OK || plain->damage;
    bool packed_damaged = packed->fail != JSON_OK || packed->damage;
    if (damaged != packed_damaged)
        return packed_damaged;
    return plain->part.n_events > packed->part.n_events;
}

void sources_drop_copies(struct loader *loader)
{
    for (size_t i = 0; i + 1 < loader->list.n; i++) {
        struct source *plain = &loader->list.at[i];
        size_t len = strlen(plain->path);
        for (size_t k = i + 1; k < loader->list.n; k++) {
            struct source *packed = &loader->list.at[k];
            if (strncmp(packed->path, plain->path, len) != 0)
                break; /* sorted by path: no more that begin so */
            if (strcmp(packed->path + len, ".gz") != 0 || packed->named || plain->named ||
                packed->rc < 0 || plain->rc < 0)
                continue;
            if (packed->kind != DPRO_FILE_OTHER && plain->kind != DPRO_FILE_OTHER &&
                packed->kind != plain->kind)
                continue;
            if (plain->kind == DPRO_FILE_OTHER || packed->kind == DPRO_FILE_OTHER)
                continue;
            bool better = plain_is_better(plain, packed);
            pass_over(loader, better ? packed : plain,
                      better ? "an unfinished copy of the file without .gz"
                             : "its compressed copy is taken");
        }
    }
}

void sources_drop_exports(struct loader *loader)
{
    for (size_t i = 0; i < loader->list.n; i++) {
        struct source *csv = &loader->list.at[i];
        for (size_t k = 0; k < loader->list.n && csv->kind == DPRO_FILE_TRANSPORT_CSV; k++) {
            const struct source *log = &loader->list.at[k];
            if (log->kind == DPRO_FILE_TRANSPORT && source_usable(log) && log->rank == csv->rank &&
                log->attempt == csv->attempt)
                pass_over(loader, csv, "the log itself is here");
        }
    }
}

/* How many ranks an attempt has a profile of (a log of, where that is enough), and how many it
 * should have; 0: not known. */
static int count_ranks(const struct loader *loader, int attempt, int *world_size)
{
    int n = 0;
    *world_size = 0;
    for (size_t i = 0; i < loader->list.n; i++) {
        const struct source *source = &loader->list.at[i];
        if (source->kind == DPRO_FILE_OTHER || source->attempt != attempt)
            continue;
        if (source->part.world_size > *world_size)
            *world_size = source->part.world_size;
        bool counts = source_is_profile(source) ||
                      (loader->options->without_profile && source->part.transport);
        if (!counts || !source_usable(source) || source->rank < 0)
            continue;
        bool again = false;
        for (size_t k = i; k > 0 && !again; k--) {
            const struct source *other = &loader->list.at[k - 1];
            again = other->attempt == attempt && other->rank == source->rank &&
                    (source_is_profile(other) ||
                     (loader->options->without_profile && other->part.transport)) &&
                    source_usable(other);
        }
        n += !again;
    }
    return n;
}

void sources_choose_attempt(struct loader *loader)
{
    struct dpro_trace *trace = loader->trace;
    int newest = -1, best = -1, best_ranks = -1, n_attempts = 0, world_size;
    bool whole = false;
    for (size_t i = 0; i < loader->list.n; i++)
        if (loader->list.at[i].kind != DPRO_FILE_OTHER && loader->list.at[i].attempt > newest)
            newest = loader->list.at[i].attempt;
    for (int attempt = newest; attempt >= 0;) {
        int n = count_ranks(loader, attempt, &world_size), before = -1;
        n_attempts++;
        if (!whole && (n > best_ranks || (n > 0 && n >= world_size))) {
            best = attempt;
            best_ranks = n;
            whole = n > 0 && n >= world_size;
        }
        for (size_t i = 0; i < loader->list.n; i++)
            if (loader->list.at[i].kind != DPRO_FILE_OTHER &&
                loader->list.at[i].attempt < attempt && loader->list.at[i].attempt > before)
                before = loader->list.at[i].attempt;
        attempt = before;
    }
    if (n_attempts < 2)
        return;
    trace_warn(
        trace, &loader->options->sink,
        "the job was started %d times: attempt %d, the newest with %s, is used and %s passed "
        "over; name the folder of another attempt to see that one",
        n_attempts, best, whole ? "all ranks" : "most ranks",
        n_attempts == 2 ? "the other one is" : "the others are");
    for (size_t i = 0; i < loader->list.n; i++)
        if (loader->list.at[i].attempt != best && loader->list.at[i].kind != DPRO_FILE_OTHER)
            pass_over(loader, &loader->list.at[i], "of another attempt");
}

/* What many files have in common is said once, with the first of them. */
struct common {
    uint64_t n, sum;
    const char *first;
};

static void note(struct common *common, const struct source *source, uint64_t amount)
{
    if (amount == 0)
        return;
    if (common->n++ == 0)
        common->first = source->path;
    common->sum += amount;
}

void sources_warn_recorded(struct loader *loader)
{
    struct dpro_trace *trace = loader->trace;
    const struct dpro_sink *sink = &loader->options->sink;
    struct common cut = {0}, broken = {0}, unfinished = {0};
    uint64_t n_recorded = 0, n_bad = 0, n_lost = 0, n_unknown = 0;
    for (size_t i = 0; i < loader->list.n; i++) {
        const struct source *source = &loader->list.at[i];
        if (source->kind == DPRO_FILE_OTHER)
            continue;
        note(&cut, source,
             !reader_of(source->kind)->read_json && !source_is_protobuf(source) &&
                 source->fail != JSON_OK);
        note(&broken, source, source->part.losses.n_broken_records);
    }
    for (uint32_t r = 0; r < trace->n_ranks; r++) {
        const struct recording *recording = trace->ranks[r].recording;
        n_recorded += recording != NULL;
        unfinished.n += recording && !recording->complete;
        n_bad += recording ? recording->n_broken : 0;
    }
    for (uint32_t t = 0; t < trace->n_transports; t++) {
        n_lost += trace->transports[t].n_lost;
        n_unknown += trace->transports[t].n_unknown;
    }
    if (unfinished.n > 0)
        trace_warn(trace, sink,
                   "%" PRIu64 " of %" PRIu64 " ranks had not ended their recording (the job still "
                   "runs, or ended before the last window): what there is is used",
                   unfinished.n, n_recorded);
    if (cut.n > 0)
        trace_warn(trace, sink,
                   "%s%s: ends in the middle of a record, as when a process is killed; all before "
                   "it is used",
                   cut.first, cut.n > 1 ? " and others" : "");
    if (broken.n > 0)
        trace_warn(trace, sink, "%s%s: %" PRIu64 " records or lines make no sense, skipped",
                   broken.first, broken.n > 1 ? " and others" : "", broken.sum);
    if (n_bad > 0)
        trace_warn(trace, sink, "rank.json: %" PRIu64 " entries make no sense, skipped", n_bad);
    if (n_lost > 0)
        trace_warn(trace, sink,
                   "the transport logs lost %" PRIu64 " records: raise DPRO_NET_MAX_MB, or record "
                   "fewer iterations",
                   n_lost);
    if (n_unknown > 0)
        log_line(sink, DPRO_LOG_DEBUG, "logs: %" PRIu64 " records of kinds not known here",
                 n_unknown);
}

static int compare_i64(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* The job's steps without a profiler: those that all ranks timed, each the mean over the ranks. */
int sum_unprofiled(struct dpro_trace *trace, struct dpro_error *err)
{
    ARRAY(int64_t) times = {0};
    double timing = 0, n_timing = 0;
    int status = 0;
    for (uint32_t r = 0; r < trace->n_ranks; r++) {
        const struct recording *recording = trace->ranks[r].recording;
        for (size_t s = 0; recording && s < recording->steps.n && status == 0; s++) {
            const struct recorded_step *step = &recording->steps.at[s];
            int64_t dur = step->end_ns - step->start_ns;
            if (step->window == RECORDED_TIMING) {
                timing += (double)dur;
                n_timing++;
            } else if (step->window != RECORDED_STRUCTURE) {
                status = array_push(&times, dur);
            }
        }
    }
    struct dpro_unprofiled *out = &trace->unprofiled;
    out->profiled_ns = n_timing > 0 ? llround(timing / n_timing) : -1;
    if (times.n > 0 && status == 0) {
        qsort(times.at, times.n, sizeof *times.at, compare_i64);
        double mean = 0, square = 0;
        for (size_t i = 0; i < times.n; i++)
            mean += (double)times.at[i] / (double)times.n;
        for (size_t i = 0; i < times.n; i++)
            square += ((double)times.at[i] - mean) * ((double)times.at[i] - mean);
        out->n_steps = times.n < UINT32_MAX ? (uint32_t)times.n : UINT32_MAX;
        out->mean_ns = llround(mean);
        out->median_ns = times.at[times.n / 2];
        if (times.n % 2 == 0)
            out->median_ns -= (times.at[times.n / 2] - times.at[times.n / 2 - 1]) / 2;
        out->std_ns = times.n > 1 ? llround(sqrt(square / (double)(times.n - 1))) : -1;
    }
    array_fini(&times);
    return status < 0 ? dpro_error_nomem(err) : 0;
}
