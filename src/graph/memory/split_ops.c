/* Which blocks and ops are a part of what tensor-parallel ranks share out. A parameter is split if
 * the rank has a smaller part of it than of others (of those that FSDP shards, too). Then, in the
 * order of the execution trace: an op that takes in a part is a part of the work, and makes parts,
 * until ranks add them up or gather them. What they are to add up is as large as the whole. */

#include "graph/memory/memory_build.h"

/* A part of two or more, of parameters whose shards may be uneven. */
#define LEAST_PARTS 1.5

struct splitter {
    struct memory_build *b;
    struct map parts;  /* name of a split parameter -> bytes of its part */
    struct map sizes;  /* those bytes, of FSDP's gathered parts */
    bool *is_part;     /* by block, as the walk has come to it */
    bool *is_fixed;    /* by block: of the model, so that it stays what it is */
    bool *is_whole;    /* by block: what ranks sum up or have gathered */
    uint32_t *made_by; /* by block: node; NO_ID */
    float *shares;     /* by node: the part of its work that is split; SPLIT_UNSPLITS */
};

/* ---- parameters ---- */

static struct map sizes_here(const struct held_memory *held)
{
    struct map sizes = {0};
    for (uint32_t i = 0; i < held->n_blocks; i++)
        if (held->blocks[i].category == DPRO_MEMORY_PARAMETER && held->blocks[i].size_bytes > 0)
            map_set(&sizes, map_key(held->blocks[i].name), held->blocks[i].size_bytes);
    return sizes;
}

/* Whole parameters are known where torch's DTensor splits them. */
static void find_parts(struct splitter *s)
{
    const struct recording *recording = s->b->trace->recording;
    SCRATCH struct map here = sizes_here(s->b->held);
    double least = INFINITY;
    for (int pass = 0; pass < 2; pass++)
        EACH (const struct recorded_parameter, p, recording->parameters) {
            uint64_t size;
            if (!map_get(&here, map_key(p->name), &size))
                continue;
            double parts = (double)(p->whole_bytes ?: p->size_bytes) / (double)size;
            if (pass == 0)
                least = fmin(least, parts);
            else if (parts >= LEAST_PARTS * least)
                map_set(&s->parts, map_key(p->name), size);
            if (pass == 1 && parts >= LEAST_PARTS * least)
                map_set(&s->sizes, map_key((uint64_t)llround((double)size * least)), 1);
        }
}

/* Of "blocks.0.mlp.weight.exp_avg", what the optimizer keeps, "blocks.0.mlp.weight". */
static uint64_t part_of_name(const struct splitter *s, uint32_t name)
{
    const char *text = strtab_get(s->b->rank->names, name);
    size_t len = strtab_len(s->b->rank->names, name);
    uint64_t size = 0;
    for (bool found = false; len > 0 && !found;) {
        name = strtab_find(s->b->rank->names, text, len);
        found = name != STRTAB_NONE && map_get(&s->parts, map_key(name), &size);
        while (len > 0 && text[--len] != '.')
            ;
    }
    return size;
}

/* What was there before the iteration is known by its name, what FSDP gathers by its size. */
static void mark_model(struct splitter *s)
{
    const struct held_memory *held = s->b->held;
    for (size_t i = 0; i < s->b->blocks.n; i++) {
        const struct block_build *block = &s->b->blocks.at[i];
        bool is_gathered = block->to.gather != 0 && block->to.gathered;
        s->made_by[i] = NO_ID;
        s->is_fixed[i] = block->held != NO_ID || is_gathered;
        if (block->held != NO_ID) {
            uint64_t size = part_of_name(s, held->blocks[block->held].name);
            s->is_part[i] = size > 0 && block->size_bytes >= size;
        } else if (is_gathered) {
            s->is_part[i] = map_get(&s->sizes, map_key(graph_block_asked(&block->to)), NULL);
        }
    }
}

/* ---- the walk ---- */

/* NO_ID: of a tensor whose block is not known. */
static uint32_t block_of(const struct splitter *s, uint32_t tensor, int64_t ns)
{
    const struct et_tensor *it = &s->b->trace->et_tensors[tensor];
    return it->numel > 0 ? memory_block_of(s->b, it->storage, ns) : NO_ID;
}

static int64_t start_of(const struct splitter *s, const struct et_node *node)
{
    return s->b->trace->spans[node->span].start_ns;
}

static int64_t end_of(const struct splitter *s, const struct et_node *node)
{
    return span_end_ns(&s->b->trace->spans[node->span]);
}

