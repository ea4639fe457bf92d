"""Which modules of the job are worth measuring, and what a call of each is given: seen in two training steps by hooks that
the models' modules have meanwhile. In the first one, shapes and times are noted; of the modules then chosen, the second one
keeps copies of what a call was given."""
import threading

import torch

from . import modules, report
from .ddp_parameters import size_bytes, type_is
from .probe_time import kept, moment, seconds_between, tensors_in

LEAST_SHARE = 0.02   # of the model's forward pass: modules below are left out
OPENED_SHARE = 0.3   # modules from here on, other than repeated ones, are looked into
DEEPEST = 4
MOST_GROUPS = 16
FIXED_COST = 8       # of compiling anything, in modules
MOST_COPIES_BYTES = 4 << 30


class Seen:
    """The first call of a module in a step, as far as it is known without its tensors."""

    def __init__(self, name, module, caller):
        self.name, self.module, self.caller = name, module, caller
        self.children = []    # modules that it called
        self.seconds = 0.0    # in its forward, of all calls, once they are added up
        self.moments = []     # at which its calls began and ended
        self.n_inside = 1     # modules called within, itself among them
        self.made_bytes = 0   # by the innermost modules within
        self.n_ops = None     # of a forward pass, views apart, once it was tried
        self.inputs = None    # [[type, shape], ...]
        self.key = None       # alike modules have the same
        self.autocast = None  # (enabled, type) of its device
        self.copies = None    # (args, kwargs), from the second step; tensors are Kept
        self.problem = None


def _shape(t):
    return [str(t.dtype).replace("torch.", ""), list(t.shape)]


def _key(seen, given, result):
    """Of what tells modules apart that take another time."""
    own = [(name, _shape(t), t.requires_grad) for name, t in (*seen.module.named_parameters(), *seen.module.named_buffers())]
    return repr((type(seen.module).__module__, repr(seen.module), own, seen.module.training, seen.autocast,
                 [(_shape(t), t.requires_grad) for t in given], [_shape(t) for t in tensors_in(result)]))


def autocast_of(device):
    if not hasattr(torch, "get_autocast_dtype"):  # before 2.4
        return (torch.is_autocast_cpu_enabled(), torch.get_autocast_cpu_dtype()) if device == "cpu" else (
            torch.is_autocast_enabled(), torch.get_autocast_gpu_dtype())
    return torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)


