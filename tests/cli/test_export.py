"""dpro export: SQLite, GraphML, Chakra's and Perfetto's traces, each read back by a reader of the test's own."""
import collections
import csv
import heapq
import json
import os
import sqlite3
import subprocess
import sys
import unittest
import xml.etree.ElementTree

from support import BUILD, BUNDLED, DONE, ROOT, SANITIZED, SYSTEM, USAGE, Case, dpro, read_json

DATA = os.path.join(ROOT, "tests", "data")
NOTEBOOK = os.path.join(ROOT, ".venv-notebook", "bin")
GRAPHML = "{http://graphml.graphdrawing.org/xmlns}"


def varint(data, at):
    value = shift = 0
    while True:
        value |= (data[at] & 127) << shift
        shift, at = shift + 7, at + 1
        if data[at - 1] < 128:
            return value, at


def fields(data):
    """{number: [values]} of a protobuf message."""
    found, at = collections.defaultdict(list), 0
    while at < len(data):
        tag, at = varint(data, at)
        if tag & 7 == 0:
            value, at = varint(data, at)
        else:
            n, at = varint(data, at) if tag & 7 == 2 else ({1: 8, 5: 4}[tag & 7], at)
            value, at = data[at:at + n], at + n
            if len(value) != n:
                raise ValueError("a field is cut")
        found[tag >> 3].append(value)
    return found


def varints(data):
    at, values = 0, []
    while at < len(data):
        value, at = varint(data, at)
        values.append(value)
    return values


def replay(db):
    """ms of an iteration: Algorithm 1 of the paper's replayer on the tables, two iterations of mean times, then each measured one.
    A device runs what got ready first; a later iteration's ops wait their turn. Of ranks that meet: when the last one is through."""
    ops = db.execute("SELECT device, spare, dur_ns, gap_ns FROM ops ORDER BY id").fetchall()
    n, times = len(ops), [[(dur, gap) for *_, dur, gap in ops]] * 2
    flat = db.execute("SELECT sample_dur_ns, sample_gap_ns FROM op_times ORDER BY id").fetchall()
    times += [flat[i:i + n] for i in range(0, len(flat), n)]
    later = {0: [[] for _ in ops], 1: [[] for _ in ops]}
    waits = {0: [0] * n, 1: [0] * n}
    for source, target, into_next in db.execute('SELECT "from", "to", next FROM edges'):
        later[into_next][source].append(target)
        waits[into_next][target] += 1
    ends, known, queues, clocks = {}, collections.defaultdict(list), collections.defaultdict(list), collections.defaultdict(int)

    def put(copy, op):
        before = sorted(known.pop((copy, op), ()))
        before = before[:len(before) - (ops[op][1] or 0)]
        heapq.heappush(queues[ops[op][0]], (before[-1] if before else 0, copy, op))

    for copy in range(len(times)):
        for op in range(n):
            if waits[0][op] + (waits[1][op] if copy else 0) == 0:
                put(copy, op)
    while any(queues.values()):
        start, _, _, _, device = min((max(queue[0][0], clocks[device]), *queue[0], device if device is not None else -1)
                                     for device, queue in queues.items() if queue)
        device = None if device == -1 else device
        _, copy, op = heapq.heappop(queues[device])
        ends[copy, op] = start + times[copy][op][1] + times[copy][op][0]
        if device is not None:
            clocks[device] = ends[copy, op]
        for into_next in (0, 1):
            for target in later[into_next][op] if copy + into_next < len(times) else ():
                known[copy + into_next, target].append(ends[copy, op])
                if len(known[copy + into_next, target]) == waits[0][target] + (waits[1][target] if copy + into_next else 0):
                    put(copy + into_next, target)
    boundaries = [boundary for boundary, in db.execute("SELECT boundary FROM ranks WHERE rank >= 0")]
    first, last = (max(ends[copy, op] for op in boundaries) for copy in (1, len(times) - 1))
    return (last - first) / (len(times) - 2) / 1e6


