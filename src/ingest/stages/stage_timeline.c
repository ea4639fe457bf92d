/* Timelines of pipeline stages, as Chrome trace JSON or as CSV; see doc/formats/stage-timeline.md.
 *
 * In JSON a process is a data-parallel rank, and names of threads say of which stage they are. In
 * CSV columns may come in any order, and ones that we don't know are passed over. */
#include "ingest/readers.h"
#include "ingest/stages/stage_table.h"

enum { MOST_AT = 1 << 16, MOST_PLACES = 1 << 22 };

/* A thread of the JSON, or a rank of the CSV: whose worker it is shows at the end. */
struct stage_source {
    uint64_t replica, stage, tensor_rank;
    int64_t number;
    bool known; /* of which stage it is */
};

/* What a row says. */
enum stage_column {
    COLUMN_OTHER,
    COLUMN_TYPE,
    COLUMN_RANK,
    COLUMN_REPLICA,
    COLUMN_STAGE,
    COLUMN_START,
    COLUMN_DURATION,
    COLUMN_STEP,
    COLUMN_SEQUENCE,
    COLUMN_CHUNK,
    COLUMN_MICRO_BATCH,
    N_STAGE_COLUMNS
};

/* Names in CSV, compared without case, '_' and '-'. */
static const char *const column_names[N_STAGE_COLUMNS][4] = {
    [COLUMN_TYPE] = {"optype", "op"},
    [COLUMN_RANK] = {"rank"},
    [COLUMN_REPLICA] = {"dprank", "dp"},
    [COLUMN_STAGE] = {"stage", "pprank", "pp"},
    [COLUMN_START] = {"startts", "start", "ts"},
    [COLUMN_DURATION] = {"duration", "dur"},
    [COLUMN_STEP] = {"step", "iteration"},
    [COLUMN_SEQUENCE] = {"seqid", "sequence"},
    [COLUMN_CHUNK] = {"mc", "modelchunk", "chunk"},
    [COLUMN_MICRO_BATCH] = {"mbid", "microbatch"},
};

struct stage_row {
    int64_t value[N_STAGE_COLUMNS];
    enum json_value has[N_STAGE_COLUMNS];
    enum stage_op_type type;
    /* an event of JSON that names a thread, and what it names it: string id */
    bool names_thread;
    uint32_t label;
};

struct stage_reader {
    struct trace_part *part;
    struct stage_table table;
    struct map steps, places;
    ARRAY(struct stage_source) sources; /* whom an op is of, until workers are known */
};

/* `scale`: decimals of a time down to nanoseconds. */
static void put_field(struct stage_row *row, enum stage_column column, const char *text, size_t len,
                      int scale)
{
    bool is_time = column == COLUMN_START || column == COLUMN_DURATION;
    if (column == COLUMN_TYPE) {
        row->type = stage_op_find(text, len);
        row->names_thread = json_is(text, len, "thread_name");
    } else if (column != COLUMN_OTHER) {
        row->has[column] = json_decimal(text, len, is_time ? scale : 0, &row->value[column]);
    }
}

/* A count up to `most`; `unknown`: there is none, or more. */
static int64_t count_of(const struct stage_row *row, enum stage_column column, int64_t most,
                        int64_t unknown)
{
    bool counts = row->has[column] != JSON_NO_VALUE && row->value[column] >= 0;
    return counts && row->value[column] <= most ? row->value[column] : unknown;
}

static uint32_t source_at(struct stage_reader *r, const struct stage_row *row)
{
    uint64_t replica = (uint64_t)count_of(row, COLUMN_REPLICA, INT64_MAX, 0);
    uint64_t stage = (uint64_t)count_of(row, COLUMN_STAGE, INT64_MAX, 0);
    int64_t number = count_of(row, COLUMN_RANK, INT64_MAX, 0);
    uint64_t key = map_mix(map_mix(replica + 1) + (uint64_t)number) + stage;
    size_t at = (size_t)map_number(&r->places, map_mix(key) | 1);
    if (at == r->sources.n)
        array_add(&r->sources, .replica = replica, .stage = stage, .number = number);
    return (uint32_t)at;
}

