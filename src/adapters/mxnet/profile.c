/* The profile of MXNet 1.x (mx.profiler), of a worker or of a server.
 *
 * It is a Chrome trace in whole microseconds. What the engine ran comes twice, as a B/E pair of the
 * device and as an async pair of the domain: the former is taken. B and E of one operation stand
 * next to each other, whatever else ran at the time, so that they pair by thread and name and do
 * not nest. Calls of the C interface are async pairs whose id is the thread. What stands between
 * the brackets of two calls on a thread is the program's own time. */

#include "ingest/load.h"
#include "ingest/rank_job.h"
#include "ingest/readers.h"

enum { MAX_OPEN = 4096, MAX_TRACKS = 1 << 20 };

enum category { CATEGORY_OTHER, CATEGORY_OPERATOR, CATEGORY_CALL };

struct profile_event {
    uint64_t thread;
    struct part_time time;
    uint32_t name;
    uint8_t category;
    char phase;
};

struct mxnet {
    struct trace_part *part;
    struct map tracks;                /* thread -> index + 1 */
    uint32_t n_engine_threads;        /* named so far */
    ARRAY(struct profile_event) open; /* begun */
};

/* A push, a pull, or both of a key: it lasts until the servers have answered. */
static bool is_exchange(const char *name)
{
    return text_begins(name, "KVStoreDist") && (strstr(name, "Push") || strstr(name, "Pull"));
}

static void read_category(struct json_reader *r, void *out, size_t offset UNUSED)
{
    const char *text;
    size_t len;
    if (json_scalar(r->js, &text, &len))
        ((struct profile_event *)out)->category = json_is(text, len, "operator") ? CATEGORY_OPERATOR
                                                  : json_is(text, len, "MXNET_C_API")
                                                      ? CATEGORY_CALL
                                                      : CATEGORY_OTHER;
}

static const struct json_member event_members[] = {
    MEMBER_BY("ph", part_read_phase, offsetof(struct profile_event, phase)),
    MEMBER_BY("ts", part_read_time, offsetof(struct profile_event, time)),
    MEMBER(struct profile_event, "name", TEXT, name),
    MEMBER_BY("cat", read_category, 0),
    MEMBER(struct profile_event, "tid", SIZE, thread),
    {NULL}};

/* Threads are numbered by a hash; which device it serves changes with the operation, a pinned
 * memory's counting as another one. */
static uint32_t track_of(struct mxnet *m, const struct profile_event *ev)
{
    struct trace_part *part = m->part;
    uint64_t key = map_mix(ev->thread) | 1, index;
    uint32_t name;
    if (map_get(&m->tracks, key, &index))
        return (uint32_t)index;
    struct part_track fresh = {.track = {.id = (int64_t)(ev->thread & INT64_MAX)}};
    if (ev->category == CATEGORY_CALL)
        name = strtab_format(&part->names, "thread %zu of the program", part->tracks.n + 1);
    else
        name = strtab_format(&part->names, "engine thread %u", ++m->n_engine_threads);
    if (part->tracks.n >= MAX_TRACKS)
        mem_fail();
    array_add(&part->labels, 0, fresh.track.id, name);
    array_push(&part->tracks, fresh);
    map_set(&m->tracks, key, part->tracks.n - 1);
    return (uint32_t)part->tracks.n - 1;
}

static void add_span(struct mxnet *m, const struct profile_event *begin,
                     const struct profile_event *end)
{
    struct trace_part *part = m->part;
    struct part_time dur = end->time;
    if (__builtin_sub_overflow(end->time.ns, begin->time.ns, &dur.ns))
        dur.is = JSON_SATURATED;
    if (!part_times_fit(part, begin->time, dur))
        return;
    struct trace_span span =
        span_at(SPAN_CPU_OP, begin->name, track_of(m, begin), begin->time.ns, end->time.ns);
    if (is_exchange(strtab_get(&part->names, begin->name))) {
        /* what it carries is found later, from the messages */
        span.kind = SPAN_ANNOTATION;
        span.detail = (uint32_t)part->details.n;
        array_add(&part->details, DETAIL_UNKNOWN);
    }
    part_place_span(part, &span);
}

static void close_event(struct mxnet *m, const struct profile_event *end)
{
    for (size_t i = m->open.n; i-- > 0;) {
        const struct profile_event begin = m->open.at[i];
        if (begin.thread != end->thread || begin.category != end->category ||
            (end->name && begin.name != end->name))
            continue;
        memmove(&m->open.at[i], &m->open.at[i + 1], (m->open.n - i - 1) * sizeof begin);
        m->open.n--;
        add_span(m, &begin, end);
        return;
    }
    m->part->losses.n_unpaired++;
}

static void take_event(void *reader, const void *event)
{
    struct mxnet *m = reader;
    const struct profile_event *ev = event;
    char begin = ev->category == CATEGORY_CALL ? 'b' : 'B', end = begin == 'b' ? 'e' : 'E';
    m->part->n_events++;
    if (ev->category != CATEGORY_OTHER && ev->phase == begin && m->open.n < MAX_OPEN)
        array_push(&m->open, *ev);
    else if (ev->category != CATEGORY_OTHER && ev->phase == begin)
        m->part->losses.n_unpaired++;
    else if (ev->category != CATEGORY_OTHER && ev->phase == end)
        close_event(m, ev);
}

static int read_mxnet(struct json *js, struct trace_part *part, struct dpro_error *err UNUSED)
{
    struct mxnet m = {.part = part};
    struct profile_event event = {.phase = 0};
    part->process.may_be_server = true;
    part_read_events(part, js,
                     &(struct part_events){event_members, &event, sizeof event, .take = take_event},
                     &m);
    part->losses.n_unpaired += m.open.n;
    FREE_ALL(&m.tracks, &m.open);
    return 0;
}

/* The first events name its devices. */
static bool profile_recognise(const struct head *head)
{
    const char *label = head->piece == HEAD_EVENT ? head_field(head, "args.name") : NULL;
    return label && strcmp(label, "cpu/0") == 0;
}

/* MXNet writes the profile of server k to rank<k>_<name>, which says rank k: that of the worker
 * has exchanges with servers in it. */
static void tell_servers(struct trace_build *build)
{
    EACH (struct source, source, build->list) {
        bool serves = source->reader == &mxnet_reader && source_usable(source) &&
                      source->rank >= 0 && source->part.details.n == 0 &&
                      text_begins(path_name(source->path), "rank");
        for (size_t k = 0; k < build->list.n && serves; k++) {
            const struct source *other = &build->list.at[k];
            if (other->reader != &mxnet_reader || other->rank != source->rank ||
                other->part.details.n == 0)
                continue;
            source->rank = net_process_numbered("server", source->rank);
            serves = false;
        }
    }
}

const struct reader mxnet_reader = {
    .name = "mxnet",
    .word = "profile",
    .encoding = "JSON",
    .framework = "mxnet",
    .flags = READER_VIEWED,
    .missing = {"MXNet spans", "was the profiler active?", NO_SPANS},
    .recognise = profile_recognise,
    .read_json = read_mxnet,
    .correct_ranks = tell_servers,
    .match_graph = mxnet_match_types,
};
