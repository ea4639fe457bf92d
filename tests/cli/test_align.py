"""dpro align: the hosts' clocks from what the ranks did to each other."""
import glob
import json
import os
import shutil

from support import BUNDLED, CAPTURED, DONE, INPUT, SHARED, SYSTEM, USAGE, Case, dpro, read_json, read_text, write_json, write_text



def aligned(clock, local_ns):
    """By the formula of doc/formats/align-json.md."""
    for segment in clock["segments"]:
        if local_ns < segment["end_ns"] or segment is clock["segments"][-1]:
            return local_ns + segment["offset_ns"] + segment["drift_ppm"] * 1e-6 * (local_ns - segment["start_ns"])
    raise AssertionError("no segment")


def net_csv(own, peers, shift_ns):
    """A process's transport log: every 10 ms each pair sends each other 100 bytes, 30 us or more under way. Its clock
    shows shift_ns more."""
    lines = ["t_start_ns,t_end_ns,local,remote,dir,offset,returned"]
    for i in range(300):
        sent = 1_700_000_000_000_000_000 + i * 10_000_000 + shift_ns
        for peer in peers:
            ends = f"10.0.0.{own}:{1000 + peer},10.0.0.{peer}:{1000 + own}"
            lines.append(f"{sent},{sent + 1000},{ends},tx,{100 * i},100")
            lines.append(f"{sent},{sent + 30_000 + i % 17 * 5000},{ends},rx,{100 * i},100")
    return "\n".join(lines) + "\n"


