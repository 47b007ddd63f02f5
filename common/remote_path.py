"""Paths that commands are given: of this machine, or at a URI such as `s3a://bucket/report`, which PyArrow reaches."""

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from kafka_throttle.common.atomic_file import write_whole

_URI = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/(?:/([^/]*))?(.*)", re.DOTALL)
"""Scheme, bucket or server, and path."""
_BUCKETS = {"s3a": "s3", "s3n": "s3", "s3": "s3", "gs": "gs", "gcs": "gs", "abfs": "abfs", "abfss": "abfss"}
"""The schemes with a bucket or container, each with its name in PyArrow."""
_OTHERS = {"hdfs": "hdfs", "viewfs": "viewfs"}
_SCHEMES = {**_BUCKETS, **_OTHERS}

_MOST_CHARACTERS = 300
"""Of a reason: where a library is missing, PyArrow names everywhere that it looked."""


@dataclass(frozen=True)
class RemotePath:
    """A path on a file system of PyArrow, with the methods of Path that commands use. They raise OSError.

    In an object store a file appears when all of it is written, and there are no directories to make. On HDFS a reader
    may see a part of a file. The settings of S3 are those of the environment: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY,
    AWS_REGION, AWS_ENDPOINT_URL, ...
    """

    root: str
    """The URI of the bucket or server, which ends with a slash."""
    path: str
    """What follows, without a slash at its ends."""

    @property
    def scheme(self) -> str:
        """That of the URI, as s3a."""
        return self.root.partition(":")[0]

    def __str__(self) -> str:
        return f"{self.root}{self.path}"

    def __truediv__(self, name: str) -> "RemotePath":
        return RemotePath(self.root, f"{self.path}/{name}".lstrip("/"))

    @property
    def name(self) -> str:
        """The last part."""
        return PurePosixPath(self.path).name

    @property
    def stem(self) -> str:
        """The name without its suffix."""
        return PurePosixPath(self.path).stem

    @property
    def suffix(self) -> str:
        """The end of the name, from its last dot on."""
        return PurePosixPath(self.path).suffix

    def with_name(self, name: str) -> "RemotePath":
        """The path beside it."""
        return RemotePath(self.root, str(PurePosixPath(self.path).with_name(name)))

    def open(self, mode: str = "rb") -> BinaryIO:
        """The file, for reading."""
        assert mode == "rb"
        with _errors_of_arrow(self):
            file: BinaryIO = self._system.open_input_stream(self._place)
            return file

    def exists(self) -> bool:
        """Whether there is a file, or any file below it."""
        return self._type() != "NotFound"

    def is_file(self) -> bool:
        """Whether there is a file."""
        return self._type() == "File"

    def mkdir(self, parents: bool = True, exist_ok: bool = True) -> None:
        """Make the directory where the file system has directories."""
        if self.scheme in _OTHERS:
            with _errors_of_arrow(self):
                self._system.create_dir(self._place, recursive=parents)

    def write_bytes(self, data: bytes) -> None:
        """Replace the file."""
        with _errors_of_arrow(self), self._system.open_output_stream(self._place) as file:
            file.write(data)

    def unlink(self, missing_ok: bool = False) -> None:
        """Remove the file."""
        if missing_ok and not self.exists():
            return
        with _errors_of_arrow(self):
            self._system.delete_file(self._place)

    def glob(self, pattern: str) -> Iterator["RemotePath"]:
        """The files in this directory whose names match."""
        from pyarrow.fs import FileSelector

        with _errors_of_arrow(self):
            found = self._system.get_file_info(FileSelector(self._place, allow_not_found=True))
        return (self / info.base_name for info in found if fnmatchcase(info.base_name, pattern))

    def _type(self) -> str:
        with _errors_of_arrow(self):
            kind: str = self._system.get_file_info(self._place).type.name
        return kind

    @property
    def _system(self) -> Any:
        return self._reached[0]

    @property
    def _place(self) -> str:
        return f"{self._reached[1].rstrip('/')}/{self.path}".rstrip("/")

    @cached_property
    def _reached(self) -> tuple[Any, str]:
        """The file system, and the path of `root` in it."""
        try:
            from pyarrow.fs import FileSystem
        except ModuleNotFoundError as error:
            raise OSError(errno.EIO, "needs pyarrow, which the extra `pipeline` brings") from error
        with _errors_of_arrow(self):
            found: tuple[Any, str] = FileSystem.from_uri(f"{_SCHEMES[self.scheme]}{self.root[len(self.scheme) :]}")
        return found


AnyPath = Path | RemotePath


def path_of(text: str) -> AnyPath:
    """The path that a text names. ValueError for a URI that commands cannot read and write by themselves."""
    uri = _URI.fullmatch(text)
    if uri is None:
        return Path(text)
    scheme, server, path = uri[1], uri[2] or "", re.sub("/+", "/", uri[3]).strip("/")
    if re.search(":.*@", server):
        raise ValueError("expected a URI without a password: it is taken from the environment")
    if scheme == "file" and not server:
        return Path(f"/{path}")
    if scheme == "file" or (scheme in _BUCKETS and not server):
        expected = "file:///PATH" if scheme == "file" else f"{scheme}://BUCKET/PATH"
        raise ValueError(f"expected {expected}, got {text!r}")
    if scheme not in _SCHEMES:
        known = ", ".join(f"{name}:" for name in ("s3a", "s3", "gs", "abfs", "hdfs"))
        raise ValueError(f"expected a path of this machine, or one with {known}, got {text!r}")
    return RemotePath(f"{scheme}://{server}/", path)


def replace_whole(path: AnyPath, data: bytes) -> None:
    """Replace a file whole or not at all (but on HDFS); on this machine only its owner may read it. Raises OSError."""
    if isinstance(path, RemotePath):
        path.write_bytes(data)
    else:
        write_whole(path, [data])


def put(path: AnyPath, data: bytes) -> None:
    """Replace a file whole (but on HDFS), for all to read whom the umask lets. Several processes may do so at once.

    Raises ValueError if it cannot be written.
    """
    try:
        _put(path, data)
    except OSError as error:
        raise ValueError(f"{path}: cannot be written: {error.strerror or error}") from error


def _put(path: AnyPath, data: bytes) -> None:
    if isinstance(path, RemotePath):
        path.write_bytes(data)
        return
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        aside.write_bytes(data)
        aside.replace(path)
    except OSError:
        aside.unlink(missing_ok=True)
        raise


def writable_folder(text: str) -> AnyPath:
    """The directory, made if it is missing. ValueError if files cannot be written there."""
    folder = path_of(text)
    probe = folder / ".writable"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _put(probe, b"")
        probe.unlink(missing_ok=True)
    except OSError as error:
        raise ValueError(f"{text}: expected a directory to write to: {error.strerror or error}") from error
    return folder


@contextmanager
def _errors_of_arrow(path: RemotePath) -> Iterator[None]:
    """Raise what PyArrow raises as OSError with the reason in one line, and the path."""
    try:
        yield
    except FileNotFoundError as error:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path)) from error
    except (OSError, ValueError, NotImplementedError) as error:
        text = " ".join(str(error).split())
        short = text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}…"
        raise OSError(errno.EIO, short, str(path)) from error
