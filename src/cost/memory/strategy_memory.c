/* The peak of a job's memory under a strategy. One sweep over the recorded allocations and frees,
 * with the lifetimes and sizes that the strategy gives them. */
#include "cost/memory/strategy_memory.h"

#include "cost/memory/memory_sweep.h"
#include "cost/program/strategy_work.h"

/* The state of PyTorch's generator of random numbers on CPUs, which a call keeps that is to be
 * recomputed. */
enum { RANDOM_STATE_BYTES = 5056 };

/* How large a micro-batch's blocks are that grow with the batch, of several the largest one's. */
static double share_of(const struct model_memory *m, const struct memory_setting *setting,
                       uint32_t parts, bool input)
{
    double ratio = setting->batch_ratio > 0 ? setting->batch_ratio : 1;
    double batch = ratio * m->batch_size;
    if (parts <= 1 || input) /* it is cut in views, so that the input stays whole */
        return ratio;
    return batch > 0 ? ratio * ceil(round(batch) / parts) / round(batch) : ratio / parts;
}

uint64_t memory_size(const struct memory_sweep *s, const struct graph_block *b)
{
    const double ROUNDED = 1e-6;
    if (s->shares[0] < (double)b->least_share * (1 - ROUNDED))
        return 0;
    double share = b->scales ? s->shares[b->category == DPRO_MEMORY_INPUT] : 1;
    uint64_t asked = graph_block_asked(b);
    return share == 1 ? b->size_bytes
                      : (uint64_t)llround((double)asked * share) + b->size_bytes - asked;
}

static bool in_same_function(const struct graph_moment *a, const struct graph_moment *b)
{
    return a->function == b->function && (a->function != 0 || a->op == b->op);
}

/* The place from which on a gradient that is added to another one, or copied, is no longer needed:
 * another function of autograd, or of none another op, takes memory. */
static uint32_t added_up(const struct model_memory *m, uint32_t taken)
{
    uint32_t next = taken + 1;
    while (next < m->n_moments &&
           (m->moments[next].gives || in_same_function(&m->moments[next], &m->moments[taken])))
        next++;
    return next + 1;
}

/* Of a gradient: none of its own with views; behind the first micro-batch it is there all along. A
 * new one comes to both all the same. */
static void gradient_lives(const struct memory_sweep *s, const struct graph_block *b,
                           struct lifetimes *l)
{
    bool is_new = b->taken != MEMORY_NONE;
    struct life added = {l->first.from, is_new ? MIN(added_up(s->m, b->taken), l->first.to) : 0};
    if (s->setting->views && s->later && is_new) {
        l->second =
            added; /* until it is copied into the bucket, the sum of those before is apart */
        l->first = (struct life){0, added.to};
    } else if (s->setting->views) {
        l->first = is_new ? added : (struct life){0, 0};
    } else if (s->later && is_new) {
        l->second = added;
        l->first.from = 0;
    } else if (s->later && b->given != MEMORY_NONE) {
        l->first = (struct life){0, 0}; /* of the step before */
    }
}

struct lifetimes memory_lives(const struct memory_sweep *s, uint32_t block)
{
    const struct graph_block *b = &s->m->blocks[block];
    struct lifetimes l = lifetimes_of(s->m, &s->calls, block);
    if (b->category == DPRO_MEMORY_GRADIENT)
        gradient_lives(s, b, &l);
    return l;
}

/* Recomputations are apart by their places of the forward pass, from `first` + 1 to `stop`. */
static void add_within(const struct memory_sweep *s, const struct lifetimes *l, uint64_t size_bytes)
{
    if (l->within.from >= l->within.to)
        return;
    s->within[l->within.from] += (int64_t)size_bytes;
    if (l->within.to <= s->m->calls[l->call].stop)
        s->within[l->within.to] -= (int64_t)size_bytes;
}

/* What a recomputation holds at the most. */
static int64_t most_within(const struct memory_sweep *s, const struct memory_call *call,
                           uint32_t *where)
{
    int64_t held = 0, most = 0;
    *where = call->first;
    for (uint32_t p = call->first + 1; p <= call->stop; p++) {
        held += s->within[p];
        if (held > most) {
            most = held;
            *where = p;
        }
    }
    return most;
}

