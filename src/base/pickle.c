/* base/pickle.c: see pickle.h. Opcodes have the names of Python's pickletools. */
#include "base/pickle.h"

#include <string.h>

#include "base/array.h"

enum {
    OLDEST_PROTOCOL = 2,
    NEWEST_PROTOCOL = 5,
    MAX_VALUES = 1 << 25, /* on the stack, in the memo */
    MAX_TEXTS = 1 << 22,  /* different ones */
};

enum opcode {
    OP_MARK = '(',
    OP_STOP = '.',
    OP_POP = '0',
    OP_POP_MARK = '1',
    OP_DUP = '2',
    OP_BINBYTES = 'B',
    OP_SHORT_BINBYTES = 'C',
    OP_BINFLOAT = 'G',
    OP_BININT = 'J',
    OP_BININT1 = 'K',
    OP_BININT2 = 'M',
    OP_NONE = 'N',
    OP_BINSTRING = 'T',
    OP_SHORT_BINSTRING = 'U',
    OP_BINUNICODE = 'X',
    OP_EMPTY_LIST = ']',
    OP_APPEND = 'a',
    OP_APPENDS = 'e',
    OP_BINGET = 'h',
    OP_LONG_BINGET = 'j',
    OP_DICT = 'd',
    OP_LIST = 'l',
    OP_BINPUT = 'q',
    OP_LONG_BINPUT = 'r',
    OP_SETITEM = 's',
    OP_TUPLE = 't',
    OP_EMPTY_TUPLE = ')',
    OP_SETITEMS = 'u',
    OP_EMPTY_DICT = '}',
    OP_PROTO = 0x80,
    OP_TUPLE1 = 0x85,
    OP_TUPLE2 = 0x86,
    OP_TUPLE3 = 0x87,
    OP_NEWTRUE = 0x88,
    OP_NEWFALSE = 0x89,
    OP_LONG1 = 0x8a,
    OP_LONG4 = 0x8b,
    OP_SHORT_BINUNICODE = 0x8c,
    OP_BINUNICODE8 = 0x8d,
    OP_BINBYTES8 = 0x8e,
    OP_EMPTY_SET = 0x8f,
    OP_ADDITEMS = 0x90,
    OP_FROZENSET = 0x91,
    OP_MEMOIZE = 0x94,
    OP_FRAME = 0x95,
    OP_BYTEARRAY8 = 0x96,
};

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

static bool stop(struct machine *m, const char *why)
{
    if (!m->r->fail) {
        m->r->fail = why;
        m->r->fail_offset = bytes_offset(m->r->bytes);
    }
    return false;
}

static bool need(struct machine *m, size_t n)
{
    return bytes_need(m->r->bytes, n) || stop(m, "the file ends in the middle of it");
}

/* A little-endian number of n bytes. */
static bool take_number(struct machine *m, unsigned n, uint64_t *value)
{
    if (!need(m, n))
        return false;
    *value = 0;
    for (unsigned i = 0; i < n; i++)
        *value |= (uint64_t)m->r->bytes->p[i] << (8 * i);
    m->r->bytes->p += n;
    return true;
}

static bool push(struct machine *m, struct pickle_value value)
{
    if (m->stack.n >= MAX_VALUES)
        return stop(m, too_many);
    array_push(&m->stack, value);
    return true;
}

static bool push_int(struct machine *m, int64_t integer)
{
    return push(m, (struct pickle_value){.kind = PICKLE_INT, .integer = integer});
}

static bool push_bool(struct machine *m, bool value)
{
    return push(m, (struct pickle_value){.kind = PICKLE_BOOL, .integer = value});
}

static bool push_none(struct machine *m)
{
    return push(m, (struct pickle_value){.kind = PICKLE_NONE});
}

static struct pickle_value new_container(struct machine *m, enum pickle_kind kind)
{
    return (struct pickle_value){.kind = (uint8_t)kind, .id = m->n_containers++};
}

/* Whether there are n values above the innermost mark. */
static bool has(struct machine *m, size_t n)
{
    size_t bottom = m->marks.n ? m->marks.at[m->marks.n - 1] + (size_t)1 : 0;
    return m->stack.n - bottom >= n || stop(m, not_one);
}

/* ---- texts and numbers ---- */

static bool skip(struct machine *m, uint64_t n)
{
    while (n > 0) {
        struct bytes *b = m->r->bytes;
        if (!need(m, 1))
            return false;
        size_t there = (size_t)(b->end - b->p);
        size_t step = n < there ? (size_t)n : there;
        b->p += step;
        n -= step;
    }
    return true;
}

