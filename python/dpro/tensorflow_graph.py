"""What a call of a tf.function computes, as one flat graph that another process can run: functions that it calls stand in their
calls' place, batches that it takes from iterators become inputs, and collectives hand on what they are given.

That is done only where all that it does beside computing is to variables and random numbers."""
from tensorflow.core.framework import graph_pb2, node_def_pb2
from tensorflow.python.framework import op_def_registry

CALLS = ("PartitionedCall", "StatefulPartitionedCall")
COLLECTIVES = ("CollectiveReduce", "CollectiveReduceV2", "CollectiveReduceV3")
BATCHES = ("IteratorGetNext", "IteratorGetNextSync")
CONTROL_FLOW = ("If", "While", "Case", *CALLS)
CONTAINED = ("ReadVariableOp", "Assign", "Resource", "VarIsInitialized", "DisableCopyOnRead", "Rng", "Stateful", "Random",
             "Multinomial", "TruncatedNormal", "ParameterizedTruncatedNormal", "Assert")  # how ops begin that affect variables only
COMPILED = "_XlaMustCompile"
MOST_DEPTH = 64


class NotPossible(Exception):
    """Why it can't be computed apart."""


def base_of(name):
    """The node of a node's input."""
    return name.lstrip("^").partition(":")[0]


def _definition(node):
    definition = op_def_registry.get(node.op)
    if definition is None:
        raise NotPossible("it has an op that TensorFlow does not know, %s" % node.op)
    return definition


def _ordered(nodes):
    """Each after those that it takes something from, else as they come."""
    left = {node.name: node for node in nodes}
    for node in nodes:
        stack = [node]
        while stack:
            top = stack[-1]
            needed = [left[base] for base in map(base_of, top.input) if base in left] if top.name in left else []
            if len(stack) > len(nodes) or any(other is top for other in needed):
                raise NotPossible("it has a loop of TensorFlow 1")
            if needed:
                stack.append(needed[0])
            else:
                stack.pop()
                if left.pop(top.name, None) is not None:
                    yield top


class Graph:
    """Of a FuncGraph. A tensor is "node:number"."""

    def __init__(self, graph):
        definition = graph.as_graph_def()
        self.library = definition.library
        self._functions = {function.signature.name: function for function in definition.library.function}
        self._n_calls = 0
        self.nodes = []         # each after those that it takes something from
        self.collectives = set()
        self.batches = {}       # node that takes one -> the tensor of its iterator
        self.inputs = {tensor.name: number for number, tensor in enumerate(graph.inputs)}
        known = {base_of(name): {"": [name]} for name in self.inputs}
        ends = {name: [] for name in known}
        self._add([node for node in definition.node if node.name not in known], known, ends, "", [])
        self.outputs = [self._tensor(tensor.name, known) for tensor in graph.outputs
                        if tensor.dtype.is_floating or tensor.dtype.is_integer or tensor.dtype.is_bool]
        self._keep_needed()
        for node in self.nodes:
            self._check(node, 0)

    # Functions in their calls' place

    @staticmethod
    def _tensor(name, known):
        """What an input is here, as a GraphDef says it ("node", "node:1") or a FunctionDef ("argument", "node:output:1")."""
        node, _, place = name.partition(":")
        output, _, number = place.rpartition(":")
        if output:
            return known[node][output][int(number)]
        return [tensor for tensors in known[node].values() for tensor in tensors][int(number or 0)]

    def _add(self, nodes, known, ends, prefix, before):
        """known: {node of this body: {output: tensors}}; ends: {node: those that are done when it is}; `before`: those that the
        call of this body waits for, and with it all that has effects."""
        for node in _ordered(nodes):
            given = [self._tensor(name, known) for name in node.input if not name.startswith("^")]
            waits = [end for name in node.input if name.startswith("^") for end in ends[name[1:]]]
            add = self._add_call if node.op in CALLS else self._add_node
            known[node.name], ends[node.name] = add(node, given, waits, prefix, before)

    def _add_call(self, node, given, waits, prefix, before):
        function = self._functions[node.attr["f"].func.name]
        if node.attr[COMPILED].b or function.attr[COMPILED].b:
            raise NotPossible("the job compiles itself")
        self._n_calls += 1
        if prefix.count("/") > MOST_DEPTH:
            raise NotPossible("its functions call each other")
        known = {argument.name: {"": [tensor]} for argument, tensor in zip(function.signature.input_arg, given)}
        ends = {name: [] for name in known}
        self._add(function.node_def, known, ends, "%scall%d/" % (prefix, self._n_calls), before + waits)
        results = [self._tensor(function.ret[argument.name], known) for argument in function.signature.output_arg]
        done = [end for name in function.control_ret.values() for end in ends[name]]
        return {"output": results}, done + [base_of(tensor) for tensor in results if tensor not in self.inputs]

    def _add_node(self, node, given, waits, prefix, before):
        made, definition = node_def_pb2.NodeDef(name=prefix + node.name, op=node.op), _definition(node)
        if node.op in COLLECTIVES:  # in whose place there is nothing to wait for
            made.op = "Identity"
            made.attr["T"].CopyFrom(node.attr["T"])
            self.collectives.add(made.name)
            given, waits = given[:1], []
        else:
            for key in set(node.attr) - {"_class", "_output_shapes"}:
                made.attr[key].CopyFrom(node.attr[key])
            waits = waits + before if definition.is_stateful else waits
        if node.op in BATCHES:
            self.batches[made.name] = given[0]
        made.input.extend(given)
        made.input.extend("^" + name for name in dict.fromkeys(waits) if not (name in self.collectives or name in self.batches))
        self.nodes.append(made)
        results, n = {}, 0
        for output in definition.output_arg:
            count = made.attr[output.number_attr].i if output.number_attr else (
                len(made.attr[output.type_list_attr].list.type) if output.type_list_attr else 1)
            results[output.name] = ["%s:%d" % (made.name, n + number) for number in range(count)]
            n += count
        return results, [made.name]

    # What of it is needed, and whether it can be had apart

    def _keep_needed(self):
        wanted = {base_of(tensor) for tensor in self.outputs}
        for node in reversed(self.nodes):
            if node.name in wanted or _definition(node).is_stateful:
                wanted.add(node.name)
                wanted.update(map(base_of, node.input))
        self.nodes = [node for node in self.nodes if node.name in wanted]
        self.inputs = {tensor: number for tensor, number in self.inputs.items() if base_of(tensor) in wanted}

    def _check(self, node, depth):
        definition = _definition(node)
        if node.op in BATCHES and depth == 0:
            if self.batches[node.name] not in self.inputs or list(self.batches.values()).count(self.batches[node.name]) > 1:
                raise NotPossible("it takes several batches in a call")
        elif definition.is_stateful and node.op not in CONTROL_FLOW and not node.op.startswith(CONTAINED):
            raise NotPossible("it does more than compute: %s" % node.op)
        for value in node.attr.values():
            for called in [value.func] if value.HasField("func") else value.list.func:
                if depth > MOST_DEPTH:
                    raise NotPossible("its functions call each other")
                for inner in self._functions[called.name].node_def:
                    self._check(inner, depth + 1)

    def batch_node(self, iterator):
        """The node that takes a batch of this iterator."""
        return next(node for node in self.nodes if self.batches.get(node.name) == iterator)

    def definition(self):
        """What is to be imported where the batches are inputs."""
        return graph_pb2.GraphDef(node=[node for node in self.nodes if node.name not in self.batches], library=self.library)
