/* Aligns made-up clocks: ranks that each talk to those whose number differs in one bit, for ten
 * seconds. Prints the time on one core, from the first pair to the last line, and peak memory. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "align/align.h"
#include "cpu_seconds.h"

static uint64_t state;

static uint64_t draw(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

static int64_t shown(int64_t true_ns, int64_t offset_ns, double drift)
{
    return true_ns + offset_ns + (int64_t)((double)true_ns * drift);
}

enum { LENGTH_MS = 10000 };

/* Of this program: getrusage counts the one that started it too. */
static long peak_bytes(void)
{
    char line[128];
    long kib = 0;
    FILE *file = fopen("/proc/self/status", "r");
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "VmHWM: %ld", &kib) == 1)
            break;
    if (file)
        fclose(file);
    return kib * 1024;
}

/* Pairs are written to stdout as text for other programs: clocks of sender and receiver, times. */
static int run(uint32_t n_clocks, uint32_t n_pairs, bool print)
{
    struct align *align = align_create(n_clocks);
    int64_t *offset = calloc(n_clocks, sizeof *offset);
    double *drift = calloc(n_clocks, sizeof *drift);
    uint32_t n_links = 0, n = 0;
    if (!offset || !drift)
        return -1;
    state = 88172645463325252u;
    for (uint32_t c = 1; c < n_clocks; c++) {
        offset[c] = (int64_t)(draw() % 2000000000) - 1000000000;
        drift[c] = ((double)(draw() % 20000) - 10000) * 1e-8;
    }
    for (uint32_t bit = 1; bit < n_clocks; bit *= 2)
        for (uint32_t c = 0; c < n_clocks; c++)
            n_links += (c ^ bit) < n_clocks;
    long before = peak_bytes();
    double start = cpu_seconds();
    for (uint32_t bit = 1; bit < n_clocks; bit *= 2)
        for (uint32_t from = 0; from < n_clocks; from++) {
            uint32_t to = from ^ bit, count = n_pairs / n_links;
            if (to >= n_clocks)
                continue;
            uint32_t pair = align_pair(align, from, to);
            for (uint32_t i = 0; i < count; i++, n++) {
                int64_t sent = (int64_t)LENGTH_MS * 1000000 / count * i;
                int64_t there = sent + 20000 + (int64_t)(draw() % (draw() % 4 ? 40000 : 8000000));
                int64_t from_ns = shown(sent, offset[from], drift[from]);
                int64_t to_ns = shown(there, offset[to], drift[to]);
                if (print)
                    printf("%u %u %lld %lld\n", from, to, (long long)from_ns, (long long)to_ns);
                else
                    align_before(align, pair, from, from_ns, to_ns, n);
            }
        }
    for (uint32_t c = 0; c < n_clocks; c++)
        align_cover(align, c, offset[c], offset[c] + (int64_t)LENGTH_MS * 1000000);
    if (!print)
        align_solve(align);
    double took = cpu_seconds() - start, worst = 0;
    for (uint32_t c = 1; c < n_clocks && !print; c++) {
        const struct align_result *result = align_result(align, c);
        if (result->n_segments != 1)
            return -1;
        worst = fmax(worst, fabs((double)(result->segments->offset_ns + offset[c])));
    }
    if (!print)
        printf("%u clocks, %u pairs: %.3f s on one core, %.1f bytes a pair, %.1f us off at most\n",
               n_clocks, n, took, (double)(peak_bytes() - before) / n, worst / 1e3);
    align_destroy(align);
    free(offset);
    free(drift);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 3) /* CLOCKS PAIRS: print them */
        return run((uint32_t)atoi(argv[1]), (uint32_t)atoi(argv[2]), true) < 0;
    return run(16, 1000000, false) < 0 || run(1024, 10000000, false) < 0;
}
