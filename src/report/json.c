/* report/json.c: the replay as JSON, schema dpro.replay/1. Keys are never renamed or dropped;
 * what is unknown is null. */
#include "report/contradiction.h"
#include "report/facts.h"

static void key_ms_or_null(struct writer *w, const char *key, int64_t ns)
{
    writer_key(w, key);
    if (ns < 0)
        writer_null(w);
    else
        writer_json_ms(w, ns);
}

static void key_bytes_or_null(struct writer *w, const char *key, bool known, uint64_t bytes)
{
    writer_key(w, key);
    if (known)
        writer_json_int(w, bytes < INT64_MAX ? (int64_t)bytes : INT64_MAX);
    else
        writer_null(w);
}

static void key_pct_if(struct writer *w, const char *key, bool known, double value)
{
    writer_key(w, key);
    if (known)
        writer_json_fixed(w, value, 3);
    else
        writer_null(w);
}

static const char *file_kind(enum dpro_file_kind kind)
{
    switch (kind) {
    case DPRO_FILE_KINETO:
        return "kineto";
    case DPRO_FILE_EXECUTION_TRACE:
        return "execution-trace";
    case DPRO_FILE_RECORDING:
        return "recording";
    case DPRO_FILE_TRANSPORT:
        return "transport-log";
    case DPRO_FILE_TRANSPORT_CSV:
        return "transport-csv";
    case DPRO_FILE_NCCL:
        return "nccl-log";
    case DPRO_FILE_XPLANE:
        return "xplane";
    case DPRO_FILE_RUN_METADATA:
        return "run-metadata";
    case DPRO_FILE_GRAPH_DEF:
        return "graph-def";
    case DPRO_FILE_MXNET:
        return "mxnet";
    case DPRO_FILE_MXNET_TEXT:
        return "mxnet-graph";
    case DPRO_FILE_MXNET_SYMBOL:
        return "mxnet-symbol";
    case DPRO_FILE_TIMELINE:
        return "timeline";
    case DPRO_FILE_TF_CHROME:
        return "tensorflow-chrome";
    case DPRO_FILE_TF_METADATA:
        return "tensorflow-metadata";
    case DPRO_FILE_GML:
        return "gml";
    case DPRO_FILE_GRADIENTS:
        return "gradients";
    case DPRO_FILE_CHUNKS:
        return "nccl-chunks";
    case DPRO_FILE_RINGS:
        return "nccl-rings";
    case DPRO_FILE_BYTEPS_LOG:
        return "byteps-log";
    case DPRO_FILE_BYTEPS_SERVER:
        return "byteps-server";
    case DPRO_FILE_BYTEPS_KEYS:
        return "byteps-keys";
    case DPRO_FILE_BYTEPS_TIMELINE:
        return "byteps-timeline";
    case DPRO_FILE_OTHER:
        break;
    }
    return NULL;
}

static void write_trace(struct writer *w, const struct report_facts *f)
{
    const struct dpro_trace *trace = f->report->trace;
    writer_key(w, "trace");
    writer_open(w, '{');
    writer_key_string(w, "framework", dpro_trace_framework(trace));
    writer_key_int(w, "world_size", dpro_trace_world_size(trace));
    writer_key(w, "ranks_present");
    writer_open(w, '[');
    for (size_t r = 0; r < dpro_trace_n_ranks(trace); r++)
        writer_json_int(w, dpro_trace_rank(trace, r));
    writer_close(w, ']');
    writer_key(w, "communication_recognised");
    writer_bool(w, facts_communicates(f));
    writer_key_int(w, "iterations", f->n_measured);
    writer_key(w, "files");
    writer_open(w, '[');
    for (size_t i = 0; i < dpro_trace_n_files(trace); i++) {
        struct dpro_file_info info = dpro_trace_file(trace, i);
        if (!file_kind(info.kind))
            continue;
        writer_newline(w);
        writer_open(w, '{');
        writer_key_string(w, "path", info.path);
        writer_key_string(w, "kind", file_kind(info.kind));
        writer_key_int(w, "rank", info.rank);
        writer_key_int(w, "bytes", (int64_t)info.size_bytes);
        writer_key_int(w, "events", (int64_t)info.n_events);
        writer_key(w, "truncated");
        writer_bool(w, info.truncated);
        writer_close(w, '}');
    }
    writer_close(w, ']');
    writer_close(w, '}');
}

