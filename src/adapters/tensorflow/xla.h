/* Ops that XLA ran on several devices of one process, as XSpace has them. */
#pragma once

#include "base/base.h"

struct trace_part;

#define XLA_STEPS 1 /* a program's number that no program has */

struct xla_op {
    uint64_t device;  /* its number, as the file gives it */
    uint64_t program; /* that the op, or all of a run, is of; 0: not known; XLA_STEPS: a step */
    uint64_t run;     /* of the program, common to all devices; 0: not known */
    int64_t start_ns, end_ns;
    int64_t line;  /* that the file lists it on */
    uint32_t name; /* string id */
    uint32_t hlo;  /* string id of the instruction as XLA writes it; 0: not known */
    bool whole;    /* one run of a program, as the file lists them */
};

struct xla {
    ARRAY(struct xla_op) ops;
    uint32_t n_devices_named; /* that one of its collectives lists at most; 0: none lists any */
};

/* Makes a part for each device that there is an op of: the first replaces *part, the others follow
 * it. Ops lie on one track, those that overlap on further ones. An iteration begins with each run
 * of the program that runs least often. */
void xla_split(const struct xla *xla, struct trace_part *part);

/* The same for a part with the work of several GPUs, which JAX drives from one process, and the
 * calls that launched it. */
void xla_split_gpus(struct trace_part *part);

/* "%all-reduce.1 = f32[256,512]{1,0} all-reduce(...), replica_groups={{0,1},{2,3}}": the
 * instruction's own name and its kind of op. What is no such text is a name. */
struct xla_text {
    const char *name, *opcode;
    size_t name_len, opcode_len; /* opcode_len 0: not told */
};
struct xla_text xla_read_text(const char *text, size_t len);
