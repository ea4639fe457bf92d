/* Models of jobs that nobody ran. */
#include "generated_job.h"
#include "base/base.h"

#include "cost/program/buckets.h"

enum { MIB = 1 << 20 };

/* A layer: its multiplications, and the elements of its parameters. */
struct layer {
    char name[48];
    double flops;
    uint64_t sizes[4];
    uint32_t n_sizes;
};
struct layers {
    ARRAY(struct layer) list;
};

static void add_layer(struct layers *layers, double flops, uint64_t a, uint64_t b, uint64_t c,
                      uint64_t d, const char *format, ...) __attribute__((format(printf, 7, 8)));

static void add_layer(struct layers *layers, double flops, uint64_t a, uint64_t b, uint64_t c,
                      uint64_t d, const char *format, ...)
{
    struct layer layer = {.flops = flops, .sizes = {a, b, c, d}};
    va_list args;
    va_start(args, format);
    vsnprintf(layer.name, sizeof layer.name, format, args);
    va_end(args);
    while (layer.n_sizes < 4 && layer.sizes[layer.n_sizes])
        layer.n_sizes++;
    array_push(&layers->list, layer);
}

/* A convolution of an image of side x side, and its batch normalization. */
static void add_conv(struct layers *layers, uint32_t from, uint32_t to, uint32_t kernel,
                     uint32_t side, const char *name)
{
    uint64_t weights = (uint64_t)from * to * kernel;
    add_layer(layers, (double)weights * side * side, weights, to, to, 0, "%s", name);
}

static void add_resnet50(struct layers *layers)
{
    static const uint32_t blocks[] = {3, 4, 6, 3};
    uint32_t from = 64;
    char name[32];
    add_conv(layers, 3, 64, 49, 112, "conv1");
    for (uint32_t stage = 0; stage < 4; stage++) {
        uint32_t width = 64u << stage, side = 56u >> stage;
        for (uint32_t b = 0; b < blocks[stage]; b++) {
            snprintf(name, sizeof name, "layer%u.%u.conv", stage + 1, b);
            if (b == 0)
                add_conv(layers, from, width * 4, 1, side, name);
            add_conv(layers, from, width, 1, side, name);
            add_conv(layers, width, width, 9, side, name);
            add_conv(layers, width, width * 4, 1, side, name);
            from = width * 4;
        }
    }
    add_layer(layers, 2048 * 1000, 2048 * 1000, 1000, 0, 0, "fc");
}

static void add_vgg16(struct layers *layers)
{
    static const uint32_t counts[] = {2, 2, 3, 3, 3}, widths[] = {64, 128, 256, 512, 512};
    uint32_t from = 3;
    for (uint32_t stage = 0; stage < 5; stage++)
        for (uint32_t i = 0; i < counts[stage]; i++) {
            uint64_t weights = (uint64_t)from * widths[stage] * 9, side = 224u >> stage;
            add_layer(layers, (double)weights * (double)(side * side), weights, widths[stage], 0, 0,
                      "features.%u.%u", stage, i);
            from = widths[stage];
        }
    add_layer(layers, 25088.0 * 4096, 25088u * 4096, 4096, 0, 0, "classifier.0");
    add_layer(layers, 4096.0 * 4096, 4096 * 4096, 4096, 0, 0, "classifier.3");
    add_layer(layers, 4096.0 * 1000, 4096 * 1000, 1000, 0, 0, "classifier.6");
}

/* Its 94 convolutions, by size as they follow one another. */
static void add_inceptionv3(struct layers *layers)
{
    static const struct {
        uint32_t n, from, to, kernel, side;
    } groups[] = {{1, 3, 32, 9, 149},   {1, 32, 32, 9, 147},   {1, 32, 64, 9, 147},
                  {1, 64, 80, 1, 73},   {1, 80, 192, 9, 71},   {9, 256, 64, 1, 35},
                  {6, 64, 96, 9, 35},   {6, 64, 64, 25, 35},   {1, 288, 384, 9, 17},
                  {3, 96, 96, 9, 17},   {16, 768, 160, 1, 17}, {24, 160, 176, 7, 17},
                  {4, 768, 192, 1, 17}, {2, 192, 320, 9, 8},   {8, 1600, 384, 1, 8},
                  {8, 384, 384, 3, 8},  {2, 448, 384, 9, 8}};
    for (size_t g = 0; g < sizeof groups / sizeof *groups; g++)
        for (uint32_t i = 0; i < groups[g].n; i++) {
            char name[32];
            snprintf(name, sizeof name, "mixed%zu.%u.conv", g, i);
            add_conv(layers, groups[g].from, groups[g].to, groups[g].kernel, groups[g].side, name);
        }
    add_layer(layers, 2048 * 1000, 2048 * 1000, 1000, 0, 0, "fc");
}

