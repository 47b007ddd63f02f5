"""Recognises requests like the one before: same API, client and settings; only length and id differ. Most are so."""

from dataclasses import dataclass
from struct import Struct

from protocol.api_key import PRODUCE
from proxy.relay.plans import ResponseKind, plan_key
from proxy.relay.request import Request
from quotas.client_quotas import ClientSensors

_HEAD = Struct(">iIi")
"""size, api_key and api_version as one number, correlation_id"""

_LONGEST_BYTES = 1024
_NO_ID = 1 << 40
"""Equal to no int32."""


@dataclass(slots=True)
class RepeatPattern:
    """What the next requests have in common with `request`, so that they need not be read field by field.

    `api` is key and version. `same` are the bytes after the correlation id up to `end`, an offset from the frame's
    start: client id, header tags, and the fields of the body that were read. `shadow` is the sensor of the shadow quota
    that their bytes are charged to, if there is one. While `version` is the version of the quotas, the requests may be
    taken without looking up their sensors.
    """

    request: Request
    client_sensors: ClientSensors
    api: int
    same: bytes
    end: int
    shadow: int | None
    version: int

    def run(self, buf: bytes, at: int, most: int, max_frame_bytes: int) -> tuple[int, int, int]:
        """Find the whole requests at `at` that fit the pattern, `most` at most, with ids that count up by one.

        Returns the first of their ids, how many they are, and where they end.
        """
        api, same, same_end, end = self.api, self.same, self.end, len(buf)
        least_size, last_head = same_end - 4, end - same_end
        first_id, due, count = 0, _NO_ID, 0
        while at <= last_head and count < most:
            size, its_api, correlation_id = _HEAD.unpack_from(buf, at)
            frame_end = at + 4 + size
            if (
                its_api != api
                or frame_end > end
                or not least_size <= size <= max_frame_bytes
                or buf[at + 12 : at + same_end] != same
            ):
                break
            if correlation_id != due:
                if count:
                    break
                first_id = due = correlation_id
            at = frame_end
            due += 1
            count += 1
        return first_id, count, at


@dataclass(slots=True)
class LimitedPattern(RepeatPattern):
    """A pattern for a client with a quota of request time: only `allowed` more requests fit."""

    allowed: int = 0

    def run(self, buf: bytes, at: int, most: int, max_frame_bytes: int) -> tuple[int, int, int]:
        """As for any pattern, but no more requests than are allowed."""
        first_id, count, end = RepeatPattern.run(self, buf, at, min(most, self.allowed), max_frame_bytes)
        self.allowed -= count
        return first_id, count, end


_LOOKED_AT_EACH_TIME = -1


def pattern_of(request: Request, client_sensors: ClientSensors, buf: bytes, at: int) -> RepeatPattern | None:
    """What further requests may have in common with the one that begins at `at`; None if that is too long.

    Requests whose responses need a decision have no pattern: they do not come in runs.
    """
    end = request.decided_at - at
    if end > _LONGEST_BYTES or request.plan.response is ResponseKind.HEAD:
        return None
    api = plan_key(request.plan.api_key, request.plan.api_version)
    shadow = client_sensors.shadow_produce if request.plan.api_key == PRODUCE else None
    same = buf[at + _HEAD.size : at + end]
    if client_sensors.limits_requests and request.answered:
        return LimitedPattern(request, client_sensors, api, same, end, shadow, _LOOKED_AT_EACH_TIME)
    return RepeatPattern(request, client_sensors, api, same, end, shadow, client_sensors.version)
