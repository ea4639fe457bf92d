#include "graph_ask.h"

#include <stdlib.h>

#include "base/base.h"

#include "case.h"

dpro_op_id nth_op(const struct dpro_graph *graph, int rank, const char *name, int n)
{
    for (dpro_op_id op = 0; op < dpro_graph_n_ops(graph); op++) {
        struct dpro_op it = dpro_graph_op(graph, op);
        if (it.rank == rank && strcmp(it.name, name) == 0 && n-- == 0)
            return op;
    }
    fail_msg("rank %d has no op %s", rank, name);
    return DPRO_NO_OP;
}

bool edge_to(const struct dpro_graph *graph, dpro_op_id from, dpro_op_id to, int next)
{
    uint32_t n;
    const dpro_op_id *successors = dpro_graph_successors(graph, from, next, &n);
    for (uint32_t i = 0; i < n; i++)
        if (successors[i] == to)
            return true;
    return false;
}

bool has_edge(const struct dpro_graph *graph, int rank, const char *from, int from_n,
              const char *to, int to_n)
{
    return edge_to(graph, nth_op(graph, rank, from, from_n), nth_op(graph, rank, to, to_n), 0);
}

bool has_warning(const struct dpro_graph *graph, const char *word)
{
    for (size_t i = 0; i < dpro_graph_n_warnings(graph); i++)
        if (strstr(dpro_graph_warning(graph, i), word))
            return true;
    return false;
}

static struct dpro_replay *replay_once(const struct dpro_graph *graph,
                                       const struct dpro_replay_options *options)
{
    struct dpro_replay *replay = NULL;
    struct dpro_error err = {0};
    if (dpro_replay_run(graph, options, &replay, &err) < 0)
        fail_msg("replay: %s", err.text);
    return replay;
}

struct dpro_replay *replay_of(const struct dpro_graph *graph,
                              const struct dpro_replay_options *options)
{
    struct dpro_replay *replay = replay_once(graph, options);
    KEEP(replay, dpro_replay_destroy);
    return replay;
}

struct dpro_model *learn(const struct dpro_graph *graph)
{
    struct dpro_model *model;
    struct dpro_error err;
    struct dpro_model_options options = {.all_communication = 1};
    if (dpro_model_build(graph, &options, &model, &err) < 0)
        fail_msg("%s", err.text);
    KEEP(model, dpro_model_destroy);
    return model;
}

static int64_t iteration_ns(const struct dpro_graph *graph, const char *const *delays, size_t n)
{
    struct dpro_replay_options options = {.delays = delays, .n_delays = n};
    struct dpro_replay *replay = replay_once(graph, &options);
    int64_t ns = dpro_replay_view(replay)->iteration_ns;
    dpro_replay_destroy(replay);
    return ns;
}

int64_t replay_ns(const struct dpro_graph *graph, const char *delay)
{
    return iteration_ns(graph, &delay, delay != NULL);
}

int64_t replay_us2(const struct dpro_graph *graph, const char *delay, const char *other)
{
    return (iteration_ns(graph, (const char *const[]){delay, other}, 2) + 500) / 1000;
}

int64_t replay_us(const struct dpro_graph *graph, const char *delay)
{
    return (replay_ns(graph, delay) + 500) / 1000;
}

/* Cuts the text at the words; returns what stands behind them, or NULL. */
static char *cut_at(char *text, const char *words)
{
    char *at = text ? strstr(text, words) : NULL;
    if (!at)
        return NULL;
    *at = '\0';
    return at + strlen(words);
}

void check_delays(const struct dpro_graph *graph, int64_t us, const char *delays)
{
    char text[500];
    snprintf(text, sizeof text, "%s", delays);
    for (char *one = text, *next; one; one = next) {
        next = cut_at(one, "; ");
        char *more = cut_at(one, ": "), *other = cut_at(one, " & ");
        int64_t found =
            other ? replay_us2(graph, one, other) : replay_us(graph, strcmp(one, "-") ? one : NULL);
        if (found != us + atoi(more))
            fail_msg("%s: %+lld us, not %s", one, (long long)(found - us), more);
    }
}

static dpro_op_id numbered_op(const struct dpro_graph *graph, int rank, char *name)
{
    char *number = cut_at(name, "#");
    return nth_op(graph, rank, name, number ? atoi(number) : 0);
}

void check_edges(const struct dpro_graph *graph, int rank, const char *edges)
{
    char text[500];
    snprintf(text, sizeof text, "%s", edges);
    for (char *one = text, *next; one; one = next) {
        next = cut_at(one, "; ");
        char *to = cut_at(one, " > "), *not_to = to ? NULL : cut_at(one, " !> ");
        if (edge_to(graph, numbered_op(graph, rank, one),
                    numbered_op(graph, rank, to ? to : not_to), 0) != !not_to)
            fail_msg("%s %s %s", one, to ? ">" : "!>", to ? to : not_to);
    }
}
