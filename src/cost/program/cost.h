/* From a recorded graph to a model (cost/program/model.h): the steps, inside the library. */
#pragma once

#include <dpro/dimensions.h>

#include "cost/program/model.h"
#include "graph/graph.h"
#include "replay/replay.h"

struct probe;

/* ---- measured_replay.c: the recorded iterations, replayed ---- */

struct measured_replay {
    struct arena arena;
    const struct dpro_graph *graph;
    uint32_t n_copies, first, n; /* copies [first, first + n) are the measured iterations in order,
                                    or one with mean durations if there are none */
    bool any_slow;               /* of the measured iterations */
    struct replay_copy *copies;
};

/* `progress` is told of each iteration; NULL: nobody is. */
void measured_replay_run(const struct dpro_graph *graph, const struct dpro_sink *progress,
                         struct measured_replay *replay);
void measured_replay_fini(struct measured_replay *replay);

static inline int64_t measured_start_ns(const struct measured_replay *r, uint32_t copy, uint32_t op)
{
    return r->copies[copy].end_ns[op] - r->copies[copy].dur_ns[op];
}

/* When an op begins, or ends, in the mean of the measured iterations. */
static inline int64_t measured_mean_ns(const struct measured_replay *r, uint32_t op, bool begins)
{
    int64_t sum = 0;
    for (uint32_t copy = r->first; copy < r->first + r->n; copy++)
        sum += (begins ? measured_start_ns(r, copy, op) : r->copies[copy].end_ns[op]) / r->n;
    return sum;
}

/* ---- check.c ---- */

/* Ranks of the job, as far as the trace and its collectives tell. */
uint32_t job_size(const struct dpro_graph *graph);
/* The job's first dimension of that kind; NULL: it has none. */
const struct graph_dimension *job_dimension(const struct dpro_graph *graph,
                                            enum dpro_parallelism parallelism);
/* The job is a single process, without communication. */
bool is_single(const struct dpro_graph *graph);
bool rank_has_gpu(const struct dpro_graph *graph, const struct graph_rank *rank);
/* The GPU's stream that computes longest; DPRO_NO_DEVICE: it has none. */
uint32_t rank_main_stream(const struct dpro_graph *graph, const struct graph_rank *rank);
bool job_has_gpu(const struct dpro_graph *graph); /* its first rank; NULL: no */

/* Whether the op's time counts as its rank's computation, reading input included. */
static inline bool op_computes(const struct dpro_graph *graph, uint32_t op)
{
    return graph->phase[op] <= DPRO_OP_INPUT;
}

/* Of a pass forward or back. */
static inline bool op_is_of_pass(const struct dpro_graph *graph, uint32_t op)
{
    return graph->phase[op] == DPRO_OP_FW || graph->phase[op] == DPRO_OP_BW;
}

/* ---- gradients.c: the tensors of a model ---- */

/* Whether tensors without names can be gradients. False: the backward pass goes on with one before
 * it makes another, as with activations of layers that are split (tensor parallelism). */
bool unnamed_are_gradients(const struct dpro_graph *graph);
/* Whether the tensor is a gradient of the first rank that is reduced with all others. `unnamed`: if
 * those without names can be any. */
bool is_gradient(const struct dpro_graph *graph, const struct graph_tensor *tensor, bool unnamed);

/* ---- coarsen.c: a rank's ops as a program ---- */

/* Where a rank's computation meets communication: gradients get ready, or it waits for one. */
struct sync_point {
    uint32_t op;     /* the op that waits (needs), or after which the tensor is ready; of a group's
                        communication the rank's arrival */
    uint32_t tensor; /* as in struct model_op; with `needs`, the first of the bucket */
    bool needs;
    bool before;     /* needs that of the iteration before */
    int64_t when_ns; /* mean, to order them */
};

/* The time between a sync point and the one before it, in one iteration. */
struct segment {
    int64_t elapsed_ns;    /* waiting left out */
    int64_t overlapped_ns; /* the part of it in which the rank communicated */
};

