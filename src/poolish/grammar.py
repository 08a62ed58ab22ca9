"""The grammar of expressions, such as ``end >= start and price > 0``: a small language of our own, never Python's.

    expression   or-parts:   and-parts joined by "or"
    and-part     not-parts joined by "and";   not-part   ["not"] comparison
    comparison   sum [op sum ...]             == != < <= > >=, chained as in Python; ["not"] "in" [value, ...]
    sum          product [+ - product ...];   product    factor [* / % factor ...];   factor   ["-"] value
    value        12   -1.5e3   "text"   true   false   column   column.part   `any name`   ( expression )
                 f(expression)   f(expression, "text")

Text becomes a tree of nodes. What a tree means, and which functions ``f`` there are, is said by the rooms: guards ask
claims of rows, recipes filter and calculate. Both follow trees by recursion, so no tree is deeper than ``MAX_DEPTH``:
a node that would be cannot be made, neither by the parser nor by operators in Python.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from poolish.errors import ConfigError, LimitExceeded

__all__ = ["COMPARISONS", "FLIPPED", "MAX_CHARACTERS", "MAX_DEPTH", "MAX_DIGITS", "MAX_NESTING", "WORDS", "Functions",
           "Node", "parse_node", "walk"]  # fmt: skip

MAX_CHARACTERS = 4_096
MAX_DIGITS = 1_000
#: Parentheses in each other: each costs the parser eight or nine calls, of the thousand that Python allows.
MAX_NESTING = 64
#: Levels of a tree; a chain such as ``a + b + c`` is as deep as it is long. Following one level takes two calls of the
#: thousand, so more than half of them are left to the caller. Arrow follows a filter that is pushed down on a stack of
#: its own, and ends the process between 500 and 600 levels where that has 512 KiB, as threads have on macOS.
MAX_DEPTH = 200

#: Each comparison, and what it is with its sides exchanged.
FLIPPED = {"==": "==", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
COMPARISONS = tuple(FLIPPED)
#: What cannot be the name of a column, unless in backquotes.
WORDS = frozenset({"and", "or", "not", "in", "true", "false"})

#: Names that may be called: with one part, or with a part and a text that the function given here checks.
Functions = Mapping[str, Callable[[str], str] | None]

_TOKEN = re.compile(
    r"\s*(?:(?P<number>(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)"
    r"|(?P<text>\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*')"
    r"|(?P<quoted>`(?:[^`]|``)+`)"
    r"|(?P<name>[^\W\d]\w*(?:\.[^\W\d]\w*)*)"
    r"|(?P<sign><=|>=|==|!=|[-+*/%<>()\[\],]))"
)
_SPACE = re.compile(r"\s*")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}
#: Signs of other languages, and what stands for them here.
_MEANT = {"=": "==", "&": "and", "|": "or", "!": "not", "~": "not"}


@dataclass(frozen=True)
class Node:
    """A part of an expression: a constant, a column, or something done to other parts.

    >>> Node("+", (Node("column", value="a"), Node("constant", value=1))).depth
    2
    """

    what: str
    parts: tuple[Node, ...] = ()
    value: Any = None
    depth: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        depth = 1 + max((part.depth for part in self.parts), default=0)
        if depth > MAX_DEPTH:
            raise LimitExceeded(
                f"an expression of more than {MAX_DEPTH} operations in a chain; say many alternatives as one list, "
                "by 'in' or is_in, or split it into several"
            )
        object.__setattr__(self, "depth", depth)


def walk(root: Node) -> Iterator[Node]:
    """A node and all its parts, each before its own parts and in the order of the text.

    >>> [node.value for node in walk(parse_node("a + b > c", functions={})) if node.what == "column"]
    ['a', 'b', 'c']
    """
    waiting = [root]
    while waiting:
        node = waiting.pop()
        yield node
        waiting.extend(reversed(node.parts))


def parse_node(text: str, *, functions: Functions, max_characters: int = MAX_CHARACTERS) -> Node:
    """The tree of an expression, with the functions that a room can evaluate.

    What it cannot be is a ConfigError that shows where.

    >>> parse_node("a == ", functions={})
    Traceback (most recent call last):
    poolish.errors.ConfigError: expression 'a == ', at character 6: a number, a text, a column or '(' was expected here
    """
    if not isinstance(text, str) or not text.strip():
        raise ConfigError(f"an expression is text such as 'end >= start', got {text!r}")
    if len(text) > max_characters:
        raise LimitExceeded(f"an expression of {len(text):,} characters; the limit is {max_characters:,}")
    return _Parser(text, functions).whole()


class _Parser:
    """One token at a time, each rule of the grammar a method."""

    def __init__(self, text: str, functions: Functions) -> None:
        self._text, self._place, self._nesting = text, 0, 0
        self._functions = functions
        self._kind, self._token, self._start, self._token_before = "", "", 0, ""
        self._next()

    def whole(self) -> Node:
        root = self._or()
        if self._kind != "end":
            self._fail(f"the end was expected here{self._lower_case()}")
        return root

    def _lower_case(self) -> str:
        """What to write, where AND or NOT was taken for a column; nothing where that is not what is wrong."""
        words = (word for word in (self._token, self._token_before) if word.lower() in WORDS and word not in WORDS)
        return "".join(f"; write {word.lower()!r} for {word!r}" for word in words)

    def _next(self) -> None:
        self._token_before = self._token
        rest = _SPACE.match(self._text, self._place).end()  # type: ignore[union-attr]
        if rest == len(self._text):
            self._kind, self._token, self._start = "end", "", len(self._text)
            return
        match = _TOKEN.match(self._text, self._place)
        self._start = rest
        if match is None:
            sign = self._text[rest]
            self._fail(f"{sign!r} has no meaning here{f'; write {_MEANT[sign]!r}' if sign in _MEANT else ''}")
        self._kind, self._token, self._place = str(match.lastgroup), match[str(match.lastgroup)], match.end()

    def _take(self, *tokens: str) -> str | None:
        if self._kind in ("sign", "name") and self._token in tokens:
            token = self._token
            self._next()
            return token
        return None

    def _need(self, token: str) -> None:
        if self._take(token) is None:
            self._fail(f"{token!r} was expected here")

    def _fail(self, why: str, start: int | None = None) -> NoReturn:
        place = self._start if start is None else start
        raise ConfigError(f"expression {self._text!r}, at character {place + 1}: {why}")

    def _or(self) -> Node:
        self._nesting += 1
        if self._nesting > MAX_NESTING:
            raise LimitExceeded(f"an expression nested more than {MAX_NESTING} deep; split it into several")
        node = self._and()
        while self._take("or"):
            node = Node("or", (node, self._and()))
        self._nesting -= 1
        return node

    def _and(self) -> Node:
        node = self._not()
        while self._take("and"):
            node = Node("and", (node, self._not()))
        return node

    def _not(self) -> Node:
        n_nots = 0
        while self._take("not"):
            n_nots += 1
        node = self._comparison()
        return Node("not", (node,)) if n_nots % 2 else node if not n_nots else Node("not", (Node("not", (node,)),))

    def _comparison(self) -> Node:
        left = self._sum()
        claims: list[Node] = []
        while (sign := self._take(*COMPARISONS, "in", "not")) is not None:
            if sign == "not":
                self._need("in")
            if sign in ("in", "not"):
                choice = Node("in", (left,), self._choices())
                claims.append(choice if sign == "in" else Node("not", (choice,)))
                break
            right = self._sum()
            claims.append(Node(sign, (left, right)))
            left = right
        node = claims[0] if claims else left
        for claim in claims[1:]:
            node = Node("and", (node, claim))
        return node

    def _choices(self) -> tuple[Any, ...]:
        self._need("[")
        chosen = [self._constant()]
        while self._take(","):
            chosen.append(self._constant())
        self._need("]")
        return tuple(chosen)

    def _constant(self) -> Any:
        start = self._start
        node = self._factor()
        if node.what != "constant":
            self._fail("a list holds numbers and text only", start)
        return node.value

    def _sum(self) -> Node:
        node = self._product()
        while (sign := self._take("+", "-")) is not None:
            node = Node(sign, (node, self._product()))
        return node

    def _product(self) -> Node:
        node = self._factor()
        while (sign := self._take("*", "/", "%")) is not None:
            node = Node(sign, (node, self._factor()))
        return node

    def _factor(self) -> Node:
        negative = False
        while self._take("-"):
            negative = not negative
        node = self._value()
        if not negative:
            return node
        is_number = (
            node.what == "constant" and isinstance(node.value, (int, float)) and not isinstance(node.value, bool)
        )
        return Node("constant", value=-node.value) if is_number else Node("negative", (node,))

    def _value(self) -> Node:
        kind, token, start = self._kind, self._token, self._start
        if kind == "sign" and token == "(":
            self._next()
            node = self._or()
            self._need(")")
            return node
        if kind in ("end", "sign") or (kind == "name" and token in WORDS - {"true", "false"}):
            self._fail("a number, a text, a column or '(' was expected here")
        self._next()
        if kind == "number":
            if len(token) > MAX_DIGITS:
                self._fail(f"a number of more than {MAX_DIGITS:,} digits", start)
            return Node("constant", value=float(token) if set(token) & set(".eE") else int(token))
        if kind == "text":
            return Node("constant", value=re.sub(r"\\(.)", lambda m: _ESCAPES.get(m[1], m[1]), token[1:-1]))
        if kind == "quoted":
            return Node("column", value=token[1:-1].replace("``", "`"))
        if token in ("true", "false"):
            return Node("constant", value=token == "true")
        if self._take("("):
            return self._call(token, start)
        return Node("column", value=token)

    def _call(self, function: str, start: int) -> Node:
        if function not in self._functions:
            self._fail(f"{function!r} is no function here, there are {', '.join(self._functions)}", start)
        inner, check = self._or(), self._functions[function]
        value = None if check is None else self._checked_text(check)
        self._need(")")
        return Node(function, (inner,), value)

    def _checked_text(self, check: Callable[[str], str]) -> str:
        self._need(",")
        start = self._start
        node = self._factor()
        if node.what != "constant" or not isinstance(node.value, str):
            self._fail("a text in quotes was expected here", start)
        try:
            return check(node.value)
        except ConfigError as error:
            self._fail(str(error), start)
