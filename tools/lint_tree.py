#!/usr/bin/env python3
"""Checks how the source tree is built: what a compiler and a formatter do not see.

- layers: a folder includes and calls only what stands above it in the tables of CONTRIBUTING.md
- circles: no files need each other in a circle: headers by includes, C files by the symbols of their objects, the
  Python package by its imports
- names: no two files of src/ have the same name
- width: lines of C, Python and Markdown (tables, links and code blocks of Markdown excepted)
- words: the retired words of tools/retired_words.md do not come back
- memory: src/ allocates and frees through base/memory.h
- purpose: the first line of a C file says what it is for
- decided: doc/architecture.md's list of where things are decided names files and functions that are there
- prelude: what src/base/base.h has is included by its name only
- meanings: a static function's name has more than one word, and no tag of a struct is defined twice"""
import argparse
import ast
import collections
import json
import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
DECIDED = "doc/architecture.md"
WIDTHS = {".c": 100, ".h": 100, ".md": 120, ".py": 140}
# They list the retired words, or are the tests of this check.
MAY_NAME_WORDS = {"tools/retired_words.md", "tests/cli/test_lint.py"}
# The first is base/memory.h, the second frees what scandir() made.
MAY_FREE = {"src/base/memory.c", "src/ingest/find_files.c"}
ALLOCATES = re.compile(r"(?<![\w.>])(malloc|calloc|realloc|reallocarray|free|strdup|strndup|v?asprintf)\s*\(")
TEXT = (".c", ".h", ".py", ".md", ".sh", ".js", ".css", ".1", ".txt", ".build", ".toml")
INCLUDE = re.compile(r'^\s*#\s*include\s*["<]([^">]+)[">]', re.M)


class Tree:
    """The project's files below a root."""

    def __init__(self, root):
        self.root = root
        self.files = sorted(path for path in self.list_files() if os.path.isfile(os.path.join(root, path)))
        self.known = set(self.files)

    def list_files(self):
        if os.path.exists(os.path.join(self.root, ".git")):
            listed = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=self.root,
                                    stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            if listed.returncode == 0:
                return listed.stdout.splitlines()
        found = []
        for folder, inner, files in os.walk(self.root):
            inner[:] = [f for f in inner if not f.startswith((".venv", "build", "out", "__pycache__", ".git"))]
            found += [os.path.relpath(os.path.join(folder, file), self.root) for file in files]
        return found

    def read(self, path):
        with open(os.path.join(self.root, path), encoding="utf-8", errors="replace") as file:
            return file.read()

    def of(self, *folders, ends):
        return [f for f in self.files if f.startswith(tuple(folders)) and f.endswith(ends)]


# Layers

def layer_order(tree):
    """{folder: (row of its table, number of the table)} of each folder below src/ that a table of CONTRIBUTING.md names"""
    order, table, inside = {}, 0, False
    for line in tree.read("CONTRIBUTING.md").splitlines():
        row = re.match(r"\|\s*`((?:src|cli|include)/[\w/]*)`", line)
        if row:
            order.setdefault(row.group(1), []).append((table, len(order)))
        if inside and not line.startswith("|"):
            table += 1
        inside = line.startswith("|")
    return order


def places(order, path):
    """{table: row} of the most specific folder that each table has for a file"""
    found = {}
    for folder in sorted(order, key=len):
        if path.startswith(folder):
            found.update(order[folder])
    return found


def check_layers(tree, order, needs):
    """needs: (file, what it needs, why) with both paths in the tree"""
    for file, needed, why in needs:
        mine, theirs = places(order, file), places(order, needed)
        if any(theirs[table] > mine[table] for table in mine.keys() & theirs.keys()):
            yield f"{file}: {why} {needed}, which stands below it in CONTRIBUTING.md"
    for folder in sorted({"/".join(f.split("/")[:2]) + "/" for f in tree.of("src/", ends=(".c", ".h"))}):
        if folder not in order:
            yield f"{folder}: no table of CONTRIBUTING.md has it"


def included(tree):
    """(file, header of ours that it includes, "includes")"""
    for file in tree.of("src/", "cli/", "include/", "tracer/", ends=(".c", ".h")):
        for name in INCLUDE.findall(tree.read(file)):
            for folder in (os.path.dirname(file), "src", "include"):
                header = os.path.normpath(os.path.join(folder, name))
                if header in tree.known:
                    yield file, header, "includes"
                    break


