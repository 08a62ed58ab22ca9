"""Expressions over columns: ``(col.lang == "en") & (col.quality > 0.7)``, or the same as text.

    col.name, operators, methods --+
                                   +--> Expression, a tree of Nodes --types of a table--> Arrow compute, pushed filter
    text --grammar.py -------------+      |
                                          +--str()--> text of the same grammar, which parses to the same tree
                                          `--bind()--> the same with constants in place of columns

An expression has no types; they come with the table or schema it meets, and decide what may be compared: text is never
compared with a number. rules.py describes nulls, zero divisors and overflow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NoReturn, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from poolish.concurrency import cached_property
from poolish.errors import ConfigError, RecipeError, UnknownColumn
from poolish.expressions.grammar import parse_node
from poolish.expressions.nodes import (
    Node,
    canonical,
    check_limits,
    checked_argument,
    constant_node,
    negative_node,
    short,
    text_of,
    utf8,
    walk,
)
from poolish.expressions.rules import (
    EVALUATOR_VERSION,
    ON_DICTIONARY,
    RULES,
    Operand,
    as_array,
    column_operand,
    constant_operand,
    find_column,
    kind_of,
)
from poolish.schema.types import dictionary_decode

Mask = NDArray[np.bool_]
Result = TypeVar("Result")


class Expression:
    """A condition or value of each row: immutable, hashable by its text, built with operators or by ``parse``.

    ``==`` builds a new expression; ``same_as`` compares two.

    >>> where = (col.lang == "en") & (col.quality > 0.7)
    >>> where
    parse("lang == 'en' and quality > 0.7")
    >>> where.mask(pa.table({"lang": ["en", "en", None], "quality": [0.9, 0.1, 0.9]}))
    (array([ True, False, False]), 1)
    """

    _root: Node

    def __init__(self, root: Node) -> None:
        check_limits(root)
        self.__dict__["_root"] = root

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"an expression is never changed; {name!r} cannot be set")

    def __reduce__(self) -> tuple[Callable[[str], Expression], tuple[str]]:
        return parse, (str(self),)

    # What it is -------------------------------------------------------------------------------------------------

    @cached_property
    def _text(self) -> str:
        return text_of(self._root)

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return f"parse({self._text!r})"

    def __hash__(self) -> int:
        return hash(self._text)

    def __fingerprint__(self) -> tuple[int, str]:
        return EVALUATOR_VERSION, self._text

    def same_as(self, other: object) -> bool:
        """Whether the other is an expression with the same text, so the same tree."""
        return isinstance(other, Expression) and self._text == other._text

    @cached_property
    def fingerprint(self) -> str:
        """Text that is equal for ``a and b`` and ``b and a``, ``1 < x`` and ``x > 1``, and lists in any order.

        >>> parse("2 < x and lang in ['en', 'de']").fingerprint
        "lang in ['de', 'en'] and x > 2"
        """
        return text_of(canonical(self._root))

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The columns it reads, in the order of their appearance."""
        return tuple(dict.fromkeys(node.value for node in walk(self._root) if node.op == "column"))

    def top_columns(self, schema: pa.Schema) -> tuple[str, ...]:
        """The columns of a schema that have to be read: ``meta`` for the field ``meta.lang`` of a struct."""
        return self._located(lambda: tuple(dict.fromkeys(find_column(name, schema)[0] for name in self.columns)))

    # What it gives ----------------------------------------------------------------------------------------------

    def values(self, table: pa.Table | pa.RecordBatch) -> pa.Array:
        """The value for each row.

        >>> (col.n * 2 + 1).values(pa.table({"n": [1, None]})).to_pylist()
        [3, None]
        """
        return as_array(self._evaluated(table).arrow(), table.num_rows)

    def mask(self, table: pa.Table | pa.RecordBatch) -> tuple[Mask, int]:
        """Which rows a filter keeps: those it is true for; and how many it drops because the answer is unknown."""
        answers = self._answers(table)
        return _filled(answers, False), answers.null_count

    def passes(self, table: pa.Table | pa.RecordBatch) -> Mask:
        """Which rows a check lets pass: those it is true or unknown for.

        A row that cannot be evaluated, because a number overflows or a value cannot be cast, does not pass; if that is
        every row, it is an error.

        >>> parse("end >= start").passes(pa.table({"start": [1, 5, None], "end": [2, 4, 4]}))
        array([ True, False,  True])
        """
        try:
            return _filled(self._answers(table), True)
        except RecipeError:
            self._answers(table.slice(0, 0))  # raises if types are the reason, not values
        passing, failed = np.zeros(table.num_rows, np.bool_), list[Exception]()

        def answers(first: int, n_rows: int) -> pa.Array:
            return self._answers(table.slice(first, n_rows))

        for first, n_rows, found in halving(answers, [(0, table.num_rows)], lambda _, n, error: failed.append(error)):
            passing[first : first + n_rows] = _filled(found, True)
        for error in failed:
            if len(failed) == table.num_rows or not isinstance(error, RecipeError):
                raise error
        return passing

    def to_arrow(self, schema: pa.Schema) -> pc.Expression:
        """The same for Arrow, to be pushed into a dataset, parquet or ``table.filter`` with columns of these types.

        A filter drops unknown rows uncounted; push ``where | where.is_null()`` and ask ``mask`` to count them.

        >>> print((col.n > 2.5).to_arrow(pa.schema({"n": pa.int64()})))
        (n >= 3)
        """
        found = self._built(schema, lambda path: pc.field(*path)).arrow()
        return pc.scalar(found) if isinstance(found, pa.Scalar) else found

    def bind(self, **constants: Any) -> Expression | bool:
        """With constants in place of columns, as far as that decides it; names it does not read are ignored.

        >>> where = (col.ingredient == "web") & (col.score > 0)
        >>> where.bind(ingredient="web"), where.bind(ingredient="gold")
        (parse('score > 0'), False)
        """
        nodes = {name: constant_node(value) for name, value in constants.items()}
        root = bind(self._root, nodes)
        return bool(root.value) if is_decided(root) else Expression(root)

    def _answers(self, table: pa.Table | pa.RecordBatch) -> pa.Array:
        operand = self._evaluated(table)
        if kind_of(operand.type) not in ("bool", "null"):
            raise RecipeError(
                f"expression {short(self._text)} gives {operand.type}, not true or false; compare it with something"
            )
        return as_array(operand.arrow(pa.bool_()), table.num_rows)

    def _evaluated(self, table: pa.Table | pa.RecordBatch) -> Operand:
        def column(path: tuple[str, ...]) -> Any:
            whole = table.column(table.schema.get_field_index(path[0]))
            return pc.struct_field(whole, list(path[1:])) if path[1:] else whole

        return self._built(table.schema, column).decoded()

    def _built(self, schema: pa.Schema, column: Callable[[tuple[str, ...]], Any]) -> Operand:
        return self._located(lambda: evaluate(self._root, lambda node: column_operand(node, schema, column)))

    def _located(self, find: Callable[[], Result]) -> Result:
        """What a function finds; errors quote the expression."""
        try:
            return find()
        except (RecipeError, UnknownColumn) as error:
            raise type(error)(f"expression {short(self._text)}: {error}") from None
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise RecipeError(f"expression {short(self._text)}: {error}") from error

    # How it is built --------------------------------------------------------------------------------------------

    def __eq__(self, other: object) -> Expression:  # type: ignore[override]
        return _binary("==", self, other)

    def __ne__(self, other: object) -> Expression:  # type: ignore[override]
        return _binary("!=", self, other)

    def __lt__(self, other: object) -> Expression:
        return _binary("<", self, other)

    def __le__(self, other: object) -> Expression:
        return _binary("<=", self, other)

    def __gt__(self, other: object) -> Expression:
        return _binary(">", self, other)

    def __ge__(self, other: object) -> Expression:
        return _binary(">=", self, other)

    def __add__(self, other: object) -> Expression:
        return _binary("+", self, other)

    def __radd__(self, other: object) -> Expression:
        return _binary("+", other, self)

    def __sub__(self, other: object) -> Expression:
        return _binary("-", self, other)

    def __rsub__(self, other: object) -> Expression:
        return _binary("-", other, self)

    def __mul__(self, other: object) -> Expression:
        return _binary("*", self, other)

    def __rmul__(self, other: object) -> Expression:
        return _binary("*", other, self)

    def __truediv__(self, other: object) -> Expression:
        return _binary("/", self, other)

    def __rtruediv__(self, other: object) -> Expression:
        return _binary("/", other, self)

    def __mod__(self, other: object) -> Expression:
        return _binary("%", self, other)

    def __rmod__(self, other: object) -> Expression:
        return _binary("%", other, self)

    def __and__(self, other: object) -> Expression:
        return _logical("and", self, other)

    def __rand__(self, other: object) -> Expression:
        return _logical("and", other, self)

    def __or__(self, other: object) -> Expression:
        return _logical("or", self, other)

    def __ror__(self, other: object) -> Expression:
        return _logical("or", other, self)

    def __invert__(self) -> Expression:
        return self._with("not")

    def __neg__(self) -> Expression:
        return Expression(negative_node(self._root))

    def __bool__(self) -> NoReturn:
        raise TypeError(
            f"{short(self._text)} has no answer before it meets rows: use & | ~ with parentheses instead of and, or, "
            "not, and .between instead of a < x < b"
        )

    def is_in(self, values: Iterable[Any]) -> Expression:
        """Whether it is one of these numbers or texts."""
        if isinstance(values, (str, bytes, Expression)) or not isinstance(values, Iterable):
            raise ConfigError(f"is_in is for a list of values, got {values!r}")
        nodes = [constant_node(value) for value in values]
        if not nodes:
            raise ConfigError(f"{short(self._text)}: is_in of an empty list would keep no row")
        if any(node.op != "constant" for node in nodes):
            raise ConfigError(f"{short(self._text)}: a list holds numbers, text and bools; compare times with ==")
        return Expression(Node("in", (self._root,), tuple(node.value for node in nodes)))

    def between(self, low: Any, high: Any) -> Expression:
        """Whether it lies between two values, both included."""
        return _logical("and", self >= low, self <= high)

    def is_null(self) -> Expression:
        """Whether it is null, or unknown; never unknown itself."""
        return self._with("is_null")

    def is_not_null(self) -> Expression:
        """Whether it has a value."""
        return ~self.is_null()

    def is_finite(self) -> Expression:
        """Whether a number is neither infinite nor NaN."""
        return self._with("is_finite")

    def contains(self, text: str) -> Expression:
        """Whether a text contains another."""
        return self._with("contains", checked_argument("contains", text))

    def matches(self, regex: str) -> Expression:
        """Whether a regular expression (RE2) is found anywhere in a text."""
        return self._with("matches", checked_argument("matches", regex))

    def starts_with(self, text: str) -> Expression:
        """Whether a text starts with another."""
        return self._with("starts_with", checked_argument("starts_with", text))

    def ends_with(self, text: str) -> Expression:
        """Whether a text ends with another."""
        return self._with("ends_with", checked_argument("ends_with", text))

    def lower(self) -> Expression:
        """A text in lower case."""
        return self._with("lower")

    def upper(self) -> Expression:
        """A text in upper case."""
        return self._with("upper")

    def strip(self) -> Expression:
        """A text without white space around it."""
        return self._with("strip")

    def length(self) -> Expression:
        """Characters of a text, bytes of a binary, values of a list."""
        return self._with("length")

    def abs(self) -> Expression:
        """A number without its sign."""
        return self._with("abs")

    def cast(self, type_: str) -> Expression:
        """As another type, such as "int64", "float32", "string", "bool" or "timestamp[us]".

        A value that the type cannot hold is an error when rows are met; only float64 to float32 rounds.
        """
        return self._with("cast", checked_argument("cast", type_))

    def _with(self, op: str, value: str | None = None) -> Expression:
        return Expression(Node(op, (self._root,), value))


