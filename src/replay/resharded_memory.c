#include "replay/resharded_memory.h"

#include <string.h>

#include "base/array.h"
#include "base/sort.h"

/* A taking or giving back that was not recorded. */
struct added {
    uint32_t place, number; /* those of one place in the order in which they are added */
    uint32_t block;
    bool gives;
};

struct resharder {
    struct graph_memory m;
    ARRAY(struct graph_block) blocks; /* to which new ones are added */
    ARRAY(struct added) added;
};

ORDER(by_place, struct added, ASCENDING(place) ?: ASCENDING(number));

/* Size 0 is as good as not there. */
static void keep(struct resharder *r, uint32_t unit)
{
    struct graph_block *blocks = r->blocks.at;
    uint32_t again = 0;
    for (uint32_t b = 0; b < r->m.n_blocks; b++) {
        if (blocks[b].gather != GATHER(unit, false) || !blocks[b].gathered)
            continue;
        while (again < r->m.n_blocks &&
               !(blocks[again].gather == GATHER(unit, true) && blocks[again].gathered))
            again++;
        if (again == r->m.n_blocks)
            break;
        blocks[b].given = blocks[again].given;
        if (blocks[b].given != MEMORY_NONE)
            r->m.moments[blocks[b].given].block = b;
        again++;
    }
    for (uint32_t b = 0; b < r->m.n_blocks; b++)
        if (blocks[b].gather == GATHER(unit, true))
            blocks[b].size_bytes = 0;
}

static void add(struct resharder *r, uint32_t place, uint32_t block, bool gives)
{
    array_push(&r->added, ((struct added){place, (uint32_t)r->added.n, block, gives}));
}

/* The block once more, from one place to another; MEMORY_NONE: its end is no new moment. */
static uint32_t add_block(struct resharder *r, uint32_t block, uint32_t from, uint32_t to)
{
    struct graph_block copy = r->blocks.at[block];
    uint32_t added = (uint32_t)r->blocks.n;
    copy.taken = copy.given = MEMORY_NONE;
    copy.n_uses = 0;
    array_push(&r->blocks, copy);
    add(r, from, added, false);
    if (to != MEMORY_NONE)
        add(r, to, added, true);
    return added;
}

/* Of an all-gather's own blocks those are still there when the parameters are copied out of them
 * that were when the first of these was taken. */
static void free_unit(struct resharder *r, uint32_t unit)
{
    const struct graph_unit_places *places = &r->m.units[unit];
    uint32_t copies_out = MEMORY_NONE;
    ARRAY(uint32_t) held = {0};
    if (places->forward_end == MEMORY_NONE || places->backward == MEMORY_NONE)
        return;
    uint32_t asked = places->asked == MEMORY_NONE ? places->backward : places->asked;
    for (uint32_t b = 0; b < r->m.n_blocks; b++)
        if (r->blocks.at[b].gather == GATHER(unit, false) && r->blocks.at[b].gathered)
            copies_out = MIN(copies_out, r->blocks.at[b].taken);
    for (uint32_t b = 0; b < r->m.n_blocks; b++) {
        struct graph_block *block = &r->blocks.at[b];
        if (block->gather != GATHER(unit, false) || block->taken == MEMORY_NONE)
            continue;
        uint32_t given = block->given;
        if (!block->gathered) {
            uint32_t copy = add_block(r, b, asked, given > copies_out ? MEMORY_NONE : asked);
            if (given > copies_out)
                array_push(&held, copy);
            continue;
        }
        add(r, places->forward_end, b, true);
        uint32_t again = add_block(r, b, places->backward, MEMORY_NONE);
        r->blocks.at[again].given = given;
        if (given != MEMORY_NONE)
            r->m.moments[given].block = again;
    }
    for (size_t i = 0; i < held.n; i++)
        add(r, places->backward, held.at[i], true);
    array_fini(&held);
}

/* By old place, how many moments were added before it; by old moment, before that. */
struct shifts {
    uint32_t *place, *moment;
};

static struct shifts shifts_of(const struct resharder *r, struct arena *arena)
{
    size_t n = r->m.n_moments + (size_t)2;
    struct shifts s = {arena_array(arena, n, sizeof *s.place),
                       arena_array(arena, n, sizeof *s.moment)};
    for (uint32_t p = 0, before = 0; p <= r->m.n_moments; p++) {
        s.place[p] = before;
        while (before < r->added.n && r->added.at[before].place == p)
            before++;
        s.moment[p] = before;
    }
    return s;
}

static void shift_place(const struct shifts *s, uint32_t *place)
{
    if (*place != MEMORY_NONE)
        *place += s->place[*place];
}

static void shift_calls(struct resharder *r, const struct shifts *s, struct arena *arena)
{
    struct graph_call *calls = arena_alloc(arena, r->m.n_calls * sizeof *calls);
    for (uint32_t c = 0; c < r->m.n_calls; c++) {
        calls[c] = r->m.calls[c];
        shift_place(s, &calls[c].forward_first);
        shift_place(s, &calls[c].forward_last);
        shift_place(s, &calls[c].backward_first);
        shift_place(s, &calls[c].backward_last);
    }
    r->m.calls = calls;
}

