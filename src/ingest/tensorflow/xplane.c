/* ingest/tensorflow/xplane.c: profiles of XLA's profiler (XSpace), which TensorFlow and JAX use:
 * host and GPU planes, and what XLA ran on CPU devices and TPUs.
 *
 * A plane lists the names of its events and statistics behind the lines that use them. So the file
 * is passed over twice: first only for the names, skipping lines, then for the events, of which
 * nine in ten are the runtime's own plumbing and are dropped at once. Memory is what is kept; no
 * plane is ever held. Times stay relative here: what they count from (profile_start_time) stands in
 * a plane of its own. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/map.h"
#include "base/protobuf.h"
#include "ingest/part.h"
#include "ingest/tensorflow/session_profile.h"
#include "ingest/tensorflow/xla.h"

enum { NO_META = UINT32_MAX, LINE_NAME_MAX = 256, N_CACHED = 4096 };

/* Statistics that are wanted, by name. */
enum stat {
    STAT_OTHER,
    STAT_STEP_NUM,
    STAT_GROUP_KEY,
    STAT_INSTANCE_KEY,
    STAT_CORRELATION,
    STAT_TF_OP,
    STAT_MEMCPY,
    STAT_PROFILE_START,
    STAT_RUN,
    STAT_RUN_OF_WAIT,
    STAT_NAME,
    STAT_HLO_OP,
    STAT_DEVICE,
    STAT_PROGRAM,
    STAT_PROGRAM_RUN,
    N_STATS,
};

static const char *const stat_names[N_STATS] = {
    [STAT_OTHER] = "",
    [STAT_STEP_NUM] = "step_num",
    [STAT_GROUP_KEY] = "group_key",
    [STAT_INSTANCE_KEY] = "instance_key",
    [STAT_CORRELATION] = "correlation_id",
    [STAT_TF_OP] = "tf_op",
    [STAT_MEMCPY] = "memcpy_details",
    [STAT_PROFILE_START] = "profile_start_time",
    [STAT_RUN] = "id",
    [STAT_RUN_OF_WAIT] = "step_id",
    [STAT_NAME] = "name",
    [STAT_HLO_OP] = "hlo_op",
    [STAT_DEVICE] = "device_ordinal",
    [STAT_PROGRAM] = "program_id",
    [STAT_PROGRAM_RUN] = "run_id",
};

/* What an event is, by the name that its metadata gives it. */
enum use {
    USE_NOTHING,    /* plumbing */
    USE_OP,         /* node:Type */
    USE_RUN,        /* a call of the executor */
    USE_COLLECTIVE, /* node:CollectiveReduceV2 and kin */
    USE_MARK,       /* a range that the job drew; a step if it has a number */
    USE_MAYBE_CALL, /* plumbing, unless its statistics say that it is a call */
    USE_CALL,       /* into the GPU's driver: named for it, or for the kernel that it launches */
    USE_KERNEL,
    USE_MEMCPY,
    USE_MEMSET,
    USE_XLA,       /* of a device's own plane: what it is, its line tells */
    USE_RUN_BEGIN, /* of a session, by this process */
    USE_RUN_DONE,
    USE_RUN_WHOLE,
    USE_RUN_WORK,   /* kernels are run for it */
    USE_WAIT_BEGIN, /* of an asynchronous kernel */
    USE_WAIT_DONE,
};

/* What the executor of a session notes besides its kernels. */
static const struct {
    const char *name;
    enum use use;
} session_uses[] = {
    {"RunGraph", USE_RUN_BEGIN},
    {"RunGraphDone", USE_RUN_DONE},
    {"SessionRun", USE_RUN_WHOLE},
    {"ExecutorState::Process", USE_RUN_WORK},
    {"ExecutorState::ProcessAsync::Start", USE_WAIT_BEGIN},
    {"ExecutorState::ProcessAsync::Done", USE_WAIT_DONE},
};

struct meta {
    uint32_t name; /* string id: the node's, without its type */
    uint32_t type; /* string id; 0: none; of USE_XLA: the instruction's text */
    uint8_t use;
};

enum plane_kind {
    PLANE_OTHER,
    PLANE_HOST,
    PLANE_CALLS,
    PLANE_GPU,
    PLANE_XLA, /* a TPU */
    PLANE_TASK,
    PLANE_VERSIONS
};

