/* From a clock's own time to the common axis. */
#include "align/clock_map.h"

void clocks_fini(struct clocks *clocks)
{
    mem_free(clocks->warnings.at);
    arena_fini(&clocks->arena);
    *clocks = (struct clocks){0};
}

/* The line of a segment, saturating. */
static int64_t on_line(const struct dpro_clock_segment *s, int64_t local_ns)
{
    double drift = s->drift_ppm * 1e-6 * ((double)local_ns - (double)s->start_ns);
    int64_t sum;
    if (!(drift > -0x1p62 && drift < 0x1p62) ||
        __builtin_add_overflow(s->offset_ns, (int64_t)(drift < 0 ? drift - 0.5 : drift + 0.5),
                               &sum) ||
        __builtin_add_overflow(local_ns, sum, &sum))
        return local_ns;
    return sum;
}

int64_t clock_aligned(const struct clock_map *map, int64_t local_ns)
{
    if (map->n == 0)
        return local_ns;
    uint32_t behind = LOWER_BOUND(i, 1, map->n, map->segments[i].start_ns <= local_ns);
    const struct dpro_clock_segment *segment = &map->segments[behind - 1];
    int64_t aligned = on_line(segment, local_ns);
    if (behind == 1)
        return aligned;
    int64_t before = on_line(segment - 1, segment->start_ns);
    return aligned < before ? before : aligned;
}
