/* ingest/reference/reference.c: trace directories of dPRO's first implementation (MLSys 2022), as a
 * whole.
 *
 * Its files speak of tensors by number: a timeline's process "X/HorovodAllreduce.12_0", a chunk's
 * name "allreduce.12+13.SEND" and the graph's node of the tensor all mean gradient 12. Here they
 * get one name, the gradient's; its size comes from the shapes of what ops make. When a tensor was
 * handed over no event tells, but the graph does: when the ops that its node takes from had run. */
#include "ingest/reference/reference.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "ingest/load.h"

struct reference_part *reference_part_of(struct trace_part *part)
{
    if (!part->reference)
        part->reference = calloc(1, sizeof *part->reference);
    return part->reference;
}

void reference_part_destroy(struct reference_part *reference)
{
    if (!reference)
        return;
    array_fini(&reference->gradients);
    array_fini(&reference->outputs);
    array_fini(&reference->chunks);
    array_fini(&reference->hops);
    free(reference);
}

/* ---- one rank's files ---- */

static void put_file(struct source **at, struct source *source)
{
    if (!*at)
        *at = source;
}

/* Those of a rank; what it has not itself, a graph and names, it has from the first that has. */
static struct reference_files files_of(struct loader *loader, int rank)
{
    struct reference_files own = {0}, any = {0};
    for (size_t i = 0; i < loader->list.n; i++) {
        struct source *source = &loader->list.at[i];
        if (!source_usable(source))
            continue;
        for (int pass = source->rank == rank ? 0 : 1; pass < 2; pass++) {
            struct reference_files *files = pass == 0 ? &own : &any;
            if (source->kind == DPRO_FILE_GML)
                put_file(&files->dag, source);
            else if (source->kind == DPRO_FILE_TF_METADATA)
                put_file(&files->metadata, source);
            else if (source->kind == DPRO_FILE_GRADIENTS)
                put_file(&files->gradients, source);
            else if (source->kind == DPRO_FILE_RINGS)
                put_file(&files->rings, source);
            else if (pass == 0 && source->kind == DPRO_FILE_TF_CHROME)
                put_file(&own.profile, source);
            else if (pass == 0 && source->part.timeline)
                put_file(&own.timeline, source);
            else if (pass == 0 && source->kind == DPRO_FILE_CHUNKS)
                put_file(&own.chunks, source);
        }
    }
    own.dag = own.dag || own.metadata ? own.dag : any.dag;
    own.metadata = own.metadata ? own.metadata : any.metadata;
    own.gradients = own.gradients ? own.gradients : any.gradients;
    own.rings = own.rings ? own.rings : any.rings;
    return own;
}

struct source *reference_graph(const struct reference_files *files)
{
    return files->dag ? files->dag : files->metadata;
}

/* ---- names ---- */

static const char *text_of(const struct source *source, uint32_t id)
{
    return strtab_get(&source->part.names, id);
}

/* What the reference puts in front of names in graphs of its own. */
static const char *plain_name(const char *name)
{
    static const char *const prefixes[] = {"FW.", "BW.", "UPDATE_.", "Comp.",
                                           "StatefulPartitionedCall/"};
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++) {
        size_t len = strlen(prefixes[i]);
        if (strncmp(name, prefixes[i], len) == 0 && name[len])
            return plain_name(name + len);
    }
    return name;
}

/* Whether a node or a timeline's process communicates a tensor. */
static bool is_communication(const char *name)
{
    return strcasestr(name, "allreduce") || strstr(name, "PushPull") ||
           strncmp(name, "Comm.", 5) == 0;
}

/* "X/HorovodAllreduce.12_0", "Comm.12", "X/BytePSPushPull_12", "byteps.gradient_12": the tensor's
 * number; NO_ID: none. */
static uint32_t number_in(const char *name)
{
    const char *at = strstr(name, "PushPull"), *gradient = strstr(name, "gradient_");
    bool numbered = gradient && gradient[9] >= '0' && gradient[9] <= '9';
    at = at         ? at + strlen("PushPull")
         : numbered ? gradient + strlen("gradient")
                    : strrchr(name, '.');
    if (!at || (*at != '.' && *at != '_') || at[1] < '0' || at[1] > '9')
        return NO_ID;
    char *end;
    unsigned long number = strtoul(at + 1, &end, 10);
    return (*end == '\0' || *end == '_') && number < NO_ID ? (uint32_t)number : NO_ID;
}

