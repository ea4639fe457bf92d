/* Reads plain data that Python pickled. */
#include "base/pickle.h"

enum {
    OLDEST_PROTOCOL = 2,
    NEWEST_PROTOCOL = 5,
    MAX_VALUES = 1 << 25, /* on the stack, in the memo */
    MAX_TEXTS = 1 << 22,  /* different ones */
};

/* What opcodes do. */
enum act {
    UNKNOWN,
    PUSH_CONSTANT, /* n */
    PUSH_FLOAT,
    PUSH_EMPTY, /* a container */
    PUSH_MARK,
    PUSH_AGAIN,
    POP,
    PUT_NEXT,
    ADD_ONE,    /* to a container */
    GATHER_FEW, /* n values, into a container */
    POP_MARKED, /* from here on with all values above the innermost mark */
    ADD_MARKED,
    GATHER_MARKED,
    PUSH_INT, /* from here on with a number of n bytes */
    PUSH_LONG,
    PUSH_TEXT,
    PUSH_BYTES,
    GET,
    PUT,
    PROTOCOL,
    FRAME,
};

/* In the order of Python's pickletools. */
static const struct op {
    uint8_t act, n;
    enum pickle_kind kind; /* of a container or constant */
} ops[UINT8_MAX + 1] = {
    ['J'] = {PUSH_INT, 4, 0},
    ['K'] = {PUSH_INT, 1, 0},
    ['M'] = {PUSH_INT, 2, 0},
    [0x8a] = {PUSH_LONG, 1, 0},
    [0x8b] = {PUSH_LONG, 4, 0},
    ['T'] = {PUSH_TEXT, 4, 0}, /* BINSTRING, ... */
    ['U'] = {PUSH_TEXT, 1, 0},
    ['B'] = {PUSH_BYTES, 4, 0},
    ['C'] = {PUSH_BYTES, 1, 0},
    [0x8e] = {PUSH_BYTES, 8, 0},
    [0x96] = {PUSH_BYTES, 8, 0},
    ['N'] = {PUSH_CONSTANT, 0, PICKLE_NONE},
    [0x88] = {PUSH_CONSTANT, true, PICKLE_BOOL},
    [0x89] = {PUSH_CONSTANT, false, PICKLE_BOOL},
    [0x8c] = {PUSH_TEXT, 1, 0}, /* SHORT_BINUNICODE, ... */
    ['X'] = {PUSH_TEXT, 4, 0},
    [0x8d] = {PUSH_TEXT, 8, 0},
    ['G'] = {PUSH_FLOAT, 0, 0},
    [']'] = {PUSH_EMPTY, 0, PICKLE_LIST},
    ['a'] = {ADD_ONE, 0, PICKLE_LIST},
    ['e'] = {ADD_MARKED, 0, PICKLE_LIST},
    ['l'] = {GATHER_MARKED, 0, PICKLE_LIST},
    [')'] = {GATHER_FEW, 0, PICKLE_TUPLE},
    ['t'] = {GATHER_MARKED, 0, PICKLE_TUPLE},
    [0x85] = {GATHER_FEW, 1, PICKLE_TUPLE},
    [0x86] = {GATHER_FEW, 2, PICKLE_TUPLE},
    [0x87] = {GATHER_FEW, 3, PICKLE_TUPLE},
    ['}'] = {PUSH_EMPTY, 0, PICKLE_DICT},
    ['d'] = {GATHER_MARKED, 0, PICKLE_DICT},
    ['s'] = {ADD_ONE, 0, PICKLE_DICT},
    ['u'] = {ADD_MARKED, 0, PICKLE_DICT},
    [0x8f] = {PUSH_EMPTY, 0, PICKLE_LIST}, /* sets */
    [0x90] = {ADD_MARKED, 0, PICKLE_LIST},
    [0x91] = {GATHER_MARKED, 0, PICKLE_LIST},
    ['0'] = {POP, 0, 0},
    ['2'] = {PUSH_AGAIN, 0, 0},
    ['('] = {PUSH_MARK, 0, 0},
    ['1'] = {POP_MARKED, 0, 0},
    ['h'] = {GET, 1, 0},
    ['j'] = {GET, 4, 0},
    ['q'] = {PUT, 1, 0},
    ['r'] = {PUT, 4, 0},
    [0x94] = {PUT_NEXT, 0, 0},
    [0x80] = {PROTOCOL, 1, 0},
    [0x95] = {FRAME, 8, 0},
};
enum { OP_STOP = '.', OP_PROTO = 0x80 };

static const char not_one[] = "no pickle from here on";
static const char too_many[] = "holds more than 33 million values at once";

struct machine {
    struct pickle_reader *r;
    ARRAY(struct pickle_value) stack;
    ARRAY(struct pickle_value) memo;
    ARRAY(uint32_t) marks; /* where they stand on the stack */
    uint32_t n_containers;
    uint32_t n_texts;
};

