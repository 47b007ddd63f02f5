"""Messages of a topic with usage records, read by plain Python."""

import json

from kafka_throttle.quotas.records.usage_record import ROWS, Row, columns

_ESCAPES = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})


def line_in(message: bytes) -> bytes:
    """The line that a message was made from. Numbers stay as they are written."""
    if not message.startswith(b"{"):
        return message
    payload = json.loads(message, parse_int=str, parse_float=str)["payload"]
    texts = ["\\N" if value is None else value.translate(_ESCAPES) for value in payload.values()]
    return "\t".join(texts).encode()


def row_in(message: bytes) -> Row:
    """The row of a message, by the names in it."""
    payload = json.loads(message)["payload"]
    row = ROWS[payload["kind"]]
    assert list(payload) == ["version", "kind", *columns(row), "crc"]
    return row(**{name: payload[name] for name in columns(row)})
