#include "trace_text.h"
#include "base/base.h"

#include "case.h"
#include "job_at.h"
#include "temp_folder.h"

enum { MAX_RANKS = 16 };

struct trace_text {
    FILE *file;
    int correlation, n_rounds; /* calls of trace_text_spans */
    char tail[80];             /* what the file ends with */
};

static struct trace_text texts[MAX_RANKS];
static int n_texts;

static struct trace_text *begin(const char *name)
{
    if (n_texts == 0)
        assert_int_equal(make_folder(NULL), 0);
    assert_true(n_texts < MAX_RANKS);
    struct trace_text *text = &texts[n_texts++];
    text->correlation = text->n_rounds = 0;
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
    fputs(json_text(json), text->file);
}

static struct trace_text *begin_profile(struct trace_text *text, int rank, int world_size)
{
    fprintf(text->file,
            "{\"schemaVersion\": 1, \"distributedInfo\": {\"backend\": \"nccl\", \"rank\": %d, "
            "\"world_size\": %d}, \"traceEvents\": [\n"
            "{\"ph\": \"M\", \"name\": \"process_name\", \"pid\": 100, \"tid\": 0, \"args\": "
            "{\"name\": \"python\"}}",
            rank, world_size);
    return text;
}

struct trace_text *trace_text_window(int rank, int world_size, const char *name)
{
    return begin_profile(begin(name), rank, world_size);
}

struct trace_text *trace_text_file(const char *path, int rank, int world_size)
{
    static struct trace_text text;
    text = (struct trace_text){.file = fopen(path, "w"), .tail = "\n]}\n"};
    assert_non_null(text.file);
    return begin_profile(&text, rank, world_size);
}

void trace_text_close(struct trace_text *text)
{
    fputs(text->tail, text->file);
    assert_int_equal(fclose(text->file), 0);
}

static void put(struct trace_text *text, const char *category, const char *name, int pid, int tid,
                int64_t start, int64_t dur, const char *args)
{
    fprintf(text->file,
            ",\n{\"ph\": \"X\", \"cat\": \"%s\", \"name\": \"%s\", \"pid\": %d, \"tid\": %d, "
            "\"ts\": %" PRId64 ", \"dur\": %" PRId64 ", \"args\": {%s}}",
            category, name, pid, tid, start, dur, json_text(args));
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
    snprintf(with_correlation, sizeof with_correlation, "'correlation': %d", text->correlation);
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

struct span {
    int64_t start, dur, device_start, device_dur;
    int thread, stream, sequence, number;
    bool is_backward, is_annotation, calls;
    char name[120], args[400];
};

/* Its times and signs; returns where the name begins. */
static char *read_signs(char *at, struct span *span)
{
    for (;; at += strspn(at, " ")) {
        char sign = *at;
        if (isdigit((unsigned char)sign)) {
            int64_t start = strtoll(at, &at, 10), dur = strtoll(at, &at, 10);
            *(span->stream ? &span->device_start : &span->start) = start;
            *(span->stream ? &span->device_dur : &span->dur) = dur;
            span->calls |= !span->stream;
            continue;
        }
        int *number = sign == '@'                  ? &span->thread
                      : sign == '>'                ? &span->stream
                      : sign == '='                ? &span->number
                      : sign && strchr("#^", sign) ? &span->sequence
                                                   : NULL;
        span->is_backward |= sign == '^';
        span->is_annotation |= sign == '!';
        if (number)
            *number = (int)strtol(at + 1, &at, 10);
        else if (sign && strchr(" !", sign))
            at++;
        else
            return at;
    }
}

static void read_name(char *at, struct span *span)
{
    size_t len = strcspn(at, "{");
    if (at[len])
        snprintf(span->args, sizeof span->args, "%.*s", (int)strcspn(at + len + 1, "}"),
                 at + len + 1);
    while (len > 0 && at[len - 1] == ' ')
        len--;
    snprintf(span->name, sizeof span->name, "%s%.*s",
             *at == '~' ? "autograd::engine::evaluate_function: " : "", (int)len - (*at == '~'),
             at + (*at == '~'));
}

static void put_span(struct trace_text *text, int64_t at, char *from)
{
    struct span span = {.thread = 1};
    char args[600];
    read_name(read_signs(from, &span), &span);
    bool is_cuda = text_begins(span.name, "cuda") || text_begins(span.name, "hip");
    bool is_driver = text_begins(span.name, "cu") && isupper((unsigned char)span.name[2]);
    if (span.stream && span.calls) {
        trace_text_kernel(text, span.name, span.thread, at + span.start, span.dur, span.stream,
                          at + span.device_start, span.device_dur, span.args);
        return;
    }
    int number = span.number ? 100000 + 1000 * text->n_rounds + span.number : ++text->correlation;
    if (span.stream)
        snprintf(args, sizeof args, "'stream': %d, 'correlation': %d", span.stream, number);
    else if (is_cuda || is_driver)
        snprintf(args, sizeof args, "'correlation': %d", number);
    else if (span.sequence)
        snprintf(args, sizeof args, "'Sequence number': %d, 'Fwd thread id': %d",
                 span.sequence + 20 * text->n_rounds, span.is_backward);
    else
        args[0] = '\0';
    snprintf(args + strlen(args), sizeof args - strlen(args), "%s%s",
             args[0] && span.args[0] ? ", " : "", span.args);
    if (span.stream)
        put(text,
            strstr(span.name, "cpy") || text_begins(span.name, "Copy") ? "gpu_memcpy" : "kernel",
            span.name, 0, span.stream, at + span.device_start, span.device_dur, args);
    else
        put(text,
            span.is_annotation ? "user_annotation"
            : is_cuda          ? "cuda_runtime"
            : is_driver        ? "cuda_driver"
                               : "cpu_op",
            span.name, 100, span.thread, at + span.start, span.dur, args);
}

void trace_text_spans(struct trace_text *text, int64_t at, const char *format, ...)
{
    char spans[4000], *rest;
    va_list list;
    va_start(list, format);
    assert_in_range(vsnprintf(spans, sizeof spans, format, list), 0, sizeof spans - 1);
    va_end(list);
    for (char *span = strtok_r(spans, ";", &rest); span; span = strtok_r(NULL, ";", &rest))
        put_span(text, at, span);
    text->n_rounds++;
}

void trace_text_steps(struct trace_text *text, int n, int64_t us, const char *spans)
{
    for (int i = 0; i < n; i++) {
        trace_text_step(text, i, us * i, us);
        trace_text_spans(text, us * i, "%s", spans);
    }
}

struct dpro_graph *trace_text_one(int n, int64_t us, const char *spans)
{
    trace_text_steps(trace_text_begin(0, 1), n, us, spans);
    return trace_text_graph();
}

struct dpro_graph *trace_text_graph_with(const struct dpro_job_options *options)
{
    for (int i = 0; i < n_texts; i++)
        trace_text_close(&texts[i]);
    n_texts = 0;
    struct dpro_graph *graph = job_graph(job_at_with(folder, options));
    remove_folder(NULL);
    return graph;
}

struct dpro_graph *trace_text_graph(void)
{
    return trace_text_graph_with(NULL);
}