class Survey:
    """From watch() to unwatch(): a step's calls. failed(problem) is told of what went wrong, and no more is seen then."""

    def __init__(self, models, device, most_bytes, failed):
        self._named = list(modules.of_models(models))
        self._device, self._most_bytes, self._failed = device, min(most_bytes or MOST_COPIES_BYTES, MOST_COPIES_BYTES), failed
        self._handles, self._open = [], []
        self._thread = threading.get_ident()
        self.seen = {}     # by name, in the order of the calls
        self._wanted = None
        self._copied_bytes = 0

    def watch(self, wanted=None):
        """`wanted`: the Seen of which copies are to be kept; None: all are looked at."""
        self._wanted = wanted if wanted is None else {id(seen.module): seen for seen in wanted}
        for name, module in self._named:
            if wanted is None:
                self._handles += [
                    module.register_forward_pre_hook(self._guarded(self._entered, name), with_kwargs=True),
                    module.register_forward_hook(self._guarded(self._left, name), with_kwargs=True)]
            elif id(module) in self._wanted:
                self._handles.append(module.register_forward_pre_hook(self._guarded(self._copy, name), with_kwargs=True))

    def unwatch(self):
        handles, self._handles, self._open = self._handles, [], []
        for handle in handles:
            handle.remove()

    def add_up(self):
        """The times of the calls, after the step."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        for seen in self.seen.values():
            seen.seconds = sum(seconds_between(*moments) for moments in seen.moments)
            seen.moments = []

    def _is_watching(self):
        if not self._handles or threading.get_ident() != self._thread or not torch.is_grad_enabled():
            return False
        if torch._C._get_tracing_state() or torch._C._current_graph_task_id() != -1:
            return False
        return self._device.type != "cuda" or not torch.cuda.is_current_stream_capturing()

    def _guarded(self, function, name):
        def hook(module, *args):
            if not self._is_watching():
                return
            try:
                function(name, module, *args)
            except Exception as problem:
                if report.is_the_jobs(problem):
                    raise
                self.unwatch()
                self._failed(problem)
        return hook

    def _entered(self, name, module, args, kwargs):
        caller = self._open[-1][0] if self._open else None
        seen, first = self.seen.get(name), False
        if seen is None:
            first = True
            seen = self.seen[name] = Seen(name, module, caller)
            seen.autocast = autocast_of(self._device.type)
            if caller:
                caller.children.append(seen)
        self._open.append((seen, first, tensors_in((args, kwargs)) if first else None, moment(self._device)))

    def _left(self, name, module, args, kwargs, result):
        while self._open and self._open[-1][0].module is not module:  # whose forward failed
            self._open.pop()
        if not self._open:
            return
        seen, first, given, begin = self._open.pop()
        seen.moments.append((begin, moment(self._device)))
        if not seen.children:
            n_bytes = sum(map(size_bytes, tensors_in(result)))
            for outer in (seen, *(entry[0] for entry in self._open)):
                outer.made_bytes += n_bytes
        if first:
            for outer in self._open:
                outer[0].n_inside += 1
            seen.inputs = [_shape(t) for t in given]
            seen.key = _key(seen, given, result)

    def _copy(self, name, module, args, kwargs):
        seen = self._wanted.pop(id(module), None)
        if seen is None:
            return
        given = tensors_in((args, kwargs))
        self._copied_bytes += sum(map(size_bytes, given))
        if self._copied_bytes > self._most_bytes:
            seen.problem = "there is too little memory to keep a copy of its inputs"
            return
        with torch.no_grad():
            seen.copies = kept((args, kwargs))


class Group:
    """Modules that are alike, the first of which is measured."""

    def __init__(self, members):
        self.members, self.first = members, members[0]
        self.seconds = sum(seen.seconds for seen in members)

    @property
    def worth(self):
        """For what it costs."""
        return self.seconds / (FIXED_COST + self.first.n_inside)


def _is_one_of_many(seen, siblings, there):
    """A block of a network: one of several of its class, or of a list of modules."""
    if sum(type(other.module) is type(seen.module) for other in siblings) > 1:
        return True
    holder = there.get(seen.name.rpartition(".")[0]) if "." in seen.name else None
    return type_is(holder, torch.nn.ModuleList, torch.nn.Sequential, torch.nn.ModuleDict) and len(holder) > 1


def _visit(seen, siblings, there, whole, depth):
    yield seen
    if depth == DEEPEST or depth and (_is_one_of_many(seen, siblings, there) or seen.seconds < OPENED_SHARE * whole):
        return
    for child in seen.children:
        yield from _visit(child, seen.children, there, whole, depth + 1)


def choose(survey, models):
    """The groups to be measured, the most worthwhile first."""
    survey.add_up()
    there = dict(modules.of_models(models))
    groups, least = {}, 0.0
    for root in [seen for seen in survey.seen.values() if seen.caller is None and seen.key]:
        least += LEAST_SHARE * root.seconds
        for seen in _visit(root, [root], there, root.seconds, 0):
            if seen.key:
                groups.setdefault(seen.key, []).append(seen)
    found = [group for group in map(Group, groups.values()) if group.seconds >= least]
    return sorted(found, key=lambda group: -group.worth)[:MOST_GROUPS]


def of_batch(seen, size):
    """Whether all tensors that it is given have the batch as their first dimension."""
    return bool(size and seen.inputs) and all(shape[:1] == [size] for _, shape in seen.inputs)


def outermost_of_batch(groups, size):
    """Those with the batch as first dimension that lie in none of the others."""
    fit = [group for group in groups if of_batch(group.first, size)]
    keys = {group.first.key for group in fit}
    return [group for group in fit if not any(outer.key in keys for outer in _callers(group.first))]


def _callers(seen):
    while seen.caller:
        seen = seen.caller
        yield seen
