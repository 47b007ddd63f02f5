"""Noisy neighbours: clients that used most of a node while others were throttled or slowed.

Time is cut into slices as long as the windows of the proxy. A client's share of a node in a slice is its bytes, in and
out, divided by all bytes there. The client is *noisy* in a slice if

- the node carried at least its median of bytes per slice, because in a quiet night any client has a large share,
- its share is at least MIN_SHARE, and above its own outer fence (Tukey): Q3 + 3 IQR. The quartiles are of its share
  over all slices of the node; slices in which it was silent count as 0, and IQR is at least MIN_SPREAD, and
- other clients were affected: they were throttled for longer than the node's outer fence of throttled time, Q3 + 1.5
  IQR, and for at least MIN_THROTTLED_MS, or they got through less than SLOWED of what was usual just before. Usual is
  the least that all clients except the largest of a slice had in one of the BEFORE slices before, so that a quiet night
  does not count as slow.

Consecutive slices are one episode.
"""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812, as everybody calls it

from kafka_throttle.pipeline.report.figures import RANK_ACCURACY

MIN_SHARE = 0.25
MIN_SPREAD = 0.01
MIN_THROTTLED_MS = 1_000
SLOWED = 0.5
BEFORE = 6
MIN_SLICES = 30
"""A node with fewer slices is not judged."""

_NODE = ("virtual_cluster", "node_id")
_WHO = (*_NODE, "user", "client_id")
_STEPS = 200
_QUANTILES = [i / _STEPS for i in range(_STEPS + 1)]


def use_by_slices(usage: DataFrame, slice_ms: int) -> DataFrame:
    """USAGE -> virtual_cluster, node_id, user, client_id, slice, bytes, throttled_ms: everything else is made from
    these rows.
    """
    at = _slice_of(F.col("begin_ms"), slice_ms).alias("slice")
    size = F.col("in_bytes") + F.col("out_bytes")
    return (
        usage.where(F.col("node_id") >= 0)
        .groupBy(*_WHO, at)
        .agg(F.sum(size).alias("bytes"), F.sum("throttled_ms").alias("throttled_ms"))
    )


def slices_of(use: DataFrame) -> DataFrame:
    """`use_by_slices` -> virtual_cluster, node_id, slice, node_bytes, largest_bytes (of one client), node_throttled_ms,
    throttled_clients.
    """
    return use.groupBy(*_NODE, "slice").agg(
        F.sum("bytes").alias("node_bytes"),
        F.max("bytes").alias("largest_bytes"),
        F.sum("throttled_ms").alias("node_throttled_ms"),
        F.sum((F.col("throttled_ms") > 0).cast("long")).alias("throttled_clients"),
    )


def judged(slices: DataFrame) -> DataFrame:
    """`slices_of` -> one row: nodes (their number), thin_nodes (those of them with fewer than MIN_SLICES)."""
    counts = slices.groupBy(*_NODE).agg(F.count(F.lit(1)).alias("slices"))
    thin = F.sum((F.col("slices") < MIN_SLICES).cast("long"))
    return counts.agg(F.count(F.lit(1)).alias("nodes"), F.coalesce(thin, F.lit(0)).alias("thin_nodes"))


def episodes(use: DataFrame, slices: DataFrame, slice_ms: int) -> DataFrame:
    """`use_by_slices` and its `slices_of` -> virtual_cluster, node_id, user, client_id, begin_ms, end_ms, share (the
    largest), usual_share (median), bytes, others_throttled_ms, others_throttled (the largest number of clients in a
    slice), others_bytes_of_usual (the least, a fraction).

    The usual share is computed only for the few clients that had MIN_SHARE in some slice.
    """
    share = F.when(F.col("node_bytes") > 0, F.col("bytes") / F.col("node_bytes")).otherwise(0.0)
    large = _in_slices(use, slices).withColumn("share", share).where(F.col("share") >= MIN_SHARE)
    who = large.select(*_WHO).distinct()
    shares = _in_slices(use.join(who, list(_WHO), "left_semi"), slices).withColumn("share", share)
    noisy = (
        large.join(_baselines(shares), on=list(_WHO), how="inner")
        .join(_nodes(slices), on=list(_NODE), how="inner")
        .join(_before(slices), on=[*_NODE, "slice"], how="inner")
        .where(F.col("slices") >= MIN_SLICES)
        .withColumn("usual_share", _quantile_of_all(0.5))
        .withColumn("q1", _quantile_of_all(0.25))
        .withColumn("q3", _quantile_of_all(0.75))
        .where(_is_loud() & _is_beyond_its_fence())
        .withColumn("others_bytes_of_usual", _others_of_usual())
        .where(_others_paid())
    )
    return _joined(noisy, slice_ms)


