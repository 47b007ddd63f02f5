"""The source of quotas of a worker: the supervisor has the true one, and sends what it has read."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, NamedTuple

from kafka_throttle.proxy.server.workers.link import LinkLost
from kafka_throttle.quotas.changes import NO_QUOTAS, Alteration, Changes, Quotas, SourceUnavailable
from kafka_throttle.quotas.shared_map import SharedMap
from kafka_throttle.quotas.sources.source import SourceState


class Supply(NamedTuple):
    """What the supervisor sends: the changes of the quotas, the problems and the state of the source."""

    changes: Changes
    problems: Mapping[str, str]
    state: SourceState


class SuppliedSource:
    """Has what the supervisor has sent last. `ask` has the supervisor alter quotas, on the event loop `loop`."""

    def __init__(
        self,
        name: str,
        ask: Callable[[Sequence[Alteration]], Coroutine[Any, Any, Sequence[Exception | None]]],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.name = name
        self.quotas: Quotas = NO_QUOTAS
        self.problems: Mapping[str, str] = {}
        self.state = SourceState(known=False, up=False, age_s=None)
        self._ask = ask
        self._loop = loop
        self._changed: Callable[[], None] = lambda: None

    def take(self, supply: Supply) -> None:
        """Have what was sent."""
        assert isinstance(self.quotas, SharedMap)
        if supply.changes:
            self.quotas = self.quotas.changed(supply.changes)
        self.problems, self.state = supply.problems, supply.state
        self._changed()

    def start(self, changed: Callable[[], None], last_good: Quotas = NO_QUOTAS) -> None:
        """See Source. The first quotas have been taken before."""
        self._changed = changed

    def stop(self) -> None:
        """See Source."""
        self._changed = lambda: None

    def alter(self, alterations: Sequence[Alteration]) -> Sequence[Exception | None]:
        """See Source. What the supervisor has written is in `quotas` by then, because it was sent before the answer."""
        try:
            return asyncio.run_coroutine_threadsafe(self._ask(alterations), self._loop).result()
        except LinkLost:
            return [SourceUnavailable("the supervisor of this worker has ended")] * len(alterations)
