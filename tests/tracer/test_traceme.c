/* What TensorFlow's recorder would have been given is an XPlane in the end; what does not look like
 * its events is left to it, unread. */
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../unit/case.h"
#include "control.h"
#include "traceme.h"

/* ---- TensorFlow's side ---- */

struct event {
    const char *name;
    size_t name_bytes;
    char in_place[16];
    int64_t start_ns, end_ns;
};
void record(struct event *event) __asm__("_ZN3tsl8profiler15TraceMeRecorder6RecordEONS1_5EventE");

static const int64_t T0 = 1795427924275830805;

static void give(const char *name, int64_t start_ns, int64_t end_ns)
{
    struct event event = {.name_bytes = strlen(name), .start_ns = start_ns, .end_ns = end_ns};
    event.name = name;
    if (event.name_bytes < sizeof event.in_place) {
        memcpy(event.in_place, name, event.name_bytes + 1);
        event.name = event.in_place;
    }
    record(&event);
}

/* ---- reading it again ---- */

struct view {
    const unsigned char *at, *end;
};
struct field {
    unsigned number;
    uint64_t value;
    struct view inside; /* of texts and messages */
};

static uint64_t varint(struct view *v)
{
    uint64_t value = 0;
    for (unsigned shift = 0;; shift += 7) {
        assert_true(v->at < v->end && shift < 64);
        value |= (uint64_t)(*v->at & 0x7f) << shift;
        if (!(*v->at++ & 0x80))
            return value;
    }
}

static bool next(struct view *v, struct field *field)
{
    if (v->at == v->end)
        return false;
    uint64_t key = varint(v);
    *field = (struct field){.number = (unsigned)(key >> 3), .value = varint(v)};
    if ((key & 7) == 2) {
        assert_true(field->value <= (uint64_t)(v->end - v->at));
        field->inside = (struct view){v->at, v->at + field->value};
        v->at += field->value;
    } else {
        assert_int_equal(key & 7, 0);
    }
    return true;
}

/* Number `index` of `number` in `v`. */
static struct field get(struct view v, unsigned number, int index)
{
    struct field field;
    while (next(&v, &field))
        if (field.number == number && index-- == 0)
            return field;
    fail_msg("no field %u", number);
    return field;
}

static int count(struct view v, unsigned number)
{
    struct field field;
    int n = 0;
    while (next(&v, &field))
        n += field.number == number;
    return n;
}

static bool reads(struct view v, const char *text)
{
    return (size_t)(v.end - v.at) == strlen(text) && memcmp(v.at, text, strlen(text)) == 0;
}

/* The name behind an id: of events (4), of statistics (5). */
static struct view meta(struct view plane, unsigned number, uint64_t id)
{
    for (int i = 0;; i++) {
        struct view entry = get(plane, number, i).inside;
        if (get(entry, 1, 0).value == id)
            return get(get(entry, 2, 0).inside, 2, 0).inside;
    }
}

enum { TASK, HOST }; /* the planes */

static unsigned char bytes[1 << 20];
static char path[64];

static struct view stop_and_read(int64_t n_events)
{
    snprintf(path, sizeof path, "/tmp/dpro-traceme-%d.pb", (int)getpid());
    assert_int_equal(dpro_traceme_stop(path), n_events);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    size_t n = fread(bytes, 1, sizeof bytes, file);
    fclose(file);
    unlink(path);
    return (struct view){bytes, bytes + n};
}

static struct view event_of(struct view plane, struct view line, const char *name)
{
    for (int i = 0; i < count(line, 4); i++) {
        struct view event = get(line, 4, i).inside;
        if (reads(meta(plane, 4, get(event, 1, 0).value), name))
            return event;
    }
    fail_msg("no %s", name);
    return line;
}

static struct view stat_of(struct view plane, struct view event, const char *name)
{
    for (int i = 0;; i++) {
        struct view stat = get(event, 4, i).inside;
        if (reads(meta(plane, 5, get(stat, 1, 0).value), name))
            return stat;
    }
}

/* ---- the tests ---- */

