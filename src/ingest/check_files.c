/* What is wrong with the files, by themselves and together. */
#include <strings.h>

#include "ingest/load.h"

/* Ranks of one job record at about the same time; a capture of an hour is unheard of. */
static const int64_t MAX_GAP_NS = 3600LL * 1000000000;

/* 91204 -> "91,204" */
const char *count_write(char out[32], uint64_t n)
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

static void warn_damage(struct trace_build *build, const struct source *source)
{
    static const char *const reasons[] = {
        [JSON_ENDED] = "the file ends in the middle of its JSON",
        [JSON_BAD] = "no valid JSON from here on",
        [JSON_DEEP] = "nested deeper than 256",
        [JSON_IO] = "could not be read further",
    };
    const char *reason = source->damage               ? source->damage
                         : source->part.damage.broken ? source->part.damage.broken
                                                      : reasons[source->fail];
    uint64_t left = source->size_bytes > source->read_bytes
                        ? (source->size_bytes - source->read_bytes) * 100 / source->size_bytes
                        : 0;
    char lost[48] = "";
    if (left)
        snprintf(lost, sizeof lost, ", %" PRIu64 " %% of the file is lost", left);
    build_warn(build,
               "%s: byte %" PRIu64
               " of the %s: %s; the %s entries before it are whole%s; copy or record "
               "the file again",
               source->path, source->fail != JSON_OK ? source->fail_offset : source->json_bytes,
               source->reader->encoding, reason, COUNT_TEXT(source->part.n_events), lost);
}

static void warn_losses(struct trace_build *build, const struct source *source)
{
    uint64_t n_lost = source->part.losses.n_broken + source->part.losses.n_unpaired;
    if (n_lost > 0)
        build_warn(build,
                   "%s: %s of %s spans lack a begin, an end or a time that makes sense, skipped",
                   source->path, COUNT_TEXT(n_lost), COUNT_TEXT(source->part.n_spans + n_lost));
}

/* Whether an empty file is missed: nobody misses what was said on stderr. */
static bool is_named_as_trace(const char *path)
{
    const char *end = strrchr(path, '.');
    return end && end > path &&
           (strcasecmp(end, ".json") == 0 || strcasecmp(end, ".gz") == 0 ||
            strcasecmp(end, ".pb") == 0 || strcasecmp(end, ".csv") == 0);
}

/* An empty file, or one of no format; 0: it is passed over. */
static void check_unknown(struct trace_build *build, const struct source *source)
{
    if (source_is_damaged(source) && !source->other) {
        build_warn(build,
                   "%s: byte %" PRIu64 ": %s, before its format shows; it is left out; copy "
                   "or record it again",
                   source->path, source->json_bytes,
                   source->damage ?: "the file ends in the middle of its JSON");
        return;
    }
    if (source->named && source->size_bytes && source->other)
        fail_with(DPRO_EFORMAT, "%s: %s", source->path, source->other);
    if (source->named)
        fail_with(source->size_bytes ? DPRO_EFORMAT : DPRO_EEMPTY,
                  source->size_bytes ? "%s: not a trace that dpro knows; give a PyTorch profiler "
                                       "(Kineto) or execution trace, JSON or JSON.gz, a "
                                       "TensorFlow profile (.xplane.pb), or a trace directory "
                                       "of dpro profile"
                                     : "%s: empty file; record it again",
                  source->path);
    if (source->size_bytes == 0 && is_named_as_trace(source->path))
        build_warn(build, "%s: empty file, left out; copy or record it again", source->path);
}

/* Adds the base to the part's first start and last end. */
static void date_part(struct trace_build *build, const struct source *source,
                      struct trace_part *part)
{
    int64_t start, end;
    if (part->n_spans == 0)
        return;
    if (__builtin_add_overflow(part->end_ns, part->base_ns, &end) ||
        __builtin_add_overflow(part->start_ns, part->base_ns, &start) || !trace_time_fits(start) ||
        !trace_time_fits(end)) {
        build_warn(build, "%s: baseTimeNanoseconds leads beyond 64 bits, ignored", source->path);
        part->base_ns = 0;
    }
    part->start_ns += part->base_ns;
    part->end_ns += part->base_ns;
}

static const struct missing *missing_of(const struct source *source)
{
    return source->part.missing ? source->part.missing : &source->reader->missing;
}

static void check_known(struct trace_build *build, struct source *source)
{
    struct trace_part *part = &source->part;
    const struct missing *missing = missing_of(source);
    if (source_is_damaged(source) && source->reader->encoding)
        warn_damage(build, source);
    warn_losses(build, source);
    date_part(build, source, part);
    if (missing->spans && part->n_spans == 0 && !source_is_damaged(source))
        build_warn(build, "%s: no %s among its %" PRIu64 " events; %s", source->path,
                   missing->spans, part->n_events, missing->question);
}

