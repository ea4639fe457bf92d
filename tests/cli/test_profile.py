"""dpro profile: the program runs as without it, records by its environment alone, and its end is told."""
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

from support import BUILD, DONE, DPRO, INPUT, ROOT, SYSTEM, USAGE, Case, dpro, read_text

NEXT = "next: dpro replay "


class Profile(Case):
    """With a made-up installation: its libraries are empty, its package holds what a test puts there."""

    libraries = None

    @classmethod
    def setUpClass(cls):
        cls.libraries = os.path.join(BUILD, "tests", "empty-libraries")
        os.makedirs(cls.libraries, exist_ok=True)
        for name in ("libdpro_tracer.so", "libnccl-profiler-dpro.so"):
            path = os.path.join(cls.libraries, name)
            if not os.path.exists(path):
                subprocess.run([os.environ.get("CC", "cc"), "-shared", "-o", path + ".new", "-x", "c", os.devnull],
                               check=True)
                os.rename(path + ".new", path)

    def setUp(self):
        super().setUp()
        self.home = self.install("home")
        self.trace = self.path("trace")
        self.env = {"DPRO_HOME": self.home}

    def install(self, name, package="share/dpro/python/dpro", libraries="lib/dpro"):
        self.write(f"{name}/{package}/site/sitecustomize.py", "")
        os.makedirs(self.path(name, "bin"), exist_ok=True)
        shutil.copytree(self.libraries, self.path(name, libraries), dirs_exist_ok=True)
        return self.path(name)

    def profile(self, *args, env=None, **more):
        return dpro("profile", *args, env={**self.env, **(env or {})}, cwd=self.folder, **more)

    def environment(self, *options, env=None):
        """What a program run under dpro profile has in its environment."""
        result = self.profile("-o", self.trace, *options, "--", "env", "-0", env=env)
        self.assert_code(result, DONE)
        return dict(item.split("=", 1) for item in result.out.split("\0") if item)

    def rank_json(self, rank=0, **facts):
        return {"schema": "dpro.rank/1", "rank": rank, "world_size": 1, "complete": True, "pid": os.getpid(),
                "steps": {"timing": [{"step": i} for i in range(10)]}, "warnings": [], **facts}

    def record(self, facts, folder=None, files=("kineto.json.gz", "et.json.gz", "net.log")):
        """Leaves what a recorder would."""
        folder = f"{folder or 'host0/rank' + str(facts['rank'])}"
        self.write(f"trace/{folder}/rank.json", facts)
        for name in files:
            self.write(f"trace/{folder}/{name}", b"x")

    def tell(self, *args):
        """What is said of a folder that has come to hold what the test recorded: the job moves it into place."""
        shutil.move(self.trace, self.path("made"))
        result = self.profile("-o", self.trace, *args, "--", "sh", "-c", 'cp -r "$0"/* "$DPRO_OUT"', self.path("made"))
        self.assert_code(result, DONE)
        return result.err


