/* From what the caller named to a list of files, in an order that depends on names only. */
#include <errno.h>
#include <fts.h>
#include <glob.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ingest/load.h"

enum { MAX_FOLDER_DEPTH = 4 }; /* TRACE/rank0/plugins/profile/<time> */

static void add_source(struct source_list *list, const char *path, bool named, int attempt)
{
    struct source fresh = {
        .path = mem_copy_string(path), .named = named, .rank = -1, .attempt = attempt};
    struct stat st;
    if (stat(path, &st) == 0) {
        fresh.device = st.st_dev;
        fresh.inode = st.st_ino;
        fresh.size_bytes = (uint64_t)st.st_size;
    }
    array_push(list, fresh);
}

/* Of a folder's tree, but for what is hidden. */
static int add_tree(struct source_list *list, FTS *tree, const char *path, struct dpro_error *err)
{
    for (FTSENT *at; (at = fts_read(tree)) != NULL;) {
        bool leads_nowhere = at->fts_info == FTS_SLNONE || at->fts_info == FTS_NS;
        int attempt = at->fts_level > 0 ? (int)at->fts_parent->fts_number : 0;
        if (at->fts_level == 0 && at->fts_info == FTS_DNR)
            return dpro_error_set(err, DPRO_EIO, "%s: cannot read the folder: %s", path,
                                  strerror(at->fts_errno));
        if ((at->fts_level > 0 && *at->fts_name == '.') ||
            (at->fts_info == FTS_D && at->fts_level > MAX_FOLDER_DEPTH))
            fts_set(tree, at, FTS_SKIP);
        else if (at->fts_info == FTS_D)
            at->fts_number = path_numbered(path_name(at->fts_path), "attempt") >= 0
                                 ? path_numbered(path_name(at->fts_path), "attempt")
                                 : attempt;
        /* dpro profile renames what it has written whole; of what is not there, such as a link that
         * leads nowhere, reading says what is wrong */
        else if (leads_nowhere ? strstr(at->fts_name, ".json") != NULL
                               : at->fts_info == FTS_F && !text_ends(at->fts_name, ".part"))
            add_source(list, at->fts_path, false, attempt);
    }
    return 0;
}

static int add_folder(struct source_list *list, const char *path, struct dpro_error *err)
{
    SCRATCH char *root = mem_copy_string(path);
    for (size_t len = strlen(root); len > 1 && root[len - 1] == '/'; len--)
        root[len - 1] = '\0';
    FTS *tree = fts_open((char *const[]){root, NULL}, FTS_LOGICAL | FTS_NOCHDIR, NULL);
    if (!tree)
        mem_fail();
    int rc = WITHIN_SCOPE(DPRO_ENOMEM, add_tree(list, tree, path, err));
    fts_close(tree);
    memory_check();
    return rc;
}

static int add_path(struct source_list *list, const char *path, bool named, struct dpro_error *err)
{
    struct stat st;
    if (stat(path, &st) == 0 && S_ISDIR(st.st_mode))
        return add_folder(list, path, err);
    add_source(list, path, named, 0);
    return 0;
}

static int add_found(struct source_list *list, const glob_t *found, struct dpro_error *err)
{
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < found->gl_pathc; i++)
        rc = add_path(list, found->gl_pathv[i], false, err);
    return rc;
}

static int add_glob(struct source_list *list, const char *pattern, struct dpro_error *err)
{
    glob_t found = {0};
    int failed = glob(pattern, GLOB_BRACE | GLOB_TILDE, NULL, &found);
    int rc = failed == 0
                 ? WITHIN_SCOPE(DPRO_ENOMEM, add_found(list, &found, err))
                 : dpro_error_set(err, DPRO_EIO,
                                  "%s: no file matches; name a trace's folder or files", pattern);
    globfree(&found);
    if (failed == GLOB_NOSPACE)
        mem_fail();
    memory_check();
    return rc;
}

ORDER(by_path, struct source, strcmp(x->path, y->path) ?: ASCENDING(named));

int sources_find(struct source_list *list, const char *const *paths, size_t n_paths,
                 struct dpro_error *err)
{
    int rc = 0;
    for (size_t i = 0; i < n_paths && rc == 0; i++) {
        if (access(paths[i], F_OK) == 0)
            rc = add_path(list, paths[i], true, err);
        else if (errno == ENOENT && strpbrk(paths[i], "*?[{"))
            rc = add_glob(list, paths[i], err);
        else
            rc =
                dpro_error_set(err, DPRO_EIO, "%s: cannot open: %s; name a trace's folder or files",
                               paths[i], strerror(errno));
    }
    array_sort(list, by_path);
    return rc;
}
