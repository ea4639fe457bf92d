/* Edits and their undoing, passes built in, and passes from files. */
#include <unistd.h>

#include "case.h"
#include "cost/program/buckets.h"
#include "generated_job.h"
#include "kept_log.h"
#include "optimize/search.h"

static uint64_t random_state;

static uint32_t pick(uint32_t n)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((random_state >> 33) % n);
}

static struct dpro_model *job_of(uint32_t n_tensors)
{
    struct generate_options o = {.seed = 5, .n_tensors = n_tensors, .n_ranks = 2, .alike = true};
    struct dpro_model *model = generate_random(&o);
    assert_non_null(model);
    KEEP(model, dpro_model_destroy);
    return model;
}

/* ---- edits ---- */

static bool same(const struct dpro_model *m, const struct dpro_strategy *a,
                 const struct dpro_strategy *b)
{
    return a->n_buckets == b->n_buckets && a->compression == b->compression &&
           memcmp(a->order, b->order, m->n_tensors * sizeof *a->order) == 0 &&
           memcmp(a->buckets, b->buckets, a->n_buckets * sizeof *a->buckets) == 0;
}

/* Every tensor in one bucket, buckets one after the other. */
static void assert_whole(const struct dpro_model *m, const struct dpro_strategy *s)
{
    bool seen[64] = {false};
    uint32_t next = 0;
    for (uint32_t b = 0; b < s->n_buckets; b++) {
        assert_int_equal(s->buckets[b].first, next);
        assert_true(s->buckets[b].n > 0 && s->buckets[b].partitions > 0);
        next += s->buckets[b].n;
    }
    assert_int_equal(next, m->n_tensors);
    for (uint32_t i = 0; i < m->n_tensors; i++) {
        assert_true(s->order[i] < m->n_tensors && !seen[s->order[i]]);
        seen[s->order[i]] = true;
    }
}

static struct dpro_edit random_edit(uint32_t n_buckets)
{
    struct dpro_edit edit = {
        .kind = (enum dpro_edit_kind)pick(7), .at = pick(n_buckets + 1), .value = (int64_t)pick(6)};
    if (pick(50) == 0)
        edit.value = INT64_MIN + pick(2);
    return edit;
}

TEST(edits_leave_a_strategy_whole_or_as_it_was)
{
    struct dpro_model *model = job_of(12);
    struct arena arena = {0};
    struct dpro_strategy s, before, at_once;
    struct dpro_edit edits[8];
    uint32_t n_made = 0, n_refused = 0;
    s = buckets_make(model, &arena);
    before = buckets_make(model, &arena);
    at_once = buckets_make(model, &arena);
    for (int round = 0; round < 2000; round++) {
        struct dpro_strategy start = buckets_copy(model, &s, &arena);
        uint32_t n = 0;
        for (uint32_t i = pick(8); i > 0; i--) {
            edits[n] = random_edit(s.n_buckets);
            buckets_assign(model, &s, &before);
            if (edit_apply(model, &s, &edits[n])) {
                n_refused++;
                assert_true(same(model, &s, &before));
            } else {
                n++;
            }
            assert_whole(model, &s);
        }
        n_made += n;
        assert_null(edits_apply(model, &start, edits, n, &at_once));
        assert_true(same(model, &s, &at_once));
        if (pick(2))
            buckets_assign(model, &start, &s);
    }
    assert_true(n_made > 1000 && n_refused > 1000);
    arena_fini(&arena);
}

TEST(edits_say_what_they_say)
{
    struct dpro_model *model = job_of(4);
    struct arena arena = {0};
    struct dpro_strategy s = buckets_make(model, &arena), each = buckets_make(model, &arena);
    const struct dpro_edit edits[] = {
        {.kind = DPRO_EDIT_MERGE, .at = 1, .value = 0}, /* 0 | 1 2 | 3 */
        {.kind = DPRO_EDIT_MOVE, .at = 1, .value = 2},  /* 0 | 3 | 1 2 */
        {.kind = DPRO_EDIT_PRIORITY, .at = 2, .value = -7},
        {.kind = DPRO_EDIT_MERGE, .at = 0, .value = 0}, /* 0 3 | 1 2 */
        {.kind = DPRO_EDIT_SPLIT, .at = 1, .value = 1}, /* 0 3 | 1 | 2 */
        {.kind = DPRO_EDIT_COMPRESS, .at = 0, .value = DPRO_COMPRESSION_BF16}};
    assert_null(edits_apply(model, &each, edits, 6, &s));
    const uint32_t order[] = {0, 3, 1, 2};
    assert_memory_equal(s.order, order, sizeof order);
    assert_int_equal(s.n_buckets, 3);
    assert_int_equal(s.buckets[0].n, 2);
    assert_int_equal(s.buckets[0].priority, 0);
    assert_int_equal(s.buckets[1].n, 1);
    assert_int_equal(s.buckets[1].priority, -7);
    assert_int_equal(s.buckets[2].priority, -7);
    assert_int_equal(s.compression, DPRO_COMPRESSION_BF16);
    arena_fini(&arena);
}

TEST(a_list_with_one_impossible_edit_changes_nothing)
{
    struct dpro_model *model = job_of(4);
    struct arena arena = {0};
    struct dpro_strategy s = buckets_make(model, &arena), before = buckets_make(model, &arena);
    struct dpro_strategy after = buckets_make(model, &arena);
    const struct dpro_edit edits[] = {{.kind = DPRO_EDIT_MERGE, .at = 1, .value = 0},
                                      {.kind = DPRO_EDIT_SPLIT, .at = 0, .value = 1}};
    assert_non_null(edits_apply(model, &s, edits, 2, &after));
    assert_true(same(model, &s, &before));
    arena_fini(&arena);
}

