/* Dimensions as the user names them, in place of those that the traffic shows.
 *
 * The sizes must make up the ranks. They are laid out as in a device mesh, the last one with
 * neighbouring ranks; in another order where only that fits the groups of the trace. */

#include "graph/dimensions/find_dimensions.h"

struct asked {
    const char *text;
    uint32_t n;
    int does[DPRO_N_PARALLELISMS];
    uint32_t size[DPRO_N_PARALLELISMS];
    uint32_t over; /* the one that lies over others; NO_ID: none */
};

_Noreturn static void dimensions_fail(const struct asked *asked, const char *why)
{
    fail_with(DPRO_EUSAGE, "--dims %s: %s", asked->text, why);
}

static void dimensions_parse(struct asked *asked)
{
    static const char form[] =
        "write sizes of dp, fsdp, cp, ep, tp and pp, the outermost first, as in "
        "dp=2,tp=4";
    for (const char *at = asked->text; *at;) {
        char *end;
        size_t len = strcspn(at, "=");
        int does = 0;
        while (does < DPRO_N_PARALLELISMS &&
               !text_n_is(at, len, dpro_parallelism_name((enum dpro_parallelism)does)))
            does++;
        for (uint32_t i = 0; i < asked->n; i++)
            if (asked->does[i] == does)
                dimensions_fail(asked, "each dimension can be given once");
        if (does == DPRO_N_PARALLELISMS || at[len] != '=' || at[len + 1] < '0' || at[len + 1] > '9')
            dimensions_fail(asked, form);
        unsigned long long size = strtoull(at + len + 1, &end, 10);
        if (size < 1 || size > INT32_MAX || (*end != ',' && *end != '\0') ||
            (*end == ',' && end[1] == '\0'))
            dimensions_fail(asked, form);
        asked->does[asked->n] = does;
        asked->size[asked->n++] = (uint32_t)size;
        at = end + (*end == ',');
    }
    if (asked->n == 0)
        dimensions_fail(asked, form);
}

/* Experts lie over others where they are one factor too many. */
static void check_product(struct asked *asked, int world)
{
    uint64_t product = 1, without = 1;
    char why[160];
    for (uint32_t i = 0; i < asked->n; i++) {
        product = MIN(product * asked->size[i], (uint64_t)1 << 32);
        without =
            MIN(without * (asked->does[i] == DPRO_EXPERTS ? 1 : asked->size[i]), (uint64_t)1 << 32);
    }
    for (uint32_t i = 0; i < asked->n && product != (uint64_t)world; i++)
        if (asked->does[i] == DPRO_EXPERTS && without == (uint64_t)world)
            asked->over = i;
    if (product == (uint64_t)world || asked->over != NO_ID)
        return;
    snprintf(why, sizeof why, "these make %llu ranks, the job has %d", (unsigned long long)product,
             world);
    dimensions_fail(asked, why);
}

/* The boxes of the dimensions in an order, the outermost first. */
static void dimensions_place(const struct asked *asked, const uint32_t *order,
                             struct grid_box *boxes)
{
    int32_t stride = 1;
    for (uint32_t i = asked->n; i-- > 0;) {
        uint32_t d = order[i];
        boxes[d] = (struct grid_box){0};
        if (d == asked->over || asked->size[d] == 1)
            continue;
        boxes[d] = (struct grid_box){1, {{stride, stride * (int32_t)asked->size[d]}}};
        stride *= (int32_t)asked->size[d];
    }
}

/* The dimension that a box is; asked->n: several, or (in *fits) none. */
static uint32_t dimensions_covers(const struct asked *asked, const struct grid_box *boxes,
                                  const struct grid_box *box, bool *fits)
{
    uint32_t found = asked->n;
    struct grid_box rest = *box;
    for (uint32_t d = 0; d < asked->n; d++) {
        if (boxes[d].n == 0 || !grid_box_overlap(&rest, &boxes[d]))
            continue;
        if (grid_box_equal(&rest, &boxes[d]) && grid_box_equal(&rest, box))
            found = d;
        *fits &= grid_box_within(&boxes[d], &rest);
        if (*fits)
            rest = grid_box_without(&rest, &boxes[d]);
    }
    *fits &= rest.n == 0;
    return found;
}

/* -1: the groups of the trace contradict the order; else how many families do what their dimension
 * is for. */
static int dimensions_score(const struct finder *f, const struct asked *asked,
                            const struct grid_box *boxes)
{
    int n = 0;
    EACH (const struct family, family, f->families) {
        bool fits = true;
        if (family->box.n == 0 || (family->does == DPRO_EXPERTS && asked->over != NO_ID))
            continue;
        uint32_t d = dimensions_covers(asked, boxes, &family->box, &fits);
        if (!fits)
            return -1;
        n += d < asked->n && (asked->does[d] == family->does ||
                              (keeps_parameters(asked->does[d]) && keeps_parameters(family->does)));
    }
    return n;
}

