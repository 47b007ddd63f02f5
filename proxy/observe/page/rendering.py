"""The HTML of the status page. All names that clients gave themselves are escaped, and without control characters."""

import json
from collections.abc import Iterable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from kafka_throttle.common.printable import printable
from kafka_throttle.proxy.installed import installed_version
from kafka_throttle.proxy.observe.explained import share_text
from kafka_throttle.proxy.observe.page import words
from kafka_throttle.proxy.observe.page.history import EVERY_S, Sample
from kafka_throttle.proxy.observe.page.sections import CHARTS

_HERE = Path(__file__).parent

_CONTENT_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


class StaticFile(NamedTuple):
    """A file that the page loads, and its path with its version: it changes with the content."""

    content: bytes
    content_type: str
    path: str


def static_files() -> dict[str, StaticFile]:
    """All files that the page loads, by name."""
    found = {}
    for file in sorted(Path(_HERE, "static").iterdir()):
        if file.suffix in _CONTENT_TYPES:
            content = file.read_bytes()
            version = sha256(content).hexdigest()[:12]
            path = f"/static/{file.name}?v={version}"
            found[file.name] = StaticFile(content, _CONTENT_TYPES[file.suffix], path)
    return found


class Rendering:
    """Makes HTML from the templates. `name` is that of the process."""

    def __init__(self, name: str, files: Mapping[str, StaticFile]) -> None:
        self._environment = Environment(
            loader=FileSystemLoader(_HERE / "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        self._environment.filters.update(
            amount=words.amount,
            clock_time=words.clock_time,
            duration=words.duration,
            entity=words.entity,
            key=words.key,
            in_words=lambda value, filter_name: self._environment.filters[filter_name](value),
            milliseconds=lambda seconds: words.number(1000 * seconds),
            count=words.number,
            number=words.number,
            percent=words.percent,
            plural=words.plural,
            printable=printable,
            share=share_text,
            size=words.size,
            time_of_day=words.time_of_day,
        )
        paths = {file: content.path for file, content in files.items()}
        self._environment.globals.update(
            instance=name, version=installed_version(), static=paths, explain_path=explain_path
        )
        for template in self._environment.list_templates():
            self._environment.get_template(template)

    def html(self, template: str, facts: Mapping[str, Any]) -> str:
        """The HTML of a template, given without its ending."""
        return self._environment.get_template(f"{template}.html.j2").render(facts)


def samples_as_json(samples: Iterable[Sample]) -> str:
    """Samples for the charts: the lines of each chart, and the values of each field in the order of time."""
    columns = list(zip(*samples, strict=True)) or [()] * len(Sample._fields)
    return json.dumps(
        {
            "every_s": EVERY_S,
            "charts": {chart.name: {"words": chart.words, "lines": list(chart.lines)} for chart in CHARTS},
            "samples": dict(zip(Sample._fields, columns, strict=True)),
        },
        separators=(",", ":"),
    )


def past_path(at: str) -> str:
    """The path of the page that shows who was throttled in a second of the past."""
    return f"/past?{urlencode({'at': at})}"


def explain_path(
    virtual_cluster: str, user: str | None = None, client_id: str | None = None, ip: str | None = None, at: str = ""
) -> str:
    """The path of the page that explains the quotas of a client, now or in a second of the past.

    Without a user or a client-id it explains all clients that fit; an empty client-id is one that is empty.
    """
    given = {"virtual_cluster": virtual_cluster, "user": user, "client_id": client_id, "ip": ip, "at": at or None}
    return f"/explain?{urlencode({name: value for name, value in given.items() if value is not None})}"
