"""verify_resume: does this loader, with these datasets and these transforms, really go on where it stopped?

It stops copies of the loader at every step and lets others go on, with other numbers of threads and of ranks, and
compares rows and values. What it needs is a loader; what it finds is said in words.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from poolish.load.batch import field_names, is_structure
from poolish.load.dataset_state import has_state
from poolish.load.frozen import snapshot_rows
from poolish.load.ledger import Ledger
from poolish.load.loader import Loader
from poolish.printable import printable


@dataclass
class ResumeReport:
    """What was checked and what differed; true if nothing did."""

    checked: list[str] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Nothing differed."""
        return not self.differences

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        lines = [f"checked: {what}" for what in self.checked] + [f"DIFFERS: {what}" for what in self.differences]
        return "\n".join([*map(printable, lines), "resumes exactly" if self.ok else "does not resume exactly"])


class _Step(NamedTuple):
    ids: list[int]
    values: Any


def verify_resume(
    loader: Loader,
    *,
    steps: int = 50,
    workers: Sequence[int] = (0, 2),
    world_sizes: Sequence[int] = (1, 2, 3),
    grow: Callable[[], object] | None = None,
) -> ResumeReport:
    """Check up to ``steps`` steps of the loader's configuration; the loader itself is not moved.

    ``grow`` appends to the dataset, for a loader that follows it: then rows must come exactly once although the dataset
    grew between stopping and going on. Nothing is raised; the report says what differs.

    >>> print(verify_resume(Loader(list(range(10)), 4, shuffle=True, output="numpy")))
    checked: reading twice: 3 steps
    checked: stopping and going on after each of 3 steps
    checked: num_workers 0, 2
    checked: world_size 1, 2, 3
    resumes exactly
    """
    report = ResumeReport()
    try:
        expected = _walked(_copy(loader), steps)
        _check_twice(loader, expected, steps, report)
        _check_each_stop(loader, expected, steps, report)
        if has_state(loader.dataset):
            return report  # such a state is one rank's own, and threads cannot read ahead of it
        _check_workers(loader, expected, steps, workers, report)
        _check_worlds(loader, expected, world_sizes, report)
        if grow is not None:
            _check_growth(loader, steps, grow, report)
    except Exception as error:  # the report is what the caller looks at, whatever the dataset does
        report.differences.append(f"reading fails with {type(error).__name__}: {error}")
    return report


def _check_twice(loader: Loader, expected: list[_Step], steps: int, report: ResumeReport) -> None:
    report.checked.append(f"reading twice: {len(expected)} steps")
    _compare(expected, _walked(_copy(loader), steps), "read a second time", report)


def _check_each_stop(loader: Loader, expected: list[_Step], steps: int, report: ResumeReport) -> None:
    report.checked.append(f"stopping and going on after each of {len(expected)} steps")
    stopping = _copy(loader)
    batches = iter(stopping)
    epoch = stopping.epoch
    for n_done in range(len(expected) + 1):
        resumed = _copy(loader)
        resumed.load_state_dict(_through_json(stopping.state_dict()))
        resumed.set_epoch(epoch)  # behind its last batch nothing is left of it
        rest = _walked(resumed, steps - n_done) if resumed.epoch == stopping.epoch else []
        if not _compare(expected[n_done:], rest, f"resumed after {n_done} steps", report):
            return
        if n_done < len(expected):
            next(batches)


def _check_workers(
    loader: Loader, expected: list[_Step], steps: int, workers: Sequence[int], report: ResumeReport
) -> None:
    report.checked.append(f"num_workers {', '.join(map(str, workers))}")
    for n_workers in workers:
        with_threads = _copy(loader, num_workers=n_workers)
        _compare(expected, _walked(with_threads, steps), f"num_workers={n_workers}", report)
        with_threads.close()