static bool pickle_stop(struct machine *m, const char *why)
{
    if (!m->r->fail) {
        m->r->fail = why;
        m->r->fail_offset = bytes_offset(m->r->bytes);
    }
    return false;
}

static bool pickle_need(struct machine *m, size_t n)
{
    return bytes_need(m->r->bytes, n) || pickle_stop(m, "the file ends in the middle of it");
}

/* A little-endian number of n bytes. */
static bool take_number(struct machine *m, unsigned n, uint64_t *value)
{
    if (!pickle_need(m, n))
        return false;
    *value = 0;
    for (unsigned i = 0; i < n; i++)
        *value |= (uint64_t)m->r->bytes->p[i] << (8 * i);
    m->r->bytes->p += n;
    return true;
}

static bool pickle_push(struct machine *m, struct pickle_value value)
{
    if (m->stack.n >= MAX_VALUES)
        return pickle_stop(m, too_many);
    array_push(&m->stack, value);
    return true;
}

static bool push_int(struct machine *m, int64_t integer)
{
    return pickle_push(m, (struct pickle_value){.kind = PICKLE_INT, .integer = integer});
}

static bool push_none(struct machine *m)
{
    return pickle_push(m, (struct pickle_value){.kind = PICKLE_NONE});
}

static struct pickle_value new_container(struct machine *m, enum pickle_kind kind)
{
    return (struct pickle_value){.kind = (uint8_t)kind, .id = m->n_containers++};
}

/* Whether there are n values above the innermost mark. */
static bool pickle_has(struct machine *m, size_t n)
{
    size_t bottom = m->marks.n ? m->marks.at[m->marks.n - 1] + (size_t)1 : 0;
    return m->stack.n - bottom >= n || pickle_stop(m, not_one);
}

/* ---- texts and numbers ---- */

static bool pickle_skip(struct machine *m, uint64_t n)
{
    while (n > 0) {
        struct bytes *b = m->r->bytes;
        if (!pickle_need(m, 1))
            return false;
        size_t there = (size_t)(b->end - b->p);
        size_t step = MIN(n, there);
        b->p += step;
        n -= step;
    }
    return true;
}

static bool push_text(struct machine *m, uint64_t len)
{
    struct bytes *b = m->r->bytes;
    size_t kept = len < PICKLE_TEXT_MAX ? (size_t)len : PICKLE_TEXT_MAX;
    if (!pickle_need(m, kept))
        return false;
    struct pickle_value value = {.kind = PICKLE_TEXT};
    uint32_t n = m->r->strings->n;
    if (m->n_texts < MAX_TEXTS)
        value.id = strtab_add(m->r->strings, (const char *)b->p, kept);
    m->n_texts += m->r->strings->n - n;
    b->p += kept;
    return pickle_skip(m, len - kept) && pickle_push(m, value);
}

/* Of n bytes, two's complement. */
static bool push_long(struct machine *m, uint64_t n)
{
    uint64_t value;
    if (n > 8)
        return pickle_skip(m, n) && push_none(m);
    if (!take_number(m, (unsigned)n, &value))
        return false;
    if (n > 0 && n < 8 && value >> (8 * n - 1))
        value |= UINT64_MAX << (8 * n);
    return push_int(m, (int64_t)value);
}

static bool push_float(struct machine *m)
{
    struct pickle_value value = {.kind = PICKLE_FLOAT};
    uint64_t bits;
    if (!take_number(m, 8, &bits))
        return false;
    bits = __builtin_bswap64(bits);
    memcpy(&value.real, &bits, sizeof value.real);
    return pickle_push(m, value);
}

/* ---- containers ---- */

/* Tells of the values from `first` on, which go into a container. */
static bool pickle_tell(struct machine *m, struct pickle_value whole, size_t first)
{
    size_t step = whole.kind == PICKLE_DICT ? 2 : 1;
    if ((m->stack.n - first) % step != 0)
        return pickle_stop(m, not_one);
    for (size_t i = first; i < m->stack.n; i += step)
        if (whole.kind == PICKLE_DICT)
            m->r->set(m->r->arg, whole.id, m->stack.at[i], m->stack.at[i + 1]);
        else
            m->r->append(m->r->arg, whole, m->stack.at[i]);
    return true;
}

/* Into the container of that kind at `target`; they and what lies between are gone then. */
static bool add_members(struct machine *m, size_t target, size_t first, enum pickle_kind kind)
{
    if (m->stack.at[target].kind != kind)
        return pickle_stop(m, not_one);
    if (!pickle_tell(m, m->stack.at[target], first))
        return false;
    m->stack.n = target + 1;
    return true;
}

