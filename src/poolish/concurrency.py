"""What threads, forks and Ctrl-C must not break: lazy properties, locks, weak registries, locked descriptors.

A fork copies the memory of all threads, but only the forking one runs on in the child. One hook handles every kind::

    before the fork   take the lock of every ``ForkGuard``: the child finds each owner whole
    in the child      guarded objects become copies, ``Locked`` ones get new locks, locked descriptors go to /dev/null
    in both           release what was taken
"""

from __future__ import annotations

import fcntl
import functools
import itertools
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, overload

if TYPE_CHECKING:
    from pathlib import Path

Value = TypeVar("Value")
Thing = TypeVar("Thing")


class cached_property(functools.cached_property[Value]):
    """``functools.cached_property`` without its lock: two threads may compute a value twice, and then share one.

    Python 3.11 computes one under a lock that all objects of a class share. In the child of a process that forks
    meanwhile, such as a loader's worker, that lock is never released. Later Pythons have no lock there either.

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
        """Return the value, computed the first time."""
        if instance is None:
            return self
        known: dict[str, Any] = instance.__dict__
        value: Value = known.setdefault(str(self.attrname), self.func(instance))
        return value


class WeakRegistry(Generic[Thing]):
    """Like a ``WeakSet``, but no Python code runs when a member dies, and any thread may add one at any time.

    An exception in such code is lost. A Ctrl-C that arrived just then was lost too: one of 600 that ended a bake.

    >>> registry, loaf = WeakRegistry(), type("Loaf", (), {})()
    >>> registry.add(loaf)
    >>> list(registry) == [loaf]
    True
    >>> del loaf
    >>> list(registry)
    []
    """

    def __init__(self) -> None:
        self._references: dict[int, weakref.ref[Thing]] = {}
        self._numbers = itertools.count()
        self._max_size = 64

    def add(self, thing: Thing) -> None:
        """Register one more object."""
        if len(self._references) >= self._max_size:
            self._drop_dead()
        self._references[next(self._numbers)] = weakref.ref(thing)

    def __iter__(self) -> Iterator[Thing]:
        # One copy; a loop over the dict would fail where another thread adds an object.
        for reference in self._references.copy().values():
            thing = reference()
            if thing is not None:
                yield thing

    def clear(self) -> None:
        """Forget all objects."""
        self._references.clear()

    def _drop_dead(self) -> None:
        for number, reference in self._references.copy().items():
            if reference() is None:
                self._references.pop(number, None)
        self._max_size = 64 + 2 * len(self._references)


class Locked:
    """An object with a lock, ``self._lock``, that can be pickled and forked: each copy has its own lock.

    A fork copies a lock as it is. If another thread held it, it is never released in the child, so every child begins
    with free locks; subclasses change their state in steps that are valid at any moment.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        _locked.add(self)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        Locked.__init__(self)
        self.__dict__.update(state)

    def _after_fork(self) -> None:
        """Run first in a forked child."""
        self._lock = threading.RLock()


class ForkGuard(Generic[Thing]):
    """Makes every fork wait for ``lock``, so that the child finds ``owner`` whole; the owner keeps the guard.

    The copy in the child is another object: ``become_copy(owner)`` runs there while the lock is held.
    """

    def __init__(self, owner: Thing, lock: threading.RLock, become_copy: Callable[[Thing], None]) -> None:
        self.lock, self._become_copy = lock, become_copy
        self._owner = weakref.ref(owner)  # not a WeakMethod, which runs Python code when its object dies
        with _fork_lock:
            _guards.add(self)

    def call_in_child(self) -> None:
        """Run in the child."""
        owner = self._owner()
        if owner is not None:
            self._become_copy(owner)


# Locked descriptors -------------------------------------------------------------------------------------------
#
# An flock belongs to the open file, not to the process. A forked DataLoader worker inherits the open file, so the lock
# would stay held for as long as the worker lives, even after its owner died. So every locked descriptor is opened and
# closed here, and in a forked child it points to /dev/null: the lock is the parent's alone, a buffered writer that was
# copied flushes into nothing, and the number stays taken.


def open_locked_fd(path: Path, flags: int) -> int:
    """Open a file that will carry a lock, with mode ``0600`` where it is new; forked children do not inherit it."""
    with _descriptor_lock:
        fd = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        _descriptors.add(fd)
    return fd


def owns_fd(fd: int) -> bool:
    """Whether this process opened ``fd`` with ``open_locked_fd`` and has not closed it."""
    return fd in _descriptors


def close_locked_fd(fd: int) -> None:
    """Close what ``open_locked_fd`` opened, which releases its lock."""
    with _descriptor_lock:
        _descriptors.discard(fd)
        os.close(fd)


def try_lock(fd: int) -> bool:
    """Take the lock on an open file if it is free."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


# The fork hook ------------------------------------------------------------------------------------------------

_fork_lock = threading.RLock()  # one fork at a time
_descriptor_lock = threading.RLock()  # held while a descriptor is open but not registered, or the other way round
_descriptors: set[int] = set()
_locked: WeakRegistry[Locked] = WeakRegistry()
_guards: WeakRegistry[ForkGuard[Any]] = WeakRegistry()
_held: list[ForkGuard[Any]] = []


def _before_fork() -> None:
    _fork_lock.acquire()
    _held.extend(_guards)
    for each in _held:
        each.lock.acquire()
    _descriptor_lock.acquire()  # last: a guarded object may open a descriptor while it holds its own lock


def _in_parent() -> None:
    _descriptor_lock.release()
    while _held:
        _held.pop().lock.release()
    _fork_lock.release()


def _in_child() -> None:
    try:
        _redirect_descriptors()
        for locked in _locked:
            locked._after_fork()
        for each in _held:
            each.call_in_child()
    finally:
        _in_parent()


def _redirect_descriptors() -> None:
    nowhere = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for fd in _descriptors:
        os.dup2(nowhere, fd, inheritable=False)
    os.close(nowhere)
    _descriptors.clear()


os.register_at_fork(before=_before_fork, after_in_parent=_in_parent, after_in_child=_in_child)
