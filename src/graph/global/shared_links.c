/* Which messages of a link go one after the other, and which side by side.
 *
 * As with TCP, connections share a link evenly, and each sends one message after the other: a small
 * one does not wait for a large one of another connection. So workers and servers have a device for
 * each connection in either direction of a link. What a rank of a collective sends over several
 * connections is the work of one thread, in its order, and has one device. */

#include "graph/global/assembly.h"

/* A message at one of its ends. */
struct passage {
    uint32_t direction; /* twice the link, one more for what comes in */
    uint32_t from, to, stream;
    uint32_t message;
};

static int compare_lines(const struct passage *x, const struct passage *y)
{
    return ASCENDING(direction) ?: ASCENDING(from) ?: ASCENDING(to) ?: ASCENDING(stream);
}

ORDER(by_line, struct passage, compare_lines(x, y) ?: ASCENDING(message));

static size_t list_passages(const struct assembly *a, struct passage *passages)
{
    const struct join *join = a->join;
    size_t n = 0;
    for (uint32_t m = 0; m < a->messages->all.n; m++) {
        const struct message *message = &a->messages->all.at[m];
        const struct joined *joined = &join->joined.at[message->joined];
        for (uint32_t in = 0; in < 2; in++) {
            uint32_t link = in ? message->rx : message->tx;
            if (link == NO_ID)
                continue;
            passages[n] = (struct passage){.direction = 2 * link + in, .message = m};
            if (joined->has_servers) {
                passages[n].from = joined_rank(join, joined, message->from);
                passages[n].to = joined_rank(join, joined, message->to);
                passages[n].stream = message->stream;
            }
            n++;
        }
    }
    qsort(passages, n, sizeof *passages, by_line);
    return n;
}

static void add_line(struct assembly *a, const struct passage *passage)
{
    struct assembly_line line = {.direction = passage->direction,
                                 .from = passage->from,
                                 .to = passage->to,
                                 .first = (uint32_t)a->lines.n,
                                 .n_sharing = 1};
    if (a->lines.n > 0 && a->lines.at[a->lines.n - 1].direction == line.direction) {
        line.first = a->lines.at[a->lines.n - 1].first;
        line.n_sharing = (uint32_t)a->lines.n - line.first + 1;
    }
    array_push(&a->lines, line);
    for (uint32_t l = line.first; l < a->lines.n; l++)
        a->lines.at[l].n_sharing = line.n_sharing;
}

void assembly_find_lines(struct assembly *a)
{
    size_t n_ends = a->messages->all.n * 2;
    SCRATCH struct passage *passages = mem_alloc(n_ends * sizeof *passages);
    a->line_of = arena_alloc(&a->scratch, n_ends * sizeof *a->line_of);
    size_t n = list_passages(a, passages);
    for (size_t i = 0; i < n; i++) {
        if (i == 0 || compare_lines(&passages[i - 1], &passages[i]) != 0)
            add_line(a, &passages[i]);
        a->line_of[passages[i].message * 2 + passages[i].direction % 2] = (uint32_t)a->lines.n - 1;
    }
}

/* ---- what each message takes of a link that it shares ---- */

/* One begins to take a line, or ends to. */
struct links_moment {
    uint32_t direction;
    int64_t at_ns;
    size_t use;
    bool ends;
};

ORDER(compare_moments, struct links_moment,
      ASCENDING(direction) ?: ASCENDING(at_ns) ?: ASCENDING(use) ?: ASCENDING(ends));

/* While n take it each gets an n-th: what one got is how far the sum of such n-ths went on between
 * its begin and its end. */
void lines_share(const struct assembly *a, const struct line_use *uses, size_t n)
{
    enum { FRACTIONS = 1024 }; /* of a nanosecond */
    typedef unsigned __int128 wide;
    SCRATCH struct links_moment *moments = mem_alloc(n * 2 * sizeof *moments);
    SCRATCH wide *begun = mem_alloc(n * sizeof *begun);
    wide got = 0;
    SCRATCH uint32_t *n_on =
        mem_array(a->lines.n, sizeof *n_on); /* a line takes its part but once */
    for (size_t i = 0; i < n; i++)
        for (int ends = 0; ends < 2; ends++)
            moments[2 * i + (size_t)ends] =
                (struct links_moment){a->lines.at[uses[i].line].direction,
                                      ends ? uses[i].end_ns : uses[i].start_ns, i, ends};
    qsort(moments, n * 2, sizeof *moments, compare_moments);
    for (size_t i = 0, n_taking = 0; i < n * 2; i++) {
        const struct links_moment *moment = &moments[i];
        if (n_taking > 0)
            got += (wide)((uint64_t)moment->at_ns - (uint64_t)moments[i - 1].at_ns) * FRACTIONS /
                   n_taking;
        uint32_t *on = &n_on[uses[moment->use].line];
        if (moment->ends)
            n_taking -= --*on == 0;
        else
            n_taking += ++*on == 1;
        if (!moment->ends)
            begun[moment->use] = got;
        else if (uses[moment->use].dur_ns)
            *uses[moment->use].dur_ns =
                (int64_t)((got - begun[moment->use] + FRACTIONS / 2) / FRACTIONS);
    }
}
