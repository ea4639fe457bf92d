"""The file that `dpro verify` reads when the job has ended (doc/formats/verify-json.md).

Rank 0 writes it. On hosts without rank 0, dpro verify is to know that the job was measured, and that the result is elsewhere: another
rank's steps go into a file beside it, and a process that only serves leaves one without steps. So nobody has to know who else is on
his host."""
import contextlib

from . import __version__, agreement, files, report
from .session import Session

SCHEMA = "dpro.verify-steps/1"
OTHER, SERVES = ".other", ".serves"  # looked for in this order where rank 0 left nothing


class Timed(Session):
    """Takes from a Session how steps are found."""
    records = False

    def fail(self, problem):
        self.off = True
        if isinstance(problem, agreement.Broken):
            raise problem
        what = report.first_line(problem)
        report.say("fail", "the verification ends, the job goes on: %s" % what)
        with contextlib.suppress(Exception):
            self.write_failed(what)
        self._let_go()


def write(path, rank, value):
    """`value` of this rank, more than once where it grows."""
    _write(path if rank == 0 else path + OTHER, dict(value, schema=SCHEMA, dpro=__version__, rank=rank))


def serve(path):
    _write(path + SERVES, {"schema": SCHEMA, "dpro": __version__, "rank": -1, "turns": []})


def _write(path, value):
    try:
        files.Folder.write_json(path, value)
    except FileNotFoundError:
        pass  # a host on which nobody started dpro verify: horovodrun took its variables there
