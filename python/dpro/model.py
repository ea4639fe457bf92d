"""What is trained: models, parameters, DDP's buckets, FSDP's units, process groups. Read off objects that are there
anyway; nothing is wrapped, no collective is called. Parts that this torch lacks are left out."""
import gc
import sys

import torch

from . import job
from .ddp_parameters import named_parameters, reducer_order, size_bytes, type_is
from .report import first_line, say


def _local(tensor):
    """What of a distributed tensor lies on this rank."""
    return getattr(tensor, "_local_tensor", tensor)


def _class(module, name):
    return getattr(sys.modules.get(module), name, None)


def ddp_class():
    """None where it is not loaded."""
    return _class("torch.nn.parallel.distributed", "DistributedDataParallel")


def _fsdp1():
    return _class("torch.distributed.fsdp.fully_sharded_data_parallel", "FullyShardedDataParallel")


def fsdp2_class():
    for module in ("torch.distributed.fsdp", "torch.distributed._composable.fsdp.fully_shard",
                   "torch.distributed._composable.fsdp"):
        found = _class(module, "FSDPModule")
        if found:
            return found
    return None


def find(optimizers):
    """The models that these optimizers train: the outermost modules, but each DDP model by itself. Of two with the same trained
    parameters the one with fewer others: a pipeline's stage, not the whole model whose parts it took."""
    modules = [thing for thing in gc.get_objects() if type_is(thing, torch.nn.Module)]
    inner = {id(child) for module in modules for child in module._modules.values() if child is not None}
    trained = {id(p) for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]}
    ddp = ddp_class()

    def trains(module):
        return {id(p) for _, p, _ in named_parameters(module)} & trained

    found, covered = [], set()
    wrapped = [m for m in modules if ddp and type_is(m, ddp) and trains(m)]
    wrapped.sort(key=lambda m: _n_reduced(m), reverse=True)  # wrapped again: the one in use
    for module in wrapped:
        if not trains(module) <= covered:
            found.append(module)
            covered |= trains(module)
    rest = sorted((m for m in modules if id(m) not in inner), key=lambda m: (-len(trains(m)), sum(1 for _ in m.parameters())))
    for module in rest:
        if not trains(module) <= covered:
            root = _fsdp_root(module)
            found.append(root if root is not None and trains(root) == trains(module) else module)
            covered |= trains(module)
    return found


def _fsdp_root(module):
    """The one fully_shard model in it, after which the profiler's marks name the units; None where there is not just one."""
    fsdp2 = fsdp2_class()
    sharded = [m for m in module.modules() if type_is(m, fsdp2)] if fsdp2 else []
    inner = {id(child) for m in sharded for child in m.modules() if child is not m}
    roots = [m for m in sharded if id(m) not in inner]
    return roots[0] if len(roots) == 1 else None


def _n_reduced(ddp):
    try:
        return int(ddp._get_ddp_logging_data().get("iteration", 0))
    except Exception:
        return 0


def unwrapped(module):
    """The model without DDP's and torch.compile's wrappers."""
    ddp = ddp_class()
    inside = module.module if ddp and type_is(module, ddp) else module
    return getattr(inside, "_orig_mod", inside)


def describe(module):
    """A model's entry in rank.json. `module` is the outermost: DDP's wrapper, FSDP's root, or the model itself."""
    ddp, inside = ddp_class(), unwrapped(module)
    if inside is not module and ddp and type_is(inside, ddp):
        module, inside = inside, getattr(inside.module, "_orig_mod", inside.module)
    entry = {"name": type(inside).__name__, "parallel": "none", "process_group": None,
             "parameters": [_parameter(name, p) for name, p, _ in named_parameters(inside)],
             "ddp": None, "buckets": None, "fsdp": None}
    try:
        _describe_parallel(module, inside, entry)
    except Exception as problem:
        say("model", "the communication of %s can't be described: %s" % (entry["name"], first_line(problem)))
    return entry


def _describe_parallel(module, inside, entry):
    ddp, fsdp1, fsdp2 = ddp_class(), _fsdp1(), fsdp2_class()
    if ddp and type_is(module, ddp):
        entry["parallel"] = "ddp"
        entry["process_group"] = _group_name(module.process_group)
        _describe_ddp(module, entry)
    elif fsdp1 and any(type_is(m, fsdp1) for m in inside.modules()):
        entry["parallel"] = "fsdp"
        _describe_fsdp1(inside, fsdp1, entry)
    elif fsdp2 and any(type_is(m, fsdp2) for m in inside.modules()):
        entry["parallel"] = "fsdp"
        _describe_fsdp2(inside, fsdp2, entry)


