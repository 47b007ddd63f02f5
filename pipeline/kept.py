"""What Spark is to keep while a job reads it more than once."""

from typing import Self

from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812, as everybody calls it

FEW = 500_000
"""So many rows of some numbers, about 40 MB, are sent to every executor."""


class Kept:
    """Frames that are kept from their first use on, on disk where memory is short, as long as a `with` block."""

    def __init__(self) -> None:
        self._frames: list[DataFrame] = []

    def frame(self, frame: DataFrame) -> DataFrame:
        """The same, kept."""
        self._frames.append(frame.persist(StorageLevel.MEMORY_AND_DISK))
        return frame

    def counted(self, frame: DataFrame) -> DataFrame:
        """The same, made at once, so that it is known how to join it: what is small is sent to where the rows are."""
        return F.broadcast(frame) if self.frame(frame).count() <= FEW else frame

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for frame in self._frames:
            frame.unpersist()