struct plane {
    enum plane_kind kind;
    uint64_t device;       /* of a GPU or TPU */
    bool has_calls;        /* its events have correlation ids */
    bool in_session;       /* its process took part in runs of a session */
    struct map events;     /* mixed metadata id -> index into metas */
    struct map stats;      /* mixed metadata id -> enum stat */
    struct map stat_texts; /* mixed metadata id -> string id: values that are references */
};

/* Ids are small numbers in a row, as the profiler gives them. */
struct cached {
    uint64_t id;
    uint32_t plane; /* its number, + 1 */
    uint32_t meta;  /* index; NO_META: plumbing */
};

struct xplane {
    struct pb pb;
    struct trace_part *part;
    ARRAY(struct plane) planes; /* in file order */
    ARRAY(struct meta) metas;
    struct cached cache[N_CACHED]; /* at id % N_CACHED */
    struct xla xla;
    uint64_t n_ops; /* of TensorFlow's executor */
    uint32_t host;  /* string id */
    bool is_jax;
    bool has_devices; /* with planes of their own, that only XLA has programs for */
    bool no_memory;
};

/* One event's own statistics. */
struct event {
    uint64_t offset_ps, dur_ps;
    uint64_t values[N_STATS];
    uint32_t texts[N_STATS]; /* string ids */
    bool has[N_STATS];
};

static uint32_t intern(struct xplane *x, const char *text, size_t len)
{
    uint32_t id = strtab_add(&x->part->names, text, len);
    if (id == STRTAB_FULL) {
        x->no_memory = true;
        return 0;
    }
    return id;
}

static bool starts(const char *text, size_t len, const char *prefix)
{
    size_t n = strlen(prefix);
    return len >= n && memcmp(text, prefix, n) == 0;
}

static bool is(const char *text, size_t len, const char *word)
{
    return len == strlen(word) && memcmp(text, word, len) == 0;
}

/* What an event of the plane is; NULL: plumbing. */
static inline const struct meta *meta_of(struct xplane *x, const struct plane *plane, uint64_t id)
{
    struct cached *cached = &x->cache[id % N_CACHED];
    uint32_t number = (uint32_t)(plane - x->planes.at) + 1;
    if (cached->id != id || cached->plane != number) {
        uint64_t at = NO_META;
        map_get(&plane->events, map_key(id), &at);
        *cached = (struct cached){id, number, (uint32_t)at};
    }
    return cached->meta == NO_META ? NULL : &x->metas.at[cached->meta];
}

/* ---- names ---- */

/* "sequential/dense/MatMul:MatMul": the length of the node's name; 0: no op. Plumbing is written
 * "ExecutorState::Process", "EagerExecute: f". */
static size_t node_length(const char *name, size_t len)
{
    const char *colon = memrchr(name, ':', len);
    if (!colon || colon == name || colon[-1] == ':' || colon + 1 == name + len)
        return 0;
    for (const char *at = colon + 1; at < name + len; at++)
        if (!(*at == '_' || (*at >= '0' && *at <= '9') || (*at >= 'A' && *at <= 'Z') ||
              (*at >= 'a' && *at <= 'z')))
            return 0;
    if ((colon[1] >= '0' && colon[1] <= '9') || memchr(name, ' ', (size_t)(colon - name)))
        return 0;
    return (size_t)(colon - name);
}

static enum use use_on_host(const char *name, size_t len, size_t node_len)
{
    for (size_t i = 0; i < sizeof session_uses / sizeof *session_uses; i++)
        if (is(name, len, session_uses[i].name))
            return session_uses[i].use;
    if (node_len) {
        const char *type = name + node_len + 1;
        size_t type_len = len - node_len - 1;
        return starts(type, type_len, "Collective") &&
                       !starts(type, type_len, "CollectiveInitialize") &&
                       !starts(type, type_len, "CollectiveAssignGroup")
                   ? USE_COLLECTIVE
                   : USE_OP;
    }
    if (is(name, len, "FunctionRun"))
        return USE_RUN;
    return memchr(name, ':', len) || starts(name, len, "Memory") ? USE_MAYBE_CALL : USE_MARK;
}

