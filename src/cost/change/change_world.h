/* Other numbers of replicas and of ranks that split tensors. */
#pragma once

#include "cost/change/replicas.h"
#include "cost/program/topology.h"

/* `told`: how ranks are spread over hosts; NULL: as the trace shows. `collectives`: how they pass
 * over told hosts; NULL: as recorded. */
void change_world(const struct rank_changes *ranks, const struct topology *told,
                  const char *collectives, struct dpro_model *model, struct notes *notes);
