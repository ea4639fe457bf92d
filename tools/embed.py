"""Writes files as C arrays: embed.py OUT.c FILE..., declared in src/report/page.h."""
import os
import re
import sys

with open(sys.argv[1], "w", encoding="ascii") as out:
    out.write('/* made by tools/embed.py */\n#include "report/page.h"\n')
    for path in sys.argv[2:]:
        with open(path, "rb") as file:
            data = file.read()
        name = "asset_" + re.sub(r"\W", "_", os.path.basename(path))
        rows = ",\n".join(",".join(map(str, data[at:at + 32])) for at in range(0, len(data), 32))
        out.write("\nconst unsigned char %s[] = {\n%s};\nconst size_t %s_size = %d;\n" % (name, rows, name, len(data)))
