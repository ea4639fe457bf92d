/* POP's efficiencies, MFU and the roofline, and who waits for whom. */
#include "report/against_report.h"

#include "diagnose/straggler_measures.h"
#include "ingest/trace.h"
#include "report/table.h"
#include "report/words.h"

enum { MATRIX_RANKS = TABLE_MOST - 1, LONGEST_WAITS = 8 };

static const char *const families[N_FAMILIES] = {"matmul", "convolution", "attention"};
static const char *const precisions[N_PRECISIONS] = {"fp64", "fp32", "16-bit", "8-bit"};

#define LEAST_COUNTED 0.1 /* of computing: with less, MFU would be of what is not seen */

/* What MFU lacks; NULL: nothing. */
static const char *mfu_needs(const struct roofline *r)
{
    if (r->of_stages)
        return "shapes of ops, and a timeline of stages has none";
    if (r->lacks_strides)
        return "strides of convolutions, which torch.profiler records since 2.0 and 'dpro profile' "
               "leaves out";
    if (r->n_ranks > 0 && r->busy < LEAST_COUNTED)
        return "ops of which dpro counts the operations (products, convolutions, attention), and "
               "these are less than a tenth of computing";
    return r->n_ranks > 0  ? NULL
           : r->of_pytorch ? "shapes of ops: record with torch.profiler.profile(record_shapes=True)"
                           : "shapes of ops, which dpro reads of PyTorch's profiles only";
}

static const char *peak_source(const struct roofline *roofline)
{
    return roofline->is ? "data sheet" : "fastest op of the recording";
}

/* ---- text ---- */

static void put_roofline(struct writer *w, const struct roofline *r)
{
    struct table table = {.n_cols = 6, .left = {true}};
    const char *needs = mfu_needs(r);
    writer_text(w, "\n");
    if (needs)
        table_paragraph(w, "", 2, "MFU can't be told: it needs %s", needs);
    else
        table_paragraph(w, "", 2,
                        "MFU: %s %% of the peak (%s%s%s); ops with shapes are %s %% of computing",
                        NUMBER(100 * r->mfu, 1), r->device, r->device[0] ? ", " : "",
                        peak_source(r), NUMBER(100 * r->busy, 0));
    if (r->n_ranks == 0)
        return;
    double most = 0, fastest = 0; /* per ns: a thousandth of TFLOP/s */
    for (int f = 0; f < N_FAMILIES; f++)
        for (int p = 0; p < N_PRECISIONS; p++) {
            most = fmax(most, r->of[f][p].flops);
            fastest = fmax(fastest, r->of[f][p].flops / fmax(r->of[f][p].ns, 1));
        }
    bool few = most < 1e9, slow = fastest < 1e3;
    table_cells(&table, "of a rank", few ? "MFLOP" : "GFLOP", "busy", slow ? "GFLOP/s" : "TFLOP/s",
                "GB/s", "of its limit");
    for (int f = 0; f < N_FAMILIES; f++)
        for (int p = 0; p < N_PRECISIONS; p++) {
            const struct family_work *of = &r->of[f][p];
            if (of->flops <= 0 || of->ns <= 0)
                continue;
            double limit = roofline_limit(r, p, of->flops / of->bytes) / 1e9;
            table_cell(&table, "%s, %s", families[f], precisions[p]);
            table_cells(&table, NUMBER(of->flops / (few ? 1e6 : 1e9), 1), TIME((int64_t)of->ns),
                        NUMBER(of->flops / of->ns / (slow ? 1 : 1e3), 2),
                        NUMBER(of->bytes / of->ns, 1));
            table_fixed(&table, 100 * of->flops / of->ns / limit, 0, "%");
        }
    table_write(w, &table);
}

struct rank_wait {
    int rank, other;
    int64_t ns;
};

ORDER(by_wait, struct rank_wait, DESCENDING(ns) ?: ASCENDING(rank) ?: ASCENDING(other));

struct rank_waits {
    ARRAY(struct rank_wait) of;
};

