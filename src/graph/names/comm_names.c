/* Recognises the kernels of communication libraries.
 *
 * A kernel's name is reduced to its scope and its function: "void deep_ep::intranode::dispatch<8,
 * 768>(int4*)" is "dispatch" in "deep_ep::intranode". A row of the table matches the beginning or a
 * part of a function's name. It also asks for a scope where the name alone is an ordinary word, as
 * "dispatch". After the table, any function named for a collective of many ranks ("all_reduce")
 * matches, unless its name says that it also computes or copies. */

#include "graph/names/names.h"

struct names_part {
    const char *at;
    size_t n;
};

/* Texts are too short for what memmem() prepares. */
static bool names_holds(struct names_part text, const char *word)
{
    size_t n = strlen(word);
    const char *at = text.at, *end = text.at + text.n;
    for (; (size_t)(end - at) >= n; at++) {
        at = memchr(at, *word, (size_t)(end - at) - n + 1);
        if (!at || memcmp(at, word, n) == 0)
            return at != NULL;
    }
    return false;
}

/* Most names end the comparison with their first letter. */
static bool names_begins(struct names_part text, const char *word)
{
    size_t i = 0;
    while (word[i] && i < text.n && text.at[i] == word[i])
        i++;
    return word[i] == '\0';
}

/* ---- the parts of a name ---- */

/* "_ZN7deep_ep9intranode8dispatchILi8EE...": scope "7deep_ep9intranode", function "dispatch". */
static void split_mangled(struct names_part name, struct names_part *scope,
                          struct names_part *function)
{
    const char *at = name.at + 2, *end = name.at + name.n;
    while (at < end && strchr("NLK", *at))
        at++;
    *scope = (struct names_part){at, 0};
    while (at < end && *at >= '0' && *at <= '9') {
        size_t n = 0;
        scope->n = (size_t)(at - scope->at);
        while (at < end && *at >= '0' && *at <= '9' && n < name.n)
            n = n * 10 + (size_t)(*at++ - '0');
        if (n > (size_t)(end - at))
            break;
        *function = (struct names_part){at, n};
        at += n;
    }
}

/* Where the qualified name ends: before its template arguments or its parameters. What stands for
 * a namespace without a name is written in brackets, too. */
static size_t qualified_length(struct names_part name)
{
    for (size_t i = 0; i < name.n; i++) {
        char open = name.at[i];
        if (open != '(' && open != '<')
            continue;
        const char *close = memchr(name.at + i, open == '(' ? ')' : '>', name.n - i);
        if (!close || close + 2 >= name.at + name.n || close[1] != ':' || close[2] != ':')
            return i;
        i = (size_t)(close - name.at);
    }
    return name.n;
}

static void split_name(struct names_part name, struct names_part *scope,
                       struct names_part *function)
{
    *scope = (struct names_part){name.at, 0};
    *function = name;
    if (names_begins(name, "_Z")) {
        split_mangled(name, scope, function);
        return;
    }
    size_t n = qualified_length(name), from = n;
    while (from > 0 && name.at[from - 1] != ':' && name.at[from - 1] != ' ')
        from--;
    *scope = (struct names_part){name.at, from};
    *function = (struct names_part){name.at + from, n - from};
}

/* ---- the table ---- */

#define NO_COMMUNICATION UINT8_MAX

