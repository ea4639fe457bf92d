#include "message_job.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define US INT64_C(1000)

void send_one(struct job *job, int from, int to, int start, int end, int bytes)
{
    assert_true(job->n_sent < MOST_MESSAGES_A_JOB);
    job->sent[job->n_sent++] = (struct sent){from, to, start, end, bytes, DATA, 0, 0, 0};
}

struct sent *last_sent(struct job *job)
{
    return &job->sent[job->n_sent - 1];
}

void write_profile(const struct job *job, const char *folder, int rank)
{
    char path[128];
    const char *kind = job->kind ? job->kind : "all_reduce";
    snprintf(path, sizeof path, "%s/rank%d.json", folder, rank);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fprintf(file,
            "{\"schemaVersion\": 1, \"distributedInfo\": {\"backend\": \"gloo\", \"rank\": %d, "
            "\"world_size\": %d}, \"traceEvents\": [\n{\"ph\": \"M\", \"name\": \"process_name\", "
            "\"pid\": 100, \"tid\": 0, \"args\": {\"name\": \"python\"}}",
            rank, job->n_ranks);
    for (int i = 0; i < N; i++) {
        int at = STEP * (i + 1), later = job->later[i][rank], last = 0;
        fprintf(file,
                ",\n{\"ph\": \"X\", \"cat\": \"user_annotation\", \"name\": \"ProfilerStep#%d\", "
                "\"pid\": 100, \"tid\": 1, \"ts\": %d, \"dur\": %d, \"args\": {}}",
                i, at, STEP);
        for (int c = 0; c < job->n_collectives; c++) {
            int arrive = job->arrive[rank][c] + later, leave = job->leave[rank][c] + later;
            int begin = c ? job->arrive[rank][c - 1] + later + 2 : 1;
            last = leave > last ? leave : last;
            fprintf(file,
                    ",\n{\"ph\": \"X\", \"cat\": \"cpu_op\", \"name\": \"aten::mm\", \"pid\": 100, "
                    "\"tid\": 1, \"ts\": %d, \"dur\": %d, \"args\": {}}",
                    at + begin, arrive - 1 - begin);
            fprintf(
                file,
                ",\n{\"ph\": \"X\", \"cat\": \"cpu_op\", \"name\": \"c10d::%s_\", \"pid\": 100, "
                "\"tid\": 1, \"ts\": %d, \"dur\": 1, \"args\": {}}",
                strcmp(kind, "all_reduce") == 0 ? "allreduce" : kind, at + arrive - 1);
            fprintf(
                file,
                ",\n{\"ph\": \"X\", \"cat\": \"user_annotation\", \"name\": \"gloo:%s\", "
                "\"pid\": 100, \"tid\": %d, \"ts\": %d, \"dur\": %d, \"args\": {\"Input Dims\": "
                "[[%d]], \"Input type\": [\"float\"]}}",
                kind, 2 + c, at + arrive, leave - arrive, 100 + c);
        }
        fprintf(file,
                ",\n{\"ph\": \"X\", \"cat\": \"cpu_op\", \"name\": \"aten::add_\", \"pid\": 100, "
                "\"tid\": 1, \"ts\": %d, \"dur\": 20, \"args\": {}}",
                at + last + 10);
    }
    fputs("\n]}\n", file);
    assert_int_equal(fclose(file), 0);
}

static void write_end(FILE *file, const struct job *job, const struct sent *m, int rank,
                      int iteration, uint64_t offset)
{
    int peer = rank == m->from ? m->to : m->from, low = rank < peer ? rank : peer;
    int high = rank < peer ? peer : rank;
    int start = rank == m->from ? m->start : m->end - 1;
    int64_t at = STEP * (iteration + 1) + start + job->later[iteration][rank];
    fprintf(file,
            "%" PRId64 ",%" PRId64 ",%d,%d,%d,10.0.0.%d:%d,10.0.0.%d:%d,%s,%s,%" PRIu64
            ",%d,%d,%d,%d,4,%d,%d,%d\n",
            at * US, (at + 1) * US, rank, 2 + m->collective, peer, job->one_host ? 9 : rank + 1,
            rank == low ? 1000 + high : 2000 + low, job->one_host ? 9 : peer + 1,
            rank == low ? 2000 + low : 1000 + high, rank == m->from ? "tx" : "rx",
            rank == m->from ? "writev" : "recv", offset, m->bytes + 48, m->bytes + 48,
            m->bytes + 48, m->opcode, 40 + 2 * iteration + m->collective, m->delta, m->bytes);
}

void write_log(const struct job *job, const char *folder, int rank)
{
    char path[128];
    uint64_t offsets[MOST_RANKS][2] = {{0}};
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
