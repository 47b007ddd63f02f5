"""Makes the drawings of the documentation, the SVG files beside this one: python docs/drawings/draw.py"""

from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import Final

WIDTH: Final = 760
TEXT: Final = 14
"""Of all text, in px. A page shows a drawing at most as wide as itself, so text becomes smaller, never larger."""
LINE: Final = 20

# What has a colour, in the light and in the dark scheme. Notes and lines stand on the page itself, and can be seen on
# either background, because a page may be dark where the system is not.
COLOURS: Final = (
    ("text", "fill:#1b2330", "fill:#e8edf3"),
    (".note", "fill:#566070", "fill:#8f99a7"),
    (".line", "stroke:#6b7685", "stroke:#8a95a5"),
    (".head", "fill:#6b7685", "fill:#8a95a5"),
    (".group", "stroke:#9aa4b1", "stroke:#5c6674"),
    (".client", "fill:#edf0f4;stroke:#7d8896", "fill:#272e38;stroke:#8a95a5"),
    (".proxy", "fill:#dcebff;stroke:#2468c4", "fill:#13335c;stroke:#6aa9ff"),
    (".node", "fill:#def3e4;stroke:#2b8a47", "fill:#12391f;stroke:#4cc36f"),
    (".store", "fill:#fff3cf;stroke:#a87600", "fill:#40300a;stroke:#dba52c"),
    (".mute", "fill:#ffdfda;stroke:#c62f2f", "fill:#571c1c;stroke:#ff7b72"),
)


class Drawing:
    """Boxes, text and arrows, in px from the top left corner."""

    def __init__(self, height: int, title: str, desc: str) -> None:
        self._height = height
        self._title, self._desc = title, desc
        self._parts: list[str] = []

    def text(self, x: float, y: float, *lines: str, anchor: str = "start", note: bool = True, bold: int = 0) -> None:
        """Lines, the first with its middle at `y`; the first ones are bold. A note stands on the page, not on a box."""
        for number, line in enumerate(lines):
            attributes = f'x="{x:g}" y="{y + number * LINE + TEXT * 0.35:g}" text-anchor="{anchor}"'
            attributes += ' class="note"' * note + ' font-weight="600"' * (number < bold)
            self._parts.append(f"<text {attributes}>{escape(line, quote=False)}</text>")

    def box(self, kind: str, x: float, y: float, width: float, height: float, *lines: str, bold: int = 1) -> None:
        """A box of a class, with lines in its middle."""
        corner = min(6, width / 4)
        self._parts.append(f'<rect class="{kind}" x="{x}" y="{y}" width="{width}" height="{height}" rx="{corner:g}"/>')
        first = y + height / 2 - (len(lines) - 1) * LINE / 2
        self.text(x + width / 2, first, *lines, anchor="middle", note=False, bold=bold)

    def group(self, x: float, y: float, width: float, height: float, name: str) -> None:
        """A frame around boxes, with its name inside at the top."""
        self.box("group", x, y, width, height)
        self.text(x + width / 2, y + 16, name, anchor="middle", bold=1)

    def arrow(self, *points: tuple[float, float], both: bool = False, dashed: bool = False, head: bool = True) -> None:
        """A line through points, with a head at its end, or at both ends, or none."""
        path = " ".join(f"{x:g},{y:g}" for x, y in points)
        looks = ' marker-end="url(#head)"' * head + ' marker-start="url(#head)"' * both
        looks += ' stroke-dasharray="5 4"' * dashed
        self._parts.append(f'<polyline class="line" points="{path}"{looks}/>')

    def svg(self) -> str:
        """The file."""
        light = "\n".join(f"{name}{{{colours}}}" for name, colours, _ in COLOURS)
        dark = "\n".join(f"{name}{{{colours}}}" for name, _, colours in COLOURS)
        parts = "\n".join(self._parts)
        return f"""\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {self._height}" width="{WIDTH}" height="{self._height}"
 font-size="{TEXT}" role="img" aria-labelledby="title desc">
<title id="title">{escape(self._title)}</title>
<desc id="desc">{escape(self._desc)}</desc>
<style>
text{{font-family:system-ui,sans-serif}}rect{{stroke-width:1.5}}.line{{fill:none;stroke-width:1.5}}
.group{{fill:none;stroke-dasharray:2 4}}
{light}
@media (prefers-color-scheme:dark){{
{dark}
}}
</style>
<marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" orient="auto-start-reverse">
<path class="head" d="M0 0L10 5L0 10z"/></marker>
{parts}
</svg>
"""


