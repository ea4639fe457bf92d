/* What Kineto's profiles tell beside spans, and execution traces. */
#pragma once

#include "ingest/rank_job.h"

/* One end of a flow. */
struct kineto_flow {
    int64_t ts_ns;
    uint64_t id;
    uint32_t track;
    bool start; /* 's', else 'f' */
};

/* Spans of one category, or of none, on one track, of whose kind nothing is known. */
struct kineto_row {
    uint32_t track, category; /* of the part; string id, 0: none */
    uint8_t use;              /* enum row_use */
    bool on_stream, meets;    /* it names its stream; some span is a collective */
    uint64_t n;
};
enum row_use { ROW_DROPPED, ROW_ANNOTATES, ROW_OF_DEVICE, ROW_SUMS_UP, ROW_IS_PART };

struct kineto_part {
    ARRAY(struct kineto_row) rows;
    ARRAY(struct part_label) processes; /* id 1: process_name, 0: process_labels */
    ARRAY(struct kineto_flow) links;    /* fwdbwd */
    ARRAY(struct kineto_flow) launches; /* only while no span has a correlation */
    bool has_correlation;
    bool has_devices; /* rows were read as a device's */
    /* in the file's order; times without base_ns, tracks of the part, windows unset */
    ARRAY(struct trace_module_call) module_calls;
};
extern const struct payload_kind kineto_payload;

/* Arguments of a "[memory]" event. */
struct kineto_memory {
    uint64_t address;
    int64_t bytes;                  /* 0: not said */
    int64_t device_type, device_id; /* -1: not said */
    int64_t allocated_bytes, reserved_bytes;
};
extern const struct kineto_memory kineto_no_memory;

/* join_flows.c: allocations and calls of modules. */
void kineto_add_allocation(struct trace_part *part, uint32_t track, int64_t ts_ns,
                           const struct kineto_memory *memory);
void kineto_add_call(struct trace_part *part, uint32_t track, uint32_t name, int64_t start_ns,
                     int64_t end_ns);
void kineto_join(struct rank_job *job);

/* What PyTorch's execution trace (ET) holds. */
struct execution_trace {
    ARRAY(struct et_node) nodes;
    ARRAY(struct et_tensor) tensors;
};

extern const struct payload_kind et_payload;

/* join_et.c: which one is the rank's; and its nodes in the rank, with the spans that they are. */
void et_describe(struct trace_build *build, struct rank_job *job);
void et_join(struct rank_job *job);

/* ---- op_shapes.c: what an op computes, by the shapes of its inputs ---- */

enum { MOST_INPUTS = 12, MOST_DIMS = 6 };
/* Of "Input Dims" (a list with one entry an input: [2, 3] for a tensor, [[2], [3]] for a list of
 * tensors, [] for a tensor without dimensions and for what is no tensor), or of the numbers in
 * "Concrete Inputs", where True is 1 and False 0. */
struct op_shapes {
    uint8_t n[MOST_INPUTS];
    int64_t at[MOST_INPUTS][MOST_DIMS];
    uint64_t numel; /* of the first tensor, or list of tensors; 0: there is none */
    bool blank;     /* the first entry is [] */
};

/* Whether op_arithmetic() has a formula for ops of that name. */
bool op_is_counted(const char *name, size_t len);
/* Takes the next value; what is too much or no number is left out. False: it was too long. */
bool op_shapes_read(struct op_shapes *shapes, struct json *js);
/* `values`: the inputs that are no tensors. Leaves `work` as it is where nothing is counted. */
void op_arithmetic(const char *name, size_t len, const struct op_shapes *inputs,
                   const struct op_shapes *values, uint64_t item_bytes, struct arithmetic *work);
