"""What XLA's profiler (XSpace) holds of JAX: several devices in a file, TPUs, collectives."""
import os
import sys

from support import DONE, INPUT, ROOT, Case, dpro

sys.path.insert(0, os.path.join(ROOT, "bench"))
from wire import message, number

MS = 1_000_000_000  # picoseconds
STEP_MS, STEPS = 10, 6


class Plane:
    """An XPlane, written field by field as xplane.proto numbers them."""

    def __init__(self, name):
        self.name, self.events, self.stats, self.lines = name, {}, {}, []

    def id_of(self, table, name):
        return table.setdefault(name, len(table) + 1)

    def stat(self, name, value):
        ref = isinstance(value, str)
        value = self.id_of(self.stats, value) if ref else value
        return number(1, self.id_of(self.stats, name)) + number(7 if ref else 4, value & (1 << 64) - 1)

    def line(self, name, events, line_id=None):
        """events: (name, or (name, display name), start in ms, duration in ms, statistics)"""
        out = number(1, line_id if line_id is not None else len(self.lines) + 1) + message(2, name.encode()) + number(3, 1000)
        for event, start, dur, stats in events:
            out += message(4, number(1, self.id_of(self.events, event)) + number(2, int(start * MS)) + number(3, int(dur * MS)) +
                           b"".join(message(4, self.stat(k, v)) for k, v in stats.items()))
        self.lines.append(out)

    def bytes(self):
        out = message(2, self.name.encode())
        for line in self.lines:
            out += message(3, line)
        for event, i in self.events.items():
            name, shown = event if isinstance(event, tuple) else (event, "")
            value = number(1, i) + message(2, name.encode()) + (message(4, shown.encode()) if shown else b"")
            out += message(4, number(1, i) + message(2, value))
        for name, i in self.stats.items():
            out += message(5, number(1, i) + message(2, number(1, i) + message(2, name.encode())))
        return out


def space(*planes, host="vm"):
    return b"".join(message(1, plane.bytes()) for plane in planes) + message(4, host.encode())


def versions():
    plane = Plane("/host:metadata")
    plane.id_of(plane.stats, "jax_version")
    return plane


def jax_cpu(devices, late=(), op="all-reduce", first=0, jax=True, threads=3):
    """JAX on CPU devices: ops of all devices on the threads of a pool. A step computes for 3 ms (4 where late), meets the
    other devices in `op` until 8 ms, and updates for 1 ms; the next one begins 1 ms later."""
    plane, lines = Plane("/host:CPU"), [[] for _ in range(threads)]
    for i in range(STEPS):
        for d in devices:
            begin, took = i * STEP_MS, 4 if d in late else 3
            stats = {"hlo_op": "x", "hlo_module": "jit_step", "program_id": 12, "run_id": -1000 + i, "device_ordinal": d}
            line = lines[(i + d) % threads]  # which thread it is is chance
            line.append(("ThunkExecutor::Execute", begin, 9, {}))
            for name, start, dur in (("dot.1", 0, took), (op, took, 8 - took), ("end: " + op, 8, 0), ("subtract_fusion", 8, 1)):
                line.append((name, begin + start, dur, {} if name.startswith("end: ") else stats))
    plane.line("python", [("PjitFunction(step)" if jax else "call", i * STEP_MS, 1, {}) for i in range(STEPS)])
    for k, events in enumerate(lines):
        plane.line(f"tf_XLAEigen/{k}", events)
    meeting = ", ".join(str(d) for d in range(first, first + len(devices)))
    plane.stat("name", f"all reduce RendezvousKey{{run_id=RunId: 1, global_devices=[{meeting}], num_local_participants=8}}")
    return space(*([versions()] if jax else []), plane)


def tpu(devices, late=(), modules=True, steps=False, text="%all-reduce.7 = f32[256,1024]{1,0:T(8,128)} all-reduce(f32[256,1024] "
        "%fusion.3), replica_groups={{0,1},{2,3}}, to_apply=%add"):
    """A TPU host: a plane a device, with its ops, a loop around two of them, and the runs of its program."""
    planes = []
    for d in devices:
        plane, ops, runs, marks = Plane(f"/device:TPU:{d}"), [], [], []
        for i in range(STEPS):
            begin, took = i * STEP_MS, 4 if d in late else 3
            ops += [(("%fusion.3 = f32[256,1024]{1,0} fusion(f32[8] %p)", "fusion.3"), begin, took, {}),
                    ((text, text[1:].split(" ")[0]), begin + took, 8 - took, {}),
                    (("%while.1 = (s32[], f32[8]) while((s32[], f32[8]) %t)", "while.1"), begin + 8, 1, {}),
                    (("%add.1 = f32[8]{0} add(f32[8] %a, f32[8] %b)", "add.1"), begin + 8, 0.4, {}),
                    (("%add.2 = f32[8]{0} add(f32[8] %a, f32[8] %b)", "add.2"), begin + 8.5, 0.4, {})]
            runs.append(("jit_train_step(123)", begin, 9, {"run_id": 7 + i}))
            marks.append((str(i), begin, 9, {}))
        if steps:
            plane.line("Steps", marks)
        if modules:
            plane.line("XLA Modules", runs)
        plane.line("XLA Ops", ops)
        planes.append(plane)
    return space(*planes)


