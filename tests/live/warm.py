"""Processes that run a script and begin with torch loaded: to load it and its compiler takes a process 4 s, longer than what most
live cases train. A server loads them once and forks for each process that is wanted.

A launcher starts such a process by a command that stands in for it (stand_in): it has its standard files, ends as it does, and
ends it.

In the new process nothing is imported yet as far as Python and dpro can see: what was loaded comes out of a store, module by module,
when the script imports it, after sitecustomize. So dpro gets in as it does elsewhere. What has to be in a process from its start (a
library that is preloaded, settings that libraries read as they are loaded) needs a process of its own."""
import fcntl
import gc
import importlib
import importlib.machinery
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
import types

IDLE_S = 1200  # of a run that was killed nobody removes the folder
READ_AT_START = ("LD_", "MALLOC_", "OMP_", "TORCH", "KINETO_", "DPRO_NET")
READ_LATER = ("TORCHINDUCTOR_CACHE_DIR", "TORCHELASTIC_")  # each time that something is compiled, or when a process group is made


def read_at_start(environment):
    return {name: value for name, value in environment.items() if name.startswith(READ_AT_START) and not name.startswith(READ_LATER)}


class Process:
    """What subprocess.Popen() gives, of a process that the server forked."""

    def __init__(self, server, pid):
        self.server, self.pid, self.returncode = server, pid, None

    def poll(self):
        if self.returncode is None:
            self.server.hear(0)
        return self.returncode

    def wait(self, timeout=None):
        deadline = None if timeout is None else time.monotonic() + timeout
        while self.returncode is None:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise subprocess.TimeoutExpired("a warm process", timeout)
            self.server.hear(left)
        return self.returncode


class Server:
    """One of those that all suites of a run share: `path` is its socket. It is started by whoever needs it first, and ends when its
    socket's folder is gone."""

    def __init__(self, path, python, environment):
        self.fixed, self.processes, self.started = read_at_start(environment), {}, []
        self.command = [sys.executable, "-I", "-S", os.path.abspath(__file__), "stand-in", path, python, json.dumps(environment)]
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        folder = os.open(os.path.dirname(path), os.O_PATH)
        short = f"/proc/self/fd/{folder}/{os.path.basename(path)}"  # the path of a socket has 107 bytes at most
        with open(path + ".lock", "w", encoding="ascii") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not os.path.exists(path):
                with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
                    listening.bind(short)
                    listening.listen(64)
                    subprocess.Popen([python, os.path.abspath(__file__), str(listening.fileno()), path], env=environment,
                                     pass_fds=[listening.fileno()], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                     start_new_session=True).returncode = 0  # it is not waited for
        self.socket.connect(short)
        os.close(folder)

    def fits(self, environment):
        return self.fixed == read_at_start(environment)

    def start(self, script, arguments, environment, folder, out, err):
        wanted = json.dumps({"script": script, "arguments": arguments, "environment": environment, "folder": folder})
        socket.send_fds(self.socket, [wanted.encode()], [out.fileno(), err.fileno()])
        while not self.started:
            self.hear(None)
        return self.started.pop()

    def hear(self, timeout):
        """Takes what the server says next, within `timeout` seconds."""
        if select.select([self.socket], [], [], timeout)[0]:
            said = json.loads(self.socket.recv(4096))
            if "status" in said:
                self.processes.pop(said["pid"]).returncode = said["status"]
            else:
                self.processes[said["pid"]] = Process(self, said["pid"])
                self.started.append(self.processes[said["pid"]])


def stand_in(path, python, environment, script, *arguments):
    """Runs the script in a warm process, as if it was this one."""
    server, own = Server(path, python, json.loads(environment)), dict(os.environ)
    if "LD_PRELOAD" in server.fixed:
        own.setdefault("LD_PRELOAD", server.fixed["LD_PRELOAD"])
    if not server.fits(own):
        os.execv(python, [python, script, *arguments])
    status = server.start(script, arguments, own, os.getcwd(), sys.stdout, sys.stderr).wait()
    if status < 0:
        os.kill(os.getpid(), -status)
    sys.exit(status)


