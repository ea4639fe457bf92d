/* ingest/tensorflow/xla.c: each device that XLA ran programs on becomes a rank.
 *
 * JAX drives all devices of a process from one Python thread, so a file has the ops of several
 * devices. A device runs the ops of a program in the order that the compiler chose: they lie on one
 * track, as kernels on a stream do. A loop encloses the ops of its body and is left out, its body
 * is there. An iteration begins where the device begins a step that the file lists (a TPU's), or
 * else a run of the program that runs least often and still takes a part of the time: the calls
 * from Python are made ahead of the device. */
#include "ingest/tensorflow/xla.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/map.h"
#include "base/sort.h"
#include "base/time.h"
#include "ingest/part.h"

enum { MARK_SHARE = 20, LANES_MAX = 64 };

static const struct trace_detail no_detail = {.peer = -1, .comm_sequence = -1, .wait_stream = -1};

/* ---- the text of an instruction ---- */

/* Past a type: "f32[2,3]{1,0}" or "(f32[2], s32[])", and the spaces behind it. */
static const char *past_type(const char *at, const char *end)
{
    int depth = 0;
    for (; at < end && (depth > 0 || *at != ' '); at++)
        depth += *at == '(' || *at == '{' || *at == '['   ? 1
                 : *at == ')' || *at == '}' || *at == ']' ? -1
                                                          : 0;
    while (at < end && *at == ' ')
        at++;
    return at;
}

struct xla_text xla_read_text(const char *text, size_t len)
{
    const char *end = text + len, *equals = memmem(text, len, " = ", 3);
    struct xla_text out = {.name = text, .name_len = len};
    if (len > 0 && *text == '%') {
        out.name++;
        out.name_len--;
    }
    if (!equals || equals < out.name)
        return out;
    out.name_len = (size_t)(equals - out.name);
    out.opcode = past_type(equals + 3, end);
    while (out.opcode + out.opcode_len < end && out.opcode[out.opcode_len] != '(' &&
           out.opcode[out.opcode_len] != ' ')
        out.opcode_len++;
    return out;
}

