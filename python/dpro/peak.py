"""The most that a step holds of the memory of the device that is trained on, as its allocator was asked for it.

A GPU's allocator counts by itself. On a CPU, two steps are run under torch's profiler with memory: what was there before
(held_memory.py), less what the first of them gives back, and the running sum of what is taken and given back. The second
one counts; what only C++ held before is not seen. Nor is what threads of a collective give back, which the profiler does not
watch: what nobody seems to give back, and Python does not hold in the end, is taken for that."""
import torch
from torch.profiler import ProfilerActivity, record_function

from . import held_memory, model, profiler

SECOND = "dpro: the second step"


class OfGpu:
    """From now on until bytes() is asked."""
    n_steps = 0  # that have to be run besides

    def __init__(self, device):
        self._device = device
        torch.cuda.reset_peak_memory_stats(device)

    def bytes(self):
        return torch.cuda.max_memory_allocated(self._device)

    def stop(self):
        pass


class OfCpu:
    n_steps = 2

    def __init__(self, models, optimizers):
        from torch.profiler.profiler import _KinetoProfile
        self._look = lambda: held_memory.look(models, optimizers, (), lambda text: None)
        held, self._references = self._look()
        self._blocks = held["blocks"]
        self._kept, self._held = None, {}
        self._profile = _KinetoProfile(activities=[ProfilerActivity.CPU], profile_memory=True)
        self._profile.prepare_trace()
        self._profile.start_trace()

    def step_ended(self):
        if self._kept is None:
            freed = {n for n, reference in self._references.items() if reference.expired()}
            kept = [block for n, block in enumerate(self._blocks) if n not in freed]
            self._kept = sum(size for _, _, _, size in kept)
            self._held = {address: size for _, _, address, size in kept if address}
            self._references = {}
            with record_function(SECOND):
                pass

    def stop(self):
        profile, self._profile = self._profile, None
        if profile is not None:
            profile.stop_trace()
        return profile

    def bytes(self):
        """After two steps; None where that can't be told."""
        events = self.stop().profiler.kineto_results.experimental_event_tree()
        second_ns, allocations = None, []
        while events:
            event = events.pop()
            events += event.children
            if event.tag == torch._C._profiler._EventType.Allocation:
                fields = event.extra_fields
                if fields.device.type == "cpu":
                    allocations.append((event.start_time_ns, -len(allocations), fields.ptr, fields.alloc_size))
            elif event.name == SECOND:
                second_ns = event.start_time_ns
        if second_ns is None or self._kept is None:
            return None
        now, most = self._kept, 0
        for ns, _, size in sorted(self._changes(sorted(allocations))):
            now += size
            most = max(most, now) if ns >= second_ns else 0
        return max(most, now)

    def _changes(self, allocations):
        """(time, number, bytes) of what is taken and given back; `allocations`: (time, number, address, bytes)."""
        there = {address: (0, 0, size) for address, size in self._held.items()}
        before = set(there)
        for ns, number, address, size in allocations:
            if size > 0:
                if address in before and address in there:
                    yield ns, number, -there[address][2]
                there[address] = ns, number, size
                before.discard(address)
            elif address in there:  # of others it is not known; those that were freed first are out already
                if address not in before:
                    yield there[address]
                yield ns, number, -there.pop(address)[2]
        held, _ = self._look()
        for _, _, address, _ in held["blocks"]:
            if address in there and address not in before:
                yield there[address]


def watch(models, optimizers):
    """One of these, None where the peak can't be measured now."""
    device = model.device(models)
    if device.type == "cuda":
        return OfGpu(device)
    if device.type != "cpu" or profiler.missing() or profiler.in_use():
        return None
    return OfCpu(models, optimizers)
