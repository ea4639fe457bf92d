/* TensorFlow's graphs: nodes, what they take, and what ties them to other partitions.
 *
 * Nodes name their inputs, which may stand behind them: names are kept as string ids and resolved
 * when the graph has been read. Attributes hold whole constants; those are passed over unread. */
#include "adapters/tensorflow/tf_parts.h"

/* Attributes that give the key and the size, as what they are kept. */
enum attribute {
    TENSOR_NAME, /* string ids */
    SEND_DEVICE,
    RECV_DEVICE,
    GROUP_KEY, /* NO_KEY: none */
    INSTANCE_KEY,
    NUMEL,      /* of the first output; 0: not known */
    ITEM_BYTES, /* of its elements; 0: not known */
    N_ATTRIBUTES
};
#define NO_KEY UINT64_MAX

/* The field of an attribute's value that has it. */
enum { VALUE_LIST = 1, VALUE_TEXT = 2, VALUE_INT = 3, VALUE_TYPE = 6, N_VALUES };

static const struct {
    const char *name;
    uint32_t field;
    enum attribute is;
} attributes[] = {
    {"tensor_name", VALUE_TEXT, TENSOR_NAME},
    {"send_device", VALUE_TEXT, SEND_DEVICE},
    {"recv_device", VALUE_TEXT, RECV_DEVICE},
    {"group_key", VALUE_INT, GROUP_KEY},
    {"instance_key", VALUE_INT, INSTANCE_KEY},
    {"_output_shapes", VALUE_LIST, NUMEL},
    {"T", VALUE_TYPE, ITEM_BYTES},
    {"dtype", VALUE_TYPE, ITEM_BYTES},
};

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

bool trace_key_leaves_task(const char *key)
{
    const char *recv = strrchr(key, ' '), *send = recv;
    if (!recv)
        return false;
    while (send > key && send[-1] != ' ')
        send--;
    size_t len = strcspn(send, " "), task = 0;
    for (size_t i = 0; i < len; i++)
        if (text_begins(send + i, "/device:"))
            task = i;
    return task > 0 && strncmp(send, recv + 1, task) != 0;
}

/* An input: "node", "node:1" (its second output), "^node" (order only). */
static void read_input(struct trace_part *part, const char *text, size_t len)
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
    input.node = part_intern(part, text, len); /* for now */
    array_push(&part->dfg_inputs, input);
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
    struct pb_field field, dim[2];
    while (numel && pb_view_next(&shape, &field)) {
        if (field.number == 3)
            return 0; /* of unknown rank */
        if (field.number != 2 || field.wire != PB_BYTES)
            continue;
        pb_view_fields(pb_view_of(&field), dim, 2);
        uint64_t size = pb_number(&dim[1]);
        if (size > INT64_MAX || __builtin_mul_overflow(numel, size, &numel))
            return 0;
    }
    return numel;
}

/* The first of _output_shapes: a list {shape 7}. */
static uint64_t first_numel(struct pb_view list)
{
    struct pb_field field;
    while (pb_view_next(&list, &field))
        if (field.number == 7 && field.wire == PB_BYTES)
            return numel_of(pb_view_of(&field));
    return 0;
}

/* An entry of attr: key 1, value 2. */
static void read_attr(struct trace_part *part, struct pb_view view, uint64_t *values)
{
    enum { N = sizeof attributes / sizeof *attributes };
    struct pb_field entry[3], value[N_VALUES];
    size_t first = 0;
    pb_view_fields(view, entry, 3);
    while (first < N && !pb_is(&entry[1], attributes[first].name))
        first++;
    if (first == N)
        return; /* as most are */
    pb_view_fields(pb_view_of(&entry[2]), value, N_VALUES);
    for (size_t i = first; i < N; i++) {
        const struct pb_field *at = &value[attributes[i].field];
        uint64_t *to = &values[attributes[i].is];
        bool is_bytes = attributes[i].field <= VALUE_TEXT;
        if (at->number == 0 || (at->wire == PB_BYTES) != is_bytes ||
            !pb_is(&entry[1], attributes[i].name))
            continue;
        if (attributes[i].field == VALUE_LIST)
            *to = first_numel(pb_view_of(at));
        else if (attributes[i].field == VALUE_TEXT)
            *to = tf_intern(part, at);
        else if (attributes[i].field == VALUE_TYPE)
            *to = item_bytes_of(at->value);
        else if (at->value <= INT64_MAX)
            *to = at->value;
    }
}

