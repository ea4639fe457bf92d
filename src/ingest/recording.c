/* A trace directory seen from outside: which ranks it holds and how whole they are, from their
 * rank.json and the names of their files. */
#include <errno.h>
#include <fts.h>
#include <ftw.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <dpro/recording.h>

#include "ingest/load.h"
#include "ingest/readers.h"

enum {
    MIN_FREE_BYTES =
        64 << 20, /* a small job's rank takes about 10 MiB, and the job wants to live */
};

struct folder {
    const char *path, *below; /* the whole path; what of it is below the trace directory */
    int attempt, process;     /* process: as process_in() gives it */
};

/* With DPRO_NET=all every process has a log of its own, net-<host>-<pid>.log. */
struct log {
    const char *path;
    pid_t pid; /* 0: it ran on another host */
};

struct rank {
    struct dpro_recording_rank is;
    const struct folder *folder;
    int64_t pid;
    const char *host_name, *boot_id; /* NULL: rank.json is not there */
};

struct dpro_recording {
    struct arena arena;           /* texts */
    ARRAY(struct folder) folders; /* of all processes */
    ARRAY(struct log) logs;
    ARRAY(struct rank) ranks;
};

static bool is_host(const char *name)
{
    return text_begins(name, "host") && name[4] != '\0';
}

/* What rank.json says of the rank. */
static void take_facts(struct dpro_recording *recording, struct rank *rank,
                       const struct trace_part *part)
{
    const struct recording *facts = part_payload(part, &recording_payload);
    rank->host_name =
        arena_format(&recording->arena, "%s", strtab_get(&part->names, part->process.host));
    rank->boot_id = arena_format(&recording->arena, "%s", strtab_get(&part->names, facts->boot_id));
    if (part->process.has_rank)
        rank->is.rank = part->process.rank;
    rank->is.world_size = part->process.world_size;
    rank->pid = (int64_t)part->process.pid;
    rank->is.complete = facts->complete;
    rank->is.n_warnings = facts->warnings.n;
    rank->is.n_steps = (int)facts->n_timing;
}

/* What can't be read is that rank's problem: the others may be fine. */
static void read_rank(struct dpro_recording *recording, const char *path, struct rank *rank)
{
    struct dpro_error problem;
    struct input in;
    struct json js;
    struct trace_part part = {0};
    if (input_open(&in, path, &problem) < 0) {
        rank->is.problem = arena_format(&recording->arena, "%s", problem.text);
        return;
    }
    json_init(&js, &in, 0, &problem);
    recording_reader.read_json(&js, &part, &problem);
    take_facts(recording, rank, &part);
    if (js.fail != JSON_OK) {
        rank->is.complete = 0;
        rank->is.problem = arena_format(
            &recording->arena, "%s: byte %" PRIu64 ": %s", path, json_offset(&js),
            js.fail == JSON_ENDED ? "the file ends too early" : "is not what a recorder writes");
    }
    json_fini(&js);
    part_fini(&part);
    input_close(&in);
}

static bool has_file(const char *folder, const char *name)
{
    SCRATCH char *path = mem_format("%s/%s", folder, name);
    struct stat st;
    return stat(path, &st) == 0 && st.st_size > 0;
}

/* The rank of a folder rank<R>, transport.h's number of server<K> and its kin; -1: none. */
static int process_in(const char *folder)
{
    int rank = path_numbered(folder, "rank");
    return rank >= 0 ? rank : net_process_in(folder, strlen(folder));
}

/* What a folder below the trace directory is, from its name and where it stands. An entry's
 * fts_number is the attempt it belongs to. */
static bool is_process_folder(FTSENT *at)
{
    FTSENT *host = at->fts_parent;
    return at->fts_level >= 2 && is_host(host->fts_name) && process_in(at->fts_name) != -1 &&
           (at->fts_level == 2 || (at->fts_level == 3 && host->fts_number > 0));
}

