/* Finds the blocks that a network repeats, where recomputation is tried first. */

#include "cost/memory/strategy_memory.h"

/* The list that a module stands in: its name up to its number; 0: it has none. */
static size_t list_of(const char *name)
{
    size_t n = strlen(name);
    while (n > 0 && name[n - 1] >= '0' && name[n - 1] <= '9')
        n--;
    return name[n] != '\0' && (n == 0 || name[n - 1] == '.' || name[n - 1] == '/') ? n + 1 : 0;
}

/* Whether two modules stand in one list; without lists, in one module. */
static bool are_listed_together(const struct model_module *a, const struct model_module *b,
                                bool lists)
{
    if (strcmp(a->class, b->class) != 0 || b->kept_bytes == 0)
        return false;
    size_t n = list_of(a->name);
    return lists ? n > 0 && n == list_of(b->name) && strncmp(a->name, b->name, n - 1) == 0
                 : a->parent == b->parent;
}

static bool lies_within_marked(const struct dpro_model *model, const bool *marked, uint32_t module)
{
    uint32_t outer = model->modules[module].parent;
    while (outer != MODEL_NONE && !marked[outer])
        outer = model->modules[outer].parent;
    return outer != MODEL_NONE;
}

static bool modules_mark(const struct dpro_model *model, bool lists, bool *marked)
{
    bool any = false;
    for (uint32_t a = 0; a < model->n_modules; a++) {
        uint32_t n = 0;
        if (model->modules[a].kept_bytes == 0 || lies_within_marked(model, marked, a))
            continue;
        for (uint32_t b = 0; b < model->n_modules; b++)
            n += are_listed_together(&model->modules[a], &model->modules[b], lists);
        marked[a] = n > 1;
        any |= marked[a];
    }
    return any;
}

void memory_repeated(const struct dpro_model *model, bool *modules)
{
    memset(modules, 0, model->n_modules * sizeof *modules);
    if (!modules_mark(model, true, modules))
        modules_mark(model, false, modules);
}

void memory_square_root(const struct dpro_model *model, bool *modules)
{
    uint32_t n = 0, step = 1, i = 0;
    memory_repeated(model, modules);
    for (uint32_t m = 0; m < model->n_modules; m++)
        n += modules[m];
    while (step * step < n)
        step++;
    for (uint32_t m = 0; m < model->n_modules; m++)
        if (modules[m] && ++i % step == 0)
            modules[m] = n == 1;
}
