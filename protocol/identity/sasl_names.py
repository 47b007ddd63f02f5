"""Who a SASL token says its sender is.

A name found here is a claim: it counts once the node has said that the exchange succeeded. Whatever is not read without
doubt gives no name, and never an error: the node is the judge of tokens. Nothing but the name is kept of one.
"""

import json
import re
from base64 import b64decode
from collections.abc import Sequence
from typing import NamedTuple

from protocol.frames import MAX_ASKED_BYTES

PLAIN = "PLAIN"
SCRAM = frozenset({"SCRAM-SHA-256", "SCRAM-SHA-512"})
OAUTHBEARER = "OAUTHBEARER"

ACCESS_TOKEN, CONNECTION_STRING = "$accessToken", "$ConnectionString"
SHARED_NAMES = frozenset({ACCESS_TOKEN, CONNECTION_STRING})
"""Users of PLAIN who are everybody: of Strimzi's OAuth over PLAIN, whose password is a token, and of Event Hubs."""


class Claim(NamedTuple):
    """A claim of a token that names the principal, and what stands before its value in the principal's name."""

    name: str
    prefix: str = ""


SUBJECT_CLAIMS = (Claim("sub"),)
"""Those of a broker, unless `sasl.oauthbearer.sub.claim.name` says otherwise."""

MAX_TOKEN_BYTES = MAX_ASKED_BYTES
"""One that is longer gives no name; a broker takes half of it (`sasl.server.max.receive.size`)."""

_TOKEN_AUTH = re.compile(r",tokenauth=([^,]*)")
_JWT_PARTS = 3
_JAVA_BLANKS = "".join(map(chr, range(0x21)))
"""What Java's `String.trim` takes away."""


def claimed_name(mechanism: str, token: bytes | memoryview, claims: Sequence[Claim] = SUBJECT_CLAIMS) -> str | None:
    """The user that a client names in its first token (OAUTHBEARER: in any), None where it cannot be seen.

    Of a JWT the first of the `claims` counts that it has.
    """
    if len(token) > MAX_TOKEN_BYTES:
        return None
    if mechanism == PLAIN:
        name = plain_name(bytes(token), claims)
    elif mechanism in SCRAM:
        name = scram_name(bytes(token))
    elif mechanism == OAUTHBEARER:
        name = oauthbearer_name(bytes(token), claims)
    else:
        return None
    return name if name and _is_text(name) else None


def succeeds(mechanism: str, response: bytes | memoryview) -> bool | None:
    """Whether the token of a node that reports no error ends the exchange well; None: it does not tell.

    A rejected OAUTHBEARER token is first answered without an error: the token of that response is the reason (RFC
    7628).
    """
    if mechanism in SCRAM:
        return bytes(response[:2]) == b"v="
    if not len(response):
        return True
    return False if mechanism == OAUTHBEARER else None


def plain_name(token: bytes, claims: Sequence[Claim] = SUBJECT_CLAIMS) -> str | None:
    """`[authzid] NUL user NUL password`. Source: RFC 4616; as in Kafka, authzid is empty or the user.

    The password of the user `$accessToken` is a bearer token (Strimzi): its subject is the user, if it is a JWT.
    """
    parts = token.split(b"\0", 3)
    if len(parts) != 3:
        return None
    authzid, user, password = (part.decode(errors="replace") for part in parts)
    if not password or authzid not in ("", user):
        return None
    return (jwt_subject(password, claims) or user) if user == ACCESS_TOKEN else user


def scram_name(token: bytes) -> str | None:
    """The user in a client-first message; None with a delegation token, whose id stands in its place (KIP-48).

    `n,[a=authzid],[m=...,]n=user,r=nonce[,ext=value...]`, `=2C` for a comma and `=3D` for an equals sign in the user.
    Source: RFC 5802; as in Kafka there is no channel binding, and authzid is empty or the user.
    """
    try:
        gs2_flag, authzid, *rest = token.decode().split(",", 2)
    except ValueError:
        return None
    bare = rest[0] if rest else ""
    if bare.startswith("m="):
        bare = bare.partition(",")[2]
    saslname, _, behind = bare.partition(",")
    if gs2_flag != "n" or not saslname.startswith("n=") or not behind.startswith("r="):
        return None
    by_token = _TOKEN_AUTH.findall(behind)
    name = _unescaped(saslname[2:])
    if by_token and by_token[-1].lower() == "true":
        return None
    return name if authzid in ("", f"a={name}", f"a={saslname[2:]}") else None


def _unescaped(saslname: str) -> str | None:
    """A name as it is; None where an equals sign begins no escape."""
    if saslname.count("=") != saslname.count("=2C") + saslname.count("=3D"):
        return None
    return saslname.replace("=2C", ",").replace("=3D", "=")


def oauthbearer_name(token: bytes, claims: Sequence[Claim] = SUBJECT_CLAIMS) -> str | None:
    """The subject of the bearer token in an initial response, None if the token is opaque or encrypted.

    `n,[a=authzid],^A auth=Bearer token ^A [key=value ^A...] ^A`. Source: RFC 7628; as in Kafka, authzid is empty or
    the subject.
    """
    try:
        header, *pairs = token.decode().split("\1")
        gs2_flag, authzid, behind = header.split(",")
    except ValueError:
        return None
    bearer = [pair.removeprefix("auth=") for pair in pairs if pair.startswith("auth=")]
    scheme, _, credentials = bearer[-1].partition(" ") if bearer else ("", "", "")
    if gs2_flag != "n" or behind or scheme.lower() != "bearer":
        return None
    name = jwt_subject(credentials.strip(" "), claims)
    return name if authzid in ("", f"a={name}") else None


def jwt_subject(token: str, claims: Sequence[Claim] = SUBJECT_CLAIMS) -> str | None:
    """The subject that a JWT names by the first of the `claims` that it has; None if it is none, or is encrypted.

    Its signature is for the node to judge.

    As in Kafka, blanks around the name are taken away, but not in a token without a signature.
    """
    parts = token.split(".", _JWT_PARTS)
    if len(parts) != _JWT_PARTS:
        return None
    found = _json_object(parts[1]) or {}
    for claim in claims:
        subject = found.get(claim.name)
        if isinstance(subject, str) and (trimmed := subject.strip(_JAVA_BLANKS)):
            return claim.prefix + (trimmed if parts[2] else subject)
    return None


def _json_object(part: str) -> dict[str, object] | None:
    """The object in base64url without padding, None if there is none."""
    plain = part.translate(_TO_PLAIN_BASE64).rstrip("=")
    try:
        found = json.loads(b64decode(plain + "=" * (-len(plain) % 4), validate=True))
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


_TO_PLAIN_BASE64 = str.maketrans("-_", "+/")


def _is_text(name: str) -> bool:
    """False for a name with half a character, which JSON can write."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
