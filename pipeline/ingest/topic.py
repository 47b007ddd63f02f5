"""A Kafka topic whose messages are lines of spools, written by the proxy's shipper; others may be in it, too."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812, as everybody calls it

from pipeline.ingest.rules import NO_VALUE
from pipeline.spark.session import MOST_LINE_BYTES

MOST_MESSAGES = 4_000_000
"""The largest number of messages in one batch."""


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic, and how to reach it."""

    name: str
    servers: str
    """host:port, several separated by commas."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Settings of Kafka's Java consumer."""


def topic_lines(spark: SparkSession, servers: str, topic: str, settings: Mapping[str, str]) -> DataFrame:
    """The lines of a Batch: each message is a file of one line, `topic-partition@offset`.

    `settings` are those of Kafka's Java consumer. The topic is read from the beginning. Messages that the cluster has
    deleted before they were read are skipped: sequence numbers show what was lost. Several tasks may share a large
    partition.
    """
    stream = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("failOnDataLoss", "false")
        .option("maxOffsetsPerTrigger", MOST_MESSAGES)
        .option("minPartitions", spark.sparkContext.defaultParallelism)
    )
    for key, value in settings.items():
        stream = stream.option(f"kafka.{key}", value)
    partition, offset = F.col("partition").cast("string"), F.col("offset").cast("string")
    place = F.concat("topic", F.lit("-"), partition, F.lit("@"), offset)
    return stream.load().select(
        F.coalesce(F.substring("value", 1, MOST_LINE_BYTES).cast("string"), F.lit(NO_VALUE)).alias("text"),
        place.alias("file"),
        F.col("partition").cast("long").alias("block"),
    )


def problem_of_topic(error: Exception) -> str:
    """The explanation of an error of Spark about the topic; empty if the error is about something else."""
    text = str(error)
    if "Failed to find data source: kafka" in text or "Failed to find the data source: kafka" in text:
        return "Spark lacks the jars of its Kafka source"
    for name, problem in _PROBLEMS.items():
        if name in text:
            return problem
    found = re.search(r"(?:org\.apache\.kafka\.common\.(?:errors|config)\.)(\w+): ([^\n]*)", text)
    return f"{found[1]}: {found[2]}" if found else ""


_PROBLEMS = {
    "UnknownTopicOrPartitionException": "there is no such topic, or this user may not see it",
}