def _in_slices(use: DataFrame, slices: DataFrame) -> DataFrame:
    """The rows with their slices, distributed by node and time, so that one large client does not make one large
    partition.
    """
    return use.join(slices, on=[*_NODE, "slice"], how="inner")


def _slice_of(at_ms: Column, slice_ms: int) -> Column:
    """The number of a slice, computed with whole numbers throughout, so that nothing is rounded."""
    return ((at_ms - F.pmod(at_ms, F.lit(slice_ms))) / slice_ms).cast("long")


def _nodes(slices: DataFrame) -> DataFrame:
    quartiles = F.percentile_approx("node_throttled_ms", [0.25, 0.75], RANK_ACCURACY)
    return slices.groupBy(*_NODE).agg(
        F.count(F.lit(1)).alias("slices"),
        F.percentile_approx("node_bytes", 0.5, RANK_ACCURACY).alias("median_bytes"),
        quartiles.alias("throttled_quartiles"),
    )


def _before(slices: DataFrame) -> DataFrame:
    """The least that all clients except the largest of a slice had in one of the slices just before."""
    just_before = Window.partitionBy(*_NODE).orderBy("slice").rowsBetween(-BEFORE, -1)
    least = F.min(F.col("node_bytes") - F.col("largest_bytes")).over(just_before)
    return slices.select(*_NODE, "slice", least.alias("least_before"))


def _baselines(shares: DataFrame) -> DataFrame:
    return shares.groupBy(*_WHO).agg(
        F.count(F.lit(1)).alias("active"),
        F.percentile_approx("share", _QUANTILES, RANK_ACCURACY).alias("quantiles"),
    )


def _quantile_of_all(p: float) -> Column:
    """A quantile of a client's share over all slices of the node; slices in which it was silent count as 0."""
    active, slices = F.col("active"), F.col("slices")
    rank = (F.lit(p) * slices - (slices - active)) / active
    step = F.round(F.greatest(rank, F.lit(0.0)) * _STEPS).cast("int")
    return F.when(rank <= 0, 0.0).otherwise(F.element_at("quantiles", F.least(step, F.lit(_STEPS)) + 1))


def _is_loud() -> Column:
    return (F.col("node_bytes") >= F.col("median_bytes")) & (F.col("node_bytes") > 0)


def _is_beyond_its_fence() -> Column:
    spread = F.greatest(F.col("q3") - F.col("q1"), F.lit(MIN_SPREAD))
    return F.col("share") > F.col("q3") + 3 * spread


def _others_throttled_ms() -> Column:
    return F.col("node_throttled_ms") - F.col("throttled_ms")


def _others_of_usual() -> Column:
    before = F.col("least_before")
    return F.when(before > 0, (F.col("node_bytes") - F.col("bytes")) / before)


def _others_paid() -> Column:
    q1, q3 = F.col("throttled_quartiles")[0], F.col("throttled_quartiles")[1]
    throttled = (_others_throttled_ms() > q3 + 1.5 * (q3 - q1)) & (_others_throttled_ms() >= MIN_THROTTLED_MS)
    return throttled | F.coalesce(F.col("others_bytes_of_usual") < SLOWED, F.lit(False))


def _joined(noisy: DataFrame, slice_ms: int) -> DataFrame:
    """Consecutive slices as one row."""
    in_order = Window.partitionBy(*_WHO).orderBy("slice")
    begins = (F.col("slice") - F.lag("slice").over(in_order) != 1).cast("long")
    others = F.col("throttled_clients") - (F.col("throttled_ms") > 0).cast("long")
    return (
        noisy.withColumn("others", others)
        .withColumn("episode", F.sum(F.coalesce(begins, F.lit(0))).over(in_order))
        .groupBy(*_WHO, "episode")
        .agg(
            (F.min("slice") * slice_ms).alias("begin_ms"),
            ((F.max("slice") + 1) * slice_ms).alias("end_ms"),
            F.max("share").alias("share"),
            F.first("usual_share").alias("usual_share"),
            F.sum("bytes").alias("bytes"),
            F.sum(_others_throttled_ms()).alias("others_throttled_ms"),
            F.max("others").alias("others_throttled"),
            F.min("others_bytes_of_usual").alias("others_bytes_of_usual"),
        )
        .drop("episode")
    )
