/* Fuzz target: diagnoses that were saved. What can be read can be compared with, in text and in
 * JSON; what is not is said in one line. */
#include <sys/mman.h>
#include <unistd.h>

#include <dpro/diagnose.h>

#include "fuzz.h"

static const char trace[] =
    "{\"schemaVersion\":1,\"distributedInfo\":{\"rank\":0,\"world_size\":1},\"traceEvents\":["
    "{\"ph\":\"X\",\"cat\":\"cpu_op\",\"name\":\"a\",\"pid\":5,\"tid\":6,\"ts\":1,\"dur\":9},"
    "{\"ph\":\"X\",\"cat\":\"cpu_op\",\"name\":\"b\",\"pid\":5,\"tid\":6,\"ts\":20,\"dur\":9}]}";

static int write_input(char path[64], const void *data, size_t size)
{
    int fd = memfd_create("input", 0);
    if (fd < 0 || write(fd, data, size) != (ssize_t)size)
        abort();
    snprintf(path, 64, "/proc/self/fd/%d", fd);
    return fd;
}

static void diagnose(struct dpro_diagnose_report *report)
{
    char path[64];
    struct dpro_error err = {.code = 0};
    int fd = write_input(path, trace, sizeof trace - 1);
    const char *const paths[] = {path};
    static struct dpro_job *job; /* the report is of it */
    job = fuzz_job(paths, 1);
    if (dpro_job_diagnose(job, NULL, report, &err) < 0)
        abort();
    close(fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static FILE *nowhere;
    static struct dpro_diagnose_report report;
    struct dpro_saved_diagnosis *baseline = NULL;
    struct dpro_error err = {.code = 0};
    char path[64];
    if (!nowhere) {
        nowhere = fopen("/dev/null", "w");
        diagnose(&report);
    }
    int fd = write_input(path, data, size);
    if (dpro_saved_diagnosis_read(path, &baseline, &err) < 0) {
        if (err.text[0] == '\0' || strchr(err.text, '\n') || baseline)
            abort();
    } else {
        report.baseline = baseline;
        fuzz_failed(dpro_saved_diagnosis_check(baseline, report.graph, &err), &err);
        if (!nowhere || dpro_diagnose_text(&report, nowhere, &err) < 0 ||
            dpro_diagnose_json(&report, nowhere, &err) < 0)
            abort();
        dpro_saved_diagnosis_destroy(baseline);
    }
    close(fd);
    return 0;
}
