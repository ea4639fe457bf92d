/* Fuzz target: settings of the caching allocator as text, up to a NUL; then requests of five bytes
 * each: each gives back the block of a number, and may take another one. */
#include "fuzz.h"

#include "replay/caching_allocator.h"

enum { MOST = 4000 };

static int run(const uint8_t *data, size_t size)
{
    const uint64_t capacity = (uint64_t)1 << 33;
    const uint8_t *end = memchr(data, 0, size);
    struct allocator_settings settings = allocator_settings_default();
    struct dpro_error err;
    uint32_t taken[256];
    char *text = mem_alloc(size + 1);
    size_t length = end ? (size_t)(end - data) : size;
    memcpy(text, data, length);
    text[length] = '\0';
    if (allocator_settings_parse(&settings, text, &err) < 0 || !end)
        return DPRO_ECANCEL;
    struct allocator *allocator = allocator_create(&settings, capacity);
    memset(taken, 0xff, sizeof taken);
    data = end + 1;
    size -= length + 1;
    for (size_t n = 0; size >= 5 && n < MOST; data += 5, size -= 5, n++) {
        uint32_t *block = &taken[data[1]];
        if (*block != ALLOCATOR_NO_BLOCK)
            allocator_give(allocator, *block);
        *block = ALLOCATOR_NO_BLOCK;
        if (data[0] % 64 == 0)
            allocator_empty_cache(allocator);
        else if (data[0] % 2)
            *block = allocator_take(allocator, ((uint64_t)data[2] << 8 | data[3]) << data[4] % 60);
        struct allocator_figures figures = allocator_figures(allocator);
        if (figures.reserved_bytes > capacity || figures.allocated_bytes > figures.reserved_bytes)
            abort();
    }
    return DPRO_ECANCEL; /* so that all is freed */
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    (void)WITHIN_SCOPE(DPRO_ENOMEM, run(data, size));
    return 0;
}
