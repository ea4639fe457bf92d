/* Sums over the replay that text, JSON and HTML share. */
#include "report/facts.h"

#include "graph/graph.h"
#include "replay/job_time.h"
#include "report/table.h"
#include "report/words.h"

static void sum_measured(struct report_facts *f)
{
    f->measured = dpro_graph_measured_ns(f->g, &f->n_measured);
    f->measured_ns = f->median_ns = f->std_ns = -1;
    uint32_t n = f->n_measured;
    if (n == 0)
        return;
    int64_t *sorted = arena_array(&f->arena, n, sizeof *sorted);
    memcpy(sorted, f->measured, n * sizeof *sorted);
    sort_i64(sorted, n);
    struct mean_std found = stats_mean_std_i64(sorted, n);
    f->median_ns = stats_median_i64(sorted, n);
    f->measured_ns = llround(found.mean);
    if (n > 1)
        f->std_ns = llround(found.std);
}

static void sum_predicted(struct report_facts *f)
{
    const struct dpro_report *r = f->report;
    f->predicted_ns = f->replay->iteration_ns;
    f->p50_ns = dpro_replay_percentile_ns(r->replay, 0.5);
    f->p95_ns = dpro_replay_percentile_ns(r->replay, 0.95);
    f->n_drawn = r->graph->single_iteration ? 0 : r->n_samples; /* one leaves nothing to draw */
    int64_t as_it_is_ns = r->what_if && r->as_it_is_ns > 0 ? r->as_it_is_ns : f->predicted_ns;
    f->job = job_time_of(r->graph, as_it_is_ns, r->profiler_ns, &f->doubt);
    f->changed_ns =
        llround((double)f->job.ns * (double)f->predicted_ns / (double)MAX(as_it_is_ns, 1));
    f->validation = r->validation ? *r->validation : (struct dpro_validation){.method = "none"};
    bool any_size = false;
    for (uint32_t c = 0; c < f->n_comms; c++)
        any_size |= f->comms[c].size_bytes > 0;
    f->daydream = any_size && r->daydream && r->daydream->bandwidth_bytes_per_s > 0
                      ? *r->daydream
                      : (struct dpro_daydream){-1, NAN, 0};
    f->comparable = f->measured_ns > 0 && !f->report->what_if;
    f->error_pct = f->daydream_error_pct = NAN;
    if (f->comparable)
        f->error_pct = facts_pct(f->predicted_ns + r->profiler_ns - f->measured_ns, f->measured_ns);
    if (f->comparable && f->daydream.iteration_ns >= 0)
        f->daydream_error_pct =
            facts_pct(f->daydream.iteration_ns - f->measured_ns, f->measured_ns);
}

/* The 0.975 quantile of Student's t. */
static double student_t(uint32_t freedom)
{
    static const double first[] = {12.706, 4.303, 3.182, 2.776, 2.571,
                                   2.447,  2.365, 2.306, 2.262, 2.228};
    double n = freedom;
    return freedom <= 10 ? first[freedom ? freedom - 1 : 0] : 1.96 + 2.38 / n + 2.8 / (n * n);
}

/* The replay contradicts the measurement if it lies outside the 95 % interval of the measured mean;
 * less than a percent is no contradiction, however alike the iterations are. */
static void find_contradiction(struct report_facts *f)
{
    const double LEAST_PCT = 1;
    double off_ns = fabs(f->error_pct) / 100 * (double)f->measured_ns;
    f->known_to_ns = -1;
    if (f->n_measured > 1)
        f->known_to_ns =
            llround(student_t(f->n_measured - 1) * (double)f->std_ns / sqrt(f->n_measured));
    f->contradicts = f->comparable && f->known_to_ns >= 0 && fabs(f->error_pct) > LEAST_PCT &&
                     off_ns > (double)f->known_to_ns;
}

/* What Horovod's thread does beside transferring. */
static void find_fusion(struct report_facts *f)
{
    const struct dpro_graph *graph = f->g;
    uint32_t n_ranks = dpro_graph_n_ranks(graph);
    f->fusion = dpro_trace_fusion(f->report->trace);
    for (dpro_op_id id = 0; f->fusion.n_tensors > 0 && id < dpro_graph_n_ops(graph); id++) {
        struct dpro_op op = dpro_graph_op(graph, id);
        if (strncmp(op.name, "NEGOTIATE_", 10) == 0)
            f->negotiate_ns += op.dur_ns / n_ranks;
        else if (op.kind == DPRO_OP_COPY && strstr(op.name, "_FUSION_BUFFER"))
            f->copy_ns += op.dur_ns / n_ranks;
        else if (strcmp(op.name, "CALLBACKS") == 0)
            f->callback_ns += op.dur_ns / n_ranks;
    }
}

