/* ingest/tensorflow/graphdef.c: TensorFlow's graphs: nodes, what they take, and what ties them to
 * other partitions.
 *
 * Nodes name their inputs, which may stand behind them: names are kept as string ids and resolved
 * when the graph has been read. Attributes hold whole constants; those are passed over unread. */
#include "ingest/tensorflow/tf_parts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/sort.h"
#include "ingest/reader.h"
#include "ingest/tensorflow/protobuf_files.h"

enum { KEY_MAX = 1024 };

struct graphdef {
    struct pb *pb;
    struct trace_part *part;
    bool no_memory;
};

/* Attributes that give the key and the size. */
struct attributes {
    uint32_t tensor_name, send_device, recv_device; /* string ids */
    int64_t group_key, instance_key;                /* -1: none */
    uint64_t numel;                                 /* of the first output; 0: not known */
    uint32_t item_bytes;                            /* of its elements; 0: not known */
};

static uint32_t intern(struct graphdef *g, const char *text, size_t len)
{
    return part_intern(g->part, text, len);
}

size_t graphdef_task(const char *device, size_t len)
{
    static const char task[] = "/task:";
    const char *at = memmem(device, len, task, sizeof task - 1);
    if (!at || len == 0 || *device != '/')
        return 0;
    size_t end = (size_t)(at - device) + sizeof task - 1;
    while (end < len && device[end] >= '0' && device[end] <= '9')
        end++;
    return end;
}

/* An input: "node", "node:1" (its second output), "^node" (order only). */
static void read_input(struct graphdef *g, struct dfg_node *node, const char *text, size_t len)
{
    struct dfg_input input = {.control = len > 0 && *text == '^'};
    if (input.control) {
        text++;
        len--;
    }
    const char *colon = memrchr(text, ':', len);
    if (colon && colon + 1 < text + len && colon[1] >= '0' && colon[1] <= '9') {
        for (const char *digit = colon + 1; digit < text + len && input.output < 1000; digit++)
            input.output = (uint16_t)(input.output * 10 + (*digit - '0') % 10);
        len = (size_t)(colon - text);
    }
    input.node = intern(g, text, len); /* for now */
    if (g->part->dfg_inputs.n >= NO_ID - 1 || array_push(&g->part->dfg_inputs, input) < 0)
        g->no_memory = true;
    else
        node->n_inputs++;
}

/* Bytes of an element of DataType; 0: of no fixed size, or unknown. */
static uint32_t item_bytes_of(uint64_t type)
{
    static const uint8_t bytes[] = {
        [1] = 4, [2] = 8,  [3] = 4,  [4] = 1,  [5] = 2,  [6] = 1,  [8] = 8,
        [9] = 8, [10] = 1, [14] = 2, [17] = 2, [19] = 2, [22] = 4, [23] = 8};
    return type < sizeof bytes ? bytes[type] : 0;
}

/* Elements of a TensorShapeProto, dim 2 {size 1}; 0: a dimension is not known. */
static uint64_t numel_of(struct pb_view shape)
{
    uint64_t numel = 1;
    struct pb_field field, inner;
    const unsigned char *payload;
    while (numel && pb_view_next(&shape, &field, &payload)) {
        uint64_t size = 0;
        if (field.number == 3)
            return 0; /* of unknown rank */
        if (field.number != 2 || field.wire != PB_BYTES)
            continue;
        struct pb_view dim = pb_view_of(&field, payload);
        while (pb_view_next(&dim, &inner, &payload))
            if (inner.number == 1 && inner.wire == PB_VARINT && inner.value <= INT64_MAX)
                size = inner.value;
        if (__builtin_mul_overflow(numel, size, &numel))
            return 0;
    }
    return numel;
}

/* The first of _output_shapes: a list 1 {shape 7}. */
static uint64_t first_numel(struct pb_view list)
{
    struct pb_field field;
    const unsigned char *payload;
    while (pb_view_next(&list, &field, &payload))
        if (field.number == 7 && field.wire == PB_BYTES)
            return numel_of(pb_view_of(&field, payload));
    return 0;
}

