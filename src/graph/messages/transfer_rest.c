/* When a collective's messages are over for each of its members, and what remains of their
 * transfers. */

#include "graph/messages/find_messages.h"

static int compare_sent(const void *p, const void *q, void *messages)
{
    const struct sent_message *x = p, *y = q;
    return ASCENDING(start_ns) /* then, of several that one call sent: */
           ?: COMPARE(message_time_of(messages, x->message, x->sample)->end_ns,
                      message_time_of(messages, y->message, y->sample)->end_ns)
           ?: ASCENDING(sample) ?: ASCENDING(message);
}

void messages_by_start(const struct messages *messages, uint32_t first_sample, uint32_t n_samples,
                       struct sent_message *sent)
{
    size_t n = 0;
    for (uint32_t s = first_sample; s < first_sample + n_samples; s++)
        for (uint32_t m = 0; m < messages->all.n; m++)
            sent[n++] = (struct sent_message){message_time_of(messages, m, s)->start_ns, m, s};
    qsort_r(sent, n, sizeof *sent, compare_sent, (void *)messages);
}

/* ---- what ranks without a log received, and when ---- */

/* What a byte takes on a link while little else is on it: of the large messages that were seen to
 * arrive, the fastest tenth takes no longer. */
static double find_ns_a_byte(const struct messages *messages)
{
    enum { LARGE_BYTES = 32768 };
    SCRATCH ARRAY(double) ratios = {0};
    for (uint32_t m = 0; m < messages->all.n; m++)
        for (uint32_t s = 0; s < messages->n_samples; s++) {
            const struct message *message = &messages->all.at[m];
            const struct message_time *time = message_time_of(messages, m, s);
            double ns = (double)time->end_ns - (double)time->start_ns;
            if (message->rx != NO_ID && message->size_bytes >= LARGE_BYTES && ns > 0)
                array_push(&ratios, ns / (double)message->size_bytes);
        }
    sort_double(ratios.at, ratios.n);
    return ratios.n > 0 ? ratios.at[ratios.n / 10] : 0;
}

/* A socket takes bytes long before they are received. What went to a rank without a log is over
 * once its link can have carried it, or that rank left. */
static void estimate_ends(struct messages *messages, const struct join *join)
{
    const double MOST_NS = 1e15; /* sizes are what a log says */
    double ns_a_byte = find_ns_a_byte(messages);
    SCRATCH struct sent_message *sent = mem_alloc(messages->all.n * sizeof *sent);
    SCRATCH int64_t *free_ns = mem_alloc(messages->links.n * sizeof *free_ns);
    for (uint32_t s = 0; s < messages->n_samples; s++) {
        for (size_t l = 0; l < messages->links.n; l++)
            free_ns[l] = INT64_MIN;
        messages_by_start(messages, s, 1, sent);
        for (size_t i = 0; i < messages->all.n; i++) {
            const struct message *message = &messages->all.at[sent[i].message];
            const struct joined *joined = &join->joined.at[message->joined];
            const struct member *to = &joined_members(join, joined)[message->to];
            struct message_time *time = message_time_of(messages, sent[i].message, s);
            if (message->tx == NO_ID)
                continue;
            if (message->rx == NO_ID) {
                int64_t end = MAX(time->start_ns, free_ns[message->tx]);
                int64_t left = member_left_ns(join, to, s);
                end += (int64_t)fmin(ns_a_byte * (double)message->size_bytes, MOST_NS);
                if (joined->n_unlogged == 1 && left != ABSENT)
                    end = MIN(end, left);
                time->end_ns = MAX(time->end_ns, end);
            }
            free_ns[message->tx] = MAX(free_ns[message->tx], time->end_ns);
        }
    }
}

/* ---- what remains of the transfers ---- */