static uint32_t intern(struct source *source, const char *text, bool *no_memory)
{
    uint32_t id = strtab_add(&source->part.names, text, strlen(text));
    *no_memory |= id == STRTAB_FULL;
    return *no_memory ? 0 : id;
}

static bool ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), len = strlen(end);
    return len > 0 && len <= n && strcmp(text + n - len, end) == 0;
}

/* The number of a tensor by its name, where that holds none: that of the gradient it ends in. */
static uint32_t number_of(const struct reference_files *files, const char *name)
{
    uint32_t number = number_in(name);
    const struct reference_part *names = files->gradients ? files->gradients->part.reference : NULL;
    for (uint32_t i = 0; names && number == NO_ID && i < names->gradients.n; i++) {
        const char *gradient = text_of(files->gradients, names->gradients.at[i].name);
        if (ends_with(name, gradient))
            number = i;
    }
    return number;
}

/* ---- graphs ---- */

/* Nodes of dag.gml get their types and sizes from metadata.json, which is no second graph then. */
static int describe_nodes(struct source *dag, const struct source *metadata)
{
    struct trace_part *part = &dag->part;
    struct map described = {0}; /* name id + 1 in metadata -> node */
    bool no_memory = false;
    for (size_t n = 0; metadata && n < metadata->part.dfg_nodes.n && !no_memory; n++)
        no_memory = map_set(&described, (uint64_t)metadata->part.dfg_nodes.at[n].name + 1, n) < 0;
    for (size_t n = 0; n < part->dfg_nodes.n && !no_memory; n++) {
        const char *name = plain_name(text_of(dag, part->dfg_nodes.at[n].name));
        uint64_t at;
        uint32_t known =
            metadata ? strtab_find(&metadata->part.names, name, strlen(name)) : STRTAB_FULL;
        part->dfg_nodes.at[n].name = intern(dag, name, &no_memory);
        if (known == STRTAB_FULL || !map_get(&described, (uint64_t)known + 1, &at))
            continue;
        const struct dfg_node *node = &metadata->part.dfg_nodes.at[at];
        part->dfg_nodes.at[n].type = intern(dag, text_of(metadata, node->type), &no_memory);
        part->dfg_nodes.at[n].size_bytes = node->size_bytes;
    }
    map_fini(&described);
    return no_memory ? -1 : 0;
}

void reference_tensor_name(const struct loader *loader, const char *raw, char *name, size_t size)
{
    uint32_t number = number_in(raw);
    for (size_t i = 0; i < loader->list.n && number != NO_ID; i++) {
        const struct reference_part *reference = loader->list.at[i].part.reference;
        if (!reference || number >= reference->gradients.n || !reference->gradients.at[number].name)
            continue;
        snprintf(name, size, "%s",
                 text_of(&loader->list.at[i], reference->gradients.at[number].name));
        return;
    }
    if (number == NO_ID)
        snprintf(name, size, "%s", raw);
    else
        snprintf(name, size, "tensor %u", number);
}

/* Nodes that communicate are Horovod's, whatever wrote the graph calls them; BytePS's are called by
 * their tensors. */
static int type_communication(const struct loader *loader, struct source *graph)
{
    bool no_memory = false;
    for (size_t n = 0; n < graph->part.dfg_nodes.n && !no_memory; n++) {
        struct dfg_node *node = &graph->part.dfg_nodes.at[n];
        const char *raw = text_of(graph, node->name);
        bool pushes = strstr(raw, "PushPull") != NULL;
        char name[1024] = "BytePSPushPull.";
        if (pushes) {
            size_t len = strlen(name);
            reference_tensor_name(loader, raw, name + len, sizeof name - len);
            node->name = intern(graph, name, &no_memory);
            node->type = intern(graph, "BytepsPushPull", &no_memory);
        } else if (!node->type && is_communication(raw)) {
            node->type = intern(graph, "HorovodAllreduce", &no_memory);
        }
    }
    return no_memory ? -1 : 0;
}

