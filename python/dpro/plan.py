"""Reading a plan (doc/formats/plan.md): all that can be told without the job. Imports nothing of torch."""
import hashlib
import json
import os

SCHEMAS = tuple("dpro.plan/%d" % version for version in range(1, 6))  # 2: with fused ops; 3: memory; 4: how modules are computed; 5: FSDP
STACKS = {"ddp": "PyTorch's DDP", "horovod": "Horovod", "tensorflow-ring": "TensorFlow's collectives",
          "tensorflow-ps": "TensorFlow's parameter servers", "mxnet-ps": "MXNet's key-value store", "byteps": "BytePS"}
COMPRESSIONS = ("none", "fp16", "bf16")
MOST_PARTITIONS = 1024
MOST_MICRO_BATCHES = 1024
MOST_PREFETCH = 1024


class Unusable(Exception):
    """The plan can't be used; the text says where and why."""


class Bucket:
    def __init__(self, model, names, size_bytes, partitions, priority, server):
        self.model, self.names, self.partitions, self.priority = model, names, partitions, priority
        self.size_bytes = size_bytes
        self.server = server  # -1: none is chosen


class Memory:
    """`recompute`: names of the modules that are computed again in the backward pass; `micro_batches`: in how many parts
    a step's batch goes through the model. Bytes are None where the plan does not say."""

    def __init__(self, recompute, micro_batches, baseline_peak_bytes, peak_bytes):
        self.recompute, self.micro_batches = recompute, micro_batches
        self.baseline_peak_bytes, self.peak_bytes = baseline_peak_bytes, peak_bytes


class Computing:
    """Names of modules: those that are compiled, and those computed in bfloat16."""

    def __init__(self, compiled, bf16):
        self.compiled, self.bf16 = compiled, bf16


class Unit:
    """Of FSDP: its module's name, and whether it frees its parameters after the forward pass."""

    def __init__(self, name, reshards):
        self.name, self.reshards = name, reshards


class Plan:
    """`stack`: what carries the job's gradients; `models`: a name and {parameter: bytes} each, in the model's order;
    `buckets` in order of launch; `is_own`: they are those that the job had; `digest` is equal for plans that ask for the
    same of communication; `by_settings`: Horovod makes the buckets by itself, as it is told by variables; `n_servers`:
    parameter servers that it is for, 0 where it does not say; `memory` and `computing` are always there; `units` are of
    FSDP, in the order of their forward passes; `prefetch`: how many of these each gathers ahead, 0: as the job does."""

    def __init__(self, path, framework, stack, world_size, models, buckets, is_own, compression, by_settings, expected, n_servers,
                 memory, computing, units, prefetch):
        self.path, self.framework, self.stack, self.world_size, self.models = path, framework, stack, world_size, models
        self.buckets, self.is_own, self.compression = buckets, is_own, compression
        self.by_settings, self.n_servers = by_settings, n_servers
        self.expected = expected
        self.memory, self.computing, self.units, self.prefetch = memory, computing, units, prefetch
        self.of_modules = _of_modules(memory, computing, units)
        self.within_ranks = self.of_modules or memory.micro_batches > 1  # it says something else than of buckets
        self.keeps_all = is_own and not buckets and not self.within_ranks
        self.changes_heap = memory.micro_batches > 1 or _of_modules(memory, computing, ())
        text = repr((stack, world_size, models, [vars(bucket) for bucket in buckets], compression, by_settings, n_servers,
                     memory.recompute, memory.micro_batches, vars(computing), *(vars(unit) for unit in units), prefetch))
        self.digest = hashlib.sha256(text.encode()).hexdigest()[:16]


def read(path, value=None):
    """`value`: what stands there, where that is known."""
    path = os.path.abspath(path)
    if os.path.isdir(path):
        path = os.path.join(path, "plan.json")
    try:
        if value is None:
            with open(path, encoding="utf-8") as file:
                value = json.load(file)
    except OSError as problem:
        raise Unusable("%s: %s" % (path, problem.strerror or problem))
    except (ValueError, RecursionError) as problem:
        raise Unusable("%s is not JSON as dpro optimize writes it: %s" % (path, str(problem).split("\n")[0]))
    try:
        return _plan(path, value)
    except Unusable as problem:
        raise Unusable("%s: %s" % (path, problem))


def _take(value, key, kind, where, default=None):
    found = value.get(key, default)
    if not isinstance(found, kind) or isinstance(found, bool):
        raise Unusable("%s: %s is missing or not %s" % (
            where, key, {dict: "an object", list: "a list", str: "a text", int: "a whole number"}[kind]))
    return found


def _objects(value, key, where):
    for n, entry in enumerate(_take(value, key, list, where)):
        if not isinstance(entry, dict):
            raise Unusable("%s: %s[%d] is not an object" % (where, key, n))
        yield n, entry


