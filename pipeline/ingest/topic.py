"""A Kafka topic with lines of spools as JSON: quotas/records/topic_message.py. Other messages may be in it, too."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812, as everybody calls it

from kafka_throttle.pipeline.ingest.rules import NO_VALUE, split_lines
from kafka_throttle.pipeline.spark.session import MOST_LINE_BYTES

MOST_MESSAGES = 4_000_000
"""The largest number of messages in one batch."""

_NUMBER = r'(?<=\w)"\s*:\s*(-?[0-9][0-9.eE+-]*)'
"""A number behind the name of a member. No other quote of JSON comes after a letter and before a colon."""


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
    messages = stream.load().select(
        F.coalesce(F.substring("value", 1, MOST_LINE_BYTES).cast("string"), F.lit(NO_VALUE)).alias("message"),
        place.alias("file"),
        F.col("partition").cast("long").alias("block"),
    )
    return lines_of(messages)


def lines_of(messages: DataFrame) -> DataFrame:
    """`message` -> `text`: the line that a message of JSON was made from; of any other message what it is."""
    made = split_lines(messages.withColumn("text", _line_in(F.col("message"))))
    text = F.when(F.col("is_sound"), F.col("text")).otherwise(F.col("message")).alias("text")
    return made.select(text, *(name for name in messages.columns if name != "message"))


def _line_in(message: Column) -> Column:
    """The line that the payload of a message is, sound or not; null if there is none."""
    # Spark would write 1e-07 as 1.0E-7: as a text it stays what it is.
    as_texts = F.regexp_replace(message, _NUMBER, '":"$1"')
    values = F.map_values(F.from_json(as_texts, "payload map<string,string>")["payload"])
    written = F.when(F.contains(message, F.lit("\\")), F.transform(values, _escaped)).otherwise(values)
    return F.when(F.startswith(message, F.lit("{")), F.array_join(written, "\t", "\\N"))


def _escaped(value: Column) -> Column:
    """As texts are in a line."""
    for meant, written in (("\\", "\\\\"), ("\t", "\\t"), ("\n", "\\n"), ("\r", "\\r")):
        value = F.replace(value, F.lit(meant), F.lit(written))
    return value


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
