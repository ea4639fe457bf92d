/* Fuzz target: the reader of TensorFlow's profiles. */
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_compare(&xplane_reader, data, size);
    return 0;
}