/* The first row that fits counts. */
static const struct {
    const char *scope;        /* the scope holds it; NULL: any */
    const char *functions[4]; /* see name_fits */
    const char *and;          /* the function holds this, too; NULL: nothing */
    uint8_t kind; /* enum dpro_collective_kind; NO_COMMUNICATION; 0: as its words tell */
    enum comm_end end;
} kernels[] = {
    /* XLA's instructions, of whatever device: all-reduce.1, all-gather-start, reduce-scatter.3
     * (hlo_opcode.h). Where one is begun and waited for, only the waiting lies on the device's
     * track of ops: it ends when the transfer does, whenever other devices begin to wait. */
    {NULL, {"all-"}, "-start", 0, COMM_ENDS_ALONE},
    {NULL, {"all-"}, "-done", 0, COMM_ENDS_ALONE},
    {NULL, {"all-reduce"}, NULL, DPRO_ALL_REDUCE, COMM_ENDS_TOGETHER},
    {NULL, {"all-gather"}, NULL, DPRO_ALL_GATHER, COMM_ENDS_TOGETHER},
    {NULL, {"all-to-all"}, NULL, DPRO_ALL_TO_ALL, COMM_ENDS_TOGETHER},
    {NULL, {"reduce-scatter"}, NULL, DPRO_REDUCE_SCATTER, COMM_ENDS_TOGETHER},
    {NULL, {"ragged-all-to-all", "collective-broadcast"}, NULL, 0, COMM_ENDS_UNSURE},
    {NULL, {"collective-permute-"}, NULL, DPRO_SEND_RECV, COMM_ENDS_ALONE},
    {NULL, {"collective-permute"}, NULL, DPRO_SEND_RECV, COMM_ENDS_UNSURE},
    {NULL, {"async-collective-"}, NULL, DPRO_OTHER_COLLECTIVE, COMM_ENDS_ALONE},
    {NULL, {"send-done", "recv-done"}, NULL, 0, COMM_ENDS_ALONE},
    /* NCCL: ncclKernel_AllReduce_RING_LL_Sum_float, ncclAllReduceRingLLKernel_sum_f32 (to 2.17),
     * ncclDevKernel_..., ncclSymDevKernel_... (generate.py); RCCL: the same and rcclKernel_... */
    {NULL, {"nccl", "*rccl"}, "Kernel", 0, COMM_ENDS_TOGETHER},
    /* MSCCL, inside RCCL: mscclKernel_Sum_half_Simple_false (msccl_kernel.h) */
    {NULL, {"mscclKernel"}, NULL, 0, COMM_ENDS_UNSURE},
    /* MSCCL++: mscclpp::executionKernel<...> runs any algorithm (execution_kernel.hpp) */
    {"mscclpp", {"executionKernel"}, NULL, 0, COMM_ENDS_UNSURE},
    /* DeepEP, csrc/kernels: layout::get_dispatch_layout counts only, and the second version's
     * prologues and epilogues move what a rank has itself. In low latency (internode_ll) sending
     * and receiving may be two launches of the same kernel. */
    {"deep_ep", {"*epilogue", "*prologue"}, NULL, NO_COMMUNICATION, 0},
    {"internode_ll", {"dispatch", "combine"}, NULL, DPRO_ALL_TO_ALL, COMM_ENDS_UNSURE},
    {"internode_ll", {"clean_low_latency_buffer"}, NULL, DPRO_BARRIER, COMM_ENDS_UNSURE},
    {"deep_ep",
     {"dispatch", "combine", "notify_dispatch"},
     NULL,
     DPRO_ALL_TO_ALL,
     COMM_ENDS_TOGETHER},
    {"deep_ep", {"hybrid_dispatch", "hybrid_combine"}, NULL, DPRO_ALL_TO_ALL, COMM_ENDS_UNSURE},
    {"deep_ep", {"cached_notify"}, NULL, DPRO_BARRIER, COMM_ENDS_UNSURE},
    {"deep_ep", {"barrier"}, NULL, DPRO_BARRIER, COMM_ENDS_TOGETHER},
    {"deep_ep", {"pp_send", "pp_recv"}, NULL, 0, COMM_ENDS_ALONE},
    /* DeepEP's csrc/hybrid_ep */
    {"hybrid_ep", {"dispatch_kernel", "combine_kernel"}, NULL, DPRO_ALL_TO_ALL, COMM_ENDS_UNSURE},
    {"hybrid_ep", {"device_sync_kernel"}, NULL, DPRO_BARRIER, COMM_ENDS_TOGETHER},
    /* MORI, AMD's: EpDispatchIntraNodeKernel_bf16, EpCombineInterNodeV1Kernel */
    {NULL, {"EpDispatch", "EpCombine"}, "Kernel", DPRO_ALL_TO_ALL, COMM_ENDS_UNSURE},
    /* TensorRT-LLM and FlashInfer, moeAlltoAllKernels.cu */
    {NULL,
     {"moeA2ADispatchKernel", "moeA2ACombineKernel"},
     NULL,
     DPRO_ALL_TO_ALL,
     COMM_ENDS_UNSURE},
    /* pplx-garden, a2a-kernels: each direction has a kernel that sends and one that receives */
    {NULL, {"a2a_dispatch_send", "a2a_combine_send"}, "_kernel", DPRO_SEND, COMM_ENDS_ALONE},
    {NULL, {"a2a_dispatch_recv", "a2a_combine_recv"}, "_kernel", DPRO_RECV, COMM_ENDS_ALONE},
    /* vLLM's custom_all_reduce.cuh, also in SGLang and AITER: cross_device_reduce_1stage */
    {NULL, {"cross_device_reduce_"}, NULL, DPRO_ALL_REDUCE, COMM_ENDS_TOGETHER},
    /* PyTorch's symmetric memory: CUDASymmetricMemory.cu, nvshmem_extension.cu. Its collectives are
     * named as such: multimem_one_shot_all_reduce_kernel */
    {"symmetric_memory", {"=barrier_kernel"}, NULL, DPRO_BARRIER, COMM_ENDS_TOGETHER},
    {"symmetric_memory", {"=put_signal_kernel"}, NULL, DPRO_SEND, COMM_ENDS_ALONE},
    {"symmetric_memory", {"=wait_signal_kernel"}, NULL, DPRO_RECV, COMM_ENDS_ALONE},
    {NULL, {"exchangeSplitAndOffset"}, NULL, DPRO_ALL_TO_ALL, COMM_ENDS_TOGETHER},
    /* Transformer Engine's and TensorRT-LLM's userbuffers.cu */
    {NULL, {"userbuffers_fp16_sum_inplace"}, "_rs", DPRO_REDUCE_SCATTER, COMM_ENDS_TOGETHER},
    {NULL, {"userbuffers_fp16_sum_inplace"}, "_ag", DPRO_ALL_GATHER, COMM_ENDS_TOGETHER},
    {NULL, {"userbuffers_fp16_sum_inplace"}, NULL, DPRO_ALL_REDUCE, COMM_ENDS_TOGETHER},
    {NULL, {"kuserbuffers_push", "kuserbuffers_pull"}, "recv", DPRO_RECV, COMM_ENDS_ALONE},
    {NULL, {"kuserbuffers_"}, NULL, DPRO_SEND, COMM_ENDS_ALONE},
    /* NVSHMEM's calls on a stream: barrier_on_stream_kernel_threadgroup<...>,
     * rdxn_on_stream_kernel, fcollect_on_stream_kernel; rocSHMEM's begin with its name */
    {NULL, {"*barrier", "*sync"}, "_on_stream_kernel", DPRO_BARRIER, COMM_ENDS_TOGETHER},
    {NULL, {"*rdxn"}, "_on_stream_kernel", DPRO_ALL_REDUCE, COMM_ENDS_TOGETHER},
    {NULL, {"*fcollect"}, "_on_stream_kernel", DPRO_ALL_GATHER, COMM_ENDS_TOGETHER},
    {NULL, {"*broadcast"}, "_on_stream_kernel", DPRO_BROADCAST, COMM_ENDS_UNSURE},
    {NULL, {"*alltoall", "*reducescatter"}, "_on_stream_kernel", 0, COMM_ENDS_TOGETHER},
    {NULL, {"nvshmem"}, NULL, 0, COMM_ENDS_ALONE}, /* nvshmemi_proxy_rma_entrypoint */
    {NULL, {"rocshmem_"}, NULL, 0, COMM_ENDS_UNSURE},
    /* Ascend's HCCL in torch_npu's traces: hcom_allReduce__503_0_1, hcom_send_ */
    {NULL, {"hcom_"}, NULL, 0, COMM_ENDS_UNSURE},
    /* Intel's oneCCL: oneccl_allreduce_pcie */
    {NULL, {"oneccl_"}, NULL, 0, COMM_ENDS_UNSURE},
};