class _Columns:
    """``col.lang``; ``col["any name"]``, also for one that starts with ``_``; ``col["meta.lang"]``, a struct's field.

    >>> col["meta.lang"].lower() == "en"
    parse("lower(meta.lang) == 'en'")
    """

    def __getattr__(self, name: str) -> Expression:
        # Python and notebooks ask objects for names such as __array__ and _repr_html_.
        if name.startswith("_"):
            raise AttributeError(f"col has no {name!r}; for a column of this name write col[{name!r}]")
        return self[name]

    def __getitem__(self, name: str) -> Expression:
        if not isinstance(name, str) or not name:
            raise ConfigError(f"a column is named by text, got {name!r}")
        return Expression(Node("column", value=utf8(name)))

    def __repr__(self) -> str:
        return "col"


col = _Columns()


def parse(text: str) -> Expression:
    """The expression in a text, which is never run as Python; a ConfigError shows the place of a mistake.

    >>> parse("lang == 'en' and 0.7 < quality <= 1")
    parse("lang == 'en' and (0.7 < quality and quality <= 1)")
    """
    return Expression(parse_node(text))


def as_value(value: object) -> Expression | None:
    """An expression for a new column, from an expression, text, a number or a bool; None for no value.

    >>> as_value("n + 1"), as_value(1), as_value(None)
    (parse('n + 1'), parse('1'), None)
    """
    if value is None:
        return None
    if isinstance(value, (float, np.floating)) and np.isnan(value):
        raise ConfigError("NaN is no value of an expression; write None for no value")
    is_constant = isinstance(value, (bool, int, float, np.bool_, np.integer, np.floating))
    return Expression(constant_node(value)) if is_constant else as_expression(value)


