#include "temp_folder.h"
#include "base/base.h"

#include <ftw.h>
#include <sys/stat.h>
#include <unistd.h>

char folder[64];

int make_folder(void **state)
{
    strcpy(folder, "/tmp/dpro-test-XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_entry(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
    return remove(path);
}

int remove_folder(void **state)
{
    return nftw(folder, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

int remove_empty_folder(void **state)
{
    return rmdir(folder);
}

const char *in_folder(const char *name)
{
    static char paths[4][256];
    static int next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

void write_bytes(const char *name, const void *data, size_t size)
{
    char path[256];
    snprintf(path, sizeof path, "%s", in_folder(name));
    for (char *slash = path + strlen(folder) + 1; (slash = strchr(slash, '/')); *slash++ = '/') {
        *slash = '\0';
        mkdir(path, 0777);
    }
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, size, file), size);
    assert_int_equal(fclose(file), 0);
}

void write_text(const char *name, const char *text)
{
    write_bytes(name, json_text(text), strlen(text));
}
