/* ingest/ranks.c: whose each file is: a rank's by what it says of itself, else by its name, else by
 * its process; a server's by its role. */
#include <limits.h>
#include <regex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/error.h"
#include "ingest/load.h"

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static int rank_by_regex(const regex_t *regex, const char *path)
{
    const char *names[] = {base_name(path), path};
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

/* Where the folder above a file's begins and ends: "host0" of host0/1/trace.json. */
static size_t above_folder(const char *path, const char **at)
{
    const char *slash = strrchr(path, '/'), *end = slash;
    while (end && end > path && end[-1] != '/')
        end--;
    *at = end && end > path ? end - 1 : path;
    size_t len = 0;
    for (; *at > path && (*at)[-1] != '/'; len++)
        (*at)--;
    return end && end > path ? len : 0;
}

/* By where the folder above them is, as people count: host2 before host10. */
static int compare_hosts(const char *a, const char *b)
{
    char x[PATH_MAX], y[PATH_MAX];
    const char *at;
    size_t n = above_folder(a, &at);
    snprintf(x, sizeof x, "%.*s", (int)(at + n - a), a);
    n = above_folder(b, &at);
    snprintf(y, sizeof y, "%.*s", (int)(at + n - b), b);
    return strverscmp(x, y);
}

/* host1/0/trace.json.gz, traces_1/0/comm.json: folders named by a local rank's number, in one for
 * each host. Ranks count through them. -1: the file is in no such folder. */
static int rank_by_folder(const struct loader *loader, const struct source *source)
{
    int number = path_folder_number(source->path), rank = 0;
    const char *last = NULL; /* counted; files of one folder follow each other */
    bool several = false;
    if (number == -1)
        return -1;
    for (size_t i = 0; i < loader->list.n; i++) {
        const char *path = loader->list.at[i].path;
        int other = source_usable(&loader->list.at[i]) ? path_folder_number(path) : -1;
        if (other == -1)
            continue;
        int order = compare_hosts(path, source->path);
        several |= order != 0;
        bool again = last && path_folder_number(last) == other && compare_hosts(last, path) == 0;
        rank += !again && (order < 0 || (order == 0 && other < number));
        last = path;
    }
    return several ? rank : number;
}

/* What runs in such folders runs on that host. -1: no memory. */
static int name_host(struct source *source)
{
    const char *at;
    size_t len = above_folder(source->path, &at);
    bool says = len > 4 && (strncmp(at, "host", 4) == 0 || strncmp(at, "traces_", 7) == 0);
    if (!says || source->part.host || path_folder_number(source->path) == -1)
        return 0;
    source->part.host = strtab_add(&source->part.names, at, len);
    return source->part.host == STRTAB_FULL ? -1 : 0;
}

/* Whether both are one file under two names, by links or by being named twice. One whose names are
 * of two ranks stands for both. The devices of a file are not the same. */
static bool same_file(const struct source *a, const struct source *b, const regex_t *regex)
{
    if (a->inode == 0 || a->inode != b->inode || a->device != b->device || a->kind != b->kind)
        return false;
    if (a->part.is_device && b->part.is_device)
        return a->part.device == b->part.device;
    if (regex)
        return rank_by_regex(regex, a->path) == rank_by_regex(regex, b->path);
    if (a->part.has_rank || b->part.has_rank)
        return a->part.has_rank && b->part.has_rank && a->part.rank == b->part.rank;
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
static void drop_same_files(struct loader *loader, const regex_t *regex)
{
    const struct source *kept = NULL, *dropped = NULL;
    size_t n_dropped = 0;
    for (size_t i = 0; i < loader->list.n; i++) {
        struct source *a = &loader->list.at[i];
        for (size_t k = 0; k < i && source_usable(a); k++) {
            struct source *b = &loader->list.at[k];
            if (!source_usable(b) || !same_file(a, b, regex))
                continue;
            bool better = a->named != b->named ? a->named : is_link(b) && !is_link(a);
            struct source *worse = better ? b : a;
            if (n_dropped++ == 0) {
                kept = better ? a : b;
                dropped = worse;
            }
            worse->kind = DPRO_FILE_OTHER;
        }
    }
    if (n_dropped > 1)
        trace_warn(
            loader->trace, &loader->options->sink,
            "%s: the same file as %s, and %zu more files are there twice; each is taken once",
            dropped->path, kept->path, n_dropped - 1);
    else if (n_dropped == 1)
        trace_warn(loader->trace, &loader->options->sink, "%s: the same file as %s, taken once",
                   dropped->path, kept->path);
}

/* A number that no job's rank has is left out; the file's name may know better. */
static void drop_wild_rank(struct loader *loader, struct source *source)
{
    struct trace_part *part = &source->part;
    if (!part->has_rank || net_process_is(part->rank))
        return;
    trace_warn(loader->trace, &loader->options->sink, "%s: says it is of rank %d, which is ignored",
               source->path, part->rank);
    part->has_rank = false;
}

/* Files without a rank in their name: by process id; logs of servers by their role; else there is
 * only one rank. */
static int rank_by_process(const struct loader *loader, const struct source *source)
{
    int same_pid = -1, any = -1;
    bool one = true;
    for (size_t i = 0; i < loader->list.n; i++) {
        const struct source *other = &loader->list.at[i];
        if (!source_is_profile(other))
            continue;
        if (other->part.pid == source->part.pid && source->part.pid && same_pid < 0)
            same_pid = other->rank;
        one &= any < 0 || any == other->rank;
        any = other->rank;
    }
    int process = source->part.transport ? path_process(source->path) : -1;
    return same_pid >= 0 ? same_pid : process != -1 ? process : one ? any : -1;
}

static bool same_process(const struct source *a, const struct source *b)
{
    const struct net_transport *s = a->part.transport, *t = b->part.transport;
    return s->pid && s->pid == t->pid && strcmp(s->host, t->host) == 0;
}

/* Of a role and number there is one process; its log may have several parts. */
static void drop_second_processes(struct loader *loader)
{
    for (size_t i = 0; i < loader->list.n; i++) {
        struct source *source = &loader->list.at[i];
        for (size_t k = 0; k < i && source->rank < -1; k++) {
            const struct source *other = &loader->list.at[k];
            if (other->rank != source->rank || other->kind != source->kind ||
                other->attempt != source->attempt || !source->part.transport ||
                !other->part.transport || same_process(source, other))
                continue;
            char process[NET_PROCESS_TEXT];
            net_process_format(process, source->rank);
            trace_warn(loader->trace, &loader->options->sink,
                       "%s: a second process's log of %s, skipped; %s is used; name the file after "
                       "another number",
                       source->path, process, other->path);
            source->rank = -1;
        }
    }
}

/* MXNet writes the profile of server k to rank<k>_<name>, which says rank k: that of the worker
 * has exchanges with servers in it. */
static void tell_servers(struct loader *loader)
{
    for (size_t i = 0; i < loader->list.n; i++) {
        struct source *source = &loader->list.at[i];
        bool serves = source->kind == DPRO_FILE_MXNET && source_usable(source) &&
                      source->rank >= 0 && source->part.details.n == 0 &&
                      strncmp(base_name(source->path), "rank", 4) == 0;
        for (size_t k = 0; k < loader->list.n && serves; k++) {
            const struct source *other = &loader->list.at[k];
            char name[NET_PROCESS_TEXT];
            if (other->kind != DPRO_FILE_MXNET || other->rank != source->rank ||
                other->part.details.n == 0)
                continue;
            int len = snprintf(name, sizeof name, "server%d", source->rank);
            source->rank = net_process_in(name, (size_t)len);
            serves = false;
        }
    }
}

/* With DPRO_NET=all every process of the job's writes a log, launchers and helpers, too. */
static bool is_from_the_start(const struct source *source)
{
    return source->part.transport && strncmp(base_name(source->path), "net-", 4) == 0;
}

/* All workers run one graph, which may have been written once, and number tensors alike. */
bool source_is_everyones(const struct source *source)
{
    return (source->kind == DPRO_FILE_MXNET_TEXT || source->kind == DPRO_FILE_MXNET_SYMBOL) &&
           source->rank == -1 && source_usable(source);
}

/* ---- a file's devices ---- */

struct device_source {
    struct source *source;
    int number; /* of its process, where a name tells; -1 */
    bool by_process;
};

/* By process, where files give equal numbers to their devices; else by the devices' numbers. */
static int compare_devices(const void *a, const void *b)
{
    const struct device_source *x = a, *y = b;
    if (x->by_process && x->number != y->number)
        return x->number < y->number ? -1 : 1;
    int order = x->by_process ? strverscmp(x->source->path, y->source->path) : 0;
    if (order)
        return order;
    uint64_t m = x->source->part.device, n = y->source->part.device;
    return m != n ? (m < n ? -1 : 1) : strverscmp(x->source->path, y->source->path);
}

/* Ranks count through the devices of all processes. -1: no memory. */
static int number_devices(struct loader *loader, const regex_t *regex)
{
    ARRAY(struct device_source) devices = {0};
    bool by_process = regex != NULL;
    int status = 0;
    for (size_t i = 0; i < loader->list.n && status == 0; i++) {
        struct source *source = &loader->list.at[i];
        if (!source->part.is_device || !source_usable(source))
            continue;
        int number = regex ? rank_by_regex(regex, source->path) : path_rank(source->path);
        for (size_t k = 0; k < devices.n; k++)
            by_process |= devices.at[k].source->part.device == source->part.device;
        status = array_push(&devices, ((struct device_source){source, number, false}));
    }
    for (size_t k = 0; k < devices.n; k++)
        devices.at[k].by_process = by_process;
    if (devices.n > 1)
        qsort(devices.at, devices.n, sizeof *devices.at, compare_devices);
    for (size_t k = 0; k < devices.n; k++) {
        devices.at[k].source->part.has_rank = true;
        devices.at[k].source->part.rank = (int)k;
    }
    array_fini(&devices);
    return status;
}

int sources_find_ranks(struct loader *loader, struct dpro_error *err)
{
    const char *pattern = loader->options->rank_regex;
    regex_t regex;
    if (pattern) {
        int bad = regcomp(&regex, pattern, REG_EXTENDED);
        if (bad) {
            char text[128];
            regerror(bad, &regex, text, sizeof text);
            return dpro_error_set(err, DPRO_EUSAGE, "--rank-regex '%s': %s", pattern, text);
        }
        if (regex.re_nsub < 1) {
            regfree(&regex);
            return dpro_error_set(err, DPRO_EUSAGE,
                                  "--rank-regex '%s': put the rank in parentheses, e.g. "
                                  "'rank([0-9]+)'",
                                  pattern);
        }
    }
    drop_same_files(loader, pattern ? &regex : NULL);
    size_t n_profiles = 0;
    int rc = number_devices(loader, pattern ? &regex : NULL) < 0 ? dpro_error_nomem(err) : 0;
    for (size_t i = 0; i < loader->list.n; i++)
        n_profiles += source_is_profile(&loader->list.at[i]);
    for (size_t i = 0; i < loader->list.n && rc == 0; i++) {
        struct source *source = &loader->list.at[i];
        if (!source_usable(source))
            continue;
        if (source->kind == DPRO_FILE_RECORDING && source->part.recording->is_job)
            continue;
        if (pattern && !source->part.is_session_step && !source->part.is_device) {
            source->rank = rank_by_regex(&regex, source->path);
            if (source->rank < 0 && source_is_profile(source))
                rc = dpro_error_set(err, DPRO_EFORMAT,
                                    "%s: --rank-regex '%s' finds no rank in its name", source->path,
                                    pattern);
            continue;
        }
        drop_wild_rank(loader, source);
        source->rank = source->part.has_rank ? source->part.rank : path_rank(source->path);
        if (source->rank == -1) {
            source->rank = rank_by_folder(loader, source);
            if (source->rank != -1 && source_is_profile(source) && name_host(source) < 0)
                return dpro_error_nomem(err);
        }
        if (source->rank == -1 && source->kind == DPRO_FILE_TIMELINE)
            source->rank = 0; /* of Horovod the only one that writes one */
        if (source->rank == -1 && source_is_profile(source)) {
            if (source->kind == DPRO_FILE_MXNET || source->part.session)
                source->rank = path_process(source->path);
            if (source->rank == -1 && n_profiles == 1)
                source->rank = 0;
            else if (source->rank == -1)
                rc = dpro_error_set(err, DPRO_EFORMAT,
                                    "%s: cannot tell its rank from its metadata or name; use "
                                    "--rank-regex, e.g. --rank-regex 'gpu([0-9]+)'",
                                    source->path);
        }
    }
    if (pattern)
        regfree(&regex);
    tell_servers(loader);
    bool knows = false;
    for (size_t i = 0; i < loader->list.n; i++)
        knows |= loader->list.at[i].rank != -1 && is_from_the_start(&loader->list.at[i]);
    for (size_t i = 0; i < loader->list.n && rc == 0; i++) {
        struct source *source = &loader->list.at[i];
        if (source_is_profile(source) || !source_usable(source) || source->rank != -1 ||
            (source->kind == DPRO_FILE_RECORDING && source->part.recording->is_job))
            continue;
        if (source_is_everyones(source))
            continue;
        source->rank = rank_by_process(loader, source);
        if (source->rank == -1 && !(knows && is_from_the_start(source)))
            trace_warn(loader->trace, &loader->options->sink,
                       "%s: %s of no known rank, skipped; use --rank-regex%s", source->path,
                       reader_of(source->kind)->word,
                       source->part.transport ? ", or name a server's log net_server0" : "");
    }
    if (rc == 0)
        drop_second_processes(loader);
    return rc;
}
