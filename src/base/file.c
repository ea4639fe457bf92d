/* Plain files by read(2), gzip through isa-l's inflate, which does 3.4 GB/s a core where zlib does
 * 1.25. Both hand out chunks that stay in the cache until the scanner has seen them; mapping a
 * plain file was no faster and turns a file that shrinks while read into SIGBUS. */
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <isa-l/igzip_lib.h>
#include <sys/stat.h>
#include <unistd.h>

/* INFLATE_SIZE: what inflate is asked for, always. */
enum { PACKED_SIZE = 1 << 16, INFLATE_SIZE = 1 << 16 };

static int64_t read_source(struct input *in, void *out, size_t size, struct dpro_error *err)
{
    if (in->fd < 0) {
        size_t n = size < in->memory_left ? size : in->memory_left;
        if (n)
            memcpy(out, in->memory, n);
        in->memory += n;
        in->memory_left -= n;
        in->read_bytes += n;
        return (int64_t)n;
    }
    for (;;) {
        ssize_t n = read(in->fd, out, size);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return dpro_error_set(err, DPRO_EIO, "%s: byte %llu: cannot read: %s", in->path,
                                  (unsigned long long)in->read_bytes, strerror(errno));
        in->read_bytes += (uint64_t)n;
        return n;
    }
}

/* Keeps unread packed bytes, adds what the source has. */
static int fill_packed(struct input *in, struct dpro_error *err)
{
    struct inflate_state *z = in->inflate;
    if (z->avail_in)
        memmove(in->packed, z->next_in, z->avail_in);
    z->next_in = in->packed;
    while (!in->source_ended && z->avail_in < PACKED_SIZE) {
        int64_t n =
            read_source(in, in->packed + z->avail_in, PACKED_SIZE - (size_t)z->avail_in, err);
        if (n < 0)
            return (int)n;
        if (n == 0)
            in->source_ended = true;
        z->avail_in += (uint32_t)n;
    }
    return 0;
}

/* Looks at the first bytes: gzip by its magic, whatever the name says. */
static int file_start(struct input *in, struct dpro_error *err)
{
    unsigned char head[2];
    size_t n_head = 0;
    if (in->fd < 0) {
        n_head = in->memory_left < 2 ? in->memory_left : 2;
        if (n_head)
            memcpy(head, in->memory, n_head);
    } else {
        ssize_t n = pread(in->fd, head, sizeof head, 0);
        if (n < 0)
            return dpro_error_set(err, DPRO_EIO, "%s: cannot read: %s", in->path, strerror(errno));
        n_head = (size_t)n;
    }
    if (n_head < 2 || head[0] != 0x1f || head[1] != 0x8b)
        return 0;
    in->inflate = mem_array(1, sizeof *in->inflate); /* damaged data may look at any of it */
    in->packed = mem_alloc(PACKED_SIZE);
    isal_inflate_init(in->inflate);
    in->inflate->crc_flag = ISAL_GZIP;
    in->inflate->next_in = in->packed;
    in->inflate->avail_in = 0;
    return 0;
}

int input_open(struct input *in, const char *path, struct dpro_error *err)
{
    *in = (struct input){.path = path, .fd = -1};
    /* O_NONBLOCK: opening a FIFO that nobody writes must not wait */
    int fd = mem_keep_fd(open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
    if (fd < 0)
        return dpro_error_set(err, DPRO_EIO, "%s: cannot open: %s", path, strerror(errno));
    struct stat st;
    if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode)) {
        mem_close_fd(fd);
        return dpro_error_set(err, DPRO_EIO, "%s: %s", path,
                              S_ISDIR(st.st_mode) ? "is a folder, not a trace file"
                                                  : "is not a regular file; copy it to one first");
    }
    posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL);
    in->fd = fd;
    in->size_bytes = (uint64_t)st.st_size;
    int rc = file_start(in, err);
    if (rc < 0)
        input_close(in);
    return rc;
}

void input_open_memory(struct input *in, const void *data, size_t size, const char *name)
{
    *in = (struct input){
        .path = name, .fd = -1, .memory = data, .memory_left = size, .size_bytes = size};
    file_start(in, NULL); /* nothing can fail */
}

