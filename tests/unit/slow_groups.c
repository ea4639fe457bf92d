/* From moment to moment, everything is looked at anew. */
#include "slow_groups.h"

#include <math.h>

#include "cost/program/evaluator.h"

enum { MOST_RANKS = 16, MOST_COMMUNICATIONS = 32, MOST_ITERATIONS = 16 };

enum state { OPEN, QUEUES, IN_LATENCY, FLOWS };

struct slow_communication {
    enum state state;
    uint32_t n_issued, n_ended;
    uint64_t turn;
    double left_ns, share, ended_ns;
    bool is_given;
};

struct slow_rank {
    uint32_t op, iteration;
    bool waited; /* for what its op needs */
    double left_ns, done_ns[MOST_ITERATIONS];
};

struct slow {
    const struct dpro_model *m;
    struct slow_communication c[MOST_COMMUNICATIONS];
    struct slow_rank r[MOST_RANKS];
    uint64_t n_turns;
    double now_ns;
};

static const struct model_group *group_of(const struct slow *s, uint32_t c)
{
    return &s->m->groups[s->m->communications[c].group];
}

static bool uses(const struct slow *s, uint32_t c, uint32_t rank, bool out, bool within)
{
    const struct model_group *g = group_of(s, c);
    for (uint32_t i = 0; i < g->n_ranks; i++)
        if (g->ranks[i] == rank && g->within == within && (!g->sends || out == (i == 0)))
            return true;
    return false;
}

/* Progressive filling: the link with the least for each that has nothing yet gives it. */
static void share(struct slow *s)
{
    uint32_t n = s->m->n_communications, n_left = 0;
    for (uint32_t c = 0; c < n; c++) {
        s->c[c].is_given = s->c[c].state != FLOWS;
        n_left += !s->c[c].is_given;
    }
    while (n_left > 0) {
        double least = INFINITY;
        uint32_t tightest = 0;
        for (uint32_t link = 0; link < 4 * s->m->n_ranks; link++) {
            double left = 1, open = 0;
            for (uint32_t c = 0; c < n; c++)
                if (s->c[c].state == FLOWS && uses(s, c, link / 4, link & 1, link & 2)) {
                    left -= s->c[c].is_given ? s->c[c].share : 0;
                    open += !s->c[c].is_given;
                }
            if (open > 0 && left / open < least) {
                least = left / open;
                tightest = link;
            }
        }
        for (uint32_t c = 0; c < n; c++)
            if (!s->c[c].is_given && uses(s, c, tightest / 4, tightest & 1, tightest & 2)) {
                s->c[c].is_given = true;
                s->c[c].share = least;
                n_left--;
            }
    }
}

static double rate_of(const struct slow *s, uint32_t rank)
{
    bool between = false, within = false;
    for (uint32_t c = 0; c < s->m->n_communications; c++) {
        bool here = s->c[c].state == FLOWS;
        between |= here && (uses(s, c, rank, true, false) || uses(s, c, rank, false, false));
        within |= here && (uses(s, c, rank, true, true) || uses(s, c, rank, false, true));
    }
    const struct model_link *link = &s->m->net.link;
    return between  ? evaluator_rate(link, link->byte_ns.value)
           : within ? evaluator_rate(link, link->within_ns.value)
                    : 1;
}

/* Time until the rank has what it waits for and what others have; 0: it does not wait for that. */
static double lag_left(const struct slow *s, uint32_t rank)
{
    const struct slow_rank *r = &s->r[rank];
    const struct model_op *op = &s->m->programs[s->m->ranks[rank].program].ops[r->op];
    if (r->waited || r->iteration == MOST_ITERATIONS || op->needs == MODEL_NONE ||
        s->c[op->needs].n_ended != r->iteration + !op->needs_before)
        return 0;
    return fmax(0, s->c[op->needs].ended_ns + op->lag_ns - s->now_ns);
}

