/* Reads a topology: the hosts and links that a what-if is told of.
 *
 * Ready-made ones are named by what joins the ranks of a host and by what joins hosts:
 * "h100-nvlink-400g", "pcie4-2x25g". */
#include "cost/program/topology.h"

#include <sys/stat.h>

#include "base/json_members.h"

/* ---- ready-made ---- */

/* Rates are the makers', payload and latency what NCCL itself reckons with: graph/topo.h of 2.29
 * has 20 of an NVLink's 25 GB/s (Hopper 20.6; Blackwell 40.1 of 50), 12 of the 15.75 of PCIe 3 x16
 * and twice that for each generation, 12 of the 12.5 of 100 Gbit/s; graph/tuning.cc of 2.19 has the
 * latencies of a ring's steps, protocol Simple. Hosts have 8 GPUs, and as many NICs as NVIDIA's
 * own: DGX-1 4, later ones 8. */
static const struct ready_host {
    const char *name;
    double rails;
    struct told_link within;
} ready_hosts[] = {
    {"v100-nvlink", 4, {150e9, 20 / 25.0, 3400}}, {"a100-nvlink", 8, {300e9, 20 / 25.0, 3400}},
    {"h100-nvlink", 8, {450e9, 20.6 / 25, 3400}}, {"b200-nvlink", 8, {900e9, 40.1 / 50, 3400}},
    {"pcie3", 1, {15.75e9, 12 / 15.75, 5700}},    {"pcie4", 1, {31.5e9, 12 / 15.75, 5700}},
    {"pcie5", 1, {63e9, 12 / 15.75, 5700}},
};

enum { READY_RANKS = 8, MOST_RANKS_PER_HOST = 65536, MOST_RAILS = 256 };
static const struct told_link ready_nic = {12.5e9, 12 / 12.5, 14000};
static const char *const ready_gbit[] = {"10", "25", "40", "50", "100", "200", "400", "800", NULL};

/* "400g", "2x25g"; *rails stays where it is not said. */
static bool read_nics(const char *text, struct topology *t)
{
    char gbit[8];
    const char *times = strchr(text, 'x');
    size_t len;
    if (times) {
        char *end;
        long n = strtol(text, &end, 10);
        if (end != times || end == text || n < 1 || n > MOST_RAILS)
            return false;
        t->rails = (double)n;
        text = times + 1;
    }
    len = strlen(text);
    if (len < 2 || len > sizeof gbit || text[len - 1] != 'g')
        return false;
    snprintf(gbit, sizeof gbit, "%.*s", (int)len - 1, text);
    t->between = ready_nic;
    t->between.bytes_per_s *= strtod(gbit, NULL) / 100;
    return text_is_in(gbit, ready_gbit);
}

static bool find_ready(const char *name, struct topology *t)
{
    EACH_OF (const struct ready_host, host, ready_hosts, sizeof ready_hosts / sizeof *ready_hosts) {
        size_t len = strlen(host->name);
        if (!text_begins(name, host->name) || name[len] != '-')
            continue;
        *t = (struct topology){
            .ranks_per_host = READY_RANKS, .rails = host->rails, .within = host->within};
        return read_nics(name + len + 1, t);
    }
    return false;
}

/* ---- files ---- */

#define SCHEMA "dpro.topology/1"

/* What a file says. */
struct told {
    uint32_t ranks_per_host;
    struct told_link intra;
    struct told_inter {
        struct told_link link;
        uint32_t rails;
    } inter;
};

#define ONCE(struct_, key, kind, member, least, most, ...)                                         \
    MEMBER(struct_, key, kind, member, FROM_TO(least, most), .once = true, ##__VA_ARGS__)
#define LINK                                                                                       \
    ONCE(struct told_link, "bytes_per_s", WITHIN, bytes_per_s, 1e3, 1e15, .needed = true),         \
        ONCE(struct told_link, "payload", WITHIN, payload, 1e-3, 1),                               \
        ONCE(struct told_link, "latency_ns", WITHIN, latency_ns, 1, 1e9),                          \
    {                                                                                              \
        .key = "note", .type = JSON_ANY                                                            \
    }
#define NO_OTHERS                                                                                  \
    {                                                                                              \
        .others = "is no number of a topology; 'note' may hold any text"                           \
    }

static const struct json_member intra[] = {LINK, NO_OTHERS};
static const struct json_member inter[] = {
    LINK, ONCE(struct told_inter, "rails", WHOLE, rails, 1, MOST_RAILS), NO_OTHERS};

static void read_schema(struct json_reader *r, void *out UNUSED, size_t offset UNUSED)
{
    if (strcmp(strtab_get(r->strings, json_read_text(r)), SCHEMA) != 0)
        json_refuse(r, "is not '" SCHEMA "': no topology");
}

static const struct json_member members[] = {
    {.key = "schema", .type = JSON_BY_READING, .read = read_schema, .needed = true},
    ONCE(struct told, "ranks_per_host", WHOLE, ranks_per_host, 1, MOST_RANKS_PER_HOST,
         .needed = true),
    MEMBER_IN("intra", intra, .offset = offsetof(struct told, intra), .must = true, .needed = true,
              .once = true),
    MEMBER_IN("inter", inter, .offset = offsetof(struct told, inter), .must = true, .needed = true,
              .once = true),
    {.key = "note", .type = JSON_ANY},
    NO_OTHERS};

static void read_file(const char *path, struct topology *t)
{
    struct told told = {
        .inter.rails = 1, .intra.payload = PAYLOAD_SHARE, .inter.link.payload = PAYLOAD_SHARE};
    struct strtab strings = {0};
    struct json_reader r = {.strings = &strings};
    struct dpro_error why;
    struct stat st;
    if (stat(path, &st) != 0 || !S_ISREG(st.st_mode))
        fail_with(DPRO_EUSAGE,
                  "%s: no file, and no ready-made topology, which are named like "
                  "h100-nvlink-400g or pcie4-2x25g",
                  path);
    fail_on(json_read_file(&r, path, members, &told,
                           "no JSON object; 'man dpro-whatif' describes topologies", &why),
            &why);
    strtab_fini(&strings);
    *t = (struct topology){told.ranks_per_host, told.inter.rails, told.intra, told.inter.link};
}

void topology_read(const char *name, struct topology *topology)
{
    if (!find_ready(name, topology))
        read_file(name, topology);
}

double topology_latency(const struct topology *t, double n, double n_hosts)
{
    bool known = t->within.latency_ns > 0 && t->between.latency_ns > 0 && n > 1;
    double within = known ? fmin(1, t->within.latency_ns / t->between.latency_ns) : 1;
    return known ? (n_hosts - 1 + (n - n_hosts) * within) / (n - 1) : 1;
}
