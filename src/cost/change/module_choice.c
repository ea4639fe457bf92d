/* Finds the modules that a user names, by words, names, patterns or a file. */
#include "cost/change/change.h"

#include <fnmatch.h>
#include <unistd.h>

#include "cost/memory/strategy_memory.h"
#include "plan/plan.h"

/* The shortest of those that have most of its letters, from its beginning and its end. */
static const char *choice_nearest(const struct dpro_model *model, const char *name)
{
    const char *found = "";
    size_t most = 0, n = strlen(name);
    for (uint32_t m = 0; m < model->n_modules; m++) {
        const char *of = model->modules[m].name;
        size_t size = strlen(of), begin = 0, end = 0, shorter = MIN(n, size);
        while (begin < shorter && of[begin] == name[begin])
            begin++;
        while (begin + end < shorter && of[size - 1 - end] == name[n - 1 - end])
            end++;
        if (begin + end > most || (begin + end == most && size < strlen(found))) {
            most = begin + end;
            found = of;
        }
    }
    return found;
}

/* The model as a whole, whose name is empty, is meant by no other pattern. */
static bool choose_pattern(const struct dpro_model *model, const char *pattern, bool *chosen)
{
    bool any = false;
    for (uint32_t m = 0; m < model->n_modules; m++)
        if ((model->modules[m].name[0] == '\0') == (pattern[0] == '\0') &&
            fnmatch(pattern, model->modules[m].name, 0) == 0)
            any = chosen[m] = true;
    return any;
}

static void no_such_module(const struct dpro_model *model, const char *name)
{
    if (model->modules[0].is_step)
        fail_with(DPRO_EUSAGE,
                  "the job's framework names no modules, such as '%.200s': only the "
                  "step as a whole can be meant ('all')",
                  name);
    fail_with(DPRO_EUSAGE, "no module of the job is named '%.200s'; the nearest is '%.200s'", name,
              choice_nearest(model, name));
}

void modules_take(const struct dpro_model *model, const struct plan_file *plan,
                  const name_array *names, bool *chosen)
{
    if (names->n > 0 && model->n_modules == 0)
        fail_with(DPRO_EFORMAT, "%s: the trace does not tell which modules the job has",
                  plan->path);
    for (size_t i = 0; i < names->n; i++) {
        const char *name = strtab_get(&plan->strings, names->at[i]);
        if (!choose_pattern(model, name, chosen))
            no_such_module(model, name);
    }
}

/* A list of names alone is of whatever is asked for. */
static void choose_from_file(const struct dpro_model *model, const char *path,
                             enum module_list of_plan, bool *chosen)
{
    static const char *const keys[] = {[MODULES_RECOMPUTED] = "memory.recompute",
                                       [MODULES_COMPILED] = "computation.compile",
                                       [MODULES_IN_BF16] = "computation.bf16"};
    struct plan_file plan;
    plan_file_read(path, &plan);
    const name_array *const lists[] = {&plan.recomputed, &plan.compiled, &plan.in_bf16};
    const name_array *names = lists[plan.is_list ? MODULES_RECOMPUTED : of_plan];
    if (names->n == 0 && (!plan.is_list || plan.buckets.n > 0))
        fail_with(DPRO_EFORMAT, "%s: it names no such modules (%s, or a list of names)", plan.path,
                  keys[of_plan]);
    modules_take(model, &plan, names, chosen);
    plan_file_fini(&plan);
}

/* Returns a name that no module has; NULL: there is none. */
static const char *choose_names(const struct dpro_model *model, char *names, bool *chosen)
{
    char *rest = NULL;
    for (char *name = strtok_r(names, ",", &rest); name; name = strtok_r(NULL, ",", &rest)) {
        name += strspn(name, " ");
        if (!choose_pattern(model, name, chosen))
            return name;
    }
    return NULL;
}

/* Modules of a job's second model have names such as "1/blocks.0". */
static bool is_path(const char *text)
{
    size_t digits = strspn(text, "0123456789");
    return access(text, F_OK) == 0 || (strchr(text, '/') && (digits == 0 || text[digits] != '/'));
}

void modules_choose(const struct dpro_model *model, const char *text, bool *chosen,
                    enum module_list of_plan)
{
    memset(chosen, 0, model->n_modules * sizeof *chosen);
    if (strcmp(text, "none") == 0)
        return;
    if (model->n_modules == 0 && of_plan != MODULES_RECOMPUTED)
        fail_with(DPRO_EUSAGE, "the trace tells neither the job's modules nor their times compiled "
                               "or in 16 bits: record with 'dpro profile --probe compile,bf16'");
    if (model->n_modules == 0)
        fail_with(DPRO_EUSAGE, "%s, and recomputing can't be predicted; %s",
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
                return;
        fail_with(DPRO_EUSAGE,
                  "the job's model repeats no block that keeps memory; name the modules");
    }
    SCRATCH char *names = mem_copy_string(text);
    const char *unknown = choose_names(model, names, chosen);
    if (!unknown)
        return;
    if (!is_path(text))
        no_such_module(model, unknown);
    memset(chosen, 0, model->n_modules * sizeof *chosen);
    choose_from_file(model, text, of_plan, chosen);
}
