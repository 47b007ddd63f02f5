"""Makes protocol/api_table.py and protocol/api_key.py from the message schemas in kafka-clients jars.

    make_api_table.py --out protocol kafka-clients-4.3.1.jar kafka-clients-3.9.2.jar

The newest jar comes first: for every (API, version) the first jar that has it supplies the layout, the older ones
add the versions that newer Kafkas dropped. The same jars give the same bytes.
"""

import argparse
import json
import re
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

SCHEMAS = "common/message/"
NEVER = 32767
LINE_LENGTH = 110

# The responses with addresses that clients will dial. One that a new Kafka adds must be looked at first.
ADDRESSED = {
    "Produce",
    "Fetch",
    "Metadata",
    "FindCoordinator",
    "DescribeCluster",
    "ShareFetch",
    "ShareAcknowledge",
}

# Responses with a host and a port that are left alone, and why.
NOT_ADDRESSED = {
    "BeginQuorumEpoch": "between controllers",
    "EndQuorumEpoch": "between controllers",
    "FetchSnapshot": "between controllers",
    "UpdateRaftVoter": "between controllers",
    "Vote": "between controllers",
    "DescribeQuorum": "listeners of controllers, for people to read",
    "StreamsGroupHeartbeat": "user_endpoint: addresses of applications, not of brokers",
    "StreamsGroupDescribe": "user_endpoint: addresses of applications, not of brokers",
}

# What concerns us stands at the end of these: the walk goes to the end and can be held against the frame's size.
WALKED_TO_THE_END = {"Produce", "Fetch", "ShareFetch", "ShareAcknowledge"}

# Kafka's own generator has these two in code, not in the schemas (ApiMessageTypeGenerator).
CLIENT_ID_SINCE = {"ControlledShutdown": 1}
UNTAGGED_RESPONSE_HEADER = {"ApiVersions"}

LISTENERS = ("broker", "controller", "zkBroker")

FIXED_BYTES = {
    "bool": 1,
    "int8": 1,
    "int16": 2,
    "uint16": 2,
    "int32": 4,
    "uint32": 4,
    "int64": 8,
    "float64": 8,
    "uuid": 16,
}
VARIABLE = {"string": "STRING", "bytes": "BYTES", "records": "BYTES"}

Json = dict[str, Any]
Op = tuple[Any, ...]
Shape = tuple[Op, ...]


@dataclass(frozen=True)
class Versions:
    """A range as schemas write it: "3+", "0-12", "7", "none"."""

    lowest: int
    highest: int

    @classmethod
    def parse(cls, text: str) -> "Versions":
        """The range that `text` names; an empty one for "none"."""
        if text == "none":
            return cls(0, -1)
        if text.endswith("+"):
            return cls(int(text[:-1]), NEVER)
        lowest, _, highest = text.partition("-")
        return cls(int(lowest), int(highest or lowest))

    def __contains__(self, version: int) -> bool:
        return self.lowest <= version <= self.highest


@dataclass
class Message:
    """The schema of a request or a response."""

    schema: Json
    structs: dict[str, list[Json]]

    @classmethod
    def of(cls, schema: Json) -> "Message":
        """A message with the structs that its fields define or share, by name."""
        structs: dict[str, list[Json]] = {s["name"]: s["fields"] for s in schema.get("commonStructs", [])}

        def collect(fields: list[Json]) -> None:
            for each in fields:
                if "fields" in each:
                    structs[struct_of(each)] = each["fields"]
                    collect(each["fields"])

        collect(schema["fields"])
        for fields in list(structs.values()):
            collect(fields)
        return cls(schema, structs)

    @property
    def flexible(self) -> Versions:
        """The versions with compact types and tagged fields."""
        return Versions.parse(self.schema["flexibleVersions"])

    def fields_of(self, struct: str) -> list[Json]:
        """The fields of a struct, or of the message itself for ""."""
        fields: list[Json] = self.structs[struct] if struct else self.schema["fields"]
        return fields


@dataclass
class Api:
    """One API: the messages of the newest jar that has it, and the response's schema for every version."""

    key: int
    name: str
    flexible: Versions
    listeners: set[str]
    responses: dict[int, Message] = field(default_factory=dict)


