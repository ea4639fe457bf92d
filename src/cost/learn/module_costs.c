/* The time of modules' calls, as they are and in other ways.
 *
 * A probe measures a ratio to the module as it is, outside of training. The recorded iterations say
 * how much of their work the module is. */

#include "cost/program/cost.h"
#include "cost/program/model_memory.h"
#include "cost/program/modules.h"
#include "cost/program/program_writer.h"
#include "ingest/probes.h"
#include "ingest/rank_json.h"

enum { FORWARD, BACKWARD, N_PASSES };

/* Recorded time of a pass, in all; of it matrix products and convolutions. */
struct pass_time {
    double all, products;
};

struct costs_learning {
    const struct measured_replay *replay;
    const struct dpro_graph *g;
    struct dpro_model *model;
    struct arena arena;
    struct pass_time (*modules)[N_PASSES]; /* over all ranks */
};

/* ---- calls ---- */

static bool is_product(const struct dpro_graph *g, uint32_t op)
{
    static const char *const words[] = {"mm",   "conv", "attention", "linear", "lstm",
                                        "_rnn", "gru",  "flash",     "fmha",   "xmma"};
    const char *name = strtab_get(&g->names, g->name[op]);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strstr(name, words[i]))
            return true;
    return false;
}

/* On a GPU what its ops take, on a CPU with what lies between them. */
static double time_of(const struct dpro_graph *g, uint32_t op, bool gpu)
{
    if (gpu)
        return g->flags[op] & GRAPH_OP_GPU ? (double)g->dur_ns[op] : 0;
    return (double)g->dur_ns[op] + (double)g->gap_ns[op];
}

struct call_time {
    struct pass_time passes[N_PASSES];
    uint32_t first[N_PASSES], last[N_PASSES]; /* ops; DPRO_NO_OP */
};

static void costs_widen(struct call_time *call, int pass, uint32_t first, uint32_t last)
{
    if (first == DPRO_NO_OP)
        return;
    bool none = call->first[pass] == DPRO_NO_OP;
    call->first[pass] = none ? first : MIN(call->first[pass], first);
    call->last[pass] = none ? last : MAX(call->last[pass], last);
}

static struct call_time *time_calls(struct costs_learning *l, uint32_t rank)
{
    const struct graph_memory *from = &l->g->memory[rank];
    uint32_t first_op = l->g->ranks[rank].first_op;
    struct call_time *calls = arena_array(&l->arena, from->n_calls + (size_t)1, sizeof *calls);
    for (uint32_t c = 0; c < from->n_calls; c++)
        for (int pass = 0; pass < N_PASSES; pass++)
            calls[c].first[pass] = calls[c].last[pass] = DPRO_NO_OP;
    for (uint32_t o = 0; o < from->n_op_calls; o++) {
        if (from->op_calls[o] == MEMORY_NONE)
            continue;
        struct call_time *call = &calls[from->op_calls[o] / 2];
        int pass = from->op_calls[o] % 2 ? BACKWARD : FORWARD;
        double ns = time_of(l->g, first_op + o, from->gpu);
        call->passes[pass].all += ns;
        call->passes[pass].products += is_product(l->g, first_op + o) ? ns : 0;
        costs_widen(call, pass, first_op + o, first_op + o);
    }
    for (uint32_t c = from->n_calls; c-- > 0;) { /* inner ones come later */
        if (from->calls[c].parent >= c)
            continue;
        struct call_time *outer = &calls[from->calls[c].parent];
        for (int pass = 0; pass < N_PASSES; pass++) {
            outer->passes[pass].all += calls[c].passes[pass].all;
            outer->passes[pass].products += calls[c].passes[pass].products;
            costs_widen(outer, pass, calls[c].first[pass], calls[c].last[pass]);
        }
    }
    return calls;
}

/* Of the program's work, a nanosecond of recorded time. */
static double work_of_time(const struct costs_learning *l, uint32_t rank,
                           const struct model_program *program)
{
    const struct graph_rank *ops = &l->g->ranks[rank];
    double recorded = 0;
    for (uint32_t op = ops->first_op; op < ops->first_op + ops->n_ops; op++)
        recorded += op_computes(l->g, op) ? time_of(l->g, op, l->g->memory[rank].gpu) : 0;
    return recorded > 0 ? program_work_ns(program) / recorded : 0;
}

/* Whether the op's gradient is of a parameter that lies in the module. Names of tensors have no
 * number of a model. */