/* Where iterations were measured: CPU and GPU may disagree. */
static void write_pace(struct writer *w, const struct report_facts *f)
{
    const struct dpro_pace *p = &f->pace;
    bool known = p->n_ranks > 0;
    writer_newline(w);
    writer_key(w, "pace");
    writer_open(w, '{');
    writer_key_int(w, "ranks_on_gpu", p->n_ranks);
    key_ms_or_null(w, "cpu_ms", known ? p->marks_ns : -1);
    key_ms_or_null(w, "gpu_ms", known ? p->device_ns : -1);
    key_ms_or_null(w, "ahead_ms", known ? p->ahead_ns : -1);
    writer_close(w, '}');
}

static void write_left_out(struct writer *w, const struct report_facts *f)
{
    const struct dpro_graph *g = f->report->graph;
    writer_newline(w);
    writer_key(w, "left_out");
    writer_open(w, '[');
    for (size_t i = 0; i < dpro_graph_n_left_out(g); i++) {
        struct dpro_left_out left_out = dpro_graph_left_out(g, i);
        writer_open(w, '{');
        writer_key_int(w, "iteration", left_out.number);
        writer_key_string(w, "reason", left_out.reason);
        writer_close(w, '}');
    }
    writer_close(w, ']');
}

static void write_times(struct writer *w, const struct report_facts *f)
{
    writer_newline(w);
    writer_key(w, "measured");
    writer_open(w, '{');
    key_ms_or_null(w, "iteration_ms", f->measured_ns);
    key_ms_or_null(w, "median_ms", f->median_ns);
    key_ms_or_null(w, "std_ms", f->std_ns);
    writer_key(w, "per_iteration_ms");
    writer_open(w, '[');
    for (uint32_t i = 0; i < f->n_measured; i++)
        writer_json_ms(w, f->measured[i]);
    writer_close(w, ']');
    writer_close(w, '}');
    write_pace(w, f);
    write_left_out(w, f);

    writer_newline(w);
    writer_key(w, "predicted");
    writer_open(w, '{');
    key_ms_or_null(w, "iteration_ms", f->predicted_ns);
    key_ms_or_null(w, "p50_ms", f->p50_ns);
    key_ms_or_null(w, "p95_ms", f->p95_ns);
    writer_key_int(w, "samples", f->n_drawn);
    writer_close(w, '}');
    key_pct_if(w, "error_pct", f->comparable, f->error_pct);
    writer_key(w, "what_if");
    writer_bool(w, f->report->what_if);
    writer_newline(w);
    const struct dpro_report *r = f->report;
    writer_key(w, "profiler");
    writer_open(w, '{');
    writer_key(w, "op_ns");
    if (r->profiler_op_ns)
        writer_json_int(w, r->profiler_op_ns);
    else
        writer_null(w);
    key_ms_or_null(w, "iteration_ms", r->profiler_op_ns ? r->profiler_ns : -1);
    writer_close(w, '}');
    writer_newline(w);
}

