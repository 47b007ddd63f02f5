"""What every source of quotas gives and takes."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from kafka_throttle.quotas.changes import NO_QUOTAS, Alteration, Quotas


class SourceState(NamedTuple):
    """Whether a source could be read.

    `known`: whether its quotas are known, because they were read once, or are those of an earlier process. `up`:
    whether the last attempt to read it succeeded. `age_s`: seconds since it was last read or known to be unchanged,
    None if it never was.
    """

    known: bool
    up: bool
    age_s: float | None


class Source(Protocol):
    """Where the quotas of one virtual cluster come from.

    A source keeps the last good quotas, entity by entity: what it cannot read or understand leaves those in force,
    is logged and counted once. Methods but `quotas` may block, so call them from a thread that may wait; `changed`
    is called from any thread.
    """

    name: str

    @property
    def quotas(self) -> Quotas:
        """The last good quotas; a snapshot that is never changed.

        It should be `following` the one before: then what has changed is found without a look at the rest.
        """

    @property
    def problems(self) -> Mapping[str, str]:
        """What is wrong now: by its place (a path, an entity, the source itself), in words."""

    @property
    def state(self) -> SourceState:
        """Whether it could be read. Once `known` is true here, `quotas` has what is known."""

    def start(self, changed: Callable[[], None], last_good: Quotas = NO_QUOTAS) -> None:
        """Read the quotas, and from now on tell when `quotas` or `problems` have changed.

        `last_good` are the quotas of an earlier process. They are what `quotas` begins with: all of them hold until the
        source has been read, and later those of an entity for which it brings nonsense. Returns after the first
        attempt to read, good or not.
        """

    def stop(self) -> None:
        """Tell nothing any more, and let go of files, connections and threads.

        May be called twice, and while `start` waits, which then returns.
        """

    def alter(self, alterations: Sequence[Alteration]) -> Sequence[Exception | None]:
        """Write each alteration, whole or not at all; for each, None or what went wrong.

        That is AlterationRefused or SourceUnavailable. What is written is in `quotas` when this returns.
        """
