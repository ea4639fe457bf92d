/* The passes that compile modules or put them in 16 bits.
 *
 * A way is switched on only if it wins more than its standard error, as of many modules some seem
 * to win by chance. */
#include "optimize/computing.h"

#include "cost/learn/uncertainty.h"
#include "cost/memory/strategy_memory.h"
#include "cost/program/modules.h"
#include "optimize/registry.h"

/* ---- what ways win ---- */

static void add_gains(const struct dpro_model *m, const struct model_rank *rank,
                      struct module_gain *gains)
{
    const struct model_program *p = &m->programs[rank->program];
    EACH_OF (const struct model_call, call, p->calls, p->n_calls) {
        struct module_gain *gain = &gains[call->module];
        double share = rank->work_scale / m->n_ranks;
        double forward = (double)call->forward_ns * share;
        double backward = (double)call->backward_ns * share;
        for (unsigned way = 1; way < DPRO_N_COMPUTINGS; way++) {
            const struct computing_cost *cost = &m->modules[call->module].costs[way];
            gain->ns[way] += llround(forward * (1 - cost->forward.value) +
                                     backward * (1 - cost->backward.value));
            gain->std_ns[way] += hypot(forward * cost->forward.std, backward * cost->backward.std);
            if (cost->forward.std + cost->backward.std > 0) /* by hand it is what it says */
                gain->std_ns[way] =
                    hypot(gain->std_ns[way], UNCERTAINTY_PROBE * (forward * cost->forward.value +
                                                                  backward * cost->backward.value));
        }
    }
}

struct module_gain *computing_gains(const struct dpro_model *m,
                                    const struct dpro_optimize_options *o, struct arena *arena)
{
    struct module_gain *gains = arena_array(arena, m->n_modules + (size_t)1, sizeof *gains);
    for (uint32_t r = 0; r < m->n_ranks; r++)
        add_gains(m, &m->ranks[r], gains);
    for (uint32_t i = 0; i < m->n_modules; i++)
        for (unsigned way = 1; way < DPRO_N_COMPUTINGS; way++) {
            const struct computing_cost *cost = &m->modules[i].costs[way];
            bool usable = cost->is_known || (cost->is_assumed && o->assumed_costs);
            usable &= !m->modules[i].is_step || m->modules[i].parent != MODEL_NONE;
            usable &= !cost->is_composed; /* what its parts win, they win by themselves */
            if (usable && (way & ~o->computing) == 0)
                gains[i].ways |= 1u << way;
            else if (!usable)
                gains[i].ns[way] = 0;
        }
    return gains;
}

struct dpro_computing_search computing_known(const struct dpro_model *m,
                                             const struct dpro_optimize_options *o,
                                             const struct module_gain *gains)
{
    struct dpro_computing_search s = {.allowed = o->computing};
    for (uint32_t i = 0; i < m->n_modules; i++) {
        bool assumable = false;
        for (unsigned way = 1; way < DPRO_N_COMPUTINGS; way++)
            assumable |= (way & ~o->computing) == 0 && m->modules[i].costs[way].is_assumed &&
                         !m->modules[i].costs[way].is_composed;
        s.n_modules += gains[i].ways != 0;
        s.n_assumable += gains[i].ways == 0 && assumable;
    }
    return s;
}

static bool has_way(const struct module_gain *gain, unsigned way)
{
    return way == DPRO_AS_IT_IS || (gain->ways & 1u << way);
}

/* ---- choices for all modules ---- */

/* The module where the way is known, else what lies within it. */
static void computing_cover(const struct dpro_model *m, const struct module_gain *gains,
                            uint32_t module, unsigned way, uint8_t *computing)
{
    if (has_way(&gains[module], way)) {
        computing[module] = (uint8_t)way;
        return;
    }
    for (uint32_t i = module + 1; i < m->n_modules; i++)
        if (m->modules[i].parent == module)
            computing_cover(m, gains, i, way, computing);
}

