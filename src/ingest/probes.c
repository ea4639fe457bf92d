/* probes.json of dpro's recorder, of the trace's run or of another one. */
#include "ingest/probes.h"

#include "ingest/load.h"
#include "ingest/rank_job.h"

#define SCHEMA "dpro.probes/"

enum { MOST_TIMES = 4096 }; /* repetitions that are read */
#define MOST_NS    1e12     /* of one */
#define MOST_RATIO 1024.0

static void probes_fini(void *payload)
{
    struct dpro_probes *probes = payload;
    strtab_fini(&probes->strings);
    FREE_ALL(&probes->probes, &probes->names, &probes->batches);
}

const struct payload_kind probes_payload = {sizeof(struct dpro_probes), .fini = probes_fini};

void dpro_probes_destroy(struct dpro_probes *probes)
{
    payload_destroy(&probes_payload, probes);
}

const char *probe_way_name(unsigned way)
{
    static const char *const names[N_PROBE_WAYS] = {
        [DPRO_AS_IT_IS] = "eager",
        [DPRO_COMPILED] = "compile",
        [DPRO_BF16] = "bf16",
        [DPRO_COMPILED | DPRO_BF16] = "compile+bf16",
        [PROBE_RECOMPUTED] = "recompute",
    };
    return names[way];
}

/* ---- times ---- */

typedef ARRAY(double) times;

/* Of one pass, in all, and on a GPU of launches and kernels. */
enum { ALL, LAUNCH, DEVICE, N_TIMES };

struct pass_times {
    times of[N_TIMES];
};

/* Of one way, or of one batch. */
struct probes_measured {
    struct pass_times forward, backward;
    struct pass_times own_forward,
        own_backward; /* as it is, in the same turns; empty: those of "eager" */
    uint64_t kept_bytes, graphs;
    uint32_t problem, left_out;
    double ratio; /* of a batch */
};

static void measured_fini(struct probes_measured *m)
{
    for (int i = 0; i < N_TIMES; i++)
        FREE_ALL(&m->forward.of[i], &m->backward.of[i], &m->own_forward.of[i],
                 &m->own_backward.of[i]);
}

/* What repetitions differ by, at least, relative: few of them may be alike by chance. */
#define LEAST_DEVIATION 0.05

/* With its standard error, by the median deviation: an odd repetition moves neither. */
static struct dpro_estimate median_of(const double *values, size_t n)
{
    SCRATCH double *room = mem_array(n + 1, sizeof *room);
    memcpy(room, values, n * sizeof *room);
    double median = stats_median(room, n);
    for (size_t i = 0; i < n; i++)
        room[i] = fabs(values[i] - median);
    double deviation = fmax(1.4826 * stats_median(room, n), LEAST_DEVIATION * median);
    return (struct dpro_estimate){median, 1.2533 * deviation / sqrt((double)n)};
}

/* How many times as long as `own`. Ways take turns, so that repetitions of one number ran in the
 * same moment; where they are not as many, medians are compared. */
static struct dpro_estimate ratio_of(const times *of, const times *own)
{
    size_t n = of->n;
    if (n == 0 || own->n == 0)
        return (struct dpro_estimate){1, 0}; /* there is no such pass */
    if (n != own->n) {
        struct dpro_estimate a = median_of(of->at, n), b = median_of(own->at, own->n);
        double ratio = a.value / b.value;
        return (struct dpro_estimate){ratio, ratio * hypot(a.std / a.value, b.std / b.value)};
    }
    SCRATCH double *ratios = mem_array(n, sizeof *ratios);
    for (size_t i = 0; i < n; i++)
        ratios[i] = of->at[i] / own->at[i];
    return median_of(ratios, n);
}

static bool is_ratio(double value)
{
    return value >= 1 / MOST_RATIO && value <= MOST_RATIO;
}

static int64_t median_ns(const times *of)
{
    return of->n > 0 ? llround(median_of(of->at, of->n).value) : 0;
}

/* ---- one probe ---- */

/* What is read of it before all of its ways are there. */
struct probes_reading {
    struct dpro_probes *to;
    struct probe probe;
    uint32_t problem; /* of all of its ways */
    bool is_run;      /* of neighbours that were compiled as one, as dpro once measured them */
    struct probes_measured ways[N_PROBE_WAYS];
    ARRAY(struct probes_measured) batches;
};

