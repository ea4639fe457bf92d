/* tests/unit/test_nomem_graph.c: whichever allocation fails while a graph is built from profiles
 * and transport logs, it is said so and nothing leaks (the address sanitizer looks). malloc and kin
 * are wrapped by the linker. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <dpro/dpro.h>

#include "message_job.h"

void *__real_malloc(size_t size);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *at, size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *at, size_t size);

static atomic_long n_left = -1; /* allocations until the one that fails; negative: none fails */

static bool fails(void)
{
    return n_left >= 0 && atomic_fetch_sub(&n_left, 1) == 0;
}

void *__wrap_malloc(size_t size)
{
    return fails() ? NULL : __real_malloc(size);
}

void *__wrap_calloc(size_t n, size_t size)
{
    return fails() ? NULL : __real_calloc(n, size);
}

void *__wrap_realloc(void *at, size_t size)
{
    return fails() ? NULL : __real_realloc(at, size);
}

static struct dpro_trace *load(const struct job *job)
{
    char folder[] = "/tmp/dpro-nomem-XXXXXX", path[64];
    struct dpro_error err = {0};
    struct dpro_trace *trace = NULL;
    assert_non_null(mkdtemp(folder));
    for (int r = 0; r < job->n_ranks; r++) {
        write_profile(job, folder, r);
        if (!job->without_log[r])
            write_log(job, folder, r);
    }
    const char *paths = folder;
    if (dpro_trace_load(&paths, 1, NULL, &trace, &err) < 0)
        fail_msg("%s", err.text);
    for (int r = 0; r < job->n_ranks; r++) {
        snprintf(path, sizeof path, "%s/rank%d.json", folder, r);
        assert_int_equal(unlink(path), 0);
        snprintf(path, sizeof path, job->by_nccl ? "%s/nccl_rank%d.log" : "%s/net_rank%d.csv",
                 folder, r);
        assert_true(job->without_log[r] || unlink(path) == 0);
    }
    assert_int_equal(rmdir(folder), 0);
    return trace;
}

static void check_all(const struct job *job, unsigned n_messages)
{
    struct dpro_trace *trace = load(job);
    struct dpro_graph *graph = NULL;
    int rc = DPRO_ENOMEM;
    long n = 0;
    for (; rc != 0; n++) {
        struct dpro_error err = {0};
        n_left = n;
        rc = dpro_graph_build(trace, NULL, &graph, &err);
        n_left = -1;
        assert_true(rc == 0 || (rc == DPRO_ENOMEM && err.code == rc && graph == NULL));
    }
    assert_true(n > 500);
    assert_int_equal(dpro_graph_collective(graph, 0).n_messages, n_messages);
    dpro_graph_destroy(graph);
    dpro_trace_destroy(trace);
}

static void test_a_graph_of_messages_survives_any_failed_allocation(void **state)
{
    (void)state;
    struct job job = ring(2, 2, 50, 5, 100);
    for (int r = 0; r < 2; r++) { /* with a notice behind data */
        send_one(&job, r, 1 - r, 111, 161, 0);
        last_sent(&job)->opcode = RECV_READY;
        send_one(&job, r, 1 - r, 112, 162, 0);
        last_sent(&job)->opcode = RECV_READY;
    }
    check_all(&job, 4);
    job = ring(3, 4, 50, 5, 100000);
    job.without_log[1] = true;
    check_all(&job, 12);
}

static void test_a_graph_of_nccls_steps_survives_any_failed_allocation(void **state)
{
    (void)state;
    struct job job = ring(3, 4, 50, 5, 100000);
    job.by_nccl = true;
    job.host[0] = job.host[1] = "a";
    job.host[2] = "b";
    check_all(&job, 12);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_graph_of_messages_survives_any_failed_allocation),
        cmocka_unit_test(test_a_graph_of_nccls_steps_survives_any_failed_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
