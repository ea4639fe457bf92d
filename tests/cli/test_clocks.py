"""Clocks that are off by a known amount, found from what the tracer logged of real processes' sockets."""
import glob
import os
import subprocess
import sys
import time

from ports import free_ports
from support import BUILD, SANITIZED, Case

TRACER = os.path.join(BUILD, "tracer", "libdpro_tracer.so")
SHIFT = os.path.join(BUILD, "tests", "tracer", "libdpro_test_shift.so")
SECONDS = 2.5

# Every process listens, and talks to all of a lower number, or to the first one only: questions and answers, of any
# size, at any time.
PEER = """
import random, socket, sys, threading, time
rank, ports, seconds, star = int(sys.argv[1]), [int(p) for p in sys.argv[2].split(",")], float(sys.argv[3]), int(sys.argv[4])

def ask(peer):
    with socket.socket() as s:
        for _ in range(200):
            try:
                s.connect(("127.0.0.1", ports[peer]))
                break
            except OSError:
                time.sleep(0.02)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            s.sendall(b"x" * random.randrange(1, 4000))
            s.recv(8192)
            time.sleep(random.random() * 0.01)

def answer(s):
    with s:
        while data := s.recv(8192):
            s.sendall(data)

with socket.create_server(("127.0.0.1", ports[rank])) as server:
    threads = [threading.Thread(target=ask, args=(peer,)) for peer in range(min(rank, 1) if star else rank)]
    for thread in threads:
        thread.start()
    for _ in range(0 if star and rank else len(ports) - 1 - rank):
        threads.append(threading.Thread(target=answer, args=(server.accept()[0],)))
        threads[-1].start()
    for thread in threads:
        thread.join()
"""


class Clocks(Case):
    def setUp(self):
        super().setUp()
        if SANITIZED:
            self.skipTest("a sanitizer's library can't be preloaded into Python")
        if not os.path.exists(SHIFT):
            self.skipTest(f"no {SHIFT}")

    def record(self, shifts, server=False):
        """Runs one process a shift (nanoseconds, ppm); returns since when they drift. The first may be a server, and the
        others then talk to it only."""
        names = [f"rank{rank - server}" if rank >= server else "server0" for rank in range(len(shifts))]
        since, ports = time.time_ns(), ",".join(map(str, free_ports(len(shifts))))
        python = os.path.realpath(sys.executable)
        running = []
        for rank, (shift_ns, ppm) in enumerate(shifts):
            out = self.path("trace", "host0", names[rank])
            os.makedirs(out)
            env = {**os.environ, "DPRO": "1", "DPRO_NET": "all", "DPRO_OUT": out, "SHIFT_NS": str(shift_ns), "SHIFT_PPM": str(ppm),
                   "SHIFT_SINCE_NS": str(since), "LD_PRELOAD": f"{SHIFT}:{TRACER}"}
            running.append(subprocess.Popen([python, "-c", PEER, str(rank), ports, str(SECONDS), str(int(server))], env=env))
        for process in running:
            self.assertEqual(process.wait(60), 0)
        for name in names:
            log, = glob.glob(self.path("trace", "host0", name, "*.log"))
            os.rename(log, self.path("trace", "host0", name, "net.log"))
        return since

    def test_clocks_of_real_processes_are_found(self):
        shifts = [(0, 0), (250_000_000, 80), (-3_000_000, -60)]
        since = self.record(shifts)
        facts = self.assert_json("align", self.path("trace"))
        self.assertEqual([host["ranks"] for host in facts["hosts"]], [[0], [1], [2]])
        self.assertEqual([host["method"] for host in facts["hosts"]], ["reference", "transport", "transport"])
        self.assertGreater(facts["pairs"], 100)
        self.assertGreater(facts["violations_before"], facts["pairs"] // 3)
        self.assertEqual(facts["violations_after"], 0)
        self.assertIn("contradict each other's times", " ".join(facts["warnings"]))  # one machine, several clocks
        for host, shift in list(zip(facts["hosts"], shifts))[1:]:
            self.check(host, shift, since)

    def check(self, host, shift, since):
        shift_ns, ppm = shift
        for segment in host["segments"]:
            for local in (segment["start_ns"], segment["end_ns"]):
                true = since + (local - shift_ns - since) / (1 + ppm * 1e-6)
                found = local + segment["offset_ns"] + segment["drift_ppm"] * 1e-6 * (local - segment["start_ns"])
                self.assertLessEqual(abs(found - true), segment["uncertainty_ns"] + 1000)
            self.assertLess(segment["uncertainty_ns"], 10_000_000)  # 0.1 ms where nothing else runs

    def test_workers_that_only_talk_to_a_server_are_tied_through_it(self):
        server, _, other = shifts = [(40_000_000, 50), (0, 0), (-3_000_000, -60)]
        since = self.record(shifts, server=True)
        facts = self.assert_json("align", self.path("trace"))
        hosts = facts["hosts"]
        self.assertEqual([host["ranks"] for host in hosts], [[0], [1], []])
        self.assertRegex(hosts[2]["host"], r" \(server 0\)$")  # one machine, several clocks
        self.assertEqual([host["method"] for host in hosts], ["reference", "transport", "transport"])
        self.assertEqual(facts["violations_after"], 0)
        self.check(hosts[1], other, since)
        self.check(hosts[2], server, since)

    def test_processes_with_one_clock_share_it(self):
        self.record([(0, 0), (0, 0)])
        facts = self.assert_json("align", self.path("trace"))
        self.assertEqual([host["ranks"] for host in facts["hosts"]], [[0, 1]])
        self.assertEqual(facts["violations_before"], 0)
