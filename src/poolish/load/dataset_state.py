"""What a loader's state says of its dataset: the state that it keeps itself, and a digest of some of its rows.

A dataset with ``state_dict`` and ``load_state_dict`` has a state of its own, which is saved with the loader.

A view without a state of its own is looked through: the dataset below it is asked. Views are those of poolish, and
whatever holds a dataset as ``dataset`` or several as ``datasets``: torch's ``Subset``, ``ConcatDataset`` and
``StackDataset``, and wrappers of users. Several give the states of all, in order.

Rows are compared as well. A buffer or stream has an id, and a state names it. A list, an array, torch's
``TensorDataset`` and a Hugging Face dataset have none: of these a state keeps *spots*, a digest of some rows, evenly
spaced, and of a few values of each. Another dataset, or the same rows in another order, has other values there. One
changed row among many may not be among them. A loader takes the digest when it is made and again with each state, and
either of them will do: rows that are completed in place as they are read are new again after a restart, and rows that
are replaced in place are not. What is longer now is compared as far as it was. Objects of other classes are not
compared.
"""

from __future__ import annotations

import datetime
import decimal
import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from poolish import torch_bridge
from poolish.errors import ConfigError, ResumeError
from poolish.files import checksum_hex
from poolish.load.views.single import AdaptedDataset


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


#: Rows of a dataset, and values of a row's list or array.
N_ROWS, N_VALUES = 16, 8
_EXACT = {type(None), bool, int, float, complex, datetime.datetime, datetime.date, datetime.timedelta, decimal.Decimal}
_LISTS = (pa.ListScalar, pa.LargeListScalar, pa.FixedSizeListScalar)

#: The length and the digest of each dataset below all views; None for one that is not compared.
Spots = list[list[Any] | None]


def spots_of(dataset: Any) -> Spots:
    """The rows of a dataset as they are now.

    >>> spots_of([1, 2]) == spots_of([1, 2]) != spots_of([2, 1])
    True
    """
    return [_spot(leaf) for leaf in _leaves(dataset)]


def kept_spots(first: Spots, dataset: Any) -> list[Spots]:
    """What a state keeps: how the rows are now, and how they were at ``first``, unless there are more since."""
    now = spots_of(dataset)
    if not any(now):
        return []
    is_longer = [spot and spot[0] for spot in first] != [spot and spot[0] for spot in now]
    return [now] if is_longer or first == now else [now, first]


def check_spots(dataset: Any, kept: Sequence[Spots]) -> None:
    """Refuse a dataset that has other rows than each of these."""
    if kept and not any(_agree(_leaves(dataset), spots) for spots in kept):
        raise ResumeError(
            "the state is of other rows, or of another order of them: rows that were compared have other values now; "
            "make the dataset of the same rows in the same order (sort what comes from a set or a directory), or begin "
            "without the state. Rows of a class of your own, with __len__ and __getitem__, are not compared"
        )


def _agree(leaves: list[Any], spots: Spots) -> bool:
    if len(leaves) != len(spots):
        return True  # other views: those are compared by what they choose
    pairs = [(_spot(leaf, then[0]), then) for leaf, then in zip(leaves, spots, strict=True) if then is not None]
    return all(now is None or now == then for now, then in pairs)


def _leaves(dataset: Any) -> list[Any]:
    is_known = type(dataset).__module__.partition(".")[0] in ("poolish", "torch")
    parts = below(dataset) if is_known else None
    return [dataset] if parts is None else [leaf for part in parts for leaf in _leaves(part)]


def _spot(dataset: Any, length: int | None = None) -> list[Any] | None:
    """That of the first ``length`` rows, or of all; None where they are not compared, or fewer."""
    read = _reader(dataset)
    n_rows = None if read is None else len(dataset) if length is None else length
    if read is None or n_rows is None or not 0 < n_rows <= len(dataset):
        return None
    try:
        shown = repr([_shown(row) for row in read(_spaced(n_rows, N_ROWS))])
    except _Unknown:
        return None
    return [n_rows, checksum_hex(shown.encode("utf-8", "surrogatepass"))]


def _reader(dataset: Any) -> Callable[[list[int]], list[Any]] | None:
    """A function that reads rows, where that changes nothing and is not random."""
    torch, kind = torch_bridge.loaded(), type(dataset)
    is_torch = torch is not None and kind in (torch.Tensor, torch.utils.data.TensorDataset)
    if is_torch or kind in (list, tuple, range, np.ndarray, np.memmap):
        return lambda numbers: [dataset[number] for number in numbers]
    if (kind.__module__, kind.__name__) == ("datasets.arrow_dataset", "Dataset"):
        return lambda numbers: _stored_rows(dataset, numbers)
    return None


def _stored_rows(dataset: Any, numbers: list[int]) -> list[Any]:
    """Rows of a Hugging Face dataset, neither decoded nor passed through a transform."""
    from datasets.formatting import query_table

    table = query_table(dataset._data, numbers, indices=dataset._indices)
    return [{name: table[name][i] for name in table.column_names} for i in range(len(table))]


class _Unknown(Exception):
    """A value that is not compared."""


def _shown(value: Any) -> Any:
    """Something small whose repr is the same in every process and differs where the value does, with luck."""
    kind = type(value)
    if kind in _EXACT:
        return value
    if kind in (str, bytes):
        return len(value), value[:64], value[-64:]
    if kind in (list, tuple):
        return len(value), [_shown(value[i]) for i in _spaced(len(value), N_VALUES)]
    if kind is dict:
        names = sorted(value, key=repr)
        return len(names), [(_shown(names[i]), _shown(value[names[i]])) for i in _spaced(len(names), 64)]
    return _shown_scalar(value) if isinstance(value, pa.Scalar) else _shown_array(value)


def _shown_scalar(value: Any) -> Any:
    if isinstance(value, pa.ExtensionScalar):
        value = value.value
    if isinstance(value, _LISTS):
        values = value.values if value.is_valid else None
        return None if values is None else (len(values), [_shown(values[i]) for i in _spaced(len(values), N_VALUES)])
    if isinstance(value, pa.StructScalar):
        return [(name, _shown(value[name])) for name in value] if value.is_valid else None
    return _shown(value.as_py())


def _shown_array(value: Any) -> Any:
    torch = torch_bridge.loaded()
    is_tensor = torch is not None and type(value) is torch.Tensor and value.layout is torch.strided
    is_array = is_tensor or type(value) in (np.ndarray, np.memmap)
    if isinstance(value, np.generic) or (is_array and value.ndim == 0):
        return _shown(value.item())
    if not is_array:
        raise _Unknown
    numbers = _spaced(math.prod(value.shape), N_VALUES)
    if not numbers:
        return str(value.dtype), tuple(value.shape)
    places = np.unravel_index(numbers, value.shape) if is_tensor else ()
    chosen = value[tuple(each.tolist() for each in places)] if is_tensor else value.flat[numbers]
    return str(value.dtype), tuple(value.shape), _shown(chosen.tolist())


def _spaced(n: int, n_wanted: int) -> list[int]:
    """Numbers below ``n``, evenly spaced, the first and the last among them.

    >>> _spaced(100, 4), _spaced(3, 4)
    ([0, 33, 66, 99], [0, 1, 2])
    """
    if n <= n_wanted:
        return list(range(n))
    return [i * (n - 1) // (n_wanted - 1) for i in range(n_wanted)]
