/* Fuzz target: what dPRO's first implementation recorded, each reader on every input. */
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_compare(tf_chrome_read, data, size);
    fuzz_compare(tf_metadata_read, data, size);
    fuzz_compare(gradients_read, data, size);
    fuzz_compare(chunks_read, data, size);
    fuzz_compare(rings_read, data, size);
    fuzz_compare_bytes(gml_read, data, size);
    fuzz_compare_bytes(byteps_log_read, data, size);
    fuzz_compare_bytes(byteps_server_read, data, size);
    fuzz_compare_bytes(byteps_keys_read, data, size);
    fuzz_compare(byteps_timeline_read, data, size);
    return 0;
}
