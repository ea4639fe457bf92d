/* ingest/reference/gml.c: graphs in GML, as networkx writes them: dag.gml, the ops of one rank and
 * what follows what.
 *
 *     graph [ directed 1 node [ id 0 label "dense/MatMul" ] edge [ source 0 target 1 ] ]
 *
 * Keys, numbers, quoted texts and lists in brackets, with space between them. Of nodes the id and
 * the label are wanted, of edges their ends, which may come before the nodes that they name. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/map.h"
#include "ingest/part.h"

enum { MAX_NODES = 1 << 24, TOKEN_MAX = 4096, MAX_DEPTH = 64 };

enum token { TOKEN_END, TOKEN_WORD, TOKEN_TEXT, TOKEN_OPEN, TOKEN_CLOSE };

struct gml_edge {
    int64_t source, target;
};

struct gml {
    struct bytes *bytes;
    struct trace_part *part;
    struct map node_of; /* mixed id -> node */
    ARRAY(struct gml_edge) edges;
    char text[TOKEN_MAX]; /* of a word or a text; what is longer is cut */
    size_t len;
    bool no_memory;
};

static int next_byte(struct gml *g)
{
    return bytes_need(g->bytes, 1) ? *g->bytes->p++ : -1;
}

static void keep(struct gml *g, int c)
{
    if (g->len + 1 < sizeof g->text)
        g->text[g->len++] = (char)c;
}

/* "&amp;", "&#38;": what it stands for, of the few that writers use. */
static void read_entity(struct gml *g)
{
    static const struct {
        const char *name;
        char c;
    } known[] = {{"amp", '&'}, {"quot", '"'}, {"lt", '<'}, {"gt", '>'}, {"apos", '\''}};
    char name[12] = "";
    size_t n = 0;
    int c = next_byte(g);
    while (c >= 0 && c != ';' && c != '"' && n + 1 < sizeof name) {
        name[n++] = (char)c;
        c = next_byte(g);
    }
    name[n] = '\0';
    long code = name[0] == '#' ? strtol(name + 1, NULL, 10) : 0;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(known[i].name, name) == 0)
            code = known[i].c;
    if (code > 0 && code < 128) {
        keep(g, (int)code);
    } else {
        keep(g, '&');
        for (size_t i = 0; i < n; i++)
            keep(g, name[i]);
    }
    if (c == '"')
        g->bytes->p--;
}

static enum token read_text(struct gml *g)
{
    for (int c = next_byte(g); c >= 0; c = next_byte(g)) {
        if (c == '"')
            return TOKEN_TEXT;
        if (c == '&')
            read_entity(g);
        else
            keep(g, c);
    }
    g->part->cut = true;
    return TOKEN_END;
}

/* The first byte of the next token; a comment reaches from '#' to the end of its line. */
static int skip_space(struct gml *g)
{
    int c = next_byte(g);
    for (bool comment = false; c >= 0 && (comment || isspace(c) || c == '#'); c = next_byte(g))
        comment = c != '\n' && (comment || c == '#');
    return c;
}

static enum token next_token(struct gml *g)
{
    int c = skip_space(g);
    g->len = 0;
    if (c < 0)
        return TOKEN_END;
    if (c == '[')
        return TOKEN_OPEN;
    if (c == ']')
        return TOKEN_CLOSE;
    if (c == '"')
        return read_text(g);
    for (; c >= 0 && !isspace(c) && c != '[' && c != ']'; c = next_byte(g))
        keep(g, c);
    if (c >= 0)
        g->bytes->p--; /* it is still in the buffer */
    return TOKEN_WORD;
}

static bool is(const struct gml *g, const char *word)
{
    return g->len == strlen(word) && memcmp(g->text, word, g->len) == 0;
}

/* Passes over a value, a whole list if it is one. False at the end of the file. */
static bool skip_value(struct gml *g, enum token token)
{
    unsigned depth = token == TOKEN_OPEN;
    while (depth > 0 && token != TOKEN_END) {
        token = next_token(g);
        depth += token == TOKEN_OPEN;
        depth -= token == TOKEN_CLOSE;
        if (depth > MAX_DEPTH)
            return false;
    }
    return token != TOKEN_END;
}

static bool number_of(const struct gml *g, int64_t *value)
{
    return json_decimal(g->text, g->len, 0, value) == JSON_VALUE;
}

static void add_node(struct gml *g, int64_t id, uint32_t label)
{
    struct dfg_node node = {.name = label};
    uint64_t key = map_mix((uint64_t)id + 1) | 1;
    if (map_get(&g->node_of, key, NULL)) {
        g->part->losses.n_broken++;
        return;
    }
    if (g->part->dfg_nodes.n >= MAX_NODES || array_push(&g->part->dfg_nodes, node) < 0 ||
        map_set(&g->node_of, key, g->part->dfg_nodes.n - 1) < 0)
        g->no_memory = true;
    g->part->n_events++;
}