class Environment(Profile):
    def test_says_what_to_record_and_where(self):
        env = self.environment()
        self.assertEqual(env["DPRO"], "1")
        self.assertEqual(env["DPRO_OUT"], self.trace)
        self.assertEqual(env["PYTHONPATH"], os.path.join(self.home, "share/dpro/python/dpro/site"))
        self.assertEqual(env["LD_PRELOAD"], os.path.join(self.home, "lib/dpro/libdpro_tracer.so"))
        self.assertEqual(env["NCCL_PROFILER_PLUGIN"], os.path.join(self.home, "lib/dpro/libnccl-profiler-dpro.so"))
        for name in ("WARMUP", "ITERATIONS", "NET", "NET_MAX_MB", "NET_KEEP", "NET_PEERS", "PROBE",
                     "PROBE_LIMIT"):
            self.assertNotIn("DPRO_" + name, env)

    def test_options_become_variables(self):
        env = self.environment("--warmup", "3", "--iterations=4", "--net=all", "--net-max-mb=7", "--net-keep=newest",
                               "--net-peers", "10.0.0.7,fd00::7", "--probe", "bf16,compile", "--probe-limit=9")
        self.assertEqual({name: env["DPRO_" + name] for name in ("WARMUP", "ITERATIONS", "NET", "NET_MAX_MB",
                                                                 "NET_KEEP", "NET_PEERS", "PROBE", "PROBE_LIMIT")},
                         {"WARMUP": "3", "ITERATIONS": "4", "NET": "all", "NET_MAX_MB": "7", "NET_KEEP": "newest",
                          "NET_PEERS": "10.0.0.7,fd00::7", "PROBE": "bf16,compile", "PROBE_LIMIT": "9"})

    def test_a_plan_is_given_by_its_absolute_path(self):
        self.write("plan/plan.json", {
            "schema": "dpro.plan/1", "job": {"framework": "pytorch", "world_size": 2, "models": [
                {"name": "net", "parameters": [{"name": "a", "size_bytes": 4}]}]},
            "communication": {"buckets": [{"parameters": ["a"], "size_bytes": 4}]}})
        for plan in ("plan", "./plan/../plan"):
            self.assertEqual(self.environment("--plan", plan)["DPRO_PLAN"], self.path("plan"))
        self.assertNotIn("DPRO_PLAN", self.environment())

    def test_a_plan_is_given_by_variables_to_the_stack_that_reads_them(self):
        variables = {"horovod.env": "HOROVOD_FUSION_THRESHOLD=4\nHOROVOD_DISABLE_GROUP_FUSION=1\n",
                     "mxnet.env": "MXNET_KVSTORE_BIGARRAY_BOUND=7\n", "byteps.env": "BYTEPS_PARTITION_BYTES=4096\n"}
        for framework, stack, name_set in (("tensorflow", "horovod", "horovod.env"), ("mxnet", "horovod", "horovod.env"),
                                           ("mxnet", "mxnet-ps", "mxnet.env"), ("pytorch", "byteps", "byteps.env"),
                                           ("tensorflow", "tensorflow-ring", None), ("pytorch", "ddp", None)):
            self.write("plan/plan.json", {
                "schema": "dpro.plan/1", "job": {"framework": framework, "stack": stack, "world_size": 2, "models": [
                    {"name": "net", "parameters": [{"name": "a", "size_bytes": 4}]}]},
                "communication": {"buckets": [{"parameters": ["a"], "size_bytes": 4}]}})
            for name, text in variables.items():
                self.write("plan/" + name, text)
            for plan in ("plan", "plan/plan.json"):
                env = self.environment("--plan", plan)
                for name, text in variables.items():
                    for line in text.splitlines():
                        variable, _, value = line.partition("=")
                        self.assertEqual(env.get(variable), value if name == name_set else None, (stack, variable))

    def test_a_plan_that_cant_be_read_is_said_before_the_job_starts(self):
        self.write("cut/plan.json", '{"schema":"dpro.plan/1"')
        for plan, *says in (("nowhere", "nowhere", "'dpro optimize TRACE -o DIR' makes a plan"),
                            ("cut", "cut/plan.json", "ends too early")):
            result = dpro("profile", "--plan", self.path(plan), "-o", self.path("out"), "--", "echo", "started")
            self.assertEqual(result.out, "")
            self.assert_error(result, INPUT, *says)
            self.assertFalse(os.path.exists(self.path("out")))

    def test_an_option_wins_over_the_environment_and_is_not_needed_with_it(self):
        env = self.environment("--warmup=3", env={"DPRO_WARMUP": "5", "DPRO_ITERATIONS": "6"})
        self.assertEqual((env["DPRO_WARMUP"], env["DPRO_ITERATIONS"]), ("3", "6"))

    def test_what_was_there_stays_behind_ours(self):
        other = os.path.join(self.libraries, "libdpro_tracer.so")
        sanitizer = os.environ.get("ASAN_OPTIONS", "") + ":verify_asan_link_order=0"  # which wants to come first
        env = self.environment(env={"PYTHONPATH": "/a:/b", "LD_PRELOAD": other, "NCCL_PROFILER_PLUGIN": "mine",
                                    "ASAN_OPTIONS": sanitizer})
        self.assertTrue(env["PYTHONPATH"].endswith("/site:/a:/b"))
        self.assertEqual(env["LD_PRELOAD"], os.path.join(self.home, "lib/dpro/libdpro_tracer.so") + ":" + other)
        self.assertEqual(env["NCCL_PROFILER_PLUGIN"], "mine")

    def test_parts_can_be_left_out(self):
        env = self.environment("--no-nccl", "--net=off")
        self.assertNotIn("NCCL_PROFILER_PLUGIN", env)
        self.assertEqual(env["DPRO_NCCL"], "off")
        self.assertNotIn("LD_PRELOAD", env)
        self.assertNotIn("LD_PRELOAD", self.environment(env={"DPRO_NET": "off"}))

    def test_the_folder_comes_from_the_environment_or_has_a_default(self):
        result = self.profile("--", "sh", "-c", "echo $DPRO_OUT", env={"DPRO_OUT": self.path("there")})
        self.assertEqual(result.out, self.path("there") + "\n")
        self.assertEqual(self.profile("--", "sh", "-c", "echo $DPRO_OUT").out, self.path("dpro_trace") + "\n")

    def test_a_relative_folder_is_made_absolute(self):
        result = self.profile("-o", "a/b/", "--", "sh", "-c", 'echo "$DPRO_OUT"; test -d "$DPRO_OUT"')
        self.assert_code(result, DONE)
        self.assertEqual(result.out, self.path("a", "b") + "\n")

    def test_python_runs_the_package(self):
        self.write("home/share/dpro/python/dpro/site/sitecustomize.py", "print('started by dpro')")
        self.assertEqual(self.profile("--", sys.executable, "-c", "print('job')").out, "started by dpro\njob\n")