static bool makes_gradient_of(const struct dpro_model *model, const struct model_op *op,
                              const char *module)
{
    size_t number = module_number_length(module);
    return op->tensor < model->n_tensors && /* else none, or of a group */
           module_holds(number ? module + number + 1 : module, model->tensors[op->tensor].name);
}

/* As the rank `told` has them, another one where nothing is known of the rank's own. */
static void set_calls(struct costs_learning *l, uint32_t rank, uint32_t told)
{
    struct dpro_model *model = l->model;
    const struct call_time *times = time_calls(l, told);
    struct model_program *program = &model->programs[model->ranks[rank].program];
    double scale = work_of_time(l, told, program);
    for (uint32_t c = 0; c < program->n_calls; c++) {
        struct model_call *call = &program->calls[c];
        const struct call_time *time = &times[c];
        call->forward_op = call->forward_last = call->backward_last = MODEL_NONE;
        call->forward_ns = llround(scale * time->passes[FORWARD].all);
        call->backward_ns = llround(scale * time->passes[BACKWARD].all);
        for (int pass = 0; pass < N_PASSES; pass++) {
            l->modules[call->module][pass].all += time->passes[pass].all;
            l->modules[call->module][pass].products += time->passes[pass].products;
        }
        if (time->first[FORWARD] != DPRO_NO_OP) {
            call->forward_op = program_op_of(l->replay, program, time->first[FORWARD], false);
            call->forward_last = MAX(call->forward_op,
                                     program_op_of(l->replay, program, time->last[FORWARD], false));
        }
        if (time->first[BACKWARD] == DPRO_NO_OP)
            continue;
        uint32_t last =
            MAX(call->op, program_op_of(l->replay, program, time->last[BACKWARD], true));
        while (last + 1 < program->n_ops &&
               makes_gradient_of(model, &program->ops[last + 1], model->modules[call->module].name))
            last++;
        call->backward_last = last;
    }
}

/* ---- by probes ---- */

const struct probe *probe_of(const struct dpro_model *model, const struct model_module *module)
{
    const struct dpro_probes *probes = model->probes;
    for (size_t i = 0; probes && i < probes->probes.n; i++) {
        const struct probe *probe = &probes->probes.at[i];
        const char *class = strtab_get(&probes->strings, probe->class);
        if (class[0] && module->class[0] && strcmp(class, module->class))
            continue;
        for (uint32_t k = probe->first; k < probe->first + probe->n; k++)
            if (strcmp(strtab_get(&probes->strings, probes->names.at[k]), module->name) == 0)
                return probe;
    }
    return NULL;
}

bool probes_match(const struct dpro_model *model)
{
    for (uint32_t m = 0; m < model->n_modules; m++)
        if (probe_of(model, &model->modules[m]))
            return true;
    return false;
}

/* Of what a probe measures in a step as it is. */
struct costs_step {
    double faults;   /* share of page faults in its work */
    double launches; /* on a GPU, the time of launches against that of kernels; 0: not known */
};

double probed_launches(const struct dpro_model *model)
{
    double launches = 0, kernels = 0;
    for (uint32_t m = 0; m < model->n_modules; m++) { /* of those within each other the outermost */
        uint32_t outer = model->modules[m].parent;
        while (outer != MODEL_NONE && !probe_of(model, &model->modules[outer]))
            outer = model->modules[outer].parent;
        const struct probe *probe =
            outer == MODEL_NONE ? probe_of(model, &model->modules[m]) : NULL;
        if (!probe)
            continue;
        const struct probe_cost *own = &probe->costs[DPRO_AS_IT_IS];
        launches += model->modules[m].n_calls *
                    (own->forward_bounds.own_launch_ns + own->backward_bounds.own_launch_ns);
        kernels += model->modules[m].n_calls *
                   (own->forward_bounds.own_device_ns + own->backward_bounds.own_device_ns);
    }
    return kernels > 0 ? launches / kernels : 0;
}

/* In the step, the larger of launches and kernels counts: the CPU runs ahead where it has less to
 * do than the GPU, and what a module launches by itself says nothing. */
struct dpro_estimate probe_in_step(struct dpro_estimate alone, const struct probe_bounds *bounds,
                                   double launches)
{
    if (launches <= 0 || bounds->launch <= 0 || bounds->device <= 0)
        return alone;
    double value = fmax(bounds->device, launches * bounds->launch) / fmax(1, launches);
    return (struct dpro_estimate){value, alone.std * value / alone.value};
}

static struct dpro_estimate in_step(struct dpro_estimate alone, const struct probe_bounds *bounds,
                                    const struct costs_step *step)
{
    /* how many page faults there are in another way nothing tells */
    return with_page_faults(probe_in_step(alone, bounds, step->launches), step->faults, 1);
}

