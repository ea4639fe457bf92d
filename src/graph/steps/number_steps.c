/* Which iterations of the ranks are the same one.
 *
 * A rank's iterations have the job's numbers, its own profiler's, or their places. So equal numbers
 * may be of two iterations where its recording begins later than another's. But ranks leave a
 * collective at the same time: with the right numbers, the last collectives of all iterations end
 * equally far apart on both clocks. Where that does not tell, and numbers can't, the clocks do. */

#include "graph/steps/choose_steps.h"

typedef ARRAY(struct step *) timed_array;

/* How far the ends of iterations of one number are apart, once a rank's numbers are shifted. */
struct ends_apart {
    int64_t shift, least_ns, most_ns;
    size_t n, n_met; /* those in which both ranks left a collective */
};

static int64_t wrapped_less(int64_t a, int64_t b)
{
    return (int64_t)((uint64_t)a - (uint64_t)b);
}

static int64_t end_of(const struct step *step)
{
    return step->holds.n_collectives > 0 ? step->holds.left_ns : step->end_ns;
}

static bool is_counted(const struct rank_build *rank)
{
    return !rank->steps.named && rank->steps.source != STEPS_NONE &&
           rank->steps.source <= STEPS_RECORDED;
}

static timed_array list_timed(const struct rank_build *rank)
{
    timed_array list = {0};
    EACH (struct step, step, rank->steps)
        if (step->timed)
            array_push(&list, step);
    return list;
}

static struct ends_apart compare_ends(const timed_array *lead, const timed_array *own,
                                      int64_t shift)
{
    struct ends_apart apart = {shift, INT64_MAX, INT64_MIN, 0, 0};
    for (size_t i = 0, k = 0; i < lead->n && k < own->n;) {
        int64_t beyond = wrapped_less(wrapped_less(lead->at[i]->number, shift), own->at[k]->number);
        if (beyond == 0) {
            int64_t ns = wrapped_less(end_of(own->at[k]), end_of(lead->at[i]));
            apart.least_ns = MIN(apart.least_ns, ns);
            apart.most_ns = MAX(apart.most_ns, ns);
            apart.n++;
            apart.n_met +=
                lead->at[i]->holds.n_collectives > 0 && own->at[k]->holds.n_collectives > 0;
        }
        i += beyond <= 0;
        k += beyond >= 0;
    }
    return apart;
}

static uint64_t spread_of(const struct ends_apart *apart)
{
    return (uint64_t)apart->most_ns - (uint64_t)apart->least_ns;
}

/* Between the clocks, as they would be. */
static double offset_of(const struct ends_apart *apart)
{
    return fabs((double)apart->least_ns / 2 + (double)apart->most_ns / 2);
}

/* What to add to the rank's numbers. *beside_ns: how far iterations of equal numbers end apart
 * where the clocks would give them other numbers, and nothing else tells; else 0. */
static int64_t find_shift(const timed_array *lead, const timed_array *own, bool comparable,
                          enum numbered_by *by, int64_t *beside_ns)
{
    /* A recording begins up to BESIDE iterations later. FEWEST iterations tell more than chance,
     * where their ends fit so many times as well as with any other shift. */
    enum { BESIDE = 16, FEWEST = 4, CLEARER = 8 };
    double half_ns = (double)wrapped_less(end_of(lead->at[lead->n - 1]), lead->at[0]->start_ns) /
                     2 / (double)lead->n;
    struct ends_apart base = compare_ends(lead, own, 0);
    bool sure = comparable && base.n > 0;
    if (!sure)
        base = compare_ends(lead, own, wrapped_less(lead->at[0]->number, own->at[0]->number));
    struct ends_apart best = base, nearest = base;
    uint64_t next = UINT64_MAX;
    for (size_t i = 0; i < 2 * BESIDE; i++) {
        size_t a = i % 2 ? i / 2 : 0, b = i % 2 ? 0 : i / 2;
        if (a >= lead->n || b >= own->n)
            continue;
        struct ends_apart apart =
            compare_ends(lead, own, wrapped_less(lead->at[a]->number, own->at[b]->number));
        if (apart.shift == best.shift || apart.n * 2 < MIN(lead->n, own->n))
            continue;
        if (offset_of(&apart) < offset_of(&nearest))
            nearest = apart;
        if (apart.n < FEWEST || apart.n_met < apart.n)
            continue;
        bool better = spread_of(&apart) < spread_of(&best);
        next = MIN(next, spread_of(better ? &best : &apart));
        if (better)
            best = apart;
    }
    *by = NUMBERED_BY_ENDS;
    *beside_ns = 0;
    if (best.n >= FEWEST && best.n_met == best.n && next < UINT64_MAX &&
        next > CLOCK_ROUNDING_NS * CLEARER && spread_of(&best) < next / CLEARER)
        return best.shift;
    if (sure && nearest.shift != base.shift && nearest.n_met > 0 && offset_of(&nearest) <= half_ns)
        *beside_ns = llround(offset_of(&base));
    *by = NUMBERED_BY_CLOCKS;
    if (!sure && offset_of(&nearest) <= half_ns)
        return offset_of(&base) <= half_ns ? base.shift : nearest.shift;
    *by = NUMBERED_BY_PLACE;
    return base.shift;
}

void steps_number(struct chooser *c)
{
    struct step_choice *choice = &c->choice;
    while (choice->lead < c->n_ranks && !is_counted(&c->ranks[choice->lead]))
        choice->lead++;
    choice->lead %= c->n_ranks;
    SCRATCH timed_array lead = list_timed(&c->ranks[choice->lead]);
    for (uint32_t r = 0; r < c->n_ranks && lead.n > 0; r++) {
        SCRATCH timed_array own = list_timed(&c->ranks[r]);
        bool comparable = is_counted(&c->ranks[r]) == is_counted(&c->ranks[choice->lead]);
        enum numbered_by by;
        int64_t beside_ns = 0;
        int64_t shift = own.n == 0 ? 0 : find_shift(&lead, &own, comparable, &by, &beside_ns);
        if (beside_ns > 0 && choice->n_beside++ == 0) {
            choice->beside = r;
            choice->beside_ns = beside_ns;
        }
        if (shift == 0)
            continue;
        if (choice->n_renumbered++ == 0)
            choice->renumbered = r;
        choice->numbered_by = MAX(choice->numbered_by, by);
        EACH (struct step, step, c->ranks[r].steps)
            step->number = wrapped_less(step->number, wrapped_less(0, shift));
        EACH (struct left_out, odd, choice->left_out)
            if (odd->rank == r)
                odd->number = wrapped_less(odd->number, wrapped_less(0, shift));
    }
}
