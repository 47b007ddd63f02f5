"""docs/reference/configuration.md, made from the models.

python -m kafka_throttle.proxy.config.page > docs/reference/configuration.md
"""

from typing import Any, get_args

from pydantic import BaseModel

from kafka_throttle.common.kinds import Kind
from kafka_throttle.common.settings import Settings, expected_of, without_none
from kafka_throttle.proxy.config.reload import Restart, restart_of
from kafka_throttle.proxy.config.settings import Config

_INTRODUCTION = """# Configuration

Made from the models in `proxy/config/settings.py`; a test keeps it in step. An example: `deploy/proxy.example.yaml`.

The file is YAML. Unknown keys are errors, no value is converted from another type, and `kafka-throttle check`
tells all problems at once. A running proxy takes up a changed file within a second, or at SIGHUP: settings
marked *live* at once, limits of connections for new ones. A file that adds or removes a virtual cluster or a
listener, or changes a setting marked *restart*, is refused as a whole until then.
"""


def configuration_page() -> str:
    """The page as Markdown, one table for each mapping of the file."""
    return _INTRODUCTION + "".join(_table(Config, "", is_fixed=False))


def _table(model: type[Settings], path: str, is_fixed: bool) -> list[str]:
    heading = f"`{path}`" if path else "The file"
    about = (model.__doc__ or "").partition("\n")[0]
    lines = [f"\n## {heading}\n\n{about}\n\n", "| setting | takes | default | meaning | change |\n"]
    lines.append("| --- | --- | --- | --- | --- |\n")
    below: list[str] = []
    for name, field in model.model_fields.items():
        setting = f"{path}.{name}" if path else name
        inner, is_list = _inner_model(field.annotation)
        needs_restart = is_fixed or restart_of(field) is Restart.CHANGE
        if inner is not None:
            setting += "[]" if is_list else ""
            below += _table(inner, setting, needs_restart)
        change = "restart" if needs_restart else "live"
        takes = "a list of mappings, see below" if is_list else "a mapping, see below" if inner else _takes(field)
        default = "required" if field.is_required() else _default(field.default)
        meaning = (field.description or "").replace("\n", " ")
        cells = (f"`{name}`", takes, default, meaning, "see below" if inner and change == "live" else change)
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |\n")
    if constants := model.constants():
        fixed = ", ".join(f"`{name}` {value}" for name, value in constants.items())
        lines.append(f"\nConstants, which are no settings: {fixed}.\n")
    return lines + below


def _inner_model(annotation: Any) -> tuple[type[Settings] | None, bool]:
    """The model that a setting holds, and whether it holds a list of them."""
    items = get_args(annotation)
    is_list = len(items) == 2 and items[1] is Ellipsis
    held = items[0] if is_list else without_none(annotation)
    if isinstance(held, type) and issubclass(held, Settings):
        return held, is_list
    return None, False


def _takes(field: Any) -> str:
    items = get_args(field.annotation)
    if len(items) == 2 and items[1] is Ellipsis:
        kinds = [part for part in get_args(items[0]) if isinstance(part, Kind)]
        return f"a list; each entry {kinds[0].expected}" if kinds else "a list"
    return expected_of(field)


def _default(value: Any) -> str:
    if value is None or value in ((), {}) or isinstance(value, BaseModel):
        return "none" if not isinstance(value, BaseModel) else "its defaults"
    return f"`{str(value).lower()}`" if isinstance(value, bool) else f"`{value}`"


if __name__ == "__main__":
    print(configuration_page(), end="")
