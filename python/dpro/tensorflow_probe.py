"""What a step's computation takes as it is and compiled by XLA (jit_compile) or in 16 bits, in a TensorFlow job: probes.json, with
one module whose name is empty, the whole step.

The call of the step's tf.function is looked at while it is made: its graph and what it is given. A batch that it takes from an
iterator is taken before, and given to it by an iterator that has this batch alone. Two steps later the graph, the values of its
variables and the inputs are written to files, and a process of its own (tensorflow_measure.py) runs them, so that nothing that
it does, a crash of the compiler's for one, reaches the job."""
import contextlib
import os
import shutil
import signal
import subprocess
import time

import tensorflow as tf

from . import memory, own_process, tensorflow_fusion, tensorflow_step
from .probe_result import Prober
from .tensorflow_graph import Graph, NotPossible

WAYS = {"compile", "bf16"}
HELD = 4  # times the inputs and variables: what the other process holds, about
POLL_S = 0.05
ENVIRONMENT = {"TF_FORCE_GPU_ALLOW_GROWTH": "true", tensorflow_fusion.FLAGS: tensorflow_fusion.CPUS}  # of that process
UNFINISHED = "the time that was left was too short"


def _number_of_threads():
    return tf.config.threading.get_intra_op_parallelism_threads() or len(os.sched_getaffinity(0))


