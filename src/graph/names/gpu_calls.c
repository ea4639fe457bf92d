/* What a CPU call of a GPU's runtime is for, by its name, and so what would make it shorter. */

#include "graph/names/names.h"

/* What follows the prefix begins with one of the words, each with a space after it. What none fits
 * is a launch. */
static const char *const words[N_CALL_CLASSES] = {
    [CALL_SYNC] = "DeviceSynchronize StreamSynchronize EventSynchronize CtxSynchronize "
                  "SynchronizeDevice SynchronizeStream SynchronizeEvent StreamQuery EventQuery ",
    [CALL_COPY] = "Memcpy ",
    [CALL_MEMORY] = "Malloc Free ExtMalloc HostAlloc HostMalloc HostFree HostRegister "
                    "HostUnregister MemAlloc MemFree MemHostAlloc MemCreate MemRelease MemMap "
                    "MemUnmap MemSetAccess MemAddress ",
    [CALL_LOAD] = "ModuleLoad ModuleGetFunction LibraryLoad LinkComplete ",
};

/* Calls that go by other names; TensorFlow's are named for what they do. */
static const char *const others[N_CALL_CLASSES] = {
    [CALL_SYNC] = "MXNDArrayWaitAll MXNDArrayWaitToRead MXNDArrayWaitToWrite ",
    [CALL_COPY] = "MemcpyH2D MemcpyD2H MemcpyD2D MemcpyP2P ",
};

static bool is_among(const char *words_of_class, const char *text, bool begins)
{
    for (const char *word = words_of_class, *end; word && *word; word = end + 1) {
        end = strchr(word, ' ');
        size_t len = (size_t)(end - word);
        if (strncmp(text, word, len) == 0 && (begins || text[len] == '\0'))
            return true;
    }
    return false;
}

const char *call_without_prefix(const char *name)
{
    enum { LONGEST = 8 };
    size_t len = strspn(name, "abcdefghijklmnopqrstuvwxyz");
    return len >= 2 && len <= LONGEST && isupper((unsigned char)name[len]) ? name + len : NULL;
}

enum call_class call_classify(const char *name)
{
    const char *rest = call_without_prefix(name);
    for (int class = 0; class < N_CALL_CLASSES; class ++)
        if (is_among(others[class], name, false) || (rest && is_among(words[class], rest, true)))
            return (enum call_class) class;
    return CALL_LAUNCH;
}

const char *call_class_words(enum call_class class)
{
    static const char *const texts[N_CALL_CLASSES] = {
        [CALL_LAUNCH] = "launching GPU work",
        [CALL_SYNC] = "waiting for the GPU",
        [CALL_MEMORY] = "allocating and freeing memory",
        [CALL_COPY] = "memory copy calls",
        [CALL_LOAD] = "loading GPU code",
    };
    return texts[class];
}
