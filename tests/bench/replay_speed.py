"""How fast `usage simulate` replays, next to DuckDB summing up the same rows.

python -m tests.bench.replay_speed --rows 10000000

A thousand users on three nodes, one of whom has half of all rows under a hundred client-ids; most stay below 60 % of
their quota, some windows are bursts above it, and the big one is over it for an hour a day. DuckDB does less: it sums
up the use of each sensor over windows of 20 s and compares it with the limit; it replays nothing.
"""

import argparse
import json
import shutil
import tempfile
import time
from pathlib import Path

import duckdb
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pipeline.candidate import Candidate, Rules
from pipeline.jobs.simulate import answer_of
from pipeline.session import spark_session
from quotas.entities import DEFAULT, Entity, QuotaType
from quotas.quota_table import QuotaTable

BEGIN_MS = 1_792_972_800_000
WINDOW_MS = 10_000
PER_WINDOW = 600
LIMIT = 1_000_000.0
BIG_LIMIT = 20_000_000.0


def usage(spark: SparkSession, rows: int) -> DataFrame:
    """So many usage records, the same ones each time, in the order of time."""
    of = F.col("id")

    def chance(what: int) -> F.Column:
        return F.pmod(F.xxhash64(of, F.lit(what)), F.lit(1_000_000)) / 1e6

    window = (of / PER_WINDOW).cast("long")
    slot = of % PER_WINDOW
    big = slot < PER_WINDOW / 2
    number = F.when(big, (slot / 3).cast("long")).otherwise(
        ((slot - PER_WINDOW / 2) / 3 + 100 * (window % 10)).cast("long")
    )
    at_peak = (window % 8_640).between(4_000, 4_360)
    share = F.when(big, F.when(at_peak, 1.2).otherwise(0.55) / 100 * BIG_LIMIT * (0.5 + chance(1))).otherwise(
        LIMIT * F.when(chance(2) < 0.002, 3.0).otherwise(0.6 * chance(3))
    )
    used = F.floor(share * WINDOW_MS / 1000)
    begin = F.lit(BEGIN_MS) + window * WINDOW_MS
    columns = {
        "instance": F.lit("proxy-1"),
        "begin_ms": begin,
        "end_ms": begin + WINDOW_MS,
        "virtual_cluster": F.lit("main"),
        "node_id": (slot % 3).cast("long"),
        "user": F.when(big, "big").otherwise(F.concat(F.lit("user-"), number.cast("string"))),
        "client_id": F.concat(F.lit("app-"), F.when(big, number).otherwise(F.lit(0)).cast("string")),
        "ip": F.lit(""),
        "quota_type": F.lit("produce"),
        "used": used.cast("double"),
        "peak": (share * (1 + 0.3 * chance(4))).cast("double"),
        "requests": F.greatest(F.lit(1), (used / 20_000).cast("long")),
        "throttles": F.lit(0).cast("long"),
        "throttled_ms": F.lit(0).cast("long"),
        "muted_ms": F.lit(0).cast("long"),
        "profile": F.lit(""),
        "limit": F.lit(None).cast("double"),
        "rule": F.lit(""),
    }
    return spark.range(rows).select(*(column.alias(name) for name, column in columns.items()))


CANDIDATE = Candidate(
    all_others=Rules(
        QuotaTable(
            {Entity(user=DEFAULT): {QuotaType.PRODUCE: LIMIT}, Entity(user="big"): {QuotaType.PRODUCE: BIG_LIMIT}}
        )
    )
)

YARDSTICK = """
SELECT count(*), sum(CASE WHEN over THEN 1 ELSE 0 END) FROM (
  SELECT sum(used) OVER (PARTITION BY "user", node_id ORDER BY begin_ms RANGE BETWEEN 10000 PRECEDING AND CURRENT ROW)
    > 10 * CASE WHEN "user" = 'big' THEN {big} ELSE {limit} END AS over
  FROM (SELECT "user", node_id, begin_ms, sum(used) AS used FROM '{path}/*.parquet' GROUP BY ALL))
"""


def measured(spark: SparkSession, path: str, rows: int) -> dict[str, object]:
    """Seconds and rows/s, warm: the second of two goes."""
    seconds = []
    for _ in range(2):
        begin = time.monotonic()
        answer = answer_of(spark.read.parquet(path), CANDIDATE)
        seconds.append(time.monotonic() - begin)
    begin = time.monotonic()
    duckdb.execute("SET threads = 2")
    duckdb.execute(YARDSTICK.format(path=path, big=BIG_LIMIT, limit=LIMIT)).fetchall()
    duck_s = time.monotonic() - begin
    return {
        "rows": rows,
        "cold_s": round(seconds[0], 1),
        "warm_s": round(seconds[1], 1),
        "rows_per_s": round(rows / seconds[1]),
        "replayed_sensor_windows": answer["replayed_windows"],
        "throttled_clients": len(answer["clients"]),
        "duckdb_sum_s": round(duck_s, 1),
        "duckdb_rows_per_s": round(rows / duck_s),
    }


def main() -> None:
    """Make the rows, measure, print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--memory", default="3g")
    arguments = parser.parse_args()
    spark = spark_session("local[2]", arguments.memory, "replay speed")
    folder = Path(tempfile.mkdtemp(prefix="replay-speed-"))
    try:
        path = str(folder / "usage")
        usage(spark, arguments.rows).write.parquet(path)
        print(json.dumps(measured(spark, path, arguments.rows)))
    finally:
        spark.stop()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
