"""TensorFlow's profiles and graphs: XPlane, RunMetadata, GraphDef."""
import glob
import gzip
import os
import shutil
import statistics
import sys

from support import CAPTURED, DONE, INPUT, ROOT, USAGE, Case, dpro, read_json

sys.path.insert(0, os.path.join(ROOT, "bench"))
from wire import fields, message, number, raw_fields, varint

RING = os.path.join(CAPTURED, "tf-mwms-ring")
SERVER = os.path.join(CAPTURED, "tf-ps-v1")
HOROVOD = os.path.join(CAPTURED, "hvd-tf")


def inflated(path):
    with gzip.open(path) as file:
        return file.read()


def ops_of(path):
    """Names of the ops that a profile's host plane has events of, as node:Type."""
    names = set()
    for number, plane in fields(inflated(path)):
        if number != 1 or dict(fields(plane)).get(2) != b"/host:CPU":
            continue
        metadata, used = {}, set()
        for field, value in fields(plane):
            if field == 4:
                entry = dict(fields(dict(fields(value))[2]))
                metadata[entry.get(1, 0)] = entry.get(2, b"").decode()
            elif field == 3:
                used |= {dict(fields(event)).get(1, 0) for kind, event in fields(value) if kind == 4}
        names |= {metadata[i] for i in used}
    return {n for n in names if ":" in n and "::" not in n and ": " not in n}


def with_events(data, statistic, event):
    """A profile of which each event is what event(itself, its content, the statistic's ids) makes of it."""
    out = b""
    for kind, plane, raw in raw_fields(data):
        if kind != 1:
            out += raw
            continue
        metadata = (dict(fields(value)) for field, value in fields(plane) if field == 5)
        ids = {entry[1] for entry in metadata if dict(fields(entry[2])).get(2) == statistic}
        out += message(1, b"".join(part if field != 3 else message(3, b"".join(
            inner if number != 4 else event(inner, content, ids) for number, content, inner in raw_fields(value)))
            for field, value, part in raw_fields(plane)))
    return out


def without_marks(data):
    """A profile without the events that have a step_num."""
    return with_events(data, b"step_num", lambda raw, content, ids: b"" if any(
        number == 4 and dict(fields(stat)).get(1) in ids for number, stat in fields(content)) else raw)


def with_one_number(data):
    """A profile whose collectives all have the instance_key 7."""
    def renumbered(stat, raw, ids):
        told = dict(fields(stat))
        return message(4, number(1, told[1]) + number(next(k for k in (3, 4) if k in told), 7)) if told.get(1) in ids else raw

    return with_events(data, b"instance_key", lambda raw, content, ids: message(4, b"".join(
        renumbered(stat, inner, ids) if field == 4 else inner for field, stat, inner in raw_fields(content))))


def without_transfer(data, text):
    """A RunMetadata without the transfers whose label has the text."""
    steps = b""
    for number, value, raw in raw_fields(data):
        if number == 1:  # step_stats
            value = b"".join(message(1, b"".join(part for kind, node, part in raw_fields(device) if kind != 2 or not (
                dict(fields(node)).get(1) == b"RecvTensor" and text in dict(fields(node)).get(8, b""))))
                for field, device in fields(value) if field == 1)
            raw = message(1, value)
        steps += raw
    return steps


def nodes_of(path):
    """Names of the nodes of a RunMetadata's partition graphs."""
    return {dict(fields(node))[1].decode() for number, graph in fields(inflated(path)) if number == 3
            for field, node in fields(graph) if field == 1}


