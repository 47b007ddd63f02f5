"""Spools: directories with the files that proxies have written."""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from glob import glob
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812, as everybody calls it

from kafka_throttle.pipeline.spark.unreadable import SPARK_ERRORS, file_of
from kafka_throttle.pipeline.table.table import local_path

_MOST_FILES = 5_000
"""The largest number of files in one batch."""
_STRICT = {"lineSep": "\n", "ignoreMissingFiles": False, "ignoreCorruptFiles": False}
"""A file that may not be opened is a missing one to Hadoop."""
_PACKED = (".gz", ".bz2", ".deflate", ".lz4", ".snappy", ".zst")
"""Files of these names are unpacked by Hadoop."""


def check_spool(spool: str, root: str, say: Any) -> None:
    """Say which directories in a spool of this machine are not read. ValueError if it is no directory."""
    path = local_path(root)
    if path is None:
        return
    folders = [Path(found) for found in sorted(glob(str(path))) if Path(found).is_dir()]  # noqa: PTH207, it may be absolute
    if not folders:
        raise ValueError(f"--from: expected a directory, got {spool!r}")
    for folder in folders:
        for found in sorted(folder.iterdir()):
            if found.is_dir() and found.name[0] not in "._":
                say(f"not taken: {found}: it is a directory")


def spool_lines(spark: SparkSession, spool: str) -> DataFrame:
    """The lines of a Batch as a stream. A file that cannot be read is an error, whatever the reason: see Unreadable."""
    stream = spark.readStream.format("text").options(**_STRICT).option("maxFilesPerTrigger", _MOST_FILES)
    # No file is too old: files that come late are taken.
    return _placed(stream.option("maxFileAge", "36500d").load(spool))


@dataclass(slots=True)
class Unreadable:
    """The files of a batch that Spark could not read, which are no reason to read none of the others."""

    found: set[str] = field(default_factory=set)
    """URIs: these are damaged, or gone."""
    damaged: set[str] = field(default_factory=set)

    def take(self, spark: SparkSession, error: Exception) -> bool:
        """Whether the error is about a file that is gone, or about the content of a damaged one, and a new one.

        What can be read but not unpacked is damaged. Other errors may be over when the batch is run again.
        """
        file = file_of(error)
        if not file or file in self.found:
            return False
        existing = _existing(spark, [file])
        if not existing:
            self.found.add(file)
        elif file.endswith(_PACKED) and not _is_read(_texts, spark, existing) and _is_read(_bytes, spark, existing):
            self.found.add(file)
            self.damaged.add(file)
        return file in self.found

    def others(self, spark: SparkSession, files: Sequence[str]) -> DataFrame:
        """The lines of a Batch of these files, but for those that are gone; of damaged ones what can be read."""
        whole = [file for file in files if file not in self.damaged]
        lines = spark.createDataFrame([], "text string, file string, block long")
        for some, is_strict in ((whole, True), (sorted(self.damaged), False)):
            existing = _existing(spark, some)
            if existing:
                lines = lines.union(_placed(_texts(spark, existing, is_strict)))
        return lines


def _texts(spark: SparkSession, patterns: list[str], is_strict: bool = True) -> DataFrame:
    reader = spark.read.format("text").options(**_STRICT).option("ignoreCorruptFiles", not is_strict)
    return reader.load(patterns)


def _bytes(spark: SparkSession, patterns: list[str]) -> DataFrame:
    return spark.read.format("binaryFile").load(patterns).select(F.octet_length("content"))


def _is_read(rows: Callable[[SparkSession, list[str]], DataFrame], spark: SparkSession, patterns: list[str]) -> bool:
    try:
        rows(spark, patterns).write.format("noop").mode("overwrite").save()
    except SPARK_ERRORS:
        return False
    return True


def _placed(lines: DataFrame) -> DataFrame:
    return lines.select(
        F.col("value").alias("text"),
        F.col("_metadata.file_path").alias("file"),
        F.col("_metadata.file_block_start").alias("block"),
    )


def _existing(spark: SparkSession, files: Iterable[str]) -> list[str]:
    """URIs as Spark's readers take them, decoded: a pattern for each directory, which files that are gone do not match.

    Spark refuses a pattern that nothing matches, so there are none of those.
    """
    folders = defaultdict(list)
    for file in files:
        folder, _, name = re.sub(r"([\\{}\[\]*?,])", r"\\\1", unquote(file)).rpartition("/")
        folders[folder].append(name)
    patterns = []
    for folder, names in folders.items():
        pattern = f"{folder}/{{{','.join(names)}}}"
        try:
            spark.read.format("binaryFile").load(pattern)
        except AnalysisException as error:
            if error.getCondition() != "PATH_NOT_FOUND":
                raise
        else:
            patterns.append(pattern)
    return patterns
