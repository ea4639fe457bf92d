/* Applying the changes of a what-if to a copy of the model. */
#pragma once

#include <dpro/whatif.h>

#include "cost/model.h"

/* Lines for the user. */
struct notes {
    struct arena *arena; /* of the texts, and of all that a change makes */
    ARRAY(const char *) lines;
    const char *untimed; /* why the changed job's time can't be predicted; NULL: it can */
};
#define note(notes, ...) array_push(&(notes)->lines, arena_format((notes)->arena, __VA_ARGS__))

/* What can't be asked for, and why. */
#define refuse(err, ...) dpro_error_set(err, DPRO_EUSAGE, __VA_ARGS__)

/* Whether such a speed can be asked for. */
int check_speed(const struct dpro_compute_change *change, const struct dpro_graph *graph,
                struct dpro_error *err);

/* A copy of the model whose ranks, programs and own strategy can be written to. The rest is
 * borrowed; all that is new is the arena's. */
void change_copy(const struct dpro_model *model, struct arena *arena, struct dpro_model *copy);

/* Whether such changes can be asked for of the job: of one that communicates nothing, only what it
 * computes and holds. */
int change_check(const struct dpro_changes *changes, const struct dpro_model *model,
                 struct dpro_error *err);
/* Applies all changes but those of change_programs() to a copy, which is then to be freed by
 * arena_fini(&model->arena), too; its own strategy is the changed one. */
int change_apply(const struct dpro_graph *graph, const struct dpro_changes *changes,
                 struct dpro_model *model, struct notes *notes, struct dpro_error *err);
