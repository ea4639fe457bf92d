/* Edits a program op by op.
 *
 * A program is cut into what its ops do one after the other: they wait, work for ops of the
 * graph, and issue a communication. What is edited is left out, put in or moved; then the rest is
 * put together again. */
#include "cost/change/program_edit.h"

#include "cost/program/program_writer.h"

enum step { STEP_WAITS, STEP_WORKS, STEP_ISSUES };

struct edit_part {
    uint8_t step;
    bool before;                   /* as of a piece */
    uint32_t at;                   /* op of the program */
    uint32_t op;                   /* of the graph, that it works for; DPRO_NO_OP */
    uint32_t gather;               /* that it is of; 0 */
    double ns;                     /* of work */
    uint32_t tensor;               /* waited for, or issued */
    uint32_t place, behind, order; /* parts are in the order of these */
};

typedef ARRAY(struct edit_part) part_array;

ORDER(by_place, struct edit_part, ASCENDING(place) ?: ASCENDING(behind) ?: ASCENDING(order));

struct editor {
    const struct measured_replay *r;
    const struct program_edit *edits;
    uint32_t n_edits;
    const struct dpro_graph *timed;
    const struct op_work *work;
    const struct dpro_model *m;
    struct arena *arena, scratch; /* scratch: of the rank at hand */
    uint32_t *number;             /* by communication: its new one; MODEL_NONE: it is left out */
    uint32_t **repeat;            /* [n_edits] the same of what is repeated */
};

/* ---- communications ---- */

static uint32_t gather_of(const struct editor *e, uint32_t communication)
{
    const struct dpro_graph *g = e->r->graph;
    const struct graph_collective *c =
        &g->collectives[e->m->communications[communication].collective];
    return g->gather ? g->gather[g->members[c->first_member].arrival] : 0;
}

static bool is_of(const struct program_edit *edit, const struct edit_part *part)
{
    bool leaves = edit->leaves && part->op != DPRO_NO_OP && edit->leaves[part->op];
    return part->gather != 0 && part->gather == edit->gather && !leaves;
}

static bool is_edited(const struct editor *e, const struct edit_part *part,
                      enum program_edit_kind kind)
{
    for (uint32_t i = 0; i < e->n_edits; i++)
        if (e->edits[i].kind == kind && is_of(&e->edits[i], part))
            return true;
    return false;
}

static void edit_communications(struct editor *e, struct dpro_model *to)
{
    uint32_t n = e->m->n_communications;
    struct model_communication *all =
        arena_array(e->arena, (e->n_edits + (size_t)1) * n + 1, sizeof *all);
    e->number = arena_array(e->arena, n + (size_t)1, sizeof *e->number);
    e->repeat = arena_array(e->arena, e->n_edits + (size_t)1, sizeof *e->repeat);
    to->n_communications = 0;
    for (uint32_t k = 0; k < n; k++) {
        struct edit_part is = {.op = DPRO_NO_OP, .gather = gather_of(e, k)};
        bool stays = !is_edited(e, &is, EDIT_REMOVES);
        e->number[k] = stays ? to->n_communications : MODEL_NONE;
        if (stays)
            all[to->n_communications++] = e->m->communications[k];
    }
    for (uint32_t i = 0; i < e->n_edits; i++) {
        e->repeat[i] = arena_array(e->arena, n + (size_t)1, sizeof **e->repeat);
        for (uint32_t k = 0; k < n && e->edits[i].kind == EDIT_REPEATS; k++)
            if (gather_of(e, k) == e->edits[i].gather) {
                e->repeat[i][k] = to->n_communications;
                all[to->n_communications++] = e->m->communications[k];
            }
    }
    to->communications = all;
}

/* ---- parts ---- */

static void add_part(part_array *parts, struct edit_part part)
{
    part.place = part.order = (uint32_t)parts->n;
    array_push(parts, part);
}

static void add_sync(const struct editor *e, part_array *parts, uint8_t step, uint32_t at,
                     uint32_t tensor)
{
    uint32_t k = communication_of(e->m, tensor);
    add_part(parts, (struct edit_part){.step = step,
                                       .at = at,
                                       .op = DPRO_NO_OP,
                                       .gather = k != MODEL_NONE ? gather_of(e, k) : 0,
                                       .tensor = tensor});
}

static double work_of(const struct editor *e, const struct program_piece *piece)
{
    double ns = piece->ns - piece->gap_ns, was = (double)e->timed->dur_ns[piece->op];
    if (!e->work)
        return piece->ns;
    double is = e->work->ns[piece->op], pace = e->work->pace;
    double own = pace > 0 ? fmin(ns, pace * was) : ns;
    ns += was > 0 ? own * (is / was - 1) : pace * is;
    return ns + (e->work->has_gap[piece->op] ? piece->gap_ns : 0);
}

static void take_apart(struct editor *e, const struct model_program *p,
                       const struct program_pieces *pieces, part_array *parts)
{
    const struct dpro_graph *g = e->r->graph;
    uint32_t *next = arena_array(&e->scratch, pieces->n + (size_t)1, sizeof *next);
    uint32_t *first = arena_array(&e->scratch, p->n_ops + (size_t)1, sizeof *first);
    for (uint32_t i = 0; i < p->n_ops; i++)
        first[i] = UINT32_MAX;
    for (uint32_t k = pieces->n; k-- > 0;) {
        next[k] = first[pieces->all[k].at];
        first[pieces->all[k].at] = k;
    }
    for (uint32_t i = 0; i < p->n_ops; i++) {
        const struct model_op *op = &p->ops[i];
        double work_ns = (double)op->work_ns;
        if (op->needs != MODEL_NONE)
            add_sync(e, parts, STEP_WAITS, i, op->needs);
        for (uint32_t k = first[i]; k != UINT32_MAX; k = next[k]) {
            const struct program_piece *piece = &pieces->all[k];
            work_ns -= piece->ns;
            add_part(parts, (struct edit_part){.step = STEP_WORKS,
                                               .before = piece->before,
                                               .at = i,
                                               .op = piece->op,
                                               .gather = g->gather ? g->gather[piece->op] : 0,
                                               .ns = work_of(e, piece)});
        }
        if (work_ns >= 1) /* but what rounding leaves */
            add_part(parts, (struct edit_part){
                                .step = STEP_WORKS, .at = i, .op = DPRO_NO_OP, .ns = work_ns});
        if (op->tensor != MODEL_NONE)
            add_sync(e, parts, STEP_ISSUES, i, op->tensor);
    }
}

