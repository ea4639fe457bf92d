/* Makes a trace directory from the files that processes wrote. */
#include "attach/collect.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <dpro/recording.h>
#include <dpro/trace.h>

#include "base/file.h"
#include "base/writer.h"

enum { ENVIRON_MAX = 1 << 20, TAIL = 4096, PIECE = 1 << 14 };

/* A number of up to seven digits that is all of the text, else `otherwise`. */
static int collect_number(const char *text, int otherwise)
{
    size_t len = text ? strspn(text, "0123456789") : 0;
    return len > 0 && len < 8 && text[len] == '\0' ? atoi(text) : otherwise;
}

/* NAME's value among NUL-separated NAME=value texts, NULL when it is not there. */
static const char *look_up(const char *environment, size_t size, const char *name)
{
    size_t len = strlen(name);
    for (const char *p = environment; p < environment + size; p += strlen(p) + 1)
        if (strncmp(p, name, len) == 0 && p[len] == '=')
            return p + len + 1;
    return NULL;
}

/* The first of the variables that is there: launchers name the same thing differently. */
static int look_up_number(const char *environment, size_t size, const char *const names[3],
                          int otherwise)
{
    int value = otherwise;
    for (int i = 0; i < 3 && names[i] && value == otherwise; i++)
        value = collect_number(look_up(environment, size, names[i]), otherwise);
    return value;
}

static size_t read_environ(pid_t pid, char *out)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/environ", (int)pid);
    return file_read_small(path, out, ENVIRON_MAX);
}

void process_describe(struct attach_process *process)
{
    static const char *const names[][3] = {
        {"RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK"},
        {"WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE"},
        {"LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK"},
        {"GROUP_RANK", "SLURM_NODEID"}};
    SCRATCH char *environment = mem_alloc(ENVIRON_MAX);
    size_t size = read_environ(process->pid, environment);
    process->rank = look_up_number(environment, size, names[0], -1);
    process->world_size = look_up_number(environment, size, names[1], 0);
    process->local_rank = look_up_number(environment, size, names[2], -1);
    int node = look_up_number(environment, size, names[3], -1);
    if (node >= 0) {
        snprintf(process->host, sizeof process->host, "%d", node);
    } else {
        gethostname(process->host, sizeof process->host - 1);
        for (char *p = process->host; *p != '\0'; p++)
            if (*p == '/')
                *p = '_';
    }
}

/* A complete trace ends with its name; one that is being written may end with any brace. */
bool process_is_done(const struct attach_process *process)
{
    char tail[TAIL + 1];
    struct stat st;
    ssize_t n = -1;
    int fd = open(process->file, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return false;
    if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode))
        n = pread(fd, tail, TAIL, st.st_size > TAIL ? st.st_size - TAIL : 0);
    close(fd);
    while (n > 0 && (unsigned char)tail[n - 1] <= ' ')
        n--;
    return n > 0 && tail[n - 1] == '}' && memmem(tail, (size_t)n, "\"traceName\"", 11) != NULL;
}

struct collect_kept { /* a process whose trace is taken */
    struct attach_process *process;
    int rank; /* from its environment, else its trace */
    bool dropped;
};

struct collection {
    const char *path;
    const struct attach_window *window;
    const struct dpro_sink *sink;
    struct arena paths;
    ARRAY(struct collect_kept) kept;
};

/* Takes an empty folder away, and its host's when that was the last. */
static void collect_leave(const char *path, struct attach_process *process)
{
    folder_take_back(process->folder, strlen(path) + 2);
}

static void collect_drop(const struct collection *all, struct collect_kept *kept,
                         enum dpro_log_level level, const char *why)
{
    kept->dropped = true;
    unlink(kept->process->file);
    collect_leave(all->path, kept->process);
    log_line(all->sink, level, "process %d: its trace is left out: %s", kept->process->pids[0],
             why);
}

/* The process id in a file's name must not be taken for a rank. */
static void rename_plainly(struct collection *all, struct attach_process *process)
{
    const char *path = arena_format(&all->paths, "%s/kineto.json", process->folder);
    if (rename(process->file, path) == 0)
        process->file = path;
}

