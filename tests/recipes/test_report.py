"""The report of a bake: what was asked and achieved, what was rejected, and what the rows look like."""

from __future__ import annotations

import json
import math
import re
from html.parser import HTMLParser

import numpy as np
import pyarrow as pa
import pytest

from poolish import DatasetRecipe, Suite, col
from poolish.recipes.report import N_REASONS, PROFILED_ROWS, reasons_of

HOSTILE = "<script>alert('x')</script>\x00&\""


def picky(row):
    if row["n"] % 10 == 3:
        raise ValueError("a three")
    return row


def table_of(n_rows):
    n = np.arange(n_rows)
    return pa.table({"n": n, "word": [f"{'even' if i % 2 == 0 else 'odd'}" for i in n], "x": n / 2})


def strict(text):
    """JSON as the standard has it: NaN and infinities are refused."""

    def refuse(word):
        raise AssertionError(f"{word} is not JSON")

    return json.loads(text, parse_constant=refuse)


class Page(HTMLParser):
    """The tags and the text of a page; knows whether all are closed."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.text, self.open, self.attributes = [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in ("meta",):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def test_the_report_counts_what_was_asked_and_achieved():
    """A count is achieved in rows, a fraction as a share of what passed the filter."""
    recipe = DatasetRecipe("breads", seed=4)
    recipe.add_ingredient("some", table_of(1000), where=col.n < 500, take=0.5)
    recipe.add_ingredient("few", table_of(1000), take=20).add_ingredient("all", table_of(30))

    told = strict(recipe.bake().report.to_json())

    some, few, all_ = told["lines"]
    assert (some["asked"], some["rows_in"], some["filtered"]) == (0.5, 1000, 500)
    assert some["achieved"] == some["rows_out"] / 500 == pytest.approx(0.5, abs=0.1)
    assert (few["asked"], few["achieved"]) == (20, 20)
    assert (all_["asked"], all_["achieved"], all_["rows_out"]) == (None, None, 30)
    assert told["n_rows"] == sum(told["shares"].values())


def pairs_of_rows(row):
    """A row twice, where its number is even."""
    return [row, row] if row["n"] % 2 == 0 else [row]


def test_achieved_is_what_the_result_contains_after_all_steps():
    """Beside what was asked and what each step and the guard added or removed, of each ingredient, in every form."""
    recipe = DatasetRecipe("breads", seed=4)
    recipe.add_ingredient("few", table_of(1000), take=200).add_ingredient(
        "some", table_of(1000), where=col.n < 500, take=0.5
    )
    recipe.prepare_step("small", "filter", keep=col.n < 400).prepare_step("once", "dedup", columns=["n"])
    recipe.prepare_step("late", "filter", keep=col.n >= 100).prepare_step("two", pairs_of_rows)
    guard = Suite("guard").expect("n", at_most=350).on(error="drop")

    result = recipe.bake(guard=guard)

    told, baked = strict(result.report.to_json()), result.lineage.rows.shares()
    for each, line in zip(told["ingredients"], told["lines"], strict=False):
        assert each["rows"] == baked[each["name"]] > 0
        assert each["selected"] + sum(each["changes"].values()) == each["rows"]
        assert line["achieved"] == each["achieved"] == (each["rows"] if each["name"] == "few" else each["rows"] / 500)
        changes = ", ".join(f"{step} {n:+,}" for step, n in each["changes"].items())
        assert f"; then {changes}: {each['rows']:,} rows" in str(result.report)
    few, some = (each["changes"] for each in told["ingredients"])
    assert list(few) == ["small", "late", "two", "guard"]
    assert list(some) == ["small", "once", "late", "two", "guard"]
    assert {step: n > 0 for step, n in some.items()} == {step: step == "two" for step in some}
    assert "asked 200, achieved" in str(result.report)
    assert "<th" in result.report.to_html().partition("Asked and achieved")[2]


def test_tokens_are_achieved_where_a_column_still_counts_them():
    """In what the result contains; without the column nobody can say, so the report does not either."""
    recipe = DatasetRecipe("r", total=50, unit="tokens", tokens="n").add_ingredient("a", table_of(20), weight=1)

    whole = recipe.bake().report.ingredients[0]
    fewer = recipe.copy().prepare_step("less", "filter", keep=col.n > 8).bake()
    gone = recipe.copy().prepare_step("gone", "drop", columns=["n"]).bake().report

    assert whole.achieved >= 50
    assert fewer.report.ingredients[0].achieved == sum(fewer.table["n"].to_pylist())
    assert gone.ingredients[0].achieved is None
    assert "achieved unknown, as no column counts tokens any more" in str(gone)


def test_rejected_rows_are_counted_by_reason():
    """By step and reason, in text, JSON and HTML."""
    recipe = DatasetRecipe("breads").add_ingredient("rye", table_of(100)).prepare_step("picky", picky)

    report = recipe.bake(on_error="skip").report

    told = strict(report.to_json())
    assert told["reasons"] == [{"step": "picky", "reason": "ValueError: a three", "rows": 10}]
    assert "rejected 10 by picky: ValueError: a three" in str(report)
    assert "ValueError: a three" in report.to_html()


def test_many_reasons_are_summed_up():
    """A reason for each row would fill pages; the rare ones are counted together, and none is lost."""
    rejects = [{"step": "s", "reason": f"bad {i}"} for i in range(1000)] + [{"step": "s", "reason": "often"}] * 5

    found = reasons_of(rejects)

    assert found[0].reason == "often"
    assert len(found) == N_REASONS + 1
    assert sum(each.rows for each in found) == 1005


def test_distributions_are_those_of_each_ingredient():
    """Numbers have their range and a histogram of all of them, text its lengths and most frequent values."""
    recipe = DatasetRecipe("breads").add_ingredient("low", table_of(100)).add_ingredient("high", table_of(1000))

    told = strict(recipe.bake().report.to_json())["distributions"]

    n = told["high"]["columns"]["n"]
    assert (n["min"], n["mean"], n["max"]) == (0, 499.5, 999)
    assert sum(n["histogram"]["counts"]) == 1000
    assert len(n["histogram"]["edges"]) == len(n["histogram"]["counts"]) + 1
    assert told["low"]["columns"]["n"]["max"] == 99
    word = told["low"]["columns"]["word"]
    assert word["most_frequent"] == [["even", 50], ["odd", 50]]
    assert (word["lengths"]["min"], word["lengths"]["max"]) == (3, 4)


def test_distributions_of_many_rows_are_of_a_sample():
    """A large ingredient is profiled by some of its rows, and the report says so."""
    n_rows = PROFILED_ROWS + 50_000
    result = DatasetRecipe("big").add_ingredient("rye", pa.table({"n": np.arange(n_rows)})).bake()

    told = strict(result.report.to_json())["distributions"]["rye"]

    assert told["of_rows"] == told["columns"]["n"]["rows"] == PROFILED_ROWS
    assert told["columns"]["n"]["mean"] == pytest.approx(n_rows / 2, rel=0.02)
    assert f"estimates from {PROFILED_ROWS:,} of them" in result.report.to_html()


@pytest.mark.parametrize(
    "column",
    [
        pa.array([math.nan, math.inf, -math.inf, 1.0]),
        pa.array([math.nan] * 4),
        pa.array([None] * 4, pa.float64()),
        pa.array([1.7e308, -1.7e308, 0.0, 1.0]),
        pa.array([2**63 - 1, -(2**63), 0, 1]),
        pa.array([5.0] * 4),
        pa.array([[1], [], None, [2, 3]]),
        pa.array([{"a": 1}] * 4),
        pa.array([b"x", b"", None, b"y"]),
        pa.array([True, False, None, True]),
        pa.array([0, 1, 2, 3], pa.timestamp("us")),
    ],
)
def test_every_column_has_a_report(column):
    """Whatever a column holds, its JSON is finite and strict and its page is whole."""
    report = DatasetRecipe("odd").add_ingredient("rye", pa.table({"c": column})).bake().report

    assert strict(report.to_json())["distributions"]["rye"]["columns"]["c"]["rows"] == 4
    assert Page(report.to_html()).open == []


def test_a_page_stands_alone_and_runs_nothing():
    """No script, no style sheet, no address of another host; hostile names and values are shown as text."""
    table = pa.table({HOSTILE.replace("\x00", ""): ["<img src=x onerror=y>"] * 9, "n": range(9)})
    recipe = DatasetRecipe(HOSTILE).add_ingredient(HOSTILE, table)

    page = Page(recipe.bake().report.to_html())

    assert page.open == []
    assert not {"script", "link", "iframe", "img", "style"} & set(page.tags)
    assert not [value for name, value in page.attributes if name.startswith("on") or name in ("href", "src")]
    assert "<script>alert('x')</script>" in "".join(page.text)
    assert page.tags.count("svg") >= 2


def test_notebooks_show_a_part_of_a_page():
    """What a notebook shows has no head of its own."""
    report = DatasetRecipe("breads").add_ingredient("rye", table_of(3)).bake().report

    assert re.match("<div", report._repr_html_())


def test_an_empty_bake_has_a_report_too():
    """No row passes: counts are zero, and nothing divides by them."""
    recipe = DatasetRecipe("none").add_ingredient("rye", table_of(10), where=col.n > 100, take=0.5)

    report = recipe.bake().report

    assert strict(report.to_json())["n_rows"] == 0
    assert Page(report.to_html()).open == []