class TensorFlowProber(Prober):
    """Of the function that makes the steps."""

    def __init__(self, ours, settings, folder, info, n_local):
        super().__init__(settings, folder, info, "cuda:0" if tf.config.list_logical_devices("GPU") else "cpu", _number_of_threads())
        self._ours, self._n_local = ours, n_local
        self._function = self._watched = self._graph = None
        self._values = self._batches = None  # of the graph's inputs; {batch node: its tensors}

    def end(self):
        self._unwatch()
        self._function = self._graph = self._values = self._batches = None

    # The two steps before

    def _survey(self):
        functions = self._ours.step_functions()
        if not self._asked & WAYS:
            self.problem = "of a step of TensorFlow only compile and bf16 can be"
        elif len(functions) != 1:
            self.problem = "a step is %s tf.function" % ("more than one call of a" if functions else "no call of a")
        elif getattr(functions[0], "_jit_compile", None) or tf.config.optimizer.get_jit() or (
                tensorflow_fusion.compiles_itself(os.environ) or tensorflow_fusion.chosen()):
            self.problem = "the job compiles itself"
        else:
            self._function = functions[0]
            self._watch(type(self._function._list_all_concrete_functions()[-1]))

    def _watch(self, kind):
        """The next call of the function, as flat tensors."""
        call_flat = kind._call_flat

        def called(concrete, given, captured_inputs, *more, **named):
            if self._ours.calls_step(self._function) and any(
                    concrete is known for known in self._function._list_all_concrete_functions()):
                self._unwatch()
                given, captured_inputs = self._look(concrete, list(given), list(captured_inputs))
            return call_flat(concrete, given, captured_inputs, *more, **named)

        self._watched = kind, call_flat
        kind._call_flat = called

    def _unwatch(self):
        watched, self._watched = self._watched, None
        if watched:
            watched[0]._call_flat = watched[1]

    def _look(self, concrete, given, captured):
        """Returns what the job's call goes on with."""
        values, batches = [*given, *captured], {}
        try:
            graph = Graph(concrete.graph)
            for iterator in graph.batches.values():
                _exchange(graph.batch_node(iterator), values, graph.inputs[iterator], batches)
            self._graph, self._values, self._batches = graph, list(values), batches
        except tf.errors.OutOfRangeError:
            self.problem = "the job's data ended"
        except NotPossible as problem:
            self.problem = str(problem)
        except Exception as problem:
            self._failed(problem)
        return values[:len(given)], values[len(given):]

    def _copy(self):
        if self.problem is None and self._graph is None:
            self.problem = "the step's function was not called again"

    # Measuring

    def _probe(self):
        self._begin = time.perf_counter()
        if self.problem:
            return
        path, result = self._folder.temporary("probe"), {}
        os.mkdir(path)
        try:
            inputs = self._write_step(path)
            self._progress("probing the step...")
            problem = self._run(path)
            with contextlib.suppress(FileNotFoundError):
                result = tensorflow_step.result(path)
        except NotPossible as why:
            self.problem = str(why)
            return
        finally:
            self._progress("")
            shutil.rmtree(path, ignore_errors=True)
            self._graph = self._values = self._batches = None
        ways = result.get("ways", {})
        missing = sorted((self._asked & WAYS) - set(ways))
        ways.update((way, {"problem": problem}) for way in missing)
        self._head["clock"] = result.get("clock", "wall")
        self._entries = [{"class": "", "modules": [[""]], "inputs": inputs, "ways": ways}]
        self._entries += [{"class": "layer" if fusion["by_layer"] else "", "modules": [[fusion["name"]]], "inputs": inputs,
                           "ways": fusion["ways"]} for fusion in result.get("fusions", ())]
        if missing and problem == UNFINISHED:
            self._ended_early = "the time limit; not measured in all ways: the step"
        self._write()

    def _write_step(self, path):
        """What tensorflow_measure.py is given. Returns types and shapes of the inputs."""
        graph, given, variables = self._graph, {}, {}
        for tensor, number in graph.inputs.items():
            value = getattr(self._values[number], "handle", self._values[number])
            if tensor in graph.batches.values():
                continue
            if value.dtype == tf.resource:
                variables[tensor] = _read(value)
            else:
                given[tensor] = value
        for node, components in self._batches.items():
            given.update(("%s:%d" % (node, number), value) for number, value in enumerate(components))
        n_bytes = sum(value.shape.num_elements() * value.dtype.size for value in (*given.values(), *variables.values()))
        if HELD * n_bytes > memory.available() // self._n_local:
            raise NotPossible("there is too little memory: about %d MB are needed" % (HELD * n_bytes >> 20))
        tensorflow_step.write(path, graph, given, variables, {
            "ways": sorted(self._asked), "end": self._begin + self._limit_s,
            "cores": max(len(os.sched_getaffinity(0)) // self._n_local, 1),
            "threads": [tf.config.threading.get_intra_op_parallelism_threads(),
                        tf.config.threading.get_inter_op_parallelism_threads()]})
        return [[value.dtype.name, value.shape.as_list()] for value in given.values()]

    def _run(self, path):
        """Why it did not come to an end; None."""
        with open(os.path.join(path, "stderr"), "w+b") as said:
            child = own_process.start("tensorflow_measure", path, ENVIRONMENT, stdin=subprocess.DEVNULL,
                                      stdout=subprocess.DEVNULL, stderr=said)
            try:
                while child.poll() is None:
                    if self._seconds_left() <= 0:
                        return UNFINISHED
                    time.sleep(POLL_S)
            finally:
                child.kill()
                child.wait()
            if child.returncode == 0:
                return None
            said.seek(0)
            lines = said.read().decode("utf-8", "replace").strip().split("\n")
        if child.returncode < 0:
            return "the process that measured died of %s" % signal.Signals(-child.returncode).name
        return "the process that measured failed: %s" % lines[-1][:200]


def _read(handle):
    known = getattr(handle, "_handle_data", None)
    types = [tf.as_dtype(of.dtype) for of in known.shape_and_type] if known is not None and known.is_set else ()
    if len(types) != 1 or not tf.raw_ops.VarIsInitializedOp(resource=handle):
        raise NotPossible("it uses something else than variables")
    return tf.raw_ops.ReadVariableOp(resource=handle, dtype=types[0])


def _exchange(node, values, number, batches):
    """Takes a batch of an iterator, as this node would, and puts one that has this batch alone in its place."""
    types = [tf.as_dtype(kind) for kind in node.attr["output_types"].list.type]
    shapes = [tf.TensorShape(shape) for shape in node.attr["output_shapes"].list.shape]

    def iterator_of(components):
        dataset = tf.raw_ops.TensorDataset(components=components, output_shapes=[value.shape for value in components])
        handle = tf.raw_ops.AnonymousIteratorV3(output_types=types, output_shapes=shapes)
        tf.raw_ops.MakeIterator(dataset=dataset, iterator=handle)
        return handle

    def take(iterator):
        return tf.raw_ops.IteratorGetNext(iterator=iterator, output_types=types, output_shapes=shapes)

    with tf.device("CPU:0"):
        # a batch that was taken can't be given back: so whether all of this works is tried with one of zeros
        take(iterator_of([tf.zeros([size or 1 for size in shape.as_list() or ()] if shape.rank else (), kind)
                          for kind, shape in zip(types, shapes)]))
        batches[node.name] = take(values[number])
        values[number] = iterator_of(batches[node.name])