/* Where a rank waits, by rank and by who is waited for. */
static void find_waits(struct rank_waits *waits, const struct dpro_replay_view *v)
{
    *waits = (struct rank_waits){.of = {0}};
    for (size_t i = 0; v->waited_for_ns && i < (size_t)v->n_ranks * v->n_ranks; i++)
        if (v->waited_for_ns[i] > 0)
            array_add(&waits->of, v->ranks[i / v->n_ranks].rank, v->ranks[i % v->n_ranks].rank,
                      v->waited_for_ns[i]);
}

/* Ranks by ranks, with as many digits as lines have room for; false: there is no room. */
static bool put_matrix(struct writer *w, const struct dpro_replay_view *v)
{
    int widths[TABLE_MOST];
    for (int digits = 2; v->n_ranks <= MATRIX_RANKS && digits >= 0; digits--) {
        struct table table = {.n_cols = (int)v->n_ranks + 1, .left = {true}};
        table_cells(&table, "rank, for");
        for (uint32_t r = 0; r < v->n_ranks; r++)
            table_cell(&table, "%d", v->ranks[r].rank);
        for (size_t i = 0; i < (size_t)v->n_ranks * v->n_ranks; i++) {
            if (i % v->n_ranks == 0)
                table_cell(&table, "%d", v->ranks[i / v->n_ranks].rank);
            table_fixed(&table, (double)v->waited_for_ns[i] / 1e6, digits, "");
        }
        if (table_widths(&table, widths) <= TABLE_COLUMNS) {
            table_write(w, &table);
            return true;
        }
        array_fini(&table.cells);
    }
    return false;
}

static void put_waits(struct writer *w, const struct dpro_replay_view *v)
{
    struct words longest = {.n = 0};
    struct rank_waits waits;
    find_waits(&waits, v);
    writer_text(w, waits.of.n > 0 ? "\nWho waits for whom, ms an iteration:\n" : "");
    if (waits.of.n > 0 && !put_matrix(w, v)) {
        array_sort(&waits.of, by_wait);
        EACH_OF (const struct rank_wait, wait, waits.of.at, MIN(waits.of.n, LONGEST_WAITS))
            words_add(&longest, "; ", "%d for %d: %s", wait->rank, wait->other,
                      NUMBER((double)wait->ns / 1e6, 2));
        table_paragraph(w, "", 2, "most: rank %s", longest.text);
    }
    array_fini(&waits.of);
}

void measures_write_text(struct writer *w, const struct dpro_measures *m)
{
    const struct pop *pop = &m->pop;
    writer_text(w, pop->known ? "\n" : "");
    if (pop->known)
        table_paragraph(w, "", 2,
                        "Parallel efficiency %s %% (POP): load balance %s %% x serialisation %s "
                        "%% x transfer "
                        "%s %%%s%s%s",
                        NUMBER(100 * pop->parallel, 1), NUMBER(100 * pop->load_balance, 1),
                        NUMBER(100 * pop->serialisation, 1), NUMBER(100 * pop->transfer, 1),
                        pop->launch >= 0 ? "; launch " : "",
                        pop->launch >= 0 ? NUMBER(100 * pop->launch, 1) : "",
                        pop->launch >= 0 ? " %" : "");
    put_roofline(w, &m->roofline);
    put_waits(w, m->replay);
}

/* ---- JSON ---- */

