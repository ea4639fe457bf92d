/* From what the caller named to a list of files, in an order that depends on names only. */
#include <dirent.h>
#include <errno.h>
#include <glob.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ingest/load.h"

enum { MAX_FOLDER_DEPTH = 4 }; /* TRACE/rank0/plugins/profile/<time> */

/* Of a folder attempt<K>: K, else `otherwise`. */
static int attempt_of(const char *path, int otherwise)
{
    size_t len = strlen(path), digits;
    while (len > 0 && path[len - 1] == '/')
        len--;
    for (digits = 0; digits < len && isdigit((unsigned char)path[len - 1 - digits]); digits++)
        ;
    const char *name = path + len - digits - strlen("attempt");
    bool is_one = digits >= 1 && digits <= 6 && len >= digits + strlen("attempt") &&
                  memcmp(name, "attempt", strlen("attempt")) == 0 &&
                  (name == path || name[-1] == '/');
    return is_one ? atoi(path + len - digits) : otherwise;
}

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

static int not_hidden(const struct dirent *entry)
{
    return entry->d_name[0] != '.';
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static int add_folder(struct source_list *list, const char *path, int depth, bool named,
                      int attempt, struct dpro_error *err);

static void add_entries(struct source_list *list, const char *path, int depth, int attempt,
                        struct dirent *const *entries, int n)
{
    int len = (int)strlen(path);
    attempt = attempt_of(path, attempt);
    while (len > 1 && path[len - 1] == '/')
        len--;
    for (int i = 0; i < n; i++) {
        const char *name = entries[i]->d_name;
        struct stat st;
        SCRATCH char *full = mem_format("%.*s/%s", len, path, name);
        bool there = stat(full, &st) == 0;
        /* dpro profile renames what it has written whole; of what is not there, such as a link that
         * leads nowhere, reading says what is wrong */
        bool wanted = there ? S_ISREG(st.st_mode) && !text_ends(name, ".part")
                            : strstr(name, ".json") != NULL;
        if (wanted)
            add_source(list, full, false, attempt);
        else if (there && S_ISDIR(st.st_mode) && depth < MAX_FOLDER_DEPTH)
            add_folder(list, full, depth + 1, false, attempt, NULL); /* fails only where named */
    }
}

static int add_folder(struct source_list *list, const char *path, int depth, bool named,
                      int attempt, struct dpro_error *err)
{
    struct dirent **entries;
    int n = scandir(path, &entries, not_hidden, by_name);
    if (n < 0)
        return named ? dpro_error_set(err, DPRO_EIO, "%s: cannot read the folder: %s", path,
                                      strerror(errno))
                     : 0;
    (void)WITHIN_SCOPE(-1, (add_entries(list, path, depth, attempt, entries, n), 0));
    for (int i = 0; i < n; i++)
        free(entries[i]);
    free(entries);
    memory_check();
    return 0;
}

static int add_path(struct source_list *list, const char *path, bool named, struct dpro_error *err)
{
    struct stat st;
    if (stat(path, &st) == 0 && S_ISDIR(st.st_mode))
        return add_folder(list, path, 0, true, 0, err);
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
