/* A plan as the settings and files that the job's stack reads. doc/formats/plan.md describes
 * them. */
#include "plan/plan.h"

static uint64_t round_up(uint64_t value, uint64_t unit)
{
    return (value + unit - 1) / unit * unit;
}

static uint64_t partition_bytes(const struct plan_file_bucket *bucket)
{
    return (bucket->size_bytes + bucket->partitions - 1) / bucket->partitions;
}

static uint64_t mean_bucket_bytes(const struct plan_file *plan)
{
    uint64_t total = 0;
    for (size_t b = 0; b < plan->buckets.n; b++)
        total += plan->buckets.at[b].size_bytes;
    return plan->buckets.n ? total / plan->buckets.n : 0;
}

static const struct plan_file_parameter *files_member(const struct plan_file *plan, size_t i)
{
    return &plan->parameters.at[plan->members.at[i]];
}

/* A Horovod job is given the plan's groups, which Horovod must then not fuse further, or the
 * settings by which it fuses by itself. Another job moved to Horovod gets near the plan. */
static void write_horovod_env(struct writer *w, const void *arg)
{
    const struct plan_file *plan = arg;
    uint64_t threshold = 128 << 20; /* Horovod's own */
    if (plan_file_stack(plan) != DPRO_STACK_HOROVOD) {
        writer_printf(w, "HOROVOD_FUSION_THRESHOLD=%llu\nHOROVOD_CYCLE_TIME=1\n",
                      (unsigned long long)mean_bucket_bytes(plan));
        return;
    }
    if (plan->is_own)
        return;
    for (size_t b = 0; b < plan->buckets.n; b++)
        threshold = MAX(threshold, round_up(plan->buckets.at[b].size_bytes, 1 << 20));
    if (plan->fuses)
        threshold = plan->fusion_bytes;
    else
        writer_text(w, "HOROVOD_DISABLE_GROUP_FUSION=1\n");
    writer_printf(w, "HOROVOD_FUSION_THRESHOLD=%llu\n", (unsigned long long)threshold);
    if (plan->cycle_ns != plan->profiled_cycle_ns) /* else the job keeps what it has */
        writer_printf(w, "HOROVOD_CYCLE_TIME=%g\n", (double)plan->cycle_ns / 1e6);
}

static void write_horovod_groups(struct writer *w, const void *arg)
{
    const struct plan_file *plan = arg;
    writer_text(w, "{\"mapping\":[");
    for (size_t b = 0; b < plan->buckets.n; b++) {
        const struct plan_file_bucket *bucket = &plan->buckets.at[b];
        writer_text(w, b ? ",\"" : "\"");
        for (size_t i = 0; i < bucket->n; i++)
            writer_printf(w, "%s%u", i ? "+" : "", plan->members.at[bucket->first + i]);
        writer_text(w, "\"");
    }
    writer_text(w, "]}\n");
}

static void write_byteps_env(struct writer *w, const void *arg)
{
    const struct plan_file *plan = arg;
    uint64_t most = 0;
    for (size_t b = 0; b < plan->buckets.n; b++)
        most = MAX(most, partition_bytes(&plan->buckets.at[b]));
    writer_printf(w, "BYTEPS_PARTITION_BYTES=%llu\n", (unsigned long long)round_up(most, 4096));
}

/* MXNet sends a tensor of so many elements or more in parts, one a server. */
static void write_mxnet_env(struct writer *w, const void *arg)
{
    const struct plan_file *plan = arg;
    uint64_t largest = 0, least_parted = UINT64_MAX;
    EACH (const struct plan_file_bucket, bucket, plan->buckets) {
        for (size_t i = bucket->first; i < bucket->first + bucket->n; i++) {
            uint64_t size = files_member(plan, i)->size_bytes;
            largest = MAX(largest, size);
            if (bucket->partitions > 1)
                least_parted = MIN(least_parted, size);
        }
    }
    writer_printf(
        w, "MXNET_KVSTORE_BIGARRAY_BOUND=%llu\n",
        (unsigned long long)(least_parted < UINT64_MAX ? (least_parted + 3) / 4 : largest / 4 + 1));
}

static void write_byteps_partition(struct writer *w, const void *arg)
{
    const struct plan_file *plan = arg;
    EACH (const struct plan_file_bucket, bucket, plan->buckets) {
        for (size_t i = bucket->first; i < bucket->first + bucket->n; i++) {
            uint64_t size = files_member(plan, i)->size_bytes, most = partition_bytes(bucket);
            writer_text(w, strtab_get(&plan->strings, files_member(plan, i)->name));
            writer_printf(w, " %llu\n", (unsigned long long)(size < most ? size : most));
        }
    }
}

enum {
    DDP = 1u << DPRO_STACK_DDP,
    HOROVOD = 1u << DPRO_STACK_HOROVOD,
    MXNET_PS = 1u << DPRO_STACK_MXNET_PS,
    BYTEPS = 1u << DPRO_STACK_BYTEPS,
};

/* A DDP job can be moved to Horovod or BytePS. */
static const struct {
    unsigned stacks;
    struct set_file file;
} all_files[] = {
    {DDP | HOROVOD, {"horovod.env", false, write_horovod_env, NULL}},
    {DDP | HOROVOD, {"horovod_groups.json", false, write_horovod_groups, NULL}},
    {DDP | BYTEPS, {"byteps.env", false, write_byteps_env, NULL}},
    {DDP | BYTEPS, {"byteps_partition.txt", false, write_byteps_partition, NULL}},
    {MXNET_PS, {"mxnet.env", false, write_mxnet_env, NULL}},
};
_Static_assert(sizeof all_files / sizeof *all_files <= PLAN_MOST_FILES, "room for all of them");

size_t plan_stack_files(const struct plan_file *plan, struct set_file files[PLAN_MOST_FILES])
{
    size_t n = 0;
    for (size_t i = 0; i < sizeof all_files / sizeof *all_files; i++)
        if (plan->units.n == 0 && all_files[i].stacks & 1u << plan_file_stack(plan)) {
            files[n] = all_files[i].file;
            files[n++].arg = plan;
        }
    return n;
}
