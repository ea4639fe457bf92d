"""A worker of MXNet and its server, written as a profile, the executor's graph and transport logs.

The server updates two parameters, of which the next iteration's first op takes the small one, its second op the large one.
Both gradients are there at once, and one call sends them, in every other iteration the large one first, so that the small
one stands behind it. Times are in microseconds."""
import json
import os

WORKER, SERVERS = "10.0.0.1:500", ("10.0.0.8:800", "10.0.0.9:900")
RANGE = (2**64 - 1) // 2  # of keys, a server's where there are two
ENGINE, MAIN, CALLER = 11, 12, 13  # threads
FLOATS = 999, 100000  # of the parameters, by their keys
N, T0 = 9, 1_795_250_000_000_000
SHORT, LONG = 1195, 1500  # periods: the first op waits for the small parameter or for both
GRAPH = """Symbol Outputs:
	output[0]=second(0)
Variable:data
Variable:small_weight
--------------------
Op:Convolution, Name=first
Inputs:
	arg[0]=data(0) version=0
	arg[1]=small_weight(0) version=0
Variable:large_weight
--------------------
Op:FullyConnected, Name=second
Inputs:
	arg[0]=first(0) version=0
	arg[1]=large_weight(0) version=0
--------------------
Op:_backward_FullyConnected, Name=second_backward
Inputs:
	arg[0]=second(0)
--------------------
Op:_backward_Convolution, Name=first_backward
Inputs:
	arg[0]=second_backward(0)
Total 5 MB allocated
"""


def varints(**fields):
    numbers = {"request": 4, "push": 5, "timestamp": 8, "pull": 12}
    return b"".join(bytes((number << 3, fields[name])) for name, number in numbers.items())


def wire(frames):
    """Bytes that these frames take on the wire."""
    return sum(len(frame) + (2 if len(frame) < 256 else 9) for frame in frames)


class Log:
    """Of one process: its calls and frames."""

    def __init__(self):
        self._lines, self._offsets = [], {}

    def call(self, name, connection, n_bytes, start, end):
        offset = self._offsets.get((name, connection), 0)
        self._offsets[name, connection] = offset + n_bytes
        self._lines.append((start, "%s,%s,%d,%d,%d,%d,1" % (name, connection, offset, n_bytes, start * 1000, end * 1000)))

    def frames(self, name, frames, at, socket=1, sender=None):
        if sender:
            frames = [sender.encode(), *frames]
        for i, frame in enumerate(frames):
            more = 2 if name.endswith("send") and i + 1 < len(frames) else 0
            self._lines.append((at, "%s,0x%d,%d,%d,%d,%d,1,%s" % (name, socket, more, len(frame), at * 1000, at * 1000,
                                                                  frame.hex() if len(frame) <= 250 else "")))

    def write(self, path):
        with open(path, "w", encoding="ascii") as file:
            file.write("# op,local>peer,stream_offset,bytes,t0_ns,t1_ns\n")
            file.write("".join(line + "\n" for _, line in sorted(self._lines, key=lambda line: line[0])))


def write(folder, copies=False, late=0, apart=False):
    """`copies`: what was pulled is copied by the engine; `late`: the first iteration's answers are, by so much; `apart`: the
    large parameter has a server of its own, to which it is sent first, and on the way the small one overtakes it."""
    worker, servers, events = Log(), [Log() for _ in range(2 if apart else 1)], []

    def span(name, category, thread, start, end):
        phases = "BE" if category == "operator" else "be"
        events.extend({"name": name, "cat": category, "ph": phase, "ts": at, "pid": 0, "tid": thread}
                      for phase, at in zip(phases, (start, end)))

    at = T0  # gradients are there
    for i in range(N):
        large_first = i % 2 == 0 and not apart
        for k, name in enumerate(("MXNDArrayCreateEx", "MXNDArraySyncCopyFromCPU", "MXImperativeInvokeEx", "MXExecutorForward",
                                  "MXExecutorBackwardEx", "MXKVStorePushPullEx", "MXKVStorePushPullEx")):
            span(name, "MXNET_C_API", CALLER, at - 190 + 4 * k, at - 188 + 4 * k)
        sent = []
        ways = ((1, 400, 410, 810), (0, 420, 430, 830)) if large_first else ((0, 20, 30, 50), (1, 420, 430, 830))
        for k, (key, arrived, answered, back) in enumerate(reversed(ways) if apart else ways):
            back += late if i == 0 else 0
            number = key if apart else 0
            server, far = servers[number], SERVERS[number]
            meta = {"push": 1, "timestamp": 2 * i + k, "pull": 1}
            wire_key = (key + number * RANGE).to_bytes(8, "little")
            tail = [wire_key, bytes(4 * FLOATS[key]), b"\0\0\0\0"]
            request, answer = [varints(request=1, **meta), *tail], [varints(request=0, **meta), *tail]
            sent.append(request)
            worker.frames("zmq_msg_send", request, at, socket=1 + number)
            if apart:
                worker.call("send", WORKER + "%d>%s1" % (1 + 2 * number, far), wire(request), at + k, at + k + 1)
            server.call("recv", "%s1>%s%d" % (far, WORKER, 1 + 2 * number), wire(request), at + arrived - 1, at + arrived)
            server.frames("zmq_msg_recv", request, at + arrived, sender="ps9")
            server.frames("zmq_msg_send", answer, at + answered)
            server.call("send", "%s2>%s%d" % (far, WORKER, 2 + 2 * number), wire(answer), at + answered, at + answered + 1)
            worker.call("recv", "%s%d>%s2" % (WORKER, 2 + 2 * number, far), wire(answer), at + back - 1, at + back)
            worker.frames("zmq_msg_recv", answer, at + back, sender="ps%d" % (8 + 2 * number))
            span("KVStoreDistDefaultStoragePushPull", "operator", MAIN, at, at + back + 3)
            if copies:
                span("CopyCPU2CPU", "operator", ENGINE, at + back + 4, at + back + 8)
        if not apart:
            worker.call("send", WORKER + "1>" + SERVERS[0] + "1", sum(map(wire, sent)), at, at + 1)
        first, rest = (840, 1145) if large_first else (60, 840)
        if i == 0:
            first, rest = first + late, rest + late
        for name, start, end in (("Convolution", first, first + 300), ("FullyConnected", rest, rest + 160),
                                 ("_backward_FullyConnected", rest + 165, rest + 255),
                                 ("_backward_Convolution", rest + 260, rest + 350)):
            span(name, "operator", ENGINE, at + start, at + end)
        span("MXNDArraySyncCopyToCPU", "MXNET_C_API", CALLER, at - 150, at + rest + 163)
        at += (LONG if large_first else SHORT) + (late if i == 0 else 0)
    with open(os.path.join(folder, "profile_worker0.json"), "w", encoding="ascii") as file:
        process = {"ph": "M", "name": "process_name", "pid": 0, "args": {"name": "cpu/0"}}
        json.dump({"traceEvents": [process, *sorted(events, key=lambda event: event["ts"])]}, file)
    with open(os.path.join(folder, "exec_debug_str.txt"), "w", encoding="ascii") as file:
        file.write(GRAPH)
    worker.write(os.path.join(folder, "net_worker0.csv"))
    for number, server in enumerate(servers):
        server.write(os.path.join(folder, "net_server%d.csv" % number))
