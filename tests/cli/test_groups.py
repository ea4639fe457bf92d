"""dpro whatif of jobs whose ranks communicate more than gradients: sharded parameters, or collectives without any gradient."""
import glob
import json
import os
import shutil

from support import BUNDLED, DONE, INPUT, LAYERS, USAGE, Case, dpro, job, read_json, read_text, span, write_json

SHARDED = os.path.join(os.path.dirname(BUNDLED), "torch-fsdp-gloo-n2-memory")


def gathers(elements=(1000, 1000, 1000), **options):
    """The traces of a job that gathers what a layer has made, and goes on when the gather is over; by layer so many floats."""
    traces = job(**options)
    for trace in traces:
        calls = [e for e in trace["traceEvents"] if e["name"] in ("c10d::allreduce_", "gloo:all_reduce")]
        for event in calls:
            event["name"] = event["name"].replace("allreduce_", "allgather_").replace("all_reduce", "all_gather")
        for name in ("c10d::allgather_", "gloo:all_gather"):
            for i, event in enumerate(e for e in calls if e["name"] == name):
                event["args"]["Input Dims"] = json.loads(json.dumps(event["args"]["Input Dims"]).replace(
                    "1000", str(elements[i % len(elements)])))
    return traces


def sharded(world, layers=6, turns=1):
    """The traces of a job that gathers shards and reduces gradients to them, round rings of links of 1 GB/s and 200 us. Gathers
    take `turns` times as long for a byte."""
    elements = [200_000 * (1 + layer // 2) for layer in range(layers)]
    traces = job(world=world, layers=layers, backward_us=30_000,
                 transfer_us=[(world - 1) * (4 * n / 1000 / world * (turns if layer % 2 else 1) + 200) - 20
                             for layer, n in enumerate(elements)])
    for trace in traces:
        for old, new in (("allreduce_", ("reduce_scatter_", "allgather_")), ("all_reduce", ("reduce_scatter", "all_gather"))):
            for i, event in enumerate(e for e in trace["traceEvents"] if e["name"].endswith(old)):
                layer = layers - 1 - i % layers
                gathers_it = layer % 2
                event["name"] = event["name"].replace(old, new[gathers_it])
                event["args"]["Input Dims"] = json.loads(json.dumps(event["args"]["Input Dims"]).replace(
                    "1000", str(elements[layer] // (world if gathers_it else 1))))
    return traces


def share(first, second, later):
    """When two flows of a link end; the second begins later. While both are on it, each gets half."""
    left = first - later
    if left <= 0:
        return first, later + second
    first_ends, second_ends = 2 * left, 2 * second
    return (later + first_ends, first + second) if first_ends < second_ends else (first + second, later + second_ends)


def tokens_beside_buckets(bucket_us, tokens_us, slowdown=1, iterations=4):
    """The traces of a job of two ranks whose backward pass exchanges tokens and waits for them while a bucket is on the link, and
    the us of its iteration. By themselves they take so long on a link of 10 MB/s, times the slowdown."""
    sizes = {"c10d::allreduce_": [[int(bucket_us * 10 / 4)]], "c10d::alltoall_base_": 2 * [[int(tokens_us * 20 / 4)]]}
    events, step_start = [], 1e9

    def call(name, at, until, tid):
        events.append(span(name, at, 30, **{"Input Dims": sizes[name], "Input type": ["float"] * len(sizes[name])}))
        collective = "gloo:all_reduce" if "reduce" in name else "gloo:all_to_all"
        events.append(span(collective, at + 40, until - at - 40, tid=tid, cat="user_annotation",
                           **{"Input Dims": sizes[name], "Input type": ["float"] * len(sizes[name])}))

    for step in range(1, iterations + 1):
        now = step_start + 100
        events.append(span("DistributedDataParallel.forward", now, 30_100, cat="user_annotation"))
        for layer in range(LAYERS):
            events.append(span("aten::linear", now + 10, 10_000, **{"Sequence number": step * LAYERS + layer, "Fwd thread id": 0}))
            now += 10_020
        now += 200
        for layer in reversed(range(LAYERS)):
            numbers = {"Sequence number": step * LAYERS + layer, "Fwd thread id": 1}
            events.append(span("autograd::engine::evaluate_function: AddmmBackward0", now, 20_000, **numbers))
            bucket, tokens = share(bucket_us * slowdown, tokens_us * slowdown, 1000)
            call("c10d::allreduce_", now + 19_900, now + 19_940 + bucket, 2)
            call("c10d::alltoall_base_", now + 20_900, now + 19_940 + tokens, 3)
            over, now = now + 19_940 + bucket, now + 19_950 + tokens
        now = max(now + 100, over + 10)
        events.append(span("Optimizer.step#SGD.step", now, 1000, cat="user_annotation"))
        events.append(span("aten::add_", now + 10, 900))
        now += 1020
        events.append(span(f"ProfilerStep#{step}", step_start, now - step_start, cat="user_annotation"))
        step_took, step_start = now - step_start + 20, now + 20
    traces = job(communicates=False)
    for trace in traces:
        trace["traceEvents"] = sorted(events, key=lambda e: (e["ts"], -e["dur"]))
    return traces, step_took


class Groups(Case):
    def write_job(self, name, traces):
        for rank, trace in enumerate(traces):
            self.write(f"{name}/rank{rank}.json", trace)
        return self.path(name)

    def ask(self, *args):
        return dpro("whatif", "--json", *args).json

    def test_a_sharded_job_is_asked_for_links_latency_and_computation_together(self):
        took = {asked: self.ask(SHARDED, *asked.split())["predicted"]["iteration_ms"] for asked in (
            "", "--bandwidth 0.25x", "--bandwidth 4x", "--latency +5ms", "--latency 0.5x", "--compute 0.5x@0",
            "--bandwidth 0.25x --compute 0.5x@0", "--reshard all", "--reshard all --bandwidth 0.25x",
            "--accumulate 2", "--accumulate 2 --bandwidth 0.25x")}
        own = took[""]
        self.assertGreater(took["--bandwidth 0.25x"], own)
        self.assertLess(took["--bandwidth 4x"], own)
        self.assertGreater(took["--latency +5ms"], own + 10)  # two messages at least that nothing hides
        self.assertLess(took["--latency 0.5x"], own)
        self.assertGreater(took["--compute 0.5x@0"], 1.7 * own)
        self.assertGreater(took["--bandwidth 0.25x --compute 0.5x@0"], took["--compute 0.5x@0"])
        self.assertGreater(took["--reshard all --bandwidth 0.25x"], took["--reshard all"])
        more = took["--bandwidth 0.25x"] - own
        self.assertGreater(took["--accumulate 2 --bandwidth 0.25x"] - took["--accumulate 2"], 1.5 * more)  # each communicates
        unsure = [self.ask(SHARDED, "--bandwidth", "0.25x", "--accumulate", n)["uncertainty"]["learnt_numbers"]["predicted_pct"]
                  for n in ("1", "4")]
        self.assertGreater(unsure[1], unsure[0])  # of all micro-batches, not of one

    def test_what_shares_links_with_a_bucket_is_charged_once(self):
        for bucket_us, tokens_us in ((12_000, 5_000), (12_000, 2_000), (4_000, 12_000), (9_000, 9_000)):
            traces, took = tokens_beside_buckets(bucket_us, tokens_us)
            path = self.write_job(f"{bucket_us}+{tokens_us}", traces)
            own = self.ask(path)
            with self.subTest(bucket_us=bucket_us, tokens_us=tokens_us):
                self.assertAlmostEqual(own["misfit_pct"], 0, delta=1)
                self.assertEqual([(c["kind"], c["count"]) for c in own["communications"]], [("all_to_all", LAYERS)])
                self.assertAlmostEqual(own["communications"][0]["took_ms"], LAYERS * tokens_us / 1000, delta=0.5)
            for slowdown in (0.5, 2):
                with self.subTest(bucket_us=bucket_us, tokens_us=tokens_us, slowdown=slowdown):
                    truth = tokens_beside_buckets(bucket_us, tokens_us, slowdown)[1] / took
                    asked = self.ask(path, "--bandwidth", f"{1 / slowdown}x")
                    self.assertAlmostEqual(1 / asked["speedup"], truth, delta=0.02 * truth)

    def test_it_says_what_is_communicated_and_what_was_learnt_of_it(self):
        facts = self.ask(SHARDED, "--bandwidth", "0.5x")
        self.assertEqual([(c["kind"], c["count"], c["size_bytes"]) for c in facts["communications"]],
                         [("all_gather", 5, 7433216), ("all_reduce", 3, 8548352)])
        self.assertGreater(facts["link"]["bandwidth_bytes_per_s"]["value"], 1e8)
        self.assertGreater(facts["uncertainty"]["learnt_numbers"]["predicted_pct"], 0)
        self.assertLess(abs(facts["misfit_pct"]), 5)  # the model of the job as it ran, against the measured iterations
        text = dpro("whatif", SHARDED, "--bandwidth", "0.5x").out
        self.assertIn("5 all_gather", text)
        self.assertIn("each way on a rank's link", text)

    def test_buckets_have_their_link_where_all_that_groups_communicate_stays_within_a_host(self):
        here = self.path("here")  # without logs of addresses, the ranks' hosts have one name
        shutil.copytree(os.path.join(os.path.dirname(BUNDLED), "torch-ep-gloo-n2"), here)
        for log in glob.glob(os.path.join(here, "*", "*", "net.log.gz")):
            os.remove(log)
        took = {asked: self.ask(here, *asked.split())["predicted"]["iteration_ms"] for asked in (
            "", "--bandwidth 0.5x", "--bandwidth intra=0.5x", "--compress bf16")}
        self.assertGreater(took["--bandwidth 0.5x"], took[""] + 25)  # 15 ms of all-to-alls, and the bucket's
        self.assertEqual(took["--bandwidth intra=0.5x"], took["--bandwidth 0.5x"])
        self.assertLess(took["--compress bf16"], took[""] - 5)
        self.assert_error(dpro("whatif", here, "--bandwidth", "inter=0.5x"), USAGE, "no communication between hosts")

    def test_calls_that_seem_to_take_days_are_told_and_do_not_move_the_answer(self):
        folder = self.path("broken")
        shutil.copytree(os.path.join(os.path.dirname(BUNDLED), "torch-ep-gloo-n2"), folder)
        path = glob.glob(os.path.join(folder, "*", "rank0", "kineto.json.gz"))[0]
        trace = read_json(path)
        for event in trace["traceEvents"]:
            if event.get("name") == "c10d::alltoall_base_" and "dur" in event:
                event["dur"] = 1e12
        write_json(path, trace)
        whole, broken = self.ask(os.path.join(os.path.dirname(BUNDLED), "torch-ep-gloo-n2")), self.ask(folder)
        self.assertIn("have no counterpart of their kind and size", " ".join(broken["warnings"]))
        self.assertAlmostEqual(broken["baseline"]["iteration_ms"], whole["baseline"]["iteration_ms"],
                               delta=0.05 * whole["baseline"]["iteration_ms"])

    def test_recorded_jobs_of_every_kind_take_as_long_by_the_model_as_when_they_were_measured(self):
        # a pipeline's three iterations differ by more than that
        for name, kinds, allowed in (("torch-ep-gloo-n2", {"all_to_all"}, 5), ("torch-pp-gloo-n2", {"send", "recv"}, 20),
                                     ("torch-fsdp-tp-gloo-n4", {"all_gather", "all_reduce"}, 5)):
            with self.subTest(name):
                trace = os.path.join(os.path.dirname(BUNDLED), name)
                facts = {ratio: self.ask(trace, "--bandwidth", ratio) for ratio in ("0.5x", "1x", "2x")}
                self.assertEqual({c["kind"] for c in facts["1x"]["communications"]}, kinds)
                self.assertLess(abs(facts["1x"]["misfit_pct"]), allowed)
                self.assertEqual(facts["1x"]["predicted"], facts["1x"]["baseline"])
                times = [facts[ratio]["predicted"]["iteration_ms"] for ratio in ("2x", "1x", "0.5x")]
                self.assertEqual(times, sorted(times))
        self.assertGreater(self.ask(trace, "--accumulate", "2")["predicted"]["iteration_ms"], facts["1x"]["baseline"]["iteration_ms"])

    def test_a_search_of_buckets_knows_of_experts_and_promises_no_more_than_their_link_carries(self):
        """Short messages pass a link that was idle faster than it carries (a limiter's burst), but not all of an iteration."""
        experts, plan = os.path.join(os.path.dirname(BUNDLED), "torch-ep-gloo-n2"), self.path("plan")
        facts, allowed = (dpro("optimize", experts, "--json", "-o", plan, *args).json for args in ((), ("--allow", "bf16,assumed")))
        self.assertEqual(facts["best"]["likely_ms"], allowed["best"]["likely_ms"])
        rows = {row["name"]: row["likely_ms"] for row in facts["baselines"]}
        for row, asked in ("cap-1", ("--bucket-cap-mb", "1")), ("bucket-per-tensor", ("--bucket-cap-mb", "0.0001")):
            self.assertAlmostEqual(self.asked(experts, *asked), rows[row], delta=0.01)
        known = self.ask(experts)
        promised_ms = facts["best"]["likely_ms"] if facts["best"]["helps"] else known["baseline"]["iteration_ms"]
        self.assertAlmostEqual(self.asked(experts, "--buckets", plan), promised_ms, delta=0.01)
        exchanged = sum(kind["size_bytes"] for kind in known["communications"]) / 2 + sum(
            bucket["size_bytes"] for bucket in known["baseline"]["communication"]["buckets"])
        carries_ms = 1e3 * exchanged / known["link"]["bandwidth_bytes_per_s"]["value"]
        for asked in ("--bucket-cap-mb", "0.05"), ("--bucket-cap-mb", "0.0001"), ("--buckets", plan):
            self.assertGreater(self.asked(experts, *asked), 0.97 * min(carries_ms, known["baseline"]["iteration_ms"]))
        self.assertLess(self.asked(experts, "--bandwidth", "2x"), 0.75 * known["baseline"]["iteration_ms"])

    def test_the_model_takes_as_long_as_the_replay(self):
        for args in ({}, {"slow": (1, 5000)}, {"layers": 5}):
            with self.subTest(args):
                folder = self.write_job("job%d" % len(args), gathers(**args))
                replayed = dpro("replay", folder, "--json", "--no-validate", "--keep-profiler").json["predicted"]["iteration_ms"]
                self.assertAlmostEqual(self.ask(folder)["baseline"]["iteration_ms"] / replayed, 1, delta=0.01)

    def test_sizes_tell_latency_from_bytes(self):
        # transfers of 8 ms each: of one size, so that their latency is assumed
        one = self.ask(self.write_job("one", gathers()), "--bandwidth", "0.5x")
        self.assertTrue(any("of one size" in w for w in one["warnings"]), one["warnings"])
        more = one["predicted"]["iteration_ms"] - one["baseline"]["iteration_ms"]
        self.assertGreater(more, 7)
        self.assertGreater(1.2 * one["predicted"]["iteration_ms"] * one["predicted"]["uncertainty_pct"] / 100, 0.1)
        # of very different sizes, but all as long: hardly anything is bytes
        other = self.ask(self.write_job("other", gathers((1000, 2000, 64000))), "--bandwidth", "0.5x")
        self.assertFalse(any("of one size" in w for w in other["warnings"]), other["warnings"])

    def test_links_by_class_need_hosts(self):
        folder = self.write_job("nohosts", gathers())
        self.assert_error(dpro("whatif", folder, "--bandwidth", "inter=0.5x"), USAGE, "does not tell which ranks are on one host")
        self.assert_error(dpro("whatif", SHARDED, "--bandwidth", "inter=0.5x"), USAGE, "no communication between hosts")
        self.assert_error(dpro("whatif", SHARDED, "--bandwidth", "2x,intra=0.5x"), USAGE, "give one")
        self.assert_error(dpro("whatif", SHARDED, "--bandwidth", "inter=0.5x,inter=2x"), USAGE, "--bandwidth")
        within = self.ask(SHARDED, "--bandwidth", "intra=0.5x")
        self.assertEqual(within["predicted"], self.ask(SHARDED, "--bandwidth", "0.5x")["predicted"])
        self.assertEqual(within["changes"], {"intra_ratio": 0.5})

    def test_shards_get_smaller_with_more_ranks(self):
        facts = self.ask(SHARDED, "--dp", "4")
        self.assertEqual(facts["changes"], {"dp": 4})
        self.assertEqual(facts["predicted"], self.ask(SHARDED, "--world-size", "4")["predicted"])
        self.assertGreater(facts["predicted"]["iteration_ms"], facts["baseline"]["iteration_ms"])
        parameters = 4 * sum(facts["memory"]["by_category"][kept] for kept in ("parameter", "optimizer_state"))
        half = self.ask(SHARDED)["memory"]["by_category"]
        self.assertAlmostEqual(parameters, 2 * (half["parameter"] + half["optimizer_state"]), delta=0.01 * parameters)
        self.assertTrue(any("1/4 of what is sharded" in w for w in facts["warnings"]), facts["warnings"])
        # on other hosts, whose links nothing tells
        self.assertTrue(any("links to other hosts are assumed" in w for w in facts["warnings"]), facts["warnings"])
        slow = self.ask(SHARDED, "--dp", "4", "--bandwidth", "inter=0.1x")
        self.assertGreater(slow["predicted"]["iteration_ms"], facts["predicted"]["iteration_ms"] + 20)

    def test_shards_of_some_ranks_are_replicated_over_the_others(self):
        whole, kept = self.ask(SHARDED, "--dp", "4"), self.ask(SHARDED, "--shard", "2", "--dp", "2")
        self.assertEqual(kept["changes"], {"dp": 2, "shard": 2})
        self.assertTrue(any("all-reduced over 2 replicas" in w for w in kept["warnings"]), kept["warnings"])
        self.assertEqual(kept["memory"]["peak_bytes"], kept["memory"]["baseline_peak_bytes"])  # as many shards as recorded
        self.assertLess(whole["memory"]["peak_bytes"], kept["memory"]["peak_bytes"])
        self.assertEqual(self.asked(SHARDED, "--shard", "2"), self.ask(SHARDED)["baseline"]["iteration_ms"])
        # what leaves a host is a shard of the gradients, not all that is gathered
        hosts = ["--topology", self.topology(2)]
        self.assertLess(self.asked(SHARDED, *hosts, "--shard", "2", "--dp", "4"), self.asked(SHARDED, *hosts, "--dp", "8"))
        split = os.path.join(os.path.dirname(BUNDLED), "torch-fsdp-tp-gloo-n4")
        self.assertGreater(self.asked(split, "--shard", "2", "--dp", "2"), self.asked(split, "--shard", "2"))
        for trace, args, why in ((SHARDED, ["--shard", "4"], "no whole number of groups of 4: give --world-size, too, a multiple of 4"),
                                 (split, ["--shard", "4"], "give --world-size, too, a multiple of 8"),
                                 (SHARDED, ["--shard", "8", "--world-size", "4"], "groups of shards make up 8 ranks; give"),
                                 (split, ["--shard", "3", "--world-size", "8"], "groups of shards make up 6 ranks"),
                                 (SHARDED, ["--shard", "8", "--dp", "9999"], "79992 ranks can't be predicted"),
                                 (SHARDED, ["--shard", "3", "--dp", "8", "--topology", self.topology(4)], "how many hosts a group of 3"),
                                 (BUNDLED, ["--shard", "2"], "2 replicas of its shards"), (SHARDED, ["--shard", "1"], "--shard")):
            with self.subTest(args=args):
                self.assert_error(dpro("whatif", trace, *args), USAGE, why)

    def test_shards_of_more_ranks_than_were_recorded_are_replicated_too(self):
        asked = self.ask(SHARDED, "--shard", "8", "--world-size", "64")
        self.assertEqual(asked["predicted"], self.ask(SHARDED, "--dp", "8", "--shard", "8")["predicted"])
        for words in ("among the 8 neighbouring ranks .* over 8 replicas", "keeps 1/8 of what is sharded, in place of 1/2"):
            self.assertRegex("\n".join(asked["warnings"]), words)
        one = self.ask(SHARDED, "--world-size", "8")  # of shards of 8, too
        self.assertEqual(asked["memory"]["peak_bytes"], one["memory"]["peak_bytes"])
        self.assertGreater(asked["predicted"]["iteration_ms"], one["predicted"]["iteration_ms"])
        self.assertEqual(self.ask(SHARDED, "--world-size", "8", "--shard", "8")["predicted"], one["predicted"])
        hosts = ["--topology", self.topology(8), "--world-size", "64"]  # what leaves a host is a shard's gradients
        self.assertLess(self.asked(SHARDED, *hosts, "--shard", "8"), self.asked(SHARDED, *hosts))
        self.assertLess(self.asked(SHARDED, *hosts, "--shard", "8"), self.asked(SHARDED, *hosts, "--shard", "16"))

    def test_what_two_ranks_exchange_by_turns_does_not_make_the_link_slower(self):
        took = {}
        for turns in (1, 1.5):
            path = self.path("turns%s" % turns)
            for rank, trace in enumerate(sharded(2, turns=turns)):
                self.write("turns%s/rank%d.json" % (turns, rank), trace)
            facts = self.ask(path, "--bandwidth", "8Gbit")
            self.assertAlmostEqual(facts["link"]["bandwidth_bytes_per_s"]["value"] / 1e9, 1, delta=0.02)
            self.assertAlmostEqual(facts["speedup"], 1, delta=0.01)
            took[turns] = [self.ask(path, "--bandwidth", ratio)["predicted"]["iteration_ms"] for ratio in ("1x", "0.1x")]
        self.assertGreater(took[1.5][1] - took[1.5][0], 1.1 * (took[1][1] - took[1][0]))

    def test_shards_are_predicted_alike_from_few_ranks_and_from_many(self):
        jobs = {world: self.write_job(f"shards{world}", sharded(world)) for world in (2, 4, 8)}
        for asked in ("--world-size 8", "--world-size 8 --shard 4", "--world-size 64 --shard 8", "--world-size 12 --shard 2"):
            took = [self.asked(folder, "--dims", f"fsdp={world}", "--compute", "1000x", *asked.split())
                    for world, folder in jobs.items()]
            with self.subTest(asked=asked):
                self.assertAlmostEqual(took[1] / took[0], 1, delta=0.001)
                self.assertAlmostEqual(took[2] / took[0], 1, delta=0.001)

    def topology(self, per_host, intra=None, inter=None, **more):
        return self.write("topology.json", {"schema": "dpro.topology/1", "ranks_per_host": per_host,
                                            "intra": {"bytes_per_s": 10e9, **(intra or {})},
                                            "inter": {"bytes_per_s": 125e6, **(inter or {})}, **more})

    def asked(self, trace, *args):
        return self.ask(trace, *args)["predicted"]["iteration_ms"]

    def test_experts_beside_gradients_are_not_cut_into_micro_batches(self):
        experts = os.path.join(os.path.dirname(BUNDLED), "torch-ep-gloo-n2")
        self.assert_error(dpro("whatif", experts, "--accumulate", "2"), USAGE, "can be asked of jobs whose")

    def test_a_topology_is_what_bandwidth_says_of_the_same_hosts(self):
        own = self.topology(2, intra={"bytes_per_s": 1.25e9})
        self.assertAlmostEqual(self.asked(SHARDED, "--topology", own), self.asked(SHARDED, "--bandwidth", "10gbit"), places=3)
        apart = self.topology(1)
        self.assertAlmostEqual(self.asked(BUNDLED, "--topology", apart), self.asked(BUNDLED, "--bandwidth", "1gbit"), places=3)
        self.assertAlmostEqual(self.asked(BUNDLED, "--topology", apart, "--world-size", "8"),
                               self.asked(BUNDLED, "--bandwidth", "1gbit", "--world-size", "8"), places=3)
        experts = os.path.join(os.path.dirname(BUNDLED), "torch-ep-gloo-n2")
        self.assertAlmostEqual(self.asked(experts, "--topology", apart, "--dp", "4"),
                               self.asked(experts, "--bandwidth", "1gbit", "--dp", "4"), places=3)

    def test_what_is_sent_between_gradients_ends_no_bucket(self):
        """An expert's tokens travel in the backward pass of a model whose gradients DDP puts in one bucket."""
        facts = self.ask(os.path.join(os.path.dirname(BUNDLED), "torch-ep-gloo-n2"), "--bucket-cap-mb", "25")
        self.assertEqual(facts["predicted"]["communication"], facts["baseline"]["communication"])
        self.assertEqual(facts["predicted"]["iteration_ms"], facts["baseline"]["iteration_ms"])

    def test_activations_that_ranks_send_each_other_grow_with_the_batch(self):
        """Tensor parallel ranks send twice as much with a batch twice as large, and half as much with each of two micro-batches."""
        mixed = os.path.join(os.path.dirname(BUNDLED), "torch-fsdp-tp-gloo-n4")
        slow = ["--bandwidth", "0.1x"]
        own, slow_own = self.asked(mixed), self.asked(mixed, *slow)
        self.assertGreater(self.asked(mixed, "--batch-size", "2x", *slow) - slow_own,
                           2 * (self.asked(mixed, "--batch-size", "2x") - own))
        self.assertLess(self.asked(mixed, "--accumulate", "2", *slow), 1.85 * slow_own)  # each gathers all parameters

    def test_changes_that_cancel_out_are_no_surer_than_each(self):
        sure = {asked: self.ask(SHARDED, *asked.split())["uncertainty"]["extrapolation"]["predicted_pct"]
                for asked in ("--bandwidth 0.25x", "--compute 4x", "--bandwidth 0.25x --compute 4x", "--bandwidth 0.01x")}
        self.assertGreater(sure["--bandwidth 0.25x --compute 4x"], max(sure["--bandwidth 0.25x"], sure["--compute 4x"]))
        self.assertLess(sure["--bandwidth 0.01x"], 40)  # all of it is the slower link

    def test_what_is_not_known_of_a_message_tells_in_more_ranks(self):
        unsure = [self.ask(SHARDED, "--dp", n)["uncertainty"]["learnt_numbers"]["predicted_pct"] for n in ("2", "8", "64")]
        self.assertEqual(unsure, sorted(unsure))
        self.assertGreater(unsure[2], 30)

    def test_told_links_answer_for_more_hosts_than_were_recorded(self):
        facts = self.ask(SHARDED, "--dp", "8", "--topology", self.topology(2))
        self.assertEqual(facts["changes"], {"topology": self.path("topology.json"), "dp": 8})
        self.assertFalse(any("links to other hosts are assumed" in w for w in facts["warnings"]), facts["warnings"])
        self.assertTrue(any("8 ranks, 2 on a host" in w for w in facts["warnings"]), facts["warnings"])
        took = [self.asked(SHARDED, "--dp", "8", "--topology", self.topology(per_host, inter=inter)) for per_host, inter in (
            (8, {}), (4, {"rails": 4}), (4, {}), (4, {"latency_ns": 20e6}))]
        self.assertEqual(took, sorted(took))
        self.assertGreater(took[2], took[1] + 20)  # three quarters of a gigabit less
        self.assertGreater(took[3], took[2] + 20)
        ready = [self.asked(SHARDED, "--world-size", "16", "--topology", name) for name in ("h100-nvlink-400g", "pcie3-10g")]
        self.assertEqual(ready, sorted(ready))

    def test_collectives_over_hosts_are_asked_for_with_a_topology(self):
        hosts = ["--dp", "8", "--topology", self.topology(4, inter={"latency_ns": 20e6})]
        took = {how: self.asked(SHARDED, *hosts, "--collectives", how) for how in ("ring", "hierarchical")}
        self.assertEqual(took["ring"], self.asked(SHARDED, *hosts))
        self.assertNotEqual(took["ring"], took["hierarchical"])
        facts = self.ask(SHARDED, *hosts, "--collectives", "hierarchical")
        self.assertEqual(facts["changes"]["collectives"], "hierarchical")
        for args, why in ((["--collectives", "ring"], "needs hosts: give --topology"),
                          ([*hosts[2:], "--collectives", "tree"], "no collectives of the job are over several hosts"),
                          (["--collectives", "star"], "--collectives")):
            with self.subTest(args=args):
                self.assert_error(dpro("whatif", SHARDED, *args), USAGE, why)
        apart = os.path.join(os.path.dirname(BUNDLED), "torch-ddp-gloo-gpt-n2-memory")
        hosts = ["--dp", "8", "--topology", self.topology(4)]
        took = {how: self.asked(apart, *hosts, "--collectives", how) for how in ("ring", "hierarchical")}
        self.assertAlmostEqual(took["ring"] - took["hierarchical"], 50, delta=5)  # 7/4 and 1 times 8.6 MB leave a host at 120 MB/s
        self.assert_error(dpro("whatif", apart, *hosts, "--collectives", "tree"), USAGE, "buckets of gradients")

    def test_a_topology_that_contradicts_the_trace_is_refused_in_one_line(self):
        for args, why in ((["--topology", self.topology(1)], "ranks 0 and 1 on one host, but the topology, with 1 a host, has them on two"),
                          (["--topology", "h100-nvlink-400g", "--dp", "9"], "9 ranks are no whole number of hosts of 8"),
                          (["--topology", "h100-nvlink-400g", "--bandwidth", "inter=2x"], "a bandwidth both say how fast links are"),
                          (["--topology", "h100-nvlink-300g"], "h100-nvlink-300g: no file, and no ready-made"),
                          (["--topology", self.path("\x1b[2Jnone")], "no file"), (["--topology", ""], "--topology"),
                          (["--topology", self.folder], "no file")):
            with self.subTest(args=args):
                self.assert_error(dpro("whatif", SHARDED, *args), USAGE, why)
        self.assert_error(dpro("whatif", BUNDLED, "--topology", "pcie4-25g"), USAGE, "ranks 0 and 1 on two hosts, .* on one")
        servers = os.path.join(os.path.dirname(BUNDLED), "tf-ps-n2")
        self.assert_error(dpro("whatif", servers, "--topology", "pcie4-25g"), USAGE, "parameter servers|two hosts")

    def test_a_bad_topology_is_said_in_one_line(self):
        whole = self.topology(2)
        text = read_text(whole)
        for name, content, why in (("cut", text[:60], "cut: byte .*: the file ends too early"), ("none", "", "none: "),
                                   ("other", text.replace("topology/1", "plan/1"), "'schema' is not"),
                                   ("binary", "\x00\x01\x02", "binary: byte"), ("list", "[1]", "no JSON object")):
            with self.subTest(name):
                self.assert_error(dpro("whatif", SHARDED, "--topology", self.write(name, content)), INPUT, why)
        for more, why in (({"ranks_per_host": -2}, "'ranks_per_host' has to be a whole number from 1 to 65536"),
                          ({"ranks_per_host": 1e300}, "'ranks_per_host' has to be"), ({"hosts\n": 2}, "is no number of a topology"),
                          ({"inter": {"bytes_per_s": 0}}, "'inter.bytes_per_s' has to be a number from 1000 to 1e\\+15"),
                          ({"inter": 5}, "'inter' has to be an object"), ({"inter": {}}, "'inter.bytes_per_s' is missing")):
            with self.subTest(more=more):
                path = self.write("bad.json", {**json.loads(text), **more})
                self.assert_error(dpro("whatif", SHARDED, "--topology", path), INPUT, "bad.json: ", why)

    def test_what_it_can_not_know_is_refused(self):
        for args in (["--gradient-views"], ["--compile", "all"]):
            with self.subTest(args=args):
                self.assert_error(dpro("whatif", SHARDED, *args), USAGE, "communicate more than gradients")
        unknown, unmarked = self.write_job("unknown", gathers()), self.write_job("unmarked", sharded(2))
        for args in (["--batch-size", "2x"], ["--accumulate", "2"], ["--precision", "bf16"], ["--recompute", "all"]):
            with self.subTest(args=args):
                self.assert_error(dpro("whatif", unknown, *args), USAGE, args[0], "needs to know how the job is parallel", "--dims")
                self.assert_error(dpro("whatif", unmarked, *args), USAGE, "does not show when FSDP gathers parameters")
        replicas = ["whatif", unknown, "--dims", "dp=2"]  # of them all but --accumulate is known
        self.assert_code(dpro(*replicas, "--precision", "fp32", "--batch-size", "2x"), DONE)
        self.assert_error(dpro(*replicas, "--recompute", "all"), USAGE, "nothing was recorded of what the ranks held")
        self.assert_error(dpro(*replicas, "--accumulate", "2"), USAGE, "jobs whose ranks exchange only gradients, or only in")
        for args in (["--prefetch", "2"], ["--reshard", "none"]):
            with self.subTest(args=args):
                self.assert_error(dpro("whatif", unmarked, *args), USAGE, "does not show which modules are FSDP's units")
        for trace in (SHARDED, BUNDLED, unknown):  # whatever the kind of job, one reason and one code
            with self.subTest(trace=trace):
                self.assert_error(dpro("whatif", trace, "--servers", "2"), USAGE, "has no parameter servers to change")
                self.assert_error(dpro("whatif", trace, "--fusion-mb", "1"), USAGE, "does not reduce this job's gradients")
        for args in (["--bucket-cap-mb", "5"], ["--compress", "fp16"]):
            with self.subTest(args=args):
                self.assert_error(dpro("whatif", SHARDED, *args), INPUT, f"{args[0]}: parameters are sharded")

    def test_ranks_that_are_missing_are_named_and_the_rest_answered(self):
        folder = self.write_job("half", gathers(world=2)[:1])
        facts = self.ask(folder, "--bandwidth", "0.5x")
        self.assertGreater(facts["predicted"]["iteration_ms"], facts["baseline"]["iteration_ms"])
        self.assertTrue(any("1 of 2 ranks" in w for w in facts["warnings"]), facts["warnings"])

    def test_sends_without_receives_are_named_and_the_rest_answered(self):
        trace = shutil.copytree(os.path.join(os.path.dirname(BUNDLED), "torch-pp-gloo-n2"), self.path("unmatched"))
        path = glob.glob(os.path.join(trace, "*", "rank1", "kineto.json.gz"))[0]
        profile = read_json(path)
        profile["traceEvents"] = [e for e in profile["traceEvents"] if e.get("name") not in ("gloo:recv", "c10d::recv_")]
        write_json(path, profile)
        facts = self.ask(trace, "--bandwidth", "0.5x")
        self.assertGreater(facts["predicted"]["iteration_ms"], facts["baseline"]["iteration_ms"])
        self.assertTrue(any("some have no part in" in w for w in facts["warnings"]), facts["warnings"])

    def test_sizes_that_are_not_known_are_said(self):
        traces = gathers()
        for trace in traces:
            for event in trace["traceEvents"]:
                event["args"].pop("Input Dims", None)
        folder = self.write_job("unsized", traces)
        facts = self.ask(folder, "--bandwidth", "0.5x")
        self.assertGreater(facts["predicted"]["iteration_ms"], facts["baseline"]["iteration_ms"])
        self.assertTrue(any("how large" in w for w in facts["warnings"]), facts["warnings"])
        self.assertIsNone(facts["link"]["bandwidth_bytes_per_s"]["value"])
        self.assert_error(dpro("whatif", folder, "--bandwidth", "1gbit"), USAGE, "give --bandwidth as a ratio")
