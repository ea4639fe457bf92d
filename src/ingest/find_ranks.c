/* Whose each file is: a rank's by what it says of itself, else by its name, else by its process; a
 * server's by its role. */
#include <regex.h>
#include <sys/stat.h>

#include "ingest/load.h"

static int rank_by_regex(const regex_t *regex, const char *path)
{
    const char *names[] = {path_name(path), path};
    for (size_t i = 0; i < 2; i++) {
        regmatch_t match[2];
        if (regexec(regex, names[i], 2, match, 0) != 0 || match[1].rm_so < 0)
            continue;
        char *end;
        long rank = strtol(names[i] + match[1].rm_so, &end, 10);
        if (end == names[i] + match[1].rm_eo && match[1].rm_eo > match[1].rm_so && rank >= 0 &&
            rank < NET_MAX_PROCESSES)
            return (int)rank;
    }
    return -1;
}

/* Whether both are one file under two names, by links or by being named twice. One whose names are
 * of two ranks stands for both. The devices of a file are not the same. */
static bool same_file(const struct source *a, const struct source *b, const regex_t *regex)
{
    if (a->inode == 0 || a->inode != b->inode || a->device != b->device || a->reader != b->reader)
        return false;
    if (a->part.process.is_device && b->part.process.is_device)
        return a->part.process.device == b->part.process.device;
    if (regex)
        return rank_by_regex(regex, a->path) == rank_by_regex(regex, b->path);
    if (a->part.process.has_rank || b->part.process.has_rank)
        return a->part.process.has_rank && b->part.process.has_rank &&
               a->part.process.rank == b->part.process.rank;
    return path_rank(a->path) == path_rank(b->path) &&
           path_process(a->path) == path_process(b->path) &&
           path_folder_number(a->path) == path_folder_number(b->path);
}

static bool is_link(const struct source *source)
{
    struct stat st;
    return lstat(source->path, &st) == 0 && S_ISLNK(st.st_mode);
}

/* Each file counts once: the one that was named, else the one that is no link, else the first. */
static void drop_same_files(struct trace_build *build, const regex_t *regex)
{
    const struct source *kept = NULL, *dropped = NULL;
    size_t n_dropped = 0;
    for (size_t i = 0; i < build->list.n; i++) {
        struct source *a = &build->list.at[i];
        for (size_t k = 0; k < i && source_usable(a); k++) {
            struct source *b = &build->list.at[k];
            if (!source_usable(b) || !same_file(a, b, regex))
                continue;
            bool better = a->named != b->named ? a->named : is_link(b) && !is_link(a);
            struct source *worse = better ? b : a;
            if (n_dropped++ == 0) {
                kept = better ? a : b;
                dropped = worse;
            }
            worse->reader = NULL;
        }
    }
    if (n_dropped > 0)
        build_warn(build, "%s: the same file as %s%s, taken once", dropped->path, kept->path,
                   n_dropped > 1 ? " (and others)" : "");
}

/* A number that no job's rank has is left out; the file's name may know better. */
static void drop_wild_rank(struct trace_build *build, struct source *source)
{
    struct trace_part *part = &source->part;
    if (!part->process.has_rank || net_process_is(part->process.rank))
        return;
    build_warn(build, "%s: says it is of rank %d, which is ignored", source->path,
               part->process.rank);
    part->process.has_rank = false;
}

/* Files without a rank in their name: by process id; logs of servers by their role; else there is
 * only one rank. */
static int rank_by_process(const struct trace_build *build, const struct source *source)
{
    int same_pid = -1, any = -1;
    bool one = true;
    EACH (const struct source, other, build->list) {
        if (!source_is_profile(other))
            continue;
        if (other->part.process.pid == source->part.process.pid && source->part.process.pid &&
            same_pid < 0)
            same_pid = other->rank;
        one &= any < 0 || any == other->rank;
        any = other->rank;
    }
    int process = source->part.process.may_be_server ? path_process(source->path) : -1;
    return same_pid >= 0 ? same_pid : process != -1 ? process : one ? any : -1;
}

/* With DPRO_NET=all every process of the job's writes a log, launchers and helpers, too. */
static bool is_from_the_start(const struct source *source)
{
    return source->reader && source->reader->flags & READER_TRANSPORT &&
           text_begins(path_name(source->path), "net-");
}

/* ---- a file's devices ---- */

struct device_source {
    struct source *source;
    int number; /* of its process, where a name tells; -1 */
    bool by_process;
};

/* By process, where files give equal numbers to their devices; else by the devices' numbers. */
ORDER(compare_devices, struct device_source,
      (x->by_process ? ASCENDING(number) ?: strverscmp(x->source->path, y->source->path) : 0)
          ?: ASCENDING(source->part.process.device)
                 ?: strverscmp(x->source->path, y->source->path));

