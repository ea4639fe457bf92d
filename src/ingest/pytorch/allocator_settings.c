/* PYTORCH_CUDA_ALLOC_CONF: keys and values, "key:value,...", where a value is a word or a list in
 * brackets. Blanks mean nothing. */
#include "ingest/allocator_history.h"

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

struct token {
    char text[48]; /* a word, or a mark: , : [ ] ; "": the end */
};

struct parser {
    const char *at;
    struct token token; /* the next one */
    struct allocator_settings *settings;
    struct dpro_error *err;
    int n_unknown;
    bool sets_rounding, sets_segment;
};

static const char marks[] = ",:[]";

/* Goes on to the next token. */
static int settings_advance(struct parser *p)
{
    size_t n = strcspn(p->at, marks);
    n = n == 0 && *p->at ? 1 : n;
    if (n >= sizeof p->token.text)
        return dpro_error_set(p->err, DPRO_EFORMAT, "allocator settings: \"%.20s...\" is too long",
                              p->at);
    snprintf(p->token.text, sizeof p->token.text, "%.*s", (int)n, p->at);
    p->at += n;
    return 0;
}

static bool is_at(const struct parser *p, const char *text)
{
    return strcmp(p->token.text, text) == 0;
}

static int settings_expect(struct parser *p, const char *text)
{
    if (!is_at(p, text))
        return dpro_error_set(p->err, DPRO_EFORMAT,
                              "allocator settings: \"%s\" expected, not \"%s\"", text,
                              p->token.text);
    return settings_advance(p);
}

static int wrong_value(struct parser *p, const char *key, const char *rule)
{
    return dpro_error_set(p->err, DPRO_EFORMAT, "allocator settings: %s is \"%s\", not %s", key,
                          p->token.text, rule);
}

/* A whole number at the token, which it goes past. */
static int take_number(struct parser *p, const char *key, uint64_t least, uint64_t most,
                       uint64_t *value)
{
    char *end;
    unsigned long long number = strtoull(p->token.text, &end, 10);
    if (!isdigit((unsigned char)p->token.text[0]) || *end != '\0')
        return wrong_value(p, key, "a whole number");
    if (number < least || number > most)
        return dpro_error_set(p->err, DPRO_EFORMAT,
                              "allocator settings: %s is %s, not from %llu on", key, p->token.text,
                              (unsigned long long)least);
    *value = number;
    return settings_advance(p);
}

/* A number above 0, and below 1 or at most that. */
static int take_share(struct parser *p, const char *key, bool below, double *value)
{
    char *end;
    double number = strtod(p->token.text, &end);
    if (end == p->token.text || *end != '\0' || !(number > 0 && number <= 1) ||
        (below && number == 1))
        return wrong_value(p, key,
                           below ? "a share between 0 and 1" : "a share above 0, at most 1");
    *value = number;
    return settings_advance(p);
}

static int take_flag(struct parser *p, const char *key, bool *value)
{
    if (!is_at(p, "True") && !is_at(p, "False"))
        return wrong_value(p, key, "True or False");
    *value = is_at(p, "True");
    return settings_advance(p);
}

static int take_divisions(struct parser *p, const char *key, uint32_t *value)
{
    uint64_t number;
    char text[sizeof p->token.text];
    memcpy(text, p->token.text, sizeof text);
    int rc = take_number(p, key, 0, 1 << 30, &number);
    if (rc < 0)
        return rc;
    if (number & (number - 1))
        return dpro_error_set(p->err, DPRO_EFORMAT, "allocator settings: %s: %s is no power of two",
                              key, text);
    *value = (uint32_t)number;
    return 0;
}

/* One number for all sizes, or [SIZE:NUMBER,...,>:NUMBER], sizes in MiB. */
static int take_roundup(struct parser *p, const char *key)
{
    uint32_t *divisions = p->settings->roundup_power2_divisions, value = 0;
    int rc, last = 0;
    bool first = true;
    if (!is_at(p, "[")) {
        if ((rc = take_divisions(p, key, &value)) < 0)
            return rc;
        for (int i = 0; i < ALLOCATOR_N_ROUNDING; i++)
            divisions[i] = value;
        return 0;
    }
    do {
        uint64_t size = 0;
        bool rest;
        if ((rc = settings_advance(p)) < 0)
            return rc;
        rest = is_at(p, ">");
        rc = rest ? settings_advance(p) : take_number(p, key, 1, UINT64_MAX, &size);
        if (rc < 0 || (rc = settings_expect(p, ":")) < 0 ||
            (rc = take_divisions(p, key, &value)) < 0)
            return rc;
        if (rest) {
            for (int i = last + 1; i < ALLOCATOR_N_ROUNDING; i++)
                divisions[i] = value;
            continue;
        }
        if (size & (size - 1))
            return dpro_error_set(p->err, DPRO_EFORMAT,
                                  "allocator settings: %s: a size is no power of two", key);
        int index = 63 - __builtin_clzll(size);
        if (index >= ALLOCATOR_N_ROUNDING)
            index = ALLOCATOR_N_ROUNDING - 1;
        for (int i = 0; first && i < index; i++)
            divisions[i] = value;
        first = false;
        divisions[index] = value;
        last = index;
    } while (is_at(p, ","));
    return settings_expect(p, "]");
}

