"""What changes how ranks communicate is done by all of them or by none: else they wait for each other for ever.

They agree through a key-value store that the job has anyway, which works where ranks are missing: one that dpro is not
in, or that is late, makes the others go on without after a time. Rank 0 reads what each rank answers and decides."""
import os
import sys
import time

from . import job, report

WAIT_S = 30
YES = "yes"

_n_asked = {}  # by store and subject: questions so far, the same on all its ranks


class Broken(Exception):
    """This rank could not do what all ranks had agreed on: the others would wait for it for ever."""


def wait_s():
    text = os.environ.get("DPRO_PLAN_WAIT", "")
    return int(text) if text.isdigit() and int(text) > 0 else WAIT_S


def world_size():
    dist = sys.modules.get("torch.distributed")
    return dist.get_world_size() if dist is not None and dist.is_available() and dist.is_initialized() else 1


def rank():
    dist = sys.modules.get("torch.distributed")
    if dist is not None and dist.is_available() and dist.is_initialized():
        return dist.get_rank()
    return job.place()[0]


class Store:
    """`name` is the same on all `size` ranks; `rank` is this one's. A key is put once."""

    name = ""
    rank, size = 0, 1

    def put(self, key, text):
        raise NotImplementedError

    def get(self, key, wait_s):
        """The text, None when it is not there in time."""
        raise NotImplementedError


class TorchStore(Store):
    """That of a process group."""

    def __init__(self, group):
        import torch.distributed as dist
        c10d = dist.distributed_c10d
        find = getattr(c10d, "_get_process_group_store", None)
        self._store = find(group) if find else c10d._get_default_store()
        self.name = str(getattr(group, "group_name", ""))
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)

    def put(self, key, text):
        self._store.set(key, text)

    def get(self, key, wait_s):
        import datetime
        try:
            if wait_s > 0:
                self._store.wait([key], datetime.timedelta(seconds=wait_s))
            elif not self._store.check([key]):
                return None
            return self._store.get(key).decode()
        except Exception as failed:  # DistStoreError, RuntimeError in older ones: it did not come
            if report.is_the_jobs(failed):
                raise
            return None


def store_of_all():
    return Store() if world_size() == 1 else TorchStore(sys.modules["torch.distributed"].group.WORLD)


OTHER = "its plan or its options differ from those of rank 0"


def ask(store, subject, digest, problem, other=OTHER):
    """Whether all ranks want to do the same, which `digest` stands for; `problem` says why this one can't, else None;
    `other` what it means that digests differ.
    Returns None when all do, else what keeps them from it, the same text on all ranks that got an answer."""
    asked = store.name, subject
    n = _n_asked[asked] = _n_asked.get(asked, 0) + 1
    if store.size == 1:
        return problem
    prefix, most_s = "dpro/%s/%s/%d/" % (subject, store.name, n), wait_s()
    answer = "no rank %d: %s" % (store.rank, problem) if problem else "%s %s" % (YES, digest)
    if store.rank == 0:
        return _decide(store, prefix, answer, most_s, other)
    store.put("%sanswer%d" % (prefix, store.rank), answer)
    text = store.get(prefix + "decision", 2 * most_s)  # rank 0 may come last, and then waits for others
    if text is None:
        store.put("%sgone%d" % (prefix, store.rank), "")
        if store.get(prefix + "weighed", 0) is not None:  # it came just now, and looks who has gone
            text = store.get(prefix + "decision", most_s)
    if text is None:
        return "rank 1: rank 0 did not answer within %d s; %s" % (2 * most_s, _MISSING)
    return None if text == YES else text


def tell(store, subject, text):
    """To all other ranks, once for a subject."""
    if store.size > 1:
        store.put("dpro/%s/%s" % (subject, store.name), text)


def hear(store, subject, most_s):
    """What one of them told; None: nothing within that time."""
    return store.get("dpro/%s/%s" % (subject, store.name), most_s) if store.size > 1 else None


_MISSING = "dpro must be in all ranks of the job (DPRO_PLAN and PYTHONPATH have to reach each node)"


def _decide(store, prefix, mine, wait_s, other):
    text, until = YES, time.monotonic() + wait_s
    for rank in range(store.size):
        answer = mine if rank == 0 else store.get("%sanswer%d" % (prefix, rank), max(until - time.monotonic(), 0.1))
        if answer is None:
            text = "rank 0: not every rank of the job answered within %d s, rank %d did not; %s" % (wait_s, rank, _MISSING)
        elif answer.startswith("no "):
            text = answer[len("no "):]
        elif answer != mine:
            text = "rank %d: %s" % (rank, other)
        if text != YES:
            break
    if text == YES:
        store.put(prefix + "weighed", "")
        if any(store.get("%sgone%d" % (prefix, rank), 0) is not None for rank in range(1, store.size)):
            text = "rank 0: another rank had waited for too long for it"
    store.put(prefix + "decision", text)
    return None if text == YES else text
