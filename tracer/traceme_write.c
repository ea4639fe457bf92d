/* The kept events as TensorFlow's own XPlane (XSpace of tsl/profiler/protobuf): a plane that says
 * when it began, and one of the host with a line a thread. Names stand before the lines (TensorFlow
 * writes them behind), so that a file that was cut keeps the events it has.
 *
 * Everything is put together in memory that is mapped for it and given back: nothing goes into the
 * job's heaps. The length of a message stands before it, in five bytes that are filled in behind;
 * numbers with leading zeros are numbers in protobuf, too. */
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "traceme.h"

/* NAME_BYTES_MAX: beside the name itself. A pair of statistics takes PAIR_BYTES characters at
 * least. */
enum {
    LENGTH_BYTES = 5,
    EVENT_BYTES_MAX = 64,
    STAT_BYTES_MAX = 40,
    NAME_BYTES_MAX = 40,
    PAIR_BYTES = 4
};

struct text {
    const char *at;
    size_t n_bytes;
};

struct out {
    unsigned char *bytes;
    size_t n, max;
    bool full;
};

/* Different texts, numbered from 1. */
struct table {
    uint32_t *slots; /* by hash: a text's number; 0: free */
    size_t n_slots;
    struct text *texts;
    uint32_t n;
};

struct plane {
    struct out head;         /* everything up to the lines */
    struct out lines;        /* the rest */
    struct traceme **events; /* complete ones; by thread, then start */
    size_t n_events;
    struct table names, keys; /* of events, of their statistics */
};

/* ---- protobuf ---- */

static void put(struct out *out, const void *bytes, size_t n)
{
    if (n > out->max - out->n) {
        out->full = true;
        return;
    }
    memcpy(out->bytes + out->n, bytes, n);
    out->n += n;
}

static void put_varint(struct out *out, uint64_t value)
{
    unsigned char bytes[10];
    size_t n = 0;
    for (; value > 0x7f; value >>= 7)
        bytes[n++] = (unsigned char)(value | 0x80);
    bytes[n++] = (unsigned char)value;
    put(out, bytes, n);
}

static void put_number(struct out *out, unsigned field, uint64_t value)
{
    put_varint(out, field << 3);
    put_varint(out, value);
}

static void put_text(struct out *out, unsigned field, struct text text)
{
    put_varint(out, field << 3 | 2);
    put_varint(out, text.n_bytes);
    put(out, text.at, text.n_bytes);
}

/* Returns what end_message wants. */
static size_t begin_message(struct out *out, unsigned field)
{
    static const unsigned char no_length[LENGTH_BYTES];
    put_varint(out, field << 3 | 2);
    put(out, no_length, LENGTH_BYTES);
    return out->n;
}

/* `more_bytes` of it are elsewhere. */
static void end_message(struct out *out, size_t begin, size_t more_bytes)
{
    uint64_t length = out->n - begin + more_bytes;
    for (size_t i = 0; i < LENGTH_BYTES && !out->full; i++, length >>= 7)
        out->bytes[begin - LENGTH_BYTES + i] =
            (unsigned char)((length & 0x7f) | (i + 1 < LENGTH_BYTES ? 0x80 : 0));
}

static struct text text_of(const char *string)
{
    return (struct text){string, strlen(string)};
}

/* ---- names ---- */

static bool same(struct text a, struct text b)
{
    return a.n_bytes == b.n_bytes && memcmp(a.at, b.at, a.n_bytes) == 0;
}

/* FNV-1a */
static uint64_t hash(struct text text)
{
    uint64_t h = 14695981039346656037u;
    for (size_t i = 0; i < text.n_bytes; i++)
        h = (h ^ (unsigned char)text.at[i]) * 1099511628211u;
    return h;
}

static uint32_t number_of(struct table *table, struct text text)
{
    size_t slot = hash(text) % table->n_slots;
    for (; table->slots[slot]; slot = (slot + 1) % table->n_slots)
        if (same(table->texts[table->slots[slot] - 1], text))
            return table->slots[slot];
    table->texts[table->n++] = text;
    return table->slots[slot] = table->n;
}

