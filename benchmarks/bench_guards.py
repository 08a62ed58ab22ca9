"""Guards against NumPy, SciPy and Evidently: profiles, drift, and what a guard costs a call that succeeds.

Two samples of 5 M float64 rows. "NumPy" and "SciPy" are what one writes at home: each statistic by its own call.
"exact" starts from the raw values on both sides; "on frozen bins" is what a stream does: the reference is a profile
that was made once, and the time is that of profiling 5 M new rows on its bins and comparing the two profiles.

    python -m benchmarks.bench_guards                   # all parts
    python -m benchmarks.bench_guards profile calls     # some of them
"""

from __future__ import annotations

import importlib
import resource
import sys
import time
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from benchmarks.harness import Measure, Missing, compare, needs, per_call
from poolish import kernels
from poolish.guards import CircuitBreaker, Profile, Retry, drift, kl, ks, psi

N_ROWS = 5_000_000
N_BINS = 10


def main(chosen: Sequence[str]) -> None:
    """The parts that were chosen, or all."""
    for name in chosen or PARTS:
        PARTS[name]()


def samples() -> tuple[np.ndarray, np.ndarray]:
    """A reference and a sample that drifted a little; its memory has been touched."""
    rng = np.random.default_rng(7)
    return rng.standard_normal(N_ROWS), rng.normal(0.01, 1.0, N_ROWS)


# Profiles -------------------------------------------------------------------------------------------------------


def profile() -> None:
    """One column in one pass, against a call for each statistic."""
    x, _ = samples()
    known = Profile.of({"x": x[:100_000]})
    peers: dict[str, Measure | Missing] = {
        "NumPy": per_call(lambda: numpy_profile(x), unit="ms"),
        "SciPy": needs("scipy.stats", lambda scipy: per_call(lambda: scipy_profile(x, scipy), unit="ms")),
    }
    name = f"guards.profile, {N_ROWS:,} float64"
    compare(name, "ms", per_call(lambda: Profile.of({"x": x}), unit="ms"), peers)
    compare(
        f"{name}, on frozen bins",
        "ms",
        per_call(lambda: Profile.of({"x": x}, reference=known), unit="ms"),
        peers,
    )
    compare(
        f"{name}, on frozen bins, without quantiles",
        "ms",
        per_call(lambda: Profile.of({"x": x}, reference=known, sketch="none"), unit="ms"),
        peers,
    )
    edges, counts = np.linspace(-2, 2, N_BINS - 1), np.zeros(N_BINS, np.int64)
    compare(
        f"guards.scan, moments and histogram of {N_ROWS:,} float64",
        "ms",
        per_call(lambda: kernels.scan(x, edges, counts), unit="ms"),
        peers,
    )


def numpy_profile(x: np.ndarray) -> tuple[Any, ...]:
    """Mean, variance, skewness, kurtosis and histogram, written with care: no powers, one copy."""
    mean, variance = x.mean(), x.var()
    apart = x - mean
    square = apart * apart
    skewness = (square * apart).mean() / variance**1.5
    kurtosis = (square * square).mean() / variance**2 - 3
    return mean, variance, skewness, kurtosis, np.histogram(x, bins=N_BINS)


def scipy_profile(x: np.ndarray, stats: ModuleType) -> tuple[Any, ...]:
    """The same by name."""
    return x.mean(), x.var(), stats.skew(x), stats.kurtosis(x), np.histogram(x, bins=N_BINS)


# Drift ----------------------------------------------------------------------------------------------------------


def drift_pairs() -> None:
    """PSI, KS, KL and the moments of two samples."""
    before, now = samples()
    known = Profile.of({"x": before})
    name = f"guards.psi + ks + kl + moments, 2 x {N_ROWS:,} float64"
    at_home = {
        "SciPy and NumPy": needs(
            "scipy.stats", lambda stats: per_call(lambda: at_home_drift(before, now, stats), unit="s")
        ),
        "Evidently": needs("evidently", lambda _: evidently_drift(before, now)),
    }

    def exact() -> object:
        return drift({"x": before}, {"x": now}, method="psi+ks+kl")

    def on_profiles() -> object:
        seen = Profile.of({"x": now}, reference=known)["x"]
        own = known["x"]
        return psi(own, seen), ks(own, seen), kl(own, seen), seen.kurtosis, own.kurtosis

    compare(f"{name}, exact", "s", per_call(exact, unit="s"), at_home, rounds=3)
    compare(f"{name}, on frozen bins", "s", per_call(on_profiles, unit="s"), at_home, rounds=3)
    seen = Profile.of({"x": now}, reference=known)["x"]
    compare(
        f"{name}, both sides profiles",
        "s",
        per_call(lambda: (psi(known["x"], seen), ks(known["x"], seen), kl(known["x"], seen)), unit="s"),
        at_home,
        rounds=3,
    )


