/* Makes the job smaller for the search (paper, section 4.3).
 *
 * - Coarsened View: neighbouring tensors that one op makes are one tensor if they may share a
 * bucket (Theorem 3). One op makes those that the graph has after one; in a job that was not
 * recorded, those that are ready at the same time on every rank; else those that bear a layer's
 * name and are ready so soon after each other that a bucket more would cost more than that.
 * - Symmetry: of the ranks that run one program only the slowest is kept, as the others never make
 *   anybody wait.
 *
 * Neither changes the time of a strategy. Where many programs differ, as recorded ones do by
 * chance, the ranks that gradients wait for most are kept; that is an approximation. */
#include "optimize/search.h"

#include "cost/program/buckets.h"
#include "optimize/space.h"

/* Whether the op at `i` takes no time and waits for nothing after the one before it, which made the
 * tensor before its own ready. */
static bool follows_at_once(const struct model_program *program, uint32_t i)
{
    const struct model_op *op = &program->ops[i];
    return i > 0 && op->needs == MODEL_NONE && op->work_ns == 0 &&
           program->ops[i - 1].tensor != MODEL_NONE && op->tensor == program->ops[i - 1].tensor + 1;
}

/* Up to what names the tensor in its layer: "conv0_" of "conv0_weight", "dense/" of "dense/bias:0",
 * "norm." of "norm.bias". 0: it is no name, as of all that are numbered. */
static size_t layer_length(const char *name)
{
    static const char *const ends[] = {".", "/", "_"};
    for (size_t i = 0; name && i < sizeof ends / sizeof *ends; i++) {
        const char *end = strrchr(name, *ends[i]);
        if (end)
            return isalpha((unsigned char)end[1]) ? (size_t)(end - name) + 1 : 0;
    }
    return 0;
}

static bool may_join(const struct dpro_model *m, const struct model_program *program, uint32_t i,
                     int64_t most_ns)
{
    uint32_t t = program->ops[i].tensor;
    const struct model_tensor *b = &m->tensors[t], *a = t > 0 ? b - 1 : b;
    if (m->recorded ? a->maker > 0 && a->maker == b->maker : follows_at_once(program, i))
        return true;
    size_t n = layer_length(a->name);
    bool is_one_layer = n > 1 && n == layer_length(b->name) && strncmp(a->name, b->name, n) == 0;
    return is_one_layer && (!m->recorded || program->ops[i].work_ns <= most_ns);
}

/* joined[t]: tensor t travels with t - 1. */
static void find_joined(const struct dpro_model *m, bool coarsen, bool *joined)
{
    struct sync_cost one = sync_cost(&m->net, 1);
    int64_t most_ns = (int64_t)m->net.compute.launch_ns.value + one.latency_ns + one.wire_ns;
    for (uint32_t t = 0; t < m->n_tensors; t++)
        joined[t] = coarsen && t > 0 && m->n_programs > 0;
    for (uint32_t p = 0; p < m->n_programs && coarsen; p++)
        for (uint32_t i = 0; i < m->programs[p].n_ops; i++)
            if (m->programs[p].ops[i].tensor < m->n_tensors &&
                !may_join(m, &m->programs[p], i, most_ns))
                joined[m->programs[p].ops[i].tensor] = false;
}

/* Returns each tensor's group. */
static uint32_t *coarsen_tensors(const struct dpro_model *from, bool coarsen,
                                 struct coarsened_view *to)
{
    uint32_t n = from->n_tensors;
    bool *joined = arena_array(&to->arena, n, sizeof *joined);
    uint32_t *group_of = arena_array(&to->arena, n, sizeof *group_of);
    to->first = arena_array(&to->arena, n + (size_t)2, sizeof *to->first);
    to->model.tensors = arena_array(&to->arena, n, sizeof *to->model.tensors);
    find_joined(from, coarsen, joined);
    uint32_t groups = 0;
    for (uint32_t t = 0; t < n; t++) {
        if (!joined[t]) {
            to->first[groups] = t;
            to->model.tensors[groups++] = from->tensors[t];
            to->model.tensors[groups - 1].size_bytes = 0;
        }
        group_of[t] = groups - 1;
        to->model.tensors[groups - 1].size_bytes += from->tensors[t].size_bytes;
    }
    to->first[groups] = n;
    to->model.n_tensors = groups;
    to->differs = groups != n;
    return group_of;
}

/* What groups communicate stands behind all tensors. */
static uint32_t view_coarsened(const struct dpro_model *from, const struct coarsened_view *to,
                               const uint32_t *group_of, uint32_t tensor)
{
    if (tensor >= MODEL_ALL)
        return tensor;
    return tensor < from->n_tensors ? group_of[tensor]
                                    : tensor - from->n_tensors + to->model.n_tensors;
}

