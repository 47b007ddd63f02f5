"""Quotas from the operator's file, overlaid key by key by what has been changed through Kafka's API since.

The changes live in a state file beside it that this process, another proxy or the command line may change: each takes
the lock (a file of its own, as the state file is replaced whole), reads, changes, and writes. A *removal* through the
API says that a quota is not wanted: it is remembered, and hides what the operator's file says for that key. `unset`
says that the change is not wanted: the key follows the operator's file again.
"""

import contextlib
import os
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from kafka_throttle.common.atomic_file import write_whole
from kafka_throttle.common.duties import Duty
from kafka_throttle.common.file_lock import locked
from kafka_throttle.common.file_signature import Signature, signature_of
from kafka_throttle.quotas.changes import NO_QUOTAS, Alteration, AlterationRefused, Limit, Quotas, SourceUnavailable
from kafka_throttle.quotas.entities import Entity, QuotaKey
from kafka_throttle.quotas.shared_map import SharedMap
from kafka_throttle.quotas.sources.overlay import (
    DamagedOverlay,
    Entries,
    Layers,
    Overlay,
    OverlayText,
    Overridden,
    altered,
    parse_overlay,
    reverted,
)
from kafka_throttle.quotas.sources.source import SourceState

MAX_STATE_BYTES = 64 * 1024 * 1024
"""No state file is larger, read or written: some 300,000 entities."""

_POLL_S = 0.4
_LOCK_WAIT_S = 5.0
_LOCK_TRY_S = 0.02

_UNREAD: Signature | None = (-1, -1, -1, -1, -1)
_Result = TypeVar("_Result")


