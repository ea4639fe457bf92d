/* The names of an XSpace's planes, events and statistics, and what each of them is. */
#include "adapters/tensorflow/xplane.h"

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
    unsigned use;
} session_uses[] = {
    {"RunGraph", USE_MOMENT + MOMENT_RUN},
    {"RunGraphDone", USE_MOMENT + MOMENT_RUN_DONE},
    {"SessionRun", USE_RUN_WHOLE},
    {"ExecutorState::Process", USE_MOMENT + MOMENT_WORK},
    {"ExecutorState::ProcessAsync::Start", USE_MOMENT + MOMENT_WAIT},
    {"ExecutorState::ProcessAsync::Done", USE_MOMENT + MOMENT_WAIT_DONE},
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

static unsigned use_on_host(const char *name, size_t len, size_t node_len)
{
    for (size_t i = 0; i < sizeof session_uses / sizeof *session_uses; i++)
        if (text_n_is(name, len, session_uses[i].name))
            return session_uses[i].use;
    if (node_len) {
        const char *type = name + node_len + 1;
        size_t type_len = len - node_len - 1;
        return text_n_begins(type, type_len, "Collective") &&
                       !text_n_begins(type, type_len, "CollectiveInitialize") &&
                       !text_n_begins(type, type_len, "CollectiveAssignGroup")
                   ? USE_COLLECTIVE
                   : USE_OP;
    }
    if (text_n_is(name, len, "FunctionRun"))
        return USE_RUN;
    return memchr(name, ':', len) || text_n_begins(name, len, "Memory") ? USE_MAYBE_CALL : USE_MARK;
}

static enum use use_on_gpu(const char *name, size_t len)
{
    if (text_n_begins(name, len, "Memcpy"))
        return USE_MEMCPY;
    return text_n_begins(name, len, "Memset") ? USE_MEMSET : USE_KERNEL;
}

/* Of a device's plane the name may be all of the instruction's text, a shorter one beside it. */
static void add_meta(struct xplane *x, struct xplane_plane *plane, uint64_t id,
                     const struct pb_field *named, const struct pb_field *shown)
{
    struct xplane_meta meta = {.use = USE_NOTHING};
    const char *name = (const char *)named->payload;
    size_t len = pb_length(named), node_len = 0;
    struct xla_text text;
    switch (plane->kind) {
    case PLANE_HOST:
        node_len = node_length(name, len);
        meta.use = (uint8_t)use_on_host(name, len, node_len);
        plane->in_session |= meta.use == USE_MOMENT + MOMENT_RUN || meta.use == USE_RUN_WHOLE;
        x->is_jax |= text_n_begins(name, len, "PjitFunction(");
        break;
    case PLANE_XLA:
        meta.use = USE_XLA;
        meta.type = part_intern(x->part, name, len);
        text = xla_read_text(name, len);
        name = pb_length(shown) ? (const char *)shown->payload : text.name;
        len = pb_length(shown) ? pb_length(shown) : text.name_len;
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
    meta.name = part_intern(x->part, name, node_len ? node_len : len);
    if (node_len)
        meta.type = part_intern(x->part, name + node_len + 1, len - node_len - 1);
    map_set(&plane->events, map_key(id), x->metas.n);
    array_push(&x->metas, meta);
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
    x->is_jax |= plane->kind == PLANE_VERSIONS && text_n_is(name, len, "jax_version");
    for (unsigned s = 1; s < N_STATS; s++)
        if (text_n_is(name, len, stat_names[s]))
            stat = s;
    plane->has_calls |= stat == STAT_CORRELATION;
    if (stat != STAT_OTHER)
        map_set(&plane->stats, map_key(id), stat);
    /* texts that events share are written as names of statistics nobody has */
    else if (plane->kind == PLANE_GPU || plane->in_session)
        map_set(&plane->stat_texts, map_key(id), part_intern(x->part, name, len));
}

/* An entry of event_metadata or stat_metadata: key 1, value 2 {id 1, name 2, display_name 4}. */
static void read_name(struct xplane *x, struct xplane_plane *plane, const struct pb_field *field)
{
    struct pb_field entry[3], value[5];
    struct pb_view view;
    if (!pb_whole(&x->pb, field, &view))
        return;
    bool whole = pb_view_fields(view, entry, 3);
    whole &= pb_view_fields(pb_view_of(&entry[2]), value, 5);
    if (!whole)
        x->part->losses.n_broken++;
    else if (field->number == 4)
        add_meta(x, plane, pb_number(&entry[1]), &value[2], &value[4]);
    else
        add_stat(x, plane, pb_number(&entry[1]), (const char *)value[2].payload,
                 pb_length(&value[2]));
}

/* "/device:TPU:3" and nothing behind: the number. */
static bool read_device(struct xplane_plane *plane, const char *name, size_t len,
                        const char *prefix)
{
    size_t i = strlen(prefix);
    if (!text_n_begins(name, len, prefix) || i == len || len - i > 9)
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
        if (text_n_is(name, len, planes[i].name))
            plane->kind = planes[i].kind;
    if (read_device(plane, name, len, "/device:TPU:")) {
        plane->kind = PLANE_XLA;
        x->has_devices = true;
    } else if (text_n_begins(name, len, "/device:GPU:")) {
        plane->kind = PLANE_GPU;
        plane->device = 0;
        read_device(plane, name, len, "/device:GPU:");
    }
}

/* First pass: what the plane is and what things are called in it. The statistics of the plane
 * itself may stand before their names. */
void xplane_read_names(struct xplane *x, const struct pb_field *message)
{
    struct xplane_plane plane = {.kind = PLANE_OTHER};
    const char *text;
    size_t len, n_own = 0;
    enum { OWN_MAX = 64 };
    struct {
        uint64_t id, value;
    } own[OWN_MAX];
    PB_EACH (&x->pb, message, field) {
        struct pb_field stat[5];
        struct pb_view view;
        if (field.number == 2 && pb_text(&x->pb, &field, &text, &len)) {
            name_plane(x, &plane, text, len);
        } else if (field.number == 4 || field.number == 5) {
            if (plane.kind != PLANE_OTHER)
                read_name(x, &plane, &field);
        } else if (field.number == 6 && n_own < OWN_MAX && pb_whole(&x->pb, &field, &view)) {
            pb_view_fields(view, stat, 5);
            own[n_own].id = pb_number(&stat[1]);
            own[n_own++].value = pb_number(stat[3].number ? &stat[3] : &stat[4]);
        }
    }
    for (size_t i = 0; i < n_own && plane.kind == PLANE_TASK; i++) {
        uint64_t stat;
        if (map_get(&plane.stats, map_key(own[i].id), &stat) && stat == STAT_PROFILE_START &&
            own[i].value <= TRACE_TIME_MAX)
            x->part->base_ns = (int64_t)own[i].value;
    }
    array_push(&x->planes, plane);
}