class Export(Case):
    def export(self, what, name, trace=BUNDLED, *more):
        self.assert_code(dpro("export", "-q", "--" + what, self.path(name), *more, trace), DONE)
        return self.path(name)

    def database(self, job):
        return sqlite3.connect(self.export("sqlite", job + ".db", os.path.join(DATA, job)))

    def test_a_database_holds_what_csv_does(self):
        for job in ("torch-fsdp-gloo-n2-memory", "tf-ps-n2"):
            db = self.database(job)
            folder = self.export("csv", job, os.path.join(DATA, job))
            for name in os.listdir(folder):
                with open(os.path.join(folder, name), newline="", encoding="utf-8") as file:
                    rows = list(csv.reader(file))
                found = db.execute('SELECT * FROM "%s" ORDER BY %s' % (name[:-4], ", ".join(rows[0][:rows[0].index("id") + 1])))
                self.assertEqual([column[0] for column in found.description], rows[0])
                for text, values in zip(rows[1:], found.fetchall(), strict=True):
                    for as_text, value in zip(text, values, strict=True):
                        same = as_text == ("" if value is None else str(value))
                        if not same:
                            self.assertAlmostEqual(float(as_text), value, places=8)
            told = db.execute("SELECT COUNT(*), COUNT(DISTINCT \"table\"), MIN(LENGTH(meaning)) FROM columns").fetchone()
            self.assertGreater(told[0], 100)
            self.assertEqual(told[1], len(os.listdir(folder)))
            self.assertGreater(told[2], 5)
            self.assertEqual(db.execute("PRAGMA integrity_check").fetchall(), [("ok",)])

    @unittest.skipIf(SANITIZED or os.path.realpath(BUILD) != os.path.realpath(os.path.join(ROOT, "build")),
                     "no library that an interpreter can load")
    def test_parquet_holds_what_the_database_does(self):
        for job in ("torch-fsdp-gloo-n2-memory", "tf-ps-n2"):
            trace, folder = os.path.join(DATA, job), self.path("parquet-" + job)
            ran = dpro("export", "--parquet", folder, trace, "--steps", "0:", env={"PATH": NOTEBOOK + os.pathsep + os.environ["PATH"]})
            if "needs the package" in ran.err:
                self.skipTest("no pyarrow: tools/venv.sh notebook installs it")
            self.assert_code(ran, DONE)
            db = self.database(job)
            read = "import json, sys, pyarrow.parquet as p; print(json.dumps([(t.column_names, [c.to_pylist() for c in t.columns], " \
                   "t.schema.field(-1).metadata[b'meaning'].decode()) for t in map(p.read_table, sys.argv[1:])]))"
            names = sorted(os.listdir(folder))
            tables = json.loads(subprocess.run([os.path.join(NOTEBOOK, "python"), "-c", read, *(os.path.join(folder, n) for n in names)],
                                               stdout=subprocess.PIPE, check=True, timeout=120).stdout)
            told = {name for name, in db.execute('SELECT DISTINCT "table" FROM columns')}
            self.assertLessEqual({name[:-8] for name in names}, told)
            self.assertIn("ops.parquet", names)
            for name, (columns, values, meaning) in zip(names, tables, strict=True):
                order = ", ".join(columns[:columns.index("id") + 1])
                found = db.execute('SELECT * FROM "%s" ORDER BY %s' % (name[:-8], order))
                self.assertEqual([column[0] for column in found.description], columns)
                self.assertGreater(len(meaning), 5)
                for row, wanted in zip(zip(*values), found.fetchall(), strict=True):
                    for value, other in zip(row, wanted, strict=True):
                        if value != other and (value or None) != (other or None):
                            self.assertAlmostEqual(value, other, places=5, msg=name)

    def test_parquet_says_what_it_needs(self):
        os.mkdir(self.path("bin"))
        ask = ("export", "--parquet", self.path("a"), BUNDLED)
        self.assert_error(dpro(*ask, env={"PATH": self.path("bin")}), USAGE, "python3: no such program")
        os.symlink(sys.executable, self.path("bin", "python3"))
        without = {"PATH": self.path("bin"), "PYTHONPATH": self.path("none")}
        self.write("none/pyarrow.py", "raise ImportError")
        self.assert_error(dpro(*ask, env=without), USAGE, "needs the package pyarrow: pip install pyarrow")
        self.assertFalse(os.path.exists(self.path("a")))

    @unittest.skipUnless(os.path.exists(os.path.join(NOTEBOOK, "python")), "no package pyarrow: tools/venv.sh notebook installs it")
    def test_parquet_is_all_or_nothing(self):
        os.mkdir(self.path("bin"))
        self.write("bin/python3", "#!/bin/sh\nulimit -f 200\nexec %s/python \"$@\"\n" % NOTEBOOK)  # a disk that is full at 200 kB
        os.chmod(self.path("bin", "python3"), 0o755)
        said = dpro("export", "-q", "--parquet", self.path("a"), BUNDLED, env={"PATH": self.path("bin") + os.pathsep + os.environ["PATH"]})
        self.assert_error(said, SYSTEM, "a: can't be written: File too large")
        self.assertEqual(os.listdir(self.path("a")), [])

    def test_the_paper_s_replay_of_the_exported_graph_takes_as_long(self):
        for job in ("torch-pp-gloo-n2", "torch-nccl-conv-h200-memory"):
            with self.subTest(job=job):
                predicted = dpro("replay", "--json", "--no-validate", os.path.join(DATA, job)).json["predicted"]["iteration_ms"]
                self.assertAlmostEqual(replay(self.database(job)), predicted, places=5)

    def test_graphml_has_the_ops_and_edges(self):
        db = self.database("torch-ddp-gloo-gpt-n2")
        number = dpro("replay", "--json", "--no-validate", BUNDLED).json["measured"]["iterations"][0]
        for more, rank, times in ((), None, "dur_ns"), (("--ranks", "1"), 1, "dur_ns"), (("--iteration", str(number)), None, None):
            root = xml.etree.ElementTree.parse(self.export("graphml", "job.graphml", BUNDLED, *more)).getroot()
            nodes = {int(node.get("id")): {data.get("key"): data.text for data in node} for node in root.iter(GRAPHML + "node")}
            edges = {(int(edge.get("source")), int(edge.get("target")), len(edge)) for edge in root.iter(GRAPHML + "edge")}
            where = "" if rank is None else "WHERE rank = %d" % rank
            ops = db.execute("SELECT id, name, kind, dur_ns, gap_ns FROM ops " + where).fetchall()
            if times is None:
                first = db.execute("SELECT sample_dur_ns, sample_gap_ns FROM op_times WHERE id < ?", (len(ops),)).fetchall()
                ops = [(*op[:3], *sample) for op, sample in zip(ops, first, strict=True)]
            self.assertEqual({op: (node["name"], node["kind"], int(node["dur_ns"]), int(node["gap_ns"])) for op, node in nodes.items()},
                             {op[0]: op[1:] for op in ops})
            self.assertEqual(edges, {edge for edge in db.execute('SELECT "from", "to", next FROM edges')
                                     if edge[0] in nodes and edge[1] in nodes})
            self.assertEqual(sum("boundary" in node for node in nodes.values()), 2 if rank is None else 1)

    def test_chakra_traces_are_whole(self):
        for job, kinds in (("torch-pp-gloo-n2", {4, 5, 6}), ("torch-fsdp-tp-gloo-n4", {4, 7}), ("torch-nccl-conv-h200-memory", {4})):
            trace = os.path.join(DATA, job)
            folder, db = self.export("chakra", "chakra-" + job, trace), self.database(job)
            groups = read_json(os.path.join(folder, "comm_group.json"))
            sent, collectives, seen = [], collections.defaultdict(list), set()
            ranks = [rank for rank, in db.execute("SELECT rank FROM ranks WHERE rank >= 0")]
            for rank in ranks:
                with open(os.path.join(folder, "job.%d.et" % rank), "rb") as file:
                    data = file.read()
                at, messages = 0, []
                while at < len(data):
                    n, at = varint(data, at)
                    messages.append(fields(data[at:at + n]))
                    at += n
                self.assertEqual(messages[0][1], [b"0.0.4"])
                known, waited_for, busy = set(), set(), 0
                for node in messages[1:]:
                    deps = varints(node[4][0]) + varints(node[5][0])
                    self.assertLessEqual(set(deps), known, "a node comes after what it waits for: no circle")
                    waited_for |= set(deps)
                    known.add(node[1][0])
                    busy += node[7][0]
                    seen.add(node[3][0])
                    attributes = {a[1][0].decode(): a for a in map(fields, node[10])}
                    self.assertIn("is_cpu_op", attributes)
                    if node[3][0] == 7:
                        group = attributes["pg_name"][29][0].decode()
                        self.assertIn(rank, groups[group])
                        collectives[group, rank].append((attributes["comm_type"][9][0], attributes["comm_size"][9][0]))
                    elif node[3][0] in (5, 6):
                        ends = tuple(attributes[name][7][0] for name in ("comm_src", "comm_dst", "comm_tag"))
                        self.assertEqual(ends[node[3][0] - 5], rank)
                        sent.append((ends, attributes["comm_size"][9][0]))
                self.assertEqual(known - waited_for, {messages[-1][1][0]}, "only the iteration's end has no successor")
                index = ranks.index(rank)
                left_out, = db.execute("SELECT SUM(dur_ns + gap_ns) FROM ops WHERE rank = ? AND id NOT IN (%s)" %
                                       ",".join(map(str, known)), (index,)).fetchone()
                all_ns, n_devices = db.execute("SELECT SUM(dur_ns + gap_ns), COUNT(DISTINCT device) FROM ops WHERE rank = ?",
                                               (index,)).fetchone()
                # rounding leaves half a microsecond a device, and as much of each op without one
                self.assertAlmostEqual(busy, (all_ns - (left_out or 0)) / 1e3, delta=n_devices + 200)
            self.assertEqual(seen, kinds)
            self.assertEqual(set(collections.Counter(sent).values()) or {2}, {2}, "each message has its two ends")
            for group, members in groups.items():
                self.assertEqual(len({tuple(sorted(collectives[group, rank])) for rank in members if rank in ranks}), 1)

    def test_chakra_has_no_word_for_servers(self):
        self.assert_error(dpro("export", "--chakra", self.path("none"), os.path.join(DATA, "tf-ps-n2")), USAGE, "parameter servers")
        self.assertFalse(os.path.exists(self.path("none")))

    def test_perfetto_s_trace_holds_the_timeline(self):
        for job in ("torch-ddp-gloo-gpt-n2-memory", "torch-nccl-conv-h200-memory", "torch-pp-gloo-n2"):
            with open(self.export("perfetto", "job.pftrace", os.path.join(DATA, job)), "rb") as file:
                packets = [fields(packet) for packet in fields(file.read())[1]]
            tracks = [fields(packet[60][0]) for packet in packets if 60 in packet]
            events = [(packet[8][0], fields(packet[11][0])) for packet in packets if 11 in packet]
            names = {track[1][0]: track[2][0].decode() for track in tracks if 2 in track}
            self.assertEqual(len({track[1][0] for track in tracks}), len(tracks))
            open_slices, flows, slices, counted = collections.Counter(), collections.defaultdict(list), [], 0
            on_track = collections.defaultdict(list)
            for at, event in events:
                self.assertIn(event[11][0], {track[1][0] for track in tracks})
                if event[9][0] == 4:
                    counted += 1
                    continue
                open_slices[event[11][0]] += 1 if event[9][0] == 1 else -1
                self.assertIn(open_slices[event[11][0]], (0, 1))
                if event[9][0] == 1:
                    slices.append([names.get(event[11][0]), event[23][0].decode(), at])
                else:
                    slices[-1].append(at)
                    on_track[event[11][0]].append((slices[-1][2], -at))
                for ends, numbers in enumerate((event[47], event[48])):
                    for number in numbers:
                        flows[number].append(ends)
            for found in on_track.values():  # nested or apart: viewers draw what overlaps in part wrongly
                outer = []
                for start, end in sorted(found):
                    outer = [until for until in outer if until > start]
                    self.assertLessEqual(-end, min(outer, default=-end))
                    outer.append(-end)
            self.assertEqual(counted > 10, not job.startswith("torch-pp"))
            self.assertGreater(len(flows), 10)
            self.assertTrue(all(sorted(ends) == [0, 1] for ends in flows.values()))
            db = self.database(job)
            drawn = db.execute("SELECT COUNT(*) FROM ops JOIN devices ON devices.id = ops.device WHERE dur_ns > 0").fetchone()[0]
            replayed = [one for one in slices if one[0] and one[0].endswith("replayed") and not one[1].startswith("waiting")]
            self.assertGreaterEqual(len(replayed), drawn)
            path = [end - start for track, _, start, end in slices if track == "critical path"]
            self.assertEqual(sum(path), db.execute("SELECT SUM(dur_ns) FROM critical_path").fetchone()[0])

    def test_what_is_wrong_is_told(self):
        self.assert_error(dpro("export", "--sqlite", self.path("none", "a.db"), BUNDLED), SYSTEM, "a.db: can't be written: No such")
        self.assert_error(dpro("export", "--sqlite", self.path(""), BUNDLED), SYSTEM, "no file that a database could replace")
        for form in ("sqlite", "graphml", "perfetto"):
            self.write_recording("job")
            trace = self.path("job", "host0", "rank0", "kineto.json")
            with open(trace, "rb") as file:
                before = file.read()
            self.assert_error(dpro("export", "--" + form, trace, self.path("job")), USAGE, "a part of the job's own trace")
            with open(trace, "rb") as file:
                self.assertEqual(file.read(), before)
        for form in ("graphml", "perfetto", "sqlite"):
            if os.path.exists("/dev/full") and not os.path.isfile("/dev/full"):
                self.assert_error(dpro("export", "--" + form, "/dev/full", BUNDLED), SYSTEM, "/dev/full")
        self.assert_error(dpro("export", "--csv", self.path("a"), "--ranks", "1", BUNDLED), USAGE, "--ranks chooses what --graphml")
        self.assert_error(dpro("export", "--csv", self.path("a"), "--iteration", "1", BUNDLED), USAGE, "--iteration chooses")
        self.assert_error(dpro("export", BUNDLED, "--graphml", self.path("a"), "--ranks", "7"), USAGE, "no rank 7 to write")
        self.assert_error(dpro("export", "--csv", self.path("a"), "--sqlite", self.path("b"), BUNDLED), USAGE, "one thing at a time")
        for ranks in ("x", "1-", "2-1", "1-2-3", "-1", "1x"):
            self.assert_error(dpro("export", "--graphml", self.path("a"), "--ranks", ranks, BUNDLED), USAGE, "not a rank, or A-B")
        self.assertFalse(os.path.exists(self.path("a")))
