"""A place in an order as plain JSON, and back: small, the same for every rank, and refused where it does not belong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from poolish.errors import ResumeError
from poolish.load.frozen import Frozen
from poolish.load.order import NOTHING, Order, Seen
from poolish.load.walk import Held, Place, Walk

VERSION = 1


def to_state(place: Place) -> dict[str, Any]:
    """Where a place is. A block that is used up is not told: what is left behind it is."""
    number, parts = place.open_block
    seen, offset = None, 0
    if place.held is not None and place.offset < len(place.held.block.ids):
        block = place.held.block
        number, parts, seen, offset = block.number, block.before, block.seen.to_json(), place.offset
    at = {"epoch": place.epoch, "step": place.step, "position": place.position}
    return {**at, "block": number, "offset": offset, "parts": parts.to_text(), "ends": list(parts.ends), "seen": seen}


def to_place(state: Mapping[str, Any], walk: Walk) -> Place:
    """The place that ``to_state`` told of, in the order that ``walk`` reads."""
    order, (number, offset) = walk.order(state["epoch"]), (state["block"], state["offset"])
    held = _held(order, number, state, walk)
    return Place(state["epoch"], state["step"], state["position"], held, offset if state["seen"] else 0)


def _held(order: Order, number: int, state: Mapping[str, Any], walk: Walk) -> Held | None:
    if number == 0 and not state["ends"] and state["seen"] is None:
        return None  # the epoch has not begun
    ends = tuple(int(end) for end in state["ends"])
    parts = order.parts_from(state["parts"], ends) if ends or state["parts"] else NOTHING
    if state["seen"] is not None:
        return walk.revived(order, number, parts, Seen.from_json(state["seen"]))
    return walk.used_up(number - 1, parts)


def check_belongs(state: Mapping[str, Any], about: Mapping[str, Any], rows: Frozen) -> None:
    """Refuse a state of another order, or of rows that are not there yet: a dataset that went back in time."""
    if not isinstance(state, Mapping) or state.get("format") != "poolish loader":
        raise ResumeError(f"this is no state of a poolish Loader: {str(state)[:80]!r}; pass what state_dict() gave")
    if state.get("version") != VERSION:
        raise ResumeError(f"a state of version {state.get('version')!r}; this poolish reads version {VERSION}")
    for name, mine in about.items():
        if state.get(name) != mine:
            raise ResumeError(
                f"the state is of a loader with {name}={state.get(name)!r}, this one has {mine!r}; "
                "a state goes on in the same order of the same dataset only"
            )
    reached = state["highest"]
    spans = rows.spans()
    if len(spans) != len(reached) or any(end < high for (_, end), high in zip(spans, reached, strict=False)):
        raise ResumeError(
            f"the dataset has ids up to {[end for _, end in spans]}, when the state was taken it had {reached}: it went "
            "back in time; load the dataset that was saved with the state, or a later one"
        )
