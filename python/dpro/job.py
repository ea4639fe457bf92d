"""What a recorder asks of a framework: where a step ends, who this process is, what it trains, a window of its profiler.

A framework is attached when the job has imported one of its modules (activate.py); dpro itself imports none."""
import functools
import json
import math
import os
import re
import sys


class Busy(Exception):
    """The job uses the profiler itself."""


def attached(session, kind):
    """The session's job of a framework, made with the first of its modules."""
    for known in session.jobs:
        if isinstance(known, kind):
            return known
    made = kind(session)
    session.add(made)
    return made


def watch(owner, name, before=None, after=None):
    """Tells before() and after() of each call of owner.name, with its arguments. Returns what owner.name was."""
    method = getattr(owner, name)

    @functools.wraps(method)
    def called(*args, **kwargs):
        if before:
            before(*args, **kwargs)
        result = method(*args, **kwargs)
        if after:
            after(*args, **kwargs)
        return result

    setattr(owner, name, called)
    return method


def environment_number(*names, default):
    for name in names:
        if os.environ.get(name, "").isdigit():
            return int(os.environ[name])
    return default


def tensorflow_task():
    """(job, index, number among the tasks that train, how many of them) of TF_CONFIG; None where it is not there or
    names no task. A chief is the first of the workers."""
    try:
        config = json.loads(os.environ["TF_CONFIG"])
        cluster, task = config["cluster"], config["task"]
        return numbered_task(task["type"], int(task["index"]), {name: len(cluster.get(name, ())) for name in ("chief", "worker")})
    except (AttributeError, KeyError, TypeError, ValueError):
        return None


def numbered_task(name, index, n_tasks):
    """The same of a task of a cluster with so many tasks by their names."""
    n_chiefs, n_workers = n_tasks.get("chief", 0), n_tasks.get("worker", 0)
    number = index if name == "chief" else n_chiefs + index if name == "worker" else None
    return name, index, number, n_chiefs + n_workers