static void take_probe(const struct probe *probe, const struct costs_step *step,
                       struct model_module *module)
{
    double own = (double)probe->costs[DPRO_AS_IT_IS].kept_bytes;
    for (unsigned way = 1; way < DPRO_N_COMPUTINGS; way++) {
        const struct probe_cost *cost = &probe->costs[way];
        if (cost->is_known)
            module->costs[way] = (struct computing_cost){
                .is_known = true,
                .forward = in_step(cost->forward, &cost->forward_bounds, step),
                .backward = in_step(cost->backward, &cost->backward_bounds, step),
                .kept = own > 0 ? (double)cost->kept_bytes / own : 0};
    }
}

/* What recomputing it adds to both passes: beside the forward pass, what torch.utils.checkpoint
 * itself does. */
static void take_recomputation(struct dpro_model *model, uint32_t m, const struct probe *probe,
                               const struct costs_step *step)
{
    const struct probe_cost *cost = &probe->costs[PROBE_RECOMPUTED];
    struct model_module *module = &model->modules[m];
    if (!cost->is_known)
        return;
    double forward = in_step(cost->forward, &cost->forward_bounds, step).value - 1,
           backward = in_step(cost->backward, &cost->backward_bounds, step).value - 1, all = 0;
    for (uint32_t r = 0; r < model->n_ranks; r++) {
        const struct model_program *program = &model->programs[model->ranks[r].program];
        EACH_OF (struct model_call, call, program->calls, program->n_calls) {
            if (call->module != m || call->recompute_ns == 0)
                continue;
            call->recompute_ns = llround(
                fmax(0, forward * (double)call->forward_ns + backward * (double)call->backward_ns));
            all += (double)call->recompute_ns / model->n_ranks;
        }
    }
    module->recompute_ns = llround(all);
    module->recompute_probed = true;
}

/* ---- of 16 bits, assumed ---- */

/* Times as long in 16 bits: matrix products and convolutions, and what else there is, half of which
 * autocast leaves as it is. Networks of seven kinds took 0.50 to 0.67 of the time on cores with
 * instructions for bf16. Without these they took up to 30 times as long: nothing is assumed. */
static const struct dpro_estimate PRODUCTS_BF16 = {0.5, 0.25}, REST_BF16 = {0.9, 0.15};

static struct dpro_estimate costs_assumed(const struct pass_time *time)
{
    double share = time->all > 0 ? time->products / time->all : 0;
    return (struct dpro_estimate){share * PRODUCTS_BF16.value + (1 - share) * REST_BF16.value,
                                  share * PRODUCTS_BF16.std + (1 - share) * REST_BF16.std};
}

static enum bf16_cpu bf16_cpu_of(const struct dpro_graph *g)
{
    uint8_t least = job_has_gpu(g) ? BF16_CPU_HAS : BF16_CPU_UNKNOWN;
    for (uint32_t r = 0; r < g->n_ranks && !job_has_gpu(g); r++)
        if (r == 0 || least == BF16_CPU_HAS || g->ranks[r].bf16_cpu == BF16_CPU_LACKS)
            least = g->ranks[r].bf16_cpu;
    return (enum bf16_cpu)least;
}

static void costs_assume(const struct costs_learning *l, uint32_t m)
{
    struct computing_cost *cost = &l->model->modules[m].costs[DPRO_BF16];
    *cost = (struct computing_cost){.is_assumed = true,
                                    .forward = costs_assumed(&l->modules[m][FORWARD]),
                                    .backward = costs_assumed(&l->modules[m][BACKWARD])};
}

/* ---- of a whole step ---- */

static const struct computing_cost AS_IT_IS = {
    .is_known = true, .forward = {1, 0}, .backward = {1, 0}, .kept = 1};

/* Of the ops from `first` to `last`, both passes and the update. */
static uint32_t call_ops(struct model_program *program, uint32_t module, uint32_t around,
                         uint32_t first, uint32_t last)
{
    struct model_call call = {
        module, around, first, .forward_op = first, .forward_last = last, .backward_last = last};
    for (uint32_t i = first; i <= last; i++) {
        double backward = program->ops[i].backward * (double)program->ops[i].work_ns;
        call.backward_ns += llround(backward);
        call.forward_ns += llround((double)program->ops[i].work_ns - backward);
    }
    program->calls[program->n_calls] = call;
    return program->n_calls++;
}

/* Calls around all of the program; of what is compiled layer by layer one for each of its ops,
 * whose gradients wait for no other layer. */