static void add_row(struct stage_reader *r, const struct stage_row *row, uint32_t source)
{
    int64_t start_ns = row->value[COLUMN_START], dur_ns = row->value[COLUMN_DURATION];
    int64_t number = count_of(row, COLUMN_STEP, INT32_MAX, -1);
    if (!part_times_fit(r->part, (struct part_time){row->has[COLUMN_START], start_ns},
                        (struct part_time){row->has[COLUMN_DURATION], dur_ns}))
        return;
    if (number < 0) {
        r->part->losses.n_broken_records++;
    } else {
        size_t step = (size_t)map_number(&r->steps, map_key((uint64_t)number));
        if (step == r->table.steps.n)
            array_push(&r->table.steps, number);
        array_add(&r->table.ops, .start_ns = start_ns, .dur_ns = dur_ns, .worker = source,
                  .step = (uint32_t)step,
                  .sequence = (uint32_t)count_of(row, COLUMN_SEQUENCE, UINT32_MAX, UINT32_MAX),
                  .micro_batch = (int32_t)count_of(row, COLUMN_MICRO_BATCH, INT32_MAX, -1),
                  .chunk = (uint16_t)count_of(row, COLUMN_CHUNK, MOST_AT - 1, 0),
                  .type = (uint8_t)row->type);
    }
}

/* ---- workers ---- */

ORDER_OF_INDICES(by_worker, struct stage_source,
                 -ASCENDING(known) ?: ASCENDING(replica) ?: ASCENDING(stage)
                     ?: ASCENDING(tensor_rank) ?: ASCENDING(number));

/* Of the tensor-parallel ranks of a worker the first stands for all: what the others did is left
 * out, and so is that of which no stage is known. Returns how many workers there are at most. */
static uint64_t find_workers(struct stage_reader *r)
{
    struct stage_table *table = &r->table;
    SCRATCH uint32_t *worker = mem_alloc((r->sources.n + 1) * sizeof *worker);
    SCRATCH uint32_t *order = sorted_indices(r->sources.n, r->sources.at, by_worker);
    const struct stage_source *last = NULL;
    uint64_t n_replicas = 0, n_stages = 0;
    size_t kept = 0;
    for (size_t i = 0; i < r->sources.n; i++) {
        const struct stage_source *it = &r->sources.at[order[i]];
        bool valid = it->known && it->replica < MOST_AT && it->stage < MOST_AT;
        bool same = last && last->replica == it->replica && last->stage == it->stage;
        worker[order[i]] = UINT32_MAX;
        if (!valid || (same && last->tensor_rank != it->tensor_rank))
            continue;
        if (!same) {
            last = it;
            array_add(&table->workers, it->number, (uint32_t)it->replica, (uint32_t)it->stage);
            n_replicas = MAX(n_replicas, it->replica + 1);
            n_stages = MAX(n_stages, it->stage + 1);
        }
        worker[order[i]] = (uint32_t)table->workers.n - 1;
    }
    EACH (const struct stage_op, op, table->ops)
        if (worker[op->worker] != UINT32_MAX) {
            table->ops.at[kept] = *op;
            table->ops.at[kept++].worker = worker[op->worker];
        }
    r->part->losses.n_broken_records += table->ops.n - kept;
    table->ops.n = kept;
    return n_replicas * n_stages;
}

