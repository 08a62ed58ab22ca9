"""Expressions over columns: the answers of plain Python for each row, or a refusal; and text that means the same."""

from __future__ import annotations

import math
import operator
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poolish.errors import ConfigError, LimitExceeded, RecipeError, UnknownColumn
from poolish.expressions import Expression, as_expression, col, parse
from poolish.recipes.sources.pruning import Range, answers, can_prune
from tests.effort import times

# A model: each expression beside a function of one row, in Python's own numbers ----------------------------------

EXACT = 2**53
LETTERS = "aAbé .%'\\\n`"
SCHEMA = pa.schema(
    {
        "i8": pa.int8(),
        "i": pa.int64(),
        "u": pa.uint64(),
        "f": pa.float64(),
        "f4": pa.float32(),
        "text": pa.string(),
        "odd `name`": pa.large_string(),
        "coded": pa.dictionary(pa.int32(), pa.string()),
        "flag": pa.bool_(),
        "numbers": pa.list_(pa.int64()),
        "meta": pa.struct({"lang": pa.string(), "n": pa.int32()}),
    }
)


class Inexact(Exception):
    """Arrow could only answer by rounding or overflow, so poolish must refuse."""


@dataclass
class Modelled:
    expression: Any
    of: Callable[[dict[str, Any]], Any]
    kind: str
    is_constant: bool = False


def near(*values: int) -> st.SearchStrategy[int]:
    return st.builds(operator.add, st.sampled_from(values), st.integers(-2, 2))


INTEGERS = st.one_of(st.integers(-3, 3), near(127, -128, EXACT, -EXACT, 2**62), st.sampled_from([-(2**63), 2**63 - 1]))
FLOATS = st.one_of(
    st.sampled_from([0.0, -0.0, 0.5, 0.7, float(EXACT), 2.0**63, -(2.0**63), 1e300, math.inf, -math.inf]),
    st.floats(-4, 4),
)
TEXTS = st.text(LETTERS, max_size=4)
FLOAT32 = st.one_of(st.just(math.nan), FLOATS).map(lambda value: float(to_float32(value)))
CELLS: dict[str, st.SearchStrategy[Any]] = {
    "i8": st.integers(-128, 127),
    "i": INTEGERS,
    "u": st.one_of(st.integers(0, 3), st.sampled_from([EXACT + 1, 2**63, 2**64 - 1])),
    "f": st.one_of(st.just(math.nan), FLOATS),
    "f4": FLOAT32,
    "text": TEXTS,
    "odd `name`": TEXTS,
    "coded": TEXTS,
    "flag": st.booleans(),
    "numbers": st.lists(st.integers(0, 3), max_size=3),
    "meta": st.fixed_dictionaries({"lang": st.none() | TEXTS, "n": st.none() | st.integers(-3, 3)}),
}
ROWS = st.lists(st.fixed_dictionaries({name: st.none() | cells for name, cells in CELLS.items()}), max_size=6)


def to_float32(value: float) -> np.float32:
    with np.errstate(over="ignore", under="ignore"):
        return np.float32(value)


def column(name: str, kind: str) -> Modelled:
    return Modelled(col[name], lambda row: row[name], kind)


def field(name: str, kind: str) -> Modelled:
    return Modelled(col[f"meta.{name}"], lambda row: row["meta"] and row["meta"][name], kind)


def constant(value: Any, kind: str) -> Modelled:
    return Modelled(value, lambda row: value, kind, is_constant=True)


def lifted(function: Callable[..., Any], *parts: Modelled) -> Callable[[dict[str, Any]], Any]:
    """Null where a part is null."""

    def of(row: dict[str, Any]) -> Any:
        values = [part.of(row) for part in parts]
        return None if None in values else function(*values)

    return of


def exact_float(value: float) -> float:
    if isinstance(value, int) and abs(value) > EXACT:
        raise Inexact
    return float(value)


def exact_int(value: int) -> int:
    if not -(2**63) <= value < 2**63:
        raise Inexact
    return value


def in_arithmetic(part: Modelled, is_float: bool) -> Modelled:
    """Conversion comes first, and for every row: also where the other side is null."""
    convert = exact_float if is_float else exact_int
    return Modelled(part.expression, lifted(convert, part), part.kind)


def quotient(left: float, right: float) -> float:
    with np.errstate(all="ignore"):
        return float(np.float64(left) / np.float64(right))


def remainder(left: float, right: float) -> float | None:
    if isinstance(left, int):
        return left % right if right else None
    return math.nan if right == 0 or not math.isfinite(left) else left % right


SIGNS: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "%": operator.mod,
}


