"""What is to be recorded, from the environment (doc/profile.md lists the variables) or a Recorder's arguments, and where
the native libraries lie."""
import glob
import os

from .report import say

WAYS = ("compile", "bf16", "batch", "recompute")

def wanted():
    """Whether steps are to be seen in this job."""
    return recording() or verifying() or turn() is not None


def recording():
    return os.environ.get("DPRO") == "1" and not verifying() and turn() is None


def tuning():
    """Whether it is then searched for a plan, which is measured and kept (tune.py)."""
    return recording() and bool(os.environ.get("DPRO_TUNE"))


def verifying():
    """Whether they are only timed, with a plan's buckets and without by turns (verify.py)."""
    return bool(os.environ.get("DPRO_VERIFY") and os.environ.get("DPRO_PLAN")) and turn() is None


def turn():
    """Where this whole run is one turn (verify_turn.py): what it trains with; else None."""
    return os.environ.get("DPRO_VERIFY_TURN") if os.environ.get("DPRO_VERIFY") else None


def cap_mb():
    """DDP's bucket size that this turn is of, in MB; None: it is of something else."""
    what, _, size = (turn() or "").partition("=")
    return float(size) if what == "cap" else None


def number(name, default, least):
    text = os.environ.get(name, "")
    try:
        value = int(text) if text else default
    except ValueError:
        value = least - 1
    if value < least:
        say(name, "%s=%s: a whole number of at least %d is needed; %d is used" % (name, text, least, default))
        return default
    return value


def ways():
    """What of the job's modules is to be measured after the windows (probe.py)."""
    asked = {way for way in os.environ.get("DPRO_PROBE", "").split(",") if way}
    for way in sorted(asked - set(WAYS)):
        say("DPRO_PROBE", "DPRO_PROBE: %s can't be measured; what can: %s" % (way, ", ".join(WAYS)))
    return asked & set(WAYS)


class Settings:
    def __init__(self, out=None, warmup=None, iterations=None):
        self.out = os.path.abspath(out or os.environ.get("DPRO_OUT") or "dpro_trace")
        self.warmup = number("DPRO_WARMUP", 10, 0) if warmup is None else warmup
        self.iterations = number("DPRO_ITERATIONS", 10, 1) if iterations is None else iterations
        self.net = os.environ.get("DPRO_NET") or "window"
        self.probe = ways()
        self.probe_limit_s = number("DPRO_PROBE_LIMIT", 60, 1)
        self.summary = os.environ.get("DPRO_SUMMARY") != "off"


def library(name):
    """The path of one of our native libraries, None when it isn't there: next to the package in a wheel, in the build
    folder of a checkout, in lib/dpro beside share/dpro where it was installed."""
    package = os.path.dirname(os.path.abspath(__file__))
    above = os.path.dirname(os.path.dirname(package))
    installed = os.path.join(os.path.dirname(os.path.dirname(above)), "lib")
    for folder in (os.path.join(package, "lib"), os.path.join(above, "build", "tracer"), os.path.join(above, "build", "src"),
                   os.path.join(installed, "dpro"), installed, *glob.glob(os.path.join(installed, "*-linux-gnu"))):
        path = os.path.join(folder, name)
        if os.path.isfile(path):
            return path
    return None
