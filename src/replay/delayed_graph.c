/* What-ifs of longer ops: KIND=RATIO, KIND=+MS, OP=RATIO, OP=+MS, the left side optionally with
 * @RANK or @FIRST-LAST. Each option is resolved once to its ops, then applied to every iteration's
 * durations. */
#include "replay/replay.h"

#include <errno.h>
#include <fnmatch.h>
#include <strings.h>

#define FORMS                                                                                      \
    "write KIND=RATIO, KIND=+MS, OP=RATIO or OP=+MS, with @RANK or @FIRST-LAST before the = for "  \
    "some ranks only"
#define MALFORMED "delay '%s': " FORMS

enum { MOST = 1000000 }; /* a ratio or milliseconds beyond this are a slip of the finger */

enum scope {
    SCOPE_NONE = -1,
    SCOPE_COMM = DPRO_N_OP_KINDS,
    SCOPE_COMPUTE,
    SCOPE_CPU,
    SCOPE_GPU,
    SCOPE_KERNELS, /* computation on GPUs */
    SCOPE_THREADS, /* CPU threads with the gaps between their ops */
    SCOPE_GAPS,    /* these alone, and those before communication */
    SCOPE_ALL
};

struct delay {
    bool adds;   /* add_ns counts, else ratio */
    bool gaps;   /* gaps before ops, too */
    bool spares; /* the ops themselves */
    bool spread; /* add_ns once a rank, over all its ops, else on each op */
    double ratio;
    int64_t add_ns;
    ARRAY(uint32_t) ops;
};

struct target { /* the left side */
    char *name; /* without the ranks; for a scope its word */
    int scope;  /* an op kind, an enum scope, or SCOPE_NONE: an op's name */
    bool all_ranks;
    long first_rank, last_rank;
};

static int find_scope(const char *word)
{
    static const struct {
        const char *word;
        int scope;
    } words[] = {{"COMM", SCOPE_COMM}, {"COMPUTE", SCOPE_COMPUTE}, {"CPU", SCOPE_CPU},
                 {"GPU", SCOPE_GPU},   {"KERNELS", SCOPE_KERNELS}, {"THREADS", SCOPE_THREADS},
                 {"GAPS", SCOPE_GAPS}, {"ALL", SCOPE_ALL}};
    for (int kind = 0; kind < DPRO_OP_IN; kind++) /* those that take time */
        if (strcasecmp(word, dpro_op_kind_name((enum dpro_op_kind)kind)) == 0)
            return kind;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strcasecmp(word, words[i].word) == 0)
            return words[i].scope;
    return SCOPE_NONE;
}

/* "...@3" or "...@0-7" at the end of text; anything else after an @ belongs to an op's name. */
static void split_ranks(struct target *t)
{
    t->all_ranks = true;
    char *at = strrchr(t->name, '@'), *end;
    if (!at || at[1] < '0' || at[1] > '9')
        return;
    errno = 0;
    long first = strtol(at + 1, &end, 10), last = first;
    if (*end == '-' && end[1] >= '0' && end[1] <= '9')
        last = strtol(end + 1, &end, 10);
    if (*end || errno)
        return;
    *at = '\0';
    t->all_ranks = false;
    t->first_rank = first < last ? first : last; /* "@7-0" means the same ranks */
    t->last_rank = first < last ? last : first;
}

static void parse_amount(const char *text, const char *value, struct delay *delay)
{
    char *end;
    delay->adds = *value == '+';
    if (*value == '-')
        fail_with(DPRO_EUSAGE,
                  "delay '%s': neither a ratio nor added milliseconds can be negative; to make ops "
                  "shorter, give a ratio below 1, such as 0.5",
                  text);
    char first = value[delay->adds]; /* strtod would take "nan", "inf" and spaces */
    double amount = strtod(value, &end);
    if (!((first >= '0' && first <= '9') || first == '.') || end == value || *end ||
        !isfinite(amount))
        fail_with(DPRO_EUSAGE, MALFORMED, text);
    if (amount > MOST)
        fail_with(DPRO_EUSAGE, "delay '%s': at most %d %s can be asked for; " FORMS, text, MOST,
                  delay->adds ? "ms" : "times");
    if (delay->adds)
        delay->add_ns = llround(amount * 1e6);
    else
        delay->ratio = amount;
}

