/* Rows of a profile whose category dpro does not know, or that have none: an accelerator's, or a
 * CPU thread's.
 *
 * What a row is shows in the whole file only, so its spans wait on a track of their own. A row is a
 * CPU thread's where known spans of the CPU lie on the thread, or its names say so; one without a
 * category then annotates, one with a category is left out. Any other row is a device's: its spans
 * are kernels, copies or collectives by their names. Rows that sum up others, or show the parts of
 * collectives, are left out with a word. */

#include "ingest/pytorch/kineto_events.h"
#include "ingest/pytorch/kineto_words.h"

enum { LEAST_THREAD = 100 }; /* numbers of streams are below */

enum name_sort { SORT_NONE, SORT_WORK, SORT_COPY, SORT_SET, SORT_MARK, SORT_IDLE, SORT_MEETING };

/* What is known of a process. */
enum { HAS_CPU_SPANS = 1, IS_SAID_CPU = 2, SUMS_UP = 4, COMMUNICATES = 8 };

struct finding {
    struct kineto_events *to;
    struct map processes; /* pid -> bits */
    struct map names;     /* of processes: pid -> string id */
    struct map threads;   /* pid and tid of known spans of the CPU */
    struct map ids;       /* tid of these */
    struct map labels;    /* pid and tid -> string id */
    uint8_t *sorts;       /* enum name_sort by name */
};

/* ---- what names say ---- */

static bool says_any(const char *text, const char *const *words)
{
    while (*words && !strcasestr(text, *words))
        words++;
    return *words != NULL;
}

static enum name_sort sort_of(const char *name)
{
    static const char *const waits[] = {"event_wait", "notify_wait", NULL};
    char lower[256];
    size_t len = 0;
    for (; name[len] && len + 1 < sizeof lower; len++)
        lower[len] = (char)tolower((unsigned char)name[len]);
    lower[len] = '\0';
    return text_n_is(lower, len, "free") || text_n_is(lower, len, "idle") ? SORT_IDLE
           : text_begins(name, "ProfilerStep#") || says_any(lower, waits) ? SORT_MARK
           : strstr(lower, "memcpy")                                      ? SORT_COPY
           : strstr(lower, "memset")                                      ? SORT_SET
           : kineto_is_communication(lower, len)                          ? SORT_MEETING
                                                                          : SORT_WORK;
}

static enum name_sort sort_of_span(struct finding *f, const struct trace_span *span)
{
    uint8_t *sort = &f->sorts[span->name];
    if (*sort == SORT_NONE)
        *sort = (uint8_t)sort_of(strtab_get(&f->to->part->names, span->name));
    return (enum name_sort) * sort;
}

/* ---- what the file says ---- */

static uint64_t thread_key(uint64_t pid, int64_t id)
{
    return map_mix(map_mix(pid + 1) ^ (uint64_t)id) | 1;
}

static void add_bits(struct finding *f, uint64_t pid, uint64_t bits)
{
    map_set(&f->processes, map_key(pid), map_or(&f->processes, map_key(pid), 0) | bits);
}

static void look_at_processes(struct finding *f)
{
    static const char *const sums[] = {"analysis", "overlap", "summary", NULL};
    static const char *const meets[] = {"communication", "nccl", "hccl", NULL};
    const struct trace_part *part = f->to->part;
    EACH (const struct part_track, at, part->tracks)
        if (!at->row && !at->track.gpu && at->n_spans > 0) {
            add_bits(f, at->track.pid, HAS_CPU_SPANS);
            map_set(&f->threads, thread_key(at->track.pid, at->track.id), 1);
            if (at->track.id >= LEAST_THREAD)
                map_set(&f->ids, map_key((uint64_t)at->track.id), 1);
        }
    EACH (const struct part_label, label, part->labels)
        map_set(&f->labels, thread_key(label->pid, label->id), label->name);
    EACH (const struct part_label, label, f->to->more->processes) {
        const char *text = strtab_get(&part->names, label->name);
        if (label->id)
            map_set(&f->names, map_key(label->pid), label->name);
        else if (strcasestr(text, "CPU"))
            add_bits(f, label->pid, IS_SAID_CPU);
        if (says_any(text, sums))
            add_bits(f, label->pid, SUMS_UP);
        else if (says_any(text, meets))
            add_bits(f, label->pid, COMMUNICATES);
    }
}

static void look_at_spans(struct finding *f)
{
    struct trace_part *part = f->to->part;
    for (struct span_block *block = part->first_block; block; block = block->next)
        EACH_OF (const struct trace_span, span, block->at, block->n) {
            const struct part_track *at = &part->tracks.at[span->track];
            if (!at->row)
                continue;
            enum name_sort sort = sort_of_span(f, span);
            f->to->more->rows.at[at->row - 1].meets |= sort == SORT_MEETING;
            if (sort == SORT_IDLE)
                add_bits(f, at->track.pid, SUMS_UP);
        }
}

