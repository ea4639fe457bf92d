/* plan.json. doc/formats/plan.md describes it. */
#include "plan/plan.h"

static void write_job(struct writer *w, const struct plan_file *plan)
{
    writer_section(w, "job", '{');
    writer_fields(w, TEXT("framework", plan_name(plan, plan->framework)),
                  TEXT("stack", plan_name(plan, plan->stack)), INT("world_size", plan->world_size));
    if (plan->device)
        writer_fields(w, TEXT("device", plan_name(plan, plan->device)));
    WRITER_LIST (w, "models", m, plan->models.n) {
        writer_item(w);
        writer_fields(w, TEXT("name", plan_name(plan, plan->models.at[m])));
        WRITER_LIST_OF (w, "parameters", const struct plan_file_parameter, parameter,
                        plan->parameters.at, plan->parameters.n) {
            if (parameter->model != m)
                continue;
            writer_row(w, TEXT("name", plan_name(plan, parameter->name)),
                       INT("size_bytes", parameter->size_bytes));
        }
        writer_close(w, '}');
    }
    writer_close(w, '}');
}

static void write_bucket(struct writer *w, const struct plan_file *plan,
                         const struct plan_file_bucket *bucket)
{
    writer_item(w);
    writer_fields(w, INT("model", bucket->model));
    WRITER_LIST (w, "parameters", i, bucket->n)
        writer_string(
            w, plan_name(plan, plan->parameters.at[plan->members.at[bucket->first + i]].name));
    writer_fields(w, INT("size_bytes", bucket->size_bytes), INT("partitions", bucket->partitions),
                  INT("priority", bucket->priority));
    if (bucket->server >= 0)
        writer_fields(w, INT("server", bucket->server));
    writer_close(w, '}');
}

static void write_communication(struct writer *w, const struct plan_file *plan)
{
    writer_section(w, "communication", '{');
    writer_fields(w, TEXT("compression", dpro_compression_name(plan->compression)),
                  BOOL("changes_numerics", plan->compression != DPRO_COMPRESSION_NONE),
                  BOOL("is_own", plan->is_own));
    if (plan->cycle_ns > 0)
        writer_fields(w, MS("cycle_time_ms", plan->cycle_ns));
    if (plan->cycle_ns > 0 && plan->fuses)
        writer_fields(w, INT("fusion_threshold_bytes", plan->fusion_bytes));
    if (plan->n_servers > 0)
        writer_fields(w, INT("servers", plan->n_servers));
    WRITER_LIST (w, "buckets", b, plan->buckets.n)
        write_bucket(w, plan, &plan->buckets.at[b]);
    writer_close(w, '}');
}

static void write_modules(struct writer *w, const struct plan_file *plan, const char *key,
                          const uint32_t *names, size_t n)
{
    WRITER_LIST (w, key, i, n)
        writer_string(w, plan_name(plan, names[i]));
}

static void write_computation(struct writer *w, const struct plan_file *plan)
{
    writer_section(w, "computation", '{');
    write_modules(w, plan, "compile", plan->compiled.at, plan->compiled.n);
    write_modules(w, plan, "bf16", plan->in_bf16.at, plan->in_bf16.n);
    writer_fields(w, BOOL("changes_numerics", true));
    writer_close(w, '}');
}

static void write_memory(struct writer *w, const struct plan_file *plan)
{
    writer_section(w, "memory", '{');
    write_modules(w, plan, "recompute", plan->recomputed.at, plan->recomputed.n);
    writer_fields(w, INT("micro_batches", plan->micro_batches > 1 ? plan->micro_batches : 1),
                  INT_IF("budget_bytes", plan->budget_bytes > 0, plan->budget_bytes),
                  INT("baseline_peak_bytes", plan->baseline_peak_bytes),
                  INT("peak_bytes", plan->peak_bytes));
    writer_close(w, '}');
}

static void write_sharding(struct writer *w, const struct plan_file *plan)
{
    writer_section(w, "sharding", '{');
    writer_fields(w, INT("prefetch", plan->prefetch));
    WRITER_LIST (w, "units", i, plan->units.n)
        writer_row(w, TEXT("name", plan_name(plan, plan->units.at[i].name)),
                   BOOL("reshard_after_forward", plan->units.at[i].reshards));
    writer_close(w, '}');
}

void plan_file_write(struct writer *w, const void *arg)
{
    const struct plan_file *plan = arg;
    writer_open(w, '{');
    writer_fields(w,
                  TEXT("schema", plan->units.n > 0          ? "dpro.plan/5"
                                 : plan_has_computing(plan) ? "dpro.plan/4"
                                 : plan_has_memory(plan)    ? "dpro.plan/3"
                                                            : "dpro.plan/1"),
                  TEXT("dpro", dpro_version()));
    write_job(w, plan);
    writer_section(w, "expected", '{');
    writer_fields(w, MS("baseline_ms", plan->baseline_ns), MS("iteration_ms", plan->iteration_ns),
                  FIXED("speedup", (double)plan->baseline_ns / (double)plan->iteration_ns, 6),
                  FIXED("uncertainty_pct", plan->uncertainty_pct, 3));
    writer_close(w, '}');
    write_communication(w, plan);
    if (plan_has_memory(plan) || (plan_has_modules(plan) && plan->peak_bytes > 0))
        write_memory(w, plan);
    if (plan->units.n > 0)
        write_sharding(w, plan);
    if (plan_has_computing(plan))
        write_computation(w, plan);
    writer_close(w, '}');
    writer_text(w, "\n");
}
