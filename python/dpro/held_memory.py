"""What a rank's device holds when the structure window begins: memory.json (doc/formats/trace-directory.md).

The profile of that window tells what is taken and given back from then on; what was there before is read off the
models, the optimizers and, for the rest, what Python's garbage collector knows. Each storage is told once, by its
address. No data is read, nothing is allocated on the device."""
import gc
import os
import time

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from . import memory, model, module_marks, modules, report
from .ddp_parameters import own_parameters, type_is

SCHEMA = "dpro.memory/1"
MOST_OBJECTS = 1000000  # of Python's; to look through them takes some 0.05 us each
DEEPEST = 4             # lists and dicts within each other in an optimizer's state
# Not data_ptr(), which would make a copy of what is to be copied when it is written to.
_address = getattr(torch._C, "_data_address", lambda tensor: tensor.untyped_storage().data_ptr())


def capacity_bytes(device):
    """Of the device's memory, None where it is not known."""
    if device.type != "cuda":
        return memory.capacity() or None
    if not torch.cuda.is_initialized():
        return None
    share = getattr(torch.cuda, "get_per_process_memory_fraction", lambda _: 1.0)(device)
    return int(torch.cuda.get_device_properties(device).total_memory * share)


def _settings_text():
    """What torch reads the allocator's settings from; "" where nothing is set."""
    ask = getattr(torch._C, "_accelerator_getAllocatorSettings", None)
    if ask:
        return ask()
    names = ["PYTORCH_CUDA_ALLOC_CONF"]
    if torch.version.hip:
        names.append("PYTORCH_HIP_ALLOC_CONF")
    if hasattr(torch._C, "_accelerator_setAllocatorSettings"):
        names.append("PYTORCH_ALLOC_CONF")
    return next((os.environ[name] for name in names if name in os.environ), "")


def allocator_members(device):
    """How the caching allocator of a GPU is set, for memory.json; initialises nothing."""
    if device.type != "cuda":
        return {}
    try:
        members = {"allocator": str(_settings_text())}
        backend = torch.cuda.get_allocator_backend() if torch.cuda.is_initialized() else "native"
        return members if backend == "native" else {**members, "backend": str(backend)}
    except (AttributeError, RuntimeError):
        return {}


def _history_is_kept():
    return getattr(torch._C, "_cuda_isHistoryEnabled", lambda: False)()


def segment_members(device):
    """The segments of a GPU's caching allocator with their blocks, for memory.json; nothing is allocated for it."""
    if device.type != "cuda" or not torch.cuda.is_initialized() or torch.cuda.get_allocator_backend() != "native":
        return {}
    # With the history that the job may keep, what is copied could be millions of entries.
    options = {"include_traces": False} if _history_is_kept() else {}
    try:
        index = torch.cuda.current_device() if device.index is None else device.index
        return {"segments": [_segment(segment) for segment in torch.cuda.memory_snapshot(**options) if segment["device"] == index]}
    except (TypeError, RuntimeError, KeyError):  # a version without that option, or with other members
        return {}


def _segment(segment):
    is_private = tuple(segment.get("segment_pool_id", (0, 0))) != (0, 0)
    return [segment["address"], segment["total_size"], segment["stream"], segment["segment_type"], segment.get("is_expandable", False),
            is_private, [[block["size"], block["state"]] for block in segment["blocks"]]]


class _Storages:
    def __init__(self, device):
        self._device = device
        self._seen = set()
        self.blocks = []
        self.references = {}  # weak ones to the storages, by number of the block

    def add(self, category, name, tensor):
        """The storages of a tensor; what has none that can be told is left out."""
        tensor = getattr(tensor, "_local_tensor", tensor)
        try:
            device, layout = tensor.device, tensor.layout
            if device.type != self._device.type or (device.index or 0) != (self._device.index or 0):
                return
            if layout == torch.sparse_coo:
                parts = [tensor._indices(), tensor._values()]
            elif layout == torch.strided:
                parts = [tensor]
            else:
                return
            for part in parts:
                storage = part.untyped_storage()
                address, size = _address(part), storage.nbytes()
                if address and size > 0 and address not in self._seen:
                    self._seen.add(address)
                    self.references[len(self.blocks)] = StorageWeakRef(storage)
                    self.blocks.append([category, name, address, size])
        except (RuntimeError, NotImplementedError, AttributeError, TypeError):
            pass

    def add_all(self, category, name, value, depth=0):
        """The tensors within lists and dicts."""
        if type_is(value, torch.Tensor):
            self.add(category, name, value)
        elif depth < DEEPEST:
            pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, (list, tuple)) else ()
            for key, part in pairs:
                self.add_all(category, "%s.%s" % (name, key) if name else str(key), part, depth + 1)


def _buckets(models, storages):
    """Of DDP models whose gradients are no views of them: as many as there are, at addresses that only DDP knows."""
    from . import reducer
    ddp_class = model.ddp_class()
    for module in models:
        if ddp_class and type_is(module, ddp_class) and not module.gradient_as_bucket_view:
            storages.blocks += [["bucket", "bucket %d" % n, 0, size] for n, size in enumerate(reducer.bucket_bytes(module))]


