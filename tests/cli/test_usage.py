"""Help, version, completion, and what is said when the command is used wrongly."""
import os
import re
import shutil
import subprocess
import unittest

from support import BUNDLED, CHECK_FAILED, COMMANDS, DONE, DPRO, INPUT, ROOT, SYSTEM, USAGE, Case, dpro, options_of, read_text


def long_options(text):
    return set(re.findall(r"--[a-z][a-z-]*", text))


class Linking(unittest.TestCase):
    @unittest.skipUnless(shutil.which("nm"), "no nm here")
    def test_no_function_of_the_commands_is_named_as_one_of_the_library(self):
        """The linker would silently take the command's for the library's own calls."""
        def defined(*files):
            lines = subprocess.run(["nm", "--defined-only", "--extern-only", *files], stdout=subprocess.PIPE,
                                   check=True, text=True).stdout.splitlines()
            return {line.split()[2] for line in lines if len(line.split()) == 3 and line.split()[1] in "TDBR"}
        folder = os.path.join(os.path.dirname(DPRO), "dpro.p")
        objects = [os.path.join(folder, name) for name in os.listdir(folder) if name.endswith(".o")]
        both = defined(*objects) & defined(os.path.join(os.path.dirname(DPRO), "src", "libdpro.a"))
        self.assertEqual(both, set())


def documented_options(page):
    text = read_text(os.path.join(ROOT, "doc", "man", page)).replace("\\-", "-")
    return {"--" + name for name in re.findall(r"(?m)^\.It .*Fl -([a-z][a-z-]*)", text)}


class Help(Case):
    def test_help_lists_the_commands(self):
        for args in (["--help"], ["-h"], ["help"]):
            result = dpro(*args)
            self.assert_code(result, DONE)
            for command in COMMANDS:
                self.assertRegex(result.out, rf"(?m)^  {command} ")
            self.assertEqual(result.err, "")

    def test_help_of_a_command_is_the_same_either_way(self):
        for command in COMMANDS:
            result = dpro("help", command)
            self.assert_code(result, DONE)
            self.assertEqual(result.out, dpro(command, "--help").out)
            self.assertTrue(result.out.startswith(f"Usage: dpro {command} "))

    def test_help_fits_a_terminal(self):
        for command in COMMANDS:
            for line in dpro("help", command).out.splitlines():
                self.assertLessEqual(len(line), 92, line)

    def test_help_wins_over_missing_paths(self):
        self.assert_code(dpro("replay", "--help"), DONE)

    def test_version(self):
        result = dpro("--version")
        self.assert_code(result, DONE)
        self.assertRegex(result.out, r"\Adpro \d+\.\d+\.\d+\n\S+ [\d.]+ for \S+ \S+, .*; libisal [\d.]+, SQLite [\d.]+; with(out)? MPI\n\Z")

    def test_no_command_prints_the_commands_and_fails(self):
        result = dpro()
        self.assert_code(result, USAGE)
        self.assertIn("replay", result.err)
        self.assertEqual(result.out, "")

    def test_manual_pages_have_every_option_and_no_other(self):
        shared = documented_options("dpro.1")
        for command in ("tune", "profile", "verify", "attach", "replay", "diagnose", "whatif", "optimize", "compare", "align", "export"):
            options = long_options(dpro("help", command).out.split("\nOptions:\n")[1].split("\nExamples:\n")[0])
            documented = documented_options(f"dpro-{command}.1")
            self.assertLessEqual(documented, options, command)
            self.assertLessEqual(options, documented | shared, command)

    def test_manual_page_lists_every_command(self):
        self.assertEqual(set(re.findall(r"(?m)^\.It Cm (\w+)$", read_text(os.path.join(ROOT, "doc", "man", "dpro.1")))), set(COMMANDS))


class Completion(Case):
    def test_every_shell_gets_every_option(self):
        options = long_options(dpro("help", "replay").out)
        for shell in ("bash", "zsh"):
            result = dpro("completion", shell)
            self.assert_code(result, DONE)
            self.assertLessEqual(options, long_options(result.out), shell)
        fish = dpro("completion", "fish").out
        for option in options:
            self.assertIn(f" -l {option[2:]} ", fish)

    def test_descriptions_are_whole(self):
        for shell in ("zsh", "fish"):
            out = dpro("completion", shell).out
            self.assertIn("what if ops took longer or shorter", out)
            self.assertNotIn("took longer or shorter:", out)
            self.assertIn("off the measured iteration time", out)  # the second line of a help text

    def test_bash_completes(self):
        script = self.write("completion", dpro("completion", "bash").out)
        cases = [(["dpro", "rep"], {"replay"}), (["dpro", "verify", "--tur"], {"--turns"}),
                 (["dpro", "verify", "--turns", ""], {"steps", "runs"}),
                 (["dpro", "verify", "--turns", "=", "r"], {"runs"}), (["dpro", "completion", "z"], {"zsh"}),
                 (["dpro", "replay", "--seed", ""], set())]
        for words, expected in cases:
            code = 'source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _dpro; printf "%s\n" "${COMPREPLY[@]}"'
            done = subprocess.run(["bash", "-c", code, "bash", script, *words], stdout=subprocess.PIPE,
                                  stderr=subprocess.DEVNULL, timeout=20)
            self.assertEqual(set(done.stdout.decode().split()), expected, words)

    def test_zsh_and_fish_accept_their_scripts(self):
        for shell in ("zsh", "fish"):
            if shutil.which(shell) is None:
                continue
            script = self.write(shell, dpro("completion", shell).out)
            subprocess.run([shell, "-n", script], check=True, timeout=20)


