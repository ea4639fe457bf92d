/* What the ranks' devices hold, worked out once, and as text and as JSON. */

#include "graph/graph.h"
#include "ingest/trace.h"
#include "report/facts.h"
#include "report/table.h"
#include "report/words.h"

/* ---- facts ---- */

#define ALIKE 0.01 /* of the highest peak */

static double share_pct(uint64_t part, uint64_t whole)
{
    return whole > 0 ? 100.0 * (double)part / (double)whole : NAN;
}

ORDER_OF_INDICES(by_size, uint64_t, COMPARE(*y, *x));

static void sort_categories(struct memory_fact *fact)
{
    uint64_t *held = fact->memory.by_category;
    SCRATCH uint32_t *order = sorted_indices(DPRO_N_MEMORY_CATEGORIES, held, by_size);
    while (fact->n_categories < DPRO_N_MEMORY_CATEGORIES && held[order[fact->n_categories]] > 0) {
        fact->categories[fact->n_categories] = (uint8_t)order[fact->n_categories];
        fact->n_categories++;
    }
}

/* dpro's recorder was there, but notes neither allocations nor tensors when it is asked to attach
 * to a job, or the job ends early. */
static bool was_not_recorded(const struct report_facts *f)
{
    const struct dpro_trace *trace = f->report->trace;
    bool recorded = false;
    EACH_OF (const struct trace_rank, rank, trace->ranks, trace->n_ranks) {
        recorded |= rank->recording != NULL;
        if (rank->n_allocations > 0 || rank->n_et_nodes > 0)
            return false;
    }
    return recorded && strcmp(f->framework, "pytorch") == 0;
}

static void count_settings(struct memory_facts *all, const struct dpro_rank_memory *memory)
{
    if (!memory->on_gpu)
        return;
    all->n_assumed += memory->allocator == DPRO_ALLOCATOR_ASSUMED;
    all->n_strange += memory->allocator == DPRO_ALLOCATOR_STRANGE;
    if (memory->refused_bytes > 0 && all->n_refused++ == 0)
        all->refused = all->n_ranks;
}

void memory_find(struct report_facts *f)
{
    struct memory_facts *all = &f->memory;
    all->ranks = arena_array(&f->arena, (size_t)f->n_ranks + 1, sizeof *all->ranks);
    for (uint32_t r = 0; r < f->n_ranks; r++) {
        struct dpro_rank_memory memory = f->replay->memory[r];
        struct memory_fact *fact = &all->ranks[all->n_ranks];
        if (memory.source >= DPRO_MEMORY_UNKNOWN) {
            all->n_unknown++;
            continue;
        }
        *fact = (struct memory_fact){.memory = memory, .index = r, .error_pct = NAN};
        bool recorded = !f->report->what_if && memory.measured_reserved_bytes > 0;
        uint64_t reserved_bytes =
            recorded ? memory.measured_reserved_bytes : memory.reserved_peak_bytes;
        fact->capacity_pct =
            share_pct(MAX(memory.peak_bytes, reserved_bytes), memory.capacity_bytes);
        if (!f->report->what_if)
            fact->error_pct = share_pct(memory.peak_bytes, memory.measured_peak_bytes) - 100;
        sort_categories(fact);
        all->n_of_source[memory.source]++;
        count_settings(all, &memory);
        all->n_bare += memory.source == DPRO_MEMORY_ALLOCATIONS
                           ? memory.measured_peak_bytes == 0
                           : memory.by_category[DPRO_MEMORY_PARAMETER] == 0;
        if (memory.peak_bytes > all->ranks[all->highest].memory.peak_bytes)
            all->highest = all->n_ranks;
        if (memory.peak_bytes < all->ranks[all->lowest].memory.peak_bytes)
            all->lowest = all->n_ranks;
        all->n_ranks++;
    }
    double most = (double)all->ranks[all->highest].memory.peak_bytes;
    double least = (double)all->ranks[all->lowest].memory.peak_bytes;
    all->alike = most - least <= ALIKE * most;
    all->can_record = all->n_ranks == 0 && was_not_recorded(f);
}

const struct memory_fact *memory_highest(const struct report_facts *f)
{
    return f->memory.n_ranks > 0 ? &f->memory.ranks[f->memory.highest] : NULL;
}

const char *memory_category_words(enum dpro_memory_category category)
{
    return category == DPRO_MEMORY_STATE ? "optimizer state" : dpro_memory_category_name(category);
}