static bool in_scope(const struct dpro_graph *g, uint32_t op, int scope)
{
    uint32_t device = g->device[op], kind = g->kind[op];
    int device_kind = device == DPRO_NO_DEVICE ? -1 : g->devices[device].kind;
    bool on_gpu = (g->flags[op] & GRAPH_OP_GPU) || device_kind == DPRO_DEVICE_GPU_STREAM;
    bool transfers = kind >= DPRO_OP_SEND && kind <= DPRO_OP_REDUCE;
    switch (scope) {
    case DPRO_OP_COLLECTIVE:
        return kind == DPRO_OP_COLLECTIVE || (transfers && graph_is_of_message(g, op));
    case SCOPE_COMM:
        return transfers || kind == DPRO_OP_COLLECTIVE;
    case SCOPE_COMPUTE:
        return kind <= DPRO_OP_UPDATE;
    case SCOPE_CPU:
    case SCOPE_GAPS:
        return device_kind >= 0 && !on_gpu;
    case SCOPE_THREADS:
        return device_kind == DPRO_DEVICE_CPU_THREAD && !on_gpu;
    case SCOPE_GPU:
        return on_gpu;
    case SCOPE_KERNELS:
        return on_gpu && kind <= DPRO_OP_UPDATE;
    case SCOPE_ALL:
        return true;
    default:
        return (int)kind == scope;
    }
}

/* Milliseconds are asked for of a rank's computation, which the CPU side of a GPU job is not, and
 * of its communication, where SENDs and RECVs run side by side: they go to the RECVs. */
static bool takes_share(const struct dpro_graph *g, uint32_t op, int scope, const uint8_t *has_gpu)
{
    if (graph_is_of_message(g, op) && g->kind[op] == DPRO_OP_SEND && scope != DPRO_OP_SEND)
        return false;
    return g->kind[op] > DPRO_OP_UPDATE || !has_gpu[g->rank[op]] || (g->flags[op] & GRAPH_OP_GPU);
}

static bool rank_wanted(const struct target *t, int rank)
{
    return t->all_ranks || (rank >= t->first_rank && rank <= t->last_rank);
}

/* Which names the left side means is decided once a name, not once an op. */
static void collect_ops(const struct dpro_graph *g, const struct target *t, const uint8_t *has_gpu,
                        struct arena *arena, struct delay *delay)
{
    bool by_name = t->scope == SCOPE_NONE;
    bool *matches = arena_array(arena, (size_t)g->names.n + 1, sizeof *matches);
    for (uint32_t id = 0; by_name && id < g->names.n; id++) {
        const char *name = strtab_get(&g->names, id);
        matches[id] = strcmp(name, t->name) == 0 || fnmatch(t->name, name, 0) == 0;
    }
    for (uint32_t op = 0; op < g->n_ops; op++)
        if (rank_wanted(t, g->ranks[g->rank[op]].rank) &&
            (by_name ? matches[g->name[op]] : in_scope(g, op, t->scope)) &&
            (!delay->spread || takes_share(g, op, t->scope, has_gpu)))
            array_push(&delay->ops, op);
}

/* Up to three names of ops that contain the text, or that the text contains. */
static void graph_suggest(const struct dpro_graph *g, const char *text, char *out, size_t size)
{
    const char *said[3] = {"", "", ""};
    size_t used = 0;
    out[0] = '\0';
    for (uint32_t op = 0, n = 0; op < g->n_ops && n < 3; op++) {
        const char *name = strtab_get(&g->names, g->name[op]);
        if (name == said[0] || name == said[1] || !*name ||
            (!strcasestr(name, text) && !strcasestr(text, name)))
            continue;
        int wrote =
            snprintf(out + used, size - used, "%s'%.80s'", n ? ", " : "; did you mean ", name);
        if (wrote < 0 || (size_t)wrote >= size - used)
            break;
        used += (size_t)wrote;
        said[n++] = name;
    }
}

