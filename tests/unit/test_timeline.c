/* Timelines of communication layers: what a run is made of, in each writer's way. */

#include "adapters/horovod/timeline.h"
#include "case.h"
#include "ingest/readers.h"
#include "part_text.h"

static const struct timeline *timeline_of(const struct trace_part *part)
{
    return part_payload(part, &timeline_payload);
}

static struct trace_part read_text(const char *text, size_t chunk)
{
    return part_of_text(&timeline_reader, text, chunk);
}

static void assert_stage(const struct timeline_run *run, enum timeline_stage stage,
                         int64_t start_us, int64_t end_us)
{
    assert_int_equal(run->stages[stage].start_ns, start_us * 1000);
    assert_int_equal(run->stages[stage].end_ns, end_us * 1000);
}

#define NAMED(pid, tensor)                                                                         \
    "{'name':'process_name','ph':'M','pid':" #pid ",'args':{'name':'" tensor "'}}"                 \
    ","
#define B(pid, what, ts) "{'ph':'B','name':'" what "','ts':" #ts ",'pid':" #pid "},"
#define E(pid, ts)       "{'ph':'E','ts':" #ts ",'pid':" #pid "},"
#define LAST(pid, ts)                                                                              \
    "{'ph':'E','ts':" #ts ",'pid':" #pid ",'args':{'dtype':'float32','shape':'[512, 10]'}},"
#define ANCHOR                                                                                     \
    "{'name':'process_name','ph':'M','pid':0,'args':{'start_time_since_epoch_in_"                  \
    "micros':1000000}},"
#define RUN                                                                                        \
    ANCHOR NAMED(1, "w") "{'ph':'i','name':'CYCLE_START','ts':9,'s':'g'}," B(                      \
        1, "NEGOTIATE_ALLREDUCE", 10) "{'ph':'X','name':'0','ts':11,'pid':1,'dur':0}," E(1, 12)    \
        B(1, "ALLREDUCE", 13) B(1, "MEMCPY_IN_FUSION_BUFFER", 14) E(1, 16)                         \
            B(1, "GLOO_ALLREDUCE", 17) E(1, 30) B(1, "MEMCPY_OUT_FUSION_BUFFER", 31) E(1, 33)      \
                LAST(1, 35)

static void assert_whole_run(const struct trace_part *part)
{
    const struct timeline *t = timeline_of(part);
    const int64_t base = 1000000;
    assert_int_equal(t->writer, TIMELINE_HOROVOD);
    assert_true(t->on_epoch);
    assert_int_equal(t->runs.n, 1);
    const struct timeline_run *run = &t->runs.at[0];
    assert_stage(run, STAGE_NEGOTIATE, base + 10, base + 12);
    assert_stage(run, STAGE_COPY_IN, base + 14, base + 16);
    assert_stage(run, STAGE_TRANSFER, base + 17, base + 30);
    assert_stage(run, STAGE_COPY_OUT, base + 31, base + 33);
    assert_int_equal(run->whole.start_ns, (base + 13) * 1000);
    assert_int_equal(run->whole.end_ns, (base + 35) * 1000);
    assert_string_equal(strtab_get(&part->names, run->op), "ALLREDUCE");
    const struct timeline_tensor *tensor = &t->tensors.at[run->tensor];
    assert_string_equal(strtab_get(&part->names, tensor->name), "w");
    assert_string_equal(strtab_get(&part->names, tensor->backend), "GLOO_ALLREDUCE");
    assert_int_equal(tensor->numel, 5120);
    assert_int_equal(t->cycles.n, 1);
}

TEST(a_run_has_its_stages_since_the_epoch)
{
    for (size_t chunk = 0; chunk < 40; chunk += 13) {
        struct trace_part part = read_text("[" RUN "]", chunk);
        assert_int_equal(last_fail, JSON_OK);
        assert_whole_run(&part);
    }
}

