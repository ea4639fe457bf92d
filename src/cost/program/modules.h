/* Which module, or call of one, lies in which. Outer modules and calls come before those in them.
 */
#pragma once

#include "cost/program/model.h"

/* Whether the module is `outer` or lies in it. */
static inline bool module_lies_in(const struct dpro_model *m, uint32_t module, uint32_t outer)
{
    while (module != MODEL_NONE && module != outer)
        module = m->modules[module].parent;
    return module == outer;
}

/* The number of the model that a module is of: "1/blocks.0" is of the second one. */
static inline size_t module_number_length(const char *name)
{
    size_t digits = strspn(name, "0123456789");
    return digits > 0 && name[digits] == '/' ? digits : 0;
}

/* Whether what is named "blocks.0.weight" is in the module "blocks.0", or all there is in "". */
static inline bool module_holds(const char *module, const char *name)
{
    size_t n = strlen(module);
    return n == 0 || (strncmp(name, module, n) == 0 && name[n] == '.');
}

/* How many of n modules have any of these bits, or are marked; NULL: none is. */
static inline uint32_t modules_count(const void *marks, uint32_t n, uint8_t bits)
{
    const uint8_t *of = marks;
    uint32_t count = 0;
    for (uint32_t m = 0; of && m < n; m++)
        count += (of[m] & bits) != 0;
    return count;
}

/* A module's way, unless a module around it has one: then 0. */
static inline unsigned computing_way(const struct dpro_model *m, const struct dpro_strategy *s,
                                     uint32_t module)
{
    uint32_t outer = m->modules[module].parent;
    if (!s->computing)
        return DPRO_AS_IT_IS;
    while (outer != MODEL_NONE && !s->computing[outer])
        outer = m->modules[outer].parent;
    return outer == MODEL_NONE ? s->computing[module] : DPRO_AS_IT_IS;
}

/* root[c]: of the calls that call `c` lies in, itself too, the outermost for which `is_root` holds;
 * MODEL_NONE. */
#define CALLS_OUTERMOST(root, calls, n, c, is_root)                                                \
    do {                                                                                           \
        for (uint32_t c = 0; c < (n); c++) {                                                       \
            uint32_t outer_ = (calls)[c].parent;                                                   \
            (root)[c] = outer_ != MODEL_NONE ? (root)[outer_] : MODEL_NONE;                        \
            if ((root)[c] == MODEL_NONE && (is_root))                                              \
                (root)[c] = c;                                                                     \
        }                                                                                          \
    } while (0)