/* Whether the way is known of the model as a whole. */
static bool cover_all(const struct dpro_model *m, const struct module_gain *gains, unsigned way,
                      uint8_t *computing)
{
    bool is_whole = true;
    for (uint32_t i = 0; i < m->n_modules; i++)
        if (m->modules[i].parent == MODEL_NONE) {
            computing_cover(m, gains, i, way, computing);
            is_whole &= has_way(&gains[i], way);
        }
    return is_whole;
}

static void cover_blocks(const struct dpro_model *m, const struct module_gain *gains, unsigned way,
                         uint8_t *computing)
{
    SCRATCH bool *blocks = mem_array(m->n_modules + (size_t)1, sizeof *blocks);
    memory_repeated(m, blocks);
    for (uint32_t i = 0; i < m->n_modules; i++)
        if (blocks[i])
            computing_cover(m, gains, i, way, computing);
}

static void computing_drop(const struct dpro_model *m, uint32_t module, uint8_t *computing)
{
    for (uint32_t i = module + 1; i < m->n_modules; i++)
        if (m->modules[i].parent == module) {
            computing[i] = DPRO_AS_IT_IS;
            computing_drop(m, i, computing);
        }
}

void computing_by_gain(const struct dpro_model *m, const struct module_gain *gains, unsigned bits,
                       const double *delay_ns, uint8_t *computing)
{
    SCRATCH double *best = mem_array(m->n_modules + (size_t)1, sizeof *best);
    for (uint32_t i = m->n_modules; i-- > 0;) { /* best[i]: so far, of what lies within it */
        for (unsigned way = 1; way < DPRO_N_COMPUTINGS; way++) {
            double sure = (double)gains[i].ns[way] - gains[i].std_ns[way];
            if (delay_ns && (way & DPRO_COMPILED))
                sure -= delay_ns[i];
            if (!has_way(&gains[i], way) || (way & ~bits) != 0 || sure <= best[i])
                continue;
            best[i] = sure;
            computing[i] = (uint8_t)way;
            computing_drop(m, i, computing);
        }
        if (m->modules[i].parent != MODEL_NONE)
            best[m->modules[i].parent] += best[i];
    }
}

static bool is_new(const struct dpro_model *m, const struct computing_choice *choices, uint32_t n)
{
    const uint8_t *computing = choices[n].computing;
    bool any = false;
    for (uint32_t i = 0; i < m->n_modules; i++)
        any |= computing[i] != 0;
    for (uint32_t c = 0; c < n && any; c++)
        any = memcmp(choices[c].computing, computing, m->n_modules) != 0;
    return any;
}

uint32_t computing_choices(const struct dpro_model *m, const struct module_gain *gains,
                           struct arena *arena, struct computing_choice *choices)
{
    enum { ALL, BLOCKS, BY_GAIN, BY_GAIN_OF_PARTS };
    static const struct {
        const char *name, *text;
        unsigned way;
        int what;
    } kinds[MOST_COMPUTING_CHOICES] = {
        {"blocks compiled", "torch.compile of each block that is repeated", DPRO_COMPILED, BLOCKS},
        {"compiled", "torch.compile of the whole model", DPRO_COMPILED, ALL},
        {"bf16", "autocast to bfloat16 everywhere", DPRO_BF16, ALL},
        {"bf16 blocks", "both, of each block that is repeated", DPRO_COMPILED | DPRO_BF16, BLOCKS},
        {"bf16 compiled", "both, of the whole model", DPRO_COMPILED | DPRO_BF16, ALL},
        {"chosen compiled", NULL, DPRO_COMPILED, BY_GAIN},
        {"chosen bf16", NULL, DPRO_BF16, BY_GAIN},
        {"chosen both", NULL, DPRO_COMPILED | DPRO_BF16, BY_GAIN},
        {"chosen parts", NULL, DPRO_COMPILED | DPRO_BF16, BY_GAIN_OF_PARTS}};
    static const char *const of_parts[DPRO_N_COMPUTINGS] = {
        [DPRO_COMPILED] = "torch.compile of all modules that were measured",
        [DPRO_BF16] = "autocast to bfloat16 of all modules that were measured",
        [DPRO_COMPILED | DPRO_BF16] = "both, of all modules that were measured"};
    double *of_roots = arena_array(arena, m->n_modules + (size_t)1, sizeof *of_roots);
    for (uint32_t i = 0; i < m->n_modules; i++)
        of_roots[i] = m->modules[i].parent == MODEL_NONE ? INFINITY : 0;
    uint32_t n = 0;
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        uint8_t *computing = arena_array(arena, m->n_modules + (size_t)1, 1);
        bool is_whole = true;
        choices[n] = (struct computing_choice){kinds[k].name, kinds[k].text,
                                               kinds[k].what < BY_GAIN, computing};
        if (kinds[k].what == ALL)
            is_whole = cover_all(m, gains, kinds[k].way, computing);
        else if (kinds[k].what == BLOCKS)
            cover_blocks(m, gains, kinds[k].way, computing);
        else
            computing_by_gain(m, gains, kinds[k].way, kinds[k].what == BY_GAIN ? NULL : of_roots,
                              computing);
        if (!is_whole)
            choices[n].text = of_parts[kinds[k].way];
        if (kinds[k].way == DPRO_COMPILED && m->n_modules > 0 && m->modules[0].is_step) {
            choices[n].name = kinds[k].what == ALL ? "xla" : "xla chosen";
            choices[n].text =
                kinds[k].what == ALL ? "XLA's default: all that it can compile" : NULL;
        }
        n += is_new(m, choices, n);
    }
    return n;
}

