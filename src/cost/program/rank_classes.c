/* Which ranks of a model are one executor of the simulator, as they do the same at the same time.
 */
#include "cost/program/evaluator.h"
#include "cost/program/server_placement.h"

/* Each tensor launches a bucket at most, each op waits for one at most, or for all, and begins one
 * communication of a group at most. */
static size_t most_actions(const struct dpro_model *m, uint32_t program)
{
    size_t n = m->n_tensors + (size_t)2;
    EACH_OF (const struct model_op, op, m->programs[program].ops, m->programs[program].n_ops) {
        n += op->needs == MODEL_ALL ? m->n_tensors : op->needs != MODEL_NONE;
        n += op->tensor != MODEL_NONE && op->tensor >= m->n_tensors;
    }
    return n;
}

static uint32_t add_class(struct evaluator *e, uint32_t rank, uint32_t next)
{
    const struct model_rank *of = &e->model->ranks[rank];
    size_t n_actions = most_actions(e->model, of->program);
    e->classes[e->n_classes] = (struct rank_class){
        of->program, next,           rank,
        1,           of->work_scale, arena_alloc(&e->arena, n_actions * sizeof(struct sim_action))};
    return e->n_classes++;
}

void classes_by_program(struct evaluator *e)
{
    const struct dpro_model *m = e->model;
    bool in_groups = e->scheme == MODEL_IN_GROUPS;
    uint32_t *newest = arena_alloc(&e->arena, m->n_programs * sizeof *newest);
    memset(newest, 0xff, m->n_programs * sizeof *newest);
    for (uint32_t r = 0; r < m->n_ranks; r++) {
        const struct model_rank *rank = &m->ranks[r];
        uint32_t c = in_groups ? SIM_NONE : newest[rank->program];
        while (c != SIM_NONE && e->classes[c].scale != rank->work_scale)
            c = e->classes[c].next;
        if (rank->copy > 0) {
            c = e->class_of[rank->like];
            e->classes[c].scale = fmax(e->classes[c].scale, rank->work_scale);
        }
        if (c == SIM_NONE)
            c = newest[rank->program] = add_class(e, r, newest[rank->program]);
        e->class_of[r] = c;
    }
}

struct copied_host {
    uint32_t host, like, n_ranks; /* like: the host of the ranks that they are copies of */
    double scale;                 /* of the slowest */
};

ORDER(by_speed, struct copied_host,
      ASCENDING(like) ?: ASCENDING(n_ranks) ?: DESCENDING(scale) ?: ASCENDING(host));

/* Of hosts of copies, sorted: by host, the first of those that are taken to be as fast. Of one
 * host's copies each of the slowest `finest` is by itself, then as many are together as a
 * `finest`-th of those before, as all wait for the slowest. Returns how many classes of ranks that
 * makes. */
static uint32_t merge_hosts(const struct copied_host *hosts, uint32_t n, uint32_t finest,
                            uint32_t *first)
{
    uint32_t n_classes = 0, n_before = 0, n_left = 0;
    for (uint32_t i = 0; i < n; i++) {
        const struct copied_host *host = &hosts[i];
        bool alike = i > 0 && host->like == host[-1].like && host->n_ranks == host[-1].n_ranks;
        n_before = alike ? n_before + 1 : 0;
        if (alike && n_left > 0) {
            first[host->host] = first[host[-1].host];
            n_left--;
            continue;
        }
        first[host->host] = host->host;
        n_left = MAX(n_before / finest, 1) - 1;
        n_classes += host->n_ranks;
    }
    return n_classes;
}

/* Hosts without servers whose ranks are all copies. */
static uint32_t list_hosts(struct evaluator *e, struct copied_host *hosts)
{
    const struct dpro_model *m = e->model;
    const struct model_net *net = &m->net;
    uint32_t n = 0;
    for (uint32_t r = 0; r < m->n_ranks; r++) {
        struct copied_host *host = &hosts[servers_host_of(net, r)];
        host->host = servers_host_of(net, r);
        host->like = servers_host_of(net, m->ranks[r].like);
        host->n_ranks += m->ranks[r].copy > 0;
        host->scale = fmax(host->scale, m->ranks[r].work_scale);
    }
    for (uint32_t i = 0; i < e->n_servers; i++)
        if (sync_server_node(net, i) < m->n_ranks)
            hosts[sync_server_node(net, i)].n_ranks = 0;
    for (uint32_t r = 0; r < m->n_ranks; r++)
        if (hosts[r].n_ranks > 0)
            hosts[n++] = hosts[r];
    qsort(hosts, n, sizeof *hosts, by_speed);
    return n;
}

void classes_by_host(struct evaluator *e)
{
    enum { MOST_CLASSES = 128 };
    const struct dpro_model *m = e->model;
    struct copied_host *hosts = arena_array(&e->arena, m->n_ranks, sizeof *hosts);
    uint32_t *first = arena_alloc(&e->arena, m->n_ranks * sizeof *first);
    uint32_t *newest = arena_alloc(&e->arena, m->n_ranks * sizeof *newest); /* by host */
    uint32_t n = list_hosts(e, hosts), finest = 1;
    while (finest < n)
        finest *= 2;
    for (uint32_t r = 0; r < m->n_ranks; r++)
        first[r] = r;
    while (merge_hosts(hosts, n, finest, first) > MOST_CLASSES && finest > 1)
        finest /= 2;
    memset(newest, 0xff, m->n_ranks * sizeof *newest);
    for (uint32_t r = 0; r < m->n_ranks; r++) {
        const struct model_rank *rank = &m->ranks[r];
        uint32_t host = first[servers_host_of(&m->net, r)], c = newest[host];
        while (c != SIM_NONE &&
               (rank->copy == 0 || m->ranks[e->classes[c].rank].like != rank->like))
            c = e->classes[c].next;
        if (c == SIM_NONE) {
            c = newest[host] = add_class(e, r, newest[host]);
        } else {
            e->classes[c].scale += rank->work_scale;
            e->classes[c].n++;
        }
        e->class_of[r] = c;
    }
    for (uint32_t c = 0; c < e->n_classes; c++)
        e->classes[c].scale /= e->classes[c].n;
}
