"""The state that a dataset keeps itself, saved with the loader: that of ``state_dict`` and ``load_state_dict``.

A view without a state of its own is looked through: the dataset below it is asked. Views are those of poolish, and
whatever holds a dataset as ``dataset`` or several as ``datasets``: torch's ``Subset``, ``ConcatDataset`` and
``StackDataset``, and wrappers of users. Several give the states of all, in order.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from poolish.errors import ConfigError, ResumeError
from poolish.load.views.adapted import AdaptedDataset
from poolish.load.views.view import pass_epoch


class TrackedDataset:
    """The dataset of one loader: the epoch it is in, and its own state, which a batch that is not delivered leaves.

    ``noted``, ``after_read``, ``rewind`` and ``put`` are for a dataset that ``has_state``.
    """

    def __init__(self, dataset: Any) -> None:
        self._dataset, self.has_state = dataset, has_state(dataset)
        #: The epoch that its views are in; None where none was passed on.
        self.epoch: int | None = None
        # The state that it is in now, as text; _NOWHERE while a batch is read.
        self._at: str | None = None

    def noted(self, known: str | None) -> str:
        """Its state before anything changes it, an epoch that begins or a read; ``known`` where that is noted."""
        if known is None:
            self._at = known = to_json(self._dataset)
        return known

    def after_read(self) -> str:
        """Its state now."""
        self._at = now = to_json(self._dataset)
        return now

    def enter(self, epoch: int) -> None:
        """Pass the epoch on, before rows are frozen: views may be other rows in another epoch."""
        if self.epoch != epoch:
            pass_epoch(self._dataset, epoch)
            self.epoch = epoch

    def leave(self, at: str | None, *, has_begun_unread: bool = False) -> None:
        """An epoch is over, with the dataset in the state ``at``, or is left although it has begun."""
        self._at = _NOWHERE if has_begun_unread else at

    def rewind(self, epoch: int, text: str | None, *, is_inside: bool) -> None:
        """Undo what a batch that was read and not delivered has changed."""
        if text is not None and self._at != text:
            self.put(epoch, text, is_inside=is_inside)
        self._at = _NOWHERE

    def put(self, epoch: int, text: str, *, is_inside: bool) -> None:
        """Restore a state of an epoch. Inside it the state came after the epoch began, else before."""
        if is_inside:
            self.enter(epoch)
        else:
            self.epoch = None
        restore(self._dataset, text)
        self.enter(epoch)
        self._at = text

    def memory(self) -> tuple[str | None, str | None, int | None]:
        """What ``go_back`` needs."""
        return to_json(self._dataset) if self.has_state else None, self._at, self.epoch

    def go_back(self, memory: tuple[str | None, str | None, int | None], epoch: int) -> None:
        """As it was at ``memory``; ``epoch`` where it was in none."""
        text, at, known_epoch = memory
        self.enter(epoch if known_epoch is None else known_epoch)
        if text is not None:
            restore(self._dataset, text)
        self._at, self.epoch = at, known_epoch


#: The state of a dataset while a batch is read: none that is known.
_NOWHERE = ""


def has_state(dataset: Any) -> bool:
    """Whether a dataset, or one below it, has a state of its own; an error if it could be saved and not restored.

    >>> has_state([1, 2, 3])
    False
    """
    return any(map(_has_own, _bases(dataset)))


def to_json(dataset: Any) -> str:
    """The state that the dataset has now, as text; what JSON would change is refused."""
    state = _collect(dataset)
    try:
        text = json.dumps(state, allow_nan=False)
        is_exact = json.loads(text) == state
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(
            f"{_name(dataset)}.state_dict(): not JSON ({error}); return dicts, lists, numbers, text"
        ) from None
    if not is_exact:
        raise ConfigError(
            f"{_name(dataset)}.state_dict(): JSON changes it (tuples become lists, keys become text); return what "
            "json.loads(json.dumps(state)) gives back unchanged"
        )
    return text


def restore(dataset: Any, text: str) -> None:
    """Put the state back that ``to_json`` gave."""
    _restore(dataset, json.loads(text))


def check_same(dataset: Any, state: Mapping[str, Any], rank: tuple[int, int] | None) -> None:
    """Refuse a loader's state that lacks the dataset's, has one for a dataset that keeps none, or is another rank's."""
    is_there, is_wanted = "dataset" in state, has_state(dataset)
    if is_there and not is_wanted:
        raise ResumeError(
            f"the state holds a part for a dataset with load_state_dict, {_name(dataset)} has none; go on with the "
            "dataset that the state was taken with"
        )
    if is_wanted and not is_there and state["version"] > 1:
        raise ResumeError(
            f"{_name(dataset)} has a state of its own, which this loader state does not hold; go on with the dataset "
            "that the state was taken with"
        )
    if is_there and rank is not None and state["dataset_of"] != list(rank):
        of, n_ranks = state["dataset_of"]
        raise ResumeError(
            f"the state is of rank {of} of {n_ranks}, this is rank {rank[0]} of {rank[1]}; {_name(dataset)} has a "
            "state of its own on each rank, so each rank goes on from its own, at the same world size"
        )


def below(dataset: Any) -> list[Any] | None:
    """What a view looks at; None for what is no view, or keeps a state of its own."""
    if _own_method(dataset) is not None:
        return None
    inner = _inner(dataset)
    if inner is not None:
        return [inner]
    parts = getattr(dataset, "datasets", None)
    if isinstance(parts, Mapping):  # torch's StackDataset(image=..., text=...)
        return list(parts.values())
    return list(parts) if isinstance(parts, (list, tuple)) else None


def _inner(dataset: Any) -> Any:
    """The one dataset that a view looks at; None for what is none, or looks at several."""
    return dataset._object if isinstance(dataset, AdaptedDataset) else getattr(dataset, "dataset", None)


def _bases(dataset: Any) -> list[Any]:
    parts = below(dataset)
    return [dataset] if parts is None else [base for part in parts for base in _bases(part)]


def _own_method(dataset: Any) -> Any:
    """The user's ``state_dict``; those of poolish's own views hold what can be computed again."""
    method = getattr(dataset, "state_dict", None)
    is_ours = str(getattr(method, "__module__", "")).partition(".")[0] == "poolish"
    return method if callable(method) and not is_ours else None


def _has_own(dataset: Any) -> bool:
    if _own_method(dataset) is None:
        return False
    if not callable(getattr(dataset, "load_state_dict", None)):
        raise ConfigError(f"{_name(dataset)} has state_dict and no load_state_dict, so it cannot be restored; add it")
    return True


def _collect(dataset: Any) -> Any:
    parts = below(dataset)
    if parts is None:
        own = _own_method(dataset)
        return None if own is None else own()
    states = [_collect(part) for part in parts]
    return states if _inner(dataset) is None else states[0]


def _restore(dataset: Any, state: Any) -> None:
    parts = below(dataset)
    if parts is None:
        if _own_method(dataset) is not None:
            dataset.load_state_dict(state)
        return
    states = state if _inner(dataset) is None else [state]
    if not isinstance(states, list) or len(states) != len(parts):
        raise ResumeError(f"the state of {_name(dataset)} is not one for each of its {len(parts)} parts")
    for part, of_part in zip(parts, states, strict=True):
        _restore(part, of_part)


def _name(dataset: Any) -> str:
    return type(dataset).__name__
