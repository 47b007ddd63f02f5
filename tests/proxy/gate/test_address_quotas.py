"""What addresses may have follows quotas, settings, and what host names stand for."""

import asyncio

from kafka_throttle.common.duties import troubles
from kafka_throttle.proxy.config.settings import ClusterConnectionsConfig
from kafka_throttle.proxy.gate.address_quotas import AddressQuotas, rates_of
from kafka_throttle.proxy.gate.admission import Admission
from kafka_throttle.proxy.gate.connection_gate import ConnectionGate
from kafka_throttle.quotas.changes import Limit, tables_of
from kafka_throttle.quotas.connection_quotas import NO_LIMIT, ConnectionLimits, ConnectionQuotas
from kafka_throttle.quotas.entities import DEFAULT, Entity, QuotaKey, QuotaType
from kafka_throttle.quotas.quota_table import ConnectionRates
from kafka_throttle.quotas.shared_map import SharedMap
from tests.fakes.clock import FakeClock
from tests.support.waiting import until

RATE, SHADOW = QuotaKey(QuotaType.CONNECTION), QuotaKey(QuotaType.CONNECTION, shadow=True)


def gate():
    clock = FakeClock()
    made = ConnectionGate(Admission(ConnectionQuotas(ConnectionLimits(), clock.now_ms()), 10), clock)
    made.admission.add_virtual_cluster("main", 11, 1_000)
    return made


def tables(**limits):
    quotas = {Entity(ip=DEFAULT if ip == "default" else ip): {RATE: Limit(rate, "x")} for ip, rate in limits.items()}
    return tables_of(quotas)


def test_rates_come_from_quotas_and_counts_from_settings():
    at = gate()
    quotas = AddressQuotas("main", at)
    quotas.set_rules(
        ClusterConnectionsConfig(
            max_connections_per_ip=5,
            max_connections_per_ip_overrides={"::ffff:10.0.0.1": 7},
            ip_refusal="wait",
        )
    )
    both = {RATE: Limit(3.0, "x"), SHADOW: Limit(2.0, "x")}
    quotas.take_up(tables_of({Entity(ip=DEFAULT): both, Entity(ip="10.0.0.1"): {RATE: Limit(0.0, "x")}}))
    limits = at.admission.quotas.address_limits("main")
    assert (limits.creation_rate, limits.rate_of("10.0.0.1"), limits.shadow_rate) == (3.0, 0.0, 2.0)
    assert (limits.count_of("10.0.0.1"), limits.count_of("10.0.0.2")) == (7, 5)
    quotas.take_up(tables_of({}))
    quotas.set_rules(ClusterConnectionsConfig())
    limits = at.admission.quotas.address_limits("main")
    assert (limits.creation_rate, limits.rate_of("10.0.0.1"), limits.count_of("10.0.0.1")) == (NO_LIMIT,) * 3


async def test_host_names_are_resolved_and_keep_their_last_good_addresses():
    at, responses, asked = gate(), {"a.example": ("10.0.0.1", "10.0.0.2"), "b.example": ("10.0.0.2",)}, []

    async def resolve(host):
        asked.append(host)
        if host not in responses:
            raise OSError(f"{host} has no address")
        return responses[host]

    quotas = AddressQuotas("main", at, resolve)
    quotas.take_up(tables(**{"a.example": 5.0, "b.example": 3.0, "c.example": 1.0, "default": 9.0}))

    def rates():
        limits = at.admission.quotas.address_limits("main")
        return [limits.rate_of(address) for address in ("10.0.0.1", "10.0.0.2", "10.0.0.3")]

    assert rates() == [9.0] * 3
    async with asyncio.timeout(60):
        while rates()[0] == 9.0:  # noqa: ASYNC110
            await asyncio.sleep(0)
    assert rates() == [5.0, 3.0, 9.0]
    assert quotas.hosts_at("10.0.0.2") == ("a.example", "b.example")
    responses.clear()
    quotas.take_up(tables(**{"a.example": 4.0, "default": 9.0}))
    async with asyncio.timeout(60):
        while len(asked) < 4:  # noqa: ASYNC110
            await asyncio.sleep(0)
    assert rates() == [4.0, 4.0, 9.0]
    quotas.stop()


async def test_a_host_name_that_takes_long_delays_no_other():
    at = gate()

    async def resolve(host):
        await asyncio.sleep(3_600 if host == "slow.example" else 0)
        return ("10.0.0.1",)

    quotas = AddressQuotas("main", at, resolve)
    quotas.take_up(tables(**{"a.example": 5.0, "slow.example": 3.0, "default": 9.0}))
    await until(lambda: at.admission.quotas.address_limits("main").rate_of("10.0.0.1") != 9.0)
    assert quotas.hosts_at("10.0.0.1") == ("a.example",)
    quotas.stop()


def test_an_address_by_number_comes_before_names():
    rates = ConnectionRates(None, SharedMap({"10.0.0.1": 2.0}), SharedMap({"a.example": 5.0}))
    assert rates_of(rates, {"a.example": ("10.0.0.1", "10.0.0.2")}) == {"10.0.0.1": 2.0, "10.0.0.2": 5.0}
    assert rates_of(rates, {}) == {"10.0.0.1": 2.0}


async def test_an_error_with_one_host_name_is_none_of_the_others():
    at = gate()

    async def resolve(host):
        if host == "bad.example":
            raise ValueError("a bug")
        return ("10.0.0.1",)

    quotas = AddressQuotas("main", at, resolve)
    quotas.take_up(tables(**{"bad.example": 3.0, "a.example": 5.0, "default": 9.0}))
    async with asyncio.timeout(60):
        while at.admission.quotas.address_limits("main").rate_of("10.0.0.1") == 9.0:  # noqa: ASYNC110
            await asyncio.sleep(0)
    [trouble] = troubles()
    assert "ValueError('a bug')" in trouble
    quotas.stop()
    await asyncio.sleep(0)
