/* Fuzz target: the readers of TensorFlow's RunMetadata and GraphDef. */
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_compare_bytes(runmeta_read, data, size);
    fuzz_compare_bytes(graphdef_read, data, size);
    return 0;
}
