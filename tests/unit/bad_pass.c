/* Passes that misbehave, one for each BAD_... that this is compiled with. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <dpro/pass.h>

static int propose(const struct dpro_pass *pass, const struct dpro_pass_view *view, uint32_t index,
                   struct dpro_candidate *candidate)
{
    (void)pass;
    (void)view;
    (void)index;
    (void)candidate;
#if defined BAD_CRASHES
    *(volatile int *)(uintptr_t)index = 1;
#elif defined BAD_LOOPS
    for (;;)
        sleep(1);
#elif defined BAD_EXITS
    exit(0);
#elif defined BAD_NONSENSE
    candidate->edits[0] = (struct dpro_edit){.kind = DPRO_EDIT_MERGE, .at = 100000, .value = 0};
    candidate->n_edits = 1;
    return index == 0;
#elif defined BAD_PRINTS
    printf("not a part of anybody's output\n");
#endif
    return 0;
}

#ifndef BAD_EMPTY
const struct dpro_pass dpro_pass = {
#ifdef BAD_ABI
    .abi = DPRO_PASS_ABI + 1,
#else
    .abi = DPRO_PASS_ABI,
#endif
    .name = "bad",
    .summary = "",
    .propose = propose,
};
#else
int no_pass(void);
int no_pass(void)
{
    return propose(NULL, NULL, 0, NULL);
}
#endif
