/* What categories of memory, and what tells of it, are called everywhere. */
#include <dpro/memory.h>

const char *dpro_memory_category_name(enum dpro_memory_category category)
{
    static const char *const names[DPRO_N_MEMORY_CATEGORIES] = {
        [DPRO_MEMORY_PARAMETER] = "parameter",
        [DPRO_MEMORY_GRADIENT] = "gradient",
        [DPRO_MEMORY_BUCKET] = "bucket",
        [DPRO_MEMORY_STATE] = "optimizer_state",
        [DPRO_MEMORY_ACTIVATION] = "activation",
        [DPRO_MEMORY_TEMPORARY] = "temporary",
        [DPRO_MEMORY_COMMUNICATION] = "communication",
        [DPRO_MEMORY_WORKSPACE] = "workspace",
        [DPRO_MEMORY_INPUT] = "input",
        [DPRO_MEMORY_OTHER] = "other",
    };
    return (unsigned)category < DPRO_N_MEMORY_CATEGORIES ? names[category] : NULL;
}

const char *dpro_memory_source_name(enum dpro_memory_source source)
{
    static const char *const names[] = {"allocations", "execution trace"};
    return (unsigned)source < DPRO_MEMORY_UNKNOWN ? names[source] : NULL;
}