def _check_worlds(loader: Loader, expected: list[_Step], world_sizes: Sequence[int], report: ResumeReport) -> None:
    """Whatever the number of ranks: together they give the rows that come next, in the same order."""
    report.checked.append(f"world_size {', '.join(map(str, world_sizes))}")
    n_rows = max((len(step.ids) for step in expected), default=0) * len(expected) * loader.world_size
    rows = _whole_order(loader, 1, n_rows, loader.state_dict())
    for world_size in world_sizes:
        for n_done in (0, len(expected) // 2):
            stopped = _copy(loader, rank=0, world_size=1, drop_last=False, guard=None)
            n_seen = sum(len(_ids(stopped)) for _ in islice(stopped, n_done))
            state = _through_json(stopped.state_dict())
            behind = rows[n_seen:]
            rest = _whole_order(loader, world_size, len(behind), state)
            if rest[: len(behind)] != behind[: len(rest)] or len(rest) < len(behind):
                where = f"world_size={world_size}, resumed at position {stopped.position}"
                report.differences.append(f"{where}: {_first_difference(behind, rest)}")


def _whole_order(loader: Loader, world_size: int, n_rows: int, state: Any) -> list[int]:
    """The rows that all ranks together read, in the order that they are dealt out."""
    ledger = Ledger(world_size)
    # What drop_last leaves out depends on the number of ranks, so here nothing is left out.
    # Which rows a guard leaves out is not part of the order.
    shared = {"world_size": world_size, "journal": ledger, "drop_last": False, "guard": None}
    ranks = [_copy(loader, rank=rank, **shared) for rank in range(world_size)]
    for rank in ranks:
        rank.load_state_dict(state)
    ids: list[int] = []
    for _ in zip(*ranks, strict=True):
        shares = [_ids(rank) for rank in ranks]
        if loader.has_batches:  # dealt out as they are
            ids += [id_ for share in shares for id_ in share]
        else:
            ids += [share[i] for i in range(max(map(len, shares))) for share in shares if i < len(share)]
        if len(ids) >= n_rows:
            break
    return ids[:n_rows]


def _check_growth(loader: Loader, steps: int, grow: Callable[[], object], report: ResumeReport) -> None:
    """Grow the dataset between stopping and going on: over the whole epoch no row may come twice or never."""
    report.checked.append("growing between stopping and going on")
    wide = {"rank": 0, "world_size": 1, "drop_last": False, "guard": None}
    due = {id_ for step in _walked(_copy(loader, **wide), None) for id_ in step.ids}
    before = snapshot_rows(loader.dataset).spans()
    current = _copy(loader, **wide)
    seen: list[int] = []
    n_grown, epoch = 0, current.epoch
    while True:
        if not list(islice(current, 1)):
            break
        seen += _ids(current)
        if n_grown < steps:
            grow()
            n_grown += 1
        resumed = _copy(loader, **wide)
        resumed.load_state_dict(_through_json(current.state_dict()))
        resumed.set_epoch(epoch)
        current = resumed
    unique, counts = np.unique(np.array(seen, np.int64), return_counts=True)
    repeated = unique[counts > 1]
    if len(repeated):
        report.differences.append(f"growing: {len(repeated)} rows came twice, such as row {repeated[0]}")
    if loader.follow:
        rows = snapshot_rows(loader.dataset)
        new = {id_ for id_ in _all_ids(rows) if not any(first <= id_ < end for first, end in before)}
        missing = sorted(((due & set(_all_ids(rows))) | new) - set(seen))
        if missing:
            report.differences.append(f"growing: {len(missing)} rows never came, such as row {missing[0]}")


def _all_ids(rows: Any) -> Iterable[int]:
    for first, end in rows.spans():
        ids = np.arange(first, end)
        alive = rows.alive(ids)
        yield from (ids if alive is None else ids[alive]).tolist()


def _copy(loader: Loader, **changes: Any) -> Loader:
    """A loader of the same configuration and place, which decides for itself and records nothing."""
    settings = {"rank": loader.rank, "world_size": loader.world_size, "num_workers": 0, "acknowledge": "on_yield"}
    settings |= {"group": None, "mesh": None, "shared": None}
    own = {"dataset": copy.deepcopy(loader.dataset)} if has_state(loader.dataset) else {}
    if hasattr(loader.guard, "load_state_dict"):  # it remembers one loader's batches
        own["guard"] = copy.deepcopy(loader.guard)
    made = loader.like(**{**settings, "journal": Ledger(), **own, **changes})
    made.load_state_dict(loader.state_dict())
    return made


def _walked(loader: Loader, steps: int | None) -> list[_Step]:
    return [_Step(_ids(loader), batch) for batch in islice(_batches(loader), steps)]


def _batches(loader: Loader) -> Iterator[Any]:
    yield from loader


def _ids(loader: Loader) -> list[int]:
    """The rows of the batch that was yielded last, whatever form it has."""
    assert loader.origin is not None
    ids: list[int] = loader.origin.ids.tolist()
    return ids


def _compare(expected: list[_Step], got: list[_Step], when: str, report: ResumeReport) -> bool:
    """Whether two histories are the same; the first difference is reported."""
    for i, (wanted, found) in enumerate(zip(expected, got, strict=False)):
        if wanted.ids != found.ids:
            report.differences.append(f"{when}, step {i}: {_first_difference(wanted.ids, found.ids)}")
            return False
        name = _differing(wanted.values, found.values)
        if name is not None:
            report.differences.append(
                f"{when}, step {i}: the same rows, but {name} has other values; does a transform draw random numbers "
                "that are not from its rng?"
            )
            return False
    if len(expected) != len(got):
        report.differences.append(f"{when}: {len(got)} steps, expected {len(expected)}")
        return False
    return True


def _first_difference(wanted: list[int], found: list[int]) -> str:
    for i, (left, right) in enumerate(zip(wanted, found, strict=False)):
        if left != right:
            return f"row {right} in place {i}, expected row {left}"
    return f"{len(found)} rows, expected {len(wanted)}"


def _differing(left: Any, right: Any, name: str = "the batch") -> str | None:
    """The first column in which two batches differ."""
    if isinstance(left, dict) and isinstance(right, dict):
        pairs = [(f"column {key!r}", left[key], right.get(key)) for key in left]
    elif is_structure(left) and type(left) is type(right):
        names = field_names(left)
        pairs = [(f"field {key!r}", getattr(left, key), getattr(right, key)) for key in names]
    elif isinstance(left, (tuple, list)) and isinstance(right, (tuple, list)) and len(left) == len(right):
        pairs = [(name, a, b) for a, b in zip(left, right, strict=True)]
    else:
        return None if _same(left, right) else name
    return next((found for key, a, b in pairs if (found := _differing(a, b, key)) is not None), None)


def _same(left: Any, right: Any) -> bool:
    if hasattr(left, "numpy") and hasattr(left, "detach"):
        left, right = left.detach().cpu().float().numpy(), right.detach().cpu().float().numpy()
    if isinstance(left, np.ndarray):
        return bool(np.array_equal(left, right, equal_nan=left.dtype.kind in "fc"))
    return bool(left == right)


def _through_json(state: Any) -> Any:
    return json.loads(json.dumps(state))
