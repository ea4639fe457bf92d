/* ingest/rank_json.c: rank.json (dpro.rank/1) and job.json (dpro.job/1), as described in
 * doc/formats/trace-directory.md. Keys come in any order; what is not known is skipped. */
#include "ingest/rank_json.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "ingest/rank_job.h"

struct recording_reader {
    struct json *js;
    struct trace_part *part;
    struct recording *out;
    bool no_memory;
};

static void fini(void *payload)
{
    struct recording *recording = payload;
    array_fini(&recording->models);
    array_fini(&recording->parameters);
    array_fini(&recording->buckets);
    array_fini(&recording->members);
    array_fini(&recording->steps);
}

const struct payload_kind recording_payload = {sizeof(struct recording), fini, NULL};

void recording_destroy(struct recording *recording)
{
    if (recording)
        fini(recording);
    free(recording);
}

void recording_rename(struct recording *recording, const uint32_t *names)
{
    for (size_t i = 0; i < recording->models.n; i++) {
        recording->models.at[i].name = names[recording->models.at[i].name];
        recording->models.at[i].parallel = names[recording->models.at[i].parallel];
    }
    for (size_t i = 0; i < recording->parameters.n; i++)
        recording->parameters.at[i].name = names[recording->parameters.at[i].name];
    for (size_t i = 0; i < recording->buckets.n; i++)
        recording->buckets.at[i].name = names[recording->buckets.at[i].name];
    recording->plan.path = names[recording->plan.path];
    recording->plan.reason = names[recording->plan.reason];
}

static uint32_t read_string(struct recording_reader *r)
{
    const char *text;
    size_t len;
    if (json_peek(r->js) != '"')
        return json_skip(r->js), 0;
    if (!json_string(r->js, &text, &len))
        return 0;
    uint32_t id = strtab_add(&r->part->names, text, len);
    r->no_memory |= id == STRTAB_FULL;
    return id == STRTAB_FULL ? 0 : id;
}

static int64_t read_int(struct recording_reader *r, int64_t none)
{
    int64_t v;
    return json_read_decimal(r->js, 0, &v) == JSON_VALUE ? v : none;
}

static uint64_t read_size(struct recording_reader *r)
{
    uint64_t v;
    return json_read_unsigned(r->js, &v) == JSON_VALUE ? v : 0;
}

static bool read_bool(struct recording_reader *r)
{
    const char *text;
    size_t len;
    return json_scalar(r->js, &text, &len) && json_is(text, len, "true");
}

/* Opens the array or object that is next; other values are skipped. */
static bool enter(struct recording_reader *r, char bracket)
{
    if (json_peek(r->js) != bracket)
        return json_skip(r->js), false;
    r->js->p++;
    return true;
}

/* The elements of a list that are objects; others are counted and skipped. */
static bool next_object(struct recording_reader *r)
{
    while (!r->no_memory && json_array_next(r->js)) {
        if (json_peek(r->js) == '{') {
            r->js->p++;
            return true;
        }
        r->out->n_broken++;
        json_skip(r->js);
    }
    return false;
}

static uint64_t read_shape(struct recording_reader *r)
{
    uint64_t numel = 1;
    if (!enter(r, '['))
        return 0;
    while (json_array_next(r->js)) {
        uint64_t v = read_size(r);
        if (__builtin_mul_overflow(numel, v, &numel))
            numel = UINT64_MAX;
    }
    return numel;
}

static void read_parameters(struct recording_reader *r)
{
    const char *key;
    size_t len;
    if (!enter(r, '['))
        return;
    while (next_object(r)) {
        struct recorded_parameter p = {0};
        while (json_object_next(r->js, &key, &len)) {
            if (json_is(key, len, "name"))
                p.name = read_string(r);
            else if (json_is(key, len, "shape"))
                p.numel = read_shape(r);
            else if (json_is(key, len, "size_bytes"))
                p.size_bytes = read_size(r);
            else
                json_skip(r->js);
        }
        if (r->js->fail == JSON_OK && array_push(&r->out->parameters, p) < 0)
            r->no_memory = true;
    }
}

static void read_members(struct recording_reader *r, struct recorded_bucket *bucket)
{
    if (!enter(r, '['))
        return;
    while (!r->no_memory && json_array_next(r->js)) {
        uint64_t index = read_size(r);
        uint32_t member = index < UINT32_MAX ? (uint32_t)index : UINT32_MAX;
        if (r->out->members.n >= UINT32_MAX - 1 || array_push(&r->out->members, member) < 0)
            r->no_memory = true;
        else
            bucket->n++;
    }
}