static void read_times(struct json_reader *r, void *out, size_t offset)
{
    struct probes_reading *reading = r->arg;
    times *to = (times *)(void *)((char *)out + offset);
    to->n = 0;
    JSON_EACH (r->js) {
        int64_t ns = -1;
        bool known = json_read_decimal(r->js, 0, &ns) == JSON_VALUE && ns >= 0 && ns <= MOST_NS;
        if (known && ns > 0 && to->n < MOST_TIMES) /* 0: there is no such pass */
            array_push(to, (double)ns);
        else if (!known && r->js->fail == JSON_OK)
            reading->to->n_broken++;
    }
}

#define MEMBERS_OF_PASS(name, pass)                                                                \
    MEMBER_BY(name "_ns", read_times, offsetof(struct probes_measured, pass.of[ALL])),             \
        MEMBER_BY(name "_launch_ns", read_times,                                                   \
                  offsetof(struct probes_measured, pass.of[LAUNCH])),                              \
        MEMBER_BY(name "_device_ns", read_times,                                                   \
                  offsetof(struct probes_measured, pass.of[DEVICE]))

static void read_own(struct json_reader *r, void *out, size_t offset UNUSED)
{
    static const struct json_member members[] = {
        MEMBERS_OF_PASS("forward", own_forward), MEMBERS_OF_PASS("backward", own_backward), {NULL}};
    json_read_object(r, members, out);
}

static void read_measured(struct json_reader *r, struct probes_measured *m)
{
    static const struct json_member members[] = {
        MEMBERS_OF_PASS("forward", forward),
        MEMBERS_OF_PASS("backward", backward),
        MEMBER(struct probes_measured, "kept_bytes", SIZE, kept_bytes),
        MEMBER(struct probes_measured, "graphs", SIZE, graphs),
        MEMBER(struct probes_measured, "problem", TEXT, problem),
        MEMBER(struct probes_measured, "left_out", TEXT, left_out),
        MEMBER_BY("eager", read_own, 0),
        {NULL}};
    json_read_object(r, members, m);
}

static void read_ways(struct json_reader *r, void *out UNUSED, size_t offset UNUSED)
{
    struct probes_reading *reading = r->arg;
    JSON_KEYS (r->js, json_open(r->js, '{'), key, len) {
        unsigned way = 0;
        while (way < N_PROBE_WAYS && !text_n_is(key, len, probe_way_name(way)))
            way++;
        if (way < N_PROBE_WAYS)
            read_measured(r, &reading->ways[way]);
        else
            json_skip(r->js); /* of a later dpro */
    }
}

static void read_batches(struct json_reader *r, void *out UNUSED, size_t offset UNUSED)
{
    struct probes_reading *reading = r->arg;
    JSON_KEYS (r->js, json_open(r->js, '{'), key, len) {
        char text[32] = "";
        if (len < sizeof text)
            memcpy(text, key, len);
        struct probes_measured m = {.ratio = strtod(text, NULL)};
        read_measured(r, &m);
        array_push(&reading->batches, m);
    }
}

/* Lists of one name each. */
static void read_modules(struct json_reader *r, void *out UNUSED, size_t offset UNUSED)
{
    struct probes_reading *reading = r->arg;
    struct dpro_probes *to = reading->to;
    struct probe *probe = &reading->probe;
    to->names.n = probe->first;
    JSON_EACH (r->js) {
        size_t begin = to->names.n;
        JSON_EACH (r->js)
            array_push(&to->names, json_read_text(r));
        size_t n = to->names.n - begin;
        if (n != 1)
            to->names.n = begin;
        reading->is_run |= n > 1;
        to->n_broken += n == 0 && r->js->fail == JSON_OK;
    }
    probe->n = (uint32_t)to->names.n - probe->first;
}

/* Kernels take no longer than all of the pass, however few of them could be launched ahead. */
static double device_ns(const struct pass_times *pass)
{
    return (double)MIN(median_ns(&pass->of[DEVICE]), median_ns(&pass->of[ALL]));
}

static struct probe_bounds bounds_of(const struct pass_times *pass, const struct pass_times *own)
{
    struct probe_bounds b = {.own_launch_ns = (double)median_ns(&own->of[LAUNCH]),
                             .own_device_ns = device_ns(own)};
    if (b.own_launch_ns > 0 && b.own_device_ns > 0) {
        b.launch = (double)median_ns(&pass->of[LAUNCH]) / b.own_launch_ns;
        b.device = device_ns(pass) / b.own_device_ns;
    }
    return b;
}

