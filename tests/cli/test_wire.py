"""BytePS's messages on the wire: two real processes talk ZMTP with the C structs of its ps-lite, and the tracer listens."""
import glob
import json
import os
import subprocess
import sys

from ports import free_ports
from support import BUILD, SANITIZED, Case

TRACER = os.path.join(BUILD, "tracer", "libdpro_tracer.so")
N, FLOATS = 6, (500, 10000)  # iterations; of the keys

# Each node listens, and sends on a connection of its own to where the other one listens, as ps-lite does.
PEER = """
import json, socket, struct, sys, time
server, floats, out = sys.argv[1] == "server", eval(sys.argv[5]), sys.argv[6]
own, other, n = map(int, sys.argv[2:5])

def frame(flags, body):
    return bytes([flags | 2]) + len(body).to_bytes(8, "big") + body if len(body) > 255 else bytes([flags, len(body)]) + body

def meta(command=0, nodes=(), request=False, push=False, timestamp=0, key=0, types=0):
    head = struct.pack("<iiiii4xQ?3xiiii??2xi4xQQii", 0, 0, command, len(nodes), 0, 0, request, 0, timestamp, types, 0, push, False,
                       0, key, 0, 0, 0)
    return head + bytes(4 * types) + b"".join(struct.pack("<ii64sii4x", role, number, b"127.0.0.1", port, 0)
                                              for role, number, port in nodes)

def send(*frames):
    to.sendall(b"".join(frame(1 if k + 1 < len(frames) else 0, body) for k, body in enumerate(frames)))

def exactly(size):
    data = b""
    while len(data) < size:
        data += came.recv(size - len(data)) or sys.exit("the other one is gone")
    return data

def receive():
    frames, more = [], True
    while more:
        flags, size = exactly(2)
        if flags & 2:
            size = int.from_bytes(bytes([size]) + exactly(7), "big")
        body = exactly(size)
        if not flags & 4:
            frames.append(body)
            more = flags & 1
    return frames

greeting = b"\\xff" + bytes(8) + b"\\x7f\\x03\\x00" + b"NULL".ljust(20, b"\\0") + bytes(32) + frame(4, b"\\x05READY")
with socket.create_server(("127.0.0.1", own)) as listener:
    to = socket.socket()
    for _ in range(300):
        try:
            to.connect(("127.0.0.1", other))
            break
        except OSError:
            time.sleep(0.02)
    to.sendall(greeting)
    came = listener.accept()[0]
    came.sendall(greeting)
    exactly(64)

def exchange(key, push, timestamp):
    values = bytes(4 * floats[key])
    head = meta(request=True, push=push, timestamp=timestamp, key=key, types=3)
    send(head, struct.pack("<Q", key), values if push else b"", struct.pack("<i", len(values)))
    receive()

if server:
    # what the scheduler tells all nodes: a list, in which these two come last
    send(meta(2, [(1, 11 + 2 * k, 9) for k in range(2)] + [(0, 8, own), (1, 9, other)]))
    for _ in range(2 * n * len(floats)):
        head, key, values, sizes = receive()
        timestamp, push, wanted = struct.unpack_from("<i", head, 40)[0], head[52], struct.unpack("<Q", key)[0]
        answer = meta(push=bool(push), timestamp=timestamp, key=0x7f0123456789,  # whatever stood there
                      types=0 if push else 3)
        send(answer, *(() if push else (key, bytes(4 * floats[wanted]), sizes)))
else:
    receive()
    events = [{"ph": "M", "name": "process_name", "pid": 0, "args": {"name": "cpu/0"}}]

    def span(name, thread, start, end):
        for phase, at in (("B", start), ("E", end)):
            events.append({"name": name, "cat": "operator", "ph": phase, "ts": at // 1000, "pid": 0, "tid": thread})

    for i in range(n):
        start = time.time_ns()
        time.sleep(0.004)
        span("Convolution", 1, start, time.time_ns())
        for key in range(len(floats)):
            for push in (True, False):
                start = time.time_ns()
                exchange(key, push, 2 * (i * len(floats) + key) + (not push))
                span("KVStoreDistDefaultStorage" + ("Push" if push else "Pull"), 2, start, time.time_ns())
    with open(out, "w") as file:
        json.dump({"traceEvents": events}, file)
"""


class Wire(Case):
    def setUp(self):
        super().setUp()
        if SANITIZED:
            self.skipTest("a sanitizer's library can't be preloaded into Python")

    def test_pushes_and_pulls_are_known_from_byteps_structs(self):
        ports, running = free_ports(2), []
        for role, name in enumerate(("server", "worker")):
            out = self.path("logs", name)
            os.makedirs(out)
            env = {**os.environ, "DPRO": "1", "DPRO_NET": "all", "DPRO_OUT": out, "LD_PRELOAD": TRACER}
            running.append(subprocess.Popen([os.path.realpath(sys.executable), "-c", PEER, name, str(ports[role]),
                                             str(ports[1 - role]), str(N), str(FLOATS), self.path("profile_worker0.json")], env=env))
        for process in running:
            self.assertEqual(process.wait(60), 0)
        os.makedirs(self.path("trace"))
        os.rename(self.path("profile_worker0.json"), self.path("trace", "profile_worker0.json"))
        for name, wrong in (("server", "net_server5.log"), ("worker", "net_worker3.log")):
            log, = glob.glob(self.path("logs", name, "*.log"))
            os.rename(log, self.path("trace", wrong))
        facts = self.assert_replays(self.path("trace"))
        transport = facts["transport"]
        self.assertEqual((transport["pushes"], transport["pulls"]), (N * len(FLOATS),) * 2)
        # the list of nodes says who is who, whatever the files are called
        self.assertEqual(transport["collectives_tied"], 2 * N * len(FLOATS), json.dumps(facts["warnings"]))
