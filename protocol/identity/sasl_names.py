"""The user that a SASL token names.

A name found here is a claim: it counts once the node has reported that the exchange succeeded. A token that cannot be
read with certainty gives no name, and never an error, because the node judges tokens. Of a token, only the name is
stored.
"""

import json
import re
from collections.abc import Sequence
from typing import NamedTuple

from kafka_throttle.protocol.frames import MAX_SASL_BYTES
from kafka_throttle.protocol.identity.base64url import from_base64url
from kafka_throttle.protocol.identity.cloud_names import access_key_of_json, access_key_of_url, shared_access_key_name

PLAIN = "PLAIN"
SCRAM = frozenset({"SCRAM-SHA-256", "SCRAM-SHA-512"})
OAUTHBEARER = "OAUTHBEARER"
AWS_MSK_IAM = "AWS_MSK_IAM"

ACCESS_TOKEN, CONNECTION_STRING = "$accessToken", "$ConnectionString"
SHARED_NAMES = frozenset({ACCESS_TOKEN, CONNECTION_STRING})
"""Names of PLAIN that many users share: of Strimzi's OAuth over PLAIN, whose password is a token, and of Event Hubs.

Each user has another password, and a name of its own if the password shows one.
"""


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


def claimed_names(
    mechanism: str, token: bytes | memoryview, claims: Sequence[Claim] = SUBJECT_CLAIMS
) -> tuple[str, ...]:
    """The names of the user in a client's first token (OAUTHBEARER: in any token), the most exact one first.

    There are none if the token does not show the user. In a JWT, the first of the `claims` that it has names the user.
    The key in a token of a cloud service may be one of many of the same user, or one for an hour: behind its name
    stands the name that all tokens of this kind have in common.
    """
    if len(token) > MAX_TOKEN_BYTES:
        return ()
    if mechanism == PLAIN:
        names = plain_names(bytes(token), claims)
    elif mechanism in SCRAM:
        names = (scram_name(bytes(token)),)
    elif mechanism == OAUTHBEARER:
        names = oauthbearer_names(bytes(token), claims)
    elif mechanism == AWS_MSK_IAM:
        names = (access_key_of_json(bytes(token)), unnamed(mechanism))
    else:
        return ()
    return tuple(name for name in names if name) if names[0] and _is_text(names[0]) else ()


def unnamed(mechanism: str) -> str:
    """The name that all users have in common whom the tokens of a mechanism do not name."""
    return f"?{mechanism}"


def succeeds(mechanism: str, response: bytes | memoryview) -> bool | None:
    """Whether a node's token without an error ends the exchange with success; None: the token does not show it.

    The first response to a rejected OAUTHBEARER token has no error: its token has the reason (RFC 7628).
    """
    if mechanism in SCRAM:
        return bytes(response[:2]) == b"v="
    if not len(response):
        return True
    return False if mechanism == OAUTHBEARER else None


def plain_names(token: bytes, claims: Sequence[Claim] = SUBJECT_CLAIMS) -> tuple[str | None, ...]:
    """The user in a PLAIN token: `[authzid] NUL user NUL password`.

    Source: RFC 4616; as in Kafka, authzid is empty or the user. The password of the user `$accessToken` is a bearer
    token (Strimzi): if it is a JWT, its subject is the user. That of `$ConnectionString` may name a key (Event Hubs).
    """
    parts = token.split(b"\0", 3)
    if len(parts) != 3:
        return (None,)
    authzid, user, password = (part.decode(errors="replace") for part in parts)
    if not password or authzid not in ("", user):
        return (None,)
    if user == ACCESS_TOKEN:
        return (jwt_subject(password, claims) or user,)
    key_name = shared_access_key_name(password) if user == CONNECTION_STRING else None
    return (key_name, user) if key_name else (user,)


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


def oauthbearer_names(token: bytes, claims: Sequence[Claim] = SUBJECT_CLAIMS) -> tuple[str | None, ...]:
    """The name in the bearer token of an initial response; None if the token is opaque or encrypted.

    `n,[a=authzid],^A auth=Bearer token ^A [key=value ^A...] ^A`. Source: RFC 7628; as in Kafka, authzid is empty or the
    name. The token is a JWT, which has its subject, or a signed URL of AWS, which has no dots.
    """
    try:
        header, *pairs = token.decode().split("\1")
        gs2_flag, authzid, behind = header.split(",")
    except ValueError:
        return (None,)
    bearer = [pair.removeprefix("auth=") for pair in pairs if pair.startswith("auth=")]
    scheme, _, credentials = bearer[-1].partition(" ") if bearer else ("", "", "")
    if gs2_flag != "n" or behind or scheme.lower() != "bearer":
        return (None,)
    bearer_token = credentials.strip(" ")
    if "." in bearer_token:
        names: tuple[str | None, ...] = (jwt_subject(bearer_token, claims),)
    else:
        names = (access_key_of_url(bearer_token), unnamed(OAUTHBEARER))
    return names if authzid in ("", f"a={names[0]}") else (None,)


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
    try:
        found = json.loads(from_base64url(part))
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _is_text(name: str) -> bool:
    """Whether a name has no half of a surrogate pair, which JSON can write."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
