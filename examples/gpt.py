#!/usr/bin/env python3
"""A small GPT on synthetic text, data-parallel: `torchrun --nproc-per-node=2 examples/gpt.py`, or alone."""
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from job import Job, arguments


class Block(nn.Module):
    """Attention and a two-layer perceptron, each behind a norm and beside a shortcut."""

    def __init__(self, width, heads):
        super().__init__()
        self.head_width = width // heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        # head by head, so that a rank may have the first heads and another one the rest (tensor_parallel.py)
        parts = self.qkv(self.norm1(x)).unflatten(-1, (-1, 3, self.head_width))
        q, k, v = parts.permute(3, 0, 2, 1, 4)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self, vocabulary, context, layers, width, heads):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens):
        x = self.tokens(tokens) + self.positions.weight[:tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def gpt_arguments(description):
    parser = arguments(description, batch_size=12)
    parser.add_argument("--layers", type=int, default=4, help="blocks")
    parser.add_argument("--width", type=int, default=256, help="of the model; a multiple of 64")
    parser.add_argument("--vocabulary", type=int, default=8192, help="tokens there are")
    parser.add_argument("--context", type=int, default=64, help="tokens a sample")
    return parser


def make_model(args):
    return GPT(args.vocabulary, args.context, args.layers, args.width, args.width // 64)


def text_of(args):
    """sample(generator) of Job.train: a text, and the same one token later."""
    def sample(generator):
        text = torch.randint(args.vocabulary, (args.context + 1,), generator=generator)
        return text[:-1], text[1:]

    return sample


def loss_of_tokens(predictions, targets):
    return nn.functional.cross_entropy(predictions.flatten(0, 1), targets.flatten())


def make_optimizer(parameters):
    return torch.optim.AdamW(parameters, lr=3e-4)


def train(job, model):
    def loss_of(model, batch):
        tokens, targets = batch
        return loss_of_tokens(model(tokens), targets)

    job.train_model(model, text_of(job.args), loss_of, make_optimizer)


def main():
    parser = gpt_arguments("a small GPT, data-parallel")
    parser.add_argument("--bucket-cap-mb", type=float, help="DDP's bucket size, in place of its default")
    args = parser.parse_args()

    job = Job(args)
    model = make_model(args).to(job.device)
    if job.world_size > 1:
        job.start_process_group()
        model = DistributedDataParallel(model, bucket_cap_mb=args.bucket_cap_mb)
    train(job, model)


if __name__ == "__main__":
    main()
