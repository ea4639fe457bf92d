/* How fast trace files become spans and a built graph, in MB of JSON per second of CPU time, which
 * is the speed of one core whatever the number of threads.
 *
 * bench_ingest [-t THREADS] [-n TIMES] FILE|FOLDER...
 *
 * Prints the best of TIMES runs, and the peak memory of the first over the JSON's size: later ones
 * find the heap in pieces. */
#include <dpro/job.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "cpu_seconds.h"
static double peak_mb(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)usage.ru_maxrss * 1024 / 1e6;
}

static void print_log(void *arg, enum dpro_log_level level, const char *text)
{
    (void)arg;
    fprintf(stderr, "%d: %s\n", (int)level, text);
}

int main(int argc, char **argv)
{
    struct dpro_job_options options = {.size = sizeof options, .threads = 1};
    int times = 3, option;
    while ((option = getopt(argc, argv, "t:n:v")) != -1) {
        if (option == 't')
            options.threads = atoi(optarg);
        else if (option == 'n')
            times = atoi(optarg);
        else if (option == 'v')
            options.sink = (struct dpro_sink){.log = print_log, .level = DPRO_LOG_DEBUG};
        else
            return 2;
    }
    if (optind == argc) {
        fprintf(stderr, "usage: bench_ingest [-t THREADS] [-n TIMES] [-v] FILE...\n");
        return 2;
    }
    double best_cpu = 1e30, best_graph = 1e30, spans_mb = 0, graph_mb = 0;
    uint64_t json_bytes = 0, n_spans = 0, n_events = 0;
    for (int i = 0; i < times; i++) {
        const struct dpro_trace *trace;
        const struct dpro_graph *graph;
        struct dpro_error err = {0};
        struct dpro_job *job;
        double begin = cpu_seconds();
        if (dpro_job_open((const char *const *)argv + optind, (size_t)(argc - optind), &options,
                          &job, &err) < 0 ||
            dpro_job_trace(job, &trace, &err) < 0) {
            fprintf(stderr, "bench_ingest: %s\n", err.text);
            return 3;
        }
        double cpu = cpu_seconds() - begin;
        spans_mb = i == 0 ? peak_mb() : spans_mb;
        if (dpro_job_graph(job, &graph, &err) < 0) {
            fprintf(stderr, "bench_ingest: %s\n", err.text);
            return 3;
        }
        double to_graph = cpu_seconds() - begin;
        graph_mb = i == 0 ? peak_mb() : graph_mb;
        json_bytes = n_events = 0;
        for (size_t f = 0; f < dpro_trace_n_files(trace); f++) {
            struct dpro_file_info file = dpro_trace_file(trace, f);
            if (f > 0 && strcmp(file.path, dpro_trace_file(trace, f - 1).path) == 0)
                continue; /* another task's part of it */
            json_bytes += file.json_bytes;
            n_events += file.n_events;
        }
        n_spans = dpro_trace_n_spans(trace);
        dpro_job_close(job);
        best_cpu = cpu < best_cpu ? cpu : best_cpu;
        best_graph = to_graph < best_graph ? to_graph : best_graph;
    }
    printf("%.0f MB/s of JSON a core to a built graph, %.0f to spans (%.1f MB, %llu events, %llu "
           "spans, "
           "%.3f s CPU, peak memory %.1f MB to spans, %.1f MB = %.2f x)\n",
           (double)json_bytes / best_graph / 1e6, (double)json_bytes / best_cpu / 1e6,
           (double)json_bytes / 1e6, (unsigned long long)n_events, (unsigned long long)n_spans,
           best_graph, spans_mb, graph_mb, graph_mb * 1e6 / (double)json_bytes);
    return 0;
}
