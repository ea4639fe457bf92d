/* Fuzz target: readers, which the build names. */
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const struct reader *targets[] = {TARGETS};
    for (size_t i = 0; i < sizeof targets / sizeof *targets; i++)
        fuzz_compare(targets[i], data, size);
    return 0;
}
