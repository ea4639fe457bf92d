/* graph/global/server_edges.c: edges from pushes through the servers' ops to answers. */
#include "graph/global/assembly.h"

int assembly_server_edges(struct assembly *a)
{
    const struct servers *servers = a->servers;
    for (size_t i = 0; i < servers->served.n; i++) {
        const struct served *served = &servers->served.at[i];
        const uint32_t *messages = servers->exchanged.at;
        uint32_t first = a->first_op[a->join->n_ranks + served->server] + served->op;
        for (uint32_t p = 0; p < served->n_pushes; p++) {
            struct edge arrives = {assembly_message_end(a, messages[served->first_push + p]),
                                   first + p, false, true};
            if (array_push(&a->edges, arrives) < 0)
                return -1;
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