class Horovod(Case):
    def test_every_op_of_the_profile_is_a_node_of_the_graph_that_ran(self):
        for rank in (0, 1):
            profile = os.path.join(HOROVOD, f"worker{rank}.xplane.pb.gz")
            graph = os.path.join(HOROVOD, f"runmeta_first_rank{rank}.pb.gz")
            ops = ops_of(profile)
            self.assertEqual(len(ops), 117)
            self.assertEqual({op.rsplit(":", 1)[0] for op in ops} - nodes_of(graph), set())
            said = dpro("replay", "-vv", "--no-validate", profile, graph)
            self.assert_code(said, DONE)
            self.assertRegex(said.err, rf"runmeta_first_rank{rank}.pb.gz: 819 of 819 ops of rank {rank} are nodes of it")


class Ring(Case):
    @classmethod
    def setUpClass(cls):
        cls.facts = dpro("replay", "--json", RING).json
        cls.truth = read_json(os.path.join(RING, "metadata.json"))

    def copy(self, *patterns):
        for pattern in patterns:
            for path in glob.glob(os.path.join(RING, pattern)):
                shutil.copy(path, self.folder)
        return self.folder

    def test_every_op_of_the_profile_is_a_node_of_the_graph_that_ran(self):
        profile, graph = os.path.join(RING, "worker0.xplane.pb.gz"), os.path.join(RING, "runmeta_first_rank0.pb.gz")
        ops, nodes = ops_of(profile), nodes_of(graph)
        self.assertEqual(len(ops), 328)
        self.assertEqual({op.rsplit(":", 1)[0] for op in ops} - nodes, set())
        said = dpro("replay", "-vv", "--no-validate", profile, graph)
        self.assert_code(said, DONE)
        self.assertRegex(said.err, r"runmeta_first_rank0.pb.gz: 2,?296 of 2,?296 ops of rank 0 are nodes of it")

    def test_every_byte_of_the_collectives_is_sent_and_received(self):
        transport = self.facts["transport"]
        self.assertEqual(transport["sent_bytes"], transport["paired_bytes"])
        self.assertEqual((transport["collectives"], transport["collectives_tied"]), (14, 14))
        ring = self.facts["collectives"][0]
        self.assertEqual((ring["kind"], ring["count"], ring["messages"], ring["pattern"]), ("all_reduce", 1, 4, "ring"))

    def test_collectives_of_the_same_number_in_each_iteration_are_told_apart(self):
        self.copy("runmeta*", "net*")
        for rank in (0, 1):
            name = f"worker{rank}.xplane.pb"
            self.write(name, with_one_number(inflated(os.path.join(RING, name + ".gz"))))
        facts = self.assert_replays(self.folder)
        transport = facts["transport"]
        self.assertEqual((transport["collectives"], transport["collectives_tied"]), (14, 14))
        self.assertEqual(facts["collectives"][0]["pattern"], "ring")

    def test_collectives_of_different_iterations_are_not_taken_for_one(self):
        self.copy("runmeta*", "net*")
        later = inflated(os.path.join(RING, "worker1.xplane.pb.gz"))
        self.write("worker0.xplane.pb", with_one_number(inflated(os.path.join(RING, "worker0.xplane.pb.gz"))))
        start = next(value for value in self.numbers(later) if value > 10**18)  # profile_start_time
        self.write("worker1.xplane.pb", with_one_number(later).replace(varint(start), varint(start + 38_000_000)))
        tied = self.assert_replays(self.folder)["transport"]["collectives_tied"]
        self.assertLess(tied, 14)

    def test_chunks_that_were_written_as_one_are_taken_apart(self):
        self.copy("runmeta*", "worker*", "net_worker1*")
        lines = inflated(os.path.join(RING, "net_worker0.csv.gz")).decode().splitlines(keepends=True)
        rows = [line.split(",") for line in lines]
        sends = [i for i, row in enumerate(rows) if row[0] == "sendmsg" and int(row[3]) > 10**6]
        first, second = sends[-4:-2]  # both of one collective
        stream, offset, size = rows[first][1], int(rows[first][2]), int(rows[first][3])
        self.assertEqual((rows[second][1], offset < int(rows[second][2])), (stream, True))
        between = [i for i in range(first + 1, second + 1) if rows[i][1] == stream]
        self.assertEqual(sum(int(rows[i][3]) for i in between if rows[i][0] == "sendmsg") + offset + size,
                         int(rows[second][2]) + int(rows[second][3]))
        rows[second][2:4] = [str(offset), str(int(rows[second][2]) + int(rows[second][3]) - offset)]
        gone = {first, *(i for i in between[:-1] if rows[i][0] == "sendmsg")}
        self.write("net_worker0.csv", "".join(",".join(row) for i, row in enumerate(rows) if i not in gone))
        transport = self.assert_replays(self.folder)["transport"]
        self.assertEqual((transport["collectives"], transport["collectives_tied"]), (14, 14))

    def test_without_a_graph_names_tell_the_phases(self):
        self.copy("worker*", "net*")
        for rank, known in zip(self.assert_replays(self.folder)["ranks"], self.facts["ranks"]):
            for phase in ("forward_ms", "backward_ms", "update_ms"):
                self.assertAlmostEqual(rank[phase] / known[phase], 1, delta=0.15, msg=phase)

    def test_without_marks_iterations_begin_where_the_executor_is_called(self):
        self.copy("runmeta*", "net*")
        for rank in (0, 1):
            name = f"worker{rank}.xplane.pb"
            with open(self.path(name), "wb") as file:
                file.write(without_marks(inflated(os.path.join(RING, name + ".gz"))))
        facts = self.assert_replays(self.folder)
        self.assertEqual(facts["trace"]["iterations"], 6)
        self.assertAlmostEqual(facts["measured"]["iteration_ms"] / self.facts["measured"]["iteration_ms"], 1, delta=0.01)
        self.assertLess(abs(facts["error_pct"]), 5)

    def test_the_replay_is_within_5_percent_of_what_was_measured(self):
        measured = statistics.mean(self.truth["profiled_ms"])
        self.assertLess(abs(self.facts["predicted"]["iteration_ms"] / measured - 1), 0.05)
        std = 100 * statistics.stdev(self.truth["profiled_ms"]) / measured
        self.assertLess(self.facts["validation"]["mean_abs_error_pct"], max(5, std))

    def test_the_facts_are_tensorflow_s(self):
        self.assertEqual(self.facts["trace"]["framework"], "tensorflow")
        self.assertEqual((self.facts["trace"]["ranks_present"], self.facts["trace"]["world_size"]), ([0, 1], 2))
        self.assertEqual(self.facts["trace"]["iterations"], 7)
        kinds = {file["kind"] for file in self.facts["trace"]["files"]}
        self.assertEqual(kinds, {"xplane", "run-metadata", "graph-def", "transport-csv"})
        self.assertEqual(self.facts["warnings"], [])

    def test_gradients_that_travel_together_are_known_by_name_and_size(self):
        plan = os.path.join(self.folder, "plan")
        facts = self.assert_json("optimize", "-o", plan, RING)
        buckets = read_json(os.path.join(plan, "plan.json"))["communication"]["buckets"]
        names = [name for bucket in buckets for name in bucket["parameters"]]
        self.assertEqual((len(names), len(set(names))), (16, 16))
        self.assertIn("gradient_tape/sequential_1/conv2d_1/convolution/Conv2DBackpropFilter:1", names)
        packed = 4 * 553738  # the concat's shape in graph_rank0.pb
        self.assertLess(abs(sum(bucket["size_bytes"] for bucket in buckets) - packed), len(names))
        self.assertLess(abs(facts["misfit_pct"]), 15)

    def test_without_sizes_no_plan_is_made_up(self):
        said = dpro("optimize", self.copy("worker*", "runmeta*"))
        self.assert_error(said, INPUT, "does not say how large the gradients are")

    def test_without_graphs_it_goes_on_and_says_what_is_lost(self):
        facts = self.assert_json("replay", self.copy("worker*", "net_*"))
        self.assertRegex("\n".join(facts["warnings"]), "no graph beside 2 of 2 profiles: dependencies are read off")
        self.assertLess(abs(facts["error_pct"]), 15)

    def test_graphs_alone_are_refused_in_one_line(self):
        said = dpro("replay", self.copy("runmeta*", "graph*"))
        self.assert_error(said, INPUT, "a graph holds no times; add the profile")

    def test_the_graph_of_another_job_is_told(self):
        self.copy("worker*")
        for rank in range(2):
            shutil.copy(os.path.join(HOROVOD, f"runmeta_first_rank{rank}.pb.gz"), self.folder)
        facts = self.assert_json("replay", self.folder)
        self.assertRegex("\n".join(facts["warnings"]), "ops of rank 0's profile (is a node|are no nodes) of this graph")

    def test_profiles_of_two_runs_are_refused(self):
        self.copy("worker0*")
        later = inflated(os.path.join(RING, "worker1.xplane.pb.gz"))
        start = next(value for value in self.numbers(later) if value > 10**18)  # profile_start_time
        self.write("worker1.xplane.pb", later.replace(varint(start), varint(start + 2 * 3600 * 10**9)))
        self.assert_error(dpro("replay", self.folder), INPUT, "minutes apart, so not of one run")

    def numbers(self, data):
        for plane in (value for number, value in fields(data) if number == 1):
            for stat in (value for number, value in fields(plane) if number == 6):
                yield from (value for _, value in fields(stat) if isinstance(value, int))

    def test_a_rank_of_which_the_date_is_cut_off_is_left_out(self):
        self.copy("worker1*", "runmeta*")
        whole = inflated(os.path.join(RING, "worker0.xplane.pb.gz"))
        self.write("worker0.xplane.pb", whole[:int(len(whole) * 0.97)])
        facts = self.assert_json("replay", self.folder)
        self.assertEqual((facts["trace"]["ranks_present"], facts["trace"]["world_size"]), ([1], 2))
        self.assertRegex("\n".join(facts["warnings"]), "worker0.xplane.pb: does not say when it began.*left out")
        self.assertLess(facts["measured"]["iteration_ms"], 60)

    def test_a_cut_profile_is_used_as_far_as_it_goes(self):
        whole = inflated(os.path.join(RING, "worker0.xplane.pb.gz"))
        for share in (0.2, 0.9, 0.999):
            self.copy("runmeta_first_rank0*")
            self.write("worker0.xplane.pb", whole[:int(len(whole) * share)])
            said = dpro("replay", "--json", self.folder)
            self.assert_code(said, DONE, INPUT)
            if said.code == DONE:
                self.assertRegex("\n".join(said.json["warnings"]), "of the protobuf: the file ends in the middle")
            else:
                self.assert_error(said, INPUT, "no TensorFlow ops in it")


