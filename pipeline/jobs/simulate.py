"""`kafka-throttle usage simulate`: what other quotas would have done."""

import csv
import json
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import IO, Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812, as everybody calls it

from kafka_throttle.common.remote_path import path_of
from kafka_throttle.pipeline.report.tables import text_cell
from kafka_throttle.pipeline.simulate.candidate import Candidate, load_candidate
from kafka_throttle.pipeline.simulate.page import print_response
from kafka_throttle.pipeline.simulate.response import of_clients, of_sensors, reported
from kafka_throttle.pipeline.simulate.simulation import in_runs, placed, replayed, rows_of, runs_of, summarised
from kafka_throttle.pipeline.spark.kept import Kept
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


def response_of(usage: DataFrame, candidate: Candidate) -> dict[str, Any]:
    """The response from usage records. ValueError if there are none."""
    with Kept() as kept:
        summary = kept.counted(placed(summarised(usage), candidate))
        total = summary.agg(
            F.sum("records").alias("records"), F.min("begin_ms").alias("begin"), F.max("end_ms").alias("end")
        ).collect()[0]
        if not total["records"]:
            raise ValueError("there are no usage records in this time")
        rows = rows_of(usage, summary)
        found = kept.counted(runs_of(rows, summary, candidate))
        outcome = kept.frame(replayed(in_runs(rows, found), candidate, total["end"]))
        # This action runs first and alone: the outcome is computed only with the first action.
        replayed_windows = outcome.where("of_sensor").agg(F.sum("windows")).collect()[0][0] or 0
        # To plan these on one core takes Spark longer than to compute them.
        with ThreadPoolExecutor() as threads:
            clients, sensors = threads.map(reported, (of_clients(summary, outcome), of_sensors(summary, outcome)))
    return {
        "begin_ms": total["begin"],
        "end_ms": total["end"],
        "records": total["records"],
        "replayed_windows": replayed_windows,
        "sensors": _shares(sensors, total["end"] - total["begin"]),
        "clients": _shares(clients, total["end"] - total["begin"]),
    }


def _shares(rows: list[dict[str, Any]], length_ms: int) -> list[dict[str, Any]]:
    # The last mutes may end after the last record.
    return [{**row, "muted_share": min(row["muted_ms"] / max(length_ms, 1), 1.0)} for row in rows]


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