static void add_bert_base(struct layers *layers)
{
    enum { WIDTH = 768, INNER = 3072, WORDS = 30522, LENGTH = 128 };
    double square = (double)WIDTH * WIDTH * LENGTH;
    add_layer(layers, 1e6, (uint64_t)WORDS * WIDTH, 512 * WIDTH, 2 * WIDTH, 0, "embeddings");
    add_layer(layers, 1e6, WIDTH, WIDTH, 0, 0, "embeddings.norm");
    for (uint32_t l = 0; l < 12; l++) {
        static const char *const parts[] = {"query", "key", "value", "output"};
        for (uint32_t p = 0; p < 4; p++)
            add_layer(layers, square, WIDTH * WIDTH, WIDTH, 0, 0, "layer.%u.%s", l, parts[p]);
        add_layer(layers, 1e6, WIDTH, WIDTH, 0, 0, "layer.%u.attention.norm", l);
        add_layer(layers, square * 4, WIDTH * INNER, INNER, 0, 0, "layer.%u.inner", l);
        add_layer(layers, square * 4, WIDTH * INNER, WIDTH, 0, 0, "layer.%u.outer", l);
        add_layer(layers, 1e6, WIDTH, WIDTH, 0, 0, "layer.%u.norm", l);
    }
    add_layer(layers, square / LENGTH, WIDTH * WIDTH, WIDTH, 0, 0, "pooler");
    add_layer(layers, 1e6, WIDTH, 1, 0, 0, "classifier");
}

static const struct {
    const char *name;
    void (*add)(struct layers *layers);
    double forward_ns, backward_ns; /* batch 32 on a V100 */
} known[] = {{"resnet50", add_resnet50, 34.8e6, 71.3e6},
             {"vgg16", add_vgg16, 38.0e6, 82.0e6},
             {"inceptionv3", add_inceptionv3, 41.0e6, 86.0e6},
             {"bert-base", add_bert_base, 107.5e6, 185.7e6}};

/* ---- from layers to a model ---- */

static struct dpro_model *empty_model(uint32_t n_tensors, uint32_t n_ops, uint32_t n_ranks)
{
    struct dpro_model *m = mem_array(1, sizeof *m);
    m->capabilities = model_capabilities(DPRO_STACK_DDP);
    m->tensors = arena_array(&m->arena, n_tensors + (size_t)1, sizeof *m->tensors);
    m->programs = arena_array(&m->arena, 1, sizeof *m->programs);
    m->ranks = arena_array(&m->arena, n_ranks + (size_t)1, sizeof *m->ranks);
    struct model_op *ops = arena_array(&m->arena, n_ops + (size_t)1, sizeof *ops);
    m->n_tensors = n_tensors;
    m->baseline = buckets_make(m, &m->arena);
    m->programs[0].ops = ops;
    m->n_programs = 1;
    m->n_ranks = m->net.collective.n_ranks = n_ranks;
    for (uint32_t r = 0; r < n_ranks; r++)
        m->ranks[r] = (struct model_rank){.rank = (int)r, .work_scale = 1};
    return m;
}

static void add_op(struct dpro_model *m, const char *name, enum dpro_op_kind phase, double work_ns,
                   uint32_t needs, uint32_t tensor)
{
    struct model_program *program = &m->programs[0];
    program->ops[program->n_ops++] = (struct model_op){.name = name,
                                                       .phase = (uint8_t)phase,
                                                       .needs = needs,
                                                       .tensor = tensor,
                                                       .work_ns = (int64_t)work_ns};
}

/* Each layer computes in three ops forward, and in three backward before its gradients are ready,
 * all at once. */
static void add_ops(struct dpro_model *m, const struct layers *layers, double forward_ns,
                    double backward_ns)
{
    double flops = 0;
    uint32_t tensor = 0;
    for (size_t i = 0; i < layers->list.n; i++)
        flops += layers->list.at[i].flops;
    for (size_t i = 0; i < layers->list.n; i++)
        for (uint32_t part = 0; part < 3; part++)
            add_op(m, "forward", DPRO_OP_FW,
                   forward_ns * layers->list.at[i].flops / flops / 3 + 1000, MODEL_NONE,
                   MODEL_NONE);
    for (size_t i = layers->list.n; i-- > 0;) {
        const struct layer *layer = &layers->list.at[i];
        for (uint32_t part = 0; part < 3; part++)
            add_op(m, "backward", DPRO_OP_BW, backward_ns * layer->flops / flops / 3 + 1000,
                   MODEL_NONE, part == 2 ? tensor++ : MODEL_NONE);
        for (uint32_t s = 1; s < layer->n_sizes; s++)
            add_op(m, "backward", DPRO_OP_BW, 0, MODEL_NONE, tensor++);
    }
    add_op(m, "update", DPRO_OP_UPDATE, 1e6, MODEL_ALL, MODEL_NONE);
}

