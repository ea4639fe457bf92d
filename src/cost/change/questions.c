/* What can be asked of a job: each kind of what-if is tried with a value that makes sense in any
 * job that has what it takes. */
#include "cost/change/changes.h"

#include "cost/program/buckets.h"
#include "cost/program/cost.h"
#include "cost/program/model_memory.h"
#include "cost/program/sync.h"
#include "cost/program/topology.h"
#include "graph/dimensions/pipeline.h"

/* ---- values to try ---- */

/* Ranks of a dimension of the job; 0: it has none of that kind. */
static uint32_t size_of(const struct job_facts *f, enum dpro_parallelism parallelism)
{
    const struct graph_dimension *d = f->graph ? job_dimension(f->graph, parallelism) : NULL;
    return d ? d->size : 0;
}

static uint32_t ranks_of(const struct job_facts *f)
{
    return f->graph ? job_size(f->graph) : MAX(f->model->n_ranks, f->model->net.collective.n_ranks);
}

void ask_ranks(struct job_facts *f, struct dpro_changes *c)
{
    c->world_size = 2 * ranks_of(f);
}

void ask_shards(struct job_facts *f, struct dpro_changes *c)
{
    (void)f;
    c->shard = 2;
    c->dp = 1;
}

/* None split, as what they are split over need not be shared out by others. */
void ask_tensors(struct job_facts *f, struct dpro_changes *c)
{
    (void)f;
    c->tp = 1;
}

/* As many ranks a host as the trace shows; all on one where it does not tell. */
void ask_hosts(struct job_facts *f, struct dpro_changes *c)
{
    const uint32_t *hosts = f->graph ? f->graph->rank_hosts : NULL;
    uint32_t n = 0;
    for (uint32_t r = 0; hosts && r < f->graph->n_ranks; r++)
        n += hosts[r] == hosts[0];
    f->hosts = arena_alloc(f->arena, sizeof *f->hosts);
    *f->hosts = (struct topology){.ranks_per_host = n > 0 ? n : ranks_of(f),
                                  .rails = 1,
                                  .within = {.bytes_per_s = 1e9, .payload = 1},
                                  .between = {.bytes_per_s = 1e9, .payload = 1}};
    c->topology = "";
}

static struct pipeline pipeline_of(const struct job_facts *f)
{
    struct pipeline p = {.dimension = DPRO_NO_DIMENSION};
    if (f->graph)
        pipeline_find(f->graph, f->arena, &p);
    return p;
}

/* As many as recorded, in an order that any pipeline can have. */
void ask_pipeline(struct job_facts *f, struct dpro_changes *c)
{
    struct pipeline p = pipeline_of(f);
    c->pipeline_micro_batches = MAX(p.n_micro_batches, 1);
    c->schedule = DPRO_SCHEDULE_GPIPE;
}

/* Of a rate and a ratio the latter, as a rate is not always known. */
static const struct dpro_change_field *field_to_try(const struct change_row *row)
{
    EACH_OF (const struct dpro_change_field, field, row->kind.fields, DPRO_CHANGE_FIELDS)
        if (field->name && field->type == DPRO_CHANGE_RATIO)
            return field;
    return &row->kind.fields[0];
}

bool question_ask(const struct change_row *row, struct job_facts *facts, struct dpro_changes *c)
{
    static const enum dpro_compression in_16_bits = DPRO_COMPRESSION_FP16;
    static const enum dpro_schedule gpipe = DPRO_SCHEDULE_GPIPE;
    static const uint64_t nothing_fused, large = 1 << 30;
    static const double twice = 2;
    static const int64_t millisecond_ns = 1000000;
    static const char *const all = "all", *const bf16 = "bf16";
    static const void *const in_place[] = {&in_16_bits, &nothing_fused};
    const struct dpro_change_field *field = field_to_try(row);
    const uint32_t count = row->kind.argument && row->kind.most != 1 ? 2 : 1;
    const struct {
        const void *value;
        size_t size;
    } tried[] = {[DPRO_CHANGE_SWITCH] = {&count, sizeof count},
                 [DPRO_CHANGE_COUNT] = {&count, sizeof count},
                 [DPRO_CHANGE_SCHEDULE] = {&gpipe, sizeof gpipe},
                 [DPRO_CHANGE_LONG_COUNT] = {&large, sizeof large},
                 [DPRO_CHANGE_BYTES] = {&large, sizeof large},
                 [DPRO_CHANGE_RATE] = {&twice, sizeof twice},
                 [DPRO_CHANGE_RATIO] = {&twice, sizeof twice},
                 [DPRO_CHANGE_TIME] = {&millisecond_ns, sizeof millisecond_ns},
                 [DPRO_CHANGE_ADDED_TIME] = {&millisecond_ns, sizeof millisecond_ns},
                 [DPRO_CHANGE_TEXT] = {&all, sizeof all},
                 [DPRO_CHANGE_PRECISION] = {&bf16, sizeof bf16},
                 [DPRO_CHANGE_COMPRESSION] = {&in_place[0], sizeof in_place[0]},
                 [DPRO_CHANGE_LIMIT] = {&in_place[1], sizeof in_place[1]}};
    if (row->ask)
        row->ask(facts, c);
    else if (field->type >= sizeof tried / sizeof *tried || !tried[field->type].value)
        return false;
    else
        memcpy((char *)c + field->offset, tried[field->type].value, tried[field->type].size);
    return true;
}