static void shift_uses(struct resharder *r, const struct shifts *s, struct arena *arena)
{
    struct graph_use *uses = arena_alloc(arena, (r->m.n_uses + (size_t)1) * sizeof *uses);
    struct graph_typed_op *ops = arena_alloc(arena, (r->m.n_typed_ops + (size_t)1) * sizeof *ops);
    for (uint32_t i = 0; i < r->m.n_uses; i++) {
        uses[i] = r->m.uses[i];
        shift_place(s, &uses[i].first);
        shift_place(s, &uses[i].last);
    }
    for (uint32_t i = 0; i < r->m.n_typed_ops; i++) {
        ops[i] = r->m.typed_ops[i];
        shift_place(s, &ops[i].first);
        shift_place(s, &ops[i].last);
    }
    r->m.uses = uses;
    r->m.typed_ops = ops;
}

/* An op that stands for nothing comes right after the moment before it. */
static void put_in(struct resharder *r, struct arena *arena)
{
    array_sort(&r->added, by_place);
    struct shifts s = shifts_of(r, arena);
    uint32_t n = r->m.n_moments + (uint32_t)r->added.n;
    struct graph_moment *moments = arena_array(arena, (size_t)n + 1, sizeof *moments);
    for (uint32_t b = 0; b < r->blocks.n; b++) {
        struct graph_block *block = &r->blocks.at[b];
        block->taken += block->taken == MEMORY_NONE ? 0 : s.moment[block->taken];
        block->given += block->given == MEMORY_NONE ? 0 : s.moment[block->given];
    }
    for (uint32_t i = 0; i < r->m.n_moments; i++)
        moments[i + s.moment[i]] = r->m.moments[i];
    for (uint32_t i = 0; i < r->added.n; i++) {
        const struct added *it = &r->added.at[i];
        uint32_t at = it->place + i;
        moments[at] =
            (struct graph_moment){.op = DPRO_NO_OP, .gives = it->gives, .block = it->block};
        *(it->gives ? &r->blocks.at[it->block].given : &r->blocks.at[it->block].taken) = at;
    }
    shift_calls(r, &s, arena);
    shift_uses(r, &s, arena);
    r->m.moments = moments;
    r->m.n_moments = n;
}

static struct resharder begin(const struct graph_memory *memory, const uint32_t *new_op,
                              struct arena *arena)
{
    struct resharder r = {.m = *memory};
    r.m.start = (struct allocator_history){0}; /* other blocks would be there */
    array_append(&r.blocks, memory->blocks, memory->n_blocks);
    r.m.moments = arena_alloc(arena, (memory->n_moments + (size_t)1) * sizeof *r.m.moments);
    for (uint32_t i = 0; i < memory->n_moments; i++) {
        r.m.moments[i] = memory->moments[i];
        if (r.m.moments[i].op != DPRO_NO_OP)
            r.m.moments[i].op = new_op[r.m.moments[i].op];
    }
    return r;
}

static struct graph_memory finish(struct resharder *r, struct arena *arena)
{
    put_in(r, arena);
    r->m.n_blocks = (uint32_t)r->blocks.n;
    r->m.blocks = arena_alloc(arena, (r->blocks.n + 1) * sizeof *r->m.blocks);
    memcpy(r->m.blocks, r->blocks.at, r->blocks.n * sizeof *r->m.blocks);
    array_fini(&r->blocks);
    array_fini(&r->added);
    return r->m;
}

struct graph_memory resharded_memory(const struct graph_memory *memory,
                                     const struct resharding *resharding, const uint32_t *new_op,
                                     struct arena *arena)
{
    struct resharder r = begin(memory, new_op, arena);
    for (uint32_t u = 0; u < memory->n_units; u++) {
        if (resharding->before[u] && !resharding->after[u])
            keep(&r, u);
        else if (!resharding->before[u] && resharding->after[u])
            free_unit(&r, u);
    }
    return finish(&r, arena);
}

/* Where the copying out of a gather begins and is over; MEMORY_NONE: not known. */
static uint32_t copying(const struct resharder *r, uint32_t gather, bool end)
{
    uint32_t place = MEMORY_NONE;
    for (uint32_t b = 0; b < r->m.n_blocks; b++) {
        const struct graph_block *block = &r->blocks.at[b];
        if (block->gather != gather || !block->gathered || block->taken == MEMORY_NONE)
            continue;
        if (place == MEMORY_NONE)
            place = block->taken + end;
        place = end ? MAX(place, block->taken + 1) : MIN(place, block->taken);
    }
    return place;
}

/* What an all-gather brings is there from where it is asked for until it is copied out. */
struct graph_memory prefetched_memory(const struct graph_memory *memory,
                                      const struct unit_move *moves, uint32_t n_moves,
                                      const uint32_t *new_op, struct arena *arena)
{
    struct resharder r = begin(memory, new_op, arena);
    for (uint32_t i = 0; i < n_moves; i++) {
        uint32_t asked = copying(&r, moves[i].behind, true);
        uint32_t copied = copying(&r, moves[i].gather, false);
        for (uint32_t b = 0; b < memory->n_blocks && asked != MEMORY_NONE; b++) {
            struct graph_block *block = &r.blocks.at[b];
            uint32_t given = block->given;
            if (block->gather != moves[i].gather || block->gathered || given == MEMORY_NONE ||
                block->taken == MEMORY_NONE || copied == MEMORY_NONE || given < copied)
                continue;
            uint32_t moved = add_block(&r, b, asked, MEMORY_NONE);
            r.blocks.at[moved].given = given;
            r.m.moments[given].block = moved;
            block = &r.blocks.at[b];
            block->given = MEMORY_NONE;
            block->size_bytes = 0; /* as good as not there */
        }
    }
    return finish(&r, arena);
}
