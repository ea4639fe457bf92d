/* Allocates, and frees all that a failed call took.
 *
 * Each block begins with its links: the blocks of a scope are a list, and a block that is freed or
 * moved needs no search. */
#include "base/base.h"

#include <sys/mman.h>
#include <unistd.h>

static _Thread_local struct memory_frame *current;

struct memory_block {
    struct memory_block *next, *prev;
    struct memory_scope *scope; /* whose list it is in; NULL: in none */
    size_t mapped;              /* bytes of pages of its own; 0: it is malloc()'s */
};

static struct memory_block *block_of(void *at)
{
    return (struct memory_block *)at - 1;
}

static void block_link(struct memory_block *block, struct memory_scope *scope)
{
    block->scope = scope;
    if (!scope)
        return;
    pthread_mutex_lock(&scope->lock);
    block->prev = NULL;
    block->next = scope->blocks;
    if (scope->blocks)
        scope->blocks->prev = block;
    scope->blocks = block;
    pthread_mutex_unlock(&scope->lock);
}

/* Returns the scope whose list it was in. */
static struct memory_scope *block_unlink(struct memory_block *block)
{
    struct memory_scope *scope = block->scope;
    if (!scope)
        return NULL;
    pthread_mutex_lock(&scope->lock);
    *(block->prev ? &block->prev->next : &scope->blocks) = block->next;
    if (block->next)
        block->next->prev = block->prev;
    pthread_mutex_unlock(&scope->lock);
    return scope;
}

static void block_free(struct memory_block *block)
{
    if (block->mapped)
        munmap(block, block->mapped);
    else
        free(block);
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

/* The bytes that a block takes with its links, where memory may be had at all. */
static size_t block_size(size_t count, size_t size)
{
    size_t total;
    if ((current && current->scope->failed) || __builtin_mul_overflow(count, size, &total) ||
        __builtin_add_overflow(total, sizeof(struct memory_block), &total))
        mem_fail();
    return total;
}

/* What is handed out of a block that was had. */
static void *block_own(struct memory_block *block, size_t mapped)
{
    if (!block)
        mem_fail();
    block->mapped = mapped;
    block_link(block, current ? current->scope : NULL);
    return block + 1;
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

static void *block_alloc(size_t total)
{
    void *at = NULL;
    if (total < 2 * HUGE_PAGE)
        at = malloc(total);
    else if (posix_memalign(&at, HUGE_PAGE, total) == 0) /* the first page is a huge one, too */
        advise_huge(at, total);
    return block_own(at, 0);
}

void *mem_alloc(size_t size)
{
    return block_alloc(block_size(1, size));
}

void *mem_array(size_t count, size_t size)
{
    size_t total = block_size(count, size);
    return block_own(advise_huge(calloc(1, total), total), 0);
}

void *mem_map(size_t size)
{
    size_t total = block_size(1, size);
    void *at = mmap(NULL, total, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return block_own(at == MAP_FAILED ? NULL : at, total);
}

void *mem_resize(void *at, size_t count, size_t size)
{
    size_t total = block_size(count, size);
    if (!at)
        return block_alloc(total);
    struct memory_block *block = block_of(at), *grown;
    struct memory_scope *scope = block_unlink(block);
    grown = advise_huge(realloc(block, total), total);
    block_link(grown ? grown : block, scope);
    if (!grown)
        mem_fail();
    return grown + 1;
}

void mem_free(void *at)
{
    if (!at)
        return;
    block_unlink(block_of(at));
    block_free(block_of(at));
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

/* False: memory ran out. */
static bool keep_fd(struct memory_scope *scope, int fd)
{
    pthread_mutex_lock(&scope->lock);
    int *fds = scope->failed ? NULL : realloc(scope->fds, (scope->n_fds + 1) * sizeof *fds);
    if (fds) {
        fds[scope->n_fds++] = fd;
        scope->fds = fds;
    }
    pthread_mutex_unlock(&scope->lock);
    return fds != NULL;
}

int mem_keep_fd(int fd)
{
    if (fd < 0 || !current || keep_fd(current->scope, fd))
        return fd;
    close(fd);
    mem_fail();
}

int mem_close_fd(int fd)
{
    struct memory_scope *scope = current ? current->scope : NULL;
    if (scope) {
        size_t i = 0;
        pthread_mutex_lock(&scope->lock);
        while (i < scope->n_fds && scope->fds[i] != fd)
            i++;
        if (i < scope->n_fds)
            scope->fds[i] = scope->fds[--scope->n_fds];
        pthread_mutex_unlock(&scope->lock);
    }
    return close(fd);
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

/* Frees all blocks, or leaves them to those who point to them. */
static void memory_scope_end(struct memory_scope *scope, bool frees)
{
    for (struct memory_block *block = scope->blocks, *next; block; block = next) {
        next = block->next;
        block->scope = NULL;
        if (frees)
            block_free(block);
    }
    for (size_t i = 0; frees && i < scope->n_fds; i++)
        close(scope->fds[i]);
    free(scope->fds);
    *scope = (struct memory_scope){.lock = PTHREAD_MUTEX_INITIALIZER};
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
    if (frame->scope == &frame->own)
        memory_scope_end(&frame->own, failed || fails);
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
static bool hand_over(struct memory_scope *from, struct memory_scope *to)
{
    for (struct memory_block *block; (block = from->blocks) != NULL;) {
        block_unlink(block);
        block_link(block, to);
    }
    while (from->n_fds > 0 && keep_fd(to, from->fds[from->n_fds - 1]))
        from->n_fds--;
    return from->n_fds == 0;
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

/* Growth by half. */
void array_grow(void **at, size_t *cap, size_t n, size_t extra, size_t size)
{
    size_t need, want = MIN(MAX(*cap + *cap / 2, 16), ARRAY_MOST);
    if (__builtin_add_overflow(n, extra, &need) || need > ARRAY_MOST)
        mem_fail();
    want = MAX(want, need);
    *at = mem_resize(*at, want, size);
    *cap = want;
}
