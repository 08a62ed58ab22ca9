"""The grammar of expressions, such as ``end >= start and price > 0``: a small language of our own, never Python's.

expression   disjunct ["or" disjunct ...]
disjunct     conjunct ["and" conjunct ...];   conjunct   ["not"] comparison
comparison   sum [op sum ...]                 == != < <= > >=, chained as in Python; ["not"] "in" [value, ...]
sum          product [+ - product ...];       product    factor [* / % factor ...];   factor   ["-"] value
value        12   -1.5e3   "text"   true   false   column   column.part   `any name`   ( expression )
             f(expression)   f(expression, "text")                  f is one of nodes.FUNCTIONS
"""

from __future__ import annotations

import re
from typing import Any, NoReturn

from poolish.errors import ConfigError, LimitExceeded
from poolish.expressions.nodes import (
    COMPARISONS,
    FUNCTIONS,
    KEYWORDS,
    MAX_CHARACTERS,
    MAX_DIGITS,
    MAX_NESTING,
    Node,
    checked_argument,
    negative_node,
    short,
)

_TOKEN = re.compile(
    r"\s*(?:(?P<number>(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)"
    r"|(?P<text>\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*')"
    r"|(?P<quoted>`(?:[^`]|``)+`)"
    r"|(?P<name>[^\W\d]\w*(?:\.[^\W\d]\w*)*)"
    r"|(?P<sign><=|>=|==|!=|[-+*/%<>()\[\],]))"
)
_SPACE = re.compile(r"\s*")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}
#: Signs of other languages, and their counterparts here.
_COUNTERPARTS = {"=": "==", "&": "and", "|": "or", "!": "not", "~": "not"}


def parse_node(text: str) -> Node:
    """The tree of an expression; a ConfigError shows the place where the text is none.

    >>> parse_node("a == ")
    Traceback (most recent call last):
    poolish.errors.ConfigError: expression 'a == ', at character 6: a number, a text, a column or '(' was expected here
    """
    if not isinstance(text, str) or not text.strip():
        raise ConfigError(f"an expression is text such as 'end >= start', got {text!r}")
    if len(text) > MAX_CHARACTERS:
        raise LimitExceeded(f"an expression of {len(text):,} characters; the limit is {MAX_CHARACTERS:,}")
    return _Parser(text).whole()


class _Parser:
    """One token at a time, each rule of the grammar a method."""

    def __init__(self, text: str) -> None:
        self._text, self._place, self._nesting = text, 0, 0
        self._kind, self._token, self._start, self._token_before = "", "", 0, ""
        self._next()

    def whole(self) -> Node:
        root = self._or()
        if self._kind != "end":
            self._fail(f"the end was expected here{self._lower_case()}")
        return root

    def _lower_case(self) -> str:
        """Advice where AND or NOT was read as a column, else nothing."""
        tokens = (self._token, self._token_before)
        wrong = (token for token in tokens if token.lower() in KEYWORDS and token not in KEYWORDS)
        return "".join(f"; write {token.lower()!r} for {token!r}" for token in wrong)

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
            advice = f"; write {_COUNTERPARTS[sign]!r}" if sign in _COUNTERPARTS else ""
            self._fail(f"{sign!r} has no meaning here{advice}")
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
        raise ConfigError(f"expression {short(self._text)}, at character {place + 1}: {why}")

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
        conditions: list[Node] = []
        while (sign := self._take(*COMPARISONS, "in", "not")) is not None:
            if sign == "not":
                self._need("in")
            if sign in ("in", "not"):
                choice = Node("in", (left,), self._choices())
                conditions.append(choice if sign == "in" else Node("not", (choice,)))
                break
            right = self._sum()
            conditions.append(Node(sign, (left, right)))
            left = right
        node = conditions[0] if conditions else left
        for condition in conditions[1:]:
            node = Node("and", (node, condition))
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
        if node.op != "constant":
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
        return negative_node(node) if negative else node

    def _value(self) -> Node:
        kind, token, start = self._kind, self._token, self._start
        if kind == "sign" and token == "(":
            self._next()
            node = self._or()
            self._need(")")
            return node
        if kind in ("end", "sign") or (kind == "name" and token in KEYWORDS - {"true", "false"}):
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
        if function not in FUNCTIONS:
            self._fail(f"{function!r} is no function here, there are {', '.join(FUNCTIONS)}", start)
        inner = self._or()
        value = None if FUNCTIONS[function] is None else self._text_argument(function)
        self._need(")")
        return Node(function, (inner,), value)

    def _text_argument(self, function: str) -> str:
        self._need(",")
        start = self._start
        node = self._factor()
        if node.op != "constant" or not isinstance(node.value, str):
            self._fail("a text in quotes was expected here", start)
        try:
            return checked_argument(function, node.value)
        except ConfigError as error:
            self._fail(str(error), start)