def n_local():
    """Processes of the job on this machine."""
    n = environment_number("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "HOROVOD_LOCAL_SIZE", default=None)
    task = tensorflow_task()
    if n is not None or task is None:
        return n or 1
    try:
        cluster = json.loads(os.environ["TF_CONFIG"])["cluster"]
        host = cluster[task[0]][task[1]].rpartition(":")[0]
        return sum(address.rpartition(":")[0] == host for addresses in cluster.values() for address in addresses)
    except (AttributeError, IndexError, KeyError, TypeError):
        return 1


def place():
    """(rank, world size, local rank) as the launcher said it, (0, 1, 0) where none did."""
    rank = environment_number("HOROVOD_RANK", "RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", default=None)
    world = environment_number("HOROVOD_SIZE", "WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", default=1)
    local_rank = environment_number("HOROVOD_LOCAL_RANK", "LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", default=0)
    if rank is None and os.environ.get("DMLC_ROLE") == "worker" and "BYTEPS_LOCAL_SIZE" in os.environ:  # as bpslaunch sets them
        local_rank, n_local = (environment_number("BYTEPS_LOCAL_" + name, default=n) for name, n in (("RANK", 0), ("SIZE", 1)))
        n_workers, worker = (environment_number("DMLC_" + name, default=n) for name, n in (("NUM_WORKER", 1), ("WORKER_ID", 0)))
        return worker * n_local + local_rank, n_workers * n_local, local_rank
    task = tensorflow_task()
    if rank is None and task is not None and task[2] is not None:
        return task[2], task[3], local_rank
    return rank or 0, world, local_rank


def plan_state(by_variables):
    """The plan's entry in rank.json, of a framework that takes it by variables (dpro profile --plan sets them), if it does;
    None where no plan was asked for."""
    path = os.environ.get("DPRO_PLAN")
    if not path:
        return None
    state = {"path": path, "applied": False, "reason": None, "expected": None}
    try:
        folder = path if os.path.isdir(path) else os.path.dirname(path)
        with open(os.path.join(folder, "plan.json"), encoding="utf-8") as file:
            plan = json.load(file)
        state["expected"] = plan.get("expected")
        for name in by_variables:
            with open(os.path.join(folder, name), encoding="utf-8") as file:
                for line in file:
                    variable, _, value = line.strip().partition("=")
                    if os.environ.get(variable) != value:
                        raise ValueError("%s is not %s in this process" % (variable, value))
        state["applied"] = True
    except (OSError, ValueError, AttributeError) as problem:
        state["reason"] = str(problem).split("\n")[0]
    return state


def _of_cpu(*names):
    """What Linux says of this machine's CPU behind one of these; None: nothing."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            return next((line.partition(":")[2].strip() for line in file if line.startswith(names)), None)
    except OSError:
        return None


def cpu_flags():
    """Those for arithmetic in vectors and matrices; None where they are not told."""
    flags = _of_cpu("flags", "Features")
    return None if flags is None else sorted(set(re.findall(r"\b(?:avx|amx|asimd|sve)\w*|\bbf16\b", flags)))


def device_name():
    return _of_cpu("model name", "Model")


def versions_of(*packages):
    """Of those that this process has loaded."""
    import importlib.metadata
    found = {}
    for package in packages:
        if package in sys.modules:
            try:
                found[package] = importlib.metadata.version(package)
            except importlib.metadata.PackageNotFoundError:
                pass
    return found


def process_memory():
    """Bytes of this process: (most so far, now)."""
    found = {}
    with open("/proc/self/status", encoding="ascii", errors="replace") as file:
        for line in file:
            field, _, value = line.partition(":")
            if field in ("VmHWM", "VmRSS"):
                found[field] = int(value.split()[0]) << 10
    return found.get("VmHWM"), found.get("VmRSS")


class Job:
    """One framework in this process. `framework` is its name in rank.json, `profiler` what its profiler is called,
    `windows` the windows that it has (windows.py)."""
    framework = profiler = None
    packages = ()
    windows = ("timing",)
    no_step = "no framework that dpro knows made a step"
    batch_size = None
    has_probes = False  # whether its modules can be measured

    def __init__(self, session):
        self.session = session

    @property
    def off(self):
        return self.session.off

    def fail(self, problem):
        self.session.fail(problem)

    def knows(self, model):
        """Whether a Recorder's model is one of this framework's."""
        return type(model).__module__.partition(".")[0] in self.packages

    def first_step(self):
        """Called at the first step, by the thread that trains."""

    def place(self):
        return place()

    def versions(self):
        return {}

    def find_models(self, sources):
        """The models behind the sources of steps, where no Recorder named them."""
        return []

    def plan(self):
        """What became of the plan that was asked for, as in rank.json; None when none was."""
        return None

    def bucket_bytes(self):
        """Of the gradients' buckets, in order; none where the framework does not tell."""
        return []

    def n_nodes(self):
        """A number that grows by one for each op whose gradient will be computed; None where nothing tells."""

    def settle(self):
        """Waits until all that the steps asked for is computed."""

    def describe(self, models, sources):
        """Fields of rank.json that the framework knows: see doc/formats/trace-directory.md."""
        raise NotImplementedError

    def wants_room(self, info):
        """Whether the heap is to be made larger (memory.py)."""
        return False

    def knows_sizes(self, info):
        """Whether rank.json tells what is communicated, so that a window may do without shapes of tensors."""
        return False

    def missing(self):
        """Which part of the profiler is not there, None when all is."""
        return None

    def prepare(self, name):
        """A Window; raises Busy."""
        raise NotImplementedError

    def cost(self):
        """What recording an op costs, None where it can't be told."""
        return None

    def probe(self, settings, folder, info, n_local, measures):
        """What measures its modules, or computes beside a rank that does (probe_result.Prober)."""
        return None

    def watch_peak(self, sources):
        """Begins to measure the most memory that a step holds (peak.py); None where that can't be done."""
        return None

    def mute_child(self):
        """In a forked child of a process that is being profiled."""

    def let_go(self):
        """Nothing more is recorded: what is kept of the job's is forgotten."""


def described(name, parallel, parameters, **more):
    """Fields of rank.json of a job on CPUs that trains one model, with these parameters."""
    peak, now = process_memory()
    models = [{"name": name, "parallel": parallel, "process_group": None, "parameters": parameters, "ddp": None, "buckets": None,
               "fsdp": None}]
    return {"device": "cpu", "device_name": device_name(), "backend": None, "process_groups": [], "models": models if parameters else [],
            "optimizers": [], "memory": {"rss_peak_bytes": peak, "rss_bytes": now,
                                         "parameter_bytes": sum(p["size_bytes"] for p in parameters)}, **more}


def described_parameter(name, shape, dtype, item_bytes):
    shape = list(shape)
    return {"name": name, "shape": shape, "dtype": dtype, "size_bytes": item_bytes * math.prod(shape), "requires_grad": True}


class Window:
    """One window of a framework's profiler: prepared a step ahead, started, cut into steps, stopped, written."""

    def __init__(self):
        self.n_steps = 0

    def start(self):
        raise NotImplementedError

    def begin_step(self, number):
        """Where the profiler can mark steps."""

    def end_step(self):
        self.n_steps += 1

    def settle(self):
        """After the last step: waits for what it only asked for, which is recorded still."""

    def stop(self):
        """Returns whether there is anything to write."""
        raise NotImplementedError

    def write(self, folder, unfinished):
        """Returns the names of the files written; `unfinished`: number of a step that was cut short, else None."""
        raise NotImplementedError

    def drop(self, folder):
        """What was stopped is not wanted."""
