/* What becomes of a profile's events: spans on tracks, flows, blocks of memory, calls of modules.
 * An interval of work is kept as a span of 64 bytes. */
#include "ingest/pytorch/kineto_events.h"

#include "ingest/pytorch/kineto_words.h"

enum { MAX_OPEN = 4096 };

const struct trace_detail kineto_no_detail = {DETAIL_UNKNOWN};

uint8_t kineto_learn_name(struct kineto_events *to, uint32_t name)
{
    if (name >= to->name_flags.n) {
        size_t extra = to->part->names.n - to->name_flags.n;
        array_reserve(&to->name_flags, extra);
        memset(to->name_flags.at + to->name_flags.n, 0, extra);
        to->name_flags.n += extra;
    }
    const char *text = strtab_get(&to->part->names, name);
    size_t len = strtab_len(&to->part->names, name);
    struct kineto_asked asked;
    unsigned flags = kineto_module(text, &len)            ? NAME_MODULE
                     : kineto_asked(text, len, &asked)    ? NAME_ASKED
                     : json_is(text, len, "[memory]")     ? NAME_MEMORY
                     : kineto_is_communication(text, len) ? NAME_COMMUNICATION
                     : op_is_counted(text, len)           ? NAME_COUNTED
                                                          : 0;
    flags |= kineto_posted(text, len) ? NAME_POSTED : 0;
    flags |= text_n_is(text, len, "c10d::send") || text_n_is(text, len, "c10d::recv_")
                 ? NAME_TO_PEER
                 : 0;
    return to->name_flags.at[name] = (uint8_t)(NAME_SEEN | flags);
}

uint32_t kineto_find_track(struct kineto_events *to, bool gpu, uint64_t pid, int64_t id)
{
    struct trace_part *part = to->part;
    uint32_t last = to->last_track[gpu];
    if (last < part->tracks.n && part->tracks.at[last].track.pid == pid &&
        part->tracks.at[last].track.id == id && part->tracks.at[last].track.gpu == gpu)
        return last;
    uint64_t key = map_mix(map_mix(pid * 2 + gpu) ^ (uint64_t)id) | 1;
    uint32_t index = (uint32_t)map_number(&to->tracks, key);
    if (index == part->tracks.n)
        array_add(&part->tracks, .track = {.gpu = gpu, .pid = pid, .id = id});
    return to->last_track[gpu] = index;
}

uint32_t kineto_find_row(struct kineto_events *to, uint64_t pid, int64_t id, uint32_t category)
{
    struct trace_part *part = to->part;
    uint64_t key = map_mix(map_mix(pid ^ (uint64_t)(category + 1) << 40) ^ (uint64_t)id) & ~1ULL;
    uint32_t index = (uint32_t)map_number(&to->tracks, key ? key : 2);
    if (index == part->tracks.n) {
        array_add(&to->more->rows, .track = index, .category = category);
        array_add(&part->tracks, .track = {.pid = pid, .id = id},
                  .row = (uint32_t)to->more->rows.n);
    }
    return index;
}

/* The recorder's marks are annotations, or ops where they were made in C++. */
static bool is_module_mark(struct kineto_events *to, const struct kineto_event *ev)
{
    return (ev->kind == SPAN_CPU_OP || ev->kind == SPAN_ANNOTATION ||
            ev->kind == SPAN_GPU_ANNOTATION) &&
           kineto_name_flags(to, ev->name) & NAME_MODULE;
}

/* A wait is work of its thread; a call is looked through, as ops lie in it. */
static void read_mark(struct kineto_events *to, struct kineto_event *ev)
{
    struct kineto_asked asked;
    struct strtab *names = &to->part->names;
    const char *text = strtab_get(names, ev->name);
    size_t len = strtab_len(names, ev->name);
    kineto_asked(text, len, &asked);
    to->detail = kineto_no_detail;
    to->detail.call = asked.number;
    to->detail.peer = asked.peer;
    to->detail_used = ev->has_detail = true;
    ev->kind = asked.waits ? SPAN_CPU_OP : SPAN_ANNOTATION;
    if (!asked.waits)
        to->detail.process_group =
            strtab_add(names, asked.group, len - (size_t)(asked.group - text));
    uint32_t *name = asked.waits ? &to->wait_name : &to->call_name;
    if (!*name)
        *name = asked.waits ? strtab_add(names, "dpro.wait", 9) : strtab_add(names, "dpro.call", 9);
    ev->name = *name;
}