/* An entry of attr: key 1, value 2 {list 1, s 2, i 3, type 6, ...}. */
static void read_attr(struct graphdef *g, const struct pb_field *field,
                      struct attributes *attributes)
{
    const char *text, *key = "";
    size_t len, key_len = 0;
    struct pb_field inner;
    const unsigned char *payload;
    if (!pb_text(g->pb, field, &text, &len))
        return;
    struct pb_view entry = {(const unsigned char *)text, (const unsigned char *)text + len, false};
    while (pb_view_next(&entry, &inner, &payload)) {
        if (inner.number == 1 && inner.wire == PB_BYTES) {
            key = (const char *)payload;
            key_len = inner.value;
        }
        if (inner.number != 2)
            continue;
        struct pb_view value = pb_view_of(&inner, payload);
        while (pb_view_next(&value, &inner, &payload)) {
            bool string = inner.number == 2 && inner.wire == PB_BYTES;
            bool number = inner.number == 3 && inner.wire == PB_VARINT && inner.value <= INT64_MAX;
            bool list = inner.number == 1 && inner.wire == PB_BYTES;
            bool type = inner.number == 6 && inner.wire == PB_VARINT;
            if (string && json_is(key, key_len, "tensor_name"))
                attributes->tensor_name = intern(g, (const char *)payload, inner.value);
            else if (string && json_is(key, key_len, "send_device"))
                attributes->send_device = intern(g, (const char *)payload, inner.value);
            else if (string && json_is(key, key_len, "recv_device"))
                attributes->recv_device = intern(g, (const char *)payload, inner.value);
            else if (number && json_is(key, key_len, "group_key"))
                attributes->group_key = (int64_t)inner.value;
            else if (number && json_is(key, key_len, "instance_key"))
                attributes->instance_key = (int64_t)inner.value;
            else if (list && json_is(key, key_len, "_output_shapes"))
                attributes->numel = first_numel(pb_view_of(&inner, payload));
            else if (type && (json_is(key, key_len, "T") || json_is(key, key_len, "dtype")))
                attributes->item_bytes = item_bytes_of(inner.value);
        }
    }
}

uint32_t graphdef_key(struct trace_part *part, const char *tensor, const char *send_device,
                      const char *recv_device)
{
    char key[KEY_MAX];
    int len = snprintf(key, sizeof key, "%s %s %s", tensor, send_device, recv_device);
    return len <= 2 ? 0 : part_intern(part, key, MIN((size_t)len, sizeof key - 1));
}

/* The key that the other end, or the other members, use too. */
static uint32_t key_of(struct graphdef *g, const struct attributes *attributes)
{
    const struct strtab *names = &g->part->names;
    char key[64];
    if (attributes->tensor_name)
        return graphdef_key(g->part, strtab_get(names, attributes->tensor_name),
                            strtab_get(names, attributes->send_device),
                            strtab_get(names, attributes->recv_device));
    if (attributes->group_key < 0 || attributes->instance_key < 0)
        return 0;
    int len = snprintf(key, sizeof key, "%lld %lld", (long long)attributes->group_key,
                       (long long)attributes->instance_key);
    return intern(g, key, (size_t)len);
}

