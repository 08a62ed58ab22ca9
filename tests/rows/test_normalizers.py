"""Normalizers: how samples of any class become rows, and that a buffer keeps to one kind of sample."""

from __future__ import annotations

import collections
import dataclasses
import re
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pytest
import torch
from PIL import Image

from poolish import DatasetBuffer, register_normalizer
from poolish.errors import SchemaError
from poolish.rows import normalizers
from tests.rows.facts import column, facts


class Loaf:
    def __init__(self, flour, grams):
        self.flour, self.grams = flour, grams


class DarkLoaf(Loaf):
    pass


class BurntLoaf(DarkLoaf):
    pass


class Slotted:
    __slots__ = ("flour",)

    def __init__(self, flour):
        self.flour = flour


@dataclasses.dataclass
class Record:
    flour: str


class Pair(NamedTuple):
    flour: str


@pytest.fixture(autouse=True)
def _forget_normalizers(monkeypatch):
    """What a test registers is gone after it."""
    monkeypatch.setattr(normalizers, "_registered", dict(normalizers._registered))
    monkeypatch.setattr(normalizers, "sees_dicts", normalizers.sees_dicts)


def flours(*samples):
    buffer = DatasetBuffer()
    for sample in samples:
        buffer.append(sample)
    return column(buffer, "flour")


def test_registering_gives_the_function_back():
    """The decorator leaves the function usable."""

    @register_normalizer(Loaf)
    def normalize(loaf):
        return {"flour": loaf.flour}

    assert normalize(Loaf("rye", 1)) == {"flour": "rye"}


def test_the_most_specific_class_wins():
    """A subclass uses its parent's normalizer until it has one of its own."""
    register_normalizer(object)(lambda sample: {"flour": "any"})
    register_normalizer(Loaf)(lambda sample: {"flour": "loaf"})
    assert flours(BurntLoaf("rye", 1)) == ["loaf"]

    register_normalizer(DarkLoaf)(lambda sample: {"flour": "dark"})

    assert flours(Loaf("rye", 1)) == ["loaf"]
    assert flours(DarkLoaf("rye", 1)) == ["dark"]
    assert flours(BurntLoaf("rye", 1)) == ["dark"]
    assert flours(Slotted("rye")) == ["any"]


def test_several_bases_are_asked_in_the_order_of_the_mro():
    """As Python itself looks for attributes."""
    left, right = type("Left", (), {}), type("Right", (), {})
    both = type("Both", (left, right), {})
    register_normalizer(right)(lambda sample: {"flour": "right"})
    register_normalizer(left)(lambda sample: {"flour": "left"})

    assert flours(both()) == ["left"]


def test_the_last_registration_counts():
    """Registering again replaces."""
    register_normalizer(Loaf)(lambda loaf: {"flour": "old"})
    register_normalizer(Loaf)(lambda loaf: {"flour": "new"})

    assert flours(Loaf("rye", 1)) == ["new"]


