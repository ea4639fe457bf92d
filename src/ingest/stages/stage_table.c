/* The rows of a stage timeline in order. */
#include "ingest/stages/stage_table.h"

#include "ingest/trace.h"

#define STAGE_OP_KIND(id, name, comm, median) {name, STAGE_##comm, median},
const struct stage_op_kind stage_op_kinds[N_STAGE_OPS] = {STAGE_OPS(STAGE_OP_KIND)};

bool stage_word_is(const char *text, size_t len, const char *word)
{
    const char *end = text + len;
    for (;; text++, word++) {
        while (text < end && !isalnum((unsigned char)*text))
            text++;
        while (*word && !isalnum((unsigned char)*word))
            word++;
        if (text == end || !*word)
            return text == end && !*word;
        if (tolower((unsigned char)*text) != *word)
            return false;
    }
}

enum stage_op_type stage_op_find(const char *name, size_t len)
{
    int type = 0;
    while (type < N_STAGE_OPS && !stage_word_is(name, len, stage_op_kinds[type].name))
        type++;
    return (enum stage_op_type)type;
}

void stage_table_fini(void *stages)
{
    struct stage_table *table = stages;
    FREE_ALL(&table->ops, &table->workers, &table->steps, &table->bounds, &table->first,
             &table->worker_at, &table->edges);
}

ORDER(by_place, struct stage_op,
      ASCENDING(type) ?: ASCENDING(sequence) ?: ASCENDING(start_ns) ?: ASCENDING(dur_ns));

ORDER_OF_INDICES(by_number, struct stage_worker,
                 ASCENDING(number) ?: ASCENDING(stage) ?: ASCENDING(replica));

static void order_workers(struct stage_table *table)
{
    size_t n = table->workers.n;
    SCRATCH uint32_t *order = sorted_indices(n, table->workers.at, by_number);
    SCRATCH uint32_t *index = mem_alloc((n + 1) * sizeof *index);
    SCRATCH struct stage_worker *before = mem_alloc((n + 1) * sizeof *before);
    memcpy(before, table->workers.at, n * sizeof *before);
    for (size_t i = 0; i < n; i++) {
        index[order[i]] = (uint32_t)i;
        table->workers.at[i] = before[order[i]];
        table->n_replicas = MAX(table->n_replicas, before[i].replica + 1);
        table->n_stages = MAX(table->n_stages, before[i].stage + 1);
    }
    EACH (struct stage_op, op, table->ops) {
        op->worker = index[op->worker];
        table->scatters_meanwhile |= op->type == STAGE_SEPARATE_GRADS;
        table->n_chunks = MAX(table->n_chunks, op->chunk + UINT32_C(1));
    }
    size_t n_places = (size_t)table->n_replicas * table->n_stages;
    table->worker_at = mem_alloc((n_places + 1) * sizeof *table->worker_at);
    memset(table->worker_at, 0xFF, n_places * sizeof *table->worker_at);
    for (size_t i = 0; i < n; i++)
        table->worker_at[table->workers.at[i].replica * table->n_stages +
                         table->workers.at[i].stage] = (uint32_t)i;
}

static void order_steps(struct stage_table *table)
{
    size_t n = table->steps.n;
    SCRATCH int64_t *numbers = mem_alloc((n + 1) * sizeof *numbers);
    SCRATCH uint32_t *index = mem_alloc((n + 1) * sizeof *index);
    memcpy(numbers, table->steps.at, n * sizeof *numbers);
    sort_i64(table->steps.at, n);
    for (size_t i = 0; i < n; i++)
        index[i] = (uint32_t)LOWER_BOUND(k, (size_t)0, n, table->steps.at[k] < numbers[i]);
    EACH (struct stage_op, op, table->ops)
        op->step = index[op->step];
}

