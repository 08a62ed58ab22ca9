"""How many samples may be taken for each row that is inserted, as Reverb's rate limiters decide it.

    error = (inserts - min_size_to_sample) x samples_per_insert - samples

Samples wait until ``min_size_to_sample`` rows are there. From then on inserts wait while the error would rise above
``error_buffer``, and samples while it would fall below ``-error_buffer``. Evictions can bring the number of rows below
``min_size_to_sample`` again; then samples wait, and inserts do not.

A limiter counts for the threads of its process; ``attach`` gives one that counts with other processes. Nothing here
reads a clock to decide: a killed process is recognised by the locks that the kernel released.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from poolish.arguments import check_whole
from poolish.errors import ConfigError, PacingTimeout, ResumeError
from poolish.files import local_path
from poolish.printable import counted
from poolish.replay.counts import ROLES, Counts, Kind, MemoryCounts, Owner, Totals
from poolish.replay.shared_counts import DirectoryCounts

_LOOK_AROUND_S = 0.5  # how often a wait looks for what killed processes left
_SAY_S = 10.0
_SHOWN = 3

logger = logging.getLogger("poolish.replay")


class RateLimiter:
    """Admits inserts and samples while ``min_diff <= inserts x samples_per_insert - samples <= max_diff``.

    Below ``min_size_to_sample`` rows it admits all inserts and no samples. ``SampleToInsertRatio``, ``MinSize`` and
    ``Queue`` are limiters for common cases. Methods may be called from any thread.

    >>> limiter = RateLimiter(samples_per_insert=2, min_size_to_sample=1, min_diff=0, max_diff=4)
    >>> with limiter.insert(2):
    ...     pass                                       # buffer.append(rows)
    >>> limiter.can_insert(), limiter.can_sample(4), limiter.can_sample(5)
    (False, True, False)
    """

    def __init__(self, samples_per_insert: float, min_size_to_sample: int, min_diff: float, max_diff: float) -> None:
        self.samples_per_insert = _ratio(samples_per_insert)
        self.min_size_to_sample = check_whole(min_size_to_sample, "min_size_to_sample", unit="rows")
        self.min_diff, self.max_diff = min_diff, max_diff
        self._counts: Counts = MemoryCounts()
        self._pid: int | None = os.getpid()

    # -- recording and sampling

    @contextmanager
    def insert(self, n: int = 1, *, timeout_s: float | None = None) -> Iterator[None]:
        """Wait until ``n`` rows may be inserted; they count when the block ends well.

        ``PacingTimeout`` says what was missing, after ``timeout_s``.
        """
        with self._paced("insert", n, timeout_s):
            yield

    @contextmanager
    def sample(self, n: int = 1, *, timeout_s: float | None = None) -> Iterator[None]:
        """Wait until ``n`` rows may be sampled; they count when the block ends well.

        ``PacingTimeout`` says what was missing, after ``timeout_s``.
        """
        with self._paced("sample", n, timeout_s):
            yield

    def can_insert(self, n: int = 1) -> bool:
        """Whether ``n`` rows may be inserted now; for loops that do something else meanwhile."""
        return self._may("insert", self._usable().read(), check_whole(n, "n", unit="rows"))

    def can_sample(self, n: int = 1) -> bool:
        """Whether ``n`` rows may be sampled now."""
        return self._may("sample", self._usable().read(), check_whole(n, "n", unit="rows"))

    def inserted(self, n: int) -> None:
        """Count ``n`` rows that were inserted without asking, such as those of a buffer that was loaded."""
        self._happened("insert", done=check_whole(n, "n", least=0, unit="rows"))

    def sampled(self, n: int) -> None:
        """Count ``n`` rows that were sampled without asking."""
        self._happened("sample", done=check_whole(n, "n", least=0, unit="rows"))

    def evicted(self, n: int = 1) -> None:
        """Count ``n`` rows that were removed from the buffer."""
        self._happened(self._counts.kinds[0], evictions=check_whole(n, "n", least=0, unit="rows"))

    def _happened(self, kind: Kind, **changes: int) -> None:
        counts = self._usable(kind)
        with counts.locked():
            counts.change(kind, **changes)

    @contextmanager
    def _paced(self, kind: Kind, n: int, timeout_s: float | None) -> Iterator[None]:
        counts, n = self._usable(kind), check_whole(n, "n", unit="rows")
        self._admit(kind, n, _timeout(timeout_s))
        done = 0
        try:
            yield
            done = n
        finally:
            with counts.locked():
                counts.change(kind, done=done, pending=-n)

    # -- what has been counted

    @property
    def inserts(self) -> int:
        """How many rows were inserted, by all sides."""
        return self._usable().read().insert.done

    @property
    def samples(self) -> int:
        """How many rows were sampled, by all sides."""
        return self._usable().read().sample.done

    @property
    def evictions(self) -> int:
        """How many rows were removed, by all sides."""
        return self._usable().read().evictions

    def state_dict(self) -> dict[str, int]:
        """What this side has counted; in a directory it survives without."""
        own = self._usable().own()
        counted = {"inserts": own.insert.done, "samples": own.sample.done, "evictions": own.evictions}
        return {"version": 1, **counted}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Count from ``state`` on, as after a checkpoint was loaded."""
        try:
            wanted = {name: check_whole(state[name], name, least=0) for name in ("inserts", "samples", "evictions")}
            if state["version"] != 1:
                raise KeyError("version")
        except (KeyError, TypeError, ConfigError) as error:
            raise ResumeError(f"not the state of a rate limiter ({error}): {state!r:.200}") from None
        counts = self._usable()
        with counts.locked():
            own = counts.own()
            counted: dict[Kind, int] = {"insert": wanted["inserts"], "sample": wanted["samples"]}
            for kind, done in counted.items():
                if kind in counts.kinds:
                    counts.change(kind, done=done - own.side(kind).done)
                elif done:
                    raise ResumeError(f"{self!r}: the state is that of a {ROLES[kind]}; load it there")
            counts.change(counts.kinds[0], evictions=wanted["evictions"] - own.evictions)

    # -- processes

    def attach(
        self,
        path: str | os.PathLike[str],
        *,
        recorder: str | None = None,
        sampler: str | None = None,
        count: int | None = None,
    ) -> Self:
        """This limiter as one process has it, that shares its counts with others in the directory ``path``.

        ``recorder`` or ``sampler`` is the name of this side, which one process has at a time. What it has counted stays
        in the directory, also when it is killed; it continues there under the same name. ``count`` replaces it, where
        the data itself says how many rows there really are.

        >>> actor = MinSize(2).attach(folder / "pacing", recorder="actor-0")
        >>> learner = MinSize(2).attach(folder / "pacing", sampler="learner")
        >>> with actor.insert():
        ...     pass
        >>> actor.close()
        >>> learner.why_blocked()
        ".../pacing: waiting for inserts: 1 of 2 rows are there (min_size_to_sample); recorder 'actor-0' has ended"
        """
        if (recorder is None) == (sampler is None):
            raise ConfigError(f"recorder={recorder!r} and sampler={sampler!r}: give the name of one of the two")
        kind: Kind = "insert" if recorder is not None else "sample"
        place = Path(local_path(path, "pacing path", instead="a local directory"))
        count = None if count is None else check_whole(count, "count", least=0)
        attached = object.__new__(type(self))
        attached.__setstate__(self.__getstate__())
        attached._counts = DirectoryCounts(place, kind, recorder or sampler or "", self._settings(), count)
        attached._pid = os.getpid()
        return attached

    def close(self) -> None:
        """Detach from the directory; what was counted stays."""
        if self._pid == os.getpid():
            self._counts.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _settings(self) -> dict[str, Any]:
        names = ("samples_per_insert", "min_size_to_sample", "min_diff", "max_diff")
        values = {name: getattr(self, name) for name in names}
        return {name: value if math.isfinite(value) else None for name, value in values.items()}

    def __getstate__(self) -> dict[str, Any]:
        """The settings: counts belong to the process that counts."""
        return {name: value for name, value in vars(self).items() if name not in ("_counts", "_pid")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _counts=MemoryCounts(), _pid=None)

    def _usable(self, kind: Kind | None = None) -> Counts:
        if self._pid != os.getpid():
            raise ConfigError(
                f"{self!r}: another process made it, whose counts this one does not see; share them: "
                'limiter.attach("runs/pacing", recorder="actor-0") on one side and sampler="learner" on the other'
            )
        if kind is not None and kind not in self._counts.kinds:
            own = ROLES[self._counts.kinds[0]]
            raise ConfigError(f"{self!r} is attached as a {own}, a {ROLES[kind]} is needed; attach one")
        return self._counts

    # -- deciding

    def _may(self, kind: Kind, totals: Totals, n: int) -> bool:
        """Whether ``n`` more are admitted. What is pending may yet fail, so it counts only where it restricts."""
        ratio = self.samples_per_insert
        if kind == "sample":
            diff = totals.insert.done * ratio - totals.sample.done - totals.sample.pending - n
            return totals.size >= self.min_size_to_sample and diff >= self.min_diff
        # A call that begins below the minimum passes whole: else a large one could wait for samples that wait for it.
        if totals.size + totals.insert.pending < self.min_size_to_sample:
            return True
        return (totals.insert.done + totals.insert.pending + n) * ratio - totals.sample.done <= self.max_diff

    def _admit(self, kind: Kind, n: int, timeout_s: float | None) -> None:
        if self._try(kind, n):
            return
        begun = time.monotonic()
        waiter, say_at, looked = self._counts.waiter(), begun + _SAY_S, begun
        try:
            while not self._try(kind, n):
                now = time.monotonic()
                if timeout_s is not None and now - begun >= timeout_s:
                    why = self._why(kind, n, self._counts.read())
                    raise PacingTimeout(f"{why}; timeout_s={timeout_s:g} is over", filename=self._counts.place or None)
                if now - looked >= _LOOK_AROUND_S:
                    self._counts.sweep()
                    looked = now
                if now >= say_at:
                    logger.warning("%s; waited %.0f s", self._why(kind, n, self._counts.read()), now - begun)
                    say_at = now + 3 * _SAY_S
                left_s = _LOOK_AROUND_S if timeout_s is None else begun + timeout_s - now
                waiter.wait(min(_LOOK_AROUND_S, left_s))
        finally:
            waiter.close()

    def _try(self, kind: Kind, n: int) -> bool:
        counts = self._counts
        with counts.locked() as totals:
            is_free = kind == "insert" and totals.size + totals.insert.pending < self.min_size_to_sample
            if not is_free:
                self._check_possible(kind, n, totals)
            may = self._may(kind, totals, n)
            if may:
                counts.change(kind, pending=n, largest=0 if is_free else n)
            return may

    def _check_possible(self, kind: Kind, n: int, totals: Totals) -> None:
        """Raise where inserts and samples of these sizes can block each other for ever."""
        n_inserts = max(n if kind == "insert" else 1, totals.insert.largest)
        n_samples = max(n if kind == "sample" else 1, totals.sample.largest)
        # Both are blocked where the difference is above max_diff - inserts x ratio and below min_diff + samples.
        needed = n_inserts * self.samples_per_insert + n_samples - self._unit()
        if self.max_diff - self.min_diff < needed:
            both = f"{counted(n_inserts, 'insert')} at once and {counted(n_samples, 'sample')} at once"
            raise ConfigError(
                f"{self!r}: {both} can block each other for ever; use {self._wider(needed)}, or insert and sample "
                "fewer at once"
            )

    def _unit(self) -> int:
        """1 where all differences are whole numbers, so that an open interval of 1 has none."""
        return int(all(float(value).is_integer() for value in (self.samples_per_insert, self.min_diff, self.max_diff)))

    def _wider(self, needed: float) -> str:
        return f"max_diff - min_diff of {needed:g} or more"

    # -- explaining

    def why_blocked(self, n: int = 1) -> str | None:
        """What this side waits for with ``n`` rows, and who could bring it; None if nothing blocks it."""
        counts, n = self._usable(), check_whole(n, "n", unit="rows")
        totals = counts.read()
        for kind in counts.kinds:
            if not self._may(kind, totals, n):
                try:
                    self._check_possible(kind, n, totals)
                except ConfigError as error:
                    return str(error)
                return self._why(kind, n, totals)
        return None

    def _why(self, kind: Kind, n: int, totals: Totals) -> str:
        place = f"{self._counts.place}: " if self._counts.place else ""
        text = self._sample_waits(n, totals) if kind == "sample" else self._insert_waits(n, totals)
        other: Kind = "insert" if kind == "sample" else "sample"
        who = _who(self._counts.owners(other), ROLES[other]) if place else ""
        return f"{place}{text}{who}"

    def _sample_waits(self, n: int, totals: Totals) -> str:
        if totals.size < self.min_size_to_sample:
            gone = f", {totals.evictions:,} were evicted" if totals.evictions else ""
            least = self.min_size_to_sample
            return f"waiting for inserts: {totals.size:,} of {least:,} rows are there{gone} (min_size_to_sample)"
        ratio, taken = self.samples_per_insert, totals.sample.done + totals.sample.pending
        missing = math.ceil((self.min_diff + n + taken - totals.insert.done * ratio) / ratio)
        so_far = f"{counted(taken, 'sample')} of {counted(totals.insert.done, 'insert')} (ratio {ratio:g})"
        return f"waiting for inserts: {so_far}; {n:,} more need {counted(missing, 'insert')} first"

    def _insert_waits(self, n: int, totals: Totals) -> str:
        ratio, inserts = self.samples_per_insert, totals.insert.done + totals.insert.pending
        missing = math.ceil((inserts + n) * ratio - totals.sample.done - self.max_diff)
        so_far = f"{counted(totals.sample.done, 'sample')} of {counted(inserts, 'insert')} (ratio {ratio:g})"
        return f"waiting for samples: {so_far}; {n:,} more need {counted(missing, 'sample')} first"

    def __repr__(self) -> str:
        where = f" of {self._counts.place}" if self._counts.place else ""
        return f"<{type(self).__name__}({self._shown()}){where}>"

    def _shown(self) -> str:
        return (
            f"samples_per_insert={self.samples_per_insert:g}, min_size_to_sample={self.min_size_to_sample}, "
            f"min_diff={self.min_diff:g}, max_diff={self.max_diff:g}"
        )


