/* The log writer keeps what it says it keeps, whatever happens to it. */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../unit/case.h"
#include "../unit/temp_folder.h"
#include "log.h"
#include "read_log.h"

#define TYPE ((enum record_type)200) /* the tests' own */

struct numbered {
    struct record head;
    uint64_t number;
    uint64_t check; /* ~number */
    uint64_t filler;
};

static char path[96], old_path[104];
static const struct log_options plain = {.kind = LOG_TRANSPORT, .rank = 3};

static int make_log_folder(void **state)
{
    int rc = make_folder(state);
    snprintf(path, sizeof path, "%s/net.log", folder);
    snprintf(old_path, sizeof old_path, "%s.old", path);
    return rc;
}

static int remove_log_folder(void **state)
{
    log_stop();
    remove_folder(state); /* unless a test has removed it */
    return 0;
}

#define CASE(name) TEST_BETWEEN(name, make_log_folder, remove_log_folder)

static bool put(uint64_t number)
{
    struct numbered *r = log_reserve(sizeof *r);
    if (!r)
        return false;
    *r = (struct numbered){log_head(TYPE, sizeof *r), number, ~number, 0};
    log_commit();
    return true;
}

static void sleep_ms(long ms)
{
    nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000}, NULL);
}

struct found {
    uint64_t n, first, last, n_anchors, n_marks, n_lost;
    bool in_order, whole;
};

static struct found read_back(const char *file_path)
{
    struct log_file file;
    struct found found = {.first = UINT64_MAX, .in_order = true};
    assert_true(log_file_open(&file, file_path));
    const struct record *r;
    while ((r = log_file_next(&file))) {
        const struct numbered *numbered = (const void *)r;
        if (r->type == TYPE) {
            found.in_order = found.in_order && numbered->check == ~numbered->number &&
                             (found.n == 0 || numbered->number > found.last);
            if (found.n++ == 0)
                found.first = numbered->number;
            found.last = numbered->number;
        } else if (r->type == RECORD_LOSS) {
            found.n_lost = ((const struct record_loss *)(const void *)r)->n_records;
        }
        found.n_anchors += r->type == RECORD_ANCHOR;
        found.n_marks += r->type == RECORD_MARK;
    }
    found.whole = log_file_whole(&file);
    log_file_close(&file);
    return found;
}

CASE(a_log_holds_its_header_anchors_and_records)
{
    struct log_file file;
    assert_false(log_on());
    assert_null(log_reserve(32));
    assert_int_equal(log_start(path, &plain), 0);
    assert_true(log_on());
    assert_int_equal(log_start(path, &plain), -EALREADY);
    log_mark("timing");
    assert_true(put(7));
    log_stop();
    assert_false(log_on());
    assert_true(log_file_open(&file, path));
    assert_int_equal(file.header->version, LOG_VERSION);
    assert_int_equal(file.header->kind, LOG_TRANSPORT);
    assert_int_equal(file.header->rank, 3);
    assert_int_equal(file.header->pid, getpid());
    assert_int_equal(strlen(file.header->boot_id), 36);
    assert_true(file.header->net_ns != 0 && file.header->host[0] != '\0');
    log_file_close(&file);
    struct found found = read_back(path);
    assert_true(found.whole);
    assert_int_equal(found.n, 1);
    assert_int_equal(found.first, 7);
    assert_int_equal(found.n_marks, 1);
    assert_true(found.n_anchors >= 2);
    assert_int_equal(found.n_lost, 0);
}

CASE(an_anchor_names_one_instant_on_three_clocks)
{
    struct log_file file;
    struct timespec real, mono;
    assert_int_equal(log_start(path, &plain), 0);
    sleep_ms(2200);
    log_stop();
    clock_gettime(CLOCK_REALTIME, &real);
    clock_gettime(CLOCK_MONOTONIC, &mono);
    int64_t difference = (real.tv_sec - mono.tv_sec) * 1000000000 + real.tv_nsec - mono.tv_nsec;
    int n = 0;
    assert_true(log_file_open(&file, path));
    for (const struct record *r; (r = log_file_next(&file));)
        if (r->type == RECORD_ANCHOR) {
            const struct record_anchor *anchor = (const void *)r;
            int64_t error = anchor->realtime_ns - anchor->monotonic_ns - difference;
            assert_true(error > -5000000 && error < 5000000);
            n++;
        }
    assert_true(n >= 4); /* start, two seconds, end */
    log_file_close(&file);
}

