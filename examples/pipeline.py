#!/usr/bin/env python3
"""The GPT of gpt.py with its blocks on several ranks, through which micro-batches pass: `torchrun --nproc-per-node=2
examples/pipeline.py`. In three dimensions: `torchrun --nproc-per-node=8 examples/pipeline.py --dp 2 --tp 2`, two pipelines, which
shard their parameters, each of two stages on two ranks."""
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B, ScheduleInterleavedZeroBubble

from gpt import gpt_arguments, loss_of_tokens, make_model, make_optimizer, text_of
from job import Job
from tensor_parallel import split

SCHEDULES = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B, "interleaved": ScheduleInterleaved1F1B,
             "zero-bubble": ScheduleInterleavedZeroBubble}


class Stage(nn.Module):
    """Neighbouring blocks, with the embedding before the first of all and the head after the last one."""

    def __init__(self, model, number, n_stages):
        super().__init__()
        n = len(model.blocks)
        self.blocks = model.blocks[number * n // n_stages:(number + 1) * n // n_stages]
        self.tokens, self.positions = (model.tokens, model.positions) if number == 0 else (None, None)
        self.norm, self.head = (model.norm, model.head) if number == n_stages - 1 else (None, None)

    def forward(self, x):
        if self.tokens is not None:
            x = self.tokens(x) + self.positions.weight[:x.shape[1]]
        for block in self.blocks:
            x = block(x)
        return x if self.head is None else self.head(self.norm(x))


def main():
    parser = gpt_arguments("a small GPT, in a pipeline")
    parser.add_argument("--micro-batches", type=int, default=4, help="in which a step's batch passes")
    parser.add_argument("--schedule", choices=SCHEDULES, default="1f1b", help="interleaved, zero-bubble: two stages a rank")
    parser.add_argument("--dp", type=int, default=1, help="pipelines that each train on samples of their own")
    parser.add_argument("--tp", type=int, default=1, help="ranks that share a block")
    args = parser.parse_args()
    job = Job(args)
    job.start_process_group()
    pp = job.world_size // (args.dp * args.tp)
    if pp * args.dp * args.tp != job.world_size:
        parser.error(f"--dp {args.dp} and --tp {args.tp} do not divide {job.world_size} ranks")
    mesh = init_device_mesh(job.device.type, (args.dp, pp, args.tp), mesh_dim_names=("dp", "pp", "tp"))
    job.data_rank, own, tp_rank = mesh.get_coordinate()
    is_last = own == pp - 1
    job.prints = is_last and job.data_rank == tp_rank == 0
    interleaved = args.schedule in ("interleaved", "zero-bubble")
    numbers = range(own, pp * (2 if interleaved else 1), pp)
    n_stages = pp * len(numbers)
    whole = make_model(args)  # the same on all ranks, of which each keeps its own blocks
    modules = nn.ModuleList(Stage(whole, number, n_stages) for number in numbers).to(job.device)
    for module in modules:
        if args.tp > 1:
            split(module.blocks, mesh["tp"])
        if args.dp > 1:
            fully_shard(module, mesh=mesh["dp"], reshard_after_forward=False)
    stages = [PipelineStage(module, number, n_stages, job.device, group=mesh.get_group("pp"))
              for module, number in zip(modules, numbers)]
    schedule = SCHEDULES[args.schedule](stages if interleaved else stages[0], args.micro_batches, loss_fn=loss_of_tokens)

    def learn(batch):
        tokens, targets = batch
        losses = []
        schedule.step(*[tokens] if own == 0 else [], **{"target": targets, "losses": losses} if is_last else {})
        return sum(losses) / len(losses) if is_last else None

    job.train(modules.parameters(), text_of(args), learn, make_optimizer)


if __name__ == "__main__":
    main()
