#!/usr/bin/env python3
"""Runs every test of the project and counts test cases, not programs.

C suites are the cmocka programs that Meson lists; each case is read from their TAP output. Python suites are
tests/cli/test_*.py, one process a file, and tests/live/test_*.py, which train with PyTorch: those run under the Python
that has it (DPRO_PYTHON, else .venv's). As many suites run at once as there are cores. Suites that mostly wait run beside
these; suites that measure steps run last, one at a time. Live suites share recordings in a folder that lives as long as this
run (DPRO_TEST_CACHE). A live case that fails beside other suites is run once more when nothing else runs: it measures a
job, and what else the machine does is no failure. One that fails again is.

Time limits are in seconds of an idle machine as CI has it: on a slower or busier one they last longer (class Pace).

Each minute a line says what runs; a suite's line has its seconds and those of CPUs. The last line is
`N passed, N failed[, N skipped]`; the exit status is 1 when anything failed or nothing ran."""
import argparse
import concurrent.futures
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TAP_LINE = re.compile(r"^(not ok|ok) \d+ (?:- (.*)|# SKIP (.*))$")
TAP_PLAN = re.compile(r"^1\.\.(\d+)$")


class Pace:
    """A clock that goes slower than the wall's where the machine does: a second counts as much as the share of a fixed piece
    of work that is done in it. It never goes faster, so that limits are at least what they say."""
    WORK, WORK_S, EVERY_S = 12_000_000, 0.1, 10.0  # long enough to be interrupted by whatever else runs

    def __init__(self):
        self.lock, self.at, self.passed, self.slowness = threading.Lock(), time.monotonic(), 0.0, 1.0
        threading.Thread(target=self.measure, daemon=True).start()

    def measure(self):
        while True:
            start = time.monotonic()
            for _ in range(self.WORK):
                pass
            took = time.monotonic() - start
            with self.lock:
                self.advance()
                self.slowness = max(1.0, took / self.WORK_S)
            time.sleep(self.EVERY_S)

    def advance(self):
        now = time.monotonic()
        self.passed += (now - self.at) / self.slowness
        self.at = now

    def now(self):
        with self.lock:
            self.advance()
            return self.passed


PACE = None  # made by main(): the child that runs one suite needs none


class Suite:
    def __init__(self, name, command, env=None, timeout=300, kind="tap", folder=ROOT, python=sys.executable):
        self.name, self.command, self.env, self.timeout, self.kind = name, command, env or {}, timeout, kind
        self.folder, self.python = folder, python
        self.passed, self.failures, self.skips, self.seconds, self.cpu = 0, [], [], 0.0, 0.0
        self.failed_ids = []  # of cases that a failure names, for another run of these alone
        self.started = None  # on the wall's clock, while it runs


def run_limited(command, env, timeout, folder=ROOT):
    """Runs a command in a process group of its own; returns (exit status or None, output, CPU seconds of it and of what it
    waited for). The output goes through a file, so that a child that outlives its parent can't keep us waiting."""
    with tempfile.TemporaryFile() as out:
        process = subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
                                   env={**os.environ, **env}, start_new_session=True)
        ended = []
        waiting = threading.Thread(target=lambda: ended.extend(os.wait4(process.pid, 0)))
        waiting.start()
        start, late = PACE.now(), False
        while waiting.is_alive() and not late:
            waiting.join(1)
            late = PACE.now() - start >= timeout
        if late := waiting.is_alive():
            os.killpg(process.pid, signal.SIGKILL)
            waiting.join()
        process.returncode = os.waitstatus_to_exitcode(ended[1])
        out.seek(0)
        return None if late else process.returncode, out.read().decode("utf-8", "replace"), ended[2].ru_utime + ended[2].ru_stime


def how_it_ended(status, timeout):
    if status is None:
        return f"stopped after {timeout:.0f} s, on an idle machine's clock"
    return f"killed by signal {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"


