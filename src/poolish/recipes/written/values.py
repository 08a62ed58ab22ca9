"""Values of a recipe file, checked one by one: each problem is noted with its place, and all are told together."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Any

import numpy as np
import pyarrow as pa

from poolish.errors import PoolishError
from poolish.expressions import Expression, as_expression
from poolish.files.documents import MAX_DEPTH


@dataclass
class Reading:
    """What all recipes that are read together share."""

    problems: list[str] = field(default_factory=list)
    n_files: int = 0


@dataclass(frozen=True)
class Place:
    """Where we are in a document: what it is called, its folder, and the files that led here."""

    reading: Reading
    folder: str | None
    files: tuple[str, ...] = ()
    name: str = ""

    def wrong(self, what: str) -> None:
        """Note a problem here."""
        self.reading.problems.append(f"{self.name}: {what}" if self.name else what)

    def at(self, name: str) -> Place:
        """A place in this one."""
        return replace(self, name=f"{self.name}.{name}" if self.name and not name.startswith("[") else self.name + name)


def listed(source: str, problems: list[str]) -> str:
    """All problems of a source in one text."""
    if len(problems) == 1:
        return f"{source}: {problems[0]}"
    return "\n  ".join([f"{source}: {len(problems)} problems", *problems])


def check_keys(told: Mapping[Any, Any], known: Sequence[str], place: Place) -> None:
    """Names that are not known are wrong; the nearest one that is may be meant."""
    for key in told:
        if not isinstance(key, str):
            place.wrong(f"names are text, got {short(key)}; put it in quotes")
        elif key not in known:
            near = get_close_matches(key, known, 1)
            meant = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
            place.wrong(f"no key {key!r} here; {meant}")


def text_at(told: Mapping[str, Any], key: str, place: Place, about: str) -> str:
    """The text under a key, which must be there."""
    value = told.get(key)
    if isinstance(value, str) and value:
        return value
    place.wrong(f"{key!r} is missing: {about}" if value is None else f"{key}={short(value)}: a text, {about}")
    return ""


def check_where(told: Any, place: Place) -> None:
    """A filter, if there is one."""
    if told is not None:
        check_expression(told, place)


def check_expression(told: Any, place: Place) -> None:
    """An expression in the grammar of filters."""
    try:
        as_expression(told)
    except PoolishError as error:
        place.wrong(str(error))


def check_made(told: Any, place: Place) -> None:
    """What a new column is made of: an expression, or a number, true, false or nothing, the same for all rows."""
    if told is not None and not isinstance(told, bool) and not is_number(told):
        check_expression(told, place)


def is_number(value: Any) -> bool:
    """A number, and not a truth value or an infinity."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _must(is_so: Callable[[Any], bool], what: str) -> Callable[[Any, Place], None]:
    def check(value: Any, place: Place) -> None:
        if not is_so(value):
            place.wrong(f"{what}, got {short(value)}")

    return check


def _each(check: Callable[[Any, Place], None]) -> Callable[[Any, Place], None]:
    """A table of names and values that are all checked."""

    def check_table(value: Any, place: Place) -> None:
        if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
            place.wrong(f"a table of names and values, got {short(value)}")
            return
        for name, each in value.items():
            check(each, place.at(name))

    return check_table


def check_plain(value: Any, place: Place) -> None:
    """What any file can hold."""
    try:
        plain(value)
    except TypeError as error:
        place.wrong(f"text, numbers, true, false, lists and tables, got {error}; write it as text")


def _is_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


_check_text = _must(lambda value: isinstance(value, str), "a text")
_check_nothing: Callable[[Any, Place], None] = lambda value, place: None  # noqa: E731

#: How values of each kind are checked.
KINDS: dict[str, Callable[[Any, Place], None]] = {
    "text": _check_text,
    "texts": _each(_check_text),
    "names": _must(_is_names, "a list of names"),
    "number": _must(is_number, "a number"),
    "count": _must(lambda value: type(value) is int and value >= 0, "a whole number, 0 or more"),
    "values": _each(check_plain),
    "expression": check_expression,
    "expressions": _each(check_made),
    "suite": _check_nothing,  # it is read by its own room
}


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


def depth_of(told: Any) -> int:
    """How deep tables and lists lie in each other; it ends soon after the limit, also for what contains itself."""
    depth, level = 0, [told]
    while level and depth <= MAX_DEPTH:
        inner: list[Any] = []
        for each in level:
            inner += each.values() if isinstance(each, Mapping) else each if isinstance(each, list) else ()
        depth, level = depth + 1, inner
    return depth


def short(value: Any) -> str:
    """A value in a message."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
