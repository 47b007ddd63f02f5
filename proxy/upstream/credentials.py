"""The proxy's own credentials, from the configuration and the files that it names."""

from dataclasses import asdict
from typing import Any

from common.destinations import ANYWHERE, Destinations
from proxy.config.secret_file import secret
from proxy.config.settings import CredentialsConfig, UpstreamConfig, UsageTopicConfig
from quotas.sources.cluster_connection import Credentials


def credentials_of(upstream: UpstreamConfig) -> Credentials:
    """Who the proxy is to a cluster. ConfigErrors if its password cannot be read."""
    return _credentials(upstream.admin, "upstream.admin", upstream.send_proxy_protocol, upstream.destinations)


def topic_credentials(topic: UsageTopicConfig) -> Credentials:
    """Who the proxy is to the cluster of that topic. ConfigErrors if its password cannot be read."""
    return _credentials(topic, "usage.kafka", False, ANYWHERE)


def topic_settings(topic: UsageTopicConfig) -> dict[str, Any]:
    """Who the proxy is to the cluster of that topic, and where it is, as kafka-python's producer takes it.

    ConfigErrors if its password cannot be read.
    """
    credentials = asdict(topic_credentials(topic))
    del credentials["announced"], credentials["destinations"]
    return {
        "bootstrap_servers": [str(server) for server in topic.bootstrap_servers],
        "compression_type": None if topic.compression == "none" else topic.compression,
        **credentials,
    }


def _credentials(config: CredentialsConfig, path: str, announced: bool, destinations: Destinations) -> Credentials:
    return Credentials(
        security_protocol=config.security_protocol,
        ssl_cafile=config.ca_file,
        ssl_certfile=config.certificate_file,
        ssl_keyfile=config.key_file,
        sasl_mechanism=config.sasl_mechanism,
        sasl_plain_username=config.username,
        sasl_plain_password=secret(config.password_file, f"{path}.password_file"),
        announced=announced,
        destinations=destinations,
    )