static enum use use_on_gpu(const char *name, size_t len)
{
    if (starts(name, len, "Memcpy"))
        return USE_MEMCPY;
    return starts(name, len, "Memset") ? USE_MEMSET : USE_KERNEL;
}

/* Of a device's plane the name may be all of the instruction's text, a shorter one beside it. */
static void add_meta(struct xplane *x, struct plane *plane, uint64_t id, const char *name,
                     size_t len, const char *shown, size_t shown_len)
{
    struct meta meta = {.use = USE_NOTHING};
    size_t node_len = 0;
    struct xla_text text;
    switch (plane->kind) {
    case PLANE_HOST:
        node_len = node_length(name, len);
        meta.use = (uint8_t)use_on_host(name, len, node_len);
        plane->in_session |= meta.use == USE_RUN_BEGIN || meta.use == USE_RUN_WHOLE;
        x->is_jax |= starts(name, len, "PjitFunction(");
        break;
    case PLANE_XLA:
        meta.use = USE_XLA;
        meta.type = intern(x, name, len);
        text = xla_read_text(name, len);
        name = shown_len ? shown : text.name;
        len = shown_len ? shown_len : text.name_len;
        break;
    case PLANE_CALLS:
        meta.use = USE_CALL;
        break;
    case PLANE_GPU:
        meta.use = (uint8_t)use_on_gpu(name, len);
        break;
    case PLANE_OTHER:
    case PLANE_TASK:
    case PLANE_VERSIONS:
        break;
    }
    if (meta.use == USE_NOTHING)
        return;
    meta.name = intern(x, name, node_len ? node_len : len);
    if (node_len)
        meta.type = intern(x, name + node_len + 1, len - node_len - 1);
    if (array_push(&x->metas, meta) < 0 || map_set(&plane->events, map_key(id), x->metas.n - 1) < 0)
        x->no_memory = true;
}

/* XLA names a meeting of devices for all that take part: "...global_devices=[0, 1, 2, 3], ...". */
static uint32_t count_devices(const char *text, size_t len)
{
    static const char key[] = "global_devices=[";
    const char *at = memmem(text, len, key, sizeof key - 1);
    uint32_t n = 0;
    for (at = at ? at + sizeof key - 1 : NULL; at && at < text + len && *at != ']'; at++)
        n += *at == ',' || n == 0;
    return n;
}

static void add_stat(struct xplane *x, struct plane *plane, uint64_t id, const char *name,
                     size_t len)
{
    enum stat stat = STAT_OTHER;
    uint32_t n_devices = plane->kind == PLANE_HOST ? count_devices(name, len) : 0;
    x->xla.n_devices_named =
        n_devices > x->xla.n_devices_named ? n_devices : x->xla.n_devices_named;
    x->is_jax |= plane->kind == PLANE_VERSIONS && is(name, len, "jax_version");
    for (unsigned s = 1; s < N_STATS; s++)
        if (is(name, len, stat_names[s]))
            stat = s;
    plane->has_calls |= stat == STAT_CORRELATION;
    if (stat != STAT_OTHER && map_set(&plane->stats, map_key(id), stat) < 0)
        x->no_memory = true;
    /* texts that events share are written as names of statistics nobody has */
    if (stat == STAT_OTHER && (plane->kind == PLANE_GPU || plane->in_session) &&
        map_set(&plane->stat_texts, map_key(id), intern(x, name, len)) < 0)
        x->no_memory = true;
}

/* An entry of event_metadata or stat_metadata: key 1, value 2 {id 1, name 2, display_name 4}. */
static void read_name(struct xplane *x, struct plane *plane, const struct pb_field *field)
{
    const char *text, *name = "", *shown = "";
    size_t len, name_len = 0, shown_len = 0;
    struct pb_field inner;
    const unsigned char *payload;
    uint64_t id = 0;
    if (!pb_text(&x->pb, field, &text, &len))
        return;
    struct pb_view entry = {(const unsigned char *)text, (const unsigned char *)text + len, false};
    while (pb_view_next(&entry, &inner, &payload)) {
        if (inner.number == 1 && inner.wire == PB_VARINT)
            id = inner.value;
        if (inner.number != 2)
            continue;
        struct pb_view value = pb_view_of(&inner, payload);
        while (pb_view_next(&value, &inner, &payload))
            if (inner.number == 2 && inner.wire == PB_BYTES) {
                name = (const char *)payload;
                name_len = inner.value;
            } else if (inner.number == 4 && inner.wire == PB_BYTES && field->number == 4) {
                shown = (const char *)payload;
                shown_len = inner.value;
            }
        entry.broken |= value.broken;
    }
    if (entry.broken) {
        x->part->losses.n_broken++;
    } else if (field->number == 4) {
        add_meta(x, plane, id, name, name_len, shown, shown_len);
    } else {
        add_stat(x, plane, id, name, name_len);
    }
}