def where() -> Drawing:
    """Where the proxy stands, and what is beside it."""
    drawing = Drawing(
        425,
        "Where kafka-throttle stands",
        "Clients connect to kafka-throttle as to Kafka, and it connects to the nodes of the cluster. Responses carry "
        "throttle_time_ms. Quotas come from a YAML file, ZooKeeper, a topic or the cluster. Prometheus reads "
        "metrics. Usage records go to the pipeline, which reports, simulates and recommends; plan and apply change "
        "quotas.",
    )
    drawing.box("client", 10, 50, 120, 120, "Clients", "any language,", "unchanged")
    drawing.arrow((130, 85), (275, 85))
    drawing.text(202, 70, "requests", anchor="middle")
    drawing.arrow((275, 125), (130, 125))
    drawing.text(202, 141, "responses, with", "throttle_time_ms", anchor="middle")
    lines = ("who? user, client-id", "how much? Kafka's arithmetic", "too much? a mute (KIP-219)")
    drawing.box("proxy", 275, 20, 250, 180, "kafka-throttle", *lines)
    drawing.group(610, 20, 140, 180, "Kafka cluster")
    for number in range(3):
        y = 52 + number * 47
        drawing.box("node", 630, y, 100, 38, f"node {number}")
        drawing.arrow((525, y + 19), (630, y + 19), both=True)
    drawing.box("store", 10, 275, 165, 110, "Quotas", "from a YAML file,", "ZooKeeper, a topic,", "or the cluster")
    drawing.arrow((92, 275), (92, 240), (310, 240), (310, 200))
    drawing.text(201, 227, "changed live", anchor="middle")
    drawing.box("client", 290, 300, 110, 60, "Prometheus")
    drawing.arrow((345, 200), (345, 300))
    drawing.text(355, 258, "metrics")
    drawing.box("store", 415, 300, 135, 60, "Usage records", "files or a topic")
    drawing.arrow((482, 200), (482, 300))
    drawing.box("proxy", 610, 275, 140, 110, "Pipeline", "report, simulate,", "recommend")
    drawing.arrow((550, 330), (610, 330))
    drawing.arrow((680, 385), (680, 410), (92, 410), (92, 385))
    drawing.text(386, 397, "plan, apply", anchor="middle")
    return drawing


def ports() -> Drawing:
    """A port for each node, and what a Metadata response says."""
    drawing = Drawing(
        400,
        "One port to bootstrap, and one for each node",
        "Behind port 19092 of kafka.example.com, the proxy, is any node; behind 19093 node 1, 19094 node 2, 19095 "
        "node 3. A node's Metadata response says that node 1 is at kafka-1.internal:9092; what the client gets says "
        "kafka.example.com:19093.",
    )
    drawing.box("client", 10, 10, 120, 250, "Client")
    drawing.group(230, 10, 250, 250, "Proxy: kafka.example.com")
    drawing.group(590, 10, 160, 250, "Kafka cluster")
    for number, node in enumerate(("any node", "node 1", "node 2", "node 3")):
        y = 45 + number * 52
        drawing.box("proxy", 255, y, 200, 40, f"{19092 + number}: {node if number else 'bootstrap'}")
        drawing.box("node" if number else "group", 615, y, 110, 40, node)
        drawing.arrow((130, y + 20), (255, y + 20))
        drawing.arrow((455, y + 20), (615, y + 20))
    drawing.text(10, 295, "A Metadata response on its way to the client:")
    drawing.box("node", 495, 320, 255, 65, "as the node sends it", "node 1: kafka-1.internal:9092")
    drawing.box("proxy", 10, 320, 275, 65, "as the client gets it", "node 1: kafka.example.com:19093")
    drawing.arrow((495, 352), (285, 352))
    drawing.text(390, 337, "address replaced", anchor="middle")
    return drawing


