/* ingest/reference/names.c: what files of dPRO's first implementation are called. They are known by
 * what they hold; the name tells only of one that holds nothing what it should have held. */
#include <fnmatch.h>
#include <string.h>

#include "ingest/load.h"
#include "ingest/reference/reference.h"

enum found_in { RANK_FOLDER, ANYWHERE, BESIDE_BYTEPS_FILES };

static const struct known_name {
    const char *pattern;
    const char *holds;
    enum found_in where; /* common names mean something only where the others are */
} known_names[] = {
    {"trace.json", "profile", RANK_FOLDER},
    {"trace.json.gz", "profile", RANK_FOLDER},
    {"comm.json", "communication of tensors", RANK_FOLDER},
    {"comm_detail.json", "chunks of rings", RANK_FOLDER},
    {"metadata.json", "shapes of tensors", RANK_FOLDER},
    {"dag.gml", "graph", RANK_FOLDER},
    {"symbol_debug_str.txt", "graph", RANK_FOLDER},
    {"gradient_name_list.json", "names of gradients", RANK_FOLDER},
    {"gradient_name2ID.json", "names of gradients", RANK_FOLDER},
    {"nccl_rank_graph.json", "rings", RANK_FOLDER},
    {"comm_timeline.json", "pushes and pulls", ANYWHERE},
    {"server_timeline.json", "work of servers", ANYWHERE},
    {"key_dict.txt", "keys of tensors", ANYWHERE},
    {"*_[0-9]*.log", "pushes and pulls", BESIDE_BYTEPS_FILES},
    {"rdma_[0-9]*", "pushes and pulls", BESIDE_BYTEPS_FILES},
    {"*_[0-9]*.txt", "work of a server", BESIDE_BYTEPS_FILES},
};

static const struct known_name *find_name(const char *path)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    for (size_t i = 0; i < sizeof known_names / sizeof *known_names; i++)
        if (fnmatch(known_names[i].pattern, name, 0) == 0)
            return &known_names[i];
    return NULL;
}

bool reference_is_of_rank(const char *path)
{
    const struct known_name *known = find_name(path);
    return known && known->where == RANK_FOLDER;
}

static bool is_of_byteps(enum dpro_file_kind kind)
{
    return kind == DPRO_FILE_BYTEPS_LOG || kind == DPRO_FILE_BYTEPS_SERVER ||
           kind == DPRO_FILE_BYTEPS_KEYS || kind == DPRO_FILE_BYTEPS_TIMELINE;
}

static bool is_of_reference(enum dpro_file_kind kind)
{
    return kind == DPRO_FILE_TF_CHROME || kind == DPRO_FILE_TF_METADATA || kind == DPRO_FILE_GML ||
           kind == DPRO_FILE_GRADIENTS || kind == DPRO_FILE_CHUNKS || kind == DPRO_FILE_RINGS ||
           is_of_byteps(kind);
}

/* Whether nothing was found in a file, and nothing has been said of it yet. */
static bool is_silently_passed_over(const struct source *source)
{
    bool said = source->rc < 0 || source->fail != JSON_OK || source->damage ||
                source->kind == DPRO_FILE_KINETO || source->kind == DPRO_FILE_MXNET ||
                source->kind == DPRO_FILE_TF_CHROME;
    bool read = source->kind == DPRO_FILE_OTHER
                    ? source->part.n_events > 0 /* another copy is used */
                    : source_usable(source);
    return !said && !read;
}

void reference_warn_passed_over(struct loader *loader)
{
    bool any = false, byteps = false;
    for (size_t i = 0; i < loader->list.n; i++) {
        any |= is_of_reference(loader->list.at[i].kind);
        byteps |= is_of_byteps(loader->list.at[i].kind);
    }
    for (size_t i = 0; any && i < loader->list.n; i++) {
        const struct source *source = &loader->list.at[i];
        const struct known_name *known = find_name(source->path);
        if (!known || !is_silently_passed_over(source) ||
            (known->where == BESIDE_BYTEPS_FILES && !byteps))
            continue;
        trace_warn(loader->trace, &loader->options->sink,
                   "%s: %sno %s in it; it is passed over; copy or record the file again",
                   source->path, source->size_bytes ? "" : "empty, ", known->holds);
    }
}
