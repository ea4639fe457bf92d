/* Which part of the graph makes the replay contradict what was measured.
 *
 * The replay contradicts the measurement if it lies outside the 95 % interval of the measured mean
 * (Student's t). Then the shown iteration is compared rank by rank and kind by kind: how long
 * anything of a kind went on when measured, and how long in the replay. */
#include "report/facts.h"

#include "base/intervals.h"
#include "graph/graph.h"
#include "report/slices.h"
#include "report/words.h"

enum { PART_WAIT = DPRO_N_OP_KINDS, PART_IDLE, N_PARTS };

static const double LEAST_PCT = 1; /* less is no contradiction, however alike the iterations are */
static const double DOUBT_PCT = 10;

struct part_times {
    interval_array at[2]; /* measured, replayed */
};

/* The 0.975 quantile of Student's t. */
static double contradiction_student(uint32_t freedom)
{
    static const double first[] = {12.706, 4.303, 3.182, 2.776, 2.571,
                                   2.447,  2.365, 2.306, 2.262, 2.228};
    double n = freedom;
    return freedom <= 10 ? first[freedom ? freedom - 1 : 0] : 1.96 + 2.38 / n + 2.8 / (n * n);
}

/* How long any was going on, and how long all took together. */
static int64_t contradiction_unite(interval_array *times, int64_t *sum_ns)
{
    int64_t any = 0;
    *sum_ns = 0;
    EACH (struct interval, time, *times)
        *sum_ns = time_add(*sum_ns, time->end_ns - time->start_ns);
    intervals_join(times);
    EACH (struct interval, time, *times)
        any = time_add(any, time->end_ns - time->start_ns);
    return any;
}

/* By rank and kind. */
static void list_times(const struct report_facts *f, const struct slices *slices,
                       struct part_times *times)
{
    const struct dpro_graph *g = f->report->graph;
    EACH_OF (const struct slice_track, track, slices->tracks, slices->n_tracks) {
        EACH (const struct drawn_slice, s, *track) {
            struct interval interval = {s->start_ns, s->start_ns + s->dur_ns};
            int kind = s->waiting ? PART_WAIT : g->kind[s->op];
            if (g->rank[s->op] >= f->n_ranks || s->dur_ns == 0)
                continue;
            struct part_times *parts = &times[(size_t)g->rank[s->op] * N_PARTS];
            array_push(&parts[kind].at[track->replayed], interval);
            array_push(&parts[PART_IDLE].at[track->replayed], interval);
        }
    }
}

static int64_t shown_ns(const struct report_facts *f, bool replayed)
{
    const struct dpro_graph *g = f->report->graph;
    if (replayed)
        return g->shown_sample < f->n_replayed ? f->replay->iterations_ns[g->shown_sample]
                                               : f->predicted_ns;
    return g->shown_sample < f->n_measured ? f->measured[g->shown_sample] : f->measured_ns;
}

static int64_t contradiction_difference(const struct part_fact *part)
{
    return llabs(part->replayed_ns - part->measured_ns);
}

ORDER(by_difference, struct part_fact,
      COMPARE(contradiction_difference(y), contradiction_difference(x)) ?: ASCENDING(rank) ?:
      ASCENDING(kind));

static const char *part_words(const struct report_facts *f, int kind)
{
    return kind == PART_WAIT            ? "waiting for peers"
           : kind == PART_IDLE          ? "idle"
           : kind == DPRO_OP_COLLECTIVE ? "collectives"
                                        : facts_kind_words(f, (enum dpro_op_kind)kind);
}

static void fill_parts(struct report_facts *f, struct part_times *times)
{
    for (uint32_t r = 0; r < f->n_ranks; r++)
        for (int kind = 0; kind < N_PARTS; kind++) {
            struct part_times *t = &times[(size_t)r * N_PARTS + (size_t)kind];
            struct part_fact part = {
                .rank = f->ranks[r].time.rank, .kind = kind, .what = part_words(f, kind)};
            if (t->at[0].n == 0 && t->at[1].n == 0)
                continue;
            part.measured_ns = contradiction_unite(&t->at[0], &part.measured_sum_ns);
            part.replayed_ns = contradiction_unite(&t->at[1], &part.replayed_sum_ns);
            if (kind == PART_IDLE) {
                int64_t measured = shown_ns(f, false) - part.measured_ns;
                int64_t replayed = shown_ns(f, true) - part.replayed_ns;
                part.measured_ns = part.measured_sum_ns = measured > 0 ? measured : 0;
                part.replayed_ns = part.replayed_sum_ns = replayed > 0 ? replayed : 0;
            }
            f->parts[f->n_parts++] = part;
        }
    qsort(f->parts, f->n_parts, sizeof *f->parts, by_difference);
}