TEST(an_array_that_is_still_open_is_no_damage)
{
    struct trace_part part = read_text("[" RUN, 0);
    assert_int_equal(last_fail, JSON_OK);
    assert_whole_run(&part);
}

TEST(of_a_timeline_cut_in_an_event_the_whole_runs_are_kept)
{
    struct trace_part part = read_text("[" RUN B(1, "ALLREDUCE", 50) "{'ph':'B','na", 0);
    assert_int_equal(last_fail, JSON_ENDED);
    assert_whole_run(&part);
    assert_int_equal(timeline_of(&part)->n_open, 1);
}

TEST(a_negotiation_alone_is_no_run)
{
    struct trace_part part = read_text("[" NAMED(1, "w") B(1, "NEGOTIATE_ALLREDUCE", 1) E(1, 2), 0);
    assert_int_equal(timeline_of(&part)->runs.n, 0);
    assert_int_equal(timeline_of(&part)->n_open, 1);
}

TEST(stages_without_an_operation_around_them_make_runs)
{
    struct trace_part part =
        read_text("[" NAMED(3, "DistributedX/HorovodAllreduce.12_0") B(3, "QUEUE", 1000) E(3, 1003)
                      B(3, "NCCL_ALLREDUCE", 1004) E(3, 1010) B(3, "QUEUE", 2000) E(3, 2001)
                          B(3, "NCCL_ALLREDUCE", 2002) E(3, 2009) "]",
                  0);
    const struct timeline *t = timeline_of(&part);
    assert_false(t->on_epoch);
    assert_int_equal(t->runs.n, 2);
    assert_stage(&t->runs.at[1], STAGE_QUEUE, 2000, 2001);
    assert_stage(&t->runs.at[1], STAGE_TRANSFER, 2002, 2009);
}

#define STAGE(what, tid, ts, dur)                                                                  \
    "{'ph':'X','args':{'name':'Comm.byteps.gradient_0'},'pid':'Comm.byteps."                       \
    "gradient_0','name':'Comm.byteps.gradient_0" what "','ts':" #ts ",'dur':" #dur ",'tid':'" tid  \
    "','cat':'Comm'},"

TEST(byteps_partitions_are_pushed_and_pulled)
{
    struct trace_part part = read_text(
        "{'traceEvents':[" STAGE("", "total", 100, 90) STAGE(".PUSH", "26148864", 110, 20)
            STAGE(".PULL", "26148864", 130, 30) STAGE(".PUSH", "26148865", 120, 20)
                STAGE(".PULL", "26148865", 150, 30) STAGE(".PUSH", "26148864", 310, 20) "]}",
        0);
    const struct timeline *t = timeline_of(&part);
    assert_int_equal(t->writer, TIMELINE_BYTEPS);
    assert_int_equal(t->tensors.n, 2);
    assert_int_equal(t->tensors.at[1].partition, 1);
    assert_string_equal(strtab_get(&part.names, t->tensors.at[0].name), "byteps.gradient_0");
    assert_int_equal(t->runs.n, 3);
    assert_stage(&t->runs.at[0], STAGE_PUSH, 110, 130);
    assert_stage(&t->runs.at[0], STAGE_PULL, 130, 160);
    assert_int_equal(t->runs.at[2].tensor, 0);
}

TEST(what_makes_no_sense_is_counted_and_passed_over)
{
    char *deep = malloc(400 * 80);
    size_t len = 0;
    assert_non_null(deep);
    len += (size_t)sprintf(deep + len, "[%s7,", E(1, 5));
    for (int i = 0; i < 300; i++)
        len += (size_t)sprintf(deep + len, "{'ph':'B','name':'x','ts':%d,'pid':1},", i);
    sprintf(deep + len, "{'ph':'B','name':'ALLREDUCE','pid':2}]");
    struct trace_part part = read_text(deep, 0);
    assert_int_equal(part.losses.n_unpaired, 1);
    assert_true(part.losses.n_broken > 1);
    assert_int_equal(timeline_of(&part)->runs.n, 0);
    free(deep);
}
