"""Expressions as text: the one that parses to the same tree, and the one that all trees of the same meaning share.

Parentheses are written only where the parser would group otherwise, so what was parsed and what was built with
operators have the same text. That text is what an expression is hashed, compared and pickled by.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from poolish.grammar import FLIPPED, WORDS, Node

#: How strongly each operation binds; what is not here is a value, and binds strongest.
_LEVELS = {"or": 1, "and": 2, "not": 3, **dict.fromkeys([*FLIPPED, "in"], 4), "+": 5, "-": 5,
           "*": 6, "/": 6, "%": 6, "negative": 7}  # fmt: skip
_VALUE = 8
_NAME = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*")
_ESCAPES = str.maketrans({"\\": "\\\\", "'": "\\'", "\n": "\\n", "\t": "\\t", "\r": "\\r"})


def text_of(node: Node) -> str:
    """The text of a tree, which parses to the same tree.

    >>> text_of(Node("negative", (Node("+", (Node("column", value="any name"), Node("constant", value=1))),)))
    '-(`any name` + 1)'
    """
    if node.what == "constant":
        return constant_text(node.value)
    if node.what == "column":
        is_plain = _NAME.fullmatch(node.value) and node.value not in WORDS
        return str(node.value) if is_plain else f"`{node.value.replace('`', '``')}`"
    parts = [f"({text_of(part)})" if _is_wrapped(node, i) else text_of(part) for i, part in enumerate(node.parts)]
    if node.what == "in":
        return f"{parts[0]} in [{', '.join(map(constant_text, node.value))}]"
    if node.what == "negative":
        return f"-{parts[0]}"
    if node.what == "not":
        return f"not {parts[0]}"
    if node.what in _LEVELS:
        return f" {node.what} ".join(parts)
    return f"{node.what}({parts[0]}{'' if node.value is None else ', ' + constant_text(node.value)})"


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


def _is_wrapped(node: Node, i: int) -> bool:
    """Whether part ``i`` needs parentheses: it binds weaker, or as weak where the parser would group it otherwise."""
    own, part = _LEVELS.get(node.what, 0), _LEVELS.get(node.parts[i].what, _VALUE)
    leans_left = node.what in ("or", "and", "+", "-", "*", "/", "%") and i == 0
    return part < own or (part == own and not leans_left)


def nesting(node: Node) -> int:
    """How many parentheses the text of a tree has in each other, those of functions included."""
    is_call = bool(node.parts) and node.what not in _LEVELS
    deepest = 0
    for i, part in enumerate(node.parts):
        deepest = max(deepest, nesting(part) + (is_call or _is_wrapped(node, i)))
    return deepest


def short(text: str) -> str:
    """A text as errors quote it."""
    return repr(text if len(text) <= 200 else f"{text[:200]}...")


def canonical(node: Node) -> Node:
    """The tree that stands for all of its meaning, for its text only: sides, claims and lists in one order."""
    if node.what in ("and", "or"):
        ordered = sorted({text_of(part): part for part in map(canonical, _chain(node, node.what))}.items())
        # As one node of many parts: in pairs it could be deeper than what it was made of. The text is the same.
        return ordered[0][1] if len(ordered) == 1 else Node(node.what, tuple(part for _, part in ordered))
    parts = tuple(map(canonical, node.parts))
    if node.what in FLIPPED and parts[0].what == "constant" != parts[1].what:
        return Node(FLIPPED[node.what], parts[::-1])
    if node.what == "in":
        by_text = {constant_text(value): value for value in node.value}
        return Node("in", parts, tuple(by_text[text] for text in sorted(by_text)))
    return Node(node.what, parts, node.value)


def _chain(node: Node, what: str) -> Iterator[Node]:
    if node.what != what:
        yield node
    else:
        for part in node.parts:
            yield from _chain(part, what)
