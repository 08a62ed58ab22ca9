"""Steps one by one: when two functions are the same, which types rows keep, what happens to rows that fail."""

from __future__ import annotations

import functools
import re
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from poolish import col
from poolish.errors import RecipeError, SchemaError, UnknownColumn
from poolish.guards import Suite
from poolish.recipes import steps
from poolish.recipes.built_in import built_in
from poolish.recipes.callables import RowPredicate
from poolish.recipes.piece import Piece, canonical_table
from poolish.recipes.steps import CalledStep, Prepared, fingerprint_of
from poolish.recipes.suites import SuiteStep


def piece(table: pa.Table, first: int = 10) -> Piece:
    """Rows of a file, numbered from 10, so that a place in the piece is not taken for a row of the file."""
    return Piece.read("oats", "f.parquet", canonical_table(table), np.arange(first, first + table.num_rows))


def called(
    function: Any, table: pa.Table, on_error: str = "raise", batched: bool | str = False, **options: Any
) -> Prepared:
    """What a step makes of a table."""
    return CalledStep("knead", function, None, batched, options).prepare(piece(table), on_error)


def print_of(function: Any, **options: Any) -> str:
    """The fingerprint of a step."""
    return CalledStep("knead", function, None, False, options).fingerprint


def defined(source: str, name: str = "step", **names: Any) -> Any:
    """A function as a module has it whose globals are these; made anew each time, as after an edit."""
    exec(source, names)
    return names[name]


def told(error: BaseException) -> str:
    """The message and its notes."""
    return " ".join([str(error), *getattr(error, "__notes__", ())])


# When two functions are the same -------------------------------------------------------------------------------------

CHANGES = {
    "a function that it calls": ("def helper(x): return x + {k}\ndef step(row): return helper(row)"),
    "a function two calls away": ("def a(x): return {k}\ndef b(x): return a(x)\ndef step(row): return b(row)"),
    "a global in a comprehension": ("K = {k}\ndef step(row): return [K * i for i in row]"),
    "a global in a lambda": ("K = {k}\ndef step(row): return (lambda: K)()"),
    "a global in an inner function": ("K = {k}\ndef step(row):\n    def inner(): return K\n    return inner()"),
    "a default": "def step(row, k={k}): return row",
    "a default that only has a name": "def step(row, *, k={k}): return row",
    "a constant": "def step(row): return {k}",
    "a function in a list": "def f(x): return {k}\nALL = [f]\ndef step(row): return ALL[0](row)",
    "a class": "class C:\n    def f(self): return {k}\ndef step(row): return C().f()",
    "a member of a class": "class C:\n    k = {k}\ndef step(row): return C.k",
    "what a decorator wraps": (
        "import functools\ndef twice(f):\n    @functools.wraps(f)\n    def g(x): return f(f(x))\n    return g\n"
        "@twice\ndef step(row): return {k}"
    ),
    "what a cache wraps": "import functools\n@functools.lru_cache\ndef f(x): return {k}\ndef step(row): return f(row)",
    "an array": "import numpy\nT = numpy.arange(9000)\nT[4500] = {k}\ndef step(row): return T",
    "a pattern": "import re\nP = re.compile('a{k}')\ndef step(row): return P.sub('', row)",
    "an attribute of the function": "def step(row): return step.k\nstep.k = {k}",
}


@pytest.mark.parametrize("source", CHANGES.values(), ids=CHANGES)
def test_whatever_a_function_uses_is_part_of_what_it_is(source):
    """Another value anywhere is another function; the same text twice is the same one."""
    one, again, other = (print_of(defined(source.replace("{k}", str(k)))) for k in (1, 1, 2))

    assert one == again
    assert one != other


