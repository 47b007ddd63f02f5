"""The last good quotas on disk, so that a proxy which starts while its source is gone starts with them."""

import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final

from kafka_throttle.common.atomic_file import write_whole
from kafka_throttle.common.backoff import Backoff
from kafka_throttle.common.duties import Duty
from kafka_throttle.quotas.changes import NO_QUOTAS, Alteration, Limit, Quotas, following
from kafka_throttle.quotas.entities import Entity, QuotaKey
from kafka_throttle.quotas.sources.entry_forms import InvalidEntry, entry_form, readable_part_of
from kafka_throttle.quotas.sources.source import Source, SourceState

VERSION: Final = 1
MAX_BYTES: Final = 1 << 30
"""A larger file is not ours: a million entities need a fifth of it."""

_WRITE_EVERY_S = 1.0
_LONGEST_RETRY_S = 60.0
_LOOK_EVERY_S = 10.0
_STOP_S = 1.0
_MOST_ASIDE = 9
"""How many damaged files are kept; then the last is replaced."""


class _Damaged(Exception):
    """Not a last-good file; the text says why."""


class _OfAnother(Exception):
    """The file is another source's; the text says whose."""


class LastGood:
    """A source that remembers on disk what another one gave; otherwise that source.

    The file is written by a thread of its own, whole or not at all, at most once a second, mode 0600. What goes wrong
    with it is a problem and nothing more: what can be read of a damaged file is used.
    """

    def __init__(self, source: Source, path: Path, write_every_s: float = _WRITE_EVERY_S) -> None:
        self.name = source.name
        self.source = source
        self._path = path
        self._write_every_s = write_every_s
        self._written: Quotas | None = None
        """What the file holds, None if there is none that is ours."""
        self._may_write = True
        self._was_loaded = False
        """Whether the file had the last good quotas of an earlier process, which may be none."""
        self._problems: Mapping[str, str] = {}
        self._changed: Callable[[], None] = lambda: None
        self._due = threading.Event()
        self._stopped = threading.Event()
        duty = Duty("writing the last good quotas", str(path))
        self._thread = threading.Thread(
            target=duty.keep_in_thread, args=(self._keep_writing, self._stopped), name="quotas-last-good", daemon=True
        )

    @property
    def quotas(self) -> Quotas:
        """Those of the source."""
        return self.source.quotas

    @property
    def problems(self) -> Mapping[str, str]:
        """Those of the source, and those of the file."""
        return MappingProxyType({**self.source.problems, **self._problems})

    @property
    def state(self) -> SourceState:
        """That of the source; its quotas are also known if they were in the file."""
        state = self.source.state
        return state._replace(known=state.known or self._was_loaded)

    def start(self, changed: Callable[[], None], last_good: Quotas = NO_QUOTAS) -> None:
        """Start the source with what the file holds, or `last_good` where it holds nothing."""
        self._changed = changed
        self._written = self._load()
        self._was_loaded = self._written is not None
        self.source.start(self._on_change, self._written or last_good)
        self._due.set()
        self._thread.start()

    def stop(self) -> None:
        """Stop the source, and write what is still to be written."""
        self.source.stop()
        self._stopped.set()
        self._due.set()
        if self._thread.is_alive():
            self._thread.join(_STOP_S)

    def leave_to_another(self) -> None:
        """Write the file no more: another process does from now on."""
        self._may_write = False

    def alter(self, alterations: Sequence[Alteration]) -> Sequence[Exception | None]:
        """As the source does."""
        return self.source.alter(alterations)

    def _on_change(self) -> None:
        self._changed()
        self._due.set()

    def _note(self, place: Path, problem: str | None) -> None:
        """Note what is wrong with `place` now."""
        others = {where: what for where, what in self._problems.items() if where != str(place)}
        problems = others if problem is None else {**others, str(place): problem}
        if problems != self._problems:
            self._problems = problems
            if not self._stopped.is_set():
                self._changed()

    # --------------------------------------------------------------- reading

    def _load(self) -> Quotas | None:
        """What can be read of the file; None if it is not there, or not ours, which is a problem."""
        try:
            quotas, wrong = parse(_read(self._path), self.name)
            if wrong:
                more = f", and {len(wrong) - 1} more" if len(wrong) > 1 else ""
                self._problems = self._put_aside(f"the last good quotas lack what cannot be read: {wrong[0]}{more}")
            return quotas
        except FileNotFoundError:
            return None
        except OSError as error:
            self._problems = {str(self._path): f"the last good quotas cannot be read: {_words(error)}"}
        except _OfAnother as error:
            self._may_write = False
            problem = f"{error}. Nothing is saved there: choose another state_file"
            self._problems = {str(self._path): problem}
        except _Damaged as error:
            self._problems = self._put_aside(f"no last good quotas: {error}")
        return None

    def _put_aside(self, why: str) -> Mapping[str, str]:
        aside = self._path.with_name(f"{self._path.name}.damaged")
        for number in range(2, _MOST_ASIDE + 1):
            if aside.exists():
                aside = self._path.with_name(f"{self._path.name}.damaged-{number}")
        try:
            self._path.replace(aside)
        except OSError as error:
            return {str(self._path): f"{why}; cannot be kept as {aside.name}: {_words(error)}"}
        return {str(aside): f"{why}; kept from {self._path.name}"}

    # --------------------------------------------------------------- writing

    def _keep_writing(self) -> None:
        backoff = Backoff(2 * self._write_every_s, _LONGEST_RETRY_S)
        while not self._stopped.is_set():
            self._due.wait(_LOOK_EVERY_S)
            self._due.clear()
            if self._write():
                backoff.succeeded()
                pause_s = self._write_every_s
            else:
                self._due.set()
                pause_s = backoff.failed()
            self._stopped.wait(pause_s)
        self._write()

    def _write(self) -> bool:
        """Bring the file up to date, also if somebody has removed it; False if that failed."""
        is_known, quotas = self.source.state.known, self.source.quotas
        is_nothing_read = self._written is None and not quotas and not is_known
        is_done = quotas == self._written and not self._is_missing()
        if is_done or is_nothing_read or not self._may_write:
            return True
        try:
            write_whole(self._path, content(quotas, self.name))
        except OSError as error:
            self._note(self._path, f"the last good quotas cannot be written: {_words(error)}")
            return False
        self._written = quotas
        self._note(self._path, None)
        return True

    def _is_missing(self) -> bool:
        try:
            self._path.stat()
        except OSError as error:
            return isinstance(error, FileNotFoundError | NotADirectoryError)
        return False


