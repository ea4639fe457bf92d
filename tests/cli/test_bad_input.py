"""Traces come truncated, duplicated, mixed up and wrong; disks fill up. Each case on its own."""
import contextlib
import gzip
import io
import json
import os
import pickle
import re
import shutil
import sqlite3
import struct
import subprocess
import tarfile
import threading

from support import BUNDLED, DONE, DPRO, INPUT, SYSTEM, Case, Result, dpro, job, read_json, read_text, span


def compact(trace):
    return json.dumps(trace, separators=(",", ":"))


class BadFiles(Case):
    def good(self, **options):
        """Two whole ranks in the folder's "job"; returns that folder."""
        return self.write_job("job", **options)

    def with_events(self, *events, world=1):
        """A whole rank with more events, which may be wrong; returns its file."""
        trace = job(world=world, communicates=False)[0]
        trace["traceEvents"] += events
        return self.write("rank0.json", compact(trace))

    def with_text(self, text):
        """A whole rank with one more event, given as JSON text."""
        whole = compact(job(world=1, communicates=False)[0])
        return self.write("rank0.json", whole.replace('"traceEvents":[', '"traceEvents":[' + text + ",", 1))

    # -- cut short

    def cut(self, name, share):
        with open(self.path(name), "rb+") as file:
            file.truncate(int(os.path.getsize(self.path(name)) * share))

    def assert_cut_is_told(self, facts):
        self.assertTrue(facts["warnings"])
        self.assertEqual([f["truncated"] for f in facts["trace"]["files"]], [False, True])

    def test_of_a_file_that_is_cut_what_is_whole_is_replayed(self):
        for ending, iterations in ((".json", 8), (".json.gz", 40)):
            for rank, trace in enumerate(job(iterations=iterations)):
                self.write(f"job{ending}/rank{rank}{ending}", trace)
            self.cut(f"job{ending}/rank1{ending}", 0.7)
            self.assert_cut_is_told(self.assert_replays(self.path(f"job{ending}")))

    def test_truncated_bundled_gzip_replays_what_is_whole(self):
        for rank in (0, 1):
            shutil.copy(os.path.join(BUNDLED, f"kineto_rank{rank}.json.gz"), self.folder)
        self.cut("kineto_rank1.json.gz", 0.8)
        self.assert_cut_is_told(self.assert_replays(self.folder))

    def test_what_a_cut_profile_lacks_is_no_threads_that_was_not_watched(self):
        shutil.copytree(BUNDLED, self.folder, dirs_exist_ok=True)
        self.cut("kineto_rank1.json.gz", 0.6)
        said = " ".join(dpro("replay", self.folder).out.split())
        self.assertIn("rank 1 is left out", said)
        self.assertNotIn("no profile shows", said)

    def test_a_rank_of_which_no_whole_iteration_is_left_is_left_out(self):
        """Whichever it is; the conclusions say so, and the others are replayed."""
        for lost in (0, 2):
            text = [compact(trace) for trace in job(world=3, iterations=20)]
            within = text[lost].index("evaluate_function") + 400
            for end, said in ((within, rf"rank {lost} is left out: \S*rank{lost}.json is cut off before a whole iteration"),
                              (100, "the 0 entries before it are whole"), (12, "before its format shows; it is left out")):
                with self.subTest(lost=lost, end=end):
                    for rank in range(3):
                        self.write(f"{lost}/rank{rank}.json", text[rank][:end if rank == lost else None])
                    facts = self.assert_replays(self.path(f"{lost}"))
                    here = [rank for rank in range(3) if rank != lost]
                    self.assertEqual(facts["trace"]["ranks_present"], here)
                    self.assertEqual([rank["rank"] for rank in facts["ranks"]], here)
                    warnings = " ".join(facts["warnings"])
                    self.assertRegex(warnings, rf"rank{lost}.json: byte \d+")
                    self.assertRegex(warnings, said)
                    self.assertNotIn("was the profiler active", warnings)
                    self.assertIn("2 of 3 ranks are here", warnings)

    def test_profiles_that_are_all_cut_within_their_first_iteration_are_refused(self):
        """It looks whole where the step's mark was written first; a step that stops halfway is no measurement."""
        for rank in (0, 1):
            shutil.copy(os.path.join(BUNDLED, f"kineto_rank{rank}.json.gz"), self.folder)
        with gzip.open(self.path("kineto_rank1.json.gz")) as file:
            text = file.read(300000)
        os.remove(self.path("kineto_rank1.json.gz"))
        self.write("kineto_rank1.json.gz", text)
        facts = self.assert_replays(self.folder)
        self.assertEqual(facts["trace"]["ranks_present"], [0])
        self.assertIn("rank 1 is left out: ", " ".join(facts["warnings"]))
        os.remove(self.path("kineto_rank0.json.gz"))
        self.assert_error(dpro("replay", self.folder), INPUT, "no whole iteration of rank 1 is left: .*kineto_rank1.json.gz is cut off")

    def test_damaged_gzip_survives(self):
        path = self.write("rank0.json.gz", job(world=1, iterations=40)[0])
        with open(path, "rb+") as file:
            file.seek(os.path.getsize(path) // 2)
            file.write(b"\xff" * 64)
        self.assert_survives(path)

    # -- not what it should be

    def test_what_is_no_trace_is_refused_by_its_name(self):
        whole = compact(job(world=1)[0])
        packed = gzip.compress(whole.encode())
        for name, content in (
                ("cut.json", whole[:40]), ("cut.json", packed[:20]), ("empty.json", ""), ("empty.json.gz", ""),
                ("text.json", "Dear diary\n"),
                *(("other.json", text) for text in ("{}", "[]", '{"a":[1,2,{"b":null}]}', '"traceEvents"', "12")),
                ("none.json", {"schemaVersion": 1, "traceEvents": []}), ("random.json", bytes(range(256)) * 64), ("twice.json.gz", packed),
                # protobufs of endless numbers
                *(("x.pb", data) for data in (b"\x0a\x0e\x08\x01" + 12 * b"\xf2", b"\x0a\x7b\x8a", b"\x0a\x02\x8a\x8a"))):
            with self.subTest(name=name, content=str(content)[:40]):
                self.assert_error(dpro("replay", self.write(name, content), timeout=20), INPUT, re.escape(name))

    def test_other_files_beside_a_trace_are_passed_over(self):
        folder = self.good()
        self.write("job/notes.txt", "nothing to see")
        self.write("job/settings.json", {"lr": 0.1})
        self.write("job/.hidden.json", "{")
        self.assert_replays(folder)

    def test_files_of_other_formats_are_named_with_what_to_give_instead(self):
        def database(*tables):
            path = self.path("made.sqlite")
            with contextlib.closing(sqlite3.connect(path)) as made, made:
                for table in tables:
                    made.execute(f"CREATE TABLE {table} (start INT)")
            with open(path, "rb") as file:
                content = file.read()
            os.unlink(path)
            return content

        def message(*fields):
            """A message of Chakra's behind its length."""
            content = b"".join(tag + bytes([len(text)]) + text for tag, text in fields)
            return bytes([len(content)]) + content

        dump = {"version": "2.10", "nccl_version": "2.27.5", "pg_config": {}, "entries": [{"profiling_name": "nccl:all_reduce"}]}
        event = {"name": "x", "ph": "X", "ts": 1, "dur": 2, "tid": 1}
        attribute = b"\x0a\x06schema\xea\x01\x051.0.1"
        archive = io.BytesIO()
        with tarfile.open(fileobj=archive, mode="w") as tar:
            tar.addfile(tarfile.TarInfo("a"))
        ours = "not read it: give the trace of torch.profiler"
        for name, content, *patterns in (
                ("legacy.json", [dict(event, pid="CPU functions")], "torch's old profiler", ours),
                ("legacy_cuda.json", [dict(event, pid="CUDA Functions")], "torch's old profiler"),
                ("other.json", [dict(event, pid=1)], "Chrome trace whose events have no categories", ours),
                ("timeline.json", {"traceEvents": [
                    {"ph": "M", "name": "process_name", "pid": 0, "args": {"name": "/job:localhost/replica:0/task:0/device:GPU:0 Compute"}},
                    dict(event, pid=0, cat="Op", args={"name": "layer/MatMul", "op": "MatMul"})]}, "timeline of TensorFlow 1.*RunMetadata"),
                ("perfetto_trace.json", {"traceEvents": [
                    {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "/device:TPU:0"}}, dict(event, pid=1)]},
                 "JAX or TensorFlow.*xplane.pb"),
                ("roctracer.json", {"traceEvents": [{}, {"ph": "M", "name": "process_name", "pid": "2", "args": {"name": "CPU HIP API"}},
                                                    dict(event, pid="2", args={"BeginNs": "1", "EndNs": "2"})]}, "AMD's rocprof .JSON"),
                ("v3.json", {"rocprofiler-sdk-tool": [{"metadata": {}}]}, "AMD's rocprof .JSON"),
                ("results.csv", '"Index","KernelName","gpu-id","DispatchNs","BeginNs","EndNs"\n0,"k",0,1,2,3\n', "AMD's rocprof .CSV"),
                ("v3.csv", '"Kind","Agent_Id","Correlation_Id","Start_Timestamp"\n"KERNEL",1,1,1\n', "AMD's rocprof .CSV"),
                ("rank0.et", message((b"\x0a", b"1.0.2-chakra.0.0.4")) + bytes(64), "Chakra execution trace", ours),
                ("rank1.et", message((b"\x12", attribute), (b"\x12", attribute)) + bytes(64), "Chakra execution trace"),
                ("chakra.json", {"nodes": [{"id": 1, "name": "a", "data_deps": []}]}, "Chakra execution trace .JSON"),
                ("nccl_trace_rank_0", pickle.dumps(dump, 2), "flight recorder", ours),
                ("fr_4", pickle.dumps(dump, 4), "flight recorder"),
                ("fr.json", dump, "flight recorder"),
                ("r.nsys-rep", b"\x00\x01\x02 anything", "Nsight Systems", ours),
                ("r.sqlite", database("StringIds", "CUPTI_ACTIVITY_KIND_KERNEL"), "Nsight Systems", ours),
                ("results.db", database("rocpd_kernel_dispatch"), "rocprof .rocpd"),
                ("any.db", database("a"), "SQLite database"),
                ("inspector.log", '{"header":{"id":"0x1"},"metadata":{},"coll_perf":{"coll":"AllReduce"}}\n' * 2, "Inspector plugin", ours),
                ("ncclprof.json", [{"name": "AllReduce", "cat": "COLL", "ph": "b", "id": 1, "pid": 7, "tid": 1, "ts": 1}],
                 "NCCL's example profiler plugin"),
                ("events.out.tfevents.1", struct.pack("<QI", 24, 1) + b"\x09" + bytes(8) + b"\x1a\x0dbrain.Event:2" + bytes(8),
                 "tfevents"),
                ("t.pftrace", b"\x0a\x10\x50\x01\x40\x80\x01" + bytes(20), "Perfetto"),
                ("t.bin", b"\x0a\x10\x40\x80\x01\x50\x01" + bytes(20), "Perfetto"),
                ("weights.pickle", pickle.dumps({"weights": [1, 2]}), "Python pickle", ours),
                ("t.json.zst", b"\x28\xb5\x2f\xfd" + bytes(20), "compressed with zstd: unpack it"),
                ("t.tar", archive.getvalue(), "tar archive: unpack it"),
                ("t.tar.gz", archive.getvalue(), "tar archive: unpack it"),
                ("plan.json", {"schema": "dpro.plan/1", "communication": {}}, "file that dpro wrote, and no recording")):
            with self.subTest(name=name):
                path = self.write(name, content)
                self.assert_error(dpro("replay", path), INPUT, re.escape(path) + ": ", *patterns)
                self.assert_error(dpro("replay", self.path()), INPUT, "no trace in it that dpro reads; .*" + patterns[0])
                os.unlink(path)

    def test_an_empty_file_among_others_is_named(self):
        self.write_job("trace")
        self.write("trace/rank2.json", "")
        facts = self.assert_json("replay", self.path("trace"))
        self.assertIn("rank2.json: empty file, left out", " ".join(facts["warnings"]))

    # -- the wrong files together, or none

    def test_what_makes_no_job_is_refused(self):
        os.mkdir(self.path("empty"))
        self.good()
        self.write("job/again.json", job()[0])
        self.write("two/rank0.json", job(world=2)[0])
        self.write("two/rank1.json", job(world=4, start_us=9e13)[1])
        for args, *says in (([self.path("empty")], "empty"), ([self.path("*.json")], "no file matches"), ([self.path("two")], "two"),
                            ([self.path("job")], "rank 0", r"rank0\.json", r"again\.json"), ([BUNDLED, "--steps", "500:600"], "iteration"),
                            ([os.path.join(BUNDLED, "et_rank0.json.gz")], "et_rank0"),
                            ([self.path("nowhere.json")], r"nowhere\.json", "No such file")):
            with self.subTest(args=args):
                self.assert_error(dpro("replay", *args), INPUT, *says)

    def assert_taken_once(self, facts, *paths):
        self.assertEqual(len([w for w in facts["warnings"] if "the same file" in w and all(p in w for p in paths)]), 1)

    def test_a_file_named_twice_counts_once(self):
        path = self.write("rank0.json", job(world=1, communicates=False)[0])
        alone, twice = self.assert_replays(path), self.assert_replays(path, path)
        self.assertEqual(twice["predicted"], alone["predicted"])
        self.assert_taken_once(twice, path)

    def test_a_link_to_a_file_of_the_same_folder_counts_once(self):
        folder = self.good()
        alone = self.assert_replays(folder)
        os.symlink("rank0.json", os.path.join(folder, "a_latest.json"))
        linked = self.assert_replays(folder)
        self.assertEqual(linked["predicted"], alone["predicted"])
        self.assert_taken_once(linked, "a_latest.json", "rank0.json")
        self.assertIn("a_latest.json: the same file as", str(linked["warnings"]))  # the link is the copy
        os.symlink(".", os.path.join(folder, "again"))
        self.assertEqual(self.assert_replays(folder)["predicted"], alone["predicted"])

    def test_one_file_without_a_rank_may_stand_for_two(self):
        self.write("job/rank0.json", job(world=1, communicates=False)[0])
        os.symlink("rank0.json", self.path("job", "rank1.json"))
        self.assertEqual(len(self.assert_replays(self.path("job"))["ranks"]), 2)

    def two_windows(self, later_by):
        """Two recordings of one rank; a process counts up the ops that autograd records."""
        for folder, start_us, by in (("early", 1_000_000_000.0, 0), ("late", 1_002_000_000.0, later_by)):
            trace = job(world=1, communicates=False, start_us=start_us)[0]
            for event in trace["traceEvents"]:
                if "Sequence number" in event.get("args", {}):
                    event["args"]["Sequence number"] += by
            self.write(f"{folder}/rank0.json", trace)
        return self.path("early"), self.path("late")

    def test_two_windows_of_one_rank_are_joined(self):
        facts = self.assert_replays(*self.two_windows(later_by=1000))
        self.assertEqual(facts["trace"]["ranks_present"], [0])
        self.assertGreaterEqual(facts["trace"]["iterations"], 6)

    def test_two_runs_of_one_rank_are_not_averaged(self):
        result = dpro("replay", *self.two_windows(later_by=0))
        self.assert_error(result, INPUT, "early/rank0.json and .*late/rank0.json: both of rank 0, .* so of two runs; give one run's")

    # -- too little

    def test_a_trace_without_iterations_survives(self):
        events = [span(f"aten::op{i}", 1000.0 * i, 500 + 7 * i) for i in range(20)]
        self.assert_survives(self.write("rank0.json", {"traceEvents": events}))

    # -- wrong values

    def test_a_negative_duration_is_left_out_and_told(self):
        facts = self.assert_replays(self.with_events(span("aten::bad", 1_000_000_500.0, -5)))
        self.assertTrue(facts["warnings"])

    def test_zero_durations_are_fine(self):
        facts = self.assert_replays(self.with_events(*[span("aten::zero", 1_000_000_500.0, 0)] * 3))
        self.assertLessEqual(abs(facts["error_pct"]), 3)

    def test_only_zero_durations_survive(self):
        events = [span("aten::a", 10.0, 0), span("aten::b", 20.0, 0), span("ProfilerStep#1", 5.0, 0)]
        result = dpro("replay", self.write("rank0.json", {"traceEvents": events}), "--json")
        self.assert_code(result, DONE, INPUT)

    EVENT = {"ph": "X", "cat": "cpu_op", "name": "aten::bad", "pid": 100, "tid": 1, "ts": 1000000500, "dur": 5, "args": {}}

    def bad_event(self, **texts):
        """A whole rank with an event more, of which some members are these texts."""
        return self.with_text("{%s}" % ",".join(f'"{key}":{texts.get(key, json.dumps(value))}' for key, value in self.EVENT.items()))

    def test_nan_and_infinity_survive(self):
        for number in ("NaN", "Infinity", "-Infinity", "nan", "1e999"):
            with self.subTest(number=number):
                self.assert_survives(self.bad_event(dur=number))

    def test_members_beyond_all_reason_survive(self):
        deep = [200_000 * opening + "1" + 200_000 * closing for opening, closing in (("[", "]"), ('{"a":', "}"))]
        for texts in (
                {"ts": "99999999999999999999999", "dur": "1"}, {"dur": "9223372036854775808"}, {"ts": "-9223372036854775809", "dur": "1"},
                {"ts": "9223372036854775807", "dur": "9223372036854775807"}, {"ts": "1" + "0" * 4000, "dur": "1"},
                *({"args": '{"x":%s}' % value} for value in deep),
                *({"name": f'"aten::{text}"'} for text in (r"\ud800", r"\udc00\ud800", r"\u12", r"\q", "\\u0000", "a\tb")),
                {"name": '"ProfilerStep#99999999999999999999999"', "cat": '"user_annotation"'},
                {"ph": "1", "ts": '"x"', "dur": "[]", "name": "{}", "pid": "null", "tid": "true", "args": "3"},
                {"cat": '"kernel"', "args": '"none"'}, {"args": '{"External id":{},"Sequence number":"x","Input Dims":7}'}):
            with self.subTest(str(texts)[:60]):
                self.assert_code(dpro("replay", self.bad_event(**texts), "--json"), DONE, INPUT)

    def test_a_rank_that_no_job_has_is_left_out_and_told(self):
        for rank in (10_000_000, 2**31 - 1):
            trace = job(world=1, communicates=False)[0]
            trace["distributedInfo"] = {"rank": rank, "world_size": 4}
            facts = self.assert_replays(self.write("rank3.json", compact(trace)))
            self.assertEqual([r["rank"] for r in facts["ranks"]], [3])
            self.assertIn(f"rank {rank}", str(facts["warnings"]))

    def test_a_copy_of_no_duration_alone_is_replayed(self):
        copy = span("Memcpy HtoD", 1, 0, tid=7, cat="gpu_memcpy", stream=7)
        facts = self.assert_replays(self.write("rank0.json", {"schemaVersion": 1, "traceEvents": [copy]}))
        self.assertEqual(facts["predicted"]["iteration_ms"], 0)

    def test_entries_that_are_no_events_survive(self):
        for text in ("null", "7", '"text"', "[[]]", '{"ph":"X"}'):
            with self.subTest(text=text):
                self.assert_code(dpro("replay", self.with_text(text), "--json"), DONE, INPUT)

    def test_very_long_strings_survive(self):
        long = "x" * (64 << 20)
        result = dpro("replay", self.with_events(span(long, 1_000_000_500.0, 5), span("aten::a", 1_000_000_600.0, 5,
                                                                                     note=long)), "--json")
        self.assert_code(result, DONE, INPUT)
        self.assertLess(len(result.out), 8 << 20)

    # -- files that are not to be had

    def test_what_is_no_file_in_a_folder_survives(self):
        """A link to nowhere, a pipe that nobody writes to, and a folder of a trace's name."""
        for make in (lambda path: os.symlink(self.path("gone.json"), path), os.mkfifo, os.mkdir):
            make(os.path.join(self.good(), "rank7.json"))
            self.assert_code(dpro("replay", self.path("job"), "--json", timeout=60), DONE, INPUT)
            shutil.rmtree(self.path("job"))

    def test_an_unreadable_file_is_refused(self):
        path = self.write("rank0.json", job(world=1)[0])
        os.chmod(path, 0)
        self.assert_error(dpro_unprivileged(self, "replay", path), INPUT, r"rank0\.json", "Permission denied")

    def test_files_that_vanish_while_they_are_read_survive(self):
        stop = threading.Event()
        trace = compact(job(world=1, communicates=False)[0])

        def flicker():
            while not stop.is_set():
                self.write("flicker/rank0.json", trace)
                self.write("flicker/rank1.json", trace[: len(trace) // 2])
                for name in ("rank0.json", "rank1.json"):
                    try:
                        os.remove(self.path("flicker", name))
                    except OSError:
                        pass

        thread = threading.Thread(target=flicker)
        thread.start()
        try:
            for _ in range(40):
                self.assert_code(dpro("replay", self.path("flicker"), "--json"), DONE, INPUT)
        finally:
            stop.set()
            thread.join()


def dpro_unprivileged(case, *args):
    """Runs the command as somebody who may not do everything."""
    if os.geteuid() != 0:
        return dpro(*args)
    nobody = 65534
    os.chmod(case.folder, 0o755)
    copy = case.path("dpro")  # the build folder may be closed to others
    shutil.copy(DPRO, copy)
    os.chmod(copy, 0o755)
    done = subprocess.run([copy, *args], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          user=nobody, group=nobody, extra_groups=[], timeout=120)
    return Result(done.returncode, done.stdout.decode(), done.stderr.decode())


class BadOutput(Case):
    def test_an_output_folder_below_a_file_is_refused(self):
        self.write("file", "")
        self.assert_error(dpro("replay", BUNDLED, "-o", self.path("file", "out")), SYSTEM, "file", "Not a directory")

    def test_a_file_in_place_of_the_output_folder_is_refused(self):
        self.write("file", "keep me")
        self.assert_error(dpro("replay", BUNDLED, "-o", self.path("file")), SYSTEM, "file")
        self.assertEqual(read_text(self.path("file")), "keep me")

    def test_an_output_folder_that_may_not_be_written_is_refused(self):
        os.mkdir(self.path("locked"))
        os.chmod(self.path("locked"), 0o555)
        traces = self.path("traces")
        shutil.copytree(BUNDLED, traces)
        result = dpro_unprivileged(self, "replay", traces, "-o", self.path("locked"))
        self.assert_error(result, SYSTEM, "locked", "Permission denied")
        self.assertEqual(os.listdir(self.path("locked")), [])

    def test_a_full_output_folder_is_refused_and_left_without_halves(self):
        if os.geteuid() != 0:
            self.skipTest("mounting a small file system needs root")
        small = self.path("small")
        os.mkdir(small)
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", small], stderr=subprocess.PIPE)
        if mounted.returncode != 0:
            self.skipTest("mount: " + mounted.stderr.decode().strip())
        try:
            self.assert_error(dpro("replay", BUNDLED, "-o", small), SYSTEM, "No space left")
            for name in os.listdir(small):
                self.assertIn(name, ("diagnose.json", "replay.json", "report.html", "timeline.json.gz"))
                if name == "replay.json":
                    read_json(os.path.join(small, name))
        finally:
            subprocess.run(["umount", small], check=True)

    def test_limited_file_size_is_an_error_not_a_signal(self):
        done = subprocess.run(["bash", "-c", 'trap "" XFSZ; ulimit -f 4; exec "$0" replay "$1" -o "$2"', DPRO, BUNDLED,
                               self.path("out")], stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=120)
        self.assertEqual(done.returncode, SYSTEM, done.stderr)