static void add_span(struct kineto_events *to, struct kineto_event *ev)
{
    struct trace_part *part = to->part;
    bool known = ev->kind < SPAN_OTHER;
    if (ev->kind == SPAN_OTHER)
        return;
    if (!part_times_fit(part, (struct part_time){ev->ts, ev->ts_ns},
                        (struct part_time){ev->dur, ev->dur_ns}))
        return;
    bool gpu = ev->kind >= SPAN_KERNEL && ev->kind <= SPAN_SYNC;
    if (is_module_mark(to, ev)) {
        if (!gpu) /* on a stream it is the shadow of one */
            kineto_add_call(part, kineto_find_track(to, false, ev->pid, ev->tid), ev->name,
                            ev->ts_ns, ev->ts_ns + ev->dur_ns);
        return;
    }
    if (!gpu && known && kineto_name_flags(to, ev->name) & NAME_ASKED)
        read_mark(to, ev);
    bool posted = ev->kind == SPAN_ANNOTATION && kineto_name_flags(to, ev->name) & NAME_POSTED;
    uint32_t track = known ? kineto_find_track(to, gpu, ev->pid, posted ? ~ev->tid : ev->tid)
                           : kineto_find_row(to, ev->pid, ev->tid, ev->category);
    if (!known)
        to->more->rows.at[part->tracks.at[track].row - 1].on_stream |= ev->on_stream;
    part->tracks.at[track].track.posted |= posted;
    struct trace_span *span = part_add_span(part);
    *span = span_at(ev->kind, ev->name, track, ev->ts_ns, ev->ts_ns + ev->dur_ns);
    span->correlation = ev->kind == SPAN_CPU_OP ? 0 : ev->correlation;
    span->external = ev->external;
    span->record_fn = ev->record_fn;
    span->fwd_thread = ev->fwd_thread;
    span->sequence = ev->sequence;
    part_count_span(part, span);
    if ((ev->dims_numel || ev->dims_type) && kineto_name_flags(to, ev->name) & NAME_COMMUNICATION) {
        if (!to->detail.numel)
            to->detail.numel = ev->dims_blank && ev->type_first ? 1 : ev->dims_numel;
        if (!to->detail.dtype)
            to->detail.dtype = ev->dims_type;
        to->detail_used = ev->has_detail = true;
    }
    /* where there are several groups, nothing says whose member it is */
    if (ev->has_values && part->groups.n <= 1 && kineto_name_flags(to, ev->name) & NAME_TO_PEER &&
        to->values.n[2] == 1 && to->values.at[2][0] <= INT32_MAX) {
        to->detail.peer = (int32_t)to->values.at[2][0];
        to->detail_used = ev->has_detail = true;
    }
    if (ev->kind == SPAN_SYNC) {
        if (to->detail.sync == SYNC_NONE)
            to->detail.sync = (int32_t)kineto_sync_kind(strtab_get(&part->names, ev->name),
                                                        strtab_len(&part->names, ev->name));
        to->detail_used = ev->has_detail = true;
    }
    if (ev->has_detail) {
        span->detail = (uint32_t)part->details.n;
        array_push(&part->details, to->detail);
    }
    if (ev->correlation && !to->more->has_correlation) {
        to->more->has_correlation = true;
        array_fini(&to->more->launches);
    }
    if (ev->record_fn)
        part->has_record_fn = true;
    if (!gpu && known && !part->process.pid)
        part->process.pid = ev->pid;
}

static void add_flow(struct kineto_events *to, const struct kineto_event *ev)
{
    /* a category that is not known is taken for a launch: it binds nothing else */
    bool other = ev->kind == KINETO_OTHER_KIND;
    unsigned what = other ? FLOW_LAUNCH : ev->flow;
    if (ev->ts != JSON_VALUE || what == FLOW_NONE)
        return;
    if (what == FLOW_LAUNCH && to->more->has_correlation)
        return;
    /* both ends of a launch name a thread or a stream; which, is seen when spans are known */
    struct kineto_flow flow = {.ts_ns = ev->ts_ns,
                               .id = other ? map_mix(ev->flow_id + ((uint64_t)ev->category << 32))
                                           : ev->flow_id,
                               .track = kineto_find_track(to, false, ev->pid, ev->tid),
                               .start = ev->ph == 's'};
    if (what == FLOW_FWDBWD)
        array_push(&to->more->links, flow);
    else
        array_push(&to->more->launches, flow);
}