def _n_elements(shape):
    n = 1
    for dim in shape:
        n *= dim
    return n


def _parameter(name, p, shape=None):
    shape = list(p.shape if shape is None else shape)
    entry = {"name": name, "shape": shape, "dtype": str(p.dtype).replace("torch.", ""),
             "size_bytes": _n_elements(shape) * p.element_size(), "requires_grad": bool(p.requires_grad)}
    if hasattr(p, "_st_info"):  # what DDP took of a tensor-parallel one
        entry["whole_bytes"] = _n_elements(p._st_info.shape) * p.element_size()
    return entry


def _describe_ddp(ddp, entry):
    data = ddp._get_ddp_logging_data()
    hook = data.get("comm_hook")
    cap = data.get("bucket_cap_bytes", getattr(ddp, "bucket_bytes_cap", 0))
    first = _first_bucket_bytes(ddp, cap)
    entry["ddp"] = {"bucket_cap_mb": round(cap / (1 << 20), 4), "first_bucket_mb": round(first / (1 << 20), 4),
                    "gradient_as_bucket_view": bool(getattr(ddp, "gradient_as_bucket_view", False)),
                    "static_graph": bool(getattr(ddp, "static_graph", False)),
                    "find_unused_parameters": bool(getattr(ddp, "find_unused_parameters", False)),
                    "comm_hook": hook or None}
    order, tensors, sparse = reducer_order(ddp)
    from . import reducer
    layout = reducer.layout_of(ddp)
    rebuilt = data.get("rebuilt_per_bucket_param_indices")
    if layout is not None:
        buckets = reducer.made_buckets(ddp, reducer.Parameters(ddp))
    elif rebuilt:
        buckets = [[int(n) for n in part.split()] for part in rebuilt.split(",")]
    else:
        # never rebuilt (find_unused_parameters, or the job did not come so far): as it was when DDP was made
        buckets = torch.distributed._compute_bucket_assignment_by_size(tensors, _limits(ddp, first, cap), sparse)
        buckets = list(reversed(buckets[0] if isinstance(buckets, tuple) else buckets))
    entry["buckets"] = [{"parameters": [order[n] for n in bucket],
                         "size_bytes": sum(size_bytes(tensors[n]) for n in bucket)} for bucket in buckets]


def _first_bucket_bytes(ddp, cap):
    config = getattr(ddp, "_bucket_config", None)
    first = getattr(config, "first_bucket_bytes_cap", None)
    if first is None:
        default = int(getattr(torch.distributed, "_DEFAULT_FIRST_BUCKET_BYTES", 1 << 20))
        first = default if cap == 25 << 20 else cap
    return first


def _limits(ddp, first, cap):
    config = getattr(ddp, "_bucket_config", None)
    if hasattr(config, "compute_bucket_size_limits"):
        return config.compute_bucket_size_limits(static_graph=ddp.static_graph, find_unused_parameters=ddp.find_unused_parameters)[0]
    if ddp.static_graph or not ddp.find_unused_parameters:
        return [sys.maxsize]  # all in one until the rebuild
    return [first, cap]


def fsdp2_units(root, fsdp2):
    """(name, module, groups of parameters) of each module of this one that fully_shard made a unit."""
    for name, module in root.named_modules():
        if fsdp2 and type_is(module, fsdp2):
            state = module._get_fsdp_state()
            groups = getattr(state, "_fsdp_param_groups", None) or [getattr(state, "_fsdp_param_group", None)]
            yield name, module, [group for group in groups if group is not None]  # else no parameters of its own


def _describe_fsdp2(root, fsdp2, entry):
    names = {p["name"]: n for n, p in enumerate(entry["parameters"])}
    prefixes = {id(module): name and name + "." for name, module in root.named_modules()}
    units = []
    for unit, _, groups in fsdp2_units(root, fsdp2):
        for group in groups:
            places = [p._module_info for p in group.fsdp_params]
            full = [prefixes[id(place.module)] + place.param_name for place in places if id(place.module) in prefixes]
            parameters = [names[name] for name in full if name in names]  # one that is shared has one name
            units.append({"name": unit, "parameters": parameters,
                          "reshard_after_forward": getattr(group, "post_forward_mesh_info", None) is not None})
            if entry["process_group"] is None:
                entry["process_group"] = _group_name(group.mesh_info.mesh.get_group(-1))
    entry["fsdp"] = {"version": 2, "units": units}


