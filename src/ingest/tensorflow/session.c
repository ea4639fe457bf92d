/* ingest/tensorflow/session.c: a step of a TensorFlow session: when each kernel of each task ran,
 * and when what it took from other tasks came.
 *
 * A device has a list of its kernels, with no thread, and another one of what it received
 * (RecvTensor), named by the transfer's key only. A received tensor's time begins when the sender
 * had it, by the sender's clock, or when it was asked for. */
#include "ingest/tensorflow/session.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/map.h"
#include "base/sort.h"
#include "ingest/tensorflow/graphdef.h"

enum { KEY_TEXT_MAX = 1024 };

struct stats {
    uint64_t start_ns, end_ns, requested_bytes;
    const char *name, *label;
    size_t name_len, label_len;
};

/* requested_bytes of an output: NodeOutput {tensor_description 3 {allocation_description 4
 * {requested_bytes 1}}}. */
static uint64_t read_output(struct pb_view at)
{
    static const uint32_t path[] = {3, 4, 1};
    struct pb_field field;
    const unsigned char *payload;
    for (unsigned depth = 0; pb_view_next(&at, &field, &payload);) {
        if (field.number != path[depth])
            continue;
        if (depth++ == 2)
            return field.value;
        at = pb_view_of(&field, payload);
    }
    return 0;
}

/* NodeExecStats: times in whole microseconds (2, 5), and since 2018 in nanoseconds (13, 16). */
static bool read_stats(struct pb_view view, struct stats *stats)
{
    uint64_t micros = 0, took_micros = 0, nanos = 0, took_nanos = 0;
    struct pb_field field;
    const unsigned char *payload;
    *stats = (struct stats){.name = "", .label = ""};
    while (pb_view_next(&view, &field, &payload)) {
        bool text = field.wire == PB_BYTES;
        if (text && field.number == 1) {
            stats->name = (const char *)payload;
            stats->name_len = field.value;
        } else if (text && field.number == 8) {
            stats->label = (const char *)payload;
            stats->label_len = field.value;
        } else if (text && field.number == 7) {
            stats->requested_bytes += read_output(pb_view_of(&field, payload));
        } else if (!text && field.number == 2) {
            micros = field.value;
        } else if (!text && field.number == 5) {
            took_micros = field.value;
        } else if (!text && field.number == 13) {
            nanos = field.value;
        } else if (!text && field.number == 16) {
            took_nanos = field.value;
        }
    }
    if (view.broken || micros > TRACE_TIME_MAX / 1000 || took_micros > TRACE_TIME_MAX / 1000 ||
        nanos > TRACE_TIME_MAX || took_nanos > TRACE_TIME_MAX)
        return false;
    stats->start_ns = nanos ? nanos : micros * 1000;
    stats->end_ns = stats->start_ns + (took_nanos ? took_nanos : took_micros * 1000);
    return stats->end_ns <= TRACE_TIME_MAX;
}

/* "[2.0MB] [6.3Gb/s] edge_54_w from /job:ps/... to /job:worker/...": the transfer's key. */
static uint32_t key_of_label(struct trace_part *part, const struct stats *stats, bool *no_memory)
{
    char text[KEY_TEXT_MAX];
    size_t len = stats->label_len < sizeof text - 1 ? stats->label_len : sizeof text - 1;
    memcpy(text, stats->label, len);
    text[len] = '\0';
    char *tensor = text, *from = strstr(text, " from /job:"), *to = NULL;
    for (char *at = text; from && (at = strstr(at, "] ")) && at < from; at += 2)
        tensor = at + 2;
    if (from)
        to = strstr(from, " to /job:");
    if (!to)
        return 0;
    *from = *to = '\0';
    return graphdef_key(part, tensor, from + 6, to + 4, no_memory);
}

