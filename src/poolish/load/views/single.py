"""Views of one dataset: with other samples, or with its rows chosen or in another order.

    TransformedDataset   a function of each sample
    AdaptedDataset       whatever can say how much it has and hand out one piece
    ResilientDataset     a source that may fail: tried again, left alone for a while, replaced by policy
    SubsettedDataset     chosen rows
    ShuffledDataset      all rows, in another order in each epoch

A function that names ``rng`` in its signature is given random numbers that depend on the seed, the epoch and the row
alone. So an augmented row can be read twice, out of order, in any worker or after a restart, and is the same; in the
next epoch it is another. A function that names ``progress`` gets how far training has come.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from poolish import seeds
from poolish.errors import ConfigError
from poolish.files import checksum_hex
from poolish.fingerprints import (
    check_attributes,
    declared_version,
    function_fingerprint,
    qualified_name,
    unfingerprintable,
)
from poolish.fixed import fixed_parameters
from poolish.guards import CircuitBreaker, Faults, Retry
from poolish.load.dataset import ADVICE, Dataset, check_index, check_version, identity_of, version_of, whole_number
from poolish.load.frozen import FrozenRows, Int64
from poolish.load.views.view import ReadRows, ReindexedView, SampleView, check_epoch
from poolish.seeds import KeyedPermutation

_EXTRA = ("rng", "progress")


@fixed_parameters("make a new TransformedDataset", stored=False)
class TransformedDataset(SampleView):
    """``fn(sample)`` for every sample of ``dataset``, computed when it is read.

    If ``fn`` has an argument ``rng``, it gets a ``np.random.Generator`` of its own for each seed, epoch and row id. If
    it has an argument ``progress``, it gets ``epoch / (epochs - 1)``, at most 1: 0.0 in the first epoch, 1.0 in the
    last and after it (and always, where there is only one). An error of ``fn`` keeps its type and names the row. What
    ``fn`` changes in place is changed wherever ``dataset`` keeps it: let it return something new.

    A cache on disk identifies ``fn`` by its code and everything it uses. Where that cannot be read, it asks for
    ``version``, or for an attribute of that name on ``fn``: change it whenever ``fn`` changes.

    >>> def jitter(sample, rng, progress):
    ...     return sample + round(progress * rng.random(), 3)
    >>> noisy = TransformedDataset([1.0, 2.0], jitter, seed=7, epochs=3)
    >>> list(noisy)
    [1.0, 2.0]
    >>> noisy.set_epoch(2)
    >>> list(noisy), noisy[-1]
    ([1.119, 2.836], 2.836)
    """

    def __init__(
        self,
        dataset: Any,
        fn: Callable[..., Any],
        *,
        seed: int = 0,
        epochs: int | None = None,
        version: str | float | None = None,
    ) -> None:
        super().__init__(dataset)
        if not callable(fn):
            raise ConfigError(f"fn is called with each sample, got {type(fn).__name__} {fn!r}; pass a function")
        self._fn, self._seed, self._epochs = fn, seeds.check_seed(seed), n_epochs(epochs)
        self._extra, self._version = extra_arguments(fn, self._epochs), check_version(version)
        self._begin_epoch(0)

    def __getitem__(self, index: int) -> Any:
        if self._call.wants_rng:
            return super().__getitem__(index)
        number = self._numbers_below([index])[0]  # half the time of asking for a list of one
        return self._call(number, self._dataset[number])

    @property
    def _needs_ids(self) -> bool:
        """Random numbers are the row's, whatever its number is now."""
        return self._call.wants_rng and not self.ids_are_numbers

    def _over(self, rows: FrozenRows) -> FrozenRows:
        """Transformed as in this epoch."""
        return ReadRows(rows, self._call.read)

    def set_epoch(self, epoch: int) -> None:
        """From now on samples are those of ``epoch``, here and below."""
        self._begin_epoch(check_epoch(epoch))
        super().set_epoch(epoch)

    def _begin_epoch(self, epoch: int) -> None:
        self._epoch = epoch
        given = {"progress": self.progress} if "progress" in self._extra else {}
        self._call = TransformCall(self._fn, given, self._seed if "rng" in self._extra else None, epoch)

    @property
    def version(self) -> str:
        """That of the dataset and, where the function asks for randomness or progress, the epoch."""
        parts = [super().version]
        if self._extra:
            parts += [f"seed {self._seed}", f"epoch {self._epoch}", f"epochs {self._epochs}"]
        return "|".join(parts)

    def _identity(self) -> Any:
        """What it looks at, and the function."""
        return "transformed", identity_of(self._dataset), function_identity(self._fn, self._version)

    @property
    def progress(self) -> float:
        """How far the epochs have come, from 0 to 1."""
        return progress_at(self._epoch, self._epochs)


