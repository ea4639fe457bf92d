#include "message_job.h"
#include "base/base.h"

#include "case.h"
#include "trace_text.h"
#include "tracer/record.h"

#define US INT64_C(1000)

void send_one(struct job *job, int from, int to, int start, int end, int bytes)
{
    assert_true(job->n_sent < MOST_MESSAGES_A_JOB);
    job->sent[job->n_sent++] = (struct sent){from, to, start, end, bytes, DATA, 0, 0, 0, 0};
}

struct sent *last_sent(struct job *job)
{
    return &job->sent[job->n_sent - 1];
}

/* Computes on the stream until it arrives, and for 20 us once it has left. */
static void put_gpu_iteration(const struct job *job, struct trace_text *text, int at, int arrive,
                              int leave)
{
    trace_text_spans(text, at,
                     "1+3 >7 20+%d gemm; 6+8 ! nccl:%s;"
                     "8+3 >7 %d+%d ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)"
                     "{'Collective name': '%s', 'In msg nelems': 100, 'dtype': 'Float',"
                     "'Process Group Name': '0', 'Group size': %d}; 16+3 >7 %d+20 relu;"
                     "30+%d cudaDeviceSynchronize",
                     arrive - 20, job->kind ? job->kind : "all_reduce", arrive, leave - arrive,
                     job->kind ? job->kind : "allreduce", job->n_ranks, leave, leave - 8);
}

void write_profile(const struct job *job, const char *folder, int rank)
{
    char path[128];
    const char *kind = job->kind ? job->kind : "all_reduce";
    snprintf(path, sizeof path, "%s/rank%d.json", folder, rank);
    struct trace_text *text = trace_text_file(path, rank, job->n_ranks);
    for (int i = 0; i < N; i++) {
        int at = STEP * (i + 1), later = job->later[i][rank], last = 0;
        trace_text_step(text, i, at, STEP);
        if (job->by_nccl) {
            put_gpu_iteration(job, text, at, job->arrive[rank][0] + later,
                              job->leave[rank][0] + later);
            continue;
        }
        for (int c = 0; c < job->n_collectives; c++) {
            int arrive = job->arrive[rank][c] + later, leave = job->leave[rank][c] + later;
            int begin = c ? job->arrive[rank][c - 1] + later + 2 : 1;
            last = leave > last ? leave : last;
            trace_text_spans(text, at,
                             "%d+%d aten::mm; %d+1 c10d::%s_; %d+%d @%d ! gloo:%s"
                             "{'Input Dims': [[%d]], 'Input type': ['float']}",
                             begin, arrive - 1 - begin, arrive - 1,
                             strcmp(kind, "all_reduce") == 0 ? "allreduce" : kind, arrive,
                             leave - arrive, 2 + c, kind, 100 + c);
        }
        trace_text_spans(text, at, "%d+20 aten::add_", last + 10);
    }
    if (job->host[rank])
        trace_text_host(text, job->host[rank]);
    trace_text_close(text);
}

/* ---- NCCL's log ---- */

static void put_string(FILE *file, uint32_t number, const char *text)
{
    struct record_string string = {.head = {RECORD_STRING, 1, sizeof string, 1}, .string = number};
    strcpy(string.text, text);
    assert_int_equal(fwrite(&string, sizeof string, 1, file), 1);
}

static void put_event(FILE *file, struct record_nccl_event event, enum nccl_event type)
{
    event.head = (struct record){RECORD_NCCL_EVENT, 1, sizeof event, 1};
    event.type = type;
    event.comm = 1;
    assert_int_equal(fwrite(&event, sizeof event, 1, file), 1);
}

/* Numbers of events: of iteration i, its collective or operations, their proxy ops, their steps. */
enum { COLLECTIVE_OF = 1, OPERATION_OF = 2, PROXY_OF = 300, STEP_OF = 600, ITERATION_OF = 1000 };