static int finish_reading(struct stage_reader *r, struct dpro_error *err)
{
    struct stage_table *table = &r->table;
    uint64_t n_places = find_workers(r);
    int rc = 0;
    if (n_places > MOST_PLACES || table->workers.n * table->steps.n > 16 * table->ops.n + MOST_AT) {
        rc = dpro_error_set(err, DPRO_EFORMAT,
                            "a stage timeline of %zu ops numbers its ranks, stages and steps up to "
                            "%" PRIu64 " workers and %zu steps; number them from 0 on",
                            table->ops.n, n_places, table->steps.n);
    } else if (table->ops.n > 0) {
        stage_table_order(table);
        if (table->n_twice > 0)
            r->part->note = "rows that it holds twice count once";
        stage_ranks_make(r->part, table);
    }
    stage_table_fini(table);
    FREE_ALL(&r->steps, &r->places, &r->sources);
    return rc;
}

/* ---- Chrome trace JSON ---- */

/* "PP rank 1, TP rank 0, dp-comm" */
static void name_thread(struct stage_reader *r, uint32_t thread, const char *name)
{
    unsigned stage, tensor_rank = 0;
    struct stage_source *source = &r->sources.at[thread];
    if (sscanf(name, "PP rank %u, TP rank %u", &stage, &tensor_rank) < 1)
        return;
    source->stage = stage;
    source->tensor_rank = tensor_rank;
    source->known = true;
}

static void read_column(struct json_reader *r, void *out, size_t column)
{
    const char *text;
    size_t len;
    if (json_scalar(r->js, &text, &len))
        put_field(out, (enum stage_column)column, text, len, 3);
}

static const struct json_member arguments[] = {MEMBER_BY("step", read_column, COLUMN_STEP),
                                               MEMBER_BY("seq_id", read_column, COLUMN_SEQUENCE),
                                               MEMBER_BY("model_chunk", read_column, COLUMN_CHUNK),
                                               MEMBER_BY("mb_id", read_column, COLUMN_MICRO_BATCH),
                                               MEMBER(struct stage_row, "name", TEXT, label),
                                               {NULL}};
static const struct json_member event_members[] = {MEMBER_BY("name", read_column, COLUMN_TYPE),
                                                   MEMBER_BY("tid", read_column, COLUMN_RANK),
                                                   MEMBER_BY("pid", read_column, COLUMN_REPLICA),
                                                   MEMBER_BY("ts", read_column, COLUMN_START),
                                                   MEMBER_BY("dur", read_column, COLUMN_DURATION),
                                                   MEMBER_IN("args", arguments),
                                                   {NULL}};

static void take_event(void *reader, const void *event)
{
    struct stage_reader *r = reader;
    const struct stage_row *row = event;
    r->part->n_events++;
    if (!row->names_thread && row->type == N_STAGE_OPS)
        return;
    uint32_t thread = source_at(r, row);
    if (row->names_thread)
        name_thread(r, thread, strtab_get(&r->part->names, row->label));
    else
        add_row(r, row, thread);
}

static int read_stage_json(struct json *js, struct trace_part *part, struct dpro_error *err)
{
    struct stage_reader r = {.part = part};
    struct stage_row row = {.type = N_STAGE_OPS};
    part_read_events(
        part, js, &(struct part_events){event_members, &row, sizeof row, .take = take_event}, &r);
    return finish_reading(&r, err);
}

static bool recognise_stages(const struct head *head)
{
    const char *name = head->piece == HEAD_EVENT ? head_field(head, "name") : NULL;
    return name && stage_op_find(name, strlen(name)) != N_STAGE_OPS &&
           head_field(head, "args.step") && head_field(head, "args.seq_id");
}

/* ---- CSV ---- */

struct stage_columns {
    uint8_t at[PART_FIELDS_MAX]; /* enum stage_column of each field */
    size_t n;
    int scale[N_STAGE_COLUMNS]; /* decimals of a time down to nanoseconds */
};

/* "start_us" is "start" in microseconds; without a unit it is seconds. */
static uint8_t column_of(const char *text, size_t len, int *scale)
{
    static const struct {
        const char *end;
        int scale;
    } units[] = {{"_ns", 0}, {"_us", 3}, {"_ms", 6}, {"_s", 9}};
    *scale = 9;
    for (size_t u = 0; u < sizeof units / sizeof *units; u++)
        if (text_n_ends(text, len, units[u].end)) {
            *scale = units[u].scale;
            len -= strlen(units[u].end);
            break;
        }
    for (uint8_t c = 1; c < N_STAGE_COLUMNS; c++)
        for (const char *const *name = column_names[c]; *name; name++)
            if (stage_word_is(text, len, *name))
                return c;
    return COLUMN_OTHER;
}

