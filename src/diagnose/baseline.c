/* Reads dpro.diagnose/1, as far as a comparison needs it. */
#include "diagnose/baseline.h"

#include "base/json_members.h"
#include "graph/graph.h"

#include <dpro/diagnose.h>

#define SCHEMA "dpro.diagnose/"

enum { MOST_CAUSES = 256, MOST_ITERATIONS = 1 << 20 };
#define MOST_NS INT64_C(1000000000000000000) /* sums of a few of them don't overflow */

static void read_blame(struct json_reader *r, void *out, size_t offset UNUSED)
{
    struct baseline_cause *cause = out;
    if (json_read_decimal(r->js, 6, &cause->blame_ns) != JSON_VALUE ||
        llabs(cause->blame_ns) > MOST_NS)
        json_refuse(r, "has no 'blame_ms' in milliseconds");
}

static void read_causes(struct json_reader *r, void *out, size_t offset UNUSED)
{
    static const struct json_member members[] = {
        MEMBER(struct baseline_cause, "cause", TEXT, cause),
        MEMBER(struct baseline_cause, "title", TEXT, title),
        MEMBER_BY("blame_ms", read_blame, 0),
        MEMBER(struct baseline_cause, "uncertainty_ms", MS, uncertainty_ns),
        {NULL}};
    struct dpro_saved_diagnosis *baseline = out;
    bool is_list = json_must_open(r);
    while (is_list && json_next_item(r)) {
        struct baseline_cause cause = {.uncertainty_ns = -1};
        json_read_object(r, members, &cause);
        cause.uncertainty_ns = MIN(cause.uncertainty_ns, MOST_NS);
        if (baseline->causes.n == MOST_CAUSES)
            json_refuse(r, "is more than the %d causes that there can be", MOST_CAUSES);
        else if (cause.cause)
            array_push(&baseline->causes, cause);
    }
}

static void read_works(struct json_reader *r, void *out, size_t offset UNUSED)
{
    static const struct json_member members[] = {MEMBER(struct saved_work, "op", TEXT, op),
                                                 MEMBER(struct saved_work, "times", NUMBER, times),
                                                 MEMBER(struct saved_work, "ms", MS, ns),
                                                 {NULL}};
    struct dpro_saved_diagnosis *baseline = out;
    bool is_list = json_must_open(r);
    while (is_list && json_next_item(r)) {
        struct saved_work work = {.op = 0};
        json_read_object(r, members, &work);
        if (work.op && baseline->works.n < MOST_SAVED_WORKS)
            array_push(&baseline->works, work);
    }
}

static void read_times(struct json_reader *r, void *out, size_t offset UNUSED)
{
    struct dpro_saved_diagnosis *baseline = out;
    int64_t ns;
    JSON_EACH (r->js)
        if (json_read_decimal(r->js, 6, &ns) == JSON_VALUE && ns >= 0 && ns <= MOST_NS &&
            baseline->measured_ns.n < MOST_ITERATIONS)
            array_push(&baseline->measured_ns, ns);
}

void dpro_saved_diagnosis_destroy(struct dpro_saved_diagnosis *baseline)
{
    if (!baseline)
        return;
    strtab_fini(&baseline->strings);
    FREE_ALL(&baseline->measured_ns, &baseline->causes, &baseline->works, &baseline->path,
             &baseline);
}

static int check_baseline(const struct dpro_saved_diagnosis *b, struct dpro_error *err)
{
    const char *schema = strtab_get(&b->strings, b->schema);
    if (!text_begins(schema, SCHEMA))
        return dpro_error_set(err, DPRO_EFORMAT,
                              "%s: no diagnosis; 'dpro diagnose TRACE --save FILE' writes one",
                              b->path);
    if (strcmp(schema, SCHEMA "1") != 0)
        return dpro_error_set(err, DPRO_EFORMAT,
                              "%s: saved as %.40s, which dpro %s does not read: save it again",
                              b->path, schema, dpro_version());
    if (b->iteration_ns <= 0 || b->iteration_ns > MOST_NS || b->ideal_ns > MOST_NS)
        return dpro_error_set(err, DPRO_EFORMAT, "%s: no iteration time in it: save it again",
                              b->path);
    int64_t sum_ns = b->ideal_ns;
    EACH (const struct baseline_cause, cause, b->causes)
        sum_ns = time_add(sum_ns, cause->blame_ns);
    if (sum_ns != b->iteration_ns)
        return dpro_error_set(err, DPRO_EFORMAT,
                              "%s: the ideal and the causes add up to %.3f ms, not to the %.3f ms "
                              "of its iteration: save it again",
                              b->path, (double)sum_ns / 1e6, (double)b->iteration_ns / 1e6);
    return 0;
}

