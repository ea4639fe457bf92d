/* Chooses modules to recompute by branch and bound: each module in turn is chosen or not. A branch
 * ends where a place can't be satisfied any more, or where its remaining need would take longer
 * than the best choice so far even if modules were divisible. It gives up after too many steps. */

#include "optimize/recompute_choice.h"

enum { MOST_WORK = 100000000, MOST_CELLS = 1 << 22 };

struct branch {
    struct arena arena;
    const struct recompute_rows *rows;
    uint32_t n;
    uint32_t *order;    /* [depth] module */
    uint32_t *depth;    /* [module] */
    int64_t *at_most;   /* [depth * rows + row] what the modules from there on can take away */
    uint32_t *cheapest; /* [row * n + i] modules by their time for what they take away there */
    int64_t *left;      /* [row] what it still needs */
    bool *now, *best;
    int64_t best_ns;
    int64_t work;
};

struct branch_offer {
    double price;
    uint32_t module;
};
ORDER(cheapest_first, struct branch_offer, ASCENDING(price) ?: ASCENDING(module));

/* At infinite price: it is of no use there. */
static double price_of(const struct recompute_rows *rows, uint32_t row, uint32_t module)
{
    int64_t bytes = rows->less[row][module];
    return bytes > 0 ? (double)rows->time_ns[module] / (double)bytes : 1e300;
}

static void branch_init(struct branch *b, const struct recompute_rows *rows, bool *chosen)
{
    uint32_t n = rows->n_modules;
    size_t cells = (size_t)rows->n * n + 1;
    *b = (struct branch){.rows = rows, .n = n, .best = chosen, .work = MOST_WORK};
    b->order = arena_array(&b->arena, n + (size_t)1, sizeof *b->order);
    b->depth = arena_array(&b->arena, n + (size_t)1, sizeof *b->depth);
    b->now = arena_array(&b->arena, n + (size_t)1, sizeof *b->now);
    b->at_most = arena_array(&b->arena, cells + rows->n, sizeof *b->at_most);
    b->cheapest = arena_array(&b->arena, cells, sizeof *b->cheapest);
    b->left = arena_array(&b->arena, rows->n + (size_t)1, sizeof *b->left);
    struct branch_offer *offers = arena_array(&b->arena, n + (size_t)1, sizeof *offers);
    for (uint32_t m = 0; m < n; m++) {
        double bytes = 1;
        for (uint32_t i = 0; i < rows->n; i++)
            bytes += (double)MAX(rows->less[i][m], 0);
        offers[m] = (struct branch_offer){(double)rows->time_ns[m] / bytes, m};
    }
    qsort(offers, n, sizeof *offers, cheapest_first);
    for (uint32_t d = 0; d < n; d++) {
        b->order[d] = offers[d].module;
        b->depth[offers[d].module] = d;
    }
    for (uint32_t i = 0; i < rows->n; i++) {
        for (uint32_t m = 0; m < n; m++)
            offers[m] = (struct branch_offer){price_of(rows, i, m), m};
        qsort(offers, n, sizeof *offers, cheapest_first);
        for (uint32_t m = 0; m < n; m++)
            b->cheapest[(size_t)i * n + m] = offers[m].module;
        b->left[i] = rows->need[i];
        for (uint32_t d = n; d-- > 0;)
            b->at_most[d * (size_t)rows->n + i] =
                b->at_most[(d + (size_t)1) * rows->n + i] + MAX(rows->less[i][b->order[d]], 0);
    }
}

/* What a row still costs, were the modules from `depth` on divisible. */
static double least_ns(struct branch *b, uint32_t row, uint32_t depth)
{
    double ns = 0;
    int64_t left = b->left[row];
    for (uint32_t i = 0; i < b->n && left > 0; i++) {
        uint32_t m = b->cheapest[(size_t)row * b->n + i];
        int64_t bytes = b->rows->less[row][m];
        if (b->depth[m] < depth || bytes <= 0)
            continue;
        ns += (double)b->rows->time_ns[m] * (bytes < left ? 1 : (double)left / (double)bytes);
        left -= bytes;
    }
    b->work -= b->n;
    return ns;
}

static void branch_put(struct branch *b, uint32_t module, int sign)
{
    for (uint32_t i = 0; i < b->rows->n; i++)
        b->left[i] -= sign * b->rows->less[i][module];
}

static void branch_descend(struct branch *b, uint32_t depth, int64_t ns)
{
    uint32_t n_rows = b->rows->n, neediest = UINT32_MAX;
    double most = 0;
    b->work -= n_rows;
    if (b->work < 0 || ns >= b->best_ns)
        return;
    for (uint32_t i = 0; i < n_rows; i++) {
        int64_t can = b->at_most[depth * (size_t)n_rows + i];
        if (b->left[i] > can)
            return;
        double share = b->left[i] > 0 ? (double)b->left[i] / (double)can : 0;
        if (share > most) {
            most = share;
            neediest = i;
        }
    }
    if (neediest == UINT32_MAX) { /* all are content, and more modules only take more time */
        memcpy(b->best, b->now, b->n * sizeof *b->best);
        b->best_ns = ns;
        return;
    }
    if (depth == b->n ||
        (double)ns + least_ns(b, neediest, depth) * (1 - 1e-9) >= (double)b->best_ns)
        return;
    uint32_t m = b->order[depth];
    b->now[m] = true;
    branch_put(b, m, 1);
    branch_descend(b, depth + 1, ns + b->rows->time_ns[m]);
    branch_put(b, m, -1);
    b->now[m] = false;
    branch_descend(b, depth + 1, ns);
}

bool recompute_branch(const struct recompute_rows *rows, bool *chosen, bool *suffices)
{
    struct branch b;
    if ((uint64_t)rows->n * rows->n_modules > MOST_CELLS)
        return false;
    branch_init(&b, rows, chosen);
    int64_t known_ns = INT64_MAX;
    if (*suffices) {
        known_ns = 0;
        for (uint32_t m = 0; m < b.n; m++)
            known_ns += chosen[m] ? rows->time_ns[m] : 0;
    }
    b.best_ns = known_ns;
    branch_descend(&b, 0, 0);
    *suffices |= b.best_ns < known_ns;
    arena_fini(&b.arena);
    return b.work >= 0;
}
