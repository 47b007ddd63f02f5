"""Which changes of the configuration a running proxy takes up, and which wait for a restart.

Each setting says it for itself, in its metadata: those without a mark are taken up.
"""

from collections.abc import Iterator
from enum import Enum

from pydantic.fields import FieldInfo

from kafka_throttle.common.settings import Settings


class Restart(Enum):
    """What of a setting a running proxy cannot take up."""

    CHANGE = "any change of it, and of what is in it"
    PRESENCE = "adding or removing it; in a list, sections are told apart by their names"


RESTART = Restart.CHANGE
RESTART_IF_ADDED = Restart.PRESENCE


def restart_of(field: FieldInfo) -> Restart | None:
    """What of this setting waits for a restart."""
    return next((mark for mark in field.metadata if isinstance(mark, Restart)), None)


def changes_needing_restart(old: Settings, new: Settings) -> list[str]:
    """Paths, in the new file, of changes that a running proxy cannot take up; everything else it can.

    `old` and `new` are of the same kind. The order of virtual clusters and listeners in the file does not matter.
    """
    return list(_changes("", old, new, is_fixed=False))


def _changes(path: str, old: Settings, new: Settings, is_fixed: bool) -> Iterator[str]:
    for name, field in type(new).model_fields.items():
        at = f"{path}.{name}" if path else name
        before, after, mark = getattr(old, name), getattr(new, name), restart_of(field)
        are_fixed = is_fixed or mark is Restart.CHANGE
        if isinstance(before, Settings) and isinstance(after, Settings):
            yield from _changes(at, before, after, are_fixed)
        elif are_fixed:
            yield from [at] if before != after else []
        elif mark is Restart.PRESENCE and isinstance(after, tuple):
            yield from _changes_of_list(at, before, after)
        elif mark is Restart.PRESENCE and (before is None) != (after is None):
            yield f"{at}: {'removed' if after is None else 'added'}"


def _changes_of_list(path: str, old: tuple[Settings, ...], new: tuple[Settings, ...]) -> Iterator[str]:
    before = {_name(section): (i, section) for i, section in enumerate(old)}
    for i, section in enumerate(new):
        _, known = before.pop(_name(section), (i, None))
        if known is None:
            yield f"{path}[{i}]: added"
        else:
            yield from _changes(f"{path}[{i}]", known, section, is_fixed=False)
    yield from (f"{path}[{i}]: removed" for i, _ in before.values())


def _name(section: Settings) -> str:
    name: str = getattr(section, "name")  # noqa: B009
    return name
