/* A public call that fails leaves nothing behind, wherever it fails; one that succeeds leaves all
 * to its caller. */
#include <fcntl.h>
#include <unistd.h>

#include <dpro/error.h>

#include "base/parallel.h"
#include "case.h"
#include "nomem.h"

typedef ARRAY(char *) texts_array;

static bool is_open(int fd)
{
    return fcntl(fd, F_GETFD) >= 0;
}

static int open_fd(void)
{
    int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    return fd;
}

static void free_texts(texts_array *texts)
{
    for (size_t i = 0; i < texts->n; i++)
        mem_free(texts->at[i]);
    array_fini(texts);
}

/* Allocates in every way, moves and frees some of it, and leaves 200 texts. */
static int make_texts(texts_array *out, int result)
{
    texts_array texts = {0};
    struct arena scratch = {0};
    char *moved = mem_alloc(1);
    for (int i = 0; i < 200; i++) {
        array_push(&texts, i % 2 ? mem_format("text %d", i) : mem_copy_string("text"));
        arena_array(&scratch, 1000, sizeof(int));
        mem_free(mem_array(3, 5));
        moved = mem_resize(moved, (size_t)i + 1, 64);
    }
    mem_free(moved);
    arena_fini(&scratch);
    if (result == 0)
        *out = texts;
    return result;
}

static void make_or_refuse(texts_array *out, bool refuses)
{
    make_texts(out, 0);
    if (refuses)
        fail_with(DPRO_EUSAGE, "%d texts", 200);
}

/* Asks twice within a scope: what is refused leaves nothing, what is made is the scope's. */
static int ask_twice(texts_array *out, int result)
{
    texts_array refused;
    struct dpro_error err = {.code = 0};
    long n_before = nomem_n_blocks;
    int rc = OUTCOME(&err, make_or_refuse(&refused, true));
    memory_check();
    assert_int_equal(rc, DPRO_EUSAGE);
    assert_int_equal(err.code, DPRO_EUSAGE);
    assert_string_equal(err.text, "200 texts");
    assert_int_equal(nomem_n_blocks, n_before);
    rc = OUTCOME(&err, make_or_refuse(out, false));
    memory_check();
    assert_int_equal(rc, 0);
    return result;
}

static int ask_within(texts_array *out, int result)
{
    return WITHIN_SCOPE(DPRO_ENOMEM, ask_twice(out, result));
}

TEST(a_refusal_frees_what_it_allocated_and_the_caller_goes_on)
{
    texts_array texts;
    long n = 0, n_before = nomem_n_blocks;
    int rc = DPRO_ENOMEM;
    assert_int_equal(ask_within(&texts, DPRO_EFORMAT), DPRO_EFORMAT);
    assert_int_equal(nomem_n_blocks, n_before);
    for (; rc == DPRO_ENOMEM; n++) {
        nomem_n_left = n;
        rc = ask_within(&texts, 0);
        nomem_n_left = -1;
        if (rc != 0)
            assert_int_equal(nomem_n_blocks, n_before);
    }
    assert_int_equal(rc, 0);
    assert_true(n > 800);
    free_texts(&texts);
    assert_int_equal(nomem_n_blocks, n_before);
}

TEST(what_a_call_without_memory_allocated_is_freed)
{
    int rc = DPRO_ENOMEM;
    long n = 0, n_before = nomem_n_blocks;
    for (; rc == DPRO_ENOMEM; n++) {
        texts_array texts = {0};
        nomem_n_left = n;
        rc = WITHIN_SCOPE(DPRO_ENOMEM, make_texts(&texts, 0));
        nomem_n_left = -1;
        assert_int_equal(texts.n, rc == 0 ? 200 : 0);
        free_texts(&texts);
        assert_int_equal(nomem_n_blocks, n_before);
    }
    assert_int_equal(rc, 0);
    assert_true(n > 400);
}