static void add_instant(struct kineto_events *to, const struct kineto_event *ev)
{
    if (!(kineto_name_flags(to, ev->name) & NAME_MEMORY))
        return;
    if (ev->ts == JSON_VALUE && trace_time_fits(ev->ts_ns))
        kineto_add_allocation(to->part, kineto_find_track(to, false, ev->pid, ev->tid), ev->ts_ns,
                              ev->has_memory ? &to->memory : &kineto_no_memory);
    else
        to->part->losses.n_allocations++;
}

/* B and E of a thread nest. */
static void open_span(struct kineto_events *to, const struct kineto_event *ev)
{
    if (to->open.n < MAX_OPEN)
        array_add(&to->open, *ev, to->detail);
    else
        to->part->losses.n_unpaired++;
}

static void close_span(struct kineto_events *to, const struct kineto_event *end)
{
    struct kineto_open *open = to->open.at + to->open.n;
    do {
        if (open == to->open.at) {
            to->part->losses.n_unpaired++;
            return;
        }
        open--;
    } while (open->event.pid != end->pid || open->event.tid != end->tid);
    struct kineto_event ev = open->event;
    to->detail = open->detail;
    to->detail_used = true;
    memmove(open, open + 1, (size_t)(to->open.at + to->open.n-- - (open + 1)) * sizeof *open);
    ev.dur = end->ts == JSON_NO_VALUE || ev.ts == JSON_NO_VALUE ? JSON_NO_VALUE : JSON_VALUE;
    if (ev.dur == JSON_VALUE && __builtin_sub_overflow(end->ts_ns, ev.ts_ns, &ev.dur_ns))
        ev.dur = JSON_SATURATED;
    add_span(to, &ev);
}

static void add_label(struct kineto_events *to, const struct kineto_event *ev)
{
    const struct strtab *names = &to->part->names;
    const char *name = strtab_get(names, ev->name);
    if (strcmp(name, "thread_name") == 0)
        array_add(&to->part->labels, ev->pid, ev->tid, ev->label);
    else if (strcmp(name, "process_name") == 0 || strcmp(name, "process_labels") == 0)
        array_add(&to->more->processes, ev->pid, strcmp(name, "process_name") == 0, ev->label);
}

static void take_work(struct kineto_events *to, struct kineto_event *ev)
{
    const struct strtab *names = &to->part->names;
    struct arithmetic work = {0};
    if (!ev->has_values)
        to->values = (struct op_shapes){0};
    op_arithmetic(strtab_get(names, ev->name), strtab_len(names, ev->name), &to->inputs,
                  &to->values, kineto_dtype_bytes(strtab_get(names, ev->dims_type)), &work);
    if (work.flops != 0) {
        to->detail.work = work;
        to->detail_used = ev->has_detail = true;
    }
}

void kineto_take(struct kineto_events *to, struct kineto_event *ev)
{
    to->part->n_events++;
    if (ev->has_inputs && ev->kind == SPAN_CPU_OP)
        take_work(to, ev);
    switch (ev->ph) {
    case 'X':
        add_span(to, ev);
        break;
    case 'B':
        open_span(to, ev);
        break;
    case 'E':
        close_span(to, ev);
        break;
    case 's':
    case 'f':
        add_flow(to, ev);
        break;
    case 'M':
        add_label(to, ev);
        break;
    case 'i':
        add_instant(to, ev);
        break;
    default:
        break;
    }
}

void kineto_events_begin(struct kineto_events *to, struct trace_part *part)
{
    *to = (struct kineto_events){.part = part, .last_track = {NO_ID, NO_ID}, .detail_used = true};
    to->more = part_make_payload(part, &kineto_payload);
    strtab_add(&part->names, "", 0);
}

void kineto_events_end(struct kineto_events *to)
{
    to->part->losses.n_unpaired += to->open.n;
    FREE_ALL(&to->tracks, &to->name_flags, &to->open);
}
