/* The simulated caching allocator against a slow one, what that one lacks, and its settings. The
 * peaks of PyTorch's own are in test_allocator_check.c. */

#include "case.h"
#include "replay/caching_allocator.h"
#include "slow_allocator.h"

#define MIB ((uint64_t)1 << 20)
#define GIB ((uint64_t)1 << 30)

static struct allocator *make(const char *settings, uint64_t capacity)
{
    struct allocator_settings parsed = allocator_settings_default();
    assert_int_equal(allocator_settings_parse(&parsed, settings, NULL), 0);
    struct allocator *a = allocator_create(&parsed, capacity);
    KEEP(a, allocator_destroy);
    return a;
}

static uint32_t take(struct allocator *a, uint64_t bytes)
{
    uint32_t block = allocator_take(a, bytes);
    assert_int_not_equal(block, ALLOCATOR_NO_BLOCK);
    return block;
}

static bool fails(struct allocator *a, uint64_t bytes)
{
    return allocator_take(a, bytes) == ALLOCATOR_NO_BLOCK;
}

static uint64_t reserved(const struct allocator *a)
{
    return allocator_figures(a).reserved_bytes;
}

TEST(of_equal_blocks_that_of_the_oldest_segment_is_taken)
{
    for (int by_address = 0; by_address < 2; by_address++) {
        struct allocator_settings settings = allocator_settings_default();
        settings.by_address = by_address;
        struct allocator *a = allocator_create(&settings, 0);
        KEEP(a, allocator_destroy);
        uint32_t old = take(a, 40 * MIB), young = take(a, 40 * MIB);
        allocator_give(a, young);
        allocator_give(a, old);
        assert_int_equal(take(a, 40 * MIB), by_address ? young : old);
    }
}

TEST(the_version_tells_the_order_of_equal_blocks)
{
    assert_true(allocator_is_by_address("2.11.0+cu130"));
    assert_true(allocator_is_by_address("1.13.1"));
    assert_false(allocator_is_by_address("2.13.0"));
    assert_false(allocator_is_by_address("3.0"));
    assert_false(allocator_is_by_address(""));
}

TEST(no_allocator_has_more_than_an_address_says)
{
    struct allocator *a = make("", 0);
    assert_true(fails(a, UINT64_MAX));
    assert_int_equal(reserved(a), 0);
}

TEST(old_garbage_is_collected_above_the_threshold)
{
    struct allocator *a =
        make("garbage_collection_threshold:0.5,per_process_memory_fraction:0.9", 900 * MIB);
    uint32_t first = take(a, 200 * MIB), second = take(a, 202 * MIB);
    take(a, 150 * MIB);
    allocator_give(a, first);
    allocator_give(a, second);
    allocator_give(a, take(a, 201 * MIB)); /* uses the second anew */
    take(a, 300 * MIB);                    /* of 552 MiB, more than 450, the oldest go */
    assert_int_equal(reserved(a), 652 * MIB);
}

TEST(whole_granules_of_expandable_segments_go_back)
{
    struct allocator *a = make("expandable_segments:True", 1000 * MIB);
    uint32_t blocks[] = {take(a, 30 * MIB), take(a, 50 * MIB), take(a, 20 * MIB)};
    allocator_give(a, blocks[1]);
    allocator_empty_cache(a);
    assert_int_equal(reserved(a), 60 * MIB); /* 40 to 80 MiB are unmapped */
    uint32_t large = take(a, 50 * MIB);
    assert_int_equal(reserved(a), 120 * MIB); /* behind the last one, which 20 MiB follow */
    allocator_give(a, blocks[0]);
    allocator_give(a, blocks[2]);
    allocator_give(a, large);
    allocator_empty_cache(a);
    assert_int_equal(reserved(a), 0);
}

/* ---- against the slow one ---- */

static uint64_t state = 1;

static uint64_t pick(uint64_t below)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (state >> 33) % below;
}

static uint64_t any_size(void)
{
    static const uint64_t edges[] = {1,        512,          MIB - 1,  MIB,          MIB + 1,
                                     10 * MIB, 10 * MIB - 1, 20 * MIB, 20 * MIB + 1, 50 * MIB};
    if (pick(3) == 0)
        return edges[pick(sizeof edges / sizeof *edges)];
    uint64_t size = (uint64_t)64 << pick(20);
    return size + pick(size);
}

