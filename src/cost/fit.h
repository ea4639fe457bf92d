/* cost/fit.h: learning what communication costs, inside cost/. Each part reads the trace through a
 * struct fitting and fills in its numbers of the net. */
#pragma once

#include <math.h>

#include "cost/cost.h"

/* A rank's mean part in the collective of a bucket. */
struct fit_transfer {
    const struct graph_collective *collective;
    double size_bytes;
    double took_ns;     /* the transfer: what follows its messages, or all of it */
    double exchange_ns; /* its messages, from the last arrival on; 0: none are known */
    double gaps_ns;     /* until its thread came to it, with nothing before it any more */
};

/* What came from another process over a link: at a server from a rank, or the other way round. */
struct fit_served {
    uint32_t op, rank, server;
    uint32_t from; /* the sender's op that it follows */
};

struct fitting {
    const struct measured_replay *r;
    const struct dpro_graph *g;
    struct coarse *coarse;
    struct dpro_model *model;
    struct model_net *net;          /* the model's */
    struct fit_transfer *transfers; /* of all buckets and ranks; none where there are servers */
    size_t n_transfers;
    bool on_cpu; /* nothing runs on a GPU */
    bool is_tensorflow_ring;
    ARRAY(struct fit_served) served;
};

/* The collective of the tensor's bucket if the tensor is the first in it, else NULL: for what is
 * done once a bucket. */
static inline const struct graph_collective *fit_bucket(const struct fitting *f, uint32_t tensor)
{
    uint32_t bucket = f->coarse->bucket_of[tensor];
    return f->coarse->first_of[bucket] == tensor ? &f->g->collectives[bucket] : NULL;
}

/* An estimate with a standard error that is a share of it. */
static inline struct dpro_estimate fit_within(double value, double share)
{
    return (struct dpro_estimate){value, share * value};
}

/* The mean of what was prior knowledge and of what was seen, each by how sure it is. */
static inline struct dpro_estimate fit_combine(struct dpro_estimate prior,
                                               struct dpro_estimate seen)
{
    double a = 1 / (prior.std * prior.std), b = 1 / (seen.std * seen.std);
    return (struct dpro_estimate){(a * prior.value + b * fmax(0, seen.value)) / (a + b),
                                  1 / sqrt(a + b)};
}

/* The mean of values that are seen one by one, with its standard error. */
struct sums {
    double n, sum, squares;
};

static inline void sums_add(struct sums *sums, double value)
{
    sums->n++;
    sums->sum += value;
    sums->squares += value * value;
}

static inline struct dpro_estimate sums_mean(const struct sums *sums)
{
    double mean = sums->n > 0 ? sums->sum / sums->n : 0;
    double variance = sums->n > 0 ? sums->squares / sums->n - mean * mean : 0;
    return (struct dpro_estimate){mean, variance > 0 ? sqrt(variance / sums->n) : 0};
}

/* ---- fit_lines.c ---- */

struct fit_point {
    double x, y, weight;
    double held; /* how much of x there was while the rank computed */
};
typedef ARRAY(struct fit_point) fit_points;

/* y = slope * x + base, both at least 0, by weighted least squares; with x all the same: through
 * the origin. */
void fit_line(const fit_points *points, struct dpro_estimate *slope, struct dpro_estimate *base);
/* y = slope * (x + k * held), for how much longer what is held up takes: *share = k / (1 + k) of
 * its rate is lost. False: the points don't tell that anything is. */
bool fit_held(const fit_points *points, struct dpro_estimate *slope, struct dpro_estimate *share);

/* The median with its standard error; frees the times. */
typedef ARRAY(double) fit_times;
struct dpro_estimate fit_median(fit_times *times);

/* ---- fit_links.c ---- */

/* When a link had something to carry, and how much. */
struct fit_busy {
    int64_t start_ns, end_ns;
    uint32_t link;
    double bytes;
};
/* Sorts them, and joins those of a link that have no longer pause between them. How many are left.
 */
size_t fit_busy_periods(struct fit_busy *busy, size_t n, int64_t pause_ns);

/* Links by the messages of buckets. *start: what a busy period takes beside its bytes. */
void fit_bytes(const struct fitting *f, struct dpro_estimate *start);
void fit_messages(const struct fitting *f);
/* Whether what is known of most bytes is their messages. */
bool fit_has_messages(const struct fitting *f);
/* Links by whole collectives, each taken to have had the wires for itself. */
void fit_collectives(const struct fitting *f);
/* Of collectives that nothing keeps from running at once. Whether they did. */
bool fit_at_once(const struct fitting *f);

/* ---- fit_interference.c ---- */

/* And on hosts of one core each, a pack took twice as long while gradients were still computed. */
#define FIT_GRPC_HELD_SHARE ((struct dpro_estimate){0.4, 0.2})

/* How much slower work is while something is on the wires. */
void fit_interference(const struct fitting *f);

/* ---- fit_reductions.c ---- */

/* What all-reduces cost that run one after the other. With those of Horovod's its cycles are known,
 * too. False: too few were seen. */
bool fit_reductions(const struct fitting *f);

/* ---- fit_servers.c ---- */

enum { FIT_LONG_BYTES = 4096 }; /* what is shorter tells of messages, what is longer of bytes */
/* Who the parameter servers are, and what they do. */
void fit_servers(struct fitting *f);

/* ---- fit_session.c ---- */

void fit_session(struct fitting *f);