/* Where each step counts time from its own beginning, one after the other. */
static void lay_out_steps(struct stage_table *table)
{
    size_t n = table->steps.n;
    int64_t(*bounds)[2] = table->bounds = mem_alloc((n + 1) * sizeof *bounds);
    SCRATCH int64_t *shifts_ns = mem_array(n + 1, sizeof *shifts_ns);
    for (size_t s = 0; s < n; s++) {
        bounds[s][0] = INT64_MAX;
        bounds[s][1] = INT64_MIN;
    }
    EACH (const struct stage_op, op, table->ops) {
        bounds[op->step][0] = MIN(bounds[op->step][0], op->start_ns);
        bounds[op->step][1] = MAX(bounds[op->step][1], op->start_ns + op->dur_ns);
    }
    for (size_t s = 1; s < n; s++) {
        int64_t *step = bounds[s], *last = bounds[s - 1], shift_ns = last[1] - step[0], end_ns;
        if (step[0] >= last[0] / 2 + last[1] / 2 ||
            __builtin_add_overflow(step[1], shift_ns, &end_ns) || !trace_time_fits(end_ns))
            continue;
        shifts_ns[s] = shift_ns;
        step[0] = last[1];
        step[1] = end_ns;
    }
    for (size_t s = 0; s + 1 < n; s++)
        if (bounds[s + 1][0] > bounds[s][0])
            bounds[s][1] = MIN(bounds[s][1], bounds[s + 1][0]);
    EACH (struct stage_op, op, table->ops)
        op->start_ns += shifts_ns[op->step];
}

/* In order, and numbered anew; a row that is there twice counts once. Returns how many are kept. */
static size_t order_step(struct stage_op *ops, size_t n)
{
    size_t kept = MIN(n, 1);
    if (n > 1)
        qsort(ops, n, sizeof *ops, by_place);
    for (size_t k = 1; k < n; k++)
        if (by_place(&ops[kept - 1], &ops[k]) != 0)
            ops[kept++] = ops[k];
    for (size_t k = 0; k < kept; k++)
        ops[k].sequence = k > 0 && ops[k - 1].type == ops[k].type ? ops[k - 1].sequence + 1 : 0;
    return kept;
}

/* Each worker's step first, which is far faster than sorting all at once. */
static void order_ops(struct stage_table *table)
{
    size_t n_places = table->workers.n * table->steps.n;
    struct stage_op *ordered = mem_alloc((table->ops.n + 1) * sizeof *ordered);
    size_t *first = table->first = mem_array(n_places + 2, sizeof *first);
    EACH (const struct stage_op, op, table->ops)
        first[op->worker * table->steps.n + op->step + 2]++;
    for (size_t i = 1; i <= n_places; i++)
        first[i + 1] += first[i];
    EACH (const struct stage_op, op, table->ops)
        ordered[first[op->worker * table->steps.n + op->step + 1]++] = *op;
    mem_free(table->ops.at);
    table->ops.at = ordered;
    table->ops.cap = table->ops.n;
    for (size_t i = 0, n, begin = 0; i < n_places; i++, begin += n) {
        n = first[i + 1] - begin;
        memmove(ordered + first[i], ordered + begin, n * sizeof *ordered);
        first[i + 1] = first[i] + order_step(ordered + first[i], n);
    }
    table->n_twice = table->ops.n - first[n_places];
    table->ops.n = first[n_places];
}

ORDER(by_start, struct stage_op, ASCENDING(start_ns) ?: ASCENDING(type) ?: ASCENDING(sequence));

/* Garbage is collected at any place among what a worker does in turn, and in few steps. All
 * workers of a stage do so at the same places then: for no time where the file lists nothing. */