void sources_check(struct trace_build *build)
{
    EACH (struct source, source, build->list) {
        if (source->named)
            fail_on(source->rc, &source->err);
        if (source->rc < 0) {
            build_warn(build, "%s; skipped", source->err.text);
            source->reader = NULL;
        } else if (source->reader) {
            check_known(build, source);
        } else {
            check_unknown(build, source);
        }
    }
}

/* Whether there is a profile, or what the caller takes instead. */
static bool has_times(const struct trace_build *build)
{
    EACH (const struct source, source, build->list) {
        bool log = source_usable(source) && source->reader->flags & READER_TRANSPORT;
        if (source_is_profile(source) || (log && build->options->without_profile))
            return true;
    }
    return false;
}

void sources_check_any(const struct trace_build *build, const char *first_path)
{
    if (has_times(build))
        return;
    for (size_t r = build->table->n; r-- > 0;)
        EACH (const struct source, source, build->list)
            if (source->reader == build->table->at[r] && missing_of(source)->alone)
                fail_with(DPRO_EEMPTY, "%s: %s", source->path, missing_of(source)->alone);
    EACH (const struct source, source, build->list)
        if (source->other && !source->reader)
            fail_with(DPRO_EEMPTY, "%s: no trace in it that dpro reads; %s is %s", first_path,
                      source->path, source->other);
    fail_with(DPRO_EEMPTY,
              "%s: no trace file found in it; give what 'dpro profile' recorded, or a folder "
              "with the profiles of PyTorch, TensorFlow, MXNet or Horovod",
              first_path);
}

static const char *name_of(const struct source *source, uint32_t id)
{
    return strtab_get(&source->part.names, id);
}

/* Two files that cannot be of one job. */
void sources_check_one_job(const struct trace_build *build)
{
    const struct source *sized = NULL, *backed = NULL, *timed = NULL;
    int64_t start = 0, end = 0;
    EACH (const struct source, source, build->list) {
        const struct trace_part *part = &source->part;
        if (!source_is_profile(source))
            continue;
        if (part->process.world_size && sized &&
            sized->part.process.world_size != part->process.world_size)
            fail_with(DPRO_EFORMAT,
                      "%s and %s: of different jobs (world size %d and %d); give one "
                      "job's files only",
                      sized->path, source->path, sized->part.process.world_size,
                      part->process.world_size);
        if (part->process.world_size && !sized)
            sized = source;
        const char *backend = name_of(source, part->process.backend);
        if (*backend && backed &&
            strcmp(name_of(backed, backed->part.process.backend), backend) != 0)
            fail_with(DPRO_EFORMAT,
                      "%s and %s: of different jobs (backend %s and %s); give one "
                      "job's files only",
                      backed->path, source->path, name_of(backed, backed->part.process.backend),
                      backend);
        if (*backend && !backed)
            backed = source;
        if (!time_on_epoch(part->start_ns))
            continue;
        if (timed && timed->rank != source->rank &&
            (part->start_ns - end > MAX_GAP_NS || start - part->end_ns > MAX_GAP_NS))
            fail_with(DPRO_EFORMAT,
                      "%s and %s: recorded %" PRId64
                      " minutes apart, so not of one run; give one run's files only",
                      timed->path, source->path,
                      (part->start_ns > end ? part->start_ns - end : start - part->end_ns) /
                          60000000000);
        if (!timed || part->start_ns < start)
            start = part->start_ns;
        if (!timed || part->end_ns > end)
            end = part->end_ns;
        if (!timed)
            timed = source;
    }
}

/* What many files have in common is said once, with the first of them. */
struct common {
    uint64_t n, sum;
    const char *first;
};

static void files_note(struct common *common, const struct source *source, uint64_t amount)
{
    if (amount == 0)
        return;
    if (common->n++ == 0)
        common->first = source->path;
    common->sum += amount;
}

void sources_warn_cut(struct trace_build *build)
{
    struct common cut = {0}, broken = {0}, noted = {0};
    const char *first_note = NULL;
    uint64_t first_cut = 0;
    EACH (const struct source, source, build->list) {
        if (!source->reader)
            continue;
        files_note(&noted, source, source->part.note != NULL);
        first_note = first_note ?: source->part.note;
        bool is_cut = !source->reader->encoding && source->fail != JSON_OK;
        first_cut = is_cut && cut.n == 0 ? source->fail_offset : first_cut;
        files_note(&cut, source, is_cut);
        files_note(&broken, source, source->part.losses.n_broken_records);
    }
    if (noted.n > 0)
        build_warn(build, "%s%s: %s", noted.first, noted.n > 1 ? " and others" : "", first_note);
    if (cut.n > 0)
        build_warn(
            build,
            "%s%s: byte %" PRIu64
            ": ends in the middle of a record, as when a process is killed; all before it is "
            "used",
            cut.first, cut.n > 1 ? " and others" : "", first_cut);
    if (broken.n > 0)
        build_warn(build, "%s%s: %" PRIu64 " records or lines make no sense, skipped", broken.first,
                   broken.n > 1 ? " and others" : "", broken.sum);
}
