/* ingest/byteps/log.c: the texts that a patched BytePS wrote, one line an event.
 *
 *     role=worker, id=9, ...                               a node's log of its messages: who it is,
 *     1600000000000000 true true true 65536 9 8            when, start, push, request, key, from,
 * to 1600000000000000: start, 65536, COPY_FIRST, 1        a server's log of its threads
 *     byteps.BytePSPushPull.12: 65536 65537                the keys of a tensor
 */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "ingest/byteps/byteps.h"
#include "ingest/part.h"

enum { MAX_LINE = 1 << 15, MAX_NODE = 1 << 20 };

struct byteps_part *byteps_part_of(struct trace_part *part)
{
    if (!part->byteps)
        part->byteps = calloc(1, sizeof *part->byteps);
    return part->byteps;
}

void byteps_part_destroy(struct byteps_part *byteps)
{
    if (!byteps)
        return;
    array_fini(&byteps->moments);
    array_fini(&byteps->work);
    array_fini(&byteps->keys);
    free(byteps);
}

/* The next word up to a space or comma, which is passed over; false at the end. */
static bool next_word(char **at, char **word)
{
    *at += strspn(*at, " \t,");
    *word = *at;
    *at += strcspn(*at, " \t,");
    if (*at == *word)
        return false;
    if (**at)
        *(*at)++ = '\0';
    return true;
}

static bool next_number(char **at, uint64_t *value)
{
    char *word;
    return next_word(at, &word) && json_unsigned(word, strlen(word), value) == JSON_VALUE;
}

static bool next_flag(char **at, bool *value)
{
    char *word;
    if (!next_word(at, &word))
        return false;
    *value = strcasecmp(word, "true") == 0 || strcmp(word, "1") == 0;
    return *value || strcasecmp(word, "false") == 0 || strcmp(word, "0") == 0;
}

static bool time_of(uint64_t us, int64_t *ns)
{
    *ns = us <= TRACE_TIME_MAX / 1000 ? (int64_t)us * 1000 : 0;
    return us <= TRACE_TIME_MAX / 1000;
}

/* "role=worker, id=9, ..." */
static bool read_header(struct byteps_part *byteps, char *line)
{
    char *word;
    bool known = false;
    while (next_word(&line, &word)) {
        if (strncmp(word, "role=", 5) == 0)
            byteps->is_worker = strcmp(word + 5, "worker") == 0;
        if (strncmp(word, "id=", 3) != 0)
            continue;
        long id = strtol(word + 3, NULL, 10);
        known = id >= 8 && id < MAX_NODE;
        if (known)
            byteps->node = (int32_t)id;
    }
    return known;
}

static bool read_moment(struct byteps_part *byteps, char *line, bool *no_memory)
{
    uint64_t us, key, from, to;
    bool starts, push, request;
    struct byteps_moment moment = {.logged_by = byteps->node};
    if (!next_number(&line, &us) || !time_of(us, &moment.time_ns) || !next_flag(&line, &starts) ||
        !next_flag(&line, &push) || !next_flag(&line, &request) || !next_number(&line, &key) ||
        !next_number(&line, &from) || !next_number(&line, &to) || from >= MAX_NODE ||
        to >= MAX_NODE)
        return false;
    moment.key = key;
    moment.from = (int32_t)from;
    moment.to = (int32_t)to;
    moment.flags = (uint8_t)((starts ? BYTEPS_STARTS : 0) | (push ? BYTEPS_PUSH : 0) |
                             (request ? BYTEPS_REQUEST : 0));
    if (from < 8 || to < 8 || byteps_is_worker(moment.from) == byteps_is_worker(moment.to))
        return true; /* the scheduler's */
    *no_memory |= array_push(&byteps->moments, moment) < 0;
    return true;
}

static bool read_work(struct byteps_part *byteps, char *line, bool *no_memory)
{
    static const char *const ops[N_BYTEPS_OPS] = {"COPY_FIRST", "SUM", "COPY_MERGED"};
    struct byteps_work work = {.server = -1, .op = N_BYTEPS_OPS};
    uint64_t us, thread = 0;
    char *colon = strchr(line, ':'), *word;
    if (!colon || json_unsigned(line, (size_t)(colon - line), &us) != JSON_VALUE ||
        !time_of(us, &work.time_ns))
        return false;
    line = colon + 1;
    if (!next_word(&line, &word))
        return false;
    work.starts = strcmp(word, "start") == 0;
    if ((!work.starts && strcmp(word, "stop") != 0) || !next_number(&line, &work.key) ||
        !next_word(&line, &word))
        return false;
    for (int op = 0; op < N_BYTEPS_OPS; op++)
        if (strcmp(word, ops[op]) == 0)
            work.op = (uint8_t)op;
    if (next_word(&line, &word) &&
        (json_unsigned(word, strlen(word), &thread) != JSON_VALUE || thread > MAX_NODE))
        return false;
    work.thread = (uint32_t)thread;
    *no_memory |= work.op < N_BYTEPS_OPS && array_push(&byteps->work, work) < 0; /* INIT is none */
    return true;
}

