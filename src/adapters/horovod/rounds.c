/* The rounds of a timeline and the groups that Horovod fused in each.
 *
 * Horovod's thread works at one group after the other, so runs whose transfers begin together and
 * overlap are one group. A round ends where a tensor would come a second time. */
#include "adapters/horovod/thread.h"

#include "ingest/pytorch/kineto_words.h"

/* Of tensors in one group; the first ones of a group are apart by a thread's going on, milliseconds
 * if it was put off its core, the next group by a negotiation at least. */
static const int64_t MOST_APART_NS = 1000000;
static const int64_t MOST_NS = 3600LL * 1000000000; /* what takes longer is no time */

void rounds_fini(struct rounds *rounds)
{
    FREE_ALL(&rounds->runs, &rounds->groups, &rounds->rounds);
}

/* From when until when it was transferred, or all of it where no transfer was noted. */
static struct timeline_interval transfer_of(const struct timeline_run *run)
{
    return timeline_has(run, STAGE_TRANSFER) ? run->stages[STAGE_TRANSFER] : run->whole;
}

ORDER_OF_INDICES(by_start, struct timeline_run,
                 COMPARE(transfer_of(x).start_ns, transfer_of(y).start_ns) ?: ASCENDING(tensor));

/* Tensors that are reduced each iteration: no broadcast at the start, no metric now and then. */
static bool takes_part(const struct rounds *rounds, const struct timeline_run *run,
                       uint32_t most_runs)
{
    if (run->op &&
        !text_is_one(strtab_get(rounds->names, run->op), "ALLREDUCE", "ADASUM", "REDUCESCATTER"))
        return false;
    return rounds->timeline->tensors.at[run->tensor].n_runs * 2 >= most_runs;
}

void fused_widen(struct fused_times *times, const struct timeline_run *run)
{
    struct timeline_interval transfer = transfer_of(run);
    int64_t out_end =
        timeline_has(run, STAGE_COPY_OUT) ? run->stages[STAGE_COPY_OUT].end_ns : transfer.end_ns;
    times->start_ns = MIN(times->start_ns, run->whole.start_ns);
    times->transfer_ns = MIN(times->transfer_ns, transfer.start_ns);
    times->transferred_ns = MAX(times->transferred_ns, transfer.end_ns);
    times->out_ns = MAX(times->out_ns, out_end);
    times->end_ns = MAX(times->end_ns, run->whole.end_ns);
}

static void cut_groups(struct rounds *rounds)
{
    int64_t first_end = INT64_MIN;
    for (size_t i = 0; i < rounds->runs.n; i++) {
        const struct timeline_run *run = rounds_run(rounds, i);
        struct timeline_interval transfer = transfer_of(run);
        struct actual_group *last =
            rounds->groups.n ? &rounds->groups.at[rounds->groups.n - 1] : NULL;
        if (!last || transfer.start_ns >= first_end ||
            transfer.start_ns - last->times.transfer_ns > MOST_APART_NS) {
            array_add(&rounds->groups, .first = (uint32_t)i, .times = FUSED_NOTHING);
            last = &rounds->groups.at[rounds->groups.n - 1];
            first_end = transfer.end_ns;
        }
        first_end = MIN(first_end, transfer.end_ns);
        last->n++;
        fused_widen(&last->times, run);
    }
}

/* Cuts what comes from a group on: a round ends where a tensor would come a second time. */
static void cut_rounds_from(struct rounds *rounds, uint32_t first)
{
    SCRATCH uint32_t *seen = mem_array(rounds->timeline->tensors.n, sizeof *seen); /* round + 1 */
    rounds->rounds.n = 0;
    for (uint32_t g = first; g < rounds->groups.n; g++) {
        const struct actual_group *group = &rounds->groups.at[g];
        bool again = rounds->rounds.n == 0;
        for (uint32_t i = group->first; i < group->first + group->n; i++)
            again |= seen[rounds_tensor(rounds, i)] == rounds->rounds.n;
        if (again)
            array_add(&rounds->rounds, .first = g);
        struct actual_round *round = &rounds->rounds.at[rounds->rounds.n - 1];
        round->n++;
        for (uint32_t i = group->first; i < group->first + group->n; i++) {
            uint32_t *at = &seen[rounds_tensor(rounds, i)];
            round->n_tensors += *at != rounds->rounds.n;
            *at = (uint32_t)rounds->rounds.n;
        }
    }
}

