/* The graph that MXNet's executor runs, from what it prints of itself (debug_str of an executor or
 * a symbol) or from the symbol's JSON.
 *
 * An executor lists forward and backward ops in the order in which it runs them, a symbol the
 * forward ones only: then the backward ones are added as their mirror image, each after those of
 * the ops that take what it made. Of equal names the last one before is meant. Variables are nodes
 * without inputs. */

#include "ingest/reader.h"

enum { MAX_NODES = 1 << 24, NAME_MAX_BYTES = 4096 };

typedef ARRAY(uint32_t) ids_array;

struct grapher {
    struct trace_part *part;
    struct map node_of; /* name id + 1 -> node */
};

static void add_node(struct grapher *g, uint32_t name, uint32_t type)
{
    if (g->part->dfg_nodes.n >= MAX_NODES)
        mem_fail();
    map_set(&g->node_of, (uint64_t)name + 1, g->part->dfg_nodes.n);
    array_add(&g->part->dfg_nodes, .name = name, .type = type,
              .first_input = (uint32_t)g->part->dfg_inputs.n);
    g->part->n_events++;
}

static void add_input(struct grapher *g, uint32_t node, bool control)
{
    array_add(&g->part->dfg_inputs, .node = node, .control = control);
    g->part->dfg_nodes.at[g->part->dfg_nodes.n - 1].n_inputs++;
}

/* ---- the mirror image ---- */

/* Ops whose gradient only changes the shape share one. */
static const char *gradient_of(const char *type)
{
    if (text_is_one(type, "Flatten", "Reshape", "reshape", "expand_dims", "squeeze"))
        return "copy";
    return text_is_one(type, "elemwise_add", "_Plus") ? "add" : type;
}

static bool is_variable(const struct trace_part *part, uint32_t node)
{
    return strcmp(strtab_get(&part->names, part->dfg_nodes.at[node].type), "Variable") == 0;
}

static void graph_mirror(struct grapher *g)
{
    struct trace_part *part = g->part;
    uint32_t n = (uint32_t)part->dfg_nodes.n, n_inputs = (uint32_t)part->dfg_inputs.n;
    struct arena scratch = {0};
    /* who takes what a node makes: the first input that does, and by input the next one */
    uint32_t *first = arena_array(&scratch, n, sizeof *first);
    uint32_t *next = arena_array(&scratch, n_inputs, sizeof *next);
    uint32_t *by = arena_array(&scratch, n_inputs, sizeof *by); /* the image of its node */
    memset(first, 0xFF, n * sizeof *first);
    for (uint32_t node = n; node-- > 0;) {
        if (is_variable(part, node))
            continue;
        const char *name = strtab_get(&part->names, part->dfg_nodes.at[node].name);
        const char *type = gradient_of(strtab_get(&part->names, part->dfg_nodes.at[node].type));
        uint32_t own = strtab_format(&part->names, "%.*s_backward", NAME_MAX_BYTES, name);
        uint32_t image = (uint32_t)part->dfg_nodes.n;
        add_node(g, own, strtab_format(&part->names, "_backward_%.256s", type));
        for (uint32_t use = first[node]; use != NO_ID; use = next[use])
            add_input(g, by[use], false);
        add_input(g, node, true);
        for (uint32_t k = part->dfg_nodes.at[node].n_inputs; k-- > 0;) {
            uint32_t i = part->dfg_nodes.at[node].first_input + k;
            by[i] = image;
            next[i] = first[part->dfg_inputs.at[i].node];
            first[part->dfg_inputs.at[i].node] = i;
        }
    }
    arena_fini(&scratch);
}

static void graph_finish(struct grapher *g)
{
    bool backward = false;
    for (size_t i = 0; i < g->part->dfg_nodes.n && !backward; i++) {
        const char *type = strtab_get(&g->part->names, g->part->dfg_nodes.at[i].type);
        backward = text_begins(type, "_backward_");
    }
    g->part->graph = backward ? GRAPH_AS_RUN : GRAPH_MIRRORED;
    if (!backward && g->part->dfg_nodes.n > 0)
        graph_mirror(g);
}

/* ---- text ---- */

/* "arg[0]=conv0(0) version=0", "cdep[0]=conv0": the name behind the '='. */
static void read_input(struct grapher *g, const char *line, size_t len, bool control)
{
    const char *end = line + len, *at = memchr(line, '=', len);
    uint64_t node;
    if (!at)
        return;
    at++;
    const char *version = memmem(at, (size_t)(end - at), " version=", 9);
    if (version)
        end = version;
    while (!control && end > at && *--end != '(')
        ;
    uint32_t name = strtab_find(&g->part->names, at, (size_t)(end - at));
    if (name != STRTAB_NONE && map_get(&g->node_of, (uint64_t)name + 1, &node))
        add_input(g, (uint32_t)node, control);
    else
        g->part->losses.n_broken_records++;
}

