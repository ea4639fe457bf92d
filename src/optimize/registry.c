/* optimize/registry.c: the Graph Pass Registry (paper, section 4.2). Each proposal is tried on a
 * copy first, so that the search never sees an impossible one. */
#include "optimize/registry.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/log.h"
#include "base/memory.h"
#include "cost/buckets.h"

static const struct dpro_pass *const built_in[] = {&pass_tensor_fusion, &pass_tensor_partition,
                                                   &pass_priority, &pass_bucket_order,
                                                   &pass_compression};
enum { N_BUILT_IN = sizeof built_in / sizeof *built_in };

/* ---- candidates ---- */

void candidates_fini(struct candidates *candidates)
{
    array_fini(&candidates->list);
    array_fini(&candidates->edits);
}

int candidates_add(struct candidates *candidates, size_t first)
{
    struct candidate c = {(uint32_t)first, (uint32_t)(candidates->edits.n - first), 0};
    return c.n > 0 ? array_push(&candidates->list, c) : 0;
}

int candidates_propose(struct candidates *candidates, const struct dpro_pass *pass,
                       const struct dpro_pass_view *view, struct dpro_edit *room)
{
    enum { MOST_EDITS = 1 << 20 };
    for (uint32_t i = 0; i < DPRO_PASS_MAX_CANDIDATES && candidates->edits.n < MOST_EDITS; i++) {
        struct dpro_candidate candidate = {room, 0};
        size_t first = candidates->edits.n;
        if (!pass->propose(pass, view, i, &candidate))
            break;
        if (candidate.n_edits > DPRO_PASS_MAX_EDITS)
            return 1;
        if (array_append(&candidates->edits, room, candidate.n_edits) < 0 ||
            candidates_add(candidates, first) < 0)
            return -1;
    }
    return 0;
}

/* ---- passes ---- */

static int add(struct registry *r, const char *name, struct registered entry)
{
    entry.name = mem_copy_string(name);
    if (entry.name && array_push(&r->passes, entry) == 0)
        return 0;
    mem_free(entry.name);
    return -1;
}

static int add_pass(struct registry *r, const struct dpro_pass *pass, struct dpro_error *err)
{
    struct registered entry = {.pass = pass,
                               .changes_numerics = pass->changes_numerics != 0,
                               .proposes = pass->propose != NULL,
                               .fuses = pass->opfs_ns != NULL};
    return add(r, pass->name, entry) < 0 ? dpro_error_nomem(err) : 0;
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
    return rc < 0 || add(r, answer.name, entry) < 0 ? dpro_error_nomem(err) : 0;
}

int registry_init(struct registry *r, const struct dpro_optimize_options *options,
                  struct dpro_error *err)
{
    *r = (struct registry){.options = options,
                           .compressions = options->compressions | 1u << DPRO_COMPRESSION_NONE};
    r->edits = mem_array(DPRO_PASS_MAX_EDITS, sizeof *r->edits);
    int rc = r->edits ? 0 : dpro_error_nomem(err);
    for (size_t i = 0; i < N_BUILT_IN && rc == 0; i++)
        rc = add_pass(r, built_in[i], err);
    for (size_t i = 0; i < options->n_passes && rc == 0; i++) {
        const struct dpro_pass *pass = options->passes[i];
        bool fits = pass->abi == DPRO_PASS_ABI && pass->name && (pass->propose || pass->opfs_ns);
        rc = fits ? add_pass(r, pass, err)
                  : dpro_error_set(err, DPRO_EUSAGE,
                                   "pass %zu: needs abi DPRO_PASS_ABI, a name, and propose() or "
                                   "opfs_ns()",
                                   i);
    }
    for (size_t i = 0; i < options->n_pass_files && rc == 0; i++)
        rc = add_file(r, options->pass_files[i], err);
    return rc;
}

void registry_fini(struct registry *r)
{
    registry_forget(r);
    for (size_t i = 0; i < r->passes.n; i++)
        mem_free(r->passes.at[i].name);
    array_fini(&r->passes);
    mem_free(r->edits);
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

/* ---- what they propose ---- */

/* A file's in a child process; those built in, and the caller's own, in this one. */
static int propose(struct registry *r, struct registered *entry, const struct question *q)
{
    if (entry->pass) {
        int rc = candidates_propose(q->candidates, entry->pass, q->view, r->edits);
        if (rc > 0)
            registry_reject(r, entry, "proposed more edits than there is room for");
        return rc < 0 ? -1 : 0;
    }
    struct child_question question = {.view = q->view};
    struct child_answer answer;
    int rc = child_run(entry->path, &question, q->candidates, NULL, &answer);
    if (rc == 0 && *answer.why)
        registry_reject(r, entry, "%s", answer.why);
    return rc;
}

/* Whether the user allowed it, and the job's stack can be given it. */
static bool is_allowed(const struct registry *r, const struct model_capabilities *capabilities,
                       const struct dpro_edit *edits, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (!edit_is_within(capabilities, &edits[i]) ||
            (edits[i].kind == DPRO_EDIT_COMPRESS && edits[i].value >= 0 && edits[i].value < 32 &&
             !(r->compressions & 1u << edits[i].value)))
            return false;
    return true;
}

/* Drops candidates from `first` on that are not allowed, and all of a pass that proposes what can't
 * be done. `strategy` is tried on. */
static int sift(struct registry *r, uint32_t pass, const struct question *q,
                struct dpro_strategy *strategy, size_t first)
{
    struct candidates *all = q->candidates;
    struct journal journal = {0};
    size_t kept = first;
    int rc = 0;
    for (size_t i = first; i < all->list.n; i++) {
        struct candidate c = all->list.at[i];
        const struct dpro_edit *edits = all->edits.at + c.first;
        if (!is_allowed(r, &q->model->capabilities, edits, c.n))
            continue;
        const char *wrong = edits_apply(q->model, strategy, edits, c.n, &journal);
        if (wrong == edit_out_of_memory) {
            rc = -1;
            break;
        }
        if (wrong) {
            registry_reject(r, &r->passes.at[pass], "proposed what can't be done: %s", wrong);
            kept = first;
            break;
        }
        edits_undo(strategy, &journal, 0);
        c.pass = pass;
        all->list.at[kept++] = c;
    }
    all->list.n = kept;
    journal_fini(&journal);
    return rc;
}

int registry_collect(struct registry *r, const struct question *q)
{
    struct arena arena = {0};
    struct dpro_strategy copy;
    q->candidates->list.n = q->candidates->edits.n = 0;
    int rc = buckets_copy(q->model, q->strategy, &arena, &copy);
    for (uint32_t p = 0; p < r->passes.n && rc == 0; p++) {
        struct registered *entry = &r->passes.at[p];
        size_t first = q->candidates->list.n;
        if (!registry_uses(r, entry) || (r->plain && entry->pass != &pass_tensor_fusion))
            continue;
        if (entry->proposes)
            rc = propose(r, entry, q);
        if (rc == 0 && entry->fuses && !entry->rejected)
            rc = fuse_propose(r, entry, q);
        if (rc == 0)
            rc = sift(r, p, q, &copy, first);
    }
    arena_fini(&arena);
    return rc;
}