class Places(Profile):
    def found(self, home):
        env = self.environment(env={"DPRO_HOME": home})
        return (env["PYTHONPATH"], os.path.dirname(env["LD_PRELOAD"]), os.path.dirname(env["NCCL_PROFILER_PLUGIN"]))

    def test_every_layout_is_found(self):
        for name, package, libraries in (("prefix", "share/dpro/python/dpro", "lib/dpro"),
                                         ("checkout", "python/dpro", "build/tracer"),
                                         ("venv", "lib/python3.11/site-packages/dpro",
                                          "lib/python3.11/site-packages/dpro/lib"),
                                         ("debian", "lib/python3/dist-packages/dpro",
                                          "lib/python3/dist-packages/dpro/lib")):
            with self.subTest(layout=name):
                home = self.install(name, package, libraries)
                self.assertEqual(self.found(home), (os.path.join(home, package, "site"),
                                                    os.path.join(home, libraries), os.path.join(home, libraries)))

    def test_a_command_finds_what_lies_beside_it(self):
        home = self.install("venv", "lib/python3.11/site-packages/dpro", "lib/python3.11/site-packages/dpro/lib")
        command = shutil.copy(DPRO, os.path.join(home, "bin", "dpro"))
        os.symlink(command, self.path("link"))
        env = {k: v for k, v in os.environ.items() if k != "DPRO_HOME"}
        done = subprocess.run([self.path("link"), "profile", "-o", self.trace, "--", "sh", "-c", "echo $PYTHONPATH"],
                              env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60)
        self.assertEqual(done.stdout.decode().strip(), os.path.join(home, "lib/python3.11/site-packages/dpro/site"))

    def test_a_missing_package_stops_before_the_job(self):
        result = self.profile("-o", self.trace, "--", "touch", self.path("ran"), env={"DPRO_HOME": self.folder})
        self.assert_error(result, SYSTEM, "DPRO_HOME", re.escape(self.folder))
        self.assertFalse(os.path.exists(self.path("ran")) or os.path.exists(self.trace))

    def test_a_missing_tracer_is_said_and_the_job_runs(self):
        os.remove(os.path.join(self.home, "lib/dpro/libdpro_tracer.so"))
        result = self.profile("-q", "--", "echo", "job")
        self.assert_code(result, DONE)
        self.assertEqual(result.out, "job\n")
        self.assertRegex(result.err, r"\Adpro: libdpro_tracer.so [^\n]*without the transport\n\Z")

    def test_a_tracer_that_cannot_be_preloaded_is_said_and_the_job_runs(self):
        result = self.profile("-q", "--", "sh", "-c", 'echo "<$LD_PRELOAD>"', env={"DPRO_HOME": self.install("a b")})
        self.assertEqual(result.out, "<>\n")
        self.assertRegex(result.err, "can't be preloaded from a folder with a space")


