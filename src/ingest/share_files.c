/* Files and ranks between the processes that read a trace. */

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ingest/load.h"
#include "ingest/rank_job.h"

/* ---- what travels ---- */

#define OF_SOURCE(first, last) PACKED_TO(struct source, first, last)
#define SOURCE_TEXT(member)    PACKED_TEXT(struct source, member)

static const struct packed of_found[] = {
    SOURCE_TEXT(path),           OF_SOURCE(named, named),
    OF_SOURCE(attempt, attempt), OF_SOURCE(size_bytes, size_bytes),
    OF_SOURCE(ends, ends),       PACKED_LAST};

/* A hash of begin and end, where files of one job and size differ; 0: it can't be read. */
static uint64_t hash_ends(const struct source *source)
{
    enum { END = 4096 };
    uint64_t words[END / sizeof(uint64_t)], hash = 0, from[] = {0, source->size_bytes - END};
    int fd = mem_keep_fd(open(source->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
    if (fd < 0)
        return 0;
    for (int i = 0; i < 1 + (source->size_bytes > END); i++) {
        memset(words, 0, sizeof words);
        ssize_t n = pread(fd, words, END, (off_t)from[i]);
        for (ssize_t k = 0; k * (ssize_t)sizeof *words < n; k++)
            hash = map_mix(hash ^ words[k]);
    }
    mem_close_fd(fd);
    return hash | 1;
}

/* Whether the file's path names the host that this process runs on, as asked for: it is in a folder
 * hostNAME, as dpro's recorder makes it, or called NAME_... or NAME...., as profilers do. */
static bool names_host(const struct trace_build *build, const struct source *source)
{
    char folder[256] = "host";
    const char *name = folder + strlen(folder);
    gethostname(folder + strlen(folder), sizeof folder - 1 - strlen(folder));
    size_t n = strlen(name);
    for (const char *at = source->path; build->options->from_host && n > 0 && at;
         at = strchr(at, '/')) {
        at += *at == '/';
        if ((strncmp(at, folder, n + 4) == 0 && at[n + 4] == '/') ||
            (strncmp(at, name, n) == 0 && (at[n] == '_' || at[n] == '.')))
            return true;
    }
    return false;
}

static const struct packed of_group[] = {PACKED_LENT(struct trace_group, ranks, n_ranks),
                                         PACKED_LAST};

/* All of a profile but its spans and what is joined to them. */
static const struct packed of_part[] = {OF_SOURCE(part.process, part.process),
                                        SOURCE_TEXT(part.framework),
                                        SOURCE_TEXT(part.note),
                                        OF_SOURCE(part.n_spans, part.end_ns),
                                        OF_SOURCE(part.has_record_fn, part.has_record_fn),
                                        OF_SOURCE(part.n_events, part.losses),
                                        OF_SOURCE(part.damage, part.damage),
                                        SOURCE_TEXT(part.damage.broken),
                                        PACKED_ARRAY_OF(struct source, part.groups, of_group),
                                        PACKED_LAST};

/* How reading it went. */
static const struct packed of_reading[] = {OF_SOURCE(is_copied, is_copied),
                                           OF_SOURCE(rc, fail),
                                           OF_SOURCE(fail_offset, fail_offset),
                                           OF_SOURCE(read_bytes, json_bytes),
                                           SOURCE_TEXT(damage),
                                           SOURCE_TEXT(other),
                                           PACKED_LAST};

/* What the first process found out about a file. */
static const struct packed of_use[] = {OF_SOURCE(rank, rank), OF_SOURCE(part.process, part.process),
                                       OF_SOURCE(part.base_ns, part.end_ns), PACKED_LAST};

/* Whether of_part has all that others than its rank need of a file. */
static bool is_separate(const struct source *source)
{
    const struct trace_part *part = &source->part;
    return !source->reader ||
           (source->reader->flags & READER_SEPARATE && !part->next && !part->missing &&
            part->session.cuts.n == 0 && part->dfg_nodes.n == 0);
}

/* Whether others than its rank look at it, and so the first process reads it, too. */
static bool is_copied(const struct source *source)
{
    return source->reader && source->reader->flags & READER_COPIED && !source->part.adds_spans;
}

static void copy_file(struct source *source)
{
    struct stat st;
    ssize_t n = 1;
    int fd = mem_keep_fd(open(source->path, O_RDONLY | O_CLOEXEC));
    if (fd < 0)
        return;
    if (fstat(fd, &st) == 0) {
        source->copy = mem_alloc((size_t)st.st_size + 1);
        for (; n > 0; source->n_copy += n > 0 ? (size_t)n : 0)
            n = read(fd, source->copy + source->n_copy, (size_t)st.st_size - source->n_copy);
    }
    mem_close_fd(fd);
}

static void pack_read(struct pack *pack, struct source *source, const struct reader_table *table)
{
    uint32_t reader = 0;
    bool separate = is_separate(source), holds = source_usable(source);
    source->is_copied = is_copied(source);
    while (reader < table->n && table->at[reader] != source->reader)
        reader++;
    PACK(pack, reader);
    PACK(pack, separate);
    PACK(pack, holds);
    source->reader = reader < table->n ? table->at[reader] : NULL;
    pack_struct(pack, of_reading, source);
    if (source->is_copied) {
        if (!pack->reading && !source->first_sees)
            copy_file(source);
        PACK(pack, source->part.process);
        PACK(pack, source->n_copy);
        PACK_ITEMS(pack, source->copy, source->n_copy);
    } else if (separate && source->reader) {
        pack_struct(pack, of_part, source);
        pack_strings(pack, &source->part.names);
        source->held_elsewhere = pack->reading && holds;
    } else if (!separate) {
        source->process = pack->reading ? PROCESS_NONE : source->process;
    }
}

static void pack_use(struct pack *pack, struct source *source)
{
    bool used = source->reader != NULL;
    PACK(pack, used);
    source->reader = used ? source->reader : NULL;
    pack_struct(pack, of_use, source);
}

/* What others than itself look at of a rank. */
#define OF_RANK(first, last) PACKED_TO(struct trace_rank, first, last)

static const struct packed of_window[] = {PACKED_TO(struct trace_window, start_ns, whole_end_ns),
                                          PACKED_LAST};
static const struct packed of_built[] = {PACKED_ARRAY(struct trace_rank, runs.gloo),
                                         PACKED_ARRAY(struct trace_rank, runs.nccl),
                                         OF_RANK(n_spans, n_spans),
                                         OF_RANK(n_tracks, n_tracks),
                                         OF_RANK(n_allocations, n_allocations),
                                         OF_RANK(n_et_nodes, n_et_nodes),
                                         PACKED_ITEMS(struct trace_rank, tracks, n_tracks),
                                         PACKED_LAST};
static const struct packed of_logged[] = {PACKED_ARRAY(struct rank_logged, parts),
                                          PACKED_ARRAY(struct rank_logged, moves), PACKED_LAST};

static void pack_job(struct pack *pack, struct rank_job *job)
{
    uint32_t n_warnings = (uint32_t)job->warnings.n;
    EACH_OF (struct trace_window, window, job->rank->windows, job->rank->n_windows)
        pack_struct(pack, of_window, window);
    pack_struct(pack, of_built, job->rank);
    PACK(pack, job->n_duplicates);
    PACK(pack, n_warnings);
    for (uint32_t i = 0; i < n_warnings; i++) {
        const char *text = pack->reading ? NULL : job->warnings.at[i];
        pack_text(pack, &text);
        if (pack->reading)
            array_push(&job->warnings, (char *)text);
    }
}

/* ---- who reads what ---- */

struct found_by {
    struct source source;
    int process;
    bool names_host; /* of that process */
    int again;       /* how often it was found before there: a file may be named twice */
};

static int compare_found(const struct found_by *x, const struct found_by *y)
{
    return strcmp(x->source.path, y->source.path) ?: ASCENDING(again);
}

ORDER(by_path, struct found_by, compare_found(x, y) ?: ASCENDING(process));

/* A file, and the processes of which one is to read it. */
struct files_share {
    struct source *source;
    const struct found_by *may;
    size_t n;
};
typedef ARRAY(struct files_share) share_array;

ORDER(largest_first, struct files_share,
      -COMPARE(x->source->size_bytes, y->source->size_bytes)
          ?: strcmp(x->source->path, y->source->path) ?: COMPARE(x->source, y->source));

struct dealer {
    uint64_t *bytes;  /* that each process reads */
    struct map ranks; /* rank + 1 -> the process that has files of it */
};

/* To who has files of its rank, or else has the least to read. */
static void files_deal(struct dealer *dealer, const struct files_share *share)
{
    struct source *source = share->source;
    int rank = path_rank(source->path), process = share->may->process, best_fit = -1;
    uint64_t key = rank >= 0 ? (uint64_t)rank + 1 : 0;
    uint64_t of_rank = map_or(&dealer->ranks, key, (uint64_t)PROCESS_NONE);
    EACH_OF (const struct found_by, found, share->may, share->n) {
        int fit = (uint64_t)found->process == of_rank;
        if (fit < best_fit ||
            (fit == best_fit && dealer->bytes[found->process] >= dealer->bytes[process]))
            continue;
        best_fit = fit;
        process = found->process;
    }
    if (rank >= 0)
        map_set(&dealer->ranks, key, (uint64_t)process);
    dealer->bytes[process] += source->size_bytes;
    source->process = process;
}

static void deal_all(const struct trace_build *build, share_array *shares)
{
    size_t n_processes = (size_t)processes_count(build->processes);
    struct dealer dealer = {.bytes = mem_array(n_processes, sizeof *dealer.bytes)};
    array_sort(shares, largest_first);
    EACH (const struct files_share, share, *shares)
        files_deal(&dealer, share);
    FREE_ALL(&dealer.bytes, &dealer.ranks, shares);
}

/* ---- the first process ---- */

/* As it was found, before it was read. */
static struct source unread_source(const struct source *source)
{
    return (struct source){.path = source->path,
                           .named = source->named,
                           .rank = -1,
                           .attempt = source->attempt,
                           .size_bytes = source->size_bytes,
                           .ends = source->ends,
                           .device = source->device,
                           .inode = source->inode};
}

/* A file of several processes: for those whose host it names, where that is asked for. */
static struct source one_of(struct found_by *found, size_t *n)
{
    struct source fresh = unread_source(&found->source);
    size_t n_may = 0;
    fresh.path = mem_copy_string(fresh.path);
    for (size_t i = 0; i < *n; i++)
        if (found[i].names_host)
            found[n_may++] = found[i];
    *n = n_may ? n_may : *n;
    return fresh;
}

/* Each process is told its files, in the list's order. */
static void answer_found(struct trace_build *build)
{
    struct pack pack = {0};
    EACH_ANSWERED (build->processes, helper, &pack) {
        uint64_t n = 0;
        EACH (const struct source, source, build->list)
            n += source->process == helper;
        PACK(&pack, n);
        EACH (struct source, source, build->list) {
            if (source->process != helper)
                continue;
            source->first_sees = source->inode != 0;
            pack_struct(&pack, of_found, source);
            PACK(&pack, source->first_sees);
        }
    }
}

/* One path may be a file of each machine's own. */
static int check_same(const struct found_by *found, size_t n, struct dpro_error *err)
{
    const struct found_by *first = found;
    for (size_t i = 1; i < n; i++) {
        const struct source *a = &first->source, *b = &found[i].source;
        if (a->size_bytes != b->size_bytes || (a->ends != b->ends && a->ends != 0 && b->ends != 0))
            return dpro_error_set(err, DPRO_EFORMAT,
                                  "%s: process %d of mpirun sees another file there than process "
                                  "%d; give each rank's files a path of their own",
                                  b->path, found[i].process, first->process);
        first = a->ends == 0 ? &found[i] : first;
    }
    return 0;
}

int shared_find(struct trace_build *build, int rc, struct dpro_error *err)
{
    int met = processes_meet(build->processes, err);
    if (met < 0)
        return met;
    if (rc < 0)
        sources_fini(&build->list);
    SCRATCH ARRAY(struct found_by) found = {0};
    struct arena texts = {0};
    EACH (struct source, source, build->list) {
        source->ends = hash_ends(source);
        array_add(&found, *source, 0, names_host(build, source), 0);
    }
    struct pack pack = {.arena = &texts};
    EACH_HEARD (build->processes, helper, &pack) {
        uint64_t n = 0;
        for (PACK(&pack, n); n > 0; n--) {
            struct source fresh = {.rank = -1};
            bool names = false;
            pack_struct(&pack, of_found, &fresh);
            PACK(&pack, names);
            array_add(&found, fresh, helper, names, 0);
        }
    }
    if (found.n == 0) { /* or an empty folder */
        processes_go_alone(build->processes, NULL);
        build->processes = NULL;
        return rc;
    }
    for (size_t i = 1; i < found.n; i++) {
        struct found_by *now = &found.at[i], *before = now - 1;
        bool again =
            now->process == before->process && strcmp(now->source.path, before->source.path) == 0;
        now->again = again ? before->again + 1 : 0;
    }
    array_sort(&found, by_path);
    struct source_list list = {0};
    share_array shares = {0};
    array_reserve(&list, found.n);
    rc = 0;
    for (size_t i = 0, end; i < found.n && rc == 0; i = end) {
        end = RUN_END(k, i, found.n, compare_found(&found.at[k], &found.at[i]) == 0);
        rc = check_same(found.at + i, end - i, err);
        size_t n = end - i;
        array_push(&list, one_of(found.at + i, &n));
        array_add(&shares, &list.at[list.n - 1], found.at + i, n);
    }
    deal_all(build, &shares);
    sources_fini(&build->list);
    build->list = list;
    arena_fini(&texts);
    if (rc == 0)
        answer_found(build);
    return rc;
}

/* The rank of a file by itself or its name; -1: not sure yet. */
static int rank_of(const struct trace_build *build, const struct source *source)
{
    if (build->options->rank_regex)
        return -1;
    return source->part.process.has_rank ? source->part.process.rank : path_rank(source->path);
}

/* Whether its rank is built of it. */
static bool is_joined(const struct source *source)
{
    return source_is_profile(source) ||
           (source->reader && (source->reader->describe || source->reader->join_rank) &&
            !source->part.process.of_job);
}

/* Whether it must be looked at with others' files, and the first process did not read it. */
static bool is_joint(const struct source *source)
{
    bool here = source->process == 0 || source->first_sees || source->copy;
    return source->process == PROCESS_NONE || !(is_separate(source) || (is_copied(source) && here));
}

/* The first file of which a rank is built that is not where others of the rank are, as far as is
 * known; NULL: none. */
static const struct source *find_apart(const struct trace_build *build)
{
    SCRATCH struct map processes = {0}; /* rank + 1 -> where it is built */
    const struct source *found = NULL, *unknown = NULL;
    size_t n = 0;
    EACH (const struct source, source, build->list) {
        int rank = rank_of(build, source);
        uint64_t process = (uint64_t)source->process;
        if (found || !is_joined(source))
            continue;
        n++;
        if (rank < 0)
            unknown = unknown ? unknown : source;
        else
            process = map_first(&processes, (uint64_t)rank + 1, process);
        found = process != (uint64_t)source->process ? source : NULL;
    }
    return found || n == 1 ? found : unknown;
}

/* NULL: every rank's files are in one process, and nothing is looked at across ranks. */
static const char *why_alone(struct trace_build *build)
{
    struct arena *arena = &build->trace->arena;
    EACH (const struct source, source, build->list)
        if (is_joint(source))
            return arena_format(arena, "%s: files of this kind are read together by one process",
                                source->path);
    const struct source *apart = find_apart(build);
    if (apart && build->options->rank_regex)
        return "with --rank-regex one process reads all files";
    return apart
               ? arena_format(arena, "%s: its name does not tell which other files are of its rank",
                              apart->path)
               : NULL;
}

/* As if nobody had read what others did. */
static void forget_others(struct trace_build *build)
{
    EACH (struct source, source, build->list) {
        bool is_here = source->copy || source->first_sees;
        if (source->process == 0 || (!is_here && !source->reader))
            continue;
        struct source fresh = unread_source(source);
        part_fini(&source->part);
        fresh.process = PROCESS_NONE;
        fresh.first_sees = source->first_sees;
        fresh.copy = source->copy;
        fresh.n_copy = source->n_copy;
        *source = fresh;
        if (is_here)
            continue;
        source->named = true; /* what is left without it is another job */
        source->rc = dpro_error_set(&source->err, DPRO_EIO,
                                    "%s: the first process does not see this file, but has to read "
                                    "all files, because the trace holds logs or profiles that need "
                                    "each other; copy the trace to one machine, or leave those out",
                                    source->path);
    }
}

bool shared_hear_files(struct trace_build *build)
{
    struct pack pack = {.arena = &build->trace->arena};
    EACH_HEARD (build->processes, helper, &pack)
        EACH (struct source, source, build->list)
            if (source->process == helper)
                pack_read(&pack, source, build->table);
    const char *why = why_alone(build);
    if (!why)
        return true;
    processes_go_alone(build->processes, why);
    build->processes = NULL;
    forget_others(build);
    return false;
}

void shared_answer_files(struct trace_build *build)
{
    uint32_t n_names = build->trace->names.n;
    struct pack pack = {0};
    EACH_ANSWERED (build->processes, helper, &pack) {
        PACK(&pack, n_names);
        PACK(&pack, build->has_logs);
        EACH (struct source, source, build->list) {
            if (source->process != helper)
                continue;
            pack_use(&pack, source);
            PACK_ITEMS(&pack, source->names, source->n_names);
        }
    }
    build->trace->processes = build->processes;
}

static void hear_ranks(struct trace_build *build, struct rank_job *jobs, size_t n_jobs)
{
    size_t n_elsewhere = 0;
    struct pack pack = {.arena = &build->trace->arena};
    EACH_HEARD (build->processes, helper, &pack) {
        EACH_OF (struct rank_job, job, jobs, n_jobs)
            if (job->rank->process == helper) {
                pack_job(&pack, job);
                n_elsewhere++;
            }
    }
    if (n_elsewhere == 0)
        build->processes->idle = "no rank is left";
}

void shared_answer_ranks(struct trace_build *build)
{
    struct dpro_trace *trace = build->trace;
    struct pack pack = {0};
    EACH_ANSWERED (build->processes, helper, &pack) {
        EACH_OF (struct trace_rank, rank, trace->ranks, trace->n_ranks + trace->n_servers) {
            if (rank->process != helper)
                continue;
            pack_struct(&pack, of_logged, &rank->logged);
            FREE_ALL(&rank->logged.parts, &rank->logged.moves);
        }
    }
}

/* ---- another process ---- */

bool shared_tell_found(struct trace_build *build, int rc)
{
    struct dpro_error unsaid;
    struct source_list list = {0};
    if (processes_meet(build->processes, &unsaid) < 0)
        return false;
    if (rc < 0)
        sources_fini(&build->list);
    struct pack pack = {.arena = &build->trace->arena};
    uint64_t n = build->list.n;
    if (!processes_tell(build->processes, &pack))
        return false;
    PACK(&pack, n);
    EACH (struct source, source, build->list) {
        bool names = names_host(build, source);
        source->ends = hash_ends(source);
        pack_struct(&pack, of_found, source);
        PACK(&pack, names);
    }
    if (!processes_told(build->processes, &pack))
        return false;
    for (PACK(&pack, n); n > 0; n--) {
        struct source fresh = {.rank = -1};
        pack_struct(&pack, of_found, &fresh);
        PACK(&pack, fresh.first_sees);
        fresh.path = mem_copy_string(fresh.path);
        array_push(&list, fresh);
    }
    sources_fini(&build->list);
    build->list = list;
    processes_end(&pack);
    return true;
}

bool shared_tell_files(struct trace_build *build)
{
    struct pack pack = {.arena = &build->trace->arena};
    uint32_t n_names = 0;
    if (!processes_tell(build->processes, &pack))
        return false;
    EACH (struct source, source, build->list)
        pack_read(&pack, source, build->table);
    if (!processes_told(build->processes, &pack))
        return false;
    PACK(&pack, n_names);
    PACK(&pack, build->has_logs);
    strtab_reserve(&build->trace->names, n_names);
    EACH (struct source, source, build->list) {
        pack_use(&pack, source);
        uint32_t n = source->part.names.n;
        PACK_ITEMS(&pack, source->names, n);
        for (uint32_t id = 0; source->names && id < n; id++)
            strtab_place(&build->trace->names, source->names[id], &source->part.names, id);
    }
    processes_end(&pack);
    return true;
}

static bool tell_ranks(struct trace_build *build, struct rank_job *jobs, size_t n_jobs)
{
    struct pack pack = {0};
    if (!processes_tell(build->processes, &pack))
        return false;
    EACH_OF (struct rank_job, job, jobs, n_jobs)
        pack_job(&pack, job);
    if (!processes_told(build->processes, &pack))
        return false;
    EACH_OF (struct rank_job, job, jobs, n_jobs) {
        pack_struct(&pack, of_logged, &job->rank->logged);
        logged_move_spans(job->rank);
        comm_runs_fini(&job->rank->runs);
    }
    processes_end(&pack);
    return true;
}

int shared_join_ranks(struct trace_build *build, struct rank_job *jobs, size_t n_jobs)
{
    if (dpro_processes_number(build->processes) > 0)
        return !tell_ranks(build, jobs, n_jobs);
    hear_ranks(build, jobs, n_jobs);
    return 0;
}
