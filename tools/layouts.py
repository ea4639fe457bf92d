#!/usr/bin/env python3
"""Writes python/dpro/layouts.py, the structs and enums of include/dpro/ that the package uses, as ctypes has them.
--check: says whether that file is what would be written."""
import os
import re
import sys
import textwrap

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
OUTPUT = os.path.join(ROOT, "python", "dpro", "layouts.py")
# What the package names itself; what these hold comes with them.
STRUCTS = ("error", "job_options", "job_replay_options", "report", "diagnose_options", "diagnose_report",
           "compute_change", "change_kind", "whatif_report", "rank_memory",
           "optimize_options", "optimize_report", "memory_budget", "pass", "table", "column")
OPAQUE = ("changes",)  # which the library itself describes, by its table of what-ifs
CONSTANTS = ("PASS_ABI", "PASS_MAX_EDITS")
ENUMS = ("algorithm", "change_type", "column_type", "compression", "computing", "edit_kind", "op_kind", "processor", "schedule")
PLAIN = {"int": "c_int", "unsigned": "c_uint", "char": "c_char", "double": "c_double", "size_t": "c_size_t",
         "uint8_t": "c_uint8", "uint32_t": "c_uint32", "int32_t": "c_int32", "uint64_t": "c_uint64", "int64_t": "c_int64",
         "dpro_op_id": "c_uint32"}
HEAD = '''"""Structs and enums of the library, made by tools/layouts.py from include/dpro/: not to be edited."""
import ctypes as c


def _struct(name):
    return type(name, (c.Structure,), {})


'''


def headers():
    """Without comments."""
    folder = os.path.join(ROOT, "include", "dpro")
    text = ""
    for name in sorted(os.listdir(folder)):
        with open(os.path.join(folder, name), encoding="utf-8") as file:
            text += file.read()
    return re.sub(r"/\*.*?\*/", "", text, flags=re.S)


class Layouts:
    def __init__(self, text):
        self.constants = dict(re.findall(r"(?m)^#define DPRO_(\w+) +(\d+)", text))
        text = re.sub(r"(?m)^\s*#.*$", "", text)
        self.values = {constant: int(value) for constant, value in re.findall(r"(?m)^enum \{ (\w+) = (\d+) \};", text)}
        self.structs = {name: [field.strip() for field in body.split(";") if field.strip()]
                        for name, body in re.findall(r"(?ms)^struct dpro_(\w+) \{\n(.*?)^\};", text)}
        self.enums = {}
        for name, body in re.findall(r"(?s)\benum dpro_(\w+) \{(.*?)\}", text):
            self.enums[name], value = {}, -1
            for entry in filter(None, (entry.strip() for entry in body.split(","))):
                constant, _, given = (part.strip() for part in entry.partition("="))
                value = int(given) if given else value + 1
                self.enums[name][constant] = self.values[constant] = value
        self.wanted = []

    def fields(self, name):
        """[(name of a field, its type in Python)] of a struct"""
        return [found for field in self.structs[name] for found in self._declared(" ".join(field.split()))]

    def _declared(self, field):
        call = re.fullmatch(r"(.*)\(\*(\w+)\)\((.*)\)", field)
        if call:
            kinds = [call[1]] + [re.sub(r"\w+$", "", argument) for argument in call[3].split(",")]
            yield call[2], "c.CFUNCTYPE(%s)" % ", ".join(self._type(kind) for kind in kinds)
            return
        base, names = re.fullmatch(r"((?:const )?(?:struct |enum )?\w+ (?:const )?)(.*)", field).groups()
        for declared in names.split(","):
            stars, name, length = re.fullmatch(r"\s*((?:\*(?:const )?)*)(\w+)(?:\[(\w+)\])?", declared).groups()
            kind = self._type(base + stars)
            yield name, kind if length is None else "%s * %d" % (kind, self.values.get(length) or int(length))

    def _type(self, text):
        n_stars, words = text.count("*"), [word for word in re.findall(r"\w+", text) if word != "const"]
        if words[0] == "struct":
            name = words[1].removeprefix("dpro_")
            kind = self._named(name) if name in self.structs and name not in OPAQUE else None
        else:
            kind = "c.c_int" if words[0] == "enum" else "c." + PLAIN[words[0]] if words[0] in PLAIN else None
        if n_stars and kind in (None, "c.c_char"):
            kind, n_stars = "c.c_char_p" if kind else "c.c_void_p", n_stars - 1
        return "c.POINTER(" * n_stars + kind + ")" * n_stars

    def _named(self, name):
        if name not in self.wanted:
            self.wanted.append(name)
        return _class_name(name)

    def _laid_out(self):
        """Those that another one holds come before it: it needs their size."""
        done = []

        def lay_out(name):
            if name not in done:
                for _, kind in self.fields(name):
                    for inner in self.wanted:
                        if kind.split(" ")[0] == _class_name(inner):
                            lay_out(inner)
                done.append(name)

        for name in self.wanted:  # which gets longer
            lay_out(name)
        return done

    def text(self):
        self.wanted = list(STRUCTS)
        order = self._laid_out()
        made = ['%s = _struct("%s")' % (_class_name(name), _class_name(name)) for name in sorted(order)]
        bodies = [_filled("%s._fields_ = [" % _class_name(name), ['("%s", %s)' % field for field in self.fields(name)], "]")
                  for name in order]
        constants = ["%s = %s" % (name, self.constants[name]) for name in CONSTANTS] + [self._enum(name) for name in ENUMS]
        return HEAD + "\n".join([*made, "", *bodies, "", *constants, ""])

    def _enum(self, name):
        constants = {constant: value for constant, value in self.enums[name].items() if not constant.startswith("DPRO_N_")}
        prefix = re.match("(?:.*_)?", os.path.commonprefix(list(constants)))[0]
        return _filled("%s = {" % name.upper(), ['"%s": %d' % (constant[len(prefix):].lower(), value)
                                                 for constant, value in constants.items()], "}")


def _class_name(name):
    return "".join(word.capitalize() for word in name.split("_"))


def _filled(begin, parts, end):
    joined = " ".join((part + ",").replace(" ", "\1") for part in parts)
    lines = textwrap.wrap(begin.replace(" ", "\1") + joined[:-1] + end, 120, subsequent_indent="    ", break_long_words=False,
                          break_on_hyphens=False)
    return "\n".join(lines).replace("\1", " ")


def main():
    text = Layouts(headers()).text()
    if sys.argv[1:] == ["--check"]:
        with open(OUTPUT, encoding="utf-8") as file:
            return "python/dpro/layouts.py is not what include/dpro/ says: run tools/layouts.py" if file.read() != text else None
    with open(OUTPUT, "w", encoding="utf-8") as file:
        file.write(text)


if __name__ == "__main__":
    sys.exit(main())
