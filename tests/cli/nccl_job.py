"""Profiles of a job over NCCL, and what dpro's plugin logs of it (tracer/record.h), for lack of several GPUs here. In each
step a kernel computes, a ring of all ranks reduces, and another kernel computes."""
import struct

STEPS_US = (2000, 4000, 6000)


def profile(rank, world):
    events = []

    def span(category, name, pid, thread, at, dur, **args):
        events.append({"ph": "X", "cat": category, "name": name, "pid": pid, "tid": thread, "ts": at, "dur": dur, "args": args})

    def kernel(name, call, at, end, **args):
        span("cuda_runtime", "cudaLaunchKernel", 100, 1, call, 3, correlation=call)
        span("kernel", name, 0, 7, at, end - at, device=0, stream=7, correlation=call, **args)

    for step, at in enumerate(STEPS_US):
        span("user_annotation", "ProfilerStep#%d" % step, 100, 1, at, 2000)
        kernel("gemm", at + 1, at + 20, at + 100)
        span("user_annotation", "nccl:all_reduce", 100, 1, at + 6, 8)
        kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)", at + 8, at + 100, at + 400, **{
            "Collective name": "allreduce", "In msg nelems": 100, "dtype": "Float", "Process Group Name": "0", "Group size": world})
        kernel("relu", at + 16, at + 400, at + 420)
        span("cuda_runtime", "cudaDeviceSynchronize", 100, 1, at + 30, 392, correlation=1)
    return {"schemaVersion": 1, "traceEvents": events, "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": world}}


def record(kind, content):
    return struct.pack("<BBHI", kind, 1, 8 + len(content), 1) + content


def log(rank, world):
    """Of each collective one chunk to the next rank, and one from the one before."""
    def event(kind, number, parent, start_us, stop_us, flags, content):
        head = struct.pack("<QQqqIiBBHI", number, parent, start_us * 1000, stop_us * 1000, 1, rank, kind, flags, 0, 0)
        return record(33, head + content.ljust(72, b"\0"))

    out = struct.pack("<8sIIIIiIQQ40s64s", b"dprolog", 1, 152, 2, 100, rank, 0, 0, 0, b"", b"host%d" % rank)
    out += record(32, struct.pack("<IiiiQII64s", 1, rank, world, world, 0xabc, 0, 0, b""))
    for number, text in ((1, b"AllReduce"), (2, b"RING")):
        out += record(4, struct.pack("<II48s", number, 0, text))
    for step, at in enumerate(STEPS_US):
        number = 1000 * (step + 1)
        out += event(1, number, 0, at + 7, at + 12, 0, struct.pack("<6Q4IiHH", step, 0, 0, 0, 0, 0, 1, 0, 2, 0, -1, 0, 0))
        for flag, peer in ((1, (rank + 1) % world), (2, (rank - 1) % world)):  # sends, receives
            sent, received = (at + 110) * 1000 * (flag == 1), (at + 300) * 1000 * (flag == 2)
            op, step_of_it = struct.pack("<40x3i12x", peer, 0, 1), struct.pack("<16xqqQ8x", sent, received, 400)
            out += event(3, number + flag, number, at + 100, at + 300, flag, op)
            out += event(4, number + 10 + flag, number + flag, at + 105, at + 300, flag, step_of_it)
    return out
