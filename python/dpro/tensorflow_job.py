"""TensorFlow in the recorder.

A step of TensorFlow 2 ends where a tf.function that takes gradients returns to Python (so does Keras' fit), or where a
Keras optimizer was applied eagerly; one of TensorFlow 1 where Session.run returns that ran an operation. Windows hold
the XPlane of tf.profiler. What ran is the partition graph of the function, which TensorFlow gives away only when it is
asked before the function's first call, or that of the session, which it tells at any run (RunMetadata)."""
import functools
import sys
import weakref

from . import applied, horovod_plan, job, session_plan, tensorflow_plan
from .report import guarded, say
from .tensorflow_windows import FunctionWindow, SessionServer, SessionWindow

ASK_GRAPHS_CALLS = 3  # of a function: variables may be made in the first, which is traced again then


def attach_functions(session, module):
    """To tensorflow.python.eager.polymorphic_function.polymorphic_function."""
    ours = job.attached(session, TensorFlowJob)
    for name in ("__call__", "get_concrete_function"):
        setattr(module.Function, name, ours.watched(getattr(module.Function, name), is_call=name == "__call__"))


def attach_tape(session, module):
    """To tensorflow.python.eager.backprop."""
    job.watch(module.GradientTape, "gradient", before=job.attached(session, TensorFlowJob).gradient_taken)


def attach_keras(session, module):
    """To keras.src.optimizers.base_optimizer."""
    job.watch(module.BaseOptimizer, "apply", after=job.attached(session, TensorFlowJob).optimizer_applied)


def attach_sessions(session, module):
    """To tensorflow.python.client.session."""
    ours, run = job.attached(session, TensorFlowJob), module.BaseSession.run

    @functools.wraps(run)
    def ran(tf_session, fetches, feed_dict=None, options=None, run_metadata=None):
        source = ours.session_source(tf_session, fetches)
        if source is None:
            return run(tf_session, fetches, feed_dict, options, run_metadata)
        asked = ours.ask(source, options)
        if asked is None:
            result = run(tf_session, fetches, feed_dict, options, run_metadata)
        else:
            result = run(tf_session, fetches, feed_dict, *asked)
            ours.session_told(source, asked[1])
        ours.session_ran(source)
        return result

    module.BaseSession.run = ran


def attach_servers(session, module):
    """To tensorflow.python.training.server_lib: a server that is joined serves, and never comes back."""
    ours = job.attached(session, TensorFlowJob)
    job.watch(module.Server, "__init__", after=ours.server_made)
    job.watch(module.Server, "join", before=ours.server_joined)


def attach_profiler(session, module):
    """To tensorflow.python.profiler.profiler_v2: the job's own use of the profiler wins."""
    job.watch(module, "start", before=lambda *_, **__: session.job_profiles())


class _SessionSource:
    """A step of a Session: what it is asked to run."""

    def __init__(self, session):
        self.session = weakref.ref(session)


