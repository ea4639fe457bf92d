/* Gives each task of a session's step a part of its own. */

#include "adapters/tensorflow/tf_parts.h"

/* ---- tracks that no profile names threads for ---- */

uint32_t session_track(struct tf_idle_tracks *idle, struct trace_part *part, uint64_t pid,
                       const struct trace_span *span)
{
    uint32_t *track = tf_idle_track(idle, span->start_ns, span_end_ns(span));
    if (*track == NO_ID) {
        struct trace_track fresh = {.pool = true, .pid = pid, .id = track - idle->tracks};
        fresh.name = strtab_format(&part->names, "executor %d", (int)fresh.id);
        *track = tf_track(part, fresh);
    }
    return *track;
}

uint32_t session_inbox(struct trace_part *part, uint64_t pid, const char *key)
{
    const char *to = strrchr(key, ' '), *from = to;
    while (from && from > key && from[-1] != ' ')
        from--;
    size_t len = from ? graphdef_task(from, (size_t)(to - from)) : 0;
    struct trace_track track = {.pid = pid};
    track.name =
        strtab_format(&part->names, "from %.*s", (int)MIN(len, SESSION_KEY_MAX), len ? from : "");
    track.id = (int64_t)TF_IDLE_TRACKS + track.name;
    return tf_track(part, track);
}

void session_name_group(struct trace_part *part, const char *key, struct trace_detail *detail)
{
    size_t len = strcspn(key, " ");
    char *end;
    detail->process_group = part_intern(part, key, len);
    long long instance = strtoll(key + len, &end, 10);
    if (*end == '\0' && end > key + len && instance >= 0)
        detail->comm_sequence = instance;
}

void session_extend(int64_t whole_ns[2], int64_t start_ns, int64_t end_ns)
{
    if (start_ns > whole_ns[1] || end_ns < whole_ns[0])
        return;
    whole_ns[0] = MIN(whole_ns[0], start_ns);
    whole_ns[1] = MAX(whole_ns[1], end_ns);
}

/* ---- one part a task ---- */

struct tasks_task {
    const char *name; /* borrowed from the file's names */
    size_t len;
    int rank; /* as of net_process_*; -1: of no job that trains */
    struct trace_part *part;
    struct tf_idle_tracks threads; /* how many ran is known, which one did what is not */
};

struct task_splitter {
    struct trace_part *from;
    struct arena arena;
    ARRAY(struct tasks_task) tasks;
    uint32_t *task_of;    /* string id of a device -> task + 1 */
    struct map receivers; /* key -> name of the node that receives it */
    struct map groups;    /* name of a collective's node -> its key */
};

static uint32_t task_of(struct task_splitter *s, uint32_t device)
{
    if (s->task_of[device])
        return s->task_of[device] - 1;
    const char *name = strtab_get(&s->from->names, device);
    struct tasks_task fresh = {.name = name,
                               .len = graphdef_task(name, strtab_len(&s->from->names, device))};
    uint32_t t = 0;
    while (t < s->tasks.n &&
           !(s->tasks.at[t].len == fresh.len && memcmp(s->tasks.at[t].name, name, fresh.len) == 0))
        t++;
    if (t == s->tasks.n)
        array_push(&s->tasks, fresh);
    s->task_of[device] = t + 1;
    return t;
}

/* "/job:worker/replica:0/task:1": whether its job goes by the word, and its number. */
static bool task_is(const struct tasks_task *task, const char *job, int *number)
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
static void number_tasks(struct task_splitter *s)
{
    static const char *const chiefs[] = {"chief", "master"};
    static const char *const workers[] = {"worker", "localhost"};
    int number, first = 0;
    for (size_t t = 0; t < s->tasks.n; t++)
        for (size_t w = 0; w < 2; w++)
            first |= task_is(&s->tasks.at[t], chiefs[w], &number);
    EACH (struct tasks_task, task, s->tasks) {
        task->rank = -1;
        for (size_t w = 0; w < 2; w++) {
            if (task_is(task, chiefs[w], &number))
                task->rank = 0;
            else if (task_is(task, workers[w], &number))
                task->rank = first + number;
        }
        if (task_is(task, "ps", &number))
            task->rank = net_process_numbered("ps", number);
    }
}