static void put_step(FILE *file, const struct job *job, int iteration, int index, int rank)
{
    const struct sent *m = &job->sent[index];
    bool sends = m->from == rank;
    int first = index, before = 0;
    for (int k = index - 1; k >= 0; k--) { /* of the same two, on the same channel */
        const struct sent *other = &job->sent[k];
        bool here = !other->only || other->only == iteration + 1;
        if (here && other->from == m->from && other->to == m->to && other->channel == m->channel) {
            first = k;
            before++;
        }
    }
    int64_t at = STEP * (iteration + 1) + job->later[iteration][rank];
    uint64_t number = (uint64_t)(ITERATION_OF * (iteration + 1));
    if (first == index && job->point_to_point) {
        struct record_nccl_event operation = {.event = number + OPERATION_OF + (uint64_t)first,
                                              .start_ns = (at + 8) * US,
                                              .stop_ns = (at + 9) * US};
        operation.p2p.func = 3;
        operation.p2p.peer = sends ? m->to : m->from;
        put_event(file, operation, NCCL_P2P);
    }
    if (first == index) {
        struct record_nccl_event op = {
            .event = number + PROXY_OF + (uint64_t)first,
            .parent =
                number + (job->point_to_point ? OPERATION_OF + (uint64_t)first : COLLECTIVE_OF),
            .start_ns = (at + m->start - 6) * US,
            .stop_ns = (at + m->end) * US,
            .flags = sends ? NCCL_SEND : NCCL_RECV};
        op.proxy_op.peer = sends ? m->to : m->from;
        op.proxy_op.channel = m->channel;
        put_event(file, op, NCCL_PROXY_OP);
    }
    struct record_nccl_event step = {.event = number + STEP_OF + (uint64_t)index,
                                     .parent = number + PROXY_OF + (uint64_t)first,
                                     .start_ns = (at + m->start - 5) * US,
                                     .stop_ns = (at + m->end + (sends ? 0 : 1)) * US,
                                     .flags = sends ? NCCL_SEND : NCCL_RECV};
    step.proxy_step.step = before;
    step.proxy_step.size_bytes = (uint64_t)m->bytes;
    *(sends ? &step.proxy_step.net_wait_ns : &step.proxy_step.flush_wait_ns) =
        (at + (sends ? m->start : m->end)) * US;
    put_event(file, step, NCCL_PROXY_STEP);
}

static void write_nccl_log(const struct job *job, const char *folder, int rank)
{
    char path[128];
    snprintf(path, sizeof path, "%s/nccl_rank%d.log", folder, rank);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    struct log_header header = {.magic = LOG_MAGIC,
                                .version = LOG_VERSION,
                                .header_bytes = sizeof header,
                                .kind = LOG_NCCL,
                                .pid = 100,
                                .rank = rank};
    struct record_nccl_comm comm = {.head = {RECORD_NCCL_COMM, 1, sizeof comm, 1},
                                    .comm = 1,
                                    .rank = rank,
                                    .n_ranks = job->n_ranks,
                                    .hash = 0xabc};
    assert_int_equal(fwrite(&header, sizeof header, 1, file), 1);
    assert_int_equal(fwrite(&comm, sizeof comm, 1, file), 1);
    put_string(file, 1, "AllReduce");
    put_string(file, 2, job->algorithm ? job->algorithm : "");
    put_string(file, 3, "SendRecv");
    for (int i = 0; i < N; i++) {
        int64_t at = STEP * (i + 1);
        struct record_nccl_event coll = {.event =
                                             (uint64_t)(ITERATION_OF * (i + 1)) + COLLECTIVE_OF,
                                         .start_ns = (at + 7) * US,
                                         .stop_ns = (at + 12) * US};
        coll.coll.sequence = (uint64_t)i;
        coll.coll.func = 1;
        coll.coll.algorithm = 2;
        if (!job->point_to_point)
            put_event(file, coll, NCCL_COLL);
        for (int s = 0; s < job->n_sent; s++)
            if ((job->sent[s].from == rank || job->sent[s].to == rank) &&
                (!job->sent[s].only || job->sent[s].only == i + 1))
                put_step(file, job, i, s, rank);
    }
    assert_int_equal(fclose(file), 0);
}

