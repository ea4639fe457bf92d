#!/usr/bin/env python3
"""fuzz_dict.py FOLDER...: prints a libFuzzer dictionary of the names that the C files in these folders compare with, and of
numbers at the limits of types.

Each string literal is taken, but those of messages (they hold a format, or go to a function that reports), of includes and
of comments: so a name in a new table, or one that a new helper compares with, is in the dictionary at the next build."""
import os
import re
import sys

TOKEN = re.compile(r"""//[^\n]*|/\*.*?\*/|'(?:\\.|[^'\\])'|"((?:\\.|[^"\\])*)"|(\w+)(?=\s*\()|[;{}]""", re.S)
REPORTS = re.compile(r"(warn|error|error_set|error_prefix|say|log_line|refuse|complain|fail|snprintf|assert)$")
LONGEST = 64
NUMBERS = [str(n) for bits in (15, 16, 31, 32, 53, 63, 64) for n in (2**bits - 1, 2**bits, -(2**bits))] + ["1e300", "-1e300", "0.5", "-1"]


def unescape(text):
    return text.encode("latin-1", "backslashreplace").decode("unicode_escape")


def literals(source):
    """The literals of a C file. Neighbours make one: "a" "b"."""
    source = re.sub(r"^\s*#.*?(?<!\\)$", lambda m: m.group(0) if "define" in m.group(0) else "", source, flags=re.M)
    reported, last, joined = False, None, ""
    for token in TOKEN.finditer(source):
        text, call = token.group(1), token.group(2)
        if text is not None:
            if last is not None and not source[last:token.start()].strip():
                joined += unescape(text)
            else:
                yield joined
                joined = "" if reported else unescape(text)
            last = token.end()
        elif call:
            reported = reported or bool(REPORTS.search(call))
        elif token.group(0) in (";", "{", "}"):
            reported = False
    yield joined


def words(folders):
    found = set()
    for top in folders:
        for folder, _, names in os.walk(top):
            for name in names:
                if name.endswith((".c", ".h")):
                    with open(os.path.join(folder, name), encoding="utf-8") as file:
                        found.update(literals(file.read()))
    return sorted(w for w in found if len(w) <= LONGEST and w.strip() and "%" not in w and "\n" not in w)


def entry(word):
    """As libFuzzer wants it: all but plain characters by their code."""
    plain = "".join(c if " " <= c <= "~" and c not in '"\\' else "".join(f"\\x{b:02x}" for b in c.encode("utf-8", "replace"))
                    for c in word)
    return f'"{plain}"'


if __name__ == "__main__":
    print("\n".join(entry(word) for word in words(sys.argv[1:]) + NUMBERS))
