/* The search of Horovod's own settings, cycle time and fusion threshold, instead of groups. A job
 * needs only two environment variables for them, so they are preferred unless groups are clearly
 * better. */
#include "optimize/search.h"

/* By how much groups, and settings other than the job's, must be better. In a model, cycles begin
 * at the same moments of each iteration, so that small differences are chance. */
#define WORTH_GROUPS   0.02
#define WORTH_SETTINGS 0.02

enum { MS = 1000000, KIB = 1024, N_CYCLES = 6, N_THRESHOLDS = 8 };
/* Shorter cycles than Horovod's usual one cost the ranks more messages than they win time. */
static const int64_t cycles_ms[N_CYCLES] = {1, 2, 5, 10, 20, 50};
/* Its usual threshold first. */
static const uint64_t thresholds_kib[N_THRESHOLDS] = {131072, 0, 64, 256, 1024, 4096, 16384, 65536};

/* Horovod's autotune (HOROVOD_AUTOTUNE) begins with its four test points and goes on, 20 samples in
 * all, anywhere from 0 to 64 MB and 1 to 100 ms: horovod/common/parameter_manager.cc. */
enum { N_TUNED_CYCLES = 7, N_TUNED_THRESHOLDS = 7 };
static const int64_t tuned_cycles_ms[N_TUNED_CYCLES] = {5, 10, 25, 50, 1, 2, 100};
static const uint64_t tuned_thresholds_kib[N_TUNED_THRESHOLDS] = {4096,  8192, 16384, 32768,
                                                                  65536, 1024, 0};

void cycles_prepare(struct dpro_model *model)
{
    if (model->net.gate.cycle_ns > cycles_ms[0] * MS * 3 / 2) /* the job's may be 1 ms and a bit */
        model->net.gate.cycle_ns = cycles_ms[0] * MS;
}

int64_t cycles_baseline(struct space *space, const struct dpro_strategy *baseline)
{
    struct dpro_strategy groups = space_copy_of(space, baseline);
    groups.fuses = false;
    groups.cycle_ns = space->model->net.gate.cycle_ns;
    space_evaluate(space, &groups);
    return space_value(space, baseline);
}

/* Finds the best settings; among those about as good, the job's own, then the first tried. */
static int64_t find_settings(struct space *space, const struct dpro_strategy *baseline,
                             struct dpro_strategy *s, struct dpro_strategy *found)
{
    int64_t best_ns = baseline->fuses ? space_value(space, baseline) : INT64_MAX;
    if (baseline->fuses)
        space_copy(space, baseline, found);
    for (int c = -1; c < N_CYCLES; c++)
        for (int t = 0; t < N_THRESHOLDS && !search_stops(space->search); t++) {
            s->cycle_ns = c < 0 ? baseline->cycle_ns : cycles_ms[c] * MS;
            s->fusion_bytes = thresholds_kib[t] * KIB;
            if (s->cycle_ns < space->model->net.gate.cycle_ns)
                continue;
            int64_t ns = space_value(space, s);
            if ((double)ns < (double)best_ns * (1 - WORTH_SETTINGS)) {
                best_ns = ns;
                space_copy(space, s, found);
            }
        }
    return best_ns;
}

bool cycles_autotune(struct space *space, struct dpro_strategy *found)
{
    struct dpro_strategy s = space_strategy(space);
    int64_t best_ns = INT64_MAX;
    s.fuses = true;
    for (int c = 0; c < N_TUNED_CYCLES && space->model->net.gate.cycle_ns > 0; c++)
        for (int t = 0; t < N_TUNED_THRESHOLDS; t++) {
            s.cycle_ns = tuned_cycles_ms[c] * MS;
            s.fusion_bytes = tuned_thresholds_kib[t] * KIB;
            int64_t ns = space_value(space, &s);
            if (ns < best_ns) {
                best_ns = ns;
                space_copy(space, &s, found);
                evaluated_groups(space->workers[0].evaluator, found);
            }
        }
    return best_ns < INT64_MAX;
}

void cycles_search(struct space *space, const struct dpro_strategy *baseline, int64_t limit_ns)
{
    struct dpro_strategy s = space_strategy(space), found = space_strategy(space);
    s.fuses = true;
    s.compression = space->best.compression;
    int64_t ns = find_settings(space, baseline, &s, &found);
    bool as_good = ns <= limit_ns && (double)ns <= (double)space->best_ns * (1 + WORTH_GROUPS);
    if (ns == INT64_MAX || (ns > space->best_ns && !as_good))
        return;
    space_value(space, &found); /* the one whose groups are asked for */
    evaluated_groups(space->workers[0].evaluator, &found);
    space_copy(space, &found, &space->best);
    space->best_ns = ns;
}