class Program(Profile):
    def test_arguments_arrive_as_they_are(self):
        words = ["a b", "", "--output", "-o", "*", "--", "'", "\n"]
        self.assertEqual(self.profile("--", "printf", "%s|", *words).out, "".join(word + "|" for word in words))

    def test_standard_files_are_the_programs(self):
        done = subprocess.run([DPRO, "profile", "-q", "--", "cat"], env={**os.environ, **self.env}, cwd=self.folder,
                              input=b"\0\xff text", stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60)
        self.assertEqual((done.stdout, done.stderr), (b"\0\xff text", b""))

    def test_a_closed_file_stays_closed(self):
        done = subprocess.run(["sh", "-c", '"$0" profile -q -- sh -c "ls /proc/self/fd" <&- 2>&-', DPRO],
                              env={**os.environ, **self.env}, cwd=self.folder, stdout=subprocess.PIPE, timeout=60)
        self.assertIn("1", done.stdout.decode().split())
        self.assertNotIn("2", done.stdout.decode().split())

    def test_no_file_of_ours_is_left_open_in_it(self):
        self.assertEqual(len(self.profile("--", "ls", "/proc/self/fd").out.split()), 4)  # and that of the folder

    def test_the_exit_code_is_the_programs(self):
        for code in (0, 1, 3, 127, 255):
            self.assert_code(self.profile("--", "sh", "-c", f"exit {code}"), code)

    def test_a_killed_program_gives_128_and_the_signal(self):
        for number in (signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM, signal.SIGINT):
            self.assert_code(self.profile("--", "sh", "-c", f"kill -{int(number)} $$"), 128 + number)

    def test_a_python_file_is_run_by_python3(self):
        self.write("train.py", "import sys\nprint(sys.argv)\nsys.exit(5)")
        for args in (["train.py", "-o", self.trace], ["-o", self.trace, "train.py"], ["-o", self.trace, "--", "train.py"]):
            result = self.profile(*args)
            self.assert_code(result, 5)
            self.assertEqual(result.out, "['train.py']\n")

    def test_the_papers_spelling_takes_arguments(self):
        self.write("train.py", "import sys\nprint(sys.argv)")
        result = self.profile("train.py", "x=1", "-o", self.trace, "--", "--epochs", "2")
        self.assertEqual(result.out, "['train.py', 'x=1', '--epochs', '2']\n")

    def test_options_of_the_program_before_the_dashes_are_told_where_they_belong(self):
        self.assert_error(self.profile("torchrun", "--nproc-per-node=2", "train.py"), USAGE, "--nproc-per-node", "'--'")
        self.assert_error(self.profile("python3", "-u", "train.py"), USAGE, "-u", "'--'")

    def test_what_cannot_be_started_is_named_and_leaves_no_folder(self):
        self.write("text", "no program")
        self.write("script", "#!/no/such/interpreter\n")
        os.chmod(self.path("script"), 0o755)
        for program, pattern in (("no_such_program", "no_such_program: no such program on PATH"),
                                 ("./nothing", "./nothing: no such program"), ("nothing.py", "nothing.py: no such file"),
                                 ("./text", "./text: .*interpreter"), (self.folder, "is not a program"),
                                 ("./script", "the interpreter that its first line names")):
            with self.subTest(program=program):
                self.assert_error(self.profile("-o", self.trace, "--", program), USAGE, pattern)
                self.assertFalse(os.path.exists(self.trace))

    def test_no_program_is_wrong_usage(self):
        self.assert_error(self.profile("-o", self.trace), USAGE, "needs a program")
        self.assert_error(self.profile("-o", self.trace, "--"), USAGE, "needs a program")
        self.assert_error(self.profile(""), USAGE, "needs a program")

    def test_bad_values_name_the_option_and_the_form(self):
        for option, values in {"--warmup": ["", "-1", "x", "1.5", "99999999999"], "--iterations": ["0", "x"],
                               "--net": ["", "on"], "--net-max-mb": ["0", "1G"], "--net-keep": ["all"],
                               "--probe": ["", "bf16,", "fp8"], "--probe-limit": ["0"],
                               "--net-peers": ["", "job,", "host-a", "10.0.0.1,,10.0.0.2", ",10.0.0.1"], "--output": [""]}.items():
            for value in values:
                with self.subTest(option=option, value=value):
                    self.assert_error(self.profile(f"{option}={value}", "ls"), USAGE,
                                      re.escape(f"{option}: '{value}' is not "))