static void put_json_roofline(struct writer *w, const struct roofline *r)
{
    bool known = r->n_ranks > 0;
    writer_fields(w, FIXED_IF("mfu", !mfu_needs(r), r->mfu, 6), TEXT("mfu_needs", mfu_needs(r)),
                  FIXED_IF("mfu_counted", known, r->busy, 6), TEXT("device", r->device),
                  TEXT("peak_source", known ? peak_source(r) : NULL));
    writer_begin(w, "families", '[');
    for (int f = 0; f < N_FAMILIES; f++)
        for (int p = 0; p < N_PRECISIONS; p++) {
            const struct family_work *of = &r->of[f][p];
            double limit = roofline_limit(r, p, of->flops / MAX(of->bytes, 1));
            if (of->flops <= 0)
                continue;
            writer_row(w, TEXT("family", families[f]), TEXT("precision", precisions[p]),
                       FIXED("gflop", of->flops / 1e9, 6), FIXED("gbytes", of->bytes / 1e9, 6),
                       MS("busy_ms", (int64_t)of->ns),
                       FIXED_IF("tflops_per_s", of->ns > 0, of->flops / of->ns / 1e3, 6),
                       FIXED_IF("gbytes_per_s", of->ns > 0, of->bytes / of->ns, 6),
                       FIXED("peak_tflops_per_s", r->peak[p] / 1e12, 6),
                       FIXED("limit_tflops_per_s", limit / 1e12, 6),
                       TEXT("bound_by", limit < r->peak[p] ? "memory" : "arithmetic"));
        }
    writer_close(w, ']');
}

static void put_json_waits(struct writer *w, const struct dpro_replay_view *v)
{
    struct rank_waits waits;
    find_waits(&waits, v);
    WRITER_LIST_OF (w, "waiting", const struct rank_wait, wait, waits.of.at, waits.of.n)
        writer_row(w, INT("rank", wait->rank), INT("for", wait->other), MS("ms", wait->ns));
    array_fini(&waits.of);
}

void measures_write_json(struct writer *w, const struct dpro_measures *m,
                         const struct dpro_trace *trace)
{
    const struct pop *pop = &m->pop;
    writer_section(w, "measures", '{');
    writer_begin(w, "pop", '{');
    writer_fields(w, FIXED_IF("parallel_efficiency", pop->known, pop->parallel, 9),
                  FIXED_IF("load_balance", pop->known, pop->load_balance, 9),
                  FIXED_IF("serialisation", pop->known, pop->serialisation, 9),
                  FIXED_IF("transfer", pop->known, pop->transfer, 9),
                  FIXED_IF("launch", pop->known && pop->launch >= 0, pop->launch, 9));
    writer_close(w, '}');
    put_json_roofline(w, &m->roofline);
    put_json_waits(w, m->replay);
    straggler_write_json(w, trace);
    writer_close(w, '}');
}

/* ---- stragglers ---- */

enum { MAP_COLUMNS = 10, TEXT_ITEMS = 4, DIGITS = 9 };

ORDER_OF_INDICES(by_slowdown, double, COMPARE(*y, *x));

static void put_largest(struct writer *w, const struct slowdowns *of)
{
    struct words words = {.n = 0};
    SCRATCH uint32_t *order = sorted_indices(of->n, of->s, by_slowdown);
    for (size_t i = 0; i < of->n && i < TEXT_ITEMS; i++)
        if (of->names)
            words_add(&words, ", ", "%s %.3f", of->names[order[i]], of->s[order[i]]);
        else
            words_add(&words, ", ", "%u: %.3f", order[i], of->s[order[i]]);
    if (of->n > TEXT_ITEMS)
        words_add(&words, ", ", "%u more", of->n - TEXT_ITEMS);
    table_paragraph(w, "  ", 4, "by %s: %s", of->by, words.text);
}

/* Stages by data-parallel ranks, the worst of them where they are many. */
static void put_map(struct writer *w, const struct straggler_measures *m)
{
    struct table table = {.n_cols = 1 + (int)MIN(m->n_replicas, MAP_COLUMNS), .left = {true}};
    SCRATCH uint32_t *worst = sorted_indices(m->n_replicas, m->of[SLOW_REPLICAS].s, by_slowdown);
    bool all = m->n_replicas <= MAP_COLUMNS;
    table_cells(&table, "S_w");
    for (int c = 0; c + 1 < table.n_cols; c++)
        table_cell(&table, "dp %u", all ? (uint32_t)c : worst[c]);
    for (uint32_t s = 0; s < m->n_stages; s++) {
        table_cell(&table, "stage %u", s);
        for (int c = 0; c + 1 < table.n_cols; c++)
            table_fixed(&table, m->of_worker[(all ? (uint32_t)c : worst[c]) * m->n_stages + s], 3,
                        "");
    }
    table_write(w, &table);
}

