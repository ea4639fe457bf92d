"""Getting into a process without touching its script: waits until torch's optimizers are imported, then registers
torch's own hook that every optimizer calls after its step.

`start()` is called at the interpreter's start, by site/sitecustomize.py (PYTHONPATH) or by dpro.pth (an installed
package). It is the same in every Python process of the job; those that train no model never do more than this."""
import os
import sys
import threading

from . import settings

OPTIMIZERS = "torch.optim.optimizer"
DDP = "torch.nn.parallel.distributed"
COMPILER = "torch._dynamo"
PRELOADED = "DPRO_PRELOADED"  # pid of the process that was executed again: it is not done twice

_session = None
_started = False


def start():
    global _started
    if _started or not (settings.wanted() or os.environ.get("DPRO_PLAN")):
        return
    _started = True
    for name in ("DPRO_OUT", "DPRO_PLAN", "DPRO_VERIFY"):
        if os.environ.get(name):
            os.environ[name] = os.path.abspath(os.environ[name])  # children may start elsewhere
    if os.environ.get("DPRO_PLAN"):
        _when_loaded(DDP, _ddp_loaded)
    if settings.wanted() and not settings.verifying():
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # or torch's profiler tells of every start and stop on stderr
        _preload()
    _when_loaded(OPTIMIZERS, _optimizers_loaded)


def _ddp_loaded(module):
    from . import planned
    planned.attach(module)


def _optimizers_loaded(module):
    if settings.wanted():
        _attach(module)
    if os.environ.get("DPRO_PLAN"):
        from . import planned
        _when_loaded(COMPILER, planned.FirstStep(module).keep_out_of)


def with_recorder(model, out, warmup, iterations):
    """The session of a Recorder, None when nothing is to be recorded."""
    global _session
    if not settings.wanted() and out is None:
        return None
    import torch.optim.optimizer as optimizers
    if _session is None:
        _attach(optimizers, settings.Settings(out, warmup, iterations))
    elif out is not None or warmup is not None or iterations is not None:
        _session.configure(settings.Settings(out, warmup, iterations))
    _session.use_model(model)
    return _session


def _attach(optimizers, wanted=None):
    """torch.optim is there: from now on its steps are seen."""
    global _session
    import atexit
    if settings.verifying():
        from .verify import Verification as Session
    else:
        from .session import Session
    if _session is not None:
        return
    _session = Session(wanted or settings.Settings())
    _session.attach(optimizers)
    _when_loaded(COMPILER, _session.keep_out_of)
    os.register_at_fork(after_in_child=_session.after_fork)
    atexit.register(_at_exit)


def _at_exit():
    _session.at_exit()
    _session.finish_files()


def _when_loaded(name, then):
    if name in sys.modules:
        then(sys.modules[name])
        return
    for finder in sys.meta_path:
        if isinstance(finder, _Finder) and finder.name == name:
            finder.then.append(then)  # two of them would undo each other
            return
    sys.meta_path.insert(0, _Finder(name, then))


class _Finder:
    """Finds nothing; sees one module go by and has its loader call each of `then` when the module is complete."""

    def __init__(self, name, then):
        self.name, self.then = name, [then]
        self._inside = threading.local()

    def find_spec(self, name, path=None, target=None):
        if name != self.name or getattr(self._inside, "now", False):
            return None
        self._inside.now = True
        try:
            for finder in list(sys.meta_path):
                find = getattr(finder, "find_spec", None)
                spec = find(name, path, target) if find and finder is not self else None
                if spec is not None:
                    self._watch(spec.loader)
                    return spec
            return None
        finally:
            self._inside.now = False

    def _watch(self, loader):
        execute = getattr(loader, "exec_module", None)

        def exec_module(module):
            del loader.exec_module  # the class's own again
            execute(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
            for then in self.then:
                try:
                    then(module)
                except Exception as problem:
                    self._failed("%s: %s" % (type(problem).__name__, problem))

        try:
            loader.exec_module = exec_module
        except AttributeError:
            self._failed("it is loaded by a %s" % type(loader).__name__)

    def _failed(self, why):
        from .report import say
        say(self.name, "could not attach to %s (%s); nothing is recorded without dpro.Recorder" % (self.name, why))


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
