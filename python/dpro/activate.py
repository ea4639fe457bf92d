"""Getting into a process without touching its script: waits until torch's optimizers are imported, then registers
torch's own hook that every optimizer calls after its step.

`start()` is called at the interpreter's start, by site/sitecustomize.py (PYTHONPATH) or by dpro.pth (an installed
package). It is the same in every Python process of the job; those that train no model never do more than this."""
import os
import sys
import threading

from . import settings

OPTIMIZERS = "torch.optim.optimizer"
PRELOADED = "DPRO_PRELOADED"  # pid of the process that was executed again: it is not done twice

_session = None
_started = False


def start():
    global _started
    if _started or not settings.wanted():
        return
    _started = True
    if os.environ.get("DPRO_OUT") and not os.path.isabs(os.environ["DPRO_OUT"]):
        os.environ["DPRO_OUT"] = os.path.abspath(os.environ["DPRO_OUT"])  # children may start elsewhere
    _preload()
    if OPTIMIZERS in sys.modules:
        _attach(sys.modules[OPTIMIZERS])
    else:
        sys.meta_path.insert(0, _Finder())


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
    from .report import say
    from .session import Session
    if _session is not None:
        return
    _session = session = Session(wanted or settings.Settings())
    register = getattr(optimizers, "register_optimizer_step_post_hook", None)
    if register is None:
        say("hooks", "this torch has no hooks around an optimizer's step (2.0 or later has): steps are only found with "
                     "dpro.Recorder")
    else:
        register(session.optimizer_stepped)
    os.register_at_fork(after_in_child=session.after_fork)
    atexit.register(_at_exit)


def _at_exit():
    _session.at_exit()
    _session.finish_files()


class _Finder:
    """Finds nothing; sees torch.optim.optimizer go by and has its loader tell when the module is complete."""

    def __init__(self):
        self._inside = threading.local()

    def find_spec(self, name, path=None, target=None):
        if name != OPTIMIZERS or getattr(self._inside, "now", False):
            return None
        self._inside.now = True
        try:
            for finder in list(sys.meta_path):
                find = getattr(finder, "find_spec", None)
                spec = find(name, path, target) if find and finder is not self else None
                if spec is not None:
                    _tell_when_loaded(spec.loader, self)
                    return spec
            return None
        finally:
            self._inside.now = False


def _tell_when_loaded(loader, finder):
    execute = getattr(loader, "exec_module", None)
    if execute is None:
        return

    def exec_module(module):
        try:
            del loader.exec_module  # the class's own again
        except AttributeError:
            pass
        execute(module)
        if finder in sys.meta_path:
            sys.meta_path.remove(finder)
        try:
            _attach(module)
        except Exception as problem:
            from .report import say
            say("attach", "could not attach to torch.optim (%s: %s); nothing is recorded"
                % (type(problem).__name__, problem))

    try:
        loader.exec_module = exec_module
    except AttributeError:  # a loader without room: steps are then found with dpro.Recorder only
        from .report import say
        say("attach", "torch.optim is loaded in an unknown way; nothing is recorded without dpro.Recorder")


def _preload():
    """The tracer has to be in the process from its start: executes the interpreter again with LD_PRELOAD, at most once
    and only where nothing has begun yet. NCCL's plugin is looked for by NCCL later."""
    net = os.environ.get("DPRO_NET") or "window"
    plugin = settings.library("libnccl-profiler-dpro.so")
    if plugin and net != "off":
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
