"""`kafka-throttle usage simulate`: what other quotas would have done."""

import csv
import json
import sys
from collections.abc import Mapping, Sequence
from typing import IO, Any

from pyspark.sql import SparkSession

from kafka_throttle.common.remote_path import path_of
from kafka_throttle.pipeline.report.tables import text_cell
from kafka_throttle.pipeline.simulate.candidate import Candidate, load_candidate
from kafka_throttle.pipeline.simulate.page import print_response
from kafka_throttle.pipeline.simulate.response import response_of
from kafka_throttle.pipeline.spark.session import own_session
from kafka_throttle.pipeline.table.table import read_usage


def main(
    table: str,
    candidate: str,
    since_ms: int | None = None,
    until_ms: int | None = None,
    output: str = "table",
    master: str | None = None,
    memory: str = "2g",
    settings: Mapping[str, str] | None = None,
) -> int:
    """Print the response; `output` is table, json or csv. ValueError for input that cannot be used."""
    rules = load_candidate(path_of(candidate))
    with own_session(master, memory, "kafka-throttle simulate", settings) as spark:
        response = simulate(spark, table, rules, since_ms, until_ms)
    write(response, output, sys.stdout)
    return 0


def simulate(
    spark: SparkSession,
    table: str,
    candidate: Candidate,
    since_ms: int | None = None,
    until_ms: int | None = None,
) -> dict[str, Any]:
    """The response as plain data. ValueError if there is no table, or if it has nothing in that time."""
    return response_of(read_usage(spark, table, since_ms, until_ms), candidate)


def write(response: Mapping[str, Any], output: str, to: IO[str]) -> None:
    """Write the response as a table for people, as one JSON object, or as CSV with a line for each client."""
    if output == "json":
        json.dump(response, to)
        to.write("\n")
    elif output == "csv":
        _write_csv(response["clients"], to)
    else:
        print_response(response, to)


def _write_csv(rows: Sequence[Mapping[str, Any]], to: IO[str]) -> None:
    from kafka_throttle.pipeline.simulate.page import CSV_COLUMNS

    writer = csv.DictWriter(to, CSV_COLUMNS, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({name: text_cell(value) if isinstance(value, str) else value for name, value in row.items()})
