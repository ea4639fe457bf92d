/* verify/verify_read.c: reads the steps that a run of the job wrote, dpro.verify-steps/1. */
#include <string.h>

#include "base/error.h"
#include "base/json.h"
#include "verify/verify.h"

#define MOST_STEP_NS INT64_C(1000000000000000) /* days */

struct reader {
    struct dpro_verify *v;
    struct json js;
    bool no_memory;
};

static const char *read_text(struct reader *r)
{
    const char *text;
    size_t len;
    if (json_peek(&r->js) != '"')
        return json_skip(&r->js), NULL;
    if (!json_string(&r->js, &text, &len))
        return NULL;
    char *copy = arena_copy_string(&r->v->arena, text, len);
    r->no_memory |= copy == NULL;
    return copy;
}

static int64_t read_int(struct reader *r)
{
    int64_t value;
    return json_read_decimal(&r->js, 0, &value) == JSON_VALUE ? value : 0;
}

static bool read_bool(struct reader *r)
{
    const char *text;
    size_t len;
    return json_scalar(&r->js, &text, &len) && json_is(text, len, "true");
}

static bool next_item(struct reader *r)
{
    return !r->no_memory && json_array_next(&r->js);
}

/* Times that no step has make the list empty. */
static void read_step_times(struct reader *r, struct turn *turn)
{
    bool possible = json_open(&r->js, '['), more = possible;
    turn->first = r->v->steps.n;
    while (more && next_item(r)) {
        int64_t ns = read_int(r);
        possible &= ns > 0 && ns < MOST_STEP_NS;
        r->no_memory |= array_push(&r->v->steps, ns) < 0;
    }
    turn->n = possible ? r->v->steps.n - turn->first : 0;
}

static void read_buckets(struct reader *r, struct turn *turn)
{
    bool is_list = json_open(&r->js, '[');
    turn->first_bucket = r->v->bucket_bytes.n;
    while (is_list && next_item(r))
        r->no_memory |= array_push(&r->v->bucket_bytes, read_int(r)) < 0;
    turn->n_buckets = r->v->bucket_bytes.n - turn->first_bucket;
}

static void read_turn(struct reader *r, struct turn *turn)
{
    const char *key;
    size_t len;
    while (!r->no_memory && json_object_next(&r->js, &key, &len)) {
        if (json_is(key, len, "name"))
            turn->name = read_text(r);
        else if (json_is(key, len, "block"))
            turn->block = read_int(r);
        else if (json_is(key, len, "span_ns"))
            turn->span_ns = read_int(r);
        else if (json_is(key, len, "step_ns"))
            read_step_times(r, turn);
        else if (json_is(key, len, "bucket_bytes"))
            read_buckets(r, turn);
        else
            json_skip(&r->js);
    }
}

static void read_turns(struct reader *r)
{
    bool is_list = json_open(&r->js, '[');
    while (is_list && next_item(r)) {
        struct turn turn = {.name = NULL};
        if (!json_open(&r->js, '{'))
            continue;
        read_turn(r, &turn);
        if (turn.name && turn.n > 0 && turn.span_ns > 0 && turn.span_ns < MOST_STEP_NS)
            r->no_memory |= array_push(&r->v->turns, turn) < 0;
    }
}

static void read_texts(struct reader *r, struct text_list *list)
{
    bool is_list = json_open(&r->js, '[');
    while (is_list && next_item(r)) {
        const char *text = read_text(r);
        size_t i = 0; /* runs warn of the same */
        while (text && i < list->n && strcmp(text, list->at[i]) != 0)
            i++;
        if (text && i == list->n && list->n < VERIFY_MOST_TEXTS)
            list->at[list->n++] = text;
    }
}

static void read_value(struct reader *r, const char *key, size_t len)
{
    struct dpro_verify *v = r->v;
    const struct {
        const char *key;
        int64_t *value;
    } numbers[] = {{"world_size", &v->world_size}, {"steps", &v->n_steps}, {"settle", &v->settle},
                   {"blocks", &v->blocks_wanted},  {"warmup", &v->warmup}, {"step", &v->last_step}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (strlen(numbers[i].key) == len && memcmp(numbers[i].key, key, len) == 0) {
            *numbers[i].value = read_int(r);
            return;
        }
    if (json_is(key, len, "plan")) {
        const char *path = read_text(r);
        v->plan_path = v->plan_path ? v->plan_path : path;
    } else if (json_is(key, len, "rank")) {
        int64_t rank = read_int(r);
        v->rank = v->n_runs == 0 ? rank : v->rank;
    } else if (json_is(key, len, "problem")) {
        v->problem = read_text(r);
    } else if (json_is(key, len, "framework_version")) {
        v->framework_version = read_text(r);
    } else if (json_is(key, len, "complete")) {
        v->complete = read_bool(r);
    } else if (json_is(key, len, "asynchronous")) {
        v->asynchronous |= read_bool(r);
    } else if (json_is(key, len, "turns")) {
        read_turns(r);
    } else if (json_is(key, len, "models")) {
        read_texts(r, &v->models);
    } else if (json_is(key, len, "warnings")) {
        read_texts(r, &v->warnings);
    } else {
        json_skip(&r->js);
    }
}

int verify_read_run(struct dpro_verify *v, const char *path, struct dpro_error *err)
{
    struct reader r = {.v = v};
    struct input in;
    const char *key;
    size_t len;
    int rc = input_open(&in, path, err);
    if (rc < 0)
        return rc;
    rc = json_init(&r.js, &in, 0, err);
    if (rc == 0) {
        bool is_object = json_open_document(&r.js);
        while (is_object && !r.no_memory && json_object_next(&r.js, &key, &len))
            read_value(&r, key, len);
        rc = json_result(&r.js, r.no_memory, "not what a job writes");
        json_fini(&r.js);
    }
    input_close(&in);
    v->n_runs++;
    return rc;
}
