"""Several processes under mpirun: the same answer as one, and no hang whatever goes wrong."""
import gzip
import json
import os
import shutil
import subprocess
import unittest

from support import BUILD, BUNDLED, DONE, DPRO, INPUT, SANITIZED, USAGE, Case, Result, dpro

RANKS = 4
QUIET = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def mpirun(*parts, n=RANKS):
    """Runs parts, each (processes, command...); or dpro with these arguments in n processes."""
    if isinstance(parts[0], str):
        parts = [(n, DPRO, *parts)]
    command = [":", "-n"]
    words = ["mpirun", "-q", "--oversubscribe"]
    for i, (count, *run) in enumerate(parts):
        words += [*command[i == 0:], str(count), *run]
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, timeout=100, env={**os.environ, **QUIET})
    return Result(done.returncode, done.stdout.decode(), done.stderr.decode())


@unittest.skipUnless(shutil.which("mpirun"), "mpirun is not here: apt install openmpi-bin")
@unittest.skipUnless(os.path.exists(os.path.join(BUILD, "mpi", "libdpro_mpi.so")), "dpro was built without MPI")
@unittest.skipIf(SANITIZED, "the sanitizers' runtimes find what MPI itself leaves behind")
class MpiTest(Case):
    def setUp(self):
        super().setUp()
        for rank in range(RANKS):
            with gzip.open(os.path.join(BUNDLED, "kineto_rank%d.json.gz" % (rank % 2))) as file:
                profile = json.load(file)
            profile["distributedInfo"].update(rank=rank, world_size=RANKS)
            self.write("trace/rank%d.json.gz" % rank, profile)
        self.trace = self.path("trace")

    def check_same(self, *args, n=RANKS):
        alone, together = dpro(*args), mpirun(*args, n=n)
        self.assertEqual((together.code, together.out, together.err), (alone.code, alone.out, alone.err))
        return alone

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

    def test_files_are_written_once_and_the_same(self):
        self.assertEqual(dpro("replay", "-o", self.path("alone"), self.trace).code, DONE)
        self.assertEqual(mpirun("replay", "-o", self.path("together"), self.trace).code, DONE)
        with open(self.path("alone", "replay.json"), "rb") as a, open(self.path("together", "replay.json"), "rb") as b:
            self.assertEqual(a.read(), b.read())

    def test_formats_that_join_ranks_are_read_by_the_first_process(self):
        self.check_same("replay", BUNDLED)

    def test_files_may_lie_where_one_process_only_sees_them(self):
        os.makedirs(self.path("other"))
        for rank in (1, 2):
            os.rename(self.path("trace", "rank%d.json.gz" % rank), self.path("other", "rank%d.json.gz" % rank))
        alone = dpro("replay", self.trace, self.path("other"))
        together = mpirun((1, DPRO, "replay", self.trace), (1, DPRO, "replay", self.path("other")))
        self.assertEqual((together.code, together.out), (alone.code, alone.out))

    def test_bad_input_is_told_once(self):
        for rank, content in ((1, b""), (2, None), (3, b'{"traceEvents": [{"ph": "X", ')):
            path = self.path("trace", "rank%d.json.gz" % rank)
            with open(path, "rb") as file:
                whole = file.read()
            with open(path, "wb") as file:
                file.write(whole[:len(whole) // 2] if content is None else content)
        self.assertIn("rank2.json.gz", self.check_same("replay", self.trace).out)
        os.makedirs(self.path("empty"))
        self.assertEqual(self.check_same("replay", self.path("empty")).code, INPUT)
        self.assertEqual(self.check_same("replay", self.path("none")).code, INPUT)
        self.assertEqual(self.check_same("replay", "--nothing").code, USAGE)
        self.assertEqual(self.check_same("replay", "--steps", "900:", self.trace).code, INPUT)

    def test_a_process_that_dies_ends_all(self):
        died = mpirun((1, DPRO, "replay", self.trace), (1, "sh", "-c", "kill -9 $$"))
        self.assertNotEqual(died.code, DONE)
        self.assertEqual(died.out, "")

    def test_one_that_lacks_memory_says_so_and_ends_all(self):
        short = mpirun((1, DPRO, "replay", self.trace),
                       (1, "sh", "-c", 'ulimit -v 400000; exec "$0" "$@"', DPRO, "replay", self.trace))
        self.assertEqual(short.out if short.code else "", "")
