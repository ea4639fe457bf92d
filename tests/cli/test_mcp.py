"""python -m dpro.mcp, spoken to as its protocol has it."""
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

from support import BUILD, BUNDLED, ROOT, SANITIZED, Case, dpro

PYTHON = os.path.join(ROOT, ".venv-notebook", "bin", "python")
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.path.join(ROOT, "python")}


def has_mcp():
    find = [PYTHON, "-c", "import mcp.server.lowlevel"]
    return os.path.exists(PYTHON) and subprocess.run(find, stderr=subprocess.DEVNULL).returncode == 0


class Client:
    """Sends a request a line, and reads the answer's line."""

    def __init__(self, folder):
        self.process = subprocess.Popen([PYTHON, "-m", "dpro.mcp", folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=ENVIRONMENT,
                                        text=True)
        self.number = 0
        self.about = self.ask("initialize", protocolVersion="2025-06-18", capabilities={}, clientInfo={"name": "test", "version": "0"})
        self.send(method="notifications/initialized")

    def send(self, **message):
        self.process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        self.process.stdin.flush()

    def ask(self, method, **params):
        self.number += 1
        self.send(id=self.number, method=method, params=params)
        while True:
            answer = json.loads(self.process.stdout.readline())
            if answer.get("id") == self.number:
                return answer["result"]

    def call(self, tool, **arguments):
        return self.ask("tools/call", name=tool, arguments=arguments)

    def close(self):
        self.process.stdin.close()
        code = self.process.wait(30)
        self.process.stdout.close()
        return code


@unittest.skipIf(SANITIZED or os.path.realpath(BUILD) != os.path.realpath(os.path.join(ROOT, "build")),
                 "no library that this interpreter can load")
class Served(Case):
    @classmethod
    def setUpClass(cls):
        if not has_mcp():
            raise unittest.SkipTest("no package mcp: tools/venv.sh notebook installs it")
        cls.jobs = tempfile.mkdtemp(prefix="dpro-test-")
        cls.addClassCleanup(shutil.rmtree, cls.jobs)
        shutil.copytree(BUNDLED, os.path.join(cls.jobs, "gpt"))
        cls.client = Client(cls.jobs)

    @classmethod
    def tearDownClass(cls):
        code = cls.client.close()
        assert code == 0, code

    def setUp(self):
        super().setUp()
        self.folder = self.jobs  # this test's own would be outside

    def said(self, tool, **arguments):
        """Why a tool refused."""
        answer = self.client.call(tool, **arguments)
        self.assertTrue(answer["isError"], answer)
        return answer["content"][0]["text"]

    def test_its_tools_only_read_and_have_schemas(self):
        self.assertEqual(self.client.about["serverInfo"]["name"], "dpro")
        tools = {tool["name"]: tool for tool in self.client.ask("tools/list")["tools"]}
        self.assertEqual(set(tools), {"traces", "replay", "diagnose", "whatif", "optimize", "table"})
        for tool in tools.values():
            self.assertTrue(tool["annotations"]["readOnlyHint"])
            self.assertFalse(tool["inputSchema"]["additionalProperties"])
        options = {keyword for question in dpro("whatif", "--json", BUNDLED).json["questions"] for keyword in question["keywords"]}
        self.assertLessEqual(options, set(tools["whatif"]["inputSchema"]["properties"]))
        self.assertEqual(tools["diagnose"]["outputSchema"]["properties"]["schema"], {"const": "dpro.diagnose/1"})

    def test_it_answers_what_the_commands_print(self):
        trace = self.path("gpt")
        for tool, arguments, options in (("replay", {}, ()), ("diagnose", {"steps": [2, 4]}, ("--steps", "2:4")),
                                         ("whatif", {"bandwidth_ratio": 2}, ("--bandwidth", "2x")), ("diagnose", {"against": "gpt"}, None)):
            answer = self.client.call(tool, trace="gpt", **arguments)
            self.assertEqual(json.loads(answer["content"][0]["text"]), answer["structuredContent"])
            if options is not None:
                self.assertEqual(answer["structuredContent"], dpro(tool, "--json", trace, *options).json)
        self.assertEqual(answer["structuredContent"]["against"]["more_ms"], 0)
        optimum = self.client.call("optimize", trace=["gpt"], keys=["best"])["structuredContent"]
        self.assertEqual((set(optimum), optimum["schema"]), ({"schema", "best"}, "dpro.optimize/1"))
        ops = self.client.call("table", trace="gpt", table="ops", first=3, rows=2)["structuredContent"]
        self.assertEqual([row[0] for row in ops["rows"]], [3, 4])
        self.assertEqual(len(ops["columns"]), len(ops["rows"][0]))
        tables = self.client.call("table", trace="gpt")["structuredContent"]["tables"]
        self.assertEqual(tables["ops"]["rows"], ops["rows_in_all"])
        self.assertIn("gpt/", self.client.call("traces")["structuredContent"]["names"])
        self.assertEqual(sorted(os.listdir(trace)), sorted(os.listdir(BUNDLED)))

    def test_a_recording_that_changed_is_read_again(self):
        self.write_job("job", world=2)
        before = self.client.call("replay", trace="job", keys=["predicted"])["structuredContent"]
        self.write_job("job", world=2, forward_us=20_000)
        after = self.client.call("replay", trace="job", keys=["predicted"])["structuredContent"]
        self.assertGreater(after["predicted"]["iteration_ms"], before["predicted"]["iteration_ms"] + 20)

    def test_nothing_outside_the_folder_is_read(self):
        os.symlink(BUNDLED, self.path("link"))
        os.makedirs(self.path("linked"))
        os.symlink(os.path.join(BUNDLED, "kineto_rank0.json.gz"), self.path("linked", "kineto_rank0.json.gz"))
        for path in (BUNDLED, "../..", "link", "gpt/../../outside.json", "link/kineto_rank0.json.gz"):
            self.assertIn("is outside the folder that this server", self.said("replay", trace=path))
        self.assertIn("has a link to what is outside", self.said("replay", trace="linked"))
        for tool, name in (("whatif", "topology"), ("whatif", "buckets_path"), ("diagnose", "against"), ("diagnose", "probes")):
            self.assertIn("%s='../outside.json' is outside" % name, self.said(tool, trace="gpt", **{name: "../outside.json"}))
        self.assertIn("is outside", self.said("traces", folder=".."))
        names = self.client.call("traces")["structuredContent"]["names"]  # a link elsewhere does not keep the rest from being told
        self.assertEqual((set(names) >= {"gpt/", "linked/"}, "link/" in names), (True, False))

    def test_an_answer_that_is_too_large_says_what_else_to_ask(self):
        self.write_job("large", world=1, iterations=2, layers=5000)
        said = self.said("replay", trace="large")
        self.assertRegex(said, r"the answer has \d\.\d MB; ask for other keys of it, without the largest, which are critical_path ")
        self.assertIn("predicted", self.client.call("replay", trace="large", keys=["predicted"])["structuredContent"])

    def test_what_it_can_not_do_it_says(self):
        self.assertIn("can't be read: No such file", self.said("replay", trace="none"))
        self.assertIn("plan is not known; what is: trace, keys, memory", self.said("optimize", trace="gpt", plan="p"))
        self.assertIn("trace is missing", self.said("replay"))
        self.assertIn("tools are traces", self.said("profile", trace="gpt"))
        self.assertIn("bandwidth_ratio=0: a number above 0", self.said("whatif", trace="gpt", bandwidth_ratio=0))
        self.assertIn("no table is called opps", self.said("table", trace="gpt", table="opps"))
        self.assertIn("has no verdicts; it has schema", self.said("replay", trace="gpt", keys=["verdicts"]))


class NotServed(Case):
    def test_what_is_missing_is_named(self):
        for args, said in (([], "usage: python -m dpro.mcp FOLDER"), (["/"], "needs the package mcp, 2 or later: pip install 'dpro[mcp]'")):
            without = "import sys; sys.modules['mcp'] = None; import dpro.mcp; sys.exit(dpro.mcp.main(sys.argv[1:]))"
            ran = subprocess.run([sys.executable, "-c", without, *args], env=ENVIRONMENT, capture_output=True, text=True, timeout=60)
            self.assertEqual(ran.returncode, 2)
            self.assertIn(said, ran.stderr)
