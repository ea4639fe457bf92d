/* What-ifs of hosts, links, servers and buckets, applied to a copy of the model. */
#include "cost/change/change.h"

#include "cost/change/replicas.h"
#include "cost/learn/uncertainty.h"
#include "cost/program/buckets.h"
#include "cost/program/cost.h"
#include "cost/program/server_placement.h"
#include "cost/program/sync.h"
#include "cost/program/topology.h"
#include "plan/plan.h"

static const int64_t MOST_CYCLE_NS = 10000000000;

void change_copy(const struct dpro_model *model, struct arena *arena, struct dpro_model *copy)
{
    *copy = *model;
    copy->arena = (struct arena){0};
    copy->warnings.at = NULL;
    copy->warnings.n = copy->warnings.cap = 0;
    copy->ranks = arena_array(arena, model->n_ranks, sizeof *copy->ranks);
    copy->baseline = buckets_copy(model, &model->baseline, arena);
    memcpy(copy->ranks, model->ranks, model->n_ranks * sizeof *copy->ranks);
}

/* A millionth of a speed is a slip of the finger, and its times would overflow. */
static bool is_speed(double ratio)
{
    return ratio >= 1e-6 && isfinite(ratio);
}

void check_speed(const struct dpro_compute_change *change, const struct dpro_graph *g)
{
    bool gpu = job_has_gpu(g), found = !gpu || change->first_rank < 0;
    if (!is_speed(change->speed))
        refuse("computing %g times as fast makes no sense; 0.000001 times is the least",
               change->speed);
    if (change->processor == DPRO_PROCESSOR_GPU && !gpu)
        refuse("the job computes on CPUs only: give --compute cpu=%gx", change->speed);
    for (uint32_t r = 0; gpu && r < g->n_ranks; r++)
        found |= g->ranks[r].rank >= change->first_rank && g->ranks[r].rank <= change->last_rank;
    if (!found)
        refuse("no rank %d to compute faster: they are %d to %d", change->first_rank,
               g->ranks[0].rank, g->ranks[g->n_ranks - 1].rank);
}

static void change_compute(const struct dpro_compute_change *change, struct dpro_model *m)
{
    bool found = false;
    for (uint32_t r = 0; r < m->n_ranks; r++) {
        int rank = m->ranks[r].rank;
        if (change->first_rank >= 0 && (rank < change->first_rank || rank > change->last_rank))
            continue;
        m->ranks[r].work_scale /= change->speed;
        if (!is_speed(1 / m->ranks[r].work_scale))
            refuse("rank %d would compute %g times as fast in all; name it in one --compute", rank,
                   1 / m->ranks[r].work_scale);
        found = true;
    }
    if (!found)
        refuse("no rank %d to compute faster: they are %d to %d", change->first_rank,
               m->ranks[0].rank, m->ranks[m->n_ranks - 1].rank);
}

void change_speeds(const struct dpro_changes *c, struct dpro_model *m, struct notes *notes)
{
    (void)notes;
    for (size_t i = 0; i < c->n_compute; i++)
        change_compute(&c->compute[i], m);
}

/* Of a link's rate; given as one or as a ratio; 1: neither. */
static void bandwidth_ratio(double bytes_per_s, double ratio, const struct model_link *link,
                            double byte_ns, double *times)
{
    if (bytes_per_s != 0 && ratio != 0)
        refuse("give the bandwidth as a rate or as a ratio, not both");
    if (bytes_per_s != 0 && link->is_rate_unknown)
        refuse("the trace does not say how many bytes ranks communicate, so the rate of "
               "links is not known; give --bandwidth as a ratio (0.5x)");
    *times = ratio != 0         ? ratio
             : bytes_per_s != 0 ? bytes_per_s * PAYLOAD_SHARE * byte_ns / 1e9
                                : 1;
    if (is_speed(*times))
        return;
    refuse("a link needs a bandwidth above 0.000001 times the recorded one, not %g times; "
           "write for example 500mbit or 0.5x",
           *times);
}

