/* Fuzz target: the reader of transport logs as CSV. */
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_compare_bytes(net_csv_read, data, size);
    return 0;
}