/* How a part's ops lie in time otherwise than when measured; "": they do not. */
static const char *contradiction_reason(const struct part_fact *p)
{
    double measured = p->measured_ns > 0 ? (double)p->measured_sum_ns / (double)p->measured_ns : 1;
    double replayed = p->replayed_ns > 0 ? (double)p->replayed_sum_ns / (double)p->replayed_ns : 1;
    if (p->replayed_ns > p->measured_ns && measured > 1.25 && replayed < 1 + (measured - 1) / 2)
        return " (they overlap in the recording, the replay runs them one after the other)";
    if (p->replayed_ns < p->measured_ns && replayed > 1.25 && measured < 1 + (replayed - 1) / 2)
        return " (one came after the other in the recording, they overlap in the replay)";
    return "";
}

/* The part that differs most in the direction in which the iteration does; NULL: none does. Idling
 * and waiting are named only where no work differs by a quarter of the whole. */
static const struct part_fact *find_worst(const struct report_facts *f)
{
    const struct part_fact *rest = NULL;
    int64_t whole = llabs(shown_ns(f, true) - shown_ns(f, false));
    EACH_OF (const struct part_fact, part, f->parts, f->n_parts) {
        int64_t longer = part->replayed_ns - part->measured_ns;
        if (longer == 0 || (longer > 0) != (f->error_pct > 0))
            continue;
        if (part->kind < DPRO_N_OP_KINDS && llabs(longer) >= whole / 4)
            return part;
        rest = rest ? rest : part;
    }
    return rest;
}

static void say_worst(struct report_facts *f)
{
    const struct part_fact *p = find_worst(f);
    if (!p)
        return;
    const char *replayed = TIME(p->replayed_ns), *measured = TIME(p->measured_ns);
    if (p->kind >= DPRO_N_OP_KINDS)
        snprintf(f->contradiction, sizeof f->contradiction,
                 p->kind == PART_IDLE ? "rank %d idles %s in the replay, %s measured"
                                      : "rank %d waits %s for its peers in the replay, %s measured",
                 p->rank, replayed, measured);
    else
        snprintf(f->contradiction, sizeof f->contradiction,
                 "rank %d has %s of %s in the replay, %s measured%s", p->rank, replayed, p->what,
                 measured, contradiction_reason(p));
}

void contradiction_find(struct report_facts *f)
{
    const struct dpro_graph *g = f->report->graph;
    double off_ns = fabs(f->error_pct) / 100 * (double)f->measured_ns;
    struct slices slices;
    f->known_to_ns = -1;
    if (f->n_measured > 1)
        f->known_to_ns = llround(contradiction_student(f->n_measured - 1) * (double)f->std_ns /
                                 sqrt(f->n_measured));
    if (!f->comparable || !g->seen_start_ns || !g->seen_dur_ns)
        return;
    bool doubtful = fabs(f->error_pct) > DOUBT_PCT;
    f->contradicts =
        f->known_to_ns >= 0 && fabs(f->error_pct) > LEAST_PCT && off_ns > (double)f->known_to_ns;
    if (!f->contradicts && !doubtful)
        return;
    slices_init(&slices, g, f->replay);
    size_t n = (size_t)f->n_ranks * N_PARTS;
    struct part_times *times = mem_array(n, sizeof *times);
    f->parts = arena_array(&f->arena, n, sizeof *f->parts);
    list_times(f, &slices, times);
    fill_parts(f, times);
    say_worst(f);
    for (size_t i = 0; i < n; i++) {
        array_fini(&times[i].at[0]);
        array_fini(&times[i].at[1]);
    }
    mem_free(times);
    slices_fini(&slices);
}
