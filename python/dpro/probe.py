"""What the job's modules take when they are computed in other ways: measured on one rank after all windows, at the end of a
step: probes.json (doc/formats/probes.md). On CPUs the other ranks of its host do the same meanwhile, but for compiling, and keep
nothing of it; all others wait in the next step.

Nothing of it stays: the job's parameters, gradients, buffers, random numbers and attributes are as before. Whatever fails is
told in the file, as the problem of a module."""
import contextlib
import gc
import time

import torch

from . import held_memory, memory, model, module_marks, module_state, module_ways, modules, recompute_trial, report
from .probe_result import LEAST_TURNS, MOST_TURNS, TURNS_SECONDS, Prober
from .probe_survey import Survey, choose
from .probe_time import Call, Stopwatch, given_again, tensors_in
from .probe_ways import BF16, COMPILE, Compiled, Compiler, forward_of, in_bf16, is_late, short

PASSES = "forward_ns", "backward_ns"
BATCHES = ("0.5", "0.25", "2")
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
        self._device = held_memory.device_of(models)
        self._seen, self._groups = None, []
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
            self._seen.watch([run[0] for group in self._groups for run in group.members[:1]])

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
        self._head["clock"] = self._watch.clock
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
        """All ways that need no compiler first, which takes longer than all the rest."""
        around = modules.Around(self._models)
        for group in self._groups:
            self._entries.append({"class": type(group.first[0].module).__name__,
                                  "modules": [[seen.name for seen in run] for run in group.members],
                                  "inputs": group.first[0].inputs, "ways": {}})
        passes = [(False, self._plain)] + [(True, self._with_compiler)] * (COMPILE in self._asked and self.measures)
        self._left_out = []
        for compiles, measure in passes:
            with self._compiler.ready() if compiles else contextlib.nullcontext():
                for n, (group, entry) in enumerate(zip(self._groups, self._entries)):
                    self._progress("probing %d of %d modules%s..." % (n + 1, len(self._groups), ", compiled" if compiles else ""))
                    if self._seconds_left() <= 0:
                        self._left_out.append(entry["modules"][0][0])
                        continue
                    if not entry.get("problem") and (compiles or len(group.first) == 1):
                        self._group(group, entry, around, measure)
                    self._write()
        self._progress("")
        if self._left_out:
            self._ended_early = "the time limit; not measured%s: %s" % (
                " in all ways" if COMPILE in self._asked else "", ", ".join(name or "the model" for name in dict.fromkeys(self._left_out)))

    def _group(self, group, entry, around, measure):
        parts = [seen.module for seen in group.first]
        problem = group.first[0].problem or (None if group.first[0].copies else "it was not called again")
        for part in parts:
            problem = problem or unfit(part, around.of(part))
        if problem is None and self._device.type == "cpu":  # elsewhere it fails by an exception
            need = HELD * group.made_bytes + 2 * sum(p.numel() * p.element_size() for part in parts for p in part.parameters())
            if need > memory.available() // self._n_local:
                problem = "there is too little memory: about %d MB are needed" % (need >> 20)
        try:
            problem = problem or self._within(group, entry, parts, measure)
        except Exception as failure:
            if report.is_the_jobs(failure):
                raise
            problem = short(failure)
        if problem:
            entry["problem"] = problem
        if self._device.type == "cuda":  # what is left of it would be short for the next one
            gc.collect()
            torch.cuda.empty_cache()

    def _within(self, group, entry, parts, measure):
        """Measures what nothing speaks against so far; returns why it couldn't."""
        given = given_again(group.first[0].copies)
        state = _State(parts, given)
        try:
            with state.buffers(), self._autocast(group.first[0].autocast):
                if not entry["ways"] and len(parts) == 1:
                    problem, _ = recompute_trial.look(_forward, parts[0], *given)
                    if problem:
                        return problem
                measure(group, entry, Call(*given, parts, self._watch), forward_of(parts))
        finally:
            state.restore()
        return None

    def _on_device(self):
        return torch.cuda.device(self._device) if self._device.type == "cuda" else contextlib.nullcontext()

    def _autocast(self, own):
        return torch.autocast(self._device.type, own[1], enabled=own[0]) if own[0] else contextlib.nullcontext()

    def _plain(self, group, entry, call, compute):
        """As it is, in 16 bits and in other batches, by turns."""
        self._turns(group, entry, call, {"eager": compute, **self._lower(group, entry, compute)}, LEAST_TURNS)

    def _lower(self, group, entry, compute):
        if BF16 not in self._asked:
            return {}
        if group.first[0].autocast == (True, torch.bfloat16):
            entry["ways"][BF16] = {"problem": "the job computes it in 16 bits"}
            return {}
        return {BF16: in_bf16(compute, self._device.type)}

    def _with_compiler(self, group, entry, call, compute):
        computes, facts = {"eager": compute}, {}
        for name in [COMPILE] + ["compile+bf16"] * bool(self._lower(group, entry, compute)):
            compiled = Compiled(compute, self._compiler)
            way = compiled if name == COMPILE else in_bf16(compiled, self._device.type)
            problem = self._compiler.missing
            try:
                if problem is None:
                    took = compiled.run_first(lambda _, way=way: call.both_passes(way))
                    problem = compiled.problem
            except Exception as failure:
                if report.is_the_jobs(failure):
                    raise
                if is_late(failure):  # what it takes is composed of what was measured
                    self._left_out.append(entry["modules"][0][0])
                    break
                problem = short(failure)
            if problem:
                entry["ways"][name] = {"problem": problem}
            else:
                computes[name] = way
                facts[name] = {"compile_ms": round(1e-6 * took, 1), "graphs": compiled.n_graphs, "breaks": compiled.n_breaks}
        if facts:
            self._turns(group, entry, call, computes, MOST_TURNS, facts)
        self._compiler.forget()

    def _turns(self, group, entry, call, computes, n_turns, facts=()):
        """Each way once a turn, the first turn being for nothing."""
        variants = {(name, "1"): (call, compute) for name, compute in computes.items()}
        for factor in BATCHES if "batch" in self._asked and not facts else ():
            other = self._batch(call, factor)
            if other:
                variants["eager", factor] = other, computes["eager"]
        times, ways, problems = {key: ([], []) for key in variants}, {}, {}
        begin = time.perf_counter()
        for turn in range(n_turns + 1):
            if turn > LEAST_TURNS and time.perf_counter() - begin > TURNS_SECONDS:
                break
            if turn > 1 and self._seconds_left() <= 0:
                break
            for key, (what, compute) in variants.items():
                if key in problems:
                    continue
                try:
                    passes = what.both_passes(compute)
                except Exception as failure:
                    if report.is_the_jobs(failure):
                        raise
                    problems[key] = short(failure)
                    continue
                if turn:
                    for known, ns in zip(times[key], passes):
                        known.append(ns)
        batches = {}
        for key, (what, compute) in variants.items():
            way = {"problem": problems[key]} if key in problems else {
                "forward_ns": times[key][0], "backward_ns": times[key][1], "kept_bytes": what.kept_bytes(compute)}
            if key[1] != "1":
                batches[key[1]] = way
            else:
                ways[key[0]] = way
        if facts:  # the neighbours are at rest by now, so that these have times as it is of their own
            own = ways.pop("eager")
            for name, way in ways.items():
                if "problem" not in way:
                    way.update(facts[name], **({} if "problem" in own else {"eager": {key: own[key] for key in PASSES}}))
        entry["ways"].update(ways)
        if batches:
            entry["batches"] = batches
        torch.clear_autocast_cache()

    def _batch(self, call, factor):
        """The call with a batch of another size, None where not every input has the batch as its first dimension."""
        size, ratio = self._batch_size, float(factor)
        given = call.given()
        if not size or not given or any(t.dim() == 0 or t.shape[0] != size for t in given) or size * ratio != int(size * ratio):
            return None
        return call.of_batch(int(size * ratio))


def _forward(module, *args, **kwargs):
    return module.forward(*args, **kwargs)


class _State:
    """Of the modules and the process, as it was before."""

    def __init__(self, parts, given):
        self._places = [(part, name) for outer in parts for part in outer.modules()
                        for name, buffer in part._buffers.items() if buffer is not None]
        self._tensors = [t for part in parts for t in (*part.parameters(), *part.buffers())]
        self._own = [(t, set(t.__dict__)) for t in self._tensors]
        self._attributes = [module_state.Attributes(part) for part in parts]
        self._random = [module_state.Random(part, tensors_in(given)) for part in parts]

    def buffers(self):
        return module_state.swapped([(part, name, part._buffers[name].detach().clone()) for part, name in self._places])

    def restore(self):
        for attributes in self._attributes:
            attributes.restore()
        for random in self._random[::-1]:
            random.restore()
        for t, own in self._own:  # torch.compile leaves marks there
            for name in set(t.__dict__) - own:
                del t.__dict__[name]
        torch.clear_autocast_cache()
