/* What a plan was worth, from the step times of a job that trained with it and without it in turns:
 * all of one run, or each a run. */
#include "verify/verify.h"
#include "base/json_members.h"

#define MOST_STEP_NS INT64_C(1000000000000000) /* days */

/* ---- reads the steps that a run of the job wrote, dpro.verify-steps/1 ---- */

/* The argument of the reader. */
static struct dpro_verify *verify_of(struct json_reader *r)
{
    return r->arg;
}

static const char *next_text(struct json_reader *r)
{
    if (json_peek(r->js) != '"')
        return json_skip(r->js), NULL;
    return strtab_get(r->strings, json_read_text(r));
}

static void read_text(struct json_reader *r, void *out, size_t offset)
{
    *(const char **)((char *)out + offset) = next_text(r);
}

static int64_t next_int(struct json_reader *r)
{
    int64_t value;
    return json_read_decimal(r->js, 0, &value) == JSON_VALUE ? value : 0;
}

/* Times that no step has make the list empty. */
static void read_step_times(struct json_reader *r, void *out, size_t offset UNUSED)
{
    struct dpro_verify *v = verify_of(r);
    struct turn *turn = out;
    bool is_list = json_open(r->js, '['), possible = is_list;
    turn->first = v->steps.n;
    while (is_list && json_array_next(r->js)) {
        int64_t ns = next_int(r);
        possible &= ns > 0 && ns < MOST_STEP_NS;
        array_push(&v->steps, ns);
    }
    turn->n = possible ? v->steps.n - turn->first : 0;
}

static void read_buckets(struct json_reader *r, void *out, size_t offset UNUSED)
{
    struct dpro_verify *v = verify_of(r);
    struct turn *turn = out;
    turn->first_bucket = v->bucket_bytes.n;
    JSON_EACH (r->js)
        array_push(&v->bucket_bytes, next_int(r));
    turn->n_buckets = v->bucket_bytes.n - turn->first_bucket;
}

static void read_turns(struct json_reader *r, void *out, size_t offset UNUSED)
{
    static const struct json_member members[] = {
        MEMBER_BY("name", read_text, offsetof(struct turn, name)),
        MEMBER(struct turn, "block", INT, block),
        MEMBER(struct turn, "span_ns", INT, span_ns),
        MEMBER(struct turn, "page_faults", INT, page_faults),
        MEMBER(struct turn, "peak_bytes", INT, peak_bytes),
        MEMBER_BY("step_ns", read_step_times, 0),
        MEMBER_BY("bucket_bytes", read_buckets, 0),
        {NULL}};
    struct dpro_verify *v = out;
    JSON_EACH (r->js) {
        struct turn turn = {.name = NULL};
        json_read_object(r, members, &turn);
        if (turn.name && turn.n > 0 && turn.span_ns > 0 && turn.span_ns < MOST_STEP_NS)
            array_push(&v->turns, turn);
    }
}

static void read_texts(struct json_reader *r, void *out, size_t offset)
{
    struct text_list *list = (struct text_list *)((char *)out + offset);
    JSON_EACH (r->js) {
        const char *text = next_text(r);
        size_t i = 0; /* runs warn of the same */
        while (text && i < list->n && strcmp(text, list->at[i]) != 0)
            i++;
        if (text && i == list->n && list->n < VERIFY_MOST_TEXTS)
            list->at[list->n++] = text;
    }
}

/* Of the first run. */
static void read_plan(struct json_reader *r, void *out, size_t offset UNUSED)
{
    struct dpro_verify *v = out;
    const char *path = next_text(r);
    v->plan_path = v->plan_path ? v->plan_path : path;
}

static void read_rank(struct json_reader *r, void *out, size_t offset UNUSED)
{
    struct dpro_verify *v = out;
    int64_t rank = next_int(r);
    v->rank = v->n_runs == 0 ? rank : v->rank;
}

/* Of any run. */
static void read_asynchronous(struct json_reader *r, void *out, size_t offset UNUSED)
{
    const char *text;
    size_t len;
    ((struct dpro_verify *)out)->asynchronous |=
        json_scalar(r->js, &text, &len) && json_is(text, len, "true");
}

