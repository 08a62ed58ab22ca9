"""Guards: what happens when a sample, a source or a whole batch fails, by policies that the user chose.

A stage takes a guard as an argument. ``Retry`` asks again, ``CircuitBreaker`` stops asking a source that is down, and
``Faults`` decides what stands in for what could not be read, counts it, and ends the run when its budget is spent. A
``Suite`` says what good data is; doors ask it before they let rows pass. A ``Profile`` holds the statistics of rows,
``drift`` and its tests compare two of them, and the outliers find rows that are unlike the others.

Faults need no Arrow; what looks at rows does, and is loaded when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from poolish.errors import CircuitOpen
from poolish.guards.blame import DATA_ERRORS
from poolish.guards.breaker import CircuitBreaker
from poolish.guards.drift import drift  # now, so that the name is the function, not the module that it lives in
from poolish.guards.faults import Faults
from poolish.guards.retry import Retry, RetryStats

if TYPE_CHECKING:
    from poolish.guards.column_profile import ColumnProfile as ColumnProfile
    from poolish.guards.comparison import Comparison as Comparison
    from poolish.guards.custom import register_check as register_check
    from poolish.guards.distances import chi2 as chi2
    from poolish.guards.distances import js as js
    from poolish.guards.distances import kl as kl
    from poolish.guards.distances import ks as ks
    from poolish.guards.distances import psi as psi
    from poolish.guards.distances import wasserstein as wasserstein
    from poolish.guards.drift_report import DriftReport as DriftReport
    from poolish.guards.guard import Guard as Guard
    from poolish.guards.inferring import infer as infer
    from poolish.guards.levels import LevelReport as LevelReport
    from poolish.guards.levels import Validation as Validation
    from poolish.guards.moments import Moments as Moments
    from poolish.guards.outliers import Outliers as Outliers
    from poolish.guards.outliers import iqr as iqr
    from poolish.guards.outliers import modified_zscore as modified_zscore
    from poolish.guards.outliers import zscore as zscore
    from poolish.guards.outliers_autoencoder import AutoencoderOutliers as AutoencoderOutliers
    from poolish.guards.outliers_forest import IsolationForestOutliers as IsolationForestOutliers
    from poolish.guards.outliers_svm import OneClassSVMOutliers as OneClassSVMOutliers
    from poolish.guards.profile import Profile as Profile
    from poolish.guards.reference import Reference as Reference
    from poolish.guards.rejected import Rejected as Rejected
    from poolish.guards.stream_guard import StreamGuard as StreamGuard
    from poolish.guards.suite import Suite as Suite
    from poolish.guards.verdicts import Result as Result
    from poolish.guards.verdicts import Verdict as Verdict
    from poolish.validation import validate as validate

#: Name -> the module it lives in, for those that are loaded late. The imports above say the same to type checkers.
_HOMES = {
    "AutoencoderOutliers": "outliers_autoencoder",
    "ColumnProfile": "column_profile",
    "Comparison": "comparison",
    "DriftReport": "drift_report",
    "Guard": "guard",
    "IsolationForestOutliers": "outliers_forest",
    "LevelReport": "levels",
    "Moments": "moments",
    "OneClassSVMOutliers": "outliers_svm",
    "Outliers": "outliers",
    "Profile": "profile",
    "Reference": "reference",
    "Rejected": "rejected",
    "Result": "verdicts",
    "StreamGuard": "stream_guard",
    "Suite": "suite",
    "Validation": "levels",
    "Verdict": "verdicts",
    "chi2": "distances",
    "infer": "inferring",
    "iqr": "outliers",
    "js": "distances",
    "kl": "distances",
    "ks": "distances",
    "modified_zscore": "outliers",
    "psi": "distances",
    "register_check": "custom",
    "wasserstein": "distances",
    "zscore": "outliers",
}

#: Named here for users and home in a room above, which reads files, streams and queues. No guard may import it.
_UPSTAIRS = {"validate": "poolish.validation"}

__all__ = [
    "DATA_ERRORS",
    "AutoencoderOutliers",
    "CircuitBreaker",
    "CircuitOpen",
    "ColumnProfile",
    "Comparison",
    "DriftReport",
    "Faults",
    "Guard",
    "IsolationForestOutliers",
    "LevelReport",
    "Moments",
    "OneClassSVMOutliers",
    "Outliers",
    "Profile",
    "Reference",
    "Rejected",
    "Result",
    "Retry",
    "RetryStats",
    "StreamGuard",
    "Suite",
    "Validation",
    "Verdict",
    "chi2",
    "drift",
    "infer",
    "iqr",
    "js",
    "kl",
    "ks",
    "modified_zscore",
    "psi",
    "register_check",
    "validate",
    "wasserstein",
    "zscore",
]

if not TYPE_CHECKING:  # hidden from type checkers, so that they see a misspelt name for what it is

    def __getattr__(name: str) -> object:
        home = _UPSTAIRS.get(name) or f"poolish.guards.{_HOMES.get(name, '')}"
        if home == "poolish.guards.":
            raise AttributeError(f"module 'poolish.guards' has no attribute {name!r}")
        value = getattr(import_module(home), name)
        globals()[name] = value  # so that each name is looked up once
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