@pytest.mark.parametrize(
    ("kind", "sample"),
    [
        (Record, Record("rye")),
        (Pair, Pair("rye")),
        (np.ndarray, np.zeros(2)),
        (torch.Tensor, torch.zeros(2)),
        (Image.Image, Image.new("L", (1, 1))),
        (pa.Table, pa.table({"flour": ["rye"]})),
        (Mapping, collections.UserDict(flour="rye")),
        (str, "rye"),
        (int, 7),
        (list, ["rye"]),
        (type(None), None),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_registered_class_is_one_sample_whatever_poolish_would_make_of_it(kind, sample):
    """The user's normalizer comes before everything built in, for whole appends and within iterables."""
    if kind is Mapping:
        kind = collections.UserDict
    register_normalizer(kind)(lambda sample: {"flour": "mine"})

    assert flours(sample, [sample], (s for s in [sample])) == ["mine"] * 3


def test_plain_dicts_can_be_normalized_too():
    """Also those that go the short way of single rows."""
    buffer = DatasetBuffer()
    register_normalizer(dict)(lambda row: {"flour": row["flour"].upper()})

    for _ in range(3):
        buffer.append({"flour": "rye", "left out": 1})
    buffer.append([{"flour": "oat"}])

    assert column(buffer, "flour") == ["RYE", "RYE", "RYE", "OAT"]


def test_a_normalizer_may_build_on_other_samples():
    """Its row may hold whatever a row may hold."""
    register_normalizer(Loaf)(
        lambda loaf: {"record": Record(loaf.flour), "array": np.arange(loaf.grams), "any": {"a": [loaf.grams]}}
    )
    buffer = DatasetBuffer()

    buffer.append([Loaf("rye", 2), Loaf("oat", 1)])

    assert buffer[0]["record"] == {"flour": "rye"}
    assert [row.tolist() for row in column(buffer, "array")] == [[0, 1], [0]]


def test_rows_of_a_normalizer_are_copied():
    """It may hand out the same dict again and again."""
    shared = {"tags": []}

    @register_normalizer(Loaf)
    def normalize(loaf):
        shared["tags"] = shared["tags"] + [loaf.flour]
        return shared

    buffer = DatasetBuffer()
    buffer.append(Loaf("rye", 1))
    for flour in ("oat", "wheat"):
        buffer.append(Loaf(flour, 1))

    assert column(buffer, "tags") == [["rye"], ["rye", "oat"], ["rye", "oat", "wheat"]]


def test_a_normalizer_that_hands_out_one_dict_for_many_samples_still_gives_many_rows():
    """Within one append as well: each sample is looked at before the next is made."""
    shared = {}

    @register_normalizer(Loaf)
    def normalize(loaf):
        shared["flour"] = loaf.flour
        return shared

    buffer = DatasetBuffer()
    buffer.append([Loaf("rye", 1), Loaf("oat", 1)])

    assert column(buffer, "flour") == ["rye", "oat"]


# -- samples that are several rows


def slices(loaf):
    """A loaf as rows, one for each gram."""
    return [{"flour": loaf.flour, "slice": i} for i in range(loaf.grams)]


def as_generator(loaf):
    row = {}
    for made in slices(loaf):
        row.update(made)
        yield row


SEVERAL = {
    "list": slices,
    "tuple": lambda loaf: tuple(slices(loaf)),
    "generator that hands out one dict": as_generator,
    "table": lambda loaf: pa.table({"flour": [loaf.flour] * loaf.grams, "slice": range(loaf.grams)}),
    "batch": lambda loaf: pa.record_batch({"flour": [loaf.flour] * loaf.grams, "slice": pa.array(range(loaf.grams))}),
    "dict, list or table": lambda loaf: {
        1: lambda: slices(loaf)[0],
        2: lambda: slices(loaf),
        3: lambda: pa.Table.from_pylist(slices(loaf)),
    }[loaf.grams](),
}


@pytest.mark.parametrize("normalize", SEVERAL.values(), ids=SEVERAL)
def test_a_sample_may_be_several_rows(normalize):
    """As dicts or as a table, one sample or many, in their order; the kind is that of the sample."""
    register_normalizer(Loaf)(normalize)
    buffer, loaves = DatasetBuffer(), [Loaf("rye", 2), Loaf("oat", 1), Loaf("spelt", 3), Loaf("bran", 1)]

    buffer.append(loaves)
    for loaf in loaves:
        buffer.append(loaf)
    buffer.append(loaf for loaf in loaves)

    rows = [(row["flour"], row["slice"]) for row in (buffer[i] for i in range(len(buffer)))]
    assert rows == 3 * [(row["flour"], row["slice"]) for loaf in loaves for row in slices(loaf)]
    with pytest.raises(SchemaError, match=r"kind .*Loaf, got rows"):
        buffer.append({"flour": "rye", "slice": 0})


def test_a_sample_may_be_no_rows():
    """A normalizer may leave samples out; retention and size count rows."""
    register_normalizer(Loaf)(slices)
    buffer = DatasetBuffer(max_size=3)

    buffer.append(Loaf("rye", 0))
    assert len(buffer) == 0
    buffer.append([Loaf("rye", 0), Loaf("oat", 2), Loaf("rye", 0)])
    assert column(buffer, "flour") == ["oat", "oat"]
    buffer.append([Loaf("rye", 2), Loaf("oat", 0)], retain_prior=0.5)
    assert column(buffer, "flour") == ["oat", "rye", "rye"]


def test_many_samples_of_many_rows_are_read_in_chunks():
    """Beyond the rows that are converted together, too."""
    register_normalizer(Loaf)(slices)
    buffer = DatasetBuffer()

    buffer.append(Loaf(str(i), i % 7) for i in range(5_000))

    assert column(buffer, "flour") == [str(i) for i in range(5_000) for _ in range(i % 7)]


@pytest.mark.parametrize("as_table", [False, True])
def test_an_error_in_one_of_several_rows_names_row_and_sample(as_table):
    """And nothing of the append stays: no sample, and no row of the one that failed."""

    @register_normalizer(Loaf)
    def normalize(loaf):
        rows = [{"flour": loaf.flour, "grams": loaf.grams}, {"flour": loaf.flour, "grams": loaf.grams}]
        rows[1]["grams"] = "many" if loaf.flour == "oat" else loaf.grams
        return pa.table({"flour": ["a"], "grams": ["many"]}) if as_table and loaf.flour == "oat" else rows

    buffer = DatasetBuffer()
    buffer.append(Loaf("rye", 1))
    before = facts(buffer)

    with pytest.raises(SchemaError, match="column 'grams'.*many" if not as_table else "column 'grams'") as caught:
        buffer.append([Loaf("rye", 1), Loaf("rye", 2), Loaf("oat", 3), Loaf("rye", 4)])

    assert facts(buffer) == before
    assert str(caught.value).startswith("row 4" if as_table else "row 5")
    (note,) = caught.value.__notes__
    assert re.search(r"sample 2, of kind .*Loaf", note)


def test_a_generator_that_raises_gains_the_sample():
    """Its own exception, as for a normalizer that raises at once."""

    @register_normalizer(Loaf)
    def normalize(loaf):
        yield {"flour": loaf.flour}
        if loaf.grams == 1:
            raise Sour(degree=7)

    buffer = DatasetBuffer()

    with pytest.raises(Sour) as caught:
        buffer.append([Loaf("rye", 0), Loaf("rye", 1)])

    assert len(buffer) == 0
    assert "sample 1, a Loaf" in caught.value.__notes__[0]


def test_a_normalizer_of_tables_may_return_tables():
    """What it returns is not normalized again."""
    register_normalizer(pa.Table)(lambda table: table.select(["flour"]))

    assert flours(pa.table({"flour": ["rye", "oat"], "grams": [1, 2]})) == ["rye", "oat"]


# -- what can go wrong


class Sour(Exception):
    """The user's own exception, with an argument that must not be lost."""

    def __init__(self, degree):
        super().__init__(degree)
        self.degree = degree


def failing_on(n):
    @register_normalizer(Loaf)
    def normalize(loaf):
        if loaf.grams == n:
            raise Sour(degree=7)
        return {"flour": loaf.flour}


@pytest.mark.parametrize("i", [0, 500, 999])
def test_a_normalizer_that_raises_keeps_its_type_and_gains_the_row(i):
    """The user's exception arrives as it was, with a note that says which sample; no row is kept."""
    failing_on(i)
    buffer = DatasetBuffer()
    buffer.append(Loaf("rye", -1))
    before = facts(buffer)

    with pytest.raises(Sour) as caught:
        buffer.append(Loaf("oat", n) for n in range(1_000))

    assert facts(buffer) == before
    assert (type(caught.value), caught.value.degree, str(caught.value)) == (Sour, 7, "7")
    assert len(caught.value.__notes__) == 1
    assert f"{i}" in caught.value.__notes__[0]
    assert "Loaf" in caught.value.__notes__[0]


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, MemoryError, StopIteration, GeneratorExit])
def test_no_exception_of_a_normalizer_is_swallowed(error):
    """Not even those that Python gives a meaning of its own; the buffer is what it was."""

    @register_normalizer(Loaf)
    def normalize(loaf):
        if loaf.grams:
            raise error
        return {"flour": loaf.flour}

    buffer = DatasetBuffer()
    buffer.append(Loaf("rye", 0))
    before = facts(buffer)

    with pytest.raises((error, RuntimeError)):
        buffer.append([Loaf("oat", 0), Loaf("oat", 1)])

    assert facts(buffer) == before


