/* Profiles of XLA's profiler (XSpace), which TensorFlow and JAX use: host and GPU planes, and what
 * XLA ran on CPU devices and TPUs.
 *
 * A plane lists the names of its events and statistics behind the lines that use them. So the file
 * is passed over twice: first only for the names, skipping lines, then for the events, of which
 * nine in ten are the runtime's own plumbing and are dropped at once. Memory is what is kept; no
 * plane is ever held. Times stay relative here: what they count from (profile_start_time) stands in
 * a plane of its own. */
#include "adapters/tensorflow/xplane.h"
#include "ingest/rank_job.h"

#include "ingest/readers.h"

enum { LINE_NAME_MAX = 256 };

/* What an event of the plane is; NULL: plumbing. */
static inline const struct xplane_meta *meta_of(struct xplane *x, const struct xplane_plane *plane,
                                                uint64_t id)
{
    struct xplane_cached *cached = &x->cache[id % N_CACHED];
    uint32_t number = (uint32_t)(plane - x->planes.at) + 1;
    if (cached->id != id || cached->plane != number)
        *cached = (struct xplane_cached){id, number,
                                         (uint32_t)map_or(&plane->events, map_key(id), NO_META)};
    return cached->meta == NO_META ? NULL : &x->metas.at[cached->meta];
}

/* ---- events ---- */

struct xplane_line {
    int64_t id, start_ns;
    uint32_t track; /* NO_ID: has no spans yet */
    bool works;     /* for `run`, from `work_ns` on, as was noted */
    uint64_t run;
    int64_t work_ns;
    char name[LINE_NAME_MAX];
    size_t name_len;
};

/* Lines of a GPU that retell the streams' work under other names are no streams. */
static bool line_is_wanted(const struct xplane_plane *plane, const struct xplane_line *line)
{
    if (plane->kind == PLANE_XLA)
        return text_n_is(line->name, line->name_len, "XLA Ops") ||
               text_n_is(line->name, line->name_len, "XLA Modules") ||
               text_n_is(line->name, line->name_len, "Steps");
    return plane->kind != PLANE_GPU || text_n_begins(line->name, line->name_len, "Stream #") ||
           line->name_len == 0;
}

/* Threads of the executor and of the collectives' executor have a pool's name and a number. */
static bool is_pool(const struct xplane_line *line)
{
    return text_n_begins(line->name, line->name_len, "tf_") ||
           text_n_begins(line->name, line->name_len, "collective_ops");
}

static uint32_t find_track(struct xplane *x, const struct xplane_plane *plane,
                           const struct xplane_line *line)
{
    bool gpu = plane->kind == PLANE_GPU;
    struct trace_track track = {.gpu = gpu, .pid = gpu ? plane->device : 0, .id = line->id};
    return tf_track(x->part, track);
}

/* "kind_src:pageable kind_dst:device size:4096 dest:0 async:1" */
static uint64_t copied_bytes(const char *text)
{
    const char *size = strstr(text, "size:");
    return size ? strtoull(size + 5, NULL, 10) : 0;
}

static uint32_t describe_collective(struct xplane *x, const struct xplane_meta *meta,
                                    const struct xplane_event *event)
{
    struct trace_detail detail = {DETAIL_UNKNOWN};
    detail.collective = meta->type;
    if (event->has[STAT_GROUP_KEY])
        detail.process_group = strtab_format(&x->part->names, "%llu",
                                             (unsigned long long)event->values[STAT_GROUP_KEY]);
    if (event->has[STAT_INSTANCE_KEY] && event->values[STAT_INSTANCE_KEY] <= INT64_MAX)
        detail.comm_sequence = (int64_t)event->values[STAT_INSTANCE_KEY];
    return tf_detail(x->part, &detail);
}