/* What profiled iterations took longer than those that only the wire shows. */
static void find_unprofiled_iterations(struct report_facts *f)
{
    int64_t cost_ns, error_ns;
    f->wire_profiler_ns = f->wire_error_ns = f->wire_predicted_ns = -1;
    if (facts_has_profiler(f) || !f->comparable)
        return; /* it is known, or this is no prediction of the job as it was */
    f->outside = dpro_graph_unprofiled_iterations(f->g);
    if (!job_profiler_by_logs(f->g, &cost_ns, &error_ns))
        return;
    f->wire_profiler_ns = cost_ns;
    f->wire_error_ns = error_ns > 0 ? error_ns : -1;
    f->wire_predicted_ns =
        f->predicted_ns -
        llround((double)f->predicted_ns * (double)f->wire_profiler_ns / (double)f->measured_ns);
}

/* What the same job took without a profiler, as it is told under "How sure". */
static void sum_recorded(struct report_facts *f)
{
    if (dpro_graph_steps_tell(f->g))
        f->unprofiled = dpro_trace_unprofiled(f->report->trace);
    find_fusion(f);
    find_unprofiled_iterations(f);
    f->overhead_pct = f->unprofiled_error_pct = f->unprofiled_median_error_pct = NAN;
    int64_t mean = f->unprofiled.mean_ns, median = f->unprofiled.median_ns;
    if (f->unprofiled.n_steps > 0 && f->measured_ns > 0)
        f->overhead_pct = facts_pct(f->measured_ns - mean, mean);
    if (f->unprofiled.n_steps > 0 && f->comparable) {
        f->unprofiled_error_pct = facts_pct(f->predicted_ns - mean, mean);
        f->unprofiled_median_error_pct = facts_pct(f->predicted_ns - median, median);
    }
}

static void sum_ranks(struct report_facts *f)
{
    int64_t n_computing = 0;
    f->n_ranks = dpro_graph_n_ranks(f->g);
    f->ranks = arena_array(&f->arena, f->n_ranks + 1, sizeof *f->ranks);
    for (uint32_t r = 0; r < f->n_ranks; r++) {
        struct dpro_rank_time *t = &f->ranks[r].time;
        *t = f->replay->ranks[r];
        f->ranks[r].unmatched_ns = MIN(f->g->ranks[r].unmatched_ns, t->idle_ns);
        /* a communication timeline alone makes an op of each round, of next to no time */
        f->ranks[r].computes =
            facts_pct(t->forward_ns + t->backward_ns + t->update_ns, t->iteration_ns) > 0.1;
        f->any_computes |= f->ranks[r].computes;
        f->communicates |= t->communication_ns + t->wait_for_peers_ns > 0;
        n_computing += f->ranks[r].computes;
        const struct dpro_rank_time *exposed = &f->ranks[f->most_exposed].time;
        if (t->exposed_communication_ns + t->wait_for_peers_ns >
            exposed->exposed_communication_ns + exposed->wait_for_peers_ns)
            f->most_exposed = r;
        const struct rank_fact *idle = &f->ranks[f->most_idle];
        if (f->ranks[r].computes && (!idle->computes || t->idle_ns > idle->time.idle_ns))
            f->most_idle = r;
    }
    for (uint32_t r = 0; r < f->n_ranks; r++) {
        const struct dpro_rank_time *t = &f->ranks[r].time;
        f->exposed_ns += t->exposed_communication_ns / f->n_ranks;
        f->wait_ns += t->wait_for_peers_ns / f->n_ranks;
        f->idle_ns +=
            f->ranks[r].computes ? (t->idle_ns - f->ranks[r].unmatched_ns) / n_computing : 0;
    }
}

ORDER_OF_INDICES(by_lateness, struct rank_fact,
                 DESCENDING(straggles) ?: DESCENDING(n_late) ?: DESCENDING(waited_ns)
                                                             ?: ASCENDING(time.rank));