def at_home_drift(before: np.ndarray, now: np.ndarray, stats: ModuleType) -> tuple[Any, ...]:
    """What one writes without poolish, from the same bins."""
    edges = np.quantile(before, np.arange(1, N_BINS) / N_BINS)
    p, q = (
        (np.bincount(np.searchsorted(edges, x, side="right"), minlength=N_BINS) + 0.5) / (len(x) + 0.5 * N_BINS)
        for x in (before, now)
    )
    index = float(((p - q) * np.log(p / q)).sum())
    moments = [(x.mean(), x.var(), stats.skew(x), stats.kurtosis(x)) for x in (before, now)]
    return index, stats.entropy(q, p), stats.entropy(p, q), stats.ks_2samp(before, now), moments


def evidently_drift(before: np.ndarray, now: np.ndarray) -> Measure | Missing:
    """Its three tests on the same two columns; it has no moments beyond the second."""
    try:
        pd = importlib.import_module("pandas")
        stattests = importlib.import_module("evidently.legacy.calculations.stattests")
        # Told by the enum: to it the text "num" is a category, and every number a value of its own.
        kind = importlib.import_module("evidently.legacy.core").ColumnType.Numerical
        a, b = pd.Series(before), pd.Series(now)
        tests = [stattests.get_stattest(a, b, kind, name) for name in ("psi", "ks", "kl_div")]
    except (ImportError, AttributeError) as error:
        return Missing(f"this Evidently has other names: {error}")
    return per_call(lambda: [test(a, b, kind, 0.1) for test in tests], unit="s")


# A billion values ------------------------------------------------------------------------------------------------


N_BLOCK, N_BLOCKS = 10_000_000, 100


def billion() -> None:
    """PSI and KS of 10**9 values, profiled block by block on the bins of a reference; once."""
    rng = np.random.default_rng(7)
    known, block = Profile.of({"x": rng.standard_normal(N_BLOCK)}), rng.standard_normal(N_BLOCK)
    Profile.of({"x": block}, reference=known)  # the memory of one block's work is touched before it is measured
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
    whole = Profile({})
    for _ in range(N_BLOCKS):
        block += 1e-9  # the memory is used again, with other values
        whole = whole.merge(Profile.of({"x": block}, reference=known))
    found = psi(known["x"], whole["x"]), ks(known["x"], whole["x"])
    seconds = time.perf_counter() - began
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert found[0].m == found[1].m == N_BLOCK * N_BLOCKS
    name = f"guards.psi + ks of {N_BLOCK * N_BLOCKS:,} values by merged profiles"
    compare(name, "s", lambda: seconds, rounds=1)
    compare(f"{name}, peak memory above one block", "bytes", lambda: float(grown), rounds=1)


# Calls ----------------------------------------------------------------------------------------------------------


def calls() -> None:
    """What a guard adds to a call that succeeds: the time of the guarded call; the peer is the call alone."""
    retried, breaker = Retry(attempts=3)(answer), CircuitBreaker()
    for _ in range(1_000):
        breaker.call(answer)
    alone = {"the call alone": per_call(answer, unit="us", calls=200_000)}
    compare("guards.Retry around a call that succeeds", "us", per_call(retried, unit="us", calls=200_000), alone)
    guarded: Callable[[], object] = lambda: breaker.call(answer)  # noqa: E731
    compare(
        "guards.CircuitBreaker around a call that succeeds", "us", per_call(guarded, unit="us", calls=200_000), alone
    )


def answer() -> int:
    """A call that succeeds at once."""
    return 42


#: The parts by name; further ones join here.
PARTS: dict[str, Callable[[], None]] = {
    "profile": profile,
    "drift": drift_pairs,
    "billion": billion,
    "calls": calls,
}


if __name__ == "__main__":
    main(sys.argv[1:])
