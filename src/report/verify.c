/* report/verify.c: what a plan was worth, from step times of a job that trained with it and without
 * by turns: in one run where its buckets can be changed meanwhile, else each turn is a run.
 *
 * A block holds every configuration twice, in mirrored order (A B B A): what changes at an even
 * pace while it runs has the same share in all of them. So each half of a block gives one gain for
 * each configuration, of turns that were near each other. Other work on the machine disturbs some
 * of them a lot, so their mean is the Hodges-Lehmann estimate, the median of the means of all
 * pairs, and its interval that of Wilcoxon's signed ranks: exact, and nothing is drawn at random. A
 * turn's time is the median of its steps; where a GPU works behind the host, single steps mean
 * little, and it is the time from first to last. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <dpro/model.h>
#include <dpro/verify.h>

#include "base/arena.h"
#include "base/array.h"
#include "base/error.h"
#include "base/json.h"
#include "base/sort.h"
#include "base/stats.h"
#include "base/writer.h"
#include "report/table.h"

enum { MOST_CONFIGURATIONS = 64, MOST_TEXTS = 64, MOST_BLOCKS = 1000, LEAST_BLOCKS = 3 };
#define MOST_STEP_NS INT64_C(1000000000000000) /* days */

struct turn {
    const char *name;
    int64_t block, span_ns;
    size_t first, n;                /* into steps */
    size_t first_bucket, n_buckets; /* into bucket_bytes */
};

struct text_list { /* the first of them */
    const char *at[MOST_TEXTS];
    size_t n;
};

struct gain {               /* percent of an iteration saved */
    double mean, low, high; /* low, high: NAN with too few blocks */
};

struct configuration {
    const char *name;
    double iteration_ms;
    size_t n_buckets, first_bucket; /* of its last turn */
    struct gain gain;               /* over the job's own buckets; for these themselves it is 0 */
};

struct dpro_verify {
    struct arena arena; /* texts */
    ARRAY(struct turn) turns;
    ARRAY(int64_t) steps;
    ARRAY(int64_t) bucket_bytes;
    struct text_list models, warnings;
    struct configuration configurations[MOST_CONFIGURATIONS]; /* own, plan, then the others */
    size_t n_configurations;
    size_t n_blocks; /* whole ones */
    double *times;   /* ms, of half h and configuration c at [h * n_configurations + c] */
    int best;        /* of the others; -1: there are none */
    struct gain over_best;
    struct dpro_plan_summary plan;
    const char *plan_path, *problem, *framework_version;
    size_t n_runs; /* read so far */
    bool one_run;  /* its turns are the job's steps, not runs of it */
    int64_t rank;  /* of the first run */
    int64_t world_size, n_steps, settle, blocks_wanted, warmup, last_step;
    bool complete, asynchronous;
};

/* Reading */

static const char *read_text(struct dpro_verify *v, struct json *js, bool *no_memory)
{
    const char *text;
    size_t len;
    if (json_peek(js) != '"')
        return json_skip(js), NULL;
    if (!json_string(js, &text, &len))
        return NULL;
    char *copy = arena_copy_string(&v->arena, text, len);
    *no_memory |= copy == NULL;
    return copy;
}

static int64_t read_int(struct json *js)
{
    int64_t value;
    return json_read_decimal(js, 0, &value) == JSON_VALUE ? value : 0;
}

static bool read_bool(struct json *js)
{
    const char *text;
    size_t len;
    return json_scalar(js, &text, &len) && json_is(text, len, "true");
}

static bool enter(struct json *js, char bracket)
{
    if (json_peek(js) != bracket)
        return json_skip(js), false;
    js->p++;
    return true;
}

/* Times that no step has make the list empty. */
static void read_step_times(struct dpro_verify *v, struct json *js, struct turn *turn,
                            bool *no_memory)
{
    bool possible = true;
    turn->first = v->steps.n;
    while (!*no_memory && json_array_next(js)) {
        int64_t ns = read_int(js);
        possible &= ns > 0 && ns < MOST_STEP_NS;
        *no_memory |= array_push(&v->steps, ns) < 0;
    }
    turn->n = possible ? v->steps.n - turn->first : 0;
}