/* ---- candidates ---- */

static void add_edit(const struct question *q, enum dpro_edit_kind kind, uint32_t at, int64_t value)
{
    struct dpro_edit edit = {.kind = kind, .at = at, .value = value};
    array_push(&q->candidates->edits, edit);
}

bool computing_gradients(const struct dpro_model *m, uint32_t program, uint32_t module,
                         bool *gradient_of)
{
    const struct model_program *p = &m->programs[program];
    bool any = false;
    EACH_OF (const struct model_call, call, p->calls, p->n_calls) {
        if (call->module != module || call->backward_last == MODEL_NONE)
            continue;
        for (uint32_t i = call->op; i <= call->backward_last; i++)
            if (p->ops[i].tensor < m->n_tensors)
                any = gradient_of[p->ops[i].tensor] = true;
    }
    return any;
}

static bool holds_only(const struct question *q, uint32_t bucket, const bool *gradient_of)
{
    const struct dpro_pass_bucket *b = &q->view->buckets[bucket];
    for (uint32_t i = b->first; i < b->first + b->n; i++)
        if (!gradient_of[q->view->order[i]])
            return false;
    return true;
}

/* Theorem 3: the same once more, and neighbouring buckets of nothing but its gradients, which are
 * ready at once, become one. */
static void propose_with_buckets(const struct question *q, uint32_t module, unsigned way)
{
    SCRATCH bool *gradient_of = mem_array(q->model->n_tensors + (size_t)1, sizeof *gradient_of);
    size_t first = q->candidates->edits.n, n = 0;
    uint32_t at = 0; /* as the edits before leave them */
    if (q->model->capabilities.together &&
        computing_gradients(q->model, q->view->critical_program, module, gradient_of)) {
        add_edit(q, DPRO_EDIT_COMPUTE, module, way);
        for (uint32_t b = 0; b < q->view->n_buckets; b++) {
            bool joins = b > 0 && n < DPRO_PASS_MAX_EDITS - 1 &&
                         holds_only(q, b - 1, gradient_of) && holds_only(q, b, gradient_of);
            if (joins)
                add_edit(q, DPRO_EDIT_MERGE, at, 0);
            n += joins;
            at += b > 0 && !joins;
        }
    }
    if (n == 0)
        q->candidates->edits.n = first;
    candidates_add(q->candidates, first);
}

static void propose_one(const struct question *q, uint32_t module, unsigned way)
{
    size_t first = q->candidates->edits.n;
    add_edit(q, DPRO_EDIT_COMPUTE, module, way);
    candidates_add(q->candidates, first);
    if ((way & DPRO_COMPILED) && !(q->strategy->computing[module] & DPRO_COMPILED))
        propose_with_buckets(q, module, way);
}

