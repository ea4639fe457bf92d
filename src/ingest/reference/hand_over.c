/* ingest/reference/hand_over.c: when a profile's ops handed tensors over to Horovod, and which
 * steps all ranks have.
 *
 * The op that communicates a tensor runs on no device of the profile. But it is a node of the
 * graph, and what it takes was there when the last op behind it that ran was over. */
#include <stdlib.h>
#include <string.h>

#include "ingest/load.h"
#include "ingest/reference/reference.h"

static const char *text_of(const struct source *source, uint32_t id)
{
    return strtab_get(&source->part.names, id);
}

struct step {
    int64_t start_ns, end_ns;
    int32_t number;
};
typedef ARRAY(struct step) steps;

static int by_start(const void *a, const void *b)
{
    const struct step *x = a, *y = b;
    return x->start_ns < y->start_ns ? -1 : x->start_ns > y->start_ns;
}

static int list_steps(const struct source *profile, steps *list)
{
    for (const struct span_block *block = profile->part.first_block; block; block = block->next)
        for (uint32_t i = 0; i < block->n; i++) {
            const struct trace_span *span = &block->at[i];
            struct step step = {span->start_ns, INT64_MAX, span->sequence};
            if (span->kind == SPAN_STEP && array_push(list, step) < 0)
                return -1;
        }
    if (list->n > 1)
        qsort(list->at, list->n, sizeof *list->at, by_start);
    for (size_t s = 0; s + 1 < list->n; s++)
        list->at[s].end_ns = list->at[s + 1].start_ns;
    return 0;
}

static size_t step_at(const steps *list, int64_t ns)
{
    size_t low = 0, high = list->n;
    while (low < high) {
        size_t mid = (low + high) / 2;
        if (list->at[mid].start_ns <= ns)
            low = mid + 1;
        else
            high = mid;
    }
    return low == 0 || ns >= list->at[low - 1].end_ns ? SIZE_MAX : low - 1;
}

/* Of each node the last time that it ran in each step. */
struct last_runs {
    const struct trace_span **at; /* [node * n_steps + step] */
    size_t n_nodes, n_steps;
};

static int find_last_runs(const struct source *profile, const struct source *graph,
                          const steps *list, struct last_runs *runs)
{
    struct map node_of = {0}; /* name id in the graph + 1 -> node */
    int status = 0;
    runs->n_nodes = graph->part.dfg_nodes.n;
    runs->n_steps = list->n;
    runs->at = calloc(runs->n_nodes * runs->n_steps + 1, sizeof *runs->at);
    if (!runs->at)
        return -1;
    for (size_t n = 0; n < runs->n_nodes && status == 0; n++)
        status = map_set(&node_of, (uint64_t)graph->part.dfg_nodes.at[n].name + 1, n);
    for (const struct span_block *block = profile->part.first_block; block && status == 0;
         block = block->next)
        for (uint32_t i = 0; i < block->n; i++) {
            const struct trace_span *span = &block->at[i];
            size_t step = step_at(list, span->start_ns);
            const char *name = text_of(profile, span->name);
            uint64_t node;
            uint32_t id = span->kind == SPAN_CPU_OP
                              ? strtab_find(&graph->part.names, name, strlen(name))
                              : STRTAB_FULL;
            if (id == STRTAB_FULL || step == SIZE_MAX ||
                !map_get(&node_of, (uint64_t)id + 1, &node))
                continue;
            const struct trace_span **last = &runs->at[node * runs->n_steps + step];
            if (!*last || (*last)->start_ns + (*last)->dur_ns < span->start_ns + span->dur_ns)
                *last = span;
        }
    map_fini(&node_of);
    return status;
}

struct hand_over {
    int64_t end_ns; /* of the op that made the tensor */
    int64_t dur_ns;
    uint32_t name, track;
};
typedef ARRAY(struct hand_over) hand_overs;

static int by_end(const void *a, const void *b)
{
    const struct hand_over *x = a, *y = b;
    if (x->track != y->track)
        return x->track < y->track ? -1 : 1;
    if (x->end_ns != y->end_ns)
        return x->end_ns < y->end_ns ? -1 : 1;
    return x->name < y->name ? -1 : x->name > y->name;
}

/* From a node to those that lead to it. */
struct walk {
    const struct trace_part *graph;
    uint32_t *seen, *open; /* by node: for which walk it was seen last; nodes to look at */
    uint32_t n_walks, n_open;
};

static int walk_init(struct walk *w, const struct trace_part *graph)
{
    *w = (struct walk){.graph = graph};
    w->seen = calloc(graph->dfg_nodes.n + 1, sizeof *w->seen);
    w->open = malloc((graph->dfg_nodes.n + 1) * sizeof *w->open);
    return w->seen && w->open ? 0 : -1;
}

/* Looks at what a node takes. */
static void walk_on(struct walk *w, uint32_t node)
{
    const struct dfg_node *n = &w->graph->dfg_nodes.at[node];
    for (uint32_t i = n->first_input; i < n->first_input + n->n_inputs; i++) {
        uint32_t from = w->graph->dfg_inputs.at[i].node;
        if (w->seen[from] == w->n_walks)
            continue;
        w->seen[from] = w->n_walks;
        w->open[w->n_open++] = from;
    }
}

static void walk_fini(struct walk *w)
{
    free(w->seen);
    free(w->open);
}