@pytest.mark.parametrize(
    ("returned", "place", "wrong"),
    [
        (None, "sample 1", "NoneType"),
        (5, "sample 1", "int"),
        ("text", "sample 1", "str"),
        (np.zeros(2), "sample 1", "ndarray"),
        (["flour"], "sample 1, row 0 of it", "str"),
        ([{"flour": 2}, ("flour", 1)], "sample 1, row 1 of it", "tuple"),
        (iter([{"flour": 2}, None]), "sample 1, row 1 of it", "NoneType"),
        (Loaf("rye", 1), "sample 1", "Loaf"),
        (Image.new("RGB", (2, 2)), "sample 1", "Image"),  # it exports Arrow arrays, but they are no rows
    ],
    ids=range(9),
)
def test_a_normalizer_must_return_dicts_or_a_table(returned, place, wrong):
    """The message names the normalizer, the sample and what came."""

    @register_normalizer(Loaf)
    def my_normalizer(loaf):
        return {"flour": 1} if loaf.grams == 0 else returned

    buffer = DatasetBuffer()

    with pytest.raises(SchemaError, match=rf"^{place}: .*my_normalizer .*dict.*table, got {wrong}.*; "):
        buffer.append([Loaf("rye", 0), Loaf("rye", 1)])

    assert facts(buffer) == facts(DatasetBuffer())