def as_expression(value: object) -> Expression:
    """An expression given as itself or as text.

    >>> as_expression("score > 0").same_as(col.score > 0)
    True
    """
    if isinstance(value, Expression):
        return value
    if isinstance(value, str):
        return parse(value)
    raise ConfigError(f"an expression is col.score > 0 or 'score > 0', got {type(value).__name__} {value!r}")


# Building ---------------------------------------------------------------------------------------------------------


def _binary(op: str, left: object, right: object) -> Expression:
    return Expression(Node(op, (_node(left), _node(right))))


def _logical(op: str, left: object, right: object) -> Expression:
    for side in (left, right):
        if not isinstance(side, (Expression, bool, np.bool_)):
            raise TypeError(f"& and | join expressions, got {side!r}; put parentheses, as in (col.a == 1) & col.b")
    return _binary(op, left, right)


def _node(value: object) -> Node:
    return value._root if isinstance(value, Expression) else constant_node(value)


def _filled(answers: pa.Array, unknown: bool) -> Mask:
    """Answers as a mask, with this for those that are null."""
    known = answers.fill_null(unknown) if answers.null_count else answers
    return np.asarray(known.to_numpy(zero_copy_only=False), np.bool_)


# Evaluating ---------------------------------------------------------------------------------------------------------