class SampleToInsertRatio(RateLimiter):
    """Keeps ``samples_per_insert`` samples for each insert, once ``min_size_to_sample`` rows are there.

    ``error_buffer`` is how far inserts or samples may run ahead, in samples. A pair is the smallest and largest value
    of ``inserts x samples_per_insert - samples``. Sizes that can deadlock are refused, with the nearest that cannot.

    >>> limiter = SampleToInsertRatio(4, min_size_to_sample=1_000, error_buffer=400)
    >>> limiter.inserted(120)
    >>> limiter.why_blocked()
    'waiting for inserts: 120 of 1,000 rows are there (min_size_to_sample)'
    >>> SampleToInsertRatio(4, min_size_to_sample=1_000, error_buffer=2)
    Traceback (most recent call last):
    poolish.errors.ConfigError: error_buffer=2: inserts and samples could block each other for ever ...; use 4 or more
    """

    def __init__(
        self,
        samples_per_insert: float,
        min_size_to_sample: int,
        error_buffer: float | tuple[float, float],
    ) -> None:
        ratio = _ratio(samples_per_insert)
        offset = ratio * check_whole(min_size_to_sample, "min_size_to_sample", unit="rows")
        self.error_buffer = error_buffer
        low, high = _bounds(error_buffer, offset)
        _check_bounds(error_buffer, low, high, ratio, offset)
        super().__init__(ratio, min_size_to_sample, low, high)

    def _wider(self, needed: float) -> str:
        if isinstance(self.error_buffer, tuple):
            return f"error_buffer=({self.min_diff:g}, {self.min_diff + needed:g})"
        return f"error_buffer={math.ceil(needed / 2):g}"

    def _shown(self) -> str:
        least, buffer = self.min_size_to_sample, self.error_buffer
        return f"{self.samples_per_insert:g}, min_size_to_sample={least}, error_buffer={buffer}"


