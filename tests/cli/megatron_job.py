"""Kineto traces of a training on GPUs in three dimensions of parallelism, with the groups that Megatron makes: one micro-batch goes
forward and back through two stages, with an all-reduce of tensor parallel ranks in each layer; then gradients are reduced."""
from support import span

SIZES, STEP_US = (2, 2), 40_000
WORLD = 8
KERNELS = {"allreduce": "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
           "send": "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
           "recv": "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"}


def members(rank, stride, size):
    first = rank - rank // stride % size * stride
    return list(range(first, first + stride * size, stride))


class Rank:
    """`sizes`: data and tensor parallel ranks; up to 4 `layers` a stage; so many `kernels` in a pass of a stage."""

    def __init__(self, rank, described=True, sizes=SIZES, layers=2, kernels=1, steps=3):
        (dp, tp), self.rank, self.described = sizes, rank, described
        self.layers, self.kernels, self.steps = layers, kernels, steps
        self.apart = dp * tp  # stages; tensor parallel ranks are neighbours
        self.groups = {"tp": ("3", "TENSOR_MODEL_PARALLEL_GROUP", members(rank, 1, tp)),
                       "dp": ("7", "DATA_PARALLEL_GROUP", members(rank, tp, dp)),
                       "pp": ("11", "PIPELINE_MODEL_PARALLEL_GROUP", members(rank, dp * tp, 2)),
                       "all": ("0", "default_pg", list(range(2 * dp * tp)))}
        self.events, self.correlation = [], 0

    def launch(self, at, kernel, us, stream, tid, start=None, **args):
        self.correlation += 1
        self.events.append(span("cudaLaunchKernelExC", at, 3, tid, "cuda_runtime", correlation=self.correlation))
        self.events.append(span(kernel, start or at + 5, us, stream, "kernel", 0, correlation=self.correlation, stream=stream,
                                device=0, **args))

    def compute(self, at, kernel, us, tid):
        for k in range(self.kernels):
            self.launch(at + k * us / self.kernels, kernel, us / self.kernels, 7, tid)

    def communicate(self, at, what, group, elements, tid, us=200, peer=None):
        name, description, ranks = self.groups[group]
        listed = str(ranks) if len(ranks) <= (30 if self.described else 3) else f"[{ranks[0]}, ..., {ranks[-1]}]"
        args = {"Collective name": what, "dtype": "BFloat16", "In msg nelems": elements, "Out msg nelems": elements,
                "Group size": len(ranks), "Process Group Name": name, "Process Group Ranks": listed}
        if self.described:
            args["Process Group Description"] = description
        if peer is not None:
            args["Dst Rank" if what == "send" else "Src Rank"] = peer
        self.events.append(span("record_param_comms", at - 1, 6, tid, **args))
        self.launch(at, KERNELS[what], us, {"tp": 20, "dp": 24, "pp": 28, "all": 32}[group], tid, **args)

    def step(self, number):
        begin = number * STEP_US
        is_last, peer = self.rank >= self.apart, (self.rank + self.apart) % (2 * self.apart)
        self.events.append(span(f"ProfilerStep#{number}", begin, STEP_US, 1, "user_annotation"))
        self.compute(begin + 10, "gemm_forward", 5000, 1)
        if is_last:
            self.communicate(begin + 200, "recv", "pp", 4096, 1, 6000, peer)
        for layer in range(self.layers):
            self.communicate(begin + 7000 + 1000 * layer, "allreduce", "tp", 8192, 1)
        if not is_last:
            self.communicate(begin + 6000, "send", "pp", 4096, 1, 200, peer)
        self.events.append(span("autograd::engine::evaluate_function: MmBackward0", begin + 15_000, 15_000, 2,
                                **{"Fwd thread id": 1, "Sequence number": 7}))
        if not is_last:
            self.communicate(begin + 15_100, "recv", "pp", 4096, 2, 5000, peer)
        self.compute(begin + 15_400, "gemm_backward", 3000, 2)
        for layer in range(self.layers):
            self.communicate(begin + 22_000 + 1000 * layer, "allreduce", "tp", 8192, 2)
        if is_last:
            self.communicate(begin + 19_900, "send", "pp", 4096, 2, 200, peer)
        self.communicate(begin + 26_000, "allreduce", "dp", 1_000_000, 2, 2000)
        self.events.append(span("Optimizer.step#AdamW.step", begin + 32_000, 3000, 1, "user_annotation"))
        self.communicate(begin + 32_100, "allreduce", "all", 1, 1, 50)
        self.launch(begin + 33_000, "adam", 500, 7, 1)

    def trace(self, listed=None):
        for number in range(self.steps):
            self.step(number)
        config = [{"pg_name": name, "pg_desc": description, "backend_config": "cuda:nccl", "pg_size": len(ranks), "ranks": ranks}
                  for name, description, ranks in self.groups.values()]
        return {"distributedInfo": {"backend": "nccl", "rank": self.rank, "world_size": 2 * self.apart, "pg_count": len(config),
                                    "pg_config": config if listed is None else listed}, "traceEvents": self.events}
