"""Writes files as C arrays: embed.py OUT.c FILE..., declared in src/report/page.h."""

import os
import re
import sys


def main():
    out, paths = sys.argv[1], sys.argv[2:]
    parts = ['/* made by tools/embed.py */\n#include "report/page.h"\n']
    for path in paths:
        with open(path, "rb") as file:
            data = file.read()
        name = "asset_" + re.sub(r"\W", "_", os.path.basename(path))
        rows = [
            ",".join(map(str, data[at : at + 32])) for at in range(0, len(data), 32)
        ]
        parts.append(
            "const unsigned char %s[] = {\n%s};\nconst size_t %s_size = %d;\n"
            % (name, ",\n".join(rows), name, len(data))
        )
    with open(out, "w", encoding="ascii") as file:
        file.write("\n".join(parts))


main()
