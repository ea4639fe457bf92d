/* tests/unit/test_nomem_graph.c: whichever allocation fails while a graph is built from profiles
 * and transport logs, it is said so and nothing leaks (the address sanitizer looks). malloc and kin
 * are wrapped by the linker. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>

#include <dpro/dpro.h>

#include "message_job.h"
#include "nomem.h"
#include "temp_folder.h"

static struct dpro_trace *load(const struct job *job)
{
    struct dpro_error err = {0};
    struct dpro_trace *trace = NULL;
    const char *path = folder;
    assert_int_equal(make_folder(NULL), 0);
    write_job(job, folder);
    if (dpro_trace_load(&path, 1, NULL, &trace, &err) < 0)
        fail_msg("%s", err.text);
    assert_int_equal(remove_folder(NULL), 0);
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
        nomem_n_left = n;
        rc = dpro_graph_build(trace, NULL, &graph, &err);
        nomem_n_left = -1;
        assert_true(rc == 0 || (rc == DPRO_ENOMEM && err.code == rc && graph == NULL));
    }
    assert_true(n > 500);
    assert_int_equal(dpro_graph_collective(graph, 0).n_messages, n_messages);
    dpro_graph_destroy(graph);
    dpro_trace_destroy(trace);
}

static void test_a_graph_of_messages_survives_any_failed_allocation(void **state)
{
    struct job job = ring(2, 2, 50, 5, 100);
    for (int r = 0; r < 2; r++) { /* with a ready message behind data */
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