TEST(events_become_a_plane)
{
    assert_int_equal(dpro_traceme_start(), 0);
    assert_int_equal(dpro_traceme_start(), -EALREADY);
    give("conv/Conv2D:Conv2D", T0 + 5000, T0 + 7000);
    give("train#step_num=22,_r=1#", T0, T0 + 9000);
    give("conv/Conv2D:Conv2D", T0 + 8000, T0 + 8500);
    give("EagerExecute#eager_op=Add,shape=(float[16,32], "
         "int[2]),text=\"a,b=c\",big=18446744073709551615,"
         "low=-7629098140035252000,none=,huge=99999999999999999999,nothing#",
         T0 + 100, T0 + 100);
    struct view space = stop_and_read(4), host = get(space, 1, HOST).inside;
    assert_true(reads(get(host, 2, 0).inside, "/host:CPU"));
    assert_int_equal(count(host, 3), 1);
    struct view line = get(host, 3, 0).inside;
    assert_int_equal(get(line, 1, 0).value, getpid());
    assert_int_equal(count(line, 4), 4);
    assert_int_equal(count(host, 4), 3);

    /* by their start, and from it */
    static const uint64_t offsets[] = {0, 100, 5000, 8000}, durations[] = {9000, 0, 2000, 500};
    for (int i = 0; i < 4; i++) {
        assert_int_equal(get(get(line, 4, i).inside, 2, 0).value, offsets[i] * 1000);
        assert_int_equal(get(get(line, 4, i).inside, 3, 0).value, durations[i] * 1000);
    }
    struct view task = get(space, 1, TASK).inside;
    assert_true(reads(get(task, 2, 0).inside, "Task Environment"));
    assert_true(
        reads(meta(task, 5, get(get(task, 6, 0).inside, 1, 0).value), "profile_start_time"));
    assert_int_equal(get(get(task, 6, 0).inside, 3, 0).value, T0);

    struct view step = event_of(host, line, "train"), add = event_of(host, line, "EagerExecute");
    assert_int_equal(get(stat_of(host, step, "step_num"), 4, 0).value, 22);
    assert_int_equal(count(step, 4), 2);
    assert_int_equal(count(add, 4), 7);
    assert_true(reads(get(stat_of(host, add, "eager_op"), 5, 0).inside, "Add"));
    assert_true(reads(get(stat_of(host, add, "shape"), 5, 0).inside, "(float[16,32], int[2])"));
    assert_true(reads(get(stat_of(host, add, "text"), 5, 0).inside, "\"a,b=c\""));
    assert_true(get(stat_of(host, add, "big"), 3, 0).value == UINT64_MAX);
    assert_true((int64_t)get(stat_of(host, add, "low"), 4, 0).value == -7629098140035252000);
    assert_true(reads(get(stat_of(host, add, "none"), 5, 0).inside, ""));
    assert_true(reads(get(stat_of(host, add, "huge"), 5, 0).inside, "99999999999999999999"));
}

static void *end_activities(void *unused)
{
    give("", -77, T0 + 4000);
    give("", -80, T0 + 4000); /* its start was before the recording */
    give("other:Thread", T0 + 10, T0 + 20);
    return unused;
}

TEST(what_ends_on_another_thread_is_one_event_of_the_first)
{
    pthread_t thread;
    assert_int_equal(dpro_traceme_start(), 0);
    give("reduce:CollectiveReduceV2#instance_key=5#", T0 + 1000, -77);
    give("never:Ended", T0 + 1000, -78);
    assert_int_equal(pthread_create(&thread, NULL, end_activities, NULL), 0);
    pthread_join(thread, NULL);
    struct view space = stop_and_read(2), host = get(space, 1, HOST).inside;
    assert_int_equal(count(host, 3), 2);
    for (int i = 0; i < 2; i++) {
        struct view line = get(host, 3, i).inside;
        if (get(line, 1, 0).value != (uint64_t)getpid())
            continue;
        assert_int_equal(count(line, 4), 1);
        struct view reduce = event_of(host, line, "reduce:CollectiveReduceV2");
        assert_int_equal(get(reduce, 3, 0).value, 3000 * 1000);
        assert_int_equal(get(stat_of(host, reduce, "instance_key"), 4, 0).value, 5);
    }
}