class MinSize(RateLimiter):
    """Samples wait until ``min_size_to_sample`` rows are there; nothing else waits.

    >>> MinSize(100).can_insert(1_000_000), MinSize(100).can_sample()
    (True, False)
    """

    def __init__(self, min_size_to_sample: int) -> None:
        super().__init__(1, min_size_to_sample, -math.inf, math.inf)

    def _shown(self) -> str:
        return f"{self.min_size_to_sample}"


class Queue(RateLimiter):
    """Each row is sampled once: samples wait for inserts, and inserts while ``size`` rows are not sampled yet.

    >>> queue = Queue(2)
    >>> queue.inserted(2)
    >>> queue.can_insert(), queue.can_sample(2), queue.can_sample(3)
    (False, True, False)
    """

    def __init__(self, size: int) -> None:
        self.size = check_whole(size, "size", unit="rows")
        super().__init__(1, 1, 0, self.size)

    def _wider(self, needed: float) -> str:
        return f"size={needed:g}"

    def _shown(self) -> str:
        return f"{self.size}"


def _ratio(value: float) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
        raise ConfigError(f"samples_per_insert={value!r}: give a number above 0")
    return value


def _bounds(error_buffer: float | tuple[float, float], offset: float) -> tuple[float, float]:
    pair = tuple(error_buffer) if isinstance(error_buffer, (tuple, list)) else (error_buffer,)
    are_numbers = all(isinstance(value, (int, float)) and not math.isnan(value) for value in pair)
    if len(pair) not in (1, 2) or not are_numbers or isinstance(error_buffer, bool):
        raise ConfigError(f"error_buffer={error_buffer!r}: give a number of samples, or the pair (min_diff, max_diff)")
    return (pair[0], pair[1]) if len(pair) == 2 else (offset - pair[0], offset + pair[0])


