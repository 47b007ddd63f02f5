"""What is measured, how `rig` is run for it, and what this project's proxy should reach there beside HAProxy."""

from dataclasses import dataclass

WITHOUT_QUOTA = "kafka-throttle, no quota"
"""The name of this project's proxy where nothing is bounded."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """A ratio to HAProxy with its default buffers: `figure` is its key in figures.summary.

    `goal` is the least that should be reached, or the most when `less_is_better`; None: there is no goal. With `of` it
    is about that candidate, and stands beside ours.
    """

    figure: str
    title: str
    goal: float | None = None
    less_is_better: bool = False
    of: str = ""

    def is_met(self, ratio: float) -> bool | None:
        """Whether a ratio reaches the goal; None without a goal."""
        if self.goal is None:
            return None
        return ratio <= self.goal if self.less_is_better else ratio >= self.goal


@dataclass(frozen=True, slots=True)
class Column:
    """One thing that is measured: with `rig`, its arguments for one run; with `tls`, a load of tls.py; else memory."""

    key: str
    title: str
    rig: tuple[str, ...]
    comparisons: tuple[Comparison, ...]
    tls: str = ""

    @property
    def is_timed(self) -> bool:
        """Whether it is measured in rounds."""
        return bool(self.rig or self.tls)


def _tls(load: str, title: str) -> Column:
    return Column(f"tls-{load}", title, (), (Comparison("cpu_ratio_to_haproxy", f"{title}, by CPU"),), load)


def _load(key: str, api: str, size: str, depth: int, connections: int, goal: float) -> Column:
    """Requests in a closed loop; `size` of the records as "100 B", "4 KiB"."""
    number, unit = size.split()
    size_bytes = int(number) * {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20}[unit]
    arguments = {"api": api, "size": size_bytes, "connections": connections, "depth": depth, "warmup": 0.3}
    rig = ["load", *(word for name, value in arguments.items() for word in (f"--{name}", str(value)))]
    title = f"{size} {api}, depth {depth}, {connections} connections"
    return Column(key, title, tuple(rig), (Comparison("ratio_to_haproxy", title, goal),))


COLUMNS = (
    _load("produce-1", "produce", "100 B", 1, 100, goal=0.7),
    _load("produce-16", "produce", "100 B", 16, 100, goal=0.6),
    _load("produce-1k", "produce", "1 KiB", 4, 100, goal=0.68),
    _load("produce-16k", "produce", "16 KiB", 4, 100, goal=1.6),
    _load("fetch-4k", "fetch", "4 KiB", 1, 100, goal=0.7),
    _load("fetch-64k", "fetch", "64 KiB", 1, 100, goal=1.4),
    _load("fetch-1m", "fetch", "1 MiB", 1, 10, goal=1.5),
    Column(
        "accept",
        "connect, ApiVersions, close; 16 at a time",
        ("accept", "--connections", "16"),
        (
            Comparison("ratio_to_haproxy", "accepts, a quota per address", 0.65),
            Comparison("ratio_to_nginx", "the same, times nginx", 1.0),
            Comparison("ratio_to_haproxy", "accepts, no quota", 0.65, of=WITHOUT_QUOTA),
        ),
    ),
    _tls("handshakes", "TLS: handshake and a request"),
    _tls("in", "TLS: 1 MiB produce"),
    _tls("out", "TLS: 1 MiB fetch"),
    Column(
        "latency",
        "100 B produce, one connection",
        ("load", "--api", "produce", "--size", "100", "--connections", "1", "--depth", "1", "--warmup", "0.3"),
        (
            Comparison("added_p99_ratio_to_haproxy", "one connection: what is added to p99", 1.2, less_is_better=True),
            Comparison("p99_ratio_to_haproxy", "one connection: p99", less_is_better=True),
        ),
    ),
    Column(
        "idle",
        "idle connection",
        (),
        (Comparison("memory_ratio_to_haproxy", "memory of an idle connection", less_is_better=True),),
    ),
)
