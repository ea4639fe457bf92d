/* Which part of training each CPU span belongs to.
 *
 * Strong evidence first: autograd's functions, DDP's bucket copies, the data loader and passes that
 * a pipeline's schedule marks, each with all that it encloses; and ops that autograd differentiates
 * later, the last ones on their thread with the sequence number of a backward op, wherever they
 * stand. These make *passes*, stretches of forward or of backward work. Ranges of the optimizer are
 * update but for passes within (a closure), and so are ops between a backward and a forward pass
 * that write, or make anew, as many tensors as gradients were made. Where nothing is numbered, ops
 * of the program between two backward ones part two passes. What is called after an update and
 * called in forward passes, too, evaluates.
 *
 * Other spans are classified by place. On an autograd thread they are backward. On other threads
 * they go with what comes next in the iteration; with what was last where nothing comes, or where a
 * backward pass does. What an op calls is of its phase. */

#include "graph/ops/framework_graph.h"

enum { UNKNOWN = DPRO_N_OP_KINDS, HOLDS_PASS /* and is not of one phase */ };

/* Of a pass. */
struct span_mark {
    int64_t start_ns, end_ns;
    uint32_t step;
    uint8_t phase;
    bool accumulates; /* the gradient of a parameter */
};

ORDER(by_start, struct span_mark, ASCENDING(start_ns) ?: ASCENDING(end_ns));

/* A stretch of forward or of backward work within a step, and the update that follows it. */
struct phases_pass {
    int64_t start_ns, end_ns;
    int64_t updated_ns;   /* the update's end; INT64_MIN: none follows */
    int64_t written_ns;   /* the last op that follows and writes into its input */
    int64_t made_ns;      /* and the last that updates into a new tensor */
    int64_t evaluates_ns; /* the first op behind the update that is a forward pass's; INT64_MAX */
    int64_t again_ns; /* when a pass before last ran one of its functions; INT64_MIN: none did */
    uint32_t n_written, n_made, n_gradients, n_marks;
    bool made; /* all of these: a forward pass's op followed */
    uint32_t step;
    uint8_t phase;
};

/* A sequence number that backward ops have, and one of these. In files made by hand numbers recur.
 */
struct number {
    int64_t taken_ns; /* start of the first op on a thread, from the end, that is differentiated */
    uint32_t track;   /* this thread; NO_ID: none yet */
    uint32_t newest;
};
struct backward {
    int64_t start_ns;
    uint32_t older; /* of the number; NO_ID: none */
};

struct phases_finder {
    struct rank_build *rank;
    const struct trace_rank *trace;
    uint8_t *phases;
    const uint8_t *of_nodes;
    bool *autograd;       /* by track: backward passes run there */
    bool *forward;        /* by name: ops of forward passes are called so */
    struct map number_of; /* sequence number -> index */
    ARRAY(struct number) numbers;
    ARRAY(struct backward) backwards;
    ARRAY(struct span_mark) marks;
    ARRAY(struct phases_pass) passes;
    uint8_t placing; /* what is placed: UNKNOWN, then HOLDS_PASS */
};

/* A span of a CPU thread, with the first step that is not over when it begins and how many passes
 * have begun by then. */
struct phases_place {
    uint32_t track, at, step;
    size_t n_passes;
    const struct trace_span *span;
};

static uint32_t class_of(const struct phases_finder *f, uint32_t span)
{
    return f->rank->classes[f->trace->spans[span].name];
}

static uint8_t own_phase(const struct phases_finder *f, const struct trace_span *span)
{
    uint32_t class = f->rank->classes[span->name];
    if (span->node != NO_ID)
        return f->of_nodes[span->node];
    if (class & (NAME_OPTIMIZER_STEP | NAME_ZERO_GRAD))
        return DPRO_OP_UPDATE;
    if ((class & NAME_UPDATE_NODE) && (f->rank->all_classes & NAME_BACKWARD_NODE))
        return DPRO_OP_UPDATE;
    if (class & NAME_LOADER)
        return DPRO_OP_INPUT;
    if (class &
        (NAME_BACKWARD | NAME_BACKWARD_NODE | NAME_ACCUMULATE | NAME_BUCKET_IN | NAME_BUCKET_OUT))
        return DPRO_OP_BW;
    if (span->kind == SPAN_ANNOTATION) {
        uint32_t pass = build_marked_pass(strtab_get(f->rank->names, span->name));
        if (pass > 0)
            return MARKED_KIND(pass) == PASS_FORWARD ? DPRO_OP_FW : DPRO_OP_BW;
    }
    return UNKNOWN;
}

