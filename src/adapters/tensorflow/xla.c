/* Each device that XLA ran programs on becomes a rank.
 *
 * JAX drives all devices of a process from one Python thread, so a file has the ops of several
 * devices. A device runs the ops of a program in the order that the compiler chose: they lie on one
 * track, as kernels on a stream do. A loop encloses the ops of its body and is left out, its body
 * is there. An iteration begins where the device begins a step that the file lists (a TPU's), or
 * else a run of the program that runs least often and still takes a part of the time: the calls
 * from Python are made ahead of the device. */
#include "adapters/tensorflow/xla.h"

#include "adapters/tensorflow/tf_parts.h"

enum { MARK_SHARE = 20 };

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
        char *next;
        for (const char *n = at; close && n < close; n = next + 1)
            mine |= strtoull(n, &next, 10) == device && next > n;
        *group = at;
        if (mine || !close || close + 2 >= end || close[1] != ',')
            return mine ? (size_t)(close - at) : 0;
        at = close + 3; /* "},{" */
    }
    return 0;
}

static bool opcode_communicates(const struct xla_text *text)
{
    return text_n_holds(text->opcode, text->opcode_len, "all-", "reduce-scatter", "collective");
}

/* ---- programs and their runs ---- */

struct program_run {
    uint64_t device, program, id;
    int64_t start_ns, end_ns;
};

struct program {
    uint64_t id;
    int64_t total_ns;
    uint32_t most_runs; /* on one device */
};

struct device_splitter {
    struct trace_part *from;
    struct xla_op *ops; /* by device, start, longest first */
    size_t n_ops;
    ARRAY(struct program_run) runs; /* by device, start */
    ARRAY(struct program) programs;
    uint64_t marks;     /* the program whose runs begin an iteration; 0: none */
    struct map numbers; /* of the runs that mark, by their ids */
    uint32_t n_named;
};

ORDER(compare_ops, struct xla_op,
      ASCENDING(device) ?: ASCENDING(start_ns) ?: DESCENDING(end_ns) ?: ASCENDING(name));

ORDER(compare_runs, struct program_run,
      ASCENDING(device) ?: ASCENDING(start_ns) ?: ASCENDING(program));

/* The runs that the file lists, else what ops of one run say of when it began and ended. */
static void find_runs(struct device_splitter *s)
{
    SCRATCH struct map by_run = {0};
    bool listed = false;
    for (size_t i = 0; i < s->n_ops; i++)
        listed |= s->ops[i].whole;
    EACH_OF (const struct xla_op, op, s->ops, s->n_ops) {
        struct program_run run = {op->device, op->program, op->run, op->start_ns, op->end_ns};
        uint64_t key = map_mix(map_mix(map_mix(op->device + 1) + op->program) + op->run) | 1, at;
        if (op->whole != listed || op->program == 0)
            continue;
        if (!listed && map_get(&by_run, key, &at)) {
            struct program_run *known = &s->runs.at[at];
            known->end_ns = MAX(known->end_ns, op->end_ns);
            continue;
        }
        if (!listed)
            map_set(&by_run, key, s->runs.n);
        array_push(&s->runs, run);
    }
    array_sort(&s->runs, compare_runs);
}

static void count_programs(struct device_splitter *s)
{
    SCRATCH struct map numbers = {0}, on_device = {0}; /* runs of a program on a device */
    EACH (const struct program_run, run, s->runs) {
        uint64_t key = map_mix(map_mix(run->device + 1) + run->program) | 1;
        uint64_t n = map_add(&on_device, key, 1);
        size_t number = (size_t)map_number(&numbers, map_key(run->program));
        if (number == s->programs.n)
            array_add(&s->programs, .id = run->program);
        struct program *program = &s->programs.at[number];
        program->most_runs = MAX(program->most_runs, (uint32_t)n);
        program->total_ns = time_add(program->total_ns, run->end_ns - run->start_ns);
    }
}

/* Iterations begin with steps, or else with runs of the program that runs least often, among those
 * that run more than once and take a share of the time. */