/* buckets or fsdp.units: indices of parameters, which may be listed further on. */
static void read_buckets(struct recording_reader *r, uint32_t *first, uint32_t *n)
{
    const char *key;
    size_t len;
    *first = (uint32_t)r->out->buckets.n;
    *n = 0;
    if (!enter(r, '['))
        return;
    while (next_object(r)) {
        struct recorded_bucket bucket = {.model = (uint32_t)r->out->models.n,
                                         .first = (uint32_t)r->out->members.n};
        while (json_object_next(r->js, &key, &len)) {
            if (json_is(key, len, "parameters"))
                read_members(r, &bucket);
            else if (json_is(key, len, "size_bytes"))
                bucket.size_bytes = read_size(r);
            else if (json_is(key, len, "name"))
                bucket.name = read_string(r);
            else
                json_skip(r->js);
        }
        if (r->js->fail != JSON_OK)
            return;
        if (array_push(&r->out->buckets, bucket) < 0)
            r->no_memory = true;
        ++*n;
    }
}

static void read_fsdp(struct recording_reader *r, struct recorded_model *model)
{
    const char *key;
    size_t len;
    if (!enter(r, '{'))
        return;
    while (json_object_next(r->js, &key, &len)) {
        if (json_is(key, len, "units"))
            read_buckets(r, &model->first_unit, &model->n_units);
        else
            json_skip(r->js);
    }
}

/* Sums a bucket's elements; one with a member that is no parameter has none. */
static void check_bucket(struct recorded_bucket *bucket, const struct recorded_model *model,
                         struct recording *out)
{
    uint64_t size_bytes = 0;
    for (uint32_t i = bucket->first; i < bucket->first + bucket->n; i++) {
        if (out->members.at[i] >= model->n_parameters) {
            bucket->n = 0;
            bucket->numel = 0;
            out->n_broken++;
            return;
        }
        out->members.at[i] += model->first_parameter;
        const struct recorded_parameter *p = &out->parameters.at[out->members.at[i]];
        if (__builtin_add_overflow(bucket->numel, p->numel, &bucket->numel))
            bucket->numel = UINT64_MAX;
        if (__builtin_add_overflow(size_bytes, p->size_bytes, &size_bytes))
            size_bytes = UINT64_MAX;
    }
    if (bucket->size_bytes == 0)
        bucket->size_bytes = size_bytes;
}

static void read_models(struct recording_reader *r)
{
    const char *key;
    size_t len;
    if (!enter(r, '['))
        return;
    while (next_object(r)) {
        struct recording *out = r->out;
        struct recorded_model model = {.first_parameter = (uint32_t)out->parameters.n};
        size_t bucket = out->buckets.n; /* a file may have a list twice, all are checked */
        while (json_object_next(r->js, &key, &len)) {
            if (json_is(key, len, "name"))
                model.name = read_string(r);
            else if (json_is(key, len, "parallel"))
                model.parallel = read_string(r);
            else if (json_is(key, len, "parameters"))
                read_parameters(r);
            else if (json_is(key, len, "buckets"))
                read_buckets(r, &model.first_bucket, &model.n_buckets);
            else if (json_is(key, len, "fsdp"))
                read_fsdp(r, &model);
            else
                json_skip(r->js);
        }
        model.n_parameters = (uint32_t)out->parameters.n - model.first_parameter;
        for (; bucket < out->buckets.n; bucket++)
            check_bucket(&out->buckets.at[bucket], &model, out);
        if (array_push(&out->models, model) < 0)
            r->no_memory = true;
    }
}

static void read_step_list(struct recording_reader *r, uint8_t window)
{
    const char *key;
    size_t len;
    if (!enter(r, '['))
        return;
    while (next_object(r)) {
        struct recorded_step step = {.window = window};
        while (json_object_next(r->js, &key, &len)) {
            if (json_is(key, len, "step"))
                step.number = read_int(r, 0);
            else if (json_is(key, len, "start_ns"))
                step.start_ns = read_int(r, 0);
            else if (json_is(key, len, "end_ns"))
                step.end_ns = read_int(r, 0);
            else
                json_skip(r->js);
        }
        if (r->js->fail != JSON_OK)
            return;
        if (!trace_time_fits(step.start_ns) || !trace_time_fits(step.end_ns) ||
            step.end_ns <= step.start_ns)
            r->out->n_broken++;
        else if (array_push(&r->out->steps, step) < 0)
            r->no_memory = true;
    }
}

static void read_steps(struct recording_reader *r)
{
    const char *key;
    size_t len;
    if (!enter(r, '{'))
        return;
    while (json_object_next(r->js, &key, &len)) {
        if (json_is(key, len, "before"))
            read_step_list(r, RECORDED_BEFORE);
        else if (json_is(key, len, "timing"))
            read_step_list(r, RECORDED_TIMING);
        else if (json_is(key, len, "structure"))
            read_step_list(r, RECORDED_STRUCTURE);
        else if (json_is(key, len, "after"))
            read_step_list(r, RECORDED_AFTER);
        else
            json_skip(r->js);
    }
}