static bool is_pass(uint8_t phase)
{
    return phase == DPRO_OP_FW || phase == DPRO_OP_BW;
}

/* The first step that is not over at a time, from the one at an earlier time on. */
static uint32_t step_at(const struct rank_build *rank, uint32_t step, int64_t time)
{
    while (step < rank->steps.n && rank->steps.at[step].end_ns <= time)
        step++;
    return step;
}

/* Takes over what is known of the span around it, if that says something of all that it holds. */
static void phases_inherit(struct phases_finder *f, uint32_t span, uint32_t except)
{
    uint32_t parent = f->trace->spans[span].parent;
    if (f->phases[span] == UNKNOWN && parent != NO_ID && f->phases[parent] < UNKNOWN &&
        !(class_of(f, parent) & except))
        f->phases[span] = f->phases[parent];
}

static void add_backward(struct phases_finder *f, const struct trace_span *span)
{
    int64_t n = map_number(&f->number_of, map_key((uint32_t)span->sequence));
    if ((size_t)n == f->numbers.n)
        array_add(&f->numbers, .track = NO_ID, .newest = NO_ID);
    array_add(&f->backwards, span->start_ns, f->numbers.at[n].newest);
    f->numbers.at[n].newest = (uint32_t)f->backwards.n - 1;
}

static void find_own_phase(struct phases_finder *f, const struct phases_place *place)
{
    uint32_t i = place->at;
    f->phases[i] = own_phase(f, place->span);
    phases_inherit(f, i, NAME_OPTIMIZER_STEP);
    if (f->phases[i] != DPRO_OP_BW)
        return;
    bool runs_backward = place->span->fwd_thread > 0 || (class_of(f, i) & NAME_BACKWARD);
    f->autograd[place->track] |= runs_backward && place->track != f->rank->main_track;
    if (runs_backward && place->span->sequence >= 0)
        add_backward(f, place->span);
}

static bool is_differentiated(struct phases_finder *f, const struct trace_span *span)
{
    uint64_t found;
    if (!map_get(&f->number_of, map_key((uint32_t)span->sequence), &found))
        return false;
    struct number *number = &f->numbers.at[found];
    int64_t until_ns = number->track == span->track ? number->taken_ns : INT64_MAX;
    uint32_t i = number->newest;
    while (i != NO_ID && f->backwards.at[i].start_ns >= until_ns)
        i = f->backwards.at[i].older;
    if (i == NO_ID || f->backwards.at[i].start_ns <= span->start_ns)
        return false;
    *number = (struct number){span->start_ns, span->track, number->newest};
    return true;
}

/* In grad mode an op carries the number that the next op to be differentiated gets: the last one
 * has it for itself. */
static void find_forward_ops(struct phases_finder *f, uint32_t t)
{
    const struct trace_track *track = &f->trace->tracks[t];
    int64_t pass_ns = INT64_MAX; /* start of the first one from here on */
    for (uint32_t i = track->first + track->n; i-- > track->first;) {
        const struct trace_span *span = &f->trace->spans[i];
        if (f->phases[i] == UNKNOWN && span->sequence >= 0 && span->kind == SPAN_CPU_OP &&
            !f->autograd[t] && is_differentiated(f, span))
            f->phases[i] = DPRO_OP_FW;
        if (is_pass(f->phases[i]))
            pass_ns = span->start_ns;
        else if ((f->phases[i] == UNKNOWN || (class_of(f, i) & NAME_OPTIMIZER_STEP)) &&
                 pass_ns < span_end_ns(span))
            f->phases[i] = HOLDS_PASS;
    }
}

static void collect_mark(struct phases_finder *f, const struct phases_place *place)
{
    const struct trace_span *span = place->span;
    phases_inherit(f, place->at, 0);
    uint8_t phase = f->phases[place->at];
    if (is_pass(phase) && (span->parent == NO_ID || f->phases[span->parent] != phase))
        array_add(&f->marks, .start_ns = span->start_ns, .end_ns = span_end_ns(span),
                  .step = place->step, .phase = phase,
                  .accumulates = class_of(f, place->at) & NAME_ACCUMULATE);
}

