"""The logs of several topics, as one consumer sees them."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.conservation.accounts import Log


class Logs:
    """One Log for each partition of the topics."""

    def __init__(self, view: str, partitions: Mapping[str, int]) -> None:
        self._view = view
        self.by_topic = {
            topic: [Log(f"{view}, {topic}-{partition}", partition) for partition in range(count)]
            for topic, count in partitions.items()
        }

    def take(self, topic: str, partition: int, offset: int, value: bytes | None) -> None:
        """A record has been read."""
        self.by_topic[topic][partition].take(offset, value)

    def have(self, ends: Mapping[str, Sequence[int]] | None) -> bool:
        """Everything before the end offsets has been read; False while nobody knows them."""
        return ends is not None and all(
            log.next_offset >= end
            for topic, logs in self.by_topic.items()
            for log, end in zip(logs, ends[topic], strict=True)
        )

    @property
    def count(self) -> int:
        """How many offsets have been read."""
        return sum(log.next_offset for logs in self.by_topic.values() for log in logs)

    @property
    def read_again(self) -> int:
        """How many records were read more than once."""
        return sum(log.read_again for logs in self.by_topic.values() for log in logs)

    @property
    def faults(self) -> list[str]:
        """What was corrupt or left out."""
        return [fault for logs in self.by_topic.values() for log in logs for fault in log.faults]

    def save(self, folder: Path) -> None:
        """Write one file for each partition."""
        for topic, logs in self.by_topic.items():
            for log in logs:
                log.save(self._path(folder, topic, log.partition))

    def load(self, folder: Path) -> None:
        """Take over what another process has saved under the same view."""
        for topic, logs in self.by_topic.items():
            self.by_topic[topic] = [
                Log.load(self._path(folder, topic, log.partition), log.place, log.partition) for log in logs
            ]

    def _path(self, folder: Path, topic: str, partition: int) -> Path:
        return folder / f"read-{self._view}-{topic}-{partition}"
