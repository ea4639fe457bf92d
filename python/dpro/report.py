"""What dpro says in a job: each thing once, one line on stderr; kept for rank.json as well."""
import functools
import signal
import sys
import traceback

warnings = []
_said = set()


def say(key, text, rank=0):
    """Says `text` unless something with this key was said before. What is alike on all ranks comes with the rank, and
    rank 0 says it."""
    if key in _said:
        return
    _said.add(key)
    warnings.append(text)
    if rank == 0:
        tell(text)


def tell(text):
    try:
        sys.stderr.write("dpro: %s\n" % text)
        sys.stderr.flush()
    except Exception:  # a closed or full stderr is no reason to disturb the job
        pass


def forget():
    """In a forked child: what the parent said is not ours."""
    del warnings[:]
    _said.clear()


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