/* Which ranks are late, and how often. */
static void sum_lateness(struct report_facts *f)
{
    f->late = arena_array(&f->arena, f->n_ranks + 1, sizeof *f->late);
    for (uint32_t r = 0; r < f->n_ranks; r++) {
        struct rank_fact *rank = &f->ranks[r];
        for (uint32_t i = 0; i < f->replay->n_iterations; i++)
            rank->waited_ns += f->replay->lateness[(size_t)i * f->replay->n_ranks + r].waited_ns;
        rank->waited_ns /= f->replay->n_iterations ? f->replay->n_iterations : 1;
        rank->n_late = f->replay->ranks_late[r].n;
        rank->straggles = f->replay->ranks_late[r].straggles;
        f->n_stragglers += rank->straggles;
        rank->later_ns = f->replay->ranks_late[r].later_ns;
        if (rank->n_late > 0)
            f->late[f->n_late++] = r;
    }
    qsort_r(f->late, f->n_late, sizeof *f->late, by_lateness, f->ranks);
}

static void sum_shown(struct report_facts *f)
{
    const struct dpro_graph *g = f->g;
    f->shown =
        g->sample_number && g->shown_sample < g->n_samples ? g->sample_number[g->shown_sample] : -1;
    int64_t first = INT64_MAX, last = INT64_MIN;
    for (uint32_t r = 0; g->single_iteration && r < g->n_ranks; r++) {
        first = g->ranks[r].offset_ns < first ? g->ranks[r].offset_ns : first;
        last = g->ranks[r].offset_ns > last ? g->ranks[r].offset_ns : last;
    }
    f->apart_ns = last > first ? last - first : 0;
}

/* The critical path of a job whose GPUs are busy runs along the CPU's calls that wait for them, so
 * what to make cheaper is asked of all GPU ops. */
static void find_busiest(struct report_facts *f)
{
    if (!f->has_gpu)
        return;
    int64_t *sum = arena_array(&f->arena, f->g->names.n, sizeof *sum);
    for (uint32_t op = 0; op < f->g->n_ops; op++)
        if ((f->g->flags[op] & GRAPH_OP_GPU) && f->g->kind[op] <= DPRO_OP_UPDATE)
            sum[f->g->name[op]] += f->g->dur_ns[op];
    for (uint32_t op = 0; op < f->g->n_ops; op++)
        if (sum[f->g->name[op]] > f->busiest_ns) {
            f->busiest_ns = sum[f->g->name[op]];
            f->busiest = strtab_get(&f->g->names, f->g->name[op]);
        }
    f->busiest_ns /= f->n_ranks ? f->n_ranks : 1;
}

ORDER(by_time, struct name_fact, DESCENDING(dur_ns) ?: strcmp(x->name, y->name) ?: ASCENDING(kind));

ORDER_OF_INDICES(by_length, int64_t, COMPARE(*y, *x));

static void sort_kinds(struct report_facts *f)
{
    SCRATCH uint32_t *order = sorted_indices(PATH_GAP + 1, f->kind_ns, by_length);
    while (f->n_kinds <= PATH_GAP && f->kind_ns[order[f->n_kinds]] > 0) {
        f->kinds[f->n_kinds] = (int)order[f->n_kinds];
        f->n_kinds++;
    }
}

static void sum_path(struct report_facts *f)
{
    const struct dpro_graph *g = f->g;
    struct map by_name = {0}, on_rank = {0};
    f->names = arena_array(&f->arena, f->replay->n_critical, sizeof *f->names);
    for (uint32_t i = 0; i < f->replay->n_critical; i++) {
        const struct dpro_critical_op *c = &f->replay->critical[i];
        struct dpro_op op = dpro_graph_op(g, c->op);
        f->kind_ns[op.kind] += c->dur_ns;
        f->kind_ns[PATH_GAP] += c->gap_ns;
        if (c->gap_ns > f->replay->critical[f->longest_gap].gap_ns)
            f->longest_gap = i;
        *(g->rank[c->op] < f->n_ranks ? &f->ranks[g->rank[c->op]].path_ns : &f->servers_path_ns) +=
            c->dur_ns + c->gap_ns;
        if (op.device != DPRO_NO_DEVICE &&
            dpro_graph_device(g, op.device).kind == DPRO_DEVICE_CPU_THREAD)
            f->path_cpu_ns += c->dur_ns;
        if (c->dur_ns == 0)
            continue;
        uint64_t at = (uint64_t)map_number(&by_name, ((uint64_t)g->name[c->op] << 8 | op.kind) + 1);
        struct name_fact *name = &f->names[at];
        if (at == f->n_names) {
            *name = (struct name_fact){.name = op.name, .kind = op.kind, .rank = op.rank};
            f->n_names++;
        }
        name->count++;
        name->dur_ns += c->dur_ns;
        size_t n_known = on_rank.n;
        map_number(&on_rank, (at + 1) << 16 | g->rank[c->op]);
        name->n_ranks += on_rank.n > n_known;
    }
    sort_kinds(f);
    qsort(f->names, f->n_names, sizeof *f->names, by_time);
    map_fini(&on_rank);
    map_fini(&by_name);
}