def _plan(path, value):
    if not isinstance(value, dict) or not str(value.get("schema", "")).startswith("dpro.plan/"):
        raise Unusable("no plan: its schema is not %s" % " or ".join(SCHEMAS))
    if value["schema"] not in SCHEMAS:
        raise Unusable("written as %s by dpro %s, this one reads %s" % (value["schema"], value.get("dpro"), ", ".join(SCHEMAS)))
    job = _take(value, "job", dict, "the plan")
    stack = _take(job, "stack", str, "job", "ddp")
    if stack == "ddp" and job.get("framework") != "pytorch":
        raise Unusable("the plan is for %s, not pytorch" % job.get("framework"))
    if stack not in STACKS:
        raise Unusable("job: stack %r is none of %s" % (stack, ", ".join(STACKS)))
    world_size = _take(job, "world_size", int, "job")
    models = [_model(n, entry) for n, entry in _objects(job, "models", "job")]
    memory = _memory(_take(value, "memory", dict, "the plan", {}))
    computation = _take(value, "computation", dict, "the plan", {})
    computing = _computing(computation)
    sharding = _take(value, "sharding", dict, "the plan", {})
    units, prefetch = _units(sharding), _take(sharding, "prefetch", int, "sharding", 0)
    if not 0 <= prefetch <= MOST_PREFETCH:
        raise Unusable("sharding: prefetch is %d; 0 to %d are possible" % (prefetch, MOST_PREFETCH))
    without_buckets = _of_modules(memory, computing, units) or memory.micro_batches > 1
    communication = _take(value, "communication", dict, "the plan", {} if without_buckets else None)
    compression = communication.get("compression", "none")
    if compression not in COMPRESSIONS:
        raise Unusable("communication: compression %r is none of %s" % (compression, ", ".join(COMPRESSIONS)))
    if without_buckets:  # of a job whose ranks send nothing
        communication.setdefault("buckets", [])
    buckets = [_bucket(n, entry, models) for n, entry in _objects(communication, "buckets", "communication")]
    if buckets or not without_buckets:
        _check_cover(models, buckets)
    expected = value.get("expected")
    return Plan(path, job.get("framework"), stack, world_size, models, buckets, communication.get("is_own") is True, compression,
                stack == "horovod" and "fusion_threshold_bytes" in communication,
                expected if isinstance(expected, dict) else None,
                _take(communication, "servers", int, "communication", 0), memory, computing, units, prefetch)


def _of_modules(memory, computing, units):
    return bool(memory.recompute or computing.compiled or computing.bf16 or units)


def _modules(value, key, where):
    names = _take(value, key, list, where, [])
    if not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
        raise Unusable("%s: %s holds what is no name of a module, or one twice" % (where, key))
    return names


def _computing(value):
    computing = Computing(_modules(value, "compile", "computation"), _modules(value, "bf16", "computation"))
    if (computing.compiled or computing.bf16) and value.get("changes_numerics") is not True:
        raise Unusable("computation: it has modules, and changes_numerics is not true")
    return computing


def _units(value):
    units = []
    for n, entry in _objects(dict({"units": []}, **value), "units", "sharding"):
        name, reshards = _take(entry, "name", str, "unit %d" % n), entry.get("reshard_after_forward")
        if not isinstance(reshards, bool) or any(unit.name == name for unit in units):
            raise Unusable("sharding: unit %s is there twice, or its reshard_after_forward is not true or false" % (name or n))
        units.append(Unit(name, reshards))
    return units


def _memory(value):
    names = _modules(value, "recompute", "memory")
    micro_batches = _take(value, "micro_batches", int, "memory", 1)
    if not 1 <= micro_batches <= MOST_MICRO_BATCHES:
        raise Unusable("memory: micro_batches is %d; 1 to %d are possible" % (micro_batches, MOST_MICRO_BATCHES))
    sizes = [_take(value, key, int, "memory", 0) for key in ("baseline_peak_bytes", "peak_bytes")]
    return Memory(names, micro_batches, *(size if size > 0 else None for size in sizes))


def _model(n, entry):
    where = "job.models[%d]" % n
    sizes = {}
    for _, parameter in _objects(entry, "parameters", where):
        name = _take(parameter, "name", str, where)
        if name in sizes:
            raise Unusable("%s: parameter %s is there twice" % (where, name))
        sizes[name] = _take(parameter, "size_bytes", int, "%s: %s" % (where, name))
    if not sizes:
        raise Unusable("%s has no parameters" % where)
    return str(entry.get("name", "")), sizes


def _bucket(n, entry, models):
    where = "communication.buckets[%d]" % n
    model = _take(entry, "model", int, where, 0)
    if not 0 <= model < len(models):
        raise Unusable("%s: there is no model %d" % (where, model))
    names, sizes = _take(entry, "parameters", list, where), models[model][1]
    if not names:
        raise Unusable("%s is empty" % where)
    for name in names:
        if not isinstance(name, str) or name not in sizes:
            raise Unusable("%s: parameter %s is not among the model's" % (where, name))
    size = _take(entry, "size_bytes", int, where)
    if size != sum(sizes[name] for name in names):
        raise Unusable("%s: size_bytes is %d, its parameters have %d" % (where, size, sum(sizes[name] for name in names)))
    partitions = _take(entry, "partitions", int, where, 1)
    if not 1 <= partitions <= MOST_PARTITIONS:
        raise Unusable("%s: partitions is %d; 1 to %d are possible" % (where, partitions, MOST_PARTITIONS))
    return Bucket(model, names, size, partitions, _take(entry, "priority", int, where, 0), _take(entry, "server", int, where, -1))


def _check_cover(models, buckets):
    """Each parameter is in one bucket."""
    seen = set()
    for n, bucket in enumerate(buckets):
        for name in bucket.names:
            if (bucket.model, name) in seen:
                raise Unusable("communication.buckets[%d]: parameter %s is in a bucket already" % (n, name))
            seen.add((bucket.model, name))
    for n, (_, sizes) in enumerate(models):
        for name in sizes:
            if (n, name) not in seen:
                raise Unusable("parameter %s is in no bucket" % name)
