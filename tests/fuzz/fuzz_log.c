/* Fuzz target: the readers of logs, and loading a log, or two that are parted at a place that the
 * second byte picks: what is joined, tied and counted must not depend on the numbers being sane. */
#include <sys/mman.h>
#include <unistd.h>

#include "fuzz.h"

static int put_file(int *fd, const uint8_t *data, size_t size)
{
    if (*fd <= 0)
        *fd = memfd_create("fuzz", MFD_CLOEXEC);
    return *fd < 0 || ftruncate(*fd, 0) < 0 || pwrite(*fd, data, size, 0) != (ssize_t)size ? -1 : 0;
}

static void check(const struct dpro_trace *trace)
{
    for (uint32_t t = 0; t < trace->n_transports; t++) {
        const struct net_transport *transport = &trace->transports[t];
        for (size_t i = 0; i < transport->transfers.n; i++)
            if (transport->transfers.at[i].stream / 2 >= transport->connections.n)
                abort();
        EACH (const struct net_message, message, transport->messages)
            if (message->collective >= transport->collectives.n &&
                (message->protocol == NET_GLOO || message->collective != NO_ID))
                abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static int fds[2];
    char paths[2][32];
    const char *names[2] = {paths[0], paths[1]};
    if (size < 2)
        return 0;
    fuzz_compare(&transport_reader, data + 1, size - 1);
    const uint8_t *log = data + 2;
    size_t n = size - 2, first = data[1] ? n * data[1] / 256 : n;
    if (put_file(&fds[0], log, first) < 0 || put_file(&fds[1], log + first, n - first) < 0)
        return 0;
    for (int i = 0; i < 2; i++)
        snprintf(paths[i], sizeof paths[i], "/proc/self/fd/%d", fds[i]);
    const struct dpro_trace *trace;
    struct dpro_error err = {0};
    struct dpro_job *job = fuzz_job(names, first < n ? 2 : 1, .without_profile = 1,
                                    .rank_regex = data[0] % 2 ? NULL : "fd/([0-9]+)");
    if (!fuzz_failed(dpro_job_trace(job, &trace, &err), &err))
        check(trace);
    dpro_job_close(job);
    return 0;
}