/* "/device:TPU:3" and nothing behind: the number. */
static bool read_device(struct plane *plane, const char *name, size_t len, const char *prefix)
{
    size_t i = strlen(prefix);
    if (!starts(name, len, prefix) || i == len || len - i > 9)
        return false;
    for (; i < len && name[i] >= '0' && name[i] <= '9'; i++)
        plane->device = plane->device * 10 + (uint64_t)(name[i] - '0');
    return i == len;
}

static void name_plane(struct xplane *x, struct plane *plane, const char *name, size_t len)
{
    plane->device = 0;
    if (is(name, len, "/host:CPU")) {
        plane->kind = PLANE_HOST;
    } else if (is(name, len, "/host:CUPTI") || is(name, len, "/host:ROCTRACER")) {
        plane->kind = PLANE_CALLS;
    } else if (is(name, len, "Task Environment")) {
        plane->kind = PLANE_TASK;
    } else if (is(name, len, "/host:metadata")) {
        plane->kind = PLANE_VERSIONS;
    } else if (read_device(plane, name, len, "/device:TPU:")) {
        plane->kind = PLANE_XLA;
        x->has_devices = true;
    } else if (starts(name, len, "/device:GPU:")) {
        plane->kind = PLANE_GPU;
        plane->device = 0;
        read_device(plane, name, len, "/device:GPU:");
    }
}

/* One XStat: metadata_id 1, values 2 to 6, a reference 7. */
static void read_stat(struct xplane *x, const struct plane *plane, struct pb_view view,
                      struct event *event)
{
    struct pb_field field;
    const unsigned char *payload;
    uint64_t stat = STAT_OTHER, value = 0, id;
    uint32_t text = 0;
    while (pb_view_next(&view, &field, &payload)) {
        if (field.number == 1) {
            if (!map_get(&plane->stats, map_key(field.value), &stat))
                return;
        } else if (field.number == 5 && field.wire == PB_BYTES) {
            text = intern(x, (const char *)payload, field.value);
        } else if (field.number == 7) {
            if (map_get(&plane->stat_texts, map_key(field.value), &id))
                text = (uint32_t)id;
        } else if (field.wire != PB_BYTES) {
            value = field.value;
        }
    }
    event->values[stat] = value;
    event->texts[stat] = text;
    event->has[stat] = true;
}

/* First pass: what the plane is and what things are called in it. The statistics of the plane
 * itself may stand before their names. */
static void read_names(struct xplane *x, const struct pb_field *plane_field)
{
    struct plane plane = {.kind = PLANE_OTHER};
    struct event own = {.offset_ps = 0};
    struct pb_field field;
    const char *text;
    size_t len, n_own = 0;
    uint64_t outer;
    enum { OWN_MAX = 64 };
    unsigned char own_bytes[OWN_MAX][32];
    uint8_t own_len[OWN_MAX];
    if (!pb_enter(&x->pb, plane_field, &outer))
        return;
    while (!x->no_memory && pb_next(&x->pb, &field)) {
        if (field.number == 2 && pb_text(&x->pb, &field, &text, &len)) {
            name_plane(x, &plane, text, len);
        } else if (field.number == 4 || field.number == 5) {
            if (plane.kind != PLANE_OTHER)
                read_name(x, &plane, &field);
        } else if (field.number == 6 && n_own < OWN_MAX && field.value <= sizeof own_bytes[0] &&
                   pb_text(&x->pb, &field, &text, &len)) {
            memcpy(own_bytes[n_own], text, len);
            own_len[n_own++] = (uint8_t)len;
        }
    }
    for (size_t i = 0; i < n_own; i++)
        read_stat(x, &plane, (struct pb_view){own_bytes[i], own_bytes[i] + own_len[i], false},
                  &own);
    if (plane.kind == PLANE_TASK && own.has[STAT_PROFILE_START] &&
        own.values[STAT_PROFILE_START] <= TRACE_TIME_MAX)
        x->part->base_ns = (int64_t)own.values[STAT_PROFILE_START];
    pb_leave(&x->pb, outer);
    if (array_push(&x->planes, plane) < 0)
        x->no_memory = true;
}

