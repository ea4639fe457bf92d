"""What the job's modules take when they are computed in other ways: measured on one rank after all windows, at the end of a
step: probes.json (doc/formats/probes.md). On CPUs the other ranks of its host do the same meanwhile, but for compiling, and keep
nothing of it; all others wait in the next step.

Nothing of it stays: the job's parameters, gradients, buffers, random numbers and attributes are as before. Whatever fails is
told in the file, as the problem of a module."""
import contextlib
import functools
import gc
import time

import torch

from . import memory, model, module_marks, module_state, module_ways, modules, probe_trial, recompute, report
from .computing import in_bf16
from .ddp_parameters import size_bytes
from .probe_result import LEAST_TURNS, MOST_TURNS, TURNS_SECONDS, Prober, are_settled
from .probe_survey import Survey, choose, outermost_of_batch
from .probe_time import Call, Stopwatch, given_again, tensors_in
from .probe_ways import BF16, COMPILE, RECOMPUTE, Compiler

PASSES = "forward_ns", "backward_ns"
ON_GPU = "forward_launch_ns", "backward_launch_ns", "forward_device_ns", "backward_device_ns"
BATCHES = (0.5, 0.25, 2)  # times as large, down to whole samples
COMPILED = COMPILE, "compile+bf16"
HELD = 4  # times what innermost modules return: what a module holds between its passes, about


def unfit(part, around):
    """Why a module can't be measured, None where nothing is known to speak against it."""
    problem = module_ways.entangled(part, around)
    if modules.any_checkpointed(around):
        problem = problem or "the job recomputes it already"
    for inner in part.modules():
        if any(getattr(inner, hooks, None) for hooks in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks",
                                                         "_backward_pre_hooks")):
            problem = problem or "%s in it has hooks" % type(inner).__name__
    if any(p._backward_hooks for p in part.parameters()):
        problem = problem or "a parameter of it has hooks"
    return problem