static void coarsen_program(const struct dpro_model *model, const struct model_program *from,
                            struct coarsened_view *to, const uint32_t *group_of,
                            struct model_program *program)
{
    *program = *from;
    program->ops = arena_array(&to->arena, from->n_ops, sizeof *program->ops);
    for (uint32_t i = 0; i < from->n_ops; i++) {
        struct model_op *op = &program->ops[i];
        *op = from->ops[i];
        op->needs = view_coarsened(model, to, group_of, op->needs);
        op->tensor = view_coarsened(model, to, group_of, op->tensor);
        if (from->ops[i].tensor < model->n_tensors &&
            from->ops[i].tensor + 1 != to->first[op->tensor + 1])
            op->tensor = MODEL_NONE; /* not the last of those that it is joined with */
    }
}

static void coarsen_ranks(const struct dpro_model *from, bool symmetry, struct coarsened_view *to)
{
    struct dpro_model *m = &to->model;
    m->ranks = arena_array(&to->arena, from->n_ranks, sizeof *m->ranks);
    m->n_ranks = 0;
    for (uint32_t r = 0; r < from->n_ranks; r++) {
        uint32_t same = 0;
        while (same < m->n_ranks && (!symmetry || m->ranks[same].program != from->ranks[r].program))
            same++;
        if (same == m->n_ranks)
            m->ranks[m->n_ranks++] = from->ranks[r];
        else if (from->ranks[r].work_scale > m->ranks[same].work_scale)
            m->ranks[same] = from->ranks[r];
    }
}

struct late {
    uint32_t rank, n; /* gradients that it is the last to have ready; all computation counts too */
};

ORDER(latest_first, struct late, DESCENDING(n) ?: ASCENDING(rank));

/* For a recorded job of many ranks, whose programs differ by chance. */
static void keep_the_late(struct coarsened_view *to, uint32_t most_ranks)
{
    struct dpro_model *m = &to->model;
    struct computation work = computation_of(m, &m->baseline, &to->arena);
    struct late *late = arena_array(&to->arena, m->n_ranks, sizeof *late);
    bool *kept = arena_array(&to->arena, m->n_ranks, sizeof *kept);
    for (uint32_t r = 0; r < m->n_ranks; r++)
        late[r].rank = r;
    for (uint32_t t = 0; t <= m->n_tensors; t++) {
        uint32_t last = 0;
        double latest = -1;
        for (uint32_t r = 0; r < m->n_ranks; r++) {
            const struct computation_class *class = &work.classes[m->ranks[r].program];
            double when = t < m->n_tensors ? class->ready_ns[t] : class->total_ns;
            if (when > latest) {
                latest = when;
                last = r;
            }
        }
        late[last].n += t < m->n_tensors ? 1 : m->n_tensors;
    }
    qsort(late, m->n_ranks, sizeof *late, latest_first);
    for (uint32_t i = 0; i < most_ranks; i++)
        kept[late[i].rank] = true;
    uint32_t n = 0;
    for (uint32_t r = 0; r < m->n_ranks; r++)
        if (kept[r])
            m->ranks[n++] = m->ranks[r];
    m->n_ranks = n;
}

void coarsened_view_make(const struct dpro_model *model, bool coarsen, bool symmetry,
                         uint32_t most_ranks, struct coarsened_view *view)
{
    *view = (struct coarsened_view){.model = *model};
    struct dpro_model *m = &view->model;
    m->arena = (struct arena){0};
    m->baseline = (struct dpro_strategy){0};
    uint32_t *group_of = coarsen_tensors(model, coarsen && model->capabilities.together, view);
    bool in_groups = model->n_communications > 0; /* each rank has its part in them */
    coarsen_ranks(model, symmetry && !in_groups, view);
    m->programs = arena_array(&view->arena, model->n_programs, sizeof *m->programs);
    for (uint32_t p = 0; p < model->n_programs; p++)
        coarsen_program(model, &model->programs[p], view, group_of, &m->programs[p]);
    if (m->n_ranks > most_ranks && !in_groups)
        keep_the_late(view, most_ranks);
}

void coarsened_view_fini(struct coarsened_view *view)
{
    arena_fini(&view->arena);
}

void coarsened_view_expand(const struct coarsened_view *view, const struct dpro_strategy *from,
                           struct dpro_strategy *to)
{
    uint32_t n = 0;
    to->n_buckets = from->n_buckets;
    to->cycle_ns = from->cycle_ns;
    to->compression = from->compression;
    buckets_take_memory(&view->model, from, to);
    for (uint32_t b = 0; b < from->n_buckets; b++) {
        to->buckets[b] = from->buckets[b];
        to->buckets[b].first = n;
        for (uint32_t i = from->buckets[b].first; i < from->buckets[b].first + from->buckets[b].n;
             i++)
            for (uint32_t t = view->first[from->order[i]]; t < view->first[from->order[i] + 1]; t++)
                to->order[n++] = t;
        to->buckets[b].n = n - to->buckets[b].first;
    }
}