/* The i-th of what goes in and comes out. */
static uint32_t tensor_of(const struct splitter *s, const struct et_node *node, uint32_t i,
                          uint32_t *block)
{
    bool out = i >= node->n_inputs;
    uint32_t t = out ? node->first_output + i - node->n_inputs : node->first_input + i;
    *block = block_of(s, t, out ? end_of(s, node) : start_of(s, node));
    return t;
}

/* What is to be added up, and what that was copied or summed from without another size. */
static void mark_whole(struct splitter *s, uint32_t block)
{
    enum { DEEPEST = 32 };
    for (int depth = 0; block != NO_ID && !s->is_whole[block] && depth < DEEPEST; depth++) {
        uint32_t n = s->made_by[block], next = NO_ID;
        s->is_whole[block] = true;
        if (n == NO_ID)
            return;
        const struct et_node *node = &s->b->trace->et_nodes[n];
        for (uint32_t i = node->first_input; i < node->first_input + node->n_inputs; i++) {
            uint32_t from = block_of(s, i, start_of(s, node));
            if (from == NO_ID)
                continue;
            if (s->b->trace->et_tensors[i].numel != s->b->blocks.at[block].numel)
                return;
            if (next != NO_ID && from != next)
                mark_whole(s, next);
            next = from;
        }
        block = next;
    }
}

/* Whether it is of the model's, which ranks that split tensors do not sum up or gather: gradients,
 * what FSDP gathers, and what it puts together to be scattered. */
static bool is_of_model(const struct splitter *s, uint32_t block)
{
    const struct memory_build *b = s->b;
    uint32_t n = s->made_by[block];
    uint8_t category = b->blocks.at[block].to.category;
    return s->is_fixed[block] || b->blocks.at[block].to.gather != 0 ||
           category == DPRO_MEMORY_GRADIENT || category == DPRO_MEMORY_BUCKET ||
           (n != NO_ID &&
            strncmp(strtab_get(b->rank->names, b->trace->et_nodes[n].name), "fsdp::", 6) == 0);
}

/* What ranks sum up is whole behind it, and what they gather; what they sum up and share out is
 * parts again. */
static void pass_collective(struct splitter *s, uint32_t n, enum dpro_collective_kind kind)
{
    const struct et_node *node = &s->b->trace->et_nodes[n];
    const struct et_tensor *tensors = s->b->trace->et_tensors;
    bool sums = kind == DPRO_ALL_REDUCE, scatters = kind == DPRO_REDUCE_SCATTER;
    bool any = false;
    uint64_t most = 0;
    if (!sums && !scatters && kind != DPRO_ALL_GATHER)
        return;
    for (uint32_t i = 0; i < node->n_inputs + node->n_outputs; i++) {
        uint32_t block, t = tensor_of(s, node, i, &block);
        most = MAX(most, tensors[t].numel);
        any |= block != NO_ID && s->is_part[block] && !is_of_model(s, block);
    }
    for (uint32_t i = 0; i < node->n_inputs + node->n_outputs && any; i++) {
        uint32_t block, t = tensor_of(s, node, i, &block);
        bool whole = tensors[t].numel == most;
        if (block == NO_ID || is_of_model(s, block))
            continue;
        if (whole)
            mark_whole(s, block);
        s->is_part[block] = !whole;
    }
    if (any)
        s->shares[n] = SPLIT_UNSPLITS;
}

/* Waits for what has become whole so. */
static bool split_ops_waits(const struct splitter *s, const struct et_node *node)
{
    uint32_t block = node->n_inputs > 0 ? block_of(s, node->first_input, start_of(s, node)) : NO_ID;
    return block != NO_ID && s->is_whole[block] &&
           strstr(strtab_get(s->b->rank->names, node->name), "wait_tensor");
}

/* Lists are an optimizer's: each of what comes out is as what goes in of its size. */
static bool is_part_of_list(const struct splitter *s, const struct et_node *node, uint64_t numel)
{
    bool any = false;
    for (uint32_t i = node->first_input; i < node->first_input + node->n_inputs; i++) {
        uint32_t from = block_of(s, i, start_of(s, node));
        if (from == NO_ID || s->b->trace->et_tensors[i].numel != numel)
            continue;
        if (!s->is_part[from])
            return false;
        any = true;
    }
    return any;
}

