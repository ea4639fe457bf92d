/* A format of a toy framework, all in this file: what a new reader needs. A file reads
 *     toy trace
 *     rank 0 of 2
 *     step 0 100          begins at, takes: microseconds
 *     op forward 10 60
 *     say out of patience
 * What was said is the payload; it joins the trace as warnings. */
#include <stdio.h>
#include <string.h>

#include "ingest/sources.h"
#include "toy_reader.h"

int n_toys_freed;

struct toy {
    uint32_t said; /* string id; 0: nothing */
};

static void fini(void *payload)
{
    (void)payload; /* holds nothing of its own */
    n_toys_freed++;
}

static const struct payload_kind toy_payload = {sizeof(struct toy), .fini = fini};

static void add_span(struct trace_part *part, const char *name, int64_t start_us, int64_t dur_us,
                     enum span_kind kind)
{
    struct trace_span span = {.start_ns = start_us * 1000,
                              .dur_ns = dur_us * 1000,
                              .name = part_intern(part, name, strlen(name)),
                              .sequence = -1,
                              .detail = NO_ID,
                              .kind = kind,
                              .parent = NO_ID,
                              .node = NO_ID};
    part_place_span(part, &span);
}

static void read_line(struct trace_part *part, struct toy *toy, const char *line)
{
    char name[32], step[48];
    long long start, dur;
    if (sscanf(line, "rank %d of %d", &part->process.rank, &part->process.world_size) == 2) {
        part->process.has_rank = true;
    } else if (sscanf(line, "step %lld %lld", &start, &dur) == 2) {
        snprintf(step, sizeof step, "ProfilerStep#%llu", (unsigned long long)part->n_events);
        add_span(part, step, start, dur, SPAN_ANNOTATION);
        part->n_events++;
    } else if (sscanf(line, "op %31s %lld %lld", name, &start, &dur) == 3) {
        add_span(part, name, start, dur, SPAN_CPU_OP);
    } else if (strncmp(line, "say ", 4) == 0) {
        toy->said = part_intern(part, line + 4, strlen(line + 4));
    } else {
        part->losses.n_broken_records++;
    }
}

static int read_toy(struct bytes *bytes, struct trace_part *part, struct dpro_error *err)
{
    struct toy *toy = part_make_payload(part, &toy_payload);
    struct part_track thread = {.track = {.pid = 1, .id = 1}};
    const char *at;
    size_t len;
    part_intern(part, "", 0);
    array_push(&part->tracks, thread);
    for (bool first = true; bytes_line(bytes, &at, &len); first = false) {
        char line[128];
        snprintf(line, sizeof line, "%.*s", (int)len, at);
        if (!first)
            read_line(part, toy, line);
    }
    return 0;
}

static void join(struct trace_build *build)
{
    for (size_t i = 0; i < build->list.n; i++) {
        const struct source *source = &build->list.at[i];
        const struct toy *toy = source_payload(source, &toy_payload);
        if (toy && toy->said)
            build_warn(build, "rank %d said: %s", source->rank,
                       strtab_get(&build->trace->names, source->names[toy->said]));
    }
}

const struct reader toy_reader = {
    .name = "toy",
    .word = "toy trace",
    .framework = "toyflow",
    .missing = {.alone = "a toy trace without a step"},
    .begins = {"toy trace\n"},
    .read_bytes = read_toy,
    .join = join,
};
