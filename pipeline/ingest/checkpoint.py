"""What Spark's checkpoint of a source says of a batch, as it was written down before the batch was begun."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class Planned:
    """A batch as Spark has planned it, the same each time it is run."""

    query: str
    """The identity that Spark gave the checkpoint when it made it."""
    begun_ms: int
    """When the batch was begun for the first time; ms since 1970."""
    files: Sequence[str]
    """The URIs of its files; none of a topic."""


def planned(spark: SparkSession, checkpoint: str, number: int, of_files: bool) -> Planned:
    """Batch `number` of a checkpoint, whose source has files or not."""
    places = [f"{checkpoint}/metadata", f"{checkpoint}/offsets/{number}"]
    if of_files:
        places.append(f"{checkpoint}/sources/0/{{{number},{number}.compact}}")
    entries = [json.loads(row["value"]) for row in spark.read.text(places).where("value like '{%'").collect()]
    # The offsets of a topic have its name, which may be any.
    [query] = [entry["id"] for entry in entries if isinstance(entry.get("id"), str)]
    [begun_ms] = [entry["batchTimestampMs"] for entry in entries if isinstance(entry.get("batchTimestampMs"), int)]
    return Planned(query, begun_ms, sorted({entry["path"] for entry in entries if entry.get("batchId") == number}))