/* Collectives that nobody but all ranks of a group together can run: one_shot_all_reduce_kernel,
 * twoShotAllReduceKernel, allreduce_fusion_kernel_oneshot_lamport, quickreduce's
 * allreduce_prototype_twoshot, intranode_alltoall_kernel, allToAllV, multimem_all_gather_kernel. */
static const char *const collective_words[] = {"allreduce", "allgather", "reducescatter",
                                               "alltoall", NULL};

/* What is computed or copied around a collective is another kernel, and what is done within a GPU
 * is no collective of ranks. Inductor names its kernels for all that is near them in the graph. */
static const char *const other_words[] = {"gemm",      "matmul",  "scaled_mm", "copy", "permute",
                                          "transpose", "indices", "triton",    "warp", "block",
                                          "thread",    "smem",    NULL};

static bool holds_any(struct names_part text, const char *const *words)
{
    while (*words && !names_holds(text, *words))
        words++;
    return *words != NULL;
}

static bool is_collective(struct names_part function)
{
    char text[128];
    size_t n = name_plain(function.at, function.n, text, sizeof text);
    return holds_any((struct names_part){text, n}, collective_words) &&
           !holds_any(function, other_words);
}

bool name_fits(const char *name, size_t len, const char *pattern)
{
    struct names_part text = {name, len};
    switch (*pattern) {
    case '*':
        return names_holds(text, pattern + 1);
    case '=':
        return names_begins(text, pattern + 1) && len == strlen(pattern + 1);
    case '$':
        return text_n_ends(name, len, pattern + 1);
    default:
        return names_begins(text, pattern);
    }
}