@pytest.mark.parametrize(
    "not_a_class",
    [Loaf("rye", 1), "Loaf", None, lambda: 1, list[int]],
    ids=lambda value: re.sub(" at 0x.*", "", repr(value)),
)
def test_only_classes_can_be_registered(not_a_class):
    """``@register_normalizer`` without its class is a mistake that shows at once."""
    with pytest.raises(TypeError, match="class"):
        register_normalizer(not_a_class)


def test_objects_without_attributes_of_their_own_need_a_normalizer():
    """``__slots__`` leave no ``vars``: the message says what to do."""
    buffer = DatasetBuffer()

    with pytest.raises(SchemaError, match=r"row 0: .*Slotted.*register a normalizer"):
        buffer.append(Slotted("rye"))

    register_normalizer(Slotted)(lambda sample: {"flour": sample.flour})
    buffer.append(Slotted("rye"))
    assert column(buffer, "flour") == ["rye"]


KINDS = {
    "dict": lambda: {"tensor": np.zeros(2)},
    "array": lambda: np.zeros(2),
    "tensor": lambda: torch.zeros(2, dtype=torch.float64),
    "picture": lambda: Image.new("L", (1, 1)),
    "object": lambda: Loaf("rye", 1),
    "dataclass": lambda: Record("rye"),
    "named tuple": lambda: Pair("rye"),
}
DIFFERENT = [(a, b) for a in KINDS for b in KINDS if a != b]


@pytest.mark.parametrize(("first", "second"), DIFFERENT, ids=" then ".join)
def test_a_buffer_keeps_to_one_kind_of_sample(first, second):
    """Mixed kinds are refused, in two appends and in one, even where the columns would fit."""
    buffer = DatasetBuffer()
    buffer.append([KINDS[first](), KINDS[first]()])
    before = facts(buffer)

    with pytest.raises(SchemaError, match=r"row 0: .*kind .*, got .*; ") as caught:
        buffer.append(KINDS[second]())
    with pytest.raises(SchemaError, match=r"row 2: .*kind .*, got .*; "):
        buffer.append([KINDS[first](), KINDS[first](), KINDS[second]()])
    with pytest.raises(SchemaError, match=r"row 1: .*kind .*, got .*; "):
        DatasetBuffer().append([KINDS[first](), KINDS[second]()])

    assert facts(buffer) == before
    assert "one buffer per kind" in str(caught.value)


def test_subclasses_are_of_their_own_kind_until_a_normalizer_joins_them():
    """Without one, ``vars`` of another class is another kind."""
    buffer = DatasetBuffer()
    buffer.append(Loaf("rye", 1))
    with pytest.raises(SchemaError, match="kind"):
        buffer.append(DarkLoaf("rye", 1))

    register_normalizer(Loaf)(lambda loaf: {"flour": loaf.flour, "grams": loaf.grams})
    joined = DatasetBuffer()
    joined.append([Loaf("rye", 1), DarkLoaf("oat", 2)])
    joined.append(BurntLoaf("wheat", 3))

    assert column(joined, "flour") == ["rye", "oat", "wheat"]


def test_a_failed_append_does_not_fix_the_kind():
    """All or nothing: the next sample may be of any kind."""
    buffer = DatasetBuffer()

    with pytest.raises(SchemaError):
        buffer.append([np.zeros(2), np.array([None])])
    buffer.append({"a": 1})

    assert buffer.to_pydict() == {"a": [1]}


@pytest.mark.parametrize(
    "sample",
    ["text", b"bytes", 5, 1.5, None, True, object(), Loaf, dict, list, len, [1], [[{"a": 1}]], 2j, ...],
    ids=lambda value: re.sub(" at 0x.*", "", repr(value)),
)
@pytest.mark.parametrize("is_first", [True, False])
def test_what_is_no_sample_is_refused(sample, is_first):
    """With its row, what came, and what to do instead."""
    buffer = DatasetBuffer()
    if not is_first:
        buffer.append({"a": 1})
    before = facts(buffer)

    for samples, row in ((sample, 0), ([{"a": 1}, {"a": 2}, sample], 2)):
        with pytest.raises(SchemaError, match=rf"row {row}: .*got .*; "):
            buffer.append(samples)

    assert facts(buffer) == before
