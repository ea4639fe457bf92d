/* optimize/registry.c: the Graph Pass Registry (paper, section 4.2). What a pass proposes is tried
 * on a copy before the search sees it, so that nonsense never gets further. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "cost/buckets.h"
#include "optimize/passes/passes.h"
#include "optimize/search.h"

static const struct dpro_pass *const built_in[] = {&pass_tensor_fusion, &pass_tensor_partition,
                                                   &pass_priority, &pass_bucket_order,
                                                   &pass_compression};
enum { N_BUILT_IN = sizeof built_in / sizeof *built_in };

static int add(struct registry *r, const char *name, struct registered entry)
{
    entry.name = strdup(name);
    if (entry.name && array_push(&r->passes, entry) == 0)
        return 0;
    free(entry.name);
    return -1;
}

static int add_pass(struct registry *r, const struct dpro_pass *pass)
{
    struct registered entry = {.pass = pass,
                               .changes_numerics = pass->changes_numerics != 0,
                               .proposes = pass->propose != NULL,
                               .fuses = pass->opfs_ns != NULL};
    return add(r, pass->name, entry);
}

static int add_file(struct registry *r, const char *path, struct dpro_error *err)
{
    struct child_answer answer;
    struct child_question question = {0};
    int rc = child_run(path, &question, NULL, NULL, &answer);
    if (rc == 0 && *answer.why)
        return dpro_error_set(err, DPRO_EFORMAT,
                              "%s: this pass %s; examples/pass shows one that can be used", path,
                              answer.why);
    struct registered entry = {.path = path,
                               .changes_numerics = answer.changes_numerics,
                               .proposes = answer.proposes,
                               .fuses = answer.fuses};
    if (rc < 0 || add(r, answer.name, entry) < 0)
        return dpro_error_nomem(err);
    return 0;
}

int registry_init(struct registry *r, const struct dpro_optimize_options *options,
                  struct dpro_error *err)
{
    *r = (struct registry){.options = options,
                           .compressions = options->compressions | 1u << DPRO_COMPRESSION_NONE};
    r->edits = calloc(DPRO_PASS_MAX_EDITS, sizeof *r->edits);
    int rc = r->edits ? 0 : dpro_error_nomem(err);
    for (size_t i = 0; i < N_BUILT_IN && rc == 0; i++)
        if (add_pass(r, built_in[i]) < 0)
            rc = dpro_error_nomem(err);
    for (size_t i = 0; i < options->n_passes && rc == 0; i++) {
        const struct dpro_pass *pass = options->passes[i];
        if (pass->abi != DPRO_PASS_ABI || !pass->name || (!pass->propose && !pass->opfs_ns))
            rc = dpro_error_set(err, DPRO_EUSAGE,
                                "pass %zu: needs abi DPRO_PASS_ABI, a name, and propose() or "
                                "opfs_ns()",
                                i);
        else if (add_pass(r, pass) < 0)
            rc = dpro_error_nomem(err);
    }
    for (size_t i = 0; i < options->n_pass_files && rc == 0; i++)
        rc = add_file(r, options->pass_files[i], err);
    return rc;
}

void registry_fini(struct registry *r)
{
    registry_forget(r);
    for (size_t i = 0; i < r->passes.n; i++)
        free(r->passes.at[i].name);
    array_fini(&r->passes);
    free(r->edits);
}

void registry_forget(struct registry *r)
{
    for (size_t i = 0; i < r->passes.n; i++) {
        map_fini(&r->passes.at[i].times);
        r->passes.at[i].n_known = 0;
    }
}

bool registry_uses(const struct registry *r, const struct registered *entry)
{
    return !entry->rejected &&
           (!entry->changes_numerics || r->compressions != 1u << DPRO_COMPRESSION_NONE);
}

void candidates_fini(struct candidates *candidates)
{
    array_fini(&candidates->list);
    array_fini(&candidates->edits);
}

void registry_reject(struct registry *r, struct registered *entry, const char *format, ...)
{
    char why[384], text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(why, sizeof why, format, args);
    va_end(args);
    snprintf(text, sizeof text, "pass '%s' %s; the search goes on without it", entry->name, why);
    entry->rejected = true;
    if (r->options->sink.log && r->options->sink.level >= DPRO_LOG_WARN)
        r->options->sink.log(r->options->sink.arg, DPRO_LOG_WARN, text);
}

/* In this process: those built in, and the caller's own. */
static int propose_here(struct registry *r, struct registered *entry,
                        const struct dpro_pass_view *view, struct candidates *candidates)
{
    for (uint32_t i = 0; i < DPRO_PASS_MAX_CANDIDATES; i++) {
        struct dpro_candidate candidate = {r->edits, 0};
        if (!entry->pass->propose(entry->pass, view, i, &candidate))
            break;
        if (candidate.n_edits > DPRO_PASS_MAX_EDITS) {
            registry_reject(r, entry, "proposed more edits than there is room for");
            break;
        }
        struct candidate c = {(uint32_t)candidates->edits.n, candidate.n_edits, 0};
        if (array_reserve(&candidates->edits, candidate.n_edits + (size_t)1) < 0 ||
            array_push(&candidates->list, c) < 0)
            return -1;
        memcpy(candidates->edits.at + c.first, r->edits, c.n * sizeof *r->edits);
        candidates->edits.n += c.n;
    }
    return 0;
}

