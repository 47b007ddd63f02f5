"""The user that a SASL token names.

A name found here is a claim: it counts once the node has reported that the exchange succeeded. A token that cannot be
read with certainty gives no name, and never an error, because the node judges tokens. Of a token, only the name is
stored.
"""

import json
import re
from base64 import b64decode
from collections.abc import Sequence
from typing import NamedTuple

from protocol.frames import MAX_SASL_BYTES

PLAIN = "PLAIN"
SCRAM = frozenset({"SCRAM-SHA-256", "SCRAM-SHA-512"})
OAUTHBEARER = "OAUTHBEARER"

ACCESS_TOKEN, CONNECTION_STRING = "$accessToken", "$ConnectionString"
SHARED_NAMES = frozenset({ACCESS_TOKEN, CONNECTION_STRING})
"""Names of PLAIN that many users share: of Strimzi's OAuth over PLAIN, whose password is a token, and of Event Hubs."""


class Claim(NamedTuple):
    """A claim of a token that names the principal, and the prefix of its value in the principal's name."""

    name: str
    prefix: str = ""


SUBJECT_CLAIMS = (Claim("sub"),)
"""The claims that a broker uses, unless `sasl.oauthbearer.sub.claim.name` names another."""

MAX_TOKEN_BYTES = MAX_SASL_BYTES
"""A longer token gives no name. A broker accepts half of this size (`sasl.server.max.receive.size`)."""

_TOKEN_AUTH = re.compile(r",tokenauth=([^,]*)")
_JWT_PARTS = 3
_JAVA_BLANKS = "".join(map(chr, range(0x21)))
"""The characters that Java's `String.trim` removes."""


def claimed_name(mechanism: str, token: bytes | memoryview, claims: Sequence[Claim] = SUBJECT_CLAIMS) -> str | None:
    """The user that a client names in its first token (OAUTHBEARER: in any token); None if the token does not show it.

    In a JWT, the first of the `claims` that it has names the user.
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
    """Whether a node's token without an error ends the exchange with success; None: the token does not show it.

    The first response to a rejected OAUTHBEARER token has no error: its token has the reason (RFC 7628).
    """
    if mechanism in SCRAM:
        return bytes(response[:2]) == b"v="
    if not len(response):
        return True
    return False if mechanism == OAUTHBEARER else None


def plain_name(token: bytes, claims: Sequence[Claim] = SUBJECT_CLAIMS) -> str | None:
    """The user in a PLAIN token: `[authzid] NUL user NUL password`.

    Source: RFC 4616; as in Kafka, authzid is empty or the user. The password of the user `$accessToken` is a bearer
    token (Strimzi): if it is a JWT, its subject is the user.
    """
    parts = token.split(b"\0", 3)
    if len(parts) != 3:
        return None
    authzid, user, password = (part.decode(errors="replace") for part in parts)
    if not password or authzid not in ("", user):
        return None
    return (jwt_subject(password, claims) or user) if user == ACCESS_TOKEN else user


def scram_name(token: bytes) -> str | None:
    """The user in a client-first message; None with a delegation token, whose id is in its place (KIP-48).

    `n,[a=authzid],[m=...,]n=user,r=nonce[,ext=value...]`, with `=2C` for a comma and `=3D` for an equals sign in the
    user. Source: RFC 5802; as in Kafka there is no channel binding, and authzid is empty or the user.
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
    """The name without its escapes; None if an equals sign does not begin an escape."""
    if saslname.count("=") != saslname.count("=2C") + saslname.count("=3D"):
        return None
    return saslname.replace("=2C", ",").replace("=3D", "=")


def oauthbearer_name(token: bytes, claims: Sequence[Claim] = SUBJECT_CLAIMS) -> str | None:
    """The subject of the bearer token in an initial response; None if the token is opaque or encrypted.

    `n,[a=authzid],^A auth=Bearer token ^A [key=value ^A...] ^A`. Source: RFC 7628; as in Kafka, authzid is empty or the
    subject.
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
    """The subject of a JWT, in the first of the `claims` that it has; None if it is not a JWT, or is encrypted.

    The signature is not checked: the node does that. As in Kafka, blanks around the name are removed, except in a token
    without a signature.
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
    """The JSON object in base64url without padding; None if there is none."""
    plain = part.translate(_TO_PLAIN_BASE64).rstrip("=")
    try:
        found = json.loads(b64decode(plain + "=" * (-len(plain) % 4), validate=True))
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


_TO_PLAIN_BASE64 = str.maketrans("-_", "+/")


def _is_text(name: str) -> bool:
    """Whether a name has no half of a surrogate pair, which JSON can write."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