/* Whether a line names the columns that are needed. */
static bool read_header(struct stage_columns *columns, const char *line, size_t len)
{
    struct part_field fields[PART_FIELDS_MAX];
    bool seen[N_STAGE_COLUMNS] = {false};
    columns->n = part_split_line(line, len, fields);
    for (size_t i = 0; i < columns->n; i++) {
        int scale;
        uint8_t column = column_of(fields[i].text, fields[i].len, &scale);
        column = seen[column] ? (uint8_t)COLUMN_OTHER : column;
        seen[column] = true;
        columns->scale[column] = scale;
        columns->at[i] = column;
    }
    return seen[COLUMN_TYPE] && seen[COLUMN_STEP] && seen[COLUMN_START] && seen[COLUMN_DURATION] &&
           seen[COLUMN_STAGE];
}

/* False: no valid line. */
static bool read_row(struct stage_reader *r, const struct stage_columns *columns, const char *line,
                     size_t len)
{
    struct part_field fields[PART_FIELDS_MAX];
    struct stage_row row = {.type = N_STAGE_OPS};
    bool valid = part_split_line(line, len, fields) >= columns->n;
    for (size_t i = 0; i < columns->n && valid; i++) {
        enum stage_column column = columns->at[i];
        put_field(&row, column, fields[i].text, fields[i].len, columns->scale[column]);
        if (column == COLUMN_REPLICA || column == COLUMN_STAGE)
            valid = count_of(&row, column, INT64_MAX, -1) >= 0;
    }
    if (!valid || row.type == N_STAGE_OPS)
        return false;
    uint32_t at = source_at(r, &row);
    struct stage_source *source = &r->sources.at[at];
    source->known = true;
    source->tensor_rank = (uint64_t)source->number;
    add_row(r, &row, at);
    return true;
}

static int read_stage_csv(struct bytes *bytes, struct trace_part *part, struct dpro_error *err)
{
    struct stage_reader r = {.part = part};
    struct stage_columns columns;
    const char *line;
    size_t len;
    part->damage.cut = !bytes_line(bytes, &line, &len) || !read_header(&columns, line, len);
    while (!part->damage.cut && part_next_line(part, bytes, &line, &len)) {
        part->n_events++;
        part->losses.n_broken_records += !read_row(&r, &columns, line, len);
    }
    return finish_reading(&r, err);
}

static bool recognise_csv(const struct head *head)
{
    struct stage_columns columns;
    const char *end = head->piece == HEAD_BYTES ? memchr(head->bytes, '\n', head->n_bytes) : NULL;
    if (!end)
        return false;
    size_t len = (size_t)(end - head->bytes);
    return read_header(&columns, head->bytes, len > 0 && end[-1] == '\r' ? len - 1 : len);
}

const struct reader stage_reader = {
    .name = "stages",
    .word = "stage timeline",
    .encoding = "JSON",
    .flags = READER_VIEWED,
    .missing = {"ops of stages", "do its threads' names say 'PP rank 0'?",
                "a stage timeline without an op; do its threads' names say 'PP rank 0'?"},
    .recognise = recognise_stages,
    .read_json = read_stage_json,
    .correct_ranks = stage_ranks_choose,
    .join = stage_ranks_join,
};

const struct reader stage_csv_reader = {
    .name = "stages-csv",
    .word = "stage timeline",
    .missing = {"ops of stages", "are its op types those of doc/formats/stage-timeline.md?",
                "a stage timeline without an op"},
    .recognise = recognise_csv,
    .read_bytes = read_stage_csv,
    .join = stage_ranks_join,
};