/* ---- the transport's ---- */

/* One call of `bytes` from `offset` on; with the message's head, if it begins there. */
static void write_call(FILE *file, const struct job *job, const struct sent *m, int rank,
                       int iteration, int start, uint64_t offset, int bytes, bool begins)
{
    int peer = rank == m->from ? m->to : m->from, low = rank < peer ? rank : peer;
    int high = rank < peer ? peer : rank;
    int64_t at = STEP * (iteration + 1) + start + job->later[iteration][rank];
    fprintf(file,
            "%" PRId64 ",%" PRId64 ",%d,%d,%d,10.0.0.%d:%d,10.0.0.%d:%d,%s,%s,%" PRIu64 ",%d,%d,",
            at * US, (at + 1) * US, rank, 2 + m->collective, peer, job->one_host ? 9 : rank + 1,
            rank == low ? 1000 + high : 2000 + low, job->one_host ? 9 : peer + 1,
            rank == low ? 2000 + low : 1000 + high, rank == m->from ? "tx" : "rx",
            rank == m->from ? "writev" : "recv", offset, bytes, bytes);
    if (begins)
        fprintf(file, "%d,%d,4,%d,%d,%d\n", m->bytes + 48, m->opcode,
                40 + 2 * iteration + m->collective, m->delta, m->bytes);
    else
        fputs(",,,,,\n", file);
}

/* It is sent in one call; received as it comes, its head first. */
static void write_end(FILE *file, const struct job *job, const struct sent *m, int rank,
                      int iteration, uint64_t offset)
{
    bool in_two = rank == m->to && m->bytes > 0 && m->opcode == DATA && m->end > m->start + 2;
    int start = rank == m->from ? m->start : m->end - 1;
    if (in_two)
        write_call(file, job, m, rank, iteration, m->start, offset, 48, true);
    write_call(file, job, m, rank, iteration, start, offset + (in_two ? 48 : 0),
               m->bytes + (in_two ? 0 : 48), !in_two);
}

void write_log(const struct job *job, const char *folder, int rank)
{
    char path[128];
    uint64_t offsets[MOST_RANKS][2] = {{0}};
    if (job->by_nccl) {
        write_nccl_log(job, folder, rank);
        return;
    }
    snprintf(path, sizeof path, "%s/net_rank%d.csv", folder, rank);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs("t_start_ns,t_end_ns,rank,tid,conn,local,remote,dir,call,offset,requested,returned,"
          "gloo_nbytes,gloo_opcode,gloo_prefix,gloo_tag,gloo_delta,gloo_len\n",
          file);
    for (int i = 0; i < N; i++)
        for (int s = 0; s < job->n_sent; s++) {
            const struct sent *m = &job->sent[s];
            if ((m->from != rank && m->to != rank) || (m->only && m->only != i + 1))
                continue;
            uint64_t *offset = &offsets[m->from == rank ? m->to : m->from][m->from == rank];
            write_end(file, job, m, rank, i, *offset);
            *offset += 48 + (uint64_t)m->bytes;
        }
    assert_int_equal(fclose(file), 0);
}

struct job ring(int n_ranks, int n_steps, int step, int reduce, int bytes)
{
    struct job job = {.n_ranks = n_ranks, .n_collectives = 1};
    for (int k = 0; k < n_steps; k++)
        for (int r = 0; r < n_ranks; r++)
            send_one(&job, r, (r + 1) % n_ranks, 110 + k * (step + reduce),
                     110 + k * (step + reduce) + step, bytes);
    for (int r = 0; r < n_ranks; r++) {
        job.arrive[r][0] = 100;
        job.leave[r][0] = 110 + n_steps * (step + reduce);
    }
    return job;
}

void write_job(const struct job *job, const char *folder)
{
    for (int r = 0; r < job->n_ranks; r++) {
        write_profile(job, folder, r);
        if (!job->without_log[r])
            write_log(job, folder, r);
    }
}