static void read_profiler(struct recording_reader *r)
{
    enum { MOST_NS = 1000000 }; /* more was not measured with care */
    const char *key;
    size_t len;
    if (!enter(r, '{'))
        return;
    while (json_object_next(r->js, &key, &len)) {
        if (!json_is(key, len, "op_ns")) {
            json_skip(r->js);
            continue;
        }
        int64_t ns = read_int(r, -1);
        r->out->profiler_op_ns = ns >= 0 && ns <= MOST_NS ? ns : -1;
    }
}

static void read_groups(struct recording_reader *r)
{
    const char *key;
    size_t len;
    if (!enter(r, '['))
        return;
    while (next_object(r)) {
        struct trace_group group = {0};
        ARRAY(int32_t) ranks = {0};
        while (json_object_next(r->js, &key, &len)) {
            if (json_is(key, len, "name")) {
                group.name = read_string(r);
            } else if (json_is(key, len, "description")) {
                group.description = read_string(r);
            } else if (json_is(key, len, "ranks")) {
                bool is_list = enter(r, '[');
                while (is_list && json_array_next(r->js)) {
                    int64_t rank = read_int(r, -1);
                    if (rank >= 0 && rank <= INT32_MAX && array_push(&ranks, (int32_t)rank) < 0)
                        r->no_memory = true;
                }
            } else {
                json_skip(r->js);
            }
        }
        group.n_ranks = (uint32_t)ranks.n;
        group.ranks = arena_array(&r->part->arena, ranks.n, sizeof *ranks.at);
        if (!group.ranks)
            r->no_memory = true;
        else if (ranks.n)
            memcpy(group.ranks, ranks.at, ranks.n * sizeof *ranks.at);
        array_fini(&ranks);
        if (r->js->fail == JSON_OK && !r->no_memory && array_push(&r->part->groups, group) < 0)
            r->no_memory = true;
    }
}

/* A decimal number with up to nine digits behind the point, 0 when it is none. */
static double read_number(struct recording_reader *r)
{
    int64_t v;
    return json_read_decimal(r->js, 9, &v) == JSON_VALUE ? (double)v / 1e9 : 0;
}

static void read_expected(struct recording_reader *r)
{
    const char *key;
    size_t len;
    if (!enter(r, '{'))
        return;
    while (json_object_next(r->js, &key, &len)) {
        if (json_is(key, len, "baseline_ms"))
            r->out->plan.baseline_ns = (int64_t)(1e6 * read_number(r));
        else if (json_is(key, len, "iteration_ms"))
            r->out->plan.iteration_ns = (int64_t)(1e6 * read_number(r));
        else if (json_is(key, len, "uncertainty_pct"))
            r->out->plan.uncertainty_pct = read_number(r);
        else
            json_skip(r->js);
    }
}

static void read_plan(struct recording_reader *r)
{
    const char *key;
    size_t len;
    if (!enter(r, '{'))
        return;
    r->out->plan.asked = true;
    while (json_object_next(r->js, &key, &len)) {
        if (json_is(key, len, "path"))
            r->out->plan.path = read_string(r);
        else if (json_is(key, len, "applied"))
            r->out->plan.applied = read_bool(r);
        else if (json_is(key, len, "reason"))
            r->out->plan.reason = read_string(r);
        else if (json_is(key, len, "expected"))
            read_expected(r);
        else
            json_skip(r->js);
    }
}

static void read_fusion(struct recording_reader *r)
{
    const char *key;
    size_t len;
    if (!enter(r, '{'))
        return;
    r->out->fusion.is_set = true;
    while (json_object_next(r->js, &key, &len)) {
        if (json_is(key, len, "fusion_threshold_bytes"))
            r->out->fusion.most_bytes = read_size(r);
        else if (json_is(key, len, "in_groups"))
            r->out->fusion.in_groups = read_bool(r);
        else
            json_skip(r->js);
    }
}