struct dpro_model *generate_job(const char *name, uint32_t n_ranks)
{
    struct layers layers = {0};
    struct dpro_model *m = NULL;
    uint32_t n_tensors = 0, tensor = 0;
    size_t k = 0;
    while (k < sizeof known / sizeof *known && strcmp(known[k].name, name) != 0)
        k++;
    if (k == sizeof known / sizeof *known)
        return NULL;
    known[k].add(&layers);
    for (size_t i = 0; i < layers.list.n; i++)
        n_tensors += layers.list.at[i].n_sizes;
    m = empty_model(n_tensors, (uint32_t)layers.list.n * 6 + n_tensors + 1, n_ranks);
    for (size_t i = layers.list.n; i-- > 0 && m;)
        for (uint32_t s = 0; s < layers.list.at[i].n_sizes; s++) {
            const struct layer *layer = &layers.list.at[i];
            char text[64];
            int len = snprintf(text, sizeof text, "%s.%u", layer->name, s);
            const char *copy = arena_copy_string(&m->arena, text, (size_t)len);
            if (!copy) {
                dpro_model_destroy(m);
                m = NULL;
                break;
            }
            m->tensors[tensor] = (struct model_tensor){copy, layer->sizes[s] * 4, tensor, 0, 0};
            tensor++;
        }
    if (m) {
        add_ops(m, &layers, known[k].forward_ns, known[k].backward_ns);
        for (uint32_t r = 0; r < n_ranks; r++)
            m->ranks[r].work_scale = 1 + 0.02 * (double)(map_mix(r + 1) >> 11) * 0x1p-53;
        m->net = (struct model_net){.collective.algorithm = MODEL_RING,
                                    .collective.n_ranks = n_ranks,
                                    .gate.n_streams = 1,
                                    .gate.in_order = true,
                                    .link.chunk_bytes = MIB,
                                    .link.byte_ns = {0.08, 0},
                                    .link.message_ns = {5000, 0},
                                    .collective.reduce_ns = {0.005, 0},
                                    .collective.overhead_ns = {20000, 0},
                                    .compute.launch_ns = {15000, 0}};
        buckets_by_cap(m, MIB, 25 * MIB, &m->baseline);
    }
    array_fini(&layers.list);
    return m;
}

/* As much of a tensor's name as has so many parts; its number at the end is none. */
static size_t prefix_of(const char *name, uint32_t parts)
{
    const char *end = strrchr(name, '.'), *at = name;
    while (parts-- > 0 && at < end)
        at += strcspn(at + 1, ".") + 1;
    return (size_t)(at - name);
}

/* Neighbouring tensors whose names begin alike are of one module. */
static void add_level(struct dpro_model *m, uint32_t parts)
{
    struct model_program *p = &m->programs[0];
    uint32_t begin = MODEL_NONE, n_modules = m->n_modules;
    const char *last = NULL;
    for (uint32_t i = 0; i < p->n_ops; i++) {
        if (p->ops[i].phase != DPRO_OP_BW || p->ops[i].tensor == MODEL_NONE) {
            begin = p->ops[i].phase == DPRO_OP_BW && begin == MODEL_NONE ? i : begin;
            continue;
        }
        const char *name = m->tensors[p->ops[i].tensor].name;
        size_t n = prefix_of(name, parts);
        if (!last || strlen(last) != n || strncmp(last, name, n) != 0) {
            last = arena_copy_string(&m->arena, name, n);
            uint32_t parent = MODEL_NONE;
            for (uint32_t k = 0; k < n_modules; k++) {
                size_t len = strlen(m->modules[k].name);
                if (len < n && strncmp(m->modules[k].name, last, len) == 0)
                    parent = k;
            }
            struct model_module *module = &m->modules[m->n_modules];
            *module = (struct model_module){
                .name = last, .class = parts == 1 ? "Block" : last, .parent = parent, .n_calls = 1};
            for (unsigned way = 1; way < DPRO_N_COMPUTINGS; way++) {
                double ratio = 0.6 + 0.6 * (double)(map_mix(4 * n + way) >> 11) * 0x1p-53;
                module->costs[way] = (struct computing_cost){
                    .is_known = true, .forward = {1, 0}, .backward = {ratio, 0}, .kept = 1};
            }
            p->calls[p->n_calls++] =
                (struct model_call){.module = m->n_modules++,
                                    .parent = parent, /* calls are numbered as modules */
                                    .op = begin == MODEL_NONE ? i : begin};
        }
        struct model_call *call = &p->calls[p->n_calls - 1];
        call->backward_last = i;
        call->backward_ns = 0;
        for (uint32_t k = call->op; k <= i; k++)
            call->backward_ns += p->ops[k].work_ns;
        begin = MODEL_NONE;
    }
}

