/* What-ifs of how modules are computed: compiled, in 16 bits. */
#include "cost/change/change.h"

#include "cost/memory/strategy_memory.h"
#include "cost/program/cost.h"
#include "cost/program/modules.h"
#include "cost/program/strategy_work.h"
#include "ingest/probes.h"
#include "ingest/rank_json.h"

/* Adds the bit to the modules that are meant. */
static void computing_choose(const struct dpro_model *m, const char *text, unsigned bit,
                             uint8_t *ways)
{
    SCRATCH bool *chosen = mem_array(m->n_modules + (size_t)1, sizeof *chosen);
    bool all = strcmp(text, "all") == 0 && m->n_modules > 0;
    if (!all)
        modules_choose(m, text, chosen, bit == DPRO_COMPILED ? MODULES_COMPILED : MODULES_IN_BF16);
    for (uint32_t i = 0; i < m->n_modules; i++)
        if (all ? m->modules[i].parent == MODEL_NONE : chosen[i])
            ways[i] |= (uint8_t)bit;
}

static void choose_precision(const struct dpro_model *m, const char *text, uint8_t *ways)
{
    if (strcmp(text, "fp32") == 0) {
        if (m->in_16_bits)
            refuse("the recorded job computes in 16 bits (torch.autocast, or its own types), which "
                   "does not show what its ops take in 32 bits: turn that off and record the job "
                   "again");
        return;
    }
    bool all = strcmp(text, "bf16") == 0;
    if (all || (strncmp(text, "bf16=", 5) == 0 && text[5] != '\0'))
        computing_choose(m, all ? "all" : text + 5, DPRO_BF16, ways);
    else
        refuse("a precision of '%.100s' can't be predicted: bf16, bf16=NAMES and fp32 can", text);
}

/* The bits of a module by those around it. */
static uint8_t computing_inherited(const struct dpro_model *m, const uint8_t *ways, uint32_t module)
{
    uint32_t outer = m->modules[module].parent;
    return outer == MODEL_NONE ? 0 : ways[outer];
}

/* Of modules within each other the outermost counts. Where only some of what lies in one in 16 bits
 * is compiled, each part is in 16 bits by itself: all the same but for what the module does between
 * its parts. Outer modules come first. */
static void push_down(const struct dpro_model *m, uint8_t *ways)
{
    SCRATCH bool *parted = mem_array(m->n_modules + (size_t)1, sizeof *parted);
    for (uint32_t i = 0; i < m->n_modules; i++) {
        uint8_t outer = computing_inherited(m, ways, i);
        if ((outer & DPRO_COMPILED) && (ways[i] & ~outer))
            refuse("'%.100s' lies in a module that is compiled as one: it can't be in 16 bits by "
                   "itself; name the outer module in both --compile and --precision",
                   m->modules[i].name);
        if ((ways[i] & DPRO_COMPILED) && !(outer & DPRO_COMPILED) && (outer & DPRO_BF16))
            for (uint32_t o = m->modules[i].parent; o != MODEL_NONE; o = m->modules[o].parent)
                parted[o] |= ways[o] != 0;
        ways[i] |= outer;
    }
    for (uint32_t i = 0; i < m->n_modules; i++)
        if (parted[i])
            ways[i] = 0;
    for (uint32_t i = m->n_modules; i-- > 0;)
        if (computing_inherited(m, ways, i))
            ways[i] = 0;
}

/* What a probe says of why a way failed, or was not measured; NULL. */
static const char *reason_of(const struct dpro_model *m, uint32_t module, unsigned way,
                             bool *failed)
{
    const struct probe *probe = probe_of(m, &m->modules[module]);
    if (!probe)
        return NULL;
    *failed = probe->costs[way].problem != 0;
    uint32_t reason = *failed ? probe->costs[way].problem : probe->costs[way].left_out;
    return reason ? strtab_get(&m->probes->strings, reason) : NULL;
}

/* Whether the probe had no time left for it. */
static bool ran_out(const struct dpro_model *m, uint32_t module, unsigned way)
{
    bool failed = false;
    const char *reason = reason_of(m, module, way, &failed);
    return reason && text_begins(reason, "the time was over");
}

/* Of modules in 16 bits on CPUs that may lack instructions for it. */
static const char *text_of_untimed(const struct dpro_model *m, const char *name, const char *reason,
                                   bool late, struct notes *notes)
{
    return arena_format(
        notes->arena,
        "how long %.100s takes in bf16 can't be predicted: %s, without which bf16 takes many times "
        "as long as fp32%s%.200s; measure it with 'dpro profile --probe bf16%s",
        name,
        m->bf16_cpu == BF16_CPU_LACKS
            ? "the job's CPU has no instructions for bf16"
            : "the recording does not say whether its CPU has instructions for bf16",
        reason ? ", and the probe did not measure it: " : "", reason ? reason : "",
        late ? " --probe-limit SECONDS' and more time than before" : "'");
}