class FileSource:
    """The entries of the configuration file, called `layer`, under the changes that `state_file` holds.

    `replace` takes up a file that has changed; it does not wait for the disk. Without a state file, or if several
    instances of the proxy share the file, which `shared_by` says in words, nothing can be altered. A state file that
    cannot be read leaves the last good changes in force, and so does each change in it that is wrong; it is not written
    to until it has been repaired. One that is deleted takes its changes with it, as it would at the next start.
    """

    name = "file"

    def __init__(self, entries: Entries, layer: str, state_file: Path | None = None, *, shared_by: str = "") -> None:
        self.problems: Mapping[str, str] = {}
        self.quotas: SharedMap[Entity, Mapping[QuotaKey, Limit]] = SharedMap()
        self._edits: dict[Entity, Mapping[str, str]] = {}
        self._entries: Entries = {}
        self._layer = layer
        self._state_file = state_file
        self._shared_by = shared_by
        self._overlay: Overlay = {}
        self._text = OverlayText()
        self._state_problem = ""
        """Why the state file cannot be read."""
        self._wrong: Mapping[str, str] = {}
        self._read_s: float | None = None
        """When what was read of the state file was last known to be current, by `time.monotonic`."""
        self._seen = _UNREAD
        self._missed = False
        self._changed: Callable[[], None] = lambda: None
        self._memory = threading.Lock()
        """Held while what is in force is worked out anew, never while the disk is waited for."""
        self._disk = threading.Lock()
        """Held while the state file is read or written."""
        self._stopping = threading.Event()
        self._watcher: threading.Thread | None = None
        self.replace(entries)

    # ------------------------------------------------------------ life cycle

    def start(self, changed: Callable[[], None], last_good: Quotas = NO_QUOTAS) -> None:
        """Read the state file, and from now on tell of changes; those of other processes within a second.

        `last_good` counts for nothing: what this source reads is on disk itself.
        """
        self._changed = changed
        if self._state_file is None:
            return
        with self._disk:
            self._read(self._state_file)
            self._note_read()
        self._take_up()
        duty = Duty("watching the state file", str(self._state_file))
        watch = partial(self._watch, self._state_file)
        self._watcher = threading.Thread(
            target=duty.keep_in_thread, args=(watch, self._stopping), name="quota-state", daemon=True
        )
        self._watcher.start()

    def stop(self) -> None:
        """Tell of none any more."""
        self._changed = lambda: None
        self._stopping.set()
        if self._watcher is not None:
            self._watcher.join()

    @property
    def wrong(self) -> Mapping[str, str]:
        """What is wrong in the state file as it was read last, by its place there."""
        return self._wrong

    @property
    def state(self) -> SourceState:
        """Whether the state file could be read. Entries of the configuration file are always known and current."""
        if self._state_file is None:
            return SourceState(known=True, up=True, age_s=0.0)
        age_s = None if self._read_s is None else time.monotonic() - self._read_s
        return SourceState(known=True, up=not self._state_problem, age_s=age_s)

    # -------------------------------------------------------------- changing

    def replace(self, entries: Entries) -> None:
        """Take up the entries of a file that has changed."""
        with self._memory:
            self._entries = entries
        self._take_up()

    def alter(self, alterations: Sequence[Alteration]) -> Sequence[Exception | None]:
        """Write them all into the state file, at once, all or nothing; then they are in force."""
        try:
            entities = {alteration.entity for alteration in alterations}
            self._change(lambda overlay, entries: altered(overlay, entries, alterations), entities)
        except (AlterationRefused, SourceUnavailable) as error:
            return [error for _ in alterations]
        return [None for _ in alterations]

    def unset(self, entity: Entity, keys: Collection[QuotaKey], *, scope: bool = False) -> None:
        """Have these keys of an entity, and with `scope` its scope, follow the operator's file again.

        Raises AlterationRefused or SourceUnavailable; then nothing has changed.
        """
        self._change(lambda overlay, entries: reverted(overlay, entries, entity, keys, scope=scope), {entity})

    def _change(self, change: Callable[[Overlay, Entries], Overlay], entities: Collection[Entity]) -> None:
        """Change the overlay of these entities, on disk first."""
        path = self._writable()
        with self._disk, _exclusive(path):
            before = self._overlay
            if not self._is_known(path):
                self._read(path)
            as_known = self._overlay is before
            if before and self._seen is None:
                self._overlay = before
                raise SourceUnavailable(f"{path}: is gone; it is made anew as soon as that is certain")
            if problem := self._state_problem or next(iter(self._wrong.values()), ""):
                raise SourceUnavailable(f"{path}: {problem}; it is not written to before that is repaired")
            overlay, entries = self._overlay, self._entries
            changed = change(overlay, entries)
            if changed != overlay:
                content = self._text.of(changed)
                if len(content) > MAX_STATE_BYTES:
                    raise AlterationRefused(f"{path} would have more than {MAX_STATE_BYTES} bytes")
                self._seen = signature_of(_on_disk(path, "written", lambda: write_whole(path, [content])))
                self._overlay = changed
        self._take_up(entities if as_known else None)

    def _writable(self) -> Path:
        if self._state_file is None:
            setting = f"virtual_clusters[].quotas.state_file of {self._layer}"
            problem = (
                "expected a file to keep changes in, got nothing; setting it needs a restart (docs/reference/quotas.md)"
            )
            raise AlterationRefused(f"{setting}: {problem}")
        if self._shared_by:
            raise AlterationRefused(f"source `file` of {self._shared_by} takes no changes: each would have its own")
        return Path(os.path.realpath(self._state_file))

    # --------------------------------------------------------------- reading

    def _take_up(self, entities: Collection[Entity] | None = None) -> None:
        """Put together what is in force, and tell if that is something else than before.

        With `entities`, nothing but their changes is new.
        """
        with self._memory:
            layers = self._layers
            if entities is None:
                quotas = self.quotas.changed(layers.changes_since(self.quotas))
                self._edits = {entity: edits for entity in self._overlay if (edits := layers.edits_of(entity))}
            else:
                quotas = self._with_changes_of(entities, layers)
            problems = {place: problem for edits in self._edits.values() for place, problem in edits.items()}
            if self._state_problem:
                problems[str(self._state_file)] = self._state_problem
            problems |= {f"{self._state_file}: {place}": problem for place, problem in self._wrong.items()}
            if quotas == self.quotas and problems == self.problems:
                return
            self.problems = problems
            if quotas != self.quotas:
                self.quotas = quotas
        self._changed()

    def _with_changes_of(
        self, entities: Collection[Entity], layers: Layers
    ) -> SharedMap[Entity, Mapping[QuotaKey, Limit]]:
        """What is in force, with these entities as the layers say."""
        self._edits = {entity: edits for entity, edits in self._edits.items() if entity not in entities}
        self._edits |= {entity: edits for entity in entities if (edits := layers.edits_of(entity))}
        return self.quotas.changed({entity: layers.limits_of(entity) or None for entity in entities})

    @property
    def overridden(self) -> Sequence[Overridden]:
        """The limits of the configuration file that changes in the state file override."""
        with self._memory:
            return list(self._layers.overridden())

    @property
    def _layers(self) -> Layers:
        return Layers(self._entries, self._layer, self._overlay, self._overlay_layer)

    @property
    def _overlay_layer(self) -> str:
        return "" if self._state_file is None else self._state_file.name

    def _watch(self, path: Path) -> None:
        while not self._stopping.wait(_POLL_S):
            with self._disk:
                is_another = self._is_another(path)
                if is_another:
                    self._read(path)
                self._note_read()
            if is_another:
                self._take_up()

    def _note_read(self) -> None:
        if not self._state_problem:
            self._read_s = time.monotonic()

    def _is_another(self, path: Path) -> bool:
        """True if the file is not the one that was read; if it is gone, only at the second look."""
        try:
            signature = signature_of(path.stat())
        except FileNotFoundError:
            signature = None
        except OSError:
            return True
        missed, self._missed = self._missed, signature is None
        return signature != self._seen and (signature is not None or missed)

    def _is_known(self, path: Path) -> bool:
        """Whether the file is there, well, and as it was read or written last."""
        if self._state_problem or self._wrong or self._seen in (None, _UNREAD):
            return False
        try:
            return signature_of(path.stat()) == self._seen
        except OSError:
            return False

    def _read(self, path: Path) -> None:
        """Take the overlay from the file. What is wrong in it keeps the last good one, change by change."""
        try:
            with path.open("rb") as file:
                self._seen = signature_of(os.fstat(file.fileno()))
                content = file.read(MAX_STATE_BYTES + 1)
            if len(content) > MAX_STATE_BYTES:
                raise DamagedOverlay(f"expected at most {MAX_STATE_BYTES} bytes")
            self._overlay, self._wrong = parse_overlay(content, self._overlay)
            self._state_problem = ""
        except FileNotFoundError:
            self._overlay, self._wrong, self._state_problem, self._seen = {}, {}, "", None
        except OSError as error:
            self._state_problem, self._seen = f"cannot be read: {error.strerror or error}", _UNREAD
        except DamagedOverlay as error:
            self._state_problem = str(error)


