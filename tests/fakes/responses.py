"""Compares responses of the API with what its description promises."""

from typing import Any

from pydantic import ConfigDict, TypeAdapter

from kafka_throttle.proxy.observe.api import ENDPOINTS

_CONFIG = ConfigDict(extra="forbid", strict=True)
_FORMS = {endpoint.path: TypeAdapter(list[endpoint.form], config=_CONFIG) for endpoint in ENDPOINTS}


def checked(path: str, content: Any) -> None:
    """Raise ValidationError unless the content of a response of an endpoint has exactly the fields that it promises."""
    _FORMS[path].validate_python([content])