static void write_checks(struct writer *w, const struct report_facts *f)
{
    const struct dpro_validation *v = f->report->validation;
    const struct dpro_daydream *d = f->daydream;
    bool known = v && v->n > 0;
    writer_newline(w);
    writer_key(w, "validation");
    writer_open(w, '{');
    writer_key_string(w, "method", v && v->method ? v->method : "none");
    key_pct_if(w, "mean_abs_error_pct", known, known ? v->mean_abs_error_pct : 0);
    key_pct_if(w, "max_abs_error_pct", known, known ? v->max_abs_error_pct : 0);
    key_pct_if(w, "mean_error_pct", known, known ? v->mean_error_pct : 0);
    key_pct_if(w, "measured_std_pct", known, known ? v->measured_std_pct : 0);
    writer_key_int(w, "predictions", v ? v->n : 0);
    writer_close(w, '}');

    writer_newline(w);
    writer_key(w, "daydream");
    writer_open(w, '{');
    key_ms_or_null(w, "iteration_ms", d ? d->iteration_ns : -1);
    key_pct_if(w, "error_pct", d && f->comparable, f->daydream_error_pct);
    writer_key(w, "bandwidth_bytes_per_s");
    if (d)
        writer_json_fixed(w, d->bandwidth_bytes_per_s, 0);
    else
        writer_null(w);
    writer_close(w, '}');
}

static void write_contradiction(struct writer *w, const struct report_facts *f)
{
    writer_newline(w);
    writer_key(w, "contradiction");
    writer_open(w, '{');
    writer_key(w, "contradicts");
    writer_bool(w, f->contradicts);
    key_ms_or_null(w, "measured_known_to_ms", f->known_to_ns);
    writer_key_string(w, "text", f->contradiction[0] ? f->contradiction : NULL);
    writer_key(w, "parts");
    writer_open(w, '[');
    for (uint32_t i = 0; i < f->n_parts; i++) {
        const struct part_fact *part = &f->parts[i];
        writer_newline(w);
        writer_open(w, '{');
        writer_key_int(w, "rank", part->rank);
        writer_key_string(w, "part", contradiction_part(part));
        writer_key_ms(w, "measured_ms", part->measured_ns);
        writer_key_ms(w, "replayed_ms", part->replayed_ns);
        writer_key_ms(w, "measured_sum_ms", part->measured_sum_ns);
        writer_key_ms(w, "replayed_sum_ms", part->replayed_sum_ns);
        writer_close(w, '}');
    }
    writer_close(w, ']');
    writer_close(w, '}');
}

static void write_unprofiled(struct writer *w, const struct report_facts *f)
{
    const struct dpro_unprofiled *u = &f->unprofiled;
    bool known = u->n_steps > 0;
    writer_newline(w);
    writer_key(w, "unprofiled");
    writer_open(w, '{');
    writer_key_int(w, "steps", u->n_steps);
    key_ms_or_null(w, "iteration_ms", known ? u->mean_ns : -1);
    key_ms_or_null(w, "median_ms", known ? u->median_ns : -1);
    key_ms_or_null(w, "std_ms", known ? u->std_ns : -1);
    key_pct_if(w, "profiler_overhead_pct", known && f->measured_ns > 0, f->overhead_pct);
    key_pct_if(w, "error_pct", known && f->comparable, f->unprofiled_error_pct);
    key_pct_if(w, "median_error_pct", known && f->comparable, f->unprofiled_median_error_pct);
    writer_close(w, '}');
}

static void write_on_wire(struct writer *w, const struct report_facts *f)
{
    const struct dpro_on_wire *o = &f->on_wire;
    bool known = o->n_iterations > 0, tells = known || o->asking_ns > 0;
    writer_newline(w);
    writer_key(w, "on_wire");
    writer_open(w, '{');
    writer_key_int(w, "iterations", o->n_iterations);
    key_ms_or_null(w, "iteration_ms", known ? o->mean_ns : -1);
    key_ms_or_null(w, "std_ms", known ? o->std_ns : -1);
    key_ms_or_null(w, "asking_ms", o->asking_ns > 0 ? o->asking_ns : -1);
    key_ms_or_null(w, "profiler_ms", tells && f->comparable ? f->wire_profiler_ns : -1);
    key_ms_or_null(w, "standard_error_ms", known && f->comparable ? f->wire_error_ns : -1);
    key_ms_or_null(w, "predicted_ms", tells && f->comparable ? f->wire_predicted_ns : -1);
    writer_close(w, '}');
}

