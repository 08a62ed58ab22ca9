"""A fingerprint changes with everything that decides a result, is the same in every process, or asks for a version."""

from __future__ import annotations

import builtins
import contextvars
import copy
import functools
import importlib.util
import json
import os
import random
import re
import subprocess
import sys
import threading
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from poolish import DatasetRecipe
from poolish.errors import ConfigError, RecipeError
from poolish.fingerprints import fingerprint, function_fingerprint
from poolish.fingerprints.code import is_library
from poolish.load import FilteredDataset, TransformedDataset
from poolish.recipes.steps.called import CalledStep
from poolish.recipes.steps.registry import built_in
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
    "a method of an enum member": (
        "import enum\nclass E(enum.Enum):\n    A = 1\n    def f(self): return {k}\ndef step(row): return E.A.f()"
    ),
    "a private method of an enum": (
        "import enum\nclass E(enum.Enum):\n    A = 1\n    def __str__(self): return '{k}'\nA = E.A\n"
        "def step(row): return str(A)"
    ),
    "the mixin of an enum": (
        "import enum\nclass M:\n    def f(self): return {k}\nclass E(M, enum.Enum):\n    A = 1\nA = E.A\n"
        "def step(row): return A.f()"
    ),
    "another member of an enum": (
        "import enum\nclass E(enum.Enum):\n    A = 1\n    B = {k} + 5\nA = E.A\ndef step(row): return list(type(A))"
    ),
    "a metaclass": (
        "class M(type):\n    @property\n    def k(cls): return {k}\nclass C(metaclass=M): pass\n"
        "def step(row): return C.k"
    ),
    "what a function says it wraps": (
        "def inner(row): return {k}\ndef step(row): return step.__wrapped__(row)\nstep.__wrapped__ = inner"
    ),
    "an inherited attribute": "class A:\n    k = {k}\nclass C(A): pass\ndef step(row): return C.k",
    "a slot": "class C:\n    __slots__ = 'k'\nc = C()\nc.k = {k}\ndef step(row): return c.k",
    "an attribute of an object": "class C: pass\nc = C()\nc.k = {k}\ndef step(row): return c.k",
    "a bound method": (
        "class C:\n    def __init__(self, k): self.k = k\n    def f(self, row): return self.k\nstep = C({k}).f"
    ),
    "an implementation of a generic function": (
        "import functools\n@functools.singledispatch\ndef f(x): return 0\n@f.register\ndef _(x: int): return {k}\n"
        "def step(row): return f(row)"
    ),
    "a static method": "class C:\n    @staticmethod\n    def f(): return {k}\ndef step(row): return C.f()",
    "a class method": "class C:\n    @classmethod\n    def f(cls): return {k}\ndef step(row): return C.f()",
    "a cached property": (
        "import functools\nclass C:\n    @functools.cached_property\n    def f(self): return {k}\n"
        "def step(row): return C().f"
    ),
    "a descriptor": (
        "class D:\n    def __init__(self, k): self.k = k\n    def __get__(self, *_): return self.k\n"
        "class C:\n    f = D({k})\ndef step(row): return C.f"
    ),
    "a partial method": (
        "import functools\nclass C:\n    def g(self, k): return k\n    f = functools.partialmethod(g, {k})\n"
        "def step(row): return C().f()"
    ),
    "an item getter": "import operator\nget = operator.itemgetter({k})\ndef step(row): return get(row)",
    "the annotation of a class": ("class C:\n    x: 'k{k}'\ndef step(row): return C.__annotations__['x']"),
    "a default factory": ("import collections\nd = collections.defaultdict(lambda: {k})\ndef step(row): return d[row]"),
    "a subclass of dict": "class D(dict): pass\nd = D(k={k})\ndef step(row): return d",
    "a named tuple": "import typing\nclass T(typing.NamedTuple):\n    k: int\nt = T({k})\ndef step(row): return t.k",
    "a queue": "import collections\nd = collections.deque([{k}], 5)\ndef step(row): return d[0]",
    "a function in a set": "def f(x): return {k}\nS = {f, len}\ndef step(row): return [g(row) for g in S]",
    "a set that its own function uses": "def step(row): return S or {k}\nS = {step}",
    "a list that its own function uses": "def f(row): return L or {k}\nL = [f]\nL.append(L)\ndef step(row): return L",
    "the metadata of a dtype": (
        "import numpy\nT = numpy.dtype([('x', numpy.dtype('f4', metadata=dict(k={k})))])\ndef step(row): return T"
    ),
    "the metadata of a schema": (
        "import pyarrow\nS = pyarrow.schema([pyarrow.field('x', pyarrow.int8(), metadata=dict(k='{k}' * 2000))])\n"
        "def step(row): return S"
    ),
    "a tensor": "import torch\nT = torch.tensor([1.0, {k}], dtype=torch.bfloat16)\ndef step(row): return T",
    "a builtin of the user's": (
        "import builtins\ndef f(x): return {k}\nbuiltins.kneaded = f\ndef step(row): return kneaded(row)"
    ),
    "an attribute that pickling leaves out": (
        "class C:\n    def __init__(self): self.k = {k}\n    def __getstate__(self): return dict()\nC = C()\n"
        "def step(row): return C.k"
    ),
    "a slot that pickling leaves out": (
        "class C:\n    __slots__ = ('k',)\n    def __init__(self): self.k = {k}\n"
        "    def __reduce__(self): return C, ()\nD = C()\ndef step(row): return D.k"
    ),
    "what a base class leaves out": (
        "class B:\n    def __reduce_ex__(self, n): return type(self), ()\nclass C(B): pass\nD = C()\nD.k = {k}\n"
        "def step(row): return D.k"
    ),
    "what a registered function leaves out": (
        "import copyreg\nclass C: pass\nD = C()\nD.k = {k}\ncopyreg.pickle(C, lambda c: (C, ()))\n"
        "def step(row): return D.k"
    ),
    "a number on a module of Python": "import math\nmath.K = {k}\ndef step(row): return math.K",
    "a function on a module of Python": (
        "import math\ndef f(x): return {k}\nmath.knead = f\ndef step(row): return math.knead(row)"
    ),
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
    """An object with state that cannot be read."""

    def __init__(self, k: int) -> None:
        self.k, self.lock = k, threading.Lock()

    def __call__(self, row: Any) -> Any:
        return row

    def knead(self, row: Any) -> Any:
        return row


