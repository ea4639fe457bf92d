/* Reads what the recorders wrote. A page is a process's; what a killed one wrote stays. */
#include "status.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "launch.h"

enum { PAGE_BYTES = 4096, MAX_PROCESSES = 4096 };

struct page { /* LAYOUT in python/dpro/status.py, then the text */
    uint32_t flags;
    int32_t rank, world_size;
    uint32_t unused;
    int64_t step;
    char text[1024];
};

int status_open(void)
{
    char path[64];
    int fd = memfd_create("dpro-status", MFD_CLOEXEC);
    if (fd < 0)
        return -1;
    snprintf(path, sizeof path, "/proc/%ld/fd/%d", (long)getpid(), fd);
    if (launch_set_env("DPRO_STATUS", path) != 0) {
        close(fd);
        return -1;
    }
    return fd;
}

/* It goes to a terminal. */
static void copy_text(char *to, const char *from, size_t size)
{
    size_t i;
    for (i = 0; i + 1 < size && from[i] != '\0'; i++)
        to[i] = (unsigned char)from[i] < ' ' || from[i] == '\x7f' ? ' ' : from[i];
    to[i] = '\0';
}

size_t status_read(int fd, struct status **list)
{
    struct stat info;
    size_t n = 0, n_pages;
    *list = NULL;
    if (fd < 0)
        return 0;
    n_pages = fstat(fd, &info) == 0 ? (size_t)info.st_size / PAGE_BYTES : 0;
    if (n_pages > MAX_PROCESSES)
        n_pages = MAX_PROCESSES;
    *list = calloc(n_pages + 1, sizeof **list);
    for (size_t i = 0; *list != NULL && i < n_pages; i++) {
        struct page page;
        struct status *status = &(*list)[n];
        if (pread(fd, &page, sizeof page, (off_t)(i * PAGE_BYTES)) != (ssize_t)sizeof page ||
            page.flags == 0)
            continue;
        *status = (struct status){.flags = page.flags,
                                  .rank = page.rank,
                                  .world_size = page.world_size,
                                  .step = (long)page.step};
        copy_text(status->text, page.text, sizeof status->text);
        n++;
    }
    close(fd);
    return n;
}

bool status_was_killed(const struct status *status)
{
    return (status->flags & (STATUS_ENDED | STATUS_FINISHED)) == 0;
}

void status_reason(const struct status *status, long first, long last, char *text, size_t size)
{
    const char *end =
        status_was_killed(status) ? "was killed or left without cleaning up" : "ended";
    const char *steps = status->step == 1 ? "step" : "steps";
    if (status->flags & STATUS_FAILED)
        snprintf(text, size, "recording failed after step %ld: %s", status->step, status->text);
    else if (!(status->flags & STATUS_STEPPED))
        snprintf(text, size,
                 "the process %s before a step of training that dpro can see (dpro.Recorder tells "
                 "of steps "
                 "that no optimizer of PyTorch, TensorFlow or MXNet makes)",
                 end);
    else if (status->step + 1 < first)
        snprintf(text, size,
                 "the process %s after %ld %s, and the first to be recorded is step %ld: let it "
                 "train %ld steps, or choose fewer by --warmup and --iterations",
                 end, status->step, steps, first, last);
    else if ((status->flags & (STATUS_WINDOW | STATUS_WRITTEN)) == STATUS_WINDOW &&
             status_was_killed(status))
        snprintf(
            text, size,
            "the process %s after step %ld, while steps %ld to %ld were recorded: the profiler has "
            "them in memory until the last one ends, so they are lost",
            end, status->step, first, last);
    else if (status->text[0] != '\0')
        snprintf(text, size, "%s", status->text);
    else
        snprintf(text, size, "the process %s after step %ld", end, status->step);
}