def evaluate(node: Node, column: Callable[[Node], Operand]) -> Operand:
    """The operand of a tree, where ``column`` gives those of its columns."""
    if node.op == "constant":
        return constant_operand(node)
    if node.op == "column":
        return column(node)
    operands = [evaluate(arg, column) for arg in node.args]
    encoded = [operand for operand in operands if operand.is_dictionary]
    has_only_constants = all(each.is_constant or each.is_dictionary for each in operands)
    if len(encoded) == 1 and has_only_constants and node.op in ON_DICTIONARY:
        return _evaluate_on_dictionary(node, operands, encoded[0])
    return Operand(node, *RULES[node.op](node, *(operand.decoded() for operand in operands)))


def _evaluate_on_dictionary(node: Node, operands: list[Operand], encoded: Operand) -> Operand:
    """Evaluate once per dictionary value instead of once per row, and give each row the answer for its value."""
    type_: pa.DataType = pa.null()
    found = []
    for chunk in encoded.value.chunks if isinstance(encoded.value, pa.ChunkedArray) else [encoded.value]:
        is_worth_it = len(chunk.dictionary) <= len(chunk)
        values = chunk.dictionary.cast(encoded.type) if is_worth_it else dictionary_decode(chunk, encoded.type)
        given = [Operand(each.node, each.type, values) if each is encoded else each for each in operands]
        type_, answers = RULES[node.op](node, *given)
        found.append(answers.take(chunk.indices) if is_worth_it else answers)
    if not found:
        return Operand(node, *RULES[node.op](node, *(operand.decoded() for operand in operands)))
    return Operand(node, type_, found[0] if len(found) == 1 else pa.chunked_array(found))