/* Whether anything ran, and which rank the trace says it is. */
static bool has_ops(struct collection *all, struct collect_kept *kept)
{
    struct dpro_trace *trace;
    struct dpro_job_options options = {.threads = 1};
    if (kept->rank < 0)
        rename_plainly(all, kept->process);
    const char *path = kept->process->file;
    /* in a scope of its own: where it fails, this call goes on */
    struct memory_frame *frame = memory_step_out();
    int rc = dpro_trace_load(&path, 1, &options, &trace, NULL);
    memory_step_in(frame);
    if (rc == DPRO_ENOMEM)
        mem_fail();
    if (rc < 0)
        return false;
    bool has = dpro_trace_n_spans(trace) > 0;
    if (kept->rank < 0 && dpro_trace_n_ranks(trace) == 1)
        kept->rank = dpro_trace_rank(trace, 0);
    dpro_trace_destroy(trace);
    return has;
}

static bool is_below(const struct attach_process *process, const struct attach_process *other)
{
    for (size_t i = 1; i < process->n_pids; i++)
        if (process->pids[i] == other->pids[0])
            return true;
    return false;
}

ORDER(by_pid, struct collect_kept, ASCENDING(process->pids[0]));

/* Keeps the processes that train, one a rank. */
static void collect_choose(struct collection *all)
{
    struct collect_kept *kept = all->kept.at;
    size_t n = all->kept.n;
    bool any_known = false, unclear = false;
    for (size_t i = 0; i < n; i++) {
        if (!has_ops(all, &kept[i]))
            collect_drop(all, &kept[i], DPRO_LOG_DEBUG, "it ran no ops");
        else
            any_known |= kept[i].process->rank >= 0;
    }
    for (size_t i = 0; i < n; i++) {
        if (kept[i].dropped)
            continue;
        if (any_known && kept[i].process->rank < 0)
            collect_drop(all, &kept[i], DPRO_LOG_DEBUG, "it has no rank");
        for (size_t k = 0; k < n && !kept[i].dropped; k++)
            if (k != i && !kept[k].dropped && kept[i].process->rank == kept[k].process->rank &&
                is_below(kept[i].process, kept[k].process))
                collect_drop(all, &kept[i], DPRO_LOG_DEBUG, "a process above it trains");
    }
    for (size_t i = 0; i < n; i++) {
        for (size_t k = 0; k < i; k++) {
            if (kept[i].dropped || kept[k].dropped || kept[i].rank != kept[k].rank)
                continue;
            if (any_known)
                collect_drop(
                    all, &kept[i], DPRO_LOG_WARN,
                    "another process has the same rank; are there two jobs? --pid tells them "
                    "apart");
            unclear |= !any_known;
        }
    }
    if (!unclear)
        return;
    int rank = 0;
    qsort(kept, n, sizeof *kept, by_pid);
    for (size_t i = 0; i < n; i++)
        if (!kept[i].dropped)
            kept[i].rank = rank++;
    log_line(all->sink, DPRO_LOG_WARN,
             "neither environment nor traces tell the ranks: numbered by process id");
}

static int collect_pack(const char *from, const char *to, struct dpro_error *err)
{
    char piece[PIECE];
    struct input in;
    struct writer out = {0};
    int rc = input_open(&in, from, err);
    if (rc == 0)
        rc = writer_init_path(&out, to, true, err);
    for (int64_t n = 1; rc == 0 && n > 0;) {
        n = input_read(&in, piece, PIECE, err);
        if (n < 0)
            rc = (int)n;
        else
            writer_put(&out, piece, (size_t)n);
    }
    if (rc == 0)
        rc = writer_finish(&out, err);
    if (rc == 0)
        rc = writer_commit(&out, err);
    writer_fini(&out);
    input_close(&in);
    return rc;
}

static uint64_t namespace_of(pid_t pid, const char *name)
{
    char path[64];
    struct stat st;
    snprintf(path, sizeof path, "/proc/%d/ns/%s", (int)pid, name);
    return stat(path, &st) == 0 ? (uint64_t)st.st_ino : 0;
}

struct collect_placed {
    const struct collection *all;
    const struct collect_kept *kept;
};