class WrongUsage(Case):
    def refuse(self, args, *patterns):
        self.assert_error(dpro(*args), USAGE, *patterns)

    def test_what_is_wrong_is_named_with_what_is_meant(self):
        replay = ["replay", BUNDLED]
        for args, *patterns in (
                (["repaly"], "unknown command 'repaly'.*'replay'"), (["completon"], "completion"), (["xyzzy"], "dpro help"),
                ([BUNDLED], "dpro replay"), (["--json", BUNDLED], "--json"), (["replay"], "dpro help replay"),
                (["replay", "--json"], "dpro help replay"), ([*replay, "--sampels", "3"], "--sampels.*--samples"), ([*replay, "-Z"], "-Z"),
                *(([*replay, option], option + " needs a value") for option in ("--output", "-o", "--steps", "--samples", "--delay")),
                ([*replay, "--json=yes"], "--json takes no value"), ([*replay, "--delay", "no_such_op=2"], "no_such_op"),
                ([*replay, "--delay", "FW@77=2"], "77"), ([*replay, "--fail-on=3", "--delay=FW=2"], "--fail-on", "--delay"),
                (["replay", "--\x1b[31mred\n"], r"\\x1b"), (["completion", "tcsh"], "bash, zsh, fish"),
                (["completion"], "bash, zsh, fish")):
            with self.subTest(args):
                self.refuse(args, *patterns)

    def test_bad_values_name_the_option_and_the_form(self):
        cases = {
            "--steps": ["", ":", "x", "3:1", "1:2:3", "-1:2", "99999999999999999999"],
            "--rank-regex": ["", "rank", "([0-9]+"],
            "--step-mark": ["", "step("],
            "--samples": ["", "-1", "x", "1.5", "99999999999", " 3"],
            "--seed": ["", "-1", "0x10", "99999999999999999999999"],
            "--threads": ["", "-2", "two"],
            "--delay": ["", "FW", "=2", "FW=", "FW=x", "FW=nan", "FW=inf", "@1=2", "FW=+", "FW=+x", "FW=20 ms",
                        "FW=+1s"],
            "--bandwidth": ["", "1", "gbit", "1 parsec", "-1gbit", "0gbit", "1e999gbit", "1gbit/h", "nan GB/s"],
            "--fail-on": ["", "x", "-3", "%", "nan", "3%%"],
            "--output": [""],
        }
        for option, values in cases.items():
            for value in values:
                with self.subTest(option=option, value=value):
                    self.refuse(["replay", BUNDLED, f"{option}={value}"], re.escape(f"{option}: '{value}' is not "))

    def test_numbers_that_make_no_sense_are_refused_by_every_option(self):
        n = 0
        for command in COMMANDS:
            for option, form in options_of(command):
                if form is None or form in ("DIR", "FILE", "TOPOLOGY", "MODULES", "UNITS", "RE", "PATTERN", "GOOD"):
                    continue
                for value in ("", "-1", "nan", "inf", "-inf", "1e400"):
                    with self.subTest(command=command, option=option, value=value):
                        n += 1
                        text = f"FW={value}" if option == "--delay" else value
                        self.assert_error(dpro(command, f"{option}={text}", "/nonexistent"), USAGE, option)
        self.assertGreater(n, 200)

    def test_two_dashes_end_the_options(self):
        self.assert_error(dpro("replay", "--", "--json"), INPUT, "--json")


