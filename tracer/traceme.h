/* TensorFlow's events of the host (TraceMe), kept outside the heaps of its threads.
 *
 * TensorFlow's recorder keeps the name of each event as a small block of the thread that ran it.
 * malloc puts it beside a tensor, which then no longer fits where it lay in the step before: a step
 * goes to new memory again and again (measured on two virtual machines: 1,000 to 2,000 page faults
 * a step, +10 to +50 % of its time). Here names go into one region of memory, and the recorder's
 * own queues stay empty. */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct traceme { /* 8-byte aligned, one behind the other; thread 0: the end */
    uint32_t thread, name_bytes;
    /* Nanoseconds of CLOCK_REALTIME. What begins on one thread and ends on another comes twice:
     * with -activity for its end, then without a name and with -activity for its start. */
    int64_t start_ns, end_ns;
    char name[]; /* "what#key=value,key=value#", no NUL */
};

/* What of `size_bytes` a name takes. */
static inline size_t traceme_size(size_t name_bytes)
{
    return (sizeof(struct traceme) + name_bytes + 7) & ~(size_t)7;
}

/* Writes the kept events of [first, first + size_bytes) into `path` as an XPlane
 * (doc/formats/xplane.md), and changes them on the way. Returns how many, or -errno; no file is
 * left then. */
int64_t traceme_write(const char *path, struct traceme *first, size_t size_bytes);