def test_a_module_of_the_users_is_followed(tmp_path, monkeypatch):
    """By the names that the function speaks of, also where it imports the module itself."""
    (tmp_path / "kneading_helpers.py").write_text("def knead(x): return x\ndef other(x): return x\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    helpers = __import__("kneading_helpers")
    functions = [
        lambda: defined("def step(row): return helpers.knead(row)", helpers=helpers),
        lambda: defined("def step(row):\n    import kneading_helpers as h\n    return h.knead(row)"),
        lambda: defined("def step(row):\n    from kneading_helpers import knead\n    return knead(row)"),
    ]
    before = [print_of(make()) for make in functions]
    helpers.other = defined("def other(x): return 3", "other")
    unrelated = [print_of(make()) for make in functions]
    helpers.knead = defined("def knead(x): return 3", "knead")
    after = [print_of(make()) for make in functions]

    assert before == unrelated
    assert all(one != other for one, other in zip(before, after, strict=True))


class Kneader:
    """A state that nobody can read."""

    def __init__(self, k: int) -> None:
        self.k = k

    def __call__(self, row: Any) -> Any:
        return row

    def knead(self, row: Any) -> Any:
        return row


KNEADER = Kneader(1)


@pytest.mark.parametrize(
    "function",
    [
        *(Kneader(1), Kneader(1).knead, functools.partial(Kneader(1)), lambda row: KNEADER.knead(row)),
        *([].append, lambda row, k=KNEADER: row),
    ],
    ids=["object", "bound method", "partial of an object", "global object", "method of a list", "default"],
)
def test_a_state_that_nobody_can_read_asks_for_a_version(function):
    """When the fingerprint is asked for, and not before: without a cache nobody needs it."""
    step = CalledStep("knead", function, None, False, {})

    with pytest.raises(RecipeError, match=r"'knead'.*version=1"):
        _ = step.fingerprint
    assert "7" in CalledStep("knead", function, 7, False, {}).fingerprint


def test_an_object_works_without_a_version():
    """It is called, and never compared."""
    assert called(Kneader(1), pa.table({"x": [1, 2]})).table["x"].to_pylist() == [1, 2]


def test_options_are_told_apart_by_their_content():
    """Arrays in the middle, functions by what they do; an object asks for a version, which then speaks for it."""
    first, second = np.zeros(5_000), np.zeros(5_000)
    second[2_500] = 1

    assert print_of(len, table=first) == print_of(len, table=first.copy()) != print_of(len, table=second)
    assert print_of(len, f=defined("step = lambda t: 1")) != print_of(len, f=defined("step = lambda t: 2"))
    with pytest.raises(RecipeError, match="version"):
        print_of(len, f=Kneader(1))
    assert CalledStep("s", len, 1, False, {"f": Kneader(1)}).fingerprint


def test_tokenizers_are_told_apart_by_what_they_do():
    """Made one after the other they may get one address, so an address says nothing."""
    made = [built_in("tokenize", "t", {"tokenizer": defined(f"step = lambda t: [{k}]")}) for k in (0, 1, 0)]
    prints = [step.fingerprint for step in made]

    assert prints[0] == prints[2] != prints[1]
    with pytest.raises(RecipeError, match="version"):
        _ = built_in("tokenize", "t", {"tokenizer": Kneader(1)}).fingerprint
    one, two = (built_in("tokenize", "t", {"tokenizer": Kneader(1)}, version=k).fingerprint for k in (1, 2))
    assert one != two


def test_no_fingerprint_depends_on_the_process():
    """Addresses and the order of sets are another in every process."""
    code = (
        "from poolish.recipes.steps import fingerprint_of\nimport json, re, numpy as np\n"
        "K = {'rye', 'wheat', 'spelt', 'oats'}\ndef helper(x): return x in {'a', 'b', 'c', 'd'} or K\n"
        "def step(row): return json.dumps([helper(x) for x in np.unique(row)])\n"
        "print(fingerprint_of(step, 's', None))"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout
        for seed in ("1", "2")
    }

    assert len(found) == 1


def test_what_a_library_has_is_known_by_its_name():
    """Functions of libraries hold states of their own that are nobody's business."""
    for function in (np.mean, len, str.upper, re.sub, functools.partial(np.clip, a_min=0, a_max=1)):
        assert fingerprint_of(function, "s", None) == fingerprint_of(function, "s", None)


def test_a_function_that_calls_itself_has_an_end():
    """Also where two call each other."""
    source = "def a(x): return b(x)\ndef b(x): return a(x) + {k}\ndef step(row): return a(row)"

    assert print_of(defined(source.replace("{k}", "1"))) != print_of(defined(source.replace("{k}", "2")))


# Which types rows keep -----------------------------------------------------------------------------------------------


def small_types() -> pa.Table:
    """Types that Python has no words for."""
    numbers = {"i": pa.array([1, 2], pa.int32()), "f": pa.array([0.5, 0.1], pa.float32())}
    return pa.table({**numbers, "n": pa.array([None, None], pa.string())})


@pytest.mark.parametrize(
    ("function", "batched"), [(lambda row: row, False), (lambda columns: columns, "columns"), (lambda t: t, True)]
)
def test_columns_keep_their_types(function, batched):
    """int32, float32, and text where there is nothing but null."""
    made = called(function, small_types(), batched=batched).table

    assert made.schema.equals(piece(small_types()).table.schema)
    assert made.to_pylist() == small_types().to_pylist()


@pytest.mark.parametrize("value", [2**40, 0.5, 2.0, "three"])
@pytest.mark.parametrize("batched", [False, "columns"])
def test_a_value_that_does_not_fit_names_its_place(value, batched):
    """Ingredient, file, row, step and column; nothing is rounded or cast to make it fit."""
    table = pa.table({"i": pa.array([1, 2], pa.int32())})
    per_row = lambda row: {"i": value if row["i"] == 2 else 1}  # noqa: E731
    function = (lambda columns: {"i": [1, value]}) if batched else per_row

    with pytest.raises(SchemaError) as caught:
        called(function, table, batched=batched)

    assert all(word in told(caught.value) for word in ("'oats'", "f.parquet", "row 11", "'knead'", "'i'"))


def test_a_value_that_does_not_fit_may_be_skipped():
    """With all rows that its row became, and once."""
    made = called(
        lambda row: [{"x": 1}, {"x": "no"}, {"x": "no"}] if row["x"] else [{"x": 5}], pa.table({"x": [0, 1, 0]}), "skip"
    )

    assert made.table["x"].to_pylist() == [5, 5]
    assert made.parents.tolist() == [0, 2]
    assert [(each.row, "SchemaError" in each.reason) for each in made.rejected] == [(11, True)]


def test_new_columns_do_not_mix_whole_numbers_and_floats():
    """In any order: else it would depend on the first row, and on how the data is cut."""
    for values in ([1, 0.5], [0.5, 1]):
        with pytest.raises(SchemaError, match="'new'"):
            called(lambda row, values=values: {"new": values[row["x"]]}, pa.table({"x": [0, 1]}))
    assert called(lambda row: {"f": 1}, pa.table({"f": [0.5]})).table["f"].to_pylist() == [1.0]


def test_arrays_may_change_their_shape():
    """As images do that are made smaller."""
    made = called(
        lambda row: {"a": row["a"][:2]}, pa.table({"a": pa.FixedShapeTensorArray.from_numpy_ndarray(np.ones((2, 3)))})
    )

    assert called(lambda row: {"n": row["a"].shape[0]}, made.table).table["n"].to_pylist() == [2, 2]


def test_a_batch_of_nulls_has_the_type_of_the_others(monkeypatch):
    """Of a new column, also inside of lists."""
    monkeypatch.setattr(steps, "BATCH_ROWS", 1)
    for values in ([None, 1, 2], [[], [1], []], [None, "a", None]):
        made = called(
            lambda c, v=values: {"new": [v[x] for x in c["x"]]}, pa.table({"x": [0, 1, 2]}), batched="columns"
        )
        assert made.table["new"].to_pylist() == values


def test_batches_of_other_types_are_told(monkeypatch):
    """With the step and the column."""
    monkeypatch.setattr(steps, "BATCH_ROWS", 1)

    with pytest.raises(RecipeError, match=r"'oats', f.parquet, step 'knead': .*'new'"):
        called(lambda c: {"new": [x or "zero" for x in c["x"]]}, pa.table({"x": [0, 1]}), batched="columns")


def test_of_no_rows_a_step_makes_the_columns_that_it_made_before():
    """What it makes of nothing is known from what it made of something."""
    step = CalledStep("knead", lambda row: {**row, "z": 0.5}, None, False, {})
    table = pa.table({"x": [1]})

    first = step.prepare(piece(table.slice(0, 0)), "raise").table
    step.prepare(piece(table), "raise")
    later = step.prepare(piece(table.slice(0, 0)), "raise").table

    assert first.column_names == ["x"]
    assert later.column_names == ["x", "z"]


# Rows that fail ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("step", "options", "good", "error"),
    [
        ("cast", {"columns": {"v": "int64"}}, [1, 3, 4], RecipeError),
        ("map", {"columns": {"v": col.v.cast("int64")}}, [1, 3, 4], RecipeError),
        ("tokenize", {"column": "v", "into": "v", "tokenizer": lambda text: [int(text)]}, [[1], [3], [4]], ValueError),
    ],
)
def test_built_in_steps_find_the_rows_they_fail_for(step, options, good, error):
    """Skipped one by one, or named in the error."""
    rows = piece(pa.table({"v": ["1", "z", "3", "4", "y"]}))
    made = built_in(step, "knead", options)

    skipped = made.prepare(rows, "skip")
    with pytest.raises(error) as caught:
        made.prepare(rows, "raise")

    assert skipped.table["v"].to_pylist() == good
    assert skipped.parents.tolist() == [0, 2, 3]
    assert [each.row for each in skipped.rejected] == [11, 14]
    assert all(word in told(caught.value) for word in ("'oats'", "f.parquet", "row 11", "'knead'"))


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_what_is_no_rows_fault_is_an_error(on_error):
    """An unknown column, and a value that no null of the column can become."""
    rows = piece(pa.table({"v": [1, None]}))

    with pytest.raises(UnknownColumn) as unknown:
        built_in("cast", "knead", {"columns": {"nope": "int8"}}).prepare(rows, on_error)
    with pytest.raises(RecipeError, match="'v'") as unfit:
        built_in("fill_nulls", "knead", {"columns": {"v": "text"}}).prepare(rows, on_error)

    assert all("'knead'" in told(caught.value) and "'oats'" in told(caught.value) for caught in (unknown, unfit))


