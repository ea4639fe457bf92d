"""dpro attach: what it tells processes that ask as PyTorch's profiler does, and what it makes of what they write.

The processes here are stand-ins that speak the protocol; tests/live has real ones."""
import gzip
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import time

from support import DONE, DPRO, INPUT, SYSTEM, USAGE, Case, dpro, job, read_json, read_text

# Asks as Kineto does, five times a second rather than every five; then does as MODE says.
CLIENT = r"""
import json, os, socket, struct, sys, time
folder, mode, trace, ancestors = sys.argv[1], sys.argv[2], sys.argv[3], [int(pid) for pid in sys.argv[4].split(",") if pid]
name = os.path.join(folder, "client%d" % os.getpid())
client = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
client.bind(name)
client.settimeout(5)
pids = [os.getpid()] + ancestors
print(os.getpid(), flush=True)
while True:
    payload = struct.pack("<iiq%di" % len(pids), 3, len(pids), 0, *pids)
    try:
        client.sendto(struct.pack("<Q32s", len(payload), b"req") + payload, os.path.join(folder, "dynolog"))
        answer = client.recv(65536)
    except OSError:  # no daemon yet, or no more
        time.sleep(0.2)
        continue
    size, kind = struct.unpack_from("<Q32s", answer)
    assert kind.rstrip(b"\0") == b"req" and size == len(answer) - 40, answer
    if size:
        config = dict(line.split("=", 1) for line in answer[40:].decode().splitlines())
        print(json.dumps(config), flush=True)
        if mode == "die":
            sys.exit(1)
        if mode == "write":
            path = config["ACTIVITIES_LOG_FILE"].replace(".json", "_%d.json" % os.getpid())
            with open(path + ".tmp", "w") as file:
                file.write(open(trace).read())
            os.rename(path + ".tmp", path)
    time.sleep(0.2)
"""


