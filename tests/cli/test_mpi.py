"""Several processes under mpirun: the same answer as one, and no hang whatever goes wrong."""
import contextlib
import glob
import gzip
import os
import pty
import re
import shutil
import signal
import subprocess
import time
import unittest

import nccl_job
from support import BUILD, BUNDLED, DONE, DPRO, INPUT, ROOT, SANITIZED, SYSTEM, USAGE, Case, Result, dpro, read_json

RANKS = 4
TOGETHER = "files of this kind are read together by one process"
QUIET = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def start(*parts, n=RANKS, stderr=subprocess.PIPE, env=None):
    """Starts parts, each (processes, command...); or dpro with these arguments in n processes."""
    if isinstance(parts[0], str):
        parts = [(n, DPRO, *parts)]
    command = [":", "-n"]
    words = ["mpirun", "-q", "--oversubscribe"]
    for i, (count, *run) in enumerate(parts):
        words += [*command[i == 0:], str(count), *run]
    return subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr,
                            env={**os.environ, **QUIET, **(env or {})})


def finish(running):
    try:
        out, err = running.communicate(timeout=100)
    finally:
        running.kill()
    return Result(running.returncode, out.decode(), err.decode())


def mpirun(*parts, n=RANKS):
    return finish(start(*parts, n=n))


def who_reads(path):
    """The process that has the file open; None: nobody."""
    for link in glob.glob("/proc/[0-9]*/fd/*"):
        with contextlib.suppress(OSError):
            if os.readlink(link) == path:
                return int(link.split("/")[2])
    return None