static bool is_op(const struct phases_finder *f, uint32_t span)
{
    return span != NO_ID && f->trace->spans[span].kind == SPAN_CPU_OP;
}

/* Of the program, as far as is known. */
static bool is_outer_op(const struct phases_finder *f, uint32_t span)
{
    uint32_t parent = f->trace->spans[span].parent;
    return f->phases[span] == UNKNOWN && is_op(f, span) &&
           (!is_op(f, parent) || f->phases[parent] == HOLDS_PASS);
}

/* An op of a model as the program calls it; no collective, and none that writes into its input. */
static bool may_be_forward(const struct phases_finder *f, uint32_t span)
{
    const char *name = strtab_get(f->rank->names, f->trace->spans[span].name);
    return text_begins(name, "aten::") && !text_ends(name, "_") && is_outer_op(f, span);
}

/* Nothing is numbered: whether the program called such an op between two times; *next: its span at
 * an earlier time. */
static bool calls_between(const struct phases_finder *f, uint32_t *next, int64_t from_ns,
                          int64_t to_ns)
{
    if (f->numbers.n > 0 || f->rank->main_track == NO_ID)
        return false;
    const struct trace_track *track = &f->trace->tracks[f->rank->main_track];
    for (; *next < track->first + track->n && f->trace->spans[*next].start_ns < to_ns; ++*next)
        if (f->trace->spans[*next].start_ns >= from_ns && may_be_forward(f, *next))
            return true;
    return false;
}

static void join_marks(struct phases_finder *f)
{
    uint32_t next = f->rank->main_track == NO_ID ? 0 : f->trace->tracks[f->rank->main_track].first;
    array_sort(&f->marks, by_start);
    EACH (const struct span_mark, mark, f->marks) {
        struct phases_pass *last = f->passes.n > 0 ? &f->passes.at[f->passes.n - 1] : NULL;
        if (!last || last->phase != mark->phase || last->step != mark->step ||
            calls_between(f, &next, last->end_ns, mark->start_ns)) {
            array_add(&f->passes, .start_ns = mark->start_ns, .end_ns = mark->end_ns,
                      .updated_ns = INT64_MIN, .written_ns = INT64_MIN, .made_ns = INT64_MIN,
                      .again_ns = INT64_MIN, .evaluates_ns = INT64_MAX, .step = mark->step,
                      .phase = mark->phase);
            last = &f->passes.at[f->passes.n - 1];
        }
        last->end_ns = MAX(last->end_ns, mark->end_ns);
        last->n_gradients += mark->accumulates;
        last->n_marks++;
    }
}

/* The last pass that began before or at a time, from the one at an earlier time on: its index + 1;
 * 0: none did. */
static size_t pass_at(const struct phases_finder *f, size_t n, int64_t time)
{
    while (n < f->passes.n && f->passes.at[n].start_ns <= time)
        n++;
    return n;
}

/* Several losses of one forward pass, as with retain_graph, run its functions several times. */
static void find_shared_forward(struct phases_finder *f)
{
    EACH (const struct backward, function, f->backwards) {
        size_t n = LOWER_BOUND(k, 0, f->passes.n, f->passes.at[k].start_ns <= function->start_ns);
        uint32_t i = function->older;
        while (i != NO_ID && n > 0 && f->backwards.at[i].start_ns >= f->passes.at[n - 1].start_ns)
            i = f->backwards.at[i].older;
        if (i != NO_ID && n > 0)
            f->passes.at[n - 1].again_ns =
                MAX(f->passes.at[n - 1].again_ns, f->backwards.at[i].start_ns);
    }
}

/* TensorFlow's ops that do, whose next step may begin with such as no update needs. */
static bool assigns_variable(const char *name)
{
    return strstr(name, "ResourceApply") || (strstr(name, "Assign") && strstr(name, "VariableOp"));
}

static int64_t end_of_step(const struct phases_finder *f, uint32_t step)
{
    return step < f->rank->steps.n ? f->rank->steps.at[step].end_ns : INT64_MAX;
}

