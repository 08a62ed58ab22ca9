"""A profile says what its rows hold, whatever they came as; it merges, parts, and survives JSON."""

from __future__ import annotations

import datetime
import json
import math
from collections import Counter
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from poolish import DatasetBuffer
from poolish.errors import ConfigError, CorruptDataError, SchemaError, UnknownColumn
from poolish.guards import ColumnProfile, Profile
from poolish.guards.stats.profile import checksum_of

pytestmark = pytest.mark.kernels

numbers = st.lists(st.one_of(st.none(), st.floats(width=32), st.integers(-50, 50).map(float)), max_size=60)
integers = st.lists(st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1)), max_size=60)
texts = st.lists(st.one_of(st.none(), st.text(max_size=4)), max_size=60)
bools = st.lists(st.one_of(st.none(), st.booleans()), max_size=60)
lists = st.lists(st.one_of(st.none(), st.lists(st.floats(-5, 5), max_size=3)), max_size=30)


def of(values: Any, **options: Any) -> ColumnProfile:
    return Profile.of({"x": values}, **options)["x"]


def assert_same(a: ColumnProfile, b: ColumnProfile) -> None:
    """All counts the same, moments to rounding."""
    one, two = a.to_json(), b.to_json()
    n, n_other = one.pop("moments"), two.pop("moments")
    if one["lengths"] is not None and two["lengths"] is not None:
        assert_same(a.lengths, b.lengths)  # type: ignore[arg-type]
    one.pop("lengths"), two.pop("lengths")
    assert one == two
    assert n[0] == n_other[0]
    for power, name in enumerate(("mean", "m2", "m3", "m4"), 1):
        found, wanted = getattr(a.moments, name), getattr(b.moments, name)
        if n[0] and math.isfinite(wanted) and math.isfinite(found):
            largest = np.float64(2 * max(abs(a.min / 2), abs(a.max / 2), 1.0))
            with np.errstate(over="ignore"):
                assert abs(found - wanted) <= 1e-9 * n[0] * (2 * largest) ** power


# What is in it ------------------------------------------------------------------------------------------------


def test_profile_says_what_a_column_of_numbers_holds():
    """Counts, moments, range, quantiles and histogram, of the finite values."""
    x = np.random.default_rng(0).gamma(2.0, size=5_000)
    column = of(np.concatenate([x, [np.nan, np.inf, -np.inf, -np.inf]]))

    assert (column.count, column.nulls, column.nan, column.infinite) == (5_004, 0, 1, 3)
    assert (column.above, column.below) == (1, 2)
    assert column.mean == pytest.approx(x.mean())
    assert column.std == pytest.approx(x.std())
    assert (column.min, column.max) == (x.min(), x.max())
    assert column.median == np.median(x)
    assert column.quantile(0.9) == pytest.approx(np.quantile(x, 0.9))
    assert column.quantile_error == 0.0
    assert column.distinct == pytest.approx(5_000, rel=0.08)
    histogram = column.histogram
    assert histogram is not None
    np.testing.assert_allclose(histogram.edges, np.quantile(x, np.arange(1, 10) / 10))
    assert histogram.counts.tolist() == [500] * 10
    assert (histogram.missing, histogram.infinite, histogram.n) == (1, 3, 5_004)


@pytest.mark.parametrize("n_distinct", [10, 1_000, 5_000, 50_000])
def test_distinct_values_are_known_to_their_error(n_distinct: int):
    """Exactly up to a thousand; beyond, four standard errors are seldom exceeded."""
    column = of(np.arange(n_distinct).repeat(2))

    assert (column.distinct_error == 0.0) == (n_distinct <= 1_000)
    assert column.distinct_error < 0.05
    assert abs(column.distinct - n_distinct) <= 4 * column.distinct_error * n_distinct


def test_large_columns_are_summed_up():
    """Beyond ten thousand values quantiles are known to their error, edges and counts exactly."""
    x = np.random.default_rng(0).standard_normal(200_000)

    column = of(x)

    assert 0 < column.quantile_error < 0.001
    for q in (0.01, 0.5, 0.99):
        assert abs((x <= column.quantile(q)).mean() - q) <= column.quantile_error + 1e-5
    assert (column.quantile(0), column.quantile(1)) == (x.min(), x.max())
    np.testing.assert_allclose(column.histogram.edges, np.quantile(x, np.arange(1, 10) / 10))  # type: ignore[union-attr]
    assert column.histogram.counts.tolist() == [20_000] * 10  # type: ignore[union-attr]
    assert column.distinct == pytest.approx(200_000, rel=0.07)
    assert len(Profile({"x": column}).to_json()) < 60_000


