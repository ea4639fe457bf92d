"""dpro in a training job: `Recorder` and `profile` say where a step is; without them the optimizer's own hooks do.

    recorder = dpro.Recorder(model)

    @dpro.profile(recorder)
    def train_one_step(batch): ...

`apply` gives a DDP model the buckets of a plan (doc/plan.md), `optimize` makes one (doc/search.md). Importing this
package imports neither torch nor anything that costs time. What is recorded, and when: doc/profile.md."""

from __future__ import annotations

TYPE_CHECKING = False  # typing takes time to import
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Iterator, Sequence, TypeVar, Union
    from os import PathLike
    from .library import Answer
    from .optimizer import Job
    Path = Union[str, bytes, PathLike[str]]
    Paths = Union[Path, Sequence[Path]]
    Step = TypeVar("Step", bound=Callable[..., Any])

__version__ = "0.1.0"
__all__ = ["Error", "Job", "Recorder", "apply", "diagnose", "micro_batches", "open", "optimize",
           "profile", "ps_strategy", "replay", "tables", "whatif"]


class Error(Exception):
    """A call of this package that can't mean anything. What fails while a job runs is said on stderr instead."""


class Recorder:
    """Says that the functions decorated with `profile(recorder)` are the job's training steps.

    Records when the job runs under `dpro profile` or with DPRO=1; with `out` also without them, into that trace
    directory (there is no transport log then). `warmup` and `iterations` override DPRO_WARMUP and DPRO_ITERATIONS."""

    def __init__(self, model: Any = None, out: Union[str, None] = None, warmup: Union[int, None] = None,
                 iterations: Union[int, None] = None):
        for name, value, least in (("warmup", warmup, 0), ("iterations", iterations, 1)):
            if value is not None and (not isinstance(value, int) or value < least):
                raise Error("Recorder: %s=%r: a whole number of at least %d is needed" % (name, value, least))
        from . import activate
        self._session = activate.with_recorder(model, out, warmup, iterations)


def profile(recorder: Recorder) -> Callable[[Step], Step]:
    """Decorates the function that does one training step: a step ends where its call returns."""
    if not isinstance(recorder, Recorder):
        raise Error("profile() takes a Recorder: recorder = dpro.Recorder(model); @dpro.profile(recorder)")

    def decorate(function):
        session = recorder._session
        return session.wrap_step(function) if session else function

    return decorate


def apply(model: Any, plan: Union[str, PathLike[str]]) -> Any:
    """Gives a DistributedDataParallel model what `plan` says, the folder that dpro optimize wrote; a model that is not
    wrapped yet is wrapped. Returns the model to train. All ranks call it, before the first step or between two. A plan
    that can't be used is said on stderr, and the model is as it was."""
    import os
    if not isinstance(plan, (str, os.PathLike)):
        raise Error("apply() takes the folder of a plan, not %r" % (plan,))
    from . import ddp_plan
    return ddp_plan.apply(model, plan)


def micro_batches(model: Any, *batch: Any) -> Iterator[Any]:
    """The parts that a step's batch goes through the model in, as many as the job's plan says, one where there is none:

        for x, y in dpro.micro_batches(model, x, y):
            loss_function(model(x), y).backward()

    `batch` are tensors, or lists and dicts of them, that are cut along their first dimension. The loss stays what it is,
    a mean over what it is given: each part's gradients are taken by its share. DDP communicates with the last part."""
    from . import batch_parts
    return batch_parts.split(model, batch)


def ps_strategy(plan: Union[str, PathLike[str]]) -> Any:
    """A `ps_strategy` for tf.compat.v1.train.replica_device_setter that puts the variables of a session on the parameter servers
    that `plan` says; those that it does not know go to the servers in turns. A plan that can't be used is said on stderr."""
    import os
    if not isinstance(plan, (str, os.PathLike)):
        raise Error("ps_strategy() takes the folder of a plan, not %r" % (plan,))
    from . import session_plan
    return session_plan.Strategy(plan)


def replay(trace: Paths, **options: Any) -> Answer:
    """`dpro replay` from Python. Options are those of a dpro.Job and of its replay()."""
    from . import optimizer
    return optimizer.ask("replay", trace, options)


def diagnose(trace: Paths, **options: Any) -> Answer:
    """`dpro diagnose` from Python. Options are those of a dpro.Job and of its diagnose()."""
    from . import optimizer
    return optimizer.ask("diagnose", trace, options)


def whatif(trace: Paths, **changes: Any) -> Answer:
    """`dpro whatif` from Python. Options are those of a dpro.Job, changes those of its whatif()."""
    from . import optimizer
    return optimizer.ask("whatif", trace, changes)


def optimize(trace: Paths, plan: Union[Path, None] = None, **options: Any) -> Answer:
    """`dpro optimize` from Python, with passes written in Python. Options are those of a dpro.Job and of its optimize()."""
    from . import optimizer
    return optimizer.ask("optimize", trace, {"plan": plan, **options})


def tables(trace: Paths, **options: Any) -> Dict[str, Any]:
    """All tables of a job: ops, edges, collectives, iterations, memory, critical path, ... (doc/formats/tables.md), with columns
    that numpy sees without a copy. Options are those of a dpro.Job.

        ops = dpro.tables("TRACE")["ops"]
        numpy.asarray(ops["dur_ns"]).sum(), ops["name"][0], ops["dur_ns"].meaning"""
    return open(trace, **options).tables


def open(trace: Paths, **options: Any) -> Job:
    """The job whose traces are at `trace`, a path or several, as a dpro.Job: its tables, and what the commands say of it.

        job = dpro.open("TRACE")
        job.ops.to_pandas().groupby("kind").dur_ns.sum()
        job.replay(), job.diagnose(), job.whatif(bucket_cap_mb=5), job.optimize(memory="16GiB")"""
    from . import optimizer
    return optimizer.Job(trace, **options)


def __getattr__(name: str) -> Any:
    if name != "Job":
        raise AttributeError("module %r has no attribute %r" % (__name__, name))
    from . import optimizer
    return optimizer.Job
