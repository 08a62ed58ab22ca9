"""Fair figures: poolish and its peers take turns in one process, and each is judged by its median.

A *measure* is a function that does the work once and returns one figure in the benchmark's unit; ``per_call`` and
``per_second`` make one of plain code. All measures of a comparison run in every round, each round starting with
another one, so a machine that slows down or warms up does so for everybody. The first round only warms up and is
not counted.

Each comparison is one JSON line. A ratio above 1 means that poolish is better, whichever way the unit points:

    {"bench": "rows.get_batch", "unit": "rows/s", "poolish": 6.0e6, "peer": 2.0e5,
     "peer_name": "datasets", "ratio": 30.0, "rounds": 7}

The garbage collector stays on, because it is on in the programs that these figures are about.
"""

from __future__ import annotations

import gc
import importlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from statistics import median
from types import ModuleType

Measure = Callable[[], float]
Clock = Callable[[], float]

#: How many of a unit of time are in a second.
PER_SECOND = {"ns": 1e9, "us": 1e6, "ms": 1e3, "s": 1.0}
SIZES = {"bytes", "KiB", "MiB", "GiB"}

#: The name under which poolish plays.
POOLISH = "poolish"


@dataclass(frozen=True)
class Missing:
    """A peer that cannot take part, and why. It is reported, so that nobody takes silence for victory."""

    why: str


@dataclass(frozen=True)
class Figure:
    """One line of the results."""

    bench: str
    unit: str
    poolish: float
    peer: float | None
    peer_name: str | None
    ratio: float | None
    rounds: int
    note: str | None = None

    def to_json(self) -> str:
        """The figure as one line; ``note`` is there only where there is something to note."""
        fields = {name: _four_digits(value) for name, value in asdict(self).items()}
        return json.dumps({name: value for name, value in fields.items() if name != "note" or value})


# Deciding: which way a unit points, what a ratio is ------------------------------------------------------------


def is_lower_better(unit: str) -> bool:
    """Whether less is better: true for times and sizes (also per row), false for rates.

    >>> is_lower_better("us"), is_lower_better("bytes/row"), is_lower_better("rows/s")
    (True, True, False)
    """
    if unit.endswith("/s"):
        return False
    if unit.split("/")[0] in {*PER_SECOND, *SIZES}:
        return True
    raise ValueError(f"unit {unit!r}: give a rate (rows/s), a time {[*PER_SECOND]} or a size {sorted(SIZES)}")


def ratio(unit: str, poolish: float, peer: float) -> float:
    """How many times better poolish is than the peer.

    >>> ratio("ns", 100.0, 250.0), ratio("rows/s", 100.0, 250.0)
    (2.5, 0.4)
    """
    return peer / poolish if is_lower_better(unit) else poolish / peer


# Measures ------------------------------------------------------------------------------------------------------


def per_call(
    function: Callable[..., object],
    *,
    unit: str = "ns",
    calls: int = 1,
    prepare: Callable[[], object] | None = None,
    clock: Clock = time.perf_counter,
) -> Measure:
    """How long one call of ``function`` takes, timed ``calls`` at a time.

    What ``prepare`` returns, fresh for every round and outside the time, is handed to each call.
    """
    return lambda: _seconds(function, calls, prepare, clock) * PER_SECOND[unit] / calls


def per_second(
    function: Callable[..., object],
    items: int,
    *,
    calls: int = 1,
    prepare: Callable[[], object] | None = None,
    clock: Clock = time.perf_counter,
) -> Measure:
    """How many items a second ``function`` handles, where one call handles ``items``; else like ``per_call``."""
    return lambda: items * calls / _seconds(function, calls, prepare, clock)


def needs(module: str, make: Callable[[ModuleType], Measure]) -> Measure | Missing:
    """The measure that ``make`` builds around an optional library, or the reason why there is none.

    >>> needs("no_such_library", lambda library: lambda: 1.0)
    Missing(why="not installed: No module named 'no_such_library'")
    """
    try:
        library = importlib.import_module(module)
    except ImportError as error:
        return Missing(f"not installed: {error}")
    return make(library)


def _seconds(function: Callable[..., object], calls: int, prepare: Callable[[], object] | None, clock: Clock) -> float:
    call = partial(function, prepare()) if prepare else function
    gc.collect()  # each starts on a clean heap, whatever the one before it left
    begin = clock()
    for _ in range(calls):
        call()
    return clock() - begin


def _print_now(line: str) -> None:
    print(line, flush=True)


# Comparing -----------------------------------------------------------------------------------------------------


def compare(
    bench: str,
    unit: str,
    poolish: Measure,
    peers: Mapping[str, Measure | Missing] | None = None,
    *,
    rounds: int = 7,
    report: Callable[[str], None] = _print_now,
) -> list[Figure]:
    """Measure poolish and its peers in turns; report one line for each peer, or one line where there is none.

    A peer that fails while it is measured is reported like a missing one, with its error; if poolish fails, so
    does the benchmark.
    """
    is_lower_better(unit)  # a unit that cannot be judged is refused now, not after an hour of measuring
    players = {POOLISH: poolish, **(peers or {})}
    results = play(players, rounds)
    figures = [_figure(bench, unit, results, name, rounds) for name in peers or [None]]
    for figure in figures:
        report(figure.to_json())
    return figures


def play(players: Mapping[str, Measure | Missing], rounds: int) -> dict[str, list[float] | Missing]:
    """What each player measured in each round, or why it did not finish."""
    missing = {name: player for name, player in players.items() if isinstance(player, Missing)}
    measures = {name: player for name, player in players.items() if not isinstance(player, Missing)}
    results: dict[str, list[float]] = {name: [] for name in measures}
    for number in range(rounds + 1):
        for name in _in_turn(list(results), number):
            try:
                results[name].append(measures[name]())
            except Exception as error:
                if name == POOLISH:
                    raise
                missing[name] = Missing(f"failed: {type(error).__name__}: {error}")
                del results[name]
    return {**{name: measured[1:] for name, measured in results.items()}, **missing}


def _in_turn(names: list[str], number: int) -> list[str]:
    """The order of play in a round: everybody, starting one further each time."""
    first = number % len(names)
    return names[first:] + names[:first]


def _figure(
    bench: str, unit: str, results: Mapping[str, list[float] | Missing], name: str | None, rounds: int
) -> Figure:
    own, other = results[POOLISH], results.get(name or "")
    assert not isinstance(own, Missing)
    if other is None or isinstance(other, Missing):
        return Figure(bench, unit, median(own), None, name, None, rounds, other and other.why)
    return Figure(bench, unit, median(own), median(other), name, ratio(unit, median(own), median(other)), rounds)


def _four_digits(value: object) -> object:
    return float(f"{value:.4g}") if isinstance(value, float) else value