/* A NodeDef: name 1, op 2, input 3, device 4, attr 5. */
static void read_node(struct graphdef *g, const struct pb_field *node_field)
{
    struct trace_part *part = g->part;
    struct dfg_node node = {.first_input = (uint32_t)part->dfg_inputs.n};
    struct attributes attributes = {.group_key = -1, .instance_key = -1};
    struct pb_field field;
    const char *text;
    size_t len, n_inputs = part->dfg_inputs.n;
    uint64_t outer;
    if (!pb_enter(g->pb, node_field, &outer))
        return;
    while (!g->no_memory && pb_next(g->pb, &field)) {
        if (field.number == 5) {
            read_attr(g, &field, &attributes);
            continue;
        }
        if (field.number > 4 || !pb_text(g->pb, &field, &text, &len))
            continue;
        if (field.number == 1)
            node.name = intern(g, text, len);
        else if (field.number == 2)
            node.type = intern(g, text, len);
        else if (field.number == 3)
            read_input(g, &node, text, len);
        else
            node.device = intern(g, text, len);
    }
    pb_leave(g->pb, outer);
    if (g->pb->fail || node.name == 0) {
        part->dfg_inputs.n = n_inputs;
        part->losses.n_broken += !g->pb->fail;
        return;
    }
    node.key = key_of(g, &attributes);
    if (__builtin_mul_overflow(attributes.numel, attributes.item_bytes, &node.size_bytes))
        node.size_bytes = 0;
    part->n_events++;
    if (part->dfg_nodes.n >= NO_ID - 1 || array_push(&part->dfg_nodes, node) < 0)
        g->no_memory = true;
}

/* Replaces inputs' names by nodes. Inputs from other graphs (arguments of a function) are left out.
 * Of two nodes of one name the first counts. */
static int resolve(struct graphdef *g, size_t first_node, size_t first_input,
                   graphdef_places *places)
{
    struct trace_part *part = g->part;
    size_t n_names = part->names.n, kept = first_input;
    if (n_names > places->n && array_reserve(places, n_names - places->n) < 0)
        return -1;
    while (places->n < n_names)
        places->at[places->n++] = NO_ID;
    for (size_t n = part->dfg_nodes.n; n-- > first_node;)
        places->at[part->dfg_nodes.at[n].name] = (uint32_t)n;
    for (size_t n = first_node; n < part->dfg_nodes.n; n++) {
        struct dfg_node *node = &part->dfg_nodes.at[n];
        uint32_t first = node->first_input, end = first + node->n_inputs;
        node->first_input = (uint32_t)kept;
        for (uint32_t i = first; i < end; i++) {
            struct dfg_input input = part->dfg_inputs.at[i];
            input.node = places->at[input.node];
            if (input.node != NO_ID)
                part->dfg_inputs.at[kept++] = input;
        }
        node->n_inputs = (uint32_t)(kept - node->first_input);
    }
    part->dfg_inputs.n = kept;
    for (size_t n = first_node; n < part->dfg_nodes.n; n++)
        places->at[part->dfg_nodes.at[n].name] = NO_ID;
    return 0;
}

int graphdef_read_nodes(struct pb *pb, struct trace_part *part, graphdef_places *places)
{
    struct graphdef g = {.pb = pb, .part = part};
    struct pb_field field;
    size_t first_node = part->dfg_nodes.n, first_input = part->dfg_inputs.n;
    while (!g.no_memory && pb_next(pb, &field))
        if (field.number == 1)
            read_node(&g, &field);
    return g.no_memory ? -1 : resolve(&g, first_node, first_input, places);
}

static int read_graphdef(struct bytes *bytes, struct trace_part *part, struct dpro_error *err)
{
    struct pb pb;
    part->graph = GRAPH_AS_WRITTEN;
    if (strtab_add(&part->names, "", 0) == STRTAB_FULL)
        return dpro_error_nomem(err);
    graphdef_places places = {0};
    pb_init(&pb, bytes);
    int rc = graphdef_read_nodes(&pb, part, &places);
    array_fini(&places);
    part->broken = pb.fail;
    part->broken_offset = pb.fail_offset;
    return rc < 0 ? dpro_error_nomem(err) : 0;
}

static bool recognise(const struct head *head)
{
    return head->piece == HEAD_BYTES &&
           protobuf_recognise(head->bytes, head->n_bytes) == PROTOBUF_GRAPH_DEF;
}

const struct reader graphdef_reader = {
    .name = "graph-def",
    .word = "graph",
    .one = "node",
    .many = "nodes",
    .encoding = "protobuf",
    .framework = "tensorflow",
    .missing = {.alone = "a graph holds no times; add the profile (.xplane.pb) of the same run"},
    .recognise = recognise,
    .read_bytes = read_graphdef,
};