/* What only some events have. */
static void describe_event(struct xplane *x, const struct xplane_meta *meta,
                           const struct xplane_event *event, struct trace_span *span)
{
    static const uint8_t kinds[] = {[USE_COLLECTIVE] = SPAN_COLLECTIVE, [USE_MARK] = SPAN_STEP,
                                    [USE_MAYBE_CALL] = SPAN_RUNTIME,    [USE_CALL] = SPAN_RUNTIME,
                                    [USE_KERNEL] = SPAN_KERNEL,         [USE_MEMCPY] = SPAN_MEMCPY,
                                    [USE_MEMSET] = SPAN_MEMSET};
    struct trace_detail detail = {DETAIL_UNKNOWN};
    bool is_call = meta->use == USE_MARK && event->has[STAT_CORRELATION];
    if (meta->use < USE_COLLECTIVE || meta->use > USE_MEMSET)
        return; /* its statistics were not read */
    span->kind = is_call ? SPAN_RUNTIME : kinds[meta->use];
    if (meta->use == USE_COLLECTIVE) {
        span->detail = describe_collective(x, meta, event);
    } else if (meta->use == USE_MARK && !is_call) {
        span->sequence = (int32_t)event->values[STAT_STEP_NUM];
    } else {
        span->correlation = event->values[STAT_CORRELATION];
    }
    if (span->kind == SPAN_MEMCPY || span->kind == SPAN_MEMSET) {
        detail.bytes = copied_bytes(strtab_get(&x->part->names, event->texts[STAT_MEMCPY]));
        if (detail.bytes)
            span->detail = tf_detail(x->part, &detail);
    }
}

static void add_moment(struct xplane *x, struct xplane_line *line, enum session_moment_kind kind,
                       const struct xplane_event *event, int64_t ns)
{
    bool waits = kind == MOMENT_WAIT || kind == MOMENT_WAIT_DONE;
    enum stat stat = waits ? STAT_RUN_OF_WAIT : STAT_RUN;
    uint64_t run = event->values[stat];
    if (!event->has[stat])
        return;
    struct session_profile *session = part_make_payload(x->part, &session_payload);
    if (kind == MOMENT_WORK) { /* a thread begins again and again for one run */
        bool noted = line->works && line->run == run && line->work_ns <= ns;
        line->works = true;
        line->run = run;
        line->work_ns = ns;
        if (noted)
            return;
    }
    array_add(&session->moments, .run = run, .ns = ns, .name = waits ? event->texts[STAT_NAME] : 0,
              .track = line->track & (UINT32_MAX >> 3), .kind = kind);
}

/* What XLA ran on a device: an op, or all of a program or step. */
static void add_xla(struct xplane *x, const struct xplane_plane *plane,
                    const struct xplane_line *line, const struct xplane_meta *meta,
                    const struct xplane_event *event, int64_t start, int64_t end)
{
    struct xla_op op = {.device = plane->device,
                        .run = event->values[STAT_PROGRAM_RUN],
                        .start_ns = start,
                        .end_ns = end,
                        .line = line->id,
                        .name = meta->name};
    if (plane->kind == PLANE_XLA) {
        op.whole = !text_n_is(line->name, line->name_len, "XLA Ops");
        op.hlo = op.whole ? 0 : meta->type;
        if (text_n_is(line->name, line->name_len, "Steps"))
            op.program = XLA_STEPS;
        else if (op.whole)
            op.program = XLA_STEPS + 1 + (uint64_t)meta->name;
    } else {
        op.device = event->values[STAT_DEVICE];
        op.program = XLA_STEPS + 1 + event->values[STAT_PROGRAM];
    }
    array_push(&x->xla.ops, op);
}

static void add_span(struct xplane *x, const struct xplane_plane *plane, struct xplane_line *line,
                     const struct xplane_meta *meta, const struct xplane_event *event)
{
    struct trace_part *part = x->part;
    int64_t start = 0, end = 0;
    bool may_call = meta->use == USE_MAYBE_CALL || meta->use == USE_MARK;
    bool calls = may_call && event->has[STAT_CORRELATION];
    bool of_input = meta->use == USE_RUN && text_n_begins(line->name, line->name_len, "tf_data");
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
        part->losses.n_broken++;
        return;
    }
    if (is_xla) {
        add_xla(x, plane, line, meta, event, start, end);
        return;
    }
    x->n_ops += meta->use == USE_OP || meta->use == USE_RUN || meta->use == USE_COLLECTIVE;
    if (line->track == NO_ID)
        line->track = find_track(x, plane, line);
    if (meta->use == USE_RUN_WHOLE) {
        add_moment(x, line, MOMENT_RUN, event, start);
        add_moment(x, line, MOMENT_RUN_DONE, event, end);
        return;
    }
    if (meta->use >= USE_MOMENT) {
        add_moment(x, line, meta->use - USE_MOMENT, event, start);
        return;
    }
    struct trace_span *span = part_add_span(part);
    *span = span_at(SPAN_CPU_OP, meta->name, line->track, start, end);
    describe_event(x, meta, event, span);
    part_count_span(part, span);
}

