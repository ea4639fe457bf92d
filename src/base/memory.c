/* A scope is a hash set of blocks. Its room for a block is made before the block, so that a block
 * is never without a place in it. */
#include "base/base.h"

#include <sys/mman.h>
#include <unistd.h>

static _Thread_local struct memory_frame *current;

static size_t slot_of(const struct memory_scope *scope, const void *block)
{
    size_t mask = scope->n_slots - 1, slot = map_mix((uintptr_t)block) & mask;
    while (scope->blocks[slot] && scope->blocks[slot] != block)
        slot = (slot + 1) & mask;
    return slot;
}

static bool memory_grow(struct memory_scope *scope)
{
    struct memory_scope bigger = {.n_slots = scope->n_slots ? scope->n_slots * 2 : 64};
    bigger.blocks = calloc(bigger.n_slots, sizeof *bigger.blocks);
    if (!bigger.blocks)
        return false;
    for (size_t i = 0; i < scope->n_slots; i++)
        if (scope->blocks[i])
            bigger.blocks[slot_of(&bigger, scope->blocks[i])] = scope->blocks[i];
    free(scope->blocks);
    scope->blocks = bigger.blocks;
    scope->n_slots = bigger.n_slots;
    return true;
}

/* Makes room for a block that comes; false: memory ran out. */
static bool expect_block(struct memory_scope *scope)
{
    pthread_mutex_lock(&scope->lock);
    bool ready = !scope->failed && (scope->n * 2 < scope->n_slots || memory_grow(scope));
    scope->n += ready;
    pthread_mutex_unlock(&scope->lock);
    return ready;
}

static void add_block(struct memory_scope *scope, void *block)
{
    pthread_mutex_lock(&scope->lock);
    scope->blocks[slot_of(scope, block)] = block;
    pthread_mutex_unlock(&scope->lock);
}

/* Takes a block out and keeps its room if `expected`. Returns whether it was there. */
static bool take_block(struct memory_scope *scope, const void *block, bool expected)
{
    pthread_mutex_lock(&scope->lock);
    size_t mask = scope->n_slots - 1, hole = scope->n_slots ? slot_of(scope, block) : 0;
    bool known = scope->n_slots && scope->blocks[hole];
    if (known) {
        scope->n -= !expected;
        scope->blocks[hole] = NULL;
        for (size_t at = (hole + 1) & mask; scope->blocks[at]; at = (at + 1) & mask) {
            size_t home = map_mix((uintptr_t)scope->blocks[at]) & mask;
            if (((at - home) & mask) < ((at - hole) & mask))
                continue;
            scope->blocks[hole] = scope->blocks[at];
            scope->blocks[at] = NULL;
            hole = at;
        }
    }
    pthread_mutex_unlock(&scope->lock);
    return known;
}

void mem_fail(void)
{
    if (!current) {
        fputs("dpro: out of memory\n", stderr);
        abort();
    }
    current->scope->failed = true;
    longjmp(current->env, 1); /* not _longjmp(), which the thread sanitizer doesn't see */
}

/* A block that was had within the room that expect_block() made. */
static void *memory_own(void *block)
{
    if (!block)
        mem_fail();
    if (current)
        add_block(current->scope, block);
    return block;
}

enum { PAGE = 1 << 12, HUGE_PAGE = 1 << 21 };

/* Large blocks take huge pages where the system has them: there are fewer faults, and addresses are
 * found faster. */
static void *advise_huge(void *at, size_t bytes)
{
    size_t head = (size_t) - (uintptr_t)at & (PAGE - 1);
    if (at && bytes >= 2 * HUGE_PAGE)
        madvise((char *)at + head, (bytes - head) & ~(size_t)(PAGE - 1), MADV_HUGEPAGE);
    return at;
}

void *mem_alloc(size_t size)
{
    if (current && !expect_block(current->scope))
        mem_fail();
    void *at = NULL;
    if (size < 2 * HUGE_PAGE)
        at = malloc(size ? size : 1);
    else if (posix_memalign(&at, HUGE_PAGE, size) == 0) /* the first page is a huge one, too */
        advise_huge(at, size);
    return memory_own(at);
}

void *mem_array(size_t count, size_t size)
{
    if (current && !expect_block(current->scope))
        mem_fail();
    return memory_own(advise_huge(calloc(count ? count : 1, size), count * size));
}

void *mem_resize(void *at, size_t count, size_t size)
{
    size_t total;
    if (__builtin_mul_overflow(count, size, &total))
        mem_fail();
    if (!at)
        return mem_alloc(total);
    bool known = current && take_block(current->scope, at, true);
    void *grown = advise_huge(realloc(at, total ? total : 1), total);
    if (known)
        add_block(current->scope, grown ? grown : at);
    if (!grown)
        mem_fail();
    return grown;
}

void mem_free(void *at)
{
    if (at && current)
        take_block(current->scope, at, false);
    free(at);
}

void mem_free_at(void *at)
{
    void *held;
    memcpy(&held, at, sizeof held);
    mem_free(held);
    memset(at, 0, sizeof held);
}

void mem_free_all(void *const *ats, size_t n)
{
    for (size_t i = 0; i < n; i++)
        mem_free_at(ats[i]);
}

