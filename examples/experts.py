#!/usr/bin/env python3
"""The GPT of gpt.py with a mixture of experts in place of each block's perceptron: a router sends each token to one expert, and
each rank has some of the experts. All else is data-parallel. `torchrun --nproc-per-node=2 examples/experts.py`."""
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gpt import gpt_arguments, make_model, train
from job import Job


class Exchange(torch.autograd.Function):
    """Rows to other ranks, so many to each; gradients go the way back."""

    @staticmethod
    def forward(ctx, rows, n_sent, n_received):
        ctx.counts = n_received, n_sent
        received = rows.new_empty(sum(n_received), rows.shape[1])
        dist.all_to_all_single(received, rows.contiguous(), n_received, n_sent)
        return received

    @staticmethod
    def backward(ctx, gradient):
        return Exchange.apply(gradient, *ctx.counts), None, None


class Experts(nn.Module):
    def __init__(self, width, n_experts, world_size):
        super().__init__()
        self.world_size, self.n_own = world_size, n_experts // world_size
        self.router = nn.Linear(width, n_experts, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)) for _ in range(self.n_own))

    def forward(self, x):
        rows = x.flatten(0, 1)
        share, choice = self.router(rows).softmax(-1).max(-1)
        order = choice.argsort(stable=True)
        sent = choice.bincount(minlength=self.world_size * self.n_own)  # tokens for each expert
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent)
        n_sent, n_received = (counts.view(self.world_size, self.n_own).sum(1).tolist() for counts in (sent, received))
        inputs = Exchange.apply(rows[order], n_sent, n_received)
        # what came from a rank is in the order of its experts
        expert = torch.arange(self.n_own, device=x.device).repeat(self.world_size).repeat_interleave(received)
        outputs = torch.zeros_like(inputs)
        for number, module in enumerate(self.experts):
            chosen = (expert == number).nonzero().squeeze(1)
            outputs = outputs.index_copy(0, chosen, module(inputs[chosen]))
        outputs = Exchange.apply(outputs, n_received, n_sent)
        return (torch.zeros_like(rows).index_copy(0, order, outputs) * share.unsqueeze(1)).view_as(x)


def main():
    parser = gpt_arguments("a small GPT with a mixture of experts")
    parser.add_argument("--experts", type=int, default=8, help="of a block, over all ranks")
    args = parser.parse_args()
    job = Job(args)
    job.start_process_group()
    if args.experts % job.world_size:
        parser.error(f"{args.experts} experts can't be shared out evenly to {job.world_size} ranks")
    model = make_model(args)
    torch.manual_seed(args.seed + 1 + job.rank)  # experts differ
    for block in model.blocks:
        block.mlp = Experts(args.width, args.experts, job.world_size)
        if job.world_size > 1:
            dist.broadcast(block.mlp.router.weight.detach(), 0)
    model = model.to(job.device)
    if job.world_size > 1:
        # a rank's experts learn from all ranks' tokens already
        own = [name for name, _ in model.named_parameters() if ".mlp.experts." in name]
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, own)
        model = DistributedDataParallel(model)
    train(job, model)


if __name__ == "__main__":
    main()