/* ---- passes ---- */

static struct dpro_optimum *optimize_with(const struct dpro_model *model,
                                          const struct dpro_optimize_options *options)
{
    struct dpro_optimum *optimum;
    struct dpro_error err;
    struct dpro_optimize_options o = *options;
    o.threads = 2;
    o.sink = (struct dpro_sink){.log = keep_log, .level = DPRO_LOG_WARN};
    logged[0] = '\0';
    assert_int_equal(dpro_optimize_run(model, &o, &optimum, &err), 0);
    KEEP(optimum, dpro_optimum_destroy);
    return optimum;
}

static const char *path_of(const char *name)
{
    static char path[4096];
    snprintf(path, sizeof path, "%s/%s.so", getenv("DPRO_TEST_PASSES"), name);
    return path;
}

TEST(the_example_pass_takes_part)
{
    struct dpro_model *model = generate_job("resnet50", 4);
    const char *const files[] = {path_of("equal")};
    struct dpro_optimize_options options = {.pass_files = files, .n_pass_files = 1};
    struct dpro_optimize_options without = {0};
    struct dpro_optimum *with = optimize_with(model, &options);
    assert_string_equal(logged, "");
    struct dpro_optimum *plain = optimize_with(model, &without);
    /* its candidates are looked at beside the others */
    assert_true(dpro_optimum_view(with)->summary.n_candidates >
                dpro_optimum_view(plain)->summary.n_candidates);
    assert_true(dpro_optimum_view(with)->summary.best_ns <=
                dpro_optimum_view(with)->summary.baseline_ns);
    dpro_model_destroy(model);
}

TEST(a_pass_that_misbehaves_when_asked_is_left_out_and_the_search_goes_on)
{
    static const char *const cases[][2] = {
        {"bad_crashes", "crashed"},
        {"bad_exits", "ended without an answer"},
        {"bad_loops", "gave no answer within 5 s"},
        {"bad_nonsense", "proposed what can't be done: there is no such bucket"}};
    struct dpro_model *model = job_of(6);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *const files[] = {path_of(cases[i][0])};
        optimize_with(model,
                      &(struct dpro_optimize_options){.pass_files = files, .n_pass_files = 1});
        if (!strstr(logged, cases[i][1]) || !strstr(logged, "pass 'bad'"))
            fail_msg("logged: %s", logged);
        assert_ptr_equal(strchr(logged, '\n'), logged + strlen(logged) - 1); /* once */
    }
}

TEST(a_pass_that_prints_prints_to_stderr)
{
    struct dpro_model *model = job_of(6);
    const char *const files[] = {path_of("bad_prints")};
    struct dpro_optimize_options options = {.pass_files = files, .n_pass_files = 1};
    FILE *out = tmpfile();
    int saved = dup(STDOUT_FILENO);
    fflush(stdout);
    dup2(fileno(out), STDOUT_FILENO);
    optimize_with(model, &options);
    dup2(saved, STDOUT_FILENO);
    close(saved);
    fseek(out, 0, SEEK_END);
    assert_int_equal(ftell(out), 0);
    fclose(out);
    assert_string_equal(logged, "");
}

TEST(a_file_that_is_no_pass_is_refused)
{
    static const struct {
        const char *name, *expected;
    } cases[] = {{"bad_empty", "holds no symbol dpro_pass"},
                 {"bad_abi", "was made for version 6"},
                 {"missing", "can't be loaded"}};
    struct dpro_model *model = job_of(3);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *const files[] = {path_of(cases[i].name)};
        struct dpro_optimize_options options = {.pass_files = files, .n_pass_files = 1};
        struct dpro_optimum *optimum;
        struct dpro_error err;
        assert_int_equal(dpro_optimize_run(model, &options, &optimum, &err), DPRO_EFORMAT);
        assert_non_null(strstr(err.text, cases[i].expected));
        assert_non_null(strstr(err.text, cases[i].name));
    }
}

/* ---- the caller's own ---- */

static uint32_t n_asked;

static int propose_compression(const struct dpro_pass *pass, const struct dpro_pass_view *view,
                               uint32_t index, struct dpro_candidate *candidate)
{
    n_asked++;
    candidate->edits[candidate->n_edits++] =
        (struct dpro_edit){.kind = DPRO_EDIT_COMPRESS, .at = 0, .value = DPRO_COMPRESSION_FP16};
    return index == 0;
}

TEST(what_changes_numerics_needs_leave)
{
    struct dpro_model *model = generate_job("vgg16", 4);
    model->net.link.byte_ns.value *= 10;
    struct dpro_pass own = {.abi = DPRO_PASS_ABI, .name = "own", .propose = propose_compression};
    const struct dpro_pass *const passes[] = {&own};
    struct dpro_optimize_options options = {.passes = passes, .n_passes = 1};
    n_asked = 0;
    struct dpro_optimum *optimum = optimize_with(model, &options);
    int64_t full_ns = dpro_optimum_view(optimum)->summary.best_ns;
    assert_true(n_asked > 0);
    assert_int_equal(dpro_optimum_view(optimum)->summary.compression, DPRO_COMPRESSION_NONE);
    own.changes_numerics = 1;
    n_asked = 0;
    optimize_with(model, &options);
    assert_int_equal(n_asked, 0);
    options.compressions = 1u << DPRO_COMPRESSION_BF16;
    optimum = optimize_with(model, &options);
    assert_int_equal(dpro_optimum_view(optimum)->summary.compression, DPRO_COMPRESSION_BF16);
    assert_true(dpro_optimum_view(optimum)->summary.best_ns < full_ns);
    dpro_model_destroy(model);
}