def look(models, optimizers, inputs, problem):
    """The content of memory.json, and weak references to the storages by number of the block; problem(text) is told what is left out."""
    device = model.device(models)
    storages, names = _Storages(device), {}
    with torch.no_grad(), torch._C.DisableTorchFunction():
        found = list(modules.of_models(models))
        for name, module in found:
            for own, tensor in (*own_parameters(module), *module._buffers.items()):
                if tensor is not None:
                    names.setdefault(id(tensor), "%s.%s" % (name, own) if name else own)
                    storages.add("parameter", names[id(tensor)], tensor)
        trained = [p for module in models for p in module.parameters()]
        for optimizer in optimizers:
            trained += [p for group in optimizer.param_groups for p in group["params"]]
        for p in trained:
            storages.add("parameter", names.get(id(p), ""), p)
        for p in trained:
            if p.grad is not None:
                storages.add("gradient", names.get(id(p), ""), p.grad)
        _buckets(models, storages)
        for optimizer in optimizers:
            for p, state in list(optimizer.state.items()):
                storages.add_all("optimizer_state", names.get(id(p), ""), state)
        for tensor in inputs:
            storages.add("input", "", tensor)
        _add_others(storages, problem)
    held = {"schema": SCHEMA, "device": str(device), "when_ns": time.time_ns(), "capacity_bytes": capacity_bytes(device),
            **allocator_members(device), "modules": [[name, type(module).__name__] for name, module in found], "blocks": storages.blocks}
    return held, storages.references


class _Subclasses(dict):
    """By type, whether it is one of these; each type is asked once, as there are far more objects."""

    def __init__(self, classes):
        super().__init__()
        self._classes = classes

    def __missing__(self, kind):
        self[kind] = found = issubclass(kind, self._classes)
        return found


def _add_others(storages, problem):
    """What else Python holds: weights of models that are not trained, and tensors of which it is not known what for."""
    things = gc.get_objects()
    if len(things) > MOST_OBJECTS:
        problem("the job has %d Python objects: too many to look for tensors besides parameters, gradients and the "
                "optimizer's state" % len(things))
        return
    of_type = _Subclasses((torch.nn.Module, torch.Tensor))
    found = [thing for thing in things if of_type[type(thing)]]
    for thing in found:
        for tensor in thing.__dict__.get("_buffers", {}).values() if type_is(thing, torch.nn.Module) else ():
            if tensor is not None:
                storages.add("parameter", "", tensor)
    for tensor in (thing for thing in found if type_is(thing, torch.Tensor)):
        storages.add("parameter" if type_is(tensor, torch.nn.Parameter) else "other", "", tensor)


class Watch:
    """What the structure window records of memory besides what torch's profiler does. Failures end it, not the recording."""

    FILE = "memory.json"

    def __init__(self, models, optimizers, folder):
        self._models, self._optimizers, self._folder = models, optimizers, folder
        self._marks = self._held = None
        self._references = {}
        self._n_steps = 0
        self._safely(self._watch)

    def _safely(self, function, *args):
        try:
            function(*args)
        except Exception as problem:
            self._failed(problem)

    def _failed(self, problem):
        report.say("held", "what memory is for is not recorded: " + report.why(problem), self._folder.rank)
        self.unmark()

    def _watch(self):
        if module_marks.anything_compiled():
            report.say("marks", "modules are not marked in the structure window, as the job is compiled", self._folder.rank)
            return
        self._marks = module_marks.ModuleMarks(self._models, self._failed)
        self._marks.watch()

    def begin(self):
        self._safely(self._begin)

    def _begin(self):
        inputs = self._marks.inputs() if self._marks else ()
        self._held, self._references = look(self._models, self._optimizers, inputs,
                                            lambda text: report.say("held-objects", text, self._folder.rank))
        self._held.update(segment_members(model.device(self._models)))
        self._write()
        if self._marks:
            self._marks.begin()

    def _write(self):
        self._folder.write_json(self._folder.file(self.FILE), self._held)

    def begin_step(self):
        self._n_steps += 1
        if self._n_steps == 2 and self._held:
            self._safely(self._see_freed)
        if self._marks:
            self._marks.begin_step()

    def _see_freed(self):
        """On a CPU the profiler says nothing when a block from before it is given back. The allocator's segments are those
        that this step begins with."""
        freed = {n for n, reference in self._references.items() if reference.expired()}
        blocks = self._held["blocks"]
        self._held.update(blocks=[block for n, block in enumerate(blocks) if n not in freed],
                          freed=[blocks[n] for n in sorted(freed)], **segment_members(model.device(self._models)))
        self._write()

    def unmark(self):
        marks, self._marks = self._marks, None
        if marks:
            self._safely(marks.end)

    def end(self):
        self.unmark()
        self._models, self._optimizers = (), ()
        self._held, self._references = None, {}

    def drop(self):
        self._folder.drop(self.FILE)
