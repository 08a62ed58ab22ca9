"""A place in an order as plain JSON, and back: small, the same for every rank, and refused where it does not belong.

format, version, check     what it is, and a checksum of all the rest
source, seed, shuffle      which order it is a place in
branch                     which branches of a buffer or stream wrote the rows that were seen
spots                      a digest of some rows of data without an id, see dataset_state
run                        which training run it belongs to, where that is known
epoch, step, position      where, for people
first_step, total          the step that the epoch began with, and the position of its end; -1 where that is unknown
order                      where, exactly: the block, what was left before it, what was seen when it was decided;
                           packed if it is long
guard, guard_of            the state of a guard that has one, likewise
dataset, dataset_of        the state of a dataset that has one of its own, and of which rank of how many it is
"""

from __future__ import annotations

import base64
import json
import re
import reprlib
import zlib
from collections.abc import Mapping
from typing import Any

from poolish.errors import ResumeError
from poolish.files import checksum_hex
from poolish.load import dataset_state
from poolish.load.dataset_state import check_spots, kept_spots, spots_of
from poolish.load.frozen import FrozenRows, branch_below, fixed_by, has_branch, members_of, ordinal_of, snapshot_rows
from poolish.load.group import InStep
from poolish.load.order import ObservedBounds, delta_decode, delta_encode
from poolish.load.planner import BatchPlanner, LoaderPosition, OrderPlanner
from poolish.load.progress import Progress
from poolish.load.reader import RankReader
from poolish.load.settings import LoaderSettings
from poolish.ranks import Share

#: 2 since states know their run, a dataset's own state and where their epoch begins and ends; 1 is that of 0.1.0.
VERSION = 2
_READS = (1, 2)

#: A text that is longer than this is packed.
_LONG = 200


