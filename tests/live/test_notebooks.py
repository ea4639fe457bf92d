"""Tables as pandas, Arrow and Polars have them, and the example notebooks, run whole."""
import glob
import os
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "cli"))
from support import BUNDLED, ROOT, Case  # noqa: E402

PYTHON = os.path.join(ROOT, ".venv-notebook", "bin", "python")
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.path.join(ROOT, "python"), "JUPYTER_PLATFORM_DIRS": "1"}
FRAMES = """
import sys, time
import numpy, pandas, polars, pyarrow, pyarrow.compute
start = time.process_time()
import dpro
assert time.process_time() - start < 0.05, "importing dpro takes more than 50 ms"
job = dpro.open(sys.argv[1])
for name, tables in job.tables.items():
    if isinstance(tables, list):
        frame, arrow, n = tables.to_pandas(), tables.to_arrow(), sum(table.n_rows for table in tables)
        assert (len(frame), list(frame), list(frame.index.names)) == (n, list(tables[0]), ["in_rank", "id"]), name
        assert (arrow.num_rows, arrow.column_names) == (n, ["in_rank", *tables[0]]), name
        assert tables.to_polars().shape == (n, len(tables[0]) + 1), name
        for rank, table in enumerate(tables):
            if table.n_rows:
                assert arrow.filter(pyarrow.compute.equal(arrow["in_rank"], rank)).num_rows == table.n_rows, name
                if "size_bytes" in table:
                    assert list(frame.loc[rank]["size_bytes"]) == list(table["size_bytes"]), name
    for table in tables if isinstance(tables, list) else [tables]:
        frame, arrow = table.to_pandas(), table.to_arrow()
        assert (len(frame), list(frame)) == (table.n_rows, list(table)), name
        assert (arrow.num_rows, arrow.column_names) == (table.n_rows, list(table)), name
        assert table.to_polars().shape == (table.n_rows, len(table)), name
        for column in table:
            given = [None if isinstance(value, float) and value != value else value for value in frame[column].astype(object)]
            none = 0xffffffff if table[column].table else "" if table[column].name_of and table[column].has_values else None
            wanted = [none if value is None else value for value in table[column]]
            assert given == wanted or arrow[column].to_pylist() == wanted, (name, column)
ops, kept, N = dpro.open(sys.argv[1]).ops, [], 10_000_000  # this job's, again and again
for column in ops.values():
    if column.has_values:
        kept.append(numpy.resize(numpy.asarray(column), N))
        column._at = kept[-1].ctypes.data
    column._n = N
ops.n_rows = N
start = time.process_time()
frame = ops.to_pandas()
took = time.process_time() - start
assert len(frame) == N and took < 1, "10 M ops take %.2f s" % took
assert all(numpy.shares_memory(frame[name].to_numpy(), numpy.asarray(ops[name])) for name in ("dur_ns", "gap_ns", "device", "size_bytes"))
ops = job.ops
seen = numpy.asarray(ops["dur_ns"])
frame = ops.to_pandas()
assert numpy.shares_memory(frame["dur_ns"].to_numpy(), seen), "a numeric column was copied"
job.close()
assert int(seen.sum()) == int(frame["dur_ns"].sum()) > 0  # they stay
for what in ("ops", "replay"):
    try:
        getattr(job, what)() if what == "replay" else job.ops
    except dpro.Error as problem:
        assert "the job is closed" in str(problem)
    else:
        raise AssertionError(what)
"""
NOTEBOOK = """
import sys
import nbclient, nbformat
notebook = nbformat.read(sys.argv[1], 4)
nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": sys.argv[2]}}).execute()
pictures = [output for cell in notebook.cells for output in cell.get("outputs", ()) if "text/html" in output.get("data", ())]
print(len(pictures), sum("<svg" in output["data"]["text/html"] for output in pictures))
"""


@unittest.skipUnless(os.path.exists(PYTHON), "no .venv-notebook: tools/venv.sh notebook makes it")
class Notebooks(Case):
    def run_python(self, *args):
        ran = subprocess.run([PYTHON, "-c", *args], env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=600)
        self.assertEqual(ran.returncode, 0, ran.stderr[-3000:])
        return ran.stdout

    def test_tables_become_frames_without_copies_of_numbers(self):
        self.run_python(FRAMES, BUNDLED + "-memory")

    def test_the_examples_run_and_draw(self):
        examples = sorted(glob.glob(os.path.join(ROOT, "examples", "notebooks", "*.ipynb")))
        self.assertGreaterEqual(len(examples), 2)
        for path in examples:
            n_html, n_pictures = map(int, self.run_python(NOTEBOOK, path, os.path.dirname(path)).split())
            self.assertGreaterEqual(n_html, 2, path)
            self.assertGreaterEqual(n_pictures, 2, path)
