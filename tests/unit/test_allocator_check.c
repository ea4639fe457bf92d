/* The peaks that PyTorch's own allocator reached, on a GPU and without one (tests/cuda-allocator),
 * and the requests that failed there. */

#include "base/file.h"
#include "case.h"
#include "replay/caching_allocator.h"

struct asked {
    char what; /* a, r, c, x, e, y */
    uint64_t address, bytes;
};

/* A record as its README describes it. */
struct record {
    struct allocator_settings settings;
    uint64_t capacity, reserved_peak;
    ARRAY(struct asked) asked; /* by the program */
};

static void read_line(struct record *r, char *line)
{
    uint64_t address, bytes, device;
    double fraction;
    if (strncmp(line, "settings ", 9) == 0) {
        if (line[9] != '-')
            assert_int_equal(allocator_settings_parse(&r->settings, line + 9, NULL), 0);
    } else if (strncmp(line, "torch ", 6) == 0) {
        r->settings.by_address = allocator_is_by_address(line + 6);
    } else if (sscanf(line, "device %" SCNu64 " %" SCNu64 " %lf", &r->capacity, &device,
                      &fraction) == 3) {
        if (fraction > 0 && fraction < 1)
            r->capacity = MIN(r->capacity, (uint64_t)(fraction * (double)device));
        r->settings.memory_fraction = fraction;
    } else if (sscanf(line, "peaks %" SCNu64, &r->reserved_peak) == 1) {
    } else if (sscanf(line, "x %" SCNu64, &bytes) == 1) {
        array_add(&r->asked, 'x', 0, bytes);
    } else if (line[0] == 'e' || line[0] == 'y') {
        array_add(&r->asked, line[0], 0, 0);
    } else if (strchr("arc", line[0]) &&
               sscanf(line + 1, "%" SCNx64 " %" SCNu64, &address, &bytes) == 2) {
        array_add(&r->asked, line[0], address, bytes);
    } else if (!strchr("AFMUoS", line[0])) {
        fail_msg("no line of a record: %s", line);
    }
}

static void read_record(const char *name, struct record *r)
{
    static char text[1 << 20];
    char path[4096];
    struct input in;
    const char *source = getenv("DPRO_SOURCE");
    *r = (struct record){.settings = allocator_settings_default()};
    snprintf(path, sizeof path, "%s/tests/cuda-allocator/%s.txt.gz", source ? source : ".", name);
    assert_int_equal(input_open(&in, path, NULL), 0);
    int64_t n = input_read(&in, text, sizeof text - 1, NULL);
    input_close(&in);
    assert_in_range(n, 1, sizeof text - 2);
    text[n] = '\0';
    char *rest = text;
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest))
        read_line(r, line);
}

/* `off`: where the blocks are of several streams, which are taken to be one. */
static const struct {
    const char *name;
    double off;
} records[] = {{"default", 0},
               {"expandable", 0},
               {"expandable-full", 0},
               {"full", 0},
               {"garbage", 0},
               {"small", 0},
               {"split", 0},
               {"expandable-random", 0},
               {"random", 0.07},
               {"rounded", 0.22},
               /* of a GPU */
               {"h200-training", 0},
               {"h200", 0.15},
               {"h200-capped", 0.12},
               {"h200-expandable", 0.1},
               {"h200-expandable-capped", 0.07},
               {"h200-garbage", 0.08}};

/* As a user's what-if asks: nothing is known but the requests. A block that another stream used may
 * be taken again when that is done, or when the allocator waits for it. */
TEST(peaks_and_failures_are_those_of_pytorch)
{
    for (size_t i = 0; i < sizeof records / sizeof *records; i++) {
        struct record r;
        struct map blocks = {0}; /* by address */
        uint64_t block;
        read_record(records[i].name, &r);
        struct allocator *a = allocator_create(&r.settings, r.capacity);
        for (size_t k = 0; k < r.asked.n; k++) {
            char what = r.asked.at[k].what;
            uint64_t key = map_key(r.asked.at[k].address);
            if (what == 'e')
                allocator_empty_cache(a);
            if (what == 'c' && map_get(&blocks, key, &block) && block != ALLOCATOR_NO_BLOCK) {
                allocator_give(a, (uint32_t)block);
                map_set(&blocks, key, ALLOCATOR_NO_BLOCK);
            }
            if (what != 'a' && what != 'x')
                continue;
            block = allocator_take(a, r.asked.at[k].bytes);
            assert_int_equal(block == ALLOCATOR_NO_BLOCK, what == 'x');
            if (what == 'a')
                map_set(&blocks, key, block);
        }
        uint64_t peak = allocator_figures(a).reserved_peak_bytes;
        uint64_t slack = (uint64_t)(records[i].off * (double)r.reserved_peak);
        assert_in_range(peak, r.reserved_peak - slack, r.reserved_peak + slack);
        allocator_destroy(a);
        map_fini(&blocks);
        array_fini(&r.asked);
    }
}