def struct_of(a_field: Json) -> str:
    """The name of a field's type without the brackets of an array."""
    return str(a_field["type"]).removeprefix("[]")


def without_comments(text: str) -> str:
    """JSON from JSON with // comments."""
    return re.sub(r'("(?:\\.|[^"\\])*")|//[^\n]*', lambda match: match[1] or "", text)


def read_jar(jar: Path) -> tuple[str, dict[str, Json]]:
    """The Kafka version of a jar, and its message schemas by name."""
    with zipfile.ZipFile(jar) as archive:
        properties = archive.read("kafka/kafka-version.properties").decode()
        version = re.search(r"^version=(\S+)", properties, re.MULTILINE)
        assert version, f"{jar}: no version"
        names = [name for name in archive.namelist() if name.startswith(SCHEMAS) and name.endswith(".json")]
        schemas = [json.loads(without_comments(archive.read(name).decode())) for name in names]
    return version[1], {schema["name"]: schema for schema in schemas}


def stable_versions(request: Json) -> range:
    """The versions that a broker serves without `unstable.api.versions.enable`."""
    versions = Versions.parse(request["validVersions"])
    return range(versions.lowest, versions.highest + 1 - bool(request.get("latestVersionUnstable")))


def merge_jars(jars: list[dict[str, Json]]) -> list[Api]:
    """The APIs of all jars by key; of two jars with the same version the first one's layout counts."""
    apis: dict[int, Api] = {}
    for schemas in jars:
        requests = [s for s in schemas.values() if s["type"] == "request" and stable_versions(s)]
        for request in sorted(requests, key=lambda s: int(s["apiKey"])):
            name = request["name"].removesuffix("Request")
            response = Message.of(schemas[name + "Response"])
            flexible = Message.of(request).flexible
            api = apis.setdefault(request["apiKey"], Api(request["apiKey"], name, flexible, set()))
            assert flexible == response.flexible == api.flexible, f"{name}: flexible versions differ"
            api.listeners.update(request["listeners"])
            for version in stable_versions(request):
                api.responses.setdefault(version, response)
    for api in apis.values():
        versions = sorted(api.responses)
        assert versions == list(range(versions[0], versions[-1] + 1)), f"{api.name}: a gap in {versions}"
        assert api.listeners <= set(LISTENERS), f"{api.name}: listeners {api.listeners}"
    return [apis[key] for key in sorted(apis)]


class Walker:
    """Compiles one version of one response to a shape. `struct_names` learns the struct of each nested shape."""

    def __init__(self, api: Api, version: int, struct_names: dict[Shape, str]) -> None:
        self.message = api.responses[version]
        self.version = version
        self.compact = "COMPACT_" if version in api.flexible else ""
        self.addressed = api.name in ADDRESSED
        self.struct_names = struct_names

    def shape(self, struct: str = "") -> Shape:
        """The shape of a struct, or of the whole body."""
        ops: list[Op] = []
        tagged: list[tuple[int, Shape]] = []
        fields = [f for f in self.message.fields_of(struct) if self.version in Versions.parse(f["versions"])]
        untagged = []
        for each in fields:
            if self.version not in Versions.parse(each.get("taggedVersions", "none")):
                untagged.append(each)
                continue
            op_of_tag = self.field_ops(each)
            if has_op(op_of_tag, "ENDPOINT", "COMPACT_ENDPOINT"):
                tagged.append((each["tag"], op_of_tag))
        while untagged:
            if self.addressed and is_endpoint(untagged[:3]):
                ops.append((self.compact + "ENDPOINT",))
                del untagged[:3]
            elif self.addressed and is_led(untagged[:3]):
                ops.append(("LEADER",))
                del untagged[:3]
            else:
                ops += self.field_ops(untagged.pop(0), top_level=not struct)
        if self.compact:
            ops.append(("TAGS", tuple(tagged)))
        return merged(ops)

    def field_ops(self, a_field: Json, top_level: bool = False) -> Shape:
        """The ops of one field."""
        kind = a_field["type"]
        assert "flexibleVersions" not in a_field, f"{a_field['name']}: a field with its own flexible versions"
        if top_level and (a_field["name"], kind) == ("ThrottleTimeMs", "int32"):
            return (("THROTTLE",),)
        if top_level and self.addressed and (a_field["name"], kind) == ("EndpointType", "int8"):
            return (("ENDPOINT_TYPE",),)
        if top_level and self.addressed and (a_field["name"], kind) == ("ControllerId", "int32"):
            return (("CONTROLLER",),)
        if kind.startswith("[]"):
            return ((self.compact + "ARRAY", self.element(kind[2:])),)
        if kind in FIXED_BYTES or kind in VARIABLE:
            return (self.primitive(kind),)
        shape = self.element(kind)
        nullable = self.version in Versions.parse(a_field.get("nullableVersions", "none"))
        return (("NULLABLE", shape),) if nullable else shape

    def element(self, kind: str) -> Shape:
        """The shape of a type that is nested in another one."""
        if kind in FIXED_BYTES or kind in VARIABLE:
            return (self.primitive(kind),)
        shape = self.shape(kind)
        self.struct_names.setdefault(shape, kind)
        return shape

    def primitive(self, kind: str) -> Op:
        """The op of a primitive type."""
        return ("FIXED", FIXED_BYTES[kind]) if kind in FIXED_BYTES else (self.compact + VARIABLE[kind],)


