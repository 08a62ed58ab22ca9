"""A recipe described once, key by key: what a file says, what decides the result, and what a person is shown.

    keys --models--> validation, errors, JSON schema          keys --dump--> the plain values of a file
    keys --describe--> meaning and text of each instruction --> fingerprint, difference

Each ``Key`` is a key of a recipe file and a field of an instruction. ``models`` makes pydantic models of the same keys;
nothing here loads pydantic, because every bake describes its recipe.

Meaning does not depend on how something is written: a function and the name it is registered by, an expression and its
text, a path and the same path from elsewhere have one meaning, so one fingerprint and no difference.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from poolish.errors import RecipeError
from poolish.expressions import Expression, as_expression, as_value
from poolish.files import checksum_hex
from poolish.fingerprints import function_fingerprint
from poolish.recipes.pipeline import RowPredicate
from poolish.recipes.plan import AddIngredient, Pick, Recipe
from poolish.recipes.serialization import listed, path_from
from poolish.recipes.sources import are_paths, is_path, is_recipe
from poolish.recipes.steps.registry import BUILT_IN, STEPS, is_registered, is_suite, registered, registered_names


@dataclass
class Writing:
    """How a recipe becomes a file: the folder of the file, and what cannot be written, each named by ``what``."""

    folder: str | None
    problems: list[str] = field(default_factory=list)
    what: str = ""

    def refuse(self, problem: str) -> None:
        """Note that the instruction cannot be written."""
        self.problems.append(f"{self.what}{problem}")


#: Functions that cannot be fingerprinted; their meaning is "unknown".
Unknown = list[RecipeError]


@dataclass(frozen=True)
class Key:
    """One key of a table in a recipe file, and the ``attribute`` of the instruction that holds it.

    A key without a default (``...``) is needed; an explicit one is written even if it has its default. ``word`` is what
    a difference calls it. The functions get the whole instruction: the plain value in a file, what decides the result,
    and what a person is shown.
    """

    name: str
    about: str
    default: Any = None
    is_explicit: bool = field(default=False, kw_only=True)
    attribute: str = field(default="", kw_only=True)
    word: str = field(default="", kw_only=True)
    written: Callable[[Any, Writing], Any] | None = field(default=None, kw_only=True)
    meaning: Callable[[Any, Unknown], Any] | None = field(default=None, kw_only=True)
    text: Callable[[Any], str] | None = field(default=None, kw_only=True)
    #: Whether another key describes it.
    is_part: bool = field(default=False, kw_only=True)

    def value(self, each: Any) -> Any:
        """What an instruction holds."""
        return getattr(each, self.attribute or self.name)

    def dump(self, each: Any, writing: Writing) -> dict[str, Any]:
        """The entry of a file; none for a default."""
        value = self.value(each)
        # An expression would make another one of ==.
        is_default = value is None if self.default is None else self.default is not ... and value == self.default
        if is_default and not self.is_explicit:
            return {}
        return {self.name: plain(value) if self.written is None else self.written(each, writing)}

    def describe(self, each: Any, unknown: Unknown) -> Described:
        """Its text and its meaning."""
        meaning = value_print(self.value(each)) if self.meaning is None else self.meaning(each, unknown)
        value = self.value(each)
        shown = "none" if value is None else str(value)
        return Described(shown if self.text is None else self.text(each), [meaning])


class Described(NamedTuple):
    """What is said about an instruction: as text, and the values that decide the result."""

    text: str
    meaning: list[Any]


# Sources ------------------------------------------------------------------------------------------------------------


def _written_source(each: AddIngredient, writing: Writing) -> Any:
    source = each.source
    if is_recipe(source):
        inner = Writing(writing.folder, writing.problems)
        return {"recipe": _dumped(source, inner)}
    if is_path(source):
        return path_from(source, writing.folder)
    if are_paths(source):
        return [path_from(path, writing.folder) for path in source]
    kind = type(source).__name__
    writing.refuse(f" has its rows in memory ({kind}); write them to a file, such as parquet, and give its path")
    return None


def _written_storage(each: AddIngredient, writing: Writing) -> Any:
    options = each.storage
    assert options is not None
    if options.unwritable:
        writing.refuse(
            f" has storage_options that may be secret ({', '.join(options.unwritable)}); keep them in the environment "
            "or in the configuration of fsspec, or write them into the file by hand"
        )
        return None
    try:
        return plain(dict(options))
    except TypeError as error:
        writing.refuse(f": storage_options have {error}; a file holds text, numbers, true, false, lists and tables")
        return None


def _source_meaning(each: AddIngredient, unknown: Unknown) -> Any:
    source = each.source
    if is_recipe(source):
        inner = describe(source)
        unknown += inner.unknown
        return {"recipe": inner.digest}
    if not is_path(source) and not are_paths(source):
        return "in memory"
    # Files are read in the order of their names, each once, however they were listed.
    paths = sorted({_absolute(os.fsdecode(path)) for path in ([source] if is_path(source) else source)})
    return paths if each.storage is None else {"paths": paths, "store": each.storage.identity}


def _source_text(each: AddIngredient) -> str:
    source = each.source
    if is_recipe(source):
        return f"recipe {source.name!r}"
    if not is_path(source) and not are_paths(source):
        return type(source).__name__
    text = str(source) if is_path(source) else ", ".join(map(str, source))
    return text if each.storage is None else f"{text} ({each.storage!r})"


def _absolute(path: str) -> str:
    return path if "://" in path else os.path.abspath(path)


# Filters and quantities ---------------------------------------------------------------------------------------------


def _written_where(each: Any, writing: Writing) -> str | None:
    if isinstance(each.where, (str, Expression)):
        return str(each.where)
    writing.refuse(": where is a function; write it as an expression, such as \"lang == 'en'\"")
    return None


def _is_function(where: Any) -> bool:
    return callable(where) and not isinstance(where, Expression)


def _condition(where: Any, unknown: Unknown) -> str | None:
    """The meaning of a filter."""
    if where is None:
        return None
    return (
        _known(lambda: str(RowPredicate(where)), unknown) if _is_function(where) else as_expression(where).fingerprint
    )


def _where_text(each: Any) -> str:
    if each.where is None:
        return "none"
    return f"function {RowPredicate(each.where).name}" if _is_function(each.where) else _condition(each.where, []) or ""


def _quantity(each: AddIngredient) -> str:
    quantity = each.take if each.weight is None else f"weight {each.weight}"
    return "all" if quantity is None else str(quantity)


def _known(described: Callable[[], str], unknown: Unknown) -> str:
    try:
        return described()
    except RecipeError as error:
        unknown.append(error)
        return "unknown"


# Steps --------------------------------------------------------------------------------------------------------------


def _written_use(each: Any, writing: Writing) -> Any:
    step = each.step
    if is_suite(step):
        if getattr(step, "reference", None) is not None:
            writing.refuse(" is a suite that was fitted on a reference, which a file does not hold; bake it in Python")
        if hasattr(step, "to_dict"):
            return "validate"
    if isinstance(step, str):
        return step
    name = _registered_name(step)
    if name is None:
        writing.refuse(f" is a function without a name; put @register_step({each.name!r}) before it")
    return name


def _registered_name(function: Any) -> str | None:
    """The name that files can use; one of a built-in step would mean that one."""
    return next((name for name in registered_names() if name not in STEPS and registered(name) is function), None)


def _code(each: Any, unknown: Unknown) -> str:
    """The meaning of the step itself, without its options."""
    step = each.step
    if is_suite(step):
        return f"suite {step.fingerprint}"
    if isinstance(step, str):
        if step in BUILT_IN or not is_registered(step):
            return f"built in {step}"
        step = registered(step)
    return _known(lambda: f"function {function_fingerprint(step, f'step {each.name!r}', each.version)}", unknown)


def _step_text(each: Any) -> str:
    if is_suite(each.step):
        return "suite"
    return each.step if isinstance(each.step, str) else str(getattr(each.step, "__name__", type(each.step).__name__))


def options_of(each: Any) -> dict[str, Any]:
    """The options that are set: to a built-in step, None says nothing."""
    if each.step not in BUILT_IN:
        return dict(each.options)
    return {name: value for name, value in each.options.items() if value is not None}


def _written_options(each: Any, writing: Writing) -> dict[str, Any]:
    options = options_of(each)
    if is_suite(each.step) and hasattr(each.step, "to_dict"):
        options = {"suite": each.step.to_dict(), **options}
    found = {}
    for name, value in options.items():
        if name in (*STEP_KEYS, "name"):
            writing.refuse(f": an option cannot be called {name!r} in a file; give it another name")
        try:
            found[name] = plain(value)
        except TypeError as error:
            writing.refuse(f": {name} is {error}; a file holds text, numbers, true, false, lists and tables")
    return found


def _options_meaning(each: Any, unknown: Unknown) -> dict[str, Any]:
    options = {name: value_print(value) for name, value in options_of(each).items()}
    if each.step == "map" and isinstance(each.options.get("columns"), Mapping):
        # A list, because the order of new columns is theirs in the result.
        values = {name: as_value(made) for name, made in each.options["columns"].items()}
        options["columns"] = [[name, None if made is None else made.fingerprint] for name, made in values.items()]
    if each.step == "filter":
        options["keep"] = _condition(each.options.get("keep"), unknown)
    return options


def _options_text(each: Any) -> str:
    return ", ".join(f"{name}={value}" for name, value in sorted(each.options.items())) or "none"


# The keys -----------------------------------------------------------------------------------------------------------


def _where_key(about: str) -> Key:
    return Key(
        *("where", about),
        word="filter",
        written=_written_where,
        meaning=lambda each, unknown: _condition(each.where, unknown),
        text=_where_text,
    )


#: The keys of a recipe besides its instructions, of an ingredient, and of a step besides its options.
RECIPE = (
    Key("name", "what the dataset is called", ...),
    Key("seed", "what everything random depends on", 0, is_explicit=True),
    Key("total", "what weights are shares of"),
    Key("unit", "what the total counts", "rows"),
    Key("tokens", "the column that counts tokens"),
)
INGREDIENT = (
    Key("ingredient", "its name; rows keep it", ..., attribute="name"),
    Key(
        *("source", "paths or globs, relative to this file, or another recipe", ...),
        written=_written_source,
        meaning=_source_meaning,
        text=_source_text,
    ),
    Key(
        *("storage_options", "options of the file system behind a URL, shown nowhere; better kept in the environment"),
        written=_written_storage,
        is_part=True,
    ),
    _where_key("which rows of the source"),
    Key("take", "a number of rows, or with a dot a fraction of them", word="quantity", text=_quantity),
    Key("weight", "its share of the recipe's total", word="quantity", text=_quantity),
    Key(
        *("pick", "which rows, if not all; by hash by default", Pick()),
        written=lambda each, _: str(each.pick),
        meaning=lambda each, _: str(each.pick),
    ),
    Key("on_short", "what if there are too few; an error by default", "error"),
)
STEP = (
    Key("step", "its name", ..., attribute="name"),
    Key(
        *("use", f"the name of a step, one of {', '.join(STEPS)} or a registered one", ...),
        attribute="step",
        word="code",
        written=_written_use,
        meaning=_code,
        text=_step_text,
    ),
    _where_key("which rows it is for; the column ingredient is known"),
    Key("version", "another one whenever the function changes"),
)
#: Keys of a step in a file that are no options.
STEP_KEYS = tuple(key.name for key in STEP)
_OPTIONS = Key("options", "what the step is called with", meaning=_options_meaning, text=_options_text)


# Files --------------------------------------------------------------------------------------------------------------


def dump(recipe: Recipe, folder: str | None = None) -> dict[str, Any]:
    """The recipe as plain values, without defaults; paths as a file in ``folder`` has them.

    >>> from poolish import DatasetRecipe
    >>> dump(DatasetRecipe("breads", seed=7).prepare_step("few", "limit", n=10))
    {'name': 'breads', 'seed': 7, 'instructions': [{'step': 'few', 'use': 'limit', 'n': 10}]}
    """
    writing = Writing(folder)
    dumped = _dumped(recipe, writing)
    if writing.problems:
        raise RecipeError(listed(f"recipe {recipe.name!r} cannot be a file", writing.problems))
    return dumped


def _dumped(recipe: Recipe, writing: Writing) -> dict[str, Any]:
    dumped = _entries(RECIPE, recipe, writing)
    dumped["instructions"] = []
    for each in recipe.instructions:
        is_ingredient = isinstance(each, AddIngredient)
        writing.what = f"{'ingredient' if is_ingredient else 'step'} {each.name!r}"
        entry = _entries(INGREDIENT if is_ingredient else STEP, each, writing)
        dumped["instructions"].append(entry if is_ingredient else entry | _written_options(each, writing))
    return dumped


def _entries(keys: Sequence[Key], each: Any, writing: Writing) -> dict[str, Any]:
    return {name: value for key in keys for name, value in key.dump(each, writing).items()}


def plain(value: Any) -> Any:
    """The same value as files have it; a TypeError says what it is instead."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, Expression):
        return str(value)
    if value is None or isinstance(value, bool):
        return value
    for kind in (str, int, float):
        if isinstance(value, kind):
            return kind(value)
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    if isinstance(value, Mapping):
        wrong = next((name for name in value if not isinstance(name, str)), None)
        if wrong is not None:
            raise TypeError(f"a table with the name {wrong!r}, which is no text")
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, pa.DataType):
        return _TYPE_NAMES.get(str(value), str(value))
    raise TypeError(f"a {type(value).__name__}")