/* Ranks count through the devices of all processes. */
static void number_devices(struct trace_build *build, const regex_t *regex)
{
    SCRATCH ARRAY(struct device_source) devices = {0};
    bool by_process = regex != NULL;
    EACH (struct source, source, build->list) {
        if (!source->part.process.is_device || !source_usable(source))
            continue;
        int number = regex ? rank_by_regex(regex, source->path) : path_rank(source->path);
        for (size_t k = 0; k < devices.n; k++)
            by_process |= devices.at[k].source->part.process.device == source->part.process.device;
        array_add(&devices, source, number, false);
    }
    for (size_t k = 0; k < devices.n; k++)
        devices.at[k].by_process = by_process;
    array_sort(&devices, compare_devices);
    for (size_t k = 0; k < devices.n; k++) {
        devices.at[k].source->part.process.has_rank = true;
        devices.at[k].source->part.process.rank = (int)k;
    }
}

static int ranks_compile(const char *pattern, regex_t *regex, struct dpro_error *err)
{
    int bad = regcomp(regex, pattern, REG_EXTENDED);
    if (bad) {
        char text[128];
        regerror(bad, regex, text, sizeof text);
        return dpro_error_set(err, DPRO_EUSAGE, "--rank-regex '%s': %s", pattern, text);
    }
    if (regex->re_nsub < 1) {
        regfree(regex);
        return dpro_error_set(err, DPRO_EUSAGE,
                              "--rank-regex '%s': put the rank in parentheses, e.g. "
                              "'rank([0-9]+)'",
                              pattern);
    }
    return 0;
}

/* What the file says of itself, else its name, else its folder's: BytePS's <rank>/comm.json. */
static int rank_by_itself(struct trace_build *build, struct source *source)
{
    drop_wild_rank(build, source);
    int rank = source->part.process.has_rank ? source->part.process.rank : path_rank(source->path);
    if (rank == -1)
        rank = path_folder_number(source->path);
    if (rank == -1 && source->reader->flags & READER_RANK_0)
        rank = 0;
    if (rank == -1 && source_is_profile(source) && source->part.process.may_be_server)
        rank = path_process(source->path);
    return rank;
}

/* PyTorch's handler names a file <host>_<process id>.<time>.pt.trace.json. */
static bool is_named_by_process(const struct source *source)
{
    const struct trace_part *part = &source->part;
    return source_is_profile(source) && !part->process.has_rank && part->process.pid &&
           part->process.pid == (uint64_t)path_rank(source->path) &&
           strstr(path_name(source->path), ".pt.trace.json");
}

ORDER_OF_POINTERS(compare_paths, struct source, strverscmp(x->path, y->path));

/* Ranks of processes that only their ids tell apart count in the order of hosts and ids. */
static void number_processes(struct trace_build *build)
{
    SCRATCH ARRAY(struct source *) named = {0};
    for (size_t i = 0; i < build->list.n; i++)
        if (is_named_by_process(&build->list.at[i]))
            array_push(&named, &build->list.at[i]);
    array_sort(&named, compare_paths);
    int rank = -1;
    for (size_t i = 0; i < named.n; i++) {
        const char *path = named.at[i]->path, *dot = strchr(path_name(path), '.');
        rank += i == 0 || strncmp(path, named.at[i - 1]->path, (size_t)(dot - path) + 1) != 0;
        named.at[i]->part.process.has_rank = true;
        named.at[i]->part.process.rank = rank;
    }
    if (rank > 0)
        build_warn(build,
                   "%s: the files' names have process ids and no ranks; ranks 0 to %d are numbered "
                   "in the order of the names (--rank-regex overrules that)",
                   named.at[0]->path, rank);
}

static int64_t start_of(const struct source *source)
{
    return source->part.base_ns + source->part.start_ns;
}

static const char *host_of(const struct source *source)
{
    return strtab_get(&source->part.names, source->part.process.host);
}

static bool same_process(const struct source *a, const struct source *b)
{
    return a->part.process.pid == b->part.process.pid && strcmp(host_of(a), host_of(b)) == 0;
}

ORDER_OF_POINTERS(compare_processes, struct source,
                  strcmp(host_of(x), host_of(y))
                      ?: ASCENDING(part.process.pid) ?: COMPARE(start_of(x), start_of(y)));

/* A process that records again and again numbers its files by steps, as PyTorch's documents do it
 * (trace_7.json, trace_14.json): files of one process, none of which began before the one before
 * it was over, are of one rank whatever their numbers. */
