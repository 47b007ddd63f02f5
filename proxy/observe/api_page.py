"""docs/reference/api.md and docs/reference/openapi.json, made from the endpoints.

python -m kafka_throttle.proxy.observe.api_page > docs/reference/api.md
python -m kafka_throttle.proxy.observe.api_page --json > docs/reference/openapi.json
"""

import json
import sys
from typing import Any

from kafka_throttle.proxy.observe.api import ENDPOINTS
from kafka_throttle.proxy.observe.openapi import ERRORS, openapi

_INTRODUCTION = """# The JSON API

Made from the endpoints in `proxy/observe/api.py`; a test keeps it in step. The fields of the responses are in
[openapi.json](openapi.json), which a running proxy has at `/api/v1/openapi.json`, too. Where the admin listener is, and
who may ask it: [operations](operations.md#who-may-ask-the-http-listeners).

```
curl -H "Authorization: Bearer $(cat read.token)" 'http://127.0.0.1:9405/api/v1/throttled?sort=rate'
```

Unknown parameters are errors. Fields may be added to responses later.
"""


def api_page() -> str:
    """The page as Markdown."""
    document = openapi(ENDPOINTS)
    sections = [
        _section(path, method, operation)
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
    ]
    rows = "".join(f"| {status} | {meaning} |\n" for status, (_, meaning) in ERRORS.items())
    errors = f'\n## Errors\n\nJSON, `{{"error": "..."}}`.\n\n| status | meaning |\n|---|---|\n{rows}'
    return "".join([_INTRODUCTION, *sections, errors])


def _section(path: str, method: str, operation: dict[str, Any]) -> str:
    [media] = operation["responses"]["200"]["content"].values()
    forms = [schema["$ref"].rpartition("/")[2] for schema in media["schema"].get("anyOf", [media["schema"]])]
    about = " ".join(filter(None, (operation["summary"], operation.get("description"))))
    needs = f"Needs the right to {operation['x-right']}. Returns {' or '.join(f'`{form}`' for form in forms)}."
    lines = [f"\n## {method.upper()} {path}\n\n{about}\n\n{needs}\n"]
    if operation["parameters"]:
        lines.append("\n| parameter | takes | default | meaning |\n|---|---|---|---|\n")
        lines += [_row(parameter) for parameter in operation["parameters"]]
    return "".join(lines)


def _row(parameter: dict[str, Any]) -> str:
    schema = parameter.get("schema", {"type": "object"})
    default = f"`{json.dumps(schema['default'])}`" if "default" in schema else "none"
    return f"| `{parameter['name']}` | {_takes(schema)} | {default} | {parameter['description']} |\n"


def _takes(schema: dict[str, Any]) -> str:
    if "enum" in schema:
        return ", ".join(f"`{name}`" for name in schema["enum"])
    if schema["type"] == "object":
        return "a JSON object"
    if schema["type"] == "integer":
        return f"{schema['minimum']} to {schema['maximum']}"
    return "an IP address" if "anyOf" in schema else "text"


if __name__ == "__main__":
    print(json.dumps(openapi(ENDPOINTS), indent=1) if sys.argv[1:] == ["--json"] else api_page().rstrip())