struct coarse_rank {
    struct sync_point *sync_points; /* in the order in which they come */
    uint32_t n_points;
    uint64_t *family;               /* of the segment before each: equal for the same work */
    struct segment *segments;       /* [iteration * n_points + sync point] */
    double communicates_ns;         /* mean time of an iteration in which it communicates */
    int64_t copy_back_ns;           /* mean work from the first wait to the last bucket's copying */
    uint32_t first_issue, n_issues; /* what it communicates in groups */
    bool drains;                    /* it waits for all buckets in order, after the last gradient */
};

/* A rank's part in a communication of a group. */
struct coarse_issue {
    uint32_t rank, communication;
    uint32_t arrival, transfer; /* ops */
    int64_t *ready_ns; /* [iterations] when the rank had come to it and had what it sends */
    double lag_ns;     /* time until the rank has it, from when the first of its ranks has */
};

struct coarse {
    struct arena arena;
    struct coarse_rank *ranks;
    uint32_t *collective_of;     /* by communication of a group: the graph's collective */
    struct coarse_issue *issues; /* by rank */
    uint32_t n_issues;
    uint32_t *bucket_of;   /* by tensor: the graph's collective; in a session its exchange */
    uint32_t *exchange_of; /* by tensor: the graph's exchange; NULL: no servers */
    uint32_t *ready;       /* [rank * n_tensors + tensor] op after which it is ready; DPRO_NO_OP */
    uint32_t *first_of;    /* by bucket: the first tensor in it; MODEL_NONE */
    uint32_t n_buckets;
    uint32_t *transfer_of; /* by op: 1 + the bucket that arrives with it; 0: none */
};

/* Fills in the model's tensors and all arrays of `coarse` by tensor, bucket or op. */
void find_gradients(const struct measured_replay *replay, struct dpro_model *model,
                    struct coarse *coarse);

/* ---- communications.c: what groups of ranks communicate beside buckets ---- */

/* Whether a graph has any that a model can be learnt of. */
bool has_communications(const struct dpro_graph *graph);
/* What a kind of communication sends over a rank's link, of its contribution, and the messages that
 * follow each other; of n ranks, by rings as libraries do it for large sizes. */
struct traffic {
    double share, n_steps;
};
struct traffic communication_traffic(uint8_t kind, const char *pattern, double n);
/* Fills in the model's groups and communications, all but their times, and what `coarse` has of
 * them. */
void find_communications(const struct dpro_graph *graph, struct dpro_model *model,
                         struct coarse *coarse);

/* ---- coarsen.c ---- */

/* Finds the model's tensors and each rank's segments between them. */
void model_coarsen(const struct measured_replay *replay, struct dpro_model *model,
                   struct coarse *coarse);

/* ---- programs.c ---- */

/* The model's ranks and their programs. */
void make_programs(const struct measured_replay *replay, const struct coarse *coarse,
                   struct dpro_model *model);

/* The op of a rank's program in which an op of the rank begins. Ops behind the last gradient belong
 * to the first op of the program, as they lead up to the next step's first gradient; if `backward`,
 * to the last one. */
uint32_t program_op_of(const struct measured_replay *replay, const struct model_program *program,
                       uint32_t op, bool backward);

/* ---- least_times.c ---- */

/* What the threads that launch a GPU's work would take for an iteration if nothing but them took
 * time; 0: no rank has any. */
int64_t launching_alone(const struct dpro_graph *graph);
/* Whether no thread ever waits for its GPU. */
bool launches_run_ahead(const struct dpro_graph *graph);
/* The model's least times. Where launches fill an iteration and run ahead, programs are what the
 * GPU works, without its waiting for them. */
void learn_least_times(const struct dpro_graph *graph, const struct coarse *coarse,
                       struct dpro_model *model);

/* ---- batch.c ---- */

/* Of an op, what it takes on nothing: PyTorch's dispatch and allocation on a CPU, a kernel's launch
 * on a GPU. */
#define BATCH_CPU_OP_NS 10000
#define BATCH_GPU_OP_NS 2000

