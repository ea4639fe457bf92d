/* Makes a plan for the job of the strategy that a search found. */
#pragma once

#include <dpro/optimize.h>
#include <dpro/trace.h>

#include "plan/plan.h"

/* The recording that lists the parameters of the job's models; NULL: the trace has none. */
const struct recording *plan_recording(const struct dpro_trace *trace);

/* Fills in a zeroed plan, all but uncertainty_pct. */
void plan_make(const struct dpro_trace *trace, const struct dpro_optimum *optimum,
               enum dpro_which which, struct plan_file *plan);
