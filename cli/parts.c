/* Finds the Python package and the libraries from the command's own place. */
#include "parts.h"

#include <dirent.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "say.h"

/* The resolved path of an existing file, NULL when there is none. */
static char *existing(const char *folder, const char *name)
{
    char *path, *found;
    if (asprintf(&path, "%s/%s", folder, name) < 0)
        return NULL;
    found = realpath(path, NULL);
    free(path);
    return found;
}

static bool take(struct parts *parts, const char *package, const char *libraries)
{
    char *start = existing(package, "site/sitecustomize.py");
    if (start == NULL)
        return false;
    *strrchr(start, '/') = '\0';
    parts->site = start;
    parts->tracer = existing(libraries, "libdpro_tracer.so");
    parts->nccl = existing(libraries, "libnccl-profiler-dpro.so");
    parts->mpi = existing(libraries, "libdpro_mpi.so");
    if (parts->mpi == NULL) /* a build folder */
        parts->mpi = existing(libraries, "../mpi/libdpro_mpi.so");
    return true;
}

static int is_python(const struct dirent *entry)
{
    return strncmp(entry->d_name, "python3", 7) == 0;
}

/* In a wheel all is in the package, and that beside other packages. `place`: ../lib or ../lib64. */
static bool take_wheel(struct parts *parts, const char *folder, const char *place)
{
    static const char *const places[] = {"site-packages", "dist-packages"};
    struct dirent **entries = NULL;
    char *lib = existing(folder, place), *package, *libraries;
    int n = lib != NULL ? scandir(lib, &entries, is_python, alphasort) : 0;
    bool taken = false;
    for (int i = 0; i < n; i++) {
        for (size_t k = 0; k < sizeof places / sizeof *places && !taken; k++) {
            if (asprintf(&package, "%s/%s/%s/dpro", lib, entries[i]->d_name, places[k]) < 0)
                continue;
            if (asprintf(&libraries, "%s/lib", package) >= 0) {
                taken = take(parts, package, libraries);
                free(libraries);
            }
            free(package);
        }
        free(entries[i]);
    }
    free(entries);
    free(lib);
    return taken;
}

/* `folder` is where a command lies, or would lie. */
static bool take_beside(struct parts *parts, const char *folder)
{
    static const char *const layouts[][2] = {
        {"../python/dpro", "tracer"},                 /* a checkout's build folder */
        {"../share/dpro/python/dpro", "../lib/dpro"}, /* make install */
    };
    char *package, *libraries;
    bool taken = false;
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts && !taken; i++) {
        if (asprintf(&package, "%s/%s", folder, layouts[i][0]) < 0)
            continue;
        if (asprintf(&libraries, "%s/%s", folder, layouts[i][1]) >= 0) {
            taken = take(parts, package, libraries);
            free(libraries);
        }
        free(package);
    }
    return taken || take_wheel(parts, folder, "../lib") || take_wheel(parts, folder, "../lib64");
}

int parts_find(struct parts *parts)
{
    const char *home = getenv("DPRO_HOME");
    bool taken = false;
    char *folder;
    *parts = (struct parts){.site = NULL};
    if (home != NULL && home[0] != '\0') {
        static const char *const folders[] = {"build", "bin"};
        for (size_t i = 0; i < sizeof folders / sizeof *folders && !taken; i++) {
            if (asprintf(&folder, "%s/%s", home, folders[i]) < 0)
                continue;
            taken = take_beside(parts, folder);
            free(folder);
        }
        if (!taken)
            cmd_say("DPRO_HOME: no Python package of dpro in %s; name the folder that dpro is "
                    "installed in, or unset it",
                    home);
    } else {
        folder = realpath("/proc/self/exe", NULL);
        if (folder != NULL && strrchr(folder, '/') != NULL) {
            *strrchr(folder, '/') = '\0';
            taken = take_beside(parts, folder[0] != '\0' ? folder : "/");
        }
        if (!taken)
            cmd_say("the Python package of dpro is not beside %s; install dpro whole (pip install "
                    "or make install), or set DPRO_HOME to where it is",
                    folder != NULL ? folder : "the command");
        free(folder);
    }
    return taken ? 0 : CMD_SYSTEM;
}

void parts_fini(struct parts *parts)
{
    free(parts->site);
    free(parts->tracer);
    free(parts->nccl);
    free(parts->mpi);
    *parts = (struct parts){.site = NULL};
}