static void write_fusion(struct writer *w, const struct report_facts *f)
{
    const struct dpro_fusion_info *h = &f->fusion;
    writer_newline(w);
    writer_key(w, "horovod");
    if (h->n_tensors == 0) {
        writer_null(w);
        return;
    }
    writer_open(w, '{');
    writer_key_int(w, "tensors", h->n_tensors);
    writer_key_int(w, "groups", h->n_groups);
    writer_key_int(w, "rounds", h->n_rounds);
    writer_key_int(w, "rounds_fused_alike", h->n_alike);
    key_ms_or_null(w, "cycle_ms", h->cycle_ns ? h->cycle_ns : -1);
    key_ms_or_null(w, "negotiate_ms", f->negotiate_ns);
    key_ms_or_null(w, "copy_ms", f->copy_ns);
    key_ms_or_null(w, "callback_ms", f->callback_ns);
    writer_close(w, '}');
}

static void write_transport(struct writer *w, const struct report_facts *f)
{
    const struct dpro_transport_info *t = &f->transport;
    writer_newline(w);
    writer_key(w, "transport");
    if (t->n_processes == 0) {
        writer_null(w);
        return;
    }
    writer_open(w, '{');
    writer_key_int(w, "processes", t->n_processes);
    writer_key_int(w, "connections", t->n_connections);
    writer_key_int(w, "one_sided_connections", t->n_one_sided);
    writer_key_int(w, "calls", (int64_t)t->n_calls);
    writer_key_int(w, "sent_bytes", (int64_t)t->sent_bytes);
    writer_key_int(w, "received_bytes", (int64_t)t->received_bytes);
    bool both_ends = t->n_connections > 0;
    key_bytes_or_null(w, "paired_bytes", both_ends, t->paired_bytes);
    key_bytes_or_null(w, "unpaired_bytes", both_ends, t->unpaired_bytes);
    key_bytes_or_null(w, "gaps", both_ends, t->n_gaps);
    writer_key_int(w, "edge_bytes", (int64_t)t->edge_bytes);
    writer_key_int(w, "gloo_messages", (int64_t)t->n_messages);
    writer_key_int(w, "zmtp_frames", (int64_t)t->n_zmtp_frames);
    writer_key_int(w, "pushes", (int64_t)t->n_pushes);
    writer_key_int(w, "pulls", (int64_t)t->n_pulls);
    writer_key_int(w, "framing_breaks", (int64_t)t->n_framing_breaks);
    writer_key_int(w, "collectives", (int64_t)t->n_collectives);
    writer_key_int(w, "collectives_tied", (int64_t)t->n_tied);
    writer_key_int(w, "collectives_checked", (int64_t)t->n_checked);
    writer_key_int(w, "collectives_exact", (int64_t)t->n_exact);
    writer_key_int(w, "collectives_in_buckets", (int64_t)t->n_in_buckets);
    writer_key_int(w, "records_lost", (int64_t)t->n_lost);
    writer_close(w, '}');
}

static void write_ranks(struct writer *w, const struct report_facts *f)
{
    writer_newline(w);
    writer_key(w, "ranks");
    writer_open(w, '[');
    for (uint32_t r = 0; r < f->n_ranks; r++) {
        const struct dpro_rank_time *t = &f->ranks[r].time;
        writer_newline(w);
        writer_open(w, '{');
        writer_key_int(w, "rank", t->rank);
        writer_key_ms(w, "iteration_ms", t->iteration_ns);
        writer_key_ms(w, "forward_ms", t->forward_ns);
        writer_key_ms(w, "backward_ms", t->backward_ns);
        writer_key_ms(w, "update_ms", t->update_ns);
        writer_key_ms(w, "input_ms", t->input_ns);
        writer_key_ms(w, "communication_ms", t->communication_ns);
        writer_key_ms(w, "exposed_communication_ms", t->exposed_communication_ns);
        writer_key_ms(w, "wait_for_peers_ms", t->wait_for_peers_ns);
        key_ms_or_null(w, "idle_ms", f->ranks[r].computes ? t->idle_ns : -1);
        writer_key(w, "waited_most_for");
        if (t->waited_most_for < 0)
            writer_null(w);
        else
            writer_json_int(w, t->waited_most_for);
        writer_close(w, '}');
    }
    writer_close(w, ']');
}

