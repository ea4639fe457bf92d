/* cost/change.h: a model with other numbers. */
#ifndef COST_CHANGE_H
#define COST_CHANGE_H

#include <dpro/whatif.h>

#include "cost/model.h"

typedef ARRAY(char *) note_array; /* lines for the user; text in the arena */
int note(note_array *notes, struct arena *arena, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* A copy of the model whose ranks, programs and own strategy can be written to. The rest is
 * borrowed; all that is new is the arena's. -1: out of memory. */
int change_copy(const struct dpro_model *model, struct arena *arena, struct dpro_model *copy);

/* Applies all changes to a copy, which is then to be freed by arena_fini(&model->arena), too; its
 * own strategy is the changed one. */
int change_apply(const struct dpro_graph *graph, const struct dpro_changes *changes,
                 struct dpro_model *model, struct arena *arena, note_array *notes,
                 struct dpro_error *err);

#endif
