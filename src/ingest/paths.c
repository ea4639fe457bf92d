/* ingest/paths.c: what a file's name and its folder's say of the process that it is of. */
#include <string.h>
#include <strings.h>

#include "ingest/load.h"

const char *path_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static int read_rank(const char *at)
{
    int rank = 0, n = 0;
    for (; is_digit(at[n]); n++) {
        if (n == 7)
            return -1;
        rank = rank * 10 + (at[n] - '0');
    }
    return n ? rank : -1;
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
            if (is_digit(*at))
                return read_rank(at);
        }
    }
    return -1;
}

int path_process(const char *path)
{
    const char *slash = strrchr(path, '/'), *name = path_name(path), *folder = slash;
    int process = net_process_in(name, strlen(name));
    while (folder && folder > path && folder[-1] != '/')
        folder--;
    if (process != -1 || !folder)
        return process;
    /* it is named so and no more: "ps1", but not the job's "mnist-ps-1" */
    size_t len = (size_t)(slash - folder);
    return len > 1 && net_process_in(folder + 1, len - 1) == -1 ? net_process_in(folder, len) : -1;
}

int path_folder_number(const char *path)
{
    const char *slash = strrchr(path, '/'), *folder = slash;
    while (folder && folder > path && folder[-1] != '/')
        folder--;
    int number = folder ? read_rank(folder) : -1;
    for (; folder && folder < slash; folder++)
        if (!is_digit(*folder))
            return -1;
    return number;
}

int path_rank(const char *path)
{
    const char *slash = strrchr(path, '/'), *name = path_name(path);
    int rank = rank_in(name, strlen(name));
    if (rank >= 0)
        return rank;
    /* trace_3.json, trace_3.pt.trace.json.gz */
    const char *dot = strchr(name, '.');
    if (dot && dot > name && strstr(dot, ".json")) {
        const char *at = dot;
        while (at > name && is_digit(at[-1]))
            at--;
        if (at < dot && at > name && at[-1] == '_' && dot - at <= 6)
            return read_rank(at);
    }
    if (slash) { /* TRACE/host0/rank3/trace.json */
        const char *folder = slash;
        while (folder > path && folder[-1] != '/')
            folder--;
        if (slash - folder > 4 && strncasecmp(folder, "rank", 4) == 0) {
            const char *at = folder + 4 + (folder[4] == '_' || folder[4] == '-');
            const char *end = at;
            while (is_digit(*end))
                end++;
            if (end == slash && end > at)
                return read_rank(at);
        }
    }
    return -1;
}