static void read_turn(struct dpro_verify *v, struct json *js, struct turn *turn, bool *no_memory)
{
    const char *key;
    size_t len;
    while (!*no_memory && json_object_next(js, &key, &len)) {
        if (json_is(key, len, "name")) {
            turn->name = read_text(v, js, no_memory);
        } else if (json_is(key, len, "block")) {
            turn->block = read_int(js);
        } else if (json_is(key, len, "span_ns")) {
            turn->span_ns = read_int(js);
        } else if (json_is(key, len, "step_ns")) {
            if (enter(js, '['))
                read_step_times(v, js, turn, no_memory);
        } else if (json_is(key, len, "bucket_bytes")) {
            bool is_list = enter(js, '[');
            turn->first_bucket = v->bucket_bytes.n;
            while (is_list && !*no_memory && json_array_next(js))
                *no_memory |= array_push(&v->bucket_bytes, read_int(js)) < 0;
            turn->n_buckets = v->bucket_bytes.n - turn->first_bucket;
        } else {
            json_skip(js);
        }
    }
}

static void read_turns(struct dpro_verify *v, struct json *js, bool *no_memory)
{
    if (!enter(js, '['))
        return;
    while (!*no_memory && json_array_next(js)) {
        struct turn turn = {.name = NULL};
        if (!enter(js, '{'))
            continue;
        read_turn(v, js, &turn, no_memory);
        if (turn.name && turn.n > 0 && turn.span_ns > 0 && turn.span_ns < MOST_STEP_NS)
            *no_memory |= array_push(&v->turns, turn) < 0;
    }
}

static void read_texts(struct dpro_verify *v, struct json *js, struct text_list *list,
                       bool *no_memory)
{
    while (!*no_memory && json_array_next(js)) {
        const char *text = read_text(v, js, no_memory);
        size_t i = 0; /* runs warn of the same */
        while (text && i < list->n && strcmp(text, list->at[i]) != 0)
            i++;
        if (text && i == list->n && list->n < MOST_TEXTS)
            list->at[list->n++] = text;
    }
}

static void read_all(struct dpro_verify *v, struct json *js, bool *no_memory)
{
    const char *key;
    size_t len;
    if (!enter(js, '{')) {
        json_stop(js, JSON_BAD);
        return;
    }
    while (!*no_memory && json_object_next(js, &key, &len)) {
        if (json_is(key, len, "plan")) {
            const char *path = read_text(v, js, no_memory);
            v->plan_path = v->plan_path ? v->plan_path : path;
        } else if (json_is(key, len, "problem")) {
            v->problem = read_text(v, js, no_memory);
        } else if (json_is(key, len, "framework_version")) {
            v->framework_version = read_text(v, js, no_memory);
        } else if (json_is(key, len, "complete")) {
            v->complete = read_bool(js);
        } else if (json_is(key, len, "asynchronous")) {
            v->asynchronous |= read_bool(js);
        } else if (json_is(key, len, "rank")) {
            int64_t rank = read_int(js);
            v->rank = v->n_runs == 0 ? rank : v->rank;
        } else if (json_is(key, len, "world_size")) {
            v->world_size = read_int(js);
        } else if (json_is(key, len, "steps")) {
            v->n_steps = read_int(js);
        } else if (json_is(key, len, "settle")) {
            v->settle = read_int(js);
        } else if (json_is(key, len, "blocks")) {
            v->blocks_wanted = read_int(js);
        } else if (json_is(key, len, "warmup")) {
            v->warmup = read_int(js);
        } else if (json_is(key, len, "step")) {
            v->last_step = read_int(js);
        } else if (json_is(key, len, "turns")) {
            read_turns(v, js, no_memory);
        } else if (json_is(key, len, "models")) {
            if (enter(js, '['))
                read_texts(v, js, &v->models, no_memory);
        } else if (json_is(key, len, "warnings")) {
            if (enter(js, '['))
                read_texts(v, js, &v->warnings, no_memory);
        } else {
            json_skip(js);
        }
    }
}

