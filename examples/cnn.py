#!/usr/bin/env python3
"""A residual network on synthetic images, data-parallel: `torchrun --nproc-per-node=2 examples/cnn.py`, or alone."""
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from job import Job, arguments

CLASSES = 10


class Block(nn.Module):
    """Two 3x3 convolutions beside a shortcut."""

    def __init__(self, n_in, n_out, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(n_in, n_out, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(n_out)
        self.conv2 = nn.Conv2d(n_out, n_out, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(n_out)
        self.shortcut = nn.Identity()
        if stride != 1 or n_in != n_out:
            self.shortcut = nn.Sequential(nn.Conv2d(n_in, n_out, 1, stride, bias=False), nn.BatchNorm2d(n_out))

    def forward(self, x):
        y = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


class ResNet(nn.Module):
    """Four stages, each half as large and twice as wide as the one before."""

    def __init__(self, width, blocks):
        super().__init__()
        layers = [nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
        n_in = width
        for stage in range(4):
            for block in range(blocks):
                layers.append(Block(n_in, width << stage, 2 if stage > 0 and block == 0 else 1))
                n_in = width << stage
        layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(n_in, CLASSES)]
        self.layers = nn.Sequential(*layers)

    def forward(self, x):
        return self.layers(x)


def main():
    parser = arguments("a residual network, data-parallel", batch_size=8)
    parser.add_argument("--width", type=int, default=64, help="channels of the first stage")
    parser.add_argument("--blocks", type=int, default=2, help="blocks a stage; 2 make a ResNet-18")
    parser.add_argument("--size", type=int, default=32, help="of an image, in pixels")
    parser.add_argument("--bucket-cap-mb", type=float, help="DDP's bucket size, in place of its default")
    args = parser.parse_args()

    job = Job(args)
    model = ResNet(args.width, args.blocks).to(job.device)
    if job.world_size > 1:
        job.start_process_group()
        model = DistributedDataParallel(model, bucket_cap_mb=args.bucket_cap_mb)

    def sample(generator):
        return (torch.randn(3, args.size, args.size, generator=generator),
                torch.randint(CLASSES, (), generator=generator))

    def loss_of(model, batch):
        images, labels = batch
        return nn.functional.cross_entropy(model(images), labels)

    job.train_model(model, sample, loss_of, lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9))


if __name__ == "__main__":
    main()
