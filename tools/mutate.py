#!/usr/bin/env python3
"""How many one-line mistakes the C suites find: `tools/mutate.py --seed 1 --count 60 --folder src/graph`.

Draws lines of the sources at random and writes a mistake into each: a condition negated, a comparison that is off by one or the
other way round, a statement left out, a one that is zero. All are compiled into one copy of the tree (--work), in which
DPRO_MUTANT=N turns one on, so that they cost one build. Each is then tried in the suites that run its line, and the cases that find
it are printed. Texts and tables are not changed, so what it says of a case is not all that the case is for."""
import argparse
import json
import os
import random
import re
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
OPERAND = r"[\w.\->\[\]]+"
OTHER = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "=="}
IS = "DPRO_MUTANT_IS(%d)"
LATE = "(did not end)"
RULES = (  # the pattern of a line, and the line with the mistake number %d in it
    (re.compile(rf"^(.*(?:\(|&& |\|\| |return ))({OPERAND}) (<=?|>=?|[!=]=) ({OPERAND})((?:\)| &&| \|\||;| \?).*)$"),
     lambda m: f"{m[1]}({IS} ? {m[2]} {OTHER[m[3]]} {m[4]} : {m[2]} {m[3]} {m[4]}){m[5]}"),
    (re.compile(r"^(\s+(?:\} else )?if \()(.*)(\)(?: \{)?)$"), lambda m: f"{m[1]}{IS} ? !({m[2]}) : ({m[2]}){m[3]}"),
    (re.compile(r"^(    +)((?!return|break|goto|else|case|[A-Z_]+\()[\w.\->\[\]]+(?: [-+|&]?= |\().*;)$"),
     lambda m: f"{m[1]}if (!{IS}) {m[2]}"),
    (re.compile(r"^(    .*[\w\])] [-+] )1(\W.*)$"), lambda m: f"{m[1]}({IS} ? 0 : 1){m[2]}"),
)
HEADER = """#include <stdlib.h>
#include <stdio.h>
__attribute__((weak)) int dpro_mutant = -1;
__attribute__((weak)) unsigned char dpro_reached[65536];
#define DPRO_MUTANT_IS(n) (dpro_reached[n] = 1, dpro_mutant == (n))
__attribute__((constructor)) static void dpro_mutant_read(void)
{
    const char *number = getenv("DPRO_MUTANT");
    dpro_mutant = number ? atoi(number) : -1;
}
__attribute__((destructor)) static void dpro_mutant_tell(void)
{
    FILE *file = getenv("DPRO_REACHED") ? fopen(getenv("DPRO_REACHED"), "a") : NULL;
    for (int i = 0; file && i < 65536; i++)
        if (dpro_reached[i]) {
            fprintf(file, "%d\\n", i);
            dpro_reached[i] = 0;
        }
    if (file)
        fclose(file);
}
"""


def places(folders):
    """(path, line number, rule) of every line that could have a mistake."""
    for folder in folders:
        for base, _, names in sorted(os.walk(os.path.join(ROOT, folder))):
            for name in sorted(name for name in names if name.endswith(".c")):
                path = os.path.relpath(os.path.join(base, name), ROOT)
                with open(os.path.join(ROOT, path), encoding="utf-8") as file:
                    lines = file.read().splitlines()
                for i in range(1, len(lines)):
                    if lines[i].lstrip().startswith(("*", "/", "#")) or lines[i].endswith("\\"):
                        continue
                    whole = lines[i - 1].endswith((";", "{", "}"))
                    fits = [r for r, (pattern, _) in enumerate(RULES) if pattern.match(lines[i]) and (r != 2 or whole)]
                    fits = [r for r in fits if r != 3 or "static" not in lines[i] and not re.search(r"\[[^]]* [-+] 1\];", lines[i])]
                    yield from ((path, i, r) for r in fits)


def draw(folders, count, seed):
    """At most one a line; `count` of them, or all."""
    found = list(places(folders))
    random.Random(seed).shuffle(found)
    return list({(path, line): (path, line, rule) for path, line, rule in found}.values())[:count or None]


def write(work, drawn, left_out):
    """A copy of the tree with the mistakes in it."""
    by_path = {}
    for number, (path, line, rule) in enumerate(drawn):
        if number not in left_out:
            by_path.setdefault(path, []).append((number, line, rule))
    for path in {path for path, _, _ in drawn}:
        with open(os.path.join(ROOT, path), encoding="utf-8") as file:
            lines = file.read().splitlines()
        for number, line, rule in by_path.get(path, ()):
            pattern, made = RULES[rule]
            lines[line] = made(pattern.match(lines[line])) % number if "%" not in lines[line] else made(
                pattern.match(lines[line])).replace(IS, IS % number)
        text, copy = "\n".join(lines) + "\n", os.path.join(work, path)
        with open(copy, encoding="utf-8") as file:
            is_new = file.read() != text
        if is_new:  # else its object file is kept
            with open(copy, "w", encoding="utf-8") as file:
                file.write(text)


