/* ingest/find_files.c: from what the caller named to a list of files, in an order that depends on
 * names only. */
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/sort.h"
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

static int add_source(struct source_list *list, const char *path, bool named, int attempt,
                      struct dpro_error *err)
{
    struct source fresh = {
        .path = mem_copy_string(path), .named = named, .rank = -1, .attempt = attempt};
    if (!fresh.path)
        return dpro_error_nomem(err);
    struct stat st;
    if (stat(path, &st) == 0) {
        fresh.device = st.st_dev;
        fresh.inode = st.st_ino;
        fresh.size_bytes = (uint64_t)st.st_size;
    }
    if (array_push(list, fresh) < 0) {
        mem_free(fresh.path);
        return dpro_error_nomem(err);
    }
    return 0;
}

static int not_hidden(const struct dirent *entry)
{
    return entry->d_name[0] != '.';
}

/* dpro profile writes under such a name and renames: the process was killed before it was done. */
static bool half_written(const char *name)
{
    static const char ending[] = ".part";
    size_t len = strlen(name), n = sizeof ending - 1;
    return len > n && memcmp(name + len - n, ending, n) == 0;
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static int add_folder(struct source_list *list, const char *path, int depth, bool named,
                      int attempt, struct dpro_error *err)
{
    struct dirent **entries;
    attempt = attempt_of(path, attempt);
    int n = scandir(path, &entries, not_hidden, by_name);
    if (n < 0)
        return named ? dpro_error_set(err, DPRO_EIO, "%s: cannot read the folder: %s", path,
                                      strerror(errno))
                     : 0;
    int rc = 0, len = (int)strlen(path);
    while (len > 1 && path[len - 1] == '/')
        len--;
    for (int i = 0; i < n; i++) {
        const char *name = entries[i]->d_name;
        struct stat st;
        char *full = NULL;
        if (rc == 0 && !(full = mem_format("%.*s/%s", len, path, name)))
            rc = dpro_error_nomem(err);
        bool there = rc == 0 && stat(full, &st) == 0;
        bool wanted = there ? S_ISREG(st.st_mode) && !half_written(name)
                            : strstr(name, ".json") != NULL; /* reading it says what is wrong */
        if (rc == 0 && wanted)
            rc = add_source(list, full, false, attempt, err);
        else if (there && S_ISDIR(st.st_mode) && depth < MAX_FOLDER_DEPTH)
            rc = add_folder(list, full, depth + 1, false, attempt, err);
        mem_free(full);
        mem_free(entries[i]);
    }
    mem_free(entries);
    return rc;
}

static int add_glob(struct source_list *list, const char *pattern, struct dpro_error *err)
{
    glob_t found = {0};
    int rc = glob(pattern, GLOB_BRACE | GLOB_TILDE, NULL, &found);
    if (rc == GLOB_NOSPACE)
        rc = dpro_error_nomem(err);
    else if (rc != 0 || found.gl_pathc == 0)
        rc = dpro_error_set(err, DPRO_EIO, "%s: no file matches", pattern);
    for (size_t i = 0; rc == 0 && i < found.gl_pathc; i++) {
        struct stat st;
        if (stat(found.gl_pathv[i], &st) == 0 && S_ISDIR(st.st_mode))
            rc = add_folder(list, found.gl_pathv[i], 0, true, 0, err);
        else
            rc = add_source(list, found.gl_pathv[i], false, 0, err);
    }
    globfree(&found);
    return rc;
}

ORDER(by_path, struct source, strcmp(x->path, y->path) ?: ASCENDING(named));

int sources_find(struct source_list *list, const char *const *paths, size_t n_paths,
                 struct dpro_error *err)
{
    for (size_t i = 0; i < n_paths; i++) {
        struct stat st;
        int rc;
        if (stat(paths[i], &st) == 0)
            rc = S_ISDIR(st.st_mode) ? add_folder(list, paths[i], 0, true, 0, err)
                                     : add_source(list, paths[i], true, 0, err);
        else if (errno == ENOENT && strpbrk(paths[i], "*?[{"))
            rc = add_glob(list, paths[i], err);
        else
            rc =
                dpro_error_set(err, DPRO_EIO, "%s: cannot open: %s; name a trace's folder or files",
                               paths[i], strerror(errno));
        if (rc < 0)
            return rc;
    }
    array_sort(list, by_path);
    return 0;
}
