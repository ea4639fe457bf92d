/* What the files of a rank say of it as a whole. */
#include "ingest/rank_job.h"

struct source *job_source(struct trace_build *build, struct rank_job *job,
                          const struct payload_kind *kind, const char *what, const char *does)
{
    struct source *best = NULL;
    for (size_t i = 0; i < job->n_sources; i++) {
        const void *payload = source_payload(job->sources[i], kind);
        if (payload && (!best || job->sources[i]->part.n_events > best->part.n_events))
            best = job->sources[i];
    }
    for (size_t i = 0; i < job->n_sources; i++)
        if (job->sources[i] != best && source_payload(job->sources[i], kind))
            rank_warn(build, job, "%s: %s rank %d%s, skipped; %s is used", job->sources[i]->path,
                      what, job->rank->rank, does, best->path);
    return best;
}

static void copy_group(struct trace_group *to, const struct trace_group *from,
                       const uint32_t *names, struct arena *arena)
{
    *to = *from;
    to->name = names[from->name];
    to->description = names[from->description];
    to->ranks = arena_copy(arena, from->ranks, from->n_ranks, sizeof *to->ranks);
}

void rank_describe(struct trace_rank *rank, const struct source *source, struct arena *arena)
{
    const struct trace_part *part = &source->part;
    if (!rank->world_size)
        rank->world_size = part->process.world_size;
    if (!rank->pid)
        rank->pid = part->process.pid;
    if (!rank->host)
        rank->host = source->names[part->process.host];
    if (!rank->backend)
        rank->backend = source->names[part->process.backend];
    if (!rank->device)
        rank->device = source->names[part->process.device_name];
    if (rank->n_groups || part->groups.n == 0)
        return;
    rank->groups = arena_array(arena, part->groups.n, sizeof *rank->groups);
    for (size_t g = 0; g < part->groups.n; g++)
        copy_group(&rank->groups[rank->n_groups++], &part->groups.at[g], source->names, arena);
}
