"""Anything that can say how much it has and hand out one piece, as a dataset."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from poolish.errors import ConfigError
from poolish.fingerprints import qualified_name
from poolish.fixed import fixed_parameters
from poolish.load.dataset import Dataset, check_index, check_version, identity_of, version_of
from poolish.load.views.transformed import function_identity

Accessor = Callable[..., Any] | str


@fixed_parameters("make a new AdaptedDataset", stored=False)
class AdaptedDataset(Dataset):
    """``obj`` as a dataset. Each accessor is a function of ``obj``, or the name of one of its methods.

    ``length(obj)``, ``get(obj, number)`` with a number from 0 up, and where many samples can be had faster together
    ``get_many(obj, numbers)``, which gives as many samples in the same order.

    A cache on disk identifies ``obj`` by its class and attributes, and the functions by their code. Where these cannot
    be read, it asks for ``version``: change it whenever a sample changes.

    >>> class Bakery:
    ...     def count(self):
    ...         return 3
    ...     def loaf(self, n):
    ...         return f"loaf {n}"
    >>> loaves = AdaptedDataset(Bakery(), length="count", get="loaf")
    >>> loaves[-1], len(loaves)
    ('loaf 2', 3)
    >>> AdaptedDataset(b"rye", length=len, get=lambda text, n: chr(text[n]))[0]
    'r'
    """

    def __init__(
        self,
        obj: Any,
        *,
        length: Accessor,
        get: Accessor,
        get_many: Accessor | None = None,
        version: str | float | None = None,
    ) -> None:
        self._object, self._version = obj, check_version(version)
        self._length = _accessor(obj, length, "length")
        self._get = _accessor(obj, get, "get")
        self._get_many = None if get_many is None else _accessor(obj, get_many, "get_many")

    def __len__(self) -> int:
        return int(self._length(self._object))

    def __getitem__(self, index: int) -> Any:
        return self._get(self._object, check_index(index, len(self)))

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """In one call, if there is one."""
        n_rows = len(self)
        numbers = [check_index(index, n_rows) for index in indices]
        if self._get_many is None:
            return [self._get(self._object, number) for number in numbers]
        found = list(self._get_many(self._object, numbers))
        if len(found) != len(numbers):
            raise ConfigError(
                f"get_many gave {len(found)} samples for {len(numbers)} numbers; it must give one for each"
            )
        return found

    @property
    def version(self) -> str:
        """The object's own, if it has one."""
        return version_of(self._object)

    def _identity(self) -> Any:
        """The object and the accessors, or the version."""
        if self._version is not None:
            return "adapted", qualified_name(type(self._object)), self._version
        accessors = [accessor for accessor in (self._length, self._get, self._get_many) if accessor is not None]
        return (
            "adapted",
            identity_of(self._object),
            [function_identity(accessor) for accessor in accessors],
            self._get_many is None,
        )


class _Method:
    """A method by its name, called on the object it is given; unlike a lambda it can be sent to a worker."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, obj: Any, *arguments: Any) -> Any:
        return getattr(obj, self._name)(*arguments)


def _accessor(obj: Any, given: Accessor, what: str) -> Callable[..., Any]:
    if isinstance(given, str):
        if not callable(getattr(obj, given, None)):
            raise ConfigError(f"{what}={given!r}: {type(obj).__name__} has no such method; pass its name or a function")
        return _Method(given)
    if not callable(given):
        raise ConfigError(f"{what} is a function of the object or the name of its method, got {given!r}")
    return given
