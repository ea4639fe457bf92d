/* report/replay_json.c: the replay as JSON, schema dpro.replay/1. Keys are never renamed or
 * dropped; what is unknown is null. */
#include "base/error.h"
#include "base/memory.h"
#include "base/sort.h"
#include "report/facts.h"
#include "report/field.h"
#include "report/table.h"

static void write_files(struct writer *w, const void *of)
{
    const struct dpro_trace *trace = ((const struct report_facts *)of)->report->trace;
    writer_open(w, '[');
    for (size_t i = 0; i < dpro_trace_n_files(trace); i++) {
        struct dpro_file_info info = dpro_trace_file(trace, i);
        if (!info.format)
            continue;
        writer_row(w, TEXT("path", info.path), TEXT("kind", info.format), INT("rank", info.rank),
                   INT("bytes", info.size_bytes), INT("events", info.n_events),
                   BOOL("truncated", info.truncated));
    }
    writer_close(w, ']');
}

static void write_present(struct writer *w, const void *of)
{
    const struct dpro_trace *trace = ((const struct report_facts *)of)->report->trace;
    writer_open(w, '[');
    for (size_t r = 0; r < dpro_trace_n_ranks(trace); r++)
        writer_json_int(w, dpro_trace_rank(trace, r));
    writer_close(w, ']');
}

static void write_measured(struct writer *w, const void *of)
{
    const struct report_facts *f = of;
    writer_json_times(w, f->measured, f->n_measured);
}

static void write_left_out(struct writer *w, const void *of)
{
    const struct dpro_graph *g = ((const struct report_facts *)of)->report->graph;
    writer_open(w, '[');
    for (size_t i = 0; i < dpro_graph_n_left_out(g); i++) {
        struct dpro_left_out left_out = dpro_graph_left_out(g, i);
        writer_object(w, INT("iteration", left_out.number), TEXT("reason", left_out.reason));
    }
    writer_close(w, ']');
}

static void write_verdict(struct writer *w, const void *of)
{
    const struct report_facts *f = of;
    writer_open(w, '[');
    for (int i = 0; i < N_VERDICT; i++)
        writer_object(w, TEXT("title", f->verdict[i].title), TEXT("text", f->verdict[i].text));
    writer_close(w, ']');
}

static void write_parts(struct writer *w, const void *of)
{
    const struct report_facts *f = of;
    writer_open(w, '[');
    for (uint32_t i = 0; i < f->n_parts; i++) {
        const struct part_fact *part = &f->parts[i];
        writer_row(w, INT("rank", part->rank), TEXT("part", part->what),
                   MS("measured_ms", part->measured_ns), MS("replayed_ms", part->replayed_ns),
                   MS("measured_sum_ms", part->measured_sum_ns),
                   MS("replayed_sum_ms", part->replayed_sum_ns));
    }
    writer_close(w, ']');
}

static void write_ranks(struct writer *w, const void *of)
{
    const struct report_facts *f = of;
    writer_open(w, '[');
    for (uint32_t r = 0; r < f->n_ranks; r++) {
        const struct dpro_rank_time *t = &f->ranks[r].time;
        writer_item(w);
        writer_fields(w, INT("rank", t->rank), MS("iteration_ms", t->iteration_ns));
        for (int p = 0; p < N_RANK_PARTS; p++) {
            if (p == RANK_EXPOSED)
                writer_fields(w, MS("communication_ms", t->communication_ns));
            writer_fields(w, MS_IF(rank_parts[p].key, p != RANK_IDLE || f->ranks[r].computes,
                                   rank_part_ns(t, p)));
        }
        writer_fields(w, INT_IF("waited_most_for", t->waited_most_for >= 0, t->waited_most_for));
        writer_close(w, '}');
    }
    writer_close(w, ']');
}

/* A server has no rank, but a name. */
static void key_process(struct writer *w, int rank)
{
    char name[DPRO_PROCESS_NAME_MAX];
    dpro_process_name(name, rank);
    writer_fields(w, INT_IF("rank", rank >= -1, rank));
    if (rank < -1)
        writer_fields(w, TEXT("process", name));
}