def test_a_filter_that_is_a_function_fails_row_by_row():
    """Skipped, or named; None is no, and counted."""
    where = RowPredicate(lambda row: None if row["x"] == 0 else 1 / (row["x"] - 2) < 0)
    rows = piece(pa.table({"x": [0, 1, 2, 3]}))

    judged = where.judged(rows, "skip")
    with pytest.raises(ZeroDivisionError) as caught:
        where.judged(rows, "raise", "knead")

    assert (judged.mask.tolist(), judged.n_null) == ([False, True, False, False], 1)
    assert [each.row for each in judged.rejected] == [12]
    assert all(word in told(caught.value) for word in ("'oats'", "f.parquet", "row 12", "'knead'"))


def test_a_batch_that_fails_is_told_with_all_its_rows():
    """Nobody knows which of them it was."""
    with pytest.raises(ZeroDivisionError) as caught:
        called(lambda table: 1 / 0, pa.table({"x": [1, 2, 3]}), batched=True)

    assert "rows 10 to 12" in told(caught.value)


def test_the_rows_that_a_batch_fails_for_are_found_in_few_calls():
    """By halving: a thousand rows with a bad one cost a few calls, not a thousand."""
    calls = []

    def step(table: pa.Table) -> pa.Table:
        calls.append(table.num_rows)
        if 700 in table["x"].to_pylist():
            raise KeyError("bad")
        return table

    made = called(step, pa.table({"x": range(1_000)}), "skip", batched=True)

    assert made.table["x"].to_pylist() == [x for x in range(1_000) if x != 700]
    assert [each.row for each in made.rejected] == [710]
    assert len(calls) < 30