/* "name: key0 key1 ..." */
static bool read_keys(struct trace_part *part, char *line, bool *no_memory)
{
    char *colon = strrchr(line, ':');
    uint64_t key;
    if (!colon || colon == line)
        return false;
    struct byteps_key fresh = {.name = strtab_add(&part->names, line, (size_t)(colon - line)),
                               .part = -1};
    size_t first = part->byteps->keys.n;
    *no_memory |= fresh.name == STRTAB_FULL;
    for (line = colon + 1; !*no_memory && next_number(&line, &key);) {
        fresh.key = key;
        *no_memory = array_push(&part->byteps->keys, fresh) < 0;
    }
    for (size_t i = first; i < part->byteps->keys.n && part->byteps->keys.n - first > 1; i++)
        part->byteps->keys.at[i].part = (int32_t)(i - first);
    return part->byteps->keys.n > first || *no_memory;
}

static int read_lines(struct bytes *bytes, struct trace_part *part, enum dpro_file_kind kind,
                      struct dpro_error *err)
{
    struct byteps_part *byteps = byteps_part_of(part);
    char *copy = malloc(MAX_LINE);
    bool no_memory = !byteps || !copy || strtab_add(&part->names, "", 0) == STRTAB_FULL;
    const char *line;
    size_t len;
    while (!no_memory && bytes_line(bytes, &line, &len)) {
        if (len == 0)
            continue;
        /* a line that is cut loses digits and still looks like one; a list may end without break */
        if (kind != DPRO_FILE_BYTEPS_KEYS && bytes->ended && bytes->p == bytes->end &&
            bytes->p[-1] != '\n') {
            part->cut = true;
            break;
        }
        size_t n = len < MAX_LINE ? len : MAX_LINE - 1;
        memcpy(copy, line, n);
        copy[n] = '\0';
        bool fine = kind == DPRO_FILE_BYTEPS_KEYS     ? read_keys(part, copy, &no_memory)
                    : kind == DPRO_FILE_BYTEPS_SERVER ? read_work(byteps, copy, &no_memory)
                    : strncmp(copy, "role", 4) == 0   ? read_header(byteps, copy)
                                                      : read_moment(byteps, copy, &no_memory);
        part->n_events++;
        part->losses.n_broken_records += !fine;
    }
    free(copy);
    return no_memory ? dpro_error_nomem(err) : 0;
}

int byteps_log_read(struct bytes *bytes, struct trace_part *part, struct dpro_error *err)
{
    return read_lines(bytes, part, DPRO_FILE_BYTEPS_LOG, err);
}

int byteps_server_read(struct bytes *bytes, struct trace_part *part, struct dpro_error *err)
{
    return read_lines(bytes, part, DPRO_FILE_BYTEPS_SERVER, err);
}

int byteps_keys_read(struct bytes *bytes, struct trace_part *part, struct dpro_error *err)
{
    return read_lines(bytes, part, DPRO_FILE_BYTEPS_KEYS, err);
}

/* By its first line. */
enum dpro_file_kind byteps_recognise(const char *text, size_t len)
{
    char line[4096], *at = line, *word, *colon;
    const char *end = memchr(text, '\n', len);
    size_t n = end ? (size_t)(end - text) : len;
    uint64_t number;
    bool flag, any = false;
    if (n == 0 || n >= sizeof line || memchr(text, '\0', n))
        return DPRO_FILE_OTHER;
    memcpy(line, text, n);
    line[n] = '\0';
    line[strcspn(line, "\r")] = '\0';
    if (strncmp(line, "role=", 5) == 0)
        return strstr(line, "id=") ? DPRO_FILE_BYTEPS_LOG : DPRO_FILE_OTHER;
    colon = strrchr(line, ':');
    if (colon && json_unsigned(line, (size_t)(colon - line), &number) == JSON_VALUE) {
        at = colon + 1;
        return next_word(&at, &word) && (strcmp(word, "start") == 0 || strcmp(word, "stop") == 0)
                   ? DPRO_FILE_BYTEPS_SERVER
                   : DPRO_FILE_OTHER;
    }
    if (colon) { /* nothing but keys behind the name */
        for (at = colon + 1; next_number(&at, &number);)
            any = true;
        return any && !*at && colon > line ? DPRO_FILE_BYTEPS_KEYS : DPRO_FILE_OTHER;
    }
    for (int i = 0; i < 7; i++)
        if (!(i >= 1 && i <= 3 ? next_flag(&at, &flag) : next_number(&at, &number)))
            return DPRO_FILE_OTHER;
    return *at ? DPRO_FILE_OTHER : DPRO_FILE_BYTEPS_LOG;
}
