/* Fuzz target: the readers of TensorFlow's RunMetadata and GraphDef. */
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_compare(&runmeta_reader, data, size);
    fuzz_compare(&graphdef_reader, data, size);
    return 0;
}