static bool push_text(struct machine *m, uint64_t len)
{
    struct bytes *b = m->r->bytes;
    size_t kept = len < PICKLE_TEXT_MAX ? (size_t)len : PICKLE_TEXT_MAX;
    if (!need(m, kept))
        return false;
    struct pickle_value value = {.kind = PICKLE_TEXT};
    uint32_t n = m->r->strings->n;
    if (m->n_texts < MAX_TEXTS)
        value.id = strtab_add(m->r->strings, (const char *)b->p, kept);
    m->n_texts += m->r->strings->n - n;
    b->p += kept;
    return skip(m, len - kept) && push(m, value);
}

/* Of n bytes, two's complement. */
static bool push_long(struct machine *m, uint64_t n)
{
    uint64_t value;
    if (n > 8)
        return skip(m, n) && push_none(m);
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
    return push(m, value);
}

/* What has its length before it: a text, bytes, or a number. */
static bool push_sized(struct machine *m, uint8_t op)
{
    uint64_t len;
    switch (op) {
    case OP_SHORT_BINUNICODE:
    case OP_SHORT_BINSTRING:
        return take_number(m, 1, &len) && push_text(m, len);
    case OP_BINUNICODE:
    case OP_BINSTRING:
        return take_number(m, 4, &len) && push_text(m, len);
    case OP_BINUNICODE8:
        return take_number(m, 8, &len) && push_text(m, len);
    case OP_LONG1:
        return take_number(m, 1, &len) && push_long(m, len);
    case OP_LONG4:
        return take_number(m, 4, &len) && push_long(m, len);
    case OP_SHORT_BINBYTES:
        return take_number(m, 1, &len) && skip(m, len) && push_none(m);
    case OP_BINBYTES:
        return take_number(m, 4, &len) && skip(m, len) && push_none(m);
    default: /* OP_BINBYTES8, OP_BYTEARRAY8 */
        return take_number(m, 8, &len) && skip(m, len) && push_none(m);
    }
}

/* ---- containers ---- */

/* Values from `first` on go into the dict at `target`; they and what lies between are gone then. */
static bool set_members(struct machine *m, size_t target, size_t first)
{
    if ((m->stack.n - first) % 2 != 0 || m->stack.at[target].kind != PICKLE_DICT)
        return stop(m, not_one);
    for (size_t i = first; i < m->stack.n; i += 2)
        m->r->set(m->r->arg, m->stack.at[target].id, m->stack.at[i], m->stack.at[i + 1]);
    m->stack.n = target + 1;
    return true;
}

static bool append_items(struct machine *m, size_t target, size_t first)
{
    if (m->stack.at[target].kind != PICKLE_LIST)
        return stop(m, not_one);
    for (size_t i = first; i < m->stack.n; i++)
        m->r->append(m->r->arg, m->stack.at[target], m->stack.at[i]);
    m->stack.n = target + 1;
    return true;
}

/* Makes one container, at `place`, of the values from `first` on. */
static bool gather(struct machine *m, size_t place, size_t first, enum pickle_kind kind)
{
    struct pickle_value whole = new_container(m, kind);
    size_t step = kind == PICKLE_DICT ? 2 : 1;
    if ((m->stack.n - first) % step != 0)
        return stop(m, not_one);
    for (size_t i = first; i < m->stack.n; i += step)
        if (kind == PICKLE_DICT)
            m->r->set(m->r->arg, whole.id, m->stack.at[i], m->stack.at[i + 1]);
        else
            m->r->append(m->r->arg, whole, m->stack.at[i]);
    m->stack.n = place;
    return push(m, whole);
}

static bool gather_few(struct machine *m, size_t n)
{
    return has(m, n) && gather(m, m->stack.n - n, m->stack.n - n, PICKLE_TUPLE);
}

/* What is done with all values above the innermost mark. */
static bool do_marked(struct machine *m, uint8_t op)
{
    if (m->marks.n == 0)
        return stop(m, not_one);
    size_t mark = m->marks.at[--m->marks.n];
    switch (op) {
    case OP_SETITEMS:
        return mark > 0 ? set_members(m, mark - 1, mark + 1) : stop(m, not_one);
    case OP_APPENDS:
    case OP_ADDITEMS:
        return mark > 0 ? append_items(m, mark - 1, mark + 1) : stop(m, not_one);
    case OP_DICT:
        return gather(m, mark, mark + 1, PICKLE_DICT);
    case OP_TUPLE:
        return gather(m, mark, mark + 1, PICKLE_TUPLE);
    case OP_POP_MARK:
        m->stack.n = mark;
        return true;
    default: /* OP_LIST, OP_FROZENSET */
        return gather(m, mark, mark + 1, PICKLE_LIST);
    }
}

/* ---- the memo ---- */

static bool put(struct machine *m, uint64_t index)
{
    if (!has(m, 1))
        return false;
    if (index > m->memo.n)
        return stop(m, not_one);
    if (index >= MAX_VALUES)
        return stop(m, too_many);
    if (index == m->memo.n)
        array_push(&m->memo, m->stack.at[m->stack.n - 1]);
    else
        m->memo.at[index] = m->stack.at[m->stack.n - 1];
    return true;
}

