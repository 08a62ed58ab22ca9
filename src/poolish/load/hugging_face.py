"""Rows of a Hugging Face dataset as Arrow columns, without the Python values that its index gives."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from poolish.load.frozen import FrozenRows, Int64, NumberedRows

#: Features whose Arrow values are what the dataset shows; others are decoded, such as images.
_PLAIN = ("Value", "ClassLabel", "List", "LargeList", "Sequence")


def is_arrow(rows: FrozenRows) -> bool:
    """Whether these rows are those of a Hugging Face dataset that shows them as they are stored."""
    if type(rows) is not NumberedRows:
        return False
    dataset = rows.dataset
    if type(dataset).__module__ != "datasets.arrow_dataset" or dataset.format["type"] is not None:
        return False
    return all(map(_is_plain, dataset.features.values()))


def _is_plain(feature: Any) -> bool:
    inner = getattr(feature, "feature", None)
    return type(feature).__name__ in _PLAIN and (inner is None or _is_plain(inner))


def table_of(rows: FrozenRows, ids: Int64) -> pa.Table:
    """These rows of such a dataset."""
    assert isinstance(rows, NumberedRows)
    shown = rows.dataset.with_format("arrow", columns=rows.dataset.format["columns"])
    table: pa.Table = shown[ids.tolist()]
    return table
