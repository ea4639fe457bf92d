/* Names the parts of a cause, and where it is. */
#include "diagnose/pieces.h"

uint32_t found_part(struct cause_found *found, uint64_t key, const char *format, ...)
{
    uint64_t number = map_first(&found->part_numbers, map_key(key), found->parts.n);
    if (number < found->parts.n)
        return (uint32_t)number;
    char name[256];
    va_list args;
    va_start(args, format);
    vsnprintf(name, sizeof name, format, args);
    va_end(args);
    array_push(&found->parts, arena_copy_string(found->arena, name, strlen(name)));
    return (uint32_t)number;
}

/* Those of n with that share of the largest one or more; returns how many. */
static uint32_t name_some(const double *of, uint32_t n, double least, uint32_t *which)
{
    double most = 0;
    uint32_t named = 0;
    for (uint32_t i = 0; i < n; i++)
        most = MAX(most, fabs(of[i]));
    for (uint32_t i = 0; i < n && most > 0; i++)
        if (fabs(of[i]) >= least * most)
            which[named++] = i;
    return named;
}

void cause_where(struct dpro_cause *cause, const struct dpro_graph *g, const double *of_rank,
                 const double *of_iteration, uint32_t n_iterations, double least,
                 struct arena *arena)
{
    uint32_t n_ranks = g->n_ranks + g->n_servers;
    SCRATCH uint32_t *which = mem_array(MAX(n_ranks, n_iterations) + (size_t)1, sizeof *which);
    int *ranks = arena_array(arena, n_ranks + (size_t)1, sizeof *ranks);
    int64_t *iterations = arena_array(arena, n_iterations + (size_t)1, sizeof *iterations);
    cause->n_ranks = name_some(of_rank, n_ranks, least, which);
    for (uint32_t i = 0; i < cause->n_ranks; i++)
        ranks[i] = g->ranks[which[i]].rank;
    uint32_t named = name_some(of_iteration, n_iterations, least, which);
    cause->n_iterations = g->sample_number && named <= n_iterations / 2 ? named : 0;
    for (uint32_t i = 0; i < cause->n_iterations; i++)
        iterations[i] = g->sample_number[which[i]];
    cause->ranks = ranks;
    cause->iterations = iterations;
}
