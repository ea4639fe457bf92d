/* Keeps TensorFlow's profiling events in place of its own recorder.
 *
 * Stands in for the function that TensorFlow's libraries hand their events to, as they find it by
 * name: what is not kept goes on to the real one. */
#include "traceme.h"

#include <dlfcn.h>
#include <errno.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "control.h"
#include "log.h"

#define EXPORT __attribute__((visibility("default")))

/* tsl::profiler::TraceMeRecorder::Record(Event &&) */
#define RECORD "_ZN3tsl8profiler15TraceMeRecorder6RecordEONS1_5EventE"

/* TraceMeRecorder::Event of TensorFlow 2.12 to 2.21, as libstdc++ lays it out. */
struct event {
    const char *name;
    size_t name_bytes;
    char in_place[16]; /* where `name` points when it is short */
    int64_t start_ns, end_ns;
};

enum { NAME_MAX_BYTES = 1 << 16 };
static const size_t REGION_BYTES = (size_t)1 << 30; /* of addresses; memory as it is filled */
static const size_t READY_BYTES = (size_t)8 << 20;  /* some 80,000 events */
static const int64_t YEAR_2001_NS = 1000000000000000000;
static const int64_t STOP_NS = 1000000000;

static char *region;
static _Atomic bool keeping;
static _Atomic uint32_t n_inside; /* threads in keep() */
static _Atomic uint64_t n_used_bytes, n_kept, n_lost, n_strange;

/* Whether this is an event as it is known here; looks at nothing beyond it until then. */
static bool is_event(const struct event *e)
{
    bool begins = e->start_ns > YEAR_2001_NS, ends = e->end_ns > YEAR_2001_NS;
    return e->name && e->name_bytes < NAME_MAX_BYTES &&
           (e->name != e->in_place || e->name_bytes < sizeof e->in_place) &&
           (begins || e->start_ns < 0) && (ends || e->end_ns < 0) && (begins || ends) &&
           e->name[e->name_bytes] == '\0';
}

static void copy(const struct event *e)
{
    size_t size = traceme_size(e->name_bytes);
    uint64_t at = atomic_fetch_add_explicit(&n_used_bytes, size, memory_order_relaxed);
    if (at + size + sizeof(struct traceme) > REGION_BYTES) { /* a last one stays 0 */
        atomic_fetch_add_explicit(&n_lost, 1, memory_order_relaxed);
        return;
    }
    struct traceme *kept = (struct traceme *)(void *)(region + at);
    kept->name_bytes = (uint32_t)e->name_bytes;
    kept->start_ns = e->start_ns;
    kept->end_ns = e->end_ns;
    memcpy(kept->name, e->name, e->name_bytes);
    kept->thread = log_thread();
    atomic_fetch_add_explicit(&n_kept, 1, memory_order_relaxed);
}

static bool keep(const struct event *e)
{
    bool takes;
    atomic_fetch_add(&n_inside, 1);
    takes = atomic_load(&keeping);
    if (takes && !is_event(e)) {
        atomic_fetch_add_explicit(&n_strange, 1, memory_order_relaxed);
        takes = false;
    }
    if (takes)
        copy(e);
    atomic_fetch_sub(&n_inside, 1);
    return takes;
}

typedef void record_function(struct event *);

/* The real one: of the library that called, or of one that it was linked with. */
static record_function *find_real(const void *caller)
{
    static _Atomic(record_function *) found;
    record_function *real = atomic_load_explicit(&found, memory_order_acquire);
    Dl_info info;
    if (real || !dladdr(caller, &info))
        return real;
    void *library = dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD);
    if (!library)
        return NULL;
    *(void **)(void *)&real = dlsym(library, RECORD);
    if (real)
        atomic_store_explicit(&found, real, memory_order_release);
    return real;
}

EXPORT void traceme_record(struct event *event) __asm__(RECORD);
EXPORT void traceme_record(struct event *event)
{
    int saved = errno;
    if (!atomic_load_explicit(&keeping, memory_order_relaxed) || !keep(event)) {
        record_function *real = find_real(__builtin_return_address(0));
        if (real && real != traceme_record)
            real(event);
    }
    errno = saved;
}

EXPORT int dpro_traceme_start(void)
{
    if (region)
        return -EALREADY;
    void *memory = mmap(NULL, REGION_BYTES, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        return -errno;
#ifdef MADV_POPULATE_WRITE /* so that a step meets no new memory of ours either */
    madvise(memory, READY_BYTES, MADV_POPULATE_WRITE);
#endif
    region = memory;
    n_used_bytes = n_kept = n_lost = n_strange = 0;
    atomic_store(&keeping, true);
    return 0;
}

EXPORT int64_t dpro_traceme_stop(const char *path)
{
    struct timespec now, since;
    int64_t waited_ns = 0, n = 0;
    if (!region)
        return -EINVAL;
    atomic_store(&keeping, false);
    clock_gettime(CLOCK_MONOTONIC, &since);
    while (atomic_load(&n_inside) != 0 && waited_ns < STOP_NS) {
        sched_yield();
        clock_gettime(CLOCK_MONOTONIC, &now);
        waited_ns = (now.tv_sec - since.tv_sec) * 1000000000 + (now.tv_nsec - since.tv_nsec);
    }
    if (path)
        n = traceme_write(path, (struct traceme *)(void *)region, REGION_BYTES);
    if (atomic_load(&n_inside) == 0)
        munmap(region, REGION_BYTES);
    region = NULL; /* where a thread is inside still, its memory stays */
    return n;
}

EXPORT void dpro_traceme_stats(uint64_t out[3])
{
    out[0] = n_kept;
    out[1] = n_lost;
    out[2] = n_strange;
}
