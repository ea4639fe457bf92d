"""The Python package without torch: the search, with passes written in Python."""
import csv
import ctypes
import functools
import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import unittest
import xml.etree.ElementTree

from support import BUILD, BUNDLED, CHECK_FAILED, DONE, INPUT, ROOT, SANITIZED, Case, dpro, read_text
from test_computing import BLOCKS, GPT, probes

sys.path.insert(0, os.path.join(ROOT, "python"))
import dpro as package  # noqa: E402


def halve(view):
    """Splits a bucket in the middle."""
    for number, bucket in enumerate(view.buckets):
        if len(bucket.tensors) > 1:
            yield [("split", number, len(bucket.tensors) // 2)]


class Layouts(Case):
    def test_structs_and_enums_are_those_of_the_headers(self):
        sys.path.insert(0, os.path.join(ROOT, "tools"))
        import layouts as made_from
        self.assertEqual(read_text(made_from.OUTPUT), made_from.Layouts(made_from.headers()).text(), "run tools/layouts.py")

    def test_structs_are_laid_out_as_a_compiler_does(self):
        from dpro import layouts
        kinds = {name: kind for name, kind in vars(layouts).items() if isinstance(kind, type)}
        ours, lines = [], []
        for name, kind in kinds.items():
            plain = "struct dpro_" + re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()
            ours.append("%s %d" % (name, ctypes.sizeof(kind)))
            lines.append('printf("%s %%zu\\n", sizeof(%s));' % (name, plain))
            for field, _ in kind._fields_:
                at = getattr(kind, field)
                ours.append("%s.%s %d %d" % (name, field, at.offset, at.size))
                lines.append('printf("%s.%s %%zu %%zu\\n", offsetof(%s, %s), sizeof(((%s *)0)->%s));' %
                             (name, field, plain, field, plain, field))
        for name in ("ALGORITHM", "CHANGE_TYPE", "COLUMN_TYPE", "COMPRESSION", "COMPUTING", "EDIT_KIND", "OP_KIND", "PROCESSOR",
                     "SCHEDULE"):
            prefix = {"CHANGE_TYPE": "CHANGE_", "COLUMN_TYPE": "COLUMN_", "COMPUTING": "", "EDIT_KIND": "EDIT_",
                      "OP_KIND": "OP_"}.get(name, name + "_")
            for constant, value in getattr(layouts, name).items():
                ours.append("%s %d" % (prefix + constant.upper(), value))
                lines.append('printf("%s %%d\\n", (int)DPRO_%s);' % ((prefix + constant.upper(),) * 2))
        if not SANITIZED:
            from dpro import library
            changes = library.changes_struct()
            for field in [field for field, _ in changes._fields_ if field[0] != "_"]:
                ours.append("%s %d %d" % (field, getattr(changes, field).offset, getattr(changes, field).size))
                lines.append('printf("%s %%zu %%zu\\n", offsetof(struct dpro_changes, %s), sizeof(((struct dpro_changes *)0)->%s));' %
                             ((field,) * 3))
        for name in ("PASS_ABI", "PASS_MAX_EDITS"):
            ours.append("%s %d" % (name, getattr(layouts, name)))
            lines.append('printf("%s %%d\\n", DPRO_%s);' % (name, name))
        source = self.write("layouts.c", "#include <dpro/dpro.h>\n#include <stddef.h>\n#include <stdio.h>\nint main(void)\n{\n%s\n}\n"
                            % "\n".join(lines))
        subprocess.run([os.environ.get("CC", "cc"), "-I", os.path.join(ROOT, "include"), "-o", self.path("layouts"), source],
                       check=True, timeout=60)
        theirs = subprocess.run([self.path("layouts")], capture_output=True, text=True, timeout=60, check=True).stdout
        self.assertEqual(ours, theirs.splitlines())


NOTEBOOK = os.path.join(ROOT, ".venv-notebook", "bin", "python")
# The package finds the library in build/ only, and an interpreter that is not instrumented can't load one that is.
needs_the_library = unittest.skipIf(SANITIZED or os.path.realpath(BUILD) != os.path.realpath(os.path.join(ROOT, "build")),
                                    "no library that this interpreter can load")


@needs_the_library
class Commands(Case):
    """What the package answers is what the command prints with --json, to the byte."""

    def same(self, command, trace, options=(), code=DONE, **keywords):
        """Where the command fails, the package raises what it says."""
        printed = dpro(command, "--json", trace, *options)
        if printed.code == INPUT:
            self.assertEqual(self.error(getattr(package, command), trace, **keywords), printed.err.removeprefix("dpro: ").strip())
            return
        self.assert_code(printed, code)
        answer = getattr(package, command)(trace, **keywords)
        self.assertEqual(*(re.sub(r'"seconds":[\d.e-]+', '"seconds":0', text) for text in (answer.json, printed.out)))
        self.assertEqual(answer["schema"], "dpro.%s/1" % command)

    def error(self, function, *args, **keywords):
        with self.assertRaises(package.Error) as raised:
            function(*args, **keywords)
        return str(raised.exception)

    def test_of_each_kind_of_job(self):
        for name in ("torch-ddp-gloo-conv-n2-memory", "torch-fsdp-gloo-n2-memory", "hvd-mx-n2", "torch-pp-gloo-n2",
                     "torch-nccl-conv-h200-memory", "tf-ps-n2"):
            trace = os.path.join(ROOT, "tests", "data", name)
            with self.subTest(name):
                self.same("replay", trace)
                self.same("diagnose", trace)
                self.same("whatif", trace, ["--bandwidth", "0.5x"], bandwidth_ratio=0.5)
                self.same("optimize", trace)

    def test_with_options(self):
        data = GPT
        self.same("replay", data, ["--samples", "20", "--seed", "3", "--delay", "BW@1=0.5", "--steps", "18:20", "--no-validate"],
                  samples=20, seed=3, delays=["BW@1=0.5"], steps=(18, 20), no_validate=1)
        good = self.path("good.json")
        self.assert_code(dpro("diagnose", data, "--save", good, "-q"), DONE)
        self.same("diagnose", data, ["--steps", "18:20", "--against", good], steps=(18, 20), against=good)
        self.assertIn("no diagnosis", self.error(package.diagnose, data, against=self.write("bad.json", "{}")))
        self.assertIn("different jobs", self.error(package.diagnose, os.path.join(os.path.dirname(BUNDLED), "hvd-mx-n2"), against=good))
        self.same("replay", data, ["--keep-profiler", "--iteration", "18", "--bandwidth", "8gbit"], keep_profiler=1, shown=18,
                  bandwidth_bytes_per_s=1e9)
        self.same("whatif", data, ["--bucket-cap-mb", "1,2", "--compress", "bf16", "--compute", "1.2x@0-1", "--delay", "FW=+3"],
                  bucket_cap_bytes=1 << 20, first_bucket_bytes=2 << 20, compression="bf16", delays=["FW=+3"],
                  compute=[{"speed": 1.2, "first_rank": 0, "last_rank": 1}])
        self.same("whatif", data, ["--recompute", "all", "--accumulate", "2"], recompute="all", micro_batches=2)
        self.same("whatif", os.path.join(ROOT, "tests", "data", "torch-pp-gloo-n2"), ["--schedule", "gpipe", "--microbatches", "8"],
                  schedule="gpipe", pipeline_micro_batches=8)
        self.same("whatif", os.path.join(ROOT, "tests", "data", "hvd-mx-n2"), ["--cycle-time", "2", "--fusion-mb", "1"],
                  cycle_ns=2000000, fusion_bytes=1 << 20)
        self.same("whatif", data, ["--bucket-cap-mb", "2.5"], bucket_cap_mb=2.5)
        self.same("whatif", data, ["--bucket-cap-mb", "5"], bucket_cap_bytes="5MiB")
        for options, keywords in ((["--bandwidth", "0.5x"], {"bandwidth": "0.5x"}), (["--latency", "+1.5us"], {"latency": "+1.5us"}),
                                  (["--bandwidth", "500mbit"], {"bandwidth": "500mbit"}), (["--servers", "2"], {"servers": 2}),
                                  (["--bandwidth", "inter=1.5GiB/s,intra=2x"], {"bandwidth": "inter=1.5GiB/s,intra=2x"}),
                                  (["--accumulate", "2", "--compute", "1.2x@1"], {"accumulate": 2, "compute": "1.2x@1"}),
                                  (["--compute", "2x", "--compute", "cpu=0.5x@0-1"], {"compute": ["2x", "cpu=0.5x@0-1"]}),
                                  (["--cycle-time", "2.5"], {"cycle_time": 2.5}), (["--batch-size", "2x"], {"batch_size": "2x"}),
                                  (["--compress", "bf16", "--delay", "FW=+3"], {"compress": "bf16", "delay": "FW=+3"})):
            if dpro("whatif", "-q", data, *options).code == DONE:
                self.same("whatif", data, options, **keywords)
            else:
                self.error(package.whatif, data, **keywords)
        for keywords in ({"bandwidth": 2}, {"bandwidth": "fast"}, {"bandwidth": "+1us"}, {"latency": "1gbit"}, {"compute": "2"},
                         {"cycle_time": "x"}, {"bandwidth": "wide=2x"}):
            self.assertRegex(self.error(package.whatif, data, **keywords), r"\S")
        self.assertIn("is not what --latency takes: each message", self.error(package.whatif, data, latency="1gbit"))
        self.same("optimize", data, ["--memory", "1MB"], CHECK_FAILED, memory=1000000)
        for size in ("16GiB", "16.5 GB", "800kB", "2000000000", "80%"):
            self.same("optimize", os.path.join(ROOT, "tests", "data", "torch-ddp-gloo-gpt-n2-memory"), ["--memory", size],
                      CHECK_FAILED if size == "800kB" else DONE, memory=size)
        self.same("optimize", data, ["--compress", "fp16", "--allow", "bf16,assumed", "--seed", "4", "--algorithm", "paper"],
                  compress=["fp16"], allow=["bf16", "assumed"], seed=4, algorithm="paper")

    def test_with_probes(self):
        allowed = {"allow": ["compile", "bf16"]}
        path = self.write("probes.json", probes(BLOCKS))
        self.same("optimize", GPT, ["--allow", "compile,bf16", "--probes", path], probes=path, **allowed)
        with package.Job(GPT, probes=path) as other:
            compiled = other.optimize(**allowed)["best"]
        shutil.copytree(GPT, self.path("trace"))
        shutil.copy(path, self.path("trace", "host0", "rank0"))
        self.same("optimize", self.path("trace"), ["--allow", "compile,bf16"], **allowed)
        self.assertEqual(package.optimize(self.path("trace"), **allowed)["best"], compiled)
        self.assertTrue(compiled["computation"]["compile"])

    def test_a_notebook_says_what_a_job_is(self):
        with package.open(GPT) as job:
            self.assertEqual(repr(job).split(":")[0], "dpro.open(%r)" % GPT)

    def test_one_job_is_asked_again_and_again(self):
        trace = os.path.join(ROOT, "tests", "data", "torch-ddp-gloo-lstm-n2-2gbit")
        questions = [("whatif", {"bandwidth_ratio": 2}), ("replay", {}), ("optimize", {}), ("whatif", {"bandwidth_ratio": 0.5}),
                     ("replay", {"delays": ["BW=2"]}), ("replay", {"bandwidth_bytes_per_s": 1e6}), ("optimize", {"seed": 2})]
        with package.Job(trace) as job:
            for question, options in questions * 2:
                together, alone = getattr(job, question)(**options), getattr(package, question)(trace, **options)
                with self.subTest(question=question, options=options):
                    self.assertEqual(*(re.sub(r'"seconds":[\d.e-]+', "", answer.json) for answer in (together, alone)))
        self.assertEqual(self.error(job.replay), "the job is closed")

    def test_what_is_not_known_is_refused_with_what_is(self):
        for function, keywords, said in ((package.whatif, {"bandwith_ratio": 2}, "bandwith_ratio is not known; what is: bucket_cap"),
                                         (package.whatif, {"compression": "fp8"}, "compression='fp8': none, fp16, bf16 are known"),
                                         (package.replay, {"sample": 2}, "sample is not known; what is: samples"),
                                         (package.Job, {"size": 2}, "size is not known; what is: threads")):
            with self.subTest(keywords):
                self.assertIn(said, self.error(function, BUNDLED, **keywords))

    def test_what_does_not_fit_is_refused_by_its_keyword(self):
        for question, keywords, said in (
                ("whatif", {"bucket_cap_bytes": -1}, "bucket_cap_bytes=-1: a whole number from 1 to 18446744073709551615 is needed"),
                ("whatif", {"bucket_cap_bytes": 5e6}, "bucket_cap_bytes=5000000.0: a whole number"),
                ("whatif", {"bandwidth_ratio": 0}, "bandwidth_ratio=0: a number above 0 is needed"),
                ("whatif", {"bandwidth_ratio": float("nan")}, "bandwidth_ratio=nan: a number above 0 is needed"),
                ("whatif", {"bandwidth_ratio": "2"}, "bandwidth_ratio='2': a number above 0 is needed"),
                ("whatif", {"world_size": -4}, "world_size=-4: a whole number from 1 to 4294967295 is needed"),
                ("whatif", {"world_size": 0}, "world_size=0: a whole number from 1"),
                ("whatif", {"cycle_ns": 0}, "cycle_ns=0: a whole number from 1"),
                ("whatif", {"latency_add_ns": 1 << 63}, "latency_add_ns=9223372036854775808: a whole number from -"),
                ("whatif", {"compute": [{"speed": 2, "first_rank": 3, "last_rank": 1}]}, "ranks 3 to 1 can't compute faster"),
                ("whatif", {"compute": [{"speed": -2}]}, "speed=-2: a number above 0"),
                ("whatif", {"compute": {"speed": 2}}, "compute={'speed': 2}: a list of dicts is needed, also of one: compute=[{"),
                ("whatif", {"compute": [2]}, "compute=[2]: a list of dicts is needed"),
                ("whatif", {"schedule": 9}, "schedule=9: unknown, gpipe"),
                ("whatif", {"delays": "BW=0.5"}, "delays='BW=0.5': a list of texts is needed, also of one: delays=['BW=0.5']"),
                ("whatif", {"recompute": ["all"]}, "recompute=['all']: a text or a path is needed"),
                ("replay", {"steps": 5}, "steps=5: a pair is needed"),
                ("replay", {"threads": -1}, "threads=-1: a whole number from 0 to 2147483647 is needed"),
                ("replay", {"seed": -1}, "seed=-1: a whole number from 0"),
                ("optimize", {"compress": "fp16"}, "compress='fp16': a list of names is needed, also of one: compress=['fp16']"),
                ("optimize", {"memory": "8 G"}, "memory='8 G': a size such as 16GiB, bytes, or a share above 0"),
                ("optimize", {"memory": "0B"}, "memory=0: a whole number from 1"),
                ("whatif", {"bucket_cap_bytes": "5 MBit"}, "bucket_cap_bytes='5 MBit': a whole number from 1"),
                ("whatif", {"bucket_cap_mb": "5"}, "bucket_cap_mb='5': a number of at least 0 is needed"),
                ("whatif", {"bucket_cap_mb": 0}, "bucket_cap_bytes=0: a whole number from 1"),
                ("curve", {"bandwidth_ratio": 2}, "curve: give a list of values to a keyword"),
                ("curve", {"bandwidth_ratio": []}, "curve: give a list"),
                ("optimize", {"memory": -1}, "memory=-1: a whole number from 1"),
                ("optimize", {"servers": -1}, "servers=-1: a whole number from 0"),
                ("optimize", {"plan": "a\0b"}, "plan='a\\x00b': a path or text with a NUL")):
            with self.subTest(keywords):
                asked = package.open(BUNDLED).curve if question == "curve" else functools.partial(getattr(package, question), BUNDLED)
                self.assertIn(said, self.error(asked, **keywords))
        for trace in ("a\0b", ["a\0b"], 3, None):
            with self.subTest(trace=trace):
                self.assertIn("trace=", self.error(package.replay, trace))

    def test_a_library_of_another_build_is_refused_by_both_names(self):
        from dpro import library
        sources = []
        for name in ("library.py", "optimizer.py", "columns.py"):
            sources.append(read_text(os.path.join(ROOT, "python", "dpro", name)))
        called = re.findall(r"\b(?:lib|library\(\))\.(dpro_\w+)|\"(dpro_\w+[^_\W])\"", "".join(sources))
        self.assertLessEqual({a or b for a, b in called}, set(library.CALLED))
        version = package.__version__
        older = 'const char *dpro_version(void) { return "0.0.9"; }\n'
        other = older + "\n".join("int %s;" % name for name in library.CALLED[1:])
        for source, said in (("", r"can't be used \(.*dpro_version"), (older, "lacks dpro_job_open"), (other, "is of dpro 0.0.9"),
                             (None, "can't be used")):
            path = self.path("libdpro.so")
            if source is None:
                self.write("libdpro.so", "cut")
            else:
                subprocess.run([os.environ.get("CC", "cc"), "-shared", "-fPIC", "-o", path, self.write("library.c", source)], check=True,
                               timeout=60)
            code = ("import sys; sys.path.insert(0, sys.argv[1]); import dpro; from dpro import settings\n"
                    "settings.library = lambda name: sys.argv[2]\n"
                    "try: dpro.tables(sys.argv[3])\n"
                    "except dpro.Error as problem: print(problem)")
            ran = subprocess.run([sys.executable, "-c", code, os.path.join(ROOT, "python"), path, BUNDLED], capture_output=True,
                                 text=True, timeout=60)
            with self.subTest(said):
                self.assertRegex(ran.stdout, "^%s .*%s.*the package .*python/dpro of dpro %s needs" %
                                 (re.escape(path), said, re.escape(version)), ran.stderr)


@needs_the_library
class Questions(Case):
    """What dpro whatif says that a job can be asked, and what it answers."""
    JOBS = ("torch-ddp-gloo-gpt-n2-memory", "torch-fsdp-gloo-n2-memory", "hvd-mx-n2")
    # by option, a change that any job can be asked that has what it takes
    VALUES = {"dp": {"dp": 4}, "world-size": {"world_size": 8}, "shard": {"shard": 2, "dp": 2}, "tp": {"tp": 1},
              "compute": {"compute": [{"speed": 2}]}, "delay": {"delays": ["BW=2"]}, "bandwidth": {"bandwidth_ratio": 2},
              "latency": {"latency_ratio": 2}, "servers": {"n_servers": 2}, "bigarray-bound": {"bigarray_bound": 1000},
              "server-bandwidth": {"server_bandwidth_ratio": 2}, "compile": {"compile": "all"}, "precision": {"precision": "bf16"},
              "recompute": {"recompute": "all"}, "accumulate": {"micro_batches": 2}, "batch-size": {"batch_ratio": 2},
              "gradient-views": {"gradient_views": 1}, "cycle-time": {"cycle_ns": 2000000}, "fusion-mb": {"fusion_bytes": 0},
              "bucket-cap-mb": {"bucket_cap_bytes": 1 << 20}, "partition-mb": {"partition_bytes": 1 << 20},
              "compress": {"compression": "fp16"}, "reshard": {"reshard": "none"}, "prefetch": {"prefetch": 2},
              "microbatches": {"pipeline_micro_batches": 4}, "schedule": {"schedule": "gpipe"}}
    APART = {("dp", "world-size"), ("shard", "world-size"), ("bucket-cap-mb", "fusion-mb")}  # which say the same thing

    def topology(self, ranks_per_host):
        return {"topology": self.write("topology.json", {"schema": "dpro.topology/1", "ranks_per_host": ranks_per_host,
                                                         "intra": {"bytes_per_s": 1e10}, "inter": {"bytes_per_s": 1e9}})}

    def asked(self, job, changes):
        """Why it can't be; None: it can."""
        try:
            job.whatif(**changes)
        except package.Error as why:
            return str(why)
        return None

    def test_they_are_of_every_kind_and_tell_the_truth(self):
        for name in (*self.JOBS, "tf-ps-n2", "torch-pp-gloo-n2", "torch-tp-gloo-n2", "torch-nccl-conv-h200-memory"):
            with package.Job(os.path.join(ROOT, "tests", "data", name)) as job:
                questions = job.whatif()["questions"]
                hosts = next(q["recorded"] for q in questions if q["option"] == "topology")
                topology = self.topology(1 if hosts == "2 hosts" else 2)
                values = {**self.VALUES, "topology": topology, "collectives": {**topology, "collectives": "ring"},
                          "buckets": {"buckets_path": "/nonexistent"}}
                self.assertLessEqual({*values}, {q["option"] for q in questions})
                self.assertNotIn("questions", job.whatif(delays=["FW=2"]))
                for question in questions:
                    option, said = question["option"], question["why"]
                    why = self.asked(job, values.get(option) or {question["keywords"][0]: 1})
                    with self.subTest(name, option=option):
                        if option in ("topology", "collectives") and question["can_be_asked"]:
                            self.assertTrue(option == "collectives" or why is None, why)  # on hosts of several ranks each
                            self.assertIn("with", said)
                            continue
                        if option == "buckets" and question["can_be_asked"]:
                            continue  # by a list of the job's gradients
                        self.assertEqual(why is None, question["can_be_asked"], why)
                        self.assertEqual((why or "").removeprefix("--%s: " % option), "" if question["can_be_asked"] else said)

    def test_any_two_that_can_be_asked_can_be_asked_together(self):
        for name in self.JOBS:
            with package.Job(os.path.join(ROOT, "tests", "data", name)) as job:
                can = sorted(q["option"] for q in job.whatif()["questions"] if q["can_be_asked"] and q["option"] in self.VALUES)
                self.assertGreater(len(can), 10)
                for pair in itertools.combinations(can, 2):
                    with self.subTest(name, pair=pair):
                        why = self.asked(job, {**self.VALUES[pair[0]], **self.VALUES[pair[1]]})
                        self.assertEqual(why is None, pair not in self.APART, why)

    def test_their_keywords_are_those_that_whatif_takes(self):
        from dpro import library
        keywords = [name for q in package.whatif(BUNDLED)["questions"] for name in q["keywords"]]
        self.assertEqual(sorted(keywords), sorted(library.fields_of(library.changes_struct())))
        for name in keywords:
            self.assertIn(name, package.Job.whatif.__doc__)
            self.assertIsNone(self.asked(package.Job(BUNDLED), {name: None}))


@needs_the_library
class Optimize(Case):

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


@needs_the_library
class Tables(Case):
    def test_columns_have_what_export_writes(self):
        for name in ("torch-ddp-gloo-gpt-n2-memory", "torch-fsdp-tp-gloo-n4", "byteps-torch-n2"):
            trace = os.path.join(ROOT, "tests", "data", name)
            self.assert_code(dpro("export", "-q", "--csv", self.path(name), trace), DONE)
            for table, found in package.tables(trace).items():
                with open(self.path(name, table + ".csv"), newline="", encoding="utf-8") as file:
                    rows = list(csv.DictReader(file))
                columns = {column: [value for part in (found if isinstance(found, list) else [found]) for value in part[column]]
                           for column in (found[0] if isinstance(found, list) else found)}
                for column, values in columns.items():
                    written = [row[column] for row in rows]
                    self.assertEqual([self.text(value) for value in values], written, (name, table, column))

    def text(self, value):
        form = {type(None): "%.0s", bool: "%d", float: "%.9f"}
        return form.get(type(value), "%s") % (value,)

    def test_numbers_are_seen_where_they_lie_and_stay_there(self):
        column = package.tables(GPT)["memory_blocks"][0]["size_bytes"]  # the job, and its other tables, are nobody's
        seen = column.__array_interface__
        at, step = seen["data"][0], seen["strides"][0]
        self.assertEqual((seen["typestr"], seen["shape"]), ("<u8", (len(column),)))
        self.assertEqual([ctypes.c_uint64.from_address(at + row * step).value for row in range(len(column))], list(column))
        self.assertEqual((column.unit, column.meaning, column[-1]), ("bytes", "its size", column[len(column) - 1]))
        with self.assertRaises(IndexError):
            column[len(column)]

    def test_what_the_command_refuses_is_raised(self):
        with self.assertRaisesRegex(package.Error, "none"):
            package.tables(self.path("none"))

    def test_an_open_job_has_its_tables_and_prints_its_answers(self):
        job = package.open(BUNDLED)
        self.assertEqual((job.ops.n_rows, job.ops), (package.tables(BUNDLED)["ops"].n_rows, job.tables["ops"]))
        self.assertEqual(str(job.replay()), dpro("replay", BUNDLED).out)
        self.assertIn("<svg", job.diagnose()._repr_html_())
        self.assertRegex(repr(job.ops), "^<table ops: 9502 rows")
        self.assertRegex(job.ops._repr_html_(), "<th>dur_ns</th>.*aten::")
        with self.assertRaisesRegex(AttributeError, "no 'opps'; its tables are ops, edges"):
            job.opps
        column = job.ops["dur_ns"]
        job.close()
        self.assertGreater(column[0], 0)
        for ask in job.replay, lambda: job.ops:
            with self.assertRaisesRegex(package.Error, "the job is closed"):
                ask()

    def test_a_replay_has_its_timeline(self):
        memory = os.path.join(ROOT, "tests", "data", "torch-ddp-gloo-gpt-n2-memory")
        job = package.open(memory)
        replay, slower = job.replay(), job.replay(delays=["BW=2"])
        job.close()
        for one in (replay, slower):
            timeline = one.timeline
            path = one["critical_path"]
            self.assertAlmostEqual(max(timeline["end_ns"]) / 1e6, max(op["start_ms"] + op["duration_ms"] for op in path["ops"]), delta=50)
            self.assertLess({op["name"] for op in path["ops"]}, set(timeline["name"]))
            self.assertRegex(timeline._repr_html_(), "<svg.*>critical path<.*>rank 1: .*<title>.*ms.*<table")
        self.assertGreater(slower.timeline["end_ns"][-1], replay.timeline["end_ns"][-1] + 1e9)
        self.assertEqual(list(replay.timeline["start_ns"]), list(package.tables(memory)["replayed"]["start_ns"]))
        with self.assertRaisesRegex(package.Error, "only a replay has a timeline"):
            package.whatif(memory, bandwidth_ratio=2).timeline

    def test_answers_draw_themselves(self):
        job = package.open(os.path.join(ROOT, "tests", "data", "torch-ddp-gloo-gpt-n2-memory"))
        replay, curve = job.replay(), job.curve(bucket_cap_mb=range(1, 6), bandwidth_ratio=[1, None, 2])
        self.assertEqual(len(curve), 15)
        self.assertEqual(curve[-1], {"bucket_cap_mb": 5, "bandwidth_ratio": 2,
                                     "iteration_ms": job.whatif(bucket_cap_mb=5, bandwidth_ratio=2)["predicted"]["iteration_ms"]})
        self.assertEqual(curve[0]["iteration_ms"], curve[1]["iteration_ms"], "1: as it is")
        self.assertRegex(repr(replay.breakdown), r"\A *rank +iteration_ms.*\n +0 +\d+\.\d\d\d")
        self.assertRegex(repr(replay.critical_path), r"\n\.\.\. \d+ rows in all\Z")
        self.assertEqual(replay.breakdown, replay["ranks"])
        for drawn, said in ((replay, "Critical path"), (replay.breakdown, "rank 1"), (replay.critical_path, "backward"),
                            (job.memory, "ms of the iteration"), (curve, "bandwidth_ratio=2"), (job.diagnose(), "ideal"),
                            (job.optimize(), "DDP"), (job.whatif(bandwidth_ratio=2), "as it ran")):
            drawing = xml.etree.ElementTree.fromstring("<div>%s</div>" % drawn._repr_html_())
            self.assertIn(said, "".join(drawing.itertext()))
            for shape in drawing.iter("rect"):
                self.assertLess(float(shape.get("x")) + float(shape.get("width")), 1000)
        servers = package.open(os.path.join(ROOT, "tests", "data", "tf-ps-n2"))
        path = servers.replay().critical_path
        self.assertRegex(path._repr_html_(), ">ps 0: .*>rank 1: ")
        self.assertRegex(repr(path), r"\A.* process")
        nothing = servers.memory
        self.assertNotIn("<svg", nothing._repr_html_())
        with self.assertRaisesRegex(package.Error, "there is nothing to draw"):
            nothing.plot()

    def test_type_hints_say_what_is_given_and_taken(self):
        check = [NOTEBOOK, "-m", "mypy", "--version"]
        if not os.path.exists(NOTEBOOK) or subprocess.run(check, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode:
            self.skipTest("no mypy: tools/venv.sh notebook installs it")
        kinds = {"job": "optimizer.Job", "job.ops": "columns.Table", 'job.ops["dur_ns"]': "columns.Column",
                 "job.memory[0]": "columns.Table", "job.replay().timeline": "columns.Timeline", "job.replay().breakdown": "drawing.Rows",
                 "job.diagnose(against=job).text": "str", "job.curve(bucket_cap_mb=[1])": "drawing.Rows",
                 'dpro.optimize("A", plan="b")': "library.Answer"}
        source = "import dpro\njob = dpro.open('A', steps=(1, 5))\n%s\njob.opps\njob.optimize(memory=[1])\n" % "\n".join(
            "reveal_type(%s)" % what for what in kinds)
        ran = subprocess.run([NOTEBOOK, "-m", "mypy", "--follow-imports=silent", "--cache-dir", self.path("cache"),
                              self.write("a.py", source)], capture_output=True, text=True, timeout=300,
                             env={**os.environ, "MYPYPATH": os.path.join(ROOT, "python")})
        lines = ran.stdout.splitlines()
        self.assertEqual([re.search(r'Revealed type is "(?:dpro\.)?(.*)"', line).group(1) for line in lines[:len(kinds)]],
                         list(kinds.values()))
        self.assertIn('"Job" has no attribute "opps"', lines[-3])
        self.assertIn('Argument "memory" to "optimize"', lines[-2])
        tables = {name for name, kind in vars(package.Job.__mro__[1])["__annotations__"].items() if kind in ("Table", "Ranks")}
        self.assertEqual(tables, set(package.tables(BUNDLED)), "each table is named for them")

    def test_a_job_is_compared_with_another(self):
        other = os.path.join(os.path.dirname(BUNDLED), "torch-ddp-gloo-gpt-n2-default")
        job = package.open(other)
        job.replay()
        self.assertEqual(job.diagnose(against=package.open(BUNDLED))["against"]["causes"],
                         dpro("diagnose", other, "--against", BUNDLED, "--json").json["against"]["causes"])

    def test_two_threads_do_not_ask_at_once(self):
        job, problems = package.open(BUNDLED), []

        def ask():
            try:
                for _ in range(20):
                    job.whatif(bandwidth_ratio=2)
            except package.Error as problem:
                problems.append(str(problem))

        threads = [threading.Thread(target=ask) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertTrue(problems and all("is being asked already" in problem for problem in problems), problems)
        self.assertGreater(job.whatif(bandwidth_ratio=2)["speedup"], 1)

    def test_an_interrupt_is_heard_while_the_library_computes(self):
        program = ("import sys, dpro; job = dpro.open(sys.argv[1]); job.ops; print('go', flush=True)\n"
                   "while True: job.optimize(budget_s=60)")
        ran = subprocess.Popen([sys.executable, "-c", program, BUNDLED], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               env={**os.environ, "PYTHONPATH": os.path.join(ROOT, "python")})
        ran.stdout.readline()
        ran.send_signal(signal.SIGINT)
        _, err = ran.communicate(timeout=60)
        self.assertIn("KeyboardInterrupt", err)
