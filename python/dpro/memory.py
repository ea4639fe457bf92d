"""Room in the heap for what the profiler keeps.

Between start and stop the profiler keeps thousands of small blocks, which malloc puts into the gaps between a CPU job's
large ones; the job's next tensor no longer fits where the last one was, and the heap grows by tens of MB a step. Each of
those pages has to be had from the kernel (on a virtual machine often from the host: some 10 us each), and steps were
seen to take a fifth longer, which is no part of the job. So the heap is made larger before, and smaller afterwards; long
before, as the job too takes fewer pages then, and steps with and without the profiler are to be compared."""
import ctypes
import mmap
import resource
import threading
import time

TIMES = 3  # what the job takes
MOST_BYTES = 1 << 30
MOST_NS = 8_000_000_000
BLOCK_BYTES = 120 << 10  # below malloc's first threshold for memory of its own
TRIES = 3
SHARE = 8                # of the memory that can be had, one part in so many, for all processes of the job on a machine
GROWTH = 4               # a window ends early when it has taken one part in so many


def _number(path):
    try:
        with open(path, encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError):  # no such file, "max"
        return None


def _field(path, name):
    """Of a file of lines "NAME NUMBER"; 0: it has none."""
    try:
        with open(path, encoding="ascii") as file:
            return next(int(line.split()[1]) for line in file if line.split(None, 1)[:1] == [name])
    except (OSError, StopIteration, ValueError):
        return 0


def _of_machine(field):
    """Bytes; 0: not known."""
    return _field("/proc/meminfo", field + ":") << 10


def _of_process(field):
    return _field("/proc/self/status", field + ":") << 10


def _limits():
    """(limit, used) bytes of each cgroup with a limit that this process is in, or that is around one. Files that are only cached are
    not counted as used: the kernel drops them where memory is short."""
    try:
        with open("/proc/self/cgroup", encoding="ascii") as file:
            lines = [line.rstrip("\n").split(":", 2) for line in file]
    except OSError:
        return
    for _, controllers, group in lines:
        if not controllers:
            folder, limit, usage, cached = "/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"
        elif "memory" in controllers.split(","):
            folder, limit, usage, cached = ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
                                            "total_inactive_file")
        else:
            continue
        parts = group.strip("/").split("/")
        for n in range(len(parts) + 1):  # in a container, that of the container is the root
            path = "/".join([folder, *parts[:n]])
            most, used = _number("%s/%s" % (path, limit)), _number("%s/%s" % (path, usage))
            if most is not None and used is not None:
                yield most, max(used - _field(path + "/memory.stat", cached), 0)


def available():
    """Bytes that can be had: of the machine, or of this process's cgroup where that is less; 0: not known."""
    return max(min([_of_machine("MemAvailable"), *(most - used for most, used in _limits())]), 0)


def capacity():
    """Bytes that there are in all: of the machine, or of this process's cgroup where that is less; 0: not known."""
    return max(min([_of_machine("MemTotal"), *(most for most, _ in _limits())]), 0)


