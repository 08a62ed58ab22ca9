"""Random operations on a buffer and on a plain list of dicts give the same answers.

Two buffers with the same seed go through the same operations. One is read after each of them, the other only now and
then: what a buffer holds must not depend on when somebody looked. Random policies cannot be predicted by a list, so
the model checks what they promise (the right number, in the old order) and goes on with what the read buffer kept.
"""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

from poolish import DatasetBuffer
from poolish.errors import ConfigError, SchemaError
from poolish.rows import buffer as buffer_module
from poolish.rows import normalizers, stored
from poolish.rows.snapshot import Snapshot
from tests.effort import times
from tests.rows.facts import facts, plain
from tests.rows.kinds import KINDS, Row, cell_of, columns_of, listed, row_of, rows_of, schema_of, table_of

fractions = st.sampled_from([-1, 0.0, 0.1, 0.25, 0.5, 0.5, 0.9, 1.0, 1])
policies = st.sampled_from(["latest", "oldest", "random"])


class Model:
    """What a buffer should hold: rows, oldest first, and where each append began."""

    def __init__(self, max_size: int | None, drop_strategy: str) -> None:
        self.max_size, self.drop_strategy = max_size, drop_strategy
        self.rows: dict[int, Row] = {}
        self.starts: list[int] = []
        self.next_id = 0

    def append(self, rows: Sequence[Row], fraction: float, by: str, survivors: Sequence[int]) -> None:
        self.retain(fraction, by, survivors)
        if rows:
            self.starts.append(self.next_id)
        for row in rows:
            self.rows[self.next_id] = dict(row)
            self.next_id += 1
        if self.max_size is not None:
            self._keep(min(len(self.rows), self.max_size), "latest" if self.drop_strategy == "oldest" else "random", survivors)

    def retain(self, fraction: float, by: str, survivors: Sequence[int]) -> None:
        self._keep(max(0, round(len(self.rows) * fraction)), by, survivors)

    def _keep(self, n: int, by: str, survivors: Sequence[int]) -> None:
        ids = list(self.rows)
        if n == len(ids):
            return
        if by == "random":
            # More rows may have been driven out afterwards, so here only: nothing is kept that should have gone.
            kept = [i for i in ids if i in set(survivors)]
            assert len(kept) <= n
            kept = sorted({*kept, *[i for i in ids if i not in kept][: n - len(kept)]})
        else:
            kept = ids[len(ids) - n :] if by == "latest" else ids[:n]
        self.rows = {i: self.rows[i] for i in kept}

    @property
    def generations(self) -> list[tuple[int, int]]:
        first_left = next(iter(self.rows), self.next_id)
        ranges = zip(self.starts, [*self.starts[1:], self.next_id], strict=True)
        return [(first, last) for first, last in ranges if last > first_left]


