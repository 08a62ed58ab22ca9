"""Expressions as text: the text that parses to the same tree, and one text for all equivalent trees.

Parentheses are written only where the parser would group otherwise, so parsed and built expressions have the same
text. Expressions are hashed, compared and pickled by it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from poolish.expressions.nodes import FLIPPED, KEYWORDS, PRECEDENCE, Node, needs_parentheses

_NAME = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*")
_ESCAPES = str.maketrans({"\\": "\\\\", "'": "\\'", "\n": "\\n", "\t": "\\t", "\r": "\\r"})


def text_of(node: Node) -> str:
    """The text of a tree, which parses to the same tree.

    >>> text_of(Node("negative", (Node("+", (Node("column", value="any name"), Node("constant", value=1))),)))
    '-(`any name` + 1)'
    """
    if node.op == "constant":
        return constant_text(node.value)
    if node.op == "column":
        is_plain = _NAME.fullmatch(node.value) and node.value not in KEYWORDS
        return str(node.value) if is_plain else f"`{node.value.replace('`', '``')}`"
    args = [f"({text_of(arg)})" if needs_parentheses(node, i) else text_of(arg) for i, arg in enumerate(node.args)]
    if node.op == "in":
        return f"{args[0]} in [{', '.join(map(constant_text, node.value))}]"
    if node.op == "negative":
        return f"-{args[0]}"
    if node.op == "not":
        return f"not {args[0]}"
    if node.op in PRECEDENCE:
        return f" {node.op} ".join(args)
    return f"{node.op}({args[0]}{'' if node.value is None else ', ' + constant_text(node.value)})"


def constant_text(value: Any) -> str:
    """A number, a text or a bool as the parser reads it.

    >>> print(constant_text("it's"), constant_text(True), constant_text(float("inf")))
    'it\\'s' true 1e999
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f"'{value.translate(_ESCAPES)}'"
    return repr(value).replace("inf", "1e999")


def short(text: str) -> str:
    """A text as errors quote it."""
    return repr(text if len(text) <= 200 else f"{text[:200]}...")


def canonical(node: Node) -> Node:
    """One tree for all equivalent ones, for its text only: sides, conditions and lists in one order."""
    if node.op in ("and", "or"):
        ordered = sorted({text_of(arg): arg for arg in map(canonical, _chain(node, node.op))}.items())
        # One node of many arguments: in pairs it could be deeper than the original. The text is the same.
        return ordered[0][1] if len(ordered) == 1 else Node(node.op, tuple(arg for _, arg in ordered))
    args = tuple(map(canonical, node.args))
    if node.op in FLIPPED and args[0].op == "constant" != args[1].op:
        return Node(FLIPPED[node.op], args[::-1])
    if node.op == "in":
        by_text = {constant_text(value): value for value in node.value}
        return Node("in", args, tuple(by_text[text] for text in sorted(by_text)))
    return Node(node.op, args, node.value)


def _chain(node: Node, op: str) -> Iterator[Node]:
    if node.op != op:
        yield node
    else:
        for arg in node.args:
            yield from _chain(arg, op)
