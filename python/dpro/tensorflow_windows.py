"""Windows of TensorFlow's profiler in the recorder: of a function's steps in one process, of a session's in all that take part.

All write the XPlane of tf.profiler; what ran is told by graphs that TensorFlow gives away beside it (RunMetadata)."""
import glob
import os
import time

from . import job, memory, non_training, xplane
from .report import say

TASKS_WAIT_S = 0.5  # for a session's servers to profile, once, between two steps that are not measured
SERVED_S = 600      # the longest that a server profiles, should its client be gone without a word


class ProfilerWindow(job.Window):
    """tf.profiler's, with the steps marked; `calls`: names, bytes, that should be in what it writes."""

    PROFILE = "xplane.pb"
    OPTIONS = {"host_tracer_level": 3, "python_tracer_level": 0, "device_tracer_level": 1}

    def __init__(self, folder):
        super().__init__()
        self._mark = None
        self._profiler = xplane.Session(folder.temporary("tensorboard"))
        if self._profiler.busy:
            raise job.Busy
        self._path = folder.temporary(self.PROFILE)
        self._running = self._written = False
        self.calls = []

    def start(self):
        self._profiler.start(self.OPTIONS)
        self._running = True

    def begin_step(self, number):
        self._mark = xplane.Session.mark("train", step_num=number, _r=1)

    def end_step(self):
        if self._mark is not None:
            self._mark.Stop()
            self._mark = None
            super().end_step()

    def stop(self):
        self._mark = None
        if self._running:
            self._running = False
            self._written = self._profiler.export(self._path, self.calls)
        return self._written

    def write(self, folder, unfinished):
        folder.finish(self.PROFILE)
        return [self.PROFILE]

    def drop(self, folder):
        self._profiler.drop()
        folder.drop(self.PROFILE)


class FunctionWindow(ProfilerWindow):
    """tf.profiler, and the graph that runs."""

    FILES = "runmeta.pb", "graph.pb"

    def __init__(self, graph, shapes, folder):
        super().__init__(folder)
        self._graph, self._shapes = graph, shapes
        if graph is not None:  # how the profile names the collectives that ran
            self.calls = [("%s:%s" % (node.name, node.op)).encode() for function in graph.function_graphs
                          for part in function.partition_graphs for node in part.node
                          if node.op.startswith("CollectiveReduce")]

    def write(self, folder, unfinished):
        written = super().write(folder, unfinished)
        for name, message in zip(self.FILES, (self._graph, self._shapes)):
            if message is not None:
                folder.write(name, message.SerializeToString())
                written.append(name)
        self._graph = self._shapes = None
        return written


class SessionWindow(ProfilerWindow):
    """tf.profiler in every process that takes part in the session's runs, and what TensorFlow 1 tells (RunMetadata) of the
    step before: the graphs, and how large is what is sent. Where not all of those processes are with us, TensorFlow tells
    of every step instead, which makes them longer: the client asks all the others after each."""

    GRAPHS = "runmeta.pb"

    def __init__(self, ours, tasks):
        """`tasks`: name -> of its folder, of processes that serve the session."""
        super().__init__(ours.session.folder)
        self._ours, self._tasks = ours, tasks
        self._told = {}   # of each run's fetches, by the step before the window
        self._steps, self._now = [], None
        self._begun = False
        if tasks:
            ours.session.announce("timing")

    def asked(self, fetches, options):
        """(options, where to put what is told) of a run, with what the job's own options say; None once the profilers tell."""
        if self._running:
            return None
        from tensorflow.core.protobuf import config_pb2
        asked = config_pb2.RunOptions(trace_level=config_pb2.RunOptions.FULL_TRACE, output_partition_graphs=fetches not in self._told)
        if options is not None:
            asked.MergeFrom(options)
        return asked, config_pb2.RunMetadata()

    def job_traces(self):
        if not self._running:
            say("busy", "the job traces its own Session.run: those are not recorded", self._ours.session.folder.rank)

    def ran(self, fetches, metadata):
        self._told.setdefault(fetches, metadata)
        if self._begun and self._now is not None:
            self._now.append((fetches, metadata))

    def start(self):
        self._begun = True
        missing = self._wait_for_tasks()
        if not missing:
            super().start()
            return
        say("servers", "no profile of %s: TensorFlow traces every step instead, which makes recorded steps longer; "
            "start its command with dpro profile, with a trace directory that all share" % ", ".join(sorted(missing)),
            self._ours.session.folder.rank)

    def _wait_for_tasks(self):
        """Those that took part in the step before, and do not profile."""
        devices = {node.device.rpartition("/device:")[0] for metadata in self._told.values()
                   for graph in metadata.partition_graphs for node in graph.node}
        folders = {self._tasks[device] for device in devices if device in self._tasks}
        root, end = os.path.dirname(os.path.dirname(self._ours.session.folder.path)), time.monotonic() + TASKS_WAIT_S
        while True:
            missing = {folder for folder in folders
                       if not glob.glob(os.path.join(glob.escape(root), "host*", folder, self.PROFILE + ".part"))}
            if not missing or time.monotonic() > end:
                return missing
            time.sleep(non_training.POLL_S / 5)

    def begin_step(self, number):
        self._now = []
        if self._running:
            super().begin_step(number)

    def end_step(self):
        if self._now is None:
            return
        self._steps.append(self._now)
        self._now = None
        if self._running:
            super().end_step()
        else:
            self.n_steps += 1

    def stop(self):
        self._ours.session_window = None
        return super().stop() or any(self._steps)

    def write(self, folder, unfinished):
        if self._written:
            names = super().write(folder, unfinished)
            if self._told:
                names.append(self.GRAPHS)
                self._write_metadata(folder, self.GRAPHS, list(self._told.values()))
        else:
            names = []
            for number, runs in enumerate(self._steps):
                for fetches, metadata in runs:
                    if not metadata.partition_graphs:
                        metadata.partition_graphs.extend(self._told[fetches].partition_graphs)
                if runs:
                    names.append("runmeta_step%d.pb" % number)
                    self._write_metadata(folder, names[-1], [metadata for _, metadata in runs])
        self._steps, self._told = [], {}
        return names

    @staticmethod
    def _write_metadata(folder, name, runs):
        whole = type(runs[0])()
        for metadata in runs:
            whole.MergeFrom(metadata)
        folder.write(name, whole.SerializeToString())

    def drop(self, folder):
        super().drop(folder)
        self._steps, self._told = [], {}


class SessionServer(non_training.Server):
    """tf.profiler in a process that serves a session, while the client's runs there."""

    def __init__(self):
        self._folder = self._profiler = self._most_resident = self._end = None

    def begin(self, folder, rank):
        self._folder = folder

    def look(self, window):
        if self._profiler is None and window and self._most_resident is None:
            self._most_resident = memory.resident() + memory.available() // memory.GROWTH
            self._end = time.monotonic() + SERVED_S
            profiler = xplane.Session(os.path.join(self._folder, "tensorboard.part"))
            if not profiler.busy:
                profiler.start(ProfilerWindow.OPTIONS)
                self._profiler = profiler
                with open(self._part(), "wb"):  # which tells the client
                    pass
        elif self._profiler is not None and (not window or memory.resident() > self._most_resident or time.monotonic() > self._end):
            profiler, self._profiler = self._profiler, None
            if profiler.export(self._part(), []):
                os.replace(self._part(), self._part()[:-len(".part")])
            else:
                os.unlink(self._part())
        if not window:
            self._most_resident = None

    def _part(self):
        return os.path.join(self._folder, ProfilerWindow.PROFILE + ".part")