def run_tap(suite):
    env = {**suite.env, "CMOCKA_MESSAGE_OUTPUT": "tap"}
    status, output, suite.cpu = run_limited(suite.command, env, suite.timeout, suite.folder)
    planned, seen, before = 0, 0, []
    failed = None  # the failure whose comment lines follow
    for line in output.splitlines():
        plan, case = TAP_PLAN.match(line), TAP_LINE.match(line)
        if plan:
            planned += int(plan.group(1))
        elif case:
            seen += 1
            failed = None
            if case.group(3) is not None:
                suite.skips.append((case.group(3), before[-1] if before else "no reason given"))
            elif case.group(1) == "ok":
                suite.passed += 1
            else:
                failed = [case.group(2), list(before)]
                suite.failures.append(failed)
            before = []
        elif failed and line.startswith("#"):
            failed[1].append(line)
        else:
            failed = None
            before.append(line)
    if planned == 0 and seen == 0 and status == 0:
        suite.passed = 1  # a program that speaks no TAP is one case
    elif planned == 0 and seen == 0 and status == 77:
        suite.skips.append((suite.name, before[-1] if before else "no reason given"))
    elif seen < planned or seen == 0 or (status != 0 and not suite.failures):
        what = f"{how_it_ended(status, suite.timeout)}, {seen} of {planned} cases ran"
        suite.failures.append([f"({what})", before[-200:]])


def run_unittest(suite, only=()):
    """Runs a suite of Python, or the named cases of it."""
    with tempfile.NamedTemporaryFile("r", suffix=".jsonl") as results:
        command = [suite.python, os.path.abspath(__file__), "--unittest", suite.command, "--results", results.name, *only]
        status, output, suite.cpu = run_limited(command, suite.env, suite.timeout)
        running = None
        for line in results:
            case = json.loads(line)
            running = case["name"] if case["what"] == "start" else None
            if case["what"] == "passed":
                suite.passed += 1
            elif case["what"] == "failed":
                suite.failures.append([case["name"], case["text"].splitlines()])
                suite.failed_ids.append(case["id"])
            elif case["what"] == "skipped":
                suite.skips.append((case["name"], case["text"]))
    if status not in (0, 1) or (status == 1 and not suite.failures):
        where = f" in {running}" if running else ""
        suite.failures.append([f"({how_it_ended(status, suite.timeout)}{where})", output.splitlines()[-200:]])


class Recorder(unittest.TestResult):
    """Writes one JSON line when a case starts and one when it ended."""

    def __init__(self, out):
        super().__init__()
        self.out = out
        self.ended = False

    def write(self, test, what, text=""):
        self.ended = self.ended or what != "start"
        case = getattr(test, "test_case", test).id()  # of a part (subTest): the whole
        case = re.sub(r"^\w+ \((.*)\)$", r"\1", case)  # "setUpClass (module.Class)"
        self.out.write(json.dumps({"name": str(test), "id": case, "what": what, "text": text}) + "\n")
        self.out.flush()

    def startTest(self, test):
        super().startTest(test)
        self.ended = False
        self.write(test, "start")

    def stopTest(self, test):
        super().stopTest(test)
        if not self.ended:  # cases whose parts (subTest) all went well end without another call
            self.write(test, "passed")

    def addSuccess(self, test):
        if not self.ended:
            self.write(test, "passed")

    def addSkip(self, test, reason):
        self.write(test, "skipped", reason)

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self.write(test, "failed", self.failures[-1][1])

    def addError(self, test, err):
        super().addError(test, err)
        self.write(test, "failed", self.errors[-1][1])

    def addSubTest(self, test, subtest, err):
        super().addSubTest(test, subtest, err)
        if err is not None:
            self.write(subtest, "failed", (self.failures + self.errors)[-1][1])

    def addExpectedFailure(self, test, err):
        self.write(test, "passed")

    def addUnexpectedSuccess(self, test):
        super().addUnexpectedSuccess(test)
        self.write(test, "failed", "expected to fail, and passed")


def child(path, results, only):
    folder, file = os.path.split(path)
    sys.path.insert(0, folder)
    tests = unittest.defaultTestLoader.loadTestsFromNames(only or [os.path.splitext(file)[0]])
    with open(results, "w", encoding="utf-8") as out:
        recorder = Recorder(out)
        tests.run(recorder)
    return 0 if recorder.wasSuccessful() else 1