/* "what#key=value,key=value#": what, and what is between the #. */
static struct text split_name(const struct traceme *event, struct text *pairs)
{
    struct text name = {event->name, event->name_bytes};
    const char *sharp = memchr(name.at, '#', name.n_bytes);
    *pairs = (struct text){NULL, 0};
    if (!sharp || name.at[name.n_bytes - 1] != '#' || sharp == name.at + name.n_bytes - 1)
        return name;
    *pairs = (struct text){sharp + 1, (size_t)(name.at + name.n_bytes - 1 - (sharp + 1))};
    name.n_bytes = (size_t)(sharp - name.at);
    return name;
}

/* ---- events ---- */

/* XStat: metadata_id 1, uint64_value 3, int64_value 4, str_value 5. */
static void put_stat(struct plane *plane, unsigned field, struct text key, struct text value)
{
    struct out *out = &plane->lines;
    char digits[24] = "", *end = digits;
    if (value.n_bytes < sizeof digits && value.n_bytes > 0 && value.at[0] != ' ' &&
        value.at[0] != '+')
        memcpy(digits, value.at, value.n_bytes);
    size_t begin = begin_message(out, field);
    put_number(out, 1, number_of(&plane->keys, key));
    errno = 0;
    long long number = strtoll(digits, &end, 10);
    if (end == digits || *end) {
        put_text(out, 5, value);
    } else if (errno == 0) {
        put_number(out, 4, (uint64_t)number);
    } else {
        errno = 0;
        unsigned long long large = strtoull(digits, &end, 10);
        if (errno == 0 && digits[0] != '-')
            put_number(out, 3, large);
        else
            put_text(out, 5, value);
    }
    end_message(out, begin, 0);
}

/* key=value,key=value, where a value may have commas in brackets or quotes. */
static void put_stats(struct plane *plane, struct text pairs)
{
    const char *at = pairs.at, *stop = pairs.at + pairs.n_bytes;
    while (at < stop) {
        const char *end = at, *equals = NULL;
        int depth = 0;
        for (char quote = 0; end < stop && (*end != ',' || depth > 0 || quote); end++) {
            if (quote || *end == '"' || *end == '\'')
                quote = !quote ? *end : *end == quote ? 0 : quote;
            else if (strchr("([{", *end) && *end)
                depth++;
            else if (strchr(")]}", *end) && *end)
                depth -= depth > 0;
            else if (*end == '=' && !equals)
                equals = end;
        }
        if (equals && equals > at)
            put_stat(plane, 4, (struct text){at, (size_t)(equals - at)},
                     (struct text){equals + 1, (size_t)(end - equals - 1)});
        at = end + 1;
    }
}

/* XEvent: metadata_id 1, offset_ps 2, duration_ps 3, stats 4. */
static void put_event(struct plane *plane, const struct traceme *event, int64_t begin_ns)
{
    struct out *out = &plane->lines;
    struct text pairs, name = split_name(event, &pairs);
    int64_t dur_ns = event->end_ns - event->start_ns;
    size_t begin = begin_message(out, 4);
    put_number(out, 1, number_of(&plane->names, name));
    put_number(out, 2, (uint64_t)(event->start_ns - begin_ns) * 1000);
    put_number(out, 3, dur_ns > 0 ? (uint64_t)dur_ns * 1000 : 0);
    put_stats(plane, pairs);
    end_message(out, begin, 0);
}

/* ---- the plane ---- */

