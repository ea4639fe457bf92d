/* cost/module_choice.c: which modules a user means, by words, names, patterns or a file. */
#include "cost/module_choice.h"

#include <fnmatch.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/sort.h"
#include "cost/strategy_memory.h"
#include "plan/plan.h"

/* How many letters have to be put in, taken out or exchanged; `row` holds strlen(b) + 1. */
static size_t distance(const char *a, const char *b, size_t *row)
{
    size_t n = strlen(b);
    for (size_t j = 0; j <= n; j++)
        row[j] = j;
    for (size_t i = 1; a[i - 1] != '\0'; i++) {
        size_t corner = row[0];
        row[0] = i;
        for (size_t j = 1; j <= n; j++) {
            size_t other = corner + (a[i - 1] != b[j - 1]);
            corner = row[j];
            row[j] = MIN(other, 1 + MIN(row[j], row[j - 1]));
        }
    }
    return row[n];
}

static const char *nearest(const struct dpro_model *model, const char *name)
{
    const char *found = "";
    size_t least = SIZE_MAX;
    for (uint32_t m = 0; m < model->n_modules; m++) {
        const char *of = model->modules[m].name;
        size_t *row = mem_alloc((strlen(of) + 1) * sizeof *row);
        size_t far = of[0] != '\0' ? distance(name, of, row) : SIZE_MAX;
        mem_free(row);
        if (far < least) {
            least = far;
            found = of;
        }
    }
    return found;
}

/* The model as a whole, whose name is empty, is meant by no pattern. */
static bool choose_pattern(const struct dpro_model *model, const char *pattern, bool *chosen)
{
    bool any = false;
    for (uint32_t m = 0; m < model->n_modules; m++)
        if (model->modules[m].name[0] != '\0' && fnmatch(pattern, model->modules[m].name, 0) == 0)
            any = chosen[m] = true;
    return any;
}

static int no_such_module(const struct dpro_model *model, const char *name, struct dpro_error *err)
{
    return dpro_error_set(err, DPRO_EUSAGE,
                          "no module of the job is named '%.200s'; the nearest is '%.200s'", name,
                          nearest(model, name));
}

static int choose_from_file(const struct dpro_model *model, const char *path, bool *chosen,
                            struct dpro_error *err)
{
    struct plan_file plan;
    int rc = plan_file_read(path, &plan, err);
    if (rc == 0 && plan.recomputed.n == 0 && (!plan.is_list || plan.buckets.n > 0))
        rc = dpro_error_set(err, DPRO_EFORMAT,
                            "%s: it names no modules to recompute (memory.recompute, or a list of "
                            "names)",
                            plan.path);
    for (size_t i = 0; i < plan.recomputed.n && rc == 0; i++) {
        const char *name = strtab_get(&plan.strings, plan.recomputed.at[i]);
        if (!choose_pattern(model, name, chosen))
            rc = no_such_module(model, name, err);
    }
    if (rc == 0)
        plan_file_fini(&plan);
    return rc;
}

static int choose_names(const struct dpro_model *model, char *names, bool *chosen,
                        struct dpro_error *err)
{
    char *rest = NULL;
    int rc = 0;
    for (char *name = strtok_r(names, ",", &rest); name && rc == 0;
         name = strtok_r(NULL, ",", &rest)) {
        name += strspn(name, " ");
        if (!choose_pattern(model, name, chosen))
            rc = no_such_module(model, name, err);
    }
    return rc;
}

int modules_choose(const struct dpro_model *model, const char *text, bool *chosen,
                   struct dpro_error *err)
{
    memset(chosen, 0, model->n_modules * sizeof *chosen);
    if (strcmp(text, "none") == 0)
        return 0;
    if (model->n_modules == 0)
        return dpro_error_set(
            err, DPRO_EUSAGE, "%s, so that what recomputing does can't be predicted; %s",
            memory_is_known(model) ? "nothing tells which modules the job has"
                                   : "nothing was recorded of what the ranks held",
            "'dpro profile' records it");
    if (strcmp(text, "all") == 0 || strcmp(text, "sqrt") == 0) {
        if (text[0] == 'a')
            memory_repeated(model, chosen);
        else
            memory_square_root(model, chosen);
        for (uint32_t m = 0; m < model->n_modules; m++)
            if (chosen[m])
                return 0;
        return dpro_error_set(err, DPRO_EUSAGE,
                              "the job's model repeats no block that keeps anything; name the "
                              "modules to recompute");
    }
    if (strchr(text, '/') || (access(text, F_OK) == 0 && !choose_pattern(model, text, chosen)))
        return choose_from_file(model, text, chosen, err);
    char *names = mem_copy_string(text);
    int rc = choose_names(model, names, chosen, err);
    mem_free(names);
    return rc;
}
