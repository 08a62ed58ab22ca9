"""What a buffer or snapshot looks like in a terminal and in a notebook."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from poolish import html
from poolish.printable import printable
from poolish.schema import describe

if TYPE_CHECKING:
    from poolish.rows.snapshot import Snapshot

N_SHOWN = 5


def text(name: str, rows: Snapshot, extra: str = "") -> str:
    """One line: how many rows, of what.

    >>> from poolish import DatasetBuffer
    >>> buffer = DatasetBuffer(max_size=3); buffer.append({"flour": "rye", "grams": 500}); buffer
    DatasetBuffer(1 row of {flour: text, grams: int64}, max_size=3, drop_strategy='oldest')
    """
    columns = ", ".join(f"{field.name}: {describe(field.type)}" for field in rows.schema)
    n_rows = len(rows)
    counted = f"{n_rows:,} row" + ("" if n_rows == 1 else "s")
    return printable(
        f"{name}({counted}"
        + (f" of {{{columns}}}" if columns else ", no schema yet")
        + (f", {extra})" if extra else ")")
    )


def page(name: str, rows: Snapshot, extra: str = "") -> str:
    """A table of the first and last rows, with their ids and the types of their columns."""
    numbers = list(range(len(rows)))
    shown = numbers if len(numbers) <= 2 * N_SHOWN else [*numbers[:N_SHOWN], *numbers[-N_SHOWN:]]
    headers = ["id", *(f"{field.name} ({describe(field.type)})" for field in rows.schema)]
    body: list[list[Any]] = [[int(rows.ids[i]), *map(_short, rows[i].values())] for i in shown]
    if len(shown) < len(numbers):
        body.insert(N_SHOWN, ["..."] * len(headers))
    return str(html.element("div", html.element("p", text(name, rows, extra)), html.table(headers, body)))


def _short(value: object) -> str:
    if hasattr(value, "shape"):
        return f"{value.dtype}{list(value.shape)}"  # type: ignore[attr-defined]
    if isinstance(value, bytes):
        return f"{len(value):,} bytes"
    words = str(value)
    return words if len(words) <= 80 else words[:77] + "..."
