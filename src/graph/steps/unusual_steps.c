/* Iterations at a recording's ends that are unlike the others.
 *
 * The first one may hold work that was launched before the recording, the profiler's start, or the
 * job's warm-up; the first and the last one may be cut. They only serve to lead up to the next one.
 * What is odd is judged by how far the others differ, so jobs whose iterations vary keep theirs. */

#include "graph/steps/choose_steps.h"

/* The least and the most of a value in the other timed iterations. */
struct unusual_range {
    int64_t least, most;
};

struct judge {
    const struct rank_build *rank;
    uint32_t step; /* the one that is judged */
    uint32_t n_others;
};

static struct unusual_range range_of(const struct judge *j, size_t field)
{
    struct unusual_range range = {INT64_MAX, INT64_MIN};
    for (uint32_t s = 0; s < j->rank->steps.n; s++) {
        if (s == j->step || !j->rank->steps.at[s].timed)
            continue;
        int64_t value = *(const int64_t *)((const char *)&j->rank->steps.at[s].holds + field);
        range.least = MIN(range.least, value);
        range.most = MAX(range.most, value);
    }
    return range;
}
#define RANGE(j, field) range_of(j, offsetof(struct step_content, field))

static uint32_t count_others(const struct rank_build *rank, uint32_t step)
{
    uint32_t n = 0;
    for (uint32_t s = 0; s < rank->steps.n; s++)
        n += s != step && rank->steps.at[s].timed;
    return n;
}

/* Less by a tenth and by FEWEST than any other, which differ by a third of that at most. */
static bool is_cut(int64_t value, struct unusual_range others)
{
    enum { FEWEST = 10 };
    return value < others.least - others.least / 10 && value <= others.least - FEWEST &&
           others.most - others.least <= (others.least - value) / 3;
}

/* Longer than any other by a quarter, where iterations follow each other on the CPU, and by three
 * times what the others differ by. Where the GPU has work at all times, a twentieth either way is
 * odd: the ranks' GPUs get into step. Work that the others lack may be the job's own. */
static bool is_odd_length(const struct judge *j, size_t field, bool on_gpu,
                          struct unusual_range *took)
{
    int64_t ns = *(const int64_t *)((const char *)&j->rank->steps.at[j->step].holds + field);
    *took = range_of(j, field);
    int64_t spread = took->most - took->least, off = ns - took->most;
    if (on_gpu && took->least - ns > off)
        off = took->least - ns;
    return off / 3 > spread && off > took->most / (on_gpu ? 20 : 4);
}

/* As measured, or on the CPU alone, whose work the GPU's pace does not show. */
static bool is_warm_up(const struct judge *j, int64_t *ns, struct unusual_range *took)
{
    const struct step_content *c = &j->rank->steps.at[j->step].holds;
    bool ahead = j->rank->pace.track != NO_ID;
    if (j->n_others < 3 || c->n_meetings > RANGE(j, n_meetings).most)
        return false;
    *ns = c->ns;
    if (is_odd_length(j, offsetof(struct step_content, ns), ahead, took))
        return true;
    *ns = c->cpu_ns;
    return is_odd_length(j, offsetof(struct step_content, cpu_ns), false, took);
}

/* A tenth or more of what it launched, and of the first steps' next to nothing. */
static bool lost_work(const struct judge *j)
{
    enum { FEWEST = 10 };
    const struct step_content *c = &j->rank->steps.at[j->step].holds;
    return c->n_lost >= FEWEST && c->n_lost > (c->n_lost + c->n_works) / 10 &&
           RANGE(j, n_lost).least < c->n_lost / 10;
}

/* Without a GPU, whose buffers overflow, those of a whole file that have an optimizer's step. */
bool step_is_whole(const struct rank_build *rank, uint32_t s)
{
    const struct step *step = &rank->steps.at[s];
    return step->holds.n_works == 0 &&
           (rank->steps.source == STEPS_OPTIMIZER ||
            step->holds.n_meetings > step->holds.n_collectives) &&
           step->window < rank->trace->n_windows && !rank->trace->windows[step->window].is_cut;
}

/* Says why the step is odd; false: it is not. */
static bool find_reason(const struct judge *j, bool first, char *text, size_t size)
{
#define REASON(...) (snprintf(text, size, __VA_ARGS__), true)
    const struct step_content *c = &j->rank->steps.at[j->step].holds;
    struct unusual_range ops = RANGE(j, n_ops), works = RANGE(j, n_works), took;
    int64_t ns;
    if (first && MAX(c->n_works, works.most) > 0 && c->before_ns > c->ns / 20 &&
        c->before_ns / 4 > RANGE(j, before_ns).most)
        return REASON("the GPU was still busy with %" PRId64
                      " kernels (%.2f ms) that were launched "
                      "before the recording began",
                      c->n_before, (double)c->before_ns / 1e6);
    if (j->n_others == 0)
        return false;
    if (!first && lost_work(j))
        return REASON("the recording ended before the GPU had done %" PRId64 " of the %" PRId64
                      " pieces of work that it was given",
                      c->n_lost, c->n_lost + c->n_works);
    if (!step_is_whole(j->rank, j->step) && (is_cut(c->n_ops, ops) || is_cut(c->n_works, works))) {
        bool on_gpu = !is_cut(c->n_ops, ops);
        return REASON("it holds %" PRId64 " %s where the others hold %" PRId64
                      " or more: the recording "
                      "%s within it",
                      on_gpu ? c->n_works : c->n_ops, on_gpu ? "pieces of work on the GPU" : "ops",
                      on_gpu ? works.least : ops.least, first ? "began" : "ended");
    }
    if (!first || !is_warm_up(j, &ns, &took))
        return false;
    return REASON(
        "it took %.2f ms where the others take %.2f to %.2f ms, as in a profiler's start or a "
        "job's warm-up",
        (double)ns / 1e6, (double)took.least / 1e6, (double)took.most / 1e6);
}

