/* Ready-made ones are named by what joins the ranks of a host and by what joins hosts:
 * "h100-nvlink-400g", "pcie4-2x25g". */
#include "cost/topology.h"

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/error.h"
#include "base/json.h"
#include "base/sort.h"
#include "base/text.h"

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
    for (size_t i = 0; i < sizeof ready_hosts / sizeof *ready_hosts; i++) {
        const struct ready_host *host = &ready_hosts[i];
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
enum { WHOLE = -1 }; /* in place of decimals */

/* What a file says, as numbers under one name each. */
struct told {
    double ranks_per_host, rails;
    struct told_link intra, inter;
};

static const struct number {
    const char *name;
    size_t offset;
    double least, most;
    int decimals; /* as many as are read */
    bool needed;
} numbers[] = {
    {"ranks_per_host", offsetof(struct told, ranks_per_host), 1, MOST_RANKS_PER_HOST, WHOLE, true},
    {"intra.bytes_per_s", offsetof(struct told, intra.bytes_per_s), 1e3, 1e15, 0, true},
    {"intra.payload", offsetof(struct told, intra.payload), 1e-3, 1, 9, false},
    {"intra.latency_ns", offsetof(struct told, intra.latency_ns), 1, 1e9, 3, false},
    {"inter.bytes_per_s", offsetof(struct told, inter.bytes_per_s), 1e3, 1e15, 0, true},
    {"inter.payload", offsetof(struct told, inter.payload), 1e-3, 1, 9, false},
    {"inter.latency_ns", offsetof(struct told, inter.latency_ns), 1, 1e9, 3, false},
    {"inter.rails", offsetof(struct told, rails), 1, MOST_RAILS, WHOLE, false},
};
enum { N_NUMBERS = sizeof numbers / sizeof *numbers };

struct reading {
    const char *path;
    struct json js;
    struct told told;
    bool seen[N_NUMBERS], has_schema;
    struct dpro_error why; /* the first failure, where its code is not 0 */
};

/* Ends reading with a message. */
#define stop(r, ...)                                                                               \
    (dpro_error_set(&(r)->why, DPRO_EFORMAT, __VA_ARGS__), json_stop(&(r)->js, JSON_BAD))

/* False: what stands there is no number, or too large. */
static bool next_number(struct json *js, int decimals, double *value)
{
    const char *text;
    size_t len;
    int64_t scaled, scale = 1;
    int digits = decimals == WHOLE ? 3 : decimals, c = json_peek(js);
    if ((c != '-' && (c < '0' || c > '9')) || !json_scalar(js, &text, &len) ||
        json_decimal(text, len, digits, &scaled) != JSON_VALUE)
        return false;
    for (int d = 0; d < digits; d++)
        scale *= 10;
    *value = (double)scaled / (double)scale;
    return decimals != WHOLE || scaled % scale == 0;
}

static void read_number(struct reading *r, const char *name)
{
    size_t i = 0;
    double value = 0;
    while (i < N_NUMBERS && strcmp(numbers[i].name, name) != 0)
        i++;
    const struct number *number = &numbers[i];
    if (json_peek(&r->js) < 0)
        json_skip(&r->js); /* says that the file ends */
    else if (i == N_NUMBERS)
        stop(r, "%s: '%.100s' is no number of a topology; 'note' may hold any text", r->path, name);
    else if (r->seen[i])
        stop(r, "%s: '%s' is there twice", r->path, name);
    else if (next_number(&r->js, number->decimals, &value) && value >= number->least &&
             value <= number->most)
        *(double *)(void *)((char *)&r->told + number->offset) = value;
    else if (r->js.fail == JSON_OK)
        stop(r, "%s: '%s' has to be a %snumber from %g to %g", r->path, name,
             number->decimals == WHOLE ? "whole " : "", number->least, number->most);
    if (i < N_NUMBERS)
        r->seen[i] = true;
}

static void read_schema(struct reading *r)
{
    const char *text;
    size_t len;
    if (json_peek(&r->js) != '"') {
        json_skip(&r->js);
        return;
    }
    r->has_schema = json_string(&r->js, &text, &len) && text_n_is(text, len, SCHEMA);
}

/* The members of an object whose bracket was taken; names of those within it begin with its own. */
static void read_members(struct reading *r, const char *outer)
{
    char name[128];
    JSON_KEYS (&r->js, true, key, len) {
        snprintf(name, sizeof name, "%s%.*s", outer, (int)MIN(len, 100), key);
        bool is_link = text_is_one(name, "intra", "inter") && json_peek(&r->js) == '{';
        if (strcmp(name, "schema") == 0)
            read_schema(r);
        else if (strcmp(name + strlen(outer), "note") == 0)
            json_skip(&r->js);
        else if (is_link && json_open(&r->js, '{'))
            read_members(r, strcmp(name, "intra") == 0 ? "intra." : "inter.");
        else
            read_number(r, name);
    }
}

static void check_file(struct reading *r)
{
    if (!r->has_schema)
        stop(r, "%s: no topology: 'schema' is not '" SCHEMA "'", r->path);
    for (size_t i = 0; i < N_NUMBERS && r->why.code == 0; i++)
        if (numbers[i].needed && !r->seen[i])
            stop(r, "%s: '%s' is missing", r->path, numbers[i].name);
}

static int read_file(const char *path, struct topology *t, struct dpro_error *err)
{
    struct reading r = {
        .path = path,
        .told = {.rails = 1, .intra.payload = PAYLOAD_SHARE, .inter.payload = PAYLOAD_SHARE}};
    struct input in;
    struct stat st;
    if (stat(path, &st) != 0 || !S_ISREG(st.st_mode))
        return dpro_error_set(err, DPRO_EUSAGE,
                              "%s: no file, and no ready-made topology, which are named like "
                              "h100-nvlink-400g or pcie4-2x25g",
                              path);
    int rc = input_open(&in, path, err);
    if (rc < 0)
        return rc;
    json_init(&r.js, &in, 0, err);
    if (json_open_document(&r.js))
        read_members(&r, "");
    if (r.js.fail == JSON_OK)
        check_file(&r);
    rc = r.why.code != 0
             ? dpro_error_set(err, r.why.code, "%s", r.why.text)
             : json_result(&r.js, "no JSON object; 'man dpro-whatif' describes topologies");
    json_fini(&r.js);
    input_close(&in);
    *t = (struct topology){(uint32_t)r.told.ranks_per_host, r.told.rails, r.told.intra,
                           r.told.inter};
    return rc;
}

int topology_read(const char *name, struct topology *topology, struct dpro_error *err)
{
    return find_ready(name, topology) ? 0 : read_file(name, topology, err);
}

double topology_latency(const struct topology *t, double n, double n_hosts)
{
    bool known = t->within.latency_ns > 0 && t->between.latency_ns > 0 && n > 1;
    double within = known ? fmin(1, t->within.latency_ns / t->between.latency_ns) : 1;
    return known ? (n_hosts - 1 + (n - n_hosts) * within) / (n - 1) : 1;
}
