/* Reads the result of a what-if. */
#include "cost/whatif_result.h"

void dpro_whatif_destroy(struct dpro_whatif *whatif)
{
    if (!whatif)
        return;
    array_fini(&whatif->notes.lines);
    arena_fini(&whatif->model.arena);
    arena_fini(&whatif->arena);
    mem_free(whatif);
}

#define LOOK_AT(type, name, value)                                                                 \
    type dpro_whatif_##name(const struct dpro_whatif *whatif)                                      \
    {                                                                                              \
        return value;                                                                              \
    }

LOOK_AT(struct dpro_prediction, baseline, whatif->baseline)
LOOK_AT(struct dpro_prediction, predicted, whatif->predicted)
LOOK_AT(const char *, untimed, whatif->notes.untimed)
LOOK_AT(struct dpro_estimate, speedup, whatif->speedup)
LOOK_AT(struct dpro_memory_peak, baseline_memory, whatif->memory[0])
LOOK_AT(struct dpro_memory_peak, memory, whatif->memory[1])
LOOK_AT(const struct dpro_model *, model, &whatif->model)
LOOK_AT(const struct dpro_model *, modules,
        whatif->programs.has_modules ? &whatif->programs.modules : &whatif->model)
LOOK_AT(uint32_t, n_units, whatif->programs.units.n_units)
LOOK_AT(uint32_t, n_stages, whatif->programs.pipeline.n_stages)
LOOK_AT(size_t, n_warnings, whatif->notes.lines.n)
LOOK_AT(size_t, n_questions, whatif->n_questions)

struct dpro_pipeline_run dpro_whatif_pipeline(const struct dpro_whatif *whatif, int after)
{
    return whatif->programs.pipeline.runs[after != 0];
}

double dpro_whatif_bubble(const struct dpro_whatif *whatif, uint32_t stage, int after)
{
    return whatif->bubbles[2 * stage + (after != 0)];
}

struct dpro_unit dpro_whatif_unit(const struct dpro_whatif *whatif, uint32_t index)
{
    return whatif->programs.units.units[index];
}

const struct dpro_question *dpro_whatif_question(const struct dpro_whatif *whatif, size_t index)
{
    return &whatif->questions[index];
}

struct dpro_uncertainty_part dpro_whatif_uncertainty(const struct dpro_whatif *whatif,
                                                     enum dpro_uncertainty_source source)
{
    return whatif->parts[source];
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

const char *dpro_whatif_warning(const struct dpro_whatif *whatif, size_t index)
{
    return whatif->notes.lines.at[index];
}
