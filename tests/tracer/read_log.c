#include "read_log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool log_file_open(struct log_file *file, const char *path)
{
    *file = (struct log_file){0};
    FILE *in = fopen(path, "rb");
    if (!in)
        return false;
    fseek(in, 0, SEEK_END);
    file->n_bytes = (size_t)ftell(in);
    rewind(in);
    file->bytes = malloc(file->n_bytes + 1);
    bool fine = file->bytes && fread(file->bytes, 1, file->n_bytes, in) == file->n_bytes;
    fclose(in);
    file->header = (const struct log_header *)(const void *)file->bytes;
    fine = fine && file->n_bytes >= sizeof *file->header &&
           memcmp(file->header->magic, LOG_MAGIC, sizeof file->header->magic) == 0;
    if (!fine) {
        log_file_close(file);
        return false;
    }
    file->at = file->header->header_bytes;
    return true;
}

const struct record *log_file_next(struct log_file *file)
{
    const struct record *r = (const struct record *)(const void *)(file->bytes + file->at);
    if (file->at + sizeof *r > file->n_bytes || r->size_bytes < sizeof *r ||
        r->size_bytes % 8 != 0 || r->size_bytes > file->n_bytes - file->at)
        return NULL;
    file->at += r->size_bytes;
    return r;
}

bool log_file_whole(const struct log_file *file)
{
    return file->at == file->n_bytes;
}

void log_file_close(struct log_file *file)
{
    free(file->bytes);
    *file = (struct log_file){0};
}