/* The same iteration of every rank is left out: by its number, or where ranks count differently by
 * its place. */
static bool leave_out(struct chooser *c, uint32_t r, uint32_t step)
{
    int64_t number = c->ranks[r].steps.at[step].number;
    bool by_number = true, by_place = true;
    EACH_OF (const struct rank_build, rank, c->ranks, c->n_ranks) {
        bool has = false;
        for (size_t s = 0; s < rank->steps.n; s++)
            has |= rank->steps.at[s].number == number;
        by_number &= has;
        by_place &= rank->steps.n == c->ranks[r].steps.n;
    }
    if (!by_number && !by_place)
        return false;
    for (uint32_t other = 0; other < c->n_ranks; other++)
        for (uint32_t s = 0; s < c->ranks[other].steps.n; s++)
            if (by_number ? c->ranks[other].steps.at[s].number == number : s == step)
                c->ranks[other].steps.at[s].timed = false;
    return true;
}

static void judge_end(struct chooser *c, uint32_t r, struct judge *j, bool first)
{
    struct left_out odd = {.number = j->rank->steps.at[j->step].number, .rank = r, .leads = first};
    j->n_others = count_others(j->rank, j->step);
    odd.kept = j->n_others == 0;
    if (!find_reason(j, first, odd.reason, sizeof odd.reason) ||
        (!odd.kept && !leave_out(c, r, j->step)))
        return;
    array_push(&c->choice.left_out, odd);
}

/* Each row of iterations that follow each other has two ends. Several at its end may lack the work
 * that the GPU had not come to. */
static void judge_rank(struct chooser *c, uint32_t r)
{
    struct rank_build *rank = &c->ranks[r];
    struct judge j = {.rank = rank};
    for (int last = 0; last < 2; last++) {
        bool goes_on = false;
        for (uint32_t i = 0; i < rank->steps.n; i++) {
            uint32_t s = last ? (uint32_t)rank->steps.n - 1 - i : i;
            bool follows = last ? s + 1 < rank->steps.n && rank->steps.at[s + 1].follows
                                : rank->steps.at[s].follows;
            j.step = s;
            if (rank->steps.at[s].timed && (!follows || (goes_on && lost_work(&j))))
                judge_end(c, r, &j, !last);
            goes_on = last && !rank->steps.at[s].timed;
        }
    }
}

/* What follows a rank's last step, such as collectives of ranks that had more input, is no part of
 * it, nor does the end tell which ones of the others' it is. */
static void leave_out_late(struct chooser *c, uint32_t r)
{
    struct rank_build *rank = &c->ranks[r];
    struct unusual_range took;
    for (uint32_t s = 0; s < rank->steps.n; s++) {
        const struct step_content *holds = &rank->steps.at[s].holds;
        struct judge j = {.rank = rank, .step = s, .n_others = count_others(rank, s)};
        int64_t most = RANGE(&j, n_meetings).most;
        if ((s + 1 < rank->steps.n && rank->steps.at[s + 1].follows) || !rank->steps.at[s].timed ||
            j.n_others < 3 || holds->n_meetings <= most ||
            !is_odd_length(&j, offsetof(struct step_content, ns), false, &took))
            continue;
        struct left_out odd = {.number = rank->steps.at[s].number, .rank = r};
        snprintf(odd.reason, sizeof odd.reason,
                 "it communicates %" PRId64 " times where the others do so %" PRId64
                 " times or less, and takes %.2f ms: it goes on after the job's last step",
                 holds->n_meetings, most, (double)holds->ns / 1e6);
        rank->steps.at[s].timed = false;
        array_push(&c->choice.left_out, odd);
    }
}

void late_steps_leave_out(struct chooser *c)
{
    for (uint32_t r = 0; r < c->n_ranks && !c->options->first_step && !c->options->last_step; r++)
        if (!c->ranks[r].trace->in_session)
            leave_out_late(c, r);
}

void unusual_steps_leave_out(struct chooser *c)
{
    if (c->options->first_step != 0 || c->options->last_step != 0)
        return; /* they were chosen */
    for (uint32_t r = 0; r < c->n_ranks; r++)
        if (!c->ranks[r].trace->in_session) /* each has a profile of its own */
            judge_rank(c, r);
}