static void *map(size_t n_bytes)
{
    void *memory = mmap(NULL, n_bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

static struct traceme *next_of(struct traceme *event)
{
    return (struct traceme *)(void *)((char *)event + traceme_size(event->name_bytes));
}

static bool in_region(const struct traceme *event, const struct traceme *first, size_t size_bytes)
{
    size_t at = (size_t)((const char *)event - (const char *)first);
    return at + sizeof *event <= size_bytes && event->thread != 0;
}

static int by_activity(const void *left, const void *right)
{
    const struct traceme *a = *(struct traceme *const *)left, *b = *(struct traceme *const *)right;
    int64_t of_a = a->end_ns < 0 ? a->end_ns : a->start_ns;
    int64_t of_b = b->end_ns < 0 ? b->end_ns : b->start_ns;
    if (of_a != of_b)
        return of_a < of_b ? -1 : 1;
    return (a->start_ns < 0) - (b->start_ns < 0); /* starts before ends */
}

static int by_thread(const void *left, const void *right)
{
    const struct traceme *a = *(struct traceme *const *)left, *b = *(struct traceme *const *)right;
    if (a->thread != b->thread)
        return a->thread < b->thread ? -1 : 1;
    if (a->start_ns != b->start_ns)
        return a->start_ns < b->start_ns ? -1 : 1;
    return (a->end_ns < b->end_ns) - (a->end_ns > b->end_ns);
}

/* Fills `events`: those that are whole, and those of which both halves are there. */
static void find_events(struct plane *plane, struct traceme *first, size_t size_bytes, size_t n_all)
{
    struct traceme **halves = plane->events + n_all;
    size_t n_halves = 0;
    for (struct traceme *e = first; in_region(e, first, size_bytes); e = next_of(e)) {
        if (e->start_ns < 0 || e->end_ns < 0)
            *--halves = e, n_halves++;
        else
            plane->events[plane->n_events++] = e;
    }
    qsort(halves, n_halves, sizeof *halves, by_activity);
    for (size_t i = 0; i + 1 < n_halves; i++)
        if (halves[i]->end_ns < 0 && halves[i + 1]->start_ns == halves[i]->end_ns) {
            halves[i]->end_ns = halves[i + 1]->end_ns;
            plane->events[plane->n_events++] = halves[i++];
        }
    qsort(plane->events, plane->n_events, sizeof *plane->events, by_thread);
}

static struct text name_of_thread(uint32_t thread, char *into, size_t size)
{
    char path[64];
    ssize_t n = 0;
    snprintf(path, sizeof path, "/proc/self/task/%u/comm", thread);
    int fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        n = syscall(SYS_read, fd, into, size - 16);
        syscall(SYS_close, fd);
    }
    if (n > 0 && into[n - 1] == '\n')
        n--;
    size_t length = n > 0 ? (size_t)n : 0;
    length += (size_t)snprintf(into + length, size - length, "/%u", thread);
    return (struct text){into, length};
}

/* XLine: id 1, name 2, timestamp_ns 3, events 4. */
static void put_lines(struct plane *plane, int64_t begin_ns)
{
    struct out *out = &plane->lines;
    size_t line = 0;
    char name[64];
    for (size_t i = 0; i < plane->n_events; i++) {
        const struct traceme *event = plane->events[i];
        if (i == 0 || event->thread != plane->events[i - 1]->thread) {
            if (i > 0)
                end_message(out, line, 0);
            line = begin_message(out, 3);
            put_number(out, 1, event->thread);
            put_text(out, 2, name_of_thread(event->thread, name, sizeof name));
            put_number(out, 3, 0);
        }
        put_event(plane, event, begin_ns);
    }
    if (plane->n_events > 0)
        end_message(out, line, 0);
}

/* An entry of a map from numbers to XEventMetadata or XStatMetadata: id 1, name 2. */
static void put_metadata(struct out *out, unsigned field, uint32_t number, struct text name)
{
    size_t entry = begin_message(out, field);
    put_number(out, 1, number);
    size_t metadata = begin_message(out, 2);
    put_number(out, 1, number);
    put_text(out, 2, name);
    end_message(out, metadata, 0);
    end_message(out, entry, 0);
}

/* XPlane: name 2, lines 3, event_metadata 4, stat_metadata 5. The lines are there already. */
static void put_host(struct plane *plane)
{
    struct out *out = &plane->head;
    size_t begin = begin_message(out, 1);
    put_text(out, 2, text_of("/host:CPU"));
    for (uint32_t n = 0; n < plane->names.n; n++)
        put_metadata(out, 4, n + 1, plane->names.texts[n]);
    for (uint32_t k = 0; k < plane->keys.n; k++)
        put_metadata(out, 5, k + 1, plane->keys.texts[k]);
    end_message(out, begin, plane->lines.n);
}

/* Times of the other plane count from profile_start_time. */
static void put_task(struct out *out, int64_t begin_ns, int64_t end_ns)
{
    static const char *const keys[] = {"profile_start_time", "profile_stop_time"};
    const int64_t times[] = {begin_ns, end_ns};
    size_t begin = begin_message(out, 1);
    put_text(out, 2, text_of("Task Environment"));
    for (unsigned k = 0; k < 2; k++)
        put_metadata(out, 5, k + 1, text_of(keys[k]));
    for (unsigned k = 0; k < 2; k++) {
        size_t stat = begin_message(out, 6);
        put_number(out, 1, k + 1);
        put_number(out, 3, (uint64_t)times[k]);
        end_message(out, stat, 0);
    }
    end_message(out, begin, 0);
}

static int write_all(int fd, const struct out *out)
{
    size_t at = 0;
    while (at < out->n) {
        ssize_t n = syscall(SYS_write, fd, out->bytes + at, out->n - at);
        if (n > 0)
            at += (size_t)n;
        else if (n == 0 || errno != EINTR)
            return n == 0 ? -ENOSPC : -errno;
    }
    return 0;
}

static int write_file(const char *path, const struct plane *plane)
{
    int fd =
        (int)syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0)
        return -errno;
    int error = write_all(fd, &plane->head);
    if (error == 0)
        error = write_all(fd, &plane->lines);
    struct stat made;
    bool is_file = fstat(fd, &made) == 0 && S_ISREG(made.st_mode);
    if (syscall(SYS_close, fd) < 0 && error == 0)
        error = -errno;
    if (error < 0 && is_file)
        syscall(SYS_unlinkat, AT_FDCWD, path, 0);
    return error;
}

