/* Floating-point operations (a multiplication and an addition are two) of the ops that PyTorch does
 * nearly all of them in, by the formulas of torch/utils/flop_counter.py; and the bytes that each
 * must read and write at least once. */
#include "ingest/pytorch/kineto.h"

enum formula { BY_PRODUCT, BY_RECURRENCE, BY_CONVOLUTION, BY_ATTENTION };

static const struct counted {
    const char *name;
    uint8_t formula, family;
    uint8_t first; /* of its tensors: the first that the formula is of */
    bool backward; /* the input before `first` is the gradient of its output */
} counted[] = {
    {"aten::mm", BY_PRODUCT, FAMILY_MATMUL, 0, false},
    {"aten::bmm", BY_PRODUCT, FAMILY_MATMUL, 0, false},
    {"aten::addmm", BY_PRODUCT, FAMILY_MATMUL, 1, false},
    {"aten::_addmm_activation", BY_PRODUCT, FAMILY_MATMUL, 1, false},
    {"aten::baddbmm", BY_PRODUCT, FAMILY_MATMUL, 1, false},
    {"aten::_scaled_mm", BY_PRODUCT, FAMILY_MATMUL, 0, false},
    {"aten::mkldnn_rnn_layer", BY_RECURRENCE, FAMILY_MATMUL, 0, false},
    {"aten::mkldnn_rnn_layer_backward", BY_RECURRENCE, FAMILY_MATMUL, 0, true},
    {"aten::convolution", BY_CONVOLUTION, FAMILY_CONVOLUTION, 0, false},
    {"aten::convolution_backward", BY_CONVOLUTION, FAMILY_CONVOLUTION, 1, true},
    {"aten::_scaled_dot_product_flash_attention", BY_ATTENTION, FAMILY_ATTENTION, 0, false},
    {"aten::_scaled_dot_product_flash_attention_for_cpu", BY_ATTENTION, FAMILY_ATTENTION, 0, false},
    {"aten::_scaled_dot_product_efficient_attention", BY_ATTENTION, FAMILY_ATTENTION, 0, false},
    {"aten::_scaled_dot_product_cudnn_attention", BY_ATTENTION, FAMILY_ATTENTION, 0, false},
    {"aten::_scaled_dot_product_flash_attention_backward", BY_ATTENTION, FAMILY_ATTENTION, 1, true},
    {"aten::_scaled_dot_product_flash_attention_for_cpu_backward", BY_ATTENTION, FAMILY_ATTENTION,
     1, true},
    {"aten::_scaled_dot_product_efficient_attention_backward", BY_ATTENTION, FAMILY_ATTENTION, 1,
     true},
    {"aten::_scaled_dot_product_cudnn_attention_backward", BY_ATTENTION, FAMILY_ATTENTION, 1, true},
};

static const struct counted *find_counted(const char *name, size_t len)
{
    for (size_t i = 0; i < sizeof counted / sizeof *counted; i++)
        if (text_n_is(name, len, counted[i].name))
            return &counted[i];
    return NULL;
}

bool op_is_counted(const char *name, size_t len)
{
    return find_counted(name, len) != NULL;
}

bool op_shapes_read(struct op_shapes *shapes, struct json *js)
{
    unsigned input = 0;
    int depth = 0;
    uint64_t product = 1;
    bool numbers = false, opened = false, done = false, first = true; /* the first entry */
    const char *text;
    size_t len;
    bool cut;
    *shapes = (struct op_shapes){0};
    if (!json_raw(js, JSON_TEXT_MAX, &text, &len, &cut) || cut)
        return false;
    for (size_t i = 0; i < len; i++) {
        char c = text[i];
        uint64_t v = c == 'T';
        input += c == ',' && depth == 1;
        if (c == '[') {
            depth++;
            numbers = false;
            opened = true;
            product = 1;
        } else if (c == ']') {
            /* in a list of tensors, [] can only be one without dimensions, which has one element */
            numbers |= opened && depth >= 3;
            shapes->blank |= first && opened && !numbers && depth == 2;
            first &= depth > 2;
            opened = false;
            if (numbers && !done && __builtin_add_overflow(shapes->numel, product, &shapes->numel))
                shapes->numel = UINT64_MAX;
            numbers = false;
            done |= --depth == 1 && shapes->numel > 0;
        }
        product = c == '-' ? 0 : product;
        if (c >= '0' && c <= '9') {
            for (v = 0; i < len && text[i] >= '0' && text[i] <= '9'; i++)
                v = MIN(v, UINT64_MAX / 16) * 10 + (uint64_t)(text[i] - '0');
            i--;
            numbers |= depth >= 2;
            opened = false;
            if (__builtin_mul_overflow(product, v, &product))
                product = 0;
        } else if (c != 'T' && c != 'F') {
            continue;
        }
        if (input < MOST_INPUTS && shapes->n[input] < MOST_DIMS)
            shapes->at[input][shapes->n[input]++] = (int64_t)MIN(v, (uint64_t)INT32_MAX);
    }
    return true;
}

static double dims_product(const int64_t *dims, unsigned n)
{
    double all = 1;
    for (unsigned i = 0; i < n; i++)
        all *= (double)dims[i];
    return all;
}

