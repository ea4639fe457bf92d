/* The iterations that a graph is built from. */
#pragma once

#include "graph/rank_build.h"

/* By what ranks' iterations are told to be the same one, where their numbers don't tell. */
enum numbered_by { NUMBERED_BY_ENDS, NUMBERED_BY_CLOCKS, NUMBERED_BY_PLACE };

/* What was chosen, and what it means for the graph. */
struct step_choice {
    left_out_array left_out;
    uint32_t lead, renumbered, n_renumbered; /* ranks: whose numbers count; the first whose do not,
                                                and how many */
    enum numbered_by numbered_by;            /* the worst of them */
    uint32_t beside,
        n_beside;       /* ranks whose iterations end a step or more, so many ns, beside those */
    int64_t beside_ns;  /* of the same number: the first, how many */
    bool overlaps_next; /* iterations begin in the middle of the ones before */
    bool has_lead;      /* the first sample only leads up to the others */
};

struct chooser {
    struct rank_build *ranks; /* with steps and what they hold */
    uint32_t n_ranks;
    const struct dpro_job_options *options;
    const struct dpro_file_info *files; /* the trace's */
    struct step_choice choice;          /* out */
};

/* Leaves out iterations that were not recorded to their end. Comes first. */
void steps_leave_out_incomplete(struct chooser *chooser);

/* number_steps.c: gives iterations of all ranks equal numbers where they are the same one. */
void steps_number(struct chooser *chooser);

/* Does not time ranks whose files are cut off and that hold fewer collectives in each iteration
 * than any whole one: a thread that communicates was to come behind the cut. */
void steps_leave_out_lacking(struct chooser *chooser);

/* Of a rank of which no iteration is left: the window whose file is cut off; NO_ID: there is none,
 * or iterations are left. */
uint32_t steps_cut_window(const struct chooser *chooser, uint32_t rank);

/* Sets sample_step, n_samples and reference_step of every rank. Fails with DPRO_EEMPTY when no
 * iteration is left. */
int choose_steps(struct chooser *chooser, struct dpro_error *err);

/* unusual_steps.c */
/* Leaves out a rank's last iteration where it goes on after the job's. Comes before they are
 * numbered. */
void late_steps_leave_out(struct chooser *chooser);
/* Whether an iteration was recorded from begin to end, whatever it holds. */
bool step_is_whole(const struct rank_build *rank, uint32_t s);
/* Leaves out iterations at a recording's ends that are unlike the others:
 * they are not timed any more. Not where iterations were chosen by --steps. */
void unusual_steps_leave_out(struct chooser *chooser);

/* unprofiled.c: iterations that the transport logs show and no profile does. Needs the ranks' steps
 * and samples, on their own clocks. */
void unprofiled_iterations_find(const struct rank_build *ranks, uint32_t n_ranks,
                                const struct dpro_trace *trace,
                                struct dpro_unprofiled_iterations *out);
