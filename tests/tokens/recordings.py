"""A stream in which everything follows from the number of a step: what it holds, and which call appends it.

So a test can go on with a stream that somebody else left, and say of any stream whether it is a prefix that ends
between two calls, which is all that a kill may leave.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from poolish import StreamStore
from poolish.tokens import head, opening
from tests.faults import die, in_child

#: Only named, so that whether they hold one number or many is decided by what is appended first.
FIELDS = ["action", "observation", "done"]
ACTION, OBSERVATION, DONE = range(3)


def widths(steps: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """How many numbers of observation each step has, and whether it has a ``done``."""
    return steps % 4, steps % 5 == 4


def tokens(first: int, end: int, salt: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """The types and the values of the steps [first, end)."""
    steps = np.arange(first, end)
    n_observed, is_done = widths(steps)
    each = 1 + n_observed + is_done
    step, observed = np.repeat(steps, each), np.repeat(n_observed, each)
    place = np.arange(each.sum()) - np.repeat(np.cumsum(each) - each, each)
    types = np.where(place == 0, ACTION, np.where(place <= observed, OBSERVATION, DONE))
    return types, (step * 16.0 + place + salt * 2.0**40).view(np.int64)


def n_tokens(n_steps: int) -> int:
    """How many tokens so many steps are: the same again every 20."""
    return n_steps // 20 * 54 + len(tokens(0, n_steps % 20)[0])


def call_at(step: int) -> tuple[str, int]:
    """Which call appends a step that begins a call, and how many steps it appends in one go."""
    draw = _draw(step)
    if draw < 32:
        return "append", 1
    if draw < 48:
        return "append", 2 + draw % 5
    return "append_many", 2_000 if draw == 63 else draw


def _draw(step: int) -> int:
    return (step * 0x9E3779B97F4A7C15 >> 20) % 64


def go_on(store: StreamStore, step: int, salt: int = 0) -> int:
    """Make the call that comes at a step; the step that comes next."""
    kind, n = call_at(step)
    if kind == "append":
        append(store, step, step + n, salt)
    else:
        append_many(store, step, step + n, salt)
    if _draw(step) % 16 == 5:
        store.commit()
    return step + n


def append(store: StreamStore, first: int, end: int, salt: int = 0) -> None:
    """Append some steps by one ``append``."""
    steps, names, values = [], [], []
    for step in range(first, end):
        base = step * 16.0 + salt * 2.0**40
        observed = [base + 1 + i for i in range(step % 4)]
        written = {"action": base, "observation": observed}
        if step % 5 == 4:
            written["done"] = base + 1 + len(observed)
        steps += [step] * len(written)
        names += written
        values += written.values()
    store.append(steps, names, values)


def append_many(store: StreamStore, first: int, end: int, salt: int = 0) -> None:
    """Append the same steps by one ``append_many``."""
    steps = np.arange(first, end)
    n_observed, is_done = widths(steps)
    types, values = tokens(first, end, salt)
    numbers = values.view(np.float64)
    done = np.zeros(len(steps))
    done[is_done] = numbers[types == DONE]
    store.append_many(
        steps,
        {
            "action": numbers[types == ACTION],
            "observation": (numbers[types == OBSERVATION], np.cumsum([0, *n_observed])),
            "done": pa.array(done, mask=~is_done),
        },
    )


_boundaries = [0]


def is_between_calls(n_steps: int) -> bool:
    """Whether a stream of so many steps ends where one of the calls did."""
    while _boundaries[-1] < n_steps:
        _boundaries.append(_boundaries[-1] + call_at(_boundaries[-1])[1])
    return _boundaries[int(np.searchsorted(_boundaries, n_steps))] == n_steps


def check(store: StreamStore, at_least: int = 0) -> int:
    """Nothing lost, nothing torn, nothing wrong; how many steps there are."""
    n_steps = store.n_steps
    assert n_steps >= at_least, f"{n_steps} steps are there, {at_least} were told of"
    assert is_between_calls(n_steps), f"{n_steps} steps: in the middle of a call"
    assert_holds(store, tokens(0, n_steps))
    return n_steps


def assert_holds(store: StreamStore, expected: Sequence[np.ndarray]) -> None:
    """Exactly these types and values, from its first token to its last."""
    found = store[:]
    assert len(found["values"]) == len(store) == len(expected[1])
    assert np.array_equal(found["types"], expected[0])
    assert np.array_equal(found["values"], expected[1])


def make(path: Path, n_calls: int = 0) -> int:
    """A stream after so many calls, committed and closed; how many steps it has."""
    step = 0
    with StreamStore(path, FIELDS) as store:
        for _ in range(n_calls):
            step = go_on(store, step)
    return step


def abandon(path: Path) -> None:
    """A stream of ten steps that are committed and ten that are not, whose writer was killed."""

    def leave() -> None:
        store = StreamStore(path, FIELDS)
        append(store, 0, 10)
        store.commit()
        append(store, 10, 20)
        die()

    in_child(leave)


def trust(copy: Path) -> None:
    """Make the head page of a copied directory count, as that of the original does."""
    page = head.Head(copy / "head", mode="a")
    assert page.owner is not None
    page.sign(replace(page.owner, inode=(copy / "data").stat().st_ino))
    page.close()


def another_boot(monkeypatch: pytest.MonkeyPatch, name: bytes) -> None:
    """From now on the machine has been down since whatever was written before."""
    monkeypatch.setattr(opening, "boot_id", lambda: name.ljust(16))
    monkeypatch.setattr(head, "boot_id", lambda: name.ljust(16))


def descriptors() -> set[str]:
    """What this process has open."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            found.add(f"{name} {os.readlink(f'/proc/self/fd/{name}')}")
        except FileNotFoundError:  # the one that lists
            continue
    return found