#define ALL_SHOWN    4   /* ranks whose peaks differ; of more, the highest and the lowest */
#define MOST_HOLDERS 500 /* of a rank, in JSON; fewer where the ranks are many */
#define MOST_IN_ALL  16000

/* What a source can't know. */
static const char *const source_notes[DPRO_MEMORY_UNKNOWN] = {
    [DPRO_MEMORY_ALLOCATIONS] =
        "from the profile's list of what was allocated and freed: bytes that were asked for; what "
        "libraries keep to themselves is not in it",
    [DPRO_MEMORY_EXECUTION_TRACE] =
        "from the storages of the execution trace's tensors, each from its first to its last use: "
        "what operators take and give back within themselves is not in it",
};

/* What else is not known, and of how many ranks. */
static const struct {
    size_t at;
    const char *text;
} notes[] = {
    {offsetof(struct memory_facts, n_bare), "it leaves out what was there before the profile "
                                            "began, such as parameters and the optimizer's state"},
    {offsetof(struct memory_facts, n_assumed),
     "reserved memory is simulated with the allocator's default settings: the trace does not tell "
     "the job's"},
    {offsetof(struct memory_facts, n_strange),
     "reserved memory is unknown: the allocator is not PyTorch's own, or has settings that dpro "
     "does not know"},
};
#define N_NOTES (sizeof notes / sizeof *notes)

static uint32_t n_of_note(const struct memory_facts *all, size_t i)
{
    return *(const uint32_t *)((const char *)all + notes[i].at);
}

/* NULL: it is none of an iteration's. */
static const char *phase_word(enum dpro_op_kind phase)
{
    static const char *const words[DPRO_N_OP_KINDS] = {[DPRO_OP_FW] = "forward",
                                                       [DPRO_OP_BW] = "backward",
                                                       [DPRO_OP_UPDATE] = "update",
                                                       [DPRO_OP_INPUT] = "input",
                                                       [DPRO_OP_COLLECTIVE] = "communication"};
    return phase < DPRO_N_OP_KINDS ? words[phase] : NULL;
}

/* ---- text ---- */

static void say_place(struct words *line, const struct report_facts *f,
                      const struct dpro_rank_memory *m)
{
    const char *phase = phase_word(m->peak_phase);
    char name[NAME_COLUMNS * 4];
    if (m->peak_op == DPRO_NO_OP) {
        words_add(line, ", ", "when the iteration begins");
        return;
    }
    words_add(line, ", ", "%s into the iteration", TIME(m->peak_ns));
    if (phase)
        words_add(line, ", ", "in %s", phase);
    if (m->peak_module) {
        columns_shorten(name, sizeof name, m->peak_module[0] ? m->peak_module : "the model", 40);
        words_add(line, phase ? " " : ", ", "of %s", name);
    }
    columns_shorten(name, sizeof name, dpro_graph_op(f->g, m->peak_op).name, 40);
    words_add(line, " ", "(%s)", name);
}

static void say_holders(struct words *line, const struct memory_fact *fact)
{
    enum { NAMED = 3 };
    const struct dpro_rank_memory *m = &fact->memory;
    for (uint32_t i = 0; i < fact->n_categories && i < NAMED; i++) {
        uint8_t c = fact->categories[i];
        words_add(line, i ? ", " : "; ", "%s %s (%s %%)", memory_category_words(c),
                  BYTES_TEXT(m->by_category[c]),
                  NUMBER(100 * (double)m->by_category[c] / (double)m->peak_bytes, 0));
    }
}

/* Of the peak: less is in every job, such as a list of losses. */
enum { LEAST_KEPT = 1000 };

