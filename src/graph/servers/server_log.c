/* graph/servers/server_log.c: what a server of BytePS did for each key, where its log tells: it
 * copied the first push of a round, added the others as they came, and copied the sum to where it
 * is pulled from, on the thread that the key has. A round of a key ends before its first answer. */
#include <stdlib.h>
#include <string.h>

#include "base/sort.h"
#include "graph/collectives/match_collectives.h"
#include "graph/servers/parameter_servers.h"

enum { ROUNDING_NS = 2000 }; /* logs have whole microseconds */

struct work {
    uint32_t group; /* string id: the tensor's name */
    uint32_t track;
    int64_t start_ns, end_ns; /* on the common axis */
    bool ends_round;
};
typedef ARRAY(struct work) work_array;

bool server_tells_keys(const struct trace_rank *server)
{
    for (uint32_t s = 0; s < server->n_spans; s++)
        if (server->spans[s].detail != NO_ID &&
            server->details[server->spans[s].detail].process_group)
            return true;
    return false;
}

ORDER(by_group, struct work, ASCENDING(group) ?: ASCENDING(start_ns) ?: ASCENDING(ends_round));

static int list_work(const struct rank_build *server, const struct clock_map *clock,
                     work_array *list)
{
    for (uint32_t s = 0; s < server->trace->n_spans; s++) {
        const struct trace_span *span = &server->trace->spans[s];
        struct work work = {.track = span->track,
                            .start_ns = clock_aligned(clock, span->start_ns),
                            .end_ns = clock_aligned(clock, span->start_ns + span->dur_ns)};
        if (span->detail == NO_ID)
            continue;
        work.group = server->trace->details[span->detail].process_group;
        work.ends_round = strcmp(strtab_get(server->names, span->name), "COPY_MERGED") == 0;
        if (array_push(list, work) < 0)
            return -1;
    }
    array_sort(list, by_group);
    return 0;
}

/* The works of a group: [*first, *end). */
static void find_group(const work_array *list, uint32_t group, size_t *first, size_t *end)
{
    size_t low = LOWER_BOUND(i, 0, list->n, list->at[i].group < group);
    for (*first = *end = low; *end < list->n && list->at[*end].group == group;)
        ++*end;
}

struct push {
    int64_t arrived_ns;
    uint32_t op;
};

ORDER(by_arrival, struct push, ASCENDING(arrived_ns) ?: ASCENDING(op));

static void set_op(struct rank_build *server, uint32_t sample, uint32_t op, const struct work *work)
{
    size_t at = (size_t)sample * server->n_timed + op;
    server->start_ns[at] = work->start_ns;
    server->end_ns[at] = work->end_ns;
    server->ops.at[op].device = work->track;
}

/* The round of a key that was over when it was first answered: the i-th of its works is for the
 * i-th push that arrived. Returns how many pushes have none. */
static uint32_t take_round(struct rank_build *server, const struct served *served, uint32_t sample,
                           const work_array *list, uint32_t group, const struct push *pushes,
                           int64_t answered_ns)
{
    size_t first, end, last;
    find_group(list, group, &first, &end);
    for (last = end; last > first; last--)
        if (list->at[last - 1].ends_round && list->at[last - 1].end_ns <= answered_ns + ROUNDING_NS)
            break;
    if (last == first)
        return served->n_pushes;
    size_t begin = last - 1;
    while (begin > first && !list->at[begin - 1].ends_round)
        begin--;
    uint32_t n = (uint32_t)(last - 1 - begin);
    for (uint32_t i = 0; i < served->n_pushes && i < n; i++)
        set_op(server, sample, pushes[i].op, &list->at[begin + i]);
    set_op(server, sample, served->op + served->n_pushes, &list->at[last - 1]);
    return n < served->n_pushes ? served->n_pushes - n : 0;
}

int server_time_by_keys(struct servers *servers, uint32_t k)
{
    struct join *join = servers->join;
    struct rank_build *server = &join->ranks[join->n_ranks + k];
    uint32_t n_samples = join->ranks[0].n_samples;
    work_array list = {0};
    struct push *pushes = malloc((server->ops.n + 1) * sizeof *pushes);
    int status = pushes ? list_work(server, &join->clocks.of_rank[join->n_ranks + k], &list) : -1;
    for (size_t i = 0; i < servers->served.n && status == 0; i++) {
        const struct served *served = &servers->served.at[i];
        const struct joined *joined = &join->joined.at[served->joined];
        uint32_t group = join->ranks[joined->rank].collectives.at[joined->collective].group;
        for (uint32_t s = 0; s < n_samples && served->server == k; s++) {
            const uint32_t *messages = servers->exchanged.at;
            for (uint32_t p = 0; p < served->n_pushes; p++) {
                size_t message = messages[served->first_push + p];
                pushes[p] = (struct push){
                    servers->messages->times.at[message * n_samples + s].end_ns, served->op + p};
            }
            qsort(pushes, served->n_pushes, sizeof *pushes, by_arrival);
            servers->n_untimed += take_round(server, served, s, &list, group, pushes,
                                             served_answered_ns(servers, served, s));
        }
    }
    free(pushes);
    array_fini(&list);
    return status;
}