uint32_t graphdef_key(struct trace_part *part, const char *tensor, const char *send_device,
                      const char *recv_device)
{
    if (!*tensor && !*send_device && !*recv_device)
        return 0;
    return strtab_format(&part->names, "%s %s %s", tensor, send_device, recv_device);
}

/* The key that the other end, or the other members, use too. */
static uint32_t key_of(struct trace_part *part, const uint64_t *values)
{
    const struct strtab *names = &part->names;
    if (values[TENSOR_NAME])
        return graphdef_key(part, strtab_get(names, (uint32_t)values[TENSOR_NAME]),
                            strtab_get(names, (uint32_t)values[SEND_DEVICE]),
                            strtab_get(names, (uint32_t)values[RECV_DEVICE]));
    if (values[GROUP_KEY] == NO_KEY || values[INSTANCE_KEY] == NO_KEY)
        return 0;
    return strtab_format(&part->names, "%" PRIu64 " %" PRIu64, values[GROUP_KEY],
                         values[INSTANCE_KEY]);
}

/* A NodeDef: name 1, op 2, input 3, device 4, attr 5. */
static void read_node(struct pb *pb, struct trace_part *part, const struct pb_field *message)
{
    struct dfg_node node = {.first_input = (uint32_t)part->dfg_inputs.n};
    uint32_t *const texts[] = {[1] = &node.name, [2] = &node.type, [4] = &node.device};
    uint64_t values[N_ATTRIBUTES] = {[GROUP_KEY] = NO_KEY, [INSTANCE_KEY] = NO_KEY};
    struct pb_view view;
    PB_EACH (pb, message, field) {
        if (field.number > 5 || !pb_whole(pb, &field, &view))
            continue;
        const char *text = (const char *)view.p;
        size_t len = (size_t)(view.end - view.p);
        if (field.number == 5)
            read_attr(part, view, values);
        else if (field.number == 3)
            read_input(part, text, len);
        else
            *texts[field.number] = part_intern(part, text, len);
    }
    if (pb->fail || node.name == 0) {
        part->dfg_inputs.n = node.first_input;
        part->losses.n_broken += !pb->fail;
        return;
    }
    node.n_inputs = (uint32_t)part->dfg_inputs.n - node.first_input;
    node.key = key_of(part, values);
    if (__builtin_mul_overflow(values[NUMEL], values[ITEM_BYTES], &node.size_bytes))
        node.size_bytes = 0;
    part->n_events++;
    array_push(&part->dfg_nodes, node);
}

/* Replaces inputs' names by nodes. Inputs from other graphs (arguments of a function) are left out.
 * Of two nodes of one name the first counts. */
static void resolve_inputs(struct trace_part *part, size_t first_node, size_t first_input,
                           graphdef_places *places)
{
    size_t n_names = part->names.n, kept = first_input;
    while (places->n < n_names)
        array_push(places, NO_ID);
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
}

void graphdef_read_nodes(struct pb *pb, struct trace_part *part, graphdef_places *places)
{
    struct pb_field field;
    size_t first_node = part->dfg_nodes.n, first_input = part->dfg_inputs.n;
    while (pb_next(pb, &field))
        if (field.number == 1)
            read_node(pb, part, &field);
    resolve_inputs(part, first_node, first_input, places);
}

static int read_graphdef(struct bytes *bytes, struct trace_part *part,
                         struct dpro_error *err UNUSED)
{
    struct pb pb;
    graphdef_places places = {0};
    part->graph = GRAPH_AS_WRITTEN;
    pb_init(&pb, bytes);
    graphdef_read_nodes(&pb, part, &places);
    array_fini(&places);
    part->damage.broken = pb.fail;
    part->damage.offset = pb.fail_offset;
    return 0;
}

static bool graphdef_recognise(const struct head *head)
{
    return protobuf_recognise(head) == PROTOBUF_GRAPH_DEF;
}

const struct reader graphdef_reader = {
    .name = "graph-def",
    .word = "graph",
    .encoding = "protobuf",
    .framework = "tensorflow",
    .missing = {.alone = "a graph holds no times; add the profile (.xplane.pb) of the same run"},
    .recognise = graphdef_recognise,
    .read_bytes = read_graphdef,
};
