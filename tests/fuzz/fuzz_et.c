/* Fuzz target: the execution-trace reader. */
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_compare(&et_reader, data, size);
    return 0;
}
