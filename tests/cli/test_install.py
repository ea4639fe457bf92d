"""What `make install` puts in place is enough to build a program against."""
import json
import os
import shutil
import subprocess
import tempfile
import unittest

from support import BUILD, ROOT, SANITIZED, Case, write_text

PROGRAM = r"""
#include <dpro/dpro.h>
#include <stdio.h>
#include <string.h>

int main(void)
{
    struct dpro_trace *trace;
    struct dpro_error err = {0};
    const char *paths[] = {"/nowhere"};
    if (dpro_trace_load(paths, 1, NULL, &trace, &err) == 0 || strstr(err.text, "nowhere") == NULL)
        return 1;
    puts(dpro_version());
    return 0;
}
"""


class Install(Case):
    @classmethod
    def setUpClass(cls):
        if SANITIZED:
            raise unittest.SkipTest("an instrumented build is not one to install")
        if shutil.which("pkg-config") is None:
            raise unittest.SkipTest("no pkg-config here")
        destination = tempfile.mkdtemp(prefix="dpro-test-")
        cls.addClassCleanup(shutil.rmtree, destination, ignore_errors=True)
        cls.run_quietly(["meson", "install", "-C", BUILD, "--no-rebuild", "--quiet", "--destdir", destination])
        places = [folder for folder, _, files in os.walk(destination) if "dpro.pc" in files]
        assert len(places) == 1, places
        with open(os.path.join(places[0], "dpro.pc"), encoding="utf-8") as file:
            cls.prefix = file.readline().strip().split("=", 1)[1]
        cls.pkgconfig = places[0]
        cls.root = destination + cls.prefix

    @staticmethod
    def run_quietly(command, **more):
        done = subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=300, **more)
        assert done.returncode == 0, f"{command}\n{done.stdout.decode('utf-8', 'replace')}"
        return done.stdout.decode()

    def flags(self, *options):
        env = {**os.environ, "PKG_CONFIG_PATH": self.pkgconfig}
        return self.run_quietly(["pkg-config", f"--define-variable=prefix={self.root}", *options, "dpro"],
                                env=env).split()

    def compile(self, *flags):
        source = self.write("program.c", PROGRAM)
        self.run_quietly([os.environ.get("CC", "cc"), "-std=c11", "-Wall", "-Wextra", "-Werror", source, "-o",
                          self.path("program"), *flags])

    def version(self):
        return self.run_quietly([os.path.join(BUILD, "dpro"), "--version"]).split()[1]

    def test_everything_is_in_its_place(self):
        files = [os.path.relpath(os.path.join(folder, name), self.root)
                 for folder, _, names in os.walk(self.root) for name in names]
        names = {os.path.basename(name) for name in files}
        self.assertIn("bin/dpro", files)
        self.assertIn("include/dpro/dpro.h", files)
        for page in ("dpro", "dpro-align", "dpro-attach", "dpro-export", "dpro-profile", "dpro-replay", "dpro-verify"):
            self.assertIn(f"share/man/man1/{page}.1", files)
        self.assertIn("share/bash-completion/completions/dpro", files)
        self.assertIn("share/zsh/site-functions/_dpro", files)
        self.assertIn("share/fish/vendor_completions.d/dpro.fish", files)
        self.assertLessEqual({"libdpro.so", "libdpro.a", "dpro.pc"}, names)
        self.assertIn("lib/dpro/libdpro_tracer.so", files)
        self.assertIn("lib/dpro/libnccl-profiler-dpro.so", files)
        self.assertIn("share/dpro/python/dpro/__init__.py", files)
        self.assertIn("share/dpro/python/dpro/site/sitecustomize.py", files)
        self.assertEqual([name for name in files if "__pycache__" in name or name.endswith(".pth")], [])
        self.assertEqual([name for name in files if name.endswith(".a") and not name.endswith("/libdpro.a")], [])

    def test_the_installed_command_runs(self):
        out = self.run_quietly([os.path.join(self.root, "bin", "dpro"), "--version"])
        self.assertEqual(out.split()[1], self.version())

    def test_a_program_builds_with_the_shared_library(self):
        self.compile(*self.flags("--cflags", "--libs"))
        libdir = self.flags("--variable=libdir")[0]
        out = self.run_quietly([self.path("program")], env={**os.environ, "LD_LIBRARY_PATH": libdir})
        self.assertEqual(out.strip(), self.version())

    def test_a_program_builds_with_the_static_library(self):
        flags = self.flags("--static", "--cflags", "--libs")
        self.compile(*["-l:libdpro.a" if flag == "-ldpro" else flag for flag in flags])
        self.assertEqual(self.run_quietly([self.path("program")]).strip(), self.version())

    def test_the_shared_library_shows_its_interface_only(self):
        libdir = self.flags("--variable=libdir")[0]
        out = self.run_quietly(["nm", "-D", "--defined-only", os.path.join(libdir, "libdpro.so")])
        names = [line.split()[-1] for line in out.splitlines()]
        self.assertTrue(names)
        self.assertEqual([n for n in names if not n.startswith("dpro_")], [])