def mute() -> Drawing:
    """A produce over its quota, in time."""
    drawing = Drawing(
        400,
        "A produce that is over its quota by 2 seconds",
        "The proxy sends the Produce on to the node at once, and the response to the client, with throttle_time_ms. "
        "For 2 s it reads nothing from the connection: a Produce that the client sends meanwhile waits. Then it is "
        "sent on, too.",
    )
    client, proxy, node = 140, 420, 680
    for x, kind, name in ((client, "client", "Client"), (proxy, "proxy", "Proxy"), (node, "node", "Node")):
        drawing.box(kind, x - 60, 10, 120, 36, name)
        drawing.arrow((x, 46), (x, 395), head=False, dashed=True)
    begin, end = 95, 355
    drawing.box("mute", proxy - 9, begin, 18, end - begin)
    for y, time in ((begin, "0 ms"), (155, "5 ms"), (end, "2000 ms")):
        drawing.text(5, y, time)
    drawing.arrow((client, begin), (proxy - 9, begin))
    drawing.text(275, begin - 15, "Produce", anchor="middle")
    drawing.arrow((proxy + 9, begin), (node, begin))
    drawing.text(550, begin - 15, "sent on at once", anchor="middle")
    drawing.arrow((node, 150), (proxy + 9, 150))
    drawing.text(550, 135, "response", anchor="middle")
    drawing.arrow((proxy - 9, 155), (client, 155))
    drawing.text(275, 140, "response at once:", anchor="middle")
    drawing.text(275, 171, "throttle_time_ms = 1995", anchor="middle")
    drawing.text(445, 215, "muted for 2 s:", "the proxy reads nothing", "from this connection", bold=1)
    drawing.arrow((client, 250), (proxy - 9, 250))
    drawing.text(275, 235, "next Produce, too early", anchor="middle")
    drawing.text(275, 266, "waits unread", anchor="middle", bold=1)
    drawing.text(400, end, "reads again", anchor="end")
    drawing.arrow((proxy + 9, end), (node, end))
    drawing.text(550, end - 15, "the next Produce", anchor="middle")
    return drawing


def levels() -> Drawing:
    """The eight levels, with an example."""
    drawing = Drawing(
        400,
        "The eight levels of Kafka's quotas",
        "From the top: user and client-id; user and default client-id; user; default user and client-id; default "
        "user and default client-id; default user; client-id; default client-id. The first with a quota of the type "
        "applies: in the example level 3, not level 6.",
    )
    rows = (
        ("alice", "web", "this pair", "no quota"),
        ("alice", "default", "each client-id of alice", "no quota"),
        ("alice", "", "all client-ids of alice", "1 MiB/s: applies"),
        ("default", "web", "each user with web", ""),
        ("default", "default", "each pair", ""),
        ("default", "", "each user", "512 KiB/s: not used"),
        ("", "web", "all users with web", ""),
        ("", "default", "each client-id", ""),
    )
    drawing.text(10, 15, "User alice with client-id web: for each type, the first level that has a quota applies.")
    for x, head in ((110, "user"), (230, "client-id")):
        drawing.text(x, 50, head, anchor="middle", bold=1)
    drawing.text(305, 50, "one limit for", bold=1)
    drawing.text(530, 50, "example: produce", bold=1)
    for number, (user, client_id, whose, example) in enumerate(rows, 1):
        y = 85 + (number - 1) * 40
        drawing.text(38, y, str(number), anchor="middle", bold=1)
        for x, name in ((60, user), (180, client_id)):
            if name:
                drawing.box("client" if name == "default" else "proxy", x, y - 16, 100, 32, name)
            else:
                drawing.text(x + 50, y, "any", anchor="middle")
        drawing.text(305, y, whose)
        if example.endswith("applies"):
            drawing.box("node", 520, y - 16, 150, 32, example)
        elif example:
            drawing.text(530, y, example)
    drawing.arrow((15, 70), (15, 165), (30, 165))
    return drawing


