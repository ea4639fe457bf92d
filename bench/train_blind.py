#!/usr/bin/env python3
"""Trains a small network of random shape, data-parallel, for tools/accuracy_blind.py and faults.py: either --steps steps with
--config (to be recorded), or by turns with each of --configs, whose steps rank 0 prints as JSON.

A config is `cap=MB`, `cap=MB,compress=fp16`, `rate=MBIT`: as recorded, but on a slower link of this network namespace, or
`fault=NAME`, one of FAULTS. Faults of one rank are rank 1's."""
import argparse
import copy
import gc
import json
import os
import random
import subprocess
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

SETTLE = 2  # steps of a turn that are not counted
HOOKS = {"fp16": default_hooks.fp16_compress_hook}


FAULTS = ("core", "loader", "loader-one", "loader-4th", "gc", "lengths", "order")
LOADER_S, HEAP = 0.04, 300_000  # objects that are collected


class Loaded(torch.utils.data.IterableDataset):
    """A batch again and again; with a fault it comes late, or is longer or shorter on each rank by turns."""

    def __init__(self, batch, fault):
        self.batch, self.fault = batch, fault

    def __iter__(self):
        rank, rng = dist.get_rank(), random.Random(1)
        step = 0
        while True:
            step += 1
            late = {"loader": 1, "loader-one": rank == 1, "loader-4th": 4 * (step % 4 == 0)}.get(self.fault, 0)
            time.sleep(LOADER_S * late)
            shares = [rng.uniform(0.5, 1.5) for _ in range(dist.get_world_size())]
            rows = len(self.batch) * shares[rank] / sum(shares) * len(shares) if self.fault == "lengths" else len(self.batch)
            yield self.batch[torch.arange(max(int(rows), 2)) % len(self.batch)] if self.fault == "lengths" else self.batch


def hold_back(held, bucket):
    """A hook that reduces all buckets when the last one is ready, that one first."""
    held.append((bucket.buffer(), torch.futures.Future()))
    its = held[-1][1]
    while bucket.is_last() and held:
        buffer, future = held.pop()
        dist.all_reduce(buffer)
        future.set_result(buffer.div_(dist.get_world_size()))
    return its


class Last(nn.Module):
    """An LSTM's output at the last position."""

    def __init__(self, width, layers):
        super().__init__()
        self.lstm = nn.LSTM(width, width, layers, batch_first=True)

    def forward(self, x):
        return self.lstm(x)[0][:, -1]


