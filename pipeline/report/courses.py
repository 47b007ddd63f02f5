"""The small charts of clients and quotas over the time of the report."""

from collections import defaultdict

from kafka_throttle.pipeline.report.charts import small, strip_end
from kafka_throttle.pipeline.report.figures import CLIENT, SENSOR
from kafka_throttle.pipeline.report.findings import Findings, Row
from kafka_throttle.pipeline.report.views import muted_share

_Key = tuple[str, ...]


class Courses:
    """The points of each chart, as `charts.small` has them; empty where there is no course."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._end = strip_end(findings.utilisation)
        self._of_clients: dict[_Key, list[Row]] = defaultdict(list)
        self._of_types: dict[_Key, list[Row]] = defaultdict(list)
        self._of_quotas: dict[_Key, list[Row]] = defaultdict(list)
        for row in findings.courses_of_clients:
            self._of_clients[_key(row, CLIENT)].append(row)
            self._of_types[_key(row, (*CLIENT, "quota_type"))].append(row)
        for row in findings.courses_of_quotas:
            self._of_quotas[_key(row, SENSOR)].append(row)

    def of_client(self, client: Row, measure: str) -> str:
        """A sum of all that a client did."""
        sums: dict[int, float] = {}
        for row in self._of_clients.get(_key(client, CLIENT), ()):
            sums[row["at_ms"]] = sums.get(row["at_ms"], 0) + row[measure]
        return small(sums, self._findings)

    def of_throttled(self, throttled: Row) -> str:
        """The share of its time in which a client was throttled by one quota type; the height is 100 %."""
        rows = self._of_types.get(_key(throttled, (*CLIENT, "quota_type")), ())
        return small({row["at_ms"]: muted_share(row) or 0.0 for row in rows}, self._findings, 1.0)

    def of_quota(self, quota: Row) -> str:
        """The highest utilisation of a quota; the height is the end of the strips."""
        rows = self._of_quotas.get(_key(quota, SENSOR), ())
        return small({row["at_ms"]: row["most"] for row in rows}, self._findings, self._end)


def _key(row: Row, names: tuple[str, ...]) -> _Key:
    return tuple(row[name] for name in names)
