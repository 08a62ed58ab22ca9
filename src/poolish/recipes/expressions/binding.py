"""Constants in place of columns: ``ingredient == "web" and score > 0`` is ``score > 0`` for rows of the web.

What then reads no column is calculated at once, by the same rules that rows would be, so a filter may turn out to be
true or false before any row is read.
"""

from __future__ import annotations

import math
from typing import NoReturn

import pyarrow as pa

from poolish.errors import RecipeError
from poolish.grammar import Node
from poolish.recipes.expressions.evaluation import build
from poolish.recipes.expressions.nodes import negative_node
from poolish.recipes.expressions.text import short, text_of


def is_bool(node: Node) -> bool:
    """Whether it is decided: true or false for every row."""
    return node.what == "constant" and isinstance(node.value, bool)


def bound(node: Node, constants: dict[str, Node]) -> Node:
    """The tree with these in place of the columns of their names."""
    if node.what == "column":
        return constants.get(node.value, node)
    if not node.parts:
        return node
    parts = tuple(bound(part, constants) for part in node.parts)
    if node.what in ("and", "or"):
        return _joined(node.what, *parts)
    folded = negative_node(*parts) if node.what == "negative" else Node(node.what, parts, node.value)
    return _folded(folded) if all(part.what == "constant" for part in parts) else folded


def _joined(what: str, left: Node, right: Node) -> Node:
    for one, other in ((left, right), (right, left)):
        if is_bool(one):
            return other if one.value is (what == "and") else one
    return Node(what, (left, right))


def _folded(node: Node) -> Node:
    """The constant that a part without columns gives; itself if that is a time, NaN or unknown."""
    if node.what == "constant":
        return node
    try:
        value = build(node, _no_column).arrow().as_py()
    except (RecipeError, pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise RecipeError(f"expression {short(text_of(node))}: {error}") from None
    is_told = isinstance(value, (bool, int, str)) or (isinstance(value, float) and not math.isnan(value))
    return Node("constant", value=value) if is_told else node


def _no_column(node: Node) -> NoReturn:
    raise AssertionError(f"a constant part reads {node.value!r}")
