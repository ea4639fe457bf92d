"""MXNet's parameter servers: profiles of workers and servers, graphs, pushes and pulls in the transport logs."""
import glob
import gzip
import json
import os
import shutil
import tempfile

import mxnet_job
from support import CAPTURED, DONE, INPUT, Case, dpro, read_text

CAPTURES = [os.path.join(CAPTURED, name) for name in ("mxnet-ps-module", "mxnet-ps-gluon")]
PARAMETERS = 16  # of the captures' model, each a key of its own
# What no executor's graph has
OTHER_TYPES = {"CopyCPU2CPU", "KVStoreDistDefaultStoragePushPull"}


def replayed(*arguments):
    result = dpro("replay", "--json", *arguments)
    assert result.code == DONE, result.err
    return json.loads(result.out)


class TestMXNet(Case):
    def copy(self, capture=CAPTURES[0], without=()):
        folder = os.path.join(self.folder, "trace")
        shutil.rmtree(folder, ignore_errors=True)
        os.mkdir(folder)
        for path in glob.glob(os.path.join(capture, "*.gz")):
            if not any(part in os.path.basename(path) for part in ("times", *without)):
                shutil.copy(path, folder)
                os.chmod(os.path.join(folder, os.path.basename(path)), 0o644)
        return folder

    def test_replays_are_within_5_percent_of_what_was_measured(self):
        for capture in CAPTURES:
            facts = replayed(capture)
            spread = 100 * facts["measured"]["std_ms"] / facts["measured"]["iteration_ms"]
            self.assertLess(abs(facts["error_pct"]), 5, capture)
            self.assertLess(facts["validation"]["mean_abs_error_pct"], max(5, spread), capture)
            self.assertEqual(facts["trace"]["framework"], "mxnet")
            self.assertEqual((facts["trace"]["world_size"], facts["trace"]["ranks_present"]), (2, [0, 1]))

    def test_every_event_of_a_type_that_the_executors_graph_has_is_a_node_of_it(self):
        for capture, graph, per_step in zip(CAPTURES, ("exec_debug_str", "debug_str"), (37, 28)):
            said = dpro("replay", "-vv", "--no-validate", capture)
            self.assert_code(said, DONE)
            for rank in (0, 1):
                self.assertIn("/%s.txt.gz: %d of %d ops of rank %d are nodes of it" % (graph, 7 * per_step, 7 * per_step, rank),
                              said.err)
        # a Module's graph has all that its worker computes: what is not of it copies, exchanges or waits
        with gzip.open(os.path.join(CAPTURES[0], "profile_worker0.json.gz"), "rt", encoding="utf-8") as file:
            types = [e["name"] for e in json.load(file)["traceEvents"] if e["ph"] == "B" and e.get("cat") == "operator"]
        with gzip.open(os.path.join(CAPTURES[0], "exec_debug_str.txt.gz"), "rt", encoding="utf-8") as file:
            nodes = [line[3:].split(",")[0] for line in file if line.startswith("Op:")]
        self.assertEqual(len(nodes), 37)
        self.assertEqual(sorted(name for name in types if name in nodes), sorted(7 * nodes))
        self.assertEqual(set(types) - set(nodes), OTHER_TYPES)

    def test_every_parameter_is_pushed_and_pulled_in_every_iteration(self):
        for capture in CAPTURES:
            facts = replayed(capture)
            transport = facts["transport"]
            self.assertEqual(transport["paired_bytes"] + transport["unpaired_bytes"], transport["paired_bytes"])
            # each worker's spans, of 7 recorded iterations, have their messages
            self.assertEqual((transport["collectives"], transport["collectives_tied"]), (2 * 7 * PARAMETERS,) * 2)
            # replayed message by message: a push and a pull of each parameter and worker
            self.assertEqual(sum(c["count"] for c in facts["collectives"]), PARAMETERS)
            self.assertEqual(sum(c["messages"] for c in facts["collectives"]), 4 * PARAMETERS)
            self.assertEqual({(c["kind"], c["pattern"]) for c in facts["collectives"]}, {("push_pull", "parameter server")})

    def test_logs_are_told_apart_by_the_nodes_list_where_names_mislead(self):
        with open(os.path.join(CAPTURES[0], "metadata.json"), encoding="utf-8") as file:
            truth = {r["rank"]: r["error_at_first_and_last_profiled_step"][0]["error_ns"] / 1e6
                     for r in json.load(file)["clock_truth"]["per_rank"]}
        clocks = {clock["ranks"][0]: clock for clock in replayed(CAPTURES[0])["clock"]["hosts"] if clock["ranks"]}
        self.assertLess(abs(clocks[1]["offset_ms"] - (truth[0] - truth[1])), 0.1)

    def test_what_servers_do_is_theirs_and_bears_their_names(self):
        for options in (), ("--json",), ("-o", os.path.join(self.folder, "report")):
            result = dpro("replay", *options, CAPTURES[0])
            self.assertEqual(result.code, DONE, result.err)
            self.assertIn("server 0", result.out)
            self.assertNotIn("-2147483648", result.out)

    def test_it_goes_on_with_what_is_there_and_says_what_is_lost(self):
        for without, message in ((("profile_server",), "parameter servers have no profile"),
                                 (("net_server",), "replayed whole"),
                                 (("net_worker0",), "replayed whole"),
                                 (("debug_str", "symbol"), "")):
            facts = replayed(self.copy(without=without))
            self.assertLess(abs(facts["error_pct"]), 5, without)
            self.assertIn(message, "\n".join(facts["warnings"]))

    def test_a_worker_that_left_only_its_log_is_missing(self):
        facts = replayed(self.copy(without=("profile_worker1",)))
        self.assertEqual((facts["trace"]["world_size"], len(facts["trace"]["ranks_present"])), (2, 1))
        said = "\n".join(facts["warnings"])
        self.assertRegex(said, r"net_worker\d.csv.gz: rank \d has a transport log and no profile")
        self.assertIn("1 of 2 ranks are here", said)

    def test_logs_of_two_runs_are_told(self):
        self.assertFalse(any("one run" in warning for warning in replayed(CAPTURES[1])["warnings"]))
        folder = self.copy(CAPTURES[1])
        for path in glob.glob(os.path.join(CAPTURES[0], "*worker1*")):
            shutil.copy(path, folder)
        self.assertRegex("\n".join(replayed(folder)["warnings"]), "net_worker1.csv.gz: .* are all logs of one run")

    def test_profiles_of_servers_alone_are_not_enough(self):
        result = dpro("replay", self.copy(without=("profile_worker",)))
        self.assertEqual(result.code, INPUT)
        self.assertIn("add those of the workers", result.err)

    def test_a_server_profile_under_mxnets_own_name_is_no_workers(self):
        folder = self.copy()
        os.rename(os.path.join(folder, "profile_server0.json.gz"), os.path.join(folder, "rank0_profile.json.gz"))
        self.assertEqual(replayed(folder)["predicted"], replayed(CAPTURES[0])["predicted"])

    def test_servers_profiles_are_told_apart_by_their_answers(self):
        folder = self.copy(CAPTURES[1])
        names = [os.path.join(folder, "profile_server%d.json.gz" % k) for k in (0, 1)]
        os.rename(names[0], names[0] + ".x")
        os.rename(names[1], names[0])
        os.rename(names[0] + ".x", names[1])
        self.assertEqual(replayed(folder)["predicted"], replayed(CAPTURES[1])["predicted"])

    def test_a_what_if_knows_the_links_rate(self):
        result = dpro("whatif", "--json", "--bandwidth", "1gbit", CAPTURES[0])
        self.assertEqual(result.code, DONE, result.err)
        facts = json.loads(result.out)
        self.assertLess(abs(facts["misfit_pct"]), 5)
        self.assertIn("conv0_weight", result.out)

    def test_a_workers_updates_wait_for_the_gradients_that_they_take(self):
        facts = replayed("--no-validate", CAPTURES[1])
        path = facts["critical_path"]
        self.assertLess(path["by_kind_ms"]["GAP"], 0.2 * path["length_ms"])
        faster = replayed("--no-validate", "--delay", "PULL=0.5", CAPTURES[1])
        self.assertLess(faster["predicted"]["iteration_ms"], 0.9 * facts["predicted"]["iteration_ms"])

    def whatif_ms(self, capture, *options):
        result = dpro("whatif", "--json", *options, capture)
        self.assertEqual(result.code, DONE, result.err)
        return json.loads(result.out)["predicted"]["iteration_ms"]

    def test_arrays_parted_over_two_servers_take_half_as_long_on_each_link(self):
        own = self.whatif_ms(CAPTURES[1])  # its largest array has 524288 elements and is on one server
        self.assertLess(self.whatif_ms(CAPTURES[1], "--bigarray-bound", "500000"), 0.9 * own)
        self.assertEqual(self.whatif_ms(CAPTURES[1], "--bigarray-bound", "600000"), own)
        self.assertEqual(self.whatif_ms(CAPTURES[1], "--servers", "2"), own)
        self.assertLess(self.whatif_ms(CAPTURES[0], "--servers", "2", "--bigarray-bound", "500000"),
                        0.8 * self.whatif_ms(CAPTURES[0]))

    def test_a_plan_is_the_bound_from_which_on_arrays_are_parted(self):
        with tempfile.TemporaryDirectory() as folder:
            result = dpro("optimize", "-q", "--json", "-o", folder, CAPTURES[1])
            self.assertEqual(result.code, DONE, result.err)
            found = json.loads(result.out)
            self.assertTrue(found["best"]["helps"])
            name, _, bound = read_text(os.path.join(folder, "mxnet.env")).strip().partition("=")
            self.assertEqual(name, "MXNET_KVSTORE_BIGARRAY_BOUND")
            for bucket in found["best"]["communication"]["buckets"]:
                self.assertEqual(bucket["partitions"], 2 if bucket["size_bytes"] >= 4 * int(bound) else 1)
        one = json.loads(dpro("optimize", "-q", "--json", CAPTURES[0]).out)
        self.assertFalse(one["best"]["helps"])  # one server


