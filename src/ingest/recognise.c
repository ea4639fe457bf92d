/* Which format a file is of. Its head is walked once, and every reader is shown each piece of it:
 * how it begins, the members of a JSON document, the events of a Chrome trace. */
#include "ingest/reader.h"

/* More of an object's members don't tell a format. */
enum { MAX_FIELDS = 32, MAX_OF_ARGS = 24 };

struct ingest_recognise_walk {
    const struct reader_table *table;
    struct json *js;
    const struct reader *found;
    const char *other; /* static text */
    char schema[64];
    bool has_schema;
    ARRAY(struct head_field) fields;
    struct arena texts; /* of the piece at hand */
};

static bool recognise_knows(const struct reader *reader, const struct head *head)
{
    bool is_schema = head->piece == HEAD_MEMBER && strcmp(head->key, "schema") == 0;
    for (size_t i = 0; i < 2; i++) {
        const char *begins = reader->begins[i], *schema = reader->schemas[i];
        if ((begins && head->piece == HEAD_BYTES &&
             text_n_begins(head->bytes, head->n_bytes, begins)) ||
            (schema && is_schema && text_begins(head->text, schema)))
            return true;
    }
    return reader->recognise && reader->recognise(head);
}

/* Shows the readers a piece; whether one knows it. */
static bool recognise_show(struct ingest_recognise_walk *w, struct head head)
{
    head.schema = w->has_schema ? w->schema : NULL;
    if (head.piece == HEAD_MEMBER || head.piece == HEAD_EVENT) {
        head.fields = w->fields.at;
        head.n_fields = w->fields.n;
    }
    w->other = w->other ?: other_format(&head);
    for (size_t i = 0; i < w->table->n && !w->found; i++)
        if (recognise_knows(w->table->at[i], &head))
            w->found = w->table->at[i];
    return w->found != NULL;
}

/* The next value, if it is a text; another one is skipped and gives "". */
static const char *keep_value(struct ingest_recognise_walk *w)
{
    const char *text;
    size_t len;
    if (json_peek(w->js) != '"')
        return json_skip(w->js), "";
    return json_string(w->js, &text, &len) ? arena_copy_string(&w->texts, text, len) : "";
}

/* The object that is next, within "args" behind `prefix`. */
static void read_fields(struct ingest_recognise_walk *w, const char *prefix)
{
    w->js->p++;
    JSON_KEYS (w->js, true, key, len) {
        size_t at = w->fields.n;
        if (at >= (*prefix ? MAX_OF_ARGS : MAX_FIELDS)) {
            json_skip(w->js);
            continue;
        }
        array_add(&w->fields, arena_format(&w->texts, "%s%.*s", prefix, (int)len, key), "");
        if (!*prefix && strcmp(w->fields.at[at].key, "args") == 0 && json_peek(w->js) == '{')
            read_fields(w, "args.");
        else
            w->fields.at[at].text = keep_value(w);
    }
}

static void recognise_clear(struct ingest_recognise_walk *w)
{
    w->fields.n = 0;
    arena_fini(&w->texts);
}

/* Whose a Chrome trace is may show only after many events that name processes. */
static void walk_events(struct ingest_recognise_walk *w, bool in_document)
{
    struct head end = {.piece = HEAD_END, .only_names = in_document};
    bool other = false;
    while (json_array_next(w->js) && json_peek(w->js) == '{') {
        struct head event = {.piece = HEAD_EVENT};
        recognise_clear(w);
        read_fields(w, "");
        event.fields = w->fields.at;
        event.n_fields = w->fields.n;
        if (recognise_show(w, event))
            return;
        const char *phase = head_field(&event, "ph");
        if (!phase && !end.only_names)
            return; /* no Chrome trace */
        end.only_names = true;
        other |= phase && strcmp(phase, "M") != 0;
    }
    if (end.only_names && !other)
        recognise_show(w, end);
}

/* The timeline of dpro replay, which may lie beside what it was made of. */
static bool is_our_own(struct ingest_recognise_walk *w)
{
    read_fields(w, "");
    struct head head = {.fields = w->fields.at, .n_fields = w->fields.n};
    return head_field(&head, "dpro") != NULL;
}

static void walk_members(struct ingest_recognise_walk *w)
{
    struct json *js = w->js;
    const char *key, *text;
    size_t len;
    while (!w->found && json_object_next(js, &key, &len)) {
        struct head member = {.piece = HEAD_MEMBER, .text = ""};
        recognise_clear(w);
        member.key = arena_copy_string(&w->texts, key, len);
        int c = json_peek(js);
        if (c == '[' && strcmp(member.key, "traceEvents") == 0) {
            js->p++;
            walk_events(w, true);
            return;
        }
        if (c == '{' && strcmp(member.key, "otherData") == 0) {
            if (is_our_own(w))
                return;
            continue;
        }
        if (c == '"' && json_string(js, &text, &len))
            member.text = arena_copy_string(&w->texts, text, len);
        if (strcmp(member.key, "schema") == 0) {
            strncpy(w->schema, member.text, sizeof w->schema - 1);
            w->has_schema = true;
        }
        bool opened = c == '[';
        if (opened) { /* its first object may tell */
            js->p++;
            opened = json_array_next(js);
            if (opened && json_peek(js) == '{')
                read_fields(w, "");
            else if (opened)
                json_skip(js);
        } else if (c != '"') {
            json_skip(js);
        }
        if (recognise_show(w, member))
            return;
        while (opened && json_array_next(js))
            json_skip(js);
    }
}

static void recognise_walk(struct ingest_recognise_walk *w)
{
    struct json *js = w->js;
    json_skip_mark(js);
    /* before spaces are skipped: a newline is also a protobuf tag */
    if (recognise_show(
            w, (struct head){HEAD_BYTES, .bytes = js->p, .n_bytes = (size_t)(js->end - js->p)}))
        return;
    int c = json_peek(js);
    if (c != '{' && c != '[')
        return;
    js->p++;
    if (c == '[')
        walk_events(w, false);
    else
        walk_members(w);
}

const struct reader *reader_recognise(const struct reader_table *table, struct json *js,
                                      const char **other)
{
    struct ingest_recognise_walk w = {.table = table, .js = js};
    recognise_walk(&w);
    *other = w.other;
    recognise_clear(&w);
    array_fini(&w.fields);
    return w.found;
}
