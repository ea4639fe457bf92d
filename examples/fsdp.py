#!/usr/bin/env python3
"""The GPT of gpt.py with its parameters sharded over the ranks: `torchrun --nproc-per-node=2 examples/fsdp.py`, or alone. With
--replicas, over a part of them, and replicated over the others: `torchrun --nproc-per-node=4 examples/fsdp.py --replicas 2`."""
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from gpt import gpt_arguments, make_model, train
from job import Job


def main():
    parser = gpt_arguments("a small GPT, fully sharded")
    parser.add_argument("--replicas", type=int, default=1, metavar="N", help="of the shards")
    parser.add_argument("--no-reshard", action="store_true", help="keep a block's parameters from its forward to its backward pass")
    parser.add_argument("--prefetch", type=int, default=0, metavar="N", help="each block asks for N blocks ahead, in both passes")
    args = parser.parse_args()
    job = Job(args)
    job.start_process_group()
    if args.replicas < 1 or job.world_size % args.replicas:
        parser.error(f"--replicas {args.replicas} does not divide {job.world_size} ranks")
    shape, names = (job.world_size,), ("shard",)
    if args.replicas > 1:
        shape, names = (args.replicas, job.world_size // args.replicas), ("replicate", "shard")
    mesh = init_device_mesh(job.device.type, shape, mesh_dim_names=names)
    model = make_model(args).to(job.device)
    for block in model.blocks:
        fully_shard(block, mesh=mesh, reshard_after_forward=not args.no_reshard)
    fully_shard(model, mesh=mesh)
    for i, block in enumerate(model.blocks):
        if args.prefetch:
            block.set_modules_to_forward_prefetch(list(model.blocks[i + 1:i + 1 + args.prefetch]))
            block.set_modules_to_backward_prefetch(list(reversed(model.blocks[max(i - args.prefetch, 0):i])))
    train(job, model)


if __name__ == "__main__":
    main()
