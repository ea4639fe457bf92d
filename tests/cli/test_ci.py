"""dpro diagnose --junit, --sarif, --metrics: what it writes is read back as others read it."""
import json
import os
import re
import shutil
import subprocess
import urllib.parse
import xml.etree.ElementTree

from support import BUILD, BUNDLED, CHECK_FAILED, DONE, INPUT, ROOT, SYSTEM, USAGE, Case, dpro, read_text
from stage_job import StageJob

GATE = os.path.join(ROOT, "examples", "ci", "gate.sh")
ENVIRONMENT = {**os.environ, "DPRO_COMMAND": os.path.join(BUILD, "dpro")}
NOTEBOOK = os.path.join(ROOT, ".venv-notebook", "bin", "python")
LIMITS = "exposed>15%, lost > 20%,slow_rank>5000ms,contention>0ms"
# Required by the schema of SARIF 2.1.0, of what is written here.
REQUIRED = {"": ("version", "runs"), "runs": ("tool",), "tool": ("driver",), "driver": ("name",), "rules": ("id",),
            "results": ("message",), "message": ("text",), "shortDescription": ("text",)}


def samples(text):
    """[(name, {label: value}, number)] of Prometheus' text format, where each name has its type before."""
    found, typed = [], set()
    for line in text.splitlines():
        about = re.fullmatch(r"# (HELP|TYPE) ([a-zA-Z_:][\w:]*) (.+)", line)
        if about:
            typed |= {about.group(2)} if about.group(1) == "TYPE" and about.group(3) == "gauge" else set()
            continue
        name, labels, value = re.fullmatch(r'([a-zA-Z_:][\w:]*)\{((?:[a-zA-Z_]\w*="(?:[^"\\\n]|\\[\\"n])*",?)+)\} (\S+)', line).groups()
        assert name in typed, name
        found.append((name, dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', labels)), float(value)))
    assert text.endswith("\n") and len({(name, *sorted(labels.items())) for name, labels, _ in found}) == len(found)
    return found


class Gate(Case):
    def read(self, name):
        return read_text(self.path(name))

    def test_what_the_command_says_stays_as_it_is(self):
        good = self.path("good.json")
        self.assert_code(dpro("diagnose", BUNDLED, "--save", good, "-q"), DONE)
        for options in (("--fail-on", LIMITS), ("--fail-on", "lost>99%", "--against", good, "--json"),
                        ("--against", BUNDLED + "-default"), ()):
            with self.subTest(options):
                files = [word for name in ("sarif", "metrics") + ("junit",) * ("--fail-on" in options)
                         for word in ("--" + name, self.path(name))]
                ran, alone = dpro("diagnose", BUNDLED, *options, *files, "-q"), dpro("diagnose", BUNDLED, *options, "-q")
                self.assertEqual((ran.code, ran.err, ran.out), (alone.code, alone.err, alone.out))
                for name in files[1::2]:
                    os.remove(name)

    def test_files_of_one_iteration_are_of_that_one(self):
        steps = ("--steps", "2:2")
        self.assert_code(dpro("diagnose", BUNDLED, *steps, "--metrics", self.path("a.prom"), "-q"), DONE)
        value = next(value for name, _, value in samples(self.read("a.prom")) if name == "dpro_iteration_seconds")
        self.assertAlmostEqual(value, dpro("diagnose", "--json", BUNDLED, *steps).json["iteration_ms"] / 1e3, places=6)

    def test_the_pre_made_gate_leaves_files_that_others_read(self):
        ran = subprocess.run([GATE, "a <b> & \"c\""], cwd=self.folder, capture_output=True, text=True, timeout=120,
                             env={**ENVIRONMENT, "DPRO_FAIL_ON": LIMITS, "DPRO_RESULTS": "results"})
        self.assertEqual(ran.returncode, INPUT, ran.stderr)
        shutil.copytree(BUNDLED, self.path("a <b> & \"c\""))
        ran = subprocess.run([GATE, "a <b> & \"c\""], cwd=self.folder, capture_output=True, text=True, timeout=120,
                             env={**ENVIRONMENT, "DPRO_FAIL_ON": LIMITS, "DPRO_RESULTS": "results"})
        self.assertEqual(ran.returncode, CHECK_FAILED, ran.stderr)
        self.assertEqual(sorted(os.listdir(self.path("results"))), ["dpro.prom", "dpro.sarif", "dpro.xml"])

        suite = xml.etree.ElementTree.parse(self.path("results", "dpro.xml")).getroot().find("testsuite")
        self.assertEqual([suite.get(count) for count in ("tests", "failures", "errors", "skipped")], ["4", "2", "0", "1"])
        self.assertEqual([(case.get("name"), [part.tag for part in case]) for case in suite],
                         [("exposed>15%", ["failure"]), ("lost > 20%", ["failure"]), ("slow_rank>5000ms", []),
                          ("contention>0ms", ["skipped"])])
        self.assertEqual(suite[0].get("classname"), "dpro.a <b> & \"c\"")
        self.assertIn("\ncommunication that nothing hides", suite[0][0].text)
        self.assertIn("Hide or shrink communication", suite[0][0].text)

        log = json.loads(self.read("results/dpro.sarif"))

        def check(value, name):
            for one in value if isinstance(value, list) else [value]:
                self.assertLessEqual(set(REQUIRED.get(name, ())), set(one) if isinstance(one, dict) else set())
                for key, inner in one.items() if isinstance(one, dict) else ():
                    check(inner, key)

        check(log, "")
        self.assertEqual(log["version"], "2.1.0")
        run, = log["runs"]
        rules = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
        self.assertEqual(len(set(rules)), len(rules))
        self.assertEqual([(one["ruleId"], one["level"]) for one in run["results"]],
                         [("threshold/exposed", "error"), ("threshold/lost", "error"), ("communication", "note")])
        for result in run["results"]:
            self.assertEqual(rules[result["ruleIndex"]], result["ruleId"])
            uri = result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
            self.assertEqual(urllib.parse.unquote(uri), "a <b> & \"c\"")
            self.assertRegex(uri, r"\A[\w%./~-]+\Z")

        found = samples(self.read("results/dpro.prom"))
        replay, diagnosis = (dpro(command, "--json", BUNDLED).json for command in ("replay", "diagnose"))
        self.assertEqual({labels["trace"] for _, labels, _ in found}, {"a <b> & \\\"c\\\""})
        values = {(name, labels.get("rank", labels.get("cause"))): value for name, labels, value in found}
        self.assertAlmostEqual(values["dpro_iteration_seconds", None], diagnosis["iteration_ms"] / 1e3, places=6)
        self.assertAlmostEqual(values["dpro_cause_seconds", "communication"], diagnosis["causes"][0]["blame_ms"] / 1e3, places=6)
        for rank in replay["ranks"]:
            for key in ("exposed_communication", "wait_for_peers"):
                self.assertAlmostEqual(values["dpro_%s_seconds" % key, str(rank["rank"])], rank[key + "_ms"] / 1e3, places=6)
        if os.path.exists(NOTEBOOK):  # Prometheus' own reader, where it is installed
            code = ("import sys\ntry: from prometheus_client.parser import text_string_to_metric_families as parse\n"
                    "except ImportError: sys.exit()\nprint(sum(len(one.samples) for one in parse(sys.stdin.read())))")
            n = subprocess.run([NOTEBOOK, "-c", code], input=self.read("results/dpro.prom"), capture_output=True, text=True,
                               check=True).stdout
            self.assertIn(n.strip(), ("", str(len(found))))

    def test_metrics_tell_memory_and_slowdown_where_they_are_known(self):
        self.write("stages.csv", StageJob(dp=2, stages=2).csv())
        for trace, name in ((BUNDLED + "-memory", "dpro_memory_peak_bytes"), (self.path("stages.csv"), "dpro_straggler_slowdown_ratio")):
            self.assert_code(dpro("diagnose", trace, "--metrics", self.path("job.prom")), DONE)
            self.assertIn(name, {name for name, *_ in samples(self.read("job.prom"))})
        self.assertEqual(os.stat(self.path("job.prom")).st_mode & 0o777, 0o666 & ~UMASK, "a node exporter is another user")
        self.assertEqual(sorted(os.listdir(self.folder)), ["job.prom", "stages.csv"])

    def test_what_can_not_be_written_is_told_and_the_trace_is_not_overwritten(self):
        trace = self.write_recording("job")
        for option in ("--metrics", "--sarif", "--save"):
            for name, code in (("job/host0/rank0/kineto.json", USAGE), ("job", SYSTEM)):
                self.assert_code(dpro("diagnose", trace, option, self.path(name)), code)
        for path, said in (("none/a.prom", "can't be written: No such file"), ("/dev/full", "can't be written: No space")):
            self.assert_error(dpro("diagnose", trace, "--metrics", os.path.join(self.folder, path)), SYSTEM, said)
        self.assert_error(dpro("diagnose", trace, "--junit", self.path("a.xml")), USAGE, "--junit writes a test case for each threshold")
        self.assert_error(dpro("diagnose", trace, "--sarif", self.path("a"), env={"PATH": self.folder}), USAGE, "python3: no such program")
        self.assertEqual(os.listdir(self.folder), ["job"])


UMASK = os.umask(0o022)
os.umask(UMASK)
