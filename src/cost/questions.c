/* What can be asked of a job: each kind of what-if is tried with a value that makes sense in any
 * job that has what it takes. */
#include "cost/questions.h"

#include "cost/buckets.h"
#include "cost/cost.h"
#include "cost/model_memory.h"
#include "cost/sync.h"
#include "cost/topology.h"
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
    static const uint64_t nothing_fused;
    const struct dpro_change_field *field = field_to_try(row);
    void *at = (char *)c + field->offset;
    if (row->ask) {
        row->ask(facts, c);
        return true;
    }
    switch (field->type) {
    case DPRO_CHANGE_SWITCH:
    case DPRO_CHANGE_COUNT:
        *(uint32_t *)at = field->type == DPRO_CHANGE_SWITCH ? 1 : 2;
        return true;
    case DPRO_CHANGE_SCHEDULE:
        *(enum dpro_schedule *)at = DPRO_SCHEDULE_GPIPE;
        return true;
    case DPRO_CHANGE_LONG_COUNT:
    case DPRO_CHANGE_BYTES:
        *(uint64_t *)at = 1 << 30;
        return true;
    case DPRO_CHANGE_RATE:
    case DPRO_CHANGE_RATIO:
        *(double *)at = 2;
        return true;
    case DPRO_CHANGE_TIME:
    case DPRO_CHANGE_ADDED_TIME:
        *(int64_t *)at = 1000000;
        return true;
    case DPRO_CHANGE_TEXT:
    case DPRO_CHANGE_PRECISION:
        *(const char **)at = field->type == DPRO_CHANGE_TEXT ? "all" : "bf16";
        return true;
    case DPRO_CHANGE_COMPRESSION:
        *(const enum dpro_compression **)at = &in_16_bits;
        return true;
    case DPRO_CHANGE_LIMIT:
        *(const uint64_t **)at = &nothing_fused;
        return true;
    default:
        return false;
    }
}

/* ---- what the job has ---- */

void tell_ranks(const struct job_facts *f, char *text, size_t size)
{
    snprintf(text, size, "%u rank%s", ranks_of(f), ranks_of(f) == 1 ? "" : "s");
}

void tell_replicas(const struct job_facts *f, char *text, size_t size)
{
    uint32_t n = size_of(f, DPRO_REPLICATES), shards = size_of(f, DPRO_SHARDS);
    if (n > 0 || f->model->n_communications == 0)
        snprintf(text, size, "%u replicas", n > 0 ? n : ranks_of(f));
    else
        snprintf(text, size, shards > 0 ? "no replicas, %u shards" : "no replicas", shards);
}

static void tell_dimension(const struct job_facts *f, enum dpro_parallelism parallelism, char *text,
                           size_t size)
{
    if (size_of(f, parallelism) > 0)
        snprintf(text, size, "over %u ranks", size_of(f, parallelism));
}

void tell_shards(const struct job_facts *f, char *text, size_t size)
{
    tell_dimension(f, DPRO_SHARDS, text, size);
}

void tell_tensors(const struct job_facts *f, char *text, size_t size)
{
    tell_dimension(f, DPRO_TENSORS, text, size);
}

void tell_hosts(const struct job_facts *f, char *text, size_t size)
{
    uint32_t n = 0;
    for (uint32_t r = 0; f->graph && f->graph->rank_hosts && r < f->graph->n_ranks; r++)
        n += f->graph->rank_hosts[r] == r;
    if (n > 0)
        snprintf(text, size, "%u host%s", n, n == 1 ? "" : "s");
}

/* "940 Mbit/s", "47.1 Gbit/s" */
static void tell_rate(double byte_ns, const char *of, char *text, size_t size)
{
    double mbit = 8e3 / byte_ns;
    size_t n = strlen(text);
    snprintf(text + n, size - n, mbit < 9999.5 ? "%s%.0f Mbit/s" : "%s%.1f Gbit/s", of,
             mbit < 9999.5 ? mbit : mbit / 1e3);
}

void tell_links(const struct job_facts *f, char *text, size_t size)
{
    const struct model_link *link = &f->model->net.link;
    if (link->is_rate_unknown)
        snprintf(text, size, "links of an unknown rate: give a ratio");
    else if (link->byte_ns.value > 0)
        tell_rate(link->byte_ns.value, "links of ", text, size);
    if (link->within_ns.value > 0 && !link->is_within)
        tell_rate(link->within_ns.value, ", within hosts of ", text, size);
}

void tell_latency(const struct job_facts *f, char *text, size_t size)
{
    snprintf(text, size, "%.4g us a message", f->model->net.link.message_ns.value / 1e3);
}

void tell_servers(const struct job_facts *f, char *text, size_t size)
{
    uint32_t n = sync_n_servers(&f->model->net);
    if (n > 0)
        snprintf(text, size, "%u server%s", n, n == 1 ? "" : "s");
}

void tell_modules(const struct job_facts *f, char *text, size_t size)
{
    uint32_t n = f->model->n_modules;
    if (n > 0 && f->model->modules[0].is_step)
        snprintf(text, size, "the step as a whole");
    else if (n > 0)
        snprintf(text, size, "%u modules%s", n, f->model->autocast ? ", under autocast" : "");
}

void tell_batch(const struct job_facts *f, char *text, size_t size)
{
    if (f->model->n_memories > 0 && f->model->memories[0].batch_size > 0)
        snprintf(text, size, "a batch of %u a rank", f->model->memories[0].batch_size);
}

void tell_cycles(const struct job_facts *f, char *text, size_t size)
{
    const struct dpro_strategy *as_it_ran = &f->model->baseline;
    if (as_it_ran->cycle_ns > 0 && as_it_ran->fuses)
        snprintf(text, size, "cycles of %.4g ms, up to %.4g MB fused",
                 (double)as_it_ran->cycle_ns / 1e6, (double)as_it_ran->fusion_bytes / 1048576);
    else if (as_it_ran->cycle_ns > 0)
        snprintf(text, size, "cycles of %.4g ms", (double)as_it_ran->cycle_ns / 1e6);
}

void tell_buckets(const struct job_facts *f, char *text, size_t size)
{
    const struct dpro_strategy *as_it_ran = &f->model->baseline;
    uint64_t most = 0;
    for (uint32_t b = 0; b < as_it_ran->n_buckets; b++)
        most = MAX(most, bucket_size_bytes(f->model, as_it_ran, b));
    if (most > 0)
        snprintf(text, size, "%u bucket%s, the largest of %.4g MB", as_it_ran->n_buckets,
                 as_it_ran->n_buckets == 1 ? "" : "s", (double)most / 1048576);
}

void tell_compression(const struct job_facts *f, char *text, size_t size)
{
    snprintf(text, size, "%s", dpro_compression_name(f->model->baseline.compression));
}

void tell_units(const struct job_facts *f, char *text, size_t size)
{
    if (f->graph && f->graph->n_units > 0)
        snprintf(text, size, "%u units", f->graph->n_units);
}

void tell_pipeline(const struct job_facts *f, char *text, size_t size)
{
    struct pipeline p = {.dimension = DPRO_NO_DIMENSION};
    if (f->graph)
        pipeline_find(f->graph, f->arena, &p);
    if (p.dimension != DPRO_NO_DIMENSION && p.n_micro_batches > 0)
        snprintf(text, size, "%u stages, %u micro-batches, %s", p.n_stages, p.n_micro_batches,
                 p.schedule ? dpro_schedule_name(p.schedule) : "another order");
}
