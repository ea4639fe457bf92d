/* From paths to a trace: files are read in parallel, then joined by rank in the order of their
 * names, so that the result does not depend on who finished first. */
#include "ingest/load.h"

#include "base/options.h"

#include "ingest/readers.h"

#define ROW_OF(name) &name,
static const struct reader *const rows[] = {READERS(ROW_OF)};
const struct reader_table readers = {rows, sizeof rows / sizeof *rows};

static bool has_profile(const struct trace_build *build)
{
    for (size_t i = 0; i < build->list.n; i++)
        if (source_is_profile(&build->list.at[i]))
            return true;
    return false;
}

static void list_files(struct trace_build *build)
{
    struct dpro_trace *trace = build->trace;
    trace->files = arena_array(&trace->arena, build->list.n, sizeof *trace->files);
    for (size_t i = 0; i < build->list.n; i++) {
        const struct source *source = &build->list.at[i];
        const struct trace_part *part = &source->part;
        const struct reader *reader = source->reader;
        if (reader && !trace->framework)
            trace->framework = reader->framework;
        if (part->framework && source_usable(source))
            trace->framework = part->framework;
        trace->files[trace->n_files++] = (struct dpro_file_info){
            .path = arena_copy_string(&trace->arena, source->path, strlen(source->path)),
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
}

/* One table of strings for the trace, from those of the parts. */
static void merge_names(struct trace_build *build)
{
    struct strtab *names = &build->trace->names;
    strtab_add(names, "", 0);
    EACH (struct source, source, build->list) {
        const struct strtab *from = &source->part.names;
        if (!source_usable(source) || (source->rank == -1 && !source_is_everyones(source)))
            continue;
        source->names = mem_alloc((from->n + (size_t)1) * sizeof *source->names);
        source->n_names = from->n;
        source->names[0] = 0;
        if (from->n > NO_ID - names->n)
            mem_fail();
        strtab_reserve(names, names->n + from->n);
        for (uint32_t id = 0; id < from->n; id++)
            source->names[id] = strtab_copy(names, from, id);
        strtab_fini(&source->part.names);
    }
}

static void load_load(struct trace_build *build, const char *const *paths, size_t n_paths)
{
    struct dpro_error why;
    int rc = sources_find(&build->list, paths, n_paths, &why);
    if (build->processes)
        rc = shared_find(build, rc, &why);
    fail_on(rc, &why);
    sources_read(build);
    sources_check(build);
    if (!has_profile(build))
        CALL_ALL(build->table, stand_alone, build);
    sources_check_any(build, paths[0]);
    fail_on(sources_find_ranks(build, &why), &why);
    sources_drop_exports(build);
    sources_choose_attempt(build);
    sources_check_one_job(build);
    CALL_ALL(build->table, complete, build);
    list_files(build);
    merge_names(build);
    build->has_logs = transports_are_logged(build);
    if (build->processes)
        shared_answer_files(build);
    fail_on(ranks_build(build, &why), &why);
    CALL_ALL(build->table, join, build);
    logged_build(build->trace);
    if (build->processes)
        shared_answer_ranks(build);
    sources_warn_cut(build);
}

static void load_trace(const struct reader_table *table, const char *const *paths, size_t n_paths,
                       const struct dpro_job_options *options, struct dpro_trace **trace)
{
    struct dpro_job_options mine;
    struct trace_build build = {.options = &mine, .table = table};
    struct dpro_error why;
    fail_on(OPTIONS_TAKE(&mine, options, &why), &why);
    if (processes_count(build.options->processes) > 1) {
        build.processes = build.options->processes;
        build.processes->sink = build.options->sink;
    }
    if (n_paths == 0)
        fail_with(DPRO_EUSAGE, "no trace given; name a folder or files");
    build.trace = mem_array(1, sizeof *build.trace);
    load_load(&build, paths, n_paths);
    sources_fini(&build.list);
    *trace = build.trace;
}

int trace_load(const struct reader_table *table, const char *const *paths, size_t n_paths,
               const struct dpro_job_options *options, struct dpro_trace **trace,
               struct dpro_error *err)
{
    return OUTCOME(err, load_trace(table, paths, n_paths, options, trace));
}

int dpro_trace_load(const char *const *paths, size_t n_paths,
                    const struct dpro_job_options *options, struct dpro_trace **trace,
                    struct dpro_error *err)
{
    return trace_load(&readers, paths, n_paths, options, trace, err);
}

/* ---- in another process ---- */

static int load_share(struct trace_build *build, const char *const *paths, size_t n_paths)
{
    struct dpro_error unsaid; /* the first process sees the same, and says so */
    int rc = sources_find(&build->list, paths, n_paths, &unsaid);
    if (!shared_tell_found(build, rc))
        return 1;
    sources_read_of(build, 0);
    if (!shared_tell_files(build))
        return 1;
    rc = ranks_build(build, &unsaid);
    return rc < 0 ? !processes_tell(build->processes, &(struct pack){0}) : rc;
}

int trace_load_share(const char *const *paths, size_t n_paths,
                     const struct dpro_job_options *options, struct dpro_trace **trace)
{
    struct trace_build build = {
        .options = options, .table = &readers, .processes = options->processes};
    build.trace = mem_array(1, sizeof *build.trace);
    int rc = load_share(&build, paths, n_paths);
    sources_fini(&build.list);
    build.trace->processes = build.processes;
    *trace = build.trace;
    return rc;
}
