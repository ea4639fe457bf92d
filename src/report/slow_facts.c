/* Iterations that take longer than the others, and whether they recur. What they do longer is a
 * cause of the diagnosis. */
#include "graph/graph.h"
#include "report/facts.h"
#include "report/table.h"
#include "report/words.h"

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
    slow->every = found.every;
    slow->are_first = found.are_first;
    write_words(f);
}