static void read_top(struct recording_reader *r, const char *key, size_t len)
{
    struct trace_part *part = r->part;
    if (json_is(key, len, "rank")) {
        int64_t rank = read_int(r, -1);
        part->has_rank = rank >= 0 && rank <= INT32_MAX;
        part->rank = part->has_rank ? (int)rank : 0;
    } else if (json_is(key, len, "world_size")) {
        int64_t size = read_int(r, 0);
        part->world_size = size > 0 && size <= INT32_MAX ? (int)size : 0;
    } else if (json_is(key, len, "attempt")) {
        int64_t attempt = read_int(r, -1);
        r->out->attempt = attempt >= 0 && attempt <= INT32_MAX ? (int)attempt : -1;
    } else if (json_is(key, len, "schema")) {
        uint32_t id = read_string(r);
        part->of_job = strncmp(strtab_get(&part->names, id), "dpro.job/", 9) == 0;
    } else if (json_is(key, len, "complete")) {
        r->out->complete = read_bool(r);
    } else if (json_is(key, len, "pid")) {
        part->pid = read_size(r);
    } else if (json_is(key, len, "host_name")) {
        part->host = read_string(r);
    } else if (json_is(key, len, "backend")) {
        part->backend = read_string(r);
    } else if (json_is(key, len, "process_groups")) {
        read_groups(r);
    } else if (json_is(key, len, "profiler")) {
        read_profiler(r);
    } else if (json_is(key, len, "models")) {
        read_models(r);
    } else if (json_is(key, len, "plan")) {
        read_plan(r);
    } else if (json_is(key, len, "horovod")) {
        read_fusion(r);
    } else if (json_is(key, len, "steps")) {
        read_steps(r);
    } else {
        json_skip(r->js);
    }
    part->n_events++;
}

static int read_document(struct json *js, struct trace_part *part, struct dpro_error *err)
{
    struct recording_reader r = {.js = js, .part = part};
    const char *key;
    size_t len;
    r.out = part_make_payload(part, &recording_payload);
    if (!r.out || strtab_add(&part->names, "", 0) == STRTAB_FULL)
        return dpro_error_nomem(err);
    r.out->attempt = -1;
    r.out->profiler_op_ns = -1;
    json_skip_mark(js);
    int c = json_peek(js);
    if (c != '{') {
        json_stop(js, c < 0 ? JSON_ENDED : JSON_BAD);
        return 0;
    }
    js->p++;
    while (!r.no_memory && json_object_next(js, &key, &len))
        read_top(&r, key, len);
    if (js->fail != JSON_OK)
        r.out->complete = false;
    return r.no_memory ? dpro_error_nomem(err) : 0;
}

static bool recognise(const struct head *head)
{
    return head->piece == HEAD_MEMBER && strcmp(head->key, "schema") == 0 &&
           (strncmp(head->text, "dpro.rank/", 10) == 0 || strncmp(head->text, "dpro.job/", 9) == 0);
}

/* What a rank's recorder says of it goes to the rank. */
static int reserve(struct trace_build *build, struct rank_job *job, struct rank_room *room)
{
    struct trace_rank *rank = job->rank;
    (void)room;
    for (size_t i = 0; i < build->list.n && !rank->recording; i++) {
        struct source *source = &build->list.at[i];
        if (source->rank != rank->rank || !source_payload(source, &recording_payload))
            continue;
        rank->recording = part_take_payload(&source->part, &recording_payload);
        recording_rename(rank->recording, source->names);
        if (rank_describe(rank, source, &build->trace->arena) < 0)
            return -1;
    }
    return 0;
}

const struct reader recording_reader = {
    .name = "recording",
    .word = "recording",
    .one = "entry",
    .many = "entries",
    .encoding = "JSON",
    .missing = {.alone = "no profile was recorded: the job ended or failed before the steps to be "
                         "profiled, as 'dpro profile' said; let it run longer, or choose fewer "
                         "steps by --warmup and --iterations"},
    .recognise = recognise,
    .read_json = read_document,
    .reserve = reserve,
    .join = recordings_join,
};

static bool fits(const struct recorded_bucket *bucket, uint64_t numel, uint64_t size_bytes)
{
    return bucket->n > 0 && (numel ? numel == bucket->numel : size_bytes == bucket->size_bytes);
}

uint32_t recorded_walk_next(struct recorded_walk *walk, uint64_t numel, uint64_t size_bytes)
{
    const struct recording *recording = walk->recording;
    if (walk->model < recording->models.n) {
        const struct recorded_model *model = &recording->models.at[walk->model];
        uint32_t bucket = model->first_bucket + walk->next;
        if (walk->next < model->n_buckets &&
            fits(&recording->buckets.at[bucket], numel, size_bytes)) {
            walk->next++;
            return bucket;
        }
    }
    /* another backward pass, of this model or of another one, begins with the first bucket */
    for (size_t m = 0; m < recording->models.n; m++) {
        const struct recorded_model *model =
            &recording->models.at[(walk->model + m) % recording->models.n];
        if (model->n_buckets > 0 &&
            fits(&recording->buckets.at[model->first_bucket], numel, size_bytes)) {
            walk->model = (uint32_t)((walk->model + m) % recording->models.n);
            walk->next = 1;
            return model->first_bucket;
        }
    }
    return UINT32_MAX;
}