#: Types whose names do not say how large they are, which a recipe has to.
_TYPE_NAMES = {"halffloat": "float16", "float": "float32", "double": "float64"}


# Fingerprints -------------------------------------------------------------------------------------------------------

_RECIPE = "recipe"


@dataclass(frozen=True)
class RecipeDescription:
    """Each instruction, and the recipe itself, in words and values; ``unknown`` are functions without a fingerprint."""

    parts: dict[str, dict[str, Described]]
    digest: str
    unknown: tuple[RecipeError, ...]


def describe(recipe: Recipe) -> RecipeDescription:
    """All that decides what a recipe bakes, but for what its sources hold."""
    unknown: Unknown = []
    parts = {_RECIPE: _described(RECIPE, recipe, unknown)}
    meaning: list[Any] = [recipe.name, *_meanings(parts[_RECIPE])]
    seen: Counter[str] = Counter()
    for each in recipe.instructions:
        kind, keys = ("ingredient", INGREDIENT) if isinstance(each, AddIngredient) else ("step", (*STEP, _OPTIONS))
        name = f"{kind} {each.name}"
        seen[name] += 1
        described = _described(keys, each, unknown)
        parts[name if seen[name] == 1 else f"{name} ({seen[name]})"] = described
        meaning.append([kind, each.name, *_meanings(described)])
    return RecipeDescription(parts, checksum_hex(json.dumps(meaning, sort_keys=True).encode()), tuple(unknown))


