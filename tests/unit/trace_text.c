#include "trace_text.h"
#include "base/base.h"

#include "case.h"
#include "job_at.h"
#include "temp_folder.h"

enum { MAX_RANKS = 16 };

struct trace_text {
    FILE *file;
    int correlation;
    char tail[80]; /* what the file ends with */
};

static struct trace_text texts[MAX_RANKS];
static int n_texts;

static struct trace_text *begin(const char *name)
{
    if (n_texts == 0)
        assert_int_equal(make_folder(NULL), 0);
    assert_true(n_texts < MAX_RANKS);
    struct trace_text *text = &texts[n_texts++];
    text->correlation = 0;
    strcpy(text->tail, "\n]}\n");
    text->file = fopen(in_folder(name), "w");
    assert_non_null(text->file);
    return text;
}

struct trace_text *trace_text_begin(int rank, int world_size)
{
    char name[40];
    snprintf(name, sizeof name, "rank%d.json", rank);
    return trace_text_window(rank, world_size, name);
}

struct trace_text *trace_text_execution(const char *name)
{
    struct trace_text *text = begin(name);
    fputs("{\"schema\": \"1.0.1\", \"pid\": 100, \"nodes\": [\n", text->file);
    return text;
}

void trace_text_host(struct trace_text *text, const char *host)
{
    snprintf(text->tail, sizeof text->tail, "\n], \"host_name\": \"%s\"}\n", host);
}

static struct trace_text *begin_net(const char *name, const char *who)
{
    struct trace_text *text = begin(name);
    text->tail[0] = '\0';
    fprintf(text->file,
            "t_start_ns,t_end_ns,%s,tid,conn,local,remote,dir,call,offset,requested,returned\n",
            who);
    return text;
}

struct trace_text *trace_text_net(int rank)
{
    char name[40];
    snprintf(name, sizeof name, "net_rank%d.csv", rank);
    return begin_net(name, "rank");
}

struct trace_text *trace_text_server(void)
{
    return begin_net("net_server0.csv", "no_rank");
}

void trace_text_transfer(struct trace_text *text, int rank, int peer, int port, bool sends,
                         uint64_t offset, unsigned bytes, int64_t start_ns, int64_t end_ns)
{
    fprintf(text->file,
            "%" PRId64 ",%" PRId64 ",%d,1,%d,10.0.0.%d:%d,10.0.0.%d:%d,%s,%s,%" PRIu64 ",%u,%u\n",
            start_ns, end_ns, rank, 10 + peer, rank + 1, port + rank, peer + 1, port + peer,
            sends ? "tx" : "rx", sends ? "send" : "recv", offset, bytes, bytes);
}

struct trace_text *trace_text_timeline(void)
{
    struct trace_text *text = begin("timeline_rank0.json");
    strcpy(text->tail, "]\n");
    fputs("[\n", text->file);
    return text;
}

void trace_text_node(struct trace_text *text, const char *json)
{
    fputs(json, text->file);
}

struct trace_text *trace_text_window(int rank, int world_size, const char *name)
{
    struct trace_text *text = begin(name);
    fprintf(text->file,
            "{\"schemaVersion\": 1, \"distributedInfo\": {\"backend\": \"nccl\", \"rank\": %d, "
            "\"world_size\": %d}, \"traceEvents\": [\n"
            "{\"ph\": \"M\", \"name\": \"process_name\", \"pid\": 100, \"tid\": 0, \"args\": "
            "{\"name\": \"python\"}}",
            rank, world_size);
    return text;
}

static void put(struct trace_text *text, const char *category, const char *name, int pid, int tid,
                int64_t start, int64_t dur, const char *args)
{
    fprintf(text->file,
            ",\n{\"ph\": \"X\", \"cat\": \"%s\", \"name\": \"%s\", \"pid\": %d, \"tid\": %d, "
            "\"ts\": %" PRId64 ", \"dur\": %" PRId64 ", \"args\": {%s}}",
            category, name, pid, tid, start, dur, args);
}

void trace_text_cpu(struct trace_text *text, const char *category, const char *name, int thread,
                    int64_t start, int64_t dur, const char *args)
{
    put(text, category, name, 100, thread, start, dur, args);
}

void trace_text_kernel(struct trace_text *text, const char *name, int thread, int64_t call,
                       int64_t call_dur, int stream, int64_t start, int64_t dur, const char *args)
{
    char with_correlation[512];
    bool copies = strncmp(name, "Memcpy", 6) == 0;
    text->correlation++;
    snprintf(with_correlation, sizeof with_correlation, "\"correlation\": %d", text->correlation);
    put(text, "cuda_runtime", copies ? "cudaMemcpyAsync" : "cudaLaunchKernel", 100, thread, call,
        call_dur, with_correlation);
    snprintf(with_correlation, sizeof with_correlation,
             "\"device\": 0, \"stream\": %d, \"correlation\": %d%s%s", stream, text->correlation,
             *args ? ", " : "", args);
    put(text, copies ? "gpu_memcpy" : "kernel", name, 0, stream, start, dur, with_correlation);
}

void trace_text_device(struct trace_text *text, const char *category, const char *name, int stream,
                       int64_t start, int64_t dur, const char *args)
{
    put(text, category, name, 0, stream, start, dur, args);
}

void trace_text_memory(struct trace_text *text, int thread, int device, int64_t at,
                       uint64_t address, int64_t bytes, int64_t allocated)
{
    fprintf(text->file,
            ",\n{\"ph\": \"i\", \"cat\": \"cpu_instant_event\", \"s\": \"t\", \"name\": "
            "\"[memory]\", \"pid\": 100, \"tid\": %d, \"ts\": %" PRId64
            ", \"args\": {\"Bytes\": %" PRId64 ", \"Addr\": %" PRIu64
            ", \"Total Allocated\": %" PRId64 ", \"Device Type\": %d, \"Device Id\": %d}}",
            thread, at, bytes, address, allocated, device >= 0, device);
}

void trace_text_step(struct trace_text *text, int number, int64_t start, int64_t dur)
{
    char name[40];
    snprintf(name, sizeof name, "ProfilerStep#%d", number);
    put(text, "user_annotation", name, 100, 1, start, dur, "");
}

struct dpro_graph *trace_text_graph_with(const struct dpro_job_options *options)
{
    for (int i = 0; i < n_texts; i++) {
        fputs(texts[i].tail, texts[i].file);
        assert_int_equal(fclose(texts[i].file), 0);
    }
    n_texts = 0;
    struct dpro_graph *graph = job_graph(job_at_with(folder, options));
    remove_folder(NULL);
    return graph;
}

struct dpro_graph *trace_text_graph(void)
{
    return trace_text_graph_with(NULL);
}