def fleet() -> Drawing:
    """Proxies that divide limits."""
    drawing = Drawing(
        430,
        "A fleet of three proxies divides a limit",
        "Clients reach three proxies by a load balancer. Each proxy writes its claims into a topic or ZooKeeper, and "
        "reads those of the others. Of the limit of alice, proxy-a claims 60 %, proxy-b 38 %; 2 % are set aside for "
        "proxies that do not claim it, such as proxy-c.",
    )
    drawing.box("client", 10, 69, 100, 100, "Clients")
    drawing.box("client", 170, 69, 110, 100, "Load", "balancer", bold=2)
    drawing.arrow((110, 119), (170, 119))
    drawing.group(340, 10, 190, 210, "fleet")
    drawing.box("node", 620, 69, 130, 100, "Kafka cluster")
    for number, name in enumerate(("proxy-a", "proxy-b", "proxy-c")):
        y = 40 + number * 58
        drawing.box("proxy", 370, y, 130, 42, name)
        drawing.arrow((280, 95 + number * 24), (370, y + 21))
        drawing.arrow((500, y + 21), (620, 95 + number * 24))
    drawing.box("store", 340, 270, 190, 50, "Claims", "in a topic or ZooKeeper")
    drawing.arrow((435, 220), (435, 270), both=True)
    drawing.text(450, 245, "each writes its own, reads all")
    drawing.text(10, 345, "The limit of user alice at a node:")
    drawing.box("proxy", 10, 362, 444, 36, "proxy-a claims 60 %")
    drawing.box("proxy", 454, 362, 281, 36, "proxy-b claims 38 %")
    drawing.box("store", 735, 362, 15, 36)
    drawing.text(750, 415, "2 % set aside for proxies that do not claim it: here proxy-c", anchor="end")
    return drawing


def pipeline() -> Drawing:
    """From usage records to quotas."""
    drawing = Drawing(
        350,
        "From usage records to quotas",
        "Proxies write usage records to files or a topic; ingest puts them into a table; report, simulate and "
        "recommend read it. plan compares what recommend wrote with the quotas in force; a person reads the plan; "
        "apply changes quotas.",
    )
    drawing.box("client", 10, 80, 100, 60, "Proxies")
    drawing.box("store", 160, 80, 140, 60, "Usage records", "files or a topic")
    drawing.box("proxy", 350, 80, 90, 60, "ingest")
    drawing.box("store", 490, 80, 90, 60, "Table")
    drawing.arrow((110, 110), (160, 110))
    drawing.arrow((300, 110), (350, 110))
    drawing.arrow((440, 110), (490, 110))
    drawing.arrow((580, 110), (610, 110), head=False)
    for number, name in enumerate(("report", "simulate", "recommend")):
        y = 15 + number * 72
        drawing.box("proxy", 640, y, 110, 46, name)
        drawing.arrow((610, 110), (610, y + 23), (640, y + 23))
    drawing.box("store", 620, 265, 130, 60, "Quotas", "in a file")
    drawing.arrow((695, 205), (695, 265))
    drawing.box("proxy", 490, 265, 80, 60, "plan")
    drawing.arrow((620, 295), (570, 295))
    drawing.box("store", 330, 265, 110, 60, "plan.json", "read it first")
    drawing.arrow((490, 295), (440, 295))
    drawing.box("proxy", 190, 265, 90, 60, "apply")
    drawing.arrow((330, 295), (280, 295))
    drawing.arrow((190, 295), (60, 295), (60, 140))
    drawing.text(70, 195, "quotas, changed live")
    drawing.text(590, 240, "blue: commands of kafka-throttle usage", anchor="end")
    return drawing


DRAWINGS: Final[tuple[Callable[[], Drawing], ...]] = (where, ports, mute, levels, fleet, pipeline)


def drawings() -> dict[str, str]:
    """The content of each file."""
    return {f"{draw.__name__}.svg": draw().svg() for draw in DRAWINGS}


if __name__ == "__main__":
    for name, content in drawings().items():
        Path(__file__).with_name(name).write_text(content, encoding="utf-8")