static void verify_read_run(struct dpro_verify *v, const char *path)
{
    static const struct json_member members[] = {
        MEMBER(struct dpro_verify, "world_size", INT, world_size),
        MEMBER(struct dpro_verify, "steps", INT, n_steps),
        MEMBER(struct dpro_verify, "settle", INT, settle),
        MEMBER(struct dpro_verify, "blocks", INT, blocks_wanted),
        MEMBER(struct dpro_verify, "warmup", INT, warmup),
        MEMBER(struct dpro_verify, "step", INT, last_step),
        MEMBER_BY("plan", read_plan, 0),
        MEMBER_BY("rank", read_rank, 0),
        MEMBER_BY("problem", read_text, offsetof(struct dpro_verify, problem)),
        MEMBER_BY("framework_version", read_text, offsetof(struct dpro_verify, framework_version)),
        MEMBER(struct dpro_verify, "complete", TRUE, complete),
        MEMBER_BY("asynchronous", read_asynchronous, 0),
        MEMBER_BY("turns", read_turns, 0),
        MEMBER_BY("models", read_texts, offsetof(struct dpro_verify, models)),
        MEMBER_BY("warnings", read_texts, offsetof(struct dpro_verify, warnings)),
        {NULL}};
    struct json_reader r = {.strings = &v->strings, .arg = v};
    struct dpro_error why;
    fail_on(json_read_file(&r, path, members, v, "not what a job writes", &why), &why);
    v->n_runs++;
}

/* ---- what it was worth ---- */

static void say_nothing_measured(const struct dpro_verify *v)
{
    long long per_turn = v->settle + v->n_steps;
    long long configurations = v->n_configurations < 2 ? 2 : (long long)v->n_configurations;
    if (v->problem)
        fail_with(DPRO_EEMPTY, "%s: %s",
                  v->turns.n > 0 && !v->one_run ? "not one block of turns was measured"
                                                : "nothing was measured",
                  v->problem);
    fail_with(DPRO_EEMPTY,
              "the job ended after step %lld, before one block of turns was measured: one block "
              "takes %lld steps, all %lld blocks take %lld; run the job longer, or choose fewer by "
              "--warmup, --steps and --blocks",
              (long long)v->last_step, v->warmup + 2 * configurations * per_turn,
              (long long)v->blocks_wanted,
              v->warmup + v->blocks_wanted * 2 * configurations * per_turn);
}

static void read_runs(const char *const *paths, size_t n_runs,
                      const struct dpro_plan_summary *summary, const char *problem,
                      struct dpro_verify **verify)
{
    struct dpro_verify *v = mem_array(1, sizeof *v);
    v->plan = *summary;
    v->one_run = n_runs == 1 && !problem; /* one block takes four runs */
    v->best = -1;
    for (size_t i = 0; i < n_runs; i++)
        verify_read_run(v, paths[i]);
    if (problem) {
        v->complete = false;
        v->problem = strtab_get(&v->strings, strtab_add(&v->strings, problem, strlen(problem)));
    }
    verify_work_out(v);
    if (v->n_blocks == 0 && !dpro_verify_is_elsewhere(v))
        say_nothing_measured(v);
    *verify = v;
}

int dpro_verify_read(const char *const *paths, size_t n_runs,
                     const struct dpro_plan_summary *summary, const char *problem,
                     struct dpro_verify **verify, struct dpro_error *err)
{
    return OUTCOME(err, read_runs(paths, n_runs, summary, problem, verify));
}

static void check_run(const char *path)
{
    struct dpro_verify *v = mem_array(1, sizeof *v);
    verify_read_run(v, path);
    if (v->turns.n == 0 && v->rank >= 0)
        fail_with(DPRO_EEMPTY, "%s", v->problem ? v->problem : "no step was timed");
    dpro_verify_destroy(v);
}

int dpro_verify_check_run(const char *path, struct dpro_error *err)
{
    return OUTCOME(err, check_run(path));
}

void dpro_verify_destroy(struct dpro_verify *v)
{
    if (!v)
        return;
    strtab_fini(&v->strings);
    FREE_ALL(&v->times, &v->turns, &v->steps, &v->bucket_bytes, &v);
}

int dpro_verify_is_elsewhere(const struct dpro_verify *v)
{
    return v->rank != 0;
}

int dpro_verify_is_slower(const struct dpro_verify *v)
{
    return verify_verdict(v) == VERIFY_SLOWER;
}
