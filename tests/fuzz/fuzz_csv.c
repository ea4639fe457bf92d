/* Fuzz target: the reader of transport logs as CSV. */
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_compare(&transport_csv_reader, data, size);
    return 0;
}