/* ---- events ---- */

struct line {
    int64_t id, start_ns;
    uint32_t track; /* NO_ID: has no spans yet */
    bool has_start, wanted;
    bool works; /* for `run`, from `work_ns` on, as was noted */
    uint64_t run;
    int64_t work_ns;
    char name[LINE_NAME_MAX];
    size_t name_len;
};

/* Lines of a GPU that retell the streams' work under other names are no streams. */
static bool line_is_wanted(const struct plane *plane, const struct line *line)
{
    if (plane->kind == PLANE_XLA)
        return is(line->name, line->name_len, "XLA Ops") ||
               is(line->name, line->name_len, "XLA Modules") ||
               is(line->name, line->name_len, "Steps");
    return plane->kind != PLANE_GPU || starts(line->name, line->name_len, "Stream #") ||
           line->name_len == 0;
}

/* Threads of the executor and of the collectives' executor have a pool's name and a number. */
static bool is_pool(const struct line *line)
{
    return starts(line->name, line->name_len, "tf_") ||
           starts(line->name, line->name_len, "collective_ops");
}

static uint32_t find_track(struct xplane *x, const struct plane *plane, const struct line *line)
{
    struct trace_part *part = x->part;
    bool gpu = plane->kind == PLANE_GPU;
    uint64_t pid = gpu ? plane->device : 0;
    for (uint32_t t = 0; t < part->tracks.n; t++) {
        const struct trace_track *track = &part->tracks.at[t].track;
        if (track->gpu == gpu && track->pid == pid && track->id == line->id)
            return t;
    }
    struct part_track fresh = {.track = {.gpu = gpu, .pid = pid, .id = line->id}};
    if (part->tracks.n >= NO_ID - 1 || array_push(&part->tracks, fresh) < 0) {
        x->no_memory = true;
        return 0;
    }
    return (uint32_t)part->tracks.n - 1;
}

static const struct trace_detail no_detail = {.peer = -1, .comm_sequence = -1, .wait_stream = -1};

static uint32_t add_detail(struct xplane *x, const struct trace_detail *detail)
{
    struct trace_part *part = x->part;
    if (part->details.n >= NO_ID - 1 || array_push(&part->details, *detail) < 0) {
        x->no_memory = true;
        return NO_ID;
    }
    return (uint32_t)part->details.n - 1;
}

/* "kind_src:pageable kind_dst:device size:4096 dest:0 async:1" */
static uint64_t copied_bytes(const char *text)
{
    const char *size = strstr(text, "size:");
    return size ? strtoull(size + 5, NULL, 10) : 0;
}

/* What only some events have. */
static void describe(struct xplane *x, const struct meta *meta, const struct event *event,
                     struct trace_span *span)
{
    struct trace_detail detail = no_detail;
    char number[24];
    switch (meta->use) {
    case USE_COLLECTIVE:
        span->kind = SPAN_COLLECTIVE;
        detail.collective = meta->type;
        if (event->has[STAT_GROUP_KEY]) {
            int n = snprintf(number, sizeof number, "%llu",
                             (unsigned long long)event->values[STAT_GROUP_KEY]);
            detail.process_group = intern(x, number, (size_t)n);
        }
        if (event->has[STAT_INSTANCE_KEY] && event->values[STAT_INSTANCE_KEY] <= INT64_MAX)
            detail.comm_sequence = (int64_t)event->values[STAT_INSTANCE_KEY];
        span->detail = add_detail(x, &detail);
        break;
    case USE_MARK:
        if (event->has[STAT_CORRELATION]) {
            span->kind = SPAN_RUNTIME;
            span->correlation = event->values[STAT_CORRELATION];
            break;
        }
        span->kind = SPAN_STEP;
        span->sequence = (int32_t)event->values[STAT_STEP_NUM];
        break;
    case USE_MAYBE_CALL:
    case USE_CALL:
        span->kind = SPAN_RUNTIME;
        span->correlation = event->values[STAT_CORRELATION];
        break;
    case USE_KERNEL:
        span->kind = SPAN_KERNEL;
        span->correlation = event->values[STAT_CORRELATION];
        break;
    case USE_MEMCPY:
    case USE_MEMSET:
        span->kind = meta->use == USE_MEMCPY ? SPAN_MEMCPY : SPAN_MEMSET;
        span->correlation = event->values[STAT_CORRELATION];
        detail.bytes = copied_bytes(strtab_get(&x->part->names, event->texts[STAT_MEMCPY]));
        if (detail.bytes)
            span->detail = add_detail(x, &detail);
        break;
    default:
        break;
    }
}