static void choose_marks(struct device_splitter *s)
{
    const struct program *best = NULL;
    int64_t all_ns = 0;
    for (size_t i = 0; i < s->programs.n; i++)
        all_ns = time_add(all_ns, s->programs.at[i].total_ns);
    EACH (const struct program, p, s->programs) {
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

/* ---- a device's part ---- */

struct device {
    struct trace_part *part;
    struct tf_idle_tracks idle;
};

static uint32_t add_track(struct device *d, bool gpu, uint64_t pid, int64_t id, const char *name)
{
    struct trace_track track = {.gpu = gpu, .pid = pid, .id = id};
    track.name = part_intern(d->part, name, strlen(name));
    return tf_track(d->part, track);
}

/* The first track whose ops are over. */
static uint32_t find_track(struct device *d, const struct xla_op *op)
{
    uint32_t *track = tf_idle_track(&d->idle, op->start_ns, op->end_ns);
    if (*track == NO_ID)
        *track = add_track(d, true, op->device, track - d->idle.tracks, "XLA ops");
    return *track;
}

/* What the instruction says of a collective's size and of who takes part. */
static uint32_t describe_collective(const struct device_splitter *s, struct device *d,
                                    const struct xla_op *op)
{
    const char *text = strtab_get(&s->from->names, op->hlo), *group = NULL;
    size_t len = strtab_len(&s->from->names, op->hlo);
    struct trace_detail detail = {.numel = result_bytes(text, len), DETAIL_UNKNOWN};
    detail.dtype = detail.numel ? part_intern(d->part, "int8", 4) : 0; /* counted in bytes */
    size_t n = find_group(text, len, op->device, &group);
    if (n > 0) {
        detail.group_ranks = part_intern(d->part, group, n);
        detail.group_size = 1;
        for (size_t i = 0; i < n; i++)
            detail.group_size += group[i] == ',';
    }
    return detail.numel || detail.group_size ? tf_detail(d->part, &detail) : NO_ID;
}

static void add_op(const struct device_splitter *s, struct device *d, const struct xla_op *op)
{
    struct xla_text text =
        xla_read_text(strtab_get(&s->from->names, op->hlo), strtab_len(&s->from->names, op->hlo));
    const char *own = strtab_get(&s->from->names, op->name);
    size_t own_len = strtab_len(&s->from->names, op->name);
    struct trace_span span = span_at(SPAN_KERNEL, 0, find_track(d, op), op->start_ns, op->end_ns);
    /* the opcode goes first where the name does not hold it */
    bool tells = text.opcode_len == 0 || memmem(own, own_len, text.opcode, text.opcode_len) ||
                 memmem(text.opcode, text.opcode_len, "fusion", 6);
    span.name = tells ? part_intern(d->part, own, own_len)
                      : strtab_format(&d->part->names, "%.*s(%.*s)", (int)MIN(text.opcode_len, 256),
                                      text.opcode, (int)MIN(own_len, 200), own);
    if (text.opcode_len && opcode_communicates(&text))
        span.detail = describe_collective(s, d, op);
    part_place_span(d->part, &span);
}

/* An iteration reaches to where the next one begins, so the last run is none. Iterations have the
 * same number on all devices: a run has the same id. */
static void add_marks(struct device_splitter *s, struct device *d, uint64_t device)
{
    const struct program_run *last = NULL;
    int64_t number = 0;
    uint32_t name = part_intern(d->part, "step", 4);
    EACH (const struct program_run, run, s->runs) {
        if (run->device != device || !s->marks || run->program != s->marks)
            continue;
        if (last) {
            number = last->id ? map_number(&s->numbers, map_key(last->id)) : number;
            struct trace_span span = span_at(SPAN_STEP, name, 0, last->start_ns, run->start_ns);
            span.sequence = (int32_t)number++;
            part_place_span(d->part, &span);
        }
        last = run;
    }
}

/* Whether the next op of the same thread lies inside. */
static bool encloses_next(const struct device_splitter *s, size_t i, size_t end)
{
    const struct xla_op *op = &s->ops[i];
    for (size_t k = i + 1; k < end && s->ops[k].start_ns < op->end_ns; k++)
        if (!s->ops[k].whole && s->ops[k].line == op->line)
            return s->ops[k].end_ns <= op->end_ns;
    return false;
}

static struct trace_part *make_device(struct device_splitter *s, size_t first, size_t end)
{
    struct trace_part *part = tf_device_part(s->from, s->ops[first].device);
    struct device d = {.part = part};
    part->process.host = strtab_copy(&part->names, &s->from->names, s->from->process.host);
    part->process.pid = s->from->process.pid;
    part->process.world_size = (int)s->n_named;
    add_track(&d, false, 0, 0, "steps");
    add_marks(s, &d, part->process.device);
    for (size_t i = first; i < end; i++)
        if (!s->ops[i].whole && !encloses_next(s, i, end))
            add_op(s, &d, &s->ops[i]);
    return part;
}

void xla_split(const struct xla *xla, struct trace_part *part)
{
    struct device_splitter s = {.from = part, .ops = xla->ops.at, .n_ops = xla->ops.n};
    struct trace_part *list = NULL, **next = &list;
    s.n_named = xla->n_devices_named;
    array_sort(&xla->ops, compare_ops);
    find_runs(&s);
    count_programs(&s);
    choose_marks(&s);
    for (size_t i = 0, end; i < s.n_ops; i = end) {
        end = RUN_END(k, i, s.n_ops, s.ops[k].device == s.ops[i].device);
        *next = make_device(&s, i, end);
        next = &(*next)->next;
    }
    tf_replace_part(part, list);
    FREE_ALL(&s.runs, &s.programs, &s.numbers);
}