def python_suites(folder):
    """(name, path) of each suite in a folder of tests/"""
    folder = os.path.join(ROOT, "tests", folder)
    for file in sorted(os.listdir(folder)) if os.path.isdir(folder) else []:
        if re.fullmatch(r"test_\w+\.py", file):
            yield f"{os.path.basename(folder)}/{file[5:-3]}", os.path.join(folder, file)


# They need no core: they wait for daemons and for clocks that drift.
WAITING = ("cli/agreement", "cli/attach", "cli/clocks", "live/attach")
# They take longest of those without torch.
LONG = ("cli/mpi", "cli/pages", "lint", "cli/wheel")
# They compare a replay with steps that they timed, or a job with a plan with one without.
MEASURING = ("live/framework_plans", "live/horovod", "live/mxnet", "live/server_plans", "live/tensorflow", "live/verify")


def is_live(suite):
    return suite.name.startswith("live/")


def why_not_live(build, suites):
    """Why the live suites can't run, None when they can."""
    with open(os.path.join(ROOT, build, "meson-info", "intro-buildoptions.json"), encoding="utf-8") as file:
        sanitizers = next(option["value"] for option in json.load(file) if option["name"] == "b_sanitize")
    if sanitizers not in ("none", [], ["none"]):
        return "what runs in the job has no sanitizers in it: run these with a plain build"
    python = next(suite.python for suite in suites)
    find_torch = "import importlib.metadata as m; m.version('torch')"
    if os.path.exists(python) and subprocess.run([python, "-c", find_torch], stderr=subprocess.DEVNULL).returncode == 0:
        return None
    try:
        with open(os.path.join(ROOT, ".venv.missing"), encoding="utf-8") as file:
            return file.read().strip()
    except OSError:
        return f"no torch for {python}; 'make test' installs it"


def find_suites(build, only):
    suites = []
    listed = subprocess.run(["meson", "introspect", "--tests", build], cwd=ROOT, check=True, stdout=subprocess.PIPE)
    for test in json.loads(listed.stdout):
        suites.append(Suite(test["name"], test["cmd"], test["env"], test["timeout"] or 300,
                            folder=test["workdir"] or os.path.join(ROOT, build)))
    env = {"DPRO_BUILD": os.path.join(ROOT, build), "PYTHONDONTWRITEBYTECODE": "1"}
    live_python = os.environ.get("DPRO_PYTHON") or os.path.join(ROOT, ".venv", "bin", "python")
    if os.path.exists(live_python):
        env["DPRO_PYTHON"] = live_python
    suites.append(Suite("lint", [os.path.join(ROOT, "tools", "lint.sh"), build], timeout=600))
    suites += [Suite(name, path, env, 900, "unittest") for name, path in python_suites("cli")]
    suites += [Suite(name, path, env, 900, "unittest", python=live_python) for name, path in python_suites("live")]
    def is_of(suite, name):
        return suite.name == name or suite.name.startswith(name + "/")

    for name in only:
        if not any(is_of(suite, name) for suite in suites):
            raise SystemExit(f"run_tests.py: no suite is called {name}; all are: {' '.join(s.name for s in suites)}")
    return [s for s in suites if not only or any(is_of(s, name) for name in only)]


def run(suite):
    suite.started = time.monotonic()
    try:
        run_unittest(suite) if suite.kind == "unittest" else run_tap(suite)
    except OSError as problem:
        suite.failures.append(["(could not be started)", [str(problem)]])
    suite.seconds = time.monotonic() - suite.started
    suite.started = None
    return suite


def run_again(suite):
    """Runs the cases of a live suite that failed once more; where they pass now, their failures are told and not counted."""
    before, named = suite.failures, len(suite.failed_ids) == len(suite.failures)
    only = sorted(set(suite.failed_ids)) if named else []
    again = Suite(suite.name, suite.command, suite.env, suite.timeout, suite.kind, suite.folder, suite.python)
    run_unittest(again, only)
    suite.failures = again.failures
    # of a suite that was stopped all cases ran again; a class that could not be set up had run none
    suite.passed = suite.passed + again.passed if named else again.passed
    if not named:
        suite.skips = again.skips
    for name, lines in before:
        print(f"run again, alone: {suite.name}: {name}, which had failed with:")
        print("".join(f"    {line}\n" for line in lines), end="")
    return suite


