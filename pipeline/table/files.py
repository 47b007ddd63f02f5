"""The few things that a table needs of a file system, on this machine's or on any that Hadoop knows.

What makes a commit is `put_new`: it writes the whole file or nothing, and one of two writers of a name is refused.
"""

import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from stat import S_ISDIR
from typing import Any, NamedTuple, Protocol

from pyspark.sql import SparkSession


class Found(NamedTuple):
    """What is in a directory."""

    name: str
    is_directory: bool
    bytes: int
    modified_ms: int


class Taken(Exception):
    """Somebody else has written the file first."""


class Files(Protocol):
    """Paths are text, relative to the root, with slashes."""

    root: str

    def listed(self, path: str) -> list[Found]:
        """What is in a directory, by name; nothing if it is not there."""
        ...

    def read(self, path: str) -> bytes | None:
        """All of a file; None if it is not there."""
        ...

    def put_new(self, path: str, data: bytes) -> None:
        """Write a file whole. Raises Taken if there is one."""
        ...

    def move(self, path: str, to: str) -> None:
        """Give a directory another name; nothing has it."""
        ...

    def remove(self, path: str) -> None:
        """Remove a file, or a directory with all that is in it, if it is there."""
        ...

    def make_durable(self, path: str) -> None:
        """Return when a directory's files survive the loss of power, as far as the file system can promise that."""
        ...


class LocalFiles:
    """A directory of this machine, or one that all machines of the cluster have mounted at the same place."""

    def __init__(self, root: Path) -> None:
        # Said in full, as on a cluster Spark may take a bare path to be somewhere else.
        self.root = f"file://{root.absolute()}"
        self._root = root.absolute()

    def listed(self, path: str) -> list[Found]:
        """See Files."""
        try:
            entries = sorted((self._root / path).iterdir())
        except FileNotFoundError:
            return []
        return [found for entry in entries if (found := _found(entry))]

    def read(self, path: str) -> bytes | None:
        """See Files."""
        try:
            return (self._root / path).read_bytes()
        except FileNotFoundError:
            return None

    def put_new(self, path: str, data: bytes) -> None:
        """See Files. A link, other than a rename, does not replace what is there."""
        target = self._root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        aside = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
        try:
            with aside.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.link(aside, target)
        except FileExistsError:
            raise Taken(path) from None
        finally:
            aside.unlink(missing_ok=True)
        _sync(target.parent)

    def move(self, path: str, to: str) -> None:
        """See Files."""
        target = self._root / to
        target.parent.mkdir(parents=True, exist_ok=True)
        (self._root / path).rename(target)

    def remove(self, path: str) -> None:
        """See Files."""
        target = self._root / path
        if target.is_dir():
            shutil.rmtree(target, ignore_errors=True)
        else:
            target.unlink(missing_ok=True)

    def make_durable(self, path: str) -> None:
        """See Files."""
        for folder, _, names in os.walk(self._root / path):
            for name in names:
                _sync(Path(folder) / name)
            _sync(Path(folder))
        _sync((self._root / path).parent)


def _found(entry: Path) -> Found | None:
    """None for what is gone again: others write here, too."""
    try:
        status = entry.stat()
    except FileNotFoundError:
        return None
    return Found(entry.name, S_ISDIR(status.st_mode), status.st_size, int(status.st_mtime * 1000))


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class HadoopFiles:
    """A directory of HDFS, of an object store, or of what else the Spark in use has a file system for."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        self.root = root.rstrip("/")
        self._jvm: Any = spark._jvm
        context = spark._jsc.hadoopConfiguration()
        self._system: Any = self._path("").getFileSystem(context)
        self._renaming: Any = self._jvm.org.apache.hadoop.fs.FileContext.getFileContext(self._path("").toUri(), context)

    def _path(self, path: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(f"{self.root}/{path}" if path else self.root)

    def listed(self, path: str) -> list[Found]:
        """See Files."""
        if not self._system.exists(self._path(path)):
            return []
        return sorted(
            Found(entry.getPath().getName(), entry.isDirectory(), entry.getLen(), entry.getModificationTime())
            for entry in self._system.listStatus(self._path(path))
        )

    def read(self, path: str) -> bytes | None:
        """See Files."""
        if not self._system.exists(self._path(path)):
            return None
        stream = self._system.open(self._path(path))
        try:
            return bytes(self._jvm.org.apache.commons.io.IOUtils.toByteArray(stream))
        finally:
            stream.close()

    def put_new(self, path: str, data: bytes) -> None:
        """See Files."""
        folder, _, name = path.rpartition("/")
        aside = f"{folder}/.{name}.{uuid.uuid4().hex}"
        stream = self._system.create(self._path(aside), True)
        try:
            stream.write(bytearray(data))
        finally:
            stream.close()
        try:
            self._rename(aside, path)
        finally:
            self._system.delete(self._path(aside), False)

    def _rename(self, path: str, to: str) -> None:
        never_replace = self._jvm.java.lang.reflect.Array.newInstance(
            self._jvm.java.lang.Class.forName("org.apache.hadoop.fs.Options$Rename"), 0
        )
        try:
            self._renaming.rename(self._path(path), self._path(to), never_replace)
        except Exception as error:
            if "FileAlreadyExistsException" in str(error):
                raise Taken(to) from error
            raise

    def move(self, path: str, to: str) -> None:
        """See Files."""
        self._system.mkdirs(self._path(to).getParent())
        if not self._system.rename(self._path(path), self._path(to)):
            raise OSError(f"{self.root}/{path} cannot be renamed to {to}")

    def remove(self, path: str) -> None:
        """See Files."""
        self._system.delete(self._path(path), True)

    def make_durable(self, path: str) -> None:
        """Such a file system has written a file that is closed."""


def files_at(spark: SparkSession | None, root: str) -> Files:
    """The directory `root`: a path, or a URI. Without Spark only one of this machine; raises ValueError else."""
    if "://" not in root:
        return LocalFiles(Path(root))
    if root.startswith("file://"):
        return LocalFiles(Path(root.removeprefix("file://")))
    if spark is None:
        raise ValueError(f"{root} takes Spark to be read")
    return HadoopFiles(spark, root)


def folders(files: Files, path: str, depth: int) -> Iterator[tuple[str, int]]:
    """The directories `depth` levels below `path`, each with the sum of its files' bytes."""
    for found in files.listed(path):
        if found.is_directory and depth > 1:
            yield from folders(files, f"{path}/{found.name}", depth - 1)
        elif found.is_directory:
            inside = f"{path}/{found.name}"
            yield inside, sum(file.bytes for file in files.listed(inside) if file.name[0] not in "._")
