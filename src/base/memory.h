/* Memory that is never NULL.
 *
 * A public function runs its work within a *scope*. Where memory runs out, the work ends there and
 * the function returns DPRO_ENOMEM. Where it fails, for this or another reason, all that it
 * allocated is freed. What runs within a scope therefore never checks for memory, and frees only
 * what it no longer needs when all went well:
 *
 *     int dpro_graph_build(..., struct dpro_error *err)
 *     {
 *         return WITHIN_SCOPE(dpro_error_nomem(err), build(..., err));
 *     }
 *
 * Two rules follow. A longer-lived object must not get new memory from a later public call, since
 * that memory is freed where the call fails. What has to be undone and is neither memory nor a kept
 * file descriptor is undone on the way out:
 *
 *     int rc = WITHIN_SCOPE(DPRO_ENOMEM, read_all(folder, err));
 *     closedir(folder);
 *     memory_check();
 *
 * Threads of parallel_for() belong to the scope of its caller. Outside of a scope the functions
 * work, too, but lack of memory aborts the program: only tests and destructors run there. */
#pragma once

#include <pthread.h>
#include <setjmp.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

void *mem_alloc(size_t size);               /* not cleared */
void *mem_array(size_t count, size_t size); /* cleared */
void *mem_resize(void *at, size_t count, size_t size);
void mem_free(void *at);
/* Pages of their own, which go back to the system at once; mem_free() frees them. */
void *mem_map(size_t size);
/* A local pointer, ARRAY or struct map, zeroed or set where it is declared, whose memory is freed
 * where it goes out of sight:
 *     SCRATCH ARRAY(uint32_t) order = {0};
 * Not in a function that itself says WITHIN_SCOPE: what the scope has freed would be freed again.
 */
#define SCRATCH __attribute__((cleanup(mem_free_at)))
/* Frees what each pointer, ARRAY or struct map holds, whose addresses are given, and zeroes the
 * pointers: FREE_ALL(&graph->ops, &graph->names, &graph->rows). */
#define FREE_ALL(...)                                                                              \
    mem_free_all((void *[]){__VA_ARGS__}, sizeof((void *[]){__VA_ARGS__}) / sizeof(void *))
void mem_free_at(void *at); /* of a pointer, or of a struct that begins with its only one */
void mem_free_all(void *const *ats, size_t n);
char *mem_copy_string(const char *text);
char *mem_format(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* The scope closes `fd` with what it frees; returns fd, which may be -1. */
int mem_keep_fd(int fd);
int mem_close_fd(int fd); /* as close() */

/* Ends the work of the scope as if memory had run out. */
_Noreturn void mem_fail(void);
/* What can't be done, and why (printf rules): ends the work of the innermost OUTCOME(). */
_Noreturn void fail_with(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The same where `code` is negative, of what a function told that returns it. */
struct dpro_error;
void fail_on(int code, const struct dpro_error *why);

/* What was allocated and not freed, for the case that all of it has to go. Zeroed is empty. */
struct memory_scope {
    pthread_mutex_t lock;
    struct memory_block *blocks;
    int *fds; /* that are kept */
    size_t n_fds;
    atomic_bool failed; /* memory ran out in it; every later allocation in it fails */
};

/* A place in the call stack to which lack of memory leads. */
struct memory_frame {
    jmp_buf env;
    struct memory_scope *scope, own;
    struct memory_frame *outer;
    struct dpro_error *err; /* of an OUTCOME(): where it tells why it fails */
    int code;
    bool is_outcome;
};

/* Not to be called directly. `scope` is used where the thread is in no scope yet; NULL: one for
 * this frame, whose blocks are freed at the end if memory ran out or `fails`. memory_leave()
 * returns whether memory sufficed. */
void memory_enter(struct memory_frame *frame, struct memory_scope *scope);
bool memory_leave(struct memory_frame *frame, bool fails);

/* The value of `work`, an integer that is negative where it fails, or that of `no_memory` where
 * memory ran out in it. Within another scope lack of memory stops here on its way out; the other
 * scope fails, too. */
#define WITHIN_SCOPE(no_memory, work) WITHIN_SCOPE_OF(NULL, no_memory, work)
#define WITHIN_SCOPE_OF(scope, no_memory, work)                                                    \
    ({                                                                                             \
        struct memory_frame frame_;                                                                \
        volatile __typeof__(work) result_ = 0;                                                     \
        memory_enter(&frame_, (scope));                                                            \
        if (_setjmp(frame_.env) == 0)                                                              \
            result_ = (work);                                                                      \
        if (!memory_leave(&frame_, result_ < 0))                                                   \
            result_ = (no_memory);                                                                 \
        result_;                                                                                   \
    })

/* 0, or the code of what ended `work`, a call that returns nothing: *err then tells why. Its scope
 * is its own, also within another one: what it refuses leaves nothing behind, and is no failure of
 * the caller. All that it frees or makes larger it has allocated itself. */
#define OUTCOME(err, work)                                                                         \
    ({                                                                                             \
        struct memory_frame frame_;                                                                \
        outcome_enter(&frame_, (err));                                                             \
        if (_setjmp(frame_.env) == 0)                                                              \
            (work);                                                                                \
        outcome_leave(&frame_);                                                                    \
    })
void outcome_enter(struct memory_frame *frame, struct dpro_error *err);
int outcome_leave(struct memory_frame *frame);

/* The scope that this thread runs in, for a thread that works for it; NULL: none. */
struct memory_scope *memory_scope(void);
/* Goes on to the outer frame where memory ran out in this scope. */
void memory_check(void);

/* Around a call of the user's function, which runs outside of the scope: what it creates is its
 * own, whatever becomes of this call. */
struct memory_frame *memory_step_out(void);
void memory_step_in(struct memory_frame *frame);
