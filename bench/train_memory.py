#!/usr/bin/env python3
"""Trains one of bench/memory_models.py, data-parallel over gloo (on a GPU: NCCL): --steps steps as it is or with each of --configs.
Rank 0 prints, as JSON, a config's step times and, on a GPU or where count_memory is preloaded, peaks of the bytes that tensors hold, by
rank. With --turns FOLDER it trains a turn of --steps steps whenever rank R reads a line from FOLDER/go.R, of which it tells in a line of
FOLDER/done.R.

A config is a list of `recompute=NAMES` (patterns, joined with `+`, or `all`, the network as one), `accumulate=K`, `batch=RATIO`,
`compile=NAMES` (each module by itself), `bf16=NAMES`, joined with commas. `compile` and `bf16` alone are what people write by hand:
torch.compile of the network, cut at DDP's buckets, and autocast around all, the loss too. `as-is` is none of these.

With --shard each block is a unit of FSDP, and `reshard=NAMES` says which units reshard after forward: `all`, `none`, or patterns."""
import argparse
import contextlib
import ctypes
import fnmatch
import json
import os
import sys
import time

import torch
import torch._dynamo
import torch.distributed as dist
from memory_models import MODELS, make
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint


class DeviceMemory:
    """What the GPU's allocator counts."""

    def reset(self):
        torch.cuda.reset_peak_memory_stats()

    def facts(self):
        return {"peak": torch.cuda.max_memory_allocated(), "reserved": torch.cuda.max_memory_reserved()}


class Memory:
    """What count_memory counts; nothing where it is not preloaded."""

    def __init__(self):
        self.library = None
        if "count_memory" in os.environ.get("LD_PRELOAD", ""):
            self.library = ctypes.CDLL(None)
            for name in ("held", "peak", "peak_all", "lost"):
                getattr(self.library, "count_memory_" + name).restype = ctypes.c_uint64
            if self.library.count_memory_begin():
                raise SystemExit("libc10 was not found")

    def reset(self):
        if self.library:
            self.library.count_memory_reset_peak()

    def facts(self):
        if not self.library:
            return None
        facts = {name: getattr(self.library, "count_memory_" + name)() for name in ("peak", "peak_all", "held", "lost")}
        if facts.pop("lost"):
            raise SystemExit("more blocks than count_memory has room for")
        return facts


def settings_of(config):
    """True: by hand."""
    found = {"recompute": "", "accumulate": 1, "batch": 1.0, "compile": "", "bf16": "", "reshard": ""}
    for part in config.split(","):
        key, _, value = part.partition("=")
        if part != "as-is":
            found[key] = type(found[key])(value) if value else True
    return found


def in_bf16(forward, device):
    def lower(*args, **kwargs):
        with torch.autocast(device, torch.bfloat16):
            return forward(*args, **kwargs).float()
    return lower


def compiled(forward):
    """Not cut at DDP's buckets. A function of ours: torch.compile leaves methods of torch's own classes alone."""
    torch._dynamo.config.recompile_limit = 1000  # of one function, by which all modules are compiled
    function = torch.compile(lambda *args, **kwargs: forward(*args, **kwargs), dynamic=False)

    def call(*args, **kwargs):
        with torch._dynamo.config.patch(optimize_ddp=False):
            return function(*args, **kwargs)
    return call


def checkpointed(forward):
    return lambda *args, **kwargs: checkpoint(forward, *args, use_reentrant=False, **kwargs)


