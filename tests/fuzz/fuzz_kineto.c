/* Fuzz target: the Kineto reader. */
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_compare(&kineto_reader, data, size);
    return 0;
}