static bool leads_to_ranks(FTSENT *at)
{
    if (at->fts_level == 1 && path_numbered(at->fts_name, "attempt") > 0) {
        at->fts_number = path_numbered(at->fts_name, "attempt");
        return true;
    }
    at->fts_number = at->fts_level > 0 ? at->fts_parent->fts_number : 0;
    return at->fts_level == 0 ||
           (is_host(at->fts_name) && at->fts_level == (at->fts_parent->fts_number > 0 ? 2 : 1));
}

/* Of every process, where each has a log of its own. */
static void add_log(struct dpro_recording *recording, const FTSENT *at)
{
    char host[65] = "", prefix[80];
    gethostname(host, sizeof host - 1);
    int n = snprintf(prefix, sizeof prefix, "net-%s-", host);
    if (text_begins(at->fts_name, "net-") &&
        (text_ends(at->fts_name, ".log") || text_ends(at->fts_name, ".log.old")))
        array_add(&recording->logs,
                  arena_copy_string(&recording->arena, at->fts_path, strlen(at->fts_path)),
                  text_begins(at->fts_name, prefix) ? (pid_t)atoi(at->fts_name + n) : 0);
}

static int list_tree(struct dpro_recording *recording, FTS *tree, const char *path,
                     struct dpro_error *err)
{
    for (FTSENT *at; (at = fts_read(tree)) != NULL;) {
        if (at->fts_level == 0 && (at->fts_info == FTS_DNR || at->fts_info == FTS_NS))
            return dpro_error_set(err, DPRO_EIO, "%s: the folder can't be read: %s; choose another",
                                  path, strerror(at->fts_errno));
        if (at->fts_info != FTS_D) {
            if (at->fts_level == 1 && at->fts_info != FTS_DP)
                add_log(recording, at);
            continue;
        }
        if (is_process_folder(at)) {
            char *folder = arena_copy_string(&recording->arena, at->fts_path, strlen(at->fts_path));
            const char *below = folder + strlen(folder);
            for (int parts = at->fts_level; parts > 0; parts--) /* the last 2 or 3 names */
                while (*--below != '/')
                    continue;
            array_push(&recording->folders,
                       ((struct folder){folder, below + 1, (int)at->fts_parent->fts_number,
                                        process_in(at->fts_name)}));
            fts_set(tree, at, FTS_SKIP);
        } else if (!leads_to_ranks(at)) {
            fts_set(tree, at, FTS_SKIP);
        }
    }
    return 0;
}

static void list_folders(struct dpro_recording *recording, const char *path)
{
    char *const roots[] = {arena_copy_string(&recording->arena, path, strlen(path)), NULL};
    struct dpro_error why;
    FTS *tree = fts_open(roots, FTS_PHYSICAL | FTS_NOCHDIR, NULL);
    if (!tree)
        mem_fail();
    int rc = WITHIN_SCOPE(DPRO_ENOMEM, list_tree(recording, tree, path, &why));
    fts_close(tree);
    memory_check();
    fail_on(rc, &why);
}

/* What files in a rank's folder hold. */
static const struct {
    const char *name;
    unsigned parts;
} part_files[] = {
    {"kineto.json", DPRO_RECORDING_TIMING},
    {"xplane.pb", DPRO_RECORDING_TIMING},
    {"mxnet.json", DPRO_RECORDING_TIMING},
    {"runmeta_step0.pb", DPRO_RECORDING_TIMING | DPRO_RECORDING_ALL_RANKS},
    {"et.json", DPRO_RECORDING_STRUCTURE},
    {"net.log", DPRO_RECORDING_TRANSPORT},
    {"net.log.old", DPRO_RECORDING_TRANSPORT},
    {"nccl.log", DPRO_RECORDING_NCCL},
};