CASE(a_stopped_log_is_gone_on_with)
{
    for (uint64_t i = 0; i < 3; i++) {
        assert_int_equal(log_start(path, &plain), 0);
        assert_true(put(i));
        log_stop();
        assert_false(put(99));
    }
    struct found found = read_back(path);
    assert_int_equal(found.n, 3);
    assert_true(found.in_order && found.whole);
}

CASE(a_record_within_a_record_is_refused_and_counted)
{
    assert_int_equal(log_start(path, &plain), 0);
    uint64_t lost = log_stats().n_lost;
    struct numbered *r = log_reserve(sizeof *r);
    assert_non_null(r);
    assert_null(log_reserve(sizeof *r));
    *r = (struct numbered){log_head(TYPE, sizeof *r), 1, ~1ull, 0};
    log_commit();
    assert_int_equal(log_stats().n_lost - lost, 1);
    log_stop();
    struct found found = read_back(path);
    assert_int_equal(found.n, 1);
    assert_int_equal(found.n_lost, 1);
}

enum { N_THREADS = 200, N_EACH = 2000 };

static void *put_many(void *arg)
{
    uint64_t base = (uint64_t)(uintptr_t)arg << 32, n = 0;
    for (uint64_t i = 0; i < N_EACH; i++)
        n += put(base + i);
    return (void *)(uintptr_t)n;
}

CASE(two_hundred_threads_lose_nothing_uncounted)
{
    pthread_t threads[N_THREADS];
    uint64_t n_kept = 0, last[N_THREADS] = {0}, n[N_THREADS] = {0}, lost = log_stats().n_lost;
    struct log_file file;
    assert_int_equal(log_start(path, &plain), 0);
    lost = log_stats().n_lost;
    for (uintptr_t i = 0; i < N_THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, put_many, (void *)i), 0);
    for (int i = 0; i < N_THREADS; i++) {
        void *kept;
        pthread_join(threads[i], &kept);
        n_kept += (uintptr_t)kept;
    }
    log_stop();
    assert_true(log_stats().memory_bytes < 12u << 20);
    assert_true(log_file_open(&file, path));
    for (const struct record *r; (r = log_file_next(&file));) {
        const struct numbered *numbered = (const void *)r;
        if (r->type != TYPE)
            continue;
        uint64_t thread = numbered->number >> 32;
        assert_true(thread < N_THREADS && numbered->check == ~numbered->number);
        assert_true(n[thread]++ == 0 || numbered->number > last[thread]);
        last[thread] = numbered->number;
        n_kept--;
    }
    assert_true(log_file_whole(&file));
    assert_int_equal(n_kept, 0);
    assert_true(n[0] + log_stats().n_lost - lost >= N_EACH);
    log_file_close(&file);
}

static void *put_one(void *arg)
{
    return (void *)(uintptr_t)put((uint64_t)(uintptr_t)arg);
}

CASE(threads_that_ended_make_room_for_others)
{
    assert_int_equal(log_start(path, &plain), 0);
    for (uintptr_t i = 0; i < 3000; i++) {
        pthread_t thread;
        void *kept;
        assert_int_equal(pthread_create(&thread, NULL, put_one, (void *)i), 0);
        pthread_join(thread, &kept);
        assert_non_null(kept);
    }
    log_stop();
    struct found found = read_back(path);
    assert_int_equal(found.n, 3000);
    assert_int_equal(found.n_lost, 0);
}

CASE(memory_stays_bounded_when_records_come_faster_than_the_disk)
{
    assert_int_equal(log_start(path, &plain), 0);
    uint64_t kept = 0, lost = log_stats().n_lost;
    for (uint64_t i = 0; i < 3000000; i++)
        kept += put(i);
    log_stop();
    assert_true(log_stats().memory_bytes < 12u << 20);
    assert_int_equal(kept + log_stats().n_lost - lost, 3000000);
    struct found found = read_back(path);
    assert_true(found.in_order && found.whole);
    assert_int_equal(found.n, kept);
}

