"""A process of its own, in which what could crash runs apart from the job. It ends with the job."""
import ctypes
import os
import signal
import subprocess
import sys

CHILD = "import sys; sys.path[:] = %r; from dpro import %s as it, own_process; own_process.begin(); it.main(%r)"
PACKAGES = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
ENVIRONMENT = ("DPRO", "LD_PRELOAD", "NCCL_PROFILER", "OMPI_", "PMI", "SLURM_", "TF_CONFIG")  # how what it is not given begins
DEATH_SIGNAL = 1  # of prctl


def start(module, argument, environment=(), **more):
    """Calls main(argument) of this module of ours there. `more`: of Popen."""
    given = {name: value for name, value in os.environ.items() if not name.startswith(ENVIRONMENT)}
    return subprocess.Popen([sys.executable, "-I", "-c", CHILD % ([*sys.path, PACKAGES], module, argument)],
                            env={**given, **dict(environment)}, **more)


def main(command):
    """Another program in this one's place."""
    os.execv(command[0], command)


def begin():
    ctypes.CDLL(None).prctl(DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
    with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write("1000")  # where memory runs out, the kernel ends this one, not the job
