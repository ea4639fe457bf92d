"""Every command with every option on every bundled trace, under valgrind's memcheck: it knows of each byte whether it was
written, which the sanitizers don't. Takes some ten minutes: 'make test-long' runs it (DPRO_LONG=1)."""
import concurrent.futures
import glob
import os
import shutil
import subprocess
import unittest

from support import BUILD, BUNDLED, COMMANDS, DONE, DPRO, INPUT, ROOT, SANITIZED, USAGE, Case, dpro, options_of, write_json
from test_computing import BLOCKS, probes

TRACES = sorted(glob.glob(os.path.join(ROOT, "tests", "data", "*", "")))
NOT_HERE = (None if os.environ.get("DPRO_LONG") else "takes ten minutes: set DPRO_LONG=1, as make test-long does",
            None if not SANITIZED else "valgrind and the sanitizers don't go together",
            None if shutil.which("valgrind") else "no valgrind here")

# What each command is run with. TRACE and OUT stand for a bundled trace and a folder of the run's own; BUCKETS for a plan's
# file, PROBES for one of probes. test_every_option_of_every_command_is_run finds what a new
# option is missing here. Not every trace has what an
# option changes: then the command refuses, in good order.
READ = ["--step-mark", "ProfilerStep#[0-9]+", "--no-align", "--raw-receives", "--threads", "2", "-v", "-v"]
RUNS = {
    "replay": [["TRACE", "-o", "OUT", "--samples", "20", "--seed", "3"],
               ["TRACE", "--json", "--steps", "1:1000", "--bandwidth", "1gbit", "--keep-profiler", "--no-validate",
                "--fail-on", "1000", *READ],
               ["TRACE", "-q", "--delay", "FW=1.5", "--delay", "COMM@0=+2", "--samples", "5"],
               ["TRACE", "--rank-regex", "([0-9]+)", "--dims", "dp=2", "--ranks-from", "host"],
               ["TRACE", "-q", "--iteration", "2"], ["FILE"], ["--help"]],
    "whatif": [["TRACE"], ["TRACE", "--bandwidth", "0.5x", "--latency", "+10us", "--compute", "1.2x@0", "--delay", "BW=0.9"],
               ["TRACE", "--json", "--bucket-cap-mb", "5,first=1", "--compress", "fp16", "--world-size", "5",
                "--steps", "1:1000", *READ],
               ["TRACE", "-q", "--partition-mb", "1", "--servers", "3", "--bigarray-bound", "1000"],
               ["TRACE", "--server-bandwidth", "2x", "--servers", "4"], ["TRACE", "--cycle-time", "2", "--fusion-mb", "1"],
               ["TRACE", "--recompute", "blocks.*", "--accumulate", "2", "--batch-size", "6", "--gradient-views"],
               ["TRACE", "--reshard", "all", "--compute", "2x@0", "--delay", "BW=2", "--dims", "fsdp=2"],
               ["TRACE", "--microbatches", "8", "--schedule", "gpipe"], ["TRACE", "--dp", "3"],
               ["TRACE", "--tp", "1"], ["TRACE", "--shard", "8", "--dp", "8"],
               ["TRACE", "--prefetch", "2"], ["TRACE", "--topology", "pcie4-2x25g", "--world-size", "16"], ["TRACE", "--topology", "FILE"],
               ["TRACE", "--topology", "pcie4-2x25g", "--world-size", "16", "--collectives", "hierarchical"],
               ["TRACE", "--compile", "none", "--precision", "bf16=blocks.*"], ["TRACE", "--probes", "PROBES", "--compile", "blocks.*"],
               ["TRACE", "--buckets", "BUCKETS", "--rank-regex", "([0-9]+)", "--ranks-from", "turn"], ["--help"]],
    "optimize": [["TRACE", "-o", "OUT", "--budget", "2", "--seed", "4", "--finalists", "3"],
                 ["TRACE", "-o", "OUT", "--budget", "2", "--allow", "compile,bf16", "--probes", "PROBES"],
                 ["TRACE", "--memory", "100MB", "--allow", "bf16,assumed", "--budget", "1"],
                 ["TRACE", "--json", "--budget", "2", "--compress", "fp16", "--compress", "none",
                  "--steps", "1:1000", *READ],
                 ["TRACE", "-q", "--algorithm", "paper", "--no-coarsen", "--no-partial", "--no-symmetry", "--budget", "2"],
                 ["TRACE", "--servers", "1:2", "--algorithm", "dp", "--budget", "2", "--pass", "PASS"],
                 ["TRACE", "-o", "OUT", "--memory", "100MB", "--budget", "2"],
                 ["TRACE", "--json", "--memory", "50%", "--no-accumulate", "--budget", "2"],
                 ["TRACE", "--rank-regex", "([0-9]+)", "--ranks-from", "host", "--budget", "1"], ["--help"]],
    "diagnose": [["TRACE"], ["TRACE", "--json", "--steps", "1:1000", *READ],
                 ["TRACE", "-q", "-o", "OUT", "--against", BUNDLED, "--fail-on", "lost>100%"],
                 ["TRACE", "--save", "OUT", "--rank-regex", "([0-9]+)", "--dims", "dp=2", "--ranks-from", "host"],
                 ["TRACE", "--junit", "OUT/junit.xml", "--sarif", "OUT/sarif.json", "--metrics", "OUT/job.prom"], ["--help"]],
    "compare": [["TRACE", BUNDLED], ["TRACE", "TRACE", "--fail-on", "iteration>900%"],
                ["TRACE", "TRACE", "--json", "--steps", "1:1000", *READ],
                ["TRACE", "TRACE", "-q", "--rank-regex", "([0-9]+)"], ["--help"]],
    "align": [["TRACE", "-v"], ["TRACE", "--json", "--perfetto-manifest", "OUT", "-q", "--threads", "1"],
              ["TRACE", "--rank-regex", "([0-9]+)", "--ranks-from", "host"], ["--help"]],
    "export": [["TRACE", "--net-csv", "-o", "OUT", "-v", "--threads", "2"],
               ["TRACE", "--net-csv", "-o", "OUT", "-q", "--rank-regex", "([0-9]+)"],
               ["TRACE", "--csv", "OUT", "--steps", "1:1000", *READ], ["TRACE", "--sqlite", "OUT/job.db"],
               ["TRACE", "--graphml", "OUT/job.graphml", "--ranks", "0-1", "--iteration", "2"], ["TRACE", "--chakra", "OUT"],
               ["TRACE", "--perfetto", "OUT/job.pftrace"], ["TRACE", "--parquet", "OUT/tables"], ["--list"], ["--help"]],
    "tune": [["-o", "OUT", "--allow", "compile,bf16", "--memory", "1GiB", "--budget", "200steps", "--finalists", "3", "--warmup", "1",
              "--iterations", "2", "--force", "--", "true"],
             ["-o", "OUT", "--restart", "--try", "OMP_NUM_THREADS=1", "--", "true"], ["--help"]],
    "profile": [["-o", "OUT", "--warmup", "1", "--iterations", "2", "--net", "all", "--net-max-mb", "4", "--net-keep", "newest",
                 "--net-peers", "all", "--no-nccl", "--force", "--", "true"],
                ["-q", "-o", "OUT", "--plan", "PLAN", "--probe", "compile,bf16,recompute", "--probe-limit", "5", "--", "true"],
                ["--help"]],
    "verify": [["--plan", "PLAN", "--turns", "steps", "--steps", "3", "--blocks", "2", "--settle", "2", "--warmup", "1",
                "--against", "cap=5", "--stop", "--fail-on", "slower", "--json", "--", "true"], ["--help"]],
    "attach": [["-o", "OUT", "--pid", "1", "--duration-ms", "5", "--delay-s", "8", "--wait", "1", "--force", "-q"], ["--help"]],
    "completion": [["bash"], ["zsh"], ["fish"], ["--help"]],
    "help": [[command] for command in COMMANDS] + [["--help"]],
}
SHORT = {"-o": "--output", "-v": "--verbose", "-q": "--quiet"}


