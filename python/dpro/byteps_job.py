"""BytePS in the recorder: its servers and its scheduler serve while byteps.server is imported, until the job ends. Workers
are their framework's (torch_job.py), which job.place() numbers as BytePS does."""
import functools
import os


def attach(session, module):
    """To byteps.common, which byteps.server imports first."""
    role = os.environ.get("DMLC_ROLE")
    if role == "scheduler":
        session.serve(role)
    elif role == "server":
        session.serve(functools.partial(_claim_number, session.settings.out))


def _claim_number(out):
    """server<k>, of which no other server of the job has the k: ps-lite tells nobody outside which number it gave whom. The
    claims stand in the trace directory, so that servers on all hosts see them, and are left there empty."""
    for number in range(1 << 16):
        name = "server%d" % number
        try:
            os.mkdir(os.path.join(out, "." + name))
            return name
        except FileExistsError:
            pass
    raise OSError("no number is left for a server")
