/* Fuzz target: the reader of communication timelines. */
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_compare(&timeline_reader, data, size);
    return 0;
}
