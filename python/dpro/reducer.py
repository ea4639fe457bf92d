"""DDP's buckets exactly as asked for, in a model that is there already.

DDP cuts its parameters into buckets by size, in the order in which gradients became ready in the first step. Here its
reducer is made again from parameters that lie in the order asked for, with one size limit a bucket; then it is told
that they became ready in that order, so that it cuts them at once, and for good. So any buckets can be had, contiguous
or not, from the first step on and in every mode. With find_unused_parameters DDP never cuts again: there the buckets
it begins with are the ones. All is done through DDP's own functions; a model that is copied or pickled has its own
buckets again.

Parts, compression and priority are a communication hook, which also makes each part an all-reduce of its own."""
import dataclasses
import itertools
import os
import weakref

import torch
import torch.distributed as dist

from .ddp_parameters import named_parameters, reducer_order, size_bytes

MOST_SEEN = 4096
DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}

_applied = weakref.WeakKeyDictionary()   # DDP model: its Layout
_builtins = weakref.WeakKeyDictionary()  # DDP model: the built-in communication hook that the job registered
_groups = weakref.WeakKeyDictionary()    # process group: the one that urgent buckets go over


class Layout:
    """Buckets in order of launch, as indices into DDP's own list of parameters; how each is sent."""

    def __init__(self, buckets, partitions=(), urgent=(), compression="none"):
        self.buckets = buckets
        self.partitions = partitions or [1] * len(buckets)
        self.urgent = urgent or [False] * len(buckets)
        self.compression = compression
        self.plan = None     # that asked for it
        self.hooked = False  # the communication hook is the layout's, not the job's

    @property
    def needs_hook(self):
        return self.compression != "none" or any(self.urgent) or max(self.partitions) > 1


class Parameters:
    """Those that DDP reduces, in its own order."""

    def __init__(self, ddp):
        names = [name for name, _, _ in named_parameters(getattr(ddp.module, "_orig_mod", ddp.module))]
        order, self.tensors, self.sparse = reducer_order(ddp)
        self.names = [names[n] for n in order]
        self.sizes = [size_bytes(p) for p in self.tensors]

    def kind(self, n):
        """Parameters of different kinds can't be in one bucket."""
        p = self.tensors[n]
        return (p.dtype, p.device)


def name_of(ddp):
    return type(getattr(ddp.module, "_orig_mod", ddp.module)).__name__


def unfit(ddp):
    """Why this model's buckets can't be set, None when they can."""
    if not hasattr(ddp, "_bucket_config"):
        return "this torch (%s) has no limits for each of DDP's buckets; 2.13 has" % torch.__version__
    if not hasattr(ddp, "reducer") or ddp._use_python_reducer:
        return "DDP works without its reducer here (compiled autograd, or its all-reduce is delayed)"
    if hook_of(ddp) and not ddp._comm_hooks and ddp not in _builtins and ddp not in _applied:
        return "its built-in communication hook was registered before dpro could see it"
    registered = {id(p) for p in ddp.module.parameters()}
    if any(id(p) not in registered for p in reducer_order(ddp)[1]):
        return "its parameters are tensor-parallel, and no longer the model's own once it trains: DDP can't be given them again"
    if ddp._lazy_init_ran and any(hasattr(p, "_in_backward_optimizers") for p in ddp.module.parameters()):
        return "its optimizers run within the backward pass: buckets can't be changed once it trains"
    return None


def hook_of(ddp):
    """The name of the job's own communication hook, as DDP tells it."""
    layout = _applied.get(ddp)
    return None if layout and layout.hooked else ddp._get_ddp_logging_data().get("comm_hook") or None


def unfit_layout(parameters, layout):
    """Why these buckets can't be had in DDP at all."""
    for n, bucket in enumerate(layout.buckets):
        if any(parameters.sparse[i] for i in bucket) and len(bucket) > 1:
            return "bucket %d: %s has sparse gradients, which are sent alone" % (
                n, next(parameters.names[i] for i in bucket if parameters.sparse[i]))
        if len({parameters.kind(i) for i in bucket}) > 1:
            other = next(i for i in bucket if parameters.kind(i) != parameters.kind(bucket[0]))
            return "bucket %d: %s and %s differ in data type or device" % (n, parameters.names[bucket[0]], parameters.names[other])
    return None


def layout_of(ddp):
    return _applied.get(ddp)


def _is_fixed(ddp):
    """DDP keeps the buckets that it begins with."""
    return ddp.find_unused_parameters and not ddp.static_graph