class Missing(Case):
    """What `pip install .` shows of Meson, where a package of the system is missing."""

    def test_a_commands_only_mpi_is_none(self):
        """openmpi-bin without its headers: the module is left out, and the rest is built."""
        packages, build = self.path("pkgconfig"), self.path("build")
        os.mkdir(packages)
        for name in "libisal", "sqlite3":
            folder = subprocess.run(["pkg-config", "--variable=pcfiledir", name], stdout=subprocess.PIPE, check=True, text=True)
            shutil.copy(os.path.join(folder.stdout.strip(), name + ".pc"), packages)
        write_text(os.path.join(packages, "ompi-c.pc"), "Name: ompi-c\nDescription: MPI\nVersion: 4.1\nCflags: -I/no/such\nLibs: -lm\n")
        compiler = self.write("mpicc", '#!/bin/sh\ncase $1 in *version) echo 4.1.4;; *compile) echo -I/no/such;; *link) echo -lm;; esac\n')
        os.chmod(compiler, 0o755)  # newer versions of Meson ask it before pkg-config
        done = subprocess.run(["meson", "setup", build, ROOT, "-Dwheel=true", "-Dtests=false"], text=True, timeout=120, env={
            **os.environ, "PKG_CONFIG_LIBDIR": packages, "PKG_CONFIG_PATH": "", "MPICC": compiler}, stdout=subprocess.PIPE)
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertRegex(done.stdout, 'Has header "mpi.h" with dependency .*: NO')
        targets = json.loads(subprocess.run(["meson", "introspect", "--targets", build], stdout=subprocess.PIPE, check=True).stdout)
        self.assertNotIn("dpro_mpi", [target["name"] for target in targets])

    def test_the_packages_that_are_needed_are_named(self):
        for variable, what in (("CC", "a C compiler is missing"), ("PKG_CONFIG", "libisal is missing, or pkg-config"),
                               ("PKG_CONFIG_LIBDIR", "libisal is missing, or pkg-config")):
            with self.subTest(variable=variable):
                done = subprocess.run(["meson", "setup", self.path(variable), ROOT, "-Dwheel=true", "-Dtests=false"],
                                      env={**os.environ, variable: "/no/such"}, stdout=subprocess.PIPE, timeout=120)
                self.assertNotEqual(done.returncode, 0)
                self.assertRegex(done.stdout.decode(), what + "[^\\n]* Debian and Ubuntu: apt install gcc libc6-dev "
                                 "pkg-config libisal-dev libsqlite3-dev\\n")


class Make(Case):
    def test_help_lists_the_targets(self):
        done = subprocess.run(["make", "--no-print-directory", "help"], cwd=ROOT, stdout=subprocess.PIPE, timeout=60)
        for target in (b"build", b"demo", b"demo-live", b"test", b"test-long", b"bench", b"bench-live", b"accuracy",
                       b"lint", b"install", b"wheel", b"deb", b"clean"):
            self.assertIn(b"\n" + target + b" ", b"\n" + done.stdout)
