/* What PyTorch's own allocator answered, on a GPU and without one (tests/cuda-allocator), request
 * by request; and histories that make no sense. */

#include "base/file.h"
#include "case.h"
#include "replay/caching_allocator.h"

/* A record as its README describes it. */
struct record {
    struct allocator_history history;
    double fraction;
    uint64_t capacity, reserved_peak, allocated_peak;
    ARRAY(struct allocator_request) requests; /* with recorded answers */
    ARRAY(struct allocator_request)
    asked; /* what the program asked for; 0 bytes taken: the
              allocator waits for all streams */
    ARRAY(struct allocator_segment) segments;
    ARRAY(struct allocator_block) blocks;
};

static void read_blocks(struct record *r, struct allocator_segment *segment, char *at)
{
    uint64_t address = segment->address, size;
    int state, length;
    segment->first_block = (uint32_t)r->blocks.n;
    while (sscanf(at, " %" SCNu64 ":%d%n", &size, &state, &length) == 2) {
        struct allocator_block block = {address, size, (uint8_t)state};
        array_push(&r->blocks, block);
        address += size;
        at += length;
    }
    segment->n_blocks = (uint32_t)r->blocks.n - segment->first_block;
    assert_int_equal(address, segment->address + segment->size_bytes);
}

static void read_line(struct record *r, char *line)
{
    static const char letters[] = "arcAFMUo";
    static const uint8_t acts[] = {ALLOCATOR_TAKE,           ALLOCATOR_GIVE_REQUESTED,
                                   ALLOCATOR_GIVE_COMPLETED, ALLOCATOR_SEGMENT_TAKEN,
                                   ALLOCATOR_SEGMENT_GIVEN,  ALLOCATOR_MAPPED,
                                   ALLOCATOR_UNMAPPED,       ALLOCATOR_FAILED};
    struct allocator_request act = {0};
    struct allocator_segment segment = {0};
    unsigned small, expandable;
    int order, length;
    const char *letter = strchr(letters, line[0]);
    if (sscanf(line, "settings %n", &length) == 0 && strncmp(line, "settings ", 9) == 0) {
        if (line[9] != '-')
            assert_int_equal(allocator_settings_parse(&r->history.settings, line + 9, NULL), 0);
    } else if (strncmp(line, "torch ", 6) == 0) {
        r->history.settings.by_address = allocator_is_by_address(line + 6);
    } else if (sscanf(line, "device %" SCNu64 " %" SCNu64 " %lf", &r->capacity,
                      &r->history.capacity_bytes, &r->fraction) == 3) {
        r->history.settings.memory_fraction = r->fraction;
    } else if (sscanf(line, "peaks %" SCNu64 " %" SCNu64, &r->reserved_peak, &r->allocated_peak) ==
               2) {
    } else if (sscanf(line, "S %" SCNx64 " %" SCNu64 " %" SCNu32 " %u %u %d%n", &segment.address,
                      &segment.size_bytes, &segment.stream, &small, &expandable, &order,
                      &length) == 6) {
        segment.small = small;
        segment.expandable = expandable;
        segment.order = (uint32_t)(order + 1);
        read_blocks(r, &segment, line + length);
        array_push(&r->segments, segment);
    } else if (line[0] == 'e') {
        act.what = ALLOCATOR_EMPTY_CACHE;
        array_push(&r->asked, act);
    } else if (line[0] == 'y') {
        act.what = ALLOCATOR_TAKE;
        array_push(&r->asked, act);
    } else if (sscanf(line, "x %" SCNu64 " %" SCNu32, &act.bytes, &act.stream) == 2) {
        act.what = ALLOCATOR_TAKE;
        array_push(&r->asked, act);
    } else if (letter && sscanf(line + 1, "%" SCNx64 " %" SCNu64 " %" SCNu32, &act.id, &act.bytes,
                                &act.stream) == 3) {
        act.what = acts[letter - letters];
        array_push(&r->requests, act);
        if (act.what <= ALLOCATOR_GIVE_COMPLETED)
            array_push(&r->asked, act);
    } else {
        fail_msg("no line of a record: %s", line);
    }
}

