"""The secrets that this process logs in with elsewhere: read for each login, and seldom offered again once refused.

A broker or a directory may lock an account after a few wrong logins, and the login may be needed by several parts of
the process, and by its workers, at once. So all of them share what came of each login.
"""

import itertools
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import cache
from math import inf
from pathlib import Path
from typing import Final, Protocol

from kafka_throttle.common.forked_memory import LOGINS

MAX_PASSWORD_BYTES: Final = 4_096
MAX_TOKEN_BYTES: Final = 65_536

PAUSES_S: Final = (5.0, 60.0, 900.0)
"""How long a refused password is not offered: after the first wrong login in a row, the second, and each later one."""
_TOKEN: Final = re.compile("[!-~]+")
_LONGEST_READ_S: Final = 5.0
_hanging: Final[dict[str, threading.Thread]] = {}
"""A read of each file that took longer when it was begun last."""
_TURN_S: Final = 2.0
"""How long a login waits until another one with the same secret is over."""
_LOOK_S: Final = 0.02


class SecretUnusable(Exception):
    """There is no secret to log in with now; the text says why."""


class SecretHeldBack(SecretUnusable):
    """The secret was refused, and is not offered again yet; the text says why it was refused."""


def read_secret(path: str, most_bytes: int = MAX_PASSWORD_BYTES) -> str:
    """What a file holds, without the line end behind it. Raises SecretUnusable, also if it holds nothing."""
    try:
        data = _bytes_of(path, most_bytes + 1)
        text = data.decode().rstrip("\r\n")
    except OSError as error:
        raise SecretUnusable(f"{path} cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise SecretUnusable(f"{path}: expected UTF-8") from None
    if text and len(data) <= most_bytes:
        return text
    raise SecretUnusable(f"{path}: expected a secret of 1 to {most_bytes} bytes, got {len(data)}")


def _bytes_of(path: str, most_bytes: int) -> bytes:
    """The beginning of a file. It is read beside the caller, whom a pipe or a dead file server would hold up for ever.

    Where one read hangs, no other begins: else each login would leave a thread behind. Raises OSError.
    """
    reads: list[bytes | OSError] = []

    def read() -> None:
        try:
            with Path(path).open("rb") as file:
                reads.append(file.read(most_bytes))
        except OSError as error:
            reads.append(error)

    if (hanging := _hanging.get(path)) is None or not hanging.is_alive():
        thread = threading.Thread(target=read, daemon=True)
        thread.start()
        thread.join(_LONGEST_READ_S)
        if thread.is_alive():
            _hanging[path] = thread
    if not reads:
        raise OSError(None, f"nothing has come within {_LONGEST_READ_S:g} s")
    if isinstance(reads[0], OSError):
        raise reads[0]
    return reads[0]


class Attempt(Protocol):
    """One login. `ended` is called in any case, after the outcome if there was one."""

    @property
    def secret(self) -> str:
        """What is offered."""

    def accepted(self) -> None:
        """The other side has taken it. Like the others, this blocks for no time."""

    def refused(self, words: str) -> bool:
        """The other side has said no, in these words. Whether another secret can be offered at once."""

    def ended(self) -> None:
        """The login is over."""


@dataclass(frozen=True, slots=True)
class GivenSecret:
    """A secret from elsewhere that stays the same, for one login."""

    secret: str = field(repr=False)

    def begin(self) -> Attempt:
        """Begin a login."""
        return self

    def accepted(self) -> None:
        """Nothing is remembered."""

    def refused(self, _words: str) -> bool:
        """False: there is no other secret."""
        return False

    def ended(self) -> None:
        """Nothing is remembered."""


@dataclass(frozen=True, slots=True)
class PasswordFile:
    """A file that holds a password. `account` says whose it is, and where."""

    path: str
    account: str = ""

    def begin(self) -> Attempt:
        """Begin a login, with what all logins of this account in this process have shown. Raises SecretUnusable."""
        return _password_of(self).begin()

    def holds_another(self, password: str) -> bool:
        """Whether it holds another password than this one. False if it cannot be read."""
        try:
            return read_secret(self.path) != password
        except SecretUnusable:
            return False


@dataclass(frozen=True, slots=True)
class TokenFile:
    """A file that holds a token, which somebody else renews. No account is locked by a token that is refused."""

    path: str

    def begin(self) -> Attempt:
        """Begin a login. Raises SecretUnusable."""
        token = read_secret(self.path, MAX_TOKEN_BYTES).strip()
        if not is_token(token):
            raise SecretUnusable(f"{self.path}: expected a token, which has no spaces and no control characters")
        return GivenSecret(token)


def is_token(text: str) -> bool:
    """Whether a text can be sent as a token (RFC 6750)."""
    return _TOKEN.fullmatch(text) is not None


@cache
def _password_of(file: PasswordFile) -> "Password":
    return Password(file)


@dataclass(slots=True)
class _Known:
    """What the logins of an account have shown."""

    in_file: str = ""
    """What the file held when it was read last."""
    accepted: str | None = None
    accepted_at_s: float = -inf
    refused_at_s: dict[str, float] = field(default_factory=dict)
    """When each of the known passwords was refused, those that were not accepted since."""
    wrong: int = 0
    """Wrong logins in a row."""
    again_s: float = -inf
    words: str = ""
    under_way: str = ""
    """The login whose turn it is, and until when it has its turn."""
    turn_ends_s: float = -inf

    @property
    def pause_s(self) -> float:
        """How long the next login waits behind the last wrong one."""
        return PAUSES_S[min(self.wrong, len(PAUSES_S)) - 1]


class Password:
    """A password in a file. Any thread may use it, and any process that is forked from this one.

    What the file holds is offered. Once that is refused, the password that was accepted last is offered instead: files
    are often changed before the account is. When that is refused, too, the file's password gets another attempt at
    once. While all are refused, each login waits longer (`PAUSES_S`), until the file has another password.
    """

    def __init__(self, file: PasswordFile, now_s: Callable[[], float] = time.monotonic) -> None:
        self._file = file
        self._now_s = now_s
        self._numbers = itertools.count()

    @contextmanager
    def _known(self) -> Iterator[_Known]:
        """What is known now; what the block makes of it is known to all."""
        with LOGINS.value(f"{self._file.account}\0{self._file.path}") as fields:
            known = _Known(**fields)
            try:
                yield known
            finally:
                fields |= asdict(known)

    def begin(self) -> Attempt:
        """See `PasswordFile.begin`. Logins take turns, so that those who come together learn from the first."""
        found = self._read()  # not in the block, which event loops wait for: a file may take long to read
        number, waits_until_s = f"{os.getpid()}-{next(self._numbers)}", time.monotonic() + _TURN_S
        while True:
            with self._known() as known:
                if self._now_s() >= known.turn_ends_s or time.monotonic() >= waits_until_s:
                    secret = self._to_offer(found, known)
                    known.under_way, known.turn_ends_s = number, self._now_s() + _TURN_S
                    return _PasswordAttempt(self, secret, number)
            time.sleep(_LOOK_S)

    def _read(self) -> str | SecretUnusable:
        try:
            return read_secret(self._file.path)
        except SecretUnusable as error:
            return error

    def _to_offer(self, found: str | SecretUnusable, known: _Known) -> str:
        if isinstance(found, SecretUnusable):  # the file may be just being written
            if known.accepted is None or known.accepted in known.refused_at_s:
                raise found
            return known.accepted
        others = [] if known.accepted is None else [known.accepted]
        if found != known.in_file:
            known.in_file = found
            known.refused_at_s = {one: at_s for one, at_s in known.refused_at_s.items() if one in others}
            known.wrong, known.again_s = 0, -inf
        candidates = list(dict.fromkeys([found, *others]))
        for candidate in candidates:
            if candidate not in known.refused_at_s:
                return candidate
        if self._now_s() < known.again_s:
            raise SecretHeldBack(self._held_back(known))
        return min(candidates, key=known.refused_at_s.__getitem__)

    def _held_back(self, known: _Known) -> str:
        """The same words for as long as it lasts."""
        wrong = known.wrong
        times = "once" if wrong == 1 else f"{wrong} times" if wrong <= len(PAUSES_S) else "again"
        pause = f"the next login is {known.pause_s:.0f} s after the last one"
        return f"{known.words} (refused {times}; {pause}, or when {self._file.path} has another password)"

    def note_accepted(self, secret: str) -> None:
        """A login with it has succeeded."""
        with self._known() as known:
            known.accepted, known.accepted_at_s = secret, self._now_s()
            known.refused_at_s.pop(secret, None)
            known.wrong, known.again_s = 0, -inf

    def note_refused(self, secret: str, words: str) -> bool:
        """A login with it was refused. Whether another password can be offered at once."""
        with self._known() as known:
            now_s = self._now_s()
            known.refused_at_s[secret], known.words = now_s, words
            known.wrong += 1
            known.again_s = now_s + known.pause_s
            others = {known.in_file, known.accepted or known.in_file} - {secret}
            for other in others:
                if secret == known.accepted and known.refused_at_s.get(other, inf) < known.accepted_at_s:
                    del known.refused_at_s[other]  # what was refused while this one was right may be right now
            return not others <= known.refused_at_s.keys()

    def note_ended(self, number: str) -> None:
        """Let the next login begin."""
        with self._known() as known:
            if known.under_way == number:
                known.under_way, known.turn_ends_s = "", -inf


class _PasswordAttempt:
    """A login that is under way."""

    def __init__(self, password: Password, secret: str, number: str) -> None:
        self._password = password
        self.secret = secret
        self._number = number

    def accepted(self) -> None:
        """See Attempt."""
        self._password.note_accepted(self.secret)

    def refused(self, words: str) -> bool:
        """See Attempt."""
        return self._password.note_refused(self.secret, words)

    def ended(self) -> None:
        """See Attempt."""
        self._password.note_ended(self._number)