/* What happened to a run of a session, at `ns`. */
static void add_moment(struct xplane *x, struct line *line, uint8_t use, const struct event *event,
                       int64_t ns)
{
    static const enum session_moment_kind kinds[] = {
        [USE_RUN_BEGIN - USE_RUN_BEGIN] = MOMENT_RUN,
        [USE_RUN_DONE - USE_RUN_BEGIN] = MOMENT_RUN_DONE,
        [USE_RUN_WHOLE - USE_RUN_BEGIN] = MOMENT_RUN,
        [USE_RUN_WORK - USE_RUN_BEGIN] = MOMENT_WORK,
        [USE_WAIT_BEGIN - USE_RUN_BEGIN] = MOMENT_WAIT,
        [USE_WAIT_DONE - USE_RUN_BEGIN] = MOMENT_WAIT_DONE,
    };
    enum stat run = use >= USE_WAIT_BEGIN ? STAT_RUN_OF_WAIT : STAT_RUN;
    struct session_profile *session = event->has[run] ? session_profile_of(x->part) : NULL;
    if (!event->has[run])
        return;
    if (use == USE_RUN_WORK) { /* a thread begins again and again for one run */
        bool noted = line->works && line->run == event->values[run] && line->work_ns <= ns;
        line->works = true;
        line->run = event->values[run];
        line->work_ns = ns;
        if (noted)
            return;
    }
    struct session_moment moment = {.run = event->values[run],
                                    .ns = ns,
                                    .name = use >= USE_WAIT_BEGIN ? event->texts[STAT_NAME] : 0,
                                    .track = line->track & (UINT32_MAX >> 3),
                                    .kind = kinds[use - USE_RUN_BEGIN]};
    if (!session || array_push(&session->moments, moment) < 0)
        x->no_memory = true;
}

/* What XLA ran on a device: an op, or all of a program or step. */
static void add_xla(struct xplane *x, const struct plane *plane, const struct line *line,
                    const struct meta *meta, const struct event *event, int64_t start, int64_t end)
{
    struct xla_op op = {.device = plane->device,
                        .run = event->values[STAT_PROGRAM_RUN],
                        .start_ns = start,
                        .end_ns = end,
                        .line = line->id,
                        .name = meta->name};
    if (plane->kind == PLANE_XLA) {
        op.whole = !is(line->name, line->name_len, "XLA Ops");
        op.hlo = op.whole ? 0 : meta->type;
        if (is(line->name, line->name_len, "Steps"))
            op.program = XLA_STEPS;
        else if (op.whole)
            op.program = XLA_STEPS + 1 + (uint64_t)meta->name;
    } else {
        op.device = event->values[STAT_DEVICE];
        op.program = XLA_STEPS + 1 + event->values[STAT_PROGRAM];
    }
    if (array_push(&x->xla.ops, op) < 0)
        x->no_memory = true;
}

