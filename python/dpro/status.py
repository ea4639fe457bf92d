"""How far this process has come, for the last line of dpro profile: a page of a file that dpro profile has in memory
(DPRO_STATUS names it; cli/status.h is the layout). It is mapped: what stands there outlives a killed process, and needs
neither a disk with room nor a descriptor, which the job may close."""
import ctypes
import mmap
import os
import struct

PAGE_BYTES, MOST_PROCESSES = 4096, 4096
LAYOUT = struct.Struct("=IiiIq")  # flags, rank, world size, not used, step
TEXT_BYTES = 1024
LOADED, STEPPED, WINDOW, WRITTEN, FINISHED, FAILED, ENDED = (1 << bit for bit in range(7))

_page = None
_flags, _rank, _world, _step = 0, -1, 0, 0


def _claim(path):
    if not os.readlink(path).startswith("/memfd:dpro-status"):  # of another machine, or of a process that has the number now
        return None
    fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
    try:
        if os.fstat(fd).st_size >= MOST_PROCESSES * PAGE_BYTES:
            return None
        os.write(fd, bytes(PAGE_BYTES))  # appended as a whole: its place is this process's
        offset = os.lseek(fd, 0, os.SEEK_CUR) - PAGE_BYTES
        libc = ctypes.CDLL(None)
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
        at = libc.mmap(None, PAGE_BYTES, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, fd, offset)
        return None if at in (None, ctypes.c_void_p(-1).value) else (ctypes.c_char * PAGE_BYTES).from_address(at)
    finally:
        os.close(fd)


def came_to(flag=0, step=None, place=None, text=None):
    """One of the flags above; the number of a step that ended; (rank, world size); why nothing more is recorded."""
    global _page, _flags, _rank, _world, _step
    try:
        if _page is None:
            _page = bytearray(PAGE_BYTES)  # that nobody reads, where the file is not within reach
            path = os.environ.get("DPRO_STATUS")
            _page = path and _claim(path) or _page
        _flags |= flag
        _step = _step if step is None else step
        _rank, _world = place or (_rank, _world)
        if text is not None:
            encoded = text.encode("utf-8", "replace")[:TEXT_BYTES - 1] + b"\0"
            struct.pack_into("%ds" % len(encoded), _page, LAYOUT.size, encoded)
        LAYOUT.pack_into(_page, 0, _flags, _rank, _world, 0, _step)
    except Exception:  # such as a rank that no job has: no reason to disturb the job
        pass


def forget():
    """In a forked child: the page is its parent's."""
    global _page, _flags, _step
    _page, _flags, _step = None, 0, 0
