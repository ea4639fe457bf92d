/* The replay as JSON (dpro.replay/1; keys are never renamed or dropped, what is unknown is
 * null). */
#include "report/facts.h"
#include "report/model_report.h"

static void write_verdict(struct writer *w, const struct report_facts *f)
{
    writer_fields(w, FIXED("error_pct", f->error_pct, 3), BOOL("what_if", f->report->what_if));
    WRITER_LIST (w, "left_out", i, dpro_graph_n_left_out(f->g)) {
        struct dpro_left_out left_out = dpro_graph_left_out(f->g, i);
        writer_object(w, INT("iteration", left_out.number), TEXT("reason", left_out.reason));
    }
    WRITER_LIST (w, "verdict", i, N_VERDICT)
        writer_object(w, TEXT("title", f->verdict[i].title), TEXT("text", f->verdict[i].text));
}

static void write_collectives(struct writer *w, const struct report_facts *f)
{
    WRITER_LIST_OF (w, "collectives", const struct comm_fact, c, f->comms, f->n_comms) {
        writer_row(w, TEXT("kind", c->kind), INT("ranks", c->n_ranks), INT("count", c->count),
                   INT_IF("bytes", c->sized, MIN(c->size_bytes, INT64_MAX)),
                   INT("messages", c->n_messages),
                   TEXT("pattern", c->pattern[0] ? c->pattern : NULL),
                   INT("chunks", c->most_chunks), INT("channels", c->most_channels));
    }
}

