"""Times of both passes of a call outside of training, as they are within a step: parameters and what was kept are not in the
caches any more, what the neighbours have just made is.

Nothing of the job's is written to: gradients are asked for by torch.autograd.grad, which accumulates none and calls no hook of
DDP's, inputs are copies."""
import functools
import resource
import time

import torch
from torch.utils import _pytree

from . import memory

CACHE_BYTES, MOST_CACHE_BYTES = 32 << 20, 128 << 20
GRADIENT = 1e-3  # of outputs, about
CYCLES_A_NS = 4  # more than twice those of any GPU


def _emptying_bytes(device):
    """Writing so many bytes leaves nothing else in the caches; on a CPU, of a shared cache, about a thread's part."""
    if device.type == "cuda":
        return 2 * (getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 0) or MOST_CACHE_BYTES)  # torch 2.2 has it
    try:
        with open("/sys/devices/system/cpu/cpu0/cache/index3/size", encoding="ascii") as file:
            cache = int(file.read().strip().rstrip("K")) << 10
    except (OSError, ValueError):
        cache = CACHE_BYTES
    return min(2 * cache, MOST_CACHE_BYTES)


def moment(device):
    """Now, in this thread's time; on a GPU, when what it has launched so far is done."""
    if device.type != "cuda":
        return time.thread_time()
    event = torch.cuda.Event(enable_timing=True)
    event.record(torch.cuda.current_stream(device))
    return event


def seconds_between(begin, end):
    """Between two results of moment(), when the device has reached both."""
    return 1e-3 * begin.elapsed_time(end) if isinstance(begin, torch.cuda.Event) else end - begin


def _without_faults(fault_ns):
    return time.thread_time_ns() - fault_ns * memory.page_faults(resource.RUSAGE_THREAD)


class Stopwatch:
    """Nanoseconds of what this device did. Of one thread on a CPU it is CPU time, whatever else the machine does, without that
    of page faults: malloc gives pages back and takes them again as what else there is in its heap wants it, and ways that take
    turns find room that the way before them took from the kernel."""

    def __init__(self, device):
        self.device = device
        self.clock, self.fault_ns = "wall", 0
        self._now = time.perf_counter_ns
        if device.type == "cpu" and torch.get_num_threads() == 1:
            self.clock, self.fault_ns = "cpu", memory.fault_ns()
            self._now = functools.partial(_without_faults, self.fault_ns)  # no method: that would keep it, and what it holds
        self._other = torch.empty(_emptying_bytes(device), dtype=torch.uint8, device=device)
        self._generator = torch.Generator(device=device)
        self._generator.manual_seed(1)

    def now(self):
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return self._now()

    def timed(self, run):
        """(what run() returns, (ns until all was done, ns until all was launched))"""
        begin = self.now()
        result = run()
        launched = self._now()
        return result, (self.now() - begin, launched - begin)

    def timed_on_device(self, run, launch_ns):
        """(what run() returns, ns that its kernels take a GPU). It is kept busy until all are launched."""
        torch.cuda._sleep(int(CYCLES_A_NS * launch_ns))
        begin = moment(self.device)
        result = run()
        end = moment(self.device)
        torch.cuda.synchronize(self.device)
        return result, round(1e9 * seconds_between(begin, end))

    def empty_caches(self):
        self._other.add_(1)

    def gradient(self, output):
        return torch.randn(output.shape, generator=self._generator, device=output.device, dtype=torch.float32).mul_(
            GRADIENT).to(output.dtype)


def copy_of(t):
    return t.detach().clone().requires_grad_(t.requires_grad)


class Kept:
    """A copy of a tensor for later, in the host's memory: the device's may be short while the job trains."""

    def __init__(self, t):
        self._device, self._copy = t.device, t.detach().to("cpu", copy=True).requires_grad_(t.requires_grad)

    def tensor(self):
        return self._copy.detach().to(self._device).requires_grad_(self._copy.requires_grad)


def kept(value):
    return _pytree.tree_map_only(torch.Tensor, Kept, value)


def given_again(value):
    return _pytree.tree_map_only(Kept, Kept.tensor, value)


def tensors_in(value):
    return [leaf for leaf in _pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def _differentiable(result):
    return [t for t in tensors_in(result) if t.requires_grad and t.is_floating_point()]


class Call:
    """What a module is given, and what gradients are asked of it: of the inputs that had one and of the parameters."""

    def __init__(self, args, kwargs, module, stopwatch):
        self._given = args, kwargs
        self._parameters = [p for p in module.parameters() if p.requires_grad]
        self._module, self._stopwatch, self._gradients = module, stopwatch, None

    def of_batch(self, size):
        """With the first dimension of each input cut, or repeated."""
        def resized(t):
            parts = [t] * (size // t.shape[0]) if size > t.shape[0] else [t[:size]]
            return torch.cat(parts).detach().requires_grad_(t.requires_grad)

        with torch.no_grad():
            return Call(*_pytree.tree_map_only(torch.Tensor, resized, self._given), self._module, self._stopwatch)

    def inputs(self):
        return _pytree.tree_map_only(torch.Tensor, copy_of, self._given)

    def both_passes(self, compute):
        """(ns of the forward pass, of the backward pass); on a GPU also the ns of each until its last kernel was launched."""
        done, launched = zip(*self._passes(compute, self._stopwatch.timed, (0, 0)))
        return done + launched if self._stopwatch.device.type == "cuda" else done

    def both_on_device(self, compute, launched):
        """ns that the kernels of each pass take a GPU, once it is known how long launching them takes."""
        launches = iter(launched)
        return self._passes(compute, lambda run: self._stopwatch.timed_on_device(run, next(launches)), 0)

    def _passes(self, compute, timed, nothing):
        """What timed(run) tells of the forward pass and of the backward pass; `nothing` of one that there isn't."""
        watch = self._stopwatch
        watch.empty_caches()
        args, kwargs = self.inputs()
        result, forward = timed(lambda: compute(*args, **kwargs))
        outputs = _differentiable(result)
        wanted = [t for t in tensors_in((args, kwargs)) if t.requires_grad] + self._parameters
        if not outputs or not wanted:
            return forward, nothing
        if self._gradients is None or [g.shape for g in self._gradients] != [t.shape for t in outputs]:
            self._gradients = [watch.gradient(t) for t in outputs]
        watch.empty_caches()
        gradients = [gradient.to(t.dtype, copy=True) for gradient, t in zip(self._gradients, outputs)]
        return forward, timed(lambda: torch.autograd.grad(outputs, wanted, gradients, allow_unused=True))[1]

    def kept_bytes(self, compute):
        """Of storages that the backward pass needs, without inputs, parameters and buffers."""
        args, kwargs = self.inputs()
        own = {t.untyped_storage()._cdata for t in (*self._module.parameters(), *self._module.buffers())}
        own |= {t.untyped_storage()._cdata for t in tensors_in((args, kwargs))}
        kept = {}

        def pack(t):
            try:
                storage = t.untyped_storage()
                if storage._cdata not in own:
                    kept[storage._cdata] = storage.nbytes()
            except (RuntimeError, NotImplementedError):  # of a kind without a storage
                pass
            return t.detach()

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            result = compute(*args, **kwargs)
        del result
        return sum(kept.values())