class Trainer:
    def __init__(self, name, device, bucket_cap_mb, batch_size, shard=False):
        self.network, self.make_batch, self.batch_size, make_optimizer = make(name)
        self.device = device
        self.network.to(device)
        self.batch_size = batch_size or self.batch_size
        self.sharded = [*self.network.blocks, self.network] if shard else []
        for module in self.sharded:
            fully_shard(module, mesh=init_device_mesh(device, (dist.get_world_size(),)))
        self.model = self.network if shard else DistributedDataParallel(self.network, bucket_cap_mb=bucket_cap_mb)
        self.optimizer = make_optimizer(self.model.parameters())
        self.compiled, self.between = {}, None  # called between micro-batches
        self.use("as-is")

    def use(self, config):
        self.settings = settings_of(config)
        for module in self.sharded:
            name = {module: name for name, module in self.network.named_modules()}[module]
            patterns = (self.settings["reshard"] or "blocks.*").split("+")
            module.set_reshard_after_forward(patterns == ["all"] or any(name and fnmatch.fnmatchcase(name, p) for p in patterns),
                                             recurse=False)
        for module in self.network.modules():
            vars(module).pop("forward", None)  # as its class has it, which a plan needs
        for name in self.chosen("compile"):
            self.wrap(name, lambda forward, name=name: self.compiled.setdefault(name, compiled(forward)))
        for name in self.chosen("bf16"):
            self.wrap(name, lambda forward: in_bf16(forward, self.device))
        self.recomputed = [self.wrap(name, checkpointed) for name in self.chosen("recompute")]
        if not self.sharded:
            self.model.module = self.network
        if self.settings["compile"] is True:
            self.model.module = self.compiled.setdefault(True, torch.compile(self.network, dynamic=False))

    def chosen(self, key):
        """Names of modules; of those within each other the outermost."""
        if self.settings[key] == "all":
            return [""]
        found, patterns = [], [] if self.settings[key] is True else self.settings[key].split("+")
        for name, _ in self.network.named_modules():
            within = any(name.startswith(outer + ".") for outer in found)
            if name and not within and any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns):
                found.append(name)
        return found

    def wrap(self, name, wrapper):
        module = self.network.get_submodule(name)
        module.forward = wrapper(module.forward)
        return module

    def samples(self):
        return max(1, round(self.batch_size * self.settings["batch"]))

    def step(self):
        micro_batches = self.settings["accumulate"]
        batch, target = (made.to(self.device) for made in self.make_batch(self.samples()))
        self.optimizer.zero_grad()
        pairs = list(zip(batch.chunk(micro_batches), target.chunk(micro_batches)))
        for number, (some, wanted) in enumerate(pairs):
            with contextlib.nullcontext() if self.sharded or number == len(pairs) - 1 else self.model.no_sync():
                with torch.autocast(self.device, torch.bfloat16, enabled=self.settings["bf16"] is True):
                    loss = F.cross_entropy(self.model(some), wanted) / len(pairs)
                loss.backward()
                if self.between:
                    self.between()
        self.optimizer.step()


def run_steps(trainer, memory, n_before, n):
    for _ in range(n_before):
        trainer.step()
    if trainer.device == "cuda":
        torch.cuda.synchronize()
    found = []
    for _ in range(n):
        memory.reset()
        begin, cpu = time.perf_counter(), time.process_time()
        trainer.step()
        if trainer.device == "cuda":
            torch.cuda.synchronize()
        step = {"ms": 1e3 * (time.perf_counter() - begin), "cpu_ms": 1e3 * (time.process_time() - cpu)}
        found.append({**step, **(memory.facts() or {})})
    return found


def take_turns(trainer, memory, args):
    """Until the other end of go.R is closed."""
    paths = [os.path.join(args.turns, "%s.%d" % (name, dist.get_rank())) for name in ("done", "go")]
    with open(paths[0], "w", encoding="utf-8") as done, open(paths[1], encoding="utf-8") as go:
        for _ in go:
            print(json.dumps(run_steps(trainer, memory, 1, args.steps)), file=done, flush=True)


def main():
    parser = argparse.ArgumentParser(description="trains a network of one kind")
    parser.add_argument("--model", choices=MODELS, required=True)
    parser.add_argument("--configs", nargs="+", default=["as-is"])
    parser.add_argument("--steps", type=int, default=40, help="of a config or a turn, that count")
    parser.add_argument("--settle", type=int, default=2, help="of a config, that don't, before these")
    parser.add_argument("--turns", metavar="FOLDER", help="of named pipes go.R and done.R, a pair a rank")
    parser.add_argument("--bucket-cap-mb", type=float, default=None)
    parser.add_argument("--batch-size", type=int, default=None, help="a rank's (default: the model's own)")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--shard", action="store_true", help="FSDP, not DistributedDataParallel")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)  # else steps take up to four times as long as weights settle, on some processors
    on_gpu = args.device == "cuda"
    memory = DeviceMemory() if on_gpu else Memory()
    dist.init_process_group("nccl" if on_gpu and torch.cuda.device_count() >= int(os.environ["WORLD_SIZE"]) else "gloo")
    torch.manual_seed(dist.get_rank())
    trainer = Trainer(args.model, args.device, args.bucket_cap_mb, args.batch_size, args.shard)
    found = {config: [] for config in args.configs}
    for config in args.configs:
        trainer.use(config)
        if on_gpu:
            torch.cuda.empty_cache()  # what is reserved is each config's own
        dist.barrier()
        found[config] = run_steps(trainer, memory, args.settle, args.steps)
    if args.turns:
        take_turns(trainer, memory, args)
    ranks = [None] * dist.get_world_size()
    dist.all_gather_object(ranks, found)
    if dist.get_rank() == 0:
        facts = {config: [{key: [step[key] for step in rank[config]] for key in rank[config][0]} for rank in ranks]
                 for config in args.configs}
        json.dump({"model": args.model, "batch_size": trainer.batch_size, "configs": facts}, sys.stdout)
        sys.stdout.flush()
    dist.barrier()
    time.sleep(0.3)  # gloo's threads let go of the last collectives; torch may abort if Python ends before
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