static enum row_use use_of(const struct finding *f, const struct kineto_row *row)
{
    static const char *const of_cpu[] = {"cpu",    "host",  "python",   "thread",     "runtime",
                                         "driver", "queue", "overhead", "annotation", NULL};
    const struct strtab *names = &f->to->part->names;
    const struct trace_track *track = &f->to->part->tracks.at[row->track].track;
    uint64_t process = map_or(&f->processes, map_key(track->pid), 0);
    uint64_t label = map_or(&f->labels, thread_key(track->pid, track->id), 0);
    const char *text = strtab_get(names, (uint32_t)label);
    const char *category = strtab_get(names, row->category);
    bool on_thread = map_get(&f->threads, thread_key(track->pid, track->id), NULL);
    if (!row->on_stream && !strcasestr(text, "stream")) {
        if (on_thread)
            return row->category ? ROW_DROPPED : ROW_ANNOTATES;
        if (process & IS_SAID_CPU || strcasestr(text, "thread") || says_any(category, of_cpu) ||
            (!row->category &&
             (process & HAS_CPU_SPANS || map_get(&f->ids, map_key((uint64_t)track->id), NULL))))
            return ROW_DROPPED;
    }
    return process & SUMS_UP                       ? ROW_SUMS_UP
           : process & COMMUNICATES && !row->meets ? ROW_IS_PART
                                                   : ROW_OF_DEVICE;
}

/* ---- what becomes of the spans ---- */

/* Whether it is kept. */
static bool settle_span(struct finding *f, struct trace_span *span)
{
    static const uint8_t kinds[] = {
        [SORT_WORK] = SPAN_KERNEL,         [SORT_COPY] = SPAN_MEMCPY,
        [SORT_SET] = SPAN_MEMSET,          [SORT_MARK] = SPAN_GPU_ANNOTATION,
        [SORT_IDLE] = SPAN_GPU_ANNOTATION, [SORT_MEETING] = SPAN_KERNEL};
    const struct part_track *at = &f->to->part->tracks.at[span->track];
    if (!at->row)
        return true;
    struct kineto_row *row = &f->to->more->rows.at[at->row - 1];
    struct trace_track track = at->track;
    row->n++;
    if (row->use != ROW_OF_DEVICE && row->use != ROW_ANNOTATES)
        return false;
    bool device = row->use == ROW_OF_DEVICE;
    span->kind = device ? kinds[sort_of_span(f, span)] : SPAN_ANNOTATION;
    span->track = kineto_find_track(f->to, device, track.pid, track.id);
    return true;
}

static void settle_spans(struct finding *f)
{
    struct trace_part *part = f->to->part;
    part->n_spans = 0;
    EACH (struct part_track, at, part->tracks)
        at->n_spans = 0;
    for (struct span_block *block = part->first_block; block; block = block->next) {
        uint32_t n = 0;
        for (uint32_t i = 0; i < block->n; i++) {
            if (!settle_span(f, &block->at[i]))
                continue;
            block->at[n] = block->at[i];
            part->n_spans++;
            part_count_span(part, &block->at[n++]);
        }
        block->n = n;
    }
}

/* ---- what is said ---- */

enum { MOST_TEXT = 160 };

static const char *kind_of_row(const struct finding *f, const struct kineto_row *row)
{
    const struct trace_track *track = &f->to->part->tracks.at[row->track].track;
    uint64_t name = row->category ?: map_or(&f->names, map_key(track->pid), 0)
                        ?: map_or(&f->labels, thread_key(track->pid, track->id), 0);
    return name ? strtab_get(&f->to->part->names, (uint32_t)name) : "no category";
}

/* The spans of rows that are read, or left out: '40 of "Ascend Hardware" and others'. */
static void list_rows(const struct finding *f, bool read, char text[MOST_TEXT])
{
    const char *first = NULL;
    bool others = false;
    uint64_t n = 0;
    EACH (const struct kineto_row, row, f->to->more->rows) {
        if (read ? row->use != ROW_OF_DEVICE : row->use < ROW_SUMS_UP)
            continue;
        first = first ?: kind_of_row(f, row);
        others |= strcmp(kind_of_row(f, row), first) != 0;
        n += row->n;
    }
    snprintf(text, first ? MOST_TEXT : 1, "%" PRIu64 " of \"%.80s\"%s", n, first ?: "",
             others ? " and others" : "");
}

static void note_rows(const struct finding *f)
{
    struct trace_part *part = f->to->part;
    static const char read_as[] =
        " are read as a device's ops, of communication where their names tell; where the file does "
        "not say which op launched one, it is the last op before it";
    char read[MOST_TEXT], left[MOST_TEXT];
    list_rows(f, true, read);
    list_rows(f, false, left);
    f->to->more->has_devices = *read != '\0';
    if (*read || *left)
        part->note = arena_format(
            &part->arena, "rows of kinds that dpro does not know: %s%s%s%s%s", read,
            *read ? read_as : "", *read && *left ? "; " : "", left,
            *left ? " are left out, which sum up other rows or are parts of collectives" : "");
}

void kineto_settle_rows(struct kineto_events *to)
{
    struct finding f = {.to = to};
    bool known = false;
    if (to->more->rows.n == 0)
        return;
    f.sorts = mem_array(to->part->names.n + (size_t)1, sizeof *f.sorts);
    EACH (const struct part_track, at, to->part->tracks)
        known |= !at->row && at->n_spans > 0;
    look_at_processes(&f);
    look_at_spans(&f);
    EACH (struct kineto_row, row, to->more->rows)
        row->use = known ? use_of(&f, row) : ROW_DROPPED; /* else it is nobody's profile */
    settle_spans(&f);
    note_rows(&f);
    FREE_ALL(&f.processes, &f.names, &f.threads, &f.ids, &f.labels, &f.sorts);
}
