"""A plan in a job of Horovod's: its gradients are reduced in the plan's groups. A group goes when all of it is ready.

In a tf.function the groups are made while it is traced; in MXNet at each of a trainer's steps; PyTorch's optimizer is given
them when it is made. All ranks do it or none
(agreement.py), by the store with which horovodrun has brought them together."""
import functools
import inspect
import os
import re
import sys
import time
import urllib.request

from . import agreement, applied, job, report

STACK = "horovod"
NO_JOB = "no gradients were reduced by Horovod"

_decided = {}  # names of the gradients that the ranks were asked about: the plan's groups of them, or None


class Rendezvous(agreement.Store):
    """The key-value store of horovodrun (Gloo)."""

    name = STACK

    def __init__(self):
        address, port = (os.environ.get("HOROVOD_GLOO_RENDEZVOUS_" + name) for name in ("ADDR", "PORT"))
        self._url = "http://%s:%s/dpro/" % (address, port) if address and port else None
        self._open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open  # it is within the job
        self.rank, self.size, _ = job.place()

    def missing(self):
        return None if self._url or self.size == 1 else (
            "its ranks can't agree on it: they were not started by 'horovodrun --gloo' (HOROVOD_GLOO_RENDEZVOUS_ADDR is not set)")

    def put(self, key, text):
        self._open(urllib.request.Request(self._of(key), data=text.encode(), method="PUT"), timeout=30).close()

    def get(self, key, wait_s):
        until = time.monotonic() + wait_s
        while True:
            try:
                with self._open(self._of(key), timeout=30) as answer:
                    return answer.read().decode()
            except OSError:  # 404: it is not there yet
                if time.monotonic() >= until:
                    return None
                time.sleep(0.02)

    def _of(self, key):
        return self._url + key.replace("/", ".")


def _guarded(function):
    @functools.wraps(function)
    def safely(*args, **kwargs):
        try:
            return function(*args, **kwargs)
        except Exception as problem:
            applied.refuse(report.why(problem), job.place()[0], what="fusion")
            return None
    return safely


def _fit(names, sizes, dtypes, of_plan, problem):
    """The plan's groups as numbers of gradients, and what speaks against them. `of_plan` takes a name of the plan's to
    that of a gradient."""
    plan, unusable = applied.read_for(STACK, os.environ["DPRO_PLAN"])
    problem = problem or unusable
    if problem:
        return plan, None, problem
    if job.place()[1] != plan.world_size:
        return plan, None, "it is for %d ranks, this job has %d" % (plan.world_size, job.place()[1])
    numbers = {name: n for n, name in enumerate(names)}
    groups, n_planned = [], 0
    for bucket in plan.buckets:
        group = []
        for name in bucket.names:
            number = numbers.get(of_plan(name))
            if number is None:
                return plan, None, "it is for another model: no gradient here is its %s" % name
            planned = plan.models[bucket.model][1][name]
            if sizes[number] != planned:
                return plan, None, "it is for another model: its gradient %s has %d bytes, here it has %s" % (name, planned, sizes[number])
            group.append(number)
        if len({dtypes[number] for number in group}) > 1:
            return plan, None, "gradients of one group have several data types"
        groups.append(group)
        n_planned += len(group)
    if n_planned != len(names) or len(numbers) != len(names):
        return plan, None, "it is for another model: it has %d gradients, here are %d" % (n_planned, len(names))
    return plan, groups, None


@_guarded
def _groups(names, sizes, dtypes, of_plan, problem):
    """The groups in which all ranks reduce these gradients; None: as the job does. All ranks come here with the same."""
    key = tuple(names)
    if key in _decided:
        return _decided[key]
    if _decided:  # a function that is traced again, for other gradients
        return None
    _decided[key] = None
    planned = applied.read(os.environ["DPRO_PLAN"])[0]
    if planned is not None and planned.stack == STACK and planned.by_settings and not planned.is_own:
        _by_settings(planned)
        return None
    store = Rendezvous()
    plan, groups, problem = _fit(names, sizes, dtypes, of_plan, problem)
    if store.size == 1:
        problem = problem or "there is one process only"
    if problem is None and os.environ.get("HOROVOD_DISABLE_GROUP_FUSION", "0") in ("", "0") and not plan.is_own:
        problem = "HOROVOD_DISABLE_GROUP_FUSION is not set: 'dpro profile --plan' sets what horovod.env of the plan says"
    if store.missing():
        problem = problem or store.missing()
    else:
        problem = agreement.ask(store, "plan", plan.digest if plan else "", problem)
    if problem:
        applied.refuse(problem, store.rank, what="fusion")
    elif plan.is_own:
        applied.keep_own(plan, store.rank)
    else:
        _decided[key] = groups
        more = ", sent as fp16" if plan.compression == "fp16" else ""
        applied.tell(plan, store.rank, "Horovod's gradients", [sum(sizes[n] for n in group) for group in groups], "group", more)
    return _decided[key]