/* The last op to end, in a step, of those that lead to a node without another op between; NULL. */
static const struct trace_span *last_maker(struct walk *w, const struct last_runs *runs,
                                           uint32_t node, size_t step)
{
    const struct trace_span *last = NULL;
    w->n_walks++;
    w->n_open = 0;
    walk_on(w, node);
    while (w->n_open > 0) {
        uint32_t maker = w->open[--w->n_open];
        const struct trace_span *span = runs->at[maker * runs->n_steps + step];
        if (!span)
            walk_on(w, maker);
        else if (!last || last->start_ns + last->dur_ns < span->start_ns + span->dur_ns)
            last = span;
    }
    return last;
}

static int list_hand_overs(const struct reference_files *files, const steps *list,
                           hand_overs *overs)
{
    struct source *graph = reference_graph(files);
    struct last_runs runs = {0};
    struct walk walk = {0};
    bool no_memory = find_last_runs(files->profile, graph, list, &runs) < 0 ||
                     walk_init(&walk, &graph->part) < 0;
    const struct timeline *timeline = files->timeline->part.timeline;
    for (size_t t = 0; t < timeline->tensors.n && !no_memory; t++) {
        const char *name = text_of(files->timeline, timeline->tensors.at[t].name);
        uint32_t node = reference_find_node(graph, name, NO_ID);
        for (size_t s = 0; node != NO_ID && s < list->n && !no_memory; s++) {
            const struct trace_span *last = last_maker(&walk, &runs, node, s);
            if (!last || runs.at[node * runs.n_steps + s]) /* an event tells */
                continue;
            struct hand_over over = {
                .end_ns = last->start_ns + last->dur_ns,
                .dur_ns = last->dur_ns,
                .name = strtab_add(&files->profile->part.names, name, strlen(name)),
                .track = last->track};
            no_memory = over.name == STRTAB_FULL || array_push(overs, over) < 0;
        }
    }
    free(runs.at);
    walk_fini(&walk);
    return no_memory ? -1 : 0;
}

/* Spans at the very end of the ops that made the tensors, one behind the other: they belong to the
 * same device, and must not make it seem to run two things at once. */
static int add_hand_overs(struct source *profile, const hand_overs *overs)
{
    struct trace_part *part = &profile->part;
    for (size_t i = 0, end; i < overs->n; i = end) {
        for (end = i + 1; end < overs->n && overs->at[end].track == overs->at[i].track &&
                          overs->at[end].end_ns == overs->at[i].end_ns;
             end++)
            ;
        for (size_t k = i; k < end; k++) {
            const struct hand_over *over = &overs->at[k];
            int64_t before = (int64_t)(end - k);
            struct trace_span *span;
            if (before > over->dur_ns / 2) /* no room */
                continue;
            span = part_add_span(part);
            if (!span)
                return -1;
            *span = (struct trace_span){.start_ns = over->end_ns - before,
                                        .dur_ns = 1,
                                        .name = over->name,
                                        .track = over->track,
                                        .sequence = -1,
                                        .detail = NO_ID,
                                        .kind = SPAN_CPU_OP,
                                        .parent = NO_ID,
                                        .node = NO_ID};
            part->tracks.at[over->track].n_spans++;
        }
    }
    return 0;
}

int reference_hand_over(const struct reference_files *files, int32_t first, int32_t last)
{
    steps list = {0};
    hand_overs overs = {0};
    int status = list_steps(files->profile, &list);
    for (size_t s = 0; s < list.n; s++)
        if (list.at[s].number < first || list.at[s].number > last)
            list.at[s].end_ns = list.at[s].start_ns; /* nothing lies in it */
    if (status == 0 && list.n > 0)
        status = list_hand_overs(files, &list, &overs);
    if (overs.n > 1)
        qsort(overs.at, overs.n, sizeof *overs.at, by_end);
    if (status == 0)
        status = add_hand_overs(files->profile, &overs);
    array_fini(&list);
    array_fini(&overs);
    return status;
}

/* ---- steps that all ranks have ---- */

/* Of a timeline only what lies in steps that every profile has: its k-th run of a tensor is then of
 * the same step on every rank. */
int reference_trim_timeline(const struct reference_files *files, int32_t first, int32_t last)
{
    struct timeline *timeline = files->timeline->part.timeline;
    steps list = {0};
    size_t kept = 0;
    int status = list_steps(files->profile, &list);
    for (size_t t = 0; list.n > 0 && t < timeline->tensors.n; t++)
        timeline->tensors.at[t].n_runs = 0;
    for (size_t i = 0; list.n > 0 && i < timeline->runs.n; i++) {
        const struct timeline_run *run = &timeline->runs.at[i];
        size_t step = step_at(&list, run->whole.start_ns);
        if (step == SIZE_MAX || list.at[step].number < first || list.at[step].number > last)
            continue;
        timeline->tensors.at[run->tensor].n_runs++;
        timeline->runs.at[kept++] = *run;
    }
    if (list.n > 0)
        timeline->runs.n = kept;
    array_fini(&list);
    return status;
}

int reference_common_steps(const struct source *profile, int32_t *first, int32_t *last)
{
    steps list = {0};
    int status = list_steps(profile, &list);
    if (list.n > 0 && list.at[0].number > *first)
        *first = list.at[0].number;
    if (list.n > 0 && list.at[list.n - 1].number < *last)
        *last = list.at[list.n - 1].number;
    array_fini(&list);
    return status;
}
