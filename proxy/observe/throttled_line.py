"""What is reported of a client that is throttled by one quota at one node, now or in a second of the past."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from kafka_throttle.proxy.observe.explained import number, time_form
from kafka_throttle.proxy.observe.forms import BucketForm, ThrottledForm, ThrottlingRuleForm
from kafka_throttle.proxy.observe.last_throttles import PastThrottle
from kafka_throttle.quotas.changes import Limit, Quotas
from kafka_throttle.quotas.entities import QuotaKey
from kafka_throttle.quotas.explain import UNIT
from kafka_throttle.quotas.limits import UNLIMITED
from kafka_throttle.quotas.precedence import level_of
from kafka_throttle.quotas.sensors.token_buckets import BucketReading
from kafka_throttle.quotas.sensors.windowed_rate import SensorReading
from kafka_throttle.quotas.sources.entry_forms import entity_form


class Bucket(NamedTuple):
    """A token bucket: the tokens left in it, negative if it is overdrawn, and how many it holds at most."""

    tokens: float
    burst: float

    def form(self) -> BucketForm:
        """As JSON."""
        return {"tokens": self.tokens, "burst": self.burst}


def measured(reading: SensorReading | BucketReading | None) -> tuple[float | None, Bucket | None]:
    """The rate of a sensor, or its bucket if that has a limit; at most one of both is not None."""
    if isinstance(reading, BucketReading):
        return None, Bucket(reading.tokens, reading.burst) if reading.limit < UNLIMITED else None
    return None if reading is None else reading.rate, None


@dataclass(frozen=True, slots=True)
class ThrottledLine:
    """The client and its quota, which the `first` throttle names, and how much it is throttled on all its connections.

    `rate`, or instead of it `bucket`, is the measurement of the sensor; both are None for a throttle of the node, and
    if the sensor is closed. `left_ms` is how much longer the client is muted.
    """

    first: PastThrottle
    rate: float | None
    bucket: Bucket | None
    left_ms: int
    throttles: int
    throttled_ms: int
    connections: int
    share: float | None = None
    """The part of the limit that this instance of a fleet enforces."""

    def form(self, virtual_cluster: str, source: str, quotas: Quotas) -> ThrottledForm:
        """As JSON. The limit is that of the rule in `quotas`, or the one that a removed rule had at the first throttle.

        Another rule may bind the client by then, and have moved the limit of the sensor.
        """
        first, rule = self.first, self._rule_in(quotas)
        limit = first.limit if rule is None else rule.value
        return {
            "virtual_cluster": virtual_cluster,
            "user": first.user,
            "client_id": first.client_id,
            "ip": first.ip,
            "node_id": first.node_id,
            "quota_type": first.quota_name,
            "unit": None if first.quota_type is None else UNIT[first.quota_type],
            "rule": self._rule_form(rule, source),
            "limit": None if limit is None else number(limit),
            "share": None if rule is None else self.share,
            "rate": self.rate,
            "bucket": None if self.bucket is None else self.bucket.form(),
            "left_ms": self.left_ms,
            "since": time_form(first.at_epoch_ms),
            "throttles": self.throttles,
            "throttled_ms": self.throttled_ms,
            "connections": self.connections,
        }

    def _rule_in(self, quotas: Quotas) -> Limit | None:
        """What the rule that throttles says in `quotas`; None for a throttle of the node, or if it was removed."""
        entity, quota_type = self.first.entity, self.first.quota_type
        if entity is None or quota_type is None:
            return None
        limits: Mapping[QuotaKey, Limit] = quotas.get(entity, {})
        return limits.get(QuotaKey(quota_type))

    def _rule_form(self, rule: Limit | None, source: str) -> ThrottlingRuleForm | None:
        """The rule that throttles, with its source; None for a throttle of the node.

        The layer is the file, znode or other place of the quota; None if the quota was removed after the throttle.
        """
        entity, quota_type = self.first.entity, self.first.quota_type
        if entity is None or quota_type is None:
            return None
        return {
            "quota": quota_type.value,
            "entity": entity_form(entity),
            "level": level_of(entity),
            "source": source,
            "layer": None if rule is None else rule.layer,
        }
