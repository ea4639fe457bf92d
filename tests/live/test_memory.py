"""Room in the heap: never more than there is, and only where it is known to help."""
import os
import subprocess
import sys
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BEGIN = """
import sys, threading
sys.path.insert(0, %r)
from dpro import memory
MB = 1 << 20
""" % os.path.join(ROOT, "python")


def run(body, **environment):
    """In a process of its own: heaps differ by what was done before."""
    done = subprocess.run([sys.executable, "-c", BEGIN + body], env={**os.environ, **environment}, stdin=subprocess.DEVNULL,
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
    print(memory.Room(100 * MB, 1).n_bytes)
thread = threading.Thread(target=ask)
thread.start()
thread.join()
""", "0\n")

    def test_what_can_be_had_is_bounded_by_the_machine(self):
        self.assert_prints("""
import os
print(0 < memory.available() <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
print(memory._number("/proc/version"), memory._number("/nowhere"))
""", "True\nNone None\n")


if __name__ == "__main__":
    unittest.main()