static void add_span(struct xplane *x, const struct plane *plane, struct line *line,
                     const struct meta *meta, const struct event *event)
{
    struct trace_part *part = x->part;
    int64_t start = 0, end = 0;
    bool may_call = meta->use == USE_MAYBE_CALL || meta->use == USE_MARK;
    bool calls = may_call && event->has[STAT_CORRELATION];
    bool of_input = meta->use == USE_RUN && starts(line->name, line->name_len, "tf_data");
    bool is_xla = meta->use == USE_XLA ||
                  (meta->use == USE_MARK && event->has[STAT_HLO_OP] && event->has[STAT_DEVICE]);
    if (is_xla && plane->kind != PLANE_XLA && plane->kind != PLANE_HOST)
        return;
    if (of_input || (meta->use == USE_MAYBE_CALL && !calls) ||
        (meta->use == USE_MARK && !calls && !is_xla &&
         (!event->has[STAT_STEP_NUM] || event->values[STAT_STEP_NUM] > INT32_MAX)))
        return;
    if (__builtin_add_overflow(line->start_ns, (int64_t)(event->offset_ps / 1000), &start) ||
        __builtin_add_overflow(line->start_ns,
                               (int64_t)((event->offset_ps / 1000 + event->dur_ps / 1000) +
                                         (event->offset_ps % 1000 + event->dur_ps % 1000) / 1000),
                               &end) ||
        !trace_time_fits(start) || !trace_time_fits(end)) {
        part->losses.n_overflow++;
        return;
    }
    if (is_xla) {
        add_xla(x, plane, line, meta, event, start, end);
        return;
    }
    x->n_ops += meta->use == USE_OP || meta->use == USE_RUN || meta->use == USE_COLLECTIVE;
    if (line->track == NO_ID)
        line->track = find_track(x, plane, line);
    if (meta->use >= USE_RUN_BEGIN) {
        add_moment(x, line, meta->use, event, start);
        if (meta->use == USE_RUN_WHOLE)
            add_moment(x, line, USE_RUN_DONE, event, end);
        return;
    }
    struct trace_span *span = x->no_memory ? NULL : part_add_span(part);
    if (!span) {
        x->no_memory = true;
        return;
    }
    *span = (struct trace_span){.start_ns = start,
                                .dur_ns = end - start,
                                .name = meta->name,
                                .track = line->track,
                                .sequence = -1,
                                .detail = NO_ID,
                                .kind = SPAN_CPU_OP,
                                .parent = NO_ID,
                                .node = NO_ID};
    describe(x, meta, event, span);
    part->tracks.at[line->track].n_spans++;
    part->has_correlation |= span->correlation != 0;
    if (part->n_spans == 1 || start < part->start_ns)
        part->start_ns = start;
    if (part->n_spans == 1 || end > part->end_ns)
        part->end_ns = end;
}

/* One XEvent: metadata_id 1, offset_ps 2, duration_ps 3, stats 4. */
static void read_event(struct xplane *x, const struct plane *plane, struct line *line,
                       struct pb_view view)
{
    struct event event;
    struct pb_field field;
    const unsigned char *payload;
    const struct meta *meta = NULL;
    event.offset_ps = event.dur_ps = 0;
    while (pb_view_next(&view, &field, &payload)) {
        switch (field.number) {
        case 1:
            meta = meta_of(x, plane, field.value);
            if (!meta || (meta->use == USE_MAYBE_CALL && !plane->has_calls) ||
                (meta->use >= USE_RUN_BEGIN && !plane->in_session))
                return;
            if (meta->use > USE_RUN) {
                memset(event.has, 0, sizeof event.has);
                memset(event.values, 0, sizeof event.values);
                memset(event.texts, 0, sizeof event.texts);
            }
            break;
        case 2:
            event.offset_ps = field.value;
            break;
        case 3:
            event.dur_ps = field.value;
            break;
        case 4:
            if (meta && meta->use > USE_RUN)
                read_stat(x, plane, pb_view_of(&field, payload), &event);
            break;
        default:
            break;
        }
    }
    if (view.broken || event.offset_ps > INT64_MAX || event.dur_ps > INT64_MAX)
        x->part->losses.n_broken++;
    else if (meta)
        add_span(x, plane, line, meta, &event);
}

