"""Graphs that the probe compiles are compiled and run for the first time in a process of its own, so that a crash of the compiler,
or of what it made, is not the job's. What was compiled is in torch's cache on disk then, where the job finds it.

A graph is sent as the code that it stands for, with copies of what it is given. It is found again in the cache if it is compiled as
it was: what came from modules comes from a module there too."""
import contextlib
import importlib
import io
import os
import signal
import socket
import subprocess
import tempfile
import time

import torch
from torch.fx.graph_module import _format_import_block
from torch.package import sys_importer

from . import compiling, own_process, report
from .probe_survey import autocast_of

N_BYTES = 8  # of a request's length
DONE, FAILED = "done", "failed: "
CONFIGS = "torch._inductor.config", "torch._functorch.config"
CACHES = "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"  # the same ones, from another folder


# In the job

def _request(graph, inputs, device_type):
    code = graph.graph.python_code("self")
    placeholders = [node for node in graph.graph.nodes if node.op == "placeholder"]
    return {"source": "%s\n%s" % (_format_import_block(code.globals, sys_importer), code.src),
            "parts": {node.target: getattr(graph, node.target) for node in graph.graph.nodes if node.op in ("get_attr", "call_module")},
            "inputs": inputs,
            "of_module": ["_dynamo_static_input_type" in node.meta.get("tensor_dict", ()) for node in placeholders],
            "device": device_type, "autocast": autocast_of(device_type), "threads": torch.get_num_threads(),
            "precision": torch.get_float32_matmul_precision(), "deterministic": torch.are_deterministic_algorithms_enabled(),
            "configs": [(name, importlib.import_module(name).save_config()) for name in CONFIGS]}


class Apart:
    """seconds_left(): how long it may take."""

    def __init__(self, device_type, seconds_left):
        self._device_type, self._seconds_left, self._child = device_type, seconds_left, None

    def start(self):
        self._socket, theirs = socket.socketpair()
        self._folder = tempfile.TemporaryDirectory(prefix="dpro-")  # torch may write there, when it fails
        caches = {name: os.path.abspath(os.environ[name]) for name in CACHES if os.environ.get(name)}
        with theirs:
            self._child = own_process.start("compiled_apart", time.time() + self._seconds_left(), caches, stdin=theirs, stdout=theirs,
                                            stderr=subprocess.DEVNULL, cwd=self._folder.name, start_new_session=True)

    def end(self):
        """Returns the status with which it ended."""
        child, self._child = self._child, None
        if child is None:
            return 0
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)  # with the C++ compiler
        self._socket.close()
        status = child.wait()
        self._folder.cleanup()
        return status

    def problem(self, graph, inputs):
        """Why it can't be compiled, or run with these inputs; None where it can."""
        request, answer = io.BytesIO(), ""
        torch.save(_request(graph, inputs, self._device_type), request)
        try:
            if self._child is None:
                self.start()
            with contextlib.suppress(ConnectionError):
                for part in (request.tell().to_bytes(N_BYTES, "big"), request.getbuffer()):
                    self._socket.sendall(part, socket.MSG_NOSIGNAL)
                answer = self._socket.makefile().readline().strip()
        finally:
            status = None if answer else self.end()
        if answer:
            return answer[len(FAILED):] or None
        return "compiling it, or what that made, died of %s" % (signal.Signals(-status).name if status < 0 else "exit status %d" % status)


# In the process of its own

class _Again(torch.nn.Module):
    """What the graph was made of, about."""

    def __init__(self, source, parts, inputs, of_module):
        super().__init__()
        found = {}
        exec(source, found)
        self._code, self._of_module = found["forward"], of_module
        for name, value in parts.items():
            setattr(self, name, value)
        for n, (value, is_own) in enumerate(zip(inputs, of_module)):
            if is_own and isinstance(value, torch.nn.Parameter):
                self.register_parameter("given_%d" % n, value)
            elif is_own:
                self.register_buffer("given_%d" % n, value)

    def forward(self, *inputs):
        given = []
        for n, is_own in enumerate(self._of_module):
            given.append(getattr(self, "given_%d" % n) if is_own else inputs[n])
            getattr(given[n], "ndim", None)  # torch's compiler numbers inputs in the order in which it looks at them
        return self._code(self, *given)


def _answer(request):
    for name, config in request["configs"]:
        importlib.import_module(name).load_config(config)
    torch.set_num_threads(request["threads"])
    if torch.get_float32_matmul_precision() != request["precision"]:
        torch.set_float32_matmul_precision(request["precision"])
    torch.use_deterministic_algorithms(request["deterministic"])
    inputs, of_module = request["inputs"], request["of_module"]
    module = _Again(request["source"], request["parts"], inputs, of_module)
    compiled = compiling.Compiled(_Again.forward, strict=True)
    enabled, dtype = request["autocast"]
    with torch.autocast(request["device"], dtype, enabled=enabled):
        result = compiled(module, *[None if is_own else value for value, is_own in zip(inputs, of_module)])
    made = [t for t in result if isinstance(t, torch.Tensor) and t.requires_grad]
    leaves = [t for t in inputs if isinstance(t, torch.Tensor) and t.requires_grad]
    if made and leaves:
        torch.autograd.grad([t.sum() for t in made], leaves, allow_unused=True)
    torch._dynamo.reset()
    return FAILED + compiled.problem if compiled.problem else DONE


def main(until):
    """What is compiled may print: that goes nowhere."""
    signal.setitimer(signal.ITIMER_REAL, max(until - time.time(), 1))  # nothing of ours waits for a signal
    graphs, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "w", buffering=1)
    for number in (0, 1):
        os.dup2(2, number)
    while size := graphs.read(N_BYTES):
        request = io.BytesIO(graphs.read(int.from_bytes(size, "big")))
        try:
            answer = _answer(torch.load(request, weights_only=False))
        except Exception as problem:
            answer = FAILED + report.first_line(problem)
        print(answer, file=answers)
    os._exit(0)