def jax_gpu(devices, late=()):
    """JAX on GPUs: one Python thread marks each step and launches the work of all of them, 1 us each."""
    host, python, gpus = Plane("/host:CPU"), [], {d: [] for d in devices}
    for i in range(STEPS):
        python.append(("train", i * STEP_MS, STEP_MS, {"step_num": i, "_r": 1}))
        for d in devices:
            took = 4 if d in late else 3
            for k, (name, start, dur) in enumerate((("gemm", 1, took), ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(int)", 1 + took, 7 - took),
                                                    ("loop_add_fusion", 8, 1))):
                stats = {"correlation_id": 1 + (i * 16 + d) * 4 + k}
                python.append(("cuLaunchKernel", i * STEP_MS + 0.1 + 0.01 * d + 0.002 * k, 0.001, stats))
                gpus[d].append((name, i * STEP_MS + start, dur, stats))
        python.append(("cuStreamSynchronize", i * STEP_MS + 0.5, 9, {"correlation_id": 100000 + i}))
    host.line("python", python)
    planes = [versions(), host]
    for d in devices:
        planes.append(Plane(f"/device:GPU:{d}"))
        planes[-1].line("Stream #13(Compute)", gpus[d], line_id=13)
    return space(*planes)


class Devices(Case):
    def facts(self, *args):
        return self.assert_json("replay", *args)

    def check(self, facts, n, waits):
        """Rank 1 computes for 4 ms, the others for 3 and wait `waits` ms for it."""
        self.assertEqual((facts["trace"]["framework"], facts["trace"]["world_size"]), ("jax", n))
        self.assertEqual(facts["trace"]["ranks_present"], list(range(n)))
        self.assertAlmostEqual(facts["measured"]["iteration_ms"], STEP_MS, delta=0.01)
        self.assertAlmostEqual(facts["predicted"]["iteration_ms"], STEP_MS, delta=0.01)
        for rank in facts["ranks"]:
            with self.subTest(rank=rank["rank"]):
                self.assertAlmostEqual(rank["wait_for_peers_ms"], 0 if rank["rank"] == 1 else waits, delta=0.01)
                self.assertAlmostEqual(rank["communication_ms"], 4, delta=0.01)

    def test_each_cpu_device_of_jax_is_a_rank(self):
        self.write("plugins/profile/day/vm.xplane.pb", jax_cpu(range(8), late=(1,)))
        self.check(self.facts(self.path("plugins")), 8, 1)

    def test_devices_of_several_processes_count_through(self):
        """Their numbers are the job's own, as JAX's are on CPUs, or each host's, as a TPU's are."""
        self.write("a/host0.xplane.pb", jax_cpu((0, 1), late=(1,)))
        self.write("a/host1.xplane.pb", jax_cpu((2048, 2049)))
        self.check(self.facts(self.path("a")), 4, 1)
        self.write("c/p0/plugins/profile/day/vm.xplane.pb", jax_cpu((0, 1), late=(1,)))
        self.write("c/p1/plugins/profile/day/vm.xplane.pb", jax_cpu((2048, 2049)))
        self.check(self.facts(self.path("c")), 4, 1)
        self.write("b/rank0.xplane.pb", jax_cpu((0, 1), late=(1,)))
        self.write("b/rank1.xplane.pb", jax_cpu((0, 1)))
        self.check(self.facts(self.path("b")), 4, 1)

    def test_one_device_has_no_communication(self):
        facts = self.facts(self.write("one.xplane.pb", jax_cpu((0,), op="dot.2")))
        self.assertEqual((facts["trace"]["framework"], facts["trace"]["ranks_present"]), ("jax", [0]))
        self.assertAlmostEqual(facts["predicted"]["iteration_ms"], STEP_MS, delta=0.01)
        self.assertIn("none in this trace", dpro("replay", self.path("one.xplane.pb")).out)

    def test_devices_that_are_missing_are_said(self):
        """Two of four are here; which take part XLA's meetings tell."""
        plane = Plane("/host:CPU")
        plane.stat("name", "RendezvousKey{global_devices=[0, 1, 2, 3], }")
        facts = self.facts(self.write("two.xplane.pb", jax_cpu((0, 1)) + message(1, plane.bytes())))
        self.assertEqual(facts["trace"]["world_size"], 4)
        self.assertTrue(any("2 of 4 ranks" in w for w in facts["warnings"]), facts["warnings"])

    def test_each_tpu_is_a_rank(self):
        for steps, modules in ((False, True), (True, True), (True, False)):
            with self.subTest(steps=steps, modules=modules):
                data = tpu(range(4), late=(1,), steps=steps, modules=modules)
                facts = self.facts(self.write("t.xplane.pb", space(versions()) + data))
                self.assertEqual((facts["trace"]["framework"], facts["trace"]["ranks_present"]), ("jax", [0, 1, 2, 3]))
                self.assertAlmostEqual(facts["predicted"]["iteration_ms"], STEP_MS, delta=0.01)
                # replica groups {0,1} and {2,3}: only rank 0 waits for rank 1
                waits = [round(r["wait_for_peers_ms"], 2) for r in facts["ranks"]]
                self.assertEqual(waits, [1, 0, 0, 0])
                # the loop is not counted beside the ops in it
                self.assertAlmostEqual(facts["ranks"][0]["forward_ms"], 3.8, delta=0.01)

    def test_each_gpu_of_a_process_is_a_rank(self):
        facts = self.facts(self.write("g.xplane.pb", jax_gpu(range(4), late=(1,))))
        self.assertEqual((facts["trace"]["framework"], facts["trace"]["ranks_present"]), ("jax", [0, 1, 2, 3]))
        self.assertAlmostEqual(facts["predicted"]["iteration_ms"], STEP_MS, delta=0.1)
        for rank in facts["ranks"]:
            self.assertAlmostEqual(rank["wait_for_peers_ms"], 0 if rank["rank"] == 1 else 1, delta=0.01)
            self.assertAlmostEqual(rank["communication_ms"], 3, delta=0.01)
        facts = self.facts(self.write("g.xplane.pb", jax_gpu((0,))))
        self.assertEqual((facts["trace"]["framework"], facts["trace"]["ranks_present"]), ("jax", [0]))

    def test_an_instruction_communicates_whatever_it_is_called(self):
        text = "%psum.7 = f32[256,1024]{1,0} all-reduce(f32[256,1024] %fusion.3), replica_groups={}"
        facts = self.facts(self.write("t.xplane.pb", tpu(range(2), text=text)))
        self.assertEqual(facts["trace"]["framework"], "xla")
        self.assertAlmostEqual(facts["ranks"][0]["communication_ms"], 5, delta=0.01)

    def test_waiting_for_a_collective_that_was_begun_is_exposed_communication(self):
        text = "%all-gather-done.7 = f32[256,1024]{1,0} all-gather-done(f32[256] %all-gather-start.7)"
        facts = self.facts(self.write("t.xplane.pb", tpu(range(2), late=(1,), text=text)))
        self.assertEqual([r["wait_for_peers_ms"] for r in facts["ranks"]], [0, 0])
        self.assertAlmostEqual(facts["ranks"][0]["exposed_communication_ms"], 5, delta=0.01)
        self.assertAlmostEqual(facts["ranks"][1]["exposed_communication_ms"], 4, delta=0.01)

    def test_a_profile_without_ops_of_devices_is_refused_with_the_reason(self):
        python = Plane("/host:CPU")
        python.line("python", [("PjitFunction(step)", 0, 1, {})])
        for data in (space(versions(), python), space(Plane("/device:TPU:0"))):
            self.assert_error(dpro("replay", self.write("e.xplane.pb", data)), INPUT, "without an op of a device")

    def test_advice_is_not_tensorflows(self):
        self.write("job/vm.xplane.pb", jax_cpu(range(2), late=(1,)))
        self.write("job/vm.trace.json.gz", {"traceEvents": [{"ph": "X", "name": "a", "pid": 1, "tid": 1, "ts": 1, "dur": 1}]})
        result = dpro("replay", self.path("job"))
        self.assert_code(result, DONE)
        self.assertNotRegex(result.out + result.err, r"(?i)tensorflow|RunMetadata|tf\.profiler|PyTorch")
