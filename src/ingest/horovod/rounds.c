/* ingest/horovod/rounds.c: the rounds of a timeline and the groups that Horovod fused in each.
 *
 * Horovod's thread works at one group after the other, so runs whose transfers begin together and
 * overlap are one group. A round ends where a tensor would come a second time. */
#include "ingest/horovod/thread.h"

#include <stdlib.h>
#include <string.h>

#include "base/map.h"
#include "base/memory.h"
#include "base/sort.h"
#include "base/stats.h"
#include "ingest/pytorch/kineto_words.h"
#include "ingest/trace.h"

/* Of tensors in one group; the first ones of a group are apart by a thread's going on, milliseconds
 * if it was put off its core, the next group by a negotiation at least. */
static const int64_t MOST_APART_NS = 1000000;
static const int64_t MOST_NS = 3600LL * 1000000000; /* what takes longer is no time */

void fusion_destroy(struct fusion *fusion)
{
    if (!fusion)
        return;
    mem_free(fusion->tensors);
    mem_free(fusion->groups);
    mem_free(fusion->alike);
    mem_free(fusion->samples);
    mem_free(fusion);
}

void rounds_fini(struct rounds *rounds)
{
    array_fini(&rounds->runs);
    array_fini(&rounds->groups);
    array_fini(&rounds->rounds);
}

/* From when until when it was transferred, or all of it where no transfer was noted. */
static struct timeline_interval transfer_of(const struct timeline_run *run)
{
    return timeline_has(run, STAGE_TRANSFER) ? run->stages[STAGE_TRANSFER] : run->whole;
}

ORDER_OF_INDICES(by_start, struct timeline_run,
                 COMPARE(transfer_of(x).start_ns, transfer_of(y).start_ns) ?: ASCENDING(tensor));

