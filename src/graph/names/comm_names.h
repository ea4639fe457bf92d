/* Which kernels, calls and ranges are communication, by their names. */
#pragma once

#include "base/base.h"

#include <dpro/graph.h>

/* Whether a name begins with the pattern; "=word": is it; "*word": holds it; "$word": ends so. */
bool name_fits(const char *name, size_t len, const char *pattern);

/* What is known of when a kernel that communicates can end. */
enum comm_end {
    COMM_ENDS_TOGETHER, /* not before every member has begun */
    COMM_ENDS_UNSURE,   /* as above if the recorded times agree */
    COMM_ENDS_ALONE,    /* one side of a transfer: the k-th on one rank need not meet the k-th on
                           another */
};

struct comm_name {
    enum dpro_collective_kind kind; /* DPRO_NO_COLLECTIVE: not in the name */
    enum comm_end end;
};

/* Looks up a kernel's name, as CUDA and HIP tools write it, demangled or not. False: the kernel is
 * not known to communicate. */
bool comm_name_of_kernel(const char *name, size_t len, struct comm_name *found);

/* Whether a CPU op or a user's range is named for a collective. A kernel launched right inside such
 * a one communicates, whatever its own name. */
bool comm_name_is_scope(const char *name, size_t len);
