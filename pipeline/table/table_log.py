"""A table's log: what belongs to the table, one file a commit.

A commit is a file `_log/<version>.json` that is written whole or not at all, by one writer only, so all that it says
comes true at one moment: the directories that it adds and removes, and the sequence numbers that are in them. What lies
in the table's directories without being named in the log does not belong to it.
"""

import json
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pipeline.spark.day import DAY_MS
from pipeline.table.accounts import Account, Writer, accounts_of, added, form_of
from pipeline.table.files import Files, Taken

FORMAT = 1
FOLDER = "_log"
_SNAPSHOT_EVERY = 20
_KEPT_VERSIONS = 5 * _SNAPSHOT_EVERY
"""Before the last snapshot, for those who have listed the log a while ago."""
_REMEMBERED_MS = DAY_MS
"""How long what was removed is remembered; if it still lies there then, it is taken for what somebody left behind."""


class BadTable(ValueError):
    """A directory that is no table, or one that this version cannot read."""


@dataclass(frozen=True, slots=True)
class Part:
    """A directory with Parquet files of one day and virtual cluster; never changed once it is in the log."""

    stream: str
    """`usage`, `trace` or `quarantine`."""
    path: str
    day: str
    """UTC, `2026-11-22`; empty for the quarantine."""
    virtual_cluster: str
    bytes: int


def part_at(stream: str, path: str, size: int) -> Part:
    """The part in a directory `<stream>/commit=<name>/day=<day>/virtual_cluster=<name>`."""
    day, cluster = (name.partition("=")[2] for name in path.split("/")[-2:])
    return Part(stream, path, day, cluster, size)


@dataclass(frozen=True, slots=True)
class Commit:
    """What one batch, or one compaction, changes."""

    at_ms: int
    query: str
    """Whose batch it is: the identity of a checkpoint; empty for a compaction."""
    batch: int
    added: tuple[Part, ...] = ()
    removed: tuple[str, ...] = ()
    accounts: Mapping[Writer, Account] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class State:
    """The table after a version."""

    version: int = 0
    parts: Mapping[str, Part] = field(default_factory=dict)
    """By path."""
    removed_ms: Mapping[str, int] = field(default_factory=dict)
    """When a path was removed, as long as it lies there for those who still read it."""
    accounts: Mapping[Writer, Account] = field(default_factory=dict)
    batches: Mapping[str, int] = field(default_factory=dict)
    """The last batch of each query."""
    counts: Mapping[str, int] = field(default_factory=dict)

    def after(self, commit: Commit) -> "State":
        """The table with the commit."""
        gone = set(commit.removed)
        parts = {path: part for path, part in self.parts.items() if path not in gone}
        return State(
            self.version + 1,
            parts | {part.path: part for part in commit.added},
            self._removed_after(commit),
            added(self.accounts, commit.accounts) if commit.accounts else self.accounts,
            {**self.batches, commit.query: commit.batch} if commit.query else self.batches,
            Counter(self.counts) + Counter(commit.counts),
        )

    def _removed_after(self, commit: Commit) -> dict[str, int]:
        lately = {path: at_ms for path, at_ms in self.removed_ms.items() if at_ms > commit.at_ms - _REMEMBERED_MS}
        return lately | dict.fromkeys(commit.removed, commit.at_ms)


def read_state(files: Files) -> State:
    """The table as it is now; empty if there is none yet. Raises BadTable."""
    names = {found.name for found in files.listed(FOLDER)}
    versions = sorted(int(name[:-5]) for name in names if name.endswith(".json") and name[:-5].isdecimal())
    snapshots = [int(name.partition(".")[0]) for name in names if name.endswith(".snapshot")]
    state = _snapshot(files, max(snapshots)) if snapshots else State()
    for version in versions:
        if version == state.version + 1:
            state = state.after(_commit(files, version))
    if versions and versions[-1] > state.version:
        raise BadTable(f"{files.root}/{FOLDER}: version {state.version + 1} is missing")
    return state


def write_commit(files: Files, state: State, commit: Commit) -> State:
    """Make the commit the version after `state`. Raises Taken if another writer has made one meanwhile."""
    version = state.version + 1
    files.put_new(f"{FOLDER}/{version:012d}.json", json.dumps(_form(commit)).encode())
    now = state.after(commit)
    if version % _SNAPSHOT_EVERY == 0:
        _write_snapshot(files, now)
    return now


def _write_snapshot(files: Files, state: State) -> None:
    """It only spares readers the commits before it, so who is killed before it is there has lost nothing."""
    form = {
        "format": FORMAT,
        "parts": [_part_form(part) for part in state.parts.values()],
        "removed_ms": state.removed_ms,
        "accounts": form_of(state.accounts),
        "batches": state.batches,
        "counts": state.counts,
    }
    try:
        files.put_new(f"{FOLDER}/{state.version:012d}.snapshot", json.dumps(form).encode())
    except Taken:
        return
    for found in files.listed(FOLDER):
        version = found.name.partition(".")[0]
        if version.isdecimal() and int(version) < state.version - _KEPT_VERSIONS:
            files.remove(f"{FOLDER}/{found.name}")


def forget_removed(files: Files, state: State, before_ms: int) -> int:
    """Remove what was taken out of the table before then, from the file system; how many directories.

    What was removed stays in the log's memory; removing it once more does no harm.
    """
    gone = [path for path, at_ms in state.removed_ms.items() if at_ms < before_ms and files.listed(path)]
    for path in gone:
        files.remove(path)
    return len(gone)


def now_ms() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def _snapshot(files: Files, version: int) -> State:
    form = _read(files, f"{version:012d}.snapshot")
    return State(
        version,
        {part["path"]: Part(**part) for part in form["parts"]},
        form["removed_ms"],
        accounts_of(form["accounts"]),
        form["batches"],
        form["counts"],
    )


def _commit(files: Files, version: int) -> Commit:
    form = _read(files, f"{version:012d}.json")
    return Commit(
        form["at_ms"],
        form["query"],
        form["batch"],
        tuple(Part(**part) for part in form["added"]),
        tuple(form["removed"]),
        accounts_of(form["accounts"]),
        form["counts"],
    )


def _read(files: Files, name: str) -> dict[str, Any]:
    data = files.read(f"{FOLDER}/{name}")
    try:
        form: dict[str, Any] = json.loads(data or b"")
    except ValueError as error:
        raise BadTable(f"{files.root}/{FOLDER}/{name} is not readable: {error}") from error
    if form.get("format") != FORMAT:
        raise BadTable(f"{files.root}/{FOLDER}/{name}: expected format {FORMAT}, got {form.get('format')!r}")
    return form


def _form(commit: Commit) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "at_ms": commit.at_ms,
        "query": commit.query,
        "batch": commit.batch,
        "added": [_part_form(part) for part in commit.added],
        "removed": commit.removed,
        "accounts": form_of(commit.accounts),
        "counts": commit.counts,
    }


def _part_form(part: Part) -> dict[str, Any]:
    return {name: getattr(part, name) for name in Part.__slots__}
