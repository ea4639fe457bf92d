"""What `pip install .` puts into a Python environment works there, without the checkout."""
import glob
import os
import re
import shutil
import subprocess
import sys
import unittest

from support import BUNDLED, ROOT, SANITIZED, Case, dpro, write_text

BUILDER = os.environ.get("DPRO_PYTHON", sys.executable)  # has meson-python, so that nothing is fetched


class Wheel(Case):
    @classmethod
    def setUpClass(cls):
        if SANITIZED:
            raise unittest.SkipTest("an instrumented build is not one to install")
        if subprocess.run([BUILDER, "-c", "import mesonpy"], stderr=subprocess.DEVNULL).returncode != 0:
            raise unittest.SkipTest(f"no meson-python for {BUILDER}; 'make test' installs it")
        cls.place = os.path.join(ROOT, "out", "test-wheel")
        shutil.rmtree(cls.place, ignore_errors=True)
        cls.addClassCleanup(shutil.rmtree, cls.place, ignore_errors=True)
        # not optimized: what is compiled is tested elsewhere
        run([BUILDER, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "--no-index", "-w", cls.place,
             "--config-settings=setup-args=-Doptimization=0", ROOT])
        wheels = [name for name in os.listdir(cls.place) if name.endswith(".whl")]
        cls.wheel = os.path.join(cls.place, *wheels)
        run([BUILDER, "-m", "venv", cls.path_in("venv")])
        run([cls.path_in("venv", "bin", "pip"), "install", "--no-index", cls.wheel])

    @classmethod
    def path_in(cls, *names):
        return os.path.join(cls.place, *names)

    def run_there(self, name, *args, **env):
        """Runs a program of the environment as a user would who knows nothing of the checkout."""
        path = self.path_in("venv", "bin") + os.pathsep + os.environ["PATH"]
        return run([name, *args], cwd=self.folder, env={"PATH": path, "HOME": self.folder, **env})

    def lend_torch(self):
        """Makes the builder's packages importable in the environment; skips where torch is none of them."""
        asked = subprocess.run([BUILDER, "-c", "import sysconfig, torch; print(sysconfig.get_path('purelib'))"],
                               stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, timeout=300)
        if asked.returncode != 0:
            self.skipTest(f"no torch for {BUILDER}; 'make test' installs it")
        lent = os.path.join(self.site_packages(), "lent.pth")
        write_text(lent, asked.stdout)
        self.addCleanup(os.remove, lent)

    def site_packages(self):
        return self.run_there("python", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").stdout.strip()

    def test_the_command_is_on_the_path(self):
        self.assertEqual(self.run_there("dpro", "--version").stdout, re.sub(r"optimization \w+", "optimization 0", dpro("--version").out))

    def test_the_package_comes_with_its_libraries(self):
        package = os.path.join(self.site_packages(), "dpro")
        for name in ("libdpro.so", "libdpro_tracer.so", "libnccl-profiler-dpro.so"):
            self.assertTrue(os.path.exists(os.path.join(package, "lib", name)), name)

    def test_the_manual_pages_and_completions_are_where_they_are_looked_for(self):
        for name in ("bash-completion/completions/dpro", "zsh/site-functions/_dpro", "fish/vendor_completions.d/dpro.fish"):
            self.assertTrue(os.path.exists(self.path_in("venv", "share", *name.split("/"))), name)
        pages = {os.path.basename(page) for page in glob.glob(os.path.join(ROOT, "doc", "man", "*.1"))}
        self.assertEqual(set(os.listdir(self.path_in("venv", "share", "man", "man1"))), pages)

    def test_auditwheel_takes_it(self):
        auditwheel = os.path.join(ROOT, ".venv-notebook", "bin", "auditwheel")
        if not os.path.exists(auditwheel):
            self.skipTest("no auditwheel: tools/venv.sh notebook installs it")
        said = run([auditwheel, "show", "--json", self.wheel]).stdout
        needed = {name.partition(".")[0] for name in re.findall(r'"(lib[\w+-]+\.so[.\d]*)"', said)}
        self.assertFalse({name for name in needed if "mpi" in name or "udev" in name}, said)

    @unittest.skipUnless(shutil.which("mpirun"), "no mpirun")
    def test_its_processes_work_together_under_mpirun(self):
        alone = self.run_there("dpro", "replay", "--json", BUNDLED).stdout
        told = self.run_there("mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2", "dpro", "replay", "-v", "--json", BUNDLED)
        self.assertEqual(told.stdout, alone)
        self.assertRegex(told.stderr, "1 of 2 ranks built by other processes")

    def test_the_package_can_be_imported_without_torch(self):
        self.assertEqual(self.run_there("python", "-c", "import dpro; print(dpro.__version__)").stdout,
                         dpro("--version").out.split()[1] + "\n")

    def test_the_package_searches_with_the_library_that_came_with_it(self):
        done = self.run_there("python", "-c", f"import dpro; print(dpro.optimize({BUNDLED!r})['schema'])")
        self.assertEqual(done.stdout, "dpro.optimize/1\n")

    def test_parquet_is_written_by_the_environment_s_own_python(self):
        done = subprocess.run([self.path_in("venv", "bin", "dpro"), "export", "--parquet", self.path("tables"), BUNDLED],
                              env={"PATH": "/usr/bin:/bin"}, stderr=subprocess.PIPE, text=True, timeout=60)
        self.assertRegex(done.stderr, "(?m)^dpro: --parquet .with .*/test-wheel/venv/.*bin/python3. needs the package pyarrow")

    def test_python_starts_without_loading_anything_of_ours(self):
        done = self.run_there("python", "-c", "import sys; print([m for m in sys.modules if m.startswith('dpro')])")
        self.assertEqual((done.stdout, done.stderr), ("[]\n", ""))

    def test_python_starts_where_the_package_is_broken(self):
        package = os.path.join(self.site_packages(), "dpro")
        os.rename(package, package + ".away")
        try:
            done = self.run_there("python", "-c", "print(1)", DPRO="1", DPRO_OUT=self.path("trace"))
        finally:
            os.rename(package + ".away", package)
        self.assertEqual(done.stdout, "1\n")
        self.assertRegex(done.stderr, r"\Adpro: could not start in this process \([^\n]+\); nothing is recorded\n\Z")

    def test_a_program_is_run_under_dpro_profile(self):
        done = self.run_there("dpro", "profile", "-o", self.path("trace"), "--", "echo", "ran")
        self.assertEqual(done.stdout, "ran\n")

    def test_without_torch_a_recorded_python_runs_as_ever(self):
        for env in ({"DPRO": "1", "DPRO_OUT": self.path("trace")}, {}):
            launch = [] if env else ["dpro", "profile", "-o", self.path("trace"), "--"]
            with self.subTest(launch=launch):
                done = self.run_there(*launch, "python", "-c", "print(1)", **env)
                self.assertEqual(done.stdout, "1\n")

    def test_an_environment_variable_is_enough_to_record_two_ranks(self):
        self.lend_torch()
        trace = self.path("trace")
        self.run_there("python", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2",
                       os.path.join(ROOT, "examples", "gpt.py"), "--device", "cpu", "--steps", "30", "--batch-size", "2",
                       "--layers", "2", "--width", "64", "--vocabulary", "512",
                       DPRO="1", DPRO_OUT=trace, DPRO_WARMUP="2", DPRO_ITERATIONS="3", OMP_NUM_THREADS="1")
        ranks = glob.glob(os.path.join(trace, "host*", "rank*"))
        self.assertEqual(len(ranks), 2)
        for rank in ranks:
            for name in ("rank.json", "kineto.json.gz", "et.json.gz", "net.log"):
                self.assertGreater(os.path.getsize(os.path.join(rank, name)), 0, name)


def run(command, **more):
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          timeout=600, **more)
    if done.returncode != 0:
        raise AssertionError(f"{command}: exit status {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
    return done