KNEADER = Kneader(1)
MODULES = sys.modules
GENERATOR = torch.Generator()


class Hiding:
    """An object whose pickle leaves out a file, which decides what it does, and a lock, which does not."""

    def __init__(self, *, with_file: bool = True) -> None:
        self.file, self.lock = (x for x in ()) if with_file else 1, threading.Lock()

    def __call__(self, row: Any) -> Any:
        return row

    def __getstate__(self) -> dict[str, Any]:
        return {}


def _imports_inside(row: Any) -> Any:
    from importlib import import_module as load

    return load("hid").K


@pytest.mark.parametrize(
    "function",
    [
        *(Kneader(1), Kneader(1).knead, functools.partial(Kneader(1)), lambda row: KNEADER.knead(row)),
        *((x for x in ()).__next__, lambda row, k=KNEADER: row, random.Random(3).choice, np.frompyfunc(len, 1, 1)),
        *(lambda row: eval("K"), lambda row: globals()["K"], contextvars.ContextVar("k", default=1).get),
        *(lambda row: importlib.import_module("hid").K, lambda row: import_module("hid").K),
        *(lambda row: sys.modules["hid"].K, lambda row: MODULES["hid"].K, lambda row: Kneader.__subclasses__()[0].k),
        *(lambda row: builtins.eval("K"), lambda row: print_of.__globals__["K"], lambda row: sys._getframe().f_globals),
        *(_imports_inside, functools.partial(import_module), lambda row: GENERATOR, Hiding()),
    ],
    ids=[
        *("object", "bound method", "partial of an object", "global object", "method of a generator", "default"),
        *("random generator", "wrapped in C", "eval", "globals", "context variable"),
        *("import_module", "import_module by its name", "sys.modules", "sys.modules by a name", "subclasses"),
        *("builtins.eval", "globals of a function", "globals of a frame"),
        *("import inside", "partial of import_module", "generator of torch", "an open file that pickling leaves out"),
    ],
)
def test_state_that_cannot_be_read_asks_for_a_version(function):
    """When the fingerprint is computed, and not before: without a cache it is not needed."""
    step = CalledStep("knead", function, None, False, {})

    with pytest.raises(RecipeError, match=r"'knead'.*version=1"):
        _ = step.fingerprint
    assert "7" in CalledStep("knead", function, 7, False, {}).fingerprint


def test_a_lock_that_pickling_leaves_out_decides_nothing():
    """An object that hides nothing else needs no version."""
    assert print_of(Hiding(with_file=False)) == print_of(Hiding(with_file=False))


def test_pickling_an_object_does_not_change_the_fingerprint_of_its_class():
    """Python caches the slots of a class in the class when it first copies an object."""

    class Fresh:
        def __call__(self, row: Any) -> Any:
            return row

    before = print_of(Fresh)

    copy.copy(Fresh())

    assert "__slotnames__" in vars(Fresh)
    assert print_of(Fresh) == before


