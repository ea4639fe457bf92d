/* Reads the result of a what-if. */
#include "cost/change/whatif_result.h"

void dpro_whatif_destroy(struct dpro_whatif *whatif)
{
    if (!whatif)
        return;
    array_fini(&whatif->notes.lines);
    arena_fini(&whatif->model.arena);
    arena_fini(&whatif->arena);
    mem_free(whatif);
}

const struct dpro_whatif_answer *dpro_whatif_answer(const struct dpro_whatif *whatif)
{
    return &whatif->answer;
}

const char *dpro_uncertainty_name(enum dpro_uncertainty_source source)
{
    static const char *const names[] = {
        [DPRO_UNCERTAIN_LEARNT] = "learnt numbers", [DPRO_UNCERTAIN_ITERATIONS] = "iterations",
        [DPRO_UNCERTAIN_MACHINE] = "machine drift", [DPRO_UNCERTAIN_MODEL] = "model misfit",
        [DPRO_UNCERTAIN_CHANGE] = "extrapolation",  [DPRO_UNCERTAIN_BATCH] = "batch size",
        [DPRO_UNCERTAIN_COMPUTING] = "computing"};
    return names[source];
}

size_t dpro_whatif_n_warnings(const struct dpro_whatif *whatif)
{
    return whatif->notes.lines.n;
}

const char *dpro_whatif_warning(const struct dpro_whatif *whatif, size_t index)
{
    return whatif->notes.lines.at[index];
}
