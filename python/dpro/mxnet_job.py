"""MXNet in the recorder: a step ends where Gluon's Trainer or a Module has asked for its updates (MXNet's engine makes
them later); windows hold mx.profiler's events of the worker, and of the servers of its key-value store, which rank 0 asks
for them."""
import functools
import gc
import gzip
import os
import sys

from . import applied, horovod_plan, job, non_training
from .report import guarded, say

PROFILE = "mxnet.json"
SERVER_PROFILE = "dpro-%d/" + PROFILE  # a server writes rank<k>_<this> in its own working folder; of rank 0's process
# At its end MXNet removes the file that it knows and writes it once more, devices not excepted: this one can't be.
NOWHERE = os.path.join(os.devnull, "profile.json")


def attach_trainer(session, module):
    """To mxnet.gluon.trainer."""
    for name in ("step", "update"):
        job.watch(module.Trainer, name, after=job.attached(session, MXNetJob).stepped)


def attach_module(session, module):
    """To mxnet.module.module."""
    job.watch(module.Module, "update", after=job.attached(session, MXNetJob).stepped)


def attach_profiler(session, module):
    """To mxnet.profiler: the job's own use wins."""
    ours = job.attached(session, MXNetJob)
    ours.set_state = job.watch(module, "set_state", before=ours.job_sets)
    ours.set_config = job.watch(module, "set_config", before=ours.job_configures)


def attach_stores(session, module):
    """To mxnet.kvstore.base: a server or scheduler makes a store while mxnet is imported, and serves until the job ends."""
    role, create = os.environ.get("DMLC_ROLE"), module.create
    if role and "PORT" in os.environ:
        say("port", "PORT=%s is in the environment, and MXNet's parameter servers bind every process to it: if the job aborts, "
            "start it with 'env -u PORT'" % os.environ["PORT"])
    if role not in ("server", "scheduler"):
        return

    @functools.wraps(create)
    def created(name="local"):
        store = create(name)
        # its rank is there when workers have talked to it
        if role == "scheduler":
            session.serve(role)
        else:
            session.serve(lambda: "server%d" % store.rank, Server())
        return store

    module.create = created


class Server(non_training.Server):
    """Where MXNet puts a server's profile: by a link in the server's working folder, the only place that it knows."""

    def __init__(self):
        self._cwd = os.getcwd()
        self._link = self._profile = None

    def begin(self, folder, rank):
        self._profile = os.path.join(folder, PROFILE)
        name = "rank%s_%s" % (os.path.basename(folder)[len("server"):], os.path.dirname(SERVER_PROFILE % rank["pid"]))
        link = os.path.join(self._cwd, name)
        os.symlink(folder, link)
        self._link = link

    def end(self):
        os.unlink(self._link)
        _close_events(self._profile)
        with open(self._profile, "rb") as file, gzip.open(self._profile + ".gz.part", "wb", 3) as target:
            target.write(file.read())
        os.replace(self._profile + ".gz.part", self._profile + ".gz")
        os.unlink(self._profile)


def _close_events(path):
    """MXNet has one list of events for all that a process ever dumps, and leaves it open until it is told, or the process
    ends; told once, it does not let the job profile itself any more."""
    with open(path, "r+b") as file:
        file.seek(0, os.SEEK_END)
        file.seek(max(file.tell() - 16, 0))
        end = file.read()
        if end.rstrip().endswith(b","):
            file.seek(len(end.rstrip()) - 1 - len(end), os.SEEK_CUR)
            file.truncate()
        if not end.rstrip().endswith(b"]}"):
            file.write(b"]}")