/* Makes one container, at `place`, of the values from `first` on. */
static bool pickle_gather(struct machine *m, size_t place, size_t first, enum pickle_kind kind)
{
    struct pickle_value whole = new_container(m, kind);
    if (!pickle_tell(m, whole, first))
        return false;
    m->stack.n = place;
    return pickle_push(m, whole);
}

/* ---- the memo ---- */

static bool pickle_put(struct machine *m, uint64_t index)
{
    if (!pickle_has(m, 1))
        return false;
    if (index > m->memo.n)
        return pickle_stop(m, not_one);
    if (index >= MAX_VALUES)
        return pickle_stop(m, too_many);
    if (index == m->memo.n)
        array_push(&m->memo, m->stack.at[m->stack.n - 1]);
    else
        m->memo.at[index] = m->stack.at[m->stack.n - 1];
    return true;
}

/* ---- opcodes ---- */

static bool do_op(struct machine *m, uint8_t code)
{
    const struct op op = ops[code];
    size_t mark = 0, n_new = op.kind == PICKLE_DICT ? 2 : 1;
    uint64_t number = 0;
    if (op.act >= PUSH_INT && !take_number(m, op.n, &number))
        return false;
    if (op.act >= POP_MARKED && op.act <= GATHER_MARKED) {
        if (m->marks.n == 0)
            return pickle_stop(m, not_one);
        mark = m->marks.at[--m->marks.n];
    }
    switch ((enum act)op.act) {
    case PUSH_CONSTANT:
        return pickle_push(m, (struct pickle_value){.kind = op.kind, .integer = op.n});
    case PUSH_FLOAT:
        return push_float(m);
    case PUSH_EMPTY:
        return pickle_push(m, new_container(m, op.kind));
    case PUSH_MARK:
        array_push(&m->marks, (uint32_t)m->stack.n);
        return pickle_push(m, (struct pickle_value){.kind = PICKLE_MARK});
    case PUSH_AGAIN:
        return pickle_has(m, 1) && pickle_push(m, m->stack.at[m->stack.n - 1]);
    case POP:
        return pickle_has(m, 1) && m->stack.n-- > 0;
    case PUT_NEXT:
        return pickle_put(m, m->memo.n);
    case ADD_ONE:
        return pickle_has(m, n_new + 1) &&
               add_members(m, m->stack.n - n_new - 1, m->stack.n - n_new, op.kind);
    case GATHER_FEW:
        return pickle_has(m, op.n) &&
               pickle_gather(m, m->stack.n - op.n, m->stack.n - op.n, op.kind);
    case POP_MARKED:
        m->stack.n = mark;
        return true;
    case ADD_MARKED:
        return mark > 0 ? add_members(m, mark - 1, mark + 1, op.kind) : pickle_stop(m, not_one);
    case GATHER_MARKED:
        return pickle_gather(m, mark, mark + 1, op.kind);
    case PUSH_INT:
        return push_int(m, op.n == 4 ? (int32_t)(uint32_t)number : (int64_t)number);
    case PUSH_LONG:
        return push_long(m, number);
    case PUSH_TEXT:
        return push_text(m, number);
    case PUSH_BYTES:
        return pickle_skip(m, number) && push_none(m);
    case GET:
        return number < m->memo.n ? pickle_push(m, m->memo.at[number]) : pickle_stop(m, not_one);
    case PUT:
        return pickle_put(m, number);
    case PROTOCOL:
        return (number >= OLDEST_PROTOCOL && number <= NEWEST_PROTOCOL) ||
               pickle_stop(m, "is of a pickle protocol that dpro does not know (2 to 5 it does)");
    case FRAME:
        return true;
    case UNKNOWN:
        break;
    }
    m->r->bytes->p--;
    return pickle_stop(m, strchr("cRboi\x81\x82\x83\x84\x92\x93PQ", code) && code
                              ? "asks Python to make objects; only plain data is read"
                              : not_one);
}

bool pickle_begins(const void *bytes, size_t n)
{
    const unsigned char *p = bytes;
    return n > 2 && p[0] == OP_PROTO && p[1] >= OLDEST_PROTOCOL && p[1] <= NEWEST_PROTOCOL;
}

bool pickle_read(struct pickle_reader *reader, struct pickle_value *whole)
{
    struct machine m = {.r = reader};
    uint8_t op = 0;
    bool good = true;
    reader->fail = NULL;
    while (good && (good = pickle_need(&m, 1))) {
        op = *reader->bytes->p++;
        if (op == OP_STOP)
            break;
        good = m.n_containers < UINT32_MAX - 1 ? do_op(&m, op) : pickle_stop(&m, "is too large");
    }
    good = good && pickle_has(&m, 1);
    if (good)
        *whole = m.stack.at[m.stack.n - 1];
    FREE_ALL(&m.stack, &m.memo, &m.marks);
    return good;
}
