"""Communication that is not called NCCL, and jobs of which none is recognised or ranks are missing."""

from support import DONE, USAGE, Case, dpro, read_text, span

STEP_US, STEPS = 10_000, 6
DEEPEP = "void deep_ep::intranode::dispatch<8, 768, 8192>(int4*, float*)"
ONE_SHOT = "void (anonymous namespace)::one_shot_all_reduce_kernel<float, 16, 2>(float**, float*)"
OWN = "my_kernel(float*)"


def gpu_job(rank, world, kernel, late_us=0, scope=None, inner=None, cat="cpu_op"):
    """A GPU rank's Kineto trace: a step computes for 3 ms (and late_us), then runs `kernel` until 8 ms, then 1 ms more.
    The kernel is launched inside a span called `scope`, if any, and inside it in one called `inner`."""
    events, correlation = [], 0
    for i in range(STEPS):
        begin = 1_000_000 + i * STEP_US
        events.append(span(f"ProfilerStep#{i}", begin, STEP_US, cat="user_annotation"))
        for name, at, start, dur in (("compute", 100, 1000, 3000 + late_us), (kernel, 400, 4000 + late_us, 4000 - late_us),
                                     ("update", 700, 8000, 1000)):
            correlation += 1
            if name == kernel and scope:
                events.append(span(scope, begin + at - 100, 200, cat=cat))
            if name == kernel and inner:
                events.append(span(inner, begin + at - 50, 100))
            events.append(span("cudaLaunchKernel", begin + at, 10, cat="cuda_runtime", correlation=correlation))
            events.append(span(name, begin + start, dur, tid=7, pid=0, cat="kernel", stream=7, correlation=correlation, device=0))
        events.append(span("cudaDeviceSynchronize", begin + 900, 8_200, cat="cuda_runtime"))
    return {"schemaVersion": 1, "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": world}, "traceEvents": events}


