"""dpro export --csv: every table of a job, with the columns that doc/formats/tables.md lists."""
import csv
import json
import os
import re

from support import DONE, INPUT, ROOT, SYSTEM, USAGE, Case, dpro, job

DATA = os.path.join(ROOT, "tests", "data")
JOBS = ("torch-ddp-gloo-gpt-n2-memory", "torch-fsdp-tp-gloo-n4", "torch-pp-gloo-n2", "byteps-torch-n2", "tf-ps-n2",
        "torch-nccl-conv-h200-memory")


def listed():
    """{table: ({column: type}, whether it is of a rank)}"""
    tables, name = {}, None
    for line in dpro("export", "--list").out.splitlines():
        if line.startswith("## "):
            name = line[3:]
        elif line.startswith("A row"):
            tables[name] = ({}, line.startswith("A row of a rank"))
        elif line.startswith("| `"):
            column, kind = [cell.strip() for cell in line.split("|")][1:3]
            tables[name][0][column.strip("`")] = kind
    return tables


class TablesTest(Case):
    def export(self, job):
        folder = self.path("tables-" + job)
        self.assert_code(dpro("export", "-q", "--csv", folder, os.path.join(DATA, job)), DONE)
        return {name[:-4]: list(self.rows(os.path.join(folder, name))) for name in os.listdir(folder)}

    def rows(self, path):
        with open(path, newline="", encoding="utf-8") as file:
            yield from csv.DictReader(file)

    def test_an_output_beside_the_folder_is_refused(self):
        for what in (["--csv", self.path("a")], ["--list"]):
            self.assert_error(dpro("export", *what, "-o", self.path("b"), os.path.join(DATA, JOBS[0])), USAGE,
                              "-o is for --net-csv only: leave it out")
        self.assertFalse(os.path.exists(self.path("a")) or os.path.exists(self.path("b")))

    def test_the_document_lists_the_columns(self):
        with open(os.path.join(ROOT, "doc", "formats", "tables.md"), encoding="utf-8") as file:
            self.assertEqual(file.read(), dpro("export", "--list").out,
                             "renew it: dpro export --list > doc/formats/tables.md")

    def test_tables_have_the_columns_that_are_listed_and_ids_lead_to_rows(self):
        tables = listed()
        for job in JOBS:
            data = self.export(job)
            self.assertEqual(set(data), set(tables))
            for name, (columns, of_rank) in tables.items():
                with open(self.path("tables-" + job, name + ".csv"), encoding="utf-8") as file:
                    self.assertEqual(file.readline().rstrip().split(","), ["in_rank"] * of_rank + ["id", *columns])
                links = {column: kind[7:-1] for column, kind in columns.items() if kind.startswith("id of")}
                for row in data[name]:
                    for column, table in links.items():
                        # the first of none, of a thing that has none, may lie behind the last row
                        if row[column] and not column.startswith(("first_", "pool", "shared", "last_work")):
                            of = len(data[table]) if not tables[table][1] else sum(
                                other["in_rank"] == row["in_rank"] for other in data[table])
                            self.assertLess(int(row[column]), of, (job, name, column, row))

    def test_tables_say_what_the_replay_says(self):
        for job in JOBS:
            with self.subTest(job=job):
                data = self.export(job)
                replay = json.loads(dpro("replay", "--json", os.path.join(DATA, job)).out)
                ops, path = data["ops"], data["critical_path"]
                self.assertEqual([(ops[int(row["op"])]["name"], row["start_ns"]) for row in path],
                                 [(op["name"], "%d" % round(op["start_ms"] * 1e6)) for op in replay["critical_path"]["ops"]])
                self.assertEqual(sum(int(row["dur_ns"]) + int(row["gap_ns"]) for row in path),
                                 round(replay["critical_path"]["length_ms"] * 1e6))
                self.assertEqual([(row["rank"], round(int(row["iteration_ns"]) / 1e6, 6)) for row in data["rank_times"]],
                                 [(str(rank["rank"]), rank["iteration_ms"]) for rank in replay["ranks"]])
                self.assertEqual([int(row["number"]) for row in data["iterations"]], replay["measured"]["iterations"])
                self.assertEqual(len(data["replayed"]), len(ops))
                self.assertEqual(len(data["op_times"]), len(ops) * len(data["iterations"]))
                self.assertEqual(sum(int(c["n_members"]) for c in data["collectives"]), len(data["members"]))

    def test_ranks_of_memory_are_told_apart(self):
        data = self.export("torch-ddp-gloo-gpt-n2-memory")
        for row in data["memory_moments"]:
            block = [b for b in data["memory_blocks"] if (b["in_rank"], b["id"]) == (row["in_rank"], row["block"])]
            self.assertEqual(block[0]["given" if row["gives"] == "1" else "taken"], row["id"])

    def test_any_name_is_read_back(self):
        name = 'a, "b"\n\u4e2d'
        self.write("named.json", job(world=1, name=name)[0])
        self.assert_code(dpro("export", "-q", "--csv", self.path("csv"), self.path("named.json")), DONE)
        self.assertIn(name, [row["name"] for row in self.rows(self.path("csv", "ops.csv"))])

    def test_what_is_wrong_is_told(self):
        trace = os.path.join(DATA, "torch-ddp-gloo-gpt-n2")
        self.assert_error(dpro("export", trace), USAGE, "--csv DIR")
        self.assert_error(dpro("export", "--csv", self.path("csv")), USAGE, "a trace")
        self.assert_error(dpro("export", "--csv", self.path("csv"), "--net-csv", trace), USAGE, "one thing at a time: give one of --csv")
        self.assert_error(dpro("export", "--csv", self.path("csv"), self.path("none")), INPUT, "none")
        self.write("file", "")
        self.assert_error(dpro("export", "--csv", self.path("file"), trace), SYSTEM, "file")
        self.assertFalse(os.path.exists(self.path("csv")))
        self.assertTrue(re.search("wrote tables to ", dpro("export", "--csv", self.path("csv"), trace).err))