static void put_measures(struct writer *w, const struct straggler_measures *m)
{
    table_paragraph(w, "", 2,
                    "Stragglers, by the definitions of OSDI'25: S %.3f. Without delays between ops "
                    "an iteration takes %.4g s, and %.4g s where each op takes what its type does "
                    "on average.%s",
                    m->s, m->t_s, m->ideal_s,
                    m->has_shares ? " What follows does not add up, and may be below 1."
                                  : " Below 1.03 nothing is shared out.");
    if (m->n_left_out > 0)
        table_paragraph(w, "  ", 4, "%u of %u steps are left out: workers did other ops in them",
                        m->n_left_out, m->n_left_out + m->n_steps);
    if (!m->has_shares)
        return;
    for (int i = 0; i < N_SLOWDOWNS; i++)
        put_largest(w, &m->of[i]);
    table_paragraph(w, "  ", 4,
                    "of what is lost, the slowest 3 %% of workers cost %.1f %% (M_W), the last "
                    "stage %.1f %% (M_S)",
                    100 * m->m_w, 100 * m->m_s);
    put_map(w, m);
}

void straggler_write_text(struct writer *w, const struct dpro_trace *trace)
{
    SCRATCH_ARENA struct arena arena = {0};
    struct straggler_measures m;
    if (!trace->stages)
        return;
    straggler_measures_find(trace->stages, &m, &arena);
    writer_text(w, "\n");
    if (m.unknown)
        table_paragraph(w, "", 2, "No measures of stragglers: %s.", m.unknown);
    else
        put_measures(w, &m);
}

void straggler_write_json(struct writer *w, const struct dpro_trace *trace)
{
    SCRATCH_ARENA struct arena arena = {0};
    struct straggler_measures m = {.unknown = "the recording is no timeline of stages"};
    if (trace->stages)
        straggler_measures_find(trace->stages, &m, &arena);
    writer_fields(w, TEXT("stragglers_unknown", m.unknown), FIXED_IF("S", !m.unknown, m.s, DIGITS),
                  FIXED_IF("M_W", m.has_shares, m.m_w, DIGITS),
                  FIXED_IF("M_S", m.has_shares, m.m_s, DIGITS));
    if (m.unknown) {
        writer_section(w, "S_t", '{');
        writer_close(w, '}');
        writer_section(w, "S_w", '[');
        writer_close(w, ']');
        return;
    }
    writer_fields(w, FIXED("T_ms", 1000 * m.t_s, DIGITS - 3),
                  FIXED("T_ideal_ms", 1000 * m.ideal_s, DIGITS - 3),
                  FIXED("recorded_ms", 1000 * m.recorded_s, DIGITS - 3),
                  INT("steps_left_out", m.n_left_out));
    EACH_OF (const struct slowdowns, of, m.of, N_SLOWDOWNS) {
        writer_section(w, of->key, of->names ? '{' : '[');
        for (uint32_t i = 0; i < of->n; i++) {
            if (of->names)
                writer_key(w, of->names[i]);
            writer_json_fixed(w, of->s[i], DIGITS);
        }
        writer_close(w, of->names ? '}' : ']');
    }
    WRITER_ROWS (w, "S_w", s, m.n_stages) {
        writer_open(w, '[');
        for (uint32_t r = 0; r < m.n_replicas; r++)
            writer_json_fixed(w, m.of_worker[r * m.n_stages + s], DIGITS);
        writer_close(w, ']');
    }
    WRITER_ROWS (w, "steps", s, m.n_steps)
        writer_row(w, INT("step", m.step[s]), FIXED("T_ms", 1000 * m.step_t_s[s], DIGITS - 3),
                   FIXED("S", m.step_s[s], DIGITS));
}