static bool any_between(const mark_array *times, int64_t from, int64_t to)
{
    size_t next = LOWER_BOUND(i, (size_t)0, times->n, times->at[i] <= from);
    return next < times->n && times->at[next] < to;
}

/* What speaks against a cut: how many rounds went on when a tensor of the next was ready on a rank,
 * and of equals in how many an iteration began. */
static uint64_t count_faults(const struct rounds *rounds, const mark_array *marks)
{
    uint64_t n_over = 0, n_marked = 0;
    int64_t over_ns = INT64_MIN;
    EACH (const struct actual_round, round, rounds->rounds) {
        int64_t ready_ns = INT64_MAX, end_ns = INT64_MIN;
        for (uint32_t i = round_first(rounds, round); i < round_end(rounds, round); i++) {
            const struct timeline_run *run = rounds_run(rounds, i);
            int64_t at = timeline_has(run, STAGE_NEGOTIATE) ? run->stages[STAGE_NEGOTIATE].start_ns
                                                            : run->whole.start_ns;
            ready_ns = MIN(ready_ns, at);
            end_ns = MAX(end_ns, run->whole.end_ns);
        }
        n_over += ready_ns < over_ns;
        n_marked += any_between(marks, ready_ns, end_ns);
        over_ns = end_ns;
    }
    return n_over << 32 | n_marked;
}

/* Finds the group with which rounds begin; a timeline may begin amid a round. It is the one for
 * which most rounds end before the next begins, and of equals the one that begins iterations. */
static void cut_rounds(struct rounds *rounds, const mark_array *marks)
{
    enum { MOST_GROUPS = 256 };
    cut_rounds_from(rounds, 0);
    uint32_t n = rounds->rounds.n > 0 ? rounds->rounds.at[0].n : 0, best = 0;
    uint64_t least = count_faults(rounds, marks);
    for (uint32_t g = 1; g < n && n <= MOST_GROUPS && least > 0; g++) {
        cut_rounds_from(rounds, g);
        uint64_t faults = count_faults(rounds, marks);
        if (faults < least) {
            least = faults;
            best = g;
        }
    }
    cut_rounds_from(rounds, best);
}

/* Equal where the same tensors were fused, in the same order of groups. */
static uint64_t hash_round(const struct rounds *rounds, const struct actual_round *round)
{
    uint64_t hash = 1;
    EACH_OF (const struct actual_group, group, rounds->groups.at + round->first, round->n) {
        uint64_t sum = 0;
        for (uint32_t i = group->first; i < group->first + group->n; i++)
            sum += map_mix(rounds_tensor(rounds, i) + 1);
        hash = map_mix(hash * 3 + sum);
    }
    return hash | 1;
}

/* The usual number of groups of a round. */
static uint32_t usual_groups(const struct rounds *rounds)
{
    SCRATCH uint32_t *numbers = mem_array(rounds->rounds.n, sizeof *numbers);
    for (size_t r = 0; r < rounds->rounds.n; r++)
        numbers[r] = rounds->rounds.at[r].n;
    uint32_t usual =
        rounds->rounds.n ? select_u32(numbers, rounds->rounds.n, rounds->rounds.n / 2) : 0;
    return usual;
}