static void write_ranks(struct writer *w, const struct report_facts *f)
{
    WRITER_LIST (w, "ranks", r, f->n_ranks) {
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
}

static void write_lateness(struct writer *w, const struct report_facts *f)
{
    SCRATCH int64_t *waited = mem_array(f->replay->n_iterations + (size_t)1, sizeof *waited);
    writer_begin(w, "lateness", '{');
    writer_fields(w, INT_IF("straggler", f->n_stragglers > 0, f->ranks[f->late[0]].time.rank),
                  INT("iterations", f->replay->n_iterations));
    WRITER_LIST (w, "stragglers", i, f->n_stragglers)
        writer_json_int(w, f->ranks[f->late[i]].time.rank);
    WRITER_LIST (w, "ranks", r, f->n_ranks) {
        if (f->ranks[r].waited_ns == 0 && !f->ranks[r].straggles)
            continue;
        for (uint32_t i = 0; i < f->replay->n_iterations; i++)
            waited[i] = f->replay->lateness[(size_t)i * f->replay->n_ranks + r].waited_ns;
        writer_item(w);
        writer_fields(w, INT("rank", f->ranks[r].time.rank), INT("late", f->ranks[r].n_late),
                      MS("later_ms", f->ranks[r].later_ns));
        writer_key(w, "waited_for_ms");
        writer_json_times(w, waited, f->replay->n_iterations);
        writer_close(w, '}');
    }
    writer_close(w, '}');
}

static void write_clock(struct writer *w, const struct dpro_graph *g)
{
    struct dpro_alignment alignment = dpro_graph_alignment(g);
    writer_begin(w, "clock", '{');
    writer_fields(w, TEXT("method", align_method(g)));
    align_write_fields(w, &alignment);
    WRITER_LIST (w, "hosts", c, dpro_graph_n_clocks(g)) {
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
    writer_close(w, '}');
}

static bool is_cut(const struct dpro_graph *graph, int rank)
{
    for (uint32_t i = 0; i < graph->n_cut; i++)
        if (graph->cut[i] == rank)
            return true;
    return false;
}

static void write_trace(struct writer *w, const struct report_facts *f)
{
    const struct dpro_trace *trace = f->report->trace;
    writer_section(w, "trace", '{');
    writer_fields(w, TEXT("framework", f->framework), INT("world_size", f->world_size));
    WRITER_LIST (w, "ranks_present", r, dpro_trace_n_ranks(trace))
        if (!is_cut(f->g, dpro_trace_rank(trace, r)))
            writer_json_int(w, dpro_trace_rank(trace, r));
    writer_key(w, "ranks_without_gpu");
    writer_json_ints(w, f->g->blind, f->g->n_blind);
    writer_fields(
        w, BOOL("gpu_recorded", !f->g->lacks_gpu), BOOL("phases_known", !f->g->hides_phases),
        BOOL("communication_recognised", f->communicates), INT("iterations", f->n_measured));
    WRITER_LIST (w, "files", i, dpro_trace_n_files(trace)) {
        struct dpro_file_info info = dpro_trace_file(trace, i);
        if (info.format)
            writer_row(w, TEXT("path", info.path), TEXT("kind", info.format),
                       INT("rank", info.rank), INT("bytes", info.size_bytes),
                       INT("events", info.n_events), BOOL("truncated", info.truncated));
    }
    writer_close(w, '}');
}

/* An object on a line of its own. */
#define SECTION(w, key, ...) (writer_newline(w), writer_object_at(w, key, __VA_ARGS__))

static void write_measured(struct writer *w, const struct report_facts *f)
{
    const struct dpro_pace *pace = &f->g->pace;
    writer_section(w, "measured", '{');
    writer_fields(w, MS_KNOWN("iteration_ms", f->measured_ns), MS_KNOWN("median_ms", f->median_ns),
                  MS_KNOWN("std_ms", f->std_ns));
    writer_key(w, "per_iteration_ms");
    writer_json_times(w, f->measured, f->n_measured);
    const int64_t *number = f->g->sample_number;
    WRITER_LIST (w, "iterations", s, number ? f->n_measured : 0)
        writer_json_int(w, number[s]);
    writer_close(w, '}');
    struct dpro_steps steps = dpro_graph_steps(f->g);
    SECTION(w, "steps", INT("found", steps.n), TEXT("found_by", steps.found_by),
            TEXT("name", steps.name[0] ? steps.name : NULL),
            INT_IF("updates", steps.n_updates > 0, steps.n_updates));
    /* where iterations were measured: CPU and GPU may disagree */
    SECTION(w, "pace", INT("ranks_on_gpu", pace->n_ranks),
            MS_IF("cpu_ms", pace->n_ranks > 0, pace->marks_ns),
            MS_IF("gpu_ms", pace->n_ranks > 0, pace->device_ns),
            MS_IF("ahead_ms", pace->n_ranks > 0, pace->ahead_ns));
}

static void write_slow(struct writer *w, const struct report_facts *f)
{
    const struct slow_facts *slow = &f->slow;
    const int64_t *number = f->g->sample_number;
    writer_section(w, "slow_iterations", '{');
    writer_fields(w, TEXT("text", slow->text), INT_IF("every", slow->every > 0, slow->every),
                  MS_IF("usual_ms", slow->n > 0, slow->usual_ns),
                  MS_IF("more_ms", slow->n > 0, slow->more_ns));
    WRITER_LIST (w, "iterations", i, slow->n)
        writer_row(w, INT_IF("iteration", number, number ? number[slow->samples[i]] : 0),
                   INT("at", slow->samples[i]), MS("ms", f->measured[slow->samples[i]]),
                   MS("more_ms", f->measured[slow->samples[i]] - slow->usual_ns));
    writer_close(w, '}');
}

static void write_predicted(struct writer *w, const struct report_facts *f)
{
    const struct dpro_validation *v = &f->validation;
    job_write_json(w, &f->job);
    SECTION(w, "predicted", MS_KNOWN("iteration_ms", f->predicted_ns),
            MS_KNOWN("p50_ms", f->p50_ns), MS_KNOWN("p95_ms", f->p95_ns),
            INT("samples", f->n_drawn), MS_IF("changed_ms", f->report->what_if, f->changed_ns));
    SECTION(w, "profiler",
            INT_IF("op_ns", f->report->profiler_op_ns > 0, f->report->profiler_op_ns),
            MS_IF("iteration_ms", facts_has_profiler(f), f->report->profiler_ns),
            BOOL("scaled", f->g->is_scaled));
    SECTION(w, "validation", TEXT("method", v->method),
            FIXED_IF("mean_abs_error_pct", v->n > 0, v->mean_abs_error_pct, 3),
            FIXED_IF("max_abs_error_pct", v->n > 0, v->max_abs_error_pct, 3),
            FIXED_IF("mean_error_pct", v->n > 0, v->mean_error_pct, 3),
            FIXED_IF("measured_std_pct", v->n > 0, v->measured_std_pct, 3),
            INT("predictions", v->n));
    SECTION(w, "daydream", MS_KNOWN("iteration_ms", f->daydream.iteration_ns),
            FIXED("error_pct", f->daydream_error_pct, 3),
            FIXED("bandwidth_bytes_per_s", f->daydream.bandwidth_bytes_per_s, 0));
    SECTION(w, "contradiction", BOOL("contradicts", f->contradicts),
            MS_KNOWN("measured_known_to_ms", f->known_to_ns));
}

static void write_unprofiled(struct writer *w, const struct report_facts *f)
{
    const struct dpro_unprofiled *u = &f->unprofiled;
    const struct dpro_unprofiled_iterations *o = &f->outside;
    SECTION(w, "unprofiled", INT("steps", u->n_steps),
            MS_IF("iteration_ms", u->n_steps > 0, u->mean_ns),
            MS_IF("median_ms", u->n_steps > 0, u->median_ns),
            MS_IF("std_ms", u->n_steps > 0, u->std_ns),
            FIXED("profiler_overhead_pct", f->overhead_pct, 3),
            FIXED("error_pct", f->unprofiled_error_pct, 3),
            FIXED("median_error_pct", f->unprofiled_median_error_pct, 3));
    SECTION(
        w, "unprofiled_iterations", INT("iterations", o->n_iterations),
        MS_IF("iteration_ms", o->n_iterations > 0, o->mean_ns),
        MS_IF("std_ms", o->n_iterations > 0, o->std_ns),
        MS_IF("asking_ms", o->asking_ns > 0, o->asking_ns),
        MS_KNOWN("profiler_ms", f->wire_profiler_ns),
        MS_IF("standard_error_ms", o->n_iterations > 0 && f->wire_error_ns >= 0, f->wire_error_ns),
        MS_KNOWN("predicted_ms", f->wire_predicted_ns));
}

static void write_transport(struct writer *w, const struct report_facts *f)
{
    const struct dpro_transport_info info = dpro_trace_transport(f->report->trace), *t = &info;
    bool joined = t->n_connections > 0;
    writer_newline(w);
    writer_object_if(
        w, "transport", t->n_processes > 0, INT("processes", t->n_processes),
        INT("connections", t->n_connections), INT("one_sided_connections", t->n_one_sided),
        INT("calls", t->n_calls), INT("sent_bytes", t->sent_bytes),
        INT("received_bytes", t->received_bytes), INT_IF("paired_bytes", joined, t->paired_bytes),
        INT_IF("unpaired_bytes", joined, t->unpaired_bytes), INT("gloo_messages", t->n_messages),
        INT("zmtp_frames", t->n_zmtp_frames), INT("pushes", t->n_pushes), INT("pulls", t->n_pulls),
        INT("collectives", t->n_collectives), INT("collectives_tied", t->n_tied),
        INT("collectives_checked", t->n_checked), INT("collectives_exact", t->n_exact),
        INT("collectives_in_buckets", t->n_in_buckets), INT("records_lost", t->n_lost));
}

static void write_horovod(struct writer *w, const struct report_facts *f)
{
    const struct dpro_fusion_info *h = &f->fusion;
    writer_newline(w);
    writer_object_if(
        w, "horovod", h->n_tensors > 0, INT("tensors", h->n_tensors), INT("groups", h->n_groups),
        INT("rounds", h->n_rounds), INT("rounds_fused_alike", h->n_alike),
        MS_IF("cycle_ms", h->cycle_ns > 0, h->cycle_ns), MS_KNOWN("negotiate_ms", f->negotiate_ns),
        MS_KNOWN("copy_ms", f->copy_ns), MS_KNOWN("callback_ms", f->callback_ns));
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
    WRITER_LIST (w, "ops", i, f->replay->n_critical) {
        struct dpro_op op = dpro_graph_op(f->g, f->replay->critical[i].op);
        bool on_device = op.device != DPRO_NO_DEVICE;
        writer_item(w);
        writer_fields(w, TEXT("name", op.name));
        key_process(w, op.rank);
        writer_fields(w, TEXT("device", on_device ? dpro_graph_device(f->g, op.device).name : NULL),
                      TEXT("kind", dpro_op_kind_name(op.kind)),
                      MS("start_ms", f->replay->critical[i].start_ns),
                      MS("duration_ms", f->replay->critical[i].dur_ns),
                      MS("gap_ms", f->replay->critical[i].gap_ns));
        writer_close(w, '}');
    }
}

/* Those that take longest on the path, by name and kind. */
static void write_top_ops(struct writer *w, const struct report_facts *f)
{
    enum { MOST_NAMES = 100 };
    WRITER_LIST_OF (w, "top_ops", const struct name_fact, name, f->names,
                    MIN(f->n_names, (uint32_t)MOST_NAMES)) {
        writer_item(w);
        writer_fields(w, TEXT("name", name->name), TEXT("kind", dpro_op_kind_name(name->kind)));
        key_process(w, name->rank);
        writer_fields(w, INT("ranks", name->n_ranks), INT("count", name->count),
                      MS("ms", name->dur_ns));
        writer_close(w, '}');
    }
}

static void write_path(struct writer *w, const struct report_facts *f, bool with_ops)
{
    writer_section(w, "critical_path", '{');
    writer_fields(w, MS("length_ms", f->replay->critical_ns),
                  INT_IF("iteration", f->shown >= 0, f->shown));
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
    write_top_ops(w, f);
    if (with_ops)
        write_path_ops(w, f);
    writer_close(w, '}');
}

void json_write_report(struct writer *w, const struct report_facts *f, bool with_ops)
{
    writer_open(w, '{');
    writer_fields(w, TEXT("schema", "dpro.replay/1"), TEXT("version", dpro_version()));
    write_verdict(w, f);
    write_collectives(w, f);
    dimensions_write_json(w, f);
    write_ranks(w, f);
    write_lateness(w, f);
    write_clock(w, f->g);
    write_trace(w, f);
    write_measured(w, f);
    write_slow(w, f);
    write_predicted(w, f);
    write_unprofiled(w, f);
    write_transport(w, f);
    write_horovod(w, f);
    write_path(w, f, with_ops);
    memory_write_json(w, f);
    warnings_write_json(w, &f->warnings, 1);
    writer_close(w, '}');
}

void json_write(struct writer *w, const void *facts)
{
    json_write_report(w, facts, true);
    writer_text(w, "\n");
}

static void write_json(struct writer *w, const void *report)
{
    struct report_facts facts;
    facts_init(&facts, report);
    json_write(w, &facts);
    facts_fini(&facts);
}

REPORT(dpro_report_json, dpro_report, write_json)
