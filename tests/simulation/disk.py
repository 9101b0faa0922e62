"""The disk of a simulation, in place of `meshflow.files.storage`.

What a process has written survives its death, as in the page cache of a machine. A process can be killed between any two
operations and in the middle of a write, and the disk can be full for some time.
"""

import errno
import os

from simulation.scheduler import world


class Disk:
    """The files of a simulation, a `Storage`.

    Attributes:
        full: Names of the roles, such as "ps0", whose processes have a full disk.
        slow: Probability that an operation takes up to `slow_seconds`.
    """

    def __init__(self, here):
        self.world = here
        self.files = {}
        self.full = set()
        self.slow, self.slow_seconds = 0.0, 1.0

    def start_operation(self, needs_space=False):
        here = self.world
        process = here.current.process
        here.preempt()
        process.burn("disk")
        if self.slow and here.rng.random() < self.slow:
            here.sleep(here.rng.random() * self.slow_seconds)
        if needs_space and self.is_full(process):
            here.note(process.name, "finds the disk full")
            raise OSError(errno.ENOSPC, "no space left on device")

    def is_full(self, process):
        return process.role in self.full

    def find(self, path):
        if path not in self.files:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return self.files[path]

    # ---- the methods of `Storage` ----------------------------------------------------------

    def open(self, path, mode):
        self.start_operation(needs_space=mode != "rb")
        if mode == "rb":
            return File(self, self.find(path))
        if mode == "xb" and path in self.files:
            raise FileExistsError(errno.EEXIST, "file exists", path)
        if path in self.files:
            self.files[path].clear()
        return File(self, self.files.setdefault(path, bytearray()))

    def get_size(self, path):
        self.start_operation()
        return len(self.find(path))

    def exists(self, path):
        self.start_operation()
        return path in self.files

    def list_names(self, folder):
        self.start_operation()
        names = (path.rpartition(os.sep) for path in self.files)
        return [name for parent, _, name in names if parent == folder]

    def make_folder(self, folder):
        self.start_operation()

    def rename(self, source, target):
        self.start_operation()
        self.find(source)
        self.files[target] = self.files.pop(source)

    def delete(self, path):
        self.start_operation()
        self.files.pop(path, None)

    def delete_folder(self, folder):
        self.start_operation()
        for path in [p for p in self.files if p.startswith(f"{folder}{os.sep}")]:
            del self.files[path]


class File:
    """An open file."""

    def __init__(self, disk, content):
        self.disk, self.content, self.offset = disk, content, 0

    def read(self, size):
        self.disk.start_operation()
        data = bytes(self.content[self.offset : self.offset + size])
        self.offset += len(data)
        return data

    def readinto(self, buffer):
        data = self.read(len(buffer))
        memoryview(buffer).cast("B")[: len(data)] = data
        return len(data)

    def write(self, data):
        here = world()
        data = bytes(data)
        partial = 0.6 if self.disk.is_full(here.current.process) else 0.2
        if len(data) > 1 and here.rng.random() < partial:
            # The system writes a part. The rest follows, or the process is killed, or the disk is full.
            data = data[: 1 + int(here.rng.random() * (len(data) - 1))]
            self.disk.start_operation()
        else:
            self.disk.start_operation(needs_space=True)
        self.content[self.offset : self.offset + len(data)] = data
        self.offset += len(data)
        return len(data)

    def seek(self, offset):
        self.disk.start_operation()
        self.offset = offset
        return offset

    def truncate(self, size):
        self.disk.start_operation()
        del self.content[size:]
        return size

    def close(self):
        pass