int64_t traceme_write(const char *path, struct traceme *first, size_t size_bytes)
{
    struct plane plane = {.n_events = 0};
    size_t n_all = 0, used_bytes = 0;
    int64_t begin_ns = INT64_MAX, end_ns = 0, result = -ENOMEM;
    for (struct traceme *e = first; in_region(e, first, size_bytes); e = next_of(e)) {
        n_all++;
        used_bytes += traceme_size(e->name_bytes);
    }
    size_t n_pairs = used_bytes / PAIR_BYTES, some = 1 << 20;
    plane.names.n_slots = 2 * n_all + 1;
    plane.keys.n_slots = 2 * n_pairs + 1;
    plane.head.max = used_bytes + (n_all + n_pairs) * NAME_BYTES_MAX + some;
    plane.lines.max = n_pairs * STAT_BYTES_MAX + n_all * EVENT_BYTES_MAX + some;
    size_t sizes[] = {(n_all + 1) * sizeof *plane.events,
                      plane.names.n_slots * sizeof *plane.names.slots,
                      (n_all + 1) * sizeof *plane.names.texts,
                      plane.keys.n_slots * sizeof *plane.keys.slots,
                      (n_pairs + 1) * sizeof *plane.keys.texts,
                      plane.head.max,
                      plane.lines.max};
    enum { N_SIZES = sizeof sizes / sizeof *sizes };
    void *memory[N_SIZES] = {NULL};
    for (int i = 0; i < N_SIZES; i++)
        if (!(memory[i] = map(sizes[i])))
            goto done;
    plane.events = memory[0];
    plane.names.slots = memory[1];
    plane.names.texts = memory[2];
    plane.keys.slots = memory[3];
    plane.keys.texts = memory[4];
    plane.head.bytes = memory[5];
    plane.lines.bytes = memory[6];
    find_events(&plane, first, size_bytes, n_all);
    for (size_t i = 0; i < plane.n_events; i++) {
        begin_ns = plane.events[i]->start_ns < begin_ns ? plane.events[i]->start_ns : begin_ns;
        end_ns = plane.events[i]->end_ns > end_ns ? plane.events[i]->end_ns : end_ns;
    }
    put_lines(&plane, begin_ns);
    put_task(&plane.head, begin_ns, end_ns);
    put_host(&plane);
    result = plane.head.full || plane.lines.full ? -ENOBUFS : write_file(path, &plane);
    if (result == 0)
        result = (int64_t)plane.n_events;
done:
    for (int i = 0; i < N_SIZES; i++)
        if (memory[i])
            munmap(memory[i], sizes[i]);
    return result;
}
