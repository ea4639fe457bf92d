"""Getting into a process without touching its script: waits until a framework is imported, then hooks what ends a
training step there (torch_job.py, tensorflow_job.py, mxnet_job.py).

`start()` is called at the interpreter's start, by site/sitecustomize.py (PYTHONPATH) or by dpro.pth (an installed
package). It is the same in every Python process of the job; those that train no model never do more than this."""
import functools
import os
import sys
import threading

from . import settings

OPTIMIZERS = "torch.optim.optimizer"
# What is imported -> the module and function of ours that is told, with the session and what was imported.
HOOKS = {
    OPTIMIZERS: ("torch_job", "attach"),
    "tensorflow.python.eager.polymorphic_function.polymorphic_function": ("tensorflow_job", "attach_functions"),
    "tensorflow.python.eager.backprop": ("tensorflow_job", "attach_tape"),
    "tensorflow.python.client.session": ("tensorflow_job", "attach_sessions"),
    "tensorflow.python.training.server_lib": ("tensorflow_job", "attach_servers"),
    "tensorflow.python.profiler.profiler_v2": ("tensorflow_job", "attach_profiler"),
    "keras.src.optimizers.base_optimizer": ("tensorflow_job", "attach_keras"),
    "mxnet.gluon.trainer": ("mxnet_job", "attach_trainer"),
    "mxnet.module.module": ("mxnet_job", "attach_module"),
    "mxnet.kvstore.base": ("mxnet_job", "attach_stores"),
    "mxnet.profiler": ("mxnet_job", "attach_profiler"),
    "byteps.common": ("byteps_job", "attach"),
    "horovod.tensorflow.mpi_ops": ("horovod_timeline", "attach"),
    "horovod.mxnet.mpi_ops": ("horovod_timeline", "attach"),
    "horovod.torch.mpi_ops": ("horovod_timeline", "attach"),
}
DDP = "torch.nn.parallel.distributed"
# What carries gradients, once it is imported -> the module and function of ours that gives it a plan.
CARRIERS = {
    DDP: ("ddp_plan", "attach"),
    "horovod.tensorflow": ("horovod_plan", "attach_tensorflow"),
    "horovod.mxnet": ("horovod_plan", "attach_mxnet"),
    "horovod.torch": ("horovod_plan", "attach_torch"),
    "tensorflow.python.distribute.cross_device_utils": ("tensorflow_plan", "attach"),
    "tensorflow.python.training.device_setter": ("session_plan", "attach"),
}
COMPILER = "torch._dynamo"
MODULES = "torch.nn.modules.module"
PRELOADED = "DPRO_PRELOADED"  # pid of the process that was executed again: it is not done twice

_session = None
_started = False


def start():
    global _started
    if _started or not (settings.wanted() or os.environ.get("DPRO_PLAN") or os.environ.get("DPRO_XLA")):
        return
    _started = True
    for name in ("DPRO_OUT", "DPRO_PLAN", "DPRO_VERIFY", "DPRO_TUNE"):
        if os.environ.get(name):
            os.environ[name] = os.path.abspath(os.environ[name])  # children may start elsewhere
    if os.environ.get("DPRO_PLAN"):
        for name, ours in CARRIERS.items():
            _when_loaded(name, functools.partial(_carrier_loaded, *ours))
    elif settings.turn() is not None or settings.tuning():  # its buckets are told, or are to be others
        _when_loaded(DDP, functools.partial(_carrier_loaded, *CARRIERS[DDP]))
    if settings.turn() is not None and os.environ.get("DPRO_LOADER_WORKERS", "").isdigit():
        from . import loader_workers
        _when_loaded(loader_workers.MODULE, functools.partial(loader_workers.attach, int(os.environ[loader_workers.VARIABLE])))
    if os.environ.get("DPRO_PLAN") or os.environ.get("DPRO_XLA"):
        from . import tensorflow_fusion
        if tensorflow_fusion.begin():
            _when_loaded("tensorflow.python.framework.func_graph", tensorflow_fusion.attach)
    if settings.wanted():
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # or torch's profiler tells of every start and stop on stderr
    if settings.recording():
        os.environ.setdefault("HOROVOD_TIMELINE", "DYNAMIC")  # or Horovod refuses to start one later
        _preload()
    if settings.wanted():
        _watch_frameworks((OPTIMIZERS,) if settings.verifying() else HOOKS)
    if os.environ.get("DPRO_PLAN"):
        _when_loaded(OPTIMIZERS, _optimizers_loaded)
        if not settings.verifying():
            _when_loaded(MODULES, _modules_loaded)


def _watch_frameworks(names):
    for name in names:
        _when_loaded(name, functools.partial(_attach, *HOOKS[name]))


