"""Two functions are the same if all that they use is the same; a state that nobody can read asks for a version."""

from __future__ import annotations

import functools
import importlib.util
import re
import subprocess
import sys
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from poolish.errors import RecipeError
from poolish.recipes.built_in import built_in
from poolish.recipes.fingerprints import _is_library, fingerprint_of, value_print
from poolish.recipes.steps import CalledStep
from tests.recipes.kitchen import called, made


def print_of(function: Any, **options: Any) -> str:
    """The fingerprint of a step."""
    return CalledStep("knead", function, None, False, options).fingerprint


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
    one, again, other = (print_of(made(source.replace("{k}", str(k)))) for k in (1, 1, 2))

    assert one == again
    assert one != other


def test_a_module_of_the_users_is_followed(tmp_path, monkeypatch):
    """By the names that the function speaks of, also where it imports the module itself."""
    (tmp_path / "kneading_helpers.py").write_text("def knead(x): return x\ndef other(x): return x\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    helpers = __import__("kneading_helpers")
    functions = [
        lambda: made("def step(row): return helpers.knead(row)", helpers=helpers),
        lambda: made("def step(row):\n    import kneading_helpers as h\n    return h.knead(row)"),
        lambda: made("def step(row):\n    from kneading_helpers import knead\n    return knead(row)"),
    ]
    before = [print_of(make()) for make in functions]
    helpers.other = made("def other(x): return 3", "other")
    unrelated = [print_of(make()) for make in functions]
    helpers.knead = made("def knead(x): return 3", "knead")
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
    assert print_of(len, f=made("step = lambda t: 1")) != print_of(len, f=made("step = lambda t: 2"))
    with pytest.raises(RecipeError, match="version"):
        print_of(len, f=Kneader(1))
    assert CalledStep("s", len, 1, False, {"f": Kneader(1)}).fingerprint


def test_tokenizers_are_told_apart_by_what_they_do():
    """Made one after the other they may get one address, so an address says nothing."""
    steps = [built_in("tokenize", "t", {"tokenizer": made(f"step = lambda t: [{k}]")}) for k in (0, 1, 0)]
    prints = [step.fingerprint for step in steps]

    assert prints[0] == prints[2] != prints[1]
    with pytest.raises(RecipeError, match="version"):
        _ = built_in("tokenize", "t", {"tokenizer": Kneader(1)}).fingerprint
    one, two = (built_in("tokenize", "t", {"tokenizer": Kneader(1)}, version=k).fingerprint for k in (1, 2))
    assert one != two


def test_no_fingerprint_depends_on_the_process():
    """Addresses and the order of sets are another in every process."""
    code = (
        "from poolish.recipes.fingerprints import fingerprint_of\nimport json, re, numpy as np\n"
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

    assert print_of(made(source.replace("{k}", "1"))) != print_of(made(source.replace("{k}", "2")))


FUNCTIONS = [made("def step(row): return 1"), made("def step(row): return 2")]


COLOUR = "import enum\nclass E(enum.Enum):\n    A = k"


BASE = "class A:\n    def f(self): return k\nclass E(A):\n    pass"


SETTER = "class E:\n    f = property(lambda self: 1, lambda self, value: k)"


def other_values():
    return {
        "shape": (np.zeros((2, 3)), np.zeros((3, 2))),
        "dtype": (np.zeros(2, np.int64), np.zeros(2, np.float64)),
        "flags": (re.compile("a"), re.compile("a", re.IGNORECASE)),
        "enum": (made(COLOUR, "E", k=1).A, made(COLOUR, "E", k=2).A),
        "partial": (functools.partial(str, 1), functools.partial(str, 2)),
        "base": (made(BASE, "E", k=1), made(BASE, "E", k=2)),
        "setter": (made(SETTER, "E", k=1), made(SETTER, "E", k=2)),
        "which of two functions": (FUNCTIONS + FUNCTIONS[:1], FUNCTIONS + FUNCTIONS[1:]),
        "class in a function": tuple(
            made("def step(row):\n    class C:\n        x = K\n    return {'x': C.x}", K=k) for k in (1, 2)
        ),
    }


@pytest.mark.parametrize("name", list(other_values()))
def test_values_that_differ_in_anything_have_other_prints(name):
    """In their shape, their type, their flags, or in what a class inherits."""
    one, other = other_values()[name]

    assert value_print(one, "s") == value_print(one, "s") != value_print(other, "s")


def test_arrays_of_objects_are_told_by_what_they_hold():
    """Not by where that lies."""
    one, same, other = (np.array([int(text), None], object) for text in ("1" * 30, "1" * 30, "2" * 30))

    assert value_print(one, "s") == value_print(same, "s") != value_print(other, "s")


def test_another_version_of_a_library_is_another_function(monkeypatch):
    """Of a library only its name and its version are known."""
    step = made("import numpy\ndef step(row): return numpy.mean(row['x'])")
    before = value_print(step, "s")
    monkeypatch.setattr(np, "__version__", "0.0.1")

    assert value_print(step, "s") != before


def test_what_runs_as_a_module_is_no_library(monkeypatch):
    """``python -m`` says of __main__ that it lies where packages are installed."""
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", importlib.util.find_spec("pytest"), raising=False)

    assert not _is_library.__wrapped__("__main__")


def test_a_version_is_one_of_its_own_function():
    """Two functions may both be in their first version, in one cache."""
    one, other = (made(f"def {name}(row): return row", name) for name in ("help", "harm"))

    assert fingerprint_of(one, "s", 1) == fingerprint_of(made("def help(row): return [row]", "help"), "s", 1)
    assert fingerprint_of(one, "s", 1) != fingerprint_of(other, "s", 1)
    assert (
        fingerprint_of(functools.partial(one, 1), "s", 1) == fingerprint_of(one, "s", 1) != fingerprint_of(one, "s", 2)
    )
