/* The measures of stragglers as text and as JSON. */
#include "report/measures_report.h"

#include "diagnose/straggler_measures.h"
#include "ingest/trace.h"
#include "report/table.h"
#include "report/words.h"

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
    struct straggler_measures m;
    if (!trace->stages)
        return;
    straggler_measures_find(trace->stages, &m, &arena);
    writer_fields(w, TEXT("stragglers_unknown", m.unknown));
    if (m.unknown)
        return;
    writer_fields(
        w, FIXED("S", m.s, DIGITS), FIXED_IF("M_W", m.has_shares, m.m_w, DIGITS),
        FIXED_IF("M_S", m.has_shares, m.m_s, DIGITS), FIXED("T_ms", 1000 * m.t_s, DIGITS - 3),
        FIXED("T_ideal_ms", 1000 * m.ideal_s, DIGITS - 3),
        FIXED("recorded_ms", 1000 * m.recorded_s, DIGITS - 3), INT("steps_left_out", m.n_left_out));
    EACH_OF (const struct slowdowns, of, m.of, N_SLOWDOWNS) {
        writer_section(w, of->key, of->names ? '{' : '[');
        for (uint32_t i = 0; i < of->n; i++) {
            if (of->names)
                writer_key(w, of->names[i]);
            writer_json_fixed(w, of->s[i], DIGITS);
        }
        writer_close(w, of->names ? '}' : ']');
    }
    writer_section(w, "S_w", '[');
    for (uint32_t s = 0; s < m.n_stages; s++) {
        writer_open(w, '[');
        for (uint32_t r = 0; r < m.n_replicas; r++)
            writer_json_fixed(w, m.of_worker[r * m.n_stages + s], DIGITS);
        writer_close(w, ']');
    }
    writer_close(w, ']');
    writer_section(w, "steps", '[');
    for (uint32_t s = 0; s < m.n_steps; s++)
        writer_row(w, INT("step", m.step[s]), FIXED("T_ms", 1000 * m.step_t_s[s], DIGITS - 3),
                   FIXED("S", m.step_s[s], DIGITS));
    writer_close(w, ']');
}