CASE(a_full_log_keeps_the_oldest)
{
    struct stat st;
    struct log_options options = plain;
    options.max_bytes = 1 << 20;
    assert_int_equal(log_start(path, &options), 0);
    for (uint64_t i = 0; i < 100000; i++)
        put(i);
    log_stop();
    assert_int_equal(stat(path, &st), 0);
    assert_true(st.st_size <= 1 << 20);
    struct found found = read_back(path);
    assert_true(found.in_order && found.whole);
    assert_int_equal(found.first, 0);
    assert_true(found.n > 20000);
    assert_int_equal(found.n + found.n_lost, 100000);
}

static void write_again(void)
{
    struct record_mark mark = {{RECORD_MARK, 1, sizeof mark, 0}, 0, "again"};
    log_write_now(&mark, sizeof mark);
}

CASE(a_full_log_keeps_the_newest_in_two_segments)
{
    struct stat st, old_st;
    struct log_options options = plain;
    options.max_bytes = 1 << 20;
    options.keep_newest = true;
    options.on_segment = write_again;
    assert_int_equal(log_start(path, &options), 0);
    for (uint64_t i = 0; i < 100000; i++) {
        put(i);
        if (i % 1000 == 0)
            sleep_ms(2);
    }
    log_stop();
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(stat(old_path, &old_st), 0);
    assert_true(st.st_size + old_st.st_size <= 1 << 20);
    struct found older = read_back(old_path), newer = read_back(path);
    assert_true(older.in_order && older.whole && newer.in_order && newer.whole);
    assert_int_equal(newer.last, 99999);
    assert_int_equal(newer.first, older.last + 1);
    assert_int_equal(older.n + newer.n + newer.n_lost, 100000);
    assert_int_equal(newer.n_marks, 1);
    assert_int_equal(older.n_marks, 1);
}