/* Which part of the programs' work does not grow with the batch. */
void learn_batch_shares(const struct measured_replay *replay, struct dpro_model *model);
void learn_batch_curve(struct dpro_model *model);
/* Whether the batch can be cut, once the modules are known. */
void learn_batch_cut(const struct dpro_graph *graph, struct dpro_model *model);
/* Whether modules of that class compute statistics over a batch, in training. */
bool has_batch_statistics(const char *class);

/* ---- module_costs.c ---- */

/* The time of the programs' calls of modules, and of modules in other ways: from probes of them or
 * of modules within them, or for 16 bits from their ops. */
void learn_module_costs(const struct measured_replay *replay, struct dpro_model *model);
/* The probe of that module among the model's; NULL: there is none. */
const struct probe *probe_of(const struct dpro_model *model, const struct model_module *module);
/* Of the modules that were probed on a GPU, the time of launches against that of kernels, as they
 * are; 0: not known. */
double probed_launches(const struct dpro_model *model);
/* What was measured of a module alone, in a step with such launches. */
struct probe_bounds;
struct dpro_estimate probe_in_step(struct dpro_estimate alone, const struct probe_bounds *bounds,
                                   double launches);
/* Whether a probe is of any of the job's modules. */
bool probes_match(const struct dpro_model *model);

/* ---- page_faults.c ---- */

/* What a rank computes in an iteration, the mean. */
double model_work_ns(const struct dpro_model *model);
/* Of the programs' work, what page faults take in the job; 0 where its probes don't say what one
 * takes. */
double page_fault_share(const struct dpro_model *model);
/* What was probed without page faults, with such a share of them as it is and `pages` times as many
 * otherwise: none to twice that are as likely, as malloc gives pages back by what else is in its
 * heap. */
struct dpro_estimate with_page_faults(struct dpro_estimate probed, double share, double pages);

/* ---- model_pace.c ---- */

/* Fills in the times of the job's iterations. */
void measure_iterations(const struct dpro_graph *graph, const struct dpro_model_options *options,
                        struct dpro_model *model);
/* Finds the job's time without dpro, and scales the model until an iteration takes that. */
void fit_pace(struct dpro_model *model);
void set_pace(struct dpro_model *model, struct model_pace pace);
/* Scales a model of other links and work until an iteration takes target_ns, as near as it gets. */
void pace_changed(struct dpro_model *changed, double target_ns);

/* ---- model.c ---- */

/* A replay with other durations tells what the model leaves out, such as threads that launch a
 * GPU's work or compute side by side. Returns what an iteration by the model is to take. */
double model_change_by(const struct measured_replay *changed, struct arena *arena,
                       struct dpro_model *model);
/* Besides, lets it take that by pace_changed(). */
void model_pace_by(const struct measured_replay *changed, struct arena *arena,
                   struct dpro_model *model);

/* ---- fit.c: what communicating costs ---- */

void fit_net(const struct measured_replay *replay, struct coarse *coarse, struct dpro_model *model);

/* Of a job that accumulates gradients without no_sync(): each micro-batch reduces all of them, and
 * no bucket can hold those of two. */
void refuse_micro_batches(const struct dpro_model *model);

/* ---- program_pieces.c: which ops of the graph the work of a program's ops is of ---- */

struct program_piece {
    uint32_t at;   /* op of the program */
    uint32_t op;   /* of the graph */
    bool before;   /* of the iteration before: the program begins behind its last wait */
    double ns;     /* of the program's op's work, */
    double gap_ns; /* the part of that in which nothing runs before the op */
};

struct program_pieces {
    struct program_piece *all; /* in the order in which the program does them */
    uint32_t n;
};

/* Of a rank's program as it was learnt of `timed`, a graph of the ops that were recorded. In the
 * arena. */
struct program_pieces program_pieces_of(const struct measured_replay *recorded,
                                        const struct dpro_graph *timed,
                                        const struct dpro_model *model, uint32_t rank,
                                        struct arena *arena);