def calculated(sign: str, left: Modelled, right: Modelled) -> Modelled:
    is_float = "float" in (left.kind, right.kind)
    made = SIGNS[sign](left.expression, right.expression)
    if sign == "/" and not is_float:
        return Modelled(made, lifted(lambda a, b: a / b if b else None, left, right), "float")
    sides = [in_arithmetic(side, is_float) for side in (left, right)]
    function = {"/": quotient, "%": remainder}.get(sign, SIGNS[sign])
    checked = function if is_float or sign == "%" else lambda a, b: exact_int(function(a, b))
    return Modelled(made, lifted(checked, *sides), "float" if is_float else "int")


def unary(what: str, part: Modelled) -> Modelled:
    is_float = part.kind == "float"
    function = operator.neg if what == "negative" else abs
    side = in_arithmetic(part, is_float)
    made = -part.expression if what == "negative" else part.expression.abs()
    return Modelled(made, lifted(lambda a: function(a) if is_float else exact_int(function(a)), side), side.kind)


COMPARISONS = [operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge]


def compared(function: Callable[[Any, Any], Any], left: Modelled, right: Modelled) -> Modelled:
    return Modelled(function(left.expression, right.expression), lifted(function, left, right), "bool")


def kleene(what: str, left: Modelled, right: Modelled) -> Modelled:
    decisive = what == "or"

    def of(row: dict[str, Any]) -> bool | None:
        answers = [left.of(row), right.of(row)]
        return decisive if decisive in answers else None if None in answers else not decisive

    function = operator.or_ if what == "or" else operator.and_
    return Modelled(function(left.expression, right.expression), of, "bool")


def text_question(method: str, function: Callable[[str, str], bool], part: Modelled, asked: str) -> Modelled:
    made = getattr(part.expression, method)(asked)
    return Modelled(made, lifted(lambda value: function(value, asked), part), "bool")


NUMBER_COLUMNS = st.sampled_from(
    [
        *(column("i8", "int8"), column("i", "int"), column("u", "uint")),
        *(column("f", "float"), column("f4", "float"), field("n", "int32")),
    ]
)
TEXT_COLUMNS = st.sampled_from(
    [column(name, "text") for name in ("text", "odd `name`", "coded")] + [field("lang", "text")]
)
SMALL = st.one_of(
    st.integers(-3, 3).map(lambda value: constant(value, "int")), st.floats(-4, 4).map(lambda v: constant(v, "float"))
)
ANY_NUMBER = st.one_of(
    SMALL,
    st.one_of(INTEGERS, st.sampled_from([2**64 - 1, 2**63])).map(lambda value: constant(value, "int")),
    FLOATS.map(lambda value: constant(value, "float")),
)


def length(part: Modelled) -> Modelled:
    return Modelled(part.expression.length(), lifted(len, part), "int32")


def arithmetic(numbers: st.SearchStrategy[Modelled]) -> st.SearchStrategy[Modelled]:
    return st.one_of(
        st.builds(calculated, st.sampled_from(list(SIGNS)), numbers, numbers | SMALL),
        st.builds(calculated, st.sampled_from(list(SIGNS)), SMALL, numbers),
        st.builds(unary, st.sampled_from(["negative", "abs"]), numbers),
    )


CHANGED_TEXT = st.builds(
    lambda what, part: Modelled(getattr(part.expression, what)(), lifted(getattr(str, what), part), "text"),
    st.sampled_from(["lower", "upper", "strip"]),
    TEXT_COLUMNS,
)
WORDS = TEXT_COLUMNS | CHANGED_TEXT
LENGTHS = st.builds(length, WORDS | st.just(column("numbers", "list")))
NUMBERS = st.recursive(NUMBER_COLUMNS | LENGTHS, arithmetic, max_leaves=4)
CLAIMS = st.one_of(
    st.just(column("flag", "bool")),
    st.builds(compared, st.sampled_from(COMPARISONS), NUMBERS, NUMBERS | ANY_NUMBER),
    st.builds(compared, st.sampled_from(COMPARISONS), NUMBER_COLUMNS, ANY_NUMBER),
    st.builds(compared, st.sampled_from(COMPARISONS), WORDS, WORDS | TEXTS.map(lambda text: constant(text, "text"))),
    st.builds(
        lambda part, values: Modelled(
            part.expression.is_in([value.expression for value in values]),
            lifted(lambda value: any(value == other.expression for other in values), part),
            "bool",
        ),
        NUMBER_COLUMNS,
        st.lists(ANY_NUMBER, min_size=1, max_size=4),
    ),
    st.builds(
        lambda part, values: Modelled(part.expression.is_in(values), lifted(values.__contains__, part), "bool"),
        WORDS,
        st.lists(TEXTS, min_size=1, max_size=4),
    ),
    st.builds(
        lambda asked, part, text: text_question(*asked, part, text),
        st.sampled_from(
            [("contains", operator.contains), ("starts_with", str.startswith), ("ends_with", str.endswith)]
        ),
        WORDS,
        TEXTS,
    ),
    st.builds(
        lambda part: Modelled(part.expression.is_null(), lambda row: part.of(row) is None, "bool"), NUMBERS | WORDS
    ),
    st.builds(lambda part: Modelled(part.expression.is_finite(), lifted(math.isfinite, part), "bool"), NUMBER_COLUMNS),
)
PREDICATES = st.recursive(
    CLAIMS,
    lambda inner: st.one_of(
        st.builds(kleene, st.sampled_from(["and", "or"]), inner, inner),
        inner.map(lambda part: Modelled(~part.expression, lifted(operator.not_, part), "bool")),
    ),
    max_leaves=4,
)


