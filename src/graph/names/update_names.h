/* Ops by which an optimizer updates weights. */
#pragma once

#include "base/base.h"

/* Whether it is one of PyTorch's ops that write into many tensors at once; a copy, as sharded
 * parameters are gathered by, is no update. */
static inline bool name_writes_many(const char *name)
{
    return (text_begins(name, "aten::_foreach_") || text_begins(name, "aten::_fused_")) &&
           text_ends(name, "_") && !text_ends(name, "_copy_");
}