/* "g/CollectiveReduce = CollectiveReduce(g, ...)": the type of a collective; 0: it is none. */
static uint32_t collective_of_label(struct trace_part *part, const struct stats *stats,
                                    bool *no_memory)
{
    static const char word[] = " = Collective";
    const char *at = memmem(stats->label, stats->label_len, word, sizeof word - 1);
    if (!at)
        return 0;
    at += 3;
    size_t len = 0, left = (size_t)(stats->label + stats->label_len - at);
    while (len < left && at[len] != '(')
        len++;
    uint32_t type = strtab_add(&part->names, at, len);
    *no_memory |= type == STRTAB_FULL;
    return type;
}

/* While the file is read a track is a device: its name says which. */
static uint32_t device_track(struct trace_part *part, uint32_t device, bool gpu, bool *no_memory)
{
    for (uint32_t t = 0; t < part->tracks.n; t++)
        if (part->tracks.at[t].track.name == device)
            return t;
    struct part_track fresh = {
        .track = {.gpu = gpu, .name = device, .id = (int64_t)part->tracks.n}};
    if (array_push(&part->tracks, fresh) < 0) {
        *no_memory = true;
        return 0;
    }
    return (uint32_t)part->tracks.n - 1;
}

static const struct trace_detail no_detail = {.peer = -1, .comm_sequence = -1, .wait_stream = -1};

static void add_span(struct trace_part *part, uint32_t track, const struct stats *stats,
                     bool *no_memory)
{
    if (stats->name_len == 7 && memcmp(stats->name, "RecvBuf", 7) == 0)
        return; /* a part of a collective, which has a span of its own */
    struct trace_span *span = part_add_span(part);
    if (!span) {
        *no_memory = true;
        return;
    }
    *span =
        (struct trace_span){.start_ns = (int64_t)stats->start_ns,
                            .dur_ns = (int64_t)(stats->end_ns - stats->start_ns),
                            .name = strtab_add(&part->names, stats->name, stats->name_len),
                            .track = track,
                            .sequence = -1,
                            .detail = NO_ID,
                            .kind = part->tracks.at[track].track.gpu ? SPAN_KERNEL : SPAN_CPU_OP,
                            .parent = NO_ID,
                            .node = NO_ID};
    *no_memory |= span->name == STRTAB_FULL;
    if (stats->name_len == 10 && memcmp(stats->name, "RecvTensor", 10) == 0) {
        struct trace_detail detail = no_detail;
        detail.process_group = key_of_label(part, stats, no_memory);
        detail.bytes = stats->requested_bytes;
        span->kind = SPAN_TRANSFER;
        span->detail = (uint32_t)part->details.n;
        *no_memory |= array_push(&part->details, detail) < 0;
        return;
    }
    struct trace_detail detail = no_detail;
    detail.collective = collective_of_label(part, stats, no_memory);
    if (detail.collective) {
        detail.bytes = stats->requested_bytes;
        span->kind = SPAN_COLLECTIVE;
        span->detail = (uint32_t)part->details.n;
        *no_memory |= array_push(&part->details, detail) < 0;
    }
}

/* DeviceStepStats: device 1, node_stats 2. */
static void read_device(struct pb *pb, const struct pb_field *device, struct trace_part *part,
                        bool *no_memory)
{
    struct pb_field field;
    const char *text;
    size_t len;
    uint64_t outer;
    uint32_t name = 0, track = NO_ID;
    bool gpu = false, repeats = false;
    if (!pb_enter(pb, device, &outer))
        return;
    while (!*no_memory && pb_next(pb, &field)) {
        struct stats stats;
        if (field.number > 2 || !pb_text(pb, &field, &text, &len))
            continue;
        if (field.number == 1) {
            name = strtab_add(&part->names, text, len);
            *no_memory |= name == STRTAB_FULL;
            gpu = memmem(text, len, "stream:", 7) != NULL;
            /* what the streams have one by one stands there once more */
            repeats = memmem(text, len, "stream:all", 10) != NULL;
            continue;
        }
        part->n_events++;
        if (repeats)
            continue;
        if (!read_stats((struct pb_view){(const unsigned char *)text,
                                         (const unsigned char *)text + len, false},
                        &stats)) {
            part->losses.n_broken++;
            continue;
        }
        if (track == NO_ID)
            track = device_track(part, name, gpu, no_memory);
        if (!*no_memory)
            add_span(part, track, &stats, no_memory);
    }
    pb_leave(pb, outer);
}