def table_of(rows: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(rows, SCHEMA)


def expected_for(modelled: Modelled, rows: list[dict[str, Any]]) -> list[Any] | None:
    """The answer for each row, or None if one of them cannot be had exactly."""
    try:
        return [modelled.of(row) for row in rows]
    except Inexact:
        return None


def same(found: Any, expected: Any) -> bool:
    if isinstance(expected, float) and math.isnan(expected):
        return isinstance(found, float) and math.isnan(found)
    return bool(found == expected) and isinstance(found, bool) == isinstance(expected, bool)


@settings(max_examples=times(400))
@given(modelled=PREDICATES, rows=ROWS)
def test_masks_are_those_of_plain_python(modelled, rows):
    """Each row is kept that Python's numbers keep, unknown rows are counted, and what is inexact is refused."""
    expected = expected_for(modelled, rows)

    if expected is None:
        with pytest.raises(RecipeError):
            modelled.expression.mask(table_of(rows))
        return
    kept, n_unknown = modelled.expression.mask(table_of(rows))

    assert kept.dtype == np.bool_
    assert kept.tolist() == [answer is True for answer in expected]
    assert n_unknown == expected.count(None)


@settings(max_examples=times(300))
@given(modelled=NUMBERS | WORDS, rows=ROWS)
def test_values_are_those_of_plain_python(modelled, rows):
    """Calculations give the number that Python gives, or are refused."""
    expected = expected_for(modelled, rows)

    if expected is None:
        with pytest.raises(RecipeError):
            modelled.expression.values(table_of(rows))
        return
    found = modelled.expression.values(table_of(rows))

    assert isinstance(found, pa.Array)
    assert all(map(same, found.to_pylist(), expected)), (found.to_pylist(), expected)
    assert len(found) == len(rows)


@settings(max_examples=times(200))
@given(modelled=PREDICATES, rows=ROWS)
def test_pushed_filters_keep_the_same_rows(modelled, rows):
    """A dataset that is given the filter returns what the mask keeps, or Arrow refuses to round."""
    table = table_of([{**row, "i8": i} for i, row in enumerate(rows)])
    try:
        kept, _ = modelled.expression.mask(table)
        found = ds.dataset(table).to_table(filter=modelled.expression.to_arrow(table.schema))
    except (RecipeError, pa.ArrowInvalid):
        return

    assert found["i8"].to_pylist() == np.flatnonzero(kept).tolist()


@settings(max_examples=times(400))
@given(modelled=PREDICATES | NUMBERS | WORDS)
def test_text_parses_to_the_same_expression(modelled):
    """What an expression prints is itself; its fingerprint, parsed, has the same fingerprint."""
    expression = modelled.expression

    again = parse(str(expression))

    assert again.same_as(expression)
    assert again._root == expression._root
    assert hash(again) == hash(expression)
    assert parse(expression.fingerprint).fingerprint == expression.fingerprint


@settings(max_examples=times(200))
@given(modelled=PREDICATES, rows=ROWS)
def test_fingerprint_means_the_same(modelled, rows):
    """The canonical form keeps the same rows."""
    expected = expected_for(modelled, rows)

    if expected is not None:
        kept, _ = parse(modelled.expression.fingerprint).mask(table_of(rows))
        assert kept.tolist() == [answer is True for answer in expected]


@settings(max_examples=times(200))
@given(modelled=PREDICATES, row=st.fixed_dictionaries({name: CELLS[name] for name in ("i", "u", "f", "text", "flag")}))
def test_bound_columns_answer_like_the_columns(modelled, row):
    """Constants in place of some columns change nothing for rows that hold them."""
    full = dict.fromkeys(SCHEMA.names) | row
    constants = {name: value for name, value in row.items() if value == value}
    try:
        expected = modelled.of(full)
        bound = modelled.expression.bind(**constants)
    except (Inexact, RecipeError):
        return

    if isinstance(bound, bool):
        assert bound is expected
    else:
        assert not set(bound.columns) & set(constants)
        try:
            kept, n_unknown = bound.mask(table_of([full]))
        except RecipeError:
            return
        assert (kept.tolist(), n_unknown) == ([expected is True], int(expected is None))


# Exactness ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sign", ["==", "!=", "<", "<=", ">", ">="])
@pytest.mark.parametrize("number", [9007199254740992.0, 9007199254740994.0, 0.5, 1e30, -1e30, math.inf])
def test_large_integers_are_not_rounded_to_meet_a_float(sign, number):
    """2**53 + 1 is not 2**53, although as floats they are one."""
    values = [2**53, 2**53 + 1, -(2**53) - 1, 2**63 - 1, -(2**63), 0]
    compare = {"==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt}.get(
        sign, operator.ge
    )

    kept, _ = compare(col.n, number).mask(pa.table({"n": values}))

    assert kept.tolist() == [compare(value, number) for value in values]


def test_large_integers_are_compared_exactly_with_floats_and_unsigned_integers():
    """No type of Arrow holds both sides; the answer is exact all the same."""
    table = pa.table({"n": [2**53 + 1, 2**62, -1], "x": [2.0**53, 2.0**62, math.nan]})
    table = table.append_column("u", pa.array([2**64 - 1, 2**62, None], pa.uint64()))

    assert (col.n == col.x).mask(table)[0].tolist() == [False, True, False]
    assert (col.n != col.x).mask(table)[0].tolist() == [True, False, True]
    assert (col.n < col.u).mask(table)[0].tolist() == [True, False, False]
    assert (col.n < col.u).mask(table)[1] == 1


def test_calculating_with_a_rounded_integer_is_refused():
    """Where it cannot be right it is an error that names the column."""
    table = pa.table({"n": [2**53 + 1], "x": [0.5]})

    with pytest.raises(RecipeError, match=r"column 'n' \(int64\) cannot be double.*9007199254740993"):
        (col.n + col.x > 0).mask(table)


def test_quotient_of_integers_is_correctly_rounded():
    """As in Python, also beyond 2**53, where rounding both sides first would give another float."""
    pairs = [(2**53 + 1, 1), (2**63 - 1, 3), (-(2**63), 7), (1, 2**62), (5, 0), (2**60, None)]
    table = pa.table({"a": [a for a, _ in pairs], "b": [b for _, b in pairs]})

    expected = [None if not b else a / b for a, b in pairs]
    assert (col.a / col.b).values(table).to_pylist() == expected


def test_overflow_is_refused():
    """Integers do not wrap around."""
    with pytest.raises(RecipeError, match=r"expression 'n \+ 1 > 0': overflow"):
        (col.n + 1 > 0).mask(pa.table({"n": [2**63 - 1]}))


def test_a_row_that_overflows_fails_a_check_alone():
    """A check fails for that row; if no row can be evaluated, the error says why."""
    table = pa.table({"n": [1, 2**62, -1, 2**62, 5]})

    assert (col.n * 4 > 0).passes(table).tolist() == [True, False, False, False, True]
    with pytest.raises(RecipeError, match="overflow"):
        (col.n * 4 > 0).passes(table.slice(1, 1))
    with pytest.raises(RecipeError, match="gives int64, not true or false"):
        (col.n * 4).passes(table)


def test_a_float32_is_compared_as_the_number_it_is():
    """0.7 has no float32, so none is equal to it; 0.5 has."""
    table = pa.table({"x": pa.array([0.7, 0.5], pa.float32())})

    assert (col.x == 0.7).mask(table)[0].tolist() == [False, False]
    assert (col.x < 0.7).mask(table)[0].tolist() == [True, True]
    assert (col.x == 0.5).mask(table)[0].tolist() == [False, True]


# What is refused ------------------------------------------------------------------------------------------------

TABLE = pa.table(
    {
        "lang": ["en", None],
        "quality": pa.array([0.9, 0.1], pa.float32()),
        "n": [1, 2],
        "meta": [{"lang": "en"}, None],
        "when": pa.array([datetime(2024, 1, 1), None], pa.timestamp("ns")),
        "day": [date(2024, 1, 1), date(2024, 1, 2)],
        "nothing": pa.nulls(2),
    }
)


def test_unknown_column_names_the_nearest():
    """The error says what was probably meant, also for fields of structs."""
    with pytest.raises(
        UnknownColumn, match=r"expression \"langu == 'en'\": there is no column 'langu'; did you mean 'lang'"
    ):
        (col.langu == "en").mask(TABLE)
    with pytest.raises(UnknownColumn, match=r"did you mean 'meta\.lang'\?"):
        (col["meta.lan"] == "en").mask(TABLE)
    with pytest.raises(UnknownColumn, match="there are"):
        (col.zzz == "en").to_arrow(TABLE.schema)


@pytest.mark.parametrize(
    ("text", "instead"),
    [("n == None", r"is_null\(column\)"), ("n != NULL", r"not is_null\(column\)"), ("n == True", "write true")],
)
def test_words_of_other_languages_are_told_from_columns(text, instead):
    """None, NULL and True read like columns that are not there; the error says what stands for them."""
    with pytest.raises(UnknownColumn, match=instead):
        parse(text).mask(TABLE)


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        (col.lang > 3, r"column 'lang' \(string\) cannot be compared with number 3"),
        (col.quality == "high", r"column 'quality' \(float\) cannot be compared with text 'high'"),
        (col.lang == col.n, r"column 'lang' \(string\) cannot be compared with column 'n' \(int64\)"),
        (col.n == True, r"column 'n' \(int64\) cannot be compared with bool true"),  # noqa: E712
        (col.n.is_in([1, "a"]), r"column 'n' \(int64\) cannot be compared with text 'a'"),
        (col.meta == col.meta, "cannot be compared"),
        (col.lang + 1 > 2, r"'\+' is for numbers, got column 'lang' \(string\)"),
        (col.n.contains("a"), r"'contains' is for texts, got column 'n' \(int64\)"),
        (col.n.length() > 1, r"column 'n' \(int64\) has no length"),
        (col.n & col.lang, r"'and' is for bools, got column 'n'"),
        (col.n + 1, r"'n \+ 1' gives int64, not true or false"),
        (col.lang.cast("int64") > 1, r"column 'lang' \(string\) cannot be cast to int64"),
        (col.when > "2024-01-01", r"column 'when' \(timestamp\[ns\]\) cannot be compared with text"),
        (col.when > "2024-01-01", r"write cast\('2024-01-01', 'timestamp\[ns\]'\)$"),
        (col.when.cast("timestamp[us, tz=UTC]") > "2024", r"write a time with its zone, .* 'timestamp\[us, tz=UTC\]'"),
        (col.when.cast("date32") == "2024-01-01", r"write cast\('2024-01-01', 'date32'\)$"),
    ],
)
def test_types_that_do_not_fit_are_named(expression, message):
    """No type is guessed: the error names the column and both types."""
    with pytest.raises(RecipeError, match=message):
        expression.mask(TABLE)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lang = 'en'", "at character 6: '=' has no meaning here; write '=='"),
        ("n > 0 AND n < 3", "at character 7: the end was expected here; write 'and' for 'AND'$"),
        ("lang == 'en' and", "at character 17"),
        ("lang == 'en' quality > 1", "at character 14: the end was expected"),
        ("(a > 1", r"at character 7: '\)' was expected"),
        ("a > 1 and foo(b)", "at character 11: 'foo' is no function here"),
        ("matches(a, '(')", "at character 12: Invalid regular expression"),
        ("contains(a, b)", "at character 13: a text in quotes"),
        ("contains(a)", "at character 11: ',' was expected"),
        ("cast(a, 'int46')", "at character 9: 'int46' is no type to cast to; did you mean 'int64'"),
        ("a in []", "at character 7"),
        ("a in [b]", "at character 7: a list holds"),
        ("a not 3", "at character 7: 'in' was expected"),
        ("__import__('os').system('true')", "is no function here"),
        ("a > " + "9" * 1_001, "more than 1,000 digits"),
        ("a > " + "9" * 30, "more than 64 bits"),
        ("", "an expression is text"),
    ],
)
def test_parse_errors_show_the_place(text, message):
    with pytest.raises(ConfigError, match=message):
        parse(text)


