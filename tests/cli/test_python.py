"""The Python package without torch: the search, with passes written in Python."""
import glob
import os
import re
import subprocess
import sys
import unittest

from support import BUILD, BUNDLED, ROOT, SANITIZED, Case, dpro

sys.path.insert(0, os.path.join(ROOT, "python"))
import dpro as package  # noqa: E402


def halve(view):
    """Splits a bucket in the middle."""
    for number, bucket in enumerate(view.buckets):
        if len(bucket.tensors) > 1:
            yield [("split", number, len(bucket.tensors) // 2)]


class Layouts(unittest.TestCase):
    def test_options_have_the_fields_of_the_headers(self):
        from dpro import optimizer
        headers = ""
        for path in glob.glob(os.path.join(ROOT, "include", "dpro", "*.h")):
            with open(path, encoding="utf-8") as file:
                headers += re.sub(r"/\*.*?\*/", "", file.read(), flags=re.S)
        for ours, theirs in (("_TraceOptions", "trace_options"), ("_GraphOptions", "graph_options"), ("_Edit", "edit"),
                             ("_ReplayOptions", "replay_options"), ("_ModelOptions", "model_options"), ("_Sink", "sink"),
                             ("_OptimizeOptions", "optimize_options"), ("_Report", "optimize_report"), ("_View", "pass_view")):
            fields = re.search(r"(?m)^struct dpro_%s \{\n(.*?)^\}" % theirs, headers, re.S)[1]
            plain = re.sub(r"\(\*(\w+)\)\([^;]*\)", r"\1", fields)  # of pointers to functions the name
            names = re.findall(r"(\w+)\s*[;,]", plain)
            with self.subTest(struct=theirs):
                self.assertEqual([name for name, _ in getattr(optimizer, ours)._fields_], names)


@unittest.skipIf(SANITIZED, "an interpreter that is not instrumented can't load an instrumented library")
@unittest.skipUnless(os.path.realpath(BUILD) == os.path.realpath(os.path.join(ROOT, "build")),
                     "the package finds the library in build/ only")
class Optimize(Case):
    def test_the_result_is_what_the_command_prints(self):
        from_python = package.optimize(BUNDLED)
        from_command = dpro("optimize", "--json", BUNDLED).json
        for facts in (from_python, from_command):
            facts.pop("search")
        self.assertEqual(from_python, from_command)

    def test_a_pass_sees_the_job_and_its_candidates_are_tried(self):
        seen = []

        def look(view):
            seen.append((len(view.tensors), sum(len(b.tensors) for b in view.buckets), view.iteration_ns,
                         view.sync_ns(1 << 20, 1), view.sync_ns(4 << 20, 1)))
            return halve(view)

        without = package.optimize(BUNDLED, seed=1)
        facts = package.optimize(BUNDLED, seed=1, passes=[look])
        self.assertTrue(seen)
        for n_tensors, n_in_buckets, iteration_ns, small_ns, large_ns in seen:
            self.assertEqual(n_tensors, 53)
            self.assertEqual(n_in_buckets, 53)
            self.assertGreater(iteration_ns, 0)
            self.assertGreater(large_ns, small_ns)
        self.assertLessEqual(facts["best"]["iteration_ms"], 1.02 * without["best"]["iteration_ms"])

    def test_a_pass_that_knows_what_fused_ops_take_has_ops_fused(self):
        def gaps(view):
            kinds.update(op.kind for op in view.programs[view.critical_program])
            for program, ops in enumerate(view.programs):  # and proposes one by itself, to be tried beside the others
                if not view.fused_ops:
                    yield [("fuse", program, 1, 2, ops[1].work_ns + ops[2].work_ns)]
                elif view.fused_ops[0][0] == program:
                    yield [("unfuse", program, view.fused_ops[0][1])]

        def opfs_ns(ops):
            together = sum(op.work_ns for op in ops) - 3_000_000 * (len(ops) - 1)  # more than a plan is worth at least
            return max(together, 0) if len(ops) <= 4 and len({op.kind for op in ops}) == 1 else None

        kinds = set()
        gaps.opfs_ns = opfs_ns
        for algorithm in ("default", "paper"):
            with self.subTest(algorithm):
                facts = package.optimize(BUNDLED, algorithm=algorithm, seed=2, passes=[gaps])
                fused = [d for d in facts["strategy"] if d["pass"] == "op-fusion"]
                self.assertTrue(fused)
                self.assertIn("one op", fused[0]["decision"])
                self.assertLess(facts["best"]["iteration_ms"], facts["replayed_ms"])
        self.assertEqual(kinds, {"BW", "UPDATE"})

    def test_what_fusing_raises_reaches_the_caller(self):
        def broken(view):
            return []

        broken.opfs_ns = lambda ops: ops[len(ops)]
        with self.assertRaises(IndexError):
            package.optimize(BUNDLED, passes=[broken])

    def test_the_same_seed_gives_the_same_result(self):
        results = [package.optimize(BUNDLED, seed=3, passes=[halve])["best"] for _ in range(2)]
        self.assertEqual(*results)

    def test_what_a_pass_raises_reaches_the_caller(self):
        def broken(view):
            raise KeyError("of the pass")

        with self.assertRaisesRegex(KeyError, "of the pass"):
            package.optimize(BUNDLED, passes=[broken])

    def test_an_edit_that_is_none_is_refused(self):
        with self.assertRaisesRegex(ValueError, "'melt' is no edit"):
            package.optimize(BUNDLED, passes=[lambda view: [[("melt", 0)]]])

    def test_errors_of_the_library_are_the_packages_own(self):
        with self.assertRaisesRegex(package.Error, "missing"):
            package.optimize(self.path("missing"))
        with self.assertRaisesRegex(package.Error, "algorithm"):
            package.optimize(BUNDLED, algorithm="guess")
        with self.assertRaisesRegex(package.Error, "compress"):
            package.optimize(BUNDLED, compress=["fp8"])

    def test_a_plan_is_written_where_asked_for(self):
        facts = package.optimize(BUNDLED, self.path("plan"))
        self.assertEqual(facts["plan"], self.path("plan"))
        self.assertTrue(os.path.exists(self.path("plan", "plan.json")))


class JobSteps(Case):
    """How long dpro verify takes a job to be."""
    LOADER = """
class _BaseDataLoaderIter:
    def __init__(self, n, n_read):
        self.n, self._num_yielded = n, n_read
    def __len__(self):
        return self.n
"""

    def said(self, *arguments, code="", needed=266):
        """By a job whose first step has ended."""
        script = self.write("train.py", "\n".join((
            "import argparse, sys, types; from dpro import job_steps",
            "loaders = sys.modules['torch.utils.data.dataloader'] = types.ModuleType('loaders')",
            "exec(%r, vars(loaders))" % self.LOADER, code, "has = job_steps.of_job(1)",
            "print(job_steps.text(%d, has, 'run it longer'))" % needed)))
        environ = {**os.environ, "PYTHONPATH": os.path.join(ROOT, "python")}
        return subprocess.run([sys.executable, script, *arguments], env=environ, capture_output=True, text=True, timeout=60,
                              check=True).stdout.strip()

    def test_options_that_name_all_steps_say_how_many_there_are(self):
        for given in (["--steps", "530"], ["--max_steps=530"], ["--train-iters", "530", "--log-steps", "10"],
                      ["trainer.max_steps=530"], ["--eval-iters=5", "--num-train-steps", "530", "--epochs", "3"]):
            with self.subTest(given=given):
                self.assertIn("needs 266 steps; the job seems to have 530 (", self.said(*given))
        self.assertEqual(self.said("--steps", "40"), "needs 266 steps, but the job seems to have 40 (--steps 40): run it longer")

    def test_a_default_of_argparse_counts_too(self):
        parse = "p = argparse.ArgumentParser(); p.add_argument('--n-iters', type=int, default=300); args = p.parse_args()"
        self.assertEqual(self.said(code=parse), "needs 266 steps; the job seems to have 300 (n_iters=300)")

    def test_epochs_are_as_long_as_what_the_loader_yields(self):
        for read, steps in ((1, 300), (4, 75)):  # micro-batches
            with self.subTest(read=read):
                self.assertIn("the job seems to have %d (--epochs 3 of %d steps)" % (steps, steps // 3),
                              self.said("--epochs", "3", code="it = loaders._BaseDataLoaderIter(100, %d)" % read))
        self.assertIn("to have 100 (one pass over its data)", self.said(code="it = loaders._BaseDataLoaderIter(100, 1)"))

    def test_what_says_nothing_of_all_steps_is_not_taken_for_them(self):
        unsaid = "needs 266 steps; how many the job has can't be told"
        for given in ([], ["--warmup-steps", "5"], ["--steps-per-epoch=50"], ["--max-steps", "-1"], ["--epochs", "3"], ["--steps"],
                      ["--steps", "10", "--max-iters", "20"]):
            with self.subTest(given=given):
                self.assertEqual(self.said(*given), unsaid)
        self.assertEqual(self.said(code="a, b = loaders._BaseDataLoaderIter(100, 1), loaders._BaseDataLoaderIter(90, 1)"), unsaid)


class MXNet(Case):
    def test_a_port_that_its_servers_would_bind_to_is_told_once(self):
        script = ("import types; from dpro import mxnet_job; store = types.SimpleNamespace(create=None)\n"
                  "mxnet_job.attach_stores(None, store); mxnet_job.attach_stores(None, store)")
        environ = {**os.environ, "PYTHONPATH": os.path.join(ROOT, "python"), "DMLC_ROLE": "worker"}
        for port, said in (("8080", 1), (None, 0)):
            environ.pop("PORT", None)
            if port:
                environ["PORT"] = port
            ran = subprocess.run([sys.executable, "-c", script], env=environ, capture_output=True, text=True, timeout=60)
            self.assertEqual((ran.returncode, ran.stderr.count("dpro: PORT=8080 is in the environment")), (0, said), ran.stderr)