class Gpu(Case):
    """Made-up profiles in the shape of real ones: kernels on a stream, their launches on the executor's thread, a wait for the
    stream at the end of a step."""
    STEP_US, STEPS, KERNEL_US = 25_000, 5, 10_000
    HOST = ["train", "a/MatMul:MatMul", "b/MatMul:MatMul", "void ns::gemm<float>(int)", "cuStreamSynchronize", "FunctionRun"]
    TRAIN, A, B, LAUNCH, SYNC, RUN = range(1, 7)
    STEP_NUM, CORRELATION = 1, 2

    def event(self, meta, start_us, dur_us, stat=0, value=0):
        content = number(1, meta) + number(2, start_us * 10**6) + number(3, dur_us * 10**6)
        return message(4, content + (message(4, number(1, stat) + number(4, value)) if stat else b""))

    def plane(self, name, lines, metas):
        content = message(2, name)
        for i, (line, events) in enumerate(lines):
            content += message(3, number(1, i + 1) + message(2, line) + number(3, 1) + b"".join(events))
        for field, names in ((4, metas), (5, ["step_num", "correlation_id"])):
            for i, text in enumerate(names):
                entry = number(1, i + 1) + message(2, number(1, i + 1) + message(2, text.encode()))
                content += message(field, entry)
        return message(1, content)

    def profile(self, launches=True):
        main, pool, stream = [], [], []
        for step in range(self.STEPS):
            at = step * self.STEP_US
            main.append(self.event(self.TRAIN, at, self.STEP_US - 100, self.STEP_NUM, step))
            main.append(self.event(self.RUN, at + 10, 50))
            for k, op in enumerate((self.A, self.B)):
                pool.append(self.event(op, at + 100 + 100 * k, 80))
                if launches:
                    pool.append(self.event(self.LAUNCH, at + 110 + 100 * k, 20, self.CORRELATION, 10 * step + k + 1))
                stream.append(self.event(1, at + 150 + k * self.KERNEL_US, self.KERNEL_US, self.CORRELATION, 10 * step + k + 1))
            if launches:
                waits = at + 150 + 2 * self.KERNEL_US - (at + 300) + 20
                main.append(self.event(self.SYNC, at + 300, waits, self.CORRELATION, 10 * step + 9))
        return (self.plane(b"/host:CPU", [(b"python", main), (b"tf_gpu_private_0/1", pool)], self.HOST)
                + self.plane(b"/device:GPU:0", [(b"Stream #7(Compute)", stream)], ["ns::gemm"]))

    def graph(self):
        node = b"".join(message(1, message(1, name) + message(2, b"MatMul") + b"".join(message(3, i) for i in inputs))
                        for name, inputs in ((b"a/MatMul", []), (b"b/MatMul", [b"a/MatMul"])))
        return message(3, node)

    def replay(self, **options):
        for name, content in (("worker0.xplane.pb", self.profile(**options)), ("runmeta_rank0.pb", self.graph())):
            with open(self.path(name), "wb") as file:
                file.write(content)
        return self.assert_replays(self.folder)

    def test_launches_streams_and_waits_are_one_chain(self):
        facts = self.replay()
        self.assertLess(abs(facts["error_pct"]), 1)
        self.assertAlmostEqual(facts["critical_path"]["by_kind_ms"]["FW"], 20.01)  # two kernels, and the op until its launch
        chain = [op["name"] for op in facts["critical_path"]["ops"]]
        self.assertEqual(chain, ["FunctionRun", "a/MatMul", "void ns::gemm<float>(int)", "ns::gemm", "ns::gemm", "cuStreamSynchronize",
                                 "iteration boundary"])

    def test_without_launches_kernels_keep_their_stream_s_order(self):
        facts = self.replay(launches=False)
        self.assertLess(abs(facts["error_pct"]), 1)


