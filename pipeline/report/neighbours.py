"""Noisy neighbours: clients that had most of a node while others were throttled there.

In a window of the proxy a client is noisy if it had more than MOST of the node's bytes, in and out, and the other
clients together were throttled there for at least LEAST_THROTTLED_MS. Consecutive windows are one episode.
"""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812, as everybody calls it

MOST = 0.5
LEAST_THROTTLED_MS = 1_000

_WHO = ("virtual_cluster", "node_id", "user", "client_id")


def episodes(windows: DataFrame) -> DataFrame:
    """`figures.windows` -> virtual_cluster, node_id, user, client_id, begin_ms, end_ms, bytes, share (of the node's
    bytes), others_throttled (the largest number of clients in a window), others_throttled_ms.
    """
    largest, node_bytes = F.col("largest"), F.col("in_bytes") + F.col("out_bytes")
    in_order = Window.partitionBy(*_WHO).orderBy("begin_ms")
    is_another = F.coalesce(F.col("begin_ms") > F.lag("end_ms").over(in_order), F.lit(True))
    return (
        windows.where(F.col("node_id") >= 0)
        .where(largest["bytes"] > MOST * node_bytes)
        .withColumn("others_ms", F.col("muted_ms") - largest["muted_ms"])
        .where(F.col("others_ms") >= LEAST_THROTTLED_MS)
        .withColumn("others", F.col("throttled_clients") - (largest["muted_ms"] > 0).cast("long"))
        .select("*", largest["user"].alias("user"), largest["client_id"].alias("client_id"))
        .withColumn("episode", F.sum(is_another.cast("long")).over(in_order))
        .groupBy(*_WHO, "episode")
        .agg(
            F.min("begin_ms").alias("begin_ms"),
            F.max("end_ms").alias("end_ms"),
            F.sum(largest["bytes"]).alias("bytes"),
            (F.sum(largest["bytes"]) / F.sum(node_bytes)).alias("share"),
            F.max("others").alias("others_throttled"),
            F.sum("others_ms").alias("others_throttled_ms"),
        )
        .drop("episode")
    )
