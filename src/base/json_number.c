/* Decimal texts as integers, without floating point. */

#include "base/json.h"

enum json_value json_unsigned(const char *text, size_t len, uint64_t *value)
{
    uint64_t v = 0;
    int64_t decimal;
    size_t i = 0;
    bool over = false;
    for (unsigned digit; i < len && (digit = (unsigned)(unsigned char)text[i] - '0') <= 9; i++)
        if (len <= 19)
            v = v * 10 + digit;
        else
            over |= __builtin_mul_overflow(v, 10, &v) || __builtin_add_overflow(v, digit, &v);
    if (i == len && len > 0 && len <= 64) {
        *value = over ? UINT64_MAX : v;
        return over ? JSON_SATURATED : JSON_VALUE;
    }
    enum json_value rc = json_decimal(text, len, 0, &decimal);
    if (rc == JSON_NO_VALUE || decimal < 0)
        return JSON_NO_VALUE;
    *value = rc == JSON_SATURATED ? UINT64_MAX : (uint64_t)decimal;
    return rc;
}

/* The general form: up to 19 digits as an integer and a power of ten. */
enum json_value json_decimal(const char *text, size_t len, int scale, int64_t *value)
{
    size_t i = 0;
    bool minus = false, any = false, fraction = false;
    uint64_t mantissa = 0;
    int64_t power = scale;
    if (i < len && (text[i] == '-' || text[i] == '+'))
        minus = text[i++] == '-';
    bool round_up = false;
    int n_digits = 0;
    bool dropped = false;
    for (; i < len; i++) {
        if (text[i] == '.' && !fraction) {
            fraction = true;
            continue;
        }
        unsigned digit = (unsigned)(unsigned char)text[i] - '0';
        if (digit > 9)
            break;
        any = true;
        if (n_digits < 19) {
            mantissa = mantissa * 10 + digit;
            n_digits += mantissa > 0;
            power -= fraction;
        } else {
            if (!dropped)
                round_up = digit >= 5;
            dropped = true;
            power += !fraction;
        }
    }
    if (!any)
        return JSON_NO_VALUE;
    if (i < len && (text[i] | 0x20) == 'e') {
        bool exp_minus = false;
        int64_t exponent = 0;
        size_t first = ++i;
        if (i < len && (text[i] == '-' || text[i] == '+')) {
            exp_minus = text[i++] == '-';
            first = i;
        }
        for (; i < len; i++) {
            unsigned digit = (unsigned)(unsigned char)text[i] - '0';
            if (digit > 9)
                break;
            if (exponent < 1000000)
                exponent = exponent * 10 + digit;
        }
        if (i == first)
            return JSON_NO_VALUE;
        power += exp_minus ? -exponent : exponent;
    }
    if (i < len)
        return JSON_NO_VALUE;
    mantissa += round_up && power >= 0;
    bool saturated = false;
    if (mantissa == 0)
        power = 0;
    for (; power > 0 && !saturated; power--)
        saturated = __builtin_mul_overflow(mantissa, 10, &mantissa);
    for (round_up = false; power < 0 && (mantissa || round_up); power++) {
        round_up = mantissa % 10 >= 5;
        mantissa /= 10;
    }
    mantissa += round_up;
    if (saturated || mantissa > (uint64_t)INT64_MAX) {
        *value = minus ? INT64_MIN : INT64_MAX;
        return JSON_SATURATED;
    }
    *value = minus ? -(int64_t)mantissa : (int64_t)mantissa;
    return JSON_VALUE;
}
