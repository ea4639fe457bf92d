/* Fuzz target: the readers of snapshots of GPU memory, a pickle and JSON. */
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_compare(&snapshot_reader, data, size);
    fuzz_compare(&snapshot_json_reader, data, size);
    return 0;
}
