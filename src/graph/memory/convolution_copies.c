/* What convolutions on a CPU take within themselves, where no allocations are recorded.
 *
 * oneDNN has a layout of its own, in which channels stand in groups. Of tensors in PyTorch's layout
 * it makes copies, computes into another one, and PyTorch makes the tensor of that in the end (the
 * note on memory formats in its aten/src/ATen/native/mkldnn/Conv.cpp). So the result comes from an
 * aten::empty right within the convolution, and the copies of what went in are gone by then. Of
 * tensors with channels last, which need no copies but of the weight, it does not. The backward
 * pass does this for the input's gradient, then for the weight's. That a copy may be padded, and
 * that an input of few channels is read as it is, is not known here. */

#include "graph/memory/memory_build.h"

struct convolution {
    struct memory_build *b;
    size_t next; /* of the ordered spans: the next one that may lie in it */
    uint32_t span;
    int64_t end_ns, over_ns; /* the latter: of what has been looked at within it */
};

/* When one of its results is begun, is made, and has been copied to. */
struct result {
    int64_t begun_ns, made_ns, done_ns;
};

static bool is_named(const struct memory_build *b, const struct et_node *node, const char *name)
{
    return strcmp(strtab_get(b->rank->names, node->name), name) == 0;
}

static const struct et_tensor *inputs_of(const struct memory_build *b, const struct et_node *node)
{
    return &b->trace->et_tensors[node->first_input];
}

static const struct et_tensor *outputs_of(const struct memory_build *b, const struct et_node *node)
{
    return &b->trace->et_tensors[node->first_output];
}

/* The next op right within it; NULL: there is none. */
static const struct et_node *next_within(struct convolution *c)
{
    const struct memory_build *b = c->b;
    while (c->next < b->ordered.n) {
        uint32_t span = b->ordered.at[c->next];
        if (b->trace->spans[span].start_ns >= c->end_ns)
            break;
        c->next++;
        if (b->trace->spans[span].parent == c->span && b->node_of_span[span] != NO_ID)
            return &b->trace->et_nodes[b->node_of_span[span]];
    }
    return NULL;
}

static bool find_result(struct convolution *c, const struct et_tensor *tensor,
                        struct result *result)
{
    const struct trace_span *spans = c->b->trace->spans;
    const struct et_node *node = tensor->numel > 0 ? next_within(c) : NULL;
    for (; node; node = next_within(c)) {
        if (node->n_outputs == 1 && is_named(c->b, node, "aten::empty") &&
            outputs_of(c->b, node)->numel == tensor->numel)
            break;
        c->over_ns = span_end_ns(&spans[node->span]);
    }
    if (!node)
        return false;
    result->begun_ns = c->over_ns;
    result->made_ns = spans[node->span].start_ns;
    const struct et_node *shaped = next_within(c); /* once it has been copied to */
    c->over_ns = MIN(span_end_ns(&spans[shaped ? shaped->span : node->span]), c->end_ns);
    result->done_ns = c->over_ns;
    return true;
}

static void copies_copy(const struct convolution *c, const struct et_tensor *of, int64_t from_ns,
                        int64_t to_ns)
{
    struct memory_build *b = c->b;
    uint32_t track = b->trace->spans[c->span].track;
    uint64_t bytes;
    if (__builtin_mul_overflow(of->numel, of->item_bytes, &bytes) || bytes == 0 || to_ns <= from_ns)
        return;
    uint32_t block = memory_push_block(b, from_ns, 0, bytes);
    b->blocks.at[block].span = c->span;
    b->blocks.at[block].given_ns = to_ns;
    array_add(&b->moments, from_ns, track, block, false);
    array_add(&b->moments, to_ns, track, block, true);
}

static void copy_forward(struct convolution *c, const struct et_node *node)
{
    const struct et_tensor *in = inputs_of(c->b, node), *out = outputs_of(c->b, node);
    struct result result;
    if (node->n_inputs < 2 || node->n_outputs < 1 || !find_result(c, out, &result))
        return;
    copies_copy(c, &in[0], result.begun_ns, result.made_ns);
    copies_copy(c, &in[1], result.begun_ns, result.made_ns);
    copies_copy(c, out, result.begun_ns, c->end_ns);
}

static void copy_backward(struct convolution *c, const struct et_node *node)
{
    const struct et_tensor *in = inputs_of(c->b, node), *out = outputs_of(c->b, node);
    struct result result;
    if (node->n_inputs < 3 || node->n_outputs < 2)
        return;
    if (find_result(c, &out[0], &result)) {
        copies_copy(c, &in[0], result.begun_ns, result.made_ns);
        copies_copy(c, &in[2], result.begun_ns, result.made_ns);
        copies_copy(c, &out[0], result.begun_ns, result.done_ns);
    }
    if (find_result(c, &out[1], &result)) {
        copies_copy(c, &in[0], result.begun_ns, result.made_ns);
        copies_copy(c, &in[1], result.begun_ns, result.made_ns);
        copies_copy(c, &out[1], result.begun_ns, c->end_ns);
    }
}

void memory_add_convolution_copies(struct memory_build *b)
{
    for (size_t i = 0; i < b->ordered.n && b->device < 0; i++) {
        uint32_t at = b->ordered.at[i];
        const struct trace_span *span = &b->trace->spans[at];
        struct convolution c = {.b = b,
                                .next = i + 1,
                                .span = at,
                                .over_ns = span->start_ns,
                                .end_ns = span_end_ns(span)};
        if (b->node_of_span[at] == NO_ID || span->start_ns < b->start_ns || c.end_ns > b->end_ns)
            continue;
        const struct et_node *node = &b->trace->et_nodes[b->node_of_span[at]];
        if (is_named(b, node, "aten::mkldnn_convolution") ||
            is_named(b, node, "aten::_convolution")) /* itself where it is transposed */
            copy_forward(&c, node);
        else if (is_named(b, node, "aten::convolution_backward"))
            copy_backward(&c, node);
    }
}
