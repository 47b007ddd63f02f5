"""Makes the relays of a listener's connections, by the settings that are in force when each connection is opened."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from kafka_throttle.protocol.messages.api_versions import carried
from kafka_throttle.proxy.clock import Clock
from kafka_throttle.proxy.config.settings import LimitsConfig, QuotasConfig, SaslConfig
from kafka_throttle.proxy.decisions.client_ids import measured_client_id
from kafka_throttle.proxy.decisions.facts import ConnectionFacts, ListenerFacts
from kafka_throttle.proxy.decisions.sasl import SaslRules
from kafka_throttle.proxy.relay.actions import RelayLimits
from kafka_throttle.proxy.relay.memory import Memory
from kafka_throttle.proxy.relay.relay import Relay
from kafka_throttle.proxy.relay.relay_counters import RelayCounters
from kafka_throttle.proxy.relay.use import MUTATION, Client, Meter
from kafka_throttle.proxy.server.quota_store import QuotaStore
from kafka_throttle.proxy.upstream.connector import Upstream
from kafka_throttle.proxy.upstream.topology import ListenerNames, ListenerPorts
from kafka_throttle.quotas.changes import Quotas
from kafka_throttle.quotas.client_quotas import WHOLE_CLUSTER, ClientQuotaManager
from kafka_throttle.quotas.connection_quotas import ListenerKey
from kafka_throttle.quotas.entities import NOBODY
from kafka_throttle.quotas.sources.entries import ThrottleConfig


class Relays:
    """Makes relays. Settings apply to those that are made from then on."""

    def __init__(
        self,
        key: ListenerKey,
        ports: ListenerPorts | ListenerNames,
        upstream: Upstream,
        quota_manager: ClientQuotaManager,
        store: QuotaStore,
        meter: Meter | None,
        clock: Clock,
        memory: Memory,
    ) -> None:
        self.counters: dict[int, RelayCounters] = {}
        """What the relays of each node count."""
        self.demand_sasl = False
        """Whether a client has to log in before it is anybody."""
        self._listener = key.listener
        self._quota_manager = quota_manager
        self._store = store
        self._meter = meter
        self._clock = clock
        self._memory = memory
        self._rights = QuotasConfig()
        self._limits = RelayLimits()
        self._facts = ListenerFacts(
            key.virtual_cluster,
            ports,
            quota_manager,
            carried,
            self._quotas_in_force,
            store.entities_of,
            recent_topics=upstream.recent_topics,
            default_partitions=upstream.discovery.default_partitions,
            note_mutations=self._note_mutations,
            rights_of=self._rights_of,
        )

    def set_limits(self, limits: LimitsConfig) -> None:
        """Apply these limits."""
        self._limits = replace(
            self._limits,
            max_frame_bytes=limits.max_frame_bytes,
            max_response_bytes=limits.max_response_bytes,
            max_in_flight=limits.max_in_flight,
            max_kept_bytes=limits.write_buffer_bytes,
        )

    def set_rules(self, quotas: QuotasConfig, throttle: ThrottleConfig, sasl: SaslConfig) -> None:
        """Apply the settings of quotas, throttling and SASL."""
        self.demand_sasl = sasl.required
        self._rights = quotas
        self._limits = replace(
            self._limits,
            withholds=throttle.fetch == "empty",
            delays=throttle.mode == "delay",
            max_throttle_ms=throttle.max_throttle_ms,
            authenticates=sasl.required,
        )
        self._facts = replace(
            self._facts,
            charge_validate_only=throttle.charge_validate_only,
            sasl=SaslRules(sasl.user_names, sasl.claims()),
        )

    def new(self, node_id: int, user: str, address: str) -> tuple[Relay, ConnectionFacts]:
        """A relay for a client of a node, and the facts about its connection, which counts for this address."""
        counters = self.counters.get(node_id)
        if counters is None:
            counters = self.counters[node_id] = RelayCounters()
        if self.demand_sasl:
            user = NOBODY
        facts = ConnectionFacts(self._facts, node_id, user, *self._rights_of(user), address=address)
        usage_of = None if self._meter is None else partial(self._usage_of, facts)
        relay = Relay(self._quota_manager, counters, self._limits, facts.bind, usage_of, self._memory, facts)
        return relay, facts

    def _usage_of(self, facts: ConnectionFacts, raw_client_id: bytes) -> Client:
        """The usage counters of a client-id of a connection."""
        assert self._meter is not None
        client_id = measured_client_id(raw_client_id, self._quota_manager.table)
        return self._meter.hold(facts.node_id, facts.user, client_id)

    def _quotas_in_force(self) -> Quotas:
        return self._store.quotas

    def _note_mutations(self, user: str, client_id: str, partitions: float, shadow_ms: Sequence[int]) -> None:
        if self._meter is not None:
            now_us = self._clock.now_us()
            use = self._meter.client(WHOLE_CLUSTER, user, client_id).of(MUTATION)
            use.add(partitions, now_us)
            for throttle_ms in shadow_ms:
                use.note_shadow(throttle_ms, now_us)

    def _rights_of(self, user: str) -> tuple[bool, bool]:
        """Whether a user may alter, and whether it may describe, the quotas of others."""
        quotas = self._rights
        may_alter = self._listener in quotas.admin_listeners or user in quotas.admin_users
        return may_alter, may_alter or user in quotas.describe_users
