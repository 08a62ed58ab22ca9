"""How often drift tests alarm without drift, and how often they see one: poolish against the exact test and its peers.

A *column* is a kind of data with a change that is hard to see; a *cell* of the table is a column, two sizes and a
method. In each repetition two samples are drawn, without and with the change. The rate is the share of alarms without
it, the power the share with it, both at alpha = 0.05. "Exact" is the permutation test of the very same statistic: the
method is called on random splits of both samples together, and its value compared with theirs.

    python -m benchmarks.drift_rates                         # writes the tables and the plot of docs/guards.md again
    python -m benchmarks.drift_rates --repetitions 40 --dry  # quickly, to the screen only
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.drift_peers import PEERS, Alarm
from poolish import html
from poolish.guards import Profile
from poolish.guards.stats.distances import DISTANCES
from poolish.seeds import generator

ALPHA = 0.05
Sample = Any
Draw = Callable[[np.random.Generator, int, bool], Sample]


@dataclass(frozen=True)
class Column:
    """A kind of column: ``draw(rng, n, changed)``."""

    name: str
    draw: Draw
    has_order: bool = True


def _continuous(rng: np.random.Generator, n: int, changed: bool) -> np.ndarray:
    return rng.normal(0.0, 1.0, n) + (_effect(n) if changed else 0.0)


def _effect(n: int) -> float:
    """A shift that samples of n rows each show about two times in three."""
    return 3.5 / np.sqrt(n)


def _lognormal(rng: np.random.Generator, n: int, changed: bool) -> np.ndarray:
    return rng.lognormal(2 * _effect(n) if changed else 0.0, 2.0, n)


def _cauchy(rng: np.random.Generator, n: int, changed: bool) -> np.ndarray:
    return rng.standard_cauchy(n) + (1.6 * _effect(n) if changed else 0.0)


def _zeros(share: float) -> Draw:
    def draw(rng: np.random.Generator, n: int, changed: bool) -> np.ndarray:
        filled = (1 - share) + (1.1 * _effect(n) * np.sqrt(share * (1 - share)) if changed else 0.0)
        return np.where(rng.random(n) < filled, rng.exponential(1.0, n), 0.0)

    return draw


def _codes(n_values: int, strength: float, *, zipf: bool = False, text: bool = False) -> Draw:
    weights = 1 / np.arange(1, n_values + 1) if zipf else np.ones(n_values)
    shares = weights / weights.sum()
    tilted = np.linspace(-1, 1, n_values)

    def draw(rng: np.random.Generator, n: int, changed: bool) -> Any:
        p = shares
        if changed:
            p = shares * np.exp(strength * _effect(n) * tilted)
            p = p / p.sum()
        found = rng.choice(n_values, n, p=p)
        return np.char.add("w", found.astype(str)).tolist() if text else found

    return draw


def _rounded(rng: np.random.Generator, n: int, changed: bool) -> np.ndarray:
    return (2 * _continuous(rng, n, changed)).round() / 2


COLUMNS = (
    Column("normal", _continuous),
    Column("lognormal(0, 2)", _lognormal),
    Column("Cauchy", _cauchy),
    Column("70 % zeros", _zeros(0.7)),
    Column("99 % zeros", _zeros(0.99)),
    Column("rounded, tied", _rounded),
    Column("2 values", _codes(2, 0.7)),
    Column("20 codes, Zipf", _codes(20, 1.5, zipf=True)),
    Column("300 codes", _codes(300, 1.5)),
    Column("20 words", _codes(20, 2.7, text=True), has_order=False),
    Column("200 words", _codes(200, 3, text=True), has_order=False),
    Column("1,000 words, Zipf", _codes(1_000, 3, zipf=True, text=True), has_order=False),
)
SIZES = ((30, 30), (60, 60), (30, 1_000), (1_000, 60), (1_000, 1_000))
#: A reference of which a profile keeps summaries only, and a sample that is compared with it.
PROFILED = (20_000, 500)
#: Where the exact test is computed, too.
EXACT = (60, 60)
PAGE = Path(__file__).resolve().parent.parent / "docs" / "guards.md"


def pairs(column: Column, n: int, m: int, changed: bool, repetitions: int, seed: int = 0) -> Sequence[tuple[Any, Any]]:
    """Samples of the reference and of the current rows."""
    rng = generator(seed, column.name, n, m, int(changed))
    return [(column.draw(rng, n, False), _changed(column, rng, n, m, changed)) for _ in range(repetitions)]


def _changed(column: Column, rng: np.random.Generator, n: int, m: int, changed: bool) -> Sample:
    """A current sample whose change is as hard to see as between two samples of the harmonic mean of the sizes."""
    size = round(2 * n * m / (n + m))
    if not changed:
        return column.draw(rng, m, False)
    parts = [column.draw(rng, size, True) for _ in range(-(-m // size))]
    joined = [value for part in parts for value in part] if isinstance(parts[0], list) else np.concatenate(parts)
    return joined[:m]


def alarms(method: str, samples: Sequence[tuple[Any, Any]], *, profile: bool = False) -> tuple[float, float]:
    """The share of pairs that are drift to a method of poolish, and of those that it does not judge."""
    compare = DISTANCES[method].compare
    found = []
    for before, now in samples:
        known = Profile.of({"x": before})["x"] if profile else before
        found.append(compare(known, now, alpha=ALPHA))
    return (
        float(np.mean([each.verdict == "drift" for each in found])),
        float(np.mean([each.verdict in ("not applicable", "insufficient") for each in found])),
    )


def exact_alarms(method: str, samples: Sequence[tuple[Any, Any]], *, splits: int = 59, seed: int = 0) -> float:
    """The share of pairs whose statistic is among the largest of its values on random splits of both together."""
    rng = generator(seed, "exact", method)
    value = _value_of(method)
    n_alarms = 0
    for before, now in samples:
        observed = value(before, now)
        pooled = [*before, *now] if isinstance(before, list) else np.concatenate([before, now])
        large = 0
        for _ in range(splits):
            order = rng.permutation(len(pooled))
            mixed = [pooled[i] for i in order] if isinstance(pooled, list) else pooled[order]
            large += value(mixed[: len(before)], mixed[len(before) :]) >= observed * (1 - 1e-9)
        n_alarms += (large + 1) / (splits + 1) <= ALPHA
    return n_alarms / len(samples)


def _value_of(method: str) -> Callable[[Any, Any], float]:
    compare = DISTANCES[method].compare
    return lambda before, now: compare(before, now, min_rows=2**60).value  # too many rows asked for: no p-value


# Tables ---------------------------------------------------------------------------------------------------------


def methods_for(column: Column) -> list[str]:
    """The methods that accept a column."""
    return [name for name, distance in DISTANCES.items() if column.has_order or not distance.needs_order]


def rates_table(repetitions: int) -> str:
    """For each column and method: the least and the largest rate over all sizes."""
    lines = []
    for column in COLUMNS:
        known = [pairs(column, n, m, False, repetitions) for n, m in SIZES]
        large = profiled(column, repetitions)
        cells = []
        for method in DISTANCES:
            if method not in methods_for(column):
                cells.append("-")
                continue
            found = [alarms(method, samples) for samples in known] + [alarms(method, large)]
            judged = [rate / (1 - silent) for rate, silent in found if silent < 0.5]
            n_silent = sum(silent >= 0.5 for _, silent in found)
            cells.append(f"{percent(min(judged))}-{percent(max(judged))}" + (" *" if n_silent else ""))
        lines.append([column.name, *cells])
    return table(["column", *DISTANCES], lines)


def profiled(column: Column, repetitions: int) -> list[tuple[Any, Any]]:
    """Pairs whose reference is a profile; ten samples are compared with each."""
    rng, (n, m) = generator(0, column.name, "profile"), PROFILED
    found: list[tuple[Any, Any]] = []
    while len(found) < repetitions:
        known = Profile.of({"x": column.draw(rng, n, False)})["x"]
        found += [(known, column.draw(rng, m, False)) for _ in range(10)]
    return found[:repetitions]


def power_table(repetitions: int) -> str:
    """For each column and method: the power, and that of the exact test."""
    lines = []
    for column in COLUMNS:
        moved = pairs(column, *EXACT, True, repetitions)
        cells = []
        for method in DISTANCES:
            if method in methods_for(column):
                exact = exact_alarms(method, moved[: repetitions // 2])
                ours, _ = alarms(method, moved[: repetitions // 2])
                cells.append(f"{percent(ours)} / {percent(exact)}")
            else:
                cells.append("-")
        lines.append([column.name, *cells])
    return table(["column", *DISTANCES], lines)


def contenders() -> dict[str, Alarm]:
    """What is compared with the peers: one method for numbers and one for text, as most of them have."""
    ks, psi = DISTANCES["ks"].compare, DISTANCES["psi"].compare
    ours: Alarm = lambda a, b: bool((psi if isinstance(a, list) else ks)(a, b, alpha=ALPHA))  # noqa: E731
    return {"poolish": ours, **PEERS}


def peers_table(repetitions: int) -> tuple[str, dict[str, float]]:
    """Of each library: its worst rate, and its power where its rate holds, beside that of poolish there."""
    rates: dict[str, dict[tuple[str, int, int], tuple[float, float]]] = {name: {} for name in contenders()}
    for column in COLUMNS:
        for n, m in (*SIZES, (5_000, 500)):
            samples = [pairs(column, n, m, changed, repetitions, seed=1) for changed in (False, True)]
            for name, alarm in contenders().items():
                calm, moved = (float(np.mean([alarm(a, b) for a, b in each])) for each in samples)
                rates[name][column.name, n, m] = calm, moved
    worst = {name: max(rate for rate, _ in found.values()) for name, found in rates.items()}
    lines = []
    for name, found in rates.items():
        place = max(found, key=lambda key: found[key][0])
        holds = [key for key, (rate, _) in found.items() if rate <= _most(repetitions)]
        power = [float(np.mean([rates[who][key][1] for key in holds])) if holds else 0.0 for who in (name, "poolish")]
        where = f"{place[0]}, {place[1]:,} and {place[2]:,} rows"
        kept = f"{len(holds)} of {len(found)}"
        lines.append([name, f"{percent(worst[name])} %", where, kept, *(f"{percent(share)} %" for share in power)])
    header = ["library", "worst rate", "where", "rate holds", "its power there", "poolish's there"]
    return table(header, lines), worst


def _most(repetitions: int) -> float:
    """The largest rate that 1.5 alpha may show by chance, two standard errors above it."""
    return 1.5 * ALPHA + 2 * float(np.sqrt(1.5 * ALPHA * (1 - 1.5 * ALPHA) / repetitions))


def percent(share: float) -> str:
    """A share as a whole number of per cent, with a decimal below ten.

    >>> percent(0.0475), percent(0.62)
    ('4.8', '62')
    """
    return f"{100 * share:.1f}" if share < 0.0995 else f"{100 * share:.0f}"


def table(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    rows = [header, ["---"] * len(header), *lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def written(page: str, parts: Mapping[str, str]) -> str:
    """The page with each part between its marks, ``<!-- name -->`` and ``<!-- end -->``."""
    for name, part in parts.items():
        found = re.compile(rf"(<!-- {name} -->\n).*?(\n<!-- end -->)", re.S)
        page, n_places = found.subn(lambda match, part=part: f"{match[1]}{part}{match[2]}", page)  # type: ignore[misc]
        if n_places != 1:
            raise ValueError(f"{PAGE}: it has {n_places} places for {name!r}, <!-- {name} --> to <!-- end -->")
    return page


def main(repetitions: int, *, dry: bool) -> None:
    """Compute all tables, and write them unless ``dry``."""
    against, worst = peers_table(repetitions)
    parts = {"drift rates": rates_table(repetitions), "drift power": power_table(repetitions), "drift peers": against}
    for name, part in parts.items():
        print(f"{name}\n\n{part}\n")
    if dry:
        return
    title = "Largest share of false alarms over all columns and sizes (alpha 0.05)"
    plot = html.bar_chart(list(worst), list(worst.values()), width=560, title=title)
    (PAGE.parent / "guards_worst.svg").write_text(f"{plot}\n")
    PAGE.write_text(written(PAGE.read_text(), parts))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=200)
    parser.add_argument("--dry", action="store_true", help="print only")
    asked = parser.parse_args()
    main(asked.repetitions, dry=asked.dry)