class Signals(Profile):
    """The program is a shell that says which signals it gets; it stands in a session of its own with dpro."""

    SCRIPT = ("for s in HUP INT QUIT TERM USR1 USR2; do trap \"echo $s; exit 9\" $s; done; echo ready; "
              "while :; do sleep 0.05; done")

    def start(self, script, **more):
        process = subprocess.Popen([DPRO, "profile", "-o", self.trace, "--", "sh", "-c", script],
                                   env={**os.environ, **self.env}, cwd=self.folder, stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True, **more)
        self.addCleanup(self.end, process)
        self.assertEqual(process.stdout.readline(), b"ready\n")
        return process

    @staticmethod
    def end(process):
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.communicate()

    def test_those_sent_to_dpro_reach_the_program(self):
        for name in ("HUP", "INT", "QUIT", "TERM", "USR1", "USR2"):
            with self.subTest(signal=name):
                process = self.start(self.SCRIPT)
                process.send_signal(getattr(signal, "SIG" + name))
                out, err = process.communicate(timeout=30)
                self.assertEqual((out.decode(), process.returncode), (name + "\n", 9))
                self.assertRegex(err.decode(), "nothing to record")

    def test_the_program_may_go_on(self):
        process = self.start("trap 'echo caught' TERM; echo ready; i=0; while [ $i -lt 20 ]; do sleep 0.05; "
                             "i=$((i + 1)); done; exit 4")
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.communicate(timeout=30)[0], b"caught\n")
        self.assertEqual(process.returncode, 4)

    def test_an_ignored_signal_stays_ignored(self):
        process = self.start("echo ready; sleep 0.5; kill -HUP $$; exit 6",
                             preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
        process.send_signal(signal.SIGHUP)
        process.communicate(timeout=30)
        self.assertEqual(process.returncode, 6)

    def test_children_that_nobody_waits_for_are_waited_for(self):
        process = self.start("echo ready; exit 8", preexec_fn=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN))
        process.communicate(timeout=30)
        self.assertEqual(process.returncode, 8)

    def test_ctrl_c_of_a_terminal_comes_once_and_what_was_recorded_is_told(self):
        import pty
        self.record(self.rank_json())
        shutil.move(self.trace, self.path("made"))
        script = (f"trap 'echo got-int; cp -r {self.path('made')}/* \"$DPRO_OUT\"; exit 7' INT; echo ready; "
                  "i=0; while [ $i -lt 400 ]; do sleep 0.05; i=$((i + 1)); done")
        try:
            pid, terminal = pty.fork()
        except OSError as problem:
            self.skipTest("no pseudo-terminal can be had here: %s" % problem)
        if pid == 0:
            os.environ.update(self.env)
            os.execv(DPRO, [DPRO, "profile", "-o", self.trace, "--", "sh", "-c", script])
        seen = b""
        try:
            sent = False
            while True:
                try:
                    seen += os.read(terminal, 4096)
                except OSError:
                    break
                if b"ready" in seen and not sent:
                    os.write(terminal, b"\x03")
                    sent = True
        finally:
            os.close(terminal)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), 7)
        self.assertEqual(seen.count(b"got-int"), 1)
        self.assertIn(NEXT.encode(), seen)

    def test_ctrl_z_stops_and_continues_both(self):
        process = self.start("echo ready; sleep 0.3; exit 2")
        os.killpg(process.pid, signal.SIGSTOP)
        time.sleep(0.1)
        self.assertIsNone(process.poll())
        os.killpg(process.pid, signal.SIGCONT)
        process.communicate(timeout=30)
        self.assertEqual(process.returncode, 2)