def test_limits_protect_the_process():
    """Neither depth nor size of an expression can exhaust the stack or the memory."""
    claims = [col.n > i for i in range(300)]
    with pytest.raises(LimitExceeded, match="is_in"):
        reduce(operator.or_, claims)
    with pytest.raises(LimitExceeded):
        reduce(lambda doubled, _: doubled + doubled, range(60), col.n)
    with pytest.raises(LimitExceeded):
        parse("n" + " + n" * 1_000)
    with pytest.raises(LimitExceeded):
        parse("(" * 70 + "n" + ")" * 70)


def test_deepest_expressions_can_be_printed_and_parsed():
    """Whatever can be built has a text that parses."""
    nested = col.n
    try:
        while True:
            nested = 1 - nested
    except LimitExceeded:
        assert parse(str(nested)).same_as(nested)


def from_deep_stack(call: Callable[[], Any], n_frames: int = 300) -> Any:
    """What a call gives to a program that is itself deep in calls, as trainers and test runners are."""
    return call() if n_frames == 0 else from_deep_stack(call, n_frames - 1)


CHAINS: dict[str, Callable[[int], Expression]] = {
    "sum": lambda n: reduce(operator.add, [col.n] * (n - 1)) > 0,
    "sum as text": lambda n: parse("n" + " + n" * (n - 2) + " > 0"),
    "and": lambda n: reduce(operator.and_, [col.n > i for i in range(n - 1)]),
    "and as text": lambda n: parse(" and ".join(f"n > {i}" for i in range(n - 1))),
    "or as text": lambda n: parse(" or ".join(f"n > {i}" for i in range(n - 1))),
    "comparisons as text": lambda n: parse(" < ".join(["n"] * n)),
    "not": lambda n: ~~reduce(operator.or_, [col.n > i for i in range(n - 3)]),
}


