"""Frames that Spark caches while a job reads them more than once."""

from typing import Self

from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812, as everybody calls it

from kafka_throttle.pipeline.spark.session import on_one_machine

FEW = 500_000
"""At most this many rows of some numbers, about 40 MB, are sent to every executor."""

_WHERE = StorageLevel.MEMORY_AND_DISK


class Kept:
    """Frames that are cached during a `with` block, on disk where memory is short."""

    def __init__(self) -> None:
        self._frames: list[DataFrame] = []

    def frame(self, frame: DataFrame) -> DataFrame:
        """The frame, cached from its first use on; for frames that may be large."""
        self._frames.append(frame.persist(_WHERE))
        return frame

    def made(self, frame: DataFrame) -> DataFrame:
        """The frame, for small frames that are used often. On one machine it is computed at once, and frames made from
        it are not planned from the beginning again. On a cluster Spark must be able to compute a lost part again, so it
        is only cached.
        """
        if on_one_machine(frame.sparkSession):
            return frame.localCheckpoint(eager=True, storageLevel=_WHERE)
        return self.frame(frame)

    def counted(self, frame: DataFrame) -> DataFrame:
        """As `made`, with its rows counted to choose how it is joined: a small frame is sent to the executors that have
        the rows.
        """
        made = self.made(frame)
        return F.broadcast(made) if made.count() <= FEW else made

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for frame in self._frames:
            frame.unpersist()
