/* Fuzz target: MXNet's profiles and graphs, each reader on every input. */
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_compare(&mxnet_reader, data, size);
    fuzz_compare(&mxnet_symbol_reader, data, size);
    fuzz_compare(&mxnet_text_reader, data, size);
    return 0;
}