@pytest.mark.parametrize("chain", CHAINS.values(), ids=CHAINS)
def test_longest_chain_can_be_used_from_a_deep_stack(chain):
    """Whatever can be built or parsed can be evaluated, printed, told apart, bound, pushed, pruned by and pickled."""
    table = pa.table({"n": [1, 2]})
    expression = chain(200)

    mask, _ = from_deep_stack(lambda: expression.mask(table))
    pushed = from_deep_stack(lambda: ds.dataset(table).to_table(filter=expression.to_arrow(table.schema)))
    fingerprint = from_deep_stack(lambda: parse(str(expression)).fingerprint)
    again = from_deep_stack(lambda: pickle.loads(pickle.dumps(expression)))
    bound = from_deep_stack(lambda: expression.bind(n=1))
    can_be_pruned = from_deep_stack(lambda: can_prune(expression, table.schema))
    possible = from_deep_stack(lambda: answers(expression._root, {"n": Range(1, 2, has_nulls=False)}))

    assert pushed.num_rows == mask.sum()
    assert fingerprint == expression.fingerprint
    assert again.same_as(expression)
    assert again.columns == ("n",)
    assert bound is bool(mask[0])
    assert can_be_pruned is ("+" not in str(expression) and "n < n" not in str(expression))
    assert {*mask.tolist()} <= possible


