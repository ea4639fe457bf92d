/* The simulated caching allocator against a slow one, and its settings. What PyTorch's own answers
 * is in test_allocator_check.c. */

#include "case.h"
#include "replay/caching_allocator.h"
#include "slow_allocator.h"

#define MIB ((uint64_t)1 << 20)
#define GIB ((uint64_t)1 << 30)

static struct allocator *make(const char *settings, uint64_t capacity)
{
    struct allocator_options options = {.settings = allocator_settings_default(),
                                        .capacity_bytes = capacity};
    assert_int_equal(allocator_settings_parse(&options.settings, settings, NULL), 0);
    struct allocator *a = allocator_create(&options);
    KEEP(a, allocator_destroy);
    return a;
}

static struct allocator_placement take(struct allocator *a, uint64_t id, uint64_t bytes)
{
    struct allocator_request r = {.what = ALLOCATOR_TAKE, .id = id, .bytes = bytes};
    return allocator_request(a, &r);
}

static void act(struct allocator *a, uint8_t what, uint64_t id)
{
    struct allocator_request r = {.what = what, .id = id};
    allocator_request(a, &r);
}

static void give(struct allocator *a, uint64_t id)
{
    act(a, ALLOCATOR_GIVE, id);
}

TEST(the_version_tells_the_order_of_equal_blocks)
{
    assert_true(allocator_is_by_address("2.11.0+cu130"));
    assert_true(allocator_is_by_address("1.13.1"));
    assert_false(allocator_is_by_address("2.13.0"));
    assert_false(allocator_is_by_address("3.0"));
    assert_false(allocator_is_by_address(""));
}

/* ---- bad input ---- */

TEST(what_makes_no_sense_is_counted_and_harmless)
{
    struct allocator *a = make("", GIB);
    give(a, 1);
    act(a, ALLOCATOR_GIVE_REQUESTED, 2);
    assert_int_equal(allocator_figures(a).n_unknown, 2);
    take(a, 3, 1000);
    take(a, 3, 2000);
    assert_int_equal(allocator_figures(a).n_unknown, 3);
    assert_int_equal(allocator_figures(a).allocated_bytes, 2048);
    act(a, ALLOCATOR_GIVE_REQUESTED, 3);
    act(a, ALLOCATOR_GIVE_REQUESTED, 3);
    give(a, 3);
    assert_int_equal(allocator_figures(a).allocated_bytes, 0);
    assert_int_equal(allocator_figures(a).waiting_bytes, 0);
    assert_true(take(a, 4, UINT64_MAX).failed);
    assert_true(take(a, 5, (uint64_t)1 << 60).failed);
    assert_false(take(a, 6, 0).failed);
    give(a, 6);
    act(a, 200, 1);
    assert_int_equal(allocator_figures(a).allocated_bytes, 0);
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
    uint64_t live[64], n_live = 0, segments[4096] = {0};
    for (uint64_t i = 1; i < 1500; i++) {
        struct allocator_request r = {.what = ALLOCATOR_TAKE, .id = i, .bytes = any_size()};
        size_t at = n_live ? pick(n_live) : 0;
        r.stream = pick(4) == 0 ? 3 : 0;
        if (pick(50) == 0)
            r.what = ALLOCATOR_EMPTY_CACHE;
        else if (n_live == 64 || (n_live > 0 && pick(2)))
            r = (struct allocator_request){
                .what = pick(4) == 0 ? ALLOCATOR_GIVE_REQUESTED : ALLOCATOR_GIVE, .id = live[at]};
        uint64_t offset = 0;
        struct allocator_placement placement = allocator_request(a, &r);
        int64_t segment = slow_request(slow, &r, &offset);
        if (r.what == ALLOCATOR_TAKE) {
            assert_int_equal(placement.failed, segment < 0);
            if (!placement.failed) {
                live[n_live++] = i;
                assert_int_equal(placement.offset, offset);
                if (offset == 0 && placement.device_asked)
                    segments[segment] = placement.segment;
                assert_int_equal(placement.segment, segments[segment]);
            }
        } else if (r.what == ALLOCATOR_GIVE) {
            live[at] = live[--n_live];
        }
        assert_int_equal(allocator_figures(a).reserved_bytes, slow_reserved(slow));
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