/* The next INFLATE_SIZE bytes, fewer at the end. */
static int64_t inflate_piece(struct input *in, unsigned char *out, struct dpro_error *err)
{
    struct inflate_state *z = in->inflate;
    z->next_out = out;
    z->avail_out = INFLATE_SIZE;
    while (z->avail_out && !in->inflated) {
        bool member_ended = z->block_state == ISAL_BLOCK_FINISH;
        if (z->avail_in < (member_ended ? 2 : 1) && !in->source_ended) {
            int rc = fill_packed(in, err);
            if (rc < 0)
                return rc;
        }
        if (member_ended) {
            /* another member, or padding that gzip ignores too */
            if (z->avail_in < 2 || z->next_in[0] != 0x1f || z->next_in[1] != 0x8b) {
                in->inflated = true;
                break;
            }
            isal_inflate_reset(z);
            z->crc_flag = ISAL_GZIP;
        }
        uint32_t in_before = z->avail_in, out_before = z->avail_out;
        int rc = isal_inflate(z);
        if (rc != ISAL_DECOMP_OK && rc != ISAL_END_INPUT) {
            in->damage =
                rc == ISAL_INCORRECT_CHECKSUM ? "gzip checksum is wrong" : "gzip data is damaged";
            in->inflated = true;
        } else if (z->avail_in == in_before && z->avail_out == out_before && in->source_ended &&
                   z->block_state != ISAL_BLOCK_FINISH) {
            in->damage = "gzip file is cut short";
            in->inflated = true;
        }
    }
    return INFLATE_SIZE - (int64_t)z->avail_out;
}

/* How much inflate gives before damage depends on the room that it has, so this is always the
 * same: what is read must not depend on how much is asked for at a time. */
static int64_t read_gzip(struct input *in, unsigned char *out, size_t size, struct dpro_error *err)
{
    size_t done = 0;
    if (!in->piece)
        in->piece = mem_alloc(INFLATE_SIZE);
    while (done < size) {
        if (in->piece_left == 0) {
            int64_t n = inflate_piece(in, in->piece, err);
            if (n < 0)
                return n;
            if (n == 0)
                break;
            in->piece_left = (size_t)n;
            in->piece_at = in->piece;
        }
        size_t n = MIN(in->piece_left, size - done);
        memcpy(out + done, in->piece_at, n);
        in->piece_at += n;
        in->piece_left -= n;
        done += n;
    }
    return (int64_t)done;
}

int64_t input_read(struct input *in, void *out, size_t size, struct dpro_error *err)
{
    if (in->ended || size == 0)
        return 0;
    int64_t n = in->inflate ? read_gzip(in, out, size, err) : read_source(in, out, size, err);
    if (n < 0)
        return n;
    if (n == 0)
        in->ended = true;
    in->out_bytes += (uint64_t)n;
    return n;
}

static void free_inflate(struct input *in)
{
    FREE_ALL(&in->inflate, &in->packed, &in->piece);
    in->piece_at = NULL;
    in->piece_left = 0;
    in->inflated = false;
}

int input_rewind(struct input *in, struct dpro_error *err)
{
    if (in->fd < 0) {
        in->memory -= in->read_bytes;
        in->memory_left += in->read_bytes;
    } else if (lseek(in->fd, 0, SEEK_SET) < 0) {
        return dpro_error_set(err, DPRO_EIO, "%s: cannot read again: %s", in->path,
                              strerror(errno));
    }
    free_inflate(in);
    in->source_ended = in->ended = false;
    in->damage = NULL;
    in->read_bytes = in->out_bytes = 0;
    return file_start(in, err);
}

void input_close(struct input *in)
{
    if (in->fd >= 0)
        mem_close_fd(in->fd);
    free_inflate(in);
    *in = (struct input){.fd = -1};
}

size_t file_read_small(const char *path, char *out, size_t size)
{
    FILE *file = fopen(path, "re");
    size_t n = file ? fread(out, 1, size - 1, file) : 0;
    if (file)
        fclose(file);
    out[n] = '\0';
    return n;
}

/* ---- folders ---- */

int folder_make(char *path, size_t *first_made, struct dpro_error *err)
{
    size_t len = strlen(path);
    *first_made = 0;
    for (size_t i = 1; i <= len; i++) {
        if (path[i] != '/' && path[i] != '\0')
            continue;
        char kept = path[i];
        path[i] = '\0';
        int rc = 0, failed = mkdir(path, 0777) == 0 ? 0 : errno;
        struct stat info;
        if (!failed && *first_made == 0)
            *first_made = i;
        /* an existing folder may answer with other errors than EEXIST (read-only file system) */
        if (failed && stat(path, &info) == 0)
            failed = S_ISDIR(info.st_mode) ? 0 : ENOTDIR;
        if (failed)
            rc = dpro_error_set(err, DPRO_EIO, "%s: the folder can't be made: %s; name another one",
                                path, strerror(failed));
        path[i] = kept;
        if (rc < 0)
            return rc;
    }
    return 0;
}

void folder_take_back(char *path, size_t first_made)
{
    for (size_t i = strlen(path); first_made > 0 && i >= first_made; i--) {
        if (path[i] != '/' && path[i] != '\0')
            continue;
        path[i] = '\0';
        rmdir(path);
    }
}