/* Reckoning */

static double turn_ms(const struct dpro_verify *v, const struct turn *turn)
{
    int64_t *steps = v->steps.at + turn->first;
    if (v->asynchronous)
        return (double)turn->span_ns / 1e6 / (double)turn->n;
    sort_i64(steps, turn->n);
    return (double)(steps[(turn->n - 1) / 2] + steps[turn->n / 2]) / 2e6;
}

static int find_configurations(struct dpro_verify *v, struct dpro_error *err)
{
    for (size_t i = 0; i < v->turns.n; i++) {
        size_t c = 0;
        while (c < v->n_configurations &&
               strcmp(v->configurations[c].name, v->turns.at[i].name) != 0)
            c++;
        if (c == MOST_CONFIGURATIONS)
            return dpro_error_set(err, DPRO_EFORMAT, "more than %zu configurations by turns", c);
        if (c == v->n_configurations)
            v->configurations[v->n_configurations++].name = v->turns.at[i].name;
        v->configurations[c].n_buckets = v->turns.at[i].n_buckets;
        v->configurations[c].first_bucket = v->turns.at[i].first_bucket;
    }
    return 0;
}

/* The turns of whole blocks, by half; in the second half of a block they come in reverse order. */
static int find_times(struct dpro_verify *v, struct dpro_error *err)
{
    size_t n = v->n_configurations;
    v->n_blocks = n < 2 ? 0 : v->turns.n / (2 * n);
    if (v->n_blocks > MOST_BLOCKS)
        return dpro_error_set(err, DPRO_EFORMAT, "more than %d blocks of turns", MOST_BLOCKS);
    v->times = calloc(2 * v->n_blocks * n + 1, sizeof *v->times);
    if (!v->times)
        return dpro_error_nomem(err);
    for (size_t i = 0; i < 2 * v->n_blocks * n; i++) {
        size_t half = i / n, c = half % 2 == 0 ? i % n : n - 1 - i % n;
        const struct turn *turn = &v->turns.at[i];
        if (strcmp(turn->name, v->configurations[c].name) != 0 ||
            turn->block != (int64_t)(half / 2))
            return dpro_error_set(err, DPRO_EFORMAT, "turn %zu is not in mirrored order", i);
        v->times[half * n + c] = turn_ms(v, turn);
    }
    return 0;
}

/* How many of the smallest, and of the largest, means of pairs lie outside of the 95 % interval
 * for n values: the most for which the sum of positive ranks is below that in at most 2.5 % of all
 * ways to give n ranks a sign. */
static size_t ranks_outside(size_t n, double *ways)
{
    enum { EXACT = 60 };
    size_t n_sums = n * (n + 1) / 2 + 1, k = 0;
    double below = 0, mean = (double)(n_sums - 1) / 2;
    if (n > EXACT)
        return (size_t)(mean - 1.96 * sqrt(mean * (2 * (double)n + 1) / 6));
    memset(ways, 0, n_sums * sizeof *ways); /* share of the ways, by the sum of positive ranks */
    ways[0] = 1;
    for (size_t rank = 1; rank <= n; rank++)
        for (size_t sum = rank * (rank + 1) / 2 + 1; sum-- > 0;)
            ways[sum] = (ways[sum] + (sum >= rank ? ways[sum - rank] : 0)) / 2;
    while (below + ways[k] <= 0.025)
        below += ways[k++];
    return k;
}

/* What configuration `a` saves of `b`'s time. `work` has room for the means of all pairs. */
static struct gain gain_over(const struct dpro_verify *v, size_t a, size_t b, double *work)
{
    size_t n = 2 * v->n_blocks, n_pairs = 0, outside = ranks_outside(n, work);
    const double *times = v->times;
    struct gain gain = {0, NAN, NAN};
    for (size_t i = 0; i < n; i++)
        for (size_t j = i; j < n; j++) {
            const double *x = times + i * v->n_configurations, *y = times + j * v->n_configurations;
            work[n_pairs++] = 100 * (1 - (x[a] / x[b] + y[a] / y[b]) / 2);
        }
    sort_double(work, n_pairs);
    gain.mean = stats_median(work, n_pairs);
    if (v->n_blocks >= LEAST_BLOCKS) {
        gain.low = work[outside - 1];
        gain.high = work[n_pairs - outside];
    }
    return gain;
}