def test_sketch_decides_what_is_kept():
    """All values, a summary, or nothing."""
    x = np.random.default_rng(0).standard_normal(20_000)

    assert of(x, sketch="exact").quantile(0.3) == pytest.approx(np.quantile(x, 0.3))
    assert of(x, sketch="exact").quantile_error == 0.0
    assert math.isnan(of(x, sketch="none").median)
    with pytest.raises(ConfigError, match="sketch"):
        of(x, sketch="kll")


def test_few_different_values_are_listed():
    """Numbers as they are, whole ones exactly, also beyond 2**53."""
    huge = 2**53 + 1
    column = of([3, huge, 3, None, 2**63 - 1])

    assert column.categories == {3: 2, huge: 1, 2**63 - 1: 1}
    assert (column.min, column.max) == (3, 2**63 - 1)
    assert column.distinct == 3
    assert column.histogram.values == (3, huge, 2**63 - 1)  # type: ignore[union-attr]


def test_text_has_categories_and_lengths():
    """Lengths in characters."""
    column = of(["aé", "b", None, "aé", ""])

    assert (column.kind, column.count, column.nulls) == ("text", 5, 1)
    assert column.categories == {"aé": 2, "b": 1, "": 1}
    assert column.lengths.mean == 1.25  # type: ignore[union-attr]
    assert (column.lengths.min, column.lengths.max) == (0, 2)  # type: ignore[union-attr]
    assert math.isnan(column.mean)
    assert column.histogram.missing == 1  # type: ignore[union-attr]


def test_many_texts_are_bounded():
    """The most frequent thousand by name, the others as a number; distinct is estimated."""
    column = of([f"id-{i}" for i in range(5_000)] + ["often"] * 10)

    assert column.categories is not None
    assert len(column.categories) == 1_000
    assert column.categories["often"] == 10
    assert column.n_uncategorized == 4_001
    assert column.distinct == pytest.approx(5_001, rel=0.07)


@pytest.mark.parametrize(
    ("values", "kind", "mean"),
    [
        ([True, False, None, True], "bool", 2 / 3),
        (np.array([True, False]), "bool", 0.5),
        (np.array([1, 2], ">i4"), "number", 1.5),
        (np.array([1, 2], np.float16), "number", 1.5),
        (pa.array([1, 2, None]).dictionary_encode(), "number", 1.5),
        ([Decimal("1.5"), None], "number", 1.5),
        ([datetime.date(1970, 1, 2), datetime.date(1970, 1, 4)], "number", 2.0),
        (np.array(["1970-01-03", "NaT"], "datetime64[D]"), "number", 2.0),
        (pd.Series([1.0, 2.0]), "number", 1.5),
        (range(4), "number", 1.5),
        ([10**30, 1], "number", 5e29),
    ],
)
def test_columns_come_in_many_forms(values: Any, kind: str, mean: float):
    """Each as the numbers that it means."""
    column = of(values)

    assert column.kind == kind
    assert column.mean == pytest.approx(mean)


def test_tensors_have_shapes_and_elements():
    """From torch, NumPy and Arrow; also where they differ in shape."""
    import torch

    stacked = of(torch.arange(12, dtype=torch.bfloat16).reshape(2, 2, 3))
    ragged = of([np.zeros((2, 2)), None, np.ones(3)])
    arrow = of(pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(12.0).reshape(2, 2, 3)))

    assert stacked.shapes == arrow.shapes == {(2, 3): 2}
    assert stacked.mean == arrow.mean == 5.5
    assert ragged.shapes == {(2, 2): 1, (3,): 1}
    assert (ragged.count, ragged.nulls, ragged.moments.n) == (3, 1, 7)