static bool are_alike(const struct question *q, uint32_t a, uint32_t b)
{
    return q->model->modules[a].class[0] != '\0' &&
           strcmp(q->model->modules[a].class, q->model->modules[b].class) == 0 &&
           q->gains[a].ways == q->gains[b].ways &&
           q->strategy->computing[a] == q->strategy->computing[b];
}

/* All alike, if this is the first of several. */
static void propose_alike(const struct question *q, uint32_t module, unsigned way,
                          const bool *covered)
{
    size_t first = q->candidates->edits.n;
    uint32_t n = 0;
    for (uint32_t i = 0; i < q->model->n_modules && n < DPRO_PASS_MAX_EDITS; i++) {
        if (covered[i] || !are_alike(q, module, i))
            continue;
        if (i < module)
            return;
        add_edit(q, DPRO_EDIT_COMPUTE, i, way);
        n++;
    }
    if (n == 1) /* is proposed by itself */
        q->candidates->edits.n = first;
    candidates_add(q->candidates, first);
}

/* What lies within the module, instead of it. */
static void propose_within(const struct question *q, uint32_t module)
{
    const struct dpro_model *m = q->model;
    SCRATCH uint8_t *computing = mem_array(m->n_modules + (size_t)1, 1);
    size_t first = q->candidates->edits.n;
    add_edit(q, DPRO_EDIT_COMPUTE, module, DPRO_AS_IT_IS);
    for (uint32_t i = module + 1; i < m->n_modules; i++)
        if (m->modules[i].parent == module)
            computing_cover(m, q->gains, i, q->strategy->computing[module], computing);
    for (uint32_t i = module + 1;
         i < m->n_modules && q->candidates->edits.n - first < DPRO_PASS_MAX_EDITS; i++)
        if (computing[i])
            add_edit(q, DPRO_EDIT_COMPUTE, i, computing[i]);
    if (q->candidates->edits.n - first == 1)
        q->candidates->edits.n = first;
    candidates_add(q->candidates, first);
}

void computing_propose(const struct question *q, unsigned bit)
{
    const struct dpro_model *m = q->model;
    SCRATCH bool *covered =
        mem_array(m->n_modules + (size_t)1, sizeof *covered); /* by an outer one */
    for (uint32_t i = 0; i < m->n_modules; i++) {
        uint32_t outer = m->modules[i].parent;
        unsigned way = q->strategy->computing[i];
        covered[i] = outer != MODEL_NONE && (covered[outer] || q->strategy->computing[outer]);
        if (covered[i])
            continue;
        for (unsigned to = 0; to < DPRO_N_COMPUTINGS; to++) {
            bool both = bit == DPRO_COMPILED && (way ^ to) == (DPRO_COMPILED | DPRO_BF16) &&
                        (way == 0 || to == 0);
            const struct module_gain *gain = &q->gains[i]; /* more than may be won by chance */
            if (((way ^ to) != bit && !both) || !has_way(gain, to) ||
                (to > way && (double)(gain->ns[to] - gain->ns[way]) <= gain->std_ns[to]))
                continue;
            propose_one(q, i, to);
            propose_alike(q, i, to, covered);
        }
        if (way & bit)
            propose_within(q, i);
    }
}

/* ---- strategies ---- */

bool computing_is_changed(const struct dpro_model *m, const struct dpro_strategy *s)
{
    return modules_count(s->computing, m->n_modules, UINT8_MAX) > 0;
}

/* Whether the module, or one around it, is marked by any of the bits. */
static bool is_within(const struct dpro_model *m, const void *marks, unsigned bits, uint32_t module)
{
    const uint8_t *of = marks;
    while (module != MODEL_NONE && !(of[module] & bits))
        module = m->modules[module].parent;
    return module != MODEL_NONE;
}

bool computing_is_possible(const struct dpro_model *m, const struct dpro_strategy *s)
{
    if (!computing_is_changed(m, s))
        return true;
    for (uint32_t i = 0; i < m->n_modules; i++) {
        bool compiled = s->computing[i] & DPRO_COMPILED;
        if (compiled && s->recomputed && is_within(m, s->recomputed, 1, i))
            return false;
        if (s->recomputed && s->recomputed[i] && is_within(m, s->computing, DPRO_COMPILED, i))
            return false;
    }
    return true;
}