static void call_all(struct dpro_model *model, struct model_program *program)
{
    uint32_t around = MODEL_NONE, n = program->n_ops;
    if (n == 0)
        return;
    program->calls =
        arena_array(&model->arena, (size_t)n * model->n_modules, sizeof *program->calls);
    for (uint32_t m = 0; m < model->n_modules; m++) {
        bool by_layer = model->modules[m].class[0] != '\0';
        for (uint32_t i = 0; i < n && by_layer; i++)
            call_ops(program, m, around, i, i);
        if (!by_layer)
            around = call_ops(program, m, around, 0, n - 1);
    }
}

/* Of a job that names no modules (TensorFlow's) its step is probed, in one pass: as a whole, which
 * no plan asks for, and with each choice of ops that XLA may compile in it. As one of these can be
 * made only, each lies within the one before. */
static void learn_step(struct dpro_model *model)
{
    const struct model_module as_a_whole = {
        .name = "", .class = "", .parent = MODEL_NONE, .n_calls = 1, .is_step = true};
    const struct dpro_probes *probes = model->probes;
    const struct probe *whole = probe_of(model, &as_a_whole);
    if (!whole || whole->costs[DPRO_AS_IT_IS].backward_ns > 0)
        return;
    model->modules = arena_array(&model->arena, probes->probes.n, sizeof *model->modules);
    EACH (const struct probe, probe, probes->probes) {
        struct model_module *step = &model->modules[model->n_modules];
        const char *name = strtab_get(&probes->strings, probes->names.at[probe->first]);
        if ((model->n_modules == 0) != (probe == whole))
            continue;
        *step = as_a_whole;
        step->class = arena_format(&model->arena, "%s", strtab_get(&probes->strings, probe->class));
        step->name = arena_format(&model->arena, "%s", name);
        step->parent = model->n_modules++ - 1; /* of the first MODEL_NONE */
        take_probe(probe, &(struct costs_step){0, 0}, step);
        for (unsigned way = 1; way < DPRO_N_COMPUTINGS; way++)
            step->costs[way].backward = step->costs[way].forward;
        step->costs[DPRO_AS_IT_IS] = AS_IT_IS;
    }
    for (uint32_t p = 0; p < model->n_programs; p++)
        call_all(model, &model->programs[p]);
}

/* ---- composed ---- */

/* Of a module, what has to be known of its parts. */
#define LEAST_KNOWN 0.5

/* Relative, a standard error beside those of what it is composed of: a compiler fuses over the
 * borders of parts, and code that it makes of 16 bits is other code. */
#define COMPOSED_ERROR 0.05

static double both_passes(const struct costs_learning *l, uint32_t m)
{
    return l->modules[m][FORWARD].all + l->modules[m][BACKWARD].all;
}

static const struct dpro_estimate *ratio_of(const struct computing_cost *cost, int pass)
{
    return pass == FORWARD ? &cost->forward : &cost->backward;
}

/* What the parts of a module take in a way, and how much that changes, in recorded time. */
struct costs_parts {
    double known, measured; /* of which it is known, measured as such */
    double before[N_PASSES], after[N_PASSES], change[N_PASSES], std[N_PASSES];
};

static struct costs_parts parts_of(const struct costs_learning *l, uint32_t m, unsigned way,
                                   unsigned from)
{
    struct costs_parts parts = {.known = 0};
    for (uint32_t i = m + 1; i < l->model->n_modules; i++) {
        const struct model_module *inner = &l->model->modules[i];
        const struct computing_cost *cost = &inner->costs[way];
        if (inner->parent != m || (!cost->is_known && !cost->is_assumed))
            continue;
        for (int pass = 0; pass < N_PASSES; pass++) {
            double ns = l->modules[i][pass].all, ratio = ratio_of(cost, pass)->value;
            parts.before[pass] += ns;
            parts.after[pass] += ns * ratio;
            parts.change[pass] += ns * (ratio - ratio_of(&inner->costs[from], pass)->value);
            parts.std[pass] += ns * ratio_of(cost, pass)->std;
        }
        parts.known += cost->is_known ? both_passes(l, i) : 0;
        parts.measured += cost->is_known && !cost->is_composed ? both_passes(l, i) : 0;
    }
    return parts;
}

/* What a way changes of the parts is changed of the whole; the rest of it stays as it is, or
 * changes as they do: a compiler may know more of it, or nothing. */
