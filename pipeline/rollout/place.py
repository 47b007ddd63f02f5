"""Where quotas are in force: a cluster or proxy with Kafka's API, ZooKeeper, or the source in a proxy's
configuration.
"""

import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from kafka_throttle.common.zookeeper import Ensemble
from kafka_throttle.quotas.changes import Alteration, SourceUnavailable
from kafka_throttle.quotas.sources.cluster_connection import Credentials
from kafka_throttle.quotas.sources.source import Source
from kafka_throttle.quotas.sources.upstream import UpstreamSettings, UpstreamSource
from kafka_throttle.quotas.sources.zookeeper import ZooKeeperSettings, ZooKeeperSource

_ONCE_S: Final = 86_400.0
_FIRST_LOAD_S: Final = 60.0
_LOOKS_EVERY_S: Final = 0.02

ENTITIES_A_REQUEST: Final = 100
"""The number of entities in one request."""

_UNAUTHORISED = re.compile(r"the proxy's own credentials need (\w+) on the Cluster resource \(error (\d+)\)")
_STAYS = re.compile(r"; the last good quotas [^;]*stay in force[^;]*")
"""What a source says about a proxy's last good quotas; a command has none, so this part is removed."""
_NAMES = {29: "TOPIC_AUTHORIZATION_FAILED", 31: "CLUSTER_AUTHORIZATION_FAILED"}
_SETTINGS = {
    "upstream.bootstrap_servers": "--bootstrap-server",
    "upstream.admin.security_protocol": "security.protocol",
    "upstream.admin.ca_file": "ssl.ca.location",
    "upstream.admin.certificate_file": "ssl.certificate.location",
    "upstream.admin.key_file": "ssl.key.location",
    "upstream.admin.sasl_mechanism": "sasl.mechanism",
    "upstream.admin.username": "sasl.username",
    "upstream.admin.password_file": "sasl.password",
}


@dataclass(frozen=True)
class Place:
    """A place with quotas. `name` is for people; `makes` gives a new source, not yet started, with each call.

    A problem of the source whose place begins with one of `itself` means that the source could not be read;
    `unreadable` is the text around such a problem, if the problem does not say enough.
    """

    name: str
    makes: Callable[[], Source]
    itself: tuple[str, ...]
    unreadable: str = "{problem}"

    @contextmanager
    def opened(self) -> Iterator[Source]:
        """The source, started and read. Raises SourceUnavailable with the reason if it cannot be read."""
        source = self.makes()
        source.start(lambda: None)
        try:
            self._await(source)
            yield source
        finally:
            source.stop()

    def _await(self, source: Source) -> None:
        deadline_s = time.monotonic() + _FIRST_LOAD_S
        while isinstance(source, UpstreamSource) and not source.was_tried and time.monotonic() < deadline_s:
            time.sleep(_LOOKS_EVERY_S)
        while True:
            found = [problem for where, problem in source.problems.items() if where.startswith(self.itself)]
            if found:
                raise SourceUnavailable(self.unreadable.format(problem=in_words_of_commands("; ".join(found))))
            if not isinstance(source, ZooKeeperSource) or source.was_read:
                return
            if time.monotonic() > deadline_s:
                raise SourceUnavailable(f"{self.name}: not read within {_FIRST_LOAD_S:g} s")
            time.sleep(_LOOKS_EVERY_S)

    def asks_whether(self, source: Source) -> bool:
        """Whether the source can check a change without making it."""
        return isinstance(source, UpstreamSource)

    def judged(self, source: Source, alterations: Sequence[Alteration]) -> Sequence[Exception | None]:
        """The source's response to alterations of different entities; None if it would accept one, or was not asked."""
        if not isinstance(source, UpstreamSource):
            return [None] * len(alterations)
        starts = range(0, len(alterations), ENTITIES_A_REQUEST)
        return [said for i in starts for said in source.judge(alterations[i : i + ENTITIES_A_REQUEST])]


def by_kafkas_api(servers: Sequence[str], credentials: Credentials) -> Place:
    """A cluster or a proxy at these servers (host:port)."""
    settings = UpstreamSettings(tuple(servers), credentials, interval_s=_ONCE_S)
    return Place(",".join(servers), lambda: UpstreamSource(settings), ("upstream",))


def in_zookeeper(servers: Sequence[str], chroot: str) -> Place:
    """Kafka's znodes below a chroot; "" is Kafka's own root."""
    settings = ZooKeeperSettings(Ensemble(servers), chroot)
    name = f"zookeeper {','.join(servers)}{chroot}"
    unreadable = "cannot read quotas from ZooKeeper at {problem} (look at --zookeeper, and whether a server runs there)"
    return Place(name, lambda: ZooKeeperSource(settings), ("zookeeper",), unreadable)


def in_words_of_commands(text: str) -> str:
    """A source's message to the operators of a proxy, changed for the user of a command."""
    text = _STAYS.sub("", text)
    for setting, option in _SETTINGS.items():
        text = text.replace(setting, option)
    return _UNAUTHORISED.sub(_unauthorised, text.replace("(setting: ", "(look at "))


def _unauthorised(found: re.Match[str]) -> str:
    code = int(found[2])
    need = f"{found[1]} on the Cluster resource is needed, or at a proxy to be one of its admin_users"
    return f"not allowed: {_NAMES[code]} (error {code}): {need}"