def _carrier_loaded(ours, function, module):
    import importlib
    getattr(importlib.import_module("dpro." + ours), function)(module)


def _optimizers_loaded(module):
    from . import ddp_plan
    _when_loaded(COMPILER, ddp_plan.FirstStep(module).keep_out_of)


def _modules_loaded(_):
    """Torch itself is still being imported."""
    from . import applied
    plan = applied.read(os.environ["DPRO_PLAN"])[0]
    if plan is not None and plan.of_modules:
        from . import module_plan
        module_plan.attach(plan)


def with_recorder(model, out, warmup, iterations):
    """The session of a Recorder, None when nothing is to be recorded."""
    global _session
    if not settings.wanted() and out is None:
        return None
    if _session is None:
        _make_session(settings.Settings(out, warmup, iterations))
        if not _started:
            _watch_frameworks(HOOKS)
    elif out is not None or warmup is not None or iterations is not None:
        _session.configure(settings.Settings(out, warmup, iterations))
    _session.use_model(model)
    return _session


def _make_session(wanted):
    global _session
    import atexit
    if settings.verifying():
        from .verify import Verification as Session
    elif settings.turn() is not None:
        from .verify_turn import Turn as Session
    elif settings.tuning():
        from .tune import Tuning as Session
    else:
        from .session import Session
    _session = Session(wanted)
    os.register_at_fork(after_in_child=_session.after_fork)
    atexit.register(_at_exit)


def _attach(ours, function, module):
    """A module of a framework is there: from now on its steps are seen."""
    import importlib
    if _session is None:
        _make_session(settings.Settings())
    getattr(importlib.import_module("dpro." + ours), function)(_session, module)


def when_compiled(then):
    """then(module) when torch's compiler is loaded."""
    _when_loaded(COMPILER, then)


def _at_exit():
    _session.at_exit()
    _session.finish_files()


def _when_loaded(name, then):
    if name in sys.modules:
        _tell(then, name, sys.modules[name])
        return
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
    _finder.then.setdefault(name, []).append(then)


def _tell(then, name, module):
    try:
        then(module)
    except Exception as problem:
        _failed(name, "%s: %s" % (type(problem).__name__, problem))


def _failed(name, why):
    from .report import say
    say(name, "could not attach to %s (%s); nothing is recorded without dpro.Recorder" % (name, why))


class _Finder:
    """Finds nothing; sees modules go by and has their loaders call what waits for them when they are complete."""

    def __init__(self):
        self.then = {}
        self._inside = threading.local()

    def find_spec(self, name, path=None, target=None):
        if name not in self.then or getattr(self._inside, "now", False):
            return None
        self._inside.now = True
        try:
            for finder in list(sys.meta_path):
                find = getattr(finder, "find_spec", None)
                spec = find(name, path, target) if find and finder is not self else None
                if spec is not None:
                    self._watch(name, spec.loader)
                    return spec
            return None
        finally:
            self._inside.now = False

    def _watch(self, name, loader):
        execute = getattr(loader, "exec_module", None)

        def exec_module(module):
            del loader.exec_module  # the class's own again
            execute(module)
            for then in self.then.pop(name, ()):
                _tell(then, name, module)
            if not self.then and self in sys.meta_path:
                sys.meta_path.remove(self)

        try:
            loader.exec_module = exec_module
        except AttributeError:
            _failed(name, "it is loaded by a %s" % type(loader).__name__)


_finder = _Finder()


def _preload():
    """The tracer has to be in the process from its start: executes the interpreter again with LD_PRELOAD, at most once
    and only where nothing has begun yet. NCCL's plugin is looked for by NCCL later."""
    net = os.environ.get("DPRO_NET") or "window"
    plugin = settings.library("libnccl-profiler-dpro.so")
    if plugin and net != "off" and os.environ.get("DPRO_NCCL") != "off":
        os.environ.setdefault("NCCL_PROFILER_PLUGIN", plugin)
    tracer = settings.library("libdpro_tracer.so")
    preload = os.environ.get("LD_PRELOAD", "")
    if net == "off" or not tracer or "libdpro_tracer" in preload or os.environ.get(PRELOADED) == str(os.getpid()):
        return
    try:
        if len(os.listdir("/proc/self/task")) > 1 or not os.path.samefile("/proc/self/exe", sys.executable):
            return  # threads, or an interpreter inside another program
        arguments = getattr(sys, "orig_argv", None)
        if not arguments:
            with open("/proc/self/cmdline", "rb") as file:
                arguments = [os.fsdecode(part) for part in file.read().split(b"\0")[:-1]]
        environment = dict(os.environ, LD_PRELOAD=tracer + (":" + preload if preload else ""))
        environment[PRELOADED] = str(os.getpid())
        os.execve(sys.executable, arguments, environment)
    except OSError:
        return