class TransformCall:
    """The function, with what it asks for in one epoch; never changed, so that rows taken earlier keep it."""

    def __init__(self, fn: Callable[..., Any], given: dict[str, Any], seed: int | None, epoch: int) -> None:
        self._fn, self._given, self._seed, self._epoch = fn, given, seed, epoch
        self.wants_rng = seed is not None

    def __call__(self, row: int, sample: Any) -> Any:
        try:
            if self._seed is not None:
                rng = seeds.generator(self._seed, "transform", self._epoch, row)
                return self._fn(sample, rng=rng, **self._given)
            return self._fn(sample, **self._given)
        except Exception as error:
            error.add_note(f"while transforming row {row} with {name_of(self._fn)}")
            raise

    def read(self, ids: Int64, rows: FrozenRows) -> list[Any]:
        """Read together, then transformed one by one."""
        return [self(id_, sample) for id_, sample in zip(ids.tolist(), rows.fetch(ids), strict=True)]


def n_epochs(epochs: int | None) -> int | None:
    """A number of epochs or None."""
    if epochs is not None and whole_number(epochs, 1) is None:
        raise ConfigError(f"epochs={epochs!r}: give a whole number from 1, or None")
    return epochs


def extra_arguments(fn: Callable[..., Any], epochs: int | None, what: str = "TransformedDataset") -> frozenset[str]:
    """Which of the extra arguments a function names."""
    check_attributes(fn, what)
    try:
        names = inspect.signature(fn).parameters
    except (TypeError, ValueError):  # some builtins do not tell
        return frozenset()
    if "progress" in names and epochs is None:
        raise ConfigError(f"{name_of(fn)} asks for progress; say over how many epochs it goes: epochs=...")
    return frozenset(name for name in _EXTRA if name in names)


def progress_at(epoch: int, epochs: int | None) -> float:
    """How far the epochs have come, from 0 in the first to 1 in the last.

    >>> [progress_at(epoch, 5) for epoch in (0, 1, 4, 9)]
    [0.0, 0.25, 1.0, 1.0]
    """
    return 1.0 if epochs is None or epochs == 1 else min(1.0, epoch / (epochs - 1))


def name_of(fn: Callable[..., Any]) -> str:
    """What to call a function in a message."""
    return getattr(fn, "__qualname__", None) or type(fn).__name__


def function_identity(fn: Callable[..., Any], version: Any = None) -> str:
    """The fingerprint of a function; its version where it has one, passed with it or as its attribute ``version``."""
    declared = declared_version(fn) if version is None else version
    return function_fingerprint(fn, name_of(fn), declared, advice=ADVICE)


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


@fixed_parameters("make a new ResilientDataset", stored=False)
class ResilientDataset(SampleView):
    """``dataset`` with its reads retried, guarded by a breaker, and replaced by policy where that is not enough.

    A dataset has a row for every number, so ``Faults(on_sample="skip")`` is for a ``Loader``; here a row is replaced by
    a placeholder or by its neighbour, or its error comes out.

    >>> from poolish.guards import Faults
    >>> class Flapping(list):
    ...     def __getitem__(self, i):
    ...         if i == 1:
    ...             raise OSError("the disk is away")
    ...         return super().__getitem__(i)
    >>> rows = ResilientDataset(Flapping([10, 20, 30]), faults=Faults(on_sample="neighbour", budget=2))
    >>> list(rows)
    [10, 30, 30]
    """

    def __init__(
        self,
        dataset: Any,
        *,
        retry: Retry | None = None,
        breaker: CircuitBreaker | None = None,
        faults: Faults | None = None,
    ) -> None:
        super().__init__(dataset)
        if faults is not None and faults.on_sample == "skip":
            raise ConfigError(
                'on_sample="skip": a dataset has a row for every number; choose "placeholder" or "neighbour", or give '
                "these faults to the Loader"
            )
        if faults is not None:
            faults.expect(getattr(dataset, "schema", None))
        self._retry, self._breaker, self._faults = retry, breaker, faults

    def _numbers_below(self, indices: Sequence[int]) -> list[int]:
        """Checked here, because an error of the dataset is answered by policy."""
        return self._numbers(indices)

    def _over(self, rows: FrozenRows) -> FrozenRows:
        """The rows, read with the same care."""
        return ReadRows(rows, self.read)

    def read(self, ids: Int64, rows: FrozenRows) -> list[Any]:
        """Samples as well as they can be had."""
        breaker = self._breaker
        guarded = rows.fetch if breaker is None else lambda some: breaker.call(rows.fetch, some)

        def attempt(some: Int64) -> list[Any]:
            if self._retry is None:
                return guarded(some)
            if len(some) == 1:
                return self._retry.call(guarded, some)
            try:
                return guarded(some)
            except Exception as error:
                if not self._retry.is_retried(error):
                    raise
            # Row by row, each with its own attempts: of a batch, one row or another fails nearly every time.
            return [sample for i in range(len(some)) for sample in attempt(some[i : i + 1])]

        if self._faults is None or not len(ids):
            return attempt(ids)
        found, _ = self._faults.read(
            ids, attempt, lambda id_: attempt(_one(id_))[0], is_neighbour=lambda id_: _is_row(rows, id_)
        )
        return list(found)

    def _identity(self) -> Any:
        """That of the dataset: with ``faults``, some samples are substitutes, which a cache on disk must not keep."""
        if self._faults is not None:
            uses = "faults, so that some of its samples are substitutes"
            raise unfingerprintable("ResilientDataset", uses, "cache below it: ResilientDataset(CachedDataset(...))")
        return identity_of(self._dataset)