static void leave_out_partial(struct rounds *rounds)
{
    uint32_t most_tensors = 0;
    size_t kept = 0;
    for (size_t r = 0; r < rounds->rounds.n; r++)
        most_tensors = MAX(most_tensors, rounds->rounds.at[r].n_tensors);
    for (size_t r = 0; r < rounds->rounds.n; r++)
        if (rounds->rounds.at[r].n_tensors == most_tensors)
            rounds->rounds.at[kept++] = rounds->rounds.at[r];
    rounds->rounds.n = kept;
}

/* Chooses the round that most others are like; of equals one with the usual number of groups, then
 * the first. NULL: there is none. */
static const struct actual_round *choose_round(const struct rounds *rounds, struct fusion *fusion)
{
    const struct actual_round *at = rounds->rounds.at, *best = NULL;
    SCRATCH struct map counts = {0};
    uint32_t usual = usual_groups(rounds);
    for (size_t r = 0; r < rounds->rounds.n; r++)
        map_add(&counts, hash_round(rounds, &at[r]), 1);
    for (size_t r = 0; r < rounds->rounds.n; r++) {
        uint64_t n = map_add(&counts, hash_round(rounds, &at[r]), 0);
        if (n > fusion->n_alike || (n == fusion->n_alike && at[r].n == usual && best->n != usual)) {
            fusion->n_alike = (uint32_t)n;
            best = &at[r];
        }
    }
    return best;
}

static void mark_alike(struct arena *arena, const struct rounds *rounds,
                       const struct actual_round *chosen, struct fusion *fusion)
{
    fusion->n_rounds = (uint32_t)rounds->rounds.n;
    fusion->alike = arena_array(arena, fusion->n_rounds, sizeof *fusion->alike);
    for (uint32_t r = 0; r < fusion->n_rounds; r++)
        fusion->alike[r] = rounds->rounds.at[r].n == chosen->n &&
                           hash_round(rounds, &rounds->rounds.at[r]) == hash_round(rounds, chosen);
}

static void copy_groups(struct arena *arena, const struct rounds *rounds,
                        const struct actual_round *round, struct fusion *fusion)
{
    size_t n = round_end(rounds, round) - round_first(rounds, round); /* some may be there twice */
    fusion->tensors = arena_array(arena, n, sizeof *fusion->tensors);
    fusion->groups = arena_array(arena, round->n, sizeof *fusion->groups);
    EACH_OF (const struct actual_group, actual, rounds->groups.at + round->first, round->n) {
        struct fused_group *group = &fusion->groups[fusion->n_groups++];
        *group = (struct fused_group){.first = fusion->n_tensors, .n = actual->n};
        for (uint32_t i = actual->first; i < actual->first + actual->n; i++) {
            uint32_t tensor = rounds_tensor(rounds, i);
            const struct timeline_tensor *at = &rounds->timeline->tensors.at[tensor];
            uint64_t bytes;
            fusion->tensors[fusion->n_tensors++] = tensor;
            if (__builtin_add_overflow(group->numel, at->numel, &group->numel) ||
                __builtin_mul_overflow(at->numel, rounds_item_bytes(rounds, tensor), &bytes) ||
                __builtin_add_overflow(group->size_bytes, bytes, &group->size_bytes))
                group->numel = group->size_bytes = 0;
            if (!group->dtype)
                group->dtype = at->dtype;
            if (!group->backend)
                group->backend = at->backend;
        }
    }
}

uint64_t rounds_item_bytes(const struct rounds *rounds, uint32_t tensor)
{
    uint32_t dtype = rounds->timeline->tensors.at[tensor].dtype;
    uint64_t bytes = kineto_dtype_bytes(strtab_get(rounds->names, dtype));
    return bytes ? bytes : 4;
}

