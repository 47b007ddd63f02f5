"""The errors for bytes that are not valid Kafka messages. `protocol` raises no others for bytes."""


class ProtocolError(ValueError):
    """Bytes that do not follow the protocol. The connection that they came on must be closed."""


class TruncatedMessage(ProtocolError):
    """A field reaches beyond the end of the bytes that are here.

    Attributes: `offset` is where the field starts, `wanted` how many bytes it needs, `available` how many there are in
    all.
    """

    def __init__(self, offset: int, wanted: int, available: int) -> None:
        super().__init__(f"{wanted} bytes wanted at offset {offset}, {available} there")
        self.offset = offset
        self.wanted = wanted
        self.available = available


class MalformedMessage(ProtocolError):
    """A length, count or marker that no valid message has."""