static void place_collections(struct stage_table *table)
{
    size_t n_steps = table->steps.n, n = table->workers.n * n_steps, n_ops = 0;
    SCRATCH ARRAY(uint64_t) places = {0}; /* stage and place */
    SCRATCH struct map seen = {0};
    SCRATCH ARRAY(struct stage_op) turns = {0};
    enum { MOST_MORE = 64 };
    struct stage_op *ops = NULL;
    for (size_t i = 0; i < 2 * n; i++) { /* finds the places, then fills them */
        size_t at = i % n, first = table->first[at], stage = table->workers.at[at / n_steps].stage;
        struct stage_op *op = table->ops.at + first, *end = table->ops.at + table->first[at + 1];
        if (i == n && (places.n == 0 || n * places.n > MOST_MORE * table->ops.n))
            return;
        if (i == n) {
            sort_u64(places.at, places.n);
            ops = mem_alloc((table->ops.n + n * places.n + 1) * sizeof *ops);
        }
        uint32_t n_gc = 0, n_passes = 0;
        turns.n = 0;
        for (const struct stage_op *turn = op; turn < end; turn++)
            if (stage_op_is_in_turn(table, turn->type)) {
                n_passes += turn->type <= STAGE_BACKWARD;
                array_push(&turns, *turn);
                turns.at[turns.n - 1].micro_batch = (int32_t)(turn - op); /* where it is put */
            }
        array_sort(&turns, by_start);
        if (i >= n)
            table->first[at] = n_ops;
        for (; op < end && (op->type != STAGE_GC || (i >= n && turns.n == 0)); op++)
            if (i >= n)
                ops[n_ops++] = *op;
        for (; op < end && i < n; op++) {
            uint32_t before =
                (uint32_t)LOWER_BOUND(k, (size_t)0, turns.n, turns.at[k].start_ns < op->start_ns);
            op->micro_batch =
                (int32_t)(before < n_passes ? before : before - n_passes + AFTER_PASSES);
            uint64_t place = stage << 32 | (uint32_t)op->micro_batch;
            if (map_insert(&seen, map_key(place), 1))
                array_push(&places, place);
        }
        for (size_t p = 0; p < places.n && i >= n && turns.n > 0; p++) {
            struct stage_op gc = turns.at[0];
            int32_t place = (int32_t)(uint32_t)places.at[p];
            if (places.at[p] >> 32 != stage)
                continue;
            size_t before = stage_gc_place(place, n_passes, turns.n);
            if (before > 0)
                gc.start_ns = turns.at[before - 1].start_ns + turns.at[before - 1].dur_ns;
            gc.type = STAGE_GC;
            gc.sequence = n_gc++;
            gc.micro_batch = place;
            gc.dur_ns = 1;
            for (const struct stage_op *row = op; row < end; row++)
                if (row->micro_batch == place) {
                    gc.start_ns = gc.dur_ns > 1 ? gc.start_ns : row->start_ns;
                    gc.dur_ns = time_add(gc.dur_ns, row->dur_ns);
                }
            struct stage_op *next =
                before < turns.n ? &ops[table->first[at] + turns.at[before].micro_batch] : NULL;
            int64_t late_ns = next ? gc.start_ns + 1 - next->start_ns : 0;
            if (late_ns > 0 && late_ns < next->dur_ns) { /* else it would be a part of that op */
                next->start_ns += late_ns;
                next->dur_ns -= late_ns;
            }
            ops[n_ops++] = gc;
        }
    }
    table->first[n] = n_ops;
    mem_free(table->ops.at);
    table->ops.at = ops;
    table->ops.n = table->ops.cap = n_ops;
}

/* The first of the steps in which the most workers do the same. */
static void choose_usual(struct stage_table *table)
{
    size_t n = table->steps.n, most = 0;
    SCRATCH uint64_t *did = mem_array(n + 1, sizeof *did);
    SCRATCH struct map counts = {0};
    EACH (const struct stage_op, op, table->ops)
        did[op->step] +=
            map_mix(((uint64_t)op->worker << 32 | op->sequence) * N_STAGE_OPS + op->type);
    for (size_t s = 0; s < n; s++)
        most = MAX(most, map_add(&counts, did[s] | 1, 1));
    for (size_t s = n; s-- > 0;)
        if (map_or(&counts, did[s] | 1, 0) == most)
            table->usual = (uint32_t)s;
}

void stage_table_order(struct stage_table *table)
{
    order_workers(table);
    order_steps(table);
    lay_out_steps(table);
    order_ops(table);
    place_collections(table);
    choose_usual(table);
}
