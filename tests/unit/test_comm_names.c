/* Names of kernels, ops and ranges: which are communication, of which kind, and which are not. */

#include "case.h"
#include "graph/names/names.h"

TEST(libraries_kernels_are_known_by_their_names)
{
    static const struct {
        const char *name, *kind;
        enum comm_end end;
    } kernels[] = {
        {"ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", "all_reduce", COMM_ENDS_TOGETHER},
        {"void ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
         "reduce_scatter", COMM_ENDS_TOGETHER},
        {"ncclSymDevKernel_AllGather_LL(ncclSymDevArgs)", "all_gather", COMM_ENDS_TOGETHER},
        {"mscclKernel_Sum_half_Simple_false(ncclDevComm*, mscclAlgo*, mscclWork*)", NULL,
         COMM_ENDS_UNSURE},
        {"void deep_ep::intranode::dispatch<8, 768, 8192>(int4*, float*, int*)", "all_to_all",
         COMM_ENDS_TOGETHER},
        {"void deep_ep::intranode::combine<__nv_bfloat16, 8, 768, 4096>(__nv_bfloat16*)",
         "all_to_all", COMM_ENDS_TOGETHER},
        {"void deep_ep::internode_ll::dispatch<true, 3, 10, 7168>(void*, float*)", "all_to_all",
         COMM_ENDS_UNSURE},
        {"deep_ep::intranode::cached_notify_combine<8>(void**)", "barrier", COMM_ENDS_UNSURE},
        {"_ZN7deep_ep9intranode8dispatchILi8ELi768ELi8192EEEvP4int4", "all_to_all",
         COMM_ENDS_TOGETHER},
        {"void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, "
         "16>(c10::BFloat16*)",
         "all_reduce", COMM_ENDS_TOGETHER},
        {"void <unnamed>::two_shot_all_reduce_kernel_inplace<float, (int)16>(float**)",
         "all_reduce", COMM_ENDS_TOGETHER},
        {"c10d::symmetric_memory::barrier_kernel(unsigned int**, int, int, int)", "barrier",
         COMM_ENDS_TOGETHER},
        {"void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*)", "all_reduce",
         COMM_ENDS_TOGETHER},
        {"void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<"
         "(flashinfer::trtllm_allreduce_fusion::AllReduceFusionPattern)1, __nv_bfloat16, 8>(int)",
         "all_reduce", COMM_ENDS_TOGETHER},
        {"void flashinfer::trtllm_mnnvl_allreduce::oneshotAllreduceFusionKernel<(unsigned "
         "char)8>(x)",
         "all_reduce", COMM_ENDS_TOGETHER},
        {"void quickreduce::allreduce_prototype_twoshot<AllReduceTwoshot<__half>, __half>(int)",
         "all_reduce", COMM_ENDS_TOGETHER},
        {"moeA2ADispatchKernel(int const*)", "all_to_all", COMM_ENDS_UNSURE},
        {"void userbuffers_fp16_sum_inplace_gpu_rw_ag<8>(int, int)", "all_gather",
         COMM_ENDS_TOGETHER},
        {"kuserbuffers_pushsend(int*, int*, int4*, int4*, int)", "send", COMM_ENDS_ALONE},
        {"void barrier_on_stream_kernel_threadgroup<(threadgroup_t)1>(int, int)", "barrier",
         COMM_ENDS_TOGETHER},
        {"_Z36barrier_on_stream_kernel_threadgroupIL13threadgroup_t1EEvii", "barrier",
         COMM_ENDS_TOGETHER},
        {"hcom_allReduce__503_0_1", "all_reduce", COMM_ENDS_UNSURE},
        {"dlslime::intranode_alltoall_kernel(int)", "all_to_all", COMM_ENDS_TOGETHER},
        {"all-reduce.12", "all_reduce", COMM_ENDS_TOGETHER},
        {"all-gather-done.1", "all_gather", COMM_ENDS_ALONE},
        {"reduce-scatter.3", "reduce_scatter", COMM_ENDS_TOGETHER},
        {"collective-permute-done", "send_recv", COMM_ENDS_ALONE},
    };
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++) {
        struct comm_name found;
        if (!comm_name_of_kernel(kernels[i].name, strlen(kernels[i].name), &found))
            fail_msg("%s: not known", kernels[i].name);
        if (kernels[i].kind)
            assert_string_equal(dpro_collective_kind_name(found.kind), kernels[i].kind);
        assert_int_equal(found.end, kernels[i].end);
    }
}

TEST(kernels_that_compute_or_copy_are_none)
{
    static const char *const kernels[] = {
        "void at::native::vectorized_elementwise_kernel<4, "
        "at::native::CUDAFunctor_add<float>>(int)",
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>(float)",
        "void cub::DeviceReduceKernel<cub::Policy, int*>(int)",
        "triton_poi_fused_all_reduce_wait_tensor_0",
        "triton_red_fused__to_copy_all_gather_into_tensor_mul_1",
        "deep_ep::layout::get_dispatch_layout<256, 32, 8>(long const*)",
        "void deep_ep::elastic::dispatch_copy_epilogue_impl<8>(int)",
        "void moe::dispatch<float>(float*)",
        "void attention::combine<float>(float*)",
        "barrier_kernel(float*, float*, float)",
        "void gemm_allreduce_kernel<float>(float*)",
        "void blockAllReduceKernel<float>(float*)",
        "warp_all_reduce_softmax(float*)",
        "softmax_allreduce_smem(float*)",
        "all_gather_embedding_indices(long*)",
        "void all_to_all_transpose<float>(float*)",
        "void at::native::_scatter_gather_elementwise_kernel<128, 8>(int)",
        "void embedding_backward_kernel<nccl::Fake>(float*)",
        "broadcast_multiply_fusion",
        "reduce.4",
        "sm90_xmma_gemm_bf16bf16_bf16f32",
        "_ZN2at6native13reduce_kernelILi512EEEvT_",
        "_Z",
        "_ZN999999999999x",
        "<",
        "",
    };
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++) {
        struct comm_name found;
        if (comm_name_of_kernel(kernels[i], strlen(kernels[i]), &found))
            fail_msg("%s: taken for %s", kernels[i], found.kind);
    }
}

TEST(ops_and_ranges_are_scopes_by_their_names)
{
    static const char *const scopes[] = {"nccl:all_reduce",
                                         "c10d::allreduce_",
                                         "_c10d_functional::all_gather_into_tensor",
                                         "symm_mem::one_shot_all_reduce",
                                         "vllm::all_reduce",
                                         "## all_to_all ##"};
    static const char *const others[] = {"aten::add_",
                                         "_c10d_functional::wait_tensor",
                                         "symm_mem::fused_all_gather_matmul",
                                         "fsdp::all_gather_copy_in",
                                         "broadcast inputs",
                                         "dispatch",
                                         ""};
    for (size_t i = 0; i < sizeof scopes / sizeof *scopes; i++)
        if (!comm_name_is_scope(scopes[i], strlen(scopes[i])))
            fail_msg("%s: not known", scopes[i]);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (comm_name_is_scope(others[i], strlen(others[i])))
            fail_msg("%s: taken for a scope", others[i]);
}
