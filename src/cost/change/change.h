/* Applying the changes of a what-if to a copy of the model. */
#pragma once

#include <dpro/whatif.h>

#include "cost/program/model.h"
#include "plan/plan.h"

/* Lines for the user. */
struct notes {
    struct arena *arena; /* of the texts, and of all that a change makes */
    ARRAY(const char *) lines;
    double *averaged; /* how uneven the recorded run of a pipeline is, for other changes of the job;
                         NAN: not asked yet; NULL: there are none */
    const char *untimed; /* why the changed job's time can't be predicted; NULL: it can */
};
#define note(notes, ...) array_push(&(notes)->lines, arena_format((notes)->arena, __VA_ARGS__))

/* What can't be asked for, and why. */
#define refuse(...) fail_with(DPRO_EUSAGE, __VA_ARGS__)

/* Whether such a speed can be asked for. */
void check_speed(const struct dpro_compute_change *change, const struct dpro_graph *graph);

/* A copy of the model whose ranks, programs and own strategy can be written to. The rest is
 * borrowed; all that is new is the arena's. */
void change_copy(const struct dpro_model *model, struct arena *arena, struct dpro_model *copy);

/* Applies one kind of change, or several, to a copy. */
typedef void change_apply_fn(const struct dpro_changes *changes, struct dpro_model *model,
                             struct notes *notes);
change_apply_fn change_speeds, change_links, change_servers, change_cycles, change_strategy;
/* Modules compiled, or in 16 bits; recomputed ones, the batch, views of buckets, ZeRO. */
change_apply_fn change_computing, change_memory;

/* Replicas, shards and hosts: `told`, or those that the changes name. A topology asks for the rates
 * of its links, too. */
struct topology;
void change_hosts(const struct dpro_graph *graph, const struct topology *told,
                  struct dpro_changes *changes, struct dpro_model *model, struct notes *notes);

/* ---- module_choice.c ---- */

/* Which of a plan's lists. */
enum module_list { MODULES_RECOMPUTED, MODULES_COMPILED, MODULES_IN_BF16 };

/* Marks the modules that `text` names, as `recompute` in struct dpro_changes does. Fails with
 * DPRO_EUSAGE when the model has no such module, or none at all. */
void modules_choose(const struct dpro_model *model, const char *text, bool *chosen,
                    enum module_list of_plan);
/* Marks those that a list of the plan names. */
void modules_take(const struct dpro_model *model, const struct plan_file *plan,
                  const name_array *names, bool *chosen);