@pytest.mark.parametrize("chain", CHAINS.values(), ids=CHAINS)
def test_longer_chain_is_refused_when_it_is_made(chain):
    """Built in Python or parsed, the limit and its words are the same."""
    with pytest.raises(LimitExceeded, match=r"more than 200 operations in a chain; .* is_in.* split it"):
        chain(201)


def test_chain_that_was_built_in_halves_has_a_fingerprint():
    """A flat tree of many claims has the fingerprint of the same claims in a row, however many they are."""
    claims = [col.n > i for i in range(1_024)]
    halved = list(claims)
    while len(halved) > 1:
        halved = [left & right for left, right in zip(halved[::2], halved[1::2], strict=True)]

    fingerprint = from_deep_stack(lambda: parse(str(halved[0])).fingerprint)

    assert fingerprint == " and ".join(sorted(map(str, claims)))


@pytest.mark.parametrize(
    "use",
    [
        bool,
        lambda where: where and where,
        lambda where: not where,
        lambda where: 0 < where < 1,
    ],
)
def test_python_logic_is_a_type_error(use):
    with pytest.raises(TypeError, match=r"use & \| ~"):
        use(col.n > 1)


def test_forgotten_parentheses_are_a_type_error():
    with pytest.raises(TypeError, match="put parentheses"):
        col.n == 1 & col.n  # noqa: B015


@pytest.mark.parametrize("value", [None, math.nan, 2**64, b"en", [1], "\ud800", object()])
def test_constants_that_nothing_equals_are_refused(value):
    with pytest.raises(ConfigError):
        col.n == value  # noqa: B015


@pytest.mark.parametrize("value", [3, None, True, lambda row: True])
def test_only_text_and_expressions_are_expressions(value):
    with pytest.raises(ConfigError, match="an expression is"):
        as_expression(value)


