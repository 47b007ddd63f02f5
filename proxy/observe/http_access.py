"""Who may do what at an HTTP listener: rights, and the credentials that give them."""

from base64 import b64decode
from dataclasses import dataclass
from enum import IntEnum
from hmac import compare_digest
from typing import NamedTuple


class Right(IntEnum):
    """What a request may do. Each right includes those below it."""

    NOTHING = 0
    READ = 1
    WRITE = 2


def right_for(method: str) -> Right:
    """The right that an endpoint with this HTTP method needs."""
    return Right.READ if method in ("GET", "HEAD") else Right.WRITE


class Account(NamedTuple):
    """Credentials, and the right that they give.

    Without a `user` the secret is a token: the bearer token of a request, or the password of whatever user a browser
    asked for.
    """

    right: Right
    secret: str
    user: str | None = None


@dataclass(frozen=True, slots=True)
class Access:
    """Who may use an HTTP listener.

    Reading needs credentials if an account gives this right; writing always needs them. `hosts` are the names that
    requests may have as their host, besides those of this machine; None: any name.
    """

    accounts: tuple[Account, ...] = ()
    hosts: frozenset[str] | None = frozenset()

    @property
    def free(self) -> Right:
        """The right of everybody, without credentials."""
        return Right.NOTHING if any(account.right is Right.READ for account in self.accounts) else Right.READ

    def granted(self, authorization: str) -> Right:
        """The right that an Authorization header gives; "" is none."""
        presented = _presented(authorization)
        if presented is None:
            return Right.NOTHING
        rights = [account.right for account in self.accounts if _is_of(account, presented)]
        return max(rights, default=Right.NOTHING)

    def gives(self, right: Right) -> bool:
        """Whether some credentials give this right."""
        return any(account.right >= right for account in self.accounts)

    def asks_for_a_user(self) -> bool:
        """Whether credentials are a user with a password, and not a token."""
        return any(account.user is not None for account in self.accounts)


class _Presented(NamedTuple):
    """The credentials in a header; a bearer token has no user."""

    user: bytes | None
    secret: bytes


def _presented(authorization: str) -> _Presented | None:
    """The credentials in an Authorization header (RFC 6750, RFC 7617), None if it has none that we know."""
    scheme, _, value = authorization.partition(" ")
    data = value.strip().encode(errors="surrogateescape")
    if scheme.lower() == "bearer":
        return _Presented(None, data)
    if scheme.lower() != "basic":
        return None
    try:
        user, colon, secret = b64decode(data, validate=True).partition(b":")
    except ValueError:
        return None
    return _Presented(user, secret) if colon else None


def _is_of(account: Account, presented: _Presented) -> bool:
    """Whether the credentials are those of the account. The time that this takes says nothing about the secret."""
    if account.user is None:
        return compare_digest(presented.secret, account.secret.encode())
    expected = f"{account.user}:{account.secret}".encode()
    return compare_digest(b"%b:%b" % (presented.user or b"", presented.secret), expected)