static uint32_t own_id(const struct task_splitter *s, struct tasks_task *task, uint32_t id)
{
    return strtab_copy(&task->part->names, &s->from->names, id);
}

static void open_task(struct tasks_task *task)
{
    task->part = mem_array(1, sizeof *task->part);
    task->part->process.has_rank = task->rank != -1;
    task->part->process.rank = task->rank;
    task->part->session.is_step = true;
}

/* Nodes go to the tasks of their devices, inputs with those that are of the same task. */
static void move_graphs(struct task_splitter *s)
{
    struct trace_part *from = s->from;
    uint32_t *moved = arena_array(&s->arena, from->dfg_nodes.n, sizeof *moved);
    for (size_t n = 0; n < from->dfg_nodes.n; n++) {
        struct dfg_node node = from->dfg_nodes.at[n];
        struct tasks_task *task = &s->tasks.at[task_of(s, node.device)];
        moved[n] = (uint32_t)task->part->dfg_nodes.n;
        node.name = own_id(s, task, node.name);
        node.type = own_id(s, task, node.type);
        node.device = own_id(s, task, node.device);
        node.key = own_id(s, task, node.key);
        array_push(&task->part->dfg_nodes, node);
    }
    for (size_t n = 0; n < from->dfg_nodes.n; n++) {
        const struct dfg_node *node = &from->dfg_nodes.at[n];
        uint32_t t = task_of(s, node->device);
        struct trace_part *part = s->tasks.at[t].part;
        struct dfg_node *own = &part->dfg_nodes.at[moved[n]];
        own->first_input = (uint32_t)part->dfg_inputs.n;
        for (uint32_t i = 0; i < node->n_inputs; i++) {
            struct dfg_input input = from->dfg_inputs.at[node->first_input + i];
            if (task_of(s, from->dfg_nodes.at[input.node].device) != t)
                continue;
            input.node = moved[input.node];
            array_push(&part->dfg_inputs, input);
        }
        own->n_inputs = (uint32_t)part->dfg_inputs.n - own->first_input;
    }
    array_fini(&from->dfg_nodes);
    array_fini(&from->dfg_inputs);
}

static void move_span(struct task_splitter *s, const struct trace_span *from)
{
    const struct strtab *names = &s->from->names;
    const struct trace_track *device = &s->from->tracks.at[from->track].track;
    struct tasks_task *task = &s->tasks.at[task_of(s, device->name)];
    struct trace_part *part = task->part;
    struct trace_span span = *from;
    struct trace_track track = {.id = -1};
    uint64_t found;
    if (span.kind == SPAN_TRANSFER) {
        struct trace_detail detail = s->from->details.at[span.detail];
        span.name = (uint32_t)map_or(&s->receivers, detail.process_group, span.name);
        span.track = session_inbox(part, 0, strtab_get(names, detail.process_group));
        detail.process_group = own_id(s, task, detail.process_group);
        span.detail = tf_detail(part, &detail);
    } else if (span.kind == SPAN_COLLECTIVE) {
        struct trace_detail detail = s->from->details.at[span.detail];
        detail.collective = own_id(s, task, detail.collective);
        if (span.name && map_get(&s->groups, span.name, &found))
            session_name_group(part, strtab_get(names, (uint32_t)found), &detail);
        span.track = session_track(&task->threads, part, 0, from);
        span.detail = tf_detail(part, &detail);
    } else if (device->gpu) {
        track = *device;
        track.name = own_id(s, task, device->name);
        span.track = tf_track(part, track);
    } else if (strcmp(strtab_get(names, span.name), "_SOURCE") == 0) {
        track.name = part_intern(part, "session", 7);
        span.track = tf_track(part, track);
    } else {
        span.track = session_track(&task->threads, part, 0, from);
    }
    span.name = own_id(s, task, span.name);
    part_place_span(part, &span);
}