def _described(keys: Sequence[Key], each: Any, unknown: Unknown) -> dict[str, Described]:
    """What each word says; the first key is the name, by which instructions are compared."""
    found: dict[str, Described] = {}
    for key in keys[1:]:
        if key.is_part:
            continue
        said, word = key.describe(each, unknown), key.word or key.name
        found[word] = said if word not in found else Described(said.text, [*found[word].meaning, *said.meaning])
    return found


def _meanings(described: Mapping[str, Described]) -> list[Any]:
    return [meaning for said in described.values() for meaning in said.meaning]


def fingerprint(recipe: Recipe) -> str:
    """16 digits that change with everything that decides the result, except what the sources hold."""
    described = describe(recipe)
    if described.unknown:
        raise described.unknown[0]
    return described.digest


def value_print(value: Any) -> Any:
    """Something for JSON that is equal for equal values; of objects that only they themselves know, their type."""
    try:
        return plain(value)
    except TypeError:
        pass
    if isinstance(value, Mapping):
        return sorted([repr(name), value_print(each)] for name, each in value.items())
    if isinstance(value, (list, tuple)):
        return [value_print(each) for each in value]
    if isinstance(value, (set, frozenset)):
        return sorted(map(repr, value))
    if isinstance(value, np.ndarray):  # its repr leaves out the middle
        return ["array", str(value.dtype), list(value.shape), checksum_hex(np.ascontiguousarray(value).tobytes())]
    if hasattr(value, "__code__"):
        try:
            return function_fingerprint(value, "option")
        except RecipeError:
            return f"function {value.__qualname__}"
    text = repr(value)
    return f"{type(value).__module__}.{type(value).__qualname__}" if " at 0x" in text else text