static void write_rank(struct writer *w, const void *arg)
{
    const struct collect_placed *placed = arg;
    const struct attach_process *process = placed->kept->process;
    int rank = placed->kept->rank;
    char host[256] = "", boot_id[37];
    file_read_small("/proc/sys/kernel/random/boot_id", boot_id, sizeof boot_id);
    gethostname(host, sizeof host - 1);
    writer_open(w, '{');
    writer_fields(w, TEXT("schema", "dpro.rank/1"), INT("rank", rank),
                  INT("world_size", process->world_size > 0 ? process->world_size : 1),
                  INT("local_rank", process->local_rank >= 0 ? process->local_rank : rank),
                  INT("attempt", 0), TEXT("host", process->host), TEXT("host_name", host),
                  TEXT("boot_id", boot_id), INT("net_ns", namespace_of(process->pid, "net")),
                  INT("time_ns", namespace_of(process->pid, "time")), INT("pid", process->pids[0]),
                  BOOL("complete", true), TEXT("framework", "pytorch"));
    writer_begin(w, "windows", '[');
    writer_open(w, '{');
    writer_fields(w, TEXT("name", "timing"));
    writer_begin(w, "files", '[');
    writer_string(w, "kineto.json.gz");
    writer_close(w, ']');
    writer_fields(w, INT("start_ns", placed->all->window->start_ns),
                  INT("end_ns", placed->all->window->end_ns));
    writer_close(w, '}');
    writer_close(w, ']');
    writer_begin(w, "warnings", '[');
    writer_close(w, ']');
    writer_close(w, '}');
    writer_text(w, "\n");
}

static void collect_place(struct collection *all, const struct collect_kept *kept)
{
    size_t first_made;
    struct dpro_error why;
    char *folder =
        arena_format(&all->paths, "%s/host%s/rank%d", all->path, kept->process->host, kept->rank);
    char *trace = arena_format(&all->paths, "%s/kineto.json.gz", folder);
    char *rank = arena_format(&all->paths, "%s/rank.json", folder);
    fail_on(folder_make(folder, &first_made, &why), &why);
    fail_on(collect_pack(kept->process->file, trace, &why), &why);
    unlink(kept->process->file);
    collect_leave(all->path, kept->process); /* where the rank was not known it is another one */
    fail_on(writer_write_path(rank, false, write_rank, &(struct collect_placed){all, kept}, &why),
            &why);
}

static void write_world(struct writer *w, const void *world_size)
{
    writer_object(w, TEXT("schema", "dpro.job/1"), TEXT("dpro", dpro_version()),
                  TEXT("framework", "pytorch"), INT("world_size", *(const int *)world_size),
                  INT("attempt", 0));
    writer_text(w, "\n");
}

/* Over all that the folder holds: other nodes may have put theirs there. */
static void write_job(const char *path)
{
    struct dpro_recording *recording;
    struct dpro_error why;
    int world_size = 0;
    fail_on(dpro_recording_read(path, &recording, &why), &why);
    for (size_t i = 0; i < dpro_recording_n_ranks(recording); i++)
        world_size = MAX(world_size, dpro_recording_rank(recording, i).world_size);
    dpro_recording_destroy(recording);
    SCRATCH char *file = mem_format("%s/job.json", path);
    fail_on(writer_write_path(file, false, write_world, &world_size, &why), &why);
}

size_t attach_collect(const char *path, struct attach_process *processes, size_t n,
                      const struct attach_window *window, const struct dpro_sink *sink)
{
    struct collection all = {.path = path, .window = window, .sink = sink};
    size_t n_ranks = 0;
    EACH_OF (struct attach_process, process, processes, n) {
        if (process->done)
            array_add(&all.kept, .process = process, .rank = process->rank);
        else if (process->lost && process->folder)
            collect_leave(path, process);
    }
    collect_choose(&all);
    EACH (const struct collect_kept, kept, all.kept)
        if (!kept->dropped) {
            collect_place(&all, kept);
            n_ranks++;
        }
    if (n_ranks > 0)
        write_job(path);
    array_fini(&all.kept);
    arena_fini(&all.paths);
    return n_ranks;
}
