/* graph/global/assembly.c: what the steps that make the global graph share. */
#include "graph/global/assembly.h"

#include "base/sort.h"

uint32_t assembly_rank_of(const struct assembly *a, uint32_t op)
{
    return LOWER_BOUND(p, 1, assembly_n_processes(a), a->first_op[p] <= op) - 1;
}

int64_t assembly_span(int64_t from, int64_t to)
{
    int64_t difference;
    if (from == ABSENT || to == ABSENT || __builtin_sub_overflow(to, from, &difference))
        return 0;
    return difference > 0 ? difference : 0;
}