/* The elements of a tensor, or of the first of all those before `end`. */
static double count_elements(const struct op_shapes *s, unsigned first, unsigned end)
{
    double sum = 0;
    for (unsigned i = first; i < end && i < MOST_INPUTS; i++)
        sum += s->n[i] ? dims_product(s->at[i], s->n[i]) : 0;
    return sum;
}

/* [.., m, k] x [.., k, n] */
static double of_product(const struct op_shapes *in, unsigned a, double *out)
{
    unsigned n = in->n[a];
    if (n < 2 || n > 3 || in->n[a + 1] != n)
        return 0;
    double columns = (double)in->at[a + 1][n - 1];
    *out = dims_product(in->at[a], n - 1) * columns;
    return 2 * dims_product(in->at[a], n) * columns;
}

/* Of a sequence [t, b, i] with both weights of a layer, [g * h, i] and [g * h, h] for its g gates.
 * Backward each product has two gradients. */
static double of_recurrence(const struct op_shapes *in, unsigned a, bool backward, double *out)
{
    if (in->n[a] != 3 || in->n[a + 1] != 2 || in->n[a + 2] != 2)
        return 0;
    double places = dims_product(in->at[a], 2);
    *out = places * (double)in->at[a + 2][1];
    return (backward ? 4 : 2) * places *
           (dims_product(in->at[a + 1], 2) + dims_product(in->at[a + 2], 2));
}

/* Of input and weight, with (behind those and the bias) stride, padding, dilation, transposed. */
static double of_convolution(const struct op_shapes *in, const struct op_shapes *values, unsigned a,
                             bool backward, double *out)
{
    const int64_t *input = in->at[a], *weight = in->at[a + 1];
    unsigned n = in->n[a], stride = a + 3;
    if (n < 3 || n > 5 || in->n[a + 1] != n)
        return 0;
    double per_place = dims_product(weight + 1, n - 1);
    bool transposed = values->n[stride + 3] > 0 && values->at[stride + 3][0];
    const int64_t *wide = backward ? in->at[0] : NULL; /* its output */
    int64_t found[MOST_DIMS] = {input[0], transposed ? weight[1] : weight[0]};
    for (unsigned i = 2; i < n && !wide; i++) {
        unsigned d = i - 2;
        if (values->n[stride] <= d || values->n[stride + 1] <= d || values->n[stride + 2] <= d ||
            values->at[stride][d] == 0)
            return -1;
        int64_t step = values->at[stride][d], reach = values->at[stride + 2][d] * (weight[i] - 1);
        int64_t pad = 2 * values->at[stride + 1][d];
        found[i] = transposed ? (input[i] - 1) * step - pad + reach + 1
                              : (input[i] + pad - reach - 1) / step + 1;
    }
    *out = dims_product(wide ? wide : found, n);
    double flops = 2 * per_place * (transposed ? dims_product(input, n) : *out);
    /* gradients of the input and of the weight, as far as they are asked for */
    unsigned mask = stride + 6;
    bool known = values->n[mask] == 3;
    return backward ? flops * (known ? (double)(values->at[mask][0] + values->at[mask][1]) : 2)
                    : flops;
}

/* [b, h, s, d] x [b, h, d, t] x [b, h, t, v]; masks are not taken into account. Backward the scores
 * are computed again, and both products have two gradients. */
static double of_attention(const struct op_shapes *in, unsigned a, bool backward, double *out)
{
    const int64_t *query = in->at[a], *key = in->at[a + 1], *value = in->at[a + 2];
    if (in->n[a] != 4 || in->n[a + 1] != 4 || in->n[a + 2] != 4)
        return 0;
    double scores = dims_product(query, 3) * (double)key[2];
    double first = 2 * scores * (double)query[3], second = 2 * scores * (double)value[3];
    *out = dims_product(query, 3) * (double)value[3];
    return backward ? 3 * first + 2 * second : first + second;
}

void op_arithmetic(const char *name, size_t len, const struct op_shapes *inputs,
                   const struct op_shapes *values, uint64_t item_bytes, struct arithmetic *work)
{
    const struct counted *of = find_counted(name, len);
    double out = 0, flops = 0;
    if (of && of->formula == BY_PRODUCT)
        flops = of_product(inputs, of->first, &out);
    else if (of && of->formula == BY_RECURRENCE)
        flops = of_recurrence(inputs, of->first, of->backward, &out);
    else if (of && of->formula == BY_CONVOLUTION)
        flops = of_convolution(inputs, values, of->first, of->backward, &out);
    else if (of)
        flops = of_attention(inputs, of->first, of->backward, &out);
    if (of && flops < 0)
        work->flops = flops;
    if (flops <= 0 || !of)
        return;
    /* backward it writes gradients of what it reads, beside that of its output */
    double read = count_elements(inputs, 0, MOST_INPUTS);
    *work = (struct arithmetic){
        flops, (double)(item_bytes ? item_bytes : 4) * (of->backward ? 2 * read - out : read + out),
        of->family,
        item_bytes >= 8   ? PRECISION_64
        : item_bytes == 2 ? PRECISION_16
        : item_bytes == 1 ? PRECISION_8
                          : PRECISION_32};
}