@pytest.mark.parametrize("batched", [False, True])
def test_a_call_that_hangs_is_given_up(batched):
    """With its place; where rows may be skipped only those that it hangs for are."""
    leave = threading.Event()

    def step(given: Any) -> Any:
        if 2 in (given["x"].to_pylist() if batched else [given["x"]]):
            leave.wait(60)
        return given

    with pytest.raises(RecipeError, match=r"'oats', f.parquet, row.*'knead'.*timeout_s=0.2"):
        called(step, pa.table({"x": [1, 2]}), batched=batched, timeout_s=0.2)
    made = called(step, pa.table({"x": [1, 2, 3]}), "skip", batched=batched, timeout_s=0.2)
    leave.set()

    assert made.table["x"].to_pylist() == [1, 3]
    assert [each.row for each in made.rejected] == [11]


def test_a_timeout_is_no_option_of_the_function():
    """It is not passed on, does not change what is made, and errors come through as they are."""
    assert print_of(len, timeout_s=3) == print_of(len)
    with pytest.raises(KeyError, match="mine") as caught:
        called(lambda row: {}["mine"], pa.table({"x": [1]}), timeout_s=30)
    assert "row 10" in told(caught.value)
    with pytest.raises(RecipeError, match="timeout_s"):
        called(len, pa.table({"x": [1]}), timeout_s=0)