def _cuts(parameters, buckets):
    """The order and the limits that make DDP cut into these buckets: it ends one with the parameter that makes it reach
    its limit. It goes through the limits for each kind of parameter by itself, so that with several kinds not any buckets
    can be had; most can with the largest parameter at the end, which leaves the limit the most room."""
    order, limits = [], {}
    several = len({parameters.kind(i) for bucket in buckets for i in bucket}) > 1
    for bucket in buckets:
        order += sorted(bucket, key=lambda i: parameters.sizes[i] if several else min(parameters.sizes[i], 1))
        if not any(parameters.sparse[i] for i in bucket):
            limits.setdefault(parameters.kind(bucket[0]), []).append(sum(parameters.sizes[i] for i in bucket))
    limits = [min(column) for column in itertools.zip_longest(*limits.values(), fillvalue=1 << 62)]
    return order, limits or [1 << 62]


def nearest(ddp, parameters, layout):
    """The buckets that DDP will make of this layout: mostly those asked for."""
    buckets = list(reversed(layout.buckets)) if _is_fixed(ddp) else layout.buckets
    order, limits = _cuts(parameters, buckets)
    tensors = [parameters.tensors[i] for i in order]
    sparse = [parameters.sparse[i] for i in order]
    numbers = [] if _is_fixed(ddp) else list(range(len(order)))
    made = dist._compute_bucket_assignment_by_size(tensors, limits, sparse, numbers)[0]
    made = [[order[i] for i in bucket] for bucket in made]
    return list(reversed(made)) if _is_fixed(ddp) else made


def difference(names, asked, made):
    """The first bucket that is another than asked for, in words; None when all are the same."""
    for n, (a, b) in enumerate(itertools.zip_longest(asked, made, fillvalue=())):
        if set(a) != set(b):
            other = sorted(set(a) ^ set(b))[0]
            return "bucket %d of %d %s %s" % (n, len(asked), "lacks" if other in set(a) else "has", names[other])
    return None


def set_layout(ddp, layout):
    """Gives the model these buckets; all ranks of its group do the same at the same time, between two steps. Returns
    what is different from what was asked for, None when nothing is."""
    make_layout(ddp, layout)
    return cut_layout(ddp, layout)


def make_layout(ddp, layout):
    """The first half, which a rank can fail in by itself: no other one waits for it."""
    fixed = _is_fixed(ddp)
    buckets = list(reversed(layout.buckets)) if fixed else layout.buckets
    order, limits = _cuts(Parameters(ddp), buckets)
    if not fixed and os.environ.get("DDP_SET_LAST_BUCKET_CAP") == "1":
        limits = limits[::-1]  # torch goes through them from the end
    config = dataclasses.replace(ddp._bucket_config, per_bucket_bytes_caps=tuple(limits))
    _make_reducer(ddp, config, order)


def cut_layout(ddp, layout):
    """The second half: DDP cuts the buckets, of which ranks tell each other."""
    if not _is_fixed(ddp):
        ddp.reducer._push_all_rebuilt_params()
        ddp._has_rebuilt_buckets = ddp.reducer._rebuild_buckets()
    layout.hooked = False
    _applied[ddp] = layout
    _put_hooks(ddp, layout)
    parameters = Parameters(ddp)
    return difference(parameters.names, layout.buckets, made_buckets(ddp, parameters))