int session_read_step(struct pb *pb, const struct pb_field *step, struct trace_part *part)
{
    struct pb_field field;
    uint64_t outer;
    bool no_memory = false;
    if (!pb_enter(pb, step, &outer))
        return 0;
    while (!no_memory && pb_next(pb, &field))
        if (field.number == 1)
            read_device(pb, &field, part, &no_memory);
    pb_leave(pb, outer);
    return no_memory ? -1 : 0;
}

/* ---- tracks and groups ---- */

static uint32_t find_track(struct trace_part *part, struct trace_track track, bool *no_memory)
{
    for (uint32_t t = 0; t < part->tracks.n; t++) {
        const struct trace_track *other = &part->tracks.at[t].track;
        if (other->gpu == track.gpu && other->pid == track.pid && other->id == track.id)
            return t;
    }
    struct part_track fresh = {.track = track};
    if (*no_memory || array_push(&part->tracks, fresh) < 0) {
        *no_memory = true;
        return 0;
    }
    return (uint32_t)part->tracks.n - 1;
}

uint32_t session_lane(struct session_lanes *lanes, struct trace_part *part, uint64_t pid,
                      const struct trace_span *span, bool *no_memory)
{
    uint32_t lane = 0;
    while (lane < lanes->n && lane < SESSION_LANES - 1 && lanes->end_ns[lane] > span->start_ns)
        lane++;
    if (lane == lanes->n) {
        char name[32];
        int len = snprintf(name, sizeof name, "executor %u", lane);
        struct trace_track track = {.pool = true, .pid = pid, .id = lane};
        track.name = part_intern(part, name, (size_t)len, no_memory);
        lanes->tracks[lanes->n++] = find_track(part, track, no_memory);
        lanes->end_ns[lane] = INT64_MIN;
    }
    if (lanes->end_ns[lane] < span->start_ns + span->dur_ns)
        lanes->end_ns[lane] = span->start_ns + span->dur_ns;
    return lanes->tracks[lane];
}

uint32_t session_inbox(struct trace_part *part, uint64_t pid, const char *key, bool *no_memory)
{
    const char *to = strrchr(key, ' '), *from = to;
    char name[KEY_TEXT_MAX + 8];
    while (from && from > key && from[-1] != ' ')
        from--;
    size_t len = from ? graphdef_task(from, (size_t)(to - from)) : 0;
    int n = snprintf(name, sizeof name, "from %.*s", len < KEY_TEXT_MAX ? (int)len : KEY_TEXT_MAX,
                     len ? from : "");
    struct trace_track track = {.pid = pid};
    track.name = part_intern(part, name, (size_t)n, no_memory);
    track.id = (int64_t)SESSION_LANES + track.name;
    return find_track(part, track, no_memory);
}

void session_name_group(struct trace_part *part, const char *key, struct trace_detail *detail,
                        bool *no_memory)
{
    size_t len = strcspn(key, " ");
    char *end;
    detail->process_group = part_intern(part, key, len, no_memory);
    long long instance = strtoll(key + len, &end, 10);
    if (*end == '\0' && end > key + len && instance >= 0)
        detail->comm_sequence = instance;
}

void session_extend(int64_t whole_ns[2], int64_t start_ns, int64_t end_ns)
{
    if (start_ns > whole_ns[1] || end_ns < whole_ns[0])
        return;
    whole_ns[0] = start_ns < whole_ns[0] ? start_ns : whole_ns[0];
    whole_ns[1] = end_ns > whole_ns[1] ? end_ns : whole_ns[1];
}

/* ---- one part a task ---- */

struct task {
    const char *name; /* borrowed from the file's names */
    size_t len;
    int rank; /* as of net_process_*; -1: of no job that trains */
    struct trace_part *part;
    uint32_t *names;              /* string id of the file -> of the task, + 1 */
    struct session_lanes threads; /* how many ran is known, which one did what is not */
};