def bind(node: Node, constants: dict[str, Node]) -> Node:
    """The tree with constants in place of columns: ``lang == "en" and n > 0`` is ``n > 0`` where ``lang`` is "en".

    What then reads no column is evaluated at once, by the same rules as rows.
    """
    if node.op == "column":
        return constants.get(node.value, node)
    if not node.args:
        return node
    args = tuple(bind(arg, constants) for arg in node.args)
    if node.op in ("and", "or"):
        return _joined(node.op, *args)
    folded = negative_node(*args) if node.op == "negative" else Node(node.op, args, node.value)
    return _folded(folded) if all(arg.op == "constant" for arg in args) else folded


def is_decided(node: Node) -> bool:
    """Whether it is true or false for every row."""
    return node.op == "constant" and isinstance(node.value, bool)


def _joined(op: str, left: Node, right: Node) -> Node:
    for one, other in ((left, right), (right, left)):
        if is_decided(one):
            return other if one.value is (op == "and") else one
    return Node(op, (left, right))


def _folded(node: Node) -> Node:
    """The constant that a node without columns gives; the node itself if that is a time, NaN or null."""
    if node.op == "constant":
        return node
    value = Expression(node)._located(lambda: evaluate(node, _no_column)).arrow().as_py()
    is_constant = isinstance(value, (bool, int, str)) or (isinstance(value, float) and not math.isnan(value))
    return Node("constant", value=value) if is_constant else node


def _no_column(node: Node) -> NoReturn:
    raise AssertionError(f"a constant part reads {node.value!r}")


# Rows that fail -----------------------------------------------------------------------------------------------------


def halving(
    attempt: Callable[[int, int], Result],
    ranges: Iterable[tuple[int, int]],
    failed: Callable[[int, int, Exception], None],
    *,
    halve: bool = True,
) -> Iterator[tuple[int, int, Result]]:
    """Yield ``(first, n_rows, attempt(first, n_rows))`` for ranges of rows, in order.

    A range that fails is split in half until single rows fail: these go to ``failed``, which may raise. With
    ``halve=False`` a failing range goes there whole.

    >>> numbers, bad = [4, 2, 0, 1], []
    >>> def attempt(first, n_rows):
    ...     return [8 // n for n in numbers[first : first + n_rows]]
    >>> [made for _, _, made in halving(attempt, [(0, 4)], lambda first, n_rows, error: bad.append(first))], bad
    ([[2, 4], [8]], [2])
    """
    waiting = list(ranges)[::-1]  # the next range last
    while waiting:
        first, n_rows = waiting.pop()
        try:
            result = attempt(first, n_rows)
        except Exception as error:
            if halve and n_rows > 1:
                half = n_rows // 2
                waiting += [(first + half, n_rows - half), (first, half)]
            else:
                failed(first, n_rows, error)
            continue
        yield first, n_rows, result
