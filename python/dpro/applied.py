"""What became of the plan that the job was given (DPRO_PLAN), whatever carries its gradients: said in one line, and kept
for rank.json."""
import functools
import os

from . import plan as plans
from . import report
from .report import say

WAYS = {"recompute": "recomputed in the backward pass", "compile": "compiled", "bf16": "computed in bfloat16",
        "keep": "kept gathered for the backward pass", "reshard": "gathered again for the backward pass",
        "prefetch": "gathering the next ahead"}  # of modules

_last = None  # the newest entry for rank.json
_given = {}    # by path: what stands there, as this rank was told
_sends = False  # what it says of communication is done


@functools.lru_cache(maxsize=None)
def read(path):
    """A plan and None, or None and what is wrong with it."""
    try:
        return plans.read(path, _given.get(path)), None
    except plans.Unusable as problem:
        return None, str(problem)


def give(path, value):
    """What another rank read there."""
    _given[path] = value


def read_for(stack, path):
    """Likewise, of a plan for that stack."""
    plan, problem = read(os.fspath(path))
    if plan is not None and plan.stack != stack:
        return None, "it is for %s, but this job sends its gradients by %s" % (plans.STACKS[plan.stack], plans.STACKS[stack])
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
    global _last, _sends
    _last, _sends = {"path": plan.path, "applied": True, "reason": None, "expected": plan.expected}, True
    if rank != 0:
        return
    text = "plan applied to %s: %d %s%s, the largest of %s%s" % (
        name, len(sizes), what, "s" if len(sizes) > 1 else "", size_text(max(sizes)), more)
    report.tell(text + ("; expected: " + _times(plan) if _times(plan) else ""))


def _times(plan):
    """The iteration that it promises, None where it does not."""
    expected = plan.expected or {}
    if not all(isinstance(expected.get(key), (int, float)) for key in ("baseline_ms", "iteration_ms")):
        return None
    return "%.1f ms an iteration instead of %.1f" % (expected["iteration_ms"], expected["baseline_ms"])


def tell_modules(plan, rank, name, ways):
    """Modules of the models `name` go these ways (module_ways.py); rank 0 says so."""
    global _last
    names = {key: [way.name for way in ways if key in way.keys] for key in WAYS}
    _last = {"path": plan.path, "applied": True, "reason": None, "expected": plan.expected, "modules": names}
    if rank != 0:
        return
    text = "plan applied to %s: %s" % (name, ", ".join(_count(names[key]) + what for key, what in WAYS.items() if names[key]))
    if names["compile"] or names["bf16"]:
        text += ", which %s" % ("rounds to 8 bits" if names["bf16"] else "rounds otherwise")
    memory, expected = plan.memory, []
    if memory.peak_bytes and memory.baseline_peak_bytes:
        expected.append("a peak of %s instead of %s" % (size_text(memory.peak_bytes), size_text(memory.baseline_peak_bytes)))
    if any(names[key] for key in WAYS if key != "recompute") and not _sends and _times(plan):
        expected.insert(0, _times(plan))
    report.tell(text + ("; expected: " + ", ".join(expected) if expected else ""))


def tell_compiled(plan, rank, what):
    """XLA compiles so much of the job's step; what became of the plan's packs and groups is told by itself."""
    global _last
    _last = dict(_last or {"path": plan.path, "reason": None, "expected": plan.expected}, applied=True,
                 modules={"compile": plan.computing.compiled})
    if rank == 0:
        report.tell("plan applied: XLA compiles %s, which rounds otherwise" % what)


def _count(names):
    if names == [""]:
        return "the model is "
    return "%d module%s " % (len(names), "s are" if len(names) > 1 else " is")


def left_out(names, problem, ways=("compile", "bf16")):
    """These modules turned out not to go these ways."""
    global _last
    in_part(problem)
    told = _last.get("modules")
    if told:
        told = dict(told, **{key: [name for name in told[key] if name not in names] for key in ways})
        _last = dict(_last, modules=told, applied=_sends or any(told.values()))


def in_part(problem):
    """Some of what the plan says can't be done."""
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
