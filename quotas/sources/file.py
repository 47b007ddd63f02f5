"""Quotas from the operator's file."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from quotas.entities import Entity, QuotaKey
from quotas.sources.source import Alteration, AlterationRefused, Limit, Quotas


class FileSource:
    """The entries of the configuration file, called `layer`; `replace` takes up a file that has changed."""

    name = "file"

    def __init__(
        self, entries: Mapping[Entity, Mapping[QuotaKey, float]], layer: str, state_file: Path | None = None
    ) -> None:
        self.problems: Mapping[str, str] = {}
        self.quotas: Quotas = {}
        self._layer = layer
        self._state_file = state_file
        self._changed: Callable[[], None] = lambda: None
        self.replace(entries)

    def replace(self, entries: Mapping[Entity, Mapping[QuotaKey, float]]) -> None:
        """Take up the entries of a file that has changed."""
        self.quotas = {
            entity: {key: Limit(limit, self._layer) for key, limit in limits.items()}
            for entity, limits in entries.items()
        }
        self._changed()

    def start(self, changed: Callable[[], None]) -> None:
        """Tell of changes from now on."""
        self._changed = changed

    def stop(self) -> None:
        """Tell of none any more."""
        self._changed = lambda: None

    def alter(self, alterations: Sequence[Alteration]) -> Sequence[Exception | None]:
        """Refused."""
        return [AlterationRefused("no state_file is configured to keep changes in") for _ in alterations]
