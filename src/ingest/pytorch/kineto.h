/* ingest/pytorch/kineto.h: what Kineto's profiles tell beside spans. */
#pragma once

#include "ingest/rank_job.h"

/* One end of a flow. */
struct kineto_flow {
    int64_t ts_ns;
    uint64_t id;
    uint32_t track;
    bool start; /* 's', else 'f' */
};

struct kineto_flows {
    ARRAY(struct kineto_flow) links;    /* fwdbwd */
    ARRAY(struct kineto_flow) launches; /* only while no span has a correlation */
    bool has_correlation;
};
extern const struct payload_kind kineto_payload;

/* join_flows.c */
void kineto_reserve(struct trace_build *build, struct rank_job *job, struct rank_room *room);
void kineto_join(struct rank_job *job);
