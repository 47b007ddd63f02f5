"""The OpenAPI document of the JSON API, made from its endpoints (api_page.py prints it)."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from pydantic import ConfigDict, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaMode
from typing_extensions import get_original_bases, is_typeddict

from kafka_throttle.proxy.observe import forms
from kafka_throttle.proxy.observe.endpoints import Endpoint, Parameters
from kafka_throttle.proxy.observe.http_access import right_for

_MODE: Final[JsonSchemaMode] = "serialization"
_SCHEMAS: Final = "#/components/schemas/"
_RESPONSES: Final = "#/components/responses/"

ERRORS: Final[Mapping[int, tuple[str, str]]] = {
    400: (
        "BadRequest",
        "A parameter is wrong, or the request is no proper HTTP/1.1 request for a path that may exist.",
    ),
    401: ("Unauthorized", "There is a token, and the request has none, or a wrong one."),
    403: ("Forbidden", "The token may only read, the Host header is unknown, or a page of another site asks."),
    404: ("NotFound", "There is no such path, or no such virtual cluster."),
    405: ("MethodNotAllowed", "The path has no such method."),
    408: ("RequestTimeout", "The body of the request took too long."),
    413: ("ContentTooLarge", "The body of the request is larger than 1 KiB."),
    431: ("HeadersTooLarge", "The headers of the request are larger than 16 KiB."),
    500: ("Failed", "The proxy has failed; its log says how."),
}
"""The errors that each endpoint may respond with: the name of the response, and what it means."""


class _WithoutTitles(GenerateJsonSchema):
    """Leaves out titles, which only repeat the names of fields."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        """Whether a field has a title."""
        return False


def openapi(endpoints: Iterable[Endpoint]) -> dict[str, Any]:
    """The document, as OpenAPI 3.1 has it."""
    endpoints = list(endpoints)
    references, definitions = _schemas([*(endpoint.form for endpoint in endpoints), forms.ErrorForm])
    error = {"application/json": {"schema": references[-1]}}
    paths: dict[str, dict[str, Any]] = {}
    for endpoint, reference in zip(endpoints, references, strict=False):
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _operation(endpoint, reference)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "kafka-throttle admin API",
            "version": "1",
            "description": "The quotas in force, the clients that are throttled, and why. Fields may be added later.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": {
            "schemas": definitions,
            "responses": {name: {"description": text, "content": error} for name, text in ERRORS.values()},
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "The token in admin.token_file may read, that in admin.write_token_file anything.",
                },
                "browser": {
                    "type": "http",
                    "scheme": "basic",
                    "description": "The same tokens, as the password of any user: so browsers ask for it.",
                },
            },
        },
    }


def _schemas(wanted: list[Any]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The schema of each type, which refers to others, and all others by name."""
    config = ConfigDict(use_attribute_docstrings=True)
    typed = [form for form in vars(forms).values() if is_typeddict(form)]
    lists_of: list[Any] = [list[each] for each in (*wanted, *typed)]  # type: ignore[valid-type]
    adapters = [(number, _MODE, TypeAdapter(each, config=config)) for number, each in enumerate(lists_of)]
    lists, found = TypeAdapter.json_schemas(
        adapters, ref_template=f"{_SCHEMAS}{{model}}", schema_generator=_WithoutTitles
    )
    definitions: dict[str, Any] = _on_one_line(found["$defs"])
    for form in typed:
        _inherit_texts(form, definitions)
    schemas = [lists[number, _MODE]["items"] for number in range(len(wanted))]
    return schemas, dict(sorted(_referred_to(schemas, definitions).items()))


def _inherit_texts(form: type, definitions: Mapping[str, Any]) -> None:
    """Give the fields that a form has from others the texts that they have there, where pydantic does not find them."""
    for base in get_original_bases(form):
        for name, field in definitions.get(base.__name__, {}).get("properties", {}).items():
            if "description" in field:
                definitions[form.__name__]["properties"][name].setdefault("description", field["description"])


def _referred_to(schema: Any, definitions: Mapping[str, Any]) -> dict[str, Any]:
    """The definitions that a schema refers to, and those that they refer to."""
    found: dict[str, Any] = {}
    waiting = [schema]
    while waiting:
        part = waiting.pop()
        if isinstance(part, list):
            waiting += part
        elif isinstance(part, dict):
            name = str(part.get("$ref", "")).removeprefix(_SCHEMAS)
            if name in definitions and name not in found:
                found[name] = definitions[name]
                waiting.append(definitions[name])
            waiting += part.values()
    return found


def _operation(endpoint: Endpoint, reference: Mapping[str, Any]) -> dict[str, Any]:
    about, _, more = (endpoint.respond.__doc__ or "").partition("\n\n")
    described = {"description": " ".join(more.split())} if more.strip() else {}
    return {
        "operationId": endpoint.respond.__name__,
        "summary": " ".join(about.split()),
        **described,
        "parameters": list(parameter_objects(endpoint.parameters)),
        "security": [{}, {"token": []}, {"browser": []}],
        "x-right": right_for(endpoint.method).name.lower(),
        "responses": {
            "200": {"description": "The response.", "content": {"application/json": {"schema": reference}}},
            **{str(status): {"$ref": f"{_RESPONSES}{name}"} for status, (name, _) in ERRORS.items()},
        },
    }


def parameter_objects(model: type[Parameters]) -> list[dict[str, Any]]:
    """The parameters of an endpoint, as OpenAPI has them."""
    schemas = _on_one_line(model.model_json_schema(schema_generator=_WithoutTitles).get("properties", {}))
    found = []
    for name, schema in schemas.items():
        about = schema.pop("description")
        if schema.get("default", ...) is None:
            del schema["default"]
        required = model.model_fields[name].is_required()
        is_json = schema.get("type") == "object"
        value = {"content": {"application/json": {"schema": schema}}} if is_json else {"schema": schema}
        found.append({"name": name, "in": "query", "description": about, "required": required, **value})
    return found


def _on_one_line(schema: Any) -> Any:
    """The schema with descriptions that have no line breaks."""
    if isinstance(schema, list):
        return [_on_one_line(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        name: " ".join(value.split()) if name == "description" and isinstance(value, str) else _on_one_line(value)
        for name, value in schema.items()
    }