static struct computing_cost of_parts(const struct costs_learning *l, uint32_t m, unsigned from,
                                      const struct costs_parts *parts)
{
    struct computing_cost cost = l->model->modules[m].costs[from];
    struct dpro_estimate *ratios[N_PASSES] = {&cost.forward, &cost.backward};
    for (int pass = 0; pass < N_PASSES; pass++) {
        struct dpro_estimate *ratio = ratios[pass];
        double before = parts->before[pass], all = fmax(l->modules[m][pass].all, before);
        if (before <= 0)
            continue;
        double change = parts->change[pass] / before, rest = 1 - before / all;
        ratio->value = fmax(ratio->value + parts->change[pass] / all, parts->after[pass] / all);
        ratio->std = hypot(hypot(ratio->std, parts->std[pass] / all),
                           hypot(rest * change, COMPOSED_ERROR * ratio->value));
    }
    cost.is_assumed = !cost.is_known;
    cost.is_composed = true;
    cost.kept = 0;
    return cost;
}

/* A compiler changes what is no product of matrices, which 16 bits change less than the whole.
 * Where both save time, some of it is the same. */
static struct dpro_estimate of_both(struct dpro_estimate compiled, struct dpro_estimate bf16)
{
    double product = compiled.value * bf16.value, sum = compiled.value + bf16.value - 1;
    double value = fmax(product, bf16.value + REST_BF16.value * (compiled.value - 1));
    double std = hypot(compiled.std, bf16.std);
    return (struct dpro_estimate){value,
                                  hypot(hypot(std, (product - sum) / 2), COMPOSED_ERROR * value)};
}

/* Compiled in 16 bits, of either by itself. */
static struct computing_cost of_ways(const struct model_module *module)
{
    const struct computing_cost *compiled = &module->costs[DPRO_COMPILED],
                                *bf16 = &module->costs[DPRO_BF16];
    return (struct computing_cost){.is_known = bf16->is_known,
                                   .is_assumed = !bf16->is_known,
                                   .is_composed = true,
                                   .forward = of_both(compiled->forward, bf16->forward),
                                   .backward = of_both(compiled->backward, bf16->backward)};
}

/* What no probe measured, for lack of time or because the module was too small to look at: of what
 * lies in the module, of the same module in other ways. Of both, what was measured counts more. */
static void costs_compose(const struct costs_learning *l, uint32_t m, unsigned way)
{
    unsigned from = way == (DPRO_COMPILED | DPRO_BF16) ? DPRO_BF16 : DPRO_AS_IT_IS;
    struct model_module *module = &l->model->modules[m];
    struct costs_parts parts = parts_of(l, m, way, from);
    double least = LEAST_KNOWN * both_passes(l, m);
    bool by_parts = least > 0 && parts.known >= least;
    bool by_ways = from == DPRO_BF16 && module->costs[DPRO_COMPILED].is_known;
    if (!module->costs[from].is_known && !module->costs[from].is_assumed)
        return;
    if (by_parts && (parts.measured >= least || !by_ways))
        module->costs[way] = of_parts(l, m, from, &parts);
    else if (by_ways)
        module->costs[way] = of_ways(module);
}

void learn_module_costs(const struct measured_replay *replay, struct dpro_model *model)
{
    struct costs_learning l = {replay, replay->graph, model, {0}, NULL};
    for (uint32_t r = 0; r < l.g->n_ranks; r++)
        model->in_16_bits |= l.g->ranks[r].in_16_bits;
    if (model->n_modules == 0) {
        learn_step(model);
        return;
    }
    const struct costs_step step = {page_fault_share(model), probed_launches(model)};
    model->bf16_cpu = bf16_cpu_of(l.g);
    l.modules = arena_array(&l.arena, model->n_modules, sizeof *l.modules);
    for (uint32_t r = 0; r < l.g->n_ranks; r++)
        set_calls(&l, r,
                  l.g->memory[r].n_blocks > 0 ? r : model->memories[model->ranks[r].memory].rank);
    for (uint32_t m = model->n_modules; m-- > 0;) { /* inner ones come later */
        struct model_module *module = &model->modules[m];
        const struct probe *probe = probe_of(model, module);
        module->costs[DPRO_AS_IT_IS] = AS_IT_IS;
        if (probe)
            take_probe(probe, &step, module);
        if (probe)
            take_recomputation(model, m, probe, &step);
        for (unsigned way = 1; way < DPRO_N_COMPUTINGS; way++) {
            bool failed = probe && probe->costs[way].problem;
            if (!module->costs[way].is_known && !failed)
                costs_compose(&l, m, way);
            if (way == DPRO_BF16 && !module->costs[way].is_known && model->bf16_cpu == BF16_CPU_HAS)
                costs_assume(&l, m);
        }
    }
    arena_fini(&l.arena);
}
