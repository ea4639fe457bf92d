/* Each file is recognised and read, several at a time. */

#include "base/parallel.h"
#include "ingest/load.h"

enum {
    RECOGNISE_BYTES = 1 << 20,
    RECOGNISE_CHUNK = 1 << 14,
    REPORT_BYTES = 1 << 20,
    MOST_THREADS = 16, /* of one file, if nobody asks for more */
    MOST_ASKED = 256
};

struct files_reading {
    struct trace_build *build;
    uint64_t bytes_done; /* of all files */
    uint64_t bytes_total;
    int process;
    pthread_mutex_t lock;
    struct span_block *room; /* for spans; a list */
};

struct file_reading {
    struct files_reading *all;
    uint64_t reported;
};

static void report_chunk(void *arg, struct input *in)
{
    struct file_reading *reading = arg;
    struct files_reading *all = reading->all;
    uint64_t fresh = in->read_bytes - reading->reported;
    if (in->read_bytes < reading->reported || (fresh < REPORT_BYTES && !in->ended))
        return; /* or it is read again */
    reading->reported = in->read_bytes;
    log_progress_more(&all->build->options->sink, "read", "bytes", &all->bytes_done, fresh,
                      all->bytes_total);
}

static int open_source(struct input *in, struct source *source)
{
    if (!source->copy)
        return input_open(in, source->path, &source->err);
    input_open_memory(in, source->copy, source->n_copy, source->path);
    return 0;
}

static int recognise_source(const struct reader_table *table, struct source *source)
{
    struct input in;
    struct json js;
    if (open_source(&in, source) < 0)
        return source->err.code;
    json_init(&js, &in, RECOGNISE_CHUNK, &source->err);
    js.limit = RECOGNISE_BYTES;
    source->reader = reader_recognise(table, &js, &source->other);
    source->other = source->other ?: other_format_by_name(source->path);
    source->damage = in.damage;
    if (!source->reader && js.fail == JSON_ENDED && in.ended)
        source->fail = js.fail;
    source->json_bytes = in.out_bytes;
    int rc = js.fail == JSON_IO ? source->err.code : 0;
    json_fini(&js);
    input_close(&in);
    return rc;
}

static int threads_for(const struct files_reading *all, const struct source *source)
{
    int threads = MIN(all->build->options->threads, MOST_ASKED);
    if (threads <= 0)
        threads = parallel_cores(MOST_THREADS);
    double share = all->bytes_total ? (double)source->size_bytes / (double)all->bytes_total : 0;
    return (int)(share * threads + 0.5);
}

static int read_json(struct source *source, struct input *in, struct file_reading *reading)
{
    struct json js;
    json_init(&js, in, 0, &source->err);
    js.on_chunk = report_chunk;
    js.arg = reading;
    js.threads = threads_for(reading->all, source);
    int rc = source->reader->read_json(&js, &source->part, &source->err);
    source->fail = js.fail;
    source->fail_offset = json_offset(&js);
    if (rc == 0 && js.fail == JSON_IO && source->part.n_events == 0)
        rc = source->err.code;
    json_fini(&js);
    return rc;
}

static int read_bytes(struct source *source, struct input *in, struct file_reading *reading)
{
    struct bytes bytes;
    const struct trace_part *part = &source->part;
    bytes_init(&bytes, in, 0, PART_RECORD_MAX, &source->err);
    bytes.on_chunk = report_chunk;
    bytes.arg = reading;
    int rc = source->reader->read_bytes(&bytes, &source->part, &source->err);
    source->fail = part->damage.cut ? JSON_ENDED : part->damage.broken ? JSON_BAD : JSON_OK;
    source->fail_offset = part->damage.broken ? part->damage.offset : bytes_offset(&bytes);
    if (rc == 0 && bytes.rc < 0 && part->n_events == 0)
        rc = bytes.rc;
    bytes_fini(&bytes);
    return rc;
}

static int read_source(struct files_reading *all, struct source *source)
{
    struct input in;
    struct file_reading reading = {.all = all};
    int rc = recognise_source(all->build->table, source);
    if (rc < 0 || !source->reader)
        return rc;
    rc = open_source(&in, source);
    if (rc < 0)
        return rc;
    rc = source->reader->read_json ? read_json(source, &in, &reading)
                                   : read_bytes(source, &in, &reading);
    source->damage = in.damage;
    source->size_bytes = in.size_bytes;
    source->read_bytes = in.read_bytes;
    source->json_bytes = in.out_bytes;
    input_close(&in);
    return rc;
}

static bool is_due(const struct source *source, int process)
{
    return source->rc == 0 &&
           (source->process == process || (source->is_copied && process == PROCESS_NONE));
}

/* What one file's spans leave of their block is for the next file's. */
static struct span_block *take_room(struct files_reading *all)
{
    pthread_mutex_lock(&all->lock);
    struct span_block *room = all->room;
    if (room) {
        all->room = room->next;
        room->next = NULL;
    }
    pthread_mutex_unlock(&all->lock);
    return room;
}

static void give_room(struct files_reading *all, struct span_block *room)
{
    pthread_mutex_lock(&all->lock);
    if (room) {
        room->next = all->room;
        all->room = room;
    }
    pthread_mutex_unlock(&all->lock);
}

static void read_item(void *arg, size_t item)
{
    struct files_reading *all = arg;
    struct source *source = &all->build->list.at[item];
    if (!is_due(source, all->process))
        return;
    source->part.first_block = source->part.last_block = take_room(all);
    source->rc = read_source(all, source);
    give_room(all, part_take_rest(&source->part));
}

/* A file of several processes becomes one source for each. */
static void split_sources(struct source_list *list)
{
    for (size_t i = 0; i < list->n; i++) {
        struct source *source = &list->at[i], fresh = *source;
        struct trace_part *next = source->part.next;
        if (source->part.session.is_step && !source->part.process.has_rank)
            source->reader = NULL; /* an evaluator, a client: no part of the training */
        if (!next)
            continue;
        fresh.path = mem_copy_string(source->path);
        fresh.part = *next;
        fresh.fail = JSON_OK; /* said once, of the file */
        fresh.damage = NULL;
        source->part.next = NULL;
        mem_free(next);
        array_push(list, fresh);
    }
}

void sources_read_of(struct trace_build *build, int process)
{
    struct files_reading all = {
        .build = build, .process = process, .lock = PTHREAD_MUTEX_INITIALIZER};
    EACH (const struct source, source, build->list)
        all.bytes_total += is_due(source, process) ? source->size_bytes : 0;
    parallel_for(build->list.n, build->options->threads, read_item, &all);
    for (struct span_block *room; (room = take_room(&all)) != NULL;)
        span_block_free(room);
}

void sources_read(struct trace_build *build)
{
    sources_read_of(build, 0);
    if (build->processes) {
        bool shared = shared_hear_files(build);
        sources_read_of(build, PROCESS_NONE);
        EACH (struct source, source, build->list) {
            source->process = shared ? source->process : 0;
            mem_free(source->copy);
            source->copy = NULL;
        }
    }
    sources_drop_copies(build);
    split_sources(&build->list);
}
