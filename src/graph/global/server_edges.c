/* graph/global/server_edges.c: edges from pushes through the servers' ops to answers. */
#include "graph/global/assembly.h"

int assembly_server_edges(struct assembly *a)
{
    const struct servers *servers = a->servers;
    for (size_t i = 0; i < servers->served.n; i++) {
        const struct served *served = &servers->served.at[i];
        const uint32_t *messages = servers->exchanged.at;
        uint32_t first = a->first_op[a->join->n_ranks + served->server] + served->op;
        uint32_t n_ops = served->n_pushes + served->copies_sum, sum = first + served->n_pushes;
        for (uint32_t p = 0; p < n_ops; p++) {
            bool pushed = p < served->n_pushes;
            struct edge arrives = {
                pushed ? assembly_message_end(a, messages[served->first_push + p]) : 0, first + p,
                false, true};
            struct edge added = {first + p, sum, false, true};
            if (pushed && (array_push(&a->edges, arrives) < 0 ||
                           (served->copies_sum && array_push(&a->edges, added) < 0)))
                return -1;
            if (pushed && served->copies_sum)
                continue; /* answers wait for the sum */
            for (uint32_t n = 0; n < served->n_answers; n++) {
                size_t answer = messages[served->first_answer + n];
                if (!served_carries_result(servers, served, n))
                    continue;
                struct edge done = {
                    first + p, a->message_ops[answer * N_MESSAGE_OPS + MESSAGE_CALL], false, true};
                if (array_push(&a->edges, done) < 0)
                    return -1;
            }
        }
    }
    return 0;
}