static void pass_op(struct splitter *s, uint32_t n, bool updates)
{
    const struct et_node *node = &s->b->trace->et_nodes[n];
    double all = 0, parts = 0;
    for (uint32_t i = node->first_input; i < node->first_input + node->n_inputs; i++) {
        uint32_t from = block_of(s, i, start_of(s, node));
        double numel = (double)s->b->trace->et_tensors[i].numel;
        all += from != NO_ID ? numel : 0;
        parts += from != NO_ID && s->is_part[from] ? numel : 0;
    }
    s->shares[n] = parts > 0 ? (float)(updates ? parts / all : 1) : 0;
    for (uint32_t i = node->first_output; i < node->first_output + node->n_outputs; i++) {
        uint32_t to = block_of(s, i, end_of(s, node));
        if (to == NO_ID || s->is_fixed[to] || parts == 0)
            continue;
        s->is_part[to] = !updates || is_part_of_list(s, node, s->b->trace->et_tensors[i].numel);
        s->made_by[to] = n;
    }
}

static void split_ops_walk(struct splitter *s)
{
    const struct memory_build *b = s->b;
    for (size_t i = 0; i < b->ordered.n; i++) {
        uint32_t span = b->ordered.at[i], n = b->node_of_span[span];
        if (n == NO_ID || !memory_is_in_step(b, span))
            continue;
        uint32_t name = b->trace->spans[span].name;
        enum dpro_collective_kind kind = b->rank->classes[name] & NAME_COMM_CALL
                                             ? name_collective(strtab_get(b->rank->names, name))
                                             : DPRO_NO_COLLECTIVE;
        if (kind)
            pass_collective(s, n, kind);
        else if (split_ops_waits(s, &b->trace->et_nodes[n]))
            s->shares[n] = SPLIT_UNSPLITS;
        else
            pass_op(s, n, b->rank->phases[span] == DPRO_OP_UPDATE);
    }
}

/* ---- the result ---- */

/* Ranks have so many heads each; fewer of several that attention has. */
static uint32_t count_heads(const struct memory_build *b)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < b->trace->n_et_nodes; i++)
        for (uint32_t rest, of = b->trace->et_nodes[i].n_heads; of > 0; of = rest) {
            rest = n % of;
            n = of;
        }
    return n;
}

/* That of the innermost node around it, unless it is a part of what makes parts whole. */
static float share_of_span(const struct splitter *s, uint32_t span)
{
    float share = 0;
    for (bool known = false; span != NO_ID; span = s->b->trace->spans[span].parent) {
        uint32_t n = s->b->node_of_span[span];
        if (n != NO_ID && s->shares[n] == SPLIT_UNSPLITS)
            return SPLIT_UNSPLITS;
        if (n != NO_ID && !known)
            share = s->shares[n];
        known |= n != NO_ID;
    }
    return share;
}

static void give_result(const struct splitter *s)
{
    struct memory_build *b = s->b;
    for (size_t i = 0; i < b->blocks.n; i++) {
        struct graph_block *to = &b->blocks.at[i].to;
        to->split = s->is_part[i] && !s->is_whole[i];
        to->unsplits = s->is_whole[i] && to->category == DPRO_MEMORY_COMMUNICATION;
    }
    memory_copy_to_older(b);
    b->to->op_splits = mem_array(b->rank->n_timed + (size_t)1, sizeof *b->to->op_splits);
    for (uint32_t op = 0; op < b->rank->n_timed; op++)
        if (op != b->rank->boundary)
            b->to->op_splits[op] = share_of_span(s, memory_span_of_op(b, op));
    b->to->n_op_splits = b->rank->n_timed;
    b->to->n_heads = count_heads(b);
}

void memory_find_splits(struct memory_build *b)
{
    struct splitter s = {.b = b};
    if (!b->node_of_span || b->trace->et_is_cut || !b->held || !b->trace->recording)
        return; /* of a part of its ops the wrong answer would be no less sure */
    find_parts(&s);
    if (s.parts.n > 0) {
        size_t n = b->blocks.n + 1;
        s.is_part = arena_array(&b->scratch, n, sizeof *s.is_part);
        s.is_fixed = arena_array(&b->scratch, n, sizeof *s.is_fixed);
        s.is_whole = arena_array(&b->scratch, n, sizeof *s.is_whole);
        s.made_by = arena_array(&b->scratch, n, sizeof *s.made_by);
        s.shares = arena_array(&b->scratch, b->trace->n_et_nodes + (size_t)1, sizeof *s.shares);
        mark_model(&s);
        split_ops_walk(&s);
        give_result(&s);
    }
    FREE_ALL(&s.parts, &s.sizes);
}