static void computing_check(const struct dpro_model *m, const uint8_t *ways, struct notes *notes)
{
    for (uint32_t i = 0; i < m->n_modules; i++) {
        const struct computing_cost *cost = &m->modules[i].costs[ways[i]];
        const char *name = m->modules[i].name[0] ? m->modules[i].name : "the model";
        bool failed = false;
        const char *reason = reason_of(m, i, ways[i], &failed);
        bool late = ran_out(m, i, ways[i]);
        if (cost->is_known || cost->is_assumed)
            continue;
        if (ways[i] == DPRO_BF16 && !failed && !m->modules[i].is_step &&
            m->bf16_cpu != BF16_CPU_HAS) {
            notes->untimed =
                notes->untimed ? notes->untimed : text_of_untimed(m, name, reason, late, notes);
            continue;
        }
        if (failed)
            refuse("%.100s can't be computed that way ('%s'): %.200s", name,
                   probe_way_name(ways[i]), reason);
        refuse("how long %.100s takes computed that way ('%s') was not measured%s%.200s: record "
               "with 'dpro profile --probe compile,bf16%s, or give --probes FILE",
               name, probe_way_name(ways[i]), reason ? ", as " : "", reason ? reason : "",
               late ? " --probe-limit SECONDS' and more time than before" : "'");
    }
}

/* Of the work in other ways, what is told not to be measured: recorders leave out what is small. */
#define LEAST_TOLD 0.05

static void computing_tell(const struct dpro_model *m, const uint8_t *ways, struct notes *notes)
{
    uint32_t n_compiled = 0, n_bf16 = 0, n_empty = 0;
    double assumed_ns = 0, composed_ns = 0, all_ns = 0;
    bool late = false;
    const char *empty = "";
    for (uint32_t i = 0; i < m->n_modules; i++) {
        const struct probe *probe = ways[i] ? probe_of(m, &m->modules[i]) : NULL;
        n_compiled += (ways[i] & DPRO_COMPILED) != 0;
        n_bf16 += (ways[i] & DPRO_BF16) != 0;
        double ns = ways[i] ? computing_change_of(m, i, ways[i]).before_ns : 0;
        all_ns += ns;
        late |= ways[i] && m->modules[i].costs[ways[i]].is_assumed && ran_out(m, i, ways[i]);
        assumed_ns += m->modules[i].costs[ways[i]].is_assumed ? ns : 0;
        composed_ns += m->modules[i].costs[ways[i]].is_composed ? ns : 0;
        if ((ways[i] & DPRO_COMPILED) && probe && probe->costs[ways[i]].n_graphs == 0)
            empty = n_empty++ ? empty : m->modules[i].name;
    }
    if (composed_ns > LEAST_TOLD * all_ns)
        note(notes, "part of this is composed from times of parts of modules, or of either way "
                    "alone. 'dpro profile --probe-limit SECONDS' leaves time to measure all of it");
    if (assumed_ns > LEAST_TOLD * all_ns)
        note(notes,
             "the time of 16 bits is assumed, not measured: half as long for matrix products and "
             "convolutions, 0.9 times for the rest. 'dpro profile --probe bf16%s' measures it",
             late ? " --probe-limit SECONDS, with more time than before," : "");
    if (n_bf16 > 0)
        note(notes, "bf16 rounds what the modules compute: the job does not train to the same "
                    "numbers; check its loss. Parameters, gradients and the optimizer stay in 32 "
                    "bits");
    if (n_compiled > 0)
        note(notes,
             "compiled code may round otherwise in the last bits; compiling takes time once, "
             "when the job begins");
    if (n_empty > 0)
        note(notes,
             "the compiler makes no graph of %u modules, such as '%.100s': they run as they are",
             n_empty, empty);
}

void change_computing(const struct dpro_changes *c, struct dpro_model *m, struct notes *notes)
{
    if (!c->compile && !c->precision)
        return;
    uint8_t *ways = arena_array(notes->arena, m->n_modules + (size_t)1, sizeof *ways);
    if (c->compile)
        computing_choose(m, c->compile, DPRO_COMPILED, ways);
    if (c->precision)
        choose_precision(m, c->precision, ways);
    m->memory.loss_in_16_bits = c->precision && strcmp(c->precision, "bf16") == 0;
    push_down(m, ways);
    computing_check(m, ways, notes);
    if (notes->untimed && !memory_is_known(m)) /* nothing of it can be told */
        refuse("%s", notes->untimed);
    m->baseline.computing = ways;
    for (uint32_t i = 0; i < m->n_modules; i++)
        m->launching_ns = ways[i] ? 0 : m->launching_ns; /* other ops are launched */
    computing_tell(m, ways, notes);
}
