/* The field's own measures of a job, beside the causes. */
#pragma once

#include <dpro/replay.h>

#include "graph/graph.h"

/* POP's efficiencies, from 0 to 1. parallel = load_balance * serialisation * transfer. */
struct pop {
    bool known; /* false: no rank computes */
    double parallel;
    double load_balance;  /* useful time of the mean rank / of the busiest */
    double serialisation; /* the busiest rank's / the iteration on an ideal network */
    double transfer;      /* the iteration on an ideal network / the iteration */
    double launch; /* of ranks with a GPU: useful / (useful + GPU idle, neither communicating nor
                      waiting for peers); below 0: there are none */
};
/* One more replay of a job. */
struct pop pop_of(const struct dpro_graph *graph, const struct dpro_replay_view *replay,
                  int threads);

/* Arithmetic of all ranks in an iteration, by family and precision, against what the device can
 * do; all but MFU are sums or means over the ranks whose shapes are known. */
struct roofline {
    uint32_t n_ranks;             /* of which shapes are known; 0: all else is, too */
    const char *device;           /* "": not known */
    const struct device_peak *is; /* NULL: its peak is the fastest op of the recording */
    double peak[N_PRECISIONS];    /* FLOP/s; 0: nothing of that precision is computed */
    struct family_work of[N_FAMILIES][N_PRECISIONS]; /* of the mean rank */
    double mfu;         /* time that the arithmetic takes at the peak, of the iteration */
    double busy;        /* what ops with shapes take, of all computing */
    bool lacks_strides; /* of convolutions: MFU is not known */
    bool of_stages;     /* a timeline of stages: it has no shapes */
    bool of_pytorch;    /* whose profiler can record them */
};
void roofline_make(const struct dpro_graph *graph, const struct dpro_replay_view *replay,
                   struct roofline *roofline);
/* FLOP/s that memory allows for ops that compute so much for each byte; the peak where it does not
 * limit, or where it is not known. */
double roofline_limit(const struct roofline *roofline, enum op_precision precision,
                      double flops_per_byte);

/* What a diagnosis says beside its causes. */
struct dpro_measures {
    const struct dpro_replay_view *replay;
    struct pop pop;
    struct roofline roofline;
};
