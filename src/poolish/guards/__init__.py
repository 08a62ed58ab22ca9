"""Guards: policies for samples, sources and batches that fail, and checks of what good data is.

A stage takes a guard as an argument. ``Retry`` calls again, ``CircuitBreaker`` stops calling a source that is down, and
``Faults`` decides what replaces a sample that could not be read, counts it, and ends the run when its budget is spent.
A ``Suite`` states what good data is and checks it at every boundary. A ``Profile`` holds the statistics of rows,
``drift`` compares two of them, and the outlier detectors find rows unlike the others.

    faults/   fault policies, retry, breaker: no Arrow needed
    checks/   suites, verdicts, guards
    stats/    profiles, distances, drift, outliers

Modules that need Arrow are loaded on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from poolish.errors import CircuitOpen as CircuitOpen
from poolish.guards.faults.blame import DATA_ERRORS as DATA_ERRORS
from poolish.guards.faults.breaker import CircuitBreaker as CircuitBreaker
from poolish.guards.faults.faults import Faults as Faults
from poolish.guards.faults.retry import Retry as Retry
from poolish.guards.faults.retry import RetryStats as RetryStats

if TYPE_CHECKING:
    from poolish.guards.checks.checks import register_check as register_check
    from poolish.guards.checks.distributions import Reference as Reference
    from poolish.guards.checks.guard import Guard as Guard
    from poolish.guards.checks.guard import Rejected as Rejected
    from poolish.guards.checks.infer import infer as infer
    from poolish.guards.checks.levels import LevelReport as LevelReport
    from poolish.guards.checks.levels import Validation as Validation
    from poolish.guards.checks.stream import StreamGuard as StreamGuard
    from poolish.guards.checks.suite import Suite as Suite
    from poolish.guards.checks.verdicts import Result as Result
    from poolish.guards.checks.verdicts import Verdict as Verdict
    from poolish.guards.stats.column_profile import ColumnProfile as ColumnProfile
    from poolish.guards.stats.detectors import AutoencoderOutliers as AutoencoderOutliers
    from poolish.guards.stats.detectors import IsolationForestOutliers as IsolationForestOutliers
    from poolish.guards.stats.detectors import OneClassSVMOutliers as OneClassSVMOutliers
    from poolish.guards.stats.distances import chi2 as chi2
    from poolish.guards.stats.distances import js as js
    from poolish.guards.stats.distances import kl as kl
    from poolish.guards.stats.distances import ks as ks
    from poolish.guards.stats.distances import psi as psi
    from poolish.guards.stats.distances import wasserstein as wasserstein
    from poolish.guards.stats.drift import DriftReport as DriftReport
    from poolish.guards.stats.drift import drift as drift
    from poolish.guards.stats.outliers import Outliers as Outliers
    from poolish.guards.stats.outliers import iqr as iqr
    from poolish.guards.stats.outliers import modified_zscore as modified_zscore
    from poolish.guards.stats.outliers import zscore as zscore
    from poolish.guards.stats.profile import Profile as Profile
    from poolish.guards.stats.significance import Comparison as Comparison
    from poolish.guards.stats.sketches import Moments as Moments
    from poolish.validation import validate as validate

_LOADED = ("DATA_ERRORS", "CircuitBreaker", "CircuitOpen", "Faults", "Retry", "RetryStats")

#: Module -> the names loaded from it on first use. The imports above say the same to type checkers.
_HOMES = {
    "checks.checks": ("register_check",),
    "checks.guard": ("Guard", "Rejected"),
    "checks.infer": ("infer",),
    "checks.levels": ("LevelReport", "Validation"),
    "checks.distributions": ("Reference",),
    "checks.stream": ("StreamGuard",),
    "checks.suite": ("Suite",),
    "checks.verdicts": ("Result", "Verdict"),
    "stats.column_profile": ("ColumnProfile",),
    "stats.detectors": ("AutoencoderOutliers", "IsolationForestOutliers", "OneClassSVMOutliers"),
    "stats.distances": ("chi2", "js", "kl", "ks", "psi", "wasserstein"),
    "stats.drift": ("DriftReport", "drift"),
    "stats.outliers": ("Outliers", "iqr", "modified_zscore", "zscore"),
    "stats.profile": ("Profile",),
    "stats.significance": ("Comparison",),
    "stats.sketches": ("Moments",),
}
_HOME_OF = {name: f"poolish.guards.{module}" for module, names in _HOMES.items() for name in names}

#: Public here, but defined in a package above, which reads files, streams and queues. No guard may import it.
_UPSTAIRS = {"validate": "poolish.validation"}

__all__ = sorted([*_LOADED, *_HOME_OF, *_UPSTAIRS])

if not TYPE_CHECKING:  # hidden from type checkers, so that they report a misspelt name

    def __getattr__(name: str) -> object:
        home = _HOME_OF.get(name) or _UPSTAIRS.get(name)
        if home is None:
            raise AttributeError(f"module 'poolish.guards' has no attribute {name!r}")
        value = getattr(import_module(home), name)
        globals()[name] = value  # so that each name is looked up once
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
