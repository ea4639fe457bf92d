/* The cost of all-reduces that run one after the other: Horovod's groups, all that its timeline
 * has, and the packs of TensorFlow's ring, where a step has several.
 *
 * Two forms are fitted, and the one closer to the measurements is used: base + bytes * slope, or
 * max(least, bytes * slope), as where waiting for other processes overlaps the transfer. Either is
 * scaled so that the total time of the measured ones, but for outliers, is as measured. */

#include "cost/learn/fit.h"

struct reduction {
    double bytes, took_ns;
    double kept_ns; /* what of it counts: a rank that comes late is no cost */
};

typedef ARRAY(struct reduction) reduction_array;

struct form {
    double byte_ns, base_ns, least_ns;
    double off; /* squares of what it is off by */
};

static double by_form(const struct form *form, const struct reduction *r)
{
    return fmax(form->base_ns + form->byte_ns * r->bytes, form->least_ns);
}

static void measure_form(const reduction_array *seen, struct form *form)
{
    form->off = 0;
    for (size_t i = 0; i < seen->n; i++) {
        double off = seen->at[i].kept_ns - by_form(form, &seen->at[i]);
        form->off += off * off;
    }
}

static struct form with_base(const reduction_array *seen)
{
    struct dpro_estimate byte, base;
    SCRATCH fit_points points = {0};
    for (size_t i = 0; i < seen->n; i++)
        array_push(&points, ((struct fit_point){seen->at[i].bytes, seen->at[i].kept_ns, 1, 0}));
    fit_line(&points, &byte, &base);
    struct form form = {.byte_ns = byte.value, .base_ns = base.value};
    measure_form(seen, &form);
    return form;
}

/* Those above some size take their time by the byte, the others their mean: until none changes
 * sides. */
static struct form with_least(const reduction_array *seen)
{
    enum { MOST_ROUNDS = 20 };
    struct form start = with_base(seen);
    struct form form = {.byte_ns = start.byte_ns, .least_ns = start.base_ns};
    for (int round = 0; round < MOST_ROUNDS; round++) {
        double bytes = 0, large_ns = 0, small_ns = 0, n_small = 0;
        EACH (const struct reduction, r, *seen) {
            if (form.byte_ns * r->bytes > form.least_ns) {
                bytes += r->bytes;
                large_ns += r->kept_ns;
            } else {
                small_ns += r->kept_ns;
                n_small++;
            }
        }
        if (bytes > 0)
            form.byte_ns = large_ns / bytes;
        if (n_small > 0)
            form.least_ns = small_ns / n_small;
    }
    measure_form(seen, &form);
    return form;
}

/* One of the forms, fitted again with what is far off cut to three standard deviations. */
static struct form fit_form(reduction_array *seen, struct form (*fit)(const reduction_array *))
{
    enum { MOST_ROUNDS = 5 };
    const double FAR = 3 * 1.4826; /* median distances */
    SCRATCH double *off = mem_alloc(seen->n * sizeof *off);
    for (size_t i = 0; i < seen->n; i++)
        seen->at[i].kept_ns = seen->at[i].took_ns;
    struct form form = fit(seen);
    for (int round = 0; round < MOST_ROUNDS; round++) {
        for (size_t i = 0; i < seen->n; i++)
            off[i] = fabs(seen->at[i].took_ns - by_form(&form, &seen->at[i]));
        double most = FAR * stats_median_upper(off, seen->n);
        for (size_t i = 0; i < seen->n; i++) {
            double ns = by_form(&form, &seen->at[i]);
            seen->at[i].kept_ns = fmin(fmax(seen->at[i].took_ns, ns - most), ns + most);
        }
        form = fit(seen);
    }
    return form;
}

/* Each bucket on each rank, from when all were there. */
static void see_packs(const struct fitting *f, reduction_array *seen)
{
    EACH_OF (const struct fit_transfer, t, f->transfers, f->n_transfers) {
        struct reduction one = {.bytes = t->size_bytes,
                                .took_ns = t->took_ns + t->exchange_ns + t->gaps_ns};
        if (t->size_bytes > 0)
            array_push(seen, one);
    }
}

static void see_groups(const struct graph_cycles *cycles, reduction_array *seen)
{
    for (uint32_t i = 0; i < cycles->n_reductions; i++) {
        struct reduction one = {.bytes = (double)cycles->reductions[i].size_bytes,
                                .took_ns = (double)cycles->reductions[i].took_ns};
        array_push(seen, one);
    }
}

static void take_form(const struct form *form, const reduction_array *seen, struct model_net *net)
{
    double bytes = 0, n = (double)seen->n, messages = 2 * (net->collective.n_ranks - 1.0);
    double share = messages / net->collective.n_ranks; /* of a byte, on a rank's link */
    for (size_t i = 0; i < seen->n; i++)
        bytes += seen->at[i].bytes / n;
    double std_ns = sqrt(form->off / n) / sqrt(n > 2 ? n - 2 : 1); /* of their mean */
    net->link.byte_ns = (struct dpro_estimate){form->byte_ns / share, std_ns / bytes / share};
    if (net->link.message_ns.value > form->base_ns / messages)
        net->link.message_ns = (struct dpro_estimate){form->base_ns / messages, std_ns / messages};
    net->collective.overhead_ns =
        (struct dpro_estimate){form->base_ns - messages * net->link.message_ns.value, std_ns};
    net->collective.least_ns =
        (struct dpro_estimate){form->least_ns, form->least_ns > 0 ? std_ns : 0};
}

bool fit_reductions(const struct fitting *f)
{
    enum { LEAST_GROUPS = 4, LEAST_PACKS = 4 };
    const struct dpro_graph *g = f->g;
    struct model_net *net = f->net;
    SCRATCH reduction_array seen = {0};
    bool cycles = net->gate.negotiates && g->cycles.cycle_ns > 0;
    if (cycles)
        see_groups(&g->cycles, &seen);
    else
        see_packs(f, &seen);
    size_t least = cycles ? LEAST_GROUPS : (size_t)LEAST_PACKS * g->n_ranks;
    bool enough = seen.n >= least && net->collective.n_ranks > 1;
    if (enough) {
        struct form base = fit_form(&seen, with_base), floor = fit_form(&seen, with_least);
        take_form(floor.off < base.off ? &floor : &base, &seen, net);
        if (cycles) {
            net->gate.negotiate_ns = fit_within((double)g->cycles.negotiate_ns, 0.3);
            net->gate.cycle_ns = g->cycles.cycle_ns;
        }
    }
    return enough;
}
