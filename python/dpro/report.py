"""What dpro says in a job: each thing once, one line on stderr; kept for rank.json as well."""
import functools
import io
import os
import select
import signal
import sys
import traceback

WAIT_MS = 1000
MOST_TEXT = 300

warnings = []
_said = set()


class Told(Exception):
    """Its text says all."""


def say(key, text, rank=0):
    """Says `text` unless something with this key was said before. What is alike on all ranks comes with the rank, and rank 0 says it."""
    if key in _said:
        return
    _said.add(key)
    warnings.append(text)
    if rank == 0:
        tell(text)


def tell(text):
    """A line that can't be written is dropped: nothing of it stays in the buffer of stderr, which Python flushes when it ends
    (exit code 120 where that fails), and a full pipe that nobody reads holds nobody up for long."""
    line = "dpro: %s\n" % text
    try:
        if type(sys.stderr) is io.TextIOWrapper:
            sys.stderr.flush()
            _write(sys.stderr.fileno(), line.encode("utf-8", "backslashreplace"))
        else:  # the job's own
            sys.stderr.write(line)
            sys.stderr.flush()
    except Exception:  # a closed or full stderr is no reason to disturb the job
        pass


def _write(fd, line):
    ready = select.poll()
    ready.register(fd, select.POLLOUT)
    while line and ready.poll(WAIT_MS):
        line = line[os.write(fd, line[:select.PIPE_BUF]):]


def forget():
    """In a forked child: what the parent said is not ours."""
    del warnings[:]
    _said.clear()


def first_line(problem):
    """Of an exception; of what torch's compiler has wrapped, the inner one."""
    problem = getattr(problem, "inner_exception", None) or problem
    line = next((line.strip() for line in str(problem).split("\n") if line.strip()), "")
    return (line if isinstance(problem, Told) else "%s: %s" % (type(problem).__name__, line))[:MOST_TEXT]


def is_out_of_memory(problem):
    """Of a GPU's allocator, of a CPU's, or of Python."""
    problem = getattr(problem, "inner_exception", None) or problem
    text = str(problem).lower()
    return isinstance(problem, MemoryError) or "out of memory" in text or "can't allocate memory" in text


def is_the_jobs(problem):
    """Whether this exception comes out of one of the job's signal handlers, which happened to run while our code did:
    it must go on to where it was meant to go."""
    codes = set()
    for number in range(1, signal.NSIG):
        try:
            handler = signal.getsignal(number)
        except ValueError:
            continue
        handler = getattr(handler, "__func__", handler)
        handler = getattr(handler, "__code__", None) or getattr(getattr(type(handler), "__call__", None), "__code__", None)
        if handler is not None:
            codes.add(handler)
    return any(frame.f_code in codes for frame, _ in traceback.walk_tb(problem.__traceback__))


def why(problem):
    """In a line, of an exception that was caught where our code ran; one of the job's handlers goes on."""
    if is_the_jobs(problem):
        raise problem
    return first_line(problem)


def guarded(method):
    """A method that the job calls: after a failure of ours, `self.fail` has been told, `self.off` is true, and nothing is
    done any more."""
    @functools.wraps(method)
    def safely(self, *args, **kwargs):
        if self.off:
            return None
        try:
            return method(self, *args, **kwargs)
        except Exception as problem:
            if is_the_jobs(problem):
                raise
            self.fail(problem)
            return None
    return safely
