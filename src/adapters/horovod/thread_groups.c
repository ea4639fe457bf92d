/* What Horovod's thread did with the groups that it fused, shared out among the groups of the
 * graph. */
#include "adapters/horovod/thread.h"

static int64_t share_of_ns(int64_t ns, double part)
{
    return part >= 1 ? ns : (int64_t)((double)ns * part);
}

static int64_t length_of(const struct actual_group *group)
{
    const struct fused_times *times = &group->times;
    return times->end_ns > times->start_ns ? times->end_ns - times->start_ns : 1;
}

/* What the parts of a group of the graph add up to in a round. */
struct groups_parts {
    uint32_t n;
    struct fused_times sums; /* start_ns is not used; the others: how long until then */
};

/* Gives a group of the graph a part of an actual one, between two fractions of its length. */
static void add_part(struct groups_parts *parts, struct fused_times *group,
                     const struct fused_times *t, double from, double to)
{
    double of = to - from;
    parts->n++;
    parts->sums.transfer_ns += share_of_ns(t->transfer_ns - t->start_ns, of);
    parts->sums.transferred_ns += share_of_ns(t->transferred_ns - t->transfer_ns, of);
    parts->sums.out_ns += share_of_ns(t->out_ns - t->transferred_ns, of);
    parts->sums.end_ns += share_of_ns(t->end_ns - t->out_ns, of);
    int64_t end_ns = t->start_ns + share_of_ns(t->end_ns - t->start_ns, to);
    if (parts->n == 1 || end_ns > group->end_ns)
        group->end_ns = end_ns;
}

/* How long each group of the graph takes, on rank 0, in those rounds that fused as it does. */
static void find_usual_lengths(const struct placing *p, double *usual)
{
    const struct fusion *f = p->fusion;
    for (uint32_t r = 0; r < p->rounds->rounds.n; r++)
        for (uint32_t g = 0; g < f->n_groups && f->alike[r]; g++)
            usual[g] += (double)length_of(&p->rounds->groups.at[p->rounds->rounds.at[r].first + g]);
}

/* How much of its group's length each tensor of the graph stands for: by its size, where that is
 * known. */
static void find_weights(const struct placing *p, const double *usual, double *weights)
{
    const struct fusion *f = p->fusion;
    for (uint32_t g = 0; g < f->n_groups; g++) {
        const struct fused_group *group = &f->groups[g];
        double all = (double)group->numel + group->n; /* no tensor counts for nothing */
        for (uint32_t i = group->first; i < group->first + group->n; i++) {
            uint64_t numel = group->numel ? f->timeline->tensors.at[f->tensors[i]].numel : 0;
            weights[i] = usual[g] * ((double)numel + 1) / all;
        }
    }
}

/* By actual group: the weights of all its tensors, of those that were shared out, and of the group
 * of the graph at hand. */
struct groups_sharing {
    double *usual, *weights; /* by group of the graph; by place */
    double *all, *done, *now;
};

static void sum_weights(const struct placing *p, const struct groups_sharing *sharing)
{
    size_t n_cells = p->rounds->rounds.n * p->fusion->n_tensors;
    for (size_t i = 0; i < n_cells; i++)
        if (p->cells[i] != NO_ID)
            sharing->all[p->cells[i]] += sharing->weights[i % p->fusion->n_tensors];
}

/* Shares what Horovod's thread did in a round out among the groups of the graph, in its order.
 * Where a round fused otherwise, an actual group's time goes to the graph's groups that have its
 * tensors, by how long they usually take. In a round of another order a group ends no earlier than
 * those before it in the graph. All ranks are cut at the same places, by rank 0's lengths. */
static void spread_round(const struct placing *p, uint32_t round,
                         const struct groups_sharing *sharing, struct groups_parts *parts,
                         struct fused_times *groups)
{
    const struct fusion *f = p->fusion;
    const uint32_t *cells = p->cells + (size_t)round * f->n_tensors;
    for (uint32_t g = 0; g < f->n_groups; g++) {
        const struct fused_group *group = &f->groups[g];
        for (uint32_t i = group->first; i < group->first + group->n; i++)
            if (cells[i] != NO_ID)
                sharing->now[cells[i]] += sharing->weights[i];
        for (uint32_t i = group->first; i < group->first + group->n; i++) {
            double now = cells[i] == NO_ID ? 0 : sharing->now[cells[i]];
            if (now <= 0)
                continue; /* none, or with a tensor before */
            double *done = &sharing->done[cells[i]], all = sharing->all[cells[i]];
            add_part(&parts[g], &groups[g], &p->actual[cells[i]], *done / all, (*done + now) / all);
            *done += now;
            sharing->now[cells[i]] = 0;
        }
        if (g > 0 && parts[g].n > 0 && parts[g - 1].n > 0)
            groups[g].end_ns = MAX(groups[g].end_ns, groups[g - 1].end_ns);
    }
}

/* Lays out the groups of a round: each ends where its last part ends, takes as long as its parts,
 * and ends before the next begins. */
static void lay_out(const struct placing *p, struct fused_times *groups, struct groups_parts *parts)
{
    int64_t next_ns = INT64_MAX;
    for (uint32_t g = p->fusion->n_groups; g-- > 0;) {
        const struct fused_times *sums = &parts[g].sums;
        groups[g].start_ns = NEVER;
        if (parts[g].n > 0) {
            groups[g].end_ns = MIN(groups[g].end_ns, next_ns);
            groups[g].out_ns = groups[g].end_ns - sums->end_ns;
            groups[g].transferred_ns = groups[g].out_ns - sums->out_ns;
            groups[g].transfer_ns = groups[g].transferred_ns - sums->transferred_ns;
            groups[g].start_ns = groups[g].transfer_ns - sums->transfer_ns;
            next_ns = groups[g].start_ns;
        }
        parts[g] = (struct groups_parts){0};
    }
}

void thread_place_groups(struct placing *p)
{
    uint32_t n = p->fusion->n_groups;
    size_t n_actual = p->rounds->groups.n;
    struct groups_parts *parts = arena_array(&p->arena, n, sizeof *parts);
    struct groups_sharing sharing = {
        .usual = arena_array(&p->arena, n, sizeof(double)),
        .weights = arena_array(&p->arena, p->fusion->n_tensors, sizeof(double)),
        .all = arena_array(&p->arena, n_actual, sizeof(double)),
        .done = arena_array(&p->arena, n_actual, sizeof(double)),
        .now = arena_array(&p->arena, n_actual, sizeof(double))};
    p->groups = arena_array(&p->arena, p->rounds->rounds.n * n, sizeof *p->groups);
    find_usual_lengths(p, sharing.usual);
    find_weights(p, sharing.usual, sharing.weights);
    sum_weights(p, &sharing);
    for (uint32_t r = 0; r < p->rounds->rounds.n; r++) {
        struct fused_times *groups = p->groups + (size_t)r * n;
        spread_round(p, r, &sharing, parts, groups);
        lay_out(p, groups, parts);
    }
}