def test_a_member_of_a_module_is_found_by_a_text_too(tmp_path, monkeypatch):
    """As getattr and vars ask for it."""
    (tmp_path / "kneading_texts.py").write_text("K = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    helpers = __import__("kneading_texts")
    for source in ("getattr(helpers, 'K')", "vars(helpers)['K']", "helpers.__dict__['K']"):
        helpers.K = 1
        step = made(f"def step(row): return {source}", helpers=helpers)
        before = print_of(step)
        helpers.K = 2
        assert print_of(step) != before


class Knowing:
    """An object that looks for unknown attributes in a dict."""

    def __call__(self, row: Any) -> Any:
        return row

    def __getattr__(self, name: str) -> Any:
        return {}[name]


def test_an_object_that_has_no_attribute_says_so():
    """Whatever is asked of it: the error names the place and the attribute, not an internal line."""
    for make in (
        lambda step: DatasetRecipe("r").prepare_step("knead", step),
        lambda step: DatasetRecipe("r").prepare_step("knead", "drop", columns=["x"], where=step),
        lambda step: TransformedDataset([1], step),
        lambda step: FilteredDataset([1], step),
    ):
        with pytest.raises(ConfigError, match=r"Knowing.__getattr__\('__wrapped__'\) raises KeyError.*AttributeError"):
            make(Knowing())


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


#: Packages of the user's by file, each with a ``job.py`` that has ``step``; ``{k}`` is what one edit changes.
PACKAGES = {
    "a package that is being visited": {
        "job.py": "import corp.steps\ndef step(row): return corp.steps.clean(row)",
        "corp/__init__.py": "",
        "corp/steps.py": "import corp.config\ndef clean(row): return corp.config.K",
        "corp/config.py": "K = {k}",
    },
    "two packages that import each other": {
        "job.py": "import a.x\ndef step(row): return a.x.f(row)",
        "a/__init__.py": "",
        "a/x.py": "import b.y\ndef f(row): return b.y.g(row)\ndef h(): return {k}",
        "b/__init__.py": "",
        "b/y.py": "import a.x\ndef g(row): return a.x.h()",
    },
    "a module imported inside the function": {
        "job.py": "def step(row):\n    import corp.steps\n    return corp.config.K",
        "corp/__init__.py": "",
        "corp/steps.py": "import corp.config",
        "corp/config.py": "K = {k}",
    },
    "a submodule imported by name inside the function": {
        "job.py": "def step(row):\n    from corp import config\n    return config.K",
        "corp/__init__.py": "",
        "corp/config.py": "K = {k}",
    },
    "a relative import inside the function": {
        "job.py": "from corp.steps import step",
        "corp/__init__.py": "",
        "corp/steps.py": "def step(row):\n    from . import config\n    return config.K",
        "corp/config.py": "K = {k}",
    },
    "names imported with a star": {
        "job.py": "from corp.config import *\ndef step(row): return K",
        "corp/__init__.py": "",
        "corp/config.py": "K = {k}",
    },
    "a namespace package": {
        "job.py": "import space.config\ndef step(row): return space.config.K",
        "space/config.py": "K = {k}",
    },
    "a namespace package whose other half is installed": {
        "job.py": "import sys, os\nsys.path.append(os.path.join(os.path.dirname(__file__), 'site-packages'))\n"
        "import halved.config, halved.installed\ndef step(row): return halved.config.K",
        "halved/config.py": "K = {k}",
        "site-packages/halved/installed.py": "",
    },
    "a module of the user's called code": {
        "job.py": "import code\ndef step(row): return code.clean(row)",
        "code.py": "def clean(row): return {k}",
    },
    "a module of the user's called profile": {
        "job.py": "def step(row):\n    from profile import clean\n    return clean(row)",
        "profile.py": "def clean(row): return {k}",
    },
    "a module that computes its attributes": {
        "job.py": "import corp\ndef step(row): return corp.K",
        "corp.py": "def __getattr__(name): return {k}",
    },
    "a module in a closure": {
        "job.py": "def made():\n    import corp\n    return lambda row: corp.K\nstep = made()",
        "corp.py": "K = {k}",
    },
    "the metadata of a dataclass field": {
        "job.py": "import dataclasses\n@dataclasses.dataclass\nclass C:\n"
        "    x: int = dataclasses.field(default=0, metadata={'k': {k}})\ndef step(row): return dataclasses.fields(C)",
    },
    "a default of a dataclass": {
        "job.py": "import dataclasses\n@dataclasses.dataclass(slots=True)\nclass C:\n    x: int = {k}\n"
        "def step(row): return C().x",
    },
    "a class of a generic type": {
        "job.py": "from typing import Generic, TypeVar\nT = TypeVar('T')\nclass C(Generic[T]):\n    k = {k}\n"
        "def step(row: list[T] | None): return C[int].k",
    },
    "sets, patterns and libraries": {
        "job.py": "import json, re\nimport numpy as np\nK = {'rye', 'wheat', 'spelt', 'oats', re.compile('a|b')}\n"
        "def helper(x): return x in {'a', 'b', 'c', {k}} or K\n"
        "def step(row): return json.dumps([helper(x) for x in np.unique(row)])",
    },
    "an object with options": {
        "job.py": "class Resize:\n    def __init__(self, size): self.size, self.modes = size, {'b', 'a', 'c'}\n"
        "    def __call__(self, row): return row\nstep = Resize({k})",
    },
}

_PRINT_ALL = """
import importlib, json, sys
from poolish.fingerprints import function_fingerprint
ours = set(sys.modules)
found = {}
for folder in sys.argv[1:]:
    for name in set(sys.modules) - ours | {"code", "profile"}:
        sys.modules.pop(name, None)
    sys.path.insert(0, folder)
    importlib.invalidate_caches()
    found[folder.rpartition("/")[2]] = function_fingerprint(importlib.import_module("job").step, "step")
    sys.path.remove(folder)
print(json.dumps(found))
"""


def in_a_process(root: Path, k: int, seed: int) -> dict[str, str]:
    """The fingerprint of ``step`` in each package with this ``k``, computed by an interpreter of its own."""
    for number, files in enumerate(PACKAGES.values()):
        for name, text in files.items():
            place = root / str(number) / name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text.replace("{k}", str(k)))
    folders = [str(root / str(number)) for number in range(len(PACKAGES))]
    environment = {**os.environ, "PYTHONHASHSEED": str(seed), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-c", _PRINT_ALL, *folders]
    return json.loads(subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True).stdout)