/* ---- what the job has ---- */

#define TELL(told, ...) snprintf((told).text, (told).size, __VA_ARGS__)

/* Defines what tells "3 servers"; nothing where there are 0, or it is not known. */
#define TELL_COUNT(name, count, what)                                                              \
    void tell_##name(const struct job_facts *f, struct told_text told)                             \
    {                                                                                              \
        uint32_t n = count;                                                                        \
        if (n > 0)                                                                                 \
            TELL(told, "%u %s%s", n, what, n == 1 ? "" : "s");                                     \
    }

static uint32_t hosts_of(const struct dpro_graph *g)
{
    uint32_t n = 0;
    for (uint32_t r = 0; g && g->rank_hosts && r < g->n_ranks; r++)
        n += g->rank_hosts[r] == r;
    return n;
}

static uint32_t replicas_of(const struct job_facts *f)
{
    return f->model->n_communications == 0 ? ranks_of(f) : size_of(f, DPRO_REPLICATES);
}

static uint32_t modules_of(const struct dpro_model *m)
{
    return m->n_modules > 0 && m->modules[0].is_step ? 0 : m->n_modules;
}

TELL_COUNT(ranks, ranks_of(f), "rank")
TELL_COUNT(replicas, replicas_of(f), "replica")
TELL_COUNT(shards, size_of(f, DPRO_SHARDS), "shard")
TELL_COUNT(tensors, size_of(f, DPRO_TENSORS), "rank")
TELL_COUNT(hosts, hosts_of(f->graph), "host")
TELL_COUNT(servers, sync_n_servers(&f->model->net), "server")
TELL_COUNT(modules, modules_of(f->model), "module")
TELL_COUNT(units, f->graph ? f->graph->n_units : 0, "unit")

void tell_links(const struct job_facts *f, struct told_text told)
{
    const struct model_link *link = &f->model->net.link;
    double mbit = 8e3 / link->byte_ns.value;
    if (link->is_rate_unknown)
        TELL(told, "links of an unknown rate: give a ratio");
    else if (link->within_ns.value > 0 && !link->is_within)
        TELL(told, "links of %.0f Mbit/s, within hosts of %.0f Mbit/s", mbit,
             8e3 / link->within_ns.value);
    else if (link->byte_ns.value > 0)
        TELL(told, "links of %.0f Mbit/s", mbit);
}

void tell_latency(const struct job_facts *f, struct told_text told)
{
    TELL(told, "%.4g us a message", f->model->net.link.message_ns.value / 1e3);
}

void tell_batch(const struct job_facts *f, struct told_text told)
{
    if (f->model->n_memories > 0 && f->model->memories[0].batch_size > 0)
        TELL(told, "a batch of %u a rank", f->model->memories[0].batch_size);
}

void tell_cycles(const struct job_facts *f, struct told_text told)
{
    const struct dpro_strategy *s = &f->model->baseline;
    if (s->cycle_ns > 0)
        TELL(told, "cycles of %.4g ms, up to %.4g MB fused", (double)s->cycle_ns / 1e6,
             s->fuses ? (double)s->fusion_bytes / 1048576 : 0);
}

void tell_buckets(const struct job_facts *f, struct told_text told)
{
    const struct dpro_strategy *s = &f->model->baseline;
    uint64_t most = 0;
    for (uint32_t b = 0; b < s->n_buckets; b++)
        most = MAX(most, bucket_size_bytes(f->model, s, b));
    if (most > 0)
        TELL(told, "%u bucket%s, the largest of %.4g MB", s->n_buckets,
             s->n_buckets == 1 ? "" : "s", (double)most / 1048576);
}

void tell_compression(const struct job_facts *f, struct told_text told)
{
    TELL(told, "%s", dpro_compression_name(f->model->baseline.compression));
}

void tell_pipeline(const struct job_facts *f, struct told_text told)
{
    struct pipeline p = pipeline_of(f);
    if (p.dimension != DPRO_NO_DIMENSION && p.n_micro_batches > 0)
        TELL(told, "%u stages, %u micro-batches, %s", p.n_stages, p.n_micro_batches,
             p.schedule ? dpro_schedule_name(p.schedule) : "another order");
}