class TestLoops(Case):
    """Profiles of two workers with neither logs nor marks."""
    PERIOD, N = 2000, 9  # us

    def write_profile(self, rank, spans):
        """Of (name, category, thread, start, end)."""
        events = [{"name": name, "cat": category, "ph": phase, "ts": mxnet_job.T0 + at, "pid": 0, "tid": thread}
                  for name, category, thread, start, end in spans
                  for phase, at in zip("BE" if category == "operator" else "be", (start, end))]
        process = {"ph": "M", "name": "process_name", "pid": 0, "args": {"name": "cpu/0"}}
        self.write(f"profile_worker{rank}.json", {"traceEvents": [process, *sorted(events, key=lambda event: event["ts"])]})

    def write_worker(self, rank, overlapping):
        """In each overlapping iteration the second exchange begins when the program is in its next one."""
        spans = []

        def span(*one):
            spans.append(one)

        for i in range(self.N):
            at = i * self.PERIOD
            # its first round is idle longest somewhere else
            early = 600 if i == 0 and rank == 1 else 0
            for name, start, end in (("MXNDArrayCreateEx", 100, 110), ("MXImperativeInvokeEx", 120 + early, 130 + early),
                                     ("MXExecutorForward", 140 + early, 150 + early),
                                     ("MXExecutorBackwardEx", 160 + early, 170 + early),
                                     ("MXKVStorePushPullEx", 180 + early, 190 + early),
                                     ("MXKVStorePushPullEx", 200 + early, 210 + early),
                                     ("MXNDArraySyncCopyToCPU", 220 + early, 1300)):
                span(name, "MXNET_C_API", mxnet_job.CALLER, at + start, at + end)
            span("Convolution", "operator", mxnet_job.ENGINE, at + 800, at + 1300)
            span("_backward_Convolution", "operator", mxnet_job.ENGINE, at + 1300, at + 1700)
            span("KVStoreDistDefaultStoragePushPull", "operator", mxnet_job.MAIN, at + 1710, at + 2150)
            second = 2120 if i in overlapping else 1720
            span("KVStoreDistDefaultStoragePushPull", "operator", mxnet_job.MAIN, at + second, at + 2160)
        self.write_profile(rank, spans)

    def test_which_update_is_which_shows_in_when_the_gradients_came(self):
        for rank in (0, 1):
            spans = []
            for i in range(self.N):
                at = i * self.PERIOD
                calls = ("MXNDArrayCreateEx", "MXImperativeInvokeEx", "MXExecutorForward", "MXExecutorBackwardEx",
                         "MXKVStorePushPullEx", "MXKVStorePushPullEx", "MXImperativeInvokeEx", "MXImperativeInvokeEx")
                spans += [(name, "MXNET_C_API", mxnet_job.CALLER, at + 10 * k, at + 10 * k + 5) for k, name in enumerate(calls)]
                spans += [("MXNDArraySyncCopyToCPU", "MXNET_C_API", mxnet_job.CALLER, at + 100, at + 1700),
                          ("Convolution", "operator", mxnet_job.ENGINE, at + 110, at + 300),
                          ("_backward_Convolution", "operator", mxnet_job.ENGINE, at + 300, at + 600)]
                # the first one's gradient comes early, or as late as the other's and after it
                ends, took = (700 if i % 2 else 1610, 1500), (50, 100)
                for k, end in enumerate(ends):
                    spans += [("KVStoreDistDefaultStoragePushPull", "operator", mxnet_job.MAIN + 10 * k, at + 605 + k, at + end),
                              ("sgd_mom_update", "operator", mxnet_job.ENGINE, at + end + 5, at + end + 5 + took[k])]
            self.write_profile(rank, spans)
        facts = replayed(self.folder)
        self.assertLess(abs(facts["error_pct"]), 1)
        # gradients come 0.45 ms earlier, the updates that wait for them run earlier, and so does all that follows
        faster = replayed("--delay", "COLLECTIVE=0.5", self.folder)
        self.assertAlmostEqual(faster["predicted"]["iteration_ms"], facts["predicted"]["iteration_ms"] - 0.45, delta=0.06)

    def test_exchanges_that_lap_over_the_programs_iterations_stay_together(self):
        self.write_worker(0, overlapping=())
        self.write_worker(1, overlapping=(1, 2, 5))
        facts = replayed(self.folder)
        self.assertNotIn("missing ranks", "\n".join(facts["warnings"]))
        self.assertEqual(sum(c["count"] for c in facts["collectives"]), 2)
        self.assertAlmostEqual(facts["measured"]["iteration_ms"], self.PERIOD / 1000, delta=0.1)
        self.assertLess(abs(facts["error_pct"]), 5)


