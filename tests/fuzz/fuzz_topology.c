/* Fuzz target: the reader of topologies, and names of ready-made ones. What is taken is within
 * bounds; what is not is said in one line. */
#include <sys/mman.h>
#include <unistd.h>

#include "cost/program/topology.h"
#include "fuzz.h"

static void check(const char *name)
{
    struct topology t;
    struct dpro_error err = {.code = 0};
    if (OUTCOME(&err, topology_read(name, &t)) < 0) {
        if (err.text[0] == '\0' || strchr(err.text, '\n'))
            abort();
        return;
    }
    const struct told_link *links[] = {&t.within, &t.between};
    for (int i = 0; i < 2; i++)
        if (!(told_rate(links[i]) > 0) || !(told_rate(links[i]) <= 1e15) ||
            !(links[i]->latency_ns >= 0) || !(links[i]->latency_ns <= 1e9))
            abort();
    if (t.ranks_per_host < 1 || !(t.rails >= 1) || !(topology_rate(&t, true) > 0) ||
        !isfinite(topology_latency(&t, 16, 2)))
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[64], name[128];
    int fd = memfd_create("input", 0);
    if (fd < 0 || write(fd, data, size) != (ssize_t)size)
        abort();
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    check(path);
    close(fd);
    snprintf(name, sizeof name, "h100-nvlink-%.*s", (int)(size < 100 ? size : 100),
             (const char *)data);
    check(name);
    return 0;
}
