"""The one evaluator: a tree, from columns and constants upwards, by the rules of rules.py.

    schema, name --find_column, plain--> operand of a column ---+
                                                                +--evaluate, a rule for each node--> operand of the root
                                       operand of a constant ---+

A column's value is an array where there is a table, and Arrow's own expression where there is only a schema.

Recipes, suites and the command line share these semantics:

- Nulls follow SQL's three-valued logic: an operation on null is null, except that ``and`` and ``or`` may be decided by
  the other side, and ``is_null`` always answers. NaN is a value; of the comparisons only ``!=`` is true for it.
- ``x / 0`` and ``x % 0`` are null for integers and follow IEEE for floats (infinite or NaN).
- Integer overflow is an error, and so is rounding an integer to calculate with a float. Comparisons are exact, and
  the quotient of integers is correctly rounded.
- A filter *drops* rows for which the answer is unknown (``Expression.mask``); a check lets them *pass*
  (``Expression.passes``), because missing values are what ``nullable=False`` is for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from difflib import get_close_matches
from typing import Any, NoReturn, TypeVar

import pyarrow as pa
import pyarrow.types as kinds

from poolish.errors import RecipeError, UnknownColumn
from poolish.expressions.nodes import KEYWORDS, Node, negative_node, short, text_of
from poolish.expressions.rules import ON_DICTIONARY, RULES, Operand, constant_operand
from poolish.schema.types import dictionary_decode

#: Part of the key of every cached result. Raise it whenever an expression may give another result than before.
EVALUATOR_VERSION = 2


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


# Columns of a schema ------------------------------------------------------------------------------------------------


def find_column(name: str, schema: pa.Schema) -> tuple[str, ...]:
    """The path to a column: the column of this name, else the field of a struct that the dots lead to."""
    n_found = len(schema.get_all_field_indices(name))
    if n_found == 1:
        return (name,)
    if n_found > 1:
        raise RecipeError(f"{n_found} columns are called {name!r}; rename them")
    path = tuple(name.split("."))
    if len(path) > 1 and _type_at(schema, path) is not None:
        return path
    raise UnknownColumn(f"there is no column {name!r}; {_suggestion(name, schema)}")


def _suggestion(name: str, schema: pa.Schema) -> str:
    if name.lower() in ("none", "null"):
        return "to ask for no value write is_null(column), or not is_null(column)"
    if name.lower() in KEYWORDS:
        return f"write {name.lower()}"
    near = get_close_matches(name, [*_column_names(schema)], n=1)
    return f"did you mean {near[0]!r}?" if near else f"there are {schema.names}"


def _column_names(schema: pa.Schema) -> Iterator[str]:
    """All names of columns of a schema: its columns, and the fields of structs with dots."""
    for field in schema:
        yield field.name
        if kinds.is_struct(field.type):
            yield from (f"{field.name}.{inner}" for inner in _column_names(pa.schema(field.type.fields)))


def _type_at(schema: pa.Schema, path: tuple[str, ...]) -> Any:
    """The type of a column or of a field in its structs; None if there is none."""
    i = schema.get_field_index(path[0])
    type_: Any = schema.field(i).type if i >= 0 else None
    for name in path[1:]:
        i = type_.get_field_index(name) if type_ is not None and kinds.is_struct(type_) else -1
        type_ = type_.field(i).type if i >= 0 else None
    return type_


def column_operand(node: Node, schema: pa.Schema, value: Callable[[tuple[str, ...]], Any]) -> Operand:
    """A column in a type that Arrow has kernels for: views and half floats are widened, dictionaries stay."""
    path = find_column(node.value, schema)
    column = Operand(node, _type_at(schema, path), value(path))
    type_ = column.type.value_type if kinds.is_dictionary(column.type) else column.type
    if kinds.is_float16(type_):
        type_ = pa.float32()
    elif kinds.is_string_view(type_):
        type_ = pa.large_string()
    elif kinds.is_binary_view(type_):
        type_ = pa.large_binary()
    return Operand(node, type_, column.value if column.is_dictionary else column.arrow(type_))


# Constants in place of columns --------------------------------------------------------------------------------------


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
    try:
        value = evaluate(node, _no_column).arrow().as_py()
    except (RecipeError, pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise RecipeError(f"expression {short(text_of(node))}: {error}") from None
    is_constant = isinstance(value, (bool, int, str)) or (isinstance(value, float) and not math.isnan(value))
    return Node("constant", value=value) if is_constant else node


def _no_column(node: Node) -> NoReturn:
    raise AssertionError(f"a constant part reads {node.value!r}")


# Rows that fail -----------------------------------------------------------------------------------------------------


Result = TypeVar("Result")


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
