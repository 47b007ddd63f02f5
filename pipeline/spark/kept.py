"""Frames that Spark caches while a job reads them more than once."""

from typing import Self

from pyspark import StorageLevel
from pyspark.sql import DataFrame


class Kept:
    """Frames that are cached during a `with` block, on disk where memory is short."""

    def __init__(self) -> None:
        self._frames: list[DataFrame] = []

    def frame(self, frame: DataFrame) -> DataFrame:
        """The frame, cached from its first use on."""
        self._frames.append(frame.persist(StorageLevel.MEMORY_AND_DISK))
        return frame

    def counted(self, frame: DataFrame) -> DataFrame:
        """The frame, cached at once.

        So Spark knows its size where it is joined, and sends it to the rows if it is small.
        """
        self.frame(frame).count()
        return frame

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for frame in self._frames:
            frame.unpersist()
