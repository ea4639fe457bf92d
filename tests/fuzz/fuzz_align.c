/* Fuzz target: clocks from any facts. The first byte says how many clocks, and whether times are
 * near each other; each further 18 bytes are a fact or a wish. What comes out is in order, and
 * where nothing contradicts, all facts hold. */

#include "align/solver.h"
#include "fuzz.h"

/* What drifts by more than a hundredth is no clock, and is rounded by more than is looked for. */
enum { FACT_BYTES = 18, MAX_FACTS = 400, MOST_PPM = 10000 };

struct given {
    uint32_t from, to;
    int64_t from_ns, to_ns;
};

static int64_t aligned(const struct align *align, uint32_t clock, int64_t local_ns)
{
    const struct dpro_clock_segment *at = align_result(align, clock)->segments;
    if (align_result(align, clock)->n_segments != 1)
        abort();
    return local_ns + at->offset_ns +
           (int64_t)(at->drift_ppm * 1e-6 * (double)(local_ns - at->start_ns));
}

static void check(const struct align *align, uint32_t n_clocks, const struct given *facts, int n,
                  int small)
{
    const struct align_conflict *conflicts;
    bool plain = small && align_conflicts(align, &conflicts) == 0 && align->windows.n == 1;
    for (uint32_t c = 0; c < n_clocks; c++) {
        struct align_result is = *align_result(align, c);
        const struct dpro_clock_segment *at = is.segments;
        for (uint32_t s = 0; s < is.n_segments; s++) {
            plain = plain && at[s].drift_ppm > -MOST_PPM && at[s].drift_ppm < MOST_PPM;
            if (at[s].uncertainty_ns < 0 || at[s].drift_ppm != at[s].drift_ppm ||
                (s > 0 && at[s].start_ns < at[s - 1].start_ns))
                abort();
        }
        if (is.n_bounds > ALIGN_MAX_BOUNDS)
            abort();
        for (uint32_t i = 0; i < is.n_bounds; i++)
            if (is.bounds[i].lower_ns > is.bounds[i].upper_ns)
                abort();
    }
    for (int i = 0; i < n && plain; i++)
        if (align_result(align, facts[i].from)->n_segments > 0 &&
            align_result(align, facts[i].to)->n_segments > 0 &&
            aligned(align, facts[i].from, facts[i].from_ns) >
                aligned(align, facts[i].to, facts[i].to_ns) + 5)
            abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct given facts[MAX_FACTS];
    if (size < 1)
        return 0;
    uint32_t n_clocks = 2 + data[0] % 6;
    int small = data[0] & 64, n = 0;
    struct align *align = align_create(n_clocks);
    for (data++, size--; size >= FACT_BYTES && n < MAX_FACTS;
         data += FACT_BYTES, size -= FACT_BYTES) {
        struct given f = {.from = data[0] % n_clocks};
        f.to = (f.from + 1 + data[1] % (n_clocks - 1)) % n_clocks;
        memcpy(&f.from_ns, data + 2, 8);
        memcpy(&f.to_ns, data + 10, 8);
        if (small) { /* minutes, and milliseconds apart */
            f.from_ns %= INT64_C(100000000000);
            f.to_ns = f.from_ns + f.to_ns % INT64_C(10000000);
        }
        uint32_t pair = align_pair(align, f.from, f.to);
        switch (data[1] >> 5) {
        case 0:
            align_cover(align, f.from, f.from_ns, f.to_ns);
            break;
        case 1:
            align_keep(align, f.from);
            break;
        case 2:
            align_near(align, pair, f.from, f.from_ns, f.to_ns);
            break;
        default:
            align_before(align, pair, f.from, f.from_ns, f.to_ns, size);
            facts[n++] = f;
        }
    }
    align_solve(align);
    check(align, n_clocks, facts, n, small);
    align_destroy(align);
    return 0;
}