# ------------------------------------------------------------------------ disk


def problem_in(path: Path) -> str | None:
    """What is wrong with a state file, or with the first of its wrong changes; None if nothing is, or there is none."""
    source = FileSource({}, "", path)
    source.start(lambda: None)
    source.stop()
    wrong = (f"holds what cannot be read: {place}: {problem}" for place, problem in source.wrong.items())
    return source.problems.get(str(path)) or next(wrong, None)


def _on_disk(path: Path, done: str, step: Callable[[], _Result]) -> _Result:
    """What `step` returns. SourceUnavailable if the system does not let it."""
    try:
        return step()
    except OSError as error:
        raise SourceUnavailable(f"{path}: cannot be {done}: {error.strerror or error}") from error


@contextlib.contextmanager
def _exclusive(path: Path) -> Iterator[None]:
    """Keep other processes from changing the state file. SourceUnavailable after 5 s in vain."""
    lock = path.with_name(f"{path.name}.lock")
    _on_disk(lock, "opened", lambda: lock.parent.mkdir(mode=0o700, parents=True, exist_ok=True))
    deadline = time.monotonic() + _LOCK_WAIT_S
    while (file := _on_disk(lock, "opened", lambda: locked(lock))) is None:
        if time.monotonic() > deadline:
            raise SourceUnavailable(f"{lock}: held by another process for {_LOCK_WAIT_S:.0f} s")
        time.sleep(_LOCK_TRY_S)
    with file:
        yield
