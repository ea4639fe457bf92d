#!/usr/bin/env python3
"""A small convolutional network on synthetic images, data-parallel with Horovod and PyTorch:
`horovodrun --gloo -np 2 python horovod_pytorch.py`, or alone."""
import horovod.torch as hvd
import torch
from torch import nn

import loop

SIZE, CLASSES = 32, 10


def network(width, hidden):
    layers, n_in = [], 3
    for n_out in (width, 2 * width, 4 * width):
        layers += [nn.Conv2d(n_in, n_out, 3, padding=1), nn.BatchNorm2d(n_out), nn.ReLU(), nn.MaxPool2d(2)]
        n_in = n_out
    layers.append(nn.Flatten())
    n_in *= (SIZE // 8) ** 2
    for _ in range(hidden):
        layers += [nn.Linear(n_in, 32 * width), nn.ReLU()]
        n_in = 32 * width
    return nn.Sequential(*layers, nn.Linear(n_in, CLASSES))


def main():
    parser = loop.convolutional("a convolutional network with Horovod on PyTorch")
    args = parser.parse_args()

    hvd.init()
    torch.manual_seed(args.seed)  # the same parameters on every rank
    model = network(args.width, args.hidden)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9),
                                         named_parameters=model.named_parameters())
    random = torch.Generator().manual_seed(1000 * args.seed + hvd.rank())

    def step():
        images = torch.randn(args.batch_size, 3, SIZE, SIZE, generator=random)
        labels = torch.randint(CLASSES, (args.batch_size,), generator=random)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        return loss.item()

    loop.train(args, step, hvd.rank() == 0, "%d ranks" % hvd.size())


if __name__ == "__main__":
    main()
