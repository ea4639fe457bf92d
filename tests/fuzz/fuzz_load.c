/* Fuzz target: loading files, parted by "\n==\n", to the joined trace. An even first byte takes
 * them as ranks 100 on, an odd one as their metadata says (or a profile and execution trace). */
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fuzz.h"

enum { FIRST_FD = 100 };

static int put_file(int *fd, char path[32], const uint8_t *data, size_t size)
{
    if (*fd <= 0) {
        int made = memfd_create("fuzz", MFD_CLOEXEC);
        *fd = fcntl(made, F_DUPFD_CLOEXEC, FIRST_FD);
        close(made);
    }
    snprintf(path, 32, "/proc/self/fd/%d", *fd);
    return *fd < 0 || ftruncate(*fd, 0) < 0 || pwrite(*fd, data, size, 0) != (ssize_t)size ? -1 : 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    enum { MOST_FILES = 6 };
    static const char part[] = "\n==\n";
    static int fds[MOST_FILES];
    char paths[MOST_FILES][32];
    const char *names[MOST_FILES];
    size_t n_files = 0;
    if (size < 1)
        return 0;
    const uint8_t *at = data + 1, *end = data + size;
    while (at && n_files < MOST_FILES) {
        const uint8_t *over = memmem(at, (size_t)(end - at), part, sizeof part - 1);
        names[n_files] = paths[n_files];
        if (put_file(&fds[n_files], paths[n_files], at, (size_t)((over ? over : end) - at)) < 0)
            return 0;
        n_files++;
        at = over ? over + sizeof part - 1 : NULL;
    }
    const struct dpro_trace *trace = NULL;
    struct dpro_error err = {0};
    struct dpro_job *job =
        fuzz_job(names, n_files, .rank_regex = data[0] % 2 ? NULL : "fd/([0-9]+)");
    fuzz_failed(dpro_job_trace(job, &trace, &err), &err);
    for (uint32_t r = 0; trace && r < trace->n_ranks; r++) {
        const struct trace_rank *rank = &trace->ranks[r];
        for (uint32_t i = 0; i < rank->n_spans; i++) {
            const struct trace_span *span = &rank->spans[i];
            if (span->track >= rank->n_tracks || span->name >= trace->names.n || span->dur_ns < 0 ||
                (span->parent != NO_ID && span->parent >= i) ||
                (span->detail != NO_ID && span->detail >= rank->n_details))
                abort();
        }
        for (uint32_t i = 0; i < rank->n_et_nodes; i++)
            if (rank->et_nodes[i].span != NO_ID && rank->et_nodes[i].span >= rank->n_spans)
                abort();
    }
    dpro_job_close(job);
    return 0;
}