/* From changes to what is held. */
static void sum_up(struct memory_sweep *s)
{
    const struct model_memory *m = s->m;
    for (uint32_t p = 1; p <= m->n_moments; p++)
        s->held[p] += s->held[p - 1];
    for (uint32_t c = 0; c < m->n_calls && s->calls.any; c++) {
        if (s->calls.root[c] != c)
            continue;
        struct memory_top *top = &s->again[m->calls[c].again];
        uint32_t where;
        int64_t most = most_within(s, &m->calls[c], &where);
        if (most > top->bytes)
            *top = (struct memory_top){most, m->calls[c].again, c, where};
    }
}

static struct life random_state_life(const struct memory_call *call)
{
    return (struct life){call->first + 1, call->released + 1};
}

struct memory_sweep memory_sweep_begin(const struct dpro_model *model,
                                       const struct dpro_strategy *strategy,
                                       const struct model_memory *m, bool later)
{
    struct memory_sweep s = {
        .m = m, .setting = &model->memory, .strategy = strategy, .later = later};
    if (strategy->computing) {
        struct model_memory *other = arena_alloc(&s.arena, sizeof *other);
        *other = memory_in_16_bits(model, m, strategy, &s.arena);
        *other = memory_compiled(model, other, strategy, &s.arena);
        s.m = m = other;
    }
    for (int input = 0; input < 2; input++)
        s.shares[input] = share_of(m, s.setting, strategy->micro_batches, input == 1);
    s.calls = recomputed_calls_of(m, strategy->recomputed, &s.arena);
    s.held = arena_array(&s.arena, m->n_moments + (size_t)3, sizeof *s.held);
    s.within = arena_array(&s.arena, m->n_moments + (size_t)3, sizeof *s.within);
    if (s.calls.any)
        s.again = arena_array(&s.arena, m->n_moments + (size_t)1, sizeof *s.again);
    for (uint32_t b = 0; b < m->n_blocks; b++) {
        struct lifetimes l = memory_lives(&s, b);
        uint64_t size = memory_size(&s, &m->blocks[b]);
        memory_add(s.held, l.first, (int64_t)size);
        memory_add(s.held, l.second, (int64_t)size);
        add_within(&s, &l, size);
    }
    for (uint32_t c = 0; c < m->n_calls && s.calls.any && !m->gpu; c++)
        if (s.calls.root[c] == c)
            memory_add(s.held, random_state_life(&m->calls[c]), RANDOM_STATE_BYTES);
    sum_up(&s);
    return s;
}

struct memory_top memory_sweep_top(const struct memory_sweep *s)
{
    struct memory_top top = {INT64_MIN, 0, MODEL_NONE, 0};
    for (uint32_t p = 0; p <= s->m->n_moments; p++) {
        const struct memory_top *again = s->again && s->again[p].bytes > 0 ? &s->again[p] : NULL;
        int64_t bytes = s->held[p] + (again ? again->bytes : 0);
        if (bytes > top.bytes)
            top = (struct memory_top){bytes, p, again ? again->call : MODEL_NONE,
                                      again ? again->within : 0};
    }
    return top;
}

/* ---- what is there then ---- */

static bool is_there(struct life life, uint32_t place)
{
    return life.from <= place && place < life.to;
}

/* The innermost of the calls that are going on at a place. */
static uint32_t call_at(const struct model_memory *m, uint32_t place)
{
    uint32_t found = MODEL_NONE, taken = place > 0 ? place - 1 : 0;
    for (uint32_t c = 0; c < m->n_calls; c++) {
        const struct memory_call *call = &m->calls[c];
        if ((call->first <= taken && taken < call->last) ||
            (call->backward_first <= taken && taken < call->backward_last))
            found = c;
    }
    return found;
}

void memory_describe(const struct dpro_model *model, const struct memory_sweep *s,
                     const struct memory_top *top, struct dpro_memory_peak *peak)
{
    const struct model_memory *m = s->m;
    *peak = (struct dpro_memory_peak){.bytes = (uint64_t)MAX(top->bytes, 0),
                                      .rank = model->ranks[m->rank].rank,
                                      .in_recomputation = top->call != MODEL_NONE};
    for (uint32_t b = 0; b < m->n_blocks; b++) {
        struct lifetimes l = memory_lives(s, b);
        uint32_t n = is_there(l.first, top->place) + is_there(l.second, top->place);
        if (top->call != MODEL_NONE && l.call == top->call)
            n += is_there(l.within, top->within);
        peak->by_category[m->blocks[b].category] += n * memory_size(s, &m->blocks[b]);
    }
    for (uint32_t c = 0; c < m->n_calls && s->calls.any && !m->gpu; c++)
        if (s->calls.root[c] == c && is_there(random_state_life(&m->calls[c]), top->place))
            peak->by_category[DPRO_MEMORY_OTHER] += RANDOM_STATE_BYTES;
    uint32_t call = peak->in_recomputation ? top->call : call_at(m, top->place);
    peak->module = call != MODEL_NONE ? model->modules[m->calls[call].module].name : NULL;
    peak->phase = peak->in_recomputation ? DPRO_OP_BW : memory_phase(s, top->place);
}

