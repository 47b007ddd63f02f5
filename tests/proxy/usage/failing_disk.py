"""A disk whose steps fail: in one thread, for the files of one directory, once or until it is mended."""

import errno
import fcntl
import os
import stat
import threading
from collections import Counter

STEPS = {
    "make": errno.ENOSPC,
    "open directory": errno.EMFILE,
    "write": errno.ENOSPC,
    "truncate": errno.EIO,
    "sync file": errno.EIO,
    "rename": errno.EACCES,
    "sync directory": errno.EIO,
    "close": errno.EIO,
    "look": errno.EACCES,
}
"""Each step of a writer, and an error with which it fails."""


class FailingDisk:
    """`fails` says of a step and of how many of its kind came before whether it fails."""

    def __init__(self, monkeypatch, thread):
        self.fails = lambda step, number: False
        self.number = Counter()
        self.failures = 0
        self.errors = dict(STEPS)
        self.published = {}
        """What a file had in it when it got its name."""
        self._thread = thread
        for name in ("open", "pwrite", "ftruncate", "fsync", "replace", "close", "stat"):
            monkeypatch.setattr(os, name, self._instead_of(getattr(os, name), getattr(self, f"_{name}")))
        monkeypatch.setattr(fcntl, "flock", self._instead_of(fcntl.flock, lambda *_: "lock"))

    def _instead_of(self, real, step_of):
        def done(*args, **options):
            if threading.current_thread().name != self._thread:
                return real(*args, **options)
            step = step_of(*args)
            if step is not None:
                number = self.number[step]
                self.number[step] += 1
                if self.fails(step, number):
                    self.failures += 1
                    if step == "close":  # the number is free all the same
                        real(*args)
                    if step == "write":
                        real(args[0], bytes(args[1])[:7], args[2])
                    raise OSError(self.errors[step], os.strerror(self.errors[step]))
            result = real(*args, **options)
            if step == "rename":
                self.published[args[1].name] = args[1].read_bytes()
            return result

        return done

    @staticmethod
    def _open(path, flags, *_):
        return "make" if flags & os.O_CREAT else "open directory" if flags & os.O_DIRECTORY else None

    @staticmethod
    def _pwrite(*_):
        return "write"

    @staticmethod
    def _ftruncate(*_):
        return "truncate"

    @staticmethod
    def _fsync(file):
        return "sync directory" if stat.S_ISDIR(os.fstat(file).st_mode) else "sync file"

    @staticmethod
    def _replace(*_):
        return "rename"

    @staticmethod
    def _close(*_):
        return "close"

    @staticmethod
    def _stat(path, *_):
        return "look" if str(path).endswith(".part") else None
