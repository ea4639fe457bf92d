/* ingest/tensorflow/xla_text.c: what the text of an XLA instruction says: its name and kind, the
 * bytes that it makes, and the devices that take part. */
#include <string.h>

#include "ingest/tensorflow/xla.h"

/* Past a type: "f32[2,3]{1,0}" or "(f32[2], s32[])", and the spaces behind it. */
static const char *past_type(const char *at, const char *end)
{
    int depth = 0;
    for (; at < end && (depth > 0 || *at != ' '); at++)
        depth += *at == '(' || *at == '{' || *at == '['   ? 1
                 : *at == ')' || *at == '}' || *at == ']' ? -1
                                                          : 0;
    while (at < end && *at == ' ')
        at++;
    return at;
}

struct xla_text xla_read_text(const char *text, size_t len)
{
    const char *end = text + len, *equals = memmem(text, len, " = ", 3);
    struct xla_text out = {.name = text, .name_len = len};
    if (len > 0 && *text == '%') {
        out.name++;
        out.name_len--;
    }
    if (!equals || equals < out.name)
        return out;
    out.name_len = (size_t)(equals - out.name);
    out.opcode = past_type(equals + 3, end);
    while (out.opcode + out.opcode_len < end && out.opcode[out.opcode_len] != '(' &&
           out.opcode[out.opcode_len] != ' ')
        out.opcode_len++;
    return out;
}

/* What the element type takes; 0: none known. */
static uint64_t type_bytes(const char *at, size_t n)
{
    static const struct {
        const char *name;
        uint64_t bytes;
    } types[] = {{"pred", 1}, {"s8", 1},   {"u8", 1},  {"s16", 2}, {"u16", 2},
                 {"f16", 2},  {"bf16", 2}, {"s32", 4}, {"u32", 4}, {"f32", 4},
                 {"s64", 8},  {"u64", 8},  {"f64", 8}, {"c64", 8}, {"c128", 16}};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (strlen(types[i].name) == n && memcmp(types[i].name, at, n) == 0)
            return types[i].bytes;
    return n > 2 && at[0] == 'f' && at[1] == '8' ? 1 : 0;
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

uint64_t xla_result_bytes(const char *text, size_t len)
{
    const char *at = memmem(text, len, " = ", 3), *end = at ? past_type(at + 3, text + len) : NULL;
    uint64_t total = 0;
    for (at = at ? at + 3 : end; at < end; at++) {
        const char *word = at;
        while (at < end && (is_digit(*at) || (*at >= 'a' && *at <= 'z')))
            at++;
        uint64_t bytes = at < end && *at == '[' ? type_bytes(word, (size_t)(at - word)) : 0;
        while (bytes && at < end && *at != ']') {
            uint64_t size = 0;
            for (at++; at < end && is_digit(*at); at++)
                if (__builtin_mul_overflow(size, UINT64_C(10), &size) ||
                    __builtin_add_overflow(size, (uint64_t)(*at - '0'), &size))
                    return 0;
            if (at < end && is_digit(at[-1]) && __builtin_mul_overflow(bytes, size, &bytes))
                return 0;
            while (at < end && *at != ']' && *at != ',')
                at++;
        }
        if (__builtin_add_overflow(total, bytes, &total))
            return 0;
    }
    return total;
}

size_t xla_find_group(const char *text, size_t len, uint64_t device, const char **group)
{
    static const char key[] = "replica_groups={{";
    const char *end = text + len, *at = memmem(text, len, key, sizeof key - 1);
    for (at = at ? at + sizeof key - 1 : end; at < end;) {
        const char *close = memchr(at, '}', (size_t)(end - at));
        bool mine = false;
        for (const char *n = at; close && n < close; n++) {
            uint64_t member = 0;
            for (; n < close && is_digit(*n) && member < UINT32_MAX; n++)
                member = member * 10 + (uint64_t)(*n - '0');
            mine |= member == device;
        }
        *group = at;
        if (mine || !close || close + 2 >= end || close[1] != ',')
            return mine ? (size_t)(close - at) : 0;
        at = close + 3; /* "},{" */
    }
    return 0;
}

bool xla_communicates(const struct xla_text *text)
{
    static const char *const words[] = {"all-", "reduce-scatter", "collective"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (memmem(text->opcode, text->opcode_len, words[i], strlen(words[i])))
            return true;
    return false;
}