/* What the element type takes; 0: none known. */
static uint64_t type_bytes(const char *at, size_t n)
{
    static const struct {
        const char *name;
        uint64_t bytes;
    } types[] = {{"pred", 1}, {"s8", 1},   {"u8", 1},  {"s16", 2}, {"u16", 2},
                 {"f16", 2},  {"bf16", 2}, {"s32", 4}, {"u32", 4}, {"f32", 4},
                 {"s64", 8},  {"u64", 8},  {"f64", 8}, {"c64", 8}, {"c128", 16}};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (strlen(types[i].name) == n && memcmp(types[i].name, at, n) == 0)
            return types[i].bytes;
    return n > 2 && at[0] == 'f' && at[1] == '8' ? 1 : 0;
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* Bytes of all that an instruction makes: the sum over "type[sizes]" before its opcode; 0: not
 * known. */
static uint64_t result_bytes(const char *text, size_t len)
{
    const char *at = memmem(text, len, " = ", 3), *end = at ? past_type(at + 3, text + len) : NULL;
    uint64_t total = 0;
    for (at = at ? at + 3 : end; at < end; at++) {
        const char *word = at;
        while (at < end && (is_digit(*at) || (*at >= 'a' && *at <= 'z')))
            at++;
        uint64_t bytes = at < end && *at == '[' ? type_bytes(word, (size_t)(at - word)) : 0;
        while (bytes && at < end && *at != ']') {
            uint64_t size = 0;
            for (at++; at < end && is_digit(*at); at++)
                if (__builtin_mul_overflow(size, UINT64_C(10), &size) ||
                    __builtin_add_overflow(size, (uint64_t)(*at - '0'), &size))
                    return 0;
            if (at < end && is_digit(at[-1]) && __builtin_mul_overflow(bytes, size, &bytes))
                return 0;
            while (at < end && *at != ']' && *at != ',')
                at++;
        }
        if (__builtin_add_overflow(total, bytes, &total))
            return 0;
    }
    return total;
}

/* The group that holds a device, "0,1" of "replica_groups={{0,1},{2,3}}"; 0: none does. */
static size_t find_group(const char *text, size_t len, uint64_t device, const char **group)
{
    static const char key[] = "replica_groups={{";
    const char *end = text + len, *at = memmem(text, len, key, sizeof key - 1);
    for (at = at ? at + sizeof key - 1 : end; at < end;) {
        const char *close = memchr(at, '}', (size_t)(end - at));
        bool mine = false;
        for (const char *n = at; close && n < close; n++) {
            uint64_t member = 0;
            for (; n < close && is_digit(*n) && member < UINT32_MAX; n++)
                member = member * 10 + (uint64_t)(*n - '0');
            mine |= member == device;
        }
        *group = at;
        if (mine || !close || close + 2 >= end || close[1] != ',')
            return mine ? (size_t)(close - at) : 0;
        at = close + 3; /* "},{" */
    }
    return 0;
}

/* ---- programs and their runs ---- */

/* A run of a program on a device, or a step. */
struct run {
    uint64_t device, program, id;
    int64_t start_ns, end_ns;
};

struct program {
    uint64_t id;
    int64_t total_ns;
    uint32_t n_runs, most_runs; /* in all, and on one device */
};

struct splitter {
    struct trace_part *from;
    struct xla_op *ops; /* by device, start, longest first */
    size_t n_ops;
    ARRAY(struct run) runs; /* by device, start */
    ARRAY(struct program) programs;
    uint64_t marks;     /* the program whose runs begin an iteration; 0: none */
    struct map numbers; /* of the runs that mark, by their ids */
    uint32_t n_named;
};

ORDER(compare_ops, struct xla_op, ASCENDING(device) ?: ASCENDING(start_ns) ?: DESCENDING(end_ns) ?: ASCENDING(name));

ORDER(compare_runs, struct run, ASCENDING(device) ?: ASCENDING(start_ns) ?: ASCENDING(program));

/* The runs that the file lists, else what ops of one run say of when it began and ended. */
static int find_runs(struct splitter *s)
{
    struct map by_run = {0};
    bool listed = false;
    int status = 0;
    for (size_t i = 0; i < s->n_ops; i++)
        listed |= s->ops[i].whole;
    for (size_t i = 0; i < s->n_ops && status == 0; i++) {
        const struct xla_op *op = &s->ops[i];
        struct run run = {op->device, op->program, op->run, op->start_ns, op->end_ns};
        uint64_t key = map_mix(map_mix(map_mix(op->device + 1) + op->program) + op->run) | 1, at;
        if (op->whole != listed || op->program == 0)
            continue;
        if (!listed && map_get(&by_run, key, &at)) {
            struct run *known = &s->runs.at[at];
            known->end_ns = op->end_ns > known->end_ns ? op->end_ns : known->end_ns;
            continue;
        }
        status = array_push(&s->runs, run);
        if (status == 0 && !listed)
            status = map_set(&by_run, key, s->runs.n - 1);
    }
    map_fini(&by_run);
    if (status == 0 && s->runs.n > 1)
        qsort(s->runs.at, s->runs.n, sizeof *s->runs.at, compare_runs);
    return status;
}

static int count_programs(struct splitter *s)
{
    struct map places = {0}, on_device = {0};
    int status = 0;
    for (size_t i = 0; i < s->runs.n && status == 0; i++) {
        const struct run *run = &s->runs.at[i];
        uint64_t at, n = 0, key = map_mix(map_mix(run->device + 1) + run->program) | 1;
        if (!map_get(&places, map_key(run->program), &at)) {
            struct program fresh = {.id = run->program};
            at = s->programs.n;
            status = array_push(&s->programs, fresh) < 0 ||
                             map_set(&places, map_key(run->program), at) < 0
                         ? -1
                         : 0;
        }
        if (status < 0)
            break;
        struct program *program = &s->programs.at[at];
        map_get(&on_device, key, &n);
        status = map_set(&on_device, key, ++n);
        program->most_runs = n > program->most_runs ? (uint32_t)n : program->most_runs;
        program->n_runs++;
        program->total_ns = time_add(program->total_ns, run->end_ns - run->start_ns);
    }
    map_fini(&places);
    map_fini(&on_device);
    return status;
}

/* Which runs begin an iteration: steps; else those of the program that runs least often, of those
 * that run again and take a part of the time. */
static void choose_marks(struct splitter *s)
{
    const struct program *best = NULL;
    int64_t all_ns = 0;
    for (size_t i = 0; i < s->programs.n; i++)
        all_ns = time_add(all_ns, s->programs.at[i].total_ns);
    for (size_t i = 0; i < s->programs.n; i++) {
        const struct program *p = &s->programs.at[i];
        if (p->most_runs < 2 || p->total_ns < all_ns / MARK_SHARE)
            continue;
        if (p->id == XLA_STEPS) {
            best = p;
            break;
        }
        if (!best || p->most_runs < best->most_runs ||
            (p->most_runs == best->most_runs && p->total_ns > best->total_ns))
            best = p;
    }
    s->marks = best ? best->id : 0;
}

ORDER(compare_starts, struct run, ASCENDING(start_ns));

/* Iterations have the same number on all devices: a run has the same id. */
static int number_marks(struct splitter *s)
{
    struct run *sorted = malloc((s->runs.n + 1) * sizeof *sorted);
    size_t n = 0;
    int status = sorted ? 0 : -1;
    for (size_t i = 0; i < s->runs.n && sorted; i++)
        if (s->runs.at[i].program == s->marks)
            sorted[n++] = s->runs.at[i];
    if (n > 1)
        qsort(sorted, n, sizeof *sorted, compare_starts);
    for (size_t i = 0, k = 0; i < n && status == 0; i++)
        if (sorted[i].id && !map_get(&s->numbers, map_key(sorted[i].id), NULL))
            status = map_set(&s->numbers, map_key(sorted[i].id), k++);
    free(sorted);
    return status;
}

/* ---- a device's part ---- */

struct device {
    struct trace_part *part;
    uint32_t n_lanes;
    int64_t until_ns[LANES_MAX]; /* that the ops of a lane take */
    bool no_memory;
};

static uint32_t intern(struct device *d, const char *text, size_t len)
{
    return part_intern(d->part, text, len, &d->no_memory);
}

static uint32_t add_track(struct device *d, bool gpu, uint64_t pid, int64_t id, const char *name)
{
    struct part_track track = {.track = {.gpu = gpu, .pid = pid, .id = id}};
    track.track.name = intern(d, name, strlen(name));
    d->no_memory |= array_push(&d->part->tracks, track) < 0;
    return (uint32_t)d->part->tracks.n - 1;
}

static void place(struct device *d, struct trace_span span)
{
    if (!d->no_memory)
        d->no_memory = !part_place_span(d->part, &span);
}

/* The track of an op: the first whose ops are over. */
static uint32_t find_lane(struct device *d, const struct xla_op *op)
{
    uint32_t lane = 0;
    while (lane < d->n_lanes && d->until_ns[lane] > op->start_ns && lane + 1 < LANES_MAX)
        lane++;
    if (lane == d->n_lanes && !d->no_memory) {
        add_track(d, true, op->device, d->n_lanes, "XLA ops");
        d->n_lanes++;
    }
    d->until_ns[lane] = op->end_ns;
    return lane + 1; /* behind that of the steps */
}

/* What the instruction says of a collective's size and of who takes part. */
static uint32_t describe(const struct splitter *s, struct device *d, const struct xla_op *op)
{
    const char *text = strtab_get(&s->from->names, op->hlo), *group = NULL;
    size_t len = strtab_len(&s->from->names, op->hlo);
    struct trace_detail detail = no_detail;
    detail.numel = result_bytes(text, len);
    detail.dtype = detail.numel ? intern(d, "int8", 4) : 0; /* counted in bytes */
    size_t n = find_group(text, len, op->device, &group);
    if (n > 0) {
        detail.group_ranks = intern(d, group, n);
        detail.group_size = 1;
        for (size_t i = 0; i < n; i++)
            detail.group_size += group[i] == ',';
    }
    if (d->no_memory || (!detail.numel && !detail.group_size))
        return NO_ID;
    d->no_memory = array_push(&d->part->details, detail) < 0;
    return (uint32_t)d->part->details.n - 1;
}

static bool communicates(const struct xla_text *text)
{
    static const char *const words[] = {"all-", "reduce-scatter", "collective"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (memmem(text->opcode, text->opcode_len, words[i], strlen(words[i])))
            return true;
    return false;
}

static void add_op(const struct splitter *s, struct device *d, const struct xla_op *op)
{
    struct xla_text text =
        xla_read_text(strtab_get(&s->from->names, op->hlo), strtab_len(&s->from->names, op->hlo));
    const char *own = strtab_get(&s->from->names, op->name);
    size_t own_len = strtab_len(&s->from->names, op->name);
    char name[256];
    struct trace_span span = {.start_ns = op->start_ns,
                              .dur_ns = op->end_ns - op->start_ns,
                              .track = find_lane(d, op),
                              .sequence = -1,
                              .detail = NO_ID,
                              .kind = SPAN_KERNEL,
                              .parent = NO_ID,
                              .node = NO_ID};
    /* an instruction may be called anything: what it does goes first */
    bool tells = text.opcode_len == 0 || memmem(own, own_len, text.opcode, text.opcode_len) ||
                 memmem(text.opcode, text.opcode_len, "fusion", 6);
    int n = tells ? 0
                  : snprintf(name, sizeof name, "%.*s(%.*s)", (int)text.opcode_len, text.opcode,
                             (int)(own_len < 200 ? own_len : 200), own);
    span.name = n > 0 ? intern(d, name, (size_t)n < sizeof name ? (size_t)n : sizeof name - 1)
                      : intern(d, own, own_len);
    if (text.opcode_len && communicates(&text))
        span.detail = describe(s, d, op);
    place(d, span);
}

/* The first run on the device; they are in the order of their devices. */
static size_t first_run(const struct splitter *s, uint64_t device)
{
    return LOWER_BOUND(i, (size_t)0, s->runs.n, s->runs.at[i].device < device);
}

/* The next run on the device that begins an iteration; NULL: there is none. */
static const struct run *next_mark(const struct splitter *s, size_t from, uint64_t device)
{
    for (size_t i = from; i < s->runs.n && s->runs.at[i].device <= device; i++)
        if (s->runs.at[i].device == device && s->runs.at[i].program == s->marks)
            return &s->runs.at[i];
    return NULL;
}

/* An iteration reaches to where the next one begins, so the last run is none. */
static void add_marks(const struct splitter *s, struct device *d, uint64_t device)
{
    const struct run *run = s->marks ? next_mark(s, first_run(s, device), device) : NULL, *next;
    for (uint64_t number = 0; run; run = next) {
        next = next_mark(s, (size_t)(run - s->runs.at) + 1, device);
        map_get(&s->numbers, map_key(run->id), &number);
        if (next)
            place(d, (struct trace_span){.start_ns = run->start_ns,
                                         .dur_ns = next->start_ns - run->start_ns,
                                         .name = intern(d, "step", 4),
                                         .track = 0,
                                         .sequence = (int32_t)number++,
                                         .detail = NO_ID,
                                         .kind = SPAN_STEP,
                                         .parent = NO_ID,
                                         .node = NO_ID});
    }
}

/* Whether the next op of the same thread lies inside. */
static bool encloses(const struct splitter *s, size_t i, size_t end)
{
    const struct xla_op *op = &s->ops[i];
    for (size_t k = i + 1; k < end && s->ops[k].start_ns < op->end_ns; k++)
        if (!s->ops[k].whole && s->ops[k].line == op->line)
            return s->ops[k].end_ns <= op->end_ns;
    return false;
}

static struct trace_part *make_device(const struct splitter *s, size_t first, size_t end)
{
    struct trace_part *part = calloc(1, sizeof *part);
    struct device *d = calloc(1, sizeof *d);
    uint64_t number = s->ops[first].device;
    const char *host = strtab_get(&s->from->names, s->from->host);
    bool fine = part && d;
    if (fine) {
        d->part = part;
        intern(d, "", 0);
        part->host = intern(d, host, strlen(host));
        part->base_ns = s->from->base_ns;
        part->pid = s->from->pid;
        part->framework = s->from->framework;
        part->is_device = true;
        part->device = number;
        part->world_size = (int)s->n_named;
        add_track(d, false, 0, 0, "steps");
        add_marks(s, d, number);
        for (size_t i = first; i < end && !d->no_memory; i++)
            if (!s->ops[i].whole && !encloses(s, i, end))
                add_op(s, d, &s->ops[i]);
        fine = !d->no_memory;
    }
    if (!fine && part)
        part_fini(part);
    if (!fine) {
        free(part);
        part = NULL;
    }
    free(d);
    return part;
}

static void free_parts(struct trace_part *list)
{
    if (list)
        part_fini(list);
    free(list);
}

/* *part becomes the first of the list, which tells of the file what *part did. */
static void replace(struct trace_part *part, struct trace_part *list)
{
    list->n_events = part->n_events;
    list->losses = part->losses;
    list->broken = part->broken;
    list->broken_offset = part->broken_offset;
    list->cut = part->cut;
    part_fini(part);
    *part = *list;
    free(list);
}

static int make_parts(struct splitter *s)
{
    struct trace_part *list = NULL, **next = &list;
    bool fine = true;
    for (size_t i = 0, end; i < s->n_ops && fine; i = end) {
        for (end = i; end < s->n_ops && s->ops[end].device == s->ops[i].device;)
            end++;
        *next = make_device(s, i, end);
        fine = *next != NULL;
        next = fine ? &(*next)->next : next;
    }
    if (fine && list)
        replace(s->from, list);
    else
        free_parts(list);
    return fine ? 0 : -1;
}

int xla_split(const struct xla *xla, struct trace_part *part)
{
    struct splitter s = {.from = part, .ops = xla->ops.at, .n_ops = xla->ops.n};
    s.n_named = xla->n_devices_named;
    if (s.n_ops > 1)
        qsort(s.ops, s.n_ops, sizeof *s.ops, compare_ops);
    int status = find_runs(&s);
    if (status == 0)
        status = count_programs(&s);
    if (status == 0) {
        choose_marks(&s);
        status = number_marks(&s);
    }
    if (status == 0)
        status = make_parts(&s);
    array_fini(&s.runs);
    array_fini(&s.programs);
    map_fini(&s.numbers);
    return status;
}

/* ---- GPUs ---- */

/* The devices' numbers, each once. -1: no memory. */
static int list_gpus(const struct trace_part *part, struct map *gpus)
{
    for (size_t t = 0; t < part->tracks.n; t++) {
        const struct part_track *track = &part->tracks.at[t];
        uint64_t key = map_key(track->track.pid);
        if (track->track.gpu && track->n_spans > 0 && !map_get(gpus, key, NULL) &&
            map_set(gpus, key, gpus->n) < 0)
            return -1;
    }
    return 0;
}

struct gpu_splitter {
    const struct trace_part *from;
    struct map gpus;     /* number of a device -> place */
    struct map launched; /* correlation -> place of the device that did the work */
    struct device *devices;
    uint32_t *tracks; /* [place * from->tracks.n + track] in the device's part; NO_ID: none yet */
};

static void copy_span(struct gpu_splitter *s, size_t place_of, const struct trace_span *span)
{
    struct device *d = &s->devices[place_of];
    const struct trace_track *track = &s->from->tracks.at[span->track].track;
    uint32_t *to = &s->tracks[place_of * s->from->tracks.n + span->track];
    struct trace_span copy = *span;
    if (*to == NO_ID) {
        *to = add_track(d, track->gpu, track->pid, track->id,
                        strtab_get(&s->from->names, track->name));
        if (!d->no_memory)
            d->part->tracks.at[*to].track.pool = track->pool;
    }
    copy.track = *to;
    copy.name =
        intern(d, strtab_get(&s->from->names, span->name), strtab_len(&s->from->names, span->name));
    copy.detail = NO_ID;
    if (span->detail != NO_ID) {
        struct trace_detail detail = no_detail;
        detail.bytes = s->from->details.at[span->detail].bytes;
        d->no_memory |= array_push(&d->part->details, detail) < 0;
        copy.detail = (uint32_t)d->part->details.n - 1;
    }
    place(d, copy);
}

/* A call belongs to the device that did its work; what belongs to none is every device's. */
static void share_out(struct gpu_splitter *s, const struct trace_span *span)
{
    const struct trace_track *track = &s->from->tracks.at[span->track].track;
    uint64_t own = 0;
    if (track->gpu ? map_get(&s->gpus, map_key(track->pid), &own)
                   : span->correlation && map_get(&s->launched, map_key(span->correlation), &own)) {
        copy_span(s, own, span);
        return;
    }
    for (size_t p = 0; p < s->gpus.n; p++)
        copy_span(s, p, span);
}

static int open_gpus(struct gpu_splitter *s)
{
    size_t n = s->gpus.n, n_tracks = s->from->tracks.n;
    s->devices = calloc(n, sizeof *s->devices);
    s->tracks = malloc((n * n_tracks + 1) * sizeof *s->tracks);
    if (!s->devices || !s->tracks)
        return -1;
    memset(s->tracks, 0xFF, n * n_tracks * sizeof *s->tracks);
    for (size_t t = 0; t < n_tracks; t++) {
        const struct trace_track *track = &s->from->tracks.at[t].track;
        uint64_t p;
        if (!track->gpu || !map_get(&s->gpus, map_key(track->pid), &p) || s->devices[p].part)
            continue;
        struct trace_part *part = s->devices[p].part = calloc(1, sizeof *part);
        if (!part)
            return -1;
        intern(&s->devices[p], "", 0);
        part->base_ns = s->from->base_ns;
        part->framework = s->from->framework;
        part->has_correlation = s->from->has_correlation;
        part->is_device = true;
        part->device = track->pid;
    }
    for (const struct span_block *block = s->from->first_block; block; block = block->next)
        for (uint32_t i = 0; i < block->n; i++) {
            const struct trace_span *span = &block->at[i];
            const struct trace_track *track = &s->from->tracks.at[span->track].track;
            uint64_t p;
            if (track->gpu && span->correlation && map_get(&s->gpus, map_key(track->pid), &p) &&
                map_set(&s->launched, map_key(span->correlation), p) < 0)
                return -1;
        }
    return 0;
}

int xla_split_gpus(struct trace_part *part)
{
    struct gpu_splitter s = {.from = part};
    struct trace_part *list = NULL, **next = &list;
    int status = list_gpus(part, &s.gpus);
    if (status == 0 && s.gpus.n > 1) {
        status = open_gpus(&s);
        for (const struct span_block *block = part->first_block; block && status == 0;
             block = block->next)
            for (uint32_t i = 0; i < block->n; i++)
                share_out(&s, &block->at[i]);
    }
    for (size_t p = 0; s.devices && p < s.gpus.n; p++) {
        status = s.devices[p].no_memory ? -1 : status;
        *next = s.devices[p].part;
        next = *next ? &(*next)->next : next;
    }
    if (status == 0 && list)
        replace(part, list);
    else
        free_parts(list);
    free(s.devices);
    free(s.tracks);
    map_fini(&s.gpus);
    map_fini(&s.launched);
    return status;
}
