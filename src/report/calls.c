/* report/calls.c: what a CPU call of a GPU's runtime is for, by its name: what would make it
 * shorter differs. */
#include <ctype.h>
#include <string.h>

#include "report/facts.h"

static const char *const prefixes[] = {"cuda", "hip", "cu"}; /* CUDA, HIP, CUDA's driver */

/* What follows the prefix begins with the word. Of two that fit the first counts; what none fits is
 * a launch. */
static const struct {
    const char *word;
    enum call_class class;
} calls[] = {
    {"DeviceSynchronize", CALL_SYNC},
    {"StreamSynchronize", CALL_SYNC},
    {"EventSynchronize", CALL_SYNC},
    {"CtxSynchronize", CALL_SYNC},
    {"StreamQuery", CALL_SYNC},
    {"EventQuery", CALL_SYNC},
    {"Memcpy", CALL_COPY},
    {"Malloc", CALL_MEMORY},
    {"Free", CALL_MEMORY},
    {"ExtMalloc", CALL_MEMORY},
    {"HostAlloc", CALL_MEMORY},
    {"HostMalloc", CALL_MEMORY},
    {"HostFree", CALL_MEMORY},
    {"HostRegister", CALL_MEMORY},
    {"HostUnregister", CALL_MEMORY},
    {"MemAlloc", CALL_MEMORY},
    {"MemFree", CALL_MEMORY},
    {"MemHostAlloc", CALL_MEMORY},
    {"MemCreate", CALL_MEMORY},
    {"MemRelease", CALL_MEMORY},
    {"MemMap", CALL_MEMORY},
    {"MemUnmap", CALL_MEMORY},
    {"MemSetAccess", CALL_MEMORY},
    {"MemAddress", CALL_MEMORY},
    {"ModuleLoad", CALL_LOAD},
    {"ModuleGetFunction", CALL_LOAD},
    {"LibraryLoad", CALL_LOAD},
    {"LinkComplete", CALL_LOAD},
};

/* Calls that go by other names. */
static const struct {
    const char *name;
    enum call_class class;
} others[] = {
    {"MemcpyH2D", CALL_COPY}, /* TensorFlow's calls are named for what they do */
    {"MemcpyD2H", CALL_COPY},           {"MemcpyD2D", CALL_COPY},
    {"MemcpyP2P", CALL_COPY},           {"MXNDArrayWaitAll", CALL_SYNC},
    {"MXNDArrayWaitToRead", CALL_SYNC}, {"MXNDArrayWaitToWrite", CALL_SYNC},
};

enum call_class call_classify(const char *name)
{
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (strcmp(name, others[i].name) == 0)
            return others[i].class;
    for (size_t p = 0; p < sizeof prefixes / sizeof *prefixes; p++) {
        size_t len = strlen(prefixes[p]);
        if (strncmp(name, prefixes[p], len) != 0 || !isupper((unsigned char)name[len]))
            continue;
        for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
            if (strncmp(name + len, calls[i].word, strlen(calls[i].word)) == 0)
                return calls[i].class;
    }
    return CALL_LAUNCH;
}

const char *call_class_words(enum call_class class)
{
    static const char *const words[N_CALL_CLASSES] = {
        [CALL_LAUNCH] = "launching GPU work",
        [CALL_SYNC] = "waiting for the GPU",
        [CALL_MEMORY] = "allocating and freeing memory",
        [CALL_COPY] = "memory copy calls",
        [CALL_LOAD] = "loading GPU code",
    };
    return words[class];
}