class StateKeeper:
    """Takes the states of one reader, and restores them."""

    def __init__(
        self, reader: RankReader, settings: LoaderSettings, about: Mapping[str, Any], share: Share, *, is_settled: bool
    ) -> None:
        self._reader, self._dataset, self._about = reader, settings.dataset, about
        self._rank, self._is_settled = (share.rank, share.world_size), is_settled
        self._faults, self._first_spots = settings.faults, spots_of(settings.dataset)

    def take(self, run: str | None) -> dict[str, Any]:
        """Where the reader is."""
        reader, rows = self._reader, snapshot_rows(self._dataset)
        frontier = reader.frontier
        place = frontier.place
        state = {"format": "poolish loader", "version": VERSION, **self._about, "run": run}
        state |= {"epoch": place.epoch, "step": place.step, "position": place.position}
        state |= {"first_step": place.first_step, "total": -1 if place.total is None else place.total}
        state["fixed_by"] = fixed_by(rows)
        if isinstance(reader.planner, BatchPlanner):
            state["n_rows"] = len(rows)
            if self._about["sampled"] is None:
                state["n_batches"] = reader.planner.n_batches
            elif place.position:
                state["draw"] = reader.planner.checksum(place.epoch)
        else:
            state["order"] = to_order(place, rows)
        branch = branch_below(rows, highest(state) if "order" in state else [end for _, end in rows.spans()])
        if branch is not None:
            state["branch"] = branch
        spots = kept_spots(self._first_spots, self._dataset)
        if spots:
            state["spots"] = spots
        if isinstance(reader.planner, InStep):
            state["own_of"], state["own_over"] = list(self._rank), reader.planner.is_over(place)
        if reader.worker[1] > 1:
            state["skip"] = frontier.n_skip
        return sealed(state | self._own_states(frontier))

    def _own_states(self, frontier: Progress) -> dict[str, Any]:
        """Those of faults, dataset and guard that have one."""
        found: dict[str, Any] = {}
        if hasattr(self._faults, "state_dict"):
            found["faults"] = self._faults.state_dict()
        if self._reader.dataset.has_state:
            found["dataset"] = json.loads(frontier.dataset or dataset_state.to_json(self._dataset))
            found["dataset_of"] = list(self._rank)
        if self._reader.guard is not None:
            found |= self._reader.guard.state_of(frontier.guard)
        return found

    def check(self, state: Mapping[str, Any]) -> None:
        """Refuse a state of something else."""
        check_belongs(state, self._about)
        dataset_state.check_same(self._dataset, state, self._rank if self._is_settled else None)
        if self._is_settled:
            check_own(state, self._rank, is_own=isinstance(self._reader.planner, InStep))

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a state; one that is refused changes nothing."""
        reader, guard = self._reader, self._reader.guard
        own = json.dumps(state["dataset"]) if "dataset" in state else None
        of_dataset, of_guard, was = reader.dataset.memory(), guard and guard.memory(), reader.progress
        try:
            reader.note_dataset()
            place, planner = self._place_of(state, own)
            if guard is not None:
                guard.restore(state)
            if "faults" in state and hasattr(self._faults, "load_state_dict"):
                self._faults.load_state_dict(state["faults"])
        except BaseException:
            if guard is not None:
                guard.rewind(of_guard)
            reader.dataset.go_back(of_dataset, was.place.epoch)
            reader.progress = was
            raise
        if isinstance(planner, InStep):
            planner.restored_end = (place.epoch, place.step) if state.get("own_over") else (-1, 0)
        reader.go_to(place, state.get("skip"), own)
        if isinstance(reader.planner, BatchPlanner):
            reader.planner.become(planner)
        reader.progress = reader.progress._replace(guard=guard and guard.memory())
        reader.dataset.leave(own)

    def _place_of(self, state: Mapping[str, Any], own: str | None) -> tuple[LoaderPosition, Any]:
        """Where a state is, in the dataset as it is there: its epoch and its own state decide which rows it has."""
        place, reader = place_in(state), self._reader
        if own is not None:
            reader.dataset.put(place.epoch, own, is_inside=bool(place.position))
        reader.set_dataset_epoch(place.epoch)
        rows = snapshot_rows(self._dataset)
        check_rows(state, rows)
        check_spots(self._dataset, state.get("spots", []))
        planner = reader.planner
        if isinstance(planner, OrderPlanner):
            return to_place(state, planner), planner
        self._check_batches_of(state, planner, len(rows))
        return place, planner.drawn_as(place.epoch, state.get("draw"))

    def _check_batches_of(self, state: Mapping[str, Any], planner: BatchPlanner, n_rows: int) -> None:
        is_ready_made = self._about["sampled"] is None
        then = (state["n_batches"] if is_ready_made else "the", state["n_rows"])
        now = (planner.n_batches if is_ready_made else "the", n_rows)
        if then != now and (is_ready_made or state["position"]):
            raise ResumeError(
                f"the state is of {then[0]} batches of {then[1]:,} rows, now there are {now[0]} batches of "
                f"{now[1]:,} rows; batches=, weights= and sampler= are about row numbers, so both must be as they were"
            )


def to_order(place: LoaderPosition, rows: FrozenRows) -> dict[str, Any]:
    """Where a place is. Of an exhausted block only what is left after it is stored."""
    number, parts, offset, seen = place.begin_of_rest
    seen = seen or ObservedBounds(())
    # Before an epoch nothing was observed, so the present bounds stand for it.
    highest = "" if parts.ends or seen.spans else delta_encode([end for _, end in rows.spans()])
    texts = {"parts": parts.to_text(), "ends": delta_encode(parts.ends), **seen.to_json(), "highest": highest}
    return {"block": number, "offset": offset, **{name: _packed(text) for name, text in texts.items()}}


def _packed(text: Any) -> Any:
    if not isinstance(text, str) or len(text) <= _LONG:
        return text
    return "z" + base64.b85encode(zlib.compress(text.encode(), 9)).decode()


def _unpacked(text: Any) -> Any:
    if not isinstance(text, str) or not text.startswith("z"):
        return text
    return zlib.decompress(base64.b85decode(text[1:])).decode()


def to_place(state: Mapping[str, Any], planner: OrderPlanner) -> LoaderPosition:
    """The place that a state tells of, in the order that ``planner`` reads."""
    fields = {name: _unpacked(text) for name, text in state["order"].items()}
    order, number = planner.order(state["epoch"]), fields["block"]
    parts = order.parts_from(fields["parts"], tuple(delta_decode(fields["ends"])))
    place = place_in(state)
    if fields["spans"]:
        open_block = planner.revived(order, number, parts, ObservedBounds.from_json(fields))
    elif number:
        open_block = planner.used_up(number - 1, parts)
    else:
        return place  # the epoch has not begun
    place = place._replace(open_block=open_block, offset=fields["offset"])
    is_known = "total" in state or order.follow
    return place if is_known else place._replace(total=place.position + planner.rows_left(place))


def place_in(state: Mapping[str, Any]) -> LoaderPosition:
    """The place that a state tells of, in numbers; 0.1.0 did not write down where its epoch began."""
    step = state["step"]
    total = state.get("total", -1)
    place = LoaderPosition(state["epoch"], step, state["position"])
    return place._replace(first_step=state.get("first_step", step), total=None if total < 0 else total)


def sealed(state: dict[str, Any]) -> dict[str, Any]:
    """The state with its checksum."""
    return {**state, "check": _check(state)}


def _check(state: Mapping[str, Any]) -> str:
    text = json.dumps({name: value for name, value in state.items() if name != "check"}, sort_keys=True)
    return checksum_hex(text.encode())


def _is_whole(state: Mapping[str, Any]) -> bool:
    try:
        return bool(state.get("check") == _check(state))
    except (TypeError, ValueError, RecursionError):  # what is no JSON, or nested without end, has no checksum
        return False


def check_belongs(state: Any, about: Mapping[str, Any]) -> None:
    """Refuse a state that is damaged or of another order; the dataset is not asked."""
    if not isinstance(state, Mapping) or state.get("format") != "poolish loader":
        raise ResumeError(f"this is no state of a poolish Loader: {reprlib.repr(state)}; pass what state_dict() gave")
    if state.get("version") not in _READS:
        found = reprlib.repr(state.get("version"))
        raise ResumeError(f"a state of version {found}; this poolish reads versions {', '.join(map(str, _READS))}")
    if not _is_whole(state):
        raise ResumeError("this state was changed or cut after state_dict() gave it; go on from an earlier one")
    for name, mine in about.items():
        if state.get(name) != mine:
            raise ResumeError(
                f"the state is of a loader with {name}={state.get(name)!r}, this one has {mine!r}; "
                f"a state goes on in the same order of the same dataset only{_advice(name, state)}"
            )


def _advice(name: str, state: Mapping[str, Any]) -> str:
    """How to resume a state whose predicate has another fingerprint: that of poolish 0.1.0, or of other code."""
    found = re.search(r"filtered (.+?)( of |,|\)|$)", str(state.get("choice")))
    if name != "choice" or found is None:
        return ""
    return f". If the predicate keeps the same rows, pass FilteredDataset(..., version={found[1]!r})"


def check_own(state: Mapping[str, Any], rank: tuple[int, int], *, is_own: bool) -> None:
    """Refuse a state of another rank's own rows."""
    of = state.get("own_of") if state["step"] else None
    if of is not None and (not is_own or of != list(rank)):
        raise ResumeError(
            f"the state is of rank {of[0]} of {of[1]}, which had rows of its own; this is rank {rank[0]} of {rank[1]}: "
            "with shared='own' each rank goes on from its own state, at the same world size"
        )
    if is_own and of is None and state["step"]:
        raise ResumeError(
            "the state is of ranks that shared their rows, this loader has shared='own'; go on with shared='copy', or "
            "begin without the state"
        )