class MXNetJob(job.Job):
    framework, profiler = "mxnet", "mx.profiler"
    packages = ("mxnet",)
    no_step = "no Trainer and no Module of MXNet made an update"

    def __init__(self, session):
        super().__init__(session)
        self.set_state = self.set_config = None  # mx.profiler's own
        self.has_dumped = False                  # into the process's one list of events
        self._job_profiles = False
        self._job_file = "profile.json"          # MXNet's default

    @guarded
    def stepped(self, source, batch_size=None, *_, **__):
        if isinstance(batch_size, int):
            self.batch_size = batch_size
        self.session.stepped(self, source)

    def job_configures(self, **options):
        if options.get("profile_process", "worker") == "worker":
            self._job_file = options.get("filename", self._job_file)
            self.session.job_profiles()

    def job_sets(self, state="stop", profile_process="worker"):
        if profile_process != "worker":
            return
        self._job_profiles = state == "run"
        if self._job_profiles:
            self.session.job_profiles()
            if self.has_dumped:
                self._begin_events()

    def _begin_events(self):
        """What MXNet dumps now goes on where our window ended: it needs a beginning."""
        self.has_dumped = False
        try:
            with open(self._job_file, "w", encoding="ascii") as file:
                file.write('{"traceEvents":[{"ph":"M","name":"process_name","pid":0,"args":{"name":"cpu/0"}}')
        except (OSError, TypeError):
            pass  # MXNet will say so

    @staticmethod
    def _store(sources):
        """The distributed key-value store through which gradients go, None where there is none."""
        for source in sources:
            store = getattr(source, "_kvstore", None)
            if store is not None and "dist" in getattr(store, "type", ""):
                return store
        return None

    def place(self):
        store = self._store(self.session.sources)
        rank, world, local_rank = job.place()
        return (store.rank, store.num_workers, 0) if store is not None else (rank, world, local_rank)

    def versions(self):
        import platform
        return {"mxnet": sys.modules["mxnet"].__version__, "python": platform.python_version(), **job.versions_of("horovod")}

    # What is trained

    @staticmethod
    def _graph(sources):
        """Files that say what runs: of a Module's executor, forward and backward; else of the largest hybridized block."""
        for source in sources:
            group = getattr(source, "_exec_group", None)
            if group is not None:
                return {"symbol.json": source.symbol.tojson(), "exec_debug_str.txt": group.execs[0].debug_str()}
        block_class = sys.modules["mxnet.gluon.block"].HybridBlock
        graphs = [thing._cached_graph[1] for thing in gc.get_objects() if issubclass(type(thing), block_class)
                  and getattr(thing, "_active", False) and getattr(thing, "_cached_graph", None)]
        if not graphs:
            return {}
        largest = max(graphs, key=lambda symbol: len(symbol.list_arguments()))
        return {"symbol.json": largest.tojson(), "debug_str.txt": largest.debug_str()}

    @staticmethod
    def _parameters(sources):
        """(name, array) in the order of their keys."""
        for source in sources:
            group = getattr(source, "_exec_group", None)
            if group is not None:
                return [(name, arrays[0]) for name, arrays in zip(group.param_names, group.param_arrays)], source
            parameters = getattr(source, "_params", None)
            if parameters is not None:
                return [(p.name, p.list_data()[0]) for p in parameters if p.grad_req != "null"], source
        return [], None

    def plan(self):
        return applied.state(horovod_plan.NO_JOB) if "horovod.mxnet" in sys.modules else job.plan_state(("mxnet.env",))

    def settle(self):
        sys.modules["mxnet"].nd.waitall()

    def describe(self, models, sources):
        parameters, source = [], None
        try:
            arrays, source = self._parameters(sources)
            for name, array in arrays:
                dtype = sys.modules["numpy"].dtype(array.dtype)
                parameters.append(job.described_parameter(name, array.shape, dtype.name, dtype.itemsize))
            if self.batch_size is None and getattr(source, "binded", False):
                self.batch_size = int(source.data_shapes[0].shape[0])
        except Exception as problem:
            say("model", "the model can't be described: %s: %s" % (type(problem).__name__, problem))
        store, world = self._store(sources), self.place()[1]
        optimizer = getattr(source, "_optimizer", None)
        return job.described(
            type(models[0] if models else source).__name__, "data" if world > 1 else "none", parameters,
            backend=store.type if store is not None else None, plan=self.plan(),
            horovod=horovod_plan.settings() if "horovod.mxnet" in sys.modules else None,
            optimizers=[{"class": type(optimizer).__name__, "n_parameters": len(parameters)}] if optimizer else [])

    # Windows

    def prepare(self, name):
        if self._job_profiles:
            raise job.Busy
        sources = self.session.sources
        store, folder, graph = self._store(sources), self.session.folder, {}
        try:
            graph = self._graph(sources)
        except Exception as problem:
            say("graph", "the graph can't be read: %s: %s" % (type(problem).__name__, problem), folder.rank)
        if not graph:
            say("graph", "the graph that runs is not recorded: no Module and no hybridized block trains (hybridize() makes "
                         "one)", folder.rank)
        return Window(self, folder, store if folder.rank == 0 else None, graph)


class Window(job.Window):
    """`store`: whose servers are asked for profiles, or None."""

    def __init__(self, ours, folder, store, graph):
        super().__init__()
        self._profiler = sys.modules["mxnet.profiler"]
        self._ours, self._store, self._graph = ours, store, graph
        self._running = False
        self._path = folder.temporary(PROFILE)
        ours.set_config(profile_all=True, aggregate_stats=False, filename=self._path)
        if store is not None:
            self._profiler.set_kvstore_handle(store.handle)
            ours.set_config(profile_process="server", profile_all=True, aggregate_stats=False, filename=SERVER_PROFILE % os.getpid())

    def start(self):
        if self._store is not None:
            self._ours.set_state("run", "server")
        self._ours.set_state("run")
        self._running = True

    def settle(self):
        if self._running:
            self._ours.settle()

    def stop(self):
        if not self._running:
            return False
        self._running = False
        self._ours.set_state("stop")
        self._profiler.dump(False)
        self._ours.has_dumped = True
        if self._store is not None:
            self._ours.set_state("stop", "server")
            self._profiler.dump(False, "server")
            self._store = None
        self._ours.set_config(filename=NOWHERE)
        return True

    def write(self, folder, unfinished):
        _close_events(self._path)
        folder.finish(PROFILE)
        for name, text in self._graph.items():
            folder.write(name, text.encode())
        return [PROFILE, *self._graph]

    def drop(self, folder):
        folder.drop(PROFILE)