class TensorFlowJob(job.Job):
    framework, profiler = "tensorflow", "tf.profiler"
    packages, has_probes = ("tensorflow", "keras", "tf_keras"), True
    no_step = "no function of TensorFlow that takes gradients, no session with a training operation ran"

    def __init__(self, session):
        super().__init__(session)
        self._trains = weakref.WeakSet()  # functions that take gradients
        self._inside = []                 # functions being called or traced
        self._n_calls = weakref.WeakKeyDictionary()
        self._function = None             # the last one that made a step
        self._graph = None                # RunMetadata with what ran, of that function
        self._asked_graphs = False
        self._sources = {}
        self._task = None                 # (job, index, number among workers, workers), of a Server
        self._name = None                 # its folder's
        self._others = {}                 # device name of each other task of its cluster -> its folder's name
        self.session_window = None

    # Steps of functions

    def watched(self, method, is_call):
        """Function.__call__ or get_concrete_function, which trace on their way."""
        context = sys.modules["tensorflow.python.eager.context"]

        @functools.wraps(method)
        def call(function, *args, **kwargs):
            if self.off:
                return method(function, *args, **kwargs)
            eager = context.executing_eagerly()
            if eager:
                self._before(function)
            self._inside.append(function)
            try:
                result = method(function, *args, **kwargs)
            finally:
                if self._inside and self._inside[-1] is function:
                    self._inside.pop()
                else:  # threads in between
                    self._inside = []
            self._after(function, eager, eager and is_call)
            return result

        return call

    @guarded
    def _before(self, function):
        if self.session.records and self.session.folder is None and self._n_calls.get(function, 0) < ASK_GRAPHS_CALLS:
            sys.modules["tensorflow.python.eager.context"].context().enable_run_metadata()
            self._asked_graphs = True

    @guarded
    def _after(self, function, eager, is_step):
        trains = function in self._trains
        if trains:
            self._trains.update(self._inside)
        if eager and self._asked_graphs:
            self._take_graph(function, trains)
        if trains and is_step:
            self._function = function
            self.session.stepped(self, function)

    def _take_graph(self, function, trains):
        self._asked_graphs = False
        self._n_calls[function] = self._n_calls.get(function, 0) + 1
        context = sys.modules["tensorflow.python.eager.context"].context()
        metadata = context.export_run_metadata()
        context.disable_run_metadata()
        if trains and metadata is not None and metadata.function_graphs:
            self._graph = metadata

    @guarded
    def gradient_taken(self, *_, **__):
        self._trains.update(self._inside)

    @guarded
    def optimizer_applied(self, optimizer, *_, **__):
        if sys.modules["tensorflow.python.eager.context"].executing_eagerly() and not self._inside:
            self.session.stepped(self, optimizer)

    # Steps of sessions

    @guarded
    def session_source(self, tf_session, fetches):
        """What stands for this kind of run, None when it is no step: nothing of it is an operation without a result, as
        training operations are."""
        operation = sys.modules["tensorflow.python.framework.ops"].Operation
        names = []

        def look(thing):
            if isinstance(thing, operation):
                names.append(thing.name)
            elif isinstance(thing, str) and ":" not in thing:
                names.append(thing)
            elif isinstance(thing, dict):
                for value in thing.values():
                    look(value)
            elif isinstance(thing, (list, tuple)):
                for value in thing:
                    look(value)

        look(fetches)
        if not names:
            return None
        key = (id(tf_session), *names)
        source = self._sources.get(key)
        if source is None or source.session() is not tf_session:
            source = self._sources[key] = _SessionSource(tf_session)
        return source

    @guarded
    def ask(self, source, options):
        """(options, where to put what is told) of a run in place of the job's; None: as the job has it. Sessions that have
        hooks (MonitoredSession) always say options, which mostly ask for nothing."""
        if self.session_window is None or not self.session.trains_here():  # others fill queues
            return None
        if options is not None and (options.trace_level or options.output_partition_graphs):
            self.session_window.job_traces()
            return None
        return self.session_window.asked(source, options)

    @guarded
    def session_told(self, source, metadata):
        if self.session_window is not None:
            self.session_window.ran(source, metadata)

    @guarded
    def session_ran(self, source):
        self.session.stepped(self, source)

    # Servers

    @guarded
    def server_made(self, server, *_, **__):
        definition = server.server_def
        n_tasks = {cluster_job.name: len(cluster_job.tasks) for cluster_job in definition.cluster.job}

        def name_of(name, index):
            number = job.numbered_task(name, index, n_tasks)[2]
            return "rank%d" % number if number is not None else "%s%d" % (name, index)

        name, index = definition.job_name, definition.task_index
        self._task = job.numbered_task(name, index, n_tasks)
        self._name = name_of(name, index)
        tasks = [(other.name, task) for other in definition.cluster.job for task in other.tasks]
        self._others = {"/job:%s/replica:0/task:%d" % task: name_of(*task) for task in tasks if task != (name, index)}

    @guarded
    def server_joined(self, _):
        if self._task is not None:
            self.session.serve(self._name, SessionServer())

    # What is trained

    def place(self):
        rank, world, local_rank = job.place()
        if world == 1 and self._task is not None:
            rank, world = self._task[2] or 0, max(self._task[3], 1)
        return rank, world, local_rank

    def versions(self):
        import platform
        return {"tensorflow": sys.modules["tensorflow"].__version__, "python": platform.python_version(),
                **job.versions_of("keras", "horovod")}

    def _parameters(self, models):
        """Variables that are trained: of the models, else of the function that makes the steps."""
        variables = {}
        for model in models:
            for variable in getattr(model, "trainable_variables", ()):
                variables[id(variable)] = variable
        if not variables and self._function is not None:
            for concrete in self._function._list_all_concrete_functions():
                for variable in concrete.graph.trainable_variables:
                    variables[id(variable)] = variable
        return list(variables.values())

    def describe(self, models, sources):
        parameters = []
        try:
            for variable in self._parameters(models):
                dtype = getattr(variable.dtype, "name", variable.dtype)
                dtype = sys.modules["tensorflow"].as_dtype(dtype)
                parameters.append(job.described_parameter(getattr(variable, "path", variable.name), map(int, variable.shape), dtype.name,
                                                          dtype.size))
        except Exception as problem:
            say("model", "the model can't be described: %s: %s" % (type(problem).__name__, problem))
        return job.described(
            type(models[0]).__name__ if models else "model", "data" if self.place()[1] > 1 else "none", parameters, plan=self.plan(),
            horovod=horovod_plan.settings() if "horovod.tensorflow" in sys.modules else None)

    def plan(self):
        if self._is_session():
            return applied.state(session_plan.NO_JOB)
        return applied.state(horovod_plan.NO_JOB if "horovod.tensorflow" in sys.modules else tensorflow_plan.NO_JOB)

    def _is_session(self):
        return any(isinstance(source, _SessionSource) for source in self._sources.values())

    # Windows

    def prepare(self, name):
        if self._is_session():
            self.session_window = SessionWindow(self, self._others)
            return self.session_window
        if self._graph is None:
            say("graph", "the graph that runs is not recorded: the function that trains was traced before dpro could ask for "
                         "it, or the steps are not in a tf.function", self.session.folder.rank)
        return FunctionWindow(self._graph, self._shapes(), self.session.folder)

    def _shapes(self):
        """The function's graph before TensorFlow optimized it, which has the tensors' shapes; None where it can't be had."""
        try:
            graph = self._function._list_all_concrete_functions()[-1].graph.as_graph_def(add_shapes=True)
        except (AttributeError, IndexError, RuntimeError, ValueError):
            return None
        graph.ClearField("library")
        for node in graph.node:
            for key in set(node.attr) - {"_output_shapes", "T", "dtype"}:
                del node.attr[key]
        return graph

    # Probes

    def probe(self, settings, folder, info, n_local, measures):
        from .tensorflow_probe import TensorFlowProber
        return TensorFlowProber(self, settings, folder, info, n_local) if measures else None

    def step_functions(self):
        """Functions whose calls are the steps, or lie in a Recorder's."""
        functions = [source for source in self.session.sources if hasattr(source, "get_concrete_function")]
        return functions or [self._function] * (self._function is not None)

    def calls_step(self, function):
        """Whether the job calls it right now."""
        return self._inside == [function] and self.session.trains_here() and (
            sys.modules["tensorflow.python.eager.context"].executing_eagerly())

    def let_go(self):
        self._trains, self._inside, self._n_calls = weakref.WeakSet(), [], weakref.WeakKeyDictionary()
        self._function = self._graph = self.session_window = None
        self._sources = {}