static int reckon(struct dpro_verify *v, struct dpro_error *err)
{
    size_t n = v->n_configurations, n_halves = 2 * v->n_blocks;
    double *work = calloc(n_halves * (n_halves + 1) / 2 + 1, sizeof *work);
    if (!work)
        return dpro_error_nomem(err);
    for (size_t c = 0; c < n; c++) {
        struct configuration *config = &v->configurations[c];
        for (size_t h = 0; h < n_halves; h++)
            work[h] = v->times[h * n + c];
        config->iteration_ms = stats_median(work, n_halves);
        config->gain = gain_over(v, c, 0, work);
        if (c >= 2 && (v->best < 0 || config->gain.mean > v->configurations[v->best].gain.mean))
            v->best = (int)c;
    }
    if (v->best >= 0)
        v->over_best = gain_over(v, 1, (size_t)v->best, work);
    free(work);
    return 0;
}

static double expected_gain(const struct dpro_verify *v)
{
    const struct dpro_plan_summary *p = &v->plan;
    return p->baseline_ns > 0 && p->iteration_ns > 0
               ? 100 * (1 - (double)p->iteration_ns / (double)p->baseline_ns)
               : NAN;
}

static double expected_uncertainty(const struct dpro_verify *v)
{
    const struct dpro_plan_summary *p = &v->plan;
    return p->baseline_ns > 0
               ? p->uncertainty_pct * (double)p->iteration_ns / (double)p->baseline_ns
               : NAN;
}

enum verdict { NO_INTERVAL, NOISE, SLOWER, FASTER, AS_EXPECTED, LESS, MORE };

static const char *const verdict_keys[] = {"no-interval", "noise", "slower", "faster",
                                           "as-expected", "less",  "more"};

static enum verdict verdict_of(const struct dpro_verify *v)
{
    struct gain gain = v->configurations[1].gain;
    double expected = expected_gain(v), uncertainty = expected_uncertainty(v);
    if (v->n_blocks < LEAST_BLOCKS)
        return NO_INTERVAL;
    if (gain.high < 0)
        return SLOWER;
    if (gain.low <= 0)
        return NOISE;
    if (isnan(expected))
        return FASTER;
    if (expected > gain.high + uncertainty)
        return LESS;
    return expected < gain.low - uncertainty ? MORE : AS_EXPECTED;
}

int dpro_verify_is_elsewhere(const struct dpro_verify *v)
{
    return v->rank != 0;
}

int dpro_verify_is_slower(const struct dpro_verify *v)
{
    return verdict_of(v) == SLOWER;
}

static int say_nothing_measured(const struct dpro_verify *v, struct dpro_error *err)
{
    long long per_turn = v->settle + v->n_steps;
    long long configurations = v->n_configurations < 2 ? 2 : (long long)v->n_configurations;
    if (v->problem)
        return dpro_error_set(err, DPRO_EEMPTY, "%s: %s",
                              v->turns.n > 0 && !v->one_run ? "not one block of turns was measured"
                                                            : "nothing was measured",
                              v->problem);
    return dpro_error_set(err, DPRO_EEMPTY,
                          "the job ended after step %lld, before one block of turns was measured, "
                          "which takes %lld steps, and all %lld blocks %lld: run it longer, or "
                          "choose fewer by --warmup, --steps and --blocks",
                          (long long)v->last_step, v->warmup + 2 * configurations * per_turn,
                          (long long)v->blocks_wanted,
                          v->warmup + v->blocks_wanted * 2 * configurations * per_turn);
}