static void *fd_block(int fd)
{
    return (void *)((uintptr_t)fd * 2 + 1);
}

int mem_keep_fd(int fd)
{
    if (fd < 0 || !current)
        return fd;
    if (!expect_block(current->scope)) {
        close(fd);
        mem_fail();
    }
    add_block(current->scope, fd_block(fd));
    return fd;
}

int mem_close_fd(int fd)
{
    if (current)
        take_block(current->scope, fd_block(fd), false);
    return close(fd);
}

/* The scope knows pages by an address that no allocated block has. */
enum { PAGES_TAG = 2 };

void *mem_map(size_t size)
{
    if (current && !expect_block(current->scope))
        mem_fail();
    char *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED)
        mem_fail();
    *(size_t *)(void *)at = size;
    if (current)
        add_block(current->scope, at + PAGES_TAG);
    return at;
}

static void memory_unmap(void *at)
{
    munmap(at, *(size_t *)at);
}

void mem_unmap(void *at)
{
    if (current)
        take_block(current->scope, (char *)at + PAGES_TAG, false);
    memory_unmap(at);
}

char *mem_copy_string(const char *text)
{
    size_t size = strlen(text) + 1;
    return memcpy(mem_alloc(size), text, size);
}

char *mem_format(const char *format, ...)
{
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int len = vsnprintf(NULL, 0, format, args);
    if (len < 0)
        mem_fail();
    char *text = mem_alloc((size_t)len + 1);
    vsnprintf(text, (size_t)len + 1, format, again);
    va_end(again);
    va_end(args);
    return text;
}

/* Leaves the blocks to those who point to them. */
static void memory_scope_forget(struct memory_scope *scope)
{
    free(scope->blocks);
    *scope = (struct memory_scope){.lock = PTHREAD_MUTEX_INITIALIZER};
}

static void memory_scope_free(struct memory_scope *scope)
{
    for (size_t i = 0; i < scope->n_slots; i++)
        if ((uintptr_t)scope->blocks[i] & 1)
            close((int)((uintptr_t)scope->blocks[i] / 2));
        else if ((uintptr_t)scope->blocks[i] & PAGES_TAG)
            memory_unmap((char *)scope->blocks[i] - PAGES_TAG);
        else
            free(scope->blocks[i]);
    memory_scope_forget(scope);
}

void memory_enter(struct memory_frame *frame, struct memory_scope *scope)
{
    frame->outer = current;
    frame->own = (struct memory_scope){.lock = PTHREAD_MUTEX_INITIALIZER};
    frame->scope = current ? current->scope : scope ? scope : &frame->own;
    frame->is_outcome = false;
    current = frame;
}

bool memory_leave(struct memory_frame *frame, bool fails)
{
    bool failed = frame->scope->failed;
    current = frame->outer;
    if (frame->scope == &frame->own && (failed || fails))
        memory_scope_free(&frame->own);
    else if (frame->scope == &frame->own)
        memory_scope_forget(&frame->own);
    return !failed;
}

void outcome_enter(struct memory_frame *frame, struct dpro_error *err)
{
    struct memory_frame *outer = memory_step_out();
    memory_enter(frame, NULL);
    frame->outer = outer;
    frame->err = err;
    frame->code = 0;
    frame->is_outcome = true;
}

/* What it made is the outer scope's. False: memory ran out. */
static bool hand_over(const struct memory_scope *from, struct memory_scope *to)
{
    for (size_t i = 0; i < from->n; i++)
        if (!expect_block(to))
            return false;
    for (size_t i = 0; i < from->n_slots; i++)
        if (from->blocks[i])
            add_block(to, from->blocks[i]);
    return true;
}

int outcome_leave(struct memory_frame *frame)
{
    struct memory_frame *outer = frame->outer;
    bool failed = frame->own.failed;
    if (outer && !failed && frame->code == 0)
        failed = !hand_over(&frame->own, outer->scope);
    if (failed && outer)
        outer->scope->failed = true;
    memory_leave(frame, frame->code < 0 || failed);
    return failed ? dpro_error_nomem(frame->err) : frame->code;
}

void fail_with(int code, const char *format, ...)
{
    struct memory_frame *frame = current;
    struct dpro_error why;
    va_list args;
    va_start(args, format);
    dpro_error_vset(&why, code, format, args);
    va_end(args);
    while (frame && !frame->is_outcome)
        frame = frame->outer;
    if (!frame) {
        fprintf(stderr, "dpro: %s\n", why.text);
        abort();
    }
    if (frame->err)
        *frame->err = why;
    frame->code = code;
    current = frame;
    longjmp(frame->env, 1);
}

void fail_on(int code, const struct dpro_error *why)
{
    if (code < 0)
        fail_with(code, "%s", why->text);
}

struct memory_scope *memory_scope(void)
{
    return current ? current->scope : NULL;
}

void memory_check(void)
{
    if (current && current->scope->failed)
        longjmp(current->env, 1);
}

struct memory_frame *memory_step_out(void)
{
    struct memory_frame *frame = current;
    current = NULL;
    return frame;
}

void memory_step_in(struct memory_frame *frame)
{
    current = frame;
}