/* Where updates end, from the optimizer's ranges, from nodes of a graph and ops that write. */
static void find_update(struct phases_finder *f, const struct phases_place *place)
{
    const struct trace_span *span = place->span;
    uint32_t class = class_of(f, place->at);
    size_t n = place->n_passes;
    int64_t end_ns = span_end_ns(span);
    size_t last = class & NAME_OPTIMIZER_STEP ? pass_at(f, n, end_ns - 1) : 0;
    if (last > 0)
        f->passes.at[last - 1].updated_ns = MAX(f->passes.at[last - 1].updated_ns, end_ns);
    if (n == 0 || span->start_ns < f->passes.at[n - 1].end_ns)
        return;
    struct phases_pass *pass = &f->passes.at[n - 1];
    if (class & NAME_UPDATE_NODE) {
        if (f->phases[place->at] == DPRO_OP_UPDATE)
            pass->updated_ns = MAX(pass->updated_ns, end_ns);
    } else if (is_outer_op(f, place->at)) {
        const char *name = strtab_get(f->rank->names, span->name);
        bool many = name_writes_many(name);
        bool in_step = span->start_ns < end_of_step(f, pass->step), into_input;
        bool assigns = assigns_variable(name) && in_step;
        bool updates = name_updates(name, &into_input);
        if (updates && !into_input && !pass->made && in_step) {
            pass->made_ns = end_ns;
            pass->n_made++;
        }
        pass->made |= !updates && f->forward[span->name];
        if (!many && !assigns && !(updates && into_input))
            return;
        pass->written_ns = MAX(pass->written_ns, end_ns);
        pass->n_written = many ? UINT32_MAX : pass->n_written + (pass->n_written < UINT32_MAX);
    }
}

static uint8_t phase_by_place(const struct phases_finder *f, const struct phases_place *place)
{
    int64_t time = place->span->start_ns;
    uint32_t step = place->step;
    size_t n = place->n_passes;
    const struct phases_pass *last = n > 0 ? &f->passes.at[n - 1] : NULL;
    const struct phases_pass *next = n < f->passes.n ? &f->passes.at[n] : NULL;
    if (last && time < last->end_ns)
        return last->phase;
    bool after_backward = last && last->phase == DPRO_OP_BW;
    if (after_backward && time < last->updated_ns)
        return DPRO_OP_UPDATE;
    bool updated = after_backward && last->updated_ns > INT64_MIN;
    if (next && next->step == step)
        return next->phase == DPRO_OP_BW && after_backward && !updated && f->numbers.n > 0
                   ? DPRO_OP_BW
                   : DPRO_OP_FW;
    if (!last || last->step != step)
        return DPRO_OP_FW;
    if (time >= last->evaluates_ns)
        return DPRO_OP_FW;
    return updated ? DPRO_OP_UPDATE : last->phase;
}

static void find_phase(struct phases_finder *f, const struct phases_place *place)
{
    uint32_t parent = place->span->parent;
    uint8_t *phase = &f->phases[place->at];
    if (*phase != f->placing)
        return;
    if (f->autograd[place->track])
        *phase = DPRO_OP_BW;
    else if (class_of(f, place->at) & NAME_OPTIMIZER_STEP)
        *phase = DPRO_OP_UPDATE;
    else if (f->placing == UNKNOWN && is_op(f, parent) && f->phases[parent] < UNKNOWN)
        *phase = f->phases[parent];
    else
        *phase = phase_by_place(f, place);
}

/* Takes ops that write as an update. Of the passes since the one before, those that made about as
 * many gradients as the last one, each of a forward pass of its own, are micro-batches. */
