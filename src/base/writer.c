/* Output in large pieces, with the first error kept until it is asked for.
 *
 * Compression is isa-l's level 1: timelines are large, repetitive and read once. */
#include "base/writer.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <isa-l/igzip_lib.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"

#define WRITER_BUFFER (256u << 10)

struct writer_gzip {
    struct isal_zstream stream;
    struct isal_gzip_header header;
    uint8_t level[ISAL_DEF_LVL1_DEFAULT];
    uint8_t out[64u << 10];
};

static void writer_init(struct writer *w, FILE *file)
{
    *w = (struct writer){.fd = -1, .file = file, .buf = mem_alloc(WRITER_BUFFER)};
}

static void init_gzip(struct writer *w)
{
    struct writer_gzip *gz = mem_array(1, sizeof *gz);
    isal_deflate_init(&gz->stream);
    isal_gzip_header_init(&gz->header);
    gz->stream.level = 1;
    gz->stream.level_buf = gz->level;
    gz->stream.level_buf_size = sizeof gz->level;
    gz->stream.gzip_flag = IGZIP_GZIP;
    w->gzip = gz;
}

/* A name of its own for every writer of this and other processes; the mode is what the umask
 * leaves, as for any file a program writes. */
static int open_temp(struct writer *w)
{
    static atomic_uint counter;
    size_t size = strlen(w->path) + 48;
    w->temp = mem_alloc(size);
    for (int tries = 0; tries < 100; tries++) {
        snprintf(w->temp, size, "%s.tmp%ld-%u", w->path, (long)getpid(),
                 atomic_fetch_add(&counter, 1));
        w->fd = mem_keep_fd(open(w->temp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
        if (w->fd >= 0)
            return 0;
        if (errno != EEXIST)
            break;
    }
    int kept = errno;
    mem_free(w->temp);
    w->temp = NULL;
    errno = kept;
    return -1;
}

/* What is no file, a device or a FIFO, is written to, not replaced. */
static int open_path(struct writer *w)
{
    struct stat status;
    if (stat(w->path, &status) != 0 || S_ISREG(status.st_mode) || S_ISDIR(status.st_mode))
        return open_temp(w);
    w->fd = mem_keep_fd(open(w->path, O_WRONLY | O_CLOEXEC));
    return w->fd >= 0 ? 0 : -1;
}

int writer_init_path(struct writer *w, const char *path, bool gzip, struct dpro_error *err)
{
    writer_init(w, NULL);
    w->path = mem_copy_string(path);
    if (gzip)
        init_gzip(w);
    if (open_path(w) == 0)
        return 0;
    int rc = dpro_error_set(err, DPRO_EIO, "%s: can't be written: %s; name another place", path,
                            strerror(errno));
    writer_fini(w);
    return rc;
}

static void write_out(struct writer *w, const void *data, size_t len)
{
    const char *at = data;
    if (w->failed)
        return;
    if (w->file) {
        errno = 0;
        if (len > 0 && fwrite(at, 1, len, w->file) != len)
            w->failed = errno ? errno : EIO;
        return;
    }
    while (len > 0) {
        ssize_t n = write(w->fd, at, len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            w->failed = errno;
            return;
        }
        at += n;
        len -= (size_t)n;
    }
}

/* Files that are written together. */
struct file_set {
    const char *folder; /* NULL: their names are paths */
    const struct dpro_sink *progress;
    uint64_t n_written;
};

static void writer_flush(struct writer *w, bool last)
{
    struct writer_gzip *gz = w->gzip;
    if (w->set)
        log_progress_more(w->set->progress, "write", "bytes", &w->set->n_written, w->n, 0);
    if (!gz) {
        write_out(w, w->buf, w->n);
        w->n = 0;
        return;
    }
    gz->stream.next_in = (uint8_t *)w->buf;
    gz->stream.avail_in = (uint32_t)w->n;
    gz->stream.end_of_stream = last;
    do {
        gz->stream.next_out = gz->out;
        gz->stream.avail_out = sizeof gz->out;
        if (isal_deflate(&gz->stream) != COMP_OK) {
            assert(!"isal_deflate refuses its own parameters");
            w->failed = EIO;
        }
        write_out(w, gz->out, sizeof gz->out - gz->stream.avail_out);
    } while (gz->stream.avail_out == 0 && !w->failed);
    w->n = 0;
}

/* What a FILE is open on, as far as the system knows. */
static const char *file_name(FILE *file, char *out, size_t size)
{
    char link[64];
    int fd = fileno(file);
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = fd < 0 ? -1 : readlink(link, out, size - 1);
    if (n <= 0)
        return fd == STDOUT_FILENO ? "standard output" : "output";
    out[n] = '\0';
    return out;
}

int writer_finish(struct writer *w, struct dpro_error *err)
{
    writer_flush(w, true);
    if (w->file && !w->failed && fflush(w->file) != 0)
        w->failed = errno;
    if (w->fd >= 0) {
        if (mem_close_fd(w->fd) != 0 && !w->failed && errno != EINTR)
            w->failed = errno; /* a quota may show only here */
        w->fd = -1;
    }
    if (!w->failed)
        return 0;
    if (w->failed == EBADF && w->file && fileno(w->file) == STDOUT_FILENO)
        return dpro_error_set(err, DPRO_EIO, "standard output is closed");
    char name[512];
    return dpro_error_set(err, DPRO_EIO, "%s: can't be written: %s",
                          w->path ? w->path : file_name(w->file, name, sizeof name),
                          strerror(w->failed));
}

int writer_commit(struct writer *w, struct dpro_error *err)
{
    if (!w->temp)
        return 0;
    /* writer_finish comes first and must have succeeded */
    assert(w->fd < 0 && !w->failed);
    if (rename(w->temp, w->path) != 0)
        return dpro_error_set(err, DPRO_EIO, "%s: can't be written: %s", w->path, strerror(errno));
    mem_free(w->temp);
    w->temp = NULL;
    return 0;
}

void writer_fini(struct writer *w)
{
    if (!w->buf)
        return;
    if (w->fd >= 0)
        mem_close_fd(w->fd);
    if (w->temp)
        unlink(w->temp);
    FREE_ALL(&w->temp, &w->path, &w->gzip, &w->buf);
    *w = (struct writer){.fd = -1};
}

static int write_file(FILE *file, void (*write)(struct writer *, const void *), const void *arg,
                      struct dpro_error *err)
{
    struct writer w;
    writer_init(&w, file);
    write(&w, arg);
    int rc = writer_finish(&w, err);
    writer_fini(&w);
    return rc;
}

int writer_write_file(FILE *file, void (*write)(struct writer *, const void *), const void *arg,
                      struct dpro_error *err)
{
    return WITHIN_SCOPE(dpro_error_nomem(err), write_file(file, write, arg, err));
}

static int write_in_set(struct writer *w, struct file_set *set, const struct set_file *file,
                        struct dpro_error *err)
{
    SCRATCH char *path =
        set->folder ? mem_format("%s/%s", set->folder, file->name) : mem_copy_string(file->name);
    int rc = writer_init_path(w, path, file->gzip, err);
    w->set = set;
    if (rc < 0)
        return rc;
    file->write(w, file->arg);
    return writer_finish(w, err);
}

static __attribute__((noinline)) int try_to_write(struct writer *w, struct file_set *set,
                                                  const struct set_file *file,
                                                  struct dpro_error *err)
{
    return WITHIN_SCOPE(DPRO_ENOMEM, write_in_set(w, set, file, err));
}

/* All or none; of more than are to be open at once those that were written before one failed. */
static int write_all(struct file_set *set, const struct set_file *files, size_t n,
                     struct dpro_error *err)
{
    enum { MOST_OPEN = 40 };
    struct writer writers[MOST_OPEN] = {0};
    int rc = 0;
    for (size_t i = 0; i < n && rc == 0; i++) {
        struct writer *w = &writers[n > MOST_OPEN ? 0 : i];
        rc = try_to_write(w, set, &files[i], err);
        if (rc == 0 && n > MOST_OPEN)
            rc = writer_commit(w, err);
        if (n > MOST_OPEN)
            writer_fini(w);
    }
    for (size_t i = 0; i < n && n <= MOST_OPEN && rc == 0; i++)
        rc = writer_commit(&writers[i], err);
    for (size_t i = 0; i < n && n <= MOST_OPEN; i++)
        writer_fini(&writers[i]);
    return rc;
}

int writer_write_path(const char *path, bool gzip, void (*write)(struct writer *, const void *),
                      const void *arg, struct dpro_error *err)
{
    struct set_file file = {path, gzip, write, arg};
    struct file_set set = {.folder = NULL};
    return WITHIN_SCOPE(dpro_error_nomem(err), write_all(&set, &file, 1, err));
}

int file_set_write(const char *folder, const char *what, const struct set_file *files, size_t n,
                   const struct dpro_sink *progress, struct dpro_error *err)
{
    size_t first_made;
    if (folder[0] == '\0')
        return dpro_error_set(err, DPRO_EUSAGE, "the %s's folder has an empty name", what);
    char *path = mem_copy_string(folder);
    int rc = folder_make(path, &first_made, err);
    struct file_set set = {.folder = path, .progress = progress};
    size_t n_written = n;
    while (n_written > 0 && !files[n_written - 1].write)
        n_written--;
    if (rc == 0)
        rc = write_all(&set, files, n_written, err);
    for (size_t i = n_written; rc == 0 && i < n; i++) {
        SCRATCH char *left = mem_format("%s/%s", path, files[i].name);
        unlink(left);
    }
    if (rc < 0)
        folder_take_back(path, first_made);
    mem_free(path);
    memory_check();
    return rc;
}

void writer_put(struct writer *w, const void *data, size_t len)
{
    const char *at = data;
    if (len > 0 && len < WRITER_BUFFER - w->n && !w->failed) { /* nearly always */
        memcpy(w->buf + w->n, at, len);
        w->n += len;
        return;
    }
    while (len > 0 && !w->failed) {
        size_t room = WRITER_BUFFER - w->n;
        size_t piece = len < room ? len : room;
        memcpy(w->buf + w->n, at, piece);
        w->n += piece;
        at += piece;
        len -= piece;
        if (w->n == WRITER_BUFFER)
            writer_flush(w, false);
    }
}

void writer_text(struct writer *w, const char *text)
{
    writer_put(w, text, strlen(text));
}

void writer_printf(struct writer *w, const char *format, ...)
{
    char small[512], *text = small;
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int n = vsnprintf(small, sizeof small, format, args);
    if (n >= (int)sizeof small) {
        text = mem_alloc((size_t)n + 1);
        vsnprintf(text, (size_t)n + 1, format, again);
    }
    va_end(again);
    va_end(args);
    if (n > 0)
        writer_put(w, text, (size_t)n);
    if (text != small)
        mem_free(text);
}