static void compare_with_slow(const char *settings, uint64_t capacity)
{
    struct allocator_settings parsed = allocator_settings_default();
    allocator_settings_parse(&parsed, settings, NULL);
    struct allocator *a = make(settings, capacity);
    struct slow_allocator *slow = slow_create(&parsed, capacity);
    struct {
        uint32_t block;
        uint64_t id;
    } live[64];
    uint64_t n_live = 0;
    for (uint64_t i = 1; i < 1500; i++) {
        if (pick(50) == 0) {
            allocator_empty_cache(a);
            slow_empty_cache(slow);
        } else if (n_live == 64 || (n_live > 0 && pick(2))) {
            size_t at = pick(n_live);
            allocator_give(a, live[at].block);
            slow_give(slow, live[at].id);
            live[at] = live[--n_live];
        } else {
            uint64_t bytes = any_size();
            uint32_t block = allocator_take(a, bytes);
            assert_int_equal(block != ALLOCATOR_NO_BLOCK, slow_take(slow, i, bytes));
            live[n_live].block = block;
            live[n_live].id = i;
            n_live += block != ALLOCATOR_NO_BLOCK;
        }
        assert_int_equal(reserved(a), slow_reserved(slow));
    }
    slow_destroy(slow);
}

TEST(random_requests_go_where_the_rules_say)
{
    static const char *const settings[] = {
        "",
        "max_split_size_mb:20",
        "max_split_size_mb:40,max_non_split_rounding_mb:25",
        "roundup_power2_divisions:[1:8,4:2,16:4,>:1]",
        "large_segment_size_mb:32,roundup_power2_divisions:8",
    };
    for (size_t s = 0; s < sizeof settings / sizeof *settings; s++)
        for (int round = 0; round < 6; round++)
            compare_with_slow(settings[s], round % 2 ? 300 * MIB : 16 * GIB);
}

/* ---- settings as text ---- */

TEST(settings_are_read_from_text)
{
    struct allocator_settings s = allocator_settings_default();
    assert_int_equal(allocator_settings_parse(&s, "", NULL), 0);
    assert_int_equal(s.max_split_bytes, ALLOCATOR_UNLIMITED);
    assert_int_equal(
        allocator_settings_parse(&s,
                                 " max_split_size_mb : 64,garbage_collection_threshold:0.8, "
                                 "expandable_segments:True,backend:native,pinned_use_x:[1,2]",
                                 NULL),
        0);
    assert_int_equal(s.max_split_bytes, 64 * MIB);
    assert_true(s.garbage_collection_threshold == 0.8);
    assert_true(s.expandable_segments);
    assert_false(s.other_backend);
    assert_int_equal(allocator_settings_parse(&s, "backend:cudaMallocAsync,news:3", NULL), 1);
    assert_true(s.other_backend);
    assert_int_equal(allocator_settings_parse(&s, "large_segment_size_mb:40", NULL), 0);
    assert_int_equal(s.max_non_split_rounding_bytes, 40 * MIB);
}

TEST(rounding_is_set_by_intervals)
{
    /* as PyTorch 2.13 itself reads these texts */
    static const struct {
        const char *text;
        uint32_t divisions[ALLOCATOR_N_ROUNDING];
    } cases[] = {
        {"roundup_power2_divisions:[256:2,1024:4,>:8]",
         {2, 2, 2, 2, 2, 2, 2, 2, 2, 0, 4, 8, 8, 8, 8, 8}},
        {"roundup_power2_divisions:[64:8,4:2,>:4]",
         {8, 8, 2, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4}},
        {"roundup_power2_divisions:[4:2,64:8]", {2, 2, 2, 0, 0, 0, 8}},
        {"roundup_power2_divisions:[>:4]", {0, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4}},
        {"roundup_power2_divisions:[1:1,2:2,8:16,>:0]", {1, 2, 0, 16}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct allocator_settings s = allocator_settings_default();
        assert_int_equal(allocator_settings_parse(&s, cases[i].text, NULL), 0);
        assert_memory_equal(s.roundup_power2_divisions, cases[i].divisions,
                            sizeof cases[i].divisions);
    }
}

TEST(settings_that_pytorch_refuses_change_nothing)
{
    static const char *const texts[] = {
        "max_split_size_mb",
        "max_split_size_mb:",
        "max_split_size_mb:5",
        "max_split_size_mb:3x0",
        "max_split_size_mb:50 max_non_split_rounding_mb:30",
        "max_split_size_mb:30,large_segment_size_mb:40",
        "max_non_split_rounding_mb:10",
        "large_segment_size_mb:10",
        "garbage_collection_threshold:1.5",
        "garbage_collection_threshold:0",
        "garbage_collection_threshold:1",
        "garbage_collection_threshold:abc",
        "expandable_segments:true",
        "roundup_power2_divisions:3",
        "roundup_power2_divisions:[3:2]",
        "roundup_power2_divisions:[4:2",
        "roundup_power2_divisions:[4]",
        "pinned_x:[1,2",
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct allocator_settings s = allocator_settings_default(), before = s;
        struct dpro_error err;
        if (allocator_settings_parse(&s, texts[i], &err) != DPRO_EFORMAT)
            fail_msg("%s: not refused", texts[i]);
        assert_memory_equal(&s, &before, sizeof s);
    }
}