static void read_line(struct xplane *x, const struct plane *plane,
                      const struct pb_field *line_field)
{
    struct line line = {.track = NO_ID};
    struct pb_field field;
    const char *text;
    size_t len;
    uint64_t outer;
    if (!pb_enter(&x->pb, line_field, &outer))
        return;
    while (!x->no_memory && pb_next(&x->pb, &field)) {
        if (field.number == 4) {
            if (!line_is_wanted(plane, &line) || !pb_text(&x->pb, &field, &text, &len))
                continue;
            x->part->n_events++;
            read_event(x, plane, &line,
                       (struct pb_view){(const unsigned char *)text,
                                        (const unsigned char *)text + len, false});
        } else if (line.track != NO_ID && (field.number == 1 || field.number == 3)) {
            pb_stop(&x->pb, "a line that says when it began behind its events");
        } else if (field.number == 1) {
            line.id = (int64_t)field.value;
        } else if (field.number == 3) {
            line.start_ns = (int64_t)field.value;
        } else if ((field.number == 2 || (field.number == 11 && line.name_len == 0)) &&
                   pb_text(&x->pb, &field, &text, &len)) {
            line.name_len = len < sizeof line.name ? len : sizeof line.name;
            memcpy(line.name, text, line.name_len);
        }
    }
    if (line.track != NO_ID && !x->no_memory) {
        struct trace_track *track = &x->part->tracks.at[line.track].track;
        track->name = intern(x, line.name, line.name_len);
        track->pool |= plane->kind == PLANE_HOST && is_pool(&line);
    }
    pb_leave(&x->pb, outer);
}

/* Second pass: the plane's lines. */
static void read_lines(struct xplane *x, const struct plane *plane,
                       const struct pb_field *plane_field)
{
    struct pb_field field;
    uint64_t outer;
    if (plane->events.n == 0 || !pb_enter(&x->pb, plane_field, &outer))
        return;
    while (!x->no_memory && pb_next(&x->pb, &field))
        if (field.number == 3)
            read_line(x, plane, &field);
    pb_leave(&x->pb, outer);
}

static int read_all(struct xplane *x, struct bytes *bytes, struct dpro_error *err)
{
    struct pb_field field;
    const char *text;
    size_t n = 0, len;
    if (strtab_add(&x->part->names, "", 0) == STRTAB_FULL)
        return dpro_error_nomem(err);
    pb_init(&x->pb, bytes);
    while (!x->no_memory && pb_next(&x->pb, &field))
        if (field.number == 1)
            read_names(x, &field);
        else if (field.number == 4 && x->host == 0 && pb_text(&x->pb, &field, &text, &len))
            x->host = intern(x, text, len);
    x->part->broken = x->pb.fail;
    x->part->broken_offset = x->pb.fail_offset;
    if (!x->no_memory && bytes->rc == 0 && bytes_rewind(bytes) < 0)
        return bytes->rc;
    pb_init(&x->pb, bytes);
    while (!x->no_memory && n < x->planes.n && pb_next(&x->pb, &field))
        if (field.number == 1)
            read_lines(x, &x->planes.at[n++], &field);
    if (!x->part->broken) { /* what only a line's events show */
        x->part->broken = x->pb.fail;
        x->part->broken_offset = x->pb.fail_offset;
    }
    return x->no_memory ? dpro_error_nomem(err) : 0;
}

int xplane_read(struct bytes *bytes, struct trace_part *part, struct dpro_error *err)
{
    struct xplane x = {.part = part};
    int rc = read_all(&x, bytes, err);
    bool on_gpu = false;
    for (size_t t = 0; t < part->tracks.n; t++)
        on_gpu |= part->tracks.at[t].track.gpu;
    if (rc == 0 && (x.has_devices || (x.n_ops == 0 && x.xla.ops.n > 0 && !on_gpu))) {
        part->host = x.host;
        part->framework = x.is_jax ? "jax" : "xla";
        if (x.xla.ops.n > 0 && xla_split(&x.xla, part) < 0)
            rc = dpro_error_nomem(err);
    } else if (rc == 0 && x.is_jax) {
        part->framework = "jax";
        if (xla_split_gpus(part) < 0)
            rc = dpro_error_nomem(err);
    }
    for (size_t p = 0; p < x.planes.n; p++) {
        map_fini(&x.planes.at[p].events);
        map_fini(&x.planes.at[p].stats);
        map_fini(&x.planes.at[p].stat_texts);
    }
    array_fini(&x.planes);
    array_fini(&x.metas);
    array_fini(&x.xla.ops);
    return rc;
}