static void matches_nothing(const struct dpro_graph *g, const char *text, const struct target *t)
{
    char names[300];
    bool rank_exists = t->all_ranks;
    for (uint32_t r = 0; r < g->n_ranks; r++)
        rank_exists |= rank_wanted(t, g->ranks[r].rank);
    if (!rank_exists)
        fail_with(DPRO_EUSAGE, "delay '%s': no such rank; the graph has ranks %d to %d", text,
                  g->n_ranks ? g->ranks[0].rank : 0,
                  g->n_ranks ? g->ranks[g->n_ranks - 1].rank : 0);
    if (t->scope != SCOPE_NONE)
        fail_with(DPRO_EUSAGE, "delay '%s': the graph has no %s ops%s", text, t->name,
                  t->all_ranks ? "" : " on those ranks");
    graph_suggest(g, t->name, names, sizeof names);
    fail_with(DPRO_EUSAGE,
              "delay '%s': '%s' is neither a kind (FW, BW, UPDATE, ..., COMM, COMPUTE, CPU, GPU, "
              "KERNELS, THREADS, GAPS, ALL) nor matches an op%s%s",
              text, t->name, t->all_ranks ? "" : " on those ranks", names);
}

static void parse_one(const struct dpro_graph *g, const char *text, const uint8_t *has_gpu,
                      struct arena *arena, struct delay *delay)
{
    const char *equals = text ? strrchr(text, '=') : NULL;
    if (!equals || equals == text || !equals[1])
        fail_with(DPRO_EUSAGE, MALFORMED, text ? text : "");
    parse_amount(text, equals + 1, delay);
    struct target target = {.name = arena_copy_string(arena, text, (size_t)(equals - text))};
    split_ranks(&target);
    target.scope = find_scope(target.name);
    delay->spares = target.scope == SCOPE_GAPS;
    delay->gaps = delay->spares || (target.scope == SCOPE_THREADS && !delay->adds);
    delay->spread = delay->adds && target.scope != SCOPE_NONE;
    if (!*target.name)
        fail_with(DPRO_EUSAGE, MALFORMED, text);
    if (target.scope == DPRO_OP_FW && g->hides_phases)
        fail_with(DPRO_EUSAGE,
                  "delay '%s': nothing recorded tells which ops are forward; delay COMPUTE, "
                  "KERNELS, or ops by their names",
                  text);
    collect_ops(g, &target, has_gpu, arena, delay);
    if (delay->ops.n == 0)
        matches_nothing(g, text, &target);
}

static int64_t graph_scaled(int64_t ns, double ratio)
{
    double product = (double)ns * ratio;
    return product >= (double)(INT64_MAX / 2) ? INT64_MAX / 2 : llround(product);
}

/* One rank's ops get add_ns in proportion to their durations (in equal parts if all are 0). Each
 * op's share is the difference of rounded running sums, so that the shares add up exactly. */
static void graph_spread(const uint32_t *ops, size_t n, int64_t add_ns, int64_t *dur_ns)
{
    __int128 total = 0, seen = 0, given = 0;
    for (size_t i = 0; i < n; i++)
        total += dur_ns[ops[i]];
    bool even = total == 0;
    if (even)
        total = (__int128)n;
    for (size_t i = 0; i < n; i++) {
        seen += even ? 1 : dur_ns[ops[i]];
        /* sums past 2^64 would overflow the product; a nanosecond does not matter there */
        __int128 share = total >> 64 ? (__int128)((long double)seen / (long double)total * add_ns)
                                     : seen * add_ns / total;
        dur_ns[ops[i]] = time_add(dur_ns[ops[i]], (int64_t)(share - given));
        given = share;
    }
}

/* The ops of one option, and what becomes of each. */
static void graph_apply(const struct delay *delay, const struct dpro_graph *graph, int64_t *dur_ns)
{
    const uint32_t *ops = delay->ops.at;
    size_t n = delay->ops.n;
    for (size_t i = 0; i < n && !delay->spread; i++)
        dur_ns[ops[i]] = delay->adds ? time_add(dur_ns[ops[i]], delay->add_ns)
                                     : graph_scaled(dur_ns[ops[i]], delay->ratio);
    for (size_t i = 0, end; i < n && delay->spread; i = end) { /* ops come rank by rank */
        end = i;
        while (end < n && graph->rank[ops[end]] == graph->rank[ops[i]])
            end++;
        graph_spread(ops + i, end - i, delay->add_ns, dur_ns);
    }
}

