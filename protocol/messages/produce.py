"""The common response to Produce, recognised without a walk (`ProduceResponse.json`, v9 and later)."""

_TOPICS_AT = 9
_ONE = 2
"""The compact count of an array with one element."""

_TOPIC_ID_SINCE = 13
_TOPIC_ID_BYTES = 16
_PARTITION_BYTES = 30
_SMALLEST_RESPONSE = _TOPICS_AT + 2 + 1 + _PARTITION_BYTES + 9
_AFTER_PARTITION = (b"\x01\x00\x00\x00", b"\x00\x00\x00\x00")
"""No record errors (an empty or a null array), no error message, no tags of the partition or of the topic."""


def lone_partition_throttle_at(frame: bytes, at: int, frame_bytes: int, api_version: int) -> int:
    """The offset of throttle_time_ms in a response about one partition with no message and no tags; else -1.

    The whole frame of a flexible version begins at `at` in `frame`. Without tags there are also no NodeEndpoints
    (KIP-951).
    """
    if frame_bytes < _SMALLEST_RESPONSE or frame[at + 8] or frame[at + _TOPICS_AT] != _ONE:
        return -1
    if api_version >= _TOPIC_ID_SINCE:
        partitions_at = _TOPICS_AT + 1 + _TOPIC_ID_BYTES
    else:
        partitions_at = _TOPICS_AT + 1 + frame[at + _TOPICS_AT + 1]
    tail_at = partitions_at + 1 + _PARTITION_BYTES
    if tail_at + 9 != frame_bytes or frame[at + partitions_at] != _ONE or frame[at + tail_at + 8]:
        return -1
    return tail_at + 4 if frame[at + tail_at : at + tail_at + 4] in _AFTER_PARTITION else -1