TEST(what_a_call_that_fails_for_another_reason_allocated_is_freed)
{
    texts_array texts = {0};
    long n_before = nomem_n_blocks;
    assert_int_equal(WITHIN_SCOPE(DPRO_ENOMEM, make_texts(&texts, DPRO_EFORMAT)), DPRO_EFORMAT);
    assert_int_equal(nomem_n_blocks, n_before);
}

/* ---- threads ---- */

struct items {
    texts_array texts[64];
    bool passed; /* the work behind the loop ran */
};

static void make_item(void *arg, size_t item)
{
    make_texts((texts_array *)arg + item, 0);
}

static void make_pair_of_items(void *arg, size_t pair)
{
    parallel_for(2, 2, make_item, (texts_array *)arg + 2 * pair);
}

static int make_items(struct items *items, bool nested)
{
    if (nested)
        parallel_for(32, 4, make_pair_of_items, items->texts);
    else
        parallel_for(64, 8, make_item, items->texts);
    items->passed = true;
    return 0;
}

static void lack_memory_in_threads(bool nested)
{
    int rc = DPRO_ENOMEM;
    long n_before = nomem_n_blocks;
    for (long n = 0; rc == DPRO_ENOMEM; n += n < 100 ? 1 : 997) {
        struct items items = {0};
        nomem_n_left = n;
        rc = WITHIN_SCOPE(DPRO_ENOMEM, make_items(&items, nested));
        nomem_n_left = -1;
        assert_int_equal(items.passed, rc == 0);
        for (int i = 0; i < 64 && rc == 0; i++)
            free_texts(&items.texts[i]);
        assert_int_equal(nomem_n_blocks, n_before);
    }
    assert_int_equal(rc, 0);
}

TEST(lack_of_memory_in_a_thread_ends_the_call_and_frees_what_all_threads_allocated)
{
    lack_memory_in_threads(false);
}

TEST(so_it_does_in_a_loop_within_a_loop)
{
    lack_memory_in_threads(true);
}

/* ---- frames within frames ---- */

struct undone {
    bool undone, passed;
    int inner;
};

static int undo_on_the_way(struct undone *undone, int inner, int result)
{
    texts_array texts;
    undone->inner = WITHIN_SCOPE(DPRO_ENOMEM, make_texts(&texts, inner));
    undone->undone = true;
    memory_check();
    undone->passed = true;
    return result;
}

TEST(what_is_no_memory_can_be_undone_on_the_way_out)
{
    struct undone undone = {0};
    long n_before = nomem_n_blocks;
    nomem_n_left = 100;
    assert_int_equal(WITHIN_SCOPE(DPRO_ENOMEM, undo_on_the_way(&undone, 0, 0)), DPRO_ENOMEM);
    nomem_n_left = -1;
    assert_true(undone.undone && !undone.passed);
    assert_int_equal(undone.inner, DPRO_ENOMEM);
    assert_int_equal(nomem_n_blocks, n_before);
}

static int ignore_failure(struct undone *undone)
{
    texts_array texts = {0};
    undone->inner = WITHIN_SCOPE(DPRO_ENOMEM, make_texts(&texts, 0));
    return 0; /* no memory_check() */
}

TEST(a_call_in_which_memory_ran_out_never_succeeds)
{
    struct undone undone = {0};
    long n_before = nomem_n_blocks;
    nomem_n_left = 300;
    assert_int_equal(WITHIN_SCOPE(DPRO_ENOMEM, ignore_failure(&undone)), DPRO_ENOMEM);
    nomem_n_left = -1;
    assert_int_equal(nomem_n_blocks, n_before);
}

TEST(a_call_goes_on_after_an_inner_one_that_failed_and_frees_what_that_left)
{
    struct undone undone = {0};
    long n_before = nomem_n_blocks;
    assert_int_equal(WITHIN_SCOPE(DPRO_ENOMEM, undo_on_the_way(&undone, DPRO_EIO, DPRO_EEMPTY)),
                     DPRO_EEMPTY);
    assert_true(undone.passed);
    assert_int_equal(undone.inner, DPRO_EIO);
    assert_int_equal(nomem_n_blocks, n_before);
}

