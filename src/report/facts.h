/* The facts of a report, worked out once for text, JSON and HTML. */
#pragma once

#include <dpro/dimensions.h>
#include <dpro/report.h>

#include "base/writer.h"
#include "graph/dimensions/pipeline.h"
#include "replay/job_time.h"
#include "report/slices.h"
#include "report/warnings.h"

struct rank_fact {
    struct dpro_rank_time time;
    int64_t path_ns;   /* of the critical path, gaps included */
    int64_t waited_ns; /* that ranks wait for it, mean over all and over the iterations */
    int64_t later_ns;  /* how much later it comes than half of those who wait, mean */
    uint32_t n_late;   /* see dpro_rank_late */
    bool straggles;
    int64_t unmatched_ns; /* of its idle time: its GPU's work that only some iterations have */
    bool computes; /* its computation was recorded; else hidden communication and idle time are not
                      known */
};

/* What a rank's iteration consists of. */
enum { RANK_EXPOSED = 4, RANK_WAITING, RANK_IDLE, N_RANK_PARTS };
struct rank_part {
    const char *column, *name, *key; /* in a table; in full; in JSON */
    size_t at;                       /* in struct dpro_rank_time */
};
extern const struct rank_part rank_parts[N_RANK_PARTS];
int64_t rank_part_ns(const struct dpro_rank_time *time, int part);
struct report_facts;

/* Critical ops of one name and kind. */
struct name_fact {
    const char *name; /* borrowed from the graph */
    enum dpro_op_kind kind;
    uint32_t count, n_ranks;
    int rank;       /* the first one seen */
    int64_t dur_ns; /* on the path, gaps left out */
};

/* Collectives of one kind that ran alike. */
struct comm_fact {
    const char *kind, *pattern; /* borrowed; pattern "": taken as a whole */
    uint32_t n_ranks, count;
    uint64_t size_bytes, n_messages; /* of all of them; size of a rank's contributions */
    bool sized;                      /* size_bytes is that of all of them; else only of some */
    uint32_t most_chunks, most_channels;
};

struct memory_fact {
    struct dpro_rank_memory memory;
    uint8_t categories[DPRO_N_MEMORY_CATEGORIES]; /* those with some of the peak, most first */
    uint32_t n_categories;
    uint32_t index;      /* of the rank */
    double error_pct;    /* of the peak against the measured one; NAN: not comparable */
    double capacity_pct; /* share of the device's memory, with what is reserved; NAN: not known */
};
struct memory_facts {
    struct memory_fact *ranks; /* ranks of which something is known */
    uint32_t n_ranks, n_unknown;
    uint32_t highest, lowest;                  /* of ranks, by their peaks */
    bool alike;                                /* their peaks are, to a percent */
    uint32_t n_of_source[DPRO_MEMORY_UNKNOWN]; /* ranks known by it */
    uint32_t n_bare; /* ranks whose parameters, and what else was there before the profile, are not
                        known */
    uint32_t n_assumed, n_strange; /* by their allocators' settings */
    uint32_t n_refused, refused;   /* ranks that would not fit the device; the first of them */
    bool can_record;               /* nothing was recorded, but dpro's recorder could record it */
};

/* A dimension's part of an iteration. */
struct dimension_fact {
    const char *name; /* "between": communication that is in no dimension, or across several */
    struct dpro_dimension_time mean; /* over the ranks */
    int most_rank;                   /* that loses most */
    int64_t most_ns;                 /* what it loses */
    uint64_t bytes;                  /* that a rank puts in, mean */
};

/* What a rank sends to another one in an iteration. */
struct traffic_fact {
    int from, to;
    uint32_t dimension; /* DPRO_NO_DIMENSION: none, or several */
    uint64_t bytes;
    bool assumed; /* a ring, or a direct exchange: its messages were not logged */
};

struct parallel_facts {
    struct dimension_fact *dimensions;
    uint32_t n_dimensions;
    struct pipeline pipeline;     /* its dimension DPRO_NO_DIMENSION: there is none */
    struct traffic_fact *traffic; /* by sender, receiver, dimension */
    uint32_t n_traffic;
};

