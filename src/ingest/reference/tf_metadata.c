/* ingest/reference/tf_metadata.c: metadata.json of TensorFlow jobs recorded for dPRO's first
 * implementation: {op: {"op": type, "input": [{"name", "shape", "dtype"}], "output": [...]}}.
 *
 * What an op takes is named as what another one makes: that is the graph. An input that no op lists
 * as its own goes by the op's name in front of its ":0". */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/map.h"
#include "ingest/part.h"
#include "ingest/pytorch/kineto_words.h"
#include "ingest/reference/reference.h"

enum { MAX_NODES = 1 << 24 };

struct metadata {
    struct json *js;
    struct trace_part *part;
    struct reference_part *reference;
    struct map node_of;   /* name id + 1 -> node */
    struct map output_of; /* name id + 1 of a tensor -> node << 16 | output */
    bool no_memory;
};

static uint32_t read_text(struct metadata *m)
{
    return part_read_text(m->part, m->js, &m->no_memory);
}

/* [512, 10]; a dimension that is null is not known, and so is the product. */
static uint64_t read_shape(struct json *js)
{
    uint64_t numel = 1;
    if (!json_open(js, '['))
        return 0;
    while (json_array_next(js)) {
        uint64_t dim;
        if (json_read_unsigned(js, &dim) != JSON_VALUE ||
            __builtin_mul_overflow(numel, dim, &numel))
            numel = 0;
    }
    return numel;
}

static struct tensor_shape read_tensor(struct metadata *m)
{
    struct tensor_shape tensor = {.name = 0};
    const char *key;
    size_t len;
    if (!json_open(m->js, '{'))
        return tensor;
    while (json_object_next(m->js, &key, &len)) {
        if (json_is(key, len, "name")) {
            tensor.name = read_text(m);
        } else if (json_is(key, len, "shape")) {
            tensor.numel = read_shape(m->js);
        } else if (json_is(key, len, "dtype")) {
            uint32_t dtype = read_text(m);
            tensor.item_bytes = (uint32_t)kineto_dtype_bytes(strtab_get(&m->part->names, dtype));
        } else {
            json_skip(m->js);
        }
    }
    return tensor;
}

static void add_input(struct metadata *m, struct dfg_node *node)
{
    struct tensor_shape tensor = read_tensor(m);
    struct dfg_input input = {.node = tensor.name}; /* for now */
    if (!tensor.name)
        return;
    if (m->part->dfg_inputs.n >= NO_ID - 1 || array_push(&m->part->dfg_inputs, input) < 0)
        m->no_memory = true;
    else
        node->n_inputs++;
}

static void add_output(struct metadata *m, struct dfg_node *node, uint32_t number, uint32_t output)
{
    struct tensor_shape tensor = read_tensor(m);
    uint64_t bytes;
    if (!tensor.name)
        return;
    if (output == 0 && !__builtin_mul_overflow(tensor.numel, tensor.item_bytes, &bytes))
        node->size_bytes = bytes;
    m->no_memory |= array_push(&m->reference->outputs, tensor) < 0 ||
                    map_set(&m->output_of, (uint64_t)tensor.name + 1,
                            (uint64_t)number << 16 | (output & UINT16_MAX)) < 0;
}

static void read_list(struct metadata *m, struct dfg_node *node, uint32_t number, bool outputs)
{
    uint32_t n = 0;
    if (!json_open(m->js, '['))
        return;
    while (!m->no_memory && json_array_next(m->js)) {
        if (outputs)
            add_output(m, node, number, n++);
        else
            add_input(m, node);
    }
}

static void read_op(struct metadata *m, uint32_t name)
{
    struct dfg_node node = {.name = name, .first_input = (uint32_t)m->part->dfg_inputs.n};
    uint32_t number = (uint32_t)m->part->dfg_nodes.n;
    const char *key;
    size_t len;
    m->js->p++;
    while (!m->no_memory && json_object_next(m->js, &key, &len)) {
        if (json_is(key, len, "op"))
            node.type = read_text(m);
        else if (json_is(key, len, "input") || json_is(key, len, "output"))
            read_list(m, &node, number, key[0] == 'o');
        else
            json_skip(m->js);
    }
    m->part->n_events++;
    if (m->part->dfg_nodes.n >= MAX_NODES || array_push(&m->part->dfg_nodes, node) < 0 ||
        map_set(&m->node_of, (uint64_t)name + 1, number) < 0)
        m->no_memory = true;
}

/* "dense/MatMul:0", "dense/MatMul", "^dense/MatMul": the op's node; NO_ID: it is not here. */
static uint32_t node_named(struct metadata *m, uint32_t tensor)
{
    const char *text = strtab_get(&m->part->names, tensor);
    size_t len = strtab_len(&m->part->names, tensor);
    const char *colon = memrchr(text, ':', len);
    uint64_t node;
    if (len > 0 && *text == '^') {
        text++;
        len--;
    }
    if (colon && colon > text)
        len = (size_t)(colon - text);
    uint32_t name = strtab_find(&m->part->names, text, len);
    return name != STRTAB_FULL && map_get(&m->node_of, (uint64_t)name + 1, &node) ? (uint32_t)node
                                                                                  : NO_ID;
}

/* From names to nodes; inputs that nobody makes are none. */
static void resolve(struct metadata *m)
{
    struct trace_part *part = m->part;
    uint32_t kept = 0;
    for (size_t n = 0; n < part->dfg_nodes.n; n++) {
        struct dfg_node *node = &part->dfg_nodes.at[n];
        uint32_t first = node->first_input, end = first + node->n_inputs;
        node->first_input = kept;
        node->n_inputs = 0;
        for (uint32_t i = first; i < end; i++) {
            struct dfg_input input = part->dfg_inputs.at[i];
            uint64_t made;
            if (map_get(&m->output_of, (uint64_t)input.node + 1, &made)) {
                input.output = (uint16_t)made;
                input.node = (uint32_t)(made >> 16);
            } else {
                input.control = *strtab_get(&part->names, input.node) == '^';
                input.node = node_named(m, input.node);
            }
            if (input.node == NO_ID || input.node == n || input.node >= part->dfg_nodes.n)
                continue;
            part->dfg_inputs.at[kept++] = input;
            node->n_inputs++;
        }
    }
    part->dfg_inputs.n = kept;
}

int tf_metadata_read(struct json *js, struct trace_part *part, struct dpro_error *err)
{
    struct metadata m = {.js = js, .part = part};
    const char *key;
    size_t len;
    m.reference = reference_part_of(part);
    m.no_memory = !m.reference || strtab_add(&part->names, "", 0) == STRTAB_FULL;
    bool open = json_open_document(js);
    while (!m.no_memory && open && json_object_next(js, &key, &len)) {
        uint32_t name = part_intern(part, key, len, &m.no_memory);
        if (json_peek(js) == '{')
            read_op(&m, name);
        else
            json_skip(js);
    }
    if (!m.no_memory)
        resolve(&m);
    map_fini(&m.node_of);
    map_fini(&m.output_of);
    return m.no_memory ? dpro_error_nomem(err) : 0;
}

/* An object whose first value is an op: some of what it takes and makes. */
bool tf_metadata_recognise(struct json *js)
{
    const char *key;
    size_t len;
    bool is_op = false;
    js->p++;
    while (json_object_next(js, &key, &len)) {
        bool list = json_is(key, len, "input") || json_is(key, len, "output");
        is_op |=
            (list && json_peek(js) == '[') || (json_is(key, len, "op") && json_peek(js) == '"');
        json_skip(js);
    }
    return is_op;
}
