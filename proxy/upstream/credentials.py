"""The proxy's own credentials, from the configuration and the files that it names."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from common.problems import Problem
from proxy.config.problems import ConfigErrors
from proxy.config.settings import CredentialsConfig, UpstreamConfig, UsageTopicConfig
from quotas.sources.cluster_connection import Credentials

_MAX_SECRET_BYTES = 4096


def credentials_of(upstream: UpstreamConfig) -> Credentials:
    """Who the proxy is to a cluster. ConfigErrors if its password cannot be read."""
    return _credentials(upstream.admin, "upstream.admin", upstream.send_proxy_protocol)


def topic_credentials(topic: UsageTopicConfig) -> Credentials:
    """Who the proxy is to the cluster of that topic. ConfigErrors if its password cannot be read."""
    return _credentials(topic, "usage.kafka", False)


def topic_settings(topic: UsageTopicConfig) -> dict[str, Any]:
    """Who the proxy is to the cluster of that topic, and where it is, as kafka-python's producer takes it.

    ConfigErrors if its password cannot be read.
    """
    credentials = asdict(topic_credentials(topic))
    del credentials["announced"]
    return {
        "bootstrap_servers": [str(server) for server in topic.bootstrap_servers],
        "compression_type": None if topic.compression == "none" else topic.compression,
        **credentials,
    }


def _credentials(config: CredentialsConfig, path: str, announced: bool) -> Credentials:
    return Credentials(
        security_protocol=config.security_protocol,
        ssl_cafile=config.ca_file,
        ssl_certfile=config.certificate_file,
        ssl_keyfile=config.key_file,
        sasl_mechanism=config.sasl_mechanism,
        sasl_plain_username=config.username,
        sasl_plain_password=secret(config.password_file, f"{path}.password_file"),
        announced=announced,
    )


def secret(path: str | None, setting: str) -> str | None:
    """What a file holds, without the line end behind it. ConfigErrors, naming the setting, if it cannot be read."""
    if path is None:
        return None
    try:
        with Path(path).open("rb") as file:
            data = file.read(_MAX_SECRET_BYTES + 1)
        text = data.decode().rstrip("\r\n")
    except OSError as error:
        problem = f"{path} cannot be read: {error.strerror or error}"
    except UnicodeDecodeError:
        problem = f"{path}: expected UTF-8"
    else:
        if text and len(data) <= _MAX_SECRET_BYTES:
            return text
        problem = f"{path}: expected a secret of 1 to {_MAX_SECRET_BYTES} bytes, got {len(data)}"
    raise ConfigErrors([Problem(setting, problem)])
