"""Files that say what memory was used beside the profile: snapshots of GPUs as Python pickles them, memory.json, RunMetadata."""
import glob
import gzip
import json
import os
import pickle
import shutil
import struct

from support import BUNDLED, DONE, INPUT, Case, dpro, job

ROOT = os.path.dirname(BUNDLED)
EPOCH_US = 1_700_000_000_000_000  # baseTimeNanoseconds of job()
MIB = 1 << 20


class Touch:
    """What must not be done when a file is read."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


def snapshot(n_blocks=5):
    """Blocks of 1, 2, 3, ... MiB taken in the last iteration of job() and given back in the other order; and those of a
    process that has two GPUs and uses the second one."""
    entries = []
    begin_us = EPOCH_US + 1_000_000_000 + 3 * 93_000

    def add(action, addr, size, at_us):
        entries.append({"action": action, "addr": addr, "size": size, "stream": 0, "time_us": begin_us + at_us,
                        "frames": [{"filename": "train.py", "line": at_us, "name": "forward"}]})

    for i in range(n_blocks):
        address = 0x7F0000000000 + i * 20 * MIB
        add("segment_alloc", address, 20 * MIB, 1000 + i)
        add("alloc", address, (i + 1) * MIB, 1000 + i)
    for i in reversed(range(n_blocks)):
        address = 0x7F0000000000 + i * 20 * MIB
        add("free_requested", address, (i + 1) * MIB, 50_000 + i)
        add("free_completed", address, (i + 1) * MIB, 50_000 + i)
    segments = [{"device": 1, "address": 0x7F0000000000 + i * 20 * MIB, "total_size": 20 * MIB, "allocated_size": 0,
                 "active_size": 0, "requested_size": 0, "stream": 0, "segment_type": "large", "segment_pool_id": (0, 0),
                 "is_expandable": False, "blocks": [{"address": 0x7F0000000000 + i * 20 * MIB, "size": 20 * MIB,
                                                     "requested_size": 0, "state": "inactive", "frames": []}]}
                for i in range(n_blocks)]
    return {"segments": segments, "device_traces": [[], entries],
            "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "", "expandable_segments": False}}


def fields(message):
    """(number, value) of a protobuf message; bytes for what has a length."""
    at = 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(message):
        tag = varint()
        if tag & 7 == 0:
            yield tag >> 3, varint()
        else:
            size = {1: 8, 5: 4}.get(tag & 7)
            size = varint() if size is None else size
            yield tag >> 3, message[at:at + size]
            at += size


def records(path):
    """What each worker of a session took (microseconds, bytes), by its number."""
    with gzip.open(path) as file:
        run_metadata = file.read()
    taken = {}
    for number, step_stats in fields(run_metadata):
        for _, device in fields(step_stats) if number == 1 else ():
            name = next(value for number, value in fields(device) if number == 1).decode()
            for number, node in fields(device):
                for number, memory in fields(node) if number == 2 else ():
                    for kind, record in fields(memory) if number == 6 else ():
                        if kind == 6:
                            is_what = dict(fields(record))
                            size = struct.unpack("<q", struct.pack("<Q", is_what.get(2, 0)))[0]
                            taken.setdefault(int(name.split("task:")[1].split("/")[0]), []).append((is_what[1], size))
    return taken


class MemoryFiles(Case):
    def replay(self):
        done = dpro("replay", "-q", "--no-validate", "--json", self.path("job"))
        self.assert_code(done, DONE)
        return done.json

    def with_snapshot(self, name, content):
        for old in glob.glob(self.path("job", "rank0", "snapshot*")):
            os.remove(old)
        self.write("job/rank0/kineto.json", job(world=1, communicates=False)[0])
        self.write("job/rank0/" + name, content)
        return self.replay()

    def test_a_snapshot_is_the_same_in_any_form(self):
        whole = snapshot()
        forms = {f"snapshot{p}.pickle": pickle.dumps(whole, protocol=p) for p in range(2, pickle.HIGHEST_PROTOCOL + 1)}
        forms["snapshot.pickle.gz"] = pickle.dumps(whole)
        forms["snapshot.json"] = json.dumps(whole)
        for name, content in forms.items():
            facts = self.with_snapshot(name, content)
            self.assertEqual([f["kind"] for f in facts["trace"]["files"]], ["kineto", "memory-snapshot"], name)
            self.assertEqual(facts["trace"]["files"][1]["events"], 15)
            rank, = facts["memory"]["ranks"]
            self.assertEqual(rank["measured_peak_bytes"], 15 * MIB, name)

    def test_a_pickle_that_would_run_code_is_not_run(self):
        facts = self.with_snapshot("snapshot.pickle", pickle.dumps({"segments": [Touch(self.path("touched"))]}))
        warning, = [w for w in facts["warnings"] if "snapshot" in w]
        self.assertIn("asks Python to make objects; only plain data is read", warning)
        self.assertFalse(os.path.exists(self.path("touched")))

    def test_a_snapshot_cut_anywhere_gives_one_warning(self):
        whole = pickle.dumps(snapshot())
        for share in (0.1, 0.5, 0.9):
            facts = self.with_snapshot("snapshot.pickle", whole[:int(len(whole) * share)])
            warning, = [w for w in facts["warnings"] if "snapshot" in w]
            self.assertIn("ends in the middle", warning)

    def test_a_snapshot_alone_has_no_times(self):
        self.assert_error(dpro("replay", self.write("snapshot.pickle", pickle.dumps(snapshot()))), INPUT,
                          "snapshot of PyTorch.s GPU memory, which has no times of ops.*dpro replay FOLDER")

    def test_other_pickles_are_passed_over(self):
        facts = self.with_snapshot("snapshot.pickle", pickle.dumps({"weights": [1, 2, 3]}))
        self.assertEqual(facts["warnings"], self.with_snapshot("snapshot.txt", "").get("warnings"))

    def test_a_broken_memory_json_gives_one_warning(self):
        for text in ('{"schema":"dpro.memory/1","device":"cpu","blocks":[["parameter","a",64',
                     '{"schema":"dpro.memory/1","device":"cpu","blocks":[["parameter","a",64,1e30],7],"modules":[]}'):
            self.write("job/rank0/kineto.json", job(world=1, communicates=False)[0])
            self.write("job/rank0/memory.json", text)
            self.assertEqual(len([w for w in self.replay()["warnings"] if "memory.json" in w]), 1)

    def test_what_a_cut_recording_lacks_is_not_told(self):
        """A step of which only the beginning is there has no peak; without what was there before nothing was measured."""
        recorded = os.path.join(ROOT, "torch-ddp-gloo-gpt-n2-memory")
        facts = dpro("replay", "-q", "--no-validate", "--json", recorded).json
        whole = facts["memory"]["ranks"][0]["peak_bytes"]
        told = {}
        for name, parts in (("kineto_et.json.gz", 8), ("kineto_et.json.gz", 2), ("memory.json", 2)):
            copy = self.path("%s-%d" % (name, parts))
            shutil.copytree(recorded, copy)
            for path in glob.glob(os.path.join(copy, "host*", "rank*", name)):
                os.chmod(path, 0o644)
                os.truncate(path, os.path.getsize(path) // parts)
            cut = dpro("replay", "-q", "--no-validate", "--json", copy).json
            self.assertEqual(cut["measured"], facts["measured"])  # times are of the other profile
            memory = cut["memory"]
            told[name, parts] = memory["ranks"] if memory else []
            self.assertEqual([r["measured_peak_bytes"] for r in told[name, parts]], [None] * len(told[name, parts]))
        self.assertEqual(told["kineto_et.json.gz", 8], [])
        self.assertAlmostEqual(told["kineto_et.json.gz", 2][0]["peak_bytes"] / whole, 1, delta=0.01)  # the step before is whole
        self.assertEqual(len(told["memory.json", 2]), 2)

    def test_what_a_session_took_is_what_its_records_add_up_to(self):
        folder = os.path.join(ROOT, "tf-session-collectives-n2")
        memory = dpro("replay", "-q", "--no-validate", "--json", folder).json["memory"]
        steps = [records(path) for path in glob.glob(os.path.join(folder, "**", "runmeta*"), recursive=True)]
        self.assertEqual(memory["source"], "allocations")
        self.assertEqual([rank["measured_peak_bytes"] for rank in memory["ranks"]], [None, None])  # variables are not in it
        for rank in memory["ranks"]:
            peaks = []
            for step in steps:
                alive, peak = 0, 0
                for _, size in sorted(step[rank["rank"]], key=lambda record: record[0]):
                    alive += size
                    peak = max(peak, alive)
                peaks.append(peak)
            nearest = min(peaks, key=lambda peak: abs(peak - rank["peak_bytes"]))
            self.assertLess(abs(rank["peak_bytes"] / nearest - 1), 0.01)