class Folder(Profile):
    def refuse(self, *patterns, code=USAGE, args=(), **more):
        result = self.profile("-o", self.trace, *args, "--", "touch", self.path("ran"), **more)
        self.assert_error(result, code, re.escape(self.trace), *patterns)
        self.assertFalse(os.path.exists(self.path("ran")))

    def test_a_recording_is_not_written_over(self):
        self.record(self.rank_json())
        self.write("trace/job.json", "{}")
        self.refuse("holds a recording", "--force")
        self.assertTrue(os.path.exists(self.path("trace/host0/rank0/kineto.json.gz")))

    def test_a_folder_in_which_nothing_was_recorded_is_used_again(self):
        self.record(self.rank_json(complete=False, steps={"timing": []}), files=[])
        self.write("trace/job.json", "{}")
        self.assert_code(self.profile("-q", "-o", self.trace, "--", "true"), DONE)
        self.assertEqual(os.listdir(self.trace), [])

    def test_force_removes_the_recording_and_nothing_else(self):
        for folder in ("host0/rank0", "host0/rank1", "attempt1/host0/rank0", "hostnode-a/rank2"):
            self.record(self.rank_json(), folder)
        for name in ("job.json", "notes.txt", "hosts/rank0/mine", "attempt1/mine", "host0/mine", "rank0/mine",
                     "attempts/host0/rank0/mine"):
            self.write("trace/" + name, "mine")
        os.symlink(self.path("home"), self.path("trace/host0/rank7"))
        self.assert_code(self.profile("--force", "-q", "-o", self.trace, "--", "true"), DONE)
        left = sorted(os.path.relpath(os.path.join(folder, name), self.trace)
                      for folder, _, names in os.walk(self.trace) for name in names)
        self.assertEqual(left, ["attempt1/mine", "attempts/host0/rank0/mine", "host0/mine", "notes.txt", "rank0/mine"])
        self.assertTrue(os.path.exists(self.path("home/share")))

    def test_an_empty_folder_is_used_and_stays(self):
        os.mkdir(self.trace)
        self.assert_code(self.profile("-q", "-o", self.trace, "--", "true"), DONE)
        self.assertTrue(os.path.isdir(self.trace))

    def test_other_nodes_of_the_job_may_have_begun(self):
        self.record(self.rank_json(complete=False, host_name="node-b", boot_id="other"), "host1/rank8")
        self.assert_code(self.profile("-q", "-o", self.trace, "--", "true"), DONE)

    def test_what_a_dead_job_of_this_machine_left_is_not_mixed_with(self):
        dead = subprocess.Popen(["true"])
        dead.wait()
        boot_id = read_text("/proc/sys/kernel/random/boot_id").strip()
        here = {"complete": False, "host_name": os.uname().nodename, "boot_id": boot_id}
        self.record(self.rank_json(pid=os.getpid(), **here))
        self.assert_code(self.profile("-q", "-o", self.trace, "--", "true"), DONE)  # it lives
        self.record(self.rank_json(pid=dead.pid, **here))
        self.refuse("an earlier job recorded", "--force")
        self.assert_code(self.profile("-q", "--force", "-o", self.trace, "--", "true"), DONE)
        self.assertEqual(os.listdir(self.trace), [])

    def test_logs_of_processes_are_a_recording(self):
        dead = subprocess.Popen(["true"])
        dead.wait()
        host = os.uname().nodename
        self.write(f"trace/net-{host}-{os.getpid()}.log", "lives")
        self.write(f"trace/net-elsewhere-{dead.pid}.log", "is another node's")
        self.write("trace/net-notes.txt", "is no log")
        self.assert_code(self.profile("-q", "-o", self.trace, "--", "true"), DONE)
        self.write(f"trace/net-{host}-{dead.pid}.log", "ended")
        self.write(f"trace/net-{host}-{dead.pid}.log.old", "ended")
        self.refuse("an earlier job recorded", "--force")
        self.assert_code(self.profile("-q", "--force", "-o", self.trace, "--", "true"), DONE)
        self.assertEqual(len(os.listdir(self.trace)), 3)
        self.write("trace/job.json", "{}")
        self.assert_code(self.profile("-q", "--force", "-o", self.trace, "--", "true"), DONE)
        self.assertEqual(os.listdir(self.trace), ["net-notes.txt"])

    def test_a_file_in_its_place_is_refused(self):
        self.write("trace", "")
        self.refuse("can't be made", "Not a directory", code=SYSTEM)

    def test_a_folder_that_cannot_be_made_is_refused(self):
        self.assert_error(self.profile("-o", "/proc/no/such", "--", "true"), SYSTEM, "/proc/no: .*can't be made")

    def test_a_read_only_folder_is_refused(self):
        self.trace = "/sys/kernel"
        self.refuse("can't be written to", code=SYSTEM)

    def test_a_full_disk_is_refused(self):
        os.mkdir(self.trace)
        script = 'mount -t tmpfs -o size=1m none "$1" && shift && exec "$@"'
        command = ["unshare", "-m", "sh", "-c", script, "sh", self.trace, DPRO, "profile", "-o", self.trace, "--", "true"]
        done = subprocess.run(command, env={**os.environ, **self.env}, cwd=self.folder, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, timeout=60)
        if not done.stderr.startswith(b"dpro:"):
            self.skipTest("may not mount here: " + done.stderr.decode().strip())
        self.assertEqual(done.returncode, SYSTEM)
        self.assertRegex(done.stderr.decode(), r"\Adpro: [^\n]*only 1 MB are free[^\n]*\n\Z")

    def test_a_folder_made_for_nothing_is_taken_away(self):
        self.assert_code(self.profile("-o", self.trace, "--", "true"), DONE)
        self.assertFalse(os.path.exists(self.trace))


