"""Samples of any class to rows, and anything that can be appended to a stream of rows or Arrow batches.

A normalizer turns one sample into a dict, or into several rows: dicts, or a table. Those registered for a class come
first, the most specific class winning; then what is built in: dicts, tensors, arrays, images, dataclasses, named
tuples; then ``vars(sample)``. The class whose normalizer was used is the *kind* of the sample: a buffer keeps to one.

Libraries are recognised without being imported: their objects cannot exist before they are loaded.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from poolish import tabular
from poolish.errors import SchemaError
from poolish.rows.validate import shown
from poolish.rows.values import as_dict, copy_mutable, is_array, is_dataclass, is_image, is_named_tuple
from poolish.torch_bridge import is_torch_tensor

Row = Mapping[str, Any]
Normalizer = Callable[[Any], Any]
Function = TypeVar("Function", bound=Normalizer)

#: Samples read from an iterable before they are converted together.
CHUNK_ROWS = 8192

#: The kind of samples that come with column names: dicts.
ROWS = "rows"
#: Arrow, Hugging Face datasets, data frames: no samples but columns, which fit a buffer of any kind.
TABLE = "table"

#: The kinds of samples that are arrays themselves.
ARRAYS = frozenset(["torch.Tensor", "numpy.ndarray"])

_registered: dict[type, Normalizer] = {}

#: Whether a registered normalizer wants to see plain dicts, which are rows already otherwise.
sees_dicts = False


def register_normalizer(sample_class: type) -> Callable[[Function], Function]:
    """Say how samples of a class, and of its subclasses, become rows.

    A normalizer returns a dict. Where a sample is several rows, or none, it returns dicts in a list, a tuple or a
    generator, or an Arrow table.

    >>> class Loaf:
    ...     def __init__(self, flour, grams): self.flour, self.grams = flour, grams
    >>> @register_normalizer(Loaf)
    ... def normalize_loaf(loaf):
    ...     return {"flour": loaf.flour, "kilos": loaf.grams / 1000}
    >>> from poolish import DatasetBuffer
    >>> buffer = DatasetBuffer()
    >>> buffer.append([Loaf("rye", 500), Loaf("wheat", 750)])
    >>> buffer[1]
    {'flour': 'wheat', 'kilos': 0.75}
    >>> @register_normalizer(Loaf)
    ... def slices(loaf):
    ...     return [{"flour": loaf.flour, "slice": i} for i in range(loaf.grams // 250)]
    >>> buffer = DatasetBuffer()
    >>> buffer.append([Loaf("rye", 500), Loaf("wheat", 250)])
    >>> buffer.to_pydict()
    {'flour': ['rye', 'rye', 'wheat'], 'slice': [0, 1, 0]}
    """
    if not isinstance(sample_class, type):
        raise TypeError(
            f"register_normalizer takes a class, got {shown(sample_class)}; write @register_normalizer(MySample)"
        )

    def register(function: Function) -> Function:
        global sees_dicts
        _registered[sample_class] = function
        sees_dicts = sees_dicts or issubclass(dict, sample_class)
        return function

    return register


@dataclass(frozen=True)
class Part:
    """Some consecutive samples of one kind: as rows, or as an Arrow batch.

    ``samples`` says of which sample each row is, and of which a batch is; None where every row is a sample.
    """

    kind: str
    rows: list[Row]
    batch: pa.RecordBatch | None = None
    samples: list[int] | None = None

    def note_sample(self, error: Exception, first_row: int) -> None:
        """Note at an error which sample it is about, where the row that it begins with does not say so."""
        place = re.match(r"row (\d+)", str(error))
        if self.samples and (place or self.batch is not None):
            row = int(place[1]) - first_row if place and self.batch is None else 0
            error.add_note(f"in what the normalizer made of sample {self.samples[row]}, of kind {self.kind}")


def parts_of(samples: Any) -> Iterator[Part]:
    """Everything that was appended, in order, a few thousand rows at a time.

    >>> [len(part.rows) for part in parts_of([{"flour": "rye"}] * 10_000)]
    [8192, 1808]
    """
    batches = batches_of(samples)
    if batches is not None:
        yield from (Part(TABLE, [], batch) for batch in batches)
    elif is_sample(samples):
        kind, normalize = _normalizer_of(samples, 0)
        made = _normalized(samples, normalize, 0, kind)
        yield from made if isinstance(made, list) else [Part(kind, [made])]
    else:
        yield from _parts_of_many(samples)


def _parts_of_many(samples: Any) -> Iterator[Part]:
    if not hasattr(samples, "__iter__"):  # Python would ask for numbers until an IndexError, which may never come
        samples = map(samples.__getitem__, range(len(samples)))
    kind = ""
    rows: list[Row] = []
    of: list[int] | None = None  # the sample of each row, from the first sample on that is not one row
    are_kept = isinstance(samples, (list, tuple))  # an iterator may yield the same object again
    for i, sample in enumerate(samples):
        batches = batches_of(sample)
        next_kind, normalize = (TABLE, _as_it_is) if batches is not None else _normalizer_of(sample, i)
        if rows and (next_kind != kind or batches is not None or len(rows) >= CHUNK_ROWS):
            yield Part(kind, rows, samples=of)
            rows, of = [], None if of is None else []
        kind = next_kind
        if batches is not None:
            yield from (Part(TABLE, [], batch) for batch in batches)
            continue
        made = _normalized(sample, normalize, i, kind)
        if not isinstance(made, list):
            rows.append(made if are_kept and normalize is _as_it_is else copy_mutable(dict(made)))
            if of is not None:
                of.append(i)
            continue
        of = list(range(i - len(rows), i)) if of is None else of
        for part in made:
            if part.batch is None:
                rows += part.rows
                of += part.samples or ()
                continue
            if rows:
                yield Part(kind, rows, samples=of)
                rows, of = [], []
            yield part
    if rows:
        yield Part(kind, rows, samples=of)


def is_sample(value: object) -> bool:
    """Whether a value is one sample, not an iterable of samples."""
    if isinstance(value, (Mapping, str, bytes, type)) or _registered_for(type(value)) is not None:
        return True
    if is_array(value) or is_image(value) or is_named_tuple(value) or is_dataclass(value):
        return True
    return not (hasattr(value, "__iter__") or (hasattr(value, "__getitem__") and hasattr(value, "__len__")))


def _registered_for(sample_class: type) -> tuple[type, Normalizer] | None:
    if not _registered:
        return None
    return next(((base, _registered[base]) for base in sample_class.__mro__ if base in _registered), None)


def _normalizer_of(sample: Any, i: int) -> tuple[str, Normalizer]:
    """The kind of a sample, and the function that makes a row of it."""
    found = _registered_for(type(sample))
    if found is not None:
        return _named(found[0]), found[1]
    if isinstance(sample, Mapping):
        if type(sample) is not dict:
            _refuse_splits(sample, i)
        return ROWS, _as_it_is
    if is_torch_tensor(sample):
        return "torch.Tensor", _tensor
    if isinstance(sample, np.ndarray):
        return "numpy.ndarray", _tensor
    if is_image(sample):
        return "PIL.Image.Image", _image
    if is_dataclass(sample) or is_named_tuple(sample):
        return _named(type(sample)), _record
    if not hasattr(sample, "__dict__") or isinstance(sample, type):
        raise SchemaError(
            f"row {i}: a sample is a dict, an array, an image or an object with attributes, got {shown(sample)}; "
            "wrap it ({'value': ...}) or register a normalizer for its class"
        )
    return _named(type(sample)), vars


def _refuse_splits(value: object, i: int) -> None:
    """Reject a DatasetDict, which looks like a row of datasets, and name its splits."""
    module = sys.modules.get("datasets")
    if module is not None and isinstance(value, (module.DatasetDict, module.IterableDatasetDict)):
        raise SchemaError(
            f"row {i}: a DatasetDict holds splits, not rows; append one: dataset[{next(iter(value), 'train')!r}]"
        )


def _named(sample_class: type) -> str:
    return f"{sample_class.__module__}.{sample_class.__qualname__}"


def _as_it_is(sample: Row) -> Row:
    return sample


def _tensor(sample: Any) -> Row:
    return {"tensor": sample}


def _image(sample: Any) -> Row:
    return {"image": sample}


def _record(sample: Any) -> Row:
    return as_dict(sample) or {}


def _normalized(sample: Any, normalize: Normalizer, i: int, kind: str) -> Row | list[Part]:
    """What a normalizer makes of a sample: one row, or parts where it is several rows or none."""
    try:
        made = normalize(sample)
        if isinstance(made, Mapping):
            return made
        if isinstance(made, (list, tuple, Iterator)):  # which may hand out the same row again and again
            made = [copy_mutable(dict(row)) if isinstance(row, Mapping) else row for row in made]
        else:
            batches = tabular.batches_of(made)
            if batches is not None:
                return [Part(kind, [], batch, [i]) for batch in batches]
    except Exception as error:
        error.add_note(f"while normalizing sample {i}, a {type(sample).__name__}; the buffer is unchanged")
        raise
    place, wrong = f"sample {i}", made
    if isinstance(made, list):
        j = next((j for j, row in enumerate(made) if not isinstance(row, Mapping)), None)
        if j is None:
            return [Part(kind, made, None, [i] * len(made))] if made else []
        place, wrong = f"sample {i}, row {j} of it", made[j]
    name = getattr(normalize, "__name__", repr(normalize))
    raise SchemaError(
        f"{place}: the normalizer {name} must return a dict, a list of dicts or an Arrow table, got {shown(wrong)}; "
        "the buffer is unchanged"
    )


def batches_of(value: Any) -> Iterable[pa.RecordBatch] | None:
    """The Arrow batches of anything tabular; None for anything else."""
    if type(value) is dict or _registered_for(type(value)) is not None:
        return None
    return tabular.batches_of(value)
