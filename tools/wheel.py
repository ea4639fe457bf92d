#!/usr/bin/env python3
"""wheel.py WHEEL FOLDER LIBRARY... LICENSE...: puts libraries and their licenses into a wheel of dpro, where the command and
libdpro.so look for them (their run paths: meson.build, src/meson.build), names it by the manylinux tag that the newest symbol of
the C library in it allows, and writes it into FOLDER. What else it needs must be the C library's."""
import base64
import hashlib
import os
import re
import subprocess
import sys
import zipfile

# PEP 600 leaves these to the system.
SYSTEM = re.compile(r"(lib(c|m|dl|rt|pthread)|ld-linux[\w-]*)\.so\.\d+\Z")


def facts(data, folder):
    """(what an ELF file needs, the newest version of glibc's symbols)"""
    path = os.path.join(folder, "file.elf")
    with open(path, "wb") as out:
        out.write(data)
    told = subprocess.run(["objdump", "-p", path], stdout=subprocess.PIPE, text=True, check=True).stdout
    os.remove(path)
    versions = [tuple(map(int, version.split("."))) for version in re.findall(r"\bGLIBC_(\d+\.\d+)", told)]
    return set(re.findall(r"NEEDED\s+(\S+)", told)), max(versions, default=(0, 0))


def main(wheel, folder, *added):
    with zipfile.ZipFile(wheel) as archive:
        files = {info.filename: (archive.read(info), info.external_attr) for info in archive.infolist() if not info.is_dir()}
    info = next(name.split("/")[0] for name in files if name.endswith(".dist-info/WHEEL"))
    beside = next(name for name in files if name.endswith("/libdpro.so"))
    for path in added:
        with open(path, "rb") as file:
            data = file.read()
        if path.endswith(".copyright"):
            files["%s/licenses/%s" % (info, os.path.basename(path))] = data, 0o100644 << 16
            continue
        name = re.match(r"lib\w+\.so\.\d+", os.path.basename(path)).group(0)
        for place in (os.path.dirname(beside), info.replace(".dist-info", ".data/data/share/dpro/lib")):
            files[place + "/" + name] = data, 0o100755 << 16
    held = {os.path.basename(name) for name in files}
    newest = (2, 5)
    for name, (data, _) in files.items():
        if data[:4] == b"\x7fELF":
            needed, version = facts(data, folder)
            strange = [one for one in needed if not SYSTEM.match(one) and one not in held]
            if strange:
                raise SystemExit("wheel.py: %s needs %s, which is not in the wheel" % (name, ", ".join(strange)))
            newest = max(newest, version)
    tag = "py3-none-manylinux_%d_%d_%s" % (*newest, os.uname().machine)
    about, mode = files[info + "/WHEEL"]
    files[info + "/WHEEL"] = re.sub(rb"(?m)^Tag: .*$", b"Tag: " + tag.encode(), about), mode
    rows = []
    for name, (data, _) in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        rows.append("%s,," % name if name == info + "/RECORD" else "%s,sha256=%s,%d" % (name, digest, len(data)))
    files[info + "/RECORD"] = "\n".join(rows).encode() + b"\n", files[info + "/RECORD"][1]
    path = os.path.join(folder, "%s-%s.whl" % (info.replace(".dist-info", ""), tag))
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, (data, mode) in files.items():
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            entry.external_attr, entry.compress_type = mode, zipfile.ZIP_DEFLATED
            archive.writestr(entry, data)
    print("%s: %.1f MB, glibc %d.%d or later" % (os.path.basename(path), os.path.getsize(path) / 1e6, *newest))


if __name__ == "__main__":
    main(*sys.argv[1:])