def test_lists_have_lengths():
    """Of numbers their elements count; of anything else only how many there are."""
    column = of([[1.0, 2.0], [], None, [6.0]])

    assert column.kind == "list"
    assert (column.lengths.count, column.lengths.max) == (3, 2)  # type: ignore[union-attr]
    assert column.mean == 3.0
    assert math.isnan(of([["a"], ["b", "c"]]).mean)


def test_rows_come_in_many_forms():
    """A table, a batch, a buffer and its snapshot, other libraries' tables, dicts of columns, lists of dicts."""
    rows = [{"x": float(i), "word": "ab"[i % 2]} for i in range(10)]
    table = pa.Table.from_pylist(rows)
    buffer = DatasetBuffer()
    for row in rows:
        buffer.append(row)
    expected = Profile.of(rows)

    for same in (
        table,
        table.to_batches()[0],
        buffer,
        buffer.snapshot(),
        pd.DataFrame(rows),
        {"x": np.arange(10.0), "word": [*"ababababab"]},
    ):
        assert Profile.of(same) == expected


def test_what_is_no_column_is_refused():
    """With the place."""
    with pytest.raises(SchemaError, match="rows"):
        Profile.of(np.arange(3))
    with pytest.raises(SchemaError, match="one type") as caught:
        Profile.of({"x": [1, "a"]})
    assert caught.value.__notes__ == ["while profiling column 'x'"]
    with pytest.raises(UnknownColumn, match="'y'"):
        Profile.of({"x": [1]})["y"]
    with pytest.raises(ConfigError, match="bins"):
        Profile.of({"x": [1]}, bins=1)


@pytest.mark.parametrize(
    "values", [[], [None, None], [np.nan], [np.inf], [1.5], [7, 7, 7], [1e308, -1e308], [""], [[]]]
)
def test_odd_columns_are_profiled_without_a_word(values: list[Any]):
    """Nothing warns, nothing raises, all is shown and survives JSON."""
    profile = Profile.of({"x": values})

    assert profile["x"].count == len(values)
    assert "x" in repr(profile)
    assert "x" in profile._repr_html_()
    assert Profile.from_json(profile.to_json()) == profile
    assert profile.merge(profile)["x"].count == 2 * len(values)


def test_hostile_names_and_values_are_escaped():
    """In HTML they show as what they are."""
    shown = Profile.of({"<script>": ["<b>"]})._repr_html_()

    assert "<script>" not in shown
    assert "&lt;script&gt;" in shown


# Joining and parting ------------------------------------------------------------------------------------------


@given(a=numbers, b=numbers)
def test_merged_numbers_are_the_profile_of_both(a: list[float | None], b: list[float | None]):
    """Counts, range, quantiles, categories and histogram exactly; moments to rounding."""
    assert_same(of(pa.array(a, pa.float64())).merge(of(pa.array(b, pa.float64()))), of(pa.array(a + b, pa.float64())))


@given(a=integers, b=integers)
def test_merged_integers_are_the_profile_of_both(a: list[int | None], b: list[int | None]):
    """Exactly, beyond 2**53 too."""
    assert_same(of(pa.array(a, pa.int64())).merge(of(pa.array(b, pa.int64()))), of(pa.array(a + b, pa.int64())))


@given(a=texts, b=texts)
def test_merged_texts_are_the_profile_of_both(a: list[str | None], b: list[str | None]):
    """With their lengths."""
    assert_same(of(pa.array(a, pa.string())).merge(of(pa.array(b, pa.string()))), of(pa.array(a + b, pa.string())))


@given(a=bools, b=bools)
def test_merged_booleans_are_the_profile_of_both(a: list[bool | None], b: list[bool | None]):
    """Also where one side is all null."""
    assert_same(of(pa.array(a, pa.bool_())).merge(of(pa.array(b, pa.bool_()))), of(pa.array(a + b, pa.bool_())))


@given(a=lists, b=lists)
def test_merged_lists_are_the_profile_of_both(a: list[Any], b: list[Any]):
    """Lengths and elements."""
    kind = pa.list_(pa.float64())
    assert_same(of(pa.array(a, kind)).merge(of(pa.array(b, kind))), of(pa.array(a + b, kind)))


