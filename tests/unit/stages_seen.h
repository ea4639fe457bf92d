/* A sink that remembers the stages whose progress it was told. */
#pragma once

#include <stdio.h>
#include <string.h>

#include <dpro/log.h>

struct stages_seen {
    char names[256]; /* of stages that came to their end, ";" behind each */
    char stage[64];  /* going on */
    uint64_t done;
    int n_wrong; /* calls that went back, past the end, or left a stage unfinished */
};

static inline void stages_note(void *arg, const char *stage, const char *unit, uint64_t done,
                               uint64_t total)
{
    struct stages_seen *seen = arg;
    bool goes_on = strcmp(stage, seen->stage) == 0;
    seen->n_wrong += !*unit || done == 0 || done > total || (*seen->stage && !goes_on) ||
                     (goes_on && done <= seen->done);
    snprintf(seen->stage, sizeof seen->stage, "%s", done == total ? "" : stage);
    seen->done = done;
    size_t n = strlen(seen->names);
    if (done == total)
        snprintf(seen->names + n, sizeof seen->names - n, "%s;", stage);
}

static inline struct dpro_sink stages_sink(struct stages_seen *seen)
{
    return (struct dpro_sink){.progress = stages_note, .arg = seen};
}