static unsigned parts_in(const char *folder)
{
    unsigned parts = 0;
    for (size_t i = 0; i < sizeof part_files / sizeof *part_files; i++) {
        char packed[32];
        snprintf(packed, sizeof packed, "%s.gz", part_files[i].name);
        if (has_file(folder, part_files[i].name) || has_file(folder, packed))
            parts |= part_files[i].parts;
    }
    return parts;
}

static void add_rank(struct dpro_recording *recording, const struct folder *folder)
{
    struct rank rank = {
        .is = {.rank = folder->process, .attempt = folder->attempt, .folder = folder->below},
        .folder = folder};
    SCRATCH char *facts = mem_format("%s/rank.json", folder->path);
    rank.is.parts = parts_in(folder->path);
    /* a folder that a rank made and put nothing into is not a recording */
    bool has_facts = access(facts, F_OK) == 0;
    if (has_facts)
        read_rank(recording, facts, &rank);
    else if (rank.is.parts & DPRO_RECORDING_TIMING) /* of a session that another rank drives */
        rank.is.complete = 1, rank.is.n_steps = -1;
    if (has_facts || rank.is.parts != 0)
        array_push(&recording->ranks, rank);
}

ORDER(by_rank, struct rank,
      ASCENDING(is.attempt) ?: ASCENDING(is.rank) ?: strcmp(x->is.folder, y->is.folder));

static void read_recording(const char *path, struct dpro_recording **out)
{
    struct dpro_recording *recording = mem_array(1, sizeof *recording);
    list_folders(recording, path);
    for (size_t i = 0; i < recording->folders.n; i++)
        if (recording->folders.at[i].process >= 0) /* else a server: no rank */
            add_rank(recording, &recording->folders.at[i]);
    array_sort(&recording->ranks, by_rank);
    *out = recording;
}

int dpro_recording_read(const char *path, struct dpro_recording **out, struct dpro_error *err)
{
    return OUTCOME(err, read_recording(path, out));
}

void dpro_recording_destroy(struct dpro_recording *recording)
{
    if (!recording)
        return;
    FREE_ALL(&recording->folders, &recording->logs, &recording->ranks);
    arena_fini(&recording->arena);
    mem_free(recording);
}

size_t dpro_recording_n_ranks(const struct dpro_recording *recording)
{
    return recording->ranks.n;
}

struct dpro_recording_rank dpro_recording_rank(const struct dpro_recording *recording, size_t index)
{
    return recording->ranks.at[index].is;
}

size_t dpro_recording_n_logs(const struct dpro_recording *recording)
{
    size_t n = 0;
    for (size_t i = 0; i < recording->logs.n; i++)
        n +=
            text_ends(recording->logs.at[i].path, ".log"); /* not .log.old, the older half of one */
    return n;
}

static bool is_dead(pid_t pid)
{
    return pid > 0 && kill(pid, 0) < 0 && errno == ESRCH;
}

/* A process of this machine that is no more: its job was cut short, and nobody will finish what it
 * began. The host's name keeps containers of one machine, which don't see each other's processes,
 * apart. */
static bool is_left_behind(const struct rank *rank)
{
    char boot_id[37], host[256] = "";
    file_read_small("/proc/sys/kernel/random/boot_id", boot_id, sizeof boot_id);
    gethostname(host, sizeof host - 1);
    return rank->pid > 0 && rank->pid <= INT32_MAX && boot_id[0] != '\0' &&
           strcmp(rank->boot_id, boot_id) == 0 && strcmp(rank->host_name, host) == 0 &&
           is_dead((pid_t)rank->pid);
}

static _Noreturn void cant_remove(const char *path)
{
    fail_with(DPRO_EIO, "%s: can't be removed: %s; choose another folder", path, strerror(errno));
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *at)
{
    (void)st, (void)type, (void)at;
    return remove(path) < 0 && errno != ENOENT ? -1 : 0;
}