def is_endpoint(fields: list[Json]) -> bool:
    """True for a node's id, host and port."""
    return [(f["name"].replace("Broker", "Node"), f["type"]) for f in fields] == [
        ("NodeId", "int32"),
        ("Host", "string"),
        ("Port", "int32"),
    ]


def is_led(fields: list[Json]) -> bool:
    """True for the error, the index and the leader of a partition, which are those of Metadata only."""
    return [(f["name"], f["type"]) for f in fields] == [
        ("ErrorCode", "int16"),
        ("PartitionIndex", "int32"),
        ("LeaderId", "int32"),
    ]


def merged(ops: list[Op]) -> Shape:
    """`ops` with neighbouring fixed-size fields made one."""
    shape: list[Op] = []
    for op in ops:
        if op[0] == shape_end(shape) == "FIXED":
            shape[-1] = ("FIXED", shape[-1][1] + op[1])
        else:
            shape.append(op)
    return tuple(shape)


def shape_end(shape: list[Op]) -> str:
    """The code of the last op."""
    return str(shape[-1][0]) if shape else ""


def has_op(shape: Shape, *codes: str) -> bool:
    """True if one of the op codes occurs in a shape, however deep."""
    return any(
        op[0] in codes
        or (op[0] == "TAGS" and any(has_op(tagged, *codes) for _, tagged in op[1]))
        or (isinstance(op[-1], tuple) and op[0] != "TAGS" and has_op(op[1], *codes))
        for op in shape
    )


def ended_early(shape: Shape) -> Shape:
    """A shape without what follows the last op of interest."""
    of_interest = [has_op((op,), "THROTTLE", "ENDPOINT", "COMPACT_ENDPOINT") for op in shape]
    kept = len(shape) - of_interest[::-1].index(True)
    return shape if kept == len(shape) else (*shape[:kept], ("END",))


def behind_nodes(shape: Shape) -> Shape:
    """What follows the array of nodes in a shape of Metadata."""
    [nodes] = [i for i, op in enumerate(shape) if has_op((op,), "ENDPOINT", "COMPACT_ENDPOINT")]
    return shape[nodes + 1 :]


def throttle_offset(shape: Shape) -> int | None:
    """Where the throttle time stands in a body of this shape: -1 if that varies, None if there is none."""
    if not has_op(shape, "THROTTLE"):
        return None
    if shape[0] == ("THROTTLE",):
        return 0
    return int(shape[0][1]) if shape[0][0] == "FIXED" and shape[1] == ("THROTTLE",) else -1