def digest(ddp):
    """Of the parameters that DDP keeps the same on all ranks: of up to MOST_SEEN places in each."""
    integers = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    sums = [p.detach().reshape(-1).view(integers[p.element_size()])[::1 + p.numel() // MOST_SEEN].sum(dtype=torch.int64)
            for p in reducer_order(ddp)[1] if p.element_size() in integers]
    return sum(torch.stack(sums).tolist()) if sums else 0


def set_cap(ddp, cap_mb=None):
    """Gives the model buckets as DDP makes them: with this limit, or with the job's own."""
    config = ddp._bucket_config
    if cap_mb is not None:
        config = type(config).create(bucket_cap_mb=cap_mb, bucket_cap_mb_list=None, use_python_reducer=False)
    _applied.pop(ddp, None)
    _make_reducer(ddp, config, None)
    _put_hooks(ddp, None)


def _make_reducer(ddp, config, order):
    """A new reducer in the old one's place, the parameters in this order."""
    parameters, sparse = ddp._build_params_for_reducer()
    if order is not None:
        parameters, sparse = [parameters[i] for i in order], [sparse[i] for i in order]
    names = ddp._build_debug_param_to_name_mapping(parameters)
    if ddp.reducer is not None:  # of one that could not be made
        ddp.reducer._check_reducer_finalized()
        ddp._remove_autograd_hooks()
    ddp.logger = ddp.reducer = None  # its buckets go before the new ones come
    own = ddp._bucket_config, ddp.bucket_bytes_cap
    ddp._bucket_config, ddp.bucket_bytes_cap = config, config.bucket_bytes_cap
    try:
        ddp._ddp_init_helper(parameters, sparse, names, ddp.static_graph)
    finally:
        ddp._bucket_config, ddp.bucket_bytes_cap = own
    ddp._has_rebuilt_buckets = False
    if ddp.static_graph:
        ddp._static_graph_delay_allreduce_enqueued = False
        ddp.reducer._set_static_graph()
        ddp.logger._set_static_graph()
    if ddp.mixed_precision is not None:
        ddp.reducer._set_mixed_precision_param_dtype(ddp.mixed_precision.param_dtype)


def _put_hooks(ddp, layout):
    """The job's own communication hook onto the new reducer, else the layout's."""
    if ddp in _builtins:
        ddp.logger._set_comm_hook_name(str(_builtins[ddp]))
        dist._register_builtin_comm_hook(ddp.reducer, _builtins[ddp])
        return
    for hook, state in ddp._comm_hooks:
        ddp.logger._set_comm_hook_name(hook.__qualname__)
        dist._register_comm_hook(ddp.reducer, state, hook)
        return
    if layout is not None and layout.needs_hook:
        ddp.logger._set_comm_hook_name(send_bucket.__qualname__)
        dist._register_comm_hook(ddp.reducer, Sending(ddp.process_group, layout), send_bucket)
        layout.hooked = True


def made_buckets(ddp, parameters):
    """The reducer's buckets as they are. Takes the bytes of the gradients once more for a moment."""
    numbers = {id(p): n for n, p in enumerate(parameters.tensors)}
    if any(parameters.sparse):  # such a bucket has no tensor before its first gradient
        return nearest(ddp, parameters, _applied[ddp])
    return [[numbers[id(p)] for p in bucket.parameters()] for bucket in ddp.reducer._get_zeros_like_grad_buckets()]


def bucket_bytes(ddp):
    """As DDP tells it, which it does from the second step on."""
    told = ddp._get_ddp_logging_data()
    return [int(size) for size in str(told.get("rebuilt_bucket_sizes") or told["bucket_sizes"]).split(",")]


# The job's own hooks

def watch_hooks(ddp_class, on_replaced):
    """A communication hook that the job registers replaces the plan's; on_replaced(ddp, its name) is called then."""
    if hasattr(ddp_class.register_comm_hook, "_dpro"):
        return
    register, register_builtin = ddp_class.register_comm_hook, ddp_class._register_builtin_comm_hook

    def make_room(ddp, name):
        layout = _applied.get(ddp)
        if layout is not None and layout.hooked:
            without = Layout(layout.buckets)
            without.plan = layout.plan
            set_layout(ddp, without)
            on_replaced(ddp, name)

    def register_comm_hook(self, state, hook):
        make_room(self, getattr(hook, "__qualname__", "a hook"))
        return register(self, state, hook)

    def _register_builtin_comm_hook(self, comm_hook_type):
        make_room(self, str(comm_hook_type))
        result = register_builtin(self, comm_hook_type)
        _builtins[self] = comm_hook_type
        return result

    for ours, theirs in ((register_comm_hook, register), (_register_builtin_comm_hook, register_builtin)):
        ours.__doc__, ours._dpro = theirs.__doc__, True
        setattr(ddp_class, ours.__name__, ours)


# Sending

class Sending:
    """The hook's state."""

    def __init__(self, group, layout):
        self.group, self.size = group, dist.get_world_size(group)
        self.partitions, self.dtype = layout.partitions, DTYPES.get(layout.compression)
        urgent = _urgent_group(group) if any(layout.urgent) else None
        self.groups = [urgent if is_urgent else group for is_urgent in layout.urgent]


def _urgent_group(group):
    """Another group of the same ranks: what is sent over it waits for nothing that the first one has still to send."""
    if group not in _groups:
        _groups[group] = dist.new_group(dist.get_process_group_ranks(group), use_local_synchronization=True,
                                        group_desc="dpro: urgent buckets")
    return _groups[group]


def send_bucket(state, bucket):
    """The communication hook. Without compression the same operations as DDP's own, on each part. It is called for each
    bucket in the backward pass, on the job's own thread: the process group itself is asked, as dist.all_reduce's checks
    cost as much as the call."""
    buffer, n = bucket.buffer(), bucket.index()
    if buffer.layout != torch.strided:
        work = dist.all_reduce(buffer.div_(state.size), group=state.groups[n], async_op=True)
        return work.get_future().then(lambda done: done.value()[0])
    if state.dtype is None or not buffer.is_floating_point() or buffer.element_size() <= state.dtype.itemsize:
        sent = buffer.mul_(1.0 / state.size)
    else:
        sent = buffer.to(state.dtype).div_(state.size)
    flat = torch.view_as_real(sent) if sent.is_complex() else sent
    parts = flat.chunk(state.partitions[n]) if state.partitions[n] > 1 else (flat,)
    futures = [state.groups[n].allreduce([part]).get_future() for part in parts]

    def received(_):
        for future in futures:
            future.wait()  # all are there: a failed one raises, a GPU's stream is told to wait
        return buffer if sent is buffer else buffer.copy_(sent)

    if buffer.device.type == "cpu" and len(futures) > 1:
        return torch.futures.collect_all(futures).then(received)
    return futures[-1].then(received)  # of one device, which collect_all's is not; parts are done in order there