/* The value of a key that says nothing of where blocks go. */
static int skip_value(struct parser *p)
{
    int rc = 0;
    bool list = is_at(p, "[");
    while (rc == 0 && list && !is_at(p, "]") && !is_at(p, ""))
        rc = settings_advance(p);
    if (is_at(p, "") || (!list && strchr(marks, p->token.text[0])))
        return dpro_error_set(p->err, DPRO_EFORMAT, "allocator settings: a value is missing");
    return rc < 0 ? rc : settings_advance(p);
}

static bool places_nothing(const char *key)
{
    return text_is_one(key, "release_lock_on_cudamalloc", "throw_on_cudamalloc_oom",
                       "graph_capture_record_stream_reuse", "release_lock_on_hipmalloc") ||
           text_begins(key, "pinned_");
}

static int take_value(struct parser *p, const char *key)
{
    struct allocator_settings *s = p->settings;
    uint64_t mib;
    int rc = 0;
    if (strcmp(key, "max_split_size_mb") == 0) {
        if ((rc = take_number(p, key, 1, UINT64_MAX, &mib)) == 0)
            s->max_split_bytes = mib > UINT64_MAX / MIB ? ALLOCATOR_UNLIMITED : mib * MIB;
    } else if (strcmp(key, "max_non_split_rounding_mb") == 0) {
        if ((rc = take_number(p, key, 1, UINT64_MAX / MIB, &mib)) == 0)
            s->max_non_split_rounding_bytes = mib * MIB;
        p->sets_rounding = true;
    } else if (strcmp(key, "large_segment_size_mb") == 0) {
        if ((rc = take_number(p, key, 11, (uint64_t)1 << 20, &mib)) == 0)
            s->large_segment_bytes = mib * MIB;
        p->sets_segment = true;
    } else if (strcmp(key, "garbage_collection_threshold") == 0) {
        rc = take_share(p, key, true, &s->garbage_collection_threshold);
    } else if (strcmp(key, "per_process_memory_fraction") == 0) {
        rc = take_share(p, key, false, &s->memory_fraction);
    } else if (strcmp(key, "expandable_segments") == 0) {
        rc = take_flag(p, key, &s->expandable_segments);
    } else if (strcmp(key, "roundup_power2_divisions") == 0) {
        rc = take_roundup(p, key);
    } else if (strcmp(key, "backend") == 0) {
        s->other_backend = !is_at(p, "native");
        rc = skip_value(p);
    } else {
        p->n_unknown += !places_nothing(key);
        rc = skip_value(p);
    }
    return rc;
}

int allocator_settings_parse(struct allocator_settings *settings, const char *text,
                             struct dpro_error *err)
{
    struct allocator_settings parsed = *settings;
    SCRATCH char *plain = mem_copy_string(text);
    struct parser p = {.at = plain, .settings = &parsed, .err = err};
    size_t n = 0;
    for (const char *c = text; *c; c++) /* without blanks */
        if (!isspace((unsigned char)*c))
            plain[n++] = *c;
    plain[n] = '\0';
    int rc = settings_advance(&p);
    while (rc == 0 && !is_at(&p, "")) {
        struct token key = p.token;
        if (is_at(&p, ",")) { /* commas too many are no harm */
            rc = settings_advance(&p);
            continue;
        }
        if ((rc = settings_advance(&p)) < 0 || (rc = settings_expect(&p, ":")) < 0 ||
            (rc = take_value(&p, key.text)) < 0)
            return rc;
        if (!is_at(&p, ""))
            rc = settings_expect(&p, ",");
    }
    if (rc < 0)
        return rc;
    if (p.sets_segment && !p.sets_rounding)
        parsed.max_non_split_rounding_bytes = parsed.large_segment_bytes;
    if (MIN(parsed.max_split_bytes, parsed.max_non_split_rounding_bytes) <
        parsed.large_segment_bytes)
        return dpro_error_set(err, DPRO_EFORMAT,
                              "allocator settings: max_split_size_mb and max_non_split_rounding_mb "
                              "are at least %llu",
                              (unsigned long long)(parsed.large_segment_bytes / MIB));
    *settings = parsed;
    return p.n_unknown;
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
                  "%s: %d settings of the allocator are not known to dpro; nor is what the "
                  "allocator reserves",
                  path, n_unknown);
    return settings;
}
