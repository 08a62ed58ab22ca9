"""Faults: what happens to a sample that cannot be read, and to a batch that cannot be had.

    read all at once -- well --------------------------------------------------> samples
        |  an error of the data (guards/faults/blame.py says which are)
    read one by one --- none fails --------------------------------------------> samples
        |  some fail: counted, the budget is checked
    on_sample           skip, placeholder, neighbour --------------------------> samples, fewer or replaced
        |  "raise", no neighbour, or all of several fail: then the batch has failed
    on_batch            shrink, cached, synthetic -----------------------------> samples, fewer or none, or others
        |  "raise", or nothing is cached or known yet
    the error of the data, with a note that names the row

So ``raise`` hands a failure up, and with the defaults it comes out. A batch may become shorter, even empty, but no
policy removes one: in a distributed run every rank keeps its number of batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from poolish.errors import ConfigError
from poolish.guards.faults.blame import (
    DATA_ERRORS,
    PROGRAM_ERRORS,
    ErrorKind,
    error_kinds,
    is_data_error,
    is_resource_error,
    name_of,
)
from poolish.guards.faults.budget import FaultCounts
from poolish.guards.faults.substitutes import Sample, Synthesizer, between, copied, placeholder_of
from poolish.health import Health
from poolish.printable import counted
from poolish.seeds import check_seed

OnSample = Literal["raise", "skip", "placeholder", "neighbour"]
OnBatch = Literal["raise", "shrink", "cached", "synthetic"]

#: How far a neighbour may be. Rows beyond it have as little to do with the lost one as any other row.
MAX_DISTANCE = 8


class Faults:
    """The policy for data that cannot be read: one for samples, one for whole batches, and one budget for both.

    ``on_sample``: "skip" leaves the sample out; "placeholder" puts the given one in its place, or zeros and empty text
    by the ``schema``; "neighbour" takes the nearest good row, at most 8 rows away and the next before the previous one,
    or with ``interpolate=True`` averages the floats of the nearest on both sides. ``on_batch`` decides when all samples
    of a batch fail, or one fails under ``on_sample="raise"`` or has no neighbour: "shrink" gives what is left, "cached"
    a copy of the last good batch, "synthetic" draws from the ``profile`` (anything with ``profile[name].mean`` and
    ``.variance``) or from the moments of the first 1,000 good samples.

    ``recoverable`` says which errors are the data's, in place of ``DATA_ERRORS``; ``(*DATA_ERRORS, KeyError)`` adds
    one. Bugs (TypeError, IndexError, ConfigError, ...) and a full disk always stop. ``budget`` is a count of failures
    or a fraction of the samples seen; guards/faults/budget.py defines how a fraction is judged.

    Threads share one. What replaces a row depends on the row and the data alone, except that "cached" and what
    "synthetic" learns depend on which batches were read before.

    >>> faults = Faults(on_sample="skip", budget=3)
    >>> def get_one(row):
    ...     return {"n": int(["1", "2", "12x", "4"][row])}
    >>> samples, kept = faults.read(np.arange(4), lambda rows: [get_one(row) for row in rows], get_one)
    >>> samples, kept
    ([{'n': 1}, {'n': 2}, {'n': 4}], array([ True, True, False, True]))
    >>> print(faults.summary())
    1 of 4 samples failed (25 %, budget 3): 1 ValueError; skip 1
      ValueError: row 2: invalid literal for int() with base 10: '12x'
    """

    def __init__(
        self,
        *,
        on_sample: OnSample = "raise",
        on_batch: OnBatch = "raise",
        budget: float = 0.01,
        recoverable: ErrorKind | tuple[ErrorKind, ...] = DATA_ERRORS,
        placeholder: Sample | None = None,
        schema: Any = None,
        profile: Any = None,
        interpolate: bool = False,
        seed: int = 0,
    ) -> None:
        self.on_sample: OnSample = _one_of("on_sample", on_sample, get_args(OnSample))
        self.on_batch: OnBatch = _one_of("on_batch", on_batch, get_args(OnBatch))
        self.recoverable = _recoverable(recoverable)
        self.interpolate = interpolate
        self._counts = FaultCounts(budget)
        self._placeholder = copied(placeholder)
        self._seed, self._profile = check_seed(seed), profile
        self._last_good: list[Sample] = []
        self._synthesizer = Synthesizer(seed=self._seed, profile=profile)
        if schema is not None:
            self.expect(schema)

    @property
    def budget(self) -> float:
        """How many samples may fail: a count, or a fraction of those seen."""
        return self._counts.budget

    @property
    def n_seen(self) -> int:
        """Samples asked for so far."""
        return self._counts.n_seen

    @property
    def n_failed(self) -> int:
        """Samples that could not be read so far."""
        return self._counts.n_failed

    def expect(self, schema: Any) -> None:
        """Set the schema of the samples, for placeholders: one that was given before is kept, None changes nothing.

        A reader calls this before the first batch, so that a placeholder that cannot be made is an error then.
        """
        if schema is not None:
            from poolish.schema import Schema  # brings Arrow, which the other policies do without

            if self.on_sample == "placeholder" and self._placeholder is None:
                self._placeholder = placeholder_of(Schema.of(schema))
            if self.on_batch == "synthetic":
                self._synthesizer.expect(placeholder_of(Schema.of(schema)))
        if self._placeholder is None and self.on_sample == "placeholder":
            raise ConfigError("on_sample='placeholder': there is none; pass placeholder= with a sample, or schema=")

    def read(
        self,
        ids: NDArray[np.int64],
        get_many: Callable[[NDArray[np.int64]], list[Sample]],
        get_one: Callable[[int], Sample],
        *,
        is_neighbour: Callable[[int], bool] | None = None,
    ) -> tuple[list[Sample], NDArray[np.bool_]]:
        """The samples of these rows as far as they can be had, and for each row whether one stands for it.

        ``samples`` has one entry for each True in ``kept``, in the order of ``ids``. ``is_neighbour`` says which rows
        may stand in for others; without it, all that ``get_one`` finds.
        """
        try:
            samples = get_many(ids)
        except Exception as error:
            if not self.handles(error):
                _explain(error, f"while reading {counted(len(ids), 'row')}")
                raise
            first = error
        else:
            self._remember(samples)
            self._counts.saw(len(ids))
            return samples, np.ones(len(ids), np.bool_)
        try:
            return self._read_singly(ids, get_one, is_neighbour, first)
        finally:
            del first  # its traceback holds this frame, which would hold it

    def handles(self, error: BaseException) -> bool:
        """Whether the policies apply to this error; others always stop."""
        return is_data_error(error, self.recoverable)

    def health(self) -> Health:
        """Whether every sample could be read, since when not, and how much of the budget is left."""
        return self._counts.health()

    def summary(self) -> str:
        """What failed and what was done about it, for people."""
        return self._counts.summary()

    def counts(self) -> dict[str, Any]:
        """The same for programs: ``seen``, ``failed``, ``kinds``, ``examples``, ``done``."""
        return self._counts.counts()

    def state_dict(self) -> dict[str, Any]:
        """The counts, small and JSON; a cached batch and learned moments are not part of it, they are met again."""
        return self._counts.counts()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with these counts, towards the same budget."""
        self._counts.restore(state)

    def __repr__(self) -> str:
        return f"Faults(on_sample={self.on_sample!r}, on_batch={self.on_batch!r}, budget={self.budget})"

    # -- one by one

    def _read_singly(
        self,
        ids: NDArray[np.int64],
        get_one: Callable[[int], Sample],
        is_neighbour: Callable[[int], bool] | None,
        first: Exception,
    ) -> tuple[list[Sample], NDArray[np.bool_]]:
        found: dict[int, Sample] = {}  # by place in the batch: an id may come twice
        failures: dict[int, Exception] = {}
        for place, row in enumerate(ids.tolist()):
            try:
                found[place] = get_one(row)
            except Exception as error:
                if not self.handles(error):
                    _explain(error, f"while reading row {row}")
                    raise
                failures[place] = error
                if self.on_sample == self.on_batch == "raise":
                    break  # nothing that is read after it would be used
        if not failures:  # what failed together succeeds alone: nothing is lost
            self._counts.reread(len(ids), first)
            self._remember(list(found.values()))
            return list(found.values()), np.ones(len(ids), np.bool_)
        return self._replace(ids, found, failures, get_one, is_neighbour)

    def _replace(
        self,
        ids: NDArray[np.int64],
        found: dict[int, Sample],
        failures: dict[int, Exception],
        get_one: Callable[[int], Sample],
        is_neighbour: Callable[[int], bool] | None,
    ) -> tuple[list[Sample], NDArray[np.bool_]]:
        self._counts.count(len(ids), [(int(ids[place]), error) for place, error in failures.items()])
        place, error = next(reversed(failures.items()))
        if self.on_sample != "raise" or self.on_batch != "raise":
            self._counts.check(error)
        # A batch of one sample has failed no more than that sample has.
        if self.on_sample == "raise" or (not found and len(ids) > 1):
            return self._replace_batch(ids, found, int(ids[place]), error, "")
        substitutes: dict[int, Sample] = {}
        if self.on_sample != "skip":
            for place, error in failures.items():
                row = int(ids[place])
                substitute = self._substitute(row, get_one, is_neighbour)
                if substitute is _NOTHING:
                    return self._replace_batch(ids, found, row, error, f"no good row within {MAX_DISTANCE} of it")
                substitutes[place] = substitute
        self._counts.did(self.on_sample, len(failures))
        return _in_order(found | substitutes, len(ids))

    def _substitute(
        self, row: int, get_one: Callable[[int], Sample], is_neighbour: Callable[[int], bool] | None
    ) -> Sample:
        if self.on_sample == "placeholder":
            self.expect(None)
            return copied(self._placeholder)
        good = self._good_neighbours(row, get_one, is_neighbour)
        nearest, near = next(good, (row, _NOTHING))
        if not self.interpolate or near is _NOTHING:
            return near
        for other, far in good:
            if (other > row) != (nearest > row):
                return between(near, far, abs(nearest - row) / abs(other - nearest))
        return near

    def _good_neighbours(
        self, row: int, get_one: Callable[[int], Sample], is_neighbour: Callable[[int], bool] | None
    ) -> Iterator[tuple[int, Sample]]:
        """Good rows around this one, the nearest first; a bad one is counted when its own turn comes."""
        for distance in range(1, MAX_DISTANCE + 1):
            for other in (row + distance, row - distance):
                if other < 0 or (is_neighbour is not None and not is_neighbour(other)):
                    continue
                try:
                    sample = get_one(other)
                except LookupError:
                    continue  # there is no such row
                except Exception as error:
                    if not self.handles(error):
                        raise
                else:
                    yield other, copied(sample)  # it may stand in the same batch itself

    # -- the batch

    def _replace_batch(
        self, ids: NDArray[np.int64], found: dict[int, Sample], row: int, error: Exception, why: str
    ) -> tuple[list[Sample], NDArray[np.bool_]]:
        n = len(ids)
        if self.on_batch == "shrink":
            self._counts.did("shrink", 1)
            return _in_order(found, n)
        if self.on_batch == "cached" and (last := self._last_good):
            self._counts.did("cached", 1)
            return [copied(last[i % len(last)]) for i in range(n)], np.ones(n, np.bool_)
        if self.on_batch == "synthetic":
            if found:
                self._synthesizer.learn(list(found.values()))
            if self._synthesizer.knows_enough:
                self._counts.did("synthetic", 1)
                return [self._synthesizer.draw(row) for row in ids.tolist()], np.ones(n, np.bool_)
        self._counts.did("raise", 1)
        error.add_note(self._explanation(row, n, why))
        raise error

    def _explanation(self, row: int, n: int, why: str) -> str:
        next_action = {
            "raise": "fix the row, or choose another on_sample= or on_batch= to continue without it",
            "cached": "no good batch has been read yet that on_batch='cached' could repeat; fix the first rows",
            "synthetic": "nothing is known yet that on_batch='synthetic' could draw from; pass profile= and schema=",
        }[self.on_batch]
        return f"row {row}, in a batch of {n}{': ' if why else ''}{why}; {next_action}"

    def _remember(self, samples: list[Sample]) -> None:
        if self.on_batch == "cached" and samples:
            # A copy: the receiver of the samples may change them, and a source may reuse their memory.
            self._last_good = [copied(sample) for sample in samples]
        elif self.on_batch == "synthetic":
            self._synthesizer.learn(samples)