static bool get(struct machine *m, uint64_t index)
{
    return index < m->memo.n ? push(m, m->memo.at[index]) : stop(m, not_one);
}

/* ---- opcodes ---- */

static bool take_protocol(struct machine *m)
{
    uint64_t version;
    if (!take_number(m, 1, &version))
        return false;
    return (version >= OLDEST_PROTOCOL && version <= NEWEST_PROTOCOL) ||
           stop(m, "is of a pickle protocol that dpro does not know (2 to 5 it does)");
}

static bool do_memo(struct machine *m, uint8_t op)
{
    uint64_t index = m->memo.n;
    bool is_long = op == OP_LONG_BINGET || op == OP_LONG_BINPUT;
    if (op != OP_MEMOIZE && !take_number(m, is_long ? 4 : 1, &index))
        return false;
    return op == OP_BINGET || op == OP_LONG_BINGET ? get(m, index) : put(m, index);
}

static bool push_mark(struct machine *m)
{
    array_push(&m->marks, (uint32_t)m->stack.n);
    return push(m, (struct pickle_value){.kind = PICKLE_MARK});
}

static bool pop(struct machine *m)
{
    if (!has(m, 1))
        return false;
    m->stack.n--;
    return true;
}

static bool do_op(struct machine *m, uint8_t op)
{
    uint64_t value;
    switch (op) {
    case OP_BINGET:
    case OP_LONG_BINGET:
    case OP_BINPUT:
    case OP_LONG_BINPUT:
    case OP_MEMOIZE:
        return do_memo(m, op);
    case OP_BININT1:
        return take_number(m, 1, &value) && push_int(m, (int64_t)value);
    case OP_BININT2:
        return take_number(m, 2, &value) && push_int(m, (int64_t)value);
    case OP_BININT:
        return take_number(m, 4, &value) && push_int(m, (int32_t)(uint32_t)value);
    case OP_LONG1:
    case OP_LONG4:
    case OP_SHORT_BINUNICODE:
    case OP_BINUNICODE:
    case OP_BINUNICODE8:
    case OP_SHORT_BINSTRING:
    case OP_BINSTRING:
    case OP_SHORT_BINBYTES:
    case OP_BINBYTES:
    case OP_BINBYTES8:
    case OP_BYTEARRAY8:
        return push_sized(m, op);
    case OP_BINFLOAT:
        return push_float(m);
    case OP_NONE:
        return push_none(m);
    case OP_NEWTRUE:
    case OP_NEWFALSE:
        return push_bool(m, op == OP_NEWTRUE);
    case OP_MARK:
        return push_mark(m);
    case OP_EMPTY_DICT:
        return push(m, new_container(m, PICKLE_DICT));
    case OP_EMPTY_LIST:
    case OP_EMPTY_SET:
        return push(m, new_container(m, PICKLE_LIST));
    case OP_EMPTY_TUPLE:
        return gather_few(m, 0);
    case OP_TUPLE1:
    case OP_TUPLE2:
    case OP_TUPLE3:
        return gather_few(m, 1 + (size_t)(op - OP_TUPLE1));
    case OP_SETITEM:
        return has(m, 3) && set_members(m, m->stack.n - 3, m->stack.n - 2);
    case OP_APPEND:
        return has(m, 2) && append_items(m, m->stack.n - 2, m->stack.n - 1);
    case OP_SETITEMS:
    case OP_APPENDS:
    case OP_ADDITEMS:
    case OP_DICT:
    case OP_LIST:
    case OP_FROZENSET:
    case OP_TUPLE:
    case OP_POP_MARK:
        return do_marked(m, op);
    case OP_POP:
        return pop(m);
    case OP_DUP:
        return has(m, 1) && push(m, m->stack.at[m->stack.n - 1]);
    case OP_PROTO:
        return take_protocol(m);
    case OP_FRAME:
        return take_number(m, 8, &value);
    default:
        m->r->bytes->p--;
        return stop(m, strchr("cRboi\x81\x82\x83\x84\x92\x93PQ", op) && op
                           ? "asks Python to make objects; only plain data is read"
                           : not_one);
    }
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
    while (good && (good = need(&m, 1))) {
        op = *reader->bytes->p++;
        if (op == OP_STOP)
            break;
        good = m.n_containers < UINT32_MAX - 1 ? do_op(&m, op) : stop(&m, "is too large");
    }
    good = good && has(&m, 1);
    if (good)
        *whole = m.stack.at[m.stack.n - 1];
    array_fini(&m.stack);
    array_fini(&m.memo);
    array_fini(&m.marks);
    return good;
}