static int read_run(struct dpro_verify *v, const char *path, struct dpro_error *err)
{
    struct input in;
    struct json js;
    bool no_memory = false;
    int rc = input_open(&in, path, err);
    if (rc < 0)
        return rc;
    rc = json_init(&js, &in, 0, err);
    if (rc == 0) {
        read_all(v, &js, &no_memory);
        if (no_memory || js.fail == JSON_MEMORY)
            rc = dpro_error_nomem(err);
        else if (js.fail == JSON_IO)
            rc = DPRO_EIO;
        else if (js.fail != JSON_OK)
            rc = dpro_error_set(err, DPRO_EFORMAT, "%s: byte %llu: not what a job writes", path,
                                (unsigned long long)json_offset(&js));
        json_fini(&js);
    }
    input_close(&in);
    v->n_runs++;
    return rc;
}

int dpro_verify_read(const char *const *paths, size_t n_runs,
                     const struct dpro_plan_summary *summary, const char *problem,
                     struct dpro_verify **verify, struct dpro_error *err)
{
    struct dpro_verify *v = calloc(1, sizeof *v);
    int rc = 0;
    if (!v)
        return dpro_error_nomem(err);
    v->plan = *summary;
    v->one_run = strcmp(summary->stack, dpro_stack_name(DPRO_STACK_DDP)) == 0;
    v->best = -1;
    for (size_t i = 0; i < n_runs && rc == 0; i++)
        rc = read_run(v, paths[i], err);
    if (rc == 0 && problem) {
        v->complete = false;
        v->problem = arena_copy_string(&v->arena, problem, strlen(problem));
        rc = v->problem ? 0 : dpro_error_nomem(err);
    }
    if (rc == 0)
        rc = find_configurations(v, err);
    if (rc == 0)
        rc = find_times(v, err);
    if (rc < 0)
        goto failed;
    if (v->n_blocks == 0 && !dpro_verify_is_elsewhere(v)) {
        rc = say_nothing_measured(v, err);
        goto failed;
    }
    if (v->n_blocks > 0)
        rc = reckon(v, err);
    if (rc < 0)
        goto failed;
    *verify = v;
    return 0;
failed:
    dpro_verify_destroy(v);
    return rc;
}

int dpro_verify_check_run(const char *path, struct dpro_error *err)
{
    struct dpro_verify *v = calloc(1, sizeof *v);
    if (!v)
        return dpro_error_nomem(err);
    int rc = read_run(v, path, err);
    if (rc == 0 && v->turns.n == 0 && v->rank >= 0)
        rc = dpro_error_set(err, DPRO_EEMPTY, "%s", v->problem ? v->problem : "no step was timed");
    dpro_verify_destroy(v);
    return rc;
}

void dpro_verify_destroy(struct dpro_verify *v)
{
    if (!v)
        return;
    arena_fini(&v->arena);
    array_fini(&v->turns);
    array_fini(&v->steps);
    array_fini(&v->bucket_bytes);
    free(v->times);
    free(v);
}

/* Telling */

static void gain_text(char *out, size_t size, struct gain gain)
{
    char low[32], high[32], mean[32];
    writer_format_fixed(mean, sizeof mean, gain.mean, 1);
    if (isnan(gain.low)) {
        snprintf(out, size, "%s %%", mean);
        return;
    }
    writer_format_fixed(low, sizeof low, gain.low, 1);
    writer_format_fixed(high, sizeof high, gain.high, 1);
    snprintf(out, size, "%s %% (95 %% sure: %s to %s)", mean, low, high);
}

