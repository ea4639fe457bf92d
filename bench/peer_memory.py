#!/usr/bin/env python3
"""What others say of the peak of bench/train_memory.py: MemTracker of PyTorch (torch.distributed._tools), which runs each variant on
real tensors, and the rule of the paper's implementation: 8/3 of the parameters and the sum of the forward pass' outputs, here
without those that are computed again. Rank 0 prints both as JSON, in bytes, by config; None: it failed."""
import argparse
import json
import sys
import time

import torch
import torch.distributed as dist
from memory_models import MODELS
from torch.distributed._tools.mem_tracker import MemTracker
from torch.utils._python_dispatch import TorchDispatchMode
from train_memory import Trainer


def tracked(trainer):
    """The peak of a step by MemTracker."""
    tracker = MemTracker()
    tracker.track_external(trainer.model, trainer.optimizer)
    trainer.between = tracker.reset_mod_stats  # it follows a module once
    try:
        with tracker:
            trainer.step()
    finally:
        trainer.between = None
    return int(tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"])


class Outputs(TorchDispatchMode):
    """Bytes of new storages that operators made, but within the modules of `apart`."""

    def __init__(self, apart):
        super().__init__()
        self.total, self.depth, self.hooks = 0, 0, []
        for module in apart:
            self.hooks += [module.register_forward_pre_hook(lambda *_: self.enter(1)),
                           module.register_forward_hook(lambda *_: self.enter(-1))]

    def enter(self, by):
        self.depth += by

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        given = {tensor.untyped_storage().data_ptr() for tensor in args if isinstance(tensor, torch.Tensor)}
        for tensor in made if isinstance(made, (tuple, list)) else (made,):
            if isinstance(tensor, torch.Tensor) and not self.depth and tensor.untyped_storage().data_ptr() not in given:
                self.total += tensor.untyped_storage().nbytes()
        return made


def by_rule(trainer):
    batch, _ = trainer.make_batch(trainer.samples() // trainer.settings["accumulate"])
    parameters = sum(p.numel() * p.element_size() for p in trainer.network.parameters())
    outputs = Outputs(trainer.recomputed)
    with outputs, torch.autocast("cpu", torch.bfloat16, enabled=trainer.settings["bf16"]):
        last = trainer.network(batch)
    for hook in outputs.hooks:
        hook.remove()
    return int(parameters * 8 / 3 + outputs.total + last.untyped_storage().nbytes())


def attempt(what, trainer):
    try:
        return what(trainer)
    except Exception as error:  # of code that is not ours: what it can't do is a figure as well
        print(f"{what.__name__}: {error!r}", file=sys.stderr)
        return None


def main():
    parser = argparse.ArgumentParser(description="peaks by other rules")
    parser.add_argument("--model", choices=MODELS, required=True)
    parser.add_argument("--configs", nargs="+", default=["as-is"])
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    trainer, found = Trainer(args.model, None, None), {}
    for config in args.configs:
        trainer.use(config)
        for _ in range(2):
            trainer.step()
        found[config] = {"tracker_bytes": attempt(tracked, trainer), "rule_bytes": attempt(by_rule, trainer)}
    if dist.get_rank() == 0:
        json.dump(found, sys.stdout)
        sys.stdout.flush()
    dist.barrier()
    time.sleep(0.3)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
