/* What TensorFlow's RunMetadata holds: the graphs that its executors ran, cut by device, and for a
 * session's step when every kernel of every task ran.
 *
 * A step of a session has all tasks of the job in one file: it is read into one part a task, in a
 * list. Of a device's graphs, as a run of several functions leaves them, the largest is kept: the
 * training step, not what initialized it. */
#include "adapters/tensorflow/tf_parts.h"

/* A partition graph in a part. */
struct partition {
    uint32_t device; /* its nodes', string id */
    bool dropped;
    size_t first_node, n_nodes, first_input, n_inputs;
};

struct runmeta {
    struct pb pb;
    struct trace_part *part; /* of the file */
    ARRAY(struct partition) partitions;
    graphdef_places places;
};

/* Whether another graph of the same device is at least as large; a smaller one is dropped. */
static bool is_second(struct runmeta *r, const struct partition *fresh)
{
    EACH (struct partition, other, r->partitions) {
        if (other->dropped || other->device != fresh->device)
            continue;
        if (fresh->n_nodes <= other->n_nodes)
            return true;
        other->dropped = true;
    }
    return false;
}

static void read_graph(struct runmeta *r, const struct pb_field *field)
{
    struct trace_part *part = r->part;
    struct partition fresh = {.first_node = part->dfg_nodes.n, .first_input = part->dfg_inputs.n};
    uint64_t outer;
    if (!pb_enter(&r->pb, field, &outer))
        return;
    graphdef_read_nodes(&r->pb, part, &r->places);
    pb_leave(&r->pb, outer);
    fresh.n_nodes = part->dfg_nodes.n - fresh.first_node;
    fresh.n_inputs = part->dfg_inputs.n - fresh.first_input;
    if (fresh.n_nodes == 0)
        return;
    fresh.device = part->dfg_nodes.at[fresh.first_node].device;
    if (is_second(r, &fresh)) {
        part->dfg_nodes.n = fresh.first_node;
        part->dfg_inputs.n = fresh.first_input;
    } else {
        array_push(&r->partitions, fresh);
    }
}

/* Closes the gaps that dropped graphs left. */
static void compact_graphs(struct runmeta *r)
{
    struct trace_part *part = r->part;
    size_t node = 0, input = 0;
    EACH (const struct partition, at, r->partitions) {
        if (at->dropped)
            continue;
        for (size_t i = 0; i < at->n_inputs; i++) {
            struct dfg_input moved = part->dfg_inputs.at[at->first_input + i];
            moved.node -= (uint32_t)(at->first_node - node);
            part->dfg_inputs.at[input + i] = moved;
        }
        for (size_t n = 0; n < at->n_nodes; n++) {
            struct dfg_node moved = part->dfg_nodes.at[at->first_node + n];
            moved.first_input -= (uint32_t)(at->first_input - input);
            part->dfg_nodes.at[node + n] = moved;
        }
        node += at->n_nodes;
        input += at->n_inputs;
    }
    part->dfg_nodes.n = node;
    part->dfg_inputs.n = input;
}

/* RunMetadata: step_stats 1, partition_graphs 3, function_graphs 4 {partition_graphs 1}.
 * TensorFlow 2 writes a function's graphs twice, as 3 and as 4. */
static void read_all(struct runmeta *r)
{
    struct pb_field field;
    bool has_partitions = false;
    while (pb_next(&r->pb, &field)) {
        if (field.number == 1) {
            session_read_step(&r->pb, &field, r->part);
        } else if (field.number == 3) {
            has_partitions = true;
            read_graph(r, &field);
        } else if (field.number == 4 && !has_partitions) {
            PB_EACH (&r->pb, &field, graph) {
                if (graph.number == 1)
                    read_graph(r, &graph);
            }
        }
    }
}

/* Graphs that ran have no shapes; the sizes of collectives' outputs are in the step's spans. */
static void size_collectives(struct trace_part *part)
{
    SCRATCH struct map sizes = {0};
    FOR_EACH_SPAN (part, span) {
        uint64_t bytes = span->kind == SPAN_COLLECTIVE ? part->details.at[span->detail].bytes : 0;
        if (bytes > 0)
            map_set(&sizes, span->name, bytes);
    }
    EACH (struct dfg_node, node, part->dfg_nodes)
        node->size_bytes = node->size_bytes ?: map_or(&sizes, node->name, 0);
}

static int read_runmeta(struct bytes *bytes, struct trace_part *part, struct dpro_error *err UNUSED)
{
    struct runmeta r = {.part = part};
    pb_init(&r.pb, bytes);
    read_all(&r);
    array_fini(&r.places);
    compact_graphs(&r);
    array_fini(&r.partitions);
    size_collectives(part);
    session_split(part);
    part->damage.broken = r.pb.fail;
    part->damage.offset = r.pb.fail_offset;
    return 0;
}

static bool runmeta_recognise(const struct head *head)
{
    return protobuf_recognise(head) == PROTOBUF_RUN_METADATA;
}

const struct reader runmeta_reader = {
    .name = "run-metadata",
    .word = "run metadata",
    .encoding = "protobuf",
    .framework = "tensorflow",
    .missing = {.alone = "a graph holds no times; add the profile (.xplane.pb) of the same run"},
    .recognise = runmeta_recognise,
    .read_bytes = read_runmeta,
};