static void write_path_ops(struct writer *w, const struct report_facts *f)
{
    const struct dpro_graph *g = f->report->graph;
    writer_begin(w, "ops", '[');
    for (uint32_t i = 0; i < f->n_path; i++) {
        struct dpro_op op = dpro_graph_op(g, f->path[i].op);
        bool on_device = op.device != DPRO_NO_DEVICE;
        writer_item(w);
        writer_fields(w, TEXT("name", op.name));
        key_process(w, op.rank);
        writer_fields(w, TEXT("device", on_device ? dpro_graph_device(g, op.device).name : NULL),
                      TEXT("kind", dpro_op_kind_name(op.kind)), MS("start_ms", f->path[i].start_ns),
                      MS("duration_ms", f->path[i].dur_ns), MS("gap_ms", f->path[i].gap_ns));
        writer_close(w, '}');
    }
    writer_close(w, ']');
}

static void write_path(struct writer *w, const struct report_facts *f, bool with_ops)
{
    writer_section(w, "critical_path", '{');
    writer_fields(w, MS("length_ms", f->path_ns), INT_IF("iteration", f->shown >= 0, f->shown));
    writer_begin(w, "by_kind_ms", '{');
    for (int k = 0; k < DPRO_N_OP_KINDS; k++)
        if (f->kind_ns[k] > 0)
            writer_fields(w, MS(dpro_op_kind_name(k), f->kind_ns[k]));
    writer_fields(w, MS("GAP", f->kind_ns[PATH_GAP]));
    writer_close(w, '}');
    writer_begin(w, "by_rank_ms", '{');
    for (uint32_t r = 0; r < f->n_ranks; r++) {
        char rank[16];
        snprintf(rank, sizeof rank, "%d", f->ranks[r].time.rank);
        writer_fields(w, MS(rank, f->ranks[r].path_ns));
    }
    writer_close(w, '}');
    if (f->servers_path_ns > 0)
        writer_fields(w, MS("servers_ms", f->servers_path_ns));
    if (with_ops)
        write_path_ops(w, f);
    writer_close(w, '}');
}

static void write_collectives(struct writer *w, const void *of)
{
    const struct report_facts *f = of;
    writer_open(w, '[');
    for (uint32_t i = 0; i < f->n_comms; i++) {
        const struct comm_fact *c = &f->comms[i];
        uint64_t bytes = c->size_bytes < INT64_MAX ? c->size_bytes : INT64_MAX;
        writer_row(w, TEXT("kind", c->kind), INT("ranks", c->n_ranks), INT("count", c->count),
                   INT_IF("bytes", c->sized, bytes), INT("messages", c->n_messages),
                   TEXT("pattern", c->pattern[0] ? c->pattern : NULL),
                   INT("chunks", c->most_chunks), INT("channels", c->most_channels));
    }
    writer_close(w, ']');
}

static void write_clock(struct writer *w, const void *of)
{
    const struct report_facts *f = of;
    const struct dpro_graph *g = f->report->graph;
    struct dpro_alignment alignment = dpro_graph_alignment(g);
    writer_open(w, '{');
    writer_fields(w, TEXT("method", align_method(g)));
    align_write_fields(w, &alignment);
    writer_begin(w, "hosts", '[');
    for (uint32_t c = 0; c < dpro_graph_n_clocks(g); c++) {
        struct dpro_clock clock = dpro_graph_clock(g, c);
        bool tied = clock.n_segments > 0; /* to the reference */
        int64_t most_ns = -1;
        for (uint32_t s = 0; s < clock.n_segments; s++)
            most_ns = MAX(most_ns, clock.segments[s].uncertainty_ns);
        writer_item(w);
        align_write_host(w, &clock);
        writer_fields(w, MS_IF("offset_ms", tied, clock.segments[0].offset_ns),
                      FIXED_IF("drift_ppm", tied, clock.segments[0].drift_ppm, 3),
                      MS_KNOWN("uncertainty_ms", most_ns));
        writer_close(w, '}');
    }
    writer_close(w, ']');
    writer_close(w, '}');
}

