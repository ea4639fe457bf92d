"""Op fusion in a TensorFlow job: which of its ops XLA makes one of, as DPRO_XLA says or a plan (computation.compile):

default       what XLA would choose, all that it can compile (TF_XLA_FLAGS)
elementwise   of that, what is cheap to fuse: no products and convolutions
layers        each layer by itself, its forward and its backward pass
A,B           these layers, or layers of these kinds ("dense" is dense, dense_1, ...)

TensorFlow's flags choose by kinds of ops. A layer's are told by their names, which begin with those of its scopes; they get the
attributes that tf.xla.experimental.jit_scope would give them, while a function is traced, and gradients get them too."""
import functools
import os
import re

from . import applied, job

VARIABLE, FLAGS, LAYERS = "DPRO_XLA", "TF_XLA_FLAGS", "layers"
BY_FLAGS = {"default": "--tf_xla_auto_jit=2 --tf_xla_cpu_global_jit"}
BY_FLAGS["elementwise"] = BY_FLAGS["default"] + " --tf_xla_ops_to_cluster=FUSIBLE"
CPUS = "--tf_xla_cpu_global_jit"
TAPE = "gradient_tape/"  # how the names of gradients begin
DEPTH = 2                # scopes that name a layer: its model's and its own
COMPILE, SCOPE = "_XlaCompile", "_XlaScope"

_n_fused = None  # ops of the last function that takes gradients


def _plan():
    """The job's, if it says what XLA is to compile."""
    plan = applied.read(os.environ["DPRO_PLAN"])[0] if os.environ.get("DPRO_PLAN") else None
    return plan if plan is not None and plan.framework == "tensorflow" and plan.computing.compiled else None


def chosen():
    """What this process is to do, None: nothing."""
    plan = _plan()
    return plan.computing.compiled[0] if plan else os.environ.get(VARIABLE) or None


def compiles_itself(environment):
    return "tf_xla_auto_jit" in environment.get(FLAGS, "")


def begin():
    """Before TensorFlow reads its flags. Returns whether functions are to be looked at."""
    which = chosen()
    if which in BY_FLAGS and not compiles_itself(os.environ):
        os.environ[FLAGS] = (os.environ.get(FLAGS, "") + " " + BY_FLAGS[which]).strip()
    return which is not None


def attach(module):
    """To tensorflow.python.framework.func_graph."""
    trace = module.func_graph_from_py_func

    @functools.wraps(trace)
    def traced(*args, **kwargs):
        graph = trace(*args, **kwargs)
        _fuse(graph, chosen())
        return graph

    module.func_graph_from_py_func = traced


def problem():
    """Why a job that was to be fused is not."""
    if not chosen() or _n_fused:
        return None
    return "XLA compiles nothing of it: no tf.function with such layers takes gradients"


def _scope(name):
    return "/".join(name.split("/")[:-1][:DEPTH])


def layers_of(names):
    """{op: its layer}, of ops of layers that have gradients, and of these."""
    layers = {_scope(name) for name in names if not name.startswith(TAPE)} - {""}
    found = {}
    for name in names:
        own = name[len(TAPE):] if name.startswith(TAPE) else name
        found[name] = next((layer for layer in (_scope(own), own.partition("/")[0]) if layer in layers), None)
    learning = {layer for name, layer in found.items() if name.startswith(TAPE)}
    return {name: layer for name, layer in found.items() if layer and layer in learning}


def kind_of(layer):
    """dense of model/dense_12."""
    return re.sub(r"_\d+$", "", layer.rpartition("/")[2])


def clusters(names, which):
    """{op: its layer}, of the layers that are to be compiled."""
    wanted = set(which.split(","))
    return {name: layer for name, layer in layers_of(names).items() if which == LAYERS or {layer, kind_of(layer)} & wanted}


def _fuse(graph, which):
    global _n_fused
    names = [op.name for op in graph.get_operations()]
    if not any(name.startswith(TAPE) for name in names):
        return
    from tensorflow.core.framework.attr_value_pb2 import AttrValue
    told, found = _n_fused, {} if which in BY_FLAGS else clusters(names, which)
    for op in graph.get_operations():
        if op.name in found:
            op._set_attr(COMPILE, AttrValue(b=True))
            op._set_attr(SCOPE, AttrValue(s=found[op.name].encode()))
    _n_fused = len(names) if which in BY_FLAGS else len(found)
    plan = _plan()
    if told is None and _n_fused and plan is not None:
        applied.tell_compiled(plan, job.place()[0], which if which in BY_FLAGS else "%d layers" % len(set(found.values())))