def check_addresses(apis: list[Api]) -> None:
    """Raise AssertionError unless every response with a host and a port is known to us."""
    found = {api.name for api in apis if any(names_an_address(message) for message in api.responses.values())}
    assert found == ADDRESSED | NOT_ADDRESSED.keys(), (
        f"responses with addresses have changed: new {found - ADDRESSED - NOT_ADDRESSED.keys()}, "
        f"gone {(ADDRESSED | NOT_ADDRESSED.keys()) - found}"
    )


def names_an_address(message: Message) -> bool:
    """True if the message or one of its structs has a host and a port."""
    field_lists = [message.schema["fields"], *message.structs.values()]
    return any({"Host", "Port"} <= {each["name"] for each in fields} for fields in field_lists)


def in_upper_case(name: str) -> str:
    """PartitionData -> PARTITION_DATA."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).upper()


class Table:
    """The text of the table. Every shape is defined once, under the name of the first version that has it."""

    def __init__(self) -> None:
        self.definitions: list[str] = []
        self.rows: list[str] = []
        self._constants: dict[Shape, str] = {}

    def add(self, api: Api) -> None:
        """Add the row of an API and the definitions that it needs."""
        versions = sorted(api.responses)
        names: dict[Shape, str] = {}
        bodies = {version: Walker(api, version, names).shape() for version in versions}
        if api.name in ADDRESSED:
            assert has_op(bodies[versions[-1]], "ENDPOINT", "COMPACT_ENDPOINT"), f"{api.name}: no endpoint"
        offsets = {v: offset for v, shape in bodies.items() if (offset := throttle_offset(shape)) is not None}
        assert not offsets or list(offsets) == list(range(min(offsets), versions[-1] + 1)), f"{api.name}: gap"
        assert len(set(offsets.values())) <= 1, f"{api.name}: throttle time moves: {offsets}"
        offset = min(offsets.values(), default=-1)
        shapes, rests = [], []
        for v, shape in bodies.items():
            if has_op(shape, "LEADER"):
                rests.append(self.constant(behind_nodes(shape), f"_{in_upper_case(api.name)}_{v}_REST", names))
            wanted = has_op(shape, "ENDPOINT", "COMPACT_ENDPOINT") or (v in offsets and offset < 0)
            if wanted and api.name not in WALKED_TO_THE_END:
                shape = ended_early(shape)
            shapes.append(self.constant(shape, f"_{in_upper_case(api.name)}_{v}", names) if wanted else "None")
        listeners = [listener for listener in LISTENERS if listener in api.listeners]
        self.rows += [
            f"    {api.key}: Api(",
            f'        {api.key}, "{api.name}", {versions[0]}, {versions[-1]},',
            f"        first_flexible={since(api.flexible.lowest if api.flexible.highest >= 0 else NEVER)},",
            f"        throttle_since={since(min(offsets, default=NEVER))}, throttle_offset={offset},",
            f"        listeners={listeners_text(listeners)},",
            *shapes_lines("shapes", shapes),
            *(shapes_lines("rests", rests) if rests else ()),
        ]
        if api.name in CLIENT_ID_SINCE:
            self.rows.append(f"        client_id_since={CLIENT_ID_SINCE[api.name]},")
        if api.name in UNTAGGED_RESPONSE_HEADER:
            self.rows.append("        tagged_response_header=False,")
        self.rows.append("    ),")

    def constant(self, shape: Shape, name: str, names: dict[Shape, str]) -> str:
        """The name under which a shape is defined: `name` if it is new. `names`: the struct of nested shapes."""
        if shape not in self._constants:
            ops = [self.op_text(op, name, names) for op in shape]
            assert name not in self._constants.values(), f"{name}: two shapes of this name"
            self._constants[shape] = name
            line = f"{name}: Shape = ({', '.join(ops)}{',' if len(ops) == 1 else ''})"
            self.definitions += (
                [line] if len(line) <= LINE_LENGTH else [f"{name}: Shape = (", *(f"    {op}," for op in ops), ")"]
            )
        return self._constants[shape]

    def op_text(self, op: Op, name: str, names: dict[Shape, str]) -> str:
        """An op of the shape `name` as Python."""
        code = op[0]
        if code == "TAGS":
            tags = ", ".join(f"{tag}: {self.nested_text(shape, name, names)}" for tag, shape in op[1])
            return f"(TAGS, {{{tags}}})"
        if len(op) == 1:
            return f"({code},)"
        return f"({code}, {op[1]})" if code == "FIXED" else f"({code}, {self.nested_text(op[1], name, names)})"

    def nested_text(self, shape: Shape, name: str, names: dict[Shape, str]) -> str:
        """A nested shape as Python: for a struct, a constant named for API, version and struct; else in place."""
        if shape in names:
            message = re.match(r"_[A-Z_]+_\d+", name)
            assert message
            return self.constant(shape, f"{message[0]}_{in_upper_case(names[shape])}", names)
        return "(" + "".join(f"{self.op_text(op, name, names)}, " for op in shape).rstrip() + ")"


def listeners_text(listeners: list[str]) -> str:
    """A tuple of strings as Python."""
    return "(" + ", ".join(f'"{listener}"' for listener in listeners) + ("," if len(listeners) == 1 else "") + ")"


def since(version: int) -> str:
    """A first version as Python."""
    return "NEVER" if version == NEVER else str(version)


def shapes_lines(argument: str, names: list[str]) -> list[str]:
    """An argument that is a tuple of shapes as Python, repetitions multiplied."""
    counted = [(name, len(list(same))) for name, same in groupby(names)]
    runs = [f"({name},)" + (f" * {count}" if count > 1 else "") for name, count in counted]
    line = f"        {argument}={' + '.join(runs)},"
    if len(line) <= LINE_LENGTH:
        return [line]
    return [
        f"        {argument}=(",
        f"            {runs[0]}",
        *(f"            + {run}" for run in runs[1:]),
        "        ),",
    ]


def render(kafka_versions: list[str], apis: list[Api]) -> Iterator[str]:
    """The lines of the generated module."""
    table = Table()
    for api in apis:
        table.add(api)
    definitions = "\n".join(table.definitions)
    imported = sorted(
        {"Api", "Shape", "NEVER"} | set(re.findall(r"\(([A-Z_]+),", definitions)),
        key=lambda name: (not name.isupper(), name),
    )
    yield "# Generated by deploy/make_api_table.py; do not edit. `make table` makes it anew."
    yield f"# From the message schemas of Kafka {', '.join(kafka_versions)}: the first that has a version"
    yield "# supplies its layout. Versions that brokers do not serve by default (latestVersionUnstable) are not in it."
    yield '"""Every API: versions, header rules, place of the throttle time and, where needed, response shapes."""'
    yield ""
    yield "from collections.abc import Mapping"
    yield ""
    yield "from kafka_throttle.protocol.api import (" + "".join(f"\n    {name}," for name in imported) + "\n)"
    yield ""
    yield definitions
    yield ""
    yield "APIS: Mapping[int, Api] = {"
    yield from table.rows
    yield "}"


def render_keys(apis: list[Api]) -> Iterator[str]:
    """The lines of the module of API keys."""
    yield "# Generated by deploy/make_api_table.py; do not edit. `make table` makes it anew."
    yield '"""The key of every API, by the name that Kafka has for it.'
    yield ""
    yield "Plain integers that modules import by name, not an IntEnum: keys are compared for each request, and"
    yield "`ApiKey.PRODUCE` takes one bytecode more than `PRODUCE`."
    yield '"""'
    yield ""
    yield "from typing import Final"
    yield ""
    for api in apis:
        yield f"{in_upper_case(api.name)}: Final = {api.key}"


def main() -> None:
    """Write the table and the keys."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("jars", type=Path, nargs="+", metavar="kafka-clients.jar", help="newest first")
    arguments = parser.parse_args()
    versions_and_schemas = [read_jar(jar) for jar in arguments.jars]
    apis = merge_jars([schemas for _, schemas in versions_and_schemas])
    check_addresses(apis)
    versions = [version for version, _ in versions_and_schemas]
    for name, lines in (("api_table.py", render(versions, apis)), ("api_key.py", render_keys(apis))):
        (arguments.out / name).write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
