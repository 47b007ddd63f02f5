"""The operations of a trace. Done again in their order, they give every throttle time to the millisecond.

A `TraceEvent` is one operation on one sensor. The events with one (virtual cluster, quota type, shadow, sensor) are in
the order of the operations. From the `open` of a sensor on its events are complete, except those that a `dropped`
line reports.
"""

from enum import StrEnum


class Operation(StrEnum):
    """What was done. Unless stated otherwise, `value` is in the quota's unit (request: percent of a thread).

    Settings of the sensors of a quota type; `sensor` is 0. They come before the first `open`, and whenever a setting
    changes.

    - SAMPLES, WINDOW_MS: a broker's `quota.window.num` and `quota.window.size.seconds`, or those that begin with
      `controller.`.
    - MAX_THROTTLE_MS, MAX_DEBT_MS: the limits of a throttle time and of a debt.

    Sensors. `user` and `client_id` are the names that the sensor measures; a name that does not count is empty.

    - OPEN: a new sensor; `value` is its limit.
    - SET_LIMIT: the limit is `value` from now on.
    - CLOSE: the sensor is not used any more.

    Sensors of an instance that shares its limits with others, when its share changes:

    - SCALE: what the window holds, or what is missing in the bucket, was multiplied by `value`.
    - ADD_HISTORY: `value` of the use of other instances was added, from `count` - 1 to `count` windows ago.
    - SET_PACE: throttle times are cut to 1 s from now on, while all clients of the sensor together get no more than
      `value` times the limit; 0: to MAX_THROTTLE_MS.

    Use by the client `user`, `client_id`. `throttle_ms` is the resulting throttle time.

    - CHARGE: `value` was recorded.
    - RUN: `value` in total was recorded for `count` requests, none of which was throttled.
    - OWE: nothing was recorded; `throttle_ms` is how long a client had to wait before its first request of a kind.
    - CHARGE_IF_WITHIN: `value` was recorded, and taken back at once if it exceeded the quota, as for a Fetch over
      quota.
    - GIVE_BACK: `value` was taken back.

    Token buckets (controller_mutation), by a client:

    - SPEND: `value` was taken, even if the bucket is overdrawn by it.
    - SPEND_STRICTLY: `value` was taken unless the bucket was overdrawn before.
    - GIVE_BACK: `value` was put back.

    Connections, by `ip`:

    - CONNECT: a connection came from an address with the rate `limit`; `throttle_ms` is how long it was to be held. The
      use of other instances that comes with a share of this rate is not in the trace.
    """

    SAMPLES = "samples"
    WINDOW_MS = "window_ms"
    MAX_THROTTLE_MS = "max_throttle_ms"
    MAX_DEBT_MS = "max_debt_ms"
    OPEN = "open"
    SET_LIMIT = "set_limit"
    CLOSE = "close"
    CHARGE = "charge"
    RUN = "run"
    OWE = "owe"
    CHARGE_IF_WITHIN = "charge_if_within"
    GIVE_BACK = "give_back"
    SPEND = "spend"
    SPEND_STRICTLY = "spend_strictly"
    CONNECT = "connect"
    SCALE = "scale"
    ADD_HISTORY = "add_history"
    SET_PACE = "set_pace"


SETTINGS = frozenset({Operation.SAMPLES, Operation.WINDOW_MS, Operation.MAX_THROTTLE_MS, Operation.MAX_DEBT_MS})
"""The operations that change settings of sensors."""

NO_USE = SETTINGS | {
    Operation.OPEN,
    Operation.SET_LIMIT,
    Operation.CLOSE,
    Operation.SCALE,
    Operation.ADD_HISTORY,
    Operation.SET_PACE,
}
"""The operations on settings and sensors that are no use by a client. They are few, and no replay can do without."""
