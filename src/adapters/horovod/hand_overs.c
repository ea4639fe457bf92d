/* The spans of a rank's profile in which its framework handed tensors to Horovod. */

#include "adapters/horovod/thread.h"
#include "ingest/rank_job.h"

ORDER(by_ref, struct span_ref, ASCENDING(start_ns) ?: ASCENDING(span));

/* By string id: the place + 1 of the tensor that an op of that name or node hands over. */
static uint32_t *places_by_name(struct placing *p)
{
    static const char type[] = ":HorovodAllreduce";
    const struct strtab *names = &p->trace->names;
    uint32_t *of = arena_array(&p->arena, names->n, sizeof *of);
    for (uint32_t i = 0; i < p->fusion->n_tensors; i++) {
        uint32_t name = p->fusion->timeline->tensors.at[p->fusion->tensors[i]].name;
        char text[512];
        int len = snprintf(text, sizeof text, "%s%s", strtab_get(names, name), type);
        uint32_t typed = len < (int)sizeof text ? strtab_find(names, text, (size_t)len) : name;
        of[name] = i + 1;
        if (typed != STRTAB_NONE)
            of[typed] = i + 1;
    }
    return of;
}

static bool is_mxnets(const struct strtab *names, const struct trace_span *span)
{
    return strcmp(strtab_get(names, span->name), "horovod_allreduce") == 0;
}

/* Spans that hand over a tensor without its name: MXNet's ops, and with PyTorch the hook that runs
 * once autograd has accumulated the tensor. */
static bool is_nameless(const struct strtab *names, const struct trace_span *span)
{
    return is_mxnets(names, span) ||
           strcmp(strtab_get(names, span->name),
                  "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad") == 0;
}

void hand_overs_find(struct placing *p)
{
    const struct trace_rank *rank = p->rank;
    const uint32_t *place_of = places_by_name(p);
    for (uint32_t i = 0; i < rank->n_spans; i++) {
        const struct trace_span *span = &rank->spans[i];
        uint32_t place = place_of[span->name];
        if (place == 0 && span->node < rank->n_dfg_nodes)
            place = place_of[rank->dfg_nodes[span->node].name];
        if (span->kind <= SPAN_CPU_OP && (place || is_nameless(&p->trace->names, span)))
            array_add(&p->refs, span->start_ns, i, place == 0 ? NO_ID : place - 1);
    }
    array_sort(&p->refs, by_ref);
}

/* The times of a tensor in a round, as the rank had it; NULL: it is not in that round. */
static const struct fused_times *times_of(const struct placing *p, uint32_t round, uint32_t place)
{
    uint32_t group = p->cells[(size_t)round * p->fusion->n_tensors + place];
    return group == NO_ID ? NULL : &p->actual[group];
}

/* A named hand-over is of the first round that reduced the tensor later. Of two the later one
 * counts: the tensors of the earlier one were reduced before the timeline began. */
static void take_named(struct placing *p, uint32_t *enqueues)
{
    uint32_t n_tensors = p->fusion->n_tensors, n_rounds = (uint32_t)p->rounds->rounds.n;
    uint32_t *next = arena_array(&p->arena, n_tensors, sizeof *next); /* by place: its next round */
    EACH (const struct span_ref, ref, p->refs) {
        if (ref->place == NO_ID)
            continue;
        uint32_t *round = &next[ref->place];
        for (; *round < n_rounds; ++*round) {
            const struct fused_times *times = times_of(p, *round, ref->place);
            if (times && times->transferred_ns >= ref->start_ns)
                break;
        }
        if (*round < n_rounds)
            enqueues[(size_t)*round * n_tensors + ref->place] = ref->span;
    }
}

/* The length of a tensor's name without what Horovod appends to the tensors of a grouped call:
 * "_2of14". */
static size_t call_length(const char *name, size_t len)
{
    const char *at = memrchr(name, '_', len);
    int n = 0;
    if (!at || at == name)
        return len;
    sscanf(at, "_%*[0-9]of%*[0-9]%n", &n);
    return at + n == name + len ? (size_t)(at - name) : len;
}

/* A round's tensors in the order in which they were fused: the place of each, and the number of the
 * call that handed it over; a grouped call does so for all of its tensors. */
struct fused_calls {
    uint32_t *places, *calls;
    size_t n, n_calls;
};

