"""The proxy's own credentials, from the configuration and the files that it names."""

from dataclasses import asdict, replace
from typing import Any

from proxy.config.secret_file import secret
from proxy.config.settings import CredentialsConfig, UpstreamConfig, UsageTopicConfig
from quotas.sources.cluster_connection import Credentials, mark_of


def credentials_of(upstream: UpstreamConfig) -> Credentials:
    """Who the proxy is to a cluster. ConfigErrors if its password cannot be read."""
    credentials = _credentials(upstream.admin, "upstream.admin")
    return replace(
        credentials,
        announced=upstream.send_proxy_protocol,
        destinations=upstream.destinations,
        mark=mark_of(upstream.virtual_cluster),
    )


def topic_credentials(topic: UsageTopicConfig) -> Credentials:
    """Who the proxy is to the cluster of that topic. ConfigErrors if its password cannot be read."""
    return _credentials(topic, "usage.kafka")


def topic_settings(topic: UsageTopicConfig) -> dict[str, Any]:
    """Who the proxy is to the cluster of that topic, and where it is, as kafka-python's producer takes it.

    ConfigErrors if its password cannot be read.
    """
    credentials = asdict(topic_credentials(topic))
    del credentials["announced"], credentials["destinations"], credentials["mark"]
    return {
        "bootstrap_servers": [str(server) for server in topic.bootstrap_servers],
        "compression_type": None if topic.compression == "none" else topic.compression,
        **credentials,
    }


def _credentials(config: CredentialsConfig, path: str) -> Credentials:
    return Credentials(
        security_protocol=config.security_protocol,
        ssl_cafile=config.ca_file,
        ssl_certfile=config.certificate_file,
        ssl_keyfile=config.key_file,
        sasl_mechanism=config.sasl_mechanism,
        sasl_plain_username=config.username,
        sasl_plain_password=secret(config.password_file, f"{path}.password_file"),
    )