def called(tree, build):
    """(C file, C file that defines a symbol that it uses, "calls"), from the objects of a build"""
    with open(os.path.join(build, "compile_commands.json"), encoding="utf-8") as file:
        commands = json.load(file)
    objects = {}
    for command in commands:
        source = os.path.relpath(os.path.join(command["directory"], command["file"]), tree.root)
        if source in tree.known and source.startswith(("src/", "cli/", "tracer/")):
            objects[os.path.join(command["directory"], command["output"])] = source
    there = [path for path in objects if os.path.exists(path)]
    listed = subprocess.run(["nm", "-A", "-g", *there], check=True, stdout=subprocess.PIPE, text=True).stdout if there else ""
    # An object uses what a file of its own program defines; tracer/ and src/ may use a name twice.
    defines, uses = {}, collections.defaultdict(set)
    for line in listed.splitlines():
        path, symbol = line.split(":", 1)
        kind, name = symbol.split()[-2:]
        side = objects[path].startswith("tracer/")
        if kind == "U":
            uses[objects[path]].add((side, name))
        else:
            defines.setdefault((side, name), objects[path])
    for file in sorted(uses):
        for defined in sorted({defines[use] for use in uses[file] if use in defines} - {file}):
            yield file, defined, "calls"


def imported(tree):
    """(module, module that it imports, "imports") in the Python package"""
    for file in tree.of("python/dpro/", ends=".py"):
        package = os.path.dirname(file)
        for node in ast.walk(ast.parse(tree.read(file), file)):
            names = []
            if isinstance(node, ast.ImportFrom) and (node.level == 1 or (node.module or "").split(".")[0] == "dpro"):
                module = node.module or ""
                module = module if node.level else module.partition(".")[2]
                names = [module] if module else [alias.name for alias in node.names]
            elif isinstance(node, ast.Import):
                names = [alias.name[5:] for alias in node.names if alias.name.startswith("dpro.")]
            for name in names:
                module = f"{package}/{name.replace('.', '/')}.py"
                if module in tree.known and module != file:
                    yield file, module, "imports"


# Circles

def circles(needs):
    """The groups of files that need each other, each sorted (strongly connected components; Tarjan, without recursion)"""
    graph = collections.defaultdict(list)
    for file, needed, _ in needs:
        graph[file].append(needed)
    index, low, stack, on_stack, groups = {}, {}, [], set(), []
    for start in sorted(graph):
        work = [(start, iter(graph[start]))] if start not in index else []
        while work:
            node, rest = work[-1]
            if node not in index:
                index[node] = low[node] = len(index)
                stack.append(node)
                on_stack.add(node)
            for following in rest:
                if following not in index:
                    work.append((following, iter(graph.get(following, []))))
                    break
                if following in on_stack:
                    low[node] = min(low[node], index[following])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    group = []
                    while not group or group[-1] != node:
                        group.append(stack.pop())
                        on_stack.discard(group[-1])
                    if len(group) > 1:
                        groups.append(sorted(group))
    return sorted(groups)


def check_circles(needs):
    for group in circles(needs):
        inside = [f"{os.path.basename(a)} {why} {os.path.basename(b)}" for a, b, why in needs if a in group and b in group]
        more = f" and {len(inside) - 6} more" if len(inside) > 6 else ""
        yield f"files in a circle: {' '.join(group)} ({', '.join(inside[:6])}{more})"


# Names, width

def check_names(tree):
    named = collections.defaultdict(list)
    for file in tree.of("src/", ends=(".c", ".h", ".js", ".css")):
        named[os.path.basename(file)].append(file)
    for name, files in sorted(named.items()):
        if len(files) > 1:
            yield f"files with the same name: {' '.join(files)}"


def check_width(tree):
    for file in tree.files:
        limit = WIDTHS.get(os.path.splitext(file)[1])
        if limit is None:
            continue
        code = False
        for number, line in enumerate(tree.read(file).splitlines(), 1):
            if file.endswith(".md"):
                fence = line.lstrip().startswith("```")
                code = code != fence
                # what can't be broken: code, a row of a table, a line that is too long for one link alone
                if code or fence or line.lstrip().startswith("|") or "](" in line and len(max(line.split(), key=len)) > 60:
                    continue
            if len(line) > limit:
                yield f"{file}:{number}: {len(line)} columns, {limit} are allowed"


# Words

def retired_words(tree):
    """[(word, pattern, prefixes of paths where it may stand)] of the table in tools/retired_words.md whose head is `retired`"""
    words, inside = [], False
    for line in tree.read("tools/retired_words.md").splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if not line.startswith("|"):
            inside = False
        elif cells[0].lower() == "retired":
            inside = True
        elif inside and not cells[0].startswith("---"):
            allowed = tuple(re.findall(r"`([^`]+)`", cells[2])) if len(cells) > 2 else ()
            for word in re.findall(r"`([^`]+)`", cells[0]):
                words.append((word, word_pattern(word), allowed))
    return words


