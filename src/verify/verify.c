/* What a plan was worth, from the step times of a job that trained with it and without it in turns:
 * all of one run, or each a run. */
#include "verify/verify.h"

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
              "the job ended after step %lld, before one block of turns was measured, "
              "which takes %lld steps, and all %lld blocks %lld: run it longer, or "
              "choose fewer by --warmup, --steps and --blocks",
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