class Probe(Prober):
    """Of these models: what they call is seen in the step after _survey(), kept in the one after _copy()."""

    def __init__(self, models, settings, batch_size, n_local, folder, info):
        self._models, self._n_local, self._batch_size = models, n_local, batch_size
        self._device = model.device(models)
        self._seen, self._groups, self._left_out = None, [], []
        super().__init__(settings, folder, info, str(self._device), torch.get_num_threads())
        self._limit_s = min(self._limit_s, model.patience_s() / 2)  # the others wait in a collective meanwhile

    def shares_cores(self):
        """With the other ranks of its host: they slow each other down, 16 bits otherwise than 32."""
        return self._device.type == "cpu"

    def end(self):
        seen, self._seen = self._seen, None
        if seen:
            seen.unwatch()

    # The two steps before

    def _survey(self):
        if module_marks.anything_compiled():
            self.problem = "the job compiles itself"
        elif any(getattr(torch.nn.modules.module, name, None) for name in (
                "_global_forward_hooks", "_global_forward_pre_hooks", "_global_backward_hooks", "_global_backward_pre_hooks")):
            self.problem = "the job has hooks that every module calls"
        else:
            self._seen = Survey(self._models, self._device, memory.available() // (4 * self._n_local), self._failed)
            self._seen.watch()

    def _copy(self):
        if self._seen and not self.problem:
            self._seen.unwatch()
            self._groups = choose(self._seen, self._models)
            self._seen.watch([group.first for group in self._groups])

    # Measuring

    def _probe(self):
        if self._seen:
            self._seen.unwatch()
        if self.problem is None and not self._groups:
            self.problem = "no module of the model was called"
        if self.problem is None and torch._C._len_torch_dispatch_stack():
            self.problem = "the job has a mode in which every operator is dispatched"
        if self.problem is not None:
            return
        self._begin = time.perf_counter()
        collects = gc.isenabled()
        self._compiler = Compiler(self._device, self._seconds_left)
        self._watch = Stopwatch(self._device)
        self._head.update(clock=self._watch.clock, fault_ns=self._watch.fault_ns)
        try:
            gc.disable()
            with torch.enable_grad(), module_ways.as_they_are(), self._on_device():
                self._measure()
        finally:
            if collects:
                gc.enable()
            self._seen, self._groups, self._models = None, [], ()
            self._watch = None
            if self._device.type == "cuda":
                torch.cuda.empty_cache()
        self._write()

    def _measure(self):
        """The ways that need no compiler come first, as compiling takes longest. Each pass over the modules has a share of the time."""
        around = modules.Around(self._models)
        for group in self._groups:
            self._entries.append({"class": type(group.first.module).__name__, "modules": [[seen.name] for seen in group.members],
                                  "inputs": group.first.inputs, "ways": {}})
        everything = list(zip(self._groups, self._entries))
        of_batch = outermost_of_batch(self._groups, self._batch_size) if "batch" in self._asked else ()
        passes = [("", everything, self._plain, ("eager", BF16, RECOMPUTE))]
        passes += [(", with other batches", [(group, entry) for group, entry in everything if group in of_batch],
                    self._batches, ())] * bool(of_batch)
        passes += [(", compiled", everything, self._with_compiler, COMPILED)] * (COMPILE in self._asked)
        n_passes = len(passes)
        if not self.measures and COMPILE in self._asked:
            passes.pop()
        for n, (text, found, measure, ways) in enumerate(passes):
            self._until = self._begin + self._limit_s * (n + 1) / n_passes
            with self._compiler.ready() if ways == COMPILED else contextlib.nullcontext():
                self._pass(text, found, around, measure, ways)
        self._progress("")
        if self._left_out:
            self._ended_early = "the time limit; not measured%s: %s" % (
                " in all ways" if COMPILE in self._asked else "", ", ".join(name or "the model" for name in dict.fromkeys(self._left_out)))

    def _pass(self, text, found, around, measure, ways):
        for n, (group, entry) in enumerate(found):
            self._progress("probing %d of %d modules%s..." % (n + 1, len(found), text))
            if time.perf_counter() >= self._until:
                self._leave_out(entry, ways, "the time was over")
            elif not entry.get("problem"):
                self._group(group, entry, around, measure)
            self._write()

    def _leave_out(self, entry, ways, why, late=True):
        """Notes why these ways are not measured; dpro whatif composes their times from those that are."""
        for way in ways:
            if way == "eager" or self._asked.issuperset(way.split("+")):
                entry["ways"].setdefault(way, {"left_out": why})
        if late:
            self._left_out.append(entry["modules"][0][0])

    def _group(self, group, entry, around, measure):
        seen = group.first
        problem = seen.problem or (None if seen.copies else "it was not called again")
        problem = problem or unfit(seen.module, around.of(seen.module))
        if problem is None and self._device.type == "cpu":  # elsewhere it fails by an exception
            need = HELD * seen.made_bytes + 2 * sum(size_bytes(p) for p in seen.module.parameters())
            need *= 2 if measure == self._with_compiler else 1  # which first runs it in another process
            if need > memory.available() // self._n_local:
                problem = "there is too little memory: about %d MB are needed" % (need >> 20)
        try:
            problem = problem or self._within(seen, entry, measure)
        except Exception as failure:
            problem = report.why(failure)
        if problem:
            entry["problem"] = problem
        if self._device.type == "cuda":  # else the next module lacks what this one left cached
            gc.collect()
            torch.cuda.empty_cache()

    def _within(self, seen, entry, measure):
        """Measures a module; returns why it couldn't, None where it could."""
        given, module = given_again(seen.copies), seen.module
        own = _forward if "forward" in module.__dict__ else type(module).forward
        call, state = Call(*given, module, self._watch), _State(module, given)
        try:
            with state.buffers(), self._autocast(seen.autocast):
                if seen.n_ops is None:
                    problem, seen.n_ops = probe_trial.look(own, module, call)
                    if problem:
                        return problem
                measure(seen, entry, call, own)
        finally:
            state.restore()
        return None

    def _on_device(self):
        return torch.cuda.device(self._device) if self._device.type == "cuda" else contextlib.nullcontext()

    def _autocast(self, own):
        return torch.autocast(self._device.type, own[1], enabled=own[0]) if own[0] else contextlib.nullcontext()

    def _plain(self, seen, entry, call, own):
        """As it is, in 16 bits, and computed again in its backward pass."""
        ways = {"eager": functools.partial(own, seen.module)}
        if BF16 in self._asked and not self._lower_already(seen):
            ways[BF16] = in_bf16(ways["eager"], self._device.type)
        elif BF16 in self._asked:
            entry["ways"][BF16] = {"problem": "the job computes it in 16 bits"}
        if RECOMPUTE in self._asked and recompute.unknown():
            entry["ways"][RECOMPUTE] = {"problem": recompute.unknown()}
        elif RECOMPUTE in self._asked:
            ways[RECOMPUTE] = lambda *args, **kwargs: recompute.recomputed(own, seen.module, args, kwargs)
        for name, way in self._turns({name: (call, compute) for name, compute in ways.items()}).items():
            entry["ways"][name] = self._with_memory(way, call, ways[name])

    @staticmethod
    def _lower_already(seen):
        return seen.autocast == (True, torch.bfloat16)

    def _batches(self, seen, entry, call, own):
        """Times other batches by turns with the module as it is."""
        compute = functools.partial(own, seen.module)
        sizes = dict.fromkeys(max(1, int(factor * self._batch_size)) for factor in BATCHES)
        calls = {"%.6g" % (size / self._batch_size): call.of_batch(size) for size in sizes if size != self._batch_size}
        found = self._turns({name: (what, compute) for name, what in {"1": call, **calls}.items()})
        own = found.pop("1")
        for way in found.values():
            self._beside(way, own)
        entry["batches"] = found

    def _with_compiler(self, seen, entry, call, own):
        if seen.n_ops <= 1:
            self._leave_out(entry, COMPILED, "it is one operator, with which nothing can be fused", late=False)
            return
        computes, facts = {"eager": functools.partial(own, seen.module)}, {}
        for name in COMPILED if BF16 in self._asked and not self._lower_already(seen) else COMPILED[:1]:
            compiled = self._compiler.compiled(own)
            way = functools.partial(compiled, seen.module)
            way = way if name == COMPILE else in_bf16(way, self._device.type)
            problem, took = self._compiler.missing, 0
            if problem is None:
                problem, took = self._compiler.first(compiled, lambda way=way: call.both_passes(way))
                if self._compiler.is_late:
                    self._leave_out(entry, COMPILED[COMPILED.index(name):], problem or "the time was over before it was compiled")
                    break
            if problem:
                entry["ways"][name] = {"problem": problem}
            else:
                computes[name] = way
                facts[name] = {"compile_ms": round(1e-6 * took, 1), "graphs": compiled.n_made, "breaks": compiled.n_breaks}
        if facts:  # the neighbours are at rest by now, so that these have times as it is of their own
            found = self._turns({name: (call, compute) for name, compute in computes.items()})
            own = found.pop("eager")
            for name, way in found.items():
                entry["ways"][name] = self._beside({**way, **facts[name]}, own)
                self._with_memory(entry["ways"][name], call, computes[name])
        self._compiler.forget()

    @staticmethod
    def _beside(way, own):
        if "problem" not in way and "problem" not in own:
            way["eager"] = own
        return way

    def _with_memory(self, way, call, compute):
        if "problem" not in way:
            way["kept_bytes"] = call.kept_bytes(compute)
        return way

    def _turns(self, variants):
        """Calls each of {name: (call, compute)} once a turn, until more turns would tell nothing more. The first one is not counted."""
        keys = PASSES + ON_GPU * (self._device.type == "cuda")
        times, problems = {name: tuple([] for _ in keys) for name in variants}, {}
        begin = time.perf_counter()
        for turn in range(MOST_TURNS + 1):
            if turn > LEAST_TURNS and (time.perf_counter() - begin > TURNS_SECONDS or
                                       are_settled(taken for name in variants if name not in problems for taken in times[name][:2])):
                break
            if turn > 1 and time.perf_counter() >= self._until:
                break
            for name, (call, compute) in variants.items():
                if name in problems:
                    continue
                try:
                    passes = call.both_passes(compute)
                    if turn and self._device.type == "cuda":
                        passes += call.both_on_device(compute, passes[2:])
                except Exception as failure:
                    problems[name] = report.why(failure)
                    continue
                if turn:
                    for known, ns in zip(times[name], passes):
                        known.append(ns)
        torch.clear_autocast_cache()
        return {name: {"problem": problems[name]} if name in problems else dict(zip(keys, times[name])) for name in variants}


def _forward(module, *args, **kwargs):
    return module.forward(*args, **kwargs)


class _State:
    """What a module and the process had before, to be put back."""

    def __init__(self, module, given):
        self._places = module_state.buffers_of(module)
        self._own = [(t, set(t.__dict__)) for t in (*module.parameters(), *module.buffers())]
        self._attributes = module_state.Attributes(module)
        self._random = module_state.Random(module, tensors_in(given))

    def buffers(self):
        return module_state.own_buffers(self._places)

    def restore(self):
        self._attributes.restore()
        self._random.restore()
        for t, own in self._own:  # torch.compile leaves marks there
            for name in set(t.__dict__) - own:
                del t.__dict__[name]
        torch.clear_autocast_cache()
