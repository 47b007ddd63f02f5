"""What can be wrong with bytes that claim to be Kafka's. `protocol` raises nothing else."""


class ProtocolError(ValueError):
    """Bytes that are not what the protocol says; the connection they came on must be closed."""


class TruncatedMessage(ProtocolError):
    """A field runs past the end of what is there.

    Attributes: `offset` where the field starts, `wanted` bytes it needs, `available` bytes in all.
    """

    def __init__(self, offset: int, wanted: int, available: int) -> None:
        super().__init__(f"{wanted} bytes wanted at offset {offset}, {available} there")
        self.offset = offset
        self.wanted = wanted
        self.available = available


class MalformedMessage(ProtocolError):
    """A length, count or marker that no valid message has."""
