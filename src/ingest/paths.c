/* What a file's name and its folder's say of the process that it is of. */
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

int path_rank(const char *path)
{
    const char *name = path_name(path);
    size_t len;
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
    const char *folder = folder_of(path, &len); /* TRACE/host0/rank3/trace.json */
    if (len <= 4 || strncasecmp(folder, "rank", 4) != 0)
        return -1;
    size_t at = 4 + (folder[4] == '_' || folder[4] == '-');
    return whole_number(folder + at, len - at);
}