class ParameterServer(Case):
    """A session of one client, two workers and a parameter server; one file is one step of all of them."""

    @classmethod
    def setUpClass(cls):
        cls.facts = dpro("replay", "--json", SERVER).json
        cls.truth = read_json(os.path.join(SERVER, "metadata.json"))

    def test_the_replay_is_within_5_percent_of_what_was_measured(self):
        measured = statistics.mean(self.truth["profiled_ms"])
        self.assertLess(abs(self.facts["predicted"]["iteration_ms"] / measured - 1), 0.05)
        std = 100 * statistics.stdev(self.truth["profiled_ms"]) / measured
        self.assertLess(self.facts["validation"]["mean_abs_error_pct"], max(5, std))

    def test_workers_are_the_ranks_and_the_server_is_none(self):
        self.assertEqual((self.facts["trace"]["ranks_present"], self.facts["trace"]["world_size"]), ([0, 1], 2))
        self.assertEqual(self.facts["trace"]["iterations"], 7)
        self.assertEqual(self.facts["warnings"], [])

    def test_the_next_step_is_about_servers_though_workers_idle_longest(self):
        step = next(cause["next_step"] for cause in dpro("diagnose", "--json", SERVER).json["causes"] if cause["cause"] == "communication")
        self.assertIn("the gain of more servers (--servers)", step)

    def test_pushes_and_pulls_are_on_the_critical_path(self):
        kinds = self.facts["critical_path"]["by_kind_ms"]
        # the largest variable has 2 MiB; it takes 16.8 ms at 1 Gbit/s, each way
        self.assertGreater(kinds["PUSH"], 14)
        self.assertGreater(kinds["PULL"], 14)

    def test_the_model_has_its_variables_and_is_within_5_percent_of_what_was_measured(self):
        said = dpro("whatif", "--json", SERVER)
        self.assert_code(said, DONE)
        facts = said.json
        self.assertLess(abs(facts["misfit_pct"]), 5)
        for layer in ("conv0", "conv1", "fc0", "fc1"):
            self.assertIn('"%s/w"' % layer, said.out)
            self.assertIn('"%s/b"' % layer, said.out)

    def test_one_server_leaves_nothing_to_choose(self):
        facts = self.assert_json("optimize", SERVER)
        self.assertFalse(facts["best"]["helps"])
        self.assertEqual(facts["stack"], "tensorflow-ps")

    def test_slower_links_and_more_servers_count(self):
        def ms(*options):
            return dpro("whatif", "--json", *options, SERVER).json["predicted"]["iteration_ms"]
        own = ms()
        self.assertGreater(ms("--bandwidth", "0.5x"), own + 25)   # 2 MiB at 1 Gbit/s, each way once
        self.assertLess(ms("--bandwidth", "10x"), own - 8)
        self.assertLessEqual(ms("--bandwidth", "20x"), ms("--bandwidth", "8x"))
        self.assertLess(ms("--servers", "2"), own)
        self.assert_error(dpro("whatif", "--bigarray-bound", "1000", SERVER), USAGE, "only in MXNet")
        self.assert_error(dpro("whatif", "--server-bandwidth", "2x", SERVER), USAGE, "--bandwidth changes both")

    def test_a_transfer_that_was_left_out_arrived_before_it_was_taken(self):
        for step in range(7):
            data = inflated(os.path.join(SERVER, f"runmeta_step{step}.pb.gz"))
            cut = without_transfer(data, b"tower1/gradients/tower1/BiasAdd_grad/BiasAddGrad ") if step == 0 else data
            self.assertEqual(len(cut) < len(data), step == 0)
            self.write(f"runmeta_step{step}.pb", cut)
        for path in glob.glob(os.path.join(SERVER, "net_*.gz")):
            shutil.copy(path, self.folder)
        self.assertLess(abs(dpro("replay", "--json", self.folder).json["error_pct"]), 3)

    def test_every_event_that_is_no_bookkeeping_is_a_node(self):
        said = dpro("replay", "-vv", "--no-validate", SERVER)
        self.assert_code(said, DONE)
        counts = [line.split(": ")[-1] for line in said.err.splitlines() if "are nodes of it" in line]
        self.assertEqual(len(counts), 3)
        for count in counts:
            found, every = count.split(" ops")[0].split(" of ")
            self.assertEqual(found, every)

    def test_one_step_is_enough_to_see_its_makespan(self):
        facts = self.assert_json("replay", os.path.join(SERVER, "runmeta_step3.pb.gz"))
        self.assertLess(abs(facts["error_pct"]), 10)

    def test_cut_steps_are_used_as_far_as_they_go(self):
        whole = inflated(os.path.join(SERVER, "runmeta_step3.pb.gz"))
        for share in (0.1, 0.3, 0.5, 0.9):
            said = dpro("replay", "--json", self.write("runmeta_step3.pb", whole[:int(len(whole) * share)]))
            self.assert_code(said, DONE, INPUT)
            if said.code == DONE:
                self.assertRegex("\n".join(said.json["warnings"]), "of the protobuf: the file ends in the middle")