bool memory_knows_what_scales(const struct model_memory *m)
{
    bool knows = false;
    for (uint32_t b = 0; b < m->n_blocks; b++)
        knows |= m->blocks[b].scales;
    return knows;
}

/* Where nothing tells which blocks grow with the batch, all but the model's own may, in proportion:
 * as the half of an interval. */
static double unknown_growth(const struct dpro_model *model, const struct dpro_strategy *strategy,
                             const struct model_memory *m, const struct dpro_memory_peak *peak)
{
    static const enum dpro_memory_category may_grow[] = {
        DPRO_MEMORY_ACTIVATION, DPRO_MEMORY_TEMPORARY, DPRO_MEMORY_WORKSPACE, DPRO_MEMORY_INPUT,
        DPRO_MEMORY_OTHER};
    double share = share_of(m, &model->memory, strategy->micro_batches, false), growing = 0;
    for (size_t i = 0; i < sizeof may_grow / sizeof *may_grow; i++)
        growing += (double)peak->by_category[may_grow[i]];
    return memory_knows_what_scales(m) ? 0 : fabs(share - 1) * growing;
}

/* A standard error, in parts that are independent: what the recorded iteration's own sum is off the
 * peak that was measured, what may grow with the batch, and a share of what is otherwise than
 * recorded: libraries' workspaces need not grow as the batch does, nor halve in 16 bits. */
static double error_of(const struct dpro_model *model, const struct dpro_strategy *strategy,
                       const struct model_memory *m, const struct dpro_memory_peak *peak)
{
    static const struct dpro_strategy as_it_is;
    static const struct memory_setting own;
    const double CHANGE_ERROR = 0.01, BITS_ERROR = 0.02, BATCH_ERROR = 0.03, BLIND_ERROR = 0.1;
    struct dpro_model recorded = *model;
    bool blind = !m->has_uses && strategy_changes_work(model, strategy);
    bool batch = strategy->micro_batches > 1 || model->memory.batch_ratio > 0;
    bool bits = memory_has_16_bits(m, strategy);
    double error = blind ? BLIND_ERROR : batch ? BATCH_ERROR : bits ? BITS_ERROR : CHANGE_ERROR;
    recorded.memory = own;
    double before = (double)memory_peak_bytes(&recorded, &as_it_is);
    double measured = m->measured_peak_bytes > 0 ? (double)m->measured_peak_bytes : before;
    double changed = (double)peak->bytes - before;
    double grown = unknown_growth(model, strategy, m, peak) / HALF_OF_95_PCT;
    return hypot(hypot(before - measured, error * changed), grown);
}

/* The highest of all ranks and micro-batches; describes it where `peak` is asked for. */
static uint64_t find_peak(const struct dpro_model *model, const struct dpro_strategy *strategy,
                          struct dpro_memory_peak *peak)
{
    int64_t most = -1;
    const struct model_memory *of = NULL;
    EACH_OF (const struct model_memory, m, model->memories, model->n_memories) {
        for (int later = 0; later <= (strategy->micro_batches > 1); later++) {
            struct memory_sweep s = memory_sweep_begin(model, strategy, m, later);
            struct memory_top top = memory_sweep_top(&s);
            if (top.bytes > most && peak)
                memory_describe(model, &s, &top, peak);
            of = top.bytes > most ? m : of;
            most = MAX(most, top.bytes);
            arena_fini(&s.arena);
        }
    }
    if (peak && of)
        peak->std_bytes = error_of(model, strategy, of, peak);
    return (uint64_t)MAX(most, 0);
}

uint64_t memory_peak_bytes(const struct dpro_model *model, const struct dpro_strategy *strategy)
{
    return find_peak(model, strategy, NULL);
}

struct dpro_memory_peak memory_peak(const struct dpro_model *model,
                                    const struct dpro_strategy *strategy)
{
    struct dpro_memory_peak peak = {.bytes = 0};
    find_peak(model, strategy, &peak);
    return peak;
}
