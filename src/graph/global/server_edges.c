/* Edges from pushes through the servers' ops to answers. */
#include "graph/global/assembly.h"

void assembly_server_edges(struct assembly *a)
{
    const struct servers *servers = a->servers;
    const uint32_t *messages = servers->exchanged.at;
    EACH (const struct served, served, servers->served) {
        uint32_t first = a->first_op[a->join->n_ranks + served->server] + served->op;
        for (uint32_t p = 0; p < served->n_pushes; p++) {
            uint32_t push = messages[served->first_push + p];
            assembly_add_edge(a, assembly_message_end(a, push), first + p, true);
            for (uint32_t n = 0; n < served->n_answers; n++)
                assembly_add_edge(
                    a, first + p,
                    assembly_message_op(a, messages[served->first_answer + n], MESSAGE_CALL), true);
        }
    }
}
