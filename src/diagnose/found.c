/* Names the parts of a cause. */
#include "diagnose/pieces.h"

uint32_t found_part(struct cause_found *found, uint64_t key, const char *format, ...)
{
    uint64_t number = map_first(&found->part_numbers, map_key(key), found->parts.n);
    if (number < found->parts.n)
        return (uint32_t)number;
    char name[256];
    va_list args;
    va_start(args, format);
    vsnprintf(name, sizeof name, format, args);
    va_end(args);
    array_push(&found->parts, arena_copy_string(found->arena, name, strlen(name)));
    return (uint32_t)number;
}