static void number_windows(struct trace_build *build)
{
    SCRATCH ARRAY(struct source *) files = {0};
    bool windows = false;
    EACH (struct source, source, build->list)
        if (source_is_profile(source) && !source->part.process.has_rank &&
            source->part.process.pid && source->part.n_spans > 0)
            array_push(&files, source);
    array_sort(&files, compare_processes);
    for (size_t i = 1; i < files.n; i++) {
        const struct source *before = files.at[i - 1], *source = files.at[i];
        if (!same_process(before, source))
            continue;
        if (start_of(source) < before->part.base_ns + before->part.end_ns)
            return; /* of two hosts */
        windows |= path_rank(before->path) != path_rank(source->path) &&
                   path_rank_said(before->path) == path_rank_said(source->path);
    }
    int rank = -1;
    for (size_t i = 0; i < files.n && windows; i++) {
        int said = path_rank_said(files.at[i]->path);
        rank += i == 0 || !same_process(files.at[i - 1], files.at[i]);
        files.at[i]->part.process.has_rank = true;
        files.at[i]->part.process.rank = said >= 0 ? said : rank;
    }
    if (rank > 0)
        build_warn(build,
                   "%s: the files of one process count as its windows, not as ranks; ranks 0 to %d "
                   "are numbered in the order of process ids (--rank-regex overrules that)",
                   files.at[0]->path, rank);
}

/* Whether it asks other ranks for something. */
static bool part_communicates(const struct trace_part *part)
{
    bool found = part->groups.n > 0;
    for (uint32_t id = 0; id < part->names.n && !found; id++) {
        const char *name = strtab_get(&part->names, id);
        found = text_begins(name, "nccl") || text_begins(name, "gloo") ||
                text_begins(name, "c10d") || strcmp(name, "record_param_comms") == 0;
    }
    return found;
}

/* Profiles each have a rank; other files may get one by them. The number in the name of one that is
 * alone and talks to nobody counts something else. */
static int rank_profiles(struct trace_build *build, const regex_t *regex, struct dpro_error *err)
{
    size_t n_profiles = 0;
    for (size_t i = 0; i < build->list.n; i++)
        n_profiles += source_is_profile(&build->list.at[i]);
    EACH (struct source, source, build->list) {
        bool by_regex = regex && !source->part.session.is_step && !source->part.process.is_device;
        if (!source_usable(source) || source->part.process.of_job)
            continue;
        source->rank =
            by_regex ? rank_by_regex(regex, source->path) : rank_by_itself(build, source);
        if (!by_regex && n_profiles == 1 && source_is_profile(source) &&
            !source->part.process.has_rank && path_rank_said(source->path) < 0 &&
            source->rank == path_rank(source->path) && !part_communicates(&source->part))
            source->rank = 0;
        if (source->rank != -1 || !source_is_profile(source))
            continue;
        if (by_regex)
            return dpro_error_set(
                err, DPRO_EFORMAT,
                "%s: --rank-regex '%s' finds no rank in its name; leave the file out, or "
                "change it",
                source->path, build->options->rank_regex);
        if (n_profiles > 1)
            return dpro_error_set(err, DPRO_EFORMAT,
                                  "%s: cannot tell its rank from its metadata or name; use "
                                  "--rank-regex, e.g. --rank-regex 'gpu([0-9]+)'",
                                  source->path);
        source->rank = 0;
    }
    return 0;
}

static void rank_others(struct trace_build *build)
{
    bool knows = false;
    for (size_t i = 0; i < build->list.n; i++)
        knows |= build->list.at[i].rank != -1 && is_from_the_start(&build->list.at[i]);
    EACH (struct source, source, build->list) {
        if (source_is_profile(source) || !source_usable(source) || source->rank != -1 ||
            source->part.process.of_job || source_is_everyones(source))
            continue;
        source->rank = rank_by_process(build, source);
        if (source->rank == -1 && !(knows && is_from_the_start(source)))
            build_warn(build, "%s: %s of no known rank, skipped; use --rank-regex%s", source->path,
                       source->reader->word,
                       source->part.process.may_be_server ? ", or name a server's log net_server0"
                                                          : "");
    }
}

static int find_ranks(struct trace_build *build, const regex_t *regex, struct dpro_error *err)
{
    drop_same_files(build, regex);
    number_devices(build, regex);
    if (!regex) {
        number_processes(build);
        number_windows(build);
    }
    int rc = rank_profiles(build, regex, err);
    if (rc < 0)
        return rc;
    CALL_ALL(build->table, correct_ranks, build);
    rank_others(build);
    return 0;
}

int sources_find_ranks(struct trace_build *build, struct dpro_error *err)
{
    regex_t regex;
    if (!build->options->rank_regex)
        return find_ranks(build, NULL, err);
    if (ranks_compile(build->options->rank_regex, &regex, err) < 0)
        return err->code;
    int rc = WITHIN_SCOPE(DPRO_ENOMEM, find_ranks(build, &regex, err));
    regfree(&regex);
    memory_check();
    return rc;
}