/* Those of links between hosts and within them, which the trace has to tell apart. */
static void check_links(const struct dpro_changes *c, const struct dpro_model *m)
{
    bool between = c->between_bytes_per_s != 0 || c->between_ratio != 0;
    bool within = c->within_bytes_per_s != 0 || c->within_ratio != 0;
    const struct model_link *link = &m->net.link;
    bool known = m->n_communications > 0 && link->rank_hosts;
    if (!between && !within)
        return;
    if (!known)
        refuse("the trace does not tell which ranks are on one host: give --bandwidth "
               "without inter= and intra=");
    if (between && link->is_within)
        refuse("the trace shows no communication between hosts, so their links are not "
               "known; give intra= for links within hosts");
    if (within && !link->is_within && link->within_ns.value <= 0)
        refuse("the trace shows no communication within a host, so intra= changes "
               "nothing; give inter= for links between hosts");
    if (c->bandwidth_bytes_per_s != 0 || c->bandwidth_ratio != 0)
        refuse("give one bandwidth for all links, or one for some of them, not both");
}

static void change_bandwidth(const struct dpro_changes *c, struct dpro_model *m,
                             struct notes *notes)
{
    struct model_link *link = &m->net.link;
    double all, ratios[2] = {1, 1}; /* of byte_ns; within hosts */
    check_links(c, m);
    bandwidth_ratio(c->bandwidth_bytes_per_s, c->bandwidth_ratio, link, link->byte_ns.value, &all);
    if (!link->is_within)
        bandwidth_ratio(c->between_bytes_per_s, c->between_ratio, link, link->byte_ns.value,
                        &ratios[0]);
    bandwidth_ratio(c->within_bytes_per_s, c->within_ratio, link,
                    link->is_within ? link->byte_ns.value : link->within_ns.value,
                    &ratios[!link->is_within]);
    bool by_group = m->n_communications > 0;
    if (by_group && c->bandwidth_ratio != 0)
        ratios[1] = link->is_within ? ratios[1] : all;
    estimate_scale(&link->byte_ns, 1 / (all * ratios[0]));
    if (by_group)
        estimate_scale(&link->within_ns, 1 / ratios[1]);
    double most = fmax(exp(fabs(log(all * ratios[0]))), exp(fabs(log(ratios[1]))));
    if (most > 10)
        note(notes,
             "the links change %.3g-fold: far from what was measured, where other things may "
             "become the bottleneck",
             most);
}

static void set_latency(struct dpro_estimate *message_ns, const struct told_link *told)
{
    if (told->latency_ns <= 0)
        return;
    message_ns->std *= message_ns->value > 0 ? told->latency_ns / message_ns->value : 1;
    message_ns->value = told->latency_ns;
}

/* The rates of a topology as such of --bandwidth, of which PAYLOAD_SHARE is left for data. Buckets
 * are reduced in a ring, which leaves each host once. */
static void ask_topology(const struct topology *t, uint32_t n_ranks, struct dpro_model *m,
                         struct dpro_changes *c)
{
    struct model_link *link = &m->net.link;
    bool in_groups = m->n_communications > 0;
    bool within_only = in_groups ? link->is_within : n_ranks <= t->ranks_per_host;
    double within = told_rate(&t->within) / PAYLOAD_SHARE;
    double between = topology_rate(t, in_groups && link->own_links) / PAYLOAD_SHARE;
    set_latency(&link->message_ns, within_only ? &t->within : &t->between);
    set_latency(&link->within_message_ns, &t->within);
    if (within_only) {
        c->bandwidth_bytes_per_s = within;
    } else if (in_groups) {
        c->between_bytes_per_s = between;
        c->within_bytes_per_s = within;
    } else if (m->net.collective.algorithm == MODEL_HIERARCHICAL) { /* its rings share host links */
        c->bandwidth_bytes_per_s = topology_rate(t, true) / PAYLOAD_SHARE;
        link->within_ns = link->byte_ns;
        estimate_scale(&link->within_ns, 1e9 / told_rate(&t->within) / link->byte_ns.value);
        if (t->within.latency_ns <= 0)
            link->within_message_ns = link->message_ns;
    } else {
        c->bandwidth_bytes_per_s = fmin(within, between);
        estimate_scale(&link->message_ns,
                       topology_latency(t, n_ranks, (double)n_ranks / t->ranks_per_host));
    }
}