@given(a=numbers, b=numbers, reference=st.lists(st.floats(-50, 50), min_size=30, max_size=60))
def test_on_frozen_bins_parts_merge_and_come_apart(a: list[Any], b: list[Any], reference: list[float]):
    """What was counted on the bins of a reference is exact, joined or taken out again."""
    known = Profile.of({"x": reference})
    first, second, both = (of(pa.array(part, pa.float64()), reference=known) for part in (a, b, a + b))

    merged = first.merge(second)
    left = merged.subtract(second)

    assert_same(merged, both)
    assert left.histogram == first.histogram
    assert left.histogram.bins == known["x"].histogram.bins  # type: ignore[union-attr]
    assert (left.count, left.nulls, left.nan, left.moments.n) == (first.count, first.nulls, first.nan, first.moments.n)
    assert math.isnan(left.median)


def test_large_profiles_merge_exactly_on_shared_bins():
    """Windows of a stream, counted on the bins of a reference: whole numbers that add."""
    rng = np.random.default_rng(0)
    known = Profile.of({"x": rng.standard_normal(30_000)})
    parts = [rng.standard_normal(20_000) for _ in range(3)]

    merged = of(parts[0], reference=known)
    for part in parts[1:]:
        merged = merged.merge(of(part, reference=known))
    whole = of(np.concatenate(parts), reference=known)

    assert merged.histogram == whole.histogram
    assert merged.distinct == whole.distinct
    assert merged.mean == pytest.approx(whole.mean, abs=1e-12)
    assert merged.kurtosis == pytest.approx(whole.kurtosis, abs=1e-9)
    assert abs((np.concatenate(parts) <= merged.median).mean() - 0.5) <= merged.quantile_error


def test_large_profiles_of_their_own_bins_are_estimated_and_say_so():
    """Of bins that differ the first side's are kept; the counts are near, and not called exact."""
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal(30_000), rng.normal(1, 1, 20_000)

    merged = of(a).merge(of(b)).histogram

    assert merged is not None
    assert not merged.is_exact
    expected = np.bincount(np.searchsorted(merged.edges, np.concatenate([a, b]), side="right"), minlength=10)
    assert abs(merged.counts - expected).max() < 60
    assert merged.n == 50_000


def test_large_columns_of_few_values_merge_exactly():
    """Each value keeps a bin of its own, also one that only one side has."""
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 5, 20_000), rng.integers(3, 9, 15_000)

    merged, whole = of(a).merge(of(b)), of(np.concatenate([a, b]))

    assert merged.histogram == whole.histogram
    assert merged.categories == whole.categories
    assert merged.histogram.is_exact  # type: ignore[union-attr]


def test_small_and_large_profiles_merge():
    """The values of the small one are known, so its counts are exact."""
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal(30_000), rng.normal(1, 1, 500)

    merged = of(b).merge(of(a)).histogram

    assert merged is not None
    assert merged.is_exact
    expected = np.bincount(np.searchsorted(merged.edges, np.concatenate([a, b]), side="right"), minlength=10)
    assert merged.counts.tolist() == expected.tolist()


def test_columns_of_one_side_stay_and_kinds_must_agree():
    """A new column is taken over; text and numbers are never one column; nulls fit everything."""
    merged = Profile.of({"x": [1.0], "y": ["a"]}).merge(Profile.of({"x": [None], "z": [2]}))

    assert list(merged) == ["x", "y", "z"]
    assert (merged["x"].count, merged["x"].nulls) == (2, 1)
    with pytest.raises(SchemaError, match="cannot be merged") as caught:
        Profile.of({"x": [1.0]}).merge(Profile.of({"x": ["a"]}))
    assert caught.value.__notes__ == ["in column 'x'"]


def test_what_was_no_part_cannot_be_taken_out():
    """More rows, or other values, than there are."""
    whole = Profile.of({"x": ["a", "b"]})

    with pytest.raises(ValueError, match="cannot be taken out"):
        whole.subtract(Profile.of({"x": ["a", "a", "b"]}))
    with pytest.raises(ValueError, match="never a part"):
        whole.subtract(Profile.of({"x": ["c"]}))
    with pytest.raises(UnknownColumn):
        whole.subtract(Profile.of({"y": [1]}))


# JSON ---------------------------------------------------------------------------------------------------------


