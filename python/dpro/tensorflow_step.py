"""A step in files, for the process that measures it: what is written by the job (tensorflow_probe.py) is read there
(tensorflow_measure.py), and made a function again."""
import json
import os
import re

import tensorflow as tf

from . import tensorflow_fusion
from .tensorflow_graph import base_of

GRAPH, FACTS, RESULT = "graph.pb", "step.json", "result.json"


def write(path, graph, given, variables, facts):
    """given, variables: {tensor of the graph: its value}."""
    def keep(kind, values):
        for number, value in enumerate(values.values()):
            with open(os.path.join(path, kind + str(number)), "wb") as file:
                file.write(tf.io.serialize_tensor(value).numpy())
        return [[tensor, kind + str(number), value.dtype.name] for number, (tensor, value) in enumerate(values.items())]

    with open(os.path.join(path, GRAPH), "wb") as file:
        file.write(graph.definition().SerializeToString())
    with open(os.path.join(path, FACTS), "w", encoding="utf-8") as file:
        json.dump({**facts, "given": keep("given", given), "variables": keep("variables", variables),
                   "outputs": graph.outputs, "collectives": sorted(graph.collectives)}, file)


def result(path):
    """What was measured."""
    with open(os.path.join(path, RESULT), encoding="utf-8") as file:
        return json.load(file)


def _own_name(node):
    """Without those of the calls that it lies in (tensorflow_graph.py)."""
    return re.sub(r"^(call\d+/)+", "", node.name)


def _data_of(node):
    return [tensor for tensor in node.input if not tensor.startswith("^")]


class Step:
    def __init__(self, path):
        with open(os.path.join(path, FACTS), encoding="utf-8") as file:
            self.facts = json.load(file)
        self._graph = tf.compat.v1.GraphDef()
        with open(os.path.join(path, GRAPH), "rb") as file:
            self._graph.ParseFromString(file.read())
        tf.config.threading.set_intra_op_parallelism_threads(self.facts["threads"][0])
        tf.config.threading.set_inter_op_parallelism_threads(self.facts["threads"][1])

        def read(known):
            for tensor, name, dtype in known:
                with open(os.path.join(path, name), "rb") as file:
                    yield tensor, tf.io.parse_tensor(file.read(), tf.as_dtype(dtype))

        self.given = dict(read(self.facts["given"]))
        self._variables = {tensor: tf.Variable(value) for tensor, value in read(self.facts["variables"])}
        self.names = [_own_name(node) for node in self._graph.node]
        self._outputs = [tensor for tensor in self.facts["outputs"] if tensor not in self.given]

    def _function(self, nodes, given, wanted, **options):
        """Of these nodes: from tensors to tensors."""
        definition = tf.compat.v1.GraphDef(node=nodes, library=self._graph.library)
        used = {tensor for node in nodes for tensor in _data_of(node)}

        def compute(*values):
            graph = tf.compat.v1.get_default_graph()
            mapped = {tensor: value for tensor, value in zip(given, values) if tensor in used}
            mapped.update((tensor, graph.capture(variable.handle)) for tensor, variable in self._variables.items() if tensor in used)
            return tf.graph_util.import_graph_def(definition, mapped, wanted, name="step")

        return tf.function(compute, autograph=False, **options)

    def as_it_is(self, which=None):
        """One function of self.given's values; `which`: with ops that XLA fuses (tensorflow_fusion.py)."""
        nodes = list(self._graph.node)
        if which:
            nodes = [type(node).FromString(node.SerializeToString()) for node in nodes]
            layers = {} if which in tensorflow_fusion.BY_FLAGS else tensorflow_fusion.clusters(self.names, which)
            for node in nodes:
                layer = layers.get(_own_name(node))
                if layer:
                    node.attr[tensorflow_fusion.SCOPE].s = layer.encode()
                if layer or node.name in self.facts["collectives"]:
                    node.attr[tensorflow_fusion.COMPILE].b = bool(layer)
        return self._function(nodes, list(self.given), self._outputs)

    def _stages(self):
        """{node: how many collectives it comes after}; what only later ones take comes with these."""
        collectives, stages, takers = set(self.facts["collectives"]), {}, {}
        for node in self._graph.node:
            bases = [base for base in map(base_of, node.input) if base in stages]
            stages[node.name] = max((stages[base] + (base in collectives) for base in bases), default=0)
            for base in bases:
                takers.setdefault(base, []).append(node.name)
        fixed = collectives.union(map(base_of, self._outputs))
        for node in reversed(self._graph.node):
            if node.name in takers and node.name not in fixed:
                stages[node.name] = max(stages[node.name], min(stages[name] for name in takers[node.name]))
        return stages

    def compiled(self):
        """The same as one that calls a compiled one for each stage, and how many these are."""
        stages, functions = self._stages(), []
        parts = [[node for node in self._graph.node if stages[node.name] == stage] for stage in sorted(set(stages.values()))]
        for number, nodes in enumerate(parts):
            here = {node.name for node in nodes}
            given = [tensor for tensor in dict.fromkeys(tensor for node in nodes for tensor in _data_of(node))
                     if base_of(tensor) not in here and tensor not in self._variables]
            later = [tensor for part in parts[number + 1:] for node in part for tensor in _data_of(node)]
            wanted = [tensor for tensor in dict.fromkeys(later + self._outputs) if base_of(tensor) in here]
            for node in nodes:  # in which nothing waits for what is done before
                kept = [name for name in node.input if not name.startswith("^") or base_of(name) in here]
                del node.input[:]
                node.input.extend(kept)
            functions.append((self._function(nodes, given, wanted, jit_compile=True), given, wanted))

        def compute(*values):
            known = dict(zip(self.given, values))
            for function, given, wanted in functions:
                known.update(zip(wanted, function(*[known[tensor] for tensor in given])))
            return [known[tensor] for tensor in self._outputs]

        return tf.function(compute, autograph=False), len(functions)