/* ---- what lives longer ---- */

static int grow_and_fail(texts_array *texts, int result)
{
    for (int i = 0; i < 1000; i++)
        array_push(texts, NULL);
    return result;
}

TEST(memory_from_before_a_call_stays_where_the_call_moved_it_and_failed)
{
    texts_array texts = {0};
    array_push(&texts, mem_copy_string("kept"));
    assert_int_equal(WITHIN_SCOPE(DPRO_ENOMEM, grow_and_fail(&texts, DPRO_EFORMAT)), DPRO_EFORMAT);
    assert_string_equal(texts.at[0], "kept");
    free_texts(&texts);
}

/* ---- descriptors ---- */

static int keep_two(int fds[2], int result)
{
    for (int i = 0; i < 2; i++)
        fds[i] = mem_keep_fd(open_fd());
    mem_close_fd(fds[0]);
    return result;
}

TEST(a_kept_descriptor_is_closed_where_the_call_fails)
{
    int fds[2];
    assert_int_equal(WITHIN_SCOPE(DPRO_ENOMEM, keep_two(fds, DPRO_EIO)), DPRO_EIO);
    assert_false(is_open(fds[0]));
    assert_false(is_open(fds[1]));
}

TEST(a_kept_descriptor_stays_open_where_the_call_succeeds)
{
    int fds[2];
    assert_int_equal(WITHIN_SCOPE(DPRO_ENOMEM, keep_two(fds, 0)), 0);
    assert_false(is_open(fds[0]));
    assert_true(is_open(fds[1]));
    close(fds[1]);
}

/* A closed descriptor's number may be another file's by the time the call fails. */
static int close_and_open(int *other)
{
    int fd = mem_keep_fd(open_fd());
    mem_close_fd(fd);
    *other = open_fd();
    return DPRO_EIO;
}

TEST(a_closed_descriptor_is_not_closed_again)
{
    int other;
    assert_int_equal(WITHIN_SCOPE(DPRO_ENOMEM, close_and_open(&other)), DPRO_EIO);
    assert_true(is_open(other));
    close(other);
}

static int keep_one(int *fd)
{
    *fd = open_fd();
    mem_keep_fd(*fd);
    return 0;
}

TEST(a_descriptor_that_cannot_be_kept_is_closed)
{
    int fd;
    nomem_n_left = 0;
    assert_int_equal(WITHIN_SCOPE(DPRO_ENOMEM, keep_one(&fd)), DPRO_ENOMEM);
    nomem_n_left = -1;
    assert_false(is_open(fd));
    assert_int_equal(mem_keep_fd(-1), -1);
}

/* ---- the user's functions ---- */

static void keep_text(void *arg, enum dpro_log_level level, const char *message)
{
    *(char **)arg = mem_copy_string(message);
}

static int log_and_fail(const struct dpro_sink *sink)
{
    log_line(sink, DPRO_LOG_WARN, "remember");
    return DPRO_EFORMAT;
}

TEST(what_a_users_function_creates_stays_where_the_call_around_it_fails)
{
    char *text = NULL;
    struct dpro_sink sink = {.level = DPRO_LOG_WARN, .arg = &text, .log = keep_text};
    assert_int_equal(WITHIN_SCOPE(DPRO_ENOMEM, log_and_fail(&sink)), DPRO_EFORMAT);
    assert_string_equal(text, "remember");
    mem_free(text);
}

TEST(outside_of_a_scope_memory_is_the_callers)
{
    long n_before = nomem_n_blocks;
    texts_array texts = {0};
    assert_int_equal(make_texts(&texts, 0), 0);
    assert_null(memory_scope());
    free_texts(&texts);
    assert_int_equal(nomem_n_blocks, n_before);
}