/* The part that works for an op, else for the one that began last before it. */
static uint32_t place_of(const struct editor *e, const part_array *parts, uint32_t op)
{
    uint32_t copy = e->r->first, place = 0;
    int64_t start_ns = measured_start_ns(e->r, copy, op), last_ns = INT64_MIN;
    for (uint32_t i = 0; i < parts->n; i++) {
        const struct edit_part *part = &parts->at[i];
        if (part->step != STEP_WORKS || part->op == DPRO_NO_OP)
            continue;
        int64_t ns = measured_start_ns(e->r, copy, part->op);
        if (part->op == op || (ns <= start_ns && ns >= last_ns)) {
            last_ns = part->op == op ? INT64_MAX : ns;
            place = i;
        }
    }
    return place;
}

/* With the communications' new numbers; `repeat`: those of what is repeated. */
static struct edit_part edit_renumbered(const struct editor *e, struct edit_part part,
                                        const uint32_t *repeat)
{
    uint32_t k = part.step == STEP_WORKS ? MODEL_NONE : communication_of(e->m, part.tensor);
    if (k != MODEL_NONE)
        part.tensor = e->m->n_tensors + (repeat ? repeat[k] : e->number[k]);
    return part;
}

static void edit_parts(struct editor *e, const part_array *parts, uint32_t rank, part_array *to)
{
    uint32_t *place = arena_array(&e->scratch, e->n_edits + (size_t)1, sizeof *place);
    for (uint32_t j = 0; j < e->n_edits; j++)
        if (e->edits[j].kind != EDIT_REMOVES)
            place[j] = place_of(e, parts, e->edits[j].after[rank]);
    EACH (const struct edit_part, part, *parts) {
        if (is_edited(e, part, EDIT_REMOVES))
            continue;
        if (!is_edited(e, part, EDIT_MOVES))
            array_push(to, edit_renumbered(e, *part, NULL));
        for (uint32_t j = 0; j < e->n_edits; j++) {
            const struct program_edit *edit = &e->edits[j];
            if (edit->kind == EDIT_REMOVES || !is_of(edit, part))
                continue;
            bool repeats = edit->kind == EDIT_REPEATS;
            struct edit_part put = edit_renumbered(e, *part, repeats ? e->repeat[j] : NULL);
            put.place = place[j];
            put.behind = 1 + j;
            put.order += put.before ? (uint32_t)parts->n : 0;
            array_push(to, put);
        }
    }
    array_sort(to, by_place);
}

/* ---- and back ---- */

static struct model_program put_together(struct editor *e, const struct model_program *from,
                                         const part_array *parts)
{
    struct model_program to = *from;
    struct program_writer w = {.work_ns = 0};
    uint32_t *now = arena_array(&e->scratch, from->n_ops + (size_t)1, sizeof *now); /* by old op */
    EACH (const struct edit_part, part, *parts) {
        struct model_op like = from->ops[part->at];
        now[part->at] = (uint32_t)w.ops.n;
        like.needs = like.tensor = part->tensor;
        like.needs_before &= part->behind == 0;
        if (part->step == STEP_WORKS)
            program_work(&w, &from->ops[part->at], part->ns);
        else
            (part->step == STEP_ISSUES ? program_issue : program_wait)(&w, like);
    }
    program_end(&w, e->arena, &to);
    to.calls = arena_copy(e->arena, from->calls, from->n_calls, sizeof *to.calls);
    for (uint32_t c = 0; c < to.n_calls; c++) {
        uint32_t *ops[] = {&to.calls[c].op, &to.calls[c].forward_op, &to.calls[c].forward_last,
                           &to.calls[c].backward_last};
        for (int i = 0; i < 4; i++)
            if (*ops[i] != MODEL_NONE)
                *ops[i] = MIN(now[*ops[i]], to.n_ops - 1);
    }
    return to;
}

void program_edit(const struct measured_replay *recorded, const struct dpro_graph *timed,
                  const struct program_edit *edits, uint32_t n, const struct op_work *work,
                  struct arena *arena, struct dpro_model *model)
{
    struct dpro_model from = *model;
    struct editor e = {.r = recorded,
                       .edits = edits,
                       .n_edits = n,
                       .timed = timed,
                       .work = work,
                       .m = &from,
                       .arena = arena};
    edit_communications(&e, model);
    model->programs = arena_array(arena, from.n_programs + (size_t)1, sizeof *model->programs);
    for (uint32_t r = 0; r < from.n_ranks; r++) {
        const struct model_program *p = &from.programs[from.ranks[r].program];
        struct program_pieces pieces = program_pieces_of(recorded, timed, &from, r, &e.scratch);
        part_array parts = {0}, edited = {0};
        take_apart(&e, p, &pieces, &parts);
        edit_parts(&e, &parts, r, &edited);
        model->programs[from.ranks[r].program] = put_together(&e, p, &edited);
        array_fini(&parts);
        array_fini(&edited);
        arena_fini(&e.scratch);
    }
}
