"""What the verdict of a replay advises can be done with that very trace, and what is not known is not said as a number."""
import glob
import json
import os
import re
import shutil

from support import BUNDLED, DONE, INPUT, ROOT, SHARED, Case, dpro, job, read_text
from test_horovod import timeline



def flat(text):
    return re.sub(r"\s+", " ", text)


class Advice(Case):
    def put(self, traces, change=lambda text: text):
        for rank, trace in enumerate(traces):
            self.write(f"job/rank{rank}.json", change(json.dumps(trace)))
        return self.path("job")

    def check_optimize(self, *paths):
        """`dpro optimize` is recommended where it works, else its reason is given. Returns what to do about communication."""
        diagnosed = dpro("diagnose", "--json", *paths)
        causes = diagnosed.json["causes"] if diagnosed.code == DONE else []
        causes = [cause for cause in causes if cause["cause"] == "communication"]
        said = causes[0]["next_step"] if causes else ""
        if "dpro optimize" in said:
            tried = dpro("optimize", "-q", "--json", "--budget", "0.05", *paths)
            if "can't change it here" not in said:
                self.assert_code(tried, DONE)
            else:
                self.assert_code(tried, INPUT)
                self.assertIn(tried.err.strip().removeprefix("dpro: ")[:100], said)
        return said

    def test_optimize_is_recommended_where_it_works(self):
        self.assertIn("'dpro optimize' searches for other buckets", self.check_optimize(self.put(job(transfer_us=30_000))))

    def test_a_part_of_a_job_is_told_to_give_the_other_ranks(self):
        self.assertIn("Record all ranks", self.check_optimize(self.put(job(transfer_us=30_000)[:1])))

    def test_a_job_of_one_process_is_not_asked_for_other_ranks(self):
        alone = self.write("alone.json", job(world=1, communicates=False)[0])
        self.assertNotIn("ranks", dpro("replay", "--json", alone).json["verdict"][-1]["text"])
        refused = dpro("optimize", alone)
        self.assert_error(refused, INPUT, "one rank, which sends its gradients to nobody")
        self.assertNotIn("all ranks", refused.err)

    def test_a_sharded_job_is_told_why_it_has_no_buckets(self):
        folder = self.put(job(transfer_us=30_000), lambda text: text.replace("gloo:all_reduce", "gloo:reduce_scatter")
                          .replace("c10d::allreduce_", "c10d::_reduce_scatter_base_"))
        self.assertIn("can't change it here: parameters are sharded", self.check_optimize(folder))

    def test_advice_holds_for_real_traces(self):
        for path in sorted(glob.glob(os.path.join(os.path.dirname(BUNDLED), "*")) + glob.glob(os.path.join(SHARED, "*"))):
            with self.subTest(path):
                self.check_optimize(path)

    def test_a_sharded_job_whose_units_are_known_is_told_of_them(self):
        said = self.check_optimize(os.path.join(os.path.dirname(BUNDLED), "torch-fsdp-gloo-n2-memory"))
        self.assertIn("'dpro optimize' searches for other units", said)

    def test_a_plan_that_can_not_be_given_is_not_offered(self):
        offered = dpro("optimize", "-q", "--budget", "1", self.put(job(transfer_us=30_000)))
        self.assert_code(offered, DONE)
        if "less time an iteration" in offered.out:
            self.assertIn("records the job with its parameters' names", flat(offered.out))
        self.assertNotIn("writes this strategy as a plan for the job", flat(offered.out))


class Messages(Case):
    OTHERS = {"--nproc", "--nproc-per-node", "--epochs", "--gloo"}  # of launchers and scripts, in examples

    def test_options_and_commands_named_in_messages_exist(self):
        commands = re.findall(r"^  ([a-z]+)  ", dpro("--help").out, re.M)
        options = {"--help", "--version"} | self.OTHERS
        for command in commands:
            options |= set(re.findall(r"--[a-z][a-z0-9-]*", dpro("help", command).out.split("Examples:")[0]))
        named = 0
        for pattern in ("src/**/*.c", "cli/*.c", "python/dpro/*.py"):
            for path in glob.glob(os.path.join(ROOT, pattern), recursive=True):
                code = re.sub(r"/\*.*?\*/", "", read_text(path), flags=re.S)
                for text in re.findall(r'"(?:[^"\\\n]|\\.)*"', code):
                    for option in re.findall(r"(?<![\w(-])--[a-z][a-z0-9-]*(?!\w)", text):
                        named += 1
                        self.assertIn(option, options, f"{path}: {text}")
                    for command in re.findall(r"'dpro ([a-z]+)\b", text):
                        self.assertIn(command, commands, f"{path}: {text}")
        self.assertGreater(named, 30)


