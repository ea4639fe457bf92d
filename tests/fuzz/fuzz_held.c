/* Fuzz target: the reader of memory.json. */
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_compare(&held_reader, data, size);
    return 0;
}
