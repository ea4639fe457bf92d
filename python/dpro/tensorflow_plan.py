"""A plan in a job of TensorFlow's own collectives: gradients that are all-reduced in one call of a tf.function travel in the
plan's packs, one after the other, in its order.

That is decided while the function is traced. All workers do it or none (agreement.py), by the coordination service that
MultiWorkerMirroredStrategy has started."""
import functools
import os
import sys

from . import agreement, applied, job, report

STACK = "tensorflow-ring"
NO_JOB = "no gradients were all-reduced in a tf.function"

_decided = {}  # names of the gradients that the workers were asked about: the plan's packs of them, or None


class Coordination(agreement.Store):
    """The key-value store of TensorFlow's coordination service."""

    name = STACK

    def __init__(self):
        self._context = sys.modules["tensorflow.python.eager.context"].context()
        task = job.tensorflow_task()
        self.rank, self.size = (task[2], task[3]) if task and task[2] is not None else (0, 1)

    def put(self, key, text):
        self._context.set_config_key_value(key, text or "-")

    def get(self, key, wait_s):
        errors = sys.modules["tensorflow.python.framework.errors_impl"]
        try:
            return self._context.get_config_key_value(key, timeout_in_ms=max(int(1000 * wait_s), 1))
        except (errors.DeadlineExceededError, errors.NotFoundError):
            return None


def attach(module):
    """To tensorflow.python.distribute.cross_device_utils."""
    launcher = module.CollectiveReplicaLauncher
    reduce = launcher.batch_all_reduce

    @functools.wraps(reduce)
    def reduced(self, input_tensor_packs, options=None):
        tensors = [tensor for pack in input_tensor_packs for tensor in pack]
        packs = _packs(tensors, self._group_size)
        if packs is None:
            return reduce(self, input_tensor_packs, options)
        sums = reduce(self, [[tensors[n] for n in pack] for pack in packs], options)
        found = [None] * len(tensors)
        for n, total in zip((n for pack in packs for n in pack), sums):
            found[n] = total
        return found

    launcher.batch_all_reduce = reduced


def _packs(tensors, group_size):
    """The packs in which all workers reduce these; None: as the job does."""
    try:
        if sys.modules["tensorflow.python.eager.context"].executing_eagerly():
            return None
        return _decide(tensors, group_size)
    except Exception as problem:
        applied.refuse(report.why(problem), job.place()[0], what="packs")
        return None


def _decide(tensors, group_size):
    names = tuple(tensor.op.name for tensor in tensors)
    if names in _decided:
        return _decided[names]
    plan, problem = applied.read_for(STACK, os.environ["DPRO_PLAN"])
    n_planned = sum(len(bucket.names) for bucket in plan.buckets) if plan else None
    if _decided or (plan and n_planned != len(names)):  # of something else than the gradients; or traced once more
        return None
    _decided[names] = None
    store, packs = Coordination(), None
    if not problem:
        packs, problem = _fit(plan, tensors, group_size)
    if store.size == 1:
        problem = problem or "there is one worker only"
    problem = agreement.ask(store, "plan", plan.digest if plan else "", problem)
    if problem:
        applied.refuse(problem, store.rank, what="packs")
    elif plan.is_own:
        applied.keep_own(plan, store.rank)
    else:
        _decided[names] = packs
        sizes = [_size(tensor) for tensor in tensors]
        applied.tell(plan, store.rank, "TensorFlow's all-reduce", [sum(sizes[n] for n in pack) for pack in packs], "pack")
    return _decided[names]


def _size(tensor):
    n = tensor.shape.num_elements()
    return n * tensor.dtype.size if n is not None else None


def _fit(plan, tensors, group_size):
    """The plan's packs as numbers of tensors, and what speaks against them."""
    if group_size != plan.world_size:
        return None, "it is for %d workers with a device each, this job reduces over %d" % (plan.world_size, group_size)
    sizes = [_size(tensor) for tensor in tensors]
    if None in sizes:
        return None, "a gradient's shape is not known before it is computed"
    planned = [name for bucket in plan.buckets for name in bucket.names]
    number_of, problem = match(planned, [tensor.op.name for tensor in tensors])
    if problem:
        return None, problem
    packs = [[number_of[name] for name in bucket.names] for bucket in plan.buckets]
    for pack in packs:
        if len({tensors[n].dtype for n in pack}) > 1:
            return None, "gradients of one pack have several data types"
    return packs, None


def match(planned, here):
    """{name of the plan: number of the op here}, and what speaks against it. A plan names ops as they ran: where TensorFlow
    has fused or replaced one before it ran, the layer that it is of tells."""
    number_of, left = {}, dict(enumerate(here))
    for name in planned:
        for n, op in left.items():
            if op == name:
                number_of[name] = n
                del left[n]
                break
    for name in planned:
        if name in number_of:
            continue
        near = {n: _n_common(name, op) for n, op in left.items()}
        most = max(near.values(), default=0)
        best = [n for n in near if near[n] == most]
        rivals = [other for other in planned if other not in number_of and other != name
                  and best and _n_common(other, here[best[0]]) >= most]
        if len(best) != 1 or rivals or most == 0:
            return None, "it is for another model: no gradient here is surely its %s" % name
        number_of[name] = best[0]
    if len(set(number_of.values())) != len(here):
        return None, "it is for another model: it has %d gradients, here are %d" % (len(planned), len(here))
    return number_of, None


def _n_common(a, b):
    """Parts of the two names that are equal, from the left."""
    n = 0
    for x, y in zip(a.split("/"), b.split("/")):
        if x != y:
            break
        n += 1
    return n
