/* Fuzz target: from up to five files to a replay and its reports. The first byte chooses: 1: ranks
 * from the files' own metadata instead of their order, 4: one rank's graph, 8: drawn samples, 16: a
 * delay, 32: some iterations only, 128: before each file its length in two bytes, as binary logs
 * need it; else NULs part them. */
#include <sys/mman.h>
#include <unistd.h>

#include <dpro/dpro.h>

#include "fuzz.h"
#include "ingest/trace.h"

enum { MAX_FILES = 5, MAX_SIZE = 1 << 16 };

static int put_file(int *fd, char path[32], const uint8_t *data, size_t size)
{
    if (*fd <= 0)
        *fd = memfd_create("fuzz", MFD_CLOEXEC);
    snprintf(path, 32, "/proc/self/fd/%d", *fd);
    return *fd < 0 || ftruncate(*fd, 0) < 0 || pwrite(*fd, data, size, 0) != (ssize_t)size ? -1 : 0;
}

static void check_replay(const struct dpro_graph *graph, const struct dpro_replay *replay)
{
    uint32_t n;
    for (uint32_t r = 0; r < dpro_graph_n_ranks(graph); r++) {
        struct dpro_rank_time t = dpro_replay_view(replay)->ranks[r];
        __int128 sum = (__int128)t.forward_ns + t.backward_ns + t.update_ns + t.input_ns +
                       t.exposed_communication_ns + t.wait_for_peers_ns + t.idle_ns;
        if (sum != t.iteration_ns)
            abort();
    }
    const struct dpro_critical_op *path = dpro_replay_view(replay)->critical;
    n = dpro_replay_view(replay)->n_critical;
    __int128 sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += (__int128)path[i].dur_ns + path[i].gap_ns;
    if (n > 0 && sum != dpro_replay_view(replay)->critical_ns)
        abort();
}

static void write_reports(const struct dpro_report *report)
{
    struct dpro_error err = {0};
    char *text = NULL;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    if (!out)
        return;
    if (dpro_report_text(report, out, &err) < 0 || dpro_report_json(report, out, &err) < 0)
        abort();
    fclose(out);
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static int fds[MAX_FILES];
    char paths[MAX_FILES][32];
    const char *names[MAX_FILES];
    size_t n_files = 0;
    if (size < 1 || size > MAX_SIZE)
        return 0;
    uint8_t choice = data[0];
    for (const uint8_t *at = data + 1, *end = data + size; at && n_files < MAX_FILES; n_files++) {
        size_t left = (size_t)(end - at), length = left, skipped = 0;
        if (choice & 128 && left >= 2) {
            skipped = 2;
            length = (size_t)at[0] | (size_t)at[1] << 8;
            at += 2;
        } else if (memchr(at, 0, left)) {
            skipped = 1;
            length = (size_t)((const uint8_t *)memchr(at, 0, left) - at);
        }
        bool last = length + skipped >= left;
        if (put_file(&fds[n_files], paths[n_files], at, last ? (size_t)(end - at) : length) < 0)
            return 0;
        names[n_files] = paths[n_files];
        at = last ? NULL : at + length + (choice & 128 ? 0 : skipped);
    }
    static const char *const delays[] = {"BW=1.5"};
    struct dpro_job *job =
        fuzz_job(names, n_files, .rank_regex = choice & 1 ? NULL : "fd/([0-9]+)",
                 .first_step = choice & 32 ? 1 : 0, .last_step = choice & 32 ? 2 : 0);
    struct dpro_job_replay_options options = {.size = sizeof options,
                                              .samples = choice & 8 ? 5 : 0,
                                              .delays = delays,
                                              .n_delays = choice & 16 ? 1 : 0};
    struct dpro_report report;
    struct dpro_error err = {0};
    if (!fuzz_failed(dpro_job_replay(job, &options, &report, &err), &err)) {
        check_replay(report.graph, report.replay);
        write_reports(&report);
    }
    dpro_job_close(job);
    return 0;
}
