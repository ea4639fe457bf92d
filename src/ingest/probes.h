/* ingest/probes.h: what modules take when they are computed in other ways, as dpro's recorder
 * measured it outside of training (doc/formats/probes.md). */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include <dpro/model.h>

/* One way to compute a module. Times are medians and standard errors over repetitions. */
struct probe_cost {
    bool is_known; /* false: it was not measured, or failed */
    struct dpro_estimate forward_ns, backward_ns;
    uint64_t kept_bytes; /* between its passes, without inputs and parameters; 0: not known */
    int64_t compile_ns;
    uint32_t n_graphs, n_breaks; /* of torch.compile */
    uint32_t problem;            /* string id: why not; 0 */
};

/* A module, or neighbours that run one after the other and are compiled as one; and those alike,
 * which were not measured again. */
struct probe {
    uint32_t first, n; /* names, into `names` of all probes */
    uint32_t n_in_run; /* how many neighbours each consists of: 1, a module. The names are
                          then those of one run after the other */
    struct probe_cost costs[DPRO_N_COMPUTINGS];
};

/* Of one rank; the device's name and versions say where they hold. */
struct probes {
    struct probe *probes;
    uint32_t *names; /* string ids */
    uint32_t n_probes, n_names;
    uint32_t device, device_name, torch; /* string ids */
};