def say_each_minute(suites, done, start):
    """Prints what runs, from a thread of its own."""
    def say():
        while not ended.wait(60):
            now = time.monotonic()
            running = [(suite.name, suite.started) for suite in suites]
            names = ", ".join(f"{name} ({now - since:.0f} s)" for name, since in running if since)
            minutes = (now - start) / 60
            print(f"{minutes:.0f} min: {len(done)} of {len(suites)} suites are done; running: {names or 'nothing'}", flush=True)
    ended = threading.Event()
    threading.Thread(target=say, daemon=True).start()
    return ended


def in_order(jobs, build, suites):
    """Runs the suites and gives each that is done."""
    reason = why_not_live(build, live) if (live := [suite for suite in suites if is_live(suite)]) else None
    if reason:
        for suite in live:
            suite.skips.append(("(all)", reason))
            yield suite
        suites = [suite for suite in suites if not is_live(suite)]
    failed = []  # live ones, for another run of what failed in them
    # long ones first, so that none is left over at the end
    suites.sort(key=lambda suite: (not is_live(suite), suite.name not in LONG))
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool, concurrent.futures.ThreadPoolExecutor(1) as beside:
        running = [(beside if suite.name in WAITING else pool).submit(run, suite)
                   for suite in suites if suite.name not in MEASURING]
        for done in concurrent.futures.as_completed(running):
            if is_live(suite := done.result()) and suite.failures:
                failed.append(suite)
            else:
                yield suite
    yield from (run(suite) for suite in suites if suite.name in MEASURING)
    yield from (run_again(suite) for suite in failed)


def count_line(passed, failed, skipped):
    return f"{passed} passed, {failed} failed" + (f", {skipped} skipped" if skipped else "")


def main():
    parser = argparse.ArgumentParser(description="run the test suites and count their cases")
    parser.add_argument("--build", default="build", help="build folder")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="suites at once")
    parser.add_argument("--slow", type=float, default=1.0, help="factor on every time limit (sanitizers)")
    parser.add_argument("--unittest", help=argparse.SUPPRESS)
    parser.add_argument("--results", help=argparse.SUPPRESS)
    parser.add_argument("suite", nargs="*", help="suites to run, or a folder of them (cli); default: all")
    args = parser.parse_args()
    if args.unittest:
        return child(args.unittest, args.results, args.suite)

    # started in the background these are ignored, by all that is started here as well
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    passed = failed = skipped = cpu = 0
    suites = find_suites(args.build, args.suite)
    for suite in suites:
        suite.timeout *= args.slow
    global PACE
    PACE = Pace()
    done = []
    ended = say_each_minute(suites, done, time.monotonic())
    with tempfile.TemporaryDirectory(prefix="dpro-tests-") as cache:
        os.environ["DPRO_TEST_CACHE"] = cache
        for suite in in_order(args.jobs, args.build, suites):
            done.append(suite)
            for name, lines in suite.failures:
                print(f"FAILED {suite.name}: {name}")
                print("".join(f"    {line}\n" for line in lines), end="")
            for name, reason in suite.skips:
                print(f"skipped {suite.name}: {name}: {reason}")
            counts = count_line(suite.passed, len(suite.failures), len(suite.skips))
            print(f"{suite.name:<24} {suite.seconds:6.1f} s, of CPUs {suite.cpu:6.1f} s  {counts}", flush=True)
            cpu += suite.cpu
            passed += suite.passed
            failed += len(suite.failures)
            skipped += len(suite.skips)
    ended.set()
    if passed + failed == 0:
        print("no test ran", file=sys.stderr)
    print(f"{cpu:.0f} s of CPUs")
    print(count_line(passed, failed, skipped))
    return 1 if failed or passed == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