/* The digits of a number to the base n, the first one highest; false: they are no order. */
static bool order_of(uint32_t number, uint32_t n, uint32_t *order)
{
    uint32_t seen = 0;
    for (uint32_t i = n; i-- > 0; number /= n) {
        order[i] = number % n;
        seen |= 1u << order[i];
    }
    return seen == (1u << n) - 1;
}

static bool choose_order(const struct finder *f, const struct asked *asked, struct grid_box *boxes)
{
    uint32_t order[DPRO_N_PARALLELISMS], n_numbers = 1;
    int best = -1;
    for (uint32_t i = 0; i < asked->n; i++)
        n_numbers *= asked->n;
    for (uint32_t number = 0; number < n_numbers; number++) {
        struct grid_box tried[DPRO_N_PARALLELISMS];
        if (!order_of(number, asked->n, order))
            continue;
        dimensions_place(asked, order, tried);
        int n = dimensions_score(f, asked, tried);
        if (n > best) {
            best = n;
            memcpy(boxes, tried, sizeof tried);
        }
    }
    return best >= 0;
}

/* Experts that lie over others: as the trace's groups of that size do, else within the replicas. */
static void place_over(const struct finder *f, const struct asked *asked, struct grid_box *boxes)
{
    uint32_t size = asked->size[asked->over];
    EACH (const struct family, family, f->families)
        if (family->does == DPRO_EXPERTS && family->size == size && family->box.n > 0) {
            boxes[asked->over] = family->box;
            return;
        }
    for (uint32_t d = 0; d < asked->n; d++)
        if (keeps_parameters(asked->does[d]) && boxes[d].n == 1 && asked->size[d] % size == 0) {
            int32_t from = boxes[d].at[0].from;
            boxes[asked->over] = (struct grid_box){1, {{from, from * (int32_t)size}}};
            return;
        }
    dimensions_fail(asked, "no groups of the trace, and no replicas, can be divided into that many "
                           "groups of experts");
}

bool finder_lies_in(const struct finder *f, const struct family *family, const struct grid_box *box)
{
    if (family->box.n > 0)
        return grid_box_within(&family->box, box);
    for (size_t u = 0; u < family->uses.n; u++) {
        uint32_t set = finder_use(f, family, u)->set;
        const int32_t *ranks = member_sets_ranks(&f->join->sets, set);
        for (uint32_t i = 1; i < member_sets_size(&f->join->sets, set); i++)
            if (box->n == 0 || grid_first_of(box, ranks[i]) != grid_first_of(box, ranks[0]))
                return false;
    }
    return true;
}

static void give_families(struct finder *f, const struct asked *asked, const struct grid_box *boxes)
{
    EACH (struct family, family, f->families) {
        bool fits = true;
        uint32_t d = asked->n;
        if (family->does == DPRO_EXPERTS && asked->over != NO_ID)
            d = grid_box_equal(&family->box, &boxes[asked->over]) ? asked->over : asked->n;
        else if (family->box.n > 0)
            d = dimensions_covers(asked, boxes, &family->box, &fits);
        for (uint32_t other = 0; other < asked->n && family->box.n == 0; other++)
            d = finder_lies_in(f, family, &boxes[other]) ? other : d;
        if (family->box.n == 0 && d == asked->n)
            dimensions_fail(asked, "the trace has groups of ranks that fit no such grid");
        family->dimension = d < asked->n ? d : NO_ID;
    }
}

void dimensions_lay_out(struct finder *f, const char *text)
{
    struct asked asked = {.text = text, .over = NO_ID};
    struct grid_box boxes[DPRO_N_PARALLELISMS] = {{0}};
    dimensions_parse(&asked);
    check_product(&asked, f->join->world_size);
    if (!choose_order(f, &asked, boxes))
        dimensions_fail(&asked, "the trace has groups of ranks that contradict this in any order; "
                                "'dpro replay' without it says what they form");
    if (asked.over != NO_ID)
        place_over(f, &asked, boxes);
    give_families(f, &asked, boxes);
    for (uint32_t d = 0; d < asked.n; d++) {
        array_add(&f->found->all, .does = asked.does[d], .box = boxes[d], .size = asked.size[d]);
        EACH (const struct family, family, f->families)
            if (family->dimension == d && family->n_ranks > 0) {
                f->found->all.at[d].n_per_rank += family->n / family->n_ranks;
                f->found->all.at[d].bytes_per_rank += family->bytes / family->n_ranks;
            }
    }
}
