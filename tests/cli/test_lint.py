"""tools/lint_tree.py finds what it is there to find: each check fails on a tree that has the fault, and only on that."""
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

from support import Case, write_json, write_text

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
CLEAN = {
    "CONTRIBUTING.md": "| folder | holds |\n| --- | --- |\n| `src/base/` | base |\n| `src/graph/` | graph |\n",
    "tools/retired_words.md": "| retired | use | still allowed in |\n| --- | --- | --- |\n| `middle one` | median | |\n",
    "src/base/array.h": "#define ARRAY 1\n",
    "src/graph/build.c": '/* Builds. */\n#include "base/array.h"\nint built;\n',
    "python/dpro/plan.py": "from . import files\n",
    "python/dpro/files.py": "import os\n",
}


def write_tree(root, files):
    for path, text in {**CLEAN, **files}.items():
        os.makedirs(os.path.dirname(os.path.join(root, path)) or root, exist_ok=True)
        with open(os.path.join(root, path), "w", encoding="utf-8") as out:
            says = not path.endswith(".c") or text.startswith(("/*", "#include <"))
            out.write(text if says else "/* It. */\n" + text)


class Tree(unittest.TestCase):
    def lint(self, **files):
        with tempfile.TemporaryDirectory() as root:
            write_tree(root, files.get("files", {}))
            done = subprocess.run([sys.executable, os.path.join(ROOT, "tools", "lint_tree.py"), "--root", root],
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.assertIn(done.returncode, (0, 1), done.stdout)
        self.assertEqual(done.returncode == 0, done.stdout == "", done.stdout)
        return done.stdout

    def test_each_fault_is_found_and_what_is_none_is_not(self):
        decided = "# A\n\n## Where is it decided\n\n| --- | --- |\n| it | `src/graph/build.c`: `%s`; `%s` |\n\n## B\n\n`x.c`\n"
        there = {"src/graph/build.c": "/* Builds. */\nvoid build(void) {}\n", "src/graph/other.c": "/* Else. */\n"}
        prelude = {"src/base/base.h": "#include <string.h>\n#include \"base/map.h\"\n", "src/base/map.h": "#include <string.h>\n"}
        user, function = "/* Builds. */\n#include \"%s\"\n", "/* Adds. */\nstatic void %s(int x)\n{\n}\n"
        tag = "/* Works. */\nstruct %s {\n    int n;\n};\n"
        rooms = {"CONTRIBUTING.md": CLEAN["CONTRIBUTING.md"] + "\n| room | holds |\n| --- | --- |\n| `src/graph/ops/` | a |\n"
                 "| `src/graph/steps/` | b |\n", "src/graph/steps/s.h": "\n", "src/graph/ops/o.h": "\n"}
        retired = {"tools/retired_words.md": CLEAN["tools/retired_words.md"] + "| `parcel*` | flow | `src/graph/` |\n"}
        for said, files in (
                ("", {}), ("which stands below it", {"src/base/up.c": '#include "graph/build.h"\n', "src/graph/build.h": "\n"}),
                ("no table of CONTRIBUTING.md has it", {"src/other/a.c": "int a;\n"}),
                ("files in a circle", {"src/base/a.h": '#include "base/b.h"\n', "src/base/b.h": '#include "base/a.h"\n'}),
                ("files in a circle: python/dpro/files.py python/dpro/plan.py", {"python/dpro/files.py": "from . import plan\n"}),
                ("files with the same name", {"src/base/build.c": "int other;\n"}),
                ("src/graph/wide.c:2: 101 columns", {"src/graph/wide.c": "x" * 101 + "\n"}),
                ("doc/wide.md:1: 121 columns", {"doc/wide.md": "x" * 121 + "\n"}), ("", {"doc/table.md": "| " + "x" * 130 + " |\n"}),
                ('"middle one" is retired', {"src/graph/word.c": "/* the middle\n * one */\n"}),
                ("src/graph/m.c:2: calls free(), not base/memory.h", {"src/graph/m.c": "/* free( */\nvoid f(void) { free(0); }\n"}),
                ("", {"src/graph/m.c": "void f(void) { mem_free(0); array.free(1); }\n",
                      "src/base/memory.c": "void mem_free(void *at) { free(at); }\n"}),
                ("src/graph/why.c: its first line has to say", {"src/graph/why.c": "#include <stdio.h>\n/* Late. */\n"}),
                ("", {**there, "doc/architecture.md": decided % ("build", "other.c")}),
                ("names gone, which is not there", {**there, "doc/architecture.md": decided % ("gone", "other.c")}),
                ("names src/graph/gone.c, which is not there", {**there, "doc/architecture.md": decided % ("build", "gone.c")}),
                ("", {**prelude, "src/graph/build.c": user % "base/base.h"}),
                ("src/graph/build.c: includes base/map.h, which base/base.h has", {**prelude, "src/graph/build.c": user % "base/map.h"}),
                ("src/graph/b.c: add() is one word: say whose", {"src/graph/b.c": function % "add"}),
                ("src/graph/c.c: its 'work' is another one than that of src/graph/b.c",
                 {"src/graph/b.c": tag % "work", "src/graph/c.c": tag % "work"}),
                ("", {"src/graph/b.c": function % "graph_add", "src/graph/c.c": tag % "graph_work"}),
                ("which stands below it", {**rooms, "src/graph/ops/o.c": '#include "graph/steps/s.h"\n'}),
                ("", {**rooms, "src/graph/steps/s.c": '#include "graph/ops/o.h"\n'}),
                ("is retired", {**retired, "src/base/p.c": "int n_parcels;\n"}), ("", {**retired, "src/graph/p.c": "int n_parcels;\n"}),
                ("", {**retired, "src/base/p.c": "int subparcel;\n"})):
            with self.subTest(said=said, files=files):
                found = self.lint(files=files)
                self.assertIn(said, found)
                self.assertEqual(found == "", said == "", found)

    def lint_built(self, **files):
        """Lints a tree whose C files of src/base/ and src/graph/ were compiled."""
        with tempfile.TemporaryDirectory() as root:
            write_tree(root, files["files"])
            commands = []
            for path in files["files"]:
                if path.endswith(".c"):
                    made = path.replace("/", "_") + ".o"
                    subprocess.run([os.environ.get("CC", "cc"), "-c", path, "-o", made], cwd=root, check=True)
                    commands.append({"directory": root, "file": path, "output": made})
            write_json(os.path.join(root, "compile_commands.json"), commands)
            done = subprocess.run([sys.executable, os.path.join(ROOT, "tools", "lint_tree.py"), "--root", root, "--build", root],
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.assertIn(done.returncode, (0, 1), done.stdout)
        return done.stdout

    CIRCLE = {"src/base/a.c": "int b(void); int a(void) { return b(); }\n",
              "src/base/b.c": "int c(void); int a(void); int b(void) { return a() + c(); }\n",
              "src/base/c.c": "int c(void) { return 1; }\n"}

    def test_calls_in_a_circle(self):
        self.assertIn("files in a circle: src/base/a.c src/base/b.c", self.lint_built(files=self.CIRCLE))
        grown = {**self.CIRCLE, "src/base/c.c": "int a(void); int c(void) { return a(); }\n"}
        self.assertIn("files in a circle: src/base/a.c src/base/b.c src/base/c.c", self.lint_built(files=grown))
        self.assertEqual(self.lint_built(files={**self.CIRCLE, "src/base/b.c": "int b(void) { return 1; }\n"}), "")

    def test_a_call_of_a_lower_folder(self):
        files = {"src/base/up.c": "int down(void); int up(void) { return down(); }\n",
                 "src/graph/down.c": "int down(void) { return 1; }\n"}
        self.assertIn("src/base/up.c: calls src/graph/down.c, which stands below it", self.lint_built(files=files))


class Script(Case):
    """tools/lint.sh on a small tree: each of its own checks fails."""

    def put(self, path, text):
        os.makedirs(os.path.dirname(self.path("tree", path)), exist_ok=True)
        write_text(self.path("tree", path), text)

    def lint(self, path=os.environ["PATH"]):
        return subprocess.run([self.path("tree", "tools/lint.sh")], env={**os.environ, "PATH": path},
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def test_each_check_fails(self):
        for path in ("tools/lint.sh", "tools/lint_tree.py", ".clang-format", "include/dpro/error.h", "cli/opt.h",
                     "tracer/record.h", "doc/man/dpro.1"):
            os.makedirs(os.path.dirname(self.path("tree", path)), exist_ok=True)
            shutil.copy(os.path.join(ROOT, path), self.path("tree", path))
        for path, text in CLEAN.items():
            self.put(path, text)
        self.put("src/graph/build.c", "/* Builds. */\n")
        done = self.lint()
        self.assertEqual(done.returncode, 0, done.stdout)
        cases = [
            ("include/dpro/alone.h", "struct dpro_size {\n    size_t bytes;\n};\n", "dpro/alone.h does not compile alone"),
            ("include/dpro/inner.h", '#include "base/sort.h"\n', "a public header includes a private one"),
            ("cli/cmd.c", '#include "base/sort.h"\n', "cli/ includes more than public headers"),
            ("cli/cmd.c", "int rc = dpro_graph_build(trace, NULL, &graph, &err);\n", "more than a job is asked"),
            ("tracer/hook.c", '#include "base/sort.h"\n', "tracer/ includes base/sort.h"),
            ("tools/a.py", "def broken(:\n", "Python files"),
            ("tools/a.sh", "if\n", "tools/a.sh"),
            ("doc/a.md", "x " * 100 + "\n", "doc/a.md:1: 200 columns"),
            ("cli/cmd.c", "int  main( void ) ;\n", "clang-format would change"),
        ]
        for path, text, message in cases:
            with self.subTest(path=path, message=message):
                self.put(path, text)
                done = self.lint()
                os.remove(self.path("tree", path))
                self.assertEqual(done.returncode, 1, done.stdout)
                self.assertIn(message, done.stdout)
        # without a tool it is not known whether all is fine
        tools = self.path("tools")
        os.mkdir(tools)
        for name in os.listdir("/usr/bin"):
            if name not in ("clang-format-14", "mandoc", "shellcheck", "c++"):
                os.symlink(os.path.join("/usr/bin", name), os.path.join(tools, name))
        done = self.lint(tools)
        self.assertEqual(done.returncode, 1, done.stdout)
        for name in ("clang-format-14", "mandoc", "shellcheck", "c++"):
            self.assertIn(f"lint: no {name} here: 'make deps' installs it", done.stdout)
        self.assertNotIn("lint: fine", done.stdout)
