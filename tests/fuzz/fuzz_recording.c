/* Fuzz target: the reader of rank.json and job.json. */
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_compare(&recording_reader, data, size);
    return 0;
}