def runs_of(command):
    """The runs of a command; those that need a trace with each of the bundled ones."""
    for args in RUNS[command]:
        for trace in TRACES if {"TRACE", "FILE"} & set(args) else [None]:
            yield args, trace


class Coverage(unittest.TestCase):
    def test_every_option_of_every_command_is_run(self):
        for command in COMMANDS:
            run = {SHORT.get(arg, arg) for args in RUNS[command] for arg in args if arg.startswith("-")}
            if command == "whatif" and ["TRACE"] in RUNS[command]:  # which tries each kind of what-if
                run |= {"--" + question["option"] for question in dpro("whatif", "--json", BUNDLED).json["questions"]}
            self.assertEqual({option for option, _ in options_of(command)} - run, set(), f"dpro {command}: add to RUNS")


@unittest.skipIf(any(NOT_HERE), next((reason for reason in NOT_HERE if reason), ""))
class Memcheck(Case):
    def fill_in(self, arg, trace, out, plan):
        if arg == "FILE":
            return sorted(glob.glob(os.path.join(trace, "*")))[-1]
        return {"TRACE": trace, "OUT": out, "PLAN": plan, "BUCKETS": plan, "PROBES": os.path.join(plan, "probes.json"),
                "PASS": os.path.join(BUILD, "tests", "unit", "gaps.so")}.get(arg, arg)

    def check(self, number, command, args, trace, plan):
        """What valgrind has to say; None: nothing."""
        log, out = self.path(f"log{number}"), self.path(f"out{number}")
        args = [self.fill_in(arg, trace, out, plan) for arg in args]
        done = subprocess.run(["valgrind", "-q", "--error-exitcode=99", "--leak-check=full",
                               "--errors-for-leak-kinds=definite", "--show-leak-kinds=definite", f"--log-file={log}",
                               DPRO, command, *args], cwd=self.folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, timeout=1800)
        shutil.rmtree(out, ignore_errors=True)
        with open(log, encoding="utf-8", errors="replace") as said:
            report = said.read()
        if done.returncode in (DONE, USAGE, INPUT) and not report:
            return None
        return f"dpro {command} {' '.join(args)}: exit {done.returncode}\n{report}{done.stderr.decode()[-2000:]}"

    def test_every_command_reads_only_what_was_written(self):
        plan = self.path("plan")
        self.assert_code(dpro("optimize", "-q", BUNDLED, "-o", plan, "--budget", "2"), DONE)
        write_json(os.path.join(plan, "probes.json"), probes(BLOCKS))
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            runs = [(command, *run) for command in COMMANDS for run in runs_of(command)]
            found = list(filter(None, pool.map(lambda run: self.check(run[0], *run[1], plan), enumerate(runs))))
        self.assertEqual(found, [], "\n".join(found)[:20000])