_NOTHING = object()


def _in_order(by_place: dict[int, Sample], n: int) -> tuple[list[Sample], NDArray[np.bool_]]:
    kept = np.zeros(n, np.bool_)
    kept[list(by_place)] = True
    return [by_place[place] for place in sorted(by_place)], kept


def _explain(error: Exception, where: str) -> None:
    if isinstance(error, PROGRAM_ERRORS) or is_resource_error(error):
        error.add_note(f"{where}: not a fault of the data, so no policy of Faults applies")
        return
    kind = name_of(error)
    error.add_note(f"{where}: Faults stops at {kind}; if bad data raises it, pass recoverable=(*DATA_ERRORS, {kind})")


def _recoverable(kinds: Any) -> tuple[ErrorKind, ...]:
    checked = error_kinds(kinds, "recoverable")
    bugs = [kind for kind in checked if isinstance(kind, type) and issubclass(kind, PROGRAM_ERRORS)]
    if bugs:
        raise ConfigError(
            f"recoverable: {bugs[0].__name__} is a mistake in a program or its settings and always stops; where bad "
            "data raises it, turn it into a ValueError in the function that reads"
        )
    return checked


def _one_of(name: str, value: Any, known: tuple[str, ...]) -> Any:
    if value not in known:
        raise ConfigError(f"{name}: one of {', '.join(known)}, got {value!r}")
    return value
