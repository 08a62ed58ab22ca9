"""Parts of an expression that know their types, and the kinds of types: what may meet what.

An expression has no types before it meets a table or a schema. Then each part of it becomes one of these, from the
columns and constants upwards; the rules between them are those of rules.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.types as kinds

from poolish.errors import RecipeError
from poolish.grammar import Node
from poolish.recipes.expressions.text import constant_text, short, text_of
from poolish.schema.arrow import spelled_out


@dataclass(frozen=True)
class Part:
    """A part of an expression that knows its type: ``value`` is an array, an Arrow scalar or an Arrow expression."""

    node: Node
    type: pa.DataType
    value: Any

    @property
    def is_constant(self) -> bool:
        return self.node.what == "constant"

    def arrow(self, type_: pa.DataType | None = None) -> Any:
        """Its value, as this type: exactly, or an error."""
        if type_ is None or type_ == self.type:
            return self.value
        try:
            return pa.scalar(self.node.value, type_) if self.is_constant else self.value.cast(type_)
        except (pa.ArrowInvalid, OverflowError) as error:
            raise RecipeError(f"{self} cannot be {type_} as well: {error}") from None

    @property
    def is_coded(self) -> bool:
        """Whether its value is an array of numbers that stand for words."""
        return isinstance(self.value, (pa.Array, pa.ChunkedArray)) and kinds.is_dictionary(self.value.type)

    def decoded(self) -> Part:
        """The same with every word spelled out."""
        return Part(self.node, self.type, spelled_out(self.value, self.type)) if self.is_coded else self

    def __str__(self) -> str:
        if self.is_constant:
            return f"{kind_of(self.type)} {constant_text(self.node.value)}"
        return f"{'column ' if self.node.what == 'column' else ''}{short(text_of(self.node))} ({self.type})"


def constant_part(node: Node) -> Part:
    """A constant in the type that Arrow gives it."""
    value, type_ = node.value, None
    if isinstance(value, str):
        type_ = pa.string()  # Arrow takes 140 us to find that out
    elif isinstance(value, int) and value >= 2**63:
        type_ = pa.uint64()
    scalar = pa.scalar(value, type_)
    return Part(node, scalar.type, scalar)


def as_array(values: Any, n_rows: int) -> pa.Array:
    """A value for each row, in one piece."""
    if isinstance(values, pa.Scalar):
        return pa.repeat(values, n_rows)
    return values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values


def kind_of(type_: pa.DataType) -> str:
    """Values of one kind can be compared."""
    if kinds.is_integer(type_) or kinds.is_floating(type_):
        return "number"
    if kinds.is_timestamp(type_):
        return "time" if type_.tz is None else "time with zone"
    for is_it, word in ((kinds.is_boolean, "bool"), (_is_text, "text"), (kinds.is_null, "null"), (is_bytes, "bytes")):
        if is_it(type_):
            return word
    return str(type_)


def _is_text(type_: pa.DataType) -> bool:
    return bool(kinds.is_string(type_) or kinds.is_large_string(type_))


def is_bytes(type_: pa.DataType) -> bool:
    """Whether values of a type are bytes of any length."""
    return bool(kinds.is_binary(type_) or kinds.is_large_binary(type_))


def need_kind(kind: str, what: str, *parts: Part) -> None:
    """Refuse parts of another kind; null is of any."""
    for part in parts:
        if kind_of(part.type) not in (kind, "null"):
            raise RecipeError(f"{what!r} is for {kind}s, got {part}; compare or cast it first")
