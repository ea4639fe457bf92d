"""What became of the plan that the job was given (DPRO_PLAN), whatever carries its gradients: said in one line, and kept
for rank.json."""
import functools
import os

from . import plan as plans
from . import report
from .report import say

_last = None  # the newest entry for rank.json


@functools.lru_cache(maxsize=None)
def read(path):
    """A plan and None, or None and what is wrong with it."""
    try:
        return plans.read(path), None
    except plans.Unusable as problem:
        return None, str(problem)


def read_for(stack, path):
    """Likewise, of a plan for that stack."""
    plan, problem = read(os.fspath(path))
    if plan is not None and plan.stack != stack:
        return None, "it is for %s, and this job's gradients go by %s" % (plans.STACKS[plan.stack], plans.STACKS[stack])
    return plan, problem


def state(nothing):
    """The entry in rank.json: what became of the plan that was asked for, None when none was. `nothing` says what the job
    has not got where nobody looked at the plan."""
    path = os.environ.get("DPRO_PLAN")
    if _last is None and path:
        return {"path": os.path.abspath(path), "applied": False, "reason": read(path)[1] or nothing, "expected": None}
    return _last


def refuse(problem, rank, path=None, what="buckets"):
    """`rank` is this one's: of what several know the one that the problem names speaks."""
    global _last
    path = os.path.abspath(path or os.environ.get("DPRO_PLAN", ""))
    if _last is None or not _last["applied"]:
        _last = {"path": path, "applied": False, "reason": problem, "expected": None}
    speaks = 0
    named = problem.partition(":")[0].partition("rank ")[2]
    if named.isdigit():  # that one: of the others it is not known that dpro is in them
        speaks = int(named)
    say("plan", "the plan is not applied, the job runs on with its own %s: %s" % (what, problem), rank - speaks)


def tell(plan, rank, name, sizes, what="bucket", more=""):
    """It is applied to the model `name`; rank 0 says so. `sizes` are the buckets' in bytes."""
    global _last
    _last = {"path": plan.path, "applied": True, "reason": None, "expected": plan.expected}
    if rank != 0:
        return
    text = "plan applied to %s: %d %s%s, the largest of %s%s" % (
        name, len(sizes), what, "s" if len(sizes) > 1 else "", size_text(max(sizes)), more)
    expected = plan.expected or {}
    if all(isinstance(expected.get(key), (int, float)) for key in ("baseline_ms", "iteration_ms")):
        text += "; expected: %.1f ms an iteration instead of %.1f" % (expected["iteration_ms"], expected["baseline_ms"])
    report.tell(text)


def tell_memory(plan, rank, name, n_recomputed):
    """Modules of the models `name` are recomputed; rank 0 says so."""
    global _last
    _last = {"path": plan.path, "applied": True, "reason": None, "expected": plan.expected}
    if rank != 0:
        return
    text = "plan applied to %s: %d module%s recomputed in the backward pass" % (
        name, n_recomputed, "s are" if n_recomputed > 1 else " is")
    memory = plan.memory
    if memory.peak_bytes and memory.baseline_peak_bytes:
        text += "; expected: a peak of %s instead of %s" % (size_text(memory.peak_bytes), size_text(memory.baseline_peak_bytes))
    report.tell(text)


def without_memory(problem):
    """What the plan says of memory can't be done."""
    global _last
    if _last is None:
        _last = {"path": os.path.abspath(os.environ.get("DPRO_PLAN", "")), "applied": False, "reason": problem, "expected": None}
    else:
        _last = dict(_last, reason=problem)


def refused():
    return _last is not None and not _last["applied"]


def keep_own(plan, rank):
    """Of a plan that found nothing better than what the job does."""
    global _last
    _last = {"path": plan.path, "applied": True, "reason": None, "expected": plan.expected}
    if rank == 0:
        report.tell("the plan keeps what the job does by itself: nothing is changed")


def size_text(size_bytes):
    if size_bytes >= 1 << 30:
        return "%.2f GiB" % (size_bytes / (1 << 30))
    return "%.1f MiB" % (size_bytes / (1 << 20)) if size_bytes >= 1 << 20 else "%.1f KiB" % (size_bytes / 1024)
