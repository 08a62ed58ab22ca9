"""Parameters that are fixed once an object is made: assigning one is an error that says what to do instead.

Much is derived from the parameters of a loader while it is made: threads, the order, what a state belongs to. An
assignment afterwards would be kept and used by nothing.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from typing import Any, TypeVar

Class = TypeVar("Class", bound=type)


def fixed_parameters(instead: str, *, stored: bool = True, free: Collection[str] = ()) -> Callable[[Class], Class]:
    """Refuse assignments to the parameters of a class's ``__init__``, all but those that are ``free``.

    ``stored`` parameters are attributes: ``__init__`` assigns each once. Others are kept under another name, so any
    assignment is refused; a subclass may have an attribute of its own by that name.

    >>> @fixed_parameters("make a new Oven")
    ... class Oven:
    ...     def __init__(self, heat):
    ...         self.heat = heat
    >>> oven = Oven(heat=220)
    >>> oven.heat = 250
    Traceback (most recent call last):
    AttributeError: Oven.heat is fixed when the object is made and stays 220; make a new Oven
    """

    def fixing(class_: Class) -> Class:
        for name in list(inspect.signature(class_).parameters):
            if name not in free and not hasattr(class_, name):
                setattr(class_, name, (_Stored if stored else _Hidden)(class_, name, instead))
        return class_

    return fixing


class _Stored:
    """An attribute that is assigned once."""

    def __init__(self, class_: type, name: str, instead: str) -> None:
        self._class, self._name, self._instead = class_, name, instead

    def __get__(self, made: Any, class_: type | None = None) -> Any:
        if made is None:
            return self
        try:
            return made.__dict__[self._name]
        except KeyError:
            raise AttributeError(f"{type(made).__name__!r} object has no attribute {self._name!r}") from None

    def __set__(self, made: Any, value: Any) -> None:
        if self._is_fixed(made):
            stays = f" and stays {made.__dict__[self._name]!r}" if self._name in made.__dict__ else ""
            raise AttributeError(
                f"{type(made).__name__}.{self._name} is fixed when the object is made{stays}; {self._instead}"
            )
        made.__dict__[self._name] = value

    def __delete__(self, made: Any) -> None:
        raise AttributeError(f"{type(made).__name__}.{self._name} is fixed when the object is made; {self._instead}")

    def _is_fixed(self, made: Any) -> bool:
        return self._name in made.__dict__


class _Hidden(_Stored):
    """A name that is no attribute."""

    def _is_fixed(self, made: Any) -> bool:
        return type(made) is self._class
