/* Fuzz target: the reader of probes.json. */
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_compare(&probes_reader, data, size);
    return 0;
}