class Store:
    """A finder of the modules that were loaded before the fork."""

    def __init__(self, groups):
        self.groups = groups  # a module: all that came with it, in the order in which they came
        self.modules = {name: sys.modules.pop(name) for names in groups.values() for name in names}

    def find_spec(self, name, path=None, target=None):
        if name not in self.modules:
            return None
        return importlib.machinery.ModuleSpec(name, Kept(self, self.modules[name]), is_package=hasattr(self.modules[name], "__path__"))


class Kept:
    """Loads one module from the store."""

    def __init__(self, store, module):
        self.store, self.module, self.spec = store, module, module.__spec__

    def create_module(self, spec):
        return self.module

    def exec_module(self, module):
        vars(module)["__spec__"] = self.spec  # some modules take no attributes
        for name in self.store.groups.pop(module.__name__, ()):
            parent, _, child = name.rpartition(".")
            place = vars(self.store.modules.get(parent) or sys.modules[parent]) if parent else {}
            before = place.get(child)
            importlib.import_module(name)
            if before is not None:  # which may be a function of the same name
                place[child] = before


def load():
    """Loads torch, then its compiler; gives what came with each."""
    groups, seen = {}, set(sys.modules)
    for name in ("torch", "torch._dynamo"):
        importlib.import_module(name)
        if name != "torch":
            importlib.import_module("torch._inductor")  # a profiler asks for it
        groups[name] = [other for other, module in sys.modules.items() if other not in seen and other.partition(".")[0] == "torch"
                        and isinstance(getattr(module, "__loader__", None), importlib.machinery.SourceFileLoader)]
        seen.update(sys.modules)
    gc.freeze()  # or each fork copies the memory of what it looks through
    return groups


def become(wanted, fds, groups):
    """Makes this process, a fork, what a new interpreter would be; gives the script's code."""
    os.setsid()
    for fd, place in zip(fds, (1, 2)):
        os.dup2(fd, place)
    os.closerange(3, max(map(int, os.listdir("/proc/self/fd"))) + 1)
    os.environ.clear()
    os.environ.update(wanted["environment"])
    os.chdir(wanted["folder"])
    folders = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    sys.path[:] = folders + sys.path[1:]
    sys.argv[:] = sys.orig_argv[1:] = [wanted["script"], *wanted["arguments"]]
    sys.meta_path.insert(0, Store(groups))
    sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize  # noqa: F401
    except ImportError:
        pass
    sys.path.insert(0, os.path.dirname(wanted["script"]))
    sys.modules["__main__"] = main = types.ModuleType("__main__")
    main.__file__, main.__builtins__ = wanted["script"], __builtins__
    with open(wanted["script"], encoding="utf-8") as file:
        return compile(file.read(), wanted["script"], "exec"), main.__dict__


def serve(listening, path):
    """Forks for each request and tells how the processes ended; returns in the forks alone, with the script's code."""
    groups, clients, whose = load(), [], {}
    woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake)
    used = time.monotonic()
    while os.path.exists(path) and time.monotonic() - used < IDLE_S:
        ready = select.select([listening, woken, *clients], [], [], 5)[0]
        used = time.monotonic() if ready or whose else used
        if woken in ready:
            os.read(woken, 4096)
            for pid, status in ended():
                tell(whose.pop(pid), {"pid": pid, "status": os.waitstatus_to_exitcode(status)})
        if listening in ready:
            clients.append(listening.accept()[0])
        for client in set(ready) & set(clients):
            text, fds, _, _ = socket.recv_fds(client, 1 << 20, 2)
            if not text:
                clients.remove(client)
                client.close()
                for pid in [pid for pid, asked in whose.items() if asked is client]:
                    os.kill(pid, signal.SIGKILL)
                continue
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                return become(json.loads(text), fds, groups)
            for fd in fds:
                os.close(fd)
            whose[pid] = client
            tell(client, {"pid": pid})
    os._exit(0)


def tell(client, said):
    try:
        client.send(json.dumps(said).encode())
    except OSError:  # its suite has ended
        pass


def ended():
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        yield pid, status


if __name__ == "__main__":
    if sys.argv[1] == "stand-in":
        stand_in(*sys.argv[2:])
    code, names = serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[2])
    try:
        exec(code, names)
    except Exception as problem:  # told as a script's, without what called it
        sys.last_type, sys.last_value, sys.last_traceback = type(problem), problem, problem.__traceback__.tb_next
        sys.excepthook(sys.last_type, sys.last_value, sys.last_traceback)
        sys.exit(1)
