"""Trace directories as dpro profile leaves them: what is taken, what is passed over, and what is said of it."""
import csv
import glob
import gzip
import os
import shutil
import struct

from support import BUNDLED, DONE, INPUT, LAYERS, SYSTEM, USAGE, Case, dpro, job, read_json, read_text, recording, span, write_json

def seconds(*durations, start=1_700_000_000_000_000_000):
    steps = []
    for number, duration in enumerate(durations):
        end = start + int(duration * 1e9)
        steps.append({"step": number, "start_ns": start, "end_ns": end})
        start = end
    return steps


def log(rank, calls, kind=1):
    """A transport log of one connection over 10.0.0.1."""
    local, remote = (4000, 5000) if rank == 0 else (5000, 4000)
    out = b"dprolog\0" + struct.pack("<4IiIQQ", 1, 152, kind, 100 + rank, rank, 0, 9, 9) + b"b".ljust(40, b"\0") + bytes(64)
    out += struct.pack("<BBHI", 16, 1, 128, 0) + struct.pack("<qIiIBBBBHHIQ", 5, 1, 3, 0, 4, 1, 1, 1, local, remote, 0, 7)
    out += bytes([10, 0, 0, 1]).ljust(40, b"\0") * 2
    for direction, offset, size, start in calls:
        out += struct.pack("<BBHI", 17, 1, 48, 5) + struct.pack("<IBBHqqQII", 1, direction, 13 if direction == 0 else 3,
                                                                  0, start, start + 5, offset, size, size)
    return out