def _check_bounds(error_buffer: Any, low: float, high: float, ratio: float, offset: float) -> None:
    """Raise where single inserts and samples could block each other for ever."""
    is_pair, least = isinstance(error_buffer, (tuple, list)), max(1.0, ratio)
    if high - low < 2 * least:
        use = f"({low:g}, {low + 2 * least:g})" if is_pair else f"{least:g} or more"
        raise ConfigError(
            f"error_buffer={error_buffer!r}: inserts and samples could block each other for ever with "
            f"samples_per_insert={ratio:g}; use {use}"
        )
    if low > offset:
        raise ConfigError(
            f"error_buffer={error_buffer!r}: its lower end is above samples_per_insert x min_size_to_sample = "
            f"{offset:g}, so samples stay blocked when min_size_to_sample rows are there; use ({offset:g}, "
            f"{offset + high - low:g})"
        )
    if high < offset:
        logger.warning(
            "error_buffer=%r: its upper end is below samples_per_insert x min_size_to_sample = %g: inserts wait as "
            "soon as min_size_to_sample rows are there, so a program that samples in the same thread waits for ever",
            *(error_buffer, offset),
        )


def _who(owners: list[Owner], role: str) -> str:
    """Which owners of the other side are missing; those that run where none is."""
    if not owners:
        return f"; no {role} was ever attached"
    died = [owner for owner in owners if not owner.is_attached and not owner.has_ended]
    if died:
        shown = [f"{role} {owner.name!r} died, it counted last {owner.silent_s:.0f} s ago" for owner in died[:_SHOWN]]
        return f"; {'; '.join(shown)}{_more(died)}"
    attached = [owner for owner in owners if owner.is_attached]
    if attached:
        return f"; running: {', '.join(owner.name for owner in attached[:_SHOWN])}{_more(attached)}"
    return f"; {', '.join(f'{role} {owner.name!r} has ended' for owner in owners[:_SHOWN])}{_more(owners)}"


def _more(owners: list[Owner]) -> str:
    return f" and {len(owners) - _SHOWN:,} more" if len(owners) > _SHOWN else ""


def _timeout(timeout_s: float | None) -> float | None:
    if timeout_s is not None and (
        isinstance(timeout_s, bool) or not isinstance(timeout_s, (int, float)) or not timeout_s >= 0
    ):
        raise ConfigError(f"timeout_s={timeout_s!r}: seconds, or None to wait for ever")
    return None if timeout_s is None or timeout_s > threading.TIMEOUT_MAX else timeout_s