def test_expressions_are_never_changed():
    where = col.n > 1

    with pytest.raises(AttributeError):
        where.text = "n > 2"

    assert pickle.loads(pickle.dumps(where)).same_as(where)


def test_two_columns_of_one_name_are_refused():
    table = pa.table([[1], [2]], names=["n", "n"])

    with pytest.raises(RecipeError, match="2 columns are called 'n'"):
        (col.n > 1).mask(table)


# What is understood ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expression"),
    [
        ("lang == 'en' and quality > 0.7", (col.lang == "en") & (col.quality > 0.7)),
        ("not is_null(meta.lang)", col["meta.lang"].is_not_null()),
        ("contains(x, 'a') or matches(x, '^a')", col.x.contains("a") | col.x.matches("^a")),
        ("length(lower(x)) % 2 == 1", col.x.lower().length() % 2 == 1),
        ('starts_with(x, "it\'s")', col.x.starts_with("it's")),
        ("cast(x, 'int64') in [1, 2]", col.x.cast("int64").is_in([1, 2])),
        ("x not in ['a', 'b']", ~col.x.is_in(["a", "b"])),
        ("1 <= x <= 3", parse("1 <= x and x <= 3")),
        ("x >= 1 and x <= 3", col.x.between(1, 3)),
        ("`any name` - -2 * (a + b)", col["any name"] - -2 * (col.a + col.b)),
        ("`and` == `tick``s`", col["and"] == col["tick`s"]),
        ("-(-x) < 1e999", -(-col.x) < math.inf),  # noqa: B002
        ("not (not flag)", ~~col.flag),
    ],
)
def test_text_and_operators_say_the_same(text, expression):
    assert parse(text).same_as(expression)
    assert str(parse(str(expression))) == str(expression)


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("matches(lang, '^e.$')", [True, False]),
        ("cast(n, 'string') == '2'", [False, True]),
        ("cast(cast(n, 'string'), 'int8') + 1 == 3", [False, True]),
        ("is_null(meta.lang)", [False, True]),
        ("is_null(meta)", [False, True]),
        ("is_null(lang == 'en')", [False, True]),
        ("day > cast('2024-01-01', 'date32')", [False, True]),
        ("nothing > 1 or n == 2", [False, True]),
        ("nothing == 'a' or nothing in [1] or length(nothing) > 0 or lower(nothing) == '' or n == 1", [True, False]),
        ("nothing and true or nothing + 1 > 2", [False, False]),
        ("1 < 2", [True, True]),
        ("lower('A') == 'a' and n in [1]", [True, False]),
    ],
)
def test_text_keeps_rows(text, kept):
    found, _ = parse(text).mask(TABLE)

    assert found.tolist() == kept
    assert TABLE.filter(parse(text).to_arrow(TABLE.schema)).num_rows == sum(kept)


def test_times_are_constants():
    """Python's dates and datetimes meet columns of times in any unit, and print as casts."""
    where = (col.when >= datetime(2024, 1, 1)) & (col.day < date(2024, 1, 2))

    assert where.mask(TABLE)[0].tolist() == [True, False]
    assert parse(str(where)).same_as(where)
    assert parse(str(col.t == datetime(2024, 1, 1, tzinfo=UTC))).columns == ("t",)


def test_long_lists_print_and_parse():
    """A list of many values is one part, not a deep tree."""
    where = ~col.n.is_in(range(20_000))

    assert parse(str(where)).same_as(where)
    assert where.mask(pa.table({"n": [3, 20_000]}))[0].tolist() == [False, True]


def test_columns_of_a_schema():
    where = (col["meta.lang"] == "en") & (col.n > 1) & (col["meta.lang"] != "de")

    assert where.columns == ("meta.lang", "n")
    assert where.top_columns(TABLE.schema) == ("meta", "n")


def test_a_column_with_dots_comes_before_a_field():
    table = pa.table({"a.b": [1], "a": [{"b": 2}]})

    assert col["a.b"].values(table).to_pylist() == [1]


def test_batches_and_empty_tables():
    batch = TABLE.to_batches()[0]

    assert (col.lang == "en").mask(batch)[0].tolist() == [True, False]
    assert (col.lang == "en").mask(TABLE.slice(0, 0))[0].tolist() == []
    assert parse("1 + 1").values(TABLE).to_pylist() == [2, 2]


