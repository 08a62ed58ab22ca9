"""Properties that are computed when somebody first asks.

Python 3.11 computes a ``functools.cached_property`` under a lock that all objects of a class share. A process that is
forked while one thread computes one has a child in which that lock is never let go, so that its first look at any other
object waits for ever: a loader's workers are such children. Later Pythons have no lock there either.
"""

from __future__ import annotations

import functools
from typing import Any, Self, TypeVar, overload

Value = TypeVar("Value")


class cached_property(functools.cached_property[Value]):
    """``functools.cached_property`` without its lock: two threads may compute a value twice, and then share one.

    >>> class Bread:
    ...     @cached_property
    ...     def crumbs(self):
    ...         print("counting")
    ...         return 3
    >>> bread = Bread()
    >>> bread.crumbs + bread.crumbs
    counting
    6
    """

    @overload
    def __get__(self, instance: None, owner: type[Any] | None = None) -> Self: ...

    @overload
    def __get__(self, instance: object, owner: type[Any] | None = None) -> Value: ...

    def __get__(self, instance: object | None, owner: type[Any] | None = None) -> Self | Value:
        """The value, computed the first time."""
        if instance is None:
            return self
        known: dict[str, Any] = instance.__dict__
        value: Value = known.setdefault(str(self.attrname), self.func(instance))
        return value
