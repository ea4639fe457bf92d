/* PyTorch execution traces, schema 1.0.1 (everything a node has as its own key) to
 * 1.1.1-chakra.0.0.4 (inputs.values, attrs).
 *
 * Of a node's inputs and outputs only the tensors are kept, [id, storage, offset, elements, bytes
 * an element, device], wherever they stand in lists of lists: they are known by their form, five
 * numbers and a string, so that the type strings need not be read. */

#include "ingest/pytorch/kineto.h"
#include "ingest/pytorch/kineto_words.h"

enum { MAX_RAW_INPUTS = 16384 };

struct et {
    struct json *js;
    struct trace_part *part;
    struct execution_trace *out;
    struct op_shapes inputs, outputs; /* of a convolution at hand */
    struct map marks;                 /* map_key(id) of a module's mark -> its parent */
};

/* Collects the tensors of a list of values; js is before its '['. */
static void read_tensors(struct et *et, struct json *js, uint32_t *first, uint32_t *n)
{
    uint64_t numbers[5];
    unsigned n_values =
        0; /* in the innermost list: up to 5 numbers, 6 with the device, 7: no tensor */
    uint32_t device = 0;
    int depth = 0;
    const char *text;
    size_t len;
    *first = (uint32_t)et->out->tensors.n;
    *n = 0;
    if (json_peek(js) != '[') {
        json_skip(js);
        return;
    }
    do {
        int c = json_peek(js);
        if (c == '[') {
            js->p++;
            n_values = 0;
            if (++depth > JSON_DEPTH_MAX)
                json_stop(js, JSON_DEEP);
        } else if (c == ']') {
            js->p++;
            depth--;
            if (n_values == 6) {
                array_add(&et->out->tensors, .storage = numbers[1], .offset = numbers[2],
                          .numel = numbers[3], .item_bytes = (uint32_t)numbers[4],
                          .device = device);
                ++*n;
            }
            n_values = 7;
        } else if (c == ',') {
            js->p++;
        } else if (c == '"') {
            if (!json_string(js, &text, &len))
                break;
            bool tensor = n_values == 5 && depth > 1;
            if (tensor)
                device = part_intern(et->part, text, len);
            n_values = tensor ? 6 : 7;
        } else if (c == '{' || c < 0 || c == '}' || c == ':') {
            n_values = 7;
            json_skip(js);
        } else {
            uint64_t v = json_u64(js); /* -1, true: no tensor has them where it matters */
            if (n_values < 5)
                numbers[n_values++] = v;
            else
                n_values = 7;
        }
    } while (depth > 0 && js->fail == JSON_OK);
}

/* A convolution's forward pass takes in its input and weight, the backward pass the output's
 * gradient before these. */
static bool is_convolution(const char *name, bool *backward)
{
    *backward = strcmp(name, "aten::convolution_backward") == 0;
    return *backward || strcmp(name, "aten::mkldnn_convolution") == 0;
}

static uint32_t pointwise_batch(const struct et *et, bool backward)
{
    unsigned in = backward, weight = backward + 1, n = et->inputs.n[weight];
    const struct op_shapes *made = backward ? &et->inputs : &et->outputs;
    bool is = n > 2 && et->inputs.n[in] == n && made->n[0] == n;
    for (unsigned i = 2; i < n && is; i++)
        is = et->inputs.at[weight][i] == 1 && et->inputs.at[in][i] == made->at[0][i];
    return is && et->inputs.at[in][0] <= UINT32_MAX ? (uint32_t)et->inputs.at[in][0] : 0;
}

static uint32_t n_heads(const struct et *et)
{
    bool is = et->inputs.n[0] == 4 && et->inputs.n[1] == 4;
    int64_t n = is ? et->inputs.at[0][1] : 0;
    for (int64_t of = n > 0 ? et->inputs.at[1][1] : 0; of > 0;) {
        int64_t rest = n % of;
        n = of;
        of = rest;
    }
    return n <= UINT32_MAX ? (uint32_t)n : 0;
}

/* Inputs of communication: the tensors, and the text itself, which holds the collective's name and
 * group. */
static void read_inputs(struct et *et, struct et_node *node, bool wants_text)
{
    const char *text;
    size_t len;
    bool cut;
    if (!wants_text || json_peek(et->js) != '[') {
        read_tensors(et, et->js, &node->first_input, &node->n_inputs);
        return;
    }
    if (!json_raw(et->js, JSON_TEXT_MAX, &text, &len, &cut))
        return;
    node->text_inputs = part_intern(et->part, text, MIN(len, (size_t)MAX_RAW_INPUTS));
    struct input memory;
    struct json inner;
    struct dpro_error ignored;
    input_open_memory(&memory, text, len, "inputs");
    json_init(&inner, &memory, len + 1, &ignored);
    read_tensors(et, &inner, &node->first_input, &node->n_inputs);
    json_fini(&inner);
    input_close(&memory);
}

static void read_list(struct et *et, struct et_node *node, bool outputs, bool wants_text)
{
    if (outputs)
        read_tensors(et, et->js, &node->first_output, &node->n_outputs);
    else
        read_inputs(et, node, wants_text);
}