/* When a message is over for those who receive it, or for those who send it. */
static int64_t over_ns(const struct messages *messages, uint32_t message, bool receives,
                       uint32_t sample)
{
    const struct message_time *time = message_time_of(messages, message, sample);
    return receives || messages->all.at[message].ends_sender ? time->end_ns : time->start_ns;
}

/* Whether it was over in every iteration when the member left. */
static bool never_left_before(const struct messages *messages, const struct join *join,
                              const struct member *member, uint32_t message, bool receives)
{
    for (uint32_t s = 0; s < messages->n_samples; s++)
        if (over_ns(messages, message, receives, s) > member_left_ns(join, member, s))
            return false;
    return true;
}

/* The last message of each stream. Its sender waits for it to arrive, if it never left before. */
static void find_last_sends(const struct join *join, const struct joined *joined,
                            struct messages *messages)
{
    const struct member *members = joined_members(join, joined);
    SCRATCH struct map seen = {0};
    for (uint32_t i = joined->n_messages; i-- > 0;) {
        uint32_t m = joined->first_message + i;
        struct message *message = &messages->all.at[m];
        uint64_t key = map_mix(((uint64_t)message->from << 32 | message->to) + 1);
        key = map_mix(key + message->stream) | 1;
        if (message->is_ready || !map_insert(&seen, key, 1))
            continue;
        message->is_last = message->ends_sender = true;
        bool never = true;
        for (uint32_t k = 0; k < joined->n_members && never; k++)
            if (k == message->from || (message->tx == NO_ID && members[k].unlogged))
                never = never_left_before(messages, join, &members[k], m, false);
        message->ends_sender = never;
    }
}

bool message_ends_member(const struct messages *messages, const struct join *join,
                         const struct joined *joined, uint32_t message, bool receives,
                         uint32_t member)
{
    const struct member *members = joined_members(join, joined);
    const struct message *it = &messages->all.at[message];
    uint32_t own = receives ? it->to : it->from;
    if (own >= joined->n_members)
        return false; /* a server's */
    if (member == own && !members[own].unlogged)
        return true;
    bool may = receives ? members[member].node_group == members[own].node_group
                        : members[member].unlogged && members[own].unlogged;
    return may && never_left_before(messages, join, &members[member], message, receives);
}

static void cut_transfer(const struct messages *messages, struct join *join, struct member *member,
                         uint32_t message, bool receives)
{
    for (uint32_t s = 0; s < messages->n_samples; s++) {
        int64_t *start = member_transfer_start(join, member, s);
        int64_t over =
            MIN(over_ns(messages, message, receives, s), member_left_ns(join, member, s));
        if (*start != ABSENT && over > *start) {
            member->exchange_ns += (over - *start) / messages->n_samples;
            *start = over;
        }
    }
}

static void cut_after_messages(const struct messages *messages, struct join *join,
                               const struct joined *joined)
{
    struct member *members = joined_members(join, joined);
    for (uint32_t m = joined->first_message; m < joined->first_message + joined->n_messages; m++) {
        const struct message *message = &messages->all.at[m];
        for (int side = 0; side < 2 && !message->is_ready; side++) {
            uint32_t own = side ? message->to : message->from;
            if (own >= joined->n_members)
                continue;
            if (!members[own].unlogged)
                cut_transfer(messages, join, &members[own], m, side);
            for (uint32_t k = 0;
                 k < joined->n_members && joined->has_node_groups && message->is_last; k++)
                if ((k != own || members[own].unlogged) &&
                    message_ends_member(messages, join, joined, m, side, k))
                    cut_transfer(messages, join, &members[k], m, side);
        }
    }
}

void messages_cut_transfers(struct messages *messages, struct join *join)
{
    if (messages->n_partial > 0)
        estimate_ends(messages, join);
    for (uint32_t j = 0; j < join->joined.n; j++)
        if (join->joined.at[j].n_messages > 0) {
            find_last_sends(join, &join->joined.at[j], messages);
            cut_after_messages(messages, join, &join->joined.at[j]);
        }
}