void generate_modules(struct dpro_model *m)
{
    size_t most = 3 * (size_t)m->n_tensors + 1;
    m->modules = arena_array(&m->arena, most, sizeof *m->modules);
    m->programs[0].calls = arena_array(&m->arena, most, sizeof *m->programs[0].calls);
    for (uint32_t i = 0; i < m->programs[0].n_ops; i++)
        m->programs[0].ops[i].backward = m->programs[0].ops[i].phase == DPRO_OP_BW;
    for (uint32_t parts = 0; parts <= 3; parts += parts == 0 ? 2 : 1)
        add_level(m, parts);
    m->baseline = buckets_make(m, &m->arena); /* with room for them */
    buckets_by_cap(m, MIB, 25 * MIB, &m->baseline);
}

int generate_apart(struct dpro_model *m, double share)
{
    struct model_program *programs = arena_array(&m->arena, m->n_ranks, sizeof *programs);
    if (!programs)
        return -1;
    for (uint32_t r = 0; r < m->n_ranks; r++) {
        const struct model_program *from = &m->programs[m->ranks[r].program];
        programs[r] = (struct model_program){
            .ops = arena_array(&m->arena, from->n_ops + (size_t)1, sizeof *from->ops),
            .n_ops = from->n_ops};
        if (!programs[r].ops)
            return -1;
        memcpy(programs[r].ops, from->ops, from->n_ops * sizeof *from->ops);
        for (uint32_t i = 0; i < from->n_ops; i++) {
            double chance = (double)(map_mix(((uint64_t)r << 32) + i + 1) >> 11) * 0x1p-53;
            programs[r].ops[i].work_ns += (int64_t)((double)from->ops[i].work_ns * share * chance);
        }
        m->ranks[r].program = r;
    }
    m->programs = programs;
    m->n_programs = m->n_ranks;
    return 0;
}

/* ---- random ones ---- */

static uint64_t pick(uint64_t *state, uint64_t n)
{
    *state += 0x9e3779b97f4a7c15u;
    return map_mix(*state) % n;
}

struct dpro_model *generate_random(const struct generate_options *o)
{
    static const char *const names[] = {"a", "b", "c", "d", "e", "f", "g", "h",
                                        "i", "j", "k", "l", "m", "n", "o", "p"};
    uint64_t state = o->seed * 1000003;
    uint32_t n = o->n_tensors;
    struct dpro_model *m = empty_model(n, 2 * n + 2, o->n_ranks);
    if (!m)
        return NULL;
    uint64_t most_work = 10ull << pick(&state, 14), most_bits = 4 + pick(&state, 10);
    for (uint32_t t = 0; t < n; t++)
        m->tensors[t] =
            (struct model_tensor){names[t % 16], 4 + 4 * pick(&state, 1ull << most_bits), t, 0, 0};
    add_op(m, "forward", DPRO_OP_FW, (double)pick(&state, most_work * n), MODEL_NONE, MODEL_NONE);
    for (uint32_t t = n; t-- > 0 && o->cycles;) {
        add_op(m, "forward", DPRO_OP_FW, (double)pick(&state, most_work), t, MODEL_NONE);
        m->programs[0].ops[m->programs[0].n_ops - 1].needs_before = true;
    }
    for (uint32_t t = 0; t < n; t++)
        add_op(m, "backward", DPRO_OP_BW, (double)pick(&state, most_work), MODEL_NONE, t);
    if (!o->cycles)
        add_op(m, "update", DPRO_OP_UPDATE, (double)pick(&state, most_work), MODEL_ALL, MODEL_NONE);
    for (uint32_t r = 0; r < o->n_ranks && !o->alike; r++)
        m->ranks[r].work_scale = 1 + (double)pick(&state, 5);
    m->net = (struct model_net){.collective.algorithm = MODEL_RING,
                                .collective.n_ranks = o->n_ranks,
                                .gate.n_streams = o->n_streams ? o->n_streams : 1,
                                .gate.in_order = !o->any_order,
                                .link.byte_ns = {1 + (double)pick(&state, 3), 0},
                                .link.message_ns = {(double)pick(&state, most_work), 0},
                                .collective.overhead_ns = {(double)pick(&state, most_work), 0}};
    if (o->overheads) {
        m->net.compute.launch_ns.value = (double)pick(&state, most_work);
        m->net.compute.copy_ns.value = (double)pick(&state, 3);
    }
    if (o->interferes)
        m->net.link.cpu_ns.value = m->net.link.byte_ns.value * (double)pick(&state, 80) / 100;
    buckets_by_cap(m, 0, 0, &m->baseline);
    return m;
}
