"""Room in the heap for what the profiler keeps.

Between start and stop the profiler keeps thousands of small blocks, which malloc puts into the gaps between a CPU job's
large ones; the job's next tensor no longer fits where the last one was, and the heap grows by tens of MB a step. Each of
those pages has to be had from the kernel (on a virtual machine often from the host: some 10 us each), and steps were
seen to take a fifth longer, which is no part of the job. So the heap is made larger before, and smaller afterwards; long
before, as the job too takes fewer pages then, and steps with and without the profiler are to be compared."""
import ctypes
import mmap
import threading
import time

TIMES = 3  # what the job takes
MOST_BYTES = 1 << 30
MOST_NS = 8_000_000_000
BLOCK_BYTES = 120 << 10  # below malloc's first threshold for memory of its own
SHARE = 8                # of the memory that can be had, one part in so many, for all processes of the job on a machine
GROWTH = 4               # a window ends early when it has taken one part in so many


def _number(path):
    try:
        with open(path, encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError):  # no such file, "max"
        return None


def available():
    """Bytes that can be had: of the machine, or of this process's cgroup where that is less; 0: not known."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            free = next(int(line.split()[1]) << 10 for line in file if line.startswith("MemAvailable:"))
        with open("/proc/self/cgroup", encoding="ascii") as file:
            group = next((line.strip().split("::", 1)[1] for line in file if line.startswith("0::")), "/")
    except (OSError, StopIteration):
        return 0
    for folder, limit, usage in (("/sys/fs/cgroup" + group, "memory.max", "memory.current"),
                                 ("/sys/fs/cgroup", "memory.max", "memory.current"),
                                 ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes")):
        most, used = _number("%s/%s" % (folder, limit)), _number("%s/%s" % (folder, usage))
        if most is not None and used is not None:
            free = min(free, most - used)
    return max(free, 0)


def resident():
    """Bytes of this process in memory; 0: not known."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * mmap.PAGESIZE
    except (OSError, ValueError, IndexError):
        return 0


def _libc():
    """The C library, where this thread's malloc is glibc's and takes from the one heap that sbrk tells of; else None."""
    process, own = ctypes.CDLL(None), None
    try:
        own = ctypes.CDLL("libc.so.6")
        if not hasattr(own, "gnu_get_libc_version") or threading.current_thread() is not threading.main_thread():
            return None
        if ctypes.cast(process.malloc, ctypes.c_void_p).value != ctypes.cast(own.malloc, ctypes.c_void_p).value:
            return None  # the job brought an allocator
    except (OSError, AttributeError):
        return None
    own.malloc.restype = own.sbrk.restype = ctypes.c_void_p
    own.malloc.argtypes, own.free.argtypes, own.sbrk.argtypes = [ctypes.c_size_t], [ctypes.c_void_p], [ctypes.c_long]
    return own


class Room:
    """Free memory in this process's heap, in use before: three times what the job has taken, at most a GiB, an eighth of
    what the machine has left, and what can be had in 8 s. Ends with leave()."""

    def __init__(self, n_taken_bytes, n_processes):
        self.n_bytes, self._libc, self._top = 0, _libc(), None
        want = min(TIMES * n_taken_bytes, MOST_BYTES, available() // (SHARE * max(n_processes, 1)))
        if self._libc is None:
            return
        malloc, heap_end = self._libc.malloc, self._libc.sbrk
        begin, end_ns, blocks = heap_end(0), time.monotonic_ns() + MOST_NS, []
        while self.n_bytes < want and len(blocks) * BLOCK_BYTES < 2 * want and time.monotonic_ns() < end_ns:
            block = malloc(BLOCK_BYTES)
            if not block:
                break
            ctypes.memset(block, 0, BLOCK_BYTES)
            blocks.append(block)
            self.n_bytes = heap_end(0) - begin
        if blocks:
            self._top = max(blocks)  # what lies below it stays in the heap
        for block in blocks:
            if block != self._top:
                self._libc.free(block)

    def leave(self):
        if self._top is not None:
            self._libc.free(self._top)
            self._top = None