def _describe_fsdp1(root, fsdp1, entry):
    """FSDP 1 flattens a unit's parameters into one; it keeps what they were."""
    parameters, units = [], []
    flat_ids = set()
    for name, module in root.named_modules():
        handle = getattr(module, "_handle", None) if type_is(module, fsdp1) else None
        if handle is None:
            continue
        flat = handle.flat_param
        prefix = name.replace("_fsdp_wrapped_module.", "").replace("_fsdp_wrapped_module", "")
        unit = []
        for fqn, shape in zip(flat._fqns, flat._shapes):
            unit.append(len(parameters))
            parameters.append(_parameter((prefix + "." if prefix else "") + fqn, flat, shape))
        flat_ids.add(id(flat))
        units.append({"name": prefix, "parameters": unit, "reshard_after_forward": "FULL_SHARD" in str(module.sharding_strategy)})
        if entry["process_group"] is None:
            entry["process_group"] = _group_name(module.process_group)
    entry["parameters"] = parameters
    entry["fsdp"] = {"version": 1, "units": units}


def distributed():
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def patience_s():
    """The shortest time for which a process group waits for a rank before the job fails; infinite where none tells."""
    least = float("inf")
    for group in torch.distributed.distributed_c10d._world.pg_map if distributed() else ():
        for device in ("cpu", "cuda"):
            try:
                least = min(least, group._get_backend(torch.device(device)).options._timeout.total_seconds())
            except (AttributeError, RuntimeError):  # of another device, or a torch that does not tell
                pass
    return least


def _group_name(group):
    return str(getattr(group, "group_name", "")) or None


def process_groups():
    if not distributed():
        return []
    c10d = torch.distributed.distributed_c10d
    try:
        return [{"name": str(g["pg_name"]), "description": g.get("pg_desc", ""), "backend": _backend(g["backend_config"]),
                 "ranks": list(g["ranks"])} for g in c10d._get_all_pg_configs()]
    except (AttributeError, KeyError, TypeError):
        return [{"name": _group_name(torch.distributed.group.WORLD) or "0", "description": "default_pg",
                 "backend": torch.distributed.get_backend(), "ranks": list(range(torch.distributed.get_world_size()))}]


def _backend(config):
    """cpu:gloo,cuda:gloo -> gloo; where devices differ, the whole text."""
    kinds = {part.partition(":")[2] or part for part in str(config).split(",")}
    return kinds.pop() if len(kinds) == 1 else str(config)


def device(models):
    """That of the first parameter: what is trained on."""
    return next((p.device for module in models for p in module.parameters()), torch.device("cpu"))


def device_name(kind):
    if kind == "cuda" and torch.cuda.is_initialized():
        return torch.cuda.get_device_name()
    return job.device_name()


def memory(models, optimizers):
    """Bytes on this rank. Gradients are those that exist now: right after a step they are all there."""
    parameters = {id(p): p for module in models for p in module.parameters()}
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            parameters.update((id(p), p) for p in group["params"])
    state = 0
    for optimizer in optimizers:
        for values in optimizer.state.values():
            for value in values.values() if isinstance(values, dict) else ():
                if type_is(value, torch.Tensor):
                    state += size_bytes(_local(value))
    cuda = torch.cuda.is_initialized()  # never asks the driver, which would harm children forked later
    peak, now = job.process_memory()
    return {"rss_peak_bytes": peak, "rss_bytes": now,
            "device_peak_bytes": torch.cuda.max_memory_allocated() if cuda else None,
            "device_reserved_peak_bytes": torch.cuda.max_memory_reserved() if cuda else None,
            "parameter_bytes": sum(size_bytes(_local(p)) for p in parameters.values()),
            "gradient_bytes": sum(size_bytes(_local(p.grad)) for p in parameters.values() if p.grad is not None),
            "optimizer_bytes": state}


def versions():
    import platform
    nccl = None
    if torch.cuda.is_initialized():
        try:
            nccl = ".".join(str(part) for part in torch.cuda.nccl.version())
        except Exception:
            pass
    return {"torch": str(torch.__version__), "python": platform.python_version(), "cuda": torch.version.cuda, "nccl": nccl}