def _one(id_: int) -> Int64:
    return np.array([id_], np.int64)


def _is_row(rows: FrozenRows, id_: int) -> bool:
    if not any(first <= id_ < end for first, end in rows.spans()):
        return False
    alive = rows.alive(_one(id_))
    return alive is None or bool(alive[0])


@fixed_parameters("make a new SubsettedDataset", stored=False)
class SubsettedDataset(ReindexedView):
    """The rows of ``dataset`` with these numbers, in this order; a boolean mask chooses as well.

    Numbers are checked at once: a split that does not fit its dataset is found before training. They are where rows
    stand now; of a buffer whose rows leave, take a subset of its snapshot.

    >>> flours = SubsettedDataset(["rye", "wheat", "spelt"], [2, -3])
    >>> list(flours), flours
    (['spelt', 'rye'], <SubsettedDataset of 2 rows>)
    >>> list(SubsettedDataset(["rye", "wheat", "spelt"], np.array([True, False, True])))
    ['rye', 'spelt']
    """

    def __init__(self, dataset: Any, indices: ArrayLike) -> None:
        super().__init__(dataset)
        self._indices = row_numbers(indices, len(dataset))

    def _order(self, n_below: int | None = None) -> Int64:
        """Those chosen, whatever the dataset is now."""
        return self._indices

    @property
    def choice(self) -> str:
        """The numbers."""
        return f"subset {checksum_hex(self._indices.data)}"

    @property
    def version(self) -> str:
        """That of the dataset, and the choice."""
        return f"{super().version}|{self.choice}"


def row_numbers(indices: ArrayLike, n_rows: int) -> Int64:
    """Row numbers from 0 up, of whatever chooses rows; an error says which one is wrong.

    >>> row_numbers([0, -1], 3)
    array([0, 2])
    """
    chosen = np.asarray(indices if hasattr(indices, "__len__") else list(indices))  # type: ignore[arg-type]
    if chosen.size == 0 and chosen.dtype != bool:
        return np.empty(0, np.int64)
    if chosen.dtype == bool and chosen.shape != (n_rows,):
        raise ConfigError(f"indices: a mask has one value per row ({n_rows:,}), got shape {chosen.shape}")
    if chosen.dtype == bool:
        return np.flatnonzero(chosen).astype(np.int64)
    if chosen.ndim != 1 or chosen.dtype.kind not in "iu":
        raise ConfigError(
            f"indices: row numbers in one dimension, got {chosen.dtype} of shape {chosen.shape}; "
            "pass whole numbers or a mask of True and False"
        )
    # Compared before the cast: a uint64 beyond int64 would turn negative, and count from the end.
    beyond = (chosen < -n_rows) | (chosen >= n_rows) if chosen.dtype.kind == "i" else chosen >= n_rows
    if beyond.any():
        place = int(np.argmax(beyond))
        raise IndexError(f"indices, place {place}: row {chosen[place]} of {n_rows:,} rows")
    numbers = chosen.astype(np.int64)
    return np.where(numbers < 0, numbers + n_rows, numbers)


@fixed_parameters("make a new ShuffledDataset", stored=False)
class ShuffledDataset(ReindexedView):
    """The rows of ``dataset`` in an order that the seed, the epoch and the length decide; each row comes once.

    When the dataset grows the order is another one. (A loader's own ``shuffle=True`` survives growth; this is for
    reading by number.)

    >>> shuffled = ShuffledDataset(["rye", "wheat", "spelt", "oat"], seed=7)
    >>> list(shuffled)
    ['rye', 'wheat', 'oat', 'spelt']
    >>> shuffled.set_epoch(1)
    >>> list(shuffled)
    ['rye', 'wheat', 'spelt', 'oat']
    """

    def __init__(self, dataset: Any, seed: int = 0) -> None:
        super().__init__(dataset)
        self._seed = seeds.check_seed(seed)
        self._begin_epoch(0)

    def _order(self, n_below: int | None = None) -> KeyedPermutation:
        """This epoch's."""
        return KeyedPermutation(len(self._dataset) if n_below is None else n_below, self._key)

    @property
    def choice(self) -> str:
        """All rows, in the order of a seed."""
        return f"shuffled {self._seed}"

    def set_epoch(self, epoch: int) -> None:
        """From now on the order is that of ``epoch``."""
        self._begin_epoch(check_epoch(epoch))
        super().set_epoch(epoch)

    def _begin_epoch(self, epoch: int) -> None:
        self._key = seeds.key(self._seed, "shuffle", epoch)

    @property
    def version(self) -> str:
        """Another order is another dataset."""
        return f"{super().version}|shuffled {self._key} {len(self)}"
