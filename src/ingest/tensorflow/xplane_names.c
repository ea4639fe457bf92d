/* ingest/tensorflow/xplane_names.c: the names of an XSpace's planes, events and statistics, and
 * what each of them is. */
#include "base/sort.h"
#include "ingest/tensorflow/xplane.h"

static const char *const stat_names[N_STATS] = {
    [STAT_OTHER] = "",
    [STAT_STEP_NUM] = "step_num",
    [STAT_GROUP_KEY] = "group_key",
    [STAT_INSTANCE_KEY] = "instance_key",
    [STAT_CORRELATION] = "correlation_id",
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
        if (xplane_is(name, len, session_uses[i].name))
            return session_uses[i].use;
    if (node_len) {
        const char *type = name + node_len + 1;
        size_t type_len = len - node_len - 1;
        return xplane_starts(type, type_len, "Collective") &&
                       !xplane_starts(type, type_len, "CollectiveInitialize") &&
                       !xplane_starts(type, type_len, "CollectiveAssignGroup")
                   ? USE_COLLECTIVE
                   : USE_OP;
    }
    if (xplane_is(name, len, "FunctionRun"))
        return USE_RUN;
    return memchr(name, ':', len) || xplane_starts(name, len, "Memory") ? USE_MAYBE_CALL : USE_MARK;
}

static enum use use_on_gpu(const char *name, size_t len)
{
    if (xplane_starts(name, len, "Memcpy"))
        return USE_MEMCPY;
    return xplane_starts(name, len, "Memset") ? USE_MEMSET : USE_KERNEL;
}

/* Of a device's plane the name may be all of the instruction's text, a shorter one beside it. */
static void add_meta(struct xplane *x, struct xplane_plane *plane, uint64_t id, const char *name,
                     size_t len, const char *shown, size_t shown_len)
{
    struct xplane_meta meta = {.use = USE_NOTHING};
    size_t node_len = 0;
    struct xla_text text;
    switch (plane->kind) {
    case PLANE_HOST:
        node_len = node_length(name, len);
        meta.use = (uint8_t)use_on_host(name, len, node_len);
        plane->in_session |= meta.use == USE_RUN_BEGIN || meta.use == USE_RUN_WHOLE;
        x->is_jax |= xplane_starts(name, len, "PjitFunction(");
        break;
    case PLANE_XLA:
        meta.use = USE_XLA;
        meta.type = xplane_intern(x, name, len);
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
    meta.name = xplane_intern(x, name, node_len ? node_len : len);
    if (node_len)
        meta.type = xplane_intern(x, name + node_len + 1, len - node_len - 1);
    if (array_push(&x->metas, meta) < 0 || map_set(&plane->events, map_key(id), x->metas.n - 1) < 0)
        x->no_memory = true;
}

/* XLA names a rendezvous by the devices that take part: "...global_devices=[0, 1, 2, 3], ...". */
static uint32_t count_devices(const char *text, size_t len)
{
    static const char key[] = "global_devices=[";
    const char *at = memmem(text, len, key, sizeof key - 1);
    uint32_t n = 0;
    for (at = at ? at + sizeof key - 1 : NULL; at && at < text + len && *at != ']'; at++)
        n += *at == ',' || n == 0;
    return n;
}

static void add_stat(struct xplane *x, struct xplane_plane *plane, uint64_t id, const char *name,
                     size_t len)
{
    enum stat stat = STAT_OTHER;
    uint32_t n_devices = plane->kind == PLANE_HOST ? count_devices(name, len) : 0;
    x->xla.n_devices_named = MAX(x->xla.n_devices_named, n_devices);
    x->is_jax |= plane->kind == PLANE_VERSIONS && xplane_is(name, len, "jax_version");
    for (unsigned s = 1; s < N_STATS; s++)
        if (xplane_is(name, len, stat_names[s]))
            stat = s;
    plane->has_calls |= stat == STAT_CORRELATION;
    if (stat != STAT_OTHER && map_set(&plane->stats, map_key(id), stat) < 0)
        x->no_memory = true;
    /* texts that events share are written as names of statistics nobody has */
    if (stat == STAT_OTHER && (plane->kind == PLANE_GPU || plane->in_session) &&
        map_set(&plane->stat_texts, map_key(id), xplane_intern(x, name, len)) < 0)
        x->no_memory = true;
}

/* An entry of event_metadata or stat_metadata: key 1, value 2 {id 1, name 2, display_name 4}. */
static void read_name(struct xplane *x, struct xplane_plane *plane, const struct pb_field *field)
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
static bool read_device(struct xplane_plane *plane, const char *name, size_t len,
                        const char *prefix)
{
    size_t i = strlen(prefix);
    if (!xplane_starts(name, len, prefix) || i == len || len - i > 9)
        return false;
    for (; i < len && name[i] >= '0' && name[i] <= '9'; i++)
        plane->device = plane->device * 10 + (uint64_t)(name[i] - '0');
    return i == len;
}

static void name_plane(struct xplane *x, struct xplane_plane *plane, const char *name, size_t len)
{
    static const struct {
        const char *name;
        enum plane_kind kind;
    } planes[] = {{"/host:CPU", PLANE_HOST},
                  {"/host:CUPTI", PLANE_CALLS},
                  {"/host:ROCTRACER", PLANE_CALLS},
                  {"Task Environment", PLANE_TASK},
                  {"/host:metadata", PLANE_VERSIONS}};
    plane->device = 0;
    for (size_t i = 0; i < sizeof planes / sizeof *planes; i++)
        if (xplane_is(name, len, planes[i].name))
            plane->kind = planes[i].kind;
    if (read_device(plane, name, len, "/device:TPU:")) {
        plane->kind = PLANE_XLA;
        x->has_devices = true;
    } else if (xplane_starts(name, len, "/device:GPU:")) {
        plane->kind = PLANE_GPU;
        plane->device = 0;
        read_device(plane, name, len, "/device:GPU:");
    }
}

/* One XStat: metadata_id 1, values 2 to 6, a reference 7. */
void xplane_read_stat(struct xplane *x, const struct xplane_plane *plane, struct pb_view view,
                      struct xplane_event *event)
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
            text = xplane_intern(x, (const char *)payload, field.value);
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
void xplane_read_names(struct xplane *x, const struct pb_field *plane_field)
{
    struct xplane_plane plane = {.kind = PLANE_OTHER};
    struct xplane_event own = {.offset_ps = 0};
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
        xplane_read_stat(x, &plane,
                         (struct pb_view){own_bytes[i], own_bytes[i] + own_len[i], false}, &own);
    if (plane.kind == PLANE_TASK && own.has[STAT_PROFILE_START] &&
        own.values[STAT_PROFILE_START] <= TRACE_TIME_MAX)
        x->part->base_ns = (int64_t)own.values[STAT_PROFILE_START];
    pb_leave(&x->pb, outer);
    if (array_push(&x->planes, plane) < 0)
        x->no_memory = true;
}
