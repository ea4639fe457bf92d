/* ingest/tensorflow/session_tracks.c: tracks for spans of a session that no profile names threads
 * for. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/sort.h"
#include "ingest/tensorflow/graphdef.h"
#include "ingest/tensorflow/session_steps.h"
#include "ingest/tensorflow/tf_parts.h"

uint32_t session_track(struct tf_idle_tracks *idle, struct trace_part *part, uint64_t pid,
                       const struct trace_span *span, bool *no_memory)
{
    uint32_t *track = tf_idle_track(idle, span->start_ns, span->start_ns + span->dur_ns);
    if (*track == NO_ID) {
        struct trace_track fresh = {.pool = true, .pid = pid, .id = track - idle->tracks};
        char name[32];
        int len = snprintf(name, sizeof name, "executor %d", (int)fresh.id);
        fresh.name = part_intern(part, name, (size_t)len, no_memory);
        *track = tf_track(part, fresh, no_memory);
    }
    return *track;
}

uint32_t session_inbox(struct trace_part *part, uint64_t pid, const char *key, bool *no_memory)
{
    const char *to = strrchr(key, ' '), *from = to;
    char name[SESSION_KEY_MAX + 8];
    while (from && from > key && from[-1] != ' ')
        from--;
    size_t len = from ? graphdef_task(from, (size_t)(to - from)) : 0;
    int n = snprintf(name, sizeof name, "from %.*s",
                     len < SESSION_KEY_MAX ? (int)len : SESSION_KEY_MAX, len ? from : "");
    struct trace_track track = {.pid = pid};
    track.name = part_intern(part, name, (size_t)n, no_memory);
    track.id = (int64_t)TF_IDLE_TRACKS + track.name;
    return tf_track(part, track, no_memory);
}

void session_name_group(struct trace_part *part, const char *key, struct trace_detail *detail,
                        bool *no_memory)
{
    size_t len = strcspn(key, " ");
    char *end;
    detail->process_group = part_intern(part, key, len, no_memory);
    long long instance = strtoll(key + len, &end, 10);
    if (*end == '\0' && end > key + len && instance >= 0)
        detail->comm_sequence = instance;
}

void session_extend(int64_t whole_ns[2], int64_t start_ns, int64_t end_ns)
{
    if (start_ns > whole_ns[1] || end_ns < whole_ns[0])
        return;
    whole_ns[0] = MIN(whole_ns[0], start_ns);
    whole_ns[1] = MAX(whole_ns[1], end_ns);
}
