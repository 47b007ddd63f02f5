"""Where the quota of a usage record measures use."""

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812, as everybody calls it

from kafka_throttle.quotas.client_quotas import WHOLE_CLUSTER
from kafka_throttle.quotas.entities import Scope


def measured_node() -> Column:
    """The node at which the quota of a record measures its use; WHOLE_CLUSTER for a quota over all nodes."""
    return F.when(F.col("scope") == Scope.CLUSTER.value, F.lit(WHOLE_CLUSTER).cast("long")).otherwise(F.col("node_id"))