ORDER(by_kind, struct comm_fact, strcmp(x->kind, y->kind) ?: strcmp(x->pattern, y->pattern));
ORDER(by_size, struct comm_fact, DESCENDING(size_bytes) ?: by_kind(x, y) ?: ASCENDING(n_ranks));

static void sum_comms(struct report_facts *f)
{
    uint32_t n = dpro_graph_n_collectives(f->g);
    f->comms = arena_array(&f->arena, n, sizeof *f->comms);
    for (uint32_t i = 0; i < n; i++) {
        struct dpro_collective c = dpro_graph_collective(f->g, i);
        uint32_t at = 0;
        while (at < f->n_comms && (f->comms[at].n_ranks != c.n_ranks ||
                                   f->comms[at].kind != dpro_collective_kind_name(c.kind) ||
                                   strcmp(f->comms[at].pattern, c.pattern) != 0))
            at++;
        if (at == f->n_comms)
            f->comms[f->n_comms++] = (struct comm_fact){.kind = dpro_collective_kind_name(c.kind),
                                                        .pattern = c.pattern,
                                                        .n_ranks = c.n_ranks,
                                                        .sized = true};
        struct comm_fact *fact = &f->comms[at];
        fact->count++;
        fact->sized &= facts_is_sized(&c);
        fact->n_messages += c.n_messages;
        if (__builtin_add_overflow(fact->size_bytes, c.size_bytes, &fact->size_bytes))
            fact->size_bytes = UINT64_MAX;
        fact->most_chunks = MAX(fact->most_chunks, c.n_chunks);
        fact->most_channels = MAX(fact->most_channels, c.n_channels);
    }
    qsort(f->comms, f->n_comms, sizeof *f->comms, by_size);
}

double facts_pct(int64_t part_ns, int64_t whole_ns)
{
    return whole_ns > 0 ? 100.0 * (double)part_ns / (double)whole_ns : 0;
}

const struct rank_part rank_parts[N_RANK_PARTS] = {
    {"forward", "forward", "forward_ms", offsetof(struct dpro_rank_time, forward_ns)},
    {"backward", "backward", "backward_ms", offsetof(struct dpro_rank_time, backward_ns)},
    {"update", "update", "update_ms", offsetof(struct dpro_rank_time, update_ns)},
    {"input", "input", "input_ms", offsetof(struct dpro_rank_time, input_ns)},
    {"exposed", "exposed communication", "exposed_communication_ms",
     offsetof(struct dpro_rank_time, exposed_communication_ns)},
    {"waiting", "waiting for peers", "wait_for_peers_ms",
     offsetof(struct dpro_rank_time, wait_for_peers_ns)},
    {"idle", "idle", "idle_ms", offsetof(struct dpro_rank_time, idle_ns)},
};

int64_t rank_part_ns(const struct dpro_rank_time *time, int part)
{
    return *(const int64_t *)((const char *)time + rank_parts[part].at);
}

bool facts_is_sized(const struct dpro_collective *collective)
{
    return collective->size_bytes > 0 || collective->kind == DPRO_BARRIER;
}

const char *facts_kind_words(const struct report_facts *f, enum dpro_op_kind kind)
{
    static const char *const words[DPRO_N_OP_KINDS] = {
        [DPRO_OP_FW] = "forward computation",
        [DPRO_OP_BW] = "backward computation",
        [DPRO_OP_UPDATE] = "optimizer update",
        [DPRO_OP_INPUT] = "input",
        [DPRO_OP_SEND] = "sending",
        [DPRO_OP_RECV] = "receiving",
        [DPRO_OP_PUSH] = "pushing to servers",
        [DPRO_OP_PULL] = "pulling from servers",
        [DPRO_OP_REDUCE] = "adding up received parts",
        [DPRO_OP_COPY] = "memory copies",
        [DPRO_OP_COLLECTIVE] = "collective transfers",
        [DPRO_OP_LAUNCH] = "CPU launch and sync calls",
        [DPRO_OP_IN] = "tensors becoming ready",
        [DPRO_OP_OUT] = "tensors arriving",
        [DPRO_OP_BARRIER] = "boundaries",
    };
    if (kind == DPRO_OP_FW && f->g->hides_phases)
        return "computation of unknown phase";
    return kind < DPRO_N_OP_KINDS ? words[kind] : "other";
}

