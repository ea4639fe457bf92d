/* PYTORCH_CUDA_ALLOC_CONF: keys and values, "key:value,...", where a value is a word or a list in
 * brackets. Blanks mean nothing. */

#include "ingest/rank_job.h"

#define MIB ((uint64_t)1 << 20)

struct allocator_settings allocator_settings_default(void)
{
    return (struct allocator_settings){.max_split_bytes = ALLOCATOR_UNLIMITED,
                                       .max_non_split_rounding_bytes = ALLOCATOR_LARGE_SEGMENT,
                                       .large_segment_bytes = ALLOCATOR_LARGE_SEGMENT};
}

bool allocator_is_by_address(const char *version)
{
    char *rest;
    unsigned long major = strtoul(version, &rest, 10);
    unsigned long minor = *rest == '.' ? strtoul(rest + 1, NULL, 10) : 0;
    return rest > version && (major < 2 || (major == 2 && minor < 13));
}

/* What a key's value is; a count is of MiB. */
enum setting_kind { IS_COUNT, IS_SHARE, IS_FLAG, IS_ROUNDING, IS_BACKEND };

static const struct allocator_key {
    const char *key;
    enum setting_kind kind;
    size_t offset;
    double least, most; /* of a number */
} known[] = {
#define SETTING(key_, kind_, member, ...)                                                          \
    {                                                                                              \
        .key = (key_), .kind = IS_##kind_, .offset = offsetof(struct allocator_settings, member),  \
        ##__VA_ARGS__                                                                              \
    }
    SETTING("max_split_size_mb", COUNT, max_split_bytes, FROM_TO(1, UINT64_MAX)),
    SETTING("max_non_split_rounding_mb", COUNT, max_non_split_rounding_bytes, FROM_TO(1, 1 << 30)),
    SETTING("large_segment_size_mb", COUNT, large_segment_bytes, FROM_TO(11, 1 << 20)),
    SETTING("garbage_collection_threshold", SHARE, garbage_collection_threshold,
            FROM_TO(0, 1 - 1e-9)),
    SETTING("per_process_memory_fraction", SHARE, memory_fraction, FROM_TO(0, 1)),
    SETTING("expandable_segments", FLAG, expandable_segments),
    SETTING("roundup_power2_divisions", ROUNDING, roundup_power2_divisions),
    SETTING("backend", BACKEND, other_backend),
};

/* Of a key that says nothing of where blocks go. */
static bool places_nothing(const char *key)
{
    return text_is_one(key, "release_lock_on_cudamalloc", "throw_on_cudamalloc_oom",
                       "graph_capture_record_stream_reuse", "release_lock_on_hipmalloc") ||
           text_begins(key, "pinned_");
}

/* A whole number that is a power of two, or 0. */
static bool read_power(const char *text, uint64_t *value)
{
    return net_parse_number(text, strlen(text), 10, 1 << 30, value) && !(*value & (*value - 1));
}

/* One number for all sizes, or [SIZE:NUMBER,...,>:NUMBER], sizes in MiB. */
static bool read_rounding(char *text, uint32_t divisions[ALLOCATOR_N_ROUNDING])
{
    uint64_t value = 0, size;
    int last = 0;
    if (*text != '[') {
        bool valid = read_power(text, &value);
        for (int i = 0; i < ALLOCATOR_N_ROUNDING; i++)
            divisions[i] = (uint32_t)value;
        return valid;
    }
    bool first = true;
    text[strlen(text) - 1] = '\0';
    for (char *rest = text + 1, *pair; (pair = strsep(&rest, ",")) != NULL;) {
        char *number = strchr(pair, ':');
        if (!number)
            return false;
        *number++ = '\0';
        bool others = strcmp(pair, ">") == 0;
        if (!read_power(number, &value) || (!others && (!read_power(pair, &size) || size == 0)))
            return false;
        int index = others ? ALLOCATOR_N_ROUNDING - 1
                           : MIN(63 - __builtin_clzll(size), ALLOCATOR_N_ROUNDING - 1);
        for (int i = others ? last + 1 : first ? 0 : index; i <= index; i++)
            divisions[i] = (uint32_t)value;
        first &= others;
        last = others ? last : index;
    }
    return true;
}

