/* Fuzz target: plans, and the step times of a verification. What can be read can be told. */
#include <sys/mman.h>
#include <unistd.h>

#include <dpro/verify.h>

#include "fuzz.h"

static const struct dpro_plan_summary expected = {
    .stack = "ddp", .baseline_ns = 100000000, .iteration_ns = 80000000, .uncertainty_pct = 2};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static FILE *nowhere;
    struct dpro_plan_summary summary;
    struct dpro_verify *verify;
    struct dpro_error err = {.code = 0};
    char path[64];
    int fd = memfd_create("input", 0);
    if (!nowhere)
        nowhere = fopen("/dev/null", "w");
    if (fd < 0 || !nowhere || write(fd, data, size) != (ssize_t)size)
        abort();
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (dpro_plan_read(path, &summary, &err) == 0 && !summary.framework[0])
        abort();
    const char *const runs[] = {path, path};
    size_t n_runs = size % 2 + 1;
    dpro_verify_check_run(path, &err);
    if (dpro_verify_read(runs, n_runs, &expected, n_runs > 1 ? "a reason" : NULL, &verify, &err) ==
        0) {
        if (dpro_verify_text(verify, nowhere, &err) < 0 ||
            dpro_verify_json(verify, nowhere, &err) < 0)
            abort();
        dpro_verify_destroy(verify);
    }
    close(fd);
    return 0;
}