static void finish_passes(struct phases_finder *f)
{
    struct phases_pass *first = f->passes.at;
    EACH (struct phases_pass, pass, f->passes) {
        if (pass->n_written >= MAX(pass->n_gradients, 1))
            pass->updated_ns = MAX(pass->updated_ns, pass->written_ns);
        else if (pass->phase == DPRO_OP_BW && pass->updated_ns == INT64_MIN &&
                 pass->n_made >= name_updates_needed(pass->n_gradients, pass->n_marks))
            pass->updated_ns = pass->made_ns;
        if (pass->step != first->step)
            first = pass;
        if (pass->updated_ns == INT64_MIN || pass->step == f->rank->steps.n)
            continue;
        uint32_t n = 0, *most = &f->rank->steps.at[pass->step].n_micro_batches;
        bool counted = pass->n_gradients > 0; /* else by all functions of the passes */
        for (const struct phases_pass *p = first; p <= pass; p++) {
            uint32_t own = counted ? p->n_gradients : p->n_marks,
                     of_last = counted ? pass->n_gradients : pass->n_marks;
            n += (counted || f->numbers.n == 0 || own == of_last) && p->phase == DPRO_OP_BW &&
                 own > 0 && own >= of_last / 2 && p->again_ns < first->start_ns;
        }
        *most = MAX(*most, counted || n > 1 ? n : 0);
        first = pass + 1;
    }
}

/* What a forward pass calls: ops that are differentiated later, or call such (aten::linear); where
 * nothing is numbered, those before the first pass of a step. */
static void find_forward_name(struct phases_finder *f, const struct phases_place *place)
{
    const struct trace_span *span = place->span;
    size_t n = place->n_passes;
    if (f->autograd[place->track] || !is_op(f, place->at))
        return;
    bool first = f->numbers.n == 0 && is_outer_op(f, place->at) && n < f->passes.n &&
                 f->passes.at[n].step == place->step &&
                 (n == 0 || f->passes.at[n - 1].step != place->step);
    bool outer = !is_op(f, span->parent) || f->phases[span->parent] != DPRO_OP_FW;
    bool forward = f->phases[place->at] == DPRO_OP_FW || f->phases[place->at] == HOLDS_PASS;
    if (outer && (forward || first) &&
        text_begins(strtab_get(f->rank->names, span->name), "aten::"))
        f->forward[span->name] = true;
}

static void find_evaluation(struct phases_finder *f, const struct phases_place *place)
{
    int64_t ns = place->span->start_ns;
    struct phases_pass *last = place->n_passes > 0 ? &f->passes.at[place->n_passes - 1] : NULL;
    if (last && !f->autograd[place->track] && last->updated_ns > INT64_MIN &&
        ns >= last->updated_ns && ns >= last->end_ns && ns < end_of_step(f, last->step) &&
        f->forward[place->span->name] && is_outer_op(f, place->at))
        last->evaluates_ns = MIN(last->evaluates_ns, ns);
}

static void on_spans(struct phases_finder *f,
                     void (*see)(struct phases_finder *, const struct phases_place *))
{
    for (uint32_t t = 0; t < f->trace->n_tracks; t++) {
        const struct trace_track *track = &f->trace->tracks[t];
        struct phases_place place = {.track = t, .at = track->first};
        for (; !track->gpu && place.at < track->first + track->n; place.at++) {
            place.span = &f->trace->spans[place.at];
            place.step = step_at(f->rank, place.step, place.span->start_ns);
            place.n_passes = pass_at(f, place.n_passes, place.span->start_ns);
            see(f, &place);
        }
    }
}

void build_phases(struct rank_build *rank)
{
    const struct trace_rank *trace = rank->trace;
    SCRATCH_ARENA struct arena scratch = {0};
    struct phases_finder f = {.rank = rank,
                              .trace = trace,
                              .phases = mem_alloc(trace->n_spans + 1),
                              .of_nodes = dfg_find_phases(rank, &scratch),
                              .autograd = arena_array(&scratch, trace->n_tracks + 1, 1),
                              .forward = arena_array(&scratch, rank->names->n + 1, 1)};
    rank->phases = f.phases;
    memset(f.phases, UNKNOWN, trace->n_spans + 1);
    on_spans(&f, find_own_phase);
    for (uint32_t t = 0; t < trace->n_tracks; t++)
        if (!trace->tracks[t].gpu)
            find_forward_ops(&f, t);
    on_spans(&f, collect_mark);
    join_marks(&f);
    find_shared_forward(&f);
    on_spans(&f, find_forward_name);
    on_spans(&f, find_update);
    finish_passes(&f);
    on_spans(&f, find_evaluation);
    for (f.placing = UNKNOWN; f.placing <= HOLDS_PASS; f.placing++)
        on_spans(&f, find_phase);
    FREE_ALL(&f.marks, &f.passes, &f.numbers, &f.backwards, &f.number_of);
}