/* A server has no rank, but a name. */
static void key_process(struct writer *w, int rank)
{
    char name[DPRO_PROCESS_NAME_MAX];
    if (rank >= -1) {
        writer_key_int(w, "rank", rank);
        return;
    }
    dpro_process_name(name, rank);
    writer_key(w, "rank");
    writer_null(w);
    writer_key_string(w, "process", name);
}

static void write_path_ops(struct writer *w, const struct report_facts *f)
{
    const struct dpro_graph *g = f->report->graph;
    writer_key(w, "ops");
    writer_open(w, '[');
    for (uint32_t i = 0; i < f->n_path; i++) {
        struct dpro_op op = dpro_graph_op(g, f->path[i].op);
        writer_newline(w);
        writer_open(w, '{');
        writer_key_string(w, "name", op.name);
        key_process(w, op.rank);
        writer_key_string(
            w, "device", op.device == DPRO_NO_DEVICE ? NULL : dpro_graph_device(g, op.device).name);
        writer_key_string(w, "kind", dpro_op_kind_name(op.kind));
        writer_key_ms(w, "start_ms", f->path[i].start_ns);
        writer_key_ms(w, "duration_ms", f->path[i].dur_ns);
        writer_key_ms(w, "gap_ms", f->path[i].gap_ns);
        writer_close(w, '}');
    }
    writer_close(w, ']');
}

static void write_path(struct writer *w, const struct report_facts *f, bool with_ops)
{
    writer_newline(w);
    writer_key(w, "critical_path");
    writer_open(w, '{');
    writer_key_ms(w, "length_ms", f->path_ns);
    writer_key(w, "iteration");
    if (f->shown < 0)
        writer_null(w);
    else
        writer_json_int(w, f->shown);
    writer_key(w, "by_kind_ms");
    writer_open(w, '{');
    for (int k = 0; k < DPRO_N_OP_KINDS; k++)
        if (f->kind_ns[k] > 0)
            writer_key_ms(w, dpro_op_kind_name(k), f->kind_ns[k]);
    writer_key_ms(w, "GAP", f->kind_ns[PATH_GAP]);
    writer_close(w, '}');
    writer_key(w, "by_rank_ms");
    writer_open(w, '{');
    for (uint32_t r = 0; r < f->n_ranks; r++) {
        char rank[16];
        snprintf(rank, sizeof rank, "%d", f->ranks[r].time.rank);
        writer_key_ms(w, rank, f->ranks[r].path_ns);
    }
    writer_close(w, '}');
    if (f->servers_path_ns > 0)
        writer_key_ms(w, "servers_ms", f->servers_path_ns);
    if (with_ops)
        write_path_ops(w, f);
    writer_close(w, '}');
}

static void write_collectives(struct writer *w, const struct report_facts *f)
{
    writer_newline(w);
    writer_key(w, "collectives");
    writer_open(w, '[');
    for (uint32_t i = 0; i < f->n_comms; i++) {
        const struct comm_fact *c = &f->comms[i];
        writer_newline(w);
        writer_open(w, '{');
        writer_key_string(w, "kind", c->kind);
        writer_key_int(w, "ranks", c->n_ranks);
        writer_key_int(w, "count", c->count);
        key_bytes_or_null(w, "bytes", c->sized, c->size_bytes);
        writer_key_int(w, "messages", (int64_t)c->n_messages);
        writer_key_string(w, "pattern", c->pattern[0] ? c->pattern : NULL);
        writer_key_int(w, "chunks", c->most_chunks);
        writer_key_int(w, "channels", c->most_channels);
        writer_close(w, '}');
    }
    writer_close(w, ']');
}

