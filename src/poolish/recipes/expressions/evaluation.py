"""Evaluating an expression: its tree, from columns and constants upwards, as parts with types and values.

    schema, name --type_at, plain--> the part of a column --+
                                                            +--build, a rule for each node--> the part of the whole
                                   the part of a constant --+

The value of a column is an array, if there is a table, or Arrow's own expression, if there is only a schema.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.types as kinds

from poolish.grammar import Node
from poolish.recipes.expressions.parts import Part, constant_part
from poolish.recipes.expressions.rules import BY_WORD, RULES
from poolish.schema.arrow import spelled_out


def build(node: Node, leaf: Callable[[Node], Part]) -> Part:
    """A tree with types and values, where ``leaf`` gives those of a column."""
    if node.what == "constant":
        return constant_part(node)
    if node.what == "column":
        return leaf(node)
    parts = [build(part, leaf) for part in node.parts]
    coded = [part for part in parts if part.is_coded]
    if len(coded) == 1 and node.what in BY_WORD and all(part.is_constant or part.is_coded for part in parts):
        return _by_word(node, parts, coded[0])
    type_, value = RULES[node.what](node, *(part.decoded() for part in parts))
    return Part(node, type_, value)


def _by_word(node: Node, parts: list[Part], coded: Part) -> Part:
    """Ask about each word instead of each row, and give each row the answer for its word."""
    type_: pa.DataType = pa.null()
    found = []
    for chunk in coded.value.chunks if isinstance(coded.value, pa.ChunkedArray) else [coded.value]:
        is_worth_it = len(chunk.dictionary) <= len(chunk)
        words = chunk.dictionary.cast(coded.type) if is_worth_it else spelled_out(chunk, coded.type)
        asked = [Part(part.node, part.type, words) if part is coded else part for part in parts]
        type_, answers = RULES[node.what](node, *asked)
        found.append(answers.take(chunk.indices) if is_worth_it else answers)
    if not found:
        type_, answers = RULES[node.what](node, *(part.decoded() for part in parts))
        return Part(node, type_, answers)
    return Part(node, type_, found[0] if len(found) == 1 else pa.chunked_array(found))


# Columns of a schema ------------------------------------------------------------------------------------------------


def column_names(schema: pa.Schema) -> Iterator[str]:
    """All that an expression may call a column of a schema: its columns, and the fields of structs with dots."""
    for field in schema:
        yield field.name
        if kinds.is_struct(field.type):
            yield from (f"{field.name}.{inner}" for inner in column_names(pa.schema(field.type.fields)))


def type_at(schema: pa.Schema, path: tuple[str, ...]) -> Any:
    """The type of a column or of a field in its structs; None if there is none."""
    i = schema.get_field_index(path[0])
    type_: Any = schema.field(i).type if i >= 0 else None
    for name in path[1:]:
        i = type_.get_field_index(name) if type_ is not None and kinds.is_struct(type_) else -1
        type_ = type_.field(i).type if i >= 0 else None
    return type_


def plain(part: Part) -> Part:
    """A column in the type that Arrow's functions take: views and half floats widened, dictionaries as they are."""
    type_ = part.type.value_type if kinds.is_dictionary(part.type) else part.type
    if kinds.is_float16(type_):
        type_ = pa.float32()
    elif kinds.is_string_view(type_):
        type_ = pa.large_string()
    elif kinds.is_binary_view(type_):
        type_ = pa.large_binary()
    return Part(part.node, type_, part.value if part.is_coded else part.arrow(type_))
