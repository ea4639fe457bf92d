"""A plan in a session of TensorFlow 1: which parameter server each variable is on. Any placement is a right one, so that nothing
has to be agreed on where one client builds the graph of all; each process that builds a graph of its own needs the same plan."""
import functools
import os

from . import applied
from .report import why

STACK = "tensorflow-ps"
NO_JOB = "no replica_device_setter placed the plan's variables, and collectives of a session are the job's own"


class Strategy:
    """A ps_strategy of tf.compat.v1.train.replica_device_setter: the plan's server for the plan's variables, for others what
    `otherwise` says; where that is None they go to the servers in turns. `n_servers`: the job's, None where it is not known."""

    def __init__(self, path, otherwise=None, n_servers=None):
        self._path, self._otherwise, self._turn, self._told = path, otherwise, 0, False
        self.places = {}  # of variables: server and bytes; none where the plan can't be used
        self._plan, problem = applied.read_for(STACK, path)
        if self._plan is not None and problem is None:
            self.places = {bucket.names[0]: (bucket.server, self._plan.models[bucket.model][1][bucket.names[0]])
                           for bucket in self._plan.buckets}
            problem = self._unfit(n_servers)
        self._n_servers = n_servers or 1 + max([server for server, _ in self.places.values()], default=0)
        if problem:
            self._refuse(problem)

    def _unfit(self, n_servers):
        servers = [server for server, _ in self.places.values()]
        if min(servers, default=-1) < 0:
            return "it does not say on which servers the variables are to be"
        needed = max(max(servers) + 1, self._plan.n_servers)
        if n_servers is not None and needed > n_servers:
            return "it is for %d parameter servers, this job has %d" % (needed, n_servers)
        return None

    def _refuse(self, problem):
        self.places = {}
        applied.refuse(problem, 0, self._path, "servers")

    def __call__(self, op):
        other = self._otherwise(op) if self._otherwise is not None else self._turn  # its turns go on as in the job
        server, size = self.places.get(op.name, (None, None))
        if server is not None and _size_bytes(op) not in (None, size):
            self._refuse("it is for another model: its variable %s has %d bytes, here it has %d" % (op.name, size, _size_bytes(op)))
            server = None
        if server is None:
            self._turn = (self._turn + 1) % self._n_servers
            return other
        if not self._told:
            self._told = True
            if self._plan.is_own:
                applied.keep_own(self._plan, 0)
            else:
                applied.tell(self._plan, 0, "the session", [size for _, size in self.places.values()], "variable")
        return server


def _size_bytes(op):
    """Of a variable's op; None where it does not say."""
    from tensorflow.python.framework import dtypes
    attributes = getattr(op, "node_def", op).attr
    if attributes["shape"].shape.unknown_rank:
        return None
    size = dtypes.as_dtype(attributes["dtype"].type).size
    for dim in attributes["shape"].shape.dim:
        size *= dim.size
    return size if size >= 0 else None


def attach(module):
    """To tensorflow.python.training.device_setter: the plan's places come before the job's own strategy."""
    chooser = module._ReplicaDeviceChooser
    init = chooser.__init__

    @functools.wraps(init)
    def made(self, *args, **kwargs):
        init(self, *args, **kwargs)
        if isinstance(self._ps_strategy, Strategy):  # the job's own, of dpro.ps_strategy()
            return
        try:
            strategy = Strategy(os.environ["DPRO_PLAN"], self._ps_strategy, self._ps_tasks)
        except Exception as problem:
            applied.refuse(why(problem), 0, what="servers")
            return
        if strategy.places:
            self._ps_strategy = strategy

    chooser.__init__ = made
