"""dpro attach on real PyTorch processes: they record themselves when told, their traces replay, and what they learn is
what they would have learnt."""
import os
import re
import signal
import socket
import subprocess
import unittest

import live
from live import DPRO, PYTHON
from ports import free_ports

STEPS = 1000  # with pauses, until a file "done" is there
TRAIN = f"""
import hashlib, os, sys, time
import torch, torch.distributed as dist
def train(rank, world, pause):
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world))
    torch.set_num_threads(1)
    torch.manual_seed(7)
    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(4)]))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    digest = hashlib.sha256()
    for step in range({STEPS}):
        optimizer.zero_grad()
        loss = model(torch.randn(8, 64)).pow(2).mean()
        loss.backward()
        optimizer.step()
        digest.update(repr(loss.item()).encode())
        if rank == 0 and step == 0:
            print("TRAINS", flush=True)
        if not os.path.exists("done"):
            time.sleep(pause)
    if rank == 0:
        print("DIGEST", digest.hexdigest(), flush=True)
    dist.barrier()
    time.sleep(0.3)  # see live.py
    dist.destroy_process_group()
if __name__ == "__main__":
    pause = float(sys.argv[1])
    if "RANK" in os.environ:
        train(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), pause)
    else:
        import torch.multiprocessing
        torch.multiprocessing.spawn(train, args=(2, pause), nprocs=2)
"""


def dynolog_is_taken():
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as one:
        try:
            one.bind("\0dynolog\0")
        except OSError:
            return True
    return False


class Attach(live.Case):
    WARM = True  # what is compared with

    def setUp(self):
        super().setUp()
        self.script = self.path("train.py")
        with open(self.script, "w", encoding="utf-8") as file:
            file.write(TRAIN)
        self.env = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE", "KINETO_IPC_SOCKET_DIR")}
        self.env["OMP_NUM_THREADS"] = "1"

    def begin(self, *command, **env):
        process = subprocess.Popen([PYTHON, *command], env={**self.env, **env}, stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True, cwd=self.folder)
        self.addCleanup(self.end, process)
        return process

    @staticmethod
    def end(process):
        try:
            os.killpg(process.pid, signal.SIGKILL)  # torchrun's ranks, too
        except ProcessLookupError:
            pass
        process.communicate()

    def trained(self, process):
        """What it prints to its end."""
        out, err = process.communicate(timeout=300)
        self.assertEqual(process.returncode, 0, err.decode()[-3000:])
        return out.decode()

    def attach(self, *args, **env):
        """Records the job, which then trains to its end without pauses."""
        done = subprocess.run([DPRO, "attach", "-o", self.trace, *args], env={**self.env, **env},
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=120)
        self.assertEqual(done.returncode, 0, done.stderr.decode())
        with open(self.path("done"), "w", encoding="utf-8"):
            pass
        return done.stderr.decode()

    def check(self, facts):
        self.assertEqual([rank["rank"] for rank in facts["ranks"]], [0, 1])
        self.assertGreater(len(facts["measured"]["per_iteration_ms"]), 10)
        # steps differ by as much as what runs beside them makes them
        self.assertLess(abs(facts["error_pct"]), max(5, facts["validation"]["measured_std_pct"]))

    @unittest.skipIf(dynolog_is_taken(), "a dynolog daemon runs here")
    def test_a_job_of_torchrun_is_recorded_and_learns_the_same(self):
        launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
        process = self.begin(*launch, self.script, "0.03", KINETO_USE_DAEMON="1")
        self.assertEqual(process.stdout.readline(), b"TRAINS\n")
        said = self.attach("--pid", str(process.pid))
        self.assertIn("recorded 2 ranks\n", said)
        self.assertEqual(sorted(os.listdir(os.path.join(self.trace, "host0"))), ["rank0", "rank1"])
        self.check(self.replay())
        run = self.run_script(self.script, dpro=False, arguments=["0"])
        self.assert_ran(run)
        self.assertEqual(*(re.search(r"^DIGEST (\w+)$", out, re.M)[1] for out in (self.trained(process), run.out)))

    def test_ranks_that_a_script_starts_by_itself_are_recorded_over_a_socket_file(self):
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_ports()[0]), "KINETO_USE_DAEMON": "1",
                   "KINETO_IPC_SOCKET_DIR": self.folder}
        process = self.begin(self.script, "0.03", **address)
        self.assertEqual(process.stdout.readline(), b"TRAINS\n")
        said = self.attach("--duration-ms=1500", KINETO_IPC_SOCKET_DIR=self.folder)
        self.assertIn("numbered by process id", said)
        self.assertIn("recorded 2 ranks\n", said)
        self.check(self.replay())
        self.assertIn("DIGEST", self.trained(process))
