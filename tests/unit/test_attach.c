/* The messages of Kineto's daemon protocol are read and written as Kineto does, and whatever else
 * comes over the socket is not. */

#include "attach/collect.h"
#include "case.h"

/* A datagram of `size` payload bytes, `claimed` of which its header tells. */
static size_t datagram(unsigned char *out, const char *type, uint64_t claimed, const void *payload,
                       size_t size)
{
    memset(out, 0, FABRIC_HEADER);
    memcpy(out, &claimed, sizeof claimed);
    memcpy(out + 8, type, strlen(type));
    memcpy(out + FABRIC_HEADER, payload, size);
    return FABRIC_HEADER + size;
}

TEST(a_request_tells_what_is_wanted_and_by_whom)
{
    const int32_t payload[] = {3, 3, 0, 0, 4711, 4700, 1};
    unsigned char data[256];
    struct fabric_message message;
    size_t size = datagram(data, "req", sizeof payload, payload, sizeof payload);
    assert_true(fabric_parse(data, size, &message));
    assert_int_equal(message.type, FABRIC_REQUEST);
    assert_int_equal(message.wants, 3);
    assert_int_equal(message.n_pids, 3);
    assert_int_equal(message.pids[0], 4711);
    assert_int_equal(message.pids[2], 1);
}

TEST(a_context_is_known)
{
    const int32_t payload[] = {5, 4711, 0, 0};
    unsigned char data[256];
    struct fabric_message message;
    size_t size = datagram(data, "ctxt", sizeof payload, payload, sizeof payload);
    assert_true(fabric_parse(data, size, &message));
    assert_int_equal(message.type, FABRIC_CONTEXT);
}

TEST(a_long_list_of_ancestors_is_cut)
{
    int32_t payload[4 + 4 * FABRIC_PIDS_MAX] = {3, 4 * FABRIC_PIDS_MAX};
    unsigned char data[FABRIC_HEADER + sizeof payload];
    struct fabric_message message;
    for (int i = 0; i < 4 * FABRIC_PIDS_MAX; i++)
        payload[4 + i] = 1000 + i;
    size_t size = datagram(data, "req", sizeof payload, payload, sizeof payload);
    assert_true(fabric_parse(data, size, &message));
    assert_int_equal(message.n_pids, FABRIC_PIDS_MAX);
    assert_int_equal(message.pids[FABRIC_PIDS_MAX - 1], 1000 + FABRIC_PIDS_MAX - 1);
}

TEST(other_datagrams_are_refused)
{
    static const struct {
        const char *what, *type;
        int32_t payload[6];
        size_t size; /* of the payload */
        uint64_t claimed;
    } cases[] = {
        {"an unknown type", "data", {3, 1, 0, 0, 4711}, 20, 20},
        {"a type that only begins alike", "request", {3, 1, 0, 0, 4711}, 20, 20},
        {"a type without its end", "reqqqqqqqqqqqqqqqqqqqqqqqqqqqqqq", {3, 1, 0, 0, 4711}, 20, 20},
        {"more claimed than there is", "req", {3, 1, 0, 0, 4711}, 20, 24},
        {"a size beyond all", "req", {3, 1, 0, 0, 4711}, 20, UINT64_MAX},
        {"less claimed than needed", "req", {3, 1, 0, 0, 4711}, 20, 16},
        {"no payload", "req", {0}, 0, 0},
        {"a short payload", "req", {3, 1, 0}, 12, 12},
        {"no process", "req", {3, 0, 0, 0}, 16, 16},
        {"a negative number of them", "req", {3, -1, 0, 0, 4711}, 20, 20},
        {"more of them than there are", "req", {3, 2, 0, 0, 4711}, 20, 20},
        {"so many that their size wraps", "req", {3, 0x40000001, 0, 0, 4711}, 20, 20},
        {"a process that can't be", "req", {3, 1, 0, 0, -1}, 20, 20},
        {"a short context", "ctxt", {5, 4711, 0}, 12, 12},
        {"a context of no process", "ctxt", {5, 0, 0, 0}, 16, 16},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        unsigned char data[256];
        struct fabric_message message;
        size_t size =
            datagram(data, cases[i].type, cases[i].claimed, cases[i].payload, cases[i].size);
        if (fabric_parse(data, size, &message))
            fail_msg("%s was taken", cases[i].what);
    }
}

TEST(every_cut_of_a_message_is_refused)
{
    const int32_t payload[] = {3, 1, 0, 0, 4711};
    unsigned char data[256];
    struct fabric_message message;
    size_t size = datagram(data, "req", sizeof payload, payload, sizeof payload);
    for (size_t cut = 0; cut < size; cut++) {
        unsigned char *exact = malloc(cut + 1); /* so that the sanitizer sees a read behind it */
        memcpy(exact, data, cut);
        assert_false(fabric_parse(exact, cut, &message));
        free(exact);
    }
}

TEST(an_answer_is_a_header_and_the_payload)
{
    static const char expected[FABRIC_HEADER] = {4, 0, 0, 0, 0, 0, 0, 0, 'r', 'e', 'q'};
    char out[FABRIC_HEADER + 4];
    assert_int_equal(fabric_answer(FABRIC_REQUEST, "abcd", 4, out, sizeof out), sizeof out);
    assert_memory_equal(out, expected, FABRIC_HEADER);
    assert_memory_equal(out + FABRIC_HEADER, "abcd", 4);
    assert_int_equal(fabric_answer(FABRIC_REQUEST, NULL, 0, out, sizeof out), FABRIC_HEADER);
    assert_int_equal(fabric_answer(FABRIC_REQUEST, "abcde", 5, out, sizeof out), 0);
}