struct slow_facts {
    uint32_t n, *samples; /* slow iterations */
    uint32_t every;       /* they recur with this period; 0: they do not */
    bool are_first;
    int64_t usual_ns, more_ns; /* mean of the others; what slow ones take more, mean */
    const char *text;          /* all of it in a sentence */
};

struct verdict_line {
    const char *title; /* static: "Iteration", "Critical path", ... */
    char text[700];    /* UTF-8, one line */
};
#define N_VERDICT 5

#define PATH_GAP DPRO_N_OP_KINDS /* counts gaps beside the op kinds */

struct report_facts {
    struct arena arena;
    const struct dpro_report *report;
    const struct dpro_graph *g;            /* its */
    const struct dpro_replay_view *replay; /* likewise */
    struct warnings warnings;
    const char *framework; /* borrowed */
    uint32_t world_size;

    uint32_t n_measured;
    const int64_t *measured;                /* borrowed */
    int64_t measured_ns, median_ns, std_ns; /* -1: unknown */
    struct slow_facts slow;
    int64_t predicted_ns, p50_ns, p95_ns; /* -1: unknown */
    uint32_t n_drawn;                     /* what p50 and p95 are over; 0: the replayed ones */
    struct dpro_job_time job;             /* without dpro; of a what-if, as it is */
    struct job_doubt doubt;               /* of it */
    int64_t changed_ns;                   /* of a what-if: with the change */
    bool comparable;                      /* predicted with measured */
    double error_pct; /* predicted, with the profiler's cost, against measured, signed; NAN: not
                         comparable */
    struct dpro_daydream daydream; /* -1, NAN: there is none, as without sizes or a rate */
    double daydream_error_pct;     /* NAN: not comparable */
    struct dpro_validation validation;

    uint32_t n_micro_batches, /* whose gradients are added up before an update, the most of a rank's
                                 iteration; 0: not known, or of a pipeline */
        fewest_micro_batches; /* the fewest; as above */

    struct dpro_unprofiled unprofiled;
    double overhead_pct;         /* of the profiler; measured against unprofiled */
    double unprofiled_error_pct; /* predicted against the mean without the profiler */
    double unprofiled_median_error_pct;

    struct dpro_unprofiled_iterations outside; /* of the profile */
    int64_t wire_profiler_ns;                  /* cost of the profiler by these iterations */
    int64_t wire_error_ns;                     /* standard error of that; 0: not known */
    int64_t wire_predicted_ns;                 /* the prediction less that */

    struct dpro_fusion_info fusion;
    int64_t negotiate_ns, copy_ns, callback_ns; /* of Horovod's thread in an iteration, means over
                                                   the ranks */

    uint32_t n_ranks;
    struct rank_fact *ranks;
    bool has_gpu;
    bool communicates; /* some rank does, as far as the trace shows */

    int64_t servers_path_ns;       /* parameter servers' part of the critical path */
    int64_t kind_ns[PATH_GAP + 1]; /* of the path, by op kind; PATH_GAP: between ops */
    int kinds[PATH_GAP + 1];       /* those that take time, longest first */
    int n_kinds;
    int64_t path_cpu_ns;     /* ops on CPU threads */
    uint32_t longest_gap;    /* index into path */
    struct name_fact *names; /* longest first */
    uint32_t n_names;
    const char *busiest; /* what GPUs compute longest, critical or not; borrowed; NULL: no GPU */
    int64_t busiest_ns;  /* mean over the ranks */

    struct comm_fact *comms; /* most bytes first */
    uint32_t n_comms;

    uint32_t most_exposed; /* rank index that loses most to communication and waiting */
    uint32_t most_idle;    /* rank index */
    bool any_computes;     /* some rank does, as far as recorded */
    uint32_t n_stragglers; /* the first of `late` */
    uint32_t *late;        /* ranks that are late in some of them, by index, stragglers and most
                              often first */
    uint32_t n_late;
    int64_t apart_ns; /* of a single iteration: the last rank's start after the first's */
    int64_t shown;    /* the job's number of the iteration that is shown; -1: unknown */
    int64_t exposed_ns, wait_ns; /* means over the ranks */
    int64_t idle_ns;             /* mean over those that compute */