def make_network(args):
    """The network, and a batch's shape without the batch. Tokens are integers."""
    width, layers = args.width, args.layers
    if args.kind == "mlp":
        hidden = [part for _ in range(layers) for part in (nn.Linear(width, width), nn.ReLU())]
        return nn.Sequential(*hidden, nn.Linear(width, 10)), (width,)
    if args.kind == "conv":
        stages = [nn.Conv2d(3, width, 3, padding=1), nn.ReLU()]
        for layer in range(layers):
            stages += [nn.Conv2d(width << layer, width << layer + 1, 3, padding=1), nn.BatchNorm2d(width << layer + 1), nn.ReLU(),
                       nn.MaxPool2d(2)]
        stages += [nn.Flatten(), nn.LazyLinear(512), nn.ReLU(), nn.Linear(512, 10)]
        network = nn.Sequential(*stages)
        network(torch.zeros(2, 3, 32, 32))  # gives the lazy layer its shape
        return network, (3, 32, 32)
    body = Last(width, layers)
    if args.kind == "transformer":
        layer = nn.TransformerEncoderLayer(width, width // 32, 4 * width, dropout=0, batch_first=True)
        body = nn.Sequential(nn.TransformerEncoder(layer, layers, enable_nested_tensor=False), nn.Flatten(1),
                             nn.Linear(32 * width, 10))
        return nn.Sequential(nn.Embedding(4096, width), body), (32,)
    return nn.Sequential(nn.Embedding(4096, width), body, nn.Linear(width, 10)), (32,)


class Trainer:
    def __init__(self, network, batch, config, own_cap, own_rate):
        settings = dict(part.split("=") for part in config.split(",") if part)
        cap = float(settings.get("cap", own_cap)) or None  # 0: DDP's default
        self.rate = settings.get("rate", own_rate)
        self.model = DistributedDataParallel(copy.deepcopy(network), bucket_cap_mb=cap)
        if "compress" in settings:
            self.model.register_comm_hook(None, HOOKS[settings["compress"]])
        if settings.get("fault") == "order":
            self.model.register_comm_hook([], hold_back)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3, momentum=0.9)
        self.fault, self.busy = settings.get("fault"), None
        if self.fault not in (None, *FAULTS):
            raise SystemExit(f"train_blind: no such fault: {self.fault}")
        self.batches = iter(torch.utils.data.DataLoader(Loaded(batch, self.fault), batch_size=None))
        self.target = torch.zeros(2 * batch.shape[0], dtype=torch.long)

    def step(self):
        begin = time.perf_counter()
        batch = next(self.batches)
        self.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self.model(batch), self.target[:len(batch)])
        if self.fault == "gc" and dist.get_rank() == 1:
            garbage = [[i] for i in range(HEAP)]
            gc.collect()
            del garbage
        loss.backward()
        self.optimizer.step()
        return 1e3 * (time.perf_counter() - begin)

    def share_core(self):
        """Another process on this one's core."""
        core = min(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {core})
        self.busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])

    def end_turn(self):
        if self.busy:
            self.busy.kill()
            self.busy.wait()
            self.busy = None

    def begin_turn(self):
        if self.rate:
            subprocess.run(["tc", "qdisc", "change", "dev", "eth0", "root", "tbf", "rate", self.rate + "mbit", "burst", "80kb",
                            "latency", "50ms"], check=True)
        if self.fault == "core" and dist.get_rank() == 1:
            self.share_core()
        dist.barrier()
        for _ in range(SETTLE):
            self.step()


def main():
    parser = argparse.ArgumentParser(description="a network of random shape")
    parser.add_argument("--kind", choices=("mlp", "conv", "transformer", "lstm"), required=True)
    parser.add_argument("--width", type=int, required=True)
    parser.add_argument("--layers", type=int, required=True)
    parser.add_argument("--batch-size", type=int, required=True)
    parser.add_argument("--bucket-cap-mb", type=float, default=0, help="0: DDP's default")
    parser.add_argument("--steps", type=int, default=60, help="steps to train, or of a turn")
    parser.add_argument("--rate", help="the link's own, in Mbit/s")
    parser.add_argument("--config", default="", help="without --configs: of all steps")
    parser.add_argument("--configs", nargs="*", default=[], help="to take turns")
    parser.add_argument("--rounds", type=int, default=3, help="each is a turn of every config and back")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    network, shape = make_network(args)
    tokens = args.kind in ("lstm", "transformer")
    batch = torch.randint(4096, (args.batch_size, *shape)) if tokens else torch.randn(args.batch_size, *shape)
    if not args.configs:
        trainer = Trainer(network, batch, args.config, args.bucket_cap_mb, None)
        trainer.begin_turn()
        for _ in range(args.steps):
            trainer.step()
        trainer.end_turn()
    else:
        trainers = {config: Trainer(network, batch, config, args.bucket_cap_mb, args.rate) for config in args.configs}
        for trainer in trainers.values():
            trainer.begin_turn()
            trainer.end_turn()
        times = {config: [] for config in args.configs}
        for turn in args.rounds * (args.configs + args.configs[::-1]):
            trainers[turn].begin_turn()
            times[turn].append([trainers[turn].step() for _ in range(args.steps)])
            trainers[turn].end_turn()
        if dist.get_rank() == 0:
            json.dump(times, sys.stdout)
            sys.stdout.flush()
    dist.barrier()
    time.sleep(0.3)  # gloo's threads let go of the last collectives; torch may abort if Python ends before
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
