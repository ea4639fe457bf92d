/* How much slower computation is beside communication, from repeated work that ran both with and
 * without it. */

#include "cost/learn/fit.h"

/* Where a trace cannot tell what communicating costs computation that shares its cores: TCP and
 * adding up, the kernel's work included. Six recordings that could tell took 1.1 to 5.4 ns a byte,
 * those with two ranks on a core the most: 2.7 in the mean, with a standard deviation of 1.7. The
 * width lets what a trace shows outweigh it. */
static const struct dpro_estimate TCP_CPU_NS = {2.5, 2};
/* TensorFlow's ring goes by gRPC: on a link of 10 Gbit/s, which it does not fill, a byte took a
 * core 4.2 ns, sending, receiving and adding up. */
static const struct dpro_estimate GRPC_CPU_NS = {4.2, 2};

/* Segments that are the same work: the part of its rate that it loses while something is on the
 * wires, and how sure that is. */
#define FAMILY_STD 0.1 /* works differ by that, however often they were seen */
typedef ARRAY(struct weighted) family_array; /* weight: 1 / variance */

struct sighting {
    uint64_t key;
    double elapsed_ns;
    bool overlapped;
};

ORDER(by_work, struct sighting, ASCENDING(key) ?: ASCENDING(overlapped) ?: ASCENDING(elapsed_ns));

static double median_of(const struct sighting *sorted, size_t n)
{
    return (sorted[(n - 1) / 2].elapsed_ns + sorted[n / 2].elapsed_ns) / 2;
}

/* How much sightings differ, relative; of few it is taken to be a third at least. */
static double spread_of(const struct sighting *sorted, size_t n)
{
    enum { FEW = 5 };
    double lower = sorted[(n - 1) * 16 / 100].elapsed_ns;
    double upper = sorted[(n - 1) - (n - 1) * 16 / 100].elapsed_ns;
    double spread = (upper - lower) / 2 / median_of(sorted, n);
    return n < FEW && spread < 1 / 3.0 ? 1 / 3.0 : spread;
}

/* A rank's segments that are the same work (repeated blocks, and iterations), seen mostly with and
 * mostly without communication. */
static void compare_work(const struct measured_replay *r, const struct coarse_rank *rank,
                         family_array *families)
{
    enum { SHORT_NS = 100000 };
    SCRATCH ARRAY(struct sighting) seen = {0};
    for (size_t i = 0; i < r->n * rank->n_points; i++) {
        const struct segment *s = &rank->segments[i];
        double share = s->elapsed_ns > 0 ? (double)s->overlapped_ns / (double)s->elapsed_ns : 0.5;
        uint64_t key = rank->family[i % rank->n_points];
        struct sighting sighting = {key, (double)s->elapsed_ns, share > 0.8};
        if (key != 0 && s->elapsed_ns > SHORT_NS && (share > 0.8 || share < 0.2))
            array_push(&seen, sighting);
    }
    array_sort(&seen, by_work);
    for (size_t i = 0, last; i < seen.n; i = last) {
        size_t alone = 0;
        for (last = i; last < seen.n && seen.at[last].key == seen.at[i].key; last++)
            alone += !seen.at[last].overlapped;
        size_t beside = last - i - alone;
        if (alone == 0 || beside == 0)
            continue;
        double without = median_of(seen.at + i, alone);
        double with = median_of(seen.at + i + alone, beside);
        double a = spread_of(seen.at + i, alone) / sqrt((double)alone);
        double b = fmax(spread_of(seen.at + i + alone, beside), spread_of(seen.at + i, alone)) /
                   sqrt((double)beside);
        double std = 1.25 * hypot(a, b) * (without / with);
        array_push(families, ((struct weighted){1 - without / with,
                                                1 / (std * std + FAMILY_STD * FAMILY_STD)}));
    }
}

/* The weighted median of the families, and its standard error: theirs, what they differ by, and
 * what they have in common. A median, as the first block of a model often is another work than it
 * seems. */
static struct dpro_estimate lost_share(family_array *families)
{
    static const double COMMON_STD = 0.06;
    double weights = 0, squares = 0, scatter = 0;
    double lost = stats_weighted_median(families->at, families->n);
    EACH (const struct weighted, family, *families) {
        weights += family->weight;
        squares += family->weight * family->weight;
        scatter += family->weight * (family->value - lost) * (family->value - lost);
    }
    double n = weights * weights / squares;
    double std = sqrt(1 / weights + 1.25 * 1.25 * scatter / weights / n);
    return (struct dpro_estimate){lost, std + COMMON_STD};
}

/* Where little was seen, what is usual counts more. */
void fit_interference(const struct fitting *f)
{
    struct model_link *link = &f->net->link;
    SCRATCH family_array families = {0};
    for (uint32_t i = 0; i < f->g->n_ranks; i++)
        compare_work(f->r, &f->coarse->ranks[i], &families);
    struct dpro_estimate usual = {0, 0.1 * link->byte_ns.value};
    if (f->on_cpu)
        usual = f->is_tensorflow_ring ? GRPC_CPU_NS : TCP_CPU_NS;
    if (f->on_cpu && f->is_tensorflow_ring)
        link->held_share = FIT_GRPC_HELD_SHARE;
    link->cpu_ns = usual;
    if (families.n > 0 && link->byte_ns.value > 0) {
        struct dpro_estimate lost = lost_share(&families);
        struct dpro_estimate seen = {lost.value * link->byte_ns.value,
                                     lost.std * link->byte_ns.value};
        link->cpu_ns = fit_combine(usual, seen);
    }
}