def settings():
    """The entry in rank.json: how Horovod was told to fuse."""
    def number(name, usual):
        try:
            return float(os.environ.get(name) or usual)
        except ValueError:
            return usual
    return {"cycle_time_ms": number("HOROVOD_CYCLE_TIME", 1),
            "fusion_threshold_bytes": int(number("HOROVOD_FUSION_THRESHOLD", 128 << 20)), "in_groups": any(_decided.values())}


def _by_settings(plan):
    """A plan of which all is in variables that Horovod reads when it starts."""
    state, rank = job.plan_state(("horovod.env",)), job.place()[0]
    if state["applied"]:
        text = "cycles of %s ms, up to %s bytes together" % tuple(
            os.environ.get(name, "its own") for name in ("HOROVOD_CYCLE_TIME", "HOROVOD_FUSION_THRESHOLD"))
        applied.tell(plan, rank, "Horovod (%s)" % text, [bucket.size_bytes for bucket in plan.buckets], "group")
    else:
        applied.refuse("%s: 'dpro profile --plan' sets what horovod.env of the plan says" % state["reason"], rank, what="fusion")


def _plan():
    return applied.read(os.environ["DPRO_PLAN"])[0]


# TensorFlow

def _normalized(name):
    return re.sub("[^a-zA-Z0-9_]", "_", name)


def _tensorflow_name(name):
    """Of the op that reduces a gradient: the tensor is named behind the last HorovodAllreduce_."""
    return name.rpartition("HorovodAllreduce_")[2]


def attach_tensorflow(module):
    """To horovod.tensorflow: gradient tapes and optimizers make their reductions by one function of it."""
    make = module._make_allreduce_grads_fn

    @functools.wraps(make)
    def made(name, device_dense, device_sparse, compression, sparse_as_dense, op, gradient_predivide_factor, groups, *args,
             **kwargs):
        own = make(name, device_dense, device_sparse, compression, sparse_as_dense, op, gradient_predivide_factor, groups, *args, **kwargs)
        process_set = args[0] if args else kwargs.get("process_set", module.global_process_set)
        problem = None
        if groups is not None:
            problem = "the job makes groups of its own"
        elif op not in (module.Average, module.Sum):
            problem = "the job reduces its gradients in a way of its own"
        elif process_set is not module.global_process_set:
            problem = "the job reduces its gradients over a part of its ranks"

        def reduced(grads, *more, **keywords):
            planned = _tensorflow_groups(grads, problem)
            if planned is None:
                return own(grads, *more, **keywords)
            tf, found = sys.modules["tensorflow"], list(grads)
            numbers = [n for n, grad in enumerate(grads) if grad is not None]
            factor = gradient_predivide_factor if op == module.Average else 1.0
            with tf.name_scope(name + "_Allreduce"):
                for group in planned:
                    sums = module._grouped_allreduce_cond(
                        [grads[numbers[n]] for n in group], device_dense=device_dense, device_sparse=device_sparse,
                        compression=module.Compression.fp16 if _plan().compression == "fp16" else compression, op=op,
                        prescale_factor=1.0 / factor, postscale_factor=factor, process_set=process_set)
                    for n, total in zip(group, sums):
                        found[numbers[n]] = total
            return found

        return reduced

    module._make_allreduce_grads_fn = made


