"""What changes how ranks communicate is done by all of them or by none: else they wait for each other for ever.

They agree through the process group's own key-value store, which works where ranks are missing: one that dpro is not
in, or that is late, makes the others go on without after a time. Each rank makes a few requests, however many ranks
there are."""
import datetime
import os

import torch.distributed as dist

from . import report

WAIT_S = 30
YES = "yes"

_n_asked = {}  # a group's name: questions so far, the same on all its ranks


def _wait_s():
    text = os.environ.get("DPRO_PLAN_WAIT", "")
    return int(text) if text.isdigit() and int(text) > 0 else WAIT_S


def _store(group):
    c10d = dist.distributed_c10d
    find = getattr(c10d, "_get_process_group_store", None)
    return find(group) if find else c10d._get_default_store()


def ask(group, subject, digest, problem):
    """Whether all ranks of the group want to do the same, which `digest` stands for; `problem` says why this one can't,
    else None. Returns None when all do, else what keeps them from it, the same text on all ranks."""
    name = str(getattr(group, "group_name", ""))
    n = _n_asked[name] = _n_asked.get(name, 0) + 1
    store, rank, size = _store(group), dist.get_rank(), dist.get_world_size(group)
    if size == 1:
        return problem
    prefix = "dpro/%s/%s/%d/" % (subject, name, n)
    timeout = datetime.timedelta(seconds=_wait_s())

    def decide(text):  # the first decision counts
        if store.add(prefix + "decided", 1) == 1:
            store.set(prefix + "decision", text)

    try:
        if problem:
            decide("rank %d: %s" % (rank, problem))
        else:
            if store.add(prefix + "first", 1) == 1:
                store.set(prefix + "digest", "%d %s" % (rank, digest))
            store.wait([prefix + "digest"], timeout)
            first, _, wanted = store.get(prefix + "digest").decode().partition(" ")
            if wanted != digest:
                decide("rank %d: it is not given the same as rank %s" % (rank, first))
            elif store.add(prefix + "count", 1) == size:
                decide(YES)
        store.wait([prefix + "decision"], timeout)
    except Exception as failed:  # DistStoreError, RuntimeError in older ones: nobody came to a decision
        if report.is_the_jobs(failed):
            raise
        decide("rank %d: not every rank of the job answered within %d s; dpro must be in all of them (DPRO_PLAN and "
               "PYTHONPATH have to reach each node)" % (rank, timeout.seconds))
        store.wait([prefix + "decision"], timeout)
    text = store.get(prefix + "decision").decode()
    return None if text == YES else text