void change_links(const struct dpro_changes *c, struct dpro_model *m, struct notes *notes)
{
    struct model_net *net = &m->net;
    change_bandwidth(c, m, notes);
    if (!(c->latency_ratio >= 0 && c->latency_ratio <= 1e6))
        refuse(
            "a latency of %g times the measured one makes no sense; 0 to 1000000 can be asked for",
            c->latency_ratio);
    if (c->latency_ratio != 0) {
        estimate_scale(&net->link.message_ns, c->latency_ratio);
        estimate_scale(&net->link.within_message_ns, c->latency_ratio);
    }
    net->link.within_message_ns.value =
        fmax(0, net->link.within_message_ns.value + (double)c->latency_add_ns);
    net->link.message_ns.value = fmax(0, net->link.message_ns.value + (double)c->latency_add_ns);
}

static void change_server_links(const struct dpro_changes *c, struct dpro_model *m)
{
    struct model_net *net = &m->net;
    bool own_hosts = false;
    if (c->server_bandwidth_bytes_per_s == 0 && c->server_bandwidth_ratio == 0)
        return;
    for (uint32_t s = 0; s < net->servers.n; s++)
        own_hosts |= !net->servers.hosts || net->servers.hosts[s] < 0;
    if (!own_hosts)
        refuse(
            "each server is on the host of a rank, and shares its link; --bandwidth changes both");
    bandwidth_ratio(c->server_bandwidth_bytes_per_s, c->server_bandwidth_ratio, &net->link,
                    net->link.byte_ns.value, &net->servers.link_rate);
}

void change_servers(const struct dpro_changes *c, struct dpro_model *m, struct notes *notes)
{
    struct model_net *net = &m->net;
    if (c->n_servers > SERVERS_MOST)
        refuse("%u servers can't be predicted; 1 to %d can", c->n_servers, SERVERS_MOST);
    if (c->bigarray_bound != 0 && net->servers.placement != MODEL_BY_KEY)
        refuse("arrays are split over servers from a bound on only in MXNet, and this job's "
               "servers are not MXNet's");
    if (c->bigarray_bound != 0 && (c->bucket_cap_bytes || c->buckets_path || c->partition_bytes))
        refuse("give a bound, from which on MXNet by itself splits arrays over servers, or buckets "
               "and partitions, not both");
    uint32_t n = net->servers.n;
    if (c->n_servers != 0 && c->n_servers != n) {
        servers_change(m, c->n_servers, notes->arena);
        const char *rule = net->servers.placement == MODEL_BY_KEY
                               ? "keys go where MXNet's rule puts them"
                               : "tensors go to them in turns";
        uint32_t n_apart = sync_n_nodes(net) - net->collective.n_ranks;
        note(notes,
             "%u parameter server%s: %s; %u of them on hosts of their own, with links as the "
             "others have",
             c->n_servers, c->n_servers > 1 ? "s" : "", rule, n_apart);
    }
    if (c->bigarray_bound != 0)
        servers_set_bound(m, c->bigarray_bound, &m->baseline);
    change_server_links(c, m);
}

void change_cycles(const struct dpro_changes *c, struct dpro_model *m, struct notes *notes)
{
    (void)notes;
    if (m->net.gate.cycle_ns == 0)
        refuse("Horovod's timeline has no marks of its cycles, so other cycle times and thresholds "
               "can't be predicted; record with 'dpro profile', or with "
               "HOROVOD_TIMELINE_MARK_CYCLES=1");
    if (c->fusion_bytes && (c->bucket_cap_bytes != 0 || c->buckets_path))
        refuse("give a fusion threshold, with which Horovod fuses gradients by itself, or buckets, "
               "not both");
    if (c->cycle_ns < 0 || c->cycle_ns > MOST_CYCLE_NS)
        refuse("a cycle of %g ms makes no sense; up to %g can be predicted",
               (double)c->cycle_ns / 1e6, (double)MOST_CYCLE_NS / 1e6);
    if (c->cycle_ns != 0)
        m->baseline.cycle_ns = c->cycle_ns;
    if (c->fusion_bytes) {
        m->baseline.fuses = true;
        m->baseline.fusion_bytes = *c->fusion_bytes;
    }
}