static struct probe_cost cost_of(const struct probes_measured *m,
                                 const struct probes_measured *as_it_is)
{
    bool beside = m->own_forward.of[ALL].n > 0;
    const struct pass_times *forward = beside ? &m->own_forward : &as_it_is->forward,
                            *backward = beside ? &m->own_backward : &as_it_is->backward;
    const times *own_forward = &forward->of[ALL], *own_backward = &backward->of[ALL];
    struct probe_cost cost = {.forward = ratio_of(&m->forward.of[ALL], own_forward),
                              .backward = ratio_of(&m->backward.of[ALL], own_backward),
                              .forward_bounds = bounds_of(&m->forward, forward),
                              .backward_bounds = bounds_of(&m->backward, backward),
                              .backward_ns = median_ns(&m->backward.of[ALL]),
                              .kept_bytes = MIN(m->kept_bytes, (uint64_t)TRACE_BYTES_MAX),
                              .n_graphs = (uint32_t)MIN(m->graphs, UINT32_MAX),
                              .problem = m->problem,
                              .left_out = m->left_out};
    cost.is_known = m->problem == 0 && m->forward.of[ALL].n > 0 && own_forward->n > 0 &&
                    (m->backward.of[ALL].n > 0) == (own_backward->n > 0) &&
                    is_ratio(cost.forward.value) && is_ratio(cost.backward.value);
    return cost;
}

static void probes_finish(struct probes_reading *reading)
{
    struct dpro_probes *to = reading->to;
    struct probe *probe = &reading->probe;
    const struct probes_measured *own = &reading->ways[DPRO_AS_IT_IS];
    for (unsigned way = 0; way < N_PROBE_WAYS; way++) {
        probe->costs[way] = cost_of(&reading->ways[way], own);
        if (!probe->costs[way].problem)
            probe->costs[way].problem = probe->costs[way].is_known ? 0 : reading->problem;
    }
    probe->first_batch = (uint32_t)to->batches.n;
    EACH (const struct probes_measured, m, reading->batches) {
        struct probe_cost cost = cost_of(m, own);
        if (cost.is_known && is_ratio(m->ratio))
            array_add(&to->batches, m->ratio, cost);
    }
    probe->n_batches = (uint32_t)to->batches.n - probe->first_batch;
    if (probe->n > 0)
        array_push(&to->probes, *probe);
    else if (!reading->is_run)
        to->n_broken++;
}

static void read_probe(struct json_reader *r, struct dpro_probes *to)
{
    static const struct json_member members[] = {
        MEMBER(struct probes_reading, "class", TEXT, probe.class),
        MEMBER(struct probes_reading, "problem", TEXT, problem),
        MEMBER_BY("modules", read_modules, 0),
        MEMBER_BY("ways", read_ways, 0),
        MEMBER_BY("batches", read_batches, 0),
        {NULL}};
    struct probes_reading reading = {.to = to, .probe = {.first = (uint32_t)to->names.n}};
    r->arg = &reading;
    bool is_object = json_read_object(r, members, &reading);
    if (r->js->fail == JSON_OK && is_object)
        probes_finish(&reading);
    else if (r->js->fail == JSON_OK)
        to->n_broken++;
    if (r->js->fail != JSON_OK || !is_object)
        to->names.n = reading.probe.first;
    for (unsigned way = 0; way < N_PROBE_WAYS; way++)
        measured_fini(&reading.ways[way]);
    for (size_t i = 0; i < reading.batches.n; i++)
        measured_fini(&reading.batches.at[i]);
    array_fini(&reading.batches);
}

/* ---- the document ---- */

static void read_list(struct json_reader *r, void *out, size_t offset UNUSED)
{
    struct dpro_probes *to = out;
    to->probes.n = to->names.n = to->batches.n = 0;
    JSON_EACH (r->js)
        read_probe(r, to);
}

static const struct json_member versions[] = {
    MEMBER(struct dpro_probes, "torch", TEXT, torch),
    MEMBER(struct dpro_probes, "tensorflow", TEXT, tensorflow),
    {NULL}};
static const struct json_member document[] = {
    MEMBER(struct dpro_probes, "schema", TEXT, schema),
    MEMBER(struct dpro_probes, "device_name", TEXT, device_name),
    MEMBER(struct dpro_probes, "threads", SIZE, threads),
    MEMBER(struct dpro_probes, "fault_ns", NUMBER, fault_ns),
    MEMBER_IN("versions", versions),
    MEMBER_BY("probes", read_list, 0),
    {NULL}};

