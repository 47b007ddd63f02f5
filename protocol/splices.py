"""Changes a message without decoding it: copies everything except a few ranges, which are replaced."""

from collections.abc import Sequence
from dataclasses import dataclass

from kafka_throttle.protocol.primitives import int32


@dataclass(slots=True)
class Splice:
    """`data` replaces the bytes [start, end) of a frame. Offsets count from its length prefix."""

    start: int
    end: int
    data: bytes


def grows_by(splices: Sequence[Splice]) -> int:
    """How many bytes longer (or, negative, shorter) a frame becomes."""
    return sum(len(splice.data) - (splice.end - splice.start) for splice in splices)


def joined(frame: bytes | memoryview, splices: Sequence[Splice]) -> list[Splice]:
    """One splice in place of several ascending ones, with the bytes between them; an empty list stays empty."""
    if len(splices) < 2:
        return list(splices)
    pieces: list[bytes | memoryview] = []
    at = splices[0].start
    for splice in splices:
        pieces += (frame[at : splice.start], splice.data)
        at = splice.end
    return [Splice(splices[0].start, at, b"".join(pieces))]


def splice_frame(head: bytes | memoryview, size_bytes: int, splices: Sequence[Splice]) -> list[bytes | memoryview]:
    """The pieces of `head`, which is all or the first part of a frame, after `splices` (ascending, within `head`).

    `size_bytes` is the frame's own length prefix; the first piece has the new one.
    """
    if not splices:
        return [head]
    view = memoryview(head)
    pieces: list[bytes | memoryview] = [int32(size_bytes + grows_by(splices))]
    at = 4
    for splice in splices:
        if splice.start > at:
            pieces.append(view[at : splice.start])
        if splice.data:
            pieces.append(splice.data)
        at = splice.end
    if at < len(view):
        pieces.append(view[at:])
    return pieces
