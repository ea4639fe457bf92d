"""The folder of this rank in a trace directory (doc/formats/trace-directory.md), and writing there: everything is
written beside its place and renamed, so that a job may end at any moment."""
import errno
import fcntl
import glob
import gzip
import json
import mmap
import os
import re
import threading

COMPRESS_AT_EXIT_BYTES = 100 << 20  # a second or two; larger files stay as they are when the job ends first
PACKAGES = {"pytorch": "torch"}     # where a framework's name is not its package's
JOB_JSON_BY_ALL = 64                # ranks; above, only rank 0 writes job.json: reading all rank.json takes time


def host_number(host_name):
    for name in ("GROUP_RANK", "SLURM_NODEID"):
        if os.environ.get(name, "").isdigit():
            return os.environ[name]
    return re.sub(r"[^A-Za-z0-9._-]", "_", host_name) or "0"


def open_file(path, mode, **more):
    """open(), never with the descriptor of a standard stream that the job has closed: what it writes there is not ours."""
    def opener(path, flags):
        fd = os.open(path, flags | os.O_CLOEXEC, 0o666)
        if fd > 2:
            return fd
        try:
            return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
        finally:
            os.close(fd)
    return open(path, mode, opener=opener, **more)


class Folder:
    """Claims a folder `name` that nobody wrote into before: that of attempt 0, or the first free attempt's."""

    def __init__(self, out, host, name):
        self.out = out
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "")
        self.attempt = int(attempt) if attempt.isdigit() else 0
        while True:
            self.root = os.path.join(out, "attempt%d" % self.attempt) if self.attempt else out
            self.path = os.path.join(self.root, "host" + host, name)
            try:
                os.makedirs(os.path.dirname(self.path), exist_ok=True)
                os.mkdir(self.path)
                return
            except FileExistsError:
                self.attempt += 1

    def file(self, name):
        return os.path.join(self.path, name)

    def temporary(self, name):
        """Where to write what finish() then puts in its place."""
        return self.file(name + ".part")

    def finish(self, name):
        os.replace(self.temporary(name), self.file(name))

    def write(self, name, content):
        """A whole file, of bytes."""
        with open_file(self.temporary(name), "wb") as file:
            file.write(content)
        self.finish(name)

    def drop(self, name):
        for path in (self.temporary(name), self.file(name)):
            try:
                os.unlink(path)
            except OSError:
                pass

    def finish_json(self, name, unfinished=None):
        """finish() for JSON that torch wrote: it does not say so when the disk was full, but drops it or leaves a part.
        `unfinished` is the number of a profiled step that was cut short."""
        end = b""
        os.stat(self.path)
        if os.path.exists(self.temporary(name)):
            with open(self.temporary(name), "rb") as file:
                file.seek(0, os.SEEK_END)
                file.seek(max(file.tell() - 64, 0))
                end = file.read().rstrip()
        if not end.endswith((b"}", b"]")):
            self.drop(name)
            raise OSError(errno.ENOSPC, "torch could not write it as a whole: disk full, or a limit on file sizes", self.file(name))
        if unfinished is not None:
            rename_steps(self.temporary(name), unfinished)
        self.finish(name)

    @classmethod
    def write_json(cls, path, value):
        cls.write_text(path, json.dumps(value, separators=(",", ":")))

    @staticmethod
    def write_text(path, text):
        part = "%s.part%d" % (path, os.getpid())  # job.json has several writers
        try:
            with open_file(part, "w", encoding="utf-8") as file:
                file.write(text)
            os.replace(part, path)
        except OSError:
            try:
                os.unlink(part)
            except OSError:
                pass
            raise

    def write_rank(self, info):
        self.write_json(self.file("rank.json"), info)

    def write_job(self, version):
        ranks = []
        for path in glob.glob(os.path.join(glob.escape(self.root), "host*", "rank*", "rank.json")):
            try:
                with open(path, encoding="utf-8") as file:
                    ranks.append(json.load(file))
            except (OSError, ValueError):
                continue
        if ranks:
            self.write_json(os.path.join(self.root, "job.json"), job_of(ranks, version))


class Compressor(threading.Thread):
    """Replaces NAME by NAME.gz, in a thread that takes only the time that is left over, calling done(name) for each."""

    CHUNK = 256 << 10  # zlib runs without the interpreter's lock, so the job waits for none of these

    def __init__(self, folder, names, done):
        super().__init__(name="dpro-compress", daemon=True)
        self._folder, self._left, self._done = folder, list(names), done
        self._end = threading.Event()

    def run(self):
        try:
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
            self._compress()
        except Exception:  # the files are there uncompressed, which is as good
            pass

    def finish(self):
        """At the job's end: what is left is compressed now as far as that takes a moment. Returns the rest, which stays as it is."""
        if self.is_alive():
            self._end.set()
            self.join()
            self._end.clear()
        try:
            sizes = {name: os.path.getsize(self._folder.file(name)) for name in self._left}
            self._left.sort(key=sizes.get)
            large = []
            while self._left and sum(map(sizes.get, self._left)) > COMPRESS_AT_EXIT_BYTES:
                large.append(self._left.pop())
            self._compress()
            return large
        except OSError:
            return []

    def _compress(self):
        while self._left:
            name = self._left[0]
            with open_file(self._folder.file(name), "rb") as source, \
                    open_file(self._folder.temporary(name + ".gz"), "wb") as compressed, \
                    gzip.GzipFile(name, "wb", 3, compressed) as target:
                chunk = source.read(self.CHUNK)
                while chunk and not self._end.is_set():
                    target.write(chunk)
                    chunk = source.read(self.CHUNK)
            if self._end.is_set():
                self._folder.drop(name + ".gz")
                return
            self._folder.finish(name + ".gz")
            os.unlink(self._folder.file(name))
            del self._left[0]
            self._done(name)


def rename_steps(path, step):
    """Takes the mark off a step that did not end: in place, by a name of the same length."""
    with open_file(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as text:
        old = b'"ProfilerStep#%d"' % step
        at = text.find(old)
        while at >= 0:
            text[at:at + len(old)] = old.replace(b"ProfilerStep", b"UnfinishStep")
            at = text.find(old, at)


def _common(values):
    values = list(dict.fromkeys(values))
    return values[0] if len(values) == 1 else None


def job_of(ranks, version):
    """What the ranks have in common."""
    ranks = sorted(ranks, key=lambda r: r["rank"])
    first = ranks[0]
    hosts, groups = {}, {}
    parallel = set()
    for rank in ranks:
        host = hosts.setdefault(rank["host"], {"host": rank["host"], "name": rank["host_name"], "ranks": []})
        host["ranks"].append(rank["rank"])
        for group in rank["process_groups"]:
            groups.setdefault((group["name"], tuple(group["ranks"])), group)
        parallel.update(model["parallel"] for model in rank["models"])
    return {"schema": "dpro.job/1", "dpro": version, "framework": first["framework"],
            "framework_version": first["versions"][PACKAGES.get(first["framework"], first["framework"])], "world_size": first["world_size"],
            "backend": first["backend"], "attempt": first["attempt"], "command": first["command"],
            "batch_size": _common(rank["batch_size"] for rank in ranks), "iterations": first["iterations"],
            "parallel": parallel.pop() if len(parallel) == 1 else "mixed" if parallel else "none",
            "hosts": list(hosts.values()), "process_groups": list(groups.values())}