/* Negative: of another version, or none. */
static int check_schema(const struct dpro_probes *probes, struct dpro_error *err)
{
    const char *schema = strtab_get(&probes->strings, probes->schema);
    if (strcmp(schema, SCHEMA "1") == 0)
        return 0;
    return dpro_error_set(err, DPRO_EFORMAT,
                          "'%.40s' are no probes that this version of dpro reads, which are "
                          "'%s1'; 'dpro profile --probe' writes them",
                          schema, SCHEMA);
}

/* ---- of the trace's own run ---- */

static int read_document(struct json *js, struct trace_part *part, struct dpro_error *err)
{
    struct dpro_probes *probes = part_make_payload(part, &probes_payload);
    struct json_reader r = {.js = js, .strings = &probes->strings};
    bool is_object = json_open_document(js);
    if (is_object)
        json_read_members(&r, document, probes);
    part->n_events = probes->probes.n;
    return is_object && js->fail == JSON_OK ? check_schema(probes, err) : 0;
}

/* One rank measures for all. */
static void probes_join(struct trace_build *build)
{
    const char *used = NULL;
    EACH (struct source, source, build->list) {
        const struct dpro_probes *probes = source_payload(source, &probes_payload);
        if (!probes)
            continue;
        if (used) {
            build_warn(build, "%s: second file of probes, skipped; %s is used", source->path, used);
            continue;
        }
        used = source->path;
        if (probes->n_broken > 0)
            build_warn(build, "%s: %s entries make no sense, skipped", source->path,
                       COUNT_TEXT(probes->n_broken));
        build->trace->probes = part_take_payload(&source->part, &probes_payload);
    }
}

const struct reader probes_reader = {
    .name = "probes",
    .word = "list of probes",
    .encoding = "JSON",
    .flags = READER_STRUCTURE | READER_COPIED,
    .missing = {.alone = "what modules take in other ways is of no use without the job's profile; "
                         "give the whole folder that dpro profile wrote, or the file by --probes"},
    .schemas = {SCHEMA},
    .read_json = read_document,
    .join = probes_join,
};

const struct dpro_probes *dpro_trace_probes(const struct dpro_trace *trace)
{
    return trace->probes;
}

/* ---- of another run ---- */

/* What the trace's recording says of where it ran, or its own probes do. */
static void probes_compare(struct dpro_probes *probes, const struct dpro_trace *trace,
                           const char *path)
{
    const struct recording *recording = NULL;
    for (uint32_t r = 0; r < trace->n_ranks && !recording; r++)
        recording = trace->ranks[r].recording;
    probes->other_threads = trace->probes && trace->probes->threads && probes->threads &&
                            trace->probes->threads != probes->threads;
    const struct {
        const char *what;
        uint32_t probed, recorded;
    } facts[] = {{"the device", probes->device_name, recording ? recording->device_name : 0},
                 {"PyTorch", probes->torch, recording ? recording->torch : 0},
                 {"TensorFlow", probes->tensorflow, recording ? recording->tensorflow : 0}};
    for (size_t i = 0; recording && i < sizeof facts / sizeof *facts; i++) {
        const char *probed = strtab_get(&probes->strings, facts[i].probed),
                   *recorded = strtab_get(&trace->names, facts[i].recorded);
        if (probed[0] != '\0' && recorded[0] != '\0' && strcmp(probed, recorded) != 0)
            fail_with(DPRO_EUSAGE,
                      "%s: the probes were measured with %s %.100s, the job ran with %.100s: what "
                      "they say does not hold for it; record the job with 'dpro profile --probe'",
                      path, facts[i].what, probed, recorded);
    }
}

static void read_file(const char *path, const struct dpro_trace *trace, struct dpro_probes **probes)
{
    struct dpro_probes *p = mem_array(1, sizeof *p);
    struct json_reader r = {.strings = &p->strings};
    struct dpro_error why;
    int rc = json_read_file(&r, path, document, p, "not a file of probes", &why);
    if (rc < 0) /* named input that can't be read */
        fail_with(rc == DPRO_EIO ? DPRO_EFORMAT : rc, "%s", why.text);
    if (check_schema(p, &why) < 0)
        fail_with(DPRO_EFORMAT, "%s: %s", path, why.text);
    if (p->probes.n == 0)
        fail_with(DPRO_EFORMAT, "%s: no module was probed; 'dpro profile --probe' probes them",
                  path);
    p->of_another = true;
    if (trace)
        probes_compare(p, trace, path);
    *probes = p;
}

int dpro_probes_read(const char *path, const struct dpro_trace *trace, struct dpro_probes **probes,
                     struct dpro_error *err)
{
    return OUTCOME(err, read_file(path, trace, probes));
}