class Attach(Case):
    def setUp(self):
        super().setUp()
        self.trace = self.path("trace")
        self.sockets = self.path("sockets")
        os.mkdir(self.sockets)
        self.env = {"KINETO_IPC_SOCKET_DIR": self.sockets}
        self.address = os.path.join(self.sockets, "dynolog")
        for rank, content in enumerate(job(world=2)):
            del content["distributedInfo"]  # as PyTorch writes it when it is asked by the daemon
            self.write(f"rank{rank}.json", self.text_of(content))
        self.write("empty.json", self.text_of({"schemaVersion": 1, "traceEvents": []}))

    @staticmethod
    def text_of(content):
        return json.dumps({**content, "traceName": "kineto.json"})

    def client(self, trace, mode="write", above=(), **environment):
        clean = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "GROUP_RANK")}
        process = subprocess.Popen([sys.executable, "-c", CLIENT, self.sockets, mode, self.path(trace),
                                    ",".join(str(pid) for pid in above)], env={**clean, **environment},
                                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        self.addCleanup(self.end, process)
        self.assertEqual(int(process.stdout.readline()), process.pid)
        return process

    @staticmethod
    def end(process):
        process.kill()
        process.communicate()

    def start(self, *args):
        process = subprocess.Popen([DPRO, "attach", "-o", self.trace, *args], env={**os.environ, **self.env},
                                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.addCleanup(self.end, process)
        deadline = time.monotonic() + 20
        while not os.path.exists(self.address) and time.monotonic() < deadline:
            time.sleep(0.02)
        return process

    def attach(self, *args, **more):
        return dpro("attach", "-o", self.trace, "--delay-s=8", *args, env=self.env, **more)

    def files(self):
        return sorted(os.path.relpath(os.path.join(folder, name), self.trace)
                      for folder, _, names in os.walk(self.trace) for name in names)

    def ranks(self, **more):
        world = {"WORLD_SIZE": "2", "GROUP_RANK": "0", **more}
        return [self.client(f"rank{rank}.json", RANK=str(rank), LOCAL_RANK=str(rank), **world) for rank in range(2)]


class Recording(Attach):
    def test_the_ranks_of_a_job_are_told_the_same_and_replay(self):
        launcher = self.client("empty.json")
        ranks = self.ranks()
        self.client("rank0.json", above=[ranks[0].pid], RANK="0", WORLD_SIZE="2", GROUP_RANK="0")  # a data loader
        result = self.attach("--duration-ms", "1500")
        self.assert_code(result, DONE)
        self.assertEqual(result.out, "")
        self.assertRegex(result.err, rf"(?m)^dpro: rank 1 \(process {ranks[1].pid}\) records 1.5 s, beginning in 8 s$")
        self.assertTrue(result.err.endswith(f"dpro: recorded 2 ranks\ndpro: next: dpro replay {self.trace}\n"))
        self.assertEqual(self.files(), ["host0/rank0/kineto.json.gz", "host0/rank0/rank.json",
                                        "host0/rank1/kineto.json.gz", "host0/rank1/rank.json", "job.json"])
        configs = [json.loads(process.stdout.readline()) for process in [launcher] + ranks]
        self.assertEqual(configs[1]["ACTIVITIES_DURATION_MSECS"], "1500")
        self.assertEqual(configs[1]["PROFILE_REPORT_INPUT_SHAPES"], "true")
        self.assertEqual(len({config["PROFILE_START_TIME"] for config in configs}), 1)
        self.assertGreater(int(configs[1]["PROFILE_START_TIME"]) / 1000, time.time() - 10)
        self.assertEqual(read_text(self.path("trace/host0/rank1/kineto.json.gz")), read_text(self.path("rank1.json")))
        facts = read_json(self.path("trace/host0/rank1/rank.json"))
        self.assertEqual((facts["rank"], facts["world_size"], facts["local_rank"], facts["pid"], facts["complete"]),
                         (1, 2, 1, ranks[1].pid, True))
        facts = self.assert_replays(self.trace)
        self.assertEqual([rank["rank"] for rank in facts["ranks"]], [0, 1])

    def test_ranks_that_nothing_tells_are_numbered_and_that_is_said(self):
        first, second = self.client("rank0.json"), self.client("rank1.json")
        order = sorted([(first.pid, "rank0.json"), (second.pid, "rank1.json")])
        result = self.attach()
        self.assert_code(result, DONE)
        self.assertIn("numbered by process id", result.err)
        host = os.uname().nodename
        for rank, (_, name) in enumerate(order):
            with gzip.open(self.path(f"trace/host{host}/rank{rank}/kineto.json.gz"), "rb") as packed, \
                    open(self.path(name), "rb") as raw:
                self.assertEqual(packed.read(), raw.read())
        self.assertEqual(len(self.files()), 5)

    def test_only_the_process_asked_for_and_those_below_it_record(self):
        self.ranks()
        other = self.client("rank0.json", above=[os.getpid(), 77777], RANK="0", WORLD_SIZE="1", SLURM_NODEID="3")
        result = self.attach("--pid", "77777")
        self.assert_code(result, DONE)
        self.assertEqual(self.files(), ["host3/rank0/kineto.json.gz", "host3/rank0/rank.json", "job.json"])
        self.assertNotIn("(process 77777)", result.err)
        self.assertIn(f"(process {other.pid})", result.err)

    def test_processes_that_leave_no_trace_are_named_and_the_others_kept(self):
        rank = self.client("rank0.json", RANK="0", WORLD_SIZE="3", GROUP_RANK="0")
        dead = self.client("rank1.json", "die", RANK="1", WORLD_SIZE="3", GROUP_RANK="0")
        idle = self.client("rank1.json", "idle", RANK="2", WORLD_SIZE="3", GROUP_RANK="0")
        result = self.attach("--duration-ms=1")
        self.assert_code(result, DONE)
        self.assertRegex(result.err, rf"rank 1 \(process {dead.pid}\) ended before it had written")
        self.assertRegex(result.err, rf"rank 2 \(process {idle.pid}\) wrote no trace")
        self.assertRegex(result.err, rf"rank 0 \(process {rank.pid}\) has written")
        self.assertIn("recorded 1 of 3 ranks", result.err)
        self.assertEqual(self.files(), ["host0/rank0/kineto.json.gz", "host0/rank0/rank.json", "job.json"])
        self.assertEqual(os.listdir(self.path("trace/host0")), ["rank0"])

    def test_a_job_that_trains_nothing_leaves_nothing(self):
        self.client("empty.json")
        result = self.attach()
        self.assert_code(result, INPUT)
        self.assertIn("none left a trace of training", result.err)
        self.assertFalse(os.path.exists(self.trace))

    def test_hostile_datagrams_do_no_harm(self):
        process = self.start("--delay-s=8", "-q")
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.bind(os.path.join(self.sockets, "hostile"))
            pid = struct.pack("<iiqi", 3, 1, 0, os.getpid())
            for data in (b"", b"x", b"\xff" * 40, b"\0" * 4096, b"A" * 60000, struct.pack("<Q32s", 2**64 - 1, b"req") + pid,
                         struct.pack("<Q32s", 20, b"req") + struct.pack("<iiqi", 3, 2**31 - 1, 0, 1),
                         struct.pack("<Q32s", 20, b"x" * 32) + pid, struct.pack("<Q32s", 0, b"ctxt")):
                sender.sendto(data, self.address)
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as nameless:  # can't be answered
                nameless.sendto(struct.pack("<Q32s", 20, b"req") + pid, self.address)
            sender.settimeout(10)
            sender.sendto(struct.pack("<Q32siiq", 16, b"ctxt", 0, os.getpid(), 0), self.address)
            self.assertEqual(sender.recv(100), struct.pack("<Q32si", 4, b"ctxt", 1))  # the first and only answer
        self.ranks()
        self.assertEqual(process.communicate(timeout=60)[1], b"")
        self.assertEqual(process.returncode, DONE)


class Ends(Attach):
    def test_nobody_there_is_told_how_a_job_must_be_started(self):
        self.assert_error(dpro("attach", "-q", "-o", self.trace, "--wait=1", env=self.env), INPUT,
                          "no process asked for 1 s", "KINETO_USE_DAEMON=1")
        self.assertFalse(os.path.exists(self.trace) or os.path.exists(self.address))

    def test_the_process_asked_for_is_told_from_others(self):
        self.client("rank0.json")
        self.assert_error(dpro("attach", "-q", "-o", self.trace, "--wait=1", "--pid=77777", env=self.env), INPUT,
                          "process 77777 did not ask for 1 s, though others did")

    def test_ctrl_c_while_nobody_is_there_ends_cleanly(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            process = self.start("-q")
            process.send_signal(number)
            err = process.communicate(timeout=20)[1].decode()
            self.assertEqual(process.returncode, INPUT)
            self.assertRegex(err, r"\Adpro: stopped before any process recorded: start the job with KINETO_USE_DAEMON=1\n\Z")
            self.assertFalse(os.path.exists(self.trace) or os.path.exists(self.address))

    def test_ctrl_c_keeps_what_is_there_and_counts_the_rest(self):
        rank = self.client("rank0.json", RANK="0", WORLD_SIZE="2", GROUP_RANK="0")
        idle = self.client("rank1.json", "idle", RANK="1", WORLD_SIZE="2", GROUP_RANK="0")
        process = self.start("--delay-s=30")
        json.loads(idle.stdout.readline())
        written = json.loads(rank.stdout.readline())["ACTIVITIES_LOG_FILE"].replace(".json", f"_{rank.pid}.json")
        deadline = time.monotonic() + 20
        while not os.path.exists(written) and time.monotonic() < deadline:
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        err = process.communicate(timeout=20)[1].decode()
        self.assertEqual(process.returncode, DONE)
        self.assertIn("1 of 2 processes have not written their traces yet", err)
        self.assertIn("recorded 1 of 2 ranks", err)
        self.assertIn("host0/rank0/kineto.json.gz", self.files())

    def test_a_second_daemon_is_refused(self):
        self.start()
        self.assert_error(dpro("attach", "-q", "-o", self.path("other"), env=self.env), SYSTEM, "'dynolog' is taken")
        self.assertFalse(os.path.exists(self.path("other")))

    def test_what_a_killed_daemon_left_is_no_hindrance(self):
        left = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        left.bind(self.address)
        left.close()
        self.assert_error(dpro("attach", "-q", "-o", self.trace, "--wait=1", env=self.env), INPUT, "no process asked")


class Usage(Attach):
    def test_a_recording_is_not_written_over(self):
        self.write("trace/job.json", "{}")
        self.write("trace/host0/rank0/kineto.json.gz", b"x")
        self.assert_error(self.attach(), USAGE, "holds a recording", "--force")

    def test_a_folder_that_kineto_cannot_be_told_of_is_refused(self):
        self.assert_error(dpro("attach", "-q", "-o", self.path("run #7"), env=self.env), USAGE, re.escape("run #7"))

    def test_arguments_are_refused(self):
        self.assert_error(dpro("attach", "4711"), USAGE, "'4711': --pid")

    def test_bad_values_name_the_option_and_the_form(self):
        for option, values in {"--pid": ["", "0", "-1", "x", "99999999999"], "--duration-ms": ["0", "2s", "99999999999"],
                               "--delay-s": ["7", "x"], "--wait": ["0", "-1"], "--output": [""]}.items():
            for value in values:
                with self.subTest(option=option, value=value):
                    self.assert_error(dpro("attach", f"{option}={value}"), USAGE,
                                      re.escape(f"{option}: '{value}' is not "))
