"""One large file read by several threads: the same as by one, whatever the file is like."""
import gzip
import json

import gpu_job
from support import DONE, Case, dpro, job

PIECE = 1 << 21  # src/ingest/pytorch/kineto_pieces.c


class ThreadsTest(Case):
    def setUp(self):
        super().setUp()
        self.profile = job(iterations=6)[0]
        self.events = self.profile.pop("traceEvents")

    def text(self, *more, pieces=3):
        """A profile of so many pieces; between the job's events lie ops of another thread, and `more` of them."""
        fill = [{"ph": "X", "cat": "cpu_op", "name": "aten::op%d" % (i % 50), "pid": 100, "tid": 77, "ts": 1e9 + i, "dur": 0.5,
                 "args": {"Sequence number": i, "External id": i, "note": "x" * 60}} for i in range(pieces * PIECE // 200)]
        events = list(more)
        for k, event in enumerate(self.events):
            events += [event, *fill[k * len(fill) // len(self.events):(k + 1) * len(fill) // len(self.events)]]
        text = json.dumps({**self.profile, "traceEvents": events, "host_name": "last"})
        self.assertGreater(len(text), pieces * PIECE)
        return text

    def check(self, content, code=DONE):
        for name in ("rank0.json", "rank0.json.gz"):
            self.check_path(self.write(name, content), code)

    def check_path(self, path, code=DONE):
        one, *others = [dpro("replay", "--json", "-v", "--threads", str(n), path) for n in (1, 2, 5)]
        self.assert_code(one, code)
        for other in others:
            self.assertEqual((other.code, other.out), (one.code, one.out))

    def test_pieces_give_what_the_whole_does(self):
        self.check(self.text())

    def test_steps_and_streams_of_a_gpu_give_the_same(self):
        for world in 1, 2:
            self.check_path(gpu_job.write(self, gpu_job.Job(world=world, buckets=4, streams=2, uneven=3))[0])

    def test_what_only_looks_like_an_event_is_no_border(self):
        trap = {"ph": "X", "cat": "cpu_op", "name": "aten::trap", "pid": 100, "tid": 78, "ts": 1e9, "dur": 1,
                "args": {"note": [{"ph": "X"}] * 300_000}}
        self.check(self.text(trap))

    def test_spans_of_two_events_may_span_pieces(self):
        begin = {"ph": "B", "cat": "cpu_op", "name": "aten::long", "pid": 100, "tid": 79, "ts": 1e9}
        self.events.append({"ph": "E", "pid": 100, "tid": 79, "ts": 1e9 + 5000})
        self.check(self.text(begin))

    def test_damage_is_told_as_by_one_thread(self):
        text = self.text()
        self.check(text[:len(text) * 2 // 3])
        for near in (len(text) // 2, len(text) - 800_000):
            place = text.index(', {"ph"', near)
            self.check(text[:place] + "}}" + text[place:])
        packed = gzip.compress(text.encode(), 1)
        path = self.write("cut.json.gz.part", packed[:len(packed) // 2])
        one, two = (dpro("replay", "--json", "--threads", n, path) for n in ("1", "2"))
        self.assertEqual((two.code, two.out), (one.code, one.out))
        self.assertIn("gzip file is cut short", one.out)

    def test_more_threads_than_there_can_be_are_as_many_as_there_can_be(self):
        path = self.write("rank0.json", self.text())
        one, most = (dpro("replay", "--json", "--threads", n, path) for n in ("1", "2000000000"))
        self.assertEqual((most.code, most.out), (one.code, one.out))