CASE(a_forked_child_records_nothing_until_it_starts_a_log_of_its_own)
{
#ifdef __SANITIZE_THREAD__
    print_message("the thread sanitizer's runtime starts no thread in a forked child\n");
    skip();
#endif
    char child_path[104];
    snprintf(child_path, sizeof child_path, "%s.child", path);
    assert_int_equal(log_start(path, &plain), 0);
    assert_true(put(1));
    pid_t pid = fork();
    if (pid == 0) {
        if (log_on() || put(2))
            _exit(1);
        if (log_start(child_path, &plain) != 0 || !put(3))
            _exit(2);
        log_stop();
        _exit(log_on() ? 3 : 0);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    assert_true(put(4));
    log_stop();
    struct found found = read_back(path), child = read_back(child_path);
    unlink(child_path);
    assert_int_equal(found.n, 2);
    assert_int_equal(found.last, 4);
    assert_int_equal(child.n, 1);
    assert_int_equal(child.first, 3);
}

CASE(a_killed_process_leaves_what_is_older_than_a_tenth_of_a_second)
{
    pid_t pid = fork();
    if (pid == 0) {
        if (log_start(path, &plain) != 0)
            _exit(1);
        for (uint64_t i = 0; i < 1000; i++)
            put(i);
        sleep_ms(400); /* four times what it may take: other jobs run here */
        for (uint64_t i = 1000;; i++)
            put(i);
    }
    sleep_ms(900);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    struct found found = read_back(path);
    assert_true(found.in_order);
    assert_true(found.n >= 1000);
}

/* The child's stderr, and its exit status in *status. */
static void say_of_child(void (*body)(void), char *text, size_t size, int *status)
{
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    pid_t pid = fork();
    if (pid == 0) {
        dup2(ends[1], STDERR_FILENO);
        body();
        _exit(0);
    }
    close(ends[1]);
    size_t n = 0;
    for (ssize_t got; n < size - 1 && (got = read(ends[0], text + n, size - 1 - n)) > 0;)
        n += (size_t)got;
    text[n] = '\0';
    close(ends[0]);
    assert_int_equal(waitpid(pid, status, 0), pid);
}

static void lose_the_folder(void)
{
    if (log_start(path, &plain) != 0)
        _exit(1);
    put(1);
    sleep_ms(300);
    unlink(path);
    rmdir(folder);
    for (uint64_t i = 0; i < 30; i++) {
        put(i);
        sleep_ms(10);
    }
    log_stop();
    _exit(log_on() ? 2 : 0);
}

static int lines_in(const char *text)
{
    int n = 0;
    for (; *text; text++)
        n += *text == '\n';
    return n;
}

CASE(a_folder_removed_midway_is_said_and_the_job_goes_on)
{
    char text[1000];
    int status;
    say_of_child(lose_the_folder, text, sizeof text, &status);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    assert_non_null(strstr(text, "can't be opened: No such file or directory"));
    assert_true(lines_in(text) <= 2); /* the cause, and how much was lost */
}

static void fill_the_disk(void)
{
    struct rlimit limit = {100000, 100000};
    setrlimit(RLIMIT_FSIZE, &limit);
    if (log_start(path, &plain) != 0)
        _exit(1);
    for (uint64_t i = 0; i < 50000; i++)
        put(i);
    log_stop();
    _exit(log_on() ? 2 : 0);
}

CASE(a_full_disk_leaves_a_whole_log_and_the_job_goes_on)
{
    char text[1000];
    int status;
    say_of_child(fill_the_disk, text, sizeof text, &status);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    assert_non_null(strstr(text, "can't be written"));
    assert_int_equal(lines_in(text), 2);
    struct found found = read_back(path);
    assert_true(found.whole && found.in_order);
}

CASE(a_log_that_can_not_be_made_is_an_error_for_the_caller)
{
    assert_int_equal(log_start("/nonexistent/folder/net.log", &plain), -ENOENT);
    assert_int_equal(log_start("", &plain), -ENOENT);
    assert_int_equal(log_start("/dev/full", &plain), -EINVAL);
    assert_false(log_on());
    assert_int_equal(log_start(path, &plain), 0);
}

CASE(descriptors_that_run_out_are_waited_for)
{
    struct rlimit before, none;
    assert_int_equal(log_start(path, &plain), 0);
    sleep_ms(100);
    getrlimit(RLIMIT_NOFILE, &before);
    none = (struct rlimit){0, before.rlim_max};
    setrlimit(RLIMIT_NOFILE, &none);
    for (uint64_t i = 0; i < 100; i++)
        put(i);
    sleep_ms(200);
    setrlimit(RLIMIT_NOFILE, &before);
    log_stop();
    assert_int_equal(read_back(path).n, 100);
}

static volatile sig_atomic_t n_handled;

static void put_in_handler(int number)
{
    (void)number;
    n_handled += put(UINT32_MAX);
}

CASE(a_signal_handler_may_record)
{
    struct sigaction action = {.sa_handler = put_in_handler}, before;
    struct itimerval often = {{0, 50}, {0, 50}}, never = {{0, 0}, {0, 0}};
    struct log_file file;
    uint64_t n = 0, n_signal = 0, n_main = 0, last = 0;
    assert_int_equal(log_start(path, &plain), 0);
    sigaction(SIGALRM, &action, &before);
    setitimer(ITIMER_REAL, &often, NULL);
    for (uint64_t i = 1; i <= 300000; i++)
        n_main += put(i);
    setitimer(ITIMER_REAL, &never, NULL);
    sigaction(SIGALRM, &before, NULL);
    log_stop();
    assert_true(log_file_open(&file, path));
    for (const struct record *r; (r = log_file_next(&file));) {
        const struct numbered *numbered = (const void *)r;
        if (r->type != TYPE)
            continue;
        assert_true(numbered->check == ~numbered->number);
        if (numbered->number == UINT32_MAX) {
            n_signal++;
            continue;
        }
        assert_true(numbered->number > last);
        last = numbered->number;
        n++;
    }
    assert_true(log_file_whole(&file));
    log_file_close(&file);
    assert_int_equal(n, n_main);
    assert_int_equal(n_signal, n_handled);
    assert_true(n_handled > 0);
}