def test_binding_decides_what_it_can():
    where = (col.ingredient == "web") & (col.score > 0)

    assert (col.ingredient == "web").bind(ingredient="web") is True
    assert (col.ingredient != "web").bind(ingredient="web") is False
    assert where.bind(ingredient="gold") is False
    assert where.bind(ingredient="web").same_as(col.score > 0)
    assert where.bind(other=1).same_as(where)
    assert col.ingredient.lower().is_in(["web"]).bind(ingredient="WEB") is True
    assert col.ingredient.is_null().bind(ingredient="web") is False
    with pytest.raises(RecipeError, match="text 'web' cannot be compared with number 1"):
        (col.ingredient == 1).bind(ingredient="web")


def test_fingerprints_forget_what_does_not_matter():
    same_meaning = ["a > 1 and b == 'x' and c in [2, 1]", "c in [1, 2, 1] and ('x' == b and 1 < a)"]

    assert len({parse(text).fingerprint for text in same_meaning}) == 1
    assert parse("a - b > 1").fingerprint != parse("b - a > 1").fingerprint
    assert parse("a == 1").fingerprint != parse("a == true").fingerprint


def test_pushed_filter_leaves_the_column_as_it_is():
    """Statistics of parquet speak of the column itself, so a constant is fitted to it and not the other way round."""
    schema = pa.schema({"x": pa.float32(), "n": pa.int8()})

    assert str((col.n > 2.5).to_arrow(schema)) == "(n >= 3)"
    assert "cast" not in str(((col.x > 0.7) & (col.n < 1_000)).to_arrow(schema))


def test_remainder_of_floats_is_not_pushed():
    schema = pa.schema({"x": pa.float64()})

    with pytest.raises(RecipeError, match="cannot be pushed down"):
        (col.x % 2 > 1).to_arrow(schema)


def test_columns_are_named_by_text():
    with pytest.raises(ConfigError):
        col[3]
    with pytest.raises(AttributeError, match=r"col\['_x'\]"):
        col._x  # noqa: B018
    assert isinstance(col["_x"], Expression)
    assert isinstance(col["_x"].is_null().to_arrow(pa.schema({"_x": pa.int8()})), pc.Expression)


WORDS = st.one_of(st.none(), st.sampled_from(["rye", "Rye", "wheat", "", "é"]))


@given(st.lists(st.lists(WORDS, max_size=5), max_size=3), st.lists(st.sampled_from(["oats", "rye"]), max_size=2))
def test_words_that_are_left_as_numbers_answer_like_texts(chunks, unused):
    """In chunks with words of their own, with words that no row has, and with more words than rows."""
    coded = [pa.array([*chunk, *unused], pa.string()).dictionary_encode().slice(0, len(chunk)) for chunk in chunks]
    tables = {
        "coded": pa.table({"x": pa.chunked_array(coded, pa.dictionary(pa.int32(), pa.string()))}),
        "plain": pa.table({"x": pa.chunked_array(chunks, pa.string())}),
    }
    asked = [
        *(col.x == "rye", col.x != "rye", col.x > "rye", col.x.is_in(["rye", "é"]), col.x.contains("y")),
        *(col.x.matches("^r|^$"), col.x.starts_with("w"), col.x.length() > 3, col.x.lower() == "rye", col.x == col.x),
        *(col.x.is_null(), (col.x == "rye") | col.x.is_null(), ~(col.x == "rye")),
    ]
    for expression in asked:
        answers = {name: expression.mask(table) for name, table in tables.items()}
        assert answers["coded"][0].tolist() == answers["plain"][0].tolist(), expression
        assert answers["coded"][1] == answers["plain"][1], expression
    for expression in (col.x, col.x.lower(), col.x.length()):
        assert expression.values(tables["coded"]).equals(expression.values(tables["plain"]))


def test_a_word_that_no_row_has_is_no_error():
    """It cannot be cast, but nobody has it."""
    numbers = pa.array(["1", "2", "rye"]).dictionary_encode().slice(0, 2)

    assert col.x.cast("int64").values(pa.table({"x": numbers})).to_pylist() == [1, 2]


@given(
    st.lists(st.one_of(st.none(), st.text("aZ \x1c\t\u00e9\u0130\u00df\ufb01", max_size=4)), max_size=6),
    st.integers(0, 6),
)
def test_texts_change_alike_with_and_without_other_letters(texts, first):
    """ASCII alone takes a quicker way; a part of an array is judged by its own texts."""
    part = pa.array(texts, pa.large_string())[first:]
    table = pa.table({"x": part})

    for expression, function in ((col.x.lower(), pc.utf8_lower), (col.x.upper(), pc.utf8_upper)):
        assert expression.values(table).equals(function(part))
    assert col.x.strip().values(table).equals(pc.utf8_trim_whitespace(part))
    assert col.x.length().values(table).to_pylist() == [None if text is None else len(text) for text in texts[first:]]
