#!/usr/bin/env python3
"""A small convolutional network on synthetic images, data-parallel with Horovod and PyTorch:
`horovodrun --gloo -np 2 python horovod_pytorch.py`, or alone."""
import argparse
import statistics
import time

import horovod.torch as hvd
import torch
from torch import nn

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
    parser = argparse.ArgumentParser(description="a convolutional network with Horovod on PyTorch",
                                     formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--steps", type=int, default=100, help="steps to train")
    parser.add_argument("--batch-size", type=int, default=16, help="samples a step and rank")
    parser.add_argument("--width", type=int, default=16, help="channels of the first layer")
    parser.add_argument("--hidden", type=int, default=1, help="dense layers before the last")
    parser.add_argument("--seed", type=int, default=0, help="of parameters and data")
    args = parser.parse_args()

    hvd.init()
    torch.manual_seed(args.seed)  # the same parameters on every rank
    model = network(args.width, args.hidden)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9),
                                         named_parameters=model.named_parameters())
    random = torch.Generator().manual_seed(1000 * args.seed + hvd.rank())

    times_ms, loss = [], None
    begin = time.perf_counter()
    for step in range(1, args.steps + 1):
        images = torch.randn(args.batch_size, 3, SIZE, SIZE, generator=random)
        labels = torch.randint(CLASSES, (args.batch_size,), generator=random)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        loss = loss.item()
        end = time.perf_counter()
        times_ms.append(1e3 * (end - begin))
        begin = end
        if hvd.rank() == 0 and (step % 10 == 0 or step == args.steps):
            print("step %4d  loss %.6f  %8.1f ms" % (step, loss, statistics.median(times_ms[-10:])), flush=True)
    if hvd.rank() == 0 and times_ms:
        steady = times_ms[len(times_ms) // 4:]
        print("median step time %.1f ms over the last %d steps, %d ranks, final loss %r"
              % (statistics.median(steady), len(steady), hvd.size(), loss), flush=True)


if __name__ == "__main__":
    main()