class Summary(Profile):
    def test_nothing_to_record_is_said(self):
        result = self.profile("-o", self.trace, "--", "ls", "/")
        self.assert_code(result, DONE)
        self.assertEqual(result.out, subprocess.run(["ls", "/"], stdout=subprocess.PIPE, check=True).stdout.decode())
        self.assertRegex(result.err, r"\Adpro: there was nothing to record: [^\n]*ls[^\n]*\n\Z")

    def test_quiet_says_nothing(self):
        result = self.profile("-q", "-o", self.trace, "--", "true")
        self.assertEqual((result.out, result.err), ("", ""))

    def test_a_whole_recording_takes_two_lines(self):
        for rank in range(2):
            self.record(self.rank_json(rank, world_size=2))
        self.assertEqual(self.tell(), "dpro: recorded 2 ranks: 10 steps, structure, transport\n"
                                      f"dpro: {NEXT}{self.trace}\n")

    def test_missing_ranks_are_said(self):
        for rank in (0, 1, 2, 5):
            self.record(self.rank_json(rank, world_size=16))
        self.assertRegex(self.tell(), r"\Adpro: recorded ranks 0-2, 5 of 16: [^\n]*other ranks[^\n]*\ndpro: next")

    def test_a_recording_cut_short_says_how_many_steps_it_takes(self):
        self.record(self.rank_json(complete=False, steps={"timing": [{}] * 4}), files=["kineto.json"])
        said = self.tell("--warmup=5", "--iterations=6")
        self.assertIn("recorded 1 rank: 4 steps\n", said)
        self.assertRegex(said, r"1 of them ended before all was recorded, which takes 31 steps")
        self.assertIn(NEXT, said)

    def test_a_job_that_ended_in_its_warmup_is_told_apart(self):
        self.record(self.rank_json(complete=False, steps={"timing": []}), files=[])
        self.assertRegex(self.tell(), r"\Adpro: nothing recorded: no step of the timing window \(22 to 31\) is in "
                                      r"host0/rank0/rank.json, [^\n]*\n\Z")

    def statuses(self, *jobs, options=()):
        """What is said after Python processes of the job have kept how far they came: the calls that each makes."""
        script = self.write("status.py", "import os, sys\nsys.path.insert(0, %r)\nfrom dpro.status import *\n"
                                         "exec(sys.argv[1])\n" % os.path.join(ROOT, "python"))
        made = self.path("made")
        if os.path.exists(self.trace):
            shutil.move(self.trace, made)
        job = "; ".join('"$P" "$S" "$J%d" || true' % i for i in range(len(jobs)))
        result = self.profile("-o", self.trace, *options, "--", "sh", "-c",
                              '[ ! -d "$0" ] || cp -r "$0"/* "$DPRO_OUT"; ' + job, made,
                              env={"P": sys.executable, "S": script, **{"J%d" % i: text for i, text in enumerate(jobs)}})
        self.assert_code(result, DONE)
        lines = [line for line in result.err.splitlines() if line.startswith("dpro: ")]
        self.assertNotIn("Traceback", result.err)
        shutil.rmtree(made, ignore_errors=True)
        return lines

    def test_the_last_line_says_how_far_the_job_came(self):
        loaded, kill = "came_to(LOADED, place=(0, 1)); ", "os.kill(os.getpid(), 9)"
        for job, said in (
                (loaded + "came_to(ENDED)", "the process ended before a step of training that dpro can see"),
                (loaded + kill, "the process was killed or left without cleaning up before a step of training"),
                (loaded + "came_to(STEPPED, 1); came_to(ENDED)", "the process ended after 1 step, and the first to be recorded is "
                                                                 "step 22: let it train 31 steps"),
                (loaded + "came_to(STEPPED, 15); " + kill, "the process was killed or left without cleaning up after 15 steps, "
                                                           "and the first to be recorded is step 22: let it "),
                (loaded + "came_to(STEPPED, 21); came_to(WINDOW); came_to(STEPPED, 28); " + kill,
                 "the process was killed or left without cleaning up after step 28, while steps 22 to 31 were recorded: [^\\n]*lost"),
                (loaded + "came_to(STEPPED, 9); came_to(FAILED, text='/x: No space left on device'); came_to(ENDED)",
                 "recording failed after step 9: /x: No space left on device"),
                (loaded + "came_to(STEPPED, 48); came_to(FINISHED, text='Kineto is missing'); came_to(ENDED)", "Kineto is missing"),
                (loaded + "came_to(STEPPED, 48); came_to(FAILED, text='a\\nb\\x1b[2J' + 5000 * 'c'); came_to(ENDED)",
                 "recording failed after step 48: a b \\[2Jc+")):
            with self.subTest(job=job):
                lines = self.statuses(job)
                self.assertEqual(len(lines), 1, lines)
                self.assertRegex(lines[0], r"\Adpro: nothing recorded: [^\n]*" + said)

    def test_the_process_that_came_farthest_is_told_of(self):
        lines = self.statuses("came_to(LOADED, place=(1, 2)); came_to(ENDED)",
                              "came_to(LOADED, place=(0, 2)); came_to(STEPPED, 3); came_to(ENDED)")
        self.assertRegex(lines[-1], r"nothing recorded: rank 0: the process ended after 3 steps, ")

    def test_a_killed_process_is_told_of_before_those_that_it_took_along(self):
        lines = self.statuses("came_to(LOADED, place=(0, 2)); came_to(STEPPED, 6); came_to(ENDED)",
                              "came_to(LOADED, place=(1, 2)); came_to(STEPPED, 5); os.kill(os.getpid(), 9)")
        self.assertRegex(lines[-1], r"nothing recorded: rank 1: the process was killed or left without cleaning up after 5 steps, ")

    def test_a_rank_of_this_node_that_recorded_nothing_is_told_of(self):
        for job, said in (("came_to(LOADED, place=(1, 2)); came_to(STEPPED, 9); came_to(FAILED, text='/x: Permission denied')",
                           "rank 1 recorded nothing: recording failed after step 9: /x: Permission denied"),
                          ("came_to(LOADED, place=(1, 2)); came_to(STEPPED, 5); os.kill(os.getpid(), 9)",
                           "rank 1 recorded nothing: the process was killed or left without cleaning up after 5 steps, ")):
            with self.subTest(job=job):
                self.record(self.rank_json(0, world_size=2))
                lines = self.statuses(job, "came_to(LOADED, place=(0, 2)); came_to(STEPPED, 48); came_to(FINISHED)")
                self.assertEqual(lines[0], "dpro: recorded rank 0 of 2: 10 steps, structure, transport")
                self.assertIn(said, lines[1])
                self.assertNotIn("other ranks' nodes", " ".join(lines))
                shutil.rmtree(self.trace)

    def test_why_a_rank_did_not_record_all_is_told(self):
        self.record(self.rank_json(complete=False, steps={"timing": []}), files=["kineto.json"])
        lines = self.statuses("came_to(LOADED, place=(0, 1)); came_to(STEPPED, 31); came_to(WINDOW); "
                              "came_to(FAILED, text='rank.json: File too large')")
        self.assertEqual(lines, ["dpro: recorded 1 rank: a profile, without the times of its steps",
                                 "dpro: rank 0 did not record all: recording failed after step 31: rank.json: File too large",
                                 f"dpro: {NEXT}{self.trace}"])

    def test_a_status_is_written_to_nobody_elses_file(self):
        other = self.write("other.txt", "of somebody else\n")
        self.statuses("os.environ['DPRO_STATUS'] = %r; came_to(STEPPED, 3)" % other,
                      "file = open(%r, 'a'); os.environ['DPRO_STATUS'] = '/proc/self/fd/%%d' %% file.fileno(); came_to(STEPPED, 3)" % other)
        self.assertEqual(read_text(other), "of somebody else\n")

    def test_a_rank_that_no_job_has_disturbs_nobody(self):
        lines = self.statuses("came_to(LOADED, place=(1 << 40, 2)); came_to(STEPPED, 1 << 70); came_to(FAILED, text=chr(0xd800)); "
                              "came_to(ENDED)")
        self.assertNotIn("Traceback", " ".join(lines))

    def test_a_status_that_cannot_be_reached_disturbs_nobody(self):
        lines = self.statuses("os.environ['DPRO_STATUS'] = '/proc/1/fd/0'; came_to(STEPPED, 3)",
                              "os.environ['DPRO_STATUS'] = '/dev/full'; came_to(STEPPED, 3)",
                              "os.environ['DPRO_STATUS'] = '/no/such'; came_to(STEPPED, 3)")
        self.assertRegex(lines[0], "there was nothing to record")

    def test_it_is_said_where_warnings_are(self):
        for rank in range(2):
            self.record(self.rank_json(rank, world_size=2, warnings=["no Kineto in this torch", f"own {rank}"]))
        self.assertIn(f"dpro: 4 warnings: see {self.trace}/host0/rank0/rank.json and the other ranks'\n", self.tell())

    def test_the_transport_of_a_program_that_does_not_train_is_told(self):
        self.write("trace/net-a-7.log", "x")
        self.assertRegex(self.tell(), r"\Adpro: recorded the transport of 1 process; no step of training\n\Z")

    def test_the_last_attempt_counts(self):
        self.record(self.rank_json(complete=False, steps={"timing": [{}]}))
        self.record(self.rank_json(), "attempt1/host0/rank0")
        said = self.tell()
        self.assertIn("recorded 1 rank: 10 steps", said)
        self.assertIn("started again 1 time:", said)

    def test_a_damaged_rank_json_is_named_and_the_rest_told(self):
        self.record(self.rank_json(0, world_size=2))
        self.record(self.rank_json(1, world_size=2))
        self.write("trace/host0/rank1/rank.json", json.dumps(self.rank_json(1))[:40])
        said = self.tell()
        self.assertRegex(said, r"dpro: [^\n]*host0/rank1/rank.json: byte \d+: the file ends too early")
        self.assertIn(NEXT, said)

    def test_hostile_rank_json_does_no_harm(self):
        for text in ("", "[]", "{", "null", '{"rank":-5,"world_size":1e99,"steps":[1],"warnings":{"a":1}}',
                     '{"rank":99999999999,"steps":{"timing":7},"warnings":[1,"\\u0007bell",null]}', "[" * 1000):
            with self.subTest(text=text[:20]):
                shutil.rmtree(self.trace, ignore_errors=True)
                shutil.rmtree(self.path("made"), ignore_errors=True)
                self.record(self.rank_json())
                self.write("trace/host0/rank0/rank.json", text)
                for line in self.tell().splitlines():
                    self.assertRegex(line, r"\Adpro: [^\x00-\x1f]+\Z")

    def test_a_folder_that_the_job_removed_is_said(self):
        result = self.profile("-o", self.trace, "--", "sh", "-c", 'rmdir "$DPRO_OUT"')
        self.assert_code(result, DONE)
        self.assertRegex(result.err, r"\Adpro: " + re.escape(self.trace) + r": [^\n]*\n\Z")