ORDER_OF_POINTERS(compare_spans, struct trace_span,
                  ASCENDING(start_ns) ?: ASCENDING(dur_ns) ?: ASCENDING(name) ?: ASCENDING(detail));

static void move_spans(struct task_splitter *s)
{
    const struct trace_span **spans = arena_array(&s->arena, s->from->n_spans, sizeof *spans);
    size_t n = 0;
    FOR_EACH_SPAN (s->from, span)
        spans[n++] = span;
    qsort(spans, n, sizeof *spans, compare_spans);
    for (size_t i = 0; i < n; i++)
        move_span(s, spans[i]);
}

/* Which of the executor's threads took what is not known. */
static void move_allocations(struct task_splitter *s)
{
    for (size_t i = 0; i < s->from->allocations.n; i++) {
        struct trace_allocation allocation = s->from->allocations.at[i];
        uint32_t device = s->from->tracks.at[allocation.track].track.name;
        allocation.track = NO_ID;
        part_add_allocation(s->tasks.at[task_of(s, device)].part, &allocation);
    }
    array_fini(&s->from->allocations);
}

static void find_receivers(struct task_splitter *s)
{
    const struct trace_part *from = s->from;
    EACH (const struct dfg_node, node, from->dfg_nodes) {
        const char *type = strtab_get(&from->names, node->type);
        if (node->key && strstr(type, "Recv"))
            map_set(&s->receivers, node->key, node->name);
        if (node->key && node->name && text_begins(type, "Collective"))
            map_set(&s->groups, node->name, node->key);
    }
}

/* The time of the step in all tasks whose clocks agree with the client's. */
static void find_whole(struct task_splitter *s)
{
    const struct tasks_task *client = NULL;
    for (size_t t = 0; t < s->tasks.n; t++)
        if (s->tasks.at[t].rank >= 0 && s->tasks.at[t].part->n_spans > 0 &&
            (!client || s->tasks.at[t].rank < client->rank))
            client = &s->tasks.at[t];
    int64_t whole_ns[2] = {client ? client->part->start_ns : 0, client ? client->part->end_ns : 0};
    for (int pass = 0; pass < 2; pass++)
        for (size_t t = 0; t < s->tasks.n; t++) {
            struct trace_part *part = s->tasks.at[t].part;
            if (client && part->n_spans > 0)
                session_extend(whole_ns, part->start_ns, part->end_ns);
            part->session.whole_start_ns = client ? whole_ns[0] : part->start_ns;
            part->session.whole_end_ns = client ? whole_ns[1] : part->end_ns;
        }
}

void session_split(struct trace_part *part)
{
    struct task_splitter s = {.from = part};
    if (part->n_spans == 0)
        return; /* they are a function's graphs */
    s.task_of = arena_array(&s.arena, part->names.n, sizeof *s.task_of);
    for (size_t t = 0; t < part->tracks.n; t++)
        task_of(&s, part->tracks.at[t].track.name);
    for (size_t n = 0; n < part->dfg_nodes.n; n++)
        task_of(&s, part->dfg_nodes.at[n].device);
    number_tasks(&s);
    for (size_t t = 0; t < s.tasks.n; t++)
        open_task(&s.tasks.at[t]);
    find_receivers(&s);
    move_allocations(&s);
    move_graphs(&s);
    move_spans(&s);
    find_whole(&s);
    for (size_t t = 0; t + 1 < s.tasks.n; t++)
        s.tasks.at[t].part->next = s.tasks.at[t + 1].part;
    tf_replace_part(part, s.tasks.at[0].part);
    array_fini(&s.tasks);
    arena_fini(&s.arena);
    FREE_ALL(&s.receivers, &s.groups);
}