/* ---- tensors ---- */

uint32_t reference_find_node(const struct source *graph, const char *name, uint32_t number)
{
    uint32_t by_number = NO_ID;
    if (!graph)
        return NO_ID;
    uint32_t id = strtab_find(&graph->part.names, name, strlen(name));
    for (uint32_t n = 0; n < graph->part.dfg_nodes.n; n++) {
        const struct dfg_node *node = &graph->part.dfg_nodes.at[n];
        const char *text = text_of(graph, node->name);
        if (id != STRTAB_FULL && node->name == id)
            return n;
        if (number != NO_ID && by_number == NO_ID && is_communication(text) &&
            number_in(text) == number)
            by_number = n;
    }
    return by_number;
}

static const struct tensor_shape *find_output(const struct source *metadata, const char *name)
{
    const struct reference_part *reference = metadata ? metadata->part.reference : NULL;
    uint32_t id = metadata ? strtab_find(&metadata->part.names, name, strlen(name)) : STRTAB_FULL;
    for (size_t i = 0; reference && id != STRTAB_FULL && i < reference->outputs.n; i++)
        if (reference->outputs.at[i].name == id)
            return &reference->outputs.at[i];
    return NULL;
}

static const char *type_of_bytes(uint32_t item_bytes)
{
    return item_bytes == 2 ? "float16" : item_bytes == 8 ? "float64" : "float32";
}

static int size_tensor(struct source *timeline, struct timeline_tensor *tensor,
                       const struct tensor_shape *shape)
{
    bool no_memory = false;
    if (!shape || !shape->numel || tensor->numel)
        return 0;
    tensor->numel = shape->numel;
    tensor->dtype = intern(timeline, type_of_bytes(shape->item_bytes), &no_memory);
    return no_memory ? -1 : 0;
}

/* What a node takes: for a tensor whose gradient no op makes under its name. */
static struct tensor_shape shape_of_input(const struct source *graph, uint32_t node)
{
    struct tensor_shape shape = {.item_bytes = 4};
    const struct trace_part *part = &graph->part;
    for (uint32_t i = 0; i < part->dfg_nodes.at[node].n_inputs && shape.numel == 0; i++) {
        const struct dfg_input *input =
            &part->dfg_inputs.at[part->dfg_nodes.at[node].first_input + i];
        if (!input->control && input->output == 0)
            shape.numel = part->dfg_nodes.at[input->node].size_bytes / shape.item_bytes;
    }
    return shape;
}

/* One name for a tensor, in its timeline and in the graph, and its size. */
static int name_tensor(const struct reference_files *files, struct timeline_tensor *tensor)
{
    struct source *graph = reference_graph(files);
    const char *name = text_of(files->timeline, tensor->name);
    uint32_t number = number_of(files, name), node = reference_find_node(graph, name, number);
    const struct reference_part *names = files->gradients ? files->gradients->part.reference : NULL;
    bool no_memory = false;
    const struct tensor_shape *listed =
        names && number < names->gradients.n && names->gradients.at[number].name
            ? &names->gradients.at[number]
            : NULL;
    if (size_tensor(files->timeline, tensor, listed) < 0)
        return -1;
    if (listed) {
        const char *gradient = text_of(files->gradients, listed->name);
        if (size_tensor(files->timeline, tensor, find_output(files->metadata, gradient)) < 0)
            return -1;
        tensor->name = intern(files->timeline, gradient, &no_memory);
        if (node == NO_ID) /* another rank's timeline has named it */
            node = reference_find_node(graph, gradient, NO_ID);
        else
            graph->part.dfg_nodes.at[node].name = intern(graph, gradient, &no_memory);
    }
    if (node != NO_ID && !no_memory) {
        struct tensor_shape shape = shape_of_input(graph, node);
        if (size_tensor(files->timeline, tensor, &shape) < 0)
            return -1;
    }
    return no_memory ? -1 : 0;
}