void change_strategy(const struct dpro_changes *c, struct dpro_model *m, struct notes *notes)
{
    enum dpro_compression own = m->baseline.compression;
    if (c->bucket_cap_bytes != 0 && c->buckets_path)
        refuse("give a bucket cap or a list of buckets, not both");
    if (c->first_bucket_bytes != 0 && c->bucket_cap_bytes == 0)
        refuse("a cap for the first bucket needs one for the others");
    if (c->bucket_cap_bytes != 0 || c->buckets_path)
        refuse_micro_batches(m);
    if (c->compression && model_casts(m))
        refuse("the recorded job already casts the gradients that it sends (a communication hook, "
               "or a plan), so --compress can't be predicted; record it without that");
    if (c->buckets_path) {
        if (buckets_read(m, c->buckets_path, &m->baseline) && !c->recompute && !c->micro_batches &&
            !c->compile && !c->precision)
            note(notes,
                 "only the plan's buckets are used: for its recomputed or compiled modules, 16 "
                 "bits and micro-batches add --recompute, --compile, --precision and --accumulate");
    } else if (c->bucket_cap_bytes != 0) {
        if (m->whole_bytes > c->bucket_cap_bytes)
            refuse("smaller buckets can't be predicted: the trace does not tell which gradients "
                   "the recorded bucket of %.1f MB holds; 'dpro profile' records them",
                   (double)m->whole_bytes / 1e6);
        buckets_by_cap(m, c->first_bucket_bytes ? c->first_bucket_bytes : c->bucket_cap_bytes,
                       c->bucket_cap_bytes, &m->baseline);
        m->baseline.compression = own;
        if (m->net.gate.negotiates)
            note(notes,
                 "Horovod by itself fuses what is ready when a cycle begins (--fusion-mb, "
                 "--cycle-time); buckets are predicted as groups of gradients that the job makes");
    }
    if (c->partition_bytes != 0) {
        for (uint32_t b = 0; b < m->baseline.n_buckets; b++)
            if (bucket_size_bytes(m, &m->baseline, b) / c->partition_bytes >= PLAN_MOST_PARTITIONS)
                refuse("partitions of %llu bytes make more than %d of bucket %u; take larger ones",
                       (unsigned long long)c->partition_bytes, PLAN_MOST_PARTITIONS, b);
        buckets_partition(m, c->partition_bytes, &m->baseline);
    }
    if (c->compression)
        m->baseline.compression = *c->compression;
    if (m->baseline.compression != own && m->baseline.compression != DPRO_COMPRESSION_NONE)
        note(notes,
             "%s rounds gradients: the job does not train to the same numbers; check its loss",
             dpro_compression_name(m->baseline.compression));
    if (!capabilities_allow(&m->capabilities, &m->baseline))
        note(notes, "no plan can ask that of the job: %s", dpro_model_capabilities(m));
}

void change_hosts(const struct dpro_graph *graph, const struct topology *told,
                  struct dpro_changes *c, struct dpro_model *model, struct notes *notes)
{
    struct rank_changes ranks;
    struct topology topology;
    replicas_find(graph, c, model, notes->arena, &ranks);
    if (c->topology && !told) {
        told = &topology;
        topology_read(c->topology, &topology);
    }
    change_world(&ranks, told, c->collectives, model, notes);
    if (told)
        ask_topology(told, ranks.of[ranks.n - 1].after * ranks.of[ranks.n - 1].rest, model, c);
}
