"""The proxy's own DescribeConfigs requests, for settings of one node or of one topic.

Sources: `DescribeConfigsRequest.json` and `DescribeConfigsResponse.json`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from kafka_throttle.protocol.api_key import DESCRIBE_CONFIGS
from kafka_throttle.protocol.fields import FieldReader, FieldWriter
from kafka_throttle.protocol.own_requests import OwnRequest

_TOPIC = b"\2"
_BROKER = b"\4"
"""The type of a resource that is a node."""
_SYNONYMS_SINCE = 1
_DOCUMENTATION_SINCE = 3


class TopicConfigs(NamedTuple):
    """The settings of a topic by name, None for a hidden value; or the error code for which there are none."""

    values: Mapping[str, str | None]
    error_code: int


def node_configs_request(node_id: int, names: Sequence[str]) -> OwnRequest[Mapping[str, str | None]]:
    """The request for the settings `names` of a node. The response has those that it reports; None is a hidden
    value.
    """
    return OwnRequest(DESCRIBE_CONFIGS, _writes(_BROKER, str(node_id), names), lambda *from_: _read(*from_).values)


def topic_configs_request(topic: str, names: Sequence[str]) -> OwnRequest[TopicConfigs]:
    """The request for the settings `names` of a topic."""
    return OwnRequest(DESCRIBE_CONFIGS, _writes(_TOPIC, topic, names), _read)


def _writes(kind: bytes, resource: str, names: Sequence[str]) -> Callable[[FieldWriter, int], bytes]:
    def written(writer: FieldWriter, version: int) -> bytes:
        one = kind + writer.text(resource) + writer.array(map(writer.text, names)) + writer.end
        booleans = (version >= _SYNONYMS_SINCE) + (version >= _DOCUMENTATION_SINCE)
        return writer.array([one]) + bytes(booleans) + writer.end

    return written


def _read(reader: FieldReader, version: int) -> TopicConfigs:
    reader.skip(4)  # throttle_time_ms
    configs: dict[str, str | None] = {}
    error_code = 0
    for _ in reader.elements(7):
        error_code = reader.int16() or error_code
        reader.nullable_text()
        reader.skip(1)  # resource_type
        reader.text()
        for _ in reader.elements(5):
            name = reader.text()
            configs[name] = reader.nullable_text()
            _skip_details(reader, version)
        reader.end()
    return TopicConfigs(configs, error_code)


def _skip_details(reader: FieldReader, version: int) -> None:
    """Step over what follows the name and value of a setting."""
    reader.skip(3)  # read_only, config_source (in version 0: is_default), is_sensitive
    for _ in reader.elements(3) if version >= _SYNONYMS_SINCE else ():
        reader.text()
        reader.nullable_text()
        reader.skip(1)  # source
        reader.end()
    if version >= _DOCUMENTATION_SINCE:
        reader.skip(1)  # config_type
        reader.nullable_text()
    reader.end()
