"""dpro whatif --compile, --precision of a framework that names no modules (TensorFlow): its step was probed as a whole."""
import json
import os

from support import DONE, ROOT, USAGE, Case, dpro, read_json
from test_computing import probes

RECORDED = os.path.join(ROOT, "tests", "data", "tf-session-collectives-n2")


def way(ms, **more):
    """Of one pass, which has no backward pass behind it."""
    return {"forward_ns": [1000000 * ms + i for i in range(5)], "backward_ns": 5 * [0], "kept_bytes": 0, **more}


class StepComputing(Case):
    def probed(self, **ways):
        """The options that give probes of the step."""
        step = {"class": "", "modules": [[""]], "ways": {"eager": way(100), **ways}}
        return ["--probes", self.write("%s.json" % "-".join(ways), json.dumps(probes(step)))]

    def test_all_that_a_step_computes_takes_as_much_longer_or_shorter_and_has_no_gradient_before_its_end(self):
        took = []
        for compiled in (50, 100, 120):
            known = self.probed(compile=way(compiled, graphs=2, breaks=0))
            facts = self.assert_json("whatif", RECORDED, "--compile", "all", *known)
            self.assertEqual(facts["computation"], {"compiled": [""], "bf16": [], "source": "probes"})
            self.assertGreater(facts["uncertainty"]["computing"]["predicted_pct"], 0.1)
            took.append(facts["predicted"]["iteration_ms"])
        work = (took[2] - took[0]) / 0.7
        self.assertAlmostEqual(took[1] - took[0], 0.5 * work, delta=0.05 * work)
        self.assertGreater(took[1], facts["baseline"]["iteration_ms"])  # of which nothing hides communication any more

    def test_16_bits_are_as_measured(self):
        facts = self.assert_json("whatif", RECORDED, "--precision", "bf16", *self.probed(bf16=way(70)))
        self.assertEqual(facts["computation"], {"compiled": [], "bf16": [""], "source": "probes"})
        self.assertLess(facts["predicted"]["iteration_ms"], facts["baseline"]["iteration_ms"])

    def test_what_is_not_known_is_refused(self):
        failed = self.probed(compile={"problem": "UnimplementedError: no such kernel"})
        late = self.probed(bf16={"left_out": "the time was over"})
        for args, says in ((["--compile", "all", *failed], "no such kernel"),
                           (["--compile", "dense.*", *failed], "names no modules"),
                           (["--precision", "bf16", *failed], "was not measured"),
                           (["--precision", "bf16", *late], "--probe compile,bf16 --probe-limit SECONDS'"),
                           (["--compile", "all"], "record with 'dpro profile --probe compile,bf16'")):
            with self.subTest(args):
                self.assert_error(dpro("whatif", RECORDED, *args), USAGE, says)

    def test_xla_s_default_has_gradients_wait_for_the_whole_step_and_what_is_by_layer_does_not(self):
        entries = [{"class": kind, "modules": [[name]], "ways": {"eager": way(100), "compile": way(ms)}}
                   for kind, name, ms in (("", "", 100), ("", "default", 80), ("layer", "layers", 70))]
        known = ["--probes", self.write("fused.json", json.dumps(probes(*entries)))]
        facts = self.assert_json("optimize", RECORDED, "--allow", "compile", "-o", self.path("plan"), *known)
        rows = {row["name"]: row["iteration_ms"] for row in facts["baselines"]}
        self.assertGreater(rows["xla"], rows["communication"])  # though it computes for less long
        self.assertLess(facts["best"]["iteration_ms"], 0.95 * rows["communication"])
        computation = read_json(self.path("plan", "plan.json"))["computation"]
        self.assertEqual(computation, {"compile": ["layers"], "bf16": [], "changes_numerics": True})
        default = self.assert_json("whatif", RECORDED, "--compile", "default", *known)["predicted"]["iteration_ms"]
        layers = self.assert_json("whatif", RECORDED, "--compile", "layers", *known)["predicted"]["iteration_ms"]
        self.assertLess(layers, default)

    def test_no_plan_compiles_it(self):
        run = dpro("optimize", "-q", RECORDED, "--allow", "compile", *self.probed(compile=way(50, graphs=2, breaks=0)))
        self.assertEqual(run.code, DONE)
        self.assertIn("no plan compiles a step of this framework", " ".join(run.out.split()))
