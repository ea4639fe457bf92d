/* Whichever allocation fails while strategies are searched, it is said so or made up for, and
 * nothing leaks (the address sanitizer looks). malloc and kin are wrapped by the linker. */

#include "case.h"
#include "generated_job.h"
#include "nomem.h"
#include <dpro/optimize.h>

/* `step`: only each so manieth allocation fails, for searches that make many. */
static void check_search(const struct dpro_optimize_options *options, long step, bool adds_slowly)
{
    struct generate_options o = {
        .seed = 4, .n_tensors = 4, .n_ranks = 2, .n_streams = 2, .overheads = true};
    struct dpro_model *model = generate_random(&o);
    assert_non_null(model);
    if (adds_slowly) /* t_sync is then replayed */
        model->net.collective.reduce_ns.value = 3 * model->net.link.byte_ns.value;
    uint32_t n_failed = 0;
    bool all = false;
    for (long n = 0; !all; n += step) {
        struct dpro_error err = {0};
        struct dpro_optimum *optimum = NULL;
        nomem_n_left = n;
        int rc = dpro_optimize_run(model, options, &optimum, &err);
        all = nomem_n_left >= 0;
        nomem_n_left = -1;
        assert_true(rc == 0 || (rc == DPRO_ENOMEM && err.code == rc && optimum == NULL));
        assert_true(rc < 0 || dpro_optimum_view(optimum)->summary.best_ns <=
                                  dpro_optimum_view(optimum)->summary.baseline_ns);
        n_failed += rc < 0;
        dpro_optimum_destroy(optimum);
    }
    assert_true(n_failed > 30);
    dpro_model_destroy(model);
}

TEST(a_search_survives_any_failed_allocation)
{
    struct dpro_optimize_options options = {.threads = 1};
    check_search(&options, 3, false);
}

TEST(algorithm_1_survives_any_failed_allocation)
{
    struct dpro_optimize_options options = {.threads = 1, .algorithm = DPRO_ALGORITHM_PAPER};
    check_search(&options, 1, false);
}

static int n_asked, n_answered;

static int ask_for_times(const struct dpro_pass *pass, const struct dpro_pass_view *view,
                         uint32_t index, struct dpro_candidate *candidate)
{
    if (index >= view->n_buckets)
        return 0;
    n_asked++;
    int64_t ns = 0;
    for (uint64_t size = 1; size < 100; size++) /* sizes that were never asked for */
        ns = view->sync_ns(view, view->buckets[index].size_bytes + size, 2);
    n_answered++;
    candidate->edits[0] = (struct dpro_edit){DPRO_EDIT_PARTITION, index, ns % 3 + 1};
    candidate->n_edits = 1;
    return 1;
}

TEST(lack_of_memory_does_not_jump_over_a_users_function)
{
    struct dpro_pass pass = {.abi = DPRO_PASS_ABI, .name = "asks", .propose = ask_for_times};
    const struct dpro_pass *const passes[] = {&pass};
    struct dpro_optimize_options options = {.threads = 1, .passes = passes, .n_passes = 1};
    check_search(&options, 1, true);
    assert_true(n_asked > 100);
    assert_int_equal(n_asked, n_answered);
}

TEST(the_strawman_survives_any_failed_allocation)
{
    struct dpro_optimize_options options = {
        .threads = 1, .algorithm = DPRO_ALGORITHM_PAPER, .no_partial = 1};
    check_search(&options, 1, false);
}
