/* Learning what communication costs, inside cost/. Each part reads the trace through a struct
 * fitting and fills in its numbers of the net. */
#pragma once

#include "cost/program/cost.h"

/* A rank's mean times in the collective of a bucket. */
struct fit_transfer {
    const struct graph_collective *collective;
    double size_bytes;
    double took_ns;     /* the transfer op: what follows its messages, or the whole transfer */
    double exchange_ns; /* its messages, from the last arrival on; 0: not known */
    double gaps_ns;     /* time until its thread took it, after all before it was done */
};

/* A message over a link, at a server from a rank or at a rank from a server. */
struct fit_served {
    uint32_t op, rank, server;
    uint32_t from; /* the sender's op before it */
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
    bool is_gloo; /* DDP's buckets go by gloo's threads, on the cores that compute */
    ARRAY(struct fit_served) served;
    /* where groups communicate, each with the links to itself (fit_shares.c): */
    double *times;   /* [iteration * n_communications + communication] */
    double *shares;  /* likewise: of the recorded time */
    double *flown;   /* likewise: the part of it in which messages with bytes were under way; -1:
                          not known */
    double *lost_ns; /* [iteration * n_tensors + a bucket's first] to communications; NULL: nothing
                      */
};

/* The collective of the tensor's bucket if the tensor is the first in it, else NULL: for loops over
 * buckets. */
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

/* The mean of a prior and of what was seen, each weighted by its certainty. Where they are further
 * apart than their errors explain, the errors are larger by that factor (Birge's ratio). */
static inline struct dpro_estimate fit_combine(struct dpro_estimate prior,
                                               struct dpro_estimate seen)
{
    double a = 1 / (prior.std * prior.std), b = 1 / (seen.std * seen.std);
    double value = fmax(0, seen.value);
    double apart = fabs(prior.value - value) / hypot(prior.std, seen.std);
    return (struct dpro_estimate){(a * prior.value + b * value) / (a + b),
                                  fmax(1, apart) / sqrt(a + b)};
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

/* Where ranks are, if the trace tells. */
static inline void fit_hosts(const struct fitting *f)
{
    const struct dpro_graph *g = f->g;
    if (g->rank_hosts)
        f->net->link.rank_hosts =
            arena_copy(&f->model->arena, g->rank_hosts, g->n_ranks, sizeof(uint32_t));
}

/* ---- fit_lines.c ---- */

struct fit_point {
    double x, y, weight;
    double held; /* part of x while the rank computed */
};
typedef ARRAY(struct fit_point) fit_points;

/* Fits y = slope * x + base, both at least 0, by weighted least squares; through the origin if all
 * x are equal, or one of them comes out below 0. Returns whether the x differ enough to tell the
 * slope from the base. */
bool fit_line(const fit_points *points, struct dpro_estimate *slope, struct dpro_estimate *base);
/* The same with what is far off cut to three standard deviations: that a rank comes late is no
 * cost. The points' y are cut, too. */
void fit_line_cut(fit_points *points, struct dpro_estimate *slope, struct dpro_estimate *base);
/* Fits y = slope * (x + k * held): while the rank computes, a transfer loses *share = k / (1 + k)
 * of its rate. False: the points show no loss. */
bool fit_held(const fit_points *points, struct dpro_estimate *slope, struct dpro_estimate *share);

/* The median with its standard error; frees the times. */
typedef ARRAY(double) fit_times;
struct dpro_estimate fit_median(fit_times *times);

/* ---- fit_links.c ---- */

/* What a message takes beside its bytes, where a trace cannot tell: two system calls, the network's
 * stack at both ends, a thread that wakes up, and half a round trip in a local network are 50 to
 * 200 us; on recordings that tell it was 0 to 430. NCCL's proxies don't sleep. */
#define FIT_TCP_MESSAGE_NS   ((struct dpro_estimate){100e3, 100e3})
#define FIT_PROXY_MESSAGE_NS ((struct dpro_estimate){20e3, 20e3})

/* When a link had something to carry, and how much. */
struct fit_busy {
    int64_t start_ns, end_ns;
    uint32_t link;
    double bytes;
    double lost_ns; /* of the time, to what shared the link */
};
/* Sorts the periods and joins those of a link with pauses of at most pause_ns. Returns how many are
 * left. */
size_t fit_busy_periods(struct fit_busy *busy, size_t n, int64_t pause_ns);

/* Learns links from the messages of buckets. */
void fit_bytes(const struct fitting *f);
void fit_messages(const struct fitting *f);
/* Whether most bytes have known messages. */
bool fit_has_messages(const struct fitting *f);
/* Learns links from whole collectives, each assumed to be alone on the link. */
void fit_collectives(const struct fitting *f);
/* Whether collectives that could run at the same time did; if so, learns from them. */
bool fit_at_once(const struct fitting *f);

/* Learns the cost of all-reduces that run one after the other, and for Horovod its cycles. False:
 * too few were seen. */
bool fit_reductions(const struct fitting *f);
/* Bytes over one direction of a rank's link, of a byte of bucket. */
double fit_wire_share(const struct model_net *net);

/* ---- fit_interference.c ---- */

/* On hosts of one core each, a pack took twice as long while gradients were still computed. Of four
 * jobs that trained by turns with more packs, one hid as much of their time as the model expected,
 * and three next to nothing. */
#define FIT_GRPC_HELD_SHARE ((struct dpro_estimate){0.6, 0.4})

/* Learns how much slower work is during communication. */
void fit_interference(const struct fitting *f);

/* ---- fit_shares.c ---- */

/* Fills in times and lost_ns. */
void fit_shares(struct fitting *f);
/* When the last of its ranks has it. */
int64_t fit_last_end(const struct fitting *f, uint32_t collective, uint32_t iteration);

/* ---- fit_groups.c ---- */

void fit_groups(const struct fitting *f);

/* ---- fit_servers.c ---- */

/* Learns the parameter servers and their times. */
void fit_servers(struct fitting *f);