def word_pattern(word):
    """A word of its own, or a part of an identifier between underscores; `*` stands for more letters. Between two words
    there may be a new line with the mark of a comment."""
    parts = [re.escape(part).replace(r"\*", "[a-z]*") for part in word.split()]
    return re.compile(r"(?<![a-z])" + r"(?:[ \t]+|[ \t]*\n[ \t#*/]*)".join(parts) + r"(?![a-z])", re.I)


def check_words(tree, words):
    for file in tree.files:
        if file in MAY_NAME_WORDS or file.startswith(("tests/data/", "tests/captures/")) or not file.endswith(TEXT):
            continue
        text = tree.read(file)
        for word, pattern, allowed in words:
            if file.startswith(allowed):
                continue
            for found in pattern.finditer(text):
                line = text.count("\n", 0, found.start()) + 1
                yield f"{file}:{line}: \"{word}\" is retired (tools/retired_words.md)"


# Memory

def check_memory(tree):
    for file in tree.of("src/", ends=(".c", ".h")):
        if file in MAY_FREE:
            continue
        text = re.sub(r"/\*.*?\*/|//[^\n]*", lambda comment: "\n" * comment.group().count("\n"), tree.read(file), flags=re.S)
        for found in ALLOCATES.finditer(text):
            line = text.count("\n", 0, found.start()) + 1
            yield f"{file}:{line}: calls {found.group(1)}(), not base/memory.h"


# Finding one's way

def check_purpose(tree):
    for file in tree.of("src/", "cli/", "mpi/", "tracer/", ends=".c"):
        if not tree.read(file).startswith("/*"):
            yield f"{file}: its first line has to say what it is for"


def check_decided(tree):
    """Files of a row stand with their folder, or are in that of the file before; functions are in one of its files."""
    _, found, text = (tree.read(DECIDED) if DECIDED in tree.known else "").partition("\n## Where is it decided\n")
    for row in text.partition("\n## ")[0].splitlines() if found else []:
        named, files = re.findall(r"`([^`]+)`", row), []
        for name in named:
            if name.endswith((".c", ".h", ".py")):
                folder = os.path.dirname(files[-1]) if files and "/" not in name else ""
                files.append(os.path.join(folder, name))
        missing = [f for f in files if f not in tree.known]
        text_of = "".join(tree.read(f) for f in files if f in tree.known)
        missing += [n for n in named if re.fullmatch(r"\w+", n) and not re.search(rf"\b{n}\(", text_of)]
        for name in missing:
            yield f"{DECIDED}: names {name}, which is not there"


def check_prelude(tree):
    """What src/base/base.h includes is included by no other name"""
    if "src/base/base.h" not in tree.known:
        return
    has = set(INCLUDE.findall(tree.read("src/base/base.h")))
    for file in tree.of("src/", ends=(".c", ".h")):
        if file != "src/base/base.h" and file.removeprefix("src/") not in has:
            for name in has & set(INCLUDE.findall(tree.read(file))):
                yield f"{file}: includes {name}, which base/base.h has"


FUNCTION = re.compile(r"^(?:static )?(?:inline )?(?:_Noreturn )?(?:const )?(?:struct |enum |unsigned )?[A-Za-z_]\w*(?:\s+\**|\s*\*+\s*)"
                      r"([a-z][a-z0-9]*)\(", re.M)
TAG = re.compile(r"^(?:static const |static |typedef )?struct (\w+) \{", re.M)


def check_meanings(tree):
    """A function of src/ has a name that can be found, of more than one word; a tag has one meaning"""
    tags = {}
    for file in tree.of("src/", ends=(".c", ".h")):
        text = tree.read(file)
        for match in FUNCTION.finditer(text):
            if match.group(0).startswith("static") or file.endswith(".h"):
                yield f"{file}: {match.group(1)}() is one word: say whose"
        for tag in TAG.findall(text):
            other = tags.setdefault(tag, file)
            if other != file:
                yield f"{file}: its '{tag}' is another one than that of {other}"


def find(tree, build):
    calls = list(called(tree, build)) if build else []
    includes, imports = list(included(tree)), list(imported(tree))
    yield from check_layers(tree, layer_order(tree), includes + calls)
    yield from check_circles(includes + calls + imports)
    yield from check_words(tree, retired_words(tree))
    for check in (check_names, check_width, check_memory, check_purpose, check_decided, check_prelude, check_meanings):
        yield from check(tree)


def main():
    parser = argparse.ArgumentParser(description="checks how the source tree is built")
    parser.add_argument("--root", default=ROOT, help="the tree")
    parser.add_argument("--build", help="a build of it, whose objects tell who calls whom")
    args = parser.parse_args()
    findings = list(find(Tree(os.path.abspath(args.root)), args.build))
    print("".join(f"{finding}\n" for finding in findings), end="")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