struct splitter {
    struct trace_part *from;
    struct task *tasks;
    size_t n;
    uint32_t *task_of;    /* string id of a device -> task + 1 */
    struct map receivers; /* key -> name of the node that receives it */
    struct map groups;    /* name of a collective's node -> its key */
    bool no_memory;
};

static uint32_t task_of(struct splitter *s, uint32_t device)
{
    if (s->task_of[device])
        return s->task_of[device] - 1;
    const char *name = strtab_get(&s->from->names, device);
    size_t len = graphdef_task(name, strtab_len(&s->from->names, device)), t = 0;
    while (t < s->n && !(s->tasks[t].len == len && memcmp(s->tasks[t].name, name, len) == 0))
        t++;
    if (t == s->n) {
        struct task *grown = realloc(s->tasks, (s->n + 1) * sizeof *grown);
        if (!grown) {
            s->no_memory = true;
            return 0;
        }
        s->tasks = grown;
        memset(&s->tasks[s->n], 0, sizeof *s->tasks);
        s->tasks[s->n].name = name;
        s->tasks[s->n++].len = len;
    }
    s->task_of[device] = (uint32_t)t + 1;
    return (uint32_t)t;
}

/* "/job:worker/replica:0/task:1": whether its job goes by the word, and its number. */
static bool task_is(const struct task *task, const char *job, int *number)
{
    char prefix[32];
    size_t len = (size_t)snprintf(prefix, sizeof prefix, "/job:%s/", job), at = task->len;
    if (task->len <= len || memcmp(task->name, prefix, len) != 0)
        return false;
    while (at > 0 && task->name[at - 1] >= '0' && task->name[at - 1] <= '9')
        at--;
    *number = task->len - at > 7 ? -1 : atoi(task->name + at);
    return *number >= 0;
}

/* Ranks as TensorFlow counts them: the chief, then the workers. */
static void number_tasks(struct splitter *s)
{
    static const char *const chiefs[] = {"chief", "master"};
    static const char *const workers[] = {"worker", "localhost"};
    int number, first = 0;
    for (size_t t = 0; t < s->n; t++)
        for (size_t w = 0; w < 2; w++)
            first |= task_is(&s->tasks[t], chiefs[w], &number);
    for (size_t t = 0; t < s->n; t++) {
        struct task *task = &s->tasks[t];
        task->rank = -1;
        for (size_t w = 0; w < 2; w++) {
            if (task_is(task, chiefs[w], &number))
                task->rank = 0;
            else if (task_is(task, workers[w], &number))
                task->rank = first + number;
        }
        if (task_is(task, "ps", &number)) {
            char text[32];
            int len = snprintf(text, sizeof text, "ps%d", number);
            task->rank = net_process_in(text, (size_t)len);
        }
    }
}

static uint32_t own_id(struct splitter *s, struct task *task, uint32_t id)
{
    const struct strtab *names = &s->from->names;
    if (task->names[id])
        return task->names[id] - 1;
    uint32_t own = strtab_copy(&task->part->names, names, id);
    if (own == STRTAB_FULL) {
        s->no_memory = true;
        return 0;
    }
    task->names[id] = own + 1;
    return own;
}

static void open_task(struct splitter *s, struct task *task)
{
    task->part = calloc(1, sizeof *task->part);
    task->names = calloc(s->from->names.n + (size_t)1, sizeof *task->names);
    if (!task->part || !task->names || strtab_add(&task->part->names, "", 0) == STRTAB_FULL) {
        s->no_memory = true;
        return;
    }
    task->part->has_rank = task->rank != -1;
    task->part->rank = task->rank;
    task->part->is_session_step = true;
}

static void move_nodes(struct splitter *s, uint32_t *moved)
{
    const struct trace_part *from = s->from;
    for (size_t n = 0; n < from->dfg_nodes.n && !s->no_memory; n++) {
        struct dfg_node node = from->dfg_nodes.at[n];
        struct task *task = &s->tasks[task_of(s, node.device)];
        moved[n] = (uint32_t)task->part->dfg_nodes.n;
        node.name = own_id(s, task, node.name);
        node.type = own_id(s, task, node.type);
        node.device = own_id(s, task, node.device);
        node.key = own_id(s, task, node.key);
        s->no_memory |= array_push(&task->part->dfg_nodes, node) < 0;
    }
}