static void read_record(const char *name, struct record *r)
{
    static char text[1 << 20];
    char path[4096];
    struct input in;
    const char *source = getenv("DPRO_SOURCE");
    *r = (struct record){.history.settings = allocator_settings_default()};
    snprintf(path, sizeof path, "%s/tests/cuda-allocator/%s.txt.gz", source ? source : ".", name);
    assert_int_equal(input_open(&in, path, NULL), 0);
    int64_t n = input_read(&in, text, sizeof text - 1, NULL);
    input_close(&in);
    assert_in_range(n, 1, sizeof text - 2);
    text[n] = '\0';
    char *rest = text;
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest))
        read_line(r, line);
    r->history.requests = r->requests.at;
    r->history.n_requests = (uint32_t)r->requests.n;
    r->history.segments = r->segments.at;
    r->history.n_segments = (uint32_t)r->segments.n;
    r->history.blocks = r->blocks.at;
    r->history.n_blocks = (uint32_t)r->blocks.n;
}

static void free_record(struct record *r)
{
    array_fini(&r->requests);
    array_fini(&r->asked);
    array_fini(&r->segments);
    array_fini(&r->blocks);
}

static const char *const names[] = {"default", "expandable", "expandable-full", "expandable-random",
                                    "full", "garbage", "random", "rounded", "small", "split",
                                    /* of a GPU */
                                    "h200", "h200-capped", "h200-expandable",
                                    "h200-expandable-capped", "h200-garbage", "h200-training"};
#define N_RECORDS (sizeof names / sizeof *names)

/* As a user's what-if asks: nothing is known but the requests. */
TEST(peaks_and_failures_are_those_of_pytorch)
{
    for (size_t i = 0; i < N_RECORDS; i++) {
        struct record r;
        read_record(names[i], &r);
        struct allocator_options options = {.settings = r.history.settings,
                                            .capacity_bytes = r.capacity,
                                            .device_bytes = r.history.capacity_bytes};
        struct allocator *a = allocator_create(&options);
        uint64_t n_failed = 0;
        bool waits = false;
        for (size_t k = 0; k < r.asked.n; k++) {
            struct allocator_request act = r.asked.at[k];
            bool takes = act.what == ALLOCATOR_TAKE;
            if (takes && act.bytes == 0) { /* from here to the next taking */
                waits = true;
                continue;
            }
            if (waits && act.what == ALLOCATOR_GIVE_COMPLETED)
                continue;
            waits = false;
            bool fails = takes && act.id == 0;
            n_failed += fails;
            if (fails)
                act.id = UINT64_MAX;
            struct allocator_placement placement = allocator_request(a, &act);
            if (placement.failed != fails)
                fail_msg("%s: request %zu of %" PRIu64 " bytes: failed: %d", names[i], k, act.bytes,
                         placement.failed);
        }
        struct allocator_figures figures = allocator_figures(a);
        /* where a GPU's driver finds addresses free depends on the process's other mappings */
        bool of_gpu = strncmp(names[i], "h200", 4) == 0;
        uint64_t slack = of_gpu ? r.reserved_peak / 100 : 0;
        assert_in_range(figures.reserved_peak_bytes, r.reserved_peak - slack,
                        r.reserved_peak + slack);
        if (!of_gpu)
            assert_int_equal(figures.allocated_peak_bytes, r.allocated_peak);
        assert_int_equal(figures.n_failed, n_failed);
        allocator_destroy(a);
        free_record(&r);
    }
}

/* What the allocator held before the history, and what it answers from there on. */
static struct allocator_figures follow(const struct allocator_history *history, uint64_t *restored)
{
    struct allocator_start start;
    struct allocator *a =
        allocator_create(&(struct allocator_options){.settings = history->settings});
    allocator_roll_back(history, a, &start);
    allocator_restore(a, start.segments.at, (uint32_t)start.segments.n, start.blocks.at);
    *restored = allocator_figures(a).reserved_bytes;
    for (uint32_t i = 0; i < history->n_requests; i++)
        allocator_request(a, &history->requests[i]);
    struct allocator_figures figures = allocator_figures(a);
    allocator_start_fini(&start);
    allocator_destroy(a);
    return figures;
}