/* False: the value is not what the key wants. */
static bool set_value(struct allocator_settings *to, const struct allocator_key *setting,
                      char *value)
{
    void *at = (char *)to + setting->offset;
    char *end;
    uint64_t count;
    double share;
    switch (setting->kind) {
    case IS_COUNT:
        if (!net_parse_number(value, strlen(value), 10, UINT64_MAX, &count) ||
            (double)count < setting->least || (double)count > setting->most)
            return false;
        *(uint64_t *)at = count > UINT64_MAX / MIB ? ALLOCATOR_UNLIMITED : count * MIB;
        return true;
    case IS_SHARE:
        share = strtod(value, &end);
        *(double *)at = share;
        return end > value && *end == '\0' && share > setting->least && share <= setting->most;
    case IS_FLAG:
        *(bool *)at = strcmp(value, "True") == 0;
        return text_is_one(value, "True", "False");
    case IS_ROUNDING:
        return read_rounding(value, at);
    case IS_BACKEND:
        *(bool *)at = strcmp(value, "native") != 0;
        return true;
    }
    return false;
}

int allocator_settings_parse(struct allocator_settings *settings, const char *text,
                             struct dpro_error *err)
{
    struct allocator_settings parsed = *settings;
    SCRATCH char *plain = mem_copy_string(text);
    int n_unknown = 0;
    bool sets_rounding = false, sets_segment = false;
    size_t n = 0;
    for (const char *c = text; *c; c++) /* without blanks */
        if (!isspace((unsigned char)*c))
            plain[n++] = *c;
    plain[n] = '\0';
    for (char *key = plain + strspn(plain, ","), *next; *key; key = next + strspn(next, ",")) {
        char *value = key + strcspn(key, ",:[]"), *end;
        bool valid = *value == ':';
        *value = '\0';
        value += valid;
        end = *value == '[' ? strchr(value, ']') : value + strcspn(value, ",:[]");
        end = end && *value == '[' ? end + 1 : end;
        valid &= end && end > value && (*end == ',' || *end == '\0');
        next = valid && *end ? end + 1 : end;
        size_t i = 0;
        while (i < sizeof known / sizeof *known && strcmp(key, known[i].key) != 0)
            i++;
        if (valid)
            *end = '\0';
        if (!valid || (i < sizeof known / sizeof *known && !set_value(&parsed, &known[i], value)))
            return dpro_error_set(err, DPRO_EFORMAT,
                                  "allocator settings: %.40s has no value that PyTorch takes", key);
        n_unknown += i == sizeof known / sizeof *known && !places_nothing(key);
        sets_rounding |= strcmp(key, "max_non_split_rounding_mb") == 0;
        sets_segment |= strcmp(key, "large_segment_size_mb") == 0;
    }
    if (sets_segment && !sets_rounding)
        parsed.max_non_split_rounding_bytes = parsed.large_segment_bytes;
    if (MIN(parsed.max_split_bytes, parsed.max_non_split_rounding_bytes) <
        parsed.large_segment_bytes)
        return dpro_error_set(err, DPRO_EFORMAT,
                              "allocator settings: max_split_size_mb and max_non_split_rounding_mb "
                              "are at least %llu",
                              (unsigned long long)(parsed.large_segment_bytes / MIB));
    *settings = parsed;
    return n_unknown;
}

struct allocator_settings allocator_settings_read(struct trace_build *build, struct rank_job *job,
                                                  const char *path, const char *text)
{
    struct allocator_settings settings = allocator_settings_default();
    struct dpro_error err;
    int n_unknown = allocator_settings_parse(&settings, text, &err);
    settings.known = n_unknown == 0 ? DPRO_ALLOCATOR_KNOWN : DPRO_ALLOCATOR_STRANGE;
    if (n_unknown < 0)
        rank_warn(build, job, "%s: %s; what the allocator reserves is not known", path, err.text);
    else if (n_unknown > 0)
        rank_warn(build, job,
                  "%s: dpro does not know %d settings of the allocator, so what the allocator "
                  "reserves is unknown",
                  path, n_unknown);
    return settings;
}