class Unknown(Case):
    def test_without_computation_nothing_is_said_to_idle(self):
        alone = self.write("timeline.json", timeline())
        facts = dpro("replay", "--json", alone).json
        self.assertEqual([rank["idle_ms"] for rank in facts["ranks"]], [None])
        text = flat(dpro("replay", alone).out)
        self.assertIn("Idle unknown: no computation was recorded", text)
        self.assertIn("Next step record computation too", text)
        self.assertIn("no computation was recorded, so hidden communication and idle time are unknown", text)
        self.assertNotIn("idles", text)
        self.assertNotRegex(dpro("compare", alone, alone).out, r"(?m)^ +idle ")
        phases = {phase["name"]: phase["a_ms"] for phase in dpro("compare", "--json", alone, alone).json["phases"]}
        self.assertIsNone(phases["idle"])

    def test_sizes_that_were_not_recorded_are_null(self):
        traces = [json.loads(json.dumps(trace).replace("Input Dims", "Dims")) for trace in job()]
        for rank, trace in enumerate(traces):
            self.write(f"job/rank{rank}.json", trace)
        facts = dpro("replay", "--json", self.path("job"), "-o", self.path("out")).json
        self.assertEqual([c["bytes"] for c in facts["collectives"]], [None])
        self.assertEqual(set(facts["daydream"].values()), {None})  # it divides sizes by a rate
        compared = dpro("compare", self.path("job"), self.path("job"))
        self.assertNotRegex(compared.out, r"\b0\.0 MB|\b0 messages")
        sizes = dpro("compare", "--json", self.path("job"), self.path("job")).json["a"]["communication"]["collectives"]
        self.assertEqual({one["size_bytes"] for one in sizes}, {None})

    def test_no_report_of_a_real_trace_says_zero_for_what_is_unknown(self):
        if not os.path.isdir(SHARED):
            self.skipTest(f"no traces in {SHARED}")
        for name in sorted(os.listdir(SHARED)):
            with self.subTest(name):
                done = dpro("replay", "--no-validate", "--json", os.path.join(SHARED, name))
                if done.code != DONE:
                    continue
                facts = done.json
                for one in facts["collectives"]:
                    self.assertTrue(one["bytes"] != 0 or one["kind"] == "barrier", one)
                self.assertNotEqual(facts["daydream"]["bandwidth_bytes_per_s"], 0)
                self.assertEqual(facts["daydream"]["iteration_ms"] is None, facts["daydream"]["bandwidth_bytes_per_s"] is None)

    def test_what_one_end_recorded_is_not_said_to_be_seen_at_both(self):
        here = os.path.dirname(self.write("one/README", "rank 0 alone"))
        for name in os.listdir(BUNDLED):
            if "rank0" in name:
                shutil.copy(os.path.join(BUNDLED, name), here)
        text = flat(dpro("replay", "--no-validate", here).out)
        self.assertRegex(text, r"1 connection, [\d.]+ MB sent, recorded at one end; 32 of 32 collectives matched with their messages")
        self.assertNotRegex(text, r"\b0 of 0\b|0 bytes seen")
        transport = dpro("replay", "--no-validate", "--json", here).json["transport"]
        self.assertEqual([transport[key] for key in ("paired_bytes", "unpaired_bytes")], [None] * 2)

    def test_one_iteration_gives_no_interval(self):
        one = self.put_once(10_000)
        other = self.put_once(12_000)
        compared = dpro("compare", one, other)
        self.assertIn("so this may be noise", flat(compared.out))
        self.assertNotIn("+- 0.0 points", compared.out)
        self.assertIsNone(dpro("compare", "--json", one, other).json["difference"]["less_half_pct"])

    def put_once(self, forward_us):
        return self.write_job(f"once{forward_us}", iterations=1, forward_us=forward_us)