class Forms(Case):
    def test_options_are_taken_in_every_form(self):
        plain = dpro("replay", BUNDLED, "--json", "--samples", "5", "--seed", "1", "--no-validate")
        other = dpro("replay", "--samples=5", "--seed=1", "--json", "--no-validate", "--", BUNDLED)
        self.assert_code(plain, DONE)
        self.assertEqual(plain.out, other.out)

    def test_the_last_of_a_repeated_option_counts(self):
        once = dpro("replay", BUNDLED, "--json", "--samples=5", "--seed=2")
        twice = dpro("replay", BUNDLED, "--json", "--samples=9", "--samples=5", "--seed=1", "--seed=2")
        self.assert_code(once, DONE)
        self.assertEqual(once.out, twice.out)
        self.assertEqual(once.err, "")
        self.assertIn("dpro: --samples is given twice: '5' counts, '9' does not", twice.err)

    def test_what_is_left_out_of_a_repeated_option_is_said(self):
        twice = dpro("whatif", BUNDLED, "--bandwidth", "0.5x", "--bandwidth=2x", "-q")
        self.assertIn("dpro: --bandwidth is given twice: '2x' counts, '0.5x' does not", twice.err)
        for options in (("--bandwidth=2x", "--bandwidth", "2x"), ("--delay", "FW=0.5", "--delay", "BW=0.5")):
            self.assertEqual(dpro("whatif", BUNDLED, *options, "-q").err, "")

    def test_bandwidth_forms(self):
        rates = {"1gbit": 125e6, "500mbit": 62.5e6, "12.5GB/s": 12.5e9, "100Gbit/s": 12.5e9, "10Gbps": 1.25e9,
                 "1Gb/s": 125e6, "8kbit": 1e3, "2MiB/s": 2 * 1048576, "100 Mbit/s": 12.5e6, "1Tbit": 125e9,
                 "1000B/s": 1000, "1000MBps": 1e9}
        for text, expected in rates.items():
            with self.subTest(text=text):
                facts = self.assert_replays(BUNDLED, "--no-validate", "--bandwidth", text)
                self.assertAlmostEqual(facts["daydream"]["bandwidth_bytes_per_s"], expected, delta=1)


class Streams(Case):
    def test_json_alone_goes_to_stdout_and_nothing_to_stderr(self):
        result = dpro("replay", BUNDLED, "--json")
        self.assert_code(result, DONE)
        self.assertEqual(result.err, "")
        self.assertEqual(result.json["schema"], "dpro.replay/1")

    def test_verbose_goes_to_stderr_only(self):
        quiet, verbose = dpro("replay", BUNDLED, "--json"), dpro("replay", BUNDLED, "--json", "-vv")
        self.assert_code(verbose, DONE)
        self.assertEqual(verbose.out, quiet.out)
        self.assertRegex(verbose.err, r"(?m)^dpro: (info|debug): ")

    def test_verbose_tells_the_stages(self):
        result = dpro("replay", BUNDLED, "--json", "-v")
        self.assert_code(result, DONE)
        for stage in ("read the traces", "built the graph", "replayed and validated", "reported"):
            self.assertRegex(result.err, rf"(?m)^dpro: info: {stage}: \d+\.\d+ s$")

    WRITES = (["replay", BUNDLED], ["replay", BUNDLED, "--json"], ["whatif", BUNDLED, "--bandwidth", "2x"],
              ["whatif", BUNDLED, "--bandwidth", "2x", "--json"], ["align", BUNDLED], ["align", BUNDLED, "--json"],
              ["optimize", BUNDLED, "--budget", "0.1"], ["optimize", BUNDLED, "--budget", "0.1", "--json"],
              ["diagnose", BUNDLED], ["diagnose", BUNDLED, "--json"],
              ["compare", BUNDLED, BUNDLED], ["compare", BUNDLED, BUNDLED, "--json"],
              ["--help"], ["--version"], ["help", "replay"], ["completion", "bash"])

    def test_a_full_disk_behind_stdout_is_an_error(self):
        for args in self.WRITES:
            with self.subTest(args=args), open("/dev/full", "wb") as full:
                self.assert_error(dpro(*args, stdout=full), SYSTEM, "No space left")

    def test_a_closed_stdout_is_said_to_be_closed(self):
        for args in self.WRITES:
            with self.subTest(args=args):
                done = subprocess.run(["sh", "-c", '"$0" "$@" >&-', DPRO, *args], stderr=subprocess.PIPE, timeout=120)
                self.assertEqual((done.returncode, done.stderr), (SYSTEM, b"dpro: standard output is closed\n"))

    def test_a_reader_that_leaves_early_is_no_error(self):
        done = subprocess.run(["bash", "-c", '"$0" replay "$1" --json | head -c 1', DPRO, BUNDLED],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=120)
        self.assertEqual((done.stdout, done.stderr), (b"{", b""))

    def test_fail_on(self):
        self.assert_code(dpro("replay", BUNDLED, "--fail-on", "100"), DONE)
        self.assert_code(dpro("replay", BUNDLED, "--fail-on", "100%"), DONE)
        result = dpro("replay", BUNDLED, "--fail-on", "0")
        if dpro("replay", BUNDLED, "--json").json["error_pct"] != 0:
            self.assert_code(result, CHECK_FAILED)
            self.assertRegex(result.err, r"\Adpro: .*--fail-on.*\n\Z")
        self.assertNotEqual(result.out, "")