# Options and suites --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("step", "options", "near"),
    [
        ("dedup", {"column": ["a"]}, "columns"),
        ("shuffle", {"sead": 3}, "seed"),
        ("limit", {"n": 1, "batched": True}, "n"),
    ],
)
def test_unknown_options_of_built_in_steps_are_refused(step, options, near):
    """With the nearest name: an option that is ignored does something else than was asked for."""
    with pytest.raises(RecipeError, match=f"'knead'.*{near}"):
        built_in(step, "knead", options)


@pytest.mark.parametrize(
    ("suite", "needs_all"),
    [
        (Suite().expect("x", at_least=0).expect_rows("x > 0"), False),
        (Suite().expect_unique("x"), True),
        (Suite().expect("x", unique=True), True),
        (Suite().stat("x", mean=(0, 1)), True),
        (Suite().outliers("x"), True),
        (Suite().drift(["x"]), True),
    ],
)
def test_a_suite_says_whether_it_needs_all_rows(suite, needs_all):
    """Where a verdict about one row depends on others."""
    assert SuiteStep("check", suite).needs_all is needs_all


def test_rows_of_all_pieces_are_checked_together():
    """In the order they have by now, and only those that are asked about; rejects name their file and row."""
    step = SuiteStep("check", Suite().expect_unique("x"))
    pieces = [
        piece(pa.table({"x": [1, 1]})),
        piece(pa.table({"x": pa.array([], pa.int64())})),
        piece(pa.table({"x": [2, 1, 2]}), 50),
    ]
    rejects: list[dict[str, Any]] = []

    masks = step.masks(pieces, None, None, "skip", rejects)
    backwards = step.masks(pieces, np.arange(5)[::-1], None, "skip", [])
    some = step.masks(pieces, None, col.x == 2, "skip", [])

    assert [mask.tolist() for mask in masks] == [[True, False], [], [True, False, False]]
    assert [mask.tolist() for mask in backwards] == [[False, False], [], [False, True, True]]
    assert [mask.tolist() for mask in some] == [[True, True], [], [True, True, False]]
    assert [(each["ingredient"], each["file"], each["row"], each["step"]) for each in rejects] == [
        ("oats", "f.parquet", row, "check") for row in (11, 51, 52)
    ]
    assert all("x" in each["reason"] for each in rejects)
    with pytest.raises(RecipeError, match=r"f.parquet, row 11, step 'check' and 2 more"):
        step.masks(pieces, None, None, "raise", [])


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_a_statistic_that_fails_has_no_row_to_skip(on_error):
    """So it is an error in any case."""
    step = SuiteStep("check", Suite().stat("x", mean=(0, 1), severity="error"))

    with pytest.raises(RecipeError, match=r"(?s)'check'.*no row is to blame"):
        step.masks([piece(pa.table({"x": [5.0, 6.0]}))], None, None, on_error, [])
