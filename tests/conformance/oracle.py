"""Runs Kafka's own classes on a script, and compares what they answer with what we do, line by line."""

import subprocess
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from struct import pack
from typing import NamedTuple, TextIO

from tests.support.java_program import java_program

_REPORTED = 5
"""So many differences are told in words."""


class Step(NamedTuple):
    """One line of a script, our response to it, and whether that throttles, refuses, or makes somebody wait."""

    line: str
    response: str
    throttles: bool = False


class Reply(NamedTuple):
    """One line of a script, and both responses."""

    line: str
    ours: str
    kafkas: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """How many events were compared, how many of them throttled, and how many were answered differently.

    `reported` says the first of these in words.
    """

    events: int
    throttles: int
    differences: int
    reported: tuple[str, ...]

    def __str__(self) -> str:
        return "\n  ".join((f"{self.differences} of {self.events} events differ", *self.reported))


@dataclass(frozen=True, slots=True)
class Run:
    """A script that Kafka's classes and ours have answered, in the files of a folder."""

    folder: Path
    throttles: int

    def replies(self) -> Iterator[Reply]:
        """All lines, in their order."""
        with self._open("script") as lines, self._open("ours") as ours, self._open("kafkas") as kafkas:
            for line, our, kafka in zip(lines, ours, kafkas, strict=True):
                yield Reply(line.rstrip("\n"), our.rstrip("\n"), kafka.rstrip("\n"))

    def _open(self, name: str) -> TextIO:
        return (self.folder / name).open()

    def comparison(self) -> Comparison:
        """How far they agree."""
        events, differences, reported = 0, 0, []
        for line, ours, kafkas in self.replies():
            events += 1
            if ours != kafkas:
                differences += 1
                if differences <= _REPORTED:
                    reported.append(f"line {events}, {line!r}: Kafka {kafkas!r}, we {ours!r}")
        return Comparison(events, self.throttles, differences, tuple(reported))


def run(program: str, version: str, steps: Iterable[Step], folder: Path, *arguments: object) -> Run:
    """Give the script to one of our Java programs, with the jars of a Kafka version, while we answer it ourselves."""
    command = [*java_program(program, version), "/dev/stdin", str(folder / "kafkas"), *map(str, arguments)]
    throttles = 0
    with (
        (folder / "script").open("w") as lines,
        (folder / "ours").open("w") as responses,
        (folder / "errors").open("w") as errors,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=errors, stderr=errors, text=True) as kafka,
    ):
        assert kafka.stdin is not None
        with suppress(BrokenPipeError):  # who has ended early says why
            for step in steps:
                line = step.line + "\n"
                lines.write(line)
                kafka.stdin.write(line)
                responses.write(step.response + "\n")
                throttles += step.throttles
        kafka.communicate(timeout=900)
    assert kafka.returncode == 0, (folder / "errors").read_text()[-3000:]
    return Run(folder, throttles)


def bits(value: float) -> str:
    """A double as Java's Long.toHexString prints its bits."""
    return f"{int.from_bytes(pack('>d', value)):x}"
