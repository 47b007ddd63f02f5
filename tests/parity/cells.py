"""What is compared: one cell is one entity with a quota of its own, and the connections that share it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product

ROLES = ("producer", "consumer")
QUOTAS = ("client-id", "user", "default client-id")
CONNECTIONS = (1, 2, 10)
VERSIONS = ("old", "new")


@dataclass(frozen=True, slots=True)
class Cell:
    """`versions` are those of the API: "old" ones from before clients waited by themselves, or the "new"est."""

    role: str
    quota: str
    connections: int
    versions: str

    @property
    def client_id(self) -> str:
        """What its clients call themselves; no other cell does."""
        return f"{self.role}-{self.quota}-{self.connections}-{self.versions}".replace(" ", "-")

    @property
    def quota_key(self) -> str:
        """Kafka's name for the quota that binds it."""
        return f"{self.role}_byte_rate"

    @property
    def user_number(self) -> int:
        """0 to 5. Cells of one role with a user quota have different ones: nobody else's node counts with theirs."""
        return CONNECTIONS.index(self.connections) * len(VERSIONS) + VERSIONS.index(self.versions)

    def __str__(self) -> str:
        noun = "connection" if self.connections == 1 else "connections"
        return f"{self.role}, {self.quota}, {self.connections} {noun}, {self.versions}"


ALL_CELLS = tuple(Cell(*values) for values in product(ROLES, QUOTAS, CONNECTIONS, VERSIONS))
USERS = len(CONNECTIONS) * len(VERSIONS)


def chosen(names: Iterable[str]) -> Sequence[Cell]:
    """The cells whose client-id has one of `names` in it, all of them for none. ValueError if a name finds nothing."""
    wanted = list(names)
    if unknown := [name for name in wanted if not any(name in cell.client_id for cell in ALL_CELLS)]:
        raise ValueError(f"no cell has {', '.join(unknown)} in its name")
    return [cell for cell in ALL_CELLS if not wanted or any(name in cell.client_id for name in wanted)]
