"""Endpoints of the JSON API: each says once what it takes, what it returns, and which right it needs.

Requests are checked by it, and the API is documented by it.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar, get_type_hints

from aiohttp import hdrs, web
from pydantic import BaseModel, ConfigDict, GetJsonSchemaHandler, ValidationError
from pydantic_core import CoreSchema

from kafka_throttle.common.kinds import Kind, Whole
from kafka_throttle.common.printable import printable


class BadParameter(web.HTTPBadRequest):
    """A parameter of a request is wrong. The text names the parameter and says what was expected."""

    def __init__(self, problem: str) -> None:
        super().__init__(text=problem)


@dataclass(frozen=True)
class Query(Kind):
    """The value of a parameter: what is expected in words, what reads its text, and its JSON schema.

    `read` raises ValueError for a text that is not valid.
    """

    expected: str
    read: Callable[[str], Any]
    schema: Mapping[str, Any]

    def parse(self, value: Any) -> Any:
        """The value that a text stands for. Raises ValueError if it is not valid."""
        return self.read(value)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return dict(self.schema)


def whole(low: int, high: int) -> Query:
    """A parameter that is a whole number."""
    kind = Whole(low, high)

    def read(text: str) -> int:
        if not (text.isascii() and text.isdigit() and len(text) <= len(str(high))):
            raise ValueError
        return kind.parse(int(text))

    return Query(kind.expected, read, {"type": "integer", "minimum": low, "maximum": high})


def one_of(*names: str) -> Query:
    """A parameter that is one of these names."""

    def read(text: str) -> str:
        if text not in names:
            raise ValueError
        return text

    return Query(f"one of {', '.join(names)}", read, {"type": "string", "enum": list(names)})


def text_that(expected: str, accepts: Callable[[str], object], **schema: Any) -> Query:
    """A parameter that is a text for which `accepts` is true."""

    def read(text: str) -> str:
        if not accepts(text):
            raise ValueError
        return text

    return Query(expected, read, {"type": "string", **schema})


class Parameters(BaseModel):
    """The parameters of an endpoint. Each field is a `Query`; those with a default may be left out."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


Wanted = TypeVar("Wanted", bound=Parameters)


def parameters_of(request: web.Request, model: type[Wanted]) -> Wanted:
    """The parameters of a request. Raises BadParameter."""
    wanted = parameters_in(dict(request.query), model)
    for name in request.query:
        if len(given := request.query.getall(name)) > 1:
            raise BadParameter(f"{name}: expected once, got {len(given)} times")
    return wanted


def parameters_in(given: Mapping[str, str], model: type[Wanted]) -> Wanted:
    """The parameters that are given by these texts. Raises BadParameter."""
    for name in given:
        if name not in model.model_fields:
            known = ", ".join(sorted(model.model_fields)) or "none"
            raise BadParameter(f"{printable(name)}: unknown parameter, expected {known}")
    try:
        return model.model_validate(given)
    except ValidationError as error:
        [details, *_] = error.errors(include_url=False)
        text = details["input"]
        got = printable(repr(text)) if text else "an empty one"
        raise BadParameter(f"{details['loc'][0]}: expected {details['msg']}, got {got}") from error


class Endpoint(NamedTuple):
    """A path of the API, and the method of the API that responds to it.

    The method takes parameters and returns the JSON content of the response; its types and its docstring document the
    endpoint. It is an HTTP GET, which needs the right to read, unless `method` is another one.
    """

    path: str
    respond: Callable[..., Awaitable[Mapping[str, Any]]]
    method: str = hdrs.METH_GET

    @property
    def name(self) -> str:
        """The name of the method."""
        return self.respond.__name__

    def route(self, api: object, response: Callable[[Mapping[str, Any]], Awaitable[web.Response]]) -> web.RouteDef:
        """Its route: the method `name` of an `api` responds, and `response` makes an HTTP response of the content."""
        model = self.parameters

        respond = getattr(api, self.name)

        async def handle(request: web.Request) -> web.Response:
            return await response(await respond(parameters_of(request, model)))

        without_head = {"allow_head": False} if self.method == hdrs.METH_GET else {}
        return web.route(self.method, self.path, handle, **without_head)

    @property
    def parameters(self) -> type[Parameters]:
        """The model of its parameters."""
        found: type[Parameters] = get_type_hints(self.respond)["wanted"]
        return found

    @property
    def form(self) -> Any:
        """The type of its response."""
        return get_type_hints(self.respond, include_extras=True)["return"]
