"""A function applied to every sample as it is read, at random but repeatably where it wants to be.

A function that names ``rng`` in its signature is given random numbers that depend on the seed, the epoch and the row
alone. So an augmented row can be read twice, out of order, in any worker or after a restart, and is the same; in the
next epoch it is another. A function that names ``progress`` gets how far training has come.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from poolish import seeds
from poolish.errors import ConfigError
from poolish.fingerprints import check_attributes, declared_version, function_fingerprint
from poolish.fixed import fixed_parameters
from poolish.load.dataset import ADVICE, check_version, identity_of, whole_number
from poolish.load.frozen import FrozenRows, Int64
from poolish.load.views.view import ReadRows, SampleView, check_epoch

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
