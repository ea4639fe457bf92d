/* Iterations that take longer than the others, whether they recur, and what they do longer. */
#include "graph/graph.h"
#include "report/facts.h"
#include "report/table.h"
#include "report/words.h"

static bool facts_alike(const struct slow_cause *cause, const struct slow_kind *kind, bool is_gap,
                        const char *name)
{
    if (cause->is_gap || is_gap)
        return cause->is_gap && is_gap;
    return kind ? cause->kind == kind->what : !cause->kind && strcmp(cause->name, name) == 0;
}

ORDER(by_more, struct slow_cause, DESCENDING(more_ns) ?: strcmp(x->name, y->name));

/* Where none explains as much as the others together, all ops are one cause, as of an evaluation.
 */
static void join_ops(struct slow_facts *slow)
{
    struct slow_cause all = {.rank = -1};
    uint32_t n = 0;
    int64_t most = 0, sum = 0;
    EACH_OF (const struct slow_cause, cause, slow->causes, slow->n_causes) {
        bool is_op = !cause->kind && !cause->is_gap;
        most = is_op ? MAX(most, cause->more_ns) : most;
        sum += is_op ? cause->more_ns : 0;
    }
    if (most >= sum - most)
        return;
    EACH_OF (const struct slow_cause, cause, slow->causes, slow->n_causes) {
        if (cause->kind || cause->is_gap) {
            slow->causes[n++] = *cause;
            continue;
        }
        bool same = all.n_names == 0 || all.rank == cause->rank;
        all.name = all.name ?: cause->name;
        all.rank = same ? cause->rank : -1;
        all.n_iterations = MAX(all.n_iterations, cause->n_iterations);
        all.more_ns = MIN(all.more_ns + cause->more_ns, slow->more_ns);
        all.n_names++;
    }
    if (all.n_names > 0)
        slow->causes[n++] = all;
    slow->n_causes = n;
    qsort(slow->causes, n, sizeof *slow->causes, by_more);
}

/* Of each cause in each slow iteration the rank that it takes most of; of these the mean, less the
 * median of the other iterations: what another rank does in these makes none slow. */
static void find_causes(struct report_facts *f)
{
    const struct dpro_graph *g = f->report->graph;
    struct slow_facts *slow = &f->slow;
    size_t n = g->n_grown;
    struct slow_cause *causes = arena_array(&f->arena, n + 1, sizeof *causes);
    uint32_t *cause_of = arena_array(&f->arena, n + 1, sizeof *cause_of);
    int64_t *ns = arena_array(&f->arena, f->n_ranks + (size_t)1, sizeof *ns);
    int64_t *usual = arena_array(&f->arena, f->n_measured + (size_t)1, sizeof *usual);
    bool *is_slow = arena_array(&f->arena, f->n_measured + (size_t)1, sizeof *is_slow);
    int64_t *longest = arena_array(&f->arena, n + 1, sizeof *longest); /* of one name */
    for (uint32_t s = 0; s < slow->n; s++)
        is_slow[slow->samples[s]] = true;
    for (size_t i = 0; i < n; i++) {
        const char *name = strtab_get(&g->names, g->grown[i].name);
        const struct slow_kind *kind = graph_slow_kind(g, &g->grown[i]);
        uint32_t at = 0;
        while (at < slow->n_causes && !facts_alike(&causes[at], kind, g->grown[i].is_gap, name))
            at++;
        if (at == slow->n_causes) {
            slow->n_causes++;
            causes[at] = (struct slow_cause){.name = name,
                                             .kind = kind ? kind->what : NULL,
                                             .advice = kind ? kind->advice : NULL,
                                             .is_gap = g->grown[i].is_gap};
        }
        cause_of[i] = at;
        if (!is_slow[g->grown[i].sample])
            continue;
        int rank = f->ranks[g->grown[i].rank].time.rank;
        causes[at].rank = longest[at] == 0 || causes[at].rank == rank ? rank : -1;
        if (g->grown[i].more_ns > longest[at]) {
            longest[at] = g->grown[i].more_ns;
            causes[at].name = name;
        }
    }
    for (uint32_t c = 0; c < slow->n_causes; c++) {
        uint32_t n_usual = 0;
        for (uint32_t s = 0; s < f->n_measured; s++) {
            int64_t most = 0;
            memset(ns, 0, f->n_ranks * sizeof *ns);
            for (size_t i = 0; i < n; i++)
                if (cause_of[i] == c && g->grown[i].sample == s)
                    ns[g->grown[i].rank] += g->grown[i].more_ns;
            for (uint32_t r = 0; r < f->n_ranks; r++)
                most = MAX(most, ns[r]);
            if (!is_slow[s]) {
                usual[n_usual++] = most;
                continue;
            }
            causes[c].n_iterations += most > 0;
            causes[c].more_ns += most / slow->n;
        }
        causes[c].more_ns -= n_usual > 0 ? stats_median_i64(usual, n_usual) : 0;
    }
    qsort(causes, slow->n_causes, sizeof *causes, by_more);
    while (slow->n_causes > 0 && causes[slow->n_causes - 1].more_ns <= 0)
        slow->n_causes--;
    slow->causes = causes;
    if (slow->n_causes > 1)
        join_ops(slow);
    /* little beside what they take longer explains nothing */
    while (slow->n_causes > 0 && causes[slow->n_causes - 1].more_ns < slow->more_ns / 5)
        slow->n_causes--;
}

