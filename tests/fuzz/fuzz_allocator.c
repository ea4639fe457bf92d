/* Fuzz target: settings of the caching allocator as text, up to a NUL; then requests of eight bytes
 * each, which the simulator answers, and which are undone as if they had been recorded. */
#include "fuzz.h"

#include "replay/caching_allocator.h"

enum { MOST = 4000 };

static size_t read_requests(const uint8_t *data, size_t size, struct allocator_request *requests)
{
    size_t n = 0;
    for (; size >= 8 && n < MOST; data += 8, size -= 8, n++) {
        uint64_t bytes = ((uint64_t)data[2] << 8 | data[3]) << data[4] % 52;
        requests[n] = (struct allocator_request){.what = data[0] % (ALLOCATOR_FAILED + 2),
                                                 .id = (uint64_t)data[1] << (data[6] % 3 * 21),
                                                 .bytes = data[7] % 8 ? bytes : bytes << 8,
                                                 .stream = data[5] % 3};
    }
    return n;
}

static int run(const uint8_t *data, size_t size)
{
    static struct allocator_request requests[MOST];
    const uint8_t *end = memchr(data, 0, size);
    struct allocator_options options = {.settings = allocator_settings_default(),
                                        .capacity_bytes = (uint64_t)1 << 33};
    struct dpro_error err;
    char *text = mem_alloc(size + 1);
    size_t length = end ? (size_t)(end - data) : size;
    memcpy(text, data, length);
    text[length] = '\0';
    if (allocator_settings_parse(&options.settings, text, &err) < 0 || !end)
        return DPRO_ECANCEL;
    size_t n = read_requests(end + 1, size - length - 1, requests);
    struct allocator *allocator = allocator_create(&options);
    for (size_t i = 0; i < n; i++)
        allocator_request(allocator, &requests[i]);
    struct allocator_figures figures = allocator_figures(allocator);
    if (figures.reserved_bytes > options.capacity_bytes ||
        figures.allocated_bytes + figures.waiting_bytes > figures.reserved_bytes)
        abort();
    struct allocator_history history = {
        .settings = options.settings, .requests = requests, .n_requests = (uint32_t)n};
    struct allocator_start start;
    allocator_roll_back(&history, allocator, &start);
    allocator_restore(allocator, start.segments.at, (uint32_t)start.segments.n, start.blocks.at);
    return DPRO_ECANCEL; /* so that all is freed */
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    (void)WITHIN_SCOPE(DPRO_ENOMEM, run(data, size));
    return 0;
}
