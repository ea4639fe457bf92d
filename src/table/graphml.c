/* The global data-flow graph as GraphML (graphml.graphdrawing.org), with what a replay needs: an
 * op's device, times and how many predecessors it does not wait for; which edges lead into the
 * following iteration. */
#include "table/tables.h"

#include "base/utf8.h"
#include "base/writer.h"

/* Of the nodes; `next` is the edges'. */
static const struct graphml_key {
    const char *name, *type;
} graphml_keys[] = {{"name", "string"},     {"kind", "string"},      {"phase", "string"},
                    {"rank", "int"},        {"device", "string"},    {"dur_ns", "long"},
                    {"gap_ns", "long"},     {"size_bytes", "long"},  {"transaction", "string"},
                    {"tensor", "string"},   {"dimension", "string"}, {"spare", "int"},
                    {"boundary", "boolean"}};
enum { N_KEYS = sizeof graphml_keys / sizeof *graphml_keys };

/* What XML can't hold becomes U+FFFD. */
static void put_escaped(struct writer *w, const char *text)
{
    size_t len = strlen(text);
    for (size_t i = 0, step; i < len; i += MAX(step, (size_t)1)) {
        step = utf8_char(text + i, len - i);
        unsigned char c = (unsigned char)text[i];
        bool is_bad = step == 0 || (c < ' ' && c != '\t' && c != '\n' && c != '\r');
        if (c == '&' || c == '<' || c == '>' || c == '"')
            writer_printf(w, "&#%d;", c);
        else
            writer_put(w, is_bad ? "\xEF\xBF\xBD" : text + i, is_bad ? 3 : step);
    }
}

static void put_data(struct writer *w, int key, const char *text)
{
    if (!text || !*text)
        return;
    writer_printf(w, "<data key=\"%s\">", graphml_keys[key].name);
    put_escaped(w, text);
    writer_text(w, "</data>");
}

static void put_number(struct writer *w, int key, int64_t value)
{
    char text[24];
    snprintf(text, sizeof text, "%lld", (long long)value);
    put_data(w, key, text);
}

static bool is_asked_rank(const struct dpro_graphml *asked, uint32_t index)
{
    int rank = asked->graph->ranks[index].rank;
    return asked->n_ranks == 0 ||
           (rank >= asked->first_rank && rank - asked->first_rank < asked->n_ranks);
}

static bool is_asked(const struct dpro_graphml *asked, dpro_op_id op)
{
    return is_asked_rank(asked, asked->graph->rank[op]);
}

static void put_node(struct writer *w, const struct dpro_graphml *asked, dpro_op_id id)
{
    const struct dpro_graph *g = asked->graph;
    struct dpro_op op = dpro_graph_op(g, id);
    size_t sample = (size_t)g->shown_sample * g->n_ops + id;
    bool shown = asked->shown_iteration && g->sample_dur_ns;
    char text[320];
    uint32_t dimension = dpro_graph_op_dimension(g, id);
    writer_printf(w, "<node id=\"%u\">", id);
    put_data(w, 0, op.name);
    put_data(w, 1, dpro_op_kind_name(op.kind));
    put_data(w, 2, dpro_op_kind_name((enum dpro_op_kind)g->phase[id]));
    put_number(w, 3, op.rank);
    if (op.device != DPRO_NO_DEVICE) { /* by its name and number: threads may share a name */
        snprintf(text, sizeof text, "%u: %.280s", op.device, dpro_graph_device(g, op.device).name);
        put_data(w, 4, text);
    }
    put_number(w, 5, shown ? g->sample_dur_ns[sample] : op.dur_ns);
    put_number(w, 6, shown && g->sample_gap_ns ? g->sample_gap_ns[sample] : op.gap_ns);
    if (op.size_bytes)
        put_number(w, 7, (int64_t)op.size_bytes);
    snprintf(text, sizeof text, "%llu", (unsigned long long)op.transaction);
    put_data(w, 8, op.transaction ? text : NULL);
    put_data(w, 9, op.tensor);
    if (dimension != DPRO_NO_DIMENSION)
        put_data(w, 10, dpro_graph_dimension(g, dimension).name);
    if (g->spare[id])
        put_number(w, 11, g->spare[id]);
    put_data(w, 12, g->flags[id] & GRAPH_OP_BOUNDARY ? "true" : NULL);
    writer_text(w, "</node>\n");
}

static void put_edges(struct writer *w, const struct dpro_graphml *asked, dpro_op_id from)
{
    for (int next = 0; next < 2; next++) {
        uint32_t n;
        const dpro_op_id *to = dpro_graph_successors(asked->graph, from, next, &n);
        for (uint32_t i = 0; i < n; i++)
            if (is_asked(asked, to[i]))
                writer_printf(w, "<edge source=\"%u\" target=\"%u\">%s</edge>\n", from, to[i],
                              next ? "<data key=\"next\">true</data>" : "");
    }
}

static void write_graphml(struct writer *w, const void *arg)
{
    const struct dpro_graphml *asked = arg;
    writer_text(w, "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
                   "<graphml xmlns=\"http://graphml.graphdrawing.org/xmlns\">\n");
    EACH_OF (const struct graphml_key, key, graphml_keys, N_KEYS)
        writer_printf(w, "<key id=\"%s\" for=\"node\" attr.name=\"%s\" attr.type=\"%s\"/>\n",
                      key->name, key->name, key->type);
    writer_text(w, "<key id=\"next\" for=\"edge\" attr.name=\"next\" attr.type=\"boolean\">"
                   "<default>false</default></key>\n<graph edgedefault=\"directed\">\n");
    for (dpro_op_id op = 0; op < asked->graph->n_ops; op++)
        if (is_asked(asked, op))
            put_node(w, asked, op);
    for (dpro_op_id op = 0; op < asked->graph->n_ops; op++)
        if (is_asked(asked, op))
            put_edges(w, asked, op);
    writer_text(w, "</graph>\n</graphml>\n");
}

int dpro_graphml_write(const struct dpro_graphml *asked, const char *path, struct dpro_error *err)
{
    const struct dpro_graph *g = asked->graph;
    uint32_t r = 0;
    while (r < g->n_ranks && !is_asked_rank(asked, r))
        r++;
    if (r == g->n_ranks)
        return dpro_error_set(err, DPRO_EUSAGE, "no rank %d to write; they are %d to %d",
                              asked->first_rank, g->ranks[0].rank, g->ranks[r - 1].rank);
    return writer_write_path(path, text_ends(path, ".gz"), write_graphml, asked, err);
}
