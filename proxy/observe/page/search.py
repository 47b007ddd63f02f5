"""Finds clients by a part of a user, a client-id or an address. Works in steps, because there may be very many."""

from collections.abc import Generator, Iterator
from typing import NamedTuple

from kafka_throttle.proxy.observe.page.process import Cluster, Process
from kafka_throttle.quotas.entities import plain_ip

MAX_HITS = 50
_MAX_KEPT = 2_000
"""How many hits are kept at a time. Of more, only exact ones are."""

_PER_STEP = 1_000
"""How many names one step compares: a few ms."""

_EXACT, _BEGINS, _CONTAINS = range(3)


class Hit(NamedTuple):
    """A client: a user with a client-id, or an address; "" for what is not known of it."""

    virtual_cluster: str
    user: str
    client_id: str
    ip: str


class Found(NamedTuple):
    """The best hits with whether each is throttled now, how many `more` there are at least, and if one is meant."""

    hits: list[tuple[Hit, bool]]
    more: int
    only: Hit | None


def search(process: Process, text: str) -> Generator[None, None, Found]:
    """Clients that are throttled, measured or connected, or that have a quota, of which a name contains `text`.

    Upper and lower case make no difference. Names that are equal to `text` come first, then those that begin with it.
    """
    wanted = plain_ip(text).lower()
    ranks: dict[Hit, int] = {}
    throttled: set[Hit] = set()
    left_out = number = 0
    for cluster in process.clusters:
        for hit, is_throttled in _clients(cluster, process):
            number += 1
            if not number % _PER_STEP:
                yield
            rank = _rank(hit, wanted)
            if rank is None:
                continue
            if hit not in ranks and len(ranks) >= _MAX_KEPT and rank != _EXACT:
                left_out += 1
                continue
            ranks[hit] = rank
            if is_throttled:
                throttled.add(hit)
    order = sorted(ranks, key=lambda hit: (ranks[hit], hit not in throttled, hit))
    exact = [hit for hit in order if ranks[hit] == _EXACT]
    only = exact[0] if len(exact) == len(order) == 1 else None
    hits = [(hit, hit in throttled) for hit in order[:MAX_HITS]]
    return Found(hits, len(order) - len(hits) + left_out, only)


def _rank(hit: Hit, wanted: str) -> int | None:
    """How well a hit fits, None if it does not."""
    names = [name.lower() for name in hit[1:] if name]
    if wanted in names:
        return _EXACT
    if any(name.startswith(wanted) for name in names):
        return _BEGINS
    return _CONTAINS if any(wanted in name for name in names) else None


def _clients(cluster: Cluster, process: Process) -> Iterator[tuple[Hit, bool]]:
    """All clients that are known, many of them more than once, and whether each is throttled now."""
    name = cluster.name
    for episodes in cluster.throttled.by_client():
        first = episodes[0].first
        yield Hit(name, first.user, first.client_id, ""), True
    for past in cluster.last_throttles:
        yield Hit(name, past.user, past.client_id, ""), False
    for key in cluster.quota_manager.sensor_keys:
        if key.shared_by is None:
            yield Hit(name, key.tags.user, key.tags.client_id, ""), False
    for entity in cluster.quotas:
        user, client_id, ip = (
            part if isinstance(part, str) else "" for part in (entity.user, entity.client_id, entity.ip)
        )
        yield Hit(name, user, client_id, ip), False
    for client in cluster.clients():
        yield Hit(name, client.user, client.client_id, ""), False
    for _, address in cluster.peers():
        yield Hit(name, "", "", address), False
    for use in process.addresses():
        if use.virtual_cluster == name:
            yield Hit(name, "", "", use.address), False