uint64_t reference_tensor_bytes(const struct loader *loader, const char *name)
{
    const char *part = strstr(name, "~PART");
    char plain[1024];
    snprintf(plain, sizeof plain, "%.*s", (int)(part ? part - name : (long)strlen(name)), name);
    for (size_t i = 0; i < loader->list.n; i++) {
        const struct source *source = &loader->list.at[i];
        const struct reference_part *reference = source->part.reference;
        const struct tensor_shape *shape = find_output(source, plain);
        for (size_t g = 0; reference && !shape && g < reference->gradients.n; g++)
            if (strcmp(text_of(source, reference->gradients.at[g].name), plain) == 0)
                shape = &reference->gradients.at[g];
        uint64_t bytes;
        if (shape && shape->numel &&
            !__builtin_mul_overflow(shape->numel, shape->item_bytes ? shape->item_bytes : 4,
                                    &bytes))
            return bytes;
    }
    return 0;
}

/* ---- all of it ---- */

static int describe_graphs(struct loader *loader)
{
    for (size_t i = 0; i < loader->list.n; i++) {
        struct source *source = &loader->list.at[i];
        if (!source_usable(source) || source->kind != DPRO_FILE_GML)
            continue;
        struct reference_files files = files_of(loader, source->rank);
        if (describe_nodes(source, files.metadata) < 0)
            return -1;
    }
    for (size_t i = 0; i < loader->list.n; i++) {
        struct source *source = &loader->list.at[i];
        bool graph = source->kind == DPRO_FILE_GML || source->kind == DPRO_FILE_TF_METADATA;
        if (source_usable(source) && graph && type_communication(loader, source) < 0)
            return -1;
    }
    return 0;
}

static int join_rank(struct loader *loader, int rank, int world, int32_t first, int32_t last)
{
    struct reference_files files = files_of(loader, rank);
    struct timeline *timeline = files.timeline ? files.timeline->part.timeline : NULL;
    int status = 0;
    if (timeline && timeline->writer == TIMELINE_HOROVOD && (files.profile || files.gradients)) {
        for (size_t t = 0; t < timeline->tensors.n && status == 0; t++)
            status = name_tensor(&files, &timeline->tensors.at[t]);
        if (status == 0 && files.profile)
            status = reference_trim_timeline(&files, first, last);
        if (status == 0 && files.profile && reference_graph(&files))
            status = reference_hand_over(&files, first, last);
    }
    if (status == 0 && files.chunks)
        status = chunk_log_build(&files, rank, world);
    return status;
}

/* Ranks count from 0, as many as there are files of. */
static int world_of(const struct loader *loader)
{
    int world = 0;
    for (size_t i = 0; i < loader->list.n; i++)
        if (source_usable(&loader->list.at[i]) && loader->list.at[i].rank >= world)
            world = loader->list.at[i].rank + 1;
    return world;
}

static bool is_log(const struct source *source)
{
    return source_usable(source) && source->rank >= 0 &&
           (source->kind == DPRO_FILE_TIMELINE || source->kind == DPRO_FILE_CHUNKS);
}

/* Of each rank that has any: a rank's number may be whatever a file says. */
static bool is_first_log(const struct loader *loader, size_t index)
{
    const struct source *all = loader->list.at;
    bool is = is_log(&all[index]);
    for (size_t i = 0; i < index && is; i++)
        is = !is_log(&all[i]) || all[i].rank != all[index].rank;
    return is;
}

int reference_join(struct loader *loader, struct dpro_error *err)
{
    int32_t first = INT32_MIN, last = INT32_MAX;
    int world = world_of(loader), status = describe_graphs(loader);
    for (size_t i = 0; i < loader->list.n && status == 0; i++)
        if (loader->list.at[i].kind == DPRO_FILE_TF_CHROME && loader->list.at[i].rank >= 0)
            status = reference_common_steps(&loader->list.at[i], &first, &last);
    for (size_t i = 0; i < loader->list.n && status == 0; i++)
        if (is_first_log(loader, i))
            status = join_rank(loader, loader->list.at[i].rank, world, first, last);
    return status < 0 ? dpro_error_nomem(err) : 0;
}