def test_edits_of_a_package_are_seen_by_the_next_process(tmp_path):
    """Wherever in the package they are; and the same files have the same fingerprints in every process and place."""
    before = in_a_process(tmp_path / "one", k=1, seed=1)
    again = in_a_process(tmp_path / "two", k=1, seed=2)
    after = in_a_process(tmp_path / "one", k=2, seed=3)

    names = list(PACKAGES)
    assert [names[int(number)] for number in before if again[number] != before[number]] == []
    assert [names[int(number)] for number in before if after[number] == before[number]] == []


def test_what_a_library_has_is_known_by_its_name():
    """Functions of libraries hold state that is no part of a fingerprint."""
    for function in (np.mean, len, str.upper, re.sub, functools.partial(np.clip, a_min=0, a_max=1)):
        assert function_fingerprint(function, "s", None) == function_fingerprint(function, "s", None)


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

    assert fingerprint(one, "s") == fingerprint(one, "s") != fingerprint(other, "s")


def test_arrays_of_objects_are_told_by_what_they_hold():
    """Not by where that lies."""
    one, same, other = (np.array([int(text), None], object) for text in ("1" * 30, "1" * 30, "2" * 30))

    assert fingerprint(one, "s") == fingerprint(same, "s") != fingerprint(other, "s")


def test_another_version_of_a_library_is_another_function(monkeypatch):
    """Of a library only its name and its version are known."""
    step = made("import numpy\ndef step(row): return numpy.mean(row['x'])")
    before = fingerprint(step, "s")
    monkeypatch.setattr(np, "__version__", "0.0.1")

    assert fingerprint(step, "s") != before


def test_what_runs_as_a_module_is_no_library(monkeypatch):
    """``python -m`` says of __main__ that it lies where packages are installed."""
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", importlib.util.find_spec("pytest"), raising=False)

    assert not is_library("__main__")


def test_a_version_is_one_of_its_own_function():
    """Two functions may both be in their first version, in one cache."""
    one, other = (made(f"def {name}(row): return row", name) for name in ("help", "harm"))

    assert function_fingerprint(one, "s", 1) == function_fingerprint(
        made("def help(row): return [row]", "help"), "s", 1
    )
    assert function_fingerprint(one, "s", 1) != function_fingerprint(other, "s", 1)
    assert (
        function_fingerprint(functools.partial(one, 1), "s", 1)
        == function_fingerprint(one, "s", 1)
        != function_fingerprint(one, "s", 2)
    )