static void list_calls(const struct placing *p, const struct actual_round *round,
                       struct fused_calls *of)
{
    struct strtab *names = &p->trace->names;
    SCRATCH struct map numbers = {0}; /* of the calls, by name */
    of->n = 0;
    for (uint32_t i = round_first(p->rounds, round); i < round_end(p->rounds, round); i++) {
        uint32_t tensor = rounds_tensor(p->rounds, i);
        uint32_t name = p->fusion->timeline->tensors.at[tensor].name;
        const char *text = strtab_get(names, name);
        uint32_t call = strtab_add(names, text, call_length(text, strtab_len(names, name)));
        of->places[of->n] = p->place_of[tensor];
        of->calls[of->n++] = (uint32_t)map_number(&numbers, call + UINT64_C(1));
    }
    of->n_calls = numbers.n;
}

/* Nameless hand-overs are matched by order: the k-th is that of the k-th tensor that was fused, or
 * of the k-th call where calls hand over several tensors. */
static void take_nameless(struct placing *p, uint32_t *enqueues)
{
    size_t i = 0;
    struct fused_calls of = {.places = arena_array(&p->arena, p->rounds->runs.n, sizeof *of.places),
                             .calls = arena_array(&p->arena, p->rounds->runs.n, sizeof *of.calls)};
    for (uint32_t r = 0; r < p->rounds->rounds.n; r++) {
        const struct actual_round *round = &p->rounds->rounds.at[r];
        int64_t last_ns = p->actual[round->first + round->n - 1].transferred_ns;
        size_t first = i;
        list_calls(p, round, &of);
        while (i < p->refs.n && p->refs.at[i].start_ns <= last_ns)
            i++;
        bool one_each = i - first >= of.n;
        size_t n = one_each ? of.n : of.n_calls;
        if (i - first > n) /* some are of rounds before the timeline began */
            first = i - n;
        if (i - first != n)
            continue;
        for (size_t k = 0; k < of.n; k++)
            if (of.places[k] != NO_ID)
                enqueues[(size_t)r * p->fusion->n_tensors + of.places[k]] =
                    p->refs.at[first + (one_each ? k : of.calls[k])].span;
    }
}

/* MXNet's op lasts until the tensor is reduced, while its thread goes on. The hand-over itself
 * takes hardly any time. */
static void shorten_mxnets(const struct placing *p)
{
    enum { HANDING_OVER_NS = 1000 };
    for (size_t i = 0; i < p->refs.n; i++) {
        struct trace_span *span = &p->rank->spans[p->refs.at[i].span];
        if (is_mxnets(&p->trace->names, span) && span->dur_ns > HANDING_OVER_NS)
            span->dur_ns = HANDING_OVER_NS;
    }
}

void hand_overs_take(struct placing *p, uint32_t *enqueues)
{
    take_named(p, enqueues);
    if (p->refs.n > 0 && p->refs.at[0].place == NO_ID)
        take_nameless(p, enqueues);
    shorten_mxnets(p);
}

/* ---- clocks ---- */

/* Puts a profile whose times count from its own start on the timeline's clock: no tensor is reduced
 * before its hand-over, and some are reduced at once. The profile begins with the round for which
 * the waits differ least. */
void hand_overs_put_on_clock(struct placing *p)
{
    enum { ENOUGH = 4096 };
    struct trace_rank *rank = p->rank;
    uint32_t n_rounds = (uint32_t)p->rounds->rounds.n;
    size_t n_refs = MIN(p->refs.n, ENOUGH);
    double best_spread = -1;
    int64_t best_ns = 0;
    for (uint32_t first = 0; first < n_rounds; first++) {
        double sum = 0, squares = 0;
        int64_t least = INT64_MAX, first_wait = 0;
        size_t n = 0;
        for (size_t i = 0; i < n_refs; i++) {
            size_t round = first + i / p->fusion->n_tensors;
            uint32_t place = p->refs.at[i].place;
            if (round >= n_rounds)
                break;
            const struct fused_times *times =
                place == NO_ID ? NULL : times_of(p, (uint32_t)round, place);
            if (!times)
                continue;
            int64_t wait = times->start_ns - p->refs.at[i].start_ns;
            first_wait = n == 0 ? wait : first_wait;
            double ms = (double)(wait - first_wait) / 1e6; /* waits are decades, all alike */
            sum += ms;
            squares += ms * ms;
            least = MIN(least, wait);
            n++;
        }
        double spread = n > 0 ? squares / (double)n - sum / (double)n * (sum / (double)n) : 0;
        if (n * 2 > n_refs && (best_spread < 0 || spread < best_spread)) {
            best_spread = spread;
            best_ns = least;
        }
    }
    if (best_spread < 0 || best_ns > TRACE_TIME_MAX / 2 || best_ns < -TRACE_TIME_MAX / 2)
        return;
    rank_shift(rank, best_ns);
    for (size_t i = 0; i < p->refs.n; i++)
        p->refs.at[i].start_ns += best_ns;
}