@unittest.skipUnless(shutil.which("mpirun"), "mpirun is not here: apt install openmpi-bin")
@unittest.skipUnless(os.path.exists(os.path.join(BUILD, "mpi", "libdpro_mpi.so")), "dpro was built without MPI")
@unittest.skipIf(SANITIZED, "the sanitizers' runtimes find what MPI itself leaves behind")
class MpiTest(Case):
    def setUp(self):
        super().setUp()
        for rank in range(RANKS):
            profile = read_json(os.path.join(BUNDLED, "kineto_rank%d.json.gz" % (rank % 2)))
            profile["distributedInfo"].update(rank=rank, world_size=RANKS)
            self.write("trace/rank%d.json.gz" % rank, profile)
        self.trace = self.path("trace")

    def check_same(self, *args, n=RANKS, idle=""):
        """idle: why the other processes have nothing to do."""
        alone, together = dpro(*args), mpirun(*args, n=n)
        note = ", so the other processes of mpirun have nothing to do\n"
        took = r"candidates in [0-9.]* s"
        self.assertEqual((together.code, re.sub(took, "", together.out)), (alone.code, re.sub(took, "", alone.out)))
        if idle:
            self.assertRegex(together.err, r"\Adpro: [^\n]*" + idle + note)
        self.assertEqual(together.err.split(note)[-1], alone.err)
        return alone

    def copy(self, name, *left_out):
        return shutil.copytree(os.path.join(ROOT, "tests", "data", name), self.path(name), ignore=shutil.ignore_patterns(*left_out))

    def test_answers_are_the_same_to_the_byte(self):
        for args in (("replay",), ("replay", "--json", "--samples", "3"), ("align",), ("whatif", "--json")):
            with self.subTest(args=args):
                self.assertEqual(self.check_same(*args, self.trace).code, DONE)
        self.check_same("optimize", self.trace)  # it tells that a profile alone is not enough
        for n in (2, 7):
            with self.subTest(n=n):
                self.check_same("replay", self.trace, n=n)

    def test_ranks_are_built_by_the_process_that_reads_them(self):
        together = mpirun((1, DPRO, "replay", "-v", self.trace), (1, DPRO, "replay", self.trace))
        self.assertIn("2 of 4 ranks built by other processes", together.err)

    def test_each_process_is_dealt_as_much(self):
        with gzip.open(self.path("trace", "rank0.json.gz")) as file:
            self.write("trace/rank0.json", file.read().ljust(8_000_000))
        os.remove(self.path("trace", "rank0.json.gz"))
        self.check_same("replay", "--json", self.trace, n=2)
        together = mpirun((1, DPRO, "replay", "-v", self.trace), (1, DPRO, "replay", self.trace))
        self.assertIn("3 of 4 ranks built by other processes", together.err)

    def test_files_are_written_once_and_the_same(self):
        self.assertEqual(dpro("replay", "-o", self.path("alone"), self.trace).code, DONE)
        self.assertEqual(mpirun("replay", "-o", self.path("together"), self.trace).code, DONE)
        with open(self.path("alone", "replay.json"), "rb") as a, open(self.path("together", "replay.json"), "rb") as b:
            self.assertEqual(a.read(), b.read())

    def test_formats_that_join_ranks_are_read_by_the_first_process(self):
        for name in sorted(os.listdir(os.path.join(ROOT, "tests", "data"))):
            if name.startswith(("torch-ddp-", "torch-fsdp-", "torch-pp-")):  # those of the next case, and more of their kind
                continue
            with self.subTest(name=name):
                idle = "no rank is left" if "-nccl-" in name else not name.startswith("torch-") and TOGETHER
                self.check_same("replay", "--json", os.path.join(ROOT, "tests", "data", name), n=2, idle=idle or "")
        self.check_same("replay", "-q", os.path.join(ROOT, "tests", "data", "byteps-torch-n2"), n=2)
        folder = self.copy("byteps-torch-n2")
        for name in ("rank0", "scheduler", "server0"):  # another process finds out that there is such a log
            os.remove(os.path.join(folder, "hostvm", name, "net.log.gz"))
        self.check_same("replay", folder, n=2, idle="hostvm/rank1/net.log.gz: " + TOGETHER)
        self.check_same("replay", "--rank-regex", "rank([0-9])", self.trace, idle="with --rank-regex one process reads all files")

    def test_recordings_are_divided(self):
        for name, commands in (("torch-ddp-gloo-gpt-n2-memory", ((2, "replay", "--json"), (2, "optimize"))),
                               ("torch-fsdp-gloo-n2-memory", ((2, "align"), (2, "whatif", "--json"))),
                               ("torch-fsdp-tp-gloo-n4", ((4, "replay"), (2, "whatif", "--json"), (2, "optimize"))),
                               ("torch-pp-gloo-n2", ((4, "replay"), (2, "align"), (2, "optimize")))):
            with self.subTest(name=name):
                folder = self.copy(name)
                for n, *args in commands:
                    self.check_same(*args, folder, n=n)
                together = mpirun((1, DPRO, "replay", "-v", folder), (1, DPRO, "replay", folder))
                self.assertRegex(together.err, r"(1 of 2|2 of 4) ranks built by other processes")
                for rank in glob.glob(os.path.join(folder, "*", "rank1")):
                    os.makedirs(self.path("other", name, "host"))
                    shutil.move(rank, self.path("other", name, "host"))
                alone = dpro("replay", folder, self.path("other", name))
                together = mpirun((1, DPRO, "replay", "-v", folder), (1, DPRO, "replay", self.path("other", name)))
                self.assertEqual((together.code, together.out), (alone.code, alone.out))
                self.assertIn("1 of %d ranks built by other processes" % (4 if name.endswith("n4") else 2), together.err)

    def test_logs_and_profiles_may_lack_each_other(self):
        for left_out in ("rank0/net.log.gz", "rank1/net.log.gz", "rank0/kineto*", "rank1/kineto*", "*/net.log.gz", "*/kineto*"):
            with self.subTest(left_out=left_out):
                folder = self.copy("torch-fsdp-tp-gloo-n4")
                for path in glob.glob(os.path.join(folder, "*", left_out)):
                    os.remove(path)
                if left_out.startswith("rank"):
                    self.check_same("replay", folder, n=3)
                else:
                    self.check_same("align", folder, n=2, idle="no rank is left" if left_out == "*/kineto*" else "")
                shutil.rmtree(folder)

    def test_a_rank_may_have_several_logs(self):
        folder = self.copy("torch-pp-gloo-n2")
        for rank in (0, 1):
            path = os.path.join(folder, "host%d" % rank, "rank%d" % rank, "net.log.gz")
            shutil.copy(path, self.path("rank%d_again_net.log.gz" % (1 - rank)))  # by its name of the other rank, and dealt so
        for n in (2, 3):
            self.check_same("replay", folder, *glob.glob(self.path("rank*")), n=n)

    def test_logs_of_nccl_are_divided(self):
        for rank in range(RANKS):
            self.write("nccl/rank%d.json" % rank, nccl_job.profile(rank, RANKS))
            self.write("nccl/nccl_rank%d.log" % rank, nccl_job.log(rank, RANKS))
        for args in (("replay", "--json"), ("align",)):
            alone = self.check_same(*args, self.path("nccl"))
            self.assertIn("nccl" if args == ("align",) else '"pattern":"ring"', alone.out)
        os.makedirs(self.path("other"))
        for name in ("rank2.json", "nccl_rank3.log"):
            os.rename(self.path("nccl", name), self.path("other", name))
        alone = dpro("replay", "--json", self.path("nccl"), self.path("other"))
        together = mpirun((1, DPRO, "replay", "--json", self.path("nccl")), (1, DPRO, "replay", "--json", self.path("other")))
        self.assertEqual((together.code, together.out, together.err), (alone.code, alone.out, alone.err))

    def test_damaged_recordings_are_told_once(self):
        folder = self.copy("torch-ddp-gloo-gpt-n2-memory")
        for name in ("rank.json", "memory.json", "et.json.gz", "net.log.gz"):
            for path in glob.glob(os.path.join(folder, "*", "rank1", name)):
                with open(path, "rb") as file:
                    whole = file.read()
                with open(path, "wb") as file:
                    file.write(whole[:len(whole) // 2])
                if name != "net.log.gz":
                    shutil.copy(path, path.replace(name, "second_" + name))
        out = self.check_same("replay", folder, n=2).out
        self.assertIn("second", out)
        self.assertRegex(" ".join(out.split()), r"net.log.gz: byte \d+: ends in the middle")

    def test_files_may_lie_where_one_process_only_sees_them(self):
        os.makedirs(self.path("other"))
        for rank in (1, 2):
            os.rename(self.path("trace", "rank%d.json.gz" % rank), self.path("other", "rank%d.json.gz" % rank))
        alone = dpro("replay", self.trace, self.path("other"))
        together = mpirun((1, DPRO, "replay", self.trace), (1, DPRO, "replay", self.path("other")))
        self.assertEqual((together.code, together.out), (alone.code, alone.out))

    @unittest.skipUnless(subprocess.run(["unshare", "--uts", "true"], capture_output=True).returncode == 0, "hosts can't be named here")
    def test_ranks_may_be_read_where_they_ran(self):
        for rank in range(RANKS):
            folder = self.path("trace", "hostlarge" if rank < RANKS - 1 else "hostsmall", "rank%d" % rank)
            os.makedirs(folder)
            os.rename(self.path("trace", "rank%d.json.gz" % rank), os.path.join(folder, "kineto.json.gz"))
        alone = dpro("replay", self.trace)
        for how, elsewhere in (("turn", 2), ("host", 1)):
            on = (1, "unshare", "--uts", "sh", "-c", 'hostname "$0"; exec "$@"')
            command = (DPRO, "replay", "-v", "--ranks-from", how, self.trace)
            together = mpirun(*[(*on, host, *command) for host in ("large", "small")])
            self.assertIn("%d of 4 ranks built by other processes" % elsewhere, together.err)
            self.assertEqual(together.out, alone.out)

    def test_one_path_is_one_file(self):
        for folder, rank in (("a", 0), ("b", 1)):
            with gzip.open(os.path.join(BUNDLED, "kineto_rank%d.json.gz" % rank)) as file:
                profile = file.read()
            self.write(folder + "/trace/profile.json", profile)
            self.write(folder + "/same/profile.json", profile.ljust(8_000_000))
            shutil.copy(os.path.join(BUNDLED, "kineto_rank0.json.gz"), os.path.dirname(self.write(folder + "/copied/note", "")))
        for name in ("trace", "same"):
            self.assert_error(mpirun(*[(1, "-wdir", self.path(folder), DPRO, "replay", name) for folder in "ab"]), INPUT,
                              name + "/profile.json: process 1 of mpirun sees another file there than process 0")
        copied = mpirun(*[(1, "-wdir", self.path(folder), DPRO, "replay", "copied") for folder in "ab"])
        self.assertEqual(copied.out, dpro("replay", "copied", cwd=self.path("a")).out)

    def test_files_that_the_first_does_not_see_but_has_to_read_are_told(self):
        rank1 = shutil.move(os.path.join(self.copy("byteps-torch-n2"), "hostvm", "rank1"), self.path("other"))
        self.assert_error(mpirun((1, DPRO, "replay", self.path("byteps-torch-n2")), (1, DPRO, "replay", rank1)), INPUT,
                          "other/kineto.json.gz: the first process does not see this file, .* copy the trace to one machine")

    def test_ranks_that_nobody_has_are_told_of(self):
        os.remove(self.path("trace", "rank2.json.gz"))
        self.assertIn("3 of 4 ranks are here", self.check_same("replay", self.trace).out)

    def test_files_that_are_named_twice_count_once(self):
        self.assertIn("the same file", self.check_same("replay", self.trace, self.trace).out)
        self.assertIn("the same file", self.check_same("replay", self.trace, self.path("trace", "rank1.json.gz")).out)

    def test_bad_input_is_told_once(self):
        for rank, content in ((1, b""), (2, None), (3, b'{"traceEvents": [{"ph": "X", ')):
            path = self.path("trace", "rank%d.json.gz" % rank)
            with open(path, "rb") as file:
                whole = file.read()
            with open(path, "wb") as file:
                file.write(whole[:len(whole) // 2] if content is None else content)
        for done in (dpro("replay", self.trace), mpirun("replay", self.trace)):  # which leaves rank 2 out, and which does not
            self.assertEqual(done.code, DONE)
            self.assertIn("rank2.json.gz", done.out)
        os.makedirs(self.path("empty"))
        self.assertEqual(self.check_same("replay", self.path("empty")).code, INPUT)
        self.assertEqual(self.check_same("replay", self.path("none")).code, INPUT)
        self.assertEqual(self.check_same("replay", "--nothing").code, USAGE)
        self.assertEqual(self.check_same("replay", "--steps", "900:", self.trace).code, INPUT)

    def test_commands_that_nothing_is_divided_of_answer_once(self):
        for args in (("--help",), ("nothing",), ("replay", "--help"), ("compare", self.trace),
                     ("export", "--net-csv", "-o", self.path("csv"), BUNDLED), ("attach", "--nothing"), ("verify",)):
            with self.subTest(args=args):
                self.check_same(*args, n=2)
        self.assertEqual(mpirun((2, DPRO)).err, dpro().err)

    def test_programs_are_profiled_by_each_process(self):
        done = mpirun("profile", "-q", "-o", self.path("recorded"), "--", "sh", "-c", "echo ran", n=2)
        self.assertEqual((done.code, done.out), (DONE, "ran\nran\n"))

    def test_a_process_that_dies_before_it_joins_ends_all(self):
        died = mpirun((1, DPRO, "replay", self.trace), (1, "sh", "-c", "kill -9 $$"))
        self.assertNotEqual(died.code, DONE)
        self.assertEqual(died.out, "")

    def write_slow(self):
        """A folder of one rank's file, which takes long to read, and one of another's."""
        with gzip.open(os.path.join(BUNDLED, "kineto_rank1.json.gz")) as file:
            profile = file.read().rstrip()
        spaces = gzip.compress(bytes(64 << 20).replace(b"\0", b" "), 1)  # 20 GB of them take their time
        slow = self.write("slow/rank1.json", gzip.compress(profile[:-1], 1) + 300 * spaces + gzip.compress(profile[-1:], 1))
        os.makedirs(self.path("fast"))
        shutil.copy(self.path("trace", "rank0.json.gz"), self.path("fast"))
        return slow

    def test_progress_is_shown_on_the_terminal_of_mpirun(self):
        self.write_slow()
        for folders, stage in (("slow", "fast"), "read"), (("fast", "slow"), "wait for the other processes"):
            terminal, end = pty.openpty()
            command = start(*[(1, DPRO, "replay", self.path(folder)) for folder in folders], stderr=end, env={"TERM": "xterm"})
            os.close(end)
            shown = b""
            while stage.encode() not in shown and command.poll() is None:
                shown += os.read(terminal, 1 << 16)
            command.terminate()
            command.communicate()
            os.close(terminal)
            self.assertIn(stage, shown.decode())
            self.assertNotIn("\n", shown.decode())

    def test_a_process_that_dies_while_it_reads_ends_all(self):
        slow = self.write_slow()
        for reader in (0, 1):
            with self.subTest(reader=reader):
                folders = (self.path("fast"), self.path("slow"))
                running = start((1, DPRO, "replay", folders[1 - reader]), (1, DPRO, "replay", folders[reader]))
                pid = None
                while pid is None and running.poll() is None:
                    time.sleep(0.01)
                    pid = who_reads(slow)
                time.sleep(1)  # while MPI begins, mpirun itself can wait without end for one that died
                self.assertIsNotNone(pid)
                self.assertEqual(os.sched_getaffinity(pid), os.sched_getaffinity(0))  # mpirun bound it to one core
                os.kill(pid, signal.SIGKILL)
                began = time.monotonic()
                died = finish(running)
                self.assertNotEqual(died.code, DONE)
                self.assertEqual(died.out, "")
                self.assertLess(time.monotonic() - began, 30)

    def install(self, name, with_mpi):
        """Another build of dpro, with one text of its own."""
        folder = self.path(name, "build")
        os.makedirs(folder)
        os.symlink(os.path.join(ROOT, "python"), self.path(name, "python"))
        if with_mpi:
            os.symlink(os.path.join(BUILD, "tracer"), os.path.join(folder, "tracer"))
        else:
            os.mkdir(os.path.join(folder, "tracer"))
        with open(DPRO, "rb") as file:
            program = file.read()
        self.assertIn(b"predicts the time of an", program)
        with open(os.path.join(folder, "dpro"), "wb") as file:
            file.write(program.replace(b"predicts the time of an", b"predicts the time of AN"))
        os.chmod(os.path.join(folder, "dpro"), 0o755)
        return os.path.join(folder, "dpro")

    def test_processes_of_two_builds_are_told_apart(self):
        other = self.install("other", True)
        self.assert_error(mpirun((3, DPRO, "replay", self.trace), (1, other, "replay", self.trace)), SYSTEM,
                          "process 3 of mpirun, on .*, runs another build of dpro than the first")
        self.assertEqual(mpirun("replay", self.trace).out, mpirun((4, other, "replay", self.trace)).out)

    def test_one_that_lacks_the_module_says_so_and_ends_all(self):
        other = self.install("other", False)
        for n in (0, 1, 3):
            with self.subTest(n=n):
                lacking = mpirun(*n * [(n, DPRO, "replay", self.trace)][:1], (1, other, "replay", self.trace),
                                 (1, other, "replay", self.trace))
                self.assertNotEqual(lacking.code, DONE)
                self.assertEqual(lacking.out, "")
                self.assertIn("was built without MPI", lacking.err)

    def test_what_all_lack_is_told_once(self):
        lacking = finish(start("replay", self.trace, env={"DPRO_HOME": self.path("none")}))
        self.assert_error(lacking, SYSTEM, "no Python package of dpro in")

    def test_one_that_lacks_memory_says_so_and_ends_all(self):
        short = mpirun((1, DPRO, "replay", self.trace),
                       (1, "sh", "-c", 'ulimit -v 400000; exec "$0" "$@"', DPRO, "replay", self.trace))
        self.assertEqual(short.out if short.code else "", "")