/* All that happens now, until nothing does. */
static bool go_on(struct slow *s)
{
    bool any = false;
    for (uint32_t i = 0; i < s->m->n_ranks; i++) {
        struct slow_rank *r = &s->r[i];
        const struct model_program *p = &s->m->programs[s->m->ranks[i].program];
        const struct model_op *op = &p->ops[r->op];
        if (r->iteration == MOST_ITERATIONS)
            continue;
        if (!r->waited) {
            if (op->needs != MODEL_NONE &&
                s->c[op->needs].n_ended < r->iteration + !op->needs_before)
                continue;
            if (lag_left(s, i) > 1e-6)
                continue;
            r->waited = any = true;
            r->left_ns = (double)op->work_ns * s->m->ranks[i].work_scale;
        }
        if (r->left_ns > 1e-6)
            continue;
        if (op->tensor != MODEL_NONE) {
            struct slow_communication *c = &s->c[op->tensor];
            if (c->n_ended < r->iteration)
                continue;
            if (++c->n_issued == group_of(s, op->tensor)->n_ranks) {
                c->n_issued = 0;
                c->state = QUEUES;
                c->turn = s->n_turns++;
            }
        }
        any = true;
        r->waited = false;
        if (++r->op == p->n_ops) {
            r->done_ns[r->iteration++] = s->now_ns;
            r->op = 0;
        }
    }
    return any;
}

static bool begin_next(struct slow *s, uint32_t group)
{
    uint32_t n_under_way = 0, first = MODEL_NONE;
    for (uint32_t c = 0; c < s->m->n_communications; c++) {
        if (s->m->communications[c].group != group)
            continue;
        n_under_way += s->c[c].state == IN_LATENCY || s->c[c].state == FLOWS;
        if (s->c[c].state == QUEUES && (first == MODEL_NONE || s->c[c].turn < s->c[first].turn))
            first = c;
    }
    if (first == MODEL_NONE || n_under_way >= s->m->groups[group].n_streams)
        return false;
    s->c[first].state = IN_LATENCY;
    s->c[first].left_ns = model_group_cost(s->m, &s->m->communications[first]).latency_ns;
    return true;
}

static void settle(struct slow *s)
{
    for (bool any = true; any;) {
        any = go_on(s);
        for (uint32_t c = 0; c < s->m->n_communications; c++) {
            struct slow_communication *it = &s->c[c];
            if (it->state == IN_LATENCY && it->left_ns <= 1e-6) {
                it->state = FLOWS;
                it->left_ns = model_group_cost(s->m, &s->m->communications[c]).wire_ns;
                any = true;
            }
            if (it->state == FLOWS && it->left_ns <= 1e-6) {
                it->state = OPEN;
                it->n_ended++;
                it->ended_ns = s->now_ns;
                any = true;
            }
        }
        for (uint32_t g = 0; g < s->m->n_groups; g++)
            any |= begin_next(s, g);
    }
    share(s);
}

double slow_groups_period(const struct dpro_model *model, uint32_t n)
{
    struct slow s = {.m = model};
    for (;;) {
        double step = INFINITY, last[2] = {0, 0};
        bool done = true;
        settle(&s);
        for (uint32_t i = 0; i < model->n_ranks; i++) {
            done &= s.r[i].iteration >= n;
            if (s.r[i].waited && s.r[i].left_ns > 0)
                step = fmin(step, s.r[i].left_ns / rate_of(&s, i));
            if (lag_left(&s, i) > 0)
                step = fmin(step, lag_left(&s, i));
        }
        for (uint32_t i = 0; i < model->n_ranks && done; i++) {
            last[0] = fmax(last[0], s.r[i].done_ns[n - 2]);
            last[1] = fmax(last[1], s.r[i].done_ns[n - 1]);
        }
        if (done)
            return last[1] - last[0];
        for (uint32_t c = 0; c < model->n_communications; c++) {
            if (s.c[c].state == IN_LATENCY)
                step = fmin(step, s.c[c].left_ns);
            if (s.c[c].state == FLOWS)
                step = fmin(step, s.c[c].left_ns / s.c[c].share);
        }
        if (isinf(step))
            return -1;
        for (uint32_t i = 0; i < model->n_ranks; i++)
            if (s.r[i].waited)
                s.r[i].left_ns -= step * rate_of(&s, i);
        for (uint32_t c = 0; c < model->n_communications; c++)
            s.c[c].left_ns -= s.c[c].state == FLOWS ? step * s.c[c].share : step;
        s.now_ns += step;
    }
}
