/* ingest/tensorflow/session_moments.c: the payload of a profile that has a session's runs. */
#include "ingest/part.h"
#include "ingest/tensorflow/session_profile.h"

static void fini(void *payload)
{
    array_fini(&((struct session_profile *)payload)->moments);
}

/* A process's part in a session is of use with its spans only. */
static bool is_empty(const void *payload)
{
    (void)payload;
    return true;
}

const struct payload_kind session_payload = {sizeof(struct session_profile), fini, is_empty};

struct session_profile *session_profile_of(const struct trace_part *part)
{
    return part_payload(part, &session_payload);
}
