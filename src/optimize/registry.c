/* The Graph Pass Registry (paper, section 4.2), and what passes propose for a strategy. Each
 * proposal is tried on a copy first, so the search never sees an impossible one. */
#include "optimize/registry.h"
#include "cost/program/buckets.h"

static void add_pass(struct registry *r, const struct dpro_pass *pass)
{
    struct registered entry = {.pass = pass,
                               .name = mem_copy_string(pass->name),
                               .changes_numerics = pass->changes_numerics != 0,
                               .proposes = pass->propose != NULL,
                               .fuses = pass->opfs_ns != NULL};
    array_push(&r->passes, entry);
}

static void add_file(struct registry *r, const char *path)
{
    struct child_question question = {0};
    struct child_answer answer = child_run(path, &question, NULL, NULL);
    if (*answer.why)
        fail_with(DPRO_EFORMAT, "%s: this pass %s; examples/pass shows one that can be used", path,
                  answer.why);
    struct registered entry = {.path = path,
                               .name = mem_copy_string(answer.name),
                               .changes_numerics = answer.changes_numerics,
                               .proposes = answer.proposes,
                               .fuses = answer.fuses};
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
        if (pass->abi != DPRO_PASS_ABI || !pass->name || (!pass->propose && !pass->opfs_ns))
            fail_with(DPRO_EUSAGE,
                      "pass %zu: needs abi DPRO_PASS_ABI, a name, and propose() or "
                      "opfs_ns()",
                      i);
        add_pass(r, pass);
    }
    for (size_t i = 0; i < options->n_pass_files; i++)
        add_file(r, options->pass_files[i]);
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

/* ---- what passes propose ---- */

/* A file's in a child process; those built in, and the caller's own, in this one. */
static void proposals_propose(const struct question *q, struct registered *entry)
{
    if (entry->pass) {
        if (!pass_propose(entry->pass, q->view, q->candidates, q->registry->edits))
            registry_reject(q->registry, entry, "proposed more edits than there is room for");
        return;
    }
    struct child_question question = {.view = q->view};
    struct child_answer answer = child_run(entry->path, &question, q->candidates, NULL);
    if (*answer.why)
        registry_reject(q->registry, entry, "%s", answer.why);
}

/* What makes no sense at all is not looked at here. */
static bool is_let(const struct question *q, const struct dpro_edit *e)
{
    if (e->kind == DPRO_EDIT_COMPRESS && e->value >= 0 && e->value < 32)
        return q->registry->compressions & 1u << e->value;
    if (e->kind == DPRO_EDIT_COMPUTE && e->at < q->model->n_modules && e->value > 0 &&
        e->value < DPRO_N_COMPUTINGS)
        return q->registry->computing != 0 && (q->gains[e->at].ways & 1u << e->value);
    return true;
}

/* Whether the user allowed it, and the job's stack can be given it. */
static bool is_allowed(const struct question *q, const struct dpro_edit *edits, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (!edit_is_within(&q->model->capabilities, &edits[i]) || !is_let(q, &edits[i]))
            return false;
    return true;
}

/* Drops candidates from `first` on that are not allowed, and all of a pass that proposes what can't
 * be done. There is room for one that is tried. */
static void proposals_sift(const struct question *q, struct registered *entry,
                           struct dpro_strategy *tried, size_t first)
{
    struct candidates *all = q->candidates;
    size_t kept = first;
    for (size_t i = first; i < all->list.n; i++) {
        struct candidate c = all->list.at[i];
        const struct dpro_edit *edits = all->edits.at + c.first;
        if (!is_allowed(q, edits, c.n))
            continue;
        const char *wrong = edits_apply(q->model, q->strategy, edits, c.n, tried);
        if (wrong) {
            registry_reject(q->registry, entry, "proposed what can't be done: %s", wrong);
            kept = first;
            break;
        }
        all->list.at[kept++] = c;
    }
    all->list.n = kept;
}

void registry_collect(const struct question *q)
{
    struct registry *r = q->registry;
    SCRATCH_ARENA struct arena arena = {0};
    struct dpro_strategy copy = buckets_copy(q->model, q->strategy, &arena);
    q->candidates->list.n = q->candidates->edits.n = 0;
    EACH (struct registered, entry, r->passes) {
        size_t first = q->candidates->list.n;
        if (!registry_uses(r, entry) ||
            (r->plain && entry->pass != &built_in_passes[PASS_TENSOR_FUSION]))
            continue;
        if (entry->proposes)
            proposals_propose(q, entry);
        else if (entry->computes != 0)
            computing_propose(q, entry->computes);
        if (entry->fuses && !entry->rejected)
            fuse_propose(q, entry);
        proposals_sift(q, entry, &copy, first);
    }
}