def highest(state: Mapping[str, Any]) -> list[int]:
    """How far the ids reached when they were last looked at."""
    if "order" not in state:
        return [state["n_rows"]]
    fields = {name: _unpacked(text) for name, text in state["order"].items()}
    return delta_decode(fields["spans"])[1::2] or delta_decode(fields["ends"] or fields["highest"])


def check_rows(state: Mapping[str, Any], rows: FrozenRows) -> None:
    """Refuse a state of rows that are not there yet, or that have other numbers now."""
    now = {ordinal_of(end): end for _, end in rows.spans()}
    then = {ordinal_of(end): end for end in highest(state)}
    has_same = members_of(rows) is not None or now.keys() == then.keys()
    if not has_same or any(now.get(ordinal, end) < end for ordinal, end in then.items()):
        raise ResumeError(
            f"the dataset has ids up to {list(now.values())}, when the state was taken it had {list(then.values())}: "
            "it went back in time; load the dataset that was saved with the state, or a later one"
        )
    if not has_branch(rows, state.get("branch")):
        raise ResumeError(
            "the state is of another copy of this stream or buffer: both were appended to after they were copied, so "
            "the same ids are other rows; load the copy that the state was taken on"
        )
    if state["fixed_by"] != fixed_by(rows):
        raise ResumeError(
            "the dataset below a subset, shuffle or mixture has changed since the state was taken, so its row numbers "
            "mean other rows; go on with the dataset as it was, or let the loader shuffle the dataset itself"
        )