void graph_change_times(struct dpro_graph *graph, bool gaps, times_change *change, void *arg,
                        struct arena *arena)
{
    struct {
        int64_t **ns;
        uint32_t n;
        bool gaps;
    } all[] = {{&graph->dur_ns, 1, false},
               {&graph->sample_dur_ns, graph->n_samples, false},
               {&graph->lead_dur_ns, 1, false},
               {&graph->gap_ns, 1, true},
               {&graph->sample_gap_ns, graph->n_samples, true},
               {&graph->lead_gap_ns, 1, true}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        int64_t **ns = all[i].ns;
        if (!*ns || (all[i].gaps && !gaps))
            continue;
        *ns = arena_copy(arena, *ns, (size_t)all[i].n * graph->n_ops, sizeof **ns);
        for (uint32_t s = 0; s < all[i].n; s++)
            change(arg, all[i].gaps, *ns + (size_t)s * graph->n_ops);
    }
}

struct delays {
    const struct dpro_graph *graph;
    const struct delay *all;
    size_t n;
};

static void delay_times(void *arg, bool gaps, int64_t *ns)
{
    const struct delays *delays = arg;
    EACH_OF (const struct delay, delay, delays->all, delays->n)
        if (gaps ? delay->gaps : !delay->spares)
            graph_apply(delay, delays->graph, ns);
}

/* Horovod's groups, of whichever iterations, take longer by communication's ratio. */
static void delay_cycles(const struct dpro_graph *graph, struct arena *arena,
                         struct dpro_graph *delayed)
{
    struct graph_cycles *cycles = &delayed->cycles;
    double before = 0, after = 0;
    if (cycles->n_reductions == 0)
        return;
    for (uint32_t op = 0; op < graph->n_ops; op++)
        if (graph->kind[op] == DPRO_OP_COLLECTIVE) {
            before += (double)graph->dur_ns[op];
            after += (double)delayed->dur_ns[op];
        }
    double ratio = before > 0 ? after / before : 1;
    cycles->reductions = arena_alloc(arena, cycles->n_reductions * sizeof *cycles->reductions);
    cycles->negotiate_ns = graph_scaled(cycles->negotiate_ns, ratio);
    for (uint32_t i = 0; i < cycles->n_reductions; i++) {
        cycles->reductions[i] = graph->cycles.reductions[i];
        cycles->reductions[i].took_ns = graph_scaled(cycles->reductions[i].took_ns, ratio);
    }
}

void delayed_graph(const struct dpro_graph *graph, const char *const *options, size_t n,
                   double pace, struct arena *arena, struct dpro_graph *delayed)
{
    uint8_t *has_gpu = arena_array(arena, (size_t)graph->n_ranks + graph->n_servers + 1, 1);
    struct delay *delays = arena_array(arena, n + 1, sizeof *delays);
    bool gaps = false;
    size_t n_asked = n;
    *delayed = *graph;
    n = 0;
    for (uint32_t op = 0; op < graph->n_ops; op++)
        has_gpu[graph->rank[op]] |= (graph->flags[op] & GRAPH_OP_GPU) != 0;
    for (size_t i = 0; i < n_asked; i++) {
        struct delay *delay = &delays[n];
        *delay = (struct delay){.ratio = 0};
        parse_one(graph, options[i], has_gpu, arena, delay);
        delay->add_ns = graph_scaled(delay->add_ns, 1 / pace);
        if (delay->adds ? delay->add_ns != 0 : delay->ratio != 1)
            n++;
        else
            array_fini(&delay->ops);
    }
    if (n == 0) /* all is as it was */
        return;
    for (size_t i = 0; i < n; i++)
        gaps |= delays[i].gaps;
    graph_change_times(delayed, gaps, delay_times, &(struct delays){graph, delays, n}, arena);
    delay_cycles(graph, arena, delayed);
    for (size_t i = 0; i < n; i++)
        array_fini(&delays[i].ops);
}