static void write_rank(struct writer *w, const struct report_facts *f, const char *who,
                       const struct memory_fact *fact)
{
    const struct dpro_rank_memory *m = &fact->memory;
    struct words line = {.n = 0};
    words_add(&line, "", "%s: %s", who, BYTES_TEXT(m->peak_bytes));
    say_place(&line, f, m);
    say_holders(&line, fact);
    if (m->measured_peak_bytes > 0)
        words_add(&line, "; ", "measured%s %s", f->report->what_if ? " without the change" : "",
                  BYTES_TEXT(m->measured_peak_bytes));
    if (!isnan(fact->error_pct))
        words_add(&line, " ", "(%s %%)", SIGNED(fact->error_pct));
    if (m->growth_bytes > 0)
        words_add(&line, "; ", "grows by %s a step", BYTES_TEXT(m->growth_bytes));
    if (m->growth_bytes > 0 && m->growth_since >= 0)
        words_add(&line, " ", "since iteration %lld", (long long)m->growth_since);
    else if (m->growth_bytes > 0)
        words_add(&line, " ", "from the first recorded step on");
    if (m->growth_bytes > 0)
        words_add(&line, ", ", "which is not given back (a leak?)");
    if (m->kept_bytes > m->peak_bytes / LEAST_KEPT)
        words_add(
            &line, "; ",
            "%s that the first of two recorded steps took are not given back: two steps can't "
            "tell whether memory grows, record more",
            BYTES_TEXT(m->kept_bytes));
    if (m->measured_reserved_bytes > 0)
        words_add(&line, "; ", "the allocator reserved %s when it was recorded",
                  BYTES_TEXT(m->measured_reserved_bytes));
    if (m->reserved_peak_bytes > 0 && (f->report->what_if || m->measured_reserved_bytes == 0))
        words_add(&line, "; ", "the allocator reserves %s", BYTES_TEXT(m->reserved_peak_bytes));
    if (!isnan(fact->capacity_pct))
        words_add(&line, "; ", "the device has %s (%s %% of it used)",
                  BYTES_TEXT(m->capacity_bytes), NUMBER(fact->capacity_pct, 1));
    table_wrapped(w, " ", 4, line.text);
}

static void write_ranks(struct writer *w, const struct report_facts *f)
{
    const struct memory_facts *all = &f->memory;
    char who[64];
    if (all->alike && all->n_ranks > 1) {
        snprintf(who, sizeof who, "all %u ranks alike", all->n_ranks);
        write_rank(w, f, who, &all->ranks[all->highest]);
        return;
    }
    for (uint32_t i = 0; i < all->n_ranks; i++) {
        bool many = all->n_ranks > ALL_SHOWN, highest = i == all->highest;
        if (many && !highest && i != all->lowest)
            continue;
        snprintf(who, sizeof who, "rank %d%s", all->ranks[i].memory.rank,
                 !many     ? ""
                 : highest ? ", the highest of all"
                           : ", the lowest");
        write_rank(w, f, who, &all->ranks[i]);
    }
}

static void write_refused(struct writer *w, const struct report_facts *f)
{
    const struct memory_facts *all = &f->memory;
    if (all->n_refused == 0)
        return;
    const struct dpro_rank_memory *m = &all->ranks[all->refused].memory;
    struct words line = {.n = 0};
    char name[NAME_COLUMNS * 4];
    words_add(&line, "", "would not fit the device: rank %d finds no room for a block of %s",
              m->rank, BYTES_TEXT(m->refused_bytes));
    if (m->refused_op == DPRO_NO_OP) {
        words_add(&line, " ", "before the iteration");
    } else {
        columns_shorten(name, sizeof name, dpro_graph_op(f->g, m->refused_op).name, 40);
        words_add(&line, " ", "in %s", name);
    }
    if (all->n_refused > 1)
        words_add(&line, "; ", "%u other rank%s %s not fit either", all->n_refused - 1,
                  PLURAL(all->n_refused - 1), all->n_refused > 2 ? "do" : "does");
    table_wrapped(w, " ", 4, line.text);
}

void memory_write_text(struct writer *w, const struct report_facts *f)
{
    const struct memory_facts *all = &f->memory;
    if (all->can_record)
        table_wrapped(w, "\nMemory: ", 2,
                      "not known. 'dpro profile' records it in two steps after the timed ones; "
                      "'dpro attach' does not.");
    if (all->n_ranks == 0)
        return;
    writer_text(w, "\nMemory: the most that a rank's device holds\n");
    write_ranks(w, f);
    write_refused(w, f);
    for (int s = 0; s < DPRO_MEMORY_UNKNOWN; s++) {
        char some[32];
        snprintf(some, sizeof some, "%u rank%s: ", all->n_of_source[s],
                 PLURAL(all->n_of_source[s]));
        if (all->n_of_source[s] > 0)
            table_paragraph(w, " ", 2, "%s%s", all->n_of_source[s] < all->n_ranks ? some : "",
                            source_notes[s]);
    }
    for (size_t i = 0; i < N_NOTES; i++) {
        uint32_t n = n_of_note(all, i);
        if (n == all->n_ranks)
            table_wrapped(w, " ", 2, notes[i].text);
        else if (n > 0)
            table_paragraph(w, " ", 2, "%u rank%s: %s", n, PLURAL(n), notes[i].text);
    }
    if (all->n_unknown > 0)
        table_paragraph(w, " ", 2, "the memory of %u of the %u ranks was not recorded",
                        all->n_unknown, all->n_unknown + all->n_ranks);
}

