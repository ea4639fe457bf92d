/* Learns what communications of groups take, and the links that carry them: of the time of each
 * with the links to itself (cost/learn/fit_shares.c) the mean over the iterations is its latency
 * and the time of its bytes. Links are learnt from all communications together: those of several
 * sizes tell a byte from latency. */
#include <float.h>

#include "cost/learn/fit.h"

/* When each rank has it, with the links to itself: of ranks that take turns in being the last, all
 * are. What the first one has it earlier than the last is no part of its time. */
static void measure_lags(const struct fitting *f)
{
    struct dpro_model *m = f->model;
    SCRATCH double *room = mem_alloc((f->r->n + (size_t)1) * sizeof *room);
    SCRATCH double *most = mem_array(m->n_communications + (size_t)1, sizeof *most);
    SCRATCH int64_t *last_ns =
        mem_array((size_t)m->n_communications * f->r->n + 1, sizeof *last_ns);
    for (uint32_t k = 0; k < m->n_communications; k++)
        for (uint32_t s = 0; s < f->r->n; s++)
            last_ns[(size_t)k * f->r->n + s] = fit_last_end(f, f->coarse->collective_of[k], s);
    EACH_OF (struct coarse_issue, issue, f->coarse->issues, f->coarse->n_issues) {
        for (uint32_t s = 0; s < f->r->n; s++) {
            const int64_t *end_ns = f->r->copies[f->r->first + s].end_ns;
            double late = (double)(last_ns[(size_t)issue->communication * f->r->n + s] -
                                   end_ns[issue->transfer]);
            room[s] = late * f->shares[(size_t)s * m->n_communications + issue->communication];
        }
        issue->lag_ns = stats_median(room, f->r->n);
        most[issue->communication] = fmax(most[issue->communication], issue->lag_ns);
    }
    EACH_OF (struct coarse_issue, issue, f->coarse->issues, f->coarse->n_issues) {
        issue->lag_ns =
            fmin(most[issue->communication], m->communications[issue->communication].took_ns) -
            issue->lag_ns;
        issue->lag_ns = fmax(issue->lag_ns, 0);
    }
    for (uint32_t k = 0; k < m->n_communications; k++)
        m->communications[k].took_ns = fmax(0, m->communications[k].took_ns - most[k]);
}

/* ---- links ---- */

#define ONE_SIZE(where)                                                                            \
    "all communications " where " are of one size: how their time splits into latency and bytes "  \
    "is assumed, and intervals of other bandwidths are wider for it"
#define UNKNOWN_SIZES                                                                              \
    "the trace does not say how large some communications are: their time counts as that of "      \
    "bytes, at the bandwidth of the others"

#define BUFFERED                                                                                   \
    "no communication %s is larger than what buffers hold (256 KiB), which take it before the "    \
    "link has carried it: the link's rate is anything from %.3g MB/s to the learnt one; give "     \
    "--bandwidth "                                                                                 \
    "as a ratio (2x), or record larger batches"

/* Learns a byte's and a message's time of links within hosts, or of the others. */
static void fit_link(const struct fitting *f, const double *times, bool within,
                     struct dpro_estimate *byte_ns, struct dpro_estimate *message_ns)
{
    const struct dpro_model *m = f->model;
    struct dpro_estimate base, usual = f->on_cpu ? FIT_TCP_MESSAGE_NS : FIT_PROXY_MESSAGE_NS;
    SCRATCH fit_points points = {0};
    double steps = 0, bytes = 0, least = DBL_MAX;
    bool told = false; /* by others */
    EACH_OF (const struct model_communication, c, m->communications, m->n_communications)
        told |= m->groups[c->group].within == within && c->link_bytes > 0 && c->turns <= 1;
    for (uint32_t k = 0; k < m->n_communications; k++) {
        const struct model_communication *c = &m->communications[k];
        for (uint32_t s = 0; s < f->r->n && m->groups[c->group].within == within; s++) {
            double took = fmax(0, times[(size_t)s * m->n_communications + k] - c->waits_ns);
            if (c->n_steps > 0 && took > 0)
                least = fmin(least, took / c->n_steps);
            if (c->link_bytes <= 0 || (told && c->turns > 1))
                continue;
            struct fit_point point = {c->link_bytes, took, 1 / (c->link_bytes + 1), 0};
            array_push(&points, point);
            steps += c->n_steps;
            bytes += c->link_bytes;
        }
    }
    /* no message takes longer than half of the shortest that was seen */
    if (least < DBL_MAX && usual.value > least / 2)
        usual = (struct dpro_estimate){least / 2, least / 2};
    *message_ns = usual;
    *byte_ns = (struct dpro_estimate){0};
    if (points.n == 0)
        return;
    bool tell = fit_line(&points, byte_ns, &base);
    steps /= (double)points.n;
    if (tell) {
        struct dpro_estimate seen = {base.value / steps, base.std / steps + 1};
        *message_ns = fit_combine(usual, seen);
    } else {
        double mean = bytes / (double)points.n;
        array_push(&f->model->warnings, within ? ONE_SIZE("within hosts") : ONE_SIZE("on links"));
        byte_ns->value = fmax(byte_ns->value - steps * usual.value / mean, byte_ns->value / 2);
        byte_ns->std = hypot(byte_ns->std, steps * usual.std / mean);
    }
}