def _words(error: OSError) -> str:
    return error.strerror or str(error)


# ---------------------------------------------------------------------- the file


def problem_in(path: Path, source: str) -> str | None:
    """What is wrong with the content of a file of last good quotas; None if nothing is, or if there is no file."""
    try:
        _, wrong = parse(_read(path), source)
    except FileNotFoundError:
        return None
    except OSError as error:
        return f"cannot be read: {_words(error)}"
    except (_OfAnother, _Damaged) as error:
        return str(error)
    return f"holds what cannot be read: {wrong[0]}" if wrong else None


def content(quotas: Quotas, source: str) -> Iterator[bytes]:
    """What the file holds, an entity a line: in pieces, so that other threads have their turn in between."""
    yield f'{{"version": {VERSION}, "source": {json.dumps(source)}, "quotas": ['.encode()
    separator = b"\n"
    for entity, limits in quotas.items():
        yield separator + json.dumps(entry_form(entity, limits)).encode()
        separator = b",\n"
    yield b"\n]}\n"


def parse(text: bytes, source: str) -> tuple[Quotas, Sequence[str]]:
    """The quotas in a file of this source, and what is wrong with others that it holds. Raises _Damaged."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _Damaged(f"no JSON: {error}") from error
    if isinstance(found, dict) and "overlay" in found:
        raise _OfAnother("this file belongs to the source 'file'")
    if not isinstance(found, dict) or found.get("version") != VERSION:
        raise _Damaged(f"expected version {VERSION} of a file of last good quotas")
    if found.get("source") != source:
        raise _OfAnother(f"this file belongs to the source {found.get('source')!r}")
    quotas: dict[Entity, Mapping[QuotaKey, Limit]] = {}
    wrong: list[str] = []
    try:
        for entry in found["quotas"]:
            try:
                entity, limits, of_entry = readable_part_of(entry)
            except InvalidEntry as error:
                wrong.append(str(error))
                continue
            wrong += of_entry
            if limits:
                quotas[entity] = limits
    except (LookupError, TypeError) as error:
        raise _Damaged(f"not what was written: {error!r}") from error
    if wrong and not quotas:
        raise _Damaged(wrong[0])
    return following(NO_QUOTAS, quotas), wrong


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        text = file.read(MAX_BYTES + 1)
    if len(text) > MAX_BYTES:
        raise _Damaged(f"more than {MAX_BYTES} bytes")
    return text
