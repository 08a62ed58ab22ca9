"""A stream in a line of text, and as HTML for notebooks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from poolish import html as page
from poolish.printable import printable
from poolish.tokens.reader import Reader

if TYPE_CHECKING:
    from poolish.tokens.store import StreamStore


def text(store: StreamStore) -> str:
    """What it holds and where."""
    where = f" at {store.path}" if store.path else ""
    if store._source is None:
        return printable(f"<StreamStore{where}, closed or without fields>")
    reading = ", to read" if isinstance(store._source, Reader) else ""
    fields = ", ".join(map(str, store._fields[:8])) + (", ..." if len(store._fields) > 8 else "")
    return printable(f"<StreamStore of {len(store):,} tokens in {store.n_steps:,} steps ({fields}){where}{reading}>")


def html(store: StreamStore) -> str:
    """The same with a table of the fields."""
    rows = [(number, str(field)) for number, field in enumerate(store._fields)]
    title = page.element("p", text(store).strip("<>"))
    return str(page.join(title, page.table(("type", "field"), rows)))
