"""Marks in a profile around what a process group is asked for, and around the waits for it: spans `dpro.call:NUMBER:PEER:GROUP`
(PEER: the other rank of a send or receive, else empty) and `dpro.wait:NUMBER` (NUMBER: of the call that gave what is waited for;
empty: of a call that was not marked).

Where there is no GPU, PyTorch's profiler says neither which group a collective is of nor what is waited for. While a window is open,
the methods of ProcessGroup and Work that Python calls are replaced by ones that call them within a mark."""
import functools
import itertools

import torch

from . import report

CALL, WAIT = "dpro.call:", "dpro.wait:"
COLLECTIVES = ("allreduce", "allreduce_coalesced", "allgather", "_allgather_base", "all_gather_single", "allgather_coalesced",
               "allgather_into_tensor_coalesced", "all_gather_single_coalesced", "reduce_scatter", "_reduce_scatter_base",
               "reduce_scatter_single", "reduce_scatter_tensor_coalesced", "reduce_scatter_single_coalesced", "alltoall",
               "alltoall_base", "all_to_all_single", "broadcast", "reduce", "gather", "scatter", "barrier", "recv_anysource")
POINT_TO_POINT = ("send", "recv")


def mark_named(name):
    fast = getattr(torch._C._profiler, "_RecordFunctionFast", None)
    return fast(name) if fast else torch.profiler.record_function(name)


def _peer(group, args):
    """The rank in the job of the other side; send and recv take tensors, the rank in the group, and a tag."""
    return torch.distributed.get_global_rank(group, args[1])


class CommMarks:
    """Marked from begin() until end(). `failed(problem)` is told of what went wrong, and nothing is marked from then on."""

    def __init__(self, failed):
        self._failed = failed
        self._restore = []
        self._numbers = itertools.count()
        self._of_work = {}  # id of what a call gave: the call's number

    def begin(self):
        c10d = getattr(torch._C, "_distributed_c10d", None)
        if c10d is None or not torch.distributed.is_initialized():
            return
        for name in COLLECTIVES:
            self._replace(c10d.ProcessGroup, name, lambda method: self._call(method, lambda group, args: ""))
        for name in POINT_TO_POINT:
            self._replace(c10d.ProcessGroup, name, lambda method: self._call(method, _peer))
        self._replace(c10d.Work, "wait", self._wait)

    def end(self):
        restore, self._restore = self._restore, []
        for owner, name, method in restore:
            setattr(owner, name, method)
        self._of_work = {}

    def _replace(self, owner, name, marked):
        own = vars(owner).get(name)  # not what getattr gives, which would not be bound to an object when it is put back
        if own is not None:
            method = getattr(owner, name)
            setattr(owner, name, functools.wraps(method)(marked(method)))
            self._restore.append((owner, name, own))

    def _enter(self, name_of):
        """The mark that is open now; None where nothing is marked any more."""
        try:
            if self._restore:
                mark = mark_named(name_of())
                mark.__enter__()
                return mark
        except Exception as problem:
            self._give_up(problem)
        return None

    def _call(self, method, peer):
        def call(group, *args, **kwargs):
            number = next(self._numbers)
            mark = self._enter(lambda: f"{CALL}{number}:{peer(group, args)}:{group.group_name}")
            try:
                work = method(group, *args, **kwargs)
            finally:
                if mark:
                    mark.__exit__(None, None, None)
            self._of_work[id(work)] = number
            return work

        return call

    def _wait(self, method):
        def wait(work, *args, **kwargs):
            mark = self._enter(lambda: f"{WAIT}{self._of_work.get(id(work), '')}")
            try:
                return method(work, *args, **kwargs)
            finally:
                if mark:
                    mark.__exit__(None, None, None)

        return wait

    def _give_up(self, problem):
        if report.is_the_jobs(problem):
            raise problem
        self.end()
        self._failed(problem)
