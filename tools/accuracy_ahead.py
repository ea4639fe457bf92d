"""Jobs whose CPU runs ahead of their GPU: replayed against the true period, which is known as the traces are built (from
the launch and kernel times of public traces, see tests/cli/gpu_job.py)."""
import json
import os
import sys
import tempfile

from figures import facts_of, off

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "tests", "cli"))

from gpu_job import Job, write  # noqa: E402

JOBS = {
    "queue fills": (Job(jitter=0.2), {}),
    "queue fills, 2 ranks": (Job(jitter=0.2, world=2, buckets=4), {}),
    "queue fills, 2 streams": (Job(jitter=0.2, streams=2), {}),
    "queue full": (Job(kernels=900, jitter=0.2), {"before": 3, "synced": False}),
    "waits for its loss": (Job(jitter=0.2, sync="loss"), {"before": 2, "synced": False}),
    "one rank is late": (Job(jitter=0.2, world=2, buckets=4, slow=(1, 5.0)), {}),
    "launch-bound": (Job(jitter=0.2, kernel_us=20, cpu_us=60), {}),
}
TARGET_PCT = 3.0


class Folder:
    """What write() asks of a test's case."""

    def __init__(self, path):
        self.root = path

    def path(self, *names):
        return os.path.join(self.root, *names)

    def write(self, name, content):
        path = self.path(name.removesuffix(".gz"))
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as out:
            json.dump(content, out)
        return path


def ahead_rows(dpro):
    rows = []
    for name, (job, options) in JOBS.items():
        with tempfile.TemporaryDirectory() as folder:
            path, truth = write(Folder(folder), job, **options)
            facts = facts_of(dpro, "replay", path)
        true_ms = max(rank["period_us"] for rank in truth) / 1000
        rows.append({
            "job": name, "true_ms": true_ms, "cpu_ms": min(rank["cpu_us"] for rank in truth) / 1000,
            "measured_ms": facts["measured"]["iteration_ms"], "replayed_ms": facts["predicted"]["iteration_ms"],
            "error_pct": off(facts["predicted"]["iteration_ms"], true_ms),
            "left_out_pct": facts["validation"]["mean_abs_error_pct"],
            "idle_pct": max(100 * rank["idle_ms"] / rank["iteration_ms"] for rank in facts["ranks"])})
    return rows


def print_ahead(rows):
    print(f"\n{'CPU ahead of its GPU (built)':30}{'true':>9}{'CPU marks':>11}{'measured':>10}{'replayed':>10}{'error %':>9}"
          f"{'left out':>10}{'idle %':>8}")
    for row in rows:
        miss = "!" if abs(row["error_pct"]) > TARGET_PCT else " "
        print(f"{row['job']:30}{row['true_ms']:9.2f}{row['cpu_ms']:11.2f}{row['measured_ms']:10.2f}{row['replayed_ms']:10.2f}"
              f"{row['error_pct']:+9.2f}{row['left_out_pct']:10.2f}{row['idle_pct']:8.1f}{miss}")
    print(f"times in ms; true: the period of many more steps; idle: of the rank that idles most; ! off by more than {TARGET_PCT:g} %")
