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

/* As many as recorded, in an order that any pipeline can have. */
void ask_pipeline(struct job_facts *f, struct dpro_changes *c)
{
    struct pipeline p = {.dimension = DPRO_NO_DIMENSION};
    if (f->graph)
        pipeline_find(f->graph, f->arena, &p);
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

static void tell_links(const struct model_link *link, char *text, size_t size)
{
    double mbit = 8e3 / link->byte_ns.value;
    if (link->is_rate_unknown)
        snprintf(text, size, "links of an unknown rate: give a ratio");
    else if (link->within_ns.value > 0 && !link->is_within)
        snprintf(text, size, "links of %.0f Mbit/s, within hosts of %.0f Mbit/s", mbit,
                 8e3 / link->within_ns.value);
    else if (link->byte_ns.value > 0)
        snprintf(text, size, "links of %.0f Mbit/s", mbit);
}

static void tell_buckets(const struct dpro_model *m, char *text, size_t size)
{
    uint64_t most = 0;
    for (uint32_t b = 0; b < m->baseline.n_buckets; b++)
        most = MAX(most, bucket_size_bytes(m, &m->baseline, b));
    if (most > 0)
        snprintf(text, size, "%u bucket%s, the largest of %.4g MB", m->baseline.n_buckets,
                 m->baseline.n_buckets == 1 ? "" : "s", (double)most / 1048576);
}

static void tell_pipeline(const struct job_facts *f, char *text, size_t size)
{
    struct pipeline p = {.dimension = DPRO_NO_DIMENSION};
    if (f->graph)
        pipeline_find(f->graph, f->arena, &p);
    if (p.dimension != DPRO_NO_DIMENSION && p.n_micro_batches > 0)
        snprintf(text, size, "%u stages, %u micro-batches, %s", p.n_stages, p.n_micro_batches,
                 p.schedule ? dpro_schedule_name(p.schedule) : "another order");
}

/* "3 servers"; not known: 0. */
static void tell_count(uint32_t n, const char *what, char *text, size_t size)
{
    if (n > 0)
        snprintf(text, size, "%u %s%s", n, what, n == 1 ? "" : "s");
}

static uint32_t hosts_of(const struct dpro_graph *g)
{
    uint32_t n = 0;
    for (uint32_t r = 0; g && g->rank_hosts && r < g->n_ranks; r++)
        n += g->rank_hosts[r] == r;
    return n;
}

void question_tell(const struct change_row *row, const struct job_facts *f, char *text, size_t size)
{
    const struct dpro_model *m = f->model;
    uint32_t replicas = size_of(f, DPRO_REPLICATES);
    switch (row->tell) {
    case TELL_NOTHING:
        break;
    case TELL_RANKS:
        tell_count(ranks_of(f), "rank", text, size);
        break;
    case TELL_REPLICAS:
        tell_count(m->n_communications == 0 ? ranks_of(f) : replicas, "replica", text, size);
        break;
    case TELL_SHARDS:
        tell_count(size_of(f, DPRO_SHARDS), "shard", text, size);
        break;
    case TELL_TENSORS:
        tell_count(size_of(f, DPRO_TENSORS), "rank", text, size);
        break;
    case TELL_HOSTS:
        tell_count(hosts_of(f->graph), "host", text, size);
        break;
    case TELL_LINKS:
        tell_links(&m->net.link, text, size);
        break;
    case TELL_LATENCY:
        snprintf(text, size, "%.4g us a message", m->net.link.message_ns.value / 1e3);
        break;
    case TELL_SERVERS:
        tell_count(sync_n_servers(&m->net), "server", text, size);
        break;
    case TELL_MODULES:
        tell_count(m->n_modules > 0 && m->modules[0].is_step ? 0 : m->n_modules, "module", text,
                   size);
        break;
    case TELL_BATCH:
        if (m->n_memories > 0 && m->memories[0].batch_size > 0)
            snprintf(text, size, "a batch of %u a rank", m->memories[0].batch_size);
        break;
    case TELL_CYCLES:
        if (m->baseline.cycle_ns > 0)
            snprintf(text, size, "cycles of %.4g ms, up to %.4g MB fused",
                     (double)m->baseline.cycle_ns / 1e6,
                     m->baseline.fuses ? (double)m->baseline.fusion_bytes / 1048576 : 0);
        break;
    case TELL_BUCKETS:
        tell_buckets(m, text, size);
        break;
    case TELL_COMPRESSION:
        snprintf(text, size, "%s", dpro_compression_name(m->baseline.compression));
        break;
    case TELL_UNITS:
        tell_count(f->graph ? f->graph->n_units : 0, "unit", text, size);
        break;
    case TELL_PIPELINE:
        tell_pipeline(f, text, size);
        break;
    }
}
