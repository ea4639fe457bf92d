/* What a file's name and its folder's say of the process that it is of. */
#include <strings.h>

#include "ingest/load.h"

const char *path_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

int path_numbered(const char *name, const char *word)
{
    uint64_t number;
    const char *digits = name + strlen(word);
    return text_begins(name, word) &&
                   net_parse_number(digits, strlen(digits), 10, NET_MAX_PROCESSES * 64, &number)
               ? (int)number
               : -1;
}

/* The number that a text begins with; -1: none, or one that no rank has. */
static int read_rank(const char *at)
{
    uint64_t rank;
    size_t n = strspn(at, "0123456789");
    return n <= 7 && net_parse_number(at, n, 10, INT_MAX, &rank) ? (int)rank : -1;
}

/* rank3, rank_3, rank-3, worker3, proc3, eg_3 and the like anywhere in a name. */
static int rank_in(const char *name, size_t len)
{
    static const char *const words[] = {"rank", "worker", "proc", "eg"};
    for (size_t w = 0; w < sizeof words / sizeof words[0]; w++) {
        size_t n = strlen(words[w]);
        for (size_t i = 0; i + n < len; i++) {
            if (strncasecmp(name + i, words[w], n) != 0)
                continue;
            const char *at = name + i + n;
            bool separated = *at == '_' || *at == '-' || *at == '.' || *at == '=';
            if (w == 3 && (!separated || (i > 0 && name[i - 1] != '_')))
                continue; /* "eg" alone is too short to mean anything */
            if (separated)
                at++;
            if (isdigit((unsigned char)*at))
                return read_rank(at);
        }
    }
    return -1;
}

/* The name of the file's folder; "": none is named. */
static const char *folder_of(const char *path, size_t *len)
{
    const char *name = path_name(path), *folder = name > path ? name - 1 : path;
    *len = 0;
    for (; folder > path && folder[-1] != '/'; folder--)
        ++*len;
    return folder;
}

static int whole_number(const char *text, size_t len)
{
    uint64_t number;
    return net_parse_number(text, len, 10, NET_MAX_PROCESSES - 1, &number) ? (int)number : -1;
}

int path_process(const char *path)
{
    const char *name = path_name(path);
    size_t len;
    const char *folder = folder_of(path, &len);
    int process = net_process_in(name, strlen(name));
    if (process != -1)
        return process;
    /* it is named so and no more: "ps1", but not the job's "mnist-ps-1" */
    return len > 1 && net_process_in(folder + 1, len - 1) == -1 ? net_process_in(folder, len) : -1;
}

int path_folder_number(const char *path)
{
    size_t len;
    const char *folder = folder_of(path, &len);
    return whole_number(folder, len);
}

/* trace_3.json, trace_3.pt.trace.json.gz */
static int bare_number(const char *name)
{
    const char *dot = strchr(name, '.');
    if (dot && dot > name && strstr(dot, ".json")) {
        const char *at = dot;
        while (at > name && isdigit((unsigned char)at[-1]))
            at--;
        if (at < dot && at > name && at[-1] == '_' && dot - at <= 6)
            return read_rank(at);
    }
    return -1;
}

int path_rank(const char *path)
{
    const char *name = path_name(path);
    int rank = rank_in(name, strlen(name));
    if (rank < 0)
        rank = bare_number(name);
    return rank >= 0 ? rank : path_rank_said(path);
}

int path_rank_said(const char *path)
{
    const char *name = path_name(path);
    size_t len;
    int rank = rank_in(name, strlen(name));
    if (rank >= 0)
        return rank;
    const char *folder = folder_of(path, &len); /* TRACE/host0/rank3/trace.json */
    if (len <= 4 || strncasecmp(folder, "rank", 4) != 0)
        return -1;
    size_t at = 4 + (folder[4] == '_' || folder[4] == '-');
    return whole_number(folder + at, len - at);
}
