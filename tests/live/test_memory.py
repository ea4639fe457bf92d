"""Room in the heap: never more than there is, and only where it is known to help."""
import glob
import os
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BEGIN = """
import sys, threading
sys.path.insert(0, %r)
from dpro import memory
MB = 1 << 20
""" % os.path.join(ROOT, "python")


ALLOCATOR = """
#include <stddef.h>
#include <string.h>
static char memory[256 << 20];
static size_t used;
void *malloc(size_t n)
{
    size_t *block = (size_t *)(void *)(memory + used);
    if (n > sizeof memory || used + n + 32 > sizeof memory)
        return NULL;
    used += (n + 31) / 16 * 16;
    *block = n;
    return (char *)block + 16;
}
void free(void *block) { (void)block; }
void *calloc(size_t n, size_t size) { return malloc(n * size); }
void *realloc(void *block, size_t n)
{
    void *other = malloc(n);
    size_t had = block ? *(size_t *)(void *)((char *)block - 16) : 0;
    return other && block ? memcpy(other, block, had < n ? had : n) : other;
}
"""


def pythons():
    """Interpreters of this machine that dpro supports, of builds as different as there are: that of the tests, Debian's,
    which is not position-independent, and pyenv's."""
    found = {os.path.realpath(path): path for path in ("/usr/bin/python3", *sorted(
        glob.glob(os.path.expanduser("~/.pyenv/versions/*/bin/python3")))) if os.path.exists(path)}
    supported = "import sys; sys.exit(sys.version_info < (3, 8))"
    return [sys.executable, *(path for path in found.values() if subprocess.run([path, "-c", supported]).returncode == 0)]


def run(body, python=sys.executable, **environment):
    """In a process of its own: heaps differ by what was done before."""
    done = subprocess.run([python, "-c", BEGIN + body], env={**os.environ, **environment}, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=120)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


class Room(unittest.TestCase):
    def assert_prints(self, body, wanted, **environment):
        self.assertEqual(run(body, **environment), (0, wanted, ""))

    def test_what_was_made_is_resident_and_free(self):
        self.assert_prints("""
before = memory.resident()
room = memory.Room(20 * MB, 1)
print(60 * MB <= room.n_bytes <= 62 * MB, memory.resident() - before >= 58 * MB)
import resource
faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
blocks = [bytearray(100 << 10) for _ in range(500)]
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults < 1000)
""", "True True\nTrue\n")

    def test_it_is_made_in_every_build_of_python(self):
        for python in pythons():
            with self.subTest(python=python):
                self.assertEqual(run("""
room = memory.Room(20 * MB, 1)
print(60 * MB <= room.n_bytes <= 62 * MB, room.problem)
""", python), (0, "True None\n", ""))

    def test_another_allocator_is_recognised_in_every_build_of_python(self):
        with tempfile.TemporaryDirectory() as folder:
            source, library = os.path.join(folder, "allocator.c"), os.path.join(folder, "allocator.so")
            with open(source, "w", encoding="utf-8") as file:
                file.write(ALLOCATOR)
            subprocess.run([os.environ.get("CC", "cc"), "-shared", "-fPIC", "-fno-builtin", "-o", library, source], check=True)
            for python in pythons():
                with self.subTest(python=python):
                    self.assertEqual(run("""
room = memory.Room(20 * MB, 1)
print(room.n_bytes, room.problem)
""", python, LD_PRELOAD=library), (0, "0 its malloc is not glibc's\n", ""))

    def test_why_there_is_none(self):
        for given, environment, why in (
                ("memory.available = lambda: 0", {}, "the machine has too little memory left"),
                ("memory.MOST_NS = 0", {}, "the machine is slow to give memory"),
                ("", {"MALLOC_MMAP_THRESHOLD_": "4096"}, "malloc puts its blocks elsewhere (its settings in the environment)")):
            with self.subTest(why=why):
                self.assertEqual(run(given + "\nprint(memory.Room(20 * MB, 1).problem)", **environment), (0, why + "\n", ""))

    def test_it_goes_back_to_the_system(self):
        self.assert_prints("""
before = memory.resident()
room = memory.Room(20 * MB, 1)
room.leave()
room.leave()
print(memory.resident() - before < 20 * MB)
""", "True\n")

    def test_no_more_than_an_eighth_of_what_is_left_for_all_processes(self):
        for left, n_processes, had in ((640, 1, 80), (640, 8, 10), (0, 1, 0)):
            self.assert_prints("""
memory.available = lambda: %d * MB
print(%d <= memory.Room(1000 * MB, %d).n_bytes / MB < %d + 1)
""" % (left, had, n_processes, had), "True\n")

    def test_a_machine_that_is_slow_to_give_pages_holds_the_job_up_for_a_bounded_time(self):
        self.assert_prints("""
memory.MOST_NS = 0
print(memory.Room(1000 * MB, 1).n_bytes)
""", "0\n")

    def test_a_thread_with_a_heap_of_its_own_gets_none(self):
        self.assert_prints("""
def ask():
    room = memory.Room(100 * MB, 1)
    print(room.n_bytes, "not the main one" in room.problem)
thread = threading.Thread(target=ask)
thread.start()
thread.join()
""", "0 True\n")

    def test_what_can_be_had_is_bounded_by_the_machine(self):
        self.assert_prints("""
import os
print(0 < memory.available() <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
print(memory._number("/proc/version"), memory._number("/nowhere"))
""", "True\nNone None\n")
