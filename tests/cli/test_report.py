"""Every form of a replay's report says the same, adds up, and survives any name."""
import os
import pickle
import resource
import shutil
import signal

import gpu_job
from report_check import check_folder
from support import BUNDLED, DONE, SYSTEM, USAGE, Case, dpro, job, read_json, read_text, write_json, write_text
from test_memory_files import MIB, snapshot

DATA = os.path.dirname(BUNDLED)
HOSTILE = "</script><script>alert(1)</script><!--<img src=x onerror=alert(2)> \"q\" 'a' & \\ \n\r\t\x01\x1b[31m \u2028 \x9b end"


class Report(Case):
    def check(self, folder, *options):
        """Returns the report, the page's data, what is in the timeline, and the text."""
        self.assert_code(dpro("replay", "-q", folder, "-o", self.path("out"), *options), DONE)
        return *check_folder(self.path("out"), bool(options)), self.text(folder, *options)

    def text(self, *arguments):
        """The text, whose lines are printable, end in no blank, and fit."""
        text = dpro("replay", "-q", *arguments).out
        self.assertNotRegex(text, r"[\x00-\x09\x0b-\x1f\x7f-\x9f]| \n")
        self.assert_fits(text)
        return text

    def memory_of(self, text):
        return " ".join(text.split("\nMemory: ")[1].split("\n\n")[0].split())

    def test_files_agree_and_add_up(self):
        for name in ("torch-nccl-conv-h200-memory", "torch-fsdp-gloo-n2-memory", "torch-pp-gloo-n2", "byteps-torch-n2", "tf-ps-n2"):
            with self.subTest(name):
                self.check(os.path.join(DATA, name))

    def test_a_what_if_has_no_error(self):
        for name in ("torch-fsdp-gloo-n2-memory", "torch-tp-gloo-n2"):
            *_, text = self.check(os.path.join(DATA, name), "--delay", "BW=0.5")
            self.assertIn("What if", text)
            self.assertIn("faster", text)
            self.assertNotIn("do not act", text)

    def test_a_job_on_gpus(self):
        folder, _ = gpu_job.write(self, gpu_job.Job(kernels=60, world=4, buckets=2, slow=(1, 3.0)))
        _, _, (kinds, flows, threads), text = self.check(folder)
        self.assertLessEqual({"FW", "BW", "COLLECTIVE", "LAUNCH"}, kinds)
        self.assertLessEqual({"launch", "last arrival"}, flows)
        self.assertLessEqual({"GPU 0 stream 7 \u00b7 measured", "GPU 0 stream 7 \u00b7 replayed"}, threads)
        self.assertIn("forward, backward and update are times on the GPU", " ".join(text.split()))

    def test_the_text_starts_with_the_verdict(self):
        self.write_job("job", world=8, iterations=11, slow=(3, 9_000))
        _, _, (kinds, _, _), text = self.check(self.path("job"))
        self.assertIn("WAIT", kinds)
        lines = text.split("\n\n")[0].replace("\n ", " ").splitlines()
        self.assertEqual([line[:15].rstrip() for line in lines], ["Iteration", "Critical path", "Communication", "Idle", "Next step"])
        self.assertRegex(" ".join(lines), "straggler: rank 3, late")
        self.assertLess(text.index("Next step"), text.index("Where the predicted iteration goes"))
        self.assertIn("Daydream", text)

    def test_one_iteration_is_not_validated(self):
        self.write_job("job", iterations=1)
        *_, text = self.check(self.path("job"))
        self.assertIn("self-validation: none, too few iterations", text)
        self.assertNotIn("contradicts", text)

    def test_many_ranks_are_summed_up(self):
        self.write_job("job", world=40, iterations=3, slow=(20, 9_000))
        *_, text = self.check(self.path("job"))
        self.assertIn("(40 ranks: least, median and most waiting)", text)
        self.assertIn("least 20", text)

    def write_held(self, world, higher, unknown=None):
        """A job whose ranks hold 15 MiB, one 28, and of one it is not known."""
        for rank, trace in enumerate(job(world=world)):
            self.write(f"held{world}/rank{rank}/kineto.json", trace)
            if rank != unknown:
                self.write(f"held{world}/rank{rank}/snapshot.pickle", pickle.dumps(snapshot(7 if rank == higher else 5)))
        return self.path(f"held{world}")

    def test_alike_ranks_are_one_line_and_many_are_two(self):
        for world, unknown, says, leaves_out in (
                (2, None, ["all 2 ranks alike: 15.7 MB"], "0: "),
                (3, None, ["rank 0: 15.7 MB", "rank 1: 15.7 MB", "rank 2: 29.4 MB"], "alike"),
                (18, 6, ["rank 2, the highest of all: 29.4 MB", "1 of the 18 ranks"], "k 4: ")):
            report, data, _, text = self.check(self.write_held(world, 2, unknown))
            memory = self.memory_of(text)
            for said in says:
                self.assertIn(said, memory)
            self.assertNotIn(leaves_out, memory)
            self.assertNotIn("not fit", memory)
            self.assertEqual([rank["rank"] for rank in report["memory"]["ranks"]], [rank for rank in range(world) if rank != unknown])
            self.assertEqual(max(rank["peak_bytes"] for rank in report["memory"]["ranks"]), (28 if world > 2 else 15) * MIB)

    def copy(self, name="torch-nccl-conv-h200-memory"):
        return shutil.copytree(os.path.join(DATA, name), self.path("copy"))

    def test_where_it_is_highest_and_by_how_much_it_is_off(self):
        report, _, _, text = self.check(os.path.join(DATA, "torch-nccl-conv-h200-memory"))
        at = report["memory"]["ranks"][0]["at"]
        self.assertEqual(at["phase"], "backward")
        self.assertRegex(self.memory_of(text), rf"in backward of {at['module']}.*\([-+]?\d\.\d %\)")

    def test_what_does_not_fit_the_device_is_one_line(self):
        path = os.path.join(self.copy(), "host0", "rank0", "memory.json")
        self.assertNotIn("not fit", self.memory_of(self.text(self.path("copy"))))
        write_json(path, {**read_json(path), "capacity_bytes": 200 * MIB})
        *_, text = self.check(self.path("copy"))
        self.assertIn("would not fit the device: rank 0 finds no room for a block of ", self.memory_of(text))

    def test_a_rank_of_whose_memory_only_the_execution_trace_tells_is_the_source(self):
        folder = self.copy("torch-ddp-gloo-conv-n2-memory")
        self.assertEqual(self.check(folder)[0]["memory"]["source"], "allocations")
        path = os.path.join(folder, "host0", "rank1", "kineto_et.json.gz")
        profile = read_json(path)
        write_json(path, {**profile, "traceEvents": [event for event in profile["traceEvents"] if event["name"] != "[memory]"]})
        report, _, _, text = self.check(folder)
        self.assertEqual(report["memory"]["source"], "execution trace")
        self.assertRegex(self.memory_of(text), "1 rank: from the profile's list .* 1 rank: from the storages of the execution trace")

    def test_hostile_names_are_harmless_everywhere(self):
        self.write_job("job", name=HOSTILE)
        report, data, _, text = self.check(self.path("job"))
        self.assertIn(HOSTILE, [op["name"] for op in report["critical_path"]["ops"]])
        self.assertIn(HOSTILE, data["strings"])
        self.assertIn("</script><script>alert(1)", text)  # a terminal does not mind

    def test_hostile_names_of_modules_are_harmless_everywhere(self):
        folder = self.copy()
        for name in ("kineto_et.json.gz", "memory.json"):
            path = os.path.join(folder, "host0", "rank0", name)
            write_text(path, read_text(path).replace("blocks", "</script><!--"))
        _, data, _, text = self.check(folder)
        self.assertIn("</script><!--", str(data["memory"]) + "".join(data["strings"]))

    def test_a_broken_write_leaves_nothing_behind(self):
        self.write_job("job")
        def limit():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))

        done = dpro("replay", "-q", self.path("job"), "-o", self.path("a", "b"), preexec_fn=limit)
        self.assert_code(done, SYSTEM)
        self.assertRegex(done.err, "/a/b/.*File too large")
        self.assertFalse(os.path.exists(self.path("a")))  # made for it

    def test_folders_are_made_and_errors_named(self):
        self.write_job("job")
        for _ in range(2):  # and replaced
            self.check(self.path("job"))
        self.assert_code(dpro("replay", "-q", self.path("job"), "-o", self.path("x", "y") + "/"), DONE)
        self.assertIn("report.html", os.listdir(self.path("x", "y")))
        for out, code, said in ((self.path("out", "replay.json", "z"), SYSTEM, "replay.json: the folder can't be made: Not a directory"),
                                ("", USAGE, "")):
            done = dpro("replay", "-q", self.path("job"), "-o", out)
            self.assert_code(done, code)
            self.assertIn(said, done.err)
