/* Preloaded into a training job, counts the bytes that live tensors hold, without a profiler: what
 * is asked of posix_memalign and not yet freed. PyTorch's allocator for CPUs calls it from libc10;
 * other libraries (oneDNN's scratch) are counted apart. The job reads and resets the peak through
 * the functions at the end (ctypes). */
#include <errno.h>
#include <link.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

void *__libc_memalign(size_t alignment, size_t size_bytes);
void __libc_free(void *block);
void *__libc_realloc(void *block, size_t size_bytes);

#define EXPORT    __attribute__((visibility("default")))
#define N_SLOTS   (1u << 20) /* far more than a job has live tensors */
#define ALIGNMENT 64         /* of PyTorch; others are not looked for when freed */

enum { TENSORS, OTHERS, N_OWNERS };

struct slot {
    uintptr_t block;
    uint64_t size_bytes : 63;
    uint64_t owner : 1;
};

static struct slot slots[N_SLOTS];
static uint32_t n_used;
static uint64_t held_bytes[N_OWNERS], peak_bytes[N_OWNERS], peak_all_bytes;
static uint64_t n_lost; /* found no slot */
static atomic_flag lock = ATOMIC_FLAG_INIT;
static _Atomic uintptr_t c10_begin, c10_end;

static void take_lock(void)
{
    while (atomic_flag_test_and_set_explicit(&lock, memory_order_acquire))
        ;
}

static void leave_lock(void)
{
    atomic_flag_clear_explicit(&lock, memory_order_release);
}

static uint32_t home_of(uintptr_t block)
{
    return (uint32_t)((block / ALIGNMENT * UINT64_C(0x9e3779b97f4a7c15)) >> 44) % N_SLOTS;
}

/* With the lock held, as are those below. */
static void add(uintptr_t block, size_t size_bytes, int owner)
{
    uint32_t at = home_of(block);
    if (n_used > N_SLOTS / 2) {
        n_lost++;
        return;
    }
    while (slots[at].block)
        at = (at + 1) % N_SLOTS;
    slots[at] = (struct slot){block, size_bytes, (uint64_t)owner};
    n_used++;
    held_bytes[owner] += size_bytes;
    if (held_bytes[owner] > peak_bytes[owner])
        peak_bytes[owner] = held_bytes[owner];
    if (held_bytes[TENSORS] + held_bytes[OTHERS] > peak_all_bytes)
        peak_all_bytes = held_bytes[TENSORS] + held_bytes[OTHERS];
}

static void drop(uintptr_t block)
{
    uint32_t at = home_of(block), next;
    while (slots[at].block && slots[at].block != block)
        at = (at + 1) % N_SLOTS;
    if (!slots[at].block)
        return;
    held_bytes[slots[at].owner] -= slots[at].size_bytes;
    n_used--;
    for (next = (at + 1) % N_SLOTS; slots[next].block; next = (next + 1) % N_SLOTS) {
        uint32_t home = home_of(slots[next].block); /* moves up unless it would pass its home */
        if ((next - home) % N_SLOTS >= (next - at) % N_SLOTS) {
            slots[at] = slots[next];
            at = next;
        }
    }
    slots[at].block = 0;
}

static int find_c10(struct dl_phdr_info *library, size_t size, void *unused)
{
    (void)size, (void)unused;
    if (!library->dlpi_name || !strstr(library->dlpi_name, "/libc10.so"))
        return 0;
    for (int i = 0; i < library->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &library->dlpi_phdr[i];
        if (part->p_type == PT_LOAD && (part->p_flags & PF_X)) {
            atomic_store(&c10_begin, library->dlpi_addr + part->p_vaddr);
            atomic_store(&c10_end, library->dlpi_addr + part->p_vaddr + part->p_memsz);
        }
    }
    return 1;
}

static void note_free(void *block)
{
    if (block && (uintptr_t)block % ALIGNMENT == 0) {
        take_lock();
        drop((uintptr_t)block);
        leave_lock();
    }
}

EXPORT int posix_memalign(void **block, size_t alignment, size_t size_bytes)
{
    uintptr_t caller = (uintptr_t)__builtin_return_address(0);
    *block = __libc_memalign(alignment, size_bytes);
    if (!*block)
        return ENOMEM;
    if (alignment % ALIGNMENT == 0) {
        int owner =
            caller >= atomic_load(&c10_begin) && caller < atomic_load(&c10_end) ? TENSORS : OTHERS;
        take_lock();
        add((uintptr_t)*block, size_bytes, owner);
        leave_lock();
    }
    return 0;
}

EXPORT void free(void *block)
{
    note_free(block);
    __libc_free(block);
}

EXPORT void *realloc(void *block, size_t size_bytes)
{
    note_free(block);
    return __libc_realloc(block, size_bytes);
}

#pragma GCC diagnostic ignored "-Wmissing-prototypes" /* only ctypes looks for them */

/* To be called once torch is loaded, before the first tensor; 0: libc10 was found. */
EXPORT int count_memory_begin(void)
{
    dl_iterate_phdr(find_c10, NULL);
    return atomic_load(&c10_end) ? 0 : -1;
}

EXPORT void count_memory_reset_peak(void)
{
    take_lock();
    memcpy(peak_bytes, held_bytes, sizeof peak_bytes);
    peak_all_bytes = held_bytes[TENSORS] + held_bytes[OTHERS];
    leave_lock();
}

EXPORT uint64_t count_memory_held(void)
{
    return held_bytes[TENSORS];
}

/* Since the last reset: of tensors; with what other libraries took. */
EXPORT uint64_t count_memory_peak(void)
{
    return peak_bytes[TENSORS];
}

EXPORT uint64_t count_memory_peak_all(void)
{
    return peak_all_bytes;
}

EXPORT uint64_t count_memory_lost(void)
{
    return n_lost;
}
