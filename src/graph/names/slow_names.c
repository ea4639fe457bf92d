/* What makes some iterations slow, by names of ops, ranges and calls. */
#include "graph/names/names.h"

#include <strings.h>

#define COMPILER "torch.compile"

/* What a name stands for, by a part of it; the first that fits. */
static const struct slow_kind kinds[] = {
    {{"DataLoader"},
     .what = "DataLoader",
     .is_cause = true,
     .advice = "load input ahead of time, with more workers or a longer queue"},
    {{"dynamo_timed", "compile"},
     .without = "compiled", /* which calls what was compiled before */
     .what = COMPILER,
     .is_cause = true,
     .advice = "find out what is compiled again (TORCH_LOGS=recompiles), such as other shapes"},
    {{"Python GC", "gc.collect", "built-in function collect>", "garbage"},
     .whole = "gc", /* in timelines of stages */
     .what = "garbage collection",
     .is_cause = true,
     .advice = "collect garbage on all ranks at once and seldom (gc.freeze, gc.disable)"},
    {{"torch.save", "serialization", "state_dict", "save_", "checkpoint_save", "saving"},
     .what = "saving a checkpoint",
     .advice = "save checkpoints asynchronously, or less often"},
    {.call = CALL_MEMORY,
     .what = "allocating and freeing GPU memory",
     .is_cause = true,
     .advice = "leave the allocator more room, or give it expandable segments: it returns memory "
               "to the GPU and asks for it again"},
    {{SLOW_KERNELS},
     .what = SLOW_KERNELS,
     .advice =
         "the GPU is slower then: look at its clocks and temperature, and for other processes "
         "on it"},
    {{"all_reduce", "allreduce", "all_gather", "broadcast"},
     .what = "communication",
     .advice = "have ranks exchange less then, or in fewer iterations"},
    {.call = CALL_LOAD, .what = "loading GPU code", .advice = "record later"},
};

static bool has_part(const char *name, const char *part)
{
    for (size_t len = strlen(part); *name; name++)
        if (strncasecmp(name, part, len) == 0)
            return true;
    return false;
}

const struct slow_kind *slow_kind_of(const char *name)
{
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        for (size_t p = 0; p < sizeof kinds[k].parts / sizeof *kinds[k].parts; p++)
            if (kinds[k].parts[p] && has_part(name, kinds[k].parts[p]) &&
                !(kinds[k].without && has_part(name, kinds[k].without)))
                return &kinds[k];
        if (kinds[k].whole && strcmp(name, kinds[k].whole) == 0)
            return &kinds[k];
        if (kinds[k].call && (int)call_classify(name) == kinds[k].call)
            return &kinds[k];
    }
    return NULL;
}

bool name_compiles(const char *name)
{
    const struct slow_kind *kind = slow_kind_of(name);
    return kind && strcmp(kind->what, COMPILER) == 0;
}
