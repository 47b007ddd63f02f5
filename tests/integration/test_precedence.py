"""All eight levels at which a quota may be set, against one live client with a proven user: the next one rules."""

from contextlib import closing

import pytest

from kafka_throttle.quotas.sources.cluster_connection import ClusterConnection, Credentials
from tests.integration import certified, logins, quota_admins
from tests.integration.logins import PASSWORDS, SHA_256
from tests.integration.proxy_process import HOST, ProxyProcess
from tests.integration.steady_producers import Load, WithConfluentKafka
from tests.integration.topics import make_topic
from tests.support.timeouts import TIMEOUT_S

CLIENT_ID = "eight"
RECORD_BYTES = 40_000
"""Throttled at any of the limits, which are of 1,000 bytes/s and some more."""
SOON = {"max_throttle_ms": 200, "max_debt_ms": 0}


def levels(user):
    """The entities of one client, the strongest first, each with another limit."""
    entities = (
        {"user": user, "client-id": CLIENT_ID},
        {"user": user, "client-id": None},
        {"user": user},
        {"user": None, "client-id": CLIENT_ID},
        {"user": None, "client-id": None},
        {"user": None},
        {"client-id": CLIENT_ID},
        {"client-id": None},
    )
    return [(level, entity, 1_000 + level) for level, entity in enumerate(entities, 1)]


def by_sasl(cluster, _certificates, folder):
    """A proxy with clients that log in, the login of this one, and the admin client that sets quotas there."""
    logins.add_scram_users(cluster.bootstrap_servers)
    secret = folder / "password"
    secret.write_text(PASSWORDS["proxy"])
    own = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": SHA_256, "username": "proxy"}
    upstream = {"admin": {**own, "password_file": str(secret)}}
    client = logins.confluent_settings(SHA_256, "alice", PASSWORDS["alice"])
    setter = Credentials(
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism=SHA_256,
        sasl_plain_username="proxy",
        sasl_plain_password=PASSWORDS["proxy"],
    )
    return "alice", cluster.bootstrap(logins.LISTENER), {"upstream": upstream}, client, setter


def by_certificate(cluster, certificates, _folder):
    """The same with certificates."""
    tls = certificates.of_listener(HOST, name="eight")
    settings = {"upstream": certificates.of_upstream, "listener": {"tls": tls}}
    shown = certificates.go()
    setter = Credentials("SSL", shown["ca"], shown["certificate"], shown["key"])
    return certified.USER, cluster.bootstrap(certified.LISTENER), settings, certificates.confluent(), setter


@pytest.mark.rule("levels")
@pytest.mark.parametrize("proven", [by_sasl, by_certificate])
def test_each_of_the_eight_levels_rules_when_those_above_it_are_gone(newest_kafka, certificates, tmp_path, proven):
    topic = proven.__name__
    make_topic(newest_kafka.bootstrap_servers, topic, 3)
    user, servers, settings, client, setter = proven(newest_kafka, certificates, tmp_path)
    source = {"state_file": "state.json", "admin_users": ["proxy", user]}
    with ProxyProcess(servers, source=source, throttle=SOON, limits={"drain_s": 1}, **settings) as proxy:
        client |= {"bootstrap.servers": proxy.bootstrap, "client.id": CLIENT_ID}
        connection = ClusterConnection(proxy.bootstrap, setter, TIMEOUT_S)
        with closing(connection), Load(WithConfluentKafka(topic, **client), RECORD_BYTES) as load:
            load.send()
            load.arrive()
            alter(connection, {freeze(entity): {"producer_byte_rate": limit} for _, entity, limit in levels(user)})
            for level, entity, limit in levels(user):
                assert rule(await_rule(proxy, user, level)) == (level, entity, limit)
                count = throttles(proxy)
                load.send()
                load.arrive()
                assert throttles(proxy) > count
                assert explained(proxy, user)["throttles"][0]["limit"] == limit
                alter(connection, {freeze(entity): {"producer_byte_rate": None}})
            await_rule(proxy, user, None)
            count = throttles(proxy)
            load.send()
            load.assert_all_are_there_once_and_in_order(newest_kafka, topic)
            assert throttles(proxy) == count
        lines = proxy.wait_for(lambda: proxy.events("throttle_started"), TIMEOUT_S, "word of the throttles")
        assert {line["user"] for line in lines} == {user}


def freeze(entity):
    return frozenset(entity.items())


def alter(connection, entries):
    reported = quota_admins.ask_in_messages(connection, quota_admins.altering(entries))
    assert {entity: code for entity, (code, _) in reported.results.items()} == dict.fromkeys(entries, 0)


def explained(proxy, user):
    reported = proxy.admin(f"explain?user={user}&client_id={CLIENT_ID}")
    return next(quota for quota in reported["quotas"] if quota["quota"] == "producer_byte_rate")


def await_rule(proxy, user, level):
    """What is explained once this level rules."""

    def found():
        reported = explained(proxy, user)
        return reported if (reported["rule"] or {}).get("level") == level else None

    return proxy.wait_for(found, TIMEOUT_S, f"level {level}")


def rule(reported):
    return reported["rule"]["level"], reported["rule"]["entity"], reported["rule"]["limit"]


def throttles(proxy):
    return proxy.metric("throttles_total", quota_type="produce")
