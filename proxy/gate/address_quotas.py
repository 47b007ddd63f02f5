"""The connection limits of one virtual cluster, passed to the gate whenever quotas or settings change."""

from collections.abc import Mapping
from typing import TypeVar

import structlog

from kafka_throttle.proxy.config.settings import ClusterConnectionsConfig
from kafka_throttle.proxy.gate.admission import ClusterRules
from kafka_throttle.proxy.gate.connection_gate import ConnectionGate
from kafka_throttle.proxy.gate.host_names import HostNames, Resolve, resolve
from kafka_throttle.quotas.changes import Tables
from kafka_throttle.quotas.connection_counts import NO_LIMIT
from kafka_throttle.quotas.connection_quotas import AddressLimits
from kafka_throttle.quotas.entities import plain_ip
from kafka_throttle.quotas.quota_table import ConnectionRates
from kafka_throttle.quotas.shared_map import SharedMap

Number = TypeVar("Number", int, float)


class AddressQuotas:
    """Connection limits of one virtual cluster: rates from ip quotas, counts from the configuration.

    An ip quota may be set on a host name: it applies to the addresses that the name resolves to.
    """

    def __init__(self, virtual_cluster: str, gate: ConnectionGate, resolve: Resolve = resolve) -> None:
        self._virtual_cluster = virtual_cluster
        self._gate = gate
        self._config = ClusterConnectionsConfig()
        self._rates = ConnectionRates()
        self._shadow = ConnectionRates()
        log = structlog.get_logger().bind(virtual_cluster=virtual_cluster)
        self._hosts = HostNames(self._put_in_force, log, resolve)

    def set_rules(self, config: ClusterConnectionsConfig) -> None:
        """Apply the settings of the configuration, from the next connection on."""
        self._config = config
        self._put_in_force()

    def take_up(self, tables: Tables) -> None:
        """Apply these quotas from the next connection on; the quota of a host name, as soon as the name is resolved."""
        self._rates, self._shadow = tables.enforced.connection_rates, tables.shadow.connection_rates
        self._put_in_force()
        self._hosts.follow({*self._rates.by_host, *self._shadow.by_host})

    def hosts_at(self, address: str) -> tuple[str, ...]:
        """The host names with a quota that resolve to this address. `address` is in its plain spelling."""
        return tuple(sorted(host for host, addresses in self._hosts.addresses.items() if address in addresses))

    def stop(self) -> None:
        """Stop resolving names."""
        self._hosts.stop()

    def _put_in_force(self) -> None:
        admission, config = self._gate.admission, self._config
        counts = config.max_connections_per_ip_overrides
        limits = AddressLimits(
            _or_no_limit(self._rates.default),
            _or_no_limit(config.max_connections_per_ip),
            rates_of(self._rates, self._hosts.addresses),
            {plain_ip(address): most for address, most in counts.items()},
            _or_no_limit(self._shadow.default),
            rates_of(self._shadow, self._hosts.addresses),
        )
        admission.quotas.set_address_limits(self._virtual_cluster, limits)
        admission.set_rules(
            self._virtual_cluster,
            ClusterRules(
                config.ip_refusal == "wait",
                config.max_held_per_ip,
                _or_no_limit(config.max_connections_per_user),
                config.max_connections_per_user_overrides,
                config.ipv4_prefix,
                config.ipv6_prefix,
            ),
        )


def rates_of(rates: ConnectionRates, addresses_of: Mapping[str, tuple[str, ...]]) -> Mapping[str, float]:
    """The rate of each address. A quota of the address itself comes first, then the lowest of its host names."""
    if not rates.by_host:
        return rates.by_address
    of_hosts: dict[str, float] = {}
    for host, rate in rates.by_host.items():
        for address in addresses_of.get(host, ()):
            of_hosts[address] = min(rate, of_hosts.get(address, rate))
    by_address: SharedMap[str, float] = rates.by_address
    return by_address.changed({address: rate for address, rate in of_hosts.items() if address not in by_address})


def _or_no_limit(limit: Number | None) -> Number | int:
    """The limit, or `NO_LIMIT` for None."""
    return NO_LIMIT if limit is None else limit