/* What buffers hold passes at their speed, not at that of the link: of that only whole iterations
 * tell, which can't have had more bytes than it carries. */
static void doubt_rate(const struct fitting *f, bool within, struct dpro_estimate *byte_ns)
{
    enum { IN_USE = 2 }; /* a link that was for half of an iteration was not idle before */
    struct dpro_model *m = f->model;
    double largest = 0, bytes = model_sent_bytes(m, f->g->n_ranks, within, &largest);
    double slowest_ns = bytes > 0 ? (double)m->measured_ns / bytes : 0;
    if (byte_ns->value <= 0 || largest > MODEL_BUFFER_BYTES ||
        slowest_ns <= IN_USE * byte_ns->value)
        return;
    byte_ns->std = fmax(byte_ns->std, (slowest_ns - byte_ns->value) / sqrt(12)); /* any as likely */
    if (within || f->net->link.byte_ns.std <= 0) /* else buckets tell */
        array_push(&m->warnings,
                   arena_format(&m->arena, BUFFERED, within ? "within hosts" : "on links",
                                1e3 / slowest_ns));
}

/* Their bytes are those that their time would carry. */
static void fit_unknown_sizes(const struct fitting *f)
{
    struct dpro_model *m = f->model;
    struct model_link *link = &f->net->link;
    bool any = false;
    EACH_OF (struct model_communication, c, m->communications, m->n_communications) {
        const struct model_group *group = &m->groups[c->group];
        struct dpro_estimate *byte_ns = group->within ? &link->within_ns : &link->byte_ns;
        double message_ns = link_times_of(link, group->within).message_ns;
        if (c->size_bytes > 0 || c->n_steps <= 0 || c->kind == DPRO_BARRIER)
            continue;
        link->is_rate_unknown |= byte_ns->value <= 0;
        if (byte_ns->value <= 0)
            *byte_ns = fit_within(1, 0.5);
        c->link_bytes =
            fmax(0, c->took_ns - c->waits_ns - c->n_steps * message_ns) / byte_ns->value;
        any = true;
    }
    if (any)
        array_push(&m->warnings, UNKNOWN_SIZES);
}

/* Of each kind, what the rank has for which it takes longest; of several such the first. */
static void list_kinds(const struct fitting *f)
{
    struct dpro_model *m = f->model;
    size_t n_ranks = f->g->n_ranks;
    SCRATCH struct dpro_communications *own = mem_array((UINT8_MAX + 1) * n_ranks, sizeof *own);
    m->kinds = arena_array(&m->arena, m->n_communications + (size_t)1, sizeof *m->kinds);
    EACH_OF (const struct model_communication, c, m->communications, m->n_communications)
        for (uint32_t i = 0; i < m->groups[c->group].n_ranks; i++) {
            struct dpro_communications *of = &own[c->kind * n_ranks + m->groups[c->group].ranks[i]];
            of->n++;
            of->size_bytes += c->size_bytes;
            of->took_ns += llround(c->took_ns);
        }
    m->n_kinds = 0;
    EACH_OF (const struct model_communication, c, m->communications, m->n_communications) {
        struct dpro_communications most = {.n = 0};
        bool known = false;
        for (uint32_t i = 0; i < m->n_kinds; i++)
            known |= m->kinds[i].kind == c->kind;
        for (size_t r = 0; r < n_ranks && !known; r++)
            if (own[c->kind * n_ranks + r].n > 0 &&
                (most.n == 0 || own[c->kind * n_ranks + r].took_ns > most.took_ns))
                most = own[c->kind * n_ranks + r];
        most.kind = c->kind;
        if (!known)
            m->kinds[m->n_kinds++] = most;
    }
}