static int propose_in_child(struct registry *r, struct registered *entry,
                            const struct dpro_pass_view *view, struct candidates *candidates)
{
    struct child_question question = {.view = view};
    struct child_answer answer;
    int rc = child_run(entry->path, &question, candidates, NULL, &answer);
    if (rc == 0 && *answer.why)
        registry_reject(r, entry, "%s", answer.why);
    return rc;
}

static bool is_within(const struct model_capabilities *capabilities, const struct dpro_edit *edits,
                      uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (!edit_is_within(capabilities, &edits[i]))
            return false;
    return true;
}

static bool changes_numerics(const struct registry *r, const struct dpro_edit *edits, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (edits[i].kind == DPRO_EDIT_COMPRESS && edits[i].value >= 0 && edits[i].value < 32 &&
            !(r->compressions & 1u << edits[i].value))
            return true;
    return false;
}

/* Drops candidates from `first` on that do nothing, what was not allowed or what the job's stack
 * can't be given, and all of a pass that proposes what can't be done. */
static int sift(struct registry *r, uint32_t pass, const struct dpro_model *model,
                struct dpro_strategy *strategy, struct candidates *candidates, size_t first)
{
    struct registered *entry = &r->passes.at[pass];
    struct journal journal = {0};
    size_t kept = first;
    int rc = 0;
    for (size_t i = first; i < candidates->list.n; i++) {
        struct candidate c = candidates->list.at[i];
        const struct dpro_edit *edits = candidates->edits.at + c.first;
        if (c.n == 0 || changes_numerics(r, edits, c.n) ||
            !is_within(&model->capabilities, edits, c.n))
            continue;
        const char *wrong = edits_apply(model, strategy, edits, c.n, &journal);
        if (wrong == edit_out_of_memory) {
            rc = -1;
            break;
        }
        if (wrong) {
            registry_reject(r, entry, "proposed what can't be done: %s", wrong);
            kept = first;
            break;
        }
        edits_undo(strategy, &journal, 0);
        c.pass = pass;
        candidates->list.at[kept++] = c;
    }
    candidates->list.n = kept;
    journal_fini(&journal);
    return rc;
}

int registry_collect(struct registry *r, const struct dpro_model *model,
                     const struct dpro_strategy *strategy, const struct dpro_pass_view *view,
                     struct candidates *candidates)
{
    struct arena arena = {0};
    struct dpro_strategy copy;
    candidates->list.n = candidates->edits.n = 0;
    int rc = buckets_copy(model, strategy, &arena, &copy);
    for (uint32_t p = 0; p < r->passes.n && rc == 0; p++) {
        struct registered *entry = &r->passes.at[p];
        size_t first = candidates->list.n;
        if (!registry_uses(r, entry) || (r->plain && entry->pass != &pass_tensor_fusion))
            continue;
        if (entry->proposes)
            rc = entry->pass ? propose_here(r, entry, view, candidates)
                             : propose_in_child(r, entry, view, candidates);
        if (rc == 0 && entry->fuses && !entry->rejected)
            rc = fuse_propose(r, entry, model, strategy, view, candidates);
        if (rc == 0)
            rc = sift(r, p, model, &copy, candidates, first);
    }
    arena_fini(&arena);
    return rc;
}