TEST(names_may_be_anything)
{
    static const char *const names[] = {"",        "#",       "##",       "#=#",
                                        "a#=1#",   "a#k#",    "a#k=(((#", "a#k=)))#",
                                        "a#,,,,#", "a#k=\"#", "no#end",   "\xff\xfe#\x01=\x02#"};
    enum { N = sizeof names / sizeof *names };
    char *large = malloc(60001);
    memset(large, '=', 60000);
    large[60000] = '\0';
    assert_int_equal(dpro_traceme_start(), 0);
    for (size_t i = 0; i < N; i++)
        give(names[i], T0 + (int64_t)i, T0 + (int64_t)i);
    give(large, T0, T0 + 1);
    for (int i = 0; i < 2000; i++) {
        snprintf(large, 60000, "x%d#key%d=%d#", i, i, i);
        give(large, T0 + i, T0 + i + 1);
    }
    free(large);
    struct view space = stop_and_read(N + 1 + 2000), host = get(space, 1, HOST).inside;
    assert_int_equal(count(get(host, 3, 0).inside, 4), N + 1 + 2000);
    assert_int_equal(count(host, 4), 2000 + 5 + 1); /* "", "#", "a", "no#end", bytes; large */
    struct view last = get(get(host, 3, 0).inside, 4, N + 1999 + 1).inside;
    assert_true(reads(meta(host, 4, get(last, 1, 0).value), "x1999"));
    assert_int_equal(get(stat_of(host, last, "key1999"), 4, 0).value, 1999);
}

TEST(what_is_no_event_is_left_alone)
{
    struct event broken[] = {
        {.name = (const char *)0x10, .name_bytes = 1 << 20, .start_ns = T0, .end_ns = T0},
        {.name = NULL, .start_ns = T0, .end_ns = T0},
        {.name = (const char *)0x10, .name_bytes = 3, .start_ns = 5, .end_ns = T0},
        {.name = (const char *)0x10, .name_bytes = 3, .start_ns = -5, .end_ns = -6},
    };
    uint64_t stats[3];
    assert_int_equal(dpro_traceme_start(), 0);
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++)
        record(&broken[i]);
    struct event inside = {.name_bytes = 16, .start_ns = T0, .end_ns = T0};
    inside.name = inside.in_place;
    record(&inside);
    give("one:Op", T0, T0 + 1);
    dpro_traceme_stats(stats);
    assert_int_equal(stats[0], 1);
    assert_int_equal(stats[1], 0);
    assert_int_equal(stats[2], 5);
    stop_and_read(1);
}

TEST(files_that_cannot_be_written)
{
    assert_int_equal(dpro_traceme_stop("/tmp/never"), -EINVAL);
    assert_int_equal(dpro_traceme_start(), 0);
    give("one:Op", T0, T0 + 1);
    assert_int_equal(dpro_traceme_stop("/nowhere/at/all"), -ENOENT);
    assert_int_equal(dpro_traceme_start(), 0);
    give("one:Op", T0, T0 + 1);
    assert_int_equal(dpro_traceme_stop("/dev/full"), -ENOSPC);
    assert_int_equal(dpro_traceme_start(), 0);
    give("one:Op", T0, T0 + 1);
    assert_int_equal(dpro_traceme_stop(NULL), 0);
    give("one:Op", T0, T0 + 1); /* to nobody */
    assert_int_equal(dpro_traceme_start(), 0);
    struct view space = stop_and_read(0);
    assert_int_equal(count(get(space, 1, HOST).inside, 3), 0);
}

static void *give_many(void *unused)
{
    for (int i = 0; i < 20000; i++)
        give("sequential/conv2d/Conv2D:Conv2D", T0 + i, T0 + i + 1);
    return unused;
}

TEST(threads_record_while_it_begins_and_ends)
{
    pthread_t threads[4];
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, give_many, NULL), 0);
    for (int i = 0; i < 20; i++) {
        uint64_t stats[3];
        assert_int_equal(dpro_traceme_start(), 0);
        usleep(500);
        snprintf(path, sizeof path, "/tmp/dpro-traceme-%d.pb", (int)getpid());
        int64_t n = dpro_traceme_stop(path);
        unlink(path);
        dpro_traceme_stats(stats);
        assert_int_equal(n, stats[0]);
    }
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
}
