"""tools/lint_tree.py finds what it is there to find: each check fails on a tree that has the fault, and only on that."""
import os
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
CLEAN = {
    "CONTRIBUTING.md": "| folder | holds |\n| --- | --- |\n| `src/base/` | base |\n| `src/graph/` | graph |\n",
    "doc/glossary.md": "| retired | use | still allowed in |\n| --- | --- | --- |\n| `middle one` | median | |\n",
    "src/base/array.h": "#define ARRAY 1\n",
    "src/graph/build.c": '#include "base/array.h"\nint built;\n',
    "python/dpro/plan.py": "from . import files\n",
    "python/dpro/files.py": "import os\n",
}


class Tree(unittest.TestCase):
    def lint(self, *options, **files):
        with tempfile.TemporaryDirectory() as root:
            for path, text in {**CLEAN, **files.get("files", {})}.items():
                os.makedirs(os.path.dirname(os.path.join(root, path)) or root, exist_ok=True)
                with open(os.path.join(root, path), "w", encoding="utf-8") as out:
                    out.write(text)
            done = subprocess.run([sys.executable, os.path.join(ROOT, "tools", "lint_tree.py"), "--root", root, *options],
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.assertIn(done.returncode, (0, 1), done.stdout)
        self.assertEqual(done.returncode == 0, done.stdout == "", done.stdout)
        return done.stdout

    def finds(self, text, files):
        self.assertIn(text, self.lint(files=files))

    def test_a_clean_tree_has_no_findings(self):
        self.assertEqual(self.lint(), "")

    def test_an_include_of_a_lower_folder(self):
        self.finds("which stands below it", {"src/base/up.c": '#include "graph/build.h"\n', "src/graph/build.h": "\n"})

    def test_a_folder_that_no_table_has(self):
        self.finds("no table of CONTRIBUTING.md has it", {"src/other/a.c": "int a;\n"})

    def test_headers_in_a_circle(self):
        self.finds("files in a circle", {"src/base/a.h": '#include "base/b.h"\n', "src/base/b.h": '#include "base/a.h"\n'})

    def test_python_modules_in_a_circle(self):
        self.finds("files in a circle: python/dpro/files.py python/dpro/plan.py", {"python/dpro/files.py": "from . import plan\n"})

    def test_two_files_of_one_name(self):
        self.finds("files with the same name", {"src/base/build.c": "int other;\n"})

    def test_lines_that_are_too_wide(self):
        self.finds("src/graph/wide.c:1: 101 columns", {"src/graph/wide.c": "x" * 101 + "\n"})
        self.finds("doc/wide.md:1: 121 columns", {"doc/wide.md": "x" * 121 + "\n"})
        self.assertEqual(self.lint(files={"doc/table.md": "| " + "x" * 130 + " |\n"}), "")

    def test_a_retired_word_even_over_two_lines(self):
        self.finds('"middle one" is retired', {"src/graph/word.c": "/* the middle\n * one */\n"})

    def test_an_exception_covers_a_finding_and_must_go_with_it(self):
        wide, exceptions = {"src/graph/wide.c": "x" * 101 + "\n"}, {"tools/lint_exceptions.txt": "width 1 src/graph/wide.c\n"}
        self.assertEqual(self.lint(files={**wide, **exceptions}), "")
        self.finds("renew it", exceptions)

    def test_calls_in_a_circle(self):
        with tempfile.TemporaryDirectory() as root:
            for path, text in {**CLEAN, "src/base/a.c": "int b(void); int a(void) { return b(); }\n",
                               "src/base/b.c": "int a(void); int b(void) { return a(); }\n"}.items():
                os.makedirs(os.path.dirname(os.path.join(root, path)) or root, exist_ok=True)
                with open(os.path.join(root, path), "w", encoding="utf-8") as out:
                    out.write(text)
            commands = []
            for name in ("a", "b"):
                subprocess.run([os.environ.get("CC", "cc"), "-c", f"src/base/{name}.c", "-o", f"{name}.o"], cwd=root, check=True)
                commands.append(f'{{"directory": "{root}", "file": "src/base/{name}.c", "output": "{name}.o"}}')
            with open(os.path.join(root, "compile_commands.json"), "w", encoding="utf-8") as out:
                out.write("[" + ",".join(commands) + "]")
            done = subprocess.run([sys.executable, os.path.join(ROOT, "tools", "lint_tree.py"), "--root", root, "--build", root],
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.assertEqual(done.returncode, 1)
        self.assertIn("files in a circle: src/base/a.c src/base/b.c", done.stdout)


if __name__ == "__main__":
    unittest.main()