static void move_inputs(struct splitter *s, const uint32_t *moved)
{
    const struct trace_part *from = s->from;
    for (size_t n = 0; n < from->dfg_nodes.n && !s->no_memory; n++) {
        const struct dfg_node *node = &from->dfg_nodes.at[n];
        uint32_t t = task_of(s, node->device);
        struct trace_part *part = s->tasks[t].part;
        struct dfg_node *own = &part->dfg_nodes.at[moved[n]];
        own->first_input = (uint32_t)part->dfg_inputs.n;
        own->n_inputs = 0;
        for (uint32_t i = 0; i < node->n_inputs && !s->no_memory; i++) {
            struct dfg_input input = from->dfg_inputs.at[node->first_input + i];
            if (task_of(s, from->dfg_nodes.at[input.node].device) != t)
                continue;
            input.node = moved[input.node];
            s->no_memory |= array_push(&part->dfg_inputs, input) < 0;
            own->n_inputs++;
        }
    }
}

static void move_graphs(struct splitter *s)
{
    uint32_t *moved = malloc((s->from->dfg_nodes.n + 1) * sizeof *moved);
    s->no_memory |= !moved;
    if (!s->no_memory)
        move_nodes(s, moved);
    if (!s->no_memory)
        move_inputs(s, moved);
    free(moved);
}

/* Which collective it is: "1 104", group and instance, on all tasks alike. */
static void name_group(struct splitter *s, struct task *task, uint32_t node,
                       struct trace_detail *detail)
{
    uint64_t key;
    if (node && map_get(&s->groups, node, &key))
        session_name_group(task->part, strtab_get(&s->from->names, (uint32_t)key), detail,
                           &s->no_memory);
}

static void move_span(struct splitter *s, const struct trace_span *from)
{
    const struct trace_track *device = &s->from->tracks.at[from->track].track;
    struct task *task = &s->tasks[task_of(s, device->name)];
    struct trace_part *part = task->part;
    struct trace_span span = *from;
    uint64_t name;
    if (span.kind == SPAN_TRANSFER) {
        struct trace_detail detail = s->from->details.at[span.detail];
        if (detail.process_group && map_get(&s->receivers, detail.process_group, &name))
            span.name = (uint32_t)name;
        span.track = session_inbox(part, 0, strtab_get(&s->from->names, detail.process_group),
                                   &s->no_memory);
        detail.process_group = own_id(s, task, detail.process_group);
        span.detail = (uint32_t)part->details.n;
        s->no_memory |= array_push(&part->details, detail) < 0;
    } else if (span.kind == SPAN_COLLECTIVE) {
        struct trace_detail detail = s->from->details.at[span.detail];
        detail.collective = own_id(s, task, detail.collective);
        name_group(s, task, span.name, &detail);
        span.track = session_lane(&task->threads, part, 0, from, &s->no_memory);
        span.detail = (uint32_t)part->details.n;
        s->no_memory |= array_push(&part->details, detail) < 0;
    } else if (device->gpu) {
        struct trace_track track = *device;
        track.name = own_id(s, task, device->name);
        span.track = find_track(part, track, &s->no_memory);
    } else if (strcmp(strtab_get(&s->from->names, span.name), "_SOURCE") == 0) {
        struct trace_track track = {.name = part_intern(part, "session", 7, &s->no_memory),
                                    .id = -1};
        span.track = find_track(part, track, &s->no_memory);
    } else {
        span.track = session_lane(&task->threads, part, 0, from, &s->no_memory);
    }
    span.name = own_id(s, task, span.name);
    s->no_memory = s->no_memory || !part_place_span(part, &span);
}

ORDER_OF_POINTERS(compare_spans, struct trace_span,
                  ASCENDING(start_ns) ?: ASCENDING(dur_ns) ?: ASCENDING(name) ?: ASCENDING(detail));

