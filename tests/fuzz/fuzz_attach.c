/* Fuzz target: datagrams to dpro attach. What is taken can be answered and holds what was there. */
#include "attach/collect.h"
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fabric_message message;
    if (!fabric_parse(data, size, &message))
        return 0;
    bool has_pids = message.n_pids >= 1 && message.n_pids <= FABRIC_PIDS_MAX && message.pids[0] > 0;
    if ((message.type == FABRIC_REQUEST && !has_pids) || size < FABRIC_HEADER + 16)
        abort();
    return 0;
}
