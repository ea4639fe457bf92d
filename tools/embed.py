"""Makes the pages' shells as C arrays, declared in src/report/page.h: embed.py OUT.c FOLDER COMMAND:SCRIPT,... ..."""
import os
import sys

folder = sys.argv[2]


def read(name):
    with open(os.path.join(folder, name), encoding="utf-8") as file:
        return file.read()


def array(text):
    data = text.encode()
    return "{" + ",\n".join(",".join(map(str, data[at:at + 32])) for at in range(0, len(data), 32)) + "}"


with open(sys.argv[1], "w", encoding="ascii") as out:
    out.write('/* made by tools/embed.py */\n#include "report/page.h"\n')
    for page in sys.argv[3:]:
        command, scripts = page.split(":")
        shell = read("page.html").replace("@css@", read("report.css")).replace("@command@", command)
        shell = shell.replace("@scripts@", "".join(map(read, scripts.split(","))))
        for part, text in zip(("head", "foot"), shell.split("@data@")):
            out.write("\nstatic const unsigned char %s_%s[] = %s;\n" % (command, part, array(text)))
        out.write("\nconst struct page_shell page_%s = {%s_head, sizeof %s_head, %s_foot, sizeof %s_foot};\n" % ((command,) * 5))