class Directory(Case):
    def put(self, place="TRACE", world=2, traces=None, packed=True, **options):
        """One attempt of a job: what every rank leaves."""
        for rank, trace in enumerate(traces or job(world=world)):
            self.write(f"{place}/host0/rank{rank}/kineto.json" + (".gz" if packed else ""), trace)
            self.write(f"{place}/host0/rank{rank}/rank.json", recording(rank, world, **options))
        self.write(f"{place}/job.json", {"schema": "dpro.job/1", "world_size": world})
        return self.path("TRACE")

    def test_a_recording_without_a_profile_says_so(self):
        self.write("TRACE/host0/rank0/rank.json", recording(0))
        self.assert_error(dpro("replay", self.path("TRACE")), INPUT, "rank.json: no profile was recorded.*let it run longer")

    def test_a_trace_directory_replays_without_a_word(self):
        facts = self.assert_replays(self.put())
        self.assertEqual(facts["warnings"], [])
        self.assertEqual(facts["trace"]["ranks_present"], [0, 1])
        kinds = [file["kind"] for file in facts["trace"]["files"]]
        self.assertEqual(sorted(kinds), ["kineto", "kineto", "recording", "recording", "recording"])
        self.assertIsNone(facts["transport"])
        self.assertEqual(facts["unprofiled"]["steps"], 0)
        self.assertIsNone(facts["unprofiled"]["iteration_ms"])

    @staticmethod
    def four_ops(period_us=1000, steps=4):
        """Each iteration one op with two inside of it, and one beside it."""
        events = []
        for step in range(steps):
            begin = 1_000_000.0 + step * period_us
            events.append(span(f"ProfilerStep#{step}", begin, period_us, cat="user_annotation"))
            for name, start, dur in (("aten::linear", 10, 90), ("aten::t", 20, 20), ("aten::addmm", 50, 20), ("aten::relu", 120, 80)):
                events.append(span(name, begin + start, dur))
        return {"schemaVersion": 1, "traceEvents": events}

    def test_what_recording_an_op_cost_is_taken_out(self):
        path = self.put(world=1, traces=[self.four_ops()], profiler={"op_ns": 4000, "n_ops": 600})
        facts = self.assert_replays(path)
        self.assertEqual(facts["measured"]["iteration_ms"], 1)
        self.assertEqual(facts["predicted"]["iteration_ms"], 0.984)  # four ops
        self.assertEqual(facts["profiler"], {"op_ns": 4000, "iteration_ms": 0.016, "scaled": False})
        self.assertEqual(facts["error_pct"], 0)  # what was measured has the profiler in it
        kept = self.assert_replays(path, "--keep-profiler")
        self.assertEqual(kept["predicted"]["iteration_ms"], 1)
        self.assertEqual(kept["profiler"], {"op_ns": None, "iteration_ms": None, "scaled": False})
        slower = self.assert_replays(path, "--delay", "aten::relu=+1")
        self.assertEqual(slower["predicted"]["iteration_ms"], 1.984)
        text = dpro("replay", path).out
        self.assertIn("without the profiler, which took 0.016 ms", text)
        self.assertEqual(dpro("replay", path, "--fail-on", "0.1").code, DONE)

    def test_what_recording_calls_of_a_gpu_cost_is_taken_out(self):
        events = []
        for step in range(4):
            begin = 1_000_000.0 + step * 1000
            events.append(span(f"ProfilerStep#{step}", begin, 1000, cat="user_annotation"))
            for n in range(3):
                launch = span("cudaLaunchKernel", begin + 100 + 300 * n, 20, cat="cuda_runtime")
                kernel = span("gemm", begin + 125 + 300 * n, 10, cat="kernel", pid=0, tid=7)
                launch["args"] = {"correlation": 10 * step + n}
                kernel["args"] = {"correlation": 10 * step + n, "device": 0, "stream": 7}
                events += [launch, kernel]
            events.append(span("cudaStreamIsCapturing", begin + 900, 10, cat="cuda_runtime"))
        trace = {"schemaVersion": 1, "traceEvents": events}
        facts = self.assert_replays(self.put(world=1, traces=[trace], profiler={"op_ns": 1000, "launch_ns": 6000, "call_ns": 500}))
        self.assertAlmostEqual(facts["profiler"]["iteration_ms"], (3 * 6 + 0.5) / 1000, places=6)

    def test_the_profiler_takes_no_more_than_there_was(self):
        facts = self.assert_replays(self.put(world=1, traces=[self.four_ops()], profiler={"op_ns": 900_000}))
        # what is left: the ops that hold no others, and the iteration's end
        self.assertEqual(facts["predicted"]["iteration_ms"], 0.020 + 0.020 + 0.080 + 0.800)

    def test_a_cost_that_makes_no_sense_is_none(self):
        for op_ns in (0, -5, 10**18, "many", None, [1]):
            facts = self.assert_replays(self.put(world=1, traces=[self.four_ops()], profiler={"op_ns": op_ns}))
            self.assertEqual(facts["predicted"]["iteration_ms"], 1, op_ns)
            self.assertIsNone(facts["profiler"]["op_ns"])
        self.assertIsNone(self.assert_replays(self.put())["profiler"]["op_ns"])

    def test_steps_without_the_profiler_are_shown_and_predict_nothing(self):
        plain = self.assert_replays(self.put())
        steps = {"before": seconds(0.1, 0.1), "after": seconds(0.1, 0.2), "timing": seconds(0.3)}
        facts = self.assert_replays(self.put(steps=steps))
        unprofiled = facts["unprofiled"]
        self.assertEqual(facts["predicted"], plain["predicted"])
        self.assertEqual(unprofiled["steps"], 8)
        self.assertAlmostEqual(unprofiled["iteration_ms"], 125)
        self.assertAlmostEqual(unprofiled["median_ms"], 100)
        self.assertAlmostEqual(unprofiled["profiler_overhead_pct"],
                               100 * facts["measured"]["iteration_ms"] / 125 - 100, places=2)
        self.assertAlmostEqual(unprofiled["error_pct"], 100 * facts["predicted"]["iteration_ms"] / 125 - 100, places=2)
        self.assertIn("without the profiler: 125.0 ms", dpro("replay", self.path("TRACE")).out)

    def test_steps_without_the_profiler_that_drift_are_told_of(self):
        for before, after, n in ((seconds(0.1, 0.11, 0.12), seconds(0.14, 0.16, 0.19), 1),
                                 (seconds(0.1, 0.101, 0.102), seconds(0.103, 0.104, 0.105), 0), ([], seconds(0.1, 0.2), 0)):
            warnings = self.assert_replays(self.put(steps={"before": before, "timing": seconds(0.3), "after": after}))["warnings"]
            told = [w for w in warnings if "through the recording" in w]
            self.assertEqual(len(told), n, told)
            if told:
                self.assertIn("steps without the profiler get longer through the recording: 105.0 ms in the first third, "
                              "175.0 ms in the last (+67 % over 6 steps", told[0])

    def test_buckets_are_called_by_their_parameters(self):
        result = dpro("replay", self.put(), "-o", self.path("out"), "-q")
        self.assert_code(result, DONE)
        text = read_text(self.path("out", "report.html"))
        missing = [f"bucket {i}: layers.{LAYERS - 1 - i}.weight" for i in range(LAYERS)
                   if f'"bucket {i}: layers.{LAYERS - 1 - i}.weight"' not in text]
        self.assertEqual(missing, [])

    def test_steps_come_from_the_recording_where_the_profile_has_no_marks(self):
        traces = job(steps=False)
        begin = min(e["ts"] for e in traces[0]["traceEvents"])
        marks = sorted(e["ts"] + e["dur"] for e in traces[0]["traceEvents"] if e["name"].startswith("Optimizer.step"))
        base = traces[0]["baseTimeNanoseconds"]
        timing = [{"step": 21 + i, "start_ns": base + int(a * 1000), "end_ns": base + int(b * 1000)}
                  for i, (a, b) in enumerate(zip([begin] + marks, marks))]
        facts = self.assert_replays(self.put(traces=traces, steps={"timing": timing}))
        self.assertEqual(facts["warnings"], [])
        self.assertEqual(facts["trace"]["iterations"], 4)

    def test_a_recording_that_goes_on_is_said_once(self):
        facts = self.assert_replays(self.put(complete=False))
        self.assertEqual(len(facts["warnings"]), 1)
        self.assertIn("2 of 2 ranks had not ended their recording", facts["warnings"][0])

    def test_what_a_killed_job_was_compressing_is_passed_over(self):
        folder = self.put(packed=False)
        with open(self.path("TRACE", "host0", "rank0", "kineto.json"), "rb") as whole:
            packed = gzip.compress(whole.read())
        for written in (len(packed), len(packed) // 2, 10):
            self.write("TRACE/host0/rank0/kineto.json.gz.part", packed[:written])
            facts = self.assert_replays(folder)
            self.assertEqual(facts["warnings"], [])
            self.assertEqual(facts["trace"]["iterations"], 4)

    def test_a_half_written_copy_gives_way_to_the_whole_profile(self):
        folder = self.put(packed=False)
        for rank in range(2):
            with open(self.path("TRACE", "host0", f"rank{rank}", "kineto.json"), "rb") as whole:
                packed = gzip.compress(whole.read())
            self.write(f"TRACE/host0/rank{rank}/kineto.json.gz", packed[:len(packed) // 2])
        facts = self.assert_replays(folder)
        self.assertEqual(facts["warnings"], [])
        self.assertEqual(facts["trace"]["iterations"], 4)

    def test_a_profile_and_its_whole_copy_are_one(self):
        folder = self.put(packed=False)
        self.put(packed=True)
        facts = self.assert_replays(folder)
        self.assertEqual(facts["warnings"], [])
        self.assertTrue(all(f["path"].endswith(".gz") for f in facts["trace"]["files"] if f["kind"] == "kineto"))

    def test_the_newest_attempt_with_all_ranks_is_taken(self):
        self.put()
        self.put("TRACE/attempt1", traces=job(forward_us=20_000, start_us=2e9), attempt=1)
        self.put("TRACE/attempt2", traces=job(start_us=3e9)[:1], attempt=2)
        facts = self.assert_replays(self.path("TRACE"))
        self.assertEqual(len(facts["warnings"]), 1)
        self.assertIn("started 3 times: attempt 1, the newest with all ranks", facts["warnings"][0])
        self.assertTrue(all("attempt1" in file["path"] for file in facts["trace"]["files"]))
        self.assertEqual(self.assert_replays(self.path("TRACE", "attempt1"))["warnings"], [])

    def test_without_a_whole_attempt_the_one_with_most_ranks_is_taken(self):
        self.put(world=4, traces=job(world=4)[:3])
        self.put("TRACE/attempt1", world=4, traces=job(world=4, start_us=2e9)[:2], attempt=1)
        facts = self.assert_replays(self.path("TRACE"))
        self.assertIn("attempt 0, the newest with most ranks", facts["warnings"][0])
        self.assertEqual(facts["trace"]["ranks_present"], [0, 1, 2])

    def test_a_recording_cut_anywhere_is_survived(self):
        folder = self.put()
        place = self.path("TRACE", "host0", "rank0", "rank.json")
        with open(place, "rb") as file:
            whole = file.read()
        for cut in range(0, len(whole), 97):
            with open(place, "wb") as file:
                file.write(whole[:cut])
            self.assert_code(dpro("replay", folder, "--json", "--no-validate"), DONE)

    def test_buckets_that_are_not_the_profiles_are_said(self):
        folder = self.put()
        broken = recording(0)
        broken["models"][0]["buckets"][0]["parameters"] = [7, -1, "x", 10 ** 30]
        self.write("TRACE/host0/rank0/rank.json", broken)
        facts = self.assert_replays(folder)
        self.assertTrue(any("rank.json: 1 entries make no sense" in w for w in facts["warnings"]))

    REAL = os.path.join(os.path.dirname(BUNDLED), "torch-ddp-gloo-gpt-n2-default")

    def changed(self, name, keep):
        """A copy of the real recording with those events of its profiles; keep(event) may change them, too."""
        trace = self.path(name)
        shutil.copytree(self.REAL, trace)
        for path in glob.glob(os.path.join(trace, "*", "*", "kineto.json.gz")):
            profile = read_json(path)
            profile["traceEvents"] = [event for event in profile["traceEvents"] if keep(event)]
            write_json(path, profile)
        return trace

    def test_all_reduces_that_no_profile_shows_are_said(self):
        """Those of the first bucket, which is small, are left, and all of the structure window."""
        trace = self.changed("unseen", lambda event: event.get("name") != "gloo:all_reduce"
                             or event["args"]["Input Dims"][0][0] < 1_000_000)
        result = dpro("align", trace)
        self.assert_code(result, DONE)
        self.assertRegex(" ".join(result.out.split()), "71 % of the bytes that all-reduces sent are of calls that no profile shows")

    def test_buckets_that_were_recorded_without_shapes_have_their_sizes(self):
        def strip(event):
            for key in ("Input Dims", "Input type", "Input Strides"):
                event.get("args", {}).pop(key, None)
            return True

        whole = self.assert_replays(self.REAL)
        for logs in (True, False):
            trace = self.changed("stripped%d" % logs, strip)
            for path in glob.glob(os.path.join(trace, "*", "*", "net.log*")) if not logs else ():
                os.remove(path)
            facts = self.assert_replays(trace)
            self.assertEqual([(c["kind"], c["bytes"]) for c in facts["collectives"]],
                             [(c["kind"], c["bytes"]) for c in whole["collectives"]])
            self.assertEqual(facts["warnings"], whole["warnings"])

    def test_transport_is_in_the_report(self):
        folder = self.put()
        self.write("TRACE/host0/rank0/net.log", log(0, [(0, 0, 1000, 10), (1, 0, 50, 20)]))
        self.write("TRACE/host0/rank1/net.log", log(1, [(1, 0, 400, 12), (1, 500, 500, 14), (0, 0, 50, 19)]))
        facts = self.assert_replays(folder)
        transport = facts["transport"]
        self.assertEqual(transport["connections"], 1)
        self.assertEqual(transport["sent_bytes"], 1050)
        self.assertEqual(transport["paired_bytes"], 950)
        self.assertEqual(transport["unpaired_bytes"], 100)
        self.assertEqual((transport["collectives"], transport["collectives_tied"]), (2 * 4 * LAYERS, 0))
        self.assertIn("transport: 5 socket calls, 1 connection,", dpro("replay", folder).out)


class Export(Case):
    def logs(self):
        self.write("TRACE/host0/rank0/net.log", log(0, [(0, 0, 1000, 10)]))
        self.write("TRACE/host0/rank1/net.log", log(1, [(1, 0, 1000, 12)]))
        return self.path("TRACE")

    def test_logs_become_csv_with_the_documented_columns(self):
        result = dpro("export", "--net-csv", "-o", self.path("csv", "here"), self.logs())
        self.assert_code(result, DONE)
        self.assertEqual(result.out, "")
        self.assertIn("wrote the transport logs of 2 processes", result.err)
        with gzip.open(self.path("csv", "here", "net_rank1.csv.gz"), "rt", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        self.assertEqual(rows, [{
            "t_start_ns": "12", "t_end_ns": "17", "rank": "1", "tid": "5", "conn": "1", "local": "10.0.0.1:5000",
            "remote": "10.0.0.1:4000", "dir": "rx", "call": "recv", "offset": "0", "requested": "1000", "returned": "1000",
            "gloo_nbytes": "", "gloo_opcode": "", "gloo_prefix": "", "gloo_tag": "", "gloo_delta": "", "gloo_len": ""}])

    def test_the_page_on_the_form_lists_the_columns(self):
        dpro("export", "--net-csv", "-q", "-o", self.path("csv"), self.logs())
        with gzip.open(self.path("csv", "net_rank0.csv.gz"), "rt", encoding="utf-8") as file:
            columns = file.readline().strip().split(",")
        root = os.environ.get("DPRO_SOURCE") or os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
        text = read_text(os.path.join(root, "doc", "formats", "net-csv.md"))
        for column in columns:
            self.assertIn(f"`{column}`", text)

    def test_what_is_missing_is_asked_for(self):
        self.assert_error(dpro("export", "--net-csv", "-o", self.path("csv")), USAGE, "a trace")
        self.assert_error(dpro("export", "-o", self.path("csv"), self.logs()), USAGE, "--net-csv")
        self.assert_error(dpro("export", "--net-csv", self.logs()), USAGE, "-o DIR")

    def test_a_trace_without_logs_is_bad_input(self):
        self.write("TRACE/rank0.json", job(world=1)[0])
        self.assert_error(dpro("export", "--net-csv", "-o", self.path("csv"), self.path("TRACE")), INPUT,
                          "no transport log")
        self.assertFalse(os.path.exists(self.path("csv")))

    def test_a_folder_that_can_not_be_made_fails(self):
        self.write("file", "x")
        self.assert_error(dpro("export", "--net-csv", "-q", "-o", self.path("file", "csv"), self.logs()), SYSTEM,
                          "can't be made")