static void move_spans(struct splitter *s)
{
    const struct trace_part *from = s->from;
    const struct trace_span **spans = malloc((from->n_spans + 1) * sizeof *spans);
    size_t n = 0;
    s->no_memory |= !spans;
    for (const struct span_block *block = from->first_block; block && spans; block = block->next)
        for (uint32_t i = 0; i < block->n; i++)
            spans[n++] = &block->at[i];
    if (n > 1)
        qsort(spans, n, sizeof *spans, compare_spans);
    for (size_t i = 0; i < n && !s->no_memory; i++)
        move_span(s, spans[i]);
    free(spans);
}

static void find_receivers(struct splitter *s)
{
    const struct trace_part *from = s->from;
    for (size_t n = 0; n < from->dfg_nodes.n && !s->no_memory; n++) {
        const struct dfg_node *node = &from->dfg_nodes.at[n];
        const char *type = strtab_get(&from->names, node->type);
        if (node->key && strstr(type, "Recv"))
            s->no_memory |= map_set(&s->receivers, node->key, node->name) < 0;
        if (node->key && node->name && strncmp(type, "Collective", 10) == 0)
            s->no_memory |= map_set(&s->groups, node->name, node->key) < 0;
    }
}

/* When the step was going on in any task, as far as clocks tell, from when it was in the client. */
static void find_whole(struct splitter *s)
{
    const struct task *client = NULL;
    for (size_t t = 0; t < s->n; t++)
        if (s->tasks[t].rank >= 0 && s->tasks[t].part->n_spans > 0 &&
            (!client || s->tasks[t].rank < client->rank))
            client = &s->tasks[t];
    int64_t whole_ns[2] = {client ? client->part->start_ns : 0, client ? client->part->end_ns : 0};
    for (int pass = 0; pass < 2; pass++)
        for (size_t t = 0; t < s->n; t++) {
            struct trace_part *part = s->tasks[t].part;
            if (client && part->n_spans > 0)
                session_extend(whole_ns, part->start_ns, part->end_ns);
            part->whole_start_ns = client ? whole_ns[0] : part->start_ns;
            part->whole_end_ns = client ? whole_ns[1] : part->end_ns;
        }
}

/* The file's part becomes the first task's. */
static void hand_over(struct splitter *s)
{
    struct trace_part whole = *s->from, **end = NULL;
    for (size_t t = 0; t < s->n; t++) {
        struct trace_part *own = s->tasks[t].part;
        s->tasks[t].part = NULL;
        if (!end) {
            own->n_events = whole.n_events;
            own->losses = whole.losses;
            *s->from = *own;
            free(own);
            end = &s->from->next;
        } else {
            *end = own;
            end = &own->next;
        }
    }
    part_fini(&whole);
}

int session_split(struct trace_part *part)
{
    if (part->n_spans == 0) /* a function's graphs */
        return 0;
    struct splitter s = {.from = part};
    s.task_of = calloc(part->names.n + (size_t)1, sizeof *s.task_of);
    s.no_memory = !s.task_of;
    for (size_t t = 0; t < part->tracks.n && !s.no_memory; t++)
        task_of(&s, part->tracks.at[t].track.name);
    for (size_t n = 0; n < part->dfg_nodes.n && !s.no_memory; n++)
        task_of(&s, part->dfg_nodes.at[n].device);
    number_tasks(&s);
    for (size_t t = 0; t < s.n && !s.no_memory; t++)
        open_task(&s, &s.tasks[t]);
    if (!s.no_memory) {
        find_receivers(&s);
        move_graphs(&s);
        move_spans(&s);
    }
    if (!s.no_memory) {
        find_whole(&s);
        hand_over(&s);
    }
    for (size_t t = 0; t < s.n; t++) {
        if (s.tasks[t].part)
            part_fini(s.tasks[t].part);
        free(s.tasks[t].part);
        free(s.tasks[t].names);
    }
    free(s.tasks);
    free(s.task_of);
    map_fini(&s.receivers);
    map_fini(&s.groups);
    return s.no_memory ? -1 : 0;
}
