"""What Spark is to keep while a job reads it more than once."""

from typing import Self

from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812, as everybody calls it

from pipeline.spark.session import on_one_machine

FEW = 500_000
"""So many rows of some numbers, about 40 MB, are sent to every executor."""

_WHERE = StorageLevel.MEMORY_AND_DISK


class Kept:
    """Frames that are kept as long as a `with` block, on disk where memory is short."""

    def __init__(self) -> None:
        self._frames: list[DataFrame] = []

    def frame(self, frame: DataFrame) -> DataFrame:
        """The same, kept from its first use on; packed, as becomes what may be large."""
        self._frames.append(frame.persist(_WHERE))
        return frame

    def made(self, frame: DataFrame) -> DataFrame:
        """The same, for what is not large and used often: on one machine it is made at once, and whatever is made of it
        is not planned from the beginning again. On a cluster it must be known how to make it again if one part is lost.
        """
        if on_one_machine(frame.sparkSession):
            return frame.localCheckpoint(eager=True, storageLevel=_WHERE)
        return self.frame(frame)

    def counted(self, frame: DataFrame) -> DataFrame:
        """As `made`, and counted, so that it is known how to join it: what is small is sent to where the rows are."""
        made = self.made(frame)
        return F.broadcast(made) if made.count() <= FEW else made

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for frame in self._frames:
            frame.unpersist()
