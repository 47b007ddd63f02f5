"""The names in tokens of cloud services: the access key that signed a request of AWS, the key name of Event Hubs.

A node might read a token that has two names differently: it gives none here. Of a token, only the name is stored.
"""

import json
import re
from collections.abc import Iterable
from urllib.parse import unquote

from kafka_throttle.protocol.identity.base64url import from_base64url

_MAX_CHARACTERS = 65_536
"""Longer tokens give no name. One with a session token of AWS has some 3,000 characters."""

_ACCESS_KEY = re.compile(r"(\w{16,128})/[0-9]{8}/[a-z0-9-]{1,64}/kafka-cluster/aws4_request", re.ASCII)
"""A credential (AWS Signature Version 4): the id of the access key, then the date, region and service."""

_KEY_NAME = re.compile(r"[A-Za-z0-9._-]{1,256}")
_SIGNATURE = re.compile(r"\s*SharedAccessSignature\s", re.IGNORECASE)


def access_key_of_url(token: str) -> str | None:
    """The id of the access key in a bearer token of Amazon MSK; None if it is no such token.

    It is a signed URL in base64url, `https://kafka.<region>.amazonaws.com/?Action=kafka-cluster:Connect&
    X-Amz-Credential=<access key id>/<date>/<region>/kafka-cluster/aws4_request&...`, with escapes. The name of a role
    is not in it: the role's session token is opaque. Source: aws-msk-iam-auth (Java), aws-msk-iam-sasl-signer (Python,
    Go, JavaScript).
    """
    if len(token) > _MAX_CHARACTERS:
        return None
    try:
        url = from_base64url(token).decode("ascii")
    except ValueError:
        return None
    begin, _, query = url.partition("?")
    pairs = (pair.partition("=") for pair in unquote(query).split("&"))
    return _access_key((name, value) for name, _, value in pairs) if begin.startswith("https://") else None


def access_key_of_json(token: bytes) -> str | None:
    """The id of the access key in a token of the mechanism AWS_MSK_IAM; None if it is no such token.

    It is a JSON object of what the URL above has, with names in lower case. Source: aws-msk-iam-auth.
    """
    if len(token) > _MAX_CHARACTERS:
        return None
    try:
        found = json.loads(token, object_pairs_hook=tuple)
    except (ValueError, RecursionError):
        return None
    return _access_key(found) if isinstance(found, tuple) else None


def _access_key(pairs: Iterable[tuple[str, object]]) -> str | None:
    credentials = [value for name, value in pairs if name.lower() == "x-amz-credential"]
    if len(credentials) != 1 or not isinstance(credentials[0], str):
        return None
    match = _ACCESS_KEY.fullmatch(unquote(credentials[0]))
    return match[1] if match else None


def shared_access_key_name(password: str) -> str | None:
    """The name of the key in a password of Event Hubs' user `$ConnectionString`; None if there is none.

    The password is a connection string, `Endpoint=sb://...;SharedAccessKeyName=<name>;SharedAccessKey=...`, whose names
    count in any case. It may have a signature in place of a key, or be one: `SharedAccessSignature sr=...&skn=<name>`.
    """
    if len(password) > _MAX_CHARACTERS:
        return None
    parts = [f"SharedAccessSignature={password}"] if _SIGNATURE.match(password) else password.split(";")
    names: list[str] = []
    for part in parts:
        key, _, value = part.partition("=")
        match key.strip().lower():
            case "sharedaccesskeyname":
                names.append(value.strip())
            case "sharedaccesssignature":
                names += _names_in_signature(value.strip())
    return names[0] if len(names) == 1 and _KEY_NAME.fullmatch(names[0]) else None


def _names_in_signature(signature: str) -> list[str]:
    """Each `skn` of `SharedAccessSignature sr=...&sig=...&se=...&skn=...`, also behind other words."""
    pairs = (pair.partition("=") for pair in signature.split("&"))
    return [unquote(value) for name, _, value in pairs if unquote(name).lower().split()[-1:] == ["skn"]]