/* inputs or outputs of the later schemas: {"values": [...], "shapes": [...], "types": [...]}. */
static void read_values(struct et *et, struct et_node *node, bool outputs, bool wants_text,
                        bool wants_shapes)
{
    struct json *js = et->js;
    if (json_peek(js) != '{') {
        read_list(et, node, outputs, wants_text);
        return;
    }
    JSON_KEYS (js, json_open(js, '{'), key, len)
        if (json_is(key, len, "values"))
            read_list(et, node, outputs, wants_text);
        else if (wants_shapes && json_is(key, len, "shapes"))
            op_shapes_read(outputs ? &et->outputs : &et->inputs, js);
        else
            json_skip(js);
}

/* One {"name": "rf_id", "type": "uint64", "value": 0}. */
static void read_attr(struct et *et, struct et_node *node)
{
    struct {
        uint32_t name;
        int64_t value;
    } attr = {0};
    const struct json_member members[] = {MEMBER(__typeof__(attr), "name", TEXT, name),
                                          MEMBER(__typeof__(attr), "value", INT, value),
                                          {NULL}};
    struct json_reader r = {.js = et->js, .strings = &et->part->names};
    json_read_members(&r, members, &attr);
    const char *name = strtab_get(&et->part->names, attr.name);
    if (strcmp(name, "rf_id") == 0)
        node->record_fn = (uint32_t)attr.value;
    else if (strcmp(name, "tid") == 0)
        node->thread = (uint32_t)attr.value;
}

static void read_node(struct et *et)
{
    struct json *js = et->js;
    struct trace_part *part = et->part;
    size_t n_tensors = et->out->tensors.n;
    struct et_node node = {.span = NO_ID};
    bool wants_text = false, convolution = false, backward = false, attends = false;
    et->inputs = et->outputs = (struct op_shapes){0};
    JSON_KEYS (js, true, key, len) {
        if (json_is(key, len, "name")) {
            node.name = json_text_id(js, &part->names);
            /* what names the process group; _c10d_functional does, too */
            wants_text = text_n_holds(strtab_get(&part->names, node.name),
                                      strtab_len(&part->names, node.name), "record_param_comms",
                                      "c10d_functional::");
            convolution = is_convolution(strtab_get(&part->names, node.name), &backward);
            /* attention takes in queries, keys and values of [batch, heads, ...] each */
            attends = strstr(strtab_get(&part->names, node.name), "scaled_dot_product");
        } else if (json_is(key, len, "id")) {
            node.id = json_u64(js);
        } else if (json_is(key, len, "parent") || json_is(key, len, "ctrl_deps")) {
            bool list = json_peek(js) == '['; /* of one in some */
            js->p += list;
            if (!list || json_array_next(js))
                node.parent = json_u64(js);
            while (list && json_array_next(js))
                json_skip(js);
        } else if (json_is(key, len, "rf_id")) {
            node.record_fn = (uint32_t)json_u64(js);
        } else if (json_is(key, len, "tid")) {
            node.thread = (uint32_t)json_u64(js);
        } else if (json_is(key, len, "inputs")) {
            read_values(et, &node, false, wants_text, convolution || attends);
        } else if (json_is(key, len, "outputs")) {
            read_values(et, &node, true, false, convolution);
        } else if (json_is(key, len, "attrs")) {
            JSON_EACH (js)
                if (json_open(js, '{'))
                    read_attr(et, &node);
        } else {
            json_skip(js);
        }
    }
    if (js->fail != JSON_OK) {
        et->out->tensors.n = n_tensors;
        return;
    }
    if (convolution)
        node.pointwise_batch = pointwise_batch(et, backward);
    node.n_heads = attends ? n_heads(et) : 0;
    part->n_events++;
    size_t len = strtab_len(&part->names, node.name);
    if (kineto_module(strtab_get(&part->names, node.name), &len)) {
        map_set(&et->marks, map_key(node.id), node.parent);
        et->out->tensors.n = n_tensors;
        return;
    }
    array_push(&et->out->nodes, node);
}

/* The recorder's marks of modules are no nodes: what lies in one lies in what is around it. */
static void skip_marks(struct et *et)
{
    enum { DEEPEST = 1000 }; /* a broken file may have circles */
    for (size_t i = 0; i < et->out->nodes.n && et->marks.n; i++) {
        uint64_t *parent = &et->out->nodes.at[i].parent;
        for (int d = 0; d < DEEPEST && map_get(&et->marks, map_key(*parent), parent); d++)
            ;
    }
    map_fini(&et->marks);
}

static int read_et(struct json *js, struct trace_part *part, struct dpro_error *err UNUSED)
{
    struct et et = {.js = js, .part = part};
    et.out = part_make_payload(part, &et_payload);
    JSON_KEYS (js, json_open_document(js), key, len)
        if (json_is(key, len, "pid"))
            part->process.pid = json_u64(js);
        else if (!json_is(key, len, "nodes"))
            json_skip(js);
        else
            JSON_EACH (js)
                if (json_open(js, '{'))
                    read_node(&et);
                else
                    part->losses.n_broken++;
    skip_marks(&et);
    return 0;
}

static bool et_recognise(const struct head *head)
{
    return head->piece == HEAD_MEMBER && strcmp(head->key, "nodes") == 0 && head->schema;
}

const struct reader et_reader = {
    .name = "execution-trace",
    .word = "execution trace",
    .encoding = "JSON",
    .flags = READER_STRUCTURE | READER_SEPARATE,
    .missing = {.alone = "an execution trace holds no times; add the profiler's trace "
                         "(torch.profiler, export_chrome_trace) of the same run"},
    .recognise = et_recognise,
    .read_json = read_et,
    .describe = et_describe,
    .join_rank = et_join,
};