class TestMXNetJob(Case):
    """On a job with known answers: see mxnet_job.py."""

    def test_keys_bear_the_names_of_parameters_only_where_their_sizes_go_together(self):
        for bias, fits in ((b"small_weight", True), (b"small_bias", False)):
            mxnet_job.write(self.folder)
            path = os.path.join(self.folder, "exec_debug_str.txt")
            with open(path, "rb") as file:
                graph = file.read()
            with open(path, "wb") as file:  # the second op takes both
                second = b"\targ[1]=large_weight(0) version=0\n"
                file.write(graph.replace(b"small_weight", bias).replace(second, second + b"\targ[2]=%s(0)\n" % bias))
            facts = replayed("-o", self.folder, self.folder)
            self.assertEqual("other parameters than its graph" in "\n".join(facts["warnings"]), not fits)
            with gzip.open(os.path.join(self.folder, "timeline.json.gz"), "rb") as file:
                self.assertEqual(b"small_weight" in file.read(), fits)

    def iteration(self, *options, **how):
        mxnet_job.write(self.folder, **how)
        return replayed(*options, self.folder)["predicted"]["iteration_ms"]

    def test_a_recordings_first_iteration_only_leads_up_to_the_others(self):
        self.assertAlmostEqual(self.iteration(late=3000), self.iteration(), delta=0.001)

    def test_messages_that_one_call_sends_keep_their_order_in_each_iteration(self):
        self.assertAlmostEqual(self.iteration(), (mxnet_job.SHORT + mxnet_job.LONG) / 2000, delta=0.001)

    def test_a_small_message_overtakes_a_large_one_of_another_connection(self):
        self.assertAlmostEqual(self.iteration(apart=True), mxnet_job.SHORT / 1000, delta=0.001)

    def test_an_op_waits_for_the_parameter_that_it_takes_and_no_other(self):
        for copies in (False, True):
            expected = (mxnet_job.SHORT + mxnet_job.LONG) / 2000
            # the large parameter comes 200 us earlier, in every other iteration the small one does, too
            self.assertAlmostEqual(self.iteration("--delay", "PULL=0.5", copies=copies), expected - 0.205, delta=0.002)
            # in those, the first op is what the second waits for; in the others it waits for the large parameter
            self.assertAlmostEqual(self.iteration("--delay", "Convolution=2", copies=copies), expected + 0.150, delta=0.002)