static const char *facts_ordinal(uint32_t n)
{
    uint32_t last = n % 100 / 10 == 1 ? 0 : n % 10;
    return last == 1 ? "st" : last == 2 ? "nd" : last == 3 ? "rd" : "th";
}

const char *facts_reason(const struct report_facts *f, const int64_t *more, int64_t *excess)
{
    static const char *const words[N_RANK_PARTS] = {"in forward", "in backward", "in the update",
                                                    "on input", [RANK_IDLE] = "idling"};
    int best = 0;
    for (int p = 1; p < N_RANK_PARTS; p++)
        if (words[p] && more[p] > more[best])
            best = p;
    *excess = more[best];
    return best == RANK_IDLE && facts_launch_bound(f) ? "idling for want of launches" : words[best];
}

/* "; rank 2 is late in them and spends 12.00 ms more in backward than late ranks in the others":
 * where as much holds up every iteration, the rank that it meets may make the difference. */
static void add_late_rank(const struct report_facts *f, struct words *line)
{
    const struct dpro_replay_view *v = f->replay;
    const struct slow_facts *slow = &f->slow;
    int64_t more[N_RANK_PARTS] = {0}, excess, n_usual = f->n_measured - slow->n;
    if (!v->ranks_in || !v->lateness || v->n_iterations != f->n_measured || v->n_ranks < 2)
        return;
    uint32_t rank = facts_last_rank(v, slow->samples[0]), n = 0;
    for (uint32_t i = 0; i < v->n_iterations; i++) {
        uint32_t last = facts_last_rank(v, i);
        bool is_slow = n < slow->n && slow->samples[n] == i;
        if (is_slow && last != rank)
            return;
        n += is_slow;
        for (int p = 0; p < N_RANK_PARTS; p++)
            more[p] += rank_part_ns(&v->ranks_in[(size_t)i * v->n_ranks + last], p) /
                       (is_slow ? (int64_t)slow->n : -n_usual);
    }
    const char *what = facts_reason(f, more, &excess);
    if (what && excess >= slow->more_ns / 2)
        words_add(line, ": ",
                  "rank %d is late in %s, with %s more %s than late ranks in the others",
                  f->ranks[rank].time.rank, slow->n == 1 ? "it" : "them", TIME(excess), what);
}

static void add_causes(struct report_facts *f, struct words *line)
{
    char name[128];
    for (uint32_t c = 0; c < f->slow.n_causes && c < 2; c++) {
        const struct slow_cause *cause = &f->slow.causes[c];
        columns_shorten(name, sizeof name, cause->name, 40);
        const char *before = c == 0 ? ": " : ", ";
        if (cause->kind)
            words_add(line, before, "%s of %s", TIME(cause->more_ns), cause->kind);
        else if (cause->is_gap)
            words_add(line, before,
                      "%s in which no op was recorded, before %s (such as Python that collects "
                      "garbage, logs or saves)",
                      TIME(cause->more_ns), name);
        else if (cause->n_names > 1)
            words_add(line, before, "%s more in %u ops, such as %s", TIME(cause->more_ns),
                      cause->n_names, name);
        else
            words_add(line, before, "%s more in %s", TIME(cause->more_ns), name);
        if (cause->rank >= 0 && f->n_ranks > 1)
            words_add(line, " ", "on rank %d", cause->rank);
        if (cause->n_iterations < f->slow.n)
            words_add(line, " ", "(in %u of them)", cause->n_iterations);
    }
    if (f->slow.n_causes == 0)
        words_add(line, "; ", "no op but communication and waiting took longer in %s",
                  f->slow.n == 1 ? "it" : "them");
    if (f->slow.n_causes == 0)
        add_late_rank(f, line);
}

static const char *find_advice(struct report_facts *f)
{
    const struct slow_facts *slow = &f->slow;
    const int64_t *number = f->report->graph->sample_number;
    char text[96];
    if (slow->are_first && number) /* which say little of the others */
        return arena_copy_string(
            &f->arena, text,
            (size_t)snprintf(text, sizeof text,
                             "leave out what may be warming up: --steps %lld:%lld",
                             (long long)number[slow->n], (long long)number[f->n_measured - 1]));
    return slow->n_causes > 0 && slow->causes[0].advice ? slow->causes[0].advice
                                                        : "find out what slow iterations do";
}

/* "every 4th iteration (3, 7, 11) takes 300 ms longer than the others' 81.9 ms: ..." */
static void write_words(struct report_facts *f)
{
    enum { MOST_NUMBERS = 6 };
    struct slow_facts *slow = &f->slow;
    const int64_t *number = f->report->graph->sample_number;
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
    add_causes(f, &line);
    slow->text = arena_copy_string(&f->arena, line.text, strlen(line.text));
}

void slow_find(struct report_facts *f)
{
    struct slow_facts *slow = &f->slow;
    const int64_t *ns = f->measured;
    struct slow_ones found = stats_slow_ones(ns, f->report->graph->sample_number, f->n_measured);
    slow->samples = arena_array(&f->arena, f->n_measured + (size_t)1, sizeof *slow->samples);
    for (uint32_t s = 0; s < f->n_measured; s++)
        if (ns[s] > found.usual_most)
            slow->samples[slow->n++] = s;
    if (slow->n == 0)
        return;
    slow->usual_ns = llround(found.usual.mean);
    slow->more_ns = llround(found.slow.mean - found.usual.mean);
    slow->lost_ns = slow->more_ns / f->n_measured * slow->n;
    slow->every = found.every;
    slow->are_first = found.are_first;
    find_causes(f);
    slow->advice = find_advice(f);
    write_words(f);
}