/* What stands in a list "node [ ... ]" or "edge [ ... ]". False where the file ends in it. */
static bool read_element(struct gml *g, bool is_node)
{
    int64_t id = 0, source = 0, target = 0;
    uint32_t label = 0;
    bool has_id = false, has_source = false, has_target = false;
    enum token token = next_token(g);
    for (; token == TOKEN_WORD; token = next_token(g)) {
        bool names = is(g, "label"), numbers = is(g, "id");
        bool from = is(g, "source"), to = is(g, "target");
        token = next_token(g);
        if (token == TOKEN_TEXT && names) {
            label = strtab_add(&g->part->names, g->text, g->len);
            g->no_memory |= label == STRTAB_FULL;
        } else if (token == TOKEN_WORD && numbers) {
            has_id = number_of(g, &id);
        } else if (token == TOKEN_WORD && from) {
            has_source = number_of(g, &source);
        } else if (token == TOKEN_WORD && to) {
            has_target = number_of(g, &target);
        } else if (!skip_value(g, token)) {
            break;
        }
    }
    if (token != TOKEN_CLOSE || g->no_memory)
        return false;
    struct gml_edge edge = {source, target};
    if (is_node && has_id)
        add_node(g, id, label);
    else if (!is_node && has_source && has_target)
        g->no_memory |= array_push(&g->edges, edge) < 0;
    else
        g->part->losses.n_broken++;
    return !g->no_memory;
}

/* False where the file ends too early. */
static bool read_graph(struct gml *g)
{
    enum token token;
    while ((token = next_token(g)) == TOKEN_WORD) {
        bool is_node = is(g, "node"), is_edge = is(g, "edge");
        token = next_token(g);
        if (token == TOKEN_OPEN && (is_node || is_edge)) {
            if (!read_element(g, is_node))
                return false;
        } else if (!skip_value(g, token)) {
            return false;
        }
    }
    return token == TOKEN_CLOSE;
}

static int by_target(const void *a, const void *b)
{
    const struct gml_edge *x = a, *y = b;
    if (x->target != y->target)
        return x->target < y->target ? -1 : 1;
    return x->source < y->source ? -1 : x->source > y->source;
}

/* An edge's ends become nodes; edges to or from none are left out. */
static void add_inputs(struct gml *g)
{
    struct trace_part *part = g->part;
    size_t n = 0, at = 0;
    for (size_t e = 0; e < g->edges.n; e++) {
        uint64_t source, target;
        if (!map_get(&g->node_of, map_mix((uint64_t)g->edges.at[e].source + 1) | 1, &source) ||
            !map_get(&g->node_of, map_mix((uint64_t)g->edges.at[e].target + 1) | 1, &target) ||
            source == target) {
            part->losses.n_broken++;
            continue;
        }
        g->edges.at[n++] = (struct gml_edge){(int64_t)source, (int64_t)target};
    }
    if (n > 1)
        qsort(g->edges.at, n, sizeof *g->edges.at, by_target);
    for (size_t node = 0; node < part->dfg_nodes.n && !g->no_memory; node++) {
        part->dfg_nodes.at[node].first_input = (uint32_t)part->dfg_inputs.n;
        for (; at < n && g->edges.at[at].target == (int64_t)node; at++) {
            struct dfg_input input = {.node = (uint32_t)g->edges.at[at].source};
            if (part->dfg_inputs.n >= NO_ID - 1 || array_push(&part->dfg_inputs, input) < 0) {
                g->no_memory = true;
                break;
            }
            part->dfg_nodes.at[node].n_inputs++;
        }
    }
}

int gml_read(struct bytes *bytes, struct trace_part *part, struct dpro_error *err)
{
    struct gml *g = calloc(1, sizeof *g);
    if (!g)
        return dpro_error_nomem(err);
    g->bytes = bytes;
    g->part = part;
    g->no_memory = strtab_add(&part->names, "", 0) == STRTAB_FULL;
    enum token token;
    while (!g->no_memory && !part->cut && (token = next_token(g)) != TOKEN_END) {
        bool graph = token == TOKEN_WORD && is(g, "graph");
        if (token != TOKEN_WORD)
            continue;
        token = next_token(g);
        if (graph && token == TOKEN_OPEN)
            part->cut = !read_graph(g);
        else if (!skip_value(g, token))
            part->cut = true;
    }
    if (!g->no_memory)
        add_inputs(g);
    bool no_memory = g->no_memory;
    map_fini(&g->node_of);
    array_fini(&g->edges);
    free(g);
    return no_memory ? dpro_error_nomem(err) : 0;
}

static bool begins(const char *text, const char *end, const char *word)
{
    size_t n = strlen(word);
    return (size_t)(end - text) >= n && memcmp(text, word, n) == 0;
}

/* After comments and lines that say who wrote it: "graph [". */
bool gml_recognise(const char *text, size_t len)
{
    const char *end = text + len;
    for (;;) {
        while (text < end && isspace((unsigned char)*text))
            text++;
        if (begins(text, end, "graph"))
            break;
        if (!begins(text, end, "#") && !begins(text, end, "Creator") &&
            !begins(text, end, "Version"))
            return false;
        while (text < end && *text != '\n')
            text++;
    }
    for (text += strlen("graph"); text < end && isspace((unsigned char)*text);)
        text++;
    return text < end && *text == '[';
}