@given(x=numbers, words=texts, n=integers, parts=lists)
def test_profiles_survive_json(x: list[Any], words: list[Any], n: list[Any], parts: list[Any]):
    """Every bit of it."""
    kinds = {"x": pa.float64(), "words": pa.string(), "n": pa.int64(), "parts": pa.list_(pa.float64())}
    given_values = zip(kinds, (x, words, n, parts), strict=True)
    profile = Profile.of({name: pa.array(values, kinds[name]) for name, values in given_values})

    again = Profile.from_json(profile.to_json())

    assert again == profile
    assert again.to_json() == profile.to_json()


DAMAGES: list[tuple[str, Any]] = [
    ("count", -1),
    ("count", "3"),
    ("kind", "evil"),
    ("moments", [1, 2]),
    ("moments", [-1, 0, 0, 0, 0]),
    ("quantiles", {"n": 3}),
    ("categories", [["a"], [1, 2]]),
    ("categories", [[{"a": 1}], [1]]),
    ("distinct", {"words": "!!"}),
    ("distinct", {}),
    ("range", ["NaN", 2]),
    ("shapes", [[[1, -2], 3]]),
    (
        "histogram",
        {"bins": {"convention": "values", "values": []}, "counts": [1], "beside": [0, 0, 0], "is_exact": True},
    ),
    ("lengths", {"kind": "number"}),
    ("count", 10**400),
    ("n_bins", 10**9),
    ("moments", [10**400, 0, 0, 0, 0]),
    ("moments", [2**63, 0, 0, 0, 0]),
    ("moments", [1, 10**400, 0, 0, 0]),
    ("range", [0, 10**400]),
    ("categories", [[1], [2**63]]),
    ("categories", [[10**400], [1]]),
    ("categories", [["text"], [1]]),
]


@pytest.mark.parametrize(("key", "value"), DAMAGES, ids=[f"{key}-{i}" for i, (key, _) in enumerate(DAMAGES)])
def test_damaged_profiles_are_refused(key: str, value: Any):
    """With the name of the column, and as one kind of error."""
    state = json.loads(Profile.of({"x": [1.0, 2.0, 2.0]}).to_json())
    state["columns"]["x"][key] = value
    state["checksum"] = checksum_of(state["columns"])  # right, so that what stands behind it is looked at

    with pytest.raises(CorruptDataError) as caught:
        Profile.from_json(json.dumps(state))
    assert caught.value.__notes__ == ["in column 'x'"]


@pytest.mark.parametrize("name", ["columns", "checksum"])
def test_a_profile_that_was_changed_is_refused(name: str):
    """However likely its numbers look: the checksum is that of others, or is gone."""
    profile = Profile.of({"x": [1.0, 2.0, 2.0]})
    state = json.loads(profile.to_json())
    state["columns"]["x"]["moments"][1] *= 2 if name == "columns" else 1
    if name == "checksum":
        del state["checksum"]

    with pytest.raises(CorruptDataError, match="without its checksum"):
        Profile.from_json(json.dumps(state))


def test_a_profile_may_be_indented_and_its_keys_be_sorted():
    """Other tools write JSON their own way, and the profile is the same."""
    profile = Profile.of({"x": [1.0, 2.0, 2.0], "ü": ["a", "\N{SNOWMAN}", None]})

    again = json.dumps(json.loads(profile.to_json()), indent=2, sort_keys=True)

    assert Profile.from_json(again) == profile


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", "null", '{"columns": 3}', '{"poolish_profile": 99, "columns": {}}', "NaN"]
)
def test_what_is_no_profile_is_refused(text: str):
    """Anything but what ``to_json`` gave."""
    with pytest.raises(CorruptDataError):
        Profile.from_json(text)


def test_synthetic_samples_are_drawn_from_a_profile():
    """``Faults`` asks a profile for mean, variance and range, by these names."""
    from poolish.guards.faults.substitutes import Synthesizer

    profile = Profile.of({"x": np.random.default_rng(0).normal(5, 1, 1_000), "word": ["a"] * 1_000})

    drawn = [Synthesizer(seed=0, profile=profile).draw(row)["x"] for row in range(100)]

    assert 4 < np.mean(drawn) < 6
    assert Counter(type(x) for x in drawn) == {float: 100}