static void verdict_text(const struct dpro_verify *v, char *out, size_t size)
{
    char gain[128], expected[80] = "", uncertainty[32];
    gain_text(gain, sizeof gain, v->configurations[1].gain);
    if (!isnan(expected_gain(v))) {
        char number[32];
        writer_format_fixed(number, sizeof number, expected_gain(v), 1);
        writer_format_fixed(uncertainty, sizeof uncertainty, expected_uncertainty(v), 1);
        snprintf(expected, sizeof expected, "%s +- %s %%", number, uncertainty);
    }
    switch (verdict_of(v)) {
    case NO_INTERVAL:
        snprintf(out, size,
                 "the plan saves %s of an iteration in one block: too few to tell from noise",
                 gain);
        return;
    case SLOWER:
        snprintf(out, size, "the plan is slower than what the job does by itself: it saves %s",
                 gain);
        return;
    case NOISE:
        snprintf(out, size, "no difference that could be told from noise: the plan saves %s%s%s",
                 gain, expected[0] ? ", expected " : "", expected);
        return;
    case FASTER:
        snprintf(out, size, "the plan saves %s of an iteration", gain);
        return;
    case AS_EXPECTED:
        snprintf(out, size, "the plan saves %s of an iteration, as expected (%s)", gain, expected);
        return;
    case LESS:
        snprintf(out, size, "the plan saves %s of an iteration, less than expected (%s)", gain,
                 expected);
        return;
    case MORE:
        snprintf(out, size, "the plan saves %s of an iteration, more than expected (%s)", gain,
                 expected);
        return;
    }
}

static void said_turns(const struct dpro_verify *v, char *out, size_t size)
{
    const char *blocks = v->n_blocks > 1 ? "s" : "", *ranks = v->world_size > 1 ? "s" : "";
    size_t used;
    if (v->one_run)
        snprintf(
            out, size,
            "%zu block%s of mirrored turns, %lld steps a turn after %lld to settle; %lld rank%s",
            v->n_blocks, blocks, (long long)v->n_steps, (long long)v->settle,
            (long long)v->world_size, ranks);
    else
        snprintf(out, size,
                 "%zu block%s of mirrored turns, each a run of the job: %lld steps after %lld to "
                 "warm up; %lld rank%s",
                 v->n_blocks, blocks, (long long)v->n_steps, (long long)v->warmup,
                 (long long)v->world_size, ranks);
    used = strlen(out);
    if (v->complete)
        return;
    if (v->one_run)
        snprintf(out + used, size - used, "; %lld were wanted, but %s after step %lld",
                 (long long)v->blocks_wanted, v->problem ? v->problem : "the job ended",
                 (long long)v->last_step);
    else
        snprintf(out + used, size - used, "; %lld were wanted, but %s", (long long)v->blocks_wanted,
                 v->problem ? v->problem : "the others are missing");
}

int dpro_verify_text(const struct dpro_verify *v, FILE *out, struct dpro_error *err)
{
    static const char *const head[] = {"strategy", "iteration ms", "buckets",
                                       "saves %",  "95 % low",     "high"};
    struct table t = {.n_cols = 6, .left = {true}};
    struct writer w;
    char text[512];
    int rc = writer_init_file(&w, out, err);
    if (rc < 0)
        return rc;
    for (size_t i = 0; i < sizeof head / sizeof *head; i++)
        table_cell(&t, "%s", head[i]);
    for (size_t c = 0; c < v->n_configurations; c++) {
        const struct configuration *config = &v->configurations[c];
        table_cell(&t, "%s", config->name);
        table_fixed(&t, config->iteration_ms, 1, "");
        if (config->n_buckets > 0)
            table_cell(&t, "%zu", config->n_buckets);
        else
            table_cell(&t, "-");
        if (c == 0) {
            for (int i = 0; i < 3; i++)
                table_cell(&t, "-");
            continue;
        }
        table_fixed(&t, config->gain.mean, 1, "");
        for (int high = 0; high < 2; high++)
            if (v->n_blocks < LEAST_BLOCKS)
                table_cell(&t, "-");
            else
                table_fixed(&t, high ? config->gain.high : config->gain.low, 1, "");
    }
    table_write(&w, &t);
    verdict_text(v, text, sizeof text);
    writer_text(&w, "\n");
    table_wrapped(&w, "", 0, text);
    if (v->best >= 0) {
        char gain[128];
        gain_text(gain, sizeof gain, v->over_best);
        snprintf(text, sizeof text, "of the others %s is best: beside it the plan saves %s",
                 v->configurations[v->best].name, gain);
        table_wrapped(&w, "", 0, text);
    }
    said_turns(v, text, sizeof text);
    table_wrapped(&w, "", 0, text);
    for (size_t i = 0; i < v->warnings.n; i++)
        table_wrapped(&w, "warning: ", 9, v->warnings.at[i]);
    rc = writer_finish(&w, err);
    writer_fini(&w);
    return rc;
}