def room(n_processes):
    """Bytes that this process could hold beyond the most that it has held so far, which a step may take again, where so many share the
    machine: of the machine, of its cgroups, and of its own limits (ulimit -v, -d)."""
    again, left = _of_process("VmHWM") - _of_process("VmRSS"), []
    if _of_machine("MemAvailable"):
        left.append(available() // n_processes - again)
    for limit, held in ((resource.RLIMIT_AS, "VmSize"), (resource.RLIMIT_DATA, "VmData")):
        most = resource.getrlimit(limit)[0]
        if most != resource.RLIM_INFINITY:
            left.append(most - _of_process(held) - max(again, _of_process("VmPeak") - _of_process("VmSize")))
    return max(min(left, default=1 << 62), 0)


def resident():
    """Bytes of this process in memory; 0: not known."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * mmap.PAGESIZE
    except (OSError, ValueError, IndexError):
        return 0


def page_faults(whose=resource.RUSAGE_SELF):
    """Pages that the kernel had to give this process so far, or its thread."""
    return resource.getrusage(whose).ru_minflt


def fault_ns():
    """What a page fault takes this thread; 0: not known, as where pages are large."""
    n, took, faults = 4096, [], page_faults(resource.RUSAGE_THREAD)
    with mmap.mmap(-1, n * mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as room:
        for _ in range(2):  # the second time they are there
            begin = time.thread_time_ns()
            room[::mmap.PAGESIZE] = bytes(n)
            took.append(time.thread_time_ns() - begin)
    n_faults = page_faults(resource.RUSAGE_THREAD) - faults
    return max(took[0] - took[1], 0) // n if n_faults >= n else 0


class _Info(ctypes.Structure):
    """struct mallinfo2; struct mallinfo has the same fields as int."""
    _fields_ = [(name, ctypes.c_size_t) for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks",
                                                     "uordblks", "fordblks", "keepcost")]


class _OldInfo(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int) for name, _ in _Info._fields_]


def _used_bytes(libc):
    """A function that tells how many bytes glibc's malloc has given, modulo 2^32."""
    ask = getattr(libc, "mallinfo2", None)
    if ask is not None:
        ask.restype = _Info
    else:  # before glibc 2.33
        ask = libc.mallinfo
        ask.restype = _OldInfo

    def used():
        info = ask()
        return (info.uordblks + info.hblkhd) & 0xffffffff
    return used


def _is_glibcs(process, libc):
    """Whether the malloc that this process calls is glibc's: glibc then counts a block from it. Addresses don't tell,
    since malloc's is that of a stub in the program where that is not position-independent."""
    used = _used_bytes(libc)
    for _ in range(TRIES):  # another thread may free as much in between
        before = used()
        block = process.malloc(BLOCK_BYTES)
        grown = (used() - before) & 0xffffffff
        process.free(block)
        if BLOCK_BYTES <= grown < 1 << 31:
            return True
    return False


def _declare(library):
    library.malloc.restype, library.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    library.free.restype, library.free.argtypes = None, [ctypes.c_void_p]


def _libc():
    """(the C library, None), where this thread's malloc is glibc's and takes from the one heap that sbrk tells of; else (None, why)."""
    if threading.current_thread() is not threading.main_thread():
        return None, "the thread that trains is not the main one and has a heap of its own"
    try:
        process, own = ctypes.CDLL(None), ctypes.CDLL("libc.so.6")
        if not hasattr(own, "gnu_get_libc_version"):
            return None, "its C library is not glibc"
        _declare(process)
        _declare(own)
        own.sbrk.restype, own.sbrk.argtypes = ctypes.c_void_p, [ctypes.c_long]
        if not _is_glibcs(process, own):
            return None, "its malloc is not glibc's"
    except (OSError, AttributeError):
        return None, "its C library is not glibc"
    return own, None


class Room:
    """Free memory in this process's heap, in use before: three times what the job has taken, at most a GiB, an eighth of
    what the machine has left, and what can be had in 8 s. `problem`: why it is less than the job has taken, None where it
    is not. Ends with leave()."""

    def __init__(self, n_taken_bytes, n_processes):
        self.n_bytes, self._top = 0, None
        self._libc, self.problem = _libc()
        share = available() // (SHARE * max(n_processes, 1))
        want = min(TIMES * n_taken_bytes, MOST_BYTES, share)
        least = min(n_taken_bytes, MOST_BYTES)
        if self._libc is None or want < least:
            self.problem = self.problem or "the machine has too little memory left"
        if self._libc is None:
            return
        end_ns = time.monotonic_ns() + MOST_NS
        self._make(want, end_ns)
        if self.n_bytes < least and self.problem is None:
            self.problem = ("the machine is slow to give memory" if time.monotonic_ns() >= end_ns else
                            "malloc puts its blocks elsewhere (its settings in the environment)")

    def _make(self, want, end_ns):
        malloc, heap_end = self._libc.malloc, self._libc.sbrk
        begin, blocks = heap_end(0), []
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