static void read_line(struct grapher *g, const char *line, size_t len, bool *in_node)
{
    while (len > 0 && (*line == '\t' || *line == ' ')) {
        line++;
        len--;
    }
    if (text_n_begins(line, len, "Variable:") && len > 9) {
        add_node(g, part_intern(g->part, line + 9, len - 9), part_intern(g->part, "Variable", 8));
        *in_node = false;
    } else if (text_n_begins(line, len, "Op:")) {
        const char *comma = memmem(line, len, ", Name=", 7);
        *in_node = comma != NULL;
        if (comma) {
            uint32_t type = part_intern(g->part, line + 3, (size_t)(comma - line) - 3);
            uint32_t name = part_intern(g->part, comma + 7, (size_t)(line + len - comma) - 7);
            add_node(g, name, type);
        } else {
            g->part->losses.n_broken_records++;
        }
    } else if (*in_node && text_n_begins(line, len, "arg[")) {
        read_input(g, line, len, false);
    } else if (*in_node && text_n_begins(line, len, "cdep[")) {
        read_input(g, line, len, true);
    }
}

static int read_text(struct bytes *bytes, struct trace_part *part, struct dpro_error *err UNUSED)
{
    struct grapher g = {.part = part};
    const char *line;
    size_t len;
    bool in_node = false;
    while (bytes_line(bytes, &line, &len))
        read_line(&g, line, len, &in_node);
    part->damage.cut |= bytes->rc < 0;
    graph_finish(&g);
    map_fini(&g.node_of);
    return 0;
}

/* ---- JSON ---- */

struct symbol_node {
    uint32_t name, type;
    ids_array inputs;
};

/* [[node, output, version], ...]; nodes come before those that take what they make. */
static void read_inputs(struct json_reader *r, void *out, size_t offset UNUSED)
{
    static const struct json_member members[] = {{.key = "node", .type = JSON_SIZE}, {NULL}};
    struct grapher *g = r->arg;
    JSON_EACH (r->js) {
        uint64_t node = UINT64_MAX;
        if (!json_read_tuple(r, members, &node))
            continue;
        if (node < g->part->dfg_nodes.n)
            array_push(&((struct symbol_node *)out)->inputs, (uint32_t)node);
        else
            g->part->losses.n_broken_records++;
    }
}

static const struct json_member node_members[] = {MEMBER(struct symbol_node, "name", TEXT, name),
                                                  MEMBER(struct symbol_node, "op", TEXT, type),
                                                  MEMBER_BY("inputs", read_inputs, 0),
                                                  {NULL}};

static void read_node(struct grapher *g, struct json_reader *r)
{
    struct symbol_node node = {0};
    if (json_read_object(r, node_members, &node) && r->js->fail == JSON_OK) { /* not cut off */
        if (strcmp(strtab_get(&g->part->names, node.type), "null") == 0)
            node.type = part_intern(g->part, "Variable", 8);
        add_node(g, node.name, node.type);
        EACH (const uint32_t, input, node.inputs)
            add_input(g, *input, false);
    }
    array_fini(&node.inputs);
}

static int read_symbol(struct json *js, struct trace_part *part, struct dpro_error *err UNUSED)
{
    struct grapher g = {.part = part};
    struct json_reader r = {.js = js, .strings = &part->names, .arg = &g};
    JSON_KEYS (js, json_open_document(js), key, len)
        if (!json_is(key, len, "nodes"))
            json_skip(js);
        else
            JSON_EACH (js)
                read_node(&g, &r);
    graph_finish(&g);
    map_fini(&g.node_of);
    return 0;
}

/* ---- the readers ---- */

/* A list of nodes with ops and names. */
static bool recognise_symbol(const struct head *head)
{
    return head->piece == HEAD_MEMBER && strcmp(head->key, "nodes") == 0 && !head->schema &&
           head_field(head, "op") && head_field(head, "name");
}

const struct reader mxnet_text_reader = {
    .name = "mxnet-graph",
    .word = "graph",
    .framework = "mxnet",
    .flags = READER_ALL_RANKS,
    .begins = {"Symbol Outputs:"},
    .read_bytes = read_text,
};

const struct reader mxnet_symbol_reader = {
    .name = "mxnet-symbol",
    .word = "graph",
    .encoding = "JSON",
    .framework = "mxnet",
    .flags = READER_ALL_RANKS,
    .recognise = recognise_symbol,
    .read_json = read_symbol,
};