uint64_t rounds_group_bytes(const struct rounds *rounds, const struct actual_group *group,
                            uint64_t *largest)
{
    uint64_t sum = 0;
    *largest = 0;
    for (uint32_t i = group->first; i < group->first + group->n; i++) {
        uint32_t tensor = rounds_tensor(rounds, i);
        uint64_t bytes;
        if (__builtin_mul_overflow(rounds->timeline->tensors.at[tensor].numel,
                                   rounds_item_bytes(rounds, tensor), &bytes) ||
            bytes == 0 || __builtin_add_overflow(sum, bytes, &sum))
            return 0;
        *largest = MAX(*largest, bytes);
    }
    return sum;
}

/* The lower quartile of the cycles: those in which there was nothing to do. */
static int64_t find_cycle(const struct timeline *t)
{
    int64_t cycle_ns = 0, *lengths = mem_array(t->cycles.n, sizeof *lengths);
    size_t n = 0;
    for (size_t i = 1; i < t->cycles.n; i++)
        lengths[n++] = t->cycles.at[i] - t->cycles.at[i - 1];
    if (n > 0)
        cycle_ns = select_i64(lengths, n, n / 4);
    mem_free(lengths);
    return cycle_ns;
}

/* Keeps what each group took, the usual time from the begin of a cycle to that of its first group,
 * and the least bytes that two groups of one cycle had that were not fused. */
static void learn_from_groups(struct arena *arena, const struct rounds *rounds,
                              struct fusion *fusion)
{
    const struct timeline *t = rounds->timeline;
    SCRATCH int64_t *lengths = mem_array(rounds->groups.n, sizeof *lengths);
    uint64_t before = 0, largest;
    size_t n = 0, cycle = 0, last = 0; /* how many began before the group, and before the last */
    fusion->most_bytes = UINT64_MAX;
    fusion->samples = arena_array(arena, rounds->groups.n, sizeof *fusion->samples);
    EACH (const struct actual_group, group, rounds->groups) {
        uint64_t bytes = rounds_group_bytes(rounds, group, &largest), both;
        int64_t start_ns = group->times.start_ns, took_ns = group->times.end_ns - start_ns;
        while (cycle < t->cycles.n && t->cycles.at[cycle] <= start_ns)
            cycle++;
        if (cycle > last)
            lengths[n++] = start_ns - t->cycles.at[cycle - 1];
        if (bytes > 0 && took_ns > 0)
            fusion->samples[fusion->n_samples++] = (struct fusion_sample){bytes, took_ns};
        if (bytes > 0 && before > 0 && !__builtin_add_overflow(before, largest, &both) &&
            both - 1 < fusion->most_bytes && cycle > 0 && cycle == last)
            fusion->most_bytes = both - 1;
        before = bytes;
        last = cycle;
    }
    fusion->negotiate_ns = stats_median_upper_i64(lengths, n);
}

struct fusion *rounds_find(struct arena *arena, mark_array *marks, struct rounds *rounds)
{
    const struct timeline *t = rounds->timeline;
    uint32_t most_runs = 0;
    for (size_t i = 0; i < t->tensors.n; i++)
        most_runs = MAX(most_runs, t->tensors.at[i].n_runs);
    for (uint32_t i = 0; i < t->runs.n; i++)
        if (takes_part(rounds, &t->runs.at[i], most_runs) &&
            t->runs.at[i].whole.end_ns - t->runs.at[i].whole.start_ns < MOST_NS)
            array_push(&rounds->runs, i);
    if (rounds->runs.n == 0)
        return NULL;
    array_sort_by(&rounds->runs, by_start, t->runs.at);
    sort_i64(marks->at, marks->n);
    cut_groups(rounds);
    cut_rounds(rounds, marks);
    leave_out_partial(rounds);
    struct fusion *fusion = arena_array(arena, 1, sizeof *fusion);
    const struct actual_round *chosen = choose_round(rounds, fusion);
    fusion->timeline = t;
    mark_alike(arena, rounds, chosen, fusion);
    copy_groups(arena, rounds, chosen, fusion);
    learn_from_groups(arena, rounds, fusion);
    fusion->cycle_ns = find_cycle(t);
    return fusion;
}