static void key_gain(struct writer *w, const char *key, struct gain gain)
{
    writer_key(w, key);
    writer_open(w, '{');
    writer_key(w, "mean");
    writer_json_fixed(w, gain.mean, 3);
    writer_key(w, "low");
    writer_json_fixed(w, gain.low, 3);
    writer_key(w, "high");
    writer_json_fixed(w, gain.high, 3);
    writer_close(w, '}');
}

static void write_configuration(struct writer *w, const struct dpro_verify *v, size_t c)
{
    const struct configuration *config = &v->configurations[c];
    writer_newline(w);
    writer_open(w, '{');
    writer_key_string(w, "name", config->name);
    writer_key(w, "iteration_ms");
    writer_json_fixed(w, config->iteration_ms, 6);
    if (c > 0)
        key_gain(w, "gain_pct", config->gain);
    writer_key(w, "per_turn_ms");
    writer_open(w, '[');
    for (size_t h = 0; h < 2 * v->n_blocks; h++)
        writer_json_fixed(w, v->times[h * v->n_configurations + c], 6);
    writer_close(w, ']');
    writer_key(w, "bucket_bytes");
    writer_open(w, '[');
    for (size_t i = 0; i < config->n_buckets; i++)
        writer_json_int(w, v->bucket_bytes.at[config->first_bucket + i]);
    writer_close(w, ']');
    writer_close(w, '}');
}

static void key_texts(struct writer *w, const char *key, const struct text_list *texts)
{
    writer_key(w, key);
    writer_open(w, '[');
    for (size_t i = 0; i < texts->n; i++)
        writer_string(w, texts->at[i]);
    writer_close(w, ']');
}

int dpro_verify_json(const struct dpro_verify *v, FILE *out, struct dpro_error *err)
{
    struct writer w;
    int rc = writer_init_file(&w, out, err);
    if (rc < 0)
        return rc;
    writer_open(&w, '{');
    writer_key_string(&w, "schema", "dpro.verify/1");
    writer_key_string(&w, "version", dpro_version());
    writer_key_string(&w, "plan", v->plan_path);
    writer_key_string(&w, "framework_version", v->framework_version);
    writer_key_int(&w, "world_size", v->world_size);
    key_texts(&w, "models", &v->models);
    writer_key_int(&w, "blocks", (int64_t)v->n_blocks);
    writer_key_int(&w, "steps", v->n_steps);
    writer_key_int(&w, "settle", v->settle);
    writer_key_int(&w, "warmup", v->warmup);
    writer_key_int(&w, "runs", (int64_t)v->n_runs);
    writer_key(&w, "complete");
    writer_bool(&w, v->complete);
    writer_key_string(&w, "problem", v->problem);
    writer_newline(&w);
    writer_key(&w, "configurations");
    writer_open(&w, '[');
    for (size_t c = 0; c < v->n_configurations; c++)
        write_configuration(&w, v, c);
    writer_close(&w, ']');
    writer_newline(&w);
    key_gain(&w, "gain_pct", v->configurations[1].gain);
    writer_key(&w, "expected_gain_pct");
    writer_json_fixed(&w, expected_gain(v), 3);
    writer_key(&w, "expected_uncertainty_pct");
    writer_json_fixed(&w, isnan(expected_gain(v)) ? NAN : expected_uncertainty(v), 3);
    writer_key_string(&w, "verdict", verdict_keys[verdict_of(v)]);
    writer_key_string(&w, "best_other", v->best >= 0 ? v->configurations[v->best].name : NULL);
    if (v->best >= 0) {
        key_gain(&w, "gain_over_best_other_pct", v->over_best);
    } else {
        writer_key(&w, "gain_over_best_other_pct");
        writer_null(&w);
    }
    writer_newline(&w);
    key_texts(&w, "warnings", &v->warnings);
    writer_close(&w, '}');
    writer_text(&w, "\n");
    rc = writer_finish(&w, err);
    writer_fini(&w);
    return rc;
}