@_guarded
def _tensorflow_groups(grads, problem):
    tf = sys.modules["tensorflow"]
    grads = [grad for grad in grads if grad is not None]
    if tf.executing_eagerly():
        problem, names = "steps are not in a tf.function: their gradients have no names", ["eager"] * len(grads)
    else:
        names = [_normalized(getattr(grad, "name", "")) for grad in grads]
    if any(isinstance(grad, tf.IndexedSlices) for grad in grads):
        problem = problem or "the job has sparse gradients"
    sizes = [grad.shape.num_elements() * grad.dtype.size if hasattr(grad, "shape") and grad.shape.num_elements() is not None
             else None for grad in grads]
    return _groups(names, sizes, [grad.dtype for grad in grads], _tensorflow_name, problem)


# PyTorch

def attach_torch(module):
    """To horovod.torch: its optimizer takes groups."""
    make = module.DistributedOptimizer
    signature = inspect.signature(make)

    @functools.wraps(make)
    def made(*args, **kwargs):
        try:
            given = signature.bind(*args, **kwargs).arguments
        except TypeError:
            return make(*args, **kwargs)  # which says what is wrong
        if given.get("named_parameters") is not None:
            given["named_parameters"] = list(given["named_parameters"])  # a generator can be read once
        groups = _torch_groups(module, given)
        if groups is not None:
            trained = _trained(given["named_parameters"])
            given["groups"] = [[trained[n][1] for n in group] for group in groups]
            if _plan().compression == "fp16":
                given["compression"] = module.Compression.fp16
        return make(**given)

    module.DistributedOptimizer = made


def _trained(named):
    return [(name, parameter) for name, parameter in named if parameter.requires_grad]


@_guarded
def _torch_groups(module, given):
    problem, named = None, _trained(given.get("named_parameters") or ())
    if given.get("groups") is not None or given.get("num_groups"):
        problem = "the job makes groups of its own"
    elif given.get("op", module.Average) not in (module.Average, module.Sum):
        problem = "the job reduces its gradients in a way of its own"
    elif given.get("process_set", module.global_process_set) is not module.global_process_set:
        problem = "the job reduces its gradients over a part of its ranks"
    elif not named:
        problem = "the job names no parameters: DistributedOptimizer was given no named_parameters"
    return _groups([name for name, _ in named], [p.numel() * p.element_size() for _, p in named], [p.dtype for _, p in named],
                   lambda name: name.rpartition("allreduce.")[2], problem)


# MXNet

def attach_mxnet(module):
    """To horovod.mxnet."""
    reduce = module.DistributedTrainer._allreduce_grads

    @functools.wraps(reduce)
    def reduced(trainer):
        groups = _mxnet_groups(module, trainer)
        if groups is None:
            return reduce(trainer)
        trained = [p for p in trainer._params if p.grad_req != "null"]
        compression = module.Compression.fp16 if _plan().compression == "fp16" else trainer._compression
        for number, group in enumerate(groups):
            arrays = [trained[n].list_grad()[0] for n in group]
            packed = [compression.compress(array) for array in arrays]
            module.grouped_allreduce_([small for small, _ in packed], average=not trainer._average_in_framework,
                                      name="%sdpro.%d" % (trainer._prefix, number), priority=-min(group),
                                      prescale_factor=1.0 / trainer._gradient_predivide_factor,
                                      postscale_factor=trainer._postscale_factor, process_set=trainer._process_set)
            if compression != module.Compression.none:
                for array, (small, context) in zip(arrays, packed):
                    array[:] = compression.decompress(small, context)
        return None

    module.DistributedTrainer._allreduce_grads = reduced


@_guarded
def _mxnet_groups(module, trainer):
    """Asked at each step: the answer is that of the first."""
    known = getattr(trainer, "_dpro_groups", ())
    if known != ():
        return known
    trainer._dpro_groups = None
    problem, names, sizes, dtypes = None, [], [], []
    if trainer._process_set is not module.global_process_set:
        problem = "the job reduces its gradients over a part of its ranks"
    elif trainer._num_groups > 0:
        problem = "the job makes groups of its own"
    for n, parameter in enumerate(trainer._params):
        if parameter.grad_req == "null":
            continue
        array = parameter.list_grad()[0]
        if array.stype != "default":
            problem = problem or "the job has sparse gradients"
        dtype = sys.modules["numpy"].dtype(array.dtype)
        names.append(trainer._prefix + str(n))
        sizes.append(array.size * dtype.itemsize)
        dtypes.append(dtype)
    trainer._dpro_groups = _groups(names, sizes, dtypes, lambda name: name.rpartition("allreduce.")[2], problem)
    return trainer._dpro_groups