class Communication(Case):
    def replay(self, *traces, form="--json"):
        for i, trace in enumerate(traces):
            self.write(f"job/rank{i}.json", trace)
        result = dpro("replay", self.path("job"), *([form] if form else []))
        self.assert_code(result, DONE)
        return result.json if form else result.out

    def test_kernels_of_other_libraries_communicate(self):
        for kernel, kind in ((DEEPEP, "all_to_all"), (ONE_SHOT, "all_reduce"),
                             ("void vllm::cross_device_reduce_2stage<float, 2>(vllm::RankData*)", "all_reduce")):
            with self.subTest(kernel):
                facts = self.replay(gpu_job(0, 2, kernel), gpu_job(1, 2, kernel, late_us=1500))
                rank = facts["ranks"][0]
                self.assertTrue(facts["trace"]["communication_recognised"])
                self.assertAlmostEqual(rank["communication_ms"], 2.5, delta=0.05)
                self.assertAlmostEqual(rank["exposed_communication_ms"], 2.5, delta=0.05)
                # rank 1 computes for longer: what rank 0 spends in the kernel until then is waiting
                self.assertAlmostEqual(rank["wait_for_peers_ms"], 1.5, delta=0.05)
                self.assertAlmostEqual(rank["forward_ms"] + rank["update_ms"], 4.0, delta=0.05)
                self.assertAlmostEqual(facts["predicted"]["iteration_ms"], STEP_US / 1000, delta=0.05)
                self.assertEqual([c["kind"] for c in facts["collectives"]], [kind])

    def test_what_is_launched_in_a_range_named_for_a_collective_communicates(self):
        for scope, inner, cat, known in (("symm_mem::two_shot_all_reduce_", None, "cpu_op", True),
                                         ("vllm::all_reduce", None, "cpu_op", True),
                                         ("all_to_all", None, "user_annotation", True),
                                         ("all_to_all", "aten::copy_", "user_annotation", False),
                                         ("symm_mem::fused_all_gather_matmul", None, "cpu_op", False),
                                         ("forward", None, "user_annotation", False)):
            with self.subTest(scope=scope, inner=inner):
                facts = self.replay(*(gpu_job(r, 2, OWN, scope=scope, inner=inner, cat=cat) for r in range(2)))
                self.assertEqual(facts["trace"]["communication_recognised"], known)
                self.assertAlmostEqual(facts["ranks"][0]["communication_ms"], 4.0 if known else 0, delta=0.05)

    def test_none_of_a_job_of_several_ranks_is_said_to_be_unrecognised(self):
        traces = [gpu_job(r, 2, OWN) for r in range(2)]
        text = self.replay(*traces, form=None)
        self.assertNotIn("none in this trace", text)
        self.assertRegex(text, r"none was recognised in most iterations, but the\s+job has 2 ranks")
        self.assertNotIn("computation dominates", text)
        facts = self.replay(*traces)
        self.assertFalse(facts["trace"]["communication_recognised"])
        self.assertTrue(any("no communication was recognised" in w for w in facts["warnings"]))
        self.assert_code(dpro("replay", self.path("job"), "-o", self.path("out")), DONE)
        self.assertIn("none was recognised", read_text(self.path("out", "report.html")))

    def test_what_most_steps_do_not_communicate_is_not_said_to_be_unrecognised_in_all(self):
        traces = [gpu_job(r, 2, DEEPEP) for r in range(2)]
        for trace in traces:
            for i, event in enumerate([e for e in trace["traceEvents"] if e["name"] == DEEPEP]):
                event["name"] = DEEPEP if i == 2 else OWN
        facts = self.replay(*traces)
        self.assertTrue(any("no communication was recognised in most iterations" in w for w in facts["warnings"]), facts["warnings"])
        self.assertIn("most iterations show no communication", dpro("whatif", self.path("job"), "--bandwidth", "2x").err)

    def test_the_number_of_ranks_is_not_changed_where_nothing_tells_what_they_are_to_each_other(self):
        for rank in range(2):
            self.write(f"job/rank{rank}.json", gpu_job(rank, 2, ONE_SHOT))
        result = dpro("whatif", self.path("job"), "--dp", "4")
        self.assert_code(result, USAGE)
        self.assertIn("the trace does not tell how the job is parallel; --dims says how", result.err)

    def test_a_job_of_one_rank_has_none(self):
        self.assertIn("none in this trace", self.replay(gpu_job(0, 1, OWN), form=None))

    def test_missing_ranks_are_said_whatever_was_recognised(self):
        for kernel in (OWN, DEEPEP, "nvshmemi_proxy_rma_entrypoint(int)"):
            with self.subTest(kernel):
                facts = self.replay(gpu_job(0, 64, kernel))
                self.assertTrue(any("1 of 64 ranks" in w for w in facts["warnings"]), facts["warnings"])
                self.assertRegex(self.replay(gpu_job(0, 64, kernel), form=None), r"1 of 64\s+ranks\s+recorded")

    def test_kernels_that_do_not_wait_for_each_other_are_left_as_they_were(self):
        """Low latency's dispatch may only send: the ranks' k-th ones are then apart, and none waits."""
        kernel = "void deep_ep::internode_ll::dispatch<true, 3, 10, 7168>(void*, float*)"
        early, late = gpu_job(0, 2, kernel), gpu_job(1, 2, kernel, late_us=2000)
        for event in early["traceEvents"]:
            if event["name"] == kernel:
                event["dur"] = 100
        facts = self.replay(early, late)
        self.assertAlmostEqual(facts["predicted"]["iteration_ms"], STEP_US / 1000, delta=0.05)
        self.assertEqual([r["wait_for_peers_ms"] for r in facts["ranks"]], [0, 0])
        self.assertAlmostEqual(facts["ranks"][0]["communication_ms"], 0.1, delta=0.01)

    def test_copies_between_gpus_are_communication(self):
        trace = gpu_job(0, 2, "Memcpy PtoP (Device -> Device)")
        for event in trace["traceEvents"]:
            if event["name"].startswith("Memcpy"):
                event["cat"] = "gpu_memcpy"
        facts = self.replay(trace)
        self.assertAlmostEqual(facts["ranks"][0]["communication_ms"], 4.0, delta=0.05)
        self.assertFalse(any("no communication was recognised" in w for w in facts["warnings"]), facts["warnings"])

    def test_the_shadow_of_a_range_on_a_stream_says_nothing_of_what_ops_launched_in_it(self):
        """Sharded training draws a range around an all-gather and the copies before it."""
        traces = [gpu_job(r, 2, OWN, scope="FSDP::all_gather", inner="aten::copy_", cat="user_annotation") for r in range(2)]
        for trace in traces:
            for kernel in [e for e in trace["traceEvents"] if e["name"] == OWN]:
                trace["traceEvents"].append(span("FSDP::all_gather", kernel["ts"] - 10, kernel["dur"] + 20, tid=7, pid=0,
                                                 cat="gpu_user_annotation"))
        self.assertFalse(self.replay(*traces)["trace"]["communication_recognised"])