TEST(a_record_that_begins_in_the_midst_is_followed)
{
    for (size_t i = 0; i < N_RECORDS; i++)
        for (uint32_t part = 0; part < 8; part++) {
            struct record r;
            read_record(names[i], &r);
            uint32_t cut = r.history.n_requests / 8 * part;
            uint64_t reserved = 0, restored;
            for (size_t s = 0; s < r.segments.n; s++)
                reserved += r.segments.at[s].size_bytes;
            for (uint32_t k = r.history.n_requests; k-- > cut;) {
                const struct allocator_request *act = &r.requests.at[k];
                bool takes = act->what == ALLOCATOR_SEGMENT_TAKEN || act->what == ALLOCATOR_MAPPED;
                bool gives =
                    act->what == ALLOCATOR_SEGMENT_GIVEN || act->what == ALLOCATOR_UNMAPPED;
                reserved += gives ? act->bytes : takes ? -act->bytes : 0;
            }
            r.history.requests += cut;
            r.history.n_requests -= cut;
            struct allocator_figures figures = follow(&r.history, &restored);
            assert_int_equal(restored, reserved);
            assert_int_equal(figures.n_unknown, 0);
            free_record(&r);
        }
}

TEST(driver_addresses_fall_chunk_by_chunk)
{
    struct allocator *a =
        allocator_create(&(struct allocator_options){.settings = allocator_settings_default()});
    static const uint64_t sizes[] = {62, 20, 86, 30, 1}; /* MiB */
    uint64_t at[5];
    for (size_t i = 0; i < 5; i++)
        at[i] = allocator_request(a, &(struct allocator_request){.what = ALLOCATOR_TAKE,
                                                                 .bytes = sizes[i] << 20,
                                                                 .id = i})
                    .segment;
    assert_int_equal(at[0] - at[1], 32 << 20);
    assert_int_equal(at[1] - at[2], 96 << 20);
    assert_int_equal(at[2] - at[3], 32 << 20);
    assert_int_equal(at[4] - at[3], 30 << 20); /* what the newest chunk has left */
    allocator_destroy(a);
}

TEST(private_pools_are_left_out)
{
    struct record r;
    uint64_t others;
    read_record("small", &r);
    for (size_t s = 0; s < r.segments.n; s++)
        r.segments.at[s].private_pool = s == 0;
    r.history.n_requests = 0;
    follow(&r.history, &others);
    uint64_t sum = 0;
    for (size_t s = 1; s < r.segments.n; s++)
        sum += r.segments.at[s].size_bytes;
    assert_int_equal(others, sum);
    free_record(&r);
}

/* ---- histories that make no sense ---- */

static uint64_t state = 1;

static uint64_t pick(uint64_t below)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (state >> 33) % below;
}

TEST(damaged_records_do_no_harm)
{
    for (size_t round = 0; round < 200; round++) {
        struct record r;
        read_record(names[round % N_RECORDS], &r);
        for (int n = 0; n < 40; n++) {
            struct allocator_request *request = &r.requests.at[pick(r.requests.n)];
            struct allocator_segment *segment = &r.segments.at[pick(r.segments.n)];
            struct allocator_block *block = &r.blocks.at[pick(r.blocks.n)];
            uint64_t odd = pick(2) ? pick(1 << 20) : pick(4) ? UINT64_MAX - pick(4096) : 0;
            switch (pick(9)) {
            case 0:
                request->bytes = odd;
                break;
            case 1:
                request->id = odd;
                break;
            case 2:
                request->what = (uint8_t)pick(14);
                break;
            case 3:
                *request = r.requests.at[pick(r.requests.n)];
                break;
            case 4:
                segment->size_bytes = odd;
                break;
            case 5:
                block->size_bytes = odd;
                break;
            case 6:
                block->state = (uint8_t)pick(3);
                break;
            case 7:
                segment->expandable = !segment->expandable;
                break;
            case 8:
                block->address += odd;
                break;
            }
        }
        uint64_t restored;
        struct allocator_figures figures = follow(&r.history, &restored);
        assert_true(figures.reserved_bytes <= figures.reserved_peak_bytes);
        free_record(&r);
    }
}

TEST(nothing_recorded_is_no_error)
{
    struct allocator_history history = {.settings = allocator_settings_default()};
    uint64_t restored;
    assert_int_equal(follow(&history, &restored).reserved_peak_bytes, 0);
    assert_int_equal(restored, 0);
}