static bool fits_any(struct names_part function, const char *const patterns[4])
{
    bool found = false;
    for (size_t i = 0; i < 4 && patterns[i] && !found; i++)
        found = name_fits(function.at, function.n, patterns[i]);
    return found;
}

/* Words that are searched for come last: almost every name is refused before. */
static bool is_row(size_t i, struct names_part scope, struct names_part function)
{
    bool searches = *kernels[i].functions[0] == '*';
    if (!searches && !fits_any(function, kernels[i].functions))
        return false;
    if (kernels[i].scope && (scope.n == 0 || !names_holds(scope, kernels[i].scope)))
        return false;
    return (!kernels[i].and || names_holds(function, kernels[i].and)) &&
           (!searches || fits_any(function, kernels[i].functions));
}

static enum dpro_collective_kind kind_of(struct names_part function)
{
    char text[128];
    name_plain(function.at, function.n, text, sizeof text);
    return name_collective(text);
}

bool comm_name_of_kernel(const char *name, size_t len, struct comm_name *found)
{
    struct names_part scope, function;
    split_name((struct names_part){name, len}, &scope, &function);
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++) {
        if (!is_row(i, scope, function))
            continue;
        uint8_t kind = kernels[i].kind;
        if (kind == NO_COMMUNICATION)
            return false;
        *found = (struct comm_name){kind ? kind : kind_of(function), kernels[i].end};
        return true;
    }
    if (!is_collective(function))
        return false;
    *found = (struct comm_name){kind_of(function), COMM_ENDS_TOGETHER};
    return true;
}

bool comm_name_is_scope(const char *name, size_t len)
{
    /* PyTorch's process groups, their back ends and its symmetric memory: the name spaces of their
     * ops and ranges. */
    static const char *const spaces[] = {
        "c10d::", "_c10d_functional::", "c10d_functional::", "nccl:", "rccl:", "ucc:", "xccl:",
        "hccl:",  "symm_mem::"};
    struct names_part text = {name, len};
    for (size_t i = 0; i < sizeof spaces / sizeof *spaces; i++)
        if (names_begins(text, spaces[i]))
            return !names_holds(text, "wait_tensor") && !holds_any(text, other_words);
    return is_collective(text);
}