/* ---- iterations that take longer than the others ---- */

static const char *facts_ordinal(uint32_t n)
{
    uint32_t last = n % 100 / 10 == 1 ? 0 : n % 10;
    return last == 1 ? "st" : last == 2 ? "nd" : last == 3 ? "rd" : "th";
}

/* "every 4th iteration (3, 7, 11) takes 300 ms longer than the others' 81.9 ms" */
static void write_words(struct report_facts *f)
{
    enum { MOST_NUMBERS = 6 };
    struct slow_facts *slow = &f->slow;
    const int64_t *number = f->g->sample_number;
    struct words line = {.n = 0};
    if (slow->every > 0)
        words_add(&line, "", "every %u%s iteration (", slow->every, facts_ordinal(slow->every));
    else if (slow->are_first && slow->n == 1)
        words_add(&line, "", "the first of %u iterations (", f->n_measured);
    else if (slow->are_first)
        words_add(&line, "", "the first %u of %u iterations (", slow->n, f->n_measured);
    else
        words_add(&line, "", "%u of %u iterations (", slow->n, f->n_measured);
    bool in_row = number && slow->n > 2 &&
                  number[slow->samples[slow->n - 1]] - number[slow->samples[0]] == slow->n - 1;
    if (in_row)
        words_add(&line, "", "%lld to %lld", (long long)number[slow->samples[0]],
                  (long long)number[slow->samples[slow->n - 1]]);
    for (uint32_t i = 0; number && !in_row && i < slow->n && i < MOST_NUMBERS; i++)
        words_add(&line, i > 0 ? ", " : "", "%lld", (long long)number[slow->samples[i]]);
    bool one = slow->n == 1 || slow->every > 0;
    words_add(&line, "", "%s) %s %s longer than the others' %s",
              slow->n > MOST_NUMBERS && !in_row ? ", ..." : "", one ? "takes" : "take",
              TIME(slow->more_ns), TIME(slow->usual_ns));
    slow->text = arena_copy_string(&f->arena, line.text, strlen(line.text));
}

static void slow_find(struct report_facts *f)
{
    struct slow_facts *slow = &f->slow;
    const int64_t *ns = f->measured;
    struct slow_ones found = stats_slow_ones(ns, f->g->sample_number, f->n_measured);
    slow->samples = arena_array(&f->arena, f->n_measured + (size_t)1, sizeof *slow->samples);
    for (uint32_t s = 0; s < f->n_measured; s++)
        if (ns[s] > found.usual_most)
            slow->samples[slow->n++] = s;
    if (slow->n == 0)
        return;
    slow->usual_ns = llround(found.usual.mean);
    slow->more_ns = llround(found.slow.mean - found.usual.mean);
    slow->every = found.every;
    slow->are_first = found.are_first;
    write_words(f);
}

/* ---- all of it ---- */

void facts_sum(struct report_facts *f, const struct dpro_report *report)
{
    *f = (struct report_facts){.report = report,
                               .g = report->graph,
                               .replay = dpro_replay_view(report->replay),
                               .warnings = {.trace = report->trace, .graph = report->graph},
                               .framework = dpro_trace_framework(report->trace),
                               .world_size = (uint32_t)dpro_trace_world_size(report->trace)};
    EACH_OF (const struct graph_device, device, f->g->devices, f->g->n_devices)
        f->has_gpu |= device->kind == DPRO_DEVICE_GPU_STREAM;
    sum_measured(f);
    sum_ranks(f);
    sum_lateness(f);
    sum_path(f);
    find_busiest(f);
    sum_comms(f);
    parallel_sum(f);
    for (uint32_t r = 0; r < f->n_ranks && f->parallel.pipeline.dimension == DPRO_NO_DIMENSION;
         r++) {
        const struct graph_rank *rank = &report->graph->ranks[r];
        f->n_micro_batches = MAX(f->n_micro_batches, rank->most_micro_batches);
        if (rank->fewest_micro_batches > 0)
            f->fewest_micro_batches =
                MIN(f->fewest_micro_batches - 1, rank->fewest_micro_batches - 1) + 1;
    }
    sum_predicted(f);
    find_contradiction(f);
    sum_recorded(f);
    sum_shown(f);
    slow_find(f);
    memory_find(f);
}

void facts_fini(struct report_facts *facts)
{
    arena_fini(&facts->arena);
}
