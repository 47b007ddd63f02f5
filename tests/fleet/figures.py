"""What a simulated run is judged by, beside the figures that a measured run has too (`tests.live_fleet.figures`)."""

from collections.abc import Mapping, Sequence

from tests.live_fleet.figures import SETTLED_AFTER_S, burst_s


def overshoot_s(units: Sequence[float], single: Sequence[float], limit: float) -> float:
    """How much more than a single instance under the same load, in seconds of the limit, in any 60 s.

    The most by which any stretch of at most 60 s is above the limit, less the same of the single instance; over the
    whole run, and again without its begin, because Kafka's burst of ten seconds at the begin would hide what is too
    much later. Not below 0.
    """
    begins = (0, SETTLED_AFTER_S)
    return max(0.0, *(burst_s(units, limit, begin) - burst_s(single, limit, begin) for begin in begins))


class ShareTimeline:
    """The shares of one entity over time, by instance, as steps."""

    def __init__(self) -> None:
        self._steps: list[tuple[int, int, float]] = []

    def add(self, at_ms: int, instance: int, share: float) -> None:
        """From `at_ms` on this instance enforces `share`."""
        self._steps.append((at_ms, instance, share))

    def fair_after_ms(
        self, change_ms: int, until_ms: int, fair: Mapping[int, float], within: float = 0.1
    ) -> int | None:
        """How long after a change of demand each instance has its fair share but for a tenth, and keeps it.

        None if that is not so at `until_ms`. A share that is larger than fair is none the worse for its instance.
        """
        shares = {instance: share for at_ms, instance, share in self._steps if at_ms <= change_ms}
        later = [step for step in self._steps if change_ms < step[0] <= until_ms]
        since_ms: int | None = None
        for at_ms, instance, share in [(change_ms, -1, 0.0), *later]:
            shares[instance] = share
            is_fair = all(shares.get(owner, 0.0) >= (1 - within) * due for owner, due in fair.items())
            if not is_fair:
                since_ms = None
            elif since_ms is None:
                since_ms = at_ms
        return None if since_ms is None else since_ms - change_ms
