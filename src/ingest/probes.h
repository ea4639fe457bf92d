/* What modules take when they are computed in other ways, as dpro's recorder measured it outside of
 * training (doc/formats/probes.md). */
#pragma once

#include "base/base.h"

#include <dpro/model.h>

/* A pass on a GPU: until its last kernel was launched, and the time that its kernels take. Against
 * the module as it is, and of it as it is, in ns; 0: not known. */
struct probe_bounds {
    double launch, device, own_launch_ns, own_device_ns;
};

/* One way to compute a module; times against it as it is, with standard errors. */
struct probe_cost {
    bool is_known; /* false: it was not measured, or failed */
    struct dpro_estimate forward, backward;
    struct probe_bounds forward_bounds, backward_bounds;
    int64_t backward_ns; /* median */
    uint64_t kept_bytes; /* between its passes, without inputs and parameters; 0: not known */
    uint32_t n_graphs;   /* of torch.compile */
    uint32_t problem;    /* string id: why it can't be; 0 */
    uint32_t left_out;   /* string id: why it was not measured; 0 */
};

/* As it is, of a batch so many times as large. */
struct probe_batch {
    double ratio;
    struct probe_cost cost;
};

/* Beside the ways of enum dpro_computing: computed again in its backward pass, as it is. */
#define PROBE_RECOMPUTED DPRO_N_COMPUTINGS
#define N_PROBE_WAYS     (DPRO_N_COMPUTINGS + 1)

/* A module, and those alike, which were not measured again. */
struct probe {
    uint32_t class;    /* string id */
    uint32_t first, n; /* into names */
    struct probe_cost costs[N_PROBE_WAYS];
    uint32_t first_batch, n_batches; /* into batches */
};

/* Of one rank; the device's name and versions say where they hold. */
struct payload_kind;
struct dpro_probes {
    struct strtab strings;
    ARRAY(struct probe) probes;
    ARRAY(uint32_t) names; /* string ids */
    ARRAY(struct probe_batch) batches;
    uint32_t schema, device_name, torch, tensorflow; /* string ids; "": not said */
    uint64_t threads;                                /* 0: not said */
    double fault_ns;    /* of a page fault; no times have any in them; 0: they have, or not said */
    uint64_t n_broken;  /* entries that make no sense, left out */
    bool of_another;    /* run than the trace's */
    bool other_threads; /* than the trace's own probes had */
};

extern const struct payload_kind probes_payload;

/* The name of a way in files: "eager", "compile", "bf16", "compile+bf16", "recompute". */
const char *probe_way_name(unsigned way);
