/* The timeline for the Perfetto UI, as Chrome trace events. */
#include "graph/graph.h"
#include "report/drawing.h"
#include "report/facts.h"

static void begin_event(struct writer *w, const char *phase, int64_t pid, int64_t tid)
{
    writer_item(w);
    writer_fields(w, TEXT("ph", phase), INT("pid", pid), INT("tid", tid));
}

/* An event of the metadata `what`_`which`, whose argument is `field`. */
static void write_meta_event(struct writer *w, const char *what, const char *which, int64_t pid,
                             int64_t tid, struct writer_field field)
{
    char event[48];
    snprintf(event, sizeof event, "%s_%s", what, which);
    begin_event(w, "M", pid, tid);
    writer_fields(w, TEXT("name", event));
    writer_object_at(w, "args", field);
    writer_close(w, '}');
}

static void write_process(void *w, int64_t pid, const char *name, int64_t place)
{
    write_meta_event(w, "process", "name", pid, 0, TEXT("name", name));
    write_meta_event(w, "process", "sort_index", pid, 0, INT("sort_index", place));
}

static void write_track(void *w, int64_t pid, int64_t tid, const char *name)
{
    write_meta_event(w, "thread", "name", pid, tid, TEXT("name", name));
    write_meta_event(w, "thread", "sort_index", pid, tid, INT("sort_index", tid));
}

static void write_slice(void *writer, const struct drawing_slice *s)
{
    struct writer *w = writer;
    begin_event(w, "X", s->pid, s->tid);
    writer_fields(w, TEXT("name", s->name), TEXT("cat", s->kind), US("ts", s->start_ns),
                  US("dur", s->dur_ns));
    writer_begin(w, "args", '{');
    writer_fields(w, TEXT("kind", s->kind));
    writer_put_fields(w, s->notes, s->n_notes);
    writer_close(w, '}');
    writer_close(w, '}');
    EACH_OF (const struct drawing_arrow, arrow, s->arrows, s->n_arrows) {
        begin_event(w, arrow->is_end ? "f" : "s", s->pid, s->tid);
        writer_fields(w, TEXT("name", arrow->what), TEXT("cat", "flow"), INT("id", arrow->id),
                      US("ts", arrow->at_ns));
        if (arrow->is_end) /* in the slice around it, not in the next one */
            writer_fields(w, TEXT("bp", "e"));
        writer_close(w, '}');
    }
}

/* A counter for all that a rank holds, and one for each category. */
static void write_held(void *writer, int64_t pid, const struct dpro_rank_memory *memory,
                       int64_t zero_ns)
{
    struct writer *w = writer;
    bool used[DPRO_N_MEMORY_CATEGORIES] = {false};
    EACH_OF (const struct dpro_memory_point, point, memory->points, memory->n_points)
        for (int c = 0; c < DPRO_N_MEMORY_CATEGORIES; c++)
            used[c] |= point->by_category[c] > 0;
    EACH_OF (const struct dpro_memory_point, point, memory->points, memory->n_points) {
        uint64_t total = 0;
        for (int c = 0; c < DPRO_N_MEMORY_CATEGORIES; c++)
            total += point->by_category[c];
        writer_item(w);
        writer_fields(w, TEXT("ph", "C"), INT("pid", pid), TEXT("name", "memory"),
                      US("ts", point->at_ns - zero_ns));
        writer_begin(w, "args", '{');
        writer_fields(w, INT("total", total));
        for (int c = 0; c < DPRO_N_MEMORY_CATEGORIES; c++)
            if (used[c])
                writer_fields(w, INT(dpro_memory_category_name(c), point->by_category[c]));
        writer_close(w, '}');
        writer_close(w, '}');
    }
}

void timeline_write(struct writer *w, const void *drawn)
{
    const struct report_facts *f = &((const struct drawn_facts *)drawn)->facts;
    const struct slices *slices = &((const struct drawn_facts *)drawn)->slices;
    struct drawing_form form = {w, write_process, write_track, write_slice, write_held};
    writer_open(w, '{');
    writer_fields(w, TEXT("displayTimeUnit", "ms"));
    writer_object_at(w, "otherData", TEXT("dpro", dpro_version()),
                     TEXT("verdict", f->verdict[0].text),
                     US("iteration_start_us", -drawing_zero_ns(slices, f->replay)));
    writer_begin(w, "traceEvents", '[');
    drawing_tell(f->g, f->replay, slices, &form);
    writer_close(w, ']');
    writer_close(w, '}');
    writer_text(w, "\n");
}
