/* Numbers the graph's ops: those of a rank, then the barriers of the collectives whose first member
 * it is, then those of its messages. */

#include "graph/global/assembly.h"

uint32_t assembly_rank_of(const struct assembly *a, uint32_t op)
{
    return LOWER_BOUND(p, 1, assembly_n_processes(a), a->first_op[p] <= op) - 1;
}

uint32_t assembly_member_of(const struct message *message, enum message_op as)
{
    if (as == MESSAGE_CALL)
        return message->tx == NO_ID ? message->to : message->from;
    if (as == MESSAGE_SEND)
        return message->tx == NO_ID ? NO_ID : message->from;
    return message->rx == NO_ID ? NO_ID : message->to;
}

/* The rank of the op at a place in message_ops; NO_ID: there is none. */
static uint32_t rank_at(const struct assembly *a, size_t place)
{
    const struct message *message = &a->messages->all.at[place / N_MESSAGE_OPS];
    uint32_t member = assembly_member_of(message, (enum message_op)(place % N_MESSAGE_OPS));
    return member == NO_ID ? NO_ID
                           : joined_rank(a->join, &a->join->joined.at[message->joined], member);
}

/* Where each rank's ops begin, and the next number of its barriers and of its messages' ops; in
 * there is how many it has of them. */
static void place_ops(struct assembly *a, uint32_t *barrier, uint32_t *message_op)
{
    uint32_t n_processes = assembly_n_processes(a);
    uint64_t n_ops = 0, n_devices = 0;
    for (uint32_t r = 0; r < n_processes; r++) {
        uint32_t n_barriers = barrier[r], n_message_ops = message_op[r];
        a->first_op[r] = (uint32_t)n_ops;
        a->first_device[r] = (uint32_t)n_devices;
        barrier[r] = (uint32_t)(n_ops += a->join->ranks[r].ops.n);
        a->first_message[r] = message_op[r] = (uint32_t)(n_ops += n_barriers);
        n_ops += n_message_ops;
        n_devices += a->join->ranks[r].devices.n;
        if (n_ops >= UINT32_MAX / 2)
            mem_fail();
    }
    a->n_ops = a->first_op[n_processes] = (uint32_t)n_ops;
    a->first_device[n_processes] = (uint32_t)n_devices;
}

void assembly_number_ops(struct assembly *a)
{
    struct join *join = a->join;
    size_t n_processes = assembly_n_processes(a), n_places = a->messages->all.n * N_MESSAGE_OPS;
    struct arena *scratch = &a->scratch;
    a->first_op = arena_array(scratch, n_processes + 1, sizeof *a->first_op);
    a->first_device = arena_array(scratch, n_processes + 1, sizeof *a->first_device);
    a->first_message = arena_array(scratch, n_processes, sizeof *a->first_message);
    a->barriers = arena_alloc(scratch, join->joined.n * sizeof *a->barriers);
    a->message_ops = arena_alloc(scratch, n_places * sizeof *a->message_ops);
    uint32_t *barrier = arena_array(scratch, n_processes, sizeof *barrier);
    uint32_t *message_op = arena_array(scratch, n_processes, sizeof *message_op);
    for (size_t j = 0; j < join->joined.n; j++)
        barrier[join->joined.at[j].rank] += join->joined.at[j].n_members > 1;
    for (size_t place = 0; place < n_places; place++)
        if (rank_at(a, place) != NO_ID)
            message_op[rank_at(a, place)]++;
    place_ops(a, barrier, message_op);
    for (size_t j = 0; j < join->joined.n; j++)
        a->barriers[j] =
            join->joined.at[j].n_members > 1 ? barrier[join->joined.at[j].rank]++ : DPRO_NO_OP;
    if (n_places > 0)
        a->message_at = arena_alloc(scratch, a->n_ops * sizeof *a->message_at);
    for (size_t place = 0; place < n_places; place++) {
        uint32_t r = rank_at(a, place);
        a->message_ops[place] = r == NO_ID ? DPRO_NO_OP : message_op[r]++;
        if (r != NO_ID)
            a->message_at[a->message_ops[place]] = (uint32_t)place;
    }
}