static void remove_folder(const struct folder *folder)
{
    if (nftw(folder->path, remove_one, 16, FTW_DEPTH | FTW_PHYS) < 0 && errno != ENOENT)
        cant_remove(folder->path);
    SCRATCH char *up = mem_copy_string(folder->path);
    for (const char *p = folder->below; (p = strchr(p, '/')) != NULL; p++) { /* host<H> and above */
        *strrchr(up, '/') = '\0';
        if (rmdir(up) < 0)
            break; /* holds something else, too */
    }
}

/* Whether it was there. */
static bool remove_file(const char *path)
{
    bool was_there = unlink(path) == 0;
    if (!was_there && errno != ENOENT)
        cant_remove(path);
    return was_there;
}

/* Nodes that share the folder may all be asked to replace what it holds: the one that gets hold of
 * job.json does it, so that nobody removes what another one has begun. */
static void remove_job(const char *path, const struct dpro_recording *recording)
{
    SCRATCH char *job = mem_format("%s/job.json", path);
    SCRATCH char *turns = mem_format("%s/turns.json", path); /* of plans in that job */
    if (!remove_file(job))
        return;
    EACH (const struct folder, folder, recording->folders)
        remove_folder(folder);
    EACH (const struct log, log, recording->logs)
        remove_file(log->path);
    remove_file(turns);
}

static void remove_left_behind(const struct dpro_recording *recording)
{
    EACH (const struct rank, rank, recording->ranks)
        if (is_left_behind(rank))
            remove_folder(rank->folder);
    EACH (const struct log, log, recording->logs)
        if (is_dead(log->pid))
            remove_file(log->path);
}

static void clear_folder(const char *path, bool replaces)
{
    struct dpro_recording *recording;
    bool left_behind = false, has_job = has_file(path, "job.json");
    read_recording(path, &recording);
    EACH (const struct log, log, recording->logs)
        left_behind |= is_dead(log->pid);
    bool holds_something = left_behind;
    EACH (const struct rank, rank, recording->ranks) {
        bool dead = is_left_behind(rank);
        left_behind |= dead;
        holds_something |= (has_job || dead) && rank->is.parts != 0;
    }
    if (holds_something && !replaces)
        fail_with(DPRO_EUSAGE, "%s holds %s; choose another folder, or --force to replace it", path,
                  has_job ? "a recording already" : "what an earlier job recorded");
    if (has_job)
        remove_job(path, recording);
    else if (left_behind)
        remove_left_behind(recording);
    dpro_recording_destroy(recording);
}

static void check_folder(const char *path, bool replaces)
{
    struct statvfs fs;
    clear_folder(path, replaces);
    SCRATCH char *file = mem_format("%s/.dpro-XXXXXX", path);
    int fd = mkstemp(file);
    if (fd < 0)
        fail_with(DPRO_EIO, "%s: the folder can't be written to: %s; choose another", path,
                  strerror(errno));
    close(fd);
    unlink(file);
    if (statvfs(path, &fs) == 0 && (uint64_t)fs.f_bavail * fs.f_frsize < MIN_FREE_BYTES)
        fail_with(DPRO_EIO,
                  "%s: only %llu MB are free there, a recording needs %d; choose another folder",
                  path, (unsigned long long)fs.f_bavail * fs.f_frsize / 1000000,
                  MIN_FREE_BYTES / 1000000);
}

static void prepare_folder(const char *path, bool replaces)
{
    size_t first_made;
    struct dpro_error why;
    if (path[0] == '\0')
        fail_with(DPRO_EUSAGE, "the trace directory has an empty name");
    char *copy = mem_copy_string(path);
    int rc = folder_make(copy, &first_made, &why);
    if (rc == 0)
        rc = OUTCOME(&why, check_folder(path, replaces));
    if (rc < 0)
        folder_take_back(copy, first_made);
    memory_check();
    mem_free(copy);
    fail_on(rc, &why);
}

int dpro_recording_prepare(const char *path, int replaces, struct dpro_error *err)
{
    return OUTCOME(err, prepare_folder(path, replaces));
}