/* One XStat: metadata_id 1, values 2 to 6, a reference 7. */
static void read_stat(struct xplane *x, const struct xplane_plane *plane, struct pb_view view,
                      struct xplane_event *event)
{
    struct pb_field field;
    uint64_t stat = STAT_OTHER, value = 0;
    uint32_t text = 0;
    while (pb_view_next(&view, &field)) {
        if (field.number == 1) {
            if (!map_get(&plane->stats, map_key(field.value), &stat))
                return;
        } else if (field.number == 5 && field.wire == PB_BYTES) {
            text = tf_intern(x->part, &field);
        } else if (field.number == 7) {
            text = (uint32_t)map_or(&plane->stat_texts, map_key(field.value), text);
        } else if (field.wire != PB_BYTES) {
            value = field.value;
        }
    }
    event->values[stat] = value;
    event->texts[stat] = text;
    event->has[stat] = true;
}

/* One XEvent: metadata_id 1, offset_ps 2, duration_ps 3, stats 4. */
static void read_event(struct xplane *x, const struct xplane_plane *plane, struct xplane_line *line,
                       struct pb_view view)
{
    struct xplane_event event;
    struct pb_field field;
    const struct xplane_meta *meta = NULL;
    event.offset_ps = event.dur_ps = 0;
    while (pb_view_next(&view, &field)) {
        switch (field.number) {
        case 1:
            meta = meta_of(x, plane, field.value);
            if (!meta || (meta->use == USE_MAYBE_CALL && !plane->has_calls) ||
                (meta->use >= USE_RUN_WHOLE && !plane->in_session))
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
                read_stat(x, plane, pb_view_of(&field), &event);
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

static void read_line(struct xplane *x, const struct xplane_plane *plane,
                      const struct pb_field *message)
{
    struct xplane_line line = {.track = NO_ID};
    struct pb_view view;
    const char *text;
    size_t len;
    PB_EACH (&x->pb, message, field) {
        if (field.number == 4) {
            if (!line_is_wanted(plane, &line) || !pb_whole(&x->pb, &field, &view))
                continue;
            x->part->n_events++;
            read_event(x, plane, &line, view);
        } else if (line.track != NO_ID && (field.number == 1 || field.number == 3)) {
            pb_stop(&x->pb, "a line whose beginning stands behind its events");
        } else if (field.number == 1) {
            line.id = (int64_t)field.value;
        } else if (field.number == 3) {
            line.start_ns = (int64_t)field.value;
        } else if ((field.number == 2 || (field.number == 11 && line.name_len == 0)) &&
                   pb_text(&x->pb, &field, &text, &len)) {
            line.name_len = MIN(len, sizeof line.name);
            memcpy(line.name, text, line.name_len);
        }
    }
    if (line.track != NO_ID) {
        struct trace_track *track = &x->part->tracks.at[line.track].track;
        track->name = part_intern(x->part, line.name, line.name_len);
        track->pool |= plane->kind == PLANE_HOST && is_pool(&line);
    }
}

/* Second pass: the plane's lines. */
static void read_lines(struct xplane *x, const struct xplane_plane *plane,
                       const struct pb_field *message)
{
    if (plane->events.n == 0)
        return;
    PB_EACH (&x->pb, message, field) {
        if (field.number == 3)
            read_line(x, plane, &field);
    }
}

static int read_all(struct xplane *x, struct bytes *bytes)
{
    struct pb_field field;
    const char *text;
    size_t n = 0, len;
    pb_init(&x->pb, bytes);
    while (pb_next(&x->pb, &field))
        if (field.number == 1)
            xplane_read_names(x, &field);
        else if (field.number == 4 && x->host == 0 && pb_text(&x->pb, &field, &text, &len))
            x->host = part_intern(x->part, text, len);
    x->part->damage.broken = x->pb.fail;
    x->part->damage.offset = x->pb.fail_offset;
    if (bytes->rc == 0 && bytes_rewind(bytes) < 0)
        return bytes->rc;
    pb_init(&x->pb, bytes);
    while (n < x->planes.n && pb_next(&x->pb, &field))
        if (field.number == 1)
            read_lines(x, &x->planes.at[n++], &field);
    if (!x->part->damage.broken) { /* what only a line's events show */
        x->part->damage.broken = x->pb.fail;
        x->part->damage.offset = x->pb.fail_offset;
    }
    return 0;
}

/* Of the devices that XLA drives. */
#define MISSING_OF(name)                                                                           \
    {                                                                                              \
        "op of a device", "did a program run while it was recorded?",                              \
            "a profile of " name                                                                   \
            " without an op of a device; record it again while the job trains, with "              \
            "jax.profiler.trace"                                                                   \
    }
static const struct missing missing_of_jax = MISSING_OF("JAX"), missing_of_xla = MISSING_OF("XLA");

static void split_devices(struct xplane *x)
{
    struct trace_part *part = x->part;
    bool on_gpu = false;
    for (size_t t = 0; t < part->tracks.n; t++)
        on_gpu |= part->tracks.at[t].track.gpu;
    bool by_xla = x->has_devices || (x->n_ops == 0 && x->xla.ops.n > 0 && !on_gpu);
    if (!by_xla && !x->is_jax)
        return;
    part->framework = x->is_jax ? "jax" : "xla";
    part->missing = x->is_jax ? &missing_of_jax : &missing_of_xla;
    if (!by_xla) {
        xla_split_gpus(part);
        return;
    }
    part->process.host = x->host;
    if (x->xla.ops.n > 0)
        xla_split(&x->xla, part);
}

static int read_xplane(struct bytes *bytes, struct trace_part *part, struct dpro_error *err UNUSED)
{
    struct xplane x = {.part = part};
    int rc = read_all(&x, bytes);
    if (rc == 0)
        split_devices(&x);
    part->process.may_be_server = session_profile_of(part) != NULL;
    EACH (struct xplane_plane, plane, x.planes)
        FREE_ALL(&plane->events, &plane->stats, &plane->stat_texts);
    FREE_ALL(&x.planes, &x.metas, &x.xla.ops);
    return rc;
}

static bool xplane_recognise(const struct head *head)
{
    return protobuf_recognise(head) == PROTOBUF_XPLANE;
}

/* A profile says when it began near its end: of one that is cut off it is not known where it lies
 * beside the others', unless dpro's recorder or a timeline knows. */
static void drop_undated(struct trace_build *build)
{
    bool dated = false, helped = false;
    EACH (const struct source, source, build->list) {
        dated |= source->reader == &xplane_reader && time_on_epoch(source->part.start_ns);
        helped |= part_payload(&source->part, &recording_payload) ||
                  part_payload(&source->part, &timeline_payload);
    }
    for (size_t i = 0; dated && !helped && i < build->list.n; i++) {
        struct source *source = &build->list.at[i];
        if (source->reader != &xplane_reader || !source_is_profile(source) ||
            time_on_epoch(source->part.start_ns) || source->rank < 0)
            continue;
        build_warn(build,
                   "%s: does not say when it began, so rank %d can't be put beside the others and "
                   "is left out; copy or record the file again",
                   source->path, source->rank);
        source->rank = -1;
    }
}

static void xplane_complete(struct trace_build *build)
{
    drop_undated(build);
    session_profiles_join(build);
}

/* Said once: a profile says when ops ran, not why. */
static void warn_no_graph(struct trace_build *build)
{
    const struct dpro_trace *trace = build->trace;
    const struct trace_rank *first = NULL;
    size_t n_without = 0, n_profiles = 0;
    EACH_OF (const struct trace_rank, rank, trace->ranks, trace->n_ranks + trace->n_servers) {
        const struct source *profile = &build->list.at[rank->windows[0].file];
        if (profile->reader != &xplane_reader || profile->part.framework)
            continue;
        n_profiles++;
        n_without += rank->n_dfg_nodes == 0;
        first = !first && rank->n_dfg_nodes == 0 ? rank : first;
    }
    if (first)
        build_warn(build,
                   "%s: no graph beside %zu of %zu profiles: dependencies are read off the "
                   "timeline; add the RunMetadata of %s for exact dependencies",
                   build->list.at[first->windows[0].file].path, n_without, n_profiles,
                   first->in_session
                       ? "one of the session's runs (FULL_TRACE, output_partition_graphs)"
                       : "the function's first call (context.export_run_metadata)");
}

const struct reader xplane_reader = {
    .name = "xplane",
    .word = "profile",
    .encoding = "protobuf",
    .framework = "tensorflow",
    .missing = {"TensorFlow ops", "was it recorded with host_tracer_level 2 or more?",
                "no TensorFlow ops in it; record it again while the job trains, with "
                "ProfilerOptions(host_tracer_level=2) or more"},
    .recognise = xplane_recognise,
    .read_bytes = read_xplane,
    .complete = xplane_complete,
    .join = warn_no_graph,
};
