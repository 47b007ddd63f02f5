"""The clients that fit the names in a question: those that are throttled, connected or measured now."""

from collections.abc import Generator, Iterable, Iterator, Sequence
from heapq import nsmallest
from itertools import chain, islice
from typing import Final, NamedTuple, Protocol

from kafka_throttle.common.printable import printable
from kafka_throttle.proxy.decisions.client_ids import measured_client_id
from kafka_throttle.proxy.observe.last_throttles import LastThrottles
from kafka_throttle.proxy.observe.throttle_episode import ThrottledClients
from kafka_throttle.quotas.client_quotas import ClientQuotaManager
from kafka_throttle.quotas.entities import ANONYMOUS, plain_ip
from kafka_throttle.quotas.explain import Client
from kafka_throttle.quotas.quota_table import QuotaTable

MAX_EXPLAINED: Final = 10
"""The most clients in one explanation."""

OTHER_INSTANCES: Final = "only clients of this instance are known here: other instances may have more"

_PER_STEP = 500
"""How many clients one step looks at: a few ms."""


class Cluster(Protocol):
    """What is needed of a virtual cluster."""

    quota_manager: ClientQuotaManager
    throttled: ThrottledClients
    last_throttles: LastThrottles

    def clients(self) -> Iterable[Client]:
        """The clients of each open connection, by the client-ids that it has used, with its address."""


class Names(NamedTuple):
    """What a question says of a client; None for what it does not say. A client-id may be empty."""

    user: str | None = None
    client_id: str | None = None
    ip: str | None = None

    @property
    def client(self) -> Client | None:
        """The client, if the names say which one it is."""
        if self.user is None or self.client_id is None:
            return None
        return Client(self.user, self.client_id, self.ip)

    def __str__(self) -> str:
        return ", ".join(f"{part}={printable(repr(name))}" for part, name in self._asdict().items() if name is not None)

    def stand_in(self, are_unknown: str) -> tuple[Client, str]:
        """A client to explain where none is known, and a remark that says so. `are_unknown` says why."""
        missing = [f"the user {ANONYMOUS} (clients that do not log in)"] if self.user is None else []
        if self.client_id is None:
            missing.append("an empty client-id")
        client = Client(self.user or ANONYMOUS, self.client_id or "", self.ip)
        return client, f"{are_unknown}: what follows is for {' and '.join(missing)}"


class KnownClient(NamedTuple):
    """A client. `left_ms` is how much longer it is muted, None if it is not throttled; 0 between two throttles."""

    user: str
    client_id: str
    left_ms: int | None = None
    connections: int = 0

    @property
    def rank(self) -> tuple[int, int, str, str]:
        """Lower for a client that is to be named earlier: throttled ones first, then those that are connected."""
        if self.left_ms is not None:
            return 0, -self.left_ms, self.user, self.client_id
        return 2 - (self.connections > 0), 0, self.user, self.client_id

    def and_(self, other: "KnownClient") -> "KnownClient":
        """The same client, as it is known from two places."""
        left_ms = max((left for left in (self.left_ms, other.left_ms) if left is not None), default=None)
        return self._replace(left_ms=left_ms, connections=self.connections + other.connections)


class KnownClients(NamedTuple):
    """The first clients that fit, and how many fit in all."""

    first: Sequence[KnownClient] = ()
    total: int = 0

    @property
    def more(self) -> int:
        """How many are not among the first."""
        return self.total - len(self.first)

    def explained(self, names: Names, is_one_of_several: bool) -> tuple[list[Client], list[str]]:
        """The clients to explain, at least one, and what is to be said of them."""
        notes = [OTHER_INSTANCES] if is_one_of_several else []
        if self.first:
            return [Client(each.user, each.client_id, names.ip) for each in self.first], notes
        which = f"no client with {names}" if any(name is not None for name in names) else "no client"
        client, remark = names.stand_in(f"{which} is connected, and none was measured")
        return [client], [remark, *notes]


def known_clients(cluster: Cluster, names: Names, now_ms: int) -> Generator[None, None, KnownClients]:
    """The clients of a virtual cluster that fit the names, throttled ones first. In steps."""
    table = cluster.quota_manager.table
    client_ids = set() if names.client_id is None else {names.client_id, as_measured(names.client_id, table)}
    ip = None if names.ip is None else plain_ip(names.ip)
    found: dict[tuple[str, str], KnownClient] = {}
    for number, (client, its_ip) in enumerate(_all_clients(cluster, now_ms), 1):
        if not number % _PER_STEP:
            yield
        fits_user = client.user if names.user is None else client.user == names.user
        if fits_user and (not client_ids or client.client_id in client_ids) and ip in (None, its_ip):
            before = found.get(client[:2])
            found[client[:2]] = client if before is None else before.and_(client)
    first: list[KnownClient] = []
    clients = iter(found.values())
    while some := list(islice(clients, _PER_STEP)):
        first = nsmallest(MAX_EXPLAINED, chain(first, some), key=lambda client: client.rank)
        yield
    return KnownClients(first, len(found))


def merged_clients(answers: Sequence[KnownClients]) -> KnownClients:
    """The clients that several workers know."""
    found: dict[tuple[str, str], KnownClient] = {}
    for client in chain.from_iterable(answer.first for answer in answers):
        before = found.get(client[:2])
        found[client[:2]] = client if before is None else before.and_(client)
    twice = sum(len(answer.first) for answer in answers) - len(found)
    first = nsmallest(MAX_EXPLAINED, found.values(), key=lambda client: client.rank)
    return KnownClients(first, sum(answer.total for answer in answers) - twice)


def as_measured(client_id: str, table: QuotaTable) -> str:
    """A client-id as it is measured."""
    return measured_client_id(client_id.encode(errors="replace"), table)


def _all_clients(cluster: Cluster, now_ms: int) -> Iterator[tuple[KnownClient, str | None]]:
    """All clients that are known, many of them more than once, with an address where one is known."""
    for episodes in cluster.throttled.by_client():
        left_ms = max(0, *(episode.ends_ms - now_ms for episode in episodes))
        for episode in episodes:
            yield KnownClient(episode.first.user, episode.first.client_id, left_ms), episode.first.ip
    for user, client_id, address in cluster.clients():
        yield KnownClient(user, client_id, connections=1), address
    for past in cluster.last_throttles:
        yield KnownClient(past.user, past.client_id), past.ip
    for key in cluster.quota_manager.sensor_keys:
        if key.shared_by is None and key.tags.user and key.tags.client_id:
            yield KnownClient(key.tags.user, key.tags.client_id), None
