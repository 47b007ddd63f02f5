"""A table of the report: shown on the page, and written as CSV and Parquet."""

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa

from kafka_throttle.pipeline.report.words import visible

MOST_PLACES = 6

KINDS: Mapping[str, pa.DataType] = {
    "text": pa.string(),
    "bytes": pa.int64(),
    "count": pa.int64(),
    "ms": pa.int64(),
    "us": pa.int64(),
    "number": pa.float64(),
    "share": pa.float64(),
    "ratio": pa.float64(),
    "day": pa.date32(),
    "moment": pa.timestamp("ms", tz="UTC"),
    "exact": pa.decimal128(38, 12),
    "money": pa.decimal128(38, MOST_PLACES),
}
"""The type of a column's values. A share is a fraction, shown as percent on the page; a ratio is a number of
things for each other thing; a moment is in ms since 1970.
"""


@dataclass(frozen=True, slots=True)
class Column:
    """One column. `unit` is shown beside the heading where the kind does not say it."""

    name: str
    heading: str
    kind: str = "count"
    unit: str = ""
    in_files: bool = False
    """Only in CSV and Parquet, not on the page."""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows by column name, in the order in which they are shown."""

    name: str
    title: str
    columns: tuple[Column, ...]
    rows: Sequence[Mapping[str, Any]] = field(default_factory=tuple)
    note: str = ""
    of: int | None = None
    """The number of rows that there are, if the table may have only the first of them."""

    @property
    def on_page(self) -> list[Column]:
        """The columns that the page shows: the virtual cluster only if there are several."""
        clusters = {row.get("virtual_cluster") for row in self.rows if not row.get("rest")}
        return [
            column
            for column in self.columns
            if not column.in_files and (column.name != "virtual_cluster" or len(clusters) > 1)
        ]

    @property
    def shown(self) -> int:
        """The number of rows without the sums."""
        return sum(not row.get("rest") for row in self.rows)

    def values(self, column: Column) -> list[Any]:
        """The values of a column, from the first row to the last."""
        return [row.get(column.name) for row in self.rows]


def arrow_of(table: Table) -> pa.Table:
    """The table with the types of KINDS; units are in the fields' metadata."""
    fields = [
        pa.field(column.name, KINDS[column.kind], metadata={"heading": column.heading, "unit": _unit(column)})
        for column in table.columns
    ]
    arrays = [
        pa.array([_stored(column, value) for value in table.values(column)], type=KINDS[column.kind])
        for column in table.columns
    ]
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


def csv_of(table: Table) -> str:
    """The table as CSV (RFC 4180, UTF-8), with the unit in each column name.

    Texts that a spreadsheet would take for a formula begin with an apostrophe: a client-id may be `=cmd|...`.
    Characters that are invisible are escaped.
    """
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow([column.name for column in table.columns])
    for row in table.rows:
        writer.writerow([_cell(column, row.get(column.name)) for column in table.columns])
    return out.getvalue()


_UNITS = {"bytes": "bytes", "ms": "ms", "us": "µs", "share": "fraction", "moment": "UTC", "day": "UTC"}
_FORMULAS = ("=", "+", "-", "@")


def _unit(column: Column) -> str:
    return column.unit or _UNITS.get(column.kind, "")


def _stored(column: Column, value: Any) -> Any:
    if value is None:
        return None
    if column.kind == "text":
        return storable(value)
    return value


def storable(text: str) -> str:
    """The text with characters that UTF-8 cannot hold written as escapes."""
    return text.encode("utf-8", "backslashreplace").decode()


def _cell(column: Column, value: Any) -> str:
    if value is None:
        return ""
    convert = _CELLS.get(column.kind, str)
    return convert(value)


def text_cell(value: str) -> str:
    """A text as a cell of a CSV file: nothing that a spreadsheet takes for a formula, or a terminal for a command."""
    text = visible(storable(value))
    return f"'{text}" if text.startswith(_FORMULAS) else text


def _moment_cell(value: int) -> str:
    return datetime.fromtimestamp(value / 1000, UTC).isoformat(timespec="milliseconds")


def _exact_cell(value: Decimal) -> str:
    return f"{value:f}"


def _day_cell(value: date) -> str:
    return value.isoformat()


_CELLS: Mapping[str, Callable[[Any], str]] = {
    "text": text_cell,
    "moment": _moment_cell,
    "exact": _exact_cell,
    "money": _exact_cell,
    "day": _day_cell,
    "number": repr,
    "share": repr,
    "ratio": repr,
}
