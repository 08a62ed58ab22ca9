"""poolish: datasets that change while you train.

The names below are loaded when they are first used, so ``import poolish`` is instant and brings neither
NumPy, Arrow nor torch into a program that may not need them.

>>> from poolish import DatasetBuffer
>>> buffer = DatasetBuffer(max_size=2)
>>> buffer.append([{"label": 0}, {"label": 1}, {"label": 2}])
>>> buffer.to_pydict()
{'label': [1, 2]}
"""

from importlib import import_module

# Type checkers take a constant of this name as true; importing typing for it would be most of our import time.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from poolish import errors as errors
    from poolish import guards as guards
    from poolish import load as load
    from poolish import testing as testing
    from poolish.errors import BadText as BadText
    from poolish.errors import BudgetSpent as BudgetSpent
    from poolish.errors import CircuitOpen as CircuitOpen
    from poolish.errors import ConfigError as ConfigError
    from poolish.errors import CorruptDataError as CorruptDataError
    from poolish.errors import DataRefused as DataRefused
    from poolish.errors import DurabilityLost as DurabilityLost
    from poolish.errors import LimitExceeded as LimitExceeded
    from poolish.errors import NumberTooLarge as NumberTooLarge
    from poolish.errors import PacingTimeout as PacingTimeout
    from poolish.errors import PoolishError as PoolishError
    from poolish.errors import QueueError as QueueError
    from poolish.errors import QueueNotFound as QueueNotFound
    from poolish.errors import RecipeError as RecipeError
    from poolish.errors import ResumeError as ResumeError
    from poolish.errors import SchemaError as SchemaError
    from poolish.errors import StaleSchema as StaleSchema
    from poolish.errors import Starved as Starved
    from poolish.errors import StoreFull as StoreFull
    from poolish.errors import StoreLocked as StoreLocked
    from poolish.errors import Unfingerprintable as Unfingerprintable
    from poolish.errors import UnknownColumn as UnknownColumn
    from poolish.guards import Profile as Profile
    from poolish.guards import Suite as Suite
    from poolish.load import Dataset as Dataset
    from poolish.load import Loader as Loader
    from poolish.load import verify_resume as verify_resume
    from poolish.recipes import DatasetRecipe as DatasetRecipe
    from poolish.recipes import bake as bake
    from poolish.recipes import col as col
    from poolish.recipes import register_step as register_step
    from poolish.rows import DatasetBuffer as DatasetBuffer
    from poolish.rows import register_normalizer as register_normalizer
    from poolish.schema import Field as Field
    from poolish.schema import Schema as Schema
    from poolish.serve import DataProvider as DataProvider
    from poolish.serve import DataProviderBase as DataProviderBase
    from poolish.serve import DatasetConsumer as DatasetConsumer
    from poolish.serve import DatasetProvider as DatasetProvider
    from poolish.tokens import MemmapBuffer as MemmapBuffer
    from poolish.tokens import StreamSet as StreamSet
    from poolish.tokens import StreamStore as StreamStore
    from poolish.versions import show_versions as show_versions

__version__ = "0.1.0"

#: The modules of the public names. The imports above say the same to type checkers and editors.
_NAMES = {
    "errors": (
        "BadText BudgetSpent CircuitOpen ConfigError CorruptDataError DataRefused DurabilityLost LimitExceeded "
        "NumberTooLarge PacingTimeout PoolishError QueueError QueueNotFound RecipeError ResumeError SchemaError "
        "StaleSchema Starved StoreFull StoreLocked Unfingerprintable UnknownColumn"
    ),
    "guards": "Profile Suite",
    "load": "Dataset Loader verify_resume",
    "recipes": "DatasetRecipe bake col register_step",
    "rows": "DatasetBuffer register_normalizer",
    "schema": "Field Schema",
    "serve": "DataProvider DataProviderBase DatasetConsumer DatasetProvider",
    "tokens": "MemmapBuffer StreamSet StreamStore",
    "versions": "show_versions",
}
_HOMES = {name: f"poolish.{home}" for home, names in _NAMES.items() for name in names.split()}

#: Modules that are public as they are.
_MODULES = ("errors", "guards", "load", "testing")

__all__ = [
    "BadText",
    "BudgetSpent",
    "CircuitOpen",
    "ConfigError",
    "CorruptDataError",
    "DataProvider",
    "DataProviderBase",
    "DataRefused",
    "Dataset",
    "DatasetBuffer",
    "DatasetConsumer",
    "DatasetProvider",
    "DatasetRecipe",
    "DurabilityLost",
    "Field",
    "LimitExceeded",
    "Loader",
    "MemmapBuffer",
    "NumberTooLarge",
    "PacingTimeout",
    "PoolishError",
    "Profile",
    "QueueError",
    "QueueNotFound",
    "RecipeError",
    "ResumeError",
    "Schema",
    "SchemaError",
    "StaleSchema",
    "Starved",
    "StoreFull",
    "StoreLocked",
    "StreamSet",
    "StreamStore",
    "Suite",
    "Unfingerprintable",
    "UnknownColumn",
    "bake",
    "col",
    "errors",
    "guards",
    "load",
    "register_normalizer",
    "register_step",
    "show_versions",
    "testing",
    "verify_resume",
]

if not TYPE_CHECKING:  # hidden from type checkers, so that they see a misspelt name for what it is

    def __getattr__(name: str) -> object:
        if name in _MODULES:
            return import_module(f"poolish.{name}")
        if name not in _HOMES:
            raise AttributeError(f"module 'poolish' has no attribute {name!r}")
        value = getattr(import_module(_HOMES[name]), name)
        globals()[name] = value  # so that each name is looked up once
        return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