/* The mean over iterations that tell; 1: none does. */
static double flown_part(const struct fitting *f, uint32_t communication)
{
    double flown_ns = 0, took_ns = 0;
    for (uint32_t s = 0; s < f->r->n; s++) {
        size_t at = (size_t)s * f->model->n_communications + communication;
        if (f->flown[at] < 0)
            continue;
        flown_ns += f->flown[at] * f->times[at];
        took_ns += f->times[at];
    }
    return took_ns > 0 ? flown_ns / took_ns : 1;
}

/* How far two ranks take turns is chance: where others tell what a byte takes, their time does. */
static void see_turns(const struct fitting *f)
{
    for (uint32_t k = 0; k < f->model->n_communications; k++) {
        struct model_communication *c = &f->model->communications[k];
        struct link_times link = link_times_of(&f->net->link, f->model->groups[c->group].within);
        double wire_ns = 0, own_ns = c->sent_bytes * link.byte_ns;
        for (uint32_t s = 0; s < f->r->n; s++)
            wire_ns += f->times[(size_t)s * f->model->n_communications + k] / f->r->n;
        wire_ns -= c->waits_ns + c->n_steps * link.message_ns;
        if (c->turns <= 1 || own_ns <= 0)
            continue;
        c->turns = fmin(fmax(wire_ns / own_ns, 1), c->turns);
        c->link_bytes = c->turns * c->sent_bytes;
    }
}

/* A link takes no time for bytes while no message with bytes is under way: an idle one has room for
 * some in its buffers. */
static void limit_bytes(const struct fitting *f)
{
    const struct model_link *link = &f->net->link;
    for (uint32_t k = 0; k < f->model->n_communications; k++) {
        struct model_communication *c = &f->model->communications[k];
        const struct model_group *group = &f->model->groups[c->group];
        double byte_ns = link_times_of(link, group->within).byte_ns;
        if (byte_ns > 0)
            c->link_bytes = fmin(c->link_bytes, flown_part(f, k) * c->took_ns / byte_ns);
    }
}

void fit_groups(const struct fitting *f)
{
    struct dpro_model *m = f->model;
    struct model_link *link = &f->net->link;
    const double *times = f->times;
    for (uint32_t k = 0; k < m->n_communications; k++) {
        double sum = 0;
        for (uint32_t s = 0; s < f->r->n; s++)
            sum += times[(size_t)s * m->n_communications + k];
        m->communications[k].took_ns = f->r->n > 0 ? sum / f->r->n : 0;
    }
    measure_lags(f);
    fit_hosts(f);
    link->own_links = !f->on_cpu;
    struct model_link seen = {0};
    fit_link(f, times, false, &seen.byte_ns, &seen.message_ns);
    fit_link(f, times, true, &link->within_ns, &link->within_message_ns);
    doubt_rate(f, false, &seen.byte_ns);
    doubt_rate(f, true, &link->within_ns);
    if (link->byte_ns.std > 0 && seen.byte_ns.std > 0) /* buckets tell, too */
        link->byte_ns = fit_combine(link->byte_ns, seen.byte_ns);
    else if (link->byte_ns.value <= 0)
        link->byte_ns = seen.byte_ns;
    if (m->n_tensors == 0) {
        link->message_ns = seen.message_ns;
        fit_interference(f);
    }
    see_turns(f);
    limit_bytes(f);
    fit_unknown_sizes(f);
    f->net->learnt = *link;
    f->net->took_ratio = 1;
    list_kinds(f);
}
