/* The Graph Pass Registry (paper, section 4.2). */
#include "optimize/registry.h"

static void add_pass(struct registry *r, const struct dpro_pass *pass)
{
    struct registered entry = {.pass = pass,
                               .name = mem_copy_string(pass->name),
                               .changes_numerics = pass->changes_numerics != 0};
    array_push(&r->passes, entry);
}

static void add_file(struct registry *r, const char *path)
{
    struct child_answer answer = child_run(path, NULL, NULL);
    if (*answer.why)
        fail_with(DPRO_EFORMAT, "%s: this pass %s; examples/pass shows one that can be used", path,
                  answer.why);
    struct registered entry = {.path = path,
                               .name = mem_copy_string(answer.name),
                               .changes_numerics = answer.changes_numerics};
    array_push(&r->passes, entry);
}

void registry_init(struct registry *r, const struct dpro_optimize_options *options)
{
    *r = (struct registry){.options = options,
                           .edits = mem_array(DPRO_PASS_MAX_EDITS, sizeof *r->edits),
                           .compressions = options->compressions | 1u << DPRO_COMPRESSION_NONE};
    for (size_t i = 0; i < N_BUILT_IN_PASSES; i++)
        add_pass(r, &built_in_passes[i]);
    r->passes.at[PASS_OP_FUSION].computes = DPRO_COMPILED;
    r->passes.at[PASS_MIXED_PRECISION].computes = DPRO_BF16;
    r->passes.at[PASS_RECOMPUTATION].computes = DPRO_COMPILED | DPRO_BF16;
    for (size_t i = 0; i < options->n_passes; i++) {
        const struct dpro_pass *pass = options->passes[i];
        if (pass->abi != DPRO_PASS_ABI || !pass->name || !pass->propose)
            fail_with(DPRO_EUSAGE, "pass %zu: needs abi DPRO_PASS_ABI, a name and propose()", i);
        add_pass(r, pass);
    }
    for (size_t i = 0; i < options->n_pass_files; i++)
        add_file(r, options->pass_files[i]);
}

void registry_fini(struct registry *r)
{
    for (size_t i = 0; i < r->passes.n; i++)
        mem_free(r->passes.at[i].name);
    array_fini(&r->passes);
    mem_free(r->edits);
}

bool registry_uses(const struct registry *r, const struct registered *entry)
{
    return !entry->rejected && (entry->computes == 0 || (entry->computes & r->computing)) &&
           (!entry->changes_numerics || r->computing != 0 ||
            r->compressions != 1u << DPRO_COMPRESSION_NONE);
}

void registry_reject(struct registry *r, struct registered *entry, const char *format, ...)
{
    char why[384];
    va_list args;
    va_start(args, format);
    vsnprintf(why, sizeof why, format, args);
    va_end(args);
    entry->rejected = true;
    log_line(&r->options->sink, DPRO_LOG_WARN, "pass '%s' %s; the search goes on without it",
             entry->name, why);
}