/* ---- JSON ---- */

#define BYTES(key, value)       INT(key, MIN(value, (uint64_t)INT64_MAX))
#define BYTES_KNOWN(key, value) ((value) > 0 ? BYTES(key, value) : NUL(key))

static void write_holders(struct writer *w, const struct report_facts *f,
                          const struct memory_fact *fact)
{
    uint32_t n = fact->memory.n_holders, most = MAX(MOST_IN_ALL / f->memory.n_ranks, 16u);
    WRITER_LIST_OF (w, "holders", const struct dpro_memory_holder, holder, fact->memory.holders,
                    MIN(n, MIN(most, (uint32_t)MOST_HOLDERS)))
        writer_object(w, TEXT("module", holder->module),
                      TEXT("category", dpro_memory_category_name(holder->category)),
                      BYTES("bytes", holder->size_bytes), INT("blocks", holder->n_blocks));
    writer_fields(w, INT("holders_in_all", n));
}

void memory_write_categories(struct writer *w, const char *key, const struct memory_fact *fact)
{
    writer_begin(w, key, '{');
    for (uint32_t i = 0; i < fact->n_categories; i++)
        writer_fields(w, BYTES(dpro_memory_category_name(fact->categories[i]),
                               fact->memory.by_category[fact->categories[i]]));
    writer_close(w, '}');
}

static void write_json_rank(struct writer *w, const struct report_facts *f,
                            const struct memory_fact *fact)
{
    const struct dpro_rank_memory *m = &fact->memory;
    bool in_op = m->peak_op != DPRO_NO_OP;
    writer_item(w);
    writer_fields(
        w, INT("rank", m->rank), TEXT("source", dpro_memory_source_name(m->source)),
        BYTES("peak_bytes", m->peak_bytes),
        BYTES_KNOWN("reserved_peak_bytes", m->reserved_peak_bytes),
        BYTES_KNOWN("measured_peak_bytes", m->measured_peak_bytes),
        BYTES_KNOWN("growth_bytes", m->growth_bytes),
        INT_IF("grows_since", m->growth_bytes > 0 && m->growth_since >= 0, m->growth_since),
        BYTES_KNOWN("kept_bytes", m->kept_bytes),
        BYTES_KNOWN("measured_reserved_peak_bytes", m->measured_reserved_bytes),
        FIXED("error_pct", fact->error_pct, 3));
    writer_object_at(w, "at", MS_IF("ms", in_op, m->peak_ns),
                     TEXT("phase", phase_word(m->peak_phase)),
                     TEXT("op", in_op ? dpro_graph_op(f->g, m->peak_op).name : NULL),
                     TEXT("module", m->peak_module));
    memory_write_categories(w, "by_category", fact);
    writer_fields(w, BYTES_KNOWN("capacity_bytes", m->capacity_bytes));
    write_holders(w, f, fact);
    writer_close(w, '}');
}

void memory_write_json(struct writer *w, const struct report_facts *f)
{
    const struct memory_facts *all = &f->memory;
    int source = DPRO_MEMORY_UNKNOWN - 1; /* the worst that tells of a rank */
    if (all->n_ranks == 0) {
        writer_newline(w);
        writer_fields(w, NUL("memory"));
        return;
    }
    struct words note = {.n = 0};
    while (source > 0 && all->n_of_source[source] == 0)
        source--;
    words_add(&note, "", "%s", source_notes[source]);
    for (size_t i = 0; i < N_NOTES; i++)
        if (n_of_note(all, i) > 0)
            words_add(&note, "; ", "%s", notes[i].text);
    writer_section(w, "memory", '{');
    writer_fields(w, TEXT("source", dpro_memory_source_name(source)), TEXT("note", note.text));
    WRITER_LIST (w, "ranks", i, all->n_ranks)
        write_json_rank(w, f, &all->ranks[i]);
    writer_close(w, '}');
}
