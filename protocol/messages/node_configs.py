"""The proxy's own DescribeConfigs request, for settings of one node.

Sources: `DescribeConfigsRequest.json` and `DescribeConfigsResponse.json`.
"""

from collections.abc import Mapping, Sequence

from protocol.api_key import DESCRIBE_CONFIGS
from protocol.fields import FieldReader, FieldWriter
from protocol.own_requests import OwnRequest

_BROKER = b"\4"
"""The type of a resource that is a node."""
_SYNONYMS_SINCE = 1
_DOCUMENTATION_SINCE = 3


def node_configs_request(node_id: int, names: Sequence[str]) -> OwnRequest[Mapping[str, str | None]]:
    """The request for the settings `names` of a node. The response has those that it reports; None is a hidden
    value.
    """

    def written(writer: FieldWriter, version: int) -> bytes:
        resource = _BROKER + writer.text(str(node_id)) + writer.array(map(writer.text, names)) + writer.end
        booleans = (version >= _SYNONYMS_SINCE) + (version >= _DOCUMENTATION_SINCE)
        return writer.array([resource]) + bytes(booleans) + writer.end

    return OwnRequest(DESCRIBE_CONFIGS, written, _read)


def _read(reader: FieldReader, version: int) -> Mapping[str, str | None]:
    reader.skip(4)  # throttle_time_ms
    configs: dict[str, str | None] = {}
    for _ in reader.elements(7):
        reader.skip(2)  # error_code
        reader.nullable_text()
        reader.skip(1)  # resource_type
        reader.text()
        for _ in reader.elements(5):
            name = reader.text()
            configs[name] = reader.nullable_text()
            _skip_details(reader, version)
        reader.end()
    return configs


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