    struct memory_facts memory;
    struct parallel_facts parallel;

    bool contradicts;    /* the replay is off by more than known_to_ns */
    int64_t known_to_ns; /* half the 95 % interval of the measured mean; -1: unknown */

    struct verdict_line verdict[N_VERDICT];
};

/* Whether the profiler's cost is known, and taken out. */
static inline bool facts_has_profiler(const struct report_facts *f)
{
    return f->report->profiler_op_ns > 0 || f->report->profiler_ns > 0;
}
double facts_pct(int64_t part_ns, int64_t whole_ns); /* 0 of nothing is 0 */
/* Whether its size is known; a barrier's is 0. */
bool facts_is_sized(const struct dpro_collective *collective);
/* "backward computation"; static */
const char *facts_kind_words(const struct report_facts *f, enum dpro_op_kind kind);
/* The memory of the rank with the highest peak; NULL: not known. */
const struct memory_fact *memory_highest(const struct report_facts *facts);
const char *memory_category_words(enum dpro_memory_category category); /* static */
void verdict_write(struct report_facts *facts);                        /* fills facts->verdict */
void facts_sum(struct report_facts *facts, const struct dpro_report *report); /* but no verdict */
void memory_find(struct report_facts *facts);  /* fills facts->memory */
void parallel_sum(struct report_facts *facts); /* fills facts->parallel: dimensions, traffic */

/* All of it: sums, contradictions, the verdict. Borrows from `report` until facts_fini. */
void facts_init(struct report_facts *facts, const struct dpro_report *report);
void facts_fini(struct report_facts *facts);

/* What most clocks were tied by: "transport", ...; "none"; static or borrowed from the graph. */
const char *align_method(const struct dpro_graph *graph);
void align_write_table(struct writer *writer, const struct dpro_graph *graph, uint32_t n_clocks);
/* Writes fields of a JSON object: how the clocks fit together; which clock it is. */
void align_write_fields(struct writer *writer, const struct dpro_alignment *alignment);
void align_write_host(struct writer *writer, const struct dpro_clock *clock);

/* What the ranks' devices hold: for a terminal; the member "memory" of JSON. */
void memory_write_text(struct writer *writer, const struct report_facts *facts);
void memory_write_json(struct writer *writer, const struct report_facts *facts);
/* A member of JSON: bytes by category. */
void memory_write_categories(struct writer *writer, const char *key,
                             const struct memory_fact *fact);

/* How the job is parallel: for a terminal; the members "dimensions" and "dimensions_note". */
void dimensions_write_text(struct writer *writer, const struct report_facts *facts);
void dimensions_write_json(struct writer *writer, const struct report_facts *facts);
/* The name of a device, and of the dimension that all communication on it is in: "GPU 0 stream 20,
 * tp". `of_devices`: dimensions_of_devices(). */
const char *dimensions_name_device(const struct dpro_graph *graph, dpro_device_id device,
                                   const uint32_t *of_devices, char *text, size_t size);
/* By device: its dimension; DPRO_NO_DIMENSION: none, or several. In `arena`. */
const uint32_t *dimensions_of_devices(const struct dpro_graph *graph, struct arena *arena);

/* The dpro.replay/1 object; the list of critical ops may be left out. */
void json_write_report(struct writer *writer, const struct report_facts *facts, bool with_ops);
void json_write(struct writer *writer, const void *facts);
/* The dpro.diagnose/1 object; its file. */
void diagnosis_write_json(struct writer *writer, const struct dpro_diagnose_report *report);
void diagnosis_write(struct writer *writer, const void *report);
struct drawn_facts {
    struct report_facts facts;
    struct slices slices;
};
void timeline_write(struct writer *writer, const void *drawn);
