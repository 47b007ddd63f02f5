"""What one process tells another one about its sensors, as messages: on a pair of sockets, or in a file."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from struct import Struct
from typing import Any, NamedTuple

import structlog

from kafka_throttle.proxy.clock import Clock
from kafka_throttle.proxy.installed import installed_version
from kafka_throttle.quotas.row_copies import FORMAT, Charge, RowCopy, Sensing

ABOUT = "about"
ROWS = "rows"
CHARGES = "charges"

HEAD = Struct("<II")
"""How many bytes the JSON has, and how many follow it."""

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
"""Another one after each start of the machine, with which the monotonic clock starts anew."""

log = structlog.get_logger()


class Message(NamedTuple):
    """One message: its kind, values that JSON has, and bytes."""

    kind: str
    fields: dict[str, Any]
    content: bytes = b""

    def packed(self) -> bytes:
        """The message as bytes."""
        text = json.dumps([self.kind, self.fields]).encode()
        return HEAD.pack(len(text), len(self.content)) + text + self.content

    @classmethod
    def of(cls, text: bytes, content: bytes) -> "Message":
        """The message with this JSON and these bytes. Raises ValueError if it is none."""
        try:
            kind, fields = json.loads(text)
        except (TypeError, RecursionError) as error:
            raise ValueError(f"expected a kind and its values: {error}") from error
        return cls(kind, fields, content)


def unpacked(data: bytes) -> Iterator[Message]:
    """The messages in a file. Raises ValueError if it ends within one."""
    at = 0
    while at < len(data):
        if at + HEAD.size > len(data):
            raise ValueError("it is cut short")
        text_size, size = HEAD.unpack_from(data, at)
        begin = at + HEAD.size + text_size
        at = begin + size
        if at > len(data):
            raise ValueError("it is cut short")
        yield Message.of(data[begin - text_size : begin], data[begin:at])


def about(sensing: Sensing, clock: Clock) -> Message:
    """What must be the same, or is to be known, where the rows are used."""
    fields = {
        "format": FORMAT,
        "version": installed_version(),
        "boot": _boot_id(),
        "now_ms": clock.now_ms(),
        "layouts": sensing.layouts,
    }
    return Message(ABOUT, fields)


def of_rows(copies: Iterable[RowCopy]) -> Message:
    """The message with these rows."""
    copies = list(copies)
    keys = [[copy.key, len(copy.words)] for copy in copies]
    return Message(ROWS, {"rows": keys}, b"".join(copy.words for copy in copies))


def of_charges(charges: Iterable[Charge]) -> Message:
    """The message with these charges."""
    return Message(CHARGES, {"charges": list(charges)})


class SensorIntake:
    """Continues the sensors of another process from its messages, as far as they fit, and says what does not."""

    def __init__(self, sensing: Sensing, clock: Clock) -> None:
        self.rows = 0
        """How many copies of rows were taken over. One that has changed meanwhile comes twice."""
        self.left_out = 0
        """How many were not: nothing measures that here, or there was no room."""
        self._sensing = sensing
        self._clock = clock
        self._is_usable = False
        self._other_clusters: dict[str, str] = {}

    def take(self, message: Message) -> None:
        """Apply one message. One that makes no sense is logged, and nothing further is used."""
        try:
            self._take(message)
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            self._refuse(f"{type(error).__name__}: {error}")

    def _take(self, message: Message) -> None:
        if message.kind == ABOUT:
            self._check(message.fields)
        elif self._is_usable and message.kind == ROWS:
            at = 0
            for key, size in message.fields["rows"]:
                self._adopt(RowCopy(tuple(key), message.content[at : at + size]))
                at += size
        elif self._is_usable and message.kind == CHARGES:
            now_ms = self._clock.now_ms()
            for key, value in message.fields["charges"]:
                if key[1] not in self._other_clusters:
                    self._sensing.record(Charge(tuple(key), value), now_ms)

    def _adopt(self, copy: RowCopy) -> None:
        is_adopted = copy.key[1] not in self._other_clusters and self._sensing.adopt(copy, self._clock.now_ms())
        self.rows += is_adopted
        self.left_out += not is_adopted

    def _check(self, fields: dict[str, Any]) -> None:
        if fields["format"] != FORMAT:
            self._refuse(f"they are in format {fields['format']} of version {fields['version']}, expected {FORMAT}")
        elif fields["boot"] != _boot_id() or fields["now_ms"] > self._clock.now_ms():
            self._refuse(
                "they were measured by another clock: before a restart of the machine, or in another container"
            )
        else:
            self._is_usable = True
            self._other_clusters = self._sensing.others(fields["layouts"])
            for name, problem in self._other_clusters.items():
                log.warning("sensors_not_taken_over", virtual_cluster=name, problem=problem)

    def _refuse(self, problem: str) -> None:
        self._is_usable = False
        log.warning("sensors_not_taken_over", problem=problem)


def _boot_id() -> str:
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return ""
