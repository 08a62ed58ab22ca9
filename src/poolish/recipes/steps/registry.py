"""Every step by its name: the built-in ones with their options, and those of ``@register_step``.

``STEPS`` is the one description of the built-in steps. Recipes make steps from it, recipe files are validated by it,
and their JSON schema is derived from it. A new built-in step is one entry here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

from poolish.errors import PoolishError, RecipeError
from poolish.printable import nearest, suggestion
from poolish.recipes.steps.barriers import BARRIERS, Barrier, SuiteStep
from poolish.recipes.steps.called import CalledStep
from poolish.recipes.steps.row_local import ROW_STEPS, RowStep


@dataclass(frozen=True)
class Option:
    """An option of a built-in step: the ``kind`` of its values in a file (see ``models``), and what it is for."""

    kind: str
    about: str
    is_needed: bool = False


#: Built-in steps and their options. ``validate`` names a suite in files; in Python the suite itself is the step.
STEPS: dict[str, dict[str, Option]] = {
    "map": {"columns": Option("expressions", "new columns and the expression or number that each is made by", True)},
    "filter": {"keep": Option("expression", "which rows stay", True)},
    "select": {"columns": Option("names", "the columns that stay, in this order", True)},
    "drop": {"columns": Option("names", "the columns that go", True)},
    "rename": {"columns": Option("texts", "old names and new names", True)},
    "cast": {"columns": Option("texts", "columns and their new types", True)},
    "fill_nulls": {"columns": Option("values", "columns and what stands for null", True)},
    "tokenize": {
        "tokenizer": Option("text", "the name of one of tiktoken's encodings", True),
        "column": Option("text", "where the text is"),
        "into": Option("text", "the column for the tokens"),
        "count": Option("text", "the column for how many there are"),
    },
    "dedup": {"columns": Option("names", "what equal rows are equal in; all columns by default")},
    "limit": {"n": Option("count", "how many rows stay", True)},
    "shuffle": {"seed": Option("count", "another seed than the recipe's")},
    "winsorize": {
        "column": Option("text", "the column that is cut", True),
        "lower": Option("number", "the quantile below which values are cut"),
        "upper": Option("number", "the quantile above which values are cut"),
        "low": Option("number", "the lowest value, if it is not to be fitted"),
        "high": Option("number", "the highest value, if it is not to be fitted"),
    },
    "standardise": {
        "column": Option("text", "the column on its new scale", True),
        "mean": Option("number", "the mean, if it is not to be fitted"),
        "std": Option("number", "the standard deviation, if it is not to be fitted"),
    },
    "validate": {"suite": Option("suite", "a suite, or the path of its file", True)},
}
BUILT_IN = tuple(name for name in STEPS if name != "validate")

_REGISTRY: dict[str, Callable[..., Any]] = {}

Registered = TypeVar("Registered", bound=Callable[..., Any])


def register_step(name: str) -> Callable[[Registered], Registered]:
    """Register a function, or the class of a barrier, under a name that recipe files can use.

    Files never name anything to import. ``poolish.recipes.Barrier`` says what a barrier is.

    >>> @register_step("shout")
    ... def shout(row):
    ...     return {**row, "text": row["text"].upper()}
    >>> registered("shout")({"text": "rye"})
    {'text': 'RYE'}
    """

    def register(function: Registered) -> Registered:
        if name in BUILT_IN:
            raise RecipeError(f"{name!r} is a step that every recipe has; register yours under another name")
        _REGISTRY[name] = function
        return function

    return register


def registered(name: str) -> Callable[..., Any]:
    """The function registered under a name."""
    if name not in _REGISTRY:
        raise RecipeError(
            f"no step is registered as {name!r}; import the module that has @register_step({name!r}) first"
        )
    return _REGISTRY[name]


def is_registered(name: str) -> bool:
    """Whether a step is registered under this name."""
    return name in _REGISTRY


def registered_names() -> tuple[str, ...]:
    """The names of all registered steps, in the order of registration."""
    return tuple(_REGISTRY)


def is_suite(step: Any) -> bool:
    """Whether this checks rows: it has ``check`` and a fingerprint, as a ``Suite`` has."""
    return hasattr(step, "check") and hasattr(step, "fingerprint")


def is_barrier(step: Any) -> bool:
    """Whether a step, or the class of one, needs all rows."""
    return hasattr(step, "decide") and getattr(step, "needs_all", True)


def step_of(step: Any, name: str, options: dict[str, Any], version: Any) -> Any:
    """The step that the recipe calls ``name``: a suite, a built-in or registered step, or a user's function."""
    if is_suite(step):
        return SuiteStep(name, step)
    if isinstance(step, str):
        made = _built_in(step, name, options, version)
        if made is not None:
            return made
        step = registered(step) if is_registered(step) else _unknown(step, name)
    if is_barrier(step):
        return _barrier(step, name, options)
    if not callable(step):
        raise RecipeError(f"step {name!r}: a function, the name of a step, a suite or a barrier, got {step!r}")
    return CalledStep(name, step, version, options.pop("batched", False), options)


def _barrier(step: Any, name: str, options: dict[str, Any]) -> Any:
    """A barrier of the user's: an object, or a class and its options."""
    if isinstance(step, type):
        try:
            return step(**options)
        except TypeError as error:
            raise RecipeError(f"step {name!r}: {error}; the options of a barrier are arguments of its class") from error
    if options:
        raise RecipeError(f"step {name!r}: a barrier object has no options, got {', '.join(options)}; pass its class")
    return step


def _built_in(step: str, name: str, options: dict[str, Any], version: Any) -> Any:
    try:
        return built_in(step, name, options, version)
    except PoolishError as error:
        if str(error).startswith(f"step {name!r}"):
            raise
        raise type(error)(f"step {name!r}, {step}: {error}") from None


def _unknown(step: str, name: str) -> NoReturn:
    raise RecipeError(
        f"step {name!r}: no step {step!r}{nearest(step, BUILT_IN) or '.'} Steps by name are {', '.join(BUILT_IN)}, "
        "validate and those of @register_step"
    )


def built_in(step: str, name: str, options: Mapping[str, Any], version: Any = None) -> RowStep | Barrier | None:
    """The built-in step ``step``, which the recipe calls ``name``; None if there is none.

    ``version`` identifies a tokenizer that cannot be fingerprinted.
    """
    if step not in BUILT_IN:
        return None
    _check_options(step, name, options)
    if step in ROW_STEPS:
        return RowStep(step, name, options, ROW_STEPS[step](**options), version=version)
    return BARRIERS[step](**options)


def _check_options(step: str, name: str, options: Mapping[str, Any]) -> None:
    known = STEPS[step]
    for option in options:
        if option not in known:
            hint = suggestion(option, known, f"it has {', '.join(known)}")
            raise RecipeError(f"step {name!r}: {step} has no option {option!r}; {hint}")
    for option, about in known.items():
        if about.is_needed and option not in options:
            raise RecipeError(f"step {name!r} needs {option}=")
    columns = options.get("columns")
    if step in ("map", "rename", "cast", "fill_nulls") and not isinstance(columns, Mapping):
        raise RecipeError(f"step {name!r}: columns={columns!r}; a dict, from the names of columns to what {step} does")
    if isinstance(columns, str):
        raise RecipeError(f"step {name!r}: columns={columns!r}; a list of names, write [{columns!r}]")
