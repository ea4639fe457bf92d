/* The simulated caching allocator, rule by rule, and against a slow one. */

#include "case.h"
#include "replay/caching_allocator.h"
#include "slow_allocator.h"

#define KIB ((uint64_t)1 << 10)
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

static struct allocator_placement take_on(struct allocator *a, uint64_t id, uint64_t bytes,
                                          uint32_t stream)
{
    struct allocator_request r = {
        .what = ALLOCATOR_TAKE, .id = id, .bytes = bytes, .stream = stream};
    return allocator_request(a, &r);
}

static struct allocator_placement take(struct allocator *a, uint64_t id, uint64_t bytes)
{
    return take_on(a, id, bytes, 0);
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

static uint64_t reserved(const struct allocator *a)
{
    return allocator_figures(a).reserved_bytes;
}

/* ---- sizes ---- */

TEST(sizes_are_rounded_to_512_bytes)
{
    static const uint64_t sizes[][2] = {{1, 512},   {512, 512},           {513, 1024},
                                        {MIB, MIB}, {MIB + 1, MIB + 512}, {30 * MIB - 1, 30 * MIB}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        struct allocator *a = make("", 0);
        assert_int_equal(take(a, 1, sizes[i][0]).size_bytes, sizes[i][1]);
    }
}

TEST(sizes_are_rounded_to_parts_of_powers_of_two)
{
    static const uint64_t sizes[][2] = {
        {1200 * KIB, 1280 * KIB}, /* 1 MiB and quarters of it */
        {5 * MIB, 5 * MIB},       {5 * MIB + 1, 6 * MIB}, {2049, 2560}, {2047, 2048}, {500, 512}};
    struct allocator *a = make("roundup_power2_divisions:4", 0);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        assert_int_equal(take(a, i, sizes[i][0]).size_bytes, sizes[i][1]);
}

TEST(segments_have_2_mib_20_mib_or_their_own_size)
{
    static const uint64_t sizes[][2] = {{MIB, 2 * MIB},           {MIB + 1, 20 * MIB},
                                        {10 * MIB - 1, 10 * MIB}, {10 * MIB - 512, 20 * MIB},
                                        {10 * MIB, 10 * MIB},     {21 * MIB, 22 * MIB}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        struct allocator *a = make("", 0);
        assert_true(take(a, 1, sizes[i][0]).device_asked);
        assert_int_equal(reserved(a), sizes[i][1]);
    }
}

/* ---- cutting and merging ---- */

TEST(the_rest_of_a_small_block_is_used)
{
    struct allocator *a = make("", 0);
    assert_int_equal(take(a, 1, 1000).offset, 0);
    assert_int_equal(take(a, 2, 1).offset, 1024);
    assert_int_equal(take(a, 3, MIB - 1536).offset, 1536);
    assert_int_equal(reserved(a), 2 * MIB);
}

TEST(a_large_block_is_not_cut_where_a_mib_or_less_would_remain)
{
    struct allocator *a = make("", 0);
    assert_int_equal(take(a, 1, 11 * MIB).size_bytes, 12 * MIB);
    assert_int_equal(take(a, 2, 13 * MIB - 512).size_bytes, 13 * MIB - 512);
    assert_int_equal(reserved(a), 26 * MIB);
}

TEST(the_least_block_that_is_large_enough_is_taken)
{
    struct allocator *a = make("", 0);
    uint64_t large = take(a, 1, 60 * MIB).segment, fits = take(a, 2, 40 * MIB).segment;
    take(a, 3, 20 * MIB);
    for (uint64_t id = 1; id <= 3; id++)
        give(a, id);
    assert_int_equal(take(a, 4, 30 * MIB).segment, fits);
    assert_int_equal(take(a, 5, 41 * MIB).segment, large);
}

TEST(of_equal_blocks_that_of_the_oldest_segment_is_taken)
{
    for (int by_address = 0; by_address < 2; by_address++) {
        struct allocator_options options = {.settings = allocator_settings_default()};
        options.settings.by_address = by_address;
        struct allocator *a = allocator_create(&options);
        uint64_t old = take(a, 1, 40 * MIB).segment, young = take(a, 2, 40 * MIB).segment;
        assert_true(young < old);
        give(a, 2);
        give(a, 1);
        assert_int_equal(take(a, 3, 40 * MIB).segment, by_address ? young : old);
        allocator_destroy(a);
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

TEST(free_neighbours_are_one_block)
{
    struct allocator *a = make("", 0);
    for (uint64_t id = 0; id < 4; id++)
        take(a, id, 512 * KIB);
    give(a, 0);
    give(a, 2);
    assert_true(take(a, 5, MIB).device_asked);
    give(a, 5);
    act(a, ALLOCATOR_EMPTY_CACHE, 0);
    give(a, 1);
    struct allocator_placement placement = take(a, 6, MIB);
    assert_false(placement.device_asked);
    assert_int_equal(placement.offset, 0);
}

TEST(each_stream_has_its_own_segments)
{
    struct allocator *a = make("", 0);
    take(a, 1, 1000);
    give(a, 1);
    assert_true(take_on(a, 2, 1000, 7).device_asked);
    assert_false(take(a, 3, 1000).device_asked);
}

TEST(what_another_stream_uses_waits)
{
    struct allocator *a = make("", 0);
    take(a, 1, 30 * MIB);
    act(a, ALLOCATOR_GIVE_REQUESTED, 1);
    assert_int_equal(allocator_figures(a).allocated_bytes, 0);
    assert_int_equal(allocator_figures(a).waiting_bytes, 30 * MIB);
    assert_true(take(a, 2, 30 * MIB).device_asked);
    act(a, ALLOCATOR_GIVE_COMPLETED, 1);
    assert_false(take(a, 3, 30 * MIB).device_asked);
    assert_int_equal(allocator_figures(a).n_unknown, 0);
}

/* ---- the device is full ---- */

TEST(what_is_cached_goes_back_where_the_device_is_full)
{
    struct allocator *a = make("", 100 * MIB);
    take(a, 1, 60 * MIB);
    take(a, 2, 1000);
    give(a, 1);
    assert_false(take(a, 3, 90 * MIB).failed);
    assert_int_equal(reserved(a), 92 * MIB);
    assert_int_equal(allocator_figures(a).n_retries, 1);
}

TEST(waiting_blocks_are_waited_for_where_the_device_is_full)
{
    struct allocator *a = make("", 100 * MIB);
    take(a, 1, 60 * MIB);
    act(a, ALLOCATOR_GIVE_REQUESTED, 1);
    assert_false(take(a, 2, 90 * MIB).failed);
    act(a, ALLOCATOR_GIVE_COMPLETED, 1); /* too late to matter */
    assert_int_equal(reserved(a), 90 * MIB);
    assert_int_equal(allocator_figures(a).allocated_bytes, 90 * MIB);
}

TEST(a_segment_that_is_partly_used_makes_a_request_fail)
{
    struct allocator *a = make("", 100 * MIB);
    take(a, 1, 90 * MIB);
    give(a, 1);
    take(a, 2, 2 * MIB);
    assert_true(take(a, 3, 89 * MIB).failed);
    struct allocator_figures f = allocator_figures(a);
    assert_int_equal(f.n_failed, 1);
    assert_int_equal(f.allocated_bytes, 2 * MIB);
    assert_int_equal(f.reserved_bytes, 90 * MIB);
    give(a, 3);
    assert_int_equal(allocator_figures(a).n_unknown, 0);
}

TEST(fragmentation_is_what_is_free_at_the_peak)
{
    struct allocator *a = make("", 0);
    take(a, 1, 40 * MIB);
    give(a, 1);
    take(a, 2, 15 * MIB);
    take(a, 3, 30 * MIB);
    struct allocator_figures f = allocator_figures(a);
    assert_int_equal(f.reserved_peak_bytes, 70 * MIB);
    assert_int_equal(f.allocated_peak_bytes, 45 * MIB);
}

/* ---- settings ---- */

TEST(blocks_of_max_split_size_stay_whole)
{
    struct allocator *a = make("max_split_size_mb:50", 0);
    uint64_t whole = take(a, 1, 80 * MIB).segment;
    give(a, 1);
    assert_true(take(a, 2, 30 * MIB).device_asked); /* small ones do not take it */
    assert_true(take(a, 3, 55 * MIB).device_asked); /* 25 MiB would be lost */
    struct allocator_placement near = take(a, 4, 70 * MIB);
    assert_int_equal(near.segment, whole);
    assert_int_equal(near.size_bytes, 80 * MIB);
}

TEST(with_max_split_size_only_what_is_needed_goes_back)
{
    struct allocator *a = make("max_split_size_mb:50", 300 * MIB);
    take(a, 1, 100 * MIB);
    take(a, 2, 60 * MIB);
    take(a, 3, 30 * MIB);
    take(a, 4, 100 * MIB);
    give(a, 1);
    give(a, 2);
    give(a, 3);
    assert_false(take(a, 5, 76 * MIB).failed); /* the 100 MiB went */
    assert_int_equal(reserved(a), 266 * MIB);
    assert_int_equal(allocator_figures(a).n_retries, 0);
}

TEST(old_garbage_is_collected_above_the_threshold)
{
    struct allocator *a =
        make("garbage_collection_threshold:0.5,per_process_memory_fraction:0.9", 1000 * MIB);
    take(a, 1, 200 * MIB);
    take(a, 2, 202 * MIB);
    take(a, 3, 150 * MIB);
    give(a, 1);
    give(a, 2);
    take(a, 4, 201 * MIB); /* uses the second anew */
    give(a, 4);
    take(a, 5, 300 * MIB); /* of 552 MiB, more than 450, the oldest go */
    assert_int_equal(reserved(a), 652 * MIB);
}

TEST(a_fraction_of_the_device_is_a_limit)
{
    struct allocator *a = make("per_process_memory_fraction:0.5", 100 * MIB);
    assert_false(take(a, 1, 50 * MIB).failed);
    assert_true(take(a, 2, 1).failed);
}

TEST(expandable_segments_grow_where_the_last_block_is_free)
{
    struct allocator *a = make("expandable_segments:True", 1000 * MIB);
    struct allocator_placement first = take(a, 1, 30 * MIB), second = take(a, 2, 30 * MIB);
    assert_int_equal(first.segment, second.segment);
    assert_int_equal(second.offset, 30 * MIB);
    assert_int_equal(reserved(a), 60 * MIB);
    give(a, 2);
    assert_int_equal(take(a, 3, 45 * MIB).offset, 30 * MIB);
    assert_int_equal(reserved(a), 80 * MIB);
    take(a, 4, 1000);
    assert_int_equal(reserved(a), 82 * MIB);
}

TEST(whole_granules_of_expandable_segments_go_back)
{
    struct allocator *a = make("expandable_segments:True", 1000 * MIB);
    take(a, 1, 30 * MIB);
    take(a, 2, 50 * MIB);
    take(a, 3, 20 * MIB);
    give(a, 2);
    act(a, ALLOCATOR_EMPTY_CACHE, 0);
    assert_int_equal(reserved(a), 60 * MIB); /* 40 to 80 MiB are unmapped */
    assert_int_equal(take(a, 4, 50 * MIB).offset, 30 * MIB);
    assert_int_equal(reserved(a), 100 * MIB);
    for (uint64_t id = 1; id <= 4; id++)
        give(a, id);
    act(a, ALLOCATOR_EMPTY_CACHE, 0);
    assert_int_equal(reserved(a), 0);
    assert_int_equal(allocator_figures(a).n_segments, 0);
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
