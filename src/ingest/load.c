/* ingest/load.c: from paths to a trace: files are read in parallel, then joined by rank in the
 * order of their names, so that the result does not depend on who finished first. */
#include "ingest/load.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/memory.h"

#include "ingest/epoch.h"
#include "ingest/readers.h"

/* A hook that takes the build, of a row of the table: each is called once, in the rows' order. */
typedef int build_hook(struct trace_build *build, struct dpro_error *err);

static build_hook *stand_alone(const struct reader *reader)
{
    return reader->stand_alone;
}

static build_hook *complete(const struct reader *reader)
{
    return reader->complete;
}

static build_hook *join(const struct reader *reader)
{
    return reader->join;
}

static int call_all(struct trace_build *build, build_hook *(*of)(const struct reader *reader),
                    struct dpro_error *err)
{
    int rc = 0;
    for (size_t i = 0; i < build->table->n && rc == 0; i++) {
        build_hook *hook = of(build->table->at[i]);
        bool called = !hook;
        for (size_t k = 0; k < i && !called; k++)
            called = of(build->table->at[k]) == hook;
        if (!called)
            rc = hook(build, err);
    }
    return rc;
}

static bool has_profile(const struct trace_build *build)
{
    for (size_t i = 0; i < build->list.n; i++)
        if (source_is_profile(&build->list.at[i]))
            return true;
    return false;
}

static int list_files(struct trace_build *build, struct dpro_error *err)
{
    struct dpro_trace *trace = build->trace;
    trace->files = arena_array(&trace->arena, build->list.n, sizeof *trace->files);
    if (!trace->files)
        return dpro_error_nomem(err);
    for (size_t i = 0; i < build->list.n; i++) {
        const struct source *source = &build->list.at[i];
        const struct trace_part *part = &source->part;
        const struct reader *reader = source->reader;
        char *path = arena_copy_string(&trace->arena, source->path, strlen(source->path));
        if (!path)
            return dpro_error_nomem(err);
        if (reader && !trace->framework)
            trace->framework = reader->framework;
        if (part->framework && source_usable(source))
            trace->framework = part->framework;
        trace->files[trace->n_files++] = (struct dpro_file_info){
            .path = path,
            .format = reader ? reader->name : NULL,
            .chrome_trace = reader && reader->flags & READER_VIEWED,
            .rank = source->rank < 0 ? -1 : source->rank,
            .size_bytes = source->size_bytes,
            .json_bytes = source->json_bytes,
            .n_events = part->n_events,
            .truncated = reader && source_is_damaged(source),
            .base_ns = part->base_ns,
            .start_ns = part->n_spans ? part->start_ns : 0,
            .end_ns = part->n_spans ? part->end_ns : 0,
        };
        if (reader)
            log_line(&build->options->sink, DPRO_LOG_DEBUG,
                     "%s: %s, rank %d, %" PRIu64 " events, %" PRIu64 " spans", source->path,
                     reader->word, trace->files[i].rank, part->n_events, part->n_spans);
    }
    return 0;
}

/* One table of strings for the trace, from those of the parts. */
static int merge_names(struct trace_build *build, struct dpro_error *err)
{
    struct strtab *names = &build->trace->names;
    if (strtab_add(names, "", 0) == STRTAB_FULL)
        return dpro_error_nomem(err);
    for (size_t i = 0; i < build->list.n; i++) {
        struct source *source = &build->list.at[i];
        const struct strtab *from = &source->part.names;
        if (!source_usable(source) || (source->rank == -1 && !source_is_everyones(source)))
            continue;
        source->names = mem_alloc((from->n + (size_t)1) * sizeof *source->names);
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

static int load(struct trace_build *build, const char *const *paths, size_t n_paths,
                struct dpro_error *err)
{
    int rc = sources_find(&build->list, paths, n_paths, err);
    if (rc < 0 || (rc = sources_read(build, err)) < 0 || (rc = sources_check(build, err)) < 0 ||
        (!has_profile(build) && (rc = call_all(build, stand_alone, err)) < 0) ||
        (rc = sources_check_any(build, paths[0], err)) < 0 ||
        (rc = sources_find_ranks(build, err)) < 0)
        return rc;
    sources_drop_exports(build);
    sources_choose_attempt(build);
    if ((rc = sources_check_one_job(build, err)) < 0 || (rc = call_all(build, complete, err)) < 0 ||
        (rc = list_files(build, err)) < 0 || (rc = merge_names(build, err)) < 0 ||
        (rc = ranks_build(build, err)) < 0 ||
        (rc = epoch_build(build->trace) < 0 ? dpro_error_nomem(err) : 0) < 0 ||
        (rc = call_all(build, join, err)) < 0)
        return rc;
    sources_warn_cut(build);
    return 0;
}

static int load_trace(const struct reader_table *table, const char *const *paths, size_t n_paths,
                      const struct dpro_trace_options *options, struct dpro_trace **trace,
                      struct dpro_error *err)
{
    static const struct dpro_trace_options defaults;
    struct trace_build build = {.options = options ? options : &defaults, .table = table};
    if (n_paths == 0)
        return dpro_error_set(err, DPRO_EUSAGE, "no trace given; name a folder or files");
    build.trace = mem_array(1, sizeof *build.trace);
    if (!build.trace)
        return dpro_error_nomem(err);
    int rc = load(&build, paths, n_paths, err);
    sources_fini(&build.list);
    if (rc < 0)
        dpro_trace_destroy(build.trace);
    else
        *trace = build.trace;
    return rc;
}

int trace_load(const struct reader_table *table, const char *const *paths, size_t n_paths,
               const struct dpro_trace_options *options, struct dpro_trace **trace,
               struct dpro_error *err)
{
    return WITHIN_SCOPE(dpro_error_nomem(err),
                        load_trace(table, paths, n_paths, options, trace, err));
}

int dpro_trace_load(const char *const *paths, size_t n_paths,
                    const struct dpro_trace_options *options, struct dpro_trace **trace,
                    struct dpro_error *err)
{
    return trace_load(&readers, paths, n_paths, options, trace, err);
}
