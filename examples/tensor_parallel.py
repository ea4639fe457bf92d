#!/usr/bin/env python3
"""The GPT of gpt.py with each block's heads and hidden units split over ranks: `torchrun --nproc-per-node=2
examples/tensor_parallel.py`. With --tp smaller than the number of ranks, each of those that are split alike has a shard of its
parameters (fully_shard): `torchrun --nproc-per-node=4 examples/tensor_parallel.py --tp 2`."""
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from gpt import gpt_arguments, make_model, train
from job import Job


def split(blocks, mesh):
    """Each block's heads and hidden units over the ranks of this mesh."""
    for block in blocks:
        parallelize_module(block, mesh, {"qkv": ColwiseParallel(), "out": RowwiseParallel(),
                                         "mlp.0": ColwiseParallel(), "mlp.2": RowwiseParallel()})


def main():
    parser = gpt_arguments("a small GPT, tensor parallel")
    parser.add_argument("--tp", type=int, help="ranks that share a block (default: all)")
    parser.add_argument("--no-reshard", action="store_true", help="keep a block's parameters from its forward to its backward pass")
    args = parser.parse_args()
    job = Job(args)
    job.start_process_group()
    tp = args.tp or job.world_size
    if job.world_size % tp:
        parser.error(f"--tp {tp} does not divide {job.world_size} ranks")
    mesh = init_device_mesh(job.device.type, (job.world_size // tp, tp), mesh_dim_names=("dp", "tp"))
    job.data_rank = job.rank // tp
    model = make_model(args).to(job.device)
    split(model.blocks, mesh["tp"])
    if job.world_size > tp:
        for block in model.blocks:
            fully_shard(block, mesh=mesh["dp"], reshard_after_forward=not args.no_reshard)
        fully_shard(model, mesh=mesh["dp"])
    train(job, model)


if __name__ == "__main__":
    main()
