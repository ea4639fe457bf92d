#!/usr/bin/env python3
"""Trains a small network of random shape, data-parallel, for tools/measure.py and faults.py: either --steps steps with
--config (to be recorded), or by turns with each of --configs, whose steps rank 0 prints as JSON.

A config is `cap=MB`, `cap=MB,compress=fp16`, `rate=MBIT`: as recorded, but on a slower link of this network namespace,
`latency=MS`: more of it, `compiled=1`, `stages=LAYERS/LAYERS` of a pipeline, or `fault=NAME`, one of FAULTS or several joined by +.
Faults of one rank are rank 1's."""
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
from torch.distributed import pipelining
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

SETTLE = 4  # steps of a turn that are not counted
HOOKS = {"fp16": default_hooks.fp16_compress_hook}
FAULTS = ("core", "loader", "loader-one", "loader-4th", "gc", "lengths", "order", "recompile")
LOADER_S, HEAP = 0.04, 20_000  # objects that are collected
EVERY, MICRO_BATCHES = 4, 4


class Loaded(torch.utils.data.IterableDataset):
    """A batch again and again; with a fault it comes late, or is longer or shorter on each rank by turns."""

    def __init__(self, batch, faults):
        self.batch, self.faults = batch, faults

    def __iter__(self):
        rank, rng = dist.get_rank(), random.Random(1)
        step = 0
        while True:
            step += 1
            late = {"loader": 1, "loader-one": rank == 1, "loader-4th": EVERY * (step % EVERY == 0)}
            time.sleep(LOADER_S * sum(late.get(fault, 0) for fault in self.faults))
            shares = [rng.uniform(0.5, 1.5) for _ in range(dist.get_world_size())]
            rows = len(self.batch) * shares[rank] / sum(shares) * len(shares)
            yield self.batch[torch.arange(max(int(rows), 2)) % len(self.batch)] if "lengths" in self.faults else self.batch


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
        self.rate, self.latency = settings.get("rate", own_rate), settings.get("latency")
        self.faults, self.helpers = [fault for fault in settings.get("fault", "").split("+") if fault], []
        if not set(self.faults) <= set(FAULTS):
            raise SystemExit(f"train_blind: no such fault: {settings['fault']}")
        self.begun, self.pipeline = 0, None
        if "stages" in settings:
            self.model = self.make_stage(network, [int(layers) for layers in settings["stages"].split("/")])
        else:
            own = copy.deepcopy(network)
            if "compiled" in settings:
                own.forward = torch.compile(own.forward, backend="eager")
            cap = float(settings.get("cap", own_cap)) or None  # 0: DDP's default
            self.model = DistributedDataParallel(own, bucket_cap_mb=cap)
        if "compress" in settings:
            self.model.register_comm_hook(None, HOOKS[settings["compress"]])
        if "order" in self.faults:
            self.model.register_comm_hook([], hold_back)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3, momentum=0.9)
        self.batches = iter(torch.utils.data.DataLoader(Loaded(batch, self.faults), batch_size=None))
        self.target = torch.zeros(2 * batch.shape[0], dtype=torch.long)

    def make_stage(self, network, layers):
        """This rank's of a pipeline: a network's modules in order, so many layers of the encoder on each rank."""
        own, (embedding, (encoder, *head)) = dist.get_rank(), network
        first = sum(layers[:own])
        parts = [*[embedding] * (own == 0), *encoder.layers[first:first + layers[own]], *head * (own == len(layers) - 1)]
        stage = nn.Sequential(*copy.deepcopy(parts))
        stages = pipelining.PipelineStage(stage, own, len(layers), torch.device("cpu"))
        self.pipeline = pipelining.Schedule1F1B(stages, MICRO_BATCHES, loss_fn=nn.functional.cross_entropy)
        return stage

    def learn(self, batch):
        if self.pipeline:
            last = dist.get_rank() == dist.get_world_size() - 1
            self.pipeline.step(*[] if last else [batch], **{"target": self.target[:len(batch)]} if last else {})
            return
        loss = nn.functional.cross_entropy(self.model(batch), self.target[:len(batch)])
        if "gc" in self.faults and dist.get_rank() == 1:
            garbage = [[i] for i in range(HEAP)]
            gc.collect()
            del garbage
        loss.backward()

    def step(self):
        begin = time.perf_counter()
        self.begun += 1
        if "recompile" in self.faults and self.begun % EVERY == 0:
            torch.compiler.reset()
        batch = next(self.batches)
        self.optimizer.zero_grad()
        self.learn(batch)
        self.optimizer.step()
        return 1e3 * (time.perf_counter() - begin)

    def start(self, *command):
        """A process beside this one, on its core."""
        self.helpers.append(subprocess.Popen([sys.executable, *command]))

    def end_turn(self):
        if self.latency:
            time.sleep(0.3)  # what is still held back, which TCP would take for lost
        for helper in self.helpers:
            helper.kill()
            helper.wait()
        self.helpers = []

    def begin_turn(self):
        if self.rate:
            subprocess.run(["tc", "qdisc", "change", "dev", "eth0", "root", "tbf", "rate", self.rate + "mbit", "burst", "80kb",
                            "latency", "50ms"], check=True)
        if self.latency:
            self.start(os.path.join(os.path.dirname(os.path.abspath(__file__)), "delay_packets.py"), self.latency)
            time.sleep(1)
        if dist.get_rank() == 1 and "core" in self.faults:
            os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
            self.start("-c", "while True: pass")
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
    torch.manual_seed(0 if "stages" in args.config + "".join(args.configs) else dist.get_rank())
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