/* A fact is a row; those of an object follow its row. */
#define AT(member)      .at = offsetof(struct report_facts, member)
#define IF_ANY(counted) .known = offsetof(struct report_facts, counted) + 1
static const struct field fields[] = {
    {"error_pct", FIELD_REAL, AT(error_pct), .digits = 3},
    {"what_if", FIELD_BOOL, AT(what_if)},
    {"left_out", FIELD_CALL, .write = write_left_out},
    {"verdict", FIELD_CALL, .write = write_verdict},
    {"collectives", FIELD_CALL, .write = write_collectives},
    {"ranks", FIELD_CALL, .write = write_ranks},
    {"clock", FIELD_CALL, .write = write_clock},

    {.key = "trace"},
    {"framework", FIELD_TEXT, AT(framework)},
    {"world_size", FIELD_U32, AT(world_size)},
    {"ranks_present", FIELD_CALL, .write = write_present},
    {"communication_recognised", FIELD_BOOL, AT(communicates)},
    {"iterations", FIELD_U32, AT(n_measured)},
    {"files", FIELD_CALL, .write = write_files},

    {.key = "measured"},
    {"iteration_ms", FIELD_MS, AT(measured_ns)},
    {"median_ms", FIELD_MS, AT(median_ns)},
    {"std_ms", FIELD_MS, AT(std_ns)},
    {"per_iteration_ms", FIELD_CALL, .write = write_measured},

    {.key = "pace"}, /* where iterations were measured: CPU and GPU may disagree */
    {"ranks_on_gpu", FIELD_U32, AT(pace.n_ranks)},
    {"cpu_ms", FIELD_MS, AT(pace.marks_ns), IF_ANY(pace.n_ranks)},
    {"gpu_ms", FIELD_MS, AT(pace.device_ns), IF_ANY(pace.n_ranks)},
    {"ahead_ms", FIELD_MS, AT(pace.ahead_ns), IF_ANY(pace.n_ranks)},

    {.key = "predicted"},
    {"iteration_ms", FIELD_MS, AT(predicted_ns)},
    {"p50_ms", FIELD_MS, AT(p50_ns)},
    {"p95_ms", FIELD_MS, AT(p95_ns)},
    {"samples", FIELD_U32, AT(n_drawn)},

    {.key = "profiler"},
    {"op_ns", FIELD_I64, AT(profiler.op_ns), IF_ANY(profiler.n)},
    {"iteration_ms", FIELD_MS, AT(profiler.iteration_ns), IF_ANY(profiler.n)},

    {.key = "validation"},
    {"method", FIELD_TEXT, AT(validation.method)},
    {"mean_abs_error_pct", FIELD_REAL, AT(validation.mean_abs_error_pct), IF_ANY(validation.n),
     .digits = 3},
    {"max_abs_error_pct", FIELD_REAL, AT(validation.max_abs_error_pct), IF_ANY(validation.n),
     .digits = 3},
    {"mean_error_pct", FIELD_REAL, AT(validation.mean_error_pct), IF_ANY(validation.n),
     .digits = 3},
    {"measured_std_pct", FIELD_REAL, AT(validation.measured_std_pct), IF_ANY(validation.n),
     .digits = 3},
    {"predictions", FIELD_U32, AT(validation.n)},

    {.key = "daydream"},
    {"iteration_ms", FIELD_MS, AT(daydream.iteration_ns)},
    {"error_pct", FIELD_REAL, AT(daydream_error_pct), .digits = 3},
    {"bandwidth_bytes_per_s", FIELD_REAL, AT(daydream.bandwidth_bytes_per_s)},

    {.key = "contradiction"},
    {"contradicts", FIELD_BOOL, AT(contradicts)},
    {"measured_known_to_ms", FIELD_MS, AT(known_to_ns)},
    {"text", FIELD_CHARS, AT(contradiction)},
    {"parts", FIELD_CALL, .write = write_parts},

    {.key = "unprofiled"},
    {"steps", FIELD_U32, AT(unprofiled.n_steps)},
    {"iteration_ms", FIELD_MS, AT(unprofiled.mean_ns), IF_ANY(unprofiled.n_steps)},
    {"median_ms", FIELD_MS, AT(unprofiled.median_ns), IF_ANY(unprofiled.n_steps)},
    {"std_ms", FIELD_MS, AT(unprofiled.std_ns), IF_ANY(unprofiled.n_steps)},
    {"profiler_overhead_pct", FIELD_REAL, AT(overhead_pct), .digits = 3},
    {"error_pct", FIELD_REAL, AT(unprofiled_error_pct), .digits = 3},
    {"median_error_pct", FIELD_REAL, AT(unprofiled_median_error_pct), .digits = 3},

    {.key = "unprofiled_iterations"},
    {"iterations", FIELD_U32, AT(outside.n_iterations)},
    {"iteration_ms", FIELD_MS, AT(outside.mean_ns), IF_ANY(outside.n_iterations)},
    {"std_ms", FIELD_MS, AT(outside.std_ns), IF_ANY(outside.n_iterations)},
    {"asking_ms", FIELD_MS_SET, AT(outside.asking_ns)},
    {"profiler_ms", FIELD_MS, AT(wire_profiler_ns)},
    {"standard_error_ms", FIELD_MS, AT(wire_error_ns), IF_ANY(outside.n_iterations)},
    {"predicted_ms", FIELD_MS, AT(wire_predicted_ns)},

    {"transport", FIELD_OBJECT, IF_ANY(transport.n_processes)},
    {"processes", FIELD_U32, AT(transport.n_processes)},
    {"connections", FIELD_U32, AT(transport.n_connections)},
    {"one_sided_connections", FIELD_U32, AT(transport.n_one_sided)},
    {"calls", FIELD_U64, AT(transport.n_calls)},
    {"sent_bytes", FIELD_U64, AT(transport.sent_bytes)},
    {"received_bytes", FIELD_U64, AT(transport.received_bytes)},
    {"paired_bytes", FIELD_U64, AT(transport.paired_bytes), IF_ANY(transport.n_connections)},
    {"unpaired_bytes", FIELD_U64, AT(transport.unpaired_bytes), IF_ANY(transport.n_connections)},
    {"gaps", FIELD_U64, AT(transport.n_gaps), IF_ANY(transport.n_connections)},
    {"edge_bytes", FIELD_U64, AT(transport.edge_bytes)},
    {"gloo_messages", FIELD_U64, AT(transport.n_messages)},
    {"zmtp_frames", FIELD_U64, AT(transport.n_zmtp_frames)},
    {"pushes", FIELD_U64, AT(transport.n_pushes)},
    {"pulls", FIELD_U64, AT(transport.n_pulls)},
    {"framing_breaks", FIELD_U64, AT(transport.n_framing_breaks)},
    {"collectives", FIELD_U64, AT(transport.n_collectives)},
    {"collectives_tied", FIELD_U64, AT(transport.n_tied)},
    {"collectives_checked", FIELD_U64, AT(transport.n_checked)},
    {"collectives_exact", FIELD_U64, AT(transport.n_exact)},
    {"collectives_in_buckets", FIELD_U64, AT(transport.n_in_buckets)},
    {"records_lost", FIELD_U64, AT(transport.n_lost)},

    {"horovod", FIELD_OBJECT, IF_ANY(fusion.n_tensors)},
    {"tensors", FIELD_U32, AT(fusion.n_tensors)},
    {"groups", FIELD_U32, AT(fusion.n_groups)},
    {"rounds", FIELD_U32, AT(fusion.n_rounds)},
    {"rounds_fused_alike", FIELD_U32, AT(fusion.n_alike)},
    {"cycle_ms", FIELD_MS_SET, AT(fusion.cycle_ns)},
    {"negotiate_ms", FIELD_MS, AT(negotiate_ns)},
    {"copy_ms", FIELD_MS, AT(copy_ns)},
    {"callback_ms", FIELD_MS, AT(callback_ns)},
    {.key = NULL},
};

void json_write_report(struct writer *w, const struct report_facts *f, bool with_ops)
{
    writer_open(w, '{');
    writer_fields(w, TEXT("schema", "dpro.replay/1"), TEXT("version", dpro_version()));
    fields_write(w, fields, f);
    write_path(w, f, with_ops);
    warnings_write_json(w, &f->warnings, 1);
    writer_close(w, '}');
}

void json_write(struct writer *w, const void *facts)
{
    json_write_report(w, facts, true);
    writer_text(w, "\n");
}

int dpro_report_json(const struct dpro_report *report, FILE *out, struct dpro_error *err)
{
    return WITHIN_SCOPE(dpro_error_nomem(err), facts_write(report, out, json_write, err));
}
