"""The facts about a connection that a decision may use."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from kafka_throttle.protocol.messages.api_versions import ANSWERED, Answered
from kafka_throttle.proxy.decisions.client_ids import measured_client_id
from kafka_throttle.proxy.decisions.recent_topics import RecentTopics
from kafka_throttle.proxy.decisions.sasl import Identity, Login, SaslRules
from kafka_throttle.quotas.changes import Quotas
from kafka_throttle.quotas.client_quotas import ClientQuotaManager, ClientSensors
from kafka_throttle.quotas.entities import NOBODY, Entity
from kafka_throttle.quotas.fair_queue import Whose, entity_of


class NoPortForNode(LookupError):
    """No port of this listener is left for a node: its id is outside node_ids, and living nodes have all spares."""


class Nodes(Protocol):
    """The nodes of a virtual cluster as clients of one listener see them."""

    def learn(self, node_id: int, host: str, port: int) -> None:
        """Note the upstream address under which the cluster names a node."""

    def advertised(self, node_id: int) -> tuple[bytes, int]:
        """The host and port of a node that clients get. Raises NoPortForNode."""


def _unheard(*_: object) -> None:
    """Called in place of a function that is to learn of a login, or of a refusal."""


@dataclass(slots=True)
class ListenerFacts:
    """What the connections of one listener have in common.

    - `quotas` are those that the source has now; `entities_of` a user are those of them that name the user.
    - `rights_of` a user says whether it may alter, and describe, the quotas of others.
    - `sasl` has the rules by which SASL names become users.
    - `answered` are the APIs that are offered in any case, because the proxy responds to them.
    - `recent_topics` is what was just done to topics of this cluster.
    - `default_partitions` is how many partitions a topic gets that is created without a number.
    - With `charge_validate_only` a mutation that is only to be validated is charged and refused like any other.
    - `note_mutations` is called with what mutations of a user and client-id have cost, and for how many ms a shadow
      quota would have throttled each.
    """

    virtual_cluster: str
    nodes: Nodes
    quota_manager: ClientQuotaManager
    offer: Callable[[int], tuple[int, int] | None]
    quotas: Callable[[], Quotas] = dict
    entities_of: Callable[[str], Sequence[Entity]] | None = None
    answered: Answered = ANSWERED
    recent_topics: RecentTopics = field(default_factory=RecentTopics)
    default_partitions: Callable[[], int] = lambda: 1
    note_mutations: Callable[[str, str, float, Sequence[int]], None] | None = None
    charge_validate_only: bool = False
    rights_of: Callable[[str], tuple[bool, bool]] | None = None
    sasl: SaslRules = field(default_factory=SaslRules)


@dataclass(slots=True)
class ConnectionFacts:
    """Which user is connected to which node. `node_id` is known once the upstream connection is there.

    The connection comes from `address`, or counts for this prefix.

    `may_alter` and `may_describe` are about the quotas of others. `note_identity` is called with each login,
    `note_denied` with the API, the user and the raw client-id of each request about quotas that the user has no right
    to make.
    """

    listener: ListenerFacts
    node_id: int
    user: str
    may_alter: bool = False
    may_describe: bool = False
    note_identity: Callable[[Identity], None] = _unheard
    note_denied: Callable[[str, str, bytes], None] = _unheard
    address: str = ""
    _login: Login | None = field(default=None, init=False)
    _client_id: bytes | None = field(default=None, init=False)
    """The client-id of which the sensors were looked up last; None before the first request."""
    _is_shared: bool = field(default=False, init=False)
    """Whether the real name of the user is unknown, and other users have the same one here."""

    @property
    def whose(self) -> Whose:
        """Whose turns the connection takes: those of its user or address, and in these those of its client-id.

        A client-id proves nothing, so that it only counts in the turns of the same user or address. A connection that
        has named none has turns for itself.
        """
        user = NOBODY if self._is_shared else self.user
        return Whose(entity_of(user, self.address), id(self) if self._client_id is None else self._client_id)

    @property
    def client_id(self) -> bytes | None:
        """The client-id of which the sensors were looked up last; None before the first request."""
        return self._client_id

    @property
    def login(self) -> Login:
        """The state of the connection's SASL authentication; made when first used, as most connections have none."""
        if self._login is None:
            self._login = Login(self.listener.sasl)
        return self._login

    def bind(self, raw_client_id: bytes, now_ms: int) -> ClientSensors:
        """The sensors that measure this client id of this user at this node."""
        listener, self._client_id = self.listener, raw_client_id
        client_id = measured_client_id(raw_client_id, listener.quota_manager.table)
        return listener.quota_manager.bind(listener.virtual_cluster, self.node_id, self.user, client_id, now_ms)

    def become(self, identity: Identity) -> None:
        """Take up the user that the client has proven to be: from now on it has the quotas and rights of this user."""
        self.user, self._is_shared = identity.user, not identity.visible
        if self.listener.rights_of is not None:
            self.may_alter, self.may_describe = self.listener.rights_of(identity.user)
        self.note_identity(identity)

    def report_nothing(self) -> None:
        """Forget `note_identity`, which refers back to this object: Python's collector need not look for the cycle."""
        self.note_identity = _unheard
