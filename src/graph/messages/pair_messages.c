/* The two ends of each message of a collective in one iteration. */
#include "graph/messages/pair_messages.h"

#include "base/sort.h"
#include "graph/collectives/match_collectives.h"

/* Who sends the data that a message is or is the ready message of, and to whom. */
static uint64_t way_of(const struct endpoint *end)
{
    return end->is_ready ? (uint64_t)end->to << 32 | end->from
                         : (uint64_t)end->from << 32 | end->to;
}

/* By transaction. Of each way and number first the data, then the ready messages: the k-th is for
 * the k-th. */
static int compare_transactions(const struct endpoint *x, const struct endpoint *y)
{
    return COMPARE(way_of(x), way_of(y)) ?: ASCENDING(number) ?: ASCENDING(is_ready)
           ?: ASCENDING(stream) ?: ASCENDING(offset);
}

ORDER(by_transaction, struct endpoint, compare_transactions(x, y) ?: DESCENDING(sends));

/* A message of which one end is known; the other rank has no log. */
static bool find_one_sided(const struct pairing *p, const struct endpoint *end, struct found *found)
{
    found->sent = end->sends;
    found->received = !end->sends;
    if ((end->sends ? end->to : end->from) != p->nobody || end->start_ns == ABSENT ||
        end->end_ns == ABSENT)
        return false;
    found->time =
        (struct message_time){end->start_ns, end->end_ns, end->sends ? ABSENT : end->start_ns};
    return true;
}

/* Joins the two ends of each message. Returns whether none lacks one that should be there. */
static bool pair_endpoints(struct pairing *p)
{
    struct endpoint *at = p->endpoints.found.at;
    size_t n = p->endpoints.found.n;
    for (size_t i = 0; i < n; i++) {
        if (at[i].from == NO_ID || p->unlogged[at[i].from])
            at[i].from = p->nobody;
        if (at[i].to == NO_ID || p->unlogged[at[i].to])
            at[i].to = p->nobody;
        if (at[i].from == NO_ID || at[i].to == NO_ID)
            return false;
    }
    array_sort(&p->endpoints.found, by_transaction);
    p->found.n = 0;
    for (size_t i = 0, next; i < n; i = next) {
        for (next = i + 1; next < n && compare_transactions(&at[i], &at[next]) == 0; next++)
            ;
        const struct endpoint *sent = &at[i], *received = &at[next - 1];
        struct found found = {.end = at[i],
                              .sent = true,
                              .received = true,
                              .time = {sent->start_ns, received->end_ns, received->start_ns},
                              .sender = sent->connection,
                              .receiver = received->connection};
        if (next - i == 1 ? !find_one_sided(p, &at[i], &found)
                          : next - i > 2 || !sent->sends || received->sends ||
                                sent->start_ns == ABSENT || received->end_ns == ABSENT)
            return false;
        array_push(&p->found, found);
    }
    return true;
}

/* A receiver that went on has received, even if the call that did it was noted later. And what a
 * rank without a log sent, it sent when it was there. */
static void clip_times(const struct pairing *p, const struct joined *joined, uint32_t sample)
{
    const struct member *members = joined_members(p->join, joined);
    int64_t arrived = ABSENT;
    for (uint32_t m = 0; m < joined->n_members && p->nobody != NO_ID; m++) {
        int64_t at = member_arrived_ns(p->join, &members[m], sample);
        if (p->unlogged[m] && at != ABSENT && (arrived == ABSENT || at < arrived))
            arrived = at;
    }
    EACH (struct found, found, p->found) {
        bool leaves = found->received && found->end.to < joined->n_members; /* a server stays */
        int64_t left = leaves ? member_left_ns(p->join, &members[found->end.to], sample) : ABSENT;
        if (left != ABSENT && found->time.end_ns > left)
            found->time.end_ns = left;
        if (!found->sent)
            found->time.start_ns = MIN(MAX(found->time.start_ns, arrived), found->time.end_ns);
    }
}

size_t found_run_end(const found_array *found, size_t first, size_t *n_data)
{
    size_t end = first;
    *n_data = 0;
    for (; end < found->n && way_of(&found->at[end].end) == way_of(&found->at[first].end) &&
           found->at[end].end.number == found->at[first].end.number;
         end++)
        *n_data += !found->at[end].end.is_ready;
    return end;
}

static uint64_t stream_key(const struct endpoint *end)
{
    return map_mix(map_mix(((uint64_t)end->from << 32 | end->to) + 1) + end->stream) | 1;
}

/* Keeps the ready messages that share their stream with data. Returns whether there is none, or one
 * for each message. */
static bool keep_ready(found_array *found)
{
    struct map with_data = {0}; /* streams */
    size_t n_kept = 0, n_data;
    bool complete = true;
    for (size_t i = 0; i < found->n; i++)
        if (!found->at[i].end.is_ready)
            map_set(&with_data, stream_key(&found->at[i].end), 1);
    for (size_t i = 0, end; i < found->n && complete; i = end) {
        size_t n_shared = 0;
        end = found_run_end(found, i, &n_data);
        for (size_t k = i; k < end; k++) {
            bool is_ready = found->at[k].end.is_ready;
            bool shared = is_ready && map_get(&with_data, stream_key(&found->at[k].end), NULL);
            n_shared += shared;
            if (shared || !is_ready)
                found->at[n_kept++] = found->at[k];
        }
        complete = n_shared == 0 || (n_shared == n_data && n_shared + n_data == end - i);
    }
    found->n = n_kept;
    map_fini(&with_data);
    return complete;
}

bool pairing_find(struct pairing *p, const struct joined *joined, uint32_t sample)
{
    if (!endpoints_find(&p->endpoints, joined, p->unlogged, sample, p->with_ready) ||
        !pair_endpoints(p) || (p->with_ready && !keep_ready(&p->found)))
        return false;
    clip_times(p, joined, sample);
    return true;
}
