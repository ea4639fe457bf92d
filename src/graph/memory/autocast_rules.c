/* What PyTorch 2's autocast and its operators do to data types, by an op's name. GPUs have another
 * list than CPUs: more ops run in 32 bits. */

#include "graph/memory/memory_build.h"

struct list {
    const char *names; /* each between spaces */
    uint8_t rule;
};

static const struct list both[] = {
    {" addbmm addmm baddbmm bmm conv1d conv2d conv3d conv_tbc conv_transpose1d "
     "conv_transpose2d conv_transpose3d linalg_vecdot linear matmul mm prelu "
     "scaled_dot_product_attention ",
     TYPE_LOWER},
    {" binary_cross_entropy binary_cross_entropy_with_logits cdist cosine_embedding_loss "
     "hinge_embedding_loss huber_loss kl_div l1_loss margin_ranking_loss mse_loss "
     "multi_margin_loss multilabel_margin_loss nll_loss nll_loss2d poisson_nll_loss "
     "smooth_l1_loss soft_margin_loss triplet_margin_loss ",
     TYPE_FULL},
    {" _scaled_dot_product_attention_math ", TYPE_MATH},
};
static const struct list cpus[] = {
    {" _addmm_activation _native_multi_head_attention mkldnn_rnn_layer ", TYPE_LOWER},
    {" mean ", TYPE_MATH},
    {" adaptive_avg_pool3d adaptive_max_pool3d avg_pool3d cross_entropy_loss ctc_loss "
     "fractional_max_pool2d fractional_max_pool3d grid_sampler max_pool3d max_unpool2d "
     "max_unpool3d nanquantile prod quantile reflection_pad1d reflection_pad2d replication_pad1d "
     "replication_pad2d replication_pad3d stft trace view_as_complex ",
     TYPE_FULL},
};
static const struct list gpus[] = {
    {" _convolution _cudnn_rnn _thnn_fused_gru_cell _thnn_fused_lstm_cell addmv addr chain_matmul "
     "convolution "
     "einsum gru_cell linalg_multi_dot lstm_cell mv rnn_relu_cell rnn_tanh_cell ",
     TYPE_LOWER},
    {" _upsample_bicubic2d_aa _upsample_bilinear2d_aa _upsample_nearest_exact1d "
     "_upsample_nearest_exact2d _upsample_nearest_exact3d acos asin cosh cosine_similarity dist "
     "erfinv exp expm1 group_norm layer_norm log log10 log1p log2 logsumexp native_layer_norm "
     "pdist pow reciprocal renorm rms_norm rsqrt sinh softplus tan upsample_bicubic2d "
     "upsample_bilinear2d upsample_linear1d upsample_nearest1d upsample_nearest2d "
     "upsample_nearest3d upsample_trilinear3d ",
     TYPE_FULL},
    {" cumprod cumsum linalg_matrix_norm linalg_vector_norm log_softmax norm prod softmax sum ",
     TYPE_WIDENED},
};

static bool rules_holds(const struct list *list, const char *name)
{
    size_t n = strlen(name);
    for (const char *at = list->names; (at = strstr(at, name)); at++)
        if (at[-1] == ' ' && at[n] == ' ')
            return true;
    return false;
}

static uint8_t rule_among(const struct list *lists, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (rules_holds(&lists[i], name))
            return lists[i].rule;
    return TYPE_PROMOTED;
}

uint8_t autocast_rule(const char *name, bool gpu)
{
    const char attention[] = "_scaled_dot_product_";
    if (strncmp(name, "aten::", 6) != 0 || name[6] == '\0')
        return TYPE_PROMOTED;
    name += 6;
    uint8_t rule = rule_among(both, sizeof both / sizeof *both, name);
    if (rule == TYPE_PROMOTED)
        rule = gpu ? rule_among(gpus, sizeof gpus / sizeof *gpus, name)
                   : rule_among(cpus, sizeof cpus / sizeof *cpus, name);
    if (rule != TYPE_PROMOTED)
        return rule;
    if (strcmp(name, "convolution_backward") == 0)
        return TYPE_CONVOLUTION;
    if (strncmp(name, attention, sizeof attention - 1) == 0)
        return strstr(name, "_backward") ? TYPE_FIRST : TYPE_STATISTICS;
    /* weights are in 32 bits, means and deviations, too */
    return strstr(name, "_norm") ? TYPE_STATISTICS : TYPE_PROMOTED;
}

/* Whether a kernel's name says that it computes in 16 bits. */
static bool is_in_16_bits(const char *name)
{
    static const char *const words[] = {"bf16", "BFloat16", "fp16", "_f16", "c10::Half"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strstr(name, words[i]))
            return true;
    return false;
}

/* Autocast computes an op within itself, of the same name, behind the casts of what goes in; a
 * model that is in 16 bits itself shows in its kernels' names. */
bool build_computes_in_16_bits(const struct rank_build *rank)
{
    const struct trace_rank *trace = rank->trace;
    uint32_t to = strtab_find(rank->names, "aten::to", strlen("aten::to"));
    SCRATCH bool *casts = mem_array(trace->n_spans + (size_t)1, sizeof *casts);
    SCRATCH struct map kernels = {0};
    EACH_OF (const struct trace_span, span, trace->spans, trace->n_spans) {
        if (span->kind == SPAN_KERNEL && map_insert(&kernels, span->name, 0) &&
            !(rank->classes[span->name] & NAME_COMM_KERNEL) &&
            is_in_16_bits(strtab_get(rank->names, span->name)))
            return true;
        if (span->parent != NO_ID && span->kind == SPAN_CPU_OP && span->name == to)
            casts[span->parent] = true;
    }
    EACH_OF (const struct trace_span, span, trace->spans, trace->n_spans)
        if (span->parent != NO_ID && span->kind == SPAN_CPU_OP && casts[span->parent] &&
            trace->spans[span->parent].name == span->name &&
            autocast_rule(strtab_get(rank->names, span->name), true) == TYPE_LOWER)
            return true;
    return false;
}