/* Tensors that are reduced each iteration: no broadcast at the start, no metric now and then. */
static bool takes_part(const struct strtab *names, const struct timeline *t,
                       const struct timeline_run *run, uint32_t most_runs)
{
    const char *op = strtab_get(names, run->op);
    if (run->op && strcmp(op, "ALLREDUCE") != 0 && strcmp(op, "ADASUM") != 0 &&
        strcmp(op, "REDUCESCATTER") != 0)
        return false;
    return t->tensors.at[run->tensor].n_runs * 2 >= most_runs;
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

static int cut_groups(const struct timeline *t, struct rounds *rounds)
{
    int64_t first_end = INT64_MIN;
    for (size_t i = 0; i < rounds->runs.n; i++) {
        const struct timeline_run *run = &t->runs.at[rounds->runs.at[i]];
        struct timeline_interval transfer = transfer_of(run);
        struct actual_group *last =
            rounds->groups.n ? &rounds->groups.at[rounds->groups.n - 1] : NULL;
        if (!last || transfer.start_ns >= first_end ||
            transfer.start_ns - last->times.transfer_ns > MOST_APART_NS) {
            struct actual_group fresh = {.first = (uint32_t)i, .times = FUSED_NOTHING};
            if (array_push(&rounds->groups, fresh) < 0)
                return -1;
            last = &rounds->groups.at[rounds->groups.n - 1];
            first_end = transfer.end_ns;
        }
        first_end = MIN(first_end, transfer.end_ns);
        last->n++;
        fused_widen(&last->times, run);
    }
    return 0;
}

/* Cuts what comes from a group on: a round ends where a tensor would come a second time. */
static int cut_rounds_from(const struct timeline *t, struct rounds *rounds, uint32_t first)
{
    uint32_t *seen = mem_array(t->tensors.n + 1, sizeof *seen); /* round + 1 */
    int status = seen ? 0 : -1;
    rounds->rounds.n = 0;
    for (uint32_t g = first; g < rounds->groups.n && status == 0; g++) {
        const struct actual_group *group = &rounds->groups.at[g];
        bool again = rounds->rounds.n == 0;
        for (uint32_t i = group->first; i < group->first + group->n; i++)
            again |= seen[rounds_tensor(rounds, i)] == rounds->rounds.n;
        if (again) {
            struct actual_round fresh = {.first = g};
            status = array_push(&rounds->rounds, fresh);
        }
        if (status < 0)
            break;
        struct actual_round *round = &rounds->rounds.at[rounds->rounds.n - 1];
        round->n++;
        for (uint32_t i = group->first; i < group->first + group->n; i++) {
            uint32_t *at = &seen[rounds_tensor(rounds, i)];
            round->n_tensors += *at != rounds->rounds.n;
            *at = (uint32_t)rounds->rounds.n;
        }
    }
    mem_free(seen);
    return status;
}

static bool any_between(const mark_array *times, int64_t from, int64_t to)
{
    size_t next = LOWER_BOUND(i, (size_t)0, times->n, times->at[i] <= from);
    return next < times->n && times->at[next] < to;
}

/* What speaks against a cut: how many rounds went on when a tensor of the next was ready on a rank,
 * and of equals in how many an iteration began. */
static uint64_t count_faults(const struct timeline *t, const struct rounds *rounds,
                             const mark_array *marks)
{
    uint64_t n_over = 0, n_marked = 0;
    int64_t over_ns = INT64_MIN;
    for (size_t r = 0; r < rounds->rounds.n; r++) {
        const struct actual_round *round = &rounds->rounds.at[r];
        int64_t ready_ns = INT64_MAX, end_ns = INT64_MIN;
        for (uint32_t i = round_first(rounds, round); i < round_end(rounds, round); i++) {
            const struct timeline_run *run = &t->runs.at[rounds->runs.at[i]];
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
 * which most rounds end before the next begins, and of equals the one with which iterations begin.
 */
static int cut_rounds(const struct timeline *t, const mark_array *marks, struct rounds *rounds)
{
    enum { MOST_GROUPS = 256 };
    if (cut_rounds_from(t, rounds, 0) < 0)
        return -1;
    uint32_t n = rounds->rounds.n > 0 ? rounds->rounds.at[0].n : 0, best = 0;
    uint64_t least = count_faults(t, rounds, marks);
    for (uint32_t g = 1; g < n && n <= MOST_GROUPS && least > 0; g++) {
        if (cut_rounds_from(t, rounds, g) < 0)
            return -1;
        uint64_t faults = count_faults(t, rounds, marks);
        if (faults < least) {
            least = faults;
            best = g;
        }
    }
    return cut_rounds_from(t, rounds, best);
}

/* Equal where the same tensors were fused, in the same order of groups. */
static uint64_t hash_round(const struct rounds *rounds, const struct actual_round *round)
{
    uint64_t hash = 1;
    for (uint32_t g = round->first; g < round->first + round->n; g++) {
        const struct actual_group *group = &rounds->groups.at[g];
        uint64_t sum = 0;
        for (uint32_t i = group->first; i < group->first + group->n; i++)
            sum += map_mix(rounds_tensor(rounds, i) + 1);
        hash = map_mix(hash * 3 + sum);
    }
    return hash | 1;
}

/* The usual number of groups of a round. -1: no memory. */
static int64_t usual_groups(const struct rounds *rounds)
{
    uint32_t *numbers = mem_alloc((rounds->rounds.n + 1) * sizeof *numbers);
    if (!numbers)
        return -1;
    for (size_t r = 0; r < rounds->rounds.n; r++)
        numbers[r] = rounds->rounds.at[r].n;
    int64_t usual =
        rounds->rounds.n ? select_u32(numbers, rounds->rounds.n, rounds->rounds.n / 2) : 0;
    mem_free(numbers);
    return usual;
}

/* Chooses the round that most others are like; of equals one with the usual number of groups, then
 * the first. NO_ID: none. Rounds that lack a tensor are left out. */
static int choose_round(struct rounds *rounds, uint32_t *best, struct fusion *fusion)
{
    struct map counts = {0};
    uint32_t most_tensors = 0;
    int status = 0;
    *best = NO_ID;
    for (size_t r = 0; r < rounds->rounds.n; r++)
        most_tensors = MAX(most_tensors, rounds->rounds.at[r].n_tensors);
    for (size_t r = 0; r < rounds->rounds.n; r++)
        if (rounds->rounds.at[r].n_tensors == most_tensors)
            rounds->rounds.at[fusion->n_rounds++] = rounds->rounds.at[r];
    rounds->rounds.n = fusion->n_rounds;
    fusion->alike = mem_array(fusion->n_rounds + (size_t)1, sizeof *fusion->alike);
    int64_t usual = usual_groups(rounds);
    status = usual < 0 || !fusion->alike ? -1 : 0;
    for (int pass = 0; pass < 2 && status == 0; pass++)
        for (uint32_t r = 0; r < rounds->rounds.n && status == 0; r++) {
            uint64_t key = hash_round(rounds, &rounds->rounds.at[r]), n = 0;
            map_get(&counts, key, &n);
            if (pass == 0) {
                status = map_set(&counts, key, n + 1);
            } else if (n > fusion->n_alike ||
                       (n == fusion->n_alike && rounds->rounds.at[r].n == usual &&
                        rounds->rounds.at[*best].n != usual)) {
                fusion->n_alike = (uint32_t)n;
                *best = r;
            }
        }
    map_fini(&counts);
    const struct actual_round *chosen = *best == NO_ID ? NULL : &rounds->rounds.at[*best];
    for (uint32_t r = 0; r < rounds->rounds.n && status == 0 && chosen; r++)
        fusion->alike[r] = rounds->rounds.at[r].n == chosen->n &&
                           hash_round(rounds, &rounds->rounds.at[r]) == hash_round(rounds, chosen);
    return status;
}

static int copy_groups(const struct timeline *t, const struct strtab *names,
                       const struct rounds *rounds, const struct actual_round *round,
                       struct fusion *fusion)
{
    size_t n = round_end(rounds, round) - round_first(rounds, round); /* some may be there twice */
    fusion->tensors = mem_array(n + 1, sizeof *fusion->tensors);
    fusion->groups = mem_array(round->n + (size_t)1, sizeof *fusion->groups);
    if (!fusion->tensors || !fusion->groups)
        return -1;
    for (uint32_t g = round->first; g < round->first + round->n; g++) {
        const struct actual_group *actual = &rounds->groups.at[g];
        struct fused_group *group = &fusion->groups[fusion->n_groups++];
        *group = (struct fused_group){.first = fusion->n_tensors, .n = actual->n};
        for (uint32_t i = actual->first; i < actual->first + actual->n; i++) {
            uint32_t tensor = rounds_tensor(rounds, i);
            const struct timeline_tensor *at = &t->tensors.at[tensor];
            uint64_t bytes;
            fusion->tensors[fusion->n_tensors++] = tensor;
            if (__builtin_add_overflow(group->numel, at->numel, &group->numel) ||
                __builtin_mul_overflow(at->numel, timeline_item_bytes(t, names, tensor), &bytes) ||
                __builtin_add_overflow(group->size_bytes, bytes, &group->size_bytes))
                group->numel = group->size_bytes = 0;
            if (!group->dtype)
                group->dtype = at->dtype;
            if (!group->backend)
                group->backend = at->backend;
        }
    }
    return 0;
}

uint64_t timeline_item_bytes(const struct timeline *t, const struct strtab *names, uint32_t tensor)
{
    uint64_t bytes = kineto_dtype_bytes(strtab_get(names, t->tensors.at[tensor].dtype));
    return bytes ? bytes : 4;
}

/* The lower quartile of the cycles: those in which there was nothing to do. */
static int64_t find_cycle(const struct timeline *t)
{
    int64_t cycle_ns = 0, *lengths = mem_alloc((t->cycles.n + 1) * sizeof *lengths);
    size_t n = 0;
    for (size_t i = 1; lengths && i < t->cycles.n; i++)
        lengths[n++] = t->cycles.at[i] - t->cycles.at[i - 1];
    if (n > 0)
        cycle_ns = select_i64(lengths, n, n / 4);
    mem_free(lengths);
    return cycle_ns;
}

/* The usual time from the begin of a cycle to that of its first group. */
static int64_t find_negotiation(const struct timeline *t, const struct rounds *rounds)
{
    int64_t usual_ns = 0, *lengths = mem_alloc((rounds->groups.n + 1) * sizeof *lengths);
    size_t n = 0, cycle = 0, last = 0; /* one more than the cycle that the last group was of */
    for (size_t g = 0; lengths && g < rounds->groups.n; g++) {
        int64_t start_ns = rounds->groups.at[g].times.start_ns;
        while (cycle < t->cycles.n && t->cycles.at[cycle] <= start_ns)
            cycle++;
        if (cycle > last)
            lengths[n++] = start_ns - t->cycles.at[cycle - 1];
        last = cycle;
    }
    if (lengths)
        usual_ns = stats_median_upper_i64(lengths, n);
    mem_free(lengths);
    return usual_ns;
}

/* Bytes of a group, and of its largest tensor; 0: not known. */
static uint64_t bytes_of(const struct timeline *t, const struct strtab *names,
                         const struct rounds *rounds, const struct actual_group *group,
                         uint64_t *largest)
{
    uint64_t sum = 0;
    *largest = 0;
    for (uint32_t i = group->first; i < group->first + group->n; i++) {
        uint32_t tensor = rounds_tensor(rounds, i);
        uint64_t bytes;
        if (__builtin_mul_overflow(t->tensors.at[tensor].numel,
                                   timeline_item_bytes(t, names, tensor), &bytes) ||
            bytes == 0 || __builtin_add_overflow(sum, bytes, &sum))
            return 0;
        *largest = MAX(*largest, bytes);
    }
    return sum;
}

/* Keeps what each group took, and the least bytes that two groups of one cycle had that were not
 * fused. */
static int keep_samples(const struct timeline *t, const struct strtab *names,
                        const struct rounds *rounds, struct fusion *fusion)
{
    uint64_t before = 0, largest;
    size_t cycle = 0, last = 0; /* how many began before the group, and before the last one */
    fusion->most_bytes = UINT64_MAX;
    fusion->samples = mem_array(rounds->groups.n + 1, sizeof *fusion->samples);
    if (!fusion->samples)
        return -1;
    for (size_t g = 0; g < rounds->groups.n; g++) {
        const struct actual_group *group = &rounds->groups.at[g];
        uint64_t bytes = bytes_of(t, names, rounds, group, &largest), both;
        int64_t took_ns = group->times.end_ns - group->times.start_ns;
        while (cycle < t->cycles.n && t->cycles.at[cycle] <= group->times.start_ns)
            cycle++;
        if (bytes > 0 && took_ns > 0)
            fusion->samples[fusion->n_samples++] = (struct fusion_sample){bytes, took_ns};
        if (bytes > 0 && before > 0 && !__builtin_add_overflow(before, largest, &both) &&
            both - 1 < fusion->most_bytes && cycle > 0 && cycle == last)
            fusion->most_bytes = both - 1;
        before = bytes;
        last = cycle;
    }
    return 0;
}

int rounds_find(const struct timeline *t, const struct strtab *names, mark_array *marks,
                struct rounds *rounds, struct fusion **found)
{
    uint32_t most_runs = 0, best = NO_ID;
    struct fusion *fusion = mem_array(1, sizeof *fusion);
    int status = fusion ? 0 : -1;
    *found = NULL;
    rounds->timeline = t;
    for (size_t i = 0; i < t->tensors.n; i++)
        most_runs = MAX(most_runs, t->tensors.at[i].n_runs);
    for (uint32_t i = 0; i < t->runs.n && status == 0; i++)
        if (takes_part(names, t, &t->runs.at[i], most_runs) &&
            t->runs.at[i].whole.end_ns - t->runs.at[i].whole.start_ns < MOST_NS)
            status = array_push(&rounds->runs, i);
    if (status == 0 && rounds->runs.n > 1)
        qsort_r(rounds->runs.at, rounds->runs.n, sizeof *rounds->runs.at, by_start, t->runs.at);
    if (status == 0)
        status = cut_groups(t, rounds);
    sort_i64(marks->at, marks->n);
    if (status == 0)
        status = cut_rounds(t, marks, rounds);
    if (status == 0)
        status = choose_round(rounds, &best, fusion);
    if (status == 0 && best != NO_ID)
        status = copy_groups(t, names, rounds, &rounds->rounds.at[best], fusion);
    if (status == 0 && best != NO_ID)
        status = keep_samples(t, names, rounds, fusion);
    if (status < 0 || best == NO_ID) {
        fusion_destroy(fusion);
        return status;
    }
    fusion->timeline = t;
    fusion->cycle_ns = find_cycle(t);
    fusion->negotiate_ns = find_negotiation(t, rounds);
    *found = fusion;
    return 0;
}
