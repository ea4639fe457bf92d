/* Fuzz target: MXNet's profiles and graphs, each reader on every input. */
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_compare(mxnet_read, data, size);
    fuzz_compare(mxnet_symbol_read, data, size);
    fuzz_compare_bytes(mxnet_text_read, data, size);
    return 0;
}