static void write_clock(struct writer *w, const struct report_facts *f)
{
    const struct dpro_graph *g = f->report->graph;
    struct dpro_alignment alignment = dpro_graph_alignment(g);
    writer_newline(w);
    writer_key(w, "clock");
    writer_open(w, '{');
    writer_key_string(w, "method", align_method(g));
    writer_key_string(w, "reference", alignment.reference);
    writer_key_int(w, "pairs", (int64_t)alignment.n_pairs);
    writer_key_int(w, "violations_before", (int64_t)alignment.violations_before);
    writer_key_int(w, "violations_after", (int64_t)alignment.violations_after);
    writer_key(w, "hosts");
    writer_open(w, '[');
    uint32_t n = dpro_graph_n_clocks(g);
    for (uint32_t c = 0; c < n; c++) {
        struct dpro_clock clock = dpro_graph_clock(g, c);
        writer_newline(w);
        writer_open(w, '{');
        writer_key_string(w, "host", clock.host);
        writer_key(w, "ranks");
        writer_open(w, '[');
        for (uint32_t r = 0; r < clock.n_ranks; r++)
            writer_json_int(w, clock.ranks[r]);
        writer_close(w, ']');
        writer_key_string(w, "method", clock.method);
        writer_key(w, "offset_ms");
        if (clock.n_segments == 0)
            writer_null(w); /* not tied to the reference */
        else
            writer_json_ms(w, clock.segments[0].offset_ns);
        writer_key(w, "drift_ppm");
        if (clock.n_segments == 0)
            writer_null(w);
        else
            writer_json_fixed(w, clock.segments[0].drift_ppm, 3);
        key_ms_or_null(w, "uncertainty_ms", facts_clock_uncertainty(f, c));
        writer_close(w, '}');
    }
    writer_close(w, ']');
    writer_close(w, '}');
}

void json_write_report(struct writer *w, const struct report_facts *f, bool with_ops)
{
    writer_open(w, '{');
    writer_key_string(w, "schema", "dpro.replay/1");
    writer_key_string(w, "version", dpro_version());
    writer_newline(w);
    write_trace(w, f);
    write_times(w, f);
    writer_key(w, "verdict");
    writer_open(w, '[');
    for (int i = 0; i < N_VERDICT; i++) {
        writer_open(w, '{');
        writer_key_string(w, "title", f->verdict[i].title);
        writer_key_string(w, "text", f->verdict[i].text);
        writer_close(w, '}');
    }
    writer_close(w, ']');
    write_checks(w, f);
    write_contradiction(w, f);
    write_unprofiled(w, f);
    write_on_wire(w, f);
    write_transport(w, f);
    write_fusion(w, f);
    write_collectives(w, f);
    write_ranks(w, f);
    write_path(w, f, with_ops);
    write_clock(w, f);
    writer_newline(w);
    writer_key(w, "warnings");
    writer_open(w, '[');
    const char *warning;
    for (size_t i = 0; (warning = facts_warning(f->report, i)); i++) {
        writer_newline(w);
        writer_string(w, warning);
    }
    writer_close(w, ']');
    writer_close(w, '}');
}

int dpro_report_json(const struct dpro_report *report, FILE *out, struct dpro_error *err)
{
    struct report_facts facts;
    struct writer w;
    int rc = facts_init(&facts, report, err);
    if (rc < 0)
        return rc;
    rc = writer_init_file(&w, out, err);
    if (rc == 0) {
        json_write_report(&w, &facts, true);
        writer_text(&w, "\n");
        rc = writer_finish(&w, err);
        writer_fini(&w);
    }
    facts_fini(&facts);
    return rc;
}
