/* What a file of the input is good for. */
#include "ingest/sources.h"

bool source_usable(const struct source *source)
{
    const struct trace_part *part = &source->part;
    const struct payload_kind *kind = part->payload_kind;
    bool holds = part->payload && !kind->of_spans &&
                 (!kind->n_at || *(const size_t *)((const char *)part->payload + kind->n_at) > 0);
    return source->reader &&
           (part->n_spans > 0 || part->dfg_nodes.n > 0 || holds || source->held_elsewhere);
}

bool source_is_profile(const struct source *source)
{
    return source->reader && source->part.n_spans > 0;
}

bool source_is_everyones(const struct source *source)
{
    return source_usable(source) && source->rank == -1 && source->reader->flags & READER_ALL_RANKS;
}

bool source_is_damaged(const struct source *source)
{
    return source->fail != JSON_OK || source->damage;
}

void *source_payload(const struct source *source, const struct payload_kind *kind)
{
    return source->reader ? part_payload(&source->part, kind) : NULL;
}

void sources_fini(struct source_list *list)
{
    for (size_t i = 0; i < list->n; i++) {
        part_fini(&list->at[i].part);
        FREE_ALL(&list->at[i].names, &list->at[i].copy, &list->at[i].path);
    }
    array_fini(list);
}