def build(work, drawn, only):
    """Returns those that the compiler refuses, and {name: suite}."""
    subprocess.run(f"git ls-files -z | xargs -0 cp --parents -t {work}", shell=True, check=True, cwd=ROOT)
    with open(os.path.join(work, "mutant.h"), "w", encoding="utf-8") as file:
        file.write(HEADER)
    left_out = set()
    if not os.path.exists(os.path.join(work, "b", "build.ninja")):
        subprocess.run(["meson", "setup", "b", "-Doptimization=1", f"-Dc_args=-include {work}/mutant.h -w"], cwd=work, check=True,
                       stdout=subprocess.DEVNULL)
    listed = subprocess.run(["meson", "introspect", "--tests", "b"], cwd=work, check=True, stdout=subprocess.PIPE)
    suites = {test["name"]: test for test in json.loads(listed.stdout)
              if "/tests/unit/" in test["cmd"][0] and (not only or test["name"] in only)}
    made = subprocess.run(["ninja", "-C", "b", "-t", "targets", "all"], cwd=work, check=True, stdout=subprocess.PIPE, text=True).stdout
    targets = ["tests/unit/test_" + name for name in suites] + re.findall(r"^(tests/unit/\w+\.so): ", made, re.M)  # of 'pass'
    while True:
        write(work, drawn, left_out)
        done = subprocess.run(["ninja", "-C", "b", "-k", "0", *targets], cwd=work, stdout=subprocess.PIPE, text=True)
        if done.returncode == 0:
            return left_out, suites
        bad = {(path, int(line) - 1) for path, line in re.findall(r"(src/\S+?\.c):(\d+):\d+: (?:error|note)", done.stdout)}
        refused = {n for n, (path, line, _) in enumerate(drawn) if any(path == p and abs(line - at) <= 2 for p, at in bad)} - left_out
        if not refused:
            raise SystemExit(done.stdout[-3000:])
        left_out |= refused


def try_one(work, suite, mutant, limit_s):
    """The cases that fail; of the suite as it is (mutant -1) also the mistakes whose lines it runs."""
    reached = os.path.join(work, f"reached-{suite['name']}")
    if mutant < 0 and os.path.exists(reached):
        os.remove(reached)
    env = {**os.environ, **suite["env"], "DPRO_MUTANT": str(mutant)} | ({"DPRO_REACHED": reached} if mutant < 0 else {})
    try:
        done = subprocess.run(["prlimit", "--as=8000000000", *suite["cmd"]], cwd=os.path.join(work, "b"), env=env, timeout=limit_s,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        text, status = done.stdout.decode("utf-8", "replace"), done.returncode
    except subprocess.TimeoutExpired:
        return {LATE}, set()
    failed = {a or b for a, b in re.findall(r"^\[  FAILED  \] tests: (\w+)|^\[  FAILED  \] (\w+)$", text, re.M)}
    began = re.findall(r"^\[ RUN      \] (\w+)", text, re.M)
    if status and not failed:
        failed = set(began[-1:]) or {"(ended)"}
    if mutant >= 0 or not os.path.exists(reached):
        return failed, set()
    with open(reached, encoding="ascii") as file:
        return failed, set(map(int, file))


def main():
    parser = argparse.ArgumentParser(description="how many one-line mistakes the C suites find")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=60, help="how many mistakes; 0: all")
    parser.add_argument("--folder", action="append", help="of the sources (src)")
    parser.add_argument("--suite", action="append", help="only these suites")
    parser.add_argument("--work", default="/tmp/dpro-mutants", help="where the copy of the tree is made")
    args = parser.parse_args()
    os.makedirs(args.work, exist_ok=True)
    drawn = draw(args.folder or ["src"], args.count, args.seed)
    left_out, suites = build(args.work, drawn, args.suite)
    took_s, of_line, n_found, n_reached = {}, {}, 0, 0
    for name, suite in suites.items():
        start = time.monotonic()
        failed, of_line[name] = try_one(args.work, suite, -1, 300)
        took_s[name] = time.monotonic() - start
        if failed:
            raise SystemExit(f"{name} fails without a mistake: {' '.join(sorted(failed))}")
    for number in (number for number in range(len(drawn)) if number not in left_out):
        by = {}
        for name in (name for name in suites if number in of_line[name] and (LATE,) not in by.values()):
            failed, _ = try_one(args.work, suites[name], number, 2 + 5 * took_s[name])
            by.update({name: tuple(sorted(failed))} if failed else {})
        path, line, _ = drawn[number]
        is_reached = any(number in lines for lines in of_line.values())
        n_found, n_reached = n_found + bool(by), n_reached + is_reached
        what = " ".join(f"{name}: {', '.join(cases)};" for name, cases in by.items()) or ("MISSED" if is_reached else "not reached")
        print(f"{path}:{line + 1} {what}", flush=True)
    print(f"{n_found} of {n_reached} mistakes in lines that the suites run are found; {len(drawn) - len(left_out)} were drawn")
    return 0


if __name__ == "__main__":
    sys.exit(main())