static int read_baseline(const char *path, struct dpro_saved_diagnosis **baseline,
                         struct dpro_error *err)
{
    static const struct json_member members[] = {
        MEMBER(struct dpro_saved_diagnosis, "schema", TEXT, schema),
        MEMBER(struct dpro_saved_diagnosis, "version", TEXT, version),
        MEMBER(struct dpro_saved_diagnosis, "framework", TEXT, framework),
        MEMBER(struct dpro_saved_diagnosis, "world_size", INT, world_size),
        MEMBER(struct dpro_saved_diagnosis, "iteration_ms", MS, iteration_ns),
        MEMBER(struct dpro_saved_diagnosis, "ideal_ms", MS, ideal_ns),
        MEMBER_BY("measured_ms", read_times, 0),
        MEMBER(struct dpro_saved_diagnosis, "gradient_bytes", INT, gradient_bytes),
        MEMBER_BY("causes", read_causes, 0),
        MEMBER_BY("work", read_works, 0),
        {NULL}};
    struct dpro_saved_diagnosis *b = mem_array(1, sizeof *b);
    struct json_reader r = {.strings = &b->strings};
    b->path = mem_copy_string(path);
    int rc = json_read_file(&r, path, members, b, "not a diagnosis", err);
    if (rc == DPRO_EFORMAT && err)
        snprintf(err->text + strlen(err->text), sizeof err->text - strlen(err->text),
                 "; 'dpro diagnose TRACE --save FILE' writes it again");
    if (rc == 0)
        rc = check_baseline(b, err);
    if (rc == 0)
        *baseline = b;
    return rc;
}

int dpro_saved_diagnosis_read(const char *path, struct dpro_saved_diagnosis **baseline,
                              struct dpro_error *err)
{
    return WITHIN_SCOPE(dpro_error_nomem(err), read_baseline(path, baseline, err));
}

/* ---- whether it is of the same job ---- */

ORDER(by_time, struct job_work, DESCENDING(ns) ?: ASCENDING(key));

static struct job_work work_named(const char *name)
{
    struct job_work work = {.times = 0};
    size_t len = strnlen(name, WORK_NAME_BYTES);
    while (len > 0 && ((unsigned char)name[len] & 0xc0) == 0x80) /* within a character */
        len--;
    memcpy(work.name, name, len);
    work.key = map_text_key(work.name);
    return work;
}

void job_works_find(job_works *works, const struct dpro_graph *g)
{
    SCRATCH struct map numbers = {0};
    SCRATCH uint32_t *of_name = mem_array(g->names.n + (size_t)1, sizeof *of_name);
    for (uint32_t op = 0; op < g->n_ops; op++) {
        uint32_t *number = &of_name[g->name[op]]; /* 1 + its place; 0: not seen yet */
        if (g->phase[op] == DPRO_OP_COLLECTIVE || g->rank[op] >= g->n_ranks)
            continue;
        if (*number == 0) {
            struct job_work work = work_named(strtab_get(&g->names, g->name[op]));
            *number = 1 + (uint32_t)map_number(&numbers, work.key);
            if (*number > works->n)
                array_push(works, work);
        }
        works->at[*number - 1].times += 1.0 / g->n_ranks;
        works->at[*number - 1].ns += (double)g->dur_ns[op] / g->n_ranks;
    }
    array_sort(works, by_time);
}

uint64_t gradients_of(const struct dpro_graph *g)
{
    uint64_t bytes = 0;
    for (uint32_t r = 0; r < g->n_ranks && bytes == 0; r++)
        bytes = g->ranks[r].gradient_bytes;
    return bytes;
}

/* Of the time of works, that of those which the other job has, too, as often. */
static double share_in_common(const job_works *works, const job_works *others, size_t most)
{
    double all = 0, common = 0;
    for (size_t i = 0; i < MIN(works->n, most); i++) {
        const struct job_work *work = &works->at[i];
        all += work->ns;
        EACH (const struct job_work, other, *others)
            if (other->key == work->key)
                common += work->ns * MIN(other->times / MAX(work->times, 1e-4), 1);
    }
    return all > 0 ? common / all : 1;
}

static void check_works(const struct dpro_saved_diagnosis *b, const struct dpro_graph *g)
{
    SCRATCH job_works then = {0};
    SCRATCH job_works now = {0};
    uint64_t gradients = gradients_of(g);
    EACH (const struct saved_work, saved, b->works) {
        struct job_work work = work_named(strtab_get(&b->strings, saved->op));
        work.times = saved->times;
        work.ns = (double)saved->ns;
        array_push(&then, work);
    }
    job_works_find(&now, g);
    double of_then = share_in_common(&then, &now, SIZE_MAX);
    double of_now = share_in_common(&now, &then, MOST_SAVED_WORKS);
    if (MAX(of_then, of_now) < LEAST_COMMON && !g->lacks_gpu && then.n > 0 &&
        !(gradients > 0 && (int64_t)gradients == b->gradient_bytes))
        fail_with(DPRO_EFORMAT,
                  "%s: ops that both have take %.0f %% of what that job computes and %.0f %% of "
                  "what this one does: they are different jobs",
                  b->path, 100 * of_then, 100 * of_now);
}

int dpro_saved_diagnosis_check(const struct dpro_saved_diagnosis *b, const struct dpro_graph *g,
                               struct dpro_error *err)
{
    const char *then = strtab_get(&b->strings, b->framework);
    if (*then && g->framework && strcmp(then, g->framework) != 0)
        return dpro_error_set(err, DPRO_EFORMAT,
                              "%s: of a job of %.40s with %" PRId64 " ranks, but this one is of "
                              "%s with %d: they are different jobs",
                              b->path, then, b->world_size, g->framework, g->world_size);
    return OUTCOME(err, check_works(b, g));
}

const struct baseline_cause *baseline_cause(const struct dpro_saved_diagnosis *b, const char *key)
{
    EACH (const struct baseline_cause, cause, b->causes)
        if (strcmp(strtab_get(&b->strings, cause->cause), key) == 0)
            return cause;
    return NULL;
}