class Align(Case):
    def align(self, *args):
        result = dpro("align", *args, "--json")
        self.assert_code(result, DONE)
        return json.loads(result.out)

    def assert_shown(self, clock, shift_ns):
        """The clock shows shift_ns more than the reference."""
        for segment in clock["segments"]:
            for local_ns in (segment["start_ns"], segment["end_ns"]):
                self.assertLessEqual(abs(aligned(clock, local_ns) - local_ns + shift_ns), segment["uncertainty_ns"], clock)
                self.assertLess(segment["uncertainty_ns"], 200_000)

    def test_the_bundled_jobs_clocks_are_found(self):
        facts = self.align(BUNDLED)
        self.assertEqual(facts["schema"], "dpro.align/1")
        self.assertEqual([h["ranks"] for h in facts["hosts"]], [[0], [1]])
        reference, other = facts["hosts"]
        self.assertEqual((reference["host"], reference["method"]), (facts["reference"], "reference"))
        for segment in reference["segments"]:
            self.assertEqual((segment["offset_ns"], segment["drift_ppm"], segment["uncertainty_ns"]), (0, 0, 0))
        self.assertIn("transport", other["method"])
        self.assertGreater(facts["pairs"], 10_000)
        self.assertGreater(facts["violations_before"], 1000)
        self.assertEqual(facts["violations_after"], 0)
        # the README beside the trace says what was done to the clocks
        first, last = other["segments"][0]["start_ns"], other["segments"][-1]["end_ns"]
        self.assertAlmostEqual(abs(aligned(other, first) - first), 250e6, delta=2e6)
        drift = 1e6 * ((aligned(other, last) - last) - (aligned(other, first) - first)) / (last - first)
        self.assertAlmostEqual(abs(drift), 40, delta=8)
        self.assertLess(max(s["uncertainty_ns"] for s in other["segments"]), 200_000)

    def test_the_table_says_the_same(self):
        result = dpro("align", BUNDLED)
        self.assert_code(result, DONE)
        self.assertIn("reference", result.out)
        self.assertIn("transport", result.out)
        self.assertIn("0 as aligned", result.out)

    def test_the_truth_lies_within_the_uncertainty(self):
        captures = sorted(glob.glob(os.path.join(SHARED, "torch-ddp-gloo-*", "metadata.json")))
        if not captures:
            self.skipTest("no %s" % SHARED)
        for path in captures:
            metadata = read_json(path)
            facts = self.align(os.path.dirname(path))
            with self.subTest(os.path.basename(os.path.dirname(path))):
                self.assertEqual(facts["violations_after"], 0)
                for clock in facts["hosts"]:
                    self.assertEqual(len(clock["ranks"]), 1)
                    self.check(clock, metadata)

    def check(self, clock, metadata):
        """A rank's clock was made to show true + offset + ppm * (true - ref); rank 0's is true."""
        truth = metadata["clock_truth"]
        anchor = metadata["ranks"][0]["tracer_clock_anchors"][0]
        injected = next(r for r in truth["per_rank"] if r["rank"] == clock["ranks"][0])
        ref_ns = truth["ref_mono_ns"] + anchor["realtime_ns"] - anchor["monotonic_ns"]
        for segment in clock["segments"]:
            for local_ns in (segment["start_ns"], segment["end_ns"]):
                since = local_ns - ref_ns - injected["offset_ns"]
                wanted = -injected["offset_ns"] - since * injected["ppm"] * 1e-6 / (1 + injected["ppm"] * 1e-6)
                found = segment["offset_ns"] + segment["drift_ppm"] * 1e-6 * (local_ns - segment["start_ns"])
                self.assertLessEqual(abs(found - wanted), segment["uncertainty_ns"] + 1000, clock)

    def test_logs_alone_are_enough(self):
        whole, logs = self.align(BUNDLED), self.align(os.path.join(BUNDLED, "net_rank*.csv.gz"))
        self.assertEqual(logs["hosts"][1]["method"], "transport")
        self.assertEqual(logs["violations_after"], 0)
        a, b = (aligned(facts["hosts"][1], whole["hosts"][1]["segments"][0]["start_ns"]) for facts in (whole, logs))
        self.assertAlmostEqual(a, b, delta=30_000)

    def test_a_log_that_was_cut_is_said_to_be_so(self):
        for name in os.listdir(BUNDLED):
            if "rank" in name:
                os.makedirs(self.path("cut"), exist_ok=True)
                shutil.copyfile(os.path.join(BUNDLED, name), self.path("cut", name))
        os.truncate(self.path("cut", "net_rank1.csv.gz"), 60_000)
        result = dpro("align", self.path("cut"))
        self.assert_code(result, DONE)
        self.assertIn("net_rank1.csv.gz", result.out[result.out.index("Warnings"):])

    def test_one_ranks_log_has_nothing_to_be_compared_with(self):
        alone = "rank 1's times alone: there is nothing to compare its clock with"
        result = dpro("align", os.path.join(BUNDLED, "net_rank1.csv.gz"))
        self.assert_code(result, DONE)
        self.assertIn(alone, " ".join(result.out.split()))
        both = [os.path.join(BUNDLED, f"net_rank{r}.csv.gz") for r in range(2)]
        self.assertNotIn("nothing to compare", " ".join(dpro("align", *both).out.split()))
        facts = self.align(os.path.join(BUNDLED, "kineto_rank1.json.gz"))
        self.assertTrue(any(alone in warning for warning in facts["warnings"]), facts["warnings"])
        replayed = self.assert_replays(os.path.join(BUNDLED, "kineto_rank1.json.gz"))
        self.assertFalse(any(alone in warning for warning in replayed["warnings"]))

    def test_clocks_as_recorded_are_said_to_be_so(self):
        replayed = self.assert_replays(BUNDLED, "--no-align")
        self.assertEqual(replayed["clock"]["method"], "none")
        self.assertEqual(replayed["clock"]["violations_after"], replayed["clock"]["violations_before"])

    def test_one_kernel_has_one_clock_whatever_collectives_say(self):
        """The profile of rank 1 is 200 ms late: without the boot id, that is another clock."""
        trace = self.path("trace")
        shutil.copytree(os.path.join(os.path.dirname(BUNDLED), "torch-ddp-gloo-gpt-n2-default"), trace)
        for log in glob.glob(os.path.join(trace, "*", "*", "net.log*")):
            os.remove(log)
        path, = glob.glob(os.path.join(trace, "*", "rank1", "kineto.json.gz"))
        profile = read_json(path)
        for event in profile["traceEvents"]:
            event["ts"] = event.get("ts", 0) + 200_000
        write_json(path, profile)
        self.assertEqual([host["ranks"] for host in self.align(trace)["hosts"]], [[0, 1]])
        for path in glob.glob(os.path.join(trace, "*", "*", "rank.json")):
            write_text(path, read_text(path).replace('"boot_id"', '"not_said"').replace('"net_ns"', '"not_said_2"'))
        facts = self.align(trace)
        self.assertEqual([host["ranks"] for host in facts["hosts"]], [[0], [1]])
        self.assertIn("contradict each other's times", " ".join(facts["warnings"]))

    def test_ranks_that_never_meet_are_not_guessed(self):
        facts = self.align(self.write_job("TRACE", world=2, communicates=False))
        self.assertEqual([(h["method"], len(h["segments"])) for h in facts["hosts"]][1:], [("none", 0)])
        self.assertTrue(facts["warnings"])
        self.assertIn("unknown", dpro("align", self.path("TRACE")).out)

    def write_server_job(self):
        """Two workers that only talk to a server."""
        self.write("TRACE/net_worker0.csv", net_csv(1, [9], 0))
        self.write("TRACE/net_worker1.csv.gz", net_csv(2, [9], 8_000_000))
        self.write("TRACE/net_server3.csv", net_csv(9, [1, 2], -30_000_000))

    def test_workers_are_tied_through_their_server(self):
        self.write_server_job()
        facts = self.align(self.path("TRACE"))
        self.assertEqual([(h["host"], h["ranks"], h["method"]) for h in facts["hosts"]],
                         [("rank 0", [0], "reference"), ("rank 1", [1], "transport"), ("server 3", [], "transport")])
        self.assert_shown(facts["hosts"][1], 8_000_000)
        self.assert_shown(facts["hosts"][2], -30_000_000)
        self.assertEqual((facts["pairs"], facts["violations_after"], facts["warnings"]), (4 * 300, 0, []))
        self.assertRegex(dpro("align", self.path("TRACE")).out, r"\n  server 3 +transport +30\.\d")

    def test_without_their_servers_log_workers_are_not_tied(self):
        self.write_server_job()
        os.remove(self.path("TRACE", "net_server3.csv"))
        facts = self.align(self.path("TRACE"))
        self.assertEqual([h["method"] for h in facts["hosts"]], ["reference", "none"])
        self.assertIn("record the transport of every rank and server", " ".join(facts["warnings"]))

    def test_a_server_is_known_by_its_folder_too(self):
        self.write_server_job()
        os.makedirs(self.path("TRACE", "server3"))
        os.rename(self.path("TRACE", "net_server3.csv"), self.path("TRACE", "server3", "net.csv"))
        self.assertEqual([h["host"] for h in self.align(self.path("TRACE"))["hosts"]], ["rank 0", "rank 1", "server 3"])

    def test_of_two_processes_of_one_name_one_is_used(self):
        self.write_server_job()
        self.write("TRACE/other/net_server3.csv", net_csv(8, [1, 2], 0))
        facts = self.align(self.path("TRACE"))
        self.assertEqual([h["host"] for h in facts["hosts"]], ["rank 0", "rank 1", "server 3"])
        self.assert_shown(facts["hosts"][1], 8_000_000)
        warning, = facts["warnings"]
        self.assertRegex(warning, r"other/net_server3\.csv: a second process's log of server 3, skipped; .*/net_server3\.csv is used")

    def test_a_log_of_no_known_role_is_skipped(self):
        self.write_server_job()
        os.rename(self.path("TRACE", "net_server3.csv"), self.path("TRACE", "net_store.csv"))
        facts = self.align(self.path("TRACE"))
        self.assertEqual([h["method"] for h in facts["hosts"]], ["reference", "none"])
        self.assertRegex(facts["warnings"][0], r"net_store\.csv: transport log of no known rank, skipped; .* net_server0$")

    def test_a_servers_log_alone_has_nothing_to_be_compared_with(self):
        self.write_server_job()
        facts = self.align(self.path("TRACE", "net_server3.csv"))
        self.assertEqual((facts["reference"], facts["hosts"][0]["ranks"]), ("server 3", []))
        self.assertIn("these are server 3's times alone", facts["warnings"][0])

    def test_an_exported_servers_log_says_the_same(self):
        self.write_server_job()
        self.assert_code(dpro("export", "--net-csv", "-q", "-o", self.path("csv"), self.path("TRACE")), DONE)
        self.assertEqual(sorted(os.listdir(self.path("csv"))), ["net_rank0.csv.gz", "net_rank1.csv.gz", "net_server3.csv.gz"])
        self.assertEqual(self.align(self.path("csv"))["hosts"], self.align(self.path("TRACE"))["hosts"])

    def test_a_server_is_no_rank_of_a_replay(self):
        before = self.assert_replays(self.write_job("TRACE", world=2, start_us=1.7e15))
        self.write_server_job()
        after = self.assert_replays(self.path("TRACE"))
        for key in ("world_size", "ranks_present"):
            self.assertEqual(after["trace"][key], before["trace"][key])
        self.assertEqual([r["rank"] for r in after["ranks"]], [r["rank"] for r in before["ranks"]])
        self.assertEqual(after["clock"]["hosts"][-1]["ranks"], [])
        rank_of = {os.path.basename(f["path"]): f["rank"] for f in after["trace"]["files"]}
        self.assertEqual((rank_of["net_worker1.csv.gz"], rank_of["net_server3.csv"]), (1, -1))

    def test_captured_workers_are_tied_through_their_servers(self):
        for name, servers in (("mxnet-ps-module", ["server 0"]), ("mxnet-ps-gluon", ["server 0", "server 1"]), ("tf-ps-v1", ["ps 0"])):
            folder = os.path.join(CAPTURED, name)
            truth = read_json(os.path.join(folder, "metadata.json")).get("clock_truth")
            with self.subTest(name):
                facts = self.align(folder)
                self.assertEqual([h["host"] for h in facts["hosts"]], ["rank 0", "rank 1", *servers])
                self.assertEqual([h["method"] for h in facts["hosts"][1:]], ["transport"] * (1 + len(servers)))
                self.assertEqual(facts["violations_after"], 0)
                for clock in facts["hosts"]:
                    if not truth or not clock["ranks"]:
                        self.assert_shown(clock, 0) if not truth else None
                        continue
                    moments = {r["rank"]: r["error_at_first_and_last_profiled_step"] for r in truth["per_rank"]}
                    uncertainty = max(s["uncertainty_ns"] for s in clock["segments"])
                    for own, reference in zip(moments[clock["ranks"][0]], moments[0]):
                        found = aligned(clock, own["trace_time_ns"]) - own["trace_time_ns"]
                        self.assertLessEqual(abs(found + own["error_ns"] - reference["error_ns"]), uncertainty)

    def test_perfettos_manifest_puts_every_profile_on_the_axis(self):
        path = self.path("perfetto_manifest.json")
        self.assert_code(dpro("align", "-q", BUNDLED, "--perfetto-manifest", path), DONE)
        manifest = read_json(path)["perfetto_manifest"]
        self.assertEqual((manifest["version"], manifest["trace_time"]), (1, {"clock": "REALTIME"}))
        clocks = self.align(BUNDLED)["hosts"]
        names = sorted(os.path.basename(p) for p in glob.glob(os.path.join(BUNDLED, "kineto_*.json.gz")))
        self.assertEqual(sorted(f["path"] for f in manifest["files"]), names)
        for entry in manifest["files"]:
            trace = read_json(os.path.join(BUNDLED, entry["path"]))
            clock = clocks[int(entry["path"].split("rank")[1][0])]
            self.assertEqual(entry["machine"], {"name": clock["host"]})
            base = trace.get("baseTimeNanoseconds", 0)
            times = [e["ts"] for e in trace["traceEvents"] if e.get("ph") == "X"]
            self.assertTrue(min(times) * 1000 <= entry["clocks"]["ts"] <= max(times) * 1000 + 1e9)
            self.assertEqual(entry["clocks"]["is"]["clock"], "REALTIME")
            self.assertAlmostEqual(entry["clocks"]["is"]["ts"], aligned(clock, base + entry["clocks"]["ts"]), delta=1000)

    def test_what_can_not_be_done_is_said_in_a_line(self):
        self.assert_error(dpro("align"), USAGE)
        self.assert_error(dpro("align", self.path("nowhere")), INPUT)
        result = dpro("align", BUNDLED, "--perfetto-manifest", self.path("no", "such", "file"))
        self.assert_error(result, SYSTEM)
        self.assertIn("name another place", result.err)
