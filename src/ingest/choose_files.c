/* Which of several files that tell the same is taken: of a file and its copy, of a log and its
 * export, of a job's attempts. */

#include "ingest/load.h"

static void pass_over(struct trace_build *build, struct source *source, const char *why)
{
    log_line(&build->options->sink, DPRO_LOG_DEBUG, "%s: passed over, %s", source->path, why);
    source->reader = NULL;
}

/* The better of two copies: the whole one, else the longer one, else the compressed one. */
static bool plain_is_better(const struct source *plain, const struct source *packed)
{
    bool damaged = source_is_damaged(plain), packed_damaged = source_is_damaged(packed);
    if (damaged != packed_damaged)
        return packed_damaged;
    return plain->part.n_events > packed->part.n_events;
}

void sources_drop_copies(struct trace_build *build)
{
    for (size_t i = 0; i + 1 < build->list.n; i++) {
        struct source *plain = &build->list.at[i];
        size_t len = strlen(plain->path);
        for (size_t k = i + 1; k < build->list.n; k++) {
            struct source *packed = &build->list.at[k];
            if (strncmp(packed->path, plain->path, len) != 0)
                break; /* sorted by path: no more that begin so */
            if (strcmp(packed->path + len, ".gz") != 0 || packed->named || plain->named ||
                packed->rc < 0 || plain->rc < 0)
                continue;
            if (!plain->reader || packed->reader != plain->reader)
                continue;
            bool better = plain_is_better(plain, packed);
            pass_over(build, better ? packed : plain,
                      better ? "an unfinished copy of the file without .gz"
                             : "its compressed copy is taken");
        }
    }
}

void sources_drop_exports(struct trace_build *build)
{
    EACH (struct source, export, build->list)
        for (size_t k = 0; k < build->list.n && export->reader && export->reader->export_of; k++) {
            const struct source *log = &build->list.at[k];
            if (log->reader == export->reader->export_of && source_usable(log) &&
                log->rank == export->rank && log->attempt == export->attempt)
                pass_over(build, export, "the log itself is here");
        }
}

/* Whether a file is enough to have a rank by. */
static bool stands_for_rank(const struct trace_build *build, const struct source *source)
{
    bool log = source->reader && source->reader->flags & READER_TRANSPORT;
    return source_usable(source) && source->rank >= 0 &&
           (source_is_profile(source) || (build->options->without_profile && log));
}

/* How many ranks an attempt has, and how many it should have; 0: not known. */
static int count_ranks(const struct trace_build *build, int attempt, int *world_size)
{
    SCRATCH struct map ranks = {0};
    *world_size = 0;
    EACH (const struct source, source, build->list) {
        if (!source->reader || source->attempt != attempt)
            continue;
        *world_size = MAX(*world_size, source->part.process.world_size);
        if (stands_for_rank(build, source))
            map_set(&ranks, (uint64_t)source->rank + 1, 1);
    }
    return (int)ranks.n;
}

/* The newest attempt below one, of which there is a file; -1: none. */
static int attempt_before(const struct trace_build *build, int attempt)
{
    int newest = -1;
    EACH (const struct source, source, build->list)
        if (source->reader && source->attempt < attempt)
            newest = MAX(newest, source->attempt);
    return newest;
}

void sources_choose_attempt(struct trace_build *build)
{
    int best = -1, best_ranks = -1, n_attempts = 0, world_size;
    bool whole = false;
    for (int at = INT_MAX; (at = attempt_before(build, at)) >= 0; n_attempts++) {
        int n = count_ranks(build, at, &world_size);
        if (!whole && (n > best_ranks || (n > 0 && n >= world_size))) {
            best = at;
            best_ranks = n;
            whole = n > 0 && n >= world_size;
        }
    }
    if (n_attempts < 2)
        return;
    build_warn(
        build,
        "the job was started %d times: attempt %d, the newest with %s, is used and %s passed "
        "over; name the folder of another attempt to see that one",
        n_attempts, best, whole ? "all ranks" : "most ranks",
        n_attempts == 2 ? "the other one is" : "the others are");
    for (size_t i = 0; i < build->list.n; i++)
        if (build->list.at[i].attempt != best && build->list.at[i].reader)
            pass_over(build, &build->list.at[i], "of another attempt");
}
